/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* NCCL's net plugin: the functions behind all tables, and the newest tables (v12, v11). The message layer below is
 * mk/p2p.h; here are only NCCL's calling rules:
 *
 *   connect, accept, isend, irecv   never block: success and NULL for "call again"; irecv finds 0x1 in *request
 *   close functions                 never fail
 *   finalize                        NULL is nobody
 *
 * Threads: NCCL's service thread sets up and closes, its progress thread sends, receives and tests. */
#include "face.h"
#include "mk/err.h"
#include "mk/log.h"
#include "mk/p2p.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define CTX_MAGIC 0x78746b6du

static_assert((int)MK_P2P_HANDLE == (int)MK_NCCL_HANDLE_BYTES, "handle");
static_assert((int)MK_P2P_REQUESTS >= (int)MK_NCCL_MAX_REQUESTS, "requests in flight");

static int bad_argument(const char *what)
{
    MK_WARN("NET", "%s", what);
    return MK_NCCL_INVALID_ARGUMENT;
}

/* ---- devices ---- */

int mk_nccl_devices(int *ndev)
{
    if (!ndev)
        return bad_argument("devices: no place for the number");
    *ndev = mk_nccl_count();
    return MK_NCCL_SUCCESS;
}

int mk_nccl_props(int dev, struct mk_nccl_net_props_v12 *props)
{
    const struct mk_p2p_info *i;
    const struct mk_nccl_vdevice_v12 *of;
    if (!props || !mk_nccl_device(dev, &i, &of))
        return bad_argument("getProperties: no such device, or no place for the properties");
    memset(props, 0, sizeof(*props));
    props->name = (char *)i->name;
    props->pciPath = i->pci_path[0] ? (char *)i->pci_path : NULL;
    props->guid = i->guid;
    props->ptrSupport = MK_NCCL_PTR_HOST | (i->caps->gpu_memory ? MK_NCCL_PTR_CUDA : 0) |
                        (i->caps->dmabuf ? MK_NCCL_PTR_DMABUF : 0);
    props->regIsGlobal = 0;
    props->forceFlush = 0;
    props->speed = i->mbps;
    props->port = i->port;
    props->latency = 0;
    props->maxComms = 1 << 16;
    props->maxRecvs = MK_P2P_RECVS;
    props->netDeviceType = MK_NCCL_NET_DEVICE_HOST;
    props->netDeviceVersion = 0;
    props->vProps = *of;
    props->maxP2pBytes = i->max_message;
    props->maxCollBytes = i->max_message;
    props->maxMultiRequestSize = 1;
    props->railId = MK_NCCL_UNDEF;
    props->planeId = MK_NCCL_UNDEF;
    return MK_NCCL_SUCCESS;
}

static int make_vdevice_v12(int *dev, struct mk_nccl_vdevice_v12 *props)
{
    if (!dev || !props)
        return bad_argument("makeVDevice: no list, or no place for the number");
    return mk_nccl_merge(props->ndevs, props->devs, dev);
}

int mk_nccl_make_vdevice(int *dev, struct mk_nccl_vdevice *props)
{
    if (!dev || !props || props->ndevs > 4)
        return bad_argument("makeVDevice: no list, a list longer than 4, or no place for the number");
    return mk_nccl_merge(props->ndevs, props->devs, dev);
}

/* ---- connections ---- */

int mk_nccl_listen(int dev, void *handle, void **listen_comm)
{
    struct mk_p2p *p = mk_nccl_device(dev, NULL, NULL);
    struct mk_p2p_listener *l = NULL;
    if (!p || !handle || !listen_comm)
        return bad_argument("listen: no such device, or no place for the handle");
    const int ret = mk_p2p_listen(p, handle, &l);
    if (ret)
        return mk_nccl_result(ret);
    mk_nccl_hold(1);
    *listen_comm = l;
    return MK_NCCL_SUCCESS;
}

int mk_nccl_connect(int dev, void *handle, void **send_comm)
{
    struct mk_p2p *p = mk_nccl_device(dev, NULL, NULL);
    struct mk_p2p_comm *c = NULL;
    if (!p || !handle || !send_comm)
        return bad_argument("connect: no such device, or no handle");
    *send_comm = NULL;
    const int ret = mk_p2p_connect(p, handle, &c);
    if (ret == MK_ERR_AGAIN)
        return MK_NCCL_SUCCESS;
    if (ret)
        return mk_nccl_result(ret);
    mk_nccl_hold(1);
    *send_comm = c;
    return MK_NCCL_SUCCESS;
}

int mk_nccl_accept(void *listen_comm, void **recv_comm)
{
    struct mk_p2p_comm *c = NULL;
    if (!listen_comm || !recv_comm)
        return bad_argument("accept: no listener");
    *recv_comm = NULL;
    const int ret = mk_p2p_accept(listen_comm, &c);
    if (ret == MK_ERR_AGAIN)
        return MK_NCCL_SUCCESS;
    if (ret)
        return mk_nccl_result(ret);
    mk_nccl_hold(1);
    *recv_comm = c;
    return MK_NCCL_SUCCESS;
}

int mk_nccl_close_comm(void *comm)
{
    if (comm) {
        mk_p2p_comm_close(comm);
        mk_nccl_hold(-1);
    }
    return MK_NCCL_SUCCESS;
}

int mk_nccl_close_listen(void *listen_comm)
{
    if (listen_comm) {
        mk_p2p_listen_close(listen_comm);
        mk_nccl_hold(-1);
    }
    return MK_NCCL_SUCCESS;
}

/* ---- memory ---- */

int mk_nccl_reg(void *comm, void *data, size_t size, int type, void **mhandle)
{
    struct mk_p2p_mr *m = NULL;
    if (!comm || !mhandle)
        return bad_argument("regMr: no comm, or no place for the handle");
    *mhandle = NULL;
    const struct mk_caps *caps = mk_p2p_comm_caps(comm);
    if ((type != MK_NCCL_PTR_HOST && type != MK_NCCL_PTR_CUDA))
        return bad_argument("regMr: neither host nor CUDA memory");
    if (type == MK_NCCL_PTR_CUDA && !caps->gpu_memory)
        return bad_argument("regMr: this device takes host memory only");
    const int ret = mk_p2p_reg(comm, data, size, &m);
    if (!ret && type == MK_NCCL_PTR_CUDA && !mk_p2p_on_gpu(m)) {
        mk_p2p_dereg(comm, m);
        return bad_argument("regMr: what is said to be CUDA memory is not on a GPU");
    }
    *mhandle = m;
    return mk_nccl_result(ret);
}

int mk_nccl_reg_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **mhandle)
{
    struct mk_p2p_mr *m = NULL;
    if (!comm || !mhandle)
        return bad_argument("regMrDmaBuf: no comm, or no place for the handle");
    *mhandle = NULL;
    if (type != MK_NCCL_PTR_CUDA || fd < 0)
        return bad_argument("regMrDmaBuf: not CUDA memory, or no descriptor of it");
    const int ret = mk_p2p_reg_dmabuf(comm, data, size, offset, fd, &m);
    *mhandle = m;
    return mk_nccl_result(ret);
}

int mk_nccl_dereg(void *comm, void *mhandle)
{
    if (comm && mhandle)
        mk_p2p_dereg(comm, mhandle);
    return MK_NCCL_SUCCESS;
}

/* ---- messages ---- */

int mk_nccl_isend(void *send_comm, void *data, size_t size, int tag, void *mhandle, void **request)
{
    struct mk_p2p_req *r = NULL;
    if (!send_comm || !request)
        return bad_argument("isend: no comm, or no place for the request");
    *request = NULL;
    const int ret = mk_p2p_send(send_comm, data, size, tag, mhandle, &r);
    if (ret && ret != MK_ERR_AGAIN)
        return mk_nccl_result(ret);
    *request = r;
    return MK_NCCL_SUCCESS;
}

int mk_nccl_irecv(void *recv_comm, int n, void **data, size_t *sizes, int *tags, void **mhandles,
                  void **request)
{
    struct mk_p2p_mr *mr[MK_P2P_RECVS] = {NULL};
    struct mk_p2p_req *r = NULL;
    if (!request)
        return bad_argument("irecv: no place for the request");
    *request = NULL; /* whatever hint came in it */
    if (!recv_comm || n < 1 || n > MK_P2P_RECVS || !data || !sizes || !tags)
        return bad_argument("irecv: no comm, or not 1 to 8 buffers");
    for (int i = 0; i < n && mhandles; i++)
        mr[i] = mhandles[i];
    const int ret = mk_p2p_recv(recv_comm, n, data, sizes, tags, mr, &r);
    if (ret && ret != MK_ERR_AGAIN)
        return mk_nccl_result(ret);
    *request = r;
    return MK_NCCL_SUCCESS;
}

/* Done when it returns: a card needs microseconds for it. Where it is mknic that writes GPU memory, what was received is
 * visible without: its copy was complete before we heard of it. */
int mk_nccl_iflush(void *recv_comm, int n, void **data, int *sizes, void **mhandles, void **request)
{
    int ret = 0;
    (void)data;
    if (request)
        *request = NULL;
    if (!recv_comm || !mhandles)
        return MK_NCCL_SUCCESS;
    int i = 0;
    while (i < n && !(mhandles[i] && (!sizes || sizes[i] > 0) && mk_p2p_on_gpu(mhandles[i])))
        i++;
    if (i < n) /* one answers for all that the card wrote before */
        ret = mk_p2p_flush(recv_comm, mhandles[i]);
    return mk_nccl_result(ret);
}

int mk_nccl_test(void *request, int *done, int *sizes)
{
    size_t got[MK_P2P_RECVS];
    bool is = false;
    if (!request || !done)
        return bad_argument("test: no request");
    *done = 0;
    for (int i = 0; i < MK_P2P_RECVS; i++)
        got[i] = SIZE_MAX;
    const int ret = mk_p2p_test(request, &is, got);
    if (ret || !is)
        return mk_nccl_result(ret);
    for (int i = 0; sizes && i < MK_P2P_RECVS && got[i] != SIZE_MAX; i++)
        sizes[i] = got[i] > INT_MAX ? INT_MAX : (int)got[i];
    *done = 1;
    return MK_NCCL_SUCCESS;
}

/* ---- v12 and v11 ---- */

/* One communicator's context. */
struct ctx {
    uint32_t magic;
    int traffic_class;
};

static int net_init(void **ctx, uint64_t comm_id, struct mk_nccl_net_config *cfg, mk_nccl_logger_fn log,
                    mk_nccl_net_event_fn prof)
{
    (void)comm_id, (void)prof;
    struct ctx *c = ctx ? calloc(1, sizeof(*c)) : NULL;
    if (!c)
        return MK_NCCL_SYSTEM_ERROR;
    c->magic = CTX_MAGIC;
    c->traffic_class = cfg ? cfg->trafficClass : MK_NCCL_UNDEF;
    mk_nccl_open(log);
    *ctx = c;
    return MK_NCCL_SUCCESS;
}

static int net_finalize(void *ctx)
{
    struct ctx *c = ctx;
    if (!c || c->magic != CTX_MAGIC)
        return MK_NCCL_SUCCESS;
    c->magic = 0;
    free(c);
    mk_nccl_close();
    return MK_NCCL_SUCCESS;
}

static int net_listen(void *ctx, int dev, void *handle, void **listen_comm)
{
    (void)ctx;
    return mk_nccl_listen(dev, handle, listen_comm);
}

static int net_connect(void *ctx, int dev, void *handle, void **send_comm,
                       struct mk_nccl_device_handle **dev_comm)
{
    (void)ctx;
    if (dev_comm)
        *dev_comm = NULL;
    return mk_nccl_connect(dev, handle, send_comm);
}

static int net_accept(void *listen_comm, void **recv_comm, struct mk_nccl_device_handle **dev_comm)
{
    if (dev_comm)
        *dev_comm = NULL;
    return mk_nccl_accept(listen_comm, recv_comm);
}

static int net_isend(void *send_comm, void *data, size_t size, int tag, void *mhandle, void *phandle,
                     void **request)
{
    (void)phandle;
    return mk_nccl_isend(send_comm, data, size, tag, mhandle, request);
}

static int net_irecv(void *recv_comm, int n, void **data, size_t *sizes, int *tags, void **mhandles,
                     void **phandles, void **request)
{
    (void)phandles;
    return mk_nccl_irecv(recv_comm, n, data, sizes, tags, mhandles, request);
}

static int props_v11(int dev, struct mk_nccl_net_props_v11 *props)
{
    struct mk_nccl_net_props_v12 all;
    const int ret = props ? mk_nccl_props(dev, &all) : MK_NCCL_INVALID_ARGUMENT;
    if (ret)
        return ret;
    memset(props, 0, sizeof(*props));
    MK_NCCL_PROPS_V9(props, &all);
    props->maxMultiRequestSize = all.maxMultiRequestSize;
    return MK_NCCL_SUCCESS;
}

/* Left out: device offload, hints. NCCL knows each as "not there". */
const struct mk_nccl_net_v12 ncclNetPlugin_v12 = {
    .name = MK_NCCL_NAME,
    .init = net_init,
    .devices = mk_nccl_devices,
    .getProperties = mk_nccl_props,
    .listen = net_listen,
    .connect = net_connect,
    .accept = net_accept,
    .regMr = mk_nccl_reg,
    .regMrDmaBuf = mk_nccl_reg_dmabuf,
    .deregMr = mk_nccl_dereg,
    .isend = net_isend,
    .irecv = net_irecv,
    .iflush = mk_nccl_iflush,
    .test = mk_nccl_test,
    .closeSend = mk_nccl_close_comm,
    .closeRecv = mk_nccl_close_comm,
    .closeListen = mk_nccl_close_listen,
    .getDeviceMr = NULL,
    .irecvConsumed = NULL,
    .makeVDevice = make_vdevice_v12,
    .finalize = net_finalize,
    .setNetAttr = NULL,
};

const struct mk_nccl_net_v11 ncclNetPlugin_v11 = {
    .name = MK_NCCL_NAME,
    .init = net_init,
    .devices = mk_nccl_devices,
    .getProperties = props_v11,
    .listen = net_listen,
    .connect = net_connect,
    .accept = net_accept,
    .regMr = mk_nccl_reg,
    .regMrDmaBuf = mk_nccl_reg_dmabuf,
    .deregMr = mk_nccl_dereg,
    .isend = net_isend,
    .irecv = net_irecv,
    .iflush = mk_nccl_iflush,
    .test = mk_nccl_test,
    .closeSend = mk_nccl_close_comm,
    .closeRecv = mk_nccl_close_comm,
    .closeListen = mk_nccl_close_listen,
    .getDeviceMr = NULL,
    .irecvConsumed = NULL,
    .makeVDevice = mk_nccl_make_vdevice,
    .finalize = net_finalize,
    .setNetAttr = NULL,
};
