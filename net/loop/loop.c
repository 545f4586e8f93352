/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Loop: the transport between processes of one host (and within one), over CPU memory in memfds. The smallest
 * complete transport: read it first.
 *
 *   loop_wire.h     what two processes share: address, key, inbox rings
 *   loop_map.c      registration, and the maps of the peers' memory
 *   loop_nic.c      post and poll: the emulated NIC is the sender's poll
 *   loop_gpu.c      GPU memory: writes handed to mknic; loop_gpu_reg.c: its registration
 *   loop_hostile.c  random pieces, delays and order, within what is declared
 *   loop.c          device, connections, sleeping, the table
 *
 * Latency (MK_LOOP_US) is per message, many in flight; the rate of a link is paced by the engine above. A peer that
 * died stays mapped: writes go on into its memory and nobody sees them; a full inbox is back-pressure. */
#include "loop_gpu.h"
#include "mk/err.h"
#include "mk/log.h"
#include "mk/param.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void caps_fill(const struct mk_settings *s, struct mk_caps *caps)
{
    snprintf(caps->transport, sizeof(caps->transport), "loop");
    snprintf(caps->provider, sizeof(caps->provider), "loop");
    caps->ordered = s->ordered;
    caps->target_progress = true;
    caps->delivery_complete = true;
    caps->shm_only = true;
    caps->immediate_bits = 32;
    caps->max_batch = MK_LOOP_DEPTH;
    caps->depth = MK_LOOP_DEPTH;
    caps->inline_size = 8;
    caps->max_message = 1u << 30;
}

static int loop_open(const struct mk_settings *s, struct mk_dev **out)
{
    struct mk_loop_dev *d = calloc(1, sizeof(*d));
    struct mk_loop_conn **conn = calloc(MK_LOOP_CONNS, sizeof(struct mk_loop_conn *));
    int ret = MK_ERR_NOMEM;
    if (!d || !conn) {
        ret = mk_fail(MK_ERR_NOMEM, "NET", "loop: no memory for a device");
        goto free_device;
    }
    ret = mk_shm_create("mkernel loop inbox", sizeof(struct mk_loop_segment), &d->shm);
    if (ret)
        goto free_device;
    d->segment = d->shm.addr;
    d->segment->magic = MK_LOOP_MAGIC;
    d->base.ops = &mk_loop_ops;
    d->conn = conn;
    d->host = mk_host_id();
    d->latency_ns = (uint64_t)(s->loop_us * 1000.0);
    d->random = (uint64_t)s->loop_hostile * 0x9e3779b97f4a7c15ull;
    caps_fill(s, &d->base.caps);
    if (*s->nic)
        mk_loop_nic_open(d, s->nic, s->timeout);
    d->base.caps.gpu_memory = d->nic != NULL;
    MK_INFO("NET", "loop: opened%s%s, latency %.1f us", s->ordered ? ", ordered" : "",
            s->loop_hostile ? ", hostile" : "", s->loop_us);
    *out = &d->base;
    return 0;
free_device:
    free(conn);
    free(d);
    return ret;
}

/* Every opening makes one. */
static int loop_nth(const struct mk_settings *s, int nth, struct mk_settings *out)
{
    (void)nth;
    *out = *s;
    return 0;
}

/* Moves the state of a ring by compare-and-swap: the other side may be leaving at the same time. */
static void ring_leave(struct mk_loop_ring *r, uint64_t generation, enum mk_loop_ring_state mine,
                       enum mk_loop_ring_state theirs)
{
    uint64_t was = __atomic_load_n(&r->state, __ATOMIC_ACQUIRE);
    for (;;) {
        if (was >> 8 != generation)
            return;
        const uint64_t state = was & 0xff;
        const bool alone = state == MK_LOOP_OPEN || state == (uint64_t)theirs;
        const uint64_t to = generation << 8 | (alone ? MK_LOOP_FREE : (uint64_t)mine);
        if (__atomic_compare_exchange_n(&r->state, &was, to, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            return;
    }
}

/* Never waits: what is pending is thrown away, the peer keeps what has landed. */
static void conn_close(struct mk_conn *conn)
{
    struct mk_loop_conn *c = (struct mk_loop_conn *)conn;
    if (!c)
        return;
    struct mk_loop_dev *d = c->dev;
    mk_loop_drop_items(c);
    if (c->out)
        ring_leave(c->out, c->peer_generation, MK_LOOP_TX_LEFT, MK_LOOP_RX_LEFT);
    ring_leave(c->in, c->generation, MK_LOOP_RX_LEFT, MK_LOOP_TX_LEFT);
    mk_loop_map_put(d, c->peer);
    d->conn[c->slot] = d->conn[--d->nconn];
    d->conn[c->slot]->slot = c->slot;
    free(c->plan);
    free(c->item);
    free(c);
}

static void loop_close(struct mk_dev *dev)
{
    struct mk_loop_dev *d = (struct mk_loop_dev *)dev;
    if (!d)
        return;
    while (d->nconn)
        conn_close(&d->conn[0]->base);
    while (d->maps) {
        d->maps->refs = 1; /* imports that were not given back */
        mk_loop_map_put(d, d->maps);
    }
    mk_loop_nic_close(d);
    mk_shm_release(&d->shm);
    free(d->conn);
    free(d);
}

/* A free ring, opened under a new generation; its peer, if it had one, has left. */
static int ring_open(struct mk_loop_dev *d, uint32_t *ring, uint64_t *generation)
{
    for (uint32_t i = 0; i < MK_LOOP_CONNS; i++) {
        const uint32_t at = (d->ring_hint + i) % MK_LOOP_CONNS;
        struct mk_loop_ring *r = &d->segment->ring[at];
        const uint64_t state = __atomic_load_n(&r->state, __ATOMIC_ACQUIRE);
        if ((state & 0xff) != MK_LOOP_FREE)
            continue;
        __atomic_store_n(&r->tail, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&r->head, 0, __ATOMIC_RELAXED);
        *generation = (state >> 8) + 1;
        *ring = at;
        __atomic_store_n(&r->state, *generation << 8 | MK_LOOP_OPEN, __ATOMIC_RELEASE);
        d->ring_hint = at + 1;
        return 0;
    }
    return mk_fail(MK_ERR_NOMEM, "NET", "loop: all %u connections of the device are in use", MK_LOOP_CONNS);
}

static int conn_open(struct mk_dev *dev, struct mk_net_addr *mine, struct mk_conn **out)
{
    struct mk_loop_dev *d = (struct mk_loop_dev *)dev;
    struct mk_loop_addr addr;
    struct mk_loop_conn *c = calloc(1, sizeof(*c));
    struct mk_loop_item *item = calloc(MK_LOOP_DEPTH, sizeof(*item));
    struct mk_loop_plan *plan = d->random ? calloc(MK_LOOP_DEPTH, sizeof(*plan)) : NULL;
    int ret;
    if (!c || !item || (d->random && !plan)) {
        ret = mk_fail(MK_ERR_NOMEM, "NET", "loop: no memory for a connection");
        goto free_conn;
    }
    ret = ring_open(d, &c->ring, &c->generation);
    if (ret)
        goto free_conn;
    c->base.dev = dev;
    c->dev = d;
    c->in = &d->segment->ring[c->ring];
    c->item = item;
    c->plan = plan;
    c->next_due = MK_LOOP_NEVER;
    c->slot = d->nconn;
    d->conn[d->nconn++] = c;
    memset(&addr, 0, sizeof(addr));
    addr.magic = MK_LOOP_MAGIC;
    addr.ring = c->ring;
    addr.generation = c->generation;
    addr.host = d->host;
    mk_shm_ref(&d->shm, &addr.segment);
    memset(mine, 0, sizeof(*mine));
    memcpy(mine->bytes, &addr, sizeof(addr));
    *out = &c->base;
    return 0;
free_conn:
    free(plan);
    free(item);
    free(c);
    return ret;
}

static int conn_connect(struct mk_conn *conn, const struct mk_net_addr *peer)
{
    struct mk_loop_conn *c = (struct mk_loop_conn *)conn;
    struct mk_loop_addr a;
    if (c->out)
        return 0;
    memcpy(&a, peer->bytes, sizeof(a));
    if (a.magic != MK_LOOP_MAGIC || a.ring >= MK_LOOP_CONNS ||
        a.segment.size < sizeof(struct mk_loop_segment))
        return mk_fail(MK_ERR_PEER, "NET", "loop: the peer's address is not one of the loop transport");
    if (a.host != c->dev->host)
        return mk_fail(MK_ERR_UNSUPPORTED, "NET",
                       "loop: the peer (process %d) is on another host, or in another container",
                       (int)a.segment.pid);
    int ret = mk_loop_map_get(c->dev, &a.segment, &c->peer);
    if (ret)
        return ret;
    struct mk_loop_segment *seg = c->peer->shm.addr;
    uint64_t expected = a.generation << 8 | MK_LOOP_OPEN;
    if (!__atomic_compare_exchange_n(&seg->ring[a.ring].state, &expected, a.generation << 8 | MK_LOOP_TAKEN,
                                     false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        mk_loop_map_put(c->dev, c->peer);
        c->peer = NULL;
        return mk_fail(MK_ERR_PEER, "NET",
                       "loop: process %d has closed the connection, or gave it to another peer",
                       (int)a.segment.pid);
    }
    c->peer_generation = a.generation;
    c->peer_bell = &seg->bell;
    c->out = &seg->ring[a.ring];
    return 0;
}

static bool inbox_empty(const struct mk_loop_conn *c)
{
    const uint64_t head = __atomic_load_n(&c->in->head, __ATOMIC_RELAXED);
    return __atomic_load_n(&c->in->tail, __ATOMIC_ACQUIRE) - head - 1 >= MK_LOOP_RING;
}

/* A ring of the bell since the last wait ends this one at once, so no wake is lost whatever the caller did between. */
static void loop_wait(struct mk_dev *dev, uint64_t ns)
{
    struct mk_loop_dev *d = (struct mk_loop_dev *)dev;
    uint64_t due = MK_LOOP_NEVER;
    ns = mk_loop_gpu_nap(d, ns);
    for (unsigned i = 0; i < d->nconn; i++) {
        if (!inbox_empty(d->conn[i]))
            return;
        if (d->conn[i]->next_due < due)
            due = d->conn[i]->next_due;
    }
    if (due != MK_LOOP_NEVER) {
        const uint64_t now = mk_time_ns();
        if (due <= now)
            return;
        ns = due - now < ns ? due - now : ns;
    }
    if (ns && mk_bell_seq(&d->segment->bell) == d->bell_seen)
        mk_bell_wait(&d->segment->bell, d->bell_seen, ns);
    d->bell_seen = mk_bell_seq(&d->segment->bell);
}

static void loop_wake(struct mk_dev *dev)
{
    mk_bell_ring(&((struct mk_loop_dev *)dev)->segment->bell);
}

const struct mk_net_ops mk_loop_ops = {
    .name = "loop",
    .open = loop_open,
    .close = loop_close,
    .nth = loop_nth,
    .conn_open = conn_open,
    .conn_connect = conn_connect,
    .conn_close = conn_close,
    .reg = mk_loop_reg,
    .export = mk_loop_export,
    .reg_export = mk_loop_reg_export,
    .fill = mk_loop_gpu_fill,
    .dereg = mk_loop_dereg,
    .key = mk_loop_key,
    .import = mk_loop_import,
    .unimport = mk_loop_unimport,
    .post = mk_loop_post,
    .poll = mk_loop_poll,
    .wait = loop_wait,
    .wake = loop_wake,
};
