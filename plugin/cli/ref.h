/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The truth that results are held against: a product in float64, and the relative error in the Frobenius norm.
 * Shares no code with the operators. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

/* A matrix by strides in elements, so that every layout is the same code: x(i, j) = p[i * row + j * col]. */
struct mk_ref_view {
    const float *p;
    int64_t row, col;
};

/* c[m * n], row after row, += a[m, k] * b[k, n], on `threads` threads. Called once per panel of K. NOMEM. */
int mk_ref_gemm(int64_t m, int64_t n, int64_t k, struct mk_ref_view a, struct mk_ref_view b, double *c,
                int threads);

/* ||got - ref|| / ||ref|| over any number of pieces. Start zeroed. An element that is NaN or infinite in one must be
 * the same in the other (a product beyond the range of `largest` may be infinite); else the error is infinite. */
struct mk_ref_error {
    double diff2, ref2;
    int64_t wrong;       /* elements with NaN or infinity on one side only */
    double worst;        /* largest difference of one element */
    int64_t worst_index; /* its number, in the order of the calls */
    int64_t count;
};
void mk_ref_compare(struct mk_ref_error *e, const float *got, const double *ref, int64_t n, double largest);
double mk_ref_relative(const struct mk_ref_error *e);
