/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The adapter's lock, who hears of hooked calls, and the life of communicators. */
#include "../nccl/face.h"
#include "adapt_in.h"
#include "count.h"
#include "setup.h"
#include "mk/err.h"
#include "mk/log.h"
#include <pthread.h>
#include <time.h>

enum { NCCL_IN_PROGRESS = 7 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
struct mk_adapt mk_adapt;

void mk_adapt_lock(void)
{
    pthread_mutex_lock(&lock);
}

bool mk_adapt_lock_soon(void)
{
    const struct timespec nap = {.tv_nsec = 1000000};
    for (int i = 0; pthread_mutex_trylock(&lock); i++) {
        if (i >= 200)
            return false;
        nanosleep(&nap, NULL);
    }
    return true;
}

void mk_adapt_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

uint64_t mk_adapt_thread(void)
{
    static uint64_t last;
    static __thread uint64_t mine;
    if (!mine)
        mine = __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
    return mine;
}

/* ---- calls that are passed on whatever comes before them ---- */

/* Another one like them needs the recogniser only for a line that was not logged yet. An entry: the call's key, and in the low bits what
 * it is counted as. What decides is in the key as it is, never hashed: a collective of another communicator, or a GEMM that could be
 * fused, must not be taken for one of these. The rest only tells lines apart. */
#define PASSED 1024
#define PASSED_AS 0x3ffull
#define PASSED_GEMM 0x200u /* not a collective, a send or a receive */
#define PASSED_IDLE 0x100u /* only while it is idle */
#define PASSED_WHY 0xffu   /* enum mk_pair_reason */
#define KEY_SHORT 0x400ull /* C is of a type that can be fused */
#define KEY_GEMM 0x800ull
#define KEY_HASH_AT 12 /* a GEMM: above; else 8 bits */
#define KEY_COMM_AT 20 /* above: a handle, without the bits that are 0 */
#define COMM_BITS 47
static uint64_t passed[PASSED], passed_as[PASSED_AS + 1]; /* atomic */

struct passed_key {
    uint64_t key; /* 0: none that could be passed on */
    uint32_t at;  /* where its entry is */
};

static bool is_gemm(enum mk_hook_id id)
{
    return id <= MK_HOOK_cublasLtMatmul || id == MK_HOOK_cublasSgemm;
}

static uint64_t passed_hash(uint64_t a, uint64_t b, uint64_t c)
{
    const uint64_t h = (a * UINT64_C(0x9e3779b97f4a7c15) ^ b) * UINT64_C(0xbf58476d1ce4e5b9);
    return (h ^ h >> 32 ^ c) * UINT64_C(0x94d049bb133111eb);
}

static struct passed_key passed_key(const struct mk_hook_event *h)
{
    const uint64_t comm = (uintptr_t)h->comm;
    uint64_t size[3], key, hash;
    if (is_gemm(h->id)) {
        if (!mk_adapt_read_size(h, size))
            return (struct passed_key){0, 0};
        hash = passed_hash(size[0], size[1], size[2]);
        key = hash << KEY_HASH_AT | KEY_GEMM | (size[2] ? KEY_SHORT : 0);
    } else if (h->id >= MK_HOOK_ncclAllReduce && h->id <= MK_HOOK_ncclScatterConfig && comm && !(comm & 7) &&
               !(comm >> COMM_BITS)) {
        hash = passed_hash(comm, (uintptr_t)h->caller, (uint64_t)h->id);
        key = comm >> 3 << KEY_COMM_AT | (hash & 0xff) << KEY_HASH_AT;
    } else {
        return (struct passed_key){0, 0};
    }
    return (struct passed_key){key, (uint32_t)(hash >> 54)};
}

/* Is it known that such a call is passed on? */
static bool passes(const struct mk_hook_event *h)
{
    const struct passed_key k = passed_key(h);
    const uint64_t now = k.key ? __atomic_load_n(&passed[k.at], __ATOMIC_ACQUIRE) : 0;
    if (!now || (now ^ k.key) > PASSED_AS ||
        (now & PASSED_IDLE && !__atomic_load_n(&mk_adapt.idle, __ATOMIC_ACQUIRE)))
        return false;
    __atomic_fetch_add(&passed_as[now & PASSED_AS], 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&mk_adapt.untold, 1, __ATOMIC_RELAXED);
    if (!is_gemm(h->id)) /* NCCL's group has no other members */
        mk_adapt_group_passed();
    return true;
}

void mk_adapt_passes(const struct mk_hook_event *h, const struct mk_pair_out *out)
{
    const bool gemm = out->act == MK_PAIR_DO_ORIGINAL;
    const bool always = out->again || !mk_adapt.ops;
    if ((!gemm && out->act != MK_PAIR_DO_NCCL) || (!always && !(gemm && mk_adapt.idle)))
        return;
    const struct passed_key k = passed_key(h);
    const uint64_t as =
        (gemm ? PASSED_GEMM : 0) | (always ? out->reason : PASSED_IDLE | (uint64_t)MK_PAIR_IDLE);
    if (k.key)
        __atomic_store_n(&passed[k.at], k.key | as, __ATOMIC_RELEASE);
}

/* A communicator has come, changed or gone, and handles come again. Under the lock, as all that is stored. */
static void forget_passed(void)
{
    for (size_t i = 0; i < PASSED; i++)
        __atomic_store_n(&passed[i], 0, __ATOMIC_RELEASE);
}

/* ---- steps ---- */

/* Set-up hears of it by the profiler's name for the communicator; one that was never tied is nobody's business but ours. */
static void ask_off(const struct mk_pair_event *e, const struct mk_pair_out *out)
{
    struct mk_pair_comm_facts facts;
    uint64_t handle = out->comm ? out->comm : e->u.coll.comm;
    if (e->kind == MK_PAIR_EV_PROFILED)
        mk_setup_off(e->u.comm.id, e->u.comm.rank, MK_PAIR_UNTIED);
    else if (mk_pair_comm(mk_adapt.pair, handle, &facts) && facts.id)
        mk_setup_off(facts.id, facts.rank, MK_PAIR_UNSEEN);
}

int mk_adapt_step(struct mk_pair_event *e, struct mk_pair_out *out)
{
    e->thread = mk_adapt_thread();
    const int ret = mk_pair_step(mk_adapt.pair, e, out);
    if ((e->kind >= MK_PAIR_EV_COMM_NEW && e->kind <= MK_PAIR_EV_COMM_END &&
         e->kind != MK_PAIR_EV_PROFILED) ||
        out->asks & (MK_PAIR_ASK_ABORT | MK_PAIR_ASK_OFF))
        forget_passed();
    const bool idle = mk_pair_idle(mk_adapt.pair);
    if (idle != mk_adapt.idle)
        __atomic_store_n(&mk_adapt.idle, idle, __ATOMIC_RELEASE);
    if (ret || !mk_adapt.ops)
        return ret;
    /* Who aborts may be the first of all to shut down in good order: peers hear that it has left. (Who revokes stays: its peers
     * would wait for it, so that is an error, which they are told.) */
    const bool tell = out->asks & MK_PAIR_ASK_TELL && e->kind != MK_PAIR_EV_COMM_ABORT;
    if (out->asks & (MK_PAIR_ASK_ABORT | MK_PAIR_ASK_TELL))
        mk_adapt.ops->fail((void *)(uintptr_t)out->comm, out->error, tell);
    if (tell)
        mk_setup_tell(out->comm, out->error);
    if (out->asks & MK_PAIR_ASK_OFF)
        ask_off(e, out);
    return 0;
}

void mk_adapt_line(const struct mk_pair_event *e, const struct mk_pair_out *out, struct mk_adapt_line *line)
{
    line->any = out->asks & MK_PAIR_ASK_LOG && mk_log_on(MK_LOG_INFO);
    if (!line->any)
        return;
    line->event = *e;
    line->out = *out;
    line->by = out->reason == MK_PAIR_INTRUDER && !e->at.capture && mk_count_on() ? mk_count_last() : NULL;
}

void mk_adapt_say(const struct mk_adapt_line *line)
{
    char site[96], text[320];
    if (!line->any)
        return;
    mk_adapt_where((const void *)(uintptr_t)line->event.u.coll.caller, site, sizeof(site));
    mk_pair_line(&line->event, &line->out, line->event.kind == MK_PAIR_EV_GEMM ? NULL : site, text,
                 sizeof(text));
    MK_INFO("HOOK", "%s", text);
    if (line->by)
        MK_INFO("HOOK", "between the GEMM and the collective of %s: %s", site, line->by);
}

void mk_adapt_replays(void)
{
    const uint64_t graphs = mk_count_graphs();
    struct mk_pair_event e = {.kind = MK_PAIR_EV_REPLAY};
    struct mk_pair_out out;
    if (mk_adapt.graphs == graphs)
        return;
    mk_adapt.graphs = graphs;
    e.at.ctx = e.at.stream = UINT64_MAX; /* on whatever stream */
    mk_adapt_step(&e, &out);
}

int mk_adapt_event(struct mk_pair_event *e)
{
    struct mk_pair_out out;
    mk_adapt_lock();
    const int ret = mk_adapt.pair ? mk_adapt_step(e, &out) : MK_ERR_INVALID;
    const struct mk_fuse_ops *ops = mk_adapt.ops;
    struct mk_pair_comm_facts facts;
    const bool off = !ret && e->kind == MK_PAIR_EV_COMM_OFF && ops && ops->off &&
                     mk_pair_comm(mk_adapt.pair, e->u.comm.handle, &facts);
    mk_adapt_unlock();
    if (off)
        ops->off((void *)(uintptr_t)e->u.comm.handle, facts.id);
    return ret;
}

bool mk_adapt_comm(uint64_t handle, struct mk_pair_comm_facts *out)
{
    mk_adapt_lock();
    const bool known = mk_adapt.pair && mk_pair_comm(mk_adapt.pair, handle, out);
    mk_adapt_unlock();
    return known;
}

/* ---- communicators ---- */

static void end_off(void *comm, enum mk_pair_reason reason)
{
    struct mk_pair_event e = {.kind = MK_PAIR_EV_COMM_OFF};
    struct mk_pair_out out;
    e.u.comm.handle = (uintptr_t)comm;
    e.u.comm.reason = reason;
    mk_adapt_step(&e, &out); /* refused where it is agreed: then it is not off */
}

/* Under the lock. `rank` of `nranks`, as NCCL answers. */
static void announce(void *comm, int rank, int nranks, bool nonblocking)
{
    struct mk_pair_event e = {.kind = MK_PAIR_EV_COMM_NEW};
    struct mk_pair_out out;
    e.u.comm.handle = (uintptr_t)comm;
    e.u.comm.rank = (uint32_t)rank;
    e.u.comm.nranks = (uint32_t)nranks;
    e.u.comm.nonblocking = nonblocking;
    if (mk_adapt_step(&e, &out) || nonblocking)
        return;
    if (!mk_adapt.ops)
        end_off(comm, MK_PAIR_NO_KERNELS);
    else if (nranks == 1)
        end_off(comm, MK_PAIR_ALONE);
}

static bool known(const void *comm)
{
    struct mk_pair_comm_facts facts;
    return mk_pair_comm(mk_adapt.pair, (uintptr_t)comm, &facts);
}

void mk_adapt_meet(void *comm)
{
    int rank = 0, nranks = 1;
    if (known(comm))
        return;
    if (mk_adapt.ops) {
        MK_ASK(ncclCommUserRank, get_rank);
        MK_ASK(ncclCommCount, get_count);
        mk_adapt_unlock();
        const bool asked = get_rank && get_count && !get_rank(comm, &rank) && !get_count(comm, &nranks);
        mk_adapt_lock();
        if (!asked || rank < 0 || nranks <= rank || known(comm))
            return; /* where NCCL did not answer, it stays unknown */
    }
    announce(comm, rank, nranks, false);
}

void mk_adapt_untied(void *comm, bool witness)
{
    end_off(comm, witness ? MK_PAIR_UNTIED : MK_PAIR_NO_WITNESS);
}

/* One that was made: whoever had this handle before is gone. It is announced by its first call. */
static void made(const struct mk_hook_event *h)
{
    void **comms = NULL;
    bool nonblocking;
    const int n = mk_adapt_made(h, &comms, &nonblocking);
    if (!comms || (h->result && h->result != NCCL_IN_PROGRESS))
        return;
    nonblocking |= h->result == NCCL_IN_PROGRESS;
    for (int i = 0; i < n; i++) {
        struct mk_pair_event e = {.kind = MK_PAIR_EV_COMM_END};
        struct mk_pair_out out;
        e.u.comm.handle = (uintptr_t)comms[i];
        if (!comms[i])
            continue;
        mk_adapt_lock();
        const bool before = known(comms[i]);
        if (before)
            mk_adapt_step(&e, &out);
        mk_adapt_time_forget(comms[i]);
        if (nonblocking)
            announce(comms[i], 0, 1, true);
        mk_adapt_unlock();
        if (before && mk_adapt.ops)
            mk_adapt.ops->end(comms[i]);
    }
}

/* Before the real call. */
static void ends(const struct mk_hook_event *h)
{
    struct mk_pair_event e = {.kind = h->id == MK_HOOK_ncclCommRevoke ? MK_PAIR_EV_COMM_ERROR
                                                                      : MK_PAIR_EV_COMM_ABORT};
    struct mk_pair_out out;
    bool over = false;
    e.u.comm.handle = (uintptr_t)h->comm;
    e.u.comm.error = MK_ERR_ABORTED;
    if (h->id != MK_HOOK_ncclCommDestroy && mk_adapt.ops && mk_adapt.ops->abort)
        mk_adapt.ops->abort(h->comm);
    mk_adapt_lock();
    if (h->comm && known(h->comm)) {
        if (h->id != MK_HOOK_ncclCommDestroy)
            mk_adapt_step(&e, &out);
        if (h->id != MK_HOOK_ncclCommRevoke) {
            e.kind = MK_PAIR_EV_COMM_END;
            mk_adapt_step(&e, &out);
            mk_setup_forget((uintptr_t)h->comm);
            mk_adapt_time_forget(h->comm);
            over = mk_adapt.ops != NULL;
        }
    }
    mk_adapt_unlock();
    if (over)
        mk_adapt.ops->end(h->comm);
}

/* Our error of a communicator is NCCL's asynchronous one. */
static void async_error(const struct mk_hook_event *h)
{
    const struct mk_call_ncclCommGetAsyncError *c = h->call;
    struct mk_pair_comm_facts facts;
    if (h->result || !c->error || (*c->error && *c->error != NCCL_IN_PROGRESS))
        return;
    mk_adapt_lock();
    mk_adapt_failed(c->comm);
    const bool failed = mk_pair_comm(mk_adapt.pair, (uintptr_t)c->comm, &facts) && facts.error;
    mk_adapt_unlock();
    if (failed)
        *c->error = mk_nccl_result(facts.error);
}

/* ---- driver ---- */

static void driver_before(const struct mk_hook_event *h)
{
    struct mk_pair_event e = {.kind = MK_PAIR_EV_NONE};
    struct mk_pair_out out;
    mk_adapt_lock();
    mk_adapt.enqueues++;
    if (h->id == MK_HOOK_cuMemcpyAsync || h->id == MK_HOOK_cuMemcpyDtoDAsync_v2) {
        const struct mk_call_cuMemcpyAsync *c = h->call; /* the same arguments */
        e.kind = MK_PAIR_EV_COPY;
        e.u.copy.from = c->src;
        e.u.copy.to = c->dst;
        e.u.copy.bytes = c->bytes;
    } else if (h->id == MK_HOOK_cuGraphLaunch) {
        e.kind = MK_PAIR_EV_REPLAY;
    } else if (h->id != MK_HOOK_cuLaunchKernel && h->id != MK_HOOK_cuLaunchKernelEx) {
        e.kind = MK_PAIR_EV_EDGE;
    }
    if (e.kind && mk_adapt_at(h->stream, &e.at))
        mk_adapt_step(&e, &out);
    mk_adapt_unlock();
}

/* ---- the consumer ---- */

/* Without kernels: for the line of its kind. */
static void pass(struct mk_hook_event *h)
{
    struct mk_pair_gemm gemm;
    struct mk_pair_coll coll;
    bool p2p;
    if (mk_adapt_read_coll(h, &coll, &p2p)) {
        if (coll.comm && coll.count)
            mk_adapt_coll(h, &coll, p2p);
    } else if (mk_adapt_read_gemm(h, false, &gemm)) {
        mk_adapt_gemm(h, &gemm);
    }
}

static bool before(struct mk_hook_event *h)
{
    struct mk_pair_gemm gemm;
    struct mk_pair_coll coll;
    bool p2p;
    switch (h->id) {
    case MK_HOOK_ncclGroupStart:
        return mk_adapt_group_start(h);
    case MK_HOOK_ncclGroupEnd:
    case MK_HOOK_ncclGroupSimulateEnd:
        mk_adapt_group_end(h->id == MK_HOOK_ncclGroupSimulateEnd);
        return false;
    case MK_HOOK_ncclCommDestroy:
    case MK_HOOK_ncclCommAbort:
    case MK_HOOK_ncclCommRevoke:
        ends(h);
        return false;
    default:
        break;
    }
    if (mk_adapt_read_coll(h, &coll, &p2p)) {
        /* Of no elements it is no operation, for NCCL and for the profiler. */
        return coll.comm && coll.count && mk_adapt_coll(h, &coll, p2p);
    }
    return mk_adapt_read_gemm(h, true, &gemm) && mk_adapt_gemm(h, &gemm);
}

static void after(struct mk_hook_event *h)
{
    if (h->keep) {
        if (h->comm)
            mk_adapt_coll_after(h);
        else
            mk_adapt_gemm_after(h);
    }
    if (h->id == MK_HOOK_ncclGroupEnd || h->id == MK_HOOK_ncclGroupSimulateEnd)
        mk_adapt_group_ended(h);
    else if (h->id >= MK_HOOK_ncclCommInitRank && h->id <= MK_HOOK_ncclCommGrow)
        made(h);
    else if (h->id == MK_HOOK_ncclCommGetAsyncError)
        async_error(h);
    else if ((h->id == MK_HOOK_ncclCommDestroy || h->id == MK_HOOK_ncclCommAbort) && !h->result)
        mk_adapt_gone();
}

static bool consume(struct mk_hook_event *h)
{
    if (!h->after)
        mk_adapt_check_saw(h->id);
    if (h->id >= MK_HOOK_cuLaunchKernel && h->id <= MK_HOOK_cuGraphLaunch) {
        if (!h->after && mk_adapt.ops)
            driver_before(h);
        return false;
    }
    if (h->after) {
        if (mk_adapt.ops)
            after(h);
        return false;
    }
    if (passes(h))
        return false;
    if (mk_adapt.ops)
        return before(h);
    pass(h);
    return false;
}

int mk_adapt_start(const struct mk_adapt_options *options)
{
    static bool forks;
    struct mk_pair_options p;
    struct mk_pair *pair;
    memset(&p, 0, sizeof(p));
    p.witness = options->witness;
    p.deterministic = options->deterministic;
    p.proved_only = options->proved_only;
    p.verify = (uint8_t)(options->verify > 1 ? 2 : options->verify > 0);
    p.epilogues = options->ops ? options->ops->epilogues : 0;
    if (mk_pair_create(&p, &pair))
        return mk_fail(MK_ERR_NOMEM, "HOOK", "no memory for the pair recogniser");
    /* A child made while another thread holds the lock would wait for it for ever. */
    if (!forks && pthread_atfork(mk_adapt_lock, mk_adapt_unlock, mk_adapt_unlock)) {
        mk_pair_destroy(pair);
        return mk_fail(MK_ERR_NOMEM, "HOOK", "no memory for a fork handler");
    }
    forks = true;
    mk_adapt_lock();
    struct mk_pair *old = mk_adapt.pair;
    mk_adapt.pair = pair;
    mk_adapt.ops = options->ops;
    mk_adapt.counted = options->counted;
    mk_adapt.enqueues = 0;
    mk_adapt.verify = p.verify;
    mk_adapt_check_forget();
    mk_adapt.idle = mk_pair_idle(pair);
    forget_passed();
    memset(passed_as, 0, sizeof(passed_as));
    mk_adapt_at_forget();
    mk_adapt_time_forget(NULL);
    mk_adapt_unlock();
    mk_pair_destroy(old);
    mk_setup_start(options->ops, options->deterministic, options->graph_only);
    mk_hook_set(consume);
    return 0;
}

bool mk_adapt_count(struct mk_pair_counts *out)
{
    if (!mk_adapt_lock_soon())
        return false;
    const bool any = mk_adapt.pair != NULL;
    if (any) {
        mk_pair_count(mk_adapt.pair, out);
        for (size_t as = 0; as <= PASSED_AS; as++) {
            const uint64_t n = __atomic_load_n(&passed_as[as], __ATOMIC_RELAXED);
            out->act[as & PASSED_GEMM ? MK_PAIR_DO_ORIGINAL : MK_PAIR_DO_NCCL] += n;
            if ((as & PASSED_WHY) < MK_PAIR_REASONS)
                out->reason[as & PASSED_WHY] += n;
        }
    }
    mk_adapt_unlock();
    return any;
}

void mk_adapt_report(void)
{
    struct mk_pair_counts c;
    mk_adapt_check_report();
    if (!mk_log_on(MK_LOG_INFO) || !mk_adapt_count(&c))
        return;
    for (uint32_t act = 1; act < MK_PAIR_ACTS; act++)
        if (c.act[act])
            MK_INFO("HOOK", "fuse total %s: %llu", mk_pair_act_name(act), (unsigned long long)c.act[act]);
    for (uint32_t r = 0; r < MK_PAIR_REASONS; r++)
        if (c.reason[r])
            MK_INFO("HOOK", "fuse total reason=%s: %llu", mk_pair_reason_name(r),
                    (unsigned long long)c.reason[r]);
}
