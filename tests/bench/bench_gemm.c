/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* mkbench gemm: our kernels against cuBLAS, graph replay, random operands in rotation beyond L2, interleaved. */
#include "fused/cuda/gemm.h"
#include "tests/bench/gpu.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SETS 64
struct work {
    struct mk_gemm_problem p[SETS];
    struct mk_gemm_choice c;
    int sets;
};

static int ours(void *arg, int i)
{
    struct work *w = arg;
    return mk_gemm_cuda_launch(&w->p[i % w->sets], &w->c, gpu_stream());
}
static int theirs(void *arg, int i)
{
    struct work *w = arg;
    const struct mk_gemm_problem *p = &w->p[i % w->sets];
    return blas_gemm(p->layout, p->dtype, p->m, p->n, p->k, (gpu_ptr)(uintptr_t)p->a, p->lda,
                     (gpu_ptr)(uintptr_t)p->b, p->ldb, (gpu_ptr)(uintptr_t)p->c, p->ldc, gpu_stream());
}
static int cmp(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}
static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof(*v), cmp);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static double product;
static int rows;

/* One shape: prints TFLOP/s of both and the median ratio of interleaved replays. force: NULL or a choice. */
static double one(int64_t m, int64_t n, int64_t k, int blocks, int bands, int pairs,
                  const struct mk_gemm_choice *force, bool quiet)
{
    struct work w;
    const size_t bytes = (size_t)(m * k + n * k + m * n) * 2;
    w.sets = (int)(200e6 / (double)bytes) + 2;
    w.sets = w.sets > SETS ? SETS : w.sets;
    gpu_ptr base = gpu_alloc((bytes + 768) * (size_t)w.sets), at = base;
    for (int i = 0; i < w.sets; i++) {
        gpu_ptr a = at, b = (a + (gpu_ptr)(m * k) * 2 + 255) & ~255ull,
                c = (b + (gpu_ptr)(n * k) * 2 + 255) & ~255ull;
        gpu_random(a, (size_t)(m * k), MK_BFLOAT16, (uint64_t)i * 3 + 1);
        gpu_random(b, (size_t)(n * k), MK_BFLOAT16, (uint64_t)i * 3 + 2);
        const struct mk_gemm_problem p = {
            MK_TN, MK_BFLOAT16, m, n,    k, (void *)(uintptr_t)a, (void *)(uintptr_t)b, (void *)(uintptr_t)c,
            k,     k,           n, NULL, 0};
        w.p[i] = p;
        at = (c + (gpu_ptr)(m * n) * 2 + 255) & ~255ull;
    }
    if (force)
        w.c = *force;
    else
        mk_gemm_choose(&w.p[0], true, blocks, bands, &w.c);
    ours(&w, 0);
    theirs(&w, 0);
    gpu_sync();
    const double flop = 2.0 * (double)m * (double)n * (double)k;
    int calls = (int)(2e-3 / (flop / 600e12 + 4e-6));
    calls = calls < w.sets ? w.sets : calls;
    struct gpu_graph *g[2] = {gpu_capture(ours, &w, calls), gpu_capture(theirs, &w, calls)};
    double t[2][64], ratio[64];
    for (int i = -2; i < pairs; i++) {
        double us[2];
        us[i & 1] = gpu_replay_us(g[i & 1]);
        us[!(i & 1)] = gpu_replay_us(g[!(i & 1)]);
        if (i < 0)
            continue;
        t[0][i] = us[0] / calls;
        t[1][i] = us[1] / calls;
        ratio[i] = us[1] / us[0];
    }
    const double r = median(ratio, pairs), a = median(t[0], pairs), b = median(t[1], pairs);
    if (!quiet)
        printf("%6ld %6ld %6ld  kind %d bn %3d cm %d sp %d grp %d | ours %9.2f us %6.1f TF/s | cuBLAS %9.2f "
               "us %6.1f | ratio %.3f [%.3f %.3f]\n",
               (long)m, (long)n, (long)k, w.c.kind, w.c.bn, w.c.cm, w.c.splits, w.c.group, a, flop / a * 1e-6,
               b, flop / b * 1e-6, r, ratio[0], ratio[pairs - 1]);
    fflush(stdout);
    product += log(r);
    rows++;
    gpu_graph_free(g[0]);
    gpu_graph_free(g[1]);
    gpu_free(base);
    return r;
}

static void total(const char *what)
{
    printf("%s: geometric mean of the ratio %.4f over %d shapes\n", what, exp(product / rows), rows);
    product = 0;
    rows = 0;
}

int main(int argc, char **argv)
{
    static const int table[][3] = {{8192, 8192, 8192}, {16384, 8192, 3584}, {8192, 8192, 3584},
                                   {8192, 8192, 2048}, {8192, 8192, 1024},  {16384, 8192, 1024},
                                   {32768, 4096, 512}, {4096, 4096, 4096},  {2048, 8192, 1024},
                                   {512, 8192, 1024},  {128, 8192, 1024}};
    static const int nk[][2] = {{4096, 2048}, {4096, 7168}, {8192, 4096}, {8192, 14336}};
    const char *why, *what = argc > 1 ? argv[1] : "table";
    if (!gpu_open(&why) || !blas_open(&why)) {
        printf("skip: bench.gemm: %s\n", why);
        return 77;
    }
    const int blocks = argc > 2 ? atoi(argv[2]) : gpu_sms(), pairs = argc > 3 ? atoi(argv[3]) : 9;
    if (blocks != gpu_sms())
        blas_sm_target(blocks);
    printf("%s, %d SMs, %d blocks\n", gpu_name(), gpu_sms(), blocks);
    if (!strcmp(what, "table")) {
        for (int i = 0; i < 11; i++)
            one(table[i][0], table[i][1], table[i][2], blocks, 0, pairs, NULL, false);
        total("table");
    } else if (!strcmp(what, "bands")) {
        for (int i = 0; i < 11; i++)
            one(table[i][0], table[i][1], table[i][2], blocks, 2, pairs, NULL, false);
        total("row bands");
    } else if (!strcmp(what, "decode")) {
        for (int m = 1; m <= 64; m = m == 1 ? 16 : m * 4)
            for (int i = 0; i < 4; i++)
                one(m, nk[i][0], nk[i][1], blocks, 0, pairs, NULL, false);
        total("decode");
    } else if (!strcmp(what,
                       "forced")) { /* forced BLOCKS PAIRS BN CM GROUP: the table with one configuration */
        const struct mk_gemm_choice c = {MK_GEMM_BIG, atoi(argv[4]), atoi(argv[5]), 1, atoi(argv[6]), blocks};
        for (int i = 0; i < 11; i++)
            one(table[i][0], table[i][1], table[i][2], blocks, 0, pairs, &c, false);
        total("forced");
    } else if (!strcmp(what, "tp")) { /* o_proj and down_proj of Llama-3.1-8B and 70B, tp 2 and 8 */
        static const int tp[][2] = {{4096, 2048}, {4096, 7168}, {8192, 4096}, {8192, 14336},
                                    {4096, 512},  {4096, 1792}, {8192, 1024}, {8192, 3584}};
        for (int m = 512; m <= 16384; m *= m == 512 ? 8 : 4)
            for (int i = 0; i < 8; i++)
                one(m, tp[i][0], tp[i][1], blocks, 0, pairs, NULL, false);
        total("tp 2 and 8");
    } else if (!strcmp(what, "skinny")) { /* skinny BLOCKS PAIRS: what the splits do */
        for (int m = 1; m <= 64; m = m == 1 ? 16 : m * 2)
            for (int i = 0; i < 5; i++)
                for (int s = 1; s <= 2; s *= 2) {
                    const int nt = m <= 8 ? 8 : m <= 16 ? 16 : m <= 32 ? 32 : 64;
                    const struct mk_gemm_choice c = {MK_GEMM_SKINNY, nt, 1, s, 0, blocks};
                    one(m, i < 4 ? nk[i][0] : 8192, i < 4 ? nk[i][1] : 1024, blocks, 0, pairs, &c, false);
                }
    } else if (!strcmp(what, "sweep")) { /* every configuration of one shape: sweep BLOCKS PAIRS M N K */
        static const int big[][2] = {{256, 2}, {256, 1}, {192, 1}, {128, 1}, {64, 1}};
        const int m = atoi(argv[4]), n = atoi(argv[5]), k = atoi(argv[6]);
        for (int i = 0; i < 5; i++)
            for (int group = 4; group <= 16; group *= 2) {
                const struct mk_gemm_choice c = {MK_GEMM_BIG, big[i][0], big[i][1], 1, group, blocks};
                one(m, n, k, blocks, 0, pairs, &c, false);
            }
    }
    return 0;
}
