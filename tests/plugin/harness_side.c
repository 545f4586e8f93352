/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The tuner and the profiler tables. */
#include "tests/plugin/harness_side.h"
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* ---- tuner ---- */

enum { ALGOS = 7, PROTOS = 3 };

bool tuner_open(struct rank *r, void *lib, int version, struct tuner *t)
{
    char symbol[32];
    struct mk_nccl_nvl_info nvl = {1, 8, 8};
    struct mk_nccl_tuner_constants k, before;
    memset(&k, 0x3f, sizeof(k));
    before = k;
    snprintf(symbol, sizeof(symbol), "ncclTunerPlugin_v%d", version);
    t->version = version;
    t->ctx = NULL;
    t->t.any = dlsym(lib, symbol);
    if (!t->t.any)
        return false;
    need(r, t->t.v2->name && t->t.v2->name[0], "tuner v%d has no name", t->version);
    const int ret = t->version <= 4 ? t->t.v2->init(16, 2, logger, &t->ctx)
                                    : t->t.v5->init(&t->ctx, 99, 16, 2, logger, &nvl, &k);
    need(r, !ret, "init of tuner v%d failed with %d", t->version, ret);
    need(r, !r->o->own || !memcmp(&k, &before, sizeof(k)), "tuner v%d changed the constants", t->version);
    return true;
}

void tuner_close(struct rank *r, struct tuner *t)
{
    need(r, !t->t.v2->destroy(t->ctx), "tuner v%d does not end well",
         t->version); /* finalize stands there too */
}

void tuner_ask(struct rank *r, struct tuner *t)
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
        struct tuner t[2];
        if (!tuner_open(r, lib, v, &t[0]))
            continue;
        found++;
        (void)tuner_open(r, lib, v, &t[1]); /* a second communicator */
        for (int i = 0; i < 500; i++)
            tuner_ask(r, &t[i & 1]);
        for (int i = 0; i < 2; i++)
            tuner_close(r, &t[i]);
    }
    if (!found)
        skip(r, "no tuner in this library");
}

/* ---- profiler ---- */

/* Every event there is, whatever the mask says. */
void profiler_events(struct rank *r, const struct profiler *p)
{
    const int version = p->version;
    const int bits = version <= 2 ? 6 : version <= 4 ? 8 : version == 5 ? 12 : 15;
    for (int bit = 0; bit < bits; bit++) {
        uint64_t words[16] = {1ull << bit}; /* as large as any version's descriptor */
        void *event = (void *)(uintptr_t)0xdead0001;
        if (version <= 4 && bit > 7)
            continue;
        need(r, !p->t.v1->startEvent(p->ctx, &event, (struct mk_nccl_profiler_descr_v1 *)(void *)words),
             "startEvent of profiler v%d failed", version);
        need(r, event != (void *)(uintptr_t)0xdead0001, "profiler v%d leaves the handle unwritten", version);
        if (!event)
            continue;
        for (int state = 0; state <= 30; state++) {
            need(r, !p->t.v1->recordEventState(event, state, NULL), "recordEventState of profiler v%d failed",
                 version);
        }
        need(r, !p->t.v1->stopEvent(event), "stopEvent of profiler v%d failed", version);
    }
}

bool profiler_open(struct rank *r, void *lib, int version, struct profiler *p)
{
    char symbol[32];
    int mask[3] = {0x77, 0x77777777, 0x77};
    void *ctx = NULL;
    snprintf(symbol, sizeof(symbol), "ncclProfiler_v%d", version);
    p->version = version;
    p->t.any = dlsym(lib, symbol);
    if (!p->t.any)
        return false;
    need(r, p->t.v1->name && p->t.v1->name[0], "profiler v%d has no name", version);
    const int ret = version <= 3   ? p->t.v1->init(&ctx, &mask[1])
                    : version == 4 ? p->t.v4->init(&ctx, &mask[1], NULL, 5, 2, 4, 1, logger)
                                   : p->t.v5->init(&ctx, 5, &mask[1], "comm", 2, 4, 1, logger);
    need(r, !ret, "init of profiler v%d failed with %d", version, ret);
    need(r, mask[0] == 0x77 && mask[2] == 0x77, "profiler v%d wrote beside the mask", version);
    need(r, mask[1] != 0x77777777, "profiler v%d leaves the mask as it was", version);
    need(r, !r->o->own || mask[1] == 0, "profiler v%d is not idle: mask %#x", version, (unsigned)mask[1]);
    need(r, ctx, "profiler v%d gave no context: its finalize would never come", version);
    p->ctx = ctx;
    return true;
}

void profiler_close(struct rank *r, struct profiler *p)
{
    need(r, !p->t.v1->finalize(p->ctx), "finalize of profiler v%d failed", p->version);
}

static void profiler(struct rank *r)
{
    const char *why = "";
    void *lib = caller_load(r->o->path, &why);
    int found = 0;
    need(r, lib, "dlopen: %s", why);
    for (int v = 1; v <= 6; v++) {
        struct profiler p;
        if (!profiler_open(r, lib, v, &p))
            continue;
        found++;
        profiler_events(r, &p);
        profiler_close(r, &p);
    }
    if (!found)
        skip(r, "no profiler in this library");
}

const struct test_case cases_side[] = {
    {.name = "tuner", .ranks = 1, .run = tuner, .raw = true},
    {.name = "profiler", .ranks = 1, .run = profiler, .raw = true},
    {.name = NULL},
};
