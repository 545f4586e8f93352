/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Cases about tables: what is exported, properties, init and finalize; the tuner and the profiler whole. */
#include "plugin/nccl/abi_profiler.h"
#include "plugin/nccl/abi_tuner.h"
#include "tests/plugin/harness.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* ---- net ---- */

static void table(struct rank *r)
{
    const struct mk_nccl_net_v12 *t =
        r->c.t.v12; /* by place: members stand at the same place in every version */
    const int v = r->c.version;
    need(r, t->name && t->name[0], "the table has no name");
    need(r, strlen(t->name) < 64, "a name of %zu characters", strlen(t->name));
    need(r, t->init && t->devices && t->getProperties && t->listen && t->connect && t->accept,
         "a NULL function");
    need(r, t->regMr && t->deregMr && t->isend && t->irecv && t->iflush && t->test, "a NULL function");
    need(r, t->closeSend && t->closeRecv && t->closeListen, "a NULL close function");
    need(r, v < 11 || t->finalize, "v%d without finalize", v);
    if (v >= 7 && r->o->own) /* NCCL would call it with requests that are gone */
        need(r, !t->irecvConsumed, "irecvConsumed is not NULL");
}

struct asker {
    struct rank *r;
    bool same;
};

static bool equal(const struct caller_props *a, const struct caller_props *b)
{
    return a->name && b->name && !strcmp(a->name, b->name) && !a->pciPath == !b->pciPath &&
           (!a->pciPath || !strcmp(a->pciPath, b->pciPath)) && a->guid == b->guid &&
           a->ptrSupport == b->ptrSupport && a->regIsGlobal == b->regIsGlobal &&
           a->forceFlush == b->forceFlush && a->speed == b->speed && a->port == b->port &&
           !memcmp(&a->latency, &b->latency, sizeof(float)) && a->maxComms == b->maxComms &&
           a->maxRecvs == b->maxRecvs && a->netDeviceType == b->netDeviceType &&
           a->netDeviceVersion == b->netDeviceVersion && a->ndevs == b->ndevs && a->dev0 == b->dev0 &&
           a->maxP2pBytes == b->maxP2pBytes && a->maxCollBytes == b->maxCollBytes &&
           a->maxMultiRequestSize == b->maxMultiRequestSize && a->railId == b->railId &&
           a->planeId == b->planeId;
}

static void *ask(void *arg)
{
    struct asker *a = arg;
    struct caller_props p;
    a->same = true;
    for (int i = 0; i < 200; i++)
        if (caller_properties(&a->r->c, 0, i & 0xff, &p) || !equal(&p, &a->r->props))
            a->same = false;
    return NULL;
}

static void check_props(struct rank *r, const struct caller_props *p, int dev)
{
    need(r, p->name[0], "device %d has an empty name", dev);
    need(r, p->ptrSupport & MK_NCCL_PTR_HOST && !(p->ptrSupport & ~7), "ptrSupport is %#x", p->ptrSupport);
    need(r, p->speed > 0, "speed is %d", p->speed);
    need(r, p->latency >= 0 && p->latency < 1e6f, "latency is %g", (double)p->latency);
    need(r, p->maxComms > 0, "maxComms is %d", p->maxComms);
    need(r, p->maxRecvs >= 1 && p->maxRecvs <= CALLER_GROUP_MAX, "maxRecvs is %d", p->maxRecvs);
    need(r, p->netDeviceType == 0 && p->netDeviceVersion == 0, "a device type that is not HOST");
    need(r, p->ndevs == 1 && p->dev0 == dev, "vProps of device %d are {%d, %d}", dev, p->ndevs, p->dev0);
    need(r, p->maxP2pBytes >= 1 && p->maxP2pBytes <= MK_NCCL_MAX_NET_BYTES, "maxP2pBytes is %zu",
         p->maxP2pBytes);
    need(r, p->maxCollBytes >= 1 && p->maxCollBytes <= MK_NCCL_MAX_NET_BYTES, "maxCollBytes is %zu",
         p->maxCollBytes);
    need(r, p->maxMultiRequestSize >= 0, "maxMultiRequestSize is %d", p->maxMultiRequestSize);
    need(r, p->pciPath == NULL || p->pciPath[0] == '/', "pciPath is %s", p->pciPath);
}

/* Asked twice, with the struct full of one byte and then of another: what differs was not written. */
static void props(struct rank *r)
{
    struct caller_props a, b;
    struct asker with[2] = {{r, false}, {r, false}};
    pthread_t thread;
    const char *names[MK_NCCL_MAX_DEVICES];
    int ndev = 0;
    need(r, !caller_devices(&r->c, &ndev) && ndev > 0 && ndev <= MK_NCCL_MAX_DEVICES, "%d devices", ndev);
    for (int dev = 0; dev < ndev; dev++) {
        need(r, !caller_properties(&r->c, dev, 0x00, &a), "getProperties of device %d failed", dev);
        need(r, a.name, "device %d has no name", dev);
        need(r, !caller_properties(&r->c, dev, 0xa5, &b), "getProperties of device %d failed", dev);
        need(r, equal(&a, &b), "getProperties of device %d leaves a field as it was", dev);
        check_props(r, &a, dev);
        names[dev] = a.name;
        for (int k = 0; k < dev; k++)
            need(r, strcmp(names[k], names[dev]), "devices %d and %d are both called %s", k, dev, names[k]);
    }
    need(r, !r->o->own || caller_properties(&r->c, ndev, 0, &a), "getProperties of device %d succeeds", ndev);
    need(r, !r->o->own || caller_properties(&r->c, -1, 0, &a), "getProperties of device -1 succeeds");
    need(r, !pthread_create(&thread, NULL, ask, &with[0]), "no thread");
    ask(&with[1]);
    pthread_join(thread, NULL);
    need(r, with[0].same && with[1].same, "getProperties answers differ between two threads");
}

/* A second context beside the first, finalize of nothing, and everything again after the last finalize. */
static void twice(struct rank *r)
{
    struct caller second = r->c;
    int ndev = 0;
    if (r->c.version >= 11)
        need(r, !r->c.t.v11->finalize(NULL), "finalize(NULL) fails");
    need(r, !caller_init(&second, logger), "a second init fails");
    need(r, !caller_devices(&second, &ndev) && ndev > 0, "no devices after a second init");
    need(r, !caller_finalize(&second), "finalize of the second context fails");
    for (int round = 0; round < 3; round++) {
        struct link l;
        struct buf a, b;
        int size = -1;
        link_up(r, &l, !r->me, round);
        buf_new(r, &a, 1000, 0);
        buf_new(r, &b, 1000, 0);
        buf_reg(r, &a, l.send);
        buf_reg(r, &b, l.recv);
        buf_fill(&a, 7, 1000);
        void *rx = post_recv(r, l.recv, &b, 1000, 0);
        finish_both(r, post_send(r, l.send, &a, 1000, 0), rx, &size);
        need(r, size == 1000 && buf_wrong(&b, 7, 1000) < 0, "wrong data in round %d", round);
        step(r);
        buf_free(r, &a);
        buf_free(r, &b);
        link_down(r, &l);
        need(r, !caller_finalize(&r->c), "finalize fails");
        need(r, !caller_init(&r->c, logger), "init after finalize fails");
    }
}

/* All versions of one library are one plugin; and nothing half-done is there. */
static void exports(struct rank *r)
{
    static const char *const absent[] = {"ncclCollNetPlugin", "ncclGinPlugin", "ncclRmaPlugin",
                                         "ncclEnvPlugin"};
    const char *why = "", *name = NULL;
    char symbol[64];
    struct caller c;
    void *lib = caller_load(r->o->path, &why);
    need(r, lib, "dlopen: %s", why);
    for (int v = CALLER_OLDEST; v <= CALLER_NEWEST; v++) {
        if (!caller_table(lib, v, &c)) {
            need(r, !r->o->own, "net v%d is missing", v);
            continue;
        }
        need(r, *(const char *const *)c.t.any, "net v%d has no name", v);
        need(r, !name || !strcmp(name, *(const char *const *)c.t.any), "net v%d has another name", v);
        name = *(const char *const *)c.t.any;
    }
    if (!r->o->own)
        return;
    for (int v = 2; v <= 6; v++) {
        snprintf(symbol, sizeof(symbol), "ncclTunerPlugin_v%d", v);
        need(r, dlsym(lib, symbol), "%s is missing", symbol);
    }
    for (int v = 1; v <= 6; v++) {
        snprintf(symbol, sizeof(symbol), "ncclProfiler_v%d", v);
        need(r, dlsym(lib, symbol), "%s is missing", symbol);
    }
    for (size_t i = 0; i < sizeof(absent) / sizeof(absent[0]); i++)
        for (int v = 1; v <= 20; v++) {
            snprintf(symbol, sizeof(symbol), "%s_v%d", absent[i], v);
            need(r, !dlsym(lib, symbol), "%s is exported", symbol);
        }
    dlclose(lib);
    need(r, dlopen(r->o->path, RTLD_NOW | RTLD_NOLOAD), "the library can be unloaded");
}

/* ---- tuner ---- */

enum { ALGOS = 7, PROTOS = 3 };
struct tuner {
    void *ctx;
    int version;
    union {
        const void *any;
        const struct mk_nccl_tuner_v2 *v2;
        const struct mk_nccl_tuner_v3 *v3;
        const struct mk_nccl_tuner_v4 *v4;
        const struct mk_nccl_tuner_v5 *v5;
        const struct mk_nccl_tuner_v6 *v6;
    } t;
};

static void tuner_open(struct rank *r, struct tuner *t)
{
    struct mk_nccl_nvl_info nvl = {1, 8, 8};
    struct mk_nccl_tuner_constants k, before;
    memset(&k, 0x3f, sizeof(k));
    before = k;
    need(r, t->t.v2->name && t->t.v2->name[0], "tuner v%d has no name", t->version);
    const int ret = t->version <= 4 ? t->t.v2->init(16, 2, logger, &t->ctx)
                                    : t->t.v5->init(&t->ctx, 99, 16, 2, logger, &nvl, &k);
    need(r, !ret, "init of tuner v%d failed with %d", t->version, ret);
    need(r, !r->o->own || !memcmp(&k, &before, sizeof(k)), "tuner v%d changed the constants", t->version);
}

static void tuner_ask(struct rank *r, struct tuner *t)
{
    float cost[ALGOS * PROTOS + 2], before[ALGOS * PROTOS + 2];
    const int algos = 1 + (int)random_below(r, ALGOS), protos = 1 + (int)random_below(r, PROTOS);
    const int func = (int)random_below(r, 5), reg = (int)random_below(r, 2);
    const size_t bytes = random_next(r) >> (24 + random_below(r, 40));
    const int pipe_ops = 1 + (int)random_below(r, 4);
    int channels = 0, algo = MK_NCCL_UNDEF, proto = MK_NCCL_UNDEF, ret;
    for (int i = 0; i < ALGOS * PROTOS + 2; i++)
        before[i] = cost[i] = random_below(r, 3) ? (float)random_below(r, 1000) : -1.0f;
    float **at = (float **)(void *)&cost[1]; /* really the address of a dense table */
    if (t->version == 2)
        ret = t->t.v2->getCollInfo(t->ctx, func, bytes, 0, 0, pipe_ops, &algo, &proto, &channels);
    else if (t->version == 3)
        ret = t->t.v3->getCollInfo(t->ctx, func, bytes, pipe_ops, at, algos, protos, &channels);
    else
        ret = t->t.v4->getCollInfo(t->ctx, func, bytes, pipe_ops, at, algos, protos, reg, &channels);
    need(r, !ret, "getCollInfo of tuner v%d failed with %d: the collective would fail", t->version, ret);
    for (int i = 0; i < ALGOS * PROTOS + 2; i++) {
        const bool inside = i >= 1 && i <= algos * protos;
        need(r, !(before[i] < 0) || cost[i] < 0, "tuner v%d raised cell %d from -1", t->version, i - 1);
        need(r, inside || !memcmp(&cost[i], &before[i], 4), "tuner v%d wrote outside of the table",
             t->version);
        need(r, !r->o->own || !memcmp(&cost[i], &before[i], 4), "tuner v%d changed cell %d", t->version,
             i - 1);
    }
    need(r, channels >= 0 && channels <= 64, "tuner v%d wants %d channels", t->version, channels);
    need(r, !r->o->own || (channels == 0 && algo == MK_NCCL_UNDEF && proto == MK_NCCL_UNDEF),
         "tuner v%d decides something", t->version);
    if (t->version == 6 && t->t.v6->getChunkSize) {
        size_t chunk = 131072;
        need(r, !t->t.v6->getChunkSize(t->ctx, func, bytes, 1, 2, 8, &chunk) && chunk,
             "getChunkSize of tuner v6 failed");
        need(r, !r->o->own || chunk == 131072, "getChunkSize of tuner v6 changed the chunk");
    }
}

static void tuner(struct rank *r)
{
    const char *why = "";
    void *lib = caller_load(r->o->path, &why);
    int found = 0;
    need(r, lib, "dlopen: %s", why);
    for (int v = 2; v <= 6; v++) {
        char symbol[32];
        struct tuner t[2] = {{.version = v}, {.version = v}};
        snprintf(symbol, sizeof(symbol), "ncclTunerPlugin_v%d", v);
        t[0].t.any = t[1].t.any = dlsym(lib, symbol);
        if (!t[0].t.any)
            continue;
        found++;
        tuner_open(r, &t[0]);
        tuner_open(r, &t[1]); /* a second communicator */
        for (int i = 0; i < 500; i++)
            tuner_ask(r, &t[i & 1]);
        for (int i = 0; i < 2; i++) /* destroy and finalize stand at one place */
            need(r, !t[i].t.v2->destroy(t[i].ctx), "tuner v%d does not end well", v);
    }
    if (!found)
        skip(r, "no tuner in this library");
}

/* ---- profiler ---- */

union profiler {
    const void *any;
    const struct mk_nccl_profiler_v1 *v1; /* all but init, and the types behind the pointers, is the same */
    const struct mk_nccl_profiler_v4 *v4;
    const struct mk_nccl_profiler_v5 *v5;
};

/* Every event there is, whatever the mask says. */
static void profiler_events(struct rank *r, const union profiler *p, void *ctx, int version)
{
    const int bits = version <= 2 ? 6 : version <= 4 ? 8 : version == 5 ? 12 : 15;
    for (int bit = 0; bit < bits; bit++) {
        uint64_t words[16] = {1ull << bit}; /* as large as any version's descriptor */
        void *event = (void *)(uintptr_t)0xdead0001;
        if (version <= 4 && bit > 7)
            continue;
        need(r, !p->v1->startEvent(ctx, &event, (struct mk_nccl_profiler_descr_v1 *)(void *)words),
             "startEvent of profiler v%d failed", version);
        need(r, event != (void *)(uintptr_t)0xdead0001, "profiler v%d leaves the handle unwritten", version);
        if (!event)
            continue;
        for (int state = 0; state <= 30; state++) {
            need(r, !p->v1->recordEventState(event, state, NULL), "recordEventState of profiler v%d failed",
                 version);
        }
        need(r, !p->v1->stopEvent(event), "stopEvent of profiler v%d failed", version);
    }
}

static void profiler(struct rank *r)
{
    const char *why = "";
    void *lib = caller_load(r->o->path, &why);
    int found = 0;
    need(r, lib, "dlopen: %s", why);
    for (int v = 1; v <= 6; v++) {
        char symbol[32];
        int mask[3] = {0x77, 0x77777777, 0x77};
        void *ctx = NULL;
        union profiler p;
        snprintf(symbol, sizeof(symbol), "ncclProfiler_v%d", v);
        p.any = dlsym(lib, symbol);
        if (!p.any)
            continue;
        found++;
        need(r, p.v1->name && p.v1->name[0], "profiler v%d has no name", v);
        const int ret = v <= 3   ? p.v1->init(&ctx, &mask[1])
                        : v == 4 ? p.v4->init(&ctx, &mask[1], NULL, 5, 2, 4, 1, logger)
                                 : p.v5->init(&ctx, 5, &mask[1], "comm", 2, 4, 1, logger);
        need(r, !ret, "init of profiler v%d failed with %d", v, ret);
        need(r, mask[0] == 0x77 && mask[2] == 0x77, "profiler v%d wrote beside the mask", v);
        need(r, mask[1] != 0x77777777, "profiler v%d leaves the mask as it was", v);
        need(r, !r->o->own || mask[1] == 0, "profiler v%d is not idle: mask %#x", v, (unsigned)mask[1]);
        need(r, ctx, "profiler v%d gave no context: its finalize would never come", v);
        profiler_events(r, &p, ctx, v);
        need(r, !p.v1->finalize(ctx), "finalize of profiler v%d failed", v);
    }
    if (!found)
        skip(r, "no profiler in this library");
}

const struct test_case cases_table[] = {
    {.name = "exports", .ranks = 1, .run = exports, .raw = true},
    {.name = "tuner", .ranks = 1, .run = tuner, .raw = true},
    {.name = "profiler", .ranks = 1, .run = profiler, .raw = true},
    {.name = "table", .ranks = 1, .run = table},
    {.name = "props", .ranks = 1, .run = props},
    {.name = "twice", .ranks = 2, .run = twice},
    {.name = NULL},
};
