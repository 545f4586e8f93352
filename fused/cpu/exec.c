/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* CPU executor: a pool of block threads, and the loop that a block runs through one launch. A block never waits
 * inside a task; with nothing to do it yields some times, then sleeps on the bell of its rank, with deadlines. */
#define MK_PEERS_ELSEWHERE /* in processes of their own: see dev_cpu.h */
#include "comm.h"
#include "mk/err.h"
#include "mk/log.h"
#include "ops/gemm_ar_need_do.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- pool ---- */

struct mk_pool {
    int threads;
    pthread_t *ids;
    int started;
    pthread_mutex_t lock;
    pthread_cond_t go, done;
    uint64_t round; /* of the work given out; under lock */
    int running;    /* helpers still in fn; under lock */
    bool stop;
    void (*fn)(void *ctx, int block);
    void *ctx;
};

struct pool_arg {
    struct mk_pool *pool;
    int block;
};

static void *pool_thread(void *p)
{
    struct pool_arg arg = *(struct pool_arg *)p;
    struct mk_pool *pool = arg.pool;
    uint64_t seen = 0;
    free(p);
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (pool->round == seen && !pool->stop)
            pthread_cond_wait(&pool->go, &pool->lock);
        if (pool->stop)
            break;
        seen = pool->round;
        pthread_mutex_unlock(&pool->lock);
        pool->fn(pool->ctx, arg.block);
        pthread_mutex_lock(&pool->lock);
        if (--pool->running == 0)
            pthread_cond_signal(&pool->done);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

int mk_pool_create(int threads, struct mk_pool **out)
{
    struct mk_pool *p = calloc(1, sizeof(*p));
    if (!p || !(p->ids = calloc((size_t)threads, sizeof(*p->ids)))) {
        free(p);
        return mk_fail(MK_ERR_NOMEM, "FUSED", "no memory for %d blocks", threads);
    }
    p->threads = threads;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->go, NULL);
    pthread_cond_init(&p->done, NULL);
    for (int i = 1; i < threads; i++) {
        struct pool_arg *arg = malloc(sizeof(*arg));
        int err = arg ? 0 : ENOMEM;
        if (arg) {
            arg->pool = p;
            arg->block = i;
            err = pthread_create(&p->ids[i], NULL, pool_thread, arg);
        }
        if (err) {
            free(arg);
            mk_pool_destroy(p);
            return mk_fail(MK_ERR_SYSTEM, "FUSED", "block thread %d of %d: %s", i, threads, strerror(err));
        }
        p->started = i;
    }
    *out = p;
    return 0;
}

void mk_pool_destroy(struct mk_pool *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->go);
    pthread_mutex_unlock(&p->lock);
    for (int i = 1; i <= p->started; i++)
        pthread_join(p->ids[i], NULL);
    pthread_cond_destroy(&p->go);
    pthread_cond_destroy(&p->done);
    pthread_mutex_destroy(&p->lock);
    free(p->ids);
    free(p);
}

void mk_pool_forget(struct mk_pool *p)
{
    if (p)
        free(p->ids);
    free(p);
}

void mk_pool_run(struct mk_pool *p, void (*fn)(void *ctx, int block), void *ctx)
{
    pthread_mutex_lock(&p->lock);
    p->fn = fn;
    p->ctx = ctx;
    p->running = p->threads - 1;
    p->round++;
    pthread_cond_broadcast(&p->go);
    pthread_mutex_unlock(&p->lock);
    fn(ctx, 0);
    pthread_mutex_lock(&p->lock);
    while (p->running)
        pthread_cond_wait(&p->done, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

/* ---- waiting ---- */

#define YIELDS 20                 /* before a block sleeps */
#define SLEEP_NS 2000000ull       /* everybody who publishes rings; this bounds the checks below */
#define SLEEP_UNRUNG_NS 100000ull /* adapter flag: the NIC writes flags and rings nothing */
#define SECONDHAND_NS 1e9
#define REMIND_NS 30000000000ull
#define STOPPED_NS 1000000000ull /* between two looks: this process did not run, its clocks start again */

struct waiter {
    struct mk_comm *comm;
    const struct mk_ar *ar;
    struct mk_ar_block *blk;
    int idle;
    uint64_t began, looked, reminded;
    uint64_t gone_seen; /* when a local peer's word of its failure was first seen; 0: not */
};

static bool ask_needs(void *w, int node_level, int peer)
{
    return mk_ar_needs(((struct waiter *)w)->ar, node_level, peer);
}
static bool ask_drained(void *w, int node)
{
    return mk_ar_drained(((struct waiter *)w)->ar, node);
}
static void ask_describe(void *ctx, char *text, size_t size)
{
    struct waiter *w = ctx;
    mk_stuck_describe(w->comm, w->ar, w->blk, text, size);
}

static void check_gone(struct waiter *w, uint64_t idle_ns)
{
    const struct mk_gone_ask ask = {ask_needs, ask_drained, ask_describe, w};
    if (idle_ns >= MK_GONE_VERDICT_NS)
        mk_gone_check(w->comm, &ask, &w->gone_seen);
}

/* Are tiles of this rank's own still to come? Then nobody else is late. */
static bool computing(const struct waiter *w)
{
    const uint32_t tiles = mk_ar_has_tiles(w->ar) ? mk_tiles(&w->ar->grid) : 0;
    for (uint32_t i = 0; i < tiles; i++)
        if (!mk_ar_tile_ready(w->ar, w->blk, i))
            return true;
    return false;
}

/* Waits a little for something to happen; raises the failure where a deadline has passed. seq: of the bell, read
 * before the last look. */
static void wait_a_little(struct waiter *w, uint32_t seq)
{
    struct mk_comm *comm = w->comm;
    if (++w->idle <= YIELDS) {
        sched_yield();
        return;
    }
    /* Until now this block had something to do, or the process was stopped. */
    if (w->idle == YIELDS + 1)
        w->looked = w->began = mk_time_ns();
    const bool unrung = comm->proxy && !strcmp(mk_engine_caps(mk_proxy_engine(comm->proxy))->adapter, "flag");
    mk_bell_wait(comm->host.bell, seq, unrung ? SLEEP_UNRUNG_NS : SLEEP_NS);
    const uint64_t now = mk_time_ns();
    if (now - w->looked > STOPPED_NS)
        w->began = now;
    w->looked = now;
    const uint64_t last = mk_ld_rlx_gpu_u64(&comm->state->progress_ns);
    const uint64_t since = last > w->began ? last : w->began;
    const uint64_t idle_ns = now > since ? now - since : 0;
    char what[200];
    check_gone(w, idle_ns);
    const double limit = comm->settings.peer_timeout * 1e9;
    const bool expired = limit > 0 && (double)idle_ns > limit;
    if ((expired || idle_ns > REMIND_NS) && computing(w)) {
        w->began = now;
    } else if (expired) {
        /* Who waits for the absent rank itself speaks first; the others wait for those, and would name them. */
        if (mk_stuck_describe(comm, w->ar, w->blk, what, sizeof(what)) ||
            (double)idle_ns > limit + SECONDHAND_NS)
            mk_comm_fail(comm, MK_ERR_TIMEOUT, true, "MK_PEER_TIMEOUT: %s", what);
    } else if (idle_ns > REMIND_NS && now - w->reminded > REMIND_NS) {
        mk_stuck_describe(comm, w->ar, w->blk, what, sizeof(what));
        MK_WARN("FUSED", "waiting for %llu s: %s", (unsigned long long)(idle_ns / 1000000000u), what);
        w->reminded = now;
    }
}

/* ---- a block's launch ---- */

struct launch {
    struct mk_comm *comm;
    const struct mk_ar *ar;
};

/* Has everything sent to node e arrived there, or has e finished and left (then it had all it needed)? */
static bool node_drained(struct mk_comm *comm, const struct mk_ar *ar, int e)
{
    return mk_ar_drained(ar, e) || mk_gone_left(comm, 1, e);
}

static void last_block(struct waiter *w)
{
    struct mk_comm *comm = w->comm;
    for (int e = 0; e < comm->topo.nnodes; e++) {
        while (e != comm->topo.node && !mk_ar_aborted(w->ar)) {
            const uint32_t seq = mk_bell_seq(comm->host.bell);
            if (node_drained(comm, w->ar, e))
                break;
            wait_a_little(w, seq);
        }
    }
    if (!mk_ar_aborted(w->ar))
        mk_ar_advance(w->ar, w->blk);
}

static void run_block(void *ctx, int index)
{
    const struct launch *l = ctx;
    struct mk_comm *comm = l->comm;
    const struct mk_ar *ar = l->ar;
    struct mk_ar_block blk;
    struct waiter w = {comm, ar, &blk, 0, mk_time_ns(), 0, 0, 0};
    uint64_t idle_from = 0;
    memset(&blk, 0, sizeof(blk));
    w.reminded = w.began;
    mk_ar_enter(ar, &blk);
    for (;;) {
        const uint32_t seq = mk_bell_seq(comm->host.bell);
        const int next = mk_ar_next(ar, &blk);
        if (next == MK_NEXT_LEAVE)
            break;
        const uint64_t begin = comm->trace_events ? mk_time_ns() : 0;
        if (next == MK_NEXT_IDLE) {
            if (!idle_from)
                idle_from = begin;
            wait_a_little(&w, seq);
            continue;
        }
        w.idle = 0;
        if (idle_from)
            mk_trace_add(comm, index, MK_ROLE_IDLE, &blk.task, idle_from, begin);
        idle_from = 0;
        mk_ar_do(ar, &blk);
        if (comm->trace_events)
            mk_trace_add(comm, index, mk_ar_role(blk.task.kind), &blk.task, begin, mk_time_ns());
    }
    w.idle = 0;
    w.began = mk_time_ns();
    if (mk_ar_leave(ar, &blk))
        last_block(&w);
}

/* After a failure C may hold results of other ranks in some chunks: all of it becomes NaN. */
static void poison(const struct mk_ar *ar)
{
    const size_t elem = mk_elem_bytes(ar->dtype);
    for (int64_t i = 0; ar->grid.n && i < ar->grid.m; i++)
        memset((uint8_t *)ar->c + (size_t)(i * ar->ldc) * elem, 0xff, (size_t)ar->grid.n * elem);
}

int mk_exec_cpu(struct mk_comm *comm, const struct mk_ar *ar)
{
    struct launch l = {comm, ar};
    mk_trace_begin(comm);
    mk_pool_run(comm->pool, run_block, &l);
    const int ret = mk_comm_check(comm);
    if (ret)
        poison(ar);
    return ret;
}
