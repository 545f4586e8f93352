/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The message layer: device, comms, memory, test, close. Read mk/p2p.h first, then p2p_wire.h.
 *
 * Called by NCCL's threads: the service thread sets up and closes, the progress thread sends, receives and tests. The
 * engine is driven by whoever tests. */
#include "boot_sock.h"
#include "mk/err.h"
#include "mk/log.h"
#include "p2p.h"
#include "p2p_sock.h"
#include "engine.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define REAP_EVERY 16u
#define LOOK_EVERY 64u
#define MISSES 64u
#define LINGERS 64u
#define SEE_OFF_NS 2000000u
#define HURRY_NS 1000000000u
/* How long closing a device may take to hand what is under way to the network. */
#define DRAIN_NS 100000000ull

/* ---- puts and errors ---- */

int mk_p2p_comm_fail(struct mk_p2p_comm *c, int code, const char *fmt, ...)
{
    char text[300];
    va_list ap;
    if (c->error)
        return c->error;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    c->error = mk_fail(code, "NET", "%s", text);
    return c->error;
}

static void on_done(void *ctx, struct mk_link *l, uint64_t id, int status)
{
    struct mk_p2p_comm *c = ctx;
    (void)l;
    if (id >= MK_P2P_ID_SEND)
        mk_p2p_tx_done(c, id - MK_P2P_ID_SEND, status);
    else if (id == MK_P2P_ID_FIN)
        c->fin_done = true;
    else
        c->control--;
}

/* The link says why in its own log line. */
static int link_state(struct mk_p2p_comm *c)
{
    if (c->error)
        return c->error;
    c->error = c->nrails > 1 ? mk_p2p_link_error(c, NULL) : c->l->error;
    if (c->error && c->nrails > 1)
        mk_p2p_tell_lost(c);
    return c->error;
}

int mk_p2p_put(struct mk_p2p_comm *c, const struct mk_put *puts, int n)
{
    for (int i = 0; i < n; i++)
        c->control += puts[i].id == MK_P2P_ID_CONTROL;
    const int took = mk_link_put(c->l, puts, n);
    if (took == n)
        return 0;
    return link_state(c) ? c->error
                         : mk_p2p_comm_fail(c, took < 0 ? took : MK_ERR_INTERNAL, "writing to %s: %s",
                                            c->name, took < 0 ? mk_last_error() : "no room for a write");
}

int mk_p2p_tag_next(struct mk_p2p_tags *t, int tag, uint32_t **next)
{
    for (unsigned i = 0; i < t->n; i++)
        if (t->list[i].tag == tag) {
            *next = &t->list[i].next;
            return 0;
        }
    if (t->n == t->size) {
        const unsigned size = t->size ? 2 * t->size : 4;
        struct mk_p2p_tag *more = realloc(t->list, size * sizeof(*more));
        if (!more)
            return MK_ERR_NOMEM;
        t->list = more;
        t->size = size;
    }
    t->list[t->n].tag = tag;
    t->list[t->n].next = 0;
    *next = &t->list[t->n++].next;
    return 0;
}

/* ---- comms ---- */

/* Memory that peers write: where they must map it, in a memfd. Children do not get it: their copies would be of no
 * use, and a fork would have to copy pages that the network writes. */
static int ctrl_new(struct mk_p2p_comm *c, size_t size)
{
    c->ctrl.fd = -1;
    if (c->p->info.caps->shm_only) {
        const int ret = mk_shm_create("mkernel comm", size, &c->ctrl);
        if (ret)
            return mk_p2p_no_files(ret, errno);
    } else {
        void *addr = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (addr == MAP_FAILED)
            return mk_fail(MK_ERR_NOMEM, "NET", "%zu bytes for a connection to %s: %s", size, c->name,
                           strerror(errno));
        c->ctrl.addr = addr;
        c->ctrl.size = size;
    }
    madvise(c->ctrl.addr, c->ctrl.size, MADV_DONTFORK);
    return mk_engine_reg(c->p->e, c->ctrl.addr, c->ctrl.size, c->ctrl.fd >= 0 ? &c->ctrl : NULL, &c->ctrl_mr);
}

static int halves_new(struct mk_p2p_comm *c, bool sends)
{
    if (sends) {
        c->tx = calloc(1, sizeof(*c->tx));
        if (!c->tx)
            return MK_ERR_NOMEM;
        c->tx->wait_last = &c->tx->wait_first;
        for (int i = MK_P2P_SENDS - 1; i >= 0; i--) {
            c->tx->req[i].base.c = c;
            c->tx->req[i].base.next = c->tx->free;
            c->tx->free = &c->tx->req[i].base;
        }
        return 0;
    }
    c->rx = calloc(1, sizeof(*c->rx));
    if (!c->rx)
        return MK_ERR_NOMEM;
    c->rx->open_last = &c->rx->open_first;
    for (int i = MK_P2P_REQUESTS - 1; i >= 0; i--) {
        c->rx->req[i].base.c = c;
        c->rx->req[i].base.next = c->rx->free;
        c->rx->free = &c->rx->req[i].base;
    }
    return 0;
}

int mk_p2p_comm_new(struct mk_p2p *p, bool sends, const char *peer_name, const struct mk_p2p_side *offer,
                    struct mk_p2p_side *mine, struct mk_p2p_comm **out)
{
    struct mk_p2p_comm *c = calloc(1, sizeof(*c));
    if (!c)
        return mk_fail(MK_ERR_NOMEM, "NET", "a connection to %s", peer_name);
    c->p = p;
    c->ctrl.fd = -1;
    c->left_fd = -1;
    c->nnotes = sends ? MK_P2P_SEND_NOTES : MK_P2P_RECV_NOTES;
    c->life = sends ? MK_P2P_SEND_LIFE : MK_P2P_RECV_LIFE;
    snprintf(c->name, sizeof(c->name), "%s", peer_name);
    c->steps = calloc(c->nnotes, sizeof(*c->steps));
    mine->most = mk_p2p_rings_most(p->ring);
    mk_p2p_rails_count(p, offer, mine);
    int ret =
        c->steps && !halves_new(c, sends) ? 0 : mk_fail(MK_ERR_NOMEM, "NET", "a connection to %s", peer_name);
    for (uint32_t i = 0; !ret && i < c->nnotes; i++)
        c->steps[i] = 1;
    if (!ret)
        ret = ctrl_new(c, (sends ? MK_P2P_SEND_EAGER_AT : MK_P2P_RECV_EAGER_AT) +
                              mk_p2p_rings_bytes(p->ring) + (mine->rails > 1 ? MK_P2P_RAILS_BYTES : 0));
    if (!ret) {
        c->flags = c->ctrl.addr;
        const struct mk_notes_desc d = {c->flags, c->flags + c->nnotes, c->steps, c->nnotes, NULL};
        ret = mk_notes_open(p->e, &d, &mine->base, &c->notes);
    }
    if (!ret)
        ret = mk_link_open(p->e, c->name, &mine->addr, &c->l);
    if (!ret)
        ret = mk_p2p_rails_new(c, on_done, mine);
    if (ret) {
        mk_p2p_comm_free(c);
        return ret;
    }
    mk_link_on_done(c->l, on_done, c);
    mk_mr_key(c->ctrl_mr, &mine->key);
    *out = c;
    return 0;
}

int mk_p2p_comm_join(struct mk_p2p_comm *c, const struct mk_p2p_side *peer)
{
    const uint32_t n = c->tx ? MK_P2P_RECV_NOTES : MK_P2P_SEND_NOTES;
    int ret = mk_link_import(c->l, &peer->key, &c->peer);
    if (ret)
        return ret;
    const struct mk_p2p_ring *rings = c->p->ring;
    if (peer->most != mk_p2p_rings_most(rings))
        return mk_fail(MK_ERR_MISMATCH, "NET", "%s sends up to %u bytes at once, this side %u", c->name,
                       peer->most, mk_p2p_rings_most(rings));
    if (c->peer->len < (c->tx ? MK_P2P_RECV_EAGER_AT : MK_P2P_SEND_EAGER_AT) + mk_p2p_rings_bytes(rings))
        return mk_fail(MK_ERR_PEER, "NET", "%s offers %zu bytes for a connection", c->name, c->peer->len);
    const struct mk_peer_notes notes = {peer->base, n, c->peer, 0, 8ull * n};
    ret = mk_link_set_notes(c->l, &notes);
    return ret ? ret : mk_p2p_rails_join(c, peer);
}

static void mr_free(struct mk_p2p_mr *m)
{
    mk_p2p_ports_dereg(m->c->p, m);
    mk_shm_release(&m->shadow);
    free(m);
}

static void mrs_free(struct mk_p2p_comm *c)
{
    while (c->mrs) {
        struct mk_p2p_mr *m = c->mrs;
        c->mrs = m->next;
        mr_free(m);
    }
}

void mk_p2p_comm_free(struct mk_p2p_comm *c)
{
    if (!c)
        return;
    mk_link_close(c->l);
    mk_notes_close(c->notes);
    mk_p2p_rails_free(c);
    mrs_free(c);
    mk_mr_dereg(c->ctrl_mr);
    if (c->ctrl.addr)
        munmap(c->ctrl.addr, c->ctrl.size);
    if (c->ctrl.fd >= 0)
        close(c->ctrl.fd);
    mk_p2p_witness_put(c->p, c->witness);
    mk_boot_fd_close(c->left_fd);
    for (uint32_t i = 0; c->tx && i < c->tx->nmem; i++)
        free(c->tx->mem[i].rail);
    if (c->tx)
        free(c->tx->mem);
    free(c->tx);
    free(c->rx);
    free(c->tags.list);
    free(c->spare_mr);
    free(c->steps);
    free(c);
}

void mk_p2p_comm_add(struct mk_p2p_comm *c)
{
    c->greeted = true;
    if (c->ctrl.fd >= 0) { /* the peer has mapped it */
        close(c->ctrl.fd);
        c->ctrl.fd = -1;
    }
    c->next = c->p->comms;
    c->p->comms = c;
}

/* ---- closing ---- */

void mk_p2p_comm_leave(struct mk_p2p_comm *c, int fd)
{
    c->left_fd = fd;
    c->fin_done = true; /* there is none to wait for */
    c->next = c->p->closing;
    c->p->closing = c;
}

/* First our own words have to arrive, since the peer gives its memory back when it hears of the end. */
static bool left(struct mk_p2p_comm *c)
{
    char rest[64];
    size_t n = 0;
    if (!c->left_told && c->control && !mk_p2p_mute(c))
        return false;
    if (!c->left_told)
        shutdown(c->left_fd, SHUT_WR);
    c->left_told = true;
    return mk_p2p_sock_recv(c->left_fd, rest, sizeof(rest), &n) == MK_ERR_PEER;
}

/* The control memory of a closed comm stays until the peer has closed too: it may still write there (credits), and a
 * write into memory that is gone would break the connection for every other comm with that process. (A peer that we gave
 * up for lack of time may never say so: then it stays as long as the device.) True: freed. */
static bool reap(struct mk_p2p_comm *c, uint64_t now)
{
    const uint64_t gone = c->witness ? mk_p2p_witness_gone(c->witness, now) : 0;
    const bool mute = !c->l || mk_p2p_mute(c), broken = !c->l || mk_p2p_broken(c);
    if (c->left_fd >= 0 && !left(c))
        return false;
    /* what had arrived before the link broke is still taken in */
    bool over =
        !c->l || !c->greeted || (broken && ++c->lingers > LINGERS) || (gone && now - gone > MK_P2P_GRACE_NS);
    c->fin_done |= mute;
    if (!over && !mute && !c->fin_sent && !mk_p2p_pending(c)) {
        c->fin_sent = true;
        over = mk_p2p_say_life(c, MK_P2P_LIFE_CLOSED, MK_P2P_ID_FIN) != 0;
    }
    if (!over && !(c->fin_done && mk_p2p_life(c) >= MK_P2P_LIFE_CLOSED))
        return false;
    mk_p2p_comm_free(c);
    return true;
}

static void reap_all(struct mk_p2p *p)
{
    const uint64_t now = mk_time_ns();
    for (struct mk_p2p_comm **at = &p->closing, *c; (c = *at);) {
        struct mk_p2p_comm *next = c->next;
        if (reap(c, now))
            *at = next;
        else
            at = &c->next;
    }
}

int mk_p2p_progress(struct mk_p2p *p)
{
    const int ret = p->nports > 1 ? mk_p2p_ports_progress(p) : mk_engine_progress(p->e);
    if (++p->rounds % REAP_EVERY == 0) {
        mk_p2p_stops(p);
        mk_p2p_answer_asks(p);
        if (p->closing)
            reap_all(p);
    }
    return ret;
}

/* The good-bye should leave before the caller may turn away for ever; that takes microseconds. Where it does not,
 * further closes do not try for a while. */
static void see_off(struct mk_p2p *p, const struct mk_p2p_comm *c)
{
    const uint64_t now = mk_time_ns();
    if (p->hurry_ns && now < p->hurry_ns)
        return;
    while (mk_time_ns() - now < SEE_OFF_NS) {
        const struct mk_p2p_comm *at = p->closing;
        while (at && at != c)
            at = at->next;
        if (!at || at->fin_done || !at->l || mk_link_error(at->l, NULL))
            return;
        mk_p2p_ports_progress(p);
        reap_all(p);
    }
    p->hurry_ns = mk_time_ns() + HURRY_NS;
}

void mk_p2p_comm_close(struct mk_p2p_comm *c)
{
    if (!c)
        return;
    struct mk_p2p *p = c->p;
    mk_p2p_lock(p);
    struct mk_p2p_comm **at = &p->comms;
    while (*at && *at != c)
        at = &(*at)->next;
    if (*at) {
        *at = c->next;
        c->next = p->closing;
        p->closing = c;
        mk_p2p_rails_quiet(c, true);
        if (mk_p2p_uses(c, NULL))
            mk_p2p_stop(c, NULL);
        mrs_free(c);
        reap_all(p);
        see_off(p, c);
    }
    pthread_mutex_unlock(&p->lock);
}

/* What was handed over goes out, and what has come in is read: a socket that is closed with unread bytes in it
 * throws away what it has not sent yet. */
static void drain(struct mk_p2p *p)
{
    const uint64_t end = mk_time_ns() + DRAIN_NS;
    int idle = 0;
    while (idle < 3 && mk_time_ns() < end) {
        reap_all(p);
        bool under_way = false;
        for (struct mk_p2p_comm *c = p->closing; c; c = c->next)
            under_way |= !c->fin_done;
        const int events = mk_p2p_ports_progress(p);
        if (events < 0)
            return;
        idle = events || under_way ? 0 : idle + 1;
    }
}

void mk_p2p_close(struct mk_p2p *p)
{
    if (!p)
        return;
    mk_p2p_lock(p);
    mk_p2p_listeners_close(p);
    mk_p2p_meets_close(p);
    drain(p);
    for (int i = 0; i < 2; i++) {
        struct mk_p2p_comm **list = i ? &p->closing : &p->comms;
        while (*list) {
            struct mk_p2p_comm *c = *list;
            *list = c->next;
            mk_p2p_comm_free(c);
        }
    }
    mk_p2p_ports_close(p);
    mk_engine_close(p->e);
    pthread_mutex_unlock(&p->lock);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

/* ---- memory ---- */

static int mr_new(struct mk_p2p_comm *c, void *addr, size_t len, struct mk_p2p_mr **out)
{
    if (!addr || !len)
        return mk_fail(MK_ERR_INVALID, "NET", "registering %zu bytes at %p", len, addr);
    struct mk_p2p_mr *m = calloc(1, sizeof(*m));
    if (!m)
        return mk_fail(MK_ERR_NOMEM, "NET", "registering %zu bytes", len);
    m->c = c;
    m->addr = addr;
    m->len = len;
    m->shadow.fd = -1;
    *out = m;
    return 0;
}

/* It is registered, or was not. */
static int mr_add(struct mk_p2p_mr *m, int ret, struct mk_p2p_mr **out)
{
    struct mk_p2p_comm *c = m->c;
    if (ret) {
        free(m);
        return ret;
    }
    m->gpu = mk_mr_on_gpu(m->mr);
    m->number = c->nspare ? c->spare_mr[--c->nspare] : c->next_mr++;
    m->next = c->mrs;
    c->mrs = m;
    *out = m;
    return 0;
}

int mk_p2p_reg(struct mk_p2p_comm *c, void *addr, size_t len, struct mk_p2p_mr **out)
{
    struct mk_p2p_mr *m = NULL;
    struct mk_export *x[MK_P2P_RAILS] = {NULL};
    int ret = mr_new(c, addr, len, &m);
    if (ret)
        return ret;
    /* may wait for kernels that wait for us: without the lock */
    ret = mk_p2p_ports_export(c->p, addr, len, x);
    mk_p2p_lock(c->p);
    ret = mr_add(m, mk_p2p_ports_reg(c->p, m, x, ret), out);
    pthread_mutex_unlock(&c->p->lock);
    return ret;
}

int mk_p2p_reg_dmabuf(struct mk_p2p_comm *c, void *addr, size_t len, uint64_t offset, int fd,
                      struct mk_p2p_mr **out)
{
    struct mk_p2p_mr *m = NULL;
    int ret = mr_new(c, addr, len, &m);
    if (ret)
        return ret;
    mk_p2p_lock(c->p);
    ret = mr_add(m, mk_p2p_ports_dmabuf(c->p, m, fd, offset), out);
    pthread_mutex_unlock(&c->p->lock);
    return ret;
}

int mk_p2p_flush(struct mk_p2p_comm *c, struct mk_p2p_mr *mr)
{
    mk_p2p_lock(c->p);
    int ret = mk_mr_flush(mr->mr);
    for (unsigned i = 1; i < c->p->nports && !ret; i++)
        ret = mk_mr_flush(mr->port[i - 1].mr);
    pthread_mutex_unlock(&c->p->lock);
    return ret;
}

bool mk_p2p_on_gpu(const struct mk_p2p_mr *m)
{
    return m->gpu;
}

/* The peer keeps what it imported by number: they are given out again, and stay few. */
static void spare_number(struct mk_p2p_comm *c, uint32_t number)
{
    if (c->nspare == c->spare_size) {
        const uint32_t size = c->spare_size ? 2 * c->spare_size : 8;
        uint32_t *more = realloc(c->spare_mr, size * sizeof(*more));
        if (!more)
            return; /* one number is lost */
        c->spare_mr = more;
        c->spare_size = size;
    }
    c->spare_mr[c->nspare++] = number;
}

/* Nothing may read or write the memory afterwards: what still uses it ends here, with the comm. */
void mk_p2p_dereg(struct mk_p2p_comm *c, struct mk_p2p_mr *m)
{
    if (!m)
        return;
    mk_p2p_lock(c->p);
    struct mk_p2p_mr **at = &c->mrs;
    while (*at && *at != m)
        at = &(*at)->next;
    if (*at) {
        *at = m->next;
        if (mk_p2p_uses(c, m)) {
            MK_INFO("NET", "memory of messages under way to or from %s was deregistered: they are dropped",
                    c->name);
            mk_p2p_stop(c, m);
        }
        spare_number(c, m->number);
        mr_free(m);
    }
    pthread_mutex_unlock(&c->p->lock);
}

/* ---- test ---- */

static bool complete(const struct mk_p2p_req *r)
{
    return !r->left && !(r->c->tx && ((const struct mk_p2p_send *)r)->waiting);
}

static int step(struct mk_p2p_comm *c, struct mk_p2p_req *r)
{
    if (link_state(c))
        return c->error;
    return c->tx ? mk_p2p_tx_progress(c) : mk_p2p_rx_progress(c, (struct mk_p2p_recv *)r);
}

/* A small receive that nothing comes for is announced after a while: should the message be a large one, its sender
 * must learn that there is no room for it. */
static void look_small(struct mk_p2p_comm *c, uint64_t now)
{
    struct mk_p2p_rx *rx = c->rx;
    const struct mk_p2p_recv *r = (const struct mk_p2p_recv *)rx->open_first;
    if (!r || !rx->unannounced)
        return;
    if (rx->old != &r->base || rx->old_number != r->sub[0].number) {
        rx->old = &r->base;
        rx->old_number = r->sub[0].number;
        rx->old_ns = now;
    } else if (now - rx->old_ns > MK_P2P_SMALL_NS) {
        rx->old_ns = now;
        rx->small_too = true;
    }
}

/* Is the peer gone? What it sent last may still be on its way. */
static void look(struct mk_p2p_comm *c)
{
    const uint64_t now = mk_time_ns();
    if (c->rx)
        look_small(c, now);
    const uint64_t life = mk_p2p_life(c);
    const bool closed = life >= MK_P2P_LIFE_CLOSED, lost = life >= MK_P2P_LIFE_LOST;
    if (!c->gone_ns && (lost || (c->witness && mk_p2p_witness_gone(c->witness, now))))
        c->gone_ns = now;
    if (c->gone_ns && now - c->gone_ns > MK_P2P_GRACE_NS)
        mk_p2p_comm_fail(c, MK_ERR_PEER,
                         closed ? "%s has closed the connection"
                         : lost ? "%s lost one of the rails of the connection, and gave it up"
                                : "%s is gone: its process ended, or its host is lost",
                         c->name);
}

static int finish(struct mk_p2p_req *r, bool *done, size_t *sizes)
{
    struct mk_p2p_comm *c = r->c;
    const int status = r->status;
    for (int i = 0; sizes && !status && i < r->n; i++)
        sizes[i] = c->tx ? ((struct mk_p2p_send *)r)->size : ((struct mk_p2p_recv *)r)->sub[i].got;
    struct mk_p2p_req **list = c->tx ? &c->tx->free : &c->rx->free;
    if (c->tx)
        c->tx->used--;
    r->next = *list;
    *list = r;
    *done = !status;
    return status;
}

void mk_p2p_lock(struct mk_p2p *p)
{
    if (!pthread_mutex_trylock(&p->lock))
        return;
    __atomic_add_fetch(&p->waiting, 1, __ATOMIC_RELAXED);
    pthread_mutex_lock(&p->lock);
    __atomic_sub_fetch(&p->waiting, 1, __ATOMIC_RELAXED);
}

/* A test that finds another thread at work on the device says "not yet": the caller comes again, and that thread does the
 * work for all. With a thread for each communicator, as NCCL has them, sleeping for the lock at each look would hand the
 * device from one to the next at the pace at which threads wake up. But the lock may never be free at the moment of a try,
 * beside threads that take it in a loop (accept, connect): after some misses it is waited for. */
static bool try_lock(struct mk_p2p_comm *c)
{
    struct mk_p2p *p = c->p;
    if (!__atomic_load_n(&p->waiting, __ATOMIC_RELAXED) && !pthread_mutex_trylock(&p->lock))
        return true;
    if (__atomic_add_fetch(&c->missed, 1, __ATOMIC_RELAXED) % MISSES)
        return false;
    mk_p2p_lock(p);
    return true;
}

int mk_p2p_test(struct mk_p2p_req *r, bool *done, size_t *sizes)
{
    struct mk_p2p_comm *c = r->c;
    struct mk_p2p *p = c->p;
    int ret = 0;
    *done = false;
    if (!try_lock(c))
        return 0;
    /* after a miss, what another thread has polled since the last look here is as good as polling once more */
    const bool polled = __atomic_exchange_n(&c->missed, 0, __ATOMIC_RELAXED) && p->rounds != c->rounds;
    if (!complete(r) && !c->error)
        step(c, r);
    if (!complete(r) && !c->error && !polled) {
        const int events = mk_p2p_progress(p);
        if (events)
            step(c, r);
    }
    c->rounds = p->rounds;
    if (!complete(r) && !c->error && ++c->looks % LOOK_EVERY == 0)
        look(c);
    if (r->status)
        link_state(c);
    if (complete(r) && !(r->status && c->error))
        ret = finish(r, done, sizes);
    else if (c->error)
        ret = c->error;
    pthread_mutex_unlock(&p->lock);
    return ret;
}
