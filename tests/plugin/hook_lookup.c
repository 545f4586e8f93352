/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Lookups by name under LD_PRELOAD: what they give, and that all others are as without us: the caller counts, missing
 * names are errors with the linker's text, versions are asked for.
 *
 * hook_lookup HOOKS.so */
#include "hook_face.h"
#include "hook_stand.h"
#include "hook_user.h"
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

void *lib_lookup(void *handle, const char *name);
void *lib_vlookup(void *handle, const char *name, const char *version);

static const struct hook_face *face;
static int failures;

#define CHECK(x)                                                                                             \
    do {                                                                                                     \
        if (!(x)) {                                                                                          \
            fprintf(stderr, "line %d: %s\n", __LINE__, #x);                                                  \
            failures++;                                                                                      \
        }                                                                                                    \
    } while (0)

/* Is it the hook? It is if a call of it is counted. */
static bool is_hook(void *p, enum mk_hook_id id)
{
    int (*group)(void);
    memcpy(&group, &p, sizeof(p));
    const uint64_t before = face->calls(id);
    return p && group() == 0 && face->calls(id) == before + 1;
}

static unsigned missed(void)
{
    struct mk_hook_stats s;
    face->stats(&s);
    return s.missed;
}

static void check_names(void)
{
    void *nccl = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD), *m = dlopen("libm.so.6", RTLD_NOW);
    CHECK(nccl && m);
    CHECK(is_hook(dlsym(nccl, "ncclGroupStart"), MK_HOOK_ncclGroupStart));
    CHECK(is_hook(lib_lookup(nccl, "ncclGroupEnd"), MK_HOOK_ncclGroupEnd));
    CHECK(is_hook(dlsym(RTLD_DEFAULT, "ncclGroupEnd"), MK_HOOK_ncclGroupEnd));
    /* twice over: what a lookup of the lookup gives finds the hook, too */
    void *(*again)(void *, const char *);
    *(void **)&again = dlsym(RTLD_DEFAULT, "dlsym");
    CHECK(again && is_hook(again(nccl, "ncclGroupStart"), MK_HOOK_ncclGroupStart));
    /* not there: nothing is invented, and the text is the linker's */
    CHECK(!dlsym(m, "ncclGroupStart"));
    const char *text = dlerror();
    CHECK(text && strstr(text, "undefined symbol: ncclGroupStart"));
    CHECK(!dlsym(nccl, "ncclNoSuchThing"));
    text = dlerror();
    CHECK(text && strstr(text, "libnccl.so.2: undefined symbol: ncclNoSuchThing"));
    CHECK(!dlerror());
    errno = 1234;
    CHECK(dlsym(m, "cos") && errno == 1234);
    const unsigned before = missed();
    CHECK(dlsym(RTLD_NEXT, "ncclGroupStart") && missed() == before + 1);
}

static void check_versions(void)
{
    void *blas = dlopen("libcublas.so.13", RTLD_NOW | RTLD_NOLOAD);
    CHECK(blas != NULL);
    void *hook = dlsym(blas, "cublasGemmEx");
    CHECK(hook && dlvsym(blas, "cublasGemmEx", "libcublas.so.13") == hook);
    CHECK(lib_vlookup(blas, "cublasGemmEx", "libcublas.so.13") == hook);
    CHECK(!dlvsym(blas, "cublasGemmEx", "libcublas.so.12"));
    int (*volatile mine)(MK_ARGS_cublasGemmEx(STAND_PARAM, STAND_COMMA)) = cublasGemmEx;
    CHECK(!memcmp(&hook, (const void *)&mine, sizeof(hook))); /* and the slot holds the same */
}

/* The same name in two libraries: what "the next one" is depends on the library that asks. A hook that asked in its
 * place would find the first. */
static void check_caller(void)
{
    void *first =
        dlopen("libhook_late_now.so", RTLD_NOW | RTLD_NOLOAD); /* this program needs both, in this order */
    void *second = dlopen("libhook_late_lazy.so", RTLD_NOW | RTLD_NOLOAD);
    CHECK(first && second);
    void *(*lookup)(void *, const char *);
    *(void **)&lookup = dlsym(first, "late_lookup");
    CHECK(lookup && dlsym(second, "late_direct") != dlsym(first, "late_direct"));
    CHECK(lookup && lookup(RTLD_NEXT, "late_direct") == dlsym(second, "late_direct"));
    CHECK(lookup && lookup(RTLD_DEFAULT, "late_direct") == dlsym(first, "late_direct"));
    *(void **)&lookup = dlsym(second, "late_lookup");
    CHECK(lookup && !lookup(RTLD_NEXT, "late_direct"));
    (void)dlerror();
}

static void check_driver(void)
{
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), *fn = NULL;
    int (*proc)(const char *, void **, int, uint64_t, int *), status = 9;
    *(void **)&proc = dlsym(cuda, "cuGetProcAddress_v2");
    CHECK(cuda && proc);
    if (!proc)
        return;
    CHECK(!proc("cuLaunchKernel", &fn, 12000, 0, &status) && status == 0);
    CHECK(fn && fn == dlsym(cuda, "cuLaunchKernel"));
    int (*launch)(MK_ARGS_cuLaunchKernel(STAND_PARAM, STAND_COMMA));
    *(void **)&launch = fn;
    const uint64_t before = face->calls(MK_HOOK_cuLaunchKernel);
    stand_record_cuda(MK_HOOK_cuLaunchKernel)->result = 5;
    CHECK(launch(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL) == 5);
    CHECK(face->calls(MK_HOOK_cuLaunchKernel) == before + 1);
    /* itself, by version; an older one, too */
    CHECK(!proc("cuGetProcAddress", &fn, 12000, 0, NULL) && fn == dlsym(cuda, "cuGetProcAddress_v2"));
    CHECK(!proc("cuGetProcAddress", &fn, 11030, 0, NULL) && fn == dlsym(cuda, "cuGetProcAddress"));
    int (*old)(const char *, void **, int, uint64_t);
    *(void **)&old = fn;
    CHECK(!old("cuLaunchKernelEx", &fn, 12000, 0) && fn == dlsym(cuda, "cuLaunchKernelEx"));
    /* unknown: the driver's code and its NULL */
    CHECK(proc("cuNothing", &fn, 12000, 0, &status) == 500 && !fn && status == 1);
    /* by the slots of this program */
    CHECK(!cuGetProcAddress_v2("cuLaunchKernel", &fn, 12000, 0, NULL) && fn == dlsym(cuda, "cuLaunchKernel"));
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    face = hook_open(argv[1]);
    check_names();
    check_versions();
    check_caller();
    check_driver();
    return failures != 0;
}
