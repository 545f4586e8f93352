/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* GEMM and collective calls: decided, and carried out, under the lock; original calls are made without it, by the hook
 * that called us. */
#include "../nccl/face.h"
#include "adapt_in.h"
#include "setup.h"
#include "mk/err.h"
#include "mk/log.h"
#include "mk/shm.h"
#include <stdlib.h>
#include <time.h>

/* mk_hook_event.keep */
enum {
    KEEP_STEPPED = 1,
    KEEP_P2P = 2,
    KEEP_CAPTURED = 4,
    KEEP_RECORD = 8,
    KEEP_RECORDS = 32,
    KEEP_TIMED = 256
};

/* Of this thread, from the outermost group start to after its end. */
struct held { /* a K that waits for the group's end */
    void *stream;
    struct mk_pair_coll coll;
};
struct due { /* what is to be done on a stream once NCCL's part of the group is enqueued */
    void *comm, *stream;
    uint8_t record;
    bool join;
};
struct group {
    uint32_t depth;
    struct held *held;
    struct due *due;
    uint32_t nheld, held_room, ndue, due_room;
    int error; /* MK_ERR_*: of a K of this group */
    bool gone; /* a communicator is destroyed at its end */
    bool gap;  /* members were passed on since the last step */
};
static __thread struct group group;

void mk_adapt_group_passed(void)
{
    group.gap = group.depth != 0;
}

/* Before a step that a group matters for. Under the lock. */
static void tell_gap(void)
{
    struct mk_pair_event e = {.kind = MK_PAIR_EV_GROUP_GAP};
    struct mk_pair_out out;
    if (!group.gap)
        return;
    group.gap = false;
    mk_adapt_step(&e, &out);
}

/* NCCL has freed memory, and so has waited for the device; before an abort its kernels may wait for ever. */
void mk_adapt_gone(void)
{
    if (group.depth)
        group.gone = true;
    else if (mk_adapt.ops && mk_adapt.ops->tidy)
        mk_adapt.ops->tidy();
}

static bool grow(void **array, uint32_t *room, uint32_t n, size_t bytes)
{
    if (n < *room)
        return true;
    void *more = realloc(*array, (*room ? 2 * *room : 8) * bytes);
    if (!more)
        return false;
    *array = more;
    *room = *room ? 2 * *room : 8;
    return true;
}

/* false: no memory. */
static bool later(void *comm, void *stream, uint8_t record, bool join)
{
    for (uint32_t i = 0; i < group.ndue; i++)
        if (group.due[i].comm == comm && group.due[i].stream == stream) {
            group.due[i].record = record;
            group.due[i].join |= join;
            return true;
        }
    if (!grow((void **)&group.due, &group.due_room, group.ndue, sizeof(*group.due)))
        return false;
    group.due[group.ndue++] = (struct due){comm, stream, record, join};
    return true;
}

/* The communicator cannot go on: what must be kept in order could not be. */
static void broken(void *comm, int error)
{
    struct mk_pair_event e = {.kind = MK_PAIR_EV_COMM_ERROR};
    struct mk_pair_out out;
    e.u.comm.handle = (uintptr_t)comm;
    e.u.comm.error = error;
    mk_adapt_step(&e, &out);
}

void mk_adapt_failed(void *comm)
{
    struct mk_pair_comm_facts facts;
    const int error = mk_adapt.ops && mk_adapt.ops->error ? mk_adapt.ops->error(comm) : 0;
    if (error && mk_pair_comm(mk_adapt.pair, (uintptr_t)comm, &facts) && !facts.error)
        broken(comm, error);
}

static void record(void *comm, void *stream, uint8_t how)
{
    if (how && mk_adapt.ops) {
        const int error = mk_adapt.ops->record(comm, stream, (enum mk_pair_record)how);
        if (error)
            broken(comm, error);
    }
}

/* ---- GEMM ---- */

static void gemm_done(void *stream, int error)
{
    struct mk_pair_event e = {.kind = MK_PAIR_EV_GEMM_DONE};
    struct mk_pair_out out;
    e.u.done.error = error;
    if (mk_adapt.ops && mk_adapt_at(stream, &e.at) && e.at.ndeps == 1)
        e.u.done.node = e.at.deps[0]; /* capturing: what was put there last */
    mk_adapt_step(&e, &out);
}

/* true: G runs. */
static bool launch_g(const struct mk_pair_event *e, const struct mk_pair_out *out, void *stream)
{
    const struct mk_fuse_g g = {.gemm = &e->u.gemm,
                                .stream = stream,
                                .descriptor = out->descriptor,
                                .generation = out->generation,
                                .room = out->room && !mk_adapt.verify,
                                .captured = e->at.capture != 0,
                                .check = mk_adapt.verify};
    int ret = 0;
    if (out->comm && out->order)
        ret = mk_adapt.ops->wait((void *)(uintptr_t)out->comm, stream, (enum mk_pair_order)out->order,
                                 out->node);
    return !ret && !mk_adapt.ops->launch_g(&g);
}

bool mk_adapt_gemm(struct mk_hook_event *h, const struct mk_pair_gemm *gemm)
{
    struct mk_pair_event e = {.kind = MK_PAIR_EV_GEMM};
    struct mk_pair_out out;
    struct mk_adapt_line line;
    bool answered = false;
    void *stream = mk_adapt.ops ? mk_hook_stream(h) : NULL;
    e.u.gemm = *gemm;
    mk_adapt_lock();
    if (!mk_adapt.ops)
        e.u.gemm.flags |= MK_PAIR_NO_G;
    else if (!mk_adapt_at(stream, &e.at) || !mk_adapt.ops->can(gemm))
        e.u.gemm.flags |= MK_PAIR_CANNOT;
    if (mk_adapt.ops)
        mk_adapt_replays();
    const int ret = mk_adapt_step(&e, &out);
    line.any = false;
    if (!ret) {
        mk_adapt_passes(h, &out);
        mk_adapt_line(&e, &out, &line);
        if (mk_adapt.ops)
            mk_adapt_time_gemm(&out, gemm, stream);
        if (out.act == MK_PAIR_DO_G) {
            answered = launch_g(&e, &out, stream);
            gemm_done(stream, answered ? 0 : MK_ERR_CUDA);
            if (mk_adapt.verify)
                mk_adapt_check_gemm();
        }
        /* How it ended matters where a site may be learned from it. */
        if (!answered && (out.act == MK_PAIR_DO_G || out.reason == MK_PAIR_UNKNOWN_SITE))
            h->keep = KEEP_STEPPED;
    }
    mk_adapt_unlock();
    mk_adapt_say(&line);
    if (answered)
        h->result = 0; /* CUBLAS_STATUS_SUCCESS */
    return answered;
}

void mk_adapt_gemm_after(struct mk_hook_event *h)
{
    void *stream = mk_hook_stream(h);
    mk_adapt_lock();
    gemm_done(stream, h->result);
    mk_adapt_unlock();
}

/* ---- K ---- */

/* Only a capture's nodes are looked at once more. */
static void coll_done(void *comm, void *stream, bool captured, uint8_t act, int error,
                      struct mk_pair_out *out)
{
    struct mk_pair_event e = {.kind = MK_PAIR_EV_COLL_DONE};
    e.u.done.comm = (uintptr_t)comm;
    e.u.done.act = act;
    e.u.done.error = error;
    if (captured && mk_adapt.ops && mk_adapt_at(stream, &e.at) && e.at.ndeps == 1)
        e.u.done.node = e.at.deps[0];
    mk_adapt_step(&e, out);
}

/* K as it was decided; 0 or the communicator's error. */
static int launch_k(const struct mk_pair_event *e, const struct mk_pair_coll *c,
                    const struct mk_pair_out *out, void *stream)
{
    void *comm = (void *)(uintptr_t)c->comm;
    struct mk_fuse_k k = {.comm = comm, .stream = stream, .count = c->count, .number = out->number};
    struct mk_pair_out done;
    k.send = (const void *)(uintptr_t)c->send;
    k.recv = (void *)(uintptr_t)c->recv;
    k.dtype = c->dtype;
    /* MK_VERIFY: K leans on no proof. */
    k.overlap = out->act == MK_PAIR_DO_OVERLAP && !mk_adapt.verify;
    k.beside = out->fork;
    k.reduce = out->reduce && !mk_adapt.verify;
    k.check = out->check;
    k.captured = e->at.capture != 0;
    k.descriptor = out->descriptor;
    k.generation = out->generation;
    int ret = out->order ? mk_adapt.ops->wait(comm, stream, (enum mk_pair_order)out->order, out->node) : 0;
    if (!ret)
        ret = mk_adapt.ops->launch_k(&k);
    coll_done(comm, stream, k.captured, out->act, ret, &done);
    if (ret)
        return done.error ? done.error : ret;
    if (!out->fork)
        record(comm, stream, out->record);
    else if (!later(comm, stream, out->record, true))
        broken(comm, ret = MK_ERR_NOMEM);
    return ret;
}

/* ---- collectives ---- */

/* NCCL's own call follows. */
static void to_nccl(struct mk_hook_event *h, const struct mk_pair_event *e, const struct mk_pair_out *out)
{
    if (!out->record)
        return; /* the communicator is off, or not known: nobody asks how it went */
    if (out->order) {
        const int error = mk_adapt.ops->wait(h->comm, h->stream, (enum mk_pair_order)out->order, out->node);
        if (error)
            broken(h->comm, error);
    }
    h->keep = KEEP_STEPPED | (e->kind == MK_PAIR_EV_P2P ? KEEP_P2P : 0) |
              (e->at.capture ? KEEP_CAPTURED : 0) | (uint64_t)out->record * KEEP_RECORD;
}

static bool hold(struct mk_hook_event *h, const struct mk_pair_coll *c)
{
    if (!grow((void **)&group.held, &group.held_room, group.nheld, sizeof(*group.held)))
        return false;
    group.held[group.nheld++] = (struct held){h->stream, *c};
    return true;
}

/* What NCCL's function is to return; -1: it is to be called. */
static int carry_out(struct mk_hook_event *h, const struct mk_pair_event *e, const struct mk_pair_out *out)
{
    switch (out->act) {
    case MK_PAIR_DO_PLAIN:
    case MK_PAIR_DO_OVERLAP:
        return mk_nccl_result(launch_k(e, &e->u.coll, out, h->stream));
    case MK_PAIR_DO_HOLD:
        if (hold(h, &e->u.coll))
            return 0;
        broken(h->comm, MK_ERR_NOMEM);
        return mk_nccl_result(MK_ERR_NOMEM);
    case MK_PAIR_DO_FAIL:
        return mk_nccl_result(out->error);
    default:
        to_nccl(h, e, out);
        return -1;
    }
}

/* Without the lock. 0: what K needs on this rank is there. */
static int prepared(const struct mk_hook_event *h, const struct mk_pair_comm_facts *facts)
{
    struct mk_pair_comm_facts now;
    if (!facts->ready || !mk_adapt.ops->prepare)
        return 0;
    const int ret =
        mk_adapt.ops->prepare(h->comm, h->stream, facts->id, (int)facts->rank, (int)facts->nranks);
    if (mk_adapt.ops->off && mk_adapt_comm((uintptr_t)h->comm, &now) && now.off) {
        mk_adapt.ops->off(h->comm,
                          facts->id); /* which came meanwhile, and could not know of what was begun here */
        return MK_ERR_UNSUPPORTED;
    }
    if (!ret)
        mk_adapt_time_first(h->comm, facts);
    else if (ret != MK_ERR_AGAIN)
        mk_setup_off(facts->id, facts->rank, ret == MK_ERR_UNSUPPORTED ? MK_PAIR_NO_KERNELS : MK_PAIR_MEMORY);
    return ret;
}

/* With the lock, which is given up while the ranks agree. */
static void agree_before(const struct mk_hook_event *h)
{
    void *comm = h->comm;
    struct mk_pair_comm_facts facts;
    const struct timespec nap = {.tv_nsec = 1000000};
    if (!mk_pair_comm(mk_adapt.pair, (uintptr_t)comm, &facts) || !facts.id || facts.off || facts.error)
        return;
    mk_adapt_unlock();
    if (mk_setup_waits(&facts)) {
        const uint64_t since = mk_time_ns();
        int ret;
        while ((ret = prepared(h, &facts)) == MK_ERR_AGAIN && mk_setup_in_time(since))
            nanosleep(&nap, NULL);
        facts.ready &= !ret;
    }
    const int error = mk_setup_begin((uintptr_t)comm, &facts);
    mk_adapt_lock();
    if (error)
        broken(comm, error);
}

/* So many collectives without a tie: grouped ones all, or without our profiler. */
#define UNTIED_CALLS 1024

/* After one that NCCL ran, without the lock: a communicator that is neither agreed nor off. */
static void agree_after(const struct mk_hook_event *h, struct mk_pair_comm_facts *facts)
{
    void *comm = h->comm;
    if (facts->id) {
        facts->ready &= !prepared(h, facts);
        mk_setup_after((uintptr_t)comm, facts);
    } else if (facts->number >= UNTIED_CALLS) {
        mk_adapt_lock();
        mk_adapt_untied(comm, mk_setup_seen());
        mk_adapt_unlock();
    }
}

bool mk_adapt_coll(struct mk_hook_event *h, const struct mk_pair_coll *coll, bool p2p)
{
    struct mk_pair_event e = {.kind = p2p ? MK_PAIR_EV_P2P : MK_PAIR_EV_COLL};
    struct mk_pair_out out;
    struct mk_adapt_line line;
    struct mk_adapt_news news = {.text = ""};
    struct mk_adapt_refuted refuted;
    bool any_refuted = false;
    int answer = -1;
    uint32_t timed = 0;
    e.u.coll = *coll;
    mk_adapt_lock();
    mk_adapt_meet(h->comm);
    if (mk_adapt.ops && !p2p) {
        mk_adapt_time_read(h->comm, &news);
        agree_before(h);
    }
    if (mk_adapt.ops) {
        mk_adapt_failed(h->comm);
        mk_adapt_replays();
        mk_adapt_at(h->stream, &e.at); /* of no known stream: K is plain */
        e.u.coll.late = mk_adapt.ops->late && mk_adapt.ops->late(h->comm);
    }
    line.any = false;
    if (mk_adapt.verify)
        any_refuted = mk_adapt_check_look(&refuted);
    tell_gap();
    if (!mk_adapt_step(&e, &out)) {
        mk_adapt_passes(h, &out);
        mk_adapt_line(&e, &out, &line);
        mk_adapt_check_coll(&e, &out, h->id);
        if (mk_adapt.ops && e.at.capture)
            mk_adapt_time_captured(&e, &out);
        else if (mk_adapt.ops && group.depth)
            mk_adapt_time_grouped(h->comm);
        else if (mk_adapt.ops)
            timed = mk_adapt_time_begin(&e, &out, h->stream);
        answer = carry_out(h, &e, &out);
        if (timed && answer >= 0)
            mk_adapt_time_end(h->comm, h->stream, timed, !answer);
        else
            h->keep |= (uint64_t)timed * KEEP_TIMED;
    }
    mk_adapt_unlock();
    mk_adapt_say(&line);
    if (news.text[0])
        MK_INFO("HOOK", "%s", news.text);
    if (any_refuted)
        mk_adapt_check_say(&refuted);
    if (answer >= 0)
        h->result = answer;
    return answer >= 0;
}

void mk_adapt_coll_after(struct mk_hook_event *h)
{
    struct mk_pair_out out;
    struct mk_pair_comm_facts facts;
    const uint8_t how = (uint8_t)(h->keep % KEEP_RECORDS / KEEP_RECORD);
    mk_adapt_lock();
    if (h->keep >= KEEP_TIMED)
        mk_adapt_time_end(h->comm, h->stream, (uint32_t)(h->keep / KEEP_TIMED), !h->result);
    /* A send that was refused is none of those that are counted. */
    coll_done(h->comm, h->stream, h->keep & KEEP_CAPTURED, MK_PAIR_DO_NCCL,
              h->keep & KEEP_P2P ? 0 : h->result, &out);
    if (!h->result && !group.depth)
        record(h->comm, h->stream, how);
    else if (!h->result && how && mk_adapt.ops && !later(h->comm, h->stream, how, false))
        broken(h->comm, MK_ERR_NOMEM);
    const bool agree = !(h->keep & KEEP_P2P) && mk_pair_comm(mk_adapt.pair, (uintptr_t)h->comm, &facts) &&
                       !facts.agreed && !facts.off && !facts.error;
    mk_adapt_unlock();
    if (agree)
        agree_after(h, &facts);
}

/* ---- groups ---- */

bool mk_adapt_group_start(struct mk_hook_event *h)
{
    struct mk_pair_event e = {.kind = MK_PAIR_EV_GROUP_START};
    struct mk_pair_out out;
    mk_adapt_lock();
    const int ret = mk_adapt_step(&e, &out);
    mk_adapt_unlock();
    if (!ret) {
        group.depth++;
        return false;
    }
    /* Its members would be taken for calls outside of a group. */
    h->result = mk_nccl_result(ret);
    return true;
}

/* One held collective; simulated: it is not to run. */
static void take(const struct held *held, bool simulated)
{
    struct mk_pair_event e = {.kind = MK_PAIR_EV_TAKE};
    struct mk_pair_out out;
    struct mk_adapt_line line;
    int ret;
    mk_adapt_lock();
    mk_adapt_replays();
    mk_adapt_at(held->stream, &e.at);
    line.any = false;
    if ((ret = mk_adapt_step(&e, &out)) == 0) {
        e.u.coll = held->coll;
        e.kind = MK_PAIR_EV_COLL;
        mk_adapt_line(&e, &out, &line);
        mk_adapt_check_coll(&e, &out, MK_HOOK_ncclGroupEnd);
        if (out.act == MK_PAIR_DO_FAIL)
            ret = out.error;
        else if (!simulated)
            ret = launch_k(&e, &held->coll, &out, held->stream);
    }
    mk_adapt_unlock();
    mk_adapt_say(&line);
    if (ret && !group.error)
        group.error = ret;
}

/* Before the real end: K of the members that were held, beside what NCCL will enqueue. */
void mk_adapt_group_end(bool simulated)
{
    struct mk_pair_event e = {.kind = MK_PAIR_EV_GROUP_END};
    struct mk_pair_out out;
    if (!group.depth)
        return; /* NCCL will say what it thinks of it */
    mk_adapt_lock();
    tell_gap();
    mk_adapt_step(&e, &out);
    mk_adapt_unlock();
    if (--group.depth)
        return;
    for (uint32_t i = 0; i < group.nheld; i++)
        take(&group.held[i], simulated);
    group.nheld = 0;
}

/* After it. */
void mk_adapt_group_ended(struct mk_hook_event *h)
{
    if (group.depth)
        return;
    mk_adapt_lock();
    for (uint32_t i = 0; i < group.ndue && mk_adapt.ops; i++) {
        const struct due *d = &group.due[i];
        const int error = d->join ? mk_adapt.ops->join(d->comm, d->stream) : 0;
        if (error)
            broken(d->comm, error);
        else
            record(d->comm, d->stream, d->record);
    }
    mk_adapt_unlock();
    const bool gone = group.gone && !h->result && h->id == MK_HOOK_ncclGroupEnd;
    if (!h->result && group.error)
        h->result = mk_nccl_result(group.error);
    free(group.held);
    free(group.due);
    memset(&group, 0, sizeof(group));
    if (gone)
        mk_adapt_gone();
}
