/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* NCCL's profiler plugin, idle: its mask asks for no event, so NCCL calls nothing but init and finalize. */
#include "abi_profiler.h"
#include "face.h"

extern MK_NCCL_EXPORT const struct mk_nccl_profiler_v6 ncclProfiler_v6;
extern MK_NCCL_EXPORT const struct mk_nccl_profiler_v5 ncclProfiler_v5;
extern MK_NCCL_EXPORT const struct mk_nccl_profiler_v4 ncclProfiler_v4;
extern MK_NCCL_EXPORT const struct mk_nccl_profiler_v3 ncclProfiler_v3;
extern MK_NCCL_EXPORT const struct mk_nccl_profiler_v2 ncclProfiler_v2;
extern MK_NCCL_EXPORT const struct mk_nccl_profiler_v1 ncclProfiler_v1;

static char nobody; /* a context that is not NULL, so that finalize comes */

static int init_v1(void **ctx, int *mask)
{
    if (mask)
        *mask = 0;
    if (ctx)
        *ctx = &nobody;
    return MK_NCCL_SUCCESS;
}

static int init_v4(void **ctx, int *mask, const char *comm_name, uint64_t comm_hash, int nnodes, int nranks,
                   int rank, mk_nccl_logger_fn log)
{
    (void)comm_name, (void)comm_hash, (void)nnodes, (void)nranks, (void)rank;
    mk_nccl_log(log);
    return init_v1(ctx, mask);
}

static int init_v5(void **ctx, uint64_t comm_id, int *mask, const char *comm_name, int nnodes, int nranks,
                   int rank, mk_nccl_logger_fn log)
{
    return init_v4(ctx, mask, comm_name, comm_id, nnodes, nranks, rank, log);
}

/* NULL declines the event: NCCL then skips its stop and its states. */
#define START(v)                                                                                             \
    static int start_v##v(void *ctx, void **handle, struct mk_nccl_profiler_descr_v##v *descr)               \
    {                                                                                                        \
        (void)ctx, (void)descr;                                                                              \
        if (handle)                                                                                          \
            *handle = NULL;                                                                                  \
        return MK_NCCL_SUCCESS;                                                                              \
    }
START(1)
START(2)
START(3)
START(4)
START(5)
START(6)
#undef START

static int stop(void *handle)
{
    (void)handle;
    return MK_NCCL_SUCCESS;
}

static int record_v1(void *handle, int state, union mk_nccl_profiler_args *args)
{
    (void)handle, (void)state, (void)args;
    return MK_NCCL_SUCCESS;
}

static int record_v4(void *handle, int state, union mk_nccl_profiler_args_v4 *args)
{
    (void)handle, (void)state, (void)args;
    return MK_NCCL_SUCCESS;
}

static int finalize(void *ctx)
{
    (void)ctx;
    return MK_NCCL_SUCCESS;
}

const struct mk_nccl_profiler_v6 ncclProfiler_v6 = {
    .name = MK_NCCL_NAME,
    .init = init_v5,
    .startEvent = start_v6,
    .stopEvent = stop,
    .recordEventState = record_v4,
    .finalize = finalize,
};

const struct mk_nccl_profiler_v5 ncclProfiler_v5 = {
    .name = MK_NCCL_NAME,
    .init = init_v5,
    .startEvent = start_v5,
    .stopEvent = stop,
    .recordEventState = record_v4,
    .finalize = finalize,
};

const struct mk_nccl_profiler_v4 ncclProfiler_v4 = {
    .name = MK_NCCL_NAME,
    .init = init_v4,
    .startEvent = start_v4,
    .stopEvent = stop,
    .recordEventState = record_v4,
    .finalize = finalize,
};

const struct mk_nccl_profiler_v3 ncclProfiler_v3 = {
    .name = MK_NCCL_NAME,
    .init = init_v1,
    .startEvent = start_v3,
    .stopEvent = stop,
    .recordEventState = record_v1,
    .finalize = finalize,
};

const struct mk_nccl_profiler_v2 ncclProfiler_v2 = {
    .name = MK_NCCL_NAME,
    .init = init_v1,
    .startEvent = start_v2,
    .stopEvent = stop,
    .recordEventState = record_v1,
    .finalize = finalize,
};

const struct mk_nccl_profiler_v1 ncclProfiler_v1 = {
    .name = MK_NCCL_NAME,
    .init = init_v1,
    .startEvent = start_v1,
    .stopEvent = stop,
    .recordEventState = record_v1,
    .finalize = finalize,
};
