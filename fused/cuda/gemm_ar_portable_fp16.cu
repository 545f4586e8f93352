/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#define MK_TILE_F16 1
#include "cuda/gemm_ar_portable.cuh"
MK_AR_PORTABLE(fp16)
