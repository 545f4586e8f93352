/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The root service without its sockets: connections, hellos, answers. What happens among members (all-gather,
 * events, good-byes) is in boot_job.c. */
#include "boot_job.h"
#include "mk/log.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STRANGERS = 64, STRANGERS_UNKNOWN = 1088, LOG_LINES = 200 };

int mk_boot_core_new(const struct mk_boot_core_config *cfg, uint64_t now, struct mk_boot_core **out)
{
    struct mk_boot_core *c = calloc(1, sizeof(*c));
    if (!c)
        return MK_ERR_NOMEM;
    c->cfg = *cfg;
    c->root_rank = -1;
    c->meet_deadline = cfg->nranks && cfg->wait_ns ? now + cfg->wait_ns : UINT64_MAX;
    c->tail = &c->peers;
    if (cfg->nranks) {
        const int ret = mk_boot_job_size(c, cfg->nranks);
        if (ret) {
            free(c);
            return ret;
        }
    }
    *out = c;
    return 0;
}

static void peer_free(struct mk_boot_peer *p)
{
    while (p->out_first)
        mk_boot_peer_sent(p, p->out_first->blob->len - p->out_first->off);
    free(p->body);
    free(p);
}

void mk_boot_core_free(struct mk_boot_core *c)
{
    if (!c)
        return;
    while (c->peers) {
        struct mk_boot_peer *p = c->peers;
        c->peers = p->next;
        peer_free(p);
    }
    mk_boot_job_free(c);
    free(c);
}

struct mk_boot_peer *mk_boot_core_peers(struct mk_boot_core *c)
{
    return c->peers;
}

/* One line a stranger; a flood is cut, so that it cannot fill a disk. */
static void log_stranger(struct mk_boot_core *c, const struct mk_boot_peer *p, const char *why)
{
    if (c->lines++ < LOG_LINES)
        MK_WARN("NET", "refused a connection from %s: %s%s", p->name, why,
                c->lines == LOG_LINES ? " (further ones are not logged)" : "");
}

static void close_stranger(struct mk_boot_core *c, struct mk_boot_peer *p, const char *why)
{
    if (p->state == MK_BOOT_PEER_HELLO)
        log_stranger(c, p, why);
    p->state = MK_BOOT_PEER_CLOSED;
}

bool mk_boot_core_drop_oldest(struct mk_boot_core *c, const char *why)
{
    for (struct mk_boot_peer *p = c->peers; p; p = p->next) {
        if (p->state == MK_BOOT_PEER_HELLO || p->state == MK_BOOT_PEER_DRAIN) {
            close_stranger(c, p, why);
            return true;
        }
    }
    return false;
}

struct mk_boot_peer *mk_boot_core_accept(struct mk_boot_core *c, const char *name, uint64_t now)
{
    uint32_t strangers = 0;
    for (const struct mk_boot_peer *q = c->peers; q; q = q->next)
        strangers += q->state == MK_BOOT_PEER_HELLO || q->state == MK_BOOT_PEER_DRAIN;
    if (strangers >= (c->nranks ? STRANGERS + c->nranks : STRANGERS_UNKNOWN))
        mk_boot_core_drop_oldest(c, "too many connections that have not said hello");
    struct mk_boot_peer *p = calloc(1, sizeof(*p));
    if (!p)
        return NULL;
    p->fd = -1;
    p->rank = -1;
    p->state = MK_BOOT_PEER_HELLO;
    p->deadline = now + c->cfg.hello_ns;
    snprintf(p->name, sizeof(p->name), "%s", name);
    *c->tail = p;
    c->tail = &p->next;
    return p;
}

/* ---- bytes out ---- */

size_t mk_boot_peer_out(const struct mk_boot_peer *p, const uint8_t **buf)
{
    const struct mk_boot_out *o = p->out_first;
    if (!o || p->state == MK_BOOT_PEER_CLOSED)
        return 0;
    *buf = o->blob->data + o->off;
    return o->blob->len - o->off;
}

void mk_boot_peer_sent(struct mk_boot_peer *p, size_t n)
{
    struct mk_boot_out *o = p->out_first;
    o->off += n;
    if (o->off < o->blob->len)
        return;
    p->out_first = o->next;
    if (!p->out_first)
        p->out_last = NULL;
    mk_boot_blob_put(o->blob);
    free(o);
}

static void answer(struct mk_boot_peer *p, uint32_t kind, int code, const char *text)
{
    struct mk_boot_answer a;
    memset(&a, 0, sizeof(a));
    a.version = MK_BOOT_VERSION;
    a.kind = kind;
    a.code = code;
    a.length = (uint32_t)strnlen(text, MK_BOOT_MAX_TEXT);
    struct mk_boot_blob *b = mk_boot_blob_new(sizeof(a) + a.length);
    if (b) {
        mk_boot_put_answer(&a, b->data);
        memcpy(b->data + sizeof(a), text, a.length);
        mk_boot_peer_queue(p, b);
        mk_boot_blob_put(b);
    }
}

/* The stranger speaks our protocol: it is told why. */
static void refuse(struct mk_boot_core *c, struct mk_boot_peer *p, uint32_t kind, int code, const char *text)
{
    if (kind == MK_BOOT_REFUSE)
        log_stranger(c, p, text);
    answer(p, kind, code, text);
    p->state = MK_BOOT_PEER_DRAIN;
}

/* ---- hello ---- */

static void hello_late(struct mk_boot_core *c, struct mk_boot_peer *p, const struct mk_boot_hello *h)
{
    char text[MK_BOOT_MAX_TEXT + 1];
    if (!c->met) {
        refuse(c, p, MK_BOOT_REFUSE, c->event.code, c->event.text);
        return;
    }
    snprintf(text, sizeof(text), "an earlier job at this address is still ending (rank %u tries to join)",
             h->rank);
    refuse(c, p, MK_BOOT_BUSY, MK_ERR_TIMEOUT, text);
}

/* A rank that is here already. From the same process it is the next communicator of a program that is about to
 * destroy this one, or will time out; from another process it is a mistake of whoever started the job. */
static void hello_twice(struct mk_boot_core *c, struct mk_boot_peer *p, const struct mk_boot_hello *h)
{
    char text[MK_BOOT_MAX_TEXT + 1];
    const struct mk_boot_member *m = &c->members[h->rank];
    if (m->token == h->token) {
        snprintf(text, sizeof(text), "rank %u of this process is still in the job at this address", h->rank);
        refuse(c, p, MK_BOOT_BUSY, MK_ERR_INVALID, text);
        return;
    }
    snprintf(text, sizeof(text), "rank %u is in the job already, from another process (%s)", h->rank,
             m->peer ? m->peer->name : "gone");
    refuse(c, p, MK_BOOT_REFUSE, MK_ERR_INVALID, text);
}

static void hello_disagrees(struct mk_boot_core *c, struct mk_boot_peer *p, const struct mk_boot_hello *h,
                            uint64_t now)
{
    char text[MK_BOOT_MAX_TEXT + 1];
    snprintf(text, sizeof(text), "ranks disagree on the number of ranks: rank %u (%s) says %u, the others %u",
             h->rank, p->name, h->nranks, c->nranks);
    if (!c->met) /* harms itself and the job: nobody can know who is right */
        mk_boot_job_event(c, MK_ERR_MISMATCH, (int)h->rank, text, now);
    refuse(c, p, MK_BOOT_REFUSE, MK_ERR_MISMATCH, text);
}

static void hello(struct mk_boot_core *c, struct mk_boot_peer *p, const struct mk_boot_hello *h, uint64_t now)
{
    char text[MK_BOOT_MAX_TEXT + 1];
    if (h->key != c->cfg.key) {
        refuse(c, p, MK_BOOT_REFUSE, MK_ERR_MISMATCH,
               "it belongs to another job (another MK_JOB, or another unique id)");
        return;
    }
    c->hellos++;
    if (!h->nranks || h->nranks > MK_BOOT_MAX_RANKS || h->rank >= h->nranks) {
        snprintf(text, sizeof(text), "rank %u of %u is out of range", h->rank, h->nranks);
        refuse(c, p, MK_BOOT_REFUSE, MK_ERR_INVALID, text);
        return;
    }
    if (c->event.code || (c->met && c->gone)) {
        hello_late(c, p, h);
        return;
    }
    if (!c->nranks && mk_boot_job_size(c, h->nranks)) {
        refuse(c, p, MK_BOOT_REFUSE, MK_ERR_NOMEM, "the root has no memory");
        return;
    }
    if (h->nranks != c->nranks) {
        hello_disagrees(c, p, h, now);
        return;
    }
    if (c->members[h->rank].peer) {
        hello_twice(c, p, h);
        return;
    }
    answer(p, MK_BOOT_WELCOME, 0, "");
    p->state = MK_BOOT_PEER_MEMBER;
    p->head_have = 0;
    mk_boot_job_join(c, p, h, now);
}

static void feed_hello(struct mk_boot_core *c, struct mk_boot_peer *p, uint64_t now)
{
    char text[96];
    struct mk_boot_hello h;
    memset(&h, 0, sizeof(h));
    switch (mk_boot_parse_hello(p->head, p->head_have, &h)) {
    case MK_BOOT_MORE:
        return;
    case MK_BOOT_ALIEN:
        close_stranger(c, p, "it does not speak our protocol");
        return;
    case MK_BOOT_OTHER:
        snprintf(text, sizeof(text), "it speaks version %u of the protocol, this is version %u", h.version,
                 MK_BOOT_VERSION);
        refuse(c, p, MK_BOOT_REFUSE, MK_ERR_MISMATCH, text);
        return;
    case MK_BOOT_PARSED:
        hello(c, p, &h, now);
    }
}

/* Takes what is still missing of `want` bytes; true when they are all there. */
static bool fill(uint8_t *to, uint32_t *have, uint32_t want, const uint8_t **buf, size_t *n)
{
    size_t take = want - *have;
    if (take > *n)
        take = *n;
    memcpy(to + *have, *buf, take);
    *have += (uint32_t)take;
    *buf += take;
    *n -= take;
    return *have == want;
}

static void feed_member(struct mk_boot_core *c, struct mk_boot_peer *p, const uint8_t **buf, size_t *n,
                        uint64_t now)
{
    if (!p->body) {
        if (!fill(p->head, &p->head_have, sizeof(struct mk_boot_frame), buf, n))
            return;
        if (mk_boot_parse_frame(p->head, p->head_have, 1, c->nranks, &p->frame) != MK_BOOT_PARSED) {
            mk_boot_core_lost(c, p, "it sent something that is not in the protocol", now);
            return;
        }
        p->body_have = 0;
        p->body = malloc(p->frame.length ? p->frame.length : 1);
        if (!p->body) {
            mk_boot_core_lost(c, p, "the root has no memory for its message", now);
            return;
        }
    }
    if (!fill(p->body, &p->body_have, p->frame.length, buf, n))
        return;
    p->head_have = 0;
    mk_boot_job_frame(c, p, now);
    free(p->body);
    p->body = NULL;
}

void mk_boot_core_feed(struct mk_boot_core *c, struct mk_boot_peer *p, const uint8_t *buf, size_t n,
                       uint64_t now)
{
    while (n && (p->state == MK_BOOT_PEER_HELLO || p->state == MK_BOOT_PEER_MEMBER)) {
        if (p->state == MK_BOOT_PEER_MEMBER) {
            feed_member(c, p, &buf, &n, now);
        } else {
            fill(p->head, &p->head_have, sizeof(p->head), &buf, &n);
            feed_hello(c, p, now);
        }
    }
}

void mk_boot_core_lost(struct mk_boot_core *c, struct mk_boot_peer *p, const char *why, uint64_t now)
{
    if (p->state == MK_BOOT_PEER_CLOSED)
        return;
    if (p->state == MK_BOOT_PEER_HELLO)
        close_stranger(c, p,
                       p->head_have ? "it ended in the middle of its hello" : "it ended without a hello");
    else if (p->state == MK_BOOT_PEER_MEMBER)
        mk_boot_job_lost(c, p, why, now);
    p->state = MK_BOOT_PEER_CLOSED;
}

/* ---- time ---- */

void mk_boot_core_tick(struct mk_boot_core *c, uint64_t now)
{
    for (struct mk_boot_peer *p = c->peers; p; p = p->next) {
        const bool stranger = p->state == MK_BOOT_PEER_HELLO || p->state == MK_BOOT_PEER_DRAIN;
        if (stranger && now >= p->deadline)
            close_stranger(c, p, "it did not say hello in time");
        if (p->broken)
            mk_boot_core_lost(c, p, "the root has no memory to answer it", now);
    }
    if (now >= c->meet_deadline && !c->met && !c->event.code)
        mk_boot_job_timeout(c, now);
}

uint64_t mk_boot_core_deadline(const struct mk_boot_core *c)
{
    uint64_t t = c->met || c->event.code ? UINT64_MAX : c->meet_deadline;
    if (c->linger_until && c->linger_until < t)
        t = c->linger_until;
    for (const struct mk_boot_peer *p = c->peers; p; p = p->next)
        if ((p->state == MK_BOOT_PEER_HELLO || p->state == MK_BOOT_PEER_DRAIN) && p->deadline < t)
            t = p->deadline;
    return t;
}

void mk_boot_core_sweep(struct mk_boot_core *c, void (*close_fd)(int fd))
{
    struct mk_boot_peer **at = &c->peers;
    while (*at) {
        struct mk_boot_peer *p = *at;
        if (p->state != MK_BOOT_PEER_CLOSED) {
            at = &p->next;
            continue;
        }
        *at = p->next;
        if (p->fd >= 0)
            close_fd(p->fd);
        peer_free(p);
    }
    c->tail = at;
}

uint32_t mk_boot_core_hellos(const struct mk_boot_core *c)
{
    return c->hellos;
}

bool mk_boot_core_idle(const struct mk_boot_core *c)
{
    return (c->met || c->event.code) && !c->connected;
}

bool mk_boot_core_done(const struct mk_boot_core *c, uint64_t now)
{
    return mk_boot_core_idle(c) && (c->met || now >= c->linger_until);
}

bool mk_boot_core_met(const struct mk_boot_core *c)
{
    return c->met;
}

const struct mk_boot_verdict *mk_boot_core_event(const struct mk_boot_core *c)
{
    return &c->event;
}
