/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* GEMM+AllReduce under the controller, on threads: the bits are those of the contract whatever the roles, every launch
 * ends whatever the target and however few blocks are there, every task is counted once. */
#include "world.h"
#include "fused/ops/gemm_ar_turn.h"
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
    if (wrong || err > 2e-6)
        fail_msg("%dx%d blocks %d: M=%ld N=%ld: %ld wrong, error %g", w->nnodes, w->nlocal, w->blocks,
                 (long)c->m, (long)c->n, (long)wrong, err);
}

/* What a rank's tasks are, counted by hand from the chunks' owners: those with a PUSH and a BCAST (of another local
 * rank), with a SUM and a REDUCE, and for more than two nodes with a RESULT. */
static uint32_t comm_tasks_by_hand(const struct world_rank *r, uint32_t chunks)
{
    const uint32_t g = (uint32_t)r->topo.nlocal, d = (uint32_t)r->topo.nnodes;
    uint32_t n = 0;
    for (uint32_t c = 0; c < chunks; c++) {
        const bool mine = c % g == (uint32_t)r->topo.local, here = c / g % d == (uint32_t)r->topo.node;
        if (!mine)
            n += 2; /* PUSH, BCAST */
        else if (d == 1)
            n += g > 1; /* REDUCE */
        else if (d == 2)
            n += 2; /* SUM, REDUCE */
        else
            n += 1; /* here: REDUCE and no SUM; else SUM */
        if (mine && d > 2 && !here)
            n += 1; /* RESULT */
    }
    return n;
}

static void every_task_is_counted_once(void **state)
{
    (void)state;
    static const int topo[][2] = {{2, 1}, {1, 3}, {2, 2}, {3, 1}, {3, 2}, {1, 1}};
    for (int t = 0; t < 6; t++) {
        const int d = topo[t][0], g = topo[t][1], blocks = 1 + t % 4;
        const size_t rings = (size_t)(2 * (g - 1) + (d > 2 ? 4 : 2) * (d - 1));
        struct world *w =
            world_create(d, g, blocks, (rings ? rings : 1) * 2 * 16384, 16384, 0, (uint64_t)t + 9);
        uint64_t tiles = 0, talks[6] = {0};
        w->control = WORLD_CONTROLLER;
        w->delays = t % 2;
        for (int i = 0; i < 4; i++) {
            int64_t k[6] = {3, 1, 2, 5, 4, 1};
            const struct world_call c = {512 / scale, i % 2 ? 700 : 96, k, MK_TN, MK_FLOAT32, 0, 0, 0, 0};
            run(w, &c);
            tiles += mk_tiles(&w->r[0].ar.grid);
            for (int r = 0; r < w->n; r++) {
                const struct mk_ar_ctl *ctl = &w->r[r].state->control[0];
                talks[r] += comm_tasks_by_hand(&w->r[r], mk_chunks(&w->r[r].ar.grid));
                assert_int_equal(ctl->base.done[MK_CTL_COMPUTE], tiles);
                assert_int_equal(ctl->base.done[MK_CTL_COMM], talks[r]);
                assert_memory_equal(&ctl->base, &ctl->count, sizeof(ctl->base));
                assert_int_equal(ctl->epoch, w->r[r].state->epoch - 1);
                assert_true(ctl->base.busy[MK_CTL_COMPUTE] > 0);
                assert_true(ctl->ctl.cost[MK_CTL_COMPUTE] > 0);
                assert_true(w->n == 1 || ctl->ctl.cost[MK_CTL_COMM] > 0);
                assert_true(ctl->ctl.target <= (uint32_t)blocks);
            }
        }
        world_destroy(w);
    }
}

/* Anything may stand in the target, and nobody may ever make a step: all launches end with the right bits. */
static void any_target_finishes(void **state)
{
    (void)state;
    static const int topo[][2] = {{2, 1}, {1, 4}, {2, 2}, {3, 2}};
    for (int t = 0; t < 4; t++)
        for (int blocks = 1; blocks <= 5; blocks += 2) {
            const int d = topo[t][0], g = topo[t][1];
            const size_t rings = (size_t)(2 * (g - 1) + (d > 2 ? 4 : 2) * (d - 1));
            struct world *w = world_create(d, g, blocks, rings * 2 * 16384, 16384, 0, (uint64_t)(t + blocks));
            w->control = WORLD_ANY_TARGET;
            w->delays = blocks == 3;
            for (int i = 0; i < 2; i++) {
                int64_t k[6] = {1, 2, 3, 4, 5, 6};
                const struct world_call c = {384 / scale, 600, k, MK_NT, MK_FLOAT32, 0, 0, 0, i};
                run(w, &c);
            }
            world_destroy(w);
        }
}

/* One resident block of each rank does everything; the others come when it has left. */
static void one_block_is_enough(void **state)
{
    (void)state;
    for (int control = WORLD_CONTROLLER; control <= WORLD_ANY_TARGET; control++) {
        int64_t k[4] = {4, 3, 2, 1};
        struct world *w = world_create(2, 2, 6, 512 << 10, 16384, 0, (uint64_t)control);
        w->control = control;
        w->late = 1;
        for (int i = 0; i < 3; i++) {
            const struct world_call c = {260, 530, k, MK_NN, MK_FLOAT32, 0, 0, 0, 0};
            run(w, &c);
        }
        world_destroy(w);
    }
}

/* A launch that failed left the lock taken, and a target: neither is the next launch's. */
static void what_a_failed_launch_left(void **state)
{
    (void)state;
    int64_t k[2] = {4, 3};
    struct world *w = world_create(2, 1, 2, 1 << 20, 64 << 10, 0, 3);
    const struct world_call c = {260, 530, k, MK_NN, MK_FLOAT32, 0, 0, 0, 0};
    struct mk_ar_ctl *ctl = &w->r[0].state->control[0];
    w->control = WORLD_CONTROLLER;
    ctl->lock = 77ull << 32 | 1;
    ctl->target = 77ull << 32 | 2;
    run(w, &c);
    assert_int_equal(ctl->lock, 1ull << 32);
    assert_int_equal(ctl->target >> 32, 1);
    assert_int_equal(ctl->epoch, 1);
    world_destroy(w);
}

/* mk_ar_first_ready against all tiles in their order. */
static void first_chunk_that_can_be_ready(void **state)
{
    (void)state;
    uint64_t rng = 5;
    for (int i = 0; i < 3000 / scale; i++) {
        struct mk_ar ar;
        memset(&ar, 0, sizeof(ar));
        struct mk_grid *g = &ar.grid;
        g->tile_m = 1 << (3 + world_rand(&rng) % 4);
        g->tile_n = i % 3 ? 1 << (3 + world_rand(&rng) % 4) : 24;
        g->m = (int64_t)(1 + world_rand(&rng) % 600);
        g->n = (int64_t)(1 + world_rand(&rng) % 600);
        g->bands = (int32_t)(world_rand(&rng) % 5);
        g->chunk_m = g->tile_m * (g->bands > 1 && i % 2 ? g->bands : 1);
        g->chunk_n = (int32_t)(1 + world_rand(&rng) % 300);
        mk_grid_count(g);
        ar.rings.topo.nnodes = 2;
        ar.rings.topo.nlocal = 1;
        uint32_t best = UINT32_MAX;
        for (uint32_t c = 0; c < mk_chunks(g); c++) {
            const struct mk_rect r = mk_chunk_rect(g, c);
            uint32_t last = 0;
            for (uint32_t at = 0; at < mk_tiles(g); at++) {
                const struct mk_rect t = mk_tile_rect(g, mk_tile_in_order(g, at));
                if (t.row < r.row + r.rows && r.row < t.row + t.rows && t.col < r.col + r.cols &&
                    r.col < t.col + t.cols)
                    last = at;
            }
            best = last + 1 < best ? last + 1 : best;
        }
        assert_int_equal(mk_ar_first_ready(&ar), best);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_task_is_counted_once),    cmocka_unit_test(any_target_finishes),
        cmocka_unit_test(one_block_is_enough),           cmocka_unit_test(what_a_failed_launch_left),
        cmocka_unit_test(first_chunk_that_can_be_ready),
    };
#ifdef __SANITIZE_THREAD__
    scale = 4;
#endif
    mk_gemm_cpu_open(false);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
