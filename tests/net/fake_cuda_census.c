/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The stand-in's one kernel: that of mkrun's census. FAKE_RESIDENT of its blocks are on the GPU at once (unset: all),
 * the others never come; FAKE_FIT: of a larger grid two never come; FAKE_LAUNCH_ERROR: what a launch returns. */
#include "mk/cuda.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DECLARE(field, symbol, args) int field args __asm__(symbol) __attribute__((visibility("default")));
MK_CU_KERNELS(DECLARE)

struct args { /* as in plugin/cli/census.cu */
    mk_cu_ptr sm, go;
    uint64_t limit_ns;
};
static char kernel_name[64];

int library_load(void **library, const void *code, void *jit, void *jit_values, unsigned njit, void *options,
                 void *values, unsigned n)
{
    (void)code, (void)jit, (void)jit_values, (void)njit, (void)options, (void)values, (void)n;
    *library = kernel_name;
    return 0;
}
int library_kernel(void **kernel, void *library, const char *name)
{
    snprintf(library, sizeof(kernel_name), "%s", name);
    *kernel = library;
    return 0;
}
int kernel_function(void **function, void *kernel)
{
    *function = kernel;
    return 0;
}
int kernel_set_attribute(int attribute, int value, void *kernel, int device)
{
    (void)attribute, (void)value, (void)kernel, (void)device;
    return 0;
}
int launch(const struct mk_cu_launch *config, void *function, void **params, void **extra)
{
    const char *error = getenv("FAKE_LAUNCH_ERROR"), *resident = getenv("FAKE_RESIDENT");
    const struct args *a = params[0];
    (void)extra;
    if (error || strcmp(function, "mk_census"))
        return error ? atoi(error) : 801;
    const char *fit = getenv("FAKE_FIT");
    const uint32_t n = resident                                       ? (uint32_t)atoi(resident)
                       : fit && config->grid[0] > (uint32_t)atoi(fit) ? config->grid[0] - 2
                                                                      : config->grid[0];
    for (uint32_t b = 0; b < config->grid[0] && b < n; b++)
        __atomic_store_n((uint32_t *)(uintptr_t)a->sm + b, b + 1, __ATOMIC_RELAXED);
    return 0;
}
