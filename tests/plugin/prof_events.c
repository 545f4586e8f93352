/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#include "tests/plugin/prof_events.h"
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    GROUP,
    COLL,
    P2P,
    PROXY_OP,
    PROXY_STEP,
    PROXY_CTRL,
    KERNEL_CH,
    NET_PLUGIN,
    GROUP_API,
    COLL_API,
    P2P_API,
    LAUNCH
};
#define BIT(b) (1 << (b))

static void logger(int level, unsigned long flags, const char *file, int line, const char *fmt, ...)
{
    (void)level, (void)flags, (void)file, (void)line, (void)fmt;
}

bool prof_open(struct prof *p, void *lib, int version, uint64_t comm_id, int rank, int nranks, int *mask)
{
    char symbol[32];
    memset(p, 0, sizeof(*p));
    snprintf(symbol, sizeof(symbol), "ncclProfiler_v%d", version);
    p->version = version;
    p->mask = mask;
    p->rank = rank;
    p->nranks = nranks;
    p->t.any = dlsym(lib, symbol);
    if (!p->t.any)
        return false;
    const int ret = version <= 3   ? p->t.v1->init(&p->ctx, mask)
                    : version == 4 ? p->t.v4->init(&p->ctx, mask, "tp", comm_id, 2, nranks, rank, logger)
                                   : p->t.v5->init(&p->ctx, comm_id, mask, NULL, 2, nranks, rank, logger);
    p->failed += ret != 0;
    return true;
}

void prof_close(struct prof *p)
{
    if (p->ctx)
        p->failed += p->t.v1->finalize(p->ctx) != 0;
}

/* Is the event, or one that needs it as a parent, asked for? */
static bool wanted(const struct prof *p, int event)
{
    const int mask = __atomic_load_n(p->mask, __ATOMIC_RELAXED);
    const int runs = BIT(PROXY_OP) | BIT(PROXY_STEP) | BIT(KERNEL_CH) | BIT(NET_PLUGIN);
    const int ops = BIT(COLL) | BIT(P2P) | runs;
    int with = BIT(event);
    if (event == COLL || event == P2P)
        with |= runs;
    else if (event == GROUP || event == GROUP_API || event == COLL_API || event == P2P_API)
        with |= ops;
    return mask & with;
}

static void *start(struct prof *p, void *descr)
{
    void *const unwritten = (void *)(uintptr_t)0xdead0001;
    void *handle = unwritten;
    p->failed += p->t.v1->startEvent(p->ctx, &handle, descr) != 0 || handle == unwritten;
    return handle == unwritten ? NULL : handle;
}
static void stop(struct prof *p, void *handle)
{
    if (handle)
        p->failed += p->t.v1->stopEvent(handle) != 0;
}
static void state(struct prof *p, void *handle, int which, void *args)
{
    if (handle)
        p->failed += p->t.v1->recordEventState(handle, which, args) != 0;
}

/* An event without members that matter. */
static void *plain(struct prof *p, int event, void *parent)
{
    union {
        struct mk_nccl_profiler_descr_v2 old;
        struct mk_nccl_profiler_descr_v6 new;
    } d;
    if (!wanted(p, event))
        return NULL;
    memset(&d, 0, sizeof(d));
    if (p->version <= 4)
        d.old.type = (uint8_t)BIT(event);
    else
        d.new.type = (uint64_t)BIT(event);
    d.new.parentObj = parent;
    d.new.rank = p->rank;
    return start(p, &d);
}

static int number(const char *name, const char *const *list)
{
    int i = 0;
    while (list[i] && strcmp(list[i], name))
        i++;
    return i;
}

/* The members of a collective's descriptor that versions 2 to 6 have. */
#define FILL(d, c, p, parent)                                                                                \
    do {                                                                                                     \
        (d).type = BIT(COLL);                                                                                \
        (d).parentObj = parent;                                                                              \
        (d).rank = (p)->rank;                                                                                \
        (d).coll.func = (c)->func;                                                                           \
        (d).coll.datatype = (c)->dtype;                                                                      \
        (d).coll.count = (c)->count;                                                                         \
        (d).coll.algo = (c)->algo;                                                                           \
        (d).coll.proto = (c)->proto;                                                                         \
        (d).coll.nWarps = 17;                                                                                \
    } while (0)

static void fill_v1(struct mk_nccl_profiler_descr_v1 *d, const struct prof *p, const struct prof_coll *c,
                    void *group)
{
    static const char *const funcs[] = {"Broadcast",     "Reduce",    "AllGather",
                                        "ReduceScatter", "AllReduce", NULL};
    static const char *const types[] = {"ncclInt8",    "ncclUint8",    "ncclInt32",   "ncclUint32",
                                        "ncclInt64",   "ncclUint64",   "ncclFloat16", "ncclFloat32",
                                        "ncclFloat64", "ncclBfloat16", NULL};
    static const char *const algos[] = {"TREE", "RING", NULL}, *const protos[] = {"LL", "LL128", "SIMPLE",
                                                                                  NULL};
    d->type = BIT(COLL);
    d->parentObj = group;
    d->rank = p->rank;
    d->coll.commHash = 0xabc;
    d->coll.func = (uint8_t)number(c->func, funcs);
    d->coll.datatype = (uint8_t)number(c->dtype, types);
    d->coll.algo = (uint8_t)number(c->algo, algos);
    d->coll.proto = (uint8_t)number(c->proto, protos);
    d->coll.count = c->count;
    d->coll.nMaxChannels = (uint8_t)c->channels;
}

static void *coll(struct prof *p, const struct prof_coll *c, void *api, void *group)
{
    union {
        struct mk_nccl_profiler_descr_v1 v1;
        struct mk_nccl_profiler_descr_v2 v2;
        struct mk_nccl_profiler_descr_v3 v3;
        struct mk_nccl_profiler_descr_v4 v4;
        struct mk_nccl_profiler_descr_v5 v5;
        struct mk_nccl_profiler_descr_v6 v6;
    } d;
    if (!wanted(p, COLL))
        return NULL;
    memset(&d, 0, sizeof(d));
    if (p->version == 1) {
        fill_v1(&d.v1, p, c, group);
    } else if (p->version == 2) {
        FILL(d.v2, c, p, group);
        d.v2.coll.commHash = 0xabc;
        d.v2.coll.nMaxChannels = (uint8_t)c->channels;
    } else if (p->version == 3) {
        FILL(d.v3, c, p, group);
        d.v3.coll.commHash = 0xabc;
        d.v3.coll.nMaxChannels = (uint8_t)c->channels;
    } else if (p->version == 4) {
        FILL(d.v4, c, p, group);
        d.v4.coll.nChannels = (uint8_t)c->channels;
    } else {
        FILL(d.v6, c, p, api);
        d.v6.coll.parentGroup = group;
        d.v6.coll.nChannels = (uint8_t)c->channels;
    }
    return start(p, &d);
}

/* The call itself, from version 5 on. */
static void *call(struct prof *p, const char *func, void *parent)
{
    struct mk_nccl_profiler_descr_v6 d;
    if (p->version < 5 || !wanted(p, COLL_API))
        return NULL;
    memset(&d, 0, sizeof(d));
    d.type = BIT(COLL_API);
    d.parentObj = parent;
    d.rank = p->rank;
    d.collApi.func = func;
    return start(p, &d);
}

void prof_copied(struct prof *p, const char *func)
{
    void *group_api = p->version >= 5 ? plain(p, GROUP_API, NULL) : NULL;
    stop(p, call(p, func, group_api));
    stop(p, group_api);
}

void *prof_enqueue(struct prof *p, const struct prof_coll *c)
{
    const bool api = p->version >= 5;
    void *group_api = api ? plain(p, GROUP_API, NULL) : NULL;
    void *coll_api = call(p, c->func, group_api);
    stop(p, coll_api); /* the API's event ends before the group is launched */
    state(p, group_api, 23, NULL);
    void *group = plain(p, GROUP, group_api);
    /* up to version 4 no collective without the handle of its group; NCCL checks nothing else */
    void *handle = api || group ? coll(p, c, coll_api, group) : NULL;
    stop(p, handle);
    void *launch = api ? plain(p, LAUNCH, group_api) : NULL;
    stop(p, launch);
    stop(p, group);
    state(p, group_api, 24, NULL);
    stop(p, group_api);
    return handle;
}

void prof_replay(struct prof *p, const struct prof_coll *c)
{
    void *group = plain(p, GROUP, NULL);
    void *handle = p->version >= 5 || group ? coll(p, c, NULL, group) : NULL;
    stop(p, handle);
    stop(p, group);
}

void *prof_send(struct prof *p, size_t count, int peer)
{
    union {
        struct mk_nccl_profiler_descr_v1 v1;
        struct mk_nccl_profiler_descr_v2 v2; /* and 3 */
        struct mk_nccl_profiler_descr_v4 v4;
        struct mk_nccl_profiler_descr_v6 v6; /* and 5 */
    } d;
    void *group = plain(p, GROUP, NULL);
    if (!wanted(p, P2P) || (p->version <= 4 && !group))
        return NULL;
    memset(&d, 0, sizeof(d));
    if (p->version == 1) {
        d.v1.type = BIT(P2P);
        d.v1.p2p.func = 6, d.v1.p2p.datatype = 7, d.v1.p2p.count = count, d.v1.p2p.peer = peer;
    } else if (p->version <= 3) {
        d.v2.type = BIT(P2P);
        d.v2.p2p.func = "Send", d.v2.p2p.datatype = "ncclFloat32", d.v2.p2p.count = count,
        d.v2.p2p.peer = peer;
    } else if (p->version == 4) {
        d.v4.type = BIT(P2P);
        d.v4.p2p.func = "Send", d.v4.p2p.datatype = "ncclFloat32", d.v4.p2p.count = count,
        d.v4.p2p.peer = peer;
        d.v4.p2p.nChannels = 0xee; /* NCCL's shim leaves it as it is */
    } else {
        d.v6.type = BIT(P2P);
        d.v6.p2p.func = "Send", d.v6.p2p.datatype = "ncclFloat32", d.v6.p2p.count = count,
        d.v6.p2p.peer = peer;
        d.v6.p2p.nChannels = 2;
    }
    void *handle = start(p, &d);
    stop(p, handle);
    stop(p, group);
    return handle;
}

static void *proxy_op(struct prof *p, void *parent, int channel, pid_t pid)
{
    struct mk_nccl_profiler_descr_v2 d; /* that of version 1 is shorter, this member at the same place */
    memset(&d, 0, sizeof(d));
    d.type = BIT(PROXY_OP);
    d.parentObj = parent;
    d.rank = p->rank;
    d.proxyOp.pid = pid;
    d.proxyOp.channelId = (uint8_t)channel;
    d.proxyOp.isSend = channel & 1;
    return wanted(p, PROXY_OP) ? start(p, &d) : NULL;
}

void *prof_channel(struct prof *p, void *parent, int channel, uint64_t at)
{
    union {
        struct mk_nccl_profiler_descr_v3 v3;
        struct mk_nccl_profiler_descr_v4 v4;
        struct mk_nccl_profiler_descr_v6 v6;
    } d;
    if (p->version < 3)
        return proxy_op(p, parent, channel, getpid());
    if (!wanted(p, KERNEL_CH))
        return NULL;
    memset(&d, 0, sizeof(d));
    if (p->version == 3) {
        d.v3.type = BIT(KERNEL_CH), d.v3.parentObj = parent;
        d.v3.kernelCh.channelId = (uint8_t)channel;
    } else if (p->version == 4) {
        d.v4.type = BIT(KERNEL_CH), d.v4.parentObj = parent;
        d.v4.kernelCh.channelId = (uint8_t)channel, d.v4.kernelCh.pTimer = at;
    } else {
        d.v6.type = BIT(KERNEL_CH), d.v6.parentObj = parent;
        d.v6.kernelCh.channelId = (uint8_t)channel, d.v6.kernelCh.pTimer = at;
    }
    return start(p, &d);
}

void prof_channel_end(struct prof *p, void *handle, uint64_t at)
{
    union mk_nccl_profiler_args old;
    union mk_nccl_profiler_args_v4 new;
    memset(&old, 0, sizeof(old));
    memset(&new, 0, sizeof(new));
    new.kernelCh.pTimer = at;
    old.proxyOp.transSize = 4096;
    if (p->version < 3)
        state(p, handle, 2, &old);
    else if (p->version >= 4)
        state(p, handle, 22, &new);
    stop(p, handle);
}

/* Small kernels are often over when the progress thread looks: then a channel's end comes before the next one's begin. */
void prof_run(struct prof *p, void *parent, int channels, uint64_t from, uint64_t to, pid_t pid)
{
    void *handle[64];
    const bool late = p->version >= 3 && p->runs++ % 2;
    for (int i = 0; i < channels; i++) {
        handle[i] =
            p->version < 3 ? proxy_op(p, parent, i, pid) : prof_channel(p, parent, i, from + (uint64_t)i);
        if (late)
            prof_channel_end(p, handle[i], to - (uint64_t)i);
    }
    for (int i = channels - 1; i >= 0 && !late; i--)
        prof_channel_end(p, handle[i], to - (uint64_t)i);
}
