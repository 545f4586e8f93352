/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* mkbench gemm_ar: the fused operator on GPUs, one process a rank (mkrun), against its parts and against cuBLAS then
 * NCCL. Every variant on all ranks at once, interleaved; a sample is some calls one after the other, between two events,
 * slowest rank; medians. Terms: conventions "Terms of the tables". */
#include "mk/fused.h"
#include "plugin/cli/cli.h"
#include "tests/bench/bench.h"
#include "tests/bench/gpu.h"
#include "tests/bench/nccl.h"
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SETS 2 /* operands in rotation */
#define SHAPES 64

enum variant { CUBLAS, COMPUTE, COMM, FUSED, NCCL, PAIR, VARIANTS };
static const char *const names[VARIANTS] = {"cublas", "t_compute", "t_comm", "fused", "nccl", "cublas_nccl"};

struct options {
    int64_t shape[SHAPES][3];
    int shapes, reps, calls;
    bool graph, with_nccl;
    const char *nccl, *json;
};

struct work {
    mk_comm_t comm;
    struct mk_comm_info info;
    int64_t m, n, k;
    gpu_ptr a[SETS], b[SETS], c[SETS];
    enum variant variant;
};
#define P(x) ((void *)(uintptr_t)(x))

static int part(struct work *w, int i, enum mk_part what)
{
    const int s = i % SETS;
    return mk_gemm_allreduce_part(w->comm, what, MK_TN, w->m, w->n, w->k, MK_BFLOAT16, P(w->a[s]), w->k,
                                  P(w->b[s]), w->k, P(w->c[s]), w->n, NULL, gpu_stream());
}

static int one_call(void *arg, int i)
{
    struct work *w = arg;
    const int s = i % SETS;
    int ret = 0;
    if (w->variant == COMPUTE || w->variant == COMM || w->variant == FUSED)
        return part(w, i,
                    w->variant == COMPUTE ? MK_PART_COMPUTE
                    : w->variant == COMM  ? MK_PART_COMM
                                          : MK_PART_FUSED);
    if (w->variant == CUBLAS || w->variant == PAIR)
        ret = blas_gemm(MK_TN, MK_BFLOAT16, w->m, w->n, w->k, w->a[s], w->k, w->b[s], w->k, w->c[s], w->n,
                        gpu_stream());
    if (!ret && (w->variant == NCCL || w->variant == PAIR))
        ret = nccl_all_reduce(w->c[s], (size_t)(w->m * w->n), MK_BFLOAT16, gpu_stream());
    return ret;
}

static double slowest(struct work *w, double us)
{
    double all[1024], worst = 0;
    if (mk_comm_allgather(w->comm, &us, all, sizeof(us)))
        return -1;
    for (int r = 0; r < w->info.nranks; r++)
        worst = all[r] > worst ? all[r] : worst;
    return worst;
}

static int measure(const struct options *o, struct work *w, struct bench_samples *s)
{
    struct gpu_graph *graph[VARIANTS] = {NULL};
    for (int rep = -1; rep < o->reps; rep++) /* the first warms up */
        for (int v = 0; v < VARIANTS; v++) {
            int err = 0;
            if (!o->with_nccl && v >= NCCL)
                continue;
            w->variant = (enum variant)v;
            if (o->graph && !graph[v])
                graph[v] = gpu_capture(one_call, w, o->calls);
            gpu_sync();
            if (mk_comm_barrier(w->comm))
                return mk_cli_say("%s", mk_last_error()), 1;
            const double us = graph[v] ? gpu_replay_us(graph[v]) : gpu_time_us(one_call, w, o->calls);
            if (mk_comm_get_async_error(w->comm, &err) || err)
                return mk_cli_say("%s", mk_last_error()), 1;
            const double all = slowest(w, us / o->calls);
            if (rep >= 0)
                bench_add(&s[v], all);
        }
    for (int v = 0; v < VARIANTS; v++)
        if (graph[v])
            gpu_graph_free(graph[v]);
    return 0;
}

static void make(struct work *w)
{
    for (int s = 0; s < SETS; s++) {
        w->a[s] = gpu_alloc((size_t)(w->m * w->k) * 2);
        w->b[s] = gpu_alloc((size_t)(w->n * w->k) * 2);
        w->c[s] = gpu_alloc((size_t)(w->m * w->n) * 2);
        gpu_random(w->a[s], (size_t)(w->m * w->k), MK_BFLOAT16, (uint64_t)(w->info.rank * SETS + s + 1));
        gpu_random(w->b[s], (size_t)(w->n * w->k), MK_BFLOAT16, (uint64_t)(w->info.rank * SETS + s + 77));
        gpu_set(w->c[s], 0, (size_t)(w->m * w->n) * 2);
    }
}
static void drop(struct work *w)
{
    for (int s = 0; s < SETS; s++) {
        gpu_free(w->a[s]);
        gpu_free(w->b[s]);
        gpu_free(w->c[s]);
    }
}

static void report(const struct options *o, const struct work *w, const struct bench_samples *s,
                   struct mk_json *j)
{
    struct bench_stat st[VARIANTS];
    for (int v = 0; v < VARIANTS; v++)
        st[v] = bench_stat_of(&s[v]);
    const double compute = st[COMPUTE].median, comm = st[COMM].median, fused = st[FUSED].median;
    const double bound = compute > comm ? compute : comm;
    printf("%6lld %6lld %6lld %9.1f %9.1f %9.1f %9.1f %7.3f %7.3f", (long long)w->m, (long long)w->n,
           (long long)w->k, st[CUBLAS].median, compute, comm, fused, fused / bound, (compute + comm) / fused);
    if (o->with_nccl)
        printf(" %9.1f %9.1f %7.3f", st[NCCL].median, st[PAIR].median, st[PAIR].median / fused);
    printf("  [%.1f, %.1f]\n", st[FUSED].min, st[FUSED].max);
    fflush(stdout);
    if (!j)
        return;
    mk_json_object(j, NULL);
    mk_json_int(j, "M", w->m);
    mk_json_int(j, "N", w->n);
    mk_json_int(j, "K", w->k);
    for (int v = 0; v < VARIANTS; v++)
        if (s[v].n)
            bench_json_stat(j, names[v], &st[v]);
    mk_json_real(j, "bound", bound);
    mk_json_end(j);
}

static const char help[] =
    "usage: mkrun ... -- mkbench gemm_ar [options]\n"
    "Fused GEMM+AllReduce on GPUs (bf16, TN), its parts, and cuBLAS then NCCL; microseconds.\n"
    "  --shape M,N,K   may be repeated; K of one rank\n"
    "  --set issue|small|two   known shapes\n"
    "  --graph         calls by graph replay\n"
    "  --calls N       calls a sample (default 4)\n"
    "  --reps N        samples (default 9)\n"
    "  --nccl PATH     libnccl for the baseline\n"
    "  --json FILE     written by rank 0\n";

static bool add(struct options *o, long long m, long long n, long long k)
{
    if (o->shapes == SHAPES || m < 1 || n < 1 || k < 1)
        return false;
    o->shape[o->shapes][0] = m;
    o->shape[o->shapes][1] = n;
    o->shape[o->shapes++][2] = k;
    return true;
}
static bool add_set(struct options *o, const char *set)
{
    static const int issue[][3] = {
        {8192, 8192, 3584}, {16384, 8192, 3584}, {8192, 8192, 8192}, {4096, 8192, 3584}};
    static const int small[][3] = {{128, 8192, 3584}, {512, 8192, 3584}, {2048, 8192, 3584}};
    static const int two[][3] = {
        {8192, 8192, 4096}, {8192, 8192, 14336}, {4096, 4096, 2048}, {16384, 8192, 4096}, {2048, 8192, 4096}};
    const int(*t)[3] = !strcmp(set, "issue") ? issue : !strcmp(set, "small") ? small : two;
    const int n = t == issue ? 4 : t == small ? 3 : 5;
    if (strcmp(set, "issue") && strcmp(set, "small") && strcmp(set, "two"))
        return false;
    for (int i = 0; i < n; i++)
        add(o, t[i][0], t[i][1], t[i][2]);
    return true;
}

static int parse(int argc, char **argv, struct options *o)
{
    static const struct option options[] = {
        {"shape", 1, NULL, 'x'}, {"set", 1, NULL, 's'},  {"graph", 0, NULL, 'g'},
        {"calls", 1, NULL, 'c'}, {"reps", 1, NULL, 'r'}, {"nccl", 1, NULL, 'n'},
        {"json", 1, NULL, 'j'},  {"help", 0, NULL, 'h'}, {NULL, 0, NULL, 0}};
    long long m, n, k;
    int c;
    opterr = 0;
    while ((c = getopt_long(argc, argv, ":h", options, NULL)) >= 0) {
        bool good = true;
        if (c == 'x')
            good = sscanf(optarg, "%lld,%lld,%lld", &m, &n, &k) == 3 && add(o, m, n, k);
        else if (c == 's')
            good = add_set(o, optarg);
        else if (c == 'c' || c == 'r') {
            good = mk_cli_number(optarg, 1, BENCH_SAMPLES, &m);
            *(c == 'c' ? &o->calls : &o->reps) = (int)m;
        } else if (c == 'g')
            o->graph = true;
        else if (c == 'n')
            o->nccl = optarg;
        else if (c == 'j')
            o->json = optarg;
        else if (c == 'h')
            return mk_cli_print(help) + 1;
        else
            return mk_cli_bad_option(c, argv) + 1;
        if (!good)
            return mk_cli_usage("%s is not what this option takes", optarg) + 1;
    }
    return 0;
}

static int run(struct options *o, struct work *w)
{
    struct mk_json json, *j = NULL;
    int ret = 0;
    if (w->info.rank == 0 && o->json) {
        if (mk_json_open(&json, o->json))
            return 1;
        j = &json;
        mk_json_object(j, NULL);
        bench_json_machine(j);
        mk_json_text(j, "gpu", gpu_name());
        mk_json_int(j, "sms", gpu_sms());
        mk_json_int(j, "nodes", w->info.nnodes);
        mk_json_int(j, "ranks_per_node", w->info.local_nranks);
        mk_json_text(j, "transport", w->info.transport);
        mk_json_bool(j, "graph", o->graph);
        mk_json_int(j, "nccl", o->with_nccl ? nccl_version() : 0);
        mk_json_array(j, "shapes");
    }
    if (w->info.rank == 0) {
        printf("%s, %d SMs seen, %d nodes x %d ranks, transport %s, %s, calls %s\n", gpu_name(), gpu_sms(),
               w->info.nnodes, w->info.local_nranks, w->info.transport[0] ? w->info.transport : "none",
               o->with_nccl ? "NCCL" : "no NCCL", o->graph ? "by graph replay" : "eager");
        printf("     M      N      K    cublas t_compute    t_comm     fused f/bound s/fused%s  [min, max of "
               "fused]\n",
               o->with_nccl ? "      nccl bl+nccl p/fused" : "");
    }
    for (int i = 0; i < o->shapes && !ret; i++) {
        struct bench_samples s[VARIANTS];
        memset(s, 0, sizeof(s));
        w->m = o->shape[i][0];
        w->n = o->shape[i][1];
        w->k = o->shape[i][2];
        make(w);
        ret = measure(o, w, s);
        if (!ret && w->info.rank == 0)
            report(o, w, s, j);
        drop(w);
    }
    if (j && !ret) {
        mk_json_end(j);
        mk_json_end(j);
        ret = mk_json_close(j) ? 1 : 0;
    } else if (j) {
        mk_json_cancel(j);
    }
    return ret;
}

int bench_gemm_ar(int argc, char **argv)
{
    static struct options o;
    static struct work w;
    const char *why = "";
    o.reps = 9;
    o.calls = 4;
    const int stop = parse(argc, argv, &o);
    if (stop)
        return stop - 1;
    if (!o.shapes)
        add_set(&o, "issue");
    if (!gpu_open(&why) || !blas_open(&why)) {
        printf("skip: bench.gemm_ar: %s\n", why);
        return 77;
    }
    if (mk_comm_init_env(&w.comm, NULL) || mk_comm_info(w.comm, &w.info)) {
        mk_cli_say("%s", mk_last_error());
        return 1;
    }
    if (o.nccl) {
        o.with_nccl = nccl_open(o.nccl, w.comm, w.info.rank, w.info.nranks, &why);
        if (!o.with_nccl)
            mk_cli_say("no NCCL baseline: %s", why);
    }
    const int ret = run(&o, &w);
    nccl_close();
    mk_comm_destroy(w.comm);
    return ret;
}
