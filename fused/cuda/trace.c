/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Timeline of the blocks on a GPU: a buffer in device memory while it is asked for, read after the call. Times are those
 * of the GPU's clock, which all ranks on it share; ranks on other GPUs of a host are near it. */
#include "comm.h"
#include "cuda/gpu.h"
#include "mk/err.h"
#include <stdlib.h>
#include <string.h>

#define ROOM_MAX 8192u
#define COUNTS_BYTES 4096u /* the counts of up to 1024 blocks lie before the events */

int mk_gpu_trace(struct mk_comm *comm, uint32_t events)
{
    struct mk_gpu *g = comm->gpu;
    const int blocks = mk_gpu_blocks(comm);
    mk_cu_ptr words[2] = {0, 0}, old = g->trace;
    uint32_t room = events < ROOM_MAX ? events : ROOM_MAX;
    if (blocks * 4 > (int)COUNTS_BYTES)
        return mk_fail_quiet(MK_ERR_UNSUPPORTED, "a timeline of %d blocks", blocks);
    mk_gpu_settle(comm);
    g->trace = 0;
    if (events) {
        const size_t bytes = COUNTS_BYTES + (size_t)blocks * room * sizeof(struct mk_gpu_event);
        const int err = g->cu->mem_alloc(&g->trace, bytes);
        if (err)
            return mk_cuda_fail(err, "memory of the timeline");
        words[0] = g->trace + COUNTS_BYTES;
        words[1] = g->trace;
    }
    g->trace_room = room;
    int ret = mk_gpu_poke(comm, offsetof(struct mk_gpu_device, trace_room), &room, sizeof(room));
    if (!ret)
        ret = mk_gpu_poke(comm, offsetof(struct mk_gpu_device, trace), words, sizeof(words));
    if (old)
        g->cu->mem_free(old);
    return ret;
}
_Static_assert(offsetof(struct mk_gpu_device, traced) == offsetof(struct mk_gpu_device, trace) + 8,
               "two words");

static struct mk_trace_event event_of(const struct mk_gpu_event *e, int block)
{
    struct mk_trace_event out;
    memset(&out, 0, sizeof(out));
    out.begin_ns = e->begin_ns;
    out.end_ns = e->end_ns;
    out.block = (uint16_t)block;
    out.role = (uint8_t)(e->kind < MK_AR_KINDS ? mk_ar_role((int)e->kind) : MK_ROLE_IDLE);
    out.task = (uint8_t)(e->kind < MK_AR_KINDS ? e->kind : 0);
    out.index = e->index;
    return out;
}

uint32_t mk_gpu_trace_events(struct mk_comm *comm, uint64_t *dropped)
{
    struct mk_gpu *g = comm->gpu;
    const int blocks = mk_gpu_blocks(comm);
    const uint32_t room = g->trace_room;
    uint32_t counts[COUNTS_BYTES / 4], n = 0;
    *dropped = 0;
    if (!g->trace)
        return 0;
    mk_gpu_settle(comm);
    struct mk_gpu_event *all = malloc((size_t)room * sizeof(*all));
    struct mk_trace_event *flat = realloc(
        comm->trace_flat, ((size_t)blocks * room + 1) * sizeof(*flat)); /* at most 26 MB for 132 blocks */
    comm->trace_flat = flat ? flat : comm->trace_flat;
    int err = !all || !flat || g->cu->copy_to_host(counts, g->trace, sizeof(counts));
    for (int b = 0; b < blocks && !err; b++) {
        const uint32_t have = counts[b] < room ? counts[b] : room;
        *dropped += counts[b] - have;
        err = have && g->cu->copy_to_host(all, g->trace + COUNTS_BYTES + (mk_cu_ptr)b * room * sizeof(*all),
                                          have * sizeof(*all));
        for (uint32_t i = 0; i < have && !err; i++)
            flat[n++] = event_of(&all[i], b);
    }
    free(all);
    return err ? 0 : n;
}
