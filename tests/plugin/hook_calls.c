/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* A user's program: three all-reduces and two GEMMs; with the word `loop` first four of one communicator. With `slots` instead: do its slots and its lookups by
 * name still lead into the libraries? Exit 0: they do. */
#include "hook_stand.h"
#include "hook_user.h"
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static bool in_library(void *p, const char *file)
{
    Dl_info info;
    return p && dladdr(p, &info) && info.dli_fname && strstr(info.dli_fname, file);
}

static bool slots(void)
{
    int (*volatile reduce)(const void *, void *, size_t, int, int, void *, void *) = ncclReduceScatter;
    void *(*volatile lookup)(void *, const char *) = dlsym;
    void *p, *q, *so = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
    memcpy(&p, (const void *)&reduce, sizeof(p));
    memcpy(&q, (const void *)&lookup, sizeof(q));
    return so && in_library(p, "libnccl.so") && in_library(dlsym(so, "ncclReduceScatter"), "libnccl.so") &&
           !in_library(q, "mkernel");
}

int main(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], "slots"))
        return !slots();
    for (int i = 0; argc == 2 && !strcmp(argv[1], "loop") && i < 4; i++)
        if (user_loop())
            return 1;
    for (int i = 0; i < 3; i++)
        if (user_direct())
            return 1;
    return user_chosen() || user_chosen();
}
