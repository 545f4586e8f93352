/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* GEMM+AllReduce beside NCCL's all-reduce on a second stream: half of the ranks issue the one first, half the other, and
 * every round the other way round, with pauses between. Both finish, and both are right. One process a rank (mkrun;
 * NCCL_HOSTID differs on every rank). Usage: beside LIBNCCL [ROUNDS] */
#include "mk/cuda.h"
#include "mk/fused.h"
#include "tests/bench/gpu.h"
#include "tests/bench/nccl.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define M 2048
#define N 4096
#define K 512
#define COUNT (4u << 20)

static mk_comm_t comm;
static struct mk_comm_info info;
static void *nccl;
static gpu_ptr a, b, c, x;
static void *second;
static int failures;

static uint16_t bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return (uint16_t)(u >> 16);
}
static void set_all(gpu_ptr p, size_t n, float value)
{
    uint16_t *h = malloc(n * 2);
    for (size_t i = 0; i < n; i++)
        h[i] = bf16(value);
    gpu_put(p, h, n * 2);
    free(h);
}
static void all_are(gpu_ptr p, size_t n, float value, const char *what, int round)
{
    uint16_t *h = malloc(n * 2);
    gpu_get(h, p, n * 2);
    for (size_t i = 0; i < n; i++)
        if (h[i] != bf16(value)) {
            printf("FAIL rank %d, round %d: %s[%zu] is %g, not %g\n", info.rank, round, what, i,
                   gpu_value(h[i], MK_BFLOAT16), (double)value);
            failures++;
            break;
        }
    free(h);
}

static int fused(void)
{
    return mk_gemm_allreduce(comm, MK_TN, M, N, K, MK_BFLOAT16, (void *)(uintptr_t)a, K, (void *)(uintptr_t)b,
                             K, (void *)(uintptr_t)c, N, NULL, gpu_stream());
}

static int one_round(int round)
{
    const bool fused_first = (info.rank + round) % 2;
    int ret = 0;
    for (int i = 0; i < 2 && !ret; i++) {
        ret = (i == 0) == fused_first ? fused() : nccl_all_reduce(nccl, x, COUNT, MK_BFLOAT16, second);
        if (i == 0)
            usleep((useconds_t)((round * 7919 + info.rank * 977) % 3000));
    }
    return ret;
}

int main(int argc, char **argv)
{
    const char *why = "";
    const int rounds = argc > 2 ? atoi(argv[2]) : 200;
    const struct mk_cuda *cu = mk_cuda_open(&why);
    int error = 0;
    if (argc < 2) {
        fprintf(stderr, "usage: beside LIBNCCL [ROUNDS]\n");
        return 2;
    }
    if (!cu || !gpu_open(&why)) {
        printf("skip: gpu.beside: %s\n", why);
        return 77;
    }
    if (mk_comm_init_env(&comm, NULL) || mk_comm_info(comm, &info)) {
        printf("FAIL: init: %s\n", mk_last_error());
        return 1;
    }
    if (!nccl_open(argv[1], comm, info.rank, info.nranks, 0, &nccl, &why) ||
        cu->stream_create(&second, MK_CU_STREAM_NON_BLOCKING)) {
        printf("skip: gpu.beside: %s\n", why);
        return 77;
    }
    a = gpu_alloc((size_t)M * K * 2);
    b = gpu_alloc((size_t)N * K * 2);
    c = gpu_alloc((size_t)M * N * 2);
    x = gpu_alloc((size_t)COUNT * 2);
    set_all(a, (size_t)M * K, 0.5f);
    set_all(b, (size_t)N * K, (float)(info.rank + 1) / 4);
    set_all(x, COUNT, 0);
    /* The first call of NCCL connects the ranks on the host, and one of ours loads kernels: before there is anything in
     * flight that a rank could wait for. */
    if (nccl_all_reduce(nccl, x, COUNT, MK_BFLOAT16, second) || fused()) {
        printf("FAIL rank %d: first calls: %s\n", info.rank, mk_last_error());
        return 1;
    }
    gpu_sync();
    mk_comm_barrier(comm);
    for (int round = 0; round < rounds && !failures && !error; round++) {
        if (round % 4 == 0)
            set_all(x, COUNT, 1);
        error = one_round(round);
        if (round % 4 != 3 || error)
            continue;
        gpu_sync();
        mk_comm_get_async_error(comm, &error);
        float product = 1;
        for (int i = 0; i < 4; i++)
            product *= (float)info.nranks;
        all_are(c, (size_t)M * N, (float)(K * info.nranks * (info.nranks + 1)) / 16, "C", round);
        all_are(x, COUNT, product, "x", round);
        mk_comm_barrier(comm);
    }
    if (error)
        printf("FAIL rank %d: %s\n", info.rank, mk_last_error());
    printf("rank %d of %d (%d nodes): %d rounds beside NCCL %d, %d failures\n", info.rank, info.nranks,
           info.nnodes, rounds, nccl_version(), failures + (error != 0));
    nccl_close(nccl);
    mk_comm_destroy(comm);
    return failures || error;
}
