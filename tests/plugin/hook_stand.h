/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What the tests of interception share: the hooked functions' declarations, and how to ask a stand-in for its records. */
#pragma once
#include "plugin/intercept/hook.h"

struct stand_record {
    int calls;
    int keep;                                 /* 0: only counted (many threads) */
    int result;                               /* what the function returns */
    void (*inside)(int id, const void *call); /* NULL, or called by every call, before it returns */
    unsigned char last[256];
};
/* Of one library: dlsym(handle, "stand_record"), or the lookups below. */
typedef struct stand_record *(*stand_record_fn)(int id);

#define STAND_COMMA() ,
#define STAND_PARAM(type, name) type name

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
#define STAND_INT(lib, name, comm, stream) int name(MK_ARGS_##name(STAND_PARAM, STAND_COMMA));
#define STAND_VOID(lib, name, comm, stream) void name(MK_ARGS_##name(STAND_PARAM, STAND_COMMA));
MK_HOOK_ROWS(STAND_INT)
MK_HOOK_VOID(STAND_VOID)
#pragma GCC diagnostic pop
int cublasGetStream_v2(void *handle, void **stream);
int cuGetProcAddress(const char *symbol, void **fn, int version, uint64_t flags);
int cuGetProcAddress_v2(const char *symbol, void **fn, int version, uint64_t flags, int *status);

/* One a stand-in, since their records lie apart. */
struct stand_record *stand_record_cublas(int id);
struct stand_record *stand_record_cublaslt(int id);
struct stand_record *stand_record_nccl(int id);
struct stand_record *stand_record_cuda(int id);

/* What the stand-ins answer when they are asked (hook_answers.c). */
struct stand_stream { /* what a stream's handle points at; of the default streams: stand_default */
    uint64_t id, *ctx, capture;
    unsigned flags;
    int capturing; /* 1: capture, deps and ndeps are true */
    size_t ndeps;
    void *deps[16];
};
extern struct stand_stream stand_default;
extern int stand_driver_error; /* of every question to the driver */
struct stand_node {            /* what a graph's node points at */
    size_t ndeps;
    void *deps[16];
};
struct
    stand_attributes { /* what a descriptor or a layout points at; bytes 0: this version does not know it */
    uint64_t value[64];
    uint8_t bytes[64];
};
struct stand_comm {
    int rank, nranks, error;
    uint64_t id; /* commId for the profiler */
};
/* The handle of cuBLAS for a stream is the address before it. */
extern int stand_pointer_mode, stand_math_mode;
extern size_t stand_lt_version;
