/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* K against NCCL: what times lead to, outside of captures and within. */
#include "mk/rival.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

enum { CLASS = 14 };
#define EAGER MK_PAIR_SLOW_CLASS(false, CLASS)
#define CAPTURED MK_PAIR_SLOW_CLASS(true, CLASS)

/* Turns of a round of eight, from call `begin` on. */
static const int turn[8] = {0, 1, 1, 0, 1, 0, 0, 1};

static const struct mk_rival_share unknown; /* all zero */
static uint32_t tiles;                      /* of the GEMM */
static bool together;                       /* K overlaps it outside of captures */

static struct mk_rival_round round_of(struct mk_rival *r, uint64_t begin, bool now, uint64_t k, uint64_t nccl,
                                      uint64_t gemm)
{
    struct mk_rival_round out;
    memset(&out, 0, sizeof(out));
    for (uint64_t i = 0; i < 8; i++) {
        const struct mk_rival_sample s = {.nth = begin + i,
                                          .ns = turn[i] ? nccl : k,
                                          .gemm_ns = gemm,
                                          .tiles = tiles,
                                          .class = CLASS,
                                          .nccl = turn[i],
                                          .now = now,
                                          .together = together && !turn[i]};
        assert_int_equal(mk_rival_note(r, &s, &out), i == 7);
    }
    assert_int_equal(out.k_ns, k);
    assert_int_equal(out.nccl_ns, nccl);
    assert_int_equal(out.gemm_ns, gemm);
    assert_int_equal(out.eager, (mk_rival_word(r) & EAGER) != 0);
    assert_int_equal(out.captured, (mk_rival_word(r) & CAPTURED) != 0);
    return out;
}

/* Timed with its GEMM, k is what the pair takes more than the GEMM: no estimate is needed for captures. */
static void timed_together(void **state)
{
    struct mk_rival *r = mk_rival_create(&unknown);
    (void)state;
    assert_non_null(r);
    together = true;
    assert_int_equal(round_of(r, 4, false, 300, 900, 1000).pair_ns, 1300);
    assert_false(round_of(r, 16, false, 1000, 900, 1000).changed);
    assert_true(round_of(r, 64, false, 1000, 900, 1000).changed);
    assert_int_equal(mk_rival_word(r) & EAGER, EAGER);
    mk_rival_captured(r, CLASS, false); /* by itself it was never timed: nothing is said of that */
    const uint64_t before = mk_rival_word(r) & CAPTURED;
    for (uint64_t i = 0; i < 4; i++)
        round_of(r, UINT64_C(256) << (2 * i), true, 10, 900, 1000);
    assert_int_equal(mk_rival_word(r) & CAPTURED, before);
    assert_int_equal(mk_rival_word(r) & EAGER, 0);
    together = false;
    mk_rival_destroy(r);
}

static void two_rounds_decide(void **state)
{
    struct mk_rival *r = mk_rival_create(&unknown);
    (void)state;
    assert_non_null(r);
    assert_int_equal(mk_rival_word(r), MK_PAIR_FUSED);
    assert_false(round_of(r, 4, false, 1000, 900, 0).changed);
    assert_true(round_of(r, 16, false, 1000, 900, 0).changed);
    assert_int_equal(mk_rival_word(r),
                     MK_PAIR_FUSED | EAGER | CAPTURED); /* no GEMM before it: the same in a graph */
    assert_false(round_of(r, 64, true, 1000, 980, 0).changed);
    assert_false(round_of(r, 256, true, 800, 900, 0).changed);
    assert_true(round_of(r, 1024, true, 800, 900, 0).changed);
    assert_int_equal(mk_rival_word(r), MK_PAIR_FUSED);
    mk_rival_destroy(r);
}

/* Two ranks of 66 multiprocessors on one GPU, an emulated network between: 2048 x 8192 x 3584 in us, as measured. K loses by
 * itself, and wins behind its GEMM. */
static const struct mk_rival_share far = {.sms = 66, .blocks = 61, .room = 8, .narrow = 1};

static void overlap_is_what_counts_within_captures(void **state)
{
    struct mk_rival *r = mk_rival_create(&far);
    const uint64_t first = mk_rival_first(&far);
    (void)state;
    assert_non_null(r);
    tiles = 16 * 32;
    assert_int_equal(mk_rival_word(r), first);
    assert_int_equal(first & (EAGER | CAPTURED), 0);
    for (int i = 0; i < 2; i++) {
        const struct mk_rival_round got = round_of(r, i ? 16 : 4, false, 662, 566, 321);
        assert_in_range(got.pair_ns, 695, 715); /* replayed it took 710 */
    }
    assert_int_equal(mk_rival_word(r), first | EAGER);
    /* Where captures showed that it does not follow its GEMM, it is judged by itself. */
    mk_rival_captured(r, CLASS, true);
    for (int i = 0; i < 2; i++)
        mk_rival_captured(r, CLASS, false);
    round_of(r, 64, true, 662, 566, 321);
    round_of(r, 256, true, 662, 566, 321);
    assert_int_equal(mk_rival_word(r), first | EAGER | CAPTURED);
    for (int i = 0; i < 2; i++)
        mk_rival_captured(r, CLASS, true);
    round_of(r, 1024, true, 662, 566, 321);
    round_of(r, 2048, true, 662, 566, 321);
    assert_int_equal(mk_rival_word(r), first | EAGER);
    /* So slow that the GEMM hides nothing of it. */
    round_of(r, 3072, true, 2000, 566, 321);
    round_of(r, 4096, true, 2000, 566, 321);
    assert_int_equal(mk_rival_word(r), first | EAGER | CAPTURED);
    tiles = 0;
    mk_rival_destroy(r);
}

/* Two GPUs, NVLink: K has a part of its blocks while G runs. Times in us as measured on whole GPUs and on half of each, and what a
 * replay took; the last is made up. */
static void nvlink(void **state)
{
    static const struct {
        uint64_t k, nccl, gemm;
        uint32_t tiles;
        int sms, narrow;
        uint64_t from, to;
        bool ours;
    } of[] = {{654, 469, 720, 64 * 32, 132, 4, 1230, 1280, false}, /* 1251 */
              {581, 473, 1278, 64 * 32, 66, 4, 1690, 1720, true},  /* 1629 */
              {131, 79, 90, 16 * 16, 66, 8, 225, 245, false},      /* 196 */
              {111, 52, 86, 4 * 32, 66, 8, 220, 245, false},       /* 210 */
              {150, 140, 720, 64 * 32, 132, 4, 780, 850, true}};
    (void)state;
    for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++) {
        const struct mk_rival_share share = {
            .sms = of[i].sms, .blocks = of[i].sms, .room = 8, .narrow = of[i].narrow, .near = true};
        struct mk_rival *r = mk_rival_create(&share);
        bool now = false;
        assert_non_null(r);
        assert_int_equal(mk_rival_word(r) & (EAGER | CAPTURED), CAPTURED); /* until times speak for it */
        tiles = of[i].tiles;
        for (uint64_t begin = 4; begin <= 256; begin *= 4) {
            const struct mk_rival_round got = round_of(r, begin, now, of[i].k, of[i].nccl, of[i].gemm);
            assert_in_range(got.pair_ns, of[i].from, of[i].to);
            now = got.eager;
        }
        assert_int_equal((mk_rival_word(r) & CAPTURED) == 0, of[i].ours);
        mk_rival_destroy(r);
    }
    tiles = 0;
}

static void what_there_is_to_begin_with(void **state)
{
    (void)state;
    assert_int_equal(mk_rival_first(&unknown), MK_PAIR_FUSED);
    const uint64_t word = mk_rival_first(&far);
    for (uint64_t bytes = 64; bytes < UINT64_C(1) << 33; bytes *= 2)
        for (int captured = 0; captured < 2; captured++)
            assert_int_equal((word & MK_PAIR_SLOW_CLASS(captured, mk_pair_class(bytes))) != 0,
                             bytes < 1 << 20);
}

/* A round with a time missing decides nothing, whichever; what is no turn counts nothing. */
static void what_does_not_count(void **state)
{
    (void)state;
    for (uint64_t missing = 0; missing < 8; missing++) {
        struct mk_rival *r = mk_rival_create(&unknown);
        struct mk_rival_round out;
        assert_non_null(r);
        for (uint64_t at = 4; at <= 16; at += 12)
            for (uint64_t i = 0; i < 8; i++) {
                const struct mk_rival_sample s = {
                    .nth = at + i, .ns = turn[i] ? 500 : 1000, .class = CLASS, .nccl = turn[i]};
                if (at == 4 || i != missing)
                    assert_int_equal(mk_rival_note(r, &s, &out), at == 4 && i == 7);
            }
        assert_int_equal(mk_rival_word(r), MK_PAIR_FUSED);
        struct mk_rival_sample odd = {.nth = 64, .ns = 1, .class = CLASS, .nccl = true}; /* K's turn */
        assert_false(mk_rival_note(r, &odd, &out));
        odd.nth = 30;
        assert_false(mk_rival_note(r, &odd, &out));
        odd.class = MK_PAIR_CLASSES;
        assert_false(mk_rival_note(r, &odd, &out));
        assert_false(round_of(r, 64, false, 1000, 2000, 0).changed); /* two in a row, it takes */
        assert_false(round_of(r, 256, false, 1000, 500, 0).changed);
        assert_true(round_of(r, 1024, false, 1000, 500, 0).changed);
        mk_rival_destroy(r);
    }
}

/* Calls of two sizes, or of two layers, in turns: each way gets as many of each. */
static void layers_in_turns(void **state)
{
    struct mk_rival *r = mk_rival_create(&unknown);
    struct mk_rival_round out;
    (void)state;
    assert_non_null(r);
    for (uint64_t period = 2; period <= 4; period += 2)
        for (uint64_t begin = period == 2 ? 4 : 64, n = 0; n < 2; begin *= 4, n++)
            for (uint64_t i = 0; i < 8; i++) {
                const struct mk_rival_sample s = {
                    .nth = begin + i, .ns = 1000 + 3000 * (i % period == 0), .class = CLASS, .nccl = turn[i]};
                if (mk_rival_note(r, &s, &out))
                    assert_int_equal(out.k_ns, out.nccl_ns);
            }
    assert_int_equal(mk_rival_word(r), MK_PAIR_FUSED);
    mk_rival_destroy(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_rounds_decide),
        cmocka_unit_test(timed_together),
        cmocka_unit_test(overlap_is_what_counts_within_captures),
        cmocka_unit_test(nvlink),
        cmocka_unit_test(what_there_is_to_begin_with),
        cmocka_unit_test(what_does_not_count),
        cmocka_unit_test(layers_in_turns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
