/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Links: opening, what is known of the peer, errors, late puts, closing. What travels on them: put.c. */
#include "net/engine.h"
#include "mk/err.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CUT_POLLS 100 /* after which a transport has also read what had come in */
#define CUT_NS 500000000ull

uint32_t mk_link_pending(const struct mk_link *l)
{
    return l->pending;
}

int mk_link_error(const struct mk_link *l, char text[200])
{
    if (text)
        snprintf(text, 200, "%s", l->text);
    return l->error;
}

void mk_link_on_done(struct mk_link *l, mk_put_done_fn fn, void *ctx)
{
    l->done = fn;
    l->ctx = ctx;
}

/* ---- ends ---- */

static void drop_all(struct mk_link *l, int code)
{
    const uint64_t end = l->tail;
    uint64_t pos = l->head;
    /* empty first: done functions may look at the link */
    l->head = l->posted = l->tail;
    l->part = false;
    l->credit_head = l->credit_tail = MK_NO_INDEX;
    l->credits_pending = 0;
    for (; pos != end; pos++)
        if (!mk_op_at(l, pos)->done)
            mk_link_report(l, mk_op_at(l, pos)->put.id, code);
    for (uint32_t i = 0; i < l->notes.n; i++) {
        struct mk_credit *c = &l->credit[i];
        const bool sent = c->in_flight, waits = c->waiting;
        c->in_flight = c->waiting = false;
        if (sent)
            mk_link_report(l, c->sent_id, code);
        if (waits)
            mk_link_report(l, c->id, code);
    }
}

void mk_link_fail(struct mk_link *l, int code, const char *fmt, ...)
{
    va_list ap;
    if (l->error)
        return;
    va_start(ap, fmt);
    vsnprintf(l->text, sizeof(l->text), fmt, ap);
    va_end(ap);
    l->error = l->quiet ? mk_fail_quiet(code, "%s", l->text) : mk_fail(code, "NET", "%s", l->text);
    l->e->n.errors++;
    drop_all(l, code);
}

static bool late(const struct mk_link *l, uint32_t since)
{
    return l->e->tick - since > MK_TICKS;
}

void mk_link_check_late(struct mk_link *l, uint64_t now)
{
    const double s = l->e->timeout;
    if (l->error)
        return;
    if (l->head != l->posted || l->part) {
        const struct mk_op *op = mk_op_at(l, l->head);
        if (late(l, op->tick))
            mk_link_fail(l, MK_ERR_TIMEOUT,
                         "%s: %s did not complete a write of %u bytes (notification %u) in %g s",
                         l->e->caps.transport, l->name, op->put.len, op->put.note, s);
    } else if (l->posted != l->tail) {
        struct mk_op *op = mk_op_at(l, l->posted);
        if (op->due_ns > now)
            op->tick = l->e->tick; /* waits for the pace, not for the network */
        else if (late(l, op->tick))
            mk_link_fail(l, MK_ERR_TIMEOUT,
                         "%s: no room for a write of %u bytes to %s (notification %u) in %g s",
                         l->e->caps.transport, op->put.len, l->name, op->put.note, s);
    }
    for (uint32_t i = 0; l->credits_pending && i < l->notes.n; i++)
        if ((l->credit[i].in_flight || l->credit[i].waiting) && late(l, l->credit[i].tick))
            mk_link_fail(l, MK_ERR_TIMEOUT,
                         "%s: %s did not complete a credit (notification %u, value %llu) in %g s",
                         l->e->caps.transport, l->name, i, (unsigned long long)l->credit[i].value, s);
}

uint64_t mk_link_due(const struct mk_link *l, uint64_t now)
{
    const uint64_t soon = 20000; /* the transport was full: completions make room */
    if (l->error || !mk_link_waits(l))
        return UINT64_MAX;
    if (l->credit_head != MK_NO_INDEX)
        return soon;
    const struct mk_op *op = mk_op_at(l, l->posted);
    return op->due_ns > now ? op->due_ns - now : soon;
}

/* ---- life ---- */

int mk_link_open(struct mk_engine *e, const char *peer_name, struct mk_net_addr *mine, struct mk_link **out)
{
    struct mk_net_addr addr;
    struct mk_link *l = calloc(1, sizeof(*l));
    int ret;
    memset(&addr, 0, sizeof(addr));
    if (!l)
        return mk_fail(MK_ERR_NOMEM, "NET", "a link to %s", peer_name);
    l->op = calloc(MK_LINK_RING, sizeof(*l->op));
    if (!l->op) {
        ret = mk_fail(MK_ERR_NOMEM, "NET", "a link to %s", peer_name);
        goto free_link;
    }
    l->e = e;
    l->credit_head = l->credit_tail = MK_NO_INDEX;
    snprintf(l->name, sizeof(l->name), "%s", peer_name);
    ret = e->ops->conn_open(e->dev, &addr, &l->conn);
    if (ret)
        goto free_op;
    l->conn->user = l;
    l->next = e->links;
    e->links = l;
    *mine = addr;
    *out = l;
    return 0;
free_op:
    free(l->op);
free_link:
    free(l);
    return ret;
}

int mk_link_connect(struct mk_link *l, const struct mk_net_addr *peer)
{
    if (l->error)
        return l->error;
    const int ret = l->e->ops->conn_connect(l->conn, peer);
    if (ret && ret != MK_ERR_AGAIN)
        mk_link_fail(l, ret, "%s: connecting to %s: %s", l->e->caps.transport, l->name, mk_last_error());
    return ret;
}

int mk_link_import(struct mk_link *l, const struct mk_net_key *key, struct mk_rmem **out)
{
    struct mk_rmem *r;
    struct mk_rmem **list = realloc(l->rmem, (l->nrmem + 1) * sizeof(struct mk_rmem *));
    if (!list)
        return mk_fail(MK_ERR_NOMEM, "NET", "memory %u of %s", l->nrmem, l->name);
    l->rmem = list;
    const int ret = l->e->ops->import(l->conn, key, &r);
    if (ret)
        return ret;
    l->rmem[l->nrmem++] = r;
    *out = r;
    return 0;
}

void mk_link_forget(struct mk_link *l, struct mk_rmem *rmem)
{
    uint32_t kept = 0;
    rmem->stale = true;
    for (uint32_t i = 0; !mk_link_pending(l) && i < l->nrmem; i++) {
        if (l->rmem[i]->stale)
            l->e->ops->unimport(l->rmem[i]);
        else
            l->rmem[kept++] = l->rmem[i];
    }
    l->nrmem = mk_link_pending(l) ? l->nrmem : kept;
}

int mk_link_set_notes(struct mk_link *l, const struct mk_peer_notes *notes)
{
    if (!notes->n || !notes->mem || notes->mem->conn != l->conn ||
        notes->base + 2ull * notes->n > 1u << MK_NOTE_BITS)
        return mk_fail_quiet(MK_ERR_INVALID, "notes of %s: base %u, %u words", l->name, notes->base,
                             notes->n);
    const uint64_t bytes = 8ull * notes->n, size = notes->mem->len;
    if (bytes > size || notes->flags_off > size - bytes || notes->shadow_off > size - bytes)
        return mk_fail_quiet(MK_ERR_INVALID, "notes of %s: %u words leave their memory", l->name, notes->n);
    if (l->pending)
        return mk_fail_quiet(MK_ERR_INVALID, "notes of %s: %u puts are under way", l->name, l->pending);
    struct mk_credit *credit = calloc(notes->n, sizeof(*credit));
    if (!credit)
        return mk_fail(MK_ERR_NOMEM, "NET", "credits to %s", l->name);
    free(l->credit);
    l->credit = credit;
    l->notes = *notes;
    return 0;
}

void mk_link_free(struct mk_link *l)
{
    struct mk_link **p = &l->e->links;
    while (*p && *p != l)
        p = &(*p)->next;
    if (*p)
        *p = l->next;
    for (uint32_t i = 0; i < l->nrmem; i++)
        l->e->ops->unimport(l->rmem[i]);
    l->e->ops->conn_close(l->conn);
    free(l->rmem);
    free(l->credit);
    free(l->op);
    free(l);
}

/* Links that were given up for lack of time are broken too, now. */
static void cut_is_done(struct mk_link *l)
{
    struct mk_engine *e = l->e;
    for (struct mk_link *other = e->links; other; other = other->next)
        if (other->error == MK_ERR_TIMEOUT && e->ops->cut_breaks(l->conn, other->conn))
            other->error = MK_ERR_PEER;
}

bool mk_link_cut(struct mk_link *l)
{
    struct mk_engine *e = l->e;
    const uint64_t end = mk_time_ns() + CUT_NS;
    int left = e->ops->cut ? e->ops->cut(l->conn) : -1;
    if (left < 0)
        return false;
    e->busy++; /* nobody frees a link meanwhile */
    for (struct mk_link *other = e->links; left && other; other = other->next)
        if (!other->error && e->ops->cut_breaks(l->conn, other->conn))
            mk_link_fail(other, MK_ERR_PEER, "%s: the connections with %s were cut: %s did not stop writing",
                         e->caps.transport, other->name, l->name);
    for (int after = left ? 0 : CUT_POLLS; after < CUT_POLLS && mk_time_ns() < end; after += left == 0) {
        if (mk_engine_progress(e) < 0)
            break;
        left = left ? e->ops->cut(l->conn) : 0;
    }
    e->busy--;
    if (!left)
        cut_is_done(l);
    return left == 0;
}

void mk_link_close(struct mk_link *l)
{
    if (!l || l->closing)
        return;
    l->closing = true;
    if (!l->error) {
        l->error = MK_ERR_ABORTED;
        snprintf(l->text, sizeof(l->text), "the link to %s is closed", l->name);
        drop_all(l, MK_ERR_ABORTED);
    }
    if (l->e->busy)
        l->e->zombies = true; /* we were called from inside; the next end of a progress frees it */
    else
        mk_link_free(l);
}
