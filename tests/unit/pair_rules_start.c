/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Event lists of pairs, each with what must be decided: what keeps K plain, and what proves that nothing lies between.
 * What is expected is written down from the rules, by hand. */
#include "tests/unit/pair_help.h"
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

/* ---- K overlaps or is plain ---- */

static void plain_without_a_gemm_of_ours(void **state)
{
    WITH_RANK;
    const struct mk_pair_gemm g = W1;
    struct mk_pair_gemm f = sim_gemm_of(2);
    const struct mk_pair_coll c = sim_coll_of(0, &g);
    f.beta = 1;
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, NO_GEMM);
    LEARN(&s, &g, 0);
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
    PAIR(&s, &f, 0, ORIGINAL, SCALARS, PLAIN, ORIGINAL); /* the last GEMM on the stream is not our G */
    sim_end(&s);
}

static void plain_when_g_g_k_sends_the_first(void **state)
{
    WITH_RANK;
    struct mk_pair_gemm g = W1, h = sim_gemm_of(2);
    h.c += 0x1000000;
    const struct mk_pair_coll first = sim_coll_of(0, &g), second = sim_coll_of(0, &h);
    LEARN(&s, &g, 0);
    LEARN(&s, &h, 0);
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
    EXPECT(&s, sim_gemm(&s, 0, &h), G, OK);
    EXPECT(&s, sim_coll(&s, 0, &first), PLAIN, NOT_LAST);
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
    EXPECT(&s, sim_gemm(&s, 0, &h), G, OK);
    EXPECT(&s, sim_coll(&s, 0, &second), OVERLAP, OK);
    EXPECT(&s, sim_coll(&s, 0, &first), PLAIN, NOT_LAST); /* K came after that G */
    sim_end(&s);
}

static void plain_when_c_is_not_just_what_is_sent(void **state)
{
    WITH_RANK;
    struct mk_pair_gemm g = W1, wide = sim_gemm_of(2);
    wide.ldc = 640;
    LEARN(&s, &g, 0);
    struct mk_pair_coll c = sim_coll_of(0, &g);
    c.count /= 2;
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, SLICE); /* its first half */
    c.send = c.recv = g.c + c.count * 2;
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, SLICE); /* its second */
    c = sim_coll_of(0, &g);
    c.count *= 2;
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, SLICE); /* more */
    c = sim_coll_of(0, &g);
    c.dtype = MK_FLOAT16;
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, RETYPED);
    PAIR(&s, &wide, 0, ORIGINAL, UNKNOWN_SITE, PLAIN, LD); /* rows with gaps; never learned */
    PAIR(&s, &wide, 0, ORIGINAL, UNKNOWN_SITE, PLAIN, LD);
    sim_end(&s);
}

/* recvbuff in A, B, bias, the rest, or in C but not C. */
static void plain_when_the_result_goes_where_g_works(void **state)
{
    WITH_RANK;
    struct mk_pair_gemm g = W1;
    g.epilogue = MK_PAIR_BIAS;
    g.bias = UINT64_C(0x50000000);
    g.extra = UINT64_C(0x60000000);
    g.extra_bytes = 0x1000;
    LEARN(&s, &g, 0);
    const uint64_t bytes = (uint64_t)(g.m * g.n) * 2, a_end = SIM_A + (uint64_t)(g.m * g.k) * 2;
    const struct {
        uint64_t recv;
        bool overlaps;
    } cases[] = {{g.a, false},
                 {a_end - 16, false},
                 {a_end, true},
                 {g.b, false},
                 {g.b - bytes + 16, false},
                 {g.b - bytes, true},
                 {g.bias + 1008, false},
                 {g.bias + 1024, true},
                 {g.extra, false},
                 {g.extra + 0x1000, true},
                 {g.c + 16, false},
                 {g.c - 16, false},
                 {g.c, true},
                 {g.c + bytes, true},
                 {UINT64_C(0x70000000), true}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mk_pair_coll c = sim_coll_of(0, &g);
        c.recv = cases[i].recv;
        EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
        sim_coll(&s, 0, &c);
        if (cases[i].overlaps)
            sim_expect(&s, MK_PAIR_DO_OVERLAP, MK_PAIR_OK, __FILE__, __LINE__);
        else
            sim_expect(&s, MK_PAIR_DO_PLAIN, MK_PAIR_RANGE, __FILE__, __LINE__);
    }
    sim_end(&s);
}

/* Rows of A, B with gaps: the gaps up to the last element count. All three layouts. */
static void ranges_have_the_leading_dimension(void **state)
{
    WITH_RANK;
    const int64_t rows_a[] = {256, 256, 128}, ld_a[] = {128, 128, 256};
    for (uint8_t layout = MK_TN; layout <= MK_NT; layout++) {
        struct mk_pair_gemm g = sim_gemm_of(10u + layout);
        struct mk_pair_coll c = sim_coll_of(0, &g);
        g.layout = layout;
        g.lda = ld_a[layout] + 64;
        g.ldb = layout == MK_TN ? 128 : 512;
        LEARN(&s, &g, 0);
        const uint64_t end = SIM_A + 2 * (uint64_t)((rows_a[layout] - 1) * g.lda + ld_a[layout]);
        c.recv = end - 16;
        EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
        EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, RANGE);
        c.recv = end;
        EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
        EXPECT(&s, sim_coll(&s, 0, &c), OVERLAP, OK);
    }
    sim_end(&s);
}

/* ---- proofs ---- */

static void proof_by_counters(void **state)
{
    WITH_RANK;
    const struct mk_pair_gemm g = W1;
    const struct mk_pair_coll c = sim_coll_of(0, &g);
    LEARN(&s, &g, 0);
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
    sim_foreign(&s, 3); /* of the context: whatever stream */
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, INTRUDER);
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
    assert_true(s.out.room);
    s.counted = false;
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, NO_PROOF);
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
    assert_false(s.out.room); /* K will not start early: G may have all blocks */
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, NO_PROOF);
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
    s.counted = true;
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, NO_PROOF); /* both ends must be counted */
    sim_end(&s);
}

/* Where a GEMM without a proof stays the original, one that is never overlapped becomes it again, for a while. */
static void nothing_overlaps_it(void **state)
{
    const struct mk_pair_options options = {.witness = SIM_W, .proved_only = 1};
    struct sim s;
    (void)state;
    sim_start(&s, &options);
    sim_fused(&s, 0);
    const struct mk_pair_gemm g = W1, other = sim_gemm_of(2);
    const struct mk_pair_coll c = sim_coll_of(0, &g);
    LEARN(&s, &g, 0);
    LEARN(&s, &other, 0);
    for (int i = 0; i < 3; i++) {
        EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
        sim_foreign(&s, 0);
        EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, INTRUDER);
    }
    PAIR(&s, &g, 0, G, OK, OVERLAP, OK); /* not in a row */
    for (int i = 0; i < 3; i++)
        EXPECT(&s, sim_gemm(&s, 0, &g), G, OK); /* no collective: known when the next one comes */
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
    for (int i = 0; i < 63; i++)
        PAIR(&s, &g, 0, ORIGINAL, UNFOLLOWED, PLAIN, ORIGINAL);
    PAIR(&s, &other, 0, G, OK, OVERLAP, OK); /* another site */
    sim_capture(&s, 1);
    EXPECT(&s, sim_gemm(&s, 1, &g), G, OK);
    EXPECT(&s, sim_coll(&s, 1, &c), OVERLAP, OK); /* a capture is its own proof */
    sim_captured(&s, 1);
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK); /* one try, and it fails */
    for (int i = 0; i < 63; i++)
        PAIR(&s, &g, 0, ORIGINAL, UNFOLLOWED, PLAIN, ORIGINAL);
    PAIR(&s, &g, 0, G, OK, OVERLAP, OK); /* and one that does not */
    PAIR(&s, &g, 0, G, OK, OVERLAP, OK);
    sim_end(&s);
}

static void proof_ends_for_the_process(void **state)
{
    WITH_RANK;
    struct mk_pair_event ends = {.kind = MK_PAIR_EV_PROOF_ENDS};
    const struct mk_pair_gemm g = W1;
    const struct mk_pair_coll c = sim_coll_of(0, &g);
    LEARN(&s, &g, 0);
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
    sim_step(&s, &ends); /* even between the two */
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, NO_PROOF);
    PAIR(&s, &g, 0, G, OK, PLAIN, NO_PROOF);
    sim_capture(&s, 0);
    PAIR(&s, &g, 0, G, OK, OVERLAP, OK); /* a capture proves it all the same */
    sim_end(&s);
}

static void proof_by_capture(void **state)
{
    WITH_RANK;
    const struct mk_pair_gemm g = W1;
    const struct mk_pair_coll c = sim_coll_of(0, &g);
    s.counted = false;
    LEARN(&s, &g, 0);
    sim_capture(&s, 0);
    PAIR(&s, &g, 0, G, OK, OVERLAP, OK);
    assert_int_equal(s.out.proof, MK_PAIR_BY_CAPTURE);
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
    sim_foreign(&s, 0);
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, INTRUDER);
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
    sim_record(&s, 0, 0); /* makes no node */
    EXPECT(&s, sim_coll(&s, 0, &c), OVERLAP, OK);
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
    sim_wait(&s, 1, 0);
    sim_foreign(&s, 1);
    sim_record(&s, 1, 1);
    sim_wait(&s, 0, 1); /* another branch has to end first */
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, INTRUDER);
    sim_end(&s);
}

/* Capturing, dependencies that come before G do no harm, whether the hook has found them or the machine has to; more of
 * them than are told do. */
static void side_stream(void **state, bool lazy)
{
    WITH_RANK;
    s.lazy = lazy;
    const struct mk_pair_gemm g = W1;
    const struct mk_pair_coll c = sim_coll_of(0, &g);
    LEARN(&s, &g, 0);
    sim_capture(&s, 0);
    for (int i = 0; i < 3; i++) {
        EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
        sim_record(&s, 0, 0);
        sim_wait(&s, 1, 0);
        EXPECT(&s, sim_coll(&s, 1, &c), OVERLAP, OK);
        assert_int_equal(s.out.reduce, i > 0); /* from the second on it depends on the K before, as G did */
        sim_record(&s, 1, 1);
        sim_wait(&s, 0, 1);
    }
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
    for (int i = 2; i < 6; i++) {
        sim_record(&s, 0, 2);
        sim_wait(&s, i, 2);
        sim_foreign(&s, i);
        sim_record(&s, i, 3);
        sim_wait(&s, 1, 3);
    }
    sim_record(&s, 0, 2);
    sim_wait(&s, 1, 2);
    EXPECT(&s, sim_coll(&s, 1, &c), PLAIN, CROSS_STREAM);
    sim_end(&s);
}
static void proof_by_capture_of_a_side_stream(void **state)
{
    side_stream(state, false);
    side_stream(state, true);
}

/* A G before the capture proves nothing inside. */
static void proof_does_not_cross_a_capture(void **state)
{
    WITH_RANK;
    const struct mk_pair_gemm g = W1;
    const struct mk_pair_coll c = sim_coll_of(0, &g);
    LEARN(&s, &g, 0);
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
    sim_capture(&s, 0);
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, NO_GEMM);
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
    sim_captured(&s, 0);
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, NO_GEMM);
    sim_end(&s);
}

/* Our own launches are not counted, yet streams that wait for each other through the default stream are in each other's
 * way. */
static void proof_knows_our_own_launches(void **state)
{
    for (int blocking = 0; blocking < 4; blocking++) {
        WITH_RANK;
        struct mk_pair_gemm g = W1, h = sim_gemm_of(2);
        h.c += 0x1000000;
        const struct mk_pair_coll c = sim_coll_of(0, &g);
        s.stream[0].blocking = blocking & 1;
        s.stream[1].blocking = blocking & 2;
        LEARN(&s, &g, 0);
        LEARN(&s, &h, 0);
        EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
        EXPECT(&s, sim_gemm(&s, 1, &h), G, OK);
        sim_coll(&s, 0, &c);
        if (blocking == 3)
            sim_expect(&s, MK_PAIR_DO_PLAIN, MK_PAIR_INTRUDER, __FILE__, __LINE__);
        else
            sim_expect(&s, MK_PAIR_DO_OVERLAP, MK_PAIR_OK, __FILE__, __LINE__);
        sim_end(&s);
    }
}

/* Eager events: no overlap would come of it, and the line says so. */
static void event_between(void **state)
{
    WITH_RANK;
    const struct mk_pair_gemm g = W1;
    const struct mk_pair_coll c = sim_coll_of(0, &g);
    LEARN(&s, &g, 0);
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
    sim_record(&s, 0, 0);
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, EVENT_BETWEEN);
    s.counted = false;
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
    sim_wait(&s, 0, 0);
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, EVENT_BETWEEN);
    sim_end(&s);
}

/* ---- MK_VERIFY ---- */

static void start_verified(struct sim *s, int verify)
{
    const struct mk_pair_options options = {
        .witness = SIM_W, .epilogues = 1u << MK_PAIR_BIAS, .proved_only = 1, .verify = (uint8_t)verify};
    sim_start(s, &options);
    sim_fused(s, 0);
}

static void refute(struct sim *s, uint64_t number)
{
    struct mk_pair_event e = {.kind = MK_PAIR_EV_REFUTED};
    e.u.comm.number = number;
    sim_step(s, &e);
}

static void verified_pairs_have_a_number_a_site(void **state)
{
    struct sim s;
    const struct mk_pair_gemm g = W1, other_weight = sim_gemm_of(2);
    struct mk_pair_gemm wide = sim_gemm_of(3);
    struct mk_pair_event e = {.kind = MK_PAIR_EV_REFUTED};
    (void)state;
    start_verified(&s, 1);
    wide.k *= 2;
    wide.lda *= 2, wide.ldb *= 2;
    LEARN(&s, &g, 0);
    LEARN(&s, &other_weight, 0);
    LEARN(&s, &wide, 0);
    PAIR(&s, &g, 0, G, OK, OVERLAP, OK);
    assert_int_equal(s.out.check, 1);
    assert_int_equal(s.out.proof, MK_PAIR_BY_COUNTERS);
    PAIR(&s, &wide, 0, G, OK, OVERLAP, OK);
    assert_int_equal(s.out.check, 2);
    PAIR(&s, &other_weight, 0, G, OK, OVERLAP, OK);
    assert_int_equal(s.out.check, 1);
    e.u.comm.number = 3; /* given to nobody */
    sim_refuses(&s, &e);
    e.u.comm.number = 0;
    sim_refuses(&s, &e);
    refute(&s, 1);
    PAIR(&s, &g, 0, G, OK, PLAIN, REFUTED);
    assert_int_equal(s.out.check, 0);
    PAIR(&s, &other_weight, 0, G, OK, PLAIN, REFUTED);
    PAIR(&s, &wide, 0, G, OK, OVERLAP, OK);
    sim_end(&s);
}

static void verified_pairs_wait_as_plain_ones_do(void **state)
{
    struct sim s;
    const struct mk_pair_gemm g = W1;
    const struct mk_pair_coll c = sim_coll_of(0, &g);
    (void)state;
    for (int verify = 0; verify < 2; verify++) {
        start_verified(&s, verify);
        LEARN(&s, &g, 0);
        sim_coll(&s, 1, &c); /* its last operation is on another stream: G waits for it */
        EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
        assert_int_equal(s.out.order, MK_PAIR_WAIT_EVENT);
        EXPECT(&s, sim_coll(&s, 0, &c), OVERLAP, OK);
        assert_int_equal(s.out.order, verify ? MK_PAIR_WAIT_EVENT : MK_PAIR_IN_ORDER);
        assert_int_equal(s.out.check, verify);
        sim_end(&s);
    }
}

static void without_a_proof_only_if_asked(void **state)
{
    struct sim s;
    const struct mk_pair_gemm g = W1;
    const struct mk_pair_coll c = sim_coll_of(0, &g);
    (void)state;
    start_verified(&s, 1);
    LEARN(&s, &g, 0);
    sim_gemm(&s, 0, &g);
    sim_foreign(&s, 0);
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, INTRUDER);
    sim_end(&s);
    start_verified(&s, 2);
    LEARN(&s, &g, 0);
    sim_gemm(&s, 0, &g);
    sim_foreign(&s, 0);
    EXPECT(&s, sim_coll(&s, 0, &c), OVERLAP, OK);
    assert_int_equal(s.out.proof, MK_PAIR_ASSUMED);
    assert_int_equal(s.out.check, 1);
    s.counted = false; /* nobody counts: G runs all the same */
    PAIR(&s, &g, 0, G, OK, OVERLAP, OK);
    assert_int_equal(s.out.proof, MK_PAIR_ASSUMED);
    refute(&s, 1);
    PAIR(&s, &g, 0, G, OK, PLAIN, REFUTED);
    sim_end(&s);
}

static void more_sites_than_can_be_checked(void **state)
{
    struct sim s;
    const struct mk_pair_gemm g = W1;
    struct mk_pair_coll c = sim_coll_of(0, &g);
    (void)state;
    start_verified(&s, 1);
    LEARN(&s, &g, 0);
    for (uint32_t i = 1; i <= MK_PAIR_CHECKS + 1; i++) {
        c.caller = i;
        EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
        EXPECT(&s, sim_coll(&s, 0, &c), OVERLAP, OK);
        assert_int_equal(s.out.check, i <= MK_PAIR_CHECKS ? i : 0);
    }
    sim_end(&s);
}

/* A call that was not told has come between: as if it had been. Captures have their edges. */
static void untold_calls_come_between(void **state)
{
    WITH_RANK;
    const struct mk_pair_gemm g = W1;
    const struct mk_pair_coll c = sim_coll_of(0, &g);
    EXPECT(&s, sim_gemm(&s, 0, &g), ORIGINAL, UNKNOWN_SITE);
    s.untold++;
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, NOT_LAST); /* and nothing is learned */
    EXPECT(&s, sim_gemm(&s, 0, &g), ORIGINAL, UNKNOWN_SITE);
    s.untold++;
    EXPECT(&s, sim_coll(&s, 1, &c), PLAIN, NO_GEMM); /* nor on another stream, */
    sim_capture(&s, 2);
    EXPECT(&s, sim_gemm(&s, 2, &g), ORIGINAL, UNKNOWN_SITE); /* for a capture */
    sim_captured(&s, 2);
    LEARN(&s, &g, 0);
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
    s.untold++;
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, NOT_LAST);
    PAIR(&s, &g, 0, G, OK, OVERLAP, OK);
    sim_capture(&s, 0);
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
    s.untold++;
    EXPECT(&s, sim_coll(&s, 0, &c), OVERLAP, OK);
    sim_end(&s);
}

int pair_rules_start(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_without_a_gemm_of_ours),
        cmocka_unit_test(plain_when_g_g_k_sends_the_first),
        cmocka_unit_test(plain_when_c_is_not_just_what_is_sent),
        cmocka_unit_test(plain_when_the_result_goes_where_g_works),
        cmocka_unit_test(ranges_have_the_leading_dimension),
        cmocka_unit_test(proof_by_counters),
        cmocka_unit_test(nothing_overlaps_it),
        cmocka_unit_test(proof_ends_for_the_process),
        cmocka_unit_test(proof_by_capture),
        cmocka_unit_test(proof_by_capture_of_a_side_stream),
        cmocka_unit_test(proof_does_not_cross_a_capture),
        cmocka_unit_test(proof_knows_our_own_launches),
        cmocka_unit_test(event_between),
        cmocka_unit_test(verified_pairs_have_a_number_a_site),
        cmocka_unit_test(verified_pairs_wait_as_plain_ones_do),
        cmocka_unit_test(without_a_proof_only_if_asked),
        cmocka_unit_test(more_sites_than_can_be_checked),
        cmocka_unit_test(untold_calls_come_between),
    };
    return cmocka_run_group_tests_name("pair rules of starts", tests, NULL, NULL);
}
