/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* NCCL's profiler plugin: translates the events of every version for mk/profile.h. Without MK_PROFILE its mask asks for no
 * event, so NCCL calls nothing but init and finalize. Never an error: what cannot be profiled is not. Communicators that are
 * profiled may meet (mk/meet.h), from version 4 on, which names them.
 *
 * Interception's witness (mk/pair.h) counts the calls of the API, which NCCL tells of from version 5 on: inside the call, once,
 * captured or not. The event of the collective itself comes at each launch of a graph, from a thread of CUDA, and for a
 * captured call at no other time.
 *
 * Masks: collectives and point-to-point operations always; with the times of the run
 * also KernelCh (from v3 on; with the GPU's own timer from v4 on) or, before, ProxyOp, which exists between nodes only. */
#include "../intercept/setup.h"
#include "abi_profiler.h"
#include "face.h"
#include "mk/err.h"
#include "mk/log.h"
#include "mk/meet.h"
#include "mk/param.h"
#include "mk/profile.h"
#include "mk/shm.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern MK_NCCL_EXPORT const struct mk_nccl_profiler_v6 ncclProfiler_v6;
extern MK_NCCL_EXPORT const struct mk_nccl_profiler_v5 ncclProfiler_v5;
extern MK_NCCL_EXPORT const struct mk_nccl_profiler_v4 ncclProfiler_v4;
extern MK_NCCL_EXPORT const struct mk_nccl_profiler_v3 ncclProfiler_v3;
extern MK_NCCL_EXPORT const struct mk_nccl_profiler_v2 ncclProfiler_v2;
extern MK_NCCL_EXPORT const struct mk_nccl_profiler_v1 ncclProfiler_v1;

enum {
    EVENT_GROUP = 1 << 0,
    EVENT_COLL = 1 << 1,
    EVENT_P2P = 1 << 2,
    EVENT_PROXY_OP = 1 << 3,
    EVENT_KERNEL_CH = 1 << 6,
    EVENT_GROUP_API = 1 << 8,
    EVENT_COLL_API = 1 << 9,
    EVENT_P2P_API = 1 << 10
};
enum { STATE_KERNEL_CH_STOP = 22 };

static char nobody; /* a context that is not NULL, so that finalize comes */
static char parent; /* handle of events that stand above those that are profiled */
static pid_t self;

/* ---- set-up ---- */

static void at_exit(void)
{
    mk_profile_end(mk_profile_of_process());
}

/* The process's profile if MK_PROFILE names a file or it was requested, else NULL. */
static struct mk_profile *open_profile(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    const bool file = mk_env("MK_PROFILE") && *mk_env("MK_PROFILE");
    struct mk_settings s;
    struct mk_profile *p;
    pthread_mutex_lock(&lock);
    p = mk_profile_of_process();
    if (!p && (file || mk_profile_requested() != MK_PROFILE_OFF)) {
        if (mk_settings_load(&s, false) || mk_profile_open(s.profile, mk_time_ns, &p)) {
            MK_WARN("TUNER", "%s: nothing is profiled", mk_last_error());
            p = NULL;
        } else {
            if (!file)
                mk_profile_limit(p, mk_profile_requested());
            self = getpid();
            mk_profile_set_process(p);
            atexit(at_exit); /* should it fail, the file is still written by every finalize */
        }
    }
    pthread_mutex_unlock(&lock);
    return p;
}

static int join(void **ctx, int *mask, struct mk_profile_who *who)
{
    const int part = who->table < 3 ? EVENT_PROXY_OP : EVENT_KERNEL_CH;
    struct mk_profile_comm *c = NULL;
    if (!ctx) { /* no finalize would come, and the mask not be ours any more */
        if (mask)
            __atomic_store_n(mask, 0, __ATOMIC_RELAXED);
        return MK_NCCL_SUCCESS;
    }
    who->mask_light = EVENT_COLL | EVENT_P2P;
    who->mask_full = who->mask_light | part;
    struct mk_profile *p = open_profile();
    if (p)
        c = mk_profile_join(p, who, mask);
    else if (mask) /* one for all communicators: with a profile another one may be in the midst of an event */
        __atomic_store_n(mask, 0, __ATOMIC_RELAXED);
    if (c && who->id) {
        const struct mk_meet_who m = {
            .id = who->id, .rank = who->rank, .nranks = who->nranks, .nnodes = who->nnodes};
        if (who->table >= 5)
            mk_setup_join(c, who->id, who->rank, who->nranks);
        mk_meet_join(c, &m);
        mk_setup_joined(c);
    }
    *ctx = c ? (void *)c : &nobody;
    return MK_NCCL_SUCCESS;
}

static struct mk_profile_comm *comm_of(void *ctx)
{
    return ctx == &nobody ? NULL : ctx;
}

#define INIT_OLD(v)                                                                                          \
    static int init_v##v(void **ctx, int *mask)                                                              \
    {                                                                                                        \
        struct mk_profile_who who = {.rank = -1, .table = v};                                                \
        return join(ctx, mask, &who);                                                                        \
    }
INIT_OLD(1)
INIT_OLD(2)
INIT_OLD(3)
#undef INIT_OLD

static int init_v4(void **ctx, int *mask, const char *comm_name, uint64_t comm_hash, int nnodes, int nranks,
                   int rank, mk_nccl_logger_fn log)
{
    struct mk_profile_who who = {
        .id = comm_hash, .rank = rank, .nranks = nranks, .nnodes = nnodes, .table = 4};
    who.name = comm_name;
    mk_nccl_log(log);
    return join(ctx, mask, &who);
}

#define INIT_NEW(v)                                                                                          \
    static int init_v##v(void **ctx, uint64_t comm_id, int *mask, const char *comm_name, int nnodes,         \
                         int nranks, int rank, mk_nccl_logger_fn log)                                        \
    {                                                                                                        \
        struct mk_profile_who who = {                                                                        \
            .id = comm_id, .rank = rank, .nranks = nranks, .nnodes = nnodes, .table = v};                    \
        who.name = comm_name;                                                                                \
        mk_nccl_log(log);                                                                                    \
        return join(ctx, mask, &who);                                                                        \
    }
INIT_NEW(5)
INIT_NEW(6)
#undef INIT_NEW

static int finalize(void *ctx)
{
    if (comm_of(ctx)) {
        mk_meet_leave(ctx);
        mk_setup_leave(ctx);
        mk_profile_leave(mk_profile_of_process(), ctx);
    }
    return MK_NCCL_SUCCESS;
}

/* ---- events ---- */

static int begin(void *ctx, void **handle, const struct mk_profile_event *e)
{
    *handle = (void *)(uintptr_t)mk_profile_begin(mk_profile_of_process(), ctx, e);
    return MK_NCCL_SUCCESS;
}

static int run(void *of, void **handle, int channel, uint64_t timer)
{
    *handle =
        (void *)(uintptr_t)mk_profile_run(mk_profile_of_process(), (uint64_t)(uintptr_t)of, channel, timer);
    return MK_NCCL_SUCCESS;
}

/* Parents can be of another process (PXN). */
static int run_proxy(pid_t pid, void *of, void **handle)
{
    return pid == self ? run(of, handle, -1, 0) : MK_NCCL_SUCCESS;
}

/* NCCL up to 2.27 sends no event of a collective below a group that was declined. */
static int above(void **handle)
{
    *handle = &parent;
    return MK_NCCL_SUCCESS;
}

/* Those that have an operation number. From 2.29 on there are events for all-to-all, gather and scatter too, where the copy engine
 * makes them. */
static bool numbered(const char *func)
{
    static const char *const funcs[] = {"AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce"};
    for (size_t i = 0; func && i < sizeof(funcs) / sizeof(funcs[0]); i++)
        if (!strcmp(func, funcs[i]))
            return true;
    return false;
}

/* func: NULL for send and receive. */
static int api(void *ctx, void **handle, const char *func)
{
    mk_profile_api(ctx, !func);
    if (numbered(func))
        mk_setup_profiled(ctx); /* interception's witness */
    return above(handle);
}

static int named(void *ctx, void **handle, const char *func, const char *dtype, const char *algo,
                 const char *proto, struct mk_profile_event e)
{
    e.coll = mk_name_find(MK_NAMES_COLL, func);
    e.dtype = mk_name_find(MK_NAMES_DTYPE, dtype);
    e.algo = mk_name_find(MK_NAMES_ALGO, algo);
    e.proto = mk_name_find(MK_NAMES_PROTO, proto);
    return begin(ctx, handle, &e);
}

static int p2p(void *ctx, void **handle, const char *func, const char *dtype, struct mk_profile_event e)
{
    return named(ctx, handle, func, dtype, NULL, NULL, e);
}

/* NULL declines an event: no stop and no states follow. */
static bool declined(void *ctx, void **handle, const void *descr)
{
    if (handle)
        *handle = NULL;
    return !handle || !descr || !comm_of(ctx);
}

/* In version 1 kinds are numbers, later names; before version 4 the number of channels is a limit, and the communicator is
 * named by every event. */
static int start_v1(void *ctx, void **handle, struct mk_nccl_profiler_descr_v1 *d)
{
    struct mk_profile_event e = {.rank = d ? d->rank : -1};
    if (declined(ctx, handle, d))
        return MK_NCCL_SUCCESS;
    if (d->type == EVENT_GROUP)
        return above(handle);
    if (d->type == EVENT_PROXY_OP)
        return run_proxy(d->proxyOp.pid, d->parentObj, handle);
    if (d->type == EVENT_COLL) {
        e.coll = d->coll.func, e.dtype = d->coll.datatype, e.algo = d->coll.algo, e.proto = d->coll.proto;
        e.channels = d->coll.nMaxChannels, e.count = d->coll.count, e.comm_id = d->coll.commHash;
    } else if (d->type == EVENT_P2P) {
        e.coll = d->p2p.func, e.dtype = d->p2p.datatype, e.algo = e.proto = MK_NAME_UNKNOWN;
        e.count = d->p2p.count, e.comm_id = d->p2p.commHash;
    } else {
        return MK_NCCL_SUCCESS;
    }
    return begin(ctx, handle, &e);
}

/* From version 2 on the events are alike; `channels` of a collective and of a point-to-point operation, `id` of the
 * communicator (of that member, or 0), what a channel's run is. */
#define START(v, channels_of, is_exact, p2p_channels, id, other)                                             \
    static int start_v##v(void *ctx, void **handle, struct mk_nccl_profiler_descr_v##v *d)                   \
    {                                                                                                        \
        struct mk_profile_event e = {.rank = d ? d->rank : -1};                                              \
        if (declined(ctx, handle, d))                                                                        \
            return MK_NCCL_SUCCESS;                                                                          \
        if (d->type == EVENT_GROUP)                                                                          \
            return above(handle);                                                                            \
        if (d->type == EVENT_COLL) {                                                                         \
            e.channels = d->coll.channels_of, e.exact = is_exact;                                            \
            e.count = d->coll.count, e.comm_id = id(coll);                                                   \
            return named(ctx, handle, d->coll.func, d->coll.datatype, d->coll.algo, d->coll.proto, e);       \
        }                                                                                                    \
        if (d->type == EVENT_P2P) {                                                                          \
            e.channels = p2p_channels, e.exact = is_exact;                                                   \
            e.count = d->p2p.count, e.comm_id = id(p2p);                                                     \
            return p2p(ctx, handle, d->p2p.func, d->p2p.datatype, e);                                        \
        }                                                                                                    \
        other;                                                                                               \
        return MK_NCCL_SUCCESS;                                                                              \
    }
#define HASH(member) d->member.commHash
#define NO_HASH(member) 0
#define PROXY                                                                                                \
    if (d->type == EVENT_PROXY_OP)                                                                           \
    return run_proxy(d->proxyOp.pid, d->parentObj, handle)
#define KERNEL(timer)                                                                                        \
    if (d->type == EVENT_KERNEL_CH)                                                                          \
    return run(d->parentObj, handle, d->kernelCh.channelId, timer)
#define KERNEL_API                                                                                           \
    KERNEL(d->kernelCh.pTimer);                                                                              \
    if (d->type == EVENT_GROUP_API)                                                                          \
        return above(handle);                                                                                \
    if (d->type == EVENT_COLL_API)                                                                           \
        return api(ctx, handle, d->collApi.func ? d->collApi.func : "");                                     \
    if (d->type == EVENT_P2P_API)                                                                            \
    return api(ctx, handle, NULL)
START(2, nMaxChannels, false, 0, HASH, PROXY)
START(3, nMaxChannels, true, 0, HASH, KERNEL(0))
START(4, nChannels, true, 0, NO_HASH, KERNEL(d->kernelCh.pTimer))
START(5, nChannels, true, d->p2p.nChannels, NO_HASH, KERNEL_API)
START(6, nChannels, true, d->p2p.nChannels, NO_HASH, KERNEL_API)

static int stop(void *handle)
{
    if (handle && handle != &parent)
        mk_profile_stop(mk_profile_of_process(), (uint64_t)(uintptr_t)handle);
    return MK_NCCL_SUCCESS;
}

static int record_v1(void *handle, int state, union mk_nccl_profiler_args *args)
{
    (void)handle, (void)state, (void)args; /* no timers before version 4 */
    return MK_NCCL_SUCCESS;
}

static int record_v4(void *handle, int state, union mk_nccl_profiler_args_v4 *args)
{
    if (handle && handle != &parent && state == STATE_KERNEL_CH_STOP && args)
        mk_profile_timer(mk_profile_of_process(), (uint64_t)(uintptr_t)handle, args->kernelCh.pTimer);
    return MK_NCCL_SUCCESS;
}

/* ---- tables ---- */

#define TABLE(v, record)                                                                                     \
    const struct mk_nccl_profiler_v##v ncclProfiler_v##v = {                                                 \
        .name = MK_NCCL_NAME,                                                                                \
        .init = init_v##v,                                                                                   \
        .startEvent = start_v##v,                                                                            \
        .stopEvent = stop,                                                                                   \
        .recordEventState = record,                                                                          \
        .finalize = finalize,                                                                                \
    }
TABLE(6, record_v4);
TABLE(5, record_v4);
TABLE(4, record_v4);
TABLE(3, record_v1);
TABLE(2, record_v1);
TABLE(1, record_v1);
