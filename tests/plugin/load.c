/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Loads the shared object by each of its names as a stranger would (RTLD_NOW, RTLD_LOCAL), asks it something, and
 * unloads it. Linked with nothing but libdl: a missing dependency or an unresolved symbol ends here. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static int load(const char *dir, const char *name)
{
    char path[4096];
    const char *(*say)(int);
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        fprintf(stderr, "%s: %s\n", name, dlerror());
        return 1;
    }
    *(void **)&say = dlsym(handle, "mk_strerror");
    if (!say || strcmp(say(0), "success")) {
        fprintf(stderr, "%s: mk_strerror(0) is %s\n", name, say ? say(0) : "missing");
        return 1;
    }
    if (dlsym(handle, "mk_settings_load")) {
        fprintf(stderr, "%s: an internal name is visible\n", name);
        return 1;
    }
    dlclose(handle);
    return 0;
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"libnccl-net-mkernel.so", "libnccl-tuner-mkernel.so",
                                        "libnccl-profiler-mkernel.so", "libmkernel.so"};
    int failed = 0;
    if (argc != 2)
        return 1;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        failed |= load(argv[1], names[i]);
    return failed;
}
