/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* All ranks of a job in one process, over the real schedule headers and rings: memories on the heap, and instead of
 * proxy and NIC a "wire" that executes each rank's commands, in random order where the contract leaves it open.
 * Two ways to run: threads (every block and every wire is one), or a stepper that takes one random possible step at
 * a time, so that a seed gives one schedule and a deadlock is seen at once. */
#pragma once
#include "fused/comm.h"
#include <pthread.h>

#define WORLD_PENDING 4096

struct world;

enum world_control {
    WORLD_BUDGET = 0,     /* fixed */
    WORLD_CONTROLLER = 1, /* on state 0 */
    WORLD_ANY_TARGET = 2 /* somebody stopped while he held its lock, and the target is anything at any time */
};

struct world_rank {
    struct world *w;
    int index; /* node * nlocal + local */
    struct mk_topo topo;
    struct mk_rings rings;
    uint8_t *fixed, *staging;
    uint8_t **peer_fixed, **peer_staging;
    struct mk_bell **peer_bell;
    struct mk_ar_state *state;
    uint64_t *tile_flag, abort_word;
    struct mk_cmd *ring_slots;
    uint64_t ring_claim, ring_tail, ring_seen, taken;
    struct mk_ring ring;
    struct mk_cpu_host host;
    struct mk_ar ar;
    uint64_t rng;
    /* wire: commands taken from the ring and not yet executed; touched by one thread */
    struct mk_cmd pending[WORLD_PENDING];
    int npending;
    /* data of the current call */
    int64_t k, lda, ldb, ldc;
    void *a, *b, *c;
    int seen_mismatch;
    struct world_queued *queued; /* calls of world_run_queued */
    int first_left;              /* with late; __atomic */
};

struct world {
    int nnodes, nlocal, n, blocks;
    struct world_rank *r;
    int stop;         /* wires end; __atomic */
    int delays;       /* blocks and wires sleep now and then */
    int lose_credits; /* the wire drops every n-th credit; 0: none */
    int control;      /* enum world_control */
    int nqueued;
    int late; /* of each rank one block comes alone, the others when it has left */
    int (*next)(const struct mk_ar *ar, struct mk_ar_block *blk); /* of threads; NULL: mk_ar_next */
    uint64_t patience_ns;
    uint64_t seed;
};

struct world *world_create(int nnodes, int nlocal, int blocks, size_t workspace, size_t chunk, uint64_t start,
                           uint64_t seed);
void world_destroy(struct world *w);

/* One call. k[rank]; fills inputs from the seed (all ranks different), poisons C, builds the plans. */
struct world_call {
    int64_t m, n;
    const int64_t *k; /* per rank */
    int layout, dtype, wire_fp32, act, with_bias;
    int pad; /* added to every leading dimension */
};
int world_prepare(struct world *w, const struct world_call *c);
/* Runs it on threads; 0, or the number of blocks that gave up after 20 s without progress. */
int world_run_threads(struct world *w);
/* Runs it step by step; 0, or 1 for a deadlock. */
int world_run_steps(struct world *w);
/* The prepared call is the next one of each rank; world_prepare may then be called again. */
void world_queue(struct world *w);
/* Runs the queued calls step by step, each rank its own as fast as it can: some are in a call while others are still in the
 * one before. After a mismatch nobody goes on. 0, or 1 for a deadlock. done[rank]: calls that it has finished. */
int world_run_queued(struct world *w, int *done);
/* Queued call number i is the one that world_verify looks at. */
void world_recall(struct world *w, int i);
/* Compares every rank's C with the contract, bit by bit, and with float64; returns the number of wrong elements, and
 * the relative error. Elements outside [m, n] must still hold the poison. */
int64_t world_verify(struct world *w, const struct world_call *c, double *rel_error);
/* How many elements of a rank's C are neither its own partial's nor the poison. */
int64_t world_strange(struct world *w, const struct world_call *c, int rank);
void world_finish(struct world *w);
uint64_t world_rand(uint64_t *state);
