/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The parts of mkrun: mkrun.c (command line, the loop that watches), mkrun_start.c (ranks come), lines.c
 * (what they say), mkrun_clean.c (what they leave), mkrun_gpus.c (what they share), mkrun_census.c (does it fit?). One thread, no signal handlers: signals come through a
 * signalfd. */
#pragma once
#include "lines.h"
#include "mk/param.h"
#include <signal.h>
#include <stdint.h>
#include <sys/types.h>

enum { MKRUN_MAX_RANKS = 1024 };

struct mkrun_rank {
    pid_t pid; /* also its process group; stays a zombie until clean-up, so that the number stays ours */
    bool running;
    int blocks; /* MK_BLOCKS by the census; 0: none was taken */
};

struct mkrun {
    struct mk_settings settings;
    int nodes, per_node, nranks;
    bool quiet, gpus_shared;
    char **argv;
    struct mkrun_rank *ranks;
    int running;
    struct mk_lines *lines;
    int signal_fd;
    sigset_t old_mask;               /* given back to the ranks */
    char root[80], job[256];         /* MK_ROOT, MK_JOB in force */
    char gpus_dir[80];               /* --gpus-shared: directory of MPS and mknic */
    int keeper_alive, keeper_report; /* pipes to their keeper; -1: none */
    int64_t begin_s;                 /* CLOCK_REALTIME */
    uint64_t deadline_ns;            /* of the present phase; 0: none */
    uint64_t asked_ns;               /* when a signal last asked for the end */
    int asked_sig;                   /* which one, 0 = none yet */
    int phase;                       /* enum phase of mkrun.c */
    int status;                      /* of the first rank that failed; 0: none has */
};

/* Starts all ranks. 0, or the exit code after a message; what was started is then in r->ranks. */
int mkrun_start(struct mkrun *r);

/* --gpus-shared (mkrun_gpus.c). start, before mkrun takes in orphans: 0, or the exit code after a message. stop: NULL
 * operation if nothing was started. */
int mkrun_gpus_start(struct mkrun *r);
void mkrun_gpus_stop(struct mkrun *r);
void mkrun_gpus_environment(const struct mkrun *r); /* in a rank */
/* mkrun_census.c: do the kernels of all ranks fit on the GPUs together? Fills ranks[].blocks. 0, or the exit code after
 * a message. */
int mkrun_census(struct mkrun *r);

void mkrun_signal_ranks(struct mkrun *r, int sig);
/* Descendants of this process that are alive, at most `room`; sig is sent to each (0: none). */
int mkrun_descendants(int sig);
/* Removes a directory and what is in it. */
void mkrun_remove_tree(const char *path);
/* Takes the dead and removes what the job left in /dev/shm. Every descendant is dead. */
void mkrun_clean(struct mkrun *r);
