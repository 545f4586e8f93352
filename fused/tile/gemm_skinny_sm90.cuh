/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Hopper GEMM for few rows of A (decode): the weights stream through once, so they stand where the matrix unit takes
 * 64 rows, and the rows of A (at most NT) are its columns: C^T[64 n, NT m] = B[64 n, K] * A[NT m, K]^T.
 *
 * S = 2: a cluster of two blocks shares one tile of 64 n; each takes half of K. The tokens of the tile, in groups of 8,
 * are dealt to the two: each sends its partial sums of the other's groups, as they stand in registers, into the other's
 * shared memory, and adds what it gets to its own in split order: no global workspace, no atomics, the same bits in
 * every run. S belongs to the numerics key.
 *
 * A block: one consumer warpgroup, then one producer warp. full[s], empty[s] as in gemm_sm90.cuh; sums: the bytes of the
 * partial sums that come from the other block. Shared memory: stages, partial sums, barriers; the finished tile takes
 * the place of the first stage. All of these numbers are known at compile time: the end of a tile is a chain of dependent
 * instructions in one warp a scheduler, where each division shows.
 *
 * The next kernel in the stream may start when a block has asked for its last weights: what this library launches next
 * then asks its first boxes into L2 while this one still multiplies. */
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
    int32_t wide;   /* C takes 16-byte stores */
    int32_t stages; /* of the pipeline, from 2 on */
    int32_t ahead;  /* boxes asked into L2 before the kernels before this one have ended */
    int32_t pad;
};

template <int NT, int S, int TW> struct mk_skinny_block {
    static constexpr int STAGE = 8192 + NT * 128, GROUPS = NT / 8, PER = (GROUPS + S - 1) / S,
                         RECEIVED = (S - 1) * PER * 2048;

    const mk_gemm_skinny &p;
    uint32_t stages, received, bars; /* addresses */
    uint32_t count, rank, first, steps, start;
    int32_t n0;

    __device__ __forceinline__ mk_skinny_block(const mk_gemm_skinny &args, uint32_t smem) : p(args)
    {
        const uint32_t ktiles = (uint32_t)(p.k + 63) / 64;
        count = (uint32_t)p.stages;
        rank = S > 1 ? mk_cluster_rank() : 0;
        first = ktiles * rank / S;
        steps = ktiles * (rank + 1) / S - first;
        /* Every tile begins its part of K elsewhere: all blocks read the same few rows of A, and in step they would ask
         * the same lines of L2 at the same time. A function of the tile, so the order of sums is the same in every
         * run. */
        start = steps ? mk_cluster_id() * 5 % steps : 0;
        n0 = (int32_t)mk_cluster_id() * 64;
        stages = smem;
        received = stages + count * STAGE;
        bars = received + RECEIVED;
    }
    __device__ __forceinline__ uint32_t full(uint32_t s) const
    {
        return bars + 8 * s;
    }
    __device__ __forceinline__ uint32_t empty(uint32_t s) const
    {
        return bars + 8 * (count + s);
    }
    __device__ __forceinline__ uint32_t sums(void) const
    {
        return bars + 16 * count;
    }

    __device__ __forceinline__ void init(void) const
    {
        for (uint32_t s = 0; s < count; s++) {
            mk_mbar_init(full(s), 1);
            mk_mbar_init(empty(s), 1);
        }
        mk_mbar_init(sums(), 1);
        mk_mbar_init_fence();
        const int mine = rank ? GROUPS - PER : PER;
        if (S > 1 && mine)
            mk_mbar_expect(sums(), (uint32_t)mine * 2048);
    }

    __device__ __forceinline__ void ask_ahead(void) const
    {
        uint32_t k = start;
        for (uint32_t i = 0; i < (uint32_t)p.ahead && i < steps; i++) {
            const int32_t at = (int)(first + k) * 64;
            mk_tma_prefetch_box(&p.w, TW ? n0 : at, TW ? at : n0);
            k = k + 1 < steps ? k + 1 : 0;
        }
    }

    __device__ __forceinline__ void produce(void) const
    {
        const uint64_t policy = mk_policy_stream();
        uint32_t s = 0, phase = 0, k = start;
        for (uint32_t i = 0; i < steps; i++) {
            const uint32_t to = stages + s * STAGE;
            const int32_t at = (int)(first + k) * 64;
            mk_mbar_wait(empty(s), phase ^ 1);
            mk_mbar_expect(full(s), STAGE);
            mk_tma_load_policy(to, &p.w, full(s), TW ? n0 : at, TW ? at : n0, policy);
            mk_tma_load(to + 8192, &p.x, full(s), at, 0);
            k = k + 1 < steps ? k + 1 : 0;
            if (++s == count) {
                s = 0;
                phase ^= 1;
            }
        }
    }

    template <bool F16> __device__ __forceinline__ void consume(float (&acc)[NT / 2], uint32_t thread) const
    {
        uint32_t s = 0, phase = 0, before = 0;
#pragma unroll
        for (int i = 0; i < NT / 2; i++)
            acc[i] = 0;
        for (uint32_t i = 0; i < steps; i++) {
            const uint32_t w = stages + s * STAGE, x = w + 8192;
            mk_mbar_wait(full(s), phase);
            mk_wgmma_fence();
#pragma unroll
            for (int kk = 0; kk < 4; kk++) {
                const uint64_t dw =
                    TW ? mk_wgmma_desc(w + kk * 2048, 8192, 1024) : mk_wgmma_desc(w + kk * 32, 16, 1024);
                mk_wgmma<NT, F16, TW, 0>::issue(acc, dw, mk_wgmma_desc(x + kk * 32, 16, 1024), 1);
            }
            mk_wgmma_commit();
            mk_wgmma_wait<1>();
            if (i && thread == 0)
                mk_mbar_arrive(empty(before));
            before = s;
            if (++s == count) {
                s = 0;
                phase ^= 1;
            }
        }
        mk_wgmma_wait<0>();
    }

    /* RANK's groups of tokens: FIRST to LAST - 1. */
    template <int RANK> struct groups {
        static constexpr int FIRST = RANK * PER, LAST = RANK ? GROUPS : PER;
    };

    /* Partial sums of the other's groups leave; those of this block's groups are added in split order. */
    template <int RANK> __device__ __forceinline__ void exchange(float (&acc)[NT / 2], uint32_t thread) const
    {
        constexpr int FIRST = groups<RANK>::FIRST, LAST = groups<RANK>::LAST;
        const uint32_t bar = mk_cluster_map(sums(), 1 - RANK),
                       there = mk_cluster_map(received + thread * 16, 1 - RANK);
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
            if (g < FIRST || g >= LAST)
                mk_cluster_send4(there + (g - groups<1 - RANK>::FIRST) * 2048, acc[4 * g], acc[4 * g + 1],
                                 acc[4 * g + 2], acc[4 * g + 3], bar);
        if (FIRST < LAST)
            mk_mbar_wait(sums(), 0);
#pragma unroll
        for (int g = FIRST; g < LAST; g++) {
            float v[4];
            mk_smem_load4(v, received + (g - FIRST) * 2048 + thread * 16);
#pragma unroll
            for (int j = 0; j < 4; j++)
                acc[4 * g + j] = RANK ? v[j] + acc[4 * g + j] : acc[4 * g + j] + v[j];
        }
    }

    /* Bias, activation, rounding; this block's groups, transposed, into shared memory: a row of 64 n a token. */
    template <int RANK, bool F16>
    __device__ __forceinline__ void pack(float (&acc)[NT / 2], uint32_t thread) const
    {
        const uint32_t warp = thread / 32, lane = thread % 32, chunk = warp * 2 + lane / 8 % 2;
        const uint32_t to = stages + lane % 8 * 128 + ((chunk ^ lane % 8) << 4);
        const int32_t n = n0 + (int32_t)(warp * 16 + lane / 4);
        float bias[2] = {0, 0};
        if (p.bias) {
            bias[0] = n < p.n ? mk_to_f32<F16>(((const uint16_t *)p.bias)[n]) : 0;
            bias[1] = n + 8 < p.n ? mk_to_f32<F16>(((const uint16_t *)p.bias)[n + 8]) : 0;
        }
#pragma unroll
        for (int g = groups<RANK>::FIRST; g < groups<RANK>::LAST; g++) {
            float *v = acc + 4 * g;
            if (p.bias || p.act) {
#pragma unroll
                for (int j = 0; j < 4; j++)
                    v[j] = mk_activate(p.bias ? v[j] + bias[j / 2] : v[j], p.act);
            }
            mk_stmatrix2_trans(to + (g - groups<RANK>::FIRST) * 1024, mk_pack2<F16>(v[0], v[1]),
                               mk_pack2<F16>(v[2], v[3]));
        }
    }

    template <int RANK> __device__ __forceinline__ void store(uint32_t thread) const
    {
        constexpr int FIRST = groups<RANK>::FIRST, ITEMS = (groups<RANK>::LAST - FIRST) * 64;
        const uint32_t chunk = thread % 8;
        const int32_t n = n0 + (int32_t)chunk * 8;
#pragma unroll
        for (int i = 0; i < ITEMS; i += 128) {
            const uint32_t row = ((uint32_t)i + thread) / 8;
            const int32_t token = FIRST * 8 + (int32_t)row;
            if ((int32_t)thread >= ITEMS - i || token >= p.m || n >= p.n)
                continue;
            uint32_t v[4];
            mk_smem_load4(v, stages + row * 128 + ((chunk ^ row % 8) << 4));
            uint16_t *c = (uint16_t *)p.c + token * p.ldc + n;
            if (p.wide && n + 7 < p.n) {
                *(uint4 *)c = make_uint4(v[0], v[1], v[2], v[3]);
            } else {
#pragma unroll
                for (int j = 0; j < 8; j++)
                    if (n + j < p.n)
                        c[j] = (uint16_t)(v[j / 2] >> j % 2 * 16);
            }
        }
    }

    template <int RANK, bool F16>
    __device__ __forceinline__ void finish(float (&acc)[NT / 2], uint32_t thread) const
    {
        if (S > 1)
            exchange<RANK>(acc, thread);
        if (groups<RANK>::FIRST >= groups<RANK>::LAST)
            return;
        mk_bar_sync(1, 128); /* all warps are done with the pipeline */
        pack<RANK, F16>(acc, thread);
        mk_bar_sync(1, 128);
        store<RANK>(thread);
    }
};

template <int NT, int S, int TW, bool F16>
static __device__ __forceinline__ void mk_gemm_skinny_run(const mk_gemm_skinny &p)
{
    extern __shared__ uint8_t raw[];
    const mk_skinny_block<NT, S, TW> block(p, (mk_smem(raw) + 1023) & ~1023u);
    const uint32_t thread = threadIdx.x;
    if (thread == 0) {
        block.init();
    } else if (thread == 128) {
        mk_tma_prefetch(&p.w);
        mk_tma_prefetch(&p.x);
        block.ask_ahead();
    }
    __syncthreads();
    if (S > 1)
        mk_cluster_arrive(); /* this block runs, and its barrier for sums is there */
    mk_grid_wait();          /* nothing of global memory was read or written so far */
    if (thread >= 128) {
        if (thread == 128) {
            block.produce();
            mk_grid_launch_next();
        }
        __syncwarp();
        if (S > 1)
            mk_cluster_wait();
    } else {
        float acc[NT / 2];
        block.template consume<F16>(acc, thread);
        if (S > 1)
            mk_cluster_wait();
        if (S == 1 || block.rank == 0)
            block.template finish<0, F16>(acc, thread);
        else
            block.template finish<S - 1, F16>(acc, thread);
    }
}
