/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The inside of a tile on the CPU: one thread is one block. Declares what the shared text calls (ops/gemm_ar_do.h);
 * the bodies are in tile_cpu.c (sums and copies) and gemm_cpu.c (multiply). */
#pragma once
#include "mk/shm.h"
#include "ops/gemm_ar.h"
#include <sched.h>

/* Machine side of a launch on the CPU (mk_ar.host). */
struct mk_cpu_host {
    struct mk_bell *bell;             /* own: rung by own blocks, local peers, the proxy */
    struct mk_bell *const *peer_bell; /* of the local ranks */
    float **scratch;                  /* [ticket], MK_GEMM_SCRATCH floats each */
    void (*wake_proxy)(void *ctx);    /* after a command was published */
    void (*mismatch)(void *ctx, int node_level, int peer);
    void *ctx;
};

/* C tile of the CPU: part of the numerics key, never a function of chunk, budget or path. */
#define MK_CPU_TILE_M 256
#define MK_CPU_TILE_N 512
#define MK_CPU_K_BLOCK 512
/* The widest C tile of the GPU's kernels; chunks are made of it. */
#define MK_GPU_TILE_M 128
#define MK_GPU_TILE_N 256
#define MK_GEMM_SCRATCH                                                                                      \
    ((size_t)MK_CPU_TILE_M * MK_CPU_K_BLOCK + (size_t)MK_CPU_TILE_N * MK_CPU_K_BLOCK +                       \
     2 * (size_t)MK_CPU_TILE_M * MK_CPU_TILE_N)

/* One C tile: c[rows, cols] = op(a) * op(b), a and b being the first elements of the tile's operand panels (see
 * mk_layout_t), rounded to dtype. Deterministic: a function of its inputs and of the multiply in use. */
void mk_gemm_cpu_tile(int layout, int dtype, int rows, int cols, int64_t k, const void *a, int64_t lda,
                      const void *b, int64_t ldb, void *c, int64_t ldc, float *scratch);
/* Chooses the multiply of this process: 1: OpenBLAS if it can be opened. First call decides; thread safe. */
void mk_gemm_cpu_open(int use_blas);
const char *mk_gemm_cpu_name(void);

void mk_tile_gemm(const struct mk_ar *ar, const struct mk_ar_block *blk);
void mk_tile_op(const struct mk_ar *ar, const struct mk_ar_block *blk, const struct mk_op *op);
bool mk_tile_place(const struct mk_ar *ar, uint32_t tile);

static inline void mk_wake_proxy(const struct mk_ar *ar)
{
    const struct mk_cpu_host *h = (const struct mk_cpu_host *)ar->host;
    h->wake_proxy(h->ctx);
}
static inline void mk_wake_self(const struct mk_ar *ar)
{
    if (ar->blocks > 1)
        mk_bell_ring(((const struct mk_cpu_host *)ar->host)->bell);
}
static inline void mk_wake_local(const struct mk_ar *ar, int32_t peer)
{
    mk_bell_ring(((const struct mk_cpu_host *)ar->host)->peer_bell[peer]);
}
static inline void mk_pause(const struct mk_ar *ar)
{
    (void)ar;
    sched_yield();
}
static inline void mk_raise_mismatch(const struct mk_ar *ar, int node_level, int32_t peer)
{
    const struct mk_cpu_host *h = (const struct mk_cpu_host *)ar->host;
    h->mismatch(h->ctx, node_level, peer);
}
