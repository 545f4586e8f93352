/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What is a launch waiting for? One sentence for the log, from the heads of its queues. */
#include "comm.h"
#include "ops/gemm_ar_do.h"
#include <stdio.h>

static int rank_of(const struct mk_comm *comm, int node_level, int peer)
{
    const struct mk_topo *t = &comm->topo;
    return comm->rank_at[node_level ? peer * t->nlocal + t->local : t->node * t->nlocal + peer];
}

/* The first input or slot of the task that is missing; true: a rank that has not come. */
static bool missing(struct mk_comm *comm, const struct mk_ar *ar, const struct mk_ar_block *blk,
                    const struct mk_task *t, char *text, size_t size)
{
    const struct mk_topo *tp = &comm->topo;
    if (t->kind == MK_AR_HDR_IN_LOCAL || t->kind == MK_AR_HDR_IN_NODE) {
        snprintf(text, size, "rank %d has not come to this call",
                 rank_of(comm, t->kind == MK_AR_HDR_IN_NODE, t->peer));
        return true;
    }
    for (int e = 0; e < tp->nnodes; e++) {
        if (e == tp->node || t->kind == MK_AR_PUSH || t->kind == MK_AR_BCAST)
            continue;
        if (t->kind == MK_AR_REDUCE && !mk_ar_arrived(ar, MK_CLASS_SUM, e, t->item)) {
            snprintf(text, size, "node sum of chunk %u from rank %d", t->chunk, rank_of(comm, 1, e));
            return false;
        }
        if (t->kind == MK_AR_SUM && t->peer == e && !mk_ar_granted(ar, MK_CLASS_SUM, e, t->item)) {
            snprintf(text, size, "a slot of rank %d for chunk %u", rank_of(comm, 1, e), t->chunk);
            return false;
        }
        if (t->kind == MK_AR_RESULT && t->peer == e) {
            snprintf(text, size, "result of chunk %u from rank %d", t->chunk, rank_of(comm, 1, e));
            return false;
        }
    }
    if (mk_ar_reads_tiles(ar, t->kind) && mk_ar_has_tiles(ar) && !mk_ar_tiles_ready(ar, blk, t, 0, 1)) {
        snprintf(text, size, "tiles of chunk %u, which this rank computes", t->chunk);
        return false;
    }
    if (t->kind == MK_AR_PUSH || t->kind == MK_AR_BCAST) {
        snprintf(text, size,
                 t->kind == MK_AR_BCAST ? "chunk %u from rank %d" : "a slot for chunk %u at rank %d",
                 t->chunk, rank_of(comm, 0, t->peer));
        return false;
    }
    for (int r = 0; r < tp->nlocal; r++)
        if (r != tp->local && !mk_ar_arrived(ar, MK_CLASS_PARTIAL, r, t->owned)) {
            snprintf(text, size, "partial of chunk %u from rank %d", t->chunk, rank_of(comm, 0, r));
            return false;
        }
    snprintf(text, size, "%s of chunk %u (epoch %llu)", mk_trace_task_name(t->kind), t->chunk,
             (unsigned long long)blk->epoch);
    return false;
}

bool mk_stuck_describe(struct mk_comm *comm, const struct mk_ar *ar, const struct mk_ar_block *blk,
                       char *text, size_t size)
{
    static const int order[] = {MK_AR_HDR_IN_LOCAL, MK_AR_HDR_IN_NODE, MK_AR_REDUCE, MK_AR_SUM,
                                MK_AR_RESULT,       MK_AR_PUSH,        MK_AR_BCAST};
    char what[128] = "completion of what was sent";
    bool absent = false;
    for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++) {
        const char fan = mk_ar_fan(order[i]);
        const int self = fan == 'l' ? comm->topo.local : comm->topo.node;
        const int n = fan == '1' ? 1 : fan == 'l' ? comm->topo.nlocal : comm->topo.nnodes;
        for (int p = 0; p < n; p++) {
            if (fan != '1' && p == self)
                continue;
            const uint32_t head = mk_count_read(&comm->state->queue[order[i]][p], blk->tag);
            const uint32_t items = mk_ar_items(ar, order[i], p);
            if (head >= items)
                continue;
            struct mk_task t;
            mk_ar_locate(ar, order[i], p, head, items, &t);
            if (mk_ar_ready(ar, blk, &t))
                continue;
            absent = missing(comm, ar, blk, &t, what, sizeof(what));
            goto out;
        }
    }
out:
    snprintf(text, size, "gemm_allreduce, operation %llu, %s waits for: %s", (unsigned long long)blk->epoch,
             blk->prefers_comm ? "communication block" : "block", what);
    return absent;
}
