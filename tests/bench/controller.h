/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* mkbench controller: what its two files share. bench_controller.c measures, controller_report.c tells. */
#pragma once
#include "tests/bench/gemm_ar.h"

#define CTL_BUDGETS 129 /* 0: the controller; else so many blocks communicate */
#define CTL_CASES 64

struct ctl_case {
    int64_t shape[3];
    struct ar_link link;
    int blocks, most;
    int pinned; /* --cost: 1 is this fixed number, 0 the controller at work with the same number; 0: a sweep */
    bool controlled;
    double first_us; /* the first call of a communicator that knows nothing */
    double us[CTL_BUDGETS][BENCH_SAMPLES];
    /* of rounds with even number: who is best; of those with odd number: how it compares */
    int best;
    double best_us, own_us;
    struct bench_samples ratio; /* best static / controller, of the same round; with `pinned` of all rounds */
};
struct ctl_sum {
    double mean, worst, first_mean,
        first_worst;                /* of best static / controller; of best static / first call */
    int split;                      /* the one budget that is best over all cases ... */
    double split_mean, split_worst; /* ... and it against the controller: its time / the controller's */
};

void ctl_judge(struct ctl_case *c, int rounds);
struct ctl_sum ctl_sum_of(const struct ctl_case *cases, int n, int rounds);
/* Median of v's rounds with this parity (0, 1; -1: all). */
double ctl_median(const double *v, int rounds, int parity);
void ctl_print(const struct ctl_case *c, int rounds);
void ctl_print_sum(const struct ctl_sum *s, int n, bool cost);
int ctl_json(const char *path, const struct ar_bench *b, const struct ctl_case *cases, int n, int rounds);
int ctl_svg(const char *path, const struct ctl_case *cases, int n, int rounds);
