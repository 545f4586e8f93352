/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* State of a proxy, shared by proxy.c (thread, communicators, life) and proxy_cmd.c (commands to puts, completions
 * to done words). Everything but the ring, `asleep`, `kicked`, `unrung`, `stop` and `lockers` is touched under `mutex`. */
#pragma once
#include "net/engine.h"
#include <pthread.h>

#define MK_NO_RECORD UINT32_MAX

struct mk_pcomm;

/* Commands taken from the ring for one link and not yet put. */
struct mk_stage {
    struct mk_pcomm *comm;
    struct mk_link *link;
    struct mk_stage *next; /* in the list of stages that hold something */
    int node, n;
    bool listed, reported;
    struct mk_put put[8];
};

/* What a completion sets. */
struct mk_record {
    uint64_t value;
    uint32_t done;
    uint32_t next; /* free list */
};

struct mk_pcomm {
    struct mk_proxy *p;
    struct mk_proxy_comm d;
    uint16_t id;
    bool ring_bell, nonsense;
    struct mk_pcomm *next;
    struct mk_stage *stage; /* d.nnodes */
    struct mk_record *rec;
    uint32_t nrec, free_rec;
};

struct mk_proxy {
    struct mk_engine *e;
    struct mk_ring ring;
    struct mk_ring_words {
        _Alignas(64) uint64_t claim;
        _Alignas(64) uint64_t tail;
        _Alignas(64) uint64_t tail_seen;
    } * words;                    /* behind the slots, in the same pages */
    uint32_t unrung;              /* producers do not kick (kernels): sleeps are short; __atomic */
    _Alignas(64) uint32_t asleep; /* exchanged by the thread and by mk_proxy_kick */
    uint32_t stop;
    uint32_t kicked;  /* since the thread last looked; only where `unrung` */
    uint32_t lockers; /* threads that want the mutex: the loop stays out of their way */
    pthread_mutex_t mutex;
    pthread_t thread;
    uint64_t next; /* index of the next command */
    struct mk_cmd held;
    bool has_held; /* `held` waits for room in its stage */
    int batch;
    uint64_t window_ns;
    struct mk_stage *full_list; /* stages that hold something */
    struct mk_pcomm **comm;
    struct mk_pcomm *comms;
    uint32_t next_id, ids;
    bool stranger_said, engine_failed;
    uint32_t idle, no_yields, naps; /* naps: short sleeps in a row, where `unrung` */
    struct mk_proxy_stats stats;
};

/* ---- proxy_cmd.c ---- */
/* Takes what is in the ring into the stages; returns how many commands. */
unsigned mk_proxy_take(struct mk_proxy *p);
/* Waits a little for more commands, if it paid lately; returns how many came. */
unsigned mk_proxy_gather(struct mk_proxy *p, unsigned taken);
/* Hands the stages to their links. */
void mk_proxy_flush(struct mk_proxy *p);
/* A put is done: mk_put_done_fn, ctx is its stage. */
void mk_proxy_on_done(void *ctx, struct mk_link *l, uint64_t id, int status);
/* Tells the communicator, once a node, that its link has ended. */
void mk_proxy_link_failed(struct mk_stage *s, int code);
