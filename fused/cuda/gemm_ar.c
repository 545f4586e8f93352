/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* GEMM+AllReduce on the GPU: choice of kernel and budget, launch. Kernels: gemm_ar_kernels.cuh. */
#include "comm.h"
#include "cuda/block.h"
#include "cuda/gemm.h"
#include "cuda/gpu.h"
#include "ops/gemm_ar_run.h"
#include "mk/err.h"
#include <stdio.h>
#include <string.h>

/* Kernel parameters: the same words as in gemm_ar_kernels.cuh and gemm_ar_portable.cuh. */
struct hopper_params {
    struct mk_big_params gemm;
    _Alignas(128) struct mk_cu_map chunk;
    int32_t box_rows, box_cols;
    _Alignas(128) struct mk_cu_map slot[MK_AR_PLACES];
    _Alignas(128) struct mk_ar ar;
};
_Static_assert(offsetof(struct hopper_params, chunk) == 512 && offsetof(struct hopper_params, slot) == 768 &&
                   offsetof(struct hopper_params, ar) == 1792,
               "as in gemm_ar_kernels.cuh");

struct latency_params {
    struct mk_skinny_params gemm;
    _Alignas(128) struct mk_ar ar;
};
_Static_assert(offsetof(struct latency_params, ar) == 384, "as in gemm_ar_ll_kernels.cuh");

static const char *const layouts[] = {"tn", "nn", "nt"};

#define PATIENCE_NS 20000 /* about half of a tile of 128 x 256 x 4096 */

static int min_int(int a, int b)
{
    return a < b ? a : b;
}

/* Blocks that prefer communication: the caller's wish, or a quarter, at most R; one block at least computes to the
 * end. Two nodes of one rank each have the least to do (an addition by the memory a chunk, and a copy where tiles are not
 * placed in their slots): an eighth, or a tenth. Within a node a sixth (tile/NOTES.md). */
static void choose_budget(const struct mk_comm *comm, struct mk_ar *ar)
{
    const struct mk_settings *s = &comm->settings;
    const struct mk_topo *t = &ar->rings.topo;
    const int r = min_int((int)s->r, ar->blocks / 2);
    const int share = t->nnodes == 1 ? 6 : t->nnodes > 2 || t->nlocal > 1 ? 4 : ar->place_rows ? 10 : 8;
    int budget = s->comm_blocks > 0 ? (int)s->comm_blocks : min_int((ar->blocks + share / 2) / share, r);
    budget = min_int(budget, ar->blocks - 1);
    if (ar->skip_comm || mk_ar_alone(ar))
        budget = 0;
    ar->budget = budget;
    ar->max_helpers = r > budget ? r - budget : budget ? 0 : 1;
}

static bool is_hopper(const struct mk_gpu *g)
{
    int major = 0, minor = 0;
    g->cu->device_attribute(&major, MK_CU_ATTR_MAJOR, g->device);
    g->cu->device_attribute(&minor, MK_CU_ATTR_MINOR, g->device);
    return major == 9 && minor == 0;
}

bool mk_gpu_hopper(const struct mk_comm *comm)
{
    return is_hopper(comm->gpu) && strcmp(comm->settings.gemm, "portable");
}

/* Narrower tiles where they need less time: rounds of the blocks, a narrow one feeding the matrix unit less well
 * (tile/NOTES.md). */
static int tile_columns(const struct mk_ar *ar)
{
    struct mk_grid g = ar->grid;
    uint32_t rounds[2];
    for (int i = 0; i < 2; i++) {
        g.tile_n = i ? 128 : 256;
        mk_grid_count(&g);
        rounds[i] = (mk_tiles(&g) + (uint32_t)ar->blocks - 1) / (uint32_t)ar->blocks;
    }
    return 0.88 * 2 * rounds[0] <= rounds[1] ? 256 : 128;
}

/* Blocks, tiles and budget. large: the Hopper kernels with large tiles run it. */
static void plan(const struct mk_comm *comm, struct mk_ar *ar, bool large)
{
    ar->blocks = mk_gpu_blocks(comm);
    ar->grid.tile_n = large ? tile_columns(ar) : 128;
    mk_grid_count(&ar->grid);
    ar->place_rows =
        large && (ar->rings.topo.nlocal > 1 || comm->gpu->net_reaches) ? mk_ar_place_rows(ar) : 0;
    choose_budget(comm, ar);
}

void mk_gpu_plan(const struct mk_comm *comm, struct mk_ar *ar)
{
    plan(comm, ar, !ar->latency && mk_gpu_hopper(comm));
}

/* Rings that tiles may be placed in as they leave: the own ones where the NIC takes them from the GPU, or those of the local
 * peers. The maps are the same in all launches with panels as wide. */
static int place_maps(struct mk_comm *comm, const struct mk_gemm_problem *p, const struct mk_ar *ar,
                      struct mk_cu_map *out)
{
    struct mk_gpu *g = comm->gpu;
    const struct mk_topo *t = &ar->rings.topo;
    const bool local = t->nlocal > 1;
    const int cols = mk_panel_cols(&ar->grid),
              rings = min_int((local ? t->nlocal : t->nnodes) - 1, MK_AR_PLACES);
    if (!ar->place_rows)
        return 0;
    const int64_t rows = (int64_t)ar->rings.slots[local ? MK_CLASS_PARTIAL : MK_CLASS_SUM] * ar->place_rows;
    if (g->place_cols != cols || g->place_dtype != (int)p->dtype) {
        g->place_cols = 0;
        for (int i = 0; i < rings; i++) {
            const mk_cu_ptr memory = local ? g->peer[mk_peer_of_index(t->local, i)] : g->memory;
            const int ret =
                mk_gemm_cuda_ring(g->cu, p, memory + comm->rings.fixed_bytes + mk_ar_place_base(ar, i), rows,
                                  cols, &g->place[i]);
            if (ret)
                return ret;
        }
        g->place_cols = cols;
        g->place_dtype = (int)p->dtype;
    }
    memcpy(out, g->place, (size_t)rings * sizeof(*out));
    return 0;
}

static int launch(struct mk_comm *comm, const struct mk_gemm_problem *p, struct mk_ar *ar, bool large,
                  void *stream)
{
    const struct mk_gpu *g = comm->gpu;
    const char *type = p->dtype == MK_FLOAT16 ? "fp16" : "bf16";
    const enum mk_image image = p->dtype == MK_FLOAT16 ? MK_IMAGE_AR_FP16 : MK_IMAGE_AR_BF16;
    const enum mk_image plain =
        p->dtype == MK_FLOAT16 ? MK_IMAGE_AR_PORTABLE_FP16 : MK_IMAGE_AR_PORTABLE_BF16;
    char name[48];
    if (large) {
        struct hopper_params q;
        memset(&q, 0, sizeof(q)); /* padding too: the driver copies it */
        const int bn = ar->grid.tile_n, cols = mk_panel_cols(&ar->grid);
        q.box_cols = mk_gemm_cuda_chunk_boxes(cols, &q.box_rows) ? cols : 0;
        int ret = mk_gemm_cuda_maps(g->cu, p, bn, 1, &q.gemm);
        if (!ret)
            ret = mk_gemm_cuda_boxes(g->cu, p, q.box_rows, cols, &q.chunk);
        if (ret)
            return ret;
        if (place_maps(comm, p, ar, q.slot))
            ar->place_rows = 0; /* it goes without */
        ar->tile_parts = 2;
        ar->patience_ns = PATIENCE_NS;
        mk_ar_list_queues(ar);
        q.ar = *ar;
        snprintf(name, sizeof(name), "gemm_ar_%s_%s_%d", layouts[p->layout], type, bn);
        return mk_cuda_start(g->cu, image, name, MK_SMEM_MAX, ar->blocks, MK_BIG_THREADS, 1, false, &q,
                             stream);
    }
    ar->tile_parts = 1;
    ar->patience_ns = PATIENCE_NS;
    mk_ar_list_queues(ar);
    snprintf(name, sizeof(name), "gemm_ar_portable_%s", type);
    return mk_cuda_start(g->cu, plain, name, 0, ar->blocks, MK_PORTABLE_THREADS, 1, false, ar, stream);
}

/* Latency path. Its partials are mk_gemm's of the same kernel, without epilogue, bit by bit. */
static int launch_latency(struct mk_comm *comm, const struct mk_gemm_problem *p, struct mk_ar *ar,
                          void *stream)
{
    const struct mk_gpu *g = comm->gpu;
    const bool f16 = p->dtype == MK_FLOAT16;
    struct mk_gemm_choice choice;
    char name[48];
    mk_gemm_choose(p, mk_gpu_hopper(comm), ar->blocks, 0, &choice);
    if (choice.kind != MK_GEMM_SKINNY)
        choice.kind = MK_GEMM_PORTABLE;
    if (ar->skip_comm)
        return mk_gemm_cuda_launch(p, &choice, stream);
    ar->max_helpers = min_int((int)comm->settings.r, ar->blocks / 2 > 0 ? ar->blocks / 2 : 1);
    if (choice.kind == MK_GEMM_SKINNY && !ar->skip_compute) {
        struct latency_params q;
        int smem;
        memset(&q, 0, sizeof(q));
        const int ret = mk_gemm_cuda_skinny(g->cu, p, &choice, &q.gemm, &smem);
        if (ret)
            return ret;
        const int grid = mk_gemm_cuda_skinny_grid(p, &choice);
        ar->blocks = grid / choice.splits; /* clusters: ops/gemm_ar_ll_do.h */
        ar->max_helpers =
            ar->max_helpers / choice.splits; /* one must stay: at MK_R=1 that is both of its blocks */
        if (!ar->max_helpers)
            ar->max_helpers = 1;
        q.ar = *ar;
        snprintf(name, sizeof(name), "gemm_ar_ll_%s_%s_%dx%d", layouts[p->layout], f16 ? "fp16" : "bf16",
                 choice.bn, choice.splits);
        return mk_cuda_start(g->cu, f16 ? MK_IMAGE_AR_LL_FP16 : MK_IMAGE_AR_LL_BF16, name, smem, grid,
                             MK_LL_THREADS(choice.bn), choice.splits, true, &q, stream);
    }
    ar->grid.tile_n = 128;
    mk_grid_count(&ar->grid);
    ar->blocks = min_int(ar->blocks, (int)mk_tiles(&ar->grid));
    snprintf(name, sizeof(name), "gemm_ar_ll_portable_%s", f16 ? "fp16" : "bf16");
    return mk_cuda_start(g->cu, f16 ? MK_IMAGE_AR_PORTABLE_FP16 : MK_IMAGE_AR_PORTABLE_BF16, name, 0,
                         ar->blocks, MK_PORTABLE_THREADS, 1, false, ar, stream);
}

/* Launches of a communicator run one after the other, whatever their streams. Within a capture the graph's edges are
 * the caller's: calls on one communicator are captured on one stream. */
int mk_gpu_order_before(struct mk_gpu *g, void *stream, bool *captured, bool *moved)
{
    int status = 0;
    int err = g->cu->stream_capturing(stream, &status);
    *captured = status != 0;
    *moved = !err && !status && g->launched && g->last_stream != stream;
    if (*moved)
        err = g->cu->stream_wait_event(stream, g->order, 0);
    return err ? mk_cuda_fail(err, "ordering a launch") : 0;
}

int mk_gpu_launched(struct mk_comm *comm, int ret, void *stream, bool captured)
{
    struct mk_gpu *g = comm->gpu;
    if (ret)
        return comm->nranks == 1 ? ret
                                 : mk_comm_fail(comm, ret, true, "rank %d: %s", comm->rank, mk_last_error());
    if (comm->proxy)
        mk_proxy_kick(comm->proxy);
    if (!captured) {
        const int err = g->cu->event_record(g->order, stream);
        if (err)
            return mk_cuda_fail(err, "ordering a launch");
        g->last_stream = stream;
        g->launched = true;
    }
    return 0;
}

int mk_exec_gpu(struct mk_comm *comm, const struct mk_gemm_call *call, struct mk_ar *ar, void *stream)
{
    struct mk_gpu *g = comm->gpu;
    const struct mk_gemm_problem p = {call->layout, call->dtype, call->m, call->n,   call->k,
                                      call->a,      call->b,     call->c, call->lda, call->ldb,
                                      call->ldc,    NULL,        0};
    bool captured, moved;
    if (!ar->skip_compute && mk_tiles(&ar->grid) * 2 > MK_GPU_TILES)
        return mk_fail_quiet(MK_ERR_UNSUPPORTED, "C[%lld,%lld] has more than %u tiles", (long long)call->m,
                             (long long)call->n, MK_GPU_TILES);
    const bool large = !ar->latency && mk_gemm_cuda_bulk(&p) && mk_gpu_hopper(comm);
    plan(comm, ar, large);
    ar->comm_id = comm->proxy_id;
    mk_gpu_bind(comm, ar);
    mk_learn_begin(comm, call, ar);
    int ret = mk_gpu_order_before(g, stream, &captured, &moved);
    if (!ret)
        ret = ar->latency ? launch_latency(comm, &p, ar, stream) : launch(comm, &p, ar, large, stream);
    return mk_gpu_launched(comm, ret, stream, captured);
}
