/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Event lists of collectives, each with what must be decided: K or NCCL by what all ranks share, groups, order.
 * What is expected is written down from the rules, by hand. */
#include "tests/unit/pair_help.h"
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

/* ---- K or NCCL ---- */

static void shared_facts_choose_nccl(void **state)
{
    WITH_RANK;
    const struct mk_pair_gemm g = W1;
    struct mk_pair_coll c = sim_coll_of(0, &g);
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, NO_GEMM);
    c.sum = 0;
    EXPECT(&s, sim_coll(&s, 0, &c), NCCL, OPERATOR);
    c = sim_coll_of(0, &g), c.dtype = MK_FLOAT32;
    EXPECT(&s, sim_coll(&s, 0, &c), NCCL, DTYPE);
    c.dtype = MK_PAIR_OTHER_DTYPE;
    EXPECT(&s, sim_coll(&s, 0, &c), NCCL, DTYPE);
    c = sim_coll_of(0, &g), c.function = MK_PAIR_REDUCESCATTER;
    EXPECT(&s, sim_coll(&s, 0, &c), NCCL, FUNCTION);
    const struct {
        uint64_t count;
        bool k;
    } counts[] = {{0, false},
                  {31, false}, /* 62 bytes */
                  {32, true},
                  {32 << 20, true}, /* 64 MiB */
                  {(32 << 20) + 1, false},
                  {UINT64_MAX / 2 + 33, false}};
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        c = sim_coll_of(0, &g), c.count = counts[i].count;
        sim_coll(&s, 0, &c);
        if (counts[i].k)
            sim_expect(&s, MK_PAIR_DO_PLAIN, MK_PAIR_NO_GEMM, __FILE__, __LINE__);
        else
            sim_expect(&s, MK_PAIR_DO_NCCL, MK_PAIR_COUNT, __FILE__, __LINE__);
    }
    sim_end(&s);
}

/* What K cannot divide into whole chunks is NCCL's; 0: any count. */
static void counts_are_multiples_of_the_granule(void **state)
{
    (void)state;
    static const uint32_t granules[] = {0, 1, 64};
    static const uint64_t counts[] = {32, 63, 64, 65, 96, 127, 128, 192, 4095, 4096, 4096 + 32};
    for (size_t g = 0; g < sizeof(granules) / sizeof(granules[0]); g++) {
        struct sim s;
        sim_start(&s, NULL);
        const struct mk_pair_gemm w = W1;
        struct mk_pair_event e = sim_comm_event(MK_PAIR_EV_COMM_AGREED, 0);
        sim_tied(&s, 0);
        e.u.comm.config = sim_config();
        e.u.comm.config.granule = granules[g];
        sim_step(&s, &e);
        sim_switch(&s, 0, sim_number(&s, 0), MK_PAIR_FUSED);
        for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
            struct mk_pair_coll c = sim_coll_of(0, &w);
            c.count = counts[i];
            if (granules[g] == 64 && counts[i] % 64)
                EXPECT(&s, sim_coll(&s, 0, &c), NCCL, COUNT);
            else
                EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, NO_GEMM);
        }
        sim_end(&s);
    }
}

/* Nothing local: stream, thread, alignment, window, what came before, counters, lateness, in place or not. */
static void local_facts_never_choose_nccl(void **state)
{
    for (int fact = 0; fact < 10; fact++) {
        WITH_RANK;
        const struct mk_pair_gemm g = W1;
        struct mk_pair_coll c = sim_coll_of(0, &g);
        const uint64_t number = sim_number(&s, 0);
        uint32_t act = MK_PAIR_DO_PLAIN;
        LEARN(&s, &g, 0);
        if (fact != 0)
            sim_gemm(&s, 0, &g);
        switch (fact) {
        case 1:
            s.counted = false;
            break;
        case 2:
            c.send += 2, c.recv += 2;
            break;
        case 3:
            c.window = 1;
            break;
        case 4:
            c.late = 1;
            break;
        case 5:
            c.recv = g.a;
            break;
        case 6:
            s.thread = 99;
            act = MK_PAIR_DO_OVERLAP;
            break;
        case 7:
            sim_foreign(&s, 0);
            break;
        case 8:
            c.caller = 1, c.recv = UINT64_C(0x70000000);
            act = MK_PAIR_DO_OVERLAP;
            break;
        case 9: /* another communicator at work */
            sim_fused(&s, 1);
            break;
        default:;
        }
        sim_coll(&s, fact == 2 ? 3 : 0, &c);
        assert_int_equal(s.out.act, act);
        assert_int_equal(s.out.number, number + 1);
        sim_end(&s);
    }
}

static void unaligned_and_window_are_plain(void **state)
{
    WITH_RANK;
    struct mk_pair_gemm g = W1;
    g.c += 8;
    LEARN(&s, &g, 0);
    PAIR(&s, &g, 0, G, OK, PLAIN, UNALIGNED);
    g = W1;
    struct mk_pair_coll c = sim_coll_of(0, &g);
    c.window = 1;
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, WINDOW);
    c.window = 0, c.late = 1;
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, LATE);
    sim_end(&s);
}

static void state_word_switches_at_its_number(void **state)
{
    struct sim s;
    (void)state;
    sim_start(&s, NULL);
    const struct mk_pair_gemm g = W1;
    const struct mk_pair_coll c = sim_coll_of(0, &g);
    sim_tied(&s, 0);
    sim_agreed(&s, 0);
    EXPECT(&s, sim_coll(&s, 0, &c), NCCL, NOT_READY);
    const uint64_t n = sim_number(&s, 0);
    sim_switch(&s, 0, n + 2, MK_PAIR_FUSED);
    EXPECT(&s, sim_coll(&s, 0, &c), NCCL, NOT_READY);
    EXPECT(&s, sim_coll(&s, 0, &c), NCCL, NOT_READY);
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, NO_GEMM);
    assert_int_equal(s.out.number, n + 2);
    sim_switch(&s, 0, n + 4, 0);
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, NO_GEMM);
    EXPECT(&s, sim_coll(&s, 0, &c), NCCL, SWITCHED_OFF);
    sim_switch(&s, 0, n + 5, MK_PAIR_FUSED); /* at once */
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, NO_GEMM);
    sim_end(&s);
}

/* A switch behind what has begun, or before the one before is reached, cannot be followed: an error, never a guess. */
static void state_word_that_comes_too_late(void **state)
{
    for (int pending = 0; pending < 2; pending++) {
        WITH_RANK;
        const struct mk_pair_gemm g = W1;
        const struct mk_pair_coll c = sim_coll_of(0, &g);
        EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, NO_GEMM);
        if (pending)
            sim_switch(&s, 0, sim_number(&s, 0) + 5, 0);
        sim_switch(&s, 0, pending ? sim_number(&s, 0) + 8 : sim_number(&s, 0) - 1, MK_PAIR_FUSED);
        assert_true(s.out.asks & MK_PAIR_ASK_TELL);
        EXPECT(&s, sim_coll(&s, 0, &c), FAIL, ERROR);
        assert_int_equal(s.out.error, MK_ERR_INTERNAL);
        sim_end(&s);
    }
}

/* The host has begun the call before a switch, as the agreement counts, when it hears of the next one. */
static void switch_heard_in_the_midst_of_a_call(void **state)
{
    WITH_RANK;
    const struct mk_pair_gemm g = W1;
    const struct mk_pair_coll c = sim_coll_of(0, &g);
    const uint64_t n = sim_number(&s, 0);
    sim_switch(&s, 0, n + 1, 0);
    sim_switch(&s, 0, n + 3, MK_PAIR_FUSED);
    assert_int_equal(s.out.asks, 0);
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, NO_GEMM);
    EXPECT(&s, sim_coll(&s, 0, &c), NCCL, SWITCHED_OFF);
    sim_switch(&s, 0, n + 5, 0); /* the first of the three is long past */
    EXPECT(&s, sim_coll(&s, 0, &c), NCCL, SWITCHED_OFF);
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, NO_GEMM);
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, NO_GEMM);
    EXPECT(&s, sim_coll(&s, 0, &c), NCCL, SWITCHED_OFF);
    sim_switch(&s, 0, n + 7, MK_PAIR_FUSED);
    sim_switch(&s, 0, n + 9, 0);
    sim_switch(&s, 0, n + 11, MK_PAIR_FUSED); /* two are all that can be pending */
    EXPECT(&s, sim_coll(&s, 0, &c), FAIL, ERROR);
    sim_end(&s);
}

static void size_classes(void **state)
{
    (void)state;
    assert_int_equal(mk_pair_class(0), 0);
    assert_int_equal(mk_pair_class(127), 0);
    assert_int_equal(mk_pair_class(128), 1);
    assert_int_equal(mk_pair_class((1 << 20) - 1), 13);
    assert_int_equal(mk_pair_class(1 << 20), 14);
    assert_int_equal(mk_pair_class(UINT64_C(1) << 33), 27);
    assert_int_equal(mk_pair_class(UINT64_MAX), 27);
    assert_true(MK_PAIR_SLOW_CLASS(false, 0) == 1 << 8 && MK_PAIR_SLOW_CLASS(true, 27) == UINT64_C(1) << 63);
}

static void slower_sizes_go_to_nccl(void **state)
{
    WITH_RANK;
    struct mk_pair_gemm g = W1; /* 256 KiB: class 12 */
    LEARN(&s, &g, 0);
    sim_switch(&s, 0, sim_number(&s, 0), MK_PAIR_FUSED | MK_PAIR_SLOW_CLASS(false, 12));
    PAIR(&s, &g, 0, ORIGINAL, NOT_FUSED, NCCL, SLOWER);
    g.m = 255; /* class 11 */
    PAIR(&s, &g, 0, G, OK, OVERLAP, OK);
    g.m = 511; /* still 12 */
    PAIR(&s, &g, 0, ORIGINAL, NOT_FUSED, NCCL, SLOWER);
    sim_capture(&s, 0);
    PAIR(&s, &g, 0, G, OK, OVERLAP, OK);
    sim_captured(&s, 0);
    g.m = 512;
    PAIR(&s, &g, 0, G, OK, OVERLAP, OK);
    sim_switch(&s, 0, sim_number(&s, 0), MK_PAIR_FUSED | MK_PAIR_SLOW_CLASS(true, 13));
    PAIR(&s, &g, 0, G, OK, OVERLAP, OK);
    sim_capture(&s, 0);
    PAIR(&s, &g, 0, ORIGINAL, NOT_FUSED, NCCL, SLOWER);
    sim_captured(&s, 0);
    sim_end(&s);
}

/* Which calls NCCL makes to be timed: by their number in the class, whatever else is called in between. */
static void both_ways_are_timed_in_turns(void **state)
{
    static const char turns[] = "KKKKKNNKNKKNKKKKKNNKNKKNKKK", slow[] = "NNNNKNNKNKKNNNNNKNNKNKKNNNN";
    (void)state;
    for (int is_slow = 0; is_slow < 2; is_slow++) {
        struct sim s;
        sim_start(&s, NULL);
        struct mk_pair_event e = sim_comm_event(MK_PAIR_EV_COMM_AGREED, 0);
        const struct mk_pair_gemm g = W1;
        struct mk_pair_coll c = sim_coll_of(0, &g), other = c;
        e.u.comm.config = sim_config();
        e.u.comm.config.timed = 1;
        other.count = 4 * c.count;
        sim_tied(&s, 0);
        sim_step(&s, &e);
        sim_switch(&s, 0, sim_number(&s, 0),
                   MK_PAIR_FUSED | (is_slow ? MK_PAIR_SLOW_CLASS(false, mk_pair_class(2 * c.count)) : 0));
        for (uint64_t i = 0; i < sizeof(turns) - 1; i++) {
            const bool round = (i >= 4 && i < 12) || (i >= 16 && i < 24),
                       k = (is_slow ? slow : turns)[i] == 'K';
            sim_capture(&s, 0); /* no turn of anybody */
            EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, NO_GEMM);
            assert_false(s.out.timed);
            sim_captured(&s, 0);
            if (i < 3)
                EXPECT(&s, sim_coll(&s, 0, &other), PLAIN, NO_GEMM);
            sim_coll(&s, 0, &c);
            sim_expect(&s, k ? MK_PAIR_DO_PLAIN : MK_PAIR_DO_NCCL,
                       k       ? MK_PAIR_NO_GEMM
                       : round ? MK_PAIR_TIMED
                               : MK_PAIR_SLOWER,
                       __FILE__, __LINE__);
            assert_int_equal(s.out.timed, round);
            if (round) {
                assert_int_equal(s.out.nth, i);
                assert_int_equal(s.out.now, is_slow);
                assert_int_equal(s.out.class, mk_pair_class(2 * c.count));
            }
        }
        sim_end(&s);
    }
}

static void graph_only_fuses_captured_calls(void **state)
{
    struct sim s;
    (void)state;
    sim_start(&s, NULL);
    struct mk_pair_event e = sim_comm_event(MK_PAIR_EV_COMM_AGREED, 0);
    e.u.comm.config = sim_config();
    e.u.comm.config.graph_only = 1;
    sim_tied(&s, 0);
    sim_step(&s, &e);
    sim_switch(&s, 0, sim_number(&s, 0), MK_PAIR_FUSED);
    const struct mk_pair_gemm g = W1;
    PAIR(&s, &g, 0, ORIGINAL, UNKNOWN_SITE, NCCL, GRAPH_ONLY);
    sim_capture(&s, 0);
    LEARN(&s, &g, 0);
    PAIR(&s, &g, 0, G, OK, OVERLAP, OK);
    sim_captured(&s, 0);
    PAIR(&s, &g, 0, ORIGINAL, NOT_FUSED, NCCL, GRAPH_ONLY);
    sim_end(&s);
}

/* ---- groups ---- */

static void group_of_one_is_that_operation(void **state)
{
    WITH_RANK;
    const struct mk_pair_gemm g = W1;
    const struct mk_pair_coll c = sim_coll_of(0, &g);
    LEARN(&s, &g, 0);
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
    sim_group(&s);
    sim_group(&s); /* nested */
    sim_coll(&s, 0, &c);
    assert_int_equal(s.out.act, MK_PAIR_DO_HOLD);
    sim_group_end(&s);
    assert_int_equal(s.ntaken, 0);
    sim_group_end(&s);
    assert_int_equal(s.ntaken, 1);
    sim_expect(&s, MK_PAIR_DO_OVERLAP, MK_PAIR_OK, __FILE__, __LINE__);
    assert_false(s.out.fork);
    /* What comes on the stream before the outermost end comes before the collective. */
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
    sim_group(&s);
    sim_coll(&s, 0, &c);
    sim_foreign(&s, 0);
    EXPECT(&s, sim_group_end(&s), PLAIN, INTRUDER);
    sim_end(&s);
}

static void group_of_one_of_nccl_keeps_the_order_of_its_stream(void **state)
{
    WITH_RANK;
    const struct mk_pair_gemm g = W1;
    struct mk_pair_coll c = sim_coll_of(0, &g), gather = c;
    gather.function = MK_PAIR_ALLGATHER;
    LEARN(&s, &g, 0);
    sim_group(&s);
    EXPECT(&s, sim_coll(&s, 0, &gather), NCCL, FUNCTION);
    sim_group_end(&s);
    PAIR(&s, &g, 0, G, OK, OVERLAP, OK);
    assert_int_equal(s.out.order, MK_PAIR_IN_ORDER);
    sim_end(&s);
}

static void larger_group_runs_k_beside_the_rest(void **state)
{
    WITH_RANK;
    const struct mk_pair_gemm g = W1;
    struct mk_pair_coll c = sim_coll_of(0, &g), max = c;
    max.sum = 0;
    LEARN(&s, &g, 0);
    const uint64_t number = sim_number(&s, 0);
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
    sim_group(&s);
    sim_coll(&s, 0, &c);
    EXPECT(&s, sim_coll(&s, 0, &max), NCCL, OPERATOR);
    sim_coll(&s, 1, &c);
    sim_group_end(&s);
    assert_int_equal(s.ntaken, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(s.taken[i].act, MK_PAIR_DO_PLAIN);
        assert_int_equal(s.taken[i].reason, MK_PAIR_GROUPED);
        assert_int_equal(s.taken[i].fork, 1);
        assert_int_equal(s.taken[i].number, number + (i ? 2 : 0));
    }
    /* Afterwards whatever comes waits for all of it. */
    PAIR(&s, &g, 0, G, OK, OVERLAP, OK);
    sim_end(&s);
}

/* Send and AllReduce here, AllReduce and Recv there: the all-reduce is K on both. */
static void group_with_send_or_receive(void **state)
{
    for (int first = 0; first < 2; first++) {
        WITH_RANK;
        const struct mk_pair_gemm g = W1;
        const struct mk_pair_coll c = sim_coll_of(0, &g);
        const uint64_t number = sim_number(&s, 0);
        sim_group(&s);
        if (first)
            EXPECT(&s, sim_p2p(&s, 0, 0), NCCL, P2P);
        sim_coll(&s, 0, &c);
        assert_int_equal(s.out.act, MK_PAIR_DO_HOLD);
        if (!first)
            EXPECT(&s, sim_p2p(&s, 0, 0), NCCL, P2P);
        EXPECT(&s, sim_group_end(&s), PLAIN, GROUPED);
        assert_int_equal(s.out.number, number);
        assert_int_equal(sim_number(&s, 0), number + 1); /* send and receive have no number */
        sim_end(&s);
    }
}

static void groups_are_of_their_thread(void **state)
{
    WITH_RANK;
    struct mk_pair_event end = {.kind = MK_PAIR_EV_GROUP_END, .thread = 2}, take = {.kind = MK_PAIR_EV_TAKE};
    const struct mk_pair_gemm g = W1;
    const struct mk_pair_coll c = sim_coll_of(0, &g);
    sim_group(&s);
    s.thread = 2;
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, NO_GEMM);
    sim_refuses(&s, &end);
    sim_refuses(&s, &take);
    s.thread = 1;
    sim_coll(&s, 0, &c);
    assert_int_equal(s.out.act, MK_PAIR_DO_HOLD);
    sim_refuses(&s, &take); /* not before the end */
    EXPECT(&s, sim_group_end(&s), PLAIN, NO_GEMM);
    sim_refuses(&s, &take);
    sim_end(&s);
}

/* ---- order on one communicator ---- */

static void order_is_the_stream_or_an_event(void **state)
{
    WITH_RANK;
    const struct mk_pair_gemm g = W1;
    struct mk_pair_coll c = sim_coll_of(0, &g), max = c;
    max.sum = 0;
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, NO_GEMM);
    assert_int_equal(s.out.order, MK_PAIR_IN_ORDER);
    assert_int_equal(s.out.record, MK_PAIR_RECORD_EVENT);
    EXPECT(&s, sim_coll(&s, 1, &max), NCCL, OPERATOR); /* NCCL after K */
    assert_int_equal(s.out.order, MK_PAIR_WAIT_EVENT);
    assert_int_equal(s.out.record, MK_PAIR_RECORD_EVENT);
    EXPECT(&s, sim_coll(&s, 1, &max), NCCL, OPERATOR);
    assert_int_equal(s.out.order, MK_PAIR_IN_ORDER);
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, NO_GEMM); /* K after NCCL */
    assert_int_equal(s.out.order, MK_PAIR_WAIT_EVENT);
    EXPECT(&s, sim_p2p(&s, 2, 0), NCCL, P2P);
    assert_int_equal(s.out.order, MK_PAIR_WAIT_EVENT);
    sim_end(&s);
}

static void order_within_one_capture(void **state)
{
    WITH_RANK;
    const struct mk_pair_gemm g = W1;
    const struct mk_pair_coll c = sim_coll_of(0, &g);
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, NO_GEMM);
    sim_capture(&s, 0);
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, NO_GEMM); /* the one before is outside */
    assert_int_equal(s.out.order, MK_PAIR_WAIT_EXTERNAL);
    assert_int_equal(s.out.record, MK_PAIR_RECORD_EXTERNAL);
    const uint64_t k = s.nnodes;
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, NO_GEMM);
    assert_int_equal(s.out.order, MK_PAIR_IN_ORDER);
    sim_record(&s, 0, 0);
    sim_wait(&s, 1, 0);
    EXPECT(&s, sim_coll(&s, 1, &c), PLAIN, NO_GEMM); /* another branch */
    assert_int_equal(s.out.order, MK_PAIR_WAIT_NODE);
    assert_int_equal(s.out.node, k + 1);
    sim_captured(&s, 0);
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, NO_GEMM);
    assert_int_equal(s.out.order, MK_PAIR_WAIT_EVENT);
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, NO_GEMM);
    assert_int_equal(s.out.order, MK_PAIR_IN_ORDER);
    sim_capture(&s, 0);
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, NO_GEMM);
    assert_int_equal(s.out.order, MK_PAIR_WAIT_EXTERNAL);
    sim_end(&s);
}

/* A graph with operations of the communicator may be launched on any stream; it is seen where enqueues are counted. */
static void order_after_graphs(void **state)
{
    WITH_RANK;
    const struct mk_pair_gemm g = W1;
    const struct mk_pair_coll c = sim_coll_of(0, &g);
    const struct {
        int replay; /* -1: none */
        uint8_t counted, order;
    } cases[] = {{-1, 1, MK_PAIR_IN_ORDER}, {0, 1, MK_PAIR_IN_ORDER},    {3, 1, MK_PAIR_WAIT_EVENT},
                 {-1, 1, MK_PAIR_IN_ORDER}, {-1, 0, MK_PAIR_WAIT_EVENT}, {-1, 1, MK_PAIR_WAIT_EVENT},
                 {-1, 1, MK_PAIR_IN_ORDER}};
    struct mk_pair_event ends = {.kind = MK_PAIR_EV_PROOF_ENDS};
    sim_capture(&s, 0);
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, NO_GEMM);
    sim_captured(&s, 0);
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, NO_GEMM);
    assert_int_equal(s.out.order, MK_PAIR_WAIT_EVENT); /* the captured one was the last */
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (cases[i].replay >= 0)
            sim_replay(&s, cases[i].replay);
        s.counted = cases[i].counted;
        EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, NO_GEMM);
        assert_int_equal(s.out.order, cases[i].order);
    }
    sim_step(&s, &ends);
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, NO_GEMM);
    assert_int_equal(s.out.order, MK_PAIR_WAIT_EVENT);
    sim_end(&s);
}

/* What K would have to wait for, G waits for, so K can overlap; unless another operation came, or something else could. */
static void order_is_kept_before_g(void **state)
{
    WITH_RANK;
    const struct mk_pair_gemm g = W1;
    struct mk_pair_coll c = sim_coll_of(0, &g), other = c;
    other.send = other.recv = UINT64_C(0x70000000);
    LEARN(&s, &g, 0);
    EXPECT(&s, sim_gemm(&s, 1, &g), G, OK);
    assert_int_equal(s.out.order, MK_PAIR_WAIT_EVENT);
    assert_int_equal(s.out.comm, sim_handle(0));
    EXPECT(&s, sim_coll(&s, 1, &c), OVERLAP, OK);
    assert_int_equal(s.out.order, MK_PAIR_IN_ORDER);
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
    assert_int_equal(s.out.order, MK_PAIR_WAIT_EVENT);
    EXPECT(&s, sim_coll(&s, 2, &other), PLAIN, NO_GEMM); /* another operation of it */
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, ORDER);
    assert_int_equal(s.out.order, MK_PAIR_WAIT_EVENT);
    sim_capture(&s, 0);
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
    assert_int_equal(s.out.order, MK_PAIR_WAIT_EXTERNAL);
    EXPECT(&s, sim_coll(&s, 0, &c), OVERLAP, OK);
    sim_end(&s);
}

/* G of a communicator must not make another one's K wait for it: with two that live nothing is kept before G. */
static void order_never_ties_two_communicators(void **state)
{
    WITH_RANK;
    sim_fused(&s, 1);
    const struct mk_pair_gemm g = W1;
    struct mk_pair_coll c = sim_coll_of(0, &g), d = sim_coll_of(1, &g);
    LEARN(&s, &g, 0);
    EXPECT(&s, sim_gemm(&s, 1, &g), G, OK);
    assert_int_equal(s.out.order, MK_PAIR_IN_ORDER);
    EXPECT(&s, sim_coll(&s, 1, &c), PLAIN, ORDER);
    assert_int_equal(s.out.order, MK_PAIR_WAIT_EVENT);
    EXPECT(&s, sim_coll(&s, 0, &d), PLAIN, NOT_LAST); /* the other's own last one was on stream 0 */
    assert_int_equal(s.out.order, MK_PAIR_IN_ORDER);
    EXPECT(&s, sim_coll(&s, 1, &c), PLAIN, NOT_LAST);
    assert_int_equal(s.out.order, MK_PAIR_IN_ORDER);
    sim_end(&s);
}

static void order_costs_nothing_where_nothing_is_fused(void **state)
{
    struct sim s;
    (void)state;
    sim_start(&s, NULL);
    struct mk_pair_event off = sim_comm_event(MK_PAIR_EV_COMM_OFF, 0);
    off.u.comm.reason = MK_PAIR_MEMBER;
    const struct mk_pair_gemm g = W1;
    const struct mk_pair_coll c = sim_coll_of(0, &g);
    sim_new(&s, 0);
    sim_step(&s, &off);
    for (int i = 0; i < 3; i++) {
        EXPECT(&s, sim_coll(&s, i, &c), NCCL, MEMBER);
        assert_int_equal(s.out.order, MK_PAIR_IN_ORDER);
        assert_int_equal(s.out.record, MK_PAIR_NO_RECORD);
    }
    sim_end(&s);
}

/* NCCL puts nothing on the stream before its group ends: what was last there before is not its node. */
static void order_after_a_group_of_a_capture(void **state)
{
    WITH_RANK;
    const struct mk_pair_gemm g = W1;
    const struct mk_pair_coll c = sim_coll_of(0, &g);
    struct mk_pair_coll max = c;
    max.sum = 0;
    LEARN(&s, &g, 0);
    sim_fused(&s, 1); /* with two that live G waits for nothing itself */
    sim_capture(&s, 0);
    sim_foreign(&s, 0);
    sim_record(&s, 0, 0);
    sim_wait(&s, 1, 0);
    sim_group(&s);
    EXPECT(&s, sim_coll(&s, 0, &max), NCCL, OPERATOR);
    sim_group_end(&s);
    EXPECT(&s, sim_gemm(&s, 1, &g), G, OK);
    EXPECT(&s, sim_coll(&s, 1, &c), PLAIN, ORDER); /* G has not waited for it */
    assert_int_equal(s.out.order, MK_PAIR_WAIT_NODE);
    assert_int_equal(s.out.node, 0); /* all that it made */
    sim_end(&s);
}

/* Which calls need not be told again, and when no GEMM need be. */
static void calls_that_need_not_be_told(void **state)
{
    WITH_RANK;
    struct mk_pair_event off = sim_comm_event(MK_PAIR_EV_COMM_OFF, 1);
    off.u.comm.reason = MK_PAIR_MEMBER;
    struct mk_pair_gemm g = W1;
    const struct mk_pair_coll c = sim_coll_of(0, &g), d = sim_coll_of(1, &g);
    sim_new(&s, 1);
    EXPECT(&s, sim_coll(&s, 0, &d), NCCL, NOT_READY);
    assert_false(s.out.again);
    sim_step(&s, &off);
    EXPECT(&s, sim_coll(&s, 0, &d), NCCL, MEMBER);
    assert_true(s.out.again);
    EXPECT(&s, sim_p2p(&s, 0, 1), NCCL, P2P);
    assert_true(s.out.again);
    EXPECT(&s, sim_p2p(&s, 0, 0), NCCL, P2P); /* later ones wait for this one */
    assert_false(s.out.again);
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, NO_GEMM);
    assert_false(s.out.again);
    EXPECT(&s, sim_gemm(&s, 0, &g), ORIGINAL, UNKNOWN_SITE);
    assert_false(s.out.again);
    g.a_type = MK_FLOAT16; /* the type of C does not tell */
    EXPECT(&s, sim_gemm(&s, 0, &g), ORIGINAL, GEMM_DTYPE);
    assert_false(s.out.again);
    g.a_type = g.b_type = g.c_type = MK_FLOAT32;
    EXPECT(&s, sim_gemm(&s, 0, &g), ORIGINAL, GEMM_DTYPE);
    assert_true(s.out.again);
    struct mk_pair_event end = sim_comm_event(MK_PAIR_EV_COMM_END, 0);
    assert_false(mk_pair_idle(s.p));
    sim_step(&s, &end);
    assert_true(mk_pair_idle(s.p));
    sim_new(&s, 0);
    assert_false(mk_pair_idle(s.p));
    sim_end(&s);
    const struct mk_pair_options deterministic = {.deterministic = 1};
    sim_start(&s, &deterministic);
    assert_false(mk_pair_idle(s.p)); /* a site's first call counts */
    sim_end(&s);
}

/* A group with a member that was not told is none of one operation. */
static void untold_members_of_a_group(void **state)
{
    WITH_RANK;
    struct mk_pair_event gap = {.kind = MK_PAIR_EV_GROUP_GAP, .thread = s.thread};
    const struct mk_pair_gemm g = W1;
    struct mk_pair_coll c = sim_coll_of(0, &g);
    sim_group(&s);
    sim_step(&s, &gap);
    sim_coll(&s, 0, &c);
    assert_int_equal(s.out.act, MK_PAIR_DO_HOLD);
    EXPECT(&s, sim_group_end(&s), PLAIN, GROUPED);
    c.sum = 0;
    for (int before = 0; before < 2; before++) {
        sim_group(&s);
        if (before)
            sim_step(&s, &gap);
        EXPECT(&s, sim_coll(&s, 1, &c), NCCL, OPERATOR);
        if (!before)
            sim_step(&s, &gap);
        sim_group_end(&s);
        EXPECT(&s, sim_coll(&s, 1, &c), NCCL, OPERATOR);
        assert_int_equal(s.out.order, MK_PAIR_WAIT_EVENT); /* the group may have run on other streams */
    }
    sim_step(&s, &gap); /* of no group */
    sim_group(&s);
    sim_coll(&s, 1, &c);
    sim_group_end(&s);
    EXPECT(&s, sim_coll(&s, 1, &c), NCCL, OPERATOR);
    assert_int_equal(s.out.order, MK_PAIR_IN_ORDER);
    sim_end(&s);
}

int pair_rules_comm(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shared_facts_choose_nccl),
        cmocka_unit_test(counts_are_multiples_of_the_granule),
        cmocka_unit_test(local_facts_never_choose_nccl),
        cmocka_unit_test(unaligned_and_window_are_plain),
        cmocka_unit_test(state_word_switches_at_its_number),
        cmocka_unit_test(state_word_that_comes_too_late),
        cmocka_unit_test(slower_sizes_go_to_nccl),
        cmocka_unit_test(switch_heard_in_the_midst_of_a_call),
        cmocka_unit_test(size_classes),
        cmocka_unit_test(both_ways_are_timed_in_turns),
        cmocka_unit_test(graph_only_fuses_captured_calls),
        cmocka_unit_test(group_of_one_is_that_operation),
        cmocka_unit_test(group_of_one_of_nccl_keeps_the_order_of_its_stream),
        cmocka_unit_test(larger_group_runs_k_beside_the_rest),
        cmocka_unit_test(group_with_send_or_receive),
        cmocka_unit_test(groups_are_of_their_thread),
        cmocka_unit_test(order_is_the_stream_or_an_event),
        cmocka_unit_test(order_within_one_capture),
        cmocka_unit_test(order_after_graphs),
        cmocka_unit_test(order_is_kept_before_g),
        cmocka_unit_test(order_never_ties_two_communicators),
        cmocka_unit_test(order_costs_nothing_where_nothing_is_fused),
        cmocka_unit_test(order_after_a_group_of_a_capture),
        cmocka_unit_test(calls_that_need_not_be_told),
        cmocka_unit_test(untold_members_of_a_group),
    };
    return cmocka_run_group_tests_name("pair rules of collectives", tests, NULL, NULL);
}
