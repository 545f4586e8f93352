/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* G and K on the GPU: choice of kernel, launch. Kernels: pair_kernels.cuh. */
#include "pair_run.h"
#include "cuda/block.h"
#include "cuda/gemm.h"
#include "cuda/gpu.h"
#include "ops/gemm_ar_run.h"
#include "mk/err.h"
#include "mk/log.h"
#include "mk/param.h"
#include <pthread.h>
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

#define BAND 128 /* rows of a tile: those of a band */

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

/* Blocks of K wait for other ranks, so they must not fill a GPU: the K of another communicator, or a kernel of NCCL's, that the
 * peers have started first would never come. All of them of a process share three quarters of each GPU; what one has it keeps, since
 * graphs do. The first gets what it wants, later ones at most half of what is left. */
#define DEVICES 64
#define FEWEST 4
#define ROOM                                                                                                 \
    8 /* that G spares: it loses with each of them, and K needs few while chunks come at the pace of G */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int taken[DEVICES];
static bool full[DEVICES]; /* the last one that asked got none, and none was given back since */

/* Within a node a block moves so much, and there is a use for more of them; towards other nodes more do not make it faster, and
 * look more often at what the network writes. */
static int wanted(const struct mk_comm *comm)
{
    const int all = mk_gpu_blocks(comm), r = (int)comm->settings.r;
    const int want = min_int(comm->topo.nnodes == 1 && !mk_env("MK_R") ? 2 * r : r, all / 2);
    return want > 1 ? want : 1;
}

static int grant(struct mk_comm *comm)
{
    struct mk_gpu *g = comm->gpu;
    const int all = mk_gpu_blocks(comm), want = wanted(comm), device = g->device;
    if (g->pair_blocks || device < 0 || device >= DEVICES)
        return 0;
    pthread_mutex_lock(&lock);
    const int left = all - all / 4 - taken[device];
    const int most = taken[device] ? left / 2 : left, got = min_int(want, most);
    const bool enough = got >= min_int(want, FEWEST) && got > 0;
    if (enough)
        taken[device] += g->pair_blocks = got;
    full[device] = !enough;
    pthread_mutex_unlock(&lock);
    if (enough)
        return 0;
    MK_INFO("HOOK", "a communicator too many: the fused ones of this process already have %d of %d blocks",
            all - all / 4 - left, all);
    return mk_fail_quiet(MK_ERR_UNSUPPORTED, "no blocks are left for another communicator");
}

void mk_pair_give(struct mk_gpu *g)
{
    pthread_mutex_lock(&lock);
    if (g->pair_blocks) {
        taken[g->device] -= g->pair_blocks;
        full[g->device] = false;
    }
    g->pair_blocks = 0;
    pthread_mutex_unlock(&lock);
}

bool mk_pair_full(int device)
{
    pthread_mutex_lock(&lock);
    const bool is = device >= 0 && device < DEVICES && full[device];
    pthread_mutex_unlock(&lock);
    return is;
}

/* Those for which G has left no room wait for its end, and take part in the rest. */
static int budget(const struct mk_comm *comm)
{
    return comm->gpu->pair_blocks ? comm->gpu->pair_blocks : wanted(comm);
}

int mk_pair_blocks(mk_comm_t comm)
{
    if (mk_comm_mine(comm) || !comm->gpu)
        return 0;
    const int half = min_int(budget(comm) / 2, ROOM);
    return half > 1 ? half : 1;
}

int mk_pair_load(mk_comm_t comm)
{
    const int ret = mk_comm_mine(comm);
    if (ret || !comm->gpu)
        return ret;
    int err = grant(comm);
    if (!err)
        err = mk_cuda_load(comm->gpu->cu, MK_IMAGE_PAIR_BF16, "pair_allreduce_bf16", MK_PAIR_SMEM);
    if (!err)
        err = mk_cuda_load(comm->gpu->cu, MK_IMAGE_PAIR_FP16, "pair_allreduce_fp16", MK_PAIR_SMEM);
    return err || !comm->settings.verify ? err : mk_pair_check_load();
}

/* Every block gets two pieces, if these are worth a task. */
static int64_t piece_bytes(const struct mk_ar *ar)
{
    const int64_t part = ar->grid.m * ar->grid.n * 2 / (2 * (int64_t)ar->blocks);
    return part < 131072 ? 131072 : part > 1048576 ? 1048576 : part;
}

/* early: K may start while G runs. */
static int launch(struct mk_comm *comm, const struct mk_gemm_problem *p, struct mk_ar *ar, bool early,
                  void *stream)
{
    const bool f16 = p->dtype == MK_FLOAT16;
    struct allreduce_params q;
    memset(&q, 0, sizeof(q)); /* padding too */
    const int cols = mk_panel_cols(&ar->grid);
    q.box_cols = mk_gemm_cuda_chunk_boxes(cols, &q.box_rows) ? cols : 0;
    const int ret = mk_gemm_cuda_boxes(comm->gpu->cu, p, q.box_rows, cols, &q.chunk);
    if (ret)
        return ret;
    ar->blocks = ar->budget = budget(comm);
    ar->max_helpers = 0;
    mk_plan_pieces(ar, piece_bytes(ar));
    mk_ar_list_queues(ar);
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
