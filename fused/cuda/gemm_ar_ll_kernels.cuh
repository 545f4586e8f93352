/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Kernels of the latency path of GEMM+AllReduce for Hopper: gemm_ar_ll_LAYOUT_TYPE_NTxS, the skinny kernels of mk_gemm with
 * another end: a finished tile goes out as LL words. The next kernel in the stream may start early, but only once no block
 * of ours waits for other ranks: its blocks would hold multiprocessors all that time. */
#pragma once
#include "cuda/block.h"
#include <cstddef>

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900
#define MK_DEV_LANES 128
#define MK_LL_WATCHER 160 /* in warp 5 */
#define MK_LL_HELPERS 192 /* from warp 6 on: they sum too, and nothing else */
#define MK_LOTS 1
#include "tile/ptx_sm90.cuh"
#include "tile/ll.cuh"
#include "tile/gemm_skinny_sm90.cuh"

MK_DEV void mk_tile_gemm(const struct mk_ar *, const struct mk_ar_block *)
{
}
MK_DEV void mk_tile_op(const struct mk_ar *, const struct mk_ar_block *, const struct mk_op *)
{
}

struct mk_gemm_ar_ll {
    mk_gemm_skinny gemm;
    alignas(128) mk_ar ar;
};

static_assert(offsetof(mk_gemm_ar_ll, ar) == 384, "as in gemm_ar.c");

/* This block's groups of a tile, which stand in shared memory row by row (mk_skinny_block::store reads the same). */
template <int NT, int S, int TW, int RANK>
MK_DEV void mk_ll_send_tile(const mk_skinny_block<NT, S, TW> &b, const struct mk_ar *ar, uint64_t position,
                            uint32_t thread)
{
    typedef typename mk_skinny_block<NT, S, TW>::template groups<RANK> mine;
    constexpr int COUNT = mine::LAST - mine::FIRST; /* of 8 tokens each */
    const struct mk_topo *t = &ar->rings.topo;
    const uint32_t half = thread % 16, row = thread / 16, row_groups = mk_ll_row_groups(ar->grid.n);
    const int32_t n = b.n0 + (int32_t)half * 4, token = mine::FIRST * 8 + (int32_t)row;
    const int32_t tokens = n < b.p.n ? b.p.m - token : 0; /* left */
    const uint64_t at = ((uint64_t)token * row_groups + (uint32_t)n / 4) * MK_LL_GROUP_BYTES;
    const uint64_t stride = (uint64_t)row_groups * 8 * MK_LL_GROUP_BYTES;
    uint32_t v[COUNT > 0 ? COUNT : 1][2];
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        mk_smem_load2(v[i],
                      b.stages + (uint32_t)i * 1024 + row * 128 + ((half / 2 ^ row) << 4) + half % 2 * 8);
    MK_ROLLED
    for (int32_t k = 1; k <= t->nlocal; k++) { /* the next rank first */
        const int32_t to = t->local + k < t->nlocal ? t->local + k : t->local + k - t->nlocal;
        uint8_t *p = (uint8_t *)mk_ll_at(ar, to, position) + at;
#pragma unroll
        for (int i = 0; i < COUNT; i++, p += stride)
            if (i * 8 < tokens)
                mk_ll_put2((uint64_t *)p, v[i][0], v[i][1], mk_ll_mark(position));
    }
}

template <int NT, int S, int TW, int RANK, bool F16>
MK_DEV void mk_ll_send_sums(const mk_skinny_block<NT, S, TW> &b, const struct mk_ar *ar, uint64_t position,
                            uint32_t thread, float (&acc)[NT / 2], bool sends)
{
    typedef typename mk_skinny_block<NT, S, TW>::template groups<RANK> mine;
    if (S > 1)
        b.template exchange<RANK>(acc, thread);
    if (mine::FIRST >= mine::LAST)
        return;
    mk_block_sync(); /* all warps are done with the pipeline */
    b.template pack<RANK, F16>(acc, thread);
    mk_block_sync();
    if (sends)
        mk_ll_send_tile<NT, S, TW, RANK>(b, ar, position, thread);
}

/* A cluster's ticket: block 0 takes it and stores it into the other block's shared memory, whose barrier counts the bytes. */
struct mk_ll_shared {
    alignas(16) mk_ll_ticket ticket; /* written by block 0, read by this block */
    uint64_t here;
};
static_assert(sizeof(mk_ll_ticket) == 32, "two stores of 16 bytes");

/* The watcher; the other block of the cluster has set its barriers up. */
template <int S>
MK_DEV void mk_ll_begin(const struct mk_ar *ar, mk_ll_words *w, uint32_t rank, mk_ll_shared *shared)
{
    if (rank == 0) {
        const mk_ll_ticket t = mk_ll_take(ar, &w->block.blk);
        if (S > 1) {
            const uint32_t to = mk_cluster_map(mk_smem(&shared->ticket), 1),
                           bar = mk_cluster_map(mk_smem(&shared->here), 1);
            mk_cluster_send2(to, t.epoch, t.position, bar);
            mk_cluster_send2(to + 16, t.left, t.ticket | (uint64_t)t.aborted << 32, bar);
        }
        mk_ll_enter(ar, w, t, 0, S);
    } else {
        mk_mbar_wait(mk_smem(&shared->here), 0);
        mk_ll_enter(ar, w, shared->ticket, rank, S);
    }
}

/* The watcher's life, until the block waits for nothing any more. */
template <int S>
MK_DEV void mk_ll_keep_watch(const struct mk_ar *ar, mk_ll_words *w, uint32_t rank, mk_ll_shared *shared)
{
    mk_ll_begin<S>(ar, w, rank, shared);
    mk_mbar_arrive(mk_smem(&w->entered));
    const bool stays = mk_ll_stays(ar, w->block.blk.ticket);
    if (w->block.aborted)
        mk_mbar_arrive(mk_smem(&w->stop));
    while (!w->block.aborted) {
        const bool exchanged = w->headers == mk_ll_every_header(ar);
        if (exchanged && (!stays || mk_mbar_test(mk_smem(&w->over), 0)))
            break;
        if (mk_ll_watch(ar, w)) {
            mk_mbar_arrive(mk_smem(&w->stop));
            break;
        }
    }
    mk_mbar_arrive(mk_smem(&w->watched));
}
/* Once, one thread. */
MK_DEV void mk_ll_barriers(mk_ll_words *w, mk_ll_shared *shared, bool told)
{
    mk_mbar_init(mk_smem(&w->entered), 1);
    mk_mbar_init(mk_smem(&w->over), 1);
    mk_mbar_init(mk_smem(&w->stop), 1);
    mk_mbar_init(mk_smem(&w->watched), 1);
    mk_mbar_init(mk_smem(&shared->here), 1);
    mk_mbar_init_fence();
    if (told)
        mk_mbar_expect(mk_smem(&shared->here), sizeof(shared->ticket));
}

template <int NT, int S, int TW, bool F16>
static __device__ __forceinline__ void mk_gemm_ar_ll_run(const mk_gemm_ar_ll &p)
{
    extern __shared__ uint8_t raw[];
    __shared__ mk_ll_words words;
    __shared__ mk_ll_shared shared;
    const struct mk_ar *ar = &p.ar;
    const mk_skinny_block<NT, S, TW> block(p.gemm, (mk_smem(raw) + 1023) & ~1023u);
    const uint32_t thread = threadIdx.x;
    if (thread == 0) {
        block.init();
    } else if (thread == 128) {
        mk_tma_prefetch(&p.gemm.w);
        mk_tma_prefetch(&p.gemm.x);
        block.ask_ahead();
    } else if (thread == MK_LL_WATCHER) {
        mk_ll_barriers(&words, &shared, S > 1 && block.rank);
    }
    __syncthreads();
    if (S > 1)
        mk_cluster_arrive();
    mk_grid_wait();
    constexpr uint32_t HELPERS = MK_LL_THREADS(NT) - MK_LL_HELPERS, SUMMERS = MK_DEV_LANES + HELPERS;
    constexpr int ROWS = NT == 16 ? 8 : 4; /* of sums at a time */
    if (HELPERS > 0 && thread >= MK_LL_HELPERS) {
        if (S > 1)
            mk_cluster_wait();
        /* Until the block's first warp has sent. A barrier of the hardware: eight warps that look at a word in shared
         * memory slow the multiplication down. */
        mk_bar_sync(3, HELPERS + 32);
        mk_ll_join<F16, ROWS>(ar, &words, thread - MK_LL_HELPERS + mk_lanes(), SUMMERS);
        return;
    }
    if (thread >= MK_LL_WATCHER) { /* a warp of its own: what it does would hold up the multiplication */
        if (S > 1)
            mk_cluster_wait(); /* the other's barriers are there */
        if (thread == MK_LL_WATCHER)
            mk_ll_keep_watch<S>(ar, &words, block.rank, &shared);
        return;
    }
    if (thread >= 128) {
        if (thread == 128)
            block.produce();
        __syncwarp();
        if (S > 1)
            mk_cluster_wait();
        return;
    }
    float acc[NT / 2];
    block.template consume<F16>(acc, thread);
    mk_mbar_wait(mk_smem(&words.entered), 0);
    const bool sends = !words.block.aborted;
    mk_ll_clear(ar, words.position);
    if (S > 1)
        mk_cluster_wait();
    if (S == 1 || block.rank == 0)
        mk_ll_send_sums<NT, S, TW, 0, F16>(block, ar, words.position, thread, acc, sends);
    else
        mk_ll_send_sums<NT, S, TW, S - 1, F16>(block, ar, words.position, thread, acc, sends);
    mk_ll_end<F16, ROWS>(ar, &words, SUMMERS);
}

#define MK_AR_LL(layout, TW, type, NT, S)                                                                    \
    extern "C" __global__ void __launch_bounds__(MK_LL_THREADS(NT), 1)                                       \
        gemm_ar_ll_##layout##_##type##_##NT##x##S(const __grid_constant__ mk_gemm_ar_ll p)                   \
    {                                                                                                        \
        mk_gemm_ar_ll_run<NT, S, TW, MK_TILE_F16 != 0>(p);                                                   \
    }
#define MK_AR_LL_SHAPES(layout, TW, type)                                                                    \
    MK_AR_LL(layout, TW, type, 8, 1)                                                                         \
    MK_AR_LL(layout, TW, type, 16, 1)                                                                        \
    MK_AR_LL(layout, TW, type, 32, 1)                                                                        \
    MK_AR_LL(layout, TW, type, 64, 1)                                                                        \
    MK_AR_LL(layout, TW, type, 8, 2)                                                                         \
    MK_AR_LL(layout, TW, type, 16, 2)                                                                        \
    MK_AR_LL(layout, TW, type, 32, 2)                                                                        \
    MK_AR_LL(layout, TW, type, 64, 2)
#define MK_AR_LL_KERNELS(type)                                                                               \
    MK_AR_LL_SHAPES(tn, 0, type)                                                                             \
    MK_AR_LL_SHAPES(nn, 1, type)
#else
#define MK_AR_LL_KERNELS(type)
#endif
