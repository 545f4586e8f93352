/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* mkbench gemm: our GPU kernels against cuBLAS. Both are captured into graphs of the same number of calls over operands
 * in rotation beyond L2 (random data), and the graphs are replayed in turn; the ratio is of neighbouring replays. */
#include "fused/cuda/gemm.h"
#include "plugin/cli/cli.h"
#include "plugin/cli/table.h"
#include "tests/bench/bench.h"
#include "tests/bench/gpu.h"
#include "tests/bench/options.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SETS 64

struct shape {
    int64_t m, n, k;
};
struct options {
    struct bench_shapes shapes;
    int blocks, bands, pairs;
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
    for (int i = 0; i < o->shapes.n; i++) {
        const struct shape shape = {o->shapes.at[i][0], o->shapes.at[i][1], o->shapes.at[i][2]};
        struct result r;
        if (o->all) {
            all_configurations(o, &shape, table, j);
            continue;
        }
        measure(o, &shape, o->forced ? &o->force : NULL, &r);
        row(table, j, &shape, &r);
        product += log(r.ratio.median);
    }
    printf("%s, %d of %d SMs; ratio = cuBLAS's time / ours, median of %d interleaved replays\n", gpu_name(),
           o->blocks, gpu_sms(), o->pairs);
    mk_table_print(table, stdout);
    mk_table_free(table);
    const double mean = o->all || !o->shapes.n ? NAN : exp(product / o->shapes.n);
    if (!o->all)
        printf("geometric mean of the ratio over %d shapes: %.4f\n", o->shapes.n, mean);
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

static const char help[] = "usage: mkbench gemm [options]\n"
                           "Our GPU GEMM kernels against cuBLAS (bf16, TN): graph replay, operands in "
                           "rotation beyond L2, interleaved.\n" BENCH_SHAPE_HELP
                           "  --blocks B           SMs that both may use (default all)\n"
                           "  --bands N            finish row bands in order, N open at a time (default: "
                           "the order that is best for L2)\n"
                           "  --all                every kernel configuration instead of the chosen one\n"
                           "  --config BN,CM,GROUP this configuration of the large kernel\n"
                           "  --pairs N            interleaved replays, 3 to 101 (default 11)\n"
                           "  --json FILE\n";

static bool config(void *to, const char *text)
{
    struct options *o = to;
    return o->forced = sscanf(text, "%d,%d,%d", &o->force.bn, &o->force.cm, &o->force.group) == 3;
}

int bench_gemm(int argc, char **argv)
{
    static struct options o;
    const char *why;
    o.pairs = 11;
    const struct bench_option table[] = {BENCH_SHAPE_OPTIONS(&o.shapes),
                                         {"blocks", BENCH_INT, &o.blocks, 1, 100000, NULL},
                                         {"bands", BENCH_INT, &o.bands, 1, 1000, NULL},
                                         {"all", BENCH_FLAG, &o.all, 0, 0, NULL},
                                         {"config", BENCH_CALL, &o, 0, 0, config},
                                         {"pairs", BENCH_INT, &o.pairs, 3, BENCH_SAMPLES, NULL},
                                         {"json", BENCH_TEXT, &o.json, 0, 0, NULL},
                                         {NULL, BENCH_FLAG, NULL, 0, 0, NULL}};
    const int stop = bench_options(argc, argv, table, false, help);
    if (stop)
        return stop - 1;
    if (!o.shapes.n)
        bench_shape_set(&o.shapes, "table");
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
