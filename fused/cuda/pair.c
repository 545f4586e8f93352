/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* G and K on the GPU: choice of kernel, launch. Kernels: pair_kernels.cuh. */
#include "pair_run.h"
#include "cuda/block.h"
#include "cuda/gemm.h"
#include "cuda/gpu.h"
#include "mk/err.h"
#include <stdio.h>
#include <string.h>

/* Kernel parameters: the same words as in pair_kernels.cuh. */
struct gemm_params {
    struct mk_big_params gemm;
    _Alignas(128) uint64_t *words;
};
_Static_assert(offsetof(struct gemm_params, words) == 512, "as in pair_kernels.cuh");
struct allreduce_params {
    _Alignas(128) struct mk_cu_map chunk;
    int32_t box_rows, box_cols;
    _Alignas(128) struct mk_ar ar;
};
_Static_assert(offsetof(struct allreduce_params, ar) == 256, "as in pair_kernels.cuh");

#define BAND 128       /* rows of a tile: those of a band */
#define BOX_BYTES 2048 /* tile/bulk_sm90.cuh */

static int min_int(int a, int b)
{
    return a < b ? a : b;
}

size_t mk_pair_words_bytes(int64_t m)
{
    return (MK_PAIR_HEAD + (size_t)(m > 0 ? (m + BAND - 1) / BAND : 0)) * sizeof(uint64_t);
}

/* ---- G ---- */

static bool fits(const struct mk_gemm_problem *p)
{
    if (p->dtype != MK_BFLOAT16 && p->dtype != MK_FLOAT16)
        return false;
    if (p->layout != MK_TN && p->layout != MK_NN && p->layout != MK_NT)
        return false;
    return p->m <= INT32_MAX && p->n <= INT32_MAX && p->k <= INT32_MAX && p->ldc == p->n &&
           mk_gemm_cuda_bulk(p);
}

bool mk_pair_gemm_can(const struct mk_gemm_problem *p)
{
    int blocks;
    bool hopper;
    return fits(p) && mk_gemm_cuda_place(p, NULL, &blocks, &hopper) == 1 && hopper;
}

/* Bands that are open at a time: as few as give every block a tile, since K can send a band only when it is whole; but not so
 * few that the blocks which run together share no operands. */
static int open_bands(const struct mk_gemm_problem *p, int blocks)
{
    const int64_t columns = (p->n + 255) / 256, fill = (blocks + columns - 1) / columns;
    return fill < 4 ? 4 : (int)fill;
}

int mk_pair_gemm(const struct mk_gemm_problem *p, int spare, uint64_t *words, void *stream,
                 struct mk_pair_tiles *out)
{
    static const char *const layouts[] = {"tn", "nn", "nt"};
    const struct mk_cuda *cu = mk_cuda_open(NULL);
    const bool f16 = p->dtype == MK_FLOAT16;
    struct mk_gemm_choice c;
    struct gemm_params q;
    char name[48];
    int blocks;
    bool hopper;
    const int place = cu && fits(p) ? mk_gemm_cuda_place(p, stream, &blocks, &hopper) : 0;
    if (place <= 0 || !hopper)
        return place < 0 ? place : mk_fail_quiet(MK_ERR_UNSUPPORTED, "G cannot compute this product");
    blocks = blocks - spare > 1 ? blocks - spare : 1;
    const int bands = open_bands(p, blocks);
    mk_gemm_choose(p, true, blocks, bands, &c);
    c.bn = c.bn > 128 ? 256 : 128; /* the shapes that there are */
    c.cm = c.bn == 256 && blocks > 1 ? c.cm : 1;
    memset(&q, 0, sizeof(q)); /* padding too: the driver copies it */
    const int err = mk_gemm_cuda_maps(cu, p, c.bn, c.cm, &q.gemm);
    if (err)
        return err;
    q.gemm.group = bands / c.cm;
    q.gemm.bias = p->bias;
    q.gemm.act = p->act;
    q.words = words;
    const int64_t columns = (p->n + c.bn - 1) / c.bn, high = BAND * c.cm;
    const int64_t tiles = (p->m + high - 1) / high * columns * c.cm, most = blocks / c.cm * c.cm;
    snprintf(name, sizeof(name), "pair_gemm_%s_%s_%dx%d", layouts[p->layout], f16 ? "fp16" : "bf16", c.bn,
             c.cm);
    out->words = words;
    out->m = p->m;
    out->n = p->n;
    out->band_rows = BAND;
    out->parts = 2 * (uint32_t)columns; /* two consumer warpgroups */
    return mk_cuda_start(cu, f16 ? MK_IMAGE_PAIR_FP16 : MK_IMAGE_PAIR_BF16, name, mk_gemm_cuda_smem(c.bn),
                         (int)(tiles < most ? tiles : most), MK_BIG_THREADS, c.cm, false, &q, stream);
}

/* ---- K ---- */

/* Those for which G has left no room wait for its end, and take part in the rest. Towards other nodes more than R do not make
 * it faster, and look more often at what the network writes. */
static int budget(const struct mk_comm *comm)
{
    const int all = mk_gpu_blocks(comm), r = min_int((int)comm->settings.r, all / 2);
    return comm->topo.nnodes == 1 ? all : r > 1 ? r : 1;
}

/* Half of R: G loses with each of them, and K needs few while chunks come at the pace of G. */
int mk_pair_blocks(mk_comm_t comm)
{
    if (mk_comm_mine(comm) || !comm->gpu)
        return 0;
    const int half = min_int((int)comm->settings.r, mk_gpu_blocks(comm) / 2) / 2;
    return half > 1 ? half : 1;
}

int mk_pair_load(mk_comm_t comm)
{
    const int ret = mk_comm_mine(comm);
    if (ret || !comm->gpu)
        return ret;
    const int err = mk_cuda_load(comm->gpu->cu, MK_IMAGE_PAIR_BF16, "pair_allreduce_bf16", MK_PAIR_SMEM);
    return err ? err : mk_cuda_load(comm->gpu->cu, MK_IMAGE_PAIR_FP16, "pair_allreduce_fp16", MK_PAIR_SMEM);
}

/* early: K may start while G runs. */
static int launch(struct mk_comm *comm, const struct mk_gemm_problem *p, struct mk_ar *ar, bool early,
                  void *stream)
{
    const bool f16 = p->dtype == MK_FLOAT16;
    struct allreduce_params q;
    memset(&q, 0, sizeof(q)); /* padding too */
    q.box_cols = ar->grid.chunk_n;
    q.box_rows = min_int(BOX_BYTES / 2 / ar->grid.chunk_n, 256);
    const int ret = mk_gemm_cuda_boxes(comm->gpu->cu, p, q.box_rows, q.box_cols, &q.chunk);
    if (ret)
        return ret;
    ar->blocks = ar->budget = budget(comm);
    ar->max_helpers = 0;
    q.ar = *ar;
    return mk_cuda_start(comm->gpu->cu, f16 ? MK_IMAGE_PAIR_FP16 : MK_IMAGE_PAIR_BF16,
                         f16 ? "pair_allreduce_fp16" : "pair_allreduce_bf16", MK_PAIR_SMEM, ar->blocks,
                         MK_PAIR_THREADS, 1, early, &q, stream);
}

int mk_exec_gpu_pair(struct mk_comm *comm, const struct mk_gemm_call *call, struct mk_ar *ar,
                     const struct mk_pair_tiles *tiles, void *stream, bool *overlapped)
{
    const struct mk_gemm_problem p = {call->layout, call->dtype, call->m, call->n,   0,    NULL, NULL,
                                      call->c,      0,           0,       call->ldc, NULL, 0};
    bool captured, moved;
    *overlapped = false;
    if (ar->latency || (uintptr_t)call->c % 16 || call->n % 8 || !mk_gpu_hopper(comm))
        return mk_exec_gpu(comm, call, ar, stream);
    mk_gpu_bind(comm, ar);
    ar->comm_id = comm->proxy_id;
    int ret = mk_gpu_order_before(comm->gpu, stream, &captured, &moved);
    if (!ret) {
        /* an edge from another stream lies between G and K then, and G does not count as what is before K */
        *overlapped = !moved && mk_pair_bind(tiles, ar);
        ret = launch(comm, &p, ar, *overlapped, stream);
    }
    return mk_gpu_launched(comm, ret, stream, captured);
}
