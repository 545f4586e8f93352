/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Memory of GPUs, handed over by the CUDA driver as dma-bufs: the device reads and writes it, the processor does not. What
 * the processor would have to do goes over a queue pair of the device with itself:
 *
 *   fill    bytes that came into host memory: written from there
 *   flush   a read from the GPU: its answer cannot overtake what the device wrote there before. (For GPUs, or ways to them,
 *           that do not keep writes in order by themselves: NCCL asks for it where it is needed.)
 *
 * Both wait for the device, some microseconds; a queue pair that breaks ends them. */
#include "mk/err.h"
#include "verbs.h"
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define BOUNCE 8192u

/* A descriptor that is none: what says so has looked at it, what does not do it at all says something else. */
bool mk_verbs_takes_dmabuf(const struct mk_verbs_dev *d)
{
    if (!d->lib->reg_dmabuf_mr)
        return false;
    struct ibv_mr *mr = d->lib->reg_dmabuf_mr(d->pd, 0, 4096, 0, -1, IBV_ACCESS_LOCAL_WRITE);
    if (mr)
        d->lib->dereg_mr(mr);
    return !mr && errno == EBADF;
}

void mk_verbs_self_close(struct mk_verbs_dev *d)
{
    struct mk_verbs_self *s = &d->self;
    if (s->qp)
        d->lib->destroy_qp(s->qp);
    if (s->cq)
        d->lib->destroy_cq(s->cq);
    if (s->mr)
        d->lib->dereg_mr(s->mr);
    free(s->bounce);
    memset(s, 0, sizeof(*s));
}

static int self_connect(struct mk_verbs_dev *d)
{
    struct mk_verbs_addr a;
    struct ibv_qp_attr attr;
    memset(&attr, 0, sizeof(attr));
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = d->port;
    attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    const int err = d->lib->modify_qp(d->self.qp, &attr,
                                      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    if (err)
        return mk_verbs_fail(d, "initialising a queue pair with itself", err);
    memset(&a, 0, sizeof(a));
    a.qpn = d->self.qp->qp_num;
    a.lid = d->lid;
    a.mtu = d->mtu;
    memcpy(a.gid, d->gid.raw, sizeof(a.gid));
    memcpy(a.device, d->name, sizeof(a.device));
    return mk_verbs_ready(d, d->self.qp, 0, &a);
}

static int self_open(struct mk_verbs_dev *d)
{
    struct mk_verbs_self *s = &d->self;
    struct ibv_qp_init_attr init;
    s->bounce = aligned_alloc(4096, BOUNCE);
    if (!s->bounce)
        return mk_fail(MK_ERR_NOMEM, "NET", "verbs: no memory for a queue pair with itself");
    s->mr = d->lib->reg_mr(d->pd, s->bounce, BOUNCE, IBV_ACCESS_LOCAL_WRITE);
    s->cq = s->mr ? d->lib->create_cq(d->ctx, 4, NULL, NULL, 0) : NULL;
    if (!s->cq)
        return mk_verbs_fail(d, "a queue pair with itself", errno);
    memset(&init, 0, sizeof(init));
    init.send_cq = init.recv_cq = s->cq;
    init.cap.max_send_wr = init.cap.max_recv_wr = 2;
    init.cap.max_send_sge = init.cap.max_recv_sge = 1;
    init.qp_type = IBV_QPT_RC;
    s->qp = d->lib->create_qp(d->pd, &init);
    return s->qp ? self_connect(d) : mk_verbs_fail(d, "a queue pair with itself", errno);
}

int mk_verbs_reg_dmabuf(struct mk_dev *dev, int fd, uint64_t offset, void *addr, size_t len,
                        struct mk_mr **out)
{
    struct mk_verbs_dev *d = (struct mk_verbs_dev *)dev;
    const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    const int ret = d->self.qp ? 0 : self_open(d);
    if (ret) {
        mk_verbs_self_close(d);
        return ret;
    }
    struct mk_verbs_mr *m = calloc(1, sizeof(*m));
    if (!m)
        return mk_fail(MK_ERR_NOMEM, "NET", "verbs: no memory for a registration");
    m->mr = d->lib->reg_dmabuf_mr(d->pd, offset, len, (uintptr_t)addr, fd, access);
    if (!m->mr) {
        const int err = errno;
        free(m);
        return mk_verbs_fail(d, "registering a dma-buf", err);
    }
    m->base.dev = dev;
    m->base.addr = addr;
    m->base.len = len;
    m->base.gpu = true;
    *out = &m->base;
    return 0;
}

/* One operation of the device on itself, and its end. */
static int self_run(struct mk_verbs_dev *d, const struct mk_verbs_mr *m, uint64_t off, uint32_t len,
                    enum ibv_wr_opcode what)
{
    struct mk_verbs_self *s = &d->self;
    struct ibv_sge sge = {(uintptr_t)s->bounce, len, s->mr->lkey};
    struct ibv_send_wr wr, *bad;
    struct ibv_wc wc;
    const uint64_t end = mk_time_ns() + 8 * d->grace_ns;
    int n = 0;
    memset(&wr, 0, sizeof(wr));
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = what;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma.remote_addr = (uintptr_t)m->base.addr + off;
    wr.wr.rdma.rkey = m->mr->rkey;
    const int err = s->qp->context->ops.post_send(s->qp, &wr, &bad);
    if (err)
        return mk_verbs_fail(d, "an access to a GPU's memory", err);
    while (!(n = s->cq->context->ops.poll_cq(s->cq, 1, &wc)) && mk_time_ns() < end)
        sched_yield();
    if (n == 1 && !wc.status)
        return 0;
    return mk_fail(MK_ERR_NET, "NET", "verbs: %s: an access to a GPU's memory: %s", d->name,
                   n == 1   ? d->lib->wc_status_str(wc.status)
                   : n == 0 ? "the device does not answer"
                            : "reading the completion queue failed");
}

int mk_verbs_fill(struct mk_mr *mr, uint64_t off, const void *from, uint32_t len)
{
    struct mk_verbs_dev *d = (struct mk_verbs_dev *)mr->dev;
    int ret = 0;
    for (uint32_t at = 0; at < len && !ret; at += BOUNCE) {
        const uint32_t n = len - at < BOUNCE ? len - at : BOUNCE;
        memcpy(d->self.bounce, (const char *)from + at, n);
        ret = self_run(d, (const struct mk_verbs_mr *)mr, off + at, n, IBV_WR_RDMA_WRITE);
    }
    return ret;
}

int mk_verbs_flush(struct mk_mr *mr)
{
    return self_run((struct mk_verbs_dev *)mr->dev, (const struct mk_verbs_mr *)mr, 0, 1, IBV_WR_RDMA_READ);
}
