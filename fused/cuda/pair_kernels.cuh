/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* G and K for Hopper (ops/pair_tiles.h), one type a translation unit. Names: pair_gemm_LAYOUT_TYPE_BNxCM, the kernels of
 * mk_gemm that also tell their row bands of 128; pair_allreduce_TYPE, the blocks of GEMM+AllReduce without COMPUTE.
 *
 * K may start when all blocks of G have (they said launch_dependents behind mk_pair_begin), on the multiprocessors that G
 * left free. Until its mk_grid_wait it may read of G's output what the words of the descriptor promise, and writes there only
 * behind them: a result goes to a chunk of C when all partial sums of it are known, this rank's own included. Every
 * thread waits for G before it exits, and before it poisons C: whatever comes after K in the stream comes after G too. */
#pragma once
#include "cuda/block.h"
#include <cstddef>

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900
#define MK_PAIRED 1
#define MK_DEV_LANES MK_PAIR_THREADS
#define MK_LOTS 1
#include "tile/ptx_sm90.cuh"
#include "cuda/gemm_ar_block.cuh"
#include "tile/bulk_sm90.cuh"
#include "tile/gemm_sm90.cuh"

/* ---- G ---- */

struct mk_pair_gemm_args {
    mk_gemm_sm90 gemm;
    alignas(128) uint64_t *words;
};

/* A consumer warpgroup's part of a band: thread 0 issued the stores of a tile, waits for them to be complete, orders them
 * and adds its part. */
struct mk_pair_told {
    static constexpr uint32_t AT = 3; /* steps after the last store: complete by then, so that nobody waits */
    uint64_t *words;
    uint32_t bands, tag, band;
    bool open;

    __device__ __forceinline__ mk_pair_told(uint64_t *descriptor, int32_t m)
        : words(descriptor), bands((uint32_t)(m + MK_BM - 1) / MK_BM), tag(0), band(0), open(false)
    {
    }
    __device__ __forceinline__ void enter(uint32_t *word)
    {
        *word = mk_pair_begin(words, gridDim.x);
        __threadfence(); /* what K's first read depends on is performed before K can start */
    }
    __device__ __forceinline__ void begin(const uint32_t *word)
    {
        tag = *word;
        if (threadIdx.x == 0)
            mk_grid_launch_next();
    }
    __device__ __forceinline__ void produced(void)
    {
    }
    __device__ __forceinline__ void over(uint32_t thread)
    {
        if (open && thread == 0) {
            mk_tma_wait<0>();
            mk_fence_async();
            mk_pair_done(words, tag, band, 1);
        }
        open = false;
    }
    __device__ __forceinline__ void step(uint32_t after, uint32_t thread)
    {
        if (after == AT)
            over(thread);
    }
    __device__ __forceinline__ void tile(uint32_t row)
    {
        band = row;
        open = row < bands; /* of a cluster the second block may be below the matrix */
    }
};

#define MK_PAIR_GEMM(layout, L, type, BN, CM)                                                                \
    extern "C" __global__ void __launch_bounds__(MK_BIG_THREADS, 1)                                          \
        pair_gemm_##layout##_##type##_##BN##x##CM(const __grid_constant__ mk_pair_gemm_args p)               \
    {                                                                                                        \
        mk_gemm_sm90_run<BN, L, MK_TILE_F16 != 0, CM>(p.gemm, mk_pair_told(p.words, p.gemm.m));              \
    }
#define MK_PAIR_SHAPES(layout, L, type)                                                                      \
    MK_PAIR_GEMM(layout, L, type, 256, 2)                                                                    \
    MK_PAIR_GEMM(layout, L, type, 256, 1)                                                                    \
    MK_PAIR_GEMM(layout, L, type, 128, 1)

/* ---- K ---- */

MK_DEV void mk_tile_gemm(const struct mk_ar *, const struct mk_ar_block *)
{
}

struct mk_pair_shared {
    mk_ar ar; /* a copy, as in gemm_ar_kernels.cuh */
    mk_block_words words;
    mk_bulk_words bulk;
    uint64_t pos[MK_POS_MAX];
};
static_assert(MK_PAIR_BULK == MK_BULK_WARPS * MK_BULK_SHARE, "block.h");
static_assert(MK_PAIR_BULK + sizeof(mk_pair_shared) <= MK_PAIR_SMEM && MK_PAIR_SMEM <= MK_SMEM_MAX,
              "block.h");
MK_DEV mk_pair_shared *mk_shared(void)
{
    return (mk_pair_shared *)(mk_ar_raw + MK_PAIR_BULK);
}
MK_DEV void mk_tile_op(const struct mk_ar *ar, const struct mk_ar_block *blk, const struct mk_op *op)
{
    if (!mk_bulk_op(ar, blk, op, &mk_shared()->bulk))
        mk_plain_op(ar, blk, op);
}

struct mk_pair_allreduce_args {
    alignas(128) CUtensorMap chunk; /* C in boxes of box_rows x box_cols */
    int32_t box_rows, box_cols;
    alignas(128) mk_ar ar;
};
static_assert(offsetof(mk_pair_allreduce_args, ar) == 256, "as in pair.c");
static_assert(offsetof(mk_pair_gemm_args, words) == 512, "as in pair.c");

static __device__ __forceinline__ void mk_pair_allreduce_run(const mk_pair_allreduce_args &p)
{
    mk_pair_shared *own = mk_shared();
    mk_ar *ar = &own->ar;
    mk_block_words *words = &own->words;
    for (uint32_t i = threadIdx.x; i < sizeof(mk_ar) / 4; i += MK_PAIR_THREADS)
        ((uint32_t *)ar)[i] = ((const uint32_t *)&p.ar)[i];
    if (threadIdx.x < MK_BULK_WARPS * MK_BULK_DEPTH)
        mk_mbar_init(mk_smem(&own->bulk.bars[0][threadIdx.x]), 1);
    if (threadIdx.x < MK_BULK_WARPS)
        own->bulk.phases[threadIdx.x] = 0;
    if (threadIdx.x == 0) {
        if (p.ar.skip_compute == MK_TILES_COME)
            mk_pair_tag(p.ar.tile_flag); /* before the positions, as in mk_ar_enter */
        own->bulk.map = &p.chunk;
        own->bulk.box_rows = p.box_rows;
        own->bulk.box_cols = p.box_cols;
        mk_tma_prefetch(&p.chunk);
    }
    mk_mbar_init_fence();
    __syncthreads();
    const uint64_t *at = mk_block_positions(ar, own->pos);
    if (threadIdx.x == 0)
        ar->pos = at;
    mk_block_enter(ar, words);
    for (;;) {
        const int next = mk_block_next(ar, words);
        if (next == MK_NEXT_LEAVE)
            break;
        if (next == MK_NEXT_TASK)
            mk_ar_do(ar, &words->blk);
    }
    mk_block_leave(ar, words);
    mk_grid_wait();
}

#define MK_PAIR_KERNELS(type)                                                                                \
    MK_PAIR_SHAPES(tn, 0, type)                                                                              \
    MK_PAIR_SHAPES(nn, 1, type)                                                                              \
    MK_PAIR_SHAPES(nt, 2, type)                                                                              \
    extern "C" __global__ void __launch_bounds__(MK_PAIR_THREADS, 1)                                         \
        pair_allreduce_##type(const __grid_constant__ mk_pair_allreduce_args p)                              \
    {                                                                                                        \
        mk_pair_allreduce_run(p);                                                                            \
    }
#else
#define MK_PAIR_KERNELS(type)
#endif
