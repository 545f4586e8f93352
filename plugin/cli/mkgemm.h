/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The parts of mkgemm: mkgemm.c (command line, the order of things), mkgemm_data.c (files and slices),
 * mkgemm_run.c (what all ranks do together), mkgemm_report.c (what rank 0 tells). */
#pragma once
#include "mk/fused.h"
#include "mk/param.h"
#include "npy.h"
#include "timeline.h"

struct mkgemm_options {
    const char *a, *b, *out, *timeline, *json, *layout_name, *device;
    mk_layout_t layout;
    int dtype; /* -1: from the files */
    bool verify, make;
    long long repeat;
    long long make_m, make_n, make_k, seed;
};

/* Seconds: of each repetition the slowest rank, of these the median, the smallest and the largest. */
struct mkgemm_figure {
    double median, min, max;
};
enum { T_COMPUTE, T_COMM, T_SEQUENTIAL, T_FUSED, T_COUNT };

struct mkgemm_gpu;

struct mkgemm {
    struct mkgemm_options o;
    struct mk_settings settings;
    int rank, nranks;
    mk_comm_t comm; /* NULL before and after */
    struct mk_comm_info info;
    struct mk_npy a, b; /* fd -1: not open */
    int64_t m, n, k;
    int64_t k0, kn; /* this rank's slice of K */
    mk_dtype_t dtype;
    void *slice_a, *slice_b; /* of the dtype, rows without gaps */
    void *c, *scratch;       /* the product; where timed calls write */
    uint64_t hash;           /* of c on this rank */
    bool same_bits;          /* in every call of this rank */
    bool bitwise_equal;      /* on all ranks, in every call */
    struct mkgemm_figure t[T_COUNT];
    double bound;                   /* max(T_compute, T_comm) */
    double rel_error;               /* NaN: not verified */
    struct mkgemm_gpu *gpu;         /* NULL: computes on the CPU */
    struct mk_timeline_rank *lines; /* rank 0: the timeline of all ranks; events are allocated */
};

static inline size_t mkgemm_size(mk_dtype_t t)
{
    return t == MK_FLOAT32 ? 4 : 2;
}
/* Which dimension of the file K is. */
static inline bool mkgemm_a_k_is_row(const struct mkgemm *g)
{
    return g->o.layout == MK_NT;
}
static inline bool mkgemm_b_k_is_row(const struct mkgemm *g)
{
    return g->o.layout != MK_TN;
}
static inline double mkgemm_allowed(const struct mkgemm *g)
{
    return g->dtype == MK_FLOAT32 ? 2e-6 : 4e-3;
}
const char *mkgemm_dtype_name(mk_dtype_t t);

/* mkgemm_data.c. Nothing here prints: 0 or MK_ERR_*, the sentence in mk_last_error(). */
int mkgemm_make(const struct mkgemm_options *o);
/* Opens both files, finds M, N, K and the dtype. */
int mkgemm_open(struct mkgemm *g);
void mkgemm_close(struct mkgemm *g);
/* Columns (or rows) k0 .. k0 + kn of A or B, rounded to the dtype, as fp32. */
int mkgemm_load(const struct mkgemm *g, const struct mk_npy *f, int64_t k0, int64_t kn, float *out);
/* This rank's slices, C and the scratch. */
int mkgemm_load_slices(struct mkgemm *g);
/* Is there room for C? */
int mkgemm_room(const struct mkgemm *g);
int mkgemm_write_c(const struct mkgemm *g);
float mkgemm_element(const struct mkgemm *g, const void *p, int64_t i);

/* mkgemm_run.c. These print what went wrong, on one rank where it is a shared mistake; 0 or an exit code. */
/* Tells all ranks this one's status and facts; the first rank whose status is not 0 prints `text`. */
int mkgemm_agree(struct mkgemm *g, int status, const char *text);
int mkgemm_product(struct mkgemm *g);
int mkgemm_measure(struct mkgemm *g);
int mkgemm_trace(struct mkgemm *g);

/* mkgemm_gpu.c: 0 or MK_ERR_*, the sentence in mk_last_error(). */
/* --device auto: a GPU, if this machine has one that can do it; gpu: an error if not. Its context becomes current. */
int mkgemm_gpu_open(struct mkgemm *g);
/* Back to the CPU. */
void mkgemm_gpu_drop(struct mkgemm *g);
/* The slices, C and the scratch; nothing without a GPU. */
int mkgemm_gpu_load(struct mkgemm *g);
const void *mkgemm_gpu_a(const struct mkgemm *g);
const void *mkgemm_gpu_b(const struct mkgemm *g);
void *mkgemm_gpu_c(const struct mkgemm *g, const void *c); /* of C or the scratch in host memory: its twin */
void *mkgemm_gpu_stream(const struct mkgemm *g);
int mkgemm_gpu_wait(const struct mkgemm *g);
/* C or the scratch to host memory; nothing without a GPU. */
int mkgemm_gpu_fetch(const struct mkgemm *g, void *c);
void mkgemm_gpu_close(struct mkgemm *g);

/* mkgemm_report.c, on rank 0 only, without the communicator. */
int mkgemm_report(struct mkgemm *g);

/* On a terminal: one line that is overwritten; NULL erases it. Otherwise nothing. */
void mkgemm_progress(const struct mkgemm *g, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
