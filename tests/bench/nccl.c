/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#include "tests/bench/nccl.h"
#include "mk/fused.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct unique_id {
    char bytes[128];
};
/* As of 2.17; later ones take it and fill in the rest. */
struct config {
    size_t size;
    unsigned magic, version;
    int blocking, cluster, min_ctas, max_ctas;
    const char *net;
    int split_share;
};
#define UNDEFINED ((int)0x80000000)

static int (*get_version)(int *);
static int (*get_id)(struct unique_id *);
static int (*init_rank)(void **, int, struct unique_id, int);
static int (*init_config)(void **, int, struct unique_id, int, const struct config *);
static int (*all_reduce)(const void *, void *, size_t, int, int, void *, void *);
static int (*destroy)(void *);
static const char *(*error_string)(int);
static void *so;

static const char *load(const char *path)
{
    static char text[200];
    if (!so) {
        so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (!so) {
            snprintf(text, sizeof(text), "%s", dlerror());
            return text;
        }
        *(void **)&get_version = dlsym(so, "ncclGetVersion");
        *(void **)&get_id = dlsym(so, "ncclGetUniqueId");
        *(void **)&init_rank = dlsym(so, "ncclCommInitRank");
        *(void **)&init_config = dlsym(so, "ncclCommInitRankConfig");
        *(void **)&all_reduce = dlsym(so, "ncclAllReduce");
        *(void **)&destroy = dlsym(so, "ncclCommDestroy");
        *(void **)&error_string = dlsym(so, "ncclGetErrorString");
    }
    return get_version && get_id && init_rank && init_config && all_reduce && destroy && error_string
               ? NULL
               : "a function is missing";
}

static int init(void **out, int nranks, const struct unique_id *id, int rank, int ctas)
{
    const struct config c = {sizeof(c), 0xcafebeef, 21701 /* 2.17.1 */, UNDEFINED, UNDEFINED, ctas,
                             ctas,      NULL,       UNDEFINED};
    return ctas ? init_config(out, nranks, *id, rank, &c) : init_rank(out, nranks, *id, rank);
}

bool nccl_open(const char *path, mk_comm_t comm, int rank, int nranks, int ctas, void **out, const char **why)
{
    struct {
        struct unique_id id;
        int bad;
    } mine, *all = calloc((size_t)nranks, sizeof(*all));
    memset(&mine, 0, sizeof(mine));
    *out = NULL;
    *why = load(path);
    mine.bad = *why != NULL;
    if (!mine.bad && rank == 0)
        mine.bad = get_id(&mine.id);
    if (!*why)
        *why = mine.bad ? "no unique id" : "the ranks do not answer";
    bool good = all && !mk_comm_allgather(comm, &mine, all, sizeof(mine));
    for (int r = 0; good && r < nranks; r++)
        if (all[r].bad) {
            *why = mine.bad ? *why : "another rank has no NCCL";
            good = false;
        }
    if (good) {
        const int err = init(out, nranks, &all[0].id, rank, ctas);
        if (err) {
            *why = error_string(err);
            *out = NULL;
            good = false;
        }
    }
    free(all);
    return good;
}

int nccl_version(void)
{
    int v = 0;
    get_version(&v);
    return v;
}

int nccl_all_reduce(void *nccl, gpu_ptr p, size_t count, mk_dtype_t dtype, void *stream)
{
    void *at = (void *)(uintptr_t)p;
    return all_reduce(at, at, count, dtype == MK_BFLOAT16 ? 9 : 6 /* ncclBfloat16, ncclFloat16 */,
                      0 /* ncclSum */, nccl, stream);
}

const char *nccl_error(int err)
{
    return error_string(err);
}

void nccl_close(void *nccl)
{
    if (nccl)
        destroy(nccl);
}
