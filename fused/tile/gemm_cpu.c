/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The multiply of one C tile on the CPU: OpenBLAS where it can be opened, else a blocked loop.
 *
 * OpenBLAS is opened at the first tile, never by a process that only loads the library. Its old releases pick a
 * core without AVX2 on processors that they do not know: OPENBLAS_CORETYPE is set by what the processor has, unless
 * the user set it. One thread a call: the blocks are the threads, and its bits must not depend on their number.
 *
 * Both ways work in K blocks where the storage type is not fp32 (panels are widened into scratch); the loop sums
 * each K block apart, so that the error grows with the number of blocks, not with K. */
#include "mk/err.h"
#include "mk/log.h"
#include "mk/param.h"
#include "tile/convert.h"
#include "tile/tile_cpu.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 };
typedef void (*sgemm_fn)(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda,
                         const float *b, int ldb, float beta, float *c, int ldc);
typedef void (*loop_fn)(int rows, int cols, int kb, const float *a, const float *b, float *part);

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int want_blas = 1;
static sgemm_fn sgemm;
static loop_fn loop;
static char name[64];

/* part[rows][cols] = a[rows][kb] * b[kb][cols]; each element is summed over k in order. */
static inline __attribute__((always_inline)) void loop_body(int rows, int cols, int kb, const float *a,
                                                            const float *b, float *part)
{
    for (int i = 0; i < rows; i++) {
        float *c = part + (size_t)i * (size_t)cols;
        memset(c, 0, (size_t)cols * sizeof(*c));
        for (int p = 0; p < kb; p++) {
            const float x = a[(size_t)i * (size_t)kb + (size_t)p];
            const float *y = b + (size_t)p * (size_t)cols;
            for (int j = 0; j < cols; j++)
                c[j] += x * y[j];
        }
    }
}
static void loop_base(int rows, int cols, int kb, const float *a, const float *b, float *part)
{
    loop_body(rows, cols, kb, a, b, part);
}
#ifdef __x86_64__
__attribute__((target("avx2,fma"))) static void loop_avx2(int rows, int cols, int kb, const float *a,
                                                          const float *b, float *part)
{
    loop_body(rows, cols, kb, a, b, part);
}
__attribute__((target("avx512f"))) static void loop_avx512(int rows, int cols, int kb, const float *a,
                                                           const float *b, float *part)
{
    loop_body(rows, cols, kb, a, b, part);
}
#endif

static void choose_loop(void)
{
    loop = loop_base;
#ifdef __x86_64__
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2"))
        loop = loop_avx2;
    if (__builtin_cpu_supports("avx512f"))
        loop = loop_avx512;
#endif
    snprintf(name, sizeof(name), "built-in");
}

static void choose_core(void)
{
#ifdef __x86_64__
    if (mk_env("OPENBLAS_CORETYPE"))
        return;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl"))
        setenv("OPENBLAS_CORETYPE", "SkylakeX", 0);
    else if (__builtin_cpu_supports("avx2"))
        setenv("OPENBLAS_CORETYPE", "Haswell", 0);
#endif
}

static void open_once(void)
{
    choose_loop();
    if (!want_blas)
        return;
    choose_core();
    void *so = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (!so) {
        MK_WARN("FUSED", "OpenBLAS is not there (%s): the built-in multiply is used, several times slower",
                dlerror());
        return;
    }
    void (*set_threads)(int) = NULL;
    char *(*core)(void) = NULL;
    *(void **)&sgemm = dlsym(so, "cblas_sgemm");
    *(void **)&set_threads = dlsym(so, "openblas_set_num_threads");
    *(void **)&core = dlsym(so, "openblas_get_corename");
    if (!sgemm || !set_threads) {
        MK_WARN("FUSED", "libopenblas.so.0 lacks cblas_sgemm: the built-in multiply is used");
        sgemm = NULL;
        dlclose(so);
        return;
    }
    set_threads(1);
    snprintf(name, sizeof(name), "openblas %s", core ? core() : "?");
}

void mk_gemm_cpu_open(int use_blas)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    if (!name[0])
        want_blas = use_blas;
    pthread_once(&once, open_once);
    pthread_mutex_unlock(&lock);
}

const char *mk_gemm_cpu_name(void)
{
    return name;
}

/* A panel of `outer` rows of `inner` elements -> dense fp32. */
static void widen(float *dst, const void *src, int64_t ld, int outer, int inner, int dtype)
{
    const size_t elem = mk_elem_bytes(dtype);
    for (int i = 0; i < outer; i++)
        mk_load_f32(dst + (size_t)i * (size_t)inner, (const uint8_t *)src + (size_t)(i * ld) * elem, dtype,
                    inner);
}
/* The same, transposed: dst[inner][outer]. */
static void widen_transposed(float *dst, const void *src, int64_t ld, int outer, int inner, int dtype)
{
    for (int i = 0; i < outer; i++)
        for (int j = 0; j < inner; j++) {
            const size_t at = (size_t)(i * ld + j);
            dst[(size_t)j * (size_t)outer + (size_t)i] =
                dtype == MK_FLOAT32 ? ((const float *)src)[at] : mk_bf16_to_f32(((const uint16_t *)src)[at]);
        }
}

static const uint8_t *at_k(const void *p, int64_t ld, int64_t k, int k_is_row, int dtype)
{
    return (const uint8_t *)p + (size_t)(k_is_row ? k * ld : k) * mk_elem_bytes(dtype);
}

/* acc[rows][cols] over all K, blocked; OpenBLAS. */
static void blas_blocked(int layout, int dtype, int rows, int cols, int64_t k, const void *a, int64_t lda,
                         const void *b, int64_t ldb, float *pa, float *pb, float *acc)
{
    for (int64_t k0 = 0; k0 < k; k0 += MK_CPU_K_BLOCK) {
        const int kb = (int)(k - k0 < MK_CPU_K_BLOCK ? k - k0 : MK_CPU_K_BLOCK);
        const void *ak = at_k(a, lda, k0, layout == MK_NT, dtype),
                   *bk = at_k(b, ldb, k0, layout != MK_TN, dtype);
        if (layout == MK_NT)
            widen(pa, ak, lda, kb, rows, dtype);
        else
            widen(pa, ak, lda, rows, kb, dtype);
        if (layout == MK_TN)
            widen(pb, bk, ldb, cols, kb, dtype);
        else
            widen(pb, bk, ldb, kb, cols, dtype);
        sgemm(ROW_MAJOR, layout == MK_NT ? TRANS : NO_TRANS, layout == MK_TN ? TRANS : NO_TRANS, rows, cols,
              kb, 1.0f, pa, layout == MK_NT ? rows : kb, pb, layout == MK_TN ? kb : cols, k0 ? 1.0f : 0.0f,
              acc, cols);
    }
}

/* The same with the built-in loop: operands dense as a[rows][kb], b[kb][cols]; K blocks summed in order. */
static void loop_blocked(int layout, int dtype, int rows, int cols, int64_t k, const void *a, int64_t lda,
                         const void *b, int64_t ldb, float *pa, float *pb, float *acc, float *part)
{
    const int step = MK_CPU_K_BLOCK / 2;
    for (int64_t k0 = 0; k0 < k; k0 += step) {
        const int kb = (int)(k - k0 < step ? k - k0 : step);
        const void *ak = at_k(a, lda, k0, layout == MK_NT, dtype),
                   *bk = at_k(b, ldb, k0, layout != MK_TN, dtype);
        if (layout == MK_NT)
            widen_transposed(pa, ak, lda, kb, rows, dtype);
        else
            widen(pa, ak, lda, rows, kb, dtype);
        if (layout == MK_TN)
            widen_transposed(pb, bk, ldb, cols, kb, dtype);
        else
            widen(pb, bk, ldb, kb, cols, dtype);
        loop(rows, cols, kb, pa, pb, part);
        for (size_t i = 0; i < (size_t)rows * (size_t)cols; i++)
            acc[i] = k0 ? acc[i] + part[i] : part[i];
    }
}

void mk_gemm_cpu_tile(int layout, int dtype, int rows, int cols, int64_t k, const void *a, int64_t lda,
                      const void *b, int64_t ldb, void *c, int64_t ldc, float *scratch)
{
    if (sgemm && dtype == MK_FLOAT32 && k > 0 && k <= INT32_MAX) {
        sgemm(ROW_MAJOR, layout == MK_NT ? TRANS : NO_TRANS, layout == MK_TN ? TRANS : NO_TRANS, rows, cols,
              (int)k, 1.0f, (const float *)a, (int)lda, (const float *)b, (int)ldb, 0.0f, (float *)c,
              (int)ldc);
        return;
    }
    float *pa = scratch, *pb = pa + (size_t)MK_CPU_TILE_M * MK_CPU_K_BLOCK;
    float *acc = pb + (size_t)MK_CPU_TILE_N * MK_CPU_K_BLOCK,
          *part = acc + (size_t)MK_CPU_TILE_M * MK_CPU_TILE_N;
    if (k == 0)
        memset(acc, 0, (size_t)rows * (size_t)cols * sizeof(*acc));
    else if (sgemm)
        blas_blocked(layout, dtype, rows, cols, k, a, lda, b, ldb, pa, pb, acc);
    else
        loop_blocked(layout, dtype, rows, cols, k, a, lda, b, ldb, pa, pb, acc, part);
    for (int i = 0; i < rows; i++)
        mk_store_f32((uint8_t *)c + (size_t)(i * ldc) * mk_elem_bytes(dtype), acc + (size_t)i * (size_t)cols,
                     dtype, cols);
}
