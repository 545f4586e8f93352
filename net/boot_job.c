/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What happens among the members of a job, as the root sees it: meeting, all-gathers, events, good-byes. */
#include "boot_job.h"
#include "mk/log.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct mk_boot_blob *mk_boot_blob_new(size_t len)
{
    struct mk_boot_blob *b = malloc(sizeof(*b) + len);
    if (b) {
        b->refs = 1;
        b->len = len;
    }
    return b;
}

void mk_boot_blob_put(struct mk_boot_blob *b)
{
    if (b && !--b->refs)
        free(b);
}

void mk_boot_peer_queue(struct mk_boot_peer *p, struct mk_boot_blob *b)
{
    struct mk_boot_out *o = calloc(1, sizeof(*o));
    if (!o) {
        p->broken = true;
        return;
    }
    b->refs++;
    o->blob = b;
    if (p->out_last)
        p->out_last->next = o;
    else
        p->out_first = o;
    p->out_last = o;
}

int mk_boot_job_size(struct mk_boot_core *c, uint32_t nranks)
{
    c->members = calloc(nranks, sizeof(*c->members));
    if (!c->members)
        return MK_ERR_NOMEM;
    c->nranks = nranks;
    c->gather_seq = 1;
    return 0;
}

void mk_boot_job_free(struct mk_boot_core *c)
{
    mk_boot_blob_put(c->gather);
    free(c->members);
}

static void tell_all(struct mk_boot_core *c, struct mk_boot_blob *b)
{
    for (uint32_t r = 0; r < c->nranks; r++)
        if (c->members[r].peer && c->members[r].peer->state == MK_BOOT_PEER_MEMBER)
            mk_boot_peer_queue(c->members[r].peer, b);
}

static void frame_to_all(struct mk_boot_core *c, uint32_t type, uint64_t seq, const void *body,
                         uint32_t length)
{
    const struct mk_boot_frame f = {.type = type, .length = length, .seq = seq};
    struct mk_boot_blob *b = mk_boot_blob_new(sizeof(f) + length);
    if (!b)
        return;
    mk_boot_put_frame(&f, b->data);
    if (length)
        memcpy(b->data + sizeof(f), body, length);
    tell_all(c, b);
    mk_boot_blob_put(b);
}

static void verdict_to_all(struct mk_boot_core *c, uint32_t type, uint64_t seq, int code, int rank,
                           const char *text)
{
    uint8_t body[MK_BOOT_VERDICT_HEAD + MK_BOOT_MAX_TEXT];
    const size_t n = mk_boot_put_verdict(code, rank, text, body);
    frame_to_all(c, type, seq, body, (uint32_t)n);
}

void mk_boot_job_event(struct mk_boot_core *c, int code, int rank, const char *text, uint64_t now)
{
    if (c->event.code)
        return;
    c->event.code = code;
    c->event.rank = rank;
    snprintf(c->event.text, sizeof(c->event.text), "%s", text);
    if (!c->met)
        c->linger_until = now + c->cfg.linger_ns;
    MK_INFO("NET", "bootstrap root: %s", text);
    verdict_to_all(c, MK_BOOT_EVENT, 0, code, rank, text);
}

/* "rank 2, rank 5 and 4 others" */
static void list_missing(const struct mk_boot_core *c, char *out, size_t size)
{
    uint32_t missing = 0, shown = 0;
    size_t n = 0;
    for (uint32_t r = 0; r < c->nranks; r++)
        missing += !c->members[r].peer;
    for (uint32_t r = 0; r < c->nranks && shown < 12; r++)
        if (!c->members[r].peer)
            n += (size_t)snprintf(out + n, size - n, "%srank %u", shown++ ? ", " : "", r);
    if (shown < missing)
        snprintf(out + n, size - n, " and %u others", missing - shown);
}

void mk_boot_job_timeout(struct mk_boot_core *c, uint64_t now)
{
    char list[120] = "", text[200];
    list_missing(c, list, sizeof(list));
    int first = -1;
    for (uint32_t r = 0; r < c->nranks && first < 0; r++)
        if (!c->members[r].peer)
            first = (int)r;
    snprintf(text, sizeof(text), "not all of %u ranks came in time; missing: %s", c->nranks, list);
    mk_boot_job_event(c, MK_ERR_TIMEOUT, first, text, now);
}

static void meet(struct mk_boot_core *c)
{
    uint8_t body[sizeof(struct mk_boot_met)];
    for (uint32_t r = c->nranks; r-- > 0;)
        if (c->members[r].token == c->cfg.token)
            c->root_rank = (int)r;
    const struct mk_boot_met m = {.root_rank = c->root_rank, .nranks = c->nranks, .token = c->cfg.token};
    c->met = true;
    mk_boot_put_met(&m, body);
    frame_to_all(c, MK_BOOT_MET, 0, body, sizeof(body));
    MK_INFO("NET", "bootstrap root: all %u ranks have met", c->nranks);
}

void mk_boot_job_join(struct mk_boot_core *c, struct mk_boot_peer *p, const struct mk_boot_hello *h,
                      uint64_t now)
{
    struct mk_boot_member *m = &c->members[h->rank];
    const uint64_t until = now + (uint64_t)h->wait_ms * 1000000u;
    p->rank = (int)h->rank;
    m->peer = p;
    m->token = h->token;
    if (until < c->meet_deadline)
        c->meet_deadline = until;
    if (++c->connected == c->nranks)
        meet(c);
}

/* ---- all-gather ---- */

static void gather_end(struct mk_boot_core *c)
{
    mk_boot_blob_put(c->gather);
    c->gather = NULL;
    c->gather_seq++;
    c->gather_given = 0;
    for (uint32_t r = 0; r < c->nranks; r++)
        c->members[r].given = false;
}

static void gather_fails(struct mk_boot_core *c, int code, int rank, const char *text)
{
    verdict_to_all(c, MK_BOOT_GATHER_BAD, c->gather_seq, code, rank, text);
    gather_end(c);
}

static int gather_begin(struct mk_boot_core *c, uint32_t bytes)
{
    const struct mk_boot_frame f = {
        .type = MK_BOOT_GATHERED, .length = bytes * c->nranks, .seq = c->gather_seq};
    c->gather_bytes = bytes;
    c->gather = mk_boot_blob_new(sizeof(f) + (size_t)bytes * c->nranks);
    if (!c->gather)
        return MK_ERR_NOMEM;
    mk_boot_put_frame(&f, c->gather->data);
    return 0;
}

static void gather_part(struct mk_boot_core *c, struct mk_boot_peer *p, uint64_t now)
{
    const struct mk_boot_frame *f = &p->frame;
    struct mk_boot_member *m = &c->members[p->rank];
    char text[160];
    if (f->seq < c->gather_seq)
        return; /* that all-gather has failed already, and this rank has been told */
    if (f->seq > c->gather_seq || m->given || !c->met) {
        mk_boot_core_lost(c, p, "it takes part in an all-gather that cannot be running", now);
        return;
    }
    if (!c->gather && gather_begin(c, f->length)) {
        snprintf(text, sizeof(text), "the root has no memory for an all-gather of %u bytes", f->length);
        gather_fails(c, MK_ERR_NOMEM, c->root_rank, text);
        return;
    }
    if (f->length != c->gather_bytes) {
        snprintf(text, sizeof(text),
                 "ranks disagree in a bootstrap all-gather: rank %d gives %u bytes, others %u", p->rank,
                 f->length, c->gather_bytes);
        gather_fails(c, MK_ERR_MISMATCH, p->rank, text);
        return;
    }
    if (f->length)
        memcpy(c->gather->data + sizeof(*f) + (size_t)p->rank * f->length, p->body, f->length);
    m->given = true;
    if (++c->gather_given == c->nranks) {
        tell_all(c, c->gather);
        gather_end(c);
    }
}

/* ---- ends ---- */

static void unjoin(struct mk_boot_core *c, struct mk_boot_peer *p)
{
    c->members[p->rank].peer = NULL;
    c->connected--;
    c->gone = c->gone || c->met;
    p->state = MK_BOOT_PEER_CLOSED;
}

static void good_bye(struct mk_boot_core *c, int rank)
{
    c->members[rank].left = true;
    frame_to_all(c, MK_BOOT_LEFT, (uint64_t)rank, NULL, 0);
}

void mk_boot_job_lost(struct mk_boot_core *c, struct mk_boot_peer *p, const char *why, uint64_t now)
{
    char text[200];
    const int rank = p->rank;
    const bool left = c->members[rank].left;
    unjoin(c, p);
    if (left)
        return;
    if (c->met)
        snprintf(text, sizeof(text), "rank %d (%s) died: %s", rank, p->name, why);
    else
        snprintf(text, sizeof(text), "rank %d (%s) died or gave up before all ranks had come", rank, p->name);
    mk_boot_job_event(c, MK_ERR_PEER, rank, text, now);
}

void mk_boot_core_farewell(struct mk_boot_core *c)
{
    for (uint32_t r = 0; c->met && r < c->nranks; r++)
        if (c->members[r].token == c->cfg.token && c->members[r].peer && !c->members[r].left)
            good_bye(c, (int)r);
}

/* To one or to all others. Who is not here (any more) misses nothing that it could act on. */
static void hand_on(struct mk_boot_core *c, struct mk_boot_peer *from)
{
    const struct mk_boot_frame *in = &from->frame;
    const struct mk_boot_frame f = {.type = MK_BOOT_SAID, .length = in->length, .seq = (uint64_t)from->rank};
    struct mk_boot_blob *b = mk_boot_blob_new(sizeof(f) + in->length);
    if (!b) { /* one lost would leave the others out of step */
        from->broken = true;
        return;
    }
    mk_boot_put_frame(&f, b->data);
    if (in->length)
        memcpy(b->data + sizeof(f), from->body, in->length);
    for (uint32_t r = 0; r < c->nranks; r++) {
        struct mk_boot_peer *p = c->members[r].peer;
        const bool meant = in->seq == c->nranks ? p != from : r == in->seq;
        if (meant && p && p->state == MK_BOOT_PEER_MEMBER)
            mk_boot_peer_queue(p, b);
    }
    mk_boot_blob_put(b);
}

void mk_boot_job_frame(struct mk_boot_core *c, struct mk_boot_peer *p, uint64_t now)
{
    struct mk_boot_verdict v;
    switch (p->frame.type) {
    case MK_BOOT_GATHER:
        gather_part(c, p, now);
        return;
    case MK_BOOT_SAY:
        if (c->met)
            hand_on(c, p);
        else
            mk_boot_core_lost(c, p, "it speaks to others before all have met", now);
        return;
    case MK_BOOT_ABORT:
        if (mk_boot_parse_verdict(p->body, p->frame.length, &v) == MK_BOOT_PARSED)
            mk_boot_job_event(c, v.code, p->rank, v.text, now);
        else
            mk_boot_core_lost(c, p, "it sent something that is not in the protocol", now);
        return;
    case MK_BOOT_BYE:
        if (!c->met) {
            mk_boot_core_lost(c, p, "good-bye", now);
            return;
        }
        if (!c->members[p->rank].left)
            good_bye(c, p->rank);
        unjoin(c, p); /* the driver closes: that is how its own process's ranks know that it was told on */
        return;
    }
}
