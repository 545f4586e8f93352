/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What launches teach: which state of the controller a call uses, what it starts from, what is kept of it. */
#include "comm.h"
#include "cuda/gpu.h"
#include "mk/err.h"
#include "ops/gemm_ar_turn.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Whether MK_COMM_BLOCKS=0 means the controller on a GPU too; -1 always does. */
#define GPU_CHOOSES_CONTROLLER 0

static bool is_wanted(const struct mk_comm *comm)
{
    const int64_t given = comm->settings.comm_blocks;
    if (strcmp(comm->settings.tuner, "on") || given > 0 || comm->nranks == 1)
        return false;
    return comm->wants_gpu ? given < 0 || GPU_CHOOSES_CONTROLLER : comm->threads > 1;
}

int mk_learn_open(struct mk_comm *comm)
{
    struct mk_learn *l;
    if (!is_wanted(comm))
        return 0;
    l = calloc(1, sizeof(*l));
    if (!l)
        return mk_fail(MK_ERR_NOMEM, "FUSED", "no memory for what a communicator learns");
    const int ret = mk_starts_open_settings(&comm->settings, &l->starts);
    if (ret) {
        free(l);
        return ret;
    }
    comm->learn = l;
    return 0;
}

static void key_of(struct mk_comm *comm, const struct mk_gemm_call *c, struct mk_start_key *key)
{
    const int64_t mnk[3] = {c->m, c->n, c->k};
    struct mk_learn *l = comm->learn;
    char link[sizeof(key->link)] = "memory";
    if (comm->gpu && !l->gpu[0] && comm->gpu->cu->device_name(l->gpu, (int)sizeof(l->gpu), comm->gpu->device))
        snprintf(l->gpu, sizeof(l->gpu), "gpu");
    if (comm->proxy) {
        const struct mk_caps *caps = mk_engine_caps(mk_proxy_engine(comm->proxy));
        int n = snprintf(link, sizeof(link), "%s %s", caps->transport, caps->provider);
        if (comm->settings.loop_gbps > 0 && n > 0 && (size_t)n < sizeof(link))
            snprintf(link + n, sizeof(link) - (size_t)n, " %g", comm->settings.loop_gbps);
    }
    mk_start_key(key, MK_START_GEMM_ALLREDUCE, (int)c->dtype, mnk, comm->topo.nnodes, comm->topo.nlocal,
                 comm->gpu ? l->gpu : "cpu", link);
}

static void keep(struct mk_comm *comm, const struct mk_learn_class *c, int blocks, const uint32_t cost[2],
                 uint32_t target)
{
    struct mk_start learned;
    if (!cost[MK_CTL_COMPUTE] || !cost[MK_CTL_COMM])
        return; /* only one kind of task: it taught nothing */
    memset(&learned, 0, sizeof(learned));
    learned.units = (uint32_t)blocks;
    learned.target = target;
    learned.cost[MK_CTL_COMPUTE] = cost[MK_CTL_COMPUTE];
    learned.cost[MK_CTL_COMM] = cost[MK_CTL_COMM];
    learned.chunk = (uint32_t)comm->rings.slot_bytes;
    learned.batch = (uint32_t)comm->settings.batch;
    mk_starts_put(comm->learn->starts, &c->key, &learned);
}

/* GPU: what a class's launches have told, if it is new. */
static void take(struct mk_comm *comm, struct mk_learn_class *c)
{
    const uint64_t *told = comm->gpu->words->taught[c - comm->learn->class];
    uint64_t taught[MK_AR_TAUGHT];
    taught[MK_TAUGHT_TARGET] = __atomic_load_n(&told[MK_TAUGHT_TARGET], __ATOMIC_ACQUIRE);
    taught[MK_TAUGHT_COSTS] = __atomic_load_n(&told[MK_TAUGHT_COSTS], __ATOMIC_RELAXED);
    if (!c->used || taught[MK_TAUGHT_TARGET] >> 32 != c->number || !memcmp(taught, c->taught, sizeof(taught)))
        return;
    memcpy(c->taught, taught, sizeof(taught));
    const uint32_t cost[2] = {(uint32_t)taught[MK_TAUGHT_COSTS], (uint32_t)(taught[MK_TAUGHT_COSTS] >> 32)};
    keep(comm, c, mk_gpu_blocks(comm), cost, (uint32_t)taught[MK_TAUGHT_TARGET]);
}

void mk_learn_collect(struct mk_comm *comm)
{
    for (int i = 0; comm->learn && comm->gpu && i < MK_AR_CTL_CLASSES; i++)
        take(comm, &comm->learn->class[i]);
}

/* The state of the key; else the one that was not used for longest, made new from what is known. */
static struct mk_learn_class *class_of(struct mk_comm *comm, const struct mk_start_key *key, int blocks)
{
    struct mk_learn *l = comm->learn;
    struct mk_learn_class *oldest = &l->class[0];
    for (int i = 0; i < MK_AR_CTL_CLASSES; i++) {
        struct mk_learn_class *c = &l->class[i];
        if (c->used && !memcmp(&c->key, key, sizeof(*key)))
            return c;
        if (c->used < oldest->used)
            oldest = c;
    }
    struct mk_start known;
    if (comm->gpu)
        take(comm, oldest);
    memset(oldest, 0, sizeof(*oldest));
    oldest->key = *key;
    oldest->number = ++l->numbers;
    if (mk_starts_get(l->starts, key, &known)) {
        memcpy(oldest->cost, known.cost, sizeof(oldest->cost));
        oldest->start = (uint32_t)((uint64_t)known.target * (uint64_t)blocks / known.units);
    }
    return oldest;
}

void mk_learn_begin(struct mk_comm *comm, const struct mk_gemm_call *call, struct mk_ar *ar)
{
    struct mk_learn *l = comm->learn;
    struct mk_start_key key;
    if (!l || call->part != MK_PART_FUSED || comm->settings.comm_blocks > 0 || ar->latency)
        return;
    key_of(comm, call, &key);
    struct mk_learn_class *c = class_of(comm, &key, ar->blocks);
    c->used = ++l->calls;
    ar->control = 1 + (uint32_t)(c - l->class);
    ar->control_number = c->number;
    ar->control_start = c->start;
    memcpy(ar->control_cost, c->cost, sizeof(ar->control_cost));
    ar->control_pin = comm->pinned;
    ar->grid.edge_first = ar->grid.edge_last = 0; /* it counts tasks, so they are all alike for it */
    if (!comm->gpu)
        return;
    take(comm, c);
    if (!c->start)
        ar->control_start = (uint32_t)ar->budget; /* as without it */
    ar->taught = (uint64_t *)(uintptr_t)(comm->gpu->words_device + offsetof(struct mk_gpu_words, taught)) +
                 MK_AR_TAUGHT * (size_t)(c - l->class);
}

void mk_learn_end(struct mk_comm *comm, const struct mk_ar *ar)
{
    if (!comm->learn || !ar->control)
        return;
    struct mk_ar_ctl *ctl = &comm->state->control[ar->control - 1];
    mk_ar_ctl_learn_last(ctl);
    keep(comm, &comm->learn->class[ar->control - 1], ar -> blocks, ctl -> ctl.cost, ctl->settled);
}

void mk_learn_close(struct mk_comm *comm, bool save)
{
    if (!comm->learn)
        return;
    if (save)
        mk_starts_save(comm->learn->starts);
    mk_starts_close(comm->learn->starts);
    free(comm->learn);
    comm->learn = NULL;
}
