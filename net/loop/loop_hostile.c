/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Hostile mode (MK_LOOP_HOSTILE=seed): everything that the declared order allows, on purpose.
 *
 *   unordered  a write is cut into pieces that land at random times in random order; its immediate comes after its
 *              own pieces and in any order with those of other writes; so does its completion
 *   ordered    the pieces of one write land in random order too, but the next write starts only when it is whole
 *   both       a piece may land a second time, read anew from the source, until the completion is reported: whoever
 *              reuses a source too early, or changes a payload in place before, is found out. Not where a later
 *              write of the connection covers the same bytes: no network does that. Not with GPU memory: mknic
 *              could be late with it, and overwrite what was posted meanwhile. */
#include "loop_state.h"

static uint64_t rnd(struct mk_loop_dev *d)
{
    d->random ^= d->random << 13;
    d->random ^= d->random >> 7;
    d->random ^= d->random << 17;
    return d->random * 0x2545f4914f6cdd1dull >> 16;
}

/* Half of all delays are none, most others a few microseconds, a few long enough to be overtaken by hundreds. */
static uint64_t delay(struct mk_loop_dev *d)
{
    const uint64_t dice = rnd(d) % 64;
    if (dice < 32)
        return 0;
    if (dice < 62)
        return rnd(d) % 10000;
    return rnd(d) % 200000;
}

void mk_loop_plan_item(struct mk_loop_conn *c, struct mk_loop_item *it, uint64_t now)
{
    struct mk_loop_dev *d = c->dev;
    struct mk_loop_plan *p = &c->plan[it - c->item];
    uint64_t last = now;
    p->pieces = it->len == 0 ? 0 : it->len <= 8 ? 1 : 1 + (int)(rnd(d) % MK_LOOP_PIECES);
    p->landed = 0;
    p->imm_sent = false;
    p->cut[0] = 0;
    for (int i = 0; i < p->pieces; i++) {
        const uint32_t left = it->len - p->cut[i];
        p->cut[i + 1] = i + 1 == p->pieces ? it->len : p->cut[i] + (uint32_t)(rnd(d) % (left / 2 + 1));
        p->due[i] = now + delay(d);
        last = p->due[i] > last ? p->due[i] : last;
    }
    p->imm_due = last + delay(d);
    p->done_due = p->imm_due + delay(d);
    p->again = p->pieces && it->len > 8 && it->device < 0 && rnd(d) % 4 == 0
                   ? (int)(rnd(d) % (uint64_t)p->pieces)
                   : -1;
    p->again_due = p->again < 0 ? 0 : p->due[p->again] + rnd(d) % (p->done_due - p->due[p->again] + 1);
}

static bool covered_later(struct mk_loop_conn *c, uint64_t pos)
{
    const struct mk_loop_item *a = mk_loop_item_at(c, pos);
    for (uint64_t q = pos + 1; q != c->next; q++) {
        const struct mk_loop_item *b = mk_loop_item_at(c, q);
        if (b->dst && b->dst < a->dst + a->len && a->dst < b->dst + b->len)
            return true;
    }
    return false;
}

/* A piece that is due lands, or, once in four times, is put off: a caller that polls rarely must not see everything
 * land at once in post order. */
static void put_off(struct mk_loop_dev *d, uint64_t *due, uint64_t now)
{
    if (*due <= now && rnd(d) % 4 == 0)
        *due = now + 1 + delay(d);
}

/* Earliest of `due` and *next into *next; true: due now. */
static bool due_now(uint64_t due, uint64_t now, uint64_t *next)
{
    if (due <= now)
        return true;
    if (due < *next)
        *next = due;
    return false;
}

/* Moves one item on; true: it is complete and may be reported. */
static bool item_step(struct mk_loop_conn *c, uint64_t pos, uint64_t now, bool *landed)
{
    struct mk_loop_item *it = mk_loop_item_at(c, pos);
    struct mk_loop_plan *p = &c->plan[it - c->item];
    bool whole = true;
    for (int i = 0; i < p->pieces; i++) {
        if (p->landed >> i & 1)
            continue;
        put_off(c->dev, &p->due[i], now);
        if (!due_now(p->due[i], now, &c->next_due)) {
            whole = false;
            continue;
        }
        if (!mk_loop_item_copy(c, it, p->cut[i], p->cut[i + 1])) {
            due_now(now + 50000, now, &c->next_due);
            return false;
        }
        p->landed |= 1u << i;
        *landed = true;
    }
    if (p->again >= 0 && p->landed >> p->again & 1 && due_now(p->again_due, now, &c->next_due)) {
        if (it->dst && !covered_later(c, pos))
            mk_loop_item_copy(c, it, p->cut[p->again], p->cut[p->again + 1]);
        p->again = -1;
    }
    if (!whole || it->out) /* mknic rings our bell when it is done */
        return false;
    if (!p->imm_sent) {
        if (!due_now(p->imm_due, now, &c->next_due))
            return false;
        if (!mk_loop_item_imm(c, it)) {
            due_now(now + 50000, now, &c->next_due);
            return false;
        }
        p->imm_sent = true;
        *landed = true;
    }
    return due_now(p->done_due, now, &c->next_due) && p->again < 0;
}

/* In ordered mode, may the write after this one start? Its own completion may lag. */
static bool item_visible(struct mk_loop_conn *c, uint64_t pos)
{
    const struct mk_loop_item *it = mk_loop_item_at(c, pos);
    return it->done || c->plan[it - c->item].imm_sent;
}

int mk_loop_hostile_progress(struct mk_loop_conn *c, uint64_t now, struct mk_wc *wcs, int max, bool *landed)
{
    const bool ordered = c->dev->base.caps.ordered;
    int n = 0;
    c->next_due = MK_LOOP_NEVER;
    for (uint64_t pos = c->first; pos != c->next; pos++) {
        struct mk_loop_item *it = mk_loop_item_at(c, pos);
        if (n == max) {
            c->next_due = 0;
            break;
        }
        if (!it->done && item_step(c, pos, now, landed))
            n += mk_loop_item_finish(c, it, &wcs[n]);
        if (ordered && !item_visible(c, pos))
            break;
    }
    while (c->first != c->next && mk_loop_item_at(c, c->first)->done)
        c->first++;
    return n;
}
