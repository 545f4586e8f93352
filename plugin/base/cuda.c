/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#include "mk/cuda.h"
#include "mk/err.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct mk_cuda table;
static char reason[160];

static const struct {
    const char *symbol;
    size_t offset;
} functions[] = {
#define ROW(field, symbol, args) {symbol, offsetof(struct mk_cuda, field)},
    MK_CU_FUNCTIONS(ROW)
#undef ROW
};

static void *(*behind)(void *); /* atomic */

void mk_cuda_behind(void *(*fn)(void *found))
{
    __atomic_store_n(&behind, fn, __ATOMIC_RELEASE);
}

static void open_once(void)
{
    void *so = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!so) {
        snprintf(reason, sizeof(reason), "no CUDA driver (libcuda.so.1)");
        return;
    }
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        void **slot = (void **)((char *)&table + functions[i].offset);
        *slot = dlsym(so, functions[i].symbol);
        void *(*real)(void *) = __atomic_load_n(&behind, __ATOMIC_ACQUIRE);
        if (real)
            *slot = real(*slot);
        if (!*slot && !reason[0])
            snprintf(reason, sizeof(reason),
                     "the CUDA driver is too old: it lacks %s (12.0 or later is needed)",
                     functions[i].symbol);
    }
    if (!reason[0])
        table.driver_version(&table.version);
}

const struct mk_cuda *mk_cuda_open(const char **why)
{
    pthread_once(&once, open_once);
    if (why)
        *why = reason;
    return reason[0] ? NULL : &table;
}

bool mk_cuda_owns(const void *p)
{
    unsigned type = 0;
    mk_cuda_open(NULL);
    return p && table.pointer_attribute &&
           !table.pointer_attribute(&type, MK_CU_POINTER_MEMORY_TYPE, (mk_cu_ptr)(uintptr_t)p) &&
           type == MK_CU_MEMORY_DEVICE;
}

int mk_cuda_fail(int error, const char *what)
{
    const char *name = NULL;
    table.error_name(error, &name);
    return mk_fail(MK_ERR_CUDA, "BASE", "%s: %s", what, name ? name : "unknown error");
}
