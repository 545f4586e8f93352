/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Kernels of the latency path of GEMM+AllReduce for Hopper: gemm_ar_ll_LAYOUT_TYPE_NTxS, the skinny kernels of mk_gemm with
 * another end: a finished tile goes out as LL words. The next kernel in the stream may start early, but only once no block
 * of ours waits for other ranks: its blocks would hold multiprocessors all that time. */
#pragma once
#include <cstddef>

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900
#define MK_DEV_LANES 128
#define MK_LL_WATCHER 160
#define MK_LL_AT_ONCE 16
#define MK_LOTS 1
#include "tile/ptx_sm90.cuh"
#include "tile/ll.cuh"
#include "tile/gemm_skinny_sm90.cuh"

MK_DEV void mk_tile_gemm(const struct mk_ar *, const struct mk_ar_block *)
{
}
MK_DEV void mk_tile_op(const struct mk_ar *, const struct mk_ar_block *, const struct mk_op *)
{
}

struct mk_gemm_ar_ll {
    mk_gemm_skinny gemm;
    alignas(128) mk_ar ar;
};

static_assert(offsetof(mk_gemm_ar_ll, ar) == 384, "as in gemm_ar.c");

/* This block's groups of a tile, which stand in shared memory row by row (mk_skinny_block::store reads the same). */
template <int NT, int S, int TW, int RANK>
MK_DEV void mk_ll_send_tile(const mk_skinny_block<NT, S, TW> &b, const struct mk_ar *ar, uint64_t position,
                            uint32_t thread)
{
    typedef typename mk_skinny_block<NT, S, TW>::template groups<RANK> mine;
    const uint32_t half = thread % 16, row_groups = mk_ll_row_groups(ar->grid.n);
    const int32_t n = b.n0 + (int32_t)half * 4;
#pragma unroll
    for (int i = 0; i < (mine::LAST - mine::FIRST) * 8; i += 8) {
        const uint32_t row = (uint32_t)i + thread / 16;
        const int32_t token = mine::FIRST * 8 + (int32_t)row;
        if (token >= b.p.m || n >= b.p.n)
            continue;
        uint32_t v[2];
        mk_smem_load2(v, b.stages + row * 128 + ((half / 2 ^ row % 8) << 4) + half % 2 * 8);
        mk_ll_send(ar, position, (uint32_t)token * row_groups + (uint32_t)n / 4, v[0], v[1]);
    }
}

template <int NT, int S, int TW, int RANK, bool F16>
MK_DEV void mk_ll_finish(const mk_skinny_block<NT, S, TW> &b, const struct mk_ar *ar, uint64_t position,
                         uint32_t thread, float (&acc)[NT / 2])
{
    typedef typename mk_skinny_block<NT, S, TW>::template groups<RANK> mine;
    if (S > 1)
        b.template exchange<RANK>(acc, thread);
    if (mine::FIRST >= mine::LAST)
        return;
    mk_block_sync(); /* all warps are done with the pipeline */
    b.template pack<RANK, F16>(acc, thread);
    mk_block_sync();
    mk_ll_send_tile<NT, S, TW, RANK>(b, ar, position, thread);
}

template <int NT, int S, int TW, bool F16>
static __device__ __forceinline__ void mk_gemm_ar_ll_run(const mk_gemm_ar_ll &p)
{
    extern __shared__ uint8_t raw[];
    __shared__ mk_ll_words words;
    const struct mk_ar *ar = &p.ar;
    const mk_skinny_block<NT, S, TW> block(p.gemm, (mk_smem(raw) + 1023) & ~1023u);
    const uint32_t thread = threadIdx.x;
    if (thread == 0) {
        block.init();
    } else if (thread == 128) {
        mk_tma_prefetch(&p.gemm.w);
        mk_tma_prefetch(&p.gemm.x);
        block.ask_ahead();
    }
    __syncthreads();
    if (S > 1)
        mk_cluster_arrive();
    mk_grid_wait();
    if (thread >= MK_LL_WATCHER) { /* a warp of its own: what it does would hold up the multiplication */
        if (thread == MK_LL_WATCHER)
            mk_ll_enter(ar, &words);
        __syncwarp();
        asm volatile("bar.arrive 2, %0;" ::"n"(MK_DEV_LANES + 32) : "memory");
        if (thread == MK_LL_WATCHER)
            while (!*(volatile int *)&words.over || words.headers != mk_ll_every_header(ar)) {
                if (!mk_ll_stays(ar, words.block.blk.ticket) && words.headers == mk_ll_every_header(ar))
                    break;
                if (mk_ll_watch(ar, &words)) {
                    *(volatile int *)&words.stop = 1;
                    break;
                }
            }
        __syncwarp();
        asm volatile("bar.sync 3, %0;" ::"n"(MK_DEV_LANES + 32) : "memory");
        if (S > 1)
            mk_cluster_wait();
        return;
    }
    if (thread >= 128) {
        if (thread == 128)
            block.produce();
        __syncwarp();
        if (S > 1)
            mk_cluster_wait();
        return;
    }
    float acc[NT / 2];
    block.template consume<F16>(acc, thread);
    asm volatile("bar.sync 2, %0;" ::"n"(MK_DEV_LANES + 32) : "memory"); /* words */
    mk_ll_clear(ar, words.position);
    if (S > 1)
        mk_cluster_wait();
    if (S == 1 || block.rank == 0)
        mk_ll_finish<NT, S, TW, 0, F16>(block, ar, words.position, thread, acc);
    else
        mk_ll_finish<NT, S, TW, S - 1, F16>(block, ar, words.position, thread, acc);
    mk_ll_end<F16>(ar, &words);
}

#define MK_AR_LL(layout, TW, type, NT, S)                                                                    \
    extern "C" __global__ void __launch_bounds__(192, 1)                                                     \
        gemm_ar_ll_##layout##_##type##_##NT##x##S(const __grid_constant__ mk_gemm_ar_ll p)                   \
    {                                                                                                        \
        mk_gemm_ar_ll_run<NT, S, TW, MK_TILE_F16 != 0>(p);                                                   \
    }
#define MK_AR_LL_SHAPES(layout, TW, type)                                                                    \
    MK_AR_LL(layout, TW, type, 8, 1)                                                                         \
    MK_AR_LL(layout, TW, type, 16, 1)                                                                        \
    MK_AR_LL(layout, TW, type, 32, 1)                                                                        \
    MK_AR_LL(layout, TW, type, 64, 1)                                                                        \
    MK_AR_LL(layout, TW, type, 8, 2)                                                                         \
    MK_AR_LL(layout, TW, type, 16, 2)                                                                        \
    MK_AR_LL(layout, TW, type, 32, 2)                                                                        \
    MK_AR_LL(layout, TW, type, 64, 2)
#define MK_AR_LL_KERNELS(type)                                                                               \
    MK_AR_LL_SHAPES(tn, 0, type)                                                                             \
    MK_AR_LL_SHAPES(nn, 1, type)
#else
#define MK_AR_LL_KERNELS(type)
#endif
