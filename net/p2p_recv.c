/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The receiving half. Receives that may get more than a small message are announced in the sender's mailbox; small
 * messages come into a ring, and wait there while nothing is posted for them. */
#include "mk/err.h"
#include "mk/log.h"
#include "p2p.h"
#include <string.h>

/* Looks that an announcement waits for company; and where the sender wants an earlier one first, which is announced: 64 looks
 * are less than a message of 256 KiB takes, so each of them would go alone. Nor longer than MK_P2P_PATIENCE_NS. */
#define PATIENCE 64u
#define PATIENCE_BEHIND 1024u

static struct mk_p2p_slot *slot_at(struct mk_p2p_rx *rx, uint64_t message)
{
    return &rx->slot[message % MK_P2P_EAGER_SLOTS];
}

static struct mk_p2p_box *box_at(struct mk_p2p_rx *rx, uint32_t position)
{
    return &rx->box[position % MK_P2P_MAIL];
}

static void move_mail(struct mk_p2p_rx *rx)
{
    while (rx->mail_first != rx->mail_next && box_at(rx, rx->mail_first)->state == MK_P2P_MAIL_DONE)
        rx->mail_first++;
}

/* Must it be announced? */
static bool is_huge(const struct mk_p2p_comm *c, const struct mk_p2p_sub *s)
{
    return s->size > mk_p2p_rings_most(c->p->ring) || (s->size && s->mr && s->mr->gpu) ||
           mk_p2p_striped(c, s->size);
}

/* Is it to be announced, unless it is alone? */
static bool is_large(const struct mk_p2p_comm *c, const struct mk_p2p_sub *s)
{
    return is_huge(c, s) || s->size > MK_P2P_EAGER_LARGE;
}

/* ---- completion ---- */

static void received(struct mk_p2p_comm *c, struct mk_p2p_recv *r, struct mk_p2p_sub *s, size_t size)
{
    struct mk_p2p_rx *rx = c->rx;
    if (s->state == MK_P2P_POSTED) {
        rx->unannounced--;
        rx->large -= is_large(c, s);
        rx->huge -= is_huge(c, s);
        rx->waits = rx->large ? rx->waits : 0; /* the next has all its time */
    } else {
        rx->open--;
    }
    s->state = MK_P2P_RECEIVED;
    s->got = size;
    if (--r->base.left)
        return;
    struct mk_p2p_req **at = &rx->open_first;
    while (*at != &r->base)
        at = &(*at)->next;
    *at = r->base.next;
    if (!*at)
        rx->open_last = at;
}

static void too_small(struct mk_p2p_comm *c, struct mk_p2p_recv *r, const struct mk_p2p_sub *s, uint64_t size)
{
    r->base.status =
        mk_fail(MK_ERR_INVALID, "NET",
                "a message of %llu bytes (tag %d) from %s is larger than the %zu bytes posted for it",
                (unsigned long long)size, s->tag, c->name, s->size);
}

/* Into GPU memory: only what was sent from host memory before the announcement was seen. */
static int land(struct mk_p2p_comm *c, const struct mk_p2p_sub *s, const uint8_t *data, uint32_t size)
{
    if (!s->mr || !s->mr->gpu) {
        memcpy(s->data, data, size);
        return 0;
    }
    const int ret = mk_mr_fill(s->mr->mr, (uint64_t)(s->data - s->mr->addr), data, size);
    return ret ? mk_p2p_comm_fail(c, ret, "a message from %s into GPU memory: %s", c->name, mk_last_error())
               : 0;
}

static int deliver(struct mk_p2p_comm *c, struct mk_p2p_recv *r, struct mk_p2p_sub *s, const uint8_t *data,
                   const struct mk_p2p_eager *head)
{
    if (s->state == MK_P2P_ANNOUNCED) {
        struct mk_p2p_box *b = box_at(c->rx, s->mail);
        b->sub = NULL;
        b->state = head->mail == 1 + s->mail % MK_P2P_MAIL ? MK_P2P_MAIL_DONE : MK_P2P_MAIL_EAGER;
    }
    if (head->size > s->size) {
        too_small(c, r, s, head->size);
        received(c, r, s, 0);
        return 0;
    }
    const int ret = head->size ? land(c, s, data, head->size) : 0;
    received(c, r, s, head->size);
    return ret;
}

/* The oldest receive for this message. */
static struct mk_p2p_sub *find_sub(struct mk_p2p_rx *rx, int tag, uint32_t number, struct mk_p2p_recv **out)
{
    for (struct mk_p2p_req *q = rx->open_first; q; q = q->next) {
        struct mk_p2p_recv *r = (struct mk_p2p_recv *)q;
        for (int i = 0; i < q->n; i++)
            if (r->sub[i].state != MK_P2P_RECEIVED && r->sub[i].number == number && r->sub[i].tag == tag) {
                *out = r;
                return &r->sub[i];
            }
    }
    return NULL;
}

/* ---- small messages ---- */

/* Tries to hand out the message in a slot; sets the slot's end. */
static int take_eager(struct mk_p2p_comm *c, struct mk_p2p_slot *at, bool *taken)
{
    const struct mk_p2p_ring *ring = &c->p->ring[at->kind];
    const uint8_t *place =
        (const uint8_t *)c->ctrl.addr + MK_P2P_RECV_EAGER_AT + ring->at + at->start % ring->bytes;
    struct mk_p2p_recv *r;
    struct mk_p2p_eager head;
    memcpy(&head, place, sizeof(head)); /* what is checked is what is used */
    if (head.size > ring->most)
        return mk_p2p_comm_fail(c, MK_ERR_PEER, "%s sent %u bytes at once, %u are allowed", c->name,
                                head.size, ring->most);
    at->end = mk_p2p_ring_end(at->start, head.size);
    struct mk_p2p_sub *s = find_sub(c->rx, head.tag, head.number, &r);
    *taken = s != NULL;
    return s ? deliver(c, r, s, place + MK_P2P_EAGER_HEAD, &head) : 0;
}

static void consume(struct mk_p2p_rx *rx)
{
    for (; rx->consumed != rx->eager && !slot_at(rx, rx->consumed)->held; rx->consumed++)
        rx->tail[slot_at(rx, rx->consumed)->kind] = slot_at(rx, rx->consumed)->end;
}

/* Has the next one come? Then its ring, else -1. */
static int arrived(const struct mk_p2p_comm *c, uint32_t slot)
{
    for (int kind = 0; kind < MK_P2P_RINGS && c->p->ring[kind].bytes; kind++)
        if (mk_p2p_flag(c, (uint32_t)kind * MK_P2P_EAGER_SLOTS + slot) != c->rx->uses[kind][slot])
            return kind;
    return -1;
}

static int read_eager(struct mk_p2p_comm *c)
{
    struct mk_p2p_rx *rx = c->rx;
    while (rx->eager - rx->consumed < MK_P2P_EAGER_SLOTS) {
        struct mk_p2p_slot *at = slot_at(rx, rx->eager);
        const uint32_t slot = (uint32_t)(at - rx->slot);
        const int kind = arrived(c, slot);
        bool taken;
        if (kind < 0)
            break;
        rx->uses[kind][slot]++;
        at->kind = (uint8_t)kind;
        at->start = mk_p2p_ring_start(&c->p->ring[kind], rx->ring[kind]);
        const int ret = take_eager(c, at, &taken);
        if (ret)
            return ret;
        rx->ring[kind] = at->end;
        rx->eager++;
        at->held = !taken;
        rx->held += !taken;
        consume(rx);
    }
    return 0;
}

/* A receive was posted: is its message here already? */
static int read_held(struct mk_p2p_comm *c)
{
    struct mk_p2p_rx *rx = c->rx;
    for (uint64_t m = rx->consumed; rx->held && m != rx->eager; m++) {
        struct mk_p2p_slot *at = slot_at(rx, m);
        bool taken;
        if (!at->held)
            continue;
        const int ret = take_eager(c, at, &taken);
        if (ret)
            return ret;
        at->held = !taken;
        rx->held -= taken;
    }
    consume(rx);
    return 0;
}

/* Has the sender room for the largest message of either ring, as far as it was told? */
static bool sender_has_room(const struct mk_p2p_comm *c)
{
    const struct mk_p2p_rx *rx = c->rx;
    bool room = rx->eager - rx->credited < MK_P2P_EAGER_SLOTS;
    for (int k = 0; k < MK_P2P_RINGS && c->p->ring[k].bytes; k++)
        room = room && mk_p2p_ring_room(&c->p->ring[k], rx->ring[k], rx->told[k], c->p->ring[k].most);
    return room;
}

static void told(struct mk_p2p_rx *rx, uint64_t credit)
{
    for (; rx->credited < credit; rx->credited++)
        rx->told[slot_at(rx, rx->credited)->kind] = slot_at(rx, rx->credited)->end;
}

/* Is half of the slots or of a ring consumed that the sender was not told of? */
static bool much(const struct mk_p2p_comm *c)
{
    const struct mk_p2p_rx *rx = c->rx;
    bool is = rx->consumed - rx->credited >= MK_P2P_EAGER_SLOTS / 2;
    for (int k = 0; k < MK_P2P_RINGS; k++)
        is = is || (rx->tail[k] - rx->told[k]) * 2 > c->p->ring[k].bytes;
    return is;
}

/* The sender may reuse what is consumed. It is told when that is much, or when it may have to wait; announcements carry
 * it too. */
static int give_credit(struct mk_p2p_comm *c)
{
    struct mk_p2p_rx *rx = c->rx;
    struct mk_put put;
    if (rx->consumed == rx->credited || !(much(c) || !sender_has_room(c)))
        return 0;
    told(rx, rx->consumed);
    memset(&put, 0, sizeof(put));
    put.note = MK_P2P_SEND_CREDIT;
    put.value = rx->consumed;
    put.use4 = put.value & 15;
    put.flags = MK_PUT_CREDIT;
    put.id = MK_P2P_ID_CONTROL;
    return mk_p2p_put(c, &put, 1);
}

/* ---- announcing ---- */

/* The ring of small messages is full of what nothing is posted for: what is posted must come another way. */
static bool stuck(const struct mk_p2p_comm *c)
{
    const struct mk_p2p_rx *rx = c->rx;
    return rx->held && rx->consumed == rx->credited && !sender_has_room(c);
}

/* The sender's messages come from GPU memory, which it cannot copy into the ring. */
static bool asked(const struct mk_p2p_comm *c)
{
    return mk_p2p_flag(c, MK_P2P_RECV_ASKED) != 0;
}

/* Memory that the peer cannot write gets a twin that it can, on its first use. */
static int make_shadow(struct mk_p2p_comm *c, struct mk_p2p_mr *m)
{
    struct mk_p2p *p = c->p;
    if (!p->info.caps->shm_only || m->shadow.addr || m->gpu)
        return 0;
    int ret = mk_shm_create("mkernel bounce", m->len, &m->shadow);
    if (!ret)
        ret = mk_p2p_ports_shadow(p, m);
    if (ret) {
        ret = mk_p2p_no_files(ret, 0);
        mk_shm_release(&m->shadow);
        return mk_p2p_comm_fail(c, ret, "memory that %s may write: %s", c->name, mk_last_error());
    }
    return 0;
}

/* Where the entry for a slot is composed. */
static struct mk_p2p_mail *mail_at(const struct mk_p2p_comm *c, uint32_t slot)
{
    return (struct mk_p2p_mail *)(void *)((uint8_t *)c->ctrl.addr + c->mail_own +
                                          (uint64_t)slot * c->mail_bytes);
}

static void fill_mail(struct mk_p2p_comm *c, struct mk_p2p_sub *s)
{
    struct mk_p2p_rx *rx = c->rx;
    const uint32_t slot = rx->mail_next % MK_P2P_MAIL;
    struct mk_p2p_mail *m = mail_at(c, slot);
    struct mk_net_key *more = (struct mk_net_key *)(m + 1);
    m->count = 1;
    m->number = s->number;
    m->tag = s->tag;
    m->mr = s->mr->number;
    m->offset = (uint64_t)(s->data - s->mr->addr);
    m->size = s->size;
    m->credit = rx->consumed;
    m->key = s->mr->key;
    m->direct = s->mr->gpu;
    for (uint32_t port = 1; port < c->ports; port++)
        more[port - 1] = s->mr->port[port - 1].key;
    rx->box[slot].state = MK_P2P_MAIL_OPEN;
    rx->box[slot].sub = s;
    s->mail = rx->mail_next++;
    s->state = MK_P2P_ANNOUNCED;
    rx->unannounced--;
    rx->large -= is_large(c, s);
    rx->huge -= is_huge(c, s);
    rx->open++;
}

static int post_mail(struct mk_p2p_comm *c, uint32_t first, uint32_t count)
{
    struct mk_p2p_rx *rx = c->rx;
    const uint32_t slot = first % MK_P2P_MAIL;
    struct mk_p2p_mail *m = mail_at(c, slot);
    const uint64_t use = ++rx->mail_used[slot];
    m->count = count;
    told(rx, m->credit);
    const struct mk_put put = {.mr = c->ctrl_mr,
                               .local_off = c->mail_own + (uint64_t)slot * c->mail_bytes,
                               .len = count * c->mail_bytes,
                               .rmem = c->peer,
                               .remote_off = c->mail_at + (uint64_t)slot * c->mail_bytes,
                               .note = slot,
                               .use4 = use & 15,
                               .value = use,
                               .id = MK_P2P_ID_CONTROL};
    return mk_p2p_put(c, &put, 1);
}

/* Is an earlier one of its tag announced, and not received? */
static bool has_open(const struct mk_p2p_rx *rx, const struct mk_p2p_sub *s)
{
    for (const struct mk_p2p_req *q = rx->open_first; q; q = q->next)
        for (int i = 0; i < q->n; i++) {
            const struct mk_p2p_sub *other = &((const struct mk_p2p_recv *)q)->sub[i];
            if (other->state == MK_P2P_ANNOUNCED && other->tag == s->tag &&
                (int32_t)(other->number - s->number) < 0)
                return true;
        }
    return false;
}

/* Does the sender want another one before each of those that are to be announced? Messages of a tag are sent in order, and
 * one that was announced needs nothing more from here: while it has not come, those behind it are not missed. */
static bool all_behind(const struct mk_p2p_comm *c)
{
    const struct mk_p2p_rx *rx = c->rx;
    for (const struct mk_p2p_req *q = rx->open_first; q; q = q->next)
        for (int i = 0; i < q->n; i++) {
            const struct mk_p2p_sub *s = &((const struct mk_p2p_recv *)q)->sub[i];
            if (s->state == MK_P2P_POSTED && is_large(c, s) && !has_open(rx, s))
                return false;
        }
    return true;
}

/* While the sender has enough to go on with, announcements wait for company: one put carries many. Enough is more than twice
 * what waits: with half of all in one put, what is in flight comes in bursts, which leave the cache. Not for ever: it may
 * want just this one, soon where nothing of its tag is announced. One alone that may come without waits too. */
static bool may_wait(const struct mk_p2p_comm *c)
{
    struct mk_p2p_rx *rx = c->rx;
    const bool alone = !rx->huge && rx->large + rx->open == 1, enough = rx->large * 2 < rx->open;
    if (enough || alone) {
        if (!rx->waits++)
            rx->waits_ns = mk_time_ns();
        if (rx->waits % PATIENCE || (enough && rx->waits < PATIENCE_BEHIND && all_behind(c) &&
                                     mk_time_ns() - rx->waits_ns < MK_P2P_PATIENCE_NS))
            return true;
    }
    rx->waits = 0;
    return false;
}

/* In order of posting, as far as the mailbox has room; what lies together goes in one put. */
static int announce(struct mk_p2p_comm *c)
{
    struct mk_p2p_rx *rx = c->rx;
    uint32_t first = rx->mail_next;
    int ret = 0;
    const bool small_too = stuck(c) || rx->small_too || asked(c);
    rx->small_too = false;
    move_mail(rx);
    for (struct mk_p2p_req *q = rx->open_first; q && rx->unannounced; q = q->next) {
        struct mk_p2p_recv *r = (struct mk_p2p_recv *)q;
        for (int i = 0; i < q->n && !ret; i++) {
            struct mk_p2p_sub *s = &r->sub[i];
            if (s->state != MK_P2P_POSTED || !s->mr || (!is_large(c, s) && !small_too))
                continue;
            if (rx->mail_next - rx->mail_first == MK_P2P_MAIL)
                goto out_post;
            ret = make_shadow(c, s->mr);
            if (ret)
                goto out_post;
            if (rx->mail_next != first && !(rx->mail_next % MK_P2P_MAIL)) { /* the ring's end */
                ret = post_mail(c, first, rx->mail_next - first);
                first = rx->mail_next;
            }
            fill_mail(c, s);
        }
    }
out_post:
    return ret || first == rx->mail_next ? ret : post_mail(c, first, rx->mail_next - first);
}

/* ---- announced receives ---- */

/* Looks at the notifications of one mail slot. */
static int look(struct mk_p2p_comm *c, struct mk_p2p_recv *r, struct mk_p2p_sub *s, uint32_t slot)
{
    struct mk_p2p_rx *rx = c->rx;
    const uint8_t *shadow = s->mr->shadow.addr;
    uint64_t size;
    const bool full = mk_p2p_flag(c, MK_P2P_RECV_FULL + slot) != rx->full[slot];
    if (full)
        size = s->size;
    else if (mk_p2p_flag(c, MK_P2P_RECV_PART + slot) != rx->part[slot] &&
             mk_p2p_flag(c, MK_P2P_RECV_SIZE + slot) != rx->rec[slot])
        memcpy(&size, (uint8_t *)c->ctrl.addr + MK_P2P_RECV_SIZE_AT + 8 * slot, 8);
    else
        return 0;
    if (size <= s->size && !mk_p2p_rails_take(c, slot, size))
        return 0;
    rx->full[slot] += full;
    rx->part[slot] += !full;
    rx->rec[slot] += !full;
    rx->box[slot].state = MK_P2P_MAIL_DONE;
    rx->box[slot].sub = NULL;
    if (size & MK_P2P_TOO_LARGE) {
        too_small(c, r, s, size & ~MK_P2P_TOO_LARGE);
        received(c, r, s, 0);
        move_mail(rx);
        return 0;
    }
    if (size > s->size)
        return mk_p2p_comm_fail(c, MK_ERR_PEER, "%s says that it wrote %llu bytes where %zu were posted",
                                c->name, (unsigned long long)size, s->size);
    if (shadow && size)
        memcpy(s->data, shadow + (s->data - s->mr->addr), size);
    received(c, r, s, size);
    move_mail(rx);
    return 0;
}

/* A slot whose message came small is free when the sender has seen the announcement. */
static void look_answered(struct mk_p2p_comm *c)
{
    struct mk_p2p_rx *rx = c->rx;
    for (; rx->mail_first != rx->mail_next; rx->mail_first++) {
        const uint32_t slot = rx->mail_first % MK_P2P_MAIL;
        if (rx->box[slot].state == MK_P2P_MAIL_EAGER &&
            mk_p2p_flag(c, MK_P2P_RECV_SIZE + slot) != rx->rec[slot]) {
            rx->rec[slot]++;
            rx->box[slot].state = MK_P2P_MAIL_DONE;
        }
        if (rx->box[slot].state != MK_P2P_MAIL_DONE)
            return;
    }
}

int mk_p2p_rx_progress(struct mk_p2p_comm *c, struct mk_p2p_recv *r)
{
    int ret = read_eager(c);
    look_answered(c);
    for (int i = 0; !ret && r && i < r->base.n; i++)
        if (r->sub[i].state == MK_P2P_ANNOUNCED)
            ret = look(c, r, &r->sub[i], r->sub[i].mail % MK_P2P_MAIL);
    if (!ret && c->rx->unannounced &&
        ((c->rx->large && !may_wait(c)) || c->rx->small_too || asked(c) || stuck(c)))
        ret = announce(c);
    return ret ? ret : give_credit(c);
}

void mk_p2p_answer_asks(struct mk_p2p *p)
{
    for (struct mk_p2p_comm *c = p->comms; c; c = c->next)
        if (c->rx && c->rx->unannounced && (c->rx->large || asked(c)) && !c->error && c->l &&
            !mk_link_error(c->l, NULL))
            mk_p2p_rx_progress(c, NULL);
}

/* ---- posting ---- */

static int check_sub(const struct mk_p2p_comm *c, const struct mk_p2p_sub *s)
{
    if (!s->size)
        return 0;
    if (!s->data)
        return mk_fail(MK_ERR_INVALID, "NET", "a receive of %zu bytes from %s to no address", s->size,
                       c->name);
    if (!s->mr && s->size <= MK_P2P_EAGER)
        return 0;
    if (!s->mr || s->mr->c != c || s->data < s->mr->addr || s->size > s->mr->len ||
        (size_t)(s->data - s->mr->addr) > s->mr->len - s->size)
        return mk_fail(MK_ERR_INVALID, "NET",
                       "a receive of %zu bytes from %s is not in memory registered with it", s->size,
                       c->name);
    return 0;
}

static int post(struct mk_p2p_comm *c, int n, void *const *data, const size_t *sizes, const int *tags,
                struct mk_p2p_mr *const *mr, struct mk_p2p_req **out)
{
    struct mk_p2p_rx *rx = c->rx;
    struct mk_p2p_recv *r = (struct mk_p2p_recv *)rx->free;
    uint32_t *next = NULL;
    int ret = 0;
    if (!r)
        return MK_ERR_AGAIN;
    for (int i = 0; i < n && !ret; i++) {
        struct mk_p2p_sub *s = &r->sub[i];
        memset(s, 0, sizeof(*s));
        s->data = data[i];
        s->size = sizes[i];
        s->tag = tags[i];
        s->mr = mr ? mr[i] : NULL;
        ret = check_sub(c, s);
        if (!ret)
            ret = mk_p2p_tag_next(&c->tags, s->tag, &next);
    }
    if (ret)
        return ret;
    for (int i = 0; i < n; i++) {
        if (n > 1)
            mk_p2p_tag_next(&c->tags, r->sub[i].tag, &next); /* is there now */
        r->sub[i].number = (*next)++;
    }
    rx->free = r->base.next;
    r->base.next = NULL;
    r->base.n = n;
    r->base.left = n;
    r->base.status = 0;
    *rx->open_last = &r->base;
    rx->open_last = &r->base.next;
    rx->unannounced += (unsigned)n;
    for (int i = 0; i < n; i++) {
        rx->large += is_large(c, &r->sub[i]);
        rx->huge += is_huge(c, &r->sub[i]);
    }
    if (rx->held)
        ret = read_held(c);
    if (!ret &&
        (rx->large || rx->small_too || stuck(c) || asked(c))) /* the rest has time until it is tested */
        ret = mk_p2p_rx_progress(c, NULL);
    if (ret)
        return ret;
    *out = &r->base;
    return 0;
}

int mk_p2p_recv(struct mk_p2p_comm *c, int n, void *const *data, const size_t *sizes, const int *tags,
                struct mk_p2p_mr *const *mr, struct mk_p2p_req **out)
{
    if (!c->rx)
        return mk_fail(MK_ERR_INVALID, "NET", "a receive on a comm that sends");
    if (n < 1 || n > MK_P2P_RECVS)
        return mk_fail(MK_ERR_INVALID, "NET", "a receive of %d messages, 1 to %d go together", n,
                       MK_P2P_RECVS);
    mk_p2p_lock(c->p);
    const int ret = c->error ? c->error : post(c, n, data, sizes, tags, mr, out);
    pthread_mutex_unlock(&c->p->lock);
    return ret;
}
