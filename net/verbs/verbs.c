/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* verbs: InfiniBand and RoCE through libibverbs, by remote writes on reliable queue pairs.
 *
 *   verbs_lib.c    opens libibverbs at run time
 *   verbs_port.c   which device, port and address
 *   verbs_conn.c   connections: queue pairs
 *   verbs_post.c   post and poll
 *   verbs_event.c  what the device says by itself
 *   verbs_gpu.c    memory of GPUs, as dma-bufs
 *   verbs.c        device, memory, sleeping, the table
 *
 * The device moves bytes by itself: a target's memory changes also while nobody there polls. Order between writes of a
 * connection is the fabric's affair (adaptive routing is invisible here): only MK_ORDERED=1 declares it. Memory is
 * registered without relaxed ordering, so that a flag word never overtakes its payload on the way into memory. */
#include "verbs.h"
#include "mk/err.h"
#include "mk/log.h"
#include "mk/param.h"
#include "net/rlimits.h"
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define CQE_START 4096
/* Sleeps where arrivals make no completion: from the first to the second, doubling, until poll finds something. */
#define NAP_MIN_NS 50000u
#define NAP_MAX_NS 200000u

int mk_verbs_fail(const struct mk_verbs_dev *d, const char *what, int err)
{
    char text[MK_LIMITS_TEXT] = "";
    if (err == ENOMEM || err == EAGAIN || err == EPERM)
        mk_limits_memlock_text(text);
    return mk_fail(MK_ERR_NET, "NET", "verbs: %s: %s: %s%s%s", d->name, what, strerror(err),
                   text[0] ? "; " : "", text);
}

/* ---- device ---- */

static void destroy(struct mk_verbs_dev *d)
{
    mk_verbs_self_close(d);
    if (d->cq)
        d->lib->destroy_cq(d->cq);
    if (d->channel)
        d->lib->destroy_comp_channel(d->channel);
    if (d->pd)
        d->lib->dealloc_pd(d->pd);
    if (d->ctx)
        d->lib->close_device(d->ctx);
    if (d->wake_fd >= 0)
        close(d->wake_fd);
    free(d->conns);
    free(d);
}

static void verbs_close(struct mk_dev *dev)
{
    if (dev)
        destroy((struct mk_verbs_dev *)dev);
}

/* How long a device tries by itself. A dead peer is an error after (MK_VERBS_RETRIES + 1) times 4.096 us * 2^ack_timeout
 * (devices may take up to four times that), at most a third of MK_TIMEOUT; one that posts no receives after
 * (MK_VERBS_RNR_RETRIES + 1) pauses, less than half of it. The engine's own deadline stands behind both. */
static void set_patience(struct mk_verbs_dev *d, double timeout)
{
    const double one = timeout * 1e9 / 3 / (MK_VERBS_RETRIES + 1);
    d->ack_timeout = 10;
    while (d->ack_timeout < 20 && 4096.0 * (double)(2u << d->ack_timeout) <= one)
        d->ack_timeout++;
    d->rnr_timer = 31; /* code 2k: 10 us * 2^k; 2k + 1: half as much again */
    while (d->rnr_timer > 1 &&
           1e4 * (double)(1u << d->rnr_timer / 2) * (d->rnr_timer & 1 ? 1.5 : 1) > timeout * 1e9 / 16)
        d->rnr_timer--;
    d->grace_ns = (uint64_t)(timeout * 1e9 / 8);
}

static int unblock(int fd)
{
    const int flags = fcntl(fd, F_GETFL);
    return flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ? errno : 0;
}

static int open_objects(struct mk_verbs_dev *d)
{
    int err = unblock(d->ctx->async_fd);
    if (err)
        return mk_verbs_fail(d, "its events", err);
    d->pd = d->lib->alloc_pd(d->ctx);
    if (!d->pd)
        return mk_verbs_fail(d, "a protection domain", errno);
    d->channel = d->lib->create_comp_channel(d->ctx);
    if (!d->channel)
        return mk_verbs_fail(d, "a channel of completions", errno);
    err = unblock(d->channel->fd);
    if (err)
        return mk_verbs_fail(d, "a channel of completions", err);
    d->cqe = d->max_cqe < CQE_START ? d->max_cqe : CQE_START;
    d->cq = d->lib->create_cq(d->ctx, d->cqe, NULL, d->channel, 0);
    if (!d->cq)
        return mk_verbs_fail(d, "a completion queue", errno);
    return 0;
}

static void fill_caps(const struct mk_settings *s, struct mk_verbs_dev *d)
{
    struct mk_caps *caps = &d->base.caps;
    snprintf(caps->transport, sizeof(caps->transport), "verbs");
    snprintf(caps->provider, sizeof(caps->provider), "%.56s:%u", d->name, d->port);
    caps->ordered = s->ordered;
    caps->target_progress = true;
    caps->delivery_complete = true; /* what it means: build() in verbs_post.c */
    caps->gpu_memory = false;
    caps->dmabuf = mk_verbs_takes_dmabuf(d);
    caps->immediate_bits = 32;
    caps->max_batch = MK_VERBS_LIST;
    caps->depth = d->depth;
    caps->inline_size = 8;
    d->naps = s->ordered;
}

static int verbs_open(const struct mk_settings *s, struct mk_dev **out)
{
    struct mk_verbs_dev *d = calloc(1, sizeof(*d));
    if (!d)
        return mk_fail(MK_ERR_NOMEM, "NET", "verbs: no memory for a device");
    d->base.ops = &mk_verbs_ops;
    d->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int ret = d->wake_fd < 0 ? mk_fail(MK_ERR_SYSTEM, "NET", "verbs: eventfd: %s", strerror(errno)) : 0;
    if (!ret)
        ret = mk_verbs_lib_get(&d->lib);
    if (!ret)
        ret = mk_verbs_choose(s, d);
    if (!ret)
        ret = open_objects(d);
    if (ret) {
        destroy(d);
        return ret;
    }
    set_patience(d, s->timeout);
    fill_caps(s, d);
    *out = &d->base;
    return 0;
}

/* ---- memory ---- */

static int reg(struct mk_dev *dev, void *addr, size_t len, const struct mk_shm *shm, struct mk_mr **out)
{
    struct mk_verbs_dev *d = (struct mk_verbs_dev *)dev;
    (void)shm;
    struct mk_verbs_mr *m = calloc(1, sizeof(*m));
    if (!m)
        return mk_fail(MK_ERR_NOMEM, "NET", "verbs: no memory for a registration");
    m->mr = d->lib->reg_mr(d->pd, addr, len, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    if (!m->mr) {
        const int err = errno;
        free(m);
        return mk_verbs_fail(d, "registering memory", err);
    }
    m->base.dev = dev;
    m->base.addr = addr;
    m->base.len = len;
    *out = &m->base;
    return 0;
}

static void dereg(struct mk_mr *mr)
{
    struct mk_verbs_mr *m = (struct mk_verbs_mr *)mr;
    if (!m)
        return;
    ((struct mk_verbs_dev *)mr->dev)->lib->dereg_mr(m->mr);
    free(m);
}

static void key(const struct mk_mr *mr, struct mk_net_key *out)
{
    static_assert(sizeof(struct mk_verbs_key) <= sizeof(out->bytes), "the key fits");
    struct mk_verbs_key k;
    memset(&k, 0, sizeof(k));
    k.magic = MK_VERBS_MAGIC;
    k.rkey = ((const struct mk_verbs_mr *)mr)->mr->rkey;
    k.addr = (uintptr_t)mr->addr;
    k.len = mr->len;
    memset(out, 0, sizeof(*out));
    memcpy(out->bytes, &k, sizeof(k));
}

static int import(struct mk_conn *conn, const struct mk_net_key *from, struct mk_rmem **out)
{
    struct mk_verbs_conn *c = (struct mk_verbs_conn *)conn;
    struct mk_verbs_key k;
    memcpy(&k, from->bytes, sizeof(k));
    if (k.magic != MK_VERBS_MAGIC || k.addr + k.len < k.addr)
        return mk_fail(MK_ERR_INVALID, "NET", "verbs: this is not a key of the verbs transport");
    struct mk_verbs_rmem *r = calloc(1, sizeof(*r));
    if (!r)
        return mk_fail(MK_ERR_NOMEM, "NET", "verbs: no memory for an imported key");
    r->base.conn = conn;
    r->base.len = k.len;
    r->addr = c->any_addr = k.addr;
    r->rkey = c->any_key = k.rkey;
    *out = &r->base;
    return 0;
}

static void unimport(struct mk_rmem *r)
{
    free(r);
}

/* ---- sleeping ---- */

static void take_channel(struct mk_verbs_dev *d)
{
    struct ibv_cq *cq;
    void *user;
    unsigned n = 0;
    while (!d->lib->get_cq_event(d->channel, &cq, &user))
        n++;
    if (n)
        d->lib->ack_cq_events(d->cq, n);
    d->armed = false;
}

static void verbs_wait(struct mk_dev *dev, uint64_t ns)
{
    struct mk_verbs_dev *d = (struct mk_verbs_dev *)dev;
    struct pollfd fds[3] = {
        {d->wake_fd, POLLIN, 0}, {d->channel->fd, POLLIN, 0}, {d->ctx->async_fd, POLLIN, 0}};
    uint64_t count;
    if (d->news || d->nstash || d->error)
        return;
    if (!d->armed) { /* what came before the queue was armed makes no event: look once more */
        if (d->cq->context->ops.req_notify_cq(d->cq, 0))
            ns = ns < NAP_MAX_NS ? ns : NAP_MAX_NS;
        d->nstash = d->cq->context->ops.poll_cq(d->cq, MK_VERBS_STASH, d->stash);
        if (d->nstash > 0)
            return; /* there may be more of them: armed once none is left */
        d->nstash = 0;
        d->armed = true;
    }
    if (d->naps) {
        d->nap_ns = d->found || !d->nap_ns ? NAP_MIN_NS : d->nap_ns < NAP_MAX_NS ? 2 * d->nap_ns : NAP_MAX_NS;
        ns = d->nap_ns < ns ? d->nap_ns : ns;
        d->found = false;
    }
    if (d->down_ns && ns > d->grace_ns)
        ns = d->grace_ns;
    const struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    const int ready = ppoll(fds, 3, &t, NULL);
    if (ready > 0 && fds[1].revents)
        take_channel(d);
    if ((ready > 0 && fds[2].revents) || d->down_ns)
        mk_verbs_events(d);
    if (ready > 0 && fds[0].revents && read(d->wake_fd, &count, 8) != 8)
        return;
}

/* Stays until a wait has seen it. */
static void verbs_wake(struct mk_dev *dev)
{
    const uint64_t one = 1;
    if (write(((struct mk_verbs_dev *)dev)->wake_fd, &one, 8) != 8)
        return; /* the counter is full: it is awake */
}

const struct mk_net_ops mk_verbs_ops = {
    .name = "verbs",
    .open = verbs_open,
    .close = verbs_close,
    .nth = mk_verbs_nth,
    .conn_open = mk_verbs_conn_open,
    .conn_connect = mk_verbs_conn_connect,
    .conn_close = mk_verbs_conn_close,
    .reg = reg,
    .dereg = dereg,
    .reg_dmabuf = mk_verbs_reg_dmabuf,
    .fill = mk_verbs_fill,
    .flush = mk_verbs_flush,
    .key = key,
    .import = import,
    .unimport = unimport,
    .post = mk_verbs_post,
    .poll = mk_verbs_poll,
    .wait = verbs_wait,
    .wake = verbs_wake,
};
