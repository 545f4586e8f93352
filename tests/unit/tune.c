/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The tuner (tuner/tune.c, model.c, budget.c): what a table makes of NCCL's costs, tables that make no sense, what becomes an
 * entry, the model, the budget. That ranks agree is tests/unit/tune_ranks.c. */
#include "mk/err.h"
#include "mk/log.h"
#include "mk/tune.h"
#include <float.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

enum { A = MK_ALGO_COUNT, P = MK_PROTO_COUNT };

static struct mk_tune_facts facts(void)
{
    struct mk_tune_facts f;
    memset(&f, 0, sizeof(f));
    f.comm_id = 1, f.nranks = 8, f.nnodes = 2, f.has_constants = true;
    for (int a = 0; a < A; a++)
        for (int p = 0; p < P; p++) {
            f.base_us[a][p] = 5;
            for (int h = 0; h < 3; h++)
                f.hop_us[h][a][p] = h == 2 ? 10 : 1;
        }
    f.ring_ll128 = 20, f.tree_ll128 = 10, f.tree_simple = 20;
    return f;
}

static uint64_t in_force;
static int verdict;
static int begin(void *ctx, uint64_t *id)
{
    (void)ctx;
    *id = in_force;
    return verdict;
}

static struct mk_tune *opened(enum mk_tune_mode mode)
{
    const struct mk_tune_turn turn = {begin, NULL};
    const struct mk_tune_facts f = facts();
    struct mk_tune *t;
    in_force = 0;
    verdict = 0;
    assert_int_equal(mk_tune_open(&f, mode, &t), 0);
    mk_tune_set_turn(t, &turn);
    return t;
}

static struct mk_tune_table one(uint8_t algo, uint8_t proto, uint8_t channels, uint16_t uses)
{
    struct mk_tune_table t;
    memset(&t, 0, sizeof(t));
    t.count = 1;
    const struct mk_tune_entry e = {MK_COLL_ALLREDUCE, 10, 30, algo, proto, channels, uses};
    t.entry[0] = e;
    return t;
}

static void costs(float c[A * P])
{
    for (int i = 0; i < A * P; i++)
        c[i] = i / P == MK_ALGO_RING || i / P == MK_ALGO_TREE ? 100 + (float)i : -1;
    c[MK_ALGO_TREE * P + MK_PROTO_SIMPLE] = 50; /* NCCL's */
}

static struct mk_tune_answer ask(struct mk_tune *t, uint64_t bytes, float c[A * P])
{
    const struct mk_tune_ask q = {MK_COLL_ALLREDUCE, bytes, c, A, P};
    struct mk_tune_answer a;
    mk_tune_next(t, &q, &a);
    return a;
}

static bool nothing(const struct mk_tune_answer *a)
{
    return a->algo == -1 && a->proto == -1 && !a->channels;
}

static void applies(void **state)
{
    struct mk_tune *t = opened(MK_TUNE_ON);
    const struct mk_tune_table ring = one(MK_ALGO_RING, MK_PROTO_LL128, 8, 0), few = one(255, 255, 4, 2);
    float c[A * P], before[A * P];
    (void)state;
    costs(before);
    costs(c);
    struct mk_tune_answer a = ask(t, 1 << 20, c);
    assert_true(nothing(&a) && !a.id && !memcmp(c, before, sizeof(c)));
    const uint64_t id = mk_tune_offer(t, &ring);
    assert_true(id && mk_tune_has(t, id) && mk_tune_has(t, 0) && !mk_tune_has(t, id + 2));
    a = ask(t, 1 << 20, c); /* offered is not agreed */
    assert_true(nothing(&a) && !memcmp(c, before, sizeof(c)));
    in_force = id;
    a = ask(t, 1 << 20, c);
    assert_int_equal(a.algo, MK_ALGO_RING);
    assert_int_equal(a.proto, MK_PROTO_LL128);
    assert_int_equal(a.channels, 8);
    assert_true(a.applies && a.id == id);
    for (int i = 0; i < A * P; i++)
        assert_true(i == MK_ALGO_RING * P + MK_PROTO_LL128 ? !(c[i] > 0) && !(c[i] < 0)
                                                           : !memcmp(&c[i], &before[i], 4));
    costs(c);
    a = ask(t, 1 << 9, c); /* another size class, another collective */
    assert_true(nothing(&a));
    const struct mk_tune_ask other = {MK_COLL_ALLGATHER, 1 << 20, c, A, P}, wild = {77, 1 << 20, c, A, P},
                             wilder = {-3, 1 << 20, c, A, P};
    mk_tune_next(t, &other, &a);
    assert_true(nothing(&a));
    mk_tune_next(t, &wild, &a);
    assert_true(nothing(&a));
    mk_tune_next(t, &wilder, &a);
    assert_true(nothing(&a) && !memcmp(c, before, sizeof(c)));
    const uint64_t trial = in_force = mk_tune_offer(t, &few); /* of two calls */
    for (int i = 0; i < 4; i++) {
        a = ask(t, 1 << 20, c);
        assert_int_equal(a.algo, -1);
        assert_int_equal(a.channels, i < 2 ? 4 : 0);
    }
    verdict = MK_ERR_PEER; /* what was in force stays, whatever is said */
    in_force = id;
    a = ask(t, 1 << 20, c);
    assert_true(nothing(&a) && a.id == trial);
    mk_tune_close(t);
    mk_tune_close(NULL);
}

static void observes(void **state)
{
    struct mk_tune *t = opened(MK_TUNE_OBSERVE), *u = opened(MK_TUNE_ON);
    const struct mk_tune_table ring = one(MK_ALGO_RING, MK_PROTO_LL128, 8, 0);
    float c[A * P], before[A * P];
    (void)state;
    costs(before);
    costs(c);
    in_force = mk_tune_offer(t, &ring);
    assert_true(in_force != mk_tune_offer(u, &ring)); /* ranks of two modes cannot agree */
    const struct mk_tune_answer a = ask(t, 1 << 20, c);
    assert_int_equal(a.algo, MK_ALGO_RING);
    assert_false(a.applies);
    assert_memory_equal(c, before, sizeof(c));
    mk_tune_close(t);
    mk_tune_close(u);
}

/* Costs that make no sense, and cells that must not be taken: NCCL's choice stands, and no cell is touched. */
static void left_alone(void **state)
{
    struct mk_tune *t = opened(MK_TUNE_ON);
    const struct mk_tune_table ring = one(MK_ALGO_RING, MK_PROTO_LL128, 8, 0);
    const float special[] = {-1, NAN, INFINITY, -INFINITY, -0.5f, FLT_MAX};
    const int ours = MK_ALGO_RING * P + MK_PROTO_LL128, theirs = MK_ALGO_TREE * P + MK_PROTO_SIMPLE;
    float c[A * P], before[A * P];
    (void)state;
    in_force = mk_tune_offer(t, &ring);
    for (int what = 0; what < 9; what++) {
        costs(c);
        if (what < 6)
            for (int i = 0; i < A * P; i++)
                c[i] = special[what]; /* FLT_MAX, INFINITY: all the same, so not clear what NCCL takes */
        else if (what == 6)
            c[ours] = -1;
        else if (what == 7)
            c[theirs] = 0; /* forced by somebody */
        else
            c[0] = NAN;
        memcpy(before, c, sizeof(c));
        struct mk_tune_answer a = ask(t, 1 << 20, c);
        assert_true(nothing(&a));
        assert_memory_equal(c, before, sizeof(c));
    }
    costs(c);
    const struct mk_tune_ask small = {MK_COLL_ALLREDUCE, 1 << 20, c, 1, 3},
                             none = {MK_COLL_ALLREDUCE, 1 << 20, NULL, 7, 3},
                             empty = {MK_COLL_ALLREDUCE, 1 << 20, c, 0, 0},
                             minus = {MK_COLL_ALLREDUCE, 1 << 20, c, -7, -3};
    const struct mk_tune_ask *const odd[] = {&small, &none, &empty, &minus};
    for (int i = 0; i < 4; i++) {
        struct mk_tune_answer a;
        memcpy(before, c, sizeof(c));
        mk_tune_next(t, odd[i], &a);
        assert_true(nothing(&a) && !memcmp(c, before, sizeof(c)));
    }
    mk_tune_close(t);
}

static void caps(void **state)
{
    struct mk_tune *t = opened(MK_TUNE_ON);
    struct mk_tune_table cap = one(255, 255, 8, 0);
    float c[A * P];
    (void)state;
    cap.cap = 16;
    in_force = mk_tune_offer(t, &cap);
    costs(c);
    assert_int_equal(ask(t, 1 << 20, c).channels, 8);     /* of the entry */
    assert_int_equal(ask(t, 1ull << 40, c).channels, 16); /* no entry */
    assert_int_equal(ask(t, UINT64_MAX, c).channels, 16);
    assert_int_equal(ask(t, 200 << 10, c).channels, 3); /* 64 KiB a channel */
    assert_int_equal(ask(t, 60 << 10, c).channels, 8);
    assert_int_equal(ask(t, 100, c).channels, 0);
    assert_int_equal(ask(t, 0, c).channels, 0);
    c[MK_ALGO_NVLS * P + MK_PROTO_SIMPLE] = 1; /* NCCL takes what has channels of its own kind */
    assert_int_equal(ask(t, 1 << 20, c).channels, 0);
    mk_tune_close(t);
    assert_int_equal(mk_budget_channels(132, 0, 16), 0);
    assert_int_equal(mk_budget_channels(132, 16, 16), 16);
    assert_int_equal(mk_budget_channels(132, 24, 16), 9);
    assert_int_equal(mk_budget_channels(132, 33, 16), 2);
    assert_int_equal(mk_budget_channels(132, 200, 0), 2);
    assert_int_equal(mk_budget_channels(4000, 1, 0), 64);
    for (uint32_t r = 1; r < 60; r++) /* shrinks as more is fused */
        assert_true(mk_budget_channels(132, r + 1, 32) <= mk_budget_channels(132, r, 32));
    assert_int_equal(mk_budget_fused(132, 32), 100);
    assert_int_equal(mk_budget_fused(16, 32), 0);
    assert_int_equal(mk_budget_set(5, 16) | mk_budget_set(6, 8) | mk_budget_set(5, 12), 0);
    assert_int_equal(mk_budget_get(), 20);
    assert_int_equal(mk_budget_set(5, 0) | mk_budget_set(6, 0) | mk_budget_set(7, 0), 0);
    assert_int_equal(mk_budget_get(), 0);
    for (uint64_t i = 0; i < 64; i++)
        assert_int_equal(mk_budget_set(i, 1), 0);
    assert_int_equal(mk_budget_set(64, 1), MK_ERR_INVALID);
    for (uint64_t i = 0; i < 64; i++)
        assert_int_equal(mk_budget_set(i, 0), 0);
    assert_int_equal(mk_budget_get(), 0);
}

static void offers(void **state)
{
    struct mk_tune *t = opened(MK_TUNE_ON);
    struct mk_tune_table x = one(MK_ALGO_RING, MK_PROTO_SIMPLE, 1, 0);
    uint64_t id[6];
    float c[A * P];
    (void)state;
    for (int i = 0; i < 6; i++) { /* room for four */
        x.entry[0].channels = (uint8_t)(i + 1);
        id[i] = mk_tune_offer(t, &x);
        assert_true(i < 4 ? id[i] && mk_tune_has(t, id[i]) && (!i || id[i] != id[i - 1]) : !id[i]);
    }
    costs(c);
    in_force = id[0];
    assert_int_equal(ask(t, 1 << 20, c).channels, 1);
    mk_tune_drop(t, id[0]); /* in force: stays */
    mk_tune_drop(t, id[1]);
    mk_tune_drop(t, 12345);
    assert_true(mk_tune_has(t, id[0]) && !mk_tune_has(t, id[1]));
    x.entry[0].channels = 1;
    assert_true(mk_tune_offer(t, &x) == id[0]); /* once more: dropped once */
    mk_tune_drop(t, id[0]);
    in_force = id[2];
    costs(c);
    assert_int_equal(ask(t, 1 << 20, c).channels, 3);
    assert_true(!mk_tune_has(t, id[0]) && mk_tune_has(t, id[2]) && mk_tune_has(t, id[3]));
    in_force = 0;
    costs(c);
    assert_int_equal(ask(t, 1 << 20, c).channels, 0);
    assert_false(mk_tune_has(t, id[2]));
    in_force = id[3] + 2; /* nobody offered that here */
    costs(c);
    assert_int_equal(ask(t, 1 << 20, c).channels, 0);
    x.entry[0].channels = 65;
    assert_true(!mk_tune_offer(t, &x));
    x = one(MK_ALGO_RING, 255, 1, 0);
    assert_true(!mk_tune_offer(t, &x));
    x = one(7, 1, 1, 0);
    assert_true(!mk_tune_offer(t, &x));
    x = one(1, 1, 1, 0);
    x.entry[0].from = 31;
    assert_true(!mk_tune_offer(t, &x));
    x = one(1, 1, 1, 0);
    x.count = MK_TUNE_ENTRIES + 1;
    assert_true(!mk_tune_offer(t, &x));
    mk_tune_close(t);
}

static void model(void **state)
{
    struct mk_tune_facts f = facts();
    (void)state;
    /* ring all-reduce of 8 on 2 nodes: 14 steps, 4 of them over the network */
    assert_true(fabs(mk_model_latency(&f, MK_COLL_ALLREDUCE, MK_ALGO_RING, 1) - (5 + 10 * 1 + 4 * 10)) <
                1e-9);
    assert_true(fabs(mk_model_latency(&f, MK_COLL_ALLGATHER, MK_ALGO_RING, 1) - (5 + 5 * 1 + 2 * 10)) < 1e-9);
    assert_true(fabs(mk_model_latency(&f, MK_COLL_ALLREDUCE, MK_ALGO_TREE, 1) - (5 + 2 * (3 * 1 + 1 * 10))) <
                1e-9);
    assert_true(mk_model_latency(&f, MK_COLL_ALLGATHER, MK_ALGO_TREE, 1) < 0);
    assert_true(mk_model_latency(&f, MK_COLL_ALLREDUCE, MK_ALGO_NVLS, 2) < 0);
    for (uint64_t bytes = 1; bytes < 1ull << 46; bytes <<= 1) {
        double last = 1e300;
        for (int ch = 1; ch <= 64; ch++) {
            const double us = mk_model_time(&f, MK_COLL_ALLREDUCE, MK_ALGO_RING, 1, bytes, ch,
                                            55 + (double)bytes * 1e-5, 0);
            assert_true(us <= last &&
                        us >= 55 + (double)bytes *
                                       1e-5); /* more channels are never slower, the link's time the least */
            last = us;
        }
        assert_true(fabs(last - (55 + (double)bytes * 1e-5)) < 1e-6 * last);
    }
    /* 20 GB/s of the bus a channel: 1 GiB x 1.75 / 20 GB/s = 93952 us and the latency */
    const double us = mk_model_time(&f, MK_COLL_ALLREDUCE, MK_ALGO_RING, 1, 1ull << 30, 1, 100, 0);
    assert_true(fabs(us - (55 + 1073741824.0 * 1.75 / 20e3)) < 1);
    /* no limit of a channel is known: fewer than measured carry in proportion */
    assert_true(fabs(mk_model_time(&f, MK_COLL_ALLREDUCE, MK_ALGO_RING, 2, 1 << 30, 4, 1055, 8) - 2055) <
                1e-6);
    assert_true(mk_model_time(&f, MK_COLL_ALLREDUCE, MK_ALGO_RING, 1, 5, 1, NAN, 0) < 0);
    assert_true(mk_model_time(&f, MK_COLL_ALLREDUCE, MK_ALGO_RING, 1, 5, 0, 5, 0) < 0);
    memset(&f.base_us, 0xff, sizeof(f.base_us)); /* NaN */
    assert_true(mk_model_latency(&f, MK_COLL_ALLREDUCE, MK_ALGO_RING, 1) < 0);
    f.has_constants = false;
    assert_true(mk_model_latency(&f, MK_COLL_ALLREDUCE, MK_ALGO_RING, 1) < 0);
    f = facts();
    f.nnodes = 0;
    assert_true(mk_model_latency(&f, MK_COLL_ALLREDUCE, MK_ALGO_RING, 1) < 0);
}

static struct mk_tune_sample sample(uint8_t size_class, uint8_t algo, uint8_t channels, uint32_t n,
                                    double median, double half)
{
    const struct mk_tune_sample s = {MK_COLL_ALLREDUCE, size_class, algo,         MK_PROTO_LL128, channels, n,
                                     median - half,     median,     median + half};
    return s;
}

static void builds(void **state)
{
    const struct mk_tune_facts f = facts();
    struct mk_tune_table first, next;
    struct mk_tune_sample s[4] = {
        sample(20, MK_ALGO_TREE, 16, 500, 100, 2), sample(20, MK_ALGO_RING, 16, 40, 97, 2),
        sample(10, MK_ALGO_TREE, 2, 500, 10, 0.2), sample(10, MK_ALGO_RING, 2, 40, 9, 0.2)};
    (void)state;
    assert_true(mk_tune_build(&f, NULL, s, 4, 0, false, &first));
    assert_int_equal(first.count, 1); /* the one at 1 MiB is faster, but within the intervals */
    assert_int_equal(first.entry[0].from, 10);
    assert_int_equal(first.entry[0].algo, MK_ALGO_RING);
    assert_true(mk_tune_valid(&first));
    assert_false(mk_tune_build(&f, &first, s, 4, 0, false, &next)); /* the same again */
    s[3] = sample(10, MK_ALGO_RING, 2, 400, 10.1, 0.2); /* ours is no better any more, but no worse outside */
    assert_false(mk_tune_build(&f, &first, s, 4, 0, false, &next));
    s[3] = sample(10, MK_ALGO_RING, 2, 400, 11, 0.2);
    assert_true(mk_tune_build(&f, &first, s, 4, 0, false, &next));
    assert_int_equal(next.count, 0);
    s[3].n = 29; /* too few to say */
    assert_false(mk_tune_build(&f, &first, s, 4, 0, false, &next));
    assert_true(mk_tune_build(&f, &first, s, 2, 12, false, &next));
    assert_int_equal(next.cap, 12);
    assert_int_equal(next.count, 1);
    /* fewer channels may be 2 % slower, from 64 KiB on */
    s[0] = sample(20, MK_ALGO_RING, 16, 500, 100, 0.2), s[1] = sample(20, MK_ALGO_RING, 8, 40, 101, 0.2);
    assert_true(mk_tune_build(&f, NULL, s, 2, 0, false, &next) && next.entry[0].channels == 8);
    s[1].median = 103, s[1].low = 102.8, s[1].high = 103.2;
    assert_false(mk_tune_build(&f, NULL, s, 2, 0, false, &next));
    s[0].size_class = s[1].size_class = 15;
    s[1].median = 101, s[1].low = 100.8, s[1].high = 101.2;
    assert_false(mk_tune_build(&f, NULL, s, 2, 0, false, &next));
    for (int i = 0; i < 2; i++)
        s[i].low = NAN;
    assert_false(mk_tune_build(&f, NULL, s, 2, 0, true, &next));
    /* many sizes are few entries */
    struct mk_tune_sample many[128];
    for (int i = 0; i < 64; i++) {
        many[2 * i] = sample((uint8_t)i, MK_ALGO_TREE, 16, 500, 100, 1);
        many[2 * i + 1] = sample((uint8_t)i, MK_ALGO_RING, i < 30 ? 8 : 4, 40, 50, 1);
    }
    assert_true(mk_tune_build(&f, NULL, many, 128, 0, false, &next));
    assert_int_equal(next.count, 2);
    assert_int_equal(next.entry[1].from, 30);
    assert_int_equal(next.entry[1].to, 63);
    assert_false(mk_tune_build(&f, &next, many, 128, 0, false, &first));
}

static void trials(void **state)
{
    struct mk_tune_facts f = facts();
    struct mk_tune_table t, next;
    /* 1 MiB x 1.75 at 8 x 20 GB/s: 11 us and 55 of latency, so half of 16 channels are enough for 100 us */
    struct mk_tune_sample s[3] = {sample(20, MK_ALGO_RING, 16, 500, 100, 1),
                                  sample(20, MK_ALGO_RING, 8, 40, 100.5, 0.2),
                                  sample(14, MK_ALGO_RING, 16, 900, 60, 1)};
    (void)state;
    assert_true(mk_tune_build(&f, NULL, s, 1, 0, true, &t));
    assert_int_equal(t.count, 1);
    assert_int_equal(t.entry[0].channels, 8);
    assert_int_equal(t.entry[0].algo, MK_NAME_UNKNOWN);
    assert_true(t.entry[0].uses > 0 && mk_tune_valid(&t));
    assert_true(mk_tune_build(&f, &t, s, 2, 0, true, &next)); /* measured: as fast with half of them */
    assert_int_equal(next.count, 1);
    assert_int_equal(next.entry[0].channels, 8);
    assert_int_equal(next.entry[0].uses, 0);
    assert_false(mk_tune_build(&f, NULL, &s[2], 1, 0, true, &t)); /* below 64 KiB nothing is tried */
    f.ring_ll128 = 0.2;                                           /* a channel carries little */
    assert_false(mk_tune_build(&f, NULL, s, 1, 0, true, &t));
    f.has_constants = false;
    assert_false(mk_tune_build(&f, NULL, s, 1, 0, true, &t));
}

static uint64_t now;
static uint64_t look(void)
{
    return now += 10;
}
static int lines;
static char line[300];
static void sink(enum mk_log_level level, const char *subsys, const char *text)
{
    (void)level, (void)subsys;
    lines++;
    snprintf(line, sizeof(line), "%s", text);
}

/* An observer says what it would propose from the process's profile, once, and changes nothing. */
static void considers(void **state)
{
    struct mk_profile_event e = {.coll = MK_COLL_ALLREDUCE,
                                 .dtype = 9,
                                 .algo = MK_ALGO_TREE,
                                 .proto = 2,
                                 .channels = 1,
                                 .exact = true,
                                 .count = 1 << 19};
    const struct mk_profile_who who = {1, 0, 8, 2, NULL, 5, 1, 1};
    struct mk_tune *t = opened(MK_TUNE_OBSERVE), *u = opened(MK_TUNE_ON);
    struct mk_tune_table table;
    struct mk_profile *p;
    float c[A * P];
    int mask;
    (void)state;
    assert_false(mk_tune_consider(t, -1, 0, true, &table)); /* nothing is profiled */
    now = 1;
    assert_int_equal(mk_profile_open("", look, &p), 0);
    struct mk_profile_comm *comm = mk_profile_join(p, &who, &mask);
    mk_profile_set_process(p);
    for (uint64_t i = 0; i < 100; i++) { /* a ring takes half of the time */
        e.algo = i < 60 ? MK_ALGO_TREE : MK_ALGO_RING;
        const uint64_t h = mk_profile_begin(p, comm, &e), start = 1000000 * (i + 1);
        mk_profile_stop(p, h);
        const uint64_t r = mk_profile_run(p, h, 0, start);
        mk_profile_timer(p, r, start + (i < 60 ? 100000 : 50000) + 100 * (i % 10));
        mk_profile_stop(p, r);
    }
    assert_true(mk_tune_consider(u, -1, 0, false, &table));
    assert_int_equal(table.count, 1);
    assert_int_equal(table.entry[0].algo, MK_ALGO_RING);
    mk_log_set_sink(sink);
    lines = 0;
    for (int i = 0; i < 2000; i++) {
        costs(c);
        const struct mk_tune_answer a = ask(t, 1 << 20, c), b = ask(u, 1 << 20, c);
        assert_true(nothing(&a) && nothing(&b));
    }
    mk_log_set_sink(NULL);
    assert_int_equal(lines, 1);
    assert_non_null(
        strstr(line, "would propose for AllReduce of 2^20 to 2^21 bytes: RING SIMPLE, 1 channels"));
    mk_profile_set_process(NULL);
    mk_profile_close(p);
    mk_tune_close(t);
    mk_tune_close(u);
}

static void from_profiles(void **state)
{
    struct mk_kind k;
    struct mk_tune_sample s;
    (void)state;
    memset(&k, 0, sizeof(k));
    k.coll = MK_COLL_ALLREDUCE, k.algo = MK_ALGO_RING, k.proto = 2, k.channels = 8, k.size_class = 20,
    k.gpu_clock = true;
    for (uint64_t i = 0; i < 100; i++) {
        k.run_hist[mk_hist_bucket(100000 + i * 1000)]++;
        k.timed++;
    }
    assert_true(mk_tune_sample_of(&k, &s));
    assert_true(s.n == 100 && s.median > 145 && s.median < 155 && s.low > 130 && s.low < s.median &&
                s.high < 170 && s.high > s.median);
    k.gpu_clock = false;
    assert_false(mk_tune_sample_of(&k, &s));
    k.gpu_clock = true, k.timed = 29;
    assert_false(mk_tune_sample_of(&k, &s));
    k.timed = 100, k.channels = 65;
    assert_false(mk_tune_sample_of(&k, &s));
    k.channels = 8, k.coll = MK_COLL_SEND;
    assert_false(mk_tune_sample_of(&k, &s));
}

/* NCCL's abort, from one thread, while another asks and waits for a switch: it ends when that one has left. */
static uint32_t gate, inside, closed;
static int waits(void *ctx, uint64_t *id)
{
    const struct timespec ms = {.tv_nsec = 1000000};
    (void)ctx, (void)id;
    __atomic_store_n(&inside, 1, __ATOMIC_RELEASE);
    while (!__atomic_load_n(&gate, __ATOMIC_ACQUIRE))
        nanosleep(&ms, NULL);
    return MK_ERR_ABORTED;
}
static void *asks(void *t)
{
    float c[A * P];
    costs(c);
    ask(t, 1 << 20, c);
    return NULL;
}
static void *closes(void *t)
{
    mk_tune_close(t);
    __atomic_store_n(&closed, 1, __ATOMIC_RELEASE);
    return NULL;
}
static void closed_while_asked(void **state)
{
    (void)state;
    const struct mk_tune_turn turn = {waits, NULL};
    const struct timespec ms = {.tv_nsec = 1000000};
    struct mk_tune *t = opened(MK_TUNE_ON);
    pthread_t one, other;
    mk_tune_set_turn(t, &turn);
    assert_int_equal(pthread_create(&one, NULL, asks, t), 0);
    while (!__atomic_load_n(&inside, __ATOMIC_ACQUIRE))
        nanosleep(&ms, NULL);
    assert_int_equal(pthread_create(&other, NULL, closes, t), 0);
    for (int i = 0; i < 100; i++)
        nanosleep(&ms, NULL);
    assert_int_equal(__atomic_load_n(&closed, __ATOMIC_ACQUIRE), 0);
    __atomic_store_n(&gate, 1, __ATOMIC_RELEASE);
    pthread_join(one, NULL);
    pthread_join(other, NULL);
    assert_int_equal(closed, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(applies),
        cmocka_unit_test(observes),
        cmocka_unit_test(left_alone),
        cmocka_unit_test(caps),
        cmocka_unit_test(offers),
        cmocka_unit_test(model),
        cmocka_unit_test(builds),
        cmocka_unit_test(trials),
        cmocka_unit_test(from_profiles),
        cmocka_unit_test(considers),
        cmocka_unit_test(closed_while_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
