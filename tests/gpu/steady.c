/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Many calls of GEMM+AllReduce with new inputs in each, every element of every result checked on the device
 * (steady.cu): ranks delay at random, each call is eager or the replay of one of two graphs of different shapes, as
 * each rank likes. What a call costs the host, too. One process a rank (mkrun).
 * Usage: steady [CALLS [LONGEST DELAY IN ms [ONE IN SO MANY CALLS IS DELAYED]]] */
#include "mk/cuda.h"
#include "mk/fused.h"
#include "tests/bench/gpu.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

extern const uint8_t mk_kernels_steady[];

struct args { /* as in steady.cu */
    uint64_t a, b, c, call, wrong;
    int32_t m, n, k, rank, ranks;
};
static const struct mk_cuda *cu;
static void *fill, *verify, *next;
static mk_comm_t comm;
static struct mk_comm_info info;
static double cost[1 << 16], launch_cost[1 << 16];
static int costs, launch_costs;

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static uint32_t rnd(uint64_t *s)
{
    *s = *s * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*s >> 33);
}

static void cuda(int err, const char *what)
{
    if (!err)
        return;
    mk_cuda_fail(err, what);
    fprintf(stderr, "%s\n", mk_last_error());
    exit(1);
}

static void *kernel(void *library, const char *name)
{
    void *k, *f;
    cuda(cu->library_kernel(&k, library, name), name);
    cuda(cu->kernel_function(&f, k), name);
    return f;
}

static void start(void *function, struct args *p, uint32_t grid, uint32_t block)
{
    struct mk_cu_launch l;
    void *params[] = {p};
    memset(&l, 0, sizeof(l));
    l.grid[0] = grid;
    l.block[0] = block;
    l.grid[1] = l.grid[2] = l.block[1] = l.block[2] = 1;
    l.stream = gpu_stream();
    cuda(cu->launch(&l, function, params, NULL), "launch");
}

#define P(x) ((void *)(uintptr_t)(x))
/* Inputs, the call, the check of every element, and on to the next number. */
static int step(void *arg, int i)
{
    struct args *p = arg;
    (void)i;
    const uint32_t grid = (uint32_t)gpu_sms() * 4;
    start(fill, p, grid, 256);
    const double t = now_us();
    const int ret = mk_gemm_allreduce(comm, MK_TN, p->m, p->n, p->k, MK_BFLOAT16, P(p->a), p->k, P(p->b),
                                      p->k, P(p->c), p->n, NULL, gpu_stream());
    if (costs < (int)(sizeof(cost) / sizeof(cost[0])))
        cost[costs++] = now_us() - t;
    start(verify, p, grid, 256);
    start(next, p, 1, 1);
    return ret;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static void tell_cost(const char *what, double *t, int n)
{
    qsort(t, (size_t)n, sizeof(*t), by_size);
    if (n)
        printf("rank %d: %s: host %.2f us a call (median of %d; 10 %% below %.2f, 10 %% above %.2f)\n",
               info.rank, what, t[n / 2], n, t[n / 10], t[n - 1 - n / 10]);
}

/* Every call of this rank; its own dice for the delays and for eager or replayed, shared ones for the shape. */
static int all_calls(struct args *shapes, struct gpu_graph **graph, int calls, double delay_ms, int one_in)
{
    uint64_t shared = 1, own = 77 + 1000u * (uint64_t)info.rank;
    int error = 0;
    for (int i = 0; i < calls && !error; i++) {
        const int s = (int)(rnd(&shared) % 2);
        if (rnd(&own) % (uint32_t)one_in == 0)
            usleep((useconds_t)(delay_ms * 1e3 * (rnd(&own) % 1000) / 1000));
        if (rnd(&own) % 2) {
            error = step(&shapes[s], 0);
        } else {
            const double t = now_us();
            gpu_replay(graph[s]);
            if (launch_costs < (int)(sizeof(launch_cost) / sizeof(launch_cost[0])))
                launch_cost[launch_costs++] = now_us() - t;
        }
        if (rnd(&own) % 16 == 0) {
            gpu_sync();
            mk_comm_get_async_error(comm, &error);
        }
    }
    gpu_sync();
    if (!error)
        mk_comm_get_async_error(comm, &error);
    return error;
}

int main(int argc, char **argv)
{
    const char *why = "";
    const int calls = argc > 1 ? atoi(argv[1]) : 10000, one_in = argc > 3 ? atoi(argv[3]) : 20;
    const double delay_ms = argc > 2 ? atof(argv[2]) : 20;
    struct args shapes[2] = {{.m = 300, .n = 2048, .k = 256}, {.m = 1000, .n = 1024, .k = 128}};
    struct gpu_graph *graph[2];
    void *library;
    cu = mk_cuda_open(&why);
    if (!cu || !gpu_open(&why)) {
        printf("skip: gpu.steady: %s\n", why);
        return 77;
    }
    if (mk_comm_init_env(&comm, NULL) || mk_comm_info(comm, &info)) {
        printf("FAIL: init: %s\n", mk_last_error());
        return 1;
    }
    cuda(cu->library_load(&library, mk_kernels_steady, NULL, NULL, 0, NULL, NULL, 0), "steady.cu");
    fill = kernel(library, "mk_steady_fill");
    verify = kernel(library, "mk_steady_check");
    next = kernel(library, "mk_steady_next");
    const gpu_ptr words = gpu_alloc(24);
    gpu_set(words, 0, 24);
    for (int i = 0; i < 2; i++) {
        struct args *p = &shapes[i];
        p->a = gpu_alloc((size_t)p->m * (size_t)p->k * 2);
        p->b = gpu_alloc((size_t)p->n * (size_t)p->k * 2);
        p->c = gpu_alloc((size_t)p->m * (size_t)p->n * 2);
        p->call = words;
        p->wrong = words + 8;
        p->rank = info.rank;
        p->ranks = info.nranks;
        if (step(p, 0)) { /* loads the kernels: not in a capture */
            printf("FAIL: %s\n", mk_last_error());
            return 1;
        }
    }
    gpu_sync();
    for (int i = 0; i < 2; i++)
        graph[i] = gpu_capture(step, &shapes[i], 1);
    costs = 0;
    const double begin = now_us();
    const int error = all_calls(shapes, graph, calls, delay_ms, one_in);
    const double seconds = (now_us() - begin) * 1e-6;
    uint64_t have[3];
    gpu_get(have, words, sizeof(have));
    tell_cost("eager", cost, costs);
    tell_cost("replay of a graph (4 kernels)", launch_cost, launch_costs);
    const bool all = have[0] == (uint64_t)calls + 2; /* the captures did not run */
    if (error)
        printf("FAIL rank %d: %s\n", info.rank, mk_last_error());
    if (have[1])
        printf("FAIL rank %d: %llu elements wrong, the first in call %llu at %llu\n", info.rank,
               (unsigned long long)have[1], (unsigned long long)((have[2] - 1) >> 32),
               (unsigned long long)((have[2] - 1) & 0xffffffff));
    printf("rank %d of %d (%d nodes): %llu of %d calls, %llu elements wrong, %.1f s\n", info.rank,
           info.nranks, info.nnodes, (unsigned long long)have[0] - 2, calls, (unsigned long long)have[1],
           seconds);
    mk_comm_destroy(comm);
    return error || have[1] || !all;
}
