/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Kernels of mk_gemm for one type. Names: gemm_LAYOUT_TYPE_BNxCM (Hopper, tiles of 128 x BN, clusters of CM),
 * skinny_LAYOUT_TYPE_NTxS (few rows, S parts of K), portable_TYPE. The Hopper ones exist for sm_90a only.
 * One file a type, so that they compile side by side. */
#pragma once
#include "cuda/block.h"
#include "tile/gemm_portable.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900
#include "tile/gemm_skinny_sm90.cuh"
#include "tile/gemm_sm90.cuh"

#define MK_BIG(layout, L, type, F16, BN, CM)                                                                 \
    extern "C" __global__ void __launch_bounds__(MK_BIG_THREADS, 1)                                          \
        gemm_##layout##_##type##_##BN##x##CM(const __grid_constant__ mk_gemm_sm90 p)                         \
    {                                                                                                        \
        mk_gemm_sm90_run<BN, L, F16, CM>(p, mk_gemm_untold());                                               \
    }
#define MK_BIG_SHAPES(layout, L, type, F16)                                                                  \
    MK_BIG(layout, L, type, F16, 256, 2)                                                                     \
    MK_BIG(layout, L, type, F16, 256, 1)                                                                     \
    MK_BIG(layout, L, type, F16, 192, 1)                                                                     \
    MK_BIG(layout, L, type, F16, 128, 1)                                                                     \
    MK_BIG(layout, L, type, F16, 64, 1)
#define MK_SKINNY(layout, TW, type, F16, NT, S)                                                              \
    extern "C" __global__ void __launch_bounds__(MK_SKINNY_THREADS, 1)                                       \
        skinny_##layout##_##type##_##NT##x##S(const __grid_constant__ mk_gemm_skinny p)                      \
    {                                                                                                        \
        mk_gemm_skinny_run<NT, S, TW, F16>(p);                                                               \
    }
#define MK_SKINNY_SHAPES(layout, TW, type, F16)                                                              \
    MK_SKINNY(layout, TW, type, F16, 8, 1)                                                                   \
    MK_SKINNY(layout, TW, type, F16, 16, 1)                                                                  \
    MK_SKINNY(layout, TW, type, F16, 32, 1)                                                                  \
    MK_SKINNY(layout, TW, type, F16, 64, 1)                                                                  \
    MK_SKINNY(layout, TW, type, F16, 8, 2)                                                                   \
    MK_SKINNY(layout, TW, type, F16, 16, 2)                                                                  \
    MK_SKINNY(layout, TW, type, F16, 32, 2)                                                                  \
    MK_SKINNY(layout, TW, type, F16, 64, 2)
#define MK_HOPPER_KERNELS(type, F16)                                                                         \
    MK_BIG_SHAPES(tn, 0, type, F16)                                                                          \
    MK_BIG_SHAPES(nn, 1, type, F16)                                                                          \
    MK_BIG_SHAPES(nt, 2, type, F16) MK_SKINNY_SHAPES(tn, 0, type, F16) MK_SKINNY_SHAPES(nn, 1, type, F16)
#else
#define MK_HOPPER_KERNELS(type, F16)
#endif

#define MK_GEMM_KERNELS(type, F16)                                                                           \
    MK_HOPPER_KERNELS(type, F16)                                                                             \
    extern "C" __global__ void __launch_bounds__(MK_PORTABLE_THREADS)                                        \
        portable_##type(const __grid_constant__ mk_gemm_portable p)                                          \
    {                                                                                                        \
        mk_gemm_portable_run<F16>(p);                                                                        \
    }
