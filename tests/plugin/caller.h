/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Opens a plugin as NCCL does and calls a net table of any version in one way: the newest version's arguments,
 * narrowed where the table is older. Nothing is checked here but what a narrowing could lose; results are the
 * plugin's own. Used by the harness and by mkbench plugin. */
#pragma once
#include "plugin/nccl/abi_net.h"
#include <stdbool.h>

enum { CALLER_OLDEST = 6, CALLER_NEWEST = 12, CALLER_GROUP_MAX = 64 };

struct caller {
    void *lib;
    int version;
    void *ctx; /* v11 and later */
    struct mk_nccl_net_config config;
    union {
        const void *any;
        const struct mk_nccl_net_v6 *v6; /* also what is the same in all versions */
        const struct mk_nccl_net_v7 *v7;
        const struct mk_nccl_net_v8 *v8;
        const struct mk_nccl_net_v9 *v9;
        const struct mk_nccl_net_v10 *v10;
        const struct mk_nccl_net_v11 *v11;
        const struct mk_nccl_net_v12 *v12;
    } t;
};

/* The newest version's fields; what the table's version lacks is as NCCL's own shims fill it. */
struct caller_props {
    const char *name, *pciPath;
    uint64_t guid;
    int ptrSupport, regIsGlobal, forceFlush, speed, port;
    float latency;
    int maxComms, maxRecvs, netDeviceType, netDeviceVersion;
    int ndevs, dev0;
    size_t maxP2pBytes, maxCollBytes;
    int maxMultiRequestSize, railId, planeId;
};

/* dlopen with NCCL's flags. NULL: said in *why. */
void *caller_load(const char *path, const char **why);
/* The table of one version; false if the library lacks it. */
bool caller_table(void *lib, int version, struct caller *out);

int caller_init(struct caller *c, mk_nccl_logger_fn log);
int caller_finalize(struct caller *c); /* before v11: nothing to call, 0 */
int caller_devices(const struct caller *c, int *ndev);
/* makeVDevice; devs: 8 of them, whatever n is. Where the table lacks it: an error. */
int caller_merge(const struct caller *c, int n, const int devs[8], int *dev);
/* Every byte of the plugin's struct is `poison` before the call. */
int caller_properties(const struct caller *c, int dev, int poison, struct caller_props *out);
int caller_listen(const struct caller *c, int dev, void *handle, void **comm);
int caller_connect(const struct caller *c, int dev, void *handle, void **comm);
int caller_accept(const struct caller *c, void *listen, void **comm);
int caller_reg(const struct caller *c, void *comm, void *data, size_t size, int type, void **mhandle);
int caller_dereg(const struct caller *c, void *comm, void *mhandle);
int caller_isend(const struct caller *c, void *comm, void *data, size_t size, int tag, void *mhandle,
                 void **request);
int caller_irecv(const struct caller *c, void *comm, int n, void **data, const size_t *sizes, int *tags,
                 void **mhandles, void **request);
int caller_test(const struct caller *c, void *request, int *done, int *sizes);
int caller_close_send(const struct caller *c, void *comm);
int caller_close_recv(const struct caller *c, void *comm);
int caller_close_listen(const struct caller *c, void *comm);

/* May NCCL hand an irecv of this version the hint that it need not complete? */
static inline bool caller_has_hint(const struct caller *c)
{
    return c->version >= 9;
}
