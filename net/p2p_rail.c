/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Rails: the links of a comm but the first, over other ports of the device or beside the first. What goes over them, and
 * why the order between rails does not matter, says p2p_wire.h. One that breaks ends the comm: the peer, whose own links
 * may be whole, is told over one that lives. */
#include "mk/err.h"
#include "engine.h"
#include "p2p.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static_assert((int)MK_P2P_RAIL_NOTES <= (int)MK_P2P_SEND_NOTES, "steps of a comm serve its rails");

/* ---- ports ---- */

static struct mk_engine *engine_of(const struct mk_p2p *p, unsigned port)
{
    return port ? p->port[port - 1] : p->e;
}

static int same_kind(const struct mk_caps *a, const struct mk_caps *b)
{
    if (!strcmp(a->transport, b->transport) && !strcmp(a->adapter, b->adapter) && a->head == b->head &&
        a->late_writes == b->late_writes && a->shm_only == b->shm_only && a->gpu_memory == b->gpu_memory &&
        a->dmabuf == b->dmabuf)
        return 0;
    return mk_fail(MK_ERR_UNSUPPORTED, "NET", "ports that differ do not make one device: %s %s, %s %s",
                   a->transport, a->provider, b->transport, b->provider);
}

int mk_p2p_ports_open(struct mk_p2p *p, const struct mk_settings *list, int n)
{
    p->nports = 1;
    for (int i = 1; i < n; i++) {
        struct mk_engine *e;
        int ret = mk_engine_open(&list[i], &e);
        if (ret)
            return ret;
        p->port[p->nports++ - 1] = e;
        ret = same_kind(mk_engine_caps(p->e), mk_engine_caps(e));
        if (ret)
            return ret;
    }
    const unsigned each = MK_P2P_RAILS / p->nports, want = (unsigned)p->s.qps;
    p->nrails = p->nports * (want < each ? want : each);
    return 0;
}

void mk_p2p_ports_close(struct mk_p2p *p)
{
    for (; p->nports > 1; p->nports--)
        mk_engine_close(p->port[p->nports - 2]);
}

int mk_p2p_ports_progress(struct mk_p2p *p)
{
    int ret = mk_engine_progress(p->e);
    for (unsigned i = 1; i < p->nports; i++) {
        const int now = mk_engine_progress(p->port[i - 1]);
        ret = ret < 0 || now < 0 ? (ret < 0 ? ret : now) : ret + now;
    }
    return ret;
}

int mk_p2p_ports_export(struct mk_p2p *p, void *addr, size_t len, struct mk_export *x[MK_P2P_RAILS])
{
    int ret = 0;
    for (unsigned i = 0; i < p->nports && !ret; i++)
        ret = mk_engine_export(engine_of(p, i), addr, len, &x[i]);
    return ret;
}

static int port_reg(struct mk_engine *e, const struct mk_p2p_mr *m, struct mk_export *x, struct mk_mr **mr,
                    struct mk_net_key *key)
{
    const int ret = x ? mk_engine_reg_export(e, x, mr) : mk_engine_reg(e, m->addr, m->len, NULL, mr);
    if (!ret)
        mk_mr_key(*mr, key);
    return ret;
}

int mk_p2p_ports_reg(struct mk_p2p *p, struct mk_p2p_mr *m, struct mk_export *x[MK_P2P_RAILS], int ret)
{
    for (unsigned i = 0; i < p->nports; i++) {
        struct mk_p2p_mr_port *at = i ? &m->port[i - 1] : NULL;
        if (ret && !x[i])
            continue;
        const int now = port_reg(engine_of(p, i), m, x[i], at ? &at->mr : &m->mr, at ? &at->key : &m->key);
        ret = ret ? ret : now;
    }
    if (ret)
        mk_p2p_ports_dereg(p, m);
    return ret;
}

int mk_p2p_ports_dmabuf(struct mk_p2p *p, struct mk_p2p_mr *m, int fd, uint64_t offset)
{
    int ret = 0;
    for (unsigned i = 0; i < p->nports && !ret; i++) {
        struct mk_mr **mr = i ? &m->port[i - 1].mr : &m->mr;
        ret = mk_engine_reg_dmabuf(engine_of(p, i), fd, offset, m->addr, m->len, mr);
        if (!ret)
            mk_mr_key(*mr, i ? &m->port[i - 1].key : &m->key);
    }
    if (ret)
        mk_p2p_ports_dereg(p, m);
    return ret;
}

int mk_p2p_ports_shadow(struct mk_p2p *p, struct mk_p2p_mr *m)
{
    int ret = mk_engine_reg(p->e, m->shadow.addr, m->len, &m->shadow, &m->shadow_mr);
    if (!ret)
        mk_mr_key(m->shadow_mr, &m->key);
    for (unsigned i = 1; i < p->nports && !ret; i++) {
        struct mk_p2p_mr_port *at = &m->port[i - 1];
        ret = mk_engine_reg(p->port[i - 1], m->shadow.addr, m->len, &m->shadow, &at->shadow_mr);
        if (!ret)
            mk_mr_key(at->shadow_mr, &at->key);
    }
    return ret;
}

void mk_p2p_ports_dereg(struct mk_p2p *p, struct mk_p2p_mr *m)
{
    mk_mr_dereg(m->mr);
    mk_mr_dereg(m->shadow_mr);
    for (unsigned i = 1; i < p->nports; i++) {
        mk_mr_dereg(m->port[i - 1].mr);
        mk_mr_dereg(m->port[i - 1].shadow_mr);
    }
}

/* ---- making them ---- */

static uint64_t rails_at(const struct mk_p2p_comm *c, bool sender)
{
    return (sender ? MK_P2P_SEND_EAGER_AT : MK_P2P_RECV_EAGER_AT) + mk_p2p_rings_bytes(c->p->ring);
}

/* The control memory on this port. */
static int ctrl_on(struct mk_p2p_comm *c, unsigned port, struct mk_mr **out)
{
    int ret = 0;
    if (port && !c->ctrl_port[port - 1])
        ret = mk_engine_reg(engine_of(c->p, port), c->ctrl.addr, c->ctrl.size,
                            c->ctrl.fd >= 0 ? &c->ctrl : NULL, &c->ctrl_port[port - 1]);
    *out = port ? c->ctrl_port[port - 1] : c->ctrl_mr;
    return ret;
}

static int rail_new(struct mk_p2p_comm *c, unsigned r, mk_put_done_fn done, struct mk_p2p_rail_side *mine)
{
    struct mk_p2p_rail *at = &c->rail[r - 1];
    char name[96];
    struct mk_mr *mr;
    at->port = r % c->ports;
    at->e = engine_of(c->p, at->port);
    at->flags = (uint64_t *)(void *)((uint8_t *)c->ctrl.addr + rails_at(c, c->tx != NULL) +
                                     (r - 1) * (uint64_t)MK_P2P_RAIL_BYTES);
    int ret = ctrl_on(c, at->port, &mr);
    if (ret)
        return ret;
    const struct mk_notes_desc d = {at->flags, at->flags + MK_P2P_RAIL_NOTES, c->steps, MK_P2P_RAIL_NOTES,
                                    NULL};
    ret = mk_notes_open(at->e, &d, &mine->base, &at->notes);
    snprintf(name, sizeof(name), "%.50s (rail %u)", c->name, r);
    if (!ret)
        ret = mk_link_open(at->e, name, &mine->addr, &at->l);
    if (ret)
        return ret;
    mk_link_on_done(at->l, done, c);
    mk_mr_key(mr, &mine->key);
    return 0;
}

/* As many ports, and links over each, as both have. */
void mk_p2p_rails_count(const struct mk_p2p *p, const struct mk_p2p_side *offer, struct mk_p2p_side *mine)
{
    uint32_t ports = p->nports, each = p->nrails / p->nports;
    if (offer) {
        const uint32_t theirs = offer->rails / offer->ports;
        ports = ports < offer->ports ? ports : offer->ports;
        each = each < theirs ? each : theirs;
    }
    mine->ports = ports;
    mine->rails = ports * each;
    mine->stripe = p->s.stripe;
}

int mk_p2p_rails_new(struct mk_p2p_comm *c, mk_put_done_fn done, struct mk_p2p_side *mine)
{
    int ret = 0;
    memset(mine->rail, 0, sizeof(mine->rail));
    c->nrails = 1;
    c->ports = mine->ports;
    if (mine->rails == 1)
        return 0;
    c->rail = calloc(mine->rails - 1, sizeof(*c->rail));
    if (!c->rail)
        return mk_fail(MK_ERR_NOMEM, "NET", "%u rails to %s", mine->rails, c->name);
    for (; c->nrails < mine->rails && !ret; c->nrails++)
        ret = rail_new(c, c->nrails, done, &mine->rail[c->nrails - 1]);
    return ret;
}

static void shut(struct mk_p2p_rail *at)
{
    if (at->l)
        mk_link_close(at->l);
    at->l = NULL;
}

static void rail_free(struct mk_p2p_rail *at)
{
    shut(at);
    mk_notes_close(at->notes);
    at->notes = NULL;
}

/* The links that were taken of those offered come first, in the order that the other side has them. */
static void take_links(struct mk_p2p_comm *c, uint32_t offered, const struct mk_p2p_side *taken)
{
    for (uint32_t r = 1; r < taken->rails; r++) {
        const uint32_t from = r / taken->ports * offered + r % taken->ports;
        const struct mk_p2p_rail was = c->rail[r - 1];
        c->rail[r - 1] = c->rail[from - 1];
        c->rail[from - 1] = was;
    }
    while (c->nrails > taken->rails)
        rail_free(&c->rail[--c->nrails - 1]);
}

int mk_p2p_rails_agree(struct mk_p2p_comm *c, const struct mk_p2p_side *mine, const struct mk_p2p_side *peer)
{
    const struct mk_p2p_side *accepts = c->tx ? peer : mine;
    if (accepts->ports < 1 || accepts->ports > c->ports || accepts->rails < accepts->ports ||
        accepts->rails % accepts->ports || accepts->rails / accepts->ports > c->nrails / c->ports)
        return mk_fail(MK_ERR_PEER, "NET", "%s answers with %u rails over %u ports, offered were %u over %u",
                       c->name, accepts->rails, accepts->ports, c->nrails, c->ports);
    if (c->nrails > accepts->rails)
        take_links(c, c->ports, accepts);
    c->ports = accepts->ports;
    c->stripe = mine->stripe > peer->stripe ? mine->stripe : peer->stripe;
    c->stripe = c->stripe > MK_P2P_EAGER ? c->stripe : MK_P2P_EAGER;
    c->mail_at = MK_P2P_SEND_MAIL_AT;
    c->mail_own = MK_P2P_RECV_MAIL_AT;
    c->mail_bytes = MK_P2P_RAIL_MAIL_BYTES(c->ports);
    if (c->ports > 1) {
        c->mail_at = rails_at(c, true) + MK_P2P_RAIL_MAIL_AT;
        c->mail_own = rails_at(c, false) + MK_P2P_RAIL_MAIL_AT;
    }
    return 0;
}

/* Where the peer lists rail r: who connects has those in its list that were not taken. */
static uint32_t place_of(const struct mk_p2p_comm *c, unsigned r, const struct mk_p2p_side *peer)
{
    return c->tx ? r : r / c->ports * peer->ports + r % c->ports;
}

int mk_p2p_rails_connect(struct mk_p2p_comm *c, const struct mk_p2p_side *peer)
{
    int again = 0;
    for (unsigned r = 1; r < c->nrails; r++) {
        const int ret = mk_link_connect(c->rail[r - 1].l, &peer->rail[place_of(c, r, peer) - 1].addr);
        if (ret && ret != MK_ERR_AGAIN)
            return ret;
        again = ret ? ret : again;
    }
    return again;
}

int mk_p2p_rails_join(struct mk_p2p_comm *c, const struct mk_p2p_side *peer)
{
    for (unsigned r = 1; r < c->nrails; r++) {
        struct mk_p2p_rail *at = &c->rail[r - 1];
        const uint32_t place = place_of(c, r, peer);
        const struct mk_p2p_rail_side *side = &peer->rail[place - 1];
        const uint64_t flags = rails_at(c, !c->tx) + (place - 1) * (uint64_t)MK_P2P_RAIL_BYTES;
        int ret = mk_link_import(at->l, &side->key, &at->peer);
        if (ret)
            return ret;
        if (at->peer->len < rails_at(c, !c->tx) + MK_P2P_RAILS_BYTES)
            return mk_fail(MK_ERR_PEER, "NET", "%s offers %zu bytes for a rail", c->name, at->peer->len);
        const struct mk_peer_notes notes = {side->base, MK_P2P_RAIL_NOTES, at->peer, flags,
                                            flags + 8ull * MK_P2P_RAIL_NOTES};
        ret = mk_link_set_notes(at->l, &notes);
        if (ret)
            return ret;
    }
    return c->nrails > 1 && c->peer->len < rails_at(c, !c->tx) + MK_P2P_RAILS_BYTES
               ? mk_fail(MK_ERR_PEER, "NET", "%s offers %zu bytes for a connection with rails", c->name,
                         c->peer->len)
               : 0;
}

void mk_p2p_rails_quiet(struct mk_p2p_comm *c, bool quiet)
{
    if (c->l)
        c->l->quiet = quiet;
    for (unsigned r = 1; r < c->nrails; r++)
        if (c->rail[r - 1].l)
            c->rail[r - 1].l->quiet = quiet;
}

void mk_p2p_rails_shut(struct mk_p2p_comm *c)
{
    for (unsigned r = 1; r < c->nrails; r++)
        shut(&c->rail[r - 1]);
}

void mk_p2p_rails_free(struct mk_p2p_comm *c)
{
    for (unsigned r = 1; r < c->nrails; r++)
        rail_free(&c->rail[r - 1]);
    for (unsigned i = 0; i + 1 < MK_P2P_RAILS; i++)
        mk_mr_dereg(c->ctrl_port[i]);
    free(c->rail);
}

/* ---- their state ---- */

static struct mk_link *link_of(const struct mk_p2p_comm *c, unsigned r)
{
    return r ? c->rail[r - 1].l : c->l;
}

uint32_t mk_p2p_pending(const struct mk_p2p_comm *c)
{
    uint32_t n = 0;
    for (unsigned r = 0; r < c->nrails; r++)
        n += link_of(c, r) ? mk_link_pending(link_of(c, r)) : 0;
    return n;
}

int mk_p2p_link_error(const struct mk_p2p_comm *c, char text[200])
{
    int ret = 0;
    for (unsigned r = 0; r < c->nrails && !ret; r++)
        ret = link_of(c, r) ? mk_link_error(link_of(c, r), text) : MK_ERR_ABORTED;
    return ret;
}

bool mk_p2p_mute(const struct mk_p2p_comm *c)
{
    bool all = true;
    for (unsigned r = 0; r < c->nrails; r++)
        all = all && (!link_of(c, r) || mk_link_error(link_of(c, r), NULL));
    return all;
}

static uint64_t rail_flag(const struct mk_p2p_rail *at, uint32_t note)
{
    return __atomic_load_n(&at->flags[note], __ATOMIC_ACQUIRE);
}

uint64_t mk_p2p_life(const struct mk_p2p_comm *c)
{
    uint64_t life = mk_p2p_flag(c, c->life);
    for (unsigned r = 1; r < c->nrails; r++) {
        const uint64_t now = rail_flag(&c->rail[r - 1], MK_P2P_RAIL_LIFE);
        life = now > life ? now : life;
    }
    return life;
}

bool mk_p2p_warm(const struct mk_p2p_comm *c)
{
    bool all = mk_p2p_flag(c, c->life) >= MK_P2P_LIFE_MET;
    for (unsigned r = 1; r < c->nrails; r++)
        all = all && rail_flag(&c->rail[r - 1], MK_P2P_RAIL_LIFE) >= MK_P2P_LIFE_MET;
    return all;
}

/* ---- words ---- */

static int say(struct mk_p2p_comm *c, unsigned r, uint64_t value, uint64_t id)
{
    const uint32_t note = r ? MK_P2P_RAIL_LIFE : c->tx ? MK_P2P_RECV_LIFE : MK_P2P_SEND_LIFE;
    const struct mk_put put = {.note = note,
                               .use4 = value & 15,
                               .value = value,
                               .flags = value == MK_P2P_LIFE_MET ? MK_PUT_DELIVERY : 0,
                               .id = id};
    c->control += id == MK_P2P_ID_CONTROL;
    const int took = mk_link_put(link_of(c, r), &put, 1);
    if (took == 1)
        return 0;
    c->control -= id == MK_P2P_ID_CONTROL;
    return took < 0 ? took : MK_ERR_INTERNAL;
}

int mk_p2p_rails_warm(struct mk_p2p_comm *c)
{
    int ret = 0;
    for (unsigned r = 0; r < c->nrails && !ret; r++)
        ret = say(c, r, MK_P2P_LIFE_MET, MK_P2P_ID_CONTROL);
    return ret;
}

int mk_p2p_say_life(struct mk_p2p_comm *c, uint64_t value, uint64_t id)
{
    for (unsigned r = 0; r < c->nrails; r++)
        if (link_of(c, r) && !mk_link_error(link_of(c, r), NULL))
            return say(c, r, value, id);
    return MK_ERR_PEER;
}

void mk_p2p_tell_lost(struct mk_p2p_comm *c)
{
    if (c->told_lost || mk_p2p_mute(c))
        return;
    c->told_lost = true;
    mk_p2p_say_life(c, MK_P2P_LIFE_LOST, MK_P2P_ID_CONTROL);
}

/* ---- messages ---- */

/* The key for rail r: for its port. */
static const struct mk_net_key *key_of(const struct mk_p2p_comm *c, unsigned r,
                                       const struct mk_net_key *first, const struct mk_net_key *more)
{
    const unsigned port = r % c->ports;
    return port ? &more[port - 1] : first;
}

bool mk_p2p_rails_differ(const struct mk_p2p_comm *c, const struct mk_p2p_far *far,
                         const struct mk_net_key *more)
{
    for (unsigned r = 1; r < c->ports && far->rail; r++)
        if (far->rail[r - 1].mem && memcmp(&far->rail[r - 1].key, &more[r - 1], sizeof(*more)))
            return true;
    return false;
}

int mk_p2p_rails_import(struct mk_p2p_comm *c, struct mk_p2p_far *far, const struct mk_net_key *first,
                        const struct mk_net_key *more)
{
    if (c->nrails == 1)
        return 0;
    if (!far->rail)
        far->rail = calloc(c->nrails - 1, sizeof(*far->rail));
    if (!far->rail)
        return mk_fail(MK_ERR_NOMEM, "NET", "memory of %s on %u rails", c->name, c->nrails);
    for (unsigned r = 1; r < c->nrails; r++) {
        struct mk_p2p_far *at = &far->rail[r - 1];
        const struct mk_net_key *key = key_of(c, r, first, more);
        if (!at->mem) {
            const int ret = mk_link_import(c->rail[r - 1].l, key, &at->mem);
            if (ret)
                return ret;
        }
        if (at->mem->len != far->mem->len)
            return mk_fail(MK_ERR_PEER, "NET", "%s names %zu bytes on rail %u, %zu on the first", c->name,
                           at->mem->len, r, far->mem->len);
        at->key = *key;
    }
    return 0;
}

void mk_p2p_rails_forget(struct mk_p2p_comm *c, struct mk_p2p_far *far)
{
    for (unsigned r = 1; r < c->nrails && far->rail; r++) {
        if (far->rail[r - 1].mem && c->rail[r - 1].l)
            mk_link_forget(c->rail[r - 1].l, far->rail[r - 1].mem);
        far->rail[r - 1].mem = NULL;
    }
}

int mk_p2p_rails_send(struct mk_p2p_comm *c, struct mk_p2p_send *s, const struct mk_p2p_offer *o)
{
    const struct mk_p2p_far *far = &c->tx->mem[o->mr];
    const uint32_t slot = (uint32_t)(o - c->tx->offer);
    for (unsigned r = 1; r < c->nrails; r++) {
        struct mk_p2p_rail *at = &c->rail[r - 1];
        const struct mk_p2p_piece part = mk_p2p_piece(s->size, c->nrails, r);
        if (!part.len)
            break;
        const struct mk_put put = {.mr = at->port ? s->mr->port[at->port - 1].mr : s->mr->mr,
                                   .local_off = (uint64_t)(s->data - s->mr->addr) + part.off,
                                   .len = (uint32_t)part.len,
                                   .rmem = far->rail[r - 1].mem,
                                   .remote_off = o->offset + part.off,
                                   .note = slot,
                                   .use4 = (at->used[slot] + 1) & 15,
                                   .value = at->used[slot] + 1,
                                   .flags = MK_PUT_DELIVERY,
                                   .id = MK_P2P_ID_SEND + (uint64_t)(s - c->tx->req)};
        at->used[slot]++;
        s->base.left++;
        const int took = mk_link_put(at->l, &put, 1);
        if (took == 1)
            continue;
        s->base.left--;
        return mk_p2p_comm_fail(c, took < 0 ? took : MK_ERR_INTERNAL, "writing to %s over rail %u: %s",
                                c->name, r, took < 0 ? mk_last_error() : "no room for a write");
    }
    return 0;
}

bool mk_p2p_rails_take(struct mk_p2p_comm *c, uint32_t slot, uint64_t size)
{
    unsigned n = 1;
    if (!mk_p2p_striped(c, size))
        return true;
    for (; n < c->nrails && mk_p2p_piece(size, c->nrails, n).len; n++)
        if (rail_flag(&c->rail[n - 1], slot) == c->rail[n - 1].used[slot])
            return false;
    while (--n)
        c->rail[n - 1].used[slot]++;
    return true;
}
