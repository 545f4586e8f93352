/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#include "cuda/gpu.h"
#include "comm.h"
#include "cuda/gemm.h"
#include "mk/err.h"
#include "mk/log.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Private device memory: offsets. */
#define AT_DEVICE 0u  /* struct mk_gpu_device */
#define AT_RING 256u  /* claim, tail_seen: 64 bytes apart */
#define AT_PEERS 512u /* peer_fixed, then peer_staging: [MK_MAX_PEERS] each */
#define AT_STATE (AT_PEERS + 2u * 8u * MK_MAX_PEERS)
#define AT_TILES (AT_STATE + (((uint32_t)sizeof(struct mk_ar_state) + 255u) / 256u * 256u))
#define PRIVATE_BYTES ((size_t)AT_TILES + 8u * (size_t)MK_GPU_TILES)

_Static_assert(sizeof(struct mk_gpu_device) <= AT_RING, "device words");

int mk_gpu_wanted(void)
{
    const struct mk_cuda *cu = mk_cuda_open(NULL);
    void *ctx = NULL;
    int device, major = 0, minor = 0;
    if (!cu || !mk_kernels_built || cu->ctx_current(&ctx) || !ctx || cu->ctx_device(&device))
        return 0;
    cu->device_attribute(&major, MK_CU_ATTR_MAJOR, device);
    cu->device_attribute(&minor, MK_CU_ATTR_MINOR, device);
    if (major >= 8)
        return 1;
    MK_WARN("FUSED", "GPU %d has compute capability %d.%d; 8.0 is the least: the CPU executor is used",
            device, major, minor);
    return 0;
}

/* Host memory that kernels reach: its device address. */
static int pin(struct mk_gpu *g, void *p, size_t bytes, bool *pinned, mk_cu_ptr *device, const char *what)
{
    int err = g->cu->host_register(p, bytes, MK_CU_HOST_PORTABLE | MK_CU_HOST_MAPPED);
    if (!err) {
        *pinned = true;
        err = g->cu->host_device_ptr(device, p, 0);
    }
    return err ? mk_cuda_fail(err, what) : 0;
}

/* Into device memory, on a stream of its own: a copy on the default stream would wait for what others have on it, which may
 * wait for this rank, and may not be made while somebody captures. */
static int put(const struct mk_gpu *g, mk_cu_ptr to, const void *from, size_t bytes)
{
    const struct mk_cuda *cu = g->cu;
    void *stream = NULL;
    int err = cu->stream_create(&stream, MK_CU_STREAM_NON_BLOCKING);
    if (!err)
        err = cu->copy(to, (mk_cu_ptr)(uintptr_t)from, bytes, stream);
    if (!err)
        err = cu->stream_sync(stream);
    if (stream)
        cu->stream_destroy(stream);
    return err;
}

static int fill(struct mk_comm *comm)
{
    struct mk_gpu *g = comm->gpu;
    const struct mk_rings *r = &comm->rings;
    struct mk_gpu_device d;
    void *zero = calloc(1, PRIVATE_BYTES);
    if (!zero)
        return mk_fail(MK_ERR_NOMEM, "FUSED", "no memory for the first state of a communicator");
    memset(&d, 0, sizeof(d));
    d.words = (struct mk_gpu_words *)(uintptr_t)g->words_device;
    d.peer_timeout_ns = (uint64_t)(comm->settings.peer_timeout * 1e9);
    memcpy(zero, &d, sizeof(d));
    memcpy((uint8_t *)zero + AT_STATE, comm->state, sizeof(*comm->state));
    int err = put(g, g->private_memory, zero, PRIVATE_BYTES);
    if (!err)
        err = put(g, g->memory, comm->memory.addr, r->fixed_bytes);
    free(zero);
    if (!err && r->staging_bytes) { /* no mark of the latency path is 0 */
        zero = calloc(1, r->staging_bytes);
        if (!zero)
            return mk_fail(MK_ERR_NOMEM, "FUSED", "no memory to clear %llu bytes of staging memory",
                           (unsigned long long)r->staging_bytes);
        err = put(g, g->memory + r->fixed_bytes, zero, r->staging_bytes);
        free(zero);
    }
    return err ? mk_cuda_fail(err, "first state of a communicator") : 0;
}

int mk_gpu_create(struct mk_comm *comm)
{
    struct mk_gpu *g = aligned_alloc(_Alignof(struct mk_gpu), sizeof(*g)); /* it holds tensor maps */
    const size_t n = (size_t)comm->topo.nlocal;
    if (!g)
        return mk_fail(MK_ERR_NOMEM, "FUSED", "no memory for a communicator");
    memset(g, 0, sizeof(*g));
    comm->gpu = g;
    g->cu = mk_cuda_open(NULL);
    g->peer = calloc(n, sizeof(*g->peer));
    g->opened = calloc(n, sizeof(*g->opened));
    if (!g->peer || !g->opened || posix_memalign((void **)&g->words, 4096, 4096))
        return mk_fail(MK_ERR_NOMEM, "FUSED", "no memory for %d local ranks", comm->topo.nlocal);
    memset(g->words, 0, 4096);
    int err = g->cu->ctx_current(&g->ctx);
    if (!err) {
        mk_gpu_sweep(g->cu, g->ctx);
        err = g->cu->ctx_device(&g->device);
    }
    if (!err)
        err = g->cu->device_attribute(&g->sms, MK_CU_ATTR_SMS, g->device);
    if (!err)
        err = g->cu->mem_alloc(&g->memory, comm->rings.fixed_bytes + comm->rings.staging_bytes);
    if (!err)
        err = g->cu->mem_alloc(&g->private_memory, PRIVATE_BYTES);
    if (!err)
        err = g->cu->event_create(&g->order, MK_CU_EVENT_NO_TIMING);
    if (err)
        return mk_cuda_fail(err, "memory of a communicator");
    int ret =
        pin(g, g->words, 4096, &g->pinned_words, &g->words_device, "pinning the words of a communicator");
    if (!ret && comm->topo.nnodes > 1)
        ret = pin(g, comm->memory.addr, comm->memory.size, &g->pinned_net, &g->net,
                  "pinning the staging memory (RLIMIT_MEMLOCK does not matter, the driver's limits do)");
    return ret ? ret : fill(comm);
}

int mk_gpu_card(struct mk_comm *comm, struct mk_gpu_card *out)
{
    struct mk_gpu *g = comm->gpu;
    memset(out, 0, sizeof(*out));
    if (!g)
        return 0;
    int err = g->cu->device_uuid(&out->uuid, g->device);
    if (err)
        return mk_cuda_fail(err, "identity of the GPU");
    if (comm->topo.nlocal > 1)
        err = g->cu->ipc_get(&out->ipc, g->memory);
    if (err)
        return mk_cuda_fail(err, "exporting GPU memory to local ranks (CUDA IPC)");
    out->used = 1;
    out->pid = getpid();
    out->address = g->memory;
    out->context = (uintptr_t)g->ctx;
    return 0;
}

int mk_gpu_map(struct mk_comm *comm, int local, const struct mk_gpu_card *card)
{
    struct mk_gpu *g = comm->gpu;
    if (card->pid == getpid()) { /* another thread's communicator: its memory is in this address space */
        void *ctx = (void *)(uintptr_t)card->context;
        const int err = ctx == g->ctx ? 0 : g->cu->ctx_enable_peer(ctx, 0);
        if (err && err != MK_CU_PEER_ALREADY_ENABLED)
            return mk_cuda_fail(err, "reaching the memory of another GPU of this process");
        g->peer[local] = card->address;
        return 0;
    }
    const int err = g->cu->ipc_open(&g->peer[local], card->ipc, MK_CU_IPC_LAZY);
    if (err)
        return mk_cuda_fail(err, "mapping a local rank's GPU memory (CUDA IPC)");
    g->opened[local] = true;
    return 0;
}

int mk_gpu_ready(struct mk_comm *comm)
{
    struct mk_gpu *g = comm->gpu;
    const struct mk_topo *t = &comm->topo;
    uint64_t table[2 * MK_MAX_PEERS];
    memset(table, 0, sizeof(table));
    g->peer[t->local] = g->memory;
    for (int p = 0; p < t->nlocal; p++) {
        table[p] = g->peer[p];
        table[MK_MAX_PEERS + p] = g->peer[p] + comm->rings.fixed_bytes;
    }
    const int err = put(g, g->private_memory + AT_PEERS, table, sizeof(table));
    if (err)
        return mk_cuda_fail(err, "table of local ranks");
    if (comm->proxy) {
        size_t bytes;
        void *p = mk_proxy_ring_memory(comm->proxy, &bytes);
        const int ret = pin(g, p, bytes, &g->pinned_ring, &g->ring, "pinning the command ring");
        if (ret)
            return ret;
        mk_proxy_unrung(comm->proxy);
    }
    return mk_gpu_watch(comm);
}

void *mk_gpu_staging(struct mk_comm *comm)
{
    comm->gpu->net_reaches = true;
    return (void *)(uintptr_t)(comm->gpu->memory + comm->rings.fixed_bytes);
}

void mk_gpu_abort(struct mk_comm *comm, int code)
{
    if (comm->gpu && comm->gpu->words)
        __atomic_store_n(&comm->gpu->words->abort, (uint64_t)-code, __ATOMIC_RELEASE);
}

void mk_gpu_bind(struct mk_comm *comm, struct mk_ar *ar)
{
    const struct mk_gpu *g = comm->gpu;
    uint8_t *mine = (uint8_t *)(uintptr_t)g->private_memory;
    ar->state = (struct mk_ar_state *)(mine + AT_STATE);
    ar->tile_flag = (uint64_t *)(mine + AT_TILES);
    ar->host = mine + AT_DEVICE;
    ar->abort_word = (uint64_t *)(mine + AT_DEVICE + offsetof(struct mk_gpu_device, abort));
    ar->fixed = (uint8_t *)(uintptr_t)g->memory;
    ar->staging = ar->fixed + comm->rings.fixed_bytes;
    ar->net_fixed = (uint8_t *)(uintptr_t)g->net;
    ar->net_words = ar->fixed; /* a copy of the host's, see gemm_ar_block.cuh */
    ar->net_staging = g->net_reaches ? ar->staging : ar->net_fixed + comm->rings.fixed_bytes;
    ar->peer_fixed = (uint8_t *const *)(mine + AT_PEERS);
    ar->peer_staging = (uint8_t *const *)(mine + AT_PEERS + 8u * MK_MAX_PEERS);
    if (comm->proxy) {
        const struct mk_ring *host = mk_proxy_ring(comm->proxy);
        size_t bytes;
        const uintptr_t move = (uintptr_t)g->ring - (uintptr_t)mk_proxy_ring_memory(comm->proxy, &bytes);
        ar->ring.slot = (struct mk_cmd *)((uintptr_t)host->slot + move);
        ar->ring.tail = (uint64_t *)((uintptr_t)host->tail + move);
        ar->ring.claim = (uint64_t *)(mine + AT_RING);
        ar->ring.tail_seen = (uint64_t *)(mine + AT_RING + 64);
        ar->ring.log2_slots = host->log2_slots;
    }
}

/* ---- end ---- */

/* Until the last launch is over; false: it is not after `ns`. */
static bool wait_for(struct mk_gpu *g, double ns)
{
    const uint64_t begin = mk_time_ns();
    const struct timespec nap = {0, 100000};
    int err = g->launched ? g->cu->event_query(g->order) : 0;
    while (err == MK_CU_NOT_READY && (double)(mk_time_ns() - begin) < ns) {
        nanosleep(&nap, NULL);
        err = g->cu->event_query(g->order);
    }
    return err != MK_CU_NOT_READY;
}

int mk_gpu_blocks(const struct mk_comm *comm)
{
    const int64_t n = comm->settings.blocks;
    return n > 0 && n < comm->gpu->sms ? (int)n : comm->gpu->sms;
}

void mk_gpu_settle(struct mk_comm *comm)
{
    if (wait_for(comm->gpu, comm->settings.timeout * 1e9))
        comm->gpu->cu->ctx_sync(); /* replays of graphs have no event of ours */
}

int mk_gpu_poke(struct mk_comm *comm, size_t at, const void *value, size_t bytes)
{
    const struct mk_gpu *g = comm->gpu;
    const int err = put(g, g->private_memory + AT_DEVICE + at, value, bytes);
    return err ? mk_cuda_fail(err, "words of a communicator") : 0;
}

void mk_gpu_drain(struct mk_comm *comm)
{
    struct mk_gpu *g = comm->gpu;
    if (!g || __atomic_load_n(&comm->abort_word, __ATOMIC_ACQUIRE))
        return;
    if (!wait_for(g, comm->settings.timeout * 1e9))
        mk_comm_fail(comm, MK_ERR_ABORTED, true,
                     "rank %d destroys its communicator while a call is under way", comm->rank);
}

void mk_gpu_stop(struct mk_comm *comm)
{
    struct mk_gpu *g = comm->gpu;
    if (!g || comm->pid != getpid()) /* in a forked child the context is the parent's */
        return;
    void *before = NULL;
    mk_gpu_abort(comm, MK_ERR_ABORTED); /* a launch that is still under way leaves */
    mk_gpu_unwatch(g);
    g->cu->ctx_current(&before);
    g->cu->ctx_set(g->ctx);
    wait_for(g, 5e9);
    for (int p = 0; g->opened && p < comm->topo.nlocal; p++) {
        if (g->opened[p])
            g->cu->ipc_close(g->peer[p]);
        if (comm->peer_memory && comm->peer_memory[p].addr) /* p counts who is done with its memory: left.c */
            __atomic_add_fetch((uint64_t *)((uint8_t *)comm->peer_memory[p].addr + comm->rings.gone_off + 64),
                               1, __ATOMIC_ACQ_REL);
    }
    if (g->pinned_ring)
        g->cu->host_unregister(mk_proxy_ring_memory(comm->proxy, &(size_t){0}));
    g->cu->ctx_set(before);
}

void mk_gpu_destroy(struct mk_comm *comm)
{
    struct mk_gpu *g = comm->gpu;
    if (!g || comm->pid != getpid())
        return;
    void *before = NULL;
    g->cu->ctx_current(&before);
    g->cu->ctx_set(g->ctx);
    if (g->pinned_net)
        g->cu->host_unregister(comm->memory.addr);
    if (g->pinned_words)
        g->cu->host_unregister(g->words);
    if (g->order)
        g->cu->event_destroy(g->order);
    if (g->private_memory)
        g->cu->mem_free(g->private_memory);
    if (g->trace)
        g->cu->mem_free(g->trace);
    if (g->memory)
        mk_gpu_leave_memory(comm);
    mk_gpu_sweep(g->cu, g->ctx);
    g->cu->ctx_set(before);
    mk_pair_give(g);
    free(g->words);
    free(g->peer);
    free(g->opened);
    free(g);
    comm->gpu = NULL;
}
