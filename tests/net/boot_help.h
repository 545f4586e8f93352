/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What the bootstrap's tests share: ranks as threads, strangers, a log that is caught. */
#pragma once
#include "mk/boot.h"
#include "mk/param.h"
#include <stdbool.h>
#include <stdint.h>

enum { HELP_MAX = 64 };

/* A port of 127.0.0.1 that nobody has now. */
int help_port(void);
bool help_has_ipv6(void);
/* Defaults, lo, MK_ROOT=127.0.0.1:port (0: none), MK_TIMEOUT. */
void help_settings(struct mk_settings *s, int port, double timeout);

enum help_way { BY_ROOT, BY_ID, BY_GATHER, WAYS };
struct help_job;
struct help_rank {
    struct help_job *job;
    int rank, nranks; /* as this rank says; the job's unless changed */
    struct mk_settings s;
    int delay_ms;
    bool skip;         /* never comes */
    struct mk_boot *b; /* after init */
    int ret;           /* of init, then of body */
    char error[512];   /* mk_last_error() of that */
};
struct help_job {
    enum help_way way;
    int n;
    mk_unique_id_t id;
    int (*body)(struct help_rank *r); /* after a good init; then destroy unless keep */
    bool keep;
    struct help_rank rank[HELP_MAX];
    /* the all-gather callback */
    void *board;
    uint64_t waiting, round; /* guarded by the mutex in boot_help.c */
};
void help_job_init(struct help_job *j, enum help_way way, int n, double timeout);
/* Runs all ranks as threads; returns when all are done. */
void help_job_run(struct help_job *j);
int help_init(struct help_rank *r);
/* Every rank that came has returned ret, with that text in its error. */
void help_all_return(const struct help_job *j, int ret, const char *text);

/* Connects to 127.0.0.1:port; sends n bytes; returns the socket, or -1. */
int help_connect(int port);
int help_stranger(int port, const void *bytes, size_t n);
/* Reads until the end (at most 5 s); returns the bytes got, -1 if the end did not come. */
long help_read_all(int fd, void *buf, size_t size);
bool help_wait_event(struct mk_boot *b, struct mk_boot_event *out, int ms);
bool help_wait_left(struct mk_boot *b, int rank, int ms);
void help_sleep_ms(int ms);

/* Catches the log lines; count tells in how many `part` occurs. */
void help_log_catch(void);
int help_log_count(const char *part);
