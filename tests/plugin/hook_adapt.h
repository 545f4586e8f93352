/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* A rank of a job under interception, on stand-ins for the libraries and for G and K: what is called and launched is
 * written down in one line, with what the recogniser's counters say of it. */
#pragma once
#include "hook_face.h"
#include "hook_stand.h"

enum { BF16 = 14, FP16 = 2, FP32 = 0, NCCL_BF16 = 9, NCCL_FP32 = 7 };

struct rank {
    const struct hook_face *face;
    struct stand_comm comm;
    struct stand_stream s, t;
    /* what the stand-ins for G and K are to return, and to say */
    int g_error, k_error, wait_error, record_error;
    bool cannot, late;
    int later_error; /* of a launch, by now */
    struct mk_fuse_g last_g;
    struct mk_pair_gemm gemm; /* what that was launched for, or asked about */
    struct mk_fuse_k last_k;
    int aborts; /* by the user */
    int failed; /* error of the last `fail` */
    bool told;
};
extern struct rank r;
extern int failures;

const struct mk_fuse_ops *rank_ops(void);
/* Starts anew: nothing is known. */
void rank_start(const struct mk_adapt_options *options);
/* The default: all functions, counters complete, one witnessed operation is enough. */
void rank_start_fused(void);
/* The same, and r.comm is agreed and fused from its next operation on, after one on `stream`. */
void rank_agree(void);
void rank_agree_comm(struct stand_comm *comm, uint64_t id, struct stand_stream *on);
/* config: mode and timed; the limits are the stand-ins'. */
void rank_agree_comm_as(struct stand_comm *comm, uint64_t id, struct stand_stream *on,
                        struct mk_pair_config config);
/* M x N = 4 x 8, K = 16, bf16, C, A and W of test memory. */
int rank_gemm(struct stand_stream *on, void *c);
int rank_reduce(struct stand_comm *comm, struct stand_stream *on, const void *send, void *recv, size_t count);
/* What happened since the last time is `want`: "ORIGINAL:unknown-site gemm nccl NCCL:not-ready ..." */
void rank_did(int line, const char *want);
#define DID(want) rank_did(__LINE__, want)
#define CHECK(x)                                                                                             \
    do {                                                                                                     \
        if (!(x)) {                                                                                          \
            fprintf(stderr, "%s line %d: %s\n", __FILE__, __LINE__, #x);                                     \
            failures++;                                                                                      \
        }                                                                                                    \
    } while (0)
void rank_begin_capture(struct stand_stream *s, uint64_t id);
extern unsigned short a_mem[4 * 16], w_mem[8 * 16], c_mem[4 * 8], d_mem[4 * 8];

/* hook_adapt_check.c, hook_adapt_lt.c, hook_adapt_time.c */
void check_cases(void);
void lt_cases(void);
void time_cases(void);
