/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Net tables v10 to v6 over the functions of net.c. NCCL initialises these once a process and never says finalize. */
#include "face.h"
#include "mk/p2p.h"
#include <string.h>

/* ---- init ---- */

static int init_v6(mk_nccl_logger_fn log)
{
    mk_nccl_open(log);
    return MK_NCCL_SUCCESS;
}

static int init_v10(mk_nccl_logger_fn log, mk_nccl_net_event_fn prof)
{
    (void)prof;
    return init_v6(log);
}

/* ---- properties ---- */

#define PROPS(v, fill)                                                                                       \
    static int props_v##v(int dev, struct mk_nccl_net_props_v##v *props)                                     \
    {                                                                                                        \
        struct mk_nccl_net_props_v12 all;                                                                    \
        const int ret = props ? mk_nccl_props(dev, &all) : MK_NCCL_INVALID_ARGUMENT;                         \
        if (ret)                                                                                             \
            return ret;                                                                                      \
        memset(props, 0, sizeof(*props));                                                                    \
        fill(props, &all);                                                                                   \
        return MK_NCCL_SUCCESS;                                                                              \
    }
PROPS(10, MK_NCCL_PROPS_V9)
PROPS(9, MK_NCCL_PROPS_V9)
PROPS(8, MK_NCCL_PROPS_V8)
PROPS(7, MK_NCCL_PROPS_V7)
PROPS(6, MK_NCCL_PROPS_V6)
#undef PROPS

/* ---- connections ---- */

static int connect_v7(int dev, void *handle, void **send_comm, struct mk_nccl_device_handle **dev_comm)
{
    if (dev_comm)
        *dev_comm = NULL;
    return mk_nccl_connect(dev, handle, send_comm);
}

static int connect_v10(int dev, struct mk_nccl_net_config *cfg, void *handle, void **send_comm,
                       struct mk_nccl_device_handle **dev_comm)
{
    (void)cfg;
    return connect_v7(dev, handle, send_comm, dev_comm);
}

static int accept_v7(void *listen_comm, void **recv_comm, struct mk_nccl_device_handle **dev_comm)
{
    if (dev_comm)
        *dev_comm = NULL;
    return mk_nccl_accept(listen_comm, recv_comm);
}

/* ---- memory ---- */

static int reg_v6(void *comm, void *data, int size, int type, void **mhandle)
{
    if (size < 0)
        return MK_NCCL_INVALID_ARGUMENT;
    return mk_nccl_reg(comm, data, (size_t)size, type, mhandle);
}

/* ---- messages ---- */

static int isend_v10(void *send_comm, void *data, size_t size, int tag, void *mhandle, void *phandle,
                     void **request)
{
    (void)phandle;
    return mk_nccl_isend(send_comm, data, size, tag, mhandle, request);
}

static int irecv_v10(void *recv_comm, int n, void **data, size_t *sizes, int *tags, void **mhandles,
                     void **phandles, void **request)
{
    (void)phandles;
    return mk_nccl_irecv(recv_comm, n, data, sizes, tags, mhandles, request);
}

static int isend_v6(void *send_comm, void *data, int size, int tag, void *mhandle, void **request)
{
    if (size < 0)
        return MK_NCCL_INVALID_ARGUMENT;
    return mk_nccl_isend(send_comm, data, (size_t)size, tag, mhandle, request);
}

static int irecv_v6(void *recv_comm, int n, void **data, int *sizes, int *tags, void **mhandles,
                    void **request)
{
    size_t wide[MK_P2P_RECVS] = {0};
    for (int i = 0; sizes && i < n && i < MK_P2P_RECVS; i++) {
        if (sizes[i] < 0)
            return MK_NCCL_INVALID_ARGUMENT;
        wide[i] = (size_t)sizes[i];
    }
    return mk_nccl_irecv(recv_comm, n, data, sizes ? wide : NULL, tags, mhandles, request);
}

/* ---- tables ---- */

const struct mk_nccl_net_v10 ncclNetPlugin_v10 = {
    .name = MK_NCCL_NAME,
    .init = init_v10,
    .devices = mk_nccl_devices,
    .getProperties = props_v10,
    .listen = mk_nccl_listen,
    .connect = connect_v10,
    .accept = accept_v7,
    .regMr = mk_nccl_reg,
    .regMrDmaBuf = mk_nccl_reg_dmabuf,
    .deregMr = mk_nccl_dereg,
    .isend = isend_v10,
    .irecv = irecv_v10,
    .iflush = mk_nccl_iflush,
    .test = mk_nccl_test,
    .closeSend = mk_nccl_close_comm,
    .closeRecv = mk_nccl_close_comm,
    .closeListen = mk_nccl_close_listen,
    .getDeviceMr = NULL,
    .irecvConsumed = NULL,
    .makeVDevice = mk_nccl_make_vdevice,
};

const struct mk_nccl_net_v9 ncclNetPlugin_v9 = {
    .name = MK_NCCL_NAME,
    .init = init_v6,
    .devices = mk_nccl_devices,
    .getProperties = props_v9,
    .listen = mk_nccl_listen,
    .connect = connect_v7,
    .accept = accept_v7,
    .regMr = mk_nccl_reg,
    .regMrDmaBuf = mk_nccl_reg_dmabuf,
    .deregMr = mk_nccl_dereg,
    .isend = mk_nccl_isend,
    .irecv = mk_nccl_irecv,
    .iflush = mk_nccl_iflush,
    .test = mk_nccl_test,
    .closeSend = mk_nccl_close_comm,
    .closeRecv = mk_nccl_close_comm,
    .closeListen = mk_nccl_close_listen,
    .getDeviceMr = NULL,
    .irecvConsumed = NULL,
    .makeVDevice = mk_nccl_make_vdevice,
};

const struct mk_nccl_net_v8 ncclNetPlugin_v8 = {
    .name = MK_NCCL_NAME,
    .init = init_v6,
    .devices = mk_nccl_devices,
    .getProperties = props_v8,
    .listen = mk_nccl_listen,
    .connect = connect_v7,
    .accept = accept_v7,
    .regMr = mk_nccl_reg,
    .regMrDmaBuf = mk_nccl_reg_dmabuf,
    .deregMr = mk_nccl_dereg,
    .isend = isend_v6,
    .irecv = irecv_v6,
    .iflush = mk_nccl_iflush,
    .test = mk_nccl_test,
    .closeSend = mk_nccl_close_comm,
    .closeRecv = mk_nccl_close_comm,
    .closeListen = mk_nccl_close_listen,
    .getDeviceMr = NULL,
    .irecvConsumed = NULL,
};

const struct mk_nccl_net_v7 ncclNetPlugin_v7 = {
    .name = MK_NCCL_NAME,
    .init = init_v6,
    .devices = mk_nccl_devices,
    .getProperties = props_v7,
    .listen = mk_nccl_listen,
    .connect = connect_v7,
    .accept = accept_v7,
    .regMr = reg_v6,
    .regMrDmaBuf = mk_nccl_reg_dmabuf,
    .deregMr = mk_nccl_dereg,
    .isend = isend_v6,
    .irecv = irecv_v6,
    .iflush = mk_nccl_iflush,
    .test = mk_nccl_test,
    .closeSend = mk_nccl_close_comm,
    .closeRecv = mk_nccl_close_comm,
    .closeListen = mk_nccl_close_listen,
    .getDeviceMr = NULL,
    .irecvConsumed = NULL,
};

const struct mk_nccl_net_v6 ncclNetPlugin_v6 = {
    .name = MK_NCCL_NAME,
    .init = init_v6,
    .devices = mk_nccl_devices,
    .getProperties = props_v6,
    .listen = mk_nccl_listen,
    .connect = mk_nccl_connect,
    .accept = mk_nccl_accept,
    .regMr = reg_v6,
    .regMrDmaBuf = mk_nccl_reg_dmabuf,
    .deregMr = mk_nccl_dereg,
    .isend = isend_v6,
    .irecv = irecv_v6,
    .iflush = mk_nccl_iflush,
    .test = mk_nccl_test,
    .closeSend = mk_nccl_close_comm,
    .closeRecv = mk_nccl_close_comm,
    .closeListen = mk_nccl_close_listen,
};
