/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What the benchmarks share: samples and their medians; subcommands of mkbench. */
#pragma once
#include "plugin/cli/json.h"
#include <stdbool.h>

#define BENCH_SAMPLES 101

struct bench_samples {
    double v[BENCH_SAMPLES];
    int n;
};
struct bench_stat {
    double median, min, max;
};

void bench_add(struct bench_samples *s, double v);
struct bench_stat bench_stat_of(const struct bench_samples *s);
/* 95 % interval of the median, from order statistics (the binomial distribution; nothing is assumed of the samples).
 * false: fewer than 6 samples, which give none; then it is [min, max]. */
bool bench_interval(const struct bench_samples *s, double *low, double *high);
/* "name": {"median": .., "min": .., "max": ..} */
void bench_json_stat(struct mk_json *j, const char *name, const struct bench_stat *s);
/* "machine": {processor, cores, kernel}. */
void bench_json_machine(struct mk_json *j);

/* Subcommands; argv[0] is the subcommand's name. Return exit codes. */
int bench_net(int argc, char **argv);
int bench_gemm(int argc, char **argv); /* 77: no GPU here */
int bench_gemm_ar(int argc, char **argv);
int bench_controller(int argc, char **argv);
int bench_plugin(int argc, char **argv);
int bench_hook(int argc, char **argv);
int bench_faces(int argc, char **argv);
int bench_pair(int argc, char **argv);
