/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Profiler tables, v1 to v6 (see abi.h). The arguments of recordEventState may be NULL. A mask of 0 keeps NCCL from
 * sending events. */
#pragma once
#include "abi.h"
#include <stdbool.h>
#include <sys/types.h>

struct mk_nccl_event_coll_v1 {
    const char *name;
    uint64_t commHash;
    uint64_t seqNumber;
    uint8_t func;
    const void *sendBuff;
    void *recvBuff;
    size_t count;
    int root;
    uint8_t datatype;
    uint32_t op;
    size_t trafficBytes;
    uint8_t nMaxChannels;
    uint8_t nWarps;
    uint8_t algo;
    uint8_t proto;
    int isCollnet;
    int isNvls;
};
MK_NCCL_AT(struct mk_nccl_event_coll_v1, commHash, 8);
MK_NCCL_AT(struct mk_nccl_event_coll_v1, seqNumber, 16);
MK_NCCL_AT(struct mk_nccl_event_coll_v1, func, 24);
MK_NCCL_AT(struct mk_nccl_event_coll_v1, sendBuff, 32);
MK_NCCL_AT(struct mk_nccl_event_coll_v1, recvBuff, 40);
MK_NCCL_AT(struct mk_nccl_event_coll_v1, count, 48);
MK_NCCL_AT(struct mk_nccl_event_coll_v1, root, 56);
MK_NCCL_AT(struct mk_nccl_event_coll_v1, datatype, 60);
MK_NCCL_AT(struct mk_nccl_event_coll_v1, op, 64);
MK_NCCL_AT(struct mk_nccl_event_coll_v1, trafficBytes, 72);
MK_NCCL_AT(struct mk_nccl_event_coll_v1, nMaxChannels, 80);
MK_NCCL_AT(struct mk_nccl_event_coll_v1, nWarps, 81);
MK_NCCL_AT(struct mk_nccl_event_coll_v1, algo, 82);
MK_NCCL_AT(struct mk_nccl_event_coll_v1, proto, 83);
MK_NCCL_AT(struct mk_nccl_event_coll_v1, isCollnet, 84);
MK_NCCL_AT(struct mk_nccl_event_coll_v1, isNvls, 88);

struct mk_nccl_event_coll_v2 {
    const char *name;
    uint64_t commHash;
    uint64_t seqNumber;
    const char *func;
    const void *sendBuff;
    void *recvBuff;
    size_t count;
    int root;
    const char *datatype;
    size_t trafficBytes;
    uint8_t nMaxChannels;
    uint8_t nWarps;
    const char *algo;
    const char *proto;
};
MK_NCCL_AT(struct mk_nccl_event_coll_v2, commHash, 8);
MK_NCCL_AT(struct mk_nccl_event_coll_v2, seqNumber, 16);
MK_NCCL_AT(struct mk_nccl_event_coll_v2, func, 24);
MK_NCCL_AT(struct mk_nccl_event_coll_v2, sendBuff, 32);
MK_NCCL_AT(struct mk_nccl_event_coll_v2, recvBuff, 40);
MK_NCCL_AT(struct mk_nccl_event_coll_v2, count, 48);
MK_NCCL_AT(struct mk_nccl_event_coll_v2, root, 56);
MK_NCCL_AT(struct mk_nccl_event_coll_v2, datatype, 64);
MK_NCCL_AT(struct mk_nccl_event_coll_v2, trafficBytes, 72);
MK_NCCL_AT(struct mk_nccl_event_coll_v2, nMaxChannels, 80);
MK_NCCL_AT(struct mk_nccl_event_coll_v2, nWarps, 81);
MK_NCCL_AT(struct mk_nccl_event_coll_v2, algo, 88);
MK_NCCL_AT(struct mk_nccl_event_coll_v2, proto, 96);

struct mk_nccl_event_coll_v3 {
    const char *name;
    uint64_t commHash;
    uint64_t seqNumber;
    const char *func;
    const void *sendBuff;
    void *recvBuff;
    size_t count;
    int root;
    const char *datatype;
    uint8_t nMaxChannels;
    uint8_t nWarps;
    const char *algo;
    const char *proto;
};
MK_NCCL_AT(struct mk_nccl_event_coll_v3, commHash, 8);
MK_NCCL_AT(struct mk_nccl_event_coll_v3, seqNumber, 16);
MK_NCCL_AT(struct mk_nccl_event_coll_v3, func, 24);
MK_NCCL_AT(struct mk_nccl_event_coll_v3, sendBuff, 32);
MK_NCCL_AT(struct mk_nccl_event_coll_v3, recvBuff, 40);
MK_NCCL_AT(struct mk_nccl_event_coll_v3, count, 48);
MK_NCCL_AT(struct mk_nccl_event_coll_v3, root, 56);
MK_NCCL_AT(struct mk_nccl_event_coll_v3, datatype, 64);
MK_NCCL_AT(struct mk_nccl_event_coll_v3, nMaxChannels, 72);
MK_NCCL_AT(struct mk_nccl_event_coll_v3, nWarps, 73);
MK_NCCL_AT(struct mk_nccl_event_coll_v3, algo, 80);
MK_NCCL_AT(struct mk_nccl_event_coll_v3, proto, 88);

struct mk_nccl_event_coll_v4 {
    uint64_t seqNumber;
    const char *func;
    const void *sendBuff;
    void *recvBuff;
    size_t count;
    int root;
    const char *datatype;
    uint8_t nChannels;
    uint8_t nWarps;
    const char *algo;
    const char *proto;
};
MK_NCCL_AT(struct mk_nccl_event_coll_v4, func, 8);
MK_NCCL_AT(struct mk_nccl_event_coll_v4, sendBuff, 16);
MK_NCCL_AT(struct mk_nccl_event_coll_v4, recvBuff, 24);
MK_NCCL_AT(struct mk_nccl_event_coll_v4, count, 32);
MK_NCCL_AT(struct mk_nccl_event_coll_v4, root, 40);
MK_NCCL_AT(struct mk_nccl_event_coll_v4, datatype, 48);
MK_NCCL_AT(struct mk_nccl_event_coll_v4, nChannels, 56);
MK_NCCL_AT(struct mk_nccl_event_coll_v4, nWarps, 57);
MK_NCCL_AT(struct mk_nccl_event_coll_v4, algo, 64);
MK_NCCL_AT(struct mk_nccl_event_coll_v4, proto, 72);

struct mk_nccl_event_coll_v5 {
    uint64_t seqNumber;
    const char *func;
    const void *sendBuff;
    void *recvBuff;
    size_t count;
    int root;
    const char *datatype;
    uint8_t nChannels;
    uint8_t nWarps;
    const char *algo;
    const char *proto;
    void *parentGroup;
};
MK_NCCL_AT(struct mk_nccl_event_coll_v5, func, 8);
MK_NCCL_AT(struct mk_nccl_event_coll_v5, sendBuff, 16);
MK_NCCL_AT(struct mk_nccl_event_coll_v5, recvBuff, 24);
MK_NCCL_AT(struct mk_nccl_event_coll_v5, count, 32);
MK_NCCL_AT(struct mk_nccl_event_coll_v5, root, 40);
MK_NCCL_AT(struct mk_nccl_event_coll_v5, datatype, 48);
MK_NCCL_AT(struct mk_nccl_event_coll_v5, nChannels, 56);
MK_NCCL_AT(struct mk_nccl_event_coll_v5, nWarps, 57);
MK_NCCL_AT(struct mk_nccl_event_coll_v5, algo, 64);
MK_NCCL_AT(struct mk_nccl_event_coll_v5, proto, 72);
MK_NCCL_AT(struct mk_nccl_event_coll_v5, parentGroup, 80);

struct mk_nccl_event_p2p_v1 {
    const char *name;
    uint64_t commHash;
    uint8_t func;
    void *buff;
    uint8_t datatype;
    size_t count;
    int peer;
};
MK_NCCL_AT(struct mk_nccl_event_p2p_v1, commHash, 8);
MK_NCCL_AT(struct mk_nccl_event_p2p_v1, func, 16);
MK_NCCL_AT(struct mk_nccl_event_p2p_v1, buff, 24);
MK_NCCL_AT(struct mk_nccl_event_p2p_v1, datatype, 32);
MK_NCCL_AT(struct mk_nccl_event_p2p_v1, count, 40);
MK_NCCL_AT(struct mk_nccl_event_p2p_v1, peer, 48);

struct mk_nccl_event_p2p_v2 {
    const char *name;
    uint64_t commHash;
    const char *func;
    void *buff;
    const char *datatype;
    size_t count;
    int peer;
};
MK_NCCL_AT(struct mk_nccl_event_p2p_v2, commHash, 8);
MK_NCCL_AT(struct mk_nccl_event_p2p_v2, func, 16);
MK_NCCL_AT(struct mk_nccl_event_p2p_v2, buff, 24);
MK_NCCL_AT(struct mk_nccl_event_p2p_v2, datatype, 32);
MK_NCCL_AT(struct mk_nccl_event_p2p_v2, count, 40);
MK_NCCL_AT(struct mk_nccl_event_p2p_v2, peer, 48);

struct mk_nccl_event_p2p_v4 {
    const char *func;
    void *buff;
    const char *datatype;
    size_t count;
    int peer;
    uint8_t nChannels;
};
MK_NCCL_AT(struct mk_nccl_event_p2p_v4, buff, 8);
MK_NCCL_AT(struct mk_nccl_event_p2p_v4, datatype, 16);
MK_NCCL_AT(struct mk_nccl_event_p2p_v4, count, 24);
MK_NCCL_AT(struct mk_nccl_event_p2p_v4, peer, 32);
MK_NCCL_AT(struct mk_nccl_event_p2p_v4, nChannels, 36);

struct mk_nccl_event_p2p_v5 {
    const char *func;
    void *buff;
    const char *datatype;
    size_t count;
    int peer;
    uint8_t nChannels;
    void *parentGroup;
};
MK_NCCL_AT(struct mk_nccl_event_p2p_v5, buff, 8);
MK_NCCL_AT(struct mk_nccl_event_p2p_v5, datatype, 16);
MK_NCCL_AT(struct mk_nccl_event_p2p_v5, count, 24);
MK_NCCL_AT(struct mk_nccl_event_p2p_v5, peer, 32);
MK_NCCL_AT(struct mk_nccl_event_p2p_v5, nChannels, 36);
MK_NCCL_AT(struct mk_nccl_event_p2p_v5, parentGroup, 40);

struct mk_nccl_event_proxy_op_v1 {
    pid_t pid;
    uint8_t channelId;
    int peer;
    int nSteps;
    int chunkSize;
    int isSend;
};
MK_NCCL_AT(struct mk_nccl_event_proxy_op_v1, channelId, 4);
MK_NCCL_AT(struct mk_nccl_event_proxy_op_v1, peer, 8);
MK_NCCL_AT(struct mk_nccl_event_proxy_op_v1, nSteps, 12);
MK_NCCL_AT(struct mk_nccl_event_proxy_op_v1, chunkSize, 16);
MK_NCCL_AT(struct mk_nccl_event_proxy_op_v1, isSend, 20);

struct mk_nccl_event_proxy_step_v1 {
    int step;
};

struct mk_nccl_event_kernel_ch_v3 {
    uint8_t channelId;
};

struct mk_nccl_event_kernel_ch_v4 {
    uint8_t channelId;
    uint64_t pTimer;
};
MK_NCCL_AT(struct mk_nccl_event_kernel_ch_v4, pTimer, 8);

struct mk_nccl_event_net_plugin_v3 {
    int64_t id;
    void *data;
};
MK_NCCL_AT(struct mk_nccl_event_net_plugin_v3, data, 8);

struct mk_nccl_event_group_api_v5 {
    bool graphCaptured;
    int groupDepth;
};
MK_NCCL_AT(struct mk_nccl_event_group_api_v5, groupDepth, 4);

struct mk_nccl_event_coll_api_v5 {
    const char *func;
    size_t count;
    const char *datatype;
    int root;
    void *stream;
    bool graphCaptured;
};
MK_NCCL_AT(struct mk_nccl_event_coll_api_v5, count, 8);
MK_NCCL_AT(struct mk_nccl_event_coll_api_v5, datatype, 16);
MK_NCCL_AT(struct mk_nccl_event_coll_api_v5, root, 24);
MK_NCCL_AT(struct mk_nccl_event_coll_api_v5, stream, 32);
MK_NCCL_AT(struct mk_nccl_event_coll_api_v5, graphCaptured, 40);

struct mk_nccl_event_p2p_api_v5 {
    const char *func;
    size_t count;
    const char *datatype;
    void *stream;
    bool graphCaptured;
};
MK_NCCL_AT(struct mk_nccl_event_p2p_api_v5, count, 8);
MK_NCCL_AT(struct mk_nccl_event_p2p_api_v5, datatype, 16);
MK_NCCL_AT(struct mk_nccl_event_p2p_api_v5, stream, 24);
MK_NCCL_AT(struct mk_nccl_event_p2p_api_v5, graphCaptured, 32);

struct mk_nccl_event_kernel_launch_v5 {
    void *stream;
};

struct mk_nccl_event_ce_coll_v6 {
    uint64_t seqNumber;
    const char *func;
    const void *sendBuff;
    void *recvBuff;
    size_t count;
    int root;
    const char *datatype;
    const char *syncStrategy;
    bool intraBatchSync;
    uint32_t batchSize;
    uint32_t numBatches;
    uint32_t ceSeqNum;
    void *stream;
};
MK_NCCL_AT(struct mk_nccl_event_ce_coll_v6, func, 8);
MK_NCCL_AT(struct mk_nccl_event_ce_coll_v6, sendBuff, 16);
MK_NCCL_AT(struct mk_nccl_event_ce_coll_v6, recvBuff, 24);
MK_NCCL_AT(struct mk_nccl_event_ce_coll_v6, count, 32);
MK_NCCL_AT(struct mk_nccl_event_ce_coll_v6, root, 40);
MK_NCCL_AT(struct mk_nccl_event_ce_coll_v6, datatype, 48);
MK_NCCL_AT(struct mk_nccl_event_ce_coll_v6, syncStrategy, 56);
MK_NCCL_AT(struct mk_nccl_event_ce_coll_v6, intraBatchSync, 64);
MK_NCCL_AT(struct mk_nccl_event_ce_coll_v6, batchSize, 68);
MK_NCCL_AT(struct mk_nccl_event_ce_coll_v6, numBatches, 72);
MK_NCCL_AT(struct mk_nccl_event_ce_coll_v6, ceSeqNum, 76);
MK_NCCL_AT(struct mk_nccl_event_ce_coll_v6, stream, 80);

struct mk_nccl_event_ce_coll_sync_v6 {
    bool isComplete;
    int nRanks;
};
MK_NCCL_AT(struct mk_nccl_event_ce_coll_sync_v6, nRanks, 4);

struct mk_nccl_event_ce_coll_batch_v6 {
    int numOps;
    size_t totalBytes;
    bool useIntraSync;
};
MK_NCCL_AT(struct mk_nccl_event_ce_coll_batch_v6, totalBytes, 8);
MK_NCCL_AT(struct mk_nccl_event_ce_coll_batch_v6, useIntraSync, 16);

struct mk_nccl_profiler_descr_v1 {
    uint8_t type;
    void *parentObj;
    int rank;
    union {
        struct mk_nccl_event_coll_v1 coll;
        struct mk_nccl_event_p2p_v1 p2p;
        struct mk_nccl_event_proxy_op_v1 proxyOp;
        struct mk_nccl_event_proxy_step_v1 proxyStep;
    };
};
MK_NCCL_AT(struct mk_nccl_profiler_descr_v1, parentObj, 8);
MK_NCCL_AT(struct mk_nccl_profiler_descr_v1, rank, 16);
MK_NCCL_AT(struct mk_nccl_profiler_descr_v1, coll, 24);
MK_NCCL_SIZE(struct mk_nccl_profiler_descr_v1, 120);

struct mk_nccl_profiler_descr_v2 {
    uint8_t type;
    void *parentObj;
    int rank;
    union {
        struct mk_nccl_event_coll_v2 coll;
        struct mk_nccl_event_p2p_v2 p2p;
        struct mk_nccl_event_proxy_op_v1 proxyOp;
        struct mk_nccl_event_proxy_step_v1 proxyStep;
    };
};
MK_NCCL_AT(struct mk_nccl_profiler_descr_v2, parentObj, 8);
MK_NCCL_AT(struct mk_nccl_profiler_descr_v2, rank, 16);
MK_NCCL_AT(struct mk_nccl_profiler_descr_v2, coll, 24);
MK_NCCL_SIZE(struct mk_nccl_profiler_descr_v2, 128);

struct mk_nccl_profiler_descr_v3 {
    uint8_t type;
    void *parentObj;
    int rank;
    union {
        struct mk_nccl_event_coll_v3 coll;
        struct mk_nccl_event_p2p_v2 p2p;
        struct mk_nccl_event_proxy_op_v1 proxyOp;
        struct mk_nccl_event_proxy_step_v1 proxyStep;
        struct mk_nccl_event_kernel_ch_v3 kernelCh;
        struct mk_nccl_event_net_plugin_v3 netPlugin;
    };
};
MK_NCCL_AT(struct mk_nccl_profiler_descr_v3, parentObj, 8);
MK_NCCL_AT(struct mk_nccl_profiler_descr_v3, rank, 16);
MK_NCCL_AT(struct mk_nccl_profiler_descr_v3, coll, 24);
MK_NCCL_SIZE(struct mk_nccl_profiler_descr_v3, 120);

struct mk_nccl_profiler_descr_v4 {
    uint8_t type;
    void *parentObj;
    int rank;
    union {
        struct mk_nccl_event_coll_v4 coll;
        struct mk_nccl_event_p2p_v4 p2p;
        struct mk_nccl_event_proxy_op_v1 proxyOp;
        struct mk_nccl_event_proxy_step_v1 proxyStep;
        struct mk_nccl_event_kernel_ch_v4 kernelCh;
        struct mk_nccl_event_net_plugin_v3 netPlugin;
    };
};
MK_NCCL_AT(struct mk_nccl_profiler_descr_v4, parentObj, 8);
MK_NCCL_AT(struct mk_nccl_profiler_descr_v4, rank, 16);
MK_NCCL_AT(struct mk_nccl_profiler_descr_v4, coll, 24);
MK_NCCL_SIZE(struct mk_nccl_profiler_descr_v4, 104);

struct mk_nccl_profiler_descr_v5 {
    uint64_t type;
    void *parentObj;
    int rank;
    union {
        struct mk_nccl_event_coll_v5 coll;
        struct mk_nccl_event_p2p_v5 p2p;
        struct mk_nccl_event_proxy_op_v1 proxyOp;
        struct mk_nccl_event_proxy_step_v1 proxyStep;
        struct mk_nccl_event_kernel_ch_v4 kernelCh;
        struct mk_nccl_event_net_plugin_v3 netPlugin;
        struct mk_nccl_event_group_api_v5 groupApi;
        struct mk_nccl_event_coll_api_v5 collApi;
        struct mk_nccl_event_p2p_api_v5 p2pApi;
        struct mk_nccl_event_kernel_launch_v5 kernelLaunch;
    };
};
MK_NCCL_AT(struct mk_nccl_profiler_descr_v5, parentObj, 8);
MK_NCCL_AT(struct mk_nccl_profiler_descr_v5, rank, 16);
MK_NCCL_AT(struct mk_nccl_profiler_descr_v5, coll, 24);
MK_NCCL_SIZE(struct mk_nccl_profiler_descr_v5, 112);

struct mk_nccl_profiler_descr_v6 {
    uint64_t type;
    void *parentObj;
    int rank;
    union {
        struct mk_nccl_event_coll_v5 coll;
        struct mk_nccl_event_p2p_v5 p2p;
        struct mk_nccl_event_proxy_op_v1 proxyOp;
        struct mk_nccl_event_proxy_step_v1 proxyStep;
        struct mk_nccl_event_kernel_ch_v4 kernelCh;
        struct mk_nccl_event_net_plugin_v3 netPlugin;
        struct mk_nccl_event_group_api_v5 groupApi;
        struct mk_nccl_event_coll_api_v5 collApi;
        struct mk_nccl_event_p2p_api_v5 p2pApi;
        struct mk_nccl_event_kernel_launch_v5 kernelLaunch;
        struct mk_nccl_event_ce_coll_v6 ceColl;
        struct mk_nccl_event_ce_coll_sync_v6 ceCollSync;
        struct mk_nccl_event_ce_coll_batch_v6 ceCollBatch;
    };
};
MK_NCCL_AT(struct mk_nccl_profiler_descr_v6, parentObj, 8);
MK_NCCL_AT(struct mk_nccl_profiler_descr_v6, rank, 16);
MK_NCCL_AT(struct mk_nccl_profiler_descr_v6, coll, 24);
MK_NCCL_SIZE(struct mk_nccl_profiler_descr_v6, 112);

union mk_nccl_profiler_args { /* v1 to v3 */
    struct {
        size_t transSize;
        int steps;
    } proxyOp;
    struct {
        int appendedProxyOps;
    } proxyCtrl;
};
MK_NCCL_SIZE(union mk_nccl_profiler_args, 16);

union mk_nccl_profiler_args_v4 { /* v4 to v6 */
    struct {
        size_t transSize;
    } proxyStep;
    struct {
        int appendedProxyOps;
    } proxyCtrl;
    struct {
        void *data;
    } netPlugin;
    struct {
        uint64_t pTimer;
    } kernelCh;
};
MK_NCCL_SIZE(union mk_nccl_profiler_args_v4, 8);

struct mk_nccl_profiler_v1 {
    const char *name;
    int (*init)(void **ctx, int *eActivationMask);
    int (*startEvent)(void *ctx, void **eHandle, struct mk_nccl_profiler_descr_v1 *descr);
    int (*stopEvent)(void *eHandle);
    int (*recordEventState)(void *eHandle, int state, union mk_nccl_profiler_args *args);
    int (*finalize)(void *ctx);
};
MK_NCCL_AT(struct mk_nccl_profiler_v1, init, 8);
MK_NCCL_AT(struct mk_nccl_profiler_v1, startEvent, 16);
MK_NCCL_AT(struct mk_nccl_profiler_v1, stopEvent, 24);
MK_NCCL_AT(struct mk_nccl_profiler_v1, recordEventState, 32);
MK_NCCL_AT(struct mk_nccl_profiler_v1, finalize, 40);
MK_NCCL_SIZE(struct mk_nccl_profiler_v1, 48);

struct mk_nccl_profiler_v2 {
    const char *name;
    int (*init)(void **ctx, int *eActivationMask);
    int (*startEvent)(void *ctx, void **eHandle, struct mk_nccl_profiler_descr_v2 *descr);
    int (*stopEvent)(void *eHandle);
    int (*recordEventState)(void *eHandle, int state, union mk_nccl_profiler_args *args);
    int (*finalize)(void *ctx);
};
MK_NCCL_AT(struct mk_nccl_profiler_v2, init, 8);
MK_NCCL_AT(struct mk_nccl_profiler_v2, startEvent, 16);
MK_NCCL_AT(struct mk_nccl_profiler_v2, stopEvent, 24);
MK_NCCL_AT(struct mk_nccl_profiler_v2, recordEventState, 32);
MK_NCCL_AT(struct mk_nccl_profiler_v2, finalize, 40);
MK_NCCL_SIZE(struct mk_nccl_profiler_v2, 48);

struct mk_nccl_profiler_v3 {
    const char *name;
    int (*init)(void **ctx, int *eActivationMask);
    int (*startEvent)(void *ctx, void **eHandle, struct mk_nccl_profiler_descr_v3 *descr);
    int (*stopEvent)(void *eHandle);
    int (*recordEventState)(void *eHandle, int state, union mk_nccl_profiler_args *args);
    int (*finalize)(void *ctx);
};
MK_NCCL_AT(struct mk_nccl_profiler_v3, init, 8);
MK_NCCL_AT(struct mk_nccl_profiler_v3, startEvent, 16);
MK_NCCL_AT(struct mk_nccl_profiler_v3, stopEvent, 24);
MK_NCCL_AT(struct mk_nccl_profiler_v3, recordEventState, 32);
MK_NCCL_AT(struct mk_nccl_profiler_v3, finalize, 40);
MK_NCCL_SIZE(struct mk_nccl_profiler_v3, 48);

struct mk_nccl_profiler_v4 {
    const char *name;
    int (*init)(void **ctx, int *eActivationMask, const char *commName, uint64_t commHash, int nNodes,
                int nRanks, int rank, mk_nccl_logger_fn log);
    int (*startEvent)(void *ctx, void **eHandle, struct mk_nccl_profiler_descr_v4 *descr);
    int (*stopEvent)(void *eHandle);
    int (*recordEventState)(void *eHandle, int state, union mk_nccl_profiler_args_v4 *args);
    int (*finalize)(void *ctx);
};
MK_NCCL_AT(struct mk_nccl_profiler_v4, init, 8);
MK_NCCL_AT(struct mk_nccl_profiler_v4, startEvent, 16);
MK_NCCL_AT(struct mk_nccl_profiler_v4, stopEvent, 24);
MK_NCCL_AT(struct mk_nccl_profiler_v4, recordEventState, 32);
MK_NCCL_AT(struct mk_nccl_profiler_v4, finalize, 40);
MK_NCCL_SIZE(struct mk_nccl_profiler_v4, 48);

struct mk_nccl_profiler_v5 {
    const char *name;
    int (*init)(void **ctx, uint64_t commId, int *eActivationMask, const char *commName, int nNodes,
                int nRanks, int rank, mk_nccl_logger_fn log);
    int (*startEvent)(void *ctx, void **eHandle, struct mk_nccl_profiler_descr_v5 *descr);
    int (*stopEvent)(void *eHandle);
    int (*recordEventState)(void *eHandle, int state, union mk_nccl_profiler_args_v4 *args);
    int (*finalize)(void *ctx);
};
MK_NCCL_AT(struct mk_nccl_profiler_v5, init, 8);
MK_NCCL_AT(struct mk_nccl_profiler_v5, startEvent, 16);
MK_NCCL_AT(struct mk_nccl_profiler_v5, stopEvent, 24);
MK_NCCL_AT(struct mk_nccl_profiler_v5, recordEventState, 32);
MK_NCCL_AT(struct mk_nccl_profiler_v5, finalize, 40);
MK_NCCL_SIZE(struct mk_nccl_profiler_v5, 48);

struct mk_nccl_profiler_v6 {
    const char *name;
    int (*init)(void **ctx, uint64_t commId, int *eActivationMask, const char *commName, int nNodes,
                int nRanks, int rank, mk_nccl_logger_fn log);
    int (*startEvent)(void *ctx, void **eHandle, struct mk_nccl_profiler_descr_v6 *descr);
    int (*stopEvent)(void *eHandle);
    int (*recordEventState)(void *eHandle, int state, union mk_nccl_profiler_args_v4 *args);
    int (*finalize)(void *ctx);
};
MK_NCCL_AT(struct mk_nccl_profiler_v6, init, 8);
MK_NCCL_AT(struct mk_nccl_profiler_v6, startEvent, 16);
MK_NCCL_AT(struct mk_nccl_profiler_v6, stopEvent, 24);
MK_NCCL_AT(struct mk_nccl_profiler_v6, recordEventState, 32);
MK_NCCL_AT(struct mk_nccl_profiler_v6, finalize, 40);
MK_NCCL_SIZE(struct mk_nccl_profiler_v6, 48);
