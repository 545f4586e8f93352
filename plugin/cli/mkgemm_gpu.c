/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* mkgemm on a GPU: the choice, copies of the slices and of C there, the call. */
#include "cli.h"
#include "mk/cuda.h"
#include "mk/err.h"
#include "mkgemm.h"
#include <stdlib.h>
#include <string.h>

struct mkgemm_gpu {
    const struct mk_cuda *cu;
    void *stream;
    int device;
    mk_cu_ptr a, b, c, scratch;
};

static int fail(int err, const char *what)
{
    return mk_cuda_fail(err, what);
}

/* Why this rank cannot compute on a GPU; NULL: it can, and its context is current. */
static const char *open_gpu(struct mkgemm_gpu *u, int rank)
{
    const char *why = "no CUDA driver";
    void *ctx;
    int n = 0, major = 0;
    u->cu = mk_cuda_open(&why);
    if (!u->cu)
        return why;
    if (u->cu->init(0) || u->cu->device_count(&n) || n < 1 || u->cu->device_get(&u->device, rank % n))
        return "no GPU";
    if (u->cu->device_attribute(&major, MK_CU_ATTR_MAJOR, u->device) || major < 8)
        return "the GPU is older than compute capability 8.0";
    if (u->cu->ctx_retain(&ctx, u->device) || u->cu->ctx_set(ctx))
        return "the GPU has no room for a context";
    return NULL;
}

int mkgemm_gpu_open(struct mkgemm *g)
{
    const char *why = NULL;
    if (!strcmp(g->o.device, "cpu"))
        return 0;
    struct mkgemm_gpu *u = calloc(1, sizeof(*u));
    if (!u)
        return mk_fail_quiet(MK_ERR_NOMEM, "out of memory");
    if (g->dtype == MK_FLOAT32)
        why = "there is no fp32 on the GPU (--dtype bf16)";
    if (!why)
        why = open_gpu(u, g->rank);
    if (!why) {
        g->gpu = u;
        return 0;
    }
    free(u);
    return strcmp(g->o.device, "gpu") ? 0 : mk_fail_quiet(MK_ERR_UNSUPPORTED, "--device gpu: %s", why);
}

void mkgemm_gpu_drop(struct mkgemm *g)
{
    struct mkgemm_gpu *u = g->gpu;
    if (!u)
        return;
    u->cu->ctx_set(NULL);
    u->cu->ctx_release(u->device);
    free(u);
    g->gpu = NULL;
}

static int copy_in(const struct mkgemm_gpu *u, const void *from, size_t bytes, mk_cu_ptr *to)
{
    int err = u->cu->mem_alloc(to, bytes ? bytes : 16);
    if (!err && bytes)
        err = u->cu->copy_to_device(*to, from, bytes);
    return err ? fail(err, "copying a matrix to the GPU") : 0;
}

int mkgemm_gpu_load(struct mkgemm *g)
{
    struct mkgemm_gpu *u = g->gpu;
    const size_t e = mkgemm_size(g->dtype), c = (size_t)(g->m * g->n) * e;
    if (!u)
        return 0;
    int ret = copy_in(u, g->slice_a, (size_t)(g->m * g->kn) * e, &u->a);
    if (!ret)
        ret = copy_in(u, g->slice_b, (size_t)(g->n * g->kn) * e, &u->b);
    if (!ret)
        ret = copy_in(u, g->c, c, &u->c);
    if (!ret)
        ret = copy_in(u, g->scratch, c, &u->scratch);
    const int err = ret ? 0 : u->cu->stream_create(&u->stream, MK_CU_STREAM_NON_BLOCKING);
    return err ? fail(err, "a stream") : ret;
}

const void *mkgemm_gpu_a(const struct mkgemm *g)
{
    return (const void *)(uintptr_t)g->gpu->a;
}
const void *mkgemm_gpu_b(const struct mkgemm *g)
{
    return (const void *)(uintptr_t)g->gpu->b;
}
void *mkgemm_gpu_c(const struct mkgemm *g, const void *c)
{
    return (void *)(uintptr_t)(c == g->c ? g->gpu->c : g->gpu->scratch);
}
void *mkgemm_gpu_stream(const struct mkgemm *g)
{
    return g->gpu->stream;
}

int mkgemm_gpu_wait(const struct mkgemm *g)
{
    const int err = g->gpu->cu->stream_sync(g->gpu->stream);
    int error = 0;
    mk_comm_get_async_error(g->comm, &error);
    return error ? error : err ? fail(err, "the GPU") : 0;
}

int mkgemm_gpu_fetch(const struct mkgemm *g, void *c)
{
    const size_t bytes = (size_t)(g->m * g->n) * mkgemm_size(g->dtype);
    const int err =
        g->gpu && bytes ? g->gpu->cu->copy_to_host(c, (mk_cu_ptr)(uintptr_t)mkgemm_gpu_c(g, c), bytes) : 0;
    return err ? fail(err, "copying C from the GPU") : 0;
}

void mkgemm_gpu_close(struct mkgemm *g)
{
    const struct mkgemm_gpu *u = g->gpu;
    if (!u)
        return;
    const mk_cu_ptr all[] = {u->a, u->b, u->c, u->scratch};
    for (int i = 0; i < 4; i++)
        if (all[i])
            u->cu->mem_free(all[i]);
    if (u->stream)
        u->cu->stream_destroy(u->stream);
    mkgemm_gpu_drop(g);
}
