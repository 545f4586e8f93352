/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* A rank in simulated time, for the controller: units that claim tasks with dependencies, and a link with a rate. */
#pragma once
#include "mk/dev/control.h"
#include <stddef.h>

#define SIM_UNITS 64
#define SIM_CHUNKS 2048

/* What happens, whatever is decided. Times in ns. Chunk c has `per` tiles; it is sent when they are done (gather: at
 * once, and its tiles may start when it has been received), goes over the link, arrives from the peer, which does the
 * same, and is received. */
struct sim_trace {
    uint32_t units, resident, ceiling; /* resident: so many units ever run */
    uint32_t chunks, per;
    bool gather;
    bool inside; /* the wait for the link is inside the send task */
    uint32_t credits;
    uint64_t latency, peer_late, pause_at, pause_for; /* the link stands still */
    uint64_t switch_cost, patience;
    uint32_t *tile, *send, *recv, *link; /* [chunks * per], [chunks] ... */
};

struct sim_policy {
    uint32_t (*step)(const struct mk_ctl_conf *, struct mk_ctl *, const struct mk_ctl_sample *); /* NULL: */
    uint32_t fixed; /* this target all along, from the first band on */
    uint32_t start; /* what the tuner knows */
    int (*act)(int role, int tile, int comm, bool patient);
};

struct sim_point {
    uint32_t boundary, target;
    uint32_t left; /* tiles */
};
#define SIM_POINTS 16384
struct sim_result {
    bool ended;
    uint64_t time, starved; /* the longest time for which a kind had ready tasks and none was claimed */
    uint64_t longest;       /* task */
    uint32_t npoints;
    struct sim_point point[SIM_POINTS]; /* each step's */
};

/* Makes a trace; the same seed, the same trace. steady: a long one without stalls, bursts and pauses. */
void sim_make(struct sim_trace *t, uint64_t seed, bool steady);
void sim_free(struct sim_trace *t);
/* Plays it. c: state between launches. */
void sim_run(const struct sim_trace *t, const struct sim_policy *p, struct mk_ctl *c, struct sim_result *r);
uint32_t sim_random(uint64_t *state, uint32_t below);
