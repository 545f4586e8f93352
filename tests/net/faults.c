/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The engine over the loop transport with faults: what a put and its link become, and that nothing hangs. */
#include "mk/err.h"
#include "mk/param.h"
#include "net/loop/loop.h"
#include "net/loop/loop_state.h"
#include "tests/net/pair.h"
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

#define A (&p.s[0])
#define B (&p.s[1])
#define BOUND_NS 30000000000ull

static struct mk_settings set;
static struct pair p;

static int setup(void **state)
{
    uint32_t steps[PAIR_NOTES];
    uint64_t firsts[PAIR_NOTES];
    (void)state;
    if (mk_settings_load(&set, false))
        return -1;
    set.timeout = 0.3;
    for (uint32_t k = 0; k < PAIR_NOTES; k++) {
        steps[k] = k < 8 ? 8 : 1;
        firsts[k] = k < 8 ? k + 1 - 8ull : 8;
    }
    return pair_open(&p, &set, &mk_loop_ops, "immediate", steps, firsts);
}

static int teardown(void **state)
{
    (void)state;
    pair_close(&p);
    return 0;
}

/* Puts pos 0 .. n-1 into the slots of a ring of 8, all at once. */
static void put_some(uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const struct mk_put put = pair_put(A, i % 8, i * 64, 64, i / 8 + 1, i + 1);
        assert_int_equal(mk_link_put(A->l, &put, 1), 1);
    }
}

static void until_error(void)
{
    const uint64_t end = mk_time_ns() + BOUND_NS;
    while (!mk_link_error(A->l, NULL)) {
        assert_true(mk_time_ns() < end);
        mk_engine_progress(B->e);
        if (mk_engine_progress(A->e) == 0)
            mk_engine_wait(A->e, 5000000);
    }
    pair_run(&p);
}

static void until_done(int n)
{
    const uint64_t end = mk_time_ns() + BOUND_NS;
    while (A->ndone < n) {
        assert_true(mk_time_ns() < end);
        mk_engine_progress(B->e);
        if (mk_engine_progress(A->e) == 0)
            mk_engine_wait(A->e, 1000000);
    }
    pair_run(&p);
}

static void expect_end(int code, int ndone, int nbad)
{
    char text[200];
    assert_int_equal(mk_link_error(A->l, text), code);
    assert_non_null(strstr(text, "the peer"));
    assert_int_equal(A->ndone, ndone);
    assert_int_equal(A->nbad, nbad);
    assert_int_equal(A->last_status, code);
    assert_int_equal(mk_link_pending(A->l), 0);
    const struct mk_put put = pair_put(A, 0, 0, 8, 1, 1);
    assert_int_equal(mk_link_put(A->l, &put, 1), code);
    /* the other direction is another link and goes on */
    const struct mk_put back = pair_put(B, 0, 0, 8, 1, 1);
    assert_int_equal(mk_link_put(B->l, &back, 1), 1);
    pair_run(&p);
    assert_int_equal(A->flags[0], 1);
    assert_int_equal(B->nbad, 0);
}

static void lost_completion(void **state)
{
    (void)state;
    struct mk_loop_faults f;
    memset(&f, 0, sizeof(f));
    f.drop_completion = 3;
    assert_int_equal(mk_loop_set_faults(A->e->dev, &f), 0);
    put_some(4);
    until_error();
    assert_int_equal(B->flags[3], 4); /* everything arrived, one was never reported */
    expect_end(MK_ERR_TIMEOUT, 4, 1);
}

static void failed_write(void **state)
{
    (void)state;
    struct mk_loop_faults f;
    memset(&f, 0, sizeof(f));
    f.fail_write = 2;
    assert_int_equal(mk_loop_set_faults(A->e->dev, &f), 0);
    put_some(2);
    until_error();
    assert_int_equal(B->flags[0], 1);
    assert_int_equal(B->flags[1], 1 + 1 - 8ull);
    expect_end(MK_ERR_NET, 2, 1);
}

static void stalled(void **state)
{
    (void)state;
    struct mk_loop_faults f;
    memset(&f, 0, sizeof(f));
    f.stalled = 1;
    assert_int_equal(mk_loop_set_faults(A->e->dev, &f), 0);
    put_some(8);
    until_error();
    expect_end(MK_ERR_TIMEOUT, 8, 8);
    assert_int_equal(B->flags[0], 1 - 8ull);
}

static void dead(void **state)
{
    (void)state;
    struct mk_loop_faults f;
    memset(&f, 0, sizeof(f));
    put_some(8);
    until_done(8);
    f.dead = 1;
    assert_int_equal(mk_loop_set_faults(A->e->dev, &f), 0);
    const struct mk_put put = pair_put(A, 0, 0, 64, 2, 9);
    assert_int_equal(mk_link_put(A->l, &put, 1), 1);
    until_error();
    expect_end(MK_ERR_PEER, 9, 1);
}

/* A write that is late by less than MK_TIMEOUT is no error. */
static void delayed(void **state)
{
    (void)state;
    struct mk_loop_faults f;
    memset(&f, 0, sizeof(f));
    f.delay_write = 2;
    f.delay_ns = 150000000;
    assert_int_equal(mk_loop_set_faults(A->e->dev, &f), 0);
    put_some(8);
    until_done(8);
    assert_int_equal(A->nbad, 0);
    for (uint32_t i = 0; i < 8; i++)
        assert_int_equal(B->flags[i], i + 1);
}

/* The same through the proxy: told once, with the node, and the done word stays. */
static int told, told_node, told_code;
static void on_error(void *ctx, int node, int code, const char *text)
{
    (void)ctx;
    (void)text;
    told_node = node;
    told_code = code;
    __atomic_fetch_add(&told, 1, __ATOMIC_RELEASE);
}

static void lost_completion_through_the_proxy(void **state)
{
    (void)state;
    struct mk_proxy *proxy;
    struct mk_loop_faults f;
    struct mk_proxy_comm c;
    uint64_t done = 0, at = 0;
    uint16_t id;
    memset(&f, 0, sizeof(f));
    f.drop_completion = 1;
    assert_int_equal(mk_loop_set_faults(A->e->dev, &f), 0);
    assert_int_equal(mk_proxy_start(&set, A->e, 4, &proxy), 0);
    memset(&c, 0, sizeof(c));
    c.nnodes = 1;
    c.nwindows = 1;
    c.links = &A->l;
    c.windows = &A->mr;
    c.rwindows = &A->rmem;
    c.done = &done;
    c.ndone = 1;
    c.on_error = on_error;
    assert_int_equal(mk_proxy_attach(proxy, &c, &id), 0);
    struct mk_cmd cmd;
    mk_cmd_init(&cmd);
    mk_cmd_set_kind(&cmd, MK_CMD_WRITE);
    mk_cmd_set_comm(&cmd, id);
    mk_cmd_set_len(&cmd, 64);
    mk_cmd_set_use4(&cmd, 1);
    mk_cmd_set_value(&cmd, 1);
    assert_true(mk_ring_claim(mk_proxy_ring(proxy), &at));
    mk_ring_publish(mk_proxy_ring(proxy), at, &cmd);
    mk_proxy_kick(proxy);
    const uint64_t end = mk_time_ns() + BOUND_NS;
    while (!__atomic_load_n(&told, __ATOMIC_ACQUIRE)) {
        assert_true(mk_time_ns() < end);
        if (mk_engine_progress(B->e) == 0)
            mk_engine_wait(B->e, 1000000);
    }
    assert_int_equal(told_node, 0);
    assert_int_equal(told_code, MK_ERR_TIMEOUT);
    assert_int_equal(B->flags[0], 1);
    mk_proxy_stop(proxy);
    A->e = NULL;
    assert_int_equal(told, 1);
    assert_int_equal(done, 0);
}

/* Memory that is mapped already, announced again as larger than it is: not taken from what is mapped. */
static void mapped_memory_does_not_grow(void **state)
{
    static struct mk_loop_dev d;
    struct mk_loop_map *first, *again, *larger = NULL;
    struct mk_shm shm;
    struct mk_shm_ref ref;
    (void)state;
    assert_int_equal(mk_shm_create("small", 4096, &shm), 0);
    mk_shm_ref(&shm, &ref);
    assert_int_equal(mk_loop_map_get(&d, &ref, &first), 0);
    assert_int_equal(mk_loop_map_get(&d, &ref, &again), 0);
    assert_ptr_equal(first, again);
    ref.size = 1ull << 40;
    assert_int_not_equal(mk_loop_map_get(&d, &ref, &larger), 0);
    assert_null(larger);
    mk_loop_map_put(&d, again);
    mk_loop_map_put(&d, first);
    assert_null(d.maps);
    mk_shm_release(&shm);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(lost_completion),
        T(failed_write),
        T(stalled),
        T(dead),
        T(delayed),
        T(lost_completion_through_the_proxy),
        cmocka_unit_test(mapped_memory_does_not_grow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
