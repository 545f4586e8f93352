/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Built without nvcc: there are no kernels, and mk_kernels_built says so. */
#include "cuda/gemm.h"

const uint8_t mk_kernels_gemm_bf16[1] = {0};
const uint8_t mk_kernels_gemm_fp16[1] = {0};
const uint8_t mk_kernels_gemm_ar_bf16[1] = {0};
const uint8_t mk_kernels_gemm_ar_fp16[1] = {0};
const uint8_t mk_kernels_gemm_ar_portable_bf16[1] = {0};
const uint8_t mk_kernels_gemm_ar_portable_fp16[1] = {0};
const uint8_t mk_kernels_gemm_ar_ll_bf16[1] = {0};
const uint8_t mk_kernels_gemm_ar_ll_fp16[1] = {0};
const uint8_t mk_kernels_pair_bf16[1] = {0};
const uint8_t mk_kernels_pair_fp16[1] = {0};
const uint8_t mk_kernels_pair_check[1] = {0};
const bool mk_kernels_built = false;
