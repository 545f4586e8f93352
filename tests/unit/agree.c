/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Agreement on switches (tuner/agree.c): every order of what can happen to a few ranks, with the very functions. Hosts
 * begin operations whenever they may; messages are delivered in order between two ranks, otherwise in any; one rank
 * may die at any moment, what it sent last may be lost to some, and each survivor hears of it some time later. Checked in every
 * state: no operation number has two values; at every end: all have run all operations, unless somebody died. Broken
 * variants must be caught. */
#include "mk/err.h"
#include "mk/tuner.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define RANKS 3
#define OPS 6 /* of each rank */
#define QUEUE 6
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define FULL false
#else
#define FULL true
#endif

enum breakage {
    SOUND,
    NO_LEAD,  /* the switch is at the highest count */
    NO_FENCE, /* hosts do not wait */
    ONE_IS_ENOUGH /* the first answer counts for all */,
    ROOT_FORGIVEN, /* a dead rank 0 is taken for an abort */
    DEAF,          /* an abort is lost */
};

struct state {
    struct small { /* what matters of struct mk_agree: keeps states small and comparable */
        uint64_t value, begun, number, next, fence, offer, highest;
        uint32_t id;
        uint8_t open, root_died, answers, answered, dead;
    } rank[RANKS];
    struct mk_agree_msg wire[RANKS][RANKS][QUEUE];
    uint8_t wires[RANKS][RANKS];
    uint8_t alive[RANKS], knows[RANKS]; /* of the death */
    uint8_t proposals, died;            /* died: 1 + who; 0: nobody */
    uint8_t used[OPS];                  /* 1 + value; 0: not run yet */
};

struct model {
    enum breakage broken;
    int ranks, lead, proposals;
    bool deaths;
    uint64_t *seen;
    uint64_t mask, states, ends, switched, split, stuck, refused, late;
};

static void load(const struct model *m, const struct state *s, int r, struct mk_agree *a)
{
    const struct small *k = &s->rank[r];
    assert_int_equal(mk_agree_init(a, r, m->ranks, (uint64_t)m->lead, k->value), 0);
    a->begun = k->begun, a->number = k->number, a->next = k->next, a->fence = k->fence, a->offer = k->offer;
    a->highest = k->highest, a->id = k->id, a->open = k->open, a->root_died = k->root_died;
    a->answers = k->answers, a->answered[0] = k->answered, a->dead[0] = k->dead;
}
static void keep(struct state *s, int r, const struct mk_agree *a)
{
    struct small *k = &s->rank[r];
    k->value = a->value, k->begun = a->begun, k->number = a->number, k->next = a->next, k->fence = a->fence;
    k->offer = a->offer, k->highest = a->highest, k->id = a->id, k->open = a->open;
    k->root_died = a->root_died, k->answers = (uint8_t)a->answers, k->answered = a->answered[0];
    k->dead = a->dead[0];
}

static void send(struct state *s, int from, int to, const struct mk_agree_msg *msg)
{
    assert_true(s->wires[from][to] < QUEUE);
    s->wire[from][to][s->wires[from][to]++] = *msg;
}
static void post(const struct model *m, struct state *s, int from, struct mk_agree_msg *msg)
{
    if (msg->kind == MK_AGREE_NONE)
        return;
    if (m->broken == NO_LEAD && msg->kind == MK_AGREE_COMMIT) {
        msg->number -= (uint64_t)m->lead;
        s->rank[0].number = msg->number;
    }
    if (from) {
        send(s, from, 0, msg);
        return;
    }
    for (int to = 1; to < m->ranks; to++)
        if (s->alive[to] && !(m->broken == DEAF && msg->kind == MK_AGREE_ABORT && to == 1))
            send(s, 0, to, msg);
}

/* The operation that rank r wants to begin. Returns whether it did. */
static bool begin(struct model *m, struct state *s, int r)
{
    struct mk_agree a;
    uint64_t value = 0;
    load(m, s, r, &a);
    const uint64_t number = a.begun;
    if (number >= OPS)
        return false;
    if (m->broken == NO_FENCE)
        a.fence = UINT64_MAX;
    if (mk_agree_begin(&a, &value))
        return false;
    if (m->broken == NO_FENCE)
        a.fence = s->rank[r].fence;
    keep(s, r, &a);
    if (s->used[number] && s->used[number] != 1 + value)
        m->split++;
    s->used[number] = (uint8_t)(1 + value);
    m->switched += value > 0;
    return true;
}

static bool propose(struct model *m, struct state *s)
{
    struct mk_agree a;
    struct mk_agree_msg out;
    load(m, s, 0, &a);
    if (!s->alive[0] || s->proposals >= m->proposals ||
        mk_agree_propose(&a, (uint64_t)s->proposals + 1, &out))
        return false;
    s->proposals++;
    keep(s, 0, &a);
    post(m, s, 0, &out);
    return true;
}

static void take(const struct model *m, struct state *s, int from, int to, const struct mk_agree_msg *msg)
{
    struct mk_agree a;
    struct mk_agree_msg out;
    load(m, s, to, &a);
    int ret = mk_agree_receive(&a, from, msg, &out);
    if (m->broken == ONE_IS_ENOUGH && !to && msg->kind == MK_AGREE_ACK && !ret)
        for (int other = 1; other < m->ranks && out.kind == MK_AGREE_NONE && a.open; other++)
            if (other != from)
                ret = mk_agree_receive(&a, other, msg, &out);
    assert_true(!ret || m->broken);
    keep(s, to, &a);
    post(m, s, to, &out);
}

static bool deliver(struct model *m, struct state *s, int from, int to)
{
    if (!s->wires[from][to] || !s->alive[to])
        return false;
    const struct mk_agree_msg msg = s->wire[from][to][0];
    s->wires[from][to]--;
    memmove(&s->wire[from][to][0], &s->wire[from][to][1], sizeof(msg) * (QUEUE - 1));
    memset(&s->wire[from][to][s->wires[from][to]], 0, sizeof(msg));
    m->refused += msg.kind == MK_AGREE_REFUSE;
    m->late += !to && msg.kind == MK_AGREE_ACK && msg.id < s->rank[0].id;
    take(m, s, from, to, &msg);
    return true;
}

/* cut: to whom what it sent, and what is still under way, is lost. */
static bool die(const struct model *m, struct state *s, int r, int cut)
{
    if (!m->deaths || s->died)
        return false;
    for (int to = 0; to < m->ranks; to++)
        if (cut >> to & 1) {
            if (!s->wires[r][to])
                return false; /* the same as without */
            s->wires[r][to] = 0;
            memset(s->wire[r][to], 0, sizeof(s->wire[r][to]));
        }
    s->died = (uint8_t)(1 + r);
    s->alive[r] = 0;
    return true;
}

/* What was sent before a death and is not lost arrives before the news of it, on that connection. */
static bool hear(const struct model *m, struct state *s, int r)
{
    struct mk_agree a;
    struct mk_agree_msg out;
    const int who = s->died - 1;
    if (who < 0 || !s->alive[r] || s->knows[r] || s->wires[who][r])
        return false;
    s->knows[r] = 1;
    load(m, s, r, &a);
    assert_int_equal(mk_agree_died(&a, who, &out), 0);
    if (m->broken == ROOT_FORGIVEN && !who && a.open) {
        const struct mk_agree_msg abort_msg = {MK_AGREE_ABORT, a.id, 0, 0};
        struct mk_agree_msg none;
        assert_int_equal(mk_agree_receive(&a, 0, &abort_msg, &none), 0);
    }
    keep(s, r, &a);
    post(m, s, r, &out);
    return true;
}

static bool fresh(struct model *m, const struct state *s)
{
    uint64_t h = 0xcbf29ce484222325ull;
    for (size_t i = 0; i < sizeof(*s) / 8; i++) {
        uint64_t word;
        memcpy(&word, (const char *)s + i * 8, 8);
        h = (h ^ word) * 0x9e3779b97f4a7c15ull;
        h ^= h >> 29;
    }
    h += !h;
    for (uint64_t at = h & m->mask;; at = (at + 1) & m->mask) {
        if (m->seen[at] == h)
            return false;
        if (!m->seen[at]) {
            m->seen[at] = h;
            if (++m->states > m->mask / 4 * 3)
                fail_msg("more than %lu states", (unsigned long)m->states);
            return true;
        }
    }
}

static void at_end(struct model *m, const struct state *s)
{
    m->ends++;
    for (int r = 0; r < m->ranks && !s->died; r++)
        if (s->rank[r].begun < OPS) {
            m->stuck++;
            return;
        }
    /* with a death: whoever waits must have been told so */
    for (int r = 0; r < m->ranks; r++)
        if (s->alive[r] && s->rank[r].begun < OPS && !s->rank[r].root_died)
            m->stuck++;
}

static void explore(struct model *m, const struct state *s)
{
    bool moved = false;
    struct state t;
    if (!fresh(m, s))
        return;
#define TRY(what)                                                                                            \
    do {                                                                                                     \
        t = *s;                                                                                              \
        if (what) {                                                                                          \
            moved = true;                                                                                    \
            explore(m, &t);                                                                                  \
        }                                                                                                    \
    } while (0)
    for (int r = 0; r < m->ranks; r++)
        if (s->alive[r]) {
            TRY(begin(m, &t, r));
            TRY(hear(m, &t, r));
        }
    for (int r = 1; r < m->ranks; r++) {
        TRY(deliver(m, &t, 0, r));
        TRY(deliver(m, &t, r, 0));
    }
    TRY(propose(m, &t));
    if (!moved)
        at_end(m, s);
    for (int r = 0; r < m->ranks; r++)
        for (int cut = 0; cut < 1 << m->ranks && s->alive[r]; cut++)
            TRY(die(m, &t, r, cut));
#undef TRY
}

static void run(struct model *m, enum breakage broken, int ranks, int lead, int proposals, bool deaths)
{
    struct state s;
    memset(m, 0, sizeof(*m));
    memset(&s, 0, sizeof(s));
    m->broken = broken, m->ranks = ranks, m->lead = lead, m->proposals = proposals, m->deaths = deaths;
    m->mask = (1ull << 23) - 1;
    m->seen = calloc(m->mask + 1, sizeof(uint64_t));
    for (int r = 0; r < ranks; r++) {
        struct mk_agree a;
        assert_int_equal(mk_agree_init(&a, r, ranks, (uint64_t)lead, 0), 0);
        keep(&s, r, &a);
        s.alive[r] = 1;
    }
    explore(m, &s);
    free(m->seen);
    printf(
        "  ranks %d, lead %d, proposals %d%s: %lu states, %lu ends, %lu operations switched, %lu refusals; "
        "split %lu, stuck %lu\n",
        ranks, lead, proposals, deaths ? ", a death" : "", (unsigned long)m->states, (unsigned long)m->ends,
        (unsigned long)m->switched, (unsigned long)m->refused, (unsigned long)m->split,
        (unsigned long)m->stuck);
}

static void every_order(void **state)
{
    (void)state;
    struct model m;
    for (int ranks = 1; ranks <= RANKS; ranks++)
        for (int lead = 1; lead <= (ranks < RANKS || FULL ? 2 : 1); lead++) {
            run(&m, SOUND, ranks, lead, ranks == 3 ? 1 : 2, ranks > 1);
            assert_true(!m.split && !m.stuck && m.switched && m.ends);
        }
    run(&m, SOUND, 2, 1, 3, true);
    assert_true(!m.split && !m.stuck && m.switched && m.refused);
    if (!FULL)
        return;
    run(&m, SOUND, 3, 1, 3, false); /* answers to what was given up come late */
    assert_true(!m.split && !m.stuck && m.switched && m.refused && m.late);
}

static void broken_ones_are_caught(void **state)
{
    (void)state;
    struct model m;
    run(&m, NO_LEAD, 2, 1, 1, false);
    assert_true(m.split > 0);
    run(&m, NO_FENCE, 2, 1, 1, false);
    assert_true(m.split > 0);
    run(&m, ONE_IS_ENOUGH, 3, 1, 1, false);
    assert_true(m.split > 0);
    run(&m, ROOT_FORGIVEN, 3, 1, 1, true);
    assert_true(m.split > 0);
    run(&m, DEAF, 3, 1, 1, true);
    assert_true(m.stuck > 0);
}

/* Messages that nobody may send are refused and change nothing. */
static void nonsense(void **state)
{
    (void)state;
    struct mk_agree root, leaf, before;
    struct mk_agree_msg m, out;
    assert_int_equal(mk_agree_init(&root, 3, 3, 1, 0), MK_ERR_INVALID);
    assert_int_equal(mk_agree_init(&root, 0, 3, 0, 0), MK_ERR_INVALID);
    assert_int_equal(mk_agree_init(&root, 0, MK_AGREE_MAX_RANKS + 1, 1, 0), MK_ERR_INVALID);
    assert_int_equal(mk_agree_init(&root, 0, 3, 4, 7), 0);
    assert_int_equal(mk_agree_init(&leaf, 2, 3, 4, 7), 0);
    assert_int_equal(mk_agree_propose(&leaf, 9, &m), MK_ERR_INVALID);
    assert_int_equal(mk_agree_propose(&root, 9, &m), 0);
    assert_int_equal(mk_agree_propose(&root, 9, &out), MK_ERR_AGAIN);
    assert_int_equal(mk_agree_receive(&leaf, 0, &m, &out), 0);
    assert_int_equal(out.kind, MK_AGREE_ACK);
    static const struct {
        int to_root, from;
        struct mk_agree_msg msg;
    } bad[] = {
        {0, 0, {MK_AGREE_PROPOSE, 2, 1, 0}}, /* while one is open */
        {0, 1, {MK_AGREE_COMMIT, 1, 0, 10}}, /* not from rank 0 */
        {0, 0, {MK_AGREE_COMMIT, 1, 0, 3}},  /* behind the fence */
        {0, 0, {MK_AGREE_COMMIT, 2, 0, 10}}, /* of another proposal */
        {0, 0, {MK_AGREE_ABORT, 2, 0, 0}},   /* likewise */
        {0, 0, {MK_AGREE_ACK, 1, 0, 0}},     /* the wrong way */
        {0, 0, {77, 1, 0, 0}},               /* no kind */
        {0, 2, {MK_AGREE_ABORT, 1, 0, 0}},   /* from itself */
        {0, 3, {MK_AGREE_ABORT, 1, 0, 0}},   /* from nobody */
        {1, -1, {MK_AGREE_ACK, 1, 0, 0}},    /* likewise */
        {1, 1, {MK_AGREE_ACK, 2, 0, 0}},     /* not proposed yet */
        {1, 1, {MK_AGREE_ACK, 0, 0, 0}},     /* never proposed */
        {1, 1, {MK_AGREE_COMMIT, 1, 0, 9}},  /* the wrong way */
        {1, 1, {MK_AGREE_ACK, 1, 0, UINT64_MAX}} /* L past it would wrap */,
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct mk_agree *a = bad[i].to_root ? &root : &leaf;
        before = *a;
        assert_int_equal(mk_agree_receive(a, bad[i].from, &bad[i].msg, &out), MK_ERR_INVALID);
        assert_memory_equal(a, &before, sizeof(before));
        assert_int_equal(out.kind, MK_AGREE_NONE);
    }
    m = (struct mk_agree_msg){MK_AGREE_ACK, 1, 0, 5};
    assert_int_equal(mk_agree_receive(&root, 1, &m, &out), 0);
    assert_int_equal(mk_agree_receive(&root, 1, &m, &out), MK_ERR_INVALID); /* twice */
    m.number = 3;
    assert_int_equal(mk_agree_receive(&root, 2, &m, &out), 0);
    assert_int_equal(out.kind, MK_AGREE_COMMIT);
    assert_int_equal(out.number, 9); /* 4 past the highest */
}

/* A host 50 calls ahead of the others: it waits at its fence, and all switch at one number. */
static void far_ahead(void **state)
{
    (void)state;
    struct mk_agree a[2];
    struct mk_agree_msg m, out;
    uint64_t value;
    for (int r = 0; r < 2; r++)
        assert_int_equal(mk_agree_init(&a[r], r, 2, 8, 0), 0);
    for (int i = 0; i < 50; i++)
        assert_int_equal(mk_agree_begin(&a[1], &value), 0);
    assert_int_equal(mk_agree_propose(&a[0], 1, &m), 0);
    assert_int_equal(mk_agree_receive(&a[1], 0, &m, &out), 0);
    for (int i = 50; i < 58; i++)
        assert_int_equal(mk_agree_begin(&a[1], &value), 0);
    assert_int_equal(mk_agree_begin(&a[1], &value), MK_ERR_AGAIN);
    for (int i = 0; i < 8; i++)
        assert_int_equal(mk_agree_begin(&a[0], &value), 0);
    assert_int_equal(mk_agree_begin(&a[0], &value), MK_ERR_AGAIN);
    assert_int_equal(mk_agree_receive(&a[0], 1, &out, &m), 0);
    assert_int_equal(m.kind, MK_AGREE_COMMIT);
    assert_int_equal(mk_agree_receive(&a[1], 0, &m, &out), 0);
    for (int r = 0; r < 2; r++)
        while (a[r].begun < 80) {
            const uint64_t number = a[r].begun;
            assert_int_equal(mk_agree_begin(&a[r], &value), 0);
            assert_int_equal(value, number >= 58);
        }
}

/* What one rank cannot do, none does; a later proposal is as any other. */
static void refused(void **state)
{
    struct mk_agree a[2];
    struct mk_agree_msg m, out;
    uint64_t value = 9;
    (void)state;
    for (int r = 0; r < 2; r++)
        assert_int_equal(mk_agree_init(&a[r], r, 2, 3, 0), 0);
    for (int i = 0; i < 4; i++) {
        const bool takes = i % 2;
        assert_int_equal(mk_agree_propose(&a[0], 1 + (uint64_t)i, &m), 0);
        assert_int_equal(mk_agree_refuse(&a[0], &m, &out), MK_ERR_INVALID); /* it is rank 0's own */
        if (takes) {
            assert_int_equal(mk_agree_receive(&a[1], 0, &m, &out), 0);
        } else {
            assert_int_equal(mk_agree_refuse(&a[1], &m, &out), 0);
            assert_int_equal(out.kind, MK_AGREE_REFUSE);
            assert_int_equal(mk_agree_refuse(&a[1], &m, &out), MK_ERR_INVALID); /* once */
            out.kind = MK_AGREE_REFUSE;
            out.id = m.id;
        }
        assert_int_equal(mk_agree_receive(&a[0], 1, &out, &m), 0);
        assert_int_equal(m.kind, takes ? MK_AGREE_COMMIT : MK_AGREE_ABORT);
        assert_int_equal(mk_agree_refuse(&a[1], &m, &out), MK_ERR_INVALID); /* no proposal */
        assert_int_equal(mk_agree_receive(&a[1], 0, &m, &out), 0);
        for (int k = 0; k < 8; k++)
            for (int r = 0; r < 2; r++)
                assert_int_equal(mk_agree_begin(&a[r], &value), 0);
        assert_int_equal(value, takes ? 1 + i : i < 2 ? 0 : 2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refused),  cmocka_unit_test(every_order), cmocka_unit_test(broken_ones_are_caught),
        cmocka_unit_test(nonsense), cmocka_unit_test(far_ahead),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
