/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* A job of real processes for tests: forks nodes x ranks, gives each the environment that mkrun would, runs a
 * function in each, collects exit states. Nothing hangs: when `limit` seconds have passed in which no rank of the job
 * ended or called job_beat, those that are left say where their threads stand, are killed and counted as hung. */
#pragma once
#include "mkernel.h"
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* As for the time of a whole test (ci/cmake/mk.cmake): six ranks with the instrumented product take minutes on two
 * cores that do other work beside. JOB_SLOWER: for what the tests ask of single steps, MK_TIMEOUT first of all. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define JOB_LIMIT_TIMES 5
#define JOB_SLOWER 3
#else
#define JOB_LIMIT_TIMES 1
#define JOB_SLOWER 1
#endif

/* For loops over a rank's own memory, which would take most of the time. */
#define JOB_PLAIN __attribute__((no_sanitize_thread))

#define JOB_MAX 16
#define JOB_DEAD (-1000) /* killed by a signal */
#define JOB_HUNG (-1001)

struct job_rank {
    pid_t pid;
    int status;  /* what fn returned (0 .. 100), JOB_DEAD or JOB_HUNG */
    int stage;   /* written by the rank (release), for the parent */
    int beats;   /* of job_beat, job_stage and job_failed; atomic */
    int over;    /* 1: fn has returned, what is left is exit; atomic */
    int code;    /* MK_ERR_* it saw */
    double seen; /* seconds on the shared clock when it saw it */
    unsigned long hash[64];
    double error[8];
    char text[512];
};

/* Shared with the ranks (MAP_SHARED). */
struct job {
    int nodes, local, n;
    double limit; /* of job_create, longer under a sanitizer */
    char root[64];
    void *arg;
    struct job_rank r[JOB_MAX];
};

struct job *job_create(int nodes, int local, double limit);
void job_destroy(struct job *j);
/* Forks all ranks into fn(job, rank); its result is the exit status. */
void job_start(struct job *j, int (*fn)(struct job *j, int rank), void *arg);
/* Waits for all; returns how many did not return 0. */
int job_wait(struct job *j);
int job_run(struct job *j, int (*fn)(struct job *j, int rank), void *arg);

double job_now(void);
/* Sets MK_TIMEOUT or the like to so many seconds, JOB_SLOWER times as many under a sanitizer. */
void job_seconds(const char *name, double seconds);
void job_stage(struct job *j, int rank, int stage);
/* The job goes on, however slowly: its limit starts again. For ranks that make many calls. */
void job_beat(struct job *j, int rank);
/* Records code and mk_last_error() of a failed call. */
int job_failed(struct job *j, int rank, int code);

/* Inputs that every process can make again: values in [-1, 1), by (seed, index). */
JOB_PLAIN float job_value(unsigned long seed, long i);
JOB_PLAIN void job_fill(void *p, int dtype, long count, unsigned long seed);
JOB_PLAIN unsigned long job_hash(const void *p, size_t bytes, unsigned long h);
