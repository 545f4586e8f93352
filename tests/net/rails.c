/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Messages over several rails (argument 1: transport, with ":ports"): a message is there when every piece of it is, in
 * whatever order rails deliver; a rail that breaks ends the request on both sides. */
#include "mk/err.h"
#include "net/engine.h"
#include "net/loop/loop.h"
#include "net/p2p.h"
#include "tests/net/p2p_help.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
/* after the above */
#include <cmocka.h>

#define LONG_NS 40000000000ull

static const char *transport;

static bool lost(int ret)
{
    return ret == MK_ERR_PEER || ret == MK_ERR_NET || ret == MK_ERR_TIMEOUT;
}

static bool is_loop(void)
{
    return !strncmp(transport, "loop", 4);
}

static struct mk_engine *engine(struct half *h, int port)
{
    return port ? h->p->port[port - 1] : h->p->e;
}

/* ---- how a message is cut ---- */

static void test_pieces(void **state)
{
    static const uint64_t size[] = {0,     1,     4095,  4096,    4097,    8191,          8192,
                                    12289, 65535, 65536, 1000003, 1 << 20, (1 << 30) - 1, 1 << 30};
    (void)state;
    for (size_t i = 0; i < sizeof(size) / sizeof(size[0]); i++)
        for (unsigned rails = 1; rails <= MK_P2P_RAILS; rails++) {
            uint64_t at = 0;
            bool ended = false;
            for (unsigned r = 0; r < rails; r++) {
                const struct mk_p2p_piece p = mk_p2p_piece(size[i], rails, r);
                assert_int_equal(p.off, at);
                assert_true(!ended || !p.len);
                ended = !p.len;
                at += p.len;
                assert_true(p.len <= size[i] / rails + 4096);
            }
            assert_int_equal(at, size[i]);
        }
}

/* ---- messages ---- */

/* From process 0 to 1: `sent` bytes into `posted`, checked on both sides of the buffer. */
static int one(struct half *h, size_t sent, size_t posted, unsigned seed)
{
    struct mk_p2p_req *r;
    size_t got = SIZE_MAX;
    if (!h->who) {
        paint(h->mem, sent, seed);
        CHECK_OK(post_send(h->tx, h->mem, sent, 3, h->tx_mr, &r));
        return finish(r, NULL);
    }
    const size_t behind = posted + 64 <= HALF_BYTES / 2 - 64 ? 64 : 0;
    memset(half_in(h), 0xee, 64 + posted + behind);
    CHECK_OK(post_recv(h->rx, half_in(h) + 64, posted, 3, h->rx_mr, &r));
    CHECK_OK(finish(r, &got));
    CHECK(got == sent && painted(half_in(h) + 64, sent, seed));
    for (size_t i = 0; i < 64; i++)
        CHECK(half_in(h)[i] == 0xee && (!behind || half_in(h)[64 + posted + i] == 0xee));
    return 0;
}

static int sizes(struct half *h)
{
    static const size_t size[] = {
        0,      1,      8191,   8192,    8193,    12288, 12289, 20000,    65536,           65537,
        100000, 262144, 262145, 1 << 20, 3000001, 777,   8200,  12345678, (32 << 20) - 128};
    for (size_t i = 0; i < sizeof(size) / sizeof(size[0]); i++)
        for (int k = 0; k < (size[i] > 1 << 20 ? 2 : 6); k++) {
            const size_t less = k % 3 == 1 ? size[i] / 3 : k % 3 == 2 ? size[i] - size[i] / 100 : size[i];
            CHECK_OK(one(h, less, size[i], (unsigned)(i * 13) + (unsigned)k));
        }
    return half_step(h);
}

/* All links of all ports were used, and no more than was agreed. */
static int used(struct half *h, unsigned rails)
{
    struct mk_p2p_comm *c = h->who ? h->rx : h->tx;
    CHECK(c->nrails == rails);
    for (unsigned r = 1; r < rails; r++) {
        uint64_t pieces = 0;
        for (uint32_t i = 0; i < MK_P2P_MAIL; i++)
            pieces += c->rail[r - 1].used[i];
        CHECK(pieces > 0);
    }
    return 0;
}

static int plain(struct half *h)
{
    CHECK_OK(half_join(h));
    CHECK_OK(sizes(h));
    return used(h, h->p->nrails);
}

/* The links do not go at one speed. */
static int slow_rail(struct half *h)
{
    struct mk_settings s[MK_P2P_RAILS];
    for (int i = 0; i < h->ports; i++) {
        s[i] = h->s;
        s[i].loop_gbps = i % 2 ? 0.8 : 8;
    }
    CHECK_OK(mk_p2p_open_ports(s, h->ports, &h->p));
    CHECK_OK(half_join(h));
    for (int k = 0; k < 24; k++)
        CHECK_OK(one(h, k % 3 ? 400000 : 1 << 20, k % 2 ? 1 << 20 : 2 << 20, (unsigned)k));
    CHECK_OK(half_step(h));
    return used(h, h->p->nrails);
}

/* Every rail reorders and delays on its own. */
static int hostile(struct half *h)
{
    struct mk_settings s[MK_P2P_RAILS];
    for (int i = 0; i < h->ports; i++) {
        s[i] = h->s;
        s[i].loop_hostile = 7 + i * 11 + h->who;
    }
    CHECK_OK(mk_p2p_open_ports(s, h->ports, &h->p));
    CHECK_OK(half_join(h));
    CHECK_OK(sizes(h));
    return used(h, h->p->nrails);
}

/* Eight buffers in one receive, sent in another order, large and small. */
static int grouped(struct half *h)
{
    enum { N = MK_P2P_RECVS };
    const size_t stride = 400000;
    CHECK_OK(half_join(h));
    for (int round = 0; round < 20; round++) {
        struct mk_p2p_req *r[N];
        void *data[N];
        size_t size[N], got[N];
        int tag[N];
        struct mk_p2p_mr *mr[N];
        for (int i = 0; i < N; i++) {
            data[i] = half_in(h) + (size_t)i * stride;
            size[i] = i % 3 ? stride : 5000;
            tag[i] = 20 + i;
            mr[i] = h->rx_mr;
        }
        if (h->who) {
            CHECK_OK(mk_p2p_recv(h->rx, N, data, size, tag, mr, &r[0]));
            CHECK_OK(finish(r[0], got));
        }
        for (int k = 0; k < N; k++) {
            const int i = (k * 3 + round) % N;
            const size_t n = size[i] - (size_t)((i + round) % 4) * 1000;
            if (!h->who) {
                paint(h->mem + (size_t)i * stride, n, (unsigned)(i + round));
                CHECK_OK(post_send(h->tx, h->mem + (size_t)i * stride, n, tag[i], h->tx_mr, &r[k]));
            } else {
                CHECK(got[i] == n && painted(data[i], n, (unsigned)(i + round)));
            }
        }
        for (int k = 0; k < N && !h->who; k++)
            CHECK_OK(finish(r[k], NULL));
    }
    return half_step(h);
}

/* ---- agreement ---- */

/* Ports and links over each: what both have; the larger threshold counts. */
static int fewer(struct half *h)
{
    static const struct {
        int ports[2], qps[2];
        unsigned rails, over;
    } each[] = {{{2, 1}, {2, 2}, 2, 1}, {{2, 2}, {1, 3}, 2, 2}, {{3, 2}, {2, 1}, 2, 2},
                {{3, 2}, {2, 2}, 4, 2}, {{1, 2}, {2, 1}, 1, 1}, {{3, 3}, {8, 2}, 6, 3}};
    for (size_t i = 0; i < sizeof(each) / sizeof(each[0]); i++) {
        h->ports = each[i].ports[h->who];
        h->s.qps = each[i].qps[h->who];
        h->s.stripe = h->who ? 8192 : 50000;
        CHECK_OK(half_join(h));
        CHECK(h->tx->nrails == each[i].rails && h->rx->nrails == each[i].rails);
        CHECK(h->tx->ports == each[i].over && h->rx->ports == each[i].over);
        CHECK(h->tx->stripe == 50000 && h->rx->stripe == 50000);
        for (unsigned r = 1; r < each[i].rails; r++)
            CHECK(h->tx->rail[r - 1].port == r % each[i].over && h->rx->rail[r - 1].port == r % each[i].over);
        for (int k = 0; k < 3; k++)
            CHECK_OK(one(h, 1000000 - (size_t)k * 300000, 1000000, (unsigned)k));
        CHECK_OK(half_step(h));
        CHECK_OK(used(h, each[i].rails));
        half_part(h);
        CHECK_OK(half_step(h));
        mk_p2p_close(h->p);
        h->p = NULL;
        CHECK_OK(half_step(h));
    }
    return 0;
}

/* ---- a rail that does not do what it should ---- */

/* Tests until it has ended; 0, or the error. The text says what `want` is. */
static int ends(struct mk_p2p_req *r, const char *want, int *out)
{
    const uint64_t end = mk_time_ns() + LONG_NS;
    bool done = false;
    do
        *out = mk_p2p_test(r, &done, NULL);
    while (!*out && !done && mk_time_ns() < end);
    CHECK(*out || done);
    if (*out && !strstr(mk_last_error(), want)) {
        fprintf(stderr, "\"%s\" does not say \"%s\"\n", mk_last_error(), want);
        return 1;
    }
    return 0;
}

enum { FAILS, DIES, STALLS, LOSES };
static int broken_how, broken_port;

/* In the middle of a message, at the sender. */
static int broken(struct half *h)
{
    struct mk_loop_faults f;
    struct mk_p2p_req *r;
    int ret;
    const size_t n = 1 << 20;
    h->s.timeout = 3;
    h->s.qps = 1;
    CHECK_OK(half_join(h));
    CHECK_OK(one(h, n, n, 1));
    CHECK_OK(half_step(h));
    memset(half_in(h), 0x11, n);
    if (h->who) {
        CHECK_OK(post_recv(h->rx, half_in(h), n, 0, h->rx_mr, &r));
        bool done = false;
        ret = 0;
        if (broken_how == LOSES) { /* said to be complete: nobody finds out but who waits for it */
            const uint64_t end = mk_time_ns() + 1500000000ull;
            while (mk_time_ns() < end && !done && !ret)
                ret = mk_p2p_test(r, &done, NULL);
            CHECK(!done && !ret);
        } else {
            CHECK_OK(ends(r, broken_port ? "rails" : "", &ret));
            CHECK(lost(ret));
        }
        return half_serve(h);
    }
    memset(&f, 0, sizeof(f));
    f.fail_write = broken_how == FAILS;
    f.drop_write = broken_how == LOSES;
    f.dead = broken_how == DIES;
    f.stalled = broken_how == STALLS;
    CHECK_OK(mk_loop_set_faults(engine(h, broken_port)->dev, &f));
    paint(h->mem, n, 9);
    CHECK_OK(post_send(h->tx, h->mem, n, 0, h->tx_mr, &r));
    CHECK_OK(ends(r, "", &ret));
    CHECK(broken_how == LOSES ? !ret : lost(ret));
    CHECK(!ret || !broken_port || strstr(h->tx->rail[0].l->text, "rail 1"));
    CHECK_OK(half_serve(h));
    mk_loop_set_faults(engine(h, broken_port)->dev, NULL);
    return 0;
}

static void test_broken(void **state)
{
    (void)state;
    for (broken_how = FAILS; broken_how <= LOSES; broken_how++)
        for (broken_port = 0; broken_port < 2; broken_port++)
            assert_int_equal(run_pair(transport, broken, 1), 0);
}

/* One piece comes long after the others: nothing is done before. */
static int late_piece(struct half *h)
{
    const size_t n = 600000;
    h->s.qps = 1;
    CHECK_OK(half_join(h));
    for (int k = 0; k < 4; k++) {
        struct mk_loop_faults f = {.delay_write = 1, .delay_ns = 300000000};
        if (!h->who)
            CHECK_OK(mk_loop_set_faults(engine(h, k & 1)->dev, &f));
        CHECK_OK(one(h, n, k < 2 ? n : n + 5000, (unsigned)k));
        CHECK_OK(half_step(h));
        mk_loop_set_faults(engine(h, k & 1)->dev, NULL);
    }
    return half_step(h);
}

/* ---- lies ---- */

/* The receiver lies about where its memory is for the second port: an error at the sender, and nothing is written but what
 * was posted. */
static int wrong_keys(struct half *h)
{
    static uint8_t *other;
    struct mk_p2p_req *r;
    struct mk_p2p_mr *m = NULL;
    bool done;
    const size_t n = 1 << 20;
    h->s.qps = 1;
    for (int k = 0; k < 3; k++) {
        CHECK_OK(half_join(h));
        memset(half_in(h), 0x11, HALF_BYTES / 2);
        CHECK_OK(one(h, n, n, 0)); /* the keys are known to both from now on */
        if (h->who) {
            other = calloc(1, n / 4);
            CHECK(other);
            CHECK_OK(mk_p2p_reg(h->rx, other, n / 4, &m));
            CHECK_OK(post_recv(h->rx, other, n / 4, 8, m, &r)); /* gets it a key that peers can write */
            struct mk_net_key *key = &h->rx_mr->port[0].key;
            memset(&key->bytes, k ? 0xff : 0, sizeof(key->bytes));
            if (k == 2)
                *key = m->port[0].key; /* shorter than what it is said to be */
            CHECK_OK(post_recv(h->rx, half_in(h), n, 0, h->rx_mr, &r));
            for (int i = 0; i < 1000; i++)
                (void)mk_p2p_test(r, &done, NULL); /* until it is announced */
            CHECK_OK(half_serve(h));
            for (size_t i = 0; i < n / 4; i++)
                CHECK(!other[i]);
        } else {
            int ret;
            memset(h->mem, 0x77, n);
            ret = post_send(h->tx, h->mem, n, 0, h->tx_mr, &r); /* may find it already */
            CHECK(!ret || strstr(mk_last_error(), "memory that"));
            if (!ret)
                CHECK_OK(ends(r, "memory that", &ret));
            CHECK(ret == MK_ERR_PEER);
            CHECK_OK(half_serve(h));
        }
        half_part(h);
        free(other);
        other = NULL;
        CHECK_OK(half_step(h));
    }
    return 0;
}

/* Notes of pieces that nobody asked for, and a size that is none: the receiver writes nothing, and goes on or says so. */
static int wrong_pieces(struct half *h)
{
    struct mk_p2p_req *r;
    const size_t n = 1 << 20;
    h->s.qps = 1;
    CHECK_OK(half_join(h));
    CHECK_OK(one(h, n, n, 1));
    CHECK_OK(half_step(h));
    if (h->who) {
        int ret;
        memset(half_in(h), 0xee, 3 * n);
        CHECK_OK(post_recv(h->rx, half_in(h) + n, n, 0, h->rx_mr, &r));
        CHECK_OK(ends(r, "says that it wrote", &ret));
        CHECK(ret == MK_ERR_PEER);
        CHECK_OK(half_serve(h));
        for (size_t i = 0; i < n; i++)
            CHECK(half_in(h)[i] == 0xee && half_in(h)[2 * n + i] == 0xee);
        return 0;
    }
    struct mk_p2p_comm *c = h->tx;
    const uint64_t size = n + 1;
    pthread_mutex_lock(&h->p->lock);
    for (uint32_t i = 0; i < MK_P2P_MAIL; i++) {
        const struct mk_put put = {
            .note = i, .use4 = (c->rail[0].used[i] + 1) & 15, .value = c->rail[0].used[i] + 1};
        CHECK(mk_link_put(c->rail[0].l, &put, 1) == 1);
    }
    for (uint32_t i = 0; i < MK_P2P_MAIL; i++) { /* whichever slot it is */
        const uint64_t at = MK_P2P_SEND_SIZE_AT + 8ull * i;
        memcpy((uint8_t *)c->ctrl.addr + at, &size, 8);
        const struct mk_put puts[2] = {
            {.note = MK_P2P_RECV_PART + i, .use4 = (c->tx->part[i] + 1) & 15, .value = c->tx->part[i] + 1},
            {.mr = c->ctrl_mr,
             .local_off = at,
             .len = 8,
             .rmem = c->peer,
             .remote_off = MK_P2P_RECV_SIZE_AT + 8ull * i,
             .note = MK_P2P_RECV_SIZE + i,
             .use4 = (c->tx->rec[i] + 1) & 15,
             .value = c->tx->rec[i] + 1}};
        CHECK_OK(mk_p2p_put(c, puts, 2));
    }
    pthread_mutex_unlock(&h->p->lock);
    return half_serve(h);
}

/* Hellos and replies whose numbers of rails make no sense. */
static int wrong_numbers(struct half *h)
{
    struct mk_p2p_side mine, peer;
    CHECK_OK(half_join(h));
    memset(&mine, 0, sizeof(mine));
    memset(&peer, 0, sizeof(peer));
    const unsigned n = h->tx->nrails;
    static const unsigned bad[][2] = {{3, 2}, {3, 1}, {0, 0},          {0, 1},         {1, 0},
                                      {1, 2}, {3, 4}, {UINT32_MAX, 1}, {2, UINT32_MAX}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        peer.rails = bad[i][0];
        peer.ports = bad[i][1];
        CHECK(mk_p2p_rails_agree(h->tx, &mine, &peer) == MK_ERR_PEER && h->tx->nrails == n);
    }
    peer.rails = n + 1;
    peer.ports = 1;
    CHECK(mk_p2p_rails_agree(h->tx, &mine, &peer) == MK_ERR_PEER && h->tx->nrails == n);
    return half_step(h);
}

#define CASE(fn)                                                                                             \
    static void test_##fn(void **state)                                                                      \
    {                                                                                                        \
        (void)state;                                                                                         \
        assert_int_equal(run_pair(transport, fn, 1), 0);                                                     \
    }
CASE(plain)
CASE(slow_rail)
CASE(hostile)
CASE(grouped)
CASE(fewer)
CASE(late_piece)
CASE(wrong_keys)
CASE(wrong_pieces)
CASE(wrong_numbers)

int main(int argc, char **argv)
{
    const struct CMUnitTest all[] = {
        cmocka_unit_test(test_pieces),       cmocka_unit_test(test_plain),
        cmocka_unit_test(test_slow_rail),    cmocka_unit_test(test_grouped),
        cmocka_unit_test(test_fewer),        cmocka_unit_test(test_wrong_keys),
        cmocka_unit_test(test_wrong_pieces), cmocka_unit_test(test_wrong_numbers)};
    const struct CMUnitTest loop[] = {cmocka_unit_test(test_hostile), cmocka_unit_test(test_broken),
                                      cmocka_unit_test(test_late_piece)};
    transport = argc > 1 ? argv[1] : "loop:2";
    setenv("MK_STRIPE", "8K", 0);
    setenv("MK_QPS", "2", 0);
    const int missing = transport_missing(transport, "net.rails");
    if (missing)
        return missing;
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    const int failed = cmocka_run_group_tests(all, NULL, NULL);
    return failed || !is_loop() ? failed : cmocka_run_group_tests(loop, NULL, NULL);
}
