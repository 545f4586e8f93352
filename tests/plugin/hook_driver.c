/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* More of the stand-in for libcuda: functions that interception counts without hooking them, one that no list knows, one that
 * only cuGetProcAddress gives, and tables of functions. */
#include "hook_driver.h"
#include <string.h>

struct stand_driver stand_driver;

static int work(void)
{
    if (stand_driver.inside)
        stand_driver.inside();
    return ++stand_driver.works;
}

int cuMemsetD8Async(uint64_t at, unsigned char value, size_t bytes, void *stream)
{
    (void)at, (void)value, (void)bytes, (void)stream;
    return work();
}

/* Ten arguments, of all kinds: some lie on the stack. */
double cuMemcpy3DAsync_v2(int a, double b, int c, int d, int e, int f, int g, int h, double i, long j)
{
    work();
    return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h + 9 * i + 10 * (double)j;
}

int cuEventQuery(void *event)
{
    (void)event;
    return 600;
}

int cuInit(unsigned flags)
{
    (void)flags;
    work();
    return 100; /* no device */
}

int cuDriverGetVersion(int *n)
{
    *n = 13000;
    return 0;
}

int cuNewThing(void)
{
    return work();
}

static int inner_memset(uint64_t at, unsigned char value, size_t bytes, void *stream)
{
    (void)at, (void)value, (void)bytes, (void)stream;
    return work();
}

static int in_table(int n)
{
    return work() + n;
}

#define ENTRY(fn) (void *)(uintptr_t)(fn)
static void *const sane[] = {(void *)(4 * sizeof(void *)), ENTRY(in_table), NULL, ENTRY(in_table)};
static void *const nested[] = {(void *)(3 * sizeof(void *)), ENTRY(in_table), (void *)(uintptr_t)sane};
static void *const odd[] = {ENTRY(in_table), ENTRY(in_table)};

#define FOUR(x) x, x, x, x
#define TABLE                                                                                                \
    {                                                                                                        \
        (void *)(4 * sizeof(void *)), ENTRY(in_table), NULL, ENTRY(in_table)                                 \
    }
static void *const many[STAND_TABLES][4] = {FOUR(FOUR(TABLE))};

int cuGetExportTable(const void **table, const void *id)
{
    const unsigned char *b = id;
    *table = b[0] == 1                   ? (const void *)sane
             : b[0] == 4                 ? (const void *)many[b[1]]
             : b[0] == 2 || b[0] == 0xc6 ? (const void *)odd
             : b[0] == 3                 ? (const void *)nested
                                         : NULL;
    return *table ? 0 : 500;
}

int stand_proc(const char *symbol, void **fn, uint64_t flags)
{
    *fn = !strcmp(symbol, "cuMemsetD8Async")      ? ENTRY(flags & 2 ? inner_memset : cuMemsetD8Async)
          : !strcmp(symbol, "cuEventQuery")       ? ENTRY(cuEventQuery)
          : !strcmp(symbol, "cuGetExportTable")   ? ENTRY(cuGetExportTable)
          : !strcmp(symbol, "cuInternalThing")    ? ENTRY(in_table)
          : !strcmp(symbol, "cuInit")             ? ENTRY(cuInit)
          : !strcmp(symbol, "cuDriverGetVersion") ? ENTRY(cuDriverGetVersion)
          : !strcmp(symbol, "cuGraphLaunch")      ? ENTRY(cuGraphLaunch)
                                                  : NULL;
    return !*fn;
}
