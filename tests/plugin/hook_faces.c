/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The product's object as NCCL's plugin: what comes after it is patched when NCCL calls into it. Before that, libnccl
 * was opened and looked into by name, as bindings of scripting languages do it, which the log says.
 *
 * hook_faces OBJECT.so FOLDER, with MK_FUSE=on */
#include "plugin/nccl/abi_tuner.h"
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *need(void *p, const char *what)
{
    if (!p) {
        fprintf(stderr, "%s: %s\n", what, dlerror());
        exit(1);
    }
    return p;
}

static void *open_in(const char *folder, const char *file)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s", folder, file);
    return need(dlopen(path, RTLD_NOW | RTLD_LOCAL), path);
}

static bool leads_to(void *p, const char *file)
{
    Dl_info info;
    return dladdr(p, &info) && info.dli_fname && strstr(info.dli_fname, file);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    void *nccl = open_in(argv[2], "libnccl.so.2");
    int (*cached)(void);
    *(void **)&cached = need(dlsym(nccl, "ncclGroupStart"), "ncclGroupStart");
    void *plugin = need(dlopen(argv[1], RTLD_NOW | RTLD_LOCAL), argv[1]);
    void *late = open_in(argv[2], "libhook_late_now.so");
    void *(*slot)(void);
    *(void **)&slot = need(dlsym(late, "late_slot"), "late_slot");
    if (!leads_to(slot(), "libnccl.so")) {
        fputs("a late object's slot leads elsewhere before anything of ours ran\n", stderr);
        return 1;
    }
    int channels = 0;
    float costs[7][3], *table[1] = {costs[0]};
    memset(costs, 0, sizeof(costs));
    const struct mk_nccl_tuner_v4 *tuner = need(dlsym(plugin, "ncclTunerPlugin_v4"), "ncclTunerPlugin_v4");
    if (tuner->getCollInfo(NULL, 4, 1024, 1, table, 7, 3, 0, &channels) || channels) {
        fputs("the tuner of no communicator chose something\n", stderr);
        return 1;
    }
    if (!leads_to(slot(), "libnccl-net-mkernel")) {
        fputs("a late object's slot does not lead to the hook after NCCL asked us\n", stderr);
        return 1;
    }
    return cached() != 0;
}
