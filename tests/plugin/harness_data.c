/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Cases about data: every size, order, many requests, groups. Two ranks, both ways at once. */
#include "tests/plugin/harness.h"
#include <string.h>

static const size_t sizes_tried[] = {
    0,      1,      2,      3,       4,       7,       8,           9,        15,           16,
    17,     31,     32,     63,      64,      65,      127,         128,      129,          255,
    256,    257,    511,    512,     513,     1000,    1023,        1024,     1025,         2047,
    2048,   2049,   4095,   4096,    4097,    8191,    8192,        8193,     12288,        16383,
    16384,  16385,  32767,  32768,   32769,   65535,   65536,       65537,    131072,       262143,
    262144, 262145, 524287, 1048575, 1048576, 1048577, 4194304 + 3, 16777216, 33554432 + 1, 67108864,
};

static uint64_t seed_of(int from, uint64_t message)
{
    return (uint64_t)(from + 1) << 40 | message << 20;
}

static void check(struct rank *r, const struct buf *b, uint64_t seed, size_t n, int size)
{
    need(r, size == (int)n, "%zu bytes sent, but %d is the size", n, size);
    const long wrong = buf_wrong(b, seed, n);
    need(r, wrong < 0, "byte %ld of %zu is wrong", wrong, n);
    buf_canaries(r, b, "after a receive");
}

/* One message each way. Posted may be more than sent. */
static void swap(struct rank *r, struct link *l, size_t n, size_t posted, uint64_t message)
{
    struct buf a, b;
    int size = -1;
    buf_new(r, &a, n, random_below(r, 64));
    buf_new(r, &b, posted, random_below(r, 64));
    buf_reg(r, &a, l->send);
    buf_reg(r, &b, l->recv);
    buf_fill(&a, seed_of(r->me, message), n);
    void *rx = post_recv(r, l->recv, &b, posted, 0);
    finish_both(r, post_send(r, l->send, &a, n, 0), rx, &size);
    check(r, &b, seed_of(!r->me, message), n, size);
    step(r); /* the peer has read what came from here; nothing is in flight when memory goes */
    buf_free(r, &a);
    buf_free(r, &b);
}

static void sizes(struct rank *r)
{
    struct link l;
    uint64_t message = 0;
    link_up(r, &l, !r->me, 0);
    for (size_t i = 0; i < sizeof(sizes_tried) / sizeof(sizes_tried[0]); i++)
        if (sizes_tried[i] <= r->o->max)
            swap(r, &l, sizes_tried[i], sizes_tried[i], ++message);
    link_down(r, &l);
}

/* Receives posted larger than what is sent. */
static void unequal(struct rank *r)
{
    static const size_t pairs[][2] = {
        {0, 1},       {0, 65536},      {1, 8},         {5000, 5200},       {128, 4096},
        {8192, 8193}, {8193, 1 << 20}, {65536, 65537}, {1 << 20, 4 << 20}, {3 << 20, 8 << 20}};
    struct link l;
    link_up(r, &l, !r->me, 0);
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++)
        swap(r, &l, pairs[i][0], pairs[i][1], i + 1);
    link_down(r, &l);
}

/* The receiver posts 32 before the sender sends one: each must be taken. Tested from the last to the first. */
static void inflight(struct rank *r)
{
    enum { N = MK_NCCL_MAX_REQUESTS, BYTES = 20000 };
    struct link l;
    struct buf a, b;
    void *rx[N], *tx[N];
    link_up(r, &l, !r->me, 0);
    buf_new(r, &a, (size_t)N * BYTES, 0);
    buf_new(r, &b, (size_t)N * BYTES, 0);
    buf_reg(r, &a, l.send);
    buf_reg(r, &b, l.recv);
    for (int round = 0; round < 3 * r->o->rounds; round++) {
        const size_t bytes = round % 3 == 0 ? BYTES : round % 3 == 1 ? 64 : 8192;
        buf_fill(&a, seed_of(r->me, (uint64_t)round), (size_t)N * BYTES);
        for (int i = 0; i < N; i++) {
            struct buf part = b;
            part.data += (size_t)i * BYTES;
            rx[i] = try_recv(r, l.recv, &part, bytes, 0, false);
            need(r, rx[i], "irecv %d of %d is not taken", i, N);
        }
        step(r);
        for (int i = 0; i < N; i++) {
            struct buf part = a;
            part.data += (size_t)i * BYTES;
            tx[i] = post_send(r, l.send, &part, bytes, 0);
        }
        for (int left = 2 * N; left; breathe(r))
            for (int i = N - 1; i >= 0; i--) {
                int size = -1;
                if (tx[i] && tested(r, tx[i], 0, NULL)) {
                    tx[i] = NULL;
                    left--;
                }
                if (rx[i] && tested(r, rx[i], 1, &size)) {
                    need(r, size == (int)bytes, "size of receive %d is %d, not %zu", i, size, bytes);
                    rx[i] = NULL;
                    left--;
                }
            }
        for (int i = 0; i < N; i++) { /* part i of the peer's buffer */
            struct buf want;
            buf_new(r, &want, (size_t)N * BYTES, 0);
            buf_fill(&want, seed_of(!r->me, (uint64_t)round), (size_t)N * BYTES);
            need(r, !memcmp(want.data + (size_t)i * BYTES, b.data + (size_t)i * BYTES, bytes),
                 "part %d is wrong", i);
            buf_free(r, &want);
        }
        step(r);
    }
    buf_free(r, &a);
    buf_free(r, &b);
    link_down(r, &l);
}

/* ---- order: a stream of random messages, windows of random length, tests in random order ---- */

struct flow {
    void *request[MK_NCCL_MAX_REQUESTS];
    size_t n[MK_NCCL_MAX_REQUESTS];
    bool hint[MK_NCCL_MAX_REQUESTS];
    uint64_t number[MK_NCCL_MAX_REQUESTS];
    struct buf buf[MK_NCCL_MAX_REQUESTS];
    int held;
    uint64_t next;
};

enum { FLOW_BYTES = 70000 };

/* What message k of a rank is like: the same on both sides. */
static size_t flow_size(int from, uint64_t k)
{
    uint64_t x = (k + 1) * 0x9e3779b97f4a7c15ull ^ (uint64_t)from << 60;
    x ^= x >> 31;
    return (x & 7) == 0 ? 0 : (size_t)(x >> 20) % ((x & 3) == 1 ? FLOW_BYTES : 300);
}

static void flow_new(struct rank *r, struct flow *f, void *comm)
{
    memset(f, 0, sizeof(*f));
    for (int i = 0; i < MK_NCCL_MAX_REQUESTS; i++) {
        buf_new(r, &f->buf[i], FLOW_BYTES, (size_t)i);
        buf_reg(r, &f->buf[i], comm);
    }
}

static void flow_post(struct rank *r, struct flow *f, void *comm, bool sends, uint64_t count, int window)
{
    while (f->next < count && f->held < window) {
        int i = 0;
        while (f->request[i])
            i++;
        const int from = sends ? r->me : !r->me;
        const size_t n = flow_size(from, f->next);
        f->n[i] = n;
        f->number[i] = f->next;
        f->hint[i] = !sends && (f->next % 3) == 0 && caller_has_hint(&r->c);
        if (sends) {
            buf_fill(&f->buf[i], seed_of(from, f->next), n);
            f->request[i] = try_send(r, comm, &f->buf[i], n, 0);
        } else {
            memset(f->buf[i].data, 0, n);
            f->request[i] = try_recv(r, comm, &f->buf[i],
                                     n + (f->next % 5 == 0 && n + 64 < FLOW_BYTES ? 64 : 0), 0, f->hint[i]);
        }
        if (!f->request[i])
            return;
        f->held++;
        f->next++;
    }
}

static void flow_arrived(struct rank *r, struct flow *f, int i, int size)
{
    const uint64_t seed = seed_of(!r->me, f->number[i]);
    if (f->hint[i]) { /* may be early, and then the size says nothing; nobody calls the plugin for it again */
        while (buf_wrong(&f->buf[i], seed, f->n[i]) >= 0)
            breathe(r);
        return;
    }
    check(r, &f->buf[i], seed, f->n[i], size);
}

static void flow_test(struct rank *r, struct flow *f, bool sends)
{
    const int start = (int)random_below(r, MK_NCCL_MAX_REQUESTS);
    for (int k = 0; k < MK_NCCL_MAX_REQUESTS; k++) {
        const int i = (start + k) % MK_NCCL_MAX_REQUESTS;
        int size = -1;
        if (!f->request[i] || random_below(r, 3) == 0)
            continue;
        if (!tested(r, f->request[i], 1, &size))
            continue;
        f->request[i] = NULL;
        f->held--;
        if (!sends)
            flow_arrived(r, f, i, size);
    }
}

static void order(struct rank *r)
{
    static struct flow tx, rx;
    const uint64_t count = 1500 * (uint64_t)r->o->rounds;
    struct link l;
    link_up(r, &l, !r->me, 0);
    flow_new(r, &tx, l.send);
    flow_new(r, &rx, l.recv);
    while (tx.next < count || rx.next < count || tx.held || rx.held) {
        const int window = 1 + (int)random_below(r, MK_NCCL_MAX_REQUESTS);
        flow_post(r, &rx, l.recv, false, count, window);
        flow_post(r, &tx, l.send, true, count, window);
        flow_test(r, &rx, false);
        flow_test(r, &tx, true);
        breathe(r);
    }
    step(r);
    for (int i = 0; i < MK_NCCL_MAX_REQUESTS; i++) {
        buf_free(r, &tx.buf[i]);
        buf_free(r, &rx.buf[i]);
    }
    link_down(r, &l);
}

/* ---- grouped receives ---- */

enum { GROUP_BYTES = 40000, GROUPS = 24, AHEAD = 4, TAG0 = 100 };

static size_t group_size(int group, int tag)
{
    const uint64_t x = (uint64_t)(group * 64 + tag + 1) * 0xd1342543de82ef95ull;
    return (x >> 60) == 0 ? 0 : (size_t)(x >> 33) % ((x >> 58 & 3) ? 2000 : GROUP_BYTES);
}

/* The sender is one operation a tag, each with its own place in the sequence, in random order, as NCCL's shared
 * connections are; a send whose slot is not there yet is told so by a NULL request. */
static void group_sender(struct rank *r, struct link *l, int n)
{
    struct buf b[CALLER_GROUP_MAX];
    void *request[CALLER_GROUP_MAX] = {NULL};
    int at[CALLER_GROUP_MAX] = {0}, left = n;
    for (int t = 0; t < n; t++) {
        buf_new(r, &b[t], GROUP_BYTES, (size_t)t);
        buf_reg(r, &b[t], l->send);
    }
    while (left) {
        const int t = (int)random_below(r, (size_t)n);
        breathe(r);
        if (request[t]) {
            if (!tested(r, request[t], 1, NULL))
                continue;
            request[t] = NULL;
            left -= ++at[t] == GROUPS;
        } else if (at[t] < GROUPS) {
            const size_t bytes = group_size(at[t], t);
            buf_fill(&b[t], seed_of(t, (uint64_t)at[t]), bytes);
            request[t] = try_send(r, l->send, &b[t], bytes, TAG0 + t);
        }
    }
    step(r);
    for (int t = 0; t < n; t++)
        buf_free(r, &b[t]);
}

static void group_receiver(struct rank *r, struct link *l, int n)
{
    static struct buf b[AHEAD][CALLER_GROUP_MAX];
    void *request[AHEAD] = {NULL};
    int posted = 0, done = 0;
    for (int g = 0; g < AHEAD; g++)
        for (int t = 0; t < n; t++) {
            buf_new(r, &b[g][t], GROUP_BYTES + 8, (size_t)(g + t));
            buf_reg(r, &b[g][t], l->recv);
        }
    while (done < GROUPS) {
        breathe(r);
        if (posted < GROUPS && posted < done + AHEAD) {
            size_t room[CALLER_GROUP_MAX];
            int tags[CALLER_GROUP_MAX];
            for (int k = 0; k < n; k++) { /* slots rotate over the groups */
                tags[k] = TAG0 + (k + posted) % n;
                room[k] = group_size(posted, (k + posted) % n) + (size_t)(k & 1) * 8;
            }
            request[posted % AHEAD] = try_recv_group(r, l->recv, n, b[posted % AHEAD], room, tags);
            posted += request[posted % AHEAD] != NULL;
        }
        int size[CALLER_GROUP_MAX];
        if (done < posted && tested(r, request[done % AHEAD], n, size)) {
            for (int k = 0; k < n; k++)
                check(r, &b[done % AHEAD][k], seed_of((k + done) % n, (uint64_t)done),
                      group_size(done, (k + done) % n), size[k]);
            done++;
        }
    }
    step(r);
    for (int g = 0; g < AHEAD; g++)
        for (int t = 0; t < n; t++)
            buf_free(r, &b[g][t]);
}

static void grouped(struct rank *r)
{
    struct link l;
    if (r->props.maxRecvs < 2)
        skip(r, "maxRecvs is 1");
    need(r, !r->o->own || r->props.maxRecvs >= 8, "maxRecvs is %d", r->props.maxRecvs);
    link_up(r, &l, !r->me, 0);
    for (int n = r->props.maxRecvs; n >= 2; n = n > 2 && n / 2 < 2 ? 2 : n / 2) {
        if (r->me)
            group_receiver(r, &l, n);
        else
            group_sender(r, &l, n);
    }
    link_down(r, &l);
}

/* 32 groups posted before anything is sent, and as many sends as they take before any of them is tested. */
static void inflight_groups(struct rank *r)
{
    enum { G = MK_NCCL_MAX_REQUESTS, BYTES = 9000 };
    static void *request[G * CALLER_GROUP_MAX];
    struct link l;
    struct buf all, part[CALLER_GROUP_MAX];
    const int n = r->props.maxRecvs < 8 ? r->props.maxRecvs : 8;
    size_t room[CALLER_GROUP_MAX];
    int tags[CALLER_GROUP_MAX], size[CALLER_GROUP_MAX];
    if (n < 2)
        skip(r, "maxRecvs is 1");
    link_up(r, &l, !r->me, 0);
    buf_new(r, &all, (size_t)G * 8 * BYTES, 0);
    buf_reg(r, &all, r->me ? l.recv : l.send);
    buf_fill(&all, 77, r->me ? 0 : all.size);
    for (int g = 0; r->me && g < G; g++) {
        for (int k = 0; k < n; k++) {
            part[k] = all;
            part[k].data += (size_t)(g * n + k) * BYTES;
            room[k] = g & 1 ? BYTES : 500;
            tags[k] = k;
        }
        request[g] = try_recv_group(r, l.recv, n, part, room, tags);
        need(r, request[g], "group %d of %d is not taken", g, G);
    }
    step(r);
    for (int i = 0; !r->me && i < G * n; i++) {
        part[0] = all;
        part[0].data += (size_t)i * BYTES;
        request[i] = post_send(r, l.send, &part[0], i / n & 1 ? BYTES : 500, i % n);
    }
    for (int left = r->me ? G : G * n, of = left; left; breathe(r))
        for (int i = of - 1; i >= 0; i--)
            if (request[i] && tested(r, request[i], r->me ? n : 0, size)) {
                for (int k = 0; r->me && k < n; k++)
                    need(r, size[k] == (i & 1 ? BYTES : 500), "size %d of group %d is %d", k, i, size[k]);
                request[i] = NULL;
                left--;
            }
    struct buf want;
    buf_new(r, &want, all.size, 0);
    buf_fill(&want, 77, want.size);
    for (int i = 0; i < G * n; i++)
        need(r, !memcmp(want.data + (size_t)i * BYTES, all.data + (size_t)i * BYTES, i / n & 1 ? BYTES : 500),
             "message %d is wrong", i);
    buf_free(r, &want);
    step(r);
    buf_free(r, &all);
    link_down(r, &l);
}

/* ---- more sent than there is room for ---- */

static void too_small(struct rank *r)
{
    static const size_t pairs[][2] = {{9, 8}, {5000, 4999}, {1 << 20, 65536}, {1, 0}, {1 << 20, 100}};
    const int patience = (int)r->o->patience;
    for (int i = 0; i < 5; i++) {
        struct link l;
        struct buf b;
        link_up(r, &l, !r->me, i);
        buf_new(r, &b, pairs[i][r->me], 0);
        buf_reg(r, &b, r->me ? l.recv : l.send);
        set_word(r, 0);
        step(r);
        int ret;
        if (r->me == 0) {
            void *tx = NULL;
            while (!(ret = caller_isend(&r->c, l.send, b.data, pairs[i][0], 0, b.mh, &tx)) && !tx)
                breathe(r);
            ret = ret ? ret : outcome(r, tx, 0, NULL, patience / 3.0);
        } else {
            int size = -1;
            void *rx = post_recv(r, l.recv, &b, pairs[i][1], 0);
            ret = outcome(r, rx, 1, &size, patience / 3.0);
            need(r, ret, "a receive of %zu bytes of which %zu were sent is done, with size %d", pairs[i][1],
                 pairs[i][0], size);
            buf_canaries(r, &b, "a receive that is too small");
        }
        set_word(r, 1 + (uint32_t)ret);
        step(r);
        const uint32_t a = r->sh->word[0] - 1, z = r->sh->word[1] - 1;
        need(r, a == MK_NCCL_INVALID_USAGE || z == MK_NCCL_INVALID_USAGE,
             "%zu bytes to a receive of %zu: sender has %u, receiver %u; none says invalid usage (5)",
             pairs[i][0], pairs[i][1], a, z);
        need(r, !r->o->own || z == MK_NCCL_INVALID_USAGE, "the receiver has %u, not invalid usage (5)", z);
        buf_free(r, &b);
        link_down(r, &l);
    }
}

const struct test_case cases_data[] = {
    {.name = "sizes", .ranks = 2, .run = sizes},
    {.name = "unequal", .ranks = 2, .run = unequal},
    {.name = "inflight", .ranks = 2, .run = inflight},
    {.name = "order", .ranks = 2, .run = order},
    {.name = "grouped", .ranks = 2, .run = grouped},
    {.name = "inflight_groups", .ranks = 2, .run = inflight_groups},
    {.name = "too_small", .ranks = 2, .run = too_small},
    {.name = NULL},
};
