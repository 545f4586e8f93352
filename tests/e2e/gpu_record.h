/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* A recorder over the stand-in for the driver: launches, events, copies and captures are written down. Launches are not
 * made, but for MK_VERIFY's look at C; copies are, by the stand-in. Small allocations are full of rubbish at first, as a GPU's are. */
#pragma once
#include "mk/cuda.h"

#define GPU_SMS 132 /* of the stand-in's devices */

struct gpu_launch {
    const char *name;
    uint32_t grid, threads, smem, cluster;
    bool early; /* programmatic serialization */
    void *stream;
    uint8_t args[4096]; /* the kernel's parameter, as far as it goes */
};

enum gpu_what { GPU_LAUNCH = 1, GPU_EVENT, GPU_WAIT, GPU_COPY, GPU_DEPEND };
struct gpu_step {
    enum gpu_what what;
    void *stream;
    void *event;      /* recorded (GPU_EVENT), waited for */
    void *node;       /* GPU_DEPEND: the first one */
    const char *name; /* GPU_LAUNCH */
    unsigned flags;
    mk_cu_ptr to, from;
    size_t n; /* bytes; nodes */
};

struct gpu_record {
    struct gpu_launch last;
    int launches;
    struct gpu_step step[64]; /* since gpu_forget; no more than these */
    int steps;
    void *capturing, *graph;     /* this stream, into that graph; NULL: none */
    uint64_t capture;            /* its id */
    uintptr_t node;              /* the capture's newest, on which the next one depends */
    int objects;                 /* user objects that there are */
    int hasty;                   /* streams that were destroyed before their copies were known to be there */
    bool busy;                   /* __atomic: what was launched does not end */
    struct gpu_launch checks[4]; /* captured: pair_check, to be made by gpu_check at a replay */
    int nchecks;
    bool fail_launch, fail_order, fail_copy, fail_object, fail_retain;
};
extern struct gpu_record gpu;

/* Puts itself between the driver's table and its users, on the device 0's context; NULL: there is no driver. */
struct mk_cuda *gpu_record(void);
void gpu_forget(void);
/* Makes such a launch. */
void gpu_check(const struct gpu_launch *launch);
/* The graph is destroyed: so is what it alone kept. */
void gpu_graph_destroy(void *graph);
