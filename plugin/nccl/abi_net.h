/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Net tables, v6 to v12: abi.h. connect, accept, isend and irecv never block: success with a NULL result means that
 * NCCL calls again. */
#pragma once
#include "abi.h"

struct mk_nccl_net_v6 {
    const char *name;
    int (*init)(mk_nccl_logger_fn log);
    int (*devices)(int *ndev);
    int (*getProperties)(int dev, struct mk_nccl_net_props_v6 *props);
    int (*listen)(int dev, void *handle, void **listenComm);
    int (*connect)(int dev, void *handle, void **sendComm);
    int (*accept)(void *listenComm, void **recvComm);
    int (*regMr)(void *comm, void *data, int size, int type, void **mhandle);
    int (*regMrDmaBuf)(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
                       void **mhandle);
    int (*deregMr)(void *comm, void *mhandle);
    int (*isend)(void *sendComm, void *data, int size, int tag, void *mhandle, void **request);
    int (*irecv)(void *recvComm, int n, void **data, int *sizes, int *tags, void **mhandles, void **request);
    int (*iflush)(void *recvComm, int n, void **data, int *sizes, void **mhandles, void **request);
    int (*test)(void *request, int *done, int *sizes);
    int (*closeSend)(void *sendComm);
    int (*closeRecv)(void *recvComm);
    int (*closeListen)(void *listenComm);
};
MK_NCCL_AT(struct mk_nccl_net_v6, init, 8);
MK_NCCL_AT(struct mk_nccl_net_v6, devices, 16);
MK_NCCL_AT(struct mk_nccl_net_v6, getProperties, 24);
MK_NCCL_AT(struct mk_nccl_net_v6, listen, 32);
MK_NCCL_AT(struct mk_nccl_net_v6, connect, 40);
MK_NCCL_AT(struct mk_nccl_net_v6, accept, 48);
MK_NCCL_AT(struct mk_nccl_net_v6, regMr, 56);
MK_NCCL_AT(struct mk_nccl_net_v6, regMrDmaBuf, 64);
MK_NCCL_AT(struct mk_nccl_net_v6, deregMr, 72);
MK_NCCL_AT(struct mk_nccl_net_v6, isend, 80);
MK_NCCL_AT(struct mk_nccl_net_v6, irecv, 88);
MK_NCCL_AT(struct mk_nccl_net_v6, iflush, 96);
MK_NCCL_AT(struct mk_nccl_net_v6, test, 104);
MK_NCCL_AT(struct mk_nccl_net_v6, closeSend, 112);
MK_NCCL_AT(struct mk_nccl_net_v6, closeRecv, 120);
MK_NCCL_AT(struct mk_nccl_net_v6, closeListen, 128);
MK_NCCL_SIZE(struct mk_nccl_net_v6, 136);

struct mk_nccl_net_v7 {
    const char *name;
    int (*init)(mk_nccl_logger_fn log);
    int (*devices)(int *ndev);
    int (*getProperties)(int dev, struct mk_nccl_net_props_v7 *props);
    int (*listen)(int dev, void *handle, void **listenComm);
    int (*connect)(int dev, void *handle, void **sendComm, struct mk_nccl_device_handle **devComm);
    int (*accept)(void *listenComm, void **recvComm, struct mk_nccl_device_handle **devComm);
    int (*regMr)(void *comm, void *data, int size, int type, void **mhandle);
    int (*regMrDmaBuf)(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
                       void **mhandle);
    int (*deregMr)(void *comm, void *mhandle);
    int (*isend)(void *sendComm, void *data, int size, int tag, void *mhandle, void **request);
    int (*irecv)(void *recvComm, int n, void **data, int *sizes, int *tags, void **mhandles, void **request);
    int (*iflush)(void *recvComm, int n, void **data, int *sizes, void **mhandles, void **request);
    int (*test)(void *request, int *done, int *sizes);
    int (*closeSend)(void *sendComm);
    int (*closeRecv)(void *recvComm);
    int (*closeListen)(void *listenComm);
    int (*getDeviceMr)(void *comm, void *mhandle, void **dptr_mhandle);
    int (*irecvConsumed)(void *recvComm, int n, void *request);
};
MK_NCCL_AT(struct mk_nccl_net_v7, init, 8);
MK_NCCL_AT(struct mk_nccl_net_v7, devices, 16);
MK_NCCL_AT(struct mk_nccl_net_v7, getProperties, 24);
MK_NCCL_AT(struct mk_nccl_net_v7, listen, 32);
MK_NCCL_AT(struct mk_nccl_net_v7, connect, 40);
MK_NCCL_AT(struct mk_nccl_net_v7, accept, 48);
MK_NCCL_AT(struct mk_nccl_net_v7, regMr, 56);
MK_NCCL_AT(struct mk_nccl_net_v7, regMrDmaBuf, 64);
MK_NCCL_AT(struct mk_nccl_net_v7, deregMr, 72);
MK_NCCL_AT(struct mk_nccl_net_v7, isend, 80);
MK_NCCL_AT(struct mk_nccl_net_v7, irecv, 88);
MK_NCCL_AT(struct mk_nccl_net_v7, iflush, 96);
MK_NCCL_AT(struct mk_nccl_net_v7, test, 104);
MK_NCCL_AT(struct mk_nccl_net_v7, closeSend, 112);
MK_NCCL_AT(struct mk_nccl_net_v7, closeRecv, 120);
MK_NCCL_AT(struct mk_nccl_net_v7, closeListen, 128);
MK_NCCL_AT(struct mk_nccl_net_v7, getDeviceMr, 136);
MK_NCCL_AT(struct mk_nccl_net_v7, irecvConsumed, 144);
MK_NCCL_SIZE(struct mk_nccl_net_v7, 152);

struct mk_nccl_net_v8 {
    const char *name;
    int (*init)(mk_nccl_logger_fn log);
    int (*devices)(int *ndev);
    int (*getProperties)(int dev, struct mk_nccl_net_props_v8 *props);
    int (*listen)(int dev, void *handle, void **listenComm);
    int (*connect)(int dev, void *handle, void **sendComm, struct mk_nccl_device_handle **devComm);
    int (*accept)(void *listenComm, void **recvComm, struct mk_nccl_device_handle **devComm);
    int (*regMr)(void *comm, void *data, size_t size, int type, void **mhandle);
    int (*regMrDmaBuf)(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
                       void **mhandle);
    int (*deregMr)(void *comm, void *mhandle);
    int (*isend)(void *sendComm, void *data, int size, int tag, void *mhandle, void **request);
    int (*irecv)(void *recvComm, int n, void **data, int *sizes, int *tags, void **mhandles, void **request);
    int (*iflush)(void *recvComm, int n, void **data, int *sizes, void **mhandles, void **request);
    int (*test)(void *request, int *done, int *sizes);
    int (*closeSend)(void *sendComm);
    int (*closeRecv)(void *recvComm);
    int (*closeListen)(void *listenComm);
    int (*getDeviceMr)(void *comm, void *mhandle, void **dptr_mhandle);
    int (*irecvConsumed)(void *recvComm, int n, void *request);
};
MK_NCCL_AT(struct mk_nccl_net_v8, init, 8);
MK_NCCL_AT(struct mk_nccl_net_v8, devices, 16);
MK_NCCL_AT(struct mk_nccl_net_v8, getProperties, 24);
MK_NCCL_AT(struct mk_nccl_net_v8, listen, 32);
MK_NCCL_AT(struct mk_nccl_net_v8, connect, 40);
MK_NCCL_AT(struct mk_nccl_net_v8, accept, 48);
MK_NCCL_AT(struct mk_nccl_net_v8, regMr, 56);
MK_NCCL_AT(struct mk_nccl_net_v8, regMrDmaBuf, 64);
MK_NCCL_AT(struct mk_nccl_net_v8, deregMr, 72);
MK_NCCL_AT(struct mk_nccl_net_v8, isend, 80);
MK_NCCL_AT(struct mk_nccl_net_v8, irecv, 88);
MK_NCCL_AT(struct mk_nccl_net_v8, iflush, 96);
MK_NCCL_AT(struct mk_nccl_net_v8, test, 104);
MK_NCCL_AT(struct mk_nccl_net_v8, closeSend, 112);
MK_NCCL_AT(struct mk_nccl_net_v8, closeRecv, 120);
MK_NCCL_AT(struct mk_nccl_net_v8, closeListen, 128);
MK_NCCL_AT(struct mk_nccl_net_v8, getDeviceMr, 136);
MK_NCCL_AT(struct mk_nccl_net_v8, irecvConsumed, 144);
MK_NCCL_SIZE(struct mk_nccl_net_v8, 152);

struct mk_nccl_net_v9 {
    const char *name;
    int (*init)(mk_nccl_logger_fn log);
    int (*devices)(int *ndev);
    int (*getProperties)(int dev, struct mk_nccl_net_props_v9 *props);
    int (*listen)(int dev, void *handle, void **listenComm);
    int (*connect)(int dev, void *handle, void **sendComm, struct mk_nccl_device_handle **devComm);
    int (*accept)(void *listenComm, void **recvComm, struct mk_nccl_device_handle **devComm);
    int (*regMr)(void *comm, void *data, size_t size, int type, void **mhandle);
    int (*regMrDmaBuf)(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
                       void **mhandle);
    int (*deregMr)(void *comm, void *mhandle);
    int (*isend)(void *sendComm, void *data, size_t size, int tag, void *mhandle, void **request);
    int (*irecv)(void *recvComm, int n, void **data, size_t *sizes, int *tags, void **mhandles,
                 void **request);
    int (*iflush)(void *recvComm, int n, void **data, int *sizes, void **mhandles, void **request);
    int (*test)(void *request, int *done, int *sizes);
    int (*closeSend)(void *sendComm);
    int (*closeRecv)(void *recvComm);
    int (*closeListen)(void *listenComm);
    int (*getDeviceMr)(void *comm, void *mhandle, void **dptr_mhandle);
    int (*irecvConsumed)(void *recvComm, int n, void *request);
    int (*makeVDevice)(int *d, struct mk_nccl_vdevice *props);
};
MK_NCCL_AT(struct mk_nccl_net_v9, init, 8);
MK_NCCL_AT(struct mk_nccl_net_v9, devices, 16);
MK_NCCL_AT(struct mk_nccl_net_v9, getProperties, 24);
MK_NCCL_AT(struct mk_nccl_net_v9, listen, 32);
MK_NCCL_AT(struct mk_nccl_net_v9, connect, 40);
MK_NCCL_AT(struct mk_nccl_net_v9, accept, 48);
MK_NCCL_AT(struct mk_nccl_net_v9, regMr, 56);
MK_NCCL_AT(struct mk_nccl_net_v9, regMrDmaBuf, 64);
MK_NCCL_AT(struct mk_nccl_net_v9, deregMr, 72);
MK_NCCL_AT(struct mk_nccl_net_v9, isend, 80);
MK_NCCL_AT(struct mk_nccl_net_v9, irecv, 88);
MK_NCCL_AT(struct mk_nccl_net_v9, iflush, 96);
MK_NCCL_AT(struct mk_nccl_net_v9, test, 104);
MK_NCCL_AT(struct mk_nccl_net_v9, closeSend, 112);
MK_NCCL_AT(struct mk_nccl_net_v9, closeRecv, 120);
MK_NCCL_AT(struct mk_nccl_net_v9, closeListen, 128);
MK_NCCL_AT(struct mk_nccl_net_v9, getDeviceMr, 136);
MK_NCCL_AT(struct mk_nccl_net_v9, irecvConsumed, 144);
MK_NCCL_AT(struct mk_nccl_net_v9, makeVDevice, 152);
MK_NCCL_SIZE(struct mk_nccl_net_v9, 160);

struct mk_nccl_net_v10 {
    const char *name;
    int (*init)(mk_nccl_logger_fn log, mk_nccl_net_event_fn prof);
    int (*devices)(int *ndev);
    int (*getProperties)(int dev, struct mk_nccl_net_props_v10 *props);
    int (*listen)(int dev, void *handle, void **listenComm);
    int (*connect)(int dev, struct mk_nccl_net_config *cfg, void *handle, void **sendComm,
                   struct mk_nccl_device_handle **devComm);
    int (*accept)(void *listenComm, void **recvComm, struct mk_nccl_device_handle **devComm);
    int (*regMr)(void *comm, void *data, size_t size, int type, void **mhandle);
    int (*regMrDmaBuf)(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
                       void **mhandle);
    int (*deregMr)(void *comm, void *mhandle);
    int (*isend)(void *sendComm, void *data, size_t size, int tag, void *mhandle, void *phandle,
                 void **request);
    int (*irecv)(void *recvComm, int n, void **data, size_t *sizes, int *tags, void **mhandles,
                 void **phandles, void **request);
    int (*iflush)(void *recvComm, int n, void **data, int *sizes, void **mhandles, void **request);
    int (*test)(void *request, int *done, int *sizes);
    int (*closeSend)(void *sendComm);
    int (*closeRecv)(void *recvComm);
    int (*closeListen)(void *listenComm);
    int (*getDeviceMr)(void *comm, void *mhandle, void **dptr_mhandle);
    int (*irecvConsumed)(void *recvComm, int n, void *request);
    int (*makeVDevice)(int *d, struct mk_nccl_vdevice *props);
};
MK_NCCL_AT(struct mk_nccl_net_v10, init, 8);
MK_NCCL_AT(struct mk_nccl_net_v10, devices, 16);
MK_NCCL_AT(struct mk_nccl_net_v10, getProperties, 24);
MK_NCCL_AT(struct mk_nccl_net_v10, listen, 32);
MK_NCCL_AT(struct mk_nccl_net_v10, connect, 40);
MK_NCCL_AT(struct mk_nccl_net_v10, accept, 48);
MK_NCCL_AT(struct mk_nccl_net_v10, regMr, 56);
MK_NCCL_AT(struct mk_nccl_net_v10, regMrDmaBuf, 64);
MK_NCCL_AT(struct mk_nccl_net_v10, deregMr, 72);
MK_NCCL_AT(struct mk_nccl_net_v10, isend, 80);
MK_NCCL_AT(struct mk_nccl_net_v10, irecv, 88);
MK_NCCL_AT(struct mk_nccl_net_v10, iflush, 96);
MK_NCCL_AT(struct mk_nccl_net_v10, test, 104);
MK_NCCL_AT(struct mk_nccl_net_v10, closeSend, 112);
MK_NCCL_AT(struct mk_nccl_net_v10, closeRecv, 120);
MK_NCCL_AT(struct mk_nccl_net_v10, closeListen, 128);
MK_NCCL_AT(struct mk_nccl_net_v10, getDeviceMr, 136);
MK_NCCL_AT(struct mk_nccl_net_v10, irecvConsumed, 144);
MK_NCCL_AT(struct mk_nccl_net_v10, makeVDevice, 152);
MK_NCCL_SIZE(struct mk_nccl_net_v10, 160);

struct mk_nccl_net_v11 {
    const char *name;
    int (*init)(void **ctx, uint64_t commId, struct mk_nccl_net_config *cfg, mk_nccl_logger_fn log,
                mk_nccl_net_event_fn prof);
    int (*devices)(int *ndev);
    int (*getProperties)(int dev, struct mk_nccl_net_props_v11 *props);
    int (*listen)(void *ctx, int dev, void *handle, void **listenComm);
    int (*connect)(void *ctx, int dev, void *handle, void **sendComm, struct mk_nccl_device_handle **devComm);
    int (*accept)(void *listenComm, void **recvComm, struct mk_nccl_device_handle **devComm);
    int (*regMr)(void *comm, void *data, size_t size, int type, void **mhandle);
    int (*regMrDmaBuf)(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
                       void **mhandle);
    int (*deregMr)(void *comm, void *mhandle);
    int (*isend)(void *sendComm, void *data, size_t size, int tag, void *mhandle, void *phandle,
                 void **request);
    int (*irecv)(void *recvComm, int n, void **data, size_t *sizes, int *tags, void **mhandles,
                 void **phandles, void **request);
    int (*iflush)(void *recvComm, int n, void **data, int *sizes, void **mhandles, void **request);
    int (*test)(void *request, int *done, int *sizes);
    int (*closeSend)(void *sendComm);
    int (*closeRecv)(void *recvComm);
    int (*closeListen)(void *listenComm);
    int (*getDeviceMr)(void *comm, void *mhandle, void **dptr_mhandle);
    int (*irecvConsumed)(void *recvComm, int n, void *request);
    int (*makeVDevice)(int *d, struct mk_nccl_vdevice *props);
    int (*finalize)(void *ctx);
    int (*setNetAttr)(void *ctx, struct mk_nccl_net_attr *attr);
};
MK_NCCL_AT(struct mk_nccl_net_v11, init, 8);
MK_NCCL_AT(struct mk_nccl_net_v11, devices, 16);
MK_NCCL_AT(struct mk_nccl_net_v11, getProperties, 24);
MK_NCCL_AT(struct mk_nccl_net_v11, listen, 32);
MK_NCCL_AT(struct mk_nccl_net_v11, connect, 40);
MK_NCCL_AT(struct mk_nccl_net_v11, accept, 48);
MK_NCCL_AT(struct mk_nccl_net_v11, regMr, 56);
MK_NCCL_AT(struct mk_nccl_net_v11, regMrDmaBuf, 64);
MK_NCCL_AT(struct mk_nccl_net_v11, deregMr, 72);
MK_NCCL_AT(struct mk_nccl_net_v11, isend, 80);
MK_NCCL_AT(struct mk_nccl_net_v11, irecv, 88);
MK_NCCL_AT(struct mk_nccl_net_v11, iflush, 96);
MK_NCCL_AT(struct mk_nccl_net_v11, test, 104);
MK_NCCL_AT(struct mk_nccl_net_v11, closeSend, 112);
MK_NCCL_AT(struct mk_nccl_net_v11, closeRecv, 120);
MK_NCCL_AT(struct mk_nccl_net_v11, closeListen, 128);
MK_NCCL_AT(struct mk_nccl_net_v11, getDeviceMr, 136);
MK_NCCL_AT(struct mk_nccl_net_v11, irecvConsumed, 144);
MK_NCCL_AT(struct mk_nccl_net_v11, makeVDevice, 152);
MK_NCCL_AT(struct mk_nccl_net_v11, finalize, 160);
MK_NCCL_AT(struct mk_nccl_net_v11, setNetAttr, 168);
MK_NCCL_SIZE(struct mk_nccl_net_v11, 176);

struct mk_nccl_net_v12 {
    const char *name;
    int (*init)(void **ctx, uint64_t commId, struct mk_nccl_net_config *cfg, mk_nccl_logger_fn log,
                mk_nccl_net_event_fn prof);
    int (*devices)(int *ndev);
    int (*getProperties)(int dev, struct mk_nccl_net_props_v12 *props);
    int (*listen)(void *ctx, int dev, void *handle, void **listenComm);
    int (*connect)(void *ctx, int dev, void *handle, void **sendComm, struct mk_nccl_device_handle **devComm);
    int (*accept)(void *listenComm, void **recvComm, struct mk_nccl_device_handle **devComm);
    int (*regMr)(void *comm, void *data, size_t size, int type, void **mhandle);
    int (*regMrDmaBuf)(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
                       void **mhandle);
    int (*deregMr)(void *comm, void *mhandle);
    int (*isend)(void *sendComm, void *data, size_t size, int tag, void *mhandle, void *phandle,
                 void **request);
    int (*irecv)(void *recvComm, int n, void **data, size_t *sizes, int *tags, void **mhandles,
                 void **phandles, void **request);
    int (*iflush)(void *recvComm, int n, void **data, int *sizes, void **mhandles, void **request);
    int (*test)(void *request, int *done, int *sizes);
    int (*closeSend)(void *sendComm);
    int (*closeRecv)(void *recvComm);
    int (*closeListen)(void *listenComm);
    int (*getDeviceMr)(void *comm, void *mhandle, void **dptr_mhandle);
    int (*irecvConsumed)(void *recvComm, int n, void *request);
    int (*makeVDevice)(int *d, struct mk_nccl_vdevice_v12 *props);
    int (*finalize)(void *ctx);
    int (*setNetAttr)(void *ctx, struct mk_nccl_net_attr *attr);
};
MK_NCCL_AT(struct mk_nccl_net_v12, init, 8);
MK_NCCL_AT(struct mk_nccl_net_v12, devices, 16);
MK_NCCL_AT(struct mk_nccl_net_v12, getProperties, 24);
MK_NCCL_AT(struct mk_nccl_net_v12, listen, 32);
MK_NCCL_AT(struct mk_nccl_net_v12, connect, 40);
MK_NCCL_AT(struct mk_nccl_net_v12, accept, 48);
MK_NCCL_AT(struct mk_nccl_net_v12, regMr, 56);
MK_NCCL_AT(struct mk_nccl_net_v12, regMrDmaBuf, 64);
MK_NCCL_AT(struct mk_nccl_net_v12, deregMr, 72);
MK_NCCL_AT(struct mk_nccl_net_v12, isend, 80);
MK_NCCL_AT(struct mk_nccl_net_v12, irecv, 88);
MK_NCCL_AT(struct mk_nccl_net_v12, iflush, 96);
MK_NCCL_AT(struct mk_nccl_net_v12, test, 104);
MK_NCCL_AT(struct mk_nccl_net_v12, closeSend, 112);
MK_NCCL_AT(struct mk_nccl_net_v12, closeRecv, 120);
MK_NCCL_AT(struct mk_nccl_net_v12, closeListen, 128);
MK_NCCL_AT(struct mk_nccl_net_v12, getDeviceMr, 136);
MK_NCCL_AT(struct mk_nccl_net_v12, irecvConsumed, 144);
MK_NCCL_AT(struct mk_nccl_net_v12, makeVDevice, 152);
MK_NCCL_AT(struct mk_nccl_net_v12, finalize, 160);
MK_NCCL_AT(struct mk_nccl_net_v12, setNetAttr, 168);
MK_NCCL_SIZE(struct mk_nccl_net_v12, 176);
