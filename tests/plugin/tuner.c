/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* NCCL's tuner tables over the tuner, all versions, with an agreement that the test plays: what gets into NCCL's table of costs
 * and channels, and that nothing does without one, without the setting, or from costs that make no sense. Links the objects,
 * since the shared object hides the seam; the harness (case tuner) drives the shared object. */
#include "check.h"
#include "mk/tune.h"
#include "plugin/nccl/abi_tuner.h"
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const struct mk_nccl_tuner_v2 ncclTunerPlugin_v2;
extern const struct mk_nccl_tuner_v3 ncclTunerPlugin_v3;
extern const struct mk_nccl_tuner_v4 ncclTunerPlugin_v4;
extern const struct mk_nccl_tuner_v5 ncclTunerPlugin_v5;
extern const struct mk_nccl_tuner_v6 ncclTunerPlugin_v6;

enum { A = 7, P = 3, RING_LL128 = 4 };

/* ---- the agreement ---- */

static const struct mk_tune_table table = {
    .count = 1, .cap = 16, .entry = {{MK_COLL_ALLREDUCE, 20, 20, MK_ALGO_RING, MK_PROTO_LL128, 6, 0}}};

static int begin(void *ctx, uint64_t *id)
{
    *id = *(uint64_t *)ctx;
    return 0;
}

static uint64_t id_of[8];
static int opened_n;
static void opened(void *ctx, struct mk_tune *t)
{
    (void)ctx;
    uint64_t *id = &id_of[opened_n++ % 8];
    const struct mk_tune_turn turn = {begin, id};
    if (!mk_tune_facts_of(t)->comm_id)
        return; /* nobody could be asked about it */
    *id = mk_tune_offer(t, &table);
    mk_tune_set_turn(t, &turn);
}

/* ---- NCCL's side ---- */

static void logger(int level, unsigned long flags, const char *file, int line, const char *fmt, ...)
{
    (void)level, (void)flags, (void)file, (void)line, (void)fmt;
}

static int start(int v, void **ctx, struct mk_nccl_tuner_constants *k)
{
    struct mk_nccl_nvl_info nvl = {1, 8, 8};
    switch (v) {
    case 2:
        return ncclTunerPlugin_v2.init(16, 2, logger, ctx);
    case 3:
        return ncclTunerPlugin_v3.init(16, 2, logger, ctx);
    case 4:
        return ncclTunerPlugin_v4.init(16, 2, logger, ctx);
    case 5:
        return ncclTunerPlugin_v5.init(ctx, 99, 16, 2, logger, &nvl, k);
    default:
        return ncclTunerPlugin_v6.init(ctx, 99, 16, 2, logger, &nvl, k);
    }
}
static int end(int v, void *ctx)
{
    return v == 2   ? ncclTunerPlugin_v2.destroy(ctx)
           : v <= 4 ? ncclTunerPlugin_v4.destroy(ctx)
                    : ncclTunerPlugin_v6.finalize(ctx);
}

static int algo, proto;
static int ask(int v, void *ctx, int func, size_t bytes, float *cost, int *channels)
{
    float **at = (float **)(void *)cost;
    *channels = 0;
    algo = proto = -1;
    switch (v) {
    case 2:
        return ncclTunerPlugin_v2.getCollInfo(ctx, func, bytes, 0, 0, 1, &algo, &proto, channels);
    case 3:
        return ncclTunerPlugin_v3.getCollInfo(ctx, func, bytes, 1, at, A, P, channels);
    case 4:
        return ncclTunerPlugin_v4.getCollInfo(ctx, func, bytes, 1, at, A, P, 1, channels);
    case 5:
        return ncclTunerPlugin_v5.getCollInfo(ctx, func, bytes, 1, at, A, P, 1, channels);
    default:
        return ncclTunerPlugin_v6.getCollInfo(ctx, func, bytes, 1, at, A, P, 1, channels);
    }
}

static void costs(float c[A * P])
{
    for (int i = 0; i < A * P; i++)
        c[i] = i < 2 * P ? 100 + (float)i : -1;
    c[2] = 50;
}

/* Asks about everything; whatever is agreed, these must come out as they went in. */
static void odd(int v, void *ctx, const char *what)
{
    const float special[] = {-1, NAN, INFINITY, -INFINITY, 0};
    const size_t sizes[] = {0, 1, (size_t)1 << 20, (size_t)1 << 60, SIZE_MAX};
    float c[A * P], before[A * P];
    int channels;
    for (int s = 0; s < 5; s++)
        for (int k = 0; k < 5; k++)
            for (int func = -1; func < 16; func++) {
                for (int i = 0; i < A * P; i++)
                    c[i] = before[i] = special[s];
                CHECK(!ask(v, ctx, func, sizes[k], c, &channels), "%s, v%d: an error", what, v);
                CHECK(!memcmp(c, before, sizeof(c)) && !channels && algo == -1 && proto == -1,
                      "%s, v%d: a choice from costs that make no sense", what, v);
            }
}

static void one(int v, const char *setting, bool agreed)
{
    struct mk_nccl_tuner_constants k, was;
    float c[A * P], before[A * P];
    void *ctx = NULL;
    int channels;
    memset(&k, v & 1 ? 0x3f : 0xff, sizeof(k)); /* 0xff: not numbers */
    was = k;
    opened_n = 0;
    setenv("MK_TUNER", setting, 1);
    mk_tune_on_open(agreed ? opened : NULL, NULL);
    CHECK(!start(v, &ctx, &k) && ctx, "%s, v%d: no context", setting, v);
    CHECK(!memcmp(&k, &was, sizeof(k)), "%s, v%d: the constants are changed", setting, v);
    const bool acts = agreed && v >= 5 && !strcmp(setting, "on");
    CHECK(opened_n == (agreed && strcmp(setting, "off") != 0 && strcmp(setting, "wrong") != 0),
          "%s, v%d: opened %d times", setting, v, opened_n);
    costs(before);
    costs(c);
    CHECK(!ask(v, ctx, MK_COLL_ALLREDUCE, 1 << 20, c, &channels), "%s, v%d: an error", setting, v);
    CHECK(channels == (acts ? 6 : 0), "%s, v%d: %d channels", setting, v, channels);
    for (int i = 0; i < A * P; i++)
        CHECK(acts && i == RING_LL128 ? !(c[i] > 0) && !(c[i] < 0) : !memcmp(&c[i], &before[i], 4),
              "%s, v%d: cell %d is %g", setting, v, i, (double)c[i]);
    costs(c);
    CHECK(!ask(v, ctx, MK_COLL_BROADCAST, 1 << 24, c, &channels) && channels == (acts ? 16 : 0),
          "%s, v%d: %d channels under the cap", setting, v, channels);
    CHECK(!memcmp(c, before, sizeof(c)), "%s, v%d: the cap changes costs", setting, v);
    odd(v, ctx, setting);
    CHECK(!end(v, ctx) && !end(v, NULL), "%s, v%d: no end", setting, v);
    CHECK(!ask(v, NULL, MK_COLL_ALLREDUCE, 1 << 20, c, &channels) && !channels, "%s, v%d: no context",
          setting, v);
}

/* Two communicators from two threads. */
static void *many(void *ctx)
{
    float c[A * P];
    int channels;
    for (int i = 0; i < 20000; i++) {
        costs(c);
        if (ncclTunerPlugin_v6.getCollInfo(ctx, MK_COLL_ALLREDUCE, 1 << 20, 1, (float **)(void *)c, A, P, 0,
                                           &channels) ||
            channels != 6)
            return ctx;
    }
    return NULL;
}
static void threads(void)
{
    void *ctx[2] = {NULL, NULL}, *wrong;
    struct mk_nccl_tuner_constants k;
    pthread_t t[2];
    memset(&k, 0, sizeof(k));
    setenv("MK_TUNER", "on", 1);
    mk_tune_on_open(opened, NULL);
    for (int i = 0; i < 2; i++)
        if (start(6, &ctx[i], &k) || pthread_create(&t[i], NULL, many, ctx[i]))
            exit(1);
    for (int i = 0; i < 2; i++) {
        pthread_join(t[i], &wrong);
        CHECK(!wrong, "a thread got another answer");
        CHECK(!end(6, ctx[i]), "no end");
    }
}

int main(void)
{
    static const char *const settings[] = {"off", "observe", "on", "wrong"};
    for (int v = 2; v <= 6; v++)
        for (int s = 0; s < 4; s++)
            for (int agreed = 0; agreed < 2; agreed++)
                one(v, settings[s], agreed);
    threads();
    return bad;
}
