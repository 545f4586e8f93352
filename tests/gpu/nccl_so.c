/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* NCCL by its path, and one communicator after the other over all ranks of the job. */
#include "tests/gpu/nccl.h"
#include "mk/err.h"
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

const char *nccl_load(struct nccl *n, const char *path)
{
    static char text[200];
    void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!so) {
        snprintf(text, sizeof(text), "%s", dlerror());
        return text;
    }
#define LOAD(field, symbol, args)                                                                            \
    *(void **)&n->field = dlsym(so, symbol);                                                                 \
    if (!n->field)                                                                                           \
        return "it lacks " symbol;
    NCCL_FUNCTIONS(LOAD)
#undef LOAD
    *(void **)&n->error_string = dlsym(so, "ncclGetErrorString");
    *(void **)&n->last_error = dlsym(so, "ncclGetLastError");
    return n->error_string && n->last_error ? NULL : "it lacks ncclGetErrorString or ncclGetLastError";
}

double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int fail(struct job *j, const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    printf("FAIL rank %d: %s\n", j->rank, text);
    fflush(stdout);
    return ++j->failures;
}

int meet(struct job *j, const char *what)
{
    int mine = j->failures, all[64];
    if (mk_boot_allgather(j->boot, &mine, all, sizeof(mine)))
        return fail(j, "%s: the other ranks: %s", what, mk_last_error());
    for (int r = 0; r < j->nranks; r++)
        if (all[r]) {
            if (r != j->rank && !mine)
                printf("rank %d: %s: rank %d has failed\n", j->rank, what, r);
            return 1;
        }
    return 0;
}

void *comm_new(struct job *j, const char *what)
{
    struct {
        struct nccl_id id;
        int error;
    } mine, all[64];
    void *comm = NULL;
    memset(&mine, 0, sizeof(mine));
    if (j->rank == 0)
        mine.error = j->nccl.get_id(&mine.id);
    if (mk_boot_allgather(j->boot, &mine, all, sizeof(mine))) {
        fail(j, "%s: the other ranks: %s", what, mk_last_error());
        return NULL;
    }
    int error = all[0].error;
    if (!error)
        error = j->nccl.init_rank(&comm, j->nranks, all[0].id, j->rank);
    if (error) {
        fail(j, "%s: a communicator: %s; %s", what, j->nccl.error_string(error), j->nccl.last_error(NULL));
        return NULL;
    }
    return comm;
}

int comm_end(struct job *j, void *comm, const char *what)
{
    const int error = j->nccl.destroy(comm);
    return error ? fail(j, "%s: destroying the communicator: %s; %s", what, j->nccl.error_string(error),
                        j->nccl.last_error(NULL))
                 : 0;
}

int await(struct job *j, void *comm, double seconds, const char *what)
{
    const double end = now_s() + seconds;
    int error = 0, ret;
    while ((ret = j->cu->stream_query(gpu_stream())) == MK_CU_NOT_READY) {
        if (!j->nccl.async_error(comm, &error) && error && error != NCCL_IN_PROGRESS)
            break;
        error = 0;
        if (now_s() > end)
            break;
        usleep(100);
    }
    if (!ret && !error)
        return 0;
    if (error)
        fail(j, "%s: %s; %s", what, j->nccl.error_string(error), j->nccl.last_error(comm));
    else if (ret != MK_CU_NOT_READY)
        fail(j, "%s: CUDA error %d", what, ret);
    else
        fail(j, "%s: not done after %.0f s", what, seconds);
    j->nccl.abort(comm);
    return 1;
}
