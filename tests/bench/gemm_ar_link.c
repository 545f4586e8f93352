/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What the link alone holds, for all ranks at once, and how long a small write takes: writes of a chunk each, a window of
 * them under way, by an engine that this thread drives, to the rail peers on the other nodes in turn; from and to the memory that the operator's chunks
 * come from (GPU memory where the transport reaches it); then one at a time, there and back. No kernel runs meanwhile. */
#include "mk/dev/flag.h"
#include "mk/err.h"
#include "mk/net.h"
#include "mk/param.h"
#include "plugin/cli/cli.h"
#include "tests/bench/gemm_ar.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define WINDOW 32 /* writes under way, over all links */
#define TIME_NS 40e6
#define LEAST 1024 /* bytes of a write */
#define LIMIT_NS 10000000000ull
#define CONNECT_NS 10000000000ull
#define WARM 20 /* there and back, not counted; then */
#define PINGS 101
#define SMALL 64 /* bytes of each */

struct card {
    struct mk_net_addr addr[AR_NODES]; /* of the link to that node */
    struct mk_net_key key[2];          /* flags, payload */
    uint32_t base;
};

struct hold {
    struct ar_bench *b;
    struct mk_engine *e;
    struct mk_shm flags, shared;
    gpu_ptr gpu;
    struct mk_mr *mr[2];
    struct mk_notes *notes;
    uint32_t step[AR_NODES];
    struct mk_link *link[AR_NODES];
    struct mk_rmem *rmem[AR_NODES];
    uint32_t chunk;
    uint64_t writes, posted, done;
    int status;
    int met; /* all ranks are through (release, acquire) */
};

static int failed(const struct hold *h, const char *what)
{
    mk_cli_say("rank %d: the link alone: %s: %s", h->b->rank, what, mk_last_error());
    return 1;
}

static void on_done(void *ctx, struct mk_link *l, uint64_t id, int status)
{
    struct hold *h = ctx;
    (void)l;
    (void)id;
    h->done++;
    if (status)
        h->status = status;
}

/* Payload: WINDOW chunks to send from, then WINDOW for each node to receive in. */
static int memory(struct hold *h)
{
    const size_t bytes = (size_t)h->chunk * WINDOW * (size_t)(h->b->info.nnodes + 1);
    if (mk_shm_create("mkbench", 16 * AR_NODES, &h->flags) ||
        mk_engine_reg(h->e, h->flags.addr, h->flags.size, &h->flags, &h->mr[0]))
        return failed(h, "flags");
    if (!h->b->o->cpu && mk_engine_caps(h->e)->gpu_memory) {
        h->gpu = gpu_alloc(bytes);
        return mk_engine_reg(h->e, (void *)(uintptr_t)h->gpu, bytes, NULL, &h->mr[1])
                   ? failed(h, "GPU memory")
                   : 0;
    }
    if (mk_shm_create("mkbench", bytes, &h->shared))
        return failed(h, "memory");
    memset(h->shared.addr, 1, bytes);
    return mk_engine_reg(h->e, h->shared.addr, h->shared.size, &h->shared, &h->mr[1]) ? failed(h, "memory")
                                                                                      : 0;
}

static int open_links(struct hold *h, struct card *mine)
{
    uint64_t *flags = h->flags.addr;
    const struct mk_notes_desc d = {flags, flags + AR_NODES, h->step, AR_NODES, NULL};
    for (int i = 0; i < AR_NODES; i++)
        h->step[i] = 1;
    if (mk_notes_open(h->e, &d, &mine->base, &h->notes))
        return failed(h, "notes");
    for (int i = 0; i < 2; i++)
        mk_mr_key(h->mr[i], &mine->key[i]);
    for (int d2 = 0; d2 < h->b->info.nnodes; d2++) {
        if (d2 != h->b->info.node && mk_link_open(h->e, "the rail peer", &mine->addr[d2], &h->link[d2]))
            return failed(h, "a link");
        if (h->link[d2])
            mk_link_on_done(h->link[d2], on_done, h);
    }
    return 0;
}

static int connect_link(struct hold *h, int node, const struct card *theirs)
{
    const uint64_t end = mk_time_ns() + CONNECT_NS;
    struct mk_rmem *flags;
    int ret;
    while ((ret = mk_link_connect(h->link[node], &theirs->addr[h->b->info.node])) == MK_ERR_AGAIN &&
           mk_time_ns() < end)
        if (mk_engine_progress(h->e) < 0)
            return failed(h, "connecting");
    if (!ret)
        ret = mk_link_import(h->link[node], &theirs->key[0], &flags);
    if (!ret)
        ret = mk_link_import(h->link[node], &theirs->key[1], &h->rmem[node]);
    if (ret)
        return failed(h, "connecting");
    const struct mk_peer_notes n = {theirs->base, AR_NODES, flags, 0, 8 * AR_NODES};
    return mk_link_set_notes(h->link[node], &n) ? failed(h, "notes") : 0;
}

static int wire(struct hold *h)
{
    const struct mk_comm_info *info = &h->b->info;
    struct card mine, *all = calloc((size_t)h->b->nranks, sizeof(*all));
    memset(&mine, 0, sizeof(mine));
    int ret = !all || memory(h) || open_links(h, &mine);
    if (ar_slowest(h->b, ret) != 0 || ar_gather(h->b, &mine, all, sizeof(mine)))
        ret = 1;
    for (int d = 0; d < info->nnodes && !ret; d++)
        if (d != info->node)
            ret = connect_link(h, d, &all[h->b->rank_at[d * info->local_nranks + info->local_rank]]);
    free(all);
    return ar_slowest(h->b, ret) != 0;
}

/* The next write, of len bytes; value: what the peer's flag is once it and all writes before it are there, 0: no flag. */
static int put(struct hold *h, int node, uint32_t len, uint64_t value)
{
    const uint64_t slot = h->posted % WINDOW;
    struct mk_put p;
    memset(&p, 0, sizeof(p));
    if (value) {
        p.note = (uint32_t)h->b->info.node;
        p.value = value;
        p.use4 = value & 15;
    } else {
        p.flags = MK_PUT_NO_NOTE | (mk_engine_caps(h->e)->delivery_complete ? MK_PUT_DELIVERY : 0);
    }
    if (len) {
        p.mr = h->mr[1];
        p.rmem = h->rmem[node];
        p.local_off = slot * h->chunk;
        p.remote_off = ((uint64_t)(h->b->info.node + 1) * WINDOW + slot) * h->chunk;
        p.len = len;
    }
    const int took = mk_link_put(h->link[node], &p, 1);
    h->posted += took == 1;
    return took >= 0 || took == MK_ERR_AGAIN ? 0 : failed(h, "a write");
}

static int progress(struct hold *h)
{
    const int n = mk_engine_progress(h->e);
    if (n < 0 || h->status)
        return failed(h, h->status ? mk_strerror(h->status) : "progress");
    if (!n)
        mk_engine_wait(h->e, 20000);
    return 0;
}

static int all_writes(struct hold *h)
{
    const struct mk_comm_info *info = &h->b->info;
    const uint64_t end = mk_time_ns() + LIMIT_NS;
    int node = info->node, ret = 0;
    while (h->done < h->writes && !ret) {
        while (h->posted < h->writes && h->posted - h->done < WINDOW && !ret) {
            const uint64_t before = h->posted;
            node = (node + 1) % info->nnodes;
            if (node == info->node)
                node = (node + 1) % info->nnodes;
            ret = put(h, node, h->chunk, 0);
            if (h->posted == before)
                break;
        }
        ret = ret || progress(h);
        if (mk_time_ns() > end)
            ret = failed(h, "it takes longer than 10 s");
    }
    return ret;
}

/* Tells each peer that all is there, waits until each has said so. */
static int finish(struct hold *h)
{
    const struct mk_comm_info *info = &h->b->info;
    const uint64_t *flags = h->flags.addr, end = mk_time_ns() + LIMIT_NS;
    int ret = 0;
    for (int d = 0; d < info->nnodes; d++)
        for (uint64_t before = h->posted; d != info->node && h->posted == before && !ret;)
            ret = put(h, d, 0, 1) || progress(h) || (mk_time_ns() > end && failed(h, "the last write"));
    for (int d = 0; d < info->nnodes; d++)
        while (d != info->node && !mk_poll_sys(&flags[d]) && !ret) {
            ret = progress(h);
            if (mk_time_ns() > end)
                ret = failed(h, "a peer does not come to the end");
        }
    return ret;
}

static int look(struct hold *h, uint64_t end)
{
    if (mk_engine_progress(h->e) < 0 || h->status)
        return failed(h, h->status ? mk_strerror(h->status) : "progress");
    return mk_time_ns() > end ? failed(h, "small writes take longer than 10 s") : 0;
}

static int ping(struct hold *h, int node, uint64_t value, uint64_t end)
{
    int ret = 0;
    for (const uint64_t before = h->posted; h->posted == before && !ret;)
        ret = put(h, node, h->chunk < SMALL ? h->chunk : SMALL, value) || look(h, end);
    return ret;
}

/* Half of there and back between nodes 0 and 1, us, of a small write and its flag; never asleep, as the proxy is not while
 * kernels post. On node 0, else 0. */
static int latency(struct hold *h, double *us)
{
    const int node = h->b->info.node, peer = 1 - node;
    const uint64_t *flags = h->flags.addr, end = mk_time_ns() + LIMIT_NS;
    static struct bench_samples took;
    int ret = 0;
    *us = 0;
    took.n = 0;
    for (uint64_t i = 0; i < WARM + PINGS && node < 2 && !ret; i++) {
        const uint64_t value = i + 2, begin = mk_time_ns(); /* 1 was finish's */
        if (node == 0)
            ret = ping(h, peer, value, end);
        while (!ret && mk_ld_acq_sys_u64(&flags[peer]) < value)
            ret = look(h, end);
        if (node == 1 && !ret)
            ret = ping(h, peer, value, end);
        if (node == 0 && i >= WARM)
            bench_add(&took, (double)(mk_time_ns() - begin) / 2e3);
    }
    if (took.n)
        *us = bench_stat_of(&took).median;
    return ret;
}

/* A peer may need this side's progress until it is through too. */
static void *meet(void *arg)
{
    struct hold *h = arg;
    ar_slowest(h->b, 0);
    __atomic_store_n(&h->met, 1, __ATOMIC_RELEASE);
    return NULL;
}
static void wait_for_all(struct hold *h)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, meet, h)) {
        meet(h);
        return;
    }
    while (!__atomic_load_n(&h->met, __ATOMIC_ACQUIRE))
        if (mk_engine_progress(h->e) <= 0)
            mk_engine_wait(h->e, 20000);
    pthread_join(thread, NULL);
}

static void close_all(struct hold *h)
{
    mk_engine_close(h->e);
    mk_shm_release(&h->shared);
    mk_shm_release(&h->flags);
    if (h->gpu)
        gpu_free(h->gpu);
}

/* For about TIME_NS; of a slow link smaller writes than the operator's, so that there are some windows of them. */
static void choose_writes(struct hold *h, double gbps)
{
    const double bytes = gbps / 8 * TIME_NS;
    h->chunk = (uint32_t)h->b->info.chunk;
    while (h->chunk > LEAST && bytes / h->chunk < 4 * WINDOW)
        h->chunk /= 2;
    h->writes = (uint64_t)(bytes / h->chunk);
    if (h->writes < 8)
        h->writes = 8;
}

int ar_link_hold(struct ar_bench *b, const struct ar_link *link, double *gbps, double *us)
{
    struct mk_settings s;
    static struct hold h;
    double took = -1;
    *gbps = *us = 0;
    if (b->info.nnodes < 2 || b->info.nnodes > AR_NODES)
        return 0;
    memset(&h, 0, sizeof(h));
    h.b = b;
    choose_writes(&h, link->gbps > 0 ? link->gbps : b->o->cpu ? 10 : 400);
    int ret = mk_settings_load(&s, true) || mk_engine_open(&s, &h.e);
    if (ret)
        failed(&h, "opening");
    if (ar_slowest(b, ret) != 0)
        ret = 1;
    if (!ret)
        ret = wire(&h);
    if (!ret) {
        const uint64_t begin = mk_time_ns();
        ret = all_writes(&h) || finish(&h);
        took = (double)(mk_time_ns() - begin);
        ret = ret || latency(&h, us);
        wait_for_all(&h);
    }
    if (h.e)
        close_all(&h);
    took = ar_slowest(b, ret ? -1 : took);
    *us = ar_slowest(b, *us);
    if (took <= 0 || *us < 0)
        return 1;
    *gbps = (double)(h.writes * h.chunk) * 8 / took;
    return 0;
}
