/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* MK_VERIFY's sums over C (ops/pair_check.h): equal for equal bytes however they are dealt to blocks, and not for others. */
#include "ops/pair_check.h"
#include "ops/pair_tiles.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { N = 1000 };
static uint64_t c[2 * N], words[MK_PAIR_HEAD + 1], reports[8];

/* The blocks end in any order. */
static void run(uint64_t site, uint32_t blocks)
{
    const struct mk_check k = {c, N, words, site ? reports : NULL, site};
    const uint32_t first = (uint32_t)rand() % blocks;
    for (uint32_t b = 0; b < blocks; b++) {
        uint64_t sum = 0;
        for (uint64_t i = (first + b) % blocks; i < N; i += blocks)
            sum += mk_check_mix(c[2 * i], c[2 * i + 1], i);
        mk_check_end(&k, sum, blocks);
    }
}

/* Behind G, then before K: was a difference seen? */
static bool differs(void (*between)(size_t), size_t at)
{
    const uint64_t seen = reports[5], all = reports[1], looked = reports[4];
    run(0, 1 + (uint32_t)rand() % 40);
    between(at);
    run(2, 1 + (uint32_t)rand() % 40);
    assert_int_equal(reports[4], looked + 1);
    assert_int_equal(reports[1] - all, reports[5] - seen);
    for (int w = 0; w < MK_PAIR_HEAD + 1; w++)
        assert_true(w == MK_CHECK_BEHIND || !words[w]);
    return reports[5] != seen;
}

static void fill(void)
{
    for (int i = 0; i < 2 * N; i++)
        c[i] = ((uint64_t)rand() << 33) ^ (uint64_t)rand();
}

static void nothing(size_t at)
{
    (void)at;
}
static void one_bit(size_t at)
{
    c[at / 64] ^= 1ull << at % 64;
}
static void swap_words(size_t at)
{
    const uint64_t w = c[at];
    c[at] = c[(at + 1) % (2 * N)];
    c[(at + 1) % (2 * N)] = w;
}
static void swap_places(size_t at)
{
    uint64_t w[2];
    const size_t i = at / 2 * 2, j = (i + 2) % (2 * N);
    memcpy(w, &c[i], 16);
    memcpy(&c[i], &c[j], 16);
    memcpy(&c[j], w, 16);
}
static void doubled(size_t at)
{
    (void)at;
    for (int i = 0; i < 2 * N; i++)
        c[i] *= 2;
}

static void what_changes_is_seen(void **state)
{
    (void)state;
    srand(1);
    fill();
    for (size_t i = 0; i < 200; i++) {
        assert_false(differs(nothing, 0));
        assert_true(differs(one_bit, (size_t)rand() % (64 * 2 * N)));
        assert_true(differs(swap_words, (size_t)rand() % (2 * N)));
        assert_true(differs(swap_places, (size_t)rand() % (2 * N)));
    }
    assert_true(differs(doubled, 0));
    memset(c, 0, sizeof(c));
    assert_false(differs(nothing, 0));
    assert_true(differs(one_bit, 64 * 2 * N - 1));
    assert_int_equal(reports[2], 0); /* of another site */
    assert_int_equal(reports[6], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_changes_is_seen)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
