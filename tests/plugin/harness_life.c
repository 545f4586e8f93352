/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Cases about connections: made, many, closed in flight, lost, refused; threads and children beside them. */
#include "tests/plugin/harness.h"
#include "tests/plugin/harness_ports.h"
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* One message each way over a link of two ranks; both sides call it. */
static void hello(struct rank *r, struct link *l, size_t n, uint64_t seed)
{
    struct buf a, b;
    int size = -1;
    buf_new(r, &a, n, 1);
    buf_new(r, &b, n, 2);
    buf_reg(r, &a, l->send);
    buf_reg(r, &b, l->recv);
    buf_fill(&a, seed, n);
    void *rx = post_recv(r, l->recv, &b, n, 3);
    finish_both(r, post_send(r, l->send, &a, n, 3), rx, &size);
    need(r, size == (int)n && buf_wrong(&b, seed, n) < 0, "%zu bytes arrived wrong", n);
    step(r);
    buf_free(r, &a);
    buf_free(r, &b);
}

/* Each of connect and accept must return although the other side has not begun; a rank that waits in such a call
 * makes both miss the deadline. */
static void connecting(struct rank *r)
{
    for (int round = 0; round < 2; round++) { /* 0: connect comes first, 1: accept */
        struct link l;
        uint8_t copy[256];
        listen_on(r, &l, round);
        step(r);
        memset(copy, 0, sizeof(copy));
        memcpy(copy, r->sh->handle[!r->me][round], MK_NCCL_HANDLE_BYTES);
        const bool first = (r->me == 0) == (round == 0);
        for (int i = 0; i < 20; i++) {
            void **comm = round == 0 ? &l.send : &l.recv;
            if (first && !*comm) {
                need(r,
                     !(round == 0 ? caller_connect(&r->c, r->dev, copy, comm)
                                  : caller_accept(&r->c, l.listen, comm)),
                     "%s fails while the peer is not there yet", round == 0 ? "connect" : "accept");
                need(r, round == 0 || !l.recv, "accept gave a comm that nobody connected");
            }
            set_word(r, (uint32_t)(100 * round + i + 1));
            wait_word(r, !r->me, (uint32_t)(100 * round + i + 1));
        }
        while (!l.send || !l.recv) {
            need(r, l.send || !caller_connect(&r->c, r->dev, copy, &l.send), "connect failed");
            need(r, l.recv || !caller_accept(&r->c, l.listen, &l.recv), "accept failed");
            breathe(r);
        }
        hello(r, &l, 3000, 5);
        link_down(r, &l);
    }
}

/* Both ends in one thread, as with NCCL's probe. */
static void oneself(struct rank *r)
{
    struct link l;
    listen_on(r, &l, 0);
    meet(r, &l, r->sh->handle[0][0]);
    hello(r, &l, 100000, 11);
    link_down(r, &l);
}

/* Four ranks, many comms between each pair on one device; closed in another order than made. */
static void many(struct rank *r)
{
    enum { EACH = 12 };
    static struct link l[RANKS_MAX][EACH];
    const int before = open_files();
    for (int k = 0; k < EACH; k++)
        for (int d = 1; d < r->n; d++) /* in step d each rank meets me ^ d */
            link_up(r, &l[r->me ^ d][k], r->me ^ d, k * RANKS_MAX + d);
    const int links = EACH * (r->n - 1);
    const int files = open_files() - before;
    if (r->me == 0)
        note(r, "%d connections each way, %d files: %.1f a connection", links, files, files / (2.0 * links));
    need(r, !r->o->own || files <= 2 * links * 2 + 32, "%d files for %d connections", files, 2 * links);
    for (int k = 0; k < EACH; k++)
        for (int d = 1; d < r->n; d++)
            hello(r, &l[r->me ^ d][k], 64 + 5000 * (size_t)k, (uint64_t)k);
    for (int k = 0; k < EACH; k += 2)
        for (int d = 1; d < r->n; d++)
            link_down(r, &l[r->me ^ d][k]);
    for (int k = EACH - 1; k > 0; k -= 2)
        for (int d = 1; d < r->n; d++)
            hello(r, &l[r->me ^ d][k], 100000, (uint64_t)k);
    for (int k = 1; k < EACH; k += 2)
        for (int d = r->n - 1; d >= 1; d--)
            link_down(r, &l[r->me ^ d][k]);
}

/* Several accepts on one listen comm. */
static void reuse(struct rank *r)
{
    enum { N = 5 };
    struct link l[N];
    void *listen;
    listen_on(r, &l[0], 0);
    listen = l[0].listen;
    step(r);
    for (int i = 0; i < N; i++) {
        memset(&l[i], 0, sizeof(l[i]));
        l[i].listen = listen;
        meet(r, &l[i], r->sh->handle[!r->me][0]);
        l[i].listen = NULL;
        hello(r, &l[i], 777, (uint64_t)i);
    }
    need(r, !caller_close_listen(&r->c, listen), "closeListen failed");
    for (int i = 0; i < N; i++)
        hello(r, &l[i], 70000, (uint64_t)i);
    for (int i = 0; i < N; i++)
        link_down(r, &l[i]);
}

/* ---- closing with requests in flight ---- */

/* A receiver that leaves: what it had posted belongs to its user again, and no late write lands there. */
static void close_in_flight(struct rank *r)
{
    for (int round = 0; round < 6; round++) {
        const size_t n = round & 1 ? 4u << 20 : 4000;
        struct link l;
        struct buf a, b;
        void *request[16] = {NULL};
        link_up(r, &l, !r->me, round);
        buf_new(r, &a, n, 0);
        buf_new(r, &b, n, 0);
        buf_reg(r, &a, l.send);
        buf_reg(r, &b, l.recv);
        for (int i = 0; i < 8; i++)
            request[i] = try_recv(r, l.recv, &b, n, 0, false);
        step(r);
        for (int i = 0; i < 3; i++)
            (void)caller_isend(&r->c, l.send, a.data, n, 0, a.mh, &request[8 + i]); /* the peer may be gone */
        for (int i = 0; i < round; i++) { /* some of them may be done, some on their way */
            int done, size;
            for (int k = 0; k < 16; k++)
                if (request[k] && !caller_test(&r->c, request[k], &done, &size) && done)
                    request[k] = NULL;
        }
        if (round & 2)
            step(r);
        buf_dereg(r, round & 1 ? &a : &b);
        buf_dereg(r, round & 1 ? &b : &a);
        if (round & 4)
            need(r, !caller_close_recv(&r->c, l.recv), "closeRecv with receives in flight fails");
        need(r, !caller_close_send(&r->c, l.send), "closeSend with sends in flight fails");
        if (!(round & 4))
            need(r, !caller_close_recv(&r->c, l.recv), "closeRecv with receives in flight fails");
        memset(b.data, 0x3c, n);
        memset(a.data, 0x99, n); /* nobody reads it any more either */
        step(r);
        sleep_ms(20);
        for (size_t i = 0; i < n; i++)
            need(r, b.data[i] == 0x3c, "byte %zu was written after closeRecv", i);
        buf_free(r, &a);
        buf_free(r, &b);
    }
    struct link l; /* and the device still works */
    link_up(r, &l, !r->me, 10);
    hello(r, &l, 50000, 1);
    link_down(r, &l);
}

/* One side closes, the other goes on: an error or done, in time. */
static void peer_closes(struct rank *r)
{
    for (int round = 0; round < 2; round++) {
        struct link l;
        struct buf b;
        link_up(r, &l, !r->me, round);
        buf_new(r, &b, 1u << 20, 0);
        if (r->me == 1) {
            link_down(r, &l);
            set_word(r, 1);
        } else {
            buf_reg(r, &b, round ? l.send : l.recv);
            wait_word(r, 1, 1);
            int ret = MK_NCCL_SUCCESS;
            void *request = NULL;
            const uint64_t end = now_ns() + (uint64_t)(r->o->patience * 1e9);
            while (!ret && !request && now_ns() < end) {
                void *data[1] = {b.data}, *mh[1] = {b.mh};
                int tag = 0;
                ret = round ? caller_isend(&r->c, l.send, b.data, b.size, 0, b.mh, &request)
                            : caller_irecv(&r->c, l.recv, 1, data, &b.size, &tag, mh, &request);
                breathe(r);
            }
            if (request)
                ret = outcome(r, request, round ? 0 : 1, NULL, r->o->patience);
            need(r, ret != MK_NCCL_IN_PROGRESS && (ret || round), "the peer closed, and %s is %s",
                 round ? "a send" : "a receive", ret ? "never told" : "done");
            need(r, ret || round, "the peer closed, and a %s never ends", round ? "send" : "receive");
            buf_free(r, &b);
            link_down(r, &l);
        }
        if (r->me == 1)
            buf_free(r, &b);
        step(r);
        set_word(r, 0);
        step(r);
    }
}

/* ---- a peer that dies ---- */

static _Noreturn void die(void)
{
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

/* Until an operation on the link ends in an error; `post` starts one if there is none. */
static int lost(struct rank *r, struct link *l, struct buf *b, bool sends, void *request)
{
    const uint64_t end = now_ns() + (uint64_t)(r->o->patience * 1e9);
    int ret = 0, done, size;
    while (!ret && now_ns() < end) {
        void *data[1] = {b->data}, *mh[1] = {b->mh};
        int tag = 0;
        if (request) {
            ret = caller_test(&r->c, request, &done, &size);
            if (!ret && done)
                request = NULL;
        } else if (sends) {
            ret = caller_isend(&r->c, l->send, b->data, b->size, 0, b->mh, &request);
        } else {
            ret = caller_irecv(&r->c, l->recv, 1, data, &b->size, &tag, mh, &request);
        }
        breathe(r);
    }
    need(r, ret, "the peer is dead, and a %s is not told", sends ? "sender" : "receiver");
    need(r, ret == MK_NCCL_REMOTE_ERROR || ret == MK_NCCL_SYSTEM_ERROR,
         "the peer is dead, and a %s is told %d, not 6 or 2", sends ? "sender" : "receiver", ret);
    need(r, last_warning()[0], "the peer is dead, and no warning says so");
    return ret;
}

static void death_of(struct rank *r, bool sends, size_t n, bool busy)
{
    struct link l;
    struct buf b;
    link_up(r, &l, !r->me, 0);
    buf_new(r, &b, n, 0);
    buf_reg(r, &b, (r->me == 0) == sends ? l.send : l.recv);
    if (r->me == 1) {
        void *request = NULL;
        for (int i = 0; busy && i < 4; i++)
            request = sends ? try_recv(r, l.recv, &b, n, 0, false) : try_send(r, l.send, &b, n, 0);
        step(r);
        int done = 0; /* a request that is done is not tested again: it belongs to the plugin */
        for (int i = 0; busy && request && i < 3 && !done; i++)
            if (caller_test(&r->c, request, &done, NULL))
                break;
        die();
    }
    void *request =
        busy ? (sends ? try_send(r, l.send, &b, n, 0) : try_recv(r, l.recv, &b, n, 0, false)) : NULL;
    step(r);
    (void)lost(r, &l, &b, sends, request);
    buf_free(r, &b);
    link_down(r, &l);
    int ndev = 0; /* the library goes on for others */
    need(r, !caller_devices(&r->c, &ndev) && ndev > 0, "no devices after a peer's death");
    listen_on(r, &l, 1);
    meet(r, &l, r->sh->handle[0][1]);
    link_down(r, &l);
}

static void death_receiving(struct rank *r)
{
    death_of(r, false, 65536, true);
}

static void death_sending(struct rank *r)
{
    death_of(r, true, 16u << 20, true);
}

static void death_idle(struct rank *r)
{
    death_of(r, true, 64, false);
}

/* The listener dies before it accepts. */
static void death_connecting(struct rank *r)
{
    struct link l;
    listen_on(r, &l, 0);
    step(r);
    if (r->me == 1)
        die();
    uint8_t copy[256] = {0};
    memcpy(copy, r->sh->handle[1][0], MK_NCCL_HANDLE_BYTES);
    const uint64_t end = now_ns() + (uint64_t)(r->o->patience * 1e9);
    int ret = 0;
    while (!ret && now_ns() < end) {
        if (!l.send)
            ret = caller_connect(&r->c, r->dev, copy, &l.send);
        else
            break; /* a connection that needs no accept: its first use says it */
        breathe(r);
    }
    need(r, ret || l.send, "connect to a dead listener is never told");
    need(r, !ret || ret == MK_NCCL_REMOTE_ERROR || ret == MK_NCCL_SYSTEM_ERROR,
         "connect to a dead listener: %d", ret);
    if (l.send) {
        struct buf b;
        buf_new(r, &b, 64, 0);
        buf_reg(r, &b, l.send);
        (void)lost(r, &l, &b, true, NULL);
        buf_free(r, &b);
    }
    link_down(r, &l);
}

/* ---- wrong handles, strangers ---- */

static int try_connect(struct rank *r, const uint8_t *handle, int calls)
{
    uint8_t copy[256] = {0};
    void *comm = NULL;
    int ret = 0;
    memcpy(copy, handle, MK_NCCL_HANDLE_BYTES);
    for (int i = 0; i < calls && !ret && !comm; i++) {
        ret = caller_connect(&r->c, r->dev, copy, &comm);
        breathe(r);
    }
    if (comm)
        need(r, !caller_close_send(&r->c, comm), "closeSend failed");
    return ret;
}

static void handles(struct rank *r)
{
    struct link l;
    uint8_t bad[MK_NCCL_HANDLE_BYTES];
    listen_on(r, &l, 0);
    step(r);
    const uint8_t *good = r->sh->handle[!r->me][0];
    if (r->me == 0) {
        memset(bad, 0, sizeof(bad));
        need(r, try_connect(r, bad, 100), "a handle of zeros is not refused");
        memset(bad, 0xff, sizeof(bad));
        need(r, try_connect(r, bad, 100), "a handle of ones is not refused");
        for (int i = 0; i < 50; i++) {
            for (size_t k = 0; k < sizeof(bad); k++)
                bad[k] = (uint8_t)random_next(r);
            need(r, try_connect(r, bad, 100), "a random handle is not refused");
        }
        for (int i = 0; i < 200 * r->o->rounds; i++) { /* close to a good one: any answer, and no crash */
            memcpy(bad, good, sizeof(bad));
            for (size_t k = 1 + random_below(r, 3); k; k--)
                bad[random_below(r, sizeof(bad))] ^= (uint8_t)(1u << random_below(r, 8));
            if (memcmp(bad, good, sizeof(bad)))
                (void)try_connect(r, bad, 3);
        }
        set_word(r, 1);
    } else { /* meanwhile polls: nobody who is right is there yet, but a changed byte may be one nobody reads */
        while (__atomic_load_n(&r->sh->word[0], __ATOMIC_ACQUIRE) != 1) {
            void *comm = NULL;
            const int ret = caller_accept(&r->c, l.listen, &comm);
            need(r, !ret, "accept fails with %d because of a stranger", ret);
            if (comm)
                need(r, !caller_close_recv(&r->c, comm), "closeRecv failed");
            breathe(r);
        }
    }
    step(r);
    /* those with a broken handle may have left connections behind; the good one must get through them */
    struct link fresh;
    link_up(r, &fresh, !r->me, 1);
    hello(r, &fresh, 1000, 4);
    link_down(r, &fresh);
    link_down(r, &l);
}

/* Someone else calls at the listening ports: silent, talkative, gone at once. */
static void strangers(struct rank *r)
{
    struct ports p;
    struct link l;
    listen_on(r, &l, 0);
    ports_find(&p);
    if (r->me == 0 && !p.n)
        note(r, "no listening TCP port in this process");
    for (int i = 0; i < 4; i++)
        ports_call(&p, i);
    step(r);
    meet(r, &l, r->sh->handle[!r->me][0]);
    hello(r, &l, 9000, 2);
    for (int i = 0; i < 4; i++)
        ports_call(&p, i);
    hello(r, &l, 9000, 3);
    link_down(r, &l);
    ports_hang_up(&p);
}

/* ---- threads and children ---- */

struct registrar {
    struct rank *r;
    void *comm;
    int stop, failed, rounds;
};

static void *registers(void *arg)
{
    struct registrar *g = arg;
    static const size_t step_bytes = 12288;
    uint8_t *memory = malloc(64 * step_bytes);
    void *mh[16] = {NULL};
    for (int i = 0; memory && !__atomic_load_n(&g->stop, __ATOMIC_ACQUIRE); i++) {
        void **at = &mh[i % 16];
        if (*at && caller_dereg(&g->r->c, g->comm, *at))
            g->failed = 1;
        if (caller_reg(&g->r->c, g->comm, memory + (size_t)(i % 48) * step_bytes, 1 + (size_t)(i % 13) * 1000,
                       MK_NCCL_PTR_HOST, at) ||
            !*at)
            g->failed = 1;
        g->rounds = i;
    }
    for (int i = 0; i < 16; i++)
        if (mh[i] && caller_dereg(&g->r->c, g->comm, mh[i]))
            g->failed = 1;
    free(memory);
    return NULL;
}

/* The service thread registers user buffers while the progress thread sends: both directions' comms. */
static void threads(struct rank *r)
{
    struct link l;
    link_up(r, &l, !r->me, 0);
    struct registrar g[2] = {{.r = r, .comm = l.send}, {.r = r, .comm = l.recv}};
    pthread_t id[2];
    for (int i = 0; i < 2; i++)
        need(r, !pthread_create(&id[i], NULL, registers, &g[i]), "no thread");
    for (int i = 0; i < 150; i++)
        hello(r, &l, 1u << (i % 20), (uint64_t)i);
    for (int i = 0; i < 2; i++) {
        __atomic_store_n(&g[i].stop, 1, __ATOMIC_RELEASE);
        pthread_join(id[i], NULL);
        need(r, !g[i].failed, "registering beside sends failed");
        need(r, g[i].rounds > 0, "registering beside sends did not move");
    }
    link_down(r, &l);
}

/* A child that is forked in the middle and ends, with exit handlers and without. */
static void children(struct rank *r)
{
    struct link l;
    link_up(r, &l, !r->me, 0);
    for (int i = 0; i < 4; i++) {
        int status = 0;
        const pid_t pid = fork();
        if (pid == 0)
            _exit(0);
        hello(r, &l, 30000u << i, (uint64_t)i);
        need(r, pid > 0 && waitpid(pid, &status, 0) == pid && status == 0, "a forked child ended badly: %d",
             status);
    }
    link_down(r, &l);
}

/* What NCCL does not do, and a wrong caller might: an error, and everything goes on. */
static void misuse(struct rank *r)
{
    struct link l;
    struct buf a;
    void *request = NULL, *mh = NULL, *data[CALLER_GROUP_MAX], *mhs[CALLER_GROUP_MAX];
    size_t sizes[CALLER_GROUP_MAX];
    int tags[CALLER_GROUP_MAX] = {0};
    if (!r->o->own)
        skip(r, "only what our own plugin promises");
    link_up(r, &l, !r->me, 0);
    buf_new(r, &a, 100000, 0);
    buf_reg(r, &a, l.send);
    for (int i = 0; i < CALLER_GROUP_MAX; i++) {
        data[i] = a.data;
        mhs[i] = a.mh;
        sizes[i] = 100;
    }
    need(r, caller_reg(&r->c, l.recv, a.data, a.size, MK_NCCL_PTR_CUDA, &mh),
         "regMr takes host memory for device memory");
    need(r, caller_reg(&r->c, l.recv, NULL, 100, MK_NCCL_PTR_HOST, &mh) || !mh, "regMr takes address NULL");
    need(r, caller_isend(&r->c, l.send, a.data, a.size + 1, 0, a.mh, &request), "isend beyond the memory");
    need(r, caller_isend(&r->c, l.send, a.data + 1, a.size, 0, a.mh, &request), "isend beyond the memory");
    need(r, caller_isend(&r->c, l.send, a.data, a.size, 0, NULL, &request), "a large isend without mhandle");
    need(r, caller_irecv(&r->c, l.recv, r->props.maxRecvs + 1, data, sizes, tags, mhs, &request),
         "a group of %d", r->props.maxRecvs + 1);
    sizes[0] = a.size;
    need(r, caller_irecv(&r->c, l.recv, 1, data, sizes, tags, mhs, &request),
         "irecv with another comm's memory");
    need(r, caller_isend(&r->c, l.recv, a.data, 8, 0, a.mh, &request), "isend on a comm that receives");
    need(r, caller_irecv(&r->c, l.send, 1, data, sizes, tags, mhs, &request), "irecv on a comm that sends");
    hello(r, &l, 30000, 8);
    buf_free(r, &a);
    link_down(r, &l);
}

const struct test_case cases_life[] = {
    {.name = "connecting", .ranks = 2, .run = connecting},
    {.name = "oneself", .ranks = 1, .run = oneself},
    {.name = "many", .ranks = 4, .run = many},
    {.name = "reuse", .ranks = 2, .run = reuse},
    {.name = "close_in_flight", .ranks = 2, .run = close_in_flight},
    {.name = "peer_closes", .ranks = 2, .run = peer_closes},
    {.name = "death_receiving", .ranks = 2, .run = death_receiving, .killed = true},
    {.name = "death_sending", .ranks = 2, .run = death_sending, .killed = true},
    {.name = "death_idle", .ranks = 2, .run = death_idle, .killed = true},
    {.name = "death_connecting", .ranks = 2, .run = death_connecting, .killed = true},
    {.name = "handles", .ranks = 2, .run = handles},
    {.name = "strangers", .ranks = 2, .run = strangers},
    {.name = "threads", .ranks = 2, .run = threads},
    {.name = "misuse", .ranks = 2, .run = misuse},
    {.name = "children", .ranks = 2, .run = children},
    {.name = NULL},
};
