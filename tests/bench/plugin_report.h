/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* mkbench plugin: its figures, as a table and as JSON. */
#pragma once
#include "tests/bench/bench.h"
#include "tests/bench/plugin.h"

enum { REPORT_SIZES = 16, REPORT_IMPLS = 6 };
enum report_what { REPORT_DEPTH8, REPORT_DEPTH1, REPORT_LATENCY, REPORT_WHATS };

extern const struct report_what_text {
    const char *option, *name, *unit;
} report_whats[REPORT_WHATS];

struct report_row {
    int what; /* enum report_what */
    size_t size;
    struct bench_samples v[REPORT_IMPLS];
};
/* Implementations: the raw ones first, then the plugins. */
struct report {
    struct report_row row[REPORT_SIZES * REPORT_WHATS];
    int nrows, nraw, nimpls, pairs;
    char name[REPORT_IMPLS][128];
    unsigned runs, disturbed;
    const char *json;
};

int report_print(const struct report *p);
int report_json(const struct report *p);
