/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The operators of the public API: check, plan, launch. */
#include "choose.h"
#include "comm.h"
#include "cuda/gemm.h"
#include "cuda/gpu.h"
#include "mk/err.h"
#include "mk/log.h"
#include "mk/pair_run.h"
#include "ops/gemm_ar_run.h"
#include "pair_run.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Ready flags of the tiles: tagged with the epoch, so nothing is cleared between calls. */
static int ensure_tile_flags(struct mk_comm *comm, size_t tiles)
{
    if (tiles <= comm->tile_flags)
        return 0;
    uint64_t *p = calloc(tiles, sizeof(*p));
    if (!p)
        return mk_fail(MK_ERR_NOMEM, "FUSED", "no memory for the flags of %zu tiles", tiles);
    free(comm->tile_flag);
    comm->tile_flag = p;
    comm->tile_flags = tiles;
    return 0;
}

static int min_int(int a, int b)
{
    return a < b ? a : b;
}

/* Fills what a launch needs of the communicator. */
static void bind(struct mk_comm *comm, struct mk_ar *ar)
{
    /* R blocks may wait for remote data alone; at least one must, or nobody finishes the launch. */
    const int r = min_int((int)comm->settings.r, comm->threads / 2);
    ar->blocks = comm->threads;
    ar->budget = min_int(comm->settings.comm_blocks > 0 ? (int)comm->settings.comm_blocks : 1, r > 1 ? r : 1);
    ar->max_helpers = r > ar->budget ? r - ar->budget : 0;
    ar->comm_id = comm->proxy_id;
    ar->state = comm->state;
    ar->tile_flag = comm->tile_flag;
    ar->tile_parts = 1;
    ar->abort_word = &comm->abort_word;
    ar->fixed = comm->memory.addr;
    ar->staging = ar->fixed + comm->rings.fixed_bytes;
    ar->net_fixed = ar->fixed;
    ar->net_words = ar->fixed;
    ar->net_staging = ar->staging;
    ar->peer_fixed = comm->peer_fixed;
    ar->peer_staging = comm->peer_staging;
    ar->place_rows = mk_ar_place_rows(ar);
    if (comm->proxy)
        ar->ring = *mk_proxy_ring(comm->proxy);
    ar->host = &comm->host;
}

static int build(struct mk_comm *comm, const struct mk_gemm_call *call, struct mk_ar *ar)
{
    return mk_plan_build(&comm->rings, !strcmp(comm->settings.wire, "fp32"), comm->gpu != NULL, call, ar);
}

static int launch_cpu(struct mk_comm *comm, const struct mk_gemm_call *call)
{
    struct mk_ar ar;
    int ret = build(comm, call, &ar);
    if (!ret && ensure_tile_flags(comm, mk_tiles(&ar.grid)))
        /* the others are in this call or will come, and must not wait for one who will not */
        ret = comm->nranks == 1
                  ? MK_ERR_NOMEM
                  : mk_comm_fail(comm, MK_ERR_NOMEM, true, "rank %d: %s", comm->rank, mk_last_error());
    if (ret)
        return ret;
    bind(comm, &ar);
    mk_learn_begin(comm, call, &ar);
    ret = mk_exec_cpu(comm, &ar);
    if (!ret)
        mk_learn_end(comm, &ar);
    return ret;
}

/* Fused, or one part after the other, as the ranks have agreed: the same bits. */
static int launch_chosen(struct mk_comm *comm, const struct mk_gemm_call *call)
{
    struct mk_gemm_call parts = *call;
    struct mk_choice choice;
    int ret = mk_choose_begin(comm, call, &choice);
    if (ret)
        return ret;
    const uint64_t begin = mk_time_ns();
    parts.part = choice.way ? MK_PART_COMPUTE : call->part;
    ret = launch_cpu(comm, &parts);
    if (!ret && choice.way) {
        parts.part = MK_PART_COMM;
        ret = launch_cpu(comm, &parts);
    }
    if (!ret) {
        __atomic_add_fetch(&comm->calls_in_parts, (uint64_t)choice.way, __ATOMIC_RELAXED);
        mk_choose_end(comm, &choice, mk_time_ns() - begin);
    }
    return ret;
}

/* On the GPU the call is over when the kernel is in its stream; on the CPU when the result is there. */
static int launch(struct mk_comm *comm, const struct mk_gemm_call *call, void *stream, bool choose)
{
    struct mk_ar ar;
    pthread_mutex_lock(&comm->call_lock);
    int ret = mk_comm_check(comm);
    if (!ret && call->part != MK_PART_COMPUTE)
        ret = mk_gone_before(comm);
    if (!ret && comm->gpu) {
        ret = build(comm, call, &ar);
        ret = ret ? ret : mk_exec_gpu(comm, call, &ar, stream);
    } else if (!ret) {
        ret = choose ? launch_chosen(comm, call) : launch_cpu(comm, call);
    }
    pthread_mutex_unlock(&comm->call_lock);
    return ret;
}

/* K on the CPU: the tiles, if they come, are written by somebody else. */
static int launch_pair_cpu(struct mk_comm *comm, const struct mk_gemm_call *call,
                           const struct mk_pair_tiles *tiles, bool *overlapped)
{
    struct mk_ar ar;
    const int ret = build(comm, call, &ar);
    if (ret)
        return ret;
    bind(comm, &ar);
    *overlapped = mk_pair_bind(tiles, &ar);
    return mk_exec_cpu(comm, &ar);
}

static struct mk_gemm_problem problem_of(const struct mk_gemm_call *c)
{
    const struct mk_gemm_problem p = {c->layout,
                                      c->dtype,
                                      c->m,
                                      c->n,
                                      c->k,
                                      c->a,
                                      c->b,
                                      c->c,
                                      c->lda,
                                      c->ldb,
                                      c->ldc,
                                      c->epilogue ? c->epilogue->bias : NULL,
                                      c->epilogue ? (int)c->epilogue->act : 0};
    return p;
}

/* Arguments, and that the operands are where the communicator computes. */
static int check_call(struct mk_comm *comm, const struct mk_gemm_call *call, void *stream)
{
    const struct mk_gemm_problem p = problem_of(call);
    int blocks;
    bool hopper;
    /* K is each rank's own: the others cannot know that this one does not come */
    if (comm->gpu && call->m && call->n && call->k > INT32_MAX && comm->nranks > 1) {
        mk_comm_fail(comm, MK_ERR_UNSUPPORTED, true,
                     "rank %d: K=%lld is beyond the 2^31-1 of the GPU kernels", comm->rank,
                     (long long)call->k);
        return mk_comm_check(comm);
    }
    const int gpu = call->m && call->n ? mk_gemm_cuda_place(&p, stream, &blocks, &hopper) : comm->gpu != NULL;
    if (gpu < 0)
        return gpu;
    if (gpu && !comm->gpu)
        return mk_fail_quiet(
            MK_ERR_UNSUPPORTED,
            "the operands are in GPU memory, but this communicator was made without a current CUDA "
            "context and computes on the CPU");
    if (!gpu && comm->gpu)
        return mk_fail_quiet(
            MK_ERR_UNSUPPORTED,
            "the operands are not in the memory of the current GPU, on which this communicator "
            "computes");
    return mk_plan_check(call, stream, gpu);
}

static int allreduce(struct mk_comm *comm, const struct mk_gemm_call *call, void *stream, bool choose)
{
    int ret = mk_comm_mine(comm);
    if (!ret)
        ret = check_call(comm, call, stream);
    return ret ? ret : launch(comm, call, stream, choose);
}

int mk_gemm_allreduce_part(mk_comm_t comm, enum mk_part part, mk_layout_t layout, int64_t m, int64_t n,
                           int64_t k, mk_dtype_t dtype, const void *a, int64_t lda, const void *b,
                           int64_t ldb, void *c, int64_t ldc, const mk_epilogue_t *epilogue, void *stream)
{
    const struct mk_gemm_call call = {m, n, k, lda, ldb, ldc, a, b, c, epilogue, layout, dtype, part};
    return allreduce(comm, &call, stream, false);
}

int mk_gemm_allreduce(mk_comm_t comm, mk_layout_t layout, int64_t m, int64_t n, int64_t k, mk_dtype_t dtype,
                      const void *a, int64_t lda, const void *b, int64_t ldb, void *c, int64_t ldc,
                      const mk_epilogue_t *epilogue, void *stream)
{
    const struct mk_gemm_call call = {m, n, k,        lda,    ldb,   ldc,          a,
                                      b, c, epilogue, layout, dtype, MK_PART_FUSED};
    return allreduce(comm, &call, stream, true);
}

bool mk_pair_bind(const struct mk_pair_tiles *tiles, struct mk_ar *ar)
{
    if (!tiles || !tiles->words || tiles->m * tiles->n != ar->grid.m * ar->grid.n ||
        !mk_pair_grid(&ar->grid, tiles->n, tiles->band_rows))
        return false;
    ar->skip_compute = MK_TILES_COME;
    ar->tile_flag = tiles->words + MK_PAIR_HEAD;
    ar->tile_parts = tiles->parts;
    return true;
}

int mk_pair_allreduce(mk_comm_t comm, void *buffer, uint64_t count, mk_dtype_t dtype,
                      const struct mk_pair_tiles *tiles, void *stream, bool *overlapped)
{
    struct mk_gemm_call call = {.layout = MK_TN, .dtype = dtype, .part = MK_PART_COMM, .c = buffer};
    struct mk_ar ar;
    bool over = false;
    int ret = mk_comm_mine(comm);
    if (overlapped)
        *overlapped = false;
    if (ret)
        return ret;
    if (count > (uint64_t)INT64_MAX)
        return mk_fail_quiet(MK_ERR_INVALID, "count %llu", (unsigned long long)count);
    mk_pair_view(&comm->rings, comm->gpu != NULL, count, &call.m, &call.n);
    call.ldc = call.n;
    ret = check_call(comm, &call, stream);
    if (ret || !count)
        return ret;
    pthread_mutex_lock(&comm->call_lock);
    ret = mk_comm_check(comm);
    if (!ret)
        ret = mk_gone_before(comm);
    if (!ret && !comm->gpu)
        ret = launch_pair_cpu(comm, &call, tiles, &over);
    else if (!ret && !(ret = build(comm, &call, &ar)))
        ret = mk_exec_gpu_pair(comm, &call, &ar, tiles, stream, &over);
    pthread_mutex_unlock(&comm->call_lock);
    if (overlapped)
        *overlapped = over;
    return ret;
}

/* On the CPU mk_gemm runs on a communicator of one rank that the process makes once, a forked child its own; its
 * settings hold for the GPU too. A fork waits for one that is being made: a child would find the lock taken. */
static pthread_once_t alone_once = PTHREAD_ONCE_INIT;
static pthread_mutex_t alone_lock = PTHREAD_MUTEX_INITIALIZER;
static struct mk_comm *alone; /* made under the lock (release), read by anybody (acquire) */

static void lock_alone(void)
{
    pthread_mutex_lock(&alone_lock);
}
static void unlock_alone(void)
{
    pthread_mutex_unlock(&alone_lock);
}
static void hook_fork(void)
{
    pthread_atfork(lock_alone, unlock_alone, unlock_alone);
}

static int get_alone(struct mk_comm **out)
{
    struct mk_comm *comm = __atomic_load_n(&alone, __ATOMIC_ACQUIRE);
    int ret = 0;
    if (comm && comm->pid == getpid()) {
        *out = comm;
        return 0;
    }
    pthread_once(&alone_once, hook_fork);
    lock_alone();
    comm = alone;
    if (!comm || comm->pid != getpid()) {
        __atomic_store_n(&alone, NULL, __ATOMIC_RELEASE);
        mk_comm_destroy(comm); /* what a child inherited */
        ret = mk_comm_init_alone(&comm);
        if (!ret)
            __atomic_store_n(&alone, comm, __ATOMIC_RELEASE);
    }
    unlock_alone();
    if (!ret)
        *out = comm;
    return ret;
}

int mk_gemm(mk_layout_t layout, int64_t m, int64_t n, int64_t k, mk_dtype_t dtype, const void *a, int64_t lda,
            const void *b, int64_t ldb, void *c, int64_t ldc, const mk_epilogue_t *epilogue, void *stream)
{
    const struct mk_gemm_call call = {m, n, k,        lda,    ldb,   ldc,          a,
                                      b, c, epilogue, layout, dtype, MK_PART_FUSED};
    const struct mk_gemm_problem p = problem_of(&call);
    struct mk_gemm_choice choice;
    int blocks;
    bool hopper;
    const int gpu = mk_gemm_cuda_place(&p, stream, &blocks, &hopper);
    int ret = gpu < 0 ? gpu : mk_plan_check(&call, stream, gpu);
    struct mk_comm *comm = NULL;
    if (ret || !m || !n)
        return ret;
    ret = get_alone(&comm);
    if (ret || !gpu)
        return ret ? ret : launch(comm, &call, NULL, false);
    mk_gemm_choose(&p, hopper && strcmp(comm->settings.gemm, "portable"), blocks, 0, &choice);
    return mk_gemm_cuda_launch(&p, &choice, stream);
}

/* ---- facts for commands ---- */

const char *mk_gemm_backend(bool use_blas)
{
    mk_gemm_cpu_open(use_blas);
    return mk_gemm_cpu_name();
}

int mk_comm_info(mk_comm_t comm, struct mk_comm_info *out)
{
    struct mk_comm_info i;
    const int ret = mk_comm_mine(comm);
    if (ret || !out)
        return ret ? ret : mk_fail_quiet(MK_ERR_INVALID, "out is NULL");
    memset(&i, 0, sizeof(i));
    i.rank = comm->rank;
    i.nranks = comm->nranks;
    i.node = comm->topo.node;
    i.nnodes = comm->topo.nnodes;
    i.local_rank = comm->topo.local;
    i.local_nranks = comm->topo.nlocal;
    i.threads = comm->gpu ? mk_gpu_blocks(comm) : comm->threads;
    i.workspace = comm->settings.workspace;
    i.calls_in_parts = __atomic_load_n(&comm->calls_in_parts, __ATOMIC_RELAXED);
    i.chunk = comm->rings.slot_bytes;
    strncpy(i.gemm, comm->gpu ? "GPU" : mk_gemm_cpu_name(), sizeof(i.gemm) - 1);
    if (comm->proxy) {
        const struct mk_caps *caps = mk_engine_caps(mk_proxy_engine(comm->proxy));
        struct mk_proxy_stats s;
        mk_proxy_get_stats(comm->proxy, &s);
        memcpy(i.transport, caps->transport, sizeof(i.transport));
        memcpy(i.provider, caps->provider, sizeof(i.provider));
        memcpy(i.adapter, caps->adapter, sizeof(i.adapter));
        i.commands = s.commands;
        i.batches = s.batches;
        i.bytes = s.bytes;
    }
    *out = i;
    return 0;
}

int mk_plan_info(mk_comm_t comm, int64_t m, int64_t n, mk_dtype_t dtype, struct mk_plan_info *out)
{
    struct mk_gemm_call call;
    struct mk_ar ar;
    int ret = mk_comm_mine(comm);
    memset(&call, 0, sizeof(call));
    call.m = m;
    call.n = n;
    call.dtype = dtype;
    if (!ret && !out)
        ret = mk_fail_quiet(MK_ERR_INVALID, "out is NULL");
    if (!ret)
        ret = mk_plan_check_facts(&call, comm->gpu != NULL);
    if (!ret)
        ret =
            mk_plan_build(&comm->rings, !strcmp(comm->settings.wire, "fp32"), comm->gpu != NULL, &call, &ar);
    if (ret)
        return ret;
    if (comm->gpu)
        mk_gpu_plan(comm, &ar);
    else
        bind(comm, &ar);
    const uint32_t elem = ar.wire_fp32 ? 4 : (uint32_t)mk_elem_bytes(dtype);
    const struct mk_plan_info i = {
        mk_tiles(&ar.grid),
        ar.grid.chunk_rows * ar.grid.chunk_cols,
        (uint32_t)ar.grid.chunk_m * (uint32_t)ar.grid.chunk_n * elem,
        ar.blocks,
        ar.budget,
        ar.budget + ar.max_helpers,
        comm->learn && comm->settings.comm_blocks <= 0 && !ar.latency,
        ar.latency,
    };
    *out = i;
    return 0;
}

int mk_comm_set_comm_blocks(mk_comm_t comm, int blocks)
{
    const int ret = mk_comm_mine(comm);
    if (ret || blocks < 0)
        return ret ? ret : mk_fail_quiet(MK_ERR_INVALID, "%d blocks for communication", blocks);
    pthread_mutex_lock(&comm->call_lock);
    comm->settings.comm_blocks = blocks;
    pthread_mutex_unlock(&comm->call_lock);
    return 0;
}

int mk_comm_pin_comm_blocks(mk_comm_t comm, int blocks)
{
    const int ret = mk_comm_mine(comm);
    if (ret || blocks < 0)
        return ret ? ret : mk_fail_quiet(MK_ERR_INVALID, "%d blocks for communication", blocks);
    pthread_mutex_lock(&comm->call_lock);
    comm->pinned = (uint32_t)blocks;
    pthread_mutex_unlock(&comm->call_lock);
    return 0;
}

int mk_comm_barrier(mk_comm_t comm)
{
    const int ret = mk_comm_mine(comm);
    return ret || !comm->boot ? ret : mk_boot_barrier(comm->boot);
}

int mk_comm_allgather(mk_comm_t comm, const void *send, void *recv, size_t bytes)
{
    const int ret = mk_comm_mine(comm);
    if (ret || (bytes && (!send || !recv)))
        return ret ? ret : mk_fail_quiet(MK_ERR_INVALID, "send or recv is NULL");
    if (comm->boot)
        return mk_boot_allgather(comm->boot, send, recv, bytes);
    memcpy(recv, send, bytes);
    return 0;
}
