/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Calls that need no GPU to be refused: linked with the stand-ins, run with NVIDIA's own libraries of the same names.
 * Prints every return code; with HOOKS.so, opened as a plugin, every call must also come to its hook.
 *
 * hook_real [HOOKS.so] */
#include "hook_face.h"
#include "hook_stand.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct hook_face *face;
static int failures;

#define CALL(name, args)                                                                                     \
    do {                                                                                                     \
        const uint64_t before = face ? face->calls(MK_HOOK_##name) : 0;                                      \
        printf("%s %d\n", #name, name args);                                                                 \
        if (face && face->calls(MK_HOOK_##name) != before + 1) {                                             \
            fprintf(stderr, "%s: not hooked\n", #name);                                                      \
            failures++;                                                                                      \
        }                                                                                                    \
    } while (0)

static int real(const char *name)
{
    Dl_info info;
    void *p = dlsym(RTLD_DEFAULT, name);
    return p && dladdr(p, &info) && !strstr(info.dli_fname, "/tests/hooks/");
}

int main(int argc, char **argv)
{
    struct mk_hook_nccl_id id;
    void *comm = NULL;
    int error = 0;
    memset(&id, 5, sizeof(id));
    if (!real("cublasGemmEx") || !real("cublasLtMatmul") || !real("ncclAllReduce")) {
        fputs("these are the stand-ins\n", stderr);
        return 2;
    }
    if (argc > 1) {
        setenv("MK_FUSE", "on", 1);
        face = hook_open(argv[1]);
    }
    CALL(cublasGemmEx, (NULL, 0, 0, 1, 1, 1, NULL, NULL, 0, 1, NULL, 0, 1, NULL, NULL, 0, 1, 0, 0));
    CALL(cublasGemmEx_64, (NULL, 0, 0, 1, 1, 1, NULL, NULL, 0, 1, NULL, 0, 1, NULL, NULL, 0, 1, 0, 0));
    CALL(cublasSgemm_v2, (NULL, 0, 0, 1, 1, 1, NULL, NULL, 1, NULL, 1, NULL, NULL, 1));
    CALL(cublasSgemm_v2_64, (NULL, 0, 0, 1, 1, 1, NULL, NULL, 1, NULL, 1, NULL, NULL, 1));
    CALL(cublasLtMatmul,
         (NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL));
    CALL(ncclAllReduce, (NULL, NULL, 1, 7, 0, NULL, NULL));
    CALL(ncclReduceScatter, (NULL, NULL, 1, 7, 0, NULL, NULL));
    CALL(ncclAllGather, (NULL, NULL, 1, 7, NULL, NULL));
    CALL(ncclBroadcast, (NULL, NULL, 1, 7, 0, NULL, NULL));
    CALL(ncclReduce, (NULL, NULL, 1, 7, 0, 0, NULL, NULL));
    CALL(ncclSend, (NULL, 1, 7, 0, NULL, NULL));
    CALL(ncclRecv, (NULL, 1, 7, 0, NULL, NULL));
    CALL(ncclGroupStart, ());
    CALL(ncclGroupEnd, ());
    CALL(ncclCommDestroy, (NULL));
    CALL(ncclCommAbort, (NULL));
    CALL(ncclCommFinalize, (NULL));
    CALL(ncclCommGetAsyncError, (NULL, &error));
    CALL(ncclCommSplit, (NULL, 0, 0, &comm, NULL));
    CALL(ncclCommInitRank, (&comm, 0, id, 0)); /* no ranks: refused before anybody is asked */
    CALL(ncclCommInitRank, (&comm, 2, id, 2));
    return failures != 0;
}
