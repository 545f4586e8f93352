/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Sums and copies of chunks by the copy engine of Hopper's multiprocessors: bulk copies bring slices of a chunk into the
 * shared memory that the compute pipeline does not use meanwhile, threads add in registers, bulk copies take the result
 * away. Many slices are on their way at once (up to 192 KiB a block), which loads by threads cannot reach.
 *
 * Every warp works on its own, on slices warp, warp + 8, ... of the piece of a chunk, with 24 KiB of buffers of its own: what costs
 * time here are the instructions of the one lane that issues copies (some cycles each), so eight do it side by side. A
 * slice is some rows of the piece, 4 KiB or (many sources) 2 KiB; what an operation reads for it are its sources, in the
 * order of the contract: slots (contiguous) or C (boxes of a tensor map; row by row where a slice is no whole boxes).
 * The sources of slice g of a warp fill group g mod depth of its buffers. Who waits for what:
 *   bars[warp][group]  bytes of the loads of a slice; the warp (a copy: its lane 0)
 *   __syncwarp         the warp has added; the result stands in the buffer of the last source
 *   wait_group         lane 0 of the warp: a group is loaded again only when its stores have read it, and the operation
 *                      ends when all stores are complete in memory: the publish that follows orders them
 * Order between proxies: mk_consume before the operation, mk_fence_async and a block barrier after it,
 * fence.proxy.async for shared memory before each store of a result. */
#pragma once
#include "tile/ptx_sm90.cuh"
#include "tile/tile_cuda.cuh"

constexpr uint32_t MK_BULK_WARPS = 8, MK_BULK_SHARE = 24576, MK_BULK_BOX = 2048, MK_BULK_DEPTH = 6,
                   MK_BULK_SOURCES = 12;
static_assert(MK_BULK_SOURCES * MK_BULK_BOX <= MK_BULK_SHARE, "one group of the most sources fits");

struct mk_bulk_words {                      /* in shared memory */
    const uint8_t *source[MK_BULK_SOURCES]; /* NULL: C */
    uint32_t first; /* bit i: source i begins a group that is summed on its own (a node) */
    uint32_t round; /* bit i: the group's sum is rounded to the wire type after source i */
    uint32_t sources;
    int32_t box_rows, box_cols;
    const CUtensorMap *map;         /* of C, in boxes of box_rows x box_cols without swizzle */
    uint32_t phases[MK_BULK_WARPS]; /* of bars, a bit each: lane 0 of the warp */
    uint64_t bars[MK_BULK_WARPS][MK_BULK_DEPTH];
};

/* Shared memory of a block begins at a multiple of 1024, there being no static one. */
extern __shared__ __align__(1024) uint8_t mk_ar_raw[];
MK_DEV uint32_t mk_bulk_base(void)
{
    return mk_smem(mk_ar_raw);
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

/* A slice of two sources, `bytes` apart: the sum comes to where the second one is. A warp; 16 bytes a lot. Two addends of the
 * type of C: fp32 sum and one rounding are the sum of that type, bit by bit (the fp32 sum is inexact only where the smaller
 * addend is far below half a unit of the larger). */
MK_DEV void mk_bulk_add_pair(uint32_t from, uint32_t bytes, uint32_t lots)
{
    const uint32_t x = from + mk_warp_lane() * 16, y = x + bytes;
#pragma unroll
    for (uint32_t u = 0; u < 8; u++)
        if (u * 32 + mk_warp_lane() < lots) { /* this lane alone reads and writes the place */
            const uint4 a = mk_smem_load(x + u * 512), b = mk_smem_load(y + u * 512);
            mk_smem_store(y + u * 512, make_uint4(mk_add2_of<MK_TILE_F16 != 0>(a.x, b.x),
                                                  mk_add2_of<MK_TILE_F16 != 0>(a.y, b.y),
                                                  mk_add2_of<MK_TILE_F16 != 0>(a.z, b.z),
                                                  mk_add2_of<MK_TILE_F16 != 0>(a.w, b.w)));
        }
}

struct mk_bulk { /* of one warp */
    const struct mk_ar *ar;
    const struct mk_op *op;
    const struct mk_task *task;
    struct mk_bulk_words *w;
    uint32_t warp, base, bars;
    uint32_t row_bytes, rows, slices; /* rows of a full slice; slices of the piece */
    uint32_t sources, bytes;          /* bytes of a full slice */
    bool boxes;                       /* C's part of a full slice is whole boxes */

    __device__ __forceinline__ uint32_t rows_of(uint32_t slice) const
    {
        const uint32_t left = (uint32_t)op->r.rows - slice * rows;
        return left < rows ? left : rows;
    }
    __device__ __forceinline__ uint8_t *c_row(uint32_t row) const
    {
        return (uint8_t *)ar->c + ((uint64_t)(op->r.row + row) * (uint64_t)ar->ldc + (uint64_t)op->r.col) * 2;
    }
    /* A slice with fewer rows is boxes if the matrix ends there: rows outside of it come as zeros and are not written. */
    __device__ __forceinline__ bool boxed(uint32_t slice, uint32_t n) const
    {
        return boxes && (n == rows || op->r.row + slice * rows + n == ar->grid.m);
    }
    /* Lane 0: all sources of a slice into group `group`. */
    __device__ __forceinline__ void load(uint32_t slice, uint32_t group) const
    {
        const uint32_t n = rows_of(slice), bar = bars + 8 * group;
        const bool box = boxed(slice, n);
        uint32_t to = base + group * sources * bytes, expect = 0;
        MK_ROLLED
        for (uint32_t i = 0; i < sources; i++)
            expect += !w->source[i] && box ? bytes : n * row_bytes;
        mk_mbar_expect(bar, expect);
        MK_ROLLED
        for (uint32_t i = 0; i < sources; i++, to += bytes) {
            const uint8_t *from = w->source[i];
            if (from) {
                mk_bulk_get(to, from + op->skip * 2ull + (uint64_t)slice * bytes, n * row_bytes, bar);
                continue;
            }
            const uint32_t step = box ? (uint32_t)w->box_rows : 1;
            MK_ROLLED
            for (uint32_t r = 0; r < (box ? rows : n); r += step)
                if (box)
                    mk_tma_load(to + r * row_bytes, w->map, bar, (int32_t)op->r.col,
                                (int32_t)(op->r.row + slice * rows + r));
                else
                    mk_bulk_get(to + r * row_bytes, c_row(slice * rows + r), row_bytes, bar);
        }
    }
    /* Lane 0: the slice in the buffer `at` goes where the operation wants it. */
    __device__ __forceinline__ void store(uint32_t slice, uint32_t at) const
    {
        const struct mk_topo *t = &ar->rings.topo;
        const uint32_t n = rows_of(slice);
        const uint64_t off = op->skip * 2ull + (uint64_t)slice * bytes;
        const bool box = boxed(slice, n);
        if (op->to_c) {
            const uint32_t step = box ? (uint32_t)w->box_rows : 1;
            MK_ROLLED
            for (uint32_t r = 0; r < n; r += step)
                if (box)
                    mk_tma_store(w->map, at + r * row_bytes, (int32_t)op->r.col,
                                 (int32_t)(op->r.row + slice * rows + r));
                else
                    mk_bulk_put(c_row(slice * rows + r), at + r * row_bytes, row_bytes);
        }
        if (op->to)
            mk_bulk_put(op->to + off, at, n * row_bytes);
        const int32_t peers = op->to_peers ? t->nlocal : 0, nodes = op->to_result ? t->nnodes : 0;
        MK_ROLLED
        for (int32_t i = 0; i < peers + nodes; i++) {
            const int32_t p = i < peers ? i : i - peers;
            if (p == (i < peers ? t->local : t->node))
                continue;
            uint8_t *dst =
                i < peers
                    ? mk_ar_at_local(ar, MK_CLASS_BCAST, p, mk_ar_pos_out(ar, MK_CLASS_BCAST, p, task->owned))
                    : mk_ar_out(ar, MK_CLASS_RESULT, p, mk_ar_pos_out(ar, MK_CLASS_RESULT, p, task->item));
            mk_bulk_put(dst + off, at, n * row_bytes);
        }
        mk_tma_commit();
    }

    /* A slice's sum into the last of its buffers: left to right within a group, rounded where the contract says so, groups left to right; epilogue. */
    __device__ __forceinline__ void add_all(uint32_t from, uint32_t lots) const
    {
        const uint32_t first = w->first, round = w->round;
        MK_ROLLED
        for (uint32_t lot = mk_warp_lane(); lot < lots; lot += 32) {
            mk_lot<8> sum, acc;
            uint32_t at = from + lot * 16;
            bool start = true; /* of the groups */
            MK_ROLLED
            for (uint32_t i = 0; i < sources; i++, at += bytes) {
                sum.add(mk_lot<8>::unpack(mk_smem_load(at)), first >> i & 1);
                if (i + 1 < sources && !(first >> (i + 1) & 1))
                    continue;
                if (round >> i & 1)
                    sum.round();
                acc.add(sum, start);
                start = false;
            }
            if (op->sum == MK_OP_TOTAL && (ar->bias || ar->act))
                epilogue(lot, acc);
            mk_smem_store(at - bytes, acc.pack());
        }
    }
    __device__ __forceinline__ void epilogue(uint32_t lot, mk_lot<8> &x) const
    {
        const uint16_t *b = (const uint16_t *)ar->bias + op->r.col + lot * 8 % (row_bytes / 2);
#pragma unroll
        for (int i = 0; ar->bias && i < 8; i++)
            x.f[i] += mk_to_f32<MK_TILE_F16>(b[i]);
#pragma unroll 1
        for (int i = 0; ar->act && i < 8; i++)
            x.put(i, mk_activate(x.get(i), ar->act));
    }

    __device__ __forceinline__ void run(uint32_t depth) const
    {
        const bool leads = mk_warp_lane() == 0;
        const bool epilogues = op->sum == MK_OP_TOTAL && (ar->bias || ar->act);
        const bool copies = sources == 1 && !epilogues, pair = sources == 2 && !epilogues;
        uint32_t phases = w->phases[warp], group = 0, before = 0;
        if (leads) {
            MK_ROLLED
            for (uint32_t g = 0, slice = warp; g < depth && slice < slices; g++, slice += MK_BULK_WARPS)
                load(slice, g);
        }
        MK_ROLLED
        for (uint32_t slice = warp; slice < slices; slice += MK_BULK_WARPS) {
            const uint32_t from = base + group * sources * bytes, lots = rows_of(slice) * row_bytes / 16;
            if (leads || !copies)
                mk_mbar_wait(bars + 8 * group, phases >> group & 1);
            phases ^= 1u << group;
            if (!copies) {
                if (pair)
                    mk_bulk_add_pair(from, bytes, lots);
                else
                    add_all(from, lots);
                mk_fence_smem_async();
                __syncwarp();
            }
            if (leads) {
                store(slice, from + (sources - 1) * bytes);
                /* the slice before this one: its stores have read its buffers, which another one may fill */
                const bool single = depth == 1;
                const uint32_t next = slice + (single ? 1 : depth - 1) * MK_BULK_WARPS;
                if ((single || slice != warp) && next < slices) {
                    if (single)
                        mk_tma_wait_read<0>();
                    else
                        mk_tma_wait_read<1>();
                    load(next, single ? group : before);
                }
            }
            before = group;
            group = group + 1 == depth ? 0 : group + 1;
        }
        __syncwarp(); /* all lanes have read their warp's phases */
        if (leads) {
            mk_tma_wait<0>();
            w->phases[warp] = phases;
        }
    }
};

/* The common operations, all that a slice needs in registers: one or two sources, no epilogue, at most one more slot and
 * C to write, pieces of whole slices. A warp's way from one slice to the next is a chain of instructions of one lane, some
 * cycles each, and in struct mk_bulk it takes longer than the bytes do. */
struct mk_bulk_quick {
    const uint8_t *from[2]; /* at the piece; NULL: C */
    uint8_t *to[2];         /* at the piece; NULL: none */
    bool to_c, adds;        /* adds: to what is in C */
    const CUtensorMap *map;
    int32_t row, col, rows, box_rows; /* of the piece in C; rows of a slice (two boxes) and of a box */
    uint32_t bytes, slices;           /* bytes of a slice */
    uint32_t base, bars;              /* of the warp */

    template <int SOURCES> __device__ __forceinline__ void load(uint32_t slice, uint32_t group) const
    {
        const uint32_t bar = bars + 8 * group;
        uint32_t at = base + group * SOURCES * bytes;
        mk_mbar_expect(bar, SOURCES * bytes);
#pragma unroll
        for (int i = 0; i < SOURCES; i++, at += bytes) {
            if (from[i]) {
                mk_bulk_get(at, from[i] + slice * bytes, bytes, bar);
            } else {
                const int32_t y = row + (int32_t)slice * rows;
                mk_tma_load(at, map, bar, col, y);
                mk_tma_load(at + bytes / 2, map, bar, col, y + box_rows);
            }
        }
    }
    __device__ __forceinline__ void store(uint32_t slice, uint32_t at) const
    {
        if (to_c && adds) {
            const int32_t y = row + (int32_t)slice * rows;
            mk_tma_add(map, at, col, y);
            mk_tma_add(map, at + bytes / 2, col, y + box_rows);
        } else if (to_c) {
            const int32_t y = row + (int32_t)slice * rows;
            mk_tma_store(map, at, col, y);
            mk_tma_store(map, at + bytes / 2, col, y + box_rows);
        }
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (to[i])
                mk_bulk_put(to[i] + slice * bytes, at, bytes);
        mk_tma_commit();
    }
    template <int SOURCES> __device__ __forceinline__ void run(uint32_t warp, uint32_t *words) const
    {
        constexpr uint32_t DEPTH = MK_BULK_DEPTH / SOURCES;
        const bool leads = mk_warp_lane() == 0;
        uint32_t phases = *words, group = 0, before = DEPTH - 1;
        if (leads) {
            MK_ROLLED
            for (uint32_t g = 0, slice = warp; g < DEPTH && slice < slices; g++, slice += MK_BULK_WARPS)
                load<SOURCES>(slice, g);
        }
        MK_ROLLED
        for (uint32_t slice = warp; slice < slices; slice += MK_BULK_WARPS) {
            const uint32_t at = base + group * SOURCES * bytes;
            if (leads || SOURCES > 1)
                mk_mbar_wait(bars + 8 * group, phases >> group & 1);
            phases ^= 1u << group;
            if (SOURCES > 1) {
                mk_bulk_add_pair(at, bytes, bytes / 16);
                mk_fence_smem_async();
                __syncwarp();
            }
            if (leads) {
                store(slice, at + (SOURCES - 1) * bytes);
                /* the slice before this one: its stores have read its buffers, which another one may fill */
                const uint32_t next = slice + (DEPTH - 1) * MK_BULK_WARPS;
                if (slice != warp && next < slices) {
                    mk_tma_wait_read<1>();
                    load<SOURCES>(next, before);
                }
            }
            before = group;
            group = group + 1 == DEPTH ? 0 : group + 1;
        }
        __syncwarp(); /* all lanes have read their warp's phases */
        if (leads) {
            mk_tma_wait<0>();
            *words = phases;
        }
    }
};

/* All threads, the sources being known. false: not one of these. */
MK_DEV bool mk_bulk_quick_op(const struct mk_bulk &b)
{
    const struct mk_topo *tp = &b.ar->rings.topo;
    const struct mk_op *op = b.op;
    const uint64_t skip = op->skip * 2ull;
    struct mk_bulk_quick q;
    if (b.sources > 2 || !b.boxes || op->r.rows % b.rows || op->to_result ||
        (op->to_peers && tp->nlocal > 2) || (op->sum == MK_OP_TOTAL && (b.ar->bias || b.ar->act)))
        return false;
    /* Two nodes of one rank each: this one's sum is what it has in C, and has been sent, so the other's is added there, by
     * the memory: half of the reads, and nothing for threads to do. */
    q.adds = op->sum == MK_OP_TOTAL && tp->nnodes == 2 && tp->nlocal == 1;
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t at = q.adds ? (uint32_t)(1 - tp->node) : i;
        const uint8_t *from = at < b.sources ? b.w->source[at] : (const uint8_t *)0;
        q.from[i] = from ? from + skip : from;
    }
    q.to[0] = op->to ? op->to + skip : (uint8_t *)0;
    q.to[1] = (uint8_t *)0;
    if (op->to_peers && tp->nlocal == 2)
        q.to[1] = mk_ar_at_local(b.ar, MK_CLASS_BCAST, 1 - tp->local,
                                 mk_ar_pos_out(b.ar, MK_CLASS_BCAST, 1 - tp->local, b.task->owned)) +
                  skip;
    q.to_c = op->to_c;
    q.map = b.w->map;
    q.row = (int32_t)op->r.row;
    q.col = (int32_t)op->r.col;
    q.rows = (int32_t)b.rows;
    q.box_rows = b.w->box_rows;
    q.bytes = b.bytes;
    q.slices = b.slices;
    q.base = b.base;
    q.bars = b.bars;
    if (b.sources == 1 || q.adds)
        q.run<1>(b.warp, &b.w->phases[b.warp]);
    else
        q.run<2>(b.warp, &b.w->phases[b.warp]);
    return true;
}

/* Thread 0: what the operation reads, in order. */
MK_DEV void mk_bulk_sources(const struct mk_ar *ar, const struct mk_task *t, const struct mk_op *op,
                            struct mk_bulk_words *w)
{
    const int32_t nodes = op->sum == MK_OP_TOTAL ? ar->rings.topo.nnodes : 1;
    const int32_t locals = op->sum == MK_OP_COPY ? 1 : ar->rings.topo.nlocal;
    uint32_t n = 0, first = 0, round = 0;
    MK_ROLLED
    for (int32_t d = 0; d < nodes; d++) {
        const uint8_t *node_sum = nodes > 1 ? mk_ar_node_sum(ar, d, t->item) : op->from;
        first |= 1u << n;
        MK_ROLLED
        for (int32_t l = 0; l < (node_sum ? 1 : locals); l++, n++)
            w->source[n] = node_sum                ? node_sum
                           : op->sum == MK_OP_COPY ? (const uint8_t *)0
                                                   : mk_ar_partial(ar, l, t->owned);
        if (nodes > 1 && !node_sum)
            round |= 1u << (n - 1);
    }
    w->sources = n;
    w->first = first;
    w->round = round;
}

/* All threads of the shared text. false: not for bulk copies (fp32 on the wire, long rows, many sources). */
MK_DEV bool mk_bulk_op(const struct mk_ar *ar, const struct mk_ar_block *blk, const struct mk_op *op,
                       struct mk_bulk_words *w)
{
    const struct mk_topo *tp = &ar->rings.topo;
    const uint32_t row_bytes = (uint32_t)op->r.cols * 2;
    if (ar->wire_fp32 || row_bytes > MK_BULK_BOX || tp->nlocal + tp->nnodes > (int32_t)MK_BULK_SOURCES)
        return false;
    if (mk_lane() == 0)
        mk_bulk_sources(ar, &blk->task, op, w);
    mk_block_sync();
    const uint32_t sources = w->sources, warp = mk_lane() / 32;
    const bool boxes = op->r.cols == w->box_cols;
    const uint32_t box_rows = boxes ? (uint32_t)w->box_rows : MK_BULK_BOX / row_bytes;
    const uint32_t rows = sources > 2 ? box_rows : 2 * box_rows, bytes = rows * row_bytes;
    const uint32_t fit = sources > 2 ? MK_BULK_SHARE / MK_BULK_BOX / sources : MK_BULK_DEPTH / sources;
    const struct mk_bulk b = {ar,
                              op,
                              &blk->task,
                              w,
                              warp,
                              mk_bulk_base() + warp * MK_BULK_SHARE,
                              mk_smem(w->bars[warp]),
                              row_bytes,
                              rows,
                              ((uint32_t)op->r.rows + rows - 1) / rows,
                              sources,
                              bytes,
                              boxes};
    if (!mk_bulk_quick_op(b))
        b.run(fit < MK_BULK_DEPTH ? fit : MK_BULK_DEPTH);
    return true;
}
