/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* NCCL as a baseline, opened at run time; the few declarations that it takes are our own. */
#pragma once
#include "mkernel.h"
#include "tests/bench/gpu.h"
#include <stdbool.h>

/* A communicator of NCCL over comm's ranks; collective. path: of libnccl; the first one stays loaded. ctas: blocks of
 * its kernels, neither more nor less; 0: NCCL's choice. false: not on this rank at least, *why says whose and why. */
bool nccl_open(const char *path, mk_comm_t comm, int rank, int nranks, int ctas, void **out,
               const char **why);
int nccl_version(void);
/* In-place sum; 0 or an error. */
int nccl_all_reduce(void *nccl, gpu_ptr p, size_t count, mk_dtype_t dtype, void *stream);
const char *nccl_error(int err);
void nccl_close(void *nccl); /* NULL allowed */
