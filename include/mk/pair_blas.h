/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What a call of cuBLAS or NCCL says, in the pair recogniser's words (mk/pair.h). Pure: the libraries' enumerations are
 * plain numbers here. */
#pragma once
#include "mk/pair.h"

struct mk_pair_cublas {     /* column-major, as it was called: C = alpha op(A) op(B) + beta C */
    int32_t transa, transb; /* cublasOperation_t */
    int32_t a_type, b_type, c_type, bias_type; /* cudaDataType_t */
    int32_t compute;                           /* cublasComputeType_t */
    int32_t math;                              /* cublasMath_t of the handle; 0 for cublasLt */
    int32_t epilogue;                          /* cublasLtEpilogue_t; 0: none was asked for */
    int64_t m, n, k, lda, ldb, ldc;
    uint64_t a, b, c, d, bias; /* d: where the result goes; cuBLAS: c */
    int64_t ldd;
    uint64_t workspace, workspace_bytes;
    float alpha, beta;
    uint32_t
        flags; /* MK_PAIR_DEVICE_SCALARS, SCALED, UNKNOWN_ATTRIBUTE, NEW_LT, CANNOT: what only the caller knows */
    uint32_t batch;
};
/* Row-major, A and B change places: the weight of a linear layer becomes B. What has no row-major layout of ours (both
 * transposed) has MK_PAIR_CANNOT. */
void mk_pair_from_cublas(const struct mk_pair_cublas *call, struct mk_pair_gemm *out);
/* mk_dtype_t, or MK_PAIR_OTHER_DTYPE. */
uint8_t mk_pair_dtype_of_nccl(int32_t datatype);
