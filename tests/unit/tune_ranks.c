/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Ranks never disagree: tuners of several ranks with the agreement of mk/tuner.h between them, in random order. Each rank
 * measures other times; rank 0 makes tables from its own and proposes them; hosts run up to 50 operations ahead of each
 * other; messages take any time, in order between two ranks; a rank may die. Every operation must get the same algorithm,
 * protocol and channels on every rank that runs it. Broken variants must be caught. */
#include "mk/err.h"
#include "mk/tune.h"
#include "mk/tuner.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { SEEDS = 10 };
#else
enum { SEEDS = 60 };
#endif
enum { RANKS = 4, OPS = 600, AHEAD = 50, QUEUE = 64, A = MK_ALGO_COUNT, P = MK_PROTO_COUNT };

enum breakage {
    SOUND,
    AT_ONCE /* a table holds as soon as it is here */,
    ALONE /* each takes its own table */
};

struct wire { /* a table, then the proposal of it, or another message */
    bool is_table;
    struct mk_tune_table table;
    struct mk_agree_msg msg;
};

struct rank {
    struct mk_tune *tune;
    struct mk_agree agree;
    uint64_t at; /* operations done */
    bool alive, stuck;
    enum breakage broken;
    uint64_t newest; /* id of the last table seen */
};

static struct {
    struct rank rank[RANKS];
    struct wire wire[RANKS][RANKS][QUEUE];
    int wires[RANKS][RANKS], first[RANKS][RANKS]; /* how many, from which on */
    uint32_t random;
    int dead, heard[RANKS];
    uint64_t switches, disagreed, done, ahead, chosen;
    struct {
        bool run;
        int algo, proto, channels;
        uint64_t id;
    } op[OPS];
} w;

static uint32_t below(uint32_t n)
{
    w.random ^= w.random << 13;
    w.random ^= w.random >> 17;
    w.random ^= w.random << 5;
    return w.random % n;
}

static void post(int from, int to, const struct wire *m)
{
    if (!w.rank[to].alive || !w.rank[from].alive)
        return;
    assert_true(w.wires[from][to] < QUEUE);
    w.wire[from][to][(w.first[from][to] + w.wires[from][to]++) % QUEUE] = *m;
}
static void answer(int from, const struct mk_agree_msg *msg)
{
    struct wire m;
    if (msg->kind == MK_AGREE_NONE)
        return;
    memset(&m, 0, sizeof(m));
    m.msg = *msg;
    for (int to = from ? 0 : 1; to < (from ? 1 : RANKS); to++)
        post(from, to, &m);
}

/* The seam. In this test a host that must wait is not asked at all (ready), so AGAIN never comes here. */
static int begin(void *ctx, uint64_t *id)
{
    struct rank *r = ctx;
    const int ret = mk_agree_begin(&r->agree, id);
    assert_int_not_equal(ret, MK_ERR_AGAIN);
    if (r->broken)
        *id = r->newest;
    return ret;
}
static bool ready(const struct rank *r)
{
    return r->agree.begun < r->agree.fence || r->agree.root_died;
}

/* What this rank measured of both ways: its own, so that each would choose another. */
static int measured(int rank, struct mk_tune_sample s[20])
{
    int n = 0;
    for (int c = 15; c < 20; c++) {
        const double tree = 100 + below(100), ring = 100 + below(100);
        const struct mk_tune_sample a = {MK_COLL_ALLREDUCE, (uint8_t)c, MK_ALGO_TREE, 2, 16, 400,
                                         tree - 1,          tree,       tree + 1};
        const struct mk_tune_sample b = {
            MK_COLL_ALLREDUCE, (uint8_t)c, MK_ALGO_RING, (uint8_t)(rank % 3), (uint8_t)(1 + below(16)), 40,
            ring - 1,          ring,       ring + 1};
        s[n++] = a;
        s[n++] = b;
    }
    return n;
}

static void make_table(int rank, struct mk_tune_table *t)
{
    struct mk_tune_sample s[20];
    const int n = measured(rank, s);
    mk_tune_build(mk_tune_facts_of(w.rank[rank].tune), NULL, s, n, below(2) ? 8 + below(8) : 0, true, t);
}

static void propose(void)
{
    struct rank *r = &w.rank[0];
    struct mk_agree_msg msg;
    struct wire m;
    if (!r->alive)
        return;
    memset(&m, 0, sizeof(m));
    m.is_table = true;
    make_table(0, &m.table);
    const uint64_t id = mk_tune_offer(r->tune, &m.table);
    assert_true(id);
    if (mk_agree_propose(&r->agree, id, &msg)) {
        mk_tune_drop(r->tune, id);
        return;
    }
    for (int to = 1; to < RANKS; to++)
        post(0, to, &m);
    answer(0, &msg);
    r->newest = id;
}

static void deliver(int from, int to)
{
    struct rank *r = &w.rank[to];
    struct mk_agree_msg reply;
    if (!w.wires[from][to] || !r->alive)
        return;
    const struct wire m = w.wire[from][to][w.first[from][to]];
    w.first[from][to] = (w.first[from][to] + 1) % QUEUE;
    w.wires[from][to]--;
    if (m.is_table) {
        struct mk_tune_table own = m.table;
        if (r->broken == ALONE)
            make_table(to, &own);
        const uint64_t id = mk_tune_offer(r->tune, &own);
        r->newest = id ? id : r->newest;
        assert_true(id || r->broken); /* there is room */
        return;
    }
    if (m.msg.kind == MK_AGREE_PROPOSE && r->broken != ALONE)
        assert_true(mk_tune_has(r->tune, m.msg.value)); /* it came before, on the same way */
    const bool open = r->agree.open;
    const uint64_t offer = r->agree.offer;
    assert_int_equal(mk_agree_receive(&r->agree, from, &m.msg, &reply), 0);
    if (reply.kind == MK_AGREE_REFUSE)
        mk_tune_drop(r->tune, m.msg.value);
    else if (reply.kind == MK_AGREE_ABORT || (m.msg.kind == MK_AGREE_ABORT && open))
        mk_tune_drop(r->tune, offer);
    answer(to, &reply);
}

/* An all-reduce of a size that all ranks know. */
static void operate(int rank)
{
    struct rank *r = &w.rank[rank];
    float cost[A * P];
    struct mk_tune_answer a;
    uint64_t slowest = OPS;
    for (int i = 0; i < RANKS; i++)
        if (w.rank[i].alive && w.rank[i].at < slowest)
            slowest = w.rank[i].at;
    if (!r->alive || r->at >= OPS || r->at >= slowest + AHEAD || !ready(r))
        return;
    w.ahead = r->at - slowest > w.ahead ? r->at - slowest : w.ahead;
    for (int i = 0; i < A * P; i++)
        cost[i] = i / P <= MK_ALGO_RING ? 100 + (float)((i * 7) % 11) : -1;
    const struct mk_tune_ask q = {MK_COLL_ALLREDUCE, 1ull << (14 + r->at % 7), cost, A, P};
    mk_tune_next(r->tune, &q, &a);
    if (!w.op[r->at].run) {
        w.op[r->at].run = true;
        w.op[r->at].algo = a.algo, w.op[r->at].proto = a.proto, w.op[r->at].channels = a.channels;
        w.op[r->at].id = a.id;
        w.switches += r->at && a.id != w.op[r->at - 1].id;
    } else if (w.op[r->at].algo != a.algo || w.op[r->at].proto != a.proto ||
               w.op[r->at].channels != a.channels) {
        w.disagreed++;
    }
    w.chosen += a.algo >= 0 || a.channels;
    r->at++;
    w.done++;
}

static void die(int who)
{
    w.dead = who;
    w.rank[who].alive = false;
    for (int to = 0; to < RANKS; to++)
        if (below(2))
            w.wires[who][to] = 0; /* what it sent last may be lost to some */
}
static void hear(int who)
{
    struct mk_agree_msg out;
    if (w.dead < 0 || w.heard[who] || !w.rank[who].alive || w.wires[w.dead][who])
        return;
    w.heard[who] = 1;
    assert_int_equal(mk_agree_died(&w.rank[who].agree, w.dead, &out), 0);
    if (out.kind == MK_AGREE_ABORT)
        mk_tune_drop(w.rank[who].tune, w.rank[who].agree.offer);
    answer(who, &out);
}

static void job(uint32_t seed, enum breakage broken, bool death)
{
    memset(&w, 0, sizeof(w));
    w.random = seed * 2654435761u | 1;
    w.dead = -1;
    for (int i = 0; i < RANKS; i++) {
        struct rank *r = &w.rank[i];
        struct mk_tune_facts f;
        memset(&f, 0, sizeof(f));
        f.comm_id = 3, f.nranks = RANKS, f.nnodes = 2;
        r->alive = true;
        r->broken = broken;
        assert_int_equal(mk_tune_open(&f, MK_TUNE_ON, &r->tune), 0);
        assert_int_equal(mk_agree_init(&r->agree, i, RANKS, 1 + below(60), 0), 0);
        const struct mk_tune_turn turn = {begin, r};
        mk_tune_set_turn(r->tune, &turn);
    }
    const uint32_t lead = 1 + below(60);
    for (int i = 0; i < RANKS; i++) /* L is the same on all */
        assert_int_equal(mk_agree_init(&w.rank[i].agree, i, RANKS, lead, 0), 0);
    const uint32_t dies = death ? 500 + below(8000) : UINT32_MAX;
    for (uint32_t step = 0; step < 40000; step++) {
        const uint32_t what = below(400) ? 1 + below(99) : 0;
        if (step == dies)
            die((int)below(RANKS));
        if (!what)
            propose();
        else if (what < 40)
            deliver((int)below(RANKS), (int)below(RANKS));
        else if (what < 43)
            hear((int)below(RANKS));
        else
            operate((int)below(RANKS));
    }
    for (int i = 0; i < RANKS; i++)
        mk_tune_close(w.rank[i].tune);
}

static void agreed(void **state)
{
    uint64_t switches = 0, ahead = 0, chosen = 0;
    (void)state;
    for (uint32_t seed = 1; seed <= SEEDS; seed++) {
        job(seed, SOUND, false);
        if (w.disagreed)
            fail_msg("seed %u: %llu operations differ", seed, (unsigned long long)w.disagreed);
        assert_int_equal(w.done, RANKS * OPS); /* nobody is stuck */
        switches += w.switches;
        chosen += w.chosen;
        ahead = w.ahead > ahead ? w.ahead : ahead;
    }
    assert_true(switches > SEEDS * 3);
    assert_true(chosen > SEEDS * OPS); /* a quarter at least is not NCCL's choice */
    assert_int_equal(ahead, AHEAD - 1);
}

static void deaths(void **state)
{
    uint64_t roots = 0;
    (void)state;
    for (uint32_t seed = 1; seed <= SEEDS; seed++) {
        job(seed, SOUND, true);
        if (w.disagreed && w.dead)
            fail_msg("seed %u: %llu operations differ", seed, (unsigned long long)w.disagreed);
        /* Where rank 0 died some may know of its last commit and others not: those go on with what was in force. None of
         * these operations can end, since rank 0 has no part in them; before its end all agree. */
        roots += w.dead == 0;
        for (int i = 0; i < RANKS; i++)
            assert_true(!w.rank[i].alive || w.rank[i].at == OPS); /* and nobody waits for ever */
    }
    assert_true(roots);
}

static void broken(void **state)
{
    uint64_t at_once = 0, alone = 0;
    (void)state;
    for (uint32_t seed = 1; seed <= SEEDS / 5; seed++) {
        job(seed, AT_ONCE, false);
        at_once += w.disagreed > 0;
        job(seed, ALONE, false);
        alone += w.disagreed > 0;
    }
    assert_int_equal(at_once, SEEDS / 5);
    assert_int_equal(alone, SEEDS / 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(agreed), cmocka_unit_test(deaths),
                                       cmocka_unit_test(broken)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
