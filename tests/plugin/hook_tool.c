/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Somebody else's interposer: defines one of the functions and hands it on. */
#include "hook_stand.h"
#include <dlfcn.h>
#include <stddef.h>

int tool_calls;

int ncclAllReduce(const void *send, void *recv, size_t count, int dtype, int op, void *comm, void *stream)
{
    static int (*next)(MK_ARGS_ncclAllReduce(STAND_PARAM, STAND_COMMA));
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "ncclAllReduce");
    tool_calls++;
    return next ? next(send, recv, count, dtype, op, comm, stream) : -1;
}
