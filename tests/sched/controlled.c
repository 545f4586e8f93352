/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* GEMM+AllReduce under the controller, on threads: the bits are those of the contract whatever the roles, every launch
 * ends whatever the target and however few blocks are there, every task is counted once. */
#include "world.h"
#include "fused/ops/gemm_ar_run.h"
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
                struct mk_ar_ctl *ctl = &w->r[r].state->control[0];
                mk_ar_ctl_learn_last(ctl);
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

/* A block between two tiles: its role first, then an abort, then the next tile, each once. */
static void one_tile_more(void **state)
{
    (void)state;
    int64_t k[2] = {4, 3};
    struct world *w = world_create(2, 1, 4, 1 << 20, 64 << 10, 0, 3);
    const struct world_call c = {260, 530, k, MK_NN, MK_FLOAT32, 0, 0, 0, 0};
    struct mk_ar_block a, b;
    struct mk_ar *ar = &w->r[0].ar;
    w->control = WORLD_CONTROLLER;
    assert_int_equal(world_prepare(w, &c), 0);
    struct mk_ar_ctl *ctl = &ar->state->control[0];
    memset(&a, 0, sizeof(a));
    memset(&b, 0, sizeof(b));
    mk_ar_enter(ar, &a);
    mk_ar_enter(ar, &b);
    assert_int_equal(a.ticket, 0);
    assert_int_equal(mk_ar_more(ar, &a), MK_NEXT_TASK);
    assert_int_equal(a.task.kind, MK_AR_TILE);
    ctl->target = (uint64_t)a.tag << 32 | 1; /* the first of them is to communicate */
    assert_int_equal(mk_ar_more(ar, &a), MK_NEXT_TURN);
    assert_int_equal(mk_ar_more(ar, &b), MK_NEXT_TASK);
    assert_int_equal(b.task.item, 1);
    ctl->target = (uint64_t)(a.tag + 1) << 32 | 4; /* not this launch's */
    w->r[0].abort_word = 8;
    assert_int_equal(mk_ar_more(ar, &a), MK_NEXT_LEAVE);
    w->r[0].abort_word = 0;
    ar->control_pin = 2; /* whatever the target says */
    ctl->target = (uint64_t)a.tag << 32 | 4;
    for (uint32_t i = 2; i < mk_tiles(&ar->grid); i++) {
        assert_int_equal(mk_ar_more(ar, &a), MK_NEXT_TASK);
        assert_int_equal(a.task.item, i);
    }
    assert_int_equal(mk_ar_more(ar, &b), MK_NEXT_IDLE);
    assert_int_equal(mk_ar_more(ar, &b), MK_NEXT_IDLE);
    world_destroy(w);
}

/* A state that becomes another shape's begins from what is known of that one, and says what launches taught it. */
static void another_shape(void **state)
{
    (void)state;
    int64_t k[2] = {4, 3};
    struct world *w = world_create(2, 1, 2, 1 << 20, 64 << 10, 0, 3);
    const struct world_call c = {260, 530, k, MK_NN, MK_FLOAT32, 0, 0, 0, 0};
    uint64_t told[MK_AR_TAUGHT] = {0};
    double err;
    w->control = WORLD_CONTROLLER;
    for (uint32_t call = 1; call <= 3; call++) {
        struct mk_ar *ar = &w->r[0].ar;
        assert_int_equal(world_prepare(w, &c), 0);
        struct mk_ar_ctl *ctl = &ar->state->control[0];
        const struct mk_ctl before = ctl->ctl;
        ar->control_number = call < 3 ? 7 : 8;
        ar->control_cost[0] = call < 3 ? 0 : 3000;
        ar->control_cost[1] = call < 3 ? 0 : 2000;
        ar->taught = told;
        if (call == 3) { /* the first step of that launch, before any task */
            struct mk_ar_block blk;
            memset(&blk, 0, sizeof(blk));
            blk.epoch = ar->state->epoch;
            blk.tag = (uint32_t)blk.epoch;
            ctl->ctl.limit = 1;
            mk_ar_ctl_begin(ar, &blk, ctl, 1);
            assert_int_equal(ctl->ctl.cost[0], 3000);
            assert_int_equal(ctl->ctl.cost[1], 2000);
            assert_int_equal(ctl->ctl.limit, 0);
            assert_int_equal(ctl->number, 8);
            assert_int_equal(told[MK_TAUGHT_COSTS], 2000ull << 32 | 3000);
            assert_int_equal(told[MK_TAUGHT_TARGET], 8ull << 32);
            break;
        }
        assert_int_equal(world_run_threads(w), 0);
        assert_int_equal(world_verify(w, &c, &err), 0);
        if (call == 1) {
            assert_int_equal(told[MK_TAUGHT_TARGET], 0); /* nothing is known yet */
            continue;
        }
        assert_int_equal(told[MK_TAUGHT_TARGET] >> 32, 7);
        assert_true((uint32_t)told[MK_TAUGHT_COSTS] > 0 && told[MK_TAUGHT_COSTS] >> 32 > 0);
        assert_int_equal((uint32_t)told[MK_TAUGHT_COSTS] > before.cost[0] / 4, 1); /* of the launch before */
    }
    world_destroy(w);
}

/* What a block looks at before it tries for a step misses none: wherever one is due, the count has come to that word. */
static void no_step_is_missed(void **state)
{
    (void)state;
    uint64_t rng = 11;
    int due = 0;
    for (int i = 0; i < 20000 / scale; i++) {
        struct mk_ar_ctl c;
        struct mk_ctl_sample s;
        memset(&c, 0, sizeof(c));
        memset(&s, 0, sizeof(s));
        c.conf.units = (uint32_t)(1 + world_rand(&rng) % 70);
        c.conf.ceiling = 1 + c.conf.units / 3;
        for (int kind = 0; kind < 2; kind++) {
            c.base.done[kind] = world_rand(&rng) % 3 ? world_rand(&rng) : UINT64_MAX - 5; /* counts wrap */
            c.total[kind] = (uint32_t)(1 + world_rand(&rng) % 300);
        }
        mk_ctl_begin(&c.conf, &c.ctl, 0);
        uint64_t at = 0;
        for (int step = 0; step < 40; step++) {
            s.now += world_rand(&rng) % 5000;
            s.units = (uint32_t)(1 + world_rand(&rng) % c.conf.units);
            for (int kind = 0; kind < 2; kind++) {
                const uint32_t more = (uint32_t)(world_rand(&rng) % 20);
                s.done[kind] = s.done[kind] + more < c.total[kind] ? s.done[kind] + more : c.total[kind];
                s.left[kind] = c.total[kind] - s.done[kind];
                s.busy[kind] = (uint64_t)s.done[kind] * (1000 + world_rand(&rng) % 500);
            }
            if (!mk_ctl_due(&c.conf, &c.ctl, &s))
                continue;
            const uint64_t done = c.base.done[0] + c.base.done[1] + s.done[0] + s.done[1];
            if (step && at && s.units >= c.conf.units) { /* more units only come */
                assert_true((int32_t)((uint32_t)done - (uint32_t)at) >= 0);
                due++;
            }
            mk_ctl_step(&c.conf, &c.ctl, &s);
            at = mk_ar_ctl_due_at(&c, &s);
        }
    }
    assert_true(due > 0);
}

/* As a block of the GPU's executor goes round (cuda/gemm_ar_block.cuh), whose tiles come in chains: its parts of the turn
 * spread over the round. */
static int spread_next(const struct mk_ar *ar, struct mk_ar_block *blk)
{
    if (!blk->prefers_comm) {
        const int more = mk_ar_more(ar, blk);
        if (more == MK_NEXT_TASK || more == MK_NEXT_LEAVE)
            return more;
        blk->prefers_comm = more == MK_NEXT_TURN;
    }
    const int comm = mk_ar_try_comm(ar, blk);
    struct mk_ar_ctl *c = mk_ar_control(ar);
    const uint64_t target = c ? mk_ar_ctl_step(ar, blk, c, mk_now_ns()) : 0;
    if (mk_ar_aborted(ar))
        return MK_NEXT_LEAVE;
    if (c)
        blk->prefers_comm = mk_ar_ctl_role(ar, blk, target) == MK_CTL_COMM;
    const int next = mk_ar_next_after(ar, blk, comm);
    if (next == MK_NEXT_IDLE)
        mk_ar_waited(ar, blk, mk_now_ns());
    return next;
}
static void blocks_whose_tiles_come_in_chains(void **state)
{
    (void)state;
    static const int topo[][2] = {{2, 1}, {1, 3}, {2, 2}, {3, 2}};
    for (int t = 0; t < 4; t++)
        for (int control = WORLD_BUDGET; control <= WORLD_ANY_TARGET; control++) {
            const int d = topo[t][0], g = topo[t][1], blocks = control == WORLD_ANY_TARGET ? 1 + t : 2 + t;
            const size_t rings = (size_t)(2 * (g - 1) + (d > 2 ? 4 : 2) * (d - 1));
            struct world *w = world_create(d, g, blocks, rings * 2 * 16384, 16384, 0, (uint64_t)(t + 31));
            uint64_t tiles = 0;
            w->control = control;
            w->delays = t % 2;
            w->next = spread_next;
            w->patience_ns = t == 2 ? 200000 : 20000;
            for (int i = 0; i < 3; i++) {
                int64_t k[6] = {3, 1, 2, 5, 4, 1};
                const struct world_call c = {512 / scale, i % 2 ? 700 : 96, k, MK_TN, MK_FLOAT32, 0, 0, 0, 0};
                run(w, &c);
                tiles += mk_tiles(&w->r[0].ar.grid);
                for (int r = 0; r < w->n && control == WORLD_CONTROLLER; r++) {
                    const struct mk_ar_ctl *ctl = &w->r[r].state->control[0];
                    assert_int_equal(ctl->base.done[MK_CTL_COMPUTE], tiles);
                    assert_memory_equal(&ctl->base, &ctl->count, sizeof(ctl->base));
                    assert_int_equal(ctl->epoch,
                                     w->r[r].state->epoch - 1); /* a step was made in each launch */
                }
            }
            world_destroy(w);
        }
}

/* mk_ar_first_ready against all tiles in their order. */
static void first_piece_that_can_be_ready(void **state)
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
        g->panels_log2 = (int32_t)(world_rand(&rng) % 3);
        g->panel_n = g->chunk_n;
        g->chunk_n <<= g->panels_log2;
        const int32_t rows = (int32_t)(world_rand(&rng) % 3);
        g->pieces_log2 = g->panels_log2 + rows;
        g->span_log2 = (int32_t)(world_rand(&rng) % (uint64_t)(rows + 1));
        g->edge_first = (int32_t)(world_rand(&rng) % 2);
        mk_grid_count(g);
        ar.rings.topo.nnodes = 2;
        ar.rings.topo.nlocal = 1;
        uint32_t best = UINT32_MAX;
        const uint32_t span = g->edge_first ? 1 : 1u << g->span_log2;
        for (uint32_t p = 0; p < mk_chunks(g) << g->pieces_log2; p += span) {
            struct mk_rect r = mk_chunk_rect(g, p >> g->pieces_log2);
            uint32_t last = 0;
            mk_piece_rect(g, p & ((1u << g->pieces_log2) - 1), span, &r);
            if (!r.rows)
                continue;
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
        cmocka_unit_test(every_task_is_counted_once),
        cmocka_unit_test(any_target_finishes),
        cmocka_unit_test(one_block_is_enough),
        cmocka_unit_test(what_a_failed_launch_left),
        cmocka_unit_test(first_piece_that_can_be_ready),
        cmocka_unit_test(one_tile_more),
        cmocka_unit_test(another_shape),
        cmocka_unit_test(no_step_is_missed),
        cmocka_unit_test(blocks_whose_tiles_come_in_chains),
    };
#ifdef __SANITIZE_THREAD__
    scale = 4;
#endif
    mk_gemm_cpu_open(false);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
