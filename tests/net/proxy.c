/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The proxy thread over the fake transport: commands to puts, completions to done words, nonsense, errors, locks. */
#include "mk/dev/flag.h"
#include "mk/err.h"
#include "mk/param.h"
#include "tests/net/fake.h"
#include "tests/net/pair.h"
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#define A (&p.s[0])
#define B (&p.s[1])
#define NDONE 64

static struct mk_settings set;
static struct pair p;
static struct mk_proxy *proxy; /* owns A's engine */
static struct mk_link *links[2];
static struct mk_mr *windows[1];
static struct mk_rmem *rwindows[2];
static uint64_t done[NDONE];
static struct mk_bell bell;
static struct mk_proxy_comm desc;
static uint16_t id;
static int errors, error_node, error_code;
static char error_text[200];

static void on_error(void *ctx, int node, int code, const char *text)
{
    assert_ptr_equal(ctx, &p);
    snprintf(error_text, sizeof(error_text), "%s", text);
    error_node = node;
    error_code = code;
    __atomic_fetch_add(&errors, 1, __ATOMIC_RELEASE);
}

static int setup(void **state)
{
    static const uint64_t first[PAIR_NOTES] = {0};
    (void)state;
    fake_reset();
    if (mk_settings_load(&set, false))
        return -1;
    memset(done, 0, sizeof(done));
    memset(&bell, 0, sizeof(bell));
    errors = 0;
    return pair_open(&p, &set, &fake_ops, "immediate", NULL, first);
}

static void start(uint32_t log2_slots)
{
    assert_int_equal(mk_proxy_start(&set, A->e, log2_slots, &proxy), 0);
    links[0] = NULL; /* own node */
    links[1] = A->l;
    windows[0] = A->mr;
    rwindows[0] = NULL;
    rwindows[1] = A->rmem;
    memset(&desc, 0, sizeof(desc));
    desc.nnodes = 2;
    desc.nwindows = 1;
    desc.links = links;
    desc.windows = windows;
    desc.rwindows = rwindows;
    desc.done = done;
    desc.ndone = NDONE;
    desc.bell = &bell;
    desc.on_error = on_error;
    desc.ctx = &p;
    assert_int_equal(mk_proxy_attach(proxy, &desc, &id), 0);
}

static int teardown(void **state)
{
    (void)state;
    mk_proxy_stop(proxy);
    if (proxy)
        A->e = NULL;
    proxy = NULL;
    pair_close(&p);
    return 0;
}

static struct mk_cmd write_cmd(uint64_t off, uint32_t len, uint32_t note, uint64_t value, uint32_t done_index)
{
    struct mk_cmd c;
    mk_cmd_init(&c);
    mk_cmd_set_kind(&c, MK_CMD_WRITE);
    mk_cmd_set_comm(&c, id);
    mk_cmd_set_node(&c, 1);
    mk_cmd_set_loff(&c, off);
    mk_cmd_set_roff(&c, off);
    mk_cmd_set_len(&c, len);
    mk_cmd_set_note(&c, note);
    mk_cmd_set_use4(&c, value);
    mk_cmd_set_value(&c, value);
    mk_cmd_set_done(&c, done_index);
    return c;
}

static void push(struct mk_cmd c)
{
    uint64_t at;
    const uint64_t end = mk_time_ns() + 20000000000ull;
    while (!mk_ring_claim(mk_proxy_ring(proxy), &at)) {
        assert_true(mk_time_ns() < end);
        mk_engine_progress(B->e);
    }
    mk_ring_publish(mk_proxy_ring(proxy), at, &c);
    mk_proxy_kick(proxy);
}

/* Drives B until *word reaches value; 20 s at most. */
static void wait_word(const uint64_t *word, uint64_t value)
{
    const uint64_t end = mk_time_ns() + 20000000000ull;
    while (mk_ld_acq_sys_u64(word) < value) {
        assert_true(mk_time_ns() < end);
        if (mk_engine_progress(B->e) == 0)
            mk_engine_wait(B->e, 100000);
    }
}

static void wait_errors(int n)
{
    const uint64_t end = mk_time_ns() + 20000000000ull;
    const struct timespec step = {0, 100000};
    while (__atomic_load_n(&errors, __ATOMIC_ACQUIRE) < n) {
        assert_true(mk_time_ns() < end);
        nanosleep(&step, NULL);
    }
}

static void writes_and_credits(void **state)
{
    (void)state;
    struct mk_proxy_stats t;
    start(4);
    memset(A->mem.addr, 42, 4096);
    for (uint64_t v = 1; v <= 500; v++) {
        push(write_cmd(64 * (v % 8), 64, 0, v, 3));
        struct mk_cmd c = write_cmd(0, 0, 1, v, MK_CMD_NO_DONE);
        mk_cmd_set_kind(&c, MK_CMD_CREDIT);
        push(c);
        wait_word(&B->flags[0], v);
    }
    wait_word(&B->flags[1], 500);
    wait_word(&done[3], 500);
    assert_int_equal(((uint8_t *)B->mem.addr)[511], 42);
    assert_int_equal(B->flags[0], 500);
    assert_int_equal(errors, 0);
    assert_true(mk_bell_seq(&bell) > 0);
    mk_proxy_get_stats(proxy, &t);
    assert_int_equal(t.commands, 1000);
    assert_int_equal(t.bytes, 500 * 64);
    assert_int_equal(t.errors, 0);
    uint64_t batches = 0;
    for (int i = 1; i < 9; i++)
        batches += t.fill[i];
    assert_int_equal(batches, t.batches);
    assert_true(fake.deliveries >= 500);
}

/* Commands that stand in the ring together leave together, in order. */
static void batching(void **state)
{
    (void)state;
    struct mk_proxy_stats t;
    start(6);
    mk_proxy_lock(proxy);
    for (uint64_t v = 1; v <= 32; v++)
        push(write_cmd(0, 8, 0, v, 0));
    mk_proxy_unlock(proxy);
    wait_word(&done[0], 32);
    wait_word(&B->flags[0], 32);
    mk_proxy_get_stats(proxy, &t);
    assert_int_equal(t.fill[8], 4);
    assert_int_equal(t.batches, 4);
}

/* A slow link: the ring fills, producers are held back, nothing is lost. */
static void back_pressure(void **state)
{
    (void)state;
    start(4);
    fake.room = 0;
    const uint64_t total = MK_LINK_RING + 8 + 1 + 16; /* link, stage, held command, ring */
    uint64_t v, at;
    const uint64_t end = mk_time_ns() + 20000000000ull;
    for (v = 1; v <= total; v++)
        push(write_cmd(0, 8, 0, v, 0));
    while (mk_ring_claim(mk_proxy_ring(proxy), &at)) {
        struct mk_cmd c = write_cmd(0, 8, 0, v++, 0);
        mk_ring_publish(mk_proxy_ring(proxy), at, &c);
        assert_true(mk_time_ns() < end);
        assert_true(v <= total + 2);
    }
    mk_proxy_lock(proxy);
    fake.room = -1;
    mk_proxy_unlock(proxy);
    wait_word(&done[0], v - 1);
    wait_word(&B->flags[0], v - 1);
    assert_int_equal(B->flags[0], v - 1);
}

/* done words only grow, and grow with each completion however late another one is. */
static void done_only_upwards(void **state)
{
    (void)state;
    start(4);
    mk_proxy_lock(proxy);
    fake.hold = true;
    mk_proxy_unlock(proxy);
    push(write_cmd(0, 8, 0, 1, 5));
    push(write_cmd(0, 8, 0, 2, 5));
    const uint64_t end = mk_time_ns() + 20000000000ull;
    while (fake_held(A->l->conn) < 2)
        assert_true(mk_time_ns() < end);
    fake_release(A->l->conn, 1);
    mk_proxy_kick(proxy);
    wait_word(&done[5], 2);
    fake_release(A->l->conn, 0);
    wait_word(&B->flags[0], 1);
    mk_proxy_lock(proxy);
    fake.hold = false;
    mk_proxy_unlock(proxy);
    push(write_cmd(0, 8, 0, 3, 6));
    wait_word(&done[6], 3);
    assert_int_equal(done[5], 2);
}

/* All of these are dropped and counted; of each node only the first is told. */
static void nonsense(void **state)
{
    (void)state;
    struct mk_proxy_stats t;
    start(4);
    struct mk_cmd c = write_cmd(A->mem.size - 4, 8, 0, 1, 0);
    push(c);
    wait_errors(1);
    assert_int_equal(error_node, 1);
    assert_int_equal(error_code, MK_ERR_INTERNAL);
    assert_non_null(strstr(error_text, "source window"));
    c = write_cmd(0, 8, PAIR_NOTES, 1, 0);
    push(c);
    c = write_cmd(0, 8, 0, 1, NDONE);
    push(c);
    c = write_cmd(0, 8, 0, 1, 0);
    mk_cmd_set_dwin(&c, 1);
    push(c);
    c = write_cmd(0, 8, 0, 1, 0);
    mk_cmd_set_roff(&c, (1ull << 40) - 1);
    push(c);
    c = write_cmd(0, 8, 0, 1, 0);
    mk_cmd_set_kind(&c, 9);
    push(c);
    c = write_cmd(0, 8, 0, 1, 0);
    mk_cmd_set_comm(&c, 4711); /* no such communicator: nobody to tell */
    push(c);
    mk_cmd_init(&c); /* NOP: no error */
    push(c);
    push(write_cmd(0, 8, 0, 1, 0));
    wait_word(&done[0], 1);
    assert_int_equal(errors, 1);
    mk_proxy_get_stats(proxy, &t);
    assert_int_equal(t.commands, 9);
    assert_int_equal(t.errors, 7);
    wait_word(&B->flags[0], 1);
    assert_int_equal(B->flags[0], 1);
}

static void nonsense_without_a_link(void **state)
{
    (void)state;
    struct mk_proxy_stats t;
    start(4);
    struct mk_cmd c = write_cmd(0, 8, 0, 1, 0);
    mk_cmd_set_node(&c, 2); /* there are two */
    push(c);
    wait_errors(1);
    assert_int_equal(error_node, 1); /* the only one with a link */
    assert_int_equal(error_code, MK_ERR_INTERNAL);
    assert_non_null(strstr(error_text, "no link"));
    mk_cmd_set_node(&c, 0); /* the own node */
    push(c);
    push(write_cmd(0, 8, 0, 1, 0));
    wait_word(&done[0], 1);
    assert_int_equal(errors, 1);
    mk_proxy_get_stats(proxy, &t);
    assert_int_equal(t.errors, 2);
}

static void link_error_is_told_once(void **state)
{
    (void)state;
    start(4);
    mk_proxy_lock(proxy);
    fake.fail = MK_ERR_PEER;
    mk_proxy_unlock(proxy);
    for (uint64_t v = 1; v <= 20; v++)
        push(write_cmd(0, 8, 0, v, 0));
    wait_errors(1);
    for (uint64_t v = 21; v <= 40; v++)
        push(write_cmd(0, 8, 0, v, 0));
    mk_proxy_lock(proxy);
    mk_proxy_unlock(proxy);
    assert_int_equal(errors, 1);
    assert_int_equal(error_node, 1);
    assert_int_equal(error_code, MK_ERR_PEER);
    assert_non_null(strstr(error_text, "the peer"));
    assert_int_equal(done[0], 0);
}

static void engine_error(void **state)
{
    (void)state;
    start(4);
    mk_proxy_lock(proxy);
    fake.poll_error = MK_ERR_NET;
    mk_proxy_unlock(proxy);
    wait_errors(1);
    assert_int_equal(error_code, MK_ERR_NET);
    assert_int_equal(error_node, 1);
    mk_proxy_lock(proxy);
    fake.poll_error = 0;
    mk_proxy_unlock(proxy);
    push(write_cmd(0, 8, 0, 1, 0));
    mk_proxy_lock(proxy);
    mk_proxy_unlock(proxy);
    assert_int_equal(errors, 1);
}

/* Detach with puts in flight and commands in the ring: no callback, no done word afterwards; another communicator
 * goes on, and a new one gets another number. */
static void detach_in_flight(void **state)
{
    (void)state;
    uint16_t second;
    start(4);
    assert_int_equal(mk_proxy_attach(proxy, &desc, &second), 0);
    assert_int_not_equal(second, id);
    mk_proxy_detach(proxy, second);
    mk_link_on_done(A->l, NULL, NULL);
    mk_proxy_detach(proxy, id);
    assert_int_equal(mk_proxy_attach(proxy, &desc, &id), 0);
    mk_proxy_lock(proxy);
    fake.hold = true;
    mk_proxy_unlock(proxy);
    push(write_cmd(0, 8, 0, 1, 0));
    const uint64_t end = mk_time_ns() + 20000000000ull;
    while (fake_held(A->l->conn) < 1)
        assert_true(mk_time_ns() < end);
    mk_proxy_lock(proxy);
    push(write_cmd(0, 8, 0, 2, 0));
    const uint16_t old = id;
    mk_proxy_detach(proxy, id);
    mk_proxy_detach(proxy, id); /* again: nothing happens */
    assert_int_equal(mk_proxy_attach(proxy, &desc, &id), 0);
    assert_int_not_equal(id, old);
    fake.hold = false;
    mk_proxy_unlock(proxy);
    fake_release_all(A->l->conn);
    push(
        write_cmd(0, 8, 0, 3, 1)); /* the late completion of the first put must not be taken for this one's */
    wait_word(&done[1], 3);
    push(write_cmd(0, 8, 0, 4, 2));
    wait_word(&done[2], 4);
    assert_int_equal(done[0], 0);
    assert_int_equal(errors, 0);
}

/* Links and memory come and go under the lock while commands flow. */
static void set_up_under_lock(void **state)
{
    (void)state;
    start(4);
    for (uint64_t v = 1; v <= 50; v++) {
        struct mk_net_addr addr;
        struct mk_link *l;
        struct mk_mr *mr;
        push(write_cmd(0, 8, 0, v, 0));
        mk_proxy_lock(proxy);
        assert_int_equal(mk_link_open(mk_proxy_engine(proxy), "another", &addr, &l), 0);
        assert_int_equal(mk_engine_reg(mk_proxy_engine(proxy), done, sizeof(done), NULL, &mr), 0);
        mk_proxy_unlock(proxy);
        mk_proxy_lock(proxy);
        mk_link_close(l);
        mk_mr_dereg(mr);
        mk_proxy_unlock(proxy);
        wait_word(&B->flags[0], v);
    }
    wait_word(&done[0], 50);
}

/* An idle proxy sleeps, and a kick wakes it. */
static void sleeps_and_wakes(void **state)
{
    (void)state;
    struct mk_proxy_stats t;
    start(4);
    for (uint64_t v = 1; v <= 20; v++) {
        const struct timespec pause = {0, 5000000};
        nanosleep(&pause, NULL);
        push(write_cmd(0, 8, 0, v, 0));
        wait_word(&done[0], v);
    }
    mk_proxy_get_stats(proxy, &t);
    assert_true(t.sleeps > 0);
    assert_true(fake.wakes > 0);
    wait_word(&B->flags[0], 20);
}

static uint64_t long_sleeps(struct mk_proxy_stats *t)
{
    mk_proxy_get_stats(proxy, t);
    return t->long_sleeps;
}

/* Where producers do not kick, the short sleeps end after some thousand; a kick, or a command that is found, brings them back. */
static void sleeps_longer_when_unused(void **state)
{
    (void)state;
    const struct timespec pause = {0, 1000000};
    const uint64_t end = mk_time_ns() + 60000000000ull;
    struct mk_proxy_stats t, then;
    start(4);
    assert_int_equal(long_sleeps(&then), 0);
    mk_proxy_unrung(proxy);
    for (uint64_t v = 1; v <= 3; v++) {
        while (long_sleeps(&t) == then.long_sleeps) {
            assert_true(mk_time_ns() < end);
            nanosleep(&pause, NULL);
        }
        assert_true(t.sleeps - then.sleeps > 4000); /* short ones first */
        if (v == 2)                                 /* a launch */
            mk_proxy_kick(proxy);
        else
            push(write_cmd(0, 8, 0, v, 0));
        if (v != 2)
            wait_word(&done[0], v);
        mk_proxy_get_stats(proxy, &then);
    }
}

static void bad_arguments(void **state)
{
    (void)state;
    struct mk_proxy *none = NULL;
    assert_int_equal(mk_proxy_start(&set, A->e, 2, &none), MK_ERR_INVALID);
    assert_null(none);
    start(3);
    desc.nnodes = 0;
    assert_int_equal(mk_proxy_attach(proxy, &desc, &id), MK_ERR_INVALID);
    mk_proxy_stop(NULL);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(writes_and_credits),      T(batching),         T(back_pressure),
        T(done_only_upwards),       T(nonsense),         T(nonsense_without_a_link),
        T(link_error_is_told_once), T(engine_error),     T(detach_in_flight),
        T(set_up_under_lock),       T(sleeps_and_wakes), T(sleeps_longer_when_unused),
        T(bad_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
