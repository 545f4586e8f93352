/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The other ranks' memory: local ones mapped, rail peers' reached by links. All of it is made, exchanged and
 * registered before the first use; every step ends with an agreement, so that all ranks fail alike. */
#include "comm.h"
#include "cuda/gpu.h"
#include "mk/err.h"
#include "mk/log.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What a rank tells all others. Followed by one struct mk_net_addr per node (its end of that link). */
struct card {
    struct mk_shm_ref memory;
    struct mk_net_key keys[2];
    struct mk_gpu_card gpu;
    uint32_t notes_base, notes;
    char transport[16], adapter[16], provider[64];
};

static size_t card_bytes(const struct mk_comm *comm)
{
    return sizeof(struct card) + (size_t)comm->topo.nnodes * sizeof(struct mk_net_addr);
}
static struct card *card_of(const struct mk_comm *comm, uint8_t *cards, int rank)
{
    return (struct card *)(cards + (size_t)rank * card_bytes(comm));
}
static struct mk_net_addr *addr_of(struct card *c, int node)
{
    return (struct mk_net_addr *)(c + 1) + node;
}
static int rail_rank(const struct mk_comm *comm, int node)
{
    return comm->rank_at[node * comm->topo.nlocal + comm->topo.local];
}

/* ---- local ranks ---- */

/* The blocks of ranks that share a GPU must fit on it together, which nobody here knows: it takes the user's word. */
static int check_gpus(struct mk_comm *comm, uint8_t *cards)
{
    const struct mk_gpu_card *mine = &card_of(comm, cards, comm->rank)->gpu;
    for (int r = 0; comm->gpu && !comm->settings.shared_gpu && r < comm->nranks; r++)
        if (r != comm->rank && !memcmp(&card_of(comm, cards, r)->gpu.uuid, &mine->uuid, sizeof(mine->uuid)))
            return mk_fail(
                MK_ERR_UNSUPPORTED, "FUSED",
                "ranks %d and %d are on one GPU: their kernels wait for each other and must fit on it "
                "together (MK_SHARED_GPU=1 says that they do; mkrun --gpus-shared sees to it)",
                comm->rank, r);
    return 0;
}

static int map_local(struct mk_comm *comm, uint8_t *cards)
{
    const struct mk_topo *t = &comm->topo;
    const size_t n = (size_t)t->nlocal;
    if (comm->gpu)
        comm->gpu->exported = true;
    comm->peer_memory = calloc(n, sizeof(*comm->peer_memory));
    comm->peer_fixed = calloc(n, sizeof(*comm->peer_fixed));
    comm->peer_staging = calloc(n, sizeof(*comm->peer_staging));
    comm->peer_bell = calloc(n, sizeof(*comm->peer_bell));
    if (!comm->peer_memory || !comm->peer_fixed || !comm->peer_staging || !comm->peer_bell)
        return mk_fail(MK_ERR_NOMEM, "FUSED", "no memory for %d local ranks", t->nlocal);
    for (int p = 0; p < t->nlocal; p++) {
        if (p == t->local)
            continue;
        const struct card *c = card_of(comm, cards, comm->rank_at[t->node * t->nlocal + p]);
        if (c->memory.size != comm->memory.size)
            return mk_fail(MK_ERR_MISMATCH, "FUSED", "local rank %d has %llu bytes of memory, this one %zu",
                           p, (unsigned long long)c->memory.size, comm->memory.size);
        const int ret = mk_shm_import(&c->memory, &comm->peer_memory[p]);
        if (ret)
            return ret;
        comm->peer_fixed[p] = comm->peer_memory[p].addr;
        comm->peer_staging[p] = comm->peer_fixed[p] + comm->rings.fixed_bytes;
        comm->peer_bell[p] = (struct mk_bell *)(comm->peer_fixed[p] + comm->rings.bell_off);
        if (comm->gpu) {
            const int err = mk_gpu_map(comm, p, &c->gpu);
            if (err)
                return err;
        }
    }
    return 0;
}

/* ---- rail peers ---- */

/* On the proxy thread. Whether it matters is decided by who waits for that node (cpu/exec.c): a peer that has
 * finished and left takes its connection with it. */
static void on_net_error(void *ctx, int node, int code, const char *text)
{
    struct mk_comm *comm = ctx;
    MK_INFO("FUSED", "link to rank %d: %s", rail_rank(comm, node), text);
    snprintf(comm->link_error[node].text, sizeof(comm->link_error[node].text), "%s", text);
    __atomic_store_n(&comm->link_error[node].code, code, __ATOMIC_RELEASE);
    mk_bell_ring(comm->host.bell);
}

static void wake_proxy(void *ctx)
{
    struct mk_comm *comm = ctx;
    mk_proxy_kick(comm->proxy);
}

static uint32_t command_slots_log2(const struct mk_comm *comm)
{
    uint32_t log2 = 6;
    while ((1u << log2) < 2 * (comm->rings.dones + comm->rings.notes))
        log2++;
    return log2;
}

/* The payload's window: GPU memory where the transport reaches it, else shared host memory. */
static int reg_staging(struct mk_comm *comm, struct mk_engine *e)
{
    const size_t bytes = comm->rings.staging_bytes;
    if (comm->gpu && mk_engine_caps(e)->gpu_memory)
        return mk_engine_reg(e, mk_gpu_staging(comm), bytes, NULL, &comm->windows[1]);
    if (comm->gpu)
        MK_INFO("FUSED", "%s does not reach GPU memory: payload passes through host memory",
                mk_engine_caps(e)->transport);
    return mk_engine_reg(e, (uint8_t *)comm->memory.addr + comm->rings.fixed_bytes, bytes, &comm->memory,
                         &comm->windows[1]);
}

static int open_network(struct mk_comm *comm, struct card *mine)
{
    const struct mk_topo *t = &comm->topo;
    struct mk_engine *e;
    int ret = mk_engine_open(&comm->settings, &e);
    if (ret)
        return ret;
    ret = mk_proxy_start(&comm->settings, e, command_slots_log2(comm), &comm->proxy);
    if (ret) {
        mk_engine_close(e);
        return ret;
    }
    comm->links = calloc((size_t)t->nnodes, sizeof(*comm->links));
    comm->link_error = calloc((size_t)t->nnodes, sizeof(*comm->link_error));
    comm->rwindows = calloc((size_t)t->nnodes * 2, sizeof(*comm->rwindows));
    comm->note_step = calloc(comm->rings.notes, sizeof(*comm->note_step));
    if (!comm->links || !comm->link_error || !comm->rwindows || !comm->note_step)
        return mk_fail(MK_ERR_NOMEM, "FUSED", "no memory for %d links", t->nnodes - 1);
    mk_rings_note_steps(&comm->rings, comm->note_step);
    uint8_t *fixed = comm->memory.addr;
    struct mk_notes_desc desc;
    memset(&desc, 0, sizeof(desc));
    desc.flags = (uint64_t *)(fixed + comm->rings.notes_off);
    desc.shadow = (uint64_t *)(fixed + comm->rings.shadow_off);
    desc.step = comm->note_step;
    desc.n = comm->rings.notes;
    desc.bell = comm->host.bell;
    mk_proxy_lock(comm->proxy);
    ret = mk_engine_reg(e, fixed, comm->rings.fixed_bytes, &comm->memory, &comm->windows[0]);
    if (!ret)
        ret = reg_staging(comm, e);
    if (!ret)
        ret = mk_notes_open(e, &desc, &mine->notes_base, &comm->notes);
    for (int d = 0; d < t->nnodes && !ret; d++) {
        char name[32];
        if (d == t->node)
            continue;
        snprintf(name, sizeof(name), "rank %d", rail_rank(comm, d));
        ret = mk_link_open(e, name, addr_of(mine, d), &comm->links[d]);
    }
    mk_proxy_unlock(comm->proxy);
    if (ret)
        return ret;
    mine->notes = comm->rings.notes;
    for (int w = 0; w < 2; w++)
        mk_mr_key(comm->windows[w], &mine->keys[w]);
    const struct mk_caps *caps = mk_engine_caps(e);
    memcpy(mine->transport, caps->transport, sizeof(mine->transport));
    memcpy(mine->adapter, caps->adapter, sizeof(mine->adapter));
    memcpy(mine->provider, caps->provider, sizeof(mine->provider));
    return 0;
}

static int connect_node(struct mk_comm *comm, uint8_t *cards, int node)
{
    struct card *c = card_of(comm, cards, rail_rank(comm, node));
    struct mk_link *l = comm->links[node];
    const uint64_t end = mk_time_ns() + (uint64_t)(comm->settings.timeout * 1e9);
    int ret;
    while ((ret = mk_link_connect(l, addr_of(c, comm->topo.node))) == MK_ERR_AGAIN) {
        if (mk_time_ns() > end)
            return mk_fail(MK_ERR_TIMEOUT, "FUSED", "connecting to rank %d took longer than MK_TIMEOUT",
                           rail_rank(comm, node));
        ret = mk_engine_progress(mk_proxy_engine(comm->proxy));
        if (ret < 0)
            return ret;
        if (!ret)
            mk_engine_wait(mk_proxy_engine(comm->proxy), 1000000);
    }
    for (int w = 0; w < 2 && !ret; w++)
        ret = mk_link_import(l, &c->keys[w], &comm->rwindows[node * 2 + w]);
    if (ret)
        return ret;
    struct mk_peer_notes notes;
    memset(&notes, 0, sizeof(notes));
    notes.base = c->notes_base;
    notes.n = c->notes;
    notes.mem = comm->rwindows[node * 2];
    notes.flags_off = comm->rings.notes_off;
    notes.shadow_off = comm->rings.shadow_off;
    return mk_link_set_notes(l, &notes);
}

static int connect_nodes(struct mk_comm *comm, uint8_t *cards)
{
    const struct mk_topo *t = &comm->topo;
    const struct card *mine = card_of(comm, cards, comm->rank);
    int ret = 0;
    for (int d = 0; d < t->nnodes; d++) {
        const struct card *c = card_of(comm, cards, rail_rank(comm, d));
        if (strcmp(c->transport, mine->transport) || strcmp(c->adapter, mine->adapter) ||
            strcmp(c->provider, mine->provider))
            return mk_fail(MK_ERR_MISMATCH, "FUSED", "rank %d uses %s %s %s, this one %s %s %s",
                           rail_rank(comm, d), c->transport, c->provider, c->adapter, mine->transport,
                           mine->provider, mine->adapter);
    }
    mk_proxy_lock(comm->proxy);
    for (int d = 0; d < t->nnodes && !ret; d++)
        if (d != t->node)
            ret = connect_node(comm, cards, d);
    mk_proxy_unlock(comm->proxy);
    if (ret)
        return ret;
    struct mk_proxy_comm pc;
    memset(&pc, 0, sizeof(pc));
    pc.nnodes = t->nnodes;
    pc.nwindows = 2;
    pc.links = comm->links;
    pc.windows = comm->windows;
    pc.rwindows = comm->rwindows;
    pc.done = (uint64_t *)((uint8_t *)comm->memory.addr + comm->rings.done_off);
    pc.ndone = comm->rings.dones;
    pc.bell = comm->host.bell;
    pc.on_error = on_net_error;
    pc.ctx = comm;
    return mk_proxy_attach(comm->proxy, &pc, &comm->proxy_id);
}

/* ---- both ---- */

int mk_peers_setup(struct mk_comm *comm)
{
    if (comm->nranks == 1)
        return 0;
    const size_t bytes = card_bytes(comm);
    uint8_t *cards = calloc((size_t)comm->nranks, bytes);
    struct card *mine = calloc(1, bytes);
    int ret = !cards || !mine ? mk_fail(MK_ERR_NOMEM, "FUSED", "no memory for %d ranks", comm->nranks) : 0;
    if (!ret) {
        mk_shm_ref(&comm->memory, &mine->memory);
        ret = mk_gpu_card(comm, &mine->gpu);
        if (!ret && comm->topo.nnodes > 1)
            ret = open_network(comm, mine);
    }
    ret = mk_comm_agree(comm, ret);
    if (ret)
        goto out;
    ret = mk_boot_allgather(comm->boot, mine, cards, bytes);
    if (ret)
        goto out;
    ret = check_gpus(comm, cards);
    if (!ret)
        ret = map_local(comm, cards);
    if (!ret && comm->topo.nnodes > 1)
        ret = connect_nodes(comm, cards);
    comm->host.peer_bell = comm->peer_bell;
    comm->host.wake_proxy = wake_proxy;
    ret = mk_comm_agree(comm, ret);
out:
    free(mine);
    free(cards);
    return ret;
}

void mk_peers_teardown(struct mk_comm *comm)
{
    if (comm->proxy && comm->pid == getpid()) {
        struct mk_proxy_stats s;
        mk_proxy_get_stats(comm->proxy, &s);
        MK_INFO("PROXY", "%llu commands in %llu batches, %llu bytes, %llu window waits, %llu errors",
                (unsigned long long)s.commands, (unsigned long long)s.batches, (unsigned long long)s.bytes,
                (unsigned long long)s.window_waits, (unsigned long long)s.errors);
        mk_proxy_detach(comm->proxy, comm->proxy_id);
        mk_proxy_stop(comm->proxy); /* closes links, notes and memory registrations with the engine */
    }
    free(comm->links);
    free(comm->link_error);
    free(comm->rwindows);
    free(comm->note_step);
    for (int p = 0; comm->peer_memory && p < comm->topo.nlocal; p++)
        mk_shm_release(&comm->peer_memory[p]);
    free(comm->peer_memory);
    free(comm->peer_fixed);
    free(comm->peer_staging);
    free(comm->peer_bell);
}
