/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Requests to mknic: hello, registration, import. The only part of the transport that calls CUDA: in mk_loop_gpu_export. */
#include "loop_gpu.h"
#include "mk/err.h"
#include "mk/log.h"
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* ---- asking ---- */

static int send_request(struct mk_loop_nic *n, const struct mk_nic_request *q, const int *fds, int nfds)
{
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int) * MK_NIC_SEGMENTS)];
    } control;
    struct iovec io;
    struct msghdr m;
    memset(&m, 0, sizeof(m));
    memset(&control, 0, sizeof(control));
    io.iov_base = (void *)(uintptr_t)q;
    io.iov_len = sizeof(*q);
    m.msg_iov = &io;
    m.msg_iovlen = 1;
    if (nfds) {
        m.msg_control = &control;
        m.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)nfds);
        struct cmsghdr *h = CMSG_FIRSTHDR(&m);
        h->cmsg_level = SOL_SOCKET;
        h->cmsg_type = SCM_RIGHTS;
        h->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)nfds);
        memcpy(CMSG_DATA(h), fds, sizeof(int) * (size_t)nfds);
    }
    return sendmsg(n->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof(*q) ? 0 : -1;
}

/* The second request does not wait again, since others wait for this thread. */
static int no_use(struct mk_loop_dev *d, const struct mk_loop_nic *n, int ret, const char *what)
{
    if (d->nic == n)
        mk_loop_nic_lost(d, what);
    return mk_fail(ret, "NET", "loop: mknic (process %d) %s", n->pid, what);
}

/* One request, one reply, at most MK_TIMEOUT. */
static int ask(struct mk_loop_dev *d, struct mk_loop_nic *n, struct mk_nic_request *q, const int *fds,
               int nfds, struct mk_nic_reply *r)
{
    const uint64_t end = mk_time_ns() + n->timeout_ns;
    if (n->dead)
        return mk_fail(MK_ERR_NET, "NET", "loop: %s", n->text);
    q->magic = MK_NIC_MAGIC;
    q->seq = ++n->seq;
    if (send_request(n, q, fds, nfds))
        return no_use(d, n, MK_ERR_NET, "has ended");
    for (;;) {
        const uint64_t now = mk_time_ns();
        struct pollfd p = {.fd = n->fd, .events = POLLIN};
        if (now >= end)
            return no_use(d, n, MK_ERR_TIMEOUT, "does not answer");
        if (poll(&p, 1, (int)((end - now) / 1000000 + 1)) <= 0)
            continue;
        const ssize_t got = recv(n->fd, r, sizeof(*r), MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            continue;
        if (got != sizeof(*r) || r->magic != MK_NIC_MAGIC)
            return no_use(d, n, MK_ERR_NET, "has ended");
        if (r->seq != q->seq)
            continue; /* the answer to one that came too late */
        r->text[sizeof(r->text) - 1] = 0;
        return r->status ? mk_fail(r->status, "NET", "loop: mknic: %s", r->text) : 0;
    }
}

/* ---- coming and going ---- */

static int say_hello(struct mk_loop_dev *d, struct mk_loop_nic *n)
{
    struct mk_nic_request q;
    struct mk_nic_reply r;
    int ret = mk_shm_create("mkernel nic jobs", sizeof(struct mk_nic_segment), &n->shm);
    if (ret)
        return ret;
    n->seg = n->shm.addr;
    n->seg->magic = MK_NIC_MAGIC;
    memset(&q, 0, sizeof(q));
    q.op = MK_NIC_HELLO;
    q.u.hello.version = MK_NIC_VERSION;
    q.u.hello.pid = getpid();
    q.u.hello.host = d->host;
    mk_shm_ref(&n->shm, &q.u.hello.segment);
    mk_shm_ref(&d->shm, &q.u.hello.bell);
    q.u.hello.bell_off = offsetof(struct mk_loop_segment, bell);
    ret = ask(d, n, &q, NULL, 0, &r);
    if (!ret)
        ret = mk_shm_import(&r.doorbell, &n->door);
    if (ret)
        return ret;
    if (r.doorbell_off > n->door.size - sizeof(struct mk_bell) || r.doorbell_off & 7)
        return mk_fail(MK_ERR_PEER, "NET", "loop: mknic's doorbell is not in its memory");
    n->doorbell = (struct mk_bell *)((char *)n->door.addr + r.doorbell_off);
    n->id = r.nic;
    n->pid = r.pid;
    return 0;
}

/* One that is stopped accepts nobody: its queue is full some time, and a plain connect would wait for ever. */
static int dial(struct mk_loop_nic *n, const struct sockaddr_un *a)
{
    const uint64_t end = mk_time_ns() + n->timeout_ns;
    const struct timespec nap = {0, 1000000};
    n->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    while (n->fd >= 0 && connect(n->fd, (const struct sockaddr *)a, sizeof(*a))) {
        if (errno != EAGAIN || mk_time_ns() > end)
            return -1;
        nanosleep(&nap, NULL);
    }
    return n->fd < 0 ? -1 : 0;
}

void mk_loop_nic_open(struct mk_loop_dev *d, const char *path, double timeout)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct mk_loop_nic *n = calloc(1, sizeof(*n));
    const char *why;
    if (!n || strlen(path) >= sizeof(a.sun_path)) {
        MK_WARN("NET", "loop: no GPU memory: MK_NIC=%s is too long", path);
        free(n);
        return;
    }
    snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
    n->timeout_ns = (uint64_t)(timeout * 1e9);
    n->nfree = MK_NIC_RING;
    n->free_bounces = (1u << MK_NIC_BOUNCES) - 1;
    for (uint32_t i = 0; i < MK_NIC_RING; i++) {
        n->free_job[i] = (uint16_t)(MK_NIC_RING - 1 - i);
        n->job[i].pos = UINT64_MAX;
    }
    if (dial(n, &a)) {
        MK_WARN("NET", "loop: no GPU memory: mknic at MK_NIC=%s: %s", path, strerror(errno));
    } else if (!say_hello(d, n)) {
        n->cu = mk_cuda_open(&why);
        d->nic = n;
        MK_INFO("NET", "loop: GPU memory through mknic, process %d%s%s", n->pid, n->cu ? "" : ", but ",
                n->cu ? "" : why);
        return;
    }
    if (n->fd >= 0)
        close(n->fd);
    mk_shm_release(&n->door);
    mk_shm_release(&n->shm);
    free(n);
}

void mk_loop_nic_close(struct mk_loop_dev *d)
{
    struct mk_loop_nic *n = d->nic;
    if (!n)
        return;
    close(n->fd);
    mk_shm_release(&n->door);
    mk_shm_release(&n->shm);
    free(n);
    d->nic = NULL;
}

/* ---- memory ---- */

/* Is this GPU memory of our process? */
static bool on_gpu(const struct mk_loop_nic *n, const void *addr)
{
    unsigned type = 0;
    return !n->cu->pointer_attribute(&type, MK_CU_POINTER_MEMORY_TYPE, (mk_cu_ptr)(uintptr_t)addr) &&
           type == MK_CU_MEMORY_DEVICE;
}

static int refused(int err, const char *what)
{
    mk_cuda_fail(err, what);
    return MK_ERR_UNSUPPORTED;
}

/* Memory of cuMemAlloc, cudaMalloc. */
static int export_ipc(const struct mk_loop_nic *n, struct mk_loop_export *x)
{
    const mk_cu_ptr p = (mk_cu_ptr)(uintptr_t)x->base.addr;
    struct mk_nic_reg *reg = &x->q.u.reg;
    mk_cu_ptr base;
    size_t size;
    int err = n->cu->mem_range(&base, &size, p);
    if (!err)
        err = n->cu->ipc_get(&reg->u.ipc.handle, base);
    if (err)
        return refused(err, "loop: the GPU memory has no handle for other processes");
    x->q.op = MK_NIC_REG_IPC;
    reg->off = p - base;
    reg->u.ipc.size = size;
    return 0;
}

/* One allocation of cuMemCreate at `at`: a descriptor of it. */
static int export_fd(const struct mk_loop_nic *n, mk_cu_ptr at, int *fd, mk_cu_ptr *base, size_t *size)
{
    uint64_t handle;
    int err = n->cu->mem_range(base, size, at);
    if (!err)
        err = n->cu->vmm_retain(&handle, (void *)(uintptr_t)at);
    if (err)
        return refused(err, "loop: GPU memory of neither cudaMalloc nor cuMemCreate cannot be exported");
    err = n->cu->vmm_export(fd, handle, MK_CU_HANDLE_FD, 0);
    n->cu->vmm_release(handle);
    return err ? refused(err, "loop: GPU memory made by cuMemCreate without a handle of type "
                              "POSIX_FILE_DESCRIPTOR cannot be exported")
               : 0;
}

static int export_vmm(const struct mk_loop_nic *n, struct mk_loop_export *x)
{
    const mk_cu_ptr begin = (mk_cu_ptr)(uintptr_t)x->base.addr, end = begin + x->base.len;
    struct mk_nic_reg *reg = &x->q.u.reg;
    mk_cu_ptr base = begin;
    size_t size = 0;
    x->q.op = MK_NIC_REG_FD;
    for (mk_cu_ptr at = begin; at < end; at = base + size) {
        if (x->nfds == MK_NIC_SEGMENTS)
            return mk_fail(MK_ERR_UNSUPPORTED, "NET", "loop: %zu bytes of GPU memory in more than %d pieces",
                           x->base.len, MK_NIC_SEGMENTS);
        const int ret = export_fd(n, at, &x->fds[x->nfds], &base, &size);
        if (ret)
            return ret;
        if (!x->nfds)
            reg->off = begin - base;
        reg->u.fd.size[x->nfds++] = size;
    }
    reg->u.fd.n = (uint32_t)x->nfds;
    return 0;
}

static void close_fds(struct mk_loop_export *x)
{
    while (x->nfds)
        close(x->fds[--x->nfds]);
}

static int which_gpu(const struct mk_loop_nic *n, mk_cu_ptr p, struct mk_cu_uuid *uuid)
{
    int ordinal = 0, device = 0;
    int err = n->cu->pointer_attribute(&ordinal, MK_CU_POINTER_DEVICE, p);
    if (!err)
        err = n->cu->device_get(&device, ordinal);
    return err ? err : n->cu->device_uuid(uuid, device);
}

int mk_loop_gpu_export(struct mk_loop_dev *d, struct mk_loop_export *x)
{
    const struct mk_loop_nic *n = d->nic;
    const mk_cu_ptr p = (mk_cu_ptr)(uintptr_t)x->base.addr;
    unsigned legacy = 0, managed = 0;
    void *had = NULL, *own = NULL;
    if (!n || !n->cu || !x->base.len || !on_gpu(n, x->base.addr))
        return 0;
    x->q.u.reg.len = x->base.len;
    n->cu->pointer_attribute(&managed, MK_CU_POINTER_MANAGED, p);
    if (managed)
        return mk_fail(MK_ERR_UNSUPPORTED, "NET", "loop: managed memory cannot be exported to mknic");
    int err = which_gpu(n, p, &x->q.u.reg.gpu);
    if (err)
        return mk_cuda_fail(err, "loop: the device of GPU memory");
    n->cu->ctx_current(&had);
    if (!had && !n->cu->pointer_attribute(&own, MK_CU_POINTER_CONTEXT, p) && own)
        n->cu->ctx_set(own);
    n->cu->pointer_attribute(&legacy, MK_CU_POINTER_IPC_CAPABLE, p);
    const int ret = legacy & 0xff ? export_ipc(n, x) : export_vmm(n, x);
    if (!had && own)
        n->cu->ctx_set(NULL);
    x->gpu = !ret;
    if (ret)
        close_fds(x);
    return ret;
}

void mk_loop_gpu_export_free(struct mk_loop_export *x)
{
    close_fds(x);
    free(x);
}

int mk_loop_gpu_reg(struct mk_loop_dev *d, struct mk_loop_mr *mr, const struct mk_loop_export *x)
{
    struct mk_loop_nic *n = d->nic;
    struct mk_nic_request q = x->q;
    struct mk_nic_reply r;
    const int ret = ask(d, n, &q, x->fds, x->nfds, &r);
    if (ret)
        return ret;
    n->used = true;
    mr->base.gpu = true;
    mr->grant = r.grant;
    mr->gpu = r.gpu;
    mr->key.kind = MK_LOOP_GPU;
    mr->key.u.gpu.nic = n->id;
    mr->key.u.gpu.token = r.token;
    mr->key.u.gpu.window = r.window;
    mr->key.u.gpu.pad = 0;
    return 0;
}

void mk_loop_gpu_host(struct mk_loop_dev *d, const struct mk_shm_ref *ref, uint64_t off, uint64_t len,
                      uint32_t *grant)
{
    struct mk_nic_request q;
    struct mk_nic_reply r;
    *grant = 0;
    if (!d->nic || d->nic->dead)
        return;
    memset(&q, 0, sizeof(q));
    q.op = MK_NIC_REG_HOST;
    q.u.reg.off = off;
    q.u.reg.len = len;
    q.u.reg.u.host = *ref;
    if (!ask(d, d->nic, &q, NULL, 0, &r))
        *grant = r.grant;
}

int mk_loop_gpu_import(struct mk_loop_dev *d, const struct mk_loop_key *k, struct mk_loop_rmem *rmem)
{
    struct mk_nic_request q;
    struct mk_nic_reply r;
    if (!d->nic)
        return mk_fail(MK_ERR_UNSUPPORTED, "NET",
                       "loop: the peer's memory is on a GPU, and this process has no mknic (MK_NIC)");
    if (k->u.gpu.nic != d->nic->id)
        return mk_fail(MK_ERR_INVALID, "NET", "loop: the peer's GPU memory belongs to another mknic");
    memset(&q, 0, sizeof(q));
    q.op = MK_NIC_IMPORT;
    q.grant = k->u.gpu.window;
    q.token = k->u.gpu.token;
    const int ret = ask(d, d->nic, &q, NULL, 0, &r);
    if (ret)
        return ret;
    if (k->len > r.len) {
        mk_loop_gpu_drop(d, r.grant);
        return mk_fail(MK_ERR_INVALID, "NET", "loop: the key names bytes beyond the peer's memory");
    }
    d->nic->used = true;
    rmem->grant = r.grant;
    rmem->gpu = r.gpu;
    rmem->window = k->u.gpu.window;
    return 0;
}

void mk_loop_gpu_drop(struct mk_loop_dev *d, uint32_t grant)
{
    struct mk_nic_request q;
    struct mk_nic_reply r;
    if (!grant || !d->nic || d->nic->dead)
        return;
    memset(&q, 0, sizeof(q));
    q.op = MK_NIC_DROP;
    q.grant = grant;
    mk_loop_gpu_ring(d);
    ask(d, d->nic, &q, NULL, 0, &r); /* what failed has been logged; the memory is not ours to hold back */
}
