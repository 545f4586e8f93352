/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#define MK_TILE_F16 1
#include "cuda/gemm_ar_ll_kernels.cuh"
MK_AR_LL_KERNELS(fp16)
