/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Puts that ask for delivery, in batches: on an ordered network one write of a batch asks for all; nothing is done
 * before that one is. On an unordered one each asks for itself. */
#include "mk/param.h"
#include "net/engine.h"
#include "tests/net/fake.h"
#include "tests/net/pair.h"
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

#define A (&p.s[0])

static struct mk_settings set;
static struct pair p;

static int teardown(void **state)
{
    (void)state;
    pair_close(&p);
    return 0;
}

static int setup(void **state)
{
    (void)state;
    fake_reset();
    return mk_settings_load(&set, false) ? -1 : 0;
}

static void start(bool ordered)
{
    fake.ordered = ordered;
    fake.delivery = true;
    fake.hold = true;
    assert_int_equal(pair_open(&p, &set, &fake_ops, "immediate", NULL, NULL), 0);
}

/* n puts with ids first, first + 1, ..: to the notes 0 .. 7 in turn. */
static void puts_of(uint32_t first, int n)
{
    struct mk_put put[16];
    for (int i = 0; i < n; i++) {
        const uint32_t pos = first + (uint32_t)i, use = pos / 8 + 1;
        put[i] = pair_put(A, pos % 8, 64ull * (pos % 8), 64, use, use);
        put[i].flags |= MK_PUT_DELIVERY;
        put[i].id = pos;
    }
    assert_int_equal(mk_link_put(A->l, put, n), n);
}

static void progress(void)
{
    for (int i = 0; i < 4; i++)
        assert_true(mk_engine_progress(A->e) >= 0);
}

static void one_asks_for_the_batch(void **state)
{
    (void)state;
    start(true);
    puts_of(0, 6);
    assert_int_equal(fake_held(A->l->conn), 6);
    assert_int_equal(fake.deliveries, 1);
    for (int i = 0; i < 5; i++) {
        fake_release(A->l->conn, 0);
        progress();
        assert_int_equal(A->ndone, 0);
    }
    assert_int_equal(mk_link_pending(A->l), 6);
    fake_release(A->l->conn, 0);
    progress();
    assert_int_equal(A->ndone, 6);
    for (uint32_t i = 0; i < 6; i++)
        assert_int_equal(A->ids[i], i);
    assert_int_equal(mk_link_pending(A->l), 0);
}

/* Completions of an ordered network may still be polled in another order. */
static void late_completions_follow(void **state)
{
    (void)state;
    start(true);
    puts_of(0, 4);
    fake_release(A->l->conn, 1);
    fake_release(A->l->conn, 2); /* the last one: held are 0, 2, 3 */
    progress();
    assert_int_equal(A->ndone, 2);
    assert_int_equal(A->ids[0], 1);
    assert_int_equal(A->ids[1], 3);
    fake_release_all(A->l->conn);
    progress();
    assert_int_equal(A->ndone, 4);
}

/* The network takes all but the last of each batch: those taken are answered for all the same. */
static void the_last_one_is_not_taken(void **state)
{
    (void)state;
    start(true);
    fake.room = 3;
    fake.hold = false;
    for (uint32_t pos = 0; pos < 64; pos += 4)
        puts_of(pos, 4);
    for (int i = 0; i < 100 && A->ndone < 64; i++)
        pair_run(&p);
    assert_int_equal(A->ndone, 64);
    assert_int_equal(A->nbad, 0);
    assert_int_equal(mk_link_pending(A->l), 0);
    assert_true(fake.deliveries >= 8); /* every eighth asks */
}

static void each_asks_without_order(void **state)
{
    (void)state;
    start(false);
    puts_of(0, 6);
    assert_int_equal(fake.deliveries, 6);
    fake_release(A->l->conn, 4);
    progress();
    assert_int_equal(A->ndone, 1);
    assert_int_equal(A->ids[0], 4);
    fake_release_all(A->l->conn);
    progress();
    assert_int_equal(A->ndone, 6);
}

static void a_failure_tells_all(void **state)
{
    (void)state;
    start(true);
    puts_of(0, 5);
    fake_release(A->l->conn, 0);
    progress();
    assert_int_equal(A->ndone, 0);
    fake.fail = -6; /* MK_ERR_NET */
    fake_release(A->l->conn, 0);
    progress();
    assert_int_equal(A->ndone, 5);
    assert_int_equal(A->nbad, 5);
    assert_int_equal(A->last_status, -6);
    fake.fail = 0;
    fake_release_all(A->l->conn);
    progress();
    assert_int_equal(A->ndone, 5);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(one_asks_for_the_batch),  T(late_completions_follow), T(the_last_one_is_not_taken),
        T(each_asks_without_order), T(a_failure_tells_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
