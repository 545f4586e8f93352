/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* GPU memory that a destroyed communicator leaves behind because local ranks still have it mapped: freeing it under
 * them is undefined, and destroy does not wait for anybody. It is freed when a communicator of the same context is
 * made or destroyed later and the last importer has closed it by then; what a dead importer never closed stays until
 * the process ends. */
#include "comm.h"
#include "cuda/gpu.h"
#include "mk/log.h"
#include <stdlib.h>
#include <string.h>

struct left {
    struct left *next;
    void *ctx;
    mk_cu_ptr memory;
    size_t bytes;
    struct mk_shm
        counter; /* the host memory of its communicator: importers count there how many have closed */
    size_t at;
    uint64_t importers;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct left *all; /* under lock */

static bool closed_by_all(const struct mk_shm *counter, size_t at, uint64_t importers)
{
    return __atomic_load_n((const uint64_t *)((const uint8_t *)counter->addr + at), __ATOMIC_ACQUIRE) >=
           importers;
}

void mk_gpu_sweep(const struct mk_cuda *cu, const void *ctx)
{
    pthread_mutex_lock(&lock);
    for (struct left **at = &all; *at;) {
        struct left *l = *at;
        if (l->ctx != ctx || !closed_by_all(&l->counter, l->at, l->importers)) {
            at = &l->next;
            continue;
        }
        *at = l->next;
        cu->mem_free(l->memory); /* of an older context at the same place: refused, and gone with that one */
        mk_shm_release(&l->counter);
        free(l);
    }
    pthread_mutex_unlock(&lock);
}

void mk_gpu_leave_memory(struct mk_comm *comm)
{
    struct mk_gpu *g = comm->gpu;
    const size_t at = comm->rings.gone_off + 64, bytes = comm->rings.fixed_bytes + comm->rings.staging_bytes;
    const uint64_t importers = g->exported ? (uint64_t)comm->topo.nlocal - 1 : 0;
    if (!importers || closed_by_all(&comm->memory, at, importers)) {
        g->cu->mem_free(g->memory);
        return;
    }
    struct left *l = calloc(1, sizeof(*l));
    MK_INFO("FUSED", "%zu bytes of GPU memory stay for now: a local rank still has them mapped", bytes);
    if (!l)
        return;
    *l = (struct left){NULL, g->ctx, g->memory, bytes, comm->memory, at, importers};
    memset(&comm->memory, 0, sizeof(comm->memory));
    comm->memory.fd = -1;
    pthread_mutex_lock(&lock);
    l->next = all;
    all = l;
    pthread_mutex_unlock(&lock);
}
