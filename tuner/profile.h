/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Profiles: what profile.c (events), profile_kind.c (the tables) and profile_file.c (the file) share. */
#pragma once
#include "mk/profile.h"
#include <pthread.h>
#include <stdio.h>

#define PROFILE_COMMS 192 /* remembered; of those that left, the oldest makes room */
#define PROFILE_OPS 1024  /* collectives of a communicator whose end may still come */
#define PROFILE_KINDS 128
#define PROFILE_SPANS 32 /* last runs, to see which overlap */
#define PROFILE_PATH 1024
#define PROFILE_RUN_MAX (1ull << 43) /* ns: a run longer than two hours is a timer that jumped */

struct profile_op {
    uint32_t gen;  /* of the handle; 0: never used */
    uint16_t kind; /* PROFILE_KINDS: the table is full */
    uint8_t expected;
    bool exact, enqueuing;
    uint32_t starts, stops, timers; /* of channels, in this run */
    uint64_t host_begin, start, stop;
    uint64_t seen; /* channels, in this run */
};

struct mk_profile_comm {
    pthread_mutex_t lock;
    /* under the profile's lock */
    bool live, used;
    uint64_t left; /* when it left: a count */
    int *mask;
    /* set while joining, else read by anybody */
    int index;
    struct mk_profile_who who;
    char name[64];
    /* under `lock` (overlap_ns of a kind: span_lock); the counts are read without it */
    uint64_t api, api_p2p, colls, p2p, no_room;
    uint32_t gen; /* of the last handle; grows through the lives of this place */
    int nkinds;
    uint64_t key[PROFILE_KINDS];
    uint8_t place[2 * PROFILE_KINDS]; /* hash of a key to 1 + its number */
    struct profile_op op[PROFILE_OPS];
    struct mk_kind kind[PROFILE_KINDS];
};

struct profile_span {
    uint64_t start, stop, covered, id; /* id, rank: of the communicator */
    int rank;
    struct mk_profile_comm *comm;
    int kind;
};

struct mk_profile {
    pthread_mutex_t lock; /* before a communicator's; that one before span_lock */
    pthread_mutex_t span_lock;
    mk_clock_fn clock;
    char path[PROFILE_PATH];
    char host[64];
    uint16_t tag;    /* of this process's handles */
    uint32_t events; /* counted, for the choice of those that are measured */
    uint32_t colls;  /* counted, for sampling */
    uint32_t more;   /* up to this number all are timed; modulo 2^32 */
    uint64_t spent;  /* ns, of the measured events of this window */
    int level;       /* enum mk_profile_level, in force */
    int limit;       /* the cost allows no more */
    int holds;
    /* under lock */
    uint64_t opened, window, spent_before, lefts, forgotten;
    bool over;
    int told; /* enum mk_profile_level that was logged */
    struct mk_profile_comm *comm[PROFILE_COMMS];
    /* under span_lock */
    struct profile_span span[PROFILE_SPANS];
    uint32_t spans;
    bool failed; /* to write was, and it was said */
};

#define PROFILE_MEASURED 31 /* one event in so many is measured: a prime, since events come in patterns */

/* There is none, or this process is a fork of the one that profiled. */
bool profile_off(const struct mk_profile *p);

/* Under the communicator's lock. */
int profile_kind_of(struct mk_profile_comm *c, const struct mk_profile_event *e, uint64_t bytes);
/* The channels of this run have ended, or never will. */
void profile_fold_run(struct mk_profile *p, struct mk_profile_comm *c, struct profile_op *op);
/* Nothing more is waited for. */
void profile_fold(struct mk_profile *p, struct mk_profile_comm *c, struct profile_op *op);
void profile_copy_kind(struct mk_profile *p, const struct mk_profile_comm *c, int i, struct mk_kind *out);
/* A communicator's place is taken by another: its runs overlap nothing any more. */
void profile_forget(struct mk_profile *p, const struct mk_profile_comm *c);

/* The name that the pattern says; false: as mk_profile_open. */
bool profile_path(const char *pattern, const char *host, int pid, char out[PROFILE_PATH]);
