/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Latency path: marks that cannot be mistaken, slots that do not overlap, who takes the path, and an exchange between two
 * threads over the places where marks wrap and halves are cleared. */
#include "fused/comm.h"
#include "mk/err.h"
#include "sched/ll.h"
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static void marks(void **state)
{
    (void)state;
    const uint64_t starts[] = {0, 0x3ffffff0, 0x7ffffff0, 0xfffffff0, 0x1fffffff0};
    for (size_t i = 0; i < sizeof(starts) / sizeof(starts[0]); i++)
        for (uint64_t p = starts[i]; p < starts[i] + 64; p++) {
            assert_int_not_equal(mk_ll_mark(p), 0); /* what cleared memory holds */
            assert_int_not_equal(mk_ll_mark(p), mk_ll_mark(p + 2));
            assert_int_not_equal(mk_ll_mark(p), mk_ll_mark(p + (1ull << 31) - 2));
        }
    /* an old mark counts again after 2^31 launches: each half is cleared before */
    for (int half = 0; half < 2; half++) {
        uint64_t clears = 0;
        for (uint64_t p = (1ull << 30) - 8; p < (1ull << 30) + 8; p++)
            clears += mk_ll_clears(p) && ((p + 1) & 1) == (uint64_t)half;
        assert_int_equal(clears, 1);
    }
    uint64_t word = 0;
    uint32_t data = 1;
    assert_false(mk_ll_load(&word, mk_ll_mark(5), &data));
    mk_ll_store(&word, 0xdeadbeef, mk_ll_mark(5));
    assert_false(mk_ll_load(&word, mk_ll_mark(7), &data));
    assert_true(mk_ll_load(&word, mk_ll_mark(5), &data));
    assert_int_equal(data, 0xdeadbeef);
}

static void slots(void **state)
{
    (void)state;
    for (int nlocal = 1; nlocal <= 33; nlocal++)
        for (int nnodes = 1; nnodes <= 2; nnodes++) {
            const struct mk_topo t = {nnodes, nlocal, 0, 0};
            struct mk_rings r;
            if (mk_rings_build(&t, 32 << 20, 256 << 10, &r))
                continue; /* too many ranks for the workspace */
            const uint64_t rings = r.staging_bytes;
            mk_rings_add_ll(&r, 32 << 20);
            if (nnodes > 1 || nlocal == 1 || nlocal > MK_LL_MAX_RANKS) {
                assert_int_equal(r.ll_slot, 0);
                assert_int_equal(r.staging_bytes, rings);
                assert_false(mk_ll_fits(&r, 1, 8));
                continue;
            }
            assert_true(r.staging_bytes <= 32 << 20);
            assert_true(r.ll_off >= rings && r.ll_slot % 4096 == 0);
            uint64_t at = r.ll_off;
            for (uint64_t half = 0; half < 2; half++)
                for (int from = 0; from < nlocal; from++, at += r.ll_slot) {
                    assert_int_equal(mk_ll_slot(&r, from, half), at);
                    assert_int_equal(mk_ll_slot(&r, from, half + 2), at);
                }
            for (uint64_t half = 0; r.ll_slot && half < 2; half++)
                for (int from = 0; from < nlocal; from++, at += MK_LL_HEAD_BYTES) {
                    assert_int_equal(mk_ll_head(&r, from, half), at);
                    assert_int_equal(mk_ll_head(&r, from, half + 2), at);
                }
            assert_true(at <= r.staging_bytes);
            if (r.ll_slot) { /* the largest N at 64 rows, and one group more */
                const int64_t n = (int64_t)(r.ll_slot / 64 / MK_LL_GROUP_BYTES) * 4;
                assert_true(n == 0 || mk_ll_fits(&r, 64, n));
                assert_false(mk_ll_fits(&r, 64, n + 1));
            }
            assert_false(mk_ll_fits(&r, 65, 8));
            assert_false(mk_ll_fits(&r, 0, 8));
        }
}

enum { WORDS = 96, LAUNCHES = 20000 };
struct side {
    uint64_t words[2][WORDS]; /* written by the other one, and cleared by this one */
    struct side *other;
    uint64_t start;
    uint32_t seed;
    int wrong;
};
static uint32_t value(uint32_t seed, uint64_t p, int i)
{
    return seed * 2654435761u ^ (uint32_t)p * 40503u ^ (uint32_t)i;
}
static void *exchange(void *arg)
{
    struct side *s = arg;
    for (uint64_t p = s->start; p < s->start + LAUNCHES; p++) {
        const int n = p % 7 ? WORDS : WORDS / 3; /* some places are not used for a while */
        if (mk_ll_clears(p))
            for (int i = 0; i < WORDS; i++)
                mk_st_rlx_sys_u64(&s->words[(p + 1) & 1][i], 0);
        for (int i = 0; i < n; i++)
            mk_ll_store(&s->other->words[p & 1][i], value(s->seed, p, i), mk_ll_mark(p));
        for (int i = 0; i < n; i++) {
            uint32_t data;
            while (!mk_ll_load(&s->words[p & 1][i], mk_ll_mark(p), &data))
                sched_yield();
            s->wrong += data != value(s->other->seed, p, i);
        }
    }
    return NULL;
}
static void two_ranks(void **state)
{
    (void)state;
    static struct side side[2];
    const uint64_t starts[] = {0, 0x40000000ull - LAUNCHES / 2, 0x100000000ull - LAUNCHES / 2};
    for (size_t k = 0; k < sizeof(starts) / sizeof(starts[0]); k++) {
        pthread_t t[2];
        memset(side, 0, sizeof(side));
        for (int i = 0; i < 2; i++) {
            side[i].other = &side[1 - i];
            side[i].seed = (uint32_t)i + 1;
            side[i].start = starts[k];
        }
        for (int i = 0; i < 2; i++)
            assert_int_equal(pthread_create(&t[i], NULL, exchange, &side[i]), 0);
        for (int i = 0; i < 2; i++)
            pthread_join(t[i], NULL);
        assert_int_equal(side[0].wrong, 0);
        assert_int_equal(side[1].wrong, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(marks),
        cmocka_unit_test(slots),
        cmocka_unit_test(two_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
