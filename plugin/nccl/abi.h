/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The plugin ABI of NCCL 2.19 to 2.30: what every kind of plugin shares, and net v6 to v12. Tuner: abi_tuner.h,
 * profiler: abi_profiler.h. Our own declarations; members are called as NCCL calls them. The symbol's name is NCCL's
 * only version check, so every offset and size is asserted here. Functions return one of enum mk_nccl_result. */
#pragma once
#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define MK_NCCL_AT(type, member, offset)                                                                     \
    static_assert(offsetof(type, member) == (offset), "place of " #member " in " #type)
#define MK_NCCL_SIZE(type, bytes) static_assert(sizeof(type) == (bytes), "size of " #type)

enum mk_nccl_result {
    MK_NCCL_SUCCESS = 0,
    MK_NCCL_UNHANDLED_CUDA_ERROR = 1,
    MK_NCCL_SYSTEM_ERROR = 2,
    MK_NCCL_INTERNAL_ERROR = 3,
    MK_NCCL_INVALID_ARGUMENT = 4,
    MK_NCCL_INVALID_USAGE = 5,
    MK_NCCL_REMOTE_ERROR = 6,
    MK_NCCL_IN_PROGRESS = 7
};

enum mk_nccl_log_level {
    MK_NCCL_LOG_NONE = 0,
    MK_NCCL_LOG_VERSION = 1,
    MK_NCCL_LOG_WARN = 2, /* its text becomes ncclGetLastError */
    MK_NCCL_LOG_INFO = 3,
    MK_NCCL_LOG_ABORT = 4,
    MK_NCCL_LOG_TRACE = 5
};
/* Subsystems, a mask. The mask filters WARN too: those go out with ALL. */
#define MK_NCCL_INIT 0x1ul
#define MK_NCCL_NET 0x10ul
#define MK_NCCL_TUNING 0x40ul
#define MK_NCCL_ENV 0x80ul
#define MK_NCCL_PROFILE 0x4000ul
#define MK_NCCL_ALL (~0ul)
typedef void (*mk_nccl_logger_fn)(int level, unsigned long flags, const char *file, int line, const char *fmt,
                                  ...) __attribute__((format(printf, 5, 6)));
/* Starts (0), stops (1), updates (2), updates and stops (3) an event of the net plugin for the profiler. */
typedef int (*mk_nccl_net_event_fn)(void **eHandle, int type, void *pHandle, int64_t pluginId, void *extData);

enum { MK_NCCL_HANDLE_BYTES = 128, MK_NCCL_MAX_REQUESTS = 32, MK_NCCL_MAX_DEVICES = 128 };
enum { MK_NCCL_PTR_HOST = 1, MK_NCCL_PTR_CUDA = 2, MK_NCCL_PTR_DMABUF = 4 };
/* *request on entry of an irecv that may complete at once. An irecv that cannot post writes NULL over it. */
#define MK_NCCL_OPTIONAL_RECV ((void *)0x1)
#define MK_NCCL_MAX_NET_BYTES ((size_t)1 << 40)
enum { MK_NCCL_NET_DEVICE_HOST = 0 };
enum { MK_NCCL_UNDEF = -1 }; /* traffic class, rail, plane, attributes */

/* ---- net ---- */

struct mk_nccl_net_config { /* v10 to v12 */
    int trafficClass;
};

struct mk_nccl_vdevice { /* v9 to v11 */
    int ndevs;
    int devs[4];
};
MK_NCCL_AT(struct mk_nccl_vdevice, devs, 4);

struct mk_nccl_vdevice_v12 { /* v12 */
    int ndevs;
    int devs[8];
};
MK_NCCL_AT(struct mk_nccl_vdevice_v12, devs, 4);

struct mk_nccl_device_handle { /* v7 to v12 */
    int netDeviceType;
    int netDeviceVersion;
    void *handle;
    size_t size;
    int needsProxyProgress;
};
MK_NCCL_AT(struct mk_nccl_device_handle, netDeviceVersion, 4);
MK_NCCL_AT(struct mk_nccl_device_handle, handle, 8);
MK_NCCL_AT(struct mk_nccl_device_handle, size, 16);
MK_NCCL_AT(struct mk_nccl_device_handle, needsProxyProgress, 24);

struct mk_nccl_comm_attr { /* v11 to v12 */
    int32_t maxConcurrentPeers;
    int32_t minConcurrentPeers;
    int32_t maxFlowsPerPeer;
    int32_t minFlowsPerPeer;
};
MK_NCCL_AT(struct mk_nccl_comm_attr, minConcurrentPeers, 4);
MK_NCCL_AT(struct mk_nccl_comm_attr, maxFlowsPerPeer, 8);
MK_NCCL_AT(struct mk_nccl_comm_attr, minFlowsPerPeer, 12);

struct mk_nccl_net_attr { /* v11 to v12 */
    struct mk_nccl_comm_attr sendCommAttr;
    struct mk_nccl_comm_attr recvCommAttr;
    uint32_t op;
    uint32_t algo;
    uint32_t proto;
};
MK_NCCL_AT(struct mk_nccl_net_attr, recvCommAttr, 16);
MK_NCCL_AT(struct mk_nccl_net_attr, op, 32);
MK_NCCL_AT(struct mk_nccl_net_attr, algo, 36);
MK_NCCL_AT(struct mk_nccl_net_attr, proto, 40);

MK_NCCL_SIZE(struct mk_nccl_net_config, 4);
MK_NCCL_SIZE(struct mk_nccl_vdevice, 20);
MK_NCCL_SIZE(struct mk_nccl_vdevice_v12, 36);
MK_NCCL_SIZE(struct mk_nccl_device_handle, 32);
MK_NCCL_SIZE(struct mk_nccl_comm_attr, 16);
MK_NCCL_SIZE(struct mk_nccl_net_attr, 44);

struct mk_nccl_net_props_v6 {
    char *name;
    char *pciPath;
    uint64_t guid;
    int ptrSupport;
    int speed;
    int port;
    float latency;
    int maxComms;
    int maxRecvs;
};
MK_NCCL_AT(struct mk_nccl_net_props_v6, pciPath, 8);
MK_NCCL_AT(struct mk_nccl_net_props_v6, guid, 16);
MK_NCCL_AT(struct mk_nccl_net_props_v6, ptrSupport, 24);
MK_NCCL_AT(struct mk_nccl_net_props_v6, speed, 28);
MK_NCCL_AT(struct mk_nccl_net_props_v6, port, 32);
MK_NCCL_AT(struct mk_nccl_net_props_v6, latency, 36);
MK_NCCL_AT(struct mk_nccl_net_props_v6, maxComms, 40);
MK_NCCL_AT(struct mk_nccl_net_props_v6, maxRecvs, 44);
MK_NCCL_SIZE(struct mk_nccl_net_props_v6, 48);

struct mk_nccl_net_props_v7 {
    char *name;
    char *pciPath;
    uint64_t guid;
    int ptrSupport;
    int speed;
    int port;
    float latency;
    int maxComms;
    int maxRecvs;
    int netDeviceType;
    int netDeviceVersion;
};
MK_NCCL_AT(struct mk_nccl_net_props_v7, pciPath, 8);
MK_NCCL_AT(struct mk_nccl_net_props_v7, guid, 16);
MK_NCCL_AT(struct mk_nccl_net_props_v7, ptrSupport, 24);
MK_NCCL_AT(struct mk_nccl_net_props_v7, speed, 28);
MK_NCCL_AT(struct mk_nccl_net_props_v7, port, 32);
MK_NCCL_AT(struct mk_nccl_net_props_v7, latency, 36);
MK_NCCL_AT(struct mk_nccl_net_props_v7, maxComms, 40);
MK_NCCL_AT(struct mk_nccl_net_props_v7, maxRecvs, 44);
MK_NCCL_AT(struct mk_nccl_net_props_v7, netDeviceType, 48);
MK_NCCL_AT(struct mk_nccl_net_props_v7, netDeviceVersion, 52);
MK_NCCL_SIZE(struct mk_nccl_net_props_v7, 56);

struct mk_nccl_net_props_v8 {
    char *name;
    char *pciPath;
    uint64_t guid;
    int ptrSupport;
    int regIsGlobal;
    int speed;
    int port;
    float latency;
    int maxComms;
    int maxRecvs;
    int netDeviceType;
    int netDeviceVersion;
};
MK_NCCL_AT(struct mk_nccl_net_props_v8, pciPath, 8);
MK_NCCL_AT(struct mk_nccl_net_props_v8, guid, 16);
MK_NCCL_AT(struct mk_nccl_net_props_v8, ptrSupport, 24);
MK_NCCL_AT(struct mk_nccl_net_props_v8, regIsGlobal, 28);
MK_NCCL_AT(struct mk_nccl_net_props_v8, speed, 32);
MK_NCCL_AT(struct mk_nccl_net_props_v8, port, 36);
MK_NCCL_AT(struct mk_nccl_net_props_v8, latency, 40);
MK_NCCL_AT(struct mk_nccl_net_props_v8, maxComms, 44);
MK_NCCL_AT(struct mk_nccl_net_props_v8, maxRecvs, 48);
MK_NCCL_AT(struct mk_nccl_net_props_v8, netDeviceType, 52);
MK_NCCL_AT(struct mk_nccl_net_props_v8, netDeviceVersion, 56);
MK_NCCL_SIZE(struct mk_nccl_net_props_v8, 64);

struct mk_nccl_net_props_v9 {
    char *name;
    char *pciPath;
    uint64_t guid;
    int ptrSupport;
    int regIsGlobal;
    int forceFlush;
    int speed;
    int port;
    float latency;
    int maxComms;
    int maxRecvs;
    int netDeviceType;
    int netDeviceVersion;
    struct mk_nccl_vdevice vProps;
    size_t maxP2pBytes;
    size_t maxCollBytes;
};
MK_NCCL_AT(struct mk_nccl_net_props_v9, pciPath, 8);
MK_NCCL_AT(struct mk_nccl_net_props_v9, guid, 16);
MK_NCCL_AT(struct mk_nccl_net_props_v9, ptrSupport, 24);
MK_NCCL_AT(struct mk_nccl_net_props_v9, regIsGlobal, 28);
MK_NCCL_AT(struct mk_nccl_net_props_v9, forceFlush, 32);
MK_NCCL_AT(struct mk_nccl_net_props_v9, speed, 36);
MK_NCCL_AT(struct mk_nccl_net_props_v9, port, 40);
MK_NCCL_AT(struct mk_nccl_net_props_v9, latency, 44);
MK_NCCL_AT(struct mk_nccl_net_props_v9, maxComms, 48);
MK_NCCL_AT(struct mk_nccl_net_props_v9, maxRecvs, 52);
MK_NCCL_AT(struct mk_nccl_net_props_v9, netDeviceType, 56);
MK_NCCL_AT(struct mk_nccl_net_props_v9, netDeviceVersion, 60);
MK_NCCL_AT(struct mk_nccl_net_props_v9, vProps, 64);
MK_NCCL_AT(struct mk_nccl_net_props_v9, maxP2pBytes, 88);
MK_NCCL_AT(struct mk_nccl_net_props_v9, maxCollBytes, 96);
MK_NCCL_SIZE(struct mk_nccl_net_props_v9, 104);

struct mk_nccl_net_props_v10 {
    char *name;
    char *pciPath;
    uint64_t guid;
    int ptrSupport;
    int regIsGlobal;
    int forceFlush;
    int speed;
    int port;
    float latency;
    int maxComms;
    int maxRecvs;
    int netDeviceType;
    int netDeviceVersion;
    struct mk_nccl_vdevice vProps;
    size_t maxP2pBytes;
    size_t maxCollBytes;
};
MK_NCCL_AT(struct mk_nccl_net_props_v10, pciPath, 8);
MK_NCCL_AT(struct mk_nccl_net_props_v10, guid, 16);
MK_NCCL_AT(struct mk_nccl_net_props_v10, ptrSupport, 24);
MK_NCCL_AT(struct mk_nccl_net_props_v10, regIsGlobal, 28);
MK_NCCL_AT(struct mk_nccl_net_props_v10, forceFlush, 32);
MK_NCCL_AT(struct mk_nccl_net_props_v10, speed, 36);
MK_NCCL_AT(struct mk_nccl_net_props_v10, port, 40);
MK_NCCL_AT(struct mk_nccl_net_props_v10, latency, 44);
MK_NCCL_AT(struct mk_nccl_net_props_v10, maxComms, 48);
MK_NCCL_AT(struct mk_nccl_net_props_v10, maxRecvs, 52);
MK_NCCL_AT(struct mk_nccl_net_props_v10, netDeviceType, 56);
MK_NCCL_AT(struct mk_nccl_net_props_v10, netDeviceVersion, 60);
MK_NCCL_AT(struct mk_nccl_net_props_v10, vProps, 64);
MK_NCCL_AT(struct mk_nccl_net_props_v10, maxP2pBytes, 88);
MK_NCCL_AT(struct mk_nccl_net_props_v10, maxCollBytes, 96);
MK_NCCL_SIZE(struct mk_nccl_net_props_v10, 104);

struct mk_nccl_net_props_v11 {
    char *name;
    char *pciPath;
    uint64_t guid;
    int ptrSupport;
    int regIsGlobal;
    int forceFlush;
    int speed;
    int port;
    float latency;
    int maxComms;
    int maxRecvs;
    int netDeviceType;
    int netDeviceVersion;
    struct mk_nccl_vdevice vProps;
    size_t maxP2pBytes;
    size_t maxCollBytes;
    int maxMultiRequestSize;
};
MK_NCCL_AT(struct mk_nccl_net_props_v11, pciPath, 8);
MK_NCCL_AT(struct mk_nccl_net_props_v11, guid, 16);
MK_NCCL_AT(struct mk_nccl_net_props_v11, ptrSupport, 24);
MK_NCCL_AT(struct mk_nccl_net_props_v11, regIsGlobal, 28);
MK_NCCL_AT(struct mk_nccl_net_props_v11, forceFlush, 32);
MK_NCCL_AT(struct mk_nccl_net_props_v11, speed, 36);
MK_NCCL_AT(struct mk_nccl_net_props_v11, port, 40);
MK_NCCL_AT(struct mk_nccl_net_props_v11, latency, 44);
MK_NCCL_AT(struct mk_nccl_net_props_v11, maxComms, 48);
MK_NCCL_AT(struct mk_nccl_net_props_v11, maxRecvs, 52);
MK_NCCL_AT(struct mk_nccl_net_props_v11, netDeviceType, 56);
MK_NCCL_AT(struct mk_nccl_net_props_v11, netDeviceVersion, 60);
MK_NCCL_AT(struct mk_nccl_net_props_v11, vProps, 64);
MK_NCCL_AT(struct mk_nccl_net_props_v11, maxP2pBytes, 88);
MK_NCCL_AT(struct mk_nccl_net_props_v11, maxCollBytes, 96);
MK_NCCL_AT(struct mk_nccl_net_props_v11, maxMultiRequestSize, 104);
MK_NCCL_SIZE(struct mk_nccl_net_props_v11, 112);

struct mk_nccl_net_props_v12 {
    char *name;
    char *pciPath;
    uint64_t guid;
    int ptrSupport;
    int regIsGlobal;
    int forceFlush;
    int speed;
    int port;
    float latency;
    int maxComms;
    int maxRecvs;
    int netDeviceType;
    int netDeviceVersion;
    struct mk_nccl_vdevice_v12 vProps;
    size_t maxP2pBytes;
    size_t maxCollBytes;
    int maxMultiRequestSize;
    int16_t railId;
    int16_t planeId;
};
MK_NCCL_AT(struct mk_nccl_net_props_v12, pciPath, 8);
MK_NCCL_AT(struct mk_nccl_net_props_v12, guid, 16);
MK_NCCL_AT(struct mk_nccl_net_props_v12, ptrSupport, 24);
MK_NCCL_AT(struct mk_nccl_net_props_v12, regIsGlobal, 28);
MK_NCCL_AT(struct mk_nccl_net_props_v12, forceFlush, 32);
MK_NCCL_AT(struct mk_nccl_net_props_v12, speed, 36);
MK_NCCL_AT(struct mk_nccl_net_props_v12, port, 40);
MK_NCCL_AT(struct mk_nccl_net_props_v12, latency, 44);
MK_NCCL_AT(struct mk_nccl_net_props_v12, maxComms, 48);
MK_NCCL_AT(struct mk_nccl_net_props_v12, maxRecvs, 52);
MK_NCCL_AT(struct mk_nccl_net_props_v12, netDeviceType, 56);
MK_NCCL_AT(struct mk_nccl_net_props_v12, netDeviceVersion, 60);
MK_NCCL_AT(struct mk_nccl_net_props_v12, vProps, 64);
MK_NCCL_AT(struct mk_nccl_net_props_v12, maxP2pBytes, 104);
MK_NCCL_AT(struct mk_nccl_net_props_v12, maxCollBytes, 112);
MK_NCCL_AT(struct mk_nccl_net_props_v12, maxMultiRequestSize, 120);
MK_NCCL_AT(struct mk_nccl_net_props_v12, railId, 124);
MK_NCCL_AT(struct mk_nccl_net_props_v12, planeId, 126);
MK_NCCL_SIZE(struct mk_nccl_net_props_v12, 128);
