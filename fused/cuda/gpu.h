/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The GPU side of a communicator: its memories, the mapping of local peers' memory, the watching thread. Private to
 * fused/. A communicator made while a CUDA context is current on the calling thread belongs to that context's device,
 * on all ranks or on none.
 *
 *   memory        device; fixed words and staging as local peers see them; exported by CUDA IPC
 *   private       device; state of the blocks, tile flags, tables of peer pointers, producer words of the ring
 *   words         pinned host; abort and reports (words.h)
 *   comm->memory  shared host memory, pinned where there are other nodes: what the NIC sees
 *
 * gpu.c: the memories; watch.c: the thread; left.c: memory that peers still have mapped; trace.c: timeline; gemm_ar.c: launches. */
#pragma once
#include "cuda/words.h"
#include "mk/cuda.h"
#include "ops/gemm_ar.h"
#include <pthread.h>

struct mk_comm;
struct mk_gemm_call;

#define MK_GPU_TILES (1u << 19) /* C of up to 2^19 tiles in one call */

struct mk_gpu {
    const struct mk_cuda *cu;
    void *ctx;
    int device, sms;
    mk_cu_ptr memory, private_memory;
    struct mk_gpu_words *words; /* host address */
    mk_cu_ptr words_device;
    mk_cu_ptr net;   /* device address of comm->memory; 0: one node */
    mk_cu_ptr ring;  /* device address of the command ring; 0: one node */
    mk_cu_ptr *peer; /* [local] device address of that rank's memory; own entry: memory */
    bool *opened;    /* [local] by IPC: to be closed */
    bool pinned_words, pinned_net, pinned_ring;
    bool net_reaches; /* the NIC reads and writes `memory` itself */
    bool exported;    /* local peers were told how to map `memory` */
    pthread_t watch;
    bool watching;
    uint32_t stop;             /* __atomic */
    void *last_stream, *order; /* event after the last launch; orders launches on different streams */
    bool launched;
    mk_cu_ptr trace; /* timeline: counts of the blocks, then their events; 0: off */
    uint32_t trace_room;
    struct mk_cu_map
        place[MK_AR_PLACES]; /* rings that tiles are placed in, as rows of place_cols elements; 0: none yet */
    int place_cols, place_dtype;
    int pair_blocks; /* of K (pair.c): how many it has of what the process's communicators share; 0: none were asked for */
};

/* What a local peer needs to reach the memory. */
struct mk_gpu_card {
    struct mk_cu_ipc ipc;
    struct mk_cu_uuid uuid;
    uint64_t address, context; /* for a rank of the same process */
    int32_t pid, used;         /* used: 1: this rank has a GPU */
};

/* Does the calling thread offer a GPU to a new communicator? 1, 0 or an error. */
int mk_gpu_wanted(void);
/* After rings were built and comm->memory, comm->state hold their first values: makes the memories and the words. */
int mk_gpu_create(struct mk_comm *comm);
int mk_gpu_card(struct mk_comm *comm, struct mk_gpu_card *out);
/* One local peer's memory. */
int mk_gpu_map(struct mk_comm *comm, int local, const struct mk_gpu_card *card);
/* The staging memory on the GPU; from now on the NIC's side of it too. */
void *mk_gpu_staging(struct mk_comm *comm);
/* After the peers and the proxy are there: tables, pinned ring; starts the watching thread. */
int mk_gpu_ready(struct mk_comm *comm);
/* The host has failed: the blocks leave. */
void mk_gpu_abort(struct mk_comm *comm, int code);
/* pair_blocks goes back to the others. */
void mk_pair_give(struct mk_gpu *gpu);
/* No communicator that is made now would get blocks there. */
bool mk_pair_full(int device);
/* Before the good-bye: waits for launches under way, at most MK_TIMEOUT; then they are aborted. */
void mk_gpu_drain(struct mk_comm *comm);
/* Before the network ends: the blocks leave, peers' memory is closed, the ring unpinned. Then the memories go. */
void mk_gpu_stop(struct mk_comm *comm);
void mk_gpu_destroy(struct mk_comm *comm);
/* Fills the device addresses of a launch. */
void mk_gpu_bind(struct mk_comm *comm, struct mk_ar *ar);

/* watch.c: starts and ends the watching thread. */
int mk_gpu_watch(struct mk_comm *comm);
/* Has a block reported a failure? It does before its kernel ends, and from then on calls see it: any thread. */
void mk_gpu_report(struct mk_comm *comm);
void mk_gpu_unwatch(struct mk_gpu *g);

/* Blocks of a fused kernel. */
int mk_gpu_blocks(const struct mk_comm *comm);
/* Waits until all launches are over. */
void mk_gpu_settle(struct mk_comm *comm);
/* A part of struct mk_gpu_device. */
int mk_gpu_poke(struct mk_comm *comm, size_t at, const void *value, size_t bytes);

/* trace.c: as mk_comm_trace and mk_comm_trace_events. */
int mk_gpu_trace(struct mk_comm *comm, uint32_t events);
uint32_t mk_gpu_trace_events(struct mk_comm *comm, uint64_t *dropped);

/* left.c: frees `memory` if no local rank has it mapped any more; else it is kept for a later sweep. */
void mk_gpu_leave_memory(struct mk_comm *comm);
/* Frees what was left in this context, which is current, and is closed by all by now. */
void mk_gpu_sweep(const struct mk_cuda *cu, const void *ctx);

/* gemm_ar.c: blocks, budget and tiles of a launch, as for operands that the large kernels take. */
void mk_gpu_plan(const struct mk_comm *comm, struct mk_ar *ar);
/* Around a launch: the stream waits for the launch before it on another one (moved: it had to); then what is owed after it.
 * ret: of the launch; a failure is the communicator's. */
int mk_gpu_order_before(struct mk_gpu *g, void *stream, bool *captured, bool *moved);
int mk_gpu_launched(struct mk_comm *comm, int ret, void *stream, bool captured);
/* Are Hopper's kernels used? */
bool mk_gpu_hopper(const struct mk_comm *comm);
/* One launch on `stream`. */
int mk_exec_gpu(struct mk_comm *comm, const struct mk_gemm_call *call, struct mk_ar *ar, void *stream);
