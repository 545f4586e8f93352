/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What is launched for a GEMM and the AllReduce of its output as two kernels, over the stand-in for the driver: kernels, grids,
 * attributes, what one tells the other. The launches themselves are recorded here and not made; tests/gpu/pair.c makes
 * them. */
#include "comm.h"
#include "cuda/gemm.h"
#include "cuda/gpu.h"
#include "mk/pair_run.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define SMS 132

/* ---- the recorder ---- */

static struct record {
    char name[64];
    uint32_t grid, threads, smem, cluster;
    bool early;
    void *stream;
    uint8_t args[4096]; /* the kernel's parameter, as far as it goes */
} last;
static int launches, waits;

static int load(void **library, const void *code, void *jit, void *jit_values, unsigned njit, void *options,
                void *values, unsigned n)
{
    (void)jit, (void)jit_values, (void)njit, (void)options, (void)values, (void)n;
    *library = (void *)(uintptr_t)code;
    return 0;
}
static int kernel_of(void **kernel, void *library, const char *name)
{
    (void)library;
    *kernel = strdup(name); /* for the life of the process, as the library is */
    return 0;
}
static int function_of(void **function, void *kernel)
{
    *function = kernel;
    return 0;
}
static int set_attribute(int attribute, int value, void *kernel, int device)
{
    (void)attribute, (void)value, (void)kernel, (void)device;
    return 0;
}
static size_t parameter_bytes(const char *name)
{
    return !strncmp(name, "pair_allreduce", 14) ? 256 + sizeof(struct mk_ar)
           : !strncmp(name, "pair_gemm", 9)     ? 520
                                                : 0;
}
static int record(const struct mk_cu_launch *c, void *kernel, void **params, void **extra)
{
    (void)extra;
    memset(&last, 0, sizeof(last));
    snprintf(last.name, sizeof(last.name), "%s", (const char *)kernel);
    last.grid = c->grid[0];
    last.threads = c->block[0];
    last.smem = c->smem;
    last.stream = c->stream;
    last.cluster = 1;
    for (uint32_t i = 0; i < c->nattrs; i++) {
        if (c->attrs[i].id == MK_CU_LAUNCH_PROGRAMMATIC)
            last.early = c->attrs[i].value.programmatic != 0;
        if (c->attrs[i].id == MK_CU_LAUNCH_CLUSTER)
            last.cluster = c->attrs[i].value.cluster[0];
    }
    memcpy(last.args, params[0], parameter_bytes(kernel));
    launches++;
    return 0;
}
static int map(struct mk_cu_map *out, int type, uint32_t rank, void *address, const uint64_t *dims,
               const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
               int swizzle, int l2, int oob)
{
    (void)type, (void)address, (void)strides, (void)steps, (void)interleave, (void)swizzle, (void)l2,
        (void)oob;
    memset(out, 0, sizeof(*out));
    for (uint32_t i = 0; i < rank; i++) /* what the driver refuses */
        if (!dims[i] || !box[i] || box[i] > 256)
            return 1;
    return 0;
}
static int not_capturing(void *stream, int *status)
{
    (void)stream;
    *status = 0;
    return 0;
}
static int wait_event(void *stream, void *event, unsigned flags)
{
    (void)stream, (void)event, (void)flags;
    waits++;
    return 0;
}
static int context_of(void *stream, void **ctx)
{
    (void)stream;
    *ctx = (void *)(uintptr_t)1;
    return 0;
}
static int no_event(void *event, void *stream)
{
    (void)event, (void)stream;
    return 0;
}
static int over(void *event)
{
    (void)event;
    return 0;
}

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
    struct mk_cuda *cu = (struct mk_cuda *)(uintptr_t)mk_cuda_open(NULL);
    mk_unique_id_t none;
    mk_cu_ptr p[5];
    const size_t bytes[5] = {ROWS * DEPTH * 2, COLUMNS * DEPTH * 2, ROWS * COLUMNS * 2 + 64, COLUMNS * 2,
                             1 << 16};
    if (!cu)
        return 1;
    cu->library_load = load;
    cu->library_kernel = kernel_of;
    cu->kernel_function = function_of;
    cu->kernel_set_attribute = set_attribute;
    cu->launch = record;
    cu->tensor_map = map;
    cu->stream_capturing = not_capturing;
    cu->stream_wait_event = wait_event;
    cu->stream_ctx = context_of;
    cu->event_record = no_event;
    cu->event_query = over;
    memset(&none, 0, sizeof(none));
    if (cu->ctx_set((void *)(uintptr_t)1) || mk_comm_init_rank(&comm, 1, none, 0, NULL))
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
    memcpy(&ar, last.args + 256, sizeof(ar));
    return ar;
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
    assert_in_range(spare, 1, SMS / 2);
    assert_int_equal(mk_pair_gemm(&p, spare, words, &streams[0], &tiles), 0);
    assert_int_equal(strncmp(last.name, "pair_gemm_tn_bf16_", 18), 0);
    assert_false(last.early);
    assert_in_range(last.grid, SMS - spare - 1, SMS - spare); /* a cluster may be left out */
    assert_int_equal(last.grid % last.cluster, 0);
    assert_int_equal(last.threads, 384);
    memcpy(&descriptor, last.args + 512, sizeof(descriptor));
    assert_ptr_equal(descriptor, words);
    assert_ptr_equal(tiles.words, words);
    assert_int_equal(tiles.n, COLUMNS);
    assert_int_equal(tiles.band_rows, 128);
    assert_int_equal(tiles.parts, 2 * (COLUMNS / (strstr(last.name, "_256x") ? 256 : 128)));

    assert_int_equal(
        mk_pair_allreduce(comm, c, (uint64_t)ROWS * COLUMNS, MK_BFLOAT16, &tiles, &streams[0], &followed), 0);
    assert_true(followed);
    assert_string_equal(last.name, "pair_allreduce_bf16");
    assert_true(last.early);
    assert_int_equal(last.grid, SMS); /* those without room wait for the end of G */
    assert_ptr_equal(last.stream, &streams[0]);
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
    assert_false(last.early);
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
    assert_false(last.early);
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
    waits = 0;
    assert_int_equal(mk_pair_allreduce(comm, c, count, MK_BFLOAT16, &tiles, &streams[1], &followed), 0);
    assert_int_equal(waits, 1);
    assert_false(followed);
    assert_false(last.early);
    assert_int_equal(mk_pair_allreduce(comm, c, count, MK_BFLOAT16, &tiles, &streams[1], &followed), 0);
    assert_int_equal(waits, 1);
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
    launches = 0;
    assert_int_equal(
        mk_pair_allreduce(comm, c + 2, ROWS * COLUMNS, MK_BFLOAT16, &tiles, &streams[1], &followed), 0);
    assert_false(followed);
    assert_string_equal(last.name, "gemm_ar_portable_bf16");
    assert_int_equal(mk_pair_allreduce(comm, c, 4095, MK_FLOAT16, &tiles, &streams[1], &followed), 0);
    assert_false(followed);
    assert_string_equal(last.name, "gemm_ar_portable_fp16");
    /* as many tiles of 128 as no GEMM may have: here none is computed */
    assert_int_equal(mk_pair_allreduce(comm, c + 2, ((uint64_t)MK_GPU_TILES << 15) - 8, MK_BFLOAT16, NULL,
                                       &streams[1], NULL),
                     0);
    assert_int_equal(launches, 3);
}

/* A grid of one block each is the least. */
static void few_multiprocessors(void **state)
{
    (void)state;
    const struct mk_gemm_problem p = problem();
    struct mk_pair_tiles tiles;
    assert_int_equal(mk_pair_gemm(&p, SMS + 5, words, &streams[0], &tiles), 0);
    assert_int_equal(last.grid, 1);
    assert_int_equal(last.cluster, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(g_and_k_share_the_multiprocessors),
                                       cmocka_unit_test(without_tiles_k_comes_after_g),
                                       cmocka_unit_test(tiles_of_another_count_are_not_followed),
                                       cmocka_unit_test(on_another_stream_k_comes_after_g),
                                       cmocka_unit_test(what_the_copy_engine_cannot_take),
                                       cmocka_unit_test(few_multiprocessors)};
    setenv("MK_LOG", "none", 0);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
