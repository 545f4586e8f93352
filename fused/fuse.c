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
    enum state state; /* with error, over, mk: under `lock` */
    int error;
    bool over; /* NCCL's communicator has gone while this one was made */
    mk_comm_t mk;
    void *order;                    /* event: after its last operation; graphs record it too */
    void *inside;                   /* event: the same within a capture */
    void *beside, *forked, *joined; /* stream, events */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* after the recogniser's; waits for nobody */
static struct fuse_comm *list;
static int spare; /* blocks of K: the same for all communicators of a process; 0: none is ready */

static struct fuse_comm *find(const void *nccl)
{
    pthread_mutex_lock(&lock);
    struct fuse_comm *c = list;
    while (c && c->nccl != nccl)
        c = c->next;
    pthread_mutex_unlock(&lock);
    return c;
}
static struct fuse_comm *find_ready(const void *nccl)
{
    struct fuse_comm *c = find(nccl);
    return c && __atomic_load_n(&c->state, __ATOMIC_ACQUIRE) == READY ? c : NULL;
}

/* ---- making ---- */

static void drop(struct fuse_comm *c)
{
    const struct mk_cuda *cu = mk_cuda_open(NULL);
    void *before = NULL;
    int relaxed = MK_CU_CAPTURE_RELAXED;
    cu->capture_mode(&relaxed); /* another thread may be capturing */
    mk_comm_destroy(c->mk);
    cu->ctx_current(&before);
    if (!cu->ctx_set(c->ctx)) {
        void *const events[] = {c->order, c->inside, c->forked, c->joined};
        for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++)
            if (events[i])
                cu->event_destroy(events[i]);
        if (c->beside)
            cu->stream_destroy(c->beside);
    }
    cu->ctx_set(before);
    cu->capture_mode(&relaxed);
    free(c);
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
    int ret = cu->ctx_set(c->ctx) ? MK_ERR_CUDA : 0;
    cu->capture_mode(&relaxed); /* what other threads capture is not disturbed by what is allocated here */
    if (!ret)
        ret = mk_comm_init_name(&mk, name_of(c->id), c->nranks, c->rank, goes_on, c);
    if (!ret && (!mk_pair_blocks(mk) || !mk_gpu_hopper(mk)))
        ret = mk_fail(MK_ERR_UNSUPPORTED, "HOOK", "the kernels for cuBLAS's and NCCL's calls need Hopper");
    if (ret) {
        mk_comm_destroy(mk);
        mk = NULL;
    }
    pthread_mutex_lock(&lock);
    const bool over = c->over;
    c->mk = mk;
    c->error = ret;
    if (!ret)
        spare = mk_pair_blocks(mk);
    __atomic_store_n(&c->state, ret ? FAILED : READY, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
    if (over)
        drop(c);
    return NULL;
}

/* On the current context. */
static int begin(void *nccl, uint64_t id, int rank, int nranks)
{
    const struct mk_cuda *cu = mk_cuda_open(NULL);
    struct fuse_comm *c = calloc(1, sizeof(*c));
    int relaxed = MK_CU_CAPTURE_RELAXED;
    pthread_t thread;
    if (!c)
        return mk_fail(MK_ERR_NOMEM, "HOOK", "no memory for a communicator");
    c->nccl = nccl;
    c->id = id;
    c->rank = rank;
    c->nranks = nranks;
    int err = cu->ctx_current(&c->ctx);
    void **const events[] = {&c->order, &c->inside, &c->forked, &c->joined};
    cu->capture_mode(&relaxed);
    for (size_t i = 0; i < sizeof(events) / sizeof(events[0]) && !err; i++)
        err = cu->event_create(events[i], MK_CU_EVENT_NO_TIMING);
    if (!err)
        err = cu->stream_create(&c->beside, MK_CU_STREAM_NON_BLOCKING);
    cu->capture_mode(&relaxed);
    if (err || pthread_create(&thread, NULL, make, c)) {
        drop(c);
        return err ? mk_cuda_fail(err, "events of a communicator")
                   : mk_fail(MK_ERR_SYSTEM, "HOOK", "no thread to make a communicator");
    }
    pthread_detach(thread);
    pthread_mutex_lock(&lock);
    c->next = list;
    list = c;
    pthread_mutex_unlock(&lock);
    return MK_ERR_AGAIN;
}

static int prepare(void *nccl, uint64_t id, int rank, int nranks)
{
    struct fuse_comm *c = find(nccl);
    if (!c)
        return mk_gpu_wanted() ? begin(nccl, id, rank, nranks) : MK_ERR_UNSUPPORTED;
    switch (__atomic_load_n(&c->state, __ATOMIC_ACQUIRE)) {
    case READY:
        return 0;
    case FAILED:
        return c->error;
    default:
        return MK_ERR_AGAIN;
    }
}

static void end(void *nccl)
{
    pthread_mutex_lock(&lock);
    struct fuse_comm **at = &list, *c;
    while (*at && (*at)->nccl != nccl)
        at = &(*at)->next;
    if ((c = *at)) {
        *at = c->next;
        c->over = true;
    }
    const bool made = c && c->state != MAKING;
    pthread_mutex_unlock(&lock);
    if (made)
        drop(c); /* else its thread does */
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
    return __atomic_load_n(&spare, __ATOMIC_RELAXED) && problem_of(g, &p) && mk_pair_gemm_can(&p);
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
    const int ret = mk_pair_gemm(&p, g->room ? spare : 0, words, g->stream, &last.tiles);
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

static int launch_k(const struct mk_fuse_k *k)
{
    const struct mk_cuda *cu = mk_cuda_open(NULL);
    struct fuse_comm *c = find_ready(k->comm);
    const size_t bytes = (size_t)k->count * 2;
    const struct mk_fuse_last *last = k->overlap ? mk_fuse_last(k->descriptor, k->generation) : NULL;
    void *stream = k->beside && c ? c->beside : k->stream;
    bool overlapped;
    int err = 0;
    if (!c)
        return mk_fail(MK_ERR_INTERNAL, "HOOK", "a collective of a communicator that has no kernels");
    if (k->beside)
        err = after(cu, c->forked, k->stream, stream);
    if (!err && k->reduce && last && last->node)
        err = cu->capture_depend(stream, (void **)&last->node, 1, MK_CU_DEPENDENCIES_SET);
    if (!err && k->send != k->recv) { /* K works in place, so what is sent must be whole first */
        err = cu->copy((mk_cu_ptr)(uintptr_t)k->recv, (mk_cu_ptr)(uintptr_t)k->send, bytes, stream);
        last = NULL;
    }
    if (err)
        return mk_cuda_fail(err, "before a collective");
    return mk_pair_allreduce(c->mk, k->recv, k->count, (mk_dtype_t)k->dtype, last ? &last->tiles : NULL,
                             stream, &overlapped);
}

static int wait_for(void *nccl, void *stream, enum mk_pair_order how, uint64_t node)
{
    const struct mk_cuda *cu = mk_cuda_open(NULL);
    const struct fuse_comm *c = find(nccl);
    int err = 0;
    (void)node; /* `inside` has all of them */
    if (!c)
        return 0; /* there is no K yet, and NCCL keeps its own order */
    if (how == MK_PAIR_WAIT_EVENT)
        err = cu->stream_wait_event(stream, c->order, 0);
    else if (how == MK_PAIR_WAIT_NODE)
        err = cu->stream_wait_event(stream, c->inside, 0);
    else if (how == MK_PAIR_WAIT_EXTERNAL)
        err = cu->stream_wait_event(stream, c->order, MK_CU_EVENT_EXTERNAL);
    return err ? mk_cuda_fail(err, "the order of a communicator's operations") : 0;
}

static int record(void *nccl, void *stream, enum mk_pair_record how)
{
    const struct mk_cuda *cu = mk_cuda_open(NULL);
    struct fuse_comm *c = find(nccl);
    int err;
    if (!c)
        return 0;
    if (how == MK_PAIR_RECORD_EXTERNAL) {
        /* `inside` first: a later G or K of this capture depends on the operation alone. */
        err = cu->event_record(c->inside, stream);
        if (!err)
            err = cu->event_record_flags(c->order, stream, MK_CU_EVENT_EXTERNAL);
    } else {
        err = cu->event_record(c->order, stream);
    }
    return err ? mk_cuda_fail(err, "the order of a communicator's operations") : 0;
}

static int join(void *nccl, void *stream)
{
    struct fuse_comm *c = find(nccl);
    const int err = c ? after(mk_cuda_open(NULL), c->joined, c->beside, stream) : 0;
    return err ? mk_cuda_fail(err, "the end of a group") : 0;
}

static void fail(void *nccl, int error, bool tell)
{
    struct fuse_comm *c = find_ready(nccl);
    if (c)
        mk_comm_fail(c->mk, error, tell, "rank %d: the communicator has failed: %s", c->rank,
                     mk_strerror(error));
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
    .fail = fail,
    .end = end,
};

const struct mk_fuse_ops *mk_fuse_ops(const char **why)
{
    if (!mk_kernels_built && why)
        *why = "this build has no kernels";
    return mk_kernels_built ? &ops : NULL;
}
