/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Somebody's runtime, under NVIDIA's name and under another: it opens the driver when it is first used, and looks up what it
 * needs, as a static one within cuBLAS does. hook_runtime_linked: one that is linked with the driver. */
#include "hook_runtime.h"
#include "hook_driver.h"
#include <dlfcn.h>
#include <string.h>

#if defined HOOK_NOTHING
int runtime_nothing; /* hook_behind: linked with the driver, and behind it with one that looks up */
#elif defined HOOK_HIDER
/* hook_hider: a dlsym of somebody's own, for hook_hidden alone, which is linked with it and looks there first. */
void *dlsym(void *so, const char *name)
{
    (void)so, (void)name;
    return NULL;
}
#elif defined HOOK_OPENER
/* hook_opener: stands in front of the linker's dlopen, and of nothing else, as a sanitizer's library does. */
void *dlopen(const char *file, int how)
{
    void *(*real)(const char *, int);
    *(void **)&real = dlsym(RTLD_NEXT, "dlopen");
    void *volatile so = real(file, how);
    return so;
}
#elif defined HOOK_LINKED
int runtime_memset(void)
{
    return cuMemsetD8Async(0, 0, 0, NULL);
}
#else
static void *driver;
static int (*proc)(const char *, void **, int, uint64_t, int *);

void *runtime_open(const char *path)
{
    int (*first)(const char *, void **, int, uint64_t, int *) = NULL;
    void *p = NULL;
    if (!driver && (driver = dlopen(path, RTLD_NOW | RTLD_LOCAL)))
        *(void **)&first = dlsym(driver, "cuGetProcAddress_v2");
    /* from itself, as runtimes do */
    if (first && !first("cuGetProcAddress", &p, 12000, 0, NULL))
        memcpy(&proc, &p, sizeof(p));
    return driver;
}

void *runtime_symbol(const char *name)
{
    void *volatile p = dlsym(driver, name);
    return p;
}

void *runtime_version(const char *name, const char *version)
{
    void *volatile p = dlvsym(driver, name, version);
    return p;
}

/* By this object's own RUNPATH. */
void *runtime_find(const char *file)
{
    void *volatile p = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    return p;
}

void *runtime_proc(const char *name, uint64_t flags)
{
    void *p = NULL;
    int status;
    return proc && !proc(name, &p, 13000, flags, &status) ? p : NULL;
}
#endif
