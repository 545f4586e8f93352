/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* mkbench gemm: our GPU kernels against cuBLAS. Both are captured into graphs of the same number of calls over operands
 * in rotation beyond L2 (random data), and the graphs are replayed in turn; the ratio is of neighbouring replays. */
#include "fused/cuda/gemm.h"
#include "plugin/cli/cli.h"
#include "plugin/cli/table.h"
#include "tests/bench/bench.h"
#include "tests/bench/gpu.h"
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SETS 64
#define MAX_SHAPES 256

struct shape {
    int64_t m, n, k;
};
struct options {
    struct shape shape[MAX_SHAPES];
    int shapes, blocks, bands, pairs;
    bool forced, all;
    struct mk_gemm_choice force;
    const char *json;
};
struct work {
    struct mk_gemm_problem p[SETS];
    struct mk_gemm_choice c;
    int sets;
};
struct result {
    struct bench_stat ours, blas, ratio; /* microseconds a call; cuBLAS's time over ours */
    struct mk_gemm_choice choice;
};

static int ours(void *arg, int i)
{
    struct work *w = arg;
    return mk_gemm_cuda_launch(&w->p[i % w->sets], &w->c, gpu_stream());
}
static int theirs(void *arg, int i)
{
    const struct work *w = arg;
    const struct mk_gemm_problem *p = &w->p[i % w->sets];
    return blas_gemm(p->layout, p->dtype, p->m, p->n, p->k, (gpu_ptr)(uintptr_t)p->a, p->lda,
                     (gpu_ptr)(uintptr_t)p->b, p->ldb, (gpu_ptr)(uintptr_t)p->c, p->ldc, gpu_stream());
}

static gpu_ptr fill(struct work *w, const struct shape *s)
{
    const size_t bytes = (size_t)(s->m * s->k + s->n * s->k + s->m * s->n) * 2;
    w->sets = (int)(200e6 / (double)bytes) + 2;
    w->sets = w->sets > SETS ? SETS : w->sets;
    gpu_ptr base = gpu_alloc((bytes + 768) * (size_t)w->sets), at = base;
    for (int i = 0; i < w->sets; i++) {
        gpu_ptr a = at, b = (a + (gpu_ptr)(s->m * s->k) * 2 + 255) & ~255ull,
                c = (b + (gpu_ptr)(s->n * s->k) * 2 + 255) & ~255ull;
        gpu_random(a, (size_t)(s->m * s->k), MK_BFLOAT16, (uint64_t)i * 3 + 1);
        gpu_random(b, (size_t)(s->n * s->k), MK_BFLOAT16, (uint64_t)i * 3 + 2);
        const struct mk_gemm_problem p = {MK_TN,
                                          MK_BFLOAT16,
                                          s->m,
                                          s->n,
                                          s->k,
                                          (void *)(uintptr_t)a,
                                          (void *)(uintptr_t)b,
                                          (void *)(uintptr_t)c,
                                          s->k,
                                          s->k,
                                          s->n,
                                          NULL,
                                          0};
        w->p[i] = p;
        at = (c + (gpu_ptr)(s->m * s->n) * 2 + 255) & ~255ull;
    }
    return base;
}

static void measure(const struct options *o, const struct shape *s, const struct mk_gemm_choice *force,
                    struct result *r)
{
    struct work w;
    struct bench_samples t[2], ratio;
    const gpu_ptr base = fill(&w, s);
    if (force)
        w.c = *force;
    else
        mk_gemm_choose(&w.p[0], true, o->blocks, o->bands, &w.c);
    r->choice = w.c;
    int calls = (int)(2e-3 / (2.0 * (double)(s->m * s->n) * (double)s->k / 600e12 + 4e-6));
    calls = calls < w.sets ? w.sets : calls;
    ours(&w, 0); /* loads kernels outside of the capture */
    theirs(&w, 0);
    gpu_sync();
    struct gpu_graph *g[2] = {gpu_capture(ours, &w, calls), gpu_capture(theirs, &w, calls)};
    t[0].n = t[1].n = ratio.n = 0;
    for (int i = -2; i < o->pairs; i++) {
        double us[2];
        us[i & 1] = gpu_replay_us(g[i & 1]);
        us[!(i & 1)] = gpu_replay_us(g[!(i & 1)]);
        if (i < 0)
            continue;
        bench_add(&t[0], us[0] / calls);
        bench_add(&t[1], us[1] / calls);
        bench_add(&ratio, us[1] / us[0]);
    }
    r->ours = bench_stat_of(&t[0]);
    r->blas = bench_stat_of(&t[1]);
    r->ratio = bench_stat_of(&ratio);
    gpu_graph_free(g[0]);
    gpu_graph_free(g[1]);
    gpu_free(base);
}

/* ---- output ---- */

static void kernel_name(const struct mk_gemm_choice *c, char text[40])
{
    if (c->kind == MK_GEMM_BIG)
        snprintf(text, 40, "128x%d, cluster %d, group %d", c->bn, c->cm, c->group);
    else if (c->kind == MK_GEMM_SKINNY)
        snprintf(text, 40, "skinny %d, K in %d", c->bn, c->splits);
    else
        snprintf(text, 40, "portable");
}

static void row(struct mk_table *table, struct mk_json *json, const struct shape *s, const struct result *r)
{
    char kernel[40];
    const double flop = 2.0 * (double)(s->m * s->n) * (double)s->k;
    kernel_name(&r->choice, kernel);
    mk_table_row(table, "%lld|%lld|%lld|%s|%.2f|%.1f|%.2f|%.1f|%.3f|%.3f|%.3f", (long long)s->m,
                 (long long)s->n, (long long)s->k, kernel, r->ours.median, flop / r->ours.median * 1e-6,
                 r->blas.median, flop / r->blas.median * 1e-6, r->ratio.median, r->ratio.min, r->ratio.max);
    if (!json)
        return;
    mk_json_object(json, NULL);
    mk_json_int(json, "M", s->m);
    mk_json_int(json, "N", s->n);
    mk_json_int(json, "K", s->k);
    mk_json_text(json, "kernel", kernel);
    bench_json_stat(json, "ours_us", &r->ours);
    bench_json_stat(json, "cublas_us", &r->blas);
    bench_json_stat(json, "ratio", &r->ratio);
    mk_json_end(json);
}

/* One shape in every configuration that can do it. */
static void all_configurations(const struct options *o, const struct shape *s, struct mk_table *table,
                               struct mk_json *json)
{
    static const int big[][2] = {{256, 1}, {256, 2}, {192, 1}, {128, 1}, {64, 1}};
    struct result r;
    for (int i = 0; i < 5 && s->n % 8 == 0; i++)
        for (int group = 4; group <= 16; group *= 2) {
            const struct mk_gemm_choice c = {MK_GEMM_BIG, big[i][0], big[i][1], 1, group, o->blocks};
            measure(o, s, &c, &r);
            row(table, json, s, &r);
        }
    for (int nt = 8; nt <= 64; nt *= 2)
        for (int splits = 1; splits <= 2 && nt >= s->m; splits *= 2) {
            const struct mk_gemm_choice c = {MK_GEMM_SKINNY, nt, 1, splits, 4, o->blocks};
            measure(o, s, &c, &r);
            row(table, json, s, &r);
        }
}

static void json_head(struct mk_json *j, const struct options *o)
{
    mk_json_object(j, NULL);
    mk_json_text(j, "benchmark", "gemm");
    bench_json_machine(j);
    mk_json_text(j, "gpu", gpu_name());
    mk_json_int(j, "sms", gpu_sms());
    mk_json_int(j, "blocks", o->blocks);
    mk_json_int(j, "bands", o->bands);
    mk_json_text(j, "baseline", "cublasGemmEx, graph replay, interleaved, random bf16 beyond L2, TN");
    mk_json_array(j, "shapes");
}

static int run(const struct options *o)
{
    struct mk_json json, *j = o->json ? &json : NULL;
    struct mk_table *table =
        mk_table_new(">M|>N|>K|kernel|>ours us|>TFLOP/s|>cuBLAS us|>TFLOP/s|>ratio|>min|>max");
    double product = 0;
    if (!table || (j && mk_json_open(j, o->json)))
        return MK_EXIT_FAILED;
    if (j)
        json_head(j, o);
    for (int i = 0; i < o->shapes; i++) {
        struct result r;
        if (o->all) {
            all_configurations(o, &o->shape[i], table, j);
            continue;
        }
        measure(o, &o->shape[i], o->forced ? &o->force : NULL, &r);
        row(table, j, &o->shape[i], &r);
        product += log(r.ratio.median);
    }
    printf("%s, %d of %d SMs; ratio = cuBLAS's time / ours, median of %d interleaved replays\n", gpu_name(),
           o->blocks, gpu_sms(), o->pairs);
    mk_table_print(table, stdout);
    mk_table_free(table);
    const double mean = o->all || !o->shapes ? NAN : exp(product / o->shapes);
    if (!o->all)
        printf("geometric mean of the ratio over %d shapes: %.4f\n", o->shapes, mean);
    if (j) {
        mk_json_end(j);
        mk_json_real(j, "geomean", mean);
        mk_json_end(j);
        if (mk_json_close(j))
            return MK_EXIT_FAILED;
    }
    return mk_cli_flush();
}

/* ---- options ---- */

static void add(struct options *o, int64_t m, int64_t n, int64_t k)
{
    if (o->shapes < MAX_SHAPES && m > 0 && n > 0 && k > 0) {
        const struct shape s = {m, n, k};
        o->shape[o->shapes++] = s;
    }
}

static bool add_set(struct options *o, const char *name)
{
    static const int table[][3] = {{8192, 8192, 8192}, {16384, 8192, 3584}, {8192, 8192, 3584},
                                   {8192, 8192, 2048}, {8192, 8192, 1024},  {16384, 8192, 1024},
                                   {32768, 4096, 512}, {4096, 4096, 4096},  {2048, 8192, 1024},
                                   {512, 8192, 1024},  {128, 8192, 1024}};
    static const int nk[][2] = {{4096, 2048}, {4096, 7168}, {8192, 4096}, {8192, 14336},
                                {4096, 512},  {4096, 1792}, {8192, 1024}, {8192, 3584}};
    if (!strcmp(name, "table")) {
        for (int i = 0; i < 11; i++)
            add(o, table[i][0], table[i][1], table[i][2]);
    } else if (!strcmp(name, "tp")) {
        for (int m = 512; m <= 16384; m *= m == 512 ? 8 : 4)
            for (int i = 0; i < 8; i++)
                add(o, m, nk[i][0], nk[i][1]);
    } else if (!strcmp(name, "decode")) {
        for (int m = 1; m <= 64; m = m == 1 ? 16 : m * 4)
            for (int i = 0; i < 4; i++)
                add(o, m, nk[i][0], nk[i][1]);
    } else {
        return false;
    }
    return true;
}

/* Lines of comma-separated values whose last three are M,N,K (tests/bench/shapes/gemm.csv); others are passed over. */
static bool add_file(struct options *o, const char *path)
{
    char line[256];
    FILE *f = fopen(path, "r");
    if (!f)
        return false;
    while (fgets(line, sizeof(line), f)) {
        long long v[3] = {0, 0, 0};
        char *at = line + strlen(line);
        for (int i = 2; i >= 0; i--) {
            while (at > line && at[-1] != ',')
                at--;
            v[i] = atoll(at);
            if (at > line)
                at--;
        }
        add(o, v[0], v[1], v[2]);
    }
    fclose(f);
    return true;
}

static const char help[] = "usage: mkbench gemm [options]\n"
                           "Our GPU GEMM kernels against cuBLAS (bf16, TN): graph replay, operands in "
                           "rotation beyond L2, interleaved.\n"
                           "  --set table|tp|decode  known shapes (default table)\n"
                           "  --shapes FILE          csv whose last three columns are M,N,K\n"
                           "  --shape M,N,K          one shape; may be repeated\n"
                           "  --blocks B             SMs that both may use (default all)\n"
                           "  --bands N              finish row bands in order, N open at a time (default: "
                           "the order that is best for L2)\n"
                           "  --all                  every kernel configuration instead of the chosen one\n"
                           "  --config BN,CM,GROUP   this configuration of the large kernel\n"
                           "  --pairs N              interleaved replays, 3 to 101 (default 11)\n"
                           "  --json FILE\n";

static bool number(const char *text, long long min, long long max, int *out)
{
    long long v;
    if (!mk_cli_number(text, min, max, &v))
        return false;
    *out = (int)v;
    return true;
}

/* 0, or an exit code + 1. */
static int parse(int argc, char **argv, struct options *o)
{
    static const struct option options[] = {
        {"set", 1, NULL, 's'},   {"shapes", 1, NULL, 'f'}, {"shape", 1, NULL, 'x'},  {"blocks", 1, NULL, 'b'},
        {"bands", 1, NULL, 'n'}, {"all", 0, NULL, 'a'},    {"config", 1, NULL, 'c'}, {"pairs", 1, NULL, 'p'},
        {"json", 1, NULL, 'j'},  {"help", 0, NULL, 'h'},   {NULL, 0, NULL, 0}};
    long long m, n, k;
    int c;
    opterr = 0;
    while ((c = getopt_long(argc, argv, ":h", options, NULL)) >= 0) {
        bool good = true;
        if (c == 's')
            good = add_set(o, optarg);
        else if (c == 'f')
            good = add_file(o, optarg);
        else if (c == 'x' &&
                 (good = sscanf(optarg, "%lld,%lld,%lld", &m, &n, &k) == 3 && m > 0 && n > 0 && k > 0))
            add(o, m, n, k);
        else if (c == 'b')
            good = number(optarg, 1, 100000, &o->blocks);
        else if (c == 'n')
            good = number(optarg, 1, 1000, &o->bands);
        else if (c == 'p')
            good = number(optarg, 3, BENCH_SAMPLES, &o->pairs);
        else if (c == 'c')
            good = o->forced = sscanf(optarg, "%d,%d,%d", &o->force.bn, &o->force.cm, &o->force.group) == 3;
        else if (c == 'a')
            o->all = true;
        else if (c == 'j')
            o->json = optarg;
        else if (c == 'h')
            return mk_cli_print(help) + 1;
        else if (c != 'x')
            return mk_cli_bad_option(c, argv) + 1;
        if (!good)
            return mk_cli_usage("%s is not what this option takes", optarg) + 1;
    }
    return 0;
}

int bench_gemm(int argc, char **argv)
{
    static struct options o;
    const char *why;
    o.pairs = 11;
    const int stop = parse(argc, argv, &o);
    if (stop)
        return stop - 1;
    if (!o.shapes)
        add_set(&o, "table");
    if (!gpu_open(&why) || !blas_open(&why)) {
        printf("skip: bench.gemm: %s\n", why);
        return 77;
    }
    if (!o.blocks)
        o.blocks = gpu_sms();
    else
        blas_sm_target(o.blocks);
    o.force.kind = MK_GEMM_BIG;
    o.force.splits = 1;
    o.force.blocks = o.blocks;
    return run(&o);
}
