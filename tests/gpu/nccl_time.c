/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* How long NCCL's all-reduce takes over the plugin: against the rate of a paced link, and against NCCL's own sockets, in
 * pairs of one communicator of each, in turn. A sample is the slowest rank's. Rank 0 prints; whether a target is met is
 * said, not an error. */
#include "mk/err.h"
#include "mk/param.h"
#include "tests/bench/bench.h"
#include "tests/gpu/nccl.h"
#include <stdio.h>
#include <stdlib.h>

#define P(x) ((void *)(uintptr_t)(x))
#define WARM 3

struct timed {
    struct job *j;
    void *comm;
    size_t bytes;
};

static int reduce(void *arg, int i)
{
    const struct timed *t = arg;
    (void)i;
    return t->j->nccl.all_reduce(P(t->j->send), P(t->j->recv), t->bytes / 4, NCCL_UINT32, NCCL_SUM, t->comm,
                                 gpu_stream());
}

/* Microseconds of one all-reduce, of `calls` in a row; negative: failed. */
static double sample(struct job *j, void *comm, size_t bytes, int calls)
{
    struct timed t = {j, comm, bytes};
    double mine, all[64], most = 0;
    if (mk_boot_barrier(j->boot))
        return fail(j, "the other ranks: %s", mk_last_error()), -1;
    mine = gpu_time_us(reduce, &t, calls) / calls;
    if (mk_boot_allgather(j->boot, &mine, all, sizeof(mine)))
        return fail(j, "the other ranks: %s", mk_last_error()), -1;
    for (int r = 0; r < j->nranks; r++)
        most = all[r] > most ? all[r] : most;
    return most;
}

static int calls_of(size_t bytes)
{
    return bytes <= 1u << 20 ? 20 : bytes <= 16u << 20 ? 4 : 1;
}

/* The contents come through once, all of them, before anything is timed. */
static int proven(struct job *j, void *comm, size_t bytes)
{
    const struct want sum = {.kind = WANT_SUM};
    struct timed t = {j, comm, bytes};
    contents(j, bytes / 4, bytes / 4);
    const int error = reduce(&t, 0);
    if (error)
        return fail(j, "all_reduce of %zu bytes: %s; %s", bytes, j->nccl.error_string(error),
                    j->nccl.last_error(comm));
    if (await(j, comm, 40, "all_reduce"))
        return 1;
    check(j, j->recv, bytes / 4, &sum, "all_reduce", false);
    j->call++;
    return meet(j, "all_reduce");
}

int show_rate(struct job *j, double plugin_us)
{
    static const size_t sizes[] = {8, 65536, 1u << 20, 16u << 20, 64u << 20, 256u << 20};
    struct mk_settings s;
    void *comm = mk_settings_load(&s, true) ? NULL : comm_new(j, "rate");
    if (!comm)
        return 1;
    for (int i = 0; i < 6; i++) {
        struct bench_samples us = {.n = 0};
        if (proven(j, comm, sizes[i]))
            return 1;
        for (int k = -WARM; k < 11; k++) {
            const double v = sample(j, comm, sizes[i], calls_of(sizes[i]));
            if (v < 0)
                return 1;
            if (k >= 0)
                bench_add(&us, v);
        }
        const struct bench_stat t = bench_stat_of(&us);
        /* what a link carries in one direction, in Gbit/s */
        const double carried = (double)sizes[i] * 2 * (j->nranks - 1) / j->nranks * 8e-3 / t.median;
        if (j->rank)
            continue;
        printf("all_reduce %9zu bytes: %10.1f us (%.1f to %.1f), %.1f Gbit/s a link", sizes[i], t.median,
               t.min, t.max, carried);
        if (s.loop_gbps > 0 && sizes[i] >= 16u << 20)
            printf(", %.3f of the paced %.0f (>= 0.90: %s)", carried / s.loop_gbps, s.loop_gbps,
                   carried >= 0.9 * s.loop_gbps ? "met" : "NOT met");
        if (sizes[i] == 8 && plugin_us > 0)
            printf(", 2 x %.2f us + 15 = %.1f us (%s)", plugin_us, 2 * plugin_us + 15,
                   t.median <= 2 * plugin_us + 15 ? "met" : "NOT met");
        printf("\n");
        fflush(stdout);
    }
    comm_end(j, comm, "rate");
    return j->failures != 0;
}

int show_pairs(struct job *j, int pairs)
{
    static const size_t sizes[] = {8, 64, 512, 4096, 32768, 65536, 1u << 20, 32u << 20, 64u << 20};
    void *comm[2];
    for (int i = 0; i < 2; i++) { /* NCCL_NET is read by every communicator */
        setenv("NCCL_NET", i ? "Socket" : "mKernel", 1);
        comm[i] = comm_new(j, i ? "sockets" : "the plugin");
        if (!comm[i] || proven(j, comm[i], 8) || proven(j, comm[i], 64u << 20))
            return 1;
    }
    for (int i = 0; i < 9; i++) {
        struct bench_samples us[2] = {{.n = 0}, {.n = 0}};
        for (int k = -WARM; k < pairs; k++)
            for (int turn = 0; turn < 2; turn++) {
                const int which = (k & 1) ^ turn;
                const double v = sample(j, comm[which], sizes[i], calls_of(sizes[i]));
                if (v < 0)
                    return 1;
                if (k >= 0)
                    bench_add(&us[which], v);
            }
        struct bench_samples ratio = {.n = 0};
        double low, high;
        for (int k = 0; k < us[0].n; k++)
            bench_add(&ratio, us[1].v[k] / us[0].v[k]);
        bench_interval(&ratio, &low, &high);
        if (j->rank == 0)
            printf("pairs %s x %s: %9zu bytes: plugin %10.1f us, sockets %10.1f us, %d pairs, sockets/plugin "
                   "%.3f %.3f "
                   "%.3f\n",
                   mk_env("NCCL_SOCKET_NTHREADS") ? mk_env("NCCL_SOCKET_NTHREADS") : "?",
                   mk_env("NCCL_NSOCKS_PERTHREAD") ? mk_env("NCCL_NSOCKS_PERTHREAD") : "?", sizes[i],
                   bench_stat_of(&us[0]).median, bench_stat_of(&us[1]).median, pairs,
                   bench_stat_of(&ratio).median, low, high);
        fflush(stdout);
    }
    for (int i = 0; i < 2; i++)
        comm_end(j, comm[i], "pairs");
    return j->failures != 0;
}
