/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#include "tests/net/fake.h"
#include "mk/err.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define QUEUE 8192

struct fake_dev {
    struct mk_dev dev;
    struct mk_wc wc[QUEUE];
    unsigned head, tail;
    uint32_t bell;
};
struct fake_conn {
    struct mk_conn conn;
    struct fake_conn *peer;
    struct mk_wr held[QUEUE];
    int nheld;
};
struct fake_rmem {
    struct mk_rmem rmem;
    char *addr;
};

struct fake_world fake;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void fake_reset(void)
{
    memset(&fake, 0, sizeof(fake));
    fake.imm_bits = 32;
    fake.max_batch = 16;
    fake.depth = 256;
    fake.room = -1;
    fake.delivery = true;
}

static int fake_open(const struct mk_settings *s, struct mk_dev **out)
{
    (void)s;
    struct fake_dev *d = calloc(1, sizeof(*d));
    if (!d)
        return MK_ERR_NOMEM;
    d->dev.ops = &fake_ops;
    strcpy(d->dev.caps.transport, "fake");
    strcpy(d->dev.caps.provider, "memory");
    d->dev.caps.ordered = fake.ordered;
    d->dev.caps.immediate_bits = fake.imm_bits;
    d->dev.caps.max_batch = fake.max_batch;
    d->dev.caps.depth = fake.depth;
    d->dev.caps.delivery_complete = fake.delivery;
    d->dev.caps.inline_size = 8;
    d->dev.caps.max_message = 1 << 30;
    *out = &d->dev;
    return 0;
}

static void fake_close(struct mk_dev *dev)
{
    fake.closes++;
    free(dev);
}

static int fake_conn_open(struct mk_dev *dev, struct mk_net_addr *mine, struct mk_conn **out)
{
    struct fake_conn *c = calloc(1, sizeof(*c));
    if (!c)
        return MK_ERR_NOMEM;
    c->conn.dev = dev;
    memcpy(mine->bytes, &c, sizeof(struct fake_conn *));
    *out = &c->conn;
    return 0;
}

static int fake_connect(struct mk_conn *conn, const struct mk_net_addr *peer)
{
    struct fake_conn *c = (struct fake_conn *)conn;
    struct fake_conn *p;
    memcpy(&p, peer->bytes, sizeof(struct fake_conn *));
    pthread_mutex_lock(&lock);
    c->peer = p;
    const bool both = p && p->peer == c;
    pthread_mutex_unlock(&lock);
    if (!p)
        return mk_fail_quiet(MK_ERR_NET, "refused");
    return both ? 0 : MK_ERR_AGAIN;
}

static void fake_conn_close(struct mk_conn *conn)
{
    struct fake_conn *c = (struct fake_conn *)conn;
    pthread_mutex_lock(&lock);
    if (c->peer && c->peer->peer == c)
        c->peer->peer = NULL;
    struct fake_dev *d = (struct fake_dev *)conn->dev;
    for (unsigned i = d->head; i != d->tail; i++)
        if (d->wc[i % QUEUE].conn == conn)
            d->wc[i % QUEUE].conn = NULL;
    pthread_mutex_unlock(&lock);
    free(c);
}

static int fake_reg(struct mk_dev *dev, void *addr, size_t len, const struct mk_shm *shm, struct mk_mr **out)
{
    (void)shm;
    struct mk_mr *mr = calloc(1, sizeof(*mr));
    if (!mr)
        return MK_ERR_NOMEM;
    mr->dev = dev;
    mr->addr = addr;
    mr->len = len;
    *out = mr;
    return 0;
}

static void fake_dereg(struct mk_mr *mr)
{
    free(mr);
}

static void fake_key(const struct mk_mr *mr, struct mk_net_key *out)
{
    memcpy(out->bytes, &mr->addr, 8);
    memcpy(out->bytes + 8, &mr->len, 8);
}

static int fake_import(struct mk_conn *c, const struct mk_net_key *key, struct mk_rmem **out)
{
    struct fake_rmem *r = calloc(1, sizeof(*r));
    if (!r)
        return MK_ERR_NOMEM;
    r->rmem.conn = c;
    memcpy(&r->addr, key->bytes, 8);
    memcpy(&r->rmem.len, key->bytes + 8, 8);
    *out = &r->rmem;
    return 0;
}

static void fake_unimport(struct mk_rmem *r)
{
    free(r);
}

static void push(struct fake_dev *d, const struct mk_wc *wc)
{
    if (d->tail - d->head < QUEUE)
        d->wc[d->tail++ % QUEUE] = *wc;
    __atomic_store_n(&d->bell, 1, __ATOMIC_RELEASE);
}

static void perform(struct fake_conn *c, const struct mk_wr *w)
{
    struct mk_wc wc;
    memset(&wc, 0, sizeof(wc));
    if (w->len && w->flags & MK_WR_INLINE)
        __atomic_store_n((uint64_t *)(((struct fake_rmem *)w->rmem)->addr + w->remote_off), w->inline_data,
                         __ATOMIC_RELEASE);
    else if (w->len)
        memcpy(((struct fake_rmem *)w->rmem)->addr + w->remote_off, (char *)w->mr->addr + w->local_off,
               w->len);
    if (w->flags & MK_WR_IMM && c->peer) {
        wc.kind = MK_WC_REMOTE;
        wc.imm = w->imm;
        push((struct fake_dev *)c->peer->conn.dev, &wc);
    }
    if (w->flags & MK_WR_SIGNALED && !fake.lose) {
        wc.kind = MK_WC_LOCAL;
        wc.id = w->id;
        wc.conn = &c->conn;
        wc.status = fake.fail;
        strcpy(wc.text, fake.fail ? "made to fail" : "");
        push((struct fake_dev *)c->conn.dev, &wc);
    }
}

static int fake_post(struct mk_conn *conn, const struct mk_wr *wrs, int n)
{
    struct fake_conn *c = (struct fake_conn *)conn;
    pthread_mutex_lock(&lock);
    if (fake.post_error) {
        pthread_mutex_unlock(&lock);
        return mk_fail_quiet(fake.post_error, "made to fail");
    }
    if (fake.room >= 0 && n > fake.room)
        n = fake.room;
    for (int i = 0; i < n; i++) {
        fake.inlines += wrs[i].flags & MK_WR_INLINE && wrs[i].len;
        fake.imms += (wrs[i].flags & MK_WR_IMM) != 0;
        fake.wides += wrs[i].flags & MK_WR_IMM && wrs[i].flags & MK_WR_INLINE && wrs[i].len;
        fake.deliveries += (wrs[i].flags & MK_WR_DELIVERY) != 0;
        if (fake.hold && c->nheld < QUEUE)
            c->held[c->nheld++] = wrs[i];
        else
            perform(c, &wrs[i]);
    }
    if (n) {
        if (fake.posts < 64)
            fake.sizes[fake.posts] = n;
        fake.posts++;
    }
    pthread_mutex_unlock(&lock);
    return n;
}

static int fake_poll(struct mk_dev *dev, struct mk_wc *wcs, int max)
{
    struct fake_dev *d = (struct fake_dev *)dev;
    int n = 0;
    pthread_mutex_lock(&lock);
    if (fake.poll_error) {
        pthread_mutex_unlock(&lock);
        return mk_fail_quiet(fake.poll_error, "made to fail");
    }
    while (n < max && d->head != d->tail)
        wcs[n++] = d->wc[d->head++ % QUEUE];
    pthread_mutex_unlock(&lock);
    return n;
}

static void fake_wait(struct mk_dev *dev, uint64_t ns)
{
    struct fake_dev *d = (struct fake_dev *)dev;
    const struct timespec step = {0, 20000};
    pthread_mutex_lock(&lock);
    fake.waits++;
    fake.last_wait_ns = ns;
    const bool sleepless = fake.sleepless;
    pthread_mutex_unlock(&lock);
    if (sleepless)
        return;
    for (uint64_t t = 0; t < ns; t += 70000) {
        if (__atomic_exchange_n(&d->bell, 0, __ATOMIC_ACQ_REL))
            return;
        nanosleep(&step, NULL);
    }
}

static void fake_wake(struct mk_dev *dev)
{
    __atomic_store_n(&((struct fake_dev *)dev)->bell, 1, __ATOMIC_RELEASE);
    pthread_mutex_lock(&lock);
    fake.wakes++;
    pthread_mutex_unlock(&lock);
}

int fake_held(struct mk_conn *c)
{
    pthread_mutex_lock(&lock);
    const int n = ((struct fake_conn *)c)->nheld;
    pthread_mutex_unlock(&lock);
    return n;
}

void fake_release(struct mk_conn *conn, int i)
{
    struct fake_conn *c = (struct fake_conn *)conn;
    pthread_mutex_lock(&lock);
    const struct mk_wr w = c->held[i];
    memmove(&c->held[i], &c->held[i + 1], (size_t)(c->nheld - i - 1) * sizeof(w));
    c->nheld--;
    perform(c, &w);
    pthread_mutex_unlock(&lock);
}

void fake_release_all(struct mk_conn *c)
{
    while (fake_held(c))
        fake_release(c, 0);
}

const struct mk_net_ops fake_ops = {
    .name = "fake",
    .open = fake_open,
    .close = fake_close,
    .conn_open = fake_conn_open,
    .conn_connect = fake_connect,
    .conn_close = fake_conn_close,
    .reg = fake_reg,
    .dereg = fake_dereg,
    .key = fake_key,
    .import = fake_import,
    .unimport = fake_unimport,
    .post = fake_post,
    .poll = fake_poll,
    .wait = fake_wait,
    .wake = fake_wake,
};
