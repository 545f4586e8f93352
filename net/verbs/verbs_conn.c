/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Connections: a reliable queue pair each, from INIT (open) to ready (connect) to nothing (close). */
#include "mk/err.h"
#include "verbs.h"
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define SLOTS_MAX 65536u

static int take_slot(struct mk_verbs_dev *d, uint32_t *out)
{
    uint32_t slot = 0;
    while (slot < d->nslots && d->conns[slot])
        slot++;
    if (slot == d->nslots) {
        const uint32_t n = d->nslots ? 2 * d->nslots : 16;
        struct mk_verbs_conn **list =
            n <= SLOTS_MAX ? realloc(d->conns, n * sizeof(struct mk_verbs_conn *)) : NULL;
        if (!list)
            return mk_fail(MK_ERR_NOMEM, "NET", "verbs: no room for more than %u connections", d->nslots);
        memset(list + d->nslots, 0, (n - d->nslots) * sizeof(struct mk_verbs_conn *));
        d->conns = list;
        d->nslots = n;
    }
    *out = slot;
    return 0;
}

/* The queue holds whatever its connections can complete before somebody polls; it never overflows. Those that come when
 * half of the largest queue is spoken for have short queues. */
static int make_room(struct mk_verbs_dev *d, struct mk_verbs_conn *c)
{
    const uint64_t others = (uint64_t)d->live + d->ghosts;
    uint64_t cqe = (uint64_t)d->cqe;
    c->depth = d->depth;
    c->recvs = d->recvs;
    if (others + c->depth + c->recvs > (uint64_t)d->max_cqe / 2) {
        c->depth = d->depth < MK_VERBS_DEPTH_SMALL ? d->depth : MK_VERBS_DEPTH_SMALL;
        c->recvs = d->recvs < MK_VERBS_RECVS_SMALL ? d->recvs : MK_VERBS_RECVS_SMALL;
    }
    const uint64_t need = others + c->depth + c->recvs;
    if (need > (uint64_t)d->max_cqe)
        return mk_fail(MK_ERR_UNSUPPORTED, "NET",
                       "verbs: %s: %u connections are too many for its completion queues of %d", d->name,
                       d->nconns + 1, d->max_cqe);
    while (cqe < need)
        cqe *= 2;
    cqe = cqe < (uint64_t)d->max_cqe ? cqe : (uint64_t)d->max_cqe;
    const int err = cqe > (uint64_t)d->cqe ? d->lib->resize_cq(d->cq, (int)cqe) : 0;
    if (err)
        return mk_verbs_fail(d, "a larger completion queue", err);
    d->cqe = (int)cqe;
    return 0;
}

/* A queue pair in state INIT, with its receives posted: ready before the peer can know of it. */
static int open_queue_pair(struct mk_verbs_conn *c)
{
    struct mk_verbs_dev *d = c->dev;
    struct ibv_qp_init_attr init;
    struct ibv_qp_attr attr;
    memset(&init, 0, sizeof(init));
    init.qp_context = c;
    init.send_cq = init.recv_cq = d->cq;
    init.cap.max_send_wr = c->depth;
    init.cap.max_recv_wr = c->recvs;
    init.cap.max_send_sge = init.cap.max_recv_sge = 1;
    init.cap.max_inline_data = 8;
    init.qp_type = IBV_QPT_RC;
    c->qp = d->lib->create_qp(d->pd, &init);
    if (!c->qp)
        return mk_verbs_fail(d, "a queue pair", errno);
    memset(&attr, 0, sizeof(attr));
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = d->port;
    attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    const int err =
        d->lib->modify_qp(c->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    return err ? mk_verbs_fail(d, "initialising a queue pair", err) : mk_verbs_refill(c, c->recvs);
}

/* Destroying the queue pair is more than moving it to error: from here on nothing of the peer's reaches memory, and
 * writes in flight end in silence. It waits for nothing but this host's device. */
void mk_verbs_conn_close(struct mk_conn *conn)
{
    struct mk_verbs_conn *c = (struct mk_verbs_conn *)conn;
    if (!c)
        return;
    struct mk_verbs_dev *d = c->dev;
    if (c->qp)
        d->lib->destroy_qp(c->qp);
    for (uint32_t i = 0; i < d->nslots; i++)
        if (d->conns[i] == c) {
            d->conns[i] = NULL;
            d->nconns--;
            d->live -= c->depth + c->recvs;
            d->ghosts += c->depth + c->recvs;
        }
    d->news -= c->nended + c->tell;
    free(c);
}

int mk_verbs_conn_open(struct mk_dev *dev, struct mk_net_addr *mine, struct mk_conn **out)
{
    static_assert(sizeof(struct mk_verbs_addr) <= sizeof(mine->bytes), "the address fits");
    struct mk_verbs_dev *d = (struct mk_verbs_dev *)dev;
    struct mk_verbs_addr a;
    uint32_t slot = 0, psn = 0;
    int ret = take_slot(d, &slot);
    if (ret)
        return ret;
    struct mk_verbs_conn *c = calloc(1, sizeof(*c));
    if (!c)
        return mk_fail(MK_ERR_NOMEM, "NET", "verbs: no memory for a connection");
    c->base.dev = dev;
    c->dev = d;
    c->tag = MK_VERBS_TAG(++d->serial, slot);
    ret = make_room(d, c);
    if (!ret)
        ret = open_queue_pair(c);
    if (ret) {
        mk_verbs_conn_close(&c->base);
        return ret;
    }
    if (getrandom(&psn, sizeof(psn), GRND_NONBLOCK) != sizeof(psn))
        psn = (uint32_t)mk_time_ns();
    c->psn = psn & 0xffffff;
    d->conns[slot] = c;
    d->nconns++;
    d->live += c->depth + c->recvs;
    memset(&a, 0, sizeof(a));
    a.magic = MK_VERBS_MAGIC;
    a.qpn = c->qp->qp_num;
    a.psn = c->psn;
    a.lid = d->lid;
    a.mtu = d->mtu;
    a.link_layer = d->link_layer;
    memcpy(a.gid, d->gid.raw, sizeof(a.gid));
    snprintf(a.device, sizeof(a.device), "%s", d->base.caps.provider);
    memset(mine, 0, sizeof(*mine));
    memcpy(mine->bytes, &a, sizeof(a));
    *out = &c->base;
    return 0;
}

/* INIT to ready-to-receive to ready-to-send. What a side sends before the other got here is repeated by the device. */
int mk_verbs_ready(const struct mk_verbs_dev *d, struct ibv_qp *qp, uint32_t psn,
                   const struct mk_verbs_addr *a)
{
    struct ibv_qp_attr attr;
    memset(&attr, 0, sizeof(attr));
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = a->mtu < d->mtu ? a->mtu : d->mtu;
    attr.dest_qp_num = a->qpn;
    attr.rq_psn = a->psn;
    attr.max_dest_rd_atomic = 1;
    attr.min_rnr_timer = d->rnr_timer;
    attr.ah_attr.port_num = d->port;
    attr.ah_attr.dlid = a->lid;
    attr.ah_attr.is_global = d->link_layer;
    memcpy(attr.ah_attr.grh.dgid.raw, a->gid, sizeof(a->gid));
    attr.ah_attr.grh.sgid_index = (uint8_t)d->gid_index;
    attr.ah_attr.grh.hop_limit = 64;
    int err = d->lib->modify_qp(qp, &attr,
                                IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    if (err)
        return mk_fail(MK_ERR_NET, "NET", "verbs: %s has no way to the peer's %s: %s", d->name, a->device,
                       strerror(err));
    memset(&attr, 0, sizeof(attr));
    attr.qp_state = IBV_QPS_RTS;
    attr.sq_psn = psn;
    attr.timeout = d->ack_timeout;
    attr.retry_cnt = MK_VERBS_RETRIES;
    attr.rnr_retry = MK_VERBS_RNR_RETRIES;
    attr.max_rd_atomic = 1;
    err = d->lib->modify_qp(qp, &attr,
                            IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
    return err ? mk_verbs_fail(d, "readying a queue pair to send", err) : 0;
}

int mk_verbs_conn_connect(struct mk_conn *conn, const struct mk_net_addr *peer)
{
    struct mk_verbs_conn *c = (struct mk_verbs_conn *)conn;
    struct mk_verbs_addr a;
    if (c->connected)
        return 0;
    memcpy(&a, peer->bytes, sizeof(a));
    a.device[sizeof(a.device) - 1] = 0;
    if (a.magic != MK_VERBS_MAGIC || a.mtu < IBV_MTU_256 || a.mtu > IBV_MTU_4096 || a.qpn > 0xffffff ||
        a.psn > 0xffffff)
        return mk_fail(MK_ERR_PEER, "NET", "verbs: the peer's address is not one of the verbs transport");
    if (a.link_layer != c->dev->link_layer)
        return mk_fail(MK_ERR_MISMATCH, "NET", "verbs: %s and the peer's %s: one is InfiniBand, one Ethernet",
                       c->dev->name, a.device);
    const int ret = mk_verbs_ready(c->dev, c->qp, c->psn, &a);
    if (ret)
        return ret;
    c->connected = true;
    return 0;
}
