/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What the stand-in for libcuda.so.1 (fake_cuda.c) counts. */
#pragma once
#include <dlfcn.h>
#include <stdlib.h>

struct fake_cuda_counts {
    long calls;          /* that FAKE_CUDA_FAIL may let fail */
    long memory, opened; /* allocations; IPC handles that are open */
    long registered, events;
};
extern struct fake_cuda_counts fake_cuda_counts;

/* For a program that has not linked it, but opens it as a driver. Ends the program where it is another one. */
static inline const struct fake_cuda_counts *fake_cuda_found(void)
{
    const void *p = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "fake_cuda_counts");
    if (!p)
        abort();
    return p;
}
