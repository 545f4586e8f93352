/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#include "world.h"
#include "fused/ops/gemm_ar_need_do.h"
#include "tests/ref/gemm_ar_ref.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RING_LOG2 12
#define POISON 0xa5

uint64_t world_rand(uint64_t *s)
{
    *s += 0x9e3779b97f4a7c15ull;
    uint64_t z = *s;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static void no_wake(void *ctx)
{
    (void)ctx;
}
static void note_mismatch(void *ctx, int node_level, int peer)
{
    struct world_rank *r = ctx;
    (void)node_level;
    __atomic_store_n(&r->seen_mismatch, 1 + peer, __ATOMIC_RELAXED);
    for (int i = 0; i < r->w->n; i++)
        __atomic_store_n(&r->w->r[i].abort_word, 10, __ATOMIC_RELEASE);
}

struct world_queued {
    struct mk_ar ar;
    int64_t k, lda, ldb, ldc;
    void *a, *b, *c;
    uint64_t *tile_flag;
};

struct world *world_create(int nnodes, int nlocal, int blocks, size_t workspace, size_t chunk, uint64_t start,
                           uint64_t seed)
{
    struct world *w = calloc(1, sizeof(*w));
    w->nnodes = nnodes;
    w->nlocal = nlocal;
    w->n = nnodes * nlocal;
    w->blocks = blocks;
    w->seed = seed;
    w->r = calloc((size_t)w->n, sizeof(*w->r));
    for (int i = 0; i < w->n; i++) {
        struct world_rank *r = &w->r[i];
        r->w = w;
        r->index = i;
        r->rng = seed * 1000 + (uint64_t)i;
        r->topo.nnodes = nnodes;
        r->topo.nlocal = nlocal;
        r->topo.node = i / nlocal;
        r->topo.local = i % nlocal;
        if (mk_rings_build(&r->topo, workspace, chunk, &r->rings))
            abort();
        r->fixed = aligned_alloc(4096, r->rings.fixed_bytes);
        memset(r->fixed, 0, r->rings.fixed_bytes);
        r->staging = aligned_alloc(4096, r->rings.staging_bytes);
        memset(r->staging, POISON, r->rings.staging_bytes);
        r->state = calloc(1, sizeof(*r->state));
        mk_rings_init(&r->rings, r->fixed, r->state, start);
        r->ring_slots = calloc(1u << RING_LOG2, sizeof(*r->ring_slots));
        r->ring.slot = r->ring_slots;
        r->ring.claim = &r->ring_claim;
        r->ring.tail = &r->ring_tail;
        r->ring.tail_seen = &r->ring_seen;
        r->ring.log2_slots = RING_LOG2;
        r->peer_fixed = calloc((size_t)nlocal, sizeof(*r->peer_fixed));
        r->peer_staging = calloc((size_t)nlocal, sizeof(*r->peer_staging));
        r->peer_bell = calloc((size_t)nlocal, sizeof(*r->peer_bell));
        r->host.bell = (struct mk_bell *)r->fixed;
        r->host.peer_bell = r->peer_bell;
        r->host.wake_proxy = no_wake;
        r->host.mismatch = note_mismatch;
        r->host.ctx = r;
        r->host.scratch = calloc((size_t)blocks, sizeof(*r->host.scratch));
        for (int b = 0; b < blocks; b++)
            r->host.scratch[b] = malloc(MK_GEMM_SCRATCH * sizeof(float));
    }
    for (int i = 0; i < w->n; i++)
        for (int p = 0; p < nlocal; p++) {
            struct world_rank *peer = &w->r[i / nlocal * nlocal + p];
            w->r[i].peer_fixed[p] = peer->fixed;
            w->r[i].peer_staging[p] = peer->staging;
            w->r[i].peer_bell[p] = peer->host.bell;
        }
    return w;
}

void world_finish(struct world *w)
{
    for (int i = 0; i < w->n; i++) {
        free(w->r[i].a);
        free(w->r[i].b);
        free(w->r[i].c);
        free(w->r[i].tile_flag);
        free((void *)(uintptr_t)w->r[i].ar.bias);
        w->r[i].a = w->r[i].b = w->r[i].c = NULL;
        w->r[i].tile_flag = NULL;
        w->r[i].ar.bias = NULL;
    }
}

void world_queue(struct world *w)
{
    for (int i = 0; i < w->n; i++) {
        struct world_rank *r = &w->r[i];
        r->queued = realloc(r->queued, (size_t)(w->nqueued + 1) * sizeof(*r->queued));
        r->queued[w->nqueued] =
            (struct world_queued){r->ar, r->k, r->lda, r->ldb, r->ldc, r->a, r->b, r->c, r->tile_flag};
        r->a = r->b = r->c = NULL;
        r->tile_flag = NULL;
        r->ar.bias = NULL;
    }
    w->nqueued++;
}

static void recall(struct world_rank *r, int i)
{
    const struct world_queued *q = &r->queued[i];
    r->ar = q->ar;
    r->k = q->k;
    r->lda = q->lda;
    r->ldb = q->ldb;
    r->ldc = q->ldc;
    r->a = q->a;
    r->b = q->b;
    r->c = q->c;
    r->tile_flag = q->tile_flag;
}
void world_recall(struct world *w, int i)
{
    for (int at = 0; at < w->n; at++)
        recall(&w->r[at], i);
}

static void free_queued(struct world *w)
{
    for (int i = 0; i < w->nqueued; i++) {
        world_recall(w, i);
        world_finish(w);
    }
    for (int i = 0; i < w->n; i++)
        free(w->r[i].queued);
}

void world_destroy(struct world *w)
{
    if (!w->nqueued)
        world_finish(w);
    free_queued(w);
    for (int i = 0; i < w->n; i++) {
        struct world_rank *r = &w->r[i];
        for (int b = 0; b < w->blocks; b++)
            free(r->host.scratch[b]);
        free(r->host.scratch);
        free(r->peer_fixed);
        free(r->peer_staging);
        free(r->peer_bell);
        free(r->ring_slots);
        free(r->state);
        free(r->fixed);
        free(r->staging);
    }
    free(w->r);
    free(w);
}

/* ---- inputs ---- */

static void *filled(int64_t count, int dtype, uint64_t *rng)
{
    uint8_t *p = malloc((size_t)(count ? count : 1) * mk_elem_bytes(dtype));
    for (int64_t i = 0; i < count; i++)
        mk_ref_set(p, dtype, i, (double)(int64_t)(world_rand(rng) >> 11) / 4503599627370496.0 - 1.0);
    return p;
}

int world_prepare(struct world *w, const struct world_call *c)
{
    uint64_t bias_rng = w->seed++ ^ 0x55;
    void *bias = c->with_bias ? filled(c->n, c->dtype, &bias_rng) : NULL;
    world_finish(w);
    for (int i = 0; i < w->n; i++) {
        struct world_rank *r = &w->r[i];
        const int64_t k = c->k[i];
        uint64_t rng = w->seed * 7919 + (uint64_t)i;
        r->k = k;
        r->lda = (c->layout == MK_NT ? c->m : k) + c->pad;
        r->ldb = (c->layout == MK_TN ? k : c->n) + c->pad;
        r->ldc = c->n + c->pad;
        r->a = filled((c->layout == MK_NT ? k : c->m) * r->lda, c->dtype, &rng);
        r->b = filled((c->layout == MK_TN ? c->n : k) * r->ldb, c->dtype, &rng);
        const size_t bytes = (size_t)(c->m * r->ldc + 1) * mk_elem_bytes(c->dtype);
        r->c = malloc(bytes);
        memset(r->c, POISON, bytes);
        mk_epilogue_t ep = {NULL, (mk_activation_t)c->act};
        if (bias) {
            ep.bias = malloc((size_t)c->n * mk_elem_bytes(c->dtype) + 1);
            memcpy((void *)(uintptr_t)ep.bias, bias, (size_t)c->n * mk_elem_bytes(c->dtype));
        }
        const struct mk_gemm_call call = {c->m,
                                          c->n,
                                          k,
                                          r->lda,
                                          r->ldb,
                                          r->ldc,
                                          r->a,
                                          r->b,
                                          r->c,
                                          &ep,
                                          (mk_layout_t)c->layout,
                                          (mk_dtype_t)c->dtype,
                                          MK_PART_FUSED};
        int ret = mk_plan_check(&call, NULL, false);
        if (!ret)
            ret = mk_plan_build(&r->rings, c->wire_fp32 != 0, false, &call, &r->ar);
        if (ret) {
            free((void *)(uintptr_t)ep.bias);
            free(bias);
            return ret;
        }
        r->tile_flag = calloc(mk_tiles(&r->ar.grid) + 1, sizeof(*r->tile_flag));
        r->ar.blocks = w->blocks;
        r->ar.budget = 1;
        r->ar.max_helpers = w->blocks / 2 > 1 ? w->blocks / 2 : 1;
        r->ar.control = w->control != WORLD_BUDGET;
        r->ar.patience_ns = w->patience_ns;
        r->ar.control_start = (uint32_t)w->blocks / 2;
        r->ar.state = r->state;
        r->first_left = 0;
        r->ar.tile_flag = r->tile_flag;
        r->ar.abort_word = &r->abort_word;
        r->ar.fixed = r->fixed;
        r->ar.staging = r->staging;
        r->ar.net_fixed = r->fixed;
        r->ar.net_words = r->fixed;
        r->ar.net_staging = r->staging;
        r->ar.tile_parts = 1;
        r->ar.place_rows = mk_ar_place_rows(&r->ar);
        r->ar.peer_fixed = r->peer_fixed;
        r->ar.peer_staging = r->peer_staging;
        r->ar.ring = r->ring;
        r->ar.host = &r->host;
    }
    free(bias);
    return 0;
}

/* ---- the wire ---- */

static bool wire_take(struct world_rank *r)
{
    bool any = false;
    while (r->npending < WORLD_PENDING && mk_ring_peek(&r->ring, r->taken, &r->pending[r->npending])) {
        r->npending++;
        r->taken++;
        mk_ring_free(&r->ring, r->taken);
        any = true;
    }
    return any;
}

static void wire_execute(struct world_rank *r, const struct mk_cmd *c)
{
    struct world *w = r->w;
    struct world_rank *to = &w->r[(int)mk_cmd_node(c) * w->nlocal + r->topo.local];
    uint64_t *flag = mk_ar_note(to->fixed, &to->rings, (uint32_t)mk_cmd_note(c));
    if (mk_cmd_kind(c) == MK_CMD_CREDIT) {
        if (w->lose_credits && world_rand(&r->rng) % (unsigned)w->lose_credits == 0)
            return;
        mk_max_sys_u64(flag, mk_cmd_value(c));
    } else if (mk_cmd_kind(c) == MK_CMD_WRITE) {
        const uint8_t *src = (mk_cmd_swin(c) ? r->staging : r->fixed) + mk_cmd_loff(c);
        memcpy((mk_cmd_dwin(c) ? to->staging : to->fixed) + mk_cmd_roff(c), src, mk_cmd_len(c));
        mk_st_rel_sys_u64(flag, mk_cmd_value(c));
        mk_st_rel_sys_u64((uint64_t *)(r->fixed + r->rings.done_off) + mk_cmd_done(c), mk_cmd_value(c));
    }
    mk_bell_ring(to->host.bell);
    mk_bell_ring(r->host.bell);
}

/* Executes one pending command, any of them: writes to one slot cannot be pending twice, credits only grow. */
static bool wire_step(struct world_rank *r)
{
    wire_take(r);
    if (!r->npending)
        return false;
    const int i = (int)(world_rand(&r->rng) % (uint64_t)r->npending);
    const struct mk_cmd c = r->pending[i];
    r->pending[i] = r->pending[--r->npending];
    wire_execute(r, &c);
    return true;
}

static void *wire_thread(void *arg)
{
    struct world_rank *r = arg;
    uint64_t rng = r->rng ^ 0xabc;
    while (!__atomic_load_n(&r->w->stop, __ATOMIC_ACQUIRE)) {
        if (r->w->delays && world_rand(&rng) % 50 == 0)
            usleep((useconds_t)(world_rand(&rng) % 200));
        if (!wire_step(r))
            usleep(50);
    }
    return NULL;
}

/* ---- threads ---- */

struct block_arg {
    struct world_rank *r;
    uint64_t rng;
    int gave_up;
    bool first;
};

static void any_target(struct block_arg *arg, const struct mk_ar_block *blk)
{
    struct mk_ar_ctl *c = &arg->r->state->control[0];
    const uint64_t tag = (uint64_t)blk->tag << 32;
    mk_st_rel_gpu_u64(&c->lock, tag | 1);
    mk_st_rel_gpu_u64(&c->target, tag | world_rand(&arg->rng) % ((uint64_t)arg->r->w->blocks + 2));
}

static void *block_thread(void *p)
{
    struct block_arg *arg = p;
    struct world_rank *r = arg->r;
    struct mk_ar_block blk;
    uint64_t idle_since = 0;
    memset(&blk, 0, sizeof(blk));
    if (r->w->delays)
        usleep((useconds_t)(world_rand(&arg->rng) % 2000));
    while (r->w->late && !arg->first && !__atomic_load_n(&r->first_left, __ATOMIC_ACQUIRE))
        usleep(100);
    mk_ar_enter(&r->ar, &blk);
    for (;;) {
        const uint32_t seq = mk_bell_seq(r->host.bell);
        if (r->w->control == WORLD_ANY_TARGET)
            any_target(arg, &blk);
        const int next = r->w->next ? r->w->next(&r->ar, &blk) : mk_ar_next(&r->ar, &blk);
        if (next == MK_NEXT_LEAVE)
            break;
        if (next == MK_NEXT_TASK) {
            if (r->w->delays && world_rand(&arg->rng) % 20 == 0)
                usleep((useconds_t)(world_rand(&arg->rng) % 300));
            mk_ar_do(&r->ar, &blk);
            idle_since = 0;
            continue;
        }
        idle_since = idle_since ? idle_since : mk_time_ns();
        if (mk_time_ns() - idle_since > 20000000000ull) {
            arg->gave_up = 1;
            __atomic_store_n(&r->abort_word, 8, __ATOMIC_RELEASE);
        }
        mk_bell_wait(r->host.bell, seq, 1000000);
    }
    if (arg->first)
        __atomic_store_n(&r->first_left, 1, __ATOMIC_RELEASE);
    if (!mk_ar_leave(&r->ar, &blk))
        return NULL;
    for (int e = 0; e < r->w->nnodes; e++)
        while (e != r->topo.node && !mk_ar_drained(&r->ar, e) && !mk_ar_aborted(&r->ar))
            usleep(50);
    if (!mk_ar_aborted(&r->ar))
        mk_ar_advance(&r->ar, &blk);
    return NULL;
}

int world_run_threads(struct world *w)
{
    const int n = w->n * w->blocks;
    pthread_t *ids = calloc((size_t)(n + w->n), sizeof(*ids));
    struct block_arg *args = calloc((size_t)n, sizeof(*args));
    int gave_up = 0;
    w->stop = 0;
    for (int i = 0; i < w->n; i++)
        pthread_create(&ids[n + i], NULL, wire_thread, &w->r[i]);
    for (int i = 0; i < n; i++) {
        args[i].r = &w->r[i % w->n];
        args[i].first = i < w->n;
        args[i].rng = w->seed * 31 + (uint64_t)i;
        pthread_create(&ids[i], NULL, block_thread, &args[i]);
    }
    for (int i = 0; i < n; i++) {
        pthread_join(ids[i], NULL);
        gave_up += args[i].gave_up;
    }
    __atomic_store_n(&w->stop, 1, __ATOMIC_RELEASE);
    for (int i = 0; i < w->n; i++)
        pthread_join(ids[n + i], NULL);
    for (int i = 0; i < w->n; i++) /* credits of the last chunks */
        while (wire_step(&w->r[i]))
            ;
    free(args);
    free(ids);
    return gave_up;
}

/* ---- steps ---- */

/* One random queue of a rank, claimed by one of its blocks that holds nothing. */
static bool try_random_claim(struct world_rank *r, struct mk_ar_block *blk, uint64_t *rng, bool every)
{
    const int kinds = MK_AR_KINDS;
    const int first = (int)(world_rand(rng) % (unsigned)kinds);
    for (int i = 0; i < (every ? kinds : 1); i++) {
        const int kind = (first + i) % kinds;
        /* where calls are queued headers come late: what does not wait for them has gone then */
        if (!every && r->w->nqueued && kind >= MK_AR_HDR_OUT_LOCAL && world_rand(rng) % 512)
            continue;
        if (mk_ar_try_kind(&r->ar, blk, kind) == 1)
            return true;
    }
    return false;
}

/* All queues of the rank handed out? */
static bool all_claimed(struct world_rank *r, struct mk_ar_block *blk)
{
    for (int kind = 0; kind < MK_AR_KINDS; kind++) {
        const char fan = mk_ar_fan(kind);
        const int n = fan == '1' ? 1 : fan == 'l' ? r->topo.nlocal : r->topo.nnodes;
        const int self = fan == 'l' ? r->topo.local : r->topo.node;
        for (int p = 0; p < n; p++)
            if ((fan == '1' || p != self) &&
                mk_count_read(&r->state->queue[kind][p], blk->tag) < mk_ar_items(&r->ar, kind, p))
                return false;
    }
    return true;
}

struct stepper {
    struct mk_ar_block *blk; /* [rank * blocks + block] */
    uint8_t *holds;          /* claimed, not done */
    uint8_t *finished;       /* [rank] */
};
static void stepper_begin(const struct world *w, struct stepper *s)
{
    s->blk = calloc((size_t)(w->n * w->blocks), sizeof(*s->blk));
    s->holds = calloc((size_t)(w->n * w->blocks), 1);
    s->finished = calloc((size_t)w->n, 1);
}
static void stepper_end(struct world *w, struct stepper *s, int deadlock)
{
    for (int i = 0; i < w->n && !deadlock; i++) /* credits of the last chunks */
        while (wire_step(&w->r[i]))
            ;
    free(s->blk);
    free(s->holds);
    free(s->finished);
}

/* Everything that could happen at all; returns whether something did. */
static bool any_step(struct world *w, struct stepper *s, uint64_t *rng, bool every)
{
    const int total = w->n * (w->blocks + 1);
    const int first = (int)(world_rand(rng) % (unsigned)total);
    for (int i = 0; i < (every ? total : 1); i++) {
        const int at = (first + i) % total, rank = at / (w->blocks + 1), b = at % (w->blocks + 1);
        struct world_rank *r = &w->r[rank];
        if (b == w->blocks) {
            if (wire_step(r))
                return true;
            continue;
        }
        const int id = rank * w->blocks + b;
        if (s->holds[id]) {
            mk_ar_do(&r->ar, &s->blk[id]);
            s->holds[id] = 0;
            return true;
        }
        if (!s->finished[rank] && try_random_claim(r, &s->blk[id], rng, every)) {
            s->holds[id] = 1;
            return true;
        }
    }
    return false;
}

/* Does the rank's launch need its neighbours, or not? calls: what each rank has finished; NULL: ask of all, else of those
 * that are in a call before this rank's. */
static void check_needs(const struct world_rank *r, bool want, const int *calls)
{
    const struct mk_topo *t = &r->topo;
    for (int level = 0; level < 2; level++)
        for (int p = 0; p < (level ? t->nnodes : t->nlocal); p++) {
            const int rank = level ? p * t->nlocal + t->local : t->node * t->nlocal + p;
            if (rank == r->index || (calls && calls[rank] >= calls[r->index]) ||
                mk_ar_needs(&r->ar, level, p) == want)
                continue;
            fprintf(stderr, "rank %d in epoch %llu: rank %d is %s\n", r->index,
                    (unsigned long long)r->state->epoch, rank, want ? "not needed" : "needed");
            abort();
        }
}
/* Who has finished a launch needs nobody for it any more, however far the others are. */
static void needs_nobody(const struct world_rank *r)
{
    check_needs(r, false, NULL);
}
/* A launch begins: it needs all who have not begun it, the first one of all too. */
static void needs_everybody(const struct world_rank *r, const int *calls)
{
    check_needs(r, true, calls);
}

static int finish_ranks(struct world *w, struct stepper *s)
{
    int left = 0;
    for (int i = 0; i < w->n; i++) {
        struct world_rank *r = &w->r[i];
        bool busy = s->finished[i] || !all_claimed(r, &s->blk[i * w->blocks]);
        for (int b = 0; b < w->blocks; b++)
            busy = busy || s->holds[i * w->blocks + b];
        for (int e = 0; e < w->nnodes && !busy; e++)
            busy = e != r->topo.node && !mk_ar_drained(&r->ar, e);
        if (!busy) {
            needs_nobody(r);
            for (int b = 0; b < w->blocks; b++)
                if (mk_ar_leave(&r->ar, &s->blk[i * w->blocks + b]))
                    mk_ar_advance(&r->ar, &s->blk[i * w->blocks + b]);
            s->finished[i] = 1;
        }
        left += !s->finished[i];
    }
    return left;
}

int world_run_steps(struct world *w)
{
    struct stepper s;
    uint64_t rng = w->seed * 77;
    int left = w->n, deadlock = 0;
    stepper_begin(w, &s);
    for (int i = 0; i < w->n * w->blocks; i++)
        mk_ar_enter(&w->r[i / w->blocks].ar, &s.blk[i]);
    for (int i = 0; i < w->n; i++)
        needs_everybody(&w->r[i], NULL);
    for (long misses = 0; left && !deadlock;) {
        const bool did = any_step(w, &s, &rng, misses > 40);
        if (!did && misses > 40)
            deadlock = finish_ranks(w, &s) == left && left; /* nothing at all could be done */
        misses = did ? 0 : misses + 1;
        left = finish_ranks(w, &s);
        if (left && deadlock && finish_ranks(w, &s) < left)
            deadlock = 0;
    }
    stepper_end(w, &s, deadlock);
    return deadlock;
}

/* The rank's next call, if it has finished one and has more. */
static bool go_on(struct world *w, struct stepper *s, int rank, int *done)
{
    struct world_rank *r = &w->r[rank];
    if (!s->finished[rank])
        return false;
    if (++done[rank] == w->nqueued)
        return true;
    s->finished[rank] = 0;
    recall(r, done[rank]);
    for (int b = 0; b < w->blocks; b++)
        mk_ar_enter(&r->ar, &s->blk[rank * w->blocks + b]);
    needs_everybody(r, done);
    return true;
}

/* One rank in turn is slow: the others get ahead of it. */
static bool skewed_step(struct world *w, struct stepper *s, uint64_t *rng, bool every)
{
    const int slow = (int)(w->seed % (uint64_t)w->n);
    const uint8_t was = s->finished[slow];
    if (!every && world_rand(rng) % 32)
        s->finished[slow] = 1; /* claims nothing this time */
    const bool did = any_step(w, s, rng, every);
    s->finished[slow] = was;
    return did;
}

int world_run_queued(struct world *w, int *done)
{
    struct stepper s;
    uint64_t rng = w->seed * 77;
    bool aborted = false, over = false;
    int idle = 0, deadlock = 0;
    stepper_begin(w, &s);
    for (int i = 0; i < w->n; i++) {
        done[i] = 0;
        recall(&w->r[i], 0);
        for (int b = 0; b < w->blocks; b++)
            mk_ar_enter(&w->r[i].ar, &s.blk[i * w->blocks + b]);
        needs_everybody(&w->r[i], NULL);
    }
    while (!over && !aborted && !deadlock) {
        bool did = skewed_step(w, &s, &rng, idle > 400);
        uint8_t before[64];
        memcpy(before, s.finished, (size_t)w->n);
        finish_ranks(w, &s);
        over = true;
        for (int i = 0; i < w->n; i++) {
            if (s.finished[i] && !before[i]) {
                did = true;
                go_on(w, &s, i, done);
            }
            over = over && done[i] == w->nqueued;
            aborted = aborted || w->r[i].abort_word;
        }
        deadlock = !did && idle > 400 && !over;
        idle = did ? 0 : idle + 1;
    }
    stepper_end(w, &s, deadlock);
    return deadlock;
}

/* ---- verification ---- */

/* p_r by the library's own multiply, tile by tile: the contract takes the GEMM's bits as given. */
static void *partial_of(struct world_rank *r, const struct world_call *c)
{
    const size_t elem = mk_elem_bytes(c->dtype);
    uint8_t *p = malloc((size_t)(c->m * c->n + 1) * elem);
    for (int64_t i = 0; i < c->m; i += MK_CPU_TILE_M)
        for (int64_t j = 0; j < c->n; j += MK_CPU_TILE_N) {
            const int64_t a0 = c->layout == MK_NT ? i : i * r->lda, b0 = c->layout == MK_TN ? j * r->ldb : j;
            const int rows = (int)(c->m - i < MK_CPU_TILE_M ? c->m - i : MK_CPU_TILE_M);
            const int cols = (int)(c->n - j < MK_CPU_TILE_N ? c->n - j : MK_CPU_TILE_N);
            mk_gemm_cpu_tile(c->layout, c->dtype, rows, cols, r->k, (uint8_t *)r->a + (size_t)a0 * elem,
                             r->lda, (uint8_t *)r->b + (size_t)b0 * elem, r->ldb,
                             p + (size_t)(i * c->n + j) * elem, c->n, r->host.scratch[0]);
        }
    return p;
}

static int64_t count_wrong(const struct world_rank *r, const struct world_call *c, const uint8_t *want)
{
    const size_t elem = mk_elem_bytes(c->dtype);
    int64_t wrong = 0;
    for (int64_t i = 0; i < c->m; i++) {
        const uint8_t *row = (const uint8_t *)r->c + (size_t)(i * r->ldc) * elem;
        for (int64_t j = 0; j < c->n; j++)
            wrong += memcmp(row + (size_t)j * elem, want + (size_t)(i * c->n + j) * elem, elem) != 0;
        for (size_t b = (size_t)c->n * elem; b < (size_t)r->ldc * elem; b++)
            wrong += row[b] != POISON;
    }
    return wrong;
}

int64_t world_strange(struct world *w, const struct world_call *c, int rank)
{
    const struct world_rank *r = &w->r[rank];
    const size_t elem = mk_elem_bytes(c->dtype);
    uint8_t *own = partial_of(&w->r[rank], c), poison[8];
    int64_t strange = 0;
    memset(poison, POISON, sizeof(poison));
    for (int64_t i = 0; i < c->m; i++)
        for (int64_t j = 0; j < c->n; j++) {
            const uint8_t *have = (const uint8_t *)r->c + (size_t)(i * r->ldc + j) * elem;
            strange += memcmp(have, own + (size_t)(i * c->n + j) * elem, elem) && memcmp(have, poison, elem);
        }
    free(own);
    return strange;
}

int64_t world_verify(struct world *w, const struct world_call *c, double *rel_error)
{
    const size_t count = (size_t)(c->m * c->n) + 1;
    void **p = calloc((size_t)w->n, sizeof(*p));
    double *ref = calloc(count, sizeof(*ref));
    uint8_t *want = calloc(count, 4);
    int64_t wrong = 0;
    for (int i = 0; i < w->n; i++) {
        struct world_rank *r = &w->r[i];
        p[i] = partial_of(r, c);
        mk_ref_gemm_f64(c->layout, c->dtype, c->m, c->n, r->k, r->a, r->lda, r->b, r->ldb, ref);
    }
    mk_ref_allreduce(w->nnodes, w->nlocal, c->m, c->n, c->dtype, c->wire_fp32, (const void *const *)p,
                     w->r[0].ar.bias, c->act, want);
    for (int i = 0; i < w->n; i++)
        wrong += count_wrong(&w->r[i], c, want);
    *rel_error =
        c->with_bias || c->act ? 0 : mk_ref_rel_error(w->r[0].c, c->dtype, c->m, c->n, w->r[0].ldc, ref);
    for (int i = 0; i < w->n; i++)
        free(p[i]);
    free(p);
    free(ref);
    free(want);
    return wrong;
}
