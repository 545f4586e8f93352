/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Eager pairs under LD_PRELOAD, proved by the count of what is enqueued: a program that meets the driver when a runtime within
 * cuBLAS and NCCL opens it. Nothing of that runtime's is hooked; it is counted only.
 *
 * hook_eager HOOKS.so FOLDER, under LD_PRELOAD */
#include "hook_adapt.h"
#include "hook_driver.h"
#include "hook_runtime.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* hook_adapt_rank.c is made for programs that are linked with the driver. */
int stand_driver_error;
static struct stand_record *(*cuda_record)(int);
struct stand_record *stand_record_cuda(int id)
{
    return cuda_record(id);
}

static void *(*proc)(const char *, uint64_t);
typedef int (*memset_fn)(uint64_t, unsigned char, size_t, void *);
static memset_fn kernel; /* stands for any launch */
static int (*graph)(void *, void *);
static void (*inner_gemm)(int, const void *), (*inner_reduce)(int, const void *);

static void in_gemm(int id, const void *call)
{
    inner_gemm(id, call);
    kernel(0, 0, 0, NULL);
}
static void in_reduce(int id, const void *call)
{
    inner_reduce(id, call);
    kernel(0, 0, 0, NULL);
}

/* As rank_agree, but nobody says that all is counted. */
static void agree(bool deterministic)
{
    const struct mk_adapt_options options = {
        .ops = rank_ops(), .witness = 1, .proved_only = true, .deterministic = deterministic};
    rank_start(&options);
    struct stand_record *gemm = stand_record_cublas(MK_HOOK_cublasGemmEx);
    struct stand_record *reduce = stand_record_nccl(MK_HOOK_ncclAllReduce);
    stand_record_cuda(MK_HOOK_cuGraphLaunch)->inside = NULL;
    inner_gemm = gemm->inside;
    inner_reduce = reduce->inside;
    gemm->inside = in_gemm;
    reduce->inside = in_reduce;
    rank_agree_comm(&r.comm, 99, &r.s);
}

#define GEMM() CHECK(!rank_gemm(&r.s, c_mem))
#define REDUCE() CHECK(!rank_reduce(&r.comm, &r.s, c_mem, c_mem, 32))
#define PAIR()                                                                                               \
    do {                                                                                                     \
        GEMM();                                                                                              \
        REDUCE();                                                                                            \
    } while (0)

static void before_the_proof(void)
{
    agree(false);
    DID("nccl rec NCCL:not-ready");
    CHECK(!r.face->counting()); /* no GEMM was seen */
    PAIR();
    DID("gemm K rec ORIGINAL PLAIN:learning:unknown-site");
    CHECK(r.face->counting());
    PAIR();
    DID("G+room K|| rec G OVERLAP");
}

static void nothing_between(void)
{
    agree(false);
    DID("nccl rec NCCL:not-ready");
    PAIR();
    DID("gemm K rec ORIGINAL PLAIN:learning:unknown-site");
    for (uint64_t i = 1; i <= 3; i++) {
        PAIR();
        DID("G+room K|| rec G OVERLAP");
        CHECK(r.last_k.overlap && r.last_k.generation == i);
    }
}

static void *other_thread(void *arg)
{
    (void)arg;
    kernel(0, 0, 0, NULL);
    return NULL;
}

static void something_between(void)
{
    pthread_t id;
    GEMM();
    kernel(0, 0, 0, NULL);
    REDUCE();
    DID("G+room K rec G PLAIN:intruder");
    CHECK(!strcmp(r.face->last(), "cuMemsetD8Async"));
    PAIR();
    DID("G+room K|| rec G OVERLAP");
    GEMM();
    if (pthread_create(&id, NULL, other_thread, NULL))
        abort();
    pthread_join(id, NULL);
    REDUCE();
    DID("G+room K rec G PLAIN:intruder");
    /* Before the GEMM it is in nobody's way. */
    kernel(0, 0, 0, NULL);
    PAIR();
    DID("G+room K|| rec G OVERLAP");
    /* A graph, which could hold a collective of this communicator: G waits for that. */
    graph(NULL, NULL);
    PAIR();
    DID("G+room K|| rec G OVERLAP");
    rank_begin_capture(&r.t, 5);
    r.t.ndeps = 0;
    rank_gemm(&r.t, c_mem);
    rank_reduce(&r.comm, &r.t, c_mem, c_mem, 32);
    DID("wait-external G+room K|| rec G OVERLAP");
    r.t.capturing = 0;
    PAIR();
    DID("wait-event G+room K|| rec G OVERLAP");
    PAIR();
    DID("G+room K|| rec G OVERLAP"); /* all launches of graphs are seen: none came since */
    graph(NULL, NULL);
    PAIR();
    DID("wait-event G+room K|| rec G OVERLAP");
}

/* A GEMM whose pair never overlaps is the original's again; and so is one that no collective follows. */
static void gives_up(void)
{
    agree(false);
    PAIR();
    DID("nccl rec gemm K rec ORIGINAL NCCL PLAIN:not-ready:learning:unknown-site");
    for (int i = 0; i < 4; i++) {
        GEMM();
        kernel(0, 0, 0, NULL);
        REDUCE();
        DID("G+room K rec G PLAIN:intruder");
    }
    PAIR();
    DID("gemm K rec ORIGINAL PLAIN:original-gemm:unfollowed");
    agree(false);
    PAIR();
    DID("nccl rec gemm K rec ORIGINAL NCCL PLAIN:not-ready:learning:unknown-site");
    for (int i = 0; i < 5; i++)
        GEMM();
    DID("G+room G+room G+room G+room gemm ORIGINAL G G G G:unfollowed");
}

static void ended(void)
{
    char text[160];
    agree(false);
    PAIR();
    DID("nccl rec gemm K rec ORIGINAL NCCL PLAIN:not-ready:learning:unknown-site");
    GEMM();
    CHECK(proc("cuInternalThing", 0) && !r.face->counting() && r.face->why(text, sizeof(text)));
    REDUCE();
    DID("G+room K rec G PLAIN:no-proof");
    PAIR();
    DID("gemm K rec ORIGINAL PLAIN:original-gemm:no-proof");
    agree(true);
    DID("nccl rec NCCL:not-ready");
    PAIR();
    DID("G K rec G PLAIN:no-proof"); /* the same bits as overlapped */
}

int main(int argc, char **argv)
{
    char path[4096];
    void *(*open)(const char *);
    if (argc != 3)
        return 2;
    r.face = hook_open(argv[1]);
    snprintf(path, sizeof(path), "%s/libcudart_stand.so", argv[2]);
    void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    *(void **)&open = dlsym(so, "runtime_open");
    *(void **)&proc = dlsym(so, "runtime_proc");
    snprintf(path, sizeof(path), "%s/libcuda.so.1", argv[2]);
    void *cuda = open(path);
    *(void **)&cuda_record = dlsym(cuda, "stand_record_cuda");
    *(void **)&kernel = proc("cuMemsetD8Async", 2);
    *(void **)&graph = proc("cuGraphLaunch", 0);
    if (!cuda_record || !kernel || !graph)
        return 1;
    before_the_proof();
    nothing_between();
    something_between();
    gives_up();
    ended();
    return failures != 0;
}
