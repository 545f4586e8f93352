/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Windows: the memory of the ranks, mapped into this process. */
#include "nic.h"
#include "mk/err.h"
#include "mk/log.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

int nic_say(struct mk_nic_reply *r, int status, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(r->text, sizeof(r->text), fmt, ap);
    va_end(ap);
    r->status = status;
    return status;
}

int nic_use(int gpu)
{
    static _Thread_local int current = -1;
    if (gpu == current)
        return 0;
    const int err = nic.cu->ctx_set(nic.gpu[gpu].ctx);
    current = err ? -1 : gpu;
    return err;
}

static int cuda_says(struct mk_nic_reply *r, int err, const char *what)
{
    const char *name = NULL;
    nic.cu->error_name(err, &name);
    return nic_say(r, MK_ERR_CUDA, "%s: %s", what, name ? name : "unknown error");
}

/* ---- mappings ---- */

static void unmap_vmm(struct nic_mapping *m)
{
    uint64_t off = 0;
    for (uint32_t i = 0; i < m->nseg; i++) {
        nic.cu->vmm_unmap(m->addr + off, m->seg_size[i]);
        off += m->seg_size[i];
    }
    nic.cu->vmm_free(m->addr, m->size);
}

static void mapping_put(struct nic_mapping *m)
{
    if (--m->refs)
        return;
    struct nic_mapping **at = &nic.mappings;
    while (*at != m)
        at = &(*at)->next;
    *at = m->next;
    nic_use(m->gpu < 0 ? 0 : m->gpu);
    if (m->gpu < 0) {
        nic.cu->host_unregister(m->shm.addr);
        mk_shm_release(&m->shm);
    } else if (m->vmm) {
        unmap_vmm(m);
    } else {
        nic.cu->ipc_close(m->addr);
    }
    free(m);
}

static int map_ipc(struct nic_mapping *m, const struct mk_nic_reg *q, struct mk_nic_reply *r)
{
    m->ipc = q->u.ipc.handle;
    m->size = q->u.ipc.size;
    const int err = nic.cu->ipc_open(&m->addr, q->u.ipc.handle, MK_CU_IPC_LAZY);
    return err ? cuda_says(r, err, "cuIpcOpenMemHandle") : 0;
}

static int map_segment(struct nic_mapping *m, uint64_t off, uint64_t size, int fd, struct mk_nic_reply *r)
{
    uint64_t handle;
    int err = nic.cu->vmm_import(&handle, (void *)(intptr_t)fd, MK_CU_HANDLE_FD);
    if (err)
        return cuda_says(r, err, "cuMemImportFromShareableHandle");
    err = nic.cu->vmm_map(m->addr + off, size, 0, handle, 0);
    nic.cu->vmm_release(handle); /* the map holds it */
    return err ? cuda_says(r, err, "cuMemMap") : 0;
}

static int map_fds(struct nic_mapping *m, const struct mk_nic_reg *q, const int *fds, int nfds,
                   struct mk_nic_reply *r)
{
    m->vmm = true;
    if (!q->u.fd.n || q->u.fd.n > MK_NIC_SEGMENTS || (int)q->u.fd.n != nfds)
        return nic_say(r, MK_ERR_INVALID, "%d descriptors for %u segments", nfds, q->u.fd.n);
    for (int i = 0; i < nfds; i++) {
        if (q->u.fd.size[i] > UINT64_MAX / 2 - m->size)
            return nic_say(r, MK_ERR_INVALID, "the segments are too long");
        m->size += q->u.fd.size[i];
    }
    int err = nic.cu->vmm_reserve(&m->addr, m->size, 0, 0, 0);
    if (err)
        return cuda_says(r, err, "cuMemAddressReserve");
    uint64_t off = 0;
    int ret = 0;
    for (int i = 0; i < nfds && !ret; i++) {
        ret = map_segment(m, off, q->u.fd.size[i], fds[i], r);
        if (ret)
            break;
        m->seg_size[m->nseg++] = q->u.fd.size[i];
        off += q->u.fd.size[i];
    }
    for (int g = 0; g < nic.ngpus && !ret; g++) { /* other devices: where they reach it */
        const struct mk_cu_access a = {{MK_CU_LOCATION_DEVICE, nic.gpu[g].device}, MK_CU_ACCESS_READ_WRITE};
        err = nic.cu->vmm_access(m->addr, m->size, &a, 1);
        if (err && g == m->gpu)
            ret = cuda_says(r, err, "cuMemSetAccess");
    }
    if (ret)
        unmap_vmm(m);
    return ret;
}

static int map_host(struct nic_mapping *m, const struct mk_nic_reg *q, struct mk_nic_reply *r)
{
    const int ret = mk_shm_import(&q->u.host, &m->shm);
    if (ret)
        return nic_say(r, ret, "%.150s", mk_last_error());
    const int err = nic.cu->host_register(m->shm.addr, m->shm.size, MK_CU_HOST_PORTABLE | MK_CU_HOST_MAPPED);
    if (err) {
        mk_shm_release(&m->shm);
        return cuda_says(r, err, "cuMemHostRegister");
    }
    m->addr = (mk_cu_ptr)(uintptr_t)m->shm.addr;
    m->size = m->shm.size;
    return 0;
}

static int find_gpu(const struct mk_cu_uuid *uuid)
{
    for (int i = 0; i < nic.ngpus; i++)
        if (!memcmp(uuid, &nic.gpu[i].uuid, sizeof(*uuid)))
            return i;
    return -1;
}

/* An IPC handle can be open once a process: windows of one allocation share it. (An address alone may be that of an
 * allocation that was freed, and whose window is still there.) */
static struct nic_mapping *find_ipc(int client, const struct mk_nic_reg *q, int gpu)
{
    for (struct nic_mapping *m = nic.mappings; m; m = m->next)
        if (m->client == client && m->gpu == gpu && !m->vmm && m->size == q->u.ipc.size &&
            !memcmp(&m->ipc, &q->u.ipc.handle, sizeof(m->ipc)))
            return m;
    return NULL;
}

static int mapping_get(int client, const struct mk_nic_request *q, const int *fds, int nfds,
                       struct nic_mapping **out, struct mk_nic_reply *r)
{
    const struct mk_nic_reg *reg = &q->u.reg;
    const bool host = q->op == MK_NIC_REG_HOST;
    const int gpu = host ? -1 : find_gpu(&reg->gpu);
    if (!host && gpu < 0)
        return nic_say(r, MK_ERR_UNSUPPORTED, "the memory is on a GPU that mknic does not serve");
    if (!host && nic_lanes_open(client, gpu))
        return nic_say(r, MK_ERR_CUDA, "%.150s", mk_last_error());
    struct nic_mapping *m = q->op == MK_NIC_REG_IPC ? find_ipc(client, reg, gpu) : NULL;
    if (m) {
        m->refs++;
        *out = m;
        return 0;
    }
    m = calloc(1, sizeof(*m));
    if (!m)
        return nic_say(r, MK_ERR_NOMEM, "mknic is out of memory");
    m->client = client;
    m->gpu = gpu;
    m->refs = 1;
    nic_use(host ? 0 : gpu);
    const int ret = host                      ? map_host(m, reg, r)
                    : q->op == MK_NIC_REG_IPC ? map_ipc(m, reg, r)
                                              : map_fds(m, reg, fds, nfds, r);
    if (ret) {
        free(m);
        return ret;
    }
    m->next = nic.mappings;
    nic.mappings = m;
    *out = m;
    return 0;
}

/* ---- windows and grants ---- */

uint64_t nic_grant_add(int client, uint32_t window, uint32_t *grant)
{
    struct nic_client *c = &nic.client[client];
    for (uint32_t i = 0; i < MK_NIC_GRANTS; i++) {
        const uint32_t at = (c->hint + i) % MK_NIC_GRANTS;
        if (at <= MK_NIC_BOUNCE || c->grant[at])
            continue;
        c->hint = at + 1;
        *grant = at;
        __atomic_store_n(&c->grant[at], nic.window[window].generation << 16 | window, __ATOMIC_SEQ_CST);
        return 1;
    }
    return 0;
}

static struct nic_window *window_new(int client, struct nic_mapping *m, uint32_t *number)
{
    for (uint32_t i = 0; i < NIC_WINDOWS; i++) {
        const uint32_t at = (nic.window_hint + i) % NIC_WINDOWS;
        struct nic_window *w = &nic.window[at];
        if (w->state != NIC_FREE || __atomic_load_n(&w->jobs, __ATOMIC_SEQ_CST))
            continue;
        nic.window_hint = at + 1;
        if (at >= nic.window_top)
            nic.window_top = at + 1;
        w->generation = ++nic.generations;
        if (getrandom(&w->token, sizeof(w->token), 0) != sizeof(w->token))
            w->token = mk_time_ns() * 0x9e3779b97f4a7c15ull;
        w->owner = client;
        w->mapping = m;
        w->gpu = m->gpu;
        w->waiter = false;
        *number = at;
        return w;
    }
    return NULL;
}

static void window_revoke(struct nic_window *w)
{
    __atomic_store_n(&w->live, 0, __ATOMIC_SEQ_CST);
    w->state = NIC_REVOKED;
    nic.revoked++;
}

int nic_win_reg(int client, const struct mk_nic_request *q, int *fds, int nfds, struct mk_nic_reply *r)
{
    struct nic_mapping *m = NULL;
    uint32_t number;
    int ret = mapping_get(client, q, fds, nfds, &m, r);
    for (int i = 0; i < nfds; i++)
        close(fds[i]);
    if (ret)
        return ret;
    if (q->u.reg.off > m->size || q->u.reg.len > m->size - q->u.reg.off) {
        ret = nic_say(r, MK_ERR_INVALID, "the range ends beyond its memory");
        goto put_mapping;
    }
    struct nic_window *w = window_new(client, m, &number);
    if (!w || !nic_grant_add(client, number, &r->grant)) {
        ret = nic_say(r, MK_ERR_NOMEM, "mknic: too many windows");
        goto put_mapping;
    }
    w->addr = m->addr + q->u.reg.off;
    w->len = q->u.reg.len;
    w->state = NIC_LIVE;
    __atomic_store_n(&w->live, w->generation, __ATOMIC_SEQ_CST);
    r->window = number;
    r->token = w->token;
    r->gpu = w->gpu;
    r->len = w->len;
    return 0;
put_mapping:
    mapping_put(m);
    return ret;
}

int nic_win_import(int client, const struct mk_nic_request *q, struct mk_nic_reply *r)
{
    const struct nic_window *w = q->grant < NIC_WINDOWS ? &nic.window[q->grant] : NULL;
    if (!w || w->state != NIC_LIVE || w->token != q->token)
        return nic_say(r, MK_ERR_PEER, "the peer has taken this memory back");
    if (w->gpu >= 0 && nic_lanes_open(client, w->gpu))
        return nic_say(r, MK_ERR_CUDA, "%.150s", mk_last_error());
    if (!nic_grant_add(client, q->grant, &r->grant))
        return nic_say(r, MK_ERR_NOMEM, "mknic: too many windows of one client");
    r->window = q->grant;
    r->gpu = w->gpu;
    r->len = w->len;
    return 0;
}

bool nic_win_drop(int client, const struct mk_nic_request *q, struct mk_nic_reply *r)
{
    struct nic_client *c = &nic.client[client];
    const uint64_t g = q->grant < MK_NIC_GRANTS ? c->grant[q->grant] : 0;
    if (!g) {
        nic_say(r, MK_ERR_INVALID, "no such grant");
        return true;
    }
    struct nic_window *w = &nic.window[g & 0xffff];
    __atomic_store_n(&c->grant[q->grant], 0, __ATOMIC_SEQ_CST);
    if (w->owner != client || w->state != NIC_LIVE || w->generation != g >> 16)
        return true;
    window_revoke(w);
    w->waiter = true;
    w->waiter_seq = q->seq;
    return false;
}

void nic_win_drop_client(int client)
{
    for (uint32_t i = 0; i < nic.window_top; i++) {
        struct nic_window *w = &nic.window[i];
        if (w->state == NIC_FREE || w->owner != client)
            continue;
        w->waiter = false;
        if (w->state == NIC_LIVE)
            window_revoke(w);
        w->mapping->client = -1; /* the slot's next client shares nothing with it */
    }
}

int nic_win_sweep(void (*answer)(int client, uint32_t seq))
{
    int waiting = 0;
    for (uint32_t i = 0; nic.revoked && i < nic.window_top; i++) {
        struct nic_window *w = &nic.window[i];
        if (w->state != NIC_REVOKED)
            continue;
        if (__atomic_load_n(&w->jobs, __ATOMIC_SEQ_CST)) {
            waiting++;
            continue;
        }
        mapping_put(w->mapping);
        w->mapping = NULL;
        w->state = NIC_FREE;
        nic.revoked--;
        if (w->waiter)
            answer(w->owner, w->waiter_seq);
        w->waiter = false;
    }
    return waiting;
}
