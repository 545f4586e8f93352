/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* GEMM+AllReduce: doing and finishing a claimed task, and leaving. Include after the tile side. */
#pragma once
#include "ops/gemm_ar_run.h"

/* One lane, after mk_posting: position p of (cls) into local peer's arrival flag. */
MK_DEV void mk_ar_post_local(const struct mk_ar *ar, int cls, int32_t peer, uint64_t p)
{
    const uint32_t note = mk_flag_note(&ar->rings, cls, peer, ar->rings.topo.local, p);
    mk_post_sys_u64(mk_ar_note(ar->peer_fixed[peer], &ar->rings, note), p + 1);
    mk_wake_local(ar, peer);
}

/* Hands a command to the proxy; waits for room in the ring, which the proxy always makes, or for abort. */
MK_DEV void mk_ar_command(const struct mk_ar *ar, struct mk_cmd *c)
{
    uint64_t at;
    MK_ROLLED
    while (!mk_ring_claim(&ar->ring, &at)) {
        if (mk_ar_aborted(ar))
            return;
        mk_wake_proxy(ar);
        mk_pause(ar);
    }
    mk_ring_publish(&ar->ring, at, c);
    mk_wake_proxy(ar);
}

/* One lane, after mk_posting: sends this rank's out slot of (cls) at position p to node `peer`; `bytes` 0 never. */
MK_DEV void mk_ar_send(const struct mk_ar *ar, const struct mk_ar_block *blk, int cls, int32_t peer,
                       uint64_t p, uint64_t bytes, uint32_t chunk)
{
    const struct mk_rings *r = &ar->rings;
    const uint64_t header = cls == MK_CLASS_HEADER_NODE;
    struct mk_cmd c;
    mk_cmd_init(&c);
    mk_cmd_set_kind(&c, MK_CMD_WRITE);
    mk_cmd_set_swin(&c, header ? 0 : 1);
    mk_cmd_set_dwin(&c, header ? 0 : 1);
    mk_cmd_set_loff(&c, mk_out_slot(r, cls, peer, p));
    mk_cmd_set_roff(&c, mk_in_slot(r, cls, peer, r->topo.node, p));
    mk_cmd_set_len(&c, bytes);
    mk_cmd_set_chunk(&c, chunk);
    mk_cmd_set_note(&c, mk_flag_note(r, cls, peer, r->topo.node, p));
    mk_cmd_set_use4(&c, mk_lap_of(r->slots[cls], p) + 1);
    mk_cmd_set_value(&c, p + 1);
    mk_cmd_set_done(&c, mk_done_index(r, cls, peer, p));
    mk_cmd_set_comm(&c, ar->comm_id);
    mk_cmd_set_epoch(&c, blk->epoch);
    mk_cmd_set_node(&c, (uint64_t)peer);
    mk_ar_command(ar, &c);
}

/* One lane, after mk_posting; the block has read position p of in-ring (cls, peer): gives consumed slots back, in order. The word is
 * {done bits 32, consumed position 32}: one CAS both marks the slot and advances, so no release can be lost between two
 * blocks that finish out of order. The upper half of the consumed position is that of p, which is less than 2^32 ahead.
 * Credits are cumulative and only grow, hence max at a local peer, and "later replaces earlier" at the proxy. */
MK_DEV void mk_ar_release_one(const struct mk_ar *ar, const struct mk_ar_block *blk, int cls, int32_t peer,
                              uint64_t p)
{
    const struct mk_rings *r = &ar->rings;
    uint64_t *word = &ar->state->release[cls][peer];
    uint64_t have, consumed;
    uint32_t bits, steps;
    MK_ROLLED
    do {
        have = mk_ld_acq_gpu_u64(word);
        const uint32_t ahead = (uint32_t)p - (uint32_t)have;
        bits = (uint32_t)(have >> 32) | 1u << ahead;
        steps = 0;
        MK_ROLLED
        while (bits & 1) {
            bits >>= 1;
            steps++;
        }
        consumed = p - ahead + steps;
    } while (!mk_post_cas_gpu_u64(word, have, (uint64_t)bits << 32 | (uint32_t)consumed));
    if (!steps)
        return;
    if (steps > 1)
        mk_posting(); /* the credit stands for what others have read too */
#if MK_MUTATE == 3
    if (consumed % 97 == 0)
        return;
#elif MK_MUTATE == 7
    if (consumed >= 1000)
        return;
#endif
    const uint64_t credit = consumed + r->slots[cls];
    if (mk_class_is_local(cls)) {
        const uint32_t note = mk_credit_note(r, cls, peer, r->topo.local);
        mk_post_max_sys_u64(mk_ar_note(ar->peer_fixed[peer], r, note), credit);
        mk_wake_local(ar, peer);
        return;
    }
    struct mk_cmd c;
    mk_cmd_init(&c);
    mk_cmd_set_kind(&c, MK_CMD_CREDIT);
    mk_cmd_set_note(&c, mk_credit_note(r, cls, peer, r->topo.node));
    mk_cmd_set_use4(&c, credit);
    mk_cmd_set_value(&c, credit);
    mk_cmd_set_done(&c, MK_CMD_NO_DONE);
    mk_cmd_set_comm(&c, ar->comm_id);
    mk_cmd_set_epoch(&c, blk->epoch);
    mk_cmd_set_node(&c, (uint64_t)peer);
    mk_ar_command(ar, &c);
}

MK_DEV void mk_ar_release_partials(const struct mk_ar *ar, const struct mk_ar_block *blk, uint32_t i)
{
    const struct mk_topo *t = &ar->rings.topo;
    MK_ROLLED
    for (int32_t r = 0; r < t->nlocal; r++)
        if (r != t->local)
            mk_ar_release_one(ar, blk, MK_CLASS_PARTIAL, r, mk_ar_pos_in(ar, MK_CLASS_PARTIAL, r, i));
}
MK_DEV void mk_ar_post_bcast(const struct mk_ar *ar, uint32_t i)
{
    const struct mk_topo *t = &ar->rings.topo;
    MK_ROLLED
    for (int32_t r = 0; r < t->nlocal; r++)
        if (r != t->local)
            mk_ar_post_local(ar, MK_CLASS_BCAST, r, mk_ar_pos_out(ar, MK_CLASS_BCAST, r, i));
}

/* ---- headers ---- */

/* One lane. */
MK_DEV void mk_ar_header_out(const struct mk_ar *ar, const struct mk_ar_block *blk, int cls, int32_t peer)
{
    const uint64_t p = mk_ar_pos_out(ar, cls, peer, 0);
    uint64_t *h =
        cls == MK_CLASS_HEADER_LOCAL
            ? (uint64_t *)(ar->peer_fixed[peer] + mk_in_slot(&ar->rings, cls, peer, ar->rings.topo.local, p))
            : (uint64_t *)(ar->net_fixed + mk_out_slot(&ar->rings, cls, peer, p));
    mk_st_rlx_sys_u64(&h[0], blk->epoch);
    mk_st_rlx_sys_u64(&h[1], ar->signature);
    mk_posting();
    if (cls == MK_CLASS_HEADER_LOCAL)
        mk_ar_post_local(ar, cls, peer, p);
    else
        mk_ar_send(ar, blk, cls, peer, p, MK_HEADER_BYTES, 0);
}

/* One lane. Equal epoch and signature: the peer may be used in this launch. Else nothing of it is, on any rank. */
MK_DEV void mk_ar_header_in(const struct mk_ar *ar, const struct mk_ar_block *blk, int cls, int32_t peer)
{
    const uint64_t p = mk_ar_pos_in(ar, cls, peer, 0);
    const struct mk_topo *t = &ar->rings.topo;
    const int node_level = cls == MK_CLASS_HEADER_NODE;
    const uint64_t *h = (const uint64_t *)(mk_ar_fixed(ar, cls) +
                                           mk_in_slot(&ar->rings, cls, mk_class_self(t, cls), peer, p));
    if (mk_ld_rlx_sys_u64(&h[0]) != blk->epoch || mk_ld_rlx_sys_u64(&h[1]) != ar->signature) {
        mk_raise_mismatch(ar, node_level, peer);
        return;
    }
    mk_posting();
    mk_count_add(&ar->state->headers, blk->tag, 1);
    mk_ar_release_one(ar, blk, cls, peer, p);
}

/* ---- tasks ---- */

/* The whole tile is in C, stored by this block; placed: and in its slot. */
MK_DEV void mk_ar_publish_tile(const struct mk_ar *ar, const struct mk_ar_block *blk, uint32_t tile,
                               bool placed)
{
#if MK_MUTATE != 6
    mk_fence_async();
    mk_block_sync();
#endif
    if (mk_lane() == 0)
        mk_count_add(&ar->tile_flag[tile], blk->tag, ar->tile_parts * (placed ? 1 + MK_TILE_PLACED : 1));
}

MK_DEV uint64_t mk_ar_bytes(const struct mk_ar *ar, uint32_t chunk, uint32_t elem)
{
    const struct mk_rect r = mk_chunk_rect(&ar->grid, chunk);
    return (uint64_t)r.rows * (uint64_t)r.cols * elem;
}

/* Reads and writes of a chunk task. Returns the chunk's position in the ring that it belongs to: the out-ring, or an in-ring
 * that it reads. The slot there is no other chunk's of the same queue until all its pieces are done. */
MK_DEV uint64_t mk_ar_op(const struct mk_ar *ar, const struct mk_task *t, struct mk_op *op)
{
    const struct mk_topo *tp = &ar->rings.topo;
    uint64_t p = 0;
    op->r = mk_chunk_rect(&ar->grid, t->chunk);
    op->skip = mk_piece_rect(&ar->grid, t->piece, t->pieces, &op->r);
    op->sum = MK_OP_COPY;
    op->wire = op->to_c = op->to_peers = op->to_result = 0;
    op->from = (const uint8_t *)0;
    op->to = (uint8_t *)0;
    switch (t->kind) {
    case MK_AR_PUSH:
        p = mk_ar_pos_out(ar, MK_CLASS_PARTIAL, t->peer, t->item);
        op->to = mk_ar_at_local(ar, MK_CLASS_PARTIAL, t->peer, p);
        break;
    case MK_AR_SUM:
        p = mk_ar_pos_out(ar, MK_CLASS_SUM, t->peer, t->item);
        op->sum = MK_OP_NODE_SUM;
        op->wire = 1;
        op->to = mk_ar_out(ar, MK_CLASS_SUM, t->peer, p);
        break;
    case MK_AR_REDUCE:
        op->sum = MK_OP_TOTAL;
        op->to_c = op->to_peers = 1;
        op->to_result = tp->nnodes > 2;
        if (tp->nnodes > 1)
            p = mk_ar_pos_in(ar, MK_CLASS_SUM, mk_peer_of_index(tp->node, 0), t->item);
        else if (tp->nlocal > 1)
            p = mk_ar_pos_in(ar, MK_CLASS_PARTIAL, mk_peer_of_index(tp->local, 0), t->item);
        break;
    case MK_AR_RESULT:
        p = mk_ar_pos_in(ar, MK_CLASS_RESULT, t->peer, t->item);
        op->from = mk_ar_in(ar, MK_CLASS_RESULT, t->peer, p);
        op->to_c = op->to_peers = 1;
        break;
    default: /* BCAST */
        p = mk_ar_pos_in(ar, MK_CLASS_BCAST, t->peer, t->item);
        op->from = mk_ar_in(ar, MK_CLASS_BCAST, t->peer, p);
        op->to_c = 1;
        break;
    }
    return p;
}

/* One lane, after REDUCE: the result to the other nodes (D > 2), and everything read is given back. */
MK_DEV void mk_ar_finish_reduce(const struct mk_ar *ar, const struct mk_ar_block *blk)
{
    const struct mk_task *t = &blk->task;
    const struct mk_topo *tp = &ar->rings.topo;
    MK_ROLLED
    for (int32_t e = 0; e < tp->nnodes; e++) {
        if (e == tp->node)
            continue;
        if (tp->nnodes > 2)
            mk_ar_send(ar, blk, MK_CLASS_RESULT, e, mk_ar_pos_out(ar, MK_CLASS_RESULT, e, t->item),
                       mk_ar_bytes(ar, t->chunk, mk_elem_bytes(ar->dtype)), t->chunk);
        mk_ar_release_one(ar, blk, MK_CLASS_SUM, e, mk_ar_pos_in(ar, MK_CLASS_SUM, e, t->item));
    }
    if (tp->nnodes == 2) {
        const uint64_t p = mk_ar_pos_out(ar, MK_CLASS_SUM, 1 - tp->node, t->item);
        mk_post_gpu_u64(&ar->state->sum_used[mk_slot_of(ar->rings.slots[MK_CLASS_SUM], p)], p + 1);
    }
}

/* One lane, the block's reads and writes for a piece being over: was it the chunk's last piece? What the other blocks read
 * and wrote for the chunk is then before what this lane does next (acquire, release: gpu). p: of mk_ar_op. */
MK_DEV bool mk_ar_last_piece(const struct mk_ar *ar, const struct mk_task *t, uint64_t p)
{
    const struct mk_rings *r = &ar->rings;
    const int kind = t->kind - MK_AR_PUSH;
    const int32_t log2 = ar->grid.pieces_log2;
    if (!log2 || mk_ar_alone(ar)) /* alone: nobody is told */
        return true;
    const int cls = t->kind == MK_AR_PUSH     ? MK_CLASS_PARTIAL
                    : t->kind == MK_AR_RESULT ? MK_CLASS_RESULT
                    : t->kind == MK_AR_BCAST  ? MK_CLASS_BCAST
                    : r->topo.nnodes > 1      ? MK_CLASS_SUM
                                              : MK_CLASS_PARTIAL;
    uint64_t *word = &ar->state->pieces[kind][t->peer][mk_slot_of(r->slots[cls], p)];
    return mk_count_add(word, (uint32_t)p, t->pieces) + (uint32_t)t->pieces == 1u << log2;
}
/* One lane: what others wait for after a chunk task. p: of mk_ar_op. */
MK_DEV void mk_ar_post_chunk(const struct mk_ar *ar, const struct mk_ar_block *blk, const struct mk_op *op,
                             uint64_t p)
{
    const struct mk_task *t = &blk->task;
    mk_posting();
    if (t->kind == MK_AR_PUSH && MK_MUTATE != 5)
        mk_ar_post_local(ar, MK_CLASS_PARTIAL, t->peer, p);
    if (op->to_peers)
        mk_ar_post_bcast(ar, t->owned);
    if (t->kind == MK_AR_SUM) {
        if (ar->rings.topo.nnodes == 2)
            mk_post_gpu_u64(&ar->state->sum_ready[mk_slot_of(ar->rings.slots[MK_CLASS_SUM], p)], p + 1);
        mk_ar_send(ar, blk, MK_CLASS_SUM, t->peer, p,
                   mk_ar_bytes(ar, t->chunk, ar->wire_fp32 ? 4 : mk_elem_bytes(ar->dtype)), t->chunk);
    }
    if (t->kind == MK_AR_REDUCE)
        mk_ar_finish_reduce(ar, blk);
    if (t->kind == MK_AR_SUM || (t->kind == MK_AR_REDUCE && ar->rings.topo.nnodes != 2))
        mk_ar_release_partials(ar, blk, t->owned);
    if (op->from)
        mk_ar_release_one(ar, blk, t->kind == MK_AR_RESULT ? MK_CLASS_RESULT : MK_CLASS_BCAST, t->peer, p);
}
MK_DEV void mk_ar_do_chunk(const struct mk_ar *ar, const struct mk_ar_block *blk)
{
    struct mk_op op;
    const uint64_t p = mk_ar_op(ar, &blk->task, &op);
#if MK_MUTATE == 5
    if (mk_lane() == 0 && blk->task.kind == MK_AR_PUSH)
        mk_ar_post_local(ar, MK_CLASS_PARTIAL, blk->task.peer, p);
#endif
    if (op.r.rows && !mk_ar_placed(ar, blk, &blk->task))
        mk_tile_op(ar, blk, &op);
    mk_fence_async();
    mk_block_sync(); /* the block's reads and writes are over */
    if (mk_lane() == 0 && mk_ar_last_piece(ar, &blk->task, p))
        mk_ar_post_chunk(ar, blk, &op, p);
}

/* Does blk->task; all lanes. */
MK_DEV void mk_ar_do(const struct mk_ar *ar, struct mk_ar_block *blk)
{
    const struct mk_task *t = &blk->task;
    mk_consume();
    switch (t->kind) {
    case MK_AR_TILE:
        mk_tile_gemm(ar, blk);
        mk_ar_publish_tile(ar, blk, t->chunk, ar->place_rows && mk_tile_place(ar, t->chunk));
        break;
    case MK_AR_HDR_OUT_LOCAL:
    case MK_AR_HDR_OUT_NODE:
        if (mk_lane() == 0)
            mk_ar_header_out(ar, blk,
                             t->kind == MK_AR_HDR_OUT_LOCAL ? MK_CLASS_HEADER_LOCAL : MK_CLASS_HEADER_NODE,
                             t->peer);
        break;
    case MK_AR_HDR_IN_LOCAL:
    case MK_AR_HDR_IN_NODE:
        if (mk_lane() == 0)
            mk_ar_header_in(ar, blk,
                            t->kind == MK_AR_HDR_IN_LOCAL ? MK_CLASS_HEADER_LOCAL : MK_CLASS_HEADER_NODE,
                            t->peer);
        break;
    default:
        mk_ar_do_chunk(ar, blk);
        break;
    }
    mk_block_sync();
    if (mk_lane() == 0) {
        const uint64_t now = mk_now_ns();
        mk_st_rlx_gpu_u64(&ar->state->progress_ns, now);
#if MK_CONTROL
        mk_ar_account(ar, blk, now);
#endif
    }
    mk_wake_self(ar);
}

/* ---- leaving ---- */

/* By how much the rings (cls, peer) advance in a launch. */
MK_DEV uint32_t mk_ar_count_out(const struct mk_ar *ar, int cls, int32_t peer)
{
    const struct mk_topo *t = &ar->rings.topo;
    const uint32_t chunks = mk_chunks(&ar->grid);
    const uint32_t mine = mk_owned(t, chunks, t->local);
    if (ar->skip_comm || (ar->latency && cls != MK_CLASS_HEADER_LOCAL))
        return 0;
    switch (cls) {
    case MK_CLASS_PARTIAL:
        return mk_owned(t, chunks, peer);
    case MK_CLASS_BCAST:
        return mine;
    case MK_CLASS_SUM:
        return mk_ar_things(ar, MK_AR_SUM, peer);
    case MK_CLASS_RESULT:
        return t->nnodes > 2 ? mk_owned_by_node(t, mine, t->node) : 0;
    default:
        return 1;
    }
}
MK_DEV uint32_t mk_ar_count_in(const struct mk_ar *ar, int cls, int32_t peer)
{
    const struct mk_topo *t = &ar->rings.topo;
    const uint32_t chunks = mk_chunks(&ar->grid);
    const uint32_t mine = mk_owned(t, chunks, t->local);
    if (ar->skip_comm || (ar->latency && cls != MK_CLASS_HEADER_LOCAL))
        return 0;
    switch (cls) {
    case MK_CLASS_PARTIAL:
        return mine;
    case MK_CLASS_BCAST:
        return mk_owned(t, chunks, peer);
    case MK_CLASS_SUM:
        return t->nnodes == 2 ? mine : mk_owned_by_node(t, mine, t->node);
    case MK_CLASS_RESULT:
        return mk_ar_things(ar, MK_AR_RESULT, peer);
    default:
        return 1;
    }
}

/* Has the NIC finished with everything this launch sent to node e (payload at the peer)? A launch ends only then. */
MK_DEV bool mk_ar_drained(const struct mk_ar *ar, int32_t e)
{
    const struct mk_rings *r = &ar->rings;
    MK_ROLLED
    for (int cls = MK_CLASS_SUM; cls <= MK_CLASS_HEADER_NODE; cls++) {
        const uint32_t n = mk_ar_count_out(ar, cls, e);
        const uint32_t last = n < r->slots[cls] ? n : r->slots[cls];
        MK_ROLLED
        for (uint32_t i = n - last; i < n; i++) {
            const uint64_t p = mk_ar_pos_out(ar, cls, e, i);
            if (mk_poll_sys((uint64_t *)(ar->net_fixed + r->done_off) + mk_done_index(r, cls, e, p)) < p + 1)
                return false;
        }
    }
    return true;
}

/* Takes part in leaving; true for the last block, which must wait for mk_ar_drained of every other node and then call mk_ar_advance. */
MK_DEV bool mk_ar_leave(const struct mk_ar *ar, const struct mk_ar_block *blk)
{
    return mk_count_add(&ar->state->left, blk->tag, 1) + 1 == (uint32_t)ar->blocks;
}

/* Last block only: positions and epoch of the next launch. */
MK_DEV void mk_ar_advance(const struct mk_ar *ar, const struct mk_ar_block *blk)
{
    const struct mk_topo *t = &ar->rings.topo;
    MK_ROLLED
    for (int cls = 0; cls < MK_CLASSES; cls++) {
        const int32_t n = mk_class_is_local(cls) ? t->nlocal : t->nnodes;
        MK_ROLLED
        for (int32_t p = 0; p < n; p++) {
            if (p == mk_class_self(t, cls))
                continue;
            mk_st_rlx_gpu_u64(&ar->state->pos_in[cls][p],
                              mk_ar_pos_in(ar, cls, p, mk_ar_count_in(ar, cls, p)));
            mk_st_rlx_gpu_u64(&ar->state->pos_out[cls][p],
                              mk_ar_pos_out(ar, cls, p, mk_ar_count_out(ar, cls, p)));
        }
    }
#if MK_CONTROL
    mk_ar_ctl_end(ar, blk);
#endif
    mk_st_rel_gpu_u64(&ar->state->epoch, blk->epoch + 1);
}
