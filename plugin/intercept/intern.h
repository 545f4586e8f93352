/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Between the files of interception. */
#pragma once
#include "hook.h"
#include <string.h>

#if defined(__x86_64__) && defined(__GLIBC__)
#define MK_HOOK_HERE 1
#else
#define MK_HOOK_HERE 0
#endif

/* One function: its name, its library, ours, the library's own (NULL: not seen yet; atomic, never back to NULL). */
struct mk_hook {
    const char *name;
    enum mk_hook_lib lib;
    void (*ours)(void);
    void *original;
    void *through; /* the stub that counts and then is the original (count.h); NULL: none */
};
extern struct mk_hook mk_hooks[MK_HOOKS];
/* The id of a name; -1: not hooked. */
int mk_hook_find(const char *name);
static inline void *mk_hook_original(int id)
{
    return __atomic_load_n(&mk_hooks[id].original, __ATOMIC_ACQUIRE);
}

static inline void *mk_hook_through(int id)
{
    void *p = __atomic_load_n(&mk_hooks[id].through, __ATOMIC_ACQUIRE);
    return p ? p : mk_hook_original(id);
}

static inline void *mk_hook_ours(int id)
{
    void *p;
    memcpy(&p, &mk_hooks[id].ours, sizeof(p));
    return p;
}
/* A library's own function, or NULL: it is not loaded or too old. MK_ASK(name) is callable. */
void *mk_hook_ask(enum mk_hook_ask which);
#define MK_ASK_TYPE(lib, name, args) typedef int(*mk_ask_##name) args;
MK_HOOK_ASKS(MK_ASK_TYPE)
#undef MK_ASK_TYPE
#define MK_ASK(name, fn)                                                                                     \
    mk_ask_##name fn;                                                                                        \
    *(void **)&(fn) = mk_hook_ask(MK_ASK_##name)

/* lookup.c */
void mk_lookup_dlsym(void);  /* as dlsym; never called by its name */
void mk_lookup_dlvsym(void); /* as dlvsym */
void mk_lookup_dlopen(void); /* as dlopen; see mk_lookup_opening */
/* The same for NVIDIA's own callers, who get what the linker finds: only what came is looked at before. */
void mk_lookup_pass(void);
void mk_lookup_vpass(void);
void *mk_lookup_nothing(void *handle, const char *name);
/* What these two call: the answer, or NULL, and the real function. */
void *mk_lookup_answer(void *handle, const char *name);
void *mk_lookup_vanswer(void *handle, const char *name, const char *version);
void *mk_lookup_real(int which);
/* Somebody is about to open a file; always NULL. */
void *mk_lookup_opening(const char *file);
int mk_lookup_proc(const char *symbol, void **fn, int version, uint64_t flags);
int mk_lookup_proc_v2(const char *symbol, void **fn, int version, uint64_t flags, int *status);
unsigned mk_lookup_missed(void);

/* Patches what came since the last time. wait: where another thread is at it, wait a while for it to end (it may have
 * begun before the object came that the caller asks about); otherwise go on at once. Never blocks for good. */
void mk_sweep_check(bool wait);
/* lookups as in mk_hook_start. */
int mk_sweep_start(bool lookups);
void mk_sweep_stats(struct mk_hook_stats *out);
/* dl_iterate_phdr between two rounds and two forks; not at all where it would have to wait long. */
struct dl_phdr_info;
void mk_sweep_walk(int (*visit)(struct dl_phdr_info *, size_t, void *), void *ctx);
