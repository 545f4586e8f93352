/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Between operator.c and the executors: launches of K. Private to fused/. */
#pragma once
#include "comm.h"
#include "mk/pair_run.h"

/* The launch follows the tiles, if it can: false. */
bool mk_pair_bind(const struct mk_pair_tiles *tiles, struct mk_ar *ar);
/* cuda/pair.c */
int mk_exec_gpu_pair(struct mk_comm *comm, const struct mk_gemm_call *call, struct mk_ar *ar,
                     const struct mk_pair_tiles *tiles, void *stream, bool *overlapped);
