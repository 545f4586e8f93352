/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The inside of a communication task on the GPU: sums and copies of chunks, 16 bytes a load, many loads in flight;
 * and the machine's side of the shared text (waits, failure). One type a translation unit: MK_TILE_F16 is 0 (bf16)
 * or 1 (fp16). All sums are fp32, in the order of the numerics contract (tile_cpu.c has the same). No load here is
 * non-coherent: what is read was written by others during the launch. */
#pragma once
#include "cuda/words.h"
#include "ops/gemm_ar.h"
#include "tile/epilogue.cuh"

/* ---- machine ---- */

MK_DEV const struct mk_gpu_device *mk_gpu_of(const struct mk_ar *ar)
{
    return (const struct mk_gpu_device *)ar->host;
}
MK_DEV void mk_wake_self(const struct mk_ar *)
{
}
MK_DEV void mk_wake_local(const struct mk_ar *, int32_t)
{
}
MK_DEV void mk_wake_proxy(const struct mk_ar *)
{
}
/* The host's abort word is across the bus: who has nothing to do brings it to the device. */
MK_DEV void mk_forward_abort(const struct mk_ar *ar)
{
    const uint64_t code = mk_ld_acq_sys_u64(&mk_gpu_of(ar)->words->abort);
    if (code)
        mk_st_rel_sys_u64(ar->abort_word, code);
}
MK_DEV void mk_pause(const struct mk_ar *ar)
{
    mk_forward_abort(ar);
    __nanosleep(200);
}
/* The first failure of the launch: what[] for the host, then all blocks leave. One lane calls it. */
MK_DEV void mk_gpu_fail(const struct mk_ar *ar, uint64_t code, const uint64_t (&what)[MK_WHATS])
{
    struct mk_gpu_device *d = (struct mk_gpu_device *)ar->host;
    if (mk_cas_gpu_u64(&d->report_claim, 0, 1)) {
        for (int i = 0; i < MK_WHATS; i++)
            mk_st_rlx_sys_u64(&d->words->what[i], what[i]);
        mk_st_rel_sys_u64(&d->words->failed, code);
    }
    mk_st_rel_sys_u64(ar->abort_word, code);
}
MK_DEV void mk_raise_mismatch(const struct mk_ar *ar, int node_level, int32_t peer)
{
    uint64_t what[MK_WHATS] = {};
    what[MK_WHAT_KIND] = node_level ? MK_AR_HDR_IN_NODE : MK_AR_HDR_IN_LOCAL;
    what[MK_WHAT_PEER] = (uint64_t)peer;
    mk_gpu_fail(ar, 10 /* -MK_ERR_MISMATCH */, what);
}

/* ---- elements: V (8 or 1) at a time ---- */

/* Zeros from the start: to ptxas a value that no path sets is live from the entry of the kernel on, through all
 * roles, and the compute loop spills. */
template <int V> struct mk_lot {
    float f[V] = {};
    static __device__ __forceinline__ mk_lot unpack(const uint4 &v) /* V = 8 */
    {
        mk_lot r;
        const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < V / 2; i++) {
            r.f[2 * i] = mk_to_f32<MK_TILE_F16>((uint16_t)w[i]);
            r.f[2 * i + 1] = mk_to_f32<MK_TILE_F16>((uint16_t)(w[i] >> 16));
        }
        return r;
    }
    __device__ __forceinline__ uint4 pack(void) const /* V = 8 */
    {
        return make_uint4(mk_pack2<MK_TILE_F16>(f[0], f[1]), mk_pack2<MK_TILE_F16>(f[2], f[3]),
                          mk_pack2<MK_TILE_F16>(f[4], f[5]), mk_pack2<MK_TILE_F16>(f[6], f[7]));
    }
    static __device__ __forceinline__ mk_lot load(const void *base, uint64_t at, bool f32)
    {
        mk_lot r;
        if constexpr (V == 1) {
            r.f[0] = f32 ? ((const float *)base)[at] : mk_to_f32<MK_TILE_F16>(((const uint16_t *)base)[at]);
            return r;
        } else if (f32) {
            const float4 *p = (const float4 *)((const float *)base + at);
            const float4 x = p[0], y = p[1];
            r.f[0] = x.x, r.f[1] = x.y, r.f[2] = x.z, r.f[3] = x.w;
            r.f[4] = y.x, r.f[5] = y.y, r.f[6] = y.z, r.f[7] = y.w;
            return r;
        } else {
            return unpack(*(const uint4 *)((const uint16_t *)base + at));
        }
    }
    __device__ __forceinline__ void add(const mk_lot &x, bool first)
    {
#pragma unroll
        for (int i = 0; i < V; i++)
            f[i] = first ? x.f[i] : f[i] + x.f[i];
    }
    __device__ __forceinline__ void round(void)
    {
#pragma unroll
        for (int i = 0; i < V; i++)
            f[i] = mk_to_f32<MK_TILE_F16>(mk_from_f32<MK_TILE_F16>(f[i]));
    }
    /* No dynamic index: registers. */
    __device__ __forceinline__ float get(int at) const
    {
        float x = 0;
#pragma unroll
        for (int i = 0; i < V; i++)
            x = i == at ? f[i] : x;
        return x;
    }
    __device__ __forceinline__ void put(int at, float x)
    {
#pragma unroll
        for (int i = 0; i < V; i++)
            f[i] = i == at ? x : f[i];
    }
    __device__ __forceinline__ void store(void *base, uint64_t at, bool f32) const
    {
        if constexpr (V == 1) {
            if (f32)
                ((float *)base)[at] = f[0];
            else
                ((uint16_t *)base)[at] = mk_from_f32<MK_TILE_F16>(f[0]);
        } else if (f32) {
            float4 *p = (float4 *)((float *)base + at);
            p[0] = make_float4(f[0], f[1], f[2], f[3]);
            p[1] = make_float4(f[4], f[5], f[6], f[7]);
        } else {
            *(uint4 *)((uint16_t *)base + at) = pack();
        }
    }
};

/* A piece: element number e of its contiguous form, and where that element is in C. */
struct mk_span {
    uint64_t c0; /* element of C at the piece's corner */
    uint64_t ldc;
    uint32_t cols, n; /* elements of a row, of the piece */
};
MK_DEV struct mk_span mk_span_of(const struct mk_ar *ar, const struct mk_rect *r)
{
    struct mk_span s;
    s.c0 = (uint64_t)r->row * (uint64_t)ar->ldc + (uint64_t)r->col;
    s.ldc = (uint64_t)ar->ldc;
    s.cols = (uint32_t)r->cols;
    s.n = (uint32_t)r->rows * (uint32_t)r->cols;
    return s;
}
MK_DEV uint64_t mk_span_at(const struct mk_span &s, uint32_t e)
{
    return s.c0 + (uint64_t)(e / s.cols) * s.ldc + e % s.cols;
}
#ifndef MK_LOTS
#define MK_LOTS 4 /* of a lane at a time: so many loads are in flight */
#endif

/* Lots of this lane from `from` on; false: none left. */
template <int V> MK_DEV bool mk_lots_at(const struct mk_span &s, uint32_t from, uint32_t (&e)[MK_LOTS])
{
#pragma unroll
    for (int u = 0; u < MK_LOTS; u++)
        e[u] = (from + (uint32_t)u * mk_lanes() + mk_lane()) * V;
    return from * V < s.n;
}

/* ---- the functions of the shared text ---- */

/* Loads what the operation reads: acc[u] for lots e[u]. */
template <int V>
MK_DEV void mk_op_load(const struct mk_ar *ar, const struct mk_task *t, const struct mk_op *op,
                       const struct mk_span &s, const uint32_t (&e)[MK_LOTS], mk_lot<V> (&acc)[MK_LOTS])
{
    const int32_t nodes = op->sum == MK_OP_TOTAL ? ar->rings.topo.nnodes : 1;
    const int32_t locals = op->sum == MK_OP_COPY ? 1 : ar->rings.topo.nlocal;
    for (int32_t d = 0; d < nodes; d++) {
        const uint8_t *node_sum = nodes > 1 ? mk_ar_node_sum(ar, d, t->item) : op->from;
        const bool f32 = nodes > 1 && ar->wire_fp32;
        const bool round = nodes > 1 && !node_sum && !ar->wire_fp32; /* like the sums that travel */
        mk_lot<V> sum[MK_LOTS];
        for (int32_t l = 0; l < (node_sum ? 1 : locals); l++) {
            const uint8_t *slot = node_sum                ? node_sum
                                  : op->sum == MK_OP_COPY ? (const uint8_t *)0
                                                          : mk_ar_partial(ar, l, t->owned);
            mk_lot<V> x[MK_LOTS];
#pragma unroll
            for (int u = 0; u < MK_LOTS; u++)
                if (e[u] < s.n)
                    x[u] = mk_lot<V>::load(slot ? (const void *)slot : ar->c,
                                           slot ? op->skip + e[u] : mk_span_at(s, e[u]),
                                           slot && f32 && node_sum);
#pragma unroll
            for (int u = 0; u < MK_LOTS; u++)
                sum[u].add(x[u], l == 0);
        }
#pragma unroll
        for (int u = 0; u < MK_LOTS; u++) {
            if (round)
                sum[u].round();
            acc[u].add(sum[u], d == 0);
        }
    }
}

template <int V>
MK_DEV void mk_op_finish(const struct mk_ar *ar, const struct mk_rect *r, const struct mk_span &s,
                         const uint32_t (&e)[MK_LOTS], mk_lot<V> (&x)[MK_LOTS])
{
#pragma unroll 1
    for (int i = 0; ar->bias && i < V; i++)
#pragma unroll
        for (int u = 0; u < MK_LOTS; u++)
            if (e[u] < s.n)
                x[u].put(i, x[u].get(i) +
                                mk_to_f32<MK_TILE_F16>(
                                    ((const uint16_t *)ar->bias)[(uint64_t)r->col + e[u] % s.cols + i]));
#pragma unroll 1
    for (int i = 0; ar->act && i < V; i++)
#pragma unroll
        for (int u = 0; u < MK_LOTS; u++)
            x[u].put(i, mk_activate(x[u].get(i), ar->act));
}

/* Into a slot. */
template <int V>
MK_DEV void mk_op_store(const mk_lot<V> (&x)[MK_LOTS], const uint32_t (&e)[MK_LOTS], uint32_t n,
                        uint32_t skip, uint8_t *dst, bool f32)
{
#pragma unroll
    for (int u = 0; u < MK_LOTS; u++)
        if (e[u] < n)
            x[u].store(dst, skip + e[u], f32);
}

#ifndef MK_TILE_WIDTH
#define MK_TILE_WIDTH 8 /* elements of an access: C and its rows are aligned to 16 bytes */
#endif

/* The operation by loads and stores of the threads. */
MK_DEV void mk_plain_op(const struct mk_ar *ar, const struct mk_ar_block *blk, const struct mk_op *op)
{
    constexpr int V = MK_TILE_WIDTH;
    const struct mk_topo *t = &ar->rings.topo;
    const struct mk_task *task = &blk->task;
    const struct mk_span s = mk_span_of(ar, &op->r);
    uint32_t e[MK_LOTS];
    for (uint32_t from = 0; mk_lots_at<V>(s, from, e); from += MK_LOTS * mk_lanes()) {
        mk_lot<V> x[MK_LOTS];
        mk_op_load<V>(ar, task, op, s, e, x);
        if (op->sum == MK_OP_TOTAL)
            mk_op_finish<V>(ar, &op->r, s, e, x);
        if (op->to)
            mk_op_store<V>(x, e, s.n, op->skip, op->to, op->wire && ar->wire_fp32);
        if (op->to_c) {
#pragma unroll
            for (int u = 0; u < MK_LOTS; u++)
                if (e[u] < s.n)
                    x[u].store(ar->c, mk_span_at(s, e[u]), false);
        }
        /* all local peers' broadcast slots, then all nodes' result-out slots: one store loop */
        const int32_t peers = op->to_peers ? t->nlocal : 0, nodes = op->to_result ? t->nnodes : 0;
        for (int32_t i = 0; i < peers + nodes; i++) {
            const int32_t p = i < peers ? i : i - peers;
            if (p == (i < peers ? t->local : t->node))
                continue;
            uint8_t *dst =
                i < peers
                    ? mk_ar_at_local(ar, MK_CLASS_BCAST, p, mk_ar_pos_out(ar, MK_CLASS_BCAST, p, task->owned))
                    : mk_ar_out(ar, MK_CLASS_RESULT, p, mk_ar_pos_out(ar, MK_CLASS_RESULT, p, task->item));
            mk_op_store<V>(x, e, s.n, op->skip, dst, false);
        }
    }
}

/* After a failure: this block's share of C becomes NaN, so that no peer-dependent value stays. */
MK_DEV void mk_poison(const struct mk_ar *ar, uint32_t block, uint32_t blocks)
{
    for (int64_t row = block; row < ar->grid.m; row += blocks)
        for (int64_t col = mk_lane(); col < ar->grid.n; col += mk_lanes())
            ((uint16_t *)ar->c)[row * ar->ldc + col] = 0xffff;
}
