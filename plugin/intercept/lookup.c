/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Lookups by name: dlsym and dlvsym (from LD_PRELOAD only), cuGetProcAddress; and dlopen, before which the driver is opened.
 *
 * dlsym looks at who calls it: RTLD_NEXT and RTLD_DEFAULT start from the caller's object, and a result found so keeps
 * that object from being unloaded. So a lookup that is not answered by a hook is a jump to the real function with the
 * caller's return address and arguments as they were, which a compiler promises nowhere; hence the assembler. Only a
 * hooked name under a handle of dlopen, for which the caller does not matter, is looked up from here. RTLD_DEFAULT from
 * here sees the global scope, which the caller's begins with; what is not found there is left to the caller's own
 * lookup. RTLD_NEXT is never answered. dlopen looks at its caller's
 * RUNPATH, and is a jump always. */
#include "count.h"
#include "intern.h"
#include <dlfcn.h>
#include <string.h>

static unsigned missed;

unsigned mk_lookup_missed(void)
{
    return __atomic_load_n(&missed, __ATOMIC_RELAXED);
}

static void miss(void)
{
    __atomic_fetch_add(&missed, 1, __ATOMIC_RELAXED);
}

/* A late object that others may call now is patched before. */
static int asked(void *handle, const char *name)
{
    mk_sweep_check(true);
    const int id = name ? mk_hook_find(name) : -1;
    if (id >= 0 && handle == RTLD_NEXT) {
        miss();
        return -1;
    }
    return id;
}

/* The hook where the library's own function was found; another definition stands. */
static void *answer(int id, void *found)
{
    if (found && mk_count_original(found) == mk_hook_original(id))
        return mk_hook_ours(id);
    if (found && found != mk_hook_ours(id))
        miss();
    return NULL;
}

/* NULL: the caller's own lookup decides. */
__attribute__((used)) void *mk_lookup_answer(void *handle, const char *name)
{
    void *(*real)(void *, const char *);
    const int id = asked(handle, name);
    if (id < 0)
        return NULL;
    *(void **)&real = mk_hook_original(MK_HOOK_dlsym);
    return answer(id, real(handle, name));
}

__attribute__((used)) void *mk_lookup_vanswer(void *handle, const char *name, const char *version)
{
    void *(*real)(void *, const char *, const char *);
    const int id = asked(handle, name);
    if (id < 0)
        return NULL;
    *(void **)&real = mk_hook_original(MK_HOOK_dlvsym);
    return answer(id, real(handle, name, version));
}

__attribute__((used)) void *mk_lookup_real(int which)
{
    static const int ids[] = {MK_HOOK_dlsym, MK_HOOK_dlvsym, MK_HOOK_dlopen};
    return mk_hook_original(ids[which]);
}

/* The constructor of cuBLAS opens the driver, and looks up what it needs, before its dlopen returns to anybody whom we could have
 * asked. So the driver is opened before such a file is. */
static bool brings_driver(const char *file)
{
    static const char *const words[] = {"torch", "cuda", "cublas",   "cudnn",  "nccl",  "cupy",
                                        "jax",   "xla",  "tensorrt", "triton", "paddle"};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strstr(file, words[i]))
            return true;
    return false;
}

__attribute__((used)) void *mk_lookup_opening(const char *file)
{
    static int opened;
    if (!file || !mk_count_watching() || __atomic_load_n(&opened, __ATOMIC_RELAXED) || !brings_driver(file) ||
        __atomic_exchange_n(&opened, 1, __ATOMIC_RELAXED))
        return NULL;
    mk_sweep_check(true); /* what has come so far has nothing to do with it */
    if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL))
        mk_sweep_check(true);
    else
        dlerror(); /* nobody else's error */
    return NULL;
}

__attribute__((used)) void *mk_lookup_nothing(void *handle, const char *name)
{
    (void)handle;
    (void)name;
    mk_sweep_check(true);
    return NULL;
}

#if MK_HOOK_HERE
/* Three arguments kept over both calls; dlsym's third is whatever it is. */
#define FORWARD(name, answer, v)                                                                             \
    __asm__(".text\n.p2align 4\n.globl " #name "\n.hidden " #name "\n.type " #name ", @function\n" #name     \
            ":\n"                                                                                            \
            ".cfi_startproc\n"                                                                               \
            "endbr64\n"                                                                                      \
            "push %rdi\n.cfi_adjust_cfa_offset 8\n"                                                          \
            "push %rsi\n.cfi_adjust_cfa_offset 8\n"                                                          \
            "push %rdx\n.cfi_adjust_cfa_offset 8\n"                                                          \
            "call " #answer "\n"                                                                             \
            "test %rax, %rax\n"                                                                              \
            "jnz 1f\n"                                                                                       \
            "mov $" #v ", %edi\n"                                                                            \
            "call mk_lookup_real\n"                                                                          \
            "pop %rdx\n.cfi_adjust_cfa_offset -8\n"                                                          \
            "pop %rsi\n.cfi_adjust_cfa_offset -8\n"                                                          \
            "pop %rdi\n.cfi_adjust_cfa_offset -8\n"                                                          \
            "jmp *%rax\n"                                                                                    \
            ".cfi_adjust_cfa_offset 24\n"                                                                    \
            "1: add $24, %rsp\n.cfi_adjust_cfa_offset -24\n"                                                 \
            "ret\n"                                                                                          \
            ".cfi_endproc\n.size " #name ", . - " #name "\n")
FORWARD(mk_lookup_dlsym, mk_lookup_answer, 0);
FORWARD(mk_lookup_dlvsym, mk_lookup_vanswer, 1);
FORWARD(mk_lookup_dlopen, mk_lookup_opening, 2);
FORWARD(mk_lookup_pass, mk_lookup_nothing, 0);
FORWARD(mk_lookup_vpass, mk_lookup_nothing, 1);
#else
void mk_lookup_dlopen(void)
{
}
void mk_lookup_pass(void)
{
}
void mk_lookup_vpass(void)
{
}
void mk_lookup_dlsym(void)
{
}
void mk_lookup_dlvsym(void)
{
}
#endif

/* What the driver gave for a name. Its own lookup by its name and version; the others by the pointer, since a name
 * stands for several variants (per-thread streams, versions: cuMemcpyDtoDAsync is cuMemcpyDtoDAsync_v2). */
static void *driver(const char *symbol, int version, void *found)
{
    const int id = mk_hook_find(symbol);
    if (id == MK_HOOK_cuGetProcAddress || id == MK_HOOK_cuGetProcAddress_v2)
        return mk_hook_ours(version >= 12000 ? MK_HOOK_cuGetProcAddress_v2 : id);
    for (int i = 0; i < MK_HOOKS; i++)
        if (mk_hooks[i].lib == MK_HOOK_CUDA && mk_count_original(found) == mk_hook_original(i))
            return mk_hook_ours(i);
    if (id >= 0 && mk_hooks[id].lib == MK_HOOK_CUDA)
        miss();
    return mk_count_found(symbol, version, found);
}

/* Our hook of a name may be handed out only if we know what it forwards to. */
static void replace(const char *symbol, int version, void **fn)
{
    if (!symbol || !fn || !*fn)
        return;
    const bool both =
        mk_hook_original(MK_HOOK_cuGetProcAddress) && mk_hook_original(MK_HOOK_cuGetProcAddress_v2);
    *fn = both ? driver(symbol, version, *fn) : mk_count_found(symbol, version, *fn);
}

int mk_lookup_proc(const char *symbol, void **fn, int version, uint64_t flags)
{
    int (*real)(const char *, void **, int, uint64_t);
    mk_sweep_check(true);
    *(void **)&real = mk_hook_original(MK_HOOK_cuGetProcAddress);
    const int ret = real(symbol, fn, version, flags);
    if (!ret)
        replace(symbol, version, fn);
    return ret;
}

int mk_lookup_proc_v2(const char *symbol, void **fn, int version, uint64_t flags, int *status)
{
    int (*real)(const char *, void **, int, uint64_t, int *);
    mk_sweep_check(true);
    *(void **)&real = mk_hook_original(MK_HOOK_cuGetProcAddress_v2);
    const int ret = real(symbol, fn, version, flags, status);
    if (!ret)
        replace(symbol, version, fn);
    return ret;
}
