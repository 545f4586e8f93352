/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Profiles (tuner/profile.c), with a clock that the test moves: counts and times, overlap, late and foreign handles, sampling,
 * and that it ends when it costs too much. The file is read by tests/cli/profile.c. */
#include "mk/err.h"
#include "mk/log.h"
#include "mk/profile.h"
#include "mk/tune.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#define FULL 0x46
#define LIGHT 0x06

static uint64_t time_now, per_look;
static uint64_t look(void)
{
    time_now += per_look;
    return time_now;
}

static char path[64];
static int mask;

static struct mk_profile *fresh(void)
{
    struct mk_profile *p;
    time_now = 1000000;
    per_look = 10;
    snprintf(path, sizeof(path), "profile_%d_%%p.json", (int)getpid());
    assert_int_equal(mk_profile_open(path, look, &p), 0);
    snprintf(path, sizeof(path), "profile_%d_%d.json", (int)getpid(), (int)getpid());
    return p;
}
static void done(struct mk_profile *p)
{
    mk_profile_close(p);
    unlink(path);
}

static struct mk_profile_comm *join(struct mk_profile *p, uint64_t id, int rank)
{
    const struct mk_profile_who who = {id, rank, 4, 2, "tp", 5, FULL, LIGHT};
    struct mk_profile_comm *c = mk_profile_join(p, &who, &mask);
    assert_non_null(c);
    return c;
}

static const struct mk_profile_event one = {.coll = MK_COLL_ALLREDUCE,
                                            .dtype = 9,
                                            .algo = MK_ALGO_RING,
                                            .proto = MK_PROTO_SIMPLE,
                                            .channels = 2,
                                            .exact = true,
                                            .count = 1000};

static void channel(struct mk_profile *p, uint64_t parent, int ch, uint64_t start, uint64_t stop)
{
    const uint64_t h = mk_profile_run(p, parent, ch, start);
    assert_true(h);
    mk_profile_timer(p, h, stop);
    mk_profile_stop(p, h);
}

/* A whole collective of two channels. */
static uint64_t whole(struct mk_profile *p, struct mk_profile_comm *c, uint64_t start, uint64_t stop)
{
    const uint64_t h = mk_profile_begin(p, c, &one);
    assert_true(h);
    mk_profile_stop(p, h);
    const uint64_t a = mk_profile_run(p, h, 3, start + 5), b = mk_profile_run(p, h, 63, start);
    mk_profile_timer(p, a, stop);
    mk_profile_stop(p, a);
    mk_profile_timer(p, b, stop - 3);
    mk_profile_stop(p, b);
    return h;
}

static void times(void **state)
{
    struct mk_profile *p = fresh();
    struct mk_profile_comm *c = join(p, 7, 1);
    struct mk_kind k;
    (void)state;
    assert_int_equal(mask, FULL);
    for (int i = 0; i < 10; i++)
        whole(p, c, 5000 + 10000 * (uint64_t)i, 6000 + 10000 * (uint64_t)i);
    assert_true(mk_profile_kind(p, c, 0, &k));
    assert_false(mk_profile_kind(p, c, 1, &k));
    assert_true(mk_profile_kind(p, c, 0, &k));
    assert_int_equal(k.calls, 10);
    assert_int_equal(k.timed, 10);
    assert_int_equal(k.unfinished, 0);
    assert_int_equal(k.run_ns, 10000);
    assert_int_equal(k.run_min, 1000);
    assert_int_equal(k.run_max, 1000);
    assert_int_equal(k.run_hist[mk_hist_bucket(1000)], 10);
    assert_int_equal(k.overlap_ns, 0);
    assert_int_equal(k.bytes_sum, 20000);
    assert_int_equal(k.size_class, 10);
    assert_true(k.gpu_clock);
    assert_int_equal(k.host_ns > 0, 1);
    done(p);
}

static void buckets(void **state)
{
    (void)state;
    for (uint64_t ns = 0; ns < 1ull << 40; ns = ns < 64 ? ns + 1 : ns + ns / 37) {
        const double v = mk_hist_value(mk_hist_bucket(ns));
        assert_true(v >= (double)ns * (1 - 1.0 / 31) - 0.5 && v <= (double)ns * (1 + 1.0 / 31) + 0.5);
        assert_true(mk_hist_bucket(ns + 1) >= mk_hist_bucket(ns));
    }
    assert_int_equal(mk_hist_bucket(UINT64_MAX), MK_HIST_BUCKETS - 1);
}

static uint64_t overlap_of(struct mk_profile *p, struct mk_profile_comm *c)
{
    struct mk_kind k;
    assert_true(mk_profile_kind(p, c, 0, &k));
    return k.overlap_ns;
}

static void overlapping(void **state)
{
    struct mk_profile *p = fresh();
    struct mk_profile_comm *a = join(p, 1, 0), *b = join(p, 2, 3), *other_gpu = join(p, 1, 1);
    (void)state;
    whole(p, a, 10000, 20000);
    whole(p, b, 15000, 30000); /* 5000 with a */
    assert_int_equal(overlap_of(p, a), 5000);
    assert_int_equal(overlap_of(p, b), 5000);
    whole(p, a, 26000, 32000); /* 4000 with b */
    assert_int_equal(overlap_of(p, a), 9000);
    assert_int_equal(overlap_of(p, b), 9000);
    whole(p, other_gpu, 10000, 11000); /* another rank of a: its clock is of another GPU */
    assert_int_equal(overlap_of(p, other_gpu), 0);
    assert_int_equal(overlap_of(p, a), 9000);
    whole(p, b, 16000, 31000); /* a's two and b's own first: 16000..30000 (and a: ..31000) are covered once */
    assert_int_equal(overlap_of(p, b), 9000 + 5000 + 1000 + 15000);
    done(p);
}

/* Captured: enqueued once, run three times. And the same where the number of channels is not known. */
static void replayed(void **state)
{
    struct mk_profile *p = fresh();
    struct mk_profile_comm *c = join(p, 1, 0);
    struct mk_profile_event loose = one;
    struct mk_kind k;
    (void)state;
    const uint64_t h = whole(p, c, 1000, 2000);
    for (uint64_t i = 1; i < 3; i++) {
        channel(p, h, 3, 1000 + i * 10000, 2500 + i * 10000);
        channel(p, h, 63, 1010 + i * 10000, 2000 + i * 10000);
    }
    assert_true(mk_profile_kind(p, c, 0, &k));
    assert_int_equal(k.calls, 1);
    assert_int_equal(k.timed, 3);
    assert_int_equal(k.run_ns, 1000 + 1500 + 1500);
    loose.exact = false;
    loose.channels = 9;
    const uint64_t g = mk_profile_begin(p, c, &loose);
    mk_profile_stop(p, g);
    for (uint64_t i = 0; i < 3; i++) {
        const uint64_t one_ch = mk_profile_run(p, g, 0, 1000 + i * 10000),
                       two = mk_profile_run(p, g, 1, 1001 + i * 10000);
        mk_profile_timer(p, one_ch, 1100 + i * 10000);
        mk_profile_stop(p, one_ch);
        mk_profile_timer(p, two, 1200 + i * 10000);
        mk_profile_stop(p, two);
    }
    mk_profile_leave(p, c);
    assert_true(mk_profile_kind(p, c, 1, &k));
    assert_int_equal(k.timed, 3);
    assert_int_equal(k.run_ns, 600);
    done(p);
}

/* Fewer channels than were promised; and parts that have no channel (a network's, by the host's clock), which come again
 * only after all have ended. */
static void fewer(void **state)
{
    struct mk_profile *p = fresh();
    const struct mk_profile_who who = {8, 0, 4, 2, NULL, 2, FULL, LIGHT};
    struct mk_profile_comm *c = join(p, 1, 0), *old = mk_profile_join(p, &who, &mask);
    struct mk_profile_event many = one, any = one;
    struct mk_kind k;
    (void)state;
    many.channels = 8;
    const uint64_t h = mk_profile_begin(p, c, &many);
    mk_profile_stop(p, h);
    for (uint64_t i = 0; i < 2; i++) /* one channel ends before the other begins to be seen */
        for (int ch = 0; ch < 2; ch++)
            channel(p, h, ch, 1000 + i * 5000, 2000 + i * 5000 + (uint64_t)ch);
    any.exact = false;
    const uint64_t g = mk_profile_begin(p, old, &any);
    mk_profile_stop(p, g);
    per_look = 100;
    uint64_t part[3];
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 3; i++)
            part[i] = mk_profile_run(p, g, -1, 77);
        for (int i = 0; i < 3; i++)
            mk_profile_stop(p, part[i]);
    }
    mk_profile_leave(p, c);
    mk_profile_leave(p, old);
    assert_true(mk_profile_kind(p, c, 0, &k));
    assert_int_equal(k.timed, 2);
    assert_int_equal(k.unfinished, 0);
    assert_int_equal(k.run_ns, 1001 + 1001);
    assert_true(mk_profile_kind(p, old, 0, &k));
    assert_int_equal(k.timed, 2);
    assert_false(k.gpu_clock);
    assert_true(k.run_min > 0 && k.run_max < 10000);
    done(p);
}

/* Handles that are late, foreign, of the wrong sort, or used twice. */
static void handles(void **state)
{
    struct mk_profile *p = fresh();
    struct mk_profile_comm *c = join(p, 1, 0);
    struct mk_kind k;
    (void)state;
    const uint64_t h = mk_profile_begin(p, c, &one);
    assert_int_equal(mk_profile_run(p, 0, 0, 5), 0);
    assert_int_equal(mk_profile_run(p, h ^ 1ull << 50, 0, 5), 0); /* another process's */
    assert_int_equal(mk_profile_run(p, h ^ 1ull << 21, 0, 5), 0); /* another collective's */
    assert_int_equal(mk_profile_run(p, UINT64_MAX, 0, 5), 0);
    const uint64_t ch = mk_profile_run(p, h, 0, 100);
    assert_int_equal(mk_profile_run(p, ch, 0, 5), 0); /* a channel is no parent */
    mk_profile_timer(p, h, 5);
    for (int i = 0; i < 3; i++) {
        mk_profile_timer(p, ch, 200);
        mk_profile_stop(p, ch); /* twice too often */
        mk_profile_stop(p, h);
    }
    channel(p, h, 1, 150, 250);
    assert_true(mk_profile_kind(p, c, 0, &k));
    assert_int_equal(k.timed, 1);
    assert_int_equal(k.run_ns, 150);
    const uint64_t open = mk_profile_begin(p, c, &one), ran = mk_profile_begin(p, c, &one);
    mk_profile_stop(p, ran);
    const uint64_t late = mk_profile_run(p, ran, 0, 100);
    mk_profile_leave(p, c); /* one not enqueued, one running */
    mk_profile_timer(p, late, 5000);
    mk_profile_stop(p, late);
    mk_profile_stop(p, open);
    assert_int_equal(mk_profile_run(p, ran, 0, 5), 0);
    assert_true(mk_profile_kind(p, c, 0, &k));
    assert_int_equal(k.calls, 3);
    assert_int_equal(k.timed, 1);
    assert_int_equal(k.unfinished, 2);
    done(p);
}

/* Timers that make no sense are no times; collectives that are pushed out are folded. */
static void nonsense(void **state)
{
    struct mk_profile *p = fresh();
    struct mk_profile_comm *c = join(p, 1, 0);
    struct mk_profile_event e = one;
    struct mk_kind k;
    (void)state;
    whole(p, c, 5000, 4000);
    uint64_t h = mk_profile_begin(p, c, &one);
    channel(p, h, 0, 0, 4000);
    channel(p, h, 1, 0, 4000);
    h = mk_profile_begin(p, c, &one);
    channel(p, h, 0, 10, UINT64_MAX);
    channel(p, h, 1, 10, 20);
    h = mk_profile_begin(p, c, &one); /* no timer at the end */
    mk_profile_stop(p, mk_profile_run(p, h, 0, 10));
    channel(p, h, 1, 10, 20);
    assert_true(mk_profile_kind(p, c, 0, &k));
    assert_int_equal(k.timed, 0);
    assert_int_equal(k.unfinished, 4);
    e.count = 1ull << 60;
    e.coll = MK_COLL_ALLGATHER;
    for (int i = 0; i < 3000; i++) /* none of them is stopped */
        assert_true(mk_profile_begin(p, c, &e));
    assert_true(mk_profile_kind(p, c, 1, &k));
    assert_int_equal(k.calls, 3000);
    assert_int_equal(k.unfinished, 3000 - 1024);
    assert_int_equal(k.bytes_max, 1ull << 63);
    assert_true(k.bytes_sum == UINT64_MAX);
    assert_int_equal(k.size_class, 63);
    done(p);
}

static void room(void **state)
{
    struct mk_profile *p = fresh();
    struct mk_profile_comm *c = join(p, 1, 0), *first = c;
    struct mk_profile_event e = one;
    struct mk_profile_count n;
    struct mk_kind k;
    (void)state;
    for (int i = 0; i < 200; i++) {
        e.channels = (uint8_t)i;
        mk_profile_stop(p, mk_profile_begin(p, c, &e));
    }
    assert_true(mk_profile_kind(p, c, 127, &k));
    assert_false(mk_profile_kind(p, c, 128, &k));
    mk_profile_api(c, false);
    mk_profile_api(c, true);
    mk_profile_api(c, true);
    e.coll = MK_COLL_RECV;
    mk_profile_begin(p, c, &e);
    assert_true(mk_profile_counted(p, 1, 0, &n));
    assert_int_equal(n.colls, 200);
    assert_int_equal(n.api, 1);
    assert_int_equal(n.api_p2p, 2);
    assert_int_equal(n.p2p, 1);
    assert_true(mk_profile_counted(p, 1, -1, &n));
    assert_false(mk_profile_counted(p, 1, 2, &n));
    mk_profile_leave(p, c);
    assert_false(mk_profile_counted(p, 1, 0, &n));
    for (int i = 0; i < 191; i++)
        assert_true(join(p, 100 + (uint64_t)i, 0) != first);
    assert_true(join(p, 500, 0) == first); /* the place of the one that left */
    assert_false(mk_profile_kind(p, first, 0, &k));
    assert_true(mk_profile_counted(p, 500, 0, &n));
    assert_int_equal(n.colls, 0);
    const struct mk_profile_who who = {9, 0, 4, 2, NULL, 5, FULL, LIGHT};
    int untouched = 77;
    assert_null(mk_profile_join(p, &who, &untouched));
    assert_int_equal(untouched, 77);
    assert_int_equal(mk_profile_begin(p, NULL, &one), 0);
    done(p);
}

static void sampling(void **state)
{
    struct mk_profile *p = fresh();
    struct mk_profile_comm *c = join(p, 1, 0);
    int second = 0, full = 0;
    (void)state;
    for (int i = 0; i < 256 + 64 * 10; i++) {
        full += mask == FULL;
        assert_true(mask == FULL || mask == LIGHT);
        mk_profile_stop(p, mk_profile_begin(p, c, &one));
    }
    assert_int_equal(full, 256 + 8 * 10);
    const struct mk_profile_who who = {3, 0, 4, 2, NULL, 5, FULL, LIGHT};
    struct mk_profile_comm *d = mk_profile_join(p, &who, &second);
    assert_int_equal(second, mask);
    mk_profile_leave(p, c);
    const int before = mask;
    for (int i = 0; i < 9; i++)
        mk_profile_begin(p, d, &one);
    assert_int_equal(second, LIGHT);
    assert_int_equal(mask, before); /* no longer ours */
    done(p);
}

static int lines;
static char last_line[200];
static void sink(enum mk_log_level level, const char *subsys, const char *text)
{
    (void)level, (void)subsys;
    lines++;
    snprintf(last_line, sizeof(last_line), "%s", text);
}

/* Collectives `apart` ns from each other, each look at the clock taking `each`. */
static void work(struct mk_profile *p, struct mk_profile_comm *c, int n, uint64_t apart, uint64_t each)
{
    for (int i = 0; i < n; i++) {
        per_look = each;
        if (mask & LIGHT)
            mk_profile_stop(p, mk_profile_begin(p, c, &one));
        time_now += apart;
    }
}

/* A communicator comes and goes: only then a line is logged. */
static void pass_by(struct mk_profile *p)
{
    const struct mk_profile_who who = {4, 0, 4, 2, NULL, 5, FULL, LIGHT};
    int other;
    mk_profile_leave(p, mk_profile_join(p, &who, &other));
}

static void cost(void **state)
{
    struct mk_profile *p = fresh();
    struct mk_profile_comm *c = join(p, 1, 0);
    (void)state;
    mk_log_set_sink(sink);
    work(p, c, 100000, 100000, 20);                          /* ten seconds; about 60 ns in 100 us: 0.06 % */
    assert_int_equal(mk_profile_level(p), MK_PROFILE_LIGHT); /* between two samples */
    pass_by(p);
    assert_int_equal(lines, 0);
    for (int i = 0; i < 5; i++) {
        work(p, c, 20, 10000, 1000000); /* 1 ms each: somebody else had the processor */
        work(p, c, 10000, 100000, 20);
    }
    pass_by(p);
    assert_int_equal(lines, 0);
    work(p, c, 10000, 100000, 400); /* one second at 1.2 % is one window at most */
    work(p, c, 40000, 100000, 20);
    pass_by(p);
    assert_int_equal(lines, 0);
    work(p, c, 30000, 100000, 400); /* three seconds: over in two in a row */
    pass_by(p);
    assert_int_equal(lines, 1);
    assert_non_null(strstr(last_line, "GPU's times"));
    assert_int_equal(mask, LIGHT);
    mk_profile_hold(p, 1);
    work(p, c, 40000, 100000, 400);
    pass_by(p);
    assert_int_equal(lines, 2);
    assert_non_null(strstr(last_line, "it has ended"));
    assert_int_equal(mask, LIGHT); /* somebody counts collectives */
    mk_profile_hold(p, -1);
    assert_int_equal(mask, 0);
    assert_int_equal(mk_profile_level(p), MK_PROFILE_OFF);
    int later = 5;
    const struct mk_profile_who who = {3, 0, 4, 2, NULL, 5, FULL, LIGHT};
    assert_non_null(mk_profile_join(p, &who, &later));
    assert_int_equal(later, 0);
    mk_log_set_sink(NULL);
    done(p);
}

static void names(void **state)
{
    struct mk_profile *p;
    (void)state;
    for (int list = 0; list < 4; list++)
        for (int i = 0; i < 7; i++)
            if (strcmp(mk_name_of((enum mk_names)list, i), "?"))
                assert_int_equal(mk_name_find((enum mk_names)list, mk_name_of((enum mk_names)list, i)), i);
    assert_int_equal(mk_name_find(MK_NAMES_DTYPE, "ncclBfloat16"), 9);
    assert_int_equal(mk_name_find(MK_NAMES_ALGO, "Ring"), MK_ALGO_RING);
    assert_int_equal(mk_name_find(MK_NAMES_PROTO, ""), MK_NAME_UNKNOWN);
    assert_int_equal(mk_name_find(MK_NAMES_PROTO, NULL), MK_NAME_UNKNOWN);
    assert_string_equal(mk_name_of(MK_NAMES_COLL, -1), "?");
    assert_int_equal(mk_coll_bytes(MK_COLL_ALLGATHER, 10, 4, 8), 320);
    assert_int_equal(mk_coll_bytes(MK_COLL_ALLREDUCE, 10, 4, 8), 40);
    assert_true(mk_coll_bytes(MK_COLL_ALLREDUCE, 1ull << 62, 8, 8) == UINT64_MAX);
    assert_true(mk_coll_bus_factor(MK_COLL_ALLREDUCE, 4) == 1.5 &&
                mk_coll_bus_factor(MK_COLL_REDUCE, 4) == 1);
    assert_true(mk_coll_bus_factor(MK_COLL_ALLGATHER, 4) == 0.75 &&
                mk_coll_bus_factor(MK_COLL_REDUCE, 0) == 0);
    assert_int_equal(mk_profile_open("a%xb", look, &p), MK_ERR_INVALID);
    assert_int_equal(mk_profile_open("a%", look, &p), MK_ERR_INVALID);
    char much[1100];
    memset(much, 'a', sizeof(much));
    much[sizeof(much) - 1] = 0;
    assert_int_equal(mk_profile_open(much, look, &p), MK_ERR_INVALID);
}

/* For a witness and for the tuner: no file, and no more than asked for. */
static void in_memory(void **state)
{
    struct mk_profile *p;
    struct mk_tune_sample s[4];
    struct mk_profile_count n;
    (void)state;
    time_now = 1000000;
    assert_int_equal(mk_profile_open("", look, &p), 0);
    struct mk_profile_comm *c = join(p, 7, 1);
    assert_ptr_equal(mk_profile_find(p, 7, 1), c);
    assert_ptr_equal(mk_profile_find(p, 7, -1), c);
    assert_null(mk_profile_find(p, 7, 0));
    for (int i = 0; i < 29; i++)
        whole(p, c, 100000u * (uint64_t)(i + 1), 100000u * (uint64_t)(i + 1) + 50000);
    assert_int_equal(mk_tune_samples(p, c, s, 4), 0); /* too few */
    for (int i = 29; i < 40; i++)
        whole(p, c, 100000u * (uint64_t)(i + 1), 100000u * (uint64_t)(i + 1) + 50000);
    assert_int_equal(mk_tune_samples(p, c, s, 4), 1);
    assert_int_equal(mk_tune_samples(p, c, s, 0), 0);
    assert_true(s[0].coll == MK_COLL_ALLREDUCE && s[0].n == 40 && s[0].median > 48.5 && s[0].median < 51.5);
    mk_profile_limit(p, MK_PROFILE_LIGHT);
    assert_int_equal(mask, LIGHT);
    whole(p, c, 1, 2);
    mk_profile_limit(p, MK_PROFILE_FULL);
    assert_int_equal(mask, LIGHT);
    assert_true(mk_profile_counted(p, 7, 1, &n) && n.colls == 41);
    mk_profile_leave(p, c);
    assert_int_equal(mk_profile_write(p) | mk_profile_end(p), 0);
    assert_null(mk_profile_find(p, 7, 1));
    mk_profile_close(p);
    assert_int_equal(mk_profile_requested(), MK_PROFILE_OFF);
    mk_profile_request(MK_PROFILE_LIGHT);
    mk_profile_request(MK_PROFILE_OFF); /* takes nothing back */
    assert_int_equal(mk_profile_requested(), MK_PROFILE_LIGHT);
}

static void unwritable(void **state)
{
    struct mk_profile *p;
    (void)state;
    mk_log_set_sink(sink);
    lines = 0;
    assert_int_equal(mk_profile_open("/no/such/folder/x", look, &p), 0);
    struct mk_profile_comm *c = join(p, 1, 0);
    mk_profile_leave(p, c);
    assert_int_equal(mk_profile_write(p), MK_ERR_SYSTEM);
    assert_int_equal(lines, 1);
    assert_non_null(strstr(last_line, "/no/such/folder/x"));
    mk_log_set_sink(NULL);
    mk_profile_close(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(times),     cmocka_unit_test(buckets), cmocka_unit_test(overlapping),
        cmocka_unit_test(replayed),  cmocka_unit_test(fewer),   cmocka_unit_test(handles),
        cmocka_unit_test(nonsense),  cmocka_unit_test(room),    cmocka_unit_test(sampling),
        cmocka_unit_test(cost),      cmocka_unit_test(names),   cmocka_unit_test(unwritable),
        cmocka_unit_test(in_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
