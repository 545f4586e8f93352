/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* GEMM+AllReduce under the controller: what a block counts, when a step is made, which role it has next. One lane of a
 * block calls these. ar->control 0: the roles go by ar->budget for the whole launch. Included by gemm_ar_run.h.
 *
 * On the CPU mk_ar_turn does it all. On the GPU its parts are spread so that nobody waits for them: the warp that has no
 * queue to look at makes the step while the others look (mk_wide_turn), the target comes with the other words of a
 * block between two tiles (mk_ar_more), and counts are added without an answer. */
#pragma once
#include "ops/gemm_ar.h"

MK_DEV struct mk_ar_ctl *mk_ar_control(const struct mk_ar *ar)
{
    return ar->control ? &ar->state->control[ar->control - 1] : (struct mk_ar_ctl *)0;
}

/* Tasks of computation that end before the first task of communication can be ready: its last tile in the order of COMPUTE, and all
 * before that. */
MK_DEV uint32_t mk_ar_first_ready(const struct mk_ar *ar)
{
    const struct mk_grid *g = &ar->grid;
    if (!mk_ar_items(ar, MK_AR_TILE, 0))
        return 0;
    const int64_t high = (int64_t)mk_piece_rows(g) << (g->edge_first ? 0 : g->span_log2);
    const int64_t most = high < g->chunk_m ? high : g->chunk_m, rows = g->m < most ? g->m : most,
                  cols = g->n < mk_panel_cols(g) ? g->n : mk_panel_cols(g);
    const uint32_t row = mk_div_up(rows, g->tile_m) - 1, col = mk_div_up(cols, g->tile_n) - 1;
    const uint32_t group = g->bands > 1 ? (uint32_t)g->bands : 1, first = row / group * group;
    const uint32_t height = g->tile_rows - first < group ? g->tile_rows - first : group;
    return first * g->tile_cols + col * height + row - first + 1;
}
/* Tasks of communication in this launch, headers apart: they take no time, and all come first. */
MK_DEV uint32_t mk_ar_comm_tasks(const struct mk_ar *ar)
{
    const struct mk_topo *t = &ar->rings.topo;
    uint32_t n = 0;
    MK_ROLLED
    for (int kind = MK_AR_PUSH; kind <= MK_AR_BCAST; kind++) {
        const char fan = mk_ar_fan(kind);
        const int32_t peers = fan == '1' ? 1 : fan == 'l' ? t->nlocal : t->nnodes;
        const int32_t self = fan == 'l' ? t->local : fan == 'n' ? t->node : -1;
        MK_ROLLED
        for (int32_t p = 0; p < peers; p++)
            n += p == self ? 0 : mk_ar_items(ar, kind, p);
    }
    return n;
}
MK_DEV void mk_ar_ctl_conf(const struct mk_ar *ar, struct mk_ctl_conf *f)
{
    f->units = (uint32_t)ar->blocks;
    f->ceiling = (uint32_t)(ar->budget + ar->max_helpers);
    f->start = ar->control_start;
    /* Where blocks in role COMM are patient they take their first tile at once, and then wait for what it leads to:
     * the target must be known when that tile ends, and what is ready before costs nothing. */
    f->band = ar->patience_ns ? 0 : mk_ar_first_ready(ar);
}

/* ---- between launches ---- */

/* The tasks after the last step of the launch before this one; once. */
MK_DEV void mk_ar_ctl_learn_last(struct mk_ar_ctl *c)
{
    struct mk_ctl_sample s;
    if (c->epoch != c->last_epoch) { /* nobody came to a step in it */
        c->ctl.seen_busy[0] = c->ctl.seen_busy[1] = 0;
        c->ctl.seen_done[0] = c->ctl.seen_done[1] = 0;
        c->epoch = c->last_epoch;
    }
    MK_ROLLED
    for (int kind = 0; kind < 2; kind++) {
        s.done[kind] = (uint32_t)c->last.done[kind];
        s.busy[kind] = c->last.busy[kind];
        mk_ctl_learn(&c->ctl, &s, kind);
    }
}
/* A state that was another shape's until now. */
MK_DEV void mk_ar_ctl_renew(const struct mk_ar *ar, struct mk_ar_ctl *c)
{
    c->ctl.limit = c->ctl.knee = c->ctl.hold = c->ctl.age = c->ctl.bound = c->ctl.down = 0;
    c->ctl.knee_rate = 0;
    c->ctl.cost[0] = ar->control_cost[0];
    c->ctl.cost[1] = ar->control_cost[1];
    c->settled = 0;
    c->number = ar->control_number;
}
/* Under the lock, before the first step of a launch. */
MK_DEV void mk_ar_ctl_begin(const struct mk_ar *ar, const struct mk_ar_block *blk, struct mk_ar_ctl *c,
                            uint64_t now)
{
    if (c->epoch == blk->epoch)
        return;
    mk_ar_ctl_learn_last(c);
    if (c->number != ar->control_number)
        mk_ar_ctl_renew(ar, c);
    if (ar->taught && c->ctl.cost[0] && c->ctl.cost[1]) {
        mk_st_rlx_sys_u64(&ar->taught[MK_TAUGHT_COSTS], (uint64_t)c->ctl.cost[1] << 32 | c->ctl.cost[0]);
        mk_st_rel_sys_u64(&ar->taught[MK_TAUGHT_TARGET], (uint64_t)c->number << 32 | c->settled);
    }
    c->epoch = blk->epoch;
    c->total[MK_CTL_COMPUTE] = mk_ar_items(ar, MK_AR_TILE, 0);
    c->total[MK_CTL_COMM] = mk_ar_comm_tasks(ar);
    mk_ar_ctl_conf(ar, &c->conf);
    mk_ctl_begin(&c->conf, &c->ctl, now);
}
/* Last block only: nobody counts any more. */
MK_DEV void mk_ar_ctl_end(const struct mk_ar *ar, const struct mk_ar_block *blk)
{
    struct mk_ar_ctl *c = mk_ar_control(ar);
    uint64_t have[MK_AR_COUNTS], *base;
    if (!c)
        return;
    base = (uint64_t *)&c->base;
    for (int i = 0; i < MK_AR_COUNTS; i++)
        have[i] = mk_peek_gpu_u64((uint64_t *)&c->count + i);
    for (int i = 0; i < MK_AR_COUNTS; i++) {
        ((uint64_t *)&c->last)[i] = have[i] - base[i];
        base[i] = have[i];
    }
    c->last_epoch = blk->epoch;
}

/* ---- a step ---- */

/* What says whether one is worth trying for, and the target: one trip. */
struct mk_ar_ctl_seen {
    uint64_t lock, due, target, done[2];
};
MK_DEV void mk_ar_ctl_look(const struct mk_ar_ctl *c, struct mk_ar_ctl_seen *seen)
{
    seen->lock = mk_peek_gpu_u64(&c->lock);
    seen->due = mk_peek_gpu_u64(&c->due);
    seen->target = mk_peek_gpu_u64(&c->target);
    seen->done[0] = mk_peek_gpu_u64(&c->count.done[0]);
    seen->done[1] = mk_peek_gpu_u64(&c->count.done[1]);
}
/* No mk_ctl_due says yes before: see there. */
MK_DEV uint64_t mk_ar_ctl_due_at(const struct mk_ar_ctl *c, const struct mk_ctl_sample *s)
{
    const uint32_t here = mk_ctl_here(&c->conf, s);
    const bool end = s->left[0] < here || s->left[1] < here;
    return c->base.done[0] + c->base.done[1] + s->done[0] + s->done[1] + (end ? 0 : here);
}
MK_DEV void mk_ar_ctl_sample(const struct mk_ar *ar, const struct mk_ar_block *blk, struct mk_ar_ctl *c,
                             uint64_t now, struct mk_ctl_sample *s)
{
    const struct mk_grid *g = &ar->grid;
    const uint64_t done[2] = {mk_peek_gpu_u64(&c->count.done[0]), mk_peek_gpu_u64(&c->count.done[1])};
    const uint64_t busy[2] = {mk_peek_gpu_u64(&c->count.busy[0]), mk_peek_gpu_u64(&c->count.busy[1])};
    const uint64_t off = mk_peek_gpu_u64(&c->count.off), came = mk_peek_gpu_u64(&ar->state->tickets);
    s->now = now;
    for (int kind = 0; kind < 2; kind++) {
        s->done[kind] = (uint32_t)(done[kind] - c->base.done[kind]);
        s->left[kind] = c->total[kind] > s->done[kind] ? c->total[kind] - s->done[kind] : 0;
        s->busy[kind] = busy[kind] - c->base.busy[kind];
    }
    s->off = off - c->base.off;
    s->bytes = (uint64_t)s->done[MK_CTL_COMM] * (uint32_t)g->chunk_m * (uint32_t)g->chunk_n *
                   mk_elem_bytes(ar->dtype) >>
               (g->pieces_log2 - g->span_log2); /* chunks at the edges count as whole ones */
    s->units = mk_count_of(came, blk->tag);
}
/* A step, if one is due and nobody else is at it. Returns the target's word. */
MK_DEV uint64_t mk_ar_ctl_step(const struct mk_ar *ar, const struct mk_ar_block *blk, struct mk_ar_ctl *c,
                               uint64_t now)
{
    struct mk_ar_ctl_seen seen;
    struct mk_ctl_sample s;
    const uint64_t tag = (uint64_t)blk->tag << 32, held = tag | 1;
    mk_ar_ctl_look(c, &seen);
    const uint32_t due = (uint32_t)seen.due, done = (uint32_t)(seen.done[0] + seen.done[1]);
    if (seen.lock == held || (seen.due >> 32 == blk->tag && (int32_t)(done - due) < 0) ||
        !mk_cas_gpu_u64(&c->lock, seen.lock, held))
        return seen.target;
    mk_ar_ctl_begin(ar, blk, c, now);
    mk_ar_ctl_sample(ar, blk, c, now, &s);
    if (mk_ctl_due(&c->conf, &c->ctl, &s)) {
        const uint32_t target = mk_ctl_step(&c->conf, &c->ctl, &s);
        if (s.left[MK_CTL_COMPUTE] && s.left[MK_CTL_COMM])
            c->settled = target;
        seen.target = tag | target;
        mk_st_rlx_gpu_u64(&c->target, seen.target);
        mk_st_rlx_gpu_u64(&c->due, tag | (uint32_t)mk_ar_ctl_due_at(c, &s));
    }
    mk_st_rel_gpu_u64(&c->lock, tag);
    return seen.target;
}

/* ---- a block ---- */

/* Its role, by the target's word. Before the first step of a launch it stays what it was at entry. */
MK_DEV int mk_ar_ctl_role(const struct mk_ar *ar, const struct mk_ar_block *blk, uint64_t target)
{
    if (target >> 32 == blk->tag && !ar->control_pin)
        return mk_ctl_role((uint32_t)target, blk->ticket);
    return blk->prefers_comm ? MK_CTL_COMM : MK_CTL_COMPUTE;
}
/* At entry: the time from here on counts. target: its word. */
MK_DEV void mk_ar_ctl_enter(const struct mk_ar *ar, struct mk_ar_block *blk, uint64_t target)
{
    struct mk_ctl_conf f;
    blk->mark_ns = 0;
    if (!ar->control)
        return;
    mk_ar_ctl_conf(ar, &f);
    const uint32_t first = f.band ? 0 : mk_ctl_min(f.start, mk_ctl_most(&f, f.units)); /* mk_ctl_begin's */
    blk->mark_ns = mk_now_ns();
    blk->prefers_comm = mk_ctl_role(ar->control_pin ? ar->control_pin : first, blk->ticket) == MK_CTL_COMM;
    blk->prefers_comm = mk_ar_ctl_role(ar, blk, target) == MK_CTL_COMM;
}
/* It found nothing to do until now: counts what role COMM was waited in. */
MK_DEV void mk_ar_waited(const struct mk_ar *ar, struct mk_ar_block *blk, uint64_t now)
{
    struct mk_ar_ctl *c = mk_ar_control(ar);
    if (c && blk->prefers_comm && now > blk->mark_ns)
        mk_tally_gpu_u64(&c->count.off, now - blk->mark_ns);
    blk->mark_ns = now;
}
/* blk->task is done. What led to it since the last task, or since nothing was there, is part of its cost. */
MK_DEV void mk_ar_account(const struct mk_ar *ar, struct mk_ar_block *blk, uint64_t now)
{
    struct mk_ar_ctl *c = mk_ar_control(ar);
    const int kind = blk->task.kind == MK_AR_TILE ? MK_CTL_COMPUTE : MK_CTL_COMM;
    const uint64_t spent = now > blk->mark_ns ? now - blk->mark_ns : 0;
    if (!c)
        return;
    blk->mark_ns = now;
    if (blk->task.kind >= MK_AR_HDR_OUT_LOCAL)
        return;
    if (blk->prefers_comm && kind == MK_CTL_COMPUTE)
        mk_tally_gpu_u64(&c->count.off, spent);
    mk_tally_gpu_u64(&c->count.busy[kind], spent);
    mk_tally_gpu_u64(&c->count.done[kind], 1);
}
/* By one lane that does all itself: between two tasks, and while there is none. */
MK_DEV void mk_ar_turn(const struct mk_ar *ar, struct mk_ar_block *blk)
{
    struct mk_ar_ctl *c = mk_ar_control(ar);
    if (!c)
        return;
    const uint64_t now = mk_now_ns();
    mk_ar_waited(ar, blk, now);
    blk->prefers_comm = mk_ar_ctl_role(ar, blk, mk_ar_ctl_step(ar, blk, c, now)) == MK_CTL_COMM;
}
