/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Messages, each a byte that says what it is and then:
 *
 *   HELLO  to rank 0, once this rank has met the others and its tuner is tied: it takes part
 *   TABLE  rank 0 to all: first entry, entries here, entries in all, cap (a byte each), 8 bytes an entry
 *   AGREE  kind 4, id 4, value 8, number 8: struct mk_agree_msg; little endian
 *
 * Rank 0 looks every CONSIDER operations whether its own times make another table than the one in force. It sends the table
 * and then proposes its value, which a rank refuses that has not got it (another version, another mode). */
#include "carry.h"
#include "mk/err.h"
#include "mk/log.h"
#include "mk/meet.h"
#include "mk/param.h"
#include "mk/profile.h"
#include "mk/tune.h"
#include "mk/tuner.h"
#include <endian.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { HELLO = 1, TABLE = 2, AGREE = 3 };
enum { TABLE_HEAD = 5, ENTRY_BYTES = 8, AGREE_BYTES = 25 };
enum { PER_MESSAGE = (MK_MEET_MAX_SAY - TABLE_HEAD) / ENTRY_BYTES };
#define LEAD 128     /* operations between the highest count and a switch: hosts that run ahead seldom wait */
#define CONSIDER 512 /* operations */
#define REMIND_S 30

/* Owned by the meeting until `end`, and by the tuner from its open to its close. */
struct carry {
    struct carry *next; /* under list_lock, until the tuner is tied */
    pthread_t thread;   /* that makes the communicator */
    struct mk_meet_who who;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    int refs;
    struct mk_meet *meet; /* NULL: ended */
    struct mk_tune *tune; /* NULL: not tied, or closed */
    bool met;
    bool silent; /* nothing is heard any more */
    struct mk_agree agree;
    uint8_t part[MK_AGREE_MAX_RANKS]; /* rank 0: who takes part */
    int parts;
    struct mk_tune_table coming; /* parts of a table */
    uint64_t offered;            /* one that has come, and was not proposed yet; 0: none */
};

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct carry *untied;
static bool used, forked; /* a child of a process that has met carries nothing */

/* ---- bytes ---- */

static void put_agree(const struct mk_agree_msg *m, uint8_t out[AGREE_BYTES])
{
    const uint32_t kind = htole32(m->kind), id = htole32(m->id);
    const uint64_t value = htole64(m->value), number = htole64(m->number);
    out[0] = AGREE;
    memcpy(out + 1, &kind, 4);
    memcpy(out + 5, &id, 4);
    memcpy(out + 9, &value, 8);
    memcpy(out + 17, &number, 8);
}
static void get_agree(const uint8_t in[AGREE_BYTES], struct mk_agree_msg *m)
{
    uint32_t kind, id;
    uint64_t value, number;
    memcpy(&kind, in + 1, 4);
    memcpy(&id, in + 5, 4);
    memcpy(&value, in + 9, 8);
    memcpy(&number, in + 17, 8);
    m->kind = le32toh(kind), m->id = le32toh(id), m->value = le64toh(value), m->number = le64toh(number);
}

static void put_entry(const struct mk_tune_entry *e, uint8_t out[ENTRY_BYTES])
{
    const uint8_t b[ENTRY_BYTES] = {e->coll,  e->from,     e->to,          e->algo,
                                    e->proto, e->channels, e->uses & 0xff, (uint8_t)(e->uses >> 8)};
    memcpy(out, b, sizeof(b));
}
static void get_entry(const uint8_t in[ENTRY_BYTES], struct mk_tune_entry *e)
{
    e->coll = in[0], e->from = in[1], e->to = in[2], e->algo = in[3], e->proto = in[4], e->channels = in[5];
    e->uses = (uint16_t)(in[6] | in[7] << 8);
}

/* Takes a part in. True: the table is whole. */
static bool get_table(struct mk_tune_table *t, const uint8_t *in, size_t n)
{
    const uint32_t first = n < TABLE_HEAD ? 1 : in[1], here = n < TABLE_HEAD ? 0 : in[2];
    if (!first)
        memset(t, 0, sizeof(*t));
    if (n != TABLE_HEAD + here * ENTRY_BYTES || first != t->count || first + here > in[3] ||
        in[3] > MK_TUNE_ENTRIES)
        return false;
    for (uint32_t i = 0; i < here; i++)
        get_entry(in + TABLE_HEAD + i * ENTRY_BYTES, &t->entry[first + i]);
    t->count = first + here;
    t->cap = in[4];
    return t->count == in[3];
}

/* ---- to others, under the lock ---- */

static int say(struct carry *c, int to, const void *bytes, size_t n)
{
    return c->meet ? mk_meet_say(c->meet, MK_MEET_TUNE, to, bytes, n) : MK_ERR_PEER;
}

static int say_table(struct carry *c, const struct mk_tune_table *t)
{
    uint8_t m[MK_MEET_MAX_SAY];
    uint32_t first = 0;
    int ret;
    do {
        const uint32_t left = t->count - first, here = left < PER_MESSAGE ? left : PER_MESSAGE;
        m[0] = TABLE, m[1] = (uint8_t)first, m[2] = (uint8_t)here, m[3] = (uint8_t)t->count,
        m[4] = (uint8_t)t->cap;
        for (uint32_t i = 0; i < here; i++)
            put_entry(&t->entry[first + i], m + TABLE_HEAD + i * ENTRY_BYTES);
        ret = say(c, -1, m, TABLE_HEAD + here * ENTRY_BYTES);
        first += here;
    } while (!ret && first < t->count);
    return ret;
}

static void let_go(struct carry *c, uint64_t id)
{
    if (c->tune && id)
        mk_tune_drop(c->tune, id);
}

/* Nobody hears what this rank says, nor it anybody: what is open stays open, if it is not its own. */
static void fall_silent(struct carry *c)
{
    struct mk_agree_msg out;
    const bool open = c->agree.open;
    c->silent = true;
    mk_agree_died(&c->agree, c->who.rank ? 0 : 1, &out);
    if (open && out.kind == MK_AGREE_ABORT)
        let_go(c, c->agree.offer);
    pthread_cond_broadcast(&c->cond);
}

static void answer(struct carry *c, const struct mk_agree_msg *msg)
{
    uint8_t m[AGREE_BYTES];
    if (msg->kind == MK_AGREE_NONE)
        return;
    put_agree(msg, m);
    if (say(c, c->who.rank ? 0 : -1, m, sizeof(m)))
        fall_silent(c);
}

static void greet(struct carry *c)
{
    const uint8_t m[1] = {HELLO};
    if (!c->met || !c->tune || c->silent)
        return;
    if (!c->who.rank)
        c->parts += !c->part[0], c->part[0] = 1;
    else if (say(c, 0, m, sizeof(m)))
        fall_silent(c);
}

/* ---- from others: the meeting's callbacks ---- */

static void died(struct carry *c, int rank)
{
    struct mk_agree_msg out;
    const bool open = c->agree.open;
    mk_agree_died(&c->agree, rank, &out);
    c->parts = 0; /* nothing is agreed from now on */
    if (open && out.kind == MK_AGREE_ABORT)
        let_go(c, c->agree.offer);
    answer(c, &out);
}

/* Messages of sound ranks always fit; one whose do not is as good as dead. */
static void agree(struct carry *c, int from, const struct mk_agree_msg *m)
{
    struct mk_agree_msg reply;
    const bool open = c->agree.open, proposed = m->kind == MK_AGREE_PROPOSE && !from && c->who.rank;
    const uint64_t offer = c->agree.offer, offered = c->offered;
    const bool has = c->tune && mk_tune_has(c->tune, m->value);
    if (proposed)
        c->offered = 0;
    const int ret = proposed && !has ? mk_agree_refuse(&c->agree, m, &reply)
                                     : mk_agree_receive(&c->agree, from, m, &reply);
    if (ret) {
        MK_WARN("TUNER", "communicator %016llx: %s", (unsigned long long)c->who.id, mk_last_error());
        died(c, from);
        return;
    }
    if (proposed && (reply.kind == MK_AGREE_REFUSE || offered != m->value))
        let_go(c, offered);
    else if (reply.kind == MK_AGREE_ABORT || (m->kind == MK_AGREE_ABORT && open))
        let_go(c, offer);
    answer(c, &reply);
}

static void said(void *of, int from, const void *bytes, size_t n)
{
    struct carry *c = of;
    const uint8_t *p = bytes;
    struct mk_agree_msg m;
    if (!n)
        return;
    pthread_mutex_lock(&c->lock);
    if (*p == HELLO && !c->who.rank) {
        c->parts += !c->part[from];
        c->part[from] = 1;
    } else if (*p == TABLE && !from && c->tune && get_table(&c->coming, p, n)) {
        let_go(c, c->offered);
        c->offered = mk_tune_offer(c->tune, &c->coming);
    } else if (*p == AGREE && n == AGREE_BYTES) {
        get_agree(p, &m);
        agree(c, from, &m);
    }
    pthread_cond_broadcast(&c->cond);
    pthread_mutex_unlock(&c->lock);
}

static void met(void *of)
{
    struct carry *c = of;
    pthread_mutex_lock(&c->lock);
    c->met = true;
    greet(c);
    pthread_mutex_unlock(&c->lock);
}

static void gone(void *of, int rank, int code)
{
    struct carry *c = of;
    (void)code; /* who has left takes part in nothing that is to come */
    pthread_mutex_lock(&c->lock);
    if (rank < 0)
        fall_silent(c);
    else if (rank != c->who.rank)
        died(c, rank);
    pthread_cond_broadcast(&c->cond);
    pthread_mutex_unlock(&c->lock);
}

/* ---- what meets ---- */

static void drop(struct carry *c)
{
    pthread_mutex_lock(&c->lock);
    const bool last = !--c->refs;
    pthread_mutex_unlock(&c->lock);
    if (!last)
        return;
    pthread_cond_destroy(&c->cond);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

/* Times are taken here: else there is nothing to choose by. */
static bool wanted(void)
{
    struct mk_settings s;
    const char *file = mk_env("MK_PROFILE");
    return ((file && *file) || mk_profile_requested() == MK_PROFILE_FULL) && !mk_settings_load(&s, false) &&
           !strcmp(s.tuner, "on");
}

static void *begin_meeting(struct mk_meet *m, const struct mk_meet_who *who)
{
    pthread_condattr_t attr;
    struct carry *c = wanted() ? calloc(1, sizeof(*c)) : NULL;
    if (!c || mk_agree_init(&c->agree, who->rank, who->nranks, LEAD, 0)) {
        free(c);
        return NULL;
    }
    __atomic_store_n(&used, true, __ATOMIC_RELAXED);
    c->thread = pthread_self();
    c->who = *who;
    c->meet = m;
    c->refs = 1;
    pthread_mutex_init(&c->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&c->cond, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_lock(&list_lock);
    c->next = untied;
    untied = c;
    pthread_mutex_unlock(&list_lock);
    return c;
}

/* Under list_lock. */
static void unlist(struct carry *c)
{
    for (struct carry **at = &untied; *at; at = &(*at)->next)
        if (*at == c) {
            *at = c->next;
            return;
        }
}

static void end_meeting(void *of)
{
    struct carry *c = of;
    pthread_mutex_lock(&list_lock);
    unlist(c);
    pthread_mutex_unlock(&list_lock);
    pthread_mutex_lock(&c->lock);
    c->meet = NULL;
    fall_silent(c);
    pthread_mutex_unlock(&c->lock);
    drop(c);
}

static void child(void)
{
    forked = __atomic_load_n(&used, __ATOMIC_RELAXED);
}
__attribute__((constructor)) static void start(void)
{
    static const struct mk_meet_user user = {begin_meeting, met, said, gone, end_meeting};
    pthread_atfork(NULL, NULL, child);
    mk_meet_use(MK_MEET_TUNE, &user);
}

/* ---- an operation ---- */

/* Rank 0, with the lock. */
static bool may_propose(const struct carry *c)
{
    return c->parts == c->who.nranks && !c->silent && c->tune && !c->agree.open &&
           c->agree.number == UINT64_MAX;
}

/* With the lock, which it lets go. */
static void propose(struct carry *c)
{
    struct mk_tune_table table;
    struct mk_agree_msg msg;
    struct mk_tune *t = c->tune;
    pthread_mutex_unlock(&c->lock);
    const uint64_t id = mk_tune_consider(t, c->who.rank, 0, true, &table) ? mk_tune_offer(t, &table) : 0;
    pthread_mutex_lock(&c->lock);
    if (id && (!may_propose(c) || say_table(c, &table) || mk_agree_propose(&c->agree, id, &msg)))
        mk_tune_drop(t, id);
    else if (id)
        answer(c, &msg);
}

/* With the lock, at a fence: for rank 0, which decides without its host as soon as all have answered without theirs, or its
 * end. */
static void wait_for_word(struct carry *c)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += REMIND_S;
    if (pthread_cond_timedwait(&c->cond, &c->lock, &until) == ETIMEDOUT)
        MK_WARN("TUNER", "communicator %016llx: rank %d waits for the word of rank 0 on a switch",
                (unsigned long long)c->who.id, c->who.rank);
}

static int begin(void *ctx, uint64_t *id)
{
    struct carry *c = ctx;
    if (forked)
        return 0; /* what was in force */
    int ret;
    pthread_mutex_lock(&c->lock);
    if (!c->who.rank && c->agree.begun % CONSIDER == CONSIDER - 1 && may_propose(c))
        propose(c);
    while ((ret = mk_agree_begin(&c->agree, id)) == MK_ERR_AGAIN && c->tune)
        wait_for_word(c);
    pthread_mutex_unlock(&c->lock);
    return ret;
}

/* ---- NCCL's tuner ---- */

/* The one communicator with this id that this thread is making; NULL: none, or it is not clear which. */
static struct carry *tie(const struct mk_tune_facts *f)
{
    struct carry *found = NULL;
    int n = 0;
    pthread_mutex_lock(&list_lock);
    for (struct carry *c = untied; c; c = c->next)
        if (f->comm_id && c->who.id == f->comm_id && c->who.nranks == f->nranks &&
            pthread_equal(c->thread, pthread_self())) {
            found = c;
            n++;
        }
    if (n == 1)
        unlist(found);
    if (n == 1) {
        pthread_mutex_lock(&found->lock);
        found->refs++;
        pthread_mutex_unlock(&found->lock);
    }
    pthread_mutex_unlock(&list_lock);
    return n == 1 ? found : NULL;
}

void mk_carry_open(struct mk_tune *t)
{
    struct carry *c = forked ? NULL : tie(mk_tune_facts_of(t));
    const struct mk_tune_turn turn = {begin, c};
    if (!c)
        return;
    mk_tune_set_turn(t, &turn);
    pthread_mutex_lock(&c->lock);
    c->tune = t;
    greet(c);
    pthread_mutex_unlock(&c->lock);
}

void mk_carry_close(struct mk_tune *t)
{
    const struct mk_tune_turn *turn = mk_tune_turn_of(t);
    struct carry *c = turn->begin == begin ? turn->ctx : NULL;
    if (!c || forked)
        return;
    pthread_mutex_lock(&c->lock);
    c->tune = NULL;
    pthread_cond_broadcast(&c->cond);
    pthread_mutex_unlock(&c->lock);
    drop(c);
}
