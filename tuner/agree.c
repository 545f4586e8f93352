/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Agreement on switches: the state machine of mk/tuner.h. tests/unit/agree.c tries every order of events. */
#include "mk/err.h"
#include "mk/tuner.h"
#include <string.h>

#define NONE UINT64_MAX

static bool has(const uint8_t *set, int32_t rank)
{
    return set[rank / 8] >> rank % 8 & 1;
}
static void put(uint8_t *set, int32_t rank)
{
    set[rank / 8] = (uint8_t)(set[rank / 8] | 1u << rank % 8);
}

int mk_agree_init(struct mk_agree *a, int32_t rank, int32_t nranks, uint64_t lead, uint64_t value)
{
    if (nranks < 1 || nranks > MK_AGREE_MAX_RANKS || rank < 0 || rank >= nranks || !lead || lead > UINT32_MAX)
        return mk_fail_quiet(MK_ERR_INVALID, "agreement of rank %d of %d, %llu ahead", (int)rank, (int)nranks,
                             (unsigned long long)lead);
    memset(a, 0, sizeof(*a));
    a->rank = rank;
    a->nranks = nranks;
    a->lead = lead;
    a->value = value;
    a->number = a->fence = NONE;
    return 0;
}

int mk_agree_begin(struct mk_agree *a, uint64_t *value)
{
    if (a->begun >= a->fence)
        return a->root_died ? MK_ERR_PEER : MK_ERR_AGAIN;
    if (a->begun >= a->number) {
        a->value = a->next;
        a->number = NONE;
    }
    *value = a->value;
    a->begun++;
    return 0;
}

/* A proposal has come (or was made here). */
static void open_up(struct mk_agree *a, uint32_t id, uint64_t offer)
{
    a->id = id;
    a->offer = offer;
    a->open = true;
    a->fence = a->begun + a->lead;
}
static void decide(struct mk_agree *a, bool commit, uint64_t number)
{
    a->open = false;
    a->fence = NONE;
    if (commit) {
        a->number = number;
        a->next = a->offer;
    }
}

/* Rank 0: all have answered. */
static void commit(struct mk_agree *a, struct mk_agree_msg *to_all)
{
    const uint64_t number = a->highest + a->lead;
    to_all->kind = MK_AGREE_COMMIT;
    to_all->id = a->id;
    to_all->number = number;
    decide(a, true, number);
}
static void give_up(struct mk_agree *a, struct mk_agree_msg *to_all)
{
    to_all->kind = MK_AGREE_ABORT;
    to_all->id = a->id;
    decide(a, false, 0);
}

int mk_agree_propose(struct mk_agree *a, uint64_t value, struct mk_agree_msg *to_all)
{
    memset(to_all, 0, sizeof(*to_all));
    if (a->rank)
        return mk_fail_quiet(MK_ERR_INVALID, "rank %d proposes: that is for rank 0", (int)a->rank);
    for (int32_t r = 1; r < a->nranks; r++)
        if (has(a->dead, r))
            return MK_ERR_PEER;
    if (a->open || a->number != NONE)
        return MK_ERR_AGAIN;
    open_up(a, a->id + 1, value);
    a->highest = a->begun;
    a->answers = 1;
    memset(a->answered, 0, sizeof(a->answered));
    put(a->answered, 0);
    if (a->nranks == 1) {
        commit(a, to_all);
        to_all->kind = MK_AGREE_NONE;
        return 0;
    }
    to_all->kind = MK_AGREE_PROPOSE;
    to_all->id = a->id;
    to_all->value = value;
    return 0;
}

static int answer_of(struct mk_agree *a, int32_t from, const struct mk_agree_msg *m,
                     struct mk_agree_msg *to_all)
{
    if (m->id > a->id || !m->id || (a->open && m->id == a->id && has(a->answered, from)) ||
        m->number > NONE / 2)
        return MK_ERR_INVALID;
    if (!a->open || m->id < a->id)
        return 0; /* that one was given up before this answer came */
    put(a->answered, from);
    a->answers++;
    if (m->kind == MK_AGREE_REFUSE) {
        give_up(a, to_all);
        return 0;
    }
    if (m->number > a->highest)
        a->highest = m->number;
    if (a->answers == a->nranks)
        commit(a, to_all);
    return 0;
}

int mk_agree_refuse(struct mk_agree *a, const struct mk_agree_msg *msg, struct mk_agree_msg *reply)
{
    memset(reply, 0, sizeof(*reply));
    if (!a->rank || msg->kind != MK_AGREE_PROPOSE || a->open || msg->id <= a->id)
        return mk_fail_quiet(MK_ERR_INVALID, "agreement: message %u, proposal %u, cannot be refused here",
                             msg->kind, msg->id);
    a->id = msg->id;
    reply->kind = MK_AGREE_REFUSE;
    reply->id = msg->id;
    return 0;
}

static int word_of_root(struct mk_agree *a, const struct mk_agree_msg *m, struct mk_agree_msg *reply)
{
    if (m->kind == MK_AGREE_PROPOSE) {
        if (a->open || m->id <= a->id)
            return MK_ERR_INVALID;
        reply->id = m->id;
        if (a->number != NONE && a->begun < a->number) {
            a->id = m->id;
            reply->kind = MK_AGREE_REFUSE;
            return 0;
        }
        if (a->number !=
            NONE) { /* reached: the operation before the next one was the last with the old value */
            a->value = a->next;
            a->number = NONE;
        }
        open_up(a, m->id, m->value);
        reply->kind = MK_AGREE_ACK;
        reply->number = a->begun;
        return 0;
    }
    if (m->kind != MK_AGREE_COMMIT && m->kind != MK_AGREE_ABORT)
        return MK_ERR_INVALID;
    if (m->kind == MK_AGREE_ABORT && !a->open && m->id == a->id)
        return 0; /* the one that was refused here */
    if (!a->open || m->id != a->id || (m->kind == MK_AGREE_COMMIT && m->number < a->fence))
        return MK_ERR_INVALID;
    decide(a, m->kind == MK_AGREE_COMMIT, m->number);
    return 0;
}

int mk_agree_receive(struct mk_agree *a, int32_t from, const struct mk_agree_msg *msg,
                     struct mk_agree_msg *reply)
{
    int ret = MK_ERR_INVALID;
    memset(reply, 0, sizeof(*reply));
    if (from < 0 || from >= a->nranks || from == a->rank)
        ret = MK_ERR_INVALID;
    else if (a->rank && !from)
        ret = word_of_root(a, msg, reply);
    else if (!a->rank && (msg->kind == MK_AGREE_ACK || msg->kind == MK_AGREE_REFUSE))
        ret = answer_of(a, from, msg, reply);
    if (ret)
        mk_fail_quiet(ret, "agreement: message %u of rank %d, proposal %u, makes no sense here (proposal %u)",
                      msg->kind, (int)from, msg->id, a->id);
    return ret;
}

int mk_agree_died(struct mk_agree *a, int32_t who, struct mk_agree_msg *to_all)
{
    memset(to_all, 0, sizeof(*to_all));
    if (who < 0 || who >= a->nranks || who == a->rank)
        return mk_fail_quiet(MK_ERR_INVALID, "agreement: death of rank %d, seen by rank %d of %d", (int)who,
                             (int)a->rank, (int)a->nranks);
    put(a->dead, who);
    if (!who)
        a->root_died = true;
    else if (!a->rank && a->open)
        give_up(a, to_all);
    return 0;
}
