/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What GPU tests and benchmarks need besides the library: memory, copies, streams, events, graphs of the driver, and
 * cuBLAS as baseline; all opened at run time. Functions here end the program with a message on a CUDA error. */
#pragma once
#include "mkernel.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uint64_t gpu_ptr;

/* false: no GPU here, *why says so. Makes the primary context of GPU 0 current, or of GPU MK_LOCAL_RANK mod
 * the number of GPUs. */
bool gpu_open(const char **why);
/* In its place: no GPU is touched, memory is the processor's, a call is over when it returns, "graphs" call again;
 * there are no streams (gpu_stream() is NULL) and there is no cuBLAS. For trying a program out. */
void gpu_open_host(void);
const char *gpu_name(void);
int gpu_sms(void);
gpu_ptr gpu_alloc(size_t bytes);
void gpu_free(gpu_ptr p);
void gpu_set(gpu_ptr p, int byte, size_t bytes);
void gpu_put(gpu_ptr dst, const void *src, size_t bytes);
void gpu_get(void *dst, gpu_ptr src, size_t bytes);
/* Random bf16 (or fp16) values in (-1, 1), different for each seed, made on the host and tiled on the device. */
void gpu_random(gpu_ptr p, size_t count, mk_dtype_t dtype, uint64_t seed);
double gpu_value(uint16_t h, mk_dtype_t dtype); /* of a bf16 or fp16 */
void gpu_sync(void);

void *gpu_stream(void); /* one non-blocking stream */
void *gpu_side_stream(void);
/* What is put into `later` from now on waits for what is in `earlier`: one of the two streams and the other. */
void gpu_after(void *later, void *earlier);
/* Captures fn(arg, i) for i = 0 .. n-1 on gpu_stream() into a graph. */
struct gpu_graph;
struct gpu_graph *gpu_capture(int (*fn)(void *arg, int i), void *arg, int n);
double gpu_replay_us(struct gpu_graph *g); /* one replay, between two events, microseconds */
void gpu_replay(struct gpu_graph *g);      /* does not wait */
/* fn(arg, i) for i = 0 .. n-1 on gpu_stream(), between two events, microseconds. */
double gpu_time_us(int (*fn)(void *arg, int i), void *arg, int n);
void gpu_graph_free(struct gpu_graph *g);

/* cuBLAS: C = op(A) op(B), row-major as in mkernel.h. false: no libcublas. */
bool blas_open(const char **why);
int blas_gemm(mk_layout_t layout, mk_dtype_t dtype, int64_t m, int64_t n, int64_t k, gpu_ptr a, int64_t lda,
              gpu_ptr b, int64_t ldb, gpu_ptr c, int64_t ldc, void *stream);
/* float64: C[m,n] = A[m,k] B[n,k]^T, dense. */
void blas_gemm_f64(int64_t m, int64_t n, int64_t k, gpu_ptr a, gpu_ptr b, gpu_ptr c);
void blas_sm_target(int sms); /* 0: all */
