/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What the cases share. */
#include "tests/plugin/harness.h"
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CANARY 256u
#define CANARY_BYTE 0xc7
#define FRESH_BYTE 0x11 /* what a receive buffer holds before */

uint64_t random_next(struct rank *r)
{
    r->random ^= r->random << 13;
    r->random ^= r->random >> 7;
    r->random ^= r->random << 17;
    return r->random;
}

size_t random_below(struct rank *r, size_t n)
{
    return (size_t)(random_next(r) >> 11) % n;
}

void sleep_ms(unsigned ms)
{
    const struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};
    nanosleep(&t, NULL);
}

void breathe(struct rank *r)
{
    if (__atomic_load_n(&r->sh->broken, __ATOMIC_ACQUIRE))
        _exit(1);
    need(r, now_ns() < r->end, "hangs: the case's time is over");
    sched_yield();
}

void step(struct rank *r)
{
    const uint32_t mine = __atomic_add_fetch(&r->sh->phase[r->me], 1, __ATOMIC_RELEASE);
    for (int i = 0; i < r->n; i++)
        while (__atomic_load_n(&r->sh->phase[i], __ATOMIC_ACQUIRE) < mine)
            breathe(r);
}

void wait_word(struct rank *r, int of, uint32_t value)
{
    while (__atomic_load_n(&r->sh->word[of], __ATOMIC_ACQUIRE) < value)
        breathe(r);
}

void set_word(struct rank *r, uint32_t value)
{
    __atomic_store_n(&r->sh->word[r->me], value, __ATOMIC_RELEASE);
}

/* ---- connections ---- */

void listen_on(struct rank *r, struct link *l, int slot)
{
    uint8_t handle[MK_NCCL_HANDLE_BYTES + 64];
    memset(l, 0, sizeof(*l));
    memset(handle, CANARY_BYTE, sizeof(handle));
    need(r, !caller_listen(&r->c, r->dev, handle, &l->listen), "listen failed");
    need(r, l->listen, "listen gave no comm");
    for (size_t i = MK_NCCL_HANDLE_BYTES; i < sizeof(handle); i++)
        need(r, handle[i] == CANARY_BYTE, "listen wrote byte %zu of the handle", i);
    memcpy(r->sh->handle[r->me][slot], handle, MK_NCCL_HANDLE_BYTES);
}

void meet(struct rank *r, struct link *l, const uint8_t *handle)
{
    uint8_t copy[256]; /* as NCCL's connect blob: private to this connect, kept over its retries */
    memset(copy, 0, sizeof(copy));
    if (handle)
        memcpy(copy, handle, MK_NCCL_HANDLE_BYTES);
    while ((handle && !l->send) || (l->listen && !l->recv)) {
        if (handle && !l->send) {
            const int ret = caller_connect(&r->c, r->dev, copy, &l->send);
            need(r, !ret, "connect failed with %d", ret);
        }
        if (l->listen && !l->recv) {
            const int ret = caller_accept(&r->c, l->listen, &l->recv);
            need(r, !ret, "accept failed with %d", ret);
        }
        breathe(r);
    }
}

void link_up(struct rank *r, struct link *l, int peer, int slot)
{
    listen_on(r, l, slot);
    step(r);
    meet(r, l, r->sh->handle[peer][slot]);
    need(r, !caller_close_listen(&r->c, l->listen), "closeListen failed");
    l->listen = NULL;
}

void link_down(struct rank *r, struct link *l)
{
    need(r, !l->send || !caller_close_send(&r->c, l->send), "closeSend failed");
    need(r, !l->recv || !caller_close_recv(&r->c, l->recv), "closeRecv failed");
    need(r, !l->listen || !caller_close_listen(&r->c, l->listen), "closeListen failed");
    memset(l, 0, sizeof(*l));
}

/* ---- memory ---- */

void buf_new(struct rank *r, struct buf *b, size_t size, size_t shift)
{
    memset(b, 0, sizeof(*b));
    b->all = malloc(size + shift + 2 * CANARY);
    need(r, b->all, "no memory");
    b->data = b->all + CANARY + shift;
    b->size = size;
    memset(b->all, CANARY_BYTE, CANARY + shift);
    memset(b->data, FRESH_BYTE, size);
    memset(b->data + size, CANARY_BYTE, CANARY);
}

void buf_reg(struct rank *r, struct buf *b, void *comm)
{
    /* NCCL registers nothing of length 0; a buffer for empty messages gets a byte */
    const int ret = caller_reg(&r->c, comm, b->data, b->size ? b->size : 1, MK_NCCL_PTR_HOST, &b->mh);
    need(r, !ret, "regMr of %zu bytes failed with %d", b->size, ret);
    need(r, b->mh, "regMr gave a NULL mhandle");
    b->comm = comm;
}

void buf_dereg(struct rank *r, struct buf *b)
{
    if (b->mh)
        need(r, !caller_dereg(&r->c, b->comm, b->mh), "deregMr failed");
    b->mh = NULL;
}

void buf_canaries(const struct rank *r, const struct buf *b, const char *what)
{
    for (const uint8_t *p = b->all; p < b->data; p++)
        need(r, *p == CANARY_BYTE, "%s: a byte %td before the buffer was written", what, b->data - p);
    for (size_t i = 0; i < CANARY; i++)
        need(r, b->data[b->size + i] == CANARY_BYTE, "%s: a byte %zu behind the buffer was written", what, i);
}

void buf_free(struct rank *r, struct buf *b)
{
    if (!b->all)
        return;
    buf_dereg(r, b);
    buf_canaries(r, b, "at the end");
    free(b->all);
    b->all = NULL;
}

static uint64_t word_of(uint64_t seed, size_t i)
{
    uint64_t x = (seed + i) * 0x9e3779b97f4a7c15ull;
    x ^= x >> 29;
    return x * 0xbf58476d1ce4e5b9ull;
}

void buf_fill(struct buf *b, uint64_t seed, size_t n)
{
    for (size_t i = 0; i < n; i += 8) {
        const uint64_t w = word_of(seed, i);
        memcpy(b->data + i, &w, n - i < 8 ? n - i : 8);
    }
}

long buf_wrong(const struct buf *b, uint64_t seed, size_t n)
{
    for (size_t i = 0; i < n; i += 8) {
        const uint64_t w = word_of(seed, i);
        if (memcmp(b->data + i, &w, n - i < 8 ? n - i : 8))
            return (long)i;
    }
    return -1;
}

/* ---- requests ---- */

void *try_send(struct rank *r, void *comm, const struct buf *b, size_t n, int tag)
{
    void *request = NULL;
    const int ret = caller_isend(&r->c, comm, b->data, n, tag, b->mh, &request);
    need(r, !ret, "isend of %zu bytes failed with %d", n, ret);
    return request;
}

void *try_recv(struct rank *r, void *comm, const struct buf *b, size_t n, int tag, bool hint)
{
    void *data[1] = {b->data}, *mh[1] = {b->mh};
    void *request = hint && caller_has_hint(&r->c) ? MK_NCCL_OPTIONAL_RECV : NULL;
    const int ret = caller_irecv(&r->c, comm, 1, data, &n, &tag, mh, &request);
    need(r, !ret, "irecv of %zu bytes failed with %d", n, ret);
    need(r, request != MK_NCCL_OPTIONAL_RECV, "irecv left 0x1 in the request");
    return request;
}

void *try_recv_group(struct rank *r, void *comm, int n, const struct buf *b, const size_t *sizes,
                     const int *tags)
{
    void *data[CALLER_GROUP_MAX], *mh[CALLER_GROUP_MAX], *request = NULL;
    int copy[CALLER_GROUP_MAX];
    for (int i = 0; i < n; i++) {
        data[i] = b[i].data;
        mh[i] = b[i].mh;
        copy[i] = tags[i];
    }
    const int ret = caller_irecv(&r->c, comm, n, data, sizes, copy, mh, &request);
    need(r, !ret, "irecv of a group of %d failed with %d", n, ret);
    /* as NCCL's stack: what the caller gave may be gone now */
    memset(data, 0xee, sizeof(data));
    memset(mh, 0xee, sizeof(mh));
    memset(copy, 0xee, sizeof(copy));
    return request;
}

void *post_send(struct rank *r, void *comm, const struct buf *b, size_t n, int tag)
{
    void *request;
    while (!(request = try_send(r, comm, b, n, tag)))
        breathe(r);
    return request;
}

void *post_recv(struct rank *r, void *comm, const struct buf *b, size_t n, int tag)
{
    void *request;
    while (!(request = try_recv(r, comm, b, n, tag, false)))
        breathe(r);
    return request;
}

/* Sizes beyond n, and all of them while it is not done, are none of the plugin's business. */
static int test_once(struct rank *r, void *request, int n, int *sizes, int *done)
{
    int all[CALLER_GROUP_MAX + 1];
    for (int i = 0; i <= CALLER_GROUP_MAX; i++)
        all[i] = i < n ? 0 : -77;
    *done = 0;
    const int ret = caller_test(&r->c, request, done, n ? all : NULL);
    for (int i = n; i <= CALLER_GROUP_MAX; i++)
        need(r, all[i] == -77, "test wrote size %d of a request of %d", i, n);
    if (sizes && !ret && *done)
        memcpy(sizes, all, sizeof(int) * (size_t)n);
    return ret;
}

bool tested(struct rank *r, void *request, int n, int *sizes)
{
    int done;
    const int ret = test_once(r, request, n, sizes, &done);
    need(r, !ret, "test failed with %d", ret);
    return done != 0;
}

void finish(struct rank *r, void *request, int n, int *sizes)
{
    while (!tested(r, request, n, sizes))
        breathe(r);
}

void finish_both(struct rank *r, void *tx, void *rx, int *size)
{
    int sent;
    while (tx || rx) {
        if (rx && tested(r, rx, 1, size))
            rx = NULL;
        if (tx && tested(r, tx, 1, &sent))
            tx = NULL;
        breathe(r);
    }
}

int outcome(struct rank *r, void *request, int n, int *sizes, double seconds)
{
    const uint64_t end = now_ns() + (uint64_t)(seconds * 1e9);
    int done = 0;
    while (now_ns() < end) {
        const int ret = test_once(r, request, n, sizes, &done);
        if (ret || done)
            return ret;
        breathe(r);
    }
    return MK_NCCL_IN_PROGRESS;
}
