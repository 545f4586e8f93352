/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* gemm_ar_portable_TYPE, and gemm_ar_ll_portable_TYPE on the latency path: GEMM+AllReduce without Hopper instructions, for any alignment, K = 0 and empty C; tiles of
 * 128 x 128, blocks of 256 threads that switch roles at every task. */
#pragma once
#ifndef MK_CONTROL
#define MK_CONTROL 1
#endif
#include "cuda/block.h"
#include "tile/gemm_portable.cuh"
#define MK_TILE_WIDTH 1
#include "cuda/gemm_ar_block.cuh"
#include "tile/ll.cuh"

MK_DEV void mk_ar_portable_tile(const struct mk_ar *ar, uint32_t tile)
{
    const mk_gemm_portable p = {
        ar->a,          ar->b,   (const void *)0, /* bias and activation come with the sum of all ranks */
        ar->c,          ar->lda, ar->ldb,         ar->ldc, (int32_t)ar->grid.m, (int32_t)ar->grid.n,
        (int32_t)ar->k, 0,       ar->layout,      1};
    mk_portable_tile<MK_TILE_F16 != 0>(p, tile);
}
MK_DEV void mk_tile_gemm(const struct mk_ar *ar, const struct mk_ar_block *blk)
{
    mk_ar_portable_tile(ar, blk->task.chunk);
}

MK_DEV void mk_tile_op(const struct mk_ar *ar, const struct mk_ar_block *blk, const struct mk_op *op)
{
    mk_plain_op(ar, blk, op);
}

/* Latency path: the groups of a tile of 128 columns, from C. */
MK_DEV void mk_ll_send_from_c(const struct mk_ar *ar, uint64_t position, uint32_t tile)
{
    const uint32_t row_groups = mk_ll_row_groups(ar->grid.n);
    for (uint32_t i = mk_lane(); i < (uint32_t)ar->grid.m * 32; i += mk_lanes()) {
        const uint32_t row = i / 32, group = tile * 32 + i % 32;
        const uint16_t *c = (const uint16_t *)ar->c + (int64_t)row * ar->ldc + (int64_t)group * 4;
        uint32_t v[2] = {};
        if (group >= row_groups)
            continue;
#pragma unroll
        for (int j = 0; j < 4; j++)
            if ((int64_t)group * 4 + j < ar->grid.n)
                v[j / 2] |= (uint32_t)c[j] << j % 2 * 16;
        mk_ll_send(ar, position, row * row_groups + group, v[0], v[1]);
    }
}
static __device__ __forceinline__ void mk_ll_portable_run(const mk_ar &args)
{
    __shared__ mk_ll_words words;
    const struct mk_ar *ar = &args;
    if (threadIdx.x == 0) {
        mk_ar_block blk;
        mk_ll_enter(ar, &words, mk_ll_take(ar, &blk), 0, 1);
    }
    __syncthreads();
    mk_ll_clear(ar, words.position);
    for (uint32_t t = blockIdx.x; t < mk_tiles(&ar->grid) && !words.block.aborted; t += gridDim.x) {
        if (!ar->skip_compute)
            mk_ar_portable_tile(ar, t);
        __syncthreads(); /* C is written, by this block */
        mk_ll_fence_partials();
        mk_ll_send_from_c(ar, words.position, t);
    }
    /* Sums go to C, which other blocks may still read: whoever has all ranks' words of a group has this rank's too. */
    mk_ll_end<MK_TILE_F16 != 0, 4>(ar, &words, mk_lanes());
}

#define MK_AR_PORTABLE(type)                                                                                 \
    extern "C" __global__ void __launch_bounds__(MK_PORTABLE_THREADS)                                        \
        gemm_ar_portable_##type(const __grid_constant__ mk_ar ar)                                            \
    {                                                                                                        \
        __shared__ mk_block_words words;                                                                     \
        mk_block_enter(&ar, &words);                                                                         \
        for (;;) {                                                                                           \
            const int next = mk_block_next(&ar, &words);                                                     \
            if (next == MK_NEXT_LEAVE)                                                                       \
                break;                                                                                       \
            if (next == MK_NEXT_TASK)                                                                        \
                mk_ar_do(&ar, &words.blk);                                                                   \
        }                                                                                                    \
        mk_block_leave(&ar, &words);                                                                         \
    }                                                                                                        \
    extern "C" __global__ void __launch_bounds__(MK_PORTABLE_THREADS)                                        \
        gemm_ar_ll_portable_##type(const __grid_constant__ mk_ar ar)                                         \
    {                                                                                                        \
        mk_ll_portable_run(ar);                                                                              \
    }
