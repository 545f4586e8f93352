/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Communicators: the three ways to make one, failure, destroy. */
#include "choose.h"
#include "comm.h"
#include "cuda/gpu.h"
#include "mk/err.h"
#include "mk/log.h"
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

uint64_t mk_comm_start;

static size_t workspace_used; /* of the process, against MK_WORKSPACE_TOTAL; __atomic */

/* ---- failure ---- */

/* The first word stays. */
static void tell_local_peers(struct mk_comm *comm, int word)
{
    uint64_t none = 0;
    if (comm->memory.addr)
        __atomic_compare_exchange_n((uint64_t *)((uint8_t *)comm->memory.addr + comm->rings.gone_off), &none,
                                    (uint64_t)word, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

int mk_comm_fail(struct mk_comm *comm, int code, bool tell, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    pthread_mutex_lock(&comm->fail_lock);
    const bool first = !comm->abort_word;
    if (first) {
        memcpy(comm->fail_text, text, sizeof(text));
        __atomic_store_n(&comm->abort_word, (uint64_t)-code, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&comm->fail_lock);
    if (first) {
        MK_WARN("FUSED", "%s", text);
        mk_gpu_abort(comm, code);
        tell_local_peers(comm, -code);
        if (tell && comm->boot)
            mk_boot_abort(comm->boot, code, text);
        if (comm->host.bell)
            mk_bell_ring(comm->host.bell);
    }
    return code;
}

int mk_comm_check(struct mk_comm *comm)
{
    /* Whoever has seen the stream end asks: it must not depend on when the watching thread looked last. */
    if (comm->gpu && comm->gpu->words && comm->pid == getpid())
        mk_gpu_report(comm);
    const int code = -(int)__atomic_load_n(&comm->abort_word, __ATOMIC_ACQUIRE);
    if (!code)
        return 0;
    char text[256];
    pthread_mutex_lock(&comm->fail_lock);
    memcpy(text, comm->fail_text, sizeof(text));
    pthread_mutex_unlock(&comm->fail_lock);
    mk_last_error_set(text);
    return code;
}

int mk_comm_mine(const struct mk_comm *comm)
{
    if (!comm)
        return mk_fail_quiet(MK_ERR_INVALID, "comm is NULL");
    if (comm->pid != getpid())
        return mk_fail_quiet(MK_ERR_INVALID,
                             "this communicator belongs to process %d: a forked child can only destroy it",
                             (int)comm->pid);
    return 0;
}

/* On the boot thread: another rank died, aborted or failed. */
static void on_boot_event(void *ctx, const struct mk_boot_event *event)
{
    mk_comm_fail(ctx, event->code, false, "%s", event->text);
}

/* In a block, by way of the tile side. */
static void on_mismatch(void *ctx, int node_level, int peer)
{
    struct mk_comm *comm = ctx;
    const struct mk_topo *t = &comm->topo;
    const int at = node_level ? peer * t->nlocal + t->local : t->node * t->nlocal + peer;
    mk_comm_fail(
        comm, MK_ERR_MISMATCH, true,
        "rank %d and rank %d make different calls (M, N, dtype, epilogue, or the number of calls so far)",
        comm->rank, comm->rank_at[at]);
}

/* ---- set-up ---- */

static int default_threads(int nlocal)
{
    cpu_set_t set;
    int cores = 1;
    if (!sched_getaffinity(0, sizeof(set), &set))
        cores = CPU_COUNT(&set);
    return cores / nlocal > 0 ? cores / nlocal : 1;
}

static int apply_config(struct mk_settings *s, const mk_config_t *c)
{
    if (!c)
        return 0;
    if (c->size != sizeof(*c))
        return mk_fail_quiet(MK_ERR_INVALID, "mk_config_t.size is %zu, not %zu: start from MK_CONFIG_INIT",
                             c->size, sizeof(*c));
    if (c->threads < 0 || c->threads > 1024 || c->timeout < 0 || c->peer_timeout < 0)
        return mk_fail_quiet(MK_ERR_INVALID, "mk_config_t: threads %d, timeout %g, peer_timeout %g",
                             c->threads, c->timeout, c->peer_timeout);
    if (c->workspace)
        s->workspace = c->workspace;
    if (c->chunk)
        s->chunk = c->chunk;
    if (c->threads)
        s->threads = c->threads;
    if (c->wire_fp32)
        snprintf(s->wire, sizeof(s->wire), "fp32");
    if (c->timeout > 0)
        s->timeout = c->timeout < 0.1 ? 0.1 : c->timeout;
    if (c->peer_timeout > 0)
        s->peer_timeout = c->peer_timeout;
    return 0;
}

static int load_settings(struct mk_settings *s, const mk_config_t *config)
{
    const int ret = mk_settings_load(s, false);
    return ret ? ret : apply_config(s, config);
}

static int check_ranks(const void *comm, int nranks, int rank)
{
    if (!comm)
        return mk_fail_quiet(MK_ERR_INVALID, "comm is NULL");
    if (nranks < 1 || nranks > 65536 || rank < 0 || rank >= nranks)
        return mk_fail_quiet(MK_ERR_INVALID, "rank %d of %d ranks", rank, nranks);
    return 0;
}

int mk_comm_agree(struct mk_comm *comm, int status)
{
    struct vote {
        int32_t code;
        char text[124];
    } mine, *all;
    if (!comm->boot)
        return status;
    all = calloc((size_t)comm->nranks, sizeof(*all));
    if (!all)
        return mk_fail(MK_ERR_NOMEM, "FUSED", "no memory for %d ranks", comm->nranks);
    memset(&mine, 0, sizeof(mine));
    mine.code = status;
    if (status)
        snprintf(mine.text, sizeof(mine.text), "%s", mk_last_error());
    int ret = mk_boot_allgather(comm->boot, &mine, all, sizeof(mine));
    for (int r = 0; r < comm->nranks && !ret; r++)
        if (all[r].code) {
            ret = all[r].code;
            if (r != comm->rank)
                mk_fail_quiet(ret, "rank %d: %.120s", r, all[r].text);
        }
    free(all);
    return ret;
}

/* Facts of set-up that must be equal on all ranks. */
struct facts {
    struct mk_place place;
    uint64_t chunk, far_chunk, workspace, far_workspace, start;
    int32_t wire_fp32, gpu, choose;
    char net[16];
};

/* How a communicator is made. */
enum { MAY_GPU = 1, FOR_PAIRS = 2 };

/* Chunks between nodes, on GPUs and for interception, where MK_CHUNK and MK_WORKSPACE are not set: the network takes larger ones at a higher rate, and a
 * call of few bytes has smaller ones (plan.c). */
#define FAR_CHUNK ((uint64_t)2 << 20)
#define FAR_WORKSPACE ((uint64_t)64 << 20)

static int exchange_facts(struct mk_comm *comm, unsigned how)
{
    struct mk_settings *s = &comm->settings;
    const int gpu = how & MAY_GPU ? mk_gpu_wanted() : 0;
    const bool far = (gpu > 0 || how & FOR_PAIRS) && !mk_env("MK_CHUNK") && !mk_env("MK_WORKSPACE");
    const uint64_t far_chunk = far ? FAR_CHUNK : s->chunk, far_workspace = far ? FAR_WORKSPACE : s->workspace;
    struct facts mine, *all = calloc((size_t)comm->nranks, sizeof(*all));
    struct mk_place *places = calloc((size_t)comm->nranks, sizeof(*places));
    int ret = !all || !places ? mk_fail(MK_ERR_NOMEM, "FUSED", "no memory for %d ranks", comm->nranks) : 0;
    if (!ret && gpu < 0)
        ret = gpu;
    if (ret)
        goto out;
    memset(&mine, 0, sizeof(mine));
    mine.gpu = comm->wants_gpu = gpu;
    mine.place.host = mk_host_id();
    /* one rank is node 0, whatever the process is in a larger job */
    const bool placed = s->node >= 0 && comm->nranks > 1;
    mine.place.node = placed ? (int32_t)s->node : -1;
    mine.place.local = placed ? (int32_t)s->local_rank : -1;
    mine.chunk = s->chunk;
    mine.far_chunk = far_chunk;
    mine.workspace = s->workspace;
    mine.far_workspace = far_workspace;
    mine.start = mk_comm_start;
    mine.wire_fp32 = !strcmp(s->wire, "fp32");
    mine.choose = !gpu && !strcmp(s->tuner, "on") && !s->deterministic && comm->nranks > 1 &&
                  comm->nranks <= MK_AGREE_MAX_RANKS && mk_boot_root_rank(comm->boot) >= 0;
    memcpy(mine.net, s->net, sizeof(mine.net));
    if (comm->boot)
        ret = mk_boot_allgather(comm->boot, &mine, all, sizeof(mine));
    else
        all[0] = mine;
    for (int r = 0; r < comm->nranks && !ret; r++) {
        places[r] = all[r].place;
        comm->may_choose = all[r].choose && (!r || comm->may_choose);
        if (!ret && all[r].gpu != all[0].gpu)
            ret = mk_fail(
                MK_ERR_MISMATCH, "FUSED",
                "rank %d has a CUDA context current on the calling thread, rank %d has not (or no usable "
                "GPU): all ranks compute on GPUs, or none",
                all[0].gpu ? 0 : r, all[0].gpu ? r : 0);
        if (ret)
            break;
        if (all[r].chunk != all[0].chunk || all[r].far_chunk != all[0].far_chunk ||
            all[r].workspace != all[0].workspace || all[r].far_workspace != all[0].far_workspace ||
            all[r].wire_fp32 != all[0].wire_fp32 || all[r].start != all[0].start ||
            strcmp(all[r].net, all[0].net))
            ret = mk_fail(MK_ERR_MISMATCH, "FUSED",
                          "ranks 0 and %d differ in MK_CHUNK, MK_WORKSPACE, MK_WIRE or MK_NET", r);
    }
    if (!ret)
        ret = mk_topology_build(places, comm->nranks, comm->rank, &comm->topo, comm->rank_at);
    if (!ret && comm->topo.nnodes > 1) {
        s->chunk = far_chunk;
        s->workspace = far_workspace;
    }
out:
    free(places);
    free(all);
    return ret;
}

static int reserve_workspace(struct mk_comm *comm)
{
    const size_t want = comm->settings.workspace;
    if (comm->nranks == 1)
        return 0;
    if (__atomic_add_fetch(&workspace_used, want, __ATOMIC_ACQ_REL) > comm->settings.workspace_total) {
        __atomic_sub_fetch(&workspace_used, want, __ATOMIC_ACQ_REL);
        return mk_fail(MK_ERR_UNSUPPORTED, "FUSED",
                       "workspace of %zu bytes: this process would exceed MK_WORKSPACE_TOTAL=%zu", want,
                       comm->settings.workspace_total);
    }
    comm->workspace = want;
    return 0;
}

static int make_blocks(struct mk_comm *comm)
{
    comm->threads = comm->wants_gpu          ? 1
                    : comm->settings.threads ? (int)comm->settings.threads
                                             : default_threads(comm->topo.nlocal);
    comm->host.scratch = calloc((size_t)comm->threads, sizeof(*comm->host.scratch));
    comm->trace = calloc((size_t)comm->threads, sizeof(*comm->trace));
    if (!comm->host.scratch || !comm->trace)
        return mk_fail(MK_ERR_NOMEM, "FUSED", "no memory for %d blocks", comm->threads);
    for (int i = 0; i < comm->threads; i++) {
        if (posix_memalign((void **)&comm->host.scratch[i], 64, MK_GEMM_SCRATCH * sizeof(float)))
            return mk_fail(MK_ERR_NOMEM, "FUSED", "no memory for the scratch of %d blocks", comm->threads);
    }
    return mk_pool_create(comm->threads, &comm->pool);
}

static int setup_local(struct mk_comm *comm)
{
    const bool host_staging = !comm->wants_gpu || comm->topo.nnodes > 1;
    int ret = mk_rings_build(&comm->topo, comm->settings.workspace, comm->settings.chunk, &comm->rings);
    if (!ret && comm->wants_gpu)
        mk_rings_add_ll(&comm->rings, comm->settings.workspace);
    if (!ret)
        ret = reserve_workspace(comm);
    if (!ret)
        ret =
            mk_shm_create("mkernel", comm->rings.fixed_bytes + (host_staging ? comm->rings.staging_bytes : 0),
                          &comm->memory);
    if (ret)
        return ret;
    if (posix_memalign((void **)&comm->state, 64, sizeof(*comm->state))) {
        comm->state = NULL;
        return mk_fail(MK_ERR_NOMEM, "FUSED", "no memory for the state of a communicator");
    }
    mk_rings_init(&comm->rings, comm->memory.addr, comm->state, mk_comm_start);
    comm->host.bell = (struct mk_bell *)((uint8_t *)comm->memory.addr + comm->rings.bell_off);
    comm->host.mismatch = on_mismatch;
    comm->host.ctx = comm;
    ret = make_blocks(comm);
    if (!ret)
        ret = mk_learn_open(comm);
    if (!ret)
        ret = mk_choose_open(comm);
    return ret || !comm->wants_gpu ? ret : mk_gpu_create(comm);
}

/* boot: NULL with one rank; owned by the communicator from here on, also on failure. */
static int comm_create(const struct mk_settings *s, struct mk_boot *boot, int nranks, int rank, unsigned how,
                       struct mk_comm **out)
{
    struct mk_comm *comm = calloc(1, sizeof(*comm));
    if (!comm) {
        mk_boot_destroy(boot);
        return mk_fail(MK_ERR_NOMEM, "FUSED", "no memory for a communicator");
    }
    pthread_mutex_init(&comm->call_lock, NULL);
    pthread_mutex_init(&comm->fail_lock, NULL);
    comm->pid = getpid();
    comm->memory.fd = -1;
    comm->boot = boot;
    comm->rank = rank;
    comm->nranks = nranks;
    comm->settings = *s;
    comm->rank_at = calloc((size_t)nranks, sizeof(*comm->rank_at));
    int ret = comm->rank_at ? exchange_facts(comm, how)
                            : mk_fail(MK_ERR_NOMEM, "FUSED", "no memory for %d ranks", nranks);
    if (!ret)
        ret = mk_comm_agree(comm, setup_local(comm));
    if (!ret)
        ret = mk_peers_setup(comm);
    if (!ret && comm->gpu)
        ret = mk_comm_agree(comm, mk_gpu_ready(comm));
    if (ret) {
        mk_comm_destroy(comm);
        return ret;
    }
    if (!comm->gpu)
        mk_gemm_cpu_open(strcmp(s->gemm, "builtin") != 0);
    MK_INFO("FUSED", "rank %d of %d: node %d of %d, local rank %d of %d, %d blocks, slots of %llu bytes",
            rank, nranks, comm->topo.node, comm->topo.nnodes, comm->topo.local, comm->topo.nlocal,
            comm->threads, (unsigned long long)comm->rings.slot_bytes);
    if (boot)
        mk_boot_on_event(boot, on_boot_event, comm);
    *out = comm;
    return 0;
}

int mk_get_unique_id(mk_unique_id_t *id)
{
    struct mk_settings s;
    if (!id)
        return mk_fail_quiet(MK_ERR_INVALID, "id is NULL");
    const int ret = mk_settings_load(&s, false);
    return ret ? ret : mk_boot_unique_id(&s, id);
}

int mk_comm_init_rank(mk_comm_t *comm, int nranks, mk_unique_id_t id, int rank, const mk_config_t *config)
{
    struct mk_settings s;
    struct mk_boot *boot = NULL;
    int ret = check_ranks(comm, nranks, rank);
    if (!ret)
        ret = load_settings(&s, config);
    if (!ret && nranks > 1)
        ret = mk_boot_init_id(&s, &id, nranks, rank, &boot);
    return ret ? ret : comm_create(&s, boot, nranks, rank, MAY_GPU, comm);
}

int mk_comm_init_alone(mk_comm_t *comm)
{
    struct mk_settings s;
    const int ret = load_settings(&s, NULL);
    return ret ? ret : comm_create(&s, NULL, 1, 0, 0, comm);
}

int mk_comm_init_name(mk_comm_t *comm, uint64_t name, int nranks, int rank, bool (*go_on)(void *ctx),
                      void *ctx)
{
    struct mk_settings s;
    struct mk_boot *boot = NULL;
    int ret = check_ranks(comm, nranks, rank);
    if (!ret)
        ret = load_settings(&s, NULL);
    if (!ret && nranks > 1)
        ret = mk_boot_init_name_while(&s, name, nranks, rank, go_on, ctx, &boot);
    return ret ? ret : comm_create(&s, boot, nranks, rank, MAY_GPU | FOR_PAIRS, comm);
}

int mk_comm_init_allgather(mk_comm_t *comm, int nranks, int rank,
                           int (*allgather)(void *ctx, const void *send, void *recv, size_t bytes), void *ctx,
                           const mk_config_t *config)
{
    struct mk_settings s;
    struct mk_boot *boot = NULL;
    int ret = check_ranks(comm, nranks, rank);
    if (!ret && !allgather)
        ret = mk_fail_quiet(MK_ERR_INVALID, "allgather is NULL");
    if (!ret)
        ret = load_settings(&s, config);
    if (!ret && nranks > 1)
        ret = mk_boot_init_allgather(&s, nranks, rank, allgather, ctx, &boot);
    return ret ? ret : comm_create(&s, boot, nranks, rank, MAY_GPU, comm);
}

int mk_comm_init_env(mk_comm_t *comm, const mk_config_t *config)
{
    struct mk_settings s;
    struct mk_boot *boot = NULL;
    int ret = comm ? load_settings(&s, config) : mk_fail_quiet(MK_ERR_INVALID, "comm is NULL");
    if (ret)
        return ret;
    if (s.rank < 0)
        mk_settings_launcher(&s);
    if (s.rank < 0 && s.nranks < 0)
        s.rank = 0, s.nranks = 1;
    ret = check_ranks(comm, (int)s.nranks, (int)s.rank);
    if (ret)
        return ret;
    if (s.nranks > 1) {
        if (!s.root[0])
            return mk_fail_quiet(MK_ERR_INVALID, "MK_ROOT is not set: where do the %d ranks meet?",
                                 (int)s.nranks);
        ret = mk_boot_init_root(&s, (int)s.nranks, (int)s.rank, &boot);
    }
    if (ret)
        return ret;
    mk_log_set_rank((int)s.rank);
    return comm_create(&s, boot, (int)s.nranks, (int)s.rank, MAY_GPU, comm);
}

/* ---- facts, abort, destroy ---- */

int mk_comm_rank(mk_comm_t comm, int *rank)
{
    if (!comm || !rank)
        return mk_fail_quiet(MK_ERR_INVALID, "%s is NULL", comm ? "rank" : "comm");
    *rank = comm->rank;
    return 0;
}

int mk_comm_size(mk_comm_t comm, int *nranks)
{
    if (!comm || !nranks)
        return mk_fail_quiet(MK_ERR_INVALID, "%s is NULL", comm ? "nranks" : "comm");
    *nranks = comm->nranks;
    return 0;
}

int mk_comm_get_async_error(mk_comm_t comm, int *error)
{
    if (!comm || !error)
        return mk_fail_quiet(MK_ERR_INVALID, "%s is NULL", comm ? "error" : "comm");
    *error = mk_comm_check(comm);
    return 0;
}

int mk_comm_abort(mk_comm_t comm)
{
    const int ret = mk_comm_mine(comm);
    if (!ret)
        mk_comm_fail(comm, MK_ERR_ABORTED, true, "rank %d called mk_comm_abort", comm->rank);
    return ret;
}

int mk_comm_destroy(mk_comm_t comm)
{
    if (!comm)
        return 0;
    const bool mine = comm->pid == getpid();
    if (mine) {
        mk_gpu_drain(comm);
        mk_learn_collect(comm);
    }
    if (mine && comm->gpu)
        mk_gpu_unwatch(comm->gpu); /* it uses the bootstrap */
    mk_boot_destroy(comm->boot);   /* good-bye first: what the network says afterwards is no failure */
    if (mine)
        tell_local_peers(comm, MK_GONE_LEFT);
    mk_gpu_stop(comm);
    mk_peers_teardown(comm);
    mk_gpu_destroy(comm);
    if (mine)
        mk_pool_destroy(comm->pool);
    else /* its threads, and who held its locks, are in the parent */
        mk_pool_forget(comm->pool);
    for (int i = 0; comm->host.scratch && i < comm->threads; i++)
        free(comm->host.scratch[i]);
    free(comm->host.scratch);
    mk_trace_free(comm);
    mk_learn_close(comm, mine);
    mk_choose_close(comm, mine);
    free(comm->tile_flag);
    free(comm->state);
    free(comm->rank_at);
    mk_shm_release(&comm->memory);
    __atomic_sub_fetch(&workspace_used, comm->workspace, __ATOMIC_ACQ_REL);
    if (mine) {
        pthread_mutex_destroy(&comm->fail_lock);
        pthread_mutex_destroy(&comm->call_lock);
    }
    free(comm);
    return 0;
}
