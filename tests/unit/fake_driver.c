/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The stand-in: what launching a GEMM needs; `fake_driver` says how it answers. For memory, copies and streams there is
 * tests/net/fake_cuda.c. */
#include "fake_driver.h"
#include "mk/cuda.h"
#include <stdio.h>
#include <string.h>

struct fake_driver fake_driver __attribute__((visibility("default")));

#define ANSWER(name, args)                                                                                   \
    int name args __attribute__((visibility("default")));                                                    \
    int name args

ANSWER(cuDriverGetVersion, (int *version))
{
    *version = 13000;
    return 0;
}
ANSWER(cuGetErrorName, (int error, const char **name))
{
    *name = error == 719 ? "CUDA_ERROR_LAUNCH_FAILED" : "CUDA_ERROR_FAKE";
    return 0;
}
ANSWER(cuDeviceGetAttribute, (int *value, int attribute, int device))
{
    (void)device;
    *value = attribute == MK_CU_ATTR_MAJOR   ? fake_driver.major
             : attribute == MK_CU_ATTR_MINOR ? fake_driver.minor
             : attribute == MK_CU_ATTR_SMS   ? fake_driver.sms
                                             : 0;
    return 0;
}
ANSWER(cuCtxGetCurrent, (void **ctx))
{
    *ctx = fake_driver.ctx;
    return 0;
}
ANSWER(cuCtxGetDevice, (int *device))
{
    *device = fake_driver.device;
    return fake_driver.ctx ? 0 : 201;
}
ANSWER(cuStreamGetCtx, (void *stream, void **ctx))
{
    (void)stream;
    *ctx = fake_driver.stream_ctx;
    return 0;
}
ANSWER(cuPointerGetAttribute, (void *value, int attribute, mk_cu_ptr p))
{
    const size_t n = sizeof(fake_driver.memory) / sizeof(fake_driver.memory[0]);
    for (size_t i = 0; i < n; i++)
        if (p - (mk_cu_ptr)(uintptr_t)fake_driver.memory[i].base < fake_driver.memory[i].bytes) {
            const unsigned type = MK_CU_MEMORY_DEVICE;
            memcpy(value,
                   attribute == MK_CU_POINTER_MEMORY_TYPE ? (const void *)&type
                                                          : (const void *)&fake_driver.memory[i].device,
                   sizeof(int));
            return 0;
        }
    return 1; /* CUDA_ERROR_INVALID_VALUE: not memory that it knows */
}

ANSWER(cuInit, (unsigned flags))
{
    (void)flags;
    return 0;
}
ANSWER(cuDeviceGetCount, (int *n))
{
    *n = 2;
    return 0;
}
ANSWER(cuDeviceGet, (int *device, int ordinal))
{
    *device = ordinal;
    return 0;
}
ANSWER(cuDeviceGetName, (char *name, int len, int device))
{
    snprintf(name, (size_t)len, "fake %d", device);
    return 0;
}
ANSWER(cuThreadExchangeStreamCaptureMode, (int *mode))
{
    (void)mode;
    return 0;
}

#ifndef FAKE_OLD /* a driver before 12.0 has nothing of these */
ANSWER(cuLibraryLoadData, (void **library, const void *code, void *jit, void *jit_values, unsigned njit,
                           void *options, void *values, unsigned n))
{
    (void)code, (void)jit, (void)jit_values, (void)njit, (void)options, (void)values, (void)n;
    *library = &fake_driver;
    return 0;
}
ANSWER(cuLibraryGetKernel, (void **kernel, void *library, const char *name))
{
    static char names[32][64];
    static int used;
    if (library != &fake_driver || used == 32)
        return 500; /* CUDA_ERROR_NOT_FOUND */
    snprintf(names[used], sizeof(names[0]), "%s", name);
    *kernel = names[used++];
    return 0;
}
ANSWER(cuKernelGetFunction, (void **function, void *kernel))
{
    *function = kernel;
    return 0;
}
ANSWER(cuKernelSetAttribute, (int attribute, int value, void *kernel, int device))
{
    (void)attribute, (void)value, (void)kernel, (void)device;
    return 0;
}
ANSWER(cuTensorMapEncodeTiled, (struct mk_cu_map * map, int type, uint32_t rank, void *address,
                                const uint64_t *dims, const uint64_t *strides, const uint32_t *box,
                                const uint32_t *steps, int interleave, int swizzle, int l2, int oob))
{
    (void)type, (void)rank, (void)address, (void)dims, (void)strides, (void)box, (void)steps,
        (void)interleave;
    (void)swizzle, (void)l2, (void)oob;
    memset(map, 0, sizeof(*map));
    return 0;
}
ANSWER(cuLaunchKernelEx, (const struct mk_cu_launch *config, void *function, void **params, void **extra))
{
    (void)config, (void)params, (void)extra;
    if (fake_driver.launch_error)
        return fake_driver.launch_error;
    fake_driver.launches++;
    snprintf(fake_driver.kernel, sizeof(fake_driver.kernel), "%s", (const char *)function);
    return 0;
}
#endif
