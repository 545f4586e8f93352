/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#include "tests/plugin/caller.h"
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

void *caller_load(const char *path, const char **why)
{
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        *why = dlerror();
    return lib;
}

bool caller_table(void *lib, int version, struct caller *out)
{
    char symbol[32];
    snprintf(symbol, sizeof(symbol), "ncclNetPlugin_v%d", version);
    memset(out, 0, sizeof(*out));
    out->lib = lib;
    out->version = version;
    out->config.trafficClass = MK_NCCL_UNDEF;
    out->t.any = dlsym(lib, symbol);
    return out->t.any != NULL;
}

int caller_init(struct caller *c, mk_nccl_logger_fn log)
{
    if (c->version <= 9)
        return c->t.v6->init(log);
    if (c->version == 10)
        return c->t.v10->init(log, NULL);
    return c->t.v11->init(&c->ctx, 0x6d6b6e63636cull, &c->config, log, NULL);
}

int caller_finalize(struct caller *c)
{
    if (c->version < 11)
        return 0;
    const int ret = c->t.v11->finalize(c->ctx);
    c->ctx = NULL;
    return ret;
}

int caller_devices(const struct caller *c, int *ndev)
{
    return c->t.v6->devices(ndev);
}

int caller_merge(const struct caller *c, int n, const int devs[8], int *dev)
{
    struct mk_nccl_vdevice_v12 new;
    struct mk_nccl_vdevice v;
    new.ndevs = v.ndevs = n;
    memcpy(new.devs, devs, sizeof(new.devs));
    memcpy(v.devs, devs, sizeof(v.devs));
    if (c->version < 9)
        return MK_NCCL_INVALID_USAGE;
    if (c->version == 12)
        return c->t.v12->makeVDevice ? c->t.v12->makeVDevice(dev, &new) : MK_NCCL_INVALID_USAGE;
    /* at the same place in these three */
    return c->t.v9->makeVDevice ? c->t.v9->makeVDevice(dev, &v) : MK_NCCL_INVALID_USAGE;
}

/* clang-format off */
#define ASK(V)                                                                                               \
    struct mk_nccl_net_props_v##V p;                                                                         \
    memset(&p, poison, sizeof(p));                                                                           \
    ret = c->t.v##V->getProperties(dev, &p);                                                                 \
    out->name = p.name; out->pciPath = p.pciPath; out->guid = p.guid; out->ptrSupport = p.ptrSupport;        \
    out->speed = p.speed; out->port = p.port; out->latency = p.latency; out->maxComms = p.maxComms;          \
    out->maxRecvs = p.maxRecvs
#define ASK7(V) ASK(V); out->netDeviceType = p.netDeviceType; out->netDeviceVersion = p.netDeviceVersion
#define ASK8(V) ASK7(V); out->regIsGlobal = p.regIsGlobal
#define ASK9(V)                                                                                              \
    ASK8(V); out->forceFlush = p.forceFlush; out->ndevs = p.vProps.ndevs; out->dev0 = p.vProps.devs[0];      \
    out->maxP2pBytes = p.maxP2pBytes; out->maxCollBytes = p.maxCollBytes
#define ASK11(V) ASK9(V); out->maxMultiRequestSize = p.maxMultiRequestSize
#define ASK12(V) ASK11(V); out->railId = p.railId; out->planeId = p.planeId
/* clang-format on */

int caller_properties(const struct caller *c, int dev, int poison, struct caller_props *out)
{
    int ret = MK_NCCL_INTERNAL_ERROR;
    memset(out, 0, sizeof(*out));
    out->ndevs = 1;
    out->dev0 = dev;
    out->maxP2pBytes = (size_t)1 << 30;
    out->maxCollBytes = (size_t)1 << 29;
    out->maxMultiRequestSize = 1;
    out->railId = out->planeId = MK_NCCL_UNDEF;
    if (c->version == 6) {
        ASK(6);
    } else if (c->version == 7) {
        ASK7(7);
    } else if (c->version == 8) {
        ASK8(8);
    } else if (c->version == 9) {
        ASK9(9);
    } else if (c->version == 10) {
        ASK9(10);
    } else if (c->version == 11) {
        ASK11(11);
    } else {
        ASK12(12);
    }
    return ret;
}

int caller_listen(const struct caller *c, int dev, void *handle, void **comm)
{
    *comm = NULL;
    return c->version <= 10 ? c->t.v6->listen(dev, handle, comm)
                            : c->t.v11->listen(c->ctx, dev, handle, comm);
}

int caller_connect(const struct caller *c, int dev, void *handle, void **comm)
{
    struct mk_nccl_device_handle *device = NULL;
    struct mk_nccl_net_config config = c->config;
    *comm = NULL;
    if (c->version == 6)
        return c->t.v6->connect(dev, handle, comm);
    if (c->version <= 9)
        return c->t.v7->connect(dev, handle, comm, &device);
    if (c->version == 10)
        return c->t.v10->connect(dev, &config, handle, comm, &device);
    return c->t.v11->connect(c->ctx, dev, handle, comm, &device);
}

int caller_accept(const struct caller *c, void *listen, void **comm)
{
    struct mk_nccl_device_handle *device = NULL;
    *comm = NULL;
    return c->version == 6 ? c->t.v6->accept(listen, comm) : c->t.v7->accept(listen, comm, &device);
}

int caller_reg(const struct caller *c, void *comm, void *data, size_t size, int type, void **mhandle)
{
    *mhandle = NULL;
    if (c->version >= 8)
        return c->t.v8->regMr(comm, data, size, type, mhandle);
    return size > INT_MAX ? MK_NCCL_INTERNAL_ERROR : c->t.v6->regMr(comm, data, (int)size, type, mhandle);
}

int caller_dereg(const struct caller *c, void *comm, void *mhandle)
{
    return c->t.v6->deregMr(comm, mhandle);
}

int caller_isend(const struct caller *c, void *comm, void *data, size_t size, int tag, void *mhandle,
                 void **request)
{
    *request = NULL;
    if (c->version >= 10)
        return c->t.v10->isend(comm, data, size, tag, mhandle, NULL, request);
    if (c->version == 9)
        return c->t.v9->isend(comm, data, size, tag, mhandle, request);
    return size > INT_MAX ? MK_NCCL_INTERNAL_ERROR
                          : c->t.v6->isend(comm, data, (int)size, tag, mhandle, request);
}

int caller_irecv(const struct caller *c, void *comm, int n, void **data, const size_t *sizes, int *tags,
                 void **mhandles, void **request)
{
    size_t wide[CALLER_GROUP_MAX];
    int narrow[CALLER_GROUP_MAX];
    if (n > CALLER_GROUP_MAX)
        return MK_NCCL_INTERNAL_ERROR;
    for (int i = 0; i < n; i++) {
        wide[i] = sizes[i];
        narrow[i] = sizes[i] > INT_MAX ? INT_MAX : (int)sizes[i];
    }
    if (c->version >= 10)
        return c->t.v10->irecv(comm, n, data, wide, tags, mhandles, NULL, request);
    if (c->version == 9)
        return c->t.v9->irecv(comm, n, data, wide, tags, mhandles, request);
    return c->t.v6->irecv(comm, n, data, narrow, tags, mhandles, request);
}

int caller_test(const struct caller *c, void *request, int *done, int *sizes)
{
    return c->t.v6->test(request, done, sizes);
}

int caller_close_send(const struct caller *c, void *comm)
{
    return c->t.v6->closeSend(comm);
}

int caller_close_recv(const struct caller *c, void *comm)
{
    return c->t.v6->closeRecv(comm);
}

int caller_close_listen(const struct caller *c, void *comm)
{
    return c->t.v6->closeListen(comm);
}
