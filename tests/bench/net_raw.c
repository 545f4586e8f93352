/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The bound: the least that a program must do to write with immediate over libfabric. Same provider and interface as
 * the engine's, same window, same batches, one thread; no descriptor to sleep on, no checks, no bookkeeping but the
 * count in flight. */
#include "mk/err.h"
#include "net/ofi/ofi.h"
#include "tests/bench/net.h"
#include <stdlib.h>
#include <string.h>

struct raw {
    struct net_peer *p;
    const struct mk_ofi_lib *lib;
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *tx, *rx;
    struct fid_ep *ep;
    struct fid_mr *mr;
    void *desc;
    fi_addr_t peer;
    uint64_t key, base;
    int batch;
    struct fi_context2 ctx[NET_WINDOW];
};

struct raw_hello {
    uint8_t name[160];
    uint64_t key, base;
};

static char provider[64];

const char *net_raw_provider(void)
{
    return provider;
}

static int open_queues(struct raw *r)
{
    struct fi_av_attr av;
    struct fi_cq_attr cq;
    memset(&av, 0, sizeof(av));
    memset(&cq, 0, sizeof(cq));
    av.type = r->info->domain_attr->av_type;
    cq.wait_obj = FI_WAIT_NONE;
    cq.size = r->info->tx_attr->size;
    cq.format = FI_CQ_FORMAT_CONTEXT;
    int err = fi_av_open(r->domain, &av, &r->av, NULL);
    if (!err)
        err = fi_cq_open(r->domain, &cq, &r->tx, NULL);
    cq.size = 8192;
    cq.format = FI_CQ_FORMAT_DATA;
    if (!err)
        err = fi_cq_open(r->domain, &cq, &r->rx, NULL);
    if (!err)
        err = fi_endpoint(r->domain, r->info, &r->ep, NULL);
    if (!err)
        err = fi_ep_bind(r->ep, &r->av->fid, 0);
    if (!err)
        err = fi_ep_bind(r->ep, &r->tx->fid, FI_TRANSMIT);
    if (!err)
        err = fi_ep_bind(r->ep, &r->rx->fid, FI_RECV);
    return err ? err : fi_enable(r->ep);
}

static int meet(struct raw *r)
{
    struct raw_hello mine, theirs;
    size_t len = sizeof(mine.name);
    memset(&mine, 0, sizeof(mine));
    const int err = fi_getname(&r->ep->fid, mine.name, &len);
    if (err)
        return err;
    mine.key = fi_mr_key(r->mr);
    mine.base = r->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)r->p->mem.addr : 0;
    if (net_swap(r->p, &mine, &theirs, sizeof(mine)))
        return -FI_EIO;
    r->key = theirs.key;
    r->base = theirs.base;
    return fi_av_insert(r->av, theirs.name, 1, &r->peer, 0, NULL) == 1 ? 0 : -FI_EINVAL;
}

static void raw_close(void *impl)
{
    struct raw *r = impl;
    struct fid *all[] = {r->ep ? &r->ep->fid : NULL,        r->av ? &r->av->fid : NULL,
                         r->tx ? &r->tx->fid : NULL,        r->rx ? &r->rx->fid : NULL,
                         r->mr ? &r->mr->fid : NULL,        r->domain ? &r->domain->fid : NULL,
                         r->fabric ? &r->fabric->fid : NULL};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (all[i])
            fi_close(all[i]);
    if (r->info)
        r->lib->freeinfo(r->info);
    free(r);
}

static int raw_open(struct net_peer *p, void **out)
{
    struct raw *r = calloc(1, sizeof(*r));
    bool delivery;
    if (!r)
        return mk_fail(MK_ERR_NOMEM, "CLI", "a raw endpoint");
    r->p = p;
    r->batch = (int)p->s.batch;
    int ret = mk_ofi_lib_get(&r->lib);
    if (!ret)
        ret = mk_ofi_choose(r->lib, &p->s, &r->info, &delivery);
    if (ret) {
        free(r);
        return ret;
    }
    snprintf(provider, sizeof(provider), "%s", r->info->fabric_attr->prov_name);
    int err = r->lib->fabric(r->info->fabric_attr, &r->fabric, NULL);
    if (!err)
        err = fi_domain(r->fabric, r->info, &r->domain, NULL);
    if (!err)
        err = open_queues(r);
    if (!err)
        err =
            fi_mr_reg(r->domain, p->mem.addr, p->mem.size, FI_WRITE | FI_REMOTE_WRITE, 0, 1, 0, &r->mr, NULL);
    if (!err) {
        r->desc = fi_mr_desc(r->mr);
        err = meet(r);
    }
    if (err) {
        ret = mk_fail(MK_ERR_NET, "CLI", "raw %s: %s", provider, r->lib->strerror(-err));
        raw_close(r);
        return ret;
    }
    *out = r;
    return 0;
}

static ssize_t write_one(struct raw *r, uint32_t slot, uint32_t size, bool more)
{
    const uint64_t off = (uint64_t)slot * size;
    const struct iovec iov = {(uint8_t *)r->p->mem.addr + off, size};
    const struct fi_rma_iov rma = {r->base + off, size, r->key};
    const struct fi_msg_rma msg = {&iov, &r->desc, 1, r->peer, &rma, 1, &r->ctx[slot], slot};
    return fi_writemsg(r->ep, &msg, FI_REMOTE_CQ_DATA | FI_COMPLETION | (more ? FI_MORE : 0));
}

/* Entries taken, at most 16; negative: failed. */
static int reap(struct raw *r, struct fid_cq *cq)
{
    struct fi_cq_data_entry entry[16];
    const ssize_t n = fi_cq_read(cq, entry, 16);
    if (n == -FI_EAGAIN)
        return 0;
    if (n >= 0)
        return (int)n;
    return mk_fail(MK_ERR_NET, "CLI", "raw %s: completion queue: %s", provider, r->lib->strerror((int)-n));
}

/* Waits for n entries of a queue, progressing both. */
static int reap_all(struct raw *r, struct fid_cq *cq, uint32_t n)
{
    const uint64_t end = mk_time_ns() + NET_LIMIT_NS;
    for (uint32_t spins = 1; n; spins++) {
        const int got = reap(r, cq);
        if (got < 0 || (uint32_t)got > n)
            return 1;
        n -= (uint32_t)got;
        if (!(spins & 0xffff) && mk_time_ns() > end)
            return 1;
    }
    return 0;
}

static int one(struct raw *r, uint32_t slot, uint32_t size)
{
    const uint64_t end = mk_time_ns() + NET_LIMIT_NS;
    ssize_t ret;
    while ((ret = write_one(r, slot, size, false)) == -FI_EAGAIN && mk_time_ns() < end)
        if (reap(r, r->rx) < 0)
            return 1;
    return ret != 0 || reap_all(r, r->tx, 1);
}

static double raw_stream(void *impl, uint32_t size, uint32_t count)
{
    struct raw *r = impl;
    uint32_t posted = 0, done = 0;
    if (r->p->who == 1)
        return reap_all(r, r->rx, count) || one(r, 0, 8) ? -1 : 0;
    const uint64_t begin = mk_time_ns();
    for (uint32_t spins = 1; done < count; spins++) {
        uint32_t room = NET_WINDOW - (posted - done);
        room = room < count - posted ? room : count - posted;
        while (room) {
            const uint32_t n = room < (uint32_t)r->batch ? room : (uint32_t)r->batch;
            uint32_t i = 0;
            while (i < n && !write_one(r, (posted + i) % NET_WINDOW, size, i + 1 < n))
                i++;
            posted += i;
            room -= i;
            if (i < n)
                break;
        }
        const int got = reap(r, r->tx);
        if (got < 0 || (!(spins & 0xffff) && mk_time_ns() - begin > NET_LIMIT_NS))
            return -1;
        done += (uint32_t)got;
    }
    if (reap_all(r, r->rx, 1))
        return -1;
    return (double)(mk_time_ns() - begin) * 1e-9;
}

static double raw_pingpong(void *impl, uint32_t size, uint32_t count)
{
    struct raw *r = impl;
    const uint64_t begin = mk_time_ns();
    for (uint32_t i = 0; i < count; i++) {
        if (r->p->who == 1 && reap_all(r, r->rx, 1))
            return -1;
        if (one(r, i % NET_WINDOW, size))
            return -1;
        if (r->p->who == 0 && reap_all(r, r->rx, 1))
            return -1;
    }
    return (double)(mk_time_ns() - begin) * 1e-9;
}

const struct net_impl net_raw = {
    .name = "raw",
    .open = raw_open,
    .close = raw_close,
    .stream = raw_stream,
    .pingpong = raw_pingpong,
};
