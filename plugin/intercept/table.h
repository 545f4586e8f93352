/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Every hooked function, once: its library, arguments, communicator and stream. From it come the ids, the structs of
 * arguments, the hooks (hook.c) and the stand-ins of the tests. The declarations are our own, by size and register
 * class: handles, descriptors and streams are void *, enumerations int. tests/plugin/hook_types.sh compares them with
 * the vendor's headers where those are installed.
 *
 * A row is X(library, name, communicator, stream): expressions over the arguments, NULL for none. All return int, but
 * for the rows of MK_HOOK_VOID, which return nothing. A row's arguments are MK_ARGS_name(A, S): A(type, name) each, S()
 * between them. */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct mk_hook_nccl_id { /* ncclUniqueId, passed by value */
    char internal[128];
};

/* clang-format off */
#define MK_ARGS_cublasGemmEx(A, S)                                                                           \
    A(void *, handle) S() A(int, transa) S() A(int, transb) S() A(int, m) S() A(int, n) S() A(int, k) S()    \
    A(const void *, alpha) S() A(const void *, a) S() A(int, a_type) S() A(int, lda) S()                     \
    A(const void *, b) S() A(int, b_type) S() A(int, ldb) S() A(const void *, beta) S()                      \
    A(void *, c) S() A(int, c_type) S() A(int, ldc) S() A(int, compute) S() A(int, algo)
#define MK_ARGS_cublasGemmEx_64(A, S)                                                                        \
    A(void *, handle) S() A(int, transa) S() A(int, transb) S() A(int64_t, m) S() A(int64_t, n) S()          \
    A(int64_t, k) S() A(const void *, alpha) S() A(const void *, a) S() A(int, a_type) S()                   \
    A(int64_t, lda) S() A(const void *, b) S() A(int, b_type) S() A(int64_t, ldb) S()                        \
    A(const void *, beta) S() A(void *, c) S() A(int, c_type) S() A(int64_t, ldc) S() A(int, compute) S()    \
    A(int, algo)
#define MK_ARGS_cublasSgemm_v2(A, S)                                                                         \
    A(void *, handle) S() A(int, transa) S() A(int, transb) S() A(int, m) S() A(int, n) S() A(int, k) S()    \
    A(const float *, alpha) S() A(const float *, a) S() A(int, lda) S() A(const float *, b) S()              \
    A(int, ldb) S() A(const float *, beta) S() A(float *, c) S() A(int, ldc)
#define MK_ARGS_cublasSgemm_v2_64(A, S)                                                                      \
    A(void *, handle) S() A(int, transa) S() A(int, transb) S() A(int64_t, m) S() A(int64_t, n) S()          \
    A(int64_t, k) S() A(const float *, alpha) S() A(const float *, a) S() A(int64_t, lda) S()                \
    A(const float *, b) S() A(int64_t, ldb) S() A(const float *, beta) S() A(float *, c) S()                 \
    A(int64_t, ldc)
#define MK_ARGS_cublasSgemm(A, S) /* the interface without handles */                                        \
    A(char, transa) S() A(char, transb) S() A(int, m) S() A(int, n) S() A(int, k) S() A(float, alpha) S()    \
    A(const float *, a) S() A(int, lda) S() A(const float *, b) S() A(int, ldb) S() A(float, beta) S()       \
    A(float *, c) S() A(int, ldc)
#define MK_ARGS_cublasLtMatmul(A, S)                                                                         \
    A(void *, handle) S() A(void *, desc) S() A(const void *, alpha) S() A(const void *, a) S()              \
    A(void *, a_layout) S() A(const void *, b) S() A(void *, b_layout) S() A(const void *, beta) S()         \
    A(const void *, c) S() A(void *, c_layout) S() A(void *, d) S() A(void *, d_layout) S()                  \
    A(const void *, algo) S() A(void *, workspace) S() A(size_t, workspace_bytes) S() A(void *, stream)

#define MK_ARGS_ncclAllReduce(A, S)                                                                          \
    A(const void *, send) S() A(void *, recv) S() A(size_t, count) S() A(int, dtype) S() A(int, op) S()      \
    A(void *, comm) S() A(void *, stream)
#define MK_ARGS_ncclReduceScatter(A, S) MK_ARGS_ncclAllReduce(A, S)
#define MK_ARGS_ncclAllGather(A, S)                                                                          \
    A(const void *, send) S() A(void *, recv) S() A(size_t, count) S() A(int, dtype) S()                     \
    A(void *, comm) S() A(void *, stream)
#define MK_ARGS_ncclAlltoAll(A, S) MK_ARGS_ncclAllGather(A, S)
#define MK_ARGS_ncclReduce(A, S)                                                                             \
    A(const void *, send) S() A(void *, recv) S() A(size_t, count) S() A(int, dtype) S() A(int, op) S()      \
    A(int, root) S() A(void *, comm) S() A(void *, stream)
#define MK_ARGS_ncclBroadcast(A, S)                                                                          \
    A(const void *, send) S() A(void *, recv) S() A(size_t, count) S() A(int, dtype) S() A(int, root) S()    \
    A(void *, comm) S() A(void *, stream)
#define MK_ARGS_ncclGather(A, S) MK_ARGS_ncclBroadcast(A, S)
#define MK_ARGS_ncclScatter(A, S) MK_ARGS_ncclBroadcast(A, S)
#define MK_ARGS_ncclBcast(A, S)                                                                              \
    A(void *, buffer) S() A(size_t, count) S() A(int, dtype) S() A(int, root) S()                            \
    A(void *, comm) S() A(void *, stream)
#define MK_ARGS_ncclSend(A, S)                                                                               \
    A(const void *, send) S() A(size_t, count) S() A(int, dtype) S() A(int, peer) S()                        \
    A(void *, comm) S() A(void *, stream)
#define MK_ARGS_ncclRecv(A, S)                                                                               \
    A(void *, recv) S() A(size_t, count) S() A(int, dtype) S() A(int, peer) S()                              \
    A(void *, comm) S() A(void *, stream)
/* from 2.31 on: the same with a configuration */
#define MK_ARGS_ncclAllReduceConfig(A, S) MK_ARGS_ncclAllReduce(A, S) S() A(const void *, config)
#define MK_ARGS_ncclReduceScatterConfig(A, S) MK_ARGS_ncclReduceScatter(A, S) S() A(const void *, config)
#define MK_ARGS_ncclAllGatherConfig(A, S) MK_ARGS_ncclAllGather(A, S) S() A(const void *, config)
#define MK_ARGS_ncclAlltoAllConfig(A, S) MK_ARGS_ncclAlltoAll(A, S) S() A(const void *, config)
#define MK_ARGS_ncclReduceConfig(A, S) MK_ARGS_ncclReduce(A, S) S() A(const void *, config)
#define MK_ARGS_ncclBroadcastConfig(A, S) MK_ARGS_ncclBroadcast(A, S) S() A(const void *, config)
#define MK_ARGS_ncclGatherConfig(A, S) MK_ARGS_ncclGather(A, S) S() A(const void *, config)
#define MK_ARGS_ncclScatterConfig(A, S) MK_ARGS_ncclScatter(A, S) S() A(const void *, config)
#define MK_ARGS_ncclGroupStart(A, S)
#define MK_ARGS_ncclGroupEnd(A, S)
#define MK_ARGS_ncclGroupSimulateEnd(A, S) A(void *, info)
#define MK_ARGS_ncclCommInitRank(A, S)                                                                       \
    A(void **, out) S() A(int, nranks) S() A(struct mk_hook_nccl_id, id) S() A(int, rank)
#define MK_ARGS_ncclCommInitRankConfig(A, S)                                                                 \
    A(void **, out) S() A(int, nranks) S() A(struct mk_hook_nccl_id, id) S() A(int, rank) S()                \
    A(void *, config)
#define MK_ARGS_ncclCommInitRankScalable(A, S)                                                               \
    A(void **, out) S() A(int, nranks) S() A(int, rank) S() A(int, nids) S()                                 \
    A(struct mk_hook_nccl_id *, ids) S() A(void *, config)
#define MK_ARGS_ncclCommInitAll(A, S) A(void **, out) S() A(int, ndev) S() A(const int *, devices)
#define MK_ARGS_ncclCommSplit(A, S)                                                                          \
    A(void *, comm) S() A(int, color) S() A(int, key) S() A(void **, out) S() A(void *, config)
#define MK_ARGS_ncclCommShrink(A, S)                                                                         \
    A(void *, comm) S() A(int *, exclude) S() A(int, excluded) S() A(void **, out) S() A(void *, config) S() \
    A(int, flags)
#define MK_ARGS_ncclCommGrow(A, S)                                                                           \
    A(void *, comm) S() A(int, nranks) S() A(const struct mk_hook_nccl_id *, id) S() A(int, rank) S()        \
    A(void **, out) S() A(void *, config)
#define MK_ARGS_ncclCommFinalize(A, S) A(void *, comm)
#define MK_ARGS_ncclCommDestroy(A, S) A(void *, comm)
#define MK_ARGS_ncclCommAbort(A, S) A(void *, comm)
#define MK_ARGS_ncclCommRevoke(A, S) A(void *, comm) S() A(int, flags)
#define MK_ARGS_ncclCommGetAsyncError(A, S) A(void *, comm) S() A(int *, error)

#define MK_ARGS_cuLaunchKernel(A, S)                                                                         \
    A(void *, function) S() A(unsigned, grid_x) S() A(unsigned, grid_y) S() A(unsigned, grid_z) S()          \
    A(unsigned, block_x) S() A(unsigned, block_y) S() A(unsigned, block_z) S() A(unsigned, shared) S()       \
    A(void *, stream) S() A(void **, params) S() A(void **, extra)
#define MK_ARGS_cuLaunchKernelEx(A, S)                                                                       \
    A(const void *, config) S() A(void *, function) S() A(void **, params) S() A(void **, extra)

#define MK_ARGS_cuEventRecord(A, S) A(void *, cu_event) S() A(void *, stream)
#define MK_ARGS_cuEventRecordWithFlags(A, S) A(void *, cu_event) S() A(void *, stream) S() A(unsigned, flags)
#define MK_ARGS_cuStreamWaitEvent(A, S) A(void *, stream) S() A(void *, cu_event) S() A(unsigned, flags)
#define MK_ARGS_cuMemcpyAsync(A, S)                                                                          \
    A(uint64_t, dst) S() A(uint64_t, src) S() A(size_t, bytes) S() A(void *, stream)
#define MK_ARGS_cuMemcpyDtoDAsync_v2(A, S) MK_ARGS_cuMemcpyAsync(A, S)
#define MK_ARGS_cuGraphLaunch(A, S) A(void *, graph) S() A(void *, stream)

#define MK_HOOK_ROWS(X)                                                                                      \
    X(CUBLAS, cublasGemmEx, NULL, NULL)                                                                      \
    X(CUBLAS, cublasGemmEx_64, NULL, NULL)                                                                   \
    X(CUBLAS, cublasSgemm_v2, NULL, NULL)                                                                    \
    X(CUBLAS, cublasSgemm_v2_64, NULL, NULL)                                                                 \
    X(CUBLASLT, cublasLtMatmul, NULL, stream)                                                                \
    X(NCCL, ncclAllReduce, comm, stream)                                                                     \
    X(NCCL, ncclReduceScatter, comm, stream)                                                                 \
    X(NCCL, ncclAllGather, comm, stream)                                                                     \
    X(NCCL, ncclAlltoAll, comm, stream)                                                                      \
    X(NCCL, ncclReduce, comm, stream)                                                                        \
    X(NCCL, ncclBroadcast, comm, stream)                                                                     \
    X(NCCL, ncclBcast, comm, stream)                                                                         \
    X(NCCL, ncclGather, comm, stream)                                                                        \
    X(NCCL, ncclScatter, comm, stream)                                                                       \
    X(NCCL, ncclSend, comm, stream)                                                                          \
    X(NCCL, ncclRecv, comm, stream)                                                                          \
    X(NCCL, ncclAllReduceConfig, comm, stream)                                                               \
    X(NCCL, ncclReduceScatterConfig, comm, stream)                                                           \
    X(NCCL, ncclAllGatherConfig, comm, stream)                                                               \
    X(NCCL, ncclAlltoAllConfig, comm, stream)                                                                \
    X(NCCL, ncclReduceConfig, comm, stream)                                                                  \
    X(NCCL, ncclBroadcastConfig, comm, stream)                                                               \
    X(NCCL, ncclGatherConfig, comm, stream)                                                                  \
    X(NCCL, ncclScatterConfig, comm, stream)                                                                 \
    X(NCCL, ncclGroupStart, NULL, NULL)                                                                      \
    X(NCCL, ncclGroupEnd, NULL, NULL)                                                                        \
    X(NCCL, ncclGroupSimulateEnd, NULL, NULL)                                                                \
    X(NCCL, ncclCommInitRank, NULL, NULL)                                                                    \
    X(NCCL, ncclCommInitRankConfig, NULL, NULL)                                                              \
    X(NCCL, ncclCommInitRankScalable, NULL, NULL)                                                            \
    X(NCCL, ncclCommInitAll, NULL, NULL)                                                                     \
    X(NCCL, ncclCommSplit, comm, NULL)                                                                       \
    X(NCCL, ncclCommShrink, comm, NULL)                                                                      \
    X(NCCL, ncclCommGrow, comm, NULL)                                                                        \
    X(NCCL, ncclCommFinalize, comm, NULL)                                                                    \
    X(NCCL, ncclCommDestroy, comm, NULL)                                                                     \
    X(NCCL, ncclCommAbort, comm, NULL)                                                                       \
    X(NCCL, ncclCommRevoke, comm, NULL)                                                                      \
    X(NCCL, ncclCommGetAsyncError, comm, NULL)                                                               \
    X(CUDA, cuLaunchKernel, NULL, stream)                                                                    \
    X(CUDA, cuLaunchKernelEx, NULL, NULL)                                                                    \
    X(CUDA, cuEventRecord, NULL, stream)                                                                     \
    X(CUDA, cuEventRecordWithFlags, NULL, stream)                                                            \
    X(CUDA, cuStreamWaitEvent, NULL, stream)                                                                 \
    X(CUDA, cuMemcpyAsync, NULL, stream)                                                                     \
    X(CUDA, cuMemcpyDtoDAsync_v2, NULL, stream)                                                              \
    X(CUDA, cuGraphLaunch, NULL, stream)
#define MK_HOOK_VOID(X) X(CUBLAS, cublasSgemm, NULL, NULL)
/* How others find functions: written by hand (lookup.c), no event comes of them. */
#define MK_HOOK_LOOKUPS(X)                                                                                   \
    X(CUDA, cuGetProcAddress)                                                                                \
    X(CUDA, cuGetProcAddress_v2)                                                                             \
    X(LOADER, dlsym)                                                                                         \
    X(LOADER, dlvsym)                                                                                        \
    X(LOADER, dlopen)
/* What we ask the libraries ourselves: found in their own tables as the originals are, never hooked. */
#define MK_HOOK_ASKS(X)                                                                                      \
    X(CUBLAS, cublasGetStream_v2, (void *handle, void **stream))                                             \
    X(CUBLAS, cublasGetPointerMode_v2, (void *handle, int *mode))                                            \
    X(CUBLAS, cublasGetMathMode, (void *handle, int *mode))                                                  \
    X(CUBLASLT, cublasLtMatmulDescGetAttribute,                                                              \
      (void *desc, int attribute, void *value, size_t bytes, size_t *written))                               \
    X(CUBLASLT, cublasLtMatrixLayoutGetAttribute,                                                            \
      (void *layout, int attribute, void *value, size_t bytes, size_t *written))                             \
    X(CUBLASLT, cublasLtGetVersion, (void))                                                                  \
    X(NCCL, ncclCommCount, (void *comm, int *count))                                                         \
    X(NCCL, ncclCommUserRank, (void *comm, int *rank))                                                       \
    X(CUDA, cuStreamGetId, (void *stream, unsigned long long *id))                                           \
    X(CUDA, cuStreamGetCtx, (void *stream, void **ctx))                                                      \
    X(CUDA, cuStreamGetFlags, (void *stream, unsigned *flags))                                               \
    X(CUDA, cuCtxGetId, (void *ctx, unsigned long long *id))                                                 \
    X(CUDA, cuStreamGetCaptureInfo_v2,                                                                       \
      (void *stream, int *status, uint64_t *id, void **graph, void *const **deps, size_t *ndeps))            \
    X(CUDA, cuGraphNodeGetDependencies, (void *node, void **deps, size_t *ndeps))
/* clang-format on */

enum mk_hook_lib {
    MK_HOOK_CUBLAS,
    MK_HOOK_CUBLASLT,
    MK_HOOK_NCCL,
    MK_HOOK_CUDA,
    MK_HOOK_LOADER, /* the C library */
    MK_HOOK_LIBS
};

enum mk_hook_id {
#define MK_HOOK_ID(lib, name, comm, stream) MK_HOOK_##name,
#define MK_HOOK_LOOKUP_ID(lib, name) MK_HOOK_##name,
    MK_HOOK_ROWS(MK_HOOK_ID) MK_HOOK_VOID(MK_HOOK_ID) MK_HOOK_EVENTS,
    MK_HOOK_before_lookups = MK_HOOK_EVENTS - 1,
    MK_HOOK_LOOKUPS(MK_HOOK_LOOKUP_ID)
#undef MK_HOOK_ID
#undef MK_HOOK_LOOKUP_ID
        MK_HOOKS
};

enum mk_hook_ask {
#define MK_HOOK_ASK_ID(lib, name, args) MK_ASK_##name,
    MK_HOOK_ASKS(MK_HOOK_ASK_ID)
#undef MK_HOOK_ASK_ID
        MK_HOOK_ASKED
};

/* struct mk_call_NAME: the arguments of one call. */
#define MK_HOOK_FIELD(type, name) type name;
#define MK_HOOK_NOTHING()
#define MK_HOOK_STRUCT(lib, name, comm, stream)                                                              \
    struct mk_call_##name {                                                                                  \
        MK_ARGS_##name(MK_HOOK_FIELD, MK_HOOK_NOTHING) char end;                                             \
    };
MK_HOOK_ROWS(MK_HOOK_STRUCT)
MK_HOOK_VOID(MK_HOOK_STRUCT)
#undef MK_HOOK_STRUCT
