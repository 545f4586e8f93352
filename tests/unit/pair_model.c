/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Random programs on two or three ranks. What the program does is shared; how each rank does it is its own: GEMMs before or
 * not, streams, threads, groups, buffers, foreign work, events, counters, failing launches, when a switch is heard of.
 * Asserted: all ranks choose alike between K and NCCL for every operation number; every decision is what the oracle
 * says (pair_oracle.c), hence none overlaps with anything between; no GEMM of ours waits where two communicators live.
 * Before that, every short program of one rank on two streams. */
#include "tests/unit/pair_help.h"
#include "tests/unit/pair_oracle.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static unsigned runs = 1500;

enum { SLOW_CLASS = 7 }; /* 64 rows of 64 */
enum { RANKS = 3, STEPS = 48, COMMS = 2, SWITCHES = 4, INSTANCE = 64, OPS = 16 * INSTANCE };

static uint64_t next_random(uint64_t *x)
{
    *x ^= *x << 13;
    *x ^= *x >> 7;
    *x ^= *x << 17;
    return *x >> 11;
}

/* ---- the program: what the ranks share ---- */

struct step {
    enum { OP, CAPTURE, CAPTURE_END, RENEW } kind;
    int comm, m, n; /* OP: count m * n */
    uint8_t function, dtype, sum;
};
struct program {
    uint64_t seed;
    int ranks;
    bool deterministic;
    struct step step[STEPS];
    struct {
        uint64_t number, word;
    } change[COMMS][SWITCHES]; /* of each instance: numbers after its set-up */
};

static void make_program(struct program *p, uint64_t seed)
{
    uint64_t x = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    bool captured = false;
    memset(p, 0, sizeof(*p));
    p->seed = seed;
    p->ranks = 2 + (int)(next_random(&x) % 2);
    p->deterministic = next_random(&x) % 4 == 0;
    for (int i = 0; i < STEPS; i++) {
        struct step *s = &p->step[i];
        const uint64_t roll = next_random(&x) % 24;
        s->comm = next_random(&x) % 3 == 0;
        s->m = 64 << next_random(&x) % 2;
        s->n = 64 << next_random(&x) % 2;
        s->function = next_random(&x) % 12 ? MK_PAIR_ALLREDUCE : MK_PAIR_ALLGATHER;
        s->dtype = next_random(&x) % 12 ? MK_BFLOAT16 : next_random(&x) % 2 ? MK_FLOAT16 : MK_FLOAT32;
        s->sum = next_random(&x) % 12 != 0;
        if (next_random(&x) % 16 == 0)
            s->m = 0;
        if (roll < 3) {
            s->kind = captured ? CAPTURE_END : CAPTURE;
            captured = !captured;
        } else if (roll == 3 && !captured) {
            s->kind = RENEW;
        }
    }
    for (int c = 0; c < COMMS; c++)
        for (uint64_t i = 0, n = 0; i < SWITCHES; i++) {
            n += next_random(&x) % (i ? 24 : 4) + (i > 0);
            p->change[c][i].number = n;
            p->change[c][i].word =
                i && next_random(&x) % 3 == 0
                    ? 0
                    : MK_PAIR_FUSED | (next_random(&x) % 3 ? 0 : MK_PAIR_SLOW_CLASS(false, SLOW_CLASS)) |
                          (next_random(&x) % 3 ? 0 : MK_PAIR_SLOW_CLASS(true, SLOW_CLASS));
        }
}

/* ---- a rank ---- */

struct rank {
    struct sim s;
    struct oracle o;
    bool calm;                 /* no launch fails */
    uint64_t x, base[COMMS];   /* number at the instance's set-up */
    int changes[COMMS];        /* heard of */
    uint8_t chose[COMMS][OPS]; /* 1 NCCL, 2 K; by number */
    int nops[COMMS];           /* this instance: from here on in `chose` */
    bool dead[COMMS];          /* an error, of this rank alone */
    int overlaps, plains, gs, orders, errors;
};

static bool chance(struct rank *r, unsigned in)
{
    return next_random(&r->x) % in == 0;
}

/* The end of a rank's history, for whoever has to find out. */
static void tell(const struct rank *r)
{
    static const char *const kinds[] = {"gemm",     "op",  "p2p",    "work",   "edge",  "capture", "replay",
                                        "unproved", "new", "agreed", "switch", "error", "end"};
    for (int i = r->o.n > 30 ? r->o.n - 30 : 0; i < r->o.n; i++) {
        const struct oracle_entry *e = &r->o.at[i];
        printf("%4d %s%lldx%lld %s %llu %llx %-8s stream %d comm %d number %llu node %llu took %d capture "
               "%llu deps %u:%llu,%llu%s%s%s %s\n",
               i, e->unknown ? "unknown " : "", (long long)e->gemm.m, (long long)e->gemm.n,
               e->gemm.c_type == 1 ? "b" : "h", (unsigned long long)e->coll.count,
               (unsigned long long)(e->kind == ORACLE_SWITCH ? e->word : e->gemm.b), kinds[e->kind],
               e->stream, e->comm, (unsigned long long)e->number, (unsigned long long)e->node, e->took,
               (unsigned long long)e->at.capture, e->at.ndeps, (unsigned long long)e->at.deps[0],
               (unsigned long long)e->at.deps[1], e->larger ? " larger" : "", e->failed ? " failed" : "",
               e->at.counted ? " counted" : "", mk_pair_act_name(e->act));
    }
}

static struct oracle_entry entry(const struct rank *r, enum oracle_kind kind, int stream)
{
    struct oracle_entry e;
    memset(&e, 0, sizeof(e));
    e.kind = kind;
    e.stream = stream;
    e.comm = -1;
    e.at = sim_at(&r->s, stream);
    return e;
}

static void add(struct rank *r, enum oracle_kind kind, int stream)
{
    const struct oracle_entry e = entry(r, kind, stream);
    oracle_add(&r->o, &e);
}

static void add_comm(struct rank *r, enum oracle_kind kind, int comm, uint64_t number, uint64_t word)
{
    struct oracle_entry e = entry(r, kind, 0);
    e.comm = comm;
    e.number = number;
    e.word = word;
    oracle_add(&r->o, &e);
}

static uint64_t tail(const struct rank *r, int stream)
{
    const struct sim_deps *t = &r->s.stream[stream].tail;
    return t->capture ? t->node[0] : 0;
}

static void gemm(struct rank *r, int stream, const struct mk_pair_gemm *g)
{
    struct oracle_entry e = entry(r, ORACLE_GEMM, stream);
    e.gemm = *g;
    const uint32_t want = oracle_gemm(&r->o, &e);
    r->s.fail_g = !r->calm && chance(r, 40);
    e.failed = r->s.fail_g && want == MK_PAIR_DO_G;
    sim_gemm(&r->s, stream, g);
    r->s.fail_g = false;
    if (r->s.out.act != want)
        tell(r);
    if (r->s.out.act != want)
        fail_msg("GEMM at %d: %s (%s), the oracle says %s", r->o.n, mk_pair_act_name(r->s.out.act),
                 mk_pair_reason_name(r->s.out.reason), mk_pair_act_name(want));
    if (r->s.out.order) {
        struct mk_pair_comm_facts f;
        r->orders++;
        assert_false(mk_pair_comm(r->s.p, sim_handle(0), &f) && mk_pair_comm(r->s.p, sim_handle(1), &f));
    }
    e.act = want;
    e.node = tail(r, stream);
    r->gs += want == MK_PAIR_DO_G;
    oracle_add(&r->o, &e);
}

/* Compares what was decided, and notes it. */
static void judge(struct rank *r, struct oracle_entry *e, const struct mk_pair_out *out)
{
    const uint32_t want = oracle_op(&r->o, e);
    if (out->act != want || out->number != e->number)
        tell(r);
    if (out->act != want || out->number != e->number)
        fail_msg("operation %llu of %d at %d: %s (%s), the oracle says %s", (unsigned long long)e->number,
                 e->comm, r->o.n, mk_pair_act_name(out->act), mk_pair_reason_name(out->reason),
                 mk_pair_act_name(want));
    const bool in_order = want == MK_PAIR_DO_OVERLAP || oracle_in_order(&r->o, e, -1);
    if ((out->order == MK_PAIR_IN_ORDER) != in_order)
        tell(r);
    if ((out->order == MK_PAIR_IN_ORDER) != in_order)
        fail_msg("operation %llu of %d at %d: %s, order %d, the oracle says %d",
                 (unsigned long long)e->number, e->comm, r->o.n, mk_pair_act_name(out->act), out->order,
                 in_order);
    e->act = want;
    e->node = tail(r, e->stream);
    r->overlaps += want == MK_PAIR_DO_OVERLAP;
    r->plains += want == MK_PAIR_DO_PLAIN;
    oracle_add(&r->o, e);
    const int at = r->nops[e->comm] + (int)e->number;
    assert_true(at < OPS && !r->chose[e->comm][at]);
    r->chose[e->comm][at] = want == MK_PAIR_DO_NCCL ? 1 : 2;
}

static void hear(struct rank *r, const struct program *p, int comm)
{
    while (r->changes[comm] < SWITCHES) {
        const int i = r->changes[comm];
        const uint64_t now = sim_number(&r->s, comm) - r->base[comm], at = p->change[comm][i].number;
        if ((i && now < p->change[comm][i - 1].number) || (now < at && chance(r, 2)))
            return;
        sim_switch(&r->s, comm, r->base[comm] + at, p->change[comm][i].word);
        add_comm(r, ORACLE_SWITCH, comm, r->base[comm] + at, p->change[comm][i].word);
        r->changes[comm]++;
    }
}

static void renew(struct rank *r, int comm)
{
    struct mk_pair_event end = sim_comm_event(MK_PAIR_EV_COMM_END, comm);
    struct mk_pair_comm_facts f;
    if (mk_pair_comm(r->s.p, sim_handle(comm), &f)) {
        r->nops[comm] += INSTANCE;
        sim_step(&r->s, &end);
        add_comm(r, ORACLE_END, comm, 0, 0);
    }
    sim_new(&r->s, comm);
    add_comm(r, ORACLE_NEW, comm, 0, 0);
    r->changes[comm] = 0;
    r->dead[comm] = false;
    for (int i = 0; i < SIM_W; i++) {
        struct oracle_entry e = entry(r, ORACLE_OP, 0);
        const struct mk_pair_gemm g = sim_gemm_of(1);
        e.comm = comm;
        e.coll = sim_coll_of(comm, &g);
        e.number = (uint64_t)i;
        sim_coll(&r->s, 0, &e.coll);
        const struct mk_pair_out out = r->s.out;
        judge(r, &e, &out);
    }
    sim_agreed(&r->s, comm);
    add_comm(r, ORACLE_AGREED, comm, 0, 0);
    r->base[comm] = sim_number(&r->s, comm);
}

/* ---- what is the rank's own ---- */

static struct mk_pair_gemm random_gemm(struct rank *r, const struct step *s, int stream)
{
    struct mk_pair_gemm g = sim_gemm_of(next_random(&r->x) % 3);
    g.m = s->m ? s->m : 64;
    g.n = g.ldc = s->n;
    g.k = g.lda = g.ldb = 64;
    g.c = SIM_C + (uint64_t)stream * 0x100000;
    if (chance(r, 3))
        g.epilogue = MK_PAIR_BIAS, g.bias = UINT64_C(0x50000000);
    if (s->dtype == MK_FLOAT16 && !chance(r, 4))
        g.a_type = g.b_type = g.c_type = MK_FLOAT16;
    if (chance(r, 20))
        g.beta = 1;
    if (chance(r, 20))
        g.ldc += 64;
    return g;
}

static struct mk_pair_coll random_coll(struct rank *r, const struct step *s, const struct mk_pair_gemm *g)
{
    struct mk_pair_coll c = sim_coll_of(s->comm, g);
    const uint64_t elsewhere[] = {g->a,
                                  g->b,
                                  UINT64_C(0x50000000),
                                  g->c + 64,
                                  UINT64_C(0x70000000),
                                  g->a + 2 * (uint64_t)(g->m * g->k),
                                  g->c - 2 * (uint64_t)(g->m * g->n)};
    c.count = (uint64_t)(s->m * s->n);
    c.function = s->function;
    c.dtype = s->dtype;
    c.sum = s->sum;
    if (chance(r, 10))
        c.send += 64, c.recv += 64;
    if (chance(r, 10))
        c.send = c.recv = SIM_C + next_random(&r->x) % 3 * 0x100000; /* another stream's C */
    if (chance(r, 3))
        c.recv = elsewhere[next_random(&r->x) % 7];
    if (chance(r, 25))
        c.recv += 4;
    if (chance(r, 40))
        c.send += 4;
    c.window = chance(r, 25);
    c.late = chance(r, 25);
    return c;
}

static void disturb(struct rank *r, const struct step *s, int stream)
{
    struct sim *m = &r->s;
    const int other = (int)(next_random(&r->x) % 3);
    const struct mk_pair_gemm g = random_gemm(r, s, other);
    switch (next_random(&r->x) % 27) {
    case 0:
        sim_foreign(m, stream);
        add(r, ORACLE_WORK, stream);
        break;
    case 1:
        sim_foreign(m, other);
        add(r, ORACLE_WORK, other);
        break;
    case 26:
        m->untold++;
        sim_foreign(m, other);
        add(r, ORACLE_UNTOLD, other);
        break;
    case 2:
        sim_record(m, stream, 2);
        add(r, ORACLE_EDGE, stream);
        break;
    case 3:
        sim_copy(m, stream, g.c, 0x70000000, 64);
        add(r, ORACLE_WORK, stream);
        break;
    case 4:
    case 11:
        if (m->stream[other].tail.capture)
            break;
        sim_replay(m, other);
        add(r, ORACLE_REPLAY, other);
        break;
    case 5:
    case 9:
    case 10:
        gemm(r, other, &g);
        break;
    case 6:
        if (m->stream[stream].tail.capture == m->stream[other].tail.capture && !r->dead[s->comm]) {
            add(r, ORACLE_P2P, other);
            r->o.at[r->o.n - 1].comm = s->comm;
            sim_p2p(m, other, s->comm);
            r->o.at[r->o.n - 1].node = tail(r, other);
        }
        break;
    case 7:
        m->counted = !m->counted || !chance(r, 3);
        break;
    case 8:
        if (chance(r, 8)) {
            struct mk_pair_event e = {.kind = MK_PAIR_EV_PROOF_ENDS};
            sim_step(m, &e);
            add(r, ORACLE_UNPROVED, 5);
        }
        break;
    default:;
    }
}

static void fork_to(struct rank *r, int from, int to, int event)
{
    sim_record(&r->s, from, event);
    add(r, ORACLE_EDGE, from);
    sim_wait(&r->s, to, event);
    add(r, ORACLE_EDGE, to);
}

/* A fault of this rank: every later call fails, until there is a new communicator. */
static void die(struct rank *r, int comm)
{
    struct mk_pair_event e = sim_comm_event(MK_PAIR_EV_COMM_ERROR, comm);
    e.u.comm.error = MK_ERR_PEER;
    sim_step(&r->s, &e);
    assert_int_equal(r->s.out.asks, MK_PAIR_ASK_ABORT | MK_PAIR_ASK_TELL);
    add_comm(r, ORACLE_ERROR, comm, 0, 0);
    r->dead[comm] = true;
    r->errors++;
}

static void operate(struct rank *r, const struct program *p, const struct step *s, bool captured)
{
    struct sim *m = &r->s;
    const int stream = captured ? 0 : (int)(next_random(&r->x) % 5 / 2);
    int at = stream;
    hear(r, p, s->comm);
    const struct mk_pair_gemm g = random_gemm(r, s, stream);
    const struct mk_pair_coll c = random_coll(r, s, &g);
    if (!chance(r, 5))
        gemm(r, stream, &g);
    disturb(r, s, stream);
    m->thread = 1 + next_random(&r->x) % 2;
    if (r->dead[s->comm] || chance(r, 300)) {
        if (!r->dead[s->comm])
            die(r, s->comm);
        EXPECT(m, sim_coll(m, at, &c), FAIL, ERROR);
        assert_int_equal(m->out.error, MK_ERR_PEER);
        return;
    }
    if (chance(r, 5)) { /* a side stream */
        at = captured ? 1 : (stream + 1) % 3;
        fork_to(r, stream, at, 0);
    }
    struct oracle_entry e = entry(r, ORACLE_OP, at);
    e.comm = s->comm;
    e.coll = c;
    e.number = sim_number(m, s->comm);
    const bool group = chance(r, 4);
    e.larger = group && chance(r, 2);
    if (group)
        sim_group(m);
    sim_coll(m, at, &c);
    if (!group) {
        const struct mk_pair_out out = m->out;
        judge(r, &e, &out);
    } else {
        struct mk_pair_out out = m->out;
        const bool held = out.act == MK_PAIR_DO_HOLD;
        if (!held) {
            judge(r, &e, &out);
            r->o.at[r->o.n - 1].node = 0; /* nobody tells */
        }
        if (e.larger) {
            struct oracle_entry q = entry(r, ORACLE_P2P, at);
            sim_p2p(m, at, s->comm);
            q.comm = s->comm;
            q.larger = true;
            q.node = 0;
            oracle_add(&r->o, &q);
        }
        e.at = sim_at(m, at);
        sim_group_end(m);
        out = m->out;
        if (held)
            judge(r, &e, &out);
        else
            add(r, ORACLE_WORK, 5);
    }
    if (at != stream && (captured || chance(r, 2)))
        fork_to(r, at, stream, 1); /* the join */
}

static void begin_rank(struct rank *r, uint64_t seed, const struct mk_pair_options *options)
{
    struct oracle_entry *entries = r->o.at;
    const int most = r->o.most;
    memset(r, 0, sizeof(*r));
    r->o.at = entries;
    r->o.most = most;
    r->o.deterministic = options->deterministic;
    r->o.plain = options->plain;
    r->x = seed * UINT64_C(0xd1342543de82ef95) + 7;
    sim_start(&r->s, options);
}

static void run_rank(struct rank *r, const struct program *p, int rank)
{
    const struct mk_pair_options options = {.witness = SIM_W,
                                            .epilogues = 1u << MK_PAIR_BIAS,
                                            .deterministic = p->deterministic,
                                            .plain = p->seed % 9 == 0 && rank == 1};
    bool captured = false;
    begin_rank(r, p->seed * 8 + (uint64_t)rank, &options);
    r->s.counted = !chance(r, 4);
    for (int i = 0; i < 3; i++)
        r->s.stream[i].blocking = chance(r, 2);
    renew(r, 0);
    if (p->seed % 2)
        renew(r, 1);
    for (int i = 0; i < STEPS; i++) {
        struct step s = p->step[i];
        struct mk_pair_comm_facts f;
        if (s.comm && !mk_pair_comm(r->s.p, sim_handle(1), &f))
            s.comm = 0;
        if (s.kind == RENEW) {
            renew(r, s.comm);
        } else if (s.kind == CAPTURE) {
            sim_capture(&r->s, 0);
            add(r, ORACLE_CAPTURE, 0);
            captured = true;
        } else if (s.kind == CAPTURE_END) {
            sim_captured(&r->s, 0);
            captured = false;
        } else {
            operate(r, p, &s, captured);
        }
    }
    sim_end(&r->s);
}

/* ---- every short program on two streams ---- */

enum { ACTIONS = 11 };

static void collective(struct rank *r, int stream, const struct mk_pair_gemm *g, bool sum, bool group)
{
    struct oracle_entry e = entry(r, ORACLE_OP, stream);
    e.comm = 0;
    e.coll = sim_coll_of(0, g);
    e.coll.sum = sum;
    e.number = sim_number(&r->s, 0);
    if (group)
        sim_group(&r->s);
    sim_coll(&r->s, stream, &e.coll);
    if (group)
        sim_group_end(&r->s);
    const struct mk_pair_out out = r->s.out;
    judge(r, &e, &out);
}

static void act(struct rank *r, int action, bool *captured)
{
    struct mk_pair_gemm g = sim_gemm_of(1), h = sim_gemm_of(2);
    h.c += 0x1000000;
    switch (action) {
    case 0:
        gemm(r, 0, &g);
        break;
    case 1:
        gemm(r, 0, &h);
        break;
    case 2:
        collective(r, 0, &g, true, false);
        break;
    case 3:
        collective(r, 0, &h, true, true);
        break;
    case 4:
        collective(r, 0, &g, false, false);
        break;
    case 5:
        fork_to(r, 0, 1, 0);
        collective(r, 1, &g, true, false);
        fork_to(r, 1, 0, 1);
        break;
    case 6:
        sim_foreign(&r->s, 0);
        add(r, ORACLE_WORK, 0);
        break;
    case 7:
        sim_record(&r->s, 0, 2);
        add(r, ORACLE_EDGE, 0);
        break;
    case 8:
        if (*captured) {
            sim_captured(&r->s, 0);
        } else {
            sim_capture(&r->s, 0);
            add(r, ORACLE_CAPTURE, 0);
        }
        *captured = !*captured;
        break;
    case 9:
        sim_replay(&r->s, 2);
        add(r, ORACLE_REPLAY, 2);
        break;
    default:
        r->s.counted = !r->s.counted;
    }
}

/* Both sites known, one communicator, then every program of so many actions. */
static void test_every_short_program(void **state)
{
    const struct mk_pair_options options = {.witness = SIM_W, .streams = 4};
    const int length = runs > 50000 ? 5 : 4;
    struct rank *r = calloc(1, sizeof(*r));
    int programs = 1, overlaps = 0;
    (void)state;
    assert_non_null(r);
    r->o.at = malloc(256 * sizeof(*r->o.at));
    r->o.most = 256;
    assert_non_null(r->o.at);
    for (int i = 0; i < length; i++)
        programs *= ACTIONS;
    for (int i = 0; i < programs; i++) {
        bool captured = false;
        begin_rank(r, 1, &options);
        r->calm = true;
        renew(r, 0);
        sim_switch(&r->s, 0, r->base[0], MK_PAIR_FUSED);
        add_comm(r, ORACLE_SWITCH, 0, r->base[0], MK_PAIR_FUSED);
        for (int known = 0; known < 4; known++)
            act(r, known < 2 ? 2 * known : known == 2 ? 1 : 3, &captured);
        for (int n = 0, left = i; n < length; n++, left /= ACTIONS)
            act(r, left % ACTIONS, &captured);
        overlaps += r->overlaps;
        sim_end(&r->s);
    }
    printf("%d programs of %d actions: %d overlapped\n", programs, length, overlaps);
    assert_true(overlaps > programs / 50);
    free(r->o.at);
    free(r);
}

/* ---- the runs ---- */

static void test_random_programs(void **state)
{
    enum { ENTRIES = 4096 };
    struct rank *r = calloc(RANKS, sizeof(*r));
    uint64_t overlaps = 0, plains = 0, nccl = 0, gs = 0, orders = 0, mixed = 0, errors = 0;
    (void)state;
    assert_non_null(r);
    for (int i = 0; i < RANKS; i++) {
        r[i].o.at = malloc(ENTRIES * sizeof(*r[i].o.at));
        r[i].o.most = ENTRIES;
        assert_non_null(r[i].o.at);
    }
    for (unsigned run = 1; run <= runs; run++) {
        struct program p;
        make_program(&p, run);
        for (int i = 0; i < p.ranks; i++) {
            run_rank(&r[i], &p, i);
            overlaps += (uint64_t)r[i].overlaps, plains += (uint64_t)r[i].plains;
            gs += (uint64_t)r[i].gs, orders += (uint64_t)r[i].orders, errors += (uint64_t)r[i].errors;
        }
        for (int c = 0; c < COMMS; c++)
            for (int n = 0; n < OPS; n++)
                for (int i = 0; i < p.ranks; i++) {
                    if (r[i].chose[c][n] && r[0].chose[c][n] && r[i].chose[c][n] != r[0].chose[c][n])
                        fail_msg("seed %u: ranks 0 and %d choose differently for operation %d of %d", run, i,
                                 n, c);
                    nccl += r[i].chose[c][n] == 1;
                }
        mixed += r[0].overlaps != r[1].overlaps;
    }
    printf(
        "%u programs: %llu NCCL, %llu plain, %llu overlapped, %llu G (%llu waited first), %llu errors; ranks "
        "overlapped differently in %llu\n",
        runs, (unsigned long long)nccl, (unsigned long long)plains, (unsigned long long)overlaps,
        (unsigned long long)gs, (unsigned long long)orders, (unsigned long long)errors,
        (unsigned long long)mixed);
    assert_true(overlaps > runs && plains > runs && nccl > runs && gs > overlaps && orders > runs / 8 &&
                mixed > runs / 4 && errors > runs / 10);
    for (int i = 0; i < RANKS; i++)
        free(r[i].o.at);
    free(r);
}

int pair_model(unsigned n)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_short_program),
                                       cmocka_unit_test(test_random_programs)};
    runs = n;
    return cmocka_run_group_tests_name("pair model", tests, NULL, NULL);
}
