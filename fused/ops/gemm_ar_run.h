/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* GEMM+AllReduce: claim a task, do it, finish it, leave. The executor's loop, on every block:
 *
 *   mk_ar_enter(ar, blk)
 *   while mk_ar_next(ar, blk) is not MK_NEXT_LEAVE:           leader only, result shared with the block
 *       MK_NEXT_TASK: mk_ar_do(ar, blk, scratch)              all lanes
 *       MK_NEXT_IDLE: machine's way to wait a little
 *   mk_ar_leave(ar, blk): the last block waits for mk_ar_drained, then mk_ar_advance
 *
 * The tile side (tile/tile_cpu.h, tile/tile_stub.cuh) supplies mk_tile_gemm, mk_tile_pack, mk_tile_sum,
 * mk_tile_reduce, mk_tile_unpack and the wake-ups mk_wake_self, mk_wake_local, mk_wake_proxy. */
#pragma once
#include "ops/gemm_ar.h"

enum mk_next { MK_NEXT_TASK = 0, MK_NEXT_IDLE = 1, MK_NEXT_LEAVE = 2 };

MK_DEV bool mk_ar_aborted(const struct mk_ar *ar)
{
    return mk_ld_acq_sys_u64(ar->abort_word) != 0;
}

/* ---- readiness ---- */

MK_DEV bool mk_ar_header_ok(const struct mk_ar *ar, const struct mk_ar_block *blk, int node_level,
                            int32_t peer)
{
    return mk_count_read(&ar->state->header_ok[node_level][peer], blk->tag) != 0;
}

/* All tiles that touch the chunk are in C. */
MK_DEV bool mk_ar_tiles_ready(const struct mk_ar *ar, const struct mk_ar_block *blk, uint32_t chunk)
{
    if (ar->skip_compute)
        return true;
    const struct mk_grid *g = &ar->grid;
    const struct mk_rect r = mk_chunk_rect(g, chunk);
    const uint32_t across = mk_div_up(g->n, g->tile_n);
    const uint32_t r0 = (uint32_t)(r.row / g->tile_m), r1 = (uint32_t)((r.row + r.rows - 1) / g->tile_m);
    const uint32_t c0 = (uint32_t)(r.col / g->tile_n), c1 = (uint32_t)((r.col + r.cols - 1) / g->tile_n);
    for (uint32_t i = r0; i <= r1; i++)
        for (uint32_t j = c0; j <= c1; j++)
            if (mk_poll_gpu(&ar->tile_flag[i * across + j]) != blk->epoch)
                return false;
    return true;
}

/* Partials of all other local ranks for owned chunk i. */
MK_DEV bool mk_ar_partials_here(const struct mk_ar *ar, const struct mk_ar_block *blk, uint32_t i)
{
    const struct mk_topo *t = &ar->rings.topo;
    for (int32_t r = 0; r < t->nlocal; r++) {
        if (r == t->local)
            continue;
        if (!mk_ar_header_ok(ar, blk, 0, r) ||
            !mk_ar_arrived(ar, MK_CLASS_PARTIAL, r, mk_ar_pos_in(ar, MK_CLASS_PARTIAL, r, i)))
            return false;
    }
    return true;
}
MK_DEV bool mk_ar_bcast_granted(const struct mk_ar *ar, const struct mk_ar_block *blk, uint32_t i)
{
    const struct mk_topo *t = &ar->rings.topo;
    for (int32_t r = 0; r < t->nlocal; r++) {
        if (r == t->local)
            continue;
        if (!mk_ar_header_ok(ar, blk, 0, r) ||
            !mk_ar_granted(ar, MK_CLASS_BCAST, r, mk_ar_pos_out(ar, MK_CLASS_BCAST, r, i)))
            return false;
    }
    return true;
}

MK_DEV bool mk_ar_sum_ready(const struct mk_ar *ar, const struct mk_ar_block *blk, const struct mk_task *t)
{
    const uint64_t p = mk_ar_pos_out(ar, MK_CLASS_SUM, t->peer, t->item);
    const uint32_t s = ar->rings.slots[MK_CLASS_SUM];
    if (!mk_ar_header_ok(ar, blk, 1, t->peer) || !mk_ar_granted(ar, MK_CLASS_SUM, t->peer, p))
        return false;
    if (ar->rings.topo.nnodes == 2 && mk_poll_gpu(&ar->state->sum_used[p % s]) + s < p + 1)
        return false;
    return mk_ar_tiles_ready(ar, blk, t->chunk) && mk_ar_partials_here(ar, blk, t->owned);
}

MK_DEV bool mk_ar_reduce_ready(const struct mk_ar *ar, const struct mk_ar_block *blk, const struct mk_task *t)
{
    const struct mk_topo *tp = &ar->rings.topo;
    for (int32_t e = 0; e < tp->nnodes; e++) {
        if (e == tp->node)
            continue;
        if (!mk_ar_header_ok(ar, blk, 1, e) ||
            !mk_ar_arrived(ar, MK_CLASS_SUM, e, mk_ar_pos_in(ar, MK_CLASS_SUM, e, t->item)))
            return false;
        if (tp->nnodes > 2 &&
            !mk_ar_granted(ar, MK_CLASS_RESULT, e, mk_ar_pos_out(ar, MK_CLASS_RESULT, e, t->item)))
            return false;
    }
    if (tp->nnodes == 2) {
        const uint64_t p = mk_ar_pos_out(ar, MK_CLASS_SUM, 1 - tp->node, t->item);
        if (mk_poll_gpu(&ar->state->sum_ready[p % ar->rings.slots[MK_CLASS_SUM]]) != p + 1)
            return false;
    } else if (!mk_ar_tiles_ready(ar, blk, t->chunk) || !mk_ar_partials_here(ar, blk, t->owned)) {
        return false;
    }
    return mk_ar_bcast_granted(ar, blk, t->owned);
}

/* Inputs here and every output slot granted? Once true it stays true until the task is claimed. */
MK_DEV bool mk_ar_ready(const struct mk_ar *ar, const struct mk_ar_block *blk, const struct mk_task *t)
{
    const int32_t p = t->peer;
    switch (t->kind) {
    case MK_AR_TILE:
        return true;
    case MK_AR_PUSH:
        return mk_ar_header_ok(ar, blk, 0, p) && mk_ar_tiles_ready(ar, blk, t->chunk) &&
               mk_ar_granted(ar, MK_CLASS_PARTIAL, p, mk_ar_pos_out(ar, MK_CLASS_PARTIAL, p, t->item));
    case MK_AR_SUM:
        return mk_ar_sum_ready(ar, blk, t);
    case MK_AR_REDUCE:
        return mk_ar_reduce_ready(ar, blk, t);
    case MK_AR_RESULT:
        return mk_ar_header_ok(ar, blk, 1, p) &&
               mk_ar_arrived(ar, MK_CLASS_RESULT, p, mk_ar_pos_in(ar, MK_CLASS_RESULT, p, t->item)) &&
               mk_ar_bcast_granted(ar, blk, t->owned);
    case MK_AR_BCAST:
        return mk_ar_header_ok(ar, blk, 0, p) &&
               mk_ar_arrived(ar, MK_CLASS_BCAST, p, mk_ar_pos_in(ar, MK_CLASS_BCAST, p, t->item));
    case MK_AR_HDR_OUT_LOCAL:
        return mk_ar_granted(ar, MK_CLASS_HEADER_LOCAL, p, mk_ar_pos_out(ar, MK_CLASS_HEADER_LOCAL, p, 0));
    case MK_AR_HDR_OUT_NODE:
        return mk_ar_granted(ar, MK_CLASS_HEADER_NODE, p, mk_ar_pos_out(ar, MK_CLASS_HEADER_NODE, p, 0));
    case MK_AR_HDR_IN_LOCAL:
        return mk_ar_arrived(ar, MK_CLASS_HEADER_LOCAL, p, mk_ar_pos_in(ar, MK_CLASS_HEADER_LOCAL, p, 0));
    case MK_AR_HDR_IN_NODE:
        return mk_ar_arrived(ar, MK_CLASS_HEADER_NODE, p, mk_ar_pos_in(ar, MK_CLASS_HEADER_NODE, p, 0));
    default:
        return false;
    }
}

/* ---- claim ---- */

/* Tries the head of one queue. Returns 1: claimed into blk->task; 0: the head is not ready; -1: nothing left. */
MK_DEV int mk_ar_try_queue(const struct mk_ar *ar, struct mk_ar_block *blk, int kind, int32_t peer)
{
    const uint32_t items = mk_ar_items(ar, kind, peer);
    uint64_t *word = &ar->state->queue[kind][peer];
    for (;;) {
        const uint32_t head = mk_count_read(word, blk->tag);
        if (head >= items)
            return -1;
        struct mk_task t;
        mk_ar_locate(ar, kind, peer, head, &t);
        if (!mk_ar_ready(ar, blk, &t)) {
            if (mk_count_read(word, blk->tag) == head)
                return 0;
            continue; /* somebody else claimed it while we looked */
        }
        if (mk_count_claim(word, blk->tag, head)) {
            blk->task = t;
            return 1;
        }
    }
}

/* All queues of a kind; the same results. Starts behind this rank's own number, so that ranks do not all turn to
 * the same peer first. */
MK_DEV int mk_ar_try_kind(const struct mk_ar *ar, struct mk_ar_block *blk, int kind)
{
    const struct mk_topo *t = &ar->rings.topo;
    const char fan = mk_ar_fan(kind);
    if (fan == '1')
        return mk_ar_try_queue(ar, blk, kind, 0);
    const int32_t n = fan == 'l' ? t->nlocal : t->nnodes;
    const int32_t self = fan == 'l' ? t->local : t->node;
    int left = -1;
    for (int32_t k = 1; k < n; k++) {
        const int got = mk_ar_try_queue(ar, blk, kind, (self + k) % n);
        if (got == 1)
            return 1;
        if (got == 0)
            left = 0;
    }
    return left;
}

/* Communication, later classes first, so that slots come free. */
MK_DEV int mk_ar_try_comm(const struct mk_ar *ar, struct mk_ar_block *blk)
{
    int left = -1;
    for (int i = 0; i < 9; i++) {
        const int kind = i < 2    ? MK_AR_HDR_OUT_LOCAL + i
                         : i < 4  ? MK_AR_HDR_IN_LOCAL + i - 2
                         : i == 4 ? MK_AR_RESULT
                         : i == 5 ? MK_AR_REDUCE
                         : i == 6 ? MK_AR_SUM
                         : i == 7 ? MK_AR_BCAST
                                  : MK_AR_PUSH;
        const int got = mk_ar_try_kind(ar, blk, kind);
        if (got == 1)
            return 1;
        if (got == 0)
            left = 0;
    }
    return left;
}

/* Called by every block at entry, one lane. Roles go by arrival ticket, never by block index. */
MK_DEV void mk_ar_enter(const struct mk_ar *ar, struct mk_ar_block *blk)
{
    blk->epoch = mk_ld_acq_gpu_u64(&ar->state->epoch);
    blk->tag = (uint32_t)blk->epoch;
    blk->ticket = mk_count_add(&ar->state->tickets, blk->tag, 1);
    blk->prefers_comm = (int32_t)blk->ticket < ar->budget;
    blk->helping = 0;
}

/* The next thing to do. One lane calls it; blk->task is then shared with the block. */
MK_DEV int mk_ar_next(const struct mk_ar *ar, struct mk_ar_block *blk)
{
    if (mk_ar_aborted(ar))
        return MK_NEXT_LEAVE;
    int tiles = -1;
    if (!blk->prefers_comm) {
        tiles = mk_ar_try_queue(ar, blk, MK_AR_TILE, 0);
        if (tiles == 1)
            return MK_NEXT_TASK;
    }
    const int comm = mk_ar_try_comm(ar, blk);
    if (comm == 1)
        return MK_NEXT_TASK;
    if (blk->prefers_comm) {
        tiles = mk_ar_try_queue(ar, blk, MK_AR_TILE, 0);
        if (tiles == 1)
            return MK_NEXT_TASK;
    }
    if (comm < 0)
        return MK_NEXT_LEAVE; /* tiles are claimed too: a tile queue never waits */
    /* No tile left, communication still to come: at most max_helpers blocks stay for it. */
    if (!blk->helping) {
        if ((int32_t)mk_count_add(&ar->state->helpers, blk->tag, 1) >= ar->max_helpers)
            return MK_NEXT_LEAVE;
        blk->helping = 1;
    }
    return MK_NEXT_IDLE;
}
