/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#include "hook_adapt.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct rank r;
int failures;
unsigned short a_mem[4 * 16], w_mem[8 * 16], c_mem[4 * 8], d_mem[4 * 8];

static char did[1024];
static struct mk_pair_counts before;

static void note(const char *word)
{
    snprintf(did + strlen(did), sizeof(did) - strlen(did), "%s%s", *did ? " " : "", word);
}

/* The kernel's node takes the place of what the stream's next node would have depended on. */
static void node_on(struct stand_stream *s)
{
    static struct stand_node nodes[64];
    static size_t used;
    struct stand_node *n = &nodes[used++ % 64];
    if (!s || !s->capturing)
        return;
    n->ndeps = s->ndeps;
    memcpy(n->deps, s->deps, sizeof(n->deps));
    s->ndeps = 1;
    s->deps[0] = n;
}

/* ---- stand-ins for G and K ---- */

static bool can(const struct mk_pair_gemm *gemm)
{
    r.gemm = *gemm;
    return !r.cannot;
}

static int launch_g(const struct mk_fuse_g *g)
{
    r.last_g = *g;
    r.gemm = *g->gemm;
    if (!r.g_error)
        node_on(g->stream);
    note(r.g_error ? "G!" : g->room ? "G+room" : "G");
    return r.g_error;
}

static int launch_k(const struct mk_fuse_k *k)
{
    r.last_k = *k;
    if (!r.k_error)
        node_on(k->stream);
    note(r.k_error ? "K!" : k->overlap ? "K||" : "K");
    if (k->beside)
        note("beside");
    return r.k_error;
}

static bool late(void *comm)
{
    (void)comm;
    return r.late;
}

static int wait_for(void *comm, void *stream, enum mk_pair_order how, uint64_t node)
{
    static const char *const words[] = {"?", "wait-event", "wait-node", "wait-external"};
    (void)comm, (void)stream, (void)node;
    note(words[how]);
    return r.wait_error;
}

static int record(void *comm, void *stream, enum mk_pair_record how)
{
    (void)comm, (void)stream, (void)how;
    note("rec");
    return r.record_error;
}

static int join(void *comm, void *stream)
{
    (void)comm, (void)stream;
    note("join");
    return 0;
}

static void fail(void *comm, int error, bool tell)
{
    (void)comm;
    r.failed = error;
    r.told = tell;
    note("fail");
}

static int error_of(void *comm)
{
    return comm == &r.comm ? r.later_error : 0;
}

/* Without the lock: an event would wait for it for ever. */
static void abort_one(void *comm)
{
    struct mk_pair_comm_facts facts;
    r.aborts += r.face->comm((uintptr_t)comm, &facts) && !facts.error;
}

static void end(void *comm)
{
    (void)comm;
    note("end");
}

static const struct mk_fuse_ops ops = {.epilogues = 1u << MK_PAIR_BIAS,
                                       .config = {.max_bytes = 1 << 20,
                                                  .functions = 1u << MK_PAIR_ALLREDUCE,
                                                  .dtypes = 1u << MK_BFLOAT16 | 1u << MK_FLOAT16},
                                       .can = can,
                                       .launch_g = launch_g,
                                       .launch_k = launch_k,
                                       .late = late,
                                       .wait = wait_for,
                                       .record = record,
                                       .join = join,
                                       .error = error_of,
                                       .fail = fail,
                                       .abort = abort_one,
                                       .end = end};

const struct mk_fuse_ops *rank_ops(void)
{
    return &ops;
}

/* ---- stand-ins for the libraries: what is called inside of them ---- */

static void in_gemm(int id, const void *call)
{
    const struct mk_call_cublasGemmEx *c = call;
    (void)id;
    node_on((struct stand_stream *)((char *)c->handle + 1));
    note("gemm");
}

static void in_lt(int id, const void *call)
{
    const struct mk_call_cublasLtMatmul *c = call;
    (void)id;
    node_on(c->stream);
    note("gemm");
}

/* NCCL's profiler speaks up for a collective that is enqueued. */
static void in_reduce(int id, const void *call)
{
    const struct mk_call_ncclAllReduce *c = call;
    const struct stand_comm *comm = c->comm;
    struct mk_pair_event e = {.kind = MK_PAIR_EV_PROFILED};
    (void)id;
    node_on(c->stream);
    note("nccl");
    if (!comm || !comm->id || !c->count)
        return;
    e.u.comm.id = comm->id;
    e.u.comm.rank = (uint32_t)comm->rank;
    e.u.comm.nranks = (uint32_t)comm->nranks;
    r.face->event(&e);
}

static void in_others(int id, const void *call)
{
    (void)call;
    note(r.face->name((enum mk_hook_id)id));
}

/* ---- the rank ---- */

void rank_start(const struct mk_adapt_options *options)
{
    static const struct hook_face *face;
    static uint64_t context = 7;
    face = face ? face : r.face;
    memset(&r, 0, sizeof(r));
    r.face = face;
    r.comm = (struct stand_comm){.rank = 1, .nranks = 2, .id = 99};
    r.s = (struct stand_stream){.id = 11, .ctx = &context};
    r.t = (struct stand_stream){.id = 12, .ctx = &context};
    stand_driver_error = stand_pointer_mode = stand_math_mode = 0;
    for (int id = 0; id < MK_HOOK_EVENTS; id++) {
        struct stand_record *s = id <= MK_HOOK_cublasSgemm_v2_64       ? stand_record_cublas(id)
                                 : id == MK_HOOK_cublasLtMatmul        ? stand_record_cublaslt(id)
                                 : id <= MK_HOOK_ncclCommGetAsyncError ? stand_record_nccl(id)
                                                                       : stand_record_cuda(id);
        s->result = 0;
        s->inside = in_others;
    }
    stand_record_cublas(MK_HOOK_cublasGemmEx)->inside = in_gemm;
    stand_record_cublaslt(MK_HOOK_cublasLtMatmul)->inside = in_lt;
    stand_record_nccl(MK_HOOK_ncclAllReduce)->inside = in_reduce;
    stand_record_nccl(MK_HOOK_ncclGroupStart)->inside = NULL;
    if (r.face->adapt(options))
        abort();
    memset(&before, 0, sizeof(before));
    did[0] = '\0';
}

void rank_start_fused(void)
{
    const struct mk_adapt_options options = {.ops = &ops, .counted = true, .witness = 1};
    rank_start(&options);
}

void rank_agree_comm(struct stand_comm *comm, uint64_t id, struct stand_stream *on)
{
    rank_agree_comm_as(comm, id, on, (struct mk_pair_config){.graph_only = 0});
}

void rank_agree_comm_as(struct stand_comm *comm, uint64_t id, struct stand_stream *on,
                        struct mk_pair_config config)
{
    struct mk_pair_event e = {.kind = MK_PAIR_EV_COMM_ID};
    struct mk_pair_comm_facts facts;
    comm->id = id;
    e.u.comm.id = id;
    e.u.comm.rank = (uint32_t)comm->rank;
    e.u.comm.nranks = (uint32_t)comm->nranks;
    CHECK(!r.face->event(&e));
    CHECK(!rank_reduce(comm, on, d_mem, d_mem, 1));
    CHECK(r.face->comm((uintptr_t)comm, &facts) && facts.ready && facts.id == id && facts.number == 1);
    e.kind = MK_PAIR_EV_COMM_AGREED;
    e.u.comm.handle = (uintptr_t)comm;
    config.max_bytes = 1 << 20;
    config.functions = 1u << MK_PAIR_ALLREDUCE;
    config.dtypes = 1u << MK_BFLOAT16 | 1u << MK_FLOAT16;
    config.nranks = (uint32_t)comm->nranks;
    e.u.comm.config = config;
    CHECK(!r.face->event(&e));
    e.kind = MK_PAIR_EV_COMM_SWITCH;
    e.u.comm.number = facts.number;
    e.u.comm.word = MK_PAIR_FUSED;
    CHECK(!r.face->event(&e));
    CHECK(r.face->comm((uintptr_t)comm, &facts) && facts.agreed && !facts.error);
}

void rank_agree(void)
{
    rank_start_fused();
    rank_agree_comm(&r.comm, 99, &r.s);
    DID("nccl rec NCCL:not-ready");
}

int rank_gemm(struct stand_stream *on, void *c)
{
    const float one = 1, zero = 0;
    /* y = x w^T: x is 4 x 16, w 8 x 16, as linear layers call it */
    return cublasGemmEx((char *)on - 1, 1, 0, 8, 4, 16, &one, w_mem, BF16, 16, a_mem, BF16, 16, &zero, c,
                        BF16, 8, 68, 99);
}

int rank_reduce(struct stand_comm *comm, struct stand_stream *on, const void *send, void *recv, size_t count)
{
    return ncclAllReduce(send, recv, count, NCCL_BF16, 0, comm, on);
}

void rank_begin_capture(struct stand_stream *s, uint64_t id)
{
    s->capturing = 1;
    s->capture = id;
    s->ndeps = 0;
}

void rank_did(int line, const char *want)
{
    struct mk_pair_counts now;
    char reasons[1024] = "", acts[512] = "";
    static const char *const names[MK_PAIR_ACTS] = {"",      "ORIGINAL", "G",    "NCCL",
                                                    "PLAIN", "OVERLAP",  "HOLD", "FAIL"};
    CHECK(r.face->count(&now));
    for (uint32_t i = 0; i < MK_PAIR_ACTS; i++)
        for (uint64_t n = before.act[i]; n < now.act[i]; n++)
            snprintf(acts + strlen(acts), sizeof(acts) - strlen(acts), " %s", names[i]);
    for (uint32_t i = 1; i < MK_PAIR_REASONS; i++)
        for (uint64_t n = before.reason[i]; n < now.reason[i]; n++)
            snprintf(reasons + strlen(reasons), sizeof(reasons) - strlen(reasons), ":%s", r.face->reason(i));
    before = now;
    char got[2600];
    snprintf(got, sizeof(got), "%s%s%s", did, *did || !*acts ? acts : acts + 1, reasons);
    did[0] = '\0';
    if (strcmp(got, want)) {
        fprintf(stderr, "line %d\n  did  %s\n  want %s\n", line, got, want);
        failures++;
    }
}
