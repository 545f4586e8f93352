/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* NCCL's tuner plugin: mk/tune.h decides, which changes NCCL's choice only by a table that all ranks agreed on. Success
 * always: an error here fails the user's collective. MK_TUNER=off: nothing; observe: says what an agreed table would change,
 * and changes nothing; on: changes it. The constants of NCCL's model stay as they are: they are set once, before anything is
 * measured or agreed. Versions 2 to 4 do not name the communicator, so nothing can be agreed on for theirs. */
#include "../intercept/hook.h"
#include "abi_tuner.h"
#include "carry.h"
#include "face.h"
#include "mk/err.h"
#include "mk/log.h"
#include "mk/param.h"
#include "mk/tune.h"
#include <string.h>

extern MK_NCCL_EXPORT const struct mk_nccl_tuner_v6 ncclTunerPlugin_v6;
extern MK_NCCL_EXPORT const struct mk_nccl_tuner_v5 ncclTunerPlugin_v5;
extern MK_NCCL_EXPORT const struct mk_nccl_tuner_v4 ncclTunerPlugin_v4;
extern MK_NCCL_EXPORT const struct mk_nccl_tuner_v3 ncclTunerPlugin_v3;
extern MK_NCCL_EXPORT const struct mk_nccl_tuner_v2 ncclTunerPlugin_v2;

static char nobody; /* a context that is not NULL: some NCCL call finalize only for those */

/* Largest of NCCL's values: for any kind of machine. A limit that is too high asks for nothing that is wrong: only for
 * fewer trials. */
static double largest(const double v[4][3])
{
    double most = 0;
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 3; k++)
            most = v[i][k] > most ? v[i][k] : most;
    return most;
}

static void take_constants(struct mk_tune_facts *f, const struct mk_nccl_tuner_constants *k)
{
    static_assert(sizeof(f->base_us) == sizeof(k->baseLatencies) &&
                      sizeof(f->hop_us) == sizeof(k->hwLatencies),
                  "NCCL's algorithms and protocols");
    memcpy(f->base_us, k->baseLatencies, sizeof(f->base_us));
    memcpy(f->hop_us, k->hwLatencies, sizeof(f->hop_us));
    f->ring_ll128 = largest(k->perChMaxRingLL128Bws);
    f->tree_ll128 = largest(k->perChMaxTreeLL128Bws);
    f->tree_simple = largest(k->perChMaxTreeBws);
    f->has_constants = true;
}

static int init_v6(void **ctx, uint64_t comm_id, size_t nranks, size_t nnodes, mk_nccl_logger_fn log,
                   struct mk_nccl_nvl_info *nvl, struct mk_nccl_tuner_constants *k)
{
    struct mk_settings s;
    struct mk_tune_facts f;
    struct mk_tune *t = NULL;
    (void)nvl;
    mk_nccl_log(log);
    if (!ctx)
        return MK_NCCL_SUCCESS;
    *ctx = &nobody;
    if (mk_settings_load(&s, false)) {
        MK_WARN("TUNER", "%s: NCCL's choice stands", mk_last_error());
        return MK_NCCL_SUCCESS;
    }
    if (!strcmp(s.tuner, "off"))
        return MK_NCCL_SUCCESS;
    memset(&f, 0, sizeof(f));
    f.comm_id = comm_id;
    f.nranks = nranks < INT32_MAX ? (int)nranks : 0;
    f.nnodes = nnodes < INT32_MAX ? (int)nnodes : 0;
    if (k)
        take_constants(&f, k);
    const enum mk_tune_mode mode = !strcmp(s.tuner, "on") ? MK_TUNE_ON : MK_TUNE_OBSERVE;
    if (mk_tune_open(&f, mode, &t))
        return MK_NCCL_SUCCESS;
    if (mode == MK_TUNE_ON)
        mk_carry_open(t);
    *ctx = t;
    return MK_NCCL_SUCCESS;
}

static int init_v4(size_t nranks, size_t nnodes, mk_nccl_logger_fn log, void **ctx)
{
    return init_v6(ctx, 0, nranks, nnodes, log, NULL, NULL);
}

static int finalize(void *ctx)
{
    if (!ctx || ctx == &nobody)
        return MK_NCCL_SUCCESS;
    mk_carry_close(ctx);
    mk_tune_close(ctx);
    return MK_NCCL_SUCCESS;
}

/* table is the address of a dense row-major float[nalgo][nproto]. reg_buff is not the same on all ranks: not looked at. */
static int info_v6(void *ctx, int func, size_t nbytes, int npipe, float **table, int nalgo, int nproto,
                   int reg_buff, int *nchannels)
{
    struct mk_tune_ask ask = {.coll = func, .bytes = nbytes, .algos = nalgo, .protos = nproto};
    struct mk_tune_answer answer;
    (void)npipe, (void)reg_buff;
    mk_hook_poll();
    if (!ctx || ctx == &nobody)
        return MK_NCCL_SUCCESS;
    ask.cost = (float *)(void *)table;
    mk_tune_next(ctx, &ask, &answer);
    if (answer.applies && answer.channels && nchannels)
        *nchannels = answer.channels;
    return MK_NCCL_SUCCESS;
}

static int info_v3(void *ctx, int func, size_t nbytes, int npipe, float **table, int nalgo, int nproto,
                   int *nchannels)
{
    return info_v6(ctx, func, nbytes, npipe, table, nalgo, nproto, 0, nchannels);
}

/* No table of costs, so it is not known what is possible. What is not written keeps the "undefined" that NCCL brings. */
static int info_v2(void *ctx, int func, size_t nbytes, int collnet, int nvls, int npipe, int *algo,
                   int *proto, int *nchannels)
{
    (void)collnet, (void)nvls, (void)algo, (void)proto;
    return info_v6(ctx, func, nbytes, npipe, NULL, 0, 0, 0, nchannels);
}

#define TABLE(v, init_fn, info_fn, end)                                                                      \
    const struct mk_nccl_tuner_v##v ncclTunerPlugin_v##v = {                                                 \
        .name = MK_NCCL_NAME,                                                                                \
        .init = init_fn,                                                                                     \
        .getCollInfo = info_fn,                                                                              \
        .end = finalize, /* getChunkSize of version 6 is absent: NCCL's */                                   \
    }
TABLE(6, init_v6, info_v6, finalize);
TABLE(5, init_v6, info_v6, finalize);
TABLE(4, init_v4, info_v6, destroy);
TABLE(3, init_v4, info_v3, destroy);
TABLE(2, init_v4, info_v2, destroy);
