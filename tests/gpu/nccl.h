/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The parts of test_gpu_nccl: NCCL opened at run time (nccl_so.c), contents and their check on the GPU (nccl_check.c),
 * and what is shown with them: nccl_coll.c, nccl_life.c, nccl_plug.c, nccl_time.c. */
#pragma once
#include "mk/boot.h"
#include "mk/cuda.h"
#include "tests/bench/gpu.h"
#include <stdbool.h>

/* ncclResult_t, ncclDataType_t, ncclRedOp_t: the values in use */
enum { NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7 };
enum { NCCL_UINT8 = 1, NCCL_UINT32 = 3, NCCL_FLOAT32 = 7 };
enum { NCCL_SUM = 0 };

struct nccl_id {
    char bytes[128];
};
/* X(field, symbol, arguments): all return an ncclResult_t */
#define NCCL_FUNCTIONS(X)                                                                                    \
    X(version, "ncclGetVersion", (int *version))                                                             \
    X(get_id, "ncclGetUniqueId", (struct nccl_id * id))                                                      \
    X(init_rank, "ncclCommInitRank", (void **comm, int nranks, struct nccl_id id, int rank))                 \
    X(destroy, "ncclCommDestroy", (void *comm))                                                              \
    X(abort, "ncclCommAbort", (void *comm))                                                                  \
    X(async_error, "ncclCommGetAsyncError", (void *comm, int *error))                                        \
    X(group_start, "ncclGroupStart", (void))                                                                 \
    X(group_end, "ncclGroupEnd", (void))                                                                     \
    X(all_reduce, "ncclAllReduce",                                                                           \
      (const void *send, void *recv, size_t count, int type, int op, void *comm, void *stream))              \
    X(reduce, "ncclReduce",                                                                                  \
      (const void *send, void *recv, size_t count, int type, int op, int root, void *comm, void *stream))    \
    X(broadcast, "ncclBroadcast",                                                                            \
      (const void *send, void *recv, size_t count, int type, int root, void *comm, void *stream))            \
    X(all_gather, "ncclAllGather",                                                                           \
      (const void *send, void *recv, size_t count, int type, void *comm, void *stream))                      \
    X(reduce_scatter, "ncclReduceScatter",                                                                   \
      (const void *send, void *recv, size_t count, int type, int op, void *comm, void *stream))              \
    X(send, "ncclSend", (const void *buf, size_t count, int type, int peer, void *comm, void *stream))       \
    X(recv, "ncclRecv", (void *buf, size_t count, int type, int peer, void *comm, void *stream))

struct nccl {
#define NCCL_FIELD(field, symbol, args) int(*field) args;
    NCCL_FUNCTIONS(NCCL_FIELD)
#undef NCCL_FIELD
    const char *(*error_string)(int error);
    const char *(*last_error)(void *comm);
};

/* One rank of the job. */
struct job {
    struct nccl nccl;
    const struct mk_cuda *cu;
    struct mk_boot *boot;
    int rank, nranks;
    uint64_t call;      /* number of the collective: part of the contents */
    int failures;       /* of this rank */
    gpu_ptr send, recv; /* each `room` bytes behind a guard, and a guard behind them */
    size_t room;
};

/* nccl_so.c. Functions that fail print one line "FAIL rank R: ..", count it and return non-zero. */
const char *nccl_load(struct nccl *n, const char *path); /* NULL, or why not */
int fail(struct job *j, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int meet(struct job *j, const char *what);       /* all ranks; fails where one has failed before */
void *comm_new(struct job *j, const char *what); /* NULL: failed */
int comm_end(struct job *j, void *comm, const char *what);
/* Waits for the stream, at most so long; an error of the communicator ends it sooner. The communicator is then aborted:
 * nothing more can be done with it. */
int await(struct job *j, void *comm, double seconds, const char *what);
double now_s(void);

/* nccl_check.c */
#define GUARD_BYTES (64u << 10)
enum { WANT_SUM, WANT_BLOCKS, WANT_NOTHING };
struct want {
    int kind;
    uint64_t off;   /* in the senders' buffers, elements */
    int first;      /* BLOCKS: rank that the first one is of */
    uint64_t block; /* elements */
};
int check_open(struct job *j, size_t room); /* 77: built without kernels */
/* Fills the send buffer's first `sends` elements, and all else with canaries. */
void contents(struct job *j, uint64_t sends, uint64_t receives);
/* The number of words that are not as they must be, guards included; says where one is. quiet: does not. */
uint64_t check(struct job *j, gpu_ptr at, uint64_t count, const struct want *w, const char *what, bool quiet);
/* One element (or guard word) gets another value: what check must then find. place: in words from the payload's start. */
void corrupt(gpu_ptr at, int64_t place);

/* What is shown: returns the exit status of this rank. */
int show_collectives(struct job *j, size_t most);
int show_self_test(struct job *j);
int show_lives(struct job *j, int lives);
int show_abort(struct job *j);
int show_plugin(struct job *j);
int show_rate(struct job *j, double plugin_us); /* of 8 bytes, by mkbench plugin; 0: not known */
int show_pairs(struct job *j, int pairs);
