/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Sizes that a kernel is written for and that its launch must have. C11 and CUDA. */
#pragma once

/* Threads of a block. */
#define MK_BIG_THREADS 384    /* gemm_*, gemm_ar_*: one producer and two consumer warpgroups */
#define MK_SKINNY_THREADS 160 /* skinny_*: one consumer warpgroup, a producer warp */
/* gemm_ar_ll_*, by columns of a tile: these, a watching warp, and from 32 on eight that only sum */
#define MK_LL_THREADS(bn) ((bn) <= 16 ? 192 : 448)
#define MK_PORTABLE_THREADS 256
#define MK_PAIR_THREADS 256 /* pair_allreduce_*; pair_gemm_* are big */

/* Shared memory of pair_allreduce_*: buffers of bulk copies, then words. */
#define MK_PAIR_BULK (8 * 24576)
#define MK_PAIR_SMEM (MK_PAIR_BULK + 8192)

#define MK_SMEM_MAX 232448 /* bytes that a block can have on sm_90; gemm_ar_* have all of it */
