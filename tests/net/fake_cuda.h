/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What the stand-in for libcuda.so.1 (fake_cuda.c) counts; found by dlsym. */
#pragma once

struct fake_cuda_counts {
    long calls;          /* that FAKE_CUDA_FAIL may let fail */
    long memory, opened; /* allocations; IPC handles that are open */
    long registered, events;
};
extern struct fake_cuda_counts fake_cuda_counts;
