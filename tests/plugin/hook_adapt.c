/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Hooked calls through the adapter: what is launched, what the libraries are called for, and why.
 *
 * hook_adapt HOOKS.so */
#include "hook_adapt.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REDUCE(send, recv) rank_reduce(&r.comm, &r.s, send, recv, 32)
#define LEARN                                                                                                \
    do {                                                                                                     \
        rank_gemm(&r.s, c_mem);                                                                              \
        REDUCE(c_mem, c_mem);                                                                                \
        DID("gemm K rec ORIGINAL PLAIN:learning:unknown-site");                                              \
    } while (0)

static void no_kernels(void)
{
    const struct mk_adapt_options none = {.ops = NULL};
    rank_start(&none);
    stand_record_cublas(MK_HOOK_cublasGemmEx)->result = 14;
    stand_record_nccl(MK_HOOK_ncclAllReduce)->result = 3;
    stand_driver_error = 1; /* nobody asks */
    r.comm.error = 1;
    CHECK(rank_gemm(&r.s, c_mem) == 14);
    CHECK(REDUCE(c_mem, c_mem) == 3);
    DID("gemm nccl ORIGINAL NCCL:no-kernels:no-kernels");
    CHECK(!cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, &r.s, NULL, NULL));
    DID("cuLaunchKernel");
    for (int i = 0; i < 3; i++) {
        rank_gemm(&r.s, c_mem);
        REDUCE(c_mem, c_mem);
    }
    DID("gemm nccl gemm nccl gemm nccl ORIGINAL ORIGINAL ORIGINAL NCCL NCCL NCCL"
        ":no-kernels:no-kernels:no-kernels:no-kernels:no-kernels:no-kernels");
    for (int i = 0; i < 2; i++)
        ncclSend(d_mem, 4, NCCL_BF16, 0, &r.comm, &r.s);
    ncclGroupStart();
    REDUCE(c_mem, d_mem);
    ncclGroupEnd();
    DID("ncclSend ncclSend nccl ncclGroupEnd NCCL NCCL NCCL:point-to-point:point-to-point:no-kernels");
}

static void linear_and_reduce(void)
{
    rank_agree();
    LEARN;
    for (uint64_t i = 1; i <= 3; i++) {
        CHECK(!rank_gemm(&r.s, c_mem));
        CHECK(r.last_g.generation == i && r.last_g.stream == &r.s && !r.last_g.captured);
        CHECK(!REDUCE(c_mem, c_mem));
        DID("G+room K|| rec G OVERLAP");
        CHECK(r.last_k.generation == i && r.last_k.descriptor == r.last_g.descriptor);
        CHECK(r.last_k.comm == &r.comm && r.last_k.stream == &r.s && r.last_k.number == 1 + i);
        CHECK(r.last_k.send == c_mem && r.last_k.recv == c_mem && r.last_k.count == 32);
        CHECK(r.last_k.dtype == MK_BFLOAT16);
    }
    /* row-major, the weight is B */
    CHECK(r.gemm.m == 4 && r.gemm.n == 8 && r.gemm.k == 16 && r.gemm.layout == MK_TN);
    CHECK(r.gemm.a == (uintptr_t)a_mem && r.gemm.b == (uintptr_t)w_mem && r.gemm.c == (uintptr_t)c_mem);
}

static void something_between(void)
{
    rank_agree();
    LEARN;
    rank_gemm(&r.s, c_mem);
    cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, &r.s, NULL, NULL);
    REDUCE(c_mem, c_mem);
    DID("G+room cuLaunchKernel K rec G PLAIN:intruder");
    rank_gemm(&r.s, c_mem);
    cuLaunchKernelEx(NULL, NULL, NULL, NULL);
    REDUCE(c_mem, c_mem);
    DID("G+room cuLaunchKernelEx K rec G PLAIN:intruder");
    rank_gemm(&r.s, c_mem);
    cuMemcpyDtoDAsync_v2((uintptr_t)d_mem, (uintptr_t)c_mem, 64, &r.s);
    REDUCE(d_mem, d_mem);
    DID("G+room cuMemcpyDtoDAsync_v2 K rec G PLAIN:copy-between");
    rank_gemm(&r.s, c_mem);
    cuEventRecord(NULL, &r.s);
    REDUCE(c_mem, c_mem);
    DID("G+room cuEventRecord K rec G PLAIN:event-between");
    rank_gemm(&r.s, c_mem);
    rank_gemm(&r.s, d_mem);
    REDUCE(c_mem, c_mem);
    DID("G+room G+room K rec G G PLAIN:not-last-gemm");
}

static void what_it_sends(void)
{
    rank_agree();
    LEARN;
    rank_gemm(&r.s, c_mem);
    rank_reduce(&r.comm, &r.s, c_mem, c_mem, 16);
    DID("G+room K rec G PLAIN:slice");
    rank_gemm(&r.s, c_mem);
    rank_reduce(&r.comm, &r.s, c_mem + 8, c_mem + 8, 24);
    DID("G+room K rec G PLAIN:slice");
    rank_gemm(&r.s, c_mem);
    CHECK(!ncclAllReduce(c_mem, c_mem, 16, NCCL_FP32, 0, &r.comm, &r.s));
    DID("G+room nccl rec G NCCL:dtype");
    CHECK(!ncclAllReduce(c_mem, c_mem, 32, NCCL_BF16, 2, &r.comm, &r.s));
    DID("nccl rec NCCL:operator");
    rank_gemm(&r.s, c_mem);
    REDUCE(c_mem, a_mem); /* where G still reads */
    DID("G+room K rec G PLAIN:overlap-range");
    CHECK(!rank_reduce(&r.comm, &r.s, c_mem, c_mem, 0));
    DID("nccl"); /* of no elements: no operation */
}

static void two_streams(void)
{
    rank_agree();
    LEARN;
    rank_gemm(&r.s, c_mem);
    cuEventRecord(NULL, &r.s);
    cuStreamWaitEvent(&r.t, NULL, 0);
    rank_reduce(&r.comm, &r.t, c_mem, c_mem, 32);
    DID("G+room cuEventRecord cuStreamWaitEvent wait-event K rec G PLAIN:cross-stream");
    /* its operation before was on the other stream: G waits, K need not */
    rank_gemm(&r.s, c_mem);
    REDUCE(c_mem, c_mem);
    DID("wait-event G+room K|| rec G OVERLAP");
    /* the same handle for another stream: another id */
    r.s.id = 500;
    REDUCE(c_mem, c_mem);
    DID("wait-event K rec PLAIN:no-gemm");
}

static void groups(void)
{
    rank_agree();
    LEARN;
    rank_gemm(&r.s, c_mem);
    ncclGroupStart();
    CHECK(!REDUCE(c_mem, c_mem));
    DID("G+room G HOLD");
    CHECK(!ncclGroupEnd());
    DID("K|| rec ncclGroupEnd OVERLAP"); /* a group of one is that operation */
    rank_gemm(&r.s, c_mem);
    ncclGroupStart();
    ncclGroupStart();
    REDUCE(c_mem, c_mem);
    ncclGroupEnd();
    ncclSend(d_mem, 4, NCCL_BF16, 0, &r.comm, &r.s);
    DID("G+room ncclGroupEnd ncclSend G NCCL HOLD:point-to-point");
    CHECK(!ncclGroupEnd());
    DID("wait-event K beside ncclGroupEnd join rec PLAIN:group");
    ncclGroupStart();
    REDUCE(c_mem, c_mem);
    rank_reduce(&r.comm, &r.t, d_mem, d_mem, 32);
    ncclGroupEnd();
    DID("wait-event K beside wait-event K beside ncclGroupEnd join rec join rec PLAIN PLAIN HOLD "
        "HOLD:group:group");
    /* NCCL's part of a group is recorded after its end */
    ncclGroupStart();
    ncclAllReduce(c_mem, c_mem, 16, NCCL_FP32, 0, &r.comm, &r.s);
    DID("wait-event nccl NCCL:dtype");
    ncclGroupEnd();
    DID("ncclGroupEnd rec");
    ncclGroupStart();
    REDUCE(c_mem, c_mem);
    CHECK(!ncclGroupSimulateEnd(NULL));
    DID("ncclGroupSimulateEnd PLAIN HOLD:not-last-gemm");
    /* an error of K is the group's */
    r.k_error = MK_ERR_CUDA;
    ncclGroupStart();
    REDUCE(c_mem, c_mem);
    CHECK(ncclGroupEnd() == 3 && r.failed == MK_ERR_CUDA && r.told);
    DID("K! fail ncclGroupEnd PLAIN HOLD:not-last-gemm");
}

static void *other_thread(void *arg)
{
    (void)arg;
    REDUCE(c_mem, c_mem);
    return NULL;
}

static void threads_have_their_own_groups(void)
{
    pthread_t id;
    rank_agree();
    LEARN;
    rank_gemm(&r.s, c_mem);
    ncclGroupStart();
    if (pthread_create(&id, NULL, other_thread, NULL))
        abort();
    pthread_join(id, NULL);
    DID("G+room K|| rec G OVERLAP");
    ncclGroupEnd();
    DID("ncclGroupEnd");
}

static void two_communicators(void)
{
    struct stand_comm other = {.rank = 0, .nranks = 4}, nobody = other, alone = {.rank = 0, .nranks = 1},
                      gone = {.error = 4};
    rank_agree();
    LEARN;
    rank_gemm(&r.s, c_mem);
    rank_reduce(&nobody, &r.s, c_mem, c_mem, 32);
    DID("G+room nccl rec G NCCL:not-ready");
    rank_agree_comm(&other, 77, &r.s);
    DID("nccl rec NCCL:not-ready");
    rank_gemm(&r.s, c_mem);
    rank_reduce(&other, &r.s, c_mem, c_mem, 32);
    DID("G+room K|| rec G OVERLAP");
    CHECK(r.last_k.comm == &other);
    rank_reduce(&alone, &r.s, c_mem, c_mem, 32);
    DID("nccl NCCL:one-rank");
    rank_reduce(&gone, &r.s, c_mem, c_mem, 32); /* NCCL says neither rank nor size */
    DID("nccl NCCL:unknown-communicator");
    CHECK(!ncclAllReduce(c_mem, c_mem, 32, NCCL_BF16, 0, NULL, &r.s));
    DID("nccl");
}

static void failing_g_and_k(void)
{
    rank_agree();
    LEARN;
    r.g_error = MK_ERR_CUDA;
    CHECK(!rank_gemm(&r.s, c_mem));
    REDUCE(c_mem, c_mem);
    DID("G! gemm K rec G PLAIN:original-gemm:launch-failed");
    r.g_error = 0;
    rank_gemm(&r.s, c_mem); /* not a second time */
    DID("gemm ORIGINAL:launch-failed");
    r.k_error = MK_ERR_CUDA;
    CHECK(REDUCE(c_mem, c_mem) == 3);
    DID("K! fail PLAIN:original-gemm");
    CHECK(r.failed == MK_ERR_CUDA && r.told);
    r.k_error = 0;
    CHECK(REDUCE(c_mem, c_mem) == 3);
    DID("FAIL:error");
    int error = 0;
    CHECK(!ncclCommGetAsyncError(&r.comm, &error) && error == 3);
    CHECK(!ncclCommDestroy(&r.comm));
    DID("ncclCommGetAsyncError end ncclCommDestroy");
}

/* A launch that has failed since: NCCL's asynchronous error, and that of the next call, whichever asks first. */
static void failing_later(void)
{
    int error = 0;
    rank_agree();
    LEARN;
    r.later_error = MK_ERR_NET;
    CHECK(REDUCE(c_mem, c_mem) != 0);
    DID("fail FAIL:error");
    CHECK(r.failed == MK_ERR_NET && r.told);
    rank_agree();
    CHECK(!ncclCommGetAsyncError(&r.comm, &error) && !error);
    r.later_error = MK_ERR_NET;
    CHECK(!ncclCommGetAsyncError(&r.comm, &error) && error);
    CHECK(r.failed == MK_ERR_NET && r.told);
    DID("ncclCommGetAsyncError ncclCommGetAsyncError fail");
}

static void what_the_original_returns(void)
{
    rank_agree();
    stand_record_cublas(MK_HOOK_cublasGemmEx)->result = 13;
    CHECK(rank_gemm(&r.s, c_mem) == 13);
    DID("gemm ORIGINAL:unknown-site");
    REDUCE(c_mem, c_mem); /* what failed is no GEMM before it */
    DID("K rec PLAIN:no-gemm");
    stand_record_cublas(MK_HOOK_cublasGemmEx)->result = 0;
    stand_record_nccl(MK_HOOK_ncclAllReduce)->result = 5;
    CHECK(ncclAllReduce(c_mem, c_mem, 32, NCCL_FP32, 0, &r.comm, &r.s) == 5);
    DID("nccl NCCL:dtype");
    /* without a record, an error of the order */
    stand_record_nccl(MK_HOOK_ncclAllReduce)->result = 0;
    r.record_error = MK_ERR_CUDA;
    CHECK(REDUCE(c_mem, c_mem) == 0);
    CHECK(REDUCE(c_mem, c_mem) == 3);
    DID("K rec fail PLAIN FAIL:no-gemm:error");
}

static void aborts_and_ends(void)
{
    struct mk_pair_comm_facts facts;
    rank_agree();
    LEARN;
    CHECK(!ncclCommAbort(&r.comm));
    DID("fail end ncclCommAbort");
    CHECK(r.aborts == 1 && r.failed == MK_ERR_ABORTED && !r.told); /* peers may need nothing more of it */
    CHECK(r.failed == MK_ERR_ABORTED && !r.face->comm((uintptr_t)&r.comm, &facts));
    rank_agree();
    CHECK(!ncclCommRevoke(&r.comm, 0));
    DID("fail ncclCommRevoke");
    CHECK(r.aborts == 1 && r.failed == MK_ERR_ABORTED && r.told); /* it stays, and they would wait for it */
    CHECK(REDUCE(c_mem, c_mem) == 6);
    DID("FAIL:error");
    /* an error from elsewhere: a dead peer */
    rank_agree();
    struct mk_pair_event e = {.kind = MK_PAIR_EV_COMM_ERROR};
    e.u.comm.handle = (uintptr_t)&r.comm;
    e.u.comm.error = MK_ERR_PEER;
    CHECK(!r.face->event(&e) && r.failed == MK_ERR_PEER && r.told);
    CHECK(REDUCE(c_mem, c_mem) == 6);
    DID("fail FAIL:error");
}

/* A handle that is made again, without its end having been seen; one that does not block. */
static void handles_come_again(void)
{
    struct mk_hook_nccl_id id;
    struct mk_pair_comm_facts facts;
    int32_t config[8] = {0, 0, 0, 0, 0 /* blocking */, 0, 0, 0};
    void *out = &r.comm;
    memset(&id, 0, sizeof(id));
    rank_agree();
    CHECK(!ncclCommInitRank(&out, 2, id, 1));
    CHECK(!r.face->comm((uintptr_t)&r.comm, &facts));
    REDUCE(c_mem, c_mem);
    DID("ncclCommInitRank end nccl rec NCCL:not-ready");
    CHECK(!ncclCommInitRankConfig(&out, 2, id, 1, config));
    REDUCE(c_mem, c_mem);
    DID("ncclCommInitRankConfig end nccl NCCL:nonblocking");
    CHECK(!ncclCommSplit(&r.comm, 0, 0, &out, NULL));
    REDUCE(c_mem, c_mem);
    DID("ncclCommSplit end nccl rec NCCL:not-ready");
    stand_record_nccl(MK_HOOK_ncclCommSplit)->result = 7; /* in progress */
    CHECK(ncclCommSplit(&r.comm, 0, 0, &out, NULL) == 7);
    REDUCE(c_mem, c_mem);
    DID("ncclCommSplit end nccl NCCL:nonblocking");
}

/* A capture: nothing is counted there, its edges are the proof. */
static void captured(void)
{
    struct stand_node other = {0};
    rank_agree();
    LEARN;
    rank_begin_capture(&r.s, 5);
    rank_gemm(&r.s, c_mem);
    CHECK(r.last_g.captured && r.last_g.descriptor == MK_PAIR_OWN_DESCRIPTOR);
    REDUCE(c_mem, c_mem);
    DID("wait-external G+room K|| rec G OVERLAP");
    CHECK(r.last_k.captured && !r.last_k.reduce && r.last_k.generation == r.last_g.generation);
    rank_gemm(&r.s, c_mem);
    cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, &r.s, NULL, NULL);
    r.s.deps[0] = &other; /* that kernel's node */
    REDUCE(c_mem, c_mem);
    DID("G+room cuLaunchKernel K rec G PLAIN:intruder");
    /* beside G's node also one that came before G: it is taken out; one that G's depends on was needless anyway */
    rank_gemm(&r.s, c_mem);
    struct stand_node *g = r.s.deps[0];
    r.s.deps[r.s.ndeps++] = g->deps[0];
    REDUCE(c_mem, c_mem);
    DID("G+room K|| rec G OVERLAP");
    CHECK(r.last_k.reduce);
}

/* Under MK_FUSE=graph a capture that has become invalid on this rank is NCCL's on no rank. */
static void invalid_capture(void)
{
    rank_start_fused();
    rank_agree_comm_as(&r.comm, 99, &r.s, (struct mk_pair_config){.graph_only = 1});
    DID("nccl rec NCCL:not-ready");
    REDUCE(c_mem, c_mem);
    DID("nccl rec NCCL:graph-only");
    rank_begin_capture(&r.s, 5);
    REDUCE(c_mem, c_mem);
    DID("wait-external K rec PLAIN:no-gemm");
    r.s.capturing = 2;
    r.k_error = MK_ERR_CUDA;
    CHECK(REDUCE(c_mem, c_mem) != 0);
    DID("wait-external K! fail PLAIN:no-gemm");
}

/* What the driver does not say makes K plain and leaves a GEMM alone; it never makes a collective NCCL's. */
static void unknown_streams(void)
{
    rank_agree();
    LEARN;
    stand_driver_error = 1;
    rank_gemm(&r.s, c_mem);
    REDUCE(c_mem, c_mem);
    DID("gemm wait-event K rec ORIGINAL PLAIN:original-gemm:shape");
    stand_driver_error = 0;
    r.cannot = true;
    rank_gemm(&r.s, c_mem);
    DID("gemm ORIGINAL:shape");
    r.cannot = false;
    r.late = true;
    rank_gemm(&r.s, c_mem);
    REDUCE(c_mem, c_mem);
    DID("wait-event G+room wait-event K rec G PLAIN:late");
}

static void agree_with(bool proved_only, bool counted)
{
    struct mk_adapt_options options = {.witness = 1, .proved_only = proved_only, .counted = counted};
    options.ops = rank_ops();
    rank_start(&options);
    rank_agree_comm(&r.comm, 99, &r.s);
    DID("nccl rec NCCL:not-ready");
    LEARN;
}

/* Where not all that enqueues is counted, nothing is proved by counters. */
static void without_counters(void)
{
    agree_with(false, false);
    rank_gemm(&r.s, c_mem);
    REDUCE(c_mem, c_mem);
    DID("G K rec G PLAIN:no-proof");
}

/* And then a GEMM stays the original, if that is wished, but not in a capture. */
static void proved_only(void)
{
    agree_with(true, false);
    rank_gemm(&r.s, c_mem);
    REDUCE(c_mem, c_mem);
    DID("gemm K rec ORIGINAL PLAIN:original-gemm:no-proof");
    rank_begin_capture(&r.s, 5);
    rank_gemm(&r.s, c_mem);
    REDUCE(c_mem, c_mem);
    DID("wait-external G+room K|| rec G OVERLAP");
    agree_with(true, true);
    rank_gemm(&r.s, c_mem);
    REDUCE(c_mem, c_mem);
    DID("G+room K|| rec G OVERLAP");
}

static void scalars_and_modes(void)
{
    const float one = 1, two = 2, zero = 0;
    rank_agree();
    LEARN;
    cublasGemmEx((char *)&r.s - 1, 1, 0, 8, 4, 16, &one, w_mem, BF16, 16, a_mem, BF16, 16, &two, c_mem, BF16,
                 8, 68, 99);
    DID("gemm ORIGINAL:scalars");
    cublasGemmEx((char *)&r.s - 1, 1, 0, 8, 4, 16, &two, w_mem, BF16, 16, a_mem, BF16, 16, &zero, c_mem, BF16,
                 8, 68, 99);
    DID("gemm ORIGINAL:scalars");
    cublasGemmEx((char *)&r.s - 1, 1, 0, 8, 4, 16, NULL, w_mem, BF16, 16, a_mem, BF16, 16, &zero, c_mem, BF16,
                 8, 68, 99);
    DID("gemm ORIGINAL:shape");
    cublasGemmEx((char *)&r.s - 1, 1, 0, 8, 4, 16, &one, w_mem, FP16, 16, a_mem, FP16, 16, &zero, c_mem, FP16,
                 8, 64, 99);
    DID("gemm ORIGINAL:compute-type");
    stand_pointer_mode = 1;
    rank_gemm(&r.s, c_mem); /* alpha is not looked at */
    DID("gemm ORIGINAL:scalars");
    stand_pointer_mode = 0;
    stand_math_mode = 2;
    rank_gemm(&r.s, c_mem);
    DID("gemm ORIGINAL:compute-type");
    stand_math_mode = 16;
    rank_gemm(&r.s, c_mem);
    DID("G+room G");
    cublasSgemm_v2((char *)&r.s - 1, 0, 0, 8, 4, 16, &one, NULL, 8, NULL, 16, &zero, NULL, 8);
    DID("cublasSgemm_v2 ORIGINAL:gemm-dtype");
    REDUCE(c_mem, c_mem); /* that one came between */
    DID("K rec PLAIN:not-last-gemm");
}

static void ends_off(struct stand_comm *comm)
{
    struct mk_pair_event e = {.kind = MK_PAIR_EV_COMM_OFF};
    e.u.comm.handle = (uintptr_t)comm;
    e.u.comm.reason = MK_PAIR_MEMBER;
    CHECK(!r.face->event(&e));
}

#define SGEMM() cublasSgemm_v2((char *)&r.s - 1, 0, 0, 8, 4, 16, &one, NULL, 8, NULL, 16, &one, NULL, 8)

/* Calls that are passed on without being looked at again still come between a GEMM and its collective, and are counted. */
static void passed_on(void)
{
    static struct stand_comm other = {.rank = 0, .nranks = 2, .id = 98};
    const float one = 1;
    rank_agree();
    LEARN;
    rank_reduce(&other, &r.t, d_mem, d_mem, 32);
    DID("nccl rec NCCL:not-ready");
    ends_off(&other);
    for (int i = 0; i < 3; i++) {
        rank_reduce(&other, &r.t, d_mem, d_mem, 32);
        ncclSend(d_mem, 4, NCCL_BF16, 0, &other, &r.t);
        SGEMM();
        DID("nccl ncclSend cublasSgemm_v2 ORIGINAL NCCL NCCL:point-to-point:member:gemm-dtype");
        rank_gemm(&r.s, c_mem);
        REDUCE(c_mem, c_mem);
        DID(i ? "wait-event G+room K|| rec G OVERLAP" : "G+room K|| rec G OVERLAP"); /* i: after a group */
        rank_gemm(&r.s, c_mem);
        SGEMM();
        REDUCE(c_mem, c_mem);
        DID("G+room cublasSgemm_v2 K rec ORIGINAL G PLAIN:not-last-gemm:gemm-dtype");
        rank_gemm(&r.s, c_mem);
        rank_reduce(&other, &r.s, c_mem, c_mem, 32);
        REDUCE(c_mem, c_mem);
        DID("G+room nccl K rec G NCCL PLAIN:member:not-last-gemm");
        ncclGroupStart();
        rank_reduce(&other, &r.t, d_mem, d_mem, 32);
        REDUCE(d_mem, d_mem); /* held: K beside NCCL's part */
        ncclGroupEnd();
        DID("nccl K beside ncclGroupEnd join rec NCCL PLAIN HOLD:member:group");
    }
    /* Its handle comes again: a new communicator, of which nothing is known yet. */
    CHECK(!ncclCommDestroy(&other));
    rank_reduce(&other, &r.t, d_mem, d_mem, 32);
    DID("end ncclCommDestroy nccl rec NCCL:not-ready");
    ends_off(&other);
    rank_reduce(&other, &r.t, d_mem, d_mem, 32);
    DID("nccl NCCL:member");
    struct mk_pair_event e = {.kind = MK_PAIR_EV_COMM_ERROR};
    e.u.comm.handle = (uintptr_t)&other;
    e.u.comm.error = MK_ERR_PEER;
    CHECK(!r.face->event(&e));
    CHECK(rank_reduce(&other, &r.t, d_mem, d_mem, 32) == 6);
    DID("fail FAIL:error");
}

/* As long as no communicator could fuse no GEMM is looked at twice; from then on all are. */
static void idle(void)
{
    rank_start_fused();
    for (int i = 0; i < 3; i++)
        rank_gemm(&r.s, c_mem);
    DID("gemm gemm gemm ORIGINAL ORIGINAL ORIGINAL:unknown-site:idle:idle");
    rank_agree_comm(&r.comm, 99, &r.s);
    DID("nccl rec NCCL:not-ready");
    LEARN;
    rank_gemm(&r.s, c_mem);
    REDUCE(c_mem, c_mem);
    DID("G+room K|| rec G OVERLAP");
    CHECK(!ncclCommDestroy(&r.comm));
    rank_gemm(&r.s, c_mem);
    rank_gemm(&r.s, c_mem);
    DID("end ncclCommDestroy gemm gemm ORIGINAL ORIGINAL:unknown-site:idle");
    rank_agree_comm(&r.comm, 99, &r.s);
    DID("nccl rec NCCL:not-ready");
    REDUCE(c_mem, c_mem); /* which GEMM came last was not told */
    DID("K rec PLAIN:not-last-gemm");
    LEARN;
}

/* Set-up ends 'off' while what K needs is begun: nobody is left to give it up but who began it. */
static int offs, begun;

static void off(void *comm, uint64_t id)
{
    CHECK(comm == &r.comm && id == 99);
    offs++;
    begun = 0;
}

static int prepare(void *comm, void *stream, uint64_t id, int rank, int nranks)
{
    struct mk_pair_event e = {.kind = MK_PAIR_EV_COMM_OFF};
    CHECK(comm == &r.comm && stream == &r.s && id == 99 && rank == 1 && nranks == 2);
    e.u.comm.handle = (uintptr_t)comm;
    e.u.comm.reason = MK_PAIR_MEMBER;
    CHECK(!r.face->event(&e) && offs == 1);
    begun = 1;
    return MK_ERR_AGAIN;
}

static void off_meanwhile(void)
{
    struct mk_fuse_ops ops = *rank_ops();
    const struct mk_adapt_options options = {.ops = &ops, .witness = 1};
    struct mk_pair_event e = {.kind = MK_PAIR_EV_COMM_ID};
    ops.prepare = prepare;
    ops.off = off;
    rank_start(&options);
    e.u.comm.id = r.comm.id;
    e.u.comm.rank = 1;
    e.u.comm.nranks = 2;
    CHECK(!r.face->event(&e));
    REDUCE(c_mem, c_mem);
    CHECK(offs == 2 && !begun);
    REDUCE(c_mem, c_mem);
    CHECK(offs == 2);
    DID("nccl rec nccl NCCL NCCL:not-ready:member");
    e.kind = MK_PAIR_EV_COMM_OFF; /* of nobody */
    e.u.comm.handle = 77;
    e.u.comm.reason = MK_PAIR_MEMBER;
    CHECK(r.face->event(&e) && offs == 2);
    rank_agree(); /* what was agreed on is not off any more */
    e.u.comm.handle = (uintptr_t)&r.comm;
    CHECK(r.face->event(&e));
    DID("");
}

int main(int argc, char **argv)
{
    if (argc != 2 || setenv("MK_FUSE", "on", 1))
        return 2;
    r.face = hook_open(argv[1]);
    no_kernels();
    linear_and_reduce();
    something_between();
    what_it_sends();
    two_streams();
    groups();
    threads_have_their_own_groups();
    two_communicators();
    failing_g_and_k();
    failing_later();
    what_the_original_returns();
    aborts_and_ends();
    handles_come_again();
    captured();
    invalid_capture();
    unknown_streams();
    without_counters();
    proved_only();
    off_meanwhile();
    scalars_and_modes();
    passed_on();
    idle();
    lt_cases();
    time_cases();
    check_cases();
    fprintf(stderr, "%d failures\n", failures);
    return failures != 0;
}
