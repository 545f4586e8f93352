/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Every way to reach a function of another object, from the program, from a library that it needs and from libraries
 * that come late: which of them come to the hook, which do not. One program for each way to link a program.
 *
 * hook_linkage off|cold|warm|preload HOOKS.so FOLDER: off: opened, but not asked for; cold, warm: as NCCL opens a plugin,
 * before or after each function was called once; preload: started with HOOKS.so in LD_PRELOAD. */
#include "hook_face.h"
#include "hook_stand.h"
#include "hook_user.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The needed library's, beside the program's own. */
int lib_direct(void);
int lib_data(void);
int lib_address(void);
int lib_chosen(void);

#ifdef HOOK_FIXED
static const bool fixed = true; /* at a fixed address: a function's address is the program's own stub */
#else
static const bool fixed = false;
#endif

static const struct hook_face *face;
static int failures;
static bool plugin, preload;

static uint64_t hooked(enum mk_hook_id id)
{
    return face ? face->calls(id) : 0;
}

static void expect(const char *what, int (*fn)(void), enum mk_hook_id id, bool want)
{
    struct stand_record *r = id == MK_HOOK_cublasLtMatmul ? stand_record_cublaslt(id) : stand_record_nccl(id);
    const uint64_t before = hooked(id);
    const int calls = r->calls;
    r->result = 7;
    const int got = fn();
    const bool reached = hooked(id) == before + 1;
    if (got != 7 || r->calls != calls + 1 || reached != want || (!reached && hooked(id) != before)) {
        fprintf(stderr, "%s: returned %d, library called %d times, hook %d times, wanted 7, 1, %d\n", what,
                got, r->calls - calls, (int)(hooked(id) - before), want);
        failures++;
    }
}

static int (*pointer)(const void *, void *, size_t, int, int, void *, void *);
static int by_pointer(void)
{
    return pointer(NULL, NULL, 5, 0, 0, NULL, NULL);
}

static void take_pointer(void *p)
{
    memcpy(&pointer, &p, sizeof(p));
}

static void own(bool want)
{
    expect("program, call", user_direct, MK_HOOK_ncclAllReduce, want);
    expect("program, data", user_data, MK_HOOK_ncclReduceScatter, want);
    expect("program, address", user_address, MK_HOOK_ncclReduceScatter, want);
    expect("program, chosen function", user_chosen, MK_HOOK_cublasLtMatmul, want);
    expect("needed library, call", lib_direct, MK_HOOK_ncclAllReduce, want);
    expect("needed library, data", lib_data, MK_HOOK_ncclReduceScatter, want);
    expect("needed library, address", lib_address, MK_HOOK_ncclReduceScatter, want);
    expect("needed library, chosen function", lib_chosen, MK_HOOK_cublasLtMatmul, want);
}

static void *need(void *p, const char *what)
{
    if (!p) {
        fprintf(stderr, "%s: %s\n", what, dlerror());
        exit(1);
    }
    return p;
}

/* A library that comes now. Without a hook in dlsym its first call is missed: nothing of ours ran since it came. (But
 * not where its slot leads to the program's stub.) From the next hooked call on it is patched. */
static void late(const char *folder, const char *how)
{
    int (*call)(void), (*data)(void), (*address)(void);
    char path[4096], what[64];
    snprintf(path, sizeof(path), "%s/libhook_late_%s.so", folder, how);
    void *so = need(dlopen(path, RTLD_LAZY | RTLD_LOCAL), path);
    *(void **)&call = need(dlsym(so, "late_direct"), "late_direct");
    *(void **)&data = need(dlsym(so, "late_data"), "late_data");
    *(void **)&address = need(dlsym(so, "late_address"), "late_address");
    snprintf(what, sizeof(what), "late library %s, first call", how);
    expect(what, call, MK_HOOK_ncclAllReduce, preload);
    snprintf(what, sizeof(what), "late library %s, first call by address", how);
    expect(what, address, MK_HOOK_ncclReduceScatter, preload || (plugin && fixed));
    expect("program, call after a library came", user_direct, MK_HOOK_ncclAllReduce, plugin || preload);
    snprintf(what, sizeof(what), "late library %s", how);
    expect(what, call, MK_HOOK_ncclAllReduce, plugin || preload);
    expect(what, data, MK_HOOK_ncclReduceScatter, plugin || preload);
    expect(what, address, MK_HOOK_ncclReduceScatter, plugin || preload);
}

/* One of NVIDIA's, by its name: its calls are its own. */
static void left_alone(const char *folder)
{
    int (*call)(void), (*address)(void), (*chosen)(void);
    char path[4096];
    snprintf(path, sizeof(path), "%s/libcudnn_left.so", folder);
    void *so = need(dlopen(path, RTLD_LAZY | RTLD_LOCAL), path);
    *(void **)&call = need(dlsym(so, "left_direct"), "left_direct");
    *(void **)&address = need(dlsym(so, "left_address"), "left_address");
    *(void **)&chosen = need(dlsym(so, "left_chosen"), "left_chosen");
    user_direct();
    expect("NVIDIA's, call", call, MK_HOOK_ncclAllReduce, false);
    expect("NVIDIA's, chosen function", chosen, MK_HOOK_cublasLtMatmul, false);
    /* where the address is the program's stub, that leads to the hook */
    expect("NVIDIA's, address", address, MK_HOOK_ncclReduceScatter, fixed && (plugin || preload));
}

static void looked_up(void)
{
    struct mk_hook_stats s, t;
    void *so = need(dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD), "libnccl.so.2");
    take_pointer(need(dlsym(so, "ncclAllReduce"), "ncclAllReduce"));
    expect("looked up now", by_pointer, MK_HOOK_ncclAllReduce, preload);
    take_pointer(need(dlsym(RTLD_DEFAULT, "ncclAllReduce"), "ncclAllReduce"));
    expect("looked up everywhere", by_pointer, MK_HOOK_ncclAllReduce, preload);
    take_pointer(need(dlsym(RTLD_DEFAULT, "ncclReduceScatter"), "ncclReduceScatter"));
    expect("looked up everywhere, its address taken", by_pointer, MK_HOOK_ncclReduceScatter,
           preload || (plugin && fixed));
    if (face)
        face->stats(&s);
    take_pointer(need(dlsym(RTLD_NEXT, "ncclAllReduce"), "ncclAllReduce"));
    expect("looked up behind the caller", by_pointer, MK_HOOK_ncclAllReduce, false);
    if (face) {
        face->stats(&t);
        if (t.missed - s.missed != preload) {
            fprintf(stderr, "a lookup that was missed: counted %u\n", t.missed - s.missed);
            failures++;
        }
    }
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    const bool off = !strcmp(argv[1], "off"), warm = !strcmp(argv[1], "warm");
    plugin = warm || !strcmp(argv[1], "cold");
    preload = !strcmp(argv[1], "preload");
    if (!off)
        setenv("MK_FUSE", "on", 1);
    if (warm)
        own(false);
    void *so = need(dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD), "libnccl.so.2");
    void *cached = need(dlsym(so, "ncclAllReduce"), "ncclAllReduce");
    int (*volatile address)(const void *, void *, size_t, int, int, void *, void *) = ncclReduceScatter;
    face = hook_open(argv[2]);
    own(plugin || preload);
    take_pointer(cached);
    expect("looked up before", by_pointer, MK_HOOK_ncclAllReduce, preload);
    pointer = address;
    expect("address taken before", by_pointer, MK_HOOK_ncclReduceScatter, preload || (plugin && fixed));
    looked_up();
    static const char *const hows[] = {"lazy", "partial", "now", "noplt"};
    for (int i = 0; i < 4; i++)
        late(argv[3], hows[i]);
    left_alone(argv[3]);
    struct mk_hook_stats s;
    face->stats(&s);
    if (off && (s.sweeps || s.patched || face->mode() != MK_HOOK_OFF)) {
        fprintf(stderr, "off, yet %u slots patched in %u rounds\n", s.patched, s.sweeps);
        failures++;
    }
    fprintf(stderr, "%u slots in %u rounds over %u objects, %u left alone, %u missed\n", s.patched, s.sweeps,
            s.objects, s.left, s.missed);
    return failures != 0;
}
