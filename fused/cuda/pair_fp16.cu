/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#define MK_TILE_F16 1
#include "cuda/pair_kernels.cuh"
MK_PAIR_KERNELS(fp16)
