/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Single slots: the protection of their pages, an object that is still being relocated, a slot that the dynamic linker
 * fills after us.
 *
 * hook_slots HOOKS.so FOLDER: linked lazily, opened as a plugin. */
#include "hook_face.h"
#include "hook_stand.h"
#include "hook_user.h"
#include "plugin/intercept/slots.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const struct hook_face *face;
static int failures;

#define CHECK(x)                                                                                             \
    do {                                                                                                     \
        if (!(x)) {                                                                                          \
            fprintf(stderr, "line %d: %s\n", __LINE__, #x);                                                  \
            failures++;                                                                                      \
        }                                                                                                    \
    } while (0)

struct wanted {
    const char *file, *name; /* file "": the program */
    void **slot;
    bool jump;
    uintptr_t relro_low, relro_high;
};

static void visit(void *ctx, const struct mk_elf *e, void **slot, const char *name, bool jump)
{
    struct wanted *w = ctx;
    (void)e;
    if (!strcmp(name, w->name)) {
        w->slot = slot;
        w->jump = jump;
    }
}

static int look(struct dl_phdr_info *info, size_t size, void *ctx)
{
    struct wanted *w = ctx;
    struct mk_elf e;
    (void)size;
    if ((*w->file ? strstr(info->dlpi_name, w->file) == NULL : *info->dlpi_name != 0) ||
        !mk_elf_read(info, &e))
        return 0;
    w->relro_low = e.relro_low;
    w->relro_high = e.relro_high;
    mk_elf_imports(&e, visit, w);
    return 1;
}

static struct wanted find(const char *file, const char *name)
{
    struct wanted w = {.file = file, .name = name};
    dl_iterate_phdr(look, &w);
    if (!w.slot) {
        fprintf(stderr, "%s has no slot of %s\n", file, name);
        exit(1);
    }
    return w;
}

/* As /proc/self/maps has it: "r--p"; "" where it cannot be read. */
static void protection(const void *p, char out[8])
{
    FILE *maps = fopen("/proc/self/maps", "r");
    unsigned long low, high;
    char line[512], flags[8];
    *out = 0;
    while (maps && fgets(line, sizeof(line), maps))
        if (sscanf(line, "%lx-%lx %7s", &low, &high, flags) == 3 && (uintptr_t)p >= low &&
            (uintptr_t)p < high)
            memcpy(out, flags, sizeof(flags));
    if (maps)
        fclose(maps);
}

static bool is(const void *p, const char *flags)
{
    char now[8];
    protection(p, now);
    return !strcmp(now, flags);
}

static bool in_hooks(void *p)
{
    Dl_info info;
    return p && dladdr(p, &info) && strstr(info.dli_fname, "hooks_test");
}

static void *open_late(const char *folder, const char *how)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/libhook_late_%s.so", folder, how);
    void *so = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
    CHECK(so != NULL);
    return so;
}

/* Patched in a protected page, which is protected again. */
static void check_protected(void)
{
    const struct wanted w = find("libhook_lib.so", "ncclAllReduce");
    CHECK((uintptr_t)w.slot >= w.relro_low && (uintptr_t)w.slot < w.relro_high);
    CHECK(in_hooks(*w.slot) && is(w.slot, "r--p"));
    const struct wanted own = find("", "ncclAllReduce");
    CHECK(own.jump && in_hooks(*own.slot) && is(own.slot, "rw-p"));
}

/* While its pages are still writable an object is left alone: another thread may be relocating it. Then it is patched. */
static void check_relocating(const char *folder)
{
    open_late(folder, "now");
    const struct wanted w = find("libhook_late_now.so", "ncclAllReduce");
    const size_t n = w.relro_high - w.relro_low;
    CHECK(is(w.slot, "r--p") && !in_hooks(*w.slot));
    CHECK(!mprotect((void *)w.relro_low, n, PROT_READ | PROT_WRITE));
    for (int i = 0; i < 100; i++)
        CHECK(user_direct() == 0);
    CHECK(!in_hooks(*w.slot) && is(w.slot, "rw-p"));
    CHECK(!mprotect((void *)w.relro_low, n, PROT_READ));
    CHECK(user_direct() == 0);
    CHECK(in_hooks(*w.slot) && is(w.slot, "r--p"));
}

/* A thread in the midst of its first call fills the slot with the function after we patched it. */
static void check_lost(void)
{
    struct mk_hook_stats s, t;
    const struct wanted w = find("", "ncclAllReduce");
    void *hook = *w.slot, *so = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
    CHECK(so && in_hooks(hook));
    face->stats(&s);
    *w.slot = dlsym(so, "ncclAllReduce");
    const uint64_t before = face->calls(MK_HOOK_ncclAllReduce);
    CHECK(user_direct() == 0 && face->calls(MK_HOOK_ncclAllReduce) == before);
    for (int i = 0; i < 5000; i++)
        CHECK(user_address() == 0); /* another function's hook */
    CHECK(*w.slot == hook);
    CHECK(user_direct() == 0 && face->calls(MK_HOOK_ncclAllReduce) == before + 1);
    face->stats(&t);
    CHECK(t.lost == s.lost + 1);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    char own[8];
    protection(&failures, own);
    if (!*own) {
        puts("skip: plugin.hook_slots: /proc/self/maps cannot be read");
        return 77;
    }
    setenv("MK_FUSE", "on", 1);
    face = hook_open(argv[1]);
    check_protected();
    check_lost();
    check_relocating(argv[2]);
    return failures != 0;
}
