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
#define WATCH_NS 1000000
#define REMIND_NS 30000000000ull

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
    int err = g->cu->copy_to_device(g->private_memory, zero, PRIVATE_BYTES);
    if (!err)
        err = g->cu->copy_to_device(g->memory, comm->memory.addr, r->fixed_bytes);
    free(zero);
    return err ? mk_cuda_fail(err, "first state of a communicator") : 0;
}

int mk_gpu_create(struct mk_comm *comm)
{
    struct mk_gpu *g = calloc(1, sizeof(*g));
    const size_t n = (size_t)comm->topo.nlocal;
    if (!g)
        return mk_fail(MK_ERR_NOMEM, "FUSED", "no memory for a communicator");
    comm->gpu = g;
    g->cu = mk_cuda_open(NULL);
    g->peer = calloc(n, sizeof(*g->peer));
    g->opened = calloc(n, sizeof(*g->opened));
    if (!g->peer || !g->opened || posix_memalign((void **)&g->words, 4096, 4096))
        return mk_fail(MK_ERR_NOMEM, "FUSED", "no memory for %d local ranks", comm->topo.nlocal);
    memset(g->words, 0, 4096);
    int err = g->cu->ctx_current(&g->ctx);
    if (!err)
        err = g->cu->ctx_device(&g->device);
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

void mk_gpu_card(struct mk_comm *comm, struct mk_gpu_card *out)
{
    struct mk_gpu *g = comm->gpu;
    memset(out, 0, sizeof(*out));
    if (!g)
        return;
    out->used = 1;
    out->pid = getpid();
    out->address = g->memory;
    out->context = (uintptr_t)g->ctx;
    g->cu->device_uuid(&out->uuid, g->device);
    if (comm->topo.nlocal > 1)
        g->cu->ipc_get(&out->ipc, g->memory);
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

/* ---- watching ---- */

static int rank_of(const struct mk_comm *comm, uint64_t kind, uint64_t peer)
{
    const struct mk_topo *t = &comm->topo;
    const char fan = mk_ar_fan((int)kind);
    if (fan == '1' || peer >= (uint64_t)(fan == 'l' ? t->nlocal : t->nnodes))
        return -1;
    return fan == 'l' ? comm->rank_at[t->node * t->nlocal + (int)peer]
                      : comm->rank_at[(int)peer * t->nlocal + t->local];
}

/* One sentence on what a block waits for. */
static void describe(const struct mk_comm *comm, const uint64_t *what, char *text, size_t size)
{
    static const char *const names[] = {"a tile",
                                        "room for a partial chunk at a local rank",
                                        "partial chunks, or room for a node sum",
                                        "node sums",
                                        "a result",
                                        "a broadcast chunk",
                                        "room for a launch header at a local rank",
                                        "room for a launch header at another node",
                                        "the launch header of a local rank that has not come to this call",
                                        "the launch header of a rank that has not come to this call"};
    const uint64_t kind = what[MK_WHAT_KIND] < MK_AR_KINDS ? what[MK_WHAT_KIND] : 0;
    const int rank = rank_of(comm, kind, what[MK_WHAT_PEER]);
    int n = snprintf(text, size, "gemm_allreduce, operation %llu, block %llu waits for: %s (chunk %llu",
                     (unsigned long long)what[MK_WHAT_EPOCH], (unsigned long long)what[MK_WHAT_BLOCK],
                     names[kind], (unsigned long long)what[MK_WHAT_CHUNK]);
    if (n > 0 && (size_t)n < size)
        snprintf(text + n, size - (size_t)n, rank < 0 ? ")" : ", rank %d)", rank);
}

static void report(struct mk_comm *comm)
{
    const struct mk_gpu_words *w = comm->gpu->words;
    const int code = -(int)__atomic_load_n(&w->failed, __ATOMIC_ACQUIRE);
    char text[220];
    if (!code || __atomic_load_n(&comm->abort_word, __ATOMIC_ACQUIRE))
        return;
    if (code == MK_ERR_MISMATCH) {
        mk_comm_fail(
            comm, code, true,
            "rank %d and rank %d make different calls (M, N, dtype, epilogue, or the number of calls so far)",
            comm->rank, rank_of(comm, w->what[MK_WHAT_KIND], w->what[MK_WHAT_PEER]));
        return;
    }
    describe(comm, w->what, text, sizeof(text));
    mk_comm_fail(comm, code, true, "%s%s", code == MK_ERR_TIMEOUT ? "MK_PEER_TIMEOUT: " : "", text);
}

/* A launch that waits, and whom it waits for. A peer that left or whose link is broken will not come. */
static void look_at_wait(struct mk_comm *comm, uint64_t *reminded)
{
    const struct mk_gpu_words *w = comm->gpu->words;
    const uint64_t epoch = __atomic_load_n(&w->waiting, __ATOMIC_ACQUIRE);
    uint64_t what[MK_WHATS];
    char text[220];
    if (!epoch || __atomic_load_n(&w->ended, __ATOMIC_RELAXED) >= epoch)
        return;
    for (int i = 0; i < MK_WHATS; i++)
        what[i] = __atomic_load_n(&w->wait[i], __ATOMIC_RELAXED);
    const int rank =
        rank_of(comm, what[MK_WHAT_KIND] < MK_AR_KINDS ? what[MK_WHAT_KIND] : 0, what[MK_WHAT_PEER]);
    describe(comm, what, text, sizeof(text));
    if (rank >= 0 && comm->boot && mk_boot_has_left(comm->boot, rank)) {
        mk_comm_fail(comm, MK_ERR_PEER, true, "rank %d has left, but a call needs it: %s", rank, text);
        return;
    }
    for (int e = 0; comm->link_error && e < comm->topo.nnodes; e++) {
        const int code = __atomic_load_n(&comm->link_error[e].code, __ATOMIC_ACQUIRE);
        if (code) {
            mk_comm_fail(comm, code, true, "link from rank %d to rank %d failed: %s", comm->rank,
                         comm->rank_at[e * comm->topo.nlocal + comm->topo.local], comm->link_error[e].text);
            return;
        }
    }
    const uint64_t now = mk_time_ns();
    if (what[MK_WHAT_SINCE] > REMIND_NS && now - *reminded > REMIND_NS) {
        MK_WARN("FUSED", "waiting for %llu s: %s", (unsigned long long)(what[MK_WHAT_SINCE] / 1000000000u),
                text);
        *reminded = now;
    }
}

static void *watch_main(void *arg)
{
    struct mk_comm *comm = arg;
    uint64_t reminded = 0;
    const struct timespec nap = {0, WATCH_NS};
    while (!__atomic_load_n(&comm->gpu->stop, __ATOMIC_ACQUIRE)) {
        report(comm);
        if (!__atomic_load_n(&comm->abort_word, __ATOMIC_ACQUIRE))
            look_at_wait(comm, &reminded);
        nanosleep(&nap, NULL);
    }
    report(comm);
    return NULL;
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
    int err = g->cu->copy_to_device(g->private_memory + AT_PEERS, table, sizeof(table));
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
    err = pthread_create(&g->watch, NULL, watch_main, comm);
    if (err)
        return mk_fail(MK_ERR_SYSTEM, "FUSED", "starting the watching thread: %s", strerror(err));
    g->watching = true;
    return 0;
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

/* What peers may still have mapped is not freed under them: it stays with the process, and one line says so. */
static void drop_memory(struct mk_comm *comm)
{
    struct mk_gpu *g = comm->gpu;
    const uint64_t *closed =
        comm->memory.addr ? (const uint64_t *)((uint8_t *)comm->memory.addr + comm->rings.gone_off + 64)
                          : NULL;
    const uint64_t importers = (uint64_t)comm->topo.nlocal - 1;
    const uint64_t end = mk_time_ns() + 200000000u;
    const struct timespec nap = {0, 1000000};
    while (closed && __atomic_load_n(closed, __ATOMIC_ACQUIRE) < importers && mk_time_ns() < end)
        nanosleep(&nap, NULL); /* usually all destroy together */
    if (!closed || __atomic_load_n(closed, __ATOMIC_ACQUIRE) >= importers)
        g->cu->mem_free(g->memory);
    else
        MK_INFO("FUSED", "%zu bytes of GPU memory stay allocated: a local rank still has them mapped",
                (size_t)(comm->rings.fixed_bytes + comm->rings.staging_bytes));
}

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
    if (g->watching) {
        __atomic_store_n(&g->stop, 1, __ATOMIC_RELEASE);
        pthread_join(g->watch, NULL);
    }
    g->cu->ctx_current(&before);
    g->cu->ctx_set(g->ctx);
    wait_for(g, 5e9);
    for (int p = 0; g->opened && p < comm->topo.nlocal; p++)
        if (g->opened[p]) {
            g->cu->ipc_close(g->peer[p]);
            if (comm->peer_memory && comm->peer_memory[p].addr)
                __atomic_add_fetch(
                    (uint64_t *)((uint8_t *)comm->peer_memory[p].addr + comm->rings.gone_off + 64), 1,
                    __ATOMIC_ACQ_REL);
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
    if (g->memory)
        drop_memory(comm);
    g->cu->ctx_set(before);
    free(g->words);
    free(g->peer);
    free(g->opened);
    free(g);
    comm->gpu = NULL;
}
