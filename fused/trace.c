/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Timeline: each block writes its own events; they are flattened after the call. */
#include "comm.h"
#include "cuda/gpu.h"
#include "mk/err.h"
#include <stdlib.h>
#include <string.h>

const char *mk_role_name(int role)
{
    static const char *const names[] = {"compute", "intra", "send", "recv", "idle"};
    return role >= 0 && role < MK_ROLES ? names[role] : "?";
}

const char *mk_trace_task_name(int task)
{
    static const char *const names[] = {"tile",      "push",      "node sum",   "reduce",
                                        "result",    "broadcast", "header out", "header out",
                                        "header in", "header in", "sum"};
    return task >= 0 && task < MK_AR_KINDS ? names[task] : "?";
}

int mk_ar_role(int kind)
{
    static const int roles[] = {MK_ROLE_COMPUTE, MK_ROLE_INTRA, MK_ROLE_SEND,  MK_ROLE_RECV,
                                MK_ROLE_RECV,    MK_ROLE_INTRA, MK_ROLE_INTRA, MK_ROLE_SEND,
                                MK_ROLE_INTRA,   MK_ROLE_RECV,  MK_ROLE_RECV};
    return roles[kind];
}

int mk_comm_trace(mk_comm_t comm, uint32_t events)
{
    if (!comm || events > 1u << 24)
        return mk_fail_quiet(MK_ERR_INVALID, comm ? "more than 2^24 events a block" : "comm is NULL");
    if (comm->gpu)
        return mk_gpu_trace(comm, events);
    for (int i = 0; i < comm->threads; i++) {
        struct mk_trace_event *p = events ? realloc(comm->trace[i].events, events * sizeof(*p)) : NULL;
        if (events && !p)
            return mk_fail(MK_ERR_NOMEM, "FUSED", "no memory for %u events", events);
        if (!events)
            free(comm->trace[i].events);
        comm->trace[i].events = p;
        comm->trace[i].count = 0;
    }
    comm->trace_events = events;
    return 0;
}

void mk_trace_begin(struct mk_comm *comm)
{
    for (int i = 0; i < comm->threads; i++) {
        comm->trace[i].count = 0;
        comm->trace[i].dropped = 0;
    }
}

void mk_trace_add(struct mk_comm *comm, int block, int role, const struct mk_task *task, uint64_t begin,
                  uint64_t end)
{
    struct mk_trace_block *t = &comm->trace[block];
    if (t->count >= comm->trace_events) {
        t->dropped++;
        return;
    }
    struct mk_trace_event *e = &t->events[t->count++];
    e->begin_ns = begin;
    e->end_ns = end;
    e->block = (uint16_t)block;
    e->role = (uint8_t)role;
    e->task = (uint8_t)task->kind;
    e->index = task->chunk;
}

uint32_t mk_comm_trace_events(mk_comm_t comm, const struct mk_trace_event **events, uint64_t *dropped)
{
    uint32_t n = 0;
    uint64_t lost = 0;
    if (comm->gpu) {
        n = mk_gpu_trace_events(comm, dropped);
        *events = comm->trace_flat;
        return n;
    }
    for (int i = 0; i < comm->threads; i++) {
        n += comm->trace[i].count;
        lost += comm->trace[i].dropped;
    }
    struct mk_trace_event *flat = realloc(comm->trace_flat, (n ? n : 1) * sizeof(*flat));
    if (!flat)
        return 0;
    comm->trace_flat = flat;
    for (int i = 0; i < comm->threads; i++) {
        memcpy(flat, comm->trace[i].events, comm->trace[i].count * sizeof(*flat));
        flat += comm->trace[i].count;
    }
    *events = comm->trace_flat;
    *dropped = lost;
    return n;
}

void mk_trace_free(struct mk_comm *comm)
{
    for (int i = 0; comm->trace && i < comm->threads; i++)
        free(comm->trace[i].events);
    free(comm->trace);
    free(comm->trace_flat);
}
