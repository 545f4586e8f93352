/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Proxy: commands out of the ring, checked and sorted into the stages of their links, put in batches; completions
 * into done words. Everything here runs on the proxy thread, under its mutex. */
#include "net/proxy.h"
#include "mk/err.h"
#include "mk/log.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WINDOW_MAX_NS 2000u
#define WINDOW_MIN_NS 125u

/* ---- errors ---- */

static void report(struct mk_stage *s, int code, const char *text)
{
    if (s->reported)
        return;
    s->reported = true;
    if (s->comm->d.on_error)
        s->comm->d.on_error(s->comm->d.ctx, s->node, code, text);
}

/* A command that no kernel of ours writes. One that names no link is told for all of them: whoever waits for what
 * it should have moved, waits for one of these. */
static void nonsense(struct mk_pcomm *c, const struct mk_cmd *cmd, const char *what)
{
    char text[200];
    const uint64_t node = mk_cmd_node(cmd);
    const bool named = node < (uint64_t)c->d.nnodes && c->stage[node].link;
    snprintf(
        text, sizeof(text),
        "proxy: a command of communicator %u is wrong: %s (kind %llu, node %llu, chunk %llu, %llu bytes, "
        "notification %llu)",
        c->id, what, (unsigned long long)mk_cmd_kind(cmd), (unsigned long long)node,
        (unsigned long long)mk_cmd_chunk(cmd), (unsigned long long)mk_cmd_len(cmd),
        (unsigned long long)mk_cmd_note(cmd));
    c->p->stats.errors++;
    if (!c->nonsense)
        mk_fail(MK_ERR_INTERNAL, "PROXY", "%s", text);
    c->nonsense = true;
    for (int i = 0; i < c->d.nnodes; i++)
        if (named ? (uint64_t)i == node : c->stage[i].link != NULL)
            report(&c->stage[i], MK_ERR_INTERNAL, text);
}

void mk_proxy_link_failed(struct mk_stage *s, int code)
{
    char text[200];
    mk_link_error(s->link, text);
    report(s, code, text);
}

/* ---- completions ---- */

static uint32_t record_take(struct mk_pcomm *c, uint32_t done, uint64_t value)
{
    if (c->free_rec == MK_NO_RECORD) {
        const uint32_t n = c->nrec ? 2 * c->nrec : 256;
        struct mk_record *rec = realloc(c->rec, n * sizeof(*rec));
        if (!rec)
            return MK_NO_RECORD;
        for (uint32_t i = c->nrec; i < n; i++)
            rec[i].next = i + 1 < n ? i + 1 : MK_NO_RECORD;
        c->free_rec = c->nrec;
        c->rec = rec;
        c->nrec = n;
    }
    const uint32_t at = c->free_rec;
    c->free_rec = c->rec[at].next;
    c->rec[at].done = done;
    c->rec[at].value = value;
    return at;
}

/* id: the communicator's number in the high half (a put of a detached one may still be under way on a link that
 * was attached again), the record in the low half. */
void mk_proxy_on_done(void *ctx, struct mk_link *l, uint64_t id, int status)
{
    struct mk_stage *s = ctx;
    struct mk_pcomm *c = s->comm;
    const uint32_t at = (uint32_t)id;
    (void)l;
    if (id >> 32 != c->id)
        return;
    if (status)
        mk_proxy_link_failed(s, status);
    if (at == MK_NO_RECORD)
        return;
    struct mk_record *r = &c->rec[at];
    uint64_t *word = &c->d.done[r->done];
    if (!status && r->value > mk_ld_rlx_sys_u64(word)) {
        mk_st_rel_sys_u64(word, r->value); /* release: the payload has been read, and is at the peer */
        c->ring_bell = true;
    }
    r->next = c->free_rec;
    c->free_rec = at;
}

/* ---- commands ---- */

/* Fills a put from a WRITE; NULL, or what is wrong with it. */
static const char *fill_write(struct mk_stage *s, const struct mk_cmd *cmd, struct mk_put *put)
{
    const struct mk_proxy_comm *d = &s->comm->d;
    const uint64_t swin = mk_cmd_swin(cmd), dwin = mk_cmd_dwin(cmd);
    put->len = (uint32_t)mk_cmd_len(cmd);
    put->flags = s->comm->p->e->caps.delivery_complete ? MK_PUT_DELIVERY : 0;
    put->mr = NULL;
    put->rmem = NULL;
    put->local_off = mk_cmd_loff(cmd);
    put->remote_off = mk_cmd_roff(cmd);
    if (!put->len)
        return NULL;
    if (swin >= (uint64_t)d->nwindows || dwin >= (uint64_t)d->nwindows)
        return "a window that does not exist";
    put->mr = d->windows[swin];
    put->rmem = d->rwindows[(uint64_t)s->node * (uint64_t)d->nwindows + dwin];
    if (!put->mr || !put->rmem)
        return "a window that does not exist";
    if (put->local_off > put->mr->len || put->len > put->mr->len - put->local_off)
        return "it leaves its source window";
    if (put->remote_off > put->rmem->len || put->len > put->rmem->len - put->remote_off)
        return "it leaves its destination window";
    if (put->len > s->comm->p->e->caps.max_message)
        return "longer than a message of this network";
    return NULL;
}

static const char *fill_put(struct mk_stage *s, const struct mk_cmd *cmd, struct mk_put *put)
{
    const char *wrong = NULL;
    memset(put, 0, sizeof(*put));
    put->note = (uint32_t)mk_cmd_note(cmd);
    put->use4 = (uint32_t)mk_cmd_use4(cmd);
    put->value = mk_cmd_value(cmd);
    if (put->note >= s->link->notes.n)
        return "a notification that the peer does not have";
    if (mk_cmd_kind(cmd) == MK_CMD_WRITE)
        wrong = fill_write(s, cmd, put);
    else if (mk_cmd_kind(cmd) == MK_CMD_CREDIT)
        put->flags = MK_PUT_CREDIT;
    else
        return "of no known kind";
    if (wrong)
        return wrong;
    uint32_t rec = MK_NO_RECORD;
    if (mk_cmd_done(cmd) != MK_CMD_NO_DONE) {
        if (mk_cmd_done(cmd) >= s->comm->d.ndone)
            return "a completion word that does not exist";
        rec = record_take(s->comm, (uint32_t)mk_cmd_done(cmd), put->value);
        if (rec == MK_NO_RECORD)
            return "no memory for its completion";
    }
    put->id = (uint64_t)s->comm->id << 32 | rec;
    return NULL;
}

/* The stage of a command; NULL: dropped. */
static struct mk_stage *stage_of(struct mk_proxy *p, const struct mk_cmd *cmd)
{
    const uint32_t id = (uint32_t)mk_cmd_comm(cmd);
    struct mk_pcomm *c = p->comm[id];
    if (mk_cmd_kind(cmd) == MK_CMD_NOP)
        return NULL;
    if (!c) {
        if (id < p->ids)
            return NULL; /* detached: what is left of its commands */
        p->stats.errors++;
        if (!p->stranger_said)
            MK_WARN(
                "PROXY",
                "a command of communicator %u, which does not exist; dropped, further ones are only counted",
                id);
        p->stranger_said = true;
        return NULL;
    }
    if (mk_cmd_node(cmd) >= (uint64_t)c->d.nnodes || !c->stage[mk_cmd_node(cmd)].link) {
        nonsense(c, cmd, "there is no link to that node");
        return NULL;
    }
    return &c->stage[mk_cmd_node(cmd)];
}

static void flush_stage(struct mk_stage *s)
{
    if (!s->n)
        return;
    const int took = mk_link_put(s->link, s->put, s->n);
    if (took < 0) {
        for (int i = 0; i < s->n; i++)
            mk_proxy_on_done(s, s->link, s->put[i].id, took);
        s->n = 0;
        return;
    }
    s->n -= took;
    memmove(s->put, s->put + took, (size_t)s->n * sizeof(s->put[0]));
}

/* false: its stage is full, even after a flush. */
static bool stage_command(struct mk_proxy *p, const struct mk_cmd *cmd)
{
    struct mk_stage *s = stage_of(p, cmd);
    if (!s)
        return true;
    if (s->n == p->batch) {
        flush_stage(s);
        if (s->n == p->batch)
            return false;
    }
    const char *wrong = fill_put(s, cmd, &s->put[s->n]);
    if (wrong) {
        nonsense(s->comm, cmd, wrong);
        return true;
    }
    s->n++;
    if (!s->listed) {
        s->listed = true;
        s->next = p->full_list;
        p->full_list = s;
    }
    return true;
}

/* Takes what is in the ring; returns how many commands. Bounded: one ring's worth, and the stages. */
unsigned mk_proxy_take(struct mk_proxy *p)
{
    const uint64_t slots = 1ull << p->ring.log2_slots;
    unsigned n = 0;
    if (p->has_held) {
        if (!stage_command(p, &p->held))
            return 0;
        p->has_held = false;
    }
    while (n < slots && mk_ring_peek(&p->ring, p->next, &p->held)) {
        mk_ring_free(&p->ring, ++p->next);
        n++;
        if (!stage_command(p, &p->held)) {
            p->has_held = true;
            break;
        }
    }
    p->stats.commands += n;
    return n;
}

static bool some_stage_has_room(const struct mk_proxy *p)
{
    for (const struct mk_stage *s = p->full_list; s; s = s->next)
        if (s->n < p->batch)
            return true;
    return false;
}

/* Waits a little for more commands, if it paid lately: the window doubles when more came, halves when not, and
 * starts again when several commands stood in the ring at once. */
unsigned mk_proxy_gather(struct mk_proxy *p, unsigned taken)
{
    unsigned more = 0;
    if (!taken || p->batch == 1 || p->has_held)
        return 0;
    if (taken > 1 && !p->window_ns)
        p->window_ns = WINDOW_MIN_NS;
    if (!p->window_ns || !some_stage_has_room(p))
        return 0;
    p->stats.window_waits++;
    const uint64_t end = mk_time_ns() + p->window_ns;
    do {
        more += mk_proxy_take(p);
    } while (!p->has_held && some_stage_has_room(p) && mk_time_ns() < end);
    p->window_ns = more ? 2 * p->window_ns : p->window_ns / 2;
    if (p->window_ns > WINDOW_MAX_NS)
        p->window_ns = WINDOW_MAX_NS;
    if (p->window_ns < WINDOW_MIN_NS)
        p->window_ns = 0;
    return more;
}

void mk_proxy_flush(struct mk_proxy *p)
{
    struct mk_stage **at = &p->full_list;
    while (*at) {
        struct mk_stage *s = *at;
        flush_stage(s);
        if (s->n) {
            at = &s->next;
            continue;
        }
        s->listed = false;
        *at = s->next;
    }
}
