/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#define MK_TILE_F16 0
#include "cuda/pair_kernels.cuh"
MK_PAIR_KERNELS(bf16)
