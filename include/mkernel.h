/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* mKernel: GEMMs fused with the collectives that follow them, tile by tile.
 *
 * Every function returns 0 or one of the negative MK_ERR_* codes below; out-parameters are written last and only
 * on success. After an error mk_last_error() gives one sentence with the object and the cause. The library never
 * calls exit or abort and never throws.
 *
 * Threads: a communicator may be used from any thread, one call at a time; calls on different communicators are
 * independent. mk_comm_abort and mk_comm_get_async_error may be called from any thread at any time before destroy.
 * Streams: `stream` is a cudaStream_t, or NULL. On the CPU executor (no GPU) it must be NULL and the call returns
 * when the result is in C. On a GPU a call returns when its kernel is in the stream: it may be captured into a graph,
 * and errors that a kernel meets come by mk_comm_get_async_error and by the next call.
 * Executor: a communicator that is made while a CUDA context is current on the calling thread (compute capability 8.0
 * or later) computes on that context's GPU, and takes operands in its memory only; all ranks do, or none. Calls on one
 * communicator run one after the other whatever their streams; captured calls of one communicator belong on one
 * stream. Destroy waits for calls under way, at most MK_TIMEOUT; replays of a graph must be over before. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default) /* what is declared here is exported, nothing else */
#endif

#define MK_VERSION_MAJOR 0
#define MK_VERSION_MINOR 1
#define MK_VERSION_PATCH 0

/* Errors. The code says whose fault it is; mk_last_error() says what happened. */
enum {
    MK_SUCCESS = 0,
    MK_ERR_AGAIN = -1,   /* internal back-pressure; no public function returns it */
    MK_ERR_INVALID = -2, /* an argument or a setting is wrong; nothing was touched */
    MK_ERR_UNSUPPORTED =
        -3,              /* correct, but not possible here; decided alike on all ranks; nothing was touched */
    MK_ERR_NOMEM = -4,   /* out of memory */
    MK_ERR_SYSTEM = -5,  /* the operating system refused something */
    MK_ERR_NET = -6,     /* the network failed */
    MK_ERR_PEER = -7,    /* another rank died or left */
    MK_ERR_TIMEOUT = -8, /* a bounded wait ran out */
    MK_ERR_ABORTED = -9, /* mk_comm_abort, here or on another rank */
    MK_ERR_MISMATCH = -10, /* the ranks disagree on what they are doing */
    MK_ERR_CUDA = -11,     /* the CUDA driver failed */
    MK_ERR_INTERNAL = -12  /* a defect of this library */
};

typedef struct mk_comm *mk_comm_t;

/* Opaque name of a communicator to be, made by one process, given to all others by any means (a file, MPI, a
 * store). Holds the address of the maker and a random key. */
typedef struct {
    char internal[128];
} mk_unique_id_t;

typedef enum { MK_FLOAT32 = 0, MK_BFLOAT16 = 1, MK_FLOAT16 = 2 } mk_dtype_t;

/* All matrices are row-major. lda, ldb, ldc are row strides in elements.
 *   MK_TN: A[M,K], B[N,K]     C = A * B^T   (weights as PyTorch's nn.Linear stores them)
 *   MK_NN: A[M,K], B[K,N]     C = A * B
 *   MK_NT: A[K,M], B[K,N]     C = A^T * B */
typedef enum { MK_TN = 0, MK_NN = 1, MK_NT = 2 } mk_layout_t;

typedef enum { MK_ACT_NONE = 0, MK_ACT_RELU = 1, MK_ACT_GELU = 2, MK_ACT_SILU = 3 } mk_activation_t;

/* What happens to the finished sum: C = round(act(sum + bias)). bias: N values of the dtype of C, equal on all
 * ranks, or NULL. GELU is the exact one: 0.5 x (1 + erf(x / sqrt 2)). */
typedef struct {
    const void *bias;
    mk_activation_t act;
} mk_epilogue_t;

/* Settings of one communicator. Start from MK_CONFIG_INIT. A zero field means: take the environment's MK_*
 * setting, or its default. All ranks must give the same values for chunk, workspace and wire_fp32. */
typedef struct {
    size_t size;         /* sizeof(mk_config_t); lets later versions add fields */
    size_t workspace;    /* bytes of staging (MK_WORKSPACE) */
    size_t chunk;        /* bytes of a network chunk (MK_CHUNK) */
    int threads;         /* block threads of the CPU executor (MK_THREADS) */
    int wire_fp32;       /* 1: node sums travel as fp32 (MK_WIRE=fp32) */
    double timeout;      /* seconds (MK_TIMEOUT) */
    double peer_timeout; /* seconds a live peer may stay away (MK_PEER_TIMEOUT) */
} mk_config_t;
#define MK_CONFIG_INIT                                                                                       \
    {                                                                                                        \
        sizeof(mk_config_t), 0, 0, 0, 0, 0.0, 0.0                                                            \
    }

/* Makes an id in the calling process, which then serves the meeting point of that communicator in a background
 * thread and must live until all ranks have initialised. The address is chosen by MK_IFNAME.
 * Errors: INVALID (id NULL, bad setting), SYSTEM. */
int mk_get_unique_id(mk_unique_id_t *id);

/* Collective: all nranks processes (or threads) call it with the same id and nranks, each with its own rank in
 * [0, nranks). Returns when the communicator can be used. config may be NULL.
 * Errors: INVALID; MISMATCH (nranks or settings differ between ranks); PEER (a rank died meanwhile); TIMEOUT (not
 * all came within MK_TIMEOUT); UNSUPPORTED (workspace too small for this many ranks, uneven ranks per node). */
int mk_comm_init_rank(mk_comm_t *comm, int nranks, mk_unique_id_t id, int rank, const mk_config_t *config);

/* The same, with rank, number of ranks and meeting point from the environment: MK_RANK, MK_NRANKS, MK_ROOT
 * (host:port, served by rank 0); without MK_RANK, from torchrun, Open MPI or Slurm; without any of these a
 * communicator of one rank, which needs no network. */
int mk_comm_init_env(mk_comm_t *comm, const mk_config_t *config);

/* The same, with an all-gather of the caller as the meeting point: allgather(ctx, send, recv, bytes) gathers
 * `bytes` bytes of every rank into recv (nranks * bytes, in rank order) and returns 0. It is called from this
 * thread only, and only before this function returns. */
int mk_comm_init_allgather(mk_comm_t *comm, int nranks, int rank,
                           int (*allgather)(void *ctx, const void *send, void *recv, size_t bytes), void *ctx,
                           const mk_config_t *config);

/* C[M,N] = epilogue(op(A) * op(B)) on this process alone. Operands in host memory: on the CPU, fp32 or bf16, stream
 * NULL, returns when C is there. Operands in memory of the current context's GPU (compute capability 8.0 or later):
 * bf16 or fp16, asynchronous on `stream`, may be captured into a graph; mixed operands are an error. Shapes and
 * layouts: mk_layout_t. dtype is that of A, B and C; sums are fp32. M or N = 0: success, nothing written; K = 0: the
 * product is zero. NaN and Inf propagate. A or B overlapping C is an error. epilogue may be NULL.
 * Errors: INVALID; UNSUPPORTED (dtype); NOMEM. */
int mk_gemm(mk_layout_t layout, int64_t m, int64_t n, int64_t k, mk_dtype_t dtype, const void *a, int64_t lda,
            const void *b, int64_t ldb, void *c, int64_t ldc, const mk_epilogue_t *epilogue, void *stream);

/* C[M,N] = epilogue(sum over ranks of op(A_r) * op(B_r)), the same bits on every rank. Collective: all ranks call
 * it in the same order with the same layout-independent facts (M, N, dtype, epilogue); K may differ (each rank
 * has its slice), also 0 (contributes zeros). M or N = 0: success, nothing written; all ranks call for these too.
 * Rounding (T the dtype): p_r = round_T(GEMM of rank r); node sum s_d = round_W(fp32 sum of p over the node's
 * local ranks 0, 1, ..); C = round_T(act(fp32 sum of s over nodes 0, 1, .. + bias)); W = T, or fp32 by MK_WIRE.
 * C is output only. On an error C holds this rank's own partial product or NaN, never another rank's value.
 * On a GPU: bf16 and fp16, asynchronous on `stream`; operands whose addresses or rows are not aligned to 16 bytes, or
 * N not a multiple of 8, take a slower kernel with the same contract. K is below 2^31; a rank with a larger one ends
 * the communicator of all with UNSUPPORTED.
 * Errors: INVALID, UNSUPPORTED (nothing touched, the communicator stays usable); MISMATCH, PEER, TIMEOUT, NET,
 * ABORTED (the communicator is finished: every later call returns the same code; destroy it). */
int mk_gemm_allreduce(mk_comm_t comm, mk_layout_t layout, int64_t m, int64_t n, int64_t k, mk_dtype_t dtype,
                      const void *a, int64_t lda, const void *b, int64_t ldb, void *c, int64_t ldc,
                      const mk_epilogue_t *epilogue, void *stream);

/* Rank and number of ranks of a communicator. Errors: INVALID. */
int mk_comm_rank(mk_comm_t comm, int *rank);
int mk_comm_size(mk_comm_t comm, int *nranks);

/* *error = 0, or the code that finished this communicator. Does not wait. Errors: INVALID. */
int mk_comm_get_async_error(mk_comm_t comm, int *error);

/* Ends the communicator's running and future calls, on all ranks, with ABORTED. Returns at once.
 * The object must still be destroyed. Errors: INVALID. */
int mk_comm_abort(mk_comm_t comm);

/* Frees a communicator; never waits for another rank. NULL is allowed. Must not run beside another call on it. */
int mk_comm_destroy(mk_comm_t comm);

/* The name of an error code; for an unknown code "unknown error". Never NULL. */
const char *mk_strerror(int error);

/* What the last failed call of this thread complained about; "" if none. Valid until the thread's next call. */
const char *mk_last_error(void);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
