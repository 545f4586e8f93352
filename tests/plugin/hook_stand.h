/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What the tests of interception share: the hooked functions' declarations, and how to ask a stand-in for its records. */
#pragma once
#include "plugin/intercept/hook.h"

struct stand_record {
    int calls;
    int keep;   /* 0: only counted (many threads) */
    int result; /* what the function returns */
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
