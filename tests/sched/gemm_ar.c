/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* GEMM+AllReduce schedule on threads, all ranks in one process: every topology, shape, layout, dtype and number of
 * blocks gives the bits of the contract on every rank, call after call on the same rings. */
#include "world.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static int scale = 1; /* sanitizer builds run less */

static void run(struct world *w, const struct world_call *c)
{
    double err;
    assert_int_equal(world_prepare(w, c), 0);
    assert_int_equal(world_run_threads(w), 0);
    const int64_t wrong = world_verify(w, c, &err);
    if (wrong || err > (c->dtype == MK_FLOAT32 ? 2e-6 : 8e-3))
        fail_msg("%dx%d blocks %d: M=%ld N=%ld K=%ld layout %d dtype %d wire %d: %ld wrong, error %g",
                 w->nnodes, w->nlocal, w->blocks, (long)c->m, (long)c->n, (long)c->k[0], c->layout, c->dtype,
                 c->wire_fp32, (long)wrong, err);
}

static const int topologies[][2] = {{1, 1}, {1, 4}, {2, 1}, {2, 2}, {2, 3},
                                    {3, 2}, {4, 1}, {5, 1}, {1, 2}, {3, 1}};
#define NTOPO ((int)(sizeof(topologies) / sizeof(topologies[0])))

static void shapes_on_every_topology(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {{1, 1, 1},     {1, 513, 7},    {129, 1, 3},
                                        {97, 101, 31}, {128, 512, 16}, {257, 520, 5},
                                        {300, 130, 9}, {3, 2000, 11},  {640, 96, 2}};
    for (int t = 0; t < NTOPO; t++) {
        struct world *w = world_create(topologies[t][0], topologies[t][1], 1 + t % 3, 1 << 20, 64 << 10, 0,
                                       (uint64_t)t + 1);
        for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
            int64_t k[16];
            for (int r = 0; r < w->n; r++)
                k[r] = shapes[s][2] + r % 2;
            const struct world_call c = {shapes[s][0], shapes[s][1],     k, (int)(s + (size_t)t) % 3,
                                         (int)(s % 2), (int)(s / 2) % 2, 0, 0,
                                         (int)(s % 3)};
            run(w, &c);
        }
        world_destroy(w);
    }
}

static void rings_smaller_than_the_message(void **state)
{
    (void)state;
    static const int topo[][2] = {{2, 1}, {1, 3}, {2, 2}, {3, 1}, {3, 2}};
    for (int t = 0; t < 5; t++) {
        /* two slots of 16 KiB per ring, hundreds of chunks; every call with other K, one rank with K = 0 */
        const int g = topo[t][1], d = topo[t][0];
        const size_t rings = (size_t)(2 * (g - 1) + (d > 2 ? 4 : 2) * (d - 1));
        struct world *w = world_create(d, g, 2, rings * 2 * 16384, 16384, 0, (uint64_t)t + 50);
        w->delays = 1;
        for (int i = 0; i < 3; i++) {
            int64_t k[16];
            for (int r = 0; r < w->n; r++)
                k[r] = (r + i) % 3;
            const struct world_call c = {512 / scale, 700, k, MK_TN, i == 1, i == 2, 0, 0, 3};
            run(w, &c);
        }
        world_destroy(w);
    }
}

/* Residency: any number of blocks from 1 up finishes. */
static void any_number_of_blocks(void **state)
{
    (void)state;
    for (int blocks = 1; blocks <= 7; blocks++) {
        int64_t k[4] = {4, 4, 4, 4};
        struct world *w = world_create(2, 2, blocks, 512 << 10, 16384, 0, (uint64_t)blocks);
        w->delays = blocks > 3;
        const struct world_call c = {260, 530, k, MK_NN, MK_FLOAT32, 0, 0, 0, 0};
        run(w, &c);
        run(w, &c);
        world_destroy(w);
    }
}

static void epochs_across_two_to_the_32(void **state)
{
    (void)state;
    static const int topo[][2] = {{2, 2}, {3, 1}, {1, 3}};
    for (int t = 0; t < 3; t++) {
        int64_t k[4] = {3, 2, 1, 4};
        struct world *w = world_create(topo[t][0], topo[t][1], 2, 256 << 10, 16384, 0xffffffffull - 4, 9);
        for (int i = 0; i < 12; i++) {
            const struct world_call c = {i % 2 ? 200 : 33, i % 3 ? 260 : 1, k, MK_TN, i % 2, 0, 0, 0, 0};
            run(w, &c);
        }
        assert_true(w->r[0].state->epoch > 0x100000000ull);
        world_destroy(w);
    }
}

static void epilogues(void **state)
{
    (void)state;
    static const int topo[][2] = {{1, 1}, {2, 2}, {3, 1}};
    for (int t = 0; t < 3; t++) {
        int64_t k[4] = {8, 8, 8, 8};
        struct world *w = world_create(topo[t][0], topo[t][1], 2, 1 << 20, 64 << 10, 0, 4);
        for (int act = 0; act <= 3; act++)
            for (int dtype = 0; dtype < 2; dtype++) {
                const struct world_call c = {70, 90, k, MK_TN, dtype, 0, act, act != 2, 1};
                run(w, &c);
            }
        world_destroy(w);
    }
}

static void empty_launches(void **state)
{
    (void)state;
    int64_t none[4] = {0, 0, 0, 0}, some[4] = {5, 5, 5, 5};
    struct world *w = world_create(2, 2, 2, 1 << 20, 64 << 10, 0, 12);
    for (int i = 0; i < 6; i++) {
        const struct world_call c = {
            i % 3 == 0 ? 0 : 40, i % 3 == 1 ? 0 : 50, i == 2 ? none : some, MK_TN, 0, 0, 0, 0, 0};
        run(w, &c);
    }
    assert_int_equal(w->r[0].state->epoch, 7);
    world_destroy(w);
}

/* A rank with another M: nobody writes a value that depends on another rank. */
static void mismatch_writes_nothing_of_a_peer(void **state)
{
    (void)state;
    int64_t k[4] = {5, 5, 5, 5};
    struct world *w = world_create(2, 2, 2, 1 << 20, 64 << 10, 0, 12);
    const struct world_call c = {40, 50, k, MK_TN, 0, 0, 0, 0, 0};
    assert_int_equal(world_prepare(w, &c), 0);
    w->r[3].ar.signature ^= 1;
    assert_int_equal(world_run_threads(w), 0);
    int seen = 0;
    for (int i = 0; i < w->n; i++) {
        float *own = malloc((size_t)(c.m * c.n) * 4);
        mk_gemm_cpu_tile(MK_TN, MK_FLOAT32, 40, 50, 5, w->r[i].a, w->r[i].lda, w->r[i].b, w->r[i].ldb, own,
                         50, w->r[i].host.scratch[0]);
        const uint32_t *got = w->r[i].c;
        for (int j = 0; j < 40 * 50; j++)
            assert_true(got[j] == 0xa5a5a5a5u || !memcmp(&got[j], &own[j], 4));
        free(own);
        seen += w->r[i].seen_mismatch != 0;
    }
    assert_true(seen >= 1);
    world_destroy(w);
}

static void nan_and_inf_propagate(void **state)
{
    (void)state;
    int64_t k[2] = {4, 4};
    for (int dtype = 0; dtype < 2; dtype++) {
        struct world *w = world_create(2, 1, 1, 1 << 20, 64 << 10, 0, 3);
        const struct world_call c = {8, 8, k, MK_TN, dtype, 0, MK_ACT_RELU, 0, 0};
        const double bad[2] = {(double)__builtin_nanf(""), (double)__builtin_inff()};
        assert_int_equal(world_prepare(w, &c), 0);
        uint32_t f[2];
        for (int i = 0; i < 2; i++) {
            const float v = (float)bad[i];
            memcpy(&f[i], &v, 4);
            if (dtype)
                ((uint16_t *)w->r[i].a)[i * w->r[i].lda] = (uint16_t)(f[i] >> 16);
            else
                ((uint32_t *)w->r[i].a)[i * w->r[i].lda] = f[i];
        }
        assert_int_equal(world_run_threads(w), 0);
        for (int r = 0; r < 2; r++)
            for (int j = 0; j < 8; j++) {
                const uint32_t nan =
                    dtype ? (uint32_t)((uint16_t *)w->r[r].c)[j] << 16 : ((uint32_t *)w->r[r].c)[j];
                assert_true((nan & 0x7fffffff) > 0x7f800000);
                const uint32_t row1 =
                    dtype ? (uint32_t)((uint16_t *)w->r[r].c)[8 + j] << 16 : ((uint32_t *)w->r[r].c)[8 + j];
                assert_true((row1 & 0x7fffffff) == 0x7f800000 || row1 == 0); /* inf, or relu(-inf) */
            }
        world_destroy(w);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_on_every_topology),
        cmocka_unit_test(rings_smaller_than_the_message),
        cmocka_unit_test(any_number_of_blocks),
        cmocka_unit_test(epochs_across_two_to_the_32),
        cmocka_unit_test(epilogues),
        cmocka_unit_test(empty_launches),
        cmocka_unit_test(nan_and_inf_propagate),
        cmocka_unit_test(mismatch_writes_nothing_of_a_peer),
    };
    int blas = argc < 2 || strcmp(argv[1], "builtin");
#ifdef __SANITIZE_THREAD__
    scale = 4;
    blas = 0; /* not instrumented */
#endif
    mk_gemm_cpu_open(blas);
    printf("multiply: %s\n", mk_gemm_cpu_name());
    return cmocka_run_group_tests(tests, NULL, NULL);
}
