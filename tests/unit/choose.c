/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Fused, or one part after the other: which calls try, what times lead to. */
#include "fused/choose.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

/* Turns of a round. */
static const int turn[8] = {0, 1, 1, 0, 1, 0, 0, 1};

static void rounds(void **state)
{
    (void)state;
    static const uint64_t begin[] = {4, 16, 64, 256, 1024, 2048, 3072, 1024000};
    uint64_t in = 0;
    for (size_t i = 0; i < sizeof(begin) / sizeof(begin[0]); i++)
        for (int now = 0; now < 2; now++)
            for (uint64_t at = 0; at < 10; at++) {
                struct mk_choice c;
                memset(&c, 0, sizeof(c));
                mk_choose_way(begin[i] + at, now, &c);
                assert_int_equal(c.in_round, at < 8);
                assert_int_equal(c.last, at == 7);
                assert_int_equal(c.way, at < 8 ? turn[at] : now);
                assert_int_equal(c.now, now);
            }
    for (uint64_t call = 0; call < 3072; call++) { /* nothing else tries: 48 of 3072 calls */
        struct mk_choice c;
        mk_choose_way(call, 1, &c);
        in += c.in_round;
        assert_true(c.in_round || c.way == 1);
    }
    assert_int_equal(in, 48);
}

/* A whole round with these times; returns whether a switch is proposed. */
static bool round_of(struct mk_choose_times *t, int now, uint64_t fused, uint64_t parts)
{
    bool proposed = false;
    for (uint64_t at = 0; at < 8; at++) {
        struct mk_choice c;
        mk_choose_way(16 + at, now, &c);
        const bool p = mk_choose_note(t, &c, turn[at] ? parts : fused);
        assert_true(!p || at == 7);
        proposed = proposed || p;
    }
    return proposed;
}

static void hysteresis(void **state)
{
    (void)state;
    struct mk_choose_times t;
    memset(&t, 0, sizeof(t));
    assert_false(round_of(&t, 0, 1600, 1400));
    assert_true(round_of(&t, 0, 1600, 1400));  /* twice in a row */
    assert_false(round_of(&t, 0, 1600, 1400)); /* and anew */
    assert_false(round_of(&t, 0, 1600, 1575)); /* a 64th is not less than a 64th less: nothing */
    assert_false(round_of(&t, 0, 1600, 1400));
    assert_false(round_of(&t, 0, 1600, 1600));
    assert_false(round_of(&t, 0, 1600, 1400));
    assert_true(round_of(&t, 0, 1600, 1499));
    assert_int_equal(t.median[0], 1600);
    assert_int_equal(t.median[1], 1499);
    /* and back */
    assert_false(round_of(&t, 1, 1499, 1600));
    assert_true(round_of(&t, 1, 1499, 1600));
    assert_false(round_of(&t, 1, 1600, 1499));
    assert_false(round_of(&t, 1, 1600, 1499));
    /* A little less: four times in a row, or together with more. */
    for (int i = 0; i < 2; i++) {
        for (int n = 0; n < 3; n++)
            assert_false(round_of(&t, 0, 1600, 1500));
        assert_true(round_of(&t, 0, 1600, 1500));
    }
    assert_false(round_of(&t, 0, 1600, 1574));
    assert_false(round_of(&t, 0, 1600, 1499));
    assert_true(round_of(&t, 0, 1600, 1574));
}

/* A call outside of a round counts nothing; a round in which calls failed neither. */
static void what_does_not_count(void **state)
{
    (void)state;
    struct mk_choose_times t;
    struct mk_choice c;
    memset(&t, 0, sizeof(t));
    assert_false(round_of(&t, 0, 1600, 100));
    for (uint64_t call = 24; call < 64; call++) {
        mk_choose_way(call, 0, &c);
        assert_false(mk_choose_note(&t, &c, 5));
    }
    for (uint64_t at = 0; at < 8; at++) {
        mk_choose_way(64 + at, 0, &c);
        if (at != 3)
            assert_false(mk_choose_note(&t, &c, turn[at] ? 100 : 1600));
    }
    assert_false(round_of(&t, 0, 1600, 100)); /* the one before was not whole: it begins anew */
    assert_true(round_of(&t, 0, 1600, 100));
}

/* One slow call in a round decides nothing. */
static void one_slow_call(void **state)
{
    (void)state;
    struct mk_choose_times t;
    memset(&t, 0, sizeof(t));
    for (int i = 0; i < 10; i++)
        for (uint64_t at = 0; at < 8; at++) {
            struct mk_choice c;
            mk_choose_way(16 + at, 0, &c);
            assert_false(mk_choose_note(&t, &c, at == 2 ? 100000 : 1000));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounds),
        cmocka_unit_test(hysteresis),
        cmocka_unit_test(what_does_not_count),
        cmocka_unit_test(one_slow_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
