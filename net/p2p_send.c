/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The sending half. A message is sent at once if it is small and the receiver's ring has a slot; else when its
 * receive was announced, straight into the buffer. */
#include "mk/err.h"
#include "p2p.h"
#include "transport.h"
#include <stdlib.h>
#include <string.h>

/* ---- what the receiver announced ---- */

/* An announcement as it came out of the mailbox. */
struct entry {
    struct mk_p2p_mail m;
    struct mk_net_key more[MK_P2P_RAILS - 1]; /* by port of the receiver: the second, ... */
};

static void copy_entry(const struct mk_p2p_comm *c, uint32_t slot, struct entry *e)
{
    memcpy(e, (const uint8_t *)c->ctrl.addr + c->mail_at + (uint64_t)slot * c->mail_bytes, c->mail_bytes);
}

/* The memory that an entry names; its key comes with every entry, and is imported once. */
static int import(struct mk_p2p_comm *c, const struct entry *e, struct mk_rmem **out)
{
    const struct mk_p2p_mail *m = &e->m;
    struct mk_p2p_tx *tx = c->tx;
    if (m->mr >= MK_P2P_MR_MAX)
        return mk_p2p_comm_fail(c, MK_ERR_PEER, "%s announced memory number %u", c->name, m->mr);
    if (m->mr >= tx->nmem) {
        const uint32_t n = m->mr + 8;
        struct mk_p2p_far *more = realloc(tx->mem, n * sizeof(*more));
        if (!more)
            return mk_p2p_comm_fail(c, MK_ERR_NOMEM, "memory %u of %s", m->mr, c->name);
        memset(more + tx->nmem, 0, (n - tx->nmem) * sizeof(*more));
        tx->mem = more;
        tx->nmem = n;
    }
    struct mk_p2p_far *f = &tx->mem[m->mr];
    if (f->mem && (memcmp(&f->key, &m->key, sizeof(f->key)) ||
                   mk_p2p_rails_differ(c, f, e->more))) { /* the number now names other memory */
        /* A receiver keeps a number while it waits for something there. */
        for (uint32_t i = 0; i < MK_P2P_MAIL; i++)
            if (tx->offer[i].open && tx->offer[i].mem == f->mem)
                return mk_p2p_comm_fail(c, MK_ERR_PEER,
                                        "%s announced other memory as number %u, which is in use", c->name,
                                        m->mr);
        mk_link_forget(c->l, f->mem);
        mk_p2p_rails_forget(c, f);
        f->mem = NULL;
    }
    int ret = f->mem ? 0 : mk_link_import(c->l, &m->key, &f->mem);
    if (!ret)
        ret = mk_p2p_rails_import(c, f, &m->key, e->more);
    if (ret)
        return mk_p2p_comm_fail(c, ret == MK_ERR_NOMEM || ret == MK_ERR_SYSTEM ? ret : MK_ERR_PEER,
                                "memory that %s announced: %s", c->name, mk_last_error());
    f->key = m->key;
    *out = f->mem;
    return 0;
}

/* Tells the receiver that a mail slot was seen whose message had already been sent small: the notification SIZE,
 * without PART. (FULL would not do: on a network without order it may come before the message.) */
static int answer(struct mk_p2p_comm *c, uint32_t slot)
{
    struct mk_put put;
    memset(&put, 0, sizeof(put));
    put.note = MK_P2P_RECV_SIZE + slot;
    put.value = ++c->tx->rec[slot];
    put.use4 = put.value & 15;
    put.id = MK_P2P_ID_CONTROL;
    return mk_p2p_put(c, &put, 1);
}

static bool waits(const struct mk_p2p_tx *tx, int tag, uint32_t number)
{
    for (const struct mk_p2p_req *r = tx->wait_first; r; r = r->next) {
        const struct mk_p2p_send *s = (const struct mk_p2p_send *)r;
        if (s->tag == tag && s->number == number)
            return true;
    }
    return false;
}

static int take_entry(struct mk_p2p_comm *c, uint32_t slot, const struct entry *e)
{
    const struct mk_p2p_mail *m = &e->m;
    struct mk_p2p_tx *tx = c->tx;
    struct mk_p2p_offer *o = &tx->offer[slot];
    uint32_t *next;
    int ret = mk_p2p_tag_next(&c->tags, m->tag, &next);
    if (ret)
        return mk_p2p_comm_fail(c, ret, "tags of %s", c->name);
    if ((int32_t)(m->number - *next) < 0 && !waits(tx, m->tag, m->number)) {
        o->open = false;
        return answer(c, slot);
    }
    ret = import(c, e, &o->mem);
    if (ret)
        return ret;
    if (m->offset > o->mem->len || m->size > o->mem->len - m->offset)
        return mk_p2p_comm_fail(c, MK_ERR_PEER, "%s announced %llu bytes that leave its memory", c->name,
                                (unsigned long long)m->size);
    o->open = true;
    o->direct = m->direct != 0;
    o->number = m->number;
    o->tag = m->tag;
    o->mr = m->mr;
    o->offset = m->offset;
    o->size = m->size;
    return 0;
}

/* The receiver says that so many have been consumed. */
static void learn(struct mk_p2p_tx *tx, uint64_t credit)
{
    if (credit > tx->eager)
        return;
    for (; tx->credit < credit; tx->credit++) {
        const uint32_t slot = (uint32_t)(tx->credit % MK_P2P_EAGER_SLOTS);
        tx->tail[tx->kind[slot]] = tx->ends[slot];
    }
}

/* Copies what has come out of the mailbox: the peer may write there again as soon as it is answered. */
static int read_mail(struct mk_p2p_comm *c)
{
    struct mk_p2p_tx *tx = c->tx;
    struct entry e;
    for (;;) {
        const uint32_t first = tx->mail_next % MK_P2P_MAIL;
        if (mk_p2p_flag(c, first) == tx->mail_seen[first])
            return 0;
        tx->mail_seen[first]++;
        copy_entry(c, first, &e);
        const uint32_t count = e.m.count;
        if (!count || count > MK_P2P_MAIL - first || tx->mail_next - tx->mail_first + count > MK_P2P_MAIL)
            return mk_p2p_comm_fail(c, MK_ERR_PEER, "%s announced %u receives at once", c->name, count);
        learn(tx, e.m.credit);
        for (uint32_t i = 0; i < count; i++) {
            if (i)
                copy_entry(c, first + i, &e);
            tx->mail_next++;
            const int ret = take_entry(c, first + i, &e);
            if (ret)
                return ret;
        }
        while (tx->mail_first != tx->mail_next && !tx->offer[tx->mail_first % MK_P2P_MAIL].open)
            tx->mail_first++;
    }
}

static struct mk_p2p_offer *find_offer(struct mk_p2p_tx *tx, int tag, uint32_t number)
{
    for (uint32_t at = tx->mail_first; at != tx->mail_next; at++) {
        struct mk_p2p_offer *o = &tx->offer[at % MK_P2P_MAIL];
        if (o->open && o->number == number && o->tag == tag)
            return o;
    }
    return NULL;
}

static void close_offer(struct mk_p2p_tx *tx, struct mk_p2p_offer *o)
{
    o->open = false;
    while (tx->mail_first != tx->mail_next && !tx->offer[tx->mail_first % MK_P2P_MAIL].open)
        tx->mail_first++;
}

/* ---- sending ---- */

static bool ring_room(const struct mk_p2p_comm *c, int kind, size_t size)
{
    const struct mk_p2p_tx *tx = c->tx;
    return tx->eager - tx->credit < MK_P2P_EAGER_SLOTS &&
           mk_p2p_ring_room(&c->p->ring[kind], tx->ring[kind], tx->tail[kind], (uint32_t)size);
}

static bool on_gpu(const struct mk_p2p_send *s)
{
    return s->size && s->mr && s->mr->gpu;
}

/* With nothing else under way, the network would be idle until an announcement comes. Not so where several are sent at a
 * time, though this one may find the network idle: the next ones come behind it, and the receiver has better to do than to
 * copy it. */
static bool is_alone(const struct mk_p2p_comm *c, const struct mk_p2p_send *s)
{
    return !c->tx->crowd && !mk_p2p_pending(c) && (!c->tx->wait_first || c->tx->wait_first == &s->base);
}

/* May this message go at once? Then the ring for it, else -1. */
static int eager_ring(const struct mk_p2p_comm *c, const struct mk_p2p_send *s, const struct mk_p2p_offer *o)
{
    const size_t size = s->size;
    const int kind = size <= MK_P2P_EAGER ? MK_P2P_SMALL : MK_P2P_LARGE;
    if (size > c->p->ring[kind].most || (o && kind == MK_P2P_LARGE))
        return -1;
    if (on_gpu(s) || (o && o->direct && size && s->mr))
        return -1;
    if ((size > MK_P2P_EAGER_LARGE && !is_alone(c, s)) || mk_p2p_striped(c, size))
        return -1;
    if (ring_room(c, kind, size))
        return kind;
    learn(c->tx, mk_p2p_flag(c, MK_P2P_SEND_CREDIT));
    return ring_room(c, kind, size) ? kind : -1;
}

static uint64_t id_of(const struct mk_p2p_comm *c, const struct mk_p2p_send *s)
{
    return MK_P2P_ID_SEND + (uint64_t)(s - c->tx->req);
}

/* A small one is copied into the ring's twin on this side: that the last use of the place was consumed means that it was
 * read. Of a large one only the head is copied, to a place beside the other heads. */
static int send_eager(struct mk_p2p_comm *c, struct mk_p2p_send *s, struct mk_p2p_offer *o, int kind)
{
    struct mk_p2p_tx *tx = c->tx;
    const struct mk_p2p_ring *ring = &c->p->ring[kind];
    const uint32_t slot = (uint32_t)(tx->eager % MK_P2P_EAGER_SLOTS);
    const uint64_t use = ++tx->uses[kind][slot];
    const uint64_t start = mk_p2p_ring_start(ring, tx->ring[kind]), place = ring->at + start % ring->bytes;
    const uint64_t at = kind == MK_P2P_LARGE ? MK_P2P_SEND_HEAD_AT + MK_P2P_EAGER_HEAD * (uint64_t)slot
                                             : MK_P2P_SEND_EAGER_AT + place;
    struct mk_p2p_eager *e = (struct mk_p2p_eager *)(void *)((uint8_t *)c->ctrl.addr + at);
    e->size = (uint32_t)s->size;
    e->tag = s->tag;
    e->number = s->number;
    e->mail = o ? (uint32_t)(o - tx->offer) + 1 : 0;
    struct mk_put put = {.mr = c->ctrl_mr,
                         .local_off = at,
                         .len = MK_P2P_EAGER_HEAD + e->size,
                         .rmem = c->peer,
                         .remote_off = MK_P2P_RECV_EAGER_AT + place,
                         .note = (uint32_t)kind * MK_P2P_EAGER_SLOTS + slot,
                         .use4 = use & 15,
                         .value = use,
                         .id = id_of(c, s)};
    if (kind == MK_P2P_LARGE) {
        put.head = c->ctrl_mr;
        put.head_off = at;
        put.head_len = MK_P2P_EAGER_HEAD;
        put.mr = s->mr->mr;
        put.local_off = (uint64_t)(s->data - s->mr->addr);
        put.len = e->size;
    } else if (s->size) {
        memcpy(e + 1, s->data, s->size);
    }
    tx->ring[kind] = tx->ends[slot] = mk_p2p_ring_end(start, e->size);
    tx->kind[slot] = (uint8_t)kind;
    tx->eager++;
    if (o)
        close_offer(tx, o);
    s->base.left = 1;
    return mk_p2p_put(c, &put, 1);
}

/* Two puts for less than what was posted: put[0] becomes PART, put[1] the size, SIZE. */
static void say_size(struct mk_p2p_comm *c, const struct mk_p2p_send *s, uint32_t slot, uint64_t size,
                     struct mk_put put[2])
{
    struct mk_p2p_tx *tx = c->tx;
    const uint64_t at = MK_P2P_SEND_SIZE_AT + 8ull * slot;
    memcpy((uint8_t *)c->ctrl.addr + at, &size, 8);
    put[0].note = MK_P2P_RECV_PART + slot;
    put[0].value = ++tx->part[slot];
    put[0].use4 = put[0].value & 15;
    put[0].id = id_of(c, s);
    put[1].mr = c->ctrl_mr;
    put[1].local_off = at;
    put[1].len = 8;
    put[1].rmem = c->peer;
    put[1].remote_off = MK_P2P_RECV_SIZE_AT + 8ull * slot;
    put[1].note = MK_P2P_RECV_SIZE + slot;
    put[1].value = ++tx->rec[slot];
    put[1].use4 = put[1].value & 15;
    put[1].id = id_of(c, s);
}

/* The message does not fit what was posted: both sides are told, and nothing is written. */
static int send_nothing(struct mk_p2p_comm *c, struct mk_p2p_send *s, struct mk_p2p_offer *o)
{
    struct mk_put put[2];
    s->base.status =
        mk_fail(MK_ERR_INVALID, "NET",
                "a message of %zu bytes (tag %d) to %s is larger than the %llu bytes posted for it", s->size,
                s->tag, c->name, (unsigned long long)o->size);
    memset(put, 0, sizeof(put));
    say_size(c, s, (uint32_t)(o - c->tx->offer), s->size | MK_P2P_TOO_LARGE, put);
    s->base.left = 2;
    close_offer(c->tx, o);
    return mk_p2p_put(c, put, 2);
}

/* Straight into the posted buffer, or the first rail's piece of it. The notification FULL says that all of it was written; of less, PART says that the
 * payload and SIZE that the size is there (they may arrive in either order). */
static int send_direct(struct mk_p2p_comm *c, struct mk_p2p_send *s, struct mk_p2p_offer *o)
{
    struct mk_p2p_tx *tx = c->tx;
    const uint32_t slot = (uint32_t)(o - tx->offer);
    const bool full = s->size == o->size;
    struct mk_put put[2];
    const bool striped = mk_p2p_striped(c, s->size);
    memset(put, 0, sizeof(put));
    put[0].len = (uint32_t)(striped ? mk_p2p_piece(s->size, c->nrails, 0).len : s->size);
    if (s->size) {
        put[0].mr = s->mr->mr;
        put[0].local_off = (uint64_t)(s->data - s->mr->addr);
        put[0].rmem = o->mem;
        put[0].remote_off = o->offset;
    }
    if (full) {
        put[0].note = MK_P2P_RECV_FULL + slot;
        put[0].value = ++tx->full[slot];
        put[0].use4 = put[0].value & 15;
        put[0].id = id_of(c, s);
    } else {
        say_size(c, s, slot, s->size, put);
    }
    s->base.left = full ? 1 : 2;
    close_offer(tx, o);
    const int ret = mk_p2p_put(c, put, s->base.left);
    return ret || !striped ? ret : mk_p2p_rails_send(c, s, o);
}

/* The receiver is to announce small receives too. */
static int ask(struct mk_p2p_comm *c)
{
    const struct mk_put put = {.note = MK_P2P_RECV_ASKED, .use4 = 1, .value = 1, .id = MK_P2P_ID_CONTROL};
    return mk_p2p_put(c, &put, 1);
}

/* Sends s if that is possible now; else it is still waiting. */
static int try_send(struct mk_p2p_comm *c, struct mk_p2p_send *s)
{
    struct mk_p2p_offer *o = find_offer(c->tx, s->tag, s->number);
    if (o && s->size > o->size) {
        s->waiting = false;
        return send_nothing(c, s, o);
    }
    const int kind = eager_ring(c, s, o); /* large and announced: straight into the buffer */
    if (kind >= 0) {
        s->waiting = false;
        return send_eager(c, s, o, kind);
    }
    if (!o && on_gpu(s) && !c->asked && s->size <= mk_p2p_rings_most(c->p->ring)) {
        c->asked = true;
        return ask(c);
    }
    if (!o || (s->size && !s->mr))
        return 0;
    s->waiting = false;
    return send_direct(c, s, o);
}

int mk_p2p_tx_progress(struct mk_p2p_comm *c)
{
    struct mk_p2p_tx *tx = c->tx;
    int ret = read_mail(c);
    for (struct mk_p2p_req **at = &tx->wait_first; !ret && *at;) {
        struct mk_p2p_send *s = (struct mk_p2p_send *)*at;
        ret = try_send(c, s);
        if (s->waiting) {
            at = &s->base.next;
            continue;
        }
        *at = s->base.next;
        if (!*at)
            tx->wait_last = at;
    }
    return ret;
}

void mk_p2p_tx_done(struct mk_p2p_comm *c, uint64_t index, int status)
{
    struct mk_p2p_send *s = &c->tx->req[index];
    s->base.left--;
    if (status && !s->base.status)
        s->base.status = status;
}

static int check(const struct mk_p2p_comm *c, const uint8_t *data, size_t size, const struct mk_p2p_mr *mr)
{
    if (!size)
        return 0;
    if (!data)
        return mk_fail(MK_ERR_INVALID, "NET", "a send of %zu bytes to %s from no address", size, c->name);
    if (size > c->p->info.max_message)
        return mk_fail(MK_ERR_INVALID, "NET", "a send of %zu bytes to %s: the network takes %zu", size,
                       c->name, c->p->info.max_message);
    if (!mr && size <= MK_P2P_EAGER)
        return 0;
    if (!mr || mr->c != c || data < mr->addr || size > mr->len || (size_t)(data - mr->addr) > mr->len - size)
        return mk_fail(MK_ERR_INVALID, "NET",
                       "a send of %zu bytes to %s is not from memory registered with it", size, c->name);
    return 0;
}

static int post(struct mk_p2p_comm *c, const uint8_t *data, size_t size, int tag, struct mk_p2p_mr *mr,
                struct mk_p2p_req **out)
{
    struct mk_p2p_tx *tx = c->tx;
    struct mk_p2p_send *s = (struct mk_p2p_send *)tx->free;
    uint32_t *next;
    int ret = check(c, data, size, mr);
    if (ret)
        return ret;
    if (!s)
        return MK_ERR_AGAIN;
    ret = read_mail(c); /* may move the table of tags */
    if (ret)
        return ret;
    if (mk_p2p_tag_next(&c->tags, tag, &next))
        return MK_ERR_NOMEM;
    tx->free = s->base.next;
    tx->crowd = tx->used++ ? MK_P2P_CROWD : tx->crowd - (tx->crowd != 0);
    s->base.next = NULL;
    s->base.n = 1;
    s->base.left = 0;
    s->base.status = 0;
    s->data = data;
    s->size = size;
    s->mr = mr;
    s->tag = tag;
    s->number = (*next)++;
    s->waiting = true;
    ret = try_send(c, s);
    if (ret) {
        s->base.next = tx->free;
        tx->free = &s->base;
        tx->used--;
        return ret;
    }
    if (s->waiting) {
        *tx->wait_last = &s->base;
        tx->wait_last = &s->base.next;
    }
    *out = &s->base;
    return 0;
}

int mk_p2p_send(struct mk_p2p_comm *c, const void *data, size_t size, int tag, struct mk_p2p_mr *mr,
                struct mk_p2p_req **out)
{
    if (!c->tx)
        return mk_fail(MK_ERR_INVALID, "NET", "a send on a comm that receives");
    mk_p2p_lock(c->p);
    const int ret = c->error ? c->error : post(c, data, size, tag, mr, out);
    pthread_mutex_unlock(&c->p->lock);
    return ret;
}
