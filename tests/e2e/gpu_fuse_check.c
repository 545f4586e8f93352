/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* mk_fuse_ops under MK_VERIFY: C is added up behind G and compared before K, which then comes plainly. The kernels that do
 * it are made by the recorder, over the same text. */
#include "gpu_fuse.h"
#include "ops/pair_tiles.h"
#include "mk/err.h"
#include <string.h>

/* Neither early, nor at the same time as something else. */
static void expect_look(int i)
{
    expect_step(i, GPU_LAUNCH, stream[0], NULL, 0);
    assert_string_equal(gpu.step[i].name, "pair_check");
}

static struct mk_fuse_k compared(uint32_t site, int32_t descriptor, uint64_t generation)
{
    struct mk_fuse_k k = reduction(descriptor, generation, false);
    k.check = site;
    return k;
}

static void expect_plain_k(int i)
{
    assert_string_equal(gpu.step[i].name, "pair_allreduce_bf16");
    assert_false(gpu.last.early);
    assert_int_equal(of_k().skip_compute, MK_TILES_HERE);
}

void c_is_compared_before_k(void **state)
{
    static const size_t places[] = {0, 1, 2 * COUNT - 1, COUNT};
    const uint64_t looked = ops->checked(0, false), changed = ops->checked(0, true);
    (void)state;
    verify = true;
    base.registered += !looked; /* the reports, for good */
    for (uint64_t i = 0; i < 4; i++) {
        gpu_forget();
        memset(output, (int)i, 2 * COUNT);
        assert_int_equal(launch_g(stream[0], 0, 2 * i + 1, false), 0);
        assert_int_equal(gpu.steps, 2);
        expect_look(1);
        assert_false(gpu.last.early);
        struct mk_fuse_k k = compared(5, 0, 2 * i + 1);
        assert_int_equal(ops->launch_k(&k), 0);
        expect_look(2);
        expect_plain_k(3);
        assert_int_equal(ops->checked(5, false), 2 * i + 1);
        assert_int_equal(ops->checked(5, true), i);
        /* and with somebody between */
        assert_int_equal(launch_g(stream[0], 0, 2 * i + 2, false), 0);
        output[places[i]] ^= 1;
        k = compared(5, 0, 2 * i + 2);
        assert_int_equal(ops->launch_k(&k), 0);
        assert_int_equal(ops->checked(5, false), 2 * i + 2);
        assert_int_equal(ops->checked(5, true), i + 1);
    }
    assert_int_equal(ops->checked(6, false), 0);
    assert_int_equal(ops->checked(0, false) - looked, 8);
    assert_int_equal(ops->checked(0, true) - changed, 4);
    assert_int_equal(ops->checked(MK_PAIR_CHECKS + 1, false), 0);
    /* Out of place: before the copy. */
    assert_int_equal(launch_g(stream[0], 0, 9, false), 0);
    struct mk_fuse_k k = compared(6, 0, 9);
    k.recv = elsewhere;
    gpu_forget();
    assert_int_equal(ops->launch_k(&k), 0);
    expect_look(0);
    assert_int_equal(gpu.step[1].what, GPU_COPY);
    assert_int_equal(ops->checked(6, false), 1);
    assert_int_equal(ops->checked(6, true), 0);
    assert_int_equal(mk_cuda_open(NULL)->stream_sync(stream[0]), 0);
}

void captured_pairs_are_compared_at_every_replay(void **state)
{
    (void)state;
    verify = true;
    base.registered += !ops->checked(0, false);
    gpu.capturing = stream[0];
    gpu.graph = &graphs[0];
    gpu.capture = 41;
    gpu.node = 100;
    assert_int_equal(launch_g(stream[0], MK_PAIR_OWN_DESCRIPTOR, 1, false), 0);
    const struct mk_fuse_k k = compared(7, MK_PAIR_OWN_DESCRIPTOR, 1);
    assert_int_equal(ops->launch_k(&k), 0);
    for (int i = 0; i < gpu.steps; i++) /* what its dependencies are is not touched */
        assert_int_not_equal(gpu.step[i].what, GPU_DEPEND);
    assert_int_equal(gpu.nchecks, 2);
    assert_int_equal(ops->checked(7, false), 0);
    for (uint64_t i = 0; i < 3; i++) {
        gpu_check(&gpu.checks[0]);
        output[2 * i] ^= i == 1;
        gpu_check(&gpu.checks[1]);
        assert_int_equal(ops->checked(7, false), i + 1);
        assert_int_equal(ops->checked(7, true), i > 0);
    }
    gpu.capturing = NULL;
}

void what_cannot_be_compared_runs(void **state)
{
    (void)state;
    verify = true;
    assert_int_equal(launch_g(stream[0], MK_PAIR_OWN_DESCRIPTOR, 5, false), MK_ERR_NOMEM); /* no capture */
    assert_int_equal(launch_g(stream[0], 1, 1, false), 0);
    const uint64_t looked = ops->checked(0, false);
    struct mk_fuse_k k = compared(8, MK_PAIR_OWN_DESCRIPTOR, 999); /* a G that was forgotten */
    gpu_forget();
    assert_int_equal(ops->launch_k(&k), 0);
    expect_plain_k(0);
    k = compared(MK_PAIR_CHECKS + 1, 1, 1);
    gpu_forget();
    assert_int_equal(ops->launch_k(&k), 0);
    expect_plain_k(0);
    assert_int_equal(ops->checked(0, false), looked);
    gpu.fail_launch = true; /* G's own, or what follows it: the original GEMM runs then */
    assert_true(launch_g(stream[0], 1, 2, false) < 0);
}
