/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* How K starts: which GEMM it follows, whether nothing lies between, whether it may write while G still runs. */
#include "pair.h"

/* ---- proofs ---- */

static bool among(const uint64_t *nodes, uint32_t n, uint64_t node)
{
    for (uint32_t i = 0; node && n <= MK_PAIR_DEPS && i < n; i++)
        if (nodes[i] == node)
            return true;
    return false;
}

/* Capture: what comes next would depend on G's node, and else on nothing but what G itself depends on. */
static bool by_capture(const struct mk_pair_last *g, const struct mk_pair_at *at)
{
    if (!among(at->deps, at->ndeps, g->node))
        return false;
    for (uint32_t i = 0; i < at->ndeps && !MUTANT(231); i++)
        if (at->deps[i] != g->node && !among(g->deps, g->ndeps, at->deps[i]))
            return false;
    return true;
}

static bool by_counters(struct mk_pair *p, const struct mk_pair_last *g, const struct mk_pair_at *at)
{
    const bool complete = g->counted && at->counted && (!p->uncounted || MUTANT(232));
    return complete && g->done && (at->enqueues == g->enqueues || MUTANT(233)) && !g->edge && !g->copied &&
           (!at->blocking || mk_pair_own(p, at->ctx, true, false) == g->own || MUTANT(234));
}

/* ---- the GEMM before a collective ---- */

/* Some call since was not told. A capture's edges tell more than that. */
static bool gone_by(const struct mk_pair_last *g, const struct mk_pair_at *at)
{
    return !at->capture && g->untold != at->untold && !MUTANT(249);
}

/* The stream's last GEMM; capturing also that of another stream of this capture on whose node the call depends. */
static struct mk_pair_last *before(struct mk_pair *p, const struct mk_pair_at *at)
{
    struct mk_pair_stream *s = mk_pair_stream_find(p, at);
    struct mk_pair_last *l = s && s->last.any && s->last.capture == at->capture ? &s->last : NULL;
    if (!at->capture || (l && among(at->deps, at->ndeps, l->node)))
        return l;
    for (uint32_t i = 0; i < p->nstreams; i++) {
        struct mk_pair_last *o = &p->streams[i].last;
        if (o->any && o->capture == at->capture && among(at->deps, at->ndeps, o->node))
            return o;
    }
    return l;
}

static enum mk_pair_reason no_gemm(struct mk_pair *p, struct mk_pair_comm *c, const struct mk_pair_coll *e,
                                   const struct mk_pair_at *at)
{
    for (uint32_t i = 0; i < p->nstreams; i++) {
        struct mk_pair_last *o = &p->streams[i].last;
        if (o->any && !o->used && !gone_by(o, at) && o->capture == at->capture && o->c == e->send &&
            o->count == e->count && (p->streams[i].stream != at->stream || p->streams[i].ctx != at->ctx)) {
            if (!at->capture && o->c_type == e->dtype && o->ldc == o->n) {
                /* A later capture may bring the two together: for that the record of (N, K) is enough. */
                if (o->reason == MK_PAIR_UNKNOWN_SITE)
                    mk_pair_learn(p, c, o, false);
                o->used = true;
            }
            return MK_PAIR_CROSS_STREAM;
        }
    }
    return MK_PAIR_NO_GEMM;
}

/* Does the collective send just C? */
static enum mk_pair_reason sends_c(const struct mk_pair_stream *s, const struct mk_pair_last *g,
                                   const struct mk_pair_coll *e, const struct mk_pair_at *at)
{
    if ((g->used && !MUTANT(235)) || gone_by(g, at))
        return MK_PAIR_NOT_LAST;
    if (s && s->last.copied && s->copy_to == e->send && s->copy_from == g->c)
        return MK_PAIR_COPY_BETWEEN;
    if (e->send != g->c && !MUTANT(236))
        return e->send > g->c && e->send < g->c + g->c_bytes ? MK_PAIR_SLICE : MK_PAIR_NOT_LAST;
    if (!g->ran_g && g->reason != MK_PAIR_UNKNOWN_SITE)
        return MK_PAIR_OK; /* the original, for a reason of its own */
    if (e->dtype != g->c_type && !MUTANT(237))
        return MK_PAIR_RETYPED;
    if (g->ldc != g->n && !MUTANT(238))
        return MK_PAIR_LD;
    return e->count != g->count && !MUTANT(239) ? MK_PAIR_SLICE : MK_PAIR_OK;
}

/* The original GEMM ran. Had G run: would K have followed it? Then the site is known from now on. */
static enum mk_pair_reason sighted(struct mk_pair *p, struct mk_pair_comm *c, const struct mk_pair_last *g,
                                   const struct mk_pair_at *at)
{
    if (g->reason != MK_PAIR_UNKNOWN_SITE)
        return MK_PAIR_ORIGINAL;
    if (at->capture ? g->node && !among(at->deps, at->ndeps, g->node)
                    : g->counted && at->counted && at->enqueues != g->enqueues)
        return MK_PAIR_INTRUDER;
    if (!at->capture && g->edge)
        return MK_PAIR_EVENT_BETWEEN;
    if (!MUTANT(240))
        mk_pair_learn(p, c, g, true);
    return MK_PAIR_LEARNING;
}

/* recvbuff must miss all that G still reads, and C unless it is C itself. */
static bool in_the_way(const struct mk_pair_last *g, const struct mk_pair_coll *e)
{
    const uint64_t bytes = g->count * 2;
    for (size_t i = 0; i < sizeof(g->reads) / sizeof(g->reads[0]); i++)
        if (mk_pair_meet(e->recv, bytes, g->reads[i].at, g->reads[i].bytes) && !MUTANT(241))
            return true;
    return e->recv != g->c && mk_pair_meet(e->recv, bytes, g->c, g->c_bytes) && !MUTANT(242);
}

/* ---- how K starts ---- */

static enum mk_pair_reason not_proved(const struct mk_pair *p, const struct mk_pair_last *g,
                                      const struct mk_pair_at *at)
{
    if (at->capture)
        return MK_PAIR_INTRUDER;
    if (g->edge)
        return MK_PAIR_EVENT_BETWEEN;
    return !g->counted || !at->counted || p->uncounted || !g->done ? MK_PAIR_NO_PROOF : MK_PAIR_INTRUDER;
}

enum mk_pair_reason mk_pair_how(struct mk_pair *p, struct mk_pair_comm *c, const struct mk_pair_coll *e,
                                const struct mk_pair_at *at, struct mk_pair_out *out)
{
    const struct mk_pair_stream *s = mk_pair_stream_find(p, at);
    struct mk_pair_last *g = before(p, at);
    enum mk_pair_reason reason = g ? sends_c(s, g, e, at) : no_gemm(p, c, e, at);
    if (!g || reason) {
        if (g && reason == MK_PAIR_NOT_LAST && no_gemm(p, c, e, at) == MK_PAIR_CROSS_STREAM)
            reason = MK_PAIR_CROSS_STREAM;
        return reason;
    }
    const bool original = !g->ran_g;
    reason = original ? sighted(p, c, g, at) : MK_PAIR_OK;
    g->used = true;
    if (original)
        return reason;
    if (e->late || p->options.plain)
        return e->late ? MK_PAIR_LATE : MK_PAIR_FORCED;
    if (e->window || (e->send | e->recv) & 15)
        return e->window ? MK_PAIR_WINDOW : MK_PAIR_UNALIGNED;
    if (in_the_way(g, e))
        return MK_PAIR_RANGE;
    const bool proved = at->capture ? by_capture(g, at) : by_counters(p, g, at);
    if (!proved && p->options.verify < 2)
        return not_proved(p, g, at);
    if (out->order && !(g->ordered == c->serial && g->seq == c->seq) && !MUTANT(243) &&
        !(out->order == MK_PAIR_WAIT_NODE && among(g->deps, g->ndeps, out->node)))
        return MK_PAIR_ORDER;
    if (p->options.verify && !mk_pair_check(p, e, g, out))
        return MK_PAIR_REFUTED;
    if (!p->options.verify)            /* else K does not lean on any proof */
        out->order = MK_PAIR_IN_ORDER; /* G has waited */
    out->proof = !proved ? MK_PAIR_ASSUMED : at->capture ? MK_PAIR_BY_CAPTURE : MK_PAIR_BY_COUNTERS;
    out->reduce = at->capture && (at->ndeps > 1 || at->reduced);
    out->descriptor = g->descriptor;
    out->generation = g->generation;
    return MK_PAIR_OK;
}
