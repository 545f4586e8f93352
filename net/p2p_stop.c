/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Memory that is taken back while messages use it. A card ends all access with the registration. Software networks do
 * not (mk_caps.late_writes): one that has begun to write goes on, into what may be somebody else's memory by then.
 *
 *   receiver   STOP to the sender, whose STOPPED comes behind all that it wrote; only then the key is given up. The
 *              connection of the network, which other comms use too, never sees a key that is gone
 *   sender     what was handed to the network leaves the source first
 *
 * A peer that is alive answers within microseconds. Nobody waits for another one longer than STOP_NS, nor for one that
 * was given up already: where the network has a means to, its connections are cut then, those of other comms and of other processes at its address too. Where it
 * has none (provider shm), what the peer does later is written. */
#include "engine.h"
#include "boot_sock.h"
#include "mk/err.h"
#include "mk/log.h"
#include "p2p.h"

/* How long a peer may take to stop, and after it has ended. */
#define STOP_NS 500000000ull
#define STOP_GONE_NS 20000000ull

bool mk_p2p_uses(const struct mk_p2p_comm *c, const struct mk_p2p_mr *m)
{
    for (int i = 0; c->tx && i < MK_P2P_SENDS; i++) {
        const struct mk_p2p_send *s = &c->tx->req[i];
        if (s->mr && (!m || s->mr == m) && (s->base.left || s->waiting))
            return true;
    }
    if (!c->rx || c->stopped)
        return false;
    for (const struct mk_p2p_req *q = c->rx->open_first; q; q = q->next)
        for (int i = 0; i < q->n; i++) {
            const struct mk_p2p_sub *s = &((const struct mk_p2p_recv *)q)->sub[i];
            if (s->mr && (!m || s->mr == m) && s->state != MK_P2P_RECEIVED)
                return true;
        }
    return false;
}

/* Is something of it with the network, or with the peer? */
static bool reaches(const struct mk_p2p_comm *c, const struct mk_p2p_mr *m)
{
    for (int i = 0; c->tx && i < MK_P2P_SENDS; i++) {
        const struct mk_p2p_send *s = &c->tx->req[i];
        if (s->mr && (!m || s->mr == m) && s->base.left)
            return true;
    }
    return c->rx && c->rx->open && !c->stopped;
}

bool mk_p2p_broken(const struct mk_p2p_comm *c)
{
    bool all = true;
    for (unsigned r = 0; r < c->nrails; r++) {
        const struct mk_link *l = r ? c->rail[r - 1].l : c->l;
        const int error = l ? mk_link_error(l, NULL) : MK_ERR_ABORTED;
        all = all && error && error != MK_ERR_TIMEOUT;
    }
    return all;
}

static int note(struct mk_p2p_comm *c, uint32_t which)
{
    const struct mk_put put = {.note = which, .use4 = 1, .value = 1, .id = MK_P2P_ID_CONTROL};
    return mk_p2p_put(c, &put, 1);
}

/* Drives the network until nothing reaches the memory. */
static bool settle(struct mk_p2p_comm *c, const struct mk_p2p_mr *m)
{
    struct mk_p2p *p = c->p;
    uint64_t now = mk_time_ns();
    /* given up: nothing can be asked any more */
    const bool mute = c->rx ? mk_link_error(c->l, NULL) != 0 : mk_p2p_mute(c);
    uint64_t end = now < p->rush_ns || mute ? now : now + STOP_NS;
    bool gone = false;
    if (c->rx && !mute && note(c, MK_P2P_SEND_STOP))
        return mk_p2p_broken(c);
    do {
        mk_p2p_ports_progress(p);
        mk_p2p_stops(p);
        if (c->rx && !mute)
            c->stopped = mk_p2p_flag(c, MK_P2P_RECV_STOPPED) || mk_p2p_life(c) >= MK_P2P_LIFE_CLOSED;
        if (!reaches(c, m) || mk_p2p_broken(c))
            return true;
        now = mk_time_ns();
        if (!gone && c->witness && mk_p2p_witness_gone(c->witness, now)) {
            gone = true;
            end = now + STOP_GONE_NS;
        }
    } while (now < end);
    if (!mute) /* it cost time */
        p->rush_ns = now + STOP_NS;
    return gone;
}

/* A receiver whose peer is alive and silent: it may be in the middle of a message. A sender's memory is only read. */
static void cut_off(struct mk_p2p_comm *c)
{
    if (!c->rx)
        return;
    bool cut = mk_link_cut(c->l);
    for (unsigned r = 1; r < c->nrails; r++)
        cut = mk_link_cut(c->rail[r - 1].l) && cut;
    if (cut)
        MK_WARN(
            "NET",
            "%s does not answer, and may be in the middle of a message to memory that is deregistered here: "
            "all connections with its address are cut",
            c->name);
    else
        MK_WARN(
            "NET",
            "%s does not answer; should it be in the middle of a message, and go on with it later, memory "
            "that was deregistered here may be written",
            c->name);
}

/* What was not handed to the network never will be. */
static void drop_waiting(struct mk_p2p_tx *tx)
{
    for (struct mk_p2p_req *r = tx->wait_first; r; r = r->next)
        ((struct mk_p2p_send *)r)->waiting = false;
    tx->wait_first = NULL;
    tx->wait_last = &tx->wait_first;
}

void mk_p2p_stop(struct mk_p2p_comm *c, const struct mk_p2p_mr *m)
{
    bool quiet = c->p->info.caps->late_writes; /* else the link's end takes the memory back */
    if (!c->error)
        c->error = mk_fail_quiet(MK_ERR_ABORTED, "memory in use was deregistered");
    if (c->tx)
        drop_waiting(c->tx);
    if (!c->l)
        return;
    if (quiet && reaches(c, m) && !mk_p2p_broken(c)) {
        quiet = settle(c, m);
        if (!quiet)
            cut_off(c);
    }
    if (c->rx)
        c->stopped = true;
    if (quiet)
        return; /* the link stays, for the good-byes */
    mk_p2p_rails_shut(c);
    mk_link_close(c->l);
    c->l = NULL;
}

void mk_p2p_stops(struct mk_p2p *p)
{
    for (struct mk_p2p_comm *c = p->comms; c; c = c->next) {
        if (!c->tx || c->stopped || !mk_p2p_flag(c, MK_P2P_SEND_STOP) || !c->l || mk_link_error(c->l, NULL))
            continue;
        mk_p2p_comm_fail(c, MK_ERR_PEER, "%s takes its memory back, and closes the connection", c->name);
        if (mk_p2p_pending(c))
            continue;
        c->stopped = true;
        note(c, MK_P2P_RECV_STOPPED);
    }
}
