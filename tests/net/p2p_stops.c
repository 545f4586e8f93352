/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Memory that is taken back while messages use it, from peers that go on, stand still, or are given up. Transport:
 * argument 1. */
#include "mk/err.h"
#include "net/engine.h"
#include "net/p2p.h"
#include "tests/net/p2p_help.h"
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>
/* after the above */
#include <cmocka.h>

static const char *transport;

static bool lost(int ret)
{
    return ret == MK_ERR_PEER || ret == MK_ERR_NET || ret == MK_ERR_TIMEOUT;
}

/* What was asked of this comm can end, if not well. */
static bool ended(int ret)
{
    return !ret || ret == MK_ERR_ABORTED || lost(ret);
}

/* Memory that is taken away under messages that are on their way, and unmapped: no crash, no hang, an error or the
 * message; then the same two devices make new comms. */
static int taken_away(struct half *h)
{
    const size_t n = HALF_BYTES / 2;
    for (int round = 0; round < 6; round++) {
        struct mk_p2p_req *s, *r;
        bool done;
        CHECK_OK(half_join(h));
        CHECK_OK(post_send(h->tx, h->mem, n, 0, h->tx_mr, &s));
        CHECK_OK(post_recv(h->rx, half_in(h), n, 0, h->rx_mr, &r));
        CHECK_OK(half_step(h));
        const uint64_t end = mk_time_ns() + 200000u * (uint64_t)round;
        bool both = false;
        int ret = 0;
        while (mk_time_ns() < end && !both && !ret) {
            ret = mk_p2p_test(s, &done, NULL); /* the other side may have done it already */
            both = done;
        }
        mk_p2p_dereg(h->tx, h->tx_mr);
        mk_p2p_dereg(h->rx, h->rx_mr);
        half_unmap(h);
        ret = both ? 0 : mk_p2p_test(s, &done, NULL);
        CHECK(ended(ret));
        ret = mk_p2p_test(r, &done, NULL);
        CHECK(ended(ret));
        half_part(h);
        CHECK_OK(half_step(h));
    }
    struct mk_p2p_req *s, *r;
    CHECK_OK(half_join(h));
    paint(h->mem, 1 << 20, 3);
    CHECK_OK(post_send(h->tx, h->mem, 1 << 20, 0, h->tx_mr, &s));
    CHECK_OK(post_recv(h->rx, half_in(h), 1 << 20, 0, h->rx_mr, &r));
    CHECK_OK(finish_two(s, r, NULL));
    CHECK(painted(half_in(h), 1 << 20, 3));
    return half_step(h);
}

/* Memory that is taken back while a message is being written into it is not written any more, whatever the network
 * still has of that message. Nor is a source read any more: what the peer gets is the message, or nothing. */
static int late_write(struct half *h)
{
    const size_t n = HALF_BYTES / 2;
    for (int round = 0; round < 4; round++) {
        struct mk_p2p_req *s, *r;
        bool done = false;
        CHECK_OK(half_join(h));
        memset(h->mem, 0x77, n);
        memset(half_in(h), 0x11, n);
        CHECK_OK(half_step(h));
        uint8_t *mem = h->mem, *in = half_in(h);
        if (h->who) {
            CHECK_OK(post_send(h->tx, mem, n, 0, h->tx_mr, &s));
            int ret = 0;
            while (!done && !ret)
                ret = mk_p2p_test(s, &done, NULL);
            CHECK(ended(ret));
        } else {
            CHECK_OK(post_recv(h->rx, in, n, 0, h->rx_mr, &r));
            const uint64_t end = mk_time_ns() + 10000000000ull;
            while (__atomic_load_n(&in[n / 4 * (size_t)round], __ATOMIC_RELAXED) != 0x77 && !done) {
                CHECK_OK(mk_p2p_test(r, &done, NULL));
                CHECK(mk_time_ns() < end);
            }
            mk_p2p_dereg(h->rx, h->rx_mr);
            memset(in, 0x3c, n);
        }
        half_part(h);
        h->mem = NULL;
        CHECK_OK(half_join(h)); /* the same devices go on */
        CHECK_OK(post_send(h->tx, h->mem, 50000, 0, h->tx_mr, &s));
        CHECK_OK(post_recv(h->rx, half_in(h), 50000, 0, h->rx_mr, &r));
        CHECK_OK(finish_two(s, r, NULL));
        for (size_t i = 0; !h->who && i < n; i++)
            CHECK(in[i] == 0x3c);
        munmap(mem, HALF_BYTES);
        half_part(h);
        CHECK_OK(half_step(h));
    }
    return 0;
}

/* As late_write, but the peer stands still in the middle of its message, longer than anybody waits for it, and goes on
 * later. */
static int stopped_peer(struct half *h)
{
    const size_t n = HALF_BYTES / 2;
    struct mk_p2p_req *s, *r;
    bool done = false;
    int ret = 0;
    pid_t me = getpid(), peer = 0;
    CHECK_OK(half_join(h));
    memset(h->mem, 0x77, n);
    memset(half_in(h), 0x11, n);
    CHECK_OK(half_swap(h, &me, &peer, sizeof(me)));
    uint8_t *mem = h->mem, *in = half_in(h);
    if (h->who) {
        CHECK_OK(post_send(h->tx, h->mem, n, 0, h->tx_mr, &s));
        while (!done && !ret)
            ret = mk_p2p_test(s, &done, NULL);
        CHECK(ended(ret));
    } else {
        CHECK_OK(post_recv(h->rx, in, n, 0, h->rx_mr, &r));
        const uint64_t end = mk_time_ns() + 10000000000ull;
        while (__atomic_load_n(&in[n / 4], __ATOMIC_RELAXED) != 0x77 && !done) {
            CHECK_OK(mk_p2p_test(r, &done, NULL));
            CHECK(mk_time_ns() < end);
        }
        CHECK(!kill(peer, SIGSTOP));
        mk_p2p_dereg(h->rx, h->rx_mr);
        memset(in, 0x3c, n);
        CHECK(!kill(peer, SIGCONT));
    }
    CHECK_OK(half_serve(h));
    half_part(h);
    h->mem = NULL;
    CHECK_OK(half_join(h)); /* the same devices go on */
    CHECK_OK(post_send(h->tx, h->mem, 500000, 0, h->tx_mr, &s));
    CHECK_OK(post_recv(h->rx, half_in(h), 500000, 0, h->rx_mr, &r));
    CHECK_OK(finish_two(s, r, NULL));
    for (size_t i = 0; !h->who && i < n; i++)
        CHECK(in[i] == 0x3c);
    munmap(mem, HALF_BYTES);
    return half_step(h);
}

/* Until the first bytes are here, at most 10 s. */
static int until_begun(struct mk_p2p_req *r, const uint8_t *in, bool *done)
{
    const uint64_t end = mk_time_ns() + 10000000000ull;
    while (__atomic_load_n(&in[65536], __ATOMIC_RELAXED) != 0x77 && !*done) {
        CHECK_OK(mk_p2p_test(r, done, NULL));
        CHECK(mk_time_ns() < end);
    }
    return 0;
}

/* Two ranks at one address, as devices of process 1, both in the middle of a message. When one of them has to be cut off
 * the other one is too; also where we opened the network's connection to it. */
static int neighbour(struct half *h)
{
    const size_t n = HALF_BYTES / 2;
    struct mk_p2p *p = NULL;
    struct mk_p2p_comm *tx = NULL, *rx = NULL;
    struct mk_p2p_mr *mr;
    struct mk_p2p_req *r[2];
    bool done[2] = {false, false};
    int ret[2] = {0, 0};
    pid_t me = getpid(), peer = 0;
    CHECK_OK(half_join(h));
    if (h->who)
        CHECK_OK(mk_p2p_open(&h->s, &p));
    else
        p = h->p;
    CHECK_OK(h->who ? half_meet(h, p, NULL, &rx) : half_meet(h, p, &tx, NULL)); /* who connects opens it */
    CHECK_OK(h->who ? half_meet(h, p, &tx, NULL) : half_meet(h, p, NULL, &rx));
    uint8_t *second = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(second != MAP_FAILED);
    memset(second, h->who ? 0x77 : 0x11, n);
    memset(h->mem, 0x77, n);
    memset(half_in(h), 0x11, n);
    CHECK_OK(mk_p2p_reg(h->who ? tx : rx, second, n, &mr));
    CHECK_OK(half_swap(h, &me, &peer, sizeof(me)));
    if (h->who) {
        CHECK_OK(post_send(h->tx, h->mem, n, 0, h->tx_mr, &r[0]));
        CHECK_OK(post_send(tx, second, n, 0, mr, &r[1]));
        while ((!done[0] && !ret[0]) || (!done[1] && !ret[1]))
            for (int i = 0; i < 2; i++)
                ret[i] = done[i] || ret[i] ? ret[i] : mk_p2p_test(r[i], &done[i], NULL);
        /* or all of it was with the network before the cut: then it is done for the sender */
        CHECK((lost(ret[0]) || done[0]) && (lost(ret[1]) || done[1]));
    } else {
        CHECK_OK(post_recv(h->rx, half_in(h), n, 0, h->rx_mr, &r[0]));
        CHECK_OK(post_recv(rx, second, n, 0, mr, &r[1]));
        CHECK_OK(until_begun(r[0], half_in(h), &done[0]));
        CHECK_OK(until_begun(r[1], second, &done[1]));
        CHECK(!kill(peer, SIGSTOP) && !done[0] && !done[1]);
        mk_p2p_dereg(h->rx, h->rx_mr);
        mk_p2p_dereg(rx, mr);
        memset(half_in(h), 0x3c, n);
        memset(second, 0x3c, n);
        CHECK(!kill(peer, SIGCONT));
    }
    CHECK_OK(half_serve(h));
    for (size_t i = 0; !h->who && i < n; i++)
        CHECK(half_in(h)[i] == 0x3c && second[i] == 0x3c);
    mk_p2p_comm_close(tx);
    mk_p2p_comm_close(rx);
    if (h->who)
        mk_p2p_close(p);
    munmap(second, n);
    return half_step(h);
}

/* How many bytes the kernel may keep of one connection, at both ends together: the third number of each setting, or 32 MiB
 * for one that it does not tell. */
static size_t kernel_keeps(void)
{
    static const char *const path[] = {"/proc/sys/net/ipv4/tcp_rmem", "/proc/sys/net/ipv4/tcp_wmem"};
    size_t sum = 0;
    for (int i = 0; i < 2; i++) {
        size_t most = 0;
        FILE *f = fopen(path[i], "r");
        sum += f && fscanf(f, "%*u %*u %zu", &most) == 1 ? most : 32u << 20;
        if (f)
            fclose(f);
    }
    return sum;
}

/* As stopped_peer, but this side has given the link up before it takes its memory back: an announcement did not arrive
 * within MK_TIMEOUT, since it stands behind more than the connection has room for. The network's connection knows nothing of
 * that. */
static int given_up(struct half *h)
{
    enum { FILLS = 16 };
    const size_t n = HALF_BYTES / 2, fills = kernel_keeps() / n + 2;
    struct mk_p2p_req *s, *r, *more;
    bool done = false, other = false;
    int ret = 0;
    pid_t me = getpid(), peer = 0;
    h->s.timeout = h->who ? 10 : 1;
    CHECK_OK(half_join(h));
    memset(h->mem, 0x77, n);
    memset(half_in(h), 0x11, n);
    CHECK_OK(half_swap(h, &me, &peer, sizeof(me)));
    if (h->who) {
        for (int i = 0; i < FILLS; i++)
            CHECK_OK(post_recv(h->rx, half_in(h), n, 0, h->rx_mr, &r));
        CHECK_OK(post_send(h->tx, h->mem, n - (4u << 20), 0, h->tx_mr, &s));
        while (!done && !ret)
            ret = mk_p2p_test(s, &done, NULL);
        CHECK(ended(ret));
    } else {
        const uint64_t end = mk_time_ns() + 10000000000ull;
        CHECK(fills < FILLS / 2); /* at least half of them are announced when they are posted */
        CHECK_OK(
            post_send(h->tx, h->mem, n, 1, h->tx_mr, &s)); /* nothing is posted for it: reads announcements */
        while (h->tx->tx->mail_next < fills && mk_time_ns() < end)
            CHECK_OK(mk_p2p_test(s, &other, NULL));
        CHECK_OK(post_recv(h->rx, half_in(h), n - (4u << 20), 0, h->rx_mr, &r));
        CHECK_OK(until_begun(r, half_in(h), &done));
        CHECK(!kill(peer, SIGSTOP) && !done && !other);
        for (size_t i = 0; i < fills; i++) { /* fill the connection */
            CHECK_OK(post_send(h->tx, h->mem, n, 0, h->tx_mr, &s));
            CHECK(s->left);
        }
        CHECK_OK(post_recv(h->rx, half_in(h) + n - (4u << 20), 4u << 20, 1, h->rx_mr, &more));
        while (!(ret = mk_p2p_test(more, &done, NULL)))
            CHECK(!done && mk_time_ns() < end);
        CHECK(ret == MK_ERR_TIMEOUT && mk_link_error(h->rx->l, NULL) == MK_ERR_TIMEOUT);
        mk_p2p_dereg(h->rx, h->rx_mr);
        CHECK(!h->p->rush_ns); /* it waited for nobody: others have their time */
        CHECK(!h->p->e->ops->cut || mk_link_error(h->tx->l, NULL) == MK_ERR_PEER);
        memset(half_in(h), 0x3c, n);
        CHECK(!kill(peer, SIGCONT));
    }
    CHECK_OK(half_serve(h));
    for (size_t i = 0; !h->who && i < n; i++)
        CHECK(half_in(h)[i] == 0x3c);
    return half_step(h);
}

/* Messages of 1 MiB from process 1 to process 0 over the first comms, one after the other. */
struct traffic {
    struct mk_p2p_req *r;
    int left;
};
static int more_traffic(struct half *h, struct traffic *t)
{
    const size_t n = 1 << 20;
    bool done = false;
    int ret = 0;
    if (!t->r && t->left)
        ret = h->who ? post_send(h->tx, h->mem, n, 0, h->tx_mr, &t->r)
                     : post_recv(h->rx, half_in(h), n, 0, h->rx_mr, &t->r);
    if (!ret && t->r)
        ret = mk_p2p_test(t->r, &done, NULL);
    t->left -= done;
    t->r = done ? NULL : t->r;
    return ret;
}

/* This side gives a comm up and closes it, while its peer stands still. What the peer writes there later, an announcement
 * here, finds memory: other comms of the two do not suffer. */
static int closed_after_timeout(struct half *h)
{
    struct mk_p2p_comm *tx = NULL, *rx = NULL;
    struct mk_p2p_req *s, *r;
    struct mk_p2p_mr *mr;
    struct traffic t = {NULL, 300};
    bool done = false, announced = false;
    int ret = 0;
    pid_t me = getpid(), peer = 0;
    h->s.timeout = h->who ? 10 : 1;
    CHECK_OK(half_join(h));
    CHECK_OK(half_meet(h, h->p, &tx, &rx));
    CHECK_OK(mk_p2p_reg(h->who ? rx : tx, h->mem, HALF_BYTES / 2, &mr));
    CHECK_OK(half_swap(h, &me, &peer, sizeof(me)));
    if (h->who) {
        CHECK_OK(post_recv(rx, h->mem, HALF_BYTES / 2, 0, mr, &r));
    } else {
        const uint64_t end = mk_time_ns() + 10000000000ull;
        CHECK_OK(post_send(tx, h->mem, HALF_BYTES / 2, 0, mr, &s));
        while (!s->left && !done && mk_time_ns() < end) /* until it is on its way */
            CHECK_OK(mk_p2p_test(s, &done, NULL));
        CHECK(!kill(peer, SIGSTOP));
        while (!(ret = mk_p2p_test(s, &done, NULL)))
            CHECK(!done && mk_time_ns() < end);
        CHECK(ret == MK_ERR_TIMEOUT);
        mk_p2p_comm_close(tx);
        half_drive(h->p, 5000);
        CHECK(!kill(peer, SIGCONT));
    }
    CHECK_OK(half_serve(h));
    for (const uint64_t end = mk_time_ns() + 15000000000ull; t.left;) {
        if (h->who && t.left == 150 && !announced) {
            announced = true;
            CHECK_OK(post_recv(rx, h->mem, 1 << 20, 7, mr, &r));
            (void)mk_p2p_test(r, &done, NULL);
        }
        CHECK_OK(more_traffic(h, &t));
        CHECK(mk_time_ns() < end);
    }
    CHECK_OK(half_serve(h));
    mk_p2p_comm_close(rx);
    if (h->who)
        mk_p2p_comm_close(tx);
    return half_step(h);
}

/* ---- meetings that begin anew ---- */

/* Process 1 answers, and then is busy with other things until the other side loses patience and begins anew. What
 * both have written to memory of the first meeting finds it: other comms of the two do not suffer. */
static int late_acceptor(struct half *h)
{
    struct mk_p2p_listener *l = NULL;
    struct mk_p2p_comm *tx = NULL, *rx = NULL;
    struct traffic t = {NULL, 300};
    uint8_t mine[MK_P2P_HANDLE] = {0}, theirs[MK_P2P_HANDLE];
    const uint64_t end = mk_time_ns() + 90000000000ull;
    int ret = MK_ERR_AGAIN;
    bool kept = false;
    char byte = 'k';
    CHECK_OK(half_join(h));
    CHECK_OK(!h->who ? 0 : mk_p2p_listen(h->p, mine, &l));
    CHECK_OK(half_swap(h, mine, theirs, sizeof(mine)));
    if (h->who) {
        const struct mk_link *before = h->p->e->links;
        while (ret == MK_ERR_AGAIN && h->p->e->links == before && mk_time_ns() < end)
            ret = mk_p2p_accept(l, &rx);
        CHECK(ret == MK_ERR_AGAIN && h->p->e->links != before); /* has answered, and was not met yet */
        while (recv(h->fd, &byte, 1, MSG_DONTWAIT) != 1 && mk_time_ns() < end)
            half_drive(h->p, 1);
    }
    while ((ret == MK_ERR_AGAIN || t.left) && mk_time_ns() < end) {
        CHECK_OK(more_traffic(h, &t));
        if (ret == MK_ERR_AGAIN)
            ret = h->who ? mk_p2p_accept(l, &rx) : mk_p2p_connect(h->p, theirs, &tx);
        if (!h->who && !kept && h->p->closing) { /* it has begun anew, and keeps the first */
            kept = true;
            CHECK(send(h->fd, &byte, 1, MSG_NOSIGNAL) == 1);
        }
    }
    CHECK_OK(ret);
    CHECK(!t.left && kept == !h->who);
    /* As NCCL does. Nobody asks it for the first meeting any more, which may be there still. */
    mk_p2p_listen_close(l);
    for (const uint64_t then = mk_time_ns() + 20000000000ull; h->p->closing && mk_time_ns() < then;)
        half_drive(h->p, 1);
    CHECK(!h->p->closing); /* what was begun is given back */
    CHECK_OK(half_serve(h));
    mk_p2p_comm_close(tx);
    mk_p2p_comm_close(rx);
    return half_step(h);
}

#define CASE(fn)                                                                                             \
    static void test_##fn(void **state)                                                                      \
    {                                                                                                        \
        (void)state;                                                                                         \
        assert_int_equal(run_pair(transport, fn, 1), 0);                                                     \
    }
CASE(taken_away)
CASE(late_write)
CASE(stopped_peer)
CASE(neighbour)
CASE(given_up)
CASE(closed_after_timeout)
CASE(late_acceptor)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_taken_away), cmocka_unit_test(test_late_write),
                                       cmocka_unit_test(test_stopped_peer),
                                       cmocka_unit_test(test_late_acceptor)};
    /* a write over loop is one copy: nobody is found in the middle of it */
    const struct CMUnitTest streams[] = {cmocka_unit_test(test_neighbour), cmocka_unit_test(test_given_up),
                                         cmocka_unit_test(test_closed_after_timeout)};
    transport = argc > 1 ? argv[1] : "loop";
    const int missing = transport_missing(transport, "net.p2p_stops");
    if (missing)
        return missing;
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return failed || strcmp(transport, "ofi") ? failed : cmocka_run_group_tests(streams, NULL, NULL);
}
