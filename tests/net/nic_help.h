/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* A real mknic process for tests; the CUDA driver is whatever LD_LIBRARY_PATH finds: the stand-in (fake_cuda.c) or
 * the real one. */
#pragma once
#include "mk/cuda.h"
#include "mk/param.h"
#include <sys/types.h>

struct nic_proc {
    pid_t pid;
    char dir[64], path[96];
};

/* Starts `program` with further options (NULL-terminated, NULL: none); sets s->nic. 0, 77 (no driver or GPU here, a
 * skip line was printed), 1. */
int nic_start(const char *program, const char *const *options, struct nic_proc *out, struct mk_settings *s);
/* Ends it with `sig`, waits, removes its directory. Returns its wait status, -1: it was not there. */
int nic_stop(struct nic_proc *p, int sig);

/* The driver with device `ordinal` current on this thread; NULL: a line says why. */
const struct mk_cuda *nic_cuda(int ordinal);
