/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Cases about tables: what is exported, properties, init and finalize. */
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

const struct test_case cases_table[] = {
    {.name = "exports", .ranks = 1, .run = exports, .raw = true},
    {.name = "table", .ranks = 1, .run = table},
    {.name = "props", .ranks = 1, .run = props},
    {.name = "twice", .ranks = 2, .run = twice},
    {.name = NULL},
};
