/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What interception runs (mk/fuse.h): G and K (mk/pair_run.h) in place of cuBLAS's GEMM and NCCL's all-reduce. Each NCCL
 * communicator gets one of ours, made by a thread of its own, since that waits for the others; it meets by NCCL's commId. */
#include "mk/fuse.h"
#include "comm.h"
#include "cuda/gemm.h"
#include "cuda/gpu.h"
#include "fuse_in.h"
#include "mk/err.h"
#include "mk/log.h"
#include "mk/pair_run.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Fewer rows than this are cuBLAS's: G's tiles have 128, and a few of them fill no GPU. */
#define MIN_M 512
/* K's chunks then are rows of 128 bytes and more, which the copy engine takes. */
#define GRANULE 64
#define MAX_BYTES ((uint64_t)1 << 30)

enum state { MAKING = 0, READY, FAILED };
struct fuse_comm {
    struct fuse_comm *next;
    void *nccl, *ctx;
    uint64_t id;
    int rank, nranks;
    enum state state; /* with the next three, and mk: under `lock` */
    int error;
    bool over; /* NCCL's communicator has gone, or set-up ended 'off', while this one was made */
    bool off;  /* set-up ended 'off': nothing was ever launched for it */
    int users; /* calls that have it */
    mk_comm_t mk;
    void *order;                    /* event: after its last operation; graphs record it too */
    void *inside;                   /* event: the same within a capture, this one: */
    uint64_t inside_capture;        /* its id; 0: none */
    void *beside, *forked, *joined; /* stream, events */
    void *stamp[MK_FUSE_STAMPS];    /* events with times, made when they are first used */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* after the recogniser's; waits for nobody */
static pthread_cond_t idle = PTHREAD_COND_INITIALIZER;
static struct fuse_comm *list, *discarded; /* the latter are off or over, and to be dropped */
/* Atomic; the same for all communicators of a process. */
static int spare; /* what G spares for K; 0: none is ready */
static int kept;  /* multiprocessors that MK_BLOCKS leaves to others */

/* A call's hold of the communicator; NULL: there is none, or (ready) it cannot be used yet. */
static struct fuse_comm *take(const void *nccl, bool ready)
{
    pthread_mutex_lock(&lock);
    struct fuse_comm *c = list;
    while (c && c->nccl != nccl)
        c = c->next;
    if (c && ready && c->state != READY)
        c = NULL;
    if (c)
        c->users++;
    pthread_mutex_unlock(&lock);
    return c;
}
static void give(struct fuse_comm *c)
{
    pthread_mutex_lock(&lock);
    if (!--c->users)
        pthread_cond_broadcast(&idle);
    pthread_mutex_unlock(&lock);
}

/* On the communicator's context, whatever is current: NCCL asks for no device of its caller. Returns what was before. */
static void *enter(const struct fuse_comm *c)
{
    const struct mk_cuda *cu = mk_cuda_open(NULL);
    void *before = NULL;
    cu->ctx_current(&before);
    if (before != c->ctx)
        cu->ctx_set(c->ctx);
    return before;
}
static void leave(const struct fuse_comm *c, void *before)
{
    if (before != c->ctx)
        mk_cuda_open(NULL)->ctx_set(before);
}

/* ---- making ---- */

/* Until its last operation is over, one of a graph too; false: it is not after `seconds`. */
static bool settled(const struct fuse_comm *c, double seconds)
{
    const struct mk_cuda *cu = mk_cuda_open(NULL);
    const struct timespec nap = {.tv_nsec = 100000};
    const uint64_t since = mk_time_ns();
    int relaxed = MK_CU_CAPTURE_RELAXED, err = 0;
    cu->capture_mode(&relaxed); /* another thread may be capturing */
    void *const before = enter(c);
    while (c->mk && (err = cu->event_query(c->order)) == MK_CU_NOT_READY &&
           (double)(mk_time_ns() - since) < 1e9 * seconds)
        nanosleep(&nap, NULL);
    leave(c, before);
    cu->capture_mode(&relaxed);
    return err != MK_CU_NOT_READY;
}

static void drop(struct fuse_comm *c)
{
    const struct mk_cuda *cu = mk_cuda_open(NULL);
    int relaxed = MK_CU_CAPTURE_RELAXED;
    settled(c, c->mk && !c->off ? c->mk->settings.timeout : 0);
    cu->capture_mode(&relaxed);
    void *const before = enter(c);
    mk_comm_destroy(c->mk);
    void *const events[] = {c->order, c->inside, c->forked, c->joined};
    for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++)
        if (events[i])
            cu->event_destroy(events[i]);
    for (size_t i = 0; i < MK_FUSE_STAMPS; i++)
        if (c->stamp[i])
            cu->event_destroy(c->stamp[i]);
    if (c->beside)
        cu->stream_destroy(c->beside);
    leave(c, before);
    cu->capture_mode(&relaxed);
    free(c);
}

/* Of one that is off, and so has nothing under way: its blocks are the others' at once. */
static void give_blocks(const struct fuse_comm *c)
{
    if (c->mk && c->mk->gpu)
        mk_pair_give(c->mk->gpu);
}

/* Under `lock`. For tidy: what frees memory waits for the device, where a kernel may wait for what this rank does next. */
static void discard(struct fuse_comm *c)
{
    c->next = discarded;
    discarded = c;
}

static void *drop_it(void *arg)
{
    struct fuse_comm *c = arg;
    pthread_mutex_lock(&lock);
    while (c->users)
        pthread_cond_wait(&idle, &lock);
    pthread_mutex_unlock(&lock);
    drop(c);
    return NULL;
}

/* Held. NCCL's destroy waits for the device, and so for a K under way; this for a peer that may be alive and never come. It
 * gets MK_TIMEOUT: what comes after the destroy would be too late. */
static void *hurry(void *arg)
{
    struct fuse_comm *c = arg;
    if (!settled(c, c->mk->settings.timeout))
        mk_comm_fail(c->mk, MK_ERR_ABORTED, true,
                     "rank %d destroys its communicator while a call is under way", c->rank);
    give(c);
    return NULL;
}

/* What the device is waited for with: another communicator's kernel may be under way there, and need what the caller does next. One
 * that is over soon is waited for: a process that exits next has said good-bye then. */
#define PATIENCE_S 0.2

static void tidy(void)
{
    for (;;) {
        pthread_t thread;
        pthread_mutex_lock(&lock);
        struct fuse_comm *c = discarded;
        discarded = c ? c->next : NULL;
        pthread_mutex_unlock(&lock);
        if (!c)
            return;
        if (pthread_create(&thread, NULL, drop_it, c)) {
            drop_it(c);
            continue;
        }
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += (long)(PATIENCE_S * 1e9);
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        if (pthread_timedjoin_np(thread, NULL, &until))
            pthread_detach(thread);
    }
}

static bool goes_on(void *ctx)
{
    struct fuse_comm *c = ctx;
    pthread_mutex_lock(&lock);
    const bool yes = !c->over;
    pthread_mutex_unlock(&lock);
    return yes;
}

/* Not the meeting's own name, which is the commId. */
static uint64_t name_of(uint64_t id)
{
    return (id ^ 0x6d6b667573650001ull) * 0x9e3779b97f4a7c15ull;
}

static void *make(void *arg)
{
    struct fuse_comm *c = arg;
    const struct mk_cuda *cu = mk_cuda_open(NULL);
    int relaxed = MK_CU_CAPTURE_RELAXED;
    mk_comm_t mk = NULL;
    int device = -1, ret = cu->ctx_set(c->ctx) || cu->ctx_device(&device) ? MK_ERR_CUDA : 0;
    cu->capture_mode(&relaxed); /* what other threads capture is not disturbed by what is allocated here */
    if (!ret && mk_pair_full(device))
        ret = mk_fail_quiet(MK_ERR_UNSUPPORTED, "no blocks are left for another communicator");
    if (!ret)
        ret = mk_comm_init_name(&mk, name_of(c->id), c->nranks, c->rank, goes_on, c);
    if (!ret && (!mk_pair_blocks(mk) || !mk_gpu_hopper(mk)))
        ret = mk_fail(MK_ERR_UNSUPPORTED, "HOOK", "the kernels for cuBLAS's and NCCL's calls need Hopper");
    if (!ret)
        ret = mk_pair_load(mk);
    if (ret) {
        mk_comm_destroy(mk);
        mk = NULL;
    }
    pthread_mutex_lock(&lock);
    const bool over = c->over && !c->off;
    c->mk = mk;
    c->error = ret;
    if (!ret) {
        __atomic_store_n(&kept, mk->gpu->sms - mk_gpu_blocks(mk), __ATOMIC_RELAXED);
        const int most = __atomic_load_n(&spare, __ATOMIC_RELAXED);
        __atomic_store_n(&spare, most > mk_pair_blocks(mk) ? most : mk_pair_blocks(mk), __ATOMIC_RELEASE);
    }
    c->state = ret ? FAILED : READY;
    if (c->off) {
        give_blocks(c);
        discard(c);
    }
    pthread_mutex_unlock(&lock);
    if (over)
        drop(c);
    return NULL;
}

static void unlist(const struct fuse_comm *c) /* under `lock` */
{
    struct fuse_comm **at = &list;
    while (*at && *at != c)
        at = &(*at)->next;
    if (*at)
        *at = c->next;
}

static int begin(void *nccl, void *ctx, uint64_t id, int rank, int nranks)
{
    const struct mk_cuda *cu = mk_cuda_open(NULL);
    struct fuse_comm *c = calloc(1, sizeof(*c));
    int relaxed = MK_CU_CAPTURE_RELAXED;
    pthread_t thread;
    if (!c)
        return mk_fail(MK_ERR_NOMEM, "HOOK", "no memory for a communicator");
    c->nccl = nccl;
    c->ctx = ctx;
    c->id = id;
    c->rank = rank;
    c->nranks = nranks;
    void **const events[] = {&c->order, &c->inside, &c->forked, &c->joined};
    int err = 0;
    cu->capture_mode(&relaxed);
    for (size_t i = 0; i < sizeof(events) / sizeof(events[0]) && !err; i++)
        err = cu->event_create(events[i], MK_CU_EVENT_NO_TIMING);
    if (!err)
        err = cu->stream_create(&c->beside, MK_CU_STREAM_NON_BLOCKING);
    cu->capture_mode(&relaxed);
    pthread_mutex_lock(&lock);
    c->next = list;
    list = c;
    const bool started = !err && !pthread_create(&thread, NULL, make, c);
    if (!started)
        unlist(c);
    pthread_mutex_unlock(&lock);
    if (started) {
        pthread_detach(thread);
        return MK_ERR_AGAIN;
    }
    drop(c);
    return err ? mk_cuda_fail(err, "events of a communicator")
               : mk_fail(MK_ERR_SYSTEM, "HOOK", "no thread to make a communicator");
}

static int prepare(void *nccl, void *stream, uint64_t id, int rank, int nranks)
{
    const struct mk_cuda *cu = mk_cuda_open(NULL);
    struct fuse_comm *c = take(nccl, false);
    void *ctx = NULL, *before = NULL;
    if (c) {
        pthread_mutex_lock(&lock);
        const int ret = c->state == READY ? 0 : c->state == FAILED ? c->error : MK_ERR_AGAIN;
        pthread_mutex_unlock(&lock);
        give(c);
        return ret;
    }
    /* a default stream's handle (up to 2) says nothing of its context */
    if (!cu || cu->ctx_current(&before) ||
        ((uintptr_t)stream > 2 ? cu->stream_ctx(stream, &ctx) : (ctx = before, 0)) || !ctx)
        return MK_ERR_UNSUPPORTED;
    if (ctx != before)
        cu->ctx_set(ctx);
    const int ret = mk_gpu_wanted() ? begin(nccl, ctx, id, rank, nranks) : MK_ERR_UNSUPPORTED;
    if (ctx != before)
        cu->ctx_set(before);
    return ret;
}

static void off(void *nccl, uint64_t id)
{
    pthread_mutex_lock(&lock);
    struct fuse_comm *c = list;
    while (c && (c->nccl != nccl || c->id != id))
        c = c->next;
    if (c) {
        unlist(c);
        c->over = c->off = true;
        if (c->state != MAKING) { /* else its thread gives up, and does this */
            give_blocks(c);
            discard(c);
        }
    }
    pthread_mutex_unlock(&lock);
}

static void end(void *nccl)
{
    pthread_mutex_lock(&lock);
    struct fuse_comm *c = list;
    while (c && c->nccl != nccl)
        c = c->next;
    if (c) {
        unlist(c);
        c->over = true;
        if (c->state != MAKING) /* else its thread drops it */
            discard(c);
    }
    const bool ready = c && c->state == READY;
    if (ready)
        c->users++;
    pthread_mutex_unlock(&lock);
    pthread_t thread;
    if (!ready)
        return;
    if (settled(c, 0) || pthread_create(&thread, NULL, hurry, c))
        give(c);
    else
        pthread_detach(thread);
}

/* ---- G ---- */

static bool problem_of(const struct mk_pair_gemm *g, struct mk_gemm_problem *p)
{
    if ((g->c_type != MK_BFLOAT16 && g->c_type != MK_FLOAT16) || g->a_type != g->c_type ||
        g->b_type != g->c_type || g->m < MIN_M || g->m > MK_FUSE_MAX_M || g->batch > 1)
        return false;
    *p = (struct mk_gemm_problem){.layout = (mk_layout_t)g->layout,
                                  .dtype = (mk_dtype_t)g->c_type,
                                  .m = g->m,
                                  .n = g->n,
                                  .k = g->k,
                                  .a = (const void *)(uintptr_t)g->a,
                                  .b = (const void *)(uintptr_t)g->b,
                                  .c = (void *)(uintptr_t)g->c,
                                  .lda = g->lda,
                                  .ldb = g->ldb,
                                  .ldc = g->ldc,
                                  .bias = (const void *)(uintptr_t)g->bias,
                                  .act = g->epilogue == MK_PAIR_RELU_BIAS ? MK_ACT_RELU : MK_ACT_NONE};
    return true;
}

static bool can(const struct mk_pair_gemm *g)
{
    struct mk_gemm_problem p;
    return __atomic_load_n(&spare, __ATOMIC_ACQUIRE) && problem_of(g, &p) && mk_pair_gemm_can(&p);
}

static int launch_g(const struct mk_fuse_g *g)
{
    const struct mk_cuda *cu = mk_cuda_open(NULL);
    struct mk_gemm_problem p;
    struct mk_fuse_last last;
    memset(&last, 0, sizeof(last));
    if (!problem_of(g->gemm, &p))
        return MK_ERR_UNSUPPORTED;
    uint64_t *words = g->descriptor == MK_PAIR_OWN_DESCRIPTOR ? mk_fuse_graph_words(cu, g->stream)
                                                              : mk_fuse_words(cu, g->descriptor);
    if (!words)
        return mk_fail_quiet(MK_ERR_NOMEM, "no memory for what G tells");
    const int room = g->room ? __atomic_load_n(&spare, __ATOMIC_ACQUIRE) : 0;
    int ret =
        mk_pair_gemm(&p, room + __atomic_load_n(&kept, __ATOMIC_RELAXED), words, g->stream, &last.tiles);
    if (!ret && g->check)
        ret = mk_pair_check_c(p.c, (uint64_t)p.m * (uint64_t)p.n * 2, words, 0, g->stream);
    if (ret)
        return ret;
    if (g->captured) {
        int status = 0;
        uint64_t id;
        size_t n = 0;
        void *graph, *const *deps;
        if (!cu->capture_info(g->stream, &status, &id, &graph, &deps, &n) && n == 1)
            last.node = deps[0];
    }
    mk_fuse_told(g->descriptor, g->generation, &last);
    return 0;
}

/* ---- K ---- */

static int after(const struct mk_cuda *cu, void *event, void *earlier, void *later)
{
    const int err = cu->event_record(event, earlier);
    return err ? err : cu->stream_wait_event(later, event, 0);
}

static int launch_on(struct fuse_comm *c, const struct mk_fuse_k *k)
{
    const struct mk_cuda *cu = mk_cuda_open(NULL);
    const struct mk_fuse_last *last =
        k->overlap || k->check ? mk_fuse_last(k->descriptor, k->generation) : NULL;
    void *stream = k->beside ? c->beside : k->stream;
    bool overlapped;
    int err = k->beside ? after(cu, c->forked, k->stream, stream) : 0;
    if (!err && k->reduce && last && last->node)
        err = cu->capture_depend(stream, (void **)&last->node, 1, MK_CU_DEPENDENCIES_SET);
    if (k->check && last && !err) /* what fails here does so for K, too */
        mk_pair_check_c(k->send, k->count * 2, last->tiles.words, k->check, stream);
    if (!k->overlap)
        last = NULL;
    if (!err && k->send != k->recv) { /* K works in place, so what is sent must be whole first */
        err = cu->copy((mk_cu_ptr)(uintptr_t)k->recv, (mk_cu_ptr)(uintptr_t)k->send, (size_t)k->count * 2,
                       stream);
        last = NULL;
    }
    if (err)
        return mk_cuda_fail(err, "before a collective");
    return mk_pair_allreduce(c->mk, k->recv, k->count, (mk_dtype_t)k->dtype, last ? &last->tiles : NULL,
                             stream, &overlapped);
}

static int launch_k(const struct mk_fuse_k *k)
{
    struct fuse_comm *c = take(k->comm, true);
    if (!c)
        return mk_fail(MK_ERR_INTERNAL, "HOOK", "a collective of a communicator that has no kernels");
    void *const before = enter(c);
    const int ret = launch_on(c, k);
    leave(c, before);
    give(c);
    return ret;
}

/* One of the calls below, on the communicator; before there is one, NCCL keeps its own order. */
static int on(void *nccl, void *stream, int (*call)(struct fuse_comm *c, void *stream, int how), int how)
{
    struct fuse_comm *c = take(nccl, false);
    if (!c)
        return 0;
    void *const before = enter(c);
    const int err = call(c, stream, how);
    leave(c, before);
    give(c);
    return err ? mk_cuda_fail(err, "the order of a communicator's operations") : 0;
}

#define MOST_DEPS 16

/* 0: it is not capturing. */
static uint64_t capture_of(void *stream)
{
    int status = 0;
    uint64_t id = 0;
    size_t n = 0;
    void *graph, *const *deps;
    const int err = mk_cuda_open(NULL)->capture_info(stream, &status, &id, &graph, &deps, &n);
    return !err && status ? id : 0;
}

static int wait_on(struct fuse_comm *c, void *stream, int how)
{
    const struct mk_cuda *cu = mk_cuda_open(NULL);
    /* Nothing of this capture is recorded: the operations before this one are of the same group, and are recorded after it.
     * Among themselves they have no order; what was before the group is before this one too. */
    if (how == MK_PAIR_WAIT_NODE && (!c->inside_capture || c->inside_capture != capture_of(stream)))
        how = MK_PAIR_WAIT_EXTERNAL;
    return how == MK_PAIR_WAIT_EVENT      ? cu->stream_wait_event(stream, c->order, 0)
           : how == MK_PAIR_WAIT_NODE     ? cu->stream_wait_event(stream, c->inside, 0)
           : how == MK_PAIR_WAIT_EXTERNAL ? cu->stream_wait_event(stream, c->order, MK_CU_EVENT_EXTERNAL)
                                          : 0;
}
static int wait_for(void *nccl, void *stream, enum mk_pair_order how, uint64_t node)
{
    (void)node; /* `inside` has all of them */
    return on(nccl, stream, wait_on, (int)how);
}

static int record_on(struct fuse_comm *c, void *stream, int how)
{
    const struct mk_cuda *cu = mk_cuda_open(NULL);
    if (how != MK_PAIR_RECORD_EXTERNAL)
        return cu->event_record(c->order, stream);
    /* The record is a node. What comes next depends on the operation as if there were none: it would cost the graph several
     * microseconds a collective. */
    void *graph, *const *deps, *before[MOST_DEPS];
    int status = 0;
    size_t n = 0;
    int err = cu->capture_info(stream, &status, &c->inside_capture, &graph, &deps, &n);
    const bool aside = !err && status && n && n <= MOST_DEPS;
    if (aside)
        memcpy(before, deps, n * sizeof(*before));
    c->inside_capture = err || !status ? 0 : c->inside_capture;
    err = cu->event_record(c->inside, stream);
    if (!err)
        err = cu->event_record_flags(c->order, stream, MK_CU_EVENT_EXTERNAL);
    if (!err && aside)
        err = cu->capture_depend(stream, before, n, MK_CU_DEPENDENCIES_SET);
    return err;
}
static int record(void *nccl, void *stream, enum mk_pair_record how)
{
    return on(nccl, stream, record_on, (int)how);
}

static int join_on(struct fuse_comm *c, void *stream, int how)
{
    (void)how;
    return after(mk_cuda_open(NULL), c->joined, c->beside, stream);
}
static int join(void *nccl, void *stream)
{
    return on(nccl, stream, join_on, 0);
}

/* ---- times ---- */

static int stamp_on(struct fuse_comm *c, void *stream, int which)
{
    const struct mk_cuda *cu = mk_cuda_open(NULL);
    int relaxed = MK_CU_CAPTURE_RELAXED, err = 0;
    cu->capture_mode(&relaxed); /* another thread may be capturing */
    if (!c->stamp[which])
        err = cu->event_create(&c->stamp[which], 0);
    if (!err)
        err = cu->event_record(c->stamp[which], stream);
    cu->capture_mode(&relaxed);
    return err;
}

static int stamp(void *nccl, void *stream, uint32_t which)
{
    struct fuse_comm *c = which < MK_FUSE_STAMPS ? take(nccl, true) : NULL;
    if (!c)
        return MK_ERR_INVALID;
    void *const before = enter(c);
    const int err = stamp_on(c, stream, (int)which);
    leave(c, before);
    give(c);
    return err ? MK_ERR_CUDA : 0; /* a time less: nothing that anybody has to hear of */
}

static int between(void *nccl, uint32_t from, uint32_t to, uint64_t *ns)
{
    struct fuse_comm *c = from < MK_FUSE_STAMPS && to < MK_FUSE_STAMPS ? take(nccl, true) : NULL;
    const struct mk_cuda *cu = mk_cuda_open(NULL);
    int relaxed = MK_CU_CAPTURE_RELAXED, err = 1;
    float ms = 0;
    if (!c)
        return MK_ERR_INVALID;
    void *const before = enter(c);
    cu->capture_mode(&relaxed);
    if (c->stamp[from] && c->stamp[to])
        err = cu->event_elapsed(&ms, c->stamp[from], c->stamp[to]);
    cu->capture_mode(&relaxed);
    leave(c, before);
    give(c);
    *ns = err || !(ms > 0) ? 0 : (uint64_t)((double)ms * 1e6);
    return err == MK_CU_NOT_READY ? MK_ERR_AGAIN : err ? MK_ERR_CUDA : 0;
}

static void share(void *nccl, struct mk_rival_share *out)
{
    struct fuse_comm *c = take(nccl, true);
    memset(out, 0, sizeof(*out));
    if (!c)
        return;
    out->sms = c->mk->gpu->sms;
    out->blocks = mk_gpu_blocks(c->mk);
    out->room = mk_pair_blocks(c->mk);
    out->near = c->mk->topo.nnodes == 1;
    /* Towards other nodes the network is what takes its time. */
    out->narrow = out->near && out->room ? c->mk->gpu->pair_blocks / out->room : 1;
    give(c);
}

/* ---- failures ---- */

static int error_of(void *nccl)
{
    struct fuse_comm *c = take(nccl, true);
    int error = 0;
    if (c) {
        mk_comm_get_async_error(c->mk, &error);
        give(c);
    }
    return error;
}

static void abort_one(void *nccl)
{
    struct fuse_comm *c = take(nccl, true);
    if (c) {
        mk_gpu_abort(c->mk, MK_ERR_ABORTED);
        give(c);
    }
}

static void fail(void *nccl, int error, bool tell)
{
    if (error == MK_ERR_ABORTED && !tell) {
        abort_one(nccl);
        return;
    }
    struct fuse_comm *c = take(nccl, true);
    if (c) {
        mk_comm_fail(c->mk, error, tell, "rank %d: the communicator has failed: %s", c->rank,
                     mk_strerror(error));
        mk_pair_give(c->mk->gpu); /* its Ks leave, and so do those of graphs from now on */
        give(c);
    }
}

static const struct mk_fuse_ops ops = {
    .epilogues = 1u << MK_PAIR_PLAIN_EPILOGUE | 1u << MK_PAIR_BIAS | 1u << MK_PAIR_RELU_BIAS,
    .config = {.min_bytes = 2,
               .max_bytes = MAX_BYTES,
               .functions = 1u << MK_PAIR_ALLREDUCE,
               .dtypes = 1u << MK_BFLOAT16 | 1u << MK_FLOAT16,
               .granule = GRANULE},
    .prepare = prepare,
    .can = can,
    .launch_g = launch_g,
    .launch_k = launch_k,
    .wait = wait_for,
    .record = record,
    .join = join,
    .stamp = stamp,
    .between = between,
    .share = share,
    .checked = mk_pair_checked,
    .error = error_of,
    .fail = fail,
    .abort = abort_one,
    .off = off,
    .tidy = tidy,
    .end = end,
};

const struct mk_fuse_ops *mk_fuse_ops(const char **why)
{
    if (!mk_kernels_built && why)
        *why = "this build has no kernels";
    return mk_kernels_built ? &ops : NULL;
}
