/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* ofi: any network that libfabric knows, by remote writes with immediate.
 *
 *   ofi_lib.c       opens libfabric at run time
 *   ofi_provider.c  which provider, on which interface
 *   ofi_post.c      post and poll
 *   ofi_shm.c       closing, where peers in the same process share the memory
 *   ofi.c           device, connections, memory, sleeping, the table
 *
 * One reliable endpoint a device; a connection is an address in its address vector, and the network's own connection
 * is made by the first write. No provider of a host moves bytes by itself: a device must be polled also where
 * somebody only receives. */
#include "ofi.h"
#include "mk/err.h"
#include "mk/log.h"
#include "mk/param.h"
#include "net/rlimits.h"
#include "net/ports.h"
#include <errno.h>
#include <assert.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#define RX_ENTRIES 8192u
/* How long wait sleeps where the provider has nothing to sleep on: the second after some in a row without a find. */
#define NAP_NS 50000u
#define NAP_LONG_NS 200000u
#define NAPS_SHORT 20u

static int fail(const struct mk_ofi_dev *d, const char *what, ssize_t err)
{
    return mk_fail(MK_ERR_NET, "NET", "ofi: %s: %s: %s", d->info->fabric_attr->prov_name, what,
                   d->lib->strerror((int)-err));
}

/* A card's provider pins. */
static int fail_reg(const struct mk_ofi_dev *d, ssize_t err)
{
    char text[MK_LIMITS_TEXT] = "";
    if (!d->base.caps.late_writes)
        mk_limits_memlock_text(text);
    return mk_fail(MK_ERR_NET, "NET", "ofi: %s: registering memory: %s%s%s", d->info->fabric_attr->prov_name,
                   d->lib->strerror((int)-err), text[0] ? "; " : "", text);
}

static void close_fid(struct fid *f)
{
    if (f)
        fi_close(f);
}

void mk_ofi_destroy(struct mk_ofi_dev *d)
{
    if (d->ep)
        close_fid(&d->ep->fid);
    if (d->av)
        close_fid(&d->av->fid);
    if (d->tx)
        close_fid(&d->tx->fid);
    if (d->rx)
        close_fid(&d->rx->fid);
    if (d->bare)
        close_fid(&d->bare->fid);
    for (struct mk_ofi_block *b = d->blocks, *next; b; b = next) {
        next = b->next;
        if (b->mr)
            close_fid(&b->mr->fid);
        free(b);
    }
    if (d->domain)
        close_fid(&d->domain->fid);
    if (d->fabric)
        close_fid(&d->fabric->fid);
    for (struct mk_ofi_peer *p = d->peers, *next; p; p = next) {
        next = p->next;
        free(p);
    }
    if (d->info)
        d->lib->freeinfo(d->info);
    if (d->wake_fd >= 0)
        close(d->wake_fd);
    free(d);
}

static void ofi_close(struct mk_dev *dev)
{
    struct mk_ofi_dev *d = (struct mk_ofi_dev *)dev;
    if (!d)
        return;
    if (d->shm)
        mk_ofi_shm_close(d);
    else
        mk_ofi_destroy(d);
}

static int open_cq(struct mk_ofi_dev *d, enum fi_cq_format format, size_t size, enum fi_wait_obj wait,
                   struct fid_cq **out)
{
    struct fi_cq_attr attr;
    int fd;
    memset(&attr, 0, sizeof(attr));
    attr.size = size;
    attr.format = format;
    attr.wait_obj = wait;
    int err = fi_cq_open(d->domain, &attr, out, NULL);
    if (err && wait != FI_WAIT_NONE) { /* shm: nothing to sleep on */
        attr.wait_obj = FI_WAIT_NONE;
        err = fi_cq_open(d->domain, &attr, out, NULL);
    }
    if (err)
        return fail(d, "opening a completion queue", err);
    if (attr.wait_obj != FI_WAIT_NONE && !fi_control(&(*out)->fid, FI_GETWAIT, &fd)) {
        d->sleep_fid[d->nsleep] = &(*out)->fid;
        d->sleep_fd[d->nsleep++] = fd;
    }
    return 0;
}

/* The descriptor of a queue says "the network has something, or an entry is there". With provider net of libfabric
 * 1.17 it says the latter for ever after the first entry, since fi_trywait does not clear it. So we sleep there on
 * a queue that never gets an entry: what is left is the network. (Not so elsewhere: ofi_rxm's queues know of the
 * network only when they are bound to the endpoint.) */
static int open_queues(struct mk_ofi_dev *d)
{
    const bool bare = !strcmp(d->info->fabric_attr->prov_name, "net");
    const enum fi_wait_obj wait = bare ? FI_WAIT_NONE : FI_WAIT_FD;
    int ret = open_cq(d, FI_CQ_FORMAT_CONTEXT, d->info->tx_attr->size, wait, &d->tx);
    if (!ret)
        ret = open_cq(d, FI_CQ_FORMAT_DATA, RX_ENTRIES, wait, &d->rx);
    if (!ret && bare)
        ret = open_cq(d, FI_CQ_FORMAT_CONTEXT, 1, FI_WAIT_FD, &d->bare);
    if (!ret && !bare && d->nsleep != 2)
        d->nsleep = 0; /* one alone is not enough */
    return ret;
}

static int try_endpoint(struct mk_ofi_dev *d)
{
    int err = fi_endpoint(d->domain, d->info, &d->ep, NULL);
    if (err) {
        d->ep = NULL;
        return err;
    }
    if ((err = fi_ep_bind(d->ep, &d->av->fid, 0)) || (err = fi_ep_bind(d->ep, &d->tx->fid, FI_TRANSMIT)) ||
        (err = fi_ep_bind(d->ep, &d->rx->fid, FI_RECV)) || (err = fi_enable(d->ep))) {
        fi_close(&d->ep->fid);
        d->ep = NULL;
    }
    return err;
}

/* Where the endpoint is a listener of TCP, its port comes from MK_PORTS. Providers say in several ways that one is in
 * use, so all are tried. */
static int open_endpoint(struct mk_ofi_dev *d, const struct mk_settings *s)
{
    struct sockaddr *a = d->info->src_addr;
    const bool inet = a && (a->sa_family == AF_INET || a->sa_family == AF_INET6) &&
                      (d->info->addr_format == FI_SOCKADDR_IN || d->info->addr_format == FI_SOCKADDR_IN6 ||
                       d->info->addr_format == FI_SOCKADDR);
    struct mk_ports ports;
    const int ret = mk_ports_of(s, &ports);
    if (ret)
        return ret;
    if (!inet || !ports.low) {
        const int err = try_endpoint(d);
        return err ? fail(d, "opening the endpoint", err) : 0;
    }
    const uint32_t start = (uint32_t)mk_time_ns() / 1000;
    int err = 0;
    for (uint32_t n = 0; n < mk_ports_count(&ports); n++) {
        mk_ports_set(a, mk_ports_nth(&ports, start, n));
        err = try_endpoint(d);
        if (!err)
            return 0;
    }
    return mk_fail(MK_ERR_SYSTEM, "NET", "ofi: %s: no free port of MK_PORTS=%s for the endpoint: %s",
                   d->info->fabric_attr->prov_name, s->ports, d->lib->strerror(-err));
}

static int open_objects(struct mk_ofi_dev *d, const struct mk_settings *s)
{
    struct fi_av_attr av;
    memset(&av, 0, sizeof(av));
    av.type = d->info->domain_attr->av_type;
    int err = d->lib->fabric(d->info->fabric_attr, &d->fabric, NULL);
    if (err)
        return fail(d, "opening the fabric", err);
    err = fi_domain(d->fabric, d->info, &d->domain, NULL);
    if (err)
        return fail(d, "opening the domain", err);
    err = fi_av_open(d->domain, &av, &d->av, NULL);
    if (err)
        return fail(d, "opening the address vector", err);
    const int ret = open_queues(d);
    return ret ? ret : open_endpoint(d, s);
}

static void fill_caps(bool delivery, struct mk_ofi_dev *d)
{
    const struct fi_info *i = d->info;
    struct mk_caps *caps = &d->base.caps;
    const uint64_t waw = FI_ORDER_WAW | FI_ORDER_RMA_WAW;
    snprintf(caps->transport, sizeof(caps->transport), "ofi");
    snprintf(caps->provider, sizeof(caps->provider), "%s", i->fabric_attr->prov_name);
    caps->ordered = (i->tx_attr->msg_order & waw) && i->ep_attr->max_order_waw_size > 0;
    caps->target_progress = false;
    /* shm (libfabric 1.17) has one write with FI_DELIVERY_COMPLETE under way to a peer at a time, and one of no bytes
     * never ends. Its plain completion means that the source has been read: what is left stands in the peer's memory. */
    caps->delivery_complete = delivery && strcmp(caps->provider, "shm");
    /* Software providers look a key up when a write begins, and then go on writing; only cards take it back. */
    caps->late_writes = strcmp(caps->provider, "efa") && strncmp(caps->provider, "verbs", 5);
    caps->head = i->tx_attr->rma_iov_limit >= 1 && i->tx_attr->iov_limit >= 2;
    caps->immediate_bits = i->domain_attr->cq_data_size >= 4 ? 32 : 0;
    caps->max_batch = 64;
    caps->depth = i->tx_attr->size < MK_OFI_DEPTH ? (unsigned)i->tx_attr->size : MK_OFI_DEPTH;
    caps->inline_size = 8;
    caps->max_message = i->ep_attr->max_msg_size;
    /* efa's size is that of messages; what it does with writes could not be tried, so they go from registered words */
    d->inject = i->tx_attr->inject_size >= 8 && strcmp(caps->provider, "efa") != 0;
    d->mr_mode = (uint64_t)i->domain_attr->mr_mode;
}

static int ofi_open(const struct mk_settings *s, struct mk_dev **out)
{
    bool delivery = false;
    struct mk_ofi_dev *d = calloc(1, sizeof(*d));
    if (!d)
        return mk_fail(MK_ERR_NOMEM, "NET", "ofi: no memory for a device");
    d->base.ops = &mk_ofi_ops;
    d->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int ret = d->wake_fd < 0 ? mk_fail(MK_ERR_SYSTEM, "NET", "ofi: eventfd: %s", strerror(errno)) : 0;
    if (!ret && !(d->host = mk_host_id()))
        ret = MK_ERR_SYSTEM;
    if (!ret)
        ret = mk_ofi_lib_get(&d->lib);
    if (!ret)
        ret = mk_ofi_choose(d->lib, s, &d->info, &delivery);
    if (!ret)
        ret = open_objects(d, s);
    if (!ret)
        fill_caps(delivery, d);
    if (!ret && !strcmp(d->base.caps.provider, "shm"))
        ret = mk_ofi_shm_add(d);
    if (ret) {
        mk_ofi_destroy(d);
        return ret;
    }
    /* keys that we choose are not to be guessed by a stranger's old message */
    if (getrandom(&d->next_key, 4, GRND_NONBLOCK) != 4)
        d->next_key = mk_time_ns() & 0xffffffffu;
    MK_INFO("NET", "ofi: libfabric %u.%u, provider %s, domain %s%s%s", FI_MAJOR(d->lib->version),
            FI_MINOR(d->lib->version), d->base.caps.provider, d->info->domain_attr->name,
            d->base.caps.ordered ? ", ordered" : "", !d->nsleep ? ", no descriptor to sleep on" : "");
    *out = &d->base;
    return 0;
}

/* ---- connections ---- */

static int conn_open(struct mk_dev *dev, struct mk_net_addr *mine, struct mk_conn **out)
{
    static_assert(sizeof(struct mk_ofi_addr) <= sizeof(mine->bytes), "the address fits");
    struct mk_ofi_dev *d = (struct mk_ofi_dev *)dev;
    struct mk_ofi_addr a;
    size_t len = sizeof(a.name);
    memset(&a, 0, sizeof(a));
    const int err = fi_getname(&d->ep->fid, a.name, &len);
    if (err || len > sizeof(a.name))
        return fail(d, "asking for the endpoint's address", err ? err : -FI_ETOOSMALL);
    if (d->nblocks <= d->nconns) {
        const int ret = mk_ofi_block_add(d);
        if (ret)
            return ret;
    }
    struct mk_ofi_conn *c = calloc(1, sizeof(*c));
    if (!c)
        return mk_fail(MK_ERR_NOMEM, "NET", "ofi: no memory for a connection");
    c->base.dev = dev;
    c->dev = d;
    d->nconns++;
    a.magic = MK_OFI_MAGIC;
    a.len = (uint32_t)len;
    a.host = d->host;
    snprintf(a.provider, sizeof(a.provider), "%s", d->base.caps.provider);
    memset(mine, 0, sizeof(*mine));
    memcpy(mine->bytes, &a, sizeof(a));
    *out = &c->base;
    return 0;
}

static int insert_peer(struct mk_ofi_dev *d, const struct mk_ofi_addr *a, fi_addr_t *out)
{
    for (const struct mk_ofi_peer *p = d->peers; p; p = p->next)
        if (p->len == a->len && !memcmp(p->name, a->name, a->len)) {
            *out = p->addr;
            return 0;
        }
    struct mk_ofi_peer *p = calloc(1, sizeof(*p));
    if (!p)
        return mk_fail(MK_ERR_NOMEM, "NET", "ofi: no memory for a peer");
    const int n = fi_av_insert(d->av, a->name, 1, &p->addr, 0, NULL);
    if (n != 1) {
        free(p);
        return fail(d, "inserting a peer's address", n < 0 ? n : -FI_EINVAL);
    }
    p->len = a->len;
    memcpy(p->name, a->name, a->len);
    mk_ofi_shm_lock(d);
    p->next = d->peers;
    d->peers = p;
    mk_ofi_shm_unlock(d);
    *out = p->addr;
    return 0;
}

static int conn_connect(struct mk_conn *conn, const struct mk_net_addr *peer)
{
    struct mk_ofi_conn *c = (struct mk_ofi_conn *)conn;
    const char *mine = c->dev->base.caps.provider;
    struct mk_ofi_addr a;
    if (c->connected)
        return 0;
    memcpy(&a, peer->bytes, sizeof(a));
    a.provider[sizeof(a.provider) - 1] = 0;
    if (a.magic != MK_OFI_MAGIC || a.len > sizeof(a.name))
        return mk_fail(MK_ERR_PEER, "NET", "ofi: the peer's address is not one of the ofi transport");
    if (strcmp(a.provider, mine))
        return mk_fail(MK_ERR_MISMATCH, "NET", "ofi: the peer uses provider %s, this process %s", a.provider,
                       mine);
    if (!strcmp(mine, "shm") && a.host != c->dev->host)
        return mk_fail(MK_ERR_UNSUPPORTED, "NET", "ofi: provider shm reaches processes of this host only");
    const int ret = insert_peer(c->dev, &a, &c->addr);
    if (ret)
        return ret;
    c->connected = true;
    return 0;
}

/* Operations in flight go on, and end in silence: their contexts stay in the pool until then. */
static void conn_close(struct mk_conn *conn)
{
    struct mk_ofi_conn *c = (struct mk_ofi_conn *)conn;
    if (!c)
        return;
    mk_ofi_forget(c);
    c->dev->nconns--;
    free(c);
}

/* ---- memory ---- */

static int reg(struct mk_dev *dev, void *addr, size_t len, const struct mk_shm *shm, struct mk_mr **out)
{
    struct mk_ofi_dev *d = (struct mk_ofi_dev *)dev;
    (void)shm;
    struct mk_ofi_mr *m = calloc(1, sizeof(*m));
    if (!m)
        return mk_fail(MK_ERR_NOMEM, "NET", "ofi: no memory for a registration");
    const int err =
        fi_mr_reg(d->domain, addr, len, FI_WRITE | FI_REMOTE_WRITE, 0, d->next_key++, 0, &m->mr, NULL);
    if (err) {
        free(m);
        return fail_reg(d, err);
    }
    m->base.dev = dev;
    m->base.addr = addr;
    m->base.len = len;
    m->desc = fi_mr_desc(m->mr);
    m->key.magic = MK_OFI_MAGIC;
    m->key.key = fi_mr_key(m->mr);
    m->key.base = d->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)addr : 0;
    m->key.len = len;
    *out = &m->base;
    return 0;
}

static void dereg(struct mk_mr *mr)
{
    struct mk_ofi_mr *m = (struct mk_ofi_mr *)mr;
    if (!m)
        return;
    close_fid(&m->mr->fid);
    free(m);
}

static void key(const struct mk_mr *mr, struct mk_net_key *out)
{
    static_assert(sizeof(struct mk_ofi_key) <= sizeof(out->bytes), "the key fits");
    memset(out, 0, sizeof(*out));
    memcpy(out->bytes, &((const struct mk_ofi_mr *)mr)->key, sizeof(struct mk_ofi_key));
}

static int import(struct mk_conn *conn, const struct mk_net_key *k, struct mk_rmem **out)
{
    struct mk_ofi_key key_of;
    memcpy(&key_of, k->bytes, sizeof(key_of));
    if (key_of.magic != MK_OFI_MAGIC)
        return mk_fail(MK_ERR_INVALID, "NET", "ofi: this is not a key of the ofi transport");
    struct mk_ofi_rmem *r = calloc(1, sizeof(*r));
    if (!r)
        return mk_fail(MK_ERR_NOMEM, "NET", "ofi: no memory for an imported key");
    r->base.conn = conn;
    r->base.len = key_of.len;
    r->key = key_of.key;
    r->addr = key_of.base;
    ((struct mk_ofi_conn *)conn)->any_key = r->key;
    ((struct mk_ofi_conn *)conn)->any_addr = r->addr;
    *out = &r->base;
    return 0;
}

static void unimport(struct mk_rmem *r)
{
    free(r);
}

/* ---- sleeping ---- */

static void ofi_wait(struct mk_dev *dev, uint64_t ns)
{
    struct mk_ofi_dev *d = (struct mk_ofi_dev *)dev;
    struct pollfd fds[3] = {
        {d->wake_fd, POLLIN, 0}, {d->sleep_fd[0], POLLIN, 0}, {d->sleep_fd[1], POLLIN, 0}};
    uint64_t count;
    if (d->ended_first)
        return;
    /* entries that are there already need not make the descriptors readable */
    if (d->nsleep && fi_trywait(d->fabric, d->sleep_fid, d->nsleep))
        return;
    if (!d->nsleep) {
        d->naps = d->found ? 0 : d->naps + 1;
        const uint64_t nap = d->naps < NAPS_SHORT ? NAP_NS : NAP_LONG_NS;
        ns = nap < ns ? nap : ns;
        d->found = false;
    }
    const struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    if (ppoll(fds, 1 + (nfds_t)d->nsleep, &t, NULL) > 0 && fds[0].revents && read(d->wake_fd, &count, 8) != 8)
        return;
}

/* Stays until a wait has seen it. */
static void ofi_wake(struct mk_dev *dev)
{
    const uint64_t one = 1;
    if (write(((struct mk_ofi_dev *)dev)->wake_fd, &one, 8) != 8)
        return; /* the counter is full: it is awake */
}

const struct mk_net_ops mk_ofi_ops = {
    .name = "ofi",
    .open = ofi_open,
    .close = ofi_close,
    .nth = mk_ofi_nth,
    .conn_open = conn_open,
    .conn_connect = conn_connect,
    .conn_close = conn_close,
    .cut = mk_ofi_cut,
    .cut_breaks = mk_ofi_cut_breaks,
    .reg = reg,
    .dereg = dereg,
    .key = key,
    .import = import,
    .unimport = unimport,
    .post = mk_ofi_post,
    .poll = mk_ofi_poll,
    .wait = ofi_wait,
    .wake = ofi_wake,
};
