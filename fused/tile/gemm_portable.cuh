/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* GEMM without Hopper instructions (compute capability 8.0 and later), and for operands whose addresses or leading
 * dimensions the copy engine cannot take: any M, N, K (0 too), any leading dimension, any alignment of 2 bytes.
 * Tiles of 128 x 128 x 32, 8 warps of 64 x 32, mma.sync m16n8k16, next tile in registers while this one multiplies.
 * Persistent over tiles. Order of sums: k ascending in steps of 16. */
#pragma once
#include "tile/epilogue.cuh"

struct mk_gemm_portable {
    const void *a, *b, *bias;
    void *c;
    int64_t lda, ldb, ldc;
    int32_t m, n, k, act, layout, group;
};

constexpr int MK_PT = 128, MK_PK = 32, MK_PROW = MK_PK + 8; /* padded: no bank conflicts for ldmatrix */

static __device__ __forceinline__ void mk_ldmatrix4(uint32_t (&r)[4], const uint16_t *p)
{
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(p);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
template <bool F16>
static __device__ __forceinline__ void mk_mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    if (F16)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, "
                     "%7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* 16 elements a thread of a 128 x 32 panel, zero outside. k_first: K is the contiguous dimension. */
static __device__ __forceinline__ void mk_panel_load(uint16_t (&v)[16], const void *src, int64_t ld,
                                                     bool k_first, int32_t x0, int32_t xn, int32_t k0,
                                                     int32_t kn)
{
    const uint16_t *p = (const uint16_t *)src;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const int32_t e = i * 256 + (int32_t)threadIdx.x;
        const int32_t x = x0 + (k_first ? e / MK_PK : e % MK_PT), k = k0 + (k_first ? e % MK_PK : e / MK_PT);
        v[i] = x < xn && k < kn ? p[k_first ? x * ld + k : k * ld + x] : (uint16_t)0;
    }
}
static __device__ __forceinline__ void mk_panel_store(const uint16_t (&v)[16], uint16_t *dst, bool k_first)
{
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const int32_t e = i * 256 + (int32_t)threadIdx.x;
        dst[(k_first ? e / MK_PK : e % MK_PT) * MK_PROW + (k_first ? e % MK_PK : e / MK_PT)] = v[i];
    }
}

template <bool F16>
static __device__ __forceinline__ void mk_portable_multiply(float (&acc)[4][4][4], const uint16_t *a,
                                                            const uint16_t *b)
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t m0 = warp / 4 * 64, n0 = warp % 4 * 32;
#pragma unroll
    for (int kk = 0; kk < MK_PK; kk += 16) {
        uint32_t fb[2][4];
#pragma unroll
        for (int j = 0; j < 2; j++) /* rows n, k halves: b0 b1 of two n groups */
            mk_ldmatrix4(fb[j],
                         b + (n0 + j * 16 + lane / 16 * 8 + lane % 8) * MK_PROW + kk + lane / 8 % 2 * 8);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t fa[4];
            mk_ldmatrix4(fa, a + (m0 + i * 16 + lane % 16) * MK_PROW + kk + lane / 16 * 8);
#pragma unroll
            for (int j = 0; j < 4; j++)
                mk_mma<F16>(acc[i][j], fa, fb[j / 2][j % 2 * 2], fb[j / 2][j % 2 * 2 + 1]);
        }
    }
}

template <bool F16>
static __device__ __forceinline__ void mk_portable_out(const mk_gemm_portable &p, const float (&acc)[4][4][4],
                                                       int32_t row0, int32_t col0)
{
    const int32_t warp = (int32_t)threadIdx.x / 32, lane = (int32_t)threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int32_t row = row0 + warp / 4 * 64 + i * 16 + lane / 4 + e / 2 * 8;
                const int32_t col = col0 + warp % 4 * 32 + j * 8 + lane % 4 * 2 + e % 2;
                if (row >= p.m || col >= p.n)
                    continue;
                float v = acc[i][j][e];
                if (p.bias)
                    v += mk_to_f32<F16>(((const uint16_t *)p.bias)[col]);
                ((uint16_t *)p.c)[row * p.ldc + col] = mk_from_f32<F16>(mk_activate(v, p.act));
            }
}

/* One tile; every thread of the block (256). Ends with a block barrier. */
template <bool F16>
static __device__ __forceinline__ void mk_portable_tile(const mk_gemm_portable &p, uint32_t t)
{
    __shared__ __align__(16) uint16_t sa[2][MK_PT * MK_PROW];
    __shared__ __align__(16) uint16_t sb[2][MK_PT * MK_PROW]; /* as ldmatrix wants */
    const uint32_t cols = (uint32_t)(p.n + MK_PT - 1) / MK_PT;
    const bool a_first = p.layout != 2, b_first = p.layout == 0;
    float acc[4][4][4];
    uint16_t va[16], vb[16];
    const int32_t row0 = (int32_t)(t / cols) * MK_PT, col0 = (int32_t)(t % cols) * MK_PT;
#pragma unroll
    for (int i = 0; i < 64; i++)
        acc[i / 16][i / 4 % 4][i % 4] = 0;
    mk_panel_load(va, p.a, p.lda, a_first, row0, p.m, 0, p.k);
    mk_panel_load(vb, p.b, p.ldb, b_first, col0, p.n, 0, p.k);
    int buf = 0;
    for (int32_t k0 = 0; k0 < p.k; k0 += MK_PK, buf ^= 1) {
        mk_panel_store(va, sa[buf], a_first);
        mk_panel_store(vb, sb[buf], b_first);
        __syncthreads(); /* the other buffer was read before the last one */
        if (k0 + MK_PK < p.k) {
            mk_panel_load(va, p.a, p.lda, a_first, row0, p.m, k0 + MK_PK, p.k);
            mk_panel_load(vb, p.b, p.ldb, b_first, col0, p.n, k0 + MK_PK, p.k);
        }
        mk_portable_multiply<F16>(acc, sa[buf], sb[buf]);
    }
    mk_portable_out<F16>(p, acc, row0, col0);
    __syncthreads();
}

template <bool F16> static __device__ __forceinline__ void mk_gemm_portable_run(const mk_gemm_portable &p)
{
    const uint32_t rows = (uint32_t)(p.m + MK_PT - 1) / MK_PT, cols = (uint32_t)(p.n + MK_PT - 1) / MK_PT;
    for (uint32_t t = blockIdx.x; t < rows * cols; t += gridDim.x)
        mk_portable_tile<F16>(p, t);
}
