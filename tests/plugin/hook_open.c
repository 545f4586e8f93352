/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#include "hook_face.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

const struct hook_face *hook_open(const char *path)
{
    const struct hook_face *(*face)(void) = NULL;
    void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL); /* as NCCL opens a plugin */
    if (so)
        *(void **)&face = dlsym(so, "hook_face");
    if (!face) {
        fprintf(stderr, "%s: %s\n", path, dlerror());
        exit(1);
    }
    return face();
}
