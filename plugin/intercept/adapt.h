/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Between the hooks (hook.h) and the pair recogniser (mk/pair.h): calls become events, and what the recogniser decides is
 * carried out by the table of mk/fuse.h, under one lock. Where the table is empty every collective is NCCL's and every
 * GEMM the original, for the reason "no-kernels": then nothing is asked of a library and no stream is looked at.
 *
 * What is not known about a call never changes whether K or NCCL runs, which all ranks decide alike: a stream that cannot
 * be identified makes K plain, and keeps a GEMM the original.
 *
 * Proof by counters: by count.h, where all that enqueues is counted (LD_PRELOAD); the driver functions of table.h, which are not
 * all, come on top and do where the caller of mk_adapt_start says that they are all (stand-ins). Proof by capture needs no
 * hooks. */
#pragma once
#include "hook.h"
#include "mk/fuse.h"

struct mk_adapt_options {
    const struct mk_fuse_ops *ops; /* NULL: none */
    bool counted;                  /* the hooked functions are all that enqueue */
    bool deterministic;            /* MK_DETERMINISTIC */
    bool graph_only;               /* MK_FUSE=graph */
    bool proved_only;              /* mk_pair_options */
    int verify;                    /* MK_VERIFY */
    uint32_t witness;              /* W; 0: the recogniser's */
};
/* Takes the hooks. Once more (tests, with no call under way): all that was known is forgotten. */
int mk_adapt_start(const struct mk_adapt_options *options);

/* An event from elsewhere: the profiler, set-up, the network. `thread` is filled in. Any thread, also inside an original
 * call. Returns what mk_pair_step does; what it asks for is done. */
int mk_adapt_event(struct mk_pair_event *e);
/* false: no such communicator. */
bool mk_adapt_comm(uint64_t handle, struct mk_pair_comm_facts *out);
bool mk_adapt_count(struct mk_pair_counts *out);
/* What MK_VERIFY saw (WARN); counters, one line a reason (INFO); nothing where there was no call. */
void mk_adapt_report(void);
