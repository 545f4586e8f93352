/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What the commands and benchmarks may ask of a communicator beyond the public API: parts of an operator alone
 * (for T_compute and T_comm), the timeline of roles, facts about what is in use. Not installed. */
#pragma once
#include "mkernel.h"
#include <stdbool.h>

/* Parts of one fused operator. COMPUTE: all local tiles, no communication. COMM: the same plan with its tiles
 * already there (C holds the partials). Both are collective and keep the communicator usable; what C holds after
 * COMPUTE is this rank's partial product. */
enum mk_part { MK_PART_FUSED = 0, MK_PART_COMPUTE = 1, MK_PART_COMM = 2 };

/* mk_gemm_allreduce with a choice of part. Same arguments, rules and errors. FUSED is fused indeed, where
 * mk_gemm_allreduce may compute first and exchange then if the ranks have found that to be faster. */
int mk_gemm_allreduce_part(mk_comm_t comm, enum mk_part part, mk_layout_t layout, int64_t m, int64_t n,
                           int64_t k, mk_dtype_t dtype, const void *a, int64_t lda, const void *b,
                           int64_t ldb, void *c, int64_t ldc, const mk_epilogue_t *epilogue, void *stream);

/* One line of a timeline: a block did a task of a role. Times in ns of mk_time_ns(), on a GPU of its own clock; there the
 * tiles of a block in a row are one event, whose index is the last one. */
enum mk_role {
    MK_ROLE_COMPUTE = 0,
    MK_ROLE_INTRA = 1,
    MK_ROLE_SEND = 2,
    MK_ROLE_RECV = 3,
    MK_ROLE_IDLE = 4,
    MK_ROLES = 5
};
const char *mk_role_name(int role);
struct mk_trace_event {
    uint64_t begin_ns, end_ns;
    uint16_t block;
    uint8_t role;
    uint8_t task;   /* enum mk_ar_kind, for the name of the bar */
    uint32_t index; /* tile or chunk number */
};
const char *mk_trace_task_name(int task);
/* Records the next calls: at most `events` events per block, further ones are dropped and counted. 0: off. */
int mk_comm_trace(mk_comm_t comm, uint32_t events);
/* The events of the last call, of all blocks of this rank, by block then time. Valid until the next call.
 * Returns their number. */
uint32_t mk_comm_trace_events(mk_comm_t comm, const struct mk_trace_event **events, uint64_t *dropped);

/* Facts for tables and JSON. */
struct mk_comm_info {
    int rank, nranks, node, nnodes, local_rank, local_nranks, threads;
    char transport[16], provider[64], adapter[16]; /* "" with one node */
    char gemm[32];                                 /* "openblas SkylakeX", "built-in", "GPU" */
    uint64_t workspace, chunk;
    uint64_t commands, batches, bytes; /* of the proxy */
    uint64_t calls_in_parts;           /* of mk_gemm_allreduce: made one part after the other */
};
int mk_comm_info(mk_comm_t comm, struct mk_comm_info *out);
/* What mk_gemm_allreduce would do with operands that the large kernels take; nothing is launched. */
struct mk_plan_info {
    uint32_t tiles, chunks;  /* of C: tiles that this rank computes, chunks that the ranks share out */
    uint32_t chunk_bytes;    /* of a whole chunk on the wire */
    int blocks, comm_blocks; /* of the launch; of these, those that prefer communication */
    int most_comm_blocks;    /* R: at most so many may */
    bool controlled;         /* comm_blocks is what a launch begins with, and moves */
    bool latency;            /* the latency path: few rows, one node */
};
int mk_plan_info(mk_comm_t comm, int64_t m, int64_t n, mk_dtype_t dtype, struct mk_plan_info *out);
/* Of the next calls: so many blocks prefer communication, as MK_COMM_BLOCKS says for all; 0: chosen. Each rank's own
 * affair; not while a call is under way. */
int mk_comm_set_comm_blocks(mk_comm_t comm, int blocks);
/* Of the next calls under the controller: it counts and steps, but so many blocks communicate, whatever it says (what that
 * costs can be measured so); 0: as it says. Not while a call is under way. */
int mk_comm_pin_comm_blocks(mk_comm_t comm, int blocks);
/* Set-up helpers over the bootstrap, for timing all ranks at once and gathering their figures. */
int mk_comm_barrier(mk_comm_t comm);
int mk_comm_allgather(mk_comm_t comm, const void *send, void *recv, size_t bytes);

/* CPU matrix multiply in use: opens OpenBLAS on the first call (unless use_blas is false). Returns its name. */
const char *mk_gemm_backend(bool use_blas);
