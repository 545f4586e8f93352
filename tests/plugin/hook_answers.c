/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What the stand-ins (HOOK_STAND, as in hook_stand.c) answer when interception asks them about a handle. */
#include "hook_stand.h"
#include <string.h>

#if HOOK_STAND == 0
int stand_pointer_mode, stand_math_mode;
int cublasGetPointerMode_v2(void *handle, int *mode);
int cublasGetMathMode(void *handle, int *mode);

int cublasGetStream_v2(void *handle, void **stream)
{
    *stream = (char *)handle + 1;
    return 0;
}

int cublasGetPointerMode_v2(void *handle, int *mode)
{
    (void)handle;
    *mode = stand_pointer_mode;
    return 0;
}

int cublasGetMathMode(void *handle, int *mode)
{
    (void)handle;
    *mode = stand_math_mode;
    return 0;
}
#elif HOOK_STAND == 1
size_t stand_lt_version = 130100;
int cublasLtMatmulDescGetAttribute(void *desc, int attribute, void *value, size_t bytes, size_t *written);
int cublasLtMatrixLayoutGetAttribute(void *layout, int attribute, void *value, size_t bytes, size_t *written);
size_t cublasLtGetVersion(void);

int cublasLtMatmulDescGetAttribute(void *desc, int attribute, void *value, size_t bytes, size_t *written)
{
    const struct stand_attributes *a = desc;
    if (!a || attribute < 0 || attribute >= 64 || !bytes || a->bytes[attribute] != bytes)
        return 7; /* CUBLAS_STATUS_INVALID_VALUE */
    memcpy(value, &a->value[attribute], bytes);
    *written = bytes;
    return 0;
}

int cublasLtMatrixLayoutGetAttribute(void *layout, int attribute, void *value, size_t bytes, size_t *written)
{
    return cublasLtMatmulDescGetAttribute(layout, attribute, value, bytes, written);
}

size_t cublasLtGetVersion(void)
{
    return stand_lt_version;
}
#elif HOOK_STAND == 2
int ncclCommCount(void *comm, int *count);
int ncclCommUserRank(void *comm, int *rank);

int ncclCommCount(void *comm, int *count)
{
    const struct stand_comm *c = comm;
    *count = c->nranks;
    return c->error;
}

int ncclCommUserRank(void *comm, int *rank)
{
    const struct stand_comm *c = comm;
    *rank = c->rank;
    return c->error;
}
#else
static uint64_t default_context = 1;
struct stand_stream stand_default = {.id = 1, .ctx = &default_context};
int stand_driver_error;
int cuStreamGetId(void *stream, unsigned long long *id);
int cuStreamGetCtx(void *stream, void **ctx);
int cuStreamGetFlags(void *stream, unsigned *flags);
int cuCtxGetId(void *ctx, unsigned long long *id);
int cuStreamGetCaptureInfo_v2(void *stream, int *status, uint64_t *id, void **graph, void *const **deps,
                              size_t *ndeps);
int cuGraphNodeGetDependencies(void *node, void **deps, size_t *ndeps);

static struct stand_stream *stream_of(void *stream)
{
    return (uintptr_t)stream <= 2 ? &stand_default : stream;
}

/* As the driver does: a capturing stream that is asked certain things is invalid from then on. */
static int ends_capture(struct stand_stream *s)
{
    if (!s->capturing)
        return stand_driver_error;
    s->capturing = 2;
    return 900; /* CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED */
}

int cuStreamGetId(void *stream, unsigned long long *id)
{
    *id = stream_of(stream)->id;
    return ends_capture(stream_of(stream));
}

int cuStreamGetCtx(void *stream, void **ctx)
{
    *ctx = stream_of(stream)->ctx;
    return stand_driver_error;
}

int cuStreamGetFlags(void *stream, unsigned *flags)
{
    *flags = stream_of(stream)->flags;
    return ends_capture(stream_of(stream));
}

int cuCtxGetId(void *ctx, unsigned long long *id)
{
    const uint64_t *c = ctx;
    *id = *c;
    return stand_driver_error;
}

int cuStreamGetCaptureInfo_v2(void *stream, int *status, uint64_t *id, void **graph, void *const **deps,
                              size_t *ndeps)
{
    const struct stand_stream *s = stream_of(stream);
    *status = s->capturing;
    *id = s->capture;
    *graph = NULL;
    *deps = s->deps;
    *ndeps = s->ndeps;
    return stand_driver_error;
}

int cuGraphNodeGetDependencies(void *node, void **deps, size_t *ndeps)
{
    const struct stand_node *n = node;
    for (size_t i = 0; i < n->ndeps && i < *ndeps; i++)
        deps[i] = n->deps[i];
    *ndeps = n->ndeps;
    return stand_driver_error;
}
#endif
