/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* A libcuda.so.1 with two devices, for mkinfo on machines that have none. FAKE_CUDA_ERROR: what cuInit returns. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#define API __attribute__((visibility("default")))
API int cuInit(unsigned flags);
API int cuDeviceGetCount(int *n);
API int cuDeviceGet(int *device, int ordinal);
API int cuDeviceGetName(char *name, int len, int device);
API int cuDeviceTotalMem_v2(size_t *bytes, int device);
API int cuDeviceGetAttribute(int *value, int attribute, int device);

int cuInit(unsigned flags)
{
    const char *error = getenv("FAKE_CUDA_ERROR");
    return error ? atoi(error) : (int)flags;
}

int cuDeviceGetCount(int *n)
{
    *n = 2;
    return 0;
}

int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal + 10;
    return 0;
}

int cuDeviceGetName(char *name, int len, int device)
{
    snprintf(name, (size_t)len, "Pretend GPU %d", device);
    return device == 11 ? 999 : 0; /* the second one is broken */
}

int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    (void)device;
    *bytes = (size_t)141 << 30;
    return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    (void)device;
    *value = attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 16 ? 132 : -1;
    return 0;
}
