/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#include "tests/unit/pair_oracle.h"
#include "tests/unit/pair_help.h"
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

void oracle_add(struct oracle *o, const struct oracle_entry *e)
{
    assert_true(o->n < o->most);
    o->at[o->n++] = *e;
}

/* Where the communicator that has this number now began; -1: there is none. */
static int began(const struct oracle *o, int comm)
{
    for (int i = o->n - 1; i >= 0; i--)
        if (o->at[i].comm == comm && (o->at[i].kind == ORACLE_NEW || o->at[i].kind == ORACLE_END))
            return o->at[i].kind == ORACLE_NEW ? i : -1;
    return -1;
}

static bool since(const struct oracle *o, int from, int comm, enum oracle_kind kind)
{
    for (int i = from; i >= 0 && i < o->n; i++)
        if (o->at[i].comm == comm && o->at[i].kind == kind)
            return true;
    return false;
}

static bool lives(const struct oracle *o, int comm)
{
    const int from = began(o, comm);
    return from >= 0 && since(o, from, comm, ORACLE_AGREED) && !since(o, from, comm, ORACLE_ERROR);
}

/* The state word in force at an operation number; 0 before the first switch. */
static uint64_t word_at(const struct oracle *o, int comm, uint64_t number)
{
    const int from = began(o, comm);
    uint64_t word = 0;
    for (int i = from; i >= 0 && i < o->n; i++)
        if (o->at[i].kind == ORACLE_SWITCH && o->at[i].comm == comm && o->at[i].number <= number)
            word = o->at[i].word;
    return word;
}

static uint64_t next_number(const struct oracle *o, int comm)
{
    uint64_t n = 0;
    for (int i = began(o, comm); i >= 0 && i < o->n; i++)
        if (o->at[i].kind == ORACLE_OP && o->at[i].comm == comm && o->at[i].number >= n)
            n = o->at[i].number + 1;
    return n;
}

static bool eligible(const struct oracle *o, int comm, uint64_t number, const struct mk_pair_coll *c,
                     bool captured)
{
    const struct mk_pair_config config = sim_config();
    const uint64_t word = word_at(o, comm, number);
    const uint64_t bytes = c->count * 2;
    if (!lives(o, comm) || !(word & 1) || c->function != MK_PAIR_ALLREDUCE || !c->sum)
        return false;
    if ((c->dtype != MK_BFLOAT16 && c->dtype != MK_FLOAT16) || bytes < config.min_bytes ||
        bytes > config.max_bytes)
        return false;
    for (int class = 0; class < 24; class ++) /* 64 B << class; bits from 8 on, of captures from 36 on */
        if (bytes >= UINT64_C(64) << class && bytes < UINT64_C(128) << class)
            return !(word >> ((captured ? 36 : 8) + class) & 1);
    return false;
}

bool oracle_shared(const struct oracle *o, const struct oracle_entry *e)
{
    return eligible(o, e->comm, e->number, &e->coll, e->at.capture != 0);
}

/* ---- GEMMs ---- */

static bool able(const struct mk_pair_gemm *g)
{
    return g->a_type == g->b_type && g->b_type == g->c_type &&
           (g->c_type == MK_BFLOAT16 || g->c_type == MK_FLOAT16) && g->alpha == 1 && g->beta == 0 &&
           !g->flags && g->batch <= 1 && g->epilogue <= MK_PAIR_BIAS;
}

static bool same_key(const struct mk_pair_gemm *a, const struct mk_pair_gemm *b)
{
    return a->b == b->b && a->n == b->n && a->k == b->k && a->c_type == b->c_type && a->layout == b->layout &&
           a->epilogue == b->epilogue;
}

static bool depends_on(const struct mk_pair_at *at, uint64_t node)
{
    for (uint32_t i = 0; node && at->ndeps <= MK_PAIR_DEPS && i < at->ndeps; i++)
        if (at->deps[i] == node)
            return true;
    return false;
}

/* Does anything of another's lie between entries i and j, as the counters see it? */
static bool work_between(const struct oracle *o, int i, int j)
{
    for (int x = i + 1; x < j; x++) {
        const struct oracle_entry *e = &o->at[x];
        if (e->kind == ORACLE_WORK || e->kind == ORACLE_UNTOLD || e->kind == ORACLE_REPLAY ||
            e->kind == ORACLE_EDGE || e->kind == ORACLE_P2P ||
            (e->kind == ORACLE_GEMM && (e->act == MK_PAIR_DO_ORIGINAL || e->failed)) ||
            (e->kind == ORACLE_OP && e->act == MK_PAIR_DO_NCCL))
            return true;
    }
    return false;
}

static bool edge_between(const struct oracle *o, int i, int j, int stream)
{
    for (int x = i + 1; x < j; x++)
        if (o->at[x].kind == ORACLE_EDGE && o->at[x].stream == stream)
            return true;
    return false;
}

static bool ran_g(const struct oracle_entry *e)
{
    return e->act == MK_PAIR_DO_G && !e->failed;
}

/* A sighting at OP x: a collective that was K, alone, right after an original GEMM that G could have been. whole: for
 * its site, otherwise for its N and K only. */
static bool sighting(const struct oracle *o, int x, int g, bool *whole)
{
    const struct oracle_entry *c = &o->at[x], *m = &o->at[g];
    if (c->act != MK_PAIR_DO_PLAIN || c->larger || c->took != g + 1 || ran_g(m) || !m->unknown)
        return false;
    *whole = true;
    if (c->at.capture)
        return !m->node || depends_on(&c->at, m->node);
    *whole = c->stream == m->stream;
    if (!*whole)
        return true;
    return !(m->at.counted && c->at.counted && work_between(o, g, x)) && !edge_between(o, g, x, c->stream);
}

/* The living communicator of the latest sighting that fits; -1: none. */
static int expects(const struct oracle *o, const struct oracle_entry *e, bool by_key)
{
    for (int x = o->n - 1; x >= 0; x--) {
        bool whole = false;
        const struct oracle_entry *c = &o->at[x];
        if (c->kind != ORACLE_OP || !c->took || !sighting(o, x, c->took - 1, &whole) || (by_key && !whole))
            continue;
        const struct mk_pair_gemm *m = &o->at[c->took - 1].gemm;
        if (!(by_key ? same_key(m, &e->gemm) : m->n == e->gemm.n && m->k == e->gemm.k))
            continue;
        const int from = began(o, c->comm);
        if (from >= 0 && from < x && lives(o, c->comm))
            return c->comm;
    }
    return -1;
}

/* Deterministic: was anything fused when this site was first called? */
static bool first_call_fused(const struct oracle *o, const struct oracle_entry *e)
{
    struct oracle then = *o;
    for (int i = 0; i < o->n; i++)
        if (o->at[i].kind == ORACLE_GEMM && able(&o->at[i].gemm) && same_key(&o->at[i].gemm, &e->gemm)) {
            then.n = i;
            break;
        }
    for (int comm = 0; comm < SIM_COMMS; comm++)
        if (lives(&then, comm) && word_at(&then, comm, next_number(&then, comm)) & 1)
            return true;
    return false;
}

uint32_t oracle_gemm(const struct oracle *o, struct oracle_entry *e)
{
    if (!able(&e->gemm))
        return MK_PAIR_DO_ORIGINAL;
    if (o->deterministic)
        return first_call_fused(o, e) ? MK_PAIR_DO_G : MK_PAIR_DO_ORIGINAL;
    for (int i = 0; i < o->n; i++)
        if (o->at[i].kind == ORACLE_GEMM && o->at[i].failed && same_key(&o->at[i].gemm, &e->gemm))
            return MK_PAIR_DO_ORIGINAL;
    int comm = expects(o, e, true);
    if (comm < 0 && e->at.capture)
        comm = expects(o, e, false);
    e->unknown = comm < 0;
    const struct mk_pair_coll c = {.count = (uint64_t)(e->gemm.m * e->gemm.n),
                                   .function = MK_PAIR_ALLREDUCE,
                                   .dtype = e->gemm.c_type,
                                   .sum = 1};
    return comm >= 0 && eligible(o, comm, next_number(o, comm), &c, e->at.capture != 0) ? MK_PAIR_DO_G
                                                                                        : MK_PAIR_DO_ORIGINAL;
}

/* ---- collectives ---- */

/* The GEMM whose C the operation may follow; -1: none. */
static int gemm_before(const struct oracle *o, const struct oracle_entry *e)
{
    for (int s = -1; s < SIM_STREAMS; s++) { /* its own stream first, capturing the others too */
        const int stream = s < 0 ? e->stream : s;
        if (s >= 0 && !e->at.capture)
            break;
        for (int i = o->n - 1; i >= 0; i--) {
            const struct oracle_entry *x = &o->at[i];
            if (x->kind == ORACLE_UNTOLD && !e->at.capture)
                break; /* nobody knows on which stream */
            if (x->stream != stream || x->kind == ORACLE_WORK || x->kind == ORACLE_EDGE ||
                x->kind > ORACLE_CAPTURE)
                continue;
            if (x->kind == ORACLE_GEMM && x->at.capture == e->at.capture &&
                (!e->at.capture || depends_on(&e->at, x->node))) {
                bool taken = false;
                for (int y = i + 1; y < o->n; y++)
                    taken |= o->at[y].kind == ORACLE_OP && o->at[y].took == i + 1;
                if (!taken)
                    return i;
            }
            break;
        }
    }
    return -1;
}

static bool sends_c_whole(const struct mk_pair_gemm *g, const struct mk_pair_coll *c)
{
    return c->send == g->c && c->dtype == g->c_type && g->ldc == g->n && c->count == (uint64_t)(g->m * g->n);
}

static bool touch(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes)
{
    for (uint64_t x = a; x < a + a_bytes; x += 2) /* every element */
        if (x + 2 > b && x < b + b_bytes)
            return true;
    return false;
}

/* Layout TN, rows without gaps. */
static bool result_is_in_the_way(const struct mk_pair_gemm *g, const struct mk_pair_coll *c)
{
    const uint64_t bytes = c->count * 2, m = (uint64_t)g->m, n = (uint64_t)g->n, k = (uint64_t)g->k;
    return touch(g->a, 2 * m * k, c->recv, bytes) || touch(g->b, 2 * n * k, c->recv, bytes) ||
           (g->bias && touch(g->bias, 2 * n, c->recv, bytes)) ||
           (c->recv != g->c && touch(g->c, 2 * m * n, c->recv, bytes));
}

static bool own_in_the_way(const struct oracle *o, int g, const struct oracle_entry *e)
{
    for (int i = g + 1; i < o->n; i++) {
        const struct oracle_entry *x = &o->at[i];
        const bool ours =
            (x->kind == ORACLE_GEMM && ran_g(x)) ||
            (x->kind == ORACLE_OP && (x->act == MK_PAIR_DO_PLAIN || x->act == MK_PAIR_DO_OVERLAP));
        if (ours && x->at.blocking && e->at.blocking)
            return true;
    }
    return false;
}

static bool proved(const struct oracle *o, int g, const struct oracle_entry *e)
{
    const struct oracle_entry *m = &o->at[g];
    if (e->at.capture) {
        for (uint32_t i = 0; i < e->at.ndeps; i++)
            if (e->at.deps[i] != m->node && !depends_on(&m->at, e->at.deps[i]))
                return false;
        return e->at.ndeps <= MK_PAIR_DEPS;
    }
    for (int i = 0; i < o->n; i++)
        if (o->at[i].kind == ORACLE_UNPROVED)
            return false;
    return m->at.counted && e->at.counted && !work_between(o, g, o->n) && !own_in_the_way(o, g, e);
}

static int open_comms(const struct oracle *o)
{
    int n = 0;
    for (int comm = 0; comm < SIM_COMMS; comm++)
        n += began(o, comm) >= 0;
    return n;
}

bool oracle_in_order(const struct oracle *o, const struct oracle_entry *e, int g)
{
    const int from = began(o, e->comm);
    bool graphs = false;
    int last = -1;
    for (int i = from; i < o->n; i++)
        if ((o->at[i].kind == ORACLE_OP || o->at[i].kind == ORACLE_P2P) && o->at[i].comm == e->comm) {
            last = i;
            graphs |= o->at[i].at.capture != 0;
        }
    if (last < 0)
        return true;
    const struct oracle_entry *p = &o->at[last];
    bool unseen = !p->at.counted || !e->at.counted;
    for (int i = 0; i < o->n; i++)
        unseen |= o->at[i].kind == ORACLE_UNPROVED ||
                  (o->at[i].kind == ORACLE_REPLAY && i > last && o->at[i].stream != p->stream);
    graphs &= unseen; /* launches of graphs elsewhere */
    if (!p->larger && p->stream == e->stream && p->at.capture == e->at.capture && (e->at.capture || !graphs))
        return true;
    if (g < 0)
        return false;
    if (e->at.capture && p->at.capture == e->at.capture && !p->larger && depends_on(&o->at[g].at, p->node))
        return true;
    /* G has waited: nothing of the communicator came since, and no other one could have been meant. */
    struct oracle then = *o;
    then.n = g;
    int expected = expects(&then, &o->at[g], true);
    if (expected < 0 && (o->at[g].at.capture || o->deterministic))
        expected = o->deterministic ? e->comm : expects(&then, &o->at[g], false);
    return last < g && open_comms(&then) == 1 && expected == e->comm;
}

uint32_t oracle_op(const struct oracle *o, struct oracle_entry *e)
{
    if (!oracle_shared(o, e))
        return MK_PAIR_DO_NCCL;
    if (e->larger)
        return MK_PAIR_DO_PLAIN;
    int g = gemm_before(o, e);
    if (g >= 0 && !sends_c_whole(&o->at[g].gemm, &e->coll))
        g = -1;
    e->took = g + 1;
    if (g < 0) /* an eager one on another stream? It teaches N and K. */
        for (int s = 0; s < SIM_STREAMS && !e->took && !e->at.capture; s++) {
            struct oracle_entry there = *e;
            there.stream = s;
            const int other = s == e->stream ? -1 : gemm_before(o, &there);
            if (other >= 0 && sends_c_whole(&o->at[other].gemm, &e->coll))
                e->took = other + 1;
        }
    if (g < 0 || !ran_g(&o->at[g]) || o->plain || e->coll.late || e->coll.window)
        return MK_PAIR_DO_PLAIN;
    if (e->coll.send % 16 || e->coll.recv % 16 || result_is_in_the_way(&o->at[g].gemm, &e->coll))
        return MK_PAIR_DO_PLAIN;
    return proved(o, g, e) && oracle_in_order(o, e, g) ? MK_PAIR_DO_OVERLAP : MK_PAIR_DO_PLAIN;
}
