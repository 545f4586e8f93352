/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* GEMM on the GPU: which kernel for which problem, and its launch. Private to fused/. */
#pragma once
#include "mk/cuda.h"
#include "mk/pair_run.h"
#include "mkernel.h"

/* The embedded fat binaries (made by nvcc from the .cu files of the same names; none.c without nvcc). */
extern const uint8_t mk_kernels_gemm_bf16[], mk_kernels_gemm_fp16[], mk_kernels_gemm_ar_bf16[],
    mk_kernels_gemm_ar_fp16[], mk_kernels_gemm_ar_portable_bf16[], mk_kernels_gemm_ar_portable_fp16[],
    mk_kernels_gemm_ar_ll_bf16[], mk_kernels_gemm_ar_ll_fp16[], mk_kernels_pair_bf16[],
    mk_kernels_pair_fp16[], mk_kernels_pair_check[];
enum mk_image {
    MK_IMAGE_GEMM_BF16 = 0,
    MK_IMAGE_GEMM_FP16 = 1,
    MK_IMAGE_AR_BF16 = 2,
    MK_IMAGE_AR_FP16 = 3,
    MK_IMAGE_AR_PORTABLE_BF16 = 4,
    MK_IMAGE_AR_PORTABLE_FP16 = 5,
    MK_IMAGE_AR_LL_BF16 = 6,
    MK_IMAGE_AR_LL_FP16 = 7,
    MK_IMAGE_PAIR_BF16 = 8,
    MK_IMAGE_PAIR_FP16 = 9,
    MK_IMAGE_PAIR_CHECK = 10,
    MK_IMAGES = 11
};
extern const bool mk_kernels_built;

enum mk_gemm_kind { MK_GEMM_BIG = 0, MK_GEMM_SKINNY = 1, MK_GEMM_PORTABLE = 2 };

/* What a launch will be. kind, bn, cm, splits belong to the numerics key (K order, split factor); grid and group do
 * not. */
struct mk_gemm_choice {
    enum mk_gemm_kind kind;
    int bn;     /* big: columns of a tile; skinny: rows of A that fit */
    int cm;     /* big: blocks of a cluster, along M */
    int splits; /* skinny: parts of K, blocks of a cluster (1 or 2) */
    int group;  /* big: bands open at a time; skinny: boxes of weights asked into L2 ahead */
    int blocks; /* grid */
};

/* Pure: from shape, alignment and number of blocks (SMs). hopper: the device has the Hopper kernels. bands > 0: row
 * bands are finished in order, so many open at a time; 0: the order that keeps L2 warm. */
void mk_gemm_choose(const struct mk_gemm_problem *p, bool hopper, int blocks, int bands,
                    struct mk_gemm_choice *out);
/* Launches on the current context; asynchronous, capturable. */
int mk_gemm_cuda_launch(const struct mk_gemm_problem *p, const struct mk_gemm_choice *c, void *stream);

/* Can the copy engine take all operands? */
bool mk_gemm_cuda_bulk(const struct mk_gemm_problem *p);
/* What the Hopper kernels with 128 x bn tiles get: the same words as struct mk_gemm_sm90. */
struct mk_big_params {
    struct mk_cu_map a, b, c;
    int32_t m, n, k, group;
    const void *bias;
    int32_t act, pad;
};
int mk_gemm_cuda_maps(const struct mk_cuda *cu, const struct mk_gemm_problem *p, int bn, int cm,
                      struct mk_big_params *out);
/* What the kernels for few rows get: the same words as struct mk_gemm_skinny; *smem: their shared memory. */
struct mk_skinny_params {
    struct mk_cu_map w, x;
    void *c;
    int64_t ldc;
    const void *bias;
    int32_t m, n, k, act, wide, stages, ahead, pad;
};
int mk_gemm_cuda_skinny(const struct mk_cuda *cu, const struct mk_gemm_problem *p,
                        const struct mk_gemm_choice *c, struct mk_skinny_params *out, int *smem);
int mk_gemm_cuda_skinny_grid(const struct mk_gemm_problem *p, const struct mk_gemm_choice *c);
/* C in boxes of rows x cols (at most 256 each), in shared memory row by row. */
int mk_gemm_cuda_boxes(const struct mk_cuda *cu, const struct mk_gemm_problem *p, int rows, int cols,
                       struct mk_cu_map *out);
/* A ring of slots, at `base` on the device, as a matrix [rows, cols], in the boxes of 64 x 64 in which a tile leaves. */
int mk_gemm_cuda_ring(const struct mk_cuda *cu, const struct mk_gemm_problem *p, mk_cu_ptr base, int64_t rows,
                      int cols, struct mk_cu_map *out);
/* The boxes of a chunk with so many columns, as bulk copies take them (tile/bulk_sm90.cuh): *rows at most; false: two of them
 * one after the other would not both begin at a multiple of 128 bytes in shared memory, so it goes row by row. */
bool mk_gemm_cuda_chunk_boxes(int cols, int *rows);
int mk_gemm_cuda_smem(int bn);
/* Loads kernel `name` for the current device. */
int mk_cuda_load(const struct mk_cuda *cu, enum mk_image image, const char *name, int smem);
/* Launches kernel `name` of an embedded image. early: it may start before the grid before it in the stream ends. */
int mk_cuda_start(const struct mk_cuda *cu, enum mk_image image, const char *name, int smem, int grid,
                  int threads, int cluster, bool early, void *params, void *stream);

/* Where do the operands live? 1: all on the current context's device (then *blocks, *hopper); 0: none of them is
 * device memory; INVALID: mixed, another device, no current context, a stream of another context; UNSUPPORTED: a GPU
 * below 8.0, a driver that is too old, no kernels built. */
int mk_gemm_cuda_place(const struct mk_gemm_problem *p, void *stream, int *blocks, bool *hopper);
