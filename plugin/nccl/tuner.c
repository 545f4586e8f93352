/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* NCCL's tuner plugin, idle: NCCL's own choice stands. Success always: an error here fails the user's collective. */
#include "abi_tuner.h"
#include "face.h"

extern MK_NCCL_EXPORT const struct mk_nccl_tuner_v6 ncclTunerPlugin_v6;
extern MK_NCCL_EXPORT const struct mk_nccl_tuner_v5 ncclTunerPlugin_v5;
extern MK_NCCL_EXPORT const struct mk_nccl_tuner_v4 ncclTunerPlugin_v4;
extern MK_NCCL_EXPORT const struct mk_nccl_tuner_v3 ncclTunerPlugin_v3;
extern MK_NCCL_EXPORT const struct mk_nccl_tuner_v2 ncclTunerPlugin_v2;

static char nobody; /* what contexts point at: some NCCL call finalize only for one that is not NULL */

static int init_v6(void **ctx, uint64_t comm_id, size_t nranks, size_t nnodes, mk_nccl_logger_fn log,
                   struct mk_nccl_nvl_info *nvl, struct mk_nccl_tuner_constants *k)
{
    (void)comm_id, (void)nranks, (void)nnodes, (void)nvl, (void)k;
    mk_nccl_log(log);
    if (ctx)
        *ctx = &nobody;
    return MK_NCCL_SUCCESS;
}

static int init_v4(size_t nranks, size_t nnodes, mk_nccl_logger_fn log, void **ctx)
{
    return init_v6(ctx, 0, nranks, nnodes, log, NULL, NULL);
}

/* The table of costs stays as it is; no number of channels means NCCL's. */
static int info_v6(void *ctx, int func, size_t nbytes, int npipe, float **table, int nalgo, int nproto,
                   int reg_buff, int *nchannels)
{
    (void)ctx, (void)func, (void)nbytes, (void)npipe, (void)table, (void)nalgo, (void)nproto, (void)reg_buff;
    (void)nchannels;
    return MK_NCCL_SUCCESS;
}

static int info_v3(void *ctx, int func, size_t nbytes, int npipe, float **table, int nalgo, int nproto,
                   int *nchannels)
{
    return info_v6(ctx, func, nbytes, npipe, table, nalgo, nproto, 0, nchannels);
}

/* What is not written keeps the "undefined" that NCCL brings. */
static int info_v2(void *ctx, int func, size_t nbytes, int collnet, int nvls, int npipe, int *algo,
                   int *proto, int *nchannels)
{
    (void)ctx, (void)func, (void)nbytes, (void)collnet, (void)nvls, (void)npipe, (void)algo, (void)proto;
    (void)nchannels;
    return MK_NCCL_SUCCESS;
}

static int finalize(void *ctx)
{
    (void)ctx;
    return MK_NCCL_SUCCESS;
}

const struct mk_nccl_tuner_v6 ncclTunerPlugin_v6 = {
    .name = MK_NCCL_NAME,
    .init = init_v6,
    .getCollInfo = info_v6,
    .finalize = finalize,
    .getChunkSize = NULL, /* NCCL's */
};

const struct mk_nccl_tuner_v5 ncclTunerPlugin_v5 = {
    .name = MK_NCCL_NAME,
    .init = init_v6,
    .getCollInfo = info_v6,
    .finalize = finalize,
};

const struct mk_nccl_tuner_v4 ncclTunerPlugin_v4 = {
    .name = MK_NCCL_NAME,
    .init = init_v4,
    .getCollInfo = info_v6,
    .destroy = finalize,
};

const struct mk_nccl_tuner_v3 ncclTunerPlugin_v3 = {
    .name = MK_NCCL_NAME,
    .init = init_v4,
    .getCollInfo = info_v3,
    .destroy = finalize,
};

const struct mk_nccl_tuner_v2 ncclTunerPlugin_v2 = {
    .name = MK_NCCL_NAME,
    .init = init_v4,
    .getCollInfo = info_v2,
    .destroy = finalize,
};
