/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#include "cuda/gemm_kernels.cuh"
MK_GEMM_KERNELS(bf16, false)
