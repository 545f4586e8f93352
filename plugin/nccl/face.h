/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What NCCL's faces of the shared object share: one set-up, NCCL's logger, one map of errors, and the functions behind
 * every net table (net.c has the newest, net_old.c the older ones). All return one of enum mk_nccl_result. */
#pragma once
#include "abi_net.h"
#include <stdbool.h>

struct mk_p2p;
struct mk_p2p_info;

#define MK_NCCL_NAME "mKernel" /* NCCL_NET compares it without case */

/* MK_ERR_* to NCCL's codes: the only place. */
int mk_nccl_result(int ret);
/* NCCL's logger takes our lines from now on; NULL is ignored. */
void mk_nccl_log(mk_nccl_logger_fn log);

/* Counts users of the network device; the first opens it. A device that cannot be opened is a WARN line and no device,
 * never an error: NCCL then takes another network. */
void mk_nccl_open(mk_nccl_logger_fn log);
/* One user less; the device is closed with the last one and the last comm. */
void mk_nccl_close(void);
#define MK_NCCL_DEVICES 16
#define MK_NCCL_NET_MAX_DEVS 8 /* that one is made of; 4 before v12 */
/* How many devices there are, merged ones included. */
int mk_nccl_count(void);
/* A device, or NULL. info, of (NULL allowed): about it, and what it is made of: valid as long as the process. */
struct mk_p2p *mk_nccl_device(int dev, const struct mk_p2p_info **info,
                              const struct mk_nccl_vdevice_v12 **of);
/* One device of several, whose messages go over all of them; the same list is the same device. */
int mk_nccl_merge(int n, const int *devs, int *out);
/* Listeners and comms that NCCL holds: +1, -1. */
void mk_nccl_hold(int n);

/* Behind the tables. connect, accept, isend and irecv: success with NULL means call again. */
int mk_nccl_devices(int *ndev);
int mk_nccl_listen(int dev, void *handle, void **listen_comm);
int mk_nccl_connect(int dev, void *handle, void **send_comm);
int mk_nccl_accept(void *listen_comm, void **recv_comm);
int mk_nccl_reg(void *comm, void *data, size_t size, int type, void **mhandle);
int mk_nccl_reg_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
                       void **mhandle);
int mk_nccl_dereg(void *comm, void *mhandle);
int mk_nccl_isend(void *send_comm, void *data, size_t size, int tag, void *mhandle, void **request);
int mk_nccl_irecv(void *recv_comm, int n, void **data, size_t *sizes, int *tags, void **mhandles,
                  void **request);
int mk_nccl_iflush(void *recv_comm, int n, void **data, int *sizes, void **mhandles, void **request);
int mk_nccl_test(void *request, int *done, int *sizes);
int mk_nccl_close_comm(void *comm);
int mk_nccl_close_listen(void *listen_comm);
int mk_nccl_make_vdevice(int *dev, struct mk_nccl_vdevice *props); /* v9 to v11 */

/* All of v12's properties; the older versions take what they have of them. */
int mk_nccl_props(int dev, struct mk_nccl_net_props_v12 *props);

/* Older properties from the newest ones. */
#define MK_NCCL_PROPS_V6(to, from)                                                                           \
    do {                                                                                                     \
        (to)->name = (from)->name;                                                                           \
        (to)->pciPath = (from)->pciPath;                                                                     \
        (to)->guid = (from)->guid;                                                                           \
        (to)->ptrSupport = (from)->ptrSupport;                                                               \
        (to)->speed = (from)->speed;                                                                         \
        (to)->port = (from)->port;                                                                           \
        (to)->latency = (from)->latency;                                                                     \
        (to)->maxComms = (from)->maxComms;                                                                   \
        (to)->maxRecvs = (from)->maxRecvs;                                                                   \
    } while (0)
#define MK_NCCL_PROPS_V7(to, from)                                                                           \
    do {                                                                                                     \
        MK_NCCL_PROPS_V6(to, from);                                                                          \
        (to)->netDeviceType = (from)->netDeviceType;                                                         \
        (to)->netDeviceVersion = (from)->netDeviceVersion;                                                   \
    } while (0)
#define MK_NCCL_PROPS_V8(to, from)                                                                           \
    do {                                                                                                     \
        MK_NCCL_PROPS_V7(to, from);                                                                          \
        (to)->regIsGlobal = (from)->regIsGlobal;                                                             \
    } while (0)
#define MK_NCCL_PROPS_V9(to, from)                                                                           \
    do {                                                                                                     \
        MK_NCCL_PROPS_V8(to, from);                                                                          \
        (to)->forceFlush = (from)->forceFlush;                                                               \
        (to)->vProps.ndevs = (from)->vProps.ndevs;                                                           \
        for (int mk_i = 0; mk_i < 4; mk_i++)                                                                 \
            (to)->vProps.devs[mk_i] = (from)->vProps.devs[mk_i];                                             \
        (to)->maxP2pBytes = (from)->maxP2pBytes;                                                             \
        (to)->maxCollBytes = (from)->maxCollBytes;                                                           \
    } while (0)

/* What NCCL looks up by name. */
#define MK_NCCL_EXPORT __attribute__((visibility("default")))
extern MK_NCCL_EXPORT const struct mk_nccl_net_v12 ncclNetPlugin_v12;
extern MK_NCCL_EXPORT const struct mk_nccl_net_v11 ncclNetPlugin_v11;
extern MK_NCCL_EXPORT const struct mk_nccl_net_v10 ncclNetPlugin_v10;
extern MK_NCCL_EXPORT const struct mk_nccl_net_v9 ncclNetPlugin_v9;
extern MK_NCCL_EXPORT const struct mk_nccl_net_v8 ncclNetPlugin_v8;
extern MK_NCCL_EXPORT const struct mk_nccl_net_v7 ncclNetPlugin_v7;
extern MK_NCCL_EXPORT const struct mk_nccl_net_v6 ncclNetPlugin_v6;
