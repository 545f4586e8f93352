/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The engine over a fake transport: order, batches, both adapters, credits, errors, timeouts, pace, close. */
#include "mk/err.h"
#include "mk/param.h"
#include "net/adapter.h"
#include "tests/net/fake.h"
#include "tests/net/pair.h"
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

static struct mk_settings set;
static struct pair p;
static uint32_t steps[PAIR_NOTES];
static uint64_t firsts[PAIR_NOTES];

#define A (&p.s[0])
#define B (&p.s[1])

/* notes 0 .. 7: slots of a ring of 8; 8 .. 15: credits that start at 8 */
static int setup(void **state)
{
    (void)state;
    fake_reset();
    if (mk_settings_load(&set, false))
        return -1;
    for (uint32_t k = 0; k < PAIR_NOTES; k++) {
        steps[k] = k < 8 ? 8 : 1;
        firsts[k] = k < 8 ? k + 1 - 8ull : 8;
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    pair_close(&p);
    return 0;
}

static void start(const char *adapter)
{
    assert_int_equal(pair_open(&p, &set, &fake_ops, adapter, steps, firsts), 0);
}

static void fill(struct side *s, uint64_t off, uint32_t len, uint8_t with)
{
    memset((char *)s->mem.addr + off, with, len);
}

/* 100 rounds through the ring: every flag names a payload that is there. */
static void rounds(const char *adapter)
{
    start(adapter);
    for (uint64_t pos = 0; pos < 100; pos++) {
        const uint32_t slot = pos % 8;
        fill(A, slot * 64, 64, (uint8_t)(pos + 1));
        const struct mk_put put = pair_put(A, slot, slot * 64, 64, (uint32_t)(pos / 8 + 1), pos + 1);
        assert_int_equal(mk_link_put(A->l, &put, 1), 1);
        pair_run(&p);
        assert_int_equal(B->flags[slot], pos + 1);
        assert_int_equal(((uint8_t *)B->mem.addr)[slot * 64 + 63], (uint8_t)(pos + 1));
        assert_int_equal(A->ndone, pos + 1);
        assert_int_equal(A->ids[pos], pos + 1);
    }
    assert_int_equal(A->nbad, 0);
    assert_int_equal(mk_link_pending(A->l), 0);
    assert_int_equal(B->bell.seq, 100);
}

static void immediate_rounds(void **state)
{
    (void)state;
    rounds("immediate");
    assert_int_equal(fake.imms, 100);
    assert_int_equal(fake.inlines, 0);
}

static void flag_rounds(void **state)
{
    (void)state;
    rounds("flag");
    assert_int_equal(fake.imms, 0);
    assert_int_equal(fake.inlines, 100);
}

static void adapter_choice(void **state)
{
    (void)state;
    struct mk_engine *e;
    assert_int_equal(mk_engine_open_with(&set, &fake_ops, NULL, &e), 0);
    assert_string_equal(mk_engine_caps(e)->adapter, "immediate");
    mk_engine_close(e);
    fake.ordered = true;
    assert_int_equal(mk_engine_open_with(&set, &fake_ops, NULL, &e), 0);
    assert_string_equal(mk_engine_caps(e)->adapter, "flag");
    mk_engine_close(e);
    fake.ordered = false;
    fake.imm_bits = 0;
    assert_int_equal(mk_engine_open_with(&set, &fake_ops, NULL, &e), MK_ERR_UNSUPPORTED);
    assert_non_null(strstr(mk_last_error(), "MK_ORDERED=1"));
    set.ordered = true;
    assert_int_equal(mk_engine_open_with(&set, &fake_ops, NULL, &e), 0);
    assert_string_equal(mk_engine_caps(e)->adapter, "flag");
    mk_engine_close(e);
    strcpy(set.net, "pigeon");
    assert_int_equal(mk_engine_open(&set, &e), MK_ERR_UNSUPPORTED);
    assert_non_null(strstr(mk_last_error(), "MK_NET=pigeon"));
    /* auto: what was tried, what to install, and never loop unasked */
    strcpy(set.net, "auto");
    strcpy(set.ofi_provider, "no_such_provider");
    const int ret = mk_engine_open(&set, &e);
    if (!ret) { /* this machine has an RDMA device */
        assert_string_equal(mk_engine_caps(e)->transport, "verbs");
        mk_engine_close(e);
        return;
    }
    assert_int_equal(ret, MK_ERR_UNSUPPORTED);
    assert_non_null(strstr(mk_last_error(), "ofi: "));
    assert_non_null(strstr(mk_last_error(), "libfabric1"));
    assert_non_null(strstr(mk_last_error(), "MK_NET=loop"));
    assert_int_equal(fake.closes, 4);
}

/* Queued puts leave in order, at most MK_BATCH in one post, each with its own completion. */
static void batches(void **state)
{
    (void)state;
    struct mk_put puts[20];
    start("immediate");
    fake.room = 0;
    for (int i = 0; i < 20; i++)
        puts[i] = pair_put(A, 0, 64 * (uint64_t)i, 8, 1, (uint64_t)i);
    assert_int_equal(mk_link_put(A->l, puts, 20), 20);
    assert_int_equal(fake.posts, 0);
    assert_int_equal(mk_link_pending(A->l), 20);
    fake.room = -1;
    pair_run(&p);
    assert_int_equal(fake.posts, 3);
    assert_int_equal(fake.sizes[0], 8);
    assert_int_equal(fake.sizes[1], 8);
    assert_int_equal(fake.sizes[2], 4);
    assert_int_equal(A->ndone, 20);
    for (int i = 0; i < 20; i++)
        assert_int_equal(A->ids[i], i);
    assert_int_equal(A->e->n.fill[8], 2);
    assert_int_equal(A->e->n.fill[4], 1);
}

/* The transport takes one work request at a time: payload and flag write of a put are torn apart. */
static void torn_pairs(void **state)
{
    (void)state;
    struct mk_put puts[6];
    start("flag");
    fake.room = 1;
    for (uint32_t i = 0; i < 6; i++) {
        fill(A, i * 64, 64, (uint8_t)(i + 1));
        puts[i] = pair_put(A, i, i * 64, 64, 1, i + 1);
    }
    assert_int_equal(mk_link_put(A->l, puts, 6), 6);
    for (int k = 0; k < 12 && mk_link_pending(A->l); k++)
        mk_engine_progress(A->e);
    pair_run(&p);
    for (uint32_t i = 0; i < 6; i++)
        assert_int_equal(B->flags[i], i + 1);
    assert_int_equal(A->ndone, 6);
    assert_int_equal(fake.posts, 12);
    assert_int_equal(A->e->n.strays, 0);
}

/* Completions in any order: each put is reported once, the ring does not reuse a position early. */
static void completions_in_any_order(void **state)
{
    (void)state;
    struct mk_put puts[8];
    start("immediate");
    fake.hold = true;
    for (uint32_t i = 0; i < 8; i++)
        puts[i] = pair_put(A, i, i * 64, 64, 1, i + 1);
    assert_int_equal(mk_link_put(A->l, puts, 8), 8);
    assert_int_equal(fake_held(A->l->conn), 8);
    static const int order[8] = {3, 0, 5, 4, 0, 1, 1, 0};
    static const uint64_t want[8] = {4, 1, 8, 7, 2, 5, 6, 3};
    for (int i = 0; i < 8; i++) {
        fake_release(A->l->conn, order[i]);
        pair_run(&p);
        assert_int_equal(A->ndone, i + 1);
        assert_int_equal(A->ids[i], want[i]);
    }
    assert_int_equal(A->l->head, A->l->tail);
    for (uint32_t i = 0; i < 8; i++)
        assert_int_equal(B->flags[i], i + 1);
}

static void back_pressure(void **state)
{
    (void)state;
    start("immediate");
    fake.hold = true;
    uint32_t taken = 0;
    const struct mk_put put = pair_put(A, 0, 0, 8, 1, 1);
    while (taken < 2 * MK_LINK_RING && mk_link_put(A->l, &put, 1) == 1)
        taken++;
    assert_int_equal(taken, MK_LINK_RING);
    assert_int_equal(fake_held(A->l->conn), fake.depth);
    assert_int_equal(mk_link_put(A->l, &put, 1), 0);
    fake.hold = false;
    fake_release_all(A->l->conn);
    pair_run(&p);
    assert_int_equal(A->ndone, MK_LINK_RING);
    assert_int_equal(mk_link_put(A->l, &put, 1), 1);
}

static void kinds_of_puts(void **state)
{
    (void)state;
    struct mk_put put[3];
    start("immediate");
    put[0] = pair_put(A, 0, 0, 64, 1, 1);
    put[0].flags = MK_PUT_NO_NOTE | MK_PUT_DELIVERY;
    put[1] = pair_put(A, 1, 0, 0, 1, 2); /* notification alone */
    put[2] = pair_put(A, 2, 0, 0, 1, 3);
    put[2].flags = MK_PUT_NO_NOTE; /* nothing at all */
    fill(A, 0, 64, 7);
    assert_int_equal(mk_link_put(A->l, put, 3), 3);
    pair_run(&p);
    assert_int_equal(A->ndone, 3);
    assert_int_equal(B->flags[0], firsts[0]);
    assert_int_equal(B->flags[1], 2);
    assert_int_equal(B->flags[2], firsts[2]);
    assert_int_equal(((uint8_t *)B->mem.addr)[63], 7);
    assert_int_equal(fake.deliveries, 1);
}

static void bad_puts(void **state)
{
    (void)state;
    struct mk_put put[2];
    start("immediate");
    put[0] = pair_put(A, 0, 0, 8, 1, 1);
    put[1] = pair_put(A, PAIR_NOTES, 0, 8, 1, 1);
    assert_int_equal(mk_link_put(A->l, put, 2), 1);
    assert_int_equal(mk_link_put(A->l, put + 1, 1), MK_ERR_INVALID);
    put[1] = pair_put(A, 0, A->mem.size - 4, 8, 1, 1);
    assert_int_equal(mk_link_put(A->l, put + 1, 1), MK_ERR_INVALID);
    put[1] = pair_put(A, 0, 0, 8, 1, 1);
    put[1].remote_off = UINT64_MAX - 3;
    assert_int_equal(mk_link_put(A->l, put + 1, 1), MK_ERR_INVALID);
    put[1] = pair_put(A, 0, 0, 8, 1, 1);
    put[1].rmem = B->rmem;
    assert_int_equal(mk_link_put(A->l, put + 1, 1), MK_ERR_INVALID);
    put[1].mr = NULL;
    assert_int_equal(mk_link_put(A->l, put + 1, 1), MK_ERR_INVALID);
    pair_run(&p);
    assert_int_equal(A->ndone, 1);
    assert_int_equal(mk_link_error(A->l, NULL), 0);
}

static void credits_merge(void **state)
{
    (void)state;
    start("immediate");
    fake.hold = true;
    for (uint64_t v = 9; v <= 14; v++) {
        const struct mk_put c = pair_credit(8, v);
        assert_int_equal(mk_link_put(A->l, &c, 1), 1);
    }
    /* the first is in flight, the last waits, the four between were replaced and are done */
    assert_int_equal(fake_held(A->l->conn), 1);
    assert_int_equal(A->ndone, 4);
    assert_int_equal(A->e->n.credits_merged, 4);
    assert_int_equal(mk_link_pending(A->l), 2);
    fake_release(A->l->conn, 0);
    pair_run(&p);
    assert_int_equal(B->flags[8], 9);
    assert_int_equal(fake_held(A->l->conn), 1);
    fake_release(A->l->conn, 0);
    pair_run(&p);
    assert_int_equal(B->flags[8], 14);
    assert_int_equal(A->ndone, 6);
    assert_int_equal(fake.wides, 2);
    assert_int_equal(fake.deliveries, 2);
}

static void credits_wide(void **state)
{
    (void)state;
    static const uint64_t values[] = {9, 10, 25, 41, 42, 1ull << 40, (1ull << 40) + 15};
    start("immediate");
    for (int i = 0; i < 7; i++) {
        const struct mk_put c = pair_credit(9, values[i]);
        assert_int_equal(mk_link_put(A->l, &c, 1), 1);
        pair_run(&p);
        assert_int_equal(B->flags[9], values[i]);
    }
    assert_int_equal(fake.wides, 7);
    assert_int_equal(B->bell.seq, 7);
}

/* Whoever gives credits hears that they are written before the other side looks; then it finds all of them at once. However
 * far they jump, none may come out as more than was given. */
static void credits_seen_late(void **state)
{
    (void)state;
    static const uint64_t values[] = {9, 30, 33, 60, 61, 62, 100, 115, 131, 1000, 1001};
    const int n = (int)(sizeof(values) / sizeof(values[0]));
    for (int from = 0; from < n; from++)
        for (int to = from; to < n; to++) {
            start("immediate");
            for (int i = 0; i <= to; i++) {
                const struct mk_put c = pair_credit(9, values[i]);
                assert_int_equal(mk_link_put(A->l, &c, 1), 1);
                while (mk_link_pending(A->l))
                    mk_engine_progress(A->e);
                if (i < from) /* the other side looks at these in time */
                    pair_run(&p);
            }
            pair_run(&p);
            assert_int_equal(B->flags[9], values[to]);
            pair_close(&p);
        }
    start("immediate");
}

/* Two who consume at once may tell the later position first. */
static void credits_out_of_order(void **state)
{
    (void)state;
    static const uint64_t values[] = {20, 18, 19, 21, 40, 25, 30, 41, 41, 40};
    static const char *const adapters[] = {"immediate", "flag"};
    for (int a = 0; a < 2; a++) {
        uint64_t highest = 0;
        start(adapters[a]);
        for (int i = 0; i < 10; i++) {
            const struct mk_put c = pair_credit(9, values[i]);
            assert_int_equal(mk_link_put(A->l, &c, 1), 1);
            pair_run(&p);
            highest = values[i] > highest ? values[i] : highest;
            assert_int_equal(B->flags[9], highest);
            assert_int_equal(A->ndone, i + 1);
        }
        if (!a)
            pair_close(&p);
    }
}

static void credits_by_flag(void **state)
{
    (void)state;
    start("flag");
    for (uint64_t v = 9; v < 1000; v += v / 2) {
        const struct mk_put c = pair_credit(9, v);
        assert_int_equal(mk_link_put(A->l, &c, 1), 1);
        pair_run(&p);
        assert_int_equal(B->flags[9], v);
    }
    assert_int_equal(fake.imms, 0);
}

/* The same immediate twice changes nothing; one that belongs to no table is counted. */
static void strange_immediates(void **state)
{
    (void)state;
    start("immediate");
    const struct mk_put put = pair_put(A, 3, 0, 8, 1, 4);
    assert_int_equal(mk_link_put(A->l, &put, 1), 1);
    pair_run(&p);
    assert_int_equal(B->flags[3], 4);
    B->e->adapter->remote(B->e, ((B->base + 3) << 4) | 1);
    assert_int_equal(B->flags[3], 4);
    assert_int_equal(B->e->n.strays, 0);
    B->e->adapter->remote(B->e, 0xfffffff5u);
    B->e->adapter->remote(B->e, (B->base + 2 * PAIR_NOTES) << 4);
    assert_int_equal(B->e->n.strays, 2);
}

/* Tables of two communicators on one engine: own indexes, own bells; closing one leaves the other. */
static void two_tables(void **state)
{
    (void)state;
    start("immediate");
    uint64_t words[2 * PAIR_NOTES];
    struct mk_bell bell = {0, 0};
    struct mk_notes *second;
    uint32_t base, again;
    memset(words, 0, sizeof(words));
    const struct mk_notes_desc d = {words, words + PAIR_NOTES, B->step, PAIR_NOTES, &bell};
    assert_int_equal(mk_notes_open(B->e, &d, &base, &second), 0);
    assert_true(base >= B->base + 2 * PAIR_NOTES);
    B->e->adapter->remote(B->e, ((base + 2) << 4) | 3);
    mk_engine_progress(B->e);
    assert_int_equal(words[2], 24);
    assert_int_equal(bell.seq, 1);
    const struct mk_put put = pair_put(A, 2, 0, 8, 1, 3);
    assert_int_equal(mk_link_put(A->l, &put, 1), 1);
    pair_run(&p);
    assert_int_equal(B->flags[2], 3);
    assert_int_equal(words[2], 24);
    mk_notes_close(second);
    B->e->adapter->remote(B->e, ((base + 2) << 4) | 4);
    assert_int_equal(B->e->n.strays, 1);
    assert_int_equal(mk_notes_open(B->e, &d, &again, &second), 0);
    assert_true(again >= base + 2 * PAIR_NOTES); /* not the indexes that were just given up */
    B->e->next_base = (1u << MK_NOTE_BITS) - 2 * PAIR_NOTES + 1;
    mk_notes_close(second);
    assert_int_equal(mk_notes_open(B->e, &d, &again, &second), 0);
    assert_int_equal(again, 2 * PAIR_NOTES); /* went round, past the table that is still open at 0 */
}

static void link_error(void **state)
{
    (void)state;
    char text[200];
    struct mk_put puts[4];
    start("immediate");
    fake.hold = true;
    for (uint32_t i = 0; i < 3; i++)
        puts[i] = pair_put(A, i, i * 64, 64, 1, i + 1);
    puts[3] = pair_credit(8, 9);
    assert_int_equal(mk_link_put(A->l, puts, 4), 4);
    fake.fail = MK_ERR_NET;
    fake_release(A->l->conn, 1);
    pair_run(&p);
    assert_int_equal(A->ndone, 4);
    assert_int_equal(A->nbad, 4);
    assert_int_equal(A->last_status, MK_ERR_NET);
    assert_int_equal(mk_link_pending(A->l), 0);
    assert_int_equal(mk_link_error(A->l, text), MK_ERR_NET);
    assert_non_null(strstr(text, "the peer"));
    assert_non_null(strstr(text, "made to fail"));
    assert_int_equal(mk_link_put(A->l, puts, 1), MK_ERR_NET);
    /* late completions of the dead link are ignored; the engine goes on for others */
    fake.fail = 0;
    fake_release_all(A->l->conn);
    pair_run(&p);
    assert_int_equal(A->ndone, 4);
    const struct mk_put back = pair_put(B, 0, 0, 8, 1, 1);
    fake.hold = false;
    assert_int_equal(mk_link_put(B->l, &back, 1), 1);
    pair_run(&p);
    assert_int_equal(A->flags[0], 1);
    assert_int_equal(A->e->n.errors, 1);
}

static void post_and_engine_errors(void **state)
{
    (void)state;
    char text[200];
    start("immediate");
    const struct mk_put put = pair_put(A, 0, 0, 8, 1, 1);
    fake.post_error = MK_ERR_PEER;
    assert_int_equal(mk_link_put(A->l, &put, 1), 1); /* taken: done says what became of it */
    assert_int_equal(A->nbad, 1);
    assert_int_equal(A->last_status, MK_ERR_PEER);
    assert_int_equal(mk_link_put(A->l, &put, 1), MK_ERR_PEER);
    assert_int_equal(A->ndone, 1);
    fake.post_error = 0;
    fake.poll_error = MK_ERR_NET;
    assert_int_equal(mk_engine_progress(B->e), MK_ERR_NET);
    assert_int_equal(mk_link_error(B->l, text), MK_ERR_NET);
    assert_non_null(strstr(text, "the peer"));
    fake.poll_error = 0;
    assert_int_equal(mk_engine_progress(B->e), MK_ERR_NET); /* it stays */
}

/* Completions never come: TIMEOUT that names the peer, after MK_TIMEOUT, not before. */
static void lost(const struct mk_put *put, const char *word)
{
    char text[200];
    fake.lose = true;
    const uint64_t begin = mk_time_ns();
    assert_int_equal(mk_link_put(A->l, put, 1), 1);
    while (!mk_link_error(A->l, text) && mk_time_ns() - begin < 20000000000ull) {
        mk_engine_progress(A->e);
        mk_engine_wait(A->e, 1000000);
    }
    assert_int_equal(mk_link_error(A->l, text), MK_ERR_TIMEOUT);
    assert_true(mk_time_ns() - begin >= 150000000u);
    assert_non_null(strstr(text, "the peer"));
    assert_non_null(strstr(text, word));
    assert_int_equal(A->nbad, 1);
}

static void timeout_of_a_put(void **state)
{
    (void)state;
    set.timeout = 0.15;
    start("immediate");
    const struct mk_put put = pair_put(A, 5, 0, 8, 1, 1);
    lost(&put, "notification 5");
}

static void timeout_of_a_credit(void **state)
{
    (void)state;
    set.timeout = 0.15;
    start("immediate");
    const struct mk_put put = pair_credit(9, 12);
    lost(&put, "a credit (notification 9, value 12)");
}

static void timeout_without_room(void **state)
{
    (void)state;
    set.timeout = 0.15;
    start("immediate");
    fake.room = 0;
    const struct mk_put put = pair_put(A, 5, 0, 8, 1, 1);
    lost(&put, "no room");
}

/* A caller that stays away longer than the timeout does not make finished puts late. */
static void absence_is_no_timeout(void **state)
{
    (void)state;
    set.timeout = 0.1;
    start("immediate");
    fake.hold = true;
    const struct mk_put put = pair_put(A, 0, 0, 8, 1, 1);
    assert_int_equal(mk_link_put(A->l, &put, 1), 1);
    const struct timespec away = {0, 300000000};
    nanosleep(&away, NULL);
    fake.hold = false;
    fake_release_all(A->l->conn);
    A->e->polls = 1000; /* reads the clock at once */
    pair_run(&p);
    assert_int_equal(A->ndone, 1);
    assert_int_equal(A->nbad, 0);
}

static void close_in_flight(void **state)
{
    (void)state;
    start("immediate");
    fake.hold = true;
    struct mk_put puts[3] = {pair_put(A, 0, 0, 8, 1, 1), pair_put(A, 1, 8, 8, 1, 2), pair_credit(8, 9)};
    assert_int_equal(mk_link_put(A->l, puts, 3), 3);
    mk_link_close(A->l);
    assert_int_equal(A->ndone, 3);
    assert_int_equal(A->nbad, 3);
    assert_int_equal(A->last_status, MK_ERR_ABORTED);
    assert_int_equal(mk_engine_progress(A->e), 0);
}

static void close_other(void *ctx, struct mk_link *l, uint64_t id, int status)
{
    (void)ctx;
    (void)id;
    (void)status;
    mk_link_close(l);
}

/* A done function may put on the link, and may close it. */
static void close_inside_done(void **state)
{
    (void)state;
    start("immediate");
    fake.hold = true;
    struct mk_put puts[2] = {pair_put(A, 0, 0, 8, 1, 1), pair_put(A, 1, 8, 8, 1, 2)};
    assert_int_equal(mk_link_put(A->l, puts, 2), 2);
    mk_link_on_done(A->l, close_other, NULL);
    fake_release_all(A->l->conn);
    mk_engine_progress(A->e);
    assert_null(A->e->links);
}

static int chain;
static void put_again(void *ctx, struct mk_link *l, uint64_t id, int status)
{
    struct mk_put put = pair_put(A, (uint32_t)(id % 8), 0, 8, (uint32_t)(id / 8 + 1), id + 1);
    (void)ctx;
    assert_int_equal(status, 0);
    if (++chain < 50)
        assert_int_equal(mk_link_put(l, &put, 1), 1);
}

static void put_inside_done(void **state)
{
    (void)state;
    start("immediate");
    chain = 0;
    mk_link_on_done(A->l, put_again, NULL);
    const struct mk_put put = pair_put(A, 0, 0, 8, 1, 1);
    assert_int_equal(mk_link_put(A->l, &put, 1), 1);
    pair_run(&p);
    assert_int_equal(chain, 50);
    assert_int_equal(B->flags[1], 50);
}

/* 40 puts of 20 kB at 0.4 Gbit/s: 16 ms. Never faster; nothing spins: the wait is told when the next is due. */
static void pace(void **state)
{
    (void)state;
    set.loop_gbps = 0.4;
    start("immediate");
    struct mk_put puts[40];
    for (uint32_t i = 0; i < 40; i++)
        puts[i] = pair_put(A, 0, 0, 20000, 1, i);
    const struct mk_put credit = pair_credit(8, 9);
    const uint64_t begin = mk_time_ns();
    assert_int_equal(mk_link_put(A->l, puts, 40), 40);
    assert_int_equal(mk_link_put(A->l, &credit, 1), 1);
    pair_run(&p);
    assert_int_equal(B->flags[8], 9); /* a credit overtakes */
    int asleep = 0;
    while (mk_link_pending(A->l)) {
        if (mk_engine_progress(A->e) == 0) {
            mk_engine_wait(A->e, 1000000000u);
            assert_true(fake.last_wait_ns <= 410000);
            asleep++;
        }
        const uint64_t now = mk_time_ns();
        assert_true((double)A->e->n.bytes * 8 <= 0.4 * (double)(now - begin));
        assert_true(now - begin < 20000000000ull);
    }
    assert_true(asleep > 0);
    assert_int_equal(A->ndone, 41);
    assert_true(mk_time_ns() - begin >= 16000000u);
}

/* A network that cannot sleep: after some futile waits the engine naps by itself, until something happens. */
static void sleepless_network(void **state)
{
    (void)state;
    start("immediate");
    fake.sleepless = true;
    for (int i = 0; i < 50; i++) {
        mk_engine_progress(B->e);
        mk_engine_wait(B->e, 1000000);
    }
    assert_in_range(fake.waits, 8, 9);
    mk_engine_wake(B->e);
    mk_engine_wait(B->e, 60000000000ull); /* ended by the wake before, and short in any case */
    const struct mk_put put = pair_put(A, 0, 0, 8, 1, 1);
    assert_int_equal(mk_link_put(A->l, &put, 1), 1);
    assert_int_equal(mk_engine_progress(B->e), 1);
    mk_engine_wait(B->e, 1000000);
    assert_in_range(fake.waits, 9, 10); /* asks the network again */
}

/* The schedule itself: exact over many puts, whatever the wake-ups. */
static void pace_schedule(void **state)
{
    (void)state;
    struct mk_pace pace;
    uint64_t now = 1000000, due = 0;
    mk_pace_init(&pace, 3.0, now);
    for (int i = 0; i < 30000; i++)
        due = mk_pace_take(&pace, 1000, now); /* 2666.67 ns each */
    assert_in_range(due, now + 79999990u, now + 80000010u);
    /* asked again 10 us after a put that left 60 us late: starts where the link became free */
    now = due + 60000;
    mk_pace_left(&pace, due, now);
    assert_in_range(mk_pace_take(&pace, 30000, now + 10000), due + 90000, due + 90002);
    /* after a pause: from now on */
    mk_pace_left(&pace, due + 90000, due + 150000);
    assert_in_range(mk_pace_take(&pace, 30000, due + 1000000), due + 1080000, due + 1080002);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(immediate_rounds),
        T(flag_rounds),
        T(adapter_choice),
        T(batches),
        T(torn_pairs),
        T(back_pressure),
        T(kinds_of_puts),
        T(bad_puts),
        T(credits_merge),
        T(credits_wide),
        T(credits_seen_late),
        T(credits_out_of_order),
        T(credits_by_flag),
        T(strange_immediates),
        T(two_tables),
        T(link_error),
        T(post_and_engine_errors),
        T(timeout_of_a_put),
        T(timeout_of_a_credit),
        T(timeout_without_room),
        T(absence_is_no_timeout),
        T(close_in_flight),
        T(close_inside_done),
        T(put_inside_done),
        T(pace),
        T(pace_schedule),
        T(completions_in_any_order),
        T(sleepless_network),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
