/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* mkbench plugin: the bounds. One libfabric endpoint, one thread, no bookkeeping but the count in flight: remote writes
 * with immediate, and tagged messages. */
#include "mk/err.h"
#include "net/ofi/ofi.h"
#include "tests/bench/plugin.h"
#include <rdma/fi_tagged.h>
#include <stdlib.h>
#include <string.h>

enum { TAG_DATA = 1, TAG_ANSWER = 2 };

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
    struct fi_context2 out[PLUG_DEPTH + 1], in[PLUG_DEPTH + 1];
};

struct hello {
    uint8_t name[160];
    uint64_t key, base;
};

static char provider[64];

const char *plug_raw_provider(void)
{
    return provider;
}

/* The provider and interface that the engine would take, asked for tagged messages too. */
static int choose(struct raw *r)
{
    struct fi_info *found = NULL, *hints = NULL;
    bool delivery;
    const int ret = mk_ofi_choose(r->lib, &r->p->s, &found, &delivery);
    if (ret)
        return ret;
    hints = r->lib->dupinfo(NULL);
    int err = hints ? 0 : -FI_ENOMEM;
    if (!err) {
        hints->caps = FI_RMA | FI_WRITE | FI_REMOTE_WRITE | FI_TAGGED | FI_SEND | FI_RECV;
        hints->mode = FI_CONTEXT | FI_CONTEXT2;
        hints->ep_attr->type = FI_EP_RDM;
        hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
        hints->domain_attr->threading = FI_THREAD_DOMAIN;
        hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
        hints->domain_attr->name = strdup(found->domain_attr->name);
        hints->fabric_attr->prov_name = strdup(found->fabric_attr->prov_name);
        hints->addr_format = found->addr_format;
        hints->src_addrlen = found->src_addrlen;
        hints->src_addr = found->src_addr ? malloc(found->src_addrlen) : NULL;
        if (hints->src_addr)
            memcpy(hints->src_addr, found->src_addr, found->src_addrlen);
        err = r->lib->getinfo(MK_OFI_API, NULL, NULL, 0, hints, &r->info);
    }
    snprintf(provider, sizeof(provider), "%s", found->fabric_attr->prov_name);
    if (hints)
        r->lib->freeinfo(hints);
    r->lib->freeinfo(found);
    return err ? mk_fail(MK_ERR_NET, "CLI", "raw %s: %s", provider, r->lib->strerror(-err)) : 0;
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
    struct hello mine, theirs;
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

static int raw_open(struct net_peer *p, const char *path, int version, void **out)
{
    struct raw *r = calloc(1, sizeof(*r));
    (void)path, (void)version;
    if (!r)
        return mk_fail(MK_ERR_NOMEM, "CLI", "a raw endpoint");
    r->p = p;
    int ret = mk_ofi_lib_get(&r->lib);
    if (!ret)
        ret = choose(r);
    if (ret) {
        free(r);
        return ret;
    }
    int err = r->lib->fabric(r->info->fabric_attr, &r->fabric, NULL);
    if (!err)
        err = fi_domain(r->fabric, r->info, &r->domain, NULL);
    if (!err)
        err = open_queues(r);
    if (!err)
        err = fi_mr_reg(r->domain, p->mem.addr, p->mem.size, FI_WRITE | FI_REMOTE_WRITE | FI_SEND | FI_RECV,
                        0, 1, 0, &r->mr, NULL);
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

/* ---- posts and completions ---- */

static int reap(struct raw *r, struct fid_cq *cq, struct fi_cq_data_entry *entry, int most)
{
    const ssize_t n = fi_cq_read(cq, entry, (size_t)most);
    if (n == -FI_EAGAIN)
        return 0;
    if (n >= 0)
        return (int)n;
    return mk_fail(MK_ERR_NET, "CLI", "raw %s: completion queue: %s", provider, r->lib->strerror((int)-n));
}

static int reap_all(struct raw *r, struct fid_cq *cq, unsigned n)
{
    struct fi_cq_data_entry entry[PLUG_DEPTH];
    const uint64_t begin = mk_time_ns();
    for (unsigned spins = 0; n;) {
        const int got = reap(r, cq, entry, n < PLUG_DEPTH ? (int)n : (int)PLUG_DEPTH);
        if (got < 0 || plug_late(&spins, begin))
            return 1;
        n -= (unsigned)got;
    }
    return 0;
}

static ssize_t write_one(struct raw *r, unsigned slot, size_t off, size_t size)
{
    const struct iovec iov = {(uint8_t *)r->p->mem.addr + off, size};
    const struct fi_rma_iov rma = {r->base + off, size, r->key};
    const struct fi_msg_rma msg = {&iov, &r->desc, 1, r->peer, &rma, 1, &r->out[slot], slot};
    return fi_writemsg(r->ep, &msg, FI_REMOTE_CQ_DATA | FI_COMPLETION);
}

static ssize_t send_one(struct raw *r, unsigned slot, size_t off, size_t size, uint64_t tag)
{
    return fi_tsend(r->ep, (uint8_t *)r->p->mem.addr + off, size, r->desc, r->peer, tag, &r->out[slot]);
}

static ssize_t recv_one(struct raw *r, unsigned slot, size_t off, size_t size, uint64_t tag)
{
    return fi_trecv(r->ep, (uint8_t *)r->p->mem.addr + off, size, r->desc, FI_ADDR_UNSPEC, tag, 0,
                    &r->in[slot]);
}

/* A post that must succeed; progress meanwhile. */
#define UNTIL(r, post)                                                                                       \
    do {                                                                                                     \
        const uint64_t begin_ = mk_time_ns();                                                                \
        struct fi_cq_data_entry none_;                                                                       \
        unsigned spins_ = 0;                                                                                 \
        ssize_t ret_;                                                                                        \
        while ((ret_ = (post)) == -FI_EAGAIN && !plug_late(&spins_, begin_))                                 \
            (void)fi_cq_read((r)->rx, &none_, 0);                                                            \
        if (ret_)                                                                                            \
            return mk_fail(MK_ERR_NET, "CLI", "raw %s: post: %s", provider, (r)->lib->strerror((int)-ret_)); \
    } while (0)

static int write_now(struct raw *r, size_t off, size_t size)
{
    UNTIL(r, write_one(r, PLUG_DEPTH, off, size));
    return reap_all(r, r->tx, 1);
}

static int send_now(struct raw *r, size_t off, size_t size, uint64_t tag)
{
    UNTIL(r, send_one(r, PLUG_DEPTH, off, size, tag));
    return reap_all(r, r->tx, 1);
}

static int recv_now(struct raw *r, unsigned slot, size_t off, size_t size, uint64_t tag)
{
    UNTIL(r, recv_one(r, slot, off, size, tag));
    return 0;
}

/* ---- patterns ---- */

/* All messages of the sender, `depth` in flight. */
static int pour(struct raw *r, bool tagged, size_t size, unsigned count, unsigned depth)
{
    unsigned posted = 0, done = 0, spins = 0;
    const uint64_t begin = mk_time_ns();
    struct fi_cq_data_entry entry[PLUG_DEPTH];
    while (done < count) {
        while (posted < count && posted - done < depth) {
            const unsigned slot = posted % depth;
            const ssize_t ret = tagged ? send_one(r, slot, slot * size, size, TAG_DATA)
                                       : write_one(r, slot, slot * size, size);
            if (ret == -FI_EAGAIN)
                break;
            if (ret)
                return mk_fail(MK_ERR_NET, "CLI", "raw %s: post: %s", provider, r->lib->strerror((int)-ret));
            posted++;
        }
        const int got = reap(r, r->tx, entry, (int)depth);
        if (got < 0 || plug_late(&spins, begin))
            return 1;
        done += (unsigned)got;
    }
    return 0;
}

static double writes_stream(void *impl, size_t size, unsigned count, unsigned depth)
{
    struct raw *r = impl;
    if (net_step(r->p))
        return -1;
    if (r->p->who == 1)
        return reap_all(r, r->rx, count) || write_now(r, 0, 8) ? -1 : 0;
    const uint64_t begin = mk_time_ns();
    if (pour(r, false, size, count, depth) || reap_all(r, r->rx, 1))
        return -1;
    return (double)(mk_time_ns() - begin) * 1e-9;
}

static double writes_pingpong(void *impl, size_t size, unsigned count)
{
    struct raw *r = impl;
    if (net_step(r->p))
        return -1;
    const uint64_t begin = mk_time_ns();
    for (unsigned i = 0; i < count; i++) {
        if (r->p->who == 1 && reap_all(r, r->rx, 1))
            return -1;
        if (write_now(r, 0, size) || (r->p->who == 0 && reap_all(r, r->rx, 1)))
            return -1;
    }
    return (double)(mk_time_ns() - begin) * 1e-9;
}

/* The receiver of a tagged stream: a receive is posted again as soon as it is done. */
static int drink(struct raw *r, size_t size, unsigned count, unsigned depth, unsigned posted)
{
    unsigned done = 0, spins = 0;
    const uint64_t begin = mk_time_ns();
    struct fi_cq_data_entry entry[PLUG_DEPTH];
    while (done < count) {
        const int got = reap(r, r->rx, entry, (int)depth);
        if (got < 0 || plug_late(&spins, begin))
            return 1;
        for (int i = 0; i < got && posted < count; i++, posted++) {
            const unsigned slot = (unsigned)((struct fi_context2 *)entry[i].op_context - r->in);
            if (recv_now(r, slot, slot * size, size, TAG_DATA))
                return 1;
        }
        done += (unsigned)got;
    }
    return 0;
}

static double tagged_stream(void *impl, size_t size, unsigned count, unsigned depth)
{
    struct raw *r = impl;
    const size_t after = (size_t)PLUG_DEPTH * PLUG_MAX;
    if (r->p->who == 1) {
        unsigned posted = 0;
        for (; posted < depth && posted < count; posted++)
            if (recv_now(r, posted, posted * size, size, TAG_DATA))
                return -1;
        if (net_step(r->p) || drink(r, size, count, depth, posted))
            return -1;
        return send_now(r, after, 8, TAG_ANSWER) ? -1 : 0;
    }
    if (recv_now(r, PLUG_DEPTH, after, 8, TAG_ANSWER) || net_step(r->p))
        return -1;
    const uint64_t begin = mk_time_ns();
    if (pour(r, true, size, count, depth) || reap_all(r, r->rx, 1))
        return -1;
    return (double)(mk_time_ns() - begin) * 1e-9;
}

static double tagged_pingpong(void *impl, size_t size, unsigned count)
{
    struct raw *r = impl;
    const size_t in = (size_t)PLUG_MAX * 4;
    if (recv_now(r, 0, in, size, TAG_DATA) || net_step(r->p))
        return -1;
    const uint64_t begin = mk_time_ns();
    for (unsigned i = 0; i < count; i++) {
        if (r->p->who == 0 && send_now(r, 0, size, TAG_DATA))
            return -1;
        if (reap_all(r, r->rx, 1) || (i + 1 < count && recv_now(r, 0, in, size, TAG_DATA)))
            return -1;
        if (r->p->who == 1 && send_now(r, 0, size, TAG_DATA))
            return -1;
    }
    return (double)(mk_time_ns() - begin) * 1e-9;
}

const struct plug_impl plug_writes = {
    .open = raw_open,
    .close = raw_close,
    .stream = writes_stream,
    .pingpong = writes_pingpong,
};

const struct plug_impl plug_tagged = {
    .open = raw_open,
    .close = raw_close,
    .stream = tagged_stream,
    .pingpong = tagged_pingpong,
};
