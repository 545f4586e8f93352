/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The ABI harness: drives net, tuner and profiler tables of a plugin, given by path, as NCCL drives them.
 *
 * A case runs in one to eight processes ("ranks"), forked before the library is opened: each opens and initialises
 * it for itself. They meet in `struct shared`. The parent gives every case a deadline: beyond it, the case hangs,
 * which is a failure like any other. A rank that finds a fault says so and ends (broken); its peers end with it.
 *
 *   harness.c        command line, processes, deadlines
 *   harness_conn.c   what the cases share: meeting, connecting, buffers with canaries, waiting
 *   harness_table.c  tables and properties, init and finalize
 *   harness_side.c   tuner, profiler
 *   harness_data.c   sizes, order, requests in flight, groups
 *   harness_life.c   connecting, closing, dying, strangers, threads
 *   harness_churn.c  many communicators, one after another
 *   harness_list.c   a list of plugins; everything unloaded between two communicators
 *   harness_limits.c few files */
#pragma once
#include "tests/plugin/caller.h"

enum { RANKS_MAX = 8, SLOTS_MAX = 128 };

struct shared {
    uint32_t phase[RANKS_MAX];
    uint32_t word[RANKS_MAX]; /* free for the case */
    uint32_t broken;          /* a rank found a fault */
    uint8_t handle[RANKS_MAX][SLOTS_MAX][MK_NCCL_HANDLE_BYTES];
};

struct options {
    const char *path;
    const char *with; /* a second plugin for the cases about lists; NULL: they are skipped */
    const char *only; /* names, comma separated; NULL: all */
    const char *but;  /* not these */
    int version;      /* 0: every one exported */
    size_t max;       /* longest message */
    int rounds;       /* of what is repeated with other random numbers */
    double limit;     /* seconds a case may take */
    double patience;  /* seconds until a dead peer must be noticed */
    bool own;         /* also what only our own plugin promises */
    bool verbose;
};

struct rank {
    const struct options *o;
    int me, n;
    struct shared *sh;
    struct caller c;
    struct caller_props props; /* of device 0 */
    int dev;
    uint64_t random;
    uint64_t end; /* ns */
};

struct test_case {
    const char *name;
    int ranks;
    void (*run)(struct rank *r);
    bool killed; /* rank 1 ends by SIGKILL, as intended */
    bool raw;    /* opens the library itself, runs once, not for each version */
    bool loads;  /* opens the library itself, for each version */
};
/* end: name NULL */
extern const struct test_case cases_table[], cases_side[], cases_data[], cases_life[], cases_churn[],
    cases_list[], cases_limits[];

/* ---- harness.c ---- */
_Noreturn void broken(const struct rank *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
_Noreturn void skip(const struct rank *r, const char *why);
#define need(r, cond, ...) ((cond) ? (void)0 : broken(r, __VA_ARGS__))
void note(const struct rank *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
uint64_t now_ns(void);
/* Loads the library and the rank's version, inits, picks device 0. */
void rank_open(struct rank *r);
void logger(int level, unsigned long flags, const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
/* Text of the last WARN line of this process, "" if there was none. */
const char *last_warning(void);
/* Was this part of any of them? */
bool warned(const char *text);

/* ---- harness_churn.c ---- */
int open_files(void); /* of this process */
/* One communicator's life: a connection each way, a large and a small message over each, closed. */
void communicator(struct rank *r, int number);

/* ---- harness_conn.c ---- */
struct buf {
    uint8_t *all; /* canaries before and after */
    uint8_t *data;
    size_t size;
    void *comm, *mh;
};
struct link {
    void *listen, *send, *recv; /* to and from one peer */
};

uint64_t random_next(struct rank *r);
size_t random_below(struct rank *r, size_t n); /* 0 .. n-1 */

/* Something a waiting loop does in each round: deadline, peers' faults, the processor for others. */
void breathe(struct rank *r);
void step(struct rank *r);                              /* all ranks */
void wait_word(struct rank *r, int of, uint32_t value); /* at least this */
void set_word(struct rank *r, uint32_t value);
void sleep_ms(unsigned ms);

void listen_on(struct rank *r, struct link *l, int slot);
/* Until both are there, as NCCL's service thread polls; to: whose handle. NULL handle: only accept, NULL listen:
 * only connect. */
void meet(struct rank *r, struct link *l, const uint8_t *handle);
/* listen_on, step, meet with the peer's same slot, close the listen comm. */
void link_up(struct rank *r, struct link *l, int peer, int slot);
void link_down(struct rank *r, struct link *l);

void buf_new(struct rank *r, struct buf *b, size_t size, size_t shift);
void buf_reg(struct rank *r, struct buf *b, void *comm);
void buf_dereg(struct rank *r, struct buf *b);
void buf_free(struct rank *r, struct buf *b); /* canaries checked */
void buf_fill(struct buf *b, uint64_t seed, size_t n);
void buf_canaries(const struct rank *r, const struct buf *b, const char *what);
/* Are the first n bytes what buf_fill(seed) writes? -1, or the first wrong byte. */
long buf_wrong(const struct buf *b, uint64_t seed, size_t n);

/* Posts; NULL where the plugin could not start it now. Size `n` of the buffer. */
void *try_send(struct rank *r, void *comm, const struct buf *b, size_t n, int tag);
void *try_recv(struct rank *r, void *comm, const struct buf *b, size_t n, int tag, bool hint);
void *try_recv_group(struct rank *r, void *comm, int n, const struct buf *b, const size_t *sizes,
                     const int *tags);
/* Again until it is posted. */
void *post_send(struct rank *r, void *comm, const struct buf *b, size_t n, int tag);
void *post_recv(struct rank *r, void *comm, const struct buf *b, size_t n, int tag);
/* One test: done? Sizes of n receives; NULL for a send. Any error: broken. */
bool tested(struct rank *r, void *request, int n, int *sizes);
void finish(struct rank *r, void *request, int n, int *sizes);
/* A send and a receive, tested in turns until both are done, as NCCL's progress loop does. */
void finish_both(struct rank *r, void *tx, void *rx, int *size);
/* Tests until done or error: 0 done, else the plugin's code; MK_NCCL_IN_PROGRESS after `seconds`. */
int outcome(struct rank *r, void *request, int n, int *sizes, double seconds);
