/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#include "gemm_ar_ref.h"
#include <math.h>
#include <string.h>

/* Round to nearest even at 16 bits below the top, by arithmetic on the value (not the library's bit trick). */
static float bf16_round(float x)
{
    uint32_t u;
    if (isnan(x) || isinf(x) || x == 0)
        return x;
    memcpy(&u, &x, 4);
    uint32_t low = u & 0xffff, up = u & 0xffff0000;
    if (low > 0x8000 || (low == 0x8000 && (up & 0x10000)))
        up += 0x10000;
    memcpy(&x, &up, 4);
    return x;
}
static float round_to(float x, int dtype)
{
    return dtype == MK_FLOAT32 ? x : bf16_round(x);
}
static float get(const void *p, int dtype, int64_t i)
{
    if (dtype == MK_FLOAT32)
        return ((const float *)p)[i];
    const uint32_t u = (uint32_t)((const uint16_t *)p)[i] << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static void set(void *p, int dtype, int64_t i, float v)
{
    uint32_t u;
    v = round_to(v, dtype);
    memcpy(&u, &v, 4);
    if (dtype == MK_FLOAT32)
        ((float *)p)[i] = v;
    else
        ((uint16_t *)p)[i] = (uint16_t)((u >> 16) | (isnan(v) ? 0x40 : 0));
}
double mk_ref_get(const void *p, int dtype, int64_t i)
{
    return (double)get(p, dtype, i);
}
void mk_ref_set(void *p, int dtype, int64_t i, double v)
{
    set(p, dtype, i, (float)v);
}

static float activate(float x, int act)
{
    switch (act) {
    case MK_ACT_RELU:
        return x < 0 ? 0 : x;
    case MK_ACT_GELU:
        return 0.5f * x * (1 + erff(x * 0.70710678118654752f));
    case MK_ACT_SILU:
        return x / (1 + expf(-x));
    default:
        return x;
    }
}

void mk_ref_allreduce(int nnodes, int nlocal, int64_t m, int64_t n, int dtype, int wire_fp32,
                      const void *const *p, const void *bias, int act, void *out)
{
    const int wire = wire_fp32 ? MK_FLOAT32 : dtype;
    for (int64_t i = 0; i < m * n; i++) {
        float total = 0;
        for (int d = 0; d < nnodes; d++) {
            float sum = 0;
            for (int l = 0; l < nlocal; l++) {
                const float v = get(p[d * nlocal + l], dtype, i);
                sum = l ? sum + v : v;
            }
            if (nnodes > 1)
                sum = round_to(sum, wire);
            total = d ? total + sum : sum;
        }
        if (bias)
            total += get(bias, dtype, i % n);
        set(out, dtype, i, activate(total, act));
    }
}

void mk_ref_gemm_f64(int layout, int dtype, int64_t m, int64_t n, int64_t k, const void *a, int64_t lda,
                     const void *b, int64_t ldb, double *acc)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t q = 0; q < k; q++) {
            const double x = get(a, dtype, layout == MK_NT ? q * lda + i : i * lda + q);
            for (int64_t j = 0; j < n; j++)
                acc[i * n + j] += x * (double)get(b, dtype, layout == MK_TN ? j * ldb + q : q * ldb + j);
        }
}

double mk_ref_rel_error(const void *x, int dtype, int64_t m, int64_t n, int64_t ld, const double *ref)
{
    double diff = 0, norm = 0;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            const double d = (double)get(x, dtype, i * ld + j) - ref[i * n + j];
            diff += d * d;
            norm += ref[i * n + j] * ref[i * n + j];
        }
    if (isnan(diff))
        return INFINITY;
    return norm > 0 ? sqrt(diff / norm) : sqrt(diff);
}
