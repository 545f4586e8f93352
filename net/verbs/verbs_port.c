/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Which device, port and GID. The first port that is up and has an address; on Ethernet RoCE v2 with an IPv4 address
 * is preferred, then v2 with a routable IPv6 one, v2 link-local, v1. */
#include "mk/err.h"
#include "mk/log.h"
#include "mk/param.h"
#include "net/ifname.h"
#include "verbs.h"
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What is asked for: by our own setting, else by NCCL's. */
struct wish {
    const char *hca;
    int gid; /* -1: the best */
};

static int wish_of(const struct mk_settings *s, struct wish *w)
{
    const char *hca = mk_env("NCCL_IB_HCA"), *gid = mk_env("NCCL_IB_GID_INDEX");
    char *end = NULL;
    w->hca = *s->hca ? s->hca : hca;
    long v = s->gid;
    if (v < 0 && gid && *gid) {
        v = strtol(gid, &end, 10);
        if (*end || v < -1)
            return mk_fail(MK_ERR_INVALID, "NET", "NCCL_IB_GID_INDEX=%s is not an index", gid);
    }
    if (v > 65535)
        return mk_fail(MK_ERR_INVALID, "NET", "MK_GID=%ld is not an index", v);
    w->gid = (int)v;
    return 0;
}

static bool is_v4(const union ibv_gid *g)
{
    static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    return !memcmp(g->raw, mapped, sizeof(mapped));
}

static bool is_link_local(const union ibv_gid *g)
{
    return g->raw[0] == 0xfe && (g->raw[1] & 0xc0) == 0x80;
}

/* RoCE v2, by the kernel's own table: the call that tells is younger than the libraries that we want to work with. */
static bool is_v2(const char *device, unsigned port, int index)
{
    char path[160], type[32] = "";
    snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/%u/gid_attrs/types/%d", device, port, index);
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    const bool got = fgets(type, sizeof(type), f) != NULL;
    fclose(f);
    return got && !strncmp(type, "RoCE v2", 7);
}

/* 0: not to be used. */
static int worth(const char *device, unsigned port, int index, const union ibv_gid *g)
{
    static const uint8_t none[16];
    if (!memcmp(g->raw, none, 16))
        return 0;
    if (!is_v2(device, port, index))
        return 1;
    return is_v4(g) ? 4 : is_link_local(g) ? 2 : 3;
}

static bool choose_gid(struct mk_verbs_dev *d, const struct wish *w, uint8_t port,
                       const struct ibv_port_attr *p)
{
    int best = 0;
    if (w->gid >= 0) {
        d->gid_index = w->gid;
        return w->gid < p->gid_tbl_len && !d->lib->query_gid(d->ctx, port, w->gid, &d->gid) &&
               (p->link_layer != IBV_LINK_LAYER_ETHERNET || worth(d->name, port, w->gid, &d->gid));
    }
    if (p->link_layer != IBV_LINK_LAYER_ETHERNET) { /* InfiniBand: reached by its LID */
        d->gid_index = 0;
        return !d->lib->query_gid(d->ctx, port, 0, &d->gid) && p->lid;
    }
    for (int i = 0; i < p->gid_tbl_len; i++) {
        union ibv_gid g;
        if (d->lib->query_gid(d->ctx, port, i, &g))
            continue;
        const int now = worth(d->name, port, i, &g);
        if (now <= best)
            continue;
        best = now;
        d->gid_index = i;
        d->gid = g;
    }
    return best > 0;
}

/* 0: d describes the port. */
static int try_port(struct mk_verbs_dev *d, const struct wish *w, uint8_t port)
{
    struct ibv_port_attr p;
    memset(&p, 0, sizeof(p));
    const int err = d->lib->query_port(d->ctx, port, &p);
    if (err)
        return mk_fail_quiet(MK_ERR_UNSUPPORTED, "verbs: %s port %u: %s", d->name, port, strerror(err));
    if (p.state != IBV_PORT_ACTIVE)
        return mk_fail_quiet(MK_ERR_UNSUPPORTED, "verbs: %s port %u is down", d->name, port);
    if (!choose_gid(d, w, port, &p))
        return w->gid >= 0
                   ? mk_fail_quiet(MK_ERR_UNSUPPORTED, "verbs: %s port %u has no address at GID index %d",
                                   d->name, port, w->gid)
                   : mk_fail_quiet(MK_ERR_UNSUPPORTED, "verbs: %s port %u has no address", d->name, port);
    d->port = port;
    d->mtu = (uint8_t)p.active_mtu;
    d->link_layer = p.link_layer == IBV_LINK_LAYER_ETHERNET;
    d->lid = p.lid;
    d->segment = p.max_msg_sz < 1u << 30 ? p.max_msg_sz : 1u << 30;
    const uint64_t most = (uint64_t)d->segment * MK_VERBS_LIST; /* longer writes go in several, one list */
    d->base.caps.max_message = most < 1u << 30 ? most : 1u << 30;
    return 0;
}

/* The port after `skip` of those that will do; skip counts down. */
static int try_device(struct mk_verbs_dev *d, const struct wish *w, struct ibv_device *dev, int *skip)
{
    struct ibv_device_attr attr;
    int ret = MK_ERR_UNSUPPORTED;
    snprintf(d->name, sizeof(d->name), "%s", d->lib->get_device_name(dev));
    if (!mk_hca_match(w->hca, d->name, 0))
        return mk_fail_quiet(ret, "verbs: %s is not in MK_HCA or NCCL_IB_HCA (%s)", d->name, w->hca);
    if (dev->transport_type != IBV_TRANSPORT_IB)
        return mk_fail_quiet(ret, "verbs: %s is neither InfiniBand nor RoCE: no writes with immediate there",
                             d->name);
    d->ctx = d->lib->open_device(dev);
    if (!d->ctx)
        return mk_fail_quiet(ret, "verbs: %s cannot be opened: %s", d->name, strerror(errno));
    memset(&attr, 0, sizeof(attr));
    const int err = d->lib->query_device(d->ctx, &attr);
    if (err) {
        mk_fail_quiet(ret, "verbs: %s does not describe itself: %s", d->name, strerror(err));
        goto close_device;
    }
    const uint32_t most = attr.max_qp_wr > 0 ? (uint32_t)attr.max_qp_wr : 0;
    d->depth = most < MK_VERBS_DEPTH ? most : MK_VERBS_DEPTH;
    d->recvs = most < MK_VERBS_RECVS ? most : MK_VERBS_RECVS;
    d->max_cqe = attr.max_cqe;
    if (d->depth < MK_VERBS_LIST || d->recvs < 2 * MK_VERBS_REFILL) {
        mk_fail_quiet(ret, "verbs: %s has queues of %u work requests only", d->name, most);
        goto close_device;
    }
    for (uint8_t port = 1; port <= attr.phys_port_cnt; port++) {
        if (!mk_hca_match(w->hca, d->name, port)) {
            mk_fail_quiet(ret, "verbs: %s port %u is not in MK_HCA or NCCL_IB_HCA (%s)", d->name, port,
                          w->hca);
            continue;
        }
        ret = try_port(d, w, port);
        if (!ret && !(*skip)--)
            return 0;
        ret = MK_ERR_UNSUPPORTED;
    }
    if (!attr.phys_port_cnt)
        mk_fail_quiet(ret, "verbs: %s has no port", d->name);
close_device:
    d->lib->close_device(d->ctx);
    d->ctx = NULL;
    return ret;
}

static void say(const struct mk_verbs_dev *d)
{
    char ip[INET6_ADDRSTRLEN] = "";
    if (is_v4(&d->gid))
        inet_ntop(AF_INET, &d->gid.raw[12], ip, sizeof(ip));
    else
        inet_ntop(AF_INET6, d->gid.raw, ip, sizeof(ip));
    MK_INFO("NET", "verbs: device %s port %u, %s, GID %d (%s), MTU %u", d->name, d->port,
            !d->link_layer                          ? "InfiniBand"
            : is_v2(d->name, d->port, d->gid_index) ? "RoCE v2"
                                                    : "RoCE v1",
            d->gid_index, ip, 128u << d->mtu);
}

static int choose(const struct mk_settings *s, struct mk_verbs_dev *d, int skip)
{
    struct wish w = {NULL, -1};
    int n = 0, ret = wish_of(s, &w);
    if (ret)
        return ret;
    ret = MK_ERR_UNSUPPORTED;
    struct ibv_device **list = d->lib->get_device_list(&n);
    if (!list || !n)
        mk_fail_quiet(ret, "verbs: no RDMA device here");
    for (int i = 0; list && i < n && ret; i++)
        ret = try_device(d, &w, list[i], &skip);
    if (list)
        d->lib->free_device_list(list);
    return ret;
}

int mk_verbs_choose(const struct mk_settings *s, struct mk_verbs_dev *d)
{
    const int ret = choose(s, d, 0);
    if (!ret)
        say(d);
    return ret;
}

/* A device a port. */
int mk_verbs_nth(const struct mk_settings *s, int nth, struct mk_settings *out)
{
    struct mk_verbs_dev *d = calloc(1, sizeof(*d));
    if (!d)
        return mk_fail(MK_ERR_NOMEM, "NET", "verbs: no memory for a device");
    *out = *s;
    int ret = mk_verbs_lib_get(&d->lib);
    if (!ret)
        ret = choose(s, d, nth);
    if (!ret) {
        snprintf(out->hca, sizeof(out->hca), "=%s:%u", d->name, d->port);
        d->lib->close_device(d->ctx);
    }
    free(d);
    return ret;
}
