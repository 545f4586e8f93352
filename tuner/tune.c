/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* A communicator's tuner: the tables that were offered, the one in force, and what it says to NCCL. */
#include "mk/err.h"
#include "mk/log.h"
#include "mk/tune.h"
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { OFFERS = 4, LINES = 64, CONSIDER = 512, TRIAL_TIMED = 64 };
#define RULES 1 /* changes with what a table makes of an operation */
#define CHANNEL_BYTES                                                                                        \
    (64u << 10) /* of a collective under a cap; NCCL itself gives a channel at least half of that */

struct offer {
    uint64_t id;
    int refs; /* offers of it that are not dropped */
    struct mk_tune_table table;
};

struct mk_tune {
    struct mk_tune_facts facts;
    enum mk_tune_mode mode;
    struct mk_tune_turn turn;
    pthread_mutex_t lock;
    struct offer offer[OFFERS];
    uint64_t in_force;
    uint16_t left[MK_TUNE_ENTRIES];       /* calls of a trial that are left */
    uint64_t said[MK_COLL_ALLREDUCE + 1]; /* size classes of which a line was logged */
    int lines;
    uint32_t asked;    /* operations, modulo 2^32 */
    uint64_t proposal; /* id of the last one that was logged */
    bool lost;         /* the outcome of an agreement is unknown: said */
    pid_t pid;         /* in a forked child those who ask are not there */
    uint32_t asking;   /* threads in mk_tune_next; __atomic */
};

static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
static void (*opened_fn)(void *ctx, struct mk_tune *t);
static void *opened_ctx;

/* ---- tables ---- */

bool mk_tune_valid(const struct mk_tune_table *t)
{
    if (t->count > MK_TUNE_ENTRIES || t->cap > 64)
        return false;
    for (uint32_t i = 0; i < t->count; i++) {
        const struct mk_tune_entry *e = &t->entry[i];
        const bool whole = e->algo < MK_ALGO_COUNT && e->proto < MK_PROTO_COUNT;
        if (e->coll > MK_COLL_ALLREDUCE || e->from > e->to || e->to > 63 || e->channels > 64 ||
            !(whole || (e->algo == MK_NAME_UNKNOWN && e->proto == MK_NAME_UNKNOWN)))
            return false;
    }
    return true;
}

/* By members, not bytes: equal on all machines. */
static uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0x9e3779b97f4a7c15ull;
    return h ^ h >> 29;
}
uint64_t mk_tune_id(const struct mk_tune_table *t)
{
    uint64_t h = mix(mix(0x6d6b74756e65ull, t->count), t->cap);
    for (uint32_t i = 0; i < t->count && i < MK_TUNE_ENTRIES; i++) {
        const struct mk_tune_entry *e = &t->entry[i];
        h = mix(h, (uint64_t)e->coll << 48 | (uint64_t)e->from << 40 | (uint64_t)e->to << 32 |
                       (uint64_t)e->algo << 24 | (uint64_t)e->proto << 16 | (uint64_t)e->channels << 8);
        h = mix(h, e->uses);
    }
    return h ? h : 1;
}

/* ---- a communicator ---- */

int mk_tune_open(const struct mk_tune_facts *f, enum mk_tune_mode mode, struct mk_tune **out)
{
    struct mk_tune *t = calloc(1, sizeof(*t));
    if (!t)
        return mk_fail_quiet(MK_ERR_NOMEM, "no memory for a tuner");
    t->facts = *f;
    t->mode = mode;
    t->pid = getpid();
    pthread_mutex_init(&t->lock, NULL);
    pthread_mutex_lock(&open_lock);
    if (opened_fn)
        opened_fn(opened_ctx, t);
    pthread_mutex_unlock(&open_lock);
    *out = t;
    return 0;
}

void mk_tune_close(struct mk_tune *t)
{
    const struct timespec ms = {.tv_nsec = 1000000};
    if (!t)
        return;
    /* An abort may come while another thread asks; who waits in there for a switch has been let go (mk_carry_close). */
    while (t->pid == getpid() && __atomic_load_n(&t->asking, __ATOMIC_ACQUIRE))
        nanosleep(&ms, NULL);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

const struct mk_tune_facts *mk_tune_facts_of(const struct mk_tune *t)
{
    return &t->facts;
}

void mk_tune_on_open(void (*opened)(void *ctx, struct mk_tune *t), void *ctx)
{
    pthread_mutex_lock(&open_lock);
    opened_fn = opened;
    opened_ctx = ctx;
    pthread_mutex_unlock(&open_lock);
}

void mk_tune_set_turn(struct mk_tune *t, const struct mk_tune_turn *turn)
{
    t->turn = *turn;
}

const struct mk_tune_turn *mk_tune_turn_of(const struct mk_tune *t)
{
    return &t->turn;
}

static struct offer *find(struct mk_tune *t, uint64_t id)
{
    for (int i = 0; id && i < OFFERS; i++)
        if (t->offer[i].refs && t->offer[i].id == id)
            return &t->offer[i];
    return NULL;
}

uint64_t mk_tune_offer(struct mk_tune *t, const struct mk_tune_table *table)
{
    if (!mk_tune_valid(table))
        return 0;
    const uint64_t id = mix(mix(mk_tune_id(table), RULES), t->mode) | 1; /* never 0 */
    pthread_mutex_lock(&t->lock);
    struct offer *o = find(t, id);
    for (int i = 0; !o && i < OFFERS; i++)
        if (!t->offer[i].refs)
            o = &t->offer[i];
    if (o) {
        o->id = id;
        o->refs++;
        o->table = *table;
    }
    pthread_mutex_unlock(&t->lock);
    return o ? id : 0;
}

void mk_tune_drop(struct mk_tune *t, uint64_t id)
{
    pthread_mutex_lock(&t->lock);
    struct offer *o = find(t, id);
    if (o && (o->refs > 1 || id != t->in_force))
        o->refs--;
    pthread_mutex_unlock(&t->lock);
}

bool mk_tune_has(struct mk_tune *t, uint64_t id)
{
    pthread_mutex_lock(&t->lock);
    const bool has = !id || find(t, id);
    pthread_mutex_unlock(&t->lock);
    return has;
}

/* ---- an operation ---- */

/* The cell that NCCL would take: the smallest that is not negative. -1: none, or more than one, or nonsense in the table. */
static int cheapest(const struct mk_tune_ask *ask)
{
    int best = -1;
    bool twice = false;
    for (int i = 0; i < ask->algos * ask->protos; i++) {
        const float us = ask->cost[i];
        if (isnan(us))
            return -1;
        if (us < 0 || (best >= 0 && us > ask->cost[best]))
            continue;
        twice = best >= 0 && !(us < ask->cost[best]);
        best = i;
    }
    return twice ? -1 : best;
}

static bool possible(const struct mk_tune_ask *ask, const struct mk_tune_entry *e)
{
    if (e->algo >= ask->algos || e->proto >= ask->protos)
        return false;
    const float us = ask->cost[e->algo * ask->protos + e->proto];
    return us >= 0 && isfinite(us);
}

/* The table's entry for this operation, its use counted. NULL: none. */
static const struct mk_tune_entry *entry_for(struct mk_tune *t, const struct mk_tune_table *table, int coll,
                                             int size_class)
{
    for (uint32_t i = 0; i < table->count; i++) {
        const struct mk_tune_entry *e = &table->entry[i];
        if (e->coll != coll || size_class < e->from || size_class > e->to)
            continue;
        if (!e->uses)
            return e;
        if (!t->left[i])
            return NULL;
        t->left[i]--;
        if (t->mode == MK_TUNE_ON) /* what is tried is to be measured */
            mk_profile_more(mk_profile_of_process(), TRIAL_TIMED);
        return e;
    }
    return NULL;
}

static int smaller(int a, int b) /* 0: no limit */
{
    return !a ? b : !b ? a : a < b ? a : b;
}

/* Channels that a cap allows. Never more than NCCL takes for such sizes, which a number that replaces its own would be. */
static int capped(uint32_t cap, uint64_t bytes)
{
    if (!cap || bytes < CHANNEL_BYTES)
        return 0;
    const uint64_t most = bytes / CHANNEL_BYTES;
    return most < cap ? (int)most : (int)cap;
}

static void choose(struct mk_tune *t, const struct mk_tune_table *table, const struct mk_tune_ask *ask,
                   struct mk_tune_answer *a)
{
    if (ask->coll < 0 || ask->coll > MK_COLL_ALLREDUCE)
        return;
    /* counted before anything that could differ between ranks is looked at */
    const struct mk_tune_entry *e =
        entry_for(t, table, ask->coll, ask->bytes < 2 ? 0 : 63 - __builtin_clzll(ask->bytes));
    if (!ask->cost || ask->algos < 1 || ask->algos > 64 || ask->protos < 1 || ask->protos > 64)
        return;
    const int theirs = cheapest(ask);
    if (theirs < 0)
        return;
    int algo = theirs / ask->protos;
    if (e && e->algo != MK_NAME_UNKNOWN) {
        /* a cell that is 0 already was forced by somebody: ours would be one of two */
        if (!possible(ask, e) || !(ask->cost[theirs] > 0))
            return;
        a->algo = algo = e->algo;
        a->proto = e->proto;
    }
    /* the others have channels of their own kind, which a number here would exceed or upset */
    if (algo == MK_ALGO_RING || algo == MK_ALGO_TREE)
        a->channels = smaller(e ? e->channels : 0, capped(table->cap, ask->bytes));
}

static void log_choice(struct mk_tune *t, const struct mk_tune_ask *ask, const struct mk_tune_answer *a)
{
    const int size_class = ask->bytes < 2 ? 0 : 63 - __builtin_clzll(ask->bytes);
    if ((a->algo < 0 && !a->channels) || t->lines >= LINES || t->said[ask->coll] >> size_class & 1)
        return;
    t->said[ask->coll] |= 1ull << size_class;
    t->lines++;
    MK_INFO("TUNER",
            "communicator %016llx: %s of %llu bytes %s %s %s%s, %d channels (0: NCCL's), table %016llx",
            (unsigned long long)t->facts.comm_id, mk_name_of(MK_NAMES_COLL, ask->coll),
            (unsigned long long)ask->bytes, t->mode == MK_TUNE_ON ? "runs with" : "would run with",
            a->algo < 0 ? "NCCL's algorithm" : mk_name_of(MK_NAMES_ALGO, a->algo),
            a->algo < 0 ? "" : mk_name_of(MK_NAMES_PROTO, a->proto), a->algo < 0 ? "and protocol" : "",
            a->channels, (unsigned long long)a->id);
}

/* A table comes into force, or none. Under the lock. */
static void switch_to(struct mk_tune *t, uint64_t id)
{
    struct offer *const before = find(t, t->in_force);
    const struct offer *o = find(t, id);
    if (before)
        before->refs--;
    t->in_force = o ? id : 0;
    memset(t->said, 0, sizeof(t->said));
    for (uint32_t i = 0; o && i < o->table.count; i++)
        t->left[i] = o->table.entry[i].uses;
    if (id && !o)
        MK_WARN("TUNER",
                "communicator %016llx: a table was agreed on that is not known here: NCCL's choice stands",
                (unsigned long long)t->facts.comm_id);
}

/* ---- proposals ---- */

bool mk_tune_consider(struct mk_tune *t, int rank, uint32_t cap, bool trial, struct mk_tune_table *out)
{
    enum { MOST = 128 };
    struct mk_profile *p = mk_profile_of_process();
    struct mk_profile_comm *c = t->facts.comm_id ? mk_profile_find(p, t->facts.comm_id, rank) : NULL;
    struct mk_tune_sample *s = c ? malloc(MOST * sizeof(*s)) : NULL;
    if (!s)
        return false;
    const int n = mk_tune_samples(p, c, s, MOST);
    struct mk_tune_table now;
    pthread_mutex_lock(&t->lock);
    const struct offer *o = find(t, t->in_force);
    const bool some = o != NULL;
    if (o)
        now = o->table;
    pthread_mutex_unlock(&t->lock);
    const bool news = mk_tune_build(&t->facts, some ? &now : NULL, s, n, cap, trial, out);
    free(s);
    return news;
}

static void log_proposal(struct mk_tune *t)
{
    struct mk_tune_table table;
    if (!mk_tune_consider(t, -1, 0, true, &table) || mk_tune_id(&table) == t->proposal)
        return;
    t->proposal = mk_tune_id(&table);
    for (uint32_t i = 0; i < table.count && t->lines < LINES; i++, t->lines++) {
        const struct mk_tune_entry *e = &table.entry[i];
        const bool whole = e->algo != MK_NAME_UNKNOWN;
        MK_INFO("TUNER",
                "communicator %016llx: would propose for %s of 2^%d to 2^%d bytes: %s %s, %d channels (0: "
                "NCCL's)%s",
                (unsigned long long)t->facts.comm_id, mk_name_of(MK_NAMES_COLL, e->coll), e->from, e->to + 1,
                whole ? mk_name_of(MK_NAMES_ALGO, e->algo) : "NCCL's algorithm",
                whole ? mk_name_of(MK_NAMES_PROTO, e->proto) : "and protocol", e->channels,
                e->uses ? ", to be measured" : "");
    }
}

/* ---- an operation, from NCCL ---- */

static void answer(struct mk_tune *t, const struct mk_tune_ask *ask, struct mk_tune_answer *a)
{
    if (t->mode == MK_TUNE_OBSERVE && ++t->asked % CONSIDER == 0)
        log_proposal(t);
    uint64_t id = t->in_force;
    a->algo = a->proto = -1;
    a->channels = 0;
    a->id = 0;
    a->applies = t->mode == MK_TUNE_ON;
    if (!t->turn.begin)
        return;
    const int ret = t->turn.begin(t->turn.ctx, &id);
    pthread_mutex_lock(&t->lock);
    if (ret && !t->lost) {
        t->lost = true;
        MK_WARN("TUNER",
                "communicator %016llx: the outcome of an agreement is not known: what was in force stays",
                (unsigned long long)t->facts.comm_id);
    }
    if (!ret && id != t->in_force)
        switch_to(t, id);
    const struct offer *o = find(t, t->in_force);
    if (o) {
        choose(t, &o->table, ask, a);
        a->id = o->id;
        log_choice(t, ask, a);
    }
    pthread_mutex_unlock(&t->lock);
    if (a->applies && a->algo >= 0)
        ask->cost[a->algo * ask->protos + a->proto] = 0;
}

void mk_tune_next(struct mk_tune *t, const struct mk_tune_ask *ask, struct mk_tune_answer *a)
{
    __atomic_add_fetch(&t->asking, 1, __ATOMIC_RELAXED);
    answer(t, ask, a);
    __atomic_sub_fetch(&t->asking, 1, __ATOMIC_RELEASE);
}
