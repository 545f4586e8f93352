/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* fp32 runs from and to storage types on the CPU. bfloat16 rounds to nearest even; NaN stays NaN (quiet). */
#pragma once
#include "mkernel.h"
#include <stdint.h>
#include <string.h>

static inline float mk_bf16_to_f32(uint16_t h)
{
    const uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline uint16_t mk_f32_to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    const uint32_t rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    const uint32_t nan = (u >> 16) | 0x40;
    return (uint16_t)((u & 0x7fffffff) > 0x7f800000 ? nan : rounded);
}

static inline void mk_load_f32(float *dst, const void *src, int dtype, int n)
{
    if (dtype == MK_FLOAT32) {
        memcpy(dst, src, (size_t)n * 4);
        return;
    }
    const uint16_t *h = (const uint16_t *)src;
    for (int j = 0; j < n; j++)
        dst[j] = mk_bf16_to_f32(h[j]);
}
static inline void mk_add_f32(float *acc, const void *src, int dtype, int n)
{
    if (dtype == MK_FLOAT32) {
        const float *f = (const float *)src;
        for (int j = 0; j < n; j++)
            acc[j] += f[j];
        return;
    }
    const uint16_t *h = (const uint16_t *)src;
    for (int j = 0; j < n; j++)
        acc[j] += mk_bf16_to_f32(h[j]);
}
static inline void mk_store_f32(void *dst, const float *src, int dtype, int n)
{
    if (dtype == MK_FLOAT32) {
        memcpy(dst, src, (size_t)n * 4);
        return;
    }
    uint16_t *h = (uint16_t *)dst;
    for (int j = 0; j < n; j++)
        h[j] = mk_f32_to_bf16(src[j]);
}
static inline void mk_round_f32(float *x, int dtype, int n)
{
    for (int j = 0; j < n && dtype != MK_FLOAT32; j++)
        x[j] = mk_bf16_to_f32(mk_f32_to_bf16(x[j]));
}
