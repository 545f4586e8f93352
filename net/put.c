/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The way of a put: taken (mk_link_put), posted in batches (mk_link_flush), completed (mk_link_complete).
 *
 * Credits stand beside the ring of puts and overtake those that wait (for the pace, or for room): they name space,
 * not payload, so no order between the two is needed, and on a real network they would travel between the packets
 * of a long write. */
#include "net/adapter.h"
#include "mk/dev/dev.h"
#include "mk/err.h"

struct batch {
    struct mk_wr wr[MK_POST_MAX];
    int nwr, nputs;
};

/* ---- completions ---- */

static void retire(struct mk_link *l)
{
    while (l->head != l->posted && mk_op_at(l, l->head)->done)
        l->head++;
}

static void put_done(struct mk_link *l, uint64_t pos)
{
    struct mk_op *op = mk_op_at(l, pos);
    const uint64_t id = op->put.id;
    op->done = true;
    retire(l);
    mk_link_report(l, id, 0);
}

static void credit_append(struct mk_link *l, uint32_t note)
{
    l->credit[note].next = MK_NO_INDEX;
    if (l->credit_tail == MK_NO_INDEX)
        l->credit_head = note;
    else
        l->credit[l->credit_tail].next = note;
    l->credit_tail = note;
}

static void credit_pop(struct mk_link *l)
{
    l->credit_head = l->credit[l->credit_head].next;
    if (l->credit_head == MK_NO_INDEX)
        l->credit_tail = MK_NO_INDEX;
}

static void credit_done(struct mk_link *l, uint32_t note)
{
    struct mk_credit *c = &l->credit[note];
    c->in_flight = false;
    if (c->waiting)
        credit_append(l, note);
    else
        l->credits_pending--;
    mk_link_report(l, c->sent_id, 0);
}

/* The put at `at` is visible at the peer, so all before it are: those that were waiting to hear it are done. A done
 * function may fail or close the link (then all have been told), or put more. */
static void delivered(struct mk_link *l, uint64_t at)
{
    l->delivered = at + 1;
    for (uint64_t pos = l->head; pos <= at && !l->error; pos++)
        if (pos >= l->head && mk_op_at(l, pos)->landed && !mk_op_at(l, pos)->done)
            put_done(l, pos);
}

void mk_link_complete(struct mk_link *l, const struct mk_wc *wc)
{
    const uint64_t at = wc->id & MK_ID_MASK;
    if (l->error)
        return;
    if (wc->status) {
        mk_link_fail(l, wc->status, "%s: a write to %s failed: %s", l->e->caps.transport, l->name, wc->text);
        return;
    }
    if (wc->id & MK_ID_CREDIT) {
        if (at < l->notes.n && l->credit[at].in_flight)
            credit_done(l, (uint32_t)at);
        else
            l->e->n.strays++;
        return;
    }
    /* the put at `posted` counts when its payload went ahead of its flag write */
    struct mk_op *op = mk_op_at(l, at);
    if (at - l->head >= l->posted + l->part - l->head || op->done || op->landed) {
#if MK_MUTATE != 4
        l->e->n.strays++;
#endif
        return;
    }
    op->landed = true;
    if (!op->joined && op->put.flags & MK_PUT_DELIVERY && at >= l->delivered)
        delivered(l, at);
    else if (!op->joined || at < l->delivered)
        put_done(l, at);
}

/* ---- posting ---- */

/* A put without payload and notification: nothing travels, it is done when its turn comes. */
static bool is_empty(const struct mk_op *op)
{
    return !op->put.len && op->put.flags & MK_PUT_NO_NOTE;
}

static void settle_empty(struct mk_link *l)
{
    while (l->posted != l->tail && is_empty(mk_op_at(l, l->posted))) {
        l->posted++;
        put_done(l, l->posted - 1);
    }
}

static void collect_credits(struct mk_link *l, struct batch *b)
{
    const struct mk_engine *e = l->e;
    for (uint32_t note = l->credit_head; note != MK_NO_INDEX && b->nputs < e->batch;
         note = l->credit[note].next) {
        e->adapter->build_credit(l, &l->credit[note], note, &b->wr[b->nwr++]);
        b->nputs++;
    }
}

static void collect_puts(struct mk_link *l, struct batch *b)
{
    const struct mk_engine *e = l->e;
    const int room = e->caps.max_batch < MK_POST_MAX ? (int)e->caps.max_batch : MK_POST_MAX;
    const uint64_t now = e->pace.on && l->posted != l->tail ? mk_time_ns() : 0;
    struct mk_wr two[2];
    for (uint64_t pos = l->posted; pos != l->tail && b->nputs < e->batch; pos++) {
        const struct mk_op *op = mk_op_at(l, pos);
        if (op->due_ns > now || pos - l->head >= e->caps.depth || is_empty(op))
            return;
        if (l->part && pos == l->posted) { /* only the second half is left */
            e->adapter->build(l, &op->put, pos, two);
            if (b->nwr == room)
                return;
            b->wr[b->nwr++] = two[1];
        } else {
            const int need = op->put.flags & MK_PUT_NO_NOTE ? 1 : e->adapter->max_wr;
            if (b->nwr + need > room)
                return;
            b->nwr += e->adapter->build(l, &op->put, pos, &b->wr[b->nwr]);
        }
        b->nputs++;
    }
}

/* Where writes arrive in order, one that asks for delivery answers for those before it. An answer costs the network
 * a message, so the last one of a batch asks, and every eighth, in case the last one is not taken. */
static void join_deliveries(struct mk_link *l, struct batch *b)
{
    bool last = true;
    if (!l->e->caps.ordered)
        return;
    for (int i = b->nwr - 1; i >= 0; i--) {
        struct mk_wr *w = &b->wr[i];
        const uint64_t pos = w->id & MK_ID_MASK;
        if (w->id & MK_ID_CREDIT || !(w->flags & MK_WR_DELIVERY))
            continue;
        mk_op_at(l, pos)->joined = !last && (pos & 7) != 7;
        if (mk_op_at(l, pos)->joined)
            w->flags &= ~(uint32_t)MK_WR_DELIVERY;
        last = false;
    }
}

/* The transport has taken work request w. */
static void settle(struct mk_link *l, const struct mk_wr *w)
{
    struct mk_engine *e = l->e;
    const uint64_t at = w->id & MK_ID_MASK;
    if (w->id & MK_ID_CREDIT) {
        struct mk_credit *c = &l->credit[at];
        credit_pop(l);
        e->n.credits++;
        c->sent_id = c->id;
        c->waiting = false;
        c->in_flight = true;
        c->tick = e->tick;
        return;
    }
    struct mk_op *op = mk_op_at(l, at);
    op->tick = e->tick;
    l->part = (w->id & MK_ID_MORE) != 0;
    if (l->part)
        return;
    l->posted++;
    e->n.puts++;
    e->n.bytes += op->put.len;
    if (op->due_ns)
        mk_pace_left(&e->pace, op->due_ns, mk_time_ns());
#if MK_MUTATE == 4
    if (!op->done) /* mutation: reports the source free as soon as it was posted */
        put_done(l, at);
#endif
    retire(l);
}

#if MK_MUTATE == 3
/* Mutation: every 97th credit is lost, and said to be done. */
static void lose_credits(struct mk_link *l)
{
    static uint32_t count;
    while (l->credit_head != MK_NO_INDEX && ++count % 97 == 0) {
        const uint32_t note = l->credit_head;
        credit_pop(l);
        l->credit[note].sent_id = l->credit[note].id;
        l->credit[note].waiting = false;
        credit_done(l, note);
    }
}
#endif

int mk_link_flush(struct mk_link *l)
{
    struct mk_engine *e = l->e;
    int went = 0;
    if (l->flushing)
        return 0; /* called from a done function: the loop below goes on anyway */
    l->flushing = true;
    while (!l->error && mk_link_waits(l)) {
        struct batch b;
        b.nwr = b.nputs = 0;
#if MK_MUTATE == 3
        lose_credits(l);
#endif
        settle_empty(l);
        collect_credits(l, &b);
        collect_puts(l, &b);
        join_deliveries(l, &b);
        if (!b.nwr)
            break;
        const int took = e->ops->post(l->conn, b.wr, b.nwr);
        if (took < 0) {
            mk_link_fail(l, took, "%s: posting to %s: %s", e->caps.transport, l->name, mk_last_error());
            break;
        }
        if (!took)
            break;
        int puts = 0;
        for (int i = 0; i < took; i++) {
            puts += !(b.wr[i].id & MK_ID_MORE);
            settle(l, &b.wr[i]);
        }
        e->n.batches++;
        e->n.fill[puts < 8 ? puts : 8]++;
        went += puts;
        if (took < b.nwr)
            break;
    }
    l->flushing = false;
    return went;
}

/* ---- putting ---- */

static int check(const struct mk_link *l, const struct mk_put *p)
{
    if (!(p->flags & MK_PUT_NO_NOTE) && p->note >= l->notes.n)
        return mk_fail_quiet(MK_ERR_INVALID, "put to %s: notification %u of %u", l->name, p->note,
                             l->notes.n);
    if (p->head_len && (!l->e->caps.head || !p->head || !p->len || p->head_off > p->head->len ||
                        p->head_len > p->head->len - p->head_off))
        return mk_fail_quiet(MK_ERR_INVALID, "put to %s: %u bytes cannot go in front of %u", l->name,
                             p->head_len, p->len);
    if (!p->len)
        return 0;
    if (p->flags & MK_PUT_CREDIT || !p->mr || !p->rmem || p->rmem->conn != l->conn)
        return mk_fail_quiet(MK_ERR_INVALID, "put to %s: %u bytes without memory of this link", l->name,
                             p->len);
    const uint64_t all = (uint64_t)p->head_len + p->len;
    if (p->local_off > p->mr->len || p->len > p->mr->len - p->local_off || p->remote_off > p->rmem->len ||
        all > p->rmem->len - p->remote_off || all > l->e->caps.max_message)
        return mk_fail_quiet(MK_ERR_INVALID, "put to %s: %u bytes at %llu to %llu leave the memory", l->name,
                             p->len, (unsigned long long)p->local_off, (unsigned long long)p->remote_off);
    return 0;
}

static void take_credit(struct mk_link *l, const struct mk_put *p)
{
    struct mk_credit *c = &l->credit[p->note];
    l->pending++;
    /* Two who consumed at once may tell the later value first: it stands for both. */
    if (p->value <= c->value) {
        l->e->n.credits_merged++;
        mk_link_report(l, p->id, 0);
        return;
    }
    if (c->waiting) {
        const uint64_t old = c->id;
        c->id = p->id;
        c->value = p->value;
        l->e->n.credits_merged++;
        mk_link_report(l, old, 0);
        return;
    }
    c->id = p->id;
    c->value = p->value;
    c->waiting = true;
    c->tick = l->e->tick;
    if (c->in_flight)
        return;
    l->credits_pending++;
    credit_append(l, p->note);
}

static bool take_put(struct mk_link *l, const struct mk_put *p)
{
    struct mk_engine *e = l->e;
    if (l->tail - l->head == MK_LINK_RING)
        return false;
    struct mk_op *op = mk_op_at(l, l->tail);
    op->put = *p;
    op->done = op->landed = op->joined = false;
    op->tick = e->tick;
    op->due_ns = e->pace.on ? mk_pace_take(&e->pace, p->len, mk_time_ns()) : 0;
    l->tail++;
    l->pending++;
    return true;
}

int mk_link_put(struct mk_link *l, const struct mk_put *puts, int n)
{
    int i, ret = 0;
    if (l->error)
        return l->error;
    l->e->busy++; /* a done function below may close the link */
    for (i = 0; i < n; i++) {
        ret = check(l, &puts[i]);
        if (ret)
            break;
        if (puts[i].flags & MK_PUT_CREDIT)
            take_credit(l, &puts[i]);
        else if (!take_put(l, &puts[i]))
            break;
    }
    mk_link_flush(l);
    l->e->busy--;
    return i ? i : ret;
}
