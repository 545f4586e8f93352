/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#pragma once
#include "hook_stand.h"

#define STAND_TABLES 16 /* of id {4, number} */

struct stand_driver {
    int works;            /* calls of what enqueues */
    void (*inside)(void); /* called by each; NULL: nobody */
};
extern struct stand_driver stand_driver;

int cuMemsetD8Async(uint64_t at, unsigned char value, size_t bytes, void *stream);
double cuMemcpy3DAsync_v2(int a, double b, int c, int d, int e, int f, int g, int h, double i, long j);
int cuInit(unsigned flags);
int cuDriverGetVersion(int *n);
int cuEventQuery(void *event);
int cuNewThing(void);
int cuGetExportTable(const void **table, const void *id);
/* 0: *fn is what cuGetProcAddress gives. flags 2: for per-thread streams. */
int stand_proc(const char *symbol, void **fn, uint64_t flags);
