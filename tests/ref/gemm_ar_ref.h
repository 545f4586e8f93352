/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The oracle of GEMM+AllReduce: the numerics contract of mkernel.h, element by element, from the ranks' rounded
 * partial products; and a float64 product. Knows nothing of tiles, chunks or rings. */
#pragma once
#include "mkernel.h"

/* p[rank]: dense [m, n] of dtype, ranks in order node * nlocal + local. out: dense [m, n] of dtype. bias: dtype[n]
 * or NULL. */
void mk_ref_allreduce(int nnodes, int nlocal, int64_t m, int64_t n, int dtype, int wire_fp32,
                      const void *const *p, const void *bias, int act, void *out);
/* acc[m, n] += op(a) * op(b) in float64. */
void mk_ref_gemm_f64(int layout, int dtype, int64_t m, int64_t n, int64_t k, const void *a, int64_t lda,
                     const void *b, int64_t ldb, double *acc);
double mk_ref_get(const void *p, int dtype, int64_t i);
void mk_ref_set(void *p, int dtype, int64_t i, double v);
/* ||x - ref|| / ||ref||, Frobenius; x strided [m, n], ref dense. */
double mk_ref_rel_error(const void *x, int dtype, int64_t m, int64_t n, int64_t ld, const double *ref);
