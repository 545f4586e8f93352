/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Float64 product. A strip of rows belongs to a thread; K is walked in blocks of KB; inside, panels of A and B are
 * copied as doubles in the order in which the innermost loop reads them. Built with -ffp-contract=fast: multiply
 * and add may fuse, the result is a reference, not a contract of bits. */
#include "ref.h"
#include "mk/err.h"
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { KB = 256, MB = 96, MR = 4, NR = 16 };

typedef double vec __attribute__((vector_size(64), aligned(64)));

/* acc[MR][NR] += A panel [KB][MR] * B panel [KB][NR], then into c. */
static inline __attribute__((always_inline)) void micro(int64_t k, const double *a, const double *b,
                                                        double *acc)
{
    vec s[MR][NR / 8];
    const vec *bv = (const vec *)b;
    memset(s, 0, sizeof(s));
    for (int64_t p = 0; p < k; p++)
        for (int i = 0; i < MR; i++)
            for (int j = 0; j < NR / 8; j++)
                s[i][j] += a[p * MR + i] * bv[p * (NR / 8) + j];
    memcpy(acc, s, sizeof(s));
}

static void micro_plain(int64_t k, const double *a, const double *b, double *acc)
{
    micro(k, a, b, acc);
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static void micro_avx2(int64_t k, const double *a, const double *b,
                                                           double *acc)
{
    micro(k, a, b, acc);
}
__attribute__((target("avx512f"))) static void micro_avx512(int64_t k, const double *a, const double *b,
                                                            double *acc)
{
    micro(k, a, b, acc);
}
#endif

typedef void (*micro_fn)(int64_t k, const double *a, const double *b, double *acc);

static micro_fn best_micro(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        return micro_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return micro_avx2;
#endif
    return micro_plain;
}

struct job {
    pthread_t thread;
    bool started;
    micro_fn fn;
    int64_t m0, m1, n0, n1, k, ldc;
    struct mk_ref_view a, b;
    double *c;
    double *pack_a, *pack_b; /* [KB][MB], [KB][NR] */
};

/* x(i0 .. i0 + n, p0 .. p0 + k) as [panel of w][k][w], missing rows as zeros. */
static void pack(struct mk_ref_view x, int64_t i0, int64_t n, int64_t p0, int64_t k, int w, double *out)
{
    for (int64_t panel = 0; panel < n; panel += w)
        for (int i = 0; i < w; i++) {
            const float *from = x.p + (i0 + panel + i) * x.row + p0 * x.col;
            for (int64_t p = 0; p < k; p++)
                out[(panel / w * k + p) * w + i] = panel + i < n ? (double)from[p * x.col] : 0;
        }
}

static void block(const struct job *j, int64_t i0, int64_t rows, int64_t j0, int64_t cols, int64_t k)
{
    _Alignas(64) double acc[MR][NR];
    for (int64_t i = 0; i < rows; i += MR) {
        j->fn(k, j->pack_a + i * k, j->pack_b, &acc[0][0]);
        for (int64_t r = 0; r < MR && i + r < rows; r++) {
            double *to = j->c + (i0 + i + r) * j->ldc + j0;
            for (int64_t s = 0; s < cols; s++)
                to[s] += acc[r][s];
        }
    }
}

static void *work(void *arg)
{
    const struct job *j = arg;
    const struct mk_ref_view bt = {j->b.p, j->b.col, j->b.row};
    for (int64_t p = 0; p < j->k; p += KB) {
        const int64_t k = j->k - p < KB ? j->k - p : KB;
        for (int64_t i = j->m0; i < j->m1; i += MB) {
            const int64_t rows = j->m1 - i < MB ? j->m1 - i : MB;
            pack(j->a, i, rows, p, k, MR, j->pack_a);
            for (int64_t n = j->n0; n < j->n1; n += NR) {
                const int64_t cols = j->n1 - n < NR ? j->n1 - n : NR;
                pack(bt, n, cols, p, k, NR, j->pack_b);
                block(j, i, rows, n, cols, k);
            }
        }
    }
    return NULL;
}

static int run(struct job *jobs, int threads)
{
    for (int t = 0; t < threads; t++) {
        void *p;
        if (posix_memalign(&p, 64, sizeof(double) * KB * (MB + NR)))
            return mk_fail_quiet(MK_ERR_NOMEM, "out of memory for the reference");
        jobs[t].pack_a = p;
        jobs[t].pack_b = jobs[t].pack_a + (size_t)KB * MB;
    }
    for (int t = 1; t < threads; t++)
        jobs[t].started = !pthread_create(&jobs[t].thread, NULL, work, &jobs[t]);
    for (int t = 0; t < threads; t++)
        if (!jobs[t].started)
            work(&jobs[t]);
    for (int t = 1; t < threads; t++)
        if (jobs[t].started)
            pthread_join(jobs[t].thread, NULL);
    return 0;
}

int mk_ref_gemm(int64_t m, int64_t n, int64_t k, struct mk_ref_view a, struct mk_ref_view b, double *c,
                int threads)
{
    if (m <= 0 || n <= 0 || k <= 0)
        return 0;
    threads = threads < 1 ? 1 : threads > 256 ? 256 : threads;
    struct job *jobs = calloc((size_t)threads, sizeof(*jobs));
    if (!jobs)
        return mk_fail_quiet(MK_ERR_NOMEM, "out of memory for the reference");
    const bool by_row = m >= n;
    for (int t = 0; t < threads; t++) {
        const int64_t from = (by_row ? m : n) * t / threads, to = (by_row ? m : n) * (t + 1) / threads;
        jobs[t] =
            (struct job){.fn = best_micro(), .m1 = m, .n1 = n, .k = k, .ldc = n, .a = a, .b = b, .c = c};
        *(by_row ? &jobs[t].m0 : &jobs[t].n0) = from;
        *(by_row ? &jobs[t].m1 : &jobs[t].n1) = to;
    }
    const int ret = run(jobs, threads);
    for (int t = 0; t < threads; t++)
        free(jobs[t].pack_a);
    free(jobs);
    return ret;
}

void mk_ref_compare(struct mk_ref_error *e, const float *got, const double *ref, int64_t n, double largest)
{
    for (int64_t i = 0; i < n; i++, e->count++) {
        const double x = (double)got[i], y = ref[i];
        if (!isfinite(x) || !isfinite(y)) {
            const bool same = (isnan(x) && isnan(y)) || x == y;
            const bool beyond = isinf(x) && fabs(y) >= largest && signbit(x) == signbit(y);
            e->wrong += !same && !beyond;
            continue;
        }
        const double d = fabs(x - y);
        if (d > e->worst) {
            e->worst = d;
            e->worst_index = e->count;
        }
        e->diff2 += d * d;
        e->ref2 += y * y;
    }
}

double mk_ref_relative(const struct mk_ref_error *e)
{
    if (e->wrong)
        return INFINITY;
    if (e->diff2 == 0)
        return 0;
    return e->ref2 > 0 ? sqrt(e->diff2 / e->ref2) : INFINITY;
}
