/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The variants, and their samples: some calls one after the other, between two events, all ranks at once. A round is one
 * sample of each variant, in turn forwards and backwards; ratios are of the same round. */
#include "plugin/cli/cli.h"
#include "tests/bench/gemm_ar.h"
#include "tests/bench/nccl.h"
#include <string.h>

#define P(x) ((void *)(uintptr_t)(x))

const char *const ar_names[AR_VARIANTS] = {"cublas",  "t_compute", "t_comm",      "fused",
                                           "unfused", "nccl",      "cublas_nccl", "two_streams"};

int ar_part(struct ar_bench *b, int s, enum mk_part part)
{
    return mk_gemm_allreduce_part(b->comm, part, MK_TN, b->m, b->n, b->k, MK_BFLOAT16, P(b->a[s]), b->k,
                                  P(b->b[s]), b->k, P(b->c[s]), b->n, NULL, gpu_stream());
}

int ar_failed(struct ar_bench *b)
{
    int err = 0;
    if (!mk_comm_get_async_error(b->comm, &err) && !err)
        return 0;
    mk_cli_say("rank %d: %s", b->rank, mk_last_error());
    return 1;
}

static int all_reduce(struct ar_bench *b, int s)
{
    const int err =
        nccl_all_reduce(b->nccl[b->nccl_best], b->c[s], (size_t)(b->m * b->n), MK_BFLOAT16, gpu_stream());
    if (err)
        mk_cli_say("rank %d: NCCL: %s", b->rank, nccl_error(err));
    return err;
}

static int one_call(void *arg, int i)
{
    struct ar_bench *b = arg;
    const int s = i % b->sets;
    int ret = 0;
    switch (b->variant) {
    case AR_COMPUTE:
        return ar_part(b, s, MK_PART_COMPUTE);
    case AR_COMM:
        return ar_part(b, s, MK_PART_COMM);
    case AR_FUSED:
        return ar_part(b, s, MK_PART_FUSED);
    case AR_UNFUSED:
        ret = mk_gemm(MK_TN, b->m, b->n, b->k, MK_BFLOAT16, P(b->a[s]), b->k, P(b->b[s]), b->k, P(b->c[s]),
                      b->n, NULL, gpu_stream());
        return ret ? ret : ar_part(b, s, MK_PART_COMM);
    case AR_TWO:
        return ar_two_call(b, s);
    case AR_NCCL:
        return all_reduce(b, s);
    default: /* cuBLAS, or cuBLAS then NCCL */
        ret = blas_gemm(MK_TN, MK_BFLOAT16, b->m, b->n, b->k, b->a[s], b->k, b->b[s], b->k, b->c[s], b->n,
                        gpu_stream());
        return ret || b->variant == AR_CUBLAS ? ret : all_reduce(b, s);
    }
}

/* What sums in place would else run into infinities, which take less power than numbers: partials again. */
static int refresh(struct ar_bench *b)
{
    int ret = 0;
    for (int s = 0; s < b->sets && !ret; s++)
        ret = ar_part(b, s, MK_PART_COMPUTE);
    if (ret)
        mk_cli_say("rank %d: %s", b->rank, mk_last_error());
    return ret;
}

double ar_sample(struct ar_bench *b, struct gpu_graph *graph)
{
    const bool in_place = b->variant == AR_COMM || b->variant == AR_NCCL;
    int ret = in_place ? refresh(b) : 0;
    gpu_sync();
    if (ar_slowest(b, ret ? -1 : 0) < 0) /* all begin together */
        return -1;
    const double us = graph ? gpu_replay_us(graph) : gpu_time_us(one_call, b, b->calls);
    return ar_slowest(b, ar_failed(b) ? -1 : us / b->calls);
}

/* One call of its own first: what loads or connects in its first call does it outside of the capture. */
struct gpu_graph *ar_capture(struct ar_bench *b)
{
    gpu_time_us(one_call, b, 1);
    gpu_sync();
    ar_slowest(b, 0);
    return b->o->graph ? gpu_capture(one_call, b, b->calls) : NULL;
}

static bool runs(const struct ar_bench *b, int v)
{
    if (v == AR_CUBLAS)
        return !b->o->cpu;
    return v < AR_NCCL || (b->nccls && (v != AR_TWO || !b->o->no_two));
}

int ar_compute_us(struct ar_bench *b, double *us)
{
    struct bench_samples s;
    s.n = 0;
    b->variant = AR_COMPUTE;
    struct gpu_graph *g = ar_capture(b);
    int ret = 0;
    for (int i = -2; i < 7 && !ret; i++) {
        const double v = ar_sample(b, g);
        ret = v < 0;
        if (i >= 0)
            bench_add(&s, v);
    }
    if (g)
        gpu_graph_free(g);
    *us = bench_stat_of(&s).median;
    return ret;
}

int ar_first_look(struct ar_bench *b, double *compute_us)
{
    int ret = ar_connect(b);
    for (int i = 0; i < b->o->shapes.n && b->o->ratios.n && !ret; i++) {
        ar_make(b, b->o->shapes.at[i]);
        ret = ar_compute_us(b, &compute_us[i]);
        ar_drop(b);
    }
    ar_disconnect(b);
    return ret;
}

/* Bytes of an exchange, by the proxy's count of the calls between. */
static double counted(struct ar_bench *b, uint64_t before)
{
    struct mk_comm_info now;
    if (mk_comm_info(b->comm, &now))
        return -1;
    return (double)(now.bytes - before) / b->calls;
}

static int one_round(struct ar_bench *b, struct gpu_graph **graph, int round, double us[AR_VARIANTS],
                     struct ar_result *r)
{
    for (int i = 0; i < AR_VARIANTS; i++) {
        const int v = round & 1 ? AR_VARIANTS - 1 - i : i;
        struct mk_comm_info before;
        us[v] = 0;
        if (!runs(b, v))
            continue;
        b->variant = (enum ar_variant)v;
        if (mk_comm_info(b->comm, &before))
            return 1;
        us[v] = ar_sample(b, graph[v]);
        if (us[v] <= 0)
            return 1;
        if (v == AR_COMM)
            r->counted = ar_slowest(b, counted(b, before.bytes));
    }
    return 0;
}

static void keep(struct ar_result *r, const double us[AR_VARIANTS])
{
    const double bound = us[AR_COMPUTE] > us[AR_COMM] ? us[AR_COMPUTE] : us[AR_COMM];
    for (int v = 0; v < AR_VARIANTS; v++)
        if (us[v] > 0) {
            bench_add(&r->us[v], us[v]);
            bench_add(&r->ratio[v], us[v] / us[AR_FUSED]);
        }
    bench_add(&r->to_bound, us[AR_FUSED] / bound);
}

int ar_measure(struct ar_bench *b, uint64_t hash, struct ar_result *r)
{
    struct gpu_graph *graph[AR_VARIANTS] = {NULL};
    double us[AR_VARIANTS];
    int ret = 0;
    for (int v = 0; v < AR_VARIANTS; v++)
        if (runs(b, v)) {
            b->variant = (enum ar_variant)v;
            graph[v] = ar_capture(b);
        }
    for (int round = -1; round < b->o->pairs && !ret; round++) { /* the first warms up */
        ret = one_round(b, graph, round, us, r);
        if (!ret && round >= 0)
            keep(r, us);
    }
    b->variant = AR_FUSED;
    if (!ret)
        ret = ar_sample(b, graph[AR_FUSED]) <= 0 || (b->o->check && ar_check_again(b, hash));
    for (int v = 0; v < AR_VARIANTS; v++)
        if (graph[v])
            gpu_graph_free(graph[v]);
    return ret;
}
