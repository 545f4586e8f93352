/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The message layer when something is wrong: peers that close or die, strangers, damaged handles, buffers that are too
 * small. Transport: argument 1. What peers do to memory that is taken back: p2p_stops.c; peers that lie: lies.c. */
#include "mk/err.h"
#include "net/p2p.h"
#include "tests/net/p2p_help.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
/* after the above */
#include <cmocka.h>

static const char *transport;

static bool lost(int ret)
{
    return ret == MK_ERR_PEER || ret == MK_ERR_NET || ret == MK_ERR_TIMEOUT;
}

/* ---- handles and strangers ---- */

static int handles(struct half *h)
{
    struct mk_p2p_listener *l;
    struct mk_p2p_comm *c = NULL;
    uint8_t good[MK_P2P_HANDLE], bad[MK_P2P_HANDLE];
    CHECK_OK(half_open(h));
    CHECK_OK(mk_p2p_listen(h->p, good, &l));
    for (unsigned i = 0; i < 88; i++) { /* all that is checked */
        memcpy(bad, good, sizeof(bad));
        bad[i] ^= 0x40;
        CHECK(mk_p2p_connect(h->p, bad, &c) == MK_ERR_INVALID);
    }
    memset(bad, 0, sizeof(bad));
    CHECK(mk_p2p_connect(h->p, bad, &c) == MK_ERR_INVALID);
    memset(bad, 0xff, sizeof(bad));
    CHECK(mk_p2p_connect(h->p, bad, &c) == MK_ERR_INVALID);
    memcpy(bad, good, sizeof(bad));
    bad[offsetof(struct mk_p2p_handle, meet)] = 1; /* belongs to no connection under way */
    CHECK(mk_p2p_connect(h->p, bad, &c) == MK_ERR_INVALID);
    /* right in form, but nobody listens there any more */
    mk_p2p_listen_close(l);
    int ret;
    const uint64_t end = mk_time_ns() + 10000000000ull;
    while ((ret = mk_p2p_connect(h->p, good, &c)) == MK_ERR_AGAIN && mk_time_ns() < end)
        ;
    CHECK(ret == MK_ERR_PEER && !c);
    return 0;
}

static int dial(const uint8_t handle[MK_P2P_HANDLE])
{
    struct mk_p2p_handle h;
    struct sockaddr_in a;
    memcpy(&h, handle, sizeof(h));
    memset(&a, 0, sizeof(a));
    a.sin_family = AF_INET;
    a.sin_port = htons(h.port);
    memcpy(&a.sin_addr, h.addr, 4);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    return fd >= 0 && !connect(fd, (struct sockaddr *)&a, sizeof(a)) ? fd : -1;
}

/* Port scanners, web clients, those who say nothing, other versions, other keys; the right one still gets in. */
static int strangers(struct half *h)
{
    struct mk_p2p_listener *l;
    uint8_t handle[MK_P2P_HANDLE];
    struct mk_p2p_hello hello;
    struct mk_p2p_reply reply;
    struct mk_p2p_comm *tx = NULL, *rx = NULL;
    int fd[6];
    CHECK_OK(half_open(h));
    CHECK_OK(mk_p2p_listen(h->p, handle, &l));
    for (int i = 0; i < 6; i++)
        CHECK((fd[i] = dial(handle)) >= 0);
    memset(&hello, 0, sizeof(hello));
    hello.magic = MK_P2P_MAGIC;
    hello.version = MK_P2P_VERSION;
    hello.size = sizeof(hello);
    close(fd[0]);                                                             /* comes and goes */
    CHECK(send(fd[1], "GET / HTTP/1.0\r\n\r\n", 18, MSG_NOSIGNAL) == 18);     /* another protocol */
    CHECK(send(fd[2], &hello, sizeof(hello), MSG_NOSIGNAL) == sizeof(hello)); /* does not know the key */
    hello.version++;
    CHECK(send(fd[3], &hello, sizeof(hello), MSG_NOSIGNAL) == sizeof(hello)); /* another version */
    CHECK(send(fd[4], &hello, 5, MSG_NOSIGNAL) == 5); /* stays in the middle of a word */
    /* fd[5] says nothing at all */
    const uint64_t end = mk_time_ns() + 8000000000ull; /* before those who are silent are thrown out */
    int a = MK_ERR_AGAIN, b = MK_ERR_AGAIN;
    while ((a == MK_ERR_AGAIN || b == MK_ERR_AGAIN) && mk_time_ns() < end) {
        if (a == MK_ERR_AGAIN)
            a = mk_p2p_connect(h->p, handle, &tx);
        if (b == MK_ERR_AGAIN)
            b = mk_p2p_accept(l, &rx);
    }
    CHECK_OK(a);
    CHECK_OK(b);
    CHECK(recv(fd[2], &reply, sizeof(reply), MSG_WAITALL) == sizeof(reply) && reply.code == MK_ERR_INVALID);
    CHECK(strstr(reply.text, "key"));
    CHECK(recv(fd[3], &reply, sizeof(reply), MSG_WAITALL) == sizeof(reply) && reply.code == MK_ERR_MISMATCH);
    for (int i = 1; i < 6; i++)
        close(fd[i]);
    mk_p2p_listen_close(l);
    mk_p2p_comm_close(tx);
    mk_p2p_comm_close(rx);
    return 0;
}

/* The two sides use different networks: said by both. */
static int mismatch(struct half *h)
{
    if (h->who)
        snprintf(h->s.net, sizeof(h->s.net), "%s", strcmp(h->s.net, "loop") ? "loop" : "ofi");
    if (half_open(h)) { /* no libfabric here: nothing to differ from */
        return 0;
    }
    const int ret = half_join(h);
    CHECK(ret == MK_ERR_MISMATCH || ret == MK_ERR_PEER || ret == MK_ERR_TIMEOUT);
    return 0;
}

/* ---- sizes that do not fit ---- */

/* Tests both until both have ended, in whatever way: ret. */
static int end_two(struct mk_p2p_req *a, struct mk_p2p_req *b, int ret[2])
{
    struct mk_p2p_req *r[2] = {a, b};
    const uint64_t end = mk_time_ns() + 20000000000ull;
    while ((r[0] || r[1]) && mk_time_ns() < end)
        for (int i = 0; i < 2; i++) {
            bool done = false;
            if (r[i] && ((ret[i] = mk_p2p_test(r[i], &done, NULL)) || done))
                r[i] = NULL;
        }
    return r[0] || r[1] ? MK_ERR_TIMEOUT : 0;
}

static int too_small(struct half *h)
{
    struct mk_p2p_req *s, *r;
    CHECK_OK(half_join(h));
    const size_t large = mk_p2p_rings_most(h->p->ring) + 12000; /* announced */
    memset(half_in(h), 0x11, 2 * large);
    /* the receiver sees it, of what travels at once */
    const size_t least[] = {100, MK_P2P_EAGER, mk_p2p_rings_most(h->p->ring)};
    for (int i = 0; i < 3; i++) {
        CHECK_OK(post_send(h->tx, h->mem, least[i], 0, h->tx_mr, &s));
        CHECK_OK(post_recv(h->rx, half_in(h), least[i] - 1, 0, h->rx_mr, &r));
        int ret[2];
        CHECK_OK(end_two(s, r, ret));
        CHECK(ret[1] == MK_ERR_INVALID);
        /* announced: both may see it */
        const bool announced = half_is_gpu() || mk_p2p_striped(h->tx, least[i]);
        CHECK(!ret[0] || (announced && ret[0] == MK_ERR_INVALID));
    }
    /* the sender sees it */
    CHECK_OK(half_step(h));
    CHECK_OK(post_recv(h->rx, half_in(h), large, 0, h->rx_mr, &r));
    CHECK_OK(post_send(h->tx, h->mem, large + 1, 0, h->tx_mr, &s));
    CHECK(finish(s, NULL) == MK_ERR_INVALID);
    CHECK(finish(r, NULL) == MK_ERR_INVALID); /* and tells the receiver */
    for (size_t i = 0; i < 2 * large; i++)
        CHECK(half_in(h)[i] == 0x11);
    /* outside of what was registered, or of nothing */
    CHECK(mk_p2p_send(h->tx, half_in(h), 10000, 0, h->tx_mr, &s) == MK_ERR_INVALID);
    CHECK(mk_p2p_send(h->tx, h->mem + HALF_BYTES / 2 - 10, 10000, 0, h->tx_mr, &s) == MK_ERR_INVALID);
    CHECK(mk_p2p_send(h->tx, h->mem, 10000, 0, NULL, &s) == MK_ERR_INVALID);
    CHECK(mk_p2p_send(h->tx, h->mem, 10000, 0, h->rx_mr, &s) == MK_ERR_INVALID);
    CHECK(mk_p2p_send(h->tx, NULL, 10, 0, h->tx_mr, &s) == MK_ERR_INVALID);
    CHECK(mk_p2p_send(h->rx, h->mem, 10, 0, h->tx_mr, &s) == MK_ERR_INVALID);
    return half_step(h);
}

/* ---- ends ---- */

/* Process 1 closes with requests pending on both comms; process 0 hears of it on both. */
static int close_in_flight(struct half *h)
{
    struct mk_p2p_req *s, *r, *more;
    CHECK_OK(half_join(h));
    CHECK_OK(post_recv(h->rx, half_in(h), 1 << 20, 7, h->rx_mr, &r));
    CHECK_OK(post_send(h->tx, h->mem, 1 << 20, 8, h->tx_mr, &s)); /* nobody posts tag 8 */
    CHECK_OK(half_step(h));
    if (h->who) {
        mk_p2p_comm_close(h->rx);
        mk_p2p_comm_close(h->tx);
        h->rx = h->tx = NULL;
        CHECK_OK(half_step(h));
        return half_step(h);
    }
    CHECK_OK(half_step(h));
    CHECK(lost(finish(r, NULL)));
    CHECK(strlen(mk_last_error()) > 10);
    CHECK(lost(finish(s, NULL)));
    CHECK(lost(mk_p2p_send(h->tx, h->mem, 8, 0, h->tx_mr, &more)));
    return half_step(h);
}

/* What was sent and said to be done before the close arrives. */
static int last_words(struct half *h)
{
    struct mk_p2p_req *s, *r;
    CHECK_OK(half_join(h));
    for (int k = 0; k < 2; k++) {
        const size_t n = k ? 3 << 20 : 1000;
        if (h->who) {
            paint(h->mem, n, 5);
            CHECK_OK(post_send(h->tx, h->mem, n, 0, h->tx_mr, &s));
            CHECK_OK(finish(s, NULL));
        } else {
            if (!k) /* the first is sent to nobody who looks */
                usleep(200000);
            CHECK_OK(post_recv(h->rx, half_in(h), n, 0, h->rx_mr, &r));
            CHECK_OK(finish(r, NULL));
            CHECK(painted(half_in(h), n, 5));
        }
    }
    if (h->who)
        return 0; /* closes at once; process 0 must not see that as a fault */
    return 0;
}

static int killed_receiver(struct half *h)
{
    struct mk_p2p_req *r, *s;
    CHECK_OK(half_join(h));
    CHECK_OK(half_step(h));
    if (h->who)
        kill(getpid(), SIGKILL);
    const uint64_t begin = mk_time_ns();
    CHECK_OK(post_recv(h->rx, half_in(h), 1 << 20, 0, h->rx_mr, &r));
    CHECK(lost(finish(r, NULL)));
    const int ret = post_send(h->tx, h->mem, 1 << 20, 0, h->tx_mr, &s);
    CHECK(lost(ret) || lost(finish(s, NULL)));
    CHECK(mk_time_ns() - begin < 15000000000ull);
    return 0;
}

/* A child that lives on does not keep its dead parent's connections alive. */
static int killed_parent(struct half *h)
{
    struct mk_p2p_req *r;
    CHECK_OK(half_join(h));
    CHECK_OK(half_step(h));
    if (h->who) {
        const pid_t child = fork();
        if (!child) {
            close(h->fd);
            sleep(18);
            _exit(0);
        }
        CHECK(child > 0);
        CHECK_OK(half_swap(h, &(pid_t){child}, &(pid_t){0}, sizeof(pid_t)));
        kill(getpid(), SIGKILL);
    }
    pid_t child = 0, none = 0;
    CHECK_OK(half_swap(h, &none, &child, sizeof(child)));
    CHECK_OK(post_recv(h->rx, half_in(h), 1 << 20, 0, h->rx_mr, &r));
    const int ret = finish(r, NULL);
    kill(child, SIGKILL);
    CHECK(lost(ret));
    return 0;
}

/* ---- limits and threads ---- */

static int no_files(struct half *h)
{
    struct rlimit l;
    uint8_t handle[MK_P2P_HANDLE];
    struct mk_p2p_listener *listener[64];
    int ret = 0;
    CHECK_OK(half_open(h));
    CHECK_OK(getrlimit(RLIMIT_NOFILE, &l));
    l.rlim_cur = 40;
    CHECK_OK(setrlimit(RLIMIT_NOFILE, &l));
    for (int i = 0; i < 64 && !ret; i++)
        ret = mk_p2p_listen(h->p, handle, &listener[i]);
    CHECK(ret == MK_ERR_SYSTEM);
    CHECK(strstr(mk_last_error(), " 40 (RLIMIT_NOFILE)") && strstr(mk_last_error(), "ulimit -n"));
    return 0;
}

/* Listeners, and endpoints that are TCP listeners, stay within MK_PORTS; an end of it is said with its name. */
static int few_ports(struct half *h)
{
    enum { PORTS = 5 };
    const int low = 20000 + (int)getpid() * PORTS % 12000;
    struct mk_p2p_listener *listener[PORTS + 1];
    struct mk_p2p_handle handle;
    int n = 0, ret = 0;
    snprintf(h->s.ports, sizeof(h->s.ports), "%d-%d", low, low + PORTS - 1);
    CHECK_OK(half_open(h));
    for (; n <= PORTS && !ret; n++) {
        ret = mk_p2p_listen(h->p, (uint8_t *)&handle, &listener[n]);
        CHECK(ret || (handle.port >= low && handle.port < low + PORTS));
    }
    n--;
    CHECK(n >= 1 && ret == MK_ERR_SYSTEM && strstr(mk_last_error(), "MK_PORTS"));
    /* one of them is the endpoint's: nobody else was seen to have it */
    CHECK(n < PORTS || strcmp(transport, "ofi"));
    while (n)
        mk_p2p_listen_close(listener[--n]);
    CHECK_OK(mk_p2p_listen(h->p, (uint8_t *)&handle, &listener[0]));
    mk_p2p_listen_close(listener[0]);
    mk_p2p_close(h->p);
    h->p = NULL;
    snprintf(h->s.ports, sizeof(h->s.ports), "1-");
    CHECK(half_open(h) == MK_ERR_INVALID);
    return 0;
}

static void *register_all(void *arg)
{
    struct half *h = arg;
    uint8_t *buffer = malloc(65536);
    for (int i = 0; buffer && i < 500; i++) {
        struct mk_p2p_mr *m;
        struct mk_p2p_comm *c = i & 1 ? h->tx : h->rx;
        if (mk_p2p_reg(c, buffer, 65536, &m))
            break;
        mk_p2p_dereg(c, m);
    }
    free(buffer);
    return NULL;
}

static int threads(struct half *h)
{
    pthread_t t[2];
    CHECK_OK(half_join(h));
    for (int i = 0; i < 2; i++)
        CHECK_OK(pthread_create(&t[i], NULL, register_all, h));
    for (int k = 0; k < 300; k++) {
        struct mk_p2p_req *s, *r;
        const size_t n = k & 1 ? 100 : 70000;
        paint(h->mem, n, (unsigned)k);
        CHECK_OK(post_send(h->tx, h->mem, n, 0, h->tx_mr, &s));
        CHECK_OK(post_recv(h->rx, half_in(h), n, 0, h->rx_mr, &r));
        CHECK_OK(finish_two(s, r, NULL));
        CHECK(painted(half_in(h), n, (unsigned)k));
    }
    for (int i = 0; i < 2; i++)
        pthread_join(t[i], NULL);
    return half_step(h);
}

#define CASE(fn, both)                                                                                       \
    static void test_##fn(void **state)                                                                      \
    {                                                                                                        \
        (void)state;                                                                                         \
        assert_int_equal(run_pair(transport, fn, both), 0);                                                  \
    }
CASE(handles, 1)
CASE(strangers, 1)
CASE(mismatch, 1)
CASE(too_small, 1)
CASE(close_in_flight, 1)
CASE(last_words, 1)
CASE(killed_receiver, 0)
CASE(killed_parent, 0)
CASE(no_files, 1)
CASE(few_ports, 1)
CASE(threads, 1)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_handles),         cmocka_unit_test(test_strangers),
        cmocka_unit_test(test_mismatch),        cmocka_unit_test(test_too_small),
        cmocka_unit_test(test_close_in_flight), cmocka_unit_test(test_last_words),
        cmocka_unit_test(test_killed_receiver), cmocka_unit_test(test_killed_parent),
        cmocka_unit_test(test_no_files),        cmocka_unit_test(test_few_ports),
        cmocka_unit_test(test_threads)};
    transport = argc > 1 ? argv[1] : "loop";
    if (argc > 2 && !strncmp(transport, "gpu", 3)) { /* MKNIC comes next; over loop */
        const int ret = half_gpu(transport, argv[2]);
        if (ret)
            return ret;
        transport = "loop";
        argc--;
        argv++;
    }
    const int missing = transport_missing(transport, "net.p2p_faults");
    if (missing)
        return missing;
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    half_gpu_end();
    return failed;
}
