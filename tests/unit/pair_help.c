/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#include "tests/unit/pair_help.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#define CTX UINT64_C(0xc0)
enum { RANK = 0, NRANKS = 2 };

void sim_start(struct sim *s, const struct mk_pair_options *options)
{
    const struct mk_pair_options usual = {.witness = SIM_W, .epilogues = 1u << MK_PAIR_BIAS};
    memset(s, 0, sizeof(*s));
    assert_int_equal(mk_pair_create(options ? options : &usual, &s->p), 0);
    s->counted = s->profiled = true;
    s->thread = 1;
}

void sim_end(struct sim *s)
{
    mk_pair_destroy(s->p);
}

void sim_step(struct sim *s, struct mk_pair_event *e)
{
    e->thread = e->thread ? e->thread : s->thread;
    assert_int_equal(mk_pair_step(s->p, e, &s->out), 0);
}

void sim_refuses(struct sim *s, struct mk_pair_event *e)
{
    e->thread = e->thread ? e->thread : s->thread;
    assert_int_equal(mk_pair_step(s->p, e, &s->out), MK_ERR_INVALID);
}

void sim_expect(const struct sim *s, uint32_t act, uint32_t reason, const char *file, int line)
{
    if (s->out.act != act || s->out.reason != reason) {
        fail_msg("%s:%d: %s %s, expected %s %s", file, line, mk_pair_act_name(s->out.act),
                 mk_pair_reason_name(s->out.reason), mk_pair_act_name(act), mk_pair_reason_name(reason));
    }
}

/* ---- communicators ---- */

uint64_t sim_handle(int i)
{
    return UINT64_C(0x1000) * (uint64_t)(i + 1);
}

struct mk_pair_event sim_comm_event(uint32_t kind, int i)
{
    struct mk_pair_event e;
    memset(&e, 0, sizeof(e));
    e.kind = kind;
    e.u.comm.handle = sim_handle(i);
    e.u.comm.id = 70 + (uint64_t)i;
    e.u.comm.rank = RANK;
    e.u.comm.nranks = NRANKS;
    return e;
}

void sim_new(struct sim *s, int i)
{
    struct mk_pair_event id = sim_comm_event(MK_PAIR_EV_COMM_ID, i),
                         e = sim_comm_event(MK_PAIR_EV_COMM_NEW, i);
    sim_step(s, &id);
    sim_step(s, &e);
}

void sim_profile(struct sim *s, int i, uint64_t thread)
{
    struct mk_pair_event e = sim_comm_event(MK_PAIR_EV_PROFILED, i);
    e.thread = thread;
    sim_step(s, &e);
}

void sim_tied(struct sim *s, int i)
{
    const struct mk_pair_gemm g = sim_gemm_of(1);
    const struct mk_pair_coll c = sim_coll_of(i, &g);
    sim_new(s, i);
    for (int n = 0; n < SIM_W; n++)
        EXPECT(s, sim_coll(s, 0, &c), NCCL, NOT_READY);
}

struct mk_pair_config sim_config(void)
{
    return (struct mk_pair_config){.min_bytes = 64,
                                   .max_bytes = 64 << 20,
                                   .functions = 1u << MK_PAIR_ALLREDUCE,
                                   .dtypes = 1u << MK_BFLOAT16 | 1u << MK_FLOAT16,
                                   .nranks = NRANKS};
}

void sim_agreed(struct sim *s, int i)
{
    struct mk_pair_event e = sim_comm_event(MK_PAIR_EV_COMM_AGREED, i);
    e.u.comm.config = sim_config();
    sim_step(s, &e);
    assert_int_equal(s->out.asks, 0);
}

void sim_switch(struct sim *s, int i, uint64_t number, uint64_t word)
{
    struct mk_pair_event e = sim_comm_event(MK_PAIR_EV_COMM_SWITCH, i);
    e.u.comm.number = number;
    e.u.comm.word = word;
    sim_step(s, &e);
}

static struct mk_pair_comm_facts facts(const struct sim *s, int i)
{
    struct mk_pair_comm_facts f;
    memset(&f, 0, sizeof(f));
    assert_true(mk_pair_comm(s->p, sim_handle(i), &f));
    return f;
}
uint64_t sim_number(struct sim *s, int i)
{
    return facts(s, i).number;
}
int sim_error(struct sim *s, int i)
{
    return facts(s, i).error;
}

void sim_fused(struct sim *s, int i)
{
    sim_tied(s, i);
    sim_agreed(s, i);
    sim_switch(s, i, sim_number(s, i), MK_PAIR_FUSED);
}

/* ---- streams and captures ---- */

bool sim_reaches(const struct sim *s, uint64_t from, uint64_t to)
{
    bool marked[SIM_NODES + 1] = {false};
    marked[from] = true;
    for (uint64_t i = from; i > to; i--) /* a node depends on smaller ones only */
        for (uint32_t j = 0; marked[i] && j < s->node[i - 1].deps.n; j++)
            marked[s->node[i - 1].deps.node[j]] = true;
    return from != to && marked[to];
}

/* Only what no other one of the tail's nodes depends on. */
static void reduce(const struct sim *s, const struct sim_deps *t, struct mk_pair_at *at)
{
    at->ndeps = 0;
    for (uint32_t i = 0; i < t->n; i++) {
        bool spare = false;
        for (uint32_t j = 0; j < t->n; j++)
            spare |= !s->lazy && sim_reaches(s, t->node[j], t->node[i]);
        at->reduced |= spare;
        if (!spare && at->ndeps++ < MK_PAIR_DEPS)
            at->deps[at->ndeps - 1] = t->node[i];
    }
}

struct mk_pair_at sim_at(const struct sim *s, int stream)
{
    const struct sim_deps *t = &s->stream[stream].tail;
    struct mk_pair_at at = {.ctx = CTX,
                            .stream = 100 + (uint64_t)stream,
                            .enqueues = s->enqueues,
                            .untold = s->untold,
                            .capture = t->capture,
                            .counted = s->counted,
                            .blocking = s->stream[stream].blocking};
    reduce(s, t, &at);
    return at;
}

/* Something runs on the stream. Returns its node. */
static uint64_t put(struct sim *s, int stream, enum sim_kind kind)
{
    struct sim_deps *t = &s->stream[stream].tail;
    if (!t->capture)
        return 0;
    assert_true(s->nnodes < SIM_NODES);
    s->node[s->nnodes].kind = kind;
    s->node[s->nnodes].deps = *t;
    t->n = 1;
    t->node[0] = ++s->nnodes;
    return s->nnodes;
}

void sim_foreign(struct sim *s, int stream)
{
    s->enqueues++;
    put(s, stream, SIM_FOREIGN);
}

static void edge(struct sim *s, int stream)
{
    struct mk_pair_event e = {.kind = MK_PAIR_EV_EDGE, .at = sim_at(s, stream)};
    s->enqueues++;
    sim_step(s, &e);
}

void sim_record(struct sim *s, int stream, int event)
{
    s->event[event] = s->stream[stream].tail;
    edge(s, stream);
}

void sim_wait(struct sim *s, int stream, int event)
{
    struct sim_deps *t = &s->stream[stream].tail;
    const struct sim_deps *v = &s->event[event];
    if (v->capture) {
        if (!t->capture)
            *t = (struct sim_deps){.capture = v->capture};
        for (uint32_t i = 0; i < v->n; i++) {
            bool there = false;
            for (uint32_t j = 0; j < t->n; j++)
                there |= t->node[j] == v->node[i];
            if (!there) {
                assert_true(t->n < SIM_DEPS);
                t->node[t->n++] = v->node[i];
            }
        }
    }
    edge(s, stream);
}

void sim_copy(struct sim *s, int stream, uint64_t from, uint64_t to, uint64_t bytes)
{
    struct mk_pair_event e = {.kind = MK_PAIR_EV_COPY, .at = sim_at(s, stream)};
    e.u.copy.from = from;
    e.u.copy.to = to;
    e.u.copy.bytes = bytes;
    sim_foreign(s, stream);
    sim_step(s, &e);
}

void sim_capture(struct sim *s, int stream)
{
    s->stream[stream].tail = (struct sim_deps){.capture = ++s->captures};
    struct mk_pair_event e = {.kind = MK_PAIR_EV_CAPTURE_BEGIN, .at = sim_at(s, stream)};
    sim_step(s, &e);
}

void sim_captured(struct sim *s, int stream)
{
    struct mk_pair_event e = {.kind = MK_PAIR_EV_CAPTURE_END, .at = sim_at(s, stream)};
    for (int i = 0; i < SIM_STREAMS; i++)
        if (s->stream[i].tail.capture == e.at.capture)
            s->stream[i].tail = (struct sim_deps){.capture = 0};
    sim_step(s, &e);
}

void sim_replay(struct sim *s, int stream)
{
    struct mk_pair_event e = {.kind = MK_PAIR_EV_REPLAY, .at = sim_at(s, stream)};
    s->enqueues++;
    sim_step(s, &e);
}

/* ---- calls ---- */

struct mk_pair_gemm sim_gemm_of(uint64_t weight)
{
    return (struct mk_pair_gemm){.m = 256,
                                 .n = 512,
                                 .k = 128,
                                 .lda = 128,
                                 .ldb = 128,
                                 .ldc = 512,
                                 .a = SIM_A,
                                 .b = UINT64_C(0x20000000) + weight * 0x100000,
                                 .c = SIM_C,
                                 .alpha = 1,
                                 .batch = 1,
                                 .layout = MK_TN,
                                 .a_type = MK_BFLOAT16,
                                 .b_type = MK_BFLOAT16,
                                 .c_type = MK_BFLOAT16};
}

struct mk_pair_coll sim_coll_of(int comm, const struct mk_pair_gemm *g)
{
    return (struct mk_pair_coll){.comm = sim_handle(comm),
                                 .count = (uint64_t)(g->m * g->n),
                                 .send = g->c,
                                 .recv = g->c,
                                 .caller = 0xca11,
                                 .function = MK_PAIR_ALLREDUCE,
                                 .dtype = g->c_type,
                                 .sum = 1};
}

static void gemm_done(struct sim *s, int stream, uint64_t node, int error)
{
    struct mk_pair_event e = {.kind = MK_PAIR_EV_GEMM_DONE, .at = sim_at(s, stream)};
    e.u.done.node = node;
    e.u.done.error = error;
    sim_step(s, &e);
}

void sim_gemm(struct sim *s, int stream, const struct mk_pair_gemm *g)
{
    struct mk_pair_event e = {.kind = MK_PAIR_EV_GEMM, .at = sim_at(s, stream)};
    e.u.gemm = *g;
    sim_step(s, &e);
    const struct mk_pair_out out = s->out;
    assert_true(out.act == MK_PAIR_DO_G || out.act == MK_PAIR_DO_ORIGINAL);
    if (out.act == MK_PAIR_DO_G && s->fail_g) {
        s->fail_g = false;
        gemm_done(s, stream, 0, 1);
        s->enqueues++;
        put(s, stream, SIM_ORIGINAL);
        gemm_done(s, stream, 0, 0);
    } else if (out.act == MK_PAIR_DO_G) {
        if (out.order == MK_PAIR_WAIT_EXTERNAL)
            put(s, stream, SIM_EXTERNAL);
        const uint64_t node = put(s, stream, SIM_G);
        gemm_done(s, stream, node, 0);
    } else {
        s->enqueues++;
        put(s, stream, SIM_ORIGINAL);
        gemm_done(s, stream, 0, 0);
    }
    s->out = out;
}

static void coll_done(struct sim *s, int stream, uint64_t comm, uint64_t node, uint8_t act, int error)
{
    struct mk_pair_event e = {.kind = MK_PAIR_EV_COLL_DONE, .at = sim_at(s, stream)};
    e.u.done.comm = comm;
    e.u.done.node = node;
    e.u.done.act = act;
    e.u.done.error = error;
    sim_step(s, &e);
}

static int comm_of(uint64_t handle)
{
    return (int)(handle / 0x1000) - 1;
}

/* A captured K may start early only after G, and whatever else it would have waited for has to be over before G starts. */
static void only_g(struct sim *s, struct sim_deps *t, bool reduce_to_g)
{
    uint64_t g = 0;
    for (uint32_t i = 0; i < t->n; i++)
        if (s->node[t->node[i] - 1].kind == SIM_G && t->node[i] > g)
            g = t->node[i];
    assert_true(g && (reduce_to_g || t->n == 1));
    for (uint32_t i = 0; i < t->n; i++)
        assert_true(t->node[i] == g || sim_reaches(s, g, t->node[i]));
    t->n = 1;
    t->node[0] = g;
}

static void carry_out(struct sim *s, int stream, const struct mk_pair_coll *c)
{
    struct mk_pair_out out = s->out;
    if (out.act == MK_PAIR_DO_NCCL) {
        if (s->depth) {
            assert_true(s->npassed < SIM_GROUP);
            s->passed_stream[s->npassed] = stream;
            s->passed[s->npassed++] = *c;
            /* As the hooks do: NCCL's call is back, but has put nothing on the stream. */
            const struct mk_pair_at at = sim_at(s, stream);
            coll_done(s, stream, c->comm, at.capture && at.ndeps == 1 ? at.deps[0] : 0, out.act, 0);
            s->out = out;
            return;
        }
        if (s->profiled && out.reason != MK_PAIR_P2P && out.reason != MK_PAIR_NO_COMM) {
            sim_profile(s, comm_of(c->comm), s->thread);
            out.asks |= s->out.asks;
        }
        s->enqueues++;
        coll_done(s, stream, c->comm, put(s, stream, SIM_NCCL), out.act, 0);
    } else if (out.act == MK_PAIR_DO_PLAIN || out.act == MK_PAIR_DO_OVERLAP) {
        if (out.act == MK_PAIR_DO_OVERLAP && s->stream[stream].tail.capture)
            only_g(s, &s->stream[stream].tail, out.reduce);
        coll_done(s, stream, c->comm, s->fail_k ? 0 : put(s, stream, SIM_K), out.act, s->fail_k);
        s->fail_k = false;
        out.asks |= s->out.asks;
    }
    s->out = out;
}

static void call(struct sim *s, uint32_t kind, int stream, const struct mk_pair_coll *c)
{
    struct mk_pair_event e = {.kind = kind, .at = sim_at(s, stream)};
    e.u.coll = *c;
    sim_step(s, &e);
    if (s->out.act == MK_PAIR_DO_HOLD) {
        assert_true(s->depth && s->nheld < SIM_GROUP);
        s->held_stream[s->nheld] = stream;
        s->held[s->nheld++] = *c;
    } else {
        carry_out(s, stream, c);
    }
}
void sim_coll(struct sim *s, int stream, const struct mk_pair_coll *c)
{
    call(s, MK_PAIR_EV_COLL, stream, c);
}
void sim_p2p(struct sim *s, int stream, int comm)
{
    const struct mk_pair_coll c = {.comm = sim_handle(comm), .function = MK_PAIR_FUNCTIONS};
    call(s, MK_PAIR_EV_P2P, stream, &c);
}

void sim_group(struct sim *s)
{
    struct mk_pair_event e = {.kind = MK_PAIR_EV_GROUP_START};
    sim_step(s, &e);
    if (!s->depth++)
        s->nheld = s->npassed = s->ntaken = 0;
}

void sim_group_end(struct sim *s)
{
    struct mk_pair_event e = {.kind = MK_PAIR_EV_GROUP_END};
    sim_step(s, &e);
    if (--s->depth)
        return;
    assert_int_equal(s->out.held, s->nheld);
    for (uint32_t i = 0; i < s->nheld; i++) {
        struct mk_pair_event t = {.kind = MK_PAIR_EV_TAKE, .at = sim_at(s, s->held_stream[i])};
        sim_step(s, &t);
        carry_out(s, s->held_stream[i], &s->held[i]);
        s->taken[s->ntaken++] = s->out;
    }
    for (uint32_t i = 0; i < s->npassed; i++) {
        put(s, s->passed_stream[i], SIM_NCCL);
        if (s->profiled && s->passed[i].function < MK_PAIR_FUNCTIONS) /* not send and receive */
            sim_profile(s, comm_of(s->passed[i].comm), s->thread);
    }
    s->enqueues += s->npassed > 0;
}
