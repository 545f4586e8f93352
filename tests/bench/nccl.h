/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* NCCL as a baseline, opened at run time; the few declarations that it takes are our own. */
#pragma once
#include "mkernel.h"
#include "tests/bench/gpu.h"
#include <stdbool.h>

/* Collective over comm's ranks. path: of libnccl. false on every rank: *why says whose and why. */
bool nccl_open(const char *path, mk_comm_t comm, int rank, int nranks, const char **why);
int nccl_version(void);
/* In-place sum; 0 or an error. */
int nccl_all_reduce(gpu_ptr p, size_t count, mk_dtype_t dtype, void *stream);
void nccl_close(void);
