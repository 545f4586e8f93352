/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* mkrun --gpus-shared: the residency census. Kernels that wait for each other must all be on the GPU at once, and MPS
 * gives nobody SMs of his own: so before the ranks start, one process a rank, with the rank's environment, puts as many
 * blocks as the rank's kernel will have on its GPU, each with all of an SM's shared memory, and all stay until they are
 * counted here. Where a rank has less than half of its blocks, it is refused; where some do not come, it is told:
 * the shares of MPS are limits, which may overlap (two halves of an H200: 126 of 132 blocks), and our kernels finish
 * with fewer.
 *
 * Blocks of a rank: MK_BLOCKS if it is set; else as many SMs as its share shows, at most the GPU's SMs / its ranks (the
 * shares of MPS are rounded up), and no more than were resident: where they were not all, there is another round with fewer,
 * which may not all be there either (66, 63, 62 of an H200). They are given to the ranks as MK_BLOCKS. Which GPU a rank
 * takes is its program's choice; here as our own programs choose: the number of the rank, modulo that of the GPUs.
 *
 * mkrun itself never touches CUDA: it forks, and reads shared memory. */
#include "cli.h"
#include "mk/cuda.h"
#include "mk/shm.h"
#include "mkrun.h"
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define GPUS 16
#define RANKS 64 /* on one machine, sharing GPUs */
#define BLOCKS 256
#define START_MS 30000
#define COUNT_MS 500 /* from the last launch on */
#define CENSUS_ATTR_SMEM 97
#define SMEM_PER_BLOCK 1024 /* the driver's own */
#define THREADS 384

struct census_args { /* as in census.cu */
    mk_cu_ptr sm, go;
    uint64_t limit_ns;
};

/* Shared by mkrun and the processes of the census; words by __atomic. */
struct census {
    uint32_t go;      /* all were counted */
    uint32_t scouted; /* gpus and total[] are known */
    int32_t gpus, total[GPUS];
    struct {
        int32_t launched; /* 1; -1: failed, text says why */
        int32_t blocks;
        char text[160];
    } rank[RANKS];
    _Alignas(4096) uint32_t sm[RANKS][BLOCKS];
};

#ifdef MK_HAVE_NVCC
extern const uint8_t mk_kernels_census[];

static void give_up(struct census *c, int rank, const char *what, int error)
{
    const struct mk_cuda *cu = mk_cuda_open(NULL);
    const char *name = "";
    if (error && cu)
        cu->error_name(error, &name);
    snprintf(c->rank[rank].text, sizeof(c->rank[rank].text), "%s%s%s", what, error ? ": " : "", name);
    __atomic_store_n(&c->rank[rank].launched, -1, __ATOMIC_RELEASE);
    _exit(1);
}

#define MUST(call)                                                                                           \
    do {                                                                                                     \
        const int error_ = cu->call;                                                                         \
        if (error_)                                                                                          \
            give_up(c, rank, #call, error_);                                                                 \
    } while (0)

/* Without a share of MPS, so that it sees the GPUs whole. */
static void scout(struct census *c)
{
    const struct mk_cuda *cu;
    const char *why = "";
    const int rank = 0;
    unsetenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    cu = mk_cuda_open(&why);
    if (!cu)
        give_up(c, rank, why, 0);
    int n = 0;
    MUST(init(0));
    MUST(device_count(&n));
    for (int i = 0; i < n && i < GPUS; i++) {
        int device;
        MUST(device_get(&device, i));
        MUST(device_attribute(&c->total[i], MK_CU_ATTR_SMS, device));
    }
    c->gpus = n < GPUS ? n : GPUS;
    __atomic_store_n(&c->scouted, 1, __ATOMIC_RELEASE);
    _exit(0);
}

static int blocks_of(const struct mkrun *r, const struct census *c, int rank, int seen)
{
    const int gpu = rank % c->gpus;
    const int sharers = (r->nranks - gpu + c->gpus - 1) / c->gpus, share = c->total[gpu] / sharers;
    if (r->settings.blocks > 0)
        return r->settings.blocks < seen ? (int)r->settings.blocks : seen;
    if (r->ranks[rank].blocks) /* of the round before */
        return r->ranks[rank].blocks;
    return share < seen ? share : seen;
}

/* The blocks of a rank, in a process of its own. */
static void stand_in(const struct mkrun *r, struct census *c, int rank)
{
    const struct mk_cuda *cu = mk_cuda_open(NULL);
    int device, seen = 0, smem = 0;
    void *ctx, *stream, *library, *kernel, *function;
    struct census_args args = {0, 0, (START_MS + COUNT_MS) * 1000000ull};
    void *params[] = {&args};
    struct mk_cu_launch l;
    if (!cu)
        give_up(c, rank, "no CUDA driver", 0);
    MUST(init(0));
    for (int i = 0; i < START_MS && !__atomic_load_n(&c->scouted, __ATOMIC_ACQUIRE); i++)
        poll(NULL, 0, 1);
    if (!c->scouted || !c->gpus)
        give_up(c, rank, "no GPU", 0);
    MUST(device_get(&device, rank % c->gpus));
    MUST(ctx_retain(&ctx, device));
    MUST(ctx_set(ctx));
    MUST(device_attribute(&seen, MK_CU_ATTR_SMS, device));
    MUST(device_attribute(&smem, CENSUS_ATTR_SMEM, device));
    c->rank[rank].blocks = blocks_of(r, c, rank, seen);
    if (c->rank[rank].blocks < 1 || c->rank[rank].blocks > BLOCKS)
        give_up(c, rank, "no SM is left for a block of this rank", 0);
    MUST(host_register(c, sizeof(*c), MK_CU_HOST_PORTABLE | MK_CU_HOST_MAPPED));
    MUST(host_device_ptr(&args.go, &c->go, 0));
    MUST(host_device_ptr(&args.sm, c->sm[rank], 0));
    MUST(stream_create(&stream, MK_CU_STREAM_NON_BLOCKING));
    MUST(library_load(&library, mk_kernels_census, NULL, NULL, 0, NULL, NULL, 0));
    MUST(library_kernel(&kernel, library, "mk_census"));
    MUST(kernel_set_attribute(MK_CU_FUNC_DYNAMIC_SMEM, smem, kernel, device));
    MUST(kernel_function(&function, kernel));
    memset(&l, 0, sizeof(l));
    l.grid[0] = (uint32_t)c->rank[rank].blocks;
    l.block[0] = THREADS;
    l.grid[1] = l.grid[2] = l.block[1] = l.block[2] = 1;
    l.smem = (uint32_t)smem;
    l.stream = stream;
    MUST(launch(&l, function, params, NULL));
    __atomic_store_n(&c->rank[rank].launched, 1, __ATOMIC_RELEASE);
    _exit(cu->stream_sync(stream) ? 1 : 0);
}

/* ---- in mkrun ---- */

static pid_t start(const struct mkrun *r, struct census *c, int rank)
{
    const pid_t parent = getpid(), pid = fork();
    if (pid)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    mkrun_gpus_environment(r);
    if (rank < 0)
        scout(c);
    stand_in(r, c, rank);
    _exit(1);
}

struct counted {
    int here[RANKS]; /* blocks that are resident */
    int all, total;  /* sums over ranks: resident, wanted (0: not all have launched) */
    int failed;      /* rank that cannot; -1: none */
};

static void count(const struct mkrun *r, const struct census *c, struct counted *n)
{
    int launched = 0;
    memset(n, 0, sizeof(*n));
    n->failed = -1;
    for (int rank = 0; rank < r->nranks; rank++) {
        const int state = __atomic_load_n(&c->rank[rank].launched, __ATOMIC_ACQUIRE);
        if (state < 0)
            n->failed = rank;
        launched += state > 0;
        for (int b = 0; state > 0 && b < c->rank[rank].blocks; b++)
            n->here[rank] += __atomic_load_n(&c->sm[rank][b], __ATOMIC_RELAXED) != 0;
        n->all += n->here[rank];
        n->total += state > 0 ? c->rank[rank].blocks : 0;
    }
    if (launched < r->nranks)
        n->total = 0;
}

/* Not all blocks were there at once. A rank some of whose blocks come late is slower than its peers, which wait for it; so
 * unless the user chose their number each rank gets an equal part of those that were there on its GPU. true: it did. */
static bool shrink(struct mkrun *r, const struct census *c, const struct counted *n)
{
    const char *chosen = mk_env("MK_BLOCKS");
    if (chosen && *chosen)
        return false;
    for (int rank = 0; rank < r->nranks; rank++) {
        int here = 0, sharers = 0;
        for (int other = rank % c->gpus; other < r->nranks; other += c->gpus, sharers++)
            here += n->here[other];
        if (r->ranks[rank].blocks > here / sharers)
            r->ranks[rank].blocks = here / sharers;
    }
    return true;
}

static void say_shrunk(const struct mkrun *r, const struct counted *first, bool shrunk)
{
    int least = r->ranks[0].blocks, most = least;
    for (int rank = 1; rank < r->nranks; rank++) {
        least = r->ranks[rank].blocks < least ? r->ranks[rank].blocks : least;
        most = r->ranks[rank].blocks > most ? r->ranks[rank].blocks : most;
    }
    if (!shrunk)
        mk_cli_say("--gpus-shared: %d of the ranks' %d blocks were resident at once; the others wait for "
                   "these to leave",
                   first->all, first->total);
    else
        mk_cli_say("--gpus-shared: %d of the ranks' %d blocks were resident at once; each rank gets %d%s",
                   first->all, first->total, least, most > least ? ", or some more" : "");
}

static int judge(struct mkrun *r, const struct census *c, const struct counted *n)
{
    if (n->failed >= 0) {
        mk_cli_say("--gpus-shared: the census of rank %d failed: %s", n->failed, c->rank[n->failed].text);
        return MK_EXIT_FAILED;
    }
    if (!n->total) {
        mk_cli_say("--gpus-shared: the census did not start within %d s", START_MS / 1000);
        return MK_EXIT_FAILED;
    }
    for (int rank = 0; rank < r->nranks; rank++) {
        const int blocks = c->rank[rank].blocks;
        if (2 * n->here[rank] < blocks) {
            mk_cli_say("--gpus-shared: the kernels of %d ranks do not fit on the GPU%s together: of the %d "
                       "blocks of "
                       "rank %d, %d were resident (a smaller MK_BLOCKS, or fewer ranks)",
                       r->nranks, c->gpus > 1 ? "s" : "", blocks, rank, n->here[rank]);
            return MK_EXIT_FAILED;
        }
        r->ranks[rank].blocks = blocks;
    }
    return 0;
}

/* *again: some were not there, and the ranks' numbers are smaller now. */
static int take(struct mkrun *r, struct counted *n, bool *again)
{
    pid_t pid[RANKS + 1];
    int waited = 0, counting = 0;
    memset(n, 0, sizeof(*n));
    struct census *c = mmap(NULL, sizeof(*c), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (c == MAP_FAILED) {
        mk_cli_say("--gpus-shared: %s", strerror(errno));
        return MK_EXIT_FAILED;
    }
    for (int i = 0; i <= r->nranks; i++)
        pid[i] = start(r, c, i - 1);
    while (waited < START_MS && counting < COUNT_MS) {
        count(r, c, n);
        if (n->failed >= 0 || (n->total && n->all == n->total))
            break;
        poll(NULL, 0, 1);
        waited++;
        counting += n->total > 0;
    }
    const int ret = judge(r, c, n);
    *again = !ret && n->all < n->total && shrink(r, c, n);
    __atomic_store_n(&c->go, 1, __ATOMIC_RELEASE);
    for (int i = 0; i <= r->nranks; i++) {
        for (int ms = 0; pid[i] > 0 && !waitpid(pid[i], NULL, WNOHANG); ms++) {
            if (ms == 5000)
                kill(pid[i], SIGKILL);
            poll(NULL, 0, 1);
        }
    }
    munmap(c, sizeof(*c));
    return ret;
}

#define ROUNDS 4

int mkrun_census(struct mkrun *r)
{
    struct counted first, n;
    bool again = false;
    if (r->nranks > RANKS) {
        mk_cli_say("--gpus-shared: %d ranks are more than %d", r->nranks, RANKS);
        return MK_EXIT_USAGE;
    }
    int ret = take(r, &first, &again);
    const bool shrunk = again;
    for (int i = 1; i < ROUNDS && !ret && again; i++)
        ret = take(r, &n, &again);
    if (!ret && first.all < first.total && !r->quiet)
        say_shrunk(r, &first, shrunk);
    return ret;
}
#else
int mkrun_census(struct mkrun *r)
{
    (void)r;
    return 0; /* no kernels: nothing that must fit */
}
#endif
