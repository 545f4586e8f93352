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

struct mk_cu_ipc { /* CUipcMemHandle */
    uint8_t bytes[64];
};
struct mk_cu_uuid { /* CUuuid */
    uint8_t bytes[16];
};
struct mk_cu_location { /* CUmemLocation */
    int32_t type, id;
};
struct mk_cu_alloc { /* CUmemAllocationProp */
    int32_t type, handle_types;
    struct mk_cu_location location;
    void *windows;
    uint8_t flags[8];
};
struct mk_cu_access { /* CUmemAccessDesc */
    struct mk_cu_location location;
    int32_t flags;
};
struct mk_cu_plane { /* one end of a CUDA_MEMCPY2D */
    size_t x, y;
    int32_t type; /* MK_CU_COPY_* */
    const void *host;
    mk_cu_ptr device;
    void *array;
    size_t pitch;
};
struct mk_cu_copy_2d { /* CUDA_MEMCPY2D */
    struct mk_cu_plane from, to;
    size_t width, height;
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
    MK_CU_NOT_INITIALIZED = 3,
    MK_CU_NOT_READY = 600,
    MK_CU_POINTER_MANAGED = 8,
    MK_CU_PEER_ALREADY_ENABLED = 704,
    MK_CU_POINTER_IPC_CAPABLE = 10,
    MK_CU_STREAM_NON_BLOCKING = 1,
    MK_CU_EVENT_NO_TIMING = 2,
    MK_CU_EVENT_EXTERNAL = 1,   /* of recording and waiting in a capture */
    MK_CU_DEPENDENCIES_SET = 1, /* CUstreamUpdateCaptureDependencies_flags */
    MK_CU_NO_DESTRUCTOR_SYNC = 1,
    MK_CU_GRAPH_MOVE = 1, /* CUuserObjectRetain_flags */
    MK_CU_HOST_PORTABLE = 1,
    MK_CU_HOST_MAPPED = 2,
    MK_CU_IPC_LAZY = 1,
    MK_CU_HANDLE_FD = 1,
    MK_CU_LOCATION_DEVICE = 1,
    MK_CU_ACCESS_READ_WRITE = 3,
    MK_CU_ALLOC_PINNED = 1,
    MK_CU_COPY_HOST = 1, /* CUmemorytype */
    MK_CU_COPY_DEVICE = 2,
    MK_CU_ATTR_WRITE64 = 122
};

/* X(field, symbol, arguments): all return a CUresult, 0 is success. Kernels and questions about devices. */
#define MK_CU_KERNELS(X)                                                                                     \
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

/* Contexts, memory that other processes reach, copies. */
#define MK_CU_MEMORY(X)                                                                                      \
    X(device_uuid, "cuDeviceGetUuid_v2", (struct mk_cu_uuid * uuid, int device))                             \
    X(ctx_retain, "cuDevicePrimaryCtxRetain", (void **ctx, int device))                                      \
    X(ctx_release, "cuDevicePrimaryCtxRelease_v2", (int device))                                             \
    X(ctx_set, "cuCtxSetCurrent", (void *ctx))                                                               \
    X(ctx_sync, "cuCtxSynchronize", (void))                                                                  \
    X(mem_alloc, "cuMemAlloc_v2", (mk_cu_ptr * p, size_t bytes))                                             \
    X(mem_free, "cuMemFree_v2", (mk_cu_ptr p))                                                               \
    X(mem_range, "cuMemGetAddressRange_v2", (mk_cu_ptr * base, size_t * bytes, mk_cu_ptr p))                 \
    X(ipc_get, "cuIpcGetMemHandle", (struct mk_cu_ipc * handle, mk_cu_ptr p))                                \
    X(ipc_open, "cuIpcOpenMemHandle_v2", (mk_cu_ptr * p, struct mk_cu_ipc handle, unsigned flags))           \
    X(ipc_close, "cuIpcCloseMemHandle", (mk_cu_ptr p))                                                       \
    X(vmm_granularity, "cuMemGetAllocationGranularity",                                                      \
      (size_t * bytes, const struct mk_cu_alloc *what, int option))                                          \
    X(vmm_create, "cuMemCreate",                                                                             \
      (uint64_t * handle, size_t bytes, const struct mk_cu_alloc *what, unsigned long long flags))           \
    X(vmm_release, "cuMemRelease", (uint64_t handle))                                                        \
    X(vmm_retain, "cuMemRetainAllocationHandle", (uint64_t * handle, void *p))                               \
    X(vmm_what, "cuMemGetAllocationPropertiesFromHandle", (struct mk_cu_alloc * what, uint64_t handle))      \
    X(vmm_export, "cuMemExportToShareableHandle",                                                            \
      (void *fd, uint64_t handle, int type, unsigned long long flags))                                       \
    X(vmm_import, "cuMemImportFromShareableHandle", (uint64_t * handle, void *fd, int type))                 \
    X(vmm_reserve, "cuMemAddressReserve",                                                                    \
      (mk_cu_ptr * p, size_t bytes, size_t alignment, mk_cu_ptr wish, unsigned long long flags))             \
    X(vmm_free, "cuMemAddressFree", (mk_cu_ptr p, size_t bytes))                                             \
    X(vmm_map, "cuMemMap",                                                                                   \
      (mk_cu_ptr p, size_t bytes, size_t offset, uint64_t handle, unsigned long long flags))                 \
    X(vmm_unmap, "cuMemUnmap", (mk_cu_ptr p, size_t bytes))                                                  \
    X(vmm_access, "cuMemSetAccess", (mk_cu_ptr p, size_t bytes, const struct mk_cu_access *who, size_t n))   \
    X(host_register, "cuMemHostRegister_v2", (void *p, size_t bytes, unsigned flags))                        \
    X(host_unregister, "cuMemHostUnregister", (void *p))                                                     \
    X(host_device_ptr, "cuMemHostGetDevicePointer_v2", (mk_cu_ptr * device, void *host, unsigned flags))     \
    X(stream_create, "cuStreamCreate", (void **stream, unsigned flags))                                      \
    X(stream_destroy, "cuStreamDestroy_v2", (void *stream))                                                  \
    X(stream_query, "cuStreamQuery", (void *stream))                                                         \
    X(stream_sync, "cuStreamSynchronize", (void *stream))                                                    \
    X(stream_write64, "cuStreamWriteValue64_v2",                                                             \
      (void *stream, mk_cu_ptr p, uint64_t value, unsigned flags))                                           \
    X(event_create, "cuEventCreate", (void **event, unsigned flags))                                         \
    X(event_record, "cuEventRecord", (void *event, void *stream))                                            \
    X(event_query, "cuEventQuery", (void *event))                                                            \
    X(event_elapsed, "cuEventElapsedTime", (float *ms, void *from, void *to))                                \
    X(event_destroy, "cuEventDestroy_v2", (void *event))                                                     \
    X(stream_wait_event, "cuStreamWaitEvent", (void *stream, void *event, unsigned flags))                   \
    X(stream_capturing, "cuStreamIsCapturing", (void *stream, int *status))                                  \
    X(event_record_flags, "cuEventRecordWithFlags", (void *event, void *stream, unsigned flags))             \
    X(capture_info, "cuStreamGetCaptureInfo_v2",                                                             \
      (void *stream, int *status, uint64_t *id, void **graph, void *const **deps, size_t *n))                \
    X(capture_depend, "cuStreamUpdateCaptureDependencies",                                                   \
      (void *stream, void **deps, size_t n, unsigned flags))                                                 \
    X(user_object, "cuUserObjectCreate",                                                                     \
      (void **object, void *p, void (*destroy)(void *), unsigned count, unsigned flags))                     \
    X(user_object_release, "cuUserObjectRelease", (void *object, unsigned count))                            \
    X(graph_retain, "cuGraphRetainUserObject", (void *graph, void *object, unsigned count, unsigned flags))  \
    X(ctx_enable_peer, "cuCtxEnablePeerAccess", (void *peer, unsigned flags))                                \
    X(copy, "cuMemcpyAsync", (mk_cu_ptr to, mk_cu_ptr from, size_t bytes, void *stream))                     \
    X(copy_2d, "cuMemcpy2DAsync_v2", (const struct mk_cu_copy_2d *what, void *stream))                       \
    X(copy_to_device, "cuMemcpyHtoD_v2", (mk_cu_ptr to, const void *from, size_t bytes))                     \
    X(copy_to_host, "cuMemcpyDtoH_v2", (void *to, mk_cu_ptr from, size_t bytes))

#define MK_CU_FUNCTIONS(X) MK_CU_KERNELS(X) MK_CU_MEMORY(X)

struct mk_cuda {
#define MK_CU_FIELD(field, symbol, args) int(*field) args;
    MK_CU_FUNCTIONS(MK_CU_FIELD)
#undef MK_CU_FIELD
    int version;
};

/* The driver, or NULL: then *why, if not NULL, is one sentence. Opened once; thread safe. Does not initialise CUDA. */
const struct mk_cuda *mk_cuda_open(const char **why);
/* Before the first open: what the linker finds may be another's function in front of the driver's, and fn tells the latter. */
void mk_cuda_behind(void *(*fn)(void *found));
/* Is p in the memory of a GPU? Also a driver that is too old for the rest answers this. */
bool mk_cuda_owns(const void *p);
/* Logs "WHAT: CUDA_ERROR_X" and returns MK_ERR_CUDA. */
int mk_cuda_fail(int error, const char *what);
