/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* gemm_ar_portable_TYPE: GEMM+AllReduce without Hopper instructions, for any alignment, K = 0 and empty C; tiles of
 * 128 x 128, blocks of 256 threads that switch roles at every task. */
#pragma once
#include "tile/gemm_portable.cuh"
#define MK_TILE_WIDTH 1
#include "cuda/gemm_ar_block.cuh"

MK_DEV void mk_tile_gemm(const struct mk_ar *ar, const struct mk_ar_block *blk)
{
    const mk_gemm_portable p = {
        ar->a,          ar->b,   (const void *)0, /* bias and activation come with the sum of all ranks */
        ar->c,          ar->lda, ar->ldb,         ar->ldc, (int32_t)ar->grid.m, (int32_t)ar->grid.n,
        (int32_t)ar->k, 0,       ar->layout,      1};
    mk_portable_tile<MK_TILE_F16 != 0>(p, blk->task.chunk);
}

MK_DEV void mk_tile_op(const struct mk_ar *ar, const struct mk_ar_block *blk, const struct mk_op *op)
{
    mk_plain_op(ar, blk, op);
}

#define MK_AR_PORTABLE(type)                                                                                 \
    extern "C" __global__ void __launch_bounds__(256)                                                        \
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
    }
