/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Post and poll. A post is one linked list of work requests, handed to the device by one doorbell. A queue pair ends
 * its writes in the order posted, so one signalled completion also ends the silent ones before it. */
#include "mk/err.h"
#include "verbs.h"
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define ROUNDS_MAX 64
#define POLLS_PER_LOOK 512u /* asking for events is a system call */

/* ---- post ---- */

static const char *bad_range(const struct mk_verbs_conn *c, const struct mk_wr *w)
{
    const struct mk_rmem *r = w->rmem;
    if (!r)
        return w->len ? "a write without a target" : NULL;
    if (r->conn != &c->base)
        return "the target memory was not imported on this connection";
    if (w->remote_off > r->len || w->len > r->len - w->remote_off)
        return "the target range ends beyond the peer's registered memory";
    if (w->flags & MK_WR_INLINE)
        return w->len > 8 ? "more than 8 inline bytes" : NULL;
    if (w->len > c->base.dev->caps.max_message)
        return "more bytes than a message of this device may have";
    if (w->len && (!w->mr || w->local_off > w->mr->len || w->len > w->mr->len - w->local_off))
        return "the source range is not in registered memory";
    return NULL;
}

/* false: no room for one more. */
static bool end_here(struct mk_verbs_conn *c, uint64_t id, const char *cause)
{
    if (c->nended == MK_VERBS_ENDED)
        return false;
    c->ended[c->nended].id = id;
    c->ended[c->nended].cause = cause;
    c->nended++;
    c->dev->news++;
    return true;
}

/* MK_WR_DELIVERY needs nothing: a completion of a reliable queue pair is the target device's acknowledgement that it
 * has the whole payload and hands it to its host's memory in order: whoever sees anything sent later on this connection
 * (a flag, an immediate's completion) sees it too. */
static void build(struct mk_verbs_conn *c, const struct mk_wr *w, uint64_t pos, struct ibv_send_wr *s,
                  struct ibv_sge *g)
{
    const struct mk_verbs_rmem *r = (const struct mk_verbs_rmem *)w->rmem;
    memset(s, 0, sizeof(*s));
    s->wr_id = c->tag | (pos & 0xffff);
    s->opcode = w->flags & MK_WR_IMM ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
    s->imm_data = htonl(w->imm);
    s->wr.rdma.remote_addr = r ? r->addr + w->remote_off : c->any_addr;
    s->wr.rdma.rkey = r ? r->rkey : c->any_key;
    if (w->len) {
        s->sg_list = g;
        s->num_sge = 1;
        g->length = w->len;
    }
    if (w->len && w->flags & MK_WR_INLINE) {
        g->addr = (uintptr_t)&w->inline_data;
        g->lkey = 0;
        s->send_flags |= IBV_SEND_INLINE;
    } else if (w->len) {
        g->addr = (uintptr_t)w->mr->addr + w->local_off;
        g->lkey = ((const struct mk_verbs_mr *)w->mr)->mr->lkey;
    }
    if (w->flags & MK_WR_SIGNALED || ++c->unsignalled >= MK_VERBS_SIGNAL) {
        s->send_flags |= IBV_SEND_SIGNALED;
        c->unsignalled = 0;
    }
    struct mk_verbs_sent *sent = &c->sent[pos % MK_VERBS_DEPTH];
    sent->id = w->id;
    sent->silent = !(w->flags & MK_WR_SIGNALED);
}

/* One doorbell's work requests. A write longer than the device's messages is several of them, the last with the
 * immediate and the signal; a queue pair keeps their order. */
struct list {
    struct ibv_send_wr wr[MK_VERBS_LIST];
    struct ibv_sge sge[MK_VERBS_LIST];
    int n;
};

/* false: no room for it in this list or in the queue. */
static bool add(struct mk_verbs_conn *c, struct list *l, const struct mk_wr *w)
{
    const uint32_t segment = c->dev->segment;
    const uint32_t pieces = w->len > segment ? (w->len + segment - 1) / segment : 1;
    struct mk_wr part = *w;
    if ((uint32_t)l->n + pieces > MK_VERBS_LIST || c->tail + (uint64_t)l->n + pieces - c->head > c->depth)
        return false;
    for (uint32_t i = 0; i + 1 < pieces; i++) {
        part.len = segment;
        part.flags = w->flags & ~(uint32_t)(MK_WR_IMM | MK_WR_SIGNALED);
        build(c, &part, c->tail + (uint64_t)l->n, &l->wr[l->n], &l->sge[l->n]);
        part.local_off += segment;
        part.remote_off += segment;
        l->n++;
    }
    part.len = w->len - (pieces - 1) * segment;
    part.flags = w->flags;
    build(c, pieces > 1 ? &part : w, c->tail + (uint64_t)l->n, &l->wr[l->n], &l->sge[l->n]);
    l->n++;
    return true;
}

/* Hands over the list; 0, or the error of the connection. ENOMEM, its queue is full, cannot be: we count. */
static int ring(struct mk_verbs_conn *c, struct list *l)
{
    struct ibv_send_wr *bad;
    for (int i = 0; i + 1 < l->n; i++)
        l->wr[i].next = &l->wr[i + 1];
    const int err = c->qp->context->ops.post_send(c->qp, l->wr, &bad);
    if (err)
        return mk_fail(MK_ERR_NET, "NET", "verbs: %s: posting a write: %s", c->dev->name, strerror(err));
    c->tail += (uint64_t)l->n;
    return 0;
}

int mk_verbs_post(struct mk_conn *conn, const struct mk_wr *wrs, int n)
{
    struct mk_verbs_conn *c = (struct mk_verbs_conn *)conn;
    struct list l;
    int k = 0;
    l.n = 0;
    if (!c->connected)
        return mk_fail(MK_ERR_INVALID, "NET", "verbs: a write on a connection that is not connected");
    if (c->error)
        return mk_fail_quiet(c->error, "verbs: %s", c->text);
    for (; k < n; k++) {
        const char *cause = bad_range(c, &wrs[k]);
        if (cause && k)
            break; /* first what stands before it; the caller comes again */
        if (cause)
            return end_here(c, wrs[0].id, cause) ? 1 : 0;
        if (!add(c, &l, &wrs[k]))
            break;
    }
    const int ret = k ? ring(c, &l) : 0;
    return ret ? ret : k;
}

/* ---- receives ---- */

/* Posts n receives without memory: an immediate needs one, the payload goes where the writer says. */
int mk_verbs_refill(struct mk_verbs_conn *c, uint32_t n)
{
    struct ibv_recv_wr list[MK_VERBS_REFILL];
    while (n) {
        struct ibv_recv_wr *bad;
        const uint32_t k = n < MK_VERBS_REFILL ? n : MK_VERBS_REFILL;
        memset(list, 0, k * sizeof(list[0]));
        for (uint32_t i = 0; i < k; i++) {
            list[i].wr_id = MK_VERBS_RECV | c->tag;
            list[i].next = i + 1 < k ? &list[i + 1] : NULL;
        }
        const int err = c->qp->context->ops.post_recv(c->qp, list, &bad);
        if (err)
            return mk_fail(MK_ERR_NET, "NET", "verbs: %s: posting receives: %s", c->dev->name, strerror(err));
        n -= k;
    }
    return 0;
}

/* ---- poll ---- */

static void local(struct mk_verbs_conn *c, uint64_t id, int status, const char *text, struct mk_wc *wc)
{
    wc->kind = MK_WC_LOCAL;
    wc->status = status;
    wc->id = id;
    wc->imm = 0;
    wc->conn = &c->base;
    snprintf(wc->text, sizeof(wc->text), "%s", text);
}

/* Ends that no queue will report. A connection that broke with nothing in flight says so with an id of nobody. */
static int poll_news(struct mk_verbs_dev *d, struct mk_wc *wcs, int max)
{
    int n = 0;
    for (uint32_t slot = 0; slot < d->nslots && d->news && n < max; slot++) {
        struct mk_verbs_conn *c = d->conns[slot];
        while (c && c->nended && n < max) {
            const struct mk_verbs_ended *e = &c->ended[--c->nended];
            local(c, e->id, MK_ERR_NET, e->cause, &wcs[n++]);
            d->news--;
        }
        if (c && c->tell && n < max) {
            local(c, UINT64_MAX, c->error, c->text, &wcs[n++]);
            c->tell = false;
            d->news--;
        }
    }
    return n;
}

/* Why a work request failed, and what it means for the connection. */
static void failed(struct mk_verbs_conn *c, const struct ibv_wc *w)
{
    struct mk_verbs_dev *d = c->dev;
    const char *more = "";
    char cause[96];
    int code = MK_ERR_NET;
    if (c->error)
        return;
    mk_verbs_events(d); /* does the device know more? */
    if (d->down_ns) {
        more = ": the port is down";
    } else if (w->status == IBV_WC_RETRY_EXC_ERR || w->status == IBV_WC_RESP_TIMEOUT_ERR) {
        code = MK_ERR_PEER;
        more = ": the peer does not answer";
    } else if (w->status == IBV_WC_RNR_RETRY_EXC_ERR) {
        code = MK_ERR_PEER;
        more = ": the peer takes no more immediates";
    } else if (w->status == IBV_WC_WR_FLUSH_ERR) {
        more = ": the queue pair is in error";
    }
    snprintf(cause, sizeof(cause), "%.20s: %.36s%s", d->name, d->lib->wc_status_str(w->status), more);
    mk_verbs_break(c, code, cause);
}

static int received(struct mk_verbs_conn *c, const struct ibv_wc *w, struct mk_wc *wc)
{
    if (w->status) {
        failed(c, w);
        return 0;
    }
    wc->kind = MK_WC_REMOTE;
    wc->status = 0;
    wc->id = 0;
    wc->imm = ntohl(w->imm_data);
    wc->conn = &c->base;
    wc->text[0] = 0;
    if (++c->used >= c->recvs / 8) {
        if (mk_verbs_refill(c, c->used))
            mk_verbs_break(c, MK_ERR_NET, mk_last_error());
        c->used = 0;
    }
    return 1;
}

static int sent(struct mk_verbs_conn *c, const struct ibv_wc *w, struct mk_wc *wc)
{
    const uint64_t pos = c->head + (uint16_t)(w->wr_id - c->head);
    const struct mk_verbs_sent *s = &c->sent[pos % MK_VERBS_DEPTH];
    c->head = pos + 1;
    if (w->status) {
        failed(c, w);
        if (c->tell) {
            c->tell = false;
            c->dev->news--;
        }
        local(c, s->id, c->error, c->text, wc);
        return 1;
    }
    if (s->silent)
        return 0;
    local(c, s->id, 0, "", wc);
    return 1;
}

/* 1: written to wc. Completions of closed connections may still come; their tags lead nowhere. */
static int handle(struct mk_verbs_dev *d, const struct ibv_wc *w, struct mk_wc *wc)
{
    const uint32_t slot = (uint32_t)(w->wr_id >> 16) & 0xffff;
    struct mk_verbs_conn *c = slot < d->nslots ? d->conns[slot] : NULL;
    if (!c || c->tag != (w->wr_id & ~(MK_VERBS_RECV | 0xffffu)))
        return 0;
    return w->wr_id & MK_VERBS_RECV ? received(c, w, wc) : sent(c, w, wc);
}

/* Completions, those first that a wait has found. */
static int take(struct mk_verbs_dev *d, struct ibv_wc *w, int max)
{
    if (d->nstash) {
        const int n = d->nstash < max ? d->nstash : max;
        memcpy(w, d->stash, (size_t)n * sizeof(w[0]));
        d->nstash -= n;
        memmove(d->stash, d->stash + n, (size_t)d->nstash * sizeof(w[0]));
        return n;
    }
    const int n = d->cq->context->ops.poll_cq(d->cq, max, w);
    if (!n)
        d->ghosts = 0;
    return n;
}

int mk_verbs_poll(struct mk_dev *dev, struct mk_wc *wcs, int max)
{
    struct mk_verbs_dev *d = (struct mk_verbs_dev *)dev;
    struct ibv_wc w[MK_VERBS_STASH];
    int n = d->news ? poll_news(d, wcs, max) : 0;
    if (++d->polls % POLLS_PER_LOOK == 0)
        mk_verbs_events(d);
    if (d->error)
        return mk_fail(d->error, "NET", "verbs: %s", d->text);
    /* what belongs to silent writes and closed connections is no news: on until there is some, or nothing more */
    for (int i = 0, first = n, got = 1; i < ROUNDS_MAX && got > 0 && n == first && n < max; i++) {
        got = take(d, w, max - n < MK_VERBS_STASH ? max - n : MK_VERBS_STASH);
        if (got < 0)
            return mk_fail(MK_ERR_NET, "NET", "verbs: %s: reading the completion queue failed", d->name);
        for (int k = 0; k < got; k++)
            n += handle(d, &w[k], &wcs[n]);
    }
    d->found |= n > 0;
    return n;
}
