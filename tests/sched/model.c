/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Random-schedule model of the staging rings: one step at a time, any queue of any block of any rank, any command of
 * any wire, claimed tasks held for a while. Two slots a ring and messages of many laps, so that every wait of the
 * protocol occurs. It must always finish, with the right bits; with credits lost on the wire it must not, or the
 * model could not see a deadlock. */
#include "world.h"
#include "fused/ops/gemm_ar_run.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

static const int topologies[][2] = {{2, 1}, {1, 3}, {2, 2}, {3, 1}, {4, 1}, {3, 2}, {5, 1}, {2, 3}};
#define NTOPO ((int)(sizeof(topologies) / sizeof(topologies[0])))

/* Small tiles and chunks whose borders do not meet, or chunks of whole tiles, which are placed in their slots where these are
 * granted; 1, 2 or 4 panels a chunk, and of a panel as many pieces, on each rank as it likes, of which a task takes some. */
static void small_grid(struct world *w, uint64_t seed)
{
    const bool whole = seed % 4 < 2;
    for (int i = 0; i < w->n; i++) {
        w->r[i].ar.grid.tile_m = 8;
        w->r[i].ar.grid.tile_n = whole ? 16 >> seed / 2 % 3 : 24;
        w->r[i].ar.grid.chunk_m = whole ? 16 : 12;
        w->r[i].ar.grid.chunk_n = 16;
        w->r[i].ar.grid.panels_log2 = (int32_t)(seed / 2 % 3);
        w->r[i].ar.grid.panel_n = 16 >> w->r[i].ar.grid.panels_log2;
        const int32_t rows = (int32_t)((seed / 6 + (uint64_t)i) % 3);
        w->r[i].ar.grid.pieces_log2 = w->r[i].ar.grid.panels_log2 + rows;
        w->r[i].ar.grid.span_log2 = (int32_t)((seed / 5 + (uint64_t)i) % (uint64_t)(rows + 1));
        w->r[i].ar.grid.edge_first = (int32_t)(seed / 7 % 3);
        w->r[i].ar.grid.edge_last = (int32_t)(seed / 3 % 3);
        mk_grid_count(&w->r[i].ar.grid);
        w->r[i].ar.place_rows = mk_ar_place_rows(&w->r[i].ar);
        assert_true(whole == (w->r[i].ar.place_rows > 0) || w->r[i].ar.wire_fp32);
    }
}
/* Of the last call: tiles in their slots, and those in C alone. */
static struct {
    uint32_t in_slot, in_c;
} placed;
static void count_placed(const struct world *w)
{
    for (int i = 0; i < w->n; i++)
        for (uint32_t t = 0; w->r[i].ar.place_rows && t < mk_tiles(&w->r[i].ar.grid); t++)
            if ((uint32_t)w->r[i].tile_flag[t] >= MK_TILE_PLACED)
                placed.in_slot++;
            else
                placed.in_c++;
}

/* The multiply's bits depend on its tile, and this test has its own: K = 1 has one product and no sum. */
static int play(int t, uint64_t seed, int calls, int lose)
{
    const int d = topologies[t][0], g = topologies[t][1];
    const size_t rings = (size_t)(2 * (g - 1) + (d > 2 ? 4 : 2) * (d - 1));
    struct world *w =
        world_create(d, g, 1 + (int)(seed % 3), rings * 2 * 16384, 16384, seed % 2 ? 0xfffffff0ull : 0, seed);
    int64_t k[16], deadlocks = 0;
    w->lose_credits = lose;
    for (int i = 0; i < calls && !deadlocks; i++) {
        double err;
        for (int r = 0; r < w->n; r++)
            k[r] = (r + i) % 4 ? 1 : 0;
        const struct world_call c = {
            60 + 7 * (i % 2), 90, k, (int)(seed % 3), (int)(seed % 2), i % 2, 0, 0, 0};
        assert_int_equal(world_prepare(w, &c), 0);
        for (int r = 0; r < w->n; r++) {
            free(w->r[r].tile_flag);
            w->r[r].tile_flag = calloc(256, sizeof(uint64_t));
            w->r[r].ar.tile_flag = w->r[r].tile_flag;
        }
        small_grid(w, seed);
        deadlocks += world_run_steps(w);
        count_placed(w);
        if (!deadlocks && !lose)
            assert_int_equal(world_verify(w, &c, &err), 0);
    }
    world_destroy(w);
    return (int)deadlocks;
}

static void every_schedule_finishes(void **state)
{
    (void)state;
    for (int t = 0; t < NTOPO; t++)
        for (uint64_t seed = 1; seed <= 12; seed++)
            if (play(t, seed, 3, 0))
                fail_msg("%dx%d, seed %lu: deadlock", topologies[t][0], topologies[t][1],
                         (unsigned long)seed);
    assert_true(placed.in_slot > 0 && placed.in_c > 0);
}

/* Calls in a row: ranks that have finished one are in the next, and send before the others have come there. mismatch: so many
 * calls match, then one rank has something else. */
static void in_a_row(int t, uint64_t seed, int mismatch)
{
    enum { CALLS = 5 };
    const int d = topologies[t][0], g = topologies[t][1];
    const size_t rings = (size_t)(2 * (g - 1) + (d > 2 ? 4 : 2) * (d - 1));
    struct world *w =
        world_create(d, g, 1 + (int)(seed % 3), rings * 2 * 16384, 16384, seed % 3 ? 0xfffffff0ull : 0, seed);
    struct world_call c[CALLS];
    int64_t k[CALLS][16];
    int done[16];
    double err;
    for (int i = 0; i < CALLS; i++) {
        for (int r = 0; r < w->n; r++)
            k[i][r] = (r + i) % 4 ? 1 : 0;
        const bool tiny = (seed + (uint64_t)i) % 4 == 3;
        c[i] = (struct world_call){tiny ? (int)(seed % 2) : 60 + 7 * (i % 2),
                                   tiny ? 5 : 90,
                                   k[i],
                                   (int)(seed % 3),
                                   (int)(seed % 2),
                                   i % 2,
                                   0,
                                   0,
                                   0};
        assert_int_equal(world_prepare(w, &c[i]), 0);
        for (int r = 0; r < w->n; r++) {
            free(w->r[r].tile_flag);
            w->r[r].tile_flag = calloc(256, sizeof(uint64_t));
            w->r[r].ar.tile_flag = w->r[r].tile_flag;
        }
        small_grid(w, seed);
        if (i == mismatch)
            w->r[(seed + 1) % (uint64_t)w->n].ar.signature ^= 1;
        world_queue(w);
    }
    if (world_run_queued(w, done))
        fail_msg("%dx%d, seed %lu: deadlock", d, g, (unsigned long)seed);
    for (int i = 0; i < CALLS && (mismatch < 0 || i < mismatch); i++) {
        bool all = true;
        for (int r = 0; r < w->n; r++)
            all &= done[r] > i;
        world_recall(w, i);
        if (all)
            assert_int_equal(world_verify(w, &c[i], &err), 0);
        else
            assert_true(mismatch >= 0);
    }
    /* nothing of another rank is in C; a call without elements may end where the unlike one is no neighbour */
    for (int r = 0; r < w->n && mismatch >= 0; r++) {
        assert_true(done[r] <= mismatch || !c[mismatch].m);
        world_recall(w, mismatch);
        assert_int_equal(world_strange(w, &c[mismatch], r), 0);
    }
    world_destroy(w);
}

static void ranks_run_ahead(void **state)
{
    (void)state;
    for (int t = 0; t < NTOPO; t++)
        for (uint64_t seed = 1; seed <= 12; seed++)
            in_a_row(t, seed, -1);
}
static void a_mismatch_of_those_ahead(void **state)
{
    (void)state;
    for (int t = 0; t < NTOPO; t++)
        for (uint64_t seed = 1; seed <= 6; seed++)
            in_a_row(t, seed, (int)(seed % 5));
}

static void a_lost_credit_is_seen(void **state)
{
    (void)state;
    for (int t = 0; t < NTOPO; t++) {
        int found = topologies[t][0] == 1; /* no wire with one node */
        for (uint64_t seed = 1; seed <= 5 && !found; seed++)
            found = play(t, seed, 3, 4);
        assert_true(found);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_schedule_finishes), cmocka_unit_test(ranks_run_ahead),
        cmocka_unit_test(a_mismatch_of_those_ahead), cmocka_unit_test(a_lost_credit_is_seen)};
#ifndef __SANITIZE_THREAD__
    mk_gemm_cpu_open(1);
#else
    mk_gemm_cpu_open(0); /* OpenBLAS is not instrumented */
#endif
    return cmocka_run_group_tests(tests, NULL, NULL);
}
