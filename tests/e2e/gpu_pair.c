/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What is launched for a GEMM and the AllReduce of its output as two kernels, over the stand-in for the driver: kernels, grids,
 * attributes, what one tells the other. The launches themselves are recorded (gpu_record.h) and not made; tests/gpu/pair.c
 * makes them. */
#include "comm.h"
#include "cuda/gemm.h"
#include "cuda/gpu.h"
#include "gpu_record.h"
#include "mk/pair_run.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* ---- a communicator of one rank on a GPU ---- */

static mk_comm_t comm;
static int streams[2];
static void *words;
static uint8_t *a, *b, *c, *bias;
enum { ROWS = 1000, COLUMNS = 4096, DEPTH = 512 };

static struct mk_gemm_problem problem(void)
{
    const struct mk_gemm_problem p = {.layout = MK_TN,
                                      .dtype = MK_BFLOAT16,
                                      .m = ROWS,
                                      .n = COLUMNS,
                                      .k = DEPTH,
                                      .a = a,
                                      .b = b,
                                      .c = c,
                                      .lda = DEPTH,
                                      .ldb = DEPTH,
                                      .ldc = COLUMNS,
                                      .bias = bias};
    return p;
}

static int set_up(void **state)
{
    (void)state;
    struct mk_cuda *cu = gpu_record();
    mk_unique_id_t none;
    mk_cu_ptr p[5];
    const size_t bytes[5] = {ROWS * DEPTH * 2, COLUMNS * DEPTH * 2, ROWS * COLUMNS * 2 + 64, COLUMNS * 2,
                             1 << 16};
    if (!cu)
        return 1;
    memset(&none, 0, sizeof(none));
    if (mk_comm_init_rank(&comm, 1, none, 0, NULL))
        return 1;
    for (int i = 0; i < 5; i++)
        if (cu->mem_alloc(&p[i], bytes[i]))
            return 1;
    a = (uint8_t *)(uintptr_t)p[0];
    b = (uint8_t *)(uintptr_t)p[1];
    c = (uint8_t *)(uintptr_t)p[2];
    bias = (uint8_t *)(uintptr_t)p[3];
    words = (void *)(uintptr_t)p[4];
    return 0;
}
static int tear_down(void **state)
{
    (void)state;
    return mk_comm_destroy(comm);
}

static struct mk_ar launched(void)
{
    struct mk_ar ar;
    memcpy(&ar, gpu.last.args + 256, sizeof(ar));
    return ar;
}

static int waits(void)
{
    int n = 0;
    for (int i = 0; i < gpu.steps; i++)
        n += gpu.step[i].what == GPU_WAIT;
    return n;
}

/* ---- tests ---- */

static void g_and_k_share_the_multiprocessors(void **state)
{
    (void)state;
    const struct mk_gemm_problem p = problem();
    struct mk_pair_tiles tiles;
    bool followed = false;
    const int spare = mk_pair_blocks(comm);
    uint64_t *descriptor;
    assert_in_range(spare, 1, GPU_SMS / 2);
    assert_int_equal(mk_pair_gemm(&p, spare, words, &streams[0], &tiles), 0);
    assert_int_equal(strncmp(gpu.last.name, "pair_gemm_tn_bf16_", 18), 0);
    assert_false(gpu.last.early);
    assert_in_range(gpu.last.grid, GPU_SMS - spare - 1, GPU_SMS - spare); /* a cluster may be left out */
    assert_int_equal(gpu.last.grid % gpu.last.cluster, 0);
    assert_int_equal(gpu.last.threads, 384);
    memcpy(&descriptor, gpu.last.args + 512, sizeof(descriptor));
    assert_ptr_equal(descriptor, words);
    assert_ptr_equal(tiles.words, words);
    assert_int_equal(tiles.n, COLUMNS);
    assert_int_equal(tiles.band_rows, 128);
    assert_int_equal(tiles.parts, 2 * (COLUMNS / (strstr(gpu.last.name, "_256x") ? 256 : 128)));

    assert_int_equal(
        mk_pair_allreduce(comm, c, (uint64_t)ROWS * COLUMNS, MK_BFLOAT16, &tiles, &streams[0], &followed), 0);
    assert_true(followed);
    assert_string_equal(gpu.last.name, "pair_allreduce_bf16");
    assert_true(gpu.last.early);
    assert_int_equal(gpu.last.grid, 32); /* those without room wait for the end of G */
    assert_ptr_equal(gpu.last.stream, &streams[0]);
    const struct mk_ar ar = launched();
    assert_int_equal(ar.skip_compute, MK_TILES_COME);
    assert_ptr_equal(ar.tile_flag, (uint64_t *)words + MK_PAIR_HEAD);
    assert_int_equal(ar.tile_parts, tiles.parts);
    assert_int_equal(ar.grid.n, 256);
    assert_int_equal(ar.grid.m, ROWS * (COLUMNS / 256));
    assert_int_equal(ar.grid.tile_m, 128 * (COLUMNS / 256));
    assert_int_equal(ar.grid.tile_rows, (ROWS + 127) / 128); /* its bands are G's */
    assert_int_equal(ar.grid.tile_cols, 1);
    assert_in_range(mk_pair_words_bytes(ROWS), (MK_PAIR_HEAD + ar.grid.tile_rows) * sizeof(uint64_t),
                    1 << 16);
}

static void without_tiles_k_comes_after_g(void **state)
{
    (void)state;
    const uint64_t count = (uint64_t)ROWS * COLUMNS;
    struct mk_pair_tiles tiles = {words, ROWS, COLUMNS, 128, 32};
    bool followed = true;
    assert_int_equal(mk_pair_allreduce(comm, c, count, MK_BFLOAT16, &tiles, &streams[0], &followed), 0);
    assert_true(followed);
    const struct mk_ar with = launched();
    assert_int_equal(mk_pair_allreduce(comm, c, count, MK_BFLOAT16, NULL, &streams[0], &followed), 0);
    assert_false(followed);
    assert_false(gpu.last.early);
    const struct mk_ar without = launched();
    assert_int_equal(without.skip_compute, MK_TILES_HERE);
    /* what the ranks must share */
    assert_int_equal(with.signature, without.signature);
    assert_int_equal(with.grid.chunk_m, without.grid.chunk_m);
    assert_int_equal(with.grid.chunk_n, without.grid.chunk_n);
    tiles.band_rows = 3; /* no whole rows of the view */
    tiles.n = 125;
    tiles.m = ROWS * COLUMNS / 125;
    assert_int_equal(mk_pair_allreduce(comm, c, count, MK_BFLOAT16, &tiles, &streams[0], &followed), 0);
    assert_false(followed);
    assert_false(gpu.last.early);
    assert_int_equal(launched().skip_compute, MK_TILES_HERE);
}

/* A count that is not G's output reads words of bands that G never had. */
static void tiles_of_another_count_are_not_followed(void **state)
{
    (void)state;
    const struct mk_pair_tiles tiles = {words, ROWS / 2, COLUMNS, 128, 32};
    bool followed = true;
    assert_int_equal(
        mk_pair_allreduce(comm, c, (uint64_t)ROWS * COLUMNS, MK_BFLOAT16, &tiles, &streams[0], &followed), 0);
    assert_false(followed);
    followed = true;
    assert_int_equal(mk_pair_allreduce(comm, c, 0, MK_BFLOAT16, &tiles, &streams[0], &followed), 0);
    assert_false(followed);
}

/* The edge from the other stream lies behind G: K must not count on G being what is before it. */
static void on_another_stream_k_comes_after_g(void **state)
{
    (void)state;
    const struct mk_pair_tiles tiles = {words, ROWS, COLUMNS, 128, 32};
    const uint64_t count = (uint64_t)ROWS * COLUMNS;
    bool followed = false;
    assert_int_equal(mk_pair_allreduce(comm, c, count, MK_BFLOAT16, NULL, &streams[0], NULL), 0);
    gpu_forget();
    assert_int_equal(mk_pair_allreduce(comm, c, count, MK_BFLOAT16, &tiles, &streams[1], &followed), 0);
    assert_int_equal(waits(), 1);
    assert_false(followed);
    assert_false(gpu.last.early);
    assert_int_equal(mk_pair_allreduce(comm, c, count, MK_BFLOAT16, &tiles, &streams[1], &followed), 0);
    assert_int_equal(waits(), 1);
    assert_true(followed);
}

static void what_the_copy_engine_cannot_take(void **state)
{
    (void)state;
    struct mk_gemm_problem p = problem();
    struct mk_pair_tiles tiles = {words, ROWS, COLUMNS, 128, 32};
    bool followed = true;
    assert_true(mk_pair_gemm_can(&p));
    p.ldc = COLUMNS + 8;
    assert_false(mk_pair_gemm_can(&p));
    p = problem();
    p.c = c + 2;
    assert_false(mk_pair_gemm_can(&p));
    assert_int_equal(mk_pair_gemm(&p, 1, words, &streams[0], &tiles), MK_ERR_UNSUPPORTED);
    p = problem();
    p.dtype = MK_FLOAT32;
    assert_false(mk_pair_gemm_can(&p));
    p = problem();
    p.k = 0;
    assert_false(mk_pair_gemm_can(&p));
    gpu_forget();
    assert_int_equal(
        mk_pair_allreduce(comm, c + 2, ROWS * COLUMNS, MK_BFLOAT16, &tiles, &streams[1], &followed), 0);
    assert_false(followed);
    assert_string_equal(gpu.last.name, "gemm_ar_portable_bf16");
    assert_int_equal(mk_pair_allreduce(comm, c, 4095, MK_FLOAT16, &tiles, &streams[1], &followed), 0);
    assert_false(followed);
    assert_string_equal(gpu.last.name, "gemm_ar_portable_fp16");
    /* as many tiles of 128 as no GEMM may have: here none is computed */
    assert_int_equal(mk_pair_allreduce(comm, c + 2, ((uint64_t)MK_GPU_TILES << 15) - 8, MK_BFLOAT16, NULL,
                                       &streams[1], NULL),
                     0);
    assert_int_equal(gpu.launches, 3);
}

/* Blocks that wait for other ranks leave room for those of other communicators, and for NCCL's. */
static void the_ks_of_a_process_do_not_fill_a_gpu(void **state)
{
    enum { MOST = 10 };
    mk_comm_t more[MOST] = {NULL};
    uint32_t sum = 0, grid[MOST];
    int n = 0, ret = 0;
    (void)state;
    while (n < MOST) {
        assert_int_equal(mk_comm_init_env(&more[n], NULL), 0);
        if ((ret = mk_pair_load(more[n])))
            break;
        assert_int_equal(mk_pair_load(more[n]), 0); /* once more: nothing is taken */
        assert_int_equal(mk_pair_allreduce(more[n], c, ROWS * COLUMNS, MK_BFLOAT16, NULL, &streams[0], NULL),
                         0);
        sum += grid[n++] = gpu.last.grid;
    }
    assert_int_equal(ret, MK_ERR_UNSUPPORTED);
    assert_in_range(n, 4, MOST - 1);
    assert_int_equal(grid[0], 32);
    assert_int_equal(grid[1], 32);
    assert_in_range(grid[n - 1], 4, 8);
    assert_in_range(sum, GPU_SMS / 2, GPU_SMS * 3 / 4);
    assert_int_equal(mk_comm_destroy(more[1]), 0); /* what it had is there again */
    assert_int_equal(mk_pair_load(more[n]), 0);
    assert_int_equal(mk_pair_allreduce(more[n], c, ROWS * COLUMNS, MK_BFLOAT16, NULL, &streams[0], NULL), 0);
    assert_in_range(gpu.last.grid, 16, 32);
    for (int i = 0; i <= n; i++)
        assert_int_equal(i == 1 ? 0 : mk_comm_destroy(more[i]), 0);
}

/* A grid of one block each is the least. */
static void few_multiprocessors(void **state)
{
    (void)state;
    const struct mk_gemm_problem p = problem();
    struct mk_pair_tiles tiles;
    assert_int_equal(mk_pair_gemm(&p, GPU_SMS + 5, words, &streams[0], &tiles), 0);
    assert_int_equal(gpu.last.grid, 1);
    assert_int_equal(gpu.last.cluster, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(g_and_k_share_the_multiprocessors),
                                       cmocka_unit_test(without_tiles_k_comes_after_g),
                                       cmocka_unit_test(tiles_of_another_count_are_not_followed),
                                       cmocka_unit_test(on_another_stream_k_comes_after_g),
                                       cmocka_unit_test(what_the_copy_engine_cannot_take),
                                       cmocka_unit_test(the_ks_of_a_process_do_not_fill_a_gpu),
                                       cmocka_unit_test(few_multiprocessors)};
    setenv("MK_LOG", "none", 0);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
