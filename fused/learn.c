/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What launches teach: which state of the controller a call uses, what it starts from, what is kept of it. */
#include "comm.h"
#include "mk/err.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int mk_learn_open(struct mk_comm *comm)
{
    struct mk_learn *l;
    if (strcmp(comm->settings.tuner, "on") || comm->settings.comm_blocks || comm->wants_gpu ||
        comm->nranks == 1 || comm->threads < 2)
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

static void key_of(const struct mk_comm *comm, const struct mk_gemm_call *c, struct mk_start_key *key)
{
    const int64_t mnk[3] = {c->m, c->n, c->k};
    char link[sizeof(key->link)] = "memory";
    if (comm->proxy) {
        const struct mk_caps *caps = mk_engine_caps(mk_proxy_engine(comm->proxy));
        int n = snprintf(link, sizeof(link), "%s %s", caps->transport, caps->provider);
        if (comm->settings.loop_gbps > 0 && n > 0 && (size_t)n < sizeof(link))
            snprintf(link + n, sizeof(link) - (size_t)n, " %g", comm->settings.loop_gbps);
    }
    mk_start_key(key, MK_START_GEMM_ALLREDUCE, (int)c->dtype, mnk, comm->topo.nnodes, comm->topo.nlocal,
                 "cpu", link);
}

/* The state of the key; else the one that was not used for longest, made new from what is known. */
static struct mk_learn_class *class_of(struct mk_comm *comm, const struct mk_start_key *key)
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
    struct mk_ar_ctl *ctl = &comm->state->control[oldest - l->class];
    struct mk_start known;
    memset(ctl, 0, sizeof(*ctl));
    oldest->key = *key;
    oldest->start = 0;
    if (mk_starts_get(l->starts, key, &known)) {
        ctl->ctl.cost[MK_CTL_COMPUTE] = known.cost[MK_CTL_COMPUTE];
        ctl->ctl.cost[MK_CTL_COMM] = known.cost[MK_CTL_COMM];
        oldest->start = (uint32_t)((uint64_t)known.target * (uint64_t)comm->threads / known.units);
    }
    return oldest;
}

void mk_learn_begin(struct mk_comm *comm, const struct mk_gemm_call *call, struct mk_ar *ar)
{
    struct mk_learn *l = comm->learn;
    struct mk_start_key key;
    if (!l || call->part != MK_PART_FUSED || comm->settings.comm_blocks)
        return;
    key_of(comm, call, &key);
    struct mk_learn_class *c = class_of(comm, &key);
    c->used = ++l->calls;
    ar->control = 1 + (uint32_t)(c - l->class);
    ar->control_start = c->start;
}

void mk_learn_end(struct mk_comm *comm, const struct mk_ar *ar)
{
    struct mk_start learned;
    if (!comm->learn || !ar->control)
        return;
    const struct mk_learn_class *c = &comm->learn->class[ar->control - 1];
    const struct mk_ar_ctl *ctl = &comm->state->control[ar->control - 1];
    if (!ctl->ctl.cost[MK_CTL_COMPUTE] || !ctl->ctl.cost[MK_CTL_COMM])
        return; /* only one kind of task: it taught nothing */
    memset(&learned, 0, sizeof(learned));
    learned.units = (uint32_t)ar->blocks;
    learned.target = ctl->settled;
    learned.cost[MK_CTL_COMPUTE] = ctl->ctl.cost[MK_CTL_COMPUTE];
    learned.cost[MK_CTL_COMM] = ctl->ctl.cost[MK_CTL_COMM];
    learned.chunk = (uint32_t)comm->rings.slot_bytes;
    learned.batch = (uint32_t)comm->settings.batch;
    mk_starts_put(comm->learn->starts, &c->key, &learned);
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
