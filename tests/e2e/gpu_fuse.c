/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* mk_fuse_ops, what interception launches in place of a GEMM and a collective, over the stand-in for the driver: G and K on
 * streams, words, order. Launches are recorded and not made; gpu_fuse_graph.c: in captures; gpu_fuse_life.c: communicators. */
#include "gpu_fuse.h"
#include "cuda/gemm.h"
#include "fuse_in.h"
#include "mkernel.h"
#include "ops/pair_tiles.h"
#include <string.h>
#include <time.h>

const struct mk_fuse_ops *ops;
const struct fake_cuda_counts *counts;
struct fake_cuda_counts base;
void *stream[2];
uint8_t *operand_a, *operand_b, *output, *elsewhere, *bias;
int nccl[2], graphs[3];
bool verify;

void nap_ms(int ms)
{
    const struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&t, NULL);
}

int prepared(void *comm, uint64_t id, int nranks)
{
    int ret = MK_ERR_AGAIN;
    for (int ms = 0; ms < 60000 && ret == MK_ERR_AGAIN; ms++) {
        ret = ops->prepare(comm, NULL, id, 0, nranks);
        if (ret == MK_ERR_AGAIN)
            nap_ms(1);
    }
    return ret;
}

struct mk_pair_gemm product(void)
{
    return (struct mk_pair_gemm){.m = ROWS,
                                 .n = COLUMNS,
                                 .k = DEPTH,
                                 .lda = DEPTH,
                                 .ldb = DEPTH,
                                 .ldc = COLUMNS,
                                 .a = (uintptr_t)operand_a,
                                 .b = (uintptr_t)operand_b,
                                 .c = (uintptr_t)output,
                                 .alpha = 1,
                                 .batch = 1,
                                 .layout = MK_TN,
                                 .a_type = MK_BFLOAT16,
                                 .b_type = MK_BFLOAT16,
                                 .c_type = MK_BFLOAT16};
}

int launch_g(void *on, int32_t descriptor, uint64_t generation, bool room)
{
    const struct mk_pair_gemm p = product();
    const struct mk_fuse_g g = {&p, on, descriptor, generation, room, on == gpu.capturing, verify};
    return ops->launch_g(&g);
}

struct mk_fuse_k reduction(int32_t descriptor, uint64_t generation, bool overlap)
{
    return (struct mk_fuse_k){.comm = &nccl[0],
                              .stream = stream[0],
                              .send = output,
                              .recv = output,
                              .count = COUNT,
                              .number = generation,
                              .dtype = MK_BFLOAT16,
                              .overlap = overlap,
                              .descriptor = descriptor,
                              .generation = generation,
                              .captured = gpu.capturing == stream[0]};
}

uint64_t *words_of_g(void)
{
    uint64_t *words;
    assert_int_equal(strncmp(gpu.last.name, "pair_gemm_", 10), 0);
    memcpy(&words, gpu.last.args + 512, sizeof(words));
    return words;
}

struct mk_ar of_k(void)
{
    struct mk_ar ar;
    assert_string_equal(gpu.last.name, "pair_allreduce_bf16");
    memcpy(&ar, gpu.last.args + 256, sizeof(ar));
    return ar;
}

void expect_step(int i, enum gpu_what what, const void *on, const void *event, unsigned flags)
{
    assert_true(i < gpu.steps);
    assert_int_equal(gpu.step[i].what, what);
    assert_ptr_equal(gpu.step[i].stream, on);
    assert_ptr_equal(gpu.step[i].event, event);
    assert_int_equal(gpu.step[i].flags, flags);
}

int begin_ready(void **state)
{
    (void)state;
    const int ret = prepared(&nccl[0], 1, 1);
    gpu_forget();
    return ret;
}

void destroyed(void *comm)
{
    ops->end(comm);
    ops->tidy();
}

int end_all(void **state)
{
    (void)state;
    gpu.capturing = NULL;
    verify = false;
    __atomic_store_n(&gpu.busy, false, __ATOMIC_RELEASE);
    gpu.fail_launch = gpu.fail_order = gpu.fail_copy = gpu.fail_object = gpu.fail_retain = false;
    unsetenv("FAKE_CUDA_FAIL");
    for (int i = 0; i < 3; i++)
        gpu_graph_destroy(&graphs[i]);
    for (int i = 0; i < 2; i++)
        destroyed(&nccl[i]);
    const bool clean = counts->memory == base.memory && counts->events == base.events &&
                       counts->registered == base.registered && counts->opened == base.opened &&
                       !gpu.objects && !gpu.hasty;
    if (!clean)
        print_error("left: %ld memory, %ld events, %ld pinned, %d objects, %d copies\n",
                    counts->memory - base.memory, counts->events - base.events,
                    counts->registered - base.registered, gpu.objects, gpu.hasty);
    gpu.hasty = 0;
    return !clean;
}

/* ---- which GEMMs ---- */

static void nothing_before_a_communicator_is_ready(void **state)
{
    const struct mk_pair_gemm g = product();
    (void)state;
    assert_false(ops->can(&g));
    assert_int_equal(prepared(&nccl[0], 2, 1), 0);
    assert_true(ops->can(&g));
}

static void which_products_g_takes(void **state)
{
    struct mk_pair_gemm g;
    (void)state;
#define CAN(yes, ...)                                                                                        \
    do {                                                                                                     \
        g = product();                                                                                       \
        __VA_ARGS__;                                                                                         \
        if (ops->can(&g) != (yes))                                                                           \
            fail_msg("%s: %s", #__VA_ARGS__, yes ? "refused" : "taken");                                     \
    } while (0)
    CAN(true, g.batch = 0);
    CAN(true, g.a_type = g.b_type = g.c_type = MK_FLOAT16);
    CAN(true, g.m = 512);
    CAN(true, g.m = 1 << 17);
    CAN(true, g.bias = (uintptr_t)bias, g.epilogue = MK_PAIR_RELU_BIAS);
    CAN(false, g.m = 511);
    CAN(false, g.m = (1 << 17) + 1);
    CAN(false, g.a_type = g.b_type = g.c_type = MK_FLOAT32);
    CAN(false, g.a_type = MK_FLOAT16);
    CAN(false, g.b_type = MK_PAIR_OTHER_DTYPE);
    CAN(false, g.c_type = MK_FLOAT32);
    CAN(false, g.batch = 2);
    CAN(false, g.a += 2);
    CAN(false, g.b += 8);
    CAN(false, g.c += 2);
    CAN(false, g.ldc = COLUMNS + 8);
    CAN(false, g.c = (uintptr_t)&g);
#undef CAN
    /* and what can does not take is not launched */
    g = product(), g.batch = 2;
    const struct mk_fuse_g launch = {&g, stream[0], 0, 1, false, false, false};
    assert_int_equal(ops->launch_g(&launch), MK_ERR_UNSUPPORTED);
    assert_int_equal(gpu.launches, 0);
}

/* The problem as the caller gave it. */
static void g_computes_what_was_asked(void **state)
{
    struct mk_pair_gemm p = product();
    struct mk_big_params q;
    const struct mk_fuse_g g = {&p, stream[1], 3, 1, false, false, false};
    (void)state;
    p.layout = MK_NN, p.ldb = COLUMNS;
    p.a_type = p.b_type = p.c_type = MK_FLOAT16;
    p.bias = (uintptr_t)bias, p.epilogue = MK_PAIR_RELU_BIAS;
    assert_int_equal(ops->launch_g(&g), 0);
    assert_int_equal(strncmp(gpu.last.name, "pair_gemm_nn_fp16_", 18), 0);
    assert_ptr_equal(gpu.last.stream, stream[1]);
    memcpy(&q, gpu.last.args, sizeof(q));
    assert_int_equal(q.m, ROWS);
    assert_int_equal(q.n, COLUMNS);
    assert_int_equal(q.k, DEPTH);
    assert_ptr_equal(q.bias, bias);
    assert_int_equal(q.act, MK_ACT_RELU);
    p.epilogue = MK_PAIR_BIAS;
    assert_int_equal(ops->launch_g(&g), 0);
    memcpy(&q, gpu.last.args, sizeof(q));
    assert_ptr_equal(q.bias, bias);
    assert_int_equal(q.act, MK_ACT_NONE);
}

/* ---- on streams ---- */

static void g_leaves_room_for_k_and_k_follows(void **state)
{
    (void)state;
    assert_int_equal(launch_g(stream[0], 0, 1, false), 0);
    assert_int_equal(gpu.last.grid, GPU_SMS);
    assert_int_equal(launch_g(stream[0], 0, 2, true), 0);
    const uint32_t grid = gpu.last.grid, cluster = gpu.last.cluster;
    uint64_t *words = words_of_g();
    struct mk_fuse_k k = reduction(0, 2, true);
    assert_int_equal(ops->launch_k(&k), 0);
    assert_int_equal(gpu.last.grid, 32); /* those without room wait for the end of G */
    assert_in_range(grid, GPU_SMS - 16, GPU_SMS - cluster);
    assert_true(gpu.last.early);
    assert_ptr_equal(gpu.last.stream, stream[0]);
    assert_int_equal(of_k().skip_compute, MK_TILES_COME);
    assert_ptr_equal(of_k().tile_flag, words + MK_PAIR_HEAD);
    k.overlap = false;
    assert_int_equal(ops->launch_k(&k), 0);
    assert_false(gpu.last.early);
    assert_int_equal(of_k().skip_compute, MK_TILES_HERE);
}

static void words_belong_to_their_stream(void **state)
{
    const size_t words = mk_pair_words_bytes(MK_FUSE_MAX_M) / sizeof(uint64_t);
    uint64_t *of[4];
    (void)state;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(launch_g(stream[i & 1], 10 + i, 1, true), 0);
        of[i] = words_of_g();
        for (size_t w = 0; w < words; w++)
            assert_int_equal(of[i][w], 0);
        of[i][0] = 1; /* as a G leaves them */
        for (int j = 0; j < i; j++)
            assert_true(of[i] >= of[j] + words || of[j] >= of[i] + words);
    }
    for (int i = 3; i >= 0; i--) {
        assert_int_equal(launch_g(stream[i & 1], 10 + i, 2, true), 0);
        assert_ptr_equal(words_of_g(), of[i]);
        assert_int_equal(of[i][0], 1); /* and nobody clears them */
    }
    for (int i = 0; i < 4; i++) {
        struct mk_fuse_k k = reduction(10 + i, 2, true);
        k.stream = stream[0];
        assert_int_equal(ops->launch_k(&k), 0);
        assert_ptr_equal(of_k().tile_flag, of[i] + MK_PAIR_HEAD);
    }
    gpu_forget();
    assert_int_equal(launch_g(stream[0], 256, 1, true), MK_ERR_NOMEM); /* more than there are */
    assert_int_equal(gpu.launches, 0);
}

static void words_are_on_the_current_device(void **state)
{
    struct mk_cuda *cu = (struct mk_cuda *)(uintptr_t)mk_cuda_open(NULL);
    uint8_t *const here[3] = {operand_a, operand_b, output};
    uint64_t *of[2];
    mk_cu_ptr p[3];
    int device[2] = {-1, -1};
    (void)state;
    assert_int_equal(launch_g(stream[0], 20, 1, true), 0);
    of[0] = words_of_g();
    cu->ctx_set((void *)(uintptr_t)2);
    for (int i = 0; i < 3; i++)
        assert_int_equal(cu->mem_alloc(&p[i], i < 2 ? COLUMNS * DEPTH * 2 : COUNT * 2), 0);
    operand_a = (uint8_t *)(uintptr_t)p[0];
    operand_b = (uint8_t *)(uintptr_t)p[1];
    output = (uint8_t *)(uintptr_t)p[2];
    const int ret = launch_g(stream[1], 20, 2, true);
    operand_a = here[0], operand_b = here[1], output = here[2];
    cu->ctx_set((void *)(uintptr_t)1);
    assert_int_equal(ret, 0);
    of[1] = words_of_g();
    for (int i = 0; i < 2; i++)
        cu->pointer_attribute(&device[i], MK_CU_POINTER_DEVICE, (uintptr_t)of[i]);
    assert_int_equal(device[0], 0);
    assert_int_equal(device[1], 1);
    for (int i = 0; i < 3; i++)
        cu->mem_free(p[i]);
    base.memory++; /* of that device's words */
}

/* K works in place. */
static void out_of_place_is_a_copy_first(void **state)
{
    (void)state;
    assert_int_equal(launch_g(stream[0], 0, 1, true), 0);
    struct mk_fuse_k k = reduction(0, 1, true);
    k.recv = elsewhere;
    gpu_forget();
    assert_int_equal(ops->launch_k(&k), 0);
    expect_step(0, GPU_COPY, stream[0], NULL, 0);
    assert_int_equal(gpu.step[0].to, (uintptr_t)elsewhere);
    assert_int_equal(gpu.step[0].from, (uintptr_t)output);
    assert_int_equal(gpu.step[0].n, COUNT * 2);
    expect_step(1, GPU_LAUNCH, stream[0], NULL, 0);
    assert_false(gpu.last.early);
    assert_int_equal(of_k().skip_compute, MK_TILES_HERE);
    assert_int_equal(mk_cuda_open(NULL)->stream_sync(stream[0]), 0);
    k.recv = output, k.send = elsewhere, k.count = 64, k.dtype = MK_FLOAT16;
    gpu_forget();
    assert_int_equal(ops->launch_k(&k), 0);
    assert_int_equal(gpu.step[0].to, (uintptr_t)output);
    assert_int_equal(gpu.step[0].n, 128);
    assert_int_equal(mk_cuda_open(NULL)->stream_sync(stream[0]), 0);
    gpu.fail_copy = true;
    gpu_forget();
    assert_int_equal(ops->launch_k(&k), MK_ERR_CUDA);
    assert_int_equal(gpu.launches, 0);
}

/* ---- order ---- */

static void beside_the_rest_of_a_group(void **state)
{
    struct mk_fuse_k k = reduction(0, 1, false);
    (void)state;
    k.beside = true;
    assert_int_equal(ops->launch_k(&k), 0);
    assert_int_equal(gpu.steps, 4); /* the last one is of the communicator's own */
    void *const forked = gpu.step[0].event, *const side = gpu.step[1].stream;
    assert_non_null(forked);
    expect_step(0, GPU_EVENT, stream[0], forked, 0);
    assert_ptr_not_equal(side, stream[0]);
    expect_step(1, GPU_WAIT, side, forked, 0);
    expect_step(2, GPU_LAUNCH, side, NULL, 0);
    assert_int_equal(of_k().skip_compute, MK_TILES_HERE);
    assert_int_equal(gpu.step[3].what, GPU_EVENT);
    gpu_forget();
    assert_int_equal(ops->join(&nccl[0], stream[1]), 0);
    assert_int_equal(gpu.steps, 2);
    void *const joined = gpu.step[0].event;
    assert_non_null(joined);
    expect_step(0, GPU_EVENT, side, joined, 0);
    expect_step(1, GPU_WAIT, stream[1], joined, 0);
}

static void operations_wait_for_the_one_before(void **state)
{
    void *comm = &nccl[0];
    (void)state;
    assert_int_equal(ops->record(comm, stream[0], MK_PAIR_RECORD_EVENT), 0);
    assert_int_equal(ops->wait(comm, stream[1], MK_PAIR_WAIT_EVENT, 0), 0);
    assert_int_equal(gpu.steps, 2);
    void *const order = gpu.step[0].event;
    assert_non_null(order);
    expect_step(0, GPU_EVENT, stream[0], order, 0);
    expect_step(1, GPU_WAIT, stream[1], order, 0);

    gpu_forget(); /* in a capture, then in it, then after it; then eagerly after its replay */
    gpu.capturing = stream[0];
    gpu.capture = 7;
    gpu.node = 77;
    assert_int_equal(ops->record(comm, stream[0], MK_PAIR_RECORD_EXTERNAL), 0);
    assert_int_equal(ops->wait(comm, stream[0], MK_PAIR_WAIT_NODE, 9), 0);
    assert_int_equal(ops->wait(comm, stream[1], MK_PAIR_WAIT_EXTERNAL, 0), 0);
    assert_int_equal(ops->wait(comm, stream[1], MK_PAIR_WAIT_EVENT, 0), 0);
    assert_int_equal(gpu.steps, 6);
    void *const inside = gpu.step[0].event;
    assert_non_null(inside);
    assert_ptr_not_equal(inside, order);
    expect_step(0, GPU_EVENT, stream[0], inside, 0);
    expect_step(1, GPU_EVENT, stream[0], order, MK_CU_EVENT_EXTERNAL);
    /* The record is nothing that the next node has to wait for. */
    expect_step(2, GPU_DEPEND, stream[0], NULL, MK_CU_DEPENDENCIES_SET);
    assert_true(gpu.step[2].n == 1 && gpu.step[2].node == (void *)(uintptr_t)77);
    expect_step(3, GPU_WAIT, stream[0], inside, 0);
    expect_step(4, GPU_WAIT, stream[1], order, MK_CU_EVENT_EXTERNAL);
    expect_step(5, GPU_WAIT, stream[1], order, 0);

    /* The second member of a group in another capture: the first one is not recorded yet, and an event of the old capture
     * must not be waited for. */
    gpu_forget();
    gpu.capture = 8;
    assert_int_equal(ops->wait(comm, stream[0], MK_PAIR_WAIT_NODE, 0), 0);
    assert_int_equal(gpu.steps, 1);
    expect_step(0, GPU_WAIT, stream[0], order, MK_CU_EVENT_EXTERNAL);
    assert_int_equal(ops->record(comm, stream[0], MK_PAIR_RECORD_EXTERNAL), 0);
    assert_int_equal(ops->wait(comm, stream[0], MK_PAIR_WAIT_NODE, 0), 0);
    expect_step(4, GPU_WAIT, stream[0], inside, 0);

    gpu_forget();
    assert_int_equal(ops->wait(comm, stream[1], MK_PAIR_IN_ORDER, 0), 0);
    assert_int_equal(gpu.steps, 0);
}

static void order_that_cannot_be_kept_is_an_error(void **state)
{
    void *comm = &nccl[0];
    struct mk_fuse_k k = reduction(0, 1, false);
    (void)state;
    gpu.fail_order = true;
    assert_int_equal(ops->record(comm, stream[0], MK_PAIR_RECORD_EVENT), MK_ERR_CUDA);
    assert_int_equal(ops->record(comm, stream[0], MK_PAIR_RECORD_EXTERNAL), MK_ERR_CUDA);
    assert_int_equal(ops->wait(comm, stream[0], MK_PAIR_WAIT_EVENT, 0), MK_ERR_CUDA);
    assert_int_equal(ops->wait(comm, stream[0], MK_PAIR_WAIT_NODE, 0), MK_ERR_CUDA);
    assert_int_equal(ops->wait(comm, stream[0], MK_PAIR_WAIT_EXTERNAL, 0), MK_ERR_CUDA);
    assert_int_equal(ops->join(comm, stream[0]), MK_ERR_CUDA);
    k.beside = true;
    assert_int_equal(ops->launch_k(&k), MK_ERR_CUDA);
    assert_int_equal(gpu.launches, 0);
}

static void time_stamps(void **state)
{
    uint64_t ns = 7;
    (void)state;
    const int events = counts->events;
    assert_int_equal(ops->stamp(&nccl[0], stream[0], 0), 0);
    assert_int_equal(ops->stamp(&nccl[0], stream[0], MK_FUSE_STAMPS - 1), 0);
    assert_int_equal(counts->events, events + 2);
    assert_int_equal(gpu.steps, 2);
    assert_true(gpu.step[0].stream == stream[0] && gpu.step[0].event != gpu.step[1].event);
    assert_int_equal(ops->between(&nccl[0], 0, MK_FUSE_STAMPS - 1, &ns), 0);
    assert_int_equal(ns, 1000000);
    __atomic_store_n(&gpu.busy, true, __ATOMIC_RELEASE);
    assert_int_equal(ops->between(&nccl[0], 0, MK_FUSE_STAMPS - 1, &ns), MK_ERR_AGAIN);
    __atomic_store_n(&gpu.busy, false, __ATOMIC_RELEASE);
    /* Put anew: the same event. */
    void *const first = gpu.step[0].event;
    assert_int_equal(ops->stamp(&nccl[0], stream[1], 0), 0);
    assert_true(gpu.step[2].event == first && gpu.step[2].stream == stream[1]);
    assert_int_equal(counts->events, events + 2);
    /* What there is not. */
    assert_int_equal(ops->between(&nccl[0], 0, 1, &ns), MK_ERR_CUDA);
    assert_int_equal(ns, 0);
    assert_int_equal(ops->stamp(&nccl[0], stream[0], MK_FUSE_STAMPS), MK_ERR_INVALID);
    assert_int_equal(ops->between(&nccl[0], 0, MK_FUSE_STAMPS, &ns), MK_ERR_INVALID);
    assert_int_equal(ops->stamp(&nccl[1], stream[0], 0), MK_ERR_INVALID);
    gpu.fail_order = true;
    assert_int_equal(ops->stamp(&nccl[0], stream[0], 1), MK_ERR_CUDA);
    gpu.fail_order = false;
}

static void of_nobody(void **state)
{
    void *comm = &nccl[1];
    (void)state;
    assert_int_equal(ops->wait(comm, stream[0], MK_PAIR_WAIT_EVENT, 0), 0);
    assert_int_equal(ops->record(comm, stream[0], MK_PAIR_RECORD_EVENT), 0);
    assert_int_equal(ops->record(comm, stream[0], MK_PAIR_RECORD_EXTERNAL), 0);
    assert_int_equal(ops->join(comm, stream[0]), 0);
    (ops->fail)(comm, MK_ERR_NET, true);
    ops->end(comm);
    struct mk_fuse_k k = reduction(0, 1, false);
    k.comm = comm;
    assert_int_equal(ops->launch_k(&k), MK_ERR_INTERNAL);
    assert_int_equal(gpu.steps, 0);
    k.comm = &nccl[0]; /* which is as it was */
    assert_int_equal(ops->launch_k(&k), 0);
}

/* ---- all of it ---- */

static int set_up(void **state)
{
    struct mk_cuda *cu = gpu_record();
    mk_cu_ptr p[5];
    const size_t bytes[5] = {(1 << 17) * DEPTH * 2, COLUMNS * DEPTH * 2, COUNT * 2 + 64, COUNT * 2,
                             COLUMNS * 2};
    const char *why = NULL;
    (void)state;
    if (!cu || !(ops = mk_fuse_ops(&why)) || cu->init(0))
        return 1;
    for (int i = 0; i < 5; i++)
        if (cu->mem_alloc(&p[i], bytes[i]))
            return 1;
    operand_a = (uint8_t *)(uintptr_t)p[0];
    operand_b = (uint8_t *)(uintptr_t)p[1];
    output = (uint8_t *)(uintptr_t)p[2];
    elsewhere = (uint8_t *)(uintptr_t)p[3];
    bias = (uint8_t *)(uintptr_t)p[4];
    for (int i = 0; i < 2; i++)
        if (cu->stream_create(&stream[i], MK_CU_STREAM_NON_BLOCKING))
            return 1;
    if (launch_g(stream[0], 255, 1, false)) /* the first words are allocated, and stay */
        return 1;
    counts = fake_cuda_found();
    base = *counts;
    return 0;
}

int main(void)
{
#define BARE(test) cmocka_unit_test_teardown(test, end_all)
#define READY(test) cmocka_unit_test_setup_teardown(test, begin_ready, end_all)
    const struct CMUnitTest tests[] = {
        BARE(nothing_before_a_communicator_is_ready), /* in this process: the first one */
        BARE(prepare_is_asked_again),
        BARE(no_context_no_kernels),
        BARE(every_call_fails_once),
        BARE(not_for_portable_kernels),
        READY(which_products_g_takes),
        READY(g_computes_what_was_asked),
        READY(g_leaves_room_for_k_and_k_follows),
        READY(words_belong_to_their_stream),
        READY(words_are_on_the_current_device),
        READY(out_of_place_is_a_copy_first),
        READY(words_belong_to_their_graph),
        READY(captured_pairs_are_told_apart),
        READY(a_pair_that_cannot_be_captured_keeps_nothing),
        READY(no_memory_for_words),
        READY(k_comes_after_g_alone),
        READY(c_is_compared_before_k),
        READY(captured_pairs_are_compared_at_every_replay),
        READY(what_cannot_be_compared_runs),
        READY(beside_the_rest_of_a_group),
        READY(operations_wait_for_the_one_before),
        READY(order_that_cannot_be_kept_is_an_error),
        READY(time_stamps),
        READY(of_nobody),
        READY(a_failed_communicator_says_so),
        READY(the_end_leaves_the_callers_context),
        READY(the_end_frees_nothing_until_nccl_has_gone),
        READY(the_end_waits_for_no_k),
        BARE(the_end_waits_for_no_other_rank),
        BARE(a_k_ends_before_the_destroy),
        BARE(threads_end_at_once),
        BARE(blocks_go_back_at_once),
        BARE(blocks_of_the_failed_and_the_ended_go_back),
        BARE(off_while_it_is_made),
    };
    setenv("MK_NET", "loop", 1);
    setenv("MK_TIMEOUT", "3600", 1);
    setenv("MK_LOG", "none", 0);
    return cmocka_run_group_tests(tests, set_up, NULL);
}
