/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Timeline of a block: one event a task, one for each session of tiles, one for each wait of more than a microsecond.
 * Only the leader writes; without a buffer (mk_gpu_device.trace) it costs the look at a word in shared memory. Included
 * by gemm_ar_block.cuh. */
#pragma once

#define MK_TRACE_WAIT_NS 1000

struct mk_trace_words { /* in shared memory */
    struct mk_gpu_event *at;
    uint32_t n, room;
    uint64_t begin_ns, end_ns; /* of the task that runs (0: none), of the last one */
};

MK_DEV void mk_trace_enter(const struct mk_gpu_device *d, struct mk_trace_words *t)
{
    t->at = d->trace ? d->trace + (uint64_t)blockIdx.x * d->trace_room : (struct mk_gpu_event *)0;
    t->n = 0;
    t->room = d->trace_room;
    t->begin_ns = 0;
    t->end_ns = mk_now_ns();
}
/* Something to do was found: next is MK_NEXT_TASK. */
MK_DEV void mk_trace_begin(struct mk_trace_words *t, int next)
{
    if (t->at && next == MK_NEXT_TASK)
        t->begin_ns = mk_now_ns();
}
MK_DEV void mk_trace_put(struct mk_trace_words *t, uint64_t begin, uint64_t end, int32_t kind, uint32_t index)
{
    if (t->n < t->room) {
        struct mk_gpu_event *e = &t->at[t->n];
        e->begin_ns = begin;
        e->end_ns = end;
        e->kind = (uint32_t)kind;
        e->index = index;
    }
    t->n++;
}
/* Whatever it was, it is done. */
MK_DEV void mk_trace_end(struct mk_trace_words *t, const struct mk_ar_block *blk)
{
    if (!t->begin_ns)
        return;
    const uint64_t now = mk_now_ns();
    if (t->begin_ns > t->end_ns + MK_TRACE_WAIT_NS)
        mk_trace_put(t, t->end_ns, t->begin_ns, MK_AR_KINDS, 0);
    mk_trace_put(t, t->begin_ns, now, blk->task.kind, blk->task.chunk);
    t->end_ns = now;
    t->begin_ns = 0;
}
MK_DEV void mk_trace_leave(const struct mk_gpu_device *d, const struct mk_trace_words *t)
{
    if (t->at)
        d->traced[blockIdx.x] = t->n;
}
