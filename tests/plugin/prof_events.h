/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* NCCL's side of the profiler, for tests: the events of a collective, in the order and with the parents that each version
 * of the table gets, those alone that the mask asks for (itself or one below it). */
#pragma once
#include "plugin/nccl/abi_profiler.h"

struct prof { /* a communicator */
    int version, *mask;
    void *ctx;
    union {
        const void *any;
        const struct mk_nccl_profiler_v1 *v1; /* all but init, and what pointers lead to, is the same */
        const struct mk_nccl_profiler_v4 *v4;
        const struct mk_nccl_profiler_v5 *v5;
    } t;
    int rank, nranks;
    unsigned runs;
    int failed; /* calls that were no success, or left a handle unwritten */
};

/* From the library's handle; false: no such table. init has been called. */
bool prof_open(struct prof *p, void *lib, int version, uint64_t comm_id, int rank, int nranks, int *mask);
void prof_close(struct prof *p);

struct prof_coll {
    const char *func, *dtype, *algo, *proto; /* NCCL's names */
    size_t count;
    int channels;
    bool captured;
};
/* What the user's thread does: API, group, collective, launch. Returns the collective's handle, NULL: not asked for. */
void *prof_enqueue(struct prof *p, const struct prof_coll *c);
/* NCCL from 2.29 on, where the copy engine makes an all-to-all, a gather or a scatter. */
void prof_copied(struct prof *p, const char *func);
/* What a thread of CUDA does when a graph is launched that the collective is in, and it goes over the network. */
void prof_replay(struct prof *p, const struct prof_coll *c);
/* The same for a send to `peer`. */
void *prof_send(struct prof *p, size_t count, int peer);
/* What the progress thread does, a channel at a time, GPU timers from start to stop (channel i begins i ns later). Before
 * version 3: a ProxyOp of process `pid`. */
void prof_run(struct prof *p, void *parent, int channels, uint64_t start, uint64_t stop, pid_t pid);
/* One event of it, for what goes wrong: starts a channel. */
void *prof_channel(struct prof *p, void *parent, int channel, uint64_t start);
void prof_channel_end(struct prof *p, void *handle, uint64_t stop);
