/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* mk_gemm against a stand-in for the CUDA driver (fake_driver.c; LD_LIBRARY_PATH names its folder): which kernel on
 * which GPU, and every refusal before anything is touched. Usage: gemm_place full|old|absent, the driver that is there. */
#include "fake_driver.h"
#include "fused/cuda/gemm.h"
#include "mk/log.h"
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define M 8
#define N 72
#define K 64

static struct fake_driver *gpu;
static int context, other_context;
static _Alignas(64) char mine[65536], theirs[65536], host[65536]; /* memory of GPU 0, of GPU 1, of the host */
static char said[4096];

static void listen(enum mk_log_level level, const char *subsys, const char *text)
{
    (void)level, (void)subsys;
    strncat(said, text, sizeof(said) - strlen(said) - 1);
}

static uint16_t *a_of(char *mem)
{
    return (uint16_t *)(void *)mem;
}
static uint16_t *b_of(char *mem)
{
    return a_of(mem) + M * K;
}
static uint16_t *c_of(char *mem)
{
    return b_of(mem) + N * K;
}

static int reset(void **state)
{
    (void)state;
    memset(mine, 0x5a, sizeof(mine));
    memset(theirs, 0x5a, sizeof(theirs));
    if (!gpu)
        return 0;
    memset(gpu, 0, sizeof(*gpu));
    gpu->major = 9;
    gpu->sms = 132;
    gpu->ctx = gpu->stream_ctx = &context;
    gpu->memory[0].base = mine;
    gpu->memory[1].base = theirs;
    gpu->memory[0].bytes = gpu->memory[1].bytes = sizeof(mine);
    gpu->memory[1].device = 1;
    return 0;
}

static int call(const void *a, const void *b, void *c, void *stream)
{
    return mk_gemm(MK_TN, M, N, K, MK_BFLOAT16, a, K, b, K, c, N, NULL, stream);
}
static int on(char *mem, void *stream)
{
    return call(a_of(mem), b_of(mem), c_of(mem), stream);
}

/* The call failed with this error, said these words, and touched nothing. */
static void refused(int ret, int error, const char *words)
{
    assert_int_equal(ret, error);
    if (!strstr(mk_last_error(), words))
        fail_msg("\"%s\" does not say \"%s\"", mk_last_error(), words);
    for (size_t i = 0; i < sizeof(mine); i++)
        if (mine[i] != 0x5a || theirs[i] != 0x5a)
            fail_msg("byte %zu of GPU memory was written", i);
    if (gpu)
        assert_int_equal(gpu->launches, 0);
}

static void launched(int ret, const char *kernel)
{
    if (!mk_kernels_built) {
        refused(ret, MK_ERR_UNSUPPORTED, "built without kernels");
        return;
    }
    assert_int_equal(ret, 0);
    assert_int_equal(gpu->launches, 1);
    if (strncmp(gpu->kernel, kernel, strlen(kernel)))
        fail_msg("kernel %s, not %s", gpu->kernel, kernel);
    gpu->launches = 0;
}

/* ---- the driver is there ---- */

static void hopper_kernels(void **state)
{
    (void)state;
    launched(on(mine, NULL), "skinny_tn_bf16_8x1");
    launched(
        mk_gemm(MK_NN, 8, 16, 512, MK_BFLOAT16, mine, 512, mine + 8192, 16, mine + 32768, 16, NULL, NULL),
        "skinny_nn_bf16_8x2");
    launched(
        mk_gemm(MK_TN, 80, 64, 64, MK_BFLOAT16, mine, 64, mine + 16384, 64, mine + 32768, 64, NULL, NULL),
        "gemm_tn_bf16_");
    launched(mk_gemm(MK_TN, 4, 4, 7, MK_FLOAT16, mine, 7, mine + 4096, 7, mine + 8192, 4, NULL, NULL),
             "portable_fp16");
}

static void older_gpus(void **state)
{
    static const int portable[][2] = {{8, 0}, {8, 6}, {8, 9}, {10, 0}, {12, 0}},
                     refuse[][2] = {{7, 0}, {7, 5}, {3, 5}};
    char words[64];
    (void)state;
    for (size_t i = 0; i < sizeof(portable) / sizeof(portable[0]); i++) {
        gpu->major = portable[i][0];
        gpu->minor = portable[i][1];
        launched(on(mine, NULL), "portable_bf16");
    }
    for (size_t i = 0; i < sizeof(refuse) / sizeof(refuse[0]); i++) {
        gpu->major = refuse[i][0];
        gpu->minor = refuse[i][1];
        snprintf(words, sizeof(words), "GPU 0, whose compute capability is %d.%d; 8.0 is the least",
                 refuse[i][0], refuse[i][1]);
        refused(on(mine, NULL), MK_ERR_UNSUPPORTED, words);
    }
}

static void wrong_device(void **state)
{
    (void)state;
    refused(on(theirs, NULL), MK_ERR_INVALID, "A is in the memory of another GPU than the current one (0)");
    refused(call(a_of(mine), b_of(theirs), c_of(mine), NULL), MK_ERR_INVALID,
            "B is in the memory of another GPU");
    refused(call(a_of(mine), b_of(mine), c_of(theirs), NULL), MK_ERR_INVALID,
            "C is in the memory of another GPU");
    refused(call(a_of(host), b_of(mine), c_of(mine), NULL), MK_ERR_INVALID, "A is not in GPU memory");
    refused(call(a_of(host), b_of(host), c_of(mine), NULL), MK_ERR_INVALID, "is not in GPU memory");
    const mk_epilogue_t e = {host, MK_ACT_NONE};
    refused(mk_gemm(MK_TN, M, N, K, MK_BFLOAT16, a_of(mine), K, b_of(mine), K, c_of(mine), N, &e, NULL),
            MK_ERR_INVALID, "bias is not in GPU memory");
    gpu->ctx = NULL;
    refused(on(mine, NULL), MK_ERR_INVALID, "this thread has no current CUDA context");
}

static void wrong_stream(void **state)
{
    int stream;
    (void)state;
    gpu->stream_ctx = &other_context;
    refused(on(mine, &stream), MK_ERR_INVALID, "stream belongs to another context");
    refused(on(host, &stream), MK_ERR_INVALID, "stream must be NULL: the operands are in host memory");
    gpu->stream_ctx = &context;
    launched(on(mine, &stream), "skinny_tn_bf16_8x1");
}

static void bad_arguments(void **state)
{
    uint16_t *a = a_of(mine), *b = b_of(mine), *c = c_of(mine);
    (void)state;
    if (!mk_kernels_built)
        return; /* each call is refused for that reason first: hopper_kernels */
#define GEMM(m, n, k, pa, lda, pb, ldb, pc, ldc)                                                             \
    mk_gemm(MK_TN, m, n, k, MK_BFLOAT16, pa, lda, pb, ldb, pc, ldc, NULL, NULL)
    refused(GEMM(M, N, K, NULL, K, b, K, c, N), MK_ERR_INVALID, "A");
    refused(GEMM(M, N, K, a, K, b, K, NULL, N), MK_ERR_INVALID, "C");
    refused(GEMM(M, N, K, (char *)a + 1, K, b, K, c, N), MK_ERR_INVALID,
            "is not aligned to its 2-byte elements");
    refused(GEMM(M, N, K, c, K, b, K, c, N), MK_ERR_INVALID, "A overlaps C");
    refused(GEMM(M, N, K, a, K, (char *)c - 2, K, c, N), MK_ERR_INVALID, "B overlaps C");
    refused(GEMM(-1, N, K, a, K, b, K, c, N), MK_ERR_INVALID, "M=-1");
    refused(GEMM(M, N, K, a, K - 1, b, K, c, N), MK_ERR_INVALID, "leading dimension 63");
    refused(GEMM(M, N, K, a, INT64_MAX / 2, b, K, c, N), MK_ERR_INVALID, "A");
    refused(GEMM(INT64_MAX, N, K, a, K, b, K, c, N), MK_ERR_UNSUPPORTED, "too large for one call");
    refused(mk_gemm(MK_NT, M, N, INT64_MAX / 4, MK_BFLOAT16, a, M, b, N, c, N, NULL, NULL),
            MK_ERR_UNSUPPORTED, "is beyond the 2^31-1 of the GPU kernels");
    refused(mk_gemm(MK_NT, M, N, INT32_MAX, MK_BFLOAT16, a, INT32_MAX, b, INT32_MAX, c, N, NULL, NULL),
            MK_ERR_INVALID, "overlaps C");
    refused(mk_gemm(MK_TN, M, N, K, MK_FLOAT32, a, K, b, K, c, N, NULL, NULL), MK_ERR_UNSUPPORTED, "");
#undef GEMM
}

static void driver_errors(void **state)
{
    (void)state;
    if (!mk_kernels_built)
        return;
    gpu->launch_error = 719;
    refused(on(mine, NULL), MK_ERR_CUDA, "skinny_tn_bf16_8x1: CUDA_ERROR_LAUNCH_FAILED");
}

/* ---- whatever the driver: operands in host memory ---- */

static void on_cpu(void **state)
{
    (void)state;
    for (int i = 0; i < M * K; i++)
        a_of(host)[i] = 0x3f80; /* 1 */
    for (int i = 0; i < N * K; i++)
        b_of(host)[i] = 0x4000; /* 2 */
    memset(c_of(host), 0xff, M * N * 2);
    assert_int_equal(on(host, NULL), 0);
    for (int i = 0; i < M * N; i++)
        assert_int_equal(c_of(host)[i], 0x4300); /* 2 K = 128 */
    if (gpu)
        assert_int_equal(gpu->launches, 0);
}

static void said_why(const char *words)
{
    if (!strstr(said, words) || !strstr(said, "GEMMs run on the CPU executor"))
        fail_msg("the log does not say \"%s\": %s", words, said);
}

/* Boxes of a chunk: whole rows, as many as 2 KiB hold and 256 at most; the second of two begins at a multiple of 128 bytes, or
 * there are none. */
static void chunk_boxes(void **state)
{
    (void)state;
    for (int cols = 8; cols <= 256; cols += 8) {
        int rows = 0;
        const bool boxes = mk_gemm_cuda_chunk_boxes(cols, &rows);
        assert_true(rows >= 1 && rows <= 256 && rows * cols <= 1024);
        assert_true(rows == 256 || (rows + 1) * cols > 1024);
        assert_int_equal(boxes, rows * cols % 64 == 0);
        assert_true(cols % 64 || boxes); /* what interception has */
    }
}

static void old_driver(void **state)
{
    const char *words = "the CUDA driver is too old: it lacks cuLibraryLoadData (12.0 or later is needed)";
    on_cpu(state);
    said_why(words);
    refused(on(mine, NULL), MK_ERR_UNSUPPORTED, words);
    refused(call(a_of(host), b_of(host), c_of(mine), NULL), MK_ERR_UNSUPPORTED, "C is in GPU memory");
}

static void no_driver(void **state)
{
    on_cpu(state);
    said_why("no CUDA driver (libcuda.so.1)");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest full[] = {
        cmocka_unit_test_setup(hopper_kernels, reset), cmocka_unit_test_setup(older_gpus, reset),
        cmocka_unit_test_setup(wrong_device, reset),   cmocka_unit_test_setup(wrong_stream, reset),
        cmocka_unit_test_setup(bad_arguments, reset),  cmocka_unit_test_setup(driver_errors, reset),
        cmocka_unit_test_setup(on_cpu, reset),         cmocka_unit_test_setup(chunk_boxes, reset),
    };
    const struct CMUnitTest old[] = {cmocka_unit_test_setup(old_driver, reset)};
    const struct CMUnitTest absent[] = {cmocka_unit_test_setup(no_driver, reset)};
    const char *mode = argc > 1 ? argv[1] : "";
    void *so = dlopen("libcuda.so.1", RTLD_NOW);
    gpu = so ? dlsym(so, "fake_driver") : NULL;
    if (!gpu != !strcmp(mode, "absent")) {
        fprintf(stderr, "%s: the stand-in is %s\n", mode, gpu ? "there" : "not there");
        return 1;
    }
    mk_log_set_sink(listen);
    if (!strcmp(mode, "full"))
        return cmocka_run_group_tests_name("unit.gemm_place.full", full, NULL, NULL);
    if (!strcmp(mode, "old"))
        return cmocka_run_group_tests_name("unit.gemm_place.old", old, NULL, NULL);
    return cmocka_run_group_tests_name("unit.gemm_place.absent", absent, NULL, NULL);
}
