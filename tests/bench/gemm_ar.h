/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* mkbench gemm_ar: what its files share.
 *
 *   bench_gemm_ar.c   options, one case after the other     gemm_ar_job.c     ranks, communicators, operands
 *   gemm_ar_link.c    what the link alone holds             gemm_ar_check.c   a wrong result is never timed
 *   gemm_ar_run.c     variants and their samples            gemm_ar_two.c     NCCL, two streams at their best
 *   gemm_ar_report.c  tables and JSON                  gemm_ar_ranks.c   the start
 *
 * A case is a shape over a link. Functions that return int: 0, or non-zero after a message. All are collective. */
#pragma once
#include "mk/boot.h"
#include "mk/fused.h"
#include "tests/bench/bench.h"
#include "tests/bench/gpu.h"
#include "tests/bench/options.h"

#define AR_SETS 32 /* operands in rotation */
#define AR_LIST 8
#define AR_NODES 64

enum ar_variant {
    AR_CUBLAS,
    AR_COMPUTE, /* T_compute */
    AR_COMM,    /* T_comm */
    AR_FUSED,
    AR_UNFUSED, /* our GEMM, then our exchange alone */
    AR_NCCL,    /* all-reduce alone */
    AR_PAIR,    /* cuBLAS, then NCCL */
    AR_TWO,     /* cuBLAS on chunks of M, NCCL on a second stream */
    AR_VARIANTS
};
extern const char *const ar_names[AR_VARIANTS];

struct ar_list {
    double v[AR_LIST];
    int n;
};
struct ar_options {
    struct bench_shapes shapes;
    struct ar_list ratios, ctas;
    double gbps, us; /* < 0: as the environment says */
    int pairs, calls, nodes, per_node, blocks;
    int check; /* one row of so many is compared with the contract; 0: none */
    bool graph, cpu, no_two;
    const char *nccl, *json;
};

struct ar_link {
    double ratio;    /* of T_comm to T_compute that chose the rate; 0: the rate was given */
    double gbps, us; /* 0 Gbit/s: not paced */
};
struct ar_two {
    int chunks, sms, nccl; /* sms: of cuBLAS, 0: all; nccl: index of the communicator */
};

struct ar_bench {
    const struct ar_options *o;
    struct mk_boot *boot; /* through all cases; NULL with one rank */
    int rank, nranks, base_sms;
    bool wire_fp32;
    mk_comm_t comm; /* of this case */
    struct mk_comm_info info;
    struct mk_plan_info plan;
    int rank_at[1024]; /* [node * local_nranks + local] */
    int64_t m, n, k;
    int sets, calls;
    gpu_ptr a[AR_SETS], b[AR_SETS], c[AR_SETS];
    enum ar_variant variant;
    void *nccl[AR_LIST];
    int nccls, nccl_best;
    struct ar_two two;
};

struct ar_result {
    struct ar_link link;
    double compute_us; /* T_compute that chose the rate */
    double reached;    /* Gbit/s of the link alone, slowest rank; 0: not looked at */
    double small_us;   /* one way, of a small write and its flag, slowest rank; 0: not looked at */
    double counted;    /* bytes of an exchange that the proxy counted, largest rank */
    int rows;          /* compared with the contract */
    struct bench_samples us[AR_VARIANTS];    /* slowest rank; n 0: not run */
    struct bench_samples ratio[AR_VARIANTS]; /* to fused, of the same round */
    struct bench_samples to_bound;           /* fused / max(T_compute, T_comm) of the same round */
    int tried;                               /* two streams: variants */
    struct ar_two two;
};

/* ranks.c */
bool ar_list_of(void *to, const char *text); /* for BENCH_CALL; to: struct ar_list * */
int ar_set_default(const char *name, const char *value);
bool ar_self(char path[400], char **name);
/* Becomes mkrun, which starts this program again as the ranks. Returns only on a failure. */
int ar_become_mkrun(const struct ar_options *o, int argc, char **argv);
bool ar_is_rank(void);

/* job.c */
int ar_start(struct ar_bench *b);
void ar_end(struct ar_bench *b);
int ar_gather(void *bench, const void *send, void *recv, size_t bytes);
double ar_slowest(struct ar_bench *b, double v); /* largest of all ranks; < 0: they do not answer */
int ar_link_set(const struct ar_link *link);
int ar_connect(struct ar_bench *b);
void ar_disconnect(struct ar_bench *b);
void ar_make(struct ar_bench *b, const int64_t shape[3]);
void ar_drop(struct ar_bench *b);
/* Bytes that leave a rank in one exchange of ours, and of NCCL's rings. */
double ar_bytes(const struct ar_bench *b);
double ar_nccl_bytes(const struct ar_bench *b);

/* link.c: after ar_link_set, without a communicator of its own in the way. */
int ar_link_hold(struct ar_bench *b, const struct ar_link *link, double *gbps, double *us);

/* check.c: one call of every operand set against the contract, the same bits on all ranks. *hash: of C of set 0. */
int ar_check(struct ar_bench *b, int *rows, uint64_t *hash);
/* After fused calls: still these bits. */
int ar_check_again(struct ar_bench *b, uint64_t hash);

/* run.c */
int ar_part(struct ar_bench *b, int set, enum mk_part part);
int ar_failed(struct ar_bench *b); /* a message if the communicator has failed */
/* Microseconds a call of b->variant, slowest rank; graph may be NULL; < 0: failed. */
double ar_sample(struct ar_bench *b, struct gpu_graph *graph);
struct gpu_graph *ar_capture(struct ar_bench *b);
int ar_measure(struct ar_bench *b, uint64_t hash, struct ar_result *r);
int ar_compute_us(struct ar_bench *b, double *us);
/* T_compute of all shapes, where rates follow from it. Its communicator also tells who is where. */
int ar_first_look(struct ar_bench *b, double *compute_us);

/* two.c */
int ar_nccl_open(struct ar_bench *b);
void ar_nccl_close(struct ar_bench *b);
/* Chooses b->nccl_best and b->two. */
int ar_nccl_tune(struct ar_bench *b, struct ar_result *r);
int ar_two_call(struct ar_bench *b, int set);

/* report.c: on rank 0. */
void ar_json_head(struct mk_json *j, const struct ar_bench *b);
void ar_report(const struct ar_bench *b, const struct ar_result *r, struct mk_json *j);
