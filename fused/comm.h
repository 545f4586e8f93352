/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* A communicator: who is where, the memories, the network, the executor, and what went wrong. Private to fused/.
 *
 *   comm.c       init, destroy, errors       topology.c   ranks to nodes
 *   rings.c      layout of the two memories  peers.c      exchange and mapping of peers' memory, links
 *   plan.c       checks, grid, signature     operator.c   the public calls
 *   cpu/exec.c   block threads               trace.c      timeline
 *   gone.c       neighbours that went away  learn.c  what launches teach the next ones
 *   choose.c     fused, or one part after the other
 *   cuda/gpu.c   GPU side of a communicator  cuda/gemm_ar.c launch of its kernels */
#pragma once
#include "mk/boot.h"
#include "mk/fused.h"
#include "mk/net.h"
#include "mk/param.h"
#include "mk/shm.h"
#include "mk/tuner.h"
#include "ops/gemm_ar.h"
#include "tile/tile_cpu.h"
#include <pthread.h>
#include <sys/types.h>

struct mk_pool;
struct mk_gpu;

struct mk_trace_block {
    struct mk_trace_event *events; /* written by the block, read after the call */
    uint32_t count;
    uint64_t dropped;
};

/* Which state of the controller (mk_ar_state.control) is whose, and what is known from before. Under call_lock. */
struct mk_learn_class {
    struct mk_start_key key;
    uint64_t used;                 /* the call that used it last; 0: free */
    uint32_t start;                /* mk_ctl_conf.start; 0: none */
    uint32_t number, cost[2];      /* mk_ar.control_number, control_cost */
    uint64_t taught[MK_AR_TAUGHT]; /* GPU: what was taken over last */
};
struct mk_learn {
    struct mk_starts *starts;
    uint64_t calls;
    uint32_t numbers; /* given so far */
    char gpu[48];     /* its name, once it was asked for */
    struct mk_learn_class class[MK_AR_CTL_CLASSES];
};

/* A failed link: text by the proxy thread, then code (release); read with acquire. 0: none. */
struct mk_link_fault {
    int code;
    char text[200];
};

struct mk_comm {
    int rank, nranks, threads;
    pid_t pid; /* of the process that made it: in a forked child its threads are not there */
    struct mk_topo topo;
    int *rank_at; /* [node * nlocal + local] */
    struct mk_settings settings;
    int wants_gpu;        /* all ranks made the communicator with a CUDA context current */
    size_t workspace;     /* counted against MK_WORKSPACE_TOTAL; 0: not */
    struct mk_boot *boot; /* NULL with one rank */
    struct mk_rings rings;
    struct mk_shm memory;       /* fixed, then staging */
    struct mk_shm *peer_memory; /* [local] */
    uint8_t **peer_fixed, **peer_staging;
    struct mk_bell **peer_bell;

    struct mk_proxy *proxy; /* NULL with one node */
    struct mk_link **links; /* [node] */
    struct mk_mr *windows[2];
    struct mk_rmem **rwindows; /* [node * 2 + window] */
    struct mk_notes *notes;
    uint32_t *note_step;
    uint16_t proxy_id;

    struct mk_gpu *gpu;        /* NULL: CPU executor */
    struct mk_ar_state *state; /* of the CPU executor; on a GPU the first values */
    uint64_t *tile_flag;
    size_t tile_flags;
    struct mk_cpu_host host;
    struct mk_pool *pool;
    struct mk_learn *learn;   /* NULL: budgets are fixed */
    uint32_t pinned;          /* mk_comm_pin_comm_blocks */
    struct mk_choose *choose; /* NULL: always fused */
    bool may_choose;          /* the same on all ranks */
    uint64_t calls_in_parts;
    pthread_mutex_t call_lock; /* one call at a time */

    /* The first failure stays. Written under fail_lock; abort_word is what blocks watch (release, acquire). */
    pthread_mutex_t fail_lock;
    uint64_t abort_word; /* 0, or the code negated */
    char fail_text[256];
    struct mk_link_fault *link_error; /* [node] */

    uint32_t trace_events; /* per block; 0: off */
    struct mk_trace_block *trace;
    struct mk_trace_event *trace_flat;
    uint32_t trace_count;
};

/* A word in the fixed memory, by which local peers learn that this rank has failed (the code, negated) or left, where
 * the bootstrap can no longer tell them. Written by this rank (release), read by local peers (acquire). */
#define MK_GONE_LEFT 256

/* For tests: counters and positions start here instead of near 0; set before init, equal on all ranks. */
extern uint64_t mk_comm_start;

/* One rank, on the CPU also where a CUDA context is current. */
int mk_comm_init_alone(mk_comm_t *comm);
/* For ranks that share a name and the address of their job (mk_boot_init_name_while, and its errors), on the current context. */
int mk_comm_init_name(mk_comm_t *comm, uint64_t name, int nranks, int rank, bool (*go_on)(void *ctx),
                      void *ctx);

/* Records the failure if it is the first, wakes the blocks; tell: the other ranks hear of it. Returns code. */
int mk_comm_fail(struct mk_comm *comm, int code, bool tell, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* 0, or the communicator's failure, its text as this thread's last error. */
int mk_comm_check(struct mk_comm *comm);
/* INVALID, with its text, if comm is NULL or was inherited by fork. */
int mk_comm_mine(const struct mk_comm *comm);

/* topology.c: fills topo and rank_at from what every rank said. */
struct mk_place {
    uint64_t host;
    int32_t node, local; /* -1: not given */
};
int mk_topology_build(const struct mk_place *places, int nranks, int rank, struct mk_topo *topo,
                      int *rank_at);

/* rings.c: pure layout. UNSUPPORTED if a slot would be below 16 KiB. */
/* The region of the latency path, on a GPU, where there is one node. */
void mk_rings_add_ll(struct mk_rings *r, size_t workspace);
int mk_rings_build(const struct mk_topo *topo, size_t workspace, size_t chunk, struct mk_rings *out);
/* First position of a class's rings when counters start at `start`. */
uint64_t mk_rings_start(const struct mk_rings *r, int cls, uint64_t start);
/* Values before the first use: own flags, credits, completions; and the state of the blocks. */
void mk_rings_init(const struct mk_rings *r, uint8_t *fixed, struct mk_ar_state *state, uint64_t start);
void mk_rings_note_steps(const struct mk_rings *r, uint32_t *step);

/* peers.c: memory, links, exchange. Teardown in a forked child leaves the network, which is the parent's, alone. */
int mk_peers_setup(struct mk_comm *comm);
void mk_peers_teardown(struct mk_comm *comm);
/* Every rank gives its status; all return the first failing rank's code. */
int mk_comm_agree(struct mk_comm *comm, int status);

/* plan.c */
struct mk_gemm_call {
    int64_t m, n, k, lda, ldb, ldc;
    const void *a, *b;
    void *c;
    const mk_epilogue_t *epilogue;
    mk_layout_t layout;
    mk_dtype_t dtype;
    enum mk_part part;
};
/* gpu: the operands are in GPU memory. Nothing is read through the pointers. */
int mk_plan_check(const struct mk_gemm_call *call, const void *stream, bool gpu);
/* Its part without operands: layout, dtype, sizes, activation. */
int mk_plan_check_facts(const struct mk_gemm_call *call, bool gpu);
/* gpu: chunks and tiles of the GPU executor. Only what was checked. */
int mk_plan_build(const struct mk_rings *rings, bool wire_fp32, bool gpu, const struct mk_gemm_call *call,
                  struct mk_ar *ar);

/* Tasks on a chunk: as many as have `worth` bytes, each some rows of a panel; between nodes less
 * in the first and last chunks of a queue. mk_plan_build has done so for a launch that also computes. */
void mk_plan_pieces(struct mk_ar *ar, int64_t worth);

/* learn.c */
/* INVALID: MK_TUNER_FILE is too long. Nothing is made where budgets are fixed: MK_TUNER not on, MK_COMM_BLOCKS given, one
 * rank or one block, a GPU without MK_COMM_BLOCKS=-1. */
int mk_learn_open(struct mk_comm *comm);
/* Binds the launch, whose blocks and budget are chosen, to its shape class's state of the controller. */
void mk_learn_begin(struct mk_comm *comm, const struct mk_gemm_call *call, struct mk_ar *ar);
/* CPU executor: after a launch that succeeded. */
void mk_learn_end(struct mk_comm *comm, const struct mk_ar *ar);
/* GPU: takes over what its launches have told so far, all but the last one of each class; nobody waits for them. */
void mk_learn_collect(struct mk_comm *comm);
/* save: into MK_TUNER_FILE. */
void mk_learn_close(struct mk_comm *comm, bool save);

/* cpu/exec.c */
int mk_pool_create(int threads, struct mk_pool **out);
void mk_pool_destroy(struct mk_pool *p);
/* In a forked child: the threads are the parent's. */
void mk_pool_forget(struct mk_pool *p);
/* Runs fn(ctx, block) for block 0 .. threads-1, block 0 on the calling thread; returns when all have returned. */
void mk_pool_run(struct mk_pool *p, void (*fn)(void *ctx, int block), void *ctx);
/* One launch on the communicator's blocks. Returns 0 or the communicator's failure. */
int mk_exec_cpu(struct mk_comm *comm, const struct mk_ar *ar);
/* cpu/stuck.c: one sentence on what a block waits for; true: for a rank that has not come to this call. */
bool mk_stuck_describe(struct mk_comm *comm, const struct mk_ar *ar, const struct mk_ar_block *blk,
                       char *text, size_t size);

/* gone.c: neighbours that a waiting launch has lost. */
#define MK_GONE_VERDICT_NS 1000000000ull /* between a broken link, or a good-bye, and calling it a failure */
struct mk_gone_ask {
    bool (*needs)(void *ctx, int node_level, int peer); /* mk_ar_needs of the launch */
    bool (*drained)(void *ctx, int node);               /* mk_ar_drained */
    void (*describe)(void *ctx, char *text, size_t size);
    void *ctx;
};
/* Has that neighbour (a local rank, or a node) said good-bye? */
bool mk_gone_left(const struct mk_comm *comm, int node_level, int peer);
/* Is there anything for mk_gone_check to look at? */
bool mk_gone_any(const struct mk_comm *comm);
/* Fails the communicator if the launch needs a neighbour that is gone. *seen: 0 before the first call of a launch. */
void mk_gone_check(struct mk_comm *comm, const struct mk_gone_ask *ask, uint64_t *seen);
/* Before a launch that exchanges something: a neighbour that has left was done with all its calls and cannot be in this one, which
 * would write into memory that is no more. Then it waits as long as a launch would, and fails the communicator: MK_ERR_PEER. */
int mk_gone_before(struct mk_comm *comm);

/* trace.c */
void mk_trace_begin(struct mk_comm *comm);
void mk_trace_add(struct mk_comm *comm, int block, int role, const struct mk_task *task, uint64_t begin,
                  uint64_t end);
void mk_trace_free(struct mk_comm *comm);
int mk_ar_role(int kind);
