/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Epilogue in registers: bias, activation, rounding to 16 bits. The same function on every path of the GPU. */
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

template <bool F16> static __device__ __forceinline__ float mk_to_f32(uint16_t h)
{
    return F16 ? __half2float(__ushort_as_half(h)) : __bfloat162float(__ushort_as_bfloat16(h));
}
template <bool F16> static __device__ __forceinline__ uint16_t mk_from_f32(float f)
{
    return F16 ? __half_as_ushort(__float2half_rn(f)) : __bfloat16_as_ushort(__float2bfloat16_rn(f));
}
template <bool F16> static __device__ __forceinline__ uint32_t mk_pack2(float lo, float hi)
{
    uint32_t v;
    if (F16)
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(hi), "f"(lo));
    else
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(hi), "f"(lo));
    return v;
}

static __device__ __forceinline__ float mk_activate(float x, int32_t act)
{
    switch (act) {
    case 1:
        return x < 0 ? 0 : x; /* NaN stays */
    case 2:
        return 0.5f * x * (1 + erff(x * 0.70710678118654752f));
    case 3:
        return x / (1 + expf(-x));
    default:
        return x;
    }
}

/* acc of a warpgroup (layout of wgmma_sm90.cuh, N columns from n0) -> packed pairs. `quad`: lane % 4. */
template <int N, bool F16>
static __device__ __forceinline__ void mk_epilogue(float (&acc)[N / 2], uint32_t (&packed)[N / 4],
                                                   const void *bias, int32_t act, int32_t n0, int32_t n,
                                                   uint32_t quad)
{
    if (bias) {
#pragma unroll
        for (int g = 0; g < N / 8; g++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const int32_t col = n0 + g * 8 + (int32_t)quad * 2 + j;
                const float b = col < n ? mk_to_f32<F16>(((const uint16_t *)bias)[col]) : 0;
                acc[4 * g + j] += b;
                acc[4 * g + 2 + j] += b;
            }
    }
    if (act) {
#pragma unroll
        for (int i = 0; i < N / 2; i++)
            acc[i] = mk_activate(acc[i], act);
    }
#pragma unroll
    for (int i = 0; i < N / 4; i++)
        packed[i] = mk_pack2<F16>(acc[2 * i], acc[2 * i + 1]);
}
