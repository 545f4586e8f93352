/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The CUDA driver, opened at run time: the functions, types and numbers that we use, declared here so that nothing of
 * CUDA is needed to build. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uint64_t mk_cu_ptr;
struct mk_cu_map { /* CUtensorMap */
    _Alignas(64) uint64_t opaque[16];
};
struct mk_cu_attr { /* CUlaunchAttribute */
    int32_t id, pad;
    union {
        uint32_t cluster[3];
        int32_t programmatic;
        uint8_t bytes[64];
    } value;
};
struct mk_cu_launch { /* CUlaunchConfig */
    uint32_t grid[3], block[3], smem;
    void *stream;
    struct mk_cu_attr *attrs;
    uint32_t nattrs;
};

enum {
    MK_CU_ATTR_SMS = 16,
    MK_CU_ATTR_MAJOR = 75,
    MK_CU_ATTR_MINOR = 76,
    MK_CU_FUNC_DYNAMIC_SMEM = 8,
    MK_CU_LAUNCH_CLUSTER = 4,
    MK_CU_LAUNCH_PROGRAMMATIC = 6,
    MK_CU_POINTER_CONTEXT = 1,
    MK_CU_POINTER_MEMORY_TYPE = 2,
    MK_CU_POINTER_DEVICE = 9,
    MK_CU_MEMORY_DEVICE = 2,
    MK_CU_CAPTURE_RELAXED = 2,
    MK_CU_MAP_FLOAT16 = 6,
    MK_CU_MAP_BFLOAT16 = 9,
    MK_CU_MAP_SWIZZLE_128B = 3,
    MK_CU_MAP_L2_256B = 3,
    MK_CU_NOT_INITIALIZED = 3
};

/* X(field, symbol, arguments): all return a CUresult, 0 is success. */
#define MK_CU_FUNCTIONS(X)                                                                                   \
    X(init, "cuInit", (unsigned flags))                                                                      \
    X(driver_version, "cuDriverGetVersion", (int *version))                                                  \
    X(error_name, "cuGetErrorName", (int error, const char **name))                                          \
    X(device_count, "cuDeviceGetCount", (int *n))                                                            \
    X(device_get, "cuDeviceGet", (int *device, int ordinal))                                                 \
    X(device_name, "cuDeviceGetName", (char *name, int len, int device))                                     \
    X(device_attribute, "cuDeviceGetAttribute", (int *value, int attribute, int device))                     \
    X(ctx_current, "cuCtxGetCurrent", (void **ctx))                                                          \
    X(ctx_device, "cuCtxGetDevice", (int *device))                                                           \
    X(stream_ctx, "cuStreamGetCtx", (void *stream, void **ctx))                                              \
    X(capture_mode, "cuThreadExchangeStreamCaptureMode", (int *mode))                                        \
    X(pointer_attribute, "cuPointerGetAttribute", (void *value, int attribute, mk_cu_ptr p))                 \
    X(library_load, "cuLibraryLoadData",                                                                     \
      (void **library, const void *code, void *jit, void *jit_values, unsigned njit, void *options,          \
       void *values, unsigned n))                                                                            \
    X(library_kernel, "cuLibraryGetKernel", (void **kernel, void *library, const char *name))                \
    X(kernel_function, "cuKernelGetFunction", (void **function, void *kernel))                               \
    X(kernel_set_attribute, "cuKernelSetAttribute", (int attribute, int value, void *kernel, int device))    \
    X(launch, "cuLaunchKernelEx",                                                                            \
      (const struct mk_cu_launch *config, void *function, void **params, void **extra))                      \
    X(max_clusters, "cuOccupancyMaxActiveClusters",                                                          \
      (int *n, void *function, const struct mk_cu_launch *config))                                           \
    X(tensor_map, "cuTensorMapEncodeTiled",                                                                  \
      (struct mk_cu_map * map, int type, uint32_t rank, void *address, const uint64_t *dims,                 \
       const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave, int swizzle,     \
       int l2, int oob))

struct mk_cuda {
#define MK_CU_FIELD(field, symbol, args) int(*field) args;
    MK_CU_FUNCTIONS(MK_CU_FIELD)
#undef MK_CU_FIELD
    int version;
};

/* The driver, or NULL: then *why, if not NULL, is one sentence. Opened once; thread safe. Does not initialise CUDA. */
const struct mk_cuda *mk_cuda_open(const char **why);
/* Logs "WHAT: CUDA_ERROR_X" and returns MK_ERR_CUDA. */
int mk_cuda_fail(int error, const char *what);
