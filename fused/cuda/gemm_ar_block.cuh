/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Executor of GEMM+AllReduce on the GPU: the loop of a block through one launch, over the same schedule headers as
 * cpu/exec.c. Include after the tile side; mk_tile_gemm and mk_tile_op are declared, their bodies may follow.
 *
 * A block never waits inside a task. With nothing to do its leader sleeps 100 ns and looks again; the warps look at
 * the queues of communication side by side, so that a look costs what its slowest queue costs. */
#pragma once
#include "tile/tile_cuda.cuh"
MK_DEV void mk_tile_gemm(const struct mk_ar *ar, const struct mk_ar_block *blk);
MK_DEV void mk_tile_op(const struct mk_ar *ar, const struct mk_ar_block *blk, const struct mk_op *op);
/* Tiles are placed where their sums leave shared memory (tile/gemm_ar_sm90.cuh), or not at all. */
MK_DEV bool mk_tile_place(const struct mk_ar *, uint32_t)
{
    return false;
}
#include "ops/gemm_ar_need_do.h"

#include "cuda/gemm_ar_trace.cuh"

#define MK_LOOK_MAX 8 /* warps that run the shared text, at most */
struct mk_looks {
    struct mk_task task[MK_LOOK_MAX];
    int got[MK_LOOK_MAX];
};

/* What a block shares. */
struct mk_block_words {
    struct mk_ar_block blk;
    struct mk_looks looks;
    int next, last;
    int got; /* of the last look (mk_ar_try_comm), a word of its own: `next` may be written while it is read */
    int lost;        /* a ready task went to another block: look again at once */
    int aborted;     /* seen at the last look */
    int untiled;     /* there is no tile left to claim */
    uint64_t target; /* of the controller: its word at the last look */
    uint32_t first;  /* where looks begin: behind the headers when these are done */
    int sent;        /* the last block: 1 + the node whose completions it waits for */
    uint32_t idle;
    uint64_t entered_ns, told_ns;
    struct mk_trace_words trace;
};

/* Positions of the launch, in shared memory where there are not too many: of nine peers. */
#define MK_POS_MAX 54

/* ---- words of the NIC ----
 *
 * Flags, credits and completions of node rings are written by the host's proxy, in host memory. Every block polling
 * them across the bus would fill it (an emulated NIC then takes 310 us a copy instead of 7), so an idle block brings
 * all of them to the device now and then, and everybody looks there.
 *   net_fixed  notes and completions of node classes   proxy (release, sys)        the block that forwards (sys)
 *   net_words  the same, on the device                 that block, after a fence   all blocks (peeks)
 *   forward    {ns of the last pass, under way}        that block                  all blocks */
#define MK_FORWARD_NS 500

/* All lanes of a warp. */
MK_DEV void mk_forward_words(const struct mk_ar *ar, uint64_t from_off, uint64_t first, uint32_t n)
{
    const uint64_t *from = (const uint64_t *)(ar->net_fixed + from_off) + first;
    uint64_t *to = (uint64_t *)(ar->net_words + from_off) + first;
    MK_ROLLED
    for (uint32_t i = mk_warp_lane(); i < n; i += 32) {
        const uint64_t v = mk_peek_sys_u64(from + i), have = mk_peek_gpu_u64(to + i);
        if (v != have) {
            mk_peeked();
            mk_st_rel_gpu_u64(to + i, v);
        }
    }
}
MK_DEV void mk_forward_net(const struct mk_ar *ar)
{
    const struct mk_rings *r = &ar->rings;
    uint64_t *word = &ar->state->forward;
    const uint64_t now = mk_now_ns(), seen = mk_warp_first(mk_peek_gpu_u64(word));
    int mine = 0;
    if ((seen & 1) || now - (seen >> 1) < MK_FORWARD_NS)
        return;
    if (mk_warp_lane() == 0)
        mine = mk_cas_gpu_u64(word, seen, now << 1 | 1);
    if (!mk_warp_first((uint64_t)mine))
        return;
    mk_forward_words(ar, r->notes_off, r->flag_note[MK_CLASS_SUM], r->notes - r->flag_note[MK_CLASS_SUM]);
    mk_forward_words(ar, r->done_off, 0, r->dones);
    __syncwarp();
    if (mk_warp_lane() == 0)
        mk_st_rel_gpu_u64(word, now << 1);
}

/* ---- looking ---- */

/* The leader, after the warps have looked at `here` queues from `first` on: claims one of the ready tasks; which of them
 * it tries first goes by its ticket, so that blocks that look at once do not all want the same one. */
MK_DEV int mk_claim_looked(const struct mk_ar *ar, struct mk_block_words *w, uint32_t here)
{
    int got = -1;
    MK_ROLLED
    for (uint32_t k = 0; k < here && got != 1; k++) {
        const uint32_t i = (w->blk.ticket + k) % here;
        if (w->looks.got[i] > 0 && mk_ar_claim(ar, &w->blk, &w->looks.task[i], w->looks.got[i]))
            got = 1;
        else if (w->looks.got[i] >= 0)
            got = 0;
        w->lost |= w->looks.got[i] > 0 && got != 1;
    }
    return got;
}
/* The leader, when every queue of headers is empty: is that phase over? */
MK_DEV void mk_end_headers(const struct mk_ar *ar, struct mk_block_words *w)
{
    if (!w->blk.headed && mk_ar_headers_match(ar, &w->blk)) {
        mk_peeked();
        w->blk.headed = 1;
        w->first = ar->header_queues;
    }
}
#if MK_CONTROL
/* A warp, beside those that look: the controller's step, if one is due. A step takes as long as a look. */
MK_DEV void mk_wide_turn(const struct mk_ar *ar, struct mk_block_words *w)
{
    struct mk_ar_ctl *c = mk_ar_control(ar);
    if (c && mk_warp_lane() == 0)
        w->target = mk_ar_ctl_step(ar, &w->blk, c, mk_now_ns());
    __syncwarp();
}
/* The leader, after the look: the role from here on; time without anything to do is counted. */
MK_DEV void mk_wide_turned(const struct mk_ar *ar, struct mk_block_words *w)
{
    if (ar->control)
        w->blk.prefers_comm = mk_ar_ctl_role(ar, &w->blk, w->target) == MK_CTL_COMM;
}
#endif
/* mk_ar_try_comm with the warps side by side. All threads call it, and get the same answer. */
MK_DEV int mk_wide_try_comm(const struct mk_ar *ar, struct mk_block_words *w)
{
    const uint32_t queues = ar->queues, start = w->first, warps = mk_lanes() / 32, warp = mk_lane() / 32;
    int left = -1;
    bool headers = false;                                     /* some are left */
    const uint64_t aborted = mk_peek_sys_u64(ar->abort_word); /* comes while the warps look */
    MK_ROLLED
    for (uint32_t first = start; first < queues; first += warps) {
        const uint32_t here = queues - first < warps ? queues - first : warps;
        if (warp < here) {
            struct mk_task t;
            struct mk_ar_queue q;
            if (first + warp < MK_AR_QUEUES)
                q = ar->queue[first + warp];
            else
                mk_ar_queue_make(ar, first + warp, &q);
            const int got = mk_ar_look(ar, &w->blk, q.kind, q.peer, q.items, &t);
            if (mk_warp_lane() == 0) {
                w->looks.got[warp] = got;
                w->looks.task[warp] = t;
            }
        }
        if (warp == warps - 1 && ar->rings.topo.nnodes > 1)
            mk_forward_net(ar);
#if MK_CONTROL
        if (warp == warps - 2 && first == start)
            mk_wide_turn(ar, w);
#endif
        mk_block_sync();
        if (mk_lane() == 0) {
            w->aborted = aborted != 0;
            MK_ROLLED
            for (uint32_t i = 0; i < here && first + i < ar->header_queues; i++)
                headers |= w->looks.got[i] >= 0;
            w->got = mk_claim_looked(ar, w, here);
            if (first + here >= ar->header_queues && !headers)
                mk_end_headers(ar, w);
        }
        mk_block_sync();
        const int got = w->got; /* written again only after the next look's barrier */
        if (got == 1)
            return 1;
        if (got == 0)
            left = 0;
    }
    return left;
}

#include "cuda/gemm_ar_wait.cuh"

/* ---- life of a block ---- */

/* All threads: `pos` gets the launch's positions, a lane each; NULL where they are too many. Then a block barrier. */
MK_DEV const uint64_t *mk_block_positions(const struct mk_ar *ar, uint64_t (&pos)[MK_POS_MAX])
{
    const struct mk_topo *t = &ar->rings.topo;
    const uint32_t n = mk_ar_pos_count(t), at = mk_lane();
    if (n > MK_POS_MAX)
        return (const uint64_t *)0;
    if (at < n) {
        int cls, out;
        int32_t peer;
        mk_ar_pos_whose(t, at, &cls, &peer, &out);
        pos[at] = mk_ld_rlx_gpu_u64(out ? &ar->state->pos_out[cls][peer] : &ar->state->pos_in[cls][peer]);
    }
    return pos;
}

MK_DEV void mk_block_enter(const struct mk_ar *ar, struct mk_block_words *w)
{
    if (mk_lane() == 0) {
        mk_ar_enter(ar, &w->blk);
        w->idle = 0;
        w->lost = w->aborted = w->untiled = 0;
        w->target = 0;
        w->first = 0;
        MK_ROLLED
        for (int i = 0; i < MK_LOOK_MAX; i++)
            w->looks.got[i] = -1;
        w->entered_ns = mk_now_ns();
        w->told_ns = 0;
        w->sent = 0;
        mk_trace_enter(mk_gpu_of(ar), &w->trace);
        if (w->blk.ticket == 0)
            mk_st_rlx_sys_u64(&mk_gpu_of(ar)->words->begun, w->blk.epoch);
    }
    mk_block_sync();
}

/* The next thing to do, the same on all threads. */
MK_DEV int mk_block_next(const struct mk_ar *ar, struct mk_block_words *w)
{
    mk_block_sync(); /* the last answer was read by all */
    if (mk_lane() == 0)
        mk_trace_end(&w->trace, &w->blk);
    if (!w->blk.prefers_comm && !w->untiled) {
        if (mk_lane() == 0) {
            w->next = mk_ar_more(ar, &w->blk);
            mk_trace_begin(&w->trace, w->next);
        }
        mk_block_sync();
        const int next = w->next;
        if (next == MK_NEXT_TASK || next == MK_NEXT_LEAVE)
            return next;
        mk_block_sync();
        if (mk_lane() == 0) {
            w->untiled = next == MK_NEXT_IDLE;
            w->blk.prefers_comm = next == MK_NEXT_TURN;
        }
    }
    if (mk_lane() == 0)
        w->lost = 0;
    const int comm = mk_wide_try_comm(ar, w);
    if (mk_lane() == 0) {
#if MK_CONTROL
        mk_wide_turned(ar, w);
#endif
        w->next = w->aborted ? MK_NEXT_LEAVE : mk_ar_next_after(ar, &w->blk, comm);
        mk_trace_begin(&w->trace, w->next);
        if (w->next == MK_NEXT_IDLE && !w->lost)
            mk_idle(ar, w);
#if MK_CONTROL
        if (w->next == MK_NEXT_IDLE && ar->control)
            mk_ar_waited(ar, &w->blk, mk_now_ns());
#endif
    }
    mk_block_sync();
    return w->next;
}

MK_DEV void mk_block_leave(const struct mk_ar *ar, struct mk_block_words *w)
{
    mk_block_sync();
    if (mk_lane() == 0) {
        mk_trace_leave(mk_gpu_of(ar), &w->trace);
        w->last = mk_ar_leave(ar, &w->blk);
        MK_ROLLED
        for (int32_t e = 0; w->last && e < ar->rings.topo.nnodes; e++)
            while (e != ar->rings.topo.node && !mk_ar_drained(ar, e) && !mk_ar_aborted(ar)) {
                if (mk_node_left(ar, e))
                    break;
                w->sent = 1 + e;
                mk_idle(ar, w);
            }
        if (w->last && !mk_ar_aborted(ar)) {
            mk_ar_advance(ar, &w->blk);
            mk_st_rlx_sys_u64(&mk_gpu_of(ar)->words->ended, w->blk.epoch);
        }
    }
    mk_block_sync();
    if (!mk_ar_aborted(ar))
        return;
#if MK_PAIRED
    mk_grid_wait(); /* who brings the tiles writes C until it ends */
#endif
    /* Nobody writes C any more once the last block has left; a launch after the failure writes nothing else. */
    if (w->last)
        mk_poison(ar, 0, 1);
    else if (!w->blk.tiles)
        mk_poison(ar, blockIdx.x, gridDim.x);
}
