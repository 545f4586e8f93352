/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The command ring: fields, publish and peek, full and empty, the lap and its 16-bit count going round, many
 * producers against one consumer. */
#include "mk/dev/ring.h"
#include "mk/shm.h"
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define MAX_SLOTS 64
#define MAX_THREADS 8
#define PATIENCE_NS 50000000000ull

struct words {
    struct mk_cmd slot[MAX_SLOTS];
    uint64_t claim, tail, tail_seen;
};
static struct words words;

static struct mk_ring ring_at(uint32_t log2_slots, uint64_t index)
{
    struct mk_ring r;
    memset(&words, 0, sizeof(words));
    words.claim = words.tail = words.tail_seen = index;
    r.slot = words.slot;
    r.claim = &words.claim;
    r.tail = &words.tail;
    r.tail_seen = &words.tail_seen;
    r.log2_slots = log2_slots;
    /* what the slots held one lap ago, as after a long run */
    for (uint64_t i = 0; index && i < 1ull << log2_slots; i++)
        mk_cmd_set_lap(&words.slot[(index + i) & ((1ull << log2_slots) - 1)],
                       mk_ring_lap(&r, index + i - (1ull << log2_slots)));
    return r;
}

/* Each field keeps its value while its neighbours are all ones, and the other way round. */
static void fields(void **state)
{
    (void)state;
    struct mk_cmd c;
#define CHECK(name, word, shift, width)                                                                      \
    {                                                                                                        \
        const uint64_t max = (1ull << (width)) - 1;                                                          \
        memset(&c, 0xff, sizeof(c));                                                                         \
        mk_cmd_set_##name(&c, max / 3);                                                                      \
        assert_int_equal(mk_cmd_##name(&c), max / 3);                                                        \
        assert_int_equal(c.w[word] | (max << (shift)), UINT64_MAX);                                          \
        mk_cmd_init(&c);                                                                                     \
        mk_cmd_set_##name(&c, UINT64_MAX);                                                                   \
        assert_int_equal(mk_cmd_##name(&c), max);                                                            \
        assert_int_equal(c.w[word], max << (shift));                                                         \
    }
    MK_CMD_FIELDS(CHECK)
#undef CHECK
    assert_int_equal(mk_cmd_lap(&c), 0xffff);
}

static void fields_do_not_overlap(void **state)
{
    (void)state;
    uint64_t used[6] = {0};
#define MASK(name, word, shift, width)                                                                       \
    assert_int_equal(used[word] & (((1ull << (width)) - 1) << (shift)), 0);                                  \
    used[word] |= ((1ull << (width)) - 1) << (shift);
    MK_CMD_FIELDS(MASK)
#undef MASK
    for (int i = 0; i < 6; i++) /* spare: the high byte of words 0, 3 and 5 */
        assert_int_equal(used[i], i == 0 || i == 3 || i == 5 ? UINT64_MAX >> 8 : UINT64_MAX);
}

static void publish(const struct mk_ring *r, uint64_t index, uint64_t value)
{
    struct mk_cmd c;
    mk_cmd_init(&c);
    mk_cmd_set_value(&c, value);
    mk_cmd_set_loff(&c, value);
    mk_cmd_set_node(&c, value & 0xffff);
    mk_ring_publish(r, index, &c);
}

static void full_empty_and_order(void **state)
{
    (void)state;
    const struct mk_ring r = ring_at(2, 0);
    struct mk_cmd c;
    uint64_t at[5];
    assert_false(mk_ring_peek(&r, 0, &c));
    for (int i = 0; i < 4; i++) {
        assert_true(mk_ring_claim(&r, &at[i]));
        assert_int_equal(at[i], i);
    }
    assert_false(mk_ring_claim(&r, &at[4]));
    /* published out of order: the consumer waits for the first */
    publish(&r, at[1], 11);
    assert_false(mk_ring_peek(&r, 0, &c));
    assert_true(mk_ring_peek(&r, 1, &c));
    publish(&r, at[0], 10);
    assert_true(mk_ring_peek(&r, 0, &c));
    assert_int_equal(mk_cmd_value(&c), 10);
    assert_false(mk_ring_claim(&r, &at[4])); /* copied out, not freed */
    mk_ring_free(&r, 1);
    assert_true(mk_ring_claim(&r, &at[4]));
    assert_int_equal(at[4], 4);
    assert_false(mk_ring_peek(&r, 4, &c)); /* the slot still holds the command of the lap before */
    publish(&r, at[4], 14);
    assert_true(mk_ring_peek(&r, 4, &c));
    assert_int_equal(mk_cmd_value(&c), 14);
}

/* Past 65536 laps the count starts again at 0: a slot of the lap before never looks published. */
static void lap_count_goes_round(void **state)
{
    (void)state;
    for (uint64_t lap = 65530; lap < 65545; lap++) {
        const uint64_t first = lap * 4;
        const struct mk_ring r = ring_at(2, first);
        struct mk_cmd c;
        uint64_t at = 0;
        for (uint64_t i = first; i < first + 64; i++) {
            assert_false(mk_ring_peek(&r, i, &c));
            assert_true(mk_ring_claim(&r, &at));
            assert_int_equal(at, i);
            publish(&r, at, i);
            assert_true(mk_ring_peek(&r, i, &c));
            assert_int_equal(mk_cmd_value(&c), i);
            mk_ring_free(&r, i + 1);
        }
    }
}

/* ---- many producers ---- */

struct producer {
    pthread_t thread;
    const struct mk_ring *r;
    uint64_t count;
    uint32_t id;
    uint64_t refused;
    bool gave_up;
};

static void *produce(void *arg)
{
    struct producer *p = arg;
    const uint64_t end = mk_time_ns() + PATIENCE_NS;
    for (uint64_t i = 0; i < p->count && !p->gave_up; i++) {
        uint64_t at = 0;
        struct mk_cmd c;
        while (!mk_ring_claim(p->r, &at)) {
            p->refused++;
            sched_yield();
            if ((p->refused & 1023) == 0 && mk_time_ns() > end) {
                p->gave_up = true;
                return NULL;
            }
        }
        mk_cmd_init(&c);
        mk_cmd_set_node(&c, p->id);
        mk_cmd_set_value(&c, i);
        mk_cmd_set_loff(&c, i * 7);
        mk_cmd_set_len(&c, i * 13);
        mk_cmd_set_note(&c, i * 3);
        mk_ring_publish(p->r, at, &c);
    }
    return NULL;
}

/* Every command comes out once, whole, and in order for each producer. The ring starts just before its 16-bit lap
 * count goes round. */
static void many(uint32_t log2_slots, uint32_t threads, uint64_t each)
{
    const struct mk_ring r = ring_at(log2_slots, (65536ull << log2_slots) - each);
    struct producer p[MAX_THREADS];
    uint64_t seen[MAX_THREADS] = {0}, at = words.claim;
    const uint64_t last = at + threads * each, end = mk_time_ns() + PATIENCE_NS;
    uint64_t refused = 0;
    memset(p, 0, sizeof(p));
    for (uint32_t i = 0; i < threads; i++) {
        p[i].r = &r;
        p[i].count = each;
        p[i].id = i;
        assert_int_equal(pthread_create(&p[i].thread, NULL, produce, &p[i]), 0);
    }
    uint64_t bad = 0;
    while (at < last && mk_time_ns() < end) {
        struct mk_cmd c;
        if (!mk_ring_peek(&r, at, &c)) {
            sched_yield();
            continue;
        }
        mk_ring_free(&r, ++at);
        const uint64_t node = mk_cmd_node(&c), i = mk_cmd_value(&c);
        if (node >= threads || i != seen[node]++ || mk_cmd_loff(&c) != i * 7 ||
            mk_cmd_len(&c) != ((i * 13) & 0xffffffff) || mk_cmd_note(&c) != ((i * 3) & 0xfffffff))
            bad++;
    }
    for (uint32_t i = 0; i < threads; i++) {
        pthread_join(p[i].thread, NULL);
        refused += p[i].refused;
        assert_false(p[i].gave_up);
        assert_int_equal(seen[i], each);
    }
    assert_int_equal(bad, 0);
    assert_int_equal(at, last);
    assert_int_equal(words.claim, last);
    assert_true(refused > 0); /* back-pressure was met */
}

#ifdef __SANITIZE_THREAD__
#define EACH 5000
#else
#define EACH 40000
#endif

static void one_producer_small_ring(void **state)
{
    (void)state;
    many(1, 1, EACH);
}
static void four_producers(void **state)
{
    (void)state;
    many(3, 4, EACH);
}
static void eight_producers(void **state)
{
    (void)state;
    many(6, 8, EACH);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fields),
        cmocka_unit_test(fields_do_not_overlap),
        cmocka_unit_test(full_empty_and_order),
        cmocka_unit_test(lap_count_goes_round),
        cmocka_unit_test(one_producer_small_ring),
        cmocka_unit_test(four_producers),
        cmocka_unit_test(eight_producers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
