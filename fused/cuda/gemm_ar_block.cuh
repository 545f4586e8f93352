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
#include "ops/gemm_ar_need_do.h"

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
    int lost; /* a ready task went to another block: look again at once */
    int sent; /* the last block: 1 + the node whose completions it waits for */
    uint32_t idle;
    uint64_t entered_ns, told_ns;
};

/* mk_ar_try_comm with the warps side by side; which of the ready tasks a block takes first goes by its ticket, so that
 * blocks that look at once do not all want the same one. All threads call it; the result is thread 0's. */
MK_DEV int mk_wide_try_comm(const struct mk_ar *ar, struct mk_block_words *w)
{
    const uint32_t queues = mk_ar_comm_queues(ar), warps = mk_lanes() / 32, warp = mk_lane() / 32;
    int left = -1;
    for (uint32_t first = 0; first < queues; first += warps) {
        const uint32_t here = queues - first < warps ? queues - first : warps;
        if (warp < here) {
            struct mk_task t;
            int kind;
            int32_t peer;
            mk_ar_comm_queue(ar, first + warp, &kind, &peer);
            const int got = mk_ar_look(ar, &w->blk, kind, peer, &t);
            if (mk_warp_lane() == 0) {
                w->looks.got[warp] = got;
                w->looks.task[warp] = t;
            }
        }
        mk_block_sync();
        if (mk_lane() == 0) {
            int got = -1;
            for (uint32_t k = 0; k < here && got != 1; k++) {
                const uint32_t i = (w->blk.ticket + k) % here;
                if (w->looks.got[i] == 1 && mk_ar_claim(ar, &w->blk, &w->looks.task[i]))
                    got = 1;
                else if (w->looks.got[i] >= 0)
                    got = 0;
                w->lost |= w->looks.got[i] == 1 && got != 1;
            }
            w->next = got;
        }
        mk_block_sync();
        const int got = w->next;
        mk_block_sync();
        if (got == 1)
            return 1;
        if (got == 0)
            left = 0;
    }
    return left;
}

#include "cuda/gemm_ar_wait.cuh"

/* ---- life of a block ---- */

MK_DEV void mk_block_enter(const struct mk_ar *ar, struct mk_block_words *w)
{
    if (mk_lane() == 0) {
        mk_ar_enter(ar, &w->blk);
        w->idle = 0;
        for (int i = 0; i < MK_LOOK_MAX; i++)
            w->looks.got[i] = -1;
        w->entered_ns = mk_now_ns();
        w->told_ns = 0;
        w->sent = 0;
        if (w->blk.ticket == 0)
            mk_st_rlx_sys_u64(&mk_gpu_of(ar)->words->begun, w->blk.epoch);
    }
    mk_block_sync();
}

/* Claims the block's first tile into blk->task, else leaves MK_AR_KINDS there; the same answer on all threads. */
MK_DEV bool mk_block_first(const struct mk_ar *ar, struct mk_block_words *w)
{
    if (mk_lane() == 0) {
        w->blk.task.kind = MK_AR_KINDS;
        w->next = !mk_ar_aborted(ar) && mk_ar_claim_tile(ar, &w->blk);
    }
    mk_block_sync();
    return w->next == 1;
}

/* The next thing to do, the same on all threads. */
MK_DEV int mk_block_next(const struct mk_ar *ar, struct mk_block_words *w)
{
    mk_block_sync(); /* the last answer was read by all */
    if (mk_lane() == 0)
        w->next = mk_ar_next_tile(ar, &w->blk);
    mk_block_sync();
    int next = w->next;
    if (next == MK_NEXT_IDLE) {
        if (mk_lane() == 0)
            w->lost = 0;
        mk_block_sync();
        const int comm = mk_wide_try_comm(ar, w);
        if (mk_lane() == 0) {
            w->next = mk_ar_next_after(ar, &w->blk, comm);
            if (w->next == MK_NEXT_IDLE && !w->lost)
                mk_idle(ar, w);
        }
        mk_block_sync();
        next = w->next;
    }
    return next;
}

MK_DEV void mk_block_leave(const struct mk_ar *ar, struct mk_block_words *w)
{
    mk_block_sync();
    if (mk_lane() == 0) {
        w->last = mk_ar_leave(ar, &w->blk);
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
    /* Nobody writes C any more once the last block has left; a launch after the failure writes nothing else. */
    if (w->last)
        mk_poison(ar, 0, 1);
    else if (!w->blk.tiles)
        mk_poison(ar, blockIdx.x, gridDim.x);
}
