/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Collective calls of the pair recogniser: K or NCCL, groups, the log; and the dispatch of events. */
#include "pair.h"
#include <stdlib.h>
#include <string.h>

/* ---- threads: groups, and the call under way ---- */

struct mk_pair_thread *mk_pair_thread_find(struct mk_pair *p, uint64_t thread)
{
    for (uint32_t i = 0; i < p->nthreads; i++)
        if (p->threads[i].used && p->threads[i].thread == thread)
            return &p->threads[i];
    return NULL;
}

static struct mk_pair_thread *thread_get(struct mk_pair *p, uint64_t thread)
{
    struct mk_pair_thread *t = mk_pair_thread_find(p, thread);
    uint32_t i = 0;
    if (t)
        return t;
    while (i < p->nthreads && p->threads[i].used)
        i++;
    if (i == p->nthreads &&
        !mk_pair_grow((void **)&p->threads, &p->thread_cap, p->nthreads, sizeof(*p->threads)))
        return NULL;
    p->nthreads += i == p->nthreads;
    t = &p->threads[i];
    t->used = true;
    t->thread = thread;
    t->depth = t->ops = t->nheld = t->taken = 0;
    t->sole = t->in_call = false;
    return t;
}

/* Only threads in a group or in a call are kept. */
static void thread_rest(struct mk_pair_thread *t)
{
    t->used = t->depth || t->in_call || t->taken < t->nheld;
}

/* ---- K ---- */

static void consume(struct mk_pair *p, const struct mk_pair_at *at)
{
    struct mk_pair_stream *s = mk_pair_stream_find(p, at);
    if (s)
        s->last.used = true;
}

static void run_k(struct mk_pair *p, struct mk_pair_comm *c, const struct mk_pair_coll *e,
                  const struct mk_pair_at *at, bool group, struct mk_pair_out *out)
{
    out->comm = c->handle;
    out->order = mk_pair_order_of(p, c, at, &out->node);
    const struct mk_pair_stream *s = mk_pair_stream_find(p, at);
    const bool open = s && s->last.any && !s->last.used;
    const enum mk_pair_reason reason = group ? MK_PAIR_GROUPED : mk_pair_how(p, c, e, at, out);
    if (open)
        mk_pair_followed(p, &s->last, !reason);
    out->reason = (uint8_t)reason;
    out->act = reason ? MK_PAIR_DO_PLAIN : MK_PAIR_DO_OVERLAP;
    out->fork = group;
    if (out->order != MK_PAIR_WAIT_NODE)
        out->node = 0;
    consume(p, at);
    mk_pair_issued(c, at, group, out);
    mk_pair_own(p, at->ctx, at->blocking, true);
}

/* ---- log: once for each site, decision and reason ---- */

static void log_once(struct mk_pair *p, uint64_t site, struct mk_pair_out *out)
{
    const uint64_t key = mk_pair_hash(site, (uint64_t)out->act << 8 | out->reason);
    uint32_t ignored;
    if (out->act != MK_PAIR_DO_HOLD && p->log_map.n < 4096 && !mk_pair_map_get(&p->log_map, key, &ignored) &&
        mk_pair_map_put(&p->log_map, key, 0))
        out->asks |= MK_PAIR_ASK_LOG;
}

static void log_coll(struct mk_pair *p, const struct mk_pair_coll *e, struct mk_pair_out *out)
{
    log_once(p, mk_pair_hash(mk_pair_hash(e->comm, e->caller), 2 + e->function), out);
}

static int gemm(struct mk_pair *p, const struct mk_pair_event *e, struct mk_pair_out *out)
{
    const int ret = mk_pair_gemm_step(p, e, out);
    if (!ret)
        log_once(p, mk_pair_hash(mk_pair_hash((uint64_t)e->u.gemm.n, (uint64_t)e->u.gemm.k), 1), out);
    return ret;
}

/* ---- calls ---- */

static void fails(const struct mk_pair_comm *c, struct mk_pair_out *out)
{
    out->act = MK_PAIR_DO_FAIL;
    out->reason = c->why;
    out->error = c->error;
    out->comm = c->handle;
}

static void run_nccl(struct mk_pair *p, struct mk_pair_comm *c, const struct mk_pair_event *e,
                     struct mk_pair_thread *t, struct mk_pair_out *out)
{
    const bool grouped = t && t->depth;
    out->act = MK_PAIR_DO_NCCL;
    out->again = c->shared.state == MK_PAIR_ENDED_OFF;
    out->order = mk_pair_order_of(p, c, &e->at, &out->node);
    consume(p, &e->at);
    mk_pair_issued(c, &e->at, grouped, out);
    if (grouped) {
        t->sole = t->ops++ == 0;
        t->sole_comm = mk_pair_ref_of(p, c);
        t->sole_seq = c->seq;
    } else if (e->kind == MK_PAIR_EV_COLL && c->shared.state == MK_PAIR_NEW &&
               (t = thread_get(p, e->thread))) {
        t->in_call = true;
        t->calling = mk_pair_ref_of(p, c);
    }
}

static bool hold(struct mk_pair_thread *t, const struct mk_pair_event *e, uint64_t number)
{
    if (!mk_pair_grow((void **)&t->held, &t->cap, t->nheld, sizeof(*t->held)))
        return false;
    t->held[t->nheld++] = (struct mk_pair_held){e->u.coll, number};
    t->ops++;
    t->sole = false;
    return true;
}

static int decide(struct mk_pair *p, const struct mk_pair_event *e, struct mk_pair_out *out)
{
    struct mk_pair_comm *c = mk_pair_comm_find(p, e->u.coll.comm);
    struct mk_pair_thread *t = mk_pair_thread_find(p, e->thread);
    const bool p2p = e->kind == MK_PAIR_EV_P2P, grouped = t && t->depth;
    if (!p2p && e->u.coll.function >= MK_PAIR_FUNCTIONS)
        return MK_ERR_INVALID;
    if (!c) {
        out->act = MK_PAIR_DO_NCCL;
        out->reason = MK_PAIR_NO_COMM;
        consume(p, &e->at);
        if (grouped)
            t->ops++, t->sole = false;
        return 0;
    }
    if (c->error && !MUTANT(244)) {
        fails(c, out);
        return 0;
    }
    if (p2p) {
        run_nccl(p, c, e, t, out);
        out->reason = MK_PAIR_P2P;
        return 0;
    }
    if (!grouped)
        mk_pair_witness(c, out);
    const struct mk_pair_call call = {.count = e->u.coll.count,
                                      .function = e->u.coll.function,
                                      .dtype = e->u.coll.dtype,
                                      .sum = e->u.coll.sum,
                                      .captured = e->at.capture != 0};
    out->number = c->number++;
    const enum mk_pair_reason reason = mk_pair_shared(&c->shared, out->number, &call);
    mk_pair_timed(&c->shared, out->number, &call, reason, out);
    if (reason || (MUTANT(245) && (e->u.coll.send & 15)) || (MUTANT(246) && grouped) ||
        (MUTANT(247) && !mk_pair_stream_find(p, &e->at))) {
        c->hooked++;
        run_nccl(p, c, e, t, out);
        out->reason = (uint8_t)reason;
    } else if (!grouped) {
        run_k(p, c, &e->u.coll, &e->at, false, out);
    } else if (hold(t, e, out->number)) {
        out->act = MK_PAIR_DO_HOLD;
        out->comm = c->handle;
    } else {
        mk_pair_fail(c, MK_ERR_NOMEM, MK_PAIR_MEMORY, out);
        fails(c, out);
    }
    return 0;
}

static int coll(struct mk_pair *p, const struct mk_pair_event *e, struct mk_pair_out *out)
{
    const int ret = decide(p, e, out);
    if (!ret)
        log_coll(p, &e->u.coll, out);
    return ret;
}

static int coll_done(struct mk_pair *p, const struct mk_pair_event *e, struct mk_pair_out *out)
{
    struct mk_pair_comm *c = mk_pair_comm_find(p, e->u.done.comm);
    struct mk_pair_thread *t = mk_pair_thread_find(p, e->thread);
    const bool k = e->u.done.act == MK_PAIR_DO_PLAIN || e->u.done.act == MK_PAIR_DO_OVERLAP;
    if (!k && e->u.done.act != MK_PAIR_DO_NCCL)
        return MK_ERR_INVALID;
    if (t && !k) {
        t->in_call = false;
        thread_rest(t);
    }
    if (!c)
        return 0;
    if (e->u.done.error) {
        if (k)
            mk_pair_fail(c, MK_ERR_CUDA, MK_PAIR_ERROR, out);
        else if (c->profiled < c->hooked)
            c->hooked--; /* it refused the call */
    } else if (!(t && t->depth && !k && !MUTANT(251)) /* in a group NCCL has put nothing there yet */ &&
               e->at.capture && c->last.any && c->last.capture == e->at.capture &&
               c->last.stream == e->at.stream) {
        c->last.node = e->u.done.node;
    }
    return 0;
}

/* ---- groups ---- */

static int group_start(struct mk_pair *p, const struct mk_pair_event *e)
{
    struct mk_pair_thread *t = thread_get(p, e->thread);
    if (!t)
        return MK_ERR_NOMEM;
    if (!t->depth) {
        if (t->taken < t->nheld)
            return MK_ERR_INVALID;
        t->ops = t->nheld = t->taken = 0;
        t->sole = false;
    }
    if (t->depth == UINT32_MAX)
        return MK_ERR_INVALID;
    t->depth++;
    return 0;
}

static void group_gap(struct mk_pair *p, const struct mk_pair_event *e)
{
    struct mk_pair_thread *t = mk_pair_thread_find(p, e->thread);
    if (!t || !t->depth || MUTANT(250))
        return;
    t->ops++;
    t->sole = false;
}

static int group_end(struct mk_pair *p, const struct mk_pair_event *e, struct mk_pair_out *out)
{
    struct mk_pair_thread *t = mk_pair_thread_find(p, e->thread);
    if (!t || !t->depth)
        return MK_ERR_INVALID;
    if (--t->depth)
        return 0;
    out->held = t->nheld;
    struct mk_pair_comm *c = t->sole && t->ops == 1 ? mk_pair_comm_of(p, t->sole_comm) : NULL;
    if (c && c->seq == t->sole_seq)
        c->last.many = false; /* a group of one is that operation */
    thread_rest(t);
    return 0;
}

static int take(struct mk_pair *p, const struct mk_pair_event *e, struct mk_pair_out *out)
{
    struct mk_pair_thread *t = mk_pair_thread_find(p, e->thread);
    if (!t || t->depth || t->taken >= t->nheld)
        return MK_ERR_INVALID;
    const struct mk_pair_held *h = &t->held[t->taken++];
    struct mk_pair_comm *c = mk_pair_comm_find(p, h->coll.comm);
    out->number = h->number;
    out->comm = h->coll.comm;
    if (!c || c->error) {
        out->act = MK_PAIR_DO_FAIL;
        out->reason = MK_PAIR_ERROR;
        out->error = c ? c->error : MK_ERR_ABORTED;
    } else {
        run_k(p, c, &h->coll, &e->at, t->ops > 1 && !MUTANT(248), out);
    }
    log_coll(p, &h->coll, out);
    thread_rest(t);
    return 0;
}

bool mk_pair_idle(const struct mk_pair *p)
{
    return !p->open && !p->options.deterministic;
}

/* ---- dispatch ---- */

static int dispatch(struct mk_pair *p, const struct mk_pair_event *e, struct mk_pair_out *out)
{
    switch (e->kind) {
    case MK_PAIR_EV_GEMM:
        return gemm(p, e, out);
    case MK_PAIR_EV_COLL:
    case MK_PAIR_EV_P2P:
        return coll(p, e, out);
    case MK_PAIR_EV_TAKE:
        return take(p, e, out);
    case MK_PAIR_EV_GEMM_DONE:
        return mk_pair_gemm_done(p, e);
    case MK_PAIR_EV_COLL_DONE:
        return coll_done(p, e, out);
    case MK_PAIR_EV_GROUP_START:
        return group_start(p, e);
    case MK_PAIR_EV_GROUP_END:
        return group_end(p, e, out);
    case MK_PAIR_EV_GROUP_GAP:
        group_gap(p, e);
        return 0;
    case MK_PAIR_EV_REPLAY:
        mk_pair_replayed(p, &e->at);
        return 0;
    case MK_PAIR_EV_REFUTED:
        return mk_pair_refuted(p, e->u.comm.number);
    case MK_PAIR_EV_PROOF_ENDS:
        p->uncounted = true;
        return 0;
    default:
        return e->kind >= MK_PAIR_EV_COMM_NEW ? mk_pair_comm_event(p, e, out) : mk_pair_stream_event(p, e);
    }
}

int mk_pair_step(struct mk_pair *p, const struct mk_pair_event *e, struct mk_pair_out *out)
{
    memset(out, 0, sizeof(*out));
    const int ret = dispatch(p, e, out);
    if (ret)
        return ret;
    if (out->act) {
        p->counts.act[out->act]++;
        p->counts.reason[out->reason]++;
    }
    return 0;
}

void mk_pair_count(const struct mk_pair *p, struct mk_pair_counts *out)
{
    *out = p->counts;
    out->sites = p->nsites;
}

int mk_pair_create(const struct mk_pair_options *options, struct mk_pair **out)
{
    struct mk_pair *p = calloc(1, sizeof(*p));
    if (!p)
        return MK_ERR_NOMEM;
    p->options = *options;
    p->options.streams = p->options.streams ? p->options.streams : 256;
    p->options.sites = p->options.sites ? p->options.sites : 65536;
    p->options.witness = p->options.witness ? p->options.witness : 4;
    p->streams = calloc(p->options.streams, sizeof(*p->streams));
    if (!p->streams) {
        free(p);
        return MK_ERR_NOMEM;
    }
    *out = p;
    return 0;
}

void mk_pair_destroy(struct mk_pair *p)
{
    if (!p)
        return;
    for (uint32_t i = 0; i < p->thread_cap; i++)
        free(p->threads[i].held);
    free(p->threads);
    free(p->streams);
    free(p->ctxs);
    free(p->sites);
    free(p->comms);
    free(p->ids);
    free(p->stream_map.slot);
    free(p->site_map.slot);
    free(p->comm_map.slot);
    free(p->id_map.slot);
    free(p->log_map.slot);
    free(p->check_map.slot);
    free(p);
}
