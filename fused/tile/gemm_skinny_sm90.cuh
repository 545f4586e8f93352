/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Hopper GEMM for few rows of A (decode): the weights stream through once, so they stand where the matrix unit takes
 * 64 rows, and the rows of A (at most NT) are its columns: C^T[64 n, NT m] = B[64 n, K] * A[NT m, K]^T.
 *
 * A cluster of S blocks shares one tile of 64 n; each takes a part of K. Their partial sums meet in shared memory and
 * are added in split order, each block of the cluster finishing a part of the tile: no global workspace, no atomics,
 * the same bits in every run. S belongs to the numerics key.
 *
 * A block: one consumer warpgroup, then one producer warp. full[s], empty[s] as in gemm_sm90.cuh. */
#pragma once
#include "tile/epilogue.cuh"
#include "tile/ptx_sm90.cuh"
#include "tile/wgmma_sm90.cuh"

struct mk_gemm_skinny {
    CUtensorMap w, x;
    void *c;
    int64_t ldc;
    const void *bias;
    int32_t m, n, k, act;
    int32_t splits, wide; /* wide: C takes 8-byte stores */
};

template <int NT> struct mk_gemm_skinny_size {
    static constexpr int stage = 8192 + NT * 128;
    static constexpr int row = 68;          /* floats per token of the partial sums: no bank conflicts */
    static constexpr int room = 112 * 1024; /* two blocks a multiprocessor */
    static constexpr int stages = (room - 2048) / stage > 12 ? 12 : (room - 2048) / stage;
    static constexpr int bytes = 1024 + stages * stage + 512;
    static_assert(NT * row * 4 <= stages * stage, "the partial sums take the place of the pipeline");
};

/* Every tile begins its part of K elsewhere: all blocks read the same few rows of A, and in step they would ask the
 * same lines of L2 at the same time. A function of the tile, so the order of sums is the same in every run. */
static __device__ __forceinline__ uint32_t mk_skinny_start(uint32_t steps)
{
    return steps ? mk_cluster_id() * 5 % steps : 0;
}

template <int NT, int TW, bool F16>
static __device__ __forceinline__ void mk_skinny_produce(const mk_gemm_skinny &p, uint32_t stages,
                                                         uint32_t bars, int32_t n0, uint32_t first,
                                                         uint32_t last)
{
    constexpr int STAGES = mk_gemm_skinny_size<NT>::stages, STAGE = mk_gemm_skinny_size<NT>::stage;
    uint32_t s = 0, phase = 0;
    uint32_t k = first + mk_skinny_start(last - first);
    for (uint32_t kt = first; kt < last; kt++) {
        const uint32_t at = stages + s * STAGE, full = bars + 8 * s;
        mk_mbar_wait(bars + 8 * (STAGES + s), phase ^ 1);
        mk_mbar_expect(full, STAGE);
        if (TW == 0)
            mk_tma_load(at, &p.w, full, (int)(k * 64), n0);
        else
            mk_tma_load(at, &p.w, full, n0, (int)(k * 64));
        mk_tma_load(at + 8192, &p.x, full, (int)(k * 64), 0);
        k = k + 1 < last ? k + 1 : first;
        if (++s == STAGES) {
            s = 0;
            phase ^= 1;
        }
    }
}

template <int NT, int TW, bool F16>
static __device__ __forceinline__ void mk_skinny_consume(float (&acc)[NT / 2], uint32_t stages, uint32_t bars,
                                                         uint32_t thread, uint32_t first, uint32_t last)
{
    constexpr int STAGES = mk_gemm_skinny_size<NT>::stages, STAGE = mk_gemm_skinny_size<NT>::stage;
    uint32_t s = 0, phase = 0, before = 0;
#pragma unroll
    for (int i = 0; i < NT / 2; i++)
        acc[i] = 0;
    for (uint32_t kt = first; kt < last; kt++) {
        const uint32_t w = stages + s * STAGE, x = stages + s * STAGE + 8192;
        mk_mbar_wait(bars + 8 * s, phase);
        mk_wgmma_fence();
#pragma unroll
        for (int kk = 0; kk < 4; kk++) {
            const uint64_t dw =
                TW ? mk_wgmma_desc(w + kk * 2048, 8192, 1024) : mk_wgmma_desc(w + kk * 32, 16, 1024);
            mk_wgmma<NT, F16, TW, 0>::issue(acc, dw, mk_wgmma_desc(x + kk * 32, 16, 1024), 1);
        }
        mk_wgmma_commit();
        mk_wgmma_wait<1>();
        if (kt != first && thread == 0)
            mk_mbar_arrive(bars + 8 * (STAGES + before));
        before = s;
        if (++s == STAGES) {
            s = 0;
            phase ^= 1;
        }
    }
    mk_wgmma_wait<0>();
}

/* Adds the partial sums of all blocks of the cluster for a share of the tile, four n at a time. */
template <int NT, bool F16>
static __device__ __forceinline__ void mk_skinny_finish(const mk_gemm_skinny &p, uint32_t sums, uint32_t rank,
                                                        uint32_t thread, int32_t n0)
{
    constexpr int ROW = mk_gemm_skinny_size<NT>::row;
    for (uint32_t i = rank * 128 + thread; i < NT * 16; i += (uint32_t)p.splits * 128) {
        const int32_t token = (int32_t)(i / (16)), n = (int32_t)(i % (16)) * 4;
        if (token >= p.m || n0 + n >= p.n)
            continue;
        const uint32_t at = sums + ((uint32_t)token * ROW + (uint32_t)n) * 4;
        float v[4] = {0, 0, 0, 0};
        float4 part[8];
#pragma unroll
        for (int32_t s = 0; s < 8; s++) /* all on their way before the first is used */
            if (s < p.splits)
                part[s] = mk_cluster_load4(mk_cluster_map(at, (uint32_t)s));
#pragma unroll
        for (int32_t s = 0; s < 8; s++)
            if (s < p.splits) {
                v[0] = s ? v[0] + part[s].x : part[s].x;
                v[1] = s ? v[1] + part[s].y : part[s].y;
                v[2] = s ? v[2] + part[s].z : part[s].z;
                v[3] = s ? v[3] + part[s].w : part[s].w;
            }
        uint16_t h[4];
        uint16_t *c = (uint16_t *)p.c + token * p.ldc + n0 + n;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (p.bias && n0 + n + j < p.n)
                v[j] += mk_to_f32<F16>(((const uint16_t *)p.bias)[n0 + n + j]);
            h[j] = mk_from_f32<F16>(mk_activate(v[j], p.act));
        }
        if (p.wide && n0 + n + 3 < p.n) {
            *(uint2 *)c = make_uint2(h[0] | (uint32_t)h[1] << 16, h[2] | (uint32_t)h[3] << 16);
        } else {
            for (int j = 0; j < 4 && n0 + n + j < p.n; j++)
                c[j] = h[j];
        }
    }
}

template <int NT, int TW, bool F16>
static __device__ __forceinline__ void mk_gemm_skinny_run(const mk_gemm_skinny &p)
{
    extern __shared__ uint8_t raw[];
    constexpr int STAGES = mk_gemm_skinny_size<NT>::stages, ROW = mk_gemm_skinny_size<NT>::row;
    const uint32_t stages = (mk_smem(raw) + 1023) & ~1023u,
                   bars = stages + STAGES * mk_gemm_skinny_size<NT>::stage;
    const uint32_t rank = mk_cluster_rank(), ktiles = (uint32_t)(p.k + 63) / 64;
    const uint32_t first = ktiles * rank / (uint32_t)p.splits,
                   last = ktiles * (rank + 1) / (uint32_t)p.splits;
    const int32_t n0 = (int32_t)mk_cluster_id() * 64;
    const uint32_t thread = threadIdx.x, lane = thread % 32;
    if (thread == 0) {
        for (uint32_t s = 0; s < STAGES; s++) {
            mk_mbar_init(bars + 8 * s, 1);
            mk_mbar_init(bars + 8 * (STAGES + s), 1);
        }
        mk_mbar_init_fence();
    } else if (thread == 128) {
        mk_tma_prefetch(&p.w);
        mk_tma_prefetch(&p.x);
    }
    __syncthreads();
    mk_grid_wait(); /* nothing of global memory was touched so far */
    if (thread >= 128) {
        if (thread == 128)
            mk_skinny_produce<NT, TW, F16>(p, stages, bars, n0, first, last);
        __syncwarp();
    } else {
        float acc[NT / 2];
        mk_skinny_consume<NT, TW, F16>(acc, stages, bars, thread, first, last);
        mk_bar_sync(1, 128); /* all warpgroups are done with the pipeline */
        float *sums = (float *)(raw + (stages - mk_smem(raw)));
        const uint32_t n = thread / 32 * 16 + lane / 4;
#pragma unroll
        for (int g = 0; g < NT / 8; g++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                sums[(g * 8 + (lane % 4) * 2 + j % 2) * ROW + n + (j / 2) * 8] = acc[4 * g + j];
    }
    mk_cluster_sync();
    if (thread < 128)
        mk_skinny_finish<NT, F16>(p, stages, rank, thread, n0);
    mk_cluster_sync(); /* nobody reads the sums of a block that has gone */
}
