/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Sums and copies of chunks by the copy engine of Hopper's multiprocessors: bulk copies bring pieces of at most 16 KiB
 * into the shared memory that the compute pipeline does not use meanwhile, threads add in registers, bulk copies take
 * the result away. Many pieces are on their way at once (up to 176 KiB), which loads by threads cannot reach.
 *
 * A piece is some rows of the chunk; what an operation reads for it are its sources, in the order of the contract:
 * slots (contiguous) or C (one box of a tensor map; row by row where a piece is no whole box, which costs about 160
 * cycles a row). Load k = piece * sources + source goes to buffer k mod 12. Who waits for what:
 *   full[buffer]   bytes of a load; all threads that add, or warp 0 when it only copies
 *   block barrier  after each piece: all have read its buffers, and its result stands in the last of them
 *   wait_group     warp 0, whose lanes issue all copies: a result buffer is loaded again only when its stores have read
 *                  it, and the operation ends when all stores are complete in memory: the publish that follows orders them
 * Order between proxies: mk_consume before the operation, mk_publish after it, fence.proxy.async for shared memory
 * before each store of a result. */
#pragma once
#include "tile/ptx_sm90.cuh"
#include "tile/tile_cuda.cuh"

constexpr uint32_t MK_BULK_BUFFERS = 12, MK_BULK_PIECE = 16384,
                   MK_BULK_LOTS = 4; /* 256 threads x 4 x 16 bytes */
constexpr uint32_t MK_BULK_BARS =
    MK_BULK_BUFFERS * MK_BULK_PIECE + 32768 + 128; /* behind the pipeline's barriers */

struct mk_bulk_words {
    const uint8_t *source[MK_BULK_BUFFERS]; /* NULL: C */
    uint8_t first[MK_BULK_BUFFERS];         /* begins a group that is summed on its own (a node) */
    uint8_t round[MK_BULK_BUFFERS]; /* the group's sum is rounded to the wire type after this source */
    const CUtensorMap
        *map; /* of C, in boxes of box_rows x box_cols without swizzle: a full piece of a full chunk */
    int32_t box_rows, box_cols;
    uint32_t sources;
    uint32_t loads; /* of this block so far: buffers and phases go round with it */
};

MK_DEV uint32_t mk_bulk_base(void)
{
    extern __shared__ uint8_t raw[];
    return (mk_smem(raw) + 1023) & ~1023u;
}
MK_DEV void mk_bulk_get(uint32_t dst, const void *src, uint32_t bytes, uint32_t bar)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(dst),
        "l"(src), "r"(bytes), "r"(bar)
        : "memory");
}
MK_DEV void mk_bulk_put(void *dst, uint32_t src, uint32_t bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(dst), "r"(src),
                 "r"(bytes)
                 : "memory");
}
MK_DEV uint4 mk_smem_load(uint32_t at)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}
MK_DEV void mk_smem_store(uint32_t at, const uint4 &v)
{
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

struct mk_bulk {
    const struct mk_ar *ar;
    const struct mk_op *op;
    const struct mk_task *task;
    struct mk_bulk_words *w;
    uint32_t base, bars, row_bytes, rows, pieces, loads0; /* rows of a full piece */

    __device__ __forceinline__ uint32_t buffer(uint32_t k) const
    {
        return base + (loads0 + k) % MK_BULK_BUFFERS * MK_BULK_PIECE;
    }
    __device__ __forceinline__ uint32_t full(uint32_t k) const
    {
        return bars + (loads0 + k) % MK_BULK_BUFFERS * 8;
    }
    __device__ __forceinline__ uint32_t phase(uint32_t k) const
    {
        return (loads0 + k) / MK_BULK_BUFFERS & 1;
    }
    __device__ __forceinline__ uint32_t rows_of(uint32_t piece) const
    {
        const uint32_t left = (uint32_t)op->r.rows - piece * rows;
        return left < rows ? left : rows;
    }
    __device__ __forceinline__ uint8_t *c_row(uint32_t row) const
    {
        return (uint8_t *)ar->c + ((uint64_t)(op->r.row + row) * (uint64_t)ar->ldc + (uint64_t)op->r.col) * 2;
    }
    /* Is C's part of the piece a whole box, or one that the matrix's last row ends? */
    __device__ __forceinline__ bool boxed(uint32_t piece) const
    {
        const uint32_t n = rows_of(piece);
        return op->r.cols == w->box_cols && rows == (uint32_t)w->box_rows &&
               (n == rows || op->r.row + piece * rows + n == ar->grid.m);
    }
    /* Warp 0. */
    __device__ __forceinline__ void load(uint32_t k) const
    {
        const uint32_t piece = k / w->sources, n = rows_of(piece), bar = full(k), to = buffer(k);
        const uint8_t *from = w->source[k % w->sources];
        const bool box = !from && boxed(piece); /* rows outside of C come as zeros, and count */
        if (mk_warp_lane() == 0)
            mk_mbar_expect(bar, (box ? rows : n) * row_bytes);
        __syncwarp();
        if (box) {
            if (mk_warp_lane() == 0)
                mk_tma_load(to, w->map, bar, (int32_t)op->r.col, (int32_t)(op->r.row + piece * rows));
        } else if (from) {
            if (mk_warp_lane() == 0)
                mk_bulk_get(to, from + (uint64_t)piece * rows * row_bytes, n * row_bytes, bar);
        } else {
            for (uint32_t r = mk_warp_lane(); r < n; r += 32)
                mk_bulk_get(to + r * row_bytes, c_row(piece * rows + r), row_bytes, bar);
        }
    }
    /* Warp 0: the piece in buffer `at` goes where the operation wants it; one group a lane. */
    __device__ __forceinline__ void store(uint32_t piece, uint32_t at) const
    {
        const struct mk_topo *t = &ar->rings.topo;
        const uint32_t n = rows_of(piece), bytes = n * row_bytes;
        const uint64_t off = (uint64_t)piece * rows * row_bytes;
        const bool box = boxed(piece);
        if (op->to_c && box && mk_warp_lane() == 0)
            mk_tma_store(w->map, at, (int32_t)op->r.col, (int32_t)(op->r.row + piece * rows));
        if (op->to_c && !box)
            for (uint32_t r = mk_warp_lane(); r < n; r += 32)
                mk_bulk_put(c_row(piece * rows + r), at + r * row_bytes, row_bytes);
        if (mk_warp_lane() == 0) {
            const int32_t peers = op->to_peers ? t->nlocal : 0, nodes = op->to_result ? t->nnodes : 0;
            if (op->to)
                mk_bulk_put(op->to + off, at, bytes);
            for (int32_t i = 0; i < peers + nodes; i++) {
                const int32_t p = i < peers ? i : i - peers;
                if (p == (i < peers ? t->local : t->node))
                    continue;
                uint8_t *dst = i < peers ? mk_ar_at_local(ar, MK_CLASS_BCAST, p,
                                                          mk_ar_pos_out(ar, MK_CLASS_BCAST, p, task->owned))
                                         : mk_ar_out(ar, MK_CLASS_RESULT, p,
                                                     mk_ar_pos_out(ar, MK_CLASS_RESULT, p, task->item));
                mk_bulk_put(dst + off, at, bytes);
            }
        }
        mk_tma_commit();
    }
    /* Warp 0, when piece `piece` is stored or about to be: loads whose buffers are free. */
    __device__ __forceinline__ void refill(uint32_t piece, uint32_t &next) const
    {
        const uint32_t s = w->sources, all = pieces * s, end = (piece + 1) * s - 1 + MK_BULK_BUFFERS;
        mk_tma_wait_read<1>();
        __syncwarp();
        for (; next < (end < all ? end : all); next++)
            load(next);
    }

    __device__ __forceinline__ void copy(uint32_t &next) const
    {
        for (uint32_t p = 0; p < pieces; p++) {
            mk_mbar_wait(full(p), phase(p));
            store(p, buffer(p));
            refill(p, next);
        }
    }

    __device__ __forceinline__ void add_source(uint32_t k, uint32_t s, uint32_t lots,
                                               mk_lot<8> (&sum)[MK_BULK_LOTS],
                                               mk_lot<8> (&acc)[MK_BULK_LOTS]) const
    {
        mk_mbar_wait(full(k), phase(k));
        const uint32_t at = buffer(k) + mk_lane() * 16;
        const bool first = w->first[s], last = s + 1 == w->sources || w->first[s + 1], round = w->round[s];
#pragma unroll
        for (uint32_t u = 0; u < MK_BULK_LOTS; u++)
            if (u * 256 + mk_lane() < lots)
                sum[u].add(mk_lot<8>::unpack(mk_smem_load(at + u * 4096)), first);
        if (!last)
            return;
        bool start = true; /* of the nodes: no group ended before this one */
        for (uint32_t i = 0; i < s; i++)
            start &= !w->first[i + 1];
#pragma unroll
        for (uint32_t u = 0; u < MK_BULK_LOTS; u++) {
            if (round)
                sum[u].round();
            acc[u].add(sum[u], start);
        }
    }
    __device__ __forceinline__ void epilogue(uint32_t lots, mk_lot<8> (&x)[MK_BULK_LOTS]) const
    {
        const uint32_t cols = row_bytes / 2;
#pragma unroll
        for (uint32_t u = 0; u < MK_BULK_LOTS; u++) {
            const uint32_t lot = u * 256 + mk_lane();
            if (lot >= lots)
                continue;
            if (ar->bias) {
                const uint16_t *b = (const uint16_t *)ar->bias + op->r.col + lot * 8 % cols;
#pragma unroll
                for (int i = 0; i < 8; i++)
                    x[u].f[i] += mk_to_f32<MK_TILE_F16>(b[i]);
            }
#pragma unroll 1
            for (int i = 0; ar->act && i < 8; i++)
                x[u].put(i, mk_activate(x[u].get(i), ar->act));
        }
    }
    __device__ __forceinline__ void add(uint32_t &next) const
    {
        const uint32_t s = w->sources;
        for (uint32_t p = 0; p < pieces; p++) {
            const uint32_t lots = rows_of(p) * row_bytes / 16, last = p * s + s - 1;
            mk_lot<8> sum[MK_BULK_LOTS], acc[MK_BULK_LOTS];
            for (uint32_t i = 0; i < s; i++)
                add_source(p * s + i, i, lots, sum, acc);
            if (op->sum == MK_OP_TOTAL && (ar->bias || ar->act))
                epilogue(lots, acc);
#pragma unroll
            for (uint32_t u = 0; u < MK_BULK_LOTS; u++)
                if (u * 256 + mk_lane() < lots) /* this thread read the same place */
                    mk_smem_store(buffer(last) + u * 4096 + mk_lane() * 16, acc[u].pack());
            mk_fence_smem_async();
            mk_block_sync();
            if (mk_lane() < 32) {
                store(p, buffer(last));
                refill(p, next);
            }
        }
    }
};

/* Thread 0: what the operation reads, in order. */
MK_DEV void mk_bulk_sources(const struct mk_ar *ar, const struct mk_task *t, const struct mk_op *op,
                            struct mk_bulk_words *w)
{
    const int32_t nodes = op->sum == MK_OP_TOTAL ? ar->rings.topo.nnodes : 1;
    const int32_t locals = op->sum == MK_OP_COPY ? 1 : ar->rings.topo.nlocal;
    uint32_t n = 0;
    for (int32_t d = 0; d < nodes; d++) {
        const uint8_t *node_sum = nodes > 1 ? mk_ar_node_sum(ar, d, t->item) : op->from;
        for (int32_t l = 0; l < (node_sum ? 1 : locals); l++, n++) {
            w->source[n] = node_sum                ? node_sum
                           : op->sum == MK_OP_COPY ? (const uint8_t *)0
                                                   : mk_ar_partial(ar, l, t->owned);
            w->first[n] = l == 0;
            w->round[n] = nodes > 1 && !node_sum && l == locals - 1;
        }
    }
    w->sources = n;
}

/* All threads of the shared text. false: not for bulk copies (fp32 on the wire, very long rows, many sources). */
MK_DEV bool mk_bulk_op(const struct mk_ar *ar, const struct mk_ar_block *blk, const struct mk_op *op,
                       struct mk_bulk_words *w)
{
    const struct mk_topo *tp = &ar->rings.topo;
    const uint32_t row_bytes = (uint32_t)op->r.cols * 2;
    if (ar->wire_fp32 || row_bytes > MK_BULK_PIECE || tp->nlocal + tp->nnodes > (int32_t)MK_BULK_BUFFERS - 1)
        return false;
    if (mk_lane() == 0)
        mk_bulk_sources(ar, &blk->task, op, w);
    mk_block_sync();
    const uint32_t base = mk_bulk_base(), rows = MK_BULK_PIECE / row_bytes;
    const struct mk_bulk b = {ar,        op,   &blk->task,
                              w,         base, base + MK_BULK_BARS,
                              row_bytes, rows, ((uint32_t)op->r.rows + rows - 1) / rows,
                              w->loads};
    const uint32_t all = b.pieces * w->sources;
    uint32_t next = 0;
    if (mk_lane() < 32)
        for (; next < (all < MK_BULK_BUFFERS - 1 ? all : MK_BULK_BUFFERS - 1); next++)
            b.load(next);
    if (op->sum != MK_OP_COPY)
        b.add(next);
    else if (mk_lane() < 32)
        b.copy(next);
    if (mk_lane() < 32)
        mk_tma_wait<0>();
    mk_block_sync();
    if (mk_lane() == 0)
        w->loads += all;
    return true;
}
