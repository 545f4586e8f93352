/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Tables of the fake plugin: net v6, v9 and v12, tuner v2, v4 and v6, profiler v1, v4 and v5. */
#include "plugin/nccl/abi_profiler.h"
#include "plugin/nccl/abi_tuner.h"
#include "tests/plugin/fake.h"
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

static mk_nccl_logger_fn logger;

bool fake_fault(const char *name)
{
    static const char *fault;
    if (!fault)
        fault = getenv("FAKE_FAULT") ? getenv("FAKE_FAULT") : "";
    return !strcmp(fault, name);
}

void fake_warn(const char *fmt, ...)
{
    char text[200];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (logger && !fake_fault("quiet"))
        logger(MK_NCCL_LOG_WARN, MK_NCCL_ALL, __FILE__, __LINE__, "%s", text);
}

/* ---- net ---- */

/* The fault "once" outlives the library in the environment. */
static int init6(mk_nccl_logger_fn log)
{
    logger = log;
    if (fake_fault("once") && getenv("FAKE_WAS_HERE"))
        return MK_NCCL_INTERNAL_ERROR;
    return fake_fault("once") ? setenv("FAKE_WAS_HERE", "1", 1) : 0;
}

static int init12(void **ctx, uint64_t id, struct mk_nccl_net_config *cfg, mk_nccl_logger_fn log,
                  mk_nccl_net_event_fn prof)
{
    (void)id, (void)cfg, (void)prof;
    *ctx = &logger;
    return init6(log);
}

static int finalize(void *ctx)
{
    return !ctx && fake_fault("finalize") ? MK_NCCL_INVALID_ARGUMENT : 0;
}

static int devices(int *n)
{
    *n = 2;
    return 0;
}

static char *name_of(int dev)
{
    static char names[2][6] = {"fake0", "fake1"};
    return names[fake_fault("samename") ? 0 : dev];
}

/* clang-format off */
#define FILL                                                                                                 \
    if (dev < 0 || dev > 1)                                                                                  \
        return MK_NCCL_INVALID_ARGUMENT;                                                                     \
    p->name = name_of(dev); p->pciPath = NULL; p->guid = (uint64_t)dev; p->ptrSupport = MK_NCCL_PTR_HOST;    \
    p->speed = 10000; p->latency = 1; p->maxComms = 1000; p->maxRecvs = FAKE_GROUP;                          \
    if (!fake_fault("props"))                                                                                \
        p->port = 0
#define FILL9                                                                                                \
    FILL; p->regIsGlobal = 0; p->forceFlush = 0; p->netDeviceType = 0; p->netDeviceVersion = 0;              \
    p->vProps.ndevs = 1; p->vProps.devs[0] = dev; p->maxP2pBytes = fake_fault("huge") ? 0 : 1u << 30;        \
    p->maxCollBytes = 1u << 30
/* clang-format on */

static int props6(int dev, struct mk_nccl_net_props_v6 *p)
{
    FILL;
    return 0;
}

static int props9(int dev, struct mk_nccl_net_props_v9 *p)
{
    FILL9;
    return 0;
}

static int props12(int dev, struct mk_nccl_net_props_v12 *p)
{
    FILL9;
    p->maxMultiRequestSize = 1;
    p->railId = p->planeId = MK_NCCL_UNDEF;
    return 0;
}

static int listen12(void *ctx, int dev, void *handle, void **comm)
{
    (void)ctx;
    return fake_listen(dev, handle, comm);
}

static int connect9(int dev, void *handle, void **comm, struct mk_nccl_device_handle **device)
{
    (void)device;
    return fake_connect(dev, handle, comm);
}

static int connect12(void *ctx, int dev, void *handle, void **comm, struct mk_nccl_device_handle **device)
{
    (void)ctx, (void)device;
    return fake_connect(dev, handle, comm);
}

static int accept9(void *listen, void **comm, struct mk_nccl_device_handle **device)
{
    (void)device;
    return fake_accept(listen, comm);
}

static int reg9(void *comm, void *data, size_t size, int type, void **mhandle)
{
    (void)comm, (void)data, (void)size;
    if (type != MK_NCCL_PTR_HOST)
        return MK_NCCL_INVALID_ARGUMENT;
    *mhandle = fake_fault("mhandle") ? NULL : malloc(1);
    return 0;
}

static int reg6(void *comm, void *data, int size, int type, void **mhandle)
{
    return reg9(comm, data, (size_t)size, type, mhandle);
}

static int dereg(void *comm, void *mhandle)
{
    (void)comm;
    free(mhandle);
    return 0;
}

static int isend6(void *comm, void *data, int size, int tag, void *mh, void **request)
{
    (void)mh;
    return fake_isend(comm, data, (size_t)size, tag, request);
}

static int isend9(void *comm, void *data, size_t size, int tag, void *mh, void **request)
{
    (void)mh;
    return fake_isend(comm, data, size, tag, request);
}

static int isend12(void *comm, void *data, size_t size, int tag, void *mh, void *ph, void **request)
{
    (void)mh, (void)ph;
    return fake_isend(comm, data, size, tag, request);
}

static int irecv6(void *comm, int n, void **data, int *sizes, int *tags, void **mh, void **request)
{
    size_t wide[FAKE_GROUP];
    (void)mh;
    for (int i = 0; i < n && i < FAKE_GROUP; i++)
        wide[i] = (size_t)sizes[i];
    return fake_irecv(comm, n, data, wide, tags, request);
}

static int irecv9(void *comm, int n, void **data, size_t *sizes, int *tags, void **mh, void **request)
{
    (void)mh;
    return fake_irecv(comm, n, data, sizes, tags, request);
}

static int irecv12(void *comm, int n, void **data, size_t *sizes, int *tags, void **mh, void **ph,
                   void **request)
{
    (void)mh, (void)ph;
    return fake_irecv(comm, n, data, sizes, tags, request);
}

static int iflush(void *comm, int n, void **data, int *sizes, void **mh, void **request)
{
    (void)comm, (void)n, (void)data, (void)sizes, (void)mh;
    *request = NULL;
    return 0;
}

#define SAME                                                                                                 \
    .devices = devices, .deregMr = dereg, .iflush = iflush, .test = fake_test, .closeSend = fake_close,      \
    .closeRecv = fake_close, .closeListen = fake_close_listen

EXPORT struct mk_nccl_net_v6 ncclNetPlugin_v6;
struct mk_nccl_net_v6 ncclNetPlugin_v6 = {
    SAME,
    .name = "fake",
    .init = init6,
    .getProperties = props6,
    .listen = fake_listen,
    .connect = fake_connect,
    .accept = fake_accept,
    .regMr = reg6,
    .isend = isend6,
    .irecv = irecv6,
};

EXPORT const struct mk_nccl_net_v9 ncclNetPlugin_v9 = {
    SAME,
    .name = "fake",
    .init = init6,
    .getProperties = props9,
    .listen = fake_listen,
    .connect = connect9,
    .accept = accept9,
    .regMr = reg9,
    .isend = isend9,
    .irecv = irecv9,
};

EXPORT struct mk_nccl_net_v12 ncclNetPlugin_v12;
struct mk_nccl_net_v12 ncclNetPlugin_v12 = {
    SAME,
    .name = "fake",
    .init = init12,
    .getProperties = props12,
    .listen = listen12,
    .connect = connect12,
    .accept = accept9,
    .regMr = reg9,
    .isend = isend12,
    .irecv = irecv12,
    .finalize = finalize,
};

/* The faults of tables themselves. */
__attribute__((constructor)) static void spoil(void)
{
    if (fake_fault("name"))
        ncclNetPlugin_v12.name = NULL;
    if (fake_fault("names"))
        ncclNetPlugin_v6.name = "other";
    if (fake_fault("missing"))
        ncclNetPlugin_v12.closeListen = NULL;
    if (fake_fault("signals"))
        signal(SIGUSR2, SIG_IGN);
}

/* ---- tuner ---- */

static int decide(float **table, int algos, int protos)
{
    float *cost = (float *)(void *)table;
    if (fake_fault("tuner_raise"))
        for (int i = 0; i < algos * protos; i++)
            cost[i] = 0;
    if (fake_fault("tuner_outside"))
        cost[algos * protos] = 1e9f;
    return fake_fault("tuner_error") ? MK_NCCL_INTERNAL_ERROR : 0;
}

static int tuner_init(size_t ranks, size_t nodes, mk_nccl_logger_fn log, void **ctx)
{
    (void)ranks, (void)nodes, (void)log;
    *ctx = NULL;
    return 0;
}

static int tuner_init6(void **ctx, uint64_t id, size_t ranks, size_t nodes, mk_nccl_logger_fn log,
                       struct mk_nccl_nvl_info *nvl, struct mk_nccl_tuner_constants *k)
{
    (void)id, (void)nvl, (void)k;
    return tuner_init(ranks, nodes, log, ctx);
}

static int tuner_info2(void *ctx, int func, size_t bytes, int collnet, int nvls, int ops, int *algo,
                       int *proto, int *channels)
{
    (void)ctx, (void)func, (void)bytes, (void)collnet, (void)nvls, (void)ops, (void)algo, (void)proto;
    *channels = fake_fault("tuner_channels") ? 100 : 0;
    return 0;
}

static int tuner_info4(void *ctx, int func, size_t bytes, int ops, float **table, int algos, int protos,
                       int reg, int *channels)
{
    (void)ctx, (void)func, (void)bytes, (void)ops, (void)reg, (void)channels;
    return decide(table, algos, protos);
}

static int tuner_end(void *ctx)
{
    (void)ctx;
    return 0;
}

EXPORT const struct mk_nccl_tuner_v2 ncclTunerPlugin_v2 = {
    .name = "fake", .init = tuner_init, .getCollInfo = tuner_info2, .destroy = tuner_end};
EXPORT const struct mk_nccl_tuner_v4 ncclTunerPlugin_v4 = {
    .name = "fake", .init = tuner_init, .getCollInfo = tuner_info4, .destroy = tuner_end};
EXPORT const struct mk_nccl_tuner_v6 ncclTunerPlugin_v6 = {
    .name = "fake", .init = tuner_init6, .getCollInfo = tuner_info4, .finalize = tuner_end};

/* ---- profiler ---- */

static int profiler_init(void **ctx, int *mask)
{
    *ctx = fake_fault("profiler_context") ? NULL : &logger;
    if (!fake_fault("profiler_mask"))
        *mask = 0;
    return 0;
}

static int profiler_init4(void **ctx, int *mask, const char *name, uint64_t hash, int nodes, int ranks,
                          int rank, mk_nccl_logger_fn log)
{
    (void)name, (void)hash, (void)nodes, (void)ranks, (void)rank, (void)log;
    return profiler_init(ctx, mask);
}

static int profiler_init5(void **ctx, uint64_t id, int *mask, const char *name, int nodes, int ranks,
                          int rank, mk_nccl_logger_fn log)
{
    return profiler_init4(ctx, mask, name, id, nodes, ranks, rank, log);
}

static int start(void *ctx, void **event)
{
    if (!fake_fault("profiler_handle"))
        *event = ctx;
    return 0;
}

static int start1(void *ctx, void **event, struct mk_nccl_profiler_descr_v1 *descr)
{
    (void)descr;
    return start(ctx, event);
}

static int start4(void *ctx, void **event, struct mk_nccl_profiler_descr_v4 *descr)
{
    (void)descr;
    return start(ctx, event);
}

static int start5(void *ctx, void **event, struct mk_nccl_profiler_descr_v5 *descr)
{
    (void)descr;
    return start(ctx, event);
}

static int stop(void *event)
{
    (void)event;
    return 0;
}

static int state1(void *event, int state, union mk_nccl_profiler_args *args)
{
    (void)event, (void)state;
    return fake_fault("profiler_args") ? args->proxyOp.steps : 0;
}

static int state4(void *event, int state, union mk_nccl_profiler_args_v4 *args)
{
    (void)event, (void)state, (void)args;
    return 0;
}

EXPORT const struct mk_nccl_profiler_v1 ncclProfiler_v1 = {.name = "fake",
                                                           .init = profiler_init,
                                                           .startEvent = start1,
                                                           .stopEvent = stop,
                                                           .recordEventState = state1,
                                                           .finalize = stop};
EXPORT const struct mk_nccl_profiler_v4 ncclProfiler_v4 = {.name = "fake",
                                                           .init = profiler_init4,
                                                           .startEvent = start4,
                                                           .stopEvent = stop,
                                                           .recordEventState = state4,
                                                           .finalize = stop};
EXPORT const struct mk_nccl_profiler_v5 ncclProfiler_v5 = {.name = "fake",
                                                           .init = profiler_init5,
                                                           .startEvent = start5,
                                                           .stopEvent = stop,
                                                           .recordEventState = state4,
                                                           .finalize = stop};
