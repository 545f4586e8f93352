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
 * The tile side (tile/tile_cpu.h, tile/tile_cuda.cuh, tile/tile_stub.cuh) supplies mk_tile_gemm, mk_tile_op, mk_tile_place
 * (this block's tile, which is in C, into its slot too if that may be; false: it is not there) and the waits and wake-ups mk_pause, mk_wake_self, mk_wake_local, mk_wake_proxy. */
#pragma once
#include "ops/gemm_ar.h"
#if MK_CONTROL
#include "ops/gemm_ar_turn.h"
#endif

enum mk_next { MK_NEXT_TASK = 0, MK_NEXT_IDLE = 1, MK_NEXT_LEAVE = 2, MK_NEXT_TURN = 3 /* mk_ar_more */ };

MK_DEV bool mk_ar_aborted(const struct mk_ar *ar)
{
    return mk_ld_acq_sys_u64(ar->abort_word) != 0;
}
MK_DEV uint32_t mk_ar_tile_tag(const struct mk_ar_block *blk)
{
#if MK_PAIRED
    return blk->tile_tag;
#else
    return blk->tag;
#endif
}
/* Are there tiles that are not in C from the start? */
MK_DEV bool mk_ar_has_tiles(const struct mk_ar *ar)
{
    return !ar->skip_compute || (MK_PAIRED && ar->skip_compute == MK_TILES_COME);
}
MK_DEV bool mk_ar_tile_ready(const struct mk_ar *ar, const struct mk_ar_block *blk, uint32_t tile)
{
    return (mk_count_read(&ar->tile_flag[tile], mk_ar_tile_tag(blk)) & (MK_TILE_PLACED - 1)) ==
           ar->tile_parts;
}

/* ---- readiness ----
 *
 * All lanes of a warp look together, a need a lane. What a task needs is read by peeks that do not wait for each other,
 * and ordered once, by the mk_peeked of a look that found everything there. Once a task is ready it stays so until it
 * is claimed. */

/* Have the headers of all direct peers matched? Until then nothing that any of them has sent is read. */
MK_DEV uint32_t mk_ar_direct_peers(const struct mk_ar *ar)
{
    return (uint32_t)(ar->rings.topo.nlocal + ar->rings.topo.nnodes) - 2;
}
MK_DEV bool mk_ar_headers_match(const struct mk_ar *ar, const struct mk_ar_block *blk)
{
    return mk_count_peek(&ar->state->headers, blk->tag) == mk_ar_direct_peers(ar);
}

/* Do the flags of all tiles that touch the task's pieces count `want` under `mask`? Those numbered from, from + step, ... */
MK_DEV bool mk_ar_tiles_count(const struct mk_ar *ar, const struct mk_ar_block *blk, const struct mk_task *t,
                              uint32_t from, uint32_t step, uint32_t mask, uint32_t want)
{
    /* everything below 2^31; divisions are dear */
    const struct mk_grid *g = &ar->grid;
    const uint32_t m = (uint32_t)g->m, n = (uint32_t)g->n;
    const uint32_t cr = t->chunk / g->chunk_cols, chunk_row = cr * (uint32_t)g->chunk_m,
                   chunk_col = (t->chunk - cr * g->chunk_cols) * (uint32_t)g->chunk_n;
    const uint32_t end = m - chunk_row < (uint32_t)g->chunk_m ? m : chunk_row + (uint32_t)g->chunk_m;
    const uint32_t row = chunk_row + (uint32_t)mk_piece_row(g, t->piece),
                   col = chunk_col + (uint32_t)mk_piece_col(g, t->piece);
    if (row >= end || col >= n)
        return true; /* pieces without rows */
    const uint32_t high = (uint32_t)t->pieces * (uint32_t)mk_piece_rows(g);
    const uint32_t row1 = end - row < high ? end : row + high,
                   col1 = n - col < (uint32_t)mk_panel_cols(g) ? n : col + (uint32_t)mk_panel_cols(g);
    const uint32_t r0 = mk_div_by(row, g->tile_m, g->tile_m_log2),
                   c0 = mk_div_by(col, g->tile_n, g->tile_n_log2),
                   nr = mk_div_by(row1 - 1, g->tile_m, g->tile_m_log2) - r0 + 1,
                   nc = mk_div_by(col1 - 1, g->tile_n, g->tile_n_log2) - c0 + 1;
    bool ready = true;
    MK_ROLLED
    for (uint32_t i = from; i < nr * nc; i += step) {
        const uint32_t down = nc == 1 ? i : i / nc;
        ready &= (mk_count_peek(&ar->tile_flag[(r0 + down) * g->tile_cols + c0 + i - down * nc],
                                mk_ar_tile_tag(blk)) &
                  mask) == want;
    }
    return ready;
}
/* All of them are in C. */
MK_DEV bool mk_ar_tiles_ready(const struct mk_ar *ar, const struct mk_ar_block *blk, const struct mk_task *t,
                              uint32_t from, uint32_t step)
{
    return mk_ar_tiles_count(ar, blk, t, from, step, MK_TILE_PLACED - 1, ar->tile_parts);
}

MK_DEV void mk_need_set(struct mk_need *need, int what, int cls, int32_t peer, uint32_t n)
{
    need->what = what;
    need->cls = cls;
    need->peer = peer;
    need->n = n;
}
/* What a task needs of its own queue's ring, number i. */
MK_DEV void mk_ar_own_need(const struct mk_ar *ar, const struct mk_task *t, uint32_t i, struct mk_need *need)
{
    const bool two = ar->rings.topo.nnodes == 2;
    const int kind = t->kind;
    const bool in = kind == MK_AR_RESULT || kind == MK_AR_BCAST || kind >= MK_AR_HDR_IN_LOCAL;
    const int cls = kind == MK_AR_PUSH                                          ? MK_CLASS_PARTIAL
                    : kind == MK_AR_BCAST                                       ? MK_CLASS_BCAST
                    : kind == MK_AR_RESULT                                      ? MK_CLASS_RESULT
                    : kind == MK_AR_HDR_OUT_LOCAL || kind == MK_AR_HDR_IN_LOCAL ? MK_CLASS_HEADER_LOCAL
                    : kind == MK_AR_HDR_OUT_NODE || kind == MK_AR_HDR_IN_NODE   ? MK_CLASS_HEADER_NODE
                                                                                : MK_CLASS_SUM;
    int what = MK_NEED_NONE;
    if (kind == MK_AR_TILE)
        what = MK_NEED_NONE; /* always ready */
    else if (kind == MK_AR_REDUCE)
        what = i == 0 && two ? MK_NEED_SUM : MK_NEED_NONE;
    else if (i == 0)
        what = in ? MK_NEED_ARRIVED : MK_NEED_CREDIT;
    else if (i == 1 && (kind == MK_AR_SUM || kind == MK_AR_HDR_OUT_NODE))
        what = MK_NEED_DONE;
    else if (i == 2 && kind == MK_AR_SUM && two)
        what = MK_NEED_SUM_USED;
    mk_need_set(need, what, cls, kind == MK_AR_REDUCE ? 1 - ar->rings.topo.node : t->peer, t->item);
}
/* Need number i of a task, besides headers and tiles; false: it has no more. */
MK_DEV bool mk_ar_need(const struct mk_ar *ar, const struct mk_task *t, uint32_t i, struct mk_need *need)
{
    const struct mk_topo *tp = &ar->rings.topo;
    const bool reduce = t->kind == MK_AR_REDUCE;
    const uint32_t locals = (uint32_t)tp->nlocal - 1, nodes = (uint32_t)tp->nnodes - 1;
    const uint32_t partials = t->kind == MK_AR_SUM || (reduce && nodes != 1) ? locals : 0;
    const uint32_t bcasts = reduce || t->kind == MK_AR_RESULT ? locals : 0;
    const uint32_t sums = reduce ? nodes : 0, results = reduce && nodes > 1 ? nodes : 0;
    if (i < partials + bcasts) {
        const bool in = i < partials;
        mk_need_set(need, in ? MK_NEED_ARRIVED : MK_NEED_CREDIT, in ? MK_CLASS_PARTIAL : MK_CLASS_BCAST,
                    mk_peer_of_index(tp->local, (int32_t)(in ? i : i - partials)), t->owned);
        return true;
    }
    i -= partials + bcasts;
    if (i < sums + 2 * results) {
        const bool in = i < sums, done = i >= sums + results;
        mk_need_set(need,
                    in     ? MK_NEED_ARRIVED
                    : done ? MK_NEED_DONE
                           : MK_NEED_CREDIT,
                    in ? MK_CLASS_SUM : MK_CLASS_RESULT,
                    mk_peer_of_index(tp->node, (int32_t)(in     ? i
                                                         : done ? i - sums - results
                                                                : i - sums)),
                    t->item);
        return true;
    }
    mk_ar_own_need(ar, t, i - sums - 2 * results, need);
    return need->what != MK_NEED_NONE;
}
/* Does the task read tiles of this rank's C? */
MK_DEV bool mk_ar_reads_tiles(const struct mk_ar *ar, int kind)
{
    return kind == MK_AR_PUSH || kind == MK_AR_SUM || (kind == MK_AR_REDUCE && ar->rings.topo.nnodes != 2);
}

/* Inputs here and every output slot granted, as far as lane `lane` of `lanes` looked? Headers apart. */
MK_DEV bool mk_ar_ready_part(const struct mk_ar *ar, const struct mk_ar_block *blk, const struct mk_task *t,
                             uint32_t lane, uint32_t lanes)
{
    struct mk_need need;
    bool ready = true;
    MK_ROLLED
    for (uint32_t i = lane; mk_ar_need(ar, t, i, &need); i += lanes)
        ready &= mk_ar_holds(ar, &need);
    if (mk_ar_reads_tiles(ar, t->kind) && mk_ar_has_tiles(ar))
        ready &= mk_ar_tiles_ready(ar, blk, t, lane, lanes);
    return ready;
}
/* Must a task wait for headers, and are they still to come? What reads nothing of a peer may come before: it fills slots that
 * the peer has granted, whichever launch it is in, and that nobody reads before the headers match. */
MK_DEV bool mk_ar_headers_over(const struct mk_ar *ar, const struct mk_ar_block *blk, int kind)
{
    return kind >= MK_AR_HDR_OUT_LOCAL || kind == MK_AR_TILE || kind == MK_AR_PUSH ||
           (kind == MK_AR_SUM && ar->rings.topo.nlocal == 1) || blk->headed || mk_ar_headers_match(ar, blk);
}
/* All of it, by one thread. */
MK_DEV bool mk_ar_ready(const struct mk_ar *ar, const struct mk_ar_block *blk, const struct mk_task *t)
{
    return mk_ar_headers_over(ar, blk, t->kind) & mk_ar_ready_part(ar, blk, t, 0, 1);
}

/* ---- placing: a tile is stored where PUSH, or SUM of one rank a node, would copy it to ----
 *
 * The slot is written under the same conditions as by the task itself: its position is granted, which once true stays so until
 * the chunk is sent; slots go by position, so nobody else writes there. What was stored is ordered before the tile's flag as
 * C is. A tile whose slot is not granted in time is copied as ever. Nobody waits. */

/* The host, when grid and rings are known: mk_ar.place_rows. Every whole tile must lie in one panel of one chunk. */
MK_DEV uint32_t mk_ar_place_rows(const struct mk_ar *ar)
{
    const struct mk_grid *g = &ar->grid;
    const struct mk_topo *t = &ar->rings.topo;
    const uint64_t row = (uint64_t)mk_panel_cols(g) * mk_elem_bytes(ar->dtype);
    const bool as_is =
        t->nlocal > 1 || !ar->wire_fp32 || ar->dtype == 0; /* node sums of another type are converted */
    return as_is && !ar->skip_comm && !ar->skip_compute && !ar->latency && !mk_ar_alone(ar) && row &&
                   g->chunk_m % g->tile_m == 0 && mk_panel_cols(g) % g->tile_n == 0 &&
                   g->chunk_n % mk_panel_cols(g) == 0 && ar->rings.slot_bytes % row == 0
               ? (uint32_t)(ar->rings.slot_bytes / row)
               : 0;
}
/* Where ring `ring` of those begins in its memory (the peer's staging for PUSH, the own for SUM). */
MK_DEV uint64_t mk_ar_place_base(const struct mk_ar *ar, int32_t ring)
{
    const struct mk_topo *t = &ar->rings.topo;
    return t->nlocal > 1
               ? mk_in_slot(&ar->rings, MK_CLASS_PARTIAL, mk_peer_of_index(t->local, ring), t->local, 0)
               : mk_out_slot(&ar->rings, MK_CLASS_SUM, mk_peer_of_index(t->node, ring), 0);
}
/* All lanes of a warp: may the tile be stored there now, and where? What it reads of other ranks is ordered before what follows. */
MK_DEV bool mk_ar_place_tile(const struct mk_ar *ar, uint32_t tile, struct mk_ar_place *at)
{
    /* everything below 2^31 */
    const struct mk_grid *g = &ar->grid;
    const struct mk_topo *tp = &ar->rings.topo;
    const uint32_t m = (uint32_t)g->m, n = (uint32_t)g->n, width = (uint32_t)mk_panel_cols(g);
    const uint32_t tr = tile / g->tile_cols, row = tr * (uint32_t)g->tile_m,
                   col = (tile - tr * g->tile_cols) * (uint32_t)g->tile_n;
    const uint32_t cr = row / (uint32_t)g->chunk_m, cc = col / (uint32_t)g->chunk_n,
                   top = cr * (uint32_t)g->chunk_m, left = cc * (uint32_t)g->chunk_n;
    const uint32_t panel = (col - left) / width, begins = left + panel * width;
    const uint32_t high = m - top < (uint32_t)g->chunk_m ? m - top : (uint32_t)g->chunk_m;
    const uint32_t chunk = cr * g->chunk_cols + cc, owned = chunk / (uint32_t)tp->nlocal;
    struct mk_need need;
    struct mk_task t;
    bool granted = true;
    if (row + (uint32_t)g->tile_m > m || begins + width > n)
        return false; /* at an edge: other strides */
    t.kind = MK_AR_PUSH;
    t.peer = (int32_t)(chunk - owned * (uint32_t)tp->nlocal);
    t.owned = t.item = owned;
    if (t.peer == tp->local) {
        if (tp->nlocal > 1)
            return false; /* what is summed here is read from C */
        t.kind = MK_AR_SUM;
        t.item = tp->nnodes == 2 ? owned : owned / (uint32_t)tp->nnodes;
        t.peer = tp->nnodes == 2 ? 1 - tp->node : (int32_t)(owned - t.item * (uint32_t)tp->nnodes);
        if (t.peer == tp->node)
            return false;
    }
    at->kind = t.kind;
    at->peer = t.peer;
    at->ring = mk_peer_index(t.kind == MK_AR_PUSH ? tp->local : tp->node, t.peer);
    if (at->ring >= MK_AR_PLACES)
        return false;
#if MK_MUTATE != 8
    MK_ROLLED
    for (uint32_t i = mk_warp_lane(); mk_ar_need(ar, &t, i, &need); i += mk_warp_lanes())
        granted &= mk_ar_holds(ar, &need);
#else
    (void)need;
#endif
    if (!mk_warp_all(granted))
        return false;
    mk_peeked();
    const int cls = t.kind == MK_AR_PUSH ? MK_CLASS_PARTIAL : MK_CLASS_SUM;
    at->row = mk_slot_of(ar->rings.slots[cls], mk_ar_pos_out(ar, cls, t.peer, t.item)) * ar->place_rows +
              panel * high + row - top;
    at->col = col - begins;
    return true;
}
/* All lanes of a warp: are all tiles of a ready task's pieces in the slot that it would copy them to? */
MK_DEV bool mk_ar_placed(const struct mk_ar *ar, const struct mk_ar_block *blk, const struct mk_task *t)
{
    if (!ar->place_rows || !(t->kind == MK_AR_PUSH || (t->kind == MK_AR_SUM && ar->rings.topo.nlocal == 1)))
        return false;
    return mk_warp_all(mk_ar_tiles_count(ar, blk, t, mk_warp_lane(), mk_warp_lanes(), 0xffffffffu,
                                         ar->tile_parts * (1 + MK_TILE_PLACED)));
}

/* ---- claim ---- */

/* Looks at the first tasks of a queue of `items` (mk_ar_items); all lanes of a warp. Returns how many of them in a row are
 * ready, *t being the first; 0: that one is not; -1: nothing left. A machine whose warps have several lanes looks at
 * several tasks at a time: handing them out one look after the other would take a look a task. */
MK_DEV int mk_ar_look(const struct mk_ar *ar, const struct mk_ar_block *blk, int kind, int32_t peer,
                      uint32_t items, struct mk_task *t)
{
    const uint64_t *word = &ar->state->queue[kind][peer];
    const uint32_t window = mk_warp_lanes() > 1 ? 8 : 1, lanes = mk_warp_lanes() / window;
    const uint32_t mine = mk_warp_lane() / lanes;
    uint64_t seen = mk_peek_gpu_u64(word);
    MK_ROLLED
    for (;;) {
        struct mk_task own;
        seen = mk_warp_first(seen);
        const uint32_t head = mk_count_of(seen, blk->tag);
        if (head >= items)
            return -1;
        const uint32_t ahead = items - head < window ? items - head : window;
        mk_ar_locate(ar, kind, peer, head + (mine < ahead ? mine : 0), items, &own);
        const bool ready = mk_ar_headers_over(ar, blk, kind) &
                           mk_ar_ready_part(ar, blk, &own, mk_warp_lane() % lanes, lanes);
        const uint32_t n = mk_warp_prefix(mine >= ahead || ready, lanes);
        if (n) {
            mk_peeked();
            mk_ar_locate(ar, kind, peer, head, items, t);
            t->seen = seen;
            return (int)(n < ahead ? n : ahead);
        }
        mk_ar_locate(ar, kind, peer, head, items, t);
        if (MK_LOOKS_ON)
            return 0;
        const uint64_t now = mk_peek_gpu_u64(word);
        if (now == seen)
            return 0;
        seen = now; /* somebody else claimed it while we looked */
    }
}
/* Claims the next tile, which is always ready: many do so at once. false: there is none. seen: what the queue's word
 * was at any time of this launch. */
MK_DEV bool mk_ar_claim_tile_seen(const struct mk_ar *ar, struct mk_ar_block *blk, uint64_t seen)
{
    const uint32_t items = mk_ar_items(ar, MK_AR_TILE, 0);
    if (mk_count_of(seen, blk->tag) >= items)
        return false;
    const uint32_t item = mk_count_take(&ar->state->queue[MK_AR_TILE][0], blk->tag, seen);
    if (item >= items)
        return false;
    mk_ar_locate(ar, MK_AR_TILE, 0, item, items, &blk->task);
    blk->tiles++;
    return true;
}
MK_DEV bool mk_ar_claim_tile(const struct mk_ar *ar, struct mk_ar_block *blk)
{
    return mk_ar_claim_tile_seen(ar, blk, mk_peek_gpu_u64(&ar->state->queue[MK_AR_TILE][0]));
}
/* Claims the first task that is left of the n that a look found ready; false: other blocks were faster. */
MK_DEV bool mk_ar_claim(const struct mk_ar *ar, struct mk_ar_block *blk, const struct mk_task *t, int n)
{
    uint64_t *word = &ar->state->queue[t->kind][t->peer];
    uint64_t seen = t->seen;
    uint32_t number = t->number;
    MK_ROLLED
    while (number < t->number + (uint32_t)n) {
        if (mk_count_claim(word, blk->tag, number, seen)) {
            mk_ar_locate(ar, t->kind, t->peer, number, t->items, &blk->task);
            return true;
        }
        seen = mk_peek_gpu_u64(word);
        number = mk_count_of(seen, blk->tag);
    }
    return false;
}
/* Tries the head of one queue. Returns 1: claimed into blk->task; 0: the head is not ready; -1: nothing left. */
MK_DEV int mk_ar_try_queue(const struct mk_ar *ar, struct mk_ar_block *blk, int kind, int32_t peer)
{
    const uint32_t items = mk_ar_items(ar, kind, peer);
    struct mk_task t;
    MK_ROLLED
    for (;;) {
        const int got = mk_ar_look(ar, blk, kind, peer, items, &t);
        if (got <= 0 || mk_ar_claim(ar, blk, &t, got))
            return got > 0 ? 1 : got;
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
    MK_ROLLED
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
#define MK_AR_COMM_KINDS 9
MK_DEV int mk_ar_comm_kind(int i)
{
    return i < 2    ? MK_AR_HDR_OUT_LOCAL + i
           : i < 4  ? MK_AR_HDR_IN_LOCAL + i - 2
           : i == 4 ? MK_AR_RESULT
           : i == 5 ? MK_AR_REDUCE
           : i == 6 ? MK_AR_SUM
           : i == 7 ? MK_AR_BCAST
                    : MK_AR_PUSH;
}
/* The queues of communication, numbered in that order, for machines that look at several at once. */
MK_DEV uint32_t mk_ar_fan_out(const struct mk_ar *ar, int kind)
{
    const struct mk_topo *t = &ar->rings.topo;
    const char fan = mk_ar_fan(kind);
    return fan == '1' ? 1 : (uint32_t)(fan == 'l' ? t->nlocal : t->nnodes) - 1;
}
MK_DEV uint32_t mk_ar_comm_queues(const struct mk_ar *ar)
{
    uint32_t n = 0;
    MK_ROLLED
    for (int i = 0; i < MK_AR_COMM_KINDS; i++)
        n += mk_ar_fan_out(ar, mk_ar_comm_kind(i));
    return n;
}
MK_DEV void mk_ar_comm_queue(const struct mk_ar *ar, uint32_t q, int *kind, int32_t *peer)
{
    const struct mk_topo *t = &ar->rings.topo;
    int i = 0;
    MK_ROLLED
    while (q >= mk_ar_fan_out(ar, mk_ar_comm_kind(i)))
        q -= mk_ar_fan_out(ar, mk_ar_comm_kind(i++));
    *kind = mk_ar_comm_kind(i);
    const char fan = mk_ar_fan(*kind);
    const int32_t n = fan == 'l' ? t->nlocal : t->nnodes, self = fan == 'l' ? t->local : t->node;
    *peer = fan == '1' ? 0 : (self + 1 + (int32_t)q) % n;
}
MK_DEV void mk_ar_queue_make(const struct mk_ar *ar, uint32_t q, struct mk_ar_queue *out)
{
    int kind;
    int32_t peer;
    mk_ar_comm_queue(ar, q, &kind, &peer);
    out->kind = (int16_t)kind;
    out->peer = (int16_t)peer;
    out->items = mk_ar_items(ar, kind, peer);
}
/* The host, when all else of the launch is known. */
MK_DEV void mk_ar_list_queues(struct mk_ar *ar)
{
    ar->queues = mk_ar_comm_queues(ar);
    ar->header_queues = 2 * mk_ar_direct_peers(ar);
    MK_ROLLED
    for (uint32_t q = 0; q < ar->queues && q < MK_AR_QUEUES; q++)
        mk_ar_queue_make(ar, q, &ar->queue[q]);
}
MK_DEV int mk_ar_try_comm(const struct mk_ar *ar, struct mk_ar_block *blk)
{
    int left = -1;
    MK_ROLLED
    for (int i = 0; i < MK_AR_COMM_KINDS; i++) {
        const int got = mk_ar_try_kind(ar, blk, mk_ar_comm_kind(i));
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
#if MK_PAIRED
    /* Before the other words: that G has begun orders them after the launch before it. */
    blk->tile_tag = ar->skip_compute == MK_TILES_COME ? mk_pair_tag(ar->tile_flag) : 0;
#endif
    /* One trip for both. The launch before this one is over, and it wrote the epoch. */
    const uint64_t seen = mk_peek_gpu_u64(&ar->state->tickets);
#if MK_CONTROL
    const uint64_t target = ar->control ? mk_peek_gpu_u64(&mk_ar_control(ar)->target) : 0;
#endif
    blk->epoch = mk_peek_gpu_u64(&ar->state->epoch);
    blk->tag = (uint32_t)blk->epoch;
    blk->ticket = mk_count_add_seen(&ar->state->tickets, blk->tag, 1, seen);
    blk->prefers_comm = (int32_t)blk->ticket < ar->budget; /* those that are there for certain: mk_ctl_role */
    blk->helping = 0;
    blk->headed = 0;
    blk->tiles = 0;
    blk->idle_since_ns = 0;
#if MK_PAIRED
    if (ar->skip_compute != MK_TILES_COME)
        blk->tile_tag = blk->tag;
#endif
#if MK_CONTROL
    mk_ar_ctl_enter(ar, blk, target);
#endif
}

/* What comes before the look at communication: MK_NEXT_TASK a tile, for blocks that compute; MK_NEXT_LEAVE after an
 * abort; MK_NEXT_IDLE: nothing yet. */
MK_DEV int mk_ar_next_tile(const struct mk_ar *ar, struct mk_ar_block *blk)
{
    if (mk_ar_aborted(ar))
        return MK_NEXT_LEAVE;
    if (!blk->prefers_comm && mk_ar_claim_tile(ar, blk))
        return MK_NEXT_TASK;
    return MK_NEXT_IDLE;
}

/* The same on machines whose blocks compute tile after tile: a block that computes, between two of them. What it looks
 * at comes in one trip. MK_NEXT_TASK: a tile; LEAVE: after an abort; TURN: its role is the other one from here on; IDLE:
 * there is no tile left. */
MK_DEV int mk_ar_more(const struct mk_ar *ar, struct mk_ar_block *blk)
{
    const uint64_t aborted = mk_peek_sys_u64(ar->abort_word);
    const uint64_t seen = mk_peek_gpu_u64(&ar->state->queue[MK_AR_TILE][0]);
#if MK_CONTROL
    struct mk_ar_ctl *c = mk_ar_control(ar);
    if (c && mk_ar_ctl_role(ar, blk, mk_peek_gpu_u64(&c->target)) == MK_CTL_COMM)
        return MK_NEXT_TURN;
#endif
    if (aborted)
        return MK_NEXT_LEAVE;
    return mk_ar_claim_tile_seen(ar, blk, seen) ? MK_NEXT_TASK : MK_NEXT_IDLE;
}

/* May a block that prefers communication, and found none ready, take a tile? The first at once, since nothing can be
 * ready before the first tiles are; further ones when nothing was for a while. */
MK_DEV bool mk_ar_impatient(const struct mk_ar *ar, struct mk_ar_block *blk)
{
    if (!ar->patience_ns || !blk->tiles)
        return true;
    const uint64_t now = mk_now_ns();
    if (!blk->idle_since_ns)
        blk->idle_since_ns = now;
    return now - blk->idle_since_ns >= ar->patience_ns;
}

#if MK_CONTROL
/* The same under the controller. A block that found a task of communication does it, whatever its role; with no tile left
 * budget + max_helpers blocks stay until no communication is. */
MK_DEV int mk_ar_next_controlled(const struct mk_ar *ar, struct mk_ar_block *blk, int comm)
{
    const int role = blk->prefers_comm ? MK_CTL_COMM : MK_CTL_COMPUTE;
    if (comm == 1) { /* claimed already */
        blk->idle_since_ns = 0;
        return MK_NEXT_TASK;
    }
    const bool patient = comm == 0 && mk_ar_impatient(ar, blk);
    if (comm == 0 && role == MK_CTL_COMM && !patient)
        return MK_NEXT_IDLE; /* whatever is left */
    const uint32_t tiles = mk_ar_items(ar, MK_AR_TILE, 0);
    const int tile = mk_count_peek(&ar->state->queue[MK_AR_TILE][0], blk->tag) < tiles ? 1 : -1;
    switch (mk_ctl_act(role, tile, comm, patient)) {
    case MK_CTL_TILE:
        blk->idle_since_ns = 0;
        return mk_ar_claim_tile(ar, blk) ? MK_NEXT_TASK : MK_NEXT_IDLE;
    case MK_CTL_LEAVE:
        return MK_NEXT_LEAVE;
    case MK_CTL_STAY:
        if (!blk->helping &&
            (int32_t)mk_count_add(&ar->state->helpers, blk->tag, 1) >= ar->budget + ar->max_helpers)
            return MK_NEXT_LEAVE;
        blk->helping = 1;
        return MK_NEXT_IDLE;
    default:
        return MK_NEXT_IDLE;
    }
}
#endif

/* What comes after it. comm: its result (mk_ar_try_comm). */
MK_DEV int mk_ar_next_after(const struct mk_ar *ar, struct mk_ar_block *blk, int comm)
{
#if MK_CONTROL
    if (ar->control)
        return mk_ar_next_controlled(ar, blk, comm);
#endif
    if (comm == 1) {
        blk->idle_since_ns = 0;
        return MK_NEXT_TASK;
    }
    if (blk->prefers_comm) {
        if (comm == 0 && !mk_ar_impatient(ar, blk))
            return MK_NEXT_IDLE;
        blk->idle_since_ns = 0;
        if (mk_ar_claim_tile(ar, blk))
            return MK_NEXT_TASK;
    }
    if (comm < 0)
        return MK_NEXT_LEAVE; /* tiles are claimed too: a tile queue never waits */
    /* No tile left, communication still to come: at most max_helpers more blocks stay for it. */
    if (!blk->helping && !blk->prefers_comm) {
        if ((int32_t)mk_count_add(&ar->state->helpers, blk->tag, 1) >= ar->max_helpers)
            return MK_NEXT_LEAVE;
        blk->helping = 1;
    }
    return MK_NEXT_IDLE;
}

/* The next thing to do. One lane calls it; blk->task is then shared with the block. */
MK_DEV int mk_ar_next(const struct mk_ar *ar, struct mk_ar_block *blk)
{
#if MK_CONTROL
    mk_ar_turn(ar, blk);
#endif
    const int tile = mk_ar_next_tile(ar, blk);
    return tile != MK_NEXT_IDLE ? tile : mk_ar_next_after(ar, blk, mk_ar_try_comm(ar, blk));
}
