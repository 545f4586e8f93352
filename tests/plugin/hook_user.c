/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Somebody's object that calls the hooked functions in every way that a linker knows. Built as libraries and into
 * programs, each with other options. */
#include "hook_user.h"
#include "hook_stand.h"
#include <dlfcn.h>
#include <string.h>

typedef int (*reduce_fn)(const void *, void *, size_t, int, int, void *, void *);
/* A 64-bit data relocation. The function is another one than the called one: a linker that needs a function's address
 * calls it by that, too, without a slot of its own for calls. */
static volatile reduce_fn kept = ncclReduceScatter;

int USER(direct)(void)
{
    return ncclAllReduce(NULL, NULL, 1, 0, 0, NULL, NULL);
}

int USER(data)(void)
{
    return kept(NULL, NULL, 2, 0, 0, NULL, NULL);
}

/* The address is taken where the call is. */
int USER(address)(void)
{
    volatile reduce_fn fn = ncclReduceScatter;
    return fn(NULL, NULL, 3, 0, 0, NULL, NULL);
}

void *USER(slot)(void)
{
    volatile reduce_fn fn = ncclReduceScatter;
    const reduce_fn now = fn;
    void *p;
    memcpy(&p, &now, sizeof(p));
    return p;
}

int USER(gemm)(void)
{
    return cublasGemmEx(NULL, 0, 0, 1, 1, 1, NULL, NULL, 0, 1, NULL, 0, 1, NULL, NULL, 0, 1, 0, 0);
}

/* Of a communicator, from one place, as a training loop does. Its size: see hook_user.h. */
static char buffer[4];
static struct stand_comm comm_loop = {.nranks = 2}, comm_open = {.nranks = 2};
int USER(loop)(void)
{
    return ncclAllReduce(buffer, buffer, 1, 0, 0, &comm_loop, NULL);
}

int USER(send)(void)
{
    return ncclSend(buffer, 1, 0, 1, &comm_loop, NULL);
}

int USER(open)(void)
{
    return ncclAllReduce(buffer, buffer, 1, 0, 0, &comm_open, NULL);
}

/* Behind an IFUNC. */
int USER(chosen)(void)
{
    return cublasLtMatmul(NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
                          4, NULL);
}

void *USER(lookup)(void *handle, const char *name)
{
    void *volatile p = dlsym(handle, name); /* not by a jump: the linker looks at where the call returns to */
    return p;
}

void *USER(vlookup)(void *handle, const char *name, const char *version)
{
    void *volatile p = dlvsym(handle, name, version);
    return p;
}
