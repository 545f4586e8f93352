/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* mk_fuse_ops: captured pairs, and the words that their graphs own. */
#include "gpu_fuse.h"
#include "fuse_in.h"
#include "mkernel.h"
#include "ops/pair_tiles.h"
#include <stdio.h>

static void capture(void *graph)
{
    gpu.capturing = stream[0];
    gpu.graph = graph;
    gpu.node = 0;
}

static uint64_t *captured_g(uint64_t generation)
{
    assert_int_equal(launch_g(stream[0], MK_PAIR_OWN_DESCRIPTOR, generation, true), 0);
    return words_of_g();
}

static bool among(uint64_t *const *list, int n, const uint64_t *words)
{
    for (int i = 0; i < n; i++)
        if (list[i] == words)
            return true;
    return false;
}

enum { PAIRS = 70 }; /* more than fit in what is allocated at once */

void words_belong_to_their_graph(void **state)
{
    const size_t words = mk_pair_words_bytes(MK_FUSE_MAX_M) / sizeof(uint64_t);
    uint64_t *first[PAIRS], *again[PAIRS], *other;
    const long before = counts->memory;
    (void)state;
    capture(&graphs[0]);
    for (int i = 0; i < PAIRS; i++) {
        first[i] = captured_g(1 + (uint64_t)i);
        for (size_t w = 0; w < words; w++)
            assert_int_equal(first[i][w], 0);
        assert_false(among(first, i, first[i]));
        gpu_forget();
    }
    assert_int_equal(counts->memory, before + 1);
    base.memory++; /* which stays */
    assert_int_equal(gpu.objects, PAIRS);
    capture(&graphs[1]);
    other = captured_g(100);
    assert_false(among(first, PAIRS, other));
    gpu_graph_destroy(&graphs[0]);
    assert_int_equal(gpu.objects, 1);
    for (int round = 0; round < 4; round++) {
        int old = 0;
        capture(&graphs[2]);
        for (int i = 0; i < PAIRS; i++) {
            again[i] = captured_g(200 + (uint64_t)i);
            old += among(first, PAIRS, again[i]);
            assert_false(among(again, i, again[i]));
            assert_ptr_not_equal(again[i], other);
            gpu_forget();
        }
        assert_true(old);
        gpu_graph_destroy(&graphs[2]);
    }
    assert_int_equal(counts->memory, before + 1);
    gpu_graph_destroy(&graphs[1]);
}

/* Each captured K follows its own G, and one whose G is long past comes after it. */
void captured_pairs_are_told_apart(void **state)
{
    uint64_t *of[2];
    (void)state;
    capture(&graphs[0]);
    of[0] = captured_g(301);
    of[1] = captured_g(302);
    for (int i = 0; i < 2; i++) {
        const struct mk_fuse_k k = reduction(MK_PAIR_OWN_DESCRIPTOR, 301 + (uint64_t)i, true);
        assert_int_equal(ops->launch_k(&k), 0);
        assert_true(gpu.last.early);
        assert_int_equal(of_k().skip_compute, MK_TILES_COME);
        assert_ptr_equal(of_k().tile_flag, of[i] + MK_PAIR_HEAD);
    }
    const struct mk_fuse_k k = reduction(MK_PAIR_OWN_DESCRIPTOR, 301 - 64, true);
    assert_int_equal(ops->launch_k(&k), 0);
    assert_false(gpu.last.early);
    assert_int_equal(of_k().skip_compute, MK_TILES_HERE);
    gpu_graph_destroy(&graphs[0]);
}

/* Over and over: what one attempt kept would use up the words, and more would be allocated. */
void a_pair_that_cannot_be_captured_keeps_nothing(void **state)
{
    const long memory = counts->memory;
    (void)state;
    assert_int_equal(launch_g(stream[0], MK_PAIR_OWN_DESCRIPTOR, 1, true), MK_ERR_NOMEM); /* no capture */
    for (int how = 0; how < 3; how++)
        for (int i = 0; i < 2 * PAIRS; i++) {
            capture(&graphs[0]);
            gpu.fail_object = how == 0;
            gpu.fail_retain = how == 1;
            gpu.fail_launch = how == 2;
            gpu_forget();
            assert_true(launch_g(stream[0], MK_PAIR_OWN_DESCRIPTOR, 1, true) < 0);
            assert_int_equal(gpu.steps, 0);
            if (how == 2) /* they are the graph's already */
                gpu_graph_destroy(&graphs[0]);
            assert_int_equal(gpu.objects, 0);
            assert_int_equal(counts->memory, memory);
        }
    gpu.fail_launch = false;
    captured_g(1);
    gpu_graph_destroy(&graphs[0]);
    assert_int_equal(counts->memory, memory);
}

void no_memory_for_words(void **state)
{
    char text[32];
    int refused = 0;
    const long memory = counts->memory;
    (void)state;
    snprintf(text, sizeof(text), "%ld", counts->calls + 1); /* the next one that may fail: allocating */
    setenv("FAKE_CUDA_FAIL", text, 1);
    gpu.fail_copy = true; /* and then clearing */
    capture(&graphs[0]);
    for (int i = 0; i < 3 * PAIRS; i++) {
        gpu_forget();
        const int ret = launch_g(stream[0], MK_PAIR_OWN_DESCRIPTOR, 1, true);
        assert_int_equal(gpu.launches, !ret);
        if (!ret)
            continue;
        assert_int_equal(ret, MK_ERR_NOMEM);
        assert_int_equal(counts->memory, memory);
        gpu.fail_copy = ++refused < 3;
    }
    assert_int_equal(refused, 3);
    assert_true(counts->memory > memory);
    base.memory += counts->memory - memory;
    gpu_graph_destroy(&graphs[0]);
}

void k_comes_after_g_alone(void **state)
{
    (void)state;
    capture(&graphs[0]);
    gpu.node = 20;
    captured_g(401);
    struct mk_fuse_k k = reduction(MK_PAIR_OWN_DESCRIPTOR, 401, true);
    k.reduce = true;
    gpu.node = 40; /* something else came to the stream */
    gpu_forget();
    assert_int_equal(ops->launch_k(&k), 0);
    assert_int_equal(gpu.steps, 2);
    expect_step(0, GPU_DEPEND, stream[0], NULL, MK_CU_DEPENDENCIES_SET);
    assert_int_equal(gpu.step[0].n, 1);
    assert_int_equal((uintptr_t)gpu.step[0].node, 21);
    expect_step(1, GPU_LAUNCH, stream[0], NULL, 0);
    assert_true(gpu.last.early);
    k.reduce = false;
    gpu_forget();
    assert_int_equal(ops->launch_k(&k), 0);
    assert_int_equal(gpu.steps, 1);
    gpu_graph_destroy(&graphs[0]);
}
