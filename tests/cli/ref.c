/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The reference product against a plain triple loop, the error measure, the random numbers. */
#include "plugin/cli/ref.h"
#include "plugin/cli/rng.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>

/* a[m, k] and b[k, n] stored as given by the strides. */
static void one_product(int64_t m, int64_t n, int64_t k, bool a_by_column, bool b_by_column, int threads)
{
    float *a = malloc(sizeof(*a) * (size_t)(m * k + 1)), *b = malloc(sizeof(*b) * (size_t)(k * n + 1));
    double *c = malloc(sizeof(*c) * (size_t)(m * n + 1));
    assert_true(a && b && c);
    for (int64_t i = 0; i < m * k; i++)
        a[i] = mk_rng_uniform(1, 0, (uint64_t)i);
    for (int64_t i = 0; i < k * n; i++)
        b[i] = mk_rng_uniform(1, 1, (uint64_t)i);
    for (int64_t i = 0; i <= m * n; i++)
        c[i] = 7;
    const struct mk_ref_view va = {a, a_by_column ? 1 : k, a_by_column ? m : 1};
    const struct mk_ref_view vb = {b, b_by_column ? 1 : n, b_by_column ? k : 1};
    assert_int_equal(mk_ref_gemm(m, n, k, va, vb, c, threads), 0);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 7;
            for (int64_t p = 0; p < k; p++)
                sum += (double)a[i * va.row + p * va.col] * (double)b[p * vb.row + j * vb.col];
            assert_true(fabs(c[i * n + j] - sum) <= 1e-13 * (double)(k + 1));
        }
    assert_true(c[m * n] == 7);
    free(a);
    free(b);
    free(c);
}

static void products(void **state)
{
    (void)state;
    static const int shapes[][3] = {{1, 1, 1},    {4, 16, 256}, {5, 17, 257},   {97, 3, 31}, {3, 113, 600},
                                    {101, 67, 0}, {0, 5, 5},    {200, 33, 300}, {1, 300, 7}};
    for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++)
        for (int layout = 0; layout < 4; layout++)
            one_product(shapes[s][0], shapes[s][1], shapes[s][2], layout & 1, layout & 2, 1 + (int)(s % 3));
}

static double error_of(const float *got, const double *ref, int n)
{
    struct mk_ref_error e = {0};
    mk_ref_compare(&e, got, ref, n / 2, 3.4e38); /* in two pieces */
    mk_ref_compare(&e, got + n / 2, ref + n / 2, n - n / 2, 3.4e38);
    return mk_ref_relative(&e);
}

static void errors(void **state)
{
    (void)state;
    assert_true(error_of((float[]){3, 4}, (double[]){3, 4}, 2) == 0);
    assert_true(error_of((float[]){3, 4.5f}, (double[]){3, 4}, 2) == 0.1);
    assert_true(error_of((float[]){0, 0}, (double[]){0, 0}, 2) == 0);
    assert_true(isinf(error_of((float[]){0, 1}, (double[]){0, 0}, 2)));
    assert_true(error_of((float[]){NAN, INFINITY, 1}, (double[]){NAN, INFINITY, 1}, 3) == 0);
    assert_true(isinf(error_of((float[]){NAN, 1}, (double[]){1, 1}, 2)));
    assert_true(isinf(error_of((float[]){1, 1}, (double[]){1, NAN}, 2)));
    assert_true(isinf(error_of((float[]){INFINITY, 1}, (double[]){-INFINITY, 1}, 2)));
    assert_true(error_of((float[]){INFINITY, 1}, (double[]){1e39, 1}, 2) == 0);
    assert_true(isinf(error_of((float[]){INFINITY, 1}, (double[]){1e38, 1}, 2)));
    assert_true(isinf(error_of((float[]){-INFINITY, 1}, (double[]){1e39, 1}, 2)));
}

/* Fixed values: the same on every machine. And they look uniform. */
static void random_numbers(void **state)
{
    (void)state;
    assert_true(mk_rng_uniform(1, 0, 0) == -0x1.137a1p-3f);
    assert_true(mk_rng_uniform(1, 0, 1) == -0x1.309c6p-3f);
    assert_true(mk_rng_uniform(1, 1, 0) == -0x1.64379p-1f);
    assert_true(mk_rng_uniform(2, 0, 0) == 0x1.73cfcp-2f);
    double sum = 0, sum2 = 0;
    for (uint64_t i = 0; i < 100000; i++) {
        const double x = mk_rng_uniform(5, 0, i);
        assert_true(x >= -1 && x < 1);
        sum += x;
        sum2 += x * x;
    }
    assert_true(fabs(sum / 100000) < 0.01);
    assert_true(fabs(sum2 / 100000 - 1.0 / 3) < 0.01);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(products), cmocka_unit_test(errors),
                                       cmocka_unit_test(random_numbers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
