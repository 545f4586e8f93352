/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* GEMM kernels on a GPU: every kernel, layout and dtype against float64, with cuBLAS's own error as the measure;
 * poisoned outputs; the same bits in every run and at every number of blocks. Usage: gemm [SHAPES] [SEED]. */
#include "fused/cuda/gemm.h"
#include "tests/bench/gpu.h"
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t rng = 1;
static int rnd(int n)
{
    rng = rng * 6364136223846793005ull + 1442695040888963407ull;
    return (int)((rng >> 33) % (uint64_t)n);
}

struct matrix {
    int64_t rows, cols, ld;
    size_t count;
    gpu_ptr base, p;
    uint16_t *host;
};
static struct matrix make(int64_t rows, int64_t cols, int64_t pad, int64_t off, mk_dtype_t dtype,
                          uint64_t seed)
{
    struct matrix x = {rows, cols, cols + pad, (size_t)(rows * (cols + pad)) + 8, 0, 0, NULL};
    x.base = gpu_alloc(x.count * 2 + 64);
    x.p = x.base + (gpu_ptr)off * 2;
    x.host = malloc(x.count * 2);
    if (seed)
        gpu_random(x.p, x.count, dtype, seed);
    else
        gpu_set(x.p, 0xff, x.count * 2);
    gpu_get(x.host, x.p, x.count * 2);
    return x;
}
static void drop(struct matrix *x)
{
    gpu_free(x->base);
    free(x->host);
}

/* Relative error of C against ref [m, n]; -1: something outside [m, n] was written; -3: NaN (or not written). */
static double error_of(struct matrix *c, const double *ref, mk_dtype_t dtype)
{
    double diff = 0, norm = 0;
    gpu_get(c->host, c->p, c->count * 2);
    for (int64_t i = 0; i < c->rows; i++)
        for (int64_t j = 0; j < c->ld; j++) {
            const uint16_t h = c->host[i * c->ld + j];
            if (j >= c->cols) {
                if (h != 0xffff)
                    return -1;
                continue;
            }
            const double d = gpu_value(h, dtype) - ref[i * c->cols + j];
            diff += d * d;
            norm += ref[i * c->cols + j] * ref[i * c->cols + j];
        }
    for (size_t i = (size_t)(c->rows * c->ld); i < c->count; i++)
        if (c->host[i] != 0xffff)
            return -1;
    if (isnan(diff))
        return -3;
    return norm > 0 ? sqrt(diff / norm) : sqrt(diff);
}

static double *reference(mk_layout_t layout, mk_dtype_t dtype, const struct matrix *a, const struct matrix *b,
                         int64_t m, int64_t n, int64_t k)
{
    double *da = malloc((size_t)(m * k + 1) * 8), *db = malloc((size_t)(n * k + 1) * 8),
           *dc = calloc((size_t)(m * n), 8);
    for (int64_t i = 0; i < m; i++)
        for (int64_t q = 0; q < k; q++)
            da[i * k + q] = gpu_value(a->host[layout == MK_NT ? q * a->ld + i : i * a->ld + q], dtype);
    for (int64_t j = 0; j < n; j++)
        for (int64_t q = 0; q < k; q++)
            db[j * k + q] = gpu_value(b->host[layout == MK_TN ? j * b->ld + q : q * b->ld + j], dtype);
    if (k) {
        gpu_ptr ga = gpu_alloc((size_t)(m * k) * 8), gb = gpu_alloc((size_t)(n * k) * 8),
                gc = gpu_alloc((size_t)(m * n) * 8);
        gpu_put(ga, da, (size_t)(m * k) * 8);
        gpu_put(gb, db, (size_t)(n * k) * 8);
        blas_gemm_f64(m, n, k, ga, gb, gc);
        gpu_sync();
        gpu_get(dc, gc, (size_t)(m * n) * 8);
        gpu_free(ga);
        gpu_free(gb);
        gpu_free(gc);
    }
    free(da);
    free(db);
    return dc;
}

static int failures;
static double worst[3];

static void run_one(struct mk_gemm_problem *p, struct mk_gemm_choice *c, struct matrix *out,
                    const double *ref, double blas)
{
    gpu_set(out->p, 0xff, out->count * 2);
    const int ret = mk_gemm_cuda_launch(p, c, gpu_stream());
    gpu_sync();
    const double e = ret ? -2 : error_of(out, ref, p->dtype);
    const double limit = 1.2 * blas + 1e-6;
    if (e < 0 || e > limit) {
        failures++;
        printf("FAIL layout %d dtype %d M=%ld N=%ld K=%ld lda %ld ldb %ld ldc %ld kind %d bn %d cm %d splits "
               "%d blocks %d: error %g, cuBLAS %g %s\n",
               p->layout, p->dtype, (long)p->m, (long)p->n, (long)p->k, (long)p->lda, (long)p->ldb,
               (long)p->ldc, c->kind, c->bn, c->cm, c->splits, c->blocks, e, blas,
               ret ? mk_last_error() : "");
    } else if (blas > 0 && e / blas > worst[c->kind]) {
        worst[c->kind] = e / blas;
    }
}

static uint64_t hash_of(const struct matrix *c)
{
    uint64_t h = 1;
    for (int64_t i = 0; i < c->rows; i++)
        for (int64_t j = 0; j < c->cols; j++)
            h = (h ^ c->host[i * c->ld + j]) * 0x100000001b3ull;
    return h;
}

/* The chosen kernel, at three numbers of blocks: the same bits; then every other kernel that can do it. */
static void shape_ld(mk_layout_t layout, mk_dtype_t dtype, int64_t m, int64_t n, int64_t k, int64_t lda,
                     int64_t ldb, int64_t ldc, int off)
{
    struct matrix a = make(layout == MK_NT ? k : m, layout == MK_NT ? m : k, lda - (layout == MK_NT ? m : k),
                           off, dtype, rng | 1);
    struct matrix b = make(layout == MK_TN ? n : k, layout == MK_TN ? k : n, ldb - (layout == MK_TN ? k : n),
                           off, dtype, (rng >> 7) | 1);
    struct matrix c = make(m, n, ldc - n, off, dtype, 0);
    double *ref = reference(layout, dtype, &a, &b, m, n, k), blas = 0;
    struct mk_gemm_problem p = {
        layout, dtype, m,    n,    k, (void *)(uintptr_t)a.p, (void *)(uintptr_t)b.p, (void *)(uintptr_t)c.p,
        a.ld,   b.ld,  c.ld, NULL, 0};
    struct mk_gemm_choice choice;
    if (k && !blas_gemm(layout, dtype, m, n, k, a.p, a.ld, b.p, b.ld, c.p, c.ld, gpu_stream())) {
        gpu_sync();
        blas = error_of(&c, ref, dtype);
    }
    uint64_t first = 0;
    for (int i = 0; i < 3; i++) {
        mk_gemm_choose(&p, true, gpu_sms(), 0, &choice);
        choice.blocks = i == 0 ? gpu_sms() : i == 1 ? 2 : 66;
        choice.group = i == 2 ? 1 : choice.group;
        run_one(&p, &choice, &c, ref, blas);
        const uint64_t h = hash_of(&c);
        if (i && h != first) {
            failures++;
            printf("FAIL bits differ at %d blocks: layout %d M=%ld N=%ld K=%ld kind %d\n", choice.blocks,
                   layout, (long)m, (long)n, (long)k, choice.kind);
        }
        first = h;
    }
    static const int big[][2] = {{256, 2}, {256, 1}, {192, 1}, {128, 1}, {64, 1}};
    const bool in =
        k > 0 && (uintptr_t)p.a % 16 == 0 && (uintptr_t)p.b % 16 == 0 && a.ld % 8 == 0 && b.ld % 8 == 0;
    choice.blocks = gpu_sms();
    choice.group = 8;
    choice.splits = 1;
    for (int i = 0; i < 5 && in && (uintptr_t)p.c % 16 == 0 && c.ld % 8 == 0 && n % 8 == 0; i++) {
        choice.kind = MK_GEMM_BIG;
        choice.bn = big[i][0];
        choice.cm = big[i][1];
        run_one(&p, &choice, &c, ref, blas);
    }
    choice.kind = MK_GEMM_SKINNY;
    choice.cm = 1;
    for (choice.bn = 8; choice.bn <= 64 && in && layout != MK_NT; choice.bn *= 2)
        for (choice.splits = 1; choice.bn >= m && choice.splits <= 2; choice.splits *= 2)
            run_one(&p, &choice, &c, ref, blas);
    choice.kind = MK_GEMM_PORTABLE;
    run_one(&p, &choice, &c, ref, blas);
    free(ref);
    drop(&a);
    drop(&b);
    drop(&c);
}

static void shape(mk_layout_t layout, mk_dtype_t dtype, int64_t m, int64_t n, int64_t k, int pad, int off)
{
    shape_ld(layout, dtype, m, n, k, (layout == MK_NT ? m : k) + pad, (layout == MK_TN ? k : n) + pad,
             n + pad, off);
}

static void tails(mk_layout_t layout, int64_t m, int64_t n, int64_t k)
{
    const int64_t widest = layout == MK_NT ? m : k;
    shape_ld(layout, MK_BFLOAT16, m, n, k, (widest + 15) / 8 * 8, ((layout == MK_TN ? k : n) + 15) / 8 * 8,
             (n + 15) / 8 * 8, 0);
}

static void expect(bool ok, const char *what)
{
    if (!ok) {
        failures++;
        printf("FAIL %s: %s\n", what, mk_last_error());
    }
}

static double activate(double x, int act)
{
    return act == 1   ? (x < 0 ? 0 : x)
           : act == 2 ? 0.5 * x * (1 + erf(x / sqrt(2)))
           : act == 3 ? x / (1 + exp(-x))
                      : x;
}

/* The public call: epilogues on each kind of kernel, K = 0, NaN and Inf, errors before anything is touched. */
static void public_api(void)
{
    static const int64_t dims[][3] = {{200, 304, 96}, {5, 304, 96}, {33, 35, 17}, {40, 48, 0}};
    for (int i = 0; i < 16; i++) {
        const int64_t m = dims[i % 4][0], n = dims[i % 4][1], k = dims[i % 4][2];
        const mk_dtype_t dtype = i & 8 ? MK_FLOAT16 : MK_BFLOAT16;
        const int act = i / 4;
        struct matrix a = make(m, k, 0, 0, dtype, 11), b = make(n, k, 0, 0, dtype, 12),
                      c = make(m, n, 0, 0, dtype, 0);
        struct matrix bias = make(1, n, 0, 0, dtype, 13);
        double *ref = reference(MK_TN, dtype, &a, &b, m, n, k);
        for (int64_t j = 0; j < m * n; j++)
            ref[j] = activate(ref[j] + gpu_value(bias.host[j % n], dtype), act);
        const mk_epilogue_t e = {(void *)(uintptr_t)bias.p, (mk_activation_t)act};
        const int ret =
            mk_gemm(MK_TN, m, n, k, dtype, (void *)(uintptr_t)a.p, k ? k : 1, (void *)(uintptr_t)b.p,
                    k ? k : 1, (void *)(uintptr_t)c.p, n, &e, gpu_stream());
        gpu_sync();
        const double err = error_of(&c, ref, dtype);
        expect(!ret && err >= 0 && err < 4e-3, "epilogue");
        free(ref);
        drop(&a);
        drop(&b);
        drop(&c);
        drop(&bias);
    }
}

static void special_values(void)
{
    static const int64_t rows[] = {3, 200};
    for (int i = 0; i < 2; i++) {
        const int64_t m = rows[i], n = 64, k = 64;
        struct matrix a = make(m, k, 0, 0, MK_BFLOAT16, 21), b = make(n, k, 0, 0, MK_BFLOAT16, 22),
                      c = make(m, n, 0, 0, MK_BFLOAT16, 0);
        a.host[0] = 0x7fc0; /* NaN in row 0 */
        a.host[k] = 0x7f80; /* Inf in row 1 */
        gpu_put(a.p, a.host, a.count * 2);
        expect(!mk_gemm(MK_TN, m, n, k, MK_BFLOAT16, (void *)(uintptr_t)a.p, k, (void *)(uintptr_t)b.p, k,
                        (void *)(uintptr_t)c.p, n, NULL, gpu_stream()),
               "NaN and Inf");
        gpu_sync();
        gpu_get(c.host, c.p, c.count * 2);
        for (int64_t j = 0; j < n; j++) {
            expect(isnan(gpu_value(c.host[j], MK_BFLOAT16)), "NaN propagates");
            expect(isinf(gpu_value(c.host[n + j], MK_BFLOAT16)), "Inf propagates");
            expect(isfinite(gpu_value(c.host[2 * n + j], MK_BFLOAT16)), "other rows are finite");
        }
        drop(&a);
        drop(&b);
        drop(&c);
    }
}

static void errors(void)
{
    struct matrix c = make(64, 64, 0, 0, MK_BFLOAT16, 0), a = make(64, 64, 0, 0, MK_BFLOAT16, 5);
    void *pa = (void *)(uintptr_t)a.p, *pc = (void *)(uintptr_t)c.p;
    expect(mk_gemm(MK_TN, 64, 64, 64, MK_BFLOAT16, a.host, 64, pa, 64, pc, 64, NULL, NULL) == MK_ERR_INVALID,
           "host A, device B");
    expect(mk_gemm(MK_TN, 64, 64, 64, MK_FLOAT32, pa, 64, pa, 64, pc, 64, NULL, NULL) == MK_ERR_UNSUPPORTED,
           "fp32");
    expect(mk_gemm(MK_TN, 64, 64, 64, MK_BFLOAT16, pa, 63, pa, 64, pc, 64, NULL, NULL) == MK_ERR_INVALID,
           "lda");
    expect(mk_gemm(MK_TN, 64, -1, 64, MK_BFLOAT16, pa, 64, pa, 64, pc, 64, NULL, NULL) == MK_ERR_INVALID,
           "negative N");
    expect(mk_gemm(MK_TN, 64, 64, 64, MK_BFLOAT16, pc, 64, pa, 64, pc, 64, NULL, NULL) == MK_ERR_INVALID,
           "A is C");
    expect(mk_gemm(MK_TN, 64, 64, 64, MK_BFLOAT16, (char *)pa + 1, 64, pa, 64, pc, 64, NULL, NULL) ==
               MK_ERR_INVALID,
           "misaligned");
    expect(mk_gemm(MK_TN, 0, 64, 64, MK_BFLOAT16, pa, 64, pa, 64, pc, 64, NULL, NULL) == 0, "M = 0");
    gpu_sync();
    gpu_get(c.host, c.p, c.count * 2);
    for (size_t i = 0; i < c.count; i++)
        if (c.host[i] != 0xffff) {
            expect(false, "an error touched C");
            break;
        }
    drop(&a);
    drop(&c);
}

/* Device memory, but no context in this thread: nobody may read it as host memory. */
static void *without_context(void *arg)
{
    const struct matrix *c = arg;
    void *pc = (void *)(uintptr_t)c->p;
    expect(mk_gemm(MK_TN, 16, 16, 16, MK_BFLOAT16, pc, 16, (char *)pc + 1024, 16, (char *)pc + 4096, 16, NULL,
                   NULL) == MK_ERR_INVALID &&
               strstr(mk_last_error(), "no current CUDA context"),
           "no context");
    return NULL;
}
static void other_thread(void)
{
    struct matrix c = make(64, 64, 0, 0, MK_BFLOAT16, 0);
    pthread_t thread;
    expect(!pthread_create(&thread, NULL, without_context, &c) && !pthread_join(thread, NULL), "thread");
    drop(&c);
}

int main(int argc, char **argv)
{
    const char *why;
    const int shapes = argc > 1 ? atoi(argv[1]) : 60;
    rng = argc > 2 ? strtoull(argv[2], NULL, 10) : 7;
    if (!gpu_open(&why) || !blas_open(&why)) {
        printf("skip: gpu.gemm: %s\n", why);
        return 77;
    }
    /* any of M, N, K odd while every leading dimension suits the copy engine */
    for (int i = 0; i < 12; i++) {
        const int64_t n = i & 1 ? 255 : 256, k = i & 2 ? 31 : 32, m = i & 4 ? 131 : 136;
        const mk_layout_t layout = (mk_layout_t)(i % 3);
        tails(layout, m, n, k);
        tails(layout, 5, n, k);
    }
    static const int odd[] = {1, 2, 7, 31, 64, 97, 128, 129, 255, 256, 257, 384, 521, 640, 1009};
    for (int i = 0; i < shapes; i++) {
        const int64_t m = rnd(3) ? odd[rnd(15)] : 1 + rnd(700), n = rnd(3) ? odd[rnd(15)] : 1 + rnd(700),
                      k = rnd(3) ? odd[rnd(15)] : 1 + rnd(1500);
        const mk_layout_t layout = (mk_layout_t)(i % 3);
        const int aligned = rnd(3) != 0; /* else the portable path */
        const int64_t x = aligned ? 8 : 1;
        shape(layout, rnd(2) ? MK_BFLOAT16 : MK_FLOAT16,
              (m + (layout == MK_NT ? x - 1 : 0)) / (layout == MK_NT ? x : 1) * (layout == MK_NT ? x : 1),
              (n + x - 1) / x * x, (k + x - 1) / x * x, aligned ? 8 * (int)rnd(2) : (int)rnd(4),
              aligned ? 0 : (int)rnd(3));
    }
    shape(MK_TN, MK_BFLOAT16, 33, 40, 0, 0, 0);
    public_api();
    special_values();
    errors();
    other_thread();
    printf("%d shapes, %d failures; worst error over cuBLAS's: big %.3f, skinny %.3f, portable %.3f\n",
           shapes, failures, worst[0], worst[1], worst[2]);
    return failures != 0;
}
