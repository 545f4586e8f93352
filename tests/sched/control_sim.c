/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Events in a heap; after each, every idle unit looks for work. */
#include "control_sim.h"
#include <stdlib.h>
#include <string.h>

enum event_kind { UNIT_DONE, LINK_DONE, ARRIVES, LOOK_AGAIN };
#define EVENTS (SIM_CHUNKS * 2 + SIM_UNITS * 4)

struct unit {
    int kind; /* of its task: -1 none, else MK_CTL_* ; what it did last stays in `was` */
    int was;
    bool send, stays, left, asked;
    bool astray; /* a tile, taken in role COMM */
    uint32_t item;
    uint64_t took, idle_since;
};

struct sim {
    const struct sim_trace *t;
    const struct sim_policy *p;
    struct mk_ctl_conf f;
    struct mk_ctl_sample s;
    struct mk_ctl *c;
    struct sim_result *r;
    uint64_t now, link_free;
    uint32_t tile_next, send_next, recv_next, completed, sending, staying;
    uint32_t tiles_left[SIM_CHUNKS]; /* of a chunk */
    bool arrived[SIM_CHUNKS], received[SIM_CHUNKS];
    uint64_t unclaimed_since[2]; /* a ready task of this kind is there; 0: none */
    struct unit unit[SIM_UNITS];
    uint64_t heap[EVENTS]; /* time 44, kind 4, number 16 */
    uint32_t events;
};

uint32_t sim_random(uint64_t *state, uint32_t below)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return (uint32_t)(((z ^ (z >> 31)) >> 32) * below >> 32);
}

static void push(struct sim *m, uint64_t when, enum event_kind kind, uint32_t number)
{
    const uint64_t e = when << 20 | (uint64_t)kind << 16 | number;
    uint32_t i = m->events++;
    if (i >= EVENTS)
        abort();
    for (; i && m->heap[(i - 1) / 2] > e; i = (i - 1) / 2)
        m->heap[i] = m->heap[(i - 1) / 2];
    m->heap[i] = e;
}

static uint64_t pop(struct sim *m)
{
    const uint64_t first = m->heap[0], e = m->heap[--m->events];
    uint32_t i = 0;
    for (uint32_t k; (k = 2 * i + 1) < m->events; i = k) {
        if (k + 1 < m->events && m->heap[k + 1] < m->heap[k])
            k++;
        if (e <= m->heap[k])
            break;
        m->heap[i] = m->heap[k];
    }
    m->heap[i] = e;
    return first;
}

static uint32_t tiles(const struct sim *m)
{
    return m->t->chunks * m->t->per;
}

/* Looks, as a unit's: 1 ready, 0 not ready, -1 none left. */
static int look_tile(const struct sim *m)
{
    if (m->tile_next >= tiles(m))
        return -1;
    return !m->t->gather || m->received[m->tile_next / m->t->per];
}
static int look_recv(const struct sim *m)
{
    return m->recv_next >= m->t->chunks ? -1 : m->arrived[m->recv_next];
}
static int look_send(const struct sim *m)
{
    if (m->send_next >= m->t->chunks)
        return -1;
    return m->send_next < m->completed + m->t->credits && (m->t->gather || !m->tiles_left[m->send_next]);
}
static int look_comm(const struct sim *m)
{
    const int recv = look_recv(m), send = look_send(m);
    return recv > send ? recv : send;
}

/* How long a ready task waits for somebody to claim one of its kind. */
static void watch(struct sim *m, int kind, bool ready, bool claimed)
{
    uint64_t *since = &m->unclaimed_since[kind];
    if (*since && m->now - *since > m->r->starved)
        m->r->starved = m->now - *since;
    *since = !ready ? 0 : claimed || !*since ? m->now : *since;
}

static uint64_t send_time(const struct sim *m, uint32_t item)
{
    const uint64_t own = m->t->send[item], shared = (uint64_t)m->t->link[item] * (m->sending + 1);
    return m->t->inside && shared > own ? shared : own;
}

static void start(struct sim *m, struct unit *u, uint32_t number, int kind)
{
    u->kind = kind;
    u->asked = false;
    u->astray = kind == MK_CTL_COMPUTE && mk_ctl_role(m->c->target, number) == MK_CTL_COMM;
    u->idle_since = 0;
    if (kind == MK_CTL_COMPUTE) {
        u->item = m->tile_next++;
        u->took = m->t->tile[u->item];
    } else if (look_recv(m) == 1) {
        u->send = false;
        u->item = m->recv_next++;
        u->took = m->t->recv[u->item];
    } else {
        u->send = true;
        u->item = m->send_next++;
        u->took = send_time(m, u->item);
        m->sending++;
    }
    if (u->was >= 0 && u->was != kind)
        u->took += m->t->switch_cost;
    u->was = kind;
    if (u->took > m->r->longest)
        m->r->longest = u->took;
    push(m, m->now + u->took, UNIT_DONE, number);
    watch(m, kind, kind == MK_CTL_COMPUTE ? look_tile(m) == 1 : look_comm(m) == 1, true);
}

/* A unit between two tasks. Returns whether it took one. */
static bool look(struct sim *m, uint32_t number)
{
    struct unit *u = &m->unit[number];
    const int tile = look_tile(m), comm = look_comm(m), role = mk_ctl_role(m->c->target, number);
    if (!u->idle_since)
        u->idle_since = m->now + 1;
    const bool patient = m->now + 1 >= u->idle_since + m->t->patience;
    const int what = m->p->act(role, tile, comm, patient);
    if ((what == MK_CTL_TILE && tile == 1) || (what == MK_CTL_TALK && comm == 1)) {
        start(m, u, number, what == MK_CTL_TILE ? MK_CTL_COMPUTE : MK_CTL_COMM);
        return true;
    }
    if (what == MK_CTL_STAY && !u->stays && m->staying < m->t->ceiling) {
        u->stays = true;
        m->staying++;
    }
    if (what == MK_CTL_LEAVE || (what == MK_CTL_STAY && !u->stays))
        u->left = true;
    if (!u->left && !patient && !u->asked)
        push(m, u->idle_since + m->t->patience, LOOK_AGAIN, number);
    u->asked = true;
    return false;
}

/* Chunk on the link, which is one chunk at a time; the peer's arrives as ours does. */
static void to_link(struct sim *m, uint32_t chunk)
{
    const struct sim_trace *t = m->t;
    uint64_t begin = m->link_free > m->now ? m->link_free : m->now;
    if (begin >= t->pause_at && begin < t->pause_at + t->pause_for)
        begin = t->pause_at + t->pause_for;
    m->link_free = begin + (t->inside ? 0 : t->link[chunk]);
    push(m, m->link_free, LINK_DONE, chunk);
}

static void finished(struct sim *m, struct unit *u)
{
    const int kind = u->kind;
    u->kind = -1;
    m->s.busy[kind] += u->took;
    m->s.done[kind]++;
    m->s.left[kind]--;
    if (kind == MK_CTL_COMPUTE) {
        m->tiles_left[u->item / m->t->per]--;
    } else if (u->send) {
        m->sending--;
        to_link(m, u->item);
    } else {
        m->received[u->item] = true;
    }
    m->s.now = m->now;
    if (!m->p->step || !mk_ctl_due(&m->f, m->c, &m->s))
        return;
    const uint32_t target = m->p->step(&m->f, m->c, &m->s);
    if (m->r->npoints < SIM_POINTS) {
        m->r->point[m->r->npoints].boundary = m->s.done[0] + m->s.done[1];
        m->r->point[m->r->npoints].left = m->s.left[0];
        m->r->point[m->r->npoints++].target = target;
    }
}

static void fixed(struct sim *m)
{
    m->c->target = m->s.done[0] < m->f.band ? 0 : m->p->fixed;
}

/* Time passes: what units in role COMM do that is not communication. */
static void away(struct sim *m, uint64_t till)
{
    for (uint32_t i = 0; i < m->t->resident; i++) {
        const struct unit *u = &m->unit[i];
        if (mk_ctl_role(m->c->target, i) == MK_CTL_COMM && !u->left && (u->kind < 0 || u->astray))
            m->s.off += till - m->now;
    }
}

static void happen(struct sim *m, uint64_t e)
{
    const enum event_kind kind = e >> 16 & 15;
    const uint32_t number = e & 0xffff;
    away(m, e >> 20);
    m->now = e >> 20;
    if (kind == UNIT_DONE) {
        finished(m, &m->unit[number]);
    } else if (kind == LINK_DONE) {
        const uint64_t late = m->t->peer_late, there = m->now + m->t->latency;
        m->completed++;
        m->s.bytes += 262144;
        push(m, there > late ? there : late, ARRIVES, number);
    } else if (kind == ARRIVES) {
        m->arrived[number] = true;
    }
    if (!m->p->step)
        fixed(m);
}

void sim_run(const struct sim_trace *t, const struct sim_policy *p, struct mk_ctl *c, struct sim_result *r)
{
    static struct sim m;
    memset(&m, 0, sizeof(m));
    m.t = t, m.p = p, m.c = c, m.r = r;
    m.f.units = t->units, m.f.ceiling = t->ceiling, m.f.start = p->start, m.f.band = t->gather ? 0 : t->per;
    m.s.left[0] = t->chunks * t->per, m.s.left[1] = 2 * t->chunks;
    memset(r, 0, offsetof(struct sim_result, point));
    for (uint32_t i = 0; i < t->chunks; i++)
        m.tiles_left[i] = t->per;
    for (uint32_t i = 0; i < t->resident; i++)
        m.unit[i].kind = m.unit[i].was = -1;
    m.s.units = t->resident;
    mk_ctl_begin(&m.f, c, 0);
    if (!p->step)
        fixed(&m);
    uint32_t turn = 0;
    for (;;) {
        for (uint32_t i = 0; i < t->resident; i++) {
            const uint32_t u = (turn + i) % t->resident;
            if (m.unit[u].kind < 0 && !m.unit[u].left)
                look(&m, u);
        }
        watch(&m, MK_CTL_COMPUTE, look_tile(&m) == 1, false);
        watch(&m, MK_CTL_COMM, look_comm(&m) == 1, false);
        turn++;
        if (!m.events)
            break;
        happen(&m, pop(&m));
    }
    r->time = m.now;
    r->ended = !m.s.left[0] && !m.s.left[1];
}

/* ---- traces ---- */

static void fill(uint32_t *to, uint32_t n, uint64_t mean, uint32_t spread, uint64_t *seed)
{
    for (uint32_t i = 0; i < n; i++) /* mean +- spread percent */
        to[i] = (uint32_t)(mean * (100 - spread + sim_random(seed, 2 * spread + 1)) / 100);
}
/* Some few tasks take up to a hundred times as long. */
static void stall(uint32_t *to, uint32_t n, uint64_t *seed)
{
    for (uint32_t k = 1 + n / 200; k; k--)
        to[sim_random(seed, n)] *= 10 + sim_random(seed, 90);
}
/* From one place on everything is slower or faster. */
static void burst(uint32_t *to, uint32_t n, uint64_t *seed)
{
    const uint32_t by = 1 + sim_random(seed, 16), from = n / 5 + sim_random(seed, n / 3 + 1),
                   till = sim_random(seed, 2) ? n : from + n / 4;
    for (uint32_t i = from; i < n && i < till; i++)
        to[i] = (uint32_t)((uint64_t)to[i] * by / 4);
}

static void disturb(struct sim_trace *t, uint64_t tile, uint32_t n, uint64_t *s)
{
    const uint32_t odd = sim_random(s, 8);
    if (odd == 1)
        stall(t->tile, n, s);
    if (odd == 2)
        stall(t->send, t->chunks, s);
    if (odd == 3 || odd == 4)
        burst(odd == 3 ? t->tile : t->recv, odd == 3 ? n : t->chunks, s);
    if (odd == 4)
        burst(t->link, t->chunks, s);
    if (odd == 5)
        memset(sim_random(s, 2) ? t->send : t->recv, 0, sizeof(uint32_t) * t->chunks);
    if (odd == 5 && !sim_random(s, 3))
        memset(t->tile, 0, sizeof(uint32_t) * n);
    if (odd == 6) {
        t->pause_at = sim_random(s, (uint32_t)(tile * n / t->units) | 1);
        t->pause_for = tile * sim_random(s, 20);
    }
    if (odd == 7)
        t->peer_late = tile * sim_random(s, 20);
}

static uint32_t *times(uint32_t n, uint64_t mean, uint32_t spread, uint64_t *s)
{
    uint32_t *p = malloc(sizeof(uint32_t) * n);
    fill(p, n, mean, spread, s);
    return p;
}

void sim_make(struct sim_trace *t, uint64_t seed, bool steady)
{
    uint64_t x = seed * 0xd1342543de82ef95ull + 1, *s = &x;
    memset(t, 0, sizeof(*t));
    t->units = t->resident = 2 + sim_random(s, sim_random(s, 4) || steady ? 24 : SIM_UNITS - 1);
    t->ceiling = sim_random(s, 4) ? (t->units + 1) / 2 : 1 + sim_random(s, t->units);
    t->per = 1 + sim_random(s, 6);
    const uint32_t waves = steady ? 50 + sim_random(s, 30) : 2 + sim_random(s, 40);
    t->chunks = (t->units * waves + t->per - 1) / t->per;
    t->chunks = t->chunks < SIM_CHUNKS ? t->chunks : SIM_CHUNKS;
    const uint32_t n = t->chunks * t->per, spread = sim_random(s, 40);
    const uint64_t tile = 5000 + sim_random(s, 60000), all = tile * n;
    /* percent: of communication in all work, of the link's time in that of all tiles */
    const uint32_t share = 1 + sim_random(s, 50), ratio = sim_random(s, 5) ? 20 + sim_random(s, 180) : 1;
    t->gather = !sim_random(s, 6);
    t->inside = !sim_random(s, 5);
    t->credits = 2 + sim_random(s, 30);
    t->latency = 1000 + sim_random(s, 30000);
    t->switch_cost = tile / 100 * sim_random(s, 20);
    t->patience = tile / 4 * (1 + sim_random(s, 12));
    const uint64_t comm = all * share / (100 - share) / t->chunks / 2; /* a task's */
    const uint32_t lean = 50 + sim_random(s, 100);                     /* send : receive */
    t->tile = times(n, tile, spread, s);
    t->send = times(t->chunks, comm * lean / 100, spread, s);
    t->recv = times(t->chunks, comm * (200 - lean) / 100, spread, s);
    t->link = times(t->chunks, all / t->units * ratio / 100 / t->chunks, 2, s);
    if (!steady)
        disturb(t, tile, n, s);
}

void sim_free(struct sim_trace *t)
{
    free(t->tile);
    free(t->send);
    free(t->recv);
    free(t->link);
}
