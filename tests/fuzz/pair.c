/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Fuzz target of the pair recogniser: two ranks that are given the same shared events, whatever they are, and different local
 * facts. Input: a program of events, a few bytes each. The ranks must choose alike between K and NCCL, and what is
 * decided must hang together. */
#include "mk/pair.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct input {
    const uint8_t *p;
    size_t n;
};

static uint8_t take(struct input *in)
{
    if (!in->n)
        return 0;
    in->n--;
    return *in->p++;
}

static void must(bool holds)
{
    if (!holds)
        abort();
}

static uint64_t handle(uint8_t b)
{
    return 0x1000u * (1u + (b & 3));
}

static void random_at(struct input *in, bool captured, struct mk_pair_at *at)
{
    const uint8_t a = take(in), b = take(in);
    at->ctx = 1 + (a & 1);
    at->stream = 1 + (a >> 1 & 7);
    at->counted = a >> 4 & 1;
    at->blocking = a >> 5 & 1;
    at->reduced = a >> 6 & 1;
    at->enqueues = b & 3;
    at->capture = captured ? 1 + (b >> 2 & 1) : 0;
    at->ndeps = captured ? b >> 3 & 7 : 0;
    for (int i = 0; i < MK_PAIR_DEPS; i++)
        at->deps[i] = captured ? take(in) & 7 : 0;
}

static void random_gemm(struct input *in, struct mk_pair_gemm *g)
{
    const uint8_t a = take(in), b = take(in), c = take(in);
    *g = (struct mk_pair_gemm){.m = 32 << (a & 1), .n = 32, .k = 32 << (a >> 1 & 1), .alpha = 1};
    g->layout = a >> 2 & 3;
    g->lda = g->ldb = g->ldc = 64 >> (a >> 4 & 1);
    g->a = 0x10000 + 0x800u * (b & 7);
    g->b = 0x20000 + 0x800u * (b >> 3 & 7);
    g->c = 0x10000 + 0x8000u * (b >> 6);
    g->beta = (float)(c & 1 && a & 32);
    g->batch = 1;
    g->a_type = g->b_type = g->c_type = c & 64 ? MK_FLOAT16 : MK_BFLOAT16;
    g->epilogue = c >> 1 & 7;
    g->flags = c & 128 ? 1u << (c & 15) : 0;
    if (c == 0xff)
        g->m = INT64_MAX - b, g->lda = INT64_MAX;
}

/* What ranks share of a collective, and what they do not. */
static void shared_coll(struct input *in, struct mk_pair_coll *c)
{
    const uint8_t a = take(in), b = take(in);
    c->comm = handle(a);
    c->function = a >> 2 & 15 ? MK_PAIR_ALLREDUCE : a >> 6;
    c->count = b & 1 ? 1024u << (b >> 1 & 3) : (uint64_t)b << (a >> 3);
    c->dtype = b & 128 ? b >> 5 & 3 : MK_BFLOAT16;
    c->sum = b != 0x77;
}
static void local_coll(struct input *in, struct mk_pair_coll *c)
{
    const uint8_t a = take(in), b = take(in);
    c->send = 0x10000 + 0x8000u * (a & 3) + (a >> 2 & 1);
    c->recv = a & 8 ? c->send : 0x10000 + 0x200u * (uint64_t)b;
    c->window = a >> 4 & 1;
    c->late = a >> 5 & 1;
    c->caller = a >> 6;
}

static void comm_event(struct input *in, struct mk_pair_event *e)
{
    const uint8_t a = take(in), b = take(in);
    e->u.comm.handle = handle(a);
    e->u.comm.id = a & 3;
    e->u.comm.rank = a >> 2 & 1;
    e->u.comm.nranks = a & 128 ? a >> 3 & 3 : 2;
    e->u.comm.nonblocking = a == 0x55;
    e->u.comm.reason = b;
    e->u.comm.error = -(int)(b & 15);
    e->u.comm.number = b >> 1 & 31;
    e->u.comm.word = b & 1 ? MK_PAIR_FUSED | (b & 64 ? MK_PAIR_SLOW_CLASS(b >> 2 & 1, 5) : 0) : 0;
    e->u.comm.config = (struct mk_pair_config){.min_bytes = b & 32,
                                               .max_bytes = b & 16 ? 4096 : UINT64_MAX,
                                               .functions = 1,
                                               .dtypes = b & 8 ? 2 : 6,
                                               .nranks = 2,
                                               .graph_only = b == 0x99,
                                               .timed = b >> 1 & 1};
}

struct rank {
    struct mk_pair *p;
    struct mk_pair_out out;
    int ret;
};

static void step(struct rank *r, const struct mk_pair_event *e)
{
    struct mk_pair_counts before, after;
    mk_pair_count(r->p, &before);
    r->ret = mk_pair_step(r->p, e, &r->out);
    mk_pair_count(r->p, &after);
    must(r->ret == 0 || r->ret == MK_ERR_INVALID);
    must(!r->ret || !memcmp(&before, &after, sizeof(before)));
    if (r->ret)
        return;
    const struct mk_pair_out *o = &r->out;
    const bool gemm = e->kind == MK_PAIR_EV_GEMM,
               op = e->kind == MK_PAIR_EV_COLL || e->kind == MK_PAIR_EV_TAKE;
    must(o->act < MK_PAIR_ACTS && o->reason < MK_PAIR_REASONS);
    must((o->act == MK_PAIR_DO_G || o->act == MK_PAIR_DO_ORIGINAL) == gemm);
    must(op || (o->act != MK_PAIR_DO_PLAIN && o->act != MK_PAIR_DO_OVERLAP && o->act != MK_PAIR_DO_HOLD));
    must(o->act != MK_PAIR_DO_FAIL || o->error < 0);
    must((o->act == MK_PAIR_DO_OVERLAP) == (o->proof != MK_PAIR_UNPROVED));
    if (o->act == MK_PAIR_DO_OVERLAP) {
        must(o->order == MK_PAIR_IN_ORDER && !o->fork && !o->reason && o->generation);
        must((o->proof == MK_PAIR_BY_CAPTURE) == (e->at.capture != 0) && (e->at.capture || e->at.counted));
        must((o->descriptor == MK_PAIR_OWN_DESCRIPTOR) == (e->at.capture != 0));
    }
    must(e->at.capture || (o->order != MK_PAIR_WAIT_NODE && o->order != MK_PAIR_WAIT_EXTERNAL));
}

static bool is_k(uint32_t act)
{
    return act == MK_PAIR_DO_PLAIN || act == MK_PAIR_DO_OVERLAP || act == MK_PAIR_DO_HOLD;
}

static void event(struct input *in, struct rank r[2])
{
    struct mk_pair_event e[2];
    const uint8_t op = take(in);
    memset(e, 0, sizeof(e));
    e[0].kind = op & 31;
    e[0].thread = 1 + (op >> 5 & 1);
    const bool captured = op >> 6 & 1;
    switch (e[0].kind) {
    case MK_PAIR_EV_COLL:
    case MK_PAIR_EV_P2P:
        shared_coll(in, &e[0].u.coll);
        break;
    case MK_PAIR_EV_COLL_DONE:
        e[0].u.done.comm = handle(take(in));
        e[0].u.done.error = op == 0xe6;
        break;
    case MK_PAIR_EV_GEMM:
        random_gemm(in, &e[0].u.gemm);
        break;
    case MK_PAIR_EV_GEMM_DONE:
        e[0].u.done.node = take(in) & 7;
        e[0].u.done.error = op >> 7 & 1;
        break;
    case MK_PAIR_EV_COPY:
        e[0].u.copy.from = 0x10000 + 0x8000u * (take(in) & 3);
        e[0].u.copy.to = 0x10000 + 0x8000u * (take(in) & 3);
        break;
    default:
        if (e[0].kind >= MK_PAIR_EV_COMM_NEW)
            comm_event(in, &e[0]);
    }
    e[1] = e[0];
    for (int i = 0; i < 2; i++) {
        const bool op_call = e[i].kind == MK_PAIR_EV_COLL || e[i].kind == MK_PAIR_EV_P2P;
        random_at(in, captured, &e[i].at);
        if (op_call)
            local_coll(in, &e[i].u.coll);
        if (e[i].kind == MK_PAIR_EV_COLL_DONE)
            e[i].u.done.act = is_k(r[i].out.act) ? MK_PAIR_DO_PLAIN : MK_PAIR_DO_NCCL;
        if (e[i].kind == MK_PAIR_EV_GEMM && i && take(in) & 1)
            continue; /* this one skips it */
        step(&r[i], &e[i]);
    }
    if (e[0].kind == MK_PAIR_EV_COLL || e[0].kind == MK_PAIR_EV_TAKE) {
        must(r[0].ret == r[1].ret);
        must(is_k(r[0].out.act) == is_k(r[1].out.act) && r[0].out.number == r[1].out.number);
        must((r[0].out.act == MK_PAIR_DO_FAIL) == (r[1].out.act == MK_PAIR_DO_FAIL));
    }
}

/* A communicator of two ranks that is fused from its next operation on. */
static void fuse(struct rank *r, uint8_t i)
{
    const uint32_t kinds[] = {MK_PAIR_EV_COMM_ID,    MK_PAIR_EV_COMM_NEW,  MK_PAIR_EV_COLL,
                              MK_PAIR_EV_PROFILED,   MK_PAIR_EV_COLL_DONE, MK_PAIR_EV_COLL,
                              MK_PAIR_EV_PROFILED,   MK_PAIR_EV_COLL_DONE, MK_PAIR_EV_COMM_AGREED,
                              MK_PAIR_EV_COMM_SWITCH};
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        struct mk_pair_event e;
        memset(&e, 0, sizeof(e));
        e.kind = kinds[k];
        e.thread = 1;
        if (e.kind == MK_PAIR_EV_COLL) {
            e.u.coll.comm = handle(i);
        } else if (e.kind == MK_PAIR_EV_COLL_DONE) {
            e.u.done.comm = handle(i);
            e.u.done.act = MK_PAIR_DO_NCCL;
        } else {
            e.u.comm.handle = handle(i);
            e.u.comm.id = i;
            e.u.comm.nranks = 2;
            e.u.comm.number = 2;
            e.u.comm.word = MK_PAIR_FUSED;
            e.u.comm.config =
                (struct mk_pair_config){.max_bytes = 1 << 20, .functions = 1, .dtypes = 6, .nranks = 2};
        }
        step(r, &e);
        must(!r->ret && r->out.act != MK_PAIR_DO_FAIL);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size};
    struct rank r[2];
    memset(r, 0, sizeof(r));
    const uint8_t how = take(&in);
    for (int i = 0; i < 2; i++) {
        const struct mk_pair_options options = {.streams = 6,
                                                .sites = 12,
                                                .witness = 1 + (how & 1),
                                                .epilogues = 6,
                                                .deterministic = how >> 1 & 1,
                                                .plain = how >> (2 + i) & 1};
        if (mk_pair_create(&options, &r[i].p))
            return 0;
        for (uint8_t c = 0; c < (how >> 4 & 3); c++)
            fuse(&r[i], c);
    }
    while (in.n)
        event(&in, r);
    mk_pair_destroy(r[0].p);
    mk_pair_destroy(r[1].p);
    return 0;
}
