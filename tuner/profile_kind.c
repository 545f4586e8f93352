/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The tables of a profile: kinds of collectives, their times, and how much of them overlaps. */
#include "profile.h"

static uint64_t key_of(const struct mk_profile_event *e, int size_class)
{
    return (uint64_t)e->coll << 40 | (uint64_t)e->dtype << 32 | (uint64_t)e->algo << 24 |
           (uint64_t)e->proto << 16 | (uint64_t)e->channels << 8 | (uint64_t)size_class;
}

/* The number of the kind, made if it is new. PROFILE_KINDS: there is no room. */
static int find(struct mk_profile_comm *c, const struct mk_profile_event *e, int size_class)
{
    const uint64_t key = key_of(e, size_class);
    uint32_t at = (uint32_t)((key * 0x9e3779b97f4a7c15ull) >> 56) % (2 * PROFILE_KINDS);
    for (; c->place[at]; at = (at + 1) % (2 * PROFILE_KINDS))
        if (c->key[c->place[at] - 1] == key)
            return c->place[at] - 1;
    if (c->nkinds == PROFILE_KINDS)
        return PROFILE_KINDS;
    struct mk_kind *k = &c->kind[c->nkinds];
    k->coll = e->coll, k->dtype = e->dtype, k->algo = e->algo, k->proto = e->proto;
    k->channels = e->channels;
    k->size_class = (uint8_t)size_class;
    k->gpu_clock = c->who.table >= 4;
    k->bytes_min = UINT64_MAX;
    k->run_min = UINT64_MAX;
    c->key[c->nkinds++] = key;
    c->place[at] = (uint8_t)c->nkinds;
    return c->nkinds - 1;
}

int profile_kind_of(struct mk_profile_comm *c, const struct mk_profile_event *e, uint64_t bytes)
{
    const int i = find(c, e, bytes < 2 ? 0 : 63 - __builtin_clzll(bytes));
    if (i == PROFILE_KINDS) {
        c->no_room++;
        return i;
    }
    struct mk_kind *k = &c->kind[i];
    k->calls++;
    k->bytes_sum = k->bytes_sum + bytes < bytes ? UINT64_MAX : k->bytes_sum + bytes;
    k->bytes_min = bytes < k->bytes_min ? bytes : k->bytes_min;
    k->bytes_max = bytes > k->bytes_max ? bytes : k->bytes_max;
    return i;
}

/* ---- overlap ---- */

/* Of [*start, *stop) what is also in s. */
static bool common(const struct profile_span *s, uint64_t start, uint64_t stop, uint64_t *from, uint64_t *to)
{
    *from = s->start > start ? s->start : start;
    *to = s->stop < stop ? s->stop : stop;
    return *from < *to;
}

/* How much of [start, stop) is in any of the spans: walks from gap to gap. */
static uint64_t covered(const struct profile_span *const *with, int n, uint64_t start, uint64_t stop)
{
    uint64_t sum = 0;
    while (start < stop) {
        uint64_t next = stop, end = start, from, to;
        for (int i = 0; i < n; i++)
            if (common(with[i], start, stop, &from, &to)) {
                if (from == start && to > end)
                    end = to;
                else if (from > start && from < next)
                    next = from;
            }
        sum += end - start;
        start = end > start ? end : next;
    }
    return sum;
}

/* A run has ended: what it has in common with the last ones counts for both. Two ranks of one communicator are on two
 * GPUs, whose clocks are not compared. Where more than two run at once, the earlier ones' part is at most the right
 * one's sum. */
static void overlap(struct mk_profile *p, struct mk_profile_comm *c, int kind, uint64_t start, uint64_t stop)
{
    const struct profile_span *with[PROFILE_SPANS];
    int n = 0;
    pthread_mutex_lock(&p->span_lock);
    for (int i = 0; i < PROFILE_SPANS; i++) {
        struct profile_span *s = &p->span[i];
        uint64_t from, to;
        if (!s->comm || (s->id == c->who.id && s->rank != c->who.rank) || !common(s, start, stop, &from, &to))
            continue;
        with[n++] = s;
        const uint64_t room = s->stop - s->start - s->covered, more = to - from < room ? to - from : room;
        s->covered += more;
        s->comm->kind[s->kind].overlap_ns += more;
    }
    const uint64_t in_others = covered(with, n, start, stop);
    const struct profile_span mine = {start, stop, in_others, c->who.id, c->who.rank, c, kind};
    p->span[p->spans++ % PROFILE_SPANS] = mine;
    c->kind[kind].overlap_ns += in_others;
    pthread_mutex_unlock(&p->span_lock);
}

void profile_copy_kind(struct mk_profile *p, const struct mk_profile_comm *c, int i, struct mk_kind *out)
{
    pthread_mutex_lock(&p->span_lock);
    *out = c->kind[i];
    pthread_mutex_unlock(&p->span_lock);
}

void profile_forget(struct mk_profile *p, const struct mk_profile_comm *c)
{
    pthread_mutex_lock(&p->span_lock);
    for (int i = 0; i < PROFILE_SPANS; i++)
        if (p->span[i].comm == c)
            p->span[i].comm = NULL;
    pthread_mutex_unlock(&p->span_lock);
}

/* ---- the end of a run ---- */

void profile_fold_run(struct mk_profile *p, struct mk_profile_comm *c, struct profile_op *op)
{
    if (op->kind < PROFILE_KINDS) {
        struct mk_kind *k = &c->kind[op->kind];
        const bool whole = op->starts == op->stops && (!k->gpu_clock || op->timers == op->stops);
        const uint64_t ns = op->stop - op->start;
        if (whole && op->stop >= op->start && ns < PROFILE_RUN_MAX && op->start) {
            k->timed++;
            k->run_ns += ns;
            k->run_min = ns < k->run_min ? ns : k->run_min;
            k->run_max = ns > k->run_max ? ns : k->run_max;
            k->run_hist[mk_hist_bucket(ns)]++;
            if (k->gpu_clock)
                overlap(p, c, op->kind, op->start, op->stop);
        } else {
            k->unfinished++;
        }
    }
    op->starts = op->stops = op->timers = 0;
    op->start = op->stop = op->seen = 0;
}

void profile_fold(struct mk_profile *p, struct mk_profile_comm *c, struct profile_op *op)
{
    if (op->starts)
        profile_fold_run(p, c, op);
    else if (op->enqueuing && op->kind < PROFILE_KINDS)
        c->kind[op->kind].unfinished++;
    op->enqueuing = false;
}
