/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Latency path on the GPU: sends groups of LL words, clears, sums (ops/gemm_ar_ll_do.h). Accesses are 16 bytes, two words,
 * each of which is whole by itself. */
#pragma once
#include "cuda/gemm_ar_block.cuh"
#include "ops/gemm_ar_ll_do.h"

/* In shared memory. Waits are the block's business as a whole, in one of two ways:
 *   MK_LL_WATCHER (a thread number): that thread, which does nothing else, exchanges headers, looks for an abort and keeps
 *                 the deadline. Barriers of one phase, each with one arrival: entered (watcher: the words are there), stop
 *                 (watcher: aborted; warps that wait look at it), over (thread 0: nothing is waited for any more), watched
 *                 (watcher: it is done with the words)
 *   otherwise     all threads vote after each poll, and thread 0 does that in between, now and then */
struct mk_ll_words {
    mk_block_words block;
    uint64_t position, headers; /* mk_ll_headers */
    uint64_t left;              /* state->left, as it was */
    uint32_t polls;
    uint32_t rank, size;                   /* in the cluster; of the cluster */
    uint64_t entered, over, stop, watched; /* barriers, with a watcher */
    int all;
};

MK_DEV void mk_ll_put2(uint64_t *at, uint32_t a, uint32_t b, uint32_t mark)
{
    asm volatile("st.relaxed.sys.v2.b64 [%0], {%1, %2};" ::"l"(at), "l"(mk_ll_word(a, mark)),
                 "l"(mk_ll_word(b, mark))
                 : "memory");
}
MK_DEV bool mk_ll_get2(const uint64_t *at, uint32_t mark, uint32_t &a, uint32_t &b)
{
    uint64_t x, y;
    asm volatile("ld.relaxed.sys.v2.b64 {%0, %1}, [%2];" : "=l"(x), "=l"(y) : "l"(at) : "memory");
    a = (uint32_t)x;
    b = (uint32_t)y;
    return (uint32_t)(x >> 32) == mark && (uint32_t)(y >> 32) == mark;
}

/* One group of 4 elements to all local ranks, the next one first. Consecutive lanes, consecutive groups. */
MK_DEV void mk_ll_send(const struct mk_ar *ar, uint64_t position, uint32_t group, uint32_t v0, uint32_t v1)
{
    const struct mk_topo *t = &ar->rings.topo;
    MK_ROLLED
    for (int32_t k = 1; k <= t->nlocal; k++) {
        const int32_t to = t->local + k < t->nlocal ? t->local + k : t->local + k - t->nlocal;
        mk_ll_put2(mk_ll_at(ar, to, position) + (uint64_t)group * 2, v0, v1, mk_ll_mark(position));
    }
}

/* All threads of the shared text, before anything is sent: this block's share of the half that the next launch uses. */
MK_DEV void mk_ll_clear(const struct mk_ar *ar, uint64_t position)
{
    if (!mk_ll_clears(position))
        return;
    const struct mk_rings *r = &ar->rings;
    uint4 *half = (uint4 *)(ar->staging + mk_ll_slot(r, 0, position + 1));
    uint4 *heads = (uint4 *)(ar->staging + mk_ll_head(r, 0, position + 1));
    const uint64_t n = (uint64_t)r->topo.nlocal * r->ll_slot / 16;
    const uint64_t n_heads = (uint64_t)r->topo.nlocal * MK_LL_HEAD_BYTES / 16;
    const uint64_t first = (uint64_t)blockIdx.x * mk_lanes() + mk_lane();
    const uint64_t step = (uint64_t)gridDim.x * mk_lanes();
    for (uint64_t i = first; i < n; i += step)
        half[i] = make_uint4(0, 0, 0, 0);
    for (uint64_t i = first; i < n_heads; i += step)
        heads[i] = make_uint4(0, 0, 0, 0);
    asm volatile("fence.acq_rel.sys;" ::: "memory"); /* before this thread's block sends */
    mk_block_sync();
}

/* The same launch to every block of a cluster: what its block 0 read and took. */
struct mk_ll_ticket {
    uint64_t epoch, position, left;
    uint32_t ticket, aborted;
};

/* Block 0 of a cluster, one thread, when the launches before this one are over. */
MK_DEV mk_ll_ticket mk_ll_take(const struct mk_ar *ar, mk_ar_block *blk)
{
    mk_ll_ticket t;
    /* before the ticket: who has the last one knows that all have read them */
    t.position = mk_ld_rlx_gpu_u64(&ar->state->ll_pos);
    t.left = mk_ld_rlx_gpu_u64(&ar->state->left);
    /* After a failure position and epoch stand still: a launch that was queued behind it must not say anything, which
     * peers would take for words of the call that failed. */
    t.aborted = mk_peek_sys_u64(ar->abort_word) != 0;
    mk_ar_enter(ar, blk);
    t.epoch = blk->epoch;
    t.ticket = blk->ticket;
    if (t.ticket == 0 && !t.aborted)
        mk_ll_heads_out(ar, blk, t.position);
    return t;
}
/* One thread of every block of the cluster. */
MK_DEV void mk_ll_enter(const struct mk_ar *ar, mk_ll_words *w, const mk_ll_ticket &t, uint32_t rank,
                        uint32_t size)
{
    mk_block_words *b = &w->block;
    b->blk.epoch = t.epoch;
    b->blk.tag = (uint32_t)t.epoch;
    b->blk.ticket = t.ticket;
    w->position = t.position;
    w->left = t.left;
    w->rank = rank;
    w->size = size;
    b->idle = 0;
    b->sent = b->lost = 0;
    b->aborted = (int)t.aborted;
    for (int i = 0; i < MK_LOOK_MAX; i++)
        b->looks.got[i] = -1;
    b->entered_ns = mk_now_ns();
    b->told_ns = 0;
    w->headers = mk_ll_no_headers(ar, &b->blk, rank);
    w->polls = 1;
    w->all = 0;
    if (t.ticket == 0 && rank == 0)
        mk_st_rlx_sys_u64(&mk_gpu_of(ar)->words->begun, t.epoch);
}

/* One thread: what a block has to do that waits, or that has headers left. Returns whether the launch was aborted. */
MK_DEV bool mk_ll_watch(const struct mk_ar *ar, mk_ll_words *w)
{
    mk_block_words *b = &w->block;
    if (w->headers != mk_ll_every_header(ar))
        w->headers = mk_ll_headers(ar, &b->blk, w->headers);
    if (w->polls++ % 64 == 0) {
        const int32_t absent = mk_ll_absent(ar);
        b->looks.got[0] = 0;
        b->looks.task[0].kind = absent < 0 ? MK_AR_LATENCY : MK_AR_HDR_IN_LOCAL;
        b->looks.task[0].peer = absent < 0 ? 0 : absent;
        b->looks.task[0].item = b->looks.task[0].chunk = 0;
        mk_idle(ar, b);
    }
    return mk_peek_sys_u64(ar->abort_word) != 0;
}

/* Is everything here that this block (or with a watcher: this warp) looked for? 1, 0, or -1 after an abort; the same to all
 * who asked. */
MK_DEV int mk_ll_all(const struct mk_ar *ar, mk_ll_words *w, bool mine)
{
#ifdef MK_LL_WATCHER
    if (mk_warp_all(mine))
        return 1;
    return mk_warp_all(!mk_mbar_test(mk_smem(&w->stop), 0)) ? 0 : -1; /* one answer for the warp */
#else
    if (__syncthreads_and(mine))
        return 1;
    if (mk_lane() == 0)
        w->all = mk_ll_watch(ar, w) ? -1 : 0;
    mk_block_sync();
    return w->all;
#endif
}

/* Where tiles go to C before they are sent (the portable kernel): between a block's tile, or its own words and those of
 * others, and what the next words or sums in C say. Words are relaxed; this makes a tile's stores to C come before the sums
 * that other blocks store there. */
MK_DEV void mk_ll_fence_partials(void)
{
#ifndef MK_LL_WATCHER
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
#endif
}

MK_DEV mk_lot<4> mk_ll_unpack(uint32_t a, uint32_t b)
{
    mk_lot<4> r;
    r.f[0] = mk_to_f32<MK_TILE_F16>((uint16_t)a), r.f[1] = mk_to_f32<MK_TILE_F16>((uint16_t)(a >> 16));
    r.f[2] = mk_to_f32<MK_TILE_F16>((uint16_t)b), r.f[3] = mk_to_f32<MK_TILE_F16>((uint16_t)(b >> 16));
    return r;
}
/* A group's sum: epilogue, and into C, of which `cols` columns are left. */
template <bool F16>
MK_DEV void mk_ll_finish(const struct mk_ar *ar, mk_lot<4> &x, const float (&bias)[4], uint16_t *c,
                         int32_t cols, bool aligned)
{
    if (ar->bias) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            x.f[i] += bias[i];
    }
#pragma unroll 1
    for (int i = 0; ar->act && i < 4; i++)
        x.put(i, mk_activate(x.get(i), ar->act));
    const uint32_t w[2] = {mk_pack2<F16>(x.f[0], x.f[1]), mk_pack2<F16>(x.f[2], x.f[3])};
    if (cols >= 4 && aligned) {
        *(uint2 *)c = make_uint2(w[0], w[1]);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (i < cols)
            c[i] = (uint16_t)(w[i / 2] >> i % 2 * 16);
}

/* Two ranks' groups without epilogue: the sum of the type of C is the fp32 sum rounded once, bit by bit (bulk_sm90.cuh).
 * A fifth of the instructions. */
template <bool F16, int U>
MK_DEV bool mk_ll_pairs(const struct mk_ar *ar, const uint32_t (&v)[2][U][2], uint16_t *c, int64_t step,
                        int32_t rows, int32_t tall, bool whole)
{
#ifdef MK_LL_WATCHER
    if (ar->rings.topo.nlocal != 2 || ar->bias || ar->act || !whole)
        return false;
#pragma unroll
    for (int u = 0; u < U; u++, c += step)
        if (u * tall < rows)
            *(uint2 *)c =
                make_uint2(mk_add2_of<F16>(v[0][u][0], v[1][u][0]), mk_add2_of<F16>(v[0][u][1], v[1][u][1]));
    return true;
#else
    return false;
#endif
}

/* All `summers` of a block that stays, each with its number, those beyond mk_lanes() do nothing else: the block's share
 * of the sums. The threads of all these blocks stand side by side in rows
 * (as many as fit) over the groups of C's rows, so that a thread stays in its columns: next to nothing is left to compute
 * for a group, which is what counts where a warp takes 6 cycles an instruction. */
template <bool F16, int U>
MK_DEV void mk_ll_sum(const struct mk_ar *ar, mk_ll_words *w, uint32_t number, uint32_t summers)
{
    const struct mk_topo *t = &ar->rings.topo;
    const uint32_t row_groups = mk_ll_row_groups(ar->grid.n), mark = mk_ll_mark(w->position);
    const uint32_t all = mk_ll_staying(ar) * w->size * summers;
    const uint32_t block = ((uint32_t)ar->blocks - 1 - w->block.blk.ticket) * w->size + w->rank;
    const uint32_t me = block * summers + number;
    const uint32_t wide = row_groups < all ? row_groups : all, tall = all / wide; /* of the threads' rows */
    const int32_t m = (int32_t)ar->grid.m, n = (int32_t)ar->grid.n;
    const bool aligned = (uint64_t)ar->c % 8 == 0 && ar->ldc % 4 == 0;
    bool match = false; /* the heads: looked at together with the first words, used before those */
    int here = 1;
    /* uniform: the vote is that of all who go through the loops; also where there is nothing to sum */
    for (uint32_t left = 0; here > 0 && left < row_groups; left += wide) {
        const uint32_t group = left + me % wide;
        const int32_t col = (int32_t)group * 4;
        const bool whole = aligned && col + 4 <= n;
        float bias[4] = {0, 0, 0, 0};
        if (ar->bias)
            for (int i = 0; i < 4; i++)
                bias[i] = col + i < n ? mk_to_f32<F16>(((const uint16_t *)ar->bias)[col + i]) : 0;
        for (int32_t top = 0; here > 0 && top < m; top += U * (int32_t)tall) {
            const int32_t row = top + (int32_t)(me / wide);
            const int32_t rows = me / wide < tall && group < row_groups ? m - row : 0; /* left */
            const uint64_t at = ((uint64_t)row * row_groups + group) * MK_LL_GROUP_BYTES;
            const uint64_t stride = (uint64_t)tall * row_groups * MK_LL_GROUP_BYTES;
            mk_lot<4> acc[U];
            uint16_t *c = (uint16_t *)ar->c + (int64_t)row * ar->ldc + col;
            bool done = false;
#pragma unroll 1
            for (int32_t r = 0; here > 0 && r < t->nlocal;
                 r += 2) { /* two ranks at a time: their loads overlap */
                uint32_t v[2][U][2] = {};
                do {
                    bool mine = match || mk_ll_heads_match(ar, &w->block.blk, w->position);
#pragma unroll
                    for (int k = 0; k < 2; k++) {
                        const uint8_t *p = ar->staging + mk_ll_slot(&ar->rings, r + k, w->position) + at;
#pragma unroll
                        for (int u = 0; u < U; u++, p += stride)
                            if (u * (int32_t)tall < rows && r + k < t->nlocal)
                                mine &= mk_ll_get2((const uint64_t *)p, mark, v[k][u][0], v[k][u][1]);
                    }
                    here = mk_ll_all(ar, w, mine);
                } while (!here);
                match = true;
                mk_ll_fence_partials();
                done = here > 0 &&
                       mk_ll_pairs<F16, U>(ar, v, c, (int64_t)tall * ar->ldc, rows, (int32_t)tall, whole);
                if (done)
                    break;
#pragma unroll
                for (int k = 0; k < 2; k++)
#pragma unroll
                    for (int u = 0; u < U; u++)
                        if (r + k < t->nlocal)
                            acc[u].add(mk_ll_unpack(v[k][u][0], v[k][u][1]), r + k == 0);
            }
            if (done || here < 0)
                continue;
#pragma unroll
            for (int u = 0; u < U; u++, c += (int64_t)tall * ar->ldc)
                if (u * (int32_t)tall < rows)
                    mk_ll_finish<F16>(ar, acc[u], bias, c, n - col, aligned);
        }
    }
}

/* All `summers`, when the block has sent all of its tiles: it stays or not, with or without an abort before that. */
template <bool F16, int U>
MK_DEV void mk_ll_join(const struct mk_ar *ar, mk_ll_words *w, uint32_t number, uint32_t summers)
{
    if (!mk_ll_stays(ar, w->block.blk.ticket) || w->block.aborted)
        return;
    mk_ll_sum<F16, U>(ar, w, number, summers);
#ifdef MK_LL_WATCHER
    mk_bar_sync(2, summers); /* all have stored their sums */
#endif
}

/* All threads of the shared text, when the block has sent all of its tiles. */
template <bool F16, int U> MK_DEV void mk_ll_end(const struct mk_ar *ar, mk_ll_words *w, uint32_t summers)
{
    mk_block_words *b = &w->block;
    const bool aborted = b->aborted, stays = mk_ll_stays(ar, b->blk.ticket);
#ifdef MK_LL_WATCHER
    if (summers > mk_lanes() && mk_lane() < 32)
        mk_bar_arrive(3, summers - mk_lanes() + 32);
#endif
    mk_ll_join<F16, U>(ar, w, mk_lane(), summers);
    if (aborted)
        mk_poison(ar, blockIdx.x, gridDim.x);
    mk_block_sync();
#ifdef MK_LL_WATCHER
    if (mk_lane() == 0)
        mk_mbar_arrive(mk_smem(&w->over));
    mk_mbar_wait(mk_smem(&w->watched), 0);
    if (mk_lane() == 0)
        mk_grid_launch_next(); /* this block waits for nobody any more */
#else
    while (!aborted && !mk_ll_all(ar, w, w->headers == mk_ll_every_header(ar)))
        ;
#endif
    if (!stays && (b->blk.ticket != 0 || w->rank != 0))
        return;
    /* (In a launch after the failed one tickets and counts go on from there; whoever is the last does nothing but poison.) */
    if (mk_lane() == 0)
        b->last =
            mk_count_add_seen(&ar->state->left, b->blk.tag, 1, w->left) + 1 == mk_ll_counted(ar, w->size);
    mk_block_sync();
    if (b->last && mk_lane() < 32 && !mk_ar_aborted(ar)) {
        mk_ll_advance(ar, &b->blk, w->position);
        if (mk_lane() == 0)
            mk_st_rlx_sys_u64(&mk_gpu_of(ar)->words->ended, b->blk.epoch);
    }
    if (b->last && mk_ar_aborted(ar)) /* whoever summed before the abort left peer-dependent values */
        mk_poison(ar, 0, 1);
}
