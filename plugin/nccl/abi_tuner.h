/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Tuner tables, v2 to v6 (see abi.h). getCollInfo's float **table is really the address of a dense row-major
 * float[numAlgo][numProto]; -1 marks what cannot run and stays -1. Every function returns success: an error here
 * fails the user's collective. */
#pragma once
#include "abi.h"

struct mk_nccl_nvl_info { /* v5 to v6 */
    int nNvlDomains;
    int minRanksPerNvlDomain;
    int maxRanksPerNvlDomain;
};
MK_NCCL_AT(struct mk_nccl_nvl_info, minRanksPerNvlDomain, 4);
MK_NCCL_AT(struct mk_nccl_nvl_info, maxRanksPerNvlDomain, 8);

struct mk_nccl_tuner_constants { /* v5 to v6 */
    double baseLatencies[7][3];
    double hwLatencies[3][7][3];
    double llMaxBws[4][3];
    double perChMaxRingLL128Bws[4][3];
    double perChMaxTreeLL128Bws[4][3];
    double perChMaxTreeBws[4][3];
    double perChMaxNVLSTreeBws[4][3];
};
MK_NCCL_AT(struct mk_nccl_tuner_constants, hwLatencies, 168);
MK_NCCL_AT(struct mk_nccl_tuner_constants, llMaxBws, 672);
MK_NCCL_AT(struct mk_nccl_tuner_constants, perChMaxRingLL128Bws, 768);
MK_NCCL_AT(struct mk_nccl_tuner_constants, perChMaxTreeLL128Bws, 864);
MK_NCCL_AT(struct mk_nccl_tuner_constants, perChMaxTreeBws, 960);
MK_NCCL_AT(struct mk_nccl_tuner_constants, perChMaxNVLSTreeBws, 1056);

MK_NCCL_SIZE(struct mk_nccl_nvl_info, 12);
MK_NCCL_SIZE(struct mk_nccl_tuner_constants, 1152);

struct mk_nccl_tuner_v2 {
    const char *name;
    int (*init)(size_t nRanks, size_t nNodes, mk_nccl_logger_fn log, void **ctx);
    int (*getCollInfo)(void *ctx, int func, size_t nBytes, int collNet, int nvls, int numPipeOps, int *algo,
                       int *proto, int *nChannels);
    int (*destroy)(void *ctx);
};
MK_NCCL_AT(struct mk_nccl_tuner_v2, init, 8);
MK_NCCL_AT(struct mk_nccl_tuner_v2, getCollInfo, 16);
MK_NCCL_AT(struct mk_nccl_tuner_v2, destroy, 24);
MK_NCCL_SIZE(struct mk_nccl_tuner_v2, 32);

struct mk_nccl_tuner_v3 {
    const char *name;
    int (*init)(size_t nRanks, size_t nNodes, mk_nccl_logger_fn log, void **ctx);
    int (*getCollInfo)(void *ctx, int func, size_t nBytes, int numPipeOps, float **table, int numAlgo,
                       int numProto, int *nChannels);
    int (*destroy)(void *ctx);
};
MK_NCCL_AT(struct mk_nccl_tuner_v3, init, 8);
MK_NCCL_AT(struct mk_nccl_tuner_v3, getCollInfo, 16);
MK_NCCL_AT(struct mk_nccl_tuner_v3, destroy, 24);
MK_NCCL_SIZE(struct mk_nccl_tuner_v3, 32);

struct mk_nccl_tuner_v4 {
    const char *name;
    int (*init)(size_t nRanks, size_t nNodes, mk_nccl_logger_fn log, void **ctx);
    int (*getCollInfo)(void *ctx, int func, size_t nBytes, int numPipeOps, float **table, int numAlgo,
                       int numProto, int regBuff, int *nChannels);
    int (*destroy)(void *ctx);
};
MK_NCCL_AT(struct mk_nccl_tuner_v4, init, 8);
MK_NCCL_AT(struct mk_nccl_tuner_v4, getCollInfo, 16);
MK_NCCL_AT(struct mk_nccl_tuner_v4, destroy, 24);
MK_NCCL_SIZE(struct mk_nccl_tuner_v4, 32);

struct mk_nccl_tuner_v5 {
    const char *name;
    int (*init)(void **ctx, uint64_t commId, size_t nRanks, size_t nNodes, mk_nccl_logger_fn log,
                struct mk_nccl_nvl_info *nvl, struct mk_nccl_tuner_constants *k);
    int (*getCollInfo)(void *ctx, int func, size_t nBytes, int numPipeOps, float **table, int numAlgo,
                       int numProto, int regBuff, int *nChannels);
    int (*finalize)(void *ctx);
};
MK_NCCL_AT(struct mk_nccl_tuner_v5, init, 8);
MK_NCCL_AT(struct mk_nccl_tuner_v5, getCollInfo, 16);
MK_NCCL_AT(struct mk_nccl_tuner_v5, finalize, 24);
MK_NCCL_SIZE(struct mk_nccl_tuner_v5, 32);

struct mk_nccl_tuner_v6 {
    const char *name;
    int (*init)(void **ctx, uint64_t commId, size_t nRanks, size_t nNodes, mk_nccl_logger_fn log,
                struct mk_nccl_nvl_info *nvl, struct mk_nccl_tuner_constants *k);
    int (*getCollInfo)(void *ctx, int func, size_t nBytes, int numPipeOps, float **table, int numAlgo,
                       int numProto, int regBuff, int *nChannels);
    int (*finalize)(void *ctx);
    int (*getChunkSize)(void *ctx, int func, size_t nBytes, int algo, int proto, int nChannels,
                        size_t *chunkSize);
};
MK_NCCL_AT(struct mk_nccl_tuner_v6, init, 8);
MK_NCCL_AT(struct mk_nccl_tuner_v6, getCollInfo, 16);
MK_NCCL_AT(struct mk_nccl_tuner_v6, finalize, 24);
MK_NCCL_AT(struct mk_nccl_tuner_v6, getChunkSize, 32);
MK_NCCL_SIZE(struct mk_nccl_tuner_v6, 40);
