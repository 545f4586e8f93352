/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Others that define the same names: an interposer that the program is linked with, a second copy of a library. What
 * the linker bound to them stays with them, used before or not.
 *
 * hook_others HOOKS.so FOLDER */
#include "hook_face.h"
#include "hook_stand.h"
#include "hook_user.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern int tool_calls;

static const struct hook_face *face;
static int failures;

#define CHECK(x)                                                                                             \
    do {                                                                                                     \
        if (!(x)) {                                                                                          \
            fprintf(stderr, "line %d: %s\n", __LINE__, #x);                                                  \
            failures++;                                                                                      \
        }                                                                                                    \
    } while (0)

static void check_tool(void)
{
    struct stand_record *r = stand_record_nccl(MK_HOOK_ncclAllReduce);
    r->result = 6;
    for (int i = 0; i < 3; i++) {
        const int tool = tool_calls, library = r->calls;
        const uint64_t hooked = face->calls(MK_HOOK_ncclAllReduce);
        CHECK(user_direct() == 6);
        CHECK(tool_calls == tool + 1 && r->calls == library + 1);
        CHECK(face->calls(MK_HOOK_ncclAllReduce) == hooked);
    }
    /* what the tool does not define comes to us, but for slots that were never used: whose would they be? */
    const uint64_t hooked = face->calls(MK_HOOK_ncclReduceScatter);
    CHECK(user_address() == 0 && face->calls(MK_HOOK_ncclReduceScatter) == hooked + 1);
    struct mk_hook_stats s;
    face->stats(&s);
    CHECK(s.copies > 0 && s.left > 0);
}

/* A library bound to its own copy of NCCL. */
static void check_copy(const char *folder, const char *how)
{
    char path[4096];
    int (*call)(void), (*address)(void);
    struct stand_record *(*record)(int);
    snprintf(path, sizeof(path), "%s/libnccl-copy.so.2", folder);
    void *copy = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    snprintf(path, sizeof(path), "%s/libhook_copy_%s.so", folder, how);
    void *so = dlopen(path, RTLD_LAZY | RTLD_LOCAL | RTLD_DEEPBIND);
    CHECK(copy && so);
    if (!copy || !so)
        return;
    *(void **)&record = dlsym(copy, "stand_record_nccl");
    *(void **)&call = dlsym(so, "copy_direct");
    *(void **)&address = dlsym(so, "copy_address");
    CHECK(user_address() == 0); /* a round */
    const int library = stand_record_nccl(MK_HOOK_ncclAllReduce)->calls;
    record(MK_HOOK_ncclAllReduce)->result = 8;
    record(MK_HOOK_ncclReduceScatter)->result = 9;
    const uint64_t hooked = face->calls(MK_HOOK_ncclAllReduce) + face->calls(MK_HOOK_ncclReduceScatter);
    for (int i = 0; i < 2; i++)
        CHECK(call() == 8 && address() == 9);
    CHECK(record(MK_HOOK_ncclAllReduce)->calls == 2 && record(MK_HOOK_ncclReduceScatter)->calls == 2);
    CHECK(stand_record_nccl(MK_HOOK_ncclAllReduce)->calls == library);
    CHECK(face->calls(MK_HOOK_ncclAllReduce) + face->calls(MK_HOOK_ncclReduceScatter) == hooked);
    memset(record(MK_HOOK_ncclAllReduce), 0, sizeof(struct stand_record));
    memset(record(MK_HOOK_ncclReduceScatter), 0, sizeof(struct stand_record));
    dlclose(so);
    dlclose(copy);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    setenv("MK_FUSE", "on", 1);
    face = hook_open(argv[1]);
    check_tool();
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    fputs("note: the sanitizers forbid RTLD_DEEPBIND: a second copy is not tried\n", stderr);
    (void)check_copy;
#else
    check_copy(argv[2], "lazy");
    check_copy(argv[2], "now");
    check_tool();
#endif
    return failures != 0;
}
