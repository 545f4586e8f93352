/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The tables that NCCL looks up, seen from outside as raw words: is each version there, is every member that must be a
 * function one, are those absent that NCCL must find absent, and is nothing exported that NCCL would take for more. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static int bad;

/* Words 1 .. n-1 of a table: bit w of `null` says that word w is NULL. */
static void table(void *object, const char *kind, int version, int words, uint64_t null)
{
    char symbol[64];
    snprintf(symbol, sizeof(symbol), "%s%d", kind, version);
    void *const *t = dlsym(object, symbol);
    if (!t) {
        printf("%s is missing\n", symbol);
        bad = 1;
        return;
    }
    if (strcmp(t[0], "mKernel")) {
        printf("%s: the name is not mKernel\n", symbol);
        bad = 1;
    }
    for (int w = 1; w < words; w++) {
        if ((t[w] == NULL) == (null >> w & 1))
            continue;
        printf("%s: the member at offset %d is %s\n", symbol, 8 * w, t[w] ? "there" : "missing");
        bad = 1;
    }
}

int main(int argc, char **argv)
{
    static const char *const absent[] = {"ncclCollNetPlugin_v", "ncclGinPlugin_v", "ncclRmaPlugin_v",
                                         "ncclEnvPlugin_v"};
    /* offsets: 136 getDeviceMr, 144 irecvConsumed, 168 setNetAttr */
    const uint64_t device = 3u << 17, attr = 1u << 21;
    if (argc != 2)
        return 1;
    void *object = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!object) {
        printf("%s\n", dlerror());
        return 1;
    }
    table(object, "ncclNetPlugin_v", 6, 17, 0);
    table(object, "ncclNetPlugin_v", 7, 19, device);
    table(object, "ncclNetPlugin_v", 8, 19, device);
    table(object, "ncclNetPlugin_v", 9, 20, device);
    table(object, "ncclNetPlugin_v", 10, 20, device);
    table(object, "ncclNetPlugin_v", 11, 22, device | attr);
    table(object, "ncclNetPlugin_v", 12, 22, device | attr);
    for (int v = 2; v <= 5; v++)
        table(object, "ncclTunerPlugin_v", v, 4, 0);
    table(object, "ncclTunerPlugin_v", 6, 5, 1u << 4);
    for (int v = 1; v <= 6; v++)
        table(object, "ncclProfiler_v", v, 6, 0);
    for (unsigned i = 0; i < sizeof(absent) / sizeof(absent[0]); i++)
        for (int v = 1; v <= 20; v++) {
            char symbol[64];
            snprintf(symbol, sizeof(symbol), "%s%d", absent[i], v);
            if (dlsym(object, symbol)) {
                printf("%s is exported\n", symbol);
                bad = 1;
            }
        }
    return bad;
}
