/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Command lines of the benchmarks: a table of options, and lists of shapes. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum bench_kind {
    BENCH_FLAG, /* no value; bool */
    BENCH_INT,  /* int in [min, max] */
    BENCH_REAL, /* double in [min, max] */
    BENCH_TEXT, /* const char * */
    BENCH_CALL  /* call(to, text): false: not what the option takes */
};
struct bench_option {
    const char *name; /* without the dashes; NULL ends the table */
    enum bench_kind kind;
    void *to;
    double min, max;
    bool (*call)(void *to, const char *text);
};
/* Fills what the table names; --help prints `help`. 0: go on; else the exit code + 1. arguments: others are taken too,
 * from argv[optind] on. */
int bench_options(int argc, char **argv, const struct bench_option *table, bool arguments, const char *help);

/* A decimal number in [min, max], nothing behind it. */
bool bench_real(const char *text, double min, double max, double *out);

/* For BENCH_CALL; to: struct bench_sizes *, whose most is set. A,B,.. with K and M. */
#define BENCH_SIZES 16
struct bench_sizes {
    size_t v[BENCH_SIZES], most;
    int n;
};
bool bench_sizes(void *to, const char *text);

#define BENCH_SHAPES 256
struct bench_shapes {
    int64_t at[BENCH_SHAPES][3]; /* M, N, K */
    int n;
};
/* For BENCH_CALL; to: struct bench_shapes *, to which is added. */
bool bench_shape(void *to, const char *text); /* M,N,K */
bool bench_shape_set(void *to, const char *name);
/* Lines of comma-separated values whose last three are M,N,K (tests/bench/shapes/gemm.csv); others are passed over. */
bool bench_shape_file(void *to, const char *path);
/* For help texts. */
#define BENCH_SHAPE_HELP                                                                                     \
    "  --shape M,N,K        one shape; may be repeated\n"                                                    \
    "  --shapes FILE        csv whose last three columns are M,N,K\n"                                        \
    "  --set NAME           known shapes: table, tp, decode, issue, small, prefill, multi, two\n"
#define BENCH_SHAPE_OPTIONS(shapes)                                                                          \
    {"shape", BENCH_CALL, (shapes), 0, 0, bench_shape},                                                      \
        {"set", BENCH_CALL, (shapes), 0, 0, bench_shape_set},                                                \
    {                                                                                                        \
        "shapes", BENCH_CALL, (shapes), 0, 0, bench_shape_file                                               \
    }
