/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Lines of interception (plugin/intercept) in a log of any programs: one row for each call site, decision and reason. What
 * else is in the log is passed over; a line of ours that is cut, or that another line runs into, is counted and not
 * believed. */
#pragma once
#include "mk/pair.h"

enum { MK_EXPLAIN_PROCESSES = 64 };

struct mk_explain_row {
    bool gemm;
    char op[24], dtype[8]; /* of a GEMM: op is "gemm" */
    char site[96];         /* object and offset; of a GEMM: "" */
    uint64_t n, k;         /* of a collective: its count, 0 */
    uint8_t act, reason;   /* enum mk_pair_act, enum mk_pair_reason */
    uint8_t proof;         /* OVERLAP: enum mk_pair_proof */
    uint64_t lines;        /* one a process and communicator */
    uint32_t processes;    /* as far as the log tells them apart, at most as many as are kept */
    uint64_t process[MK_EXPLAIN_PROCESSES];
    uint64_t order; /* of its site's first line */
};
struct mk_explain_setup { /* how set-up of communicators ended */
    uint64_t on, off[MK_PAIR_REASONS];
};
struct mk_explain_timed { /* of a size class, as last said; us */
    uint64_t lines;
    double ours, nccl, gemm, together; /* gemm 0: none right before it */
    bool eager_nccl, captured_nccl;    /* whose it is from then on */
};
struct mk_explain {
    struct mk_explain_row
        *row; /* in the order of their first lines, rows of a site together after mk_explain_sort */
    uint64_t nrows, room, omitted;
    uint64_t bytes, lines, ours, damaged;
    uint64_t totals;                                     /* lines of counters at exit */
    uint64_t act[MK_PAIR_ACTS], reason[MK_PAIR_REASONS]; /* calls by these; stop at UINT64_MAX */
    bool verified;                                       /* MK_VERIFY was on: */
    uint64_t checked, differed;                          /* pairs, and those whose C changed in between */
    struct mk_explain_setup setup;
    struct mk_explain_timed timed[MK_PAIR_CLASSES]; /* from 64 << i bytes on */
};

/* 0; SYSTEM: it cannot be read; NOMEM. The sentence begins with the path. */
int mk_explain_add(struct mk_explain *e, const char *path);
/* One line, without its end; `whole`: it has one. NOMEM. */
int mk_explain_line(struct mk_explain *e, const char *text, size_t bytes, bool whole);
void mk_explain_sort(struct mk_explain *e);
void mk_explain_free(struct mk_explain *e);
