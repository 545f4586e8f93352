/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Calls of cuBLAS in the pair recogniser's words (mk/pair_blas.h): every element of A, B and C is where the call has it,
 * and what we do not do is told apart. Numbers of the enumerations: cublas_api.h, cublasLt.h, library_types.h, nccl.h. */
#include "mk/pair_blas.h"
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

/* What PyTorch calls for y = x w^T with x[t, k], w[n, k] in bf16. */
static struct mk_pair_cublas linear(int64_t t, int64_t n, int64_t k)
{
    return (struct mk_pair_cublas){.transa = 1,
                                   .transb = 0,
                                   .a_type = 14,
                                   .b_type = 14,
                                   .c_type = 14,
                                   .bias_type = 14,
                                   .compute = 68,
                                   .m = n,
                                   .n = t,
                                   .k = k,
                                   .lda = k,
                                   .ldb = k,
                                   .ldc = n,
                                   .ldd = n,
                                   .a = 0x1000000,
                                   .b = 0x2000000,
                                   .c = 0x3000000,
                                   .d = 0x3000000,
                                   .alpha = 1,
                                   .batch = 1};
}

/* Address of an element of op(X), X column-major with leading dimension ld. */
static uint64_t column_major(uint64_t x, int64_t ld, int trans, int64_t row, int64_t col)
{
    return x + 2 * (uint64_t)(trans ? col + row * ld : row + col * ld);
}
static uint64_t row_major(uint64_t x, int64_t ld, bool transposed, int64_t row, int64_t col)
{
    return x + 2 * (uint64_t)(transposed ? row + col * ld : row * ld + col);
}

static void elements_are_where_the_call_has_them(void **state)
{
    const int64_t m = 5, n = 7, k = 3;
    (void)state;
    for (int transa = 0; transa < 3; transa++)
        for (int transb = 0; transb < 3; transb++) {
            struct mk_pair_cublas call = linear(n, m, k);
            struct mk_pair_gemm g;
            call.transa = transa;
            call.transb = transb;
            call.lda = 11, call.ldb = 13, call.ldc = call.ldd = 17;
            mk_pair_from_cublas(&call, &g);
            if (transa && transb) {
                assert_int_equal(g.flags, MK_PAIR_CANNOT);
                continue;
            }
            assert_int_equal(g.flags, 0);
            assert_int_equal(g.m, n);
            assert_int_equal(g.n, m);
            assert_int_equal(g.k, k);
            /* C[r, c] = sum over l of A[r, l] B[l, c], row-major, has to be the call's C(c, r). */
            for (int64_t r = 0; r < g.m; r++)
                for (int64_t c = 0; c < g.n; c++) {
                    assert_int_equal(row_major(g.c, g.ldc, false, r, c),
                                     column_major(call.d, call.ldd, 0, c, r));
                    for (int64_t l = 0; l < k; l++) {
                        assert_int_equal(row_major(g.a, g.lda, g.layout == MK_NT, r, l),
                                         column_major(call.b, call.ldb, transb, l, r));
                        assert_int_equal(row_major(g.b, g.ldb, g.layout == MK_TN, l, c),
                                         column_major(call.a, call.lda, transa, c, l));
                    }
                }
        }
}

/* The layouts of the forward and the two backward GEMMs of a linear layer. */
static void layouts_of_a_linear_layer(void **state)
{
    struct mk_pair_cublas call = linear(8, 16, 4);
    struct mk_pair_gemm g;
    (void)state;
    mk_pair_from_cublas(&call, &g);
    assert_int_equal(g.layout, MK_TN);
    assert_int_equal(g.b, call.a); /* the weight */
    assert_true(g.a_type == MK_BFLOAT16 && g.b_type == MK_BFLOAT16 && g.c_type == MK_BFLOAT16);
    assert_int_equal(g.epilogue, MK_PAIR_PLAIN_EPILOGUE);
    call.transa = 0;
    mk_pair_from_cublas(&call, &g);
    assert_int_equal(g.layout, MK_NN);
    call.transb = 1;
    mk_pair_from_cublas(&call, &g);
    assert_int_equal(g.layout, MK_NT);
    call.transb = 7;
    mk_pair_from_cublas(&call, &g);
    assert_int_equal(g.flags, MK_PAIR_CANNOT);
}

static void types_and_computations(void **state)
{
    const struct {
        int32_t compute, math;
        uint32_t flags;
    } cases[] = {{68, 0, 0},
                 {68, 1, 0},
                 {68, 16, 0}, /* CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION */
                 {68, 17, 0},
                 {64, 0, MK_PAIR_COMPUTE_16F},
                 {65, 0, MK_PAIR_COMPUTE_16F | MK_PAIR_PEDANTIC},
                 {69, 0, MK_PAIR_PEDANTIC},
                 {68, 2, MK_PAIR_PEDANTIC},
                 {68, 18, MK_PAIR_PEDANTIC},
                 {77, 0, MK_PAIR_TF32},
                 {68, 3, 0}, /* means nothing to bf16 */
                 {74, 0, MK_PAIR_EMULATED},
                 {78, 0, MK_PAIR_EMULATED},
                 {68, 4, MK_PAIR_EMULATED},
                 {0, 0, MK_PAIR_EMULATED}};
    struct mk_pair_cublas call = linear(8, 16, 4);
    struct mk_pair_gemm g;
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        call.compute = cases[i].compute;
        call.math = cases[i].math;
        mk_pair_from_cublas(&call, &g);
        assert_int_equal(g.flags, cases[i].flags);
    }
    call = linear(8, 16, 4);
    call.a_type = call.b_type = call.c_type = 0;
    call.math = 3;
    mk_pair_from_cublas(&call, &g);
    assert_int_equal(g.flags, MK_PAIR_TF32);
    call = linear(8, 16, 4);
    call.a_type = 2, call.b_type = 0, call.c_type = 1;
    mk_pair_from_cublas(&call, &g);
    assert_int_equal(g.b_type, MK_FLOAT16);
    assert_int_equal(g.a_type, MK_FLOAT32);
    assert_int_equal(g.c_type, MK_PAIR_OTHER_DTYPE); /* fp64 */
    call = linear(8, 16, 4);
    call.d += 64;
    call.flags = MK_PAIR_NEW_LT;
    mk_pair_from_cublas(&call, &g);
    assert_int_equal(g.flags, MK_PAIR_C_NOT_D | MK_PAIR_NEW_LT);
    assert_int_equal(g.c, call.d);
    const int32_t nccl[] = {0, 1, 6, 7, 8, 9, 10};
    const uint8_t dtypes[] = {3, 3, MK_FLOAT16, MK_FLOAT32, 3, MK_BFLOAT16, 3};
    for (size_t i = 0; i < sizeof(dtypes); i++)
        assert_int_equal(mk_pair_dtype_of_nccl(nccl[i]), dtypes[i]);
}

static void epilogues(void **state)
{
    const struct {
        int32_t epilogue;
        uint64_t bias;
        int32_t bias_type;
        uint8_t want;
    } cases[] = {{0, 0, 14, MK_PAIR_PLAIN_EPILOGUE},    {1, 0x100, 14, MK_PAIR_PLAIN_EPILOGUE},
                 {4, 0x100, 14, MK_PAIR_BIAS},          {4, 0, 14, MK_PAIR_OTHER_EPILOGUE},
                 {4, 0x100, 0, MK_PAIR_OTHER_EPILOGUE}, {6, 0x100, 14, MK_PAIR_RELU_BIAS},
                 {36, 0x100, 14, MK_PAIR_GELU_BIAS},    {2, 0, 14, MK_PAIR_OTHER_EPILOGUE},
                 {32, 0, 14, MK_PAIR_OTHER_EPILOGUE},   {134, 0x100, 14, MK_PAIR_OTHER_EPILOGUE}};
    struct mk_pair_gemm g;
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mk_pair_cublas call = linear(8, 16, 4);
        call.epilogue = cases[i].epilogue;
        call.bias = cases[i].bias;
        call.bias_type = cases[i].bias_type;
        mk_pair_from_cublas(&call, &g);
        assert_int_equal(g.epilogue, cases[i].want);
        assert_int_equal(g.bias, g.epilogue == MK_PAIR_PLAIN_EPILOGUE ? 0 : cases[i].bias);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(elements_are_where_the_call_has_them),
                                       cmocka_unit_test(layouts_of_a_linear_layer),
                                       cmocka_unit_test(types_and_computations), cmocka_unit_test(epilogues)};
    return cmocka_run_group_tests_name("pair_blas", tests, NULL, NULL);
}
