/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Contents and checks by the kernels of nccl_check.cu. */
#include "tests/gpu/nccl.h"
#include "mk/err.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const uint8_t mk_kernels_nccl_check[] __attribute__((weak)); /* not there without nvcc */

struct args { /* as in nccl_check.cu */
    uint64_t at, wrong, count, guard, call, off, block;
    int32_t kind, rank, ranks, pad;
};
#define GUARD (GUARD_BYTES / 4)

static const struct mk_cuda *cu;
static void *fill_kernel, *check_kernel;
static gpu_ptr wrong;

static void cuda(int err, const char *what)
{
    if (!err)
        return;
    mk_cuda_fail(err, what);
    fprintf(stderr, "%s\n", mk_last_error());
    exit(1);
}

static void *kernel(void *library, const char *name)
{
    void *k, *f;
    cuda(cu->library_kernel(&k, library, name), name);
    cuda(cu->kernel_function(&f, k), name);
    return f;
}

int check_open(struct job *j, size_t room)
{
    void *library;
    if (!mk_kernels_nccl_check)
        return 77;
    cu = j->cu;
    cuda(cu->library_load(&library, mk_kernels_nccl_check, NULL, NULL, 0, NULL, NULL, 0), "nccl_check.cu");
    fill_kernel = kernel(library, "mk_nccl_fill");
    check_kernel = kernel(library, "mk_nccl_check");
    wrong = gpu_alloc(32);
    j->room = room;
    j->send = gpu_alloc(room + 2 * GUARD_BYTES) + GUARD_BYTES;
    j->recv = gpu_alloc(room + 2 * GUARD_BYTES) + GUARD_BYTES;
    return 0;
}

static void start(void *function, struct args *p)
{
    struct mk_cu_launch l;
    void *params[] = {p};
    const uint64_t blocks = (p->count + 2 * p->guard + 1023) / 1024, most = (uint64_t)gpu_sms() * 4;
    memset(&l, 0, sizeof(l));
    l.grid[0] = (uint32_t)(blocks < most ? blocks : most);
    l.block[0] = 256;
    l.grid[1] = l.grid[2] = l.block[1] = l.block[2] = 1;
    l.stream = gpu_stream();
    cuda(cu->launch(&l, function, params, NULL), "launch");
}

void contents(struct job *j, uint64_t sends, uint64_t receives)
{
    struct args p = {.at = j->send, .count = sends, .guard = GUARD, .call = j->call, .rank = j->rank};
    start(fill_kernel, &p);
    p.at = j->recv;
    p.count = receives;
    p.kind = 1;
    start(fill_kernel, &p);
}

uint64_t check(struct job *j, gpu_ptr at, uint64_t count, const struct want *w, const char *what, bool quiet)
{
    struct args p = {.at = at,
                     .wrong = wrong,
                     .count = count,
                     .guard = GUARD,
                     .call = j->call,
                     .off = w->off,
                     .block = w->block ? w->block : 1,
                     .kind = w->kind,
                     .rank = w->first,
                     .ranks = j->nranks};
    uint64_t got[4];
    gpu_set(wrong, 0, sizeof(got));
    start(check_kernel, &p);
    cuda(cu->stream_sync(gpu_stream()), "check");
    gpu_get(got, wrong, sizeof(got));
    if (got[0] && !quiet)
        fail(j, "%s, %llu elements: %llu words wrong, one at %lld: %08x, not %08x", what,
             (unsigned long long)count, (unsigned long long)got[0], (long long)got[1] - 1 - (long long)GUARD,
             (unsigned)got[2], (unsigned)got[3]);
    return got[0];
}

void corrupt(gpu_ptr at, int64_t place)
{
    const gpu_ptr p = at + (uint64_t)(place * 4);
    uint32_t word;
    gpu_get(&word, p, 4);
    word ^= 1u << (place & 31);
    gpu_put(p, &word, 4);
    gpu_sync();
}
