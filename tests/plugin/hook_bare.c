/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* A program that knows nothing of CUDA when it starts, with interception preloaded: nothing but its lookups by name is
 * patched; libraries that it opens later are found, go away altogether, and are found again elsewhere.
 *
 * hook_bare HOOKS.so FOLDER */
#include "hook_face.h"
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

static const struct hook_face *face;
static int failures;

#define CHECK(x)                                                                                             \
    do {                                                                                                     \
        if (!(x)) {                                                                                          \
            fprintf(stderr, "line %d: %s\n", __LINE__, #x);                                                  \
            failures++;                                                                                      \
        }                                                                                                    \
    } while (0)

static void *open_in(const char *folder, const char *file)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s", folder, file);
    void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    CHECK(so != NULL);
    return so;
}

/* As a binding in a scripting language does it: opened by path, every function looked up and kept. */
static void by_pointer(const char *folder)
{
    void *so = open_in(folder, "libnccl.so.2");
    int (*group)(void);
    *(void **)&group = dlsym(so, "ncclGroupStart");
    const uint64_t before = face->calls(MK_HOOK_ncclGroupStart);
    CHECK(group && group() == 0 && face->calls(MK_HOOK_ncclGroupStart) == before + 1);
    dlclose(so);
}

static void by_slots(const char *folder)
{
    int (*call)(void);
    void *so = open_in(folder, "libhook_late_now.so");
    *(void **)&call = dlsym(so, "late_direct");
    const uint64_t before = face->calls(MK_HOOK_ncclAllReduce);
    CHECK(call && call() == 0 && face->calls(MK_HOOK_ncclAllReduce) == before + 1);
    dlclose(so);
}

int main(int argc, char **argv)
{
    struct mk_hook_stats s;
    if (argc != 3)
        return 2;
    face = hook_open(argv[1]);
    face->stats(&s);
    CHECK(s.sweeps > 0 && s.left == 0 && s.patched > 0);
    for (int l = 0; l < MK_HOOK_LOADER; l++)
        CHECK(!s.lib[l]);
    for (int i = 0; i < 12; i++) {
        by_pointer(argv[2]);
        by_slots(argv[2]);
        CHECK(!dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD));
        /* what comes next lies elsewhere, or, every other time, where the last one lay */
        if (i % 2)
            CHECK(mmap(NULL, 1 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);
    }
    face->stats(&s);
    CHECK(s.lib[MK_HOOK_NCCL] && s.missed == 0 && s.copies == 0);
    return failures != 0;
}
