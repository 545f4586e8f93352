/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Kernels of GEMM+AllReduce for Hopper: gemm_ar_LAYOUT_TYPE_BN, tiles of 128 x BN. MK_TILE_F16 chooses the type of
 * the translation unit. */
#pragma once
#include <cstddef>

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900
#define MK_DEV_LANES 256
#include "cuda/gemm_ar_block.cuh"

/* Tiles are computed in sessions; the shared text never comes here. */
MK_DEV void mk_tile_gemm(const struct mk_ar *, const struct mk_ar_block *)
{
}

#include "tile/bulk_sm90.cuh"
#include "tile/gemm_ar_sm90.cuh"

/* The block's bulk copies: a place that mk_tile_op finds without an argument. */
static __shared__ mk_bulk_words mk_bulk_of_block;

MK_DEV void mk_tile_op(const struct mk_ar *ar, const struct mk_ar_block *blk, const struct mk_op *op)
{
    if (!mk_bulk_op(ar, blk, op, &mk_bulk_of_block))
        mk_plain_op(ar, blk, op);
}

struct mk_gemm_ar_hopper {
    mk_gemm_sm90 gemm;
    alignas(128) CUtensorMap chunk; /* C in boxes of box_rows x box_cols */
    int32_t box_rows, box_cols;
    alignas(128) mk_ar ar; /* tensor maps are aligned to 64 or 128 bytes, by CUDA's version */
};
static_assert(offsetof(mk_gemm_ar_hopper, chunk) == 512 && offsetof(mk_gemm_ar_hopper, ar) == 768,
              "as in gemm_ar.c");

template <int BN, int LAYOUT>
static __device__ __forceinline__ void mk_gemm_ar_run(const mk_gemm_ar_hopper &p)
{
    __shared__ mk_block_words words;
    __shared__ mk_session_words pipe;
    /* A copy in shared memory: what comes from it is loaded where it is used, and not kept in registers through a
     * session, which has none left. */
    __shared__ mk_ar copy;
    const mk_ar *ar = &copy;
    for (uint32_t i = threadIdx.x; i < sizeof(mk_ar) / 4; i += MK_AR_THREADS)
        ((uint32_t *)&copy)[i] = ((const uint32_t *)&p.ar)[i];
    const uint32_t smem = mk_bulk_base();
    mk_session<BN, LAYOUT, MK_TILE_F16 != 0> session(p.gemm, smem, ar, &words.blk, &pipe);
    if (threadIdx.x == 0) {
        for (uint32_t s = 0; s < session.STAGES; s++) {
            mk_mbar_init(session.full(s), 1);
            mk_mbar_init(session.empty(s), 2);
        }
        mk_tma_prefetch(&p.gemm.a);
        mk_tma_prefetch(&p.gemm.b);
        mk_tma_prefetch(&p.gemm.c);
        mk_mbar_init(mk_smem(&pipe.go), 1);
        for (uint32_t i = 0; i < MK_BULK_BUFFERS; i++)
            mk_mbar_init(mk_bulk_base() + MK_BULK_BARS + 8 * i, 1);
        mk_bulk_of_block.loads = 0;
        mk_bulk_of_block.map = &p.chunk;
        mk_bulk_of_block.box_rows = p.box_rows;
        mk_bulk_of_block.box_cols = p.box_cols;
        mk_tma_prefetch(&p.chunk);
        mk_mbar_init_fence();
    }
    __syncthreads();
    if (threadIdx.x >= MK_DEV_LANES) {
        mk_regs_down<40>();
        if (threadIdx.x == MK_DEV_LANES)
            session.serve();
        return;
    }
    mk_regs_up<232>();
    mk_block_enter(ar, &words);
    /* The one session of the block: to the end of the tiles, or, for a block that prefers communication, one tile.
     * It stands outside of the loop of the roles: inside, ptxas 13.0 spills the sums (see tile/NOTES.md). So a block
     * does not come back to COMPUTE; budgets leave at least one block that never leaves it. */
    const bool computes = mk_block_first(ar, &words);
    session.start();
    if (computes)
        session.run();
    for (;;) {
        const int next = mk_block_next(ar, &words);
        if (next == MK_NEXT_LEAVE)
            break;
        if (next == MK_NEXT_TASK)
            mk_ar_do(ar, &words.blk);
    }
    mk_block_leave(ar, &words);
}

#define MK_AR(layout, L, type, BN)                                                                           \
    extern "C" __global__ void __launch_bounds__(MK_AR_THREADS, 1)                                           \
        gemm_ar_##layout##_##type##_##BN(const __grid_constant__ mk_gemm_ar_hopper p)                        \
    {                                                                                                        \
        mk_gemm_ar_run<BN, L>(p);                                                                            \
    }
#define MK_AR_KERNELS(type)                                                                                  \
    MK_AR(tn, 0, type, 256)                                                                                  \
    MK_AR(nn, 1, type, 256)                                                                                  \
    MK_AR(nt, 2, type, 256)                                                                                  \
    MK_AR(tn, 0, type, 128)                                                                                  \
    MK_AR(nn, 1, type, 128)                                                                                  \
    MK_AR(nt, 2, type, 128)
#else
#define MK_AR_KERNELS(type)
#endif
