/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The message layer over a transport (argument 1): sizes, matching, limits. Closing and faults: p2p_faults.c. */
#include "mk/err.h"
#include "net/p2p.h"
#include "tests/net/p2p_help.h"
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
/* after the above */
#include <cmocka.h>

static const char *transport;

/* Both directions at once, each size several times, so that slots and mail come round. */
static int exchange(struct half *h, size_t sent, size_t posted, int tag)
{
    struct mk_p2p_req *s, *r;
    size_t got = SIZE_MAX;
    const unsigned seed = (unsigned)(sent + 17 * posted);
    paint(h->mem, sent, seed + (unsigned)h->who);
    memset(half_in(h), 0xee, posted + 16 < HALF_BYTES / 2 ? posted + 16 : posted);
    CHECK_OK(post_recv(h->rx, half_in(h), posted, tag, h->rx_mr, &r));
    CHECK_OK(post_send(h->tx, h->mem, sent, tag, h->tx_mr, &s));
    CHECK_OK(finish_two(s, r, &got));
    CHECK(got == sent);
    CHECK(painted(half_in(h), sent, seed + (unsigned)!h->who));
    if (posted + 16 < HALF_BYTES / 2)
        for (size_t i = posted; i < posted + 16; i++)
            CHECK(half_in(h)[i] == 0xee);
    return 0;
}

static int sizes(struct half *h)
{
    static const size_t size[] = {0,
                                  1,
                                  7,
                                  8,
                                  4095,
                                  4096,
                                  8191,
                                  8192,
                                  MK_P2P_EAGER_LARGE - 1,
                                  8193,
                                  65536,
                                  1 << 20,
                                  12345,
                                  99999,
                                  3000000 + 5,
                                  16 << 20,
                                  HALF_BYTES / 2,
                                  MK_P2P_EAGER_LARGE,
                                  MK_P2P_EAGER_LARGE + 1,
                                  MK_P2P_EAGER_IDLE - 1,
                                  MK_P2P_EAGER_IDLE,
                                  MK_P2P_EAGER_IDLE + 1};
    CHECK_OK(half_join(h));
    for (size_t i = 0; i < sizeof(size) / sizeof(size[0]); i++)
        for (int k = 0; k < (size[i] > 1 << 20 ? 2 : size[i] > 100000 ? 8 : half_is_gpu() ? 9 : 100); k++)
            if (exchange(h, size[i], size[i], k % 3))
                return 1;
    return half_step(h);
}

static int unequal(struct half *h)
{
    static const size_t posted[] = {
        1, 8, 8192, 8193, 100000, MK_P2P_EAGER_LARGE, MK_P2P_EAGER_LARGE + 1, MK_P2P_EAGER_IDLE, 4 << 20};
    CHECK_OK(half_join(h));
    for (size_t i = 0; i < sizeof(posted) / sizeof(posted[0]); i++)
        for (int k = 0; k < (posted[i] > 100000 || half_is_gpu() ? 15 : 70); k++) {
            const size_t p = posted[i];
            const size_t sent[] = {0, p > 8 ? 8 : 0, p / 2, p - 1, p};
            if (exchange(h, sent[k % 5], p, 5))
                return 1;
        }
    return half_step(h);
}

/* All requests that NCCL may have in flight, small and large mixed, sent before anything is posted and after. */
static int in_flight(struct half *h)
{
    struct mk_p2p_req *s[MK_P2P_REQUESTS], *r[MK_P2P_REQUESTS];
    const size_t stride = 100000;
    CHECK_OK(half_join(h));
    for (int round = 0; round < 20; round++) {
        const bool late = round & 1;
        for (int pass = 0; pass < 2; pass++)
            for (int i = 0; i < MK_P2P_REQUESTS; i++) {
                const size_t n = (size_t)(i * 3001 + round) % stride;
                if (pass == late) {
                    CHECK_OK(post_recv(h->rx, half_in(h) + i * stride, stride, 1, h->rx_mr, &r[i]));
                } else {
                    paint(h->mem + i * stride, n, (unsigned)(i + round));
                    CHECK_OK(post_send(h->tx, h->mem + i * stride, n, 1, h->tx_mr, &s[i]));
                }
            }
        for (int i = 0; i < MK_P2P_REQUESTS; i++) {
            const size_t n = (size_t)(i * 3001 + round) % stride;
            size_t got = SIZE_MAX;
            CHECK_OK(finish_two(s[i], r[i], &got));
            CHECK(got == n);
            CHECK(painted(half_in(h) + i * stride, n, (unsigned)(i + round)));
        }
    }
    return half_step(h);
}

/* Groups of 8 with tags 10..17, sent in another order, one tag running ahead of the others by a group. */
static int grouped(struct half *h)
{
    enum { N = MK_P2P_RECVS, ROUNDS = 30 };
    struct mk_p2p_req *s[2 * N], *r[2];
    const size_t stride = 40000;
    CHECK_OK(half_join(h));
    for (int round = 0; round < ROUNDS; round++) {
        int ns = 0;
        size_t got[2][N];
        for (int g = 0; g < 2; g++) {
            void *data[N];
            size_t size[N];
            int tag[N];
            struct mk_p2p_mr *mr[N];
            for (int i = 0; i < N; i++) {
                data[i] = half_there(half_in(h) + (size_t)(g * N + i) * stride);
                size[i] = i & 1 ? stride : 4000;
                tag[i] = 10 + i;
                mr[i] = h->rx_mr;
            }
            CHECK_OK(mk_p2p_recv(h->rx, N, data, size, tag, mr, &r[g]));
        }
        /* place 3 of both groups first, then the rest of the first group backwards, then that of the second */
        for (int k = 0; k < 2 * N + 2; k++) {
            const int g = k < 2 ? k : k >= N + 2, i = k < 2 ? 3 : N - 1 - (k - 2) % N, at = g * N + i;
            const size_t n = (i & 1 ? stride : 4000) - (size_t)(round % 3);
            if (k >= 2 && i == 3)
                continue;
            paint(h->mem + (size_t)at * stride, n, (unsigned)(at + round));
            CHECK_OK(post_send(h->tx, h->mem + (size_t)at * stride, n, 10 + i, h->tx_mr, &s[ns++]));
        }
        for (int k = 0; k < ns; k++)
            CHECK_OK(finish(s[k], NULL));
        for (int g = 0; g < 2; g++) {
            CHECK_OK(finish(r[g], got[g]));
            for (int i = 0; i < N; i++) {
                const size_t n = (i & 1 ? stride : 4000) - (size_t)(round % 3);
                CHECK(got[g][i] == n);
                CHECK(painted(half_in(h) + (size_t)(g * N + i) * stride, n, (unsigned)(g * N + i + round)));
            }
        }
    }
    return half_step(h);
}

/* Announcements of tags that the sender has not met yet arrive just before its first send: its table of tags grows
 * while the message gets its number. */
static int new_tags(struct half *h)
{
    enum { N = MK_P2P_RECVS };
    struct mk_p2p_req *s[2 * N], *r[2];
    const uint64_t end = mk_time_ns() + 10000000000ull;
    CHECK_OK(half_join(h));
    if (h->who) {
        for (int g = 0; g < 2; g++) {
            void *data[N];
            size_t size[N];
            int tag[N];
            struct mk_p2p_mr *mr[N];
            for (int i = 0; i < N; i++) {
                data[i] = half_there(half_in(h) + (size_t)(g * N + i) * 30000);
                size[i] = 30000;
                tag[i] = 10 + i;
                mr[i] = h->rx_mr;
            }
            CHECK_OK(mk_p2p_recv(h->rx, N, data, size, tag, mr, &r[g]));
        }
        CHECK_OK(half_step(h));
        for (int g = 0; g < 2; g++) {
            size_t got[N];
            CHECK_OK(finish(r[g], got));
            for (int i = 0; i < N; i++)
                CHECK(got[i] == 20000u + 100u * (unsigned)g + (unsigned)i);
        }
        return half_step(h);
    }
    CHECK_OK(half_step(h));
    while (!mk_p2p_flag(h->tx, 0)) { /* seen by the engine, not read yet */
        CHECK(mk_time_ns() < end);
        pthread_mutex_lock(&h->p->lock);
        mk_p2p_progress(h->p);
        pthread_mutex_unlock(&h->p->lock);
    }
    CHECK(h->tx->tags.n == 0);
    for (int k = 0; k < 2 * N; k++) {
        const size_t n = 20000u + 100u * (unsigned)(k / N) + (unsigned)(k % N);
        CHECK_OK(post_send(h->tx, h->mem, n, 10 + k % N, h->tx_mr, &s[k]));
    }
    for (unsigned i = 0; i < h->tx->tags.n; i++)
        CHECK(h->tx->tags.list[i].next == 2);
    for (int k = 0; k < 2 * N; k++)
        CHECK_OK(finish(s[k], NULL));
    return half_step(h);
}

/* More small messages of one tag than the ring has room for, and then one of another tag, which is wanted first. */
static int crowded(struct half *h)
{
    enum { N = 40 };
    struct mk_p2p_req *s[N], *other, *r;
    CHECK_OK(half_join(h));
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < N; i++) {
            paint(h->mem + i * 512, 500, (unsigned)i);
            CHECK_OK(post_send(h->tx, h->mem + i * 512, 500, 1, h->tx_mr, &s[i]));
        }
        paint(h->mem + N * 512, 64, 99);
        CHECK_OK(post_send(h->tx, h->mem + N * 512, 64, 2, h->tx_mr, &other));
        CHECK_OK(post_recv(h->rx, half_in(h), 64, 2, h->rx_mr, &r));
        CHECK_OK(finish_two(other, r, NULL));
        CHECK(painted(half_in(h), 64, 99));
        for (int i = 0; i < N; i++) {
            CHECK_OK(post_recv(h->rx, half_in(h), 500 + (size_t)i * 1000, 1, h->rx_mr, &r));
            CHECK_OK(finish_two(s[i], r, NULL));
            CHECK(painted(half_in(h), 500, (unsigned)i));
        }
    }
    return half_step(h);
}

/* Until nothing of ours is under way, as a sender that is to be alone wants it; at most 10 s. */
static int until_idle(struct half *h)
{
    const uint64_t end = mk_time_ns() + 10000000000ull;
    for (bool busy = true; busy; half_drive(h->p, 1)) {
        pthread_mutex_lock(&h->p->lock);
        busy = mk_p2p_pending(h->tx) != 0;
        pthread_mutex_unlock(&h->p->lock);
        CHECK(!busy || mk_time_ns() < end);
    }
    return 0;
}

enum { WANTED = 6, WANTED_BYTES = 128 << 10 };

/* Does the network have a ring for them, and one rail carry them? */
static bool may_go_at_once(const struct half *h)
{
    return h->p->ring[MK_P2P_LARGE].bytes && !mk_p2p_striped(h->tx, WANTED_BYTES);
}

/* Several large messages of one tag, and then one of another tag, which is wanted first. `at_once`: how many of them went
 * before their receives were announced. */
static int several(struct half *h, uint64_t *at_once)
{
    struct mk_p2p_req *s[WANTED], *r[WANTED];
    const uint64_t before = h->tx->tx->eager;
    CHECK_OK(until_idle(h));
    for (int i = 0; i < WANTED; i++) {
        paint(h->mem + i * WANTED_BYTES, WANTED_BYTES, (unsigned)i);
        CHECK_OK(post_send(h->tx, h->mem + i * WANTED_BYTES, WANTED_BYTES, i == WANTED - 1, h->tx_mr, &s[i]));
    }
    *at_once = h->tx->tx->eager - before;
    CHECK_OK(half_step(h));
    for (int k = 0; k < WANTED; k++) {
        const int i = (k + WANTED - 1) % WANTED;
        uint8_t *in = half_in(h) + i * WANTED_BYTES;
        memset(in, 0xee, WANTED_BYTES);
        CHECK_OK(post_recv(h->rx, in, WANTED_BYTES, i == WANTED - 1, h->rx_mr, &r[i]));
        if (!k) { /* in spite of all that was sent before it */
            CHECK_OK(finish_two(s[i], r[i], NULL));
            CHECK(painted(in, WANTED_BYTES, (unsigned)i));
        }
    }
    for (int i = 0; i < WANTED - 1; i++) {
        CHECK_OK(finish_two(s[i], r[i], NULL));
        CHECK(painted(half_in(h) + i * WANTED_BYTES, WANTED_BYTES, (unsigned)i));
    }
    CHECK(h->tx->tx->eager - before == *at_once);
    return half_step(h);
}

/* A sender of several messages at a time cannot know which of them is wanted first, and when: once it has shown to be one,
 * none of its large messages lies in the receiver's ring before that. */
static int wanted_first(struct half *h)
{
    uint64_t at_once;
    CHECK_OK(half_join(h));
    CHECK_OK(several(h, &at_once)); /* the first one was alone */
    CHECK(at_once == may_go_at_once(h));
    for (int round = 0; round < 10; round++) {
        CHECK_OK(several(h, &at_once));
        CHECK(!at_once);
    }
    return half_step(h);
}

/* One large message at a time goes at once, also after a time of several. */
static int one_at_a_time(struct half *h)
{
    uint64_t at_once;
    CHECK_OK(half_join(h));
    const bool large = may_go_at_once(h);
    for (int round = 0; round < 2; round++) {
        CHECK_OK(several(h, &at_once));
        for (unsigned i = 1; i < MK_P2P_CROWD + 5; i++) {
            struct mk_p2p_req *s, *r;
            CHECK_OK(until_idle(h));
            const uint64_t before = h->tx->tx->eager;
            paint(h->mem, WANTED_BYTES, i);
            CHECK_OK(post_send(h->tx, h->mem, WANTED_BYTES, 0, h->tx_mr, &s));
            CHECK(h->tx->tx->eager - before == (large && i >= MK_P2P_CROWD));
            CHECK_OK(half_step(h)); /* nothing is posted for it until here */
            CHECK_OK(post_recv(h->rx, half_in(h), WANTED_BYTES, 0, h->rx_mr, &r));
            CHECK_OK(finish_two(s, r, NULL));
            CHECK(painted(half_in(h), WANTED_BYTES, i));
            CHECK_OK(half_step(h));
        }
    }
    return half_step(h);
}

/* Counts looks, not time. */
static int look_often(struct mk_p2p_req *r, int times)
{
    bool done = false;
    for (int k = 0; k < times; k++) {
        CHECK_OK(mk_p2p_test(r, &done, NULL));
        CHECK(!done);
    }
    return 0;
}

/* A receive behind an announced one of its tag waits for company, which goes in the same put, for long but not for ever; one
 * of a tag that nothing is announced for does not wait long, and takes the others along. */
static int behind(struct half *h)
{
    enum { N = 8, BYTES = 512 << 10, OTHER = 6 };
    static const uint32_t announced[N] = {1, 2, 3, 3, 5, 5, 7, 7};
    struct mk_p2p_req *s[N], *r[N];
    CHECK_OK(half_join(h));
    for (int round = 0; round < 3; round++) {
        const struct mk_p2p_rx *rx = h->rx->rx;
        const uint32_t before = rx->mail_next;
        uint64_t since = mk_time_ns(); /* nothing waits from before that */
        uint32_t had = 0;
        bool late = false; /* looks that took so long that nobody has to wait */
        for (int i = 0; i < N; i++) {
            CHECK_OK(post_recv(h->rx, half_in(h) + i * BYTES, BYTES, i == OTHER, h->rx_mr, &r[i]));
            CHECK_OK(look_often(r[i], 300));
            const uint32_t now = rx->mail_next - before;
            late = late || mk_time_ns() - since >= MK_P2P_PATIENCE_NS;
            CHECK(now >= had && now <= (uint32_t)i + 1);
            CHECK(late || now == announced[i]);
            if (now != had)
                since = mk_time_ns();
            had = now;
        }
        CHECK_OK(look_often(r[0], 2000));
        CHECK(rx->mail_next - before == N);
        CHECK_OK(half_step(h));
        for (int i = 0; i < N; i++)
            CHECK_OK(post_send(h->tx, h->mem + i * BYTES, BYTES, i == OTHER, h->tx_mr, &s[i]));
        for (int i = 0; i < N; i++)
            CHECK_OK(finish_two(s[i], r[i], NULL));
        CHECK_OK(half_step(h));
    }
    return half_step(h);
}

/* Both ends in one process and thread, and many comms of one listener. */
static int itself(struct half *h)
{
    enum { N = 12 };
    struct mk_p2p_comm *tx[N] = {NULL}, *rx[N] = {NULL};
    struct mk_p2p_listener *l;
    uint8_t handle[MK_P2P_HANDLE], first[MK_P2P_HANDLE];
    CHECK_OK(half_open(h));
    CHECK_OK(mk_p2p_listen(h->p, first, &l));
    for (int i = 0; i < N; i++) {
        const uint64_t end = mk_time_ns() + 10000000000ull;
        int a = MK_ERR_AGAIN, b = MK_ERR_AGAIN;
        memcpy(handle, first, sizeof(handle));
        while ((a || b) && mk_time_ns() < end) {
            a = a == MK_ERR_AGAIN ? mk_p2p_connect(h->p, handle, &tx[i]) : a;
            b = b == MK_ERR_AGAIN ? mk_p2p_accept(l, &rx[i]) : b;
        }
        CHECK_OK(a);
        CHECK_OK(b);
    }
    mk_p2p_listen_close(l);
    for (int i = 0; i < N; i++)
        for (int k = 0; k < 3; k++) {
            const size_t n = k ? (size_t)k * 50000 : 100;
            uint8_t *from = malloc(n), *to = calloc(1, n);
            struct mk_p2p_mr *m_from, *m_to;
            struct mk_p2p_req *s, *r;
            CHECK(from && to);
            paint(from, n, (unsigned)i);
            CHECK_OK(mk_p2p_reg(tx[i], from, n, &m_from));
            CHECK_OK(mk_p2p_reg(rx[i], to, n, &m_to));
            CHECK_OK(post_send(tx[i], from, n, 0, m_from, &s));
            CHECK_OK(post_recv(rx[i], to, n, 0, m_to, &r));
            CHECK_OK(finish_two(s, r, NULL));
            CHECK(painted(to, n, (unsigned)i));
            mk_p2p_dereg(tx[i], m_from);
            mk_p2p_dereg(rx[i], m_to);
            free(from);
            free(to);
        }
    for (int i = 0; i < N; i++) {
        mk_p2p_comm_close(tx[i]);
        mk_p2p_comm_close(rx[N - 1 - i]);
    }
    return 0;
}

/* A thread for each pair of comms, as NCCL has a progress thread for each communicator; the device is shared. There and back, a
 * message that goes at once and, now and then, one that is announced. */
struct own {
    struct half *h;
    struct mk_p2p_comm *tx, *rx;
    struct mk_p2p_mr *tx_mr, *rx_mr;
    size_t at;
    unsigned seed;
    int failed;
};
enum { OWN_THREADS = 8, OWN_ROUNDS = 60, OWN_BYTES = 300000 };

static int there_and_back_once(struct own *o, size_t n, unsigned i)
{
    uint8_t *from = o->h->mem + o->at, *to = half_in(o->h) + o->at;
    struct mk_p2p_req *r, *s;
    size_t got = 0;
    CHECK_OK(post_recv(o->rx, half_there(to), n, 0, o->rx_mr, &r));
    for (int turn = 0; turn < 2; turn++) {
        const unsigned seed = o->seed + i + 1000u * (unsigned)turn;
        if (turn == o->h->who) {
            paint(from, n, seed);
            CHECK_OK(post_send(o->tx, half_there(from), n, 0, o->tx_mr, &s));
            CHECK_OK(finish(s, NULL));
        } else {
            CHECK_OK(finish(r, &got));
            CHECK(got == n && painted(to, n, seed));
        }
    }
    return 0;
}
static int there_and_back(struct own *o)
{
    for (unsigned i = 0; i < OWN_ROUNDS; i++)
        if (there_and_back_once(o, i % 20 == 7 ? OWN_BYTES : 64 + i, i))
            return 1;
    return 0;
}
static void *own_thread(void *arg)
{
    struct own *o = arg;
    o->failed = there_and_back(o);
    return NULL;
}
static int own_threads(struct half *h)
{
    struct own o[OWN_THREADS];
    pthread_t t[OWN_THREADS];
    int failed = 0;
    CHECK_OK(half_join(h));
    for (int i = 0; i < OWN_THREADS; i++) {
        o[i] = (struct own){.h = h, .at = (size_t)i << 20, .seed = 77u * (unsigned)i};
        CHECK_OK(half_meet(h, h->p, &o[i].tx, &o[i].rx));
        CHECK_OK(mk_p2p_reg(o[i].tx, half_there(h->mem + o[i].at), OWN_BYTES, &o[i].tx_mr));
        CHECK_OK(mk_p2p_reg(o[i].rx, half_there(half_in(h) + o[i].at), OWN_BYTES, &o[i].rx_mr));
    }
    CHECK_OK(half_step(h));
    for (int i = 0; i < OWN_THREADS; i++)
        CHECK_OK(pthread_create(&t[i], NULL, own_thread, &o[i]));
    for (int i = 0; i < OWN_THREADS; i++) {
        pthread_join(t[i], NULL);
        failed |= o[i].failed;
    }
    CHECK_OK(half_serve(h));
    for (int i = 0; i < OWN_THREADS; i++) {
        mk_p2p_comm_close(o[i].tx);
        mk_p2p_comm_close(o[i].rx);
    }
    return failed;
}

/* Beside a thread that takes the device's lock again and again, waiting for a peer that does not come. */
static bool accepting; /* atomic */
static void *accept_nobody(void *arg)
{
    struct mk_p2p_listener *l = arg;
    struct mk_p2p_comm *c = NULL;
    while (__atomic_load_n(&accepting, __ATOMIC_RELAXED))
        (void)mk_p2p_accept(l, &c);
    return NULL;
}
static int beside_accept(struct half *h)
{
    enum { ROUNDS = 100 };
    struct mk_p2p_listener *l;
    uint8_t handle[MK_P2P_HANDLE];
    pthread_t t;
    CHECK_OK(half_join(h));
    CHECK_OK(mk_p2p_listen(h->p, handle, &l));
    __atomic_store_n(&accepting, true, __ATOMIC_RELAXED);
    CHECK_OK(pthread_create(&t, NULL, accept_nobody, l));
    const uint64_t end = mk_time_ns() + 30000000000ull; /* for all of them: less than a hundredth of that */
    struct own o = {.h = h, .tx = h->tx, .rx = h->rx, .tx_mr = h->tx_mr, .rx_mr = h->rx_mr};
    int failed = 0;
    for (int i = 0; i < ROUNDS && !failed && mk_time_ns() < end; i++)
        failed = there_and_back_once(&o, 64, (unsigned)i);
    CHECK(!failed && mk_time_ns() < end);
    CHECK_OK(half_serve(h));
    __atomic_store_n(&accepting, false, __ATOMIC_RELAXED);
    pthread_join(t, NULL);
    mk_p2p_listen_close(l);
    return 0;
}

/* Both wait for what they have sent before they look at what they receive. */
static int send_first(struct half *h)
{
    enum { BYTES = 128 << 10, BURST = 6, EACH = 3 };
    struct mk_p2p_req *r[BURST], *s[BURST];
    CHECK_OK(half_join(h));
    for (int n = BURST; n >= 1; n = n > EACH ? EACH : n - 1) {
        for (int i = 0; i < n; i++)
            CHECK_OK(post_recv(h->rx, half_there(half_in(h) + i * BYTES), BYTES, 0, h->rx_mr, &r[i]));
        paint(h->mem, BYTES, (unsigned)n);
        for (int i = 0; i < n; i++)
            CHECK_OK(post_send(h->tx, half_there(h->mem), BYTES, 0, h->tx_mr, &s[i]));
        if (n == BURST)
            for (int i = 0; i < n; i++)
                CHECK_OK(finish_two(s[i], r[i], NULL));
        for (int i = 0; i < n && n < BURST; i++)
            CHECK_OK(finish(s[i], NULL));
        for (int i = 0; i < n && n < BURST; i++)
            CHECK_OK(finish(r[i], NULL));
        for (int i = 0; i < n; i++)
            CHECK(painted(half_in(h) + i * BYTES, BYTES, (unsigned)n));
        CHECK_OK(half_step(h));
    }
    return 0;
}

#define CASE(fn)                                                                                             \
    static void test_##fn(void **state)                                                                      \
    {                                                                                                        \
        (void)state;                                                                                         \
        assert_int_equal(run_pair(transport, fn, 1), 0);                                                     \
    }
CASE(sizes)
CASE(unequal)
CASE(in_flight)
CASE(grouped)
CASE(new_tags)
CASE(crowded)
CASE(wanted_first)
CASE(one_at_a_time)
CASE(behind)
CASE(itself)
CASE(own_threads)
CASE(beside_accept)
CASE(send_first)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),        cmocka_unit_test(test_unequal),
        cmocka_unit_test(test_in_flight),    cmocka_unit_test(test_grouped),
        cmocka_unit_test(test_new_tags),     cmocka_unit_test(test_crowded),
        cmocka_unit_test(test_wanted_first), cmocka_unit_test(test_one_at_a_time),
        cmocka_unit_test(test_behind),       cmocka_unit_test(test_itself),
        cmocka_unit_test(test_own_threads),  cmocka_unit_test(test_beside_accept),
        cmocka_unit_test(test_send_first)};
    transport = argc > 1 ? argv[1] : "loop";
    if (argc > 2 && !strncmp(transport, "gpu", 3)) { /* MKNIC comes next; over loop */
        const int ret = half_gpu(transport, argv[2]);
        if (ret)
            return ret;
        transport = "loop";
        argc--;
        argv++;
    }
    const int missing = transport_missing(transport, "net.p2p");
    if (missing)
        return missing;
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    half_gpu_end();
    return failed;
}
