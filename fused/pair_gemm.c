/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* GEMM calls of the pair recogniser: which run G, the sites that are known, and what is remembered of a stream. */
#include "pair.h"
#include <string.h>

/* ---- streams and contexts ---- */

struct mk_pair_stream *mk_pair_stream_find(struct mk_pair *p, const struct mk_pair_at *at)
{
    uint32_t i;
    if (!mk_pair_map_get(&p->stream_map, mk_pair_hash(at->ctx, at->stream), &i))
        return NULL;
    struct mk_pair_stream *s = &p->streams[i];
    return s->ctx == at->ctx && s->stream == at->stream ? s : NULL;
}

static struct mk_pair_stream *stream_get(struct mk_pair *p, const struct mk_pair_at *at)
{
    struct mk_pair_stream *s = mk_pair_stream_find(p, at);
    uint32_t i = 0;
    if (s)
        return s;
    while (i < p->nstreams && p->streams[i].used)
        i++;
    if (i == p->options.streams || !mk_pair_map_put(&p->stream_map, mk_pair_hash(at->ctx, at->stream), i))
        return NULL;
    p->nstreams += i == p->nstreams;
    s = &p->streams[i];
    /* The descriptor on the device goes on counting where its last user stopped. */
    const uint64_t generation = s->generation;
    memset(s, 0, sizeof(*s));
    s->generation = generation;
    s->used = true;
    s->ctx = at->ctx;
    s->stream = at->stream;
    return s;
}

uint64_t mk_pair_own(struct mk_pair *p, uint64_t ctx, bool blocking, bool launch)
{
    uint32_t i = 0;
    while (i < p->nctxs && p->ctxs[i].id != ctx)
        i++;
    if (i == p->nctxs) {
        if (!mk_pair_grow((void **)&p->ctxs, &p->ctx_cap, p->nctxs, sizeof(*p->ctxs))) {
            p->uncounted = true; /* nothing can be proved by counters any more */
            return 0;
        }
        p->nctxs++;
        p->ctxs[i].id = ctx;
    }
    p->ctxs[i].own += launch && blocking;
    return p->ctxs[i].own;
}

int mk_pair_stream_event(struct mk_pair *p, const struct mk_pair_event *e)
{
    struct mk_pair_stream *s = mk_pair_stream_find(p, &e->at);
    switch (e->kind) {
    case MK_PAIR_EV_EDGE:
        if (s && !e->at.capture)
            s->last.edge = true;
        return 0;
    case MK_PAIR_EV_COPY:
        if (s) {
            s->last.copied = true;
            s->copy_from = e->u.copy.from;
            s->copy_to = e->u.copy.to;
        }
        return 0;
    case MK_PAIR_EV_CAPTURE_BEGIN:
        if (!e->at.capture)
            return MK_ERR_INVALID;
        if (s)
            s->last.any = false;
        return 0;
    case MK_PAIR_EV_CAPTURE_END:
        if (!e->at.capture)
            return MK_ERR_INVALID;
        for (uint32_t i = 0; i < p->nstreams; i++)
            if (p->streams[i].last.capture == e->at.capture)
                p->streams[i].last.any = false;
        return 0;
    case MK_PAIR_EV_STREAM_GONE:
        if (!s)
            return 0;
        mk_pair_map_drop(&p->stream_map, mk_pair_hash(s->ctx, s->stream));
        s->used = s->last.any = false;
        return 0;
    default:
        return MK_ERR_INVALID;
    }
}

/* ---- sites ---- */

static uint64_t site_hash(const struct mk_pair_site *k)
{
    const uint64_t kind = (uint64_t)k->a_type | (uint64_t)k->b_type << 8 | (uint64_t)k->c_type << 16 |
                          (uint64_t)k->layout << 24 | (uint64_t)k->epilogue << 32;
    return mk_pair_hash(mk_pair_hash(k->weight, kind), mk_pair_hash((uint64_t)k->n, (uint64_t)k->k));
}

static bool same_site(const struct mk_pair_site *a, const struct mk_pair_site *b)
{
    return a->weight == b->weight && a->n == b->n && a->k == b->k && a->a_type == b->a_type &&
           a->b_type == b->b_type && a->c_type == b->c_type && a->layout == b->layout &&
           a->epilogue == b->epilogue;
}

static struct mk_pair_site *site_find(struct mk_pair *p, const struct mk_pair_site *key)
{
    uint32_t i;
    if (!mk_pair_map_get(&p->site_map, site_hash(key), &i) || !same_site(&p->sites[i], key))
        return NULL;
    return &p->sites[i];
}

/* Drops the sites of communicators that have ended. */
static void clean(struct mk_pair *p)
{
    uint32_t n = 0;
    p->comm_ended = false;
    for (uint32_t i = 0; i < p->nsites; i++) {
        struct mk_pair_site s = p->sites[i];
        bool live = s.never || s.always;
        mk_pair_map_drop(&p->site_map, site_hash(&s));
        for (size_t j = 0; j < sizeof(s.comm) / sizeof(s.comm[0]); j++)
            live |= mk_pair_comm_of(p, s.comm[j]) != NULL;
        if (live && mk_pair_map_put(&p->site_map, site_hash(&s), n))
            p->sites[n++] = s;
    }
    p->nsites = n;
}

static struct mk_pair_site *site_get(struct mk_pair *p, const struct mk_pair_site *key)
{
    struct mk_pair_site *s = site_find(p, key);
    if (s)
        return s;
    if (p->nsites == p->options.sites && p->comm_ended)
        clean(p);
    if (p->nsites == p->options.sites ||
        !mk_pair_grow((void **)&p->sites, &p->site_cap, p->nsites, sizeof(*p->sites)) ||
        !mk_pair_map_put(&p->site_map, site_hash(key), p->nsites)) {
        p->counts.forgotten++;
        return NULL;
    }
    s = &p->sites[p->nsites++];
    *s = *key;
    return s;
}

static void followed_by(struct mk_pair_site *s, struct mk_pair_ref comm)
{
    size_t i = 0;
    if (!s)
        return;
    while (i < sizeof(s->comm) / sizeof(s->comm[0]) - 1 && s->comm[i].serial != comm.serial)
        i++;
    memmove(&s->comm[1], &s->comm[0], i * sizeof(s->comm[0]));
    s->comm[0] = comm;
}

/* The record of an (N, K): a site without weight and kind. */
static struct mk_pair_site record_of(int64_t n, int64_t k)
{
    struct mk_pair_site key;
    memset(&key, 0, sizeof(key));
    key.n = n;
    key.k = k;
    return key;
}

static struct mk_pair_site key_of(const struct mk_pair_last *l)
{
    struct mk_pair_site key = record_of(l->n, l->k);
    key.weight = MUTANT(221) ? 1 : l->b;
    key.a_type = l->a_type, key.b_type = l->b_type, key.c_type = l->c_type;
    key.layout = l->layout, key.epilogue = l->epilogue;
    return key;
}

void mk_pair_learn(struct mk_pair *p, struct mk_pair_comm *c, const struct mk_pair_last *g, bool whole)
{
    const struct mk_pair_site record = record_of(g->n, g->k), key = key_of(g);
    const struct mk_pair_ref comm = mk_pair_ref_of(p, c);
    followed_by(site_get(p, &record), comm);
    if (whole)
        followed_by(site_get(p, &key), comm);
}

/* The latest communicator whose collective followed this site and that lives. */
static struct mk_pair_comm *expected(struct mk_pair *p, const struct mk_pair_site *s)
{
    for (size_t i = 0; s && i < sizeof(s->comm) / sizeof(s->comm[0]); i++) {
        struct mk_pair_comm *c = mk_pair_comm_of(p, s->comm[i]);
        if (c && c->shared.state == MK_PAIR_AGREED && !c->error)
            return c;
    }
    return NULL;
}

/* G has fewer blocks than the original and gains nothing by itself, so where it is never overlapped it makes the program slower.
 * Captured ones are known by their edges, and deterministic ones may not change. */
#define MISSES 4
#define RESTS 64

void mk_pair_followed(struct mk_pair *p, const struct mk_pair_last *g, bool overlapped)
{
    const struct mk_pair_site key = key_of(g);
    struct mk_pair_site *s = site_find(p, &key);
    if (!s || !g->ran_g || g->capture || !p->options.proved_only)
        return;
    s->misses = overlapped ? 0 : s->misses < MISSES ? s->misses + 1 : MISSES;
    s->rests = 0;
}

static bool rests(struct mk_pair_site *s)
{
    if (!s || s->misses < MISSES)
        return false;
    if (++s->rests < RESTS)
        return true;
    s->rests = 0;
    s->misses = MISSES - 1; /* one more try */
    return false;
}

/* ---- what G can do ---- */

/* Bytes from the first to the last element of rows x cols with leading dimension ld; false: no such matrix. */
static bool span_of(uint64_t at, int64_t rows, int64_t cols, int64_t ld, uint64_t size,
                    struct mk_pair_span *out)
{
    uint64_t n;
    if (rows < 1 || cols < 1 || ld < cols || __builtin_mul_overflow((uint64_t)(rows - 1), (uint64_t)ld, &n) ||
        __builtin_add_overflow(n, (uint64_t)cols, &n) || __builtin_mul_overflow(n, size, &n) || at + n < at)
        return false;
    out->at = at;
    out->bytes = n;
    return true;
}

bool mk_pair_meet(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes)
{
    return a < b ? b_bytes && b - a < a_bytes : a_bytes && a - b < b_bytes;
}

static bool spans_of(const struct mk_pair_gemm *g, struct mk_pair_last *l)
{
    const bool a_t = g->layout == MK_NT, b_n = g->layout != MK_TN;
    struct mk_pair_span c;
    l->c = g->c;
    if (g->m > 0 && __builtin_mul_overflow((uint64_t)g->m, g->n > 0 ? (uint64_t)g->n : 0, &l->count))
        l->count = 0;
    if (!span_of(g->a, a_t ? g->k : g->m, a_t ? g->m : g->k, g->lda, 2, &l->reads[0]) ||
        !span_of(g->b, b_n ? g->k : g->n, b_n ? g->n : g->k, g->ldb, 2, &l->reads[1]) ||
        !span_of(g->c, g->m, g->n, g->ldc, 2, &c) || g->extra + g->extra_bytes < g->extra)
        return false;
    l->reads[2] = (struct mk_pair_span){g->bias, g->bias ? 2 * (uint64_t)g->n : 0};
    l->reads[3] = (struct mk_pair_span){g->extra, g->extra_bytes};
    l->c_bytes = c.bytes;
    for (int i = 0; i < 3; i++)
        if (mk_pair_meet(c.at, c.bytes, l->reads[i].at, l->reads[i].bytes))
            return false;
    return true;
}

static enum mk_pair_reason fit(const struct mk_pair *p, const struct mk_pair_gemm *g, struct mk_pair_last *l)
{
    const bool spans = spans_of(g, l); /* also for the original: the collective's line tells what it sends */
    const uint32_t compute =
        MK_PAIR_PEDANTIC | MK_PAIR_COMPUTE_16F | MK_PAIR_TF32 | MK_PAIR_EMULATED | MK_PAIR_SCALED;
    if (g->flags & MK_PAIR_NO_G)
        return MK_PAIR_NO_KERNELS;
    if (g->a_type != g->b_type || g->a_type != g->c_type ||
        (g->a_type != MK_BFLOAT16 && g->a_type != MK_FLOAT16))
        return MK_PAIR_GEMM_DTYPE;
    if (g->flags & (MK_PAIR_DEVICE_SCALARS | MK_PAIR_C_NOT_D) || !(g->alpha == 1.0f) ||
        (!(g->beta == 0.0f) && !MUTANT(222)))
        return MK_PAIR_SCALARS;
    if (g->flags & compute)
        return MK_PAIR_COMPUTE;
    if (g->flags & (MK_PAIR_UNKNOWN_ATTRIBUTE | MK_PAIR_NEW_LT))
        return MK_PAIR_ATTRIBUTE;
    if (g->epilogue != MK_PAIR_PLAIN_EPILOGUE &&
        (g->epilogue >= MK_PAIR_OTHER_EPILOGUE || !(p->options.epilogues >> g->epilogue & 1)))
        return MK_PAIR_EPILOGUE;
    if (g->batch > 1)
        return MK_PAIR_BATCH;
    return g->flags & MK_PAIR_CANNOT || !spans ? MK_PAIR_SHAPE : MK_PAIR_OK;
}

/* ---- whether G runs ---- */

/* Deterministic: as it was at the site's first call, for ever. */
static enum mk_pair_reason from_the_first(struct mk_pair *p, const struct mk_pair_site *key,
                                          const struct mk_pair_gemm *g, struct mk_pair_comm **c)
{
    struct mk_pair_site *s = site_find(p, key);
    for (uint32_t i = 0; i < p->ncomms && !*c; i++) {
        struct mk_pair_comm *at = &p->comms[i];
        if (at->used && at->shared.state == MK_PAIR_AGREED && !at->error &&
            mk_pair_word(&at->shared, at->number) & MK_PAIR_FUSED && at->number >= at->shared.first &&
            at->shared.config.functions & 1u << MK_PAIR_ALLREDUCE &&
            at->shared.config.dtypes & 1u << g->c_type)
            *c = at;
    }
    if (!s || (!s->never && !s->always)) {
        s = site_get(p, key);
        if (!s)
            return MK_PAIR_NEVER;
        s->always = *c != NULL;
        s->never = !s->always;
    }
    struct mk_pair_comm *next = expected(p, s);
    *c = next ? next : *c;
    return s->always || MUTANT(223) ? MK_PAIR_OK : MK_PAIR_NEVER;
}

static enum mk_pair_reason once_known(struct mk_pair *p, const struct mk_pair_site *key,
                                      const struct mk_pair_gemm *g, const struct mk_pair_at *at,
                                      struct mk_pair_comm **c, struct mk_pair_last *l,
                                      struct mk_pair_out *out)
{
    const struct mk_pair_site record = record_of(g->n, g->k);
    struct mk_pair_site *s = site_find(p, key);
    if (s && s->failed)
        return MK_PAIR_FAILED;
    *c = expected(p, s);
    if (!*c && (at->capture || MUTANT(224)))
        *c = expected(p, site_find(p, &record));
    if (!*c)
        return MUTANT(225) ? MK_PAIR_OK : MK_PAIR_UNKNOWN_SITE;
    const struct mk_pair_call call = {.count = l->count,
                                      .function = MK_PAIR_ALLREDUCE,
                                      .dtype = g->c_type,
                                      .sum = 1,
                                      .captured = at->capture != 0};
    const enum mk_pair_reason reason = mk_pair_shared(&(*c)->shared, (*c)->number, &call);
    out->timed = mk_pair_in_round(&(*c)->shared, &call, reason);
    out->comm = out->timed ? (*c)->handle : 0;
    if (reason)
        return MK_PAIR_NOT_FUSED;
    if (!p->options.proved_only || at->capture || p->options.verify > 1)
        return MK_PAIR_OK;
    if (!at->counted || p->uncounted)
        return MK_PAIR_NO_PROOF;
    return rests(s) ? MK_PAIR_UNFOLLOWED : MK_PAIR_OK;
}

static enum mk_pair_reason choose(struct mk_pair *p, const struct mk_pair_event *e, struct mk_pair_last *l,
                                  struct mk_pair_comm **c, struct mk_pair_out *out)
{
    const struct mk_pair_gemm *g = &e->u.gemm;
    const enum mk_pair_reason reason = fit(p, g, l);
    if (reason)
        return reason;
    const struct mk_pair_site key = key_of(l);
    return p->options.deterministic ? from_the_first(p, &key, g, c)
                                    : once_known(p, &key, g, &e->at, c, l, out);
}

int mk_pair_gemm_step(struct mk_pair *p, const struct mk_pair_event *e, struct mk_pair_out *out)
{
    const struct mk_pair_gemm *g = &e->u.gemm;
    struct mk_pair_comm *c = NULL;
    struct mk_pair_last l;
    if (g->layout > MK_NT || g->a_type > MK_PAIR_OTHER_DTYPE || g->b_type > MK_PAIR_OTHER_DTYPE ||
        g->c_type > MK_PAIR_OTHER_DTYPE || g->epilogue > MK_PAIR_OTHER_EPILOGUE)
        return MK_ERR_INVALID;
    memset(&l, 0, sizeof(l));
    l.any = true;
    l.capture = e->at.capture;
    l.untold = e->at.untold;
    l.ndeps = e->at.ndeps;
    memcpy(l.deps, e->at.deps, sizeof(l.deps));
    l.blocking = e->at.blocking;
    l.a_type = g->a_type, l.b_type = g->b_type, l.c_type = g->c_type;
    l.layout = g->layout, l.epilogue = g->epilogue;
    l.b = g->b, l.n = g->n, l.k = g->k, l.ldc = g->ldc;
    struct mk_pair_stream *s = stream_get(p, &e->at);
    if (!s) {
        out->act = MK_PAIR_DO_ORIGINAL;
        out->reason = MK_PAIR_STREAMS;
        return 0;
    }
    if (s->last.any && s->last.done && !s->last.used)
        mk_pair_followed(p, &s->last, false);
    const enum mk_pair_reason reason = choose(p, e, &l, &c, out);
    l.reason = (uint8_t)reason;
    out->reason = (uint8_t)reason;
    out->act = reason ? MK_PAIR_DO_ORIGINAL : MK_PAIR_DO_G;
    out->again = reason == MK_PAIR_GEMM_DTYPE && g->c_type != MK_BFLOAT16 && g->c_type != MK_FLOAT16;
    if (!reason) {
        l.ran_g = true;
        l.descriptor = e->at.capture ? MK_PAIR_OWN_DESCRIPTOR : (int32_t)(s - p->streams);
        l.generation = e->at.capture ? ++p->pairs : ++s->generation;
        out->descriptor = l.descriptor;
        out->generation = l.generation;
        out->room = e->at.capture || (e->at.counted && !p->uncounted);
        /* What K will have to wait for, G waits for: then nothing lies between them. Only where no other communicator
         * can come instead, since its K must not wait for this one's. */
        if (c && (p->open == 1 || MUTANT(226))) {
            out->order = mk_pair_order_of(p, c, &e->at, &out->node);
            out->comm = c->handle;
            l.ordered = c->serial;
            l.seq = c->seq;
        }
    }
    s->last = l;
    return 0;
}

/* G could not be launched; the original follows, and reports in its turn. */
static void gave_up(struct mk_pair *p, struct mk_pair_stream *s)
{
    struct mk_pair_last *l = &s->last;
    const struct mk_pair_site key = key_of(l);
    struct mk_pair_site *site;
    if (!l->capture)
        s->generation--; /* it never ran */
    l->ran_g = false;
    l->reason = MK_PAIR_FAILED;
    if ((site = site_get(p, &key)))
        site->failed = true;
    p->counts.reason[MK_PAIR_FAILED]++;
}

int mk_pair_gemm_done(struct mk_pair *p, const struct mk_pair_event *e)
{
    struct mk_pair_stream *s = mk_pair_stream_find(p, &e->at);
    if (!s || !s->last.any || s->last.done || s->last.capture != e->at.capture)
        return s ? MK_ERR_INVALID : 0;
    struct mk_pair_last *l = &s->last;
    if (e->u.done.error) {
        if (l->ran_g)
            gave_up(p, s);
        else
            l->any = false;
        return 0;
    }
    l->done = true;
    l->counted = e->at.counted;
    l->enqueues = e->at.enqueues;
    l->node = l->ran_g ? e->u.done.node : e->at.ndeps == 1 ? e->at.deps[0] : 0;
    l->own = mk_pair_own(p, e->at.ctx, e->at.blocking, l->ran_g);
    return 0;
}
