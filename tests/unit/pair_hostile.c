/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Programs as event lists: those that frameworks run, and those that would break a careless recogniser. What is expected is
 * written down from the rules, by hand. */
#include "tests/unit/pair_help.h"
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

/* ---- what frameworks do ---- */

/* F.linear then all_reduce in place on the default stream, two event records after it, layer by layer. */
static void program_row_parallel_forward(void **state)
{
    WITH_RANK;
    s.stream[0].blocking = true;
    for (int step = 0; step < 4; step++)
        for (uint64_t layer = 0; layer < 8; layer++) {
            const struct mk_pair_gemm g = sim_gemm_of(layer);
            const struct mk_pair_coll c = sim_coll_of(0, &g);
            sim_gemm(&s, 0, &g);
            assert_int_equal(s.out.act, step ? MK_PAIR_DO_G : MK_PAIR_DO_ORIGINAL);
            sim_coll(&s, 0, &c);
            assert_int_equal(s.out.act, step ? MK_PAIR_DO_OVERLAP : MK_PAIR_DO_PLAIN);
            sim_record(&s, 0, 0);
            sim_record(&s, 0, 1);
            sim_foreign(&s, 0);
        }
    sim_end(&s);
}

/* The same captured: event records make no node. */
static void program_row_parallel_captured(void **state)
{
    WITH_RANK;
    s.counted = false;
    for (uint64_t layer = 0; layer < 8; layer++) {
        const struct mk_pair_gemm g = sim_gemm_of(layer);
        LEARN(&s, &g, 0);
    }
    sim_capture(&s, 0);
    for (uint64_t layer = 0; layer < 8; layer++) {
        const struct mk_pair_gemm g = sim_gemm_of(layer);
        PAIR(&s, &g, 0, G, OK, OVERLAP, OK);
        sim_record(&s, 0, 0);
        sim_record(&s, 0, 1);
        sim_foreign(&s, 0);
    }
    sim_captured(&s, 0);
    sim_end(&s);
}

/* async_op=True: event, side stream waits, collective there; wait() later. */
static void program_async_is_plain_on_its_stream(void **state)
{
    WITH_RANK;
    const struct mk_pair_gemm g = W1;
    const struct mk_pair_coll c = sim_coll_of(0, &g);
    LEARN(&s, &g, 0);
    for (int i = 0; i < 3; i++) {
        EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
        sim_record(&s, 0, 0);
        sim_wait(&s, 1, 0);
        EXPECT(&s, sim_coll(&s, 1, &c), PLAIN, CROSS_STREAM);
        sim_record(&s, 1, 1);
        sim_wait(&s, 0, 1);
    }
    sim_end(&s);
}

/* Functional collectives compiled: in place, on a side stream, joined. Eager runs teach N and K, the capture overlaps. */
static void program_compiled_functional(void **state)
{
    WITH_RANK;
    for (int captured = 0; captured < 2; captured++) {
        if (captured)
            sim_capture(&s, 0);
        for (uint64_t layer = 0; layer < 4; layer++) {
            const struct mk_pair_gemm g = sim_gemm_of(layer);
            const struct mk_pair_coll c = sim_coll_of(0, &g);
            sim_gemm(&s, 0, &g);
            assert_int_equal(s.out.act, captured ? MK_PAIR_DO_G : MK_PAIR_DO_ORIGINAL);
            sim_record(&s, 0, 0);
            sim_wait(&s, 1, 0);
            sim_coll(&s, 1, &c);
            if (captured)
                sim_expect(&s, MK_PAIR_DO_OVERLAP, MK_PAIR_OK, __FILE__, __LINE__);
            else
                sim_expect(&s, MK_PAIR_DO_PLAIN, MK_PAIR_CROSS_STREAM, __FILE__, __LINE__);
            sim_record(&s, 1, 1);
            sim_wait(&s, 0, 1);
            sim_foreign(&s, 0);
        }
    }
    sim_end(&s);
}

/* DTensor, Colwise and Rowwise, eager: a copy of C, event, side stream, collective in place on the copy. */
static void program_dtensor_copy_between(void **state)
{
    WITH_RANK;
    const struct mk_pair_gemm g = W1;
    struct mk_pair_coll c = sim_coll_of(0, &g);
    c.send = c.recv = UINT64_C(0x70000000);
    LEARN(&s, &g, 0);
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
    sim_copy(&s, 0, g.c, c.send, c.count * 2);
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, COPY_BETWEEN);
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
    sim_copy(&s, 0, g.c, c.send, c.count * 2);
    sim_record(&s, 0, 0);
    sim_wait(&s, 1, 0);
    EXPECT(&s, sim_coll(&s, 1, &c), PLAIN, NO_GEMM);
    sim_end(&s);
}

/* Sequence parallel: groups that hold one AllGather or one ReduceScatter. */
static void program_sequence_parallel(void **state)
{
    WITH_RANK;
    const struct mk_pair_gemm g = W1;
    struct mk_pair_coll gather = sim_coll_of(0, &g), scatter = gather;
    gather.function = MK_PAIR_ALLGATHER;
    scatter.function = MK_PAIR_REDUCESCATTER;
    for (int i = 0; i < 3; i++) {
        sim_group(&s);
        EXPECT(&s, sim_coll(&s, 1, &gather), NCCL, FUNCTION);
        sim_group_end(&s);
        EXPECT(&s, sim_gemm(&s, 0, &g), ORIGINAL, UNKNOWN_SITE);
        sim_group(&s);
        EXPECT(&s, sim_coll(&s, 1, &scatter), NCCL, FUNCTION);
        sim_group_end(&s);
        assert_int_equal(s.ntaken, 0);
    }
    assert_int_equal(sim_error(&s, 0), 0);
    sim_end(&s);
}

/* Out of place, current stream. */
static void program_out_of_place(void **state)
{
    WITH_RANK;
    const struct mk_pair_gemm g = W1;
    struct mk_pair_coll c = sim_coll_of(0, &g);
    c.recv = UINT64_C(0x70000000);
    EXPECT(&s, sim_gemm(&s, 0, &g), ORIGINAL, UNKNOWN_SITE);
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, LEARNING);
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
    EXPECT(&s, sim_coll(&s, 0, &c), OVERLAP, OK);
    sim_end(&s);
}

/* ---- hostile ---- */

static void hostile_kernel_in_place_between(void **state)
{
    for (int captured = 0; captured < 2; captured++) {
        WITH_RANK;
        const struct mk_pair_gemm g = W1;
        const struct mk_pair_coll c = sim_coll_of(0, &g);
        LEARN(&s, &g, 0);
        if (captured)
            sim_capture(&s, 0);
        EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
        sim_foreign(&s, 0);
        EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, INTRUDER);
        sim_end(&s);
    }
}

/* Launched through a library that no symbol hook sees: only counters of the driver, or the capture, tell. */
static void hostile_kernel_that_no_symbol_hook_sees(void **state)
{
    WITH_RANK;
    const struct mk_pair_gemm g = W1;
    const struct mk_pair_coll c = sim_coll_of(0, &g);
    LEARN(&s, &g, 0);
    s.counted = false; /* no driver hooks: an intruder is not even noticed */
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, NO_PROOF);
    sim_end(&s);
}

/* Another stream reads C: in place that stream has to be waited for, by an event on this one. */
static void hostile_reader_on_another_stream(void **state)
{
    for (int captured = 0; captured < 2; captured++) {
        WITH_RANK;
        const struct mk_pair_gemm g = W1;
        const struct mk_pair_coll c = sim_coll_of(0, &g);
        LEARN(&s, &g, 0);
        if (captured)
            sim_capture(&s, 0);
        EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
        sim_record(&s, 0, 0);
        sim_wait(&s, 1, 0);
        sim_foreign(&s, 1);
        sim_record(&s, 1, 1);
        sim_wait(&s, 0, 1);
        sim_coll(&s, 0, &c);
        assert_int_equal(s.out.act, MK_PAIR_DO_PLAIN);
        assert_int_equal(s.out.reason, captured ? MK_PAIR_INTRUDER : MK_PAIR_EVENT_BETWEEN);
        sim_end(&s);
    }
}

static void hostile_recvbuff_in_freed_memory_of_a(void **state)
{
    WITH_RANK;
    const struct mk_pair_gemm g = W1;
    struct mk_pair_coll c = sim_coll_of(0, &g);
    LEARN(&s, &g, 0);
    c.recv = g.a - 1024; /* a larger block, of which A was a part */
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, RANGE);
    sim_capture(&s, 0);
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, RANGE); /* a capture proves order, not memory */
    sim_end(&s);
}

static void hostile_group_with_two_operations(void **state)
{
    WITH_RANK;
    const struct mk_pair_gemm g = W1;
    const struct mk_pair_coll c = sim_coll_of(0, &g);
    LEARN(&s, &g, 0);
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
    sim_group(&s);
    sim_coll(&s, 0, &c);
    sim_coll(&s, 0, &c);
    EXPECT(&s, sim_group_end(&s), PLAIN, GROUPED);
    assert_int_equal(s.ntaken, 2);
    assert_int_equal(s.taken[0].act, MK_PAIR_DO_PLAIN);
    sim_end(&s);
}

/* TP and DP in two threads on two streams: numbers and order of each are its own, in whatever order they are issued. */
static void hostile_two_communicators_in_two_threads(void **state)
{
    uint64_t first[2] = {0, 0};
    for (int order = 0; order < 2; order++) {
        WITH_RANK;
        sim_fused(&s, 1);
        struct mk_pair_gemm g = W1, h = sim_gemm_of(2);
        h.c += 0x1000000;
        const struct mk_pair_coll c = sim_coll_of(0, &g), d = sim_coll_of(1, &h);
        LEARN(&s, &g, 0);
        s.thread = 2;
        sim_gemm(&s, 1, &h);
        sim_coll(&s, 1, &d);
        for (int i = 0; i < 6; i++) {
            const int which = (i + order) & 1;
            s.thread = 1 + (uint64_t)which;
            EXPECT(&s, sim_gemm(&s, which, which ? &h : &g), G, OK);
            assert_int_equal(s.out.order, MK_PAIR_IN_ORDER);
            EXPECT(&s, sim_coll(&s, which, which ? &d : &c), OVERLAP, OK);
            assert_int_equal(s.out.order, MK_PAIR_IN_ORDER); /* neither waits for the other */
        }
        assert_true(!order || (first[0] == sim_number(&s, 0) && first[1] == sim_number(&s, 1)));
        first[0] = sim_number(&s, 0);
        first[1] = sim_number(&s, 1);
        sim_end(&s);
    }
}

/* One rank computes the GEMM, with bias or without, the other skips it: K on both. */
static void hostile_rank_that_skips_the_gemm(void **state)
{
    for (int rank = 0; rank < 3; rank++) {
        WITH_RANK;
        struct mk_pair_gemm g = W1;
        const struct mk_pair_coll c = sim_coll_of(0, &g);
        if (rank == 1) {
            g.epilogue = MK_PAIR_BIAS;
            g.bias = UINT64_C(0x50000000);
        }
        for (int i = 0; i < 4; i++) {
            if (rank < 2)
                sim_gemm(&s, 0, &g);
            const uint64_t number = sim_number(&s, 0);
            sim_coll(&s, 0, &c);
            assert_true(s.out.act == MK_PAIR_DO_PLAIN || s.out.act == MK_PAIR_DO_OVERLAP);
            assert_int_equal(s.out.number, number);
            assert_int_equal(s.out.act == MK_PAIR_DO_OVERLAP, rank < 2 && i > 0);
        }
        sim_end(&s);
    }
}

/* An evaluation step: GEMMs whose collective does not come, then one whose does. */
static void hostile_gemm_without_its_collective(void **state)
{
    WITH_RANK;
    const struct mk_pair_gemm g = W1, h = sim_gemm_of(2);
    LEARN(&s, &g, 0);
    LEARN(&s, &h, 0);
    for (int i = 0; i < 5; i++) {
        EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
        sim_foreign(&s, 0);
        EXPECT(&s, sim_gemm(&s, 0, &h), G, OK);
        sim_foreign(&s, 0);
    }
    PAIR(&s, &g, 0, G, OK, OVERLAP, OK);
    assert_int_equal(s.out.generation, 11);
    sim_end(&s);
}

/* Graphs of different lengths, and eager calls between: each waits for whatever the communicator did before. */
static void hostile_graphs_in_another_order(void **state)
{
    WITH_RANK;
    const struct mk_pair_gemm g = W1;
    const struct mk_pair_coll c = sim_coll_of(0, &g);
    LEARN(&s, &g, 0);
    for (int graph = 0; graph < 2; graph++) {
        sim_capture(&s, 0);
        for (int i = 0; i <= graph; i++) {
            EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
            assert_int_equal(s.out.order, i ? MK_PAIR_IN_ORDER : MK_PAIR_WAIT_EXTERNAL);
            EXPECT(&s, sim_coll(&s, 0, &c), OVERLAP, OK);
            assert_int_equal(s.out.record, MK_PAIR_RECORD_EXTERNAL);
        }
        sim_captured(&s, 0);
    }
    sim_replay(&s, 0);
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
    assert_int_equal(s.out.order, MK_PAIR_WAIT_EVENT);
    EXPECT(&s, sim_coll(&s, 0, &c), OVERLAP, OK);
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
    sim_replay(&s, 3); /* between the two */
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, INTRUDER);
    assert_int_equal(s.out.order, MK_PAIR_WAIT_EVENT);
    sim_end(&s);
}

static void hostile_abort_in_flight(void **state)
{
    WITH_RANK;
    struct mk_pair_event abort = sim_comm_event(MK_PAIR_EV_COMM_ABORT, 0);
    const struct mk_pair_gemm g = W1;
    const struct mk_pair_coll c = sim_coll_of(0, &g);
    LEARN(&s, &g, 0);
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
    sim_step(&s, &abort);
    EXPECT(&s, sim_coll(&s, 0, &c), FAIL, ERROR);
    EXPECT(&s, sim_gemm(&s, 0, &g), ORIGINAL, UNKNOWN_SITE); /* no K will follow */
    sim_end(&s);
}

/* A hundred communicators, made and destroyed, at addresses that come again. */
static void hostile_hundred_communicators(void **state)
{
    WITH_RANK;
    for (int i = 0; i < 100; i++) {
        struct mk_pair_event end = sim_comm_event(MK_PAIR_EV_COMM_END, 1 + i % 7);
        const struct mk_pair_gemm g = sim_gemm_of(10 + (uint64_t)i);
        sim_fused(&s, 1 + i % 7);
        PAIR(&s, &g, 1 + i % 7, ORIGINAL, UNKNOWN_SITE, PLAIN, LEARNING);
        PAIR(&s, &g, 1 + i % 7, G, OK, OVERLAP, OK);
        if (i % 3) /* not every end is seen: the next one at that address says so too */
            sim_step(&s, &end);
    }
    assert_int_equal(sim_error(&s, 0), 0);
    sim_end(&s);
}

/* A rank without the plugin: set-up ends 'off' on all, and nothing changes for the program. */
static void hostile_rank_without_the_plugin(void **state)
{
    struct sim s;
    (void)state;
    sim_start(&s, NULL);
    struct mk_pair_event off = sim_comm_event(MK_PAIR_EV_COMM_OFF, 0);
    const struct mk_pair_gemm g = W1;
    sim_tied(&s, 0);
    off.u.comm.reason = MK_PAIR_MEMBER;
    sim_step(&s, &off);
    for (int i = 0; i < 5; i++)
        PAIR(&s, &g, 0, ORIGINAL, UNKNOWN_SITE, NCCL, MEMBER);
    sim_end(&s);
}

/* Both threads use the same stream: the last GEMM is the stream's, not the thread's. */
static void hostile_two_threads_on_one_stream(void **state)
{
    WITH_RANK;
    struct mk_pair_gemm g = W1, h = sim_gemm_of(2);
    h.c += 0x1000000;
    const struct mk_pair_coll c = sim_coll_of(0, &g);
    LEARN(&s, &g, 0);
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
    s.thread = 2;
    EXPECT(&s, sim_gemm(&s, 0, &h), ORIGINAL, UNKNOWN_SITE);
    s.thread = 1;
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, NOT_LAST);
    sim_end(&s);
}

/* The same buffer summed over two communicators one after the other: only the first one follows the GEMM. */
static void hostile_two_sums_of_one_buffer(void **state)
{
    WITH_RANK;
    sim_fused(&s, 1);
    const struct mk_pair_gemm g = W1;
    const struct mk_pair_coll c = sim_coll_of(0, &g), d = sim_coll_of(1, &g);
    LEARN(&s, &g, 0);
    for (int i = 0; i < 3; i++) {
        PAIR(&s, &g, 0, G, OK, OVERLAP, OK);
        EXPECT(&s, sim_coll(&s, 0, &d), PLAIN, NOT_LAST);
    }
    sim_capture(&s, 0);
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
    sim_record(&s, 0, 0);
    sim_wait(&s, 1, 0);
    sim_coll(&s, 0, &c);
    assert_int_equal(s.out.act, MK_PAIR_DO_PLAIN); /* waits for what it did outside of the capture */
    EXPECT(&s, sim_coll(&s, 1, &d), PLAIN, NOT_LAST);
    sim_end(&s);
}

int pair_hostile(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(program_row_parallel_forward),
        cmocka_unit_test(program_row_parallel_captured),
        cmocka_unit_test(program_async_is_plain_on_its_stream),
        cmocka_unit_test(program_compiled_functional),
        cmocka_unit_test(program_dtensor_copy_between),
        cmocka_unit_test(program_sequence_parallel),
        cmocka_unit_test(program_out_of_place),
        cmocka_unit_test(hostile_kernel_in_place_between),
        cmocka_unit_test(hostile_kernel_that_no_symbol_hook_sees),
        cmocka_unit_test(hostile_reader_on_another_stream),
        cmocka_unit_test(hostile_recvbuff_in_freed_memory_of_a),
        cmocka_unit_test(hostile_group_with_two_operations),
        cmocka_unit_test(hostile_two_communicators_in_two_threads),
        cmocka_unit_test(hostile_rank_that_skips_the_gemm),
        cmocka_unit_test(hostile_gemm_without_its_collective),
        cmocka_unit_test(hostile_graphs_in_another_order),
        cmocka_unit_test(hostile_abort_in_flight),
        cmocka_unit_test(hostile_hundred_communicators),
        cmocka_unit_test(hostile_rank_without_the_plugin),
        cmocka_unit_test(hostile_two_threads_on_one_stream),
        cmocka_unit_test(hostile_two_sums_of_one_buffer),
    };
    return cmocka_run_group_tests_name("pair programs", tests, NULL, NULL);
}
