/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Communicators of the pair recogniser: what their ranks share, identity, witness, order, errors. */
#include "choose.h"
#include "pair.h"
#include <string.h>

/* ---- what all ranks share ---- */

uint64_t mk_pair_word(const struct mk_pair_agreed *a, uint64_t number)
{
    return number >= a->later_at                                          ? a->later
           : number >= a->number && !(MUTANT(201) && number == a->number) ? a->next
                                                                          : a->word;
}

static uint32_t size_of(uint8_t dtype)
{
    return dtype == MK_FLOAT32 ? 4 : dtype == MK_BFLOAT16 || dtype == MK_FLOAT16 ? 2 : 0;
}

uint32_t mk_pair_class(uint64_t bytes)
{
    const int c = bytes ? 63 - __builtin_clzll(bytes) - 6 : 0;
    return c < 0 ? 0 : c < MK_PAIR_CLASSES ? (uint32_t)c : MK_PAIR_CLASSES - 1;
}

enum mk_pair_reason mk_pair_shared(const struct mk_pair_agreed *a, uint64_t number,
                                   const struct mk_pair_call *call)
{
    const uint32_t size = size_of(call->dtype);
    if (a->state == MK_PAIR_ENDED_OFF)
        return (enum mk_pair_reason)a->reason;
    if (a->state != MK_PAIR_AGREED || number < a->first)
        return MK_PAIR_NOT_READY;
    const uint64_t word = mk_pair_word(a, number);
    if (!(word & MK_PAIR_FUSED))
        return MK_PAIR_SWITCHED_OFF;
    if (!(a->config.functions >> call->function & 1))
        return MK_PAIR_FUNCTION;
    if (!call->sum && !MUTANT(202))
        return MK_PAIR_OPERATOR;
    if (!size || !(a->config.dtypes >> call->dtype & 1))
        return MK_PAIR_DTYPE;
    if (!call->count || call->count > a->config.max_bytes / size ||
        call->count * size < a->config.min_bytes ||
        (a->config.granule && call->count & (a->config.granule - 1) && !MUTANT(214)))
        return MK_PAIR_COUNT;
    if (a->config.graph_only && !call->captured && !MUTANT(203))
        return MK_PAIR_GRAPH_ONLY;
    const uint32_t class = mk_pair_class(call->count * size);
    struct mk_choice way = {.way = (word & MK_PAIR_SLOW_CLASS(call->captured, class)) != 0};
    if (a->config.timed && !call->captured)
        mk_choose_way(a->calls[class], way.way, &way);
    return !way.way ? MK_PAIR_OK : way.in_round ? MK_PAIR_TIMED : MK_PAIR_SLOWER;
}

/* Does it count in its class? */
static bool counts(const struct mk_pair_agreed *a, const struct mk_pair_call *call,
                   enum mk_pair_reason reason)
{
    return a->config.timed && !call->captured &&
           (!reason || reason == MK_PAIR_TIMED || reason == MK_PAIR_SLOWER);
}

bool mk_pair_in_round(const struct mk_pair_agreed *a, const struct mk_pair_call *call,
                      enum mk_pair_reason reason)
{
    struct mk_choice way;
    if (!counts(a, call, reason))
        return false;
    mk_choose_way(a->calls[mk_pair_class(call->count * size_of(call->dtype))], 0, &way);
    return way.in_round;
}

void mk_pair_timed(struct mk_pair_agreed *a, uint64_t number, const struct mk_pair_call *call,
                   enum mk_pair_reason reason, struct mk_pair_out *out)
{
    if (!counts(a, call, reason))
        return;
    const uint32_t class = mk_pair_class(call->count * size_of(call->dtype));
    out->timed = mk_pair_in_round(a, call, reason);
    out->class = (uint8_t) class;
    out->now = (mk_pair_word(a, number) & MK_PAIR_SLOW_CLASS(false, class)) != 0;
    out->nth = a->calls[class];
    a->calls[class] += !MUTANT(215);
}

/* ---- finding ---- */

struct mk_pair_comm *mk_pair_comm_find(const struct mk_pair *p, uint64_t handle)
{
    uint32_t i;
    return mk_pair_map_get(&p->comm_map, handle, &i) ? &p->comms[i] : NULL;
}

struct mk_pair_comm *mk_pair_comm_of(const struct mk_pair *p, struct mk_pair_ref ref)
{
    struct mk_pair_comm *c = ref.index < p->ncomms ? &p->comms[ref.index] : NULL;
    return ref.serial && c && c->used && c->serial == ref.serial ? c : NULL;
}

struct mk_pair_ref mk_pair_ref_of(const struct mk_pair *p, const struct mk_pair_comm *c)
{
    return (struct mk_pair_ref){(uint32_t)(c - p->comms), c->serial};
}

static struct mk_pair_id *id_find(const struct mk_pair *p, const struct mk_pair_event *e)
{
    uint32_t i;
    return mk_pair_map_get(&p->id_map, mk_pair_hash(e->u.comm.id, e->u.comm.rank), &i) ? &p->ids[i] : NULL;
}

bool mk_pair_comm(const struct mk_pair *p, uint64_t handle, struct mk_pair_comm_facts *out)
{
    const struct mk_pair_comm *c = mk_pair_comm_find(p, handle);
    if (!c)
        return false;
    memset(out, 0, sizeof(*out));
    out->id = c->id;
    out->number = c->number;
    out->rank = c->rank;
    out->nranks = c->nranks;
    out->streak = c->streak;
    out->error = c->error;
    out->ready = c->shared.state == MK_PAIR_TIED && c->streak >= p->options.witness && !c->error;
    out->agreed = c->shared.state == MK_PAIR_AGREED;
    out->off = c->shared.state == MK_PAIR_ENDED_OFF;
    return true;
}

/* ---- errors ---- */

void mk_pair_fail(struct mk_pair_comm *c, int error, enum mk_pair_reason why, struct mk_pair_out *out)
{
    if (c->error)
        return; /* the first one stays */
    c->error = error;
    c->why = (uint8_t)why;
    out->asks |= MK_PAIR_ASK_ABORT | MK_PAIR_ASK_TELL;
    out->error = error;
    out->reason = (uint8_t)why;
    out->comm = c->handle;
}

static void end_off(struct mk_pair *p, struct mk_pair_comm *c, enum mk_pair_reason why,
                    struct mk_pair_out *out)
{
    p->open--;
    c->shared.state = MK_PAIR_ENDED_OFF;
    c->shared.reason = (uint8_t)why;
    out->asks |= MK_PAIR_ASK_OFF;
    out->reason = (uint8_t)why;
    out->comm = c->handle;
}

/* ---- order of one communicator's operations: that of their calls ---- */

/* Might a graph hold an operation of this communicator that came after its last one, elsewhere? Its launches are seen only
 * where enqueues are counted. */
static bool replayed(const struct mk_pair *p, const struct mk_pair_comm *c, const struct mk_pair_at *at)
{
    const bool seen = (at->counted && c->last.counted && !p->uncounted) || MUTANT(213);
    return c->graphs && !MUTANT(204) && (!seen || c->last.strayed);
}

uint8_t mk_pair_order_of(const struct mk_pair *p, const struct mk_pair_comm *c, const struct mk_pair_at *at,
                         uint64_t *node)
{
    const bool here = c->last.any && !c->last.many && c->last.ctx == at->ctx && c->last.stream == at->stream;
    *node = 0;
    if (c->shared.state == MK_PAIR_ENDED_OFF || !c->last.any)
        return MK_PAIR_IN_ORDER;
    if (!at->capture)
        return (here && !c->last.capture && !replayed(p, c, at)) || MUTANT(205) ? MK_PAIR_IN_ORDER
                                                                                : MK_PAIR_WAIT_EVENT;
    if (c->last.capture != at->capture)
        return MUTANT(206) ? MK_PAIR_IN_ORDER : MK_PAIR_WAIT_EXTERNAL;
    if (here || MUTANT(207))
        return MK_PAIR_IN_ORDER;
    *node = c->last.many ? 0 : c->last.node;
    return MK_PAIR_WAIT_NODE;
}

void mk_pair_issued(struct mk_pair_comm *c, const struct mk_pair_at *at, bool many, struct mk_pair_out *out)
{
    c->seq++;
    c->last.any = true;
    c->last.many = many;
    c->last.ctx = at->ctx;
    c->last.stream = at->stream;
    c->last.capture = at->capture;
    c->last.node = 0;
    c->last.counted = at->counted;
    c->last.strayed = false;
    c->graphs |= at->capture != 0;
    if (c->shared.state != MK_PAIR_ENDED_OFF && !MUTANT(208))
        out->record = at->capture ? MK_PAIR_RECORD_EXTERNAL : MK_PAIR_RECORD_EVENT;
}

void mk_pair_replayed(struct mk_pair *p, const struct mk_pair_at *at)
{
    for (uint32_t i = 0; i < p->ncomms; i++) {
        struct mk_pair_comm *c = &p->comms[i];
        c->last.strayed |= c->last.ctx != at->ctx || c->last.stream != at->stream;
    }
}

/* ---- witness ---- */

void mk_pair_witness(struct mk_pair_comm *c, struct mk_pair_out *out)
{
    if (c->shared.state == MK_PAIR_NEW || c->profiled == c->hooked)
        return;
    c->streak = 0;
    if (c->shared.state == MK_PAIR_AGREED && !c->asked_off) {
        c->asked_off = true;
        out->asks |= MK_PAIR_ASK_OFF;
    }
}

/* The profiler's communicator is that of the call under way. */
static void tie(struct mk_pair *p, struct mk_pair_id *id, struct mk_pair_comm *c, struct mk_pair_out *out)
{
    if (c->rank != id->rank || (c->nranks != id->nranks && !MUTANT(209))) {
        end_off(p, c, MK_PAIR_UNTIED, out);
        return;
    }
    /* Some came while the profiler was idle on this rank: the others' numbers go on from more. */
    if (id->profiled < c->number && !MUTANT(217)) {
        end_off(p, c, MK_PAIR_UNSEEN, out);
        return;
    }
    id->tied = true;
    id->comm = mk_pair_ref_of(p, c);
    c->id = id->id;
    c->shared.state = MK_PAIR_TIED;
    c->number = c->hooked = c->profiled = id->profiled;
    c->streak = 1;
    c->witnessed = c->streak >= p->options.witness;
}

static int profiled(struct mk_pair *p, const struct mk_pair_event *e, struct mk_pair_out *out)
{
    struct mk_pair_id *id = id_find(p, e);
    if (!id)
        return MK_ERR_INVALID;
    struct mk_pair_thread *t = mk_pair_thread_find(p, e->thread);
    struct mk_pair_comm *c = id->tied ? mk_pair_comm_of(p, id->comm) : NULL;
    id->profiled++;
    if (id->tied && !c)
        return 0; /* destroyed; what still comes is of no interest */
    if (!c) {
        c = t && t->in_call ? mk_pair_comm_of(p, t->calling) : NULL;
        if (c && c->shared.state == MK_PAIR_NEW)
            tie(p, id, c, out);
        return 0;
    }
    c->profiled++;
    if (c->profiled <= c->hooked) {
        c->streak += c->profiled == c->hooked || c->streak > 0;
        c->witnessed |= c->streak >= p->options.witness;
        return 0;
    }
    /* No hook saw this one. */
    c->streak = 0;
    c->hooked = c->profiled;
    c->number++;
    if (c->shared.state == MK_PAIR_AGREED && !MUTANT(210))
        mk_pair_fail(c, MK_ERR_ABORTED, MK_PAIR_UNHOOKED, out);
    return 0;
}

/* ---- life ---- */

static void forget(struct mk_pair *p, struct mk_pair_comm *c)
{
    mk_pair_map_drop(&p->comm_map, c->handle);
    p->open -= c->shared.state != MK_PAIR_ENDED_OFF;
    c->used = false;
    p->comm_ended = true;
}

static int comm_new(struct mk_pair *p, const struct mk_pair_event *e, struct mk_pair_out *out)
{
    if (!e->u.comm.nranks || e->u.comm.rank >= e->u.comm.nranks || !e->u.comm.handle)
        return MK_ERR_INVALID;
    struct mk_pair_comm *c = mk_pair_comm_find(p, e->u.comm.handle);
    if (c)
        forget(p, c); /* its end was not seen, and the address is used again */
    uint32_t i = 0;
    while (i < p->ncomms && p->comms[i].used)
        i++;
    if ((i == p->ncomms && !mk_pair_grow((void **)&p->comms, &p->comm_cap, p->ncomms, sizeof(*p->comms))) ||
        !mk_pair_map_put(&p->comm_map, e->u.comm.handle, i))
        return MK_ERR_NOMEM;
    p->ncomms += i == p->ncomms;
    c = &p->comms[i];
    memset(c, 0, sizeof(*c));
    c->used = true;
    c->serial = ++p->serial;
    p->open++;
    c->handle = e->u.comm.handle;
    c->rank = e->u.comm.rank;
    c->nranks = e->u.comm.nranks;
    c->shared.number = c->shared.later_at = c->shared.first = UINT64_MAX;
    if (e->u.comm.nonblocking)
        end_off(p, c, MK_PAIR_NONBLOCKING, out);
    return 0;
}

static int comm_id(struct mk_pair *p, const struct mk_pair_event *e)
{
    struct mk_pair_id *id = id_find(p, e);
    if (!e->u.comm.nranks || e->u.comm.rank >= e->u.comm.nranks)
        return MK_ERR_INVALID;
    if (!id) {
        uint32_t i = 0;
        while (i < p->nids && !(p->ids[i].tied && !mk_pair_comm_of(p, p->ids[i].comm)))
            i++; /* one whose communicator has ended makes room */
        if (i == p->nids && !mk_pair_grow((void **)&p->ids, &p->id_cap, p->nids, sizeof(*p->ids)))
            return MK_ERR_NOMEM;
        if (i < p->nids)
            mk_pair_map_drop(&p->id_map, mk_pair_hash(p->ids[i].id, p->ids[i].rank));
        if (!mk_pair_map_put(&p->id_map, mk_pair_hash(e->u.comm.id, e->u.comm.rank), i))
            return MK_ERR_NOMEM; /* the map does not grow where one was dropped */
        p->nids += i == p->nids;
        id = &p->ids[i];
    }
    memset(id, 0, sizeof(*id));
    id->id = e->u.comm.id;
    id->rank = e->u.comm.rank;
    id->nranks = e->u.comm.nranks;
    return 0;
}

static int agreed(struct mk_pair *p, struct mk_pair_comm *c, const struct mk_pair_config *config,
                  struct mk_pair_out *out)
{
    if (c->shared.state == MK_PAIR_AGREED || c->error)
        return MK_ERR_INVALID;
    /* One that was ready may have lost its witness since: then all agree on off again. */
    if (c->shared.state != MK_PAIR_TIED || (!c->witnessed && !MUTANT(211)) || config->nranks != c->nranks) {
        mk_pair_fail(c, MK_ERR_INTERNAL, c->shared.state == MK_PAIR_TIED ? MK_PAIR_UNSEEN : MK_PAIR_UNTIED,
                     out);
        return 0;
    }
    c->shared.config = *config;
    c->shared.state = MK_PAIR_AGREED;
    if (c->streak < p->options.witness && !MUTANT(218)) {
        c->asked_off = true;
        out->asks |= MK_PAIR_ASK_OFF;
        out->comm = c->handle;
    }
    return 0;
}

static int switches(struct mk_pair_comm *c, uint64_t number, uint64_t word, struct mk_pair_out *out)
{
    struct mk_pair_agreed *a = &c->shared;
    if (a->state != MK_PAIR_AGREED || number == UINT64_MAX)
        return MK_ERR_INVALID;
    if (c->error)
        return 0;
    while (a->number != UINT64_MAX && c->number >= a->number) { /* reached */
        a->word = a->next;
        a->next = a->later;
        a->number = a->later_at;
        a->later_at = UINT64_MAX;
    }
    /* Who answers a proposal has reached the switch before it, or its host is in the midst of the call before that. */
    const bool in_call = a->number == c->number + 1 && a->later_at == UINT64_MAX && number > a->number;
    if (number < c->number || (a->number != UINT64_MAX && (!in_call || MUTANT(216)))) {
        mk_pair_fail(c, MK_ERR_INTERNAL, MK_PAIR_ERROR, out); /* others may have passed it otherwise */
        return 0;
    }
    *(a->number == UINT64_MAX ? &a->next : &a->later) = word;
    *(a->number == UINT64_MAX ? &a->number : &a->later_at) = number;
    if (a->first == UINT64_MAX)
        a->first = number;
    return 0;
}

int mk_pair_comm_event(struct mk_pair *p, const struct mk_pair_event *e, struct mk_pair_out *out)
{
    if (e->kind == MK_PAIR_EV_COMM_NEW)
        return comm_new(p, e, out);
    if (e->kind == MK_PAIR_EV_COMM_ID)
        return comm_id(p, e);
    if (e->kind == MK_PAIR_EV_PROFILED)
        return profiled(p, e, out);
    struct mk_pair_comm *c = mk_pair_comm_find(p, e->u.comm.handle);
    if (!c)
        return MK_ERR_INVALID;
    switch (e->kind) {
    case MK_PAIR_EV_COMM_OFF:
        if (c->shared.state == MK_PAIR_AGREED || e->u.comm.reason >= MK_PAIR_REASONS || !e->u.comm.reason)
            return MK_ERR_INVALID;
        if (c->shared.state != MK_PAIR_ENDED_OFF)
            end_off(p, c, (enum mk_pair_reason)e->u.comm.reason, out);
        out->asks = 0; /* all know */
        return 0;
    case MK_PAIR_EV_COMM_AGREED:
        return agreed(p, c, &e->u.comm.config, out);
    case MK_PAIR_EV_COMM_SWITCH:
        return switches(c, e->u.comm.number, e->u.comm.word, out);
    case MK_PAIR_EV_COMM_ERROR:
        if (e->u.comm.error >= 0)
            return MK_ERR_INVALID;
        if (!MUTANT(212))
            mk_pair_fail(c, e->u.comm.error, MK_PAIR_ERROR, out);
        return 0;
    case MK_PAIR_EV_COMM_ABORT:
        mk_pair_fail(c, MK_ERR_ABORTED, MK_PAIR_ERROR, out);
        return 0;
    case MK_PAIR_EV_COMM_END:
        forget(p, c);
        return 0;
    default:
        return MK_ERR_INVALID;
    }
}
