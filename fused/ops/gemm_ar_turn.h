/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* GEMM+AllReduce under the controller: what a block counts, when a step is made, which role it has next. One lane of a
 * block calls these. ar->control 0: the roles go by ar->budget for the whole launch. Included by gemm_ar_run.h. */
#pragma once
#include "ops/gemm_ar.h"

MK_DEV struct mk_ar_ctl *mk_ar_control(const struct mk_ar *ar)
{
    return ar->control ? &ar->state->control[ar->control - 1] : (struct mk_ar_ctl *)0;
}

/* Tasks of computation that end before the first chunk can be ready: its last tile in the order of COMPUTE, and all
 * before that. */
MK_DEV uint32_t mk_ar_first_ready(const struct mk_ar *ar)
{
    const struct mk_grid *g = &ar->grid;
    if (!mk_ar_items(ar, MK_AR_TILE, 0))
        return 0;
    const int64_t rows = g->m < g->chunk_m ? g->m : g->chunk_m, cols = g->n < g->chunk_n ? g->n : g->chunk_n;
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
    f->band = mk_ar_first_ready(ar);
}

/* Under the lock, before the first step of a launch. */
MK_DEV void mk_ar_ctl_begin(const struct mk_ar *ar, const struct mk_ar_block *blk, struct mk_ar_ctl *c,
                            uint64_t now)
{
    if (c->epoch == blk->epoch)
        return;
    c->epoch = blk->epoch;
    c->total[MK_CTL_COMPUTE] = mk_ar_items(ar, MK_AR_TILE, 0);
    c->total[MK_CTL_COMM] = mk_ar_comm_tasks(ar);
    mk_ar_ctl_conf(ar, &c->conf);
    mk_ctl_begin(&c->conf, &c->ctl, now);
}
MK_DEV void mk_ar_ctl_sample(const struct mk_ar *ar, const struct mk_ar_block *blk, struct mk_ar_ctl *c,
                             uint64_t now, struct mk_ctl_sample *s)
{
    s->now = now;
    MK_ROLLED
    for (int kind = 0; kind < 2; kind++) {
        s->done[kind] = (uint32_t)(mk_ld_acq_gpu_u64(&c->count.done[kind]) - c->base.done[kind]);
        s->left[kind] = c->total[kind] > s->done[kind] ? c->total[kind] - s->done[kind] : 0;
        s->busy[kind] = mk_ld_rlx_gpu_u64(&c->count.busy[kind]) - c->base.busy[kind];
    }
    s->off = mk_ld_rlx_gpu_u64(&c->count.off) - c->base.off;
    s->bytes = mk_ld_rlx_gpu_u64(&c->count.bytes) - c->base.bytes;
    s->units = mk_count_read(&ar->state->tickets, blk->tag);
}
/* A step, if one is due and nobody else is at it. */
MK_DEV void mk_ar_ctl_step(const struct mk_ar *ar, const struct mk_ar_block *blk, struct mk_ar_ctl *c,
                           uint64_t now)
{
    struct mk_ctl_sample s;
    const uint64_t held = (uint64_t)blk->tag << 32 | 1, seen = mk_ld_rlx_gpu_u64(&c->lock);
    if (seen == held || !mk_cas_gpu_u64(&c->lock, seen, held))
        return;
    mk_ar_ctl_begin(ar, blk, c, now);
    mk_ar_ctl_sample(ar, blk, c, now, &s);
    if (mk_ctl_due(&c->conf, &c->ctl, &s)) {
        const uint32_t target = mk_ctl_step(&c->conf, &c->ctl, &s);
        if (s.left[MK_CTL_COMPUTE] && s.left[MK_CTL_COMM])
            c->settled = target;
        mk_st_rlx_gpu_u64(&c->target, (uint64_t)blk->tag << 32 | target);
    }
    mk_st_rel_gpu_u64(&c->lock, held - 1);
}
MK_DEV uint32_t mk_ar_ctl_target(const struct mk_ar *ar, const struct mk_ar_block *blk, struct mk_ar_ctl *c)
{
    const uint64_t word = mk_ld_rlx_gpu_u64(&c->target);
    struct mk_ctl_conf f;
    if ((uint32_t)(word >> 32) == blk->tag)
        return (uint32_t)word;
    mk_ar_ctl_conf(ar, &f); /* what mk_ctl_begin will say */
    return f.band ? 0 : mk_ctl_min(f.start, mk_ctl_most(&f, f.units));
}

/* At entry: the time from here on counts. */
MK_DEV void mk_ar_ctl_enter(const struct mk_ar *ar, struct mk_ar_block *blk)
{
    blk->mark_ns = ar->control ? mk_now_ns() : 0;
    blk->prefers_comm = ar->control ? 0 : blk->prefers_comm;
}
/* Between two tasks, and while there is none: counts what the role was waited in, makes a step, takes the role. */
MK_DEV void mk_ar_turn(const struct mk_ar *ar, struct mk_ar_block *blk)
{
    struct mk_ar_ctl *c = mk_ar_control(ar);
    if (!c)
        return;
    const uint64_t now = mk_now_ns();
    if (blk->prefers_comm && now > blk->mark_ns)
        mk_add_gpu_u64(&c->count.off, now - blk->mark_ns);
    blk->mark_ns = now;
    mk_ar_ctl_step(ar, blk, c, now);
    blk->prefers_comm = mk_ctl_role(mk_ar_ctl_target(ar, blk, c), blk->ticket) == MK_CTL_COMM;
}
/* blk->task began at begin_ns and is done. */
MK_DEV void mk_ar_account(const struct mk_ar *ar, struct mk_ar_block *blk, uint64_t begin_ns)
{
    struct mk_ar_ctl *c = mk_ar_control(ar);
    const struct mk_task *t = &blk->task;
    const int kind = t->kind == MK_AR_TILE ? MK_CTL_COMPUTE : MK_CTL_COMM;
    if (!c)
        return;
    const uint64_t now = mk_now_ns(), spent = now > begin_ns ? now - begin_ns : 0;
    const uint64_t before = begin_ns > blk->mark_ns ? begin_ns - blk->mark_ns : 0;
    blk->mark_ns = now;
    if (t->kind >= MK_AR_HDR_OUT_LOCAL)
        return;
    if (blk->prefers_comm)
        mk_add_gpu_u64(&c->count.off, before + (kind == MK_CTL_COMPUTE ? spent : 0));
    if (kind == MK_CTL_COMM) {
        const struct mk_rect r = mk_chunk_rect(&ar->grid, t->chunk);
        mk_add_gpu_u64(&c->count.bytes, (uint64_t)r.rows * (uint64_t)r.cols * mk_elem_bytes(ar->dtype));
    }
    mk_add_gpu_u64(&c->count.busy[kind], spent);
    mk_add_gpu_u64(&c->count.done[kind], 1);
}
/* Last block only: nobody counts any more. The launch's last tasks teach too, also one too short for a step. */
MK_DEV void mk_ar_ctl_end(const struct mk_ar *ar, const struct mk_ar_block *blk)
{
    struct mk_ar_ctl *c = mk_ar_control(ar);
    const uint64_t now = mk_now_ns();
    struct mk_ctl_sample s;
    if (!c)
        return;
    mk_ar_ctl_begin(ar, blk, c, now);
    mk_ar_ctl_sample(ar, blk, c, now, &s);
    mk_ctl_learn(&c->ctl, &s, MK_CTL_COMPUTE);
    mk_ctl_learn(&c->ctl, &s, MK_CTL_COMM);
    c->base = c->count;
}
