/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The emulated NIC of the loop transport: posts become pending items; the sender's poll lands those that are due.
 *
 * Order inside one write: payload, then the immediate, then the local completion. A reader that took the immediate
 * from its ring (acquire) sees the payload: the ring's tail is stored with release. A plain write of 8 aligned bytes
 * is one release store: a reader that polls that word (acquire) sees the writes landed before it.
 *
 * Plain mode lands items in post order. The hostile mode (loop_hostile.c) lands pieces at random times. */
#include "loop_gpu.h"
#include "mk/err.h"
#include <stdio.h>
#include <string.h>

/* Bytes that one poll copies before it returns to its caller. */
#define POLL_BYTES (4u << 20)
/* How long wait sleeps while the peer's inbox is full: the peer rings no bell when it makes room. */
#define BLOCKED_NS 50000u

bool mk_loop_item_copy(struct mk_loop_conn *c, struct mk_loop_item *it, uint32_t from, uint32_t to)
{
    if (it->status || it->dropped || from == to)
        return true;
    if (it->device >= 0)
        return mk_loop_gpu_copy(c, it, from, to);
    uint8_t *dst = it->dst + from;
    const uint8_t *src = it->src ? it->src + from : (const uint8_t *)&it->inline_data + from;
    if (to - from == 8 && !((uintptr_t)dst & 7)) {
        uint64_t word;
        memcpy(&word, src, 8);
        __atomic_store_n((uint64_t *)(void *)dst, word, __ATOMIC_RELEASE);
        return true;
    }
    memcpy(dst, src, to - from);
    return true;
}

bool mk_loop_item_imm(struct mk_loop_conn *c, struct mk_loop_item *it)
{
    if (!(it->flags & MK_WR_IMM) || it->status || it->dropped)
        return true;
    const uint64_t state = __atomic_load_n(&c->out->state, __ATOMIC_ACQUIRE);
    if (state != (c->peer_generation << 8 | MK_LOOP_TAKEN))
        return true; /* the peer closed: nobody reads it */
    return mk_loop_ring_push(c->out, it->imm) != 0;
}

int mk_loop_item_finish(struct mk_loop_conn *c, struct mk_loop_item *it, struct mk_wc *wc)
{
    mk_loop_map_put(c->dev, it->map);
    it->map = NULL;
    it->mr = NULL;
    it->done = true;
    if (it->silent || (!it->status && !(it->flags & MK_WR_SIGNALED)))
        return 0;
    wc->kind = MK_WC_LOCAL;
    wc->status = it->status;
    wc->id = it->id;
    wc->imm = 0;
    wc->conn = &c->base;
    if (it->status)
        snprintf(wc->text, sizeof(wc->text), "%s", it->text);
    else
        wc->text[0] = 0;
    return 1;
}

static void item_fail(struct mk_loop_item *it, int status, const char *text)
{
    if (it->status)
        return;
    it->status = status;
    snprintf(it->text, sizeof(it->text), "%s", text);
}

static bool faulty(const struct mk_loop_conn *c)
{
    const struct mk_conn *only = c->dev->faults.only;
    return !only || only == &c->base;
}

/* The ends of a copy by mknic. */
static void item_device(struct mk_loop_item *it, const struct mk_wr *w, const struct mk_loop_rmem *r)
{
    const struct mk_loop_mr *mr = (const struct mk_loop_mr *)it->mr;
    it->device = r->gpu >= 0 ? r->gpu : mr ? mr->gpu : -1;
    if (it->device < 0)
        return;
    it->part = UINT32_MAX;
    it->src_grant = mr ? mr->grant : 0; /* none: through bounce slots */
    it->src_off = w->local_off;
    it->dst_grant = r->gpu >= 0 ? r->grant : r->map->grant;
    it->dst_off =
        r->gpu >= 0 ? w->remote_off : w->remote_off + (uint64_t)(r->addr - (uint8_t *)r->map->shm.addr);
    if (!it->dst_grant)
        item_fail(it, MK_ERR_NET, "mknic could not map the peer's host memory");
}

/* Fills the item, or marks it to end in error; nothing is ever written outside the imported range. */
static void item_fill(struct mk_loop_conn *c, const struct mk_wr *w, struct mk_loop_item *it)
{
    const struct mk_loop_rmem *r = (const struct mk_loop_rmem *)w->rmem;
    memset(it, 0, offsetof(struct mk_loop_item, text));
    it->text[0] = 0;
    it->id = w->id;
    it->len = w->len;
    it->imm = w->imm;
    it->flags = w->flags;
    it->device = -1;
    it->pos = c->next;
    if (!w->len)
        return;
    if (!r || r->base.conn != &c->base) {
        item_fail(it, MK_ERR_NET, "the target memory was not imported on this connection");
    } else if (w->remote_off > r->base.len || w->len > r->base.len - w->remote_off) {
        item_fail(it, MK_ERR_NET, "the target range ends beyond the peer's registered memory");
    } else if (w->flags & MK_WR_INLINE) {
        if (w->len > sizeof(it->inline_data))
            item_fail(it, MK_ERR_NET, "more than 8 inline bytes");
        it->inline_data = w->inline_data;
    } else if (!w->mr || w->local_off > w->mr->len || w->len > w->mr->len - w->local_off) {
        item_fail(it, MK_ERR_NET, "the source range is not in registered memory");
    } else {
        it->mr = w->mr;
        it->src = (const uint8_t *)w->mr->addr + w->local_off;
    }
    if (it->status)
        return;
    item_device(it, w, r);
    if (!r->map)
        return;
    it->dst = r->addr + w->remote_off;
    it->map = r->map;
    it->map->refs++;
}

static void item_faults(struct mk_loop_conn *c, struct mk_loop_item *it)
{
    const struct mk_loop_faults *f = &c->dev->faults;
    if (!faulty(c))
        return;
    const uint64_t n = ++c->dev->writes;
    if (n == f->drop_write)
        it->dropped = true;
    if (n == f->drop_completion)
        it->silent = true;
    if (n == f->fail_write)
        item_fail(it, MK_ERR_NET, "injected error");
    if (n == f->delay_write)
        it->due = (it->due ? it->due : mk_time_ns()) + f->delay_ns;
}

int mk_loop_post(struct mk_conn *conn, const struct mk_wr *wrs, int n)
{
    struct mk_loop_conn *c = (struct mk_loop_conn *)conn;
    struct mk_loop_dev *d = c->dev;
    if (!c->out)
        return mk_fail(MK_ERR_INVALID, "NET", "loop: a write on a connection that is not connected");
    if (d->faults.dead && faulty(c))
        return mk_fail_quiet(MK_ERR_PEER, "loop: the peer is dead (injected)");
    const uint64_t now = d->latency_ns || d->random ? mk_time_ns() : 0;
    int i = 0;
    for (; i < n && c->next - c->first < MK_LOOP_DEPTH; i++) {
        struct mk_loop_item *it = mk_loop_item_at(c, c->next);
        item_fill(c, &wrs[i], it);
        it->due = now ? now + d->latency_ns : 0;
        item_faults(c, it);
        if (c->plan)
            mk_loop_plan_item(c, it, it->due);
        if (it->due < c->next_due || c->plan)
            c->next_due = c->plan ? 0 : it->due;
        c->next++;
    }
    return i;
}

/* Hands what is due to mknic, well before its turn to land: many copies are in flight. In ordered mode only while
 * all items before it go the same way, since nothing else keeps their order. false: no room, try again soon. */
static bool hand_over(struct mk_loop_conn *c, uint64_t now)
{
    const bool ordered = c->dev->base.caps.ordered;
    if (c->handed < c->first)
        c->handed = c->first;
    for (; c->handed != c->next; c->handed++) {
        struct mk_loop_item *it = mk_loop_item_at(c, c->handed);
        if (it->due > now)
            return true;
        if (ordered && c->handed != c->first && mk_loop_item_at(c, c->handed - 1)->device != it->device)
            return true;
        if (it->device < 0 || it->copied)
            continue;
        if (!mk_loop_item_copy(c, it, 0, it->len))
            return false;
        it->copied = true;
    }
    return true;
}

/* Lands what is due, in post order. */
static int plain_progress(struct mk_loop_conn *c, uint64_t now, struct mk_wc *wcs, int max, bool *landed)
{
    uint64_t bytes = 0;
    int n = 0;
    c->next_due = MK_LOOP_NEVER;
    while (c->first != c->next) {
        struct mk_loop_item *it = mk_loop_item_at(c, c->first);
        if (it->due > now) {
            c->next_due = it->due;
            break;
        }
        if (n == max || bytes >= POLL_BYTES) {
            c->next_due = 0;
            break;
        }
        if (it->device >= 0 && (!it->copied || it->out))
            break; /* mknic has not done it yet; it rings our bell then */
        if (!it->copied)
            mk_loop_item_copy(c, it, 0, it->len);
        it->copied = true;
        if (!mk_loop_item_imm(c, it)) {
            c->next_due = mk_time_ns() + BLOCKED_NS;
            break;
        }
        bytes += it->device < 0 ? it->len : 0;
        *landed = true;
        n += mk_loop_item_finish(c, it, &wcs[n]);
        c->first++;
    }
    return n;
}

static int plain_both(struct mk_loop_conn *c, struct mk_wc *wcs, int max, bool *landed)
{
    const uint64_t now = mk_loop_item_at(c, c->first)->due ? mk_time_ns() : 0;
    bool room = !c->dev->nic || hand_over(c, now);
    const int n = plain_progress(c, now, wcs, max, landed);
    if (c->dev->nic && room && *landed)
        room = hand_over(c, now); /* what had to wait for a landing */
    if (!room && c->next_due == MK_LOOP_NEVER)
        c->next_due = mk_time_ns() + BLOCKED_NS;
    return n;
}

/* Injected death: everything pending ends with MK_ERR_PEER. */
static int dead_progress(struct mk_loop_conn *c, struct mk_wc *wcs, int max)
{
    int n = 0;
    mk_loop_gpu_forget(c);
    while (c->first != c->next && n < max) {
        struct mk_loop_item *it = mk_loop_item_at(c, c->first++);
        if (it->done)
            continue;
        item_fail(it, MK_ERR_PEER, "the peer is dead (injected)");
        n += mk_loop_item_finish(c, it, &wcs[n]);
    }
    c->next_due = c->first == c->next ? MK_LOOP_NEVER : 0;
    return n;
}

/* mknic has ended: once a connection, whatever is in flight. */
static int report_broken(struct mk_loop_conn *c, struct mk_wc *wc)
{
    c->broken = true;
    wc->kind = MK_WC_LOCAL;
    wc->status = MK_ERR_NET;
    wc->id = UINT64_MAX;
    wc->imm = 0;
    wc->conn = &c->base;
    snprintf(wc->text, sizeof(wc->text), "%s", c->dev->nic->text);
    return 1;
}

static int conn_send(struct mk_loop_conn *c, struct mk_wc *wcs, int max)
{
    const struct mk_loop_faults *f = &c->dev->faults;
    bool landed = false;
    int n;
    if (max > 0 && c->dev->nic && c->dev->nic->dead && c->dev->nic->used && !c->broken)
        return report_broken(c, wcs);
    if (c->first == c->next || max <= 0)
        return 0;
    if (f->stalled && faulty(c)) {
        c->next_due = MK_LOOP_NEVER;
        return 0;
    }
    if (f->dead && faulty(c))
        return dead_progress(c, wcs, max);
    if (c->plan)
        n = mk_loop_hostile_progress(c, mk_time_ns(), wcs, max, &landed);
    else
        n = plain_both(c, wcs, max, &landed);
    if (landed)
        mk_bell_ring(c->peer_bell);
    return n;
}

static int conn_receive(struct mk_loop_conn *c, struct mk_wc *wcs, int max)
{
    int n = 0;
    uint32_t imm;
    while (n < max && mk_loop_ring_pop(c->in, &imm)) {
        struct mk_wc *wc = &wcs[n++];
        wc->kind = MK_WC_REMOTE;
        wc->status = 0;
        wc->id = 0;
        wc->imm = imm;
        wc->conn = &c->base;
        wc->text[0] = 0;
    }
    return n;
}

int mk_loop_poll(struct mk_dev *dev, struct mk_wc *wcs, int max)
{
    struct mk_loop_dev *d = (struct mk_loop_dev *)dev;
    const unsigned from = d->turn++;
    int n = 0;
    if (d->nic)
        mk_loop_gpu_poll(d);
    for (unsigned i = 0; i < d->nconn && n < max; i++) {
        struct mk_loop_conn *c = d->conn[(from + i) % d->nconn];
        /* neither direction starves the other when max is small */
        if (from & 1) {
            n += conn_receive(c, wcs + n, max - n);
            n += conn_send(c, wcs + n, max - n);
        } else {
            n += conn_send(c, wcs + n, max - n);
            n += conn_receive(c, wcs + n, max - n);
        }
    }
    mk_loop_gpu_ring(d);
    return n;
}

void mk_loop_drop_items(struct mk_loop_conn *c)
{
    struct mk_wc ignored;
    mk_loop_gpu_forget(c);
    for (; c->first != c->next; c->first++) {
        struct mk_loop_item *it = mk_loop_item_at(c, c->first);
        if (!it->done)
            mk_loop_item_finish(c, it, &ignored);
    }
    c->next_due = MK_LOOP_NEVER;
}

void mk_loop_cancel_mr(struct mk_loop_dev *d, const struct mk_mr *mr)
{
    for (unsigned i = 0; i < d->nconn; i++)
        for (uint64_t p = d->conn[i]->first; p != d->conn[i]->next; p++) {
            struct mk_loop_item *it = mk_loop_item_at(d->conn[i], p);
            if (!it->done && it->mr == mr)
                item_fail(it, MK_ERR_NET, "the source memory was deregistered");
        }
}

int mk_loop_set_faults(struct mk_dev *dev, const struct mk_loop_faults *faults)
{
    static const struct mk_loop_faults none;
    if (dev->ops != &mk_loop_ops)
        return mk_fail_quiet(MK_ERR_INVALID, "faults can be injected into the loop transport only");
    struct mk_loop_dev *d = (struct mk_loop_dev *)dev;
    d->faults = faults ? *faults : none;
    d->writes = 0;
    for (unsigned i = 0; i < d->nconn; i++)
        d->conn[i]->next_due = 0;
    return 0;
}
