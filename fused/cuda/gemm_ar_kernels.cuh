/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Kernels of GEMM+AllReduce for Hopper: gemm_ar_LAYOUT_TYPE_BN, tiles of 128 x BN. MK_TILE_F16 chooses the type of
 * the translation unit. */
#pragma once
#include "cuda/block.h"
#include <cstddef>

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900
#define MK_DEV_LANES 256
#ifndef MK_CONTROL
#define MK_CONTROL 1
#endif
#define MK_LOTS                                                                                              \
    1 /* plain operations are for odd cases here: small code, which the roles share the cache for */
#include "cuda/gemm_ar_block.cuh"

/* Tiles are computed in sessions; the shared text never comes here. */
MK_DEV void mk_tile_gemm(const struct mk_ar *, const struct mk_ar_block *)
{
}

#include "tile/bulk_sm90.cuh"
#include "tile/gemm_ar_sm90.cuh"

/* Shared memory: stages and boxes of the pipeline (or buffers of bulk copies), its barriers, then these words, where
 * everything is at a known address. */
struct mk_ar_shared {
    /* A copy: what comes from it is loaded where it is used, and not kept in registers through a session, which has
     * none left. */
    mk_ar ar;
    mk_block_words words;
    mk_session_words pipe;
    mk_bulk_words bulk;
    uint64_t pos[MK_POS_MAX];
};
constexpr uint32_t MK_AR_WORDS = 4 * 49152 + 32768 + 256;
static_assert(MK_AR_WORDS + sizeof(mk_ar_shared) <= MK_SMEM_MAX, "all that a block can have");
static_assert(MK_BULK_WARPS * MK_BULK_SHARE <= 4 * 49152, "the stages");
MK_DEV mk_ar_shared *mk_shared(void)
{
    return (mk_ar_shared *)(mk_ar_raw + MK_AR_WORDS);
}

MK_DEV void mk_tile_op(const struct mk_ar *ar, const struct mk_ar_block *blk, const struct mk_op *op)
{
    if (!mk_bulk_op(ar, blk, op, &mk_shared()->bulk))
        mk_plain_op(ar, blk, op);
}

struct mk_gemm_ar_hopper {
    mk_gemm_sm90 gemm;
    alignas(128) CUtensorMap chunk; /* C in boxes of box_rows x box_cols */
    int32_t box_rows, box_cols;
    alignas(128) CUtensorMap slot[MK_AR_PLACES]; /* rings that tiles are placed in */
    alignas(128) mk_ar ar; /* tensor maps are aligned to 64 or 128 bytes, by CUDA's version */
};
static_assert(offsetof(mk_gemm_ar_hopper, chunk) == 512 && offsetof(mk_gemm_ar_hopper, slot) == 768 &&
                  offsetof(mk_gemm_ar_hopper, ar) == 1792,
              "as in gemm_ar.c");

template <int BN, int LAYOUT>
static __device__ __forceinline__ void mk_gemm_ar_run(const mk_gemm_ar_hopper &p)
{
    mk_ar_shared *own = mk_shared();
    mk_ar *ar = &own->ar;
    mk_block_words *words = &own->words;
    for (uint32_t i = threadIdx.x; i < sizeof(mk_ar) / 4; i += MK_AR_THREADS)
        ((uint32_t *)ar)[i] = ((const uint32_t *)&p.ar)[i];
    mk_session<BN, LAYOUT, MK_TILE_F16 != 0> session(p.gemm, mk_bulk_base(), ar, &words->blk, &own->pipe,
                                                     p.slot);
    static_assert(mk_gemm_sm90_size<BN>::stages * mk_gemm_sm90_size<BN>::stage + mk_gemm_sm90_size<BN>::out +
                          256 <=
                      MK_AR_WORDS,
                  "the pipeline's share");
    if (threadIdx.x < MK_BULK_WARPS * MK_BULK_DEPTH)
        mk_mbar_init(mk_smem(&own->bulk.bars[0][threadIdx.x]), 1);
    if (threadIdx.x < MK_BULK_WARPS)
        own->bulk.phases[threadIdx.x] = 0;
    if (threadIdx.x == 0) {
        for (uint32_t s = 0; s < session.STAGES; s++) {
            mk_mbar_init(session.full(s), 1);
            mk_mbar_init(session.empty(s), 2);
        }
        mk_tma_prefetch(&p.gemm.a);
        mk_tma_prefetch(&p.gemm.b);
        mk_tma_prefetch(&p.gemm.c);
        mk_mbar_init(mk_smem(&own->pipe.go), 1);
        for (uint32_t i = 0; i < MK_TILES_AHEAD; i++)
            mk_mbar_init(mk_smem(&own->pipe.tile_read[i]), MK_DEV_LANES / 32);
        own->pipe.asked = MK_NOT_ASKED;
        for (uint32_t i = 0; i < MK_TILES_KEPT; i++)
            own->pipe.place[i] = MK_NO_PLACE;
        own->pipe.s = own->pipe.phase = own->pipe.tiles = 0;
        own->bulk.map = &p.chunk;
        own->bulk.box_rows = p.box_rows;
        own->bulk.box_cols = p.box_cols;
        mk_tma_prefetch(&p.chunk);
    }
    mk_mbar_init_fence();
    __syncthreads();
    if (threadIdx.x >= MK_DEV_LANES) {
        mk_regs_down<40>();
        if (threadIdx.x == MK_DEV_LANES)
            session.serve();
        else if (threadIdx.x / 32 == MK_DEV_LANES / 32 + 1 && p.ar.place_rows)
            session.place();
        return;
    }
    mk_regs_up<232>();
    const uint64_t *at = mk_block_positions(ar, own->pos);
    if (threadIdx.x == 0)
        ar->pos = at;
    mk_block_enter(ar, words);
    /* A session of the compute pipeline inside the loop of the roles: for ptxas to keep its sums in registers, no value
     * of either side may look alive from one turn of the loop to the next (see tile/NOTES.md). */
    for (;;) {
        const int next = mk_block_next(ar, words);
        if (next == MK_NEXT_LEAVE)
            break;
        if (next != MK_NEXT_TASK)
            continue;
        if (words->blk.task.kind == MK_AR_TILE) {
            session.start();
            session.run();
#if MK_CONTROL
            if (threadIdx.x == 0 && ar->control)
                mk_ar_account(ar, &words->blk, mk_now_ns());
#endif
        } else {
            mk_ar_do(ar, &words->blk);
        }
    }
    if (threadIdx.x == 0)
        words->blk.task.kind = MK_AR_KINDS; /* there is no session any more */
    session.start();
    mk_block_leave(ar, words);
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
