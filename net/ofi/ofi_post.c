/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Post and poll over libfabric. Every write but the inline ones without a signal has a context; the pool is as deep
 * as the connections are, so nothing is allocated here. Completions of our own writes come by the tx queue, those of
 * the peers' by the rx queue: the flags of an entry do not tell them apart on every provider. */
#include "mk/err.h"
#include "mk/log.h"
#include "ofi.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define READ_MAX 16
#define TX_ROW 8u

/* ---- contexts ---- */

int mk_ofi_block_add(struct mk_ofi_dev *d)
{
    struct mk_ofi_block *b = calloc(1, sizeof(*b));
    if (!b)
        return mk_fail(MK_ERR_NOMEM, "NET", "ofi: no memory for %u operations", MK_OFI_DEPTH);
    if (!d->inject && d->mr_mode & FI_MR_LOCAL) {
        const int err =
            fi_mr_reg(d->domain, b->ctx, sizeof(b->ctx), FI_WRITE, 0, d->next_key++, 0, &b->mr, NULL);
        if (err) {
            free(b);
            return mk_fail(MK_ERR_NET, "NET", "ofi: registering the inline words: %s",
                           d->lib->strerror(-err));
        }
    }
    for (unsigned i = 0; i < MK_OFI_DEPTH; i++) {
        b->ctx[i].next = d->free_ctx;
        d->free_ctx = &b->ctx[i];
    }
    b->next = d->blocks;
    d->blocks = b;
    d->nblocks++;
    return 0;
}

static struct mk_ofi_ctx *ctx_take(struct mk_ofi_conn *c, const struct mk_wr *w)
{
    struct mk_ofi_dev *d = c->dev;
    struct mk_ofi_ctx *x = d->free_ctx;
    if (!x || c->in_flight >= MK_OFI_DEPTH)
        return NULL;
    d->free_ctx = x->next;
    d->in_flight++;
    c->in_flight++;
    x->conn = c;
    x->id = w->id;
    x->status = 0;
    x->silent = !(w->flags & MK_WR_SIGNALED);
    x->cause = NULL;
    return x;
}

static void ctx_give(struct mk_ofi_dev *d, struct mk_ofi_ctx *x)
{
    if (x->conn)
        x->conn->in_flight--;
    d->in_flight--;
    x->next = d->free_ctx;
    d->free_ctx = x;
}

/* An end that no queue will report: it stands in a list of ours until the next poll. */
static void ctx_end(struct mk_ofi_dev *d, struct mk_ofi_ctx *x, int status, const char *cause)
{
    x->status = status;
    x->cause = cause;
    x->next = NULL;
    if (d->ended_last)
        d->ended_last->next = x;
    else
        d->ended_first = x;
    d->ended_last = x;
}

void mk_ofi_forget(struct mk_ofi_conn *c)
{
    for (struct mk_ofi_block *b = c->dev->blocks; b; b = b->next)
        for (unsigned i = 0; i < MK_OFI_DEPTH; i++)
            if (b->ctx[i].conn == c)
                b->ctx[i].conn = NULL;
}

static void *word_desc(const struct mk_ofi_dev *d, const struct mk_ofi_ctx *x)
{
    const struct mk_ofi_block *b = d->blocks;
    while (b && !(x >= b->ctx && x < b->ctx + MK_OFI_DEPTH))
        b = b->next;
    return b && b->mr ? fi_mr_desc(b->mr) : NULL;
}

/* ---- post ---- */

/* The codes that mean: the other process or its host is gone. ECANCELED: what was under way when the connection broke;
 * nobody else cancels. */
static bool peer_gone(int err)
{
    switch (err) {
    case ECONNRESET:
    case ECONNREFUSED:
    case ECONNABORTED:
    case ENOTCONN:
    case EPIPE:
    case ESHUTDOWN:
    case EHOSTUNREACH:
    case EHOSTDOWN:
    case ECANCELED:
        return true;
    default:
        return false;
    }
}

static const char *bad_range(const struct mk_ofi_conn *c, const struct mk_wr *w)
{
    const struct mk_rmem *r = w->rmem;
    if (!r)
        return w->len ? "a write without a target" : NULL;
    if (r->conn != &c->base)
        return "the target memory was not imported on this connection";
    if (w->remote_off > r->len || (uint64_t)w->head_len + w->len > r->len - w->remote_off)
        return "the target range ends beyond the peer's registered memory";
    if (w->flags & MK_WR_INLINE)
        return w->len > 8 ? "more than 8 inline bytes" : NULL;
    if (w->len && (!w->mr || w->local_off > w->mr->len || w->len > w->mr->len - w->local_off))
        return "the source range is not in registered memory";
    if (w->head_len && (!w->head || w->head_off > w->head->len || w->head_len > w->head->len - w->head_off))
        return "the head is not in registered memory";
    return NULL;
}

/* Small, nobody waits for it: no context, no completion. */
static ssize_t post_inject(struct mk_ofi_conn *c, const struct mk_wr *w, uint64_t addr, uint64_t key)
{
    struct mk_ofi_dev *d = c->dev;
    if (w->flags & MK_WR_IMM)
        return fi_inject_writedata(d->ep, &w->inline_data, w->len, w->imm, c->addr, addr, key);
    return fi_inject_write(d->ep, &w->inline_data, w->len, c->addr, addr, key);
}

static ssize_t post_write(struct mk_ofi_conn *c, const struct mk_wr *w, struct mk_ofi_ctx *x, uint64_t addr,
                          uint64_t key, bool more)
{
    const struct mk_ofi_mr *mr = (const struct mk_ofi_mr *)w->mr;
    struct iovec iov[2] = {{NULL, w->len}};
    struct fi_rma_iov rma = {addr, (size_t)w->head_len + w->len, key};
    void *desc[2] = {NULL};
    const size_t at = w->head_len ? 1 : 0; /* of the payload */
    uint64_t flags = FI_COMPLETION;
    if (w->len && w->flags & MK_WR_INLINE) {
        x->word = w->inline_data;
        iov[0].iov_base = &x->word;
        if (c->dev->inject)
            flags |= FI_INJECT;
        else
            desc[0] = word_desc(c->dev, x);
    } else if (w->len) {
        if (at) {
            iov[0].iov_base = (uint8_t *)w->head->addr + w->head_off;
            iov[0].iov_len = w->head_len;
            desc[0] = ((const struct mk_ofi_mr *)w->head)->desc;
            iov[1].iov_len = w->len;
        }
        iov[at].iov_base = (uint8_t *)w->mr->addr + w->local_off;
        desc[at] = mr->desc;
    }
    if (w->flags & MK_WR_IMM)
        flags |= FI_REMOTE_CQ_DATA;
    if (w->flags & MK_WR_DELIVERY && c->dev->base.caps.delivery_complete)
        flags |= FI_DELIVERY_COMPLETE;
    if (more)
        flags |= FI_MORE;
    const struct fi_msg_rma msg = {.msg_iov = iov,
                                   .desc = desc,
                                   .iov_count = at + 1,
                                   .addr = c->addr,
                                   .rma_iov = &rma,
                                   .rma_iov_count = 1,
                                   .context = &x->fi,
                                   .data = w->imm};
    return fi_writemsg(c->dev->ep, &msg, flags);
}

/* 1: taken; 0: full; else the error of the connection. */
static int post_one(struct mk_ofi_conn *c, const struct mk_wr *w, bool more)
{
    struct mk_ofi_dev *d = c->dev;
    const struct mk_ofi_rmem *r = (const struct mk_ofi_rmem *)w->rmem;
    const char *cause = bad_range(c, w);
    const uint64_t addr = r ? r->addr + w->remote_off : c->any_addr, key = r ? r->key : c->any_key;
    struct mk_ofi_ctx *x = NULL;
    ssize_t ret;
    if (!cause && d->inject && w->flags & MK_WR_INLINE && !(w->flags & (MK_WR_SIGNALED | MK_WR_DELIVERY))) {
        ret = post_inject(c, w, addr, key);
    } else {
        x = ctx_take(c, w);
        if (!x)
            return 0;
        if (cause) {
            ctx_end(d, x, MK_ERR_NET, cause);
            return 1;
        }
        ret = post_write(c, w, x, addr, key, more);
    }
    if (!ret)
        return 1;
    if (x)
        ctx_give(d, x);
    if (ret == -FI_EAGAIN)
        return 0;
    return mk_fail(peer_gone((int)-ret) ? MK_ERR_PEER : MK_ERR_NET, "NET", "ofi: %s: posting a write: %s",
                   d->base.caps.provider, d->lib->strerror((int)-ret));
}

int mk_ofi_post(struct mk_conn *conn, const struct mk_wr *wrs, int n)
{
    struct mk_ofi_conn *c = (struct mk_ofi_conn *)conn;
    if (!c->connected)
        return mk_fail(MK_ERR_INVALID, "NET", "ofi: a write on a connection that is not connected");
    for (int i = 0; i < n; i++) {
        const int ret = post_one(c, &wrs[i], i + 1 < n);
        if (ret != 1)
            return i ? i : ret;
    }
    return n;
}

/* ---- poll ---- */

/* 1: written to wc. */
static int report(struct mk_ofi_dev *d, struct mk_ofi_ctx *x, int status, const char *cause, struct mk_wc *wc)
{
    struct mk_ofi_conn *c = x->conn;
    const bool told = c && (status || !x->silent);
    if (told) {
        wc->kind = MK_WC_LOCAL;
        wc->status = status;
        wc->id = x->id;
        wc->imm = 0;
        wc->conn = &c->base;
        wc->text[0] = 0;
        if (cause)
            snprintf(wc->text, sizeof(wc->text), "%s", cause);
    }
    ctx_give(d, x);
    return told;
}

static int poll_ended(struct mk_ofi_dev *d, struct mk_wc *wcs, int max)
{
    int n = 0;
    while (d->ended_first && n < max) {
        struct mk_ofi_ctx *x = d->ended_first;
        d->ended_first = x->next;
        if (!x->next)
            d->ended_last = NULL;
        n += report(d, x, x->status, x->cause, &wcs[n]);
    }
    return n;
}

/* Takes the error at the head of a queue; 1: written to wc. */
static int poll_error(struct mk_ofi_dev *d, struct fid_cq *cq, struct mk_wc *wc)
{
    struct fi_cq_err_entry e;
    char detail[64] = "", text[96];
    memset(&e, 0, sizeof(e));
    if (fi_cq_readerr(cq, &e, 0) != 1)
        return 0;
    const char *more = fi_cq_strerror(cq, e.prov_errno, e.err_data, detail, sizeof(detail));
    snprintf(text, sizeof(text), "%s (%s)", d->lib->strerror(e.err), more ? more : "no detail");
    if (cq == d->tx && e.op_context)
        return report(d, e.op_context, peer_gone(e.err) ? MK_ERR_PEER : MK_ERR_NET, text, wc);
    /* an inline write that nobody waits for, or something of a peer's: who waits for it finds out by its time-out */
    if (!d->broken_said)
        MK_WARN("NET", "ofi: %s: %s operation failed: %s; further ones are not mentioned",
                d->base.caps.provider, cq == d->tx ? "an inline" : "a peer's", text);
    d->broken_said = true;
    return 0;
}

static int poll_tx(struct mk_ofi_dev *d, struct mk_wc *wcs, int max)
{
    struct fi_cq_entry entry[READ_MAX];
    int n = 0;
    const ssize_t got = fi_cq_read(d->tx, entry, (size_t)(max < READ_MAX ? max : READ_MAX));
    if (got == -FI_EAVAIL)
        return poll_error(d, d->tx, wcs);
    for (ssize_t i = 0; i < got; i++)
        n += report(d, entry[i].op_context, 0, NULL, &wcs[n]);
    return got < 0 && got != -FI_EAGAIN ? (int)got : n;
}

static int poll_rx(struct mk_ofi_dev *d, struct mk_wc *wcs, int max)
{
    struct fi_cq_data_entry entry[READ_MAX];
    int n = 0;
    const ssize_t got = fi_cq_read(d->rx, entry, (size_t)(max < READ_MAX ? max : READ_MAX));
    if (got == -FI_EAVAIL)
        return poll_error(d, d->rx, wcs);
    for (ssize_t i = 0; i < got; i++) {
        if (!(entry[i].flags & FI_REMOTE_CQ_DATA))
            continue;
        struct mk_wc *wc = &wcs[n++];
        wc->kind = MK_WC_REMOTE;
        wc->status = 0;
        wc->id = 0;
        wc->imm = (uint32_t)entry[i].data;
        wc->conn = NULL; /* one endpoint for all: the entry does not say from whom */
        wc->text[0] = 0;
    }
    return got < 0 && got != -FI_EAGAIN ? (int)got : n;
}

/* Looking at an empty queue makes the provider go round (a system call or two); both queues in every poll would
 * cost that twice. So: with nothing of ours in flight the rx queue alone, and now and then the other one, for those
 * that move inline writes only from there; else first tx, which often has an entry as soon as a write was posted, unless it
 * had one TX_ROW times in a row; the other one only if the first has nothing. */
int mk_ofi_poll(struct mk_dev *dev, struct mk_wc *wcs, int max)
{
    struct mk_ofi_dev *d = (struct mk_ofi_dev *)dev;
    int n = poll_ended(d, wcs, max);
    const bool tx_first = d->in_flight ? d->tx_row < TX_ROW : d->polls % 16 == 0;
    const bool both = d->in_flight != 0;
    const uint32_t row = tx_first ? d->tx_row : 0;
    d->polls++;
    d->tx_row = 0;
    for (int i = 0; i < 2 && n < max; i++) {
        const int got = tx_first == (i == 0) ? poll_tx(d, wcs + n, max - n) : poll_rx(d, wcs + n, max - n);
        if (got < 0)
            return mk_fail(MK_ERR_NET, "NET", "ofi: %s: reading a completion queue: %s",
                           d->base.caps.provider, d->lib->strerror(-got));
        n += got;
        if (got && tx_first == (i == 0))
            d->tx_row = row + 1;
        if (got || (!both && !tx_first))
            break;
    }
    d->found |= n > 0;
    return n;
}
