/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Calls of cuBLAS and NCCL in the pair recogniser's words. The numbers are those of the libraries' headers. */
#include "mk/pair_blas.h"
#include <string.h>

enum { OP_N = 0, OP_T = 1, OP_C = 2 };
enum { TYPE_32F = 0, TYPE_16F = 2, TYPE_16BF = 14 };
enum {
    COMPUTE_16F = 64,
    COMPUTE_16F_PEDANTIC = 65,
    COMPUTE_32F = 68,
    COMPUTE_32F_PEDANTIC = 69,
    FAST_TF32 = 77
};
enum { MATH_DEFAULT = 0, MATH_TENSOR = 1, MATH_PEDANTIC = 2, MATH_TF32 = 3, MATH_NO_REDUCED = 16 };
enum { EPI_NONE = 0, EPI_DEFAULT = 1, EPI_BIAS = 4, EPI_RELU_BIAS = 6, EPI_GELU_BIAS = 36 };
enum { NCCL_FLOAT16 = 6, NCCL_FLOAT32 = 7, NCCL_BFLOAT16 = 9 };

static uint8_t dtype_of(int32_t type)
{
    return type == TYPE_32F    ? MK_FLOAT32
           : type == TYPE_16BF ? MK_BFLOAT16
           : type == TYPE_16F  ? MK_FLOAT16
                               : MK_PAIR_OTHER_DTYPE;
}

uint8_t mk_pair_dtype_of_nccl(int32_t datatype)
{
    return datatype == NCCL_FLOAT32    ? MK_FLOAT32
           : datatype == NCCL_BFLOAT16 ? MK_BFLOAT16
           : datatype == NCCL_FLOAT16  ? MK_FLOAT16
                                       : MK_PAIR_OTHER_DTYPE;
}

static uint32_t compute_flags(int32_t compute, int32_t math, bool single)
{
    int32_t mode = math & ~MATH_NO_REDUCED; /* that one only asks for what G does anyway */
    uint32_t flags = 0;
    if (mode == MATH_TF32 && !single)
        mode = MATH_DEFAULT; /* a mode of the handle, for single precision only */
    if (compute == COMPUTE_16F || compute == COMPUTE_16F_PEDANTIC)
        flags |= MK_PAIR_COMPUTE_16F;
    if (compute == COMPUTE_32F_PEDANTIC || compute == COMPUTE_16F_PEDANTIC || mode == MATH_PEDANTIC)
        flags |= MK_PAIR_PEDANTIC;
    if (compute == FAST_TF32 || mode == MATH_TF32)
        flags |= MK_PAIR_TF32;
    if (!flags && (compute != COMPUTE_32F || (mode != MATH_DEFAULT && mode != MATH_TENSOR)))
        flags |= MK_PAIR_EMULATED; /* whatever else it may be */
    return flags;
}

static uint8_t epilogue_of(const struct mk_pair_cublas *call)
{
    const int32_t e = call->epilogue;
    if (e == EPI_NONE || e == EPI_DEFAULT)
        return MK_PAIR_PLAIN_EPILOGUE;
    if (!call->bias || call->bias_type != call->c_type)
        return MK_PAIR_OTHER_EPILOGUE;
    return e == EPI_BIAS        ? MK_PAIR_BIAS
           : e == EPI_RELU_BIAS ? MK_PAIR_RELU_BIAS
           : e == EPI_GELU_BIAS ? MK_PAIR_GELU_BIAS
                                : MK_PAIR_OTHER_EPILOGUE;
}

void mk_pair_from_cublas(const struct mk_pair_cublas *call, struct mk_pair_gemm *out)
{
    const bool a_n = call->transa == OP_N, b_n = call->transb == OP_N;
    const bool known =
        call->transa >= OP_N && call->transa <= OP_C && call->transb >= OP_N && call->transb <= OP_C;
    memset(out, 0, sizeof(*out));
    out->m = call->n;
    out->n = call->m;
    out->k = call->k;
    out->a = call->b;
    out->lda = call->ldb;
    out->b = call->a;
    out->ldb = call->lda;
    out->c = call->d;
    out->ldc = call->ldd;
    out->layout = b_n ? (a_n ? MK_NN : MK_TN) : MK_NT;
    out->a_type = dtype_of(call->b_type);
    out->b_type = dtype_of(call->a_type);
    out->c_type = dtype_of(call->c_type);
    out->epilogue = epilogue_of(call);
    out->bias = out->epilogue == MK_PAIR_PLAIN_EPILOGUE ? 0 : call->bias;
    out->extra = call->workspace;
    out->extra_bytes = call->workspace_bytes;
    out->alpha = call->alpha;
    out->beta = call->beta;
    out->batch = call->batch;
    out->flags = call->flags | compute_flags(call->compute, call->math, call->a_type == TYPE_32F);
    if (!known || (!a_n && !b_n))
        out->flags |= MK_PAIR_CANNOT;
    if (call->c != call->d || call->ldc != call->ldd)
        out->flags |= MK_PAIR_C_NOT_D;
}
