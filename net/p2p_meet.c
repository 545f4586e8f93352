/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* How two devices meet: state machines that are driven by connect and accept, a step or none a call.
 *
 *   connecting side                        accepting side
 *   DIAL  TCP to the handle's address
 *   SAY   hello                      ->    HEAR  checked; a stranger is refused with one logged reason
 *                                          LINK  its link is connected, memory imported
 *   HEAR  reply                      <-    SAY
 *   LINK
 *   WARM  first put                  ->    WARM  first put back
 *   one byte over TCP: met           <->   one byte over TCP: met
 *
 * The first puts make the network's own connection while both sides are at it: later a put completes although the peer
 * is busy elsewhere. They may fail, or get lost, where an earlier connection between the two devices broke, since some
 * networks notice that by the next write: then the meeting begins anew. What the two have shown each other in the old one
 * stays until both know of its end, since they may be writing there: who ends it waits until its own words have arrived,
 * then shuts its half of the TCP connection, and gives all back when the other half ends. Otherwise the TCP connection ends, or stays as witness
 * (p2p_life.c). */
#include "boot_sock.h"
#include "boot_wire.h"
#include "engine.h"
#include "mk/err.h"
#include "mk/log.h"
#include "p2p.h"
#include "p2p_sock.h"
#include "rlimits.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PENDING_MAX 32 /* connections that have not said hello yet, a listener */
#define REFUSALS_SAID 8u
#define SAY_EVERY_NS 30000000000ull
#define PATIENCE_NS 500000000ull /* in WARM, the first time */

#define AGAIN_TIMES 4 /* MK_TIMEOUT */
#define BROKEN 1      /* the link broke in WARM */

enum step { DIAL, SAY, HEAR, LINK, WARM, MET };

struct mk_p2p_meet {
    struct mk_p2p_meet *next;
    struct mk_p2p *p;
    bool connects;
    enum step step;
    int fd;
    uint64_t id, deadline, said_ns;
    size_t done; /* bytes of the message under way */
    struct mk_p2p_handle handle;
    struct mk_p2p_hello hello;
    struct mk_p2p_reply reply;
    struct mk_p2p_comm *comm;
    struct mk_p2p_witness *witness;
    bool warmed, said;
    uint64_t patience_ns, warm_ns; /* of WARM: how long, since when */
    uint64_t broken_ns;            /* when the link broke for the first time */
    char name[80];
};

struct mk_p2p_listener {
    struct mk_p2p_listener *next;
    struct mk_p2p *p;
    int fd;
    struct mk_p2p_handle handle;
    struct mk_p2p_meet *meets;
    int nmeets;
    uint64_t full_ns; /* since when no descriptor is free for a connection; 0: one is */
};

static uint64_t check_of(const struct mk_p2p_handle *h)
{
    return mk_boot_hash(h, offsetof(struct mk_p2p_handle, check));
}

static struct mk_p2p_meet *meet_new(struct mk_p2p *p, bool connects)
{
    struct mk_p2p_meet *m = calloc(1, sizeof(*m));
    if (!m)
        return NULL;
    m->p = p;
    m->connects = connects;
    m->fd = -1;
    m->id = mk_boot_random();
    m->said_ns = mk_time_ns();
    m->deadline = m->said_ns + p->timeout_ns;
    m->patience_ns = PATIENCE_NS;
    m->step = connects ? DIAL : HEAR;
    return m;
}

/* Ends what there is of it. Who accepts writes where it was written to, so nothing comes before our first put. */
static void meet_end(struct mk_p2p_meet *m)
{
    if (m->comm && (m->connects ? m->warmed : m->step >= WARM)) {
        mk_p2p_comm_leave(m->comm, m->fd);
    } else {
        mk_p2p_comm_free(m->comm);
        mk_boot_fd_close(m->fd);
    }
    mk_p2p_witness_put(m->p, m->witness);
    m->comm = NULL;
    m->witness = NULL;
    m->fd = -1;
}

static void meet_free(struct mk_p2p_meet *m)
{
    meet_end(m);
    free(m);
}

static void meets_free(struct mk_p2p_meet **list)
{
    while (*list) {
        struct mk_p2p_meet *m = *list;
        *list = m->next;
        meet_free(m);
    }
}

void mk_p2p_meets_close(struct mk_p2p *p)
{
    meets_free(&p->meets);
}

static void fill_side(const struct mk_p2p *p, struct mk_p2p_side *s)
{
    snprintf(s->name, sizeof(s->name), "process %d on %s", (int)getpid(), p->host);
}

static int next_step(struct mk_p2p_meet *m, enum step step)
{
    m->step = step;
    m->done = 0;
    return 0;
}

/* ---- steps of both sides ---- */

/* What the other side says of itself makes no sense, or something is missing here. Who accepts says so when it refuses. */
static int no_link(struct mk_p2p_meet *m, int ret)
{
    char text[300];
    ret = mk_p2p_no_files(ret == MK_ERR_INVALID ? MK_ERR_PEER : ret, 0);
    snprintf(text, sizeof(text), "%s", mk_last_error());
    return m->connects ? mk_fail(ret, "NET", "connecting to %s: %s", m->comm->name, text) : ret;
}

static int do_link(struct mk_p2p_meet *m, const struct mk_p2p_side *peer)
{
    const struct mk_p2p_side *mine = m->connects ? &m->hello.side : &m->reply.side;
    int ret = mk_p2p_rails_agree(m->comm, mine, peer);
    if (!ret)
        ret = mk_link_connect(m->comm->l, &peer->addr);
    if (!ret)
        ret = mk_p2p_rails_connect(m->comm, peer);
    if (ret == MK_ERR_AGAIN) {
        mk_p2p_progress(m->p);
        return ret;
    }
    if (!ret)
        ret = mk_p2p_comm_join(m->comm, peer);
    return ret ? no_link(m, ret) : next_step(m, m->connects ? WARM : SAY);
}

static int warm_put(struct mk_p2p_meet *m)
{
    m->warmed = true;
    return mk_p2p_rails_warm(m->comm);
}

/* The accepting side's first put answers the other one: two at a time would make two connections of the network.
 * Then bytes over TCP, from the accepting side and back: neither takes the comm for met before the other one may. */
static int do_warm(struct mk_p2p_meet *m)
{
    struct mk_p2p_comm *c = m->comm;
    const bool heard = mk_p2p_warm(c);
    size_t said = 0;
    char byte = 'm';
    if (!m->warmed && (m->connects || heard) && warm_put(m))
        return BROKEN;
    mk_p2p_progress(m->p);
    if (mk_p2p_link_error(c, NULL))
        return BROKEN;
    const bool warm = heard && m->warmed && !c->control;
    if (warm && !m->connects && !m->said) {
        m->said = true;
        mk_p2p_sock_send(m->fd, &byte, 1, &said);
    }
    const int ret = mk_p2p_sock_recv(m->fd, &byte, 1, &m->done);
    if (ret && ret != MK_ERR_AGAIN)
        return BROKEN;
    if (ret || !warm)
        return MK_ERR_AGAIN;
    if (m->connects && mk_p2p_sock_send(m->fd, &byte, 1, &said))
        return BROKEN;
    return next_step(m, MET);
}

/* From the beginning, on the connecting side; not for ever, and with no descriptor left not for longer than MK_TIMEOUT
 * since it broke for the first time. (Where both sides have lost a connection, some providers need several tries.) */
static int again(struct mk_p2p_meet *m)
{
    const uint64_t now = mk_time_ns();
    char text[200] = "the first words over it got lost";
    m->broken_ns = m->broken_ns ? m->broken_ns : now;
    if (now - m->broken_ns > (mk_limits_no_files() ? 1 : AGAIN_TIMES) * m->p->timeout_ns) {
        mk_p2p_link_error(m->comm, text);
        return mk_p2p_no_files(mk_fail(MK_ERR_TIMEOUT, "NET",
                                       "the connection to %s broke again and again for %.0f s: %s",
                                       m->comm->name, (double)(now - m->broken_ns) * 1e-9, text),
                               0);
    }
    meet_end(m);
    m->warmed = false;
    memset(&m->reply, 0, sizeof(m->reply));
    next_step(m, DIAL);
    return MK_ERR_AGAIN;
}

/* Takes the comm out of a meeting that is over. */
static int take_comm(struct mk_p2p_meet *m, struct mk_p2p_comm **out)
{
    struct mk_p2p_comm *c = m->comm;
    if (m->reply.keep) {
        c->witness =
            mk_p2p_witness_new(m->p, m->connects ? m->handle.token : m->hello.token, m->reply.witness, m->fd);
        if (!c->witness)
            return mk_fail(MK_ERR_NOMEM, "NET", "a connection to %s", c->name);
        m->fd = -1;
    } else {
        c->witness = m->witness;
        m->witness = NULL;
    }
    m->comm = NULL;
    mk_p2p_rails_quiet(c, false);
    mk_p2p_comm_add(c);
    *out = c;
    return 0;
}

/* ---- connecting ---- */

static int check_handle(const struct mk_p2p_handle *h)
{
    if (h->magic != MK_P2P_MAGIC)
        return mk_fail(
            MK_ERR_INVALID, "NET",
            "the peer's handle is not one of this plugin: it runs another network plugin of NCCL, which must "
            "be the same on all ranks");
    if (h->version != MK_P2P_VERSION)
        return mk_fail(MK_ERR_INVALID, "NET",
                       "the peer's handle is of version %u of this plugin's protocol, here it is %u",
                       h->version, MK_P2P_VERSION);
    if (h->check != check_of(h))
        return mk_fail(MK_ERR_INVALID, "NET", "the peer's handle is damaged");
    return 0;
}

static int do_dial(struct mk_p2p_meet *m)
{
    struct mk_p2p *p = m->p;
    struct mk_p2p_hello *h = &m->hello;
    int ret = 0;
    if (m->fd < 0)
        ret = mk_p2p_sock_dial(&m->handle, &m->fd, m->name);
    if (!ret)
        ret = mk_p2p_sock_dialled(m->fd);
    if (ret == MK_ERR_AGAIN || ret == MK_ERR_INVALID)
        return ret;
    if (ret)
        return mk_fail(errno == ECONNREFUSED ? MK_ERR_PEER : MK_ERR_SYSTEM, "NET",
                       "connecting to process %d at %s: %s", m->handle.pid, m->name, strerror(errno));
    char who[64];
    snprintf(who, sizeof(who), "process %d at %.40s", m->handle.pid, m->name);
    ret = mk_p2p_comm_new(p, true, who, NULL, &h->side, &m->comm);
    if (ret)
        return mk_p2p_no_files(ret, 0);
    mk_p2p_rails_quiet(m->comm, true);
    const struct mk_caps *caps = p->info.caps;
    h->magic = MK_P2P_MAGIC;
    h->version = MK_P2P_VERSION;
    h->size = sizeof(*h);
    h->key = m->handle.key;
    h->token = p->token;
    snprintf(h->plugin, sizeof(h->plugin), "%s", MK_P2P_PLUGIN);
    memcpy(h->transport, caps->transport, sizeof(h->transport));
    memcpy(h->provider, caps->provider, sizeof(h->provider));
    memcpy(h->adapter, caps->adapter, sizeof(h->adapter));
    fill_side(p, &h->side);
    if (m->handle.token != p->token)
        m->witness = mk_p2p_witness_find(p, m->handle.token, 0);
    h->witness = m->witness ? m->witness->id : 0;
    return next_step(m, SAY);
}

static int hear_reply(struct mk_p2p_meet *m)
{
    struct mk_p2p_reply *r = &m->reply;
    int ret = mk_p2p_sock_recv(m->fd, r, sizeof(*r), &m->done);
    if (m->done >= 16 && (r->magic != MK_P2P_MAGIC || r->version != MK_P2P_VERSION || r->size != sizeof(*r)))
        return mk_fail(MK_ERR_MISMATCH, "NET",
                       "%s answers in another way: another plugin, or another version of this one",
                       m->comm->name);
    if (ret == MK_ERR_PEER)
        return mk_fail(MK_ERR_PEER, "NET", "%s closed the connection instead of answering", m->comm->name);
    if (ret)
        return ret;
    r->text[sizeof(r->text) - 1] = 0;
    r->side.name[sizeof(r->side.name) - 1] = 0;
    if (r->code)
        return mk_fail(r->code < MK_ERR_AGAIN && r->code >= MK_ERR_INTERNAL ? r->code : MK_ERR_PEER, "NET",
                       "%s refuses the connection: %s", m->comm->name, r->text);
    if (r->keep) {
        mk_p2p_witness_put(m->p, m->witness);
        m->witness = NULL;
    }
    snprintf(m->comm->name, sizeof(m->comm->name), "%s", r->side.name);
    m->deadline = mk_time_ns() + m->p->timeout_ns;
    return next_step(m, LINK);
}

/* A listener that is alive and does not accept: as patient as NCCL, but not in silence. */
static void say_waiting(struct mk_p2p_meet *m, uint64_t now)
{
    if (now - m->said_ns < SAY_EVERY_NS)
        return;
    m->said_ns = now;
    MK_WARN("NET", "still waiting until %s accepts the connection", m->comm->name);
}

static int drive_connect(struct mk_p2p_meet *m)
{
    int ret = 0;
    while (!ret && m->step != MET) {
        if (m->step == DIAL)
            ret = do_dial(m);
        else if (m->step == SAY)
            ret = mk_p2p_sock_send(m->fd, &m->hello, sizeof(m->hello), &m->done),
            ret = ret ? ret : next_step(m, HEAR);
        else if (m->step == HEAR)
            ret = hear_reply(m);
        else if (m->step == LINK)
            ret = do_link(m, &m->reply.side);
        else
            ret = do_warm(m);
    }
    const uint64_t now = mk_time_ns();
    if (m->step == WARM && ret == MK_ERR_AGAIN) {
        m->warm_ns = m->warm_ns ? m->warm_ns : now;
        if (now - m->warm_ns > m->patience_ns) {
            m->patience_ns *= 2;
            ret = BROKEN;
        }
    } else {
        m->warm_ns = 0;
    }
    if (ret == BROKEN) {
        m->warm_ns = 0;
        ret = again(m);
    }
    if (ret != MK_ERR_AGAIN)
        return ret;
    if (m->step == HEAR)
        say_waiting(m, now);
    else if (now > m->deadline)
        return mk_fail(MK_ERR_TIMEOUT, "NET",
                       "connecting to process %d at %s took longer than MK_TIMEOUT (%g s)", m->handle.pid,
                       m->name, m->p->s.timeout);
    return MK_ERR_AGAIN;
}

static int connect_locked(struct mk_p2p *p, struct mk_p2p_handle *h, struct mk_p2p_comm **out)
{
    struct mk_p2p_meet **at = &p->meets;
    int ret = check_handle(h);
    if (ret)
        return ret;
    if (!h->meet) {
        struct mk_p2p_meet *m = meet_new(p, true);
        if (!m)
            return mk_fail(MK_ERR_NOMEM, "NET", "connecting");
        m->handle = *h;
        m->next = p->meets;
        p->meets = m;
        h->meet = m->id;
    }
    while (*at && (*at)->id != h->meet)
        at = &(*at)->next;
    struct mk_p2p_meet *m = *at;
    if (!m)
        return mk_fail(MK_ERR_INVALID, "NET", "the handle belongs to no connection that is being made");
    ret = drive_connect(m);
    if (ret == MK_ERR_AGAIN)
        return ret;
    if (!ret)
        ret = take_comm(m, out);
    *at = m->next;
    meet_free(m);
    h->meet = 0;
    return ret;
}

int mk_p2p_connect(struct mk_p2p *p, uint8_t handle[MK_P2P_HANDLE], struct mk_p2p_comm **out)
{
    struct mk_p2p_handle h;
    memcpy(&h, handle, sizeof(h));
    mk_p2p_lock(p);
    const int ret = connect_locked(p, &h, out);
    pthread_mutex_unlock(&p->lock);
    memcpy(handle, &h, sizeof(h));
    return ret;
}

/* ---- accepting ---- */

static void say_refused(struct mk_p2p *p, const char *who, const char *why)
{
    if (p->refused < REFUSALS_SAID)
        MK_WARN("NET", "refused a connection from %s: %s%s", who, why,
                p->refused + 1 == REFUSALS_SAID ? " (further ones are not mentioned)" : "");
    p->refused++;
}

static void fill_reply(struct mk_p2p_meet *m, int code, const char *text)
{
    struct mk_p2p_reply *r = &m->reply;
    r->magic = MK_P2P_MAGIC;
    r->version = MK_P2P_VERSION;
    r->size = sizeof(*r);
    r->key = m->hello.key;
    r->code = code;
    snprintf(r->plugin, sizeof(r->plugin), "%s", MK_P2P_PLUGIN);
    snprintf(r->text, sizeof(r->text), "%s", text);
    fill_side(m->p, &r->side);
}

/* Says so to the other side, if it speaks our language, and ends the meeting. */
static int refuse(struct mk_p2p_meet *m, int code, const char *text)
{
    size_t done = 0;
    say_refused(m->p, m->name, text);
    fill_reply(m, code, text);
    mk_p2p_sock_send(m->fd, &m->reply, sizeof(m->reply), &done);
    return code;
}

static int check_hello(struct mk_p2p_meet *m, const struct mk_p2p_listener *l)
{
    const struct mk_p2p_hello *h = &m->hello;
    const struct mk_caps *caps = m->p->info.caps;
    char text[200];
    if (h->key != l->handle.key)
        return refuse(m, MK_ERR_INVALID, "it does not know this listener's key");
    if (strncmp(h->plugin, MK_P2P_PLUGIN, sizeof(h->plugin)))
        return refuse(m, MK_ERR_MISMATCH, "it is another plugin");
    if (h->side.ports < 1 || h->side.ports > h->side.rails || h->side.rails > MK_P2P_RAILS ||
        h->side.rails % h->side.ports)
        return refuse(m, MK_ERR_PEER, "its number of rails makes no sense");
    const bool cards = !strcmp(caps->transport, "verbs"); /* their names differ from host to host */
    if (!strncmp(h->transport, caps->transport, sizeof(h->transport)) &&
        (cards || !strncmp(h->provider, caps->provider, sizeof(h->provider))) &&
        !strncmp(h->adapter, caps->adapter, sizeof(h->adapter)))
        return 0;
    snprintf(text, sizeof(text), "it uses %.15s, %.40s, completion by %.15s; here: %.15s, %.40s, %.15s",
             h->transport, h->provider, h->adapter, caps->transport, caps->provider, caps->adapter);
    return refuse(m, MK_ERR_MISMATCH, text);
}

/* The witness that the other side proposes, or this connection becomes one. */
static void choose_witness(struct mk_p2p_meet *m)
{
    const struct mk_p2p_hello *h = &m->hello;
    if (h->token == m->p->token)
        return;
    if (h->witness)
        m->witness = mk_p2p_witness_find(m->p, h->token, h->witness);
    m->reply.keep = !m->witness;
    m->reply.witness = m->witness ? m->witness->id : mk_boot_random();
}

static int hear_hello(struct mk_p2p_meet *m, const struct mk_p2p_listener *l)
{
    struct mk_p2p_hello *h = &m->hello;
    int ret = mk_p2p_sock_recv(m->fd, h, sizeof(*h), &m->done);
    if (m->done && memcmp(&h->magic, &(const uint64_t){MK_P2P_MAGIC}, m->done < 8 ? m->done : 8)) {
        say_refused(m->p, m->name, "it does not speak this plugin's protocol");
        return MK_ERR_PEER;
    }
    if (m->done >= 16 && (h->version != MK_P2P_VERSION || h->size != sizeof(*h)))
        return refuse(m, MK_ERR_MISMATCH, "it is another version of this plugin");
    if (ret == MK_ERR_PEER) {
        say_refused(m->p, m->name, m->done ? "it broke off" : "it closed without a word");
        return ret;
    }
    if (ret)
        return ret;
    h->side.name[sizeof(h->side.name) - 1] = 0;
    ret = check_hello(m, l);
    if (ret)
        return ret;
    ret = mk_p2p_comm_new(m->p, false, h->side.name, &h->side, &m->reply.side, &m->comm);
    if (ret) {
        ret = mk_p2p_no_files(ret, 0);
        return refuse(m, ret, mk_last_error());
    }
    mk_p2p_rails_quiet(m->comm, true);
    fill_reply(m, 0, "");
    choose_witness(m);
    m->deadline = mk_time_ns() + m->p->timeout_ns;
    return next_step(m, LINK);
}

static int drive_accept(struct mk_p2p_meet *m, const struct mk_p2p_listener *l)
{
    int ret = 0;
    while (!ret && m->step != MET) {
        const enum step step = m->step;
        if (step == HEAR)
            ret = hear_hello(m, l);
        else if (step == LINK)
            ret = do_link(m, &m->hello.side);
        else if (step == SAY)
            ret = mk_p2p_sock_send(m->fd, &m->reply, sizeof(m->reply), &m->done),
            ret = ret ? ret : next_step(m, WARM);
        else
            ret = do_warm(m);
        if (step == LINK && ret && ret != MK_ERR_AGAIN)
            return refuse(m, ret, mk_last_error());
    }
    if (ret != MK_ERR_AGAIN || mk_time_ns() <= m->deadline)
        return ret;
    say_refused(m->p, m->name,
                m->step == HEAR ? "it said nothing within MK_TIMEOUT" : "it did not go on within MK_TIMEOUT");
    return m->step == HEAR ? MK_ERR_TIMEOUT : mk_p2p_no_files(MK_ERR_TIMEOUT, 0);
}

/* A connection waits, or may wait, and no descriptor is free for it: others may give some back, but not for ever. */
static int no_room(struct mk_p2p_listener *l)
{
    const uint64_t now = mk_time_ns();
    if (l->full_ns && now - l->full_ns <= l->p->timeout_ns)
        return MK_ERR_AGAIN;
    const int ret = mk_p2p_no_files(MK_ERR_SYSTEM, EMFILE);
    if (l->full_ns)
        return ret;
    l->full_ns = now;
    return MK_ERR_AGAIN;
}

static int take_in(struct mk_p2p_listener *l)
{
    while (l->nmeets < PENDING_MAX) {
        char name[80];
        const int fd = mk_p2p_sock_accept(l->fd, name);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE))
            return no_room(l);
        l->full_ns = 0;
        if (fd < 0)
            return MK_ERR_AGAIN;
        struct mk_p2p_meet *m = meet_new(l->p, false);
        if (!m) {
            mk_boot_fd_close(fd);
            return MK_ERR_AGAIN;
        }
        m->fd = fd;
        memcpy(m->name, name, sizeof(m->name));
        m->next = l->meets;
        l->meets = m;
        l->nmeets++;
    }
    return MK_ERR_AGAIN;
}

static int accept_locked(struct mk_p2p_listener *l, struct mk_p2p_comm **out)
{
    int ret = take_in(l);
    for (struct mk_p2p_meet **at = &l->meets, *m; ret == MK_ERR_AGAIN && (m = *at);) {
        int now = drive_accept(m, l);
        if (now == MK_ERR_AGAIN) {
            at = &m->next;
            continue;
        }
        if (!now)
            ret = take_comm(m, out);
        else if (now == MK_ERR_SYSTEM || now == MK_ERR_NOMEM)
            ret = now; /* the right one was turned away for want of something here: it does not come again */
        *at = m->next;
        meet_free(m);
        l->nmeets--;
    }
    return ret;
}

int mk_p2p_accept(struct mk_p2p_listener *l, struct mk_p2p_comm **out)
{
    mk_p2p_lock(l->p);
    const int ret = accept_locked(l, out);
    pthread_mutex_unlock(&l->p->lock);
    return ret;
}

/* ---- listening ---- */

int mk_p2p_listen(struct mk_p2p *p, uint8_t handle[MK_P2P_HANDLE], struct mk_p2p_listener **out)
{
    struct mk_p2p_listener *l = calloc(1, sizeof(*l));
    if (!l)
        return mk_fail(MK_ERR_NOMEM, "NET", "a listener");
    struct mk_p2p_handle *h = &l->handle;
    const int ret = mk_p2p_sock_listen(&p->s, h, &l->fd);
    if (ret) {
        free(l);
        return ret;
    }
    l->p = p;
    h->magic = MK_P2P_MAGIC;
    h->version = MK_P2P_VERSION;
    snprintf(h->plugin, sizeof(h->plugin), "%s", MK_P2P_PLUGIN);
    h->pid = (int32_t)getpid();
    h->key = mk_boot_random();
    h->token = p->token;
    h->check = check_of(h);
    mk_p2p_lock(p);
    l->next = p->listeners;
    p->listeners = l;
    pthread_mutex_unlock(&p->lock);
    memcpy(handle, h, sizeof(*h));
    *out = l;
    return 0;
}

static void listener_free(struct mk_p2p_listener *l)
{
    meets_free(&l->meets);
    mk_boot_fd_close(l->fd);
    free(l);
}

void mk_p2p_listeners_close(struct mk_p2p *p)
{
    while (p->listeners) {
        struct mk_p2p_listener *l = p->listeners;
        p->listeners = l->next;
        listener_free(l);
    }
}

void mk_p2p_listen_close(struct mk_p2p_listener *l)
{
    if (!l)
        return;
    struct mk_p2p *p = l->p;
    mk_p2p_lock(p);
    struct mk_p2p_listener **at = &p->listeners;
    while (*at && *at != l)
        at = &(*at)->next;
    if (*at) {
        *at = l->next;
        listener_free(l);
    }
    pthread_mutex_unlock(&p->lock);
}
