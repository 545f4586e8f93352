/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Stand-ins for libcublas, libcublasLt, libnccl and libcuda (HOOK_STAND says which): every function writes down its
 * arguments and how often it was called, and returns what it was told to. */
#include "hook_driver.h"
#include <string.h>

static struct stand_record records[MK_HOOKS];

static int note(enum mk_hook_id id, const void *call, size_t bytes)
{
    struct stand_record *r = &records[id];
    __atomic_fetch_add(&r->calls, 1, __ATOMIC_RELAXED);
    if (r->keep)
        memcpy(r->last, call, bytes);
    if (r->inside)
        r->inside((int)id, call);
    return r->result;
}

#define VALUE(type, name) packed.name = name;
#define NOTE(name)                                                                                           \
    struct mk_call_##name packed;                                                                            \
    memset(&packed, 0, sizeof(packed));                                                                      \
    MK_ARGS_##name(VALUE, MK_HOOK_NOTHING) const int result = note(MK_HOOK_##name, &packed, sizeof(packed));
#define PARAMS(name) MK_ARGS_##name(STAND_PARAM, STAND_COMMA)
#define PLAIN(name)                                                                                          \
    int name(PARAMS(name))                                                                                   \
    {                                                                                                        \
        NOTE(name) return result;                                                                            \
    }
#define PLAIN_VOID(name)                                                                                     \
    void name(PARAMS(name))                                                                                  \
    {                                                                                                        \
        NOTE(name)(void) result;                                                                             \
    }
/* Behind the name stands a function that is chosen when the name is bound. */
#define CHOSEN(name)                                                                                         \
    static int chosen_##name(PARAMS(name))                                                                   \
    {                                                                                                        \
        NOTE(name) return result;                                                                            \
    }                                                                                                        \
    typedef int (*fn_##name)(PARAMS(name));                                                                  \
    __attribute__((used, no_sanitize("address", "undefined", "thread"))) static fn_##name choose_##name(     \
        void)                                                                                                \
    {                                                                                                        \
        return chosen_##name;                                                                                \
    }                                                                                                        \
    __attribute__((ifunc("choose_" #name))) int name(PARAMS(name));
#define NONE(name)

#define CUBLAS NONE
#define CUBLASLT NONE
#define NCCL NONE
#define CUDA NONE
#define VOIDS NONE
#if HOOK_STAND == 0
#undef CUBLAS
#define CUBLAS PLAIN
#undef VOIDS
#define VOIDS PLAIN_VOID
#define RECORD stand_record_cublas
#elif HOOK_STAND == 1
#undef CUBLASLT
#define CUBLASLT CHOSEN
#define RECORD stand_record_cublaslt
#elif HOOK_STAND == 2
#undef NCCL
#define NCCL PLAIN
#define RECORD stand_record_nccl
#else
#undef CUDA
#define CUDA PLAIN
#define RECORD stand_record_cuda
#endif

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
#define ROW(lib, name, comm, stream) lib(name)
#define ROW_VOID(lib, name, comm, stream) VOIDS(name)
MK_HOOK_ROWS(ROW)
MK_HOOK_VOID(ROW_VOID)
#pragma GCC diagnostic pop

struct stand_record *RECORD(int id)
{
    return &records[id];
}

#if HOOK_STAND == 3
/* As the driver: by name and version; an unknown name is an error and the pointer NULL. */
int cuGetProcAddress_v2(const char *symbol, void **fn, int version, uint64_t flags, int *status)
{
    int (*const launch)(PARAMS(cuLaunchKernel)) = cuLaunchKernel;
    int (*const launch_ex)(PARAMS(cuLaunchKernelEx)) = cuLaunchKernelEx;
    int (*const proc)(const char *, void **, int, uint64_t) = cuGetProcAddress;
    int (*const proc_v2)(const char *, void **, int, uint64_t, int *) = cuGetProcAddress_v2;
    *fn = NULL;
    if (!strcmp(symbol, "cuLaunchKernel"))
        memcpy(fn, &launch, sizeof(launch));
    else if (!strcmp(symbol, "cuLaunchKernelEx"))
        memcpy(fn, &launch_ex, sizeof(launch_ex));
    else if (!strcmp(symbol, "cuGetProcAddress") && version >= 12000)
        memcpy(fn, &proc_v2, sizeof(proc_v2));
    else if (!strcmp(symbol, "cuGetProcAddress"))
        memcpy(fn, &proc, sizeof(proc));
    else if (stand_proc(symbol, fn, flags))
        *fn = NULL;
    if (status)
        *status = *fn ? 0 : 1;
    return *fn ? 0 : 500;
}

int cuGetProcAddress(const char *symbol, void **fn, int version, uint64_t flags)
{
    return cuGetProcAddress_v2(symbol, fn, version, flags, NULL);
}
#endif
