/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Profiles: communicators, events, sampling, and what it costs. The tables are profile_kind.c, the file profile_file.c. */
#include "profile.h"
#include "mk/err.h"
#include "mk/log.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COLL = 1, CHANNEL = 2 }; /* what a handle names */
#define FIRST 256u              /* collectives of the process that are timed all; then PART of each PERIOD */
#define MORE 1024u
#define PERIOD 64u
#define PART 8u
#define WINDOW 1000000000ull /* ns */
#define COST_MAX 0.005
#define ONE_MAX 50000u /* ns: a longer event was not ours, but of who took the processor meanwhile */

static int requested = MK_PROFILE_OFF;
static bool forked; /* of a process that profiled: it does so no more */
static struct mk_profile *of_process;

static void in_child(void)
{
    __atomic_store_n(&forked, true, __ATOMIC_RELAXED);
}

struct mk_profile *mk_profile_of_process(void)
{
    return __atomic_load_n(&of_process, __ATOMIC_ACQUIRE);
}
void mk_profile_set_process(struct mk_profile *p)
{
    __atomic_store_n(&of_process, p, __ATOMIC_RELEASE);
}

void mk_profile_request(enum mk_profile_level level)
{
    if ((int)level < __atomic_load_n(&requested, __ATOMIC_RELAXED))
        __atomic_store_n(&requested, (int)level, __ATOMIC_RELAXED);
}
enum mk_profile_level mk_profile_requested(void)
{
    return (enum mk_profile_level)__atomic_load_n(&requested, __ATOMIC_RELAXED);
}

bool profile_off(const struct mk_profile *p)
{
    return !p || __atomic_load_n(&forked, __ATOMIC_RELAXED);
}

int mk_profile_open(const char *pattern, mk_clock_fn clock, struct mk_profile **out)
{
    static bool watched;
    struct mk_profile *p = calloc(1, sizeof(*p));
    if (!p)
        return mk_fail_quiet(MK_ERR_NOMEM, "no memory for a profile");
    if (gethostname(p->host, sizeof(p->host) - 1))
        memcpy(p->host, "host", 5);
    if (*pattern && !profile_path(pattern, p->host, (int)getpid(), p->path)) {
        free(p);
        return mk_fail_quiet(MK_ERR_INVALID,
                             "MK_PROFILE=%.60s is too long, or has another sign behind a %% than h, p or %%",
                             pattern);
    }
    if (!__atomic_exchange_n(&watched, true, __ATOMIC_RELAXED) && pthread_atfork(NULL, NULL, in_child)) {
        free(p);
        return mk_fail_quiet(MK_ERR_NOMEM, "no memory for a profile");
    }
    pthread_mutex_init(&p->lock, NULL);
    pthread_mutex_init(&p->span_lock, NULL);
    p->clock = clock;
    p->opened = p->window = clock();
    p->tag =
        (uint16_t)((p->opened ^ p->opened >> 16) * 31 + (uint64_t)getpid()) | 1; /* no address begins so */
    *out = p;
    return 0;
}

void mk_profile_close(struct mk_profile *p)
{
    if (!p)
        return;
    for (int i = 0; i < PROFILE_COMMS && p->comm[i]; i++) {
        pthread_mutex_destroy(&p->comm[i]->lock);
        free(p->comm[i]);
    }
    pthread_mutex_destroy(&p->lock);
    pthread_mutex_destroy(&p->span_lock);
    free(p);
}

/* ---- level: what NCCL is asked for ---- */

static int wanted(const struct mk_profile *p)
{
    const uint32_t n = __atomic_load_n(&p->colls, __ATOMIC_RELAXED);
    const int limit = __atomic_load_n(&p->limit, __ATOMIC_RELAXED);
    const uint32_t more = __atomic_load_n(&p->more, __ATOMIC_RELAXED) - n;
    int level = n < FIRST || n % PERIOD < PART || (more && more <= MORE) ? MK_PROFILE_FULL : MK_PROFILE_LIGHT;
    if (limit > level)
        level = limit;
    if (level == MK_PROFILE_OFF && __atomic_load_n(&p->holds, __ATOMIC_RELAXED) > 0)
        level = MK_PROFILE_LIGHT;
    return level;
}

static void write_mask(const struct mk_profile *p, const struct mk_profile_comm *c)
{
    if (c->mask)
        __atomic_store_n(c->mask,
                         p->level == MK_PROFILE_FULL    ? c->who.mask_full
                         : p->level == MK_PROFILE_LIGHT ? c->who.mask_light
                                                        : 0,
                         __ATOMIC_RELAXED);
}

/* From an event it waits for nobody (the lock is held while the file is written): the next event finds the same. */
static void set_level(struct mk_profile *p, bool wait)
{
    if (!wait && pthread_mutex_trylock(&p->lock))
        return;
    if (wait)
        pthread_mutex_lock(&p->lock);
    const int level = wanted(p);
    if (level != p->level) {
        __atomic_store_n(&p->level, level, __ATOMIC_RELAXED);
        for (int i = 0; i < PROFILE_COMMS && p->comm[i]; i++)
            if (p->comm[i]->live)
                write_mask(p, p->comm[i]);
    }
    pthread_mutex_unlock(&p->lock);
}

enum mk_profile_level mk_profile_level(struct mk_profile *p)
{
    return profile_off(p) ? MK_PROFILE_OFF
                          : (enum mk_profile_level)__atomic_load_n(&p->level, __ATOMIC_RELAXED);
}

void mk_profile_more(struct mk_profile *p, uint32_t n)
{
    if (profile_off(p))
        return;
    n = n < MORE ? n : MORE;
    __atomic_store_n(&p->more, __atomic_load_n(&p->colls, __ATOMIC_RELAXED) + n, __ATOMIC_RELAXED);
    if (wanted(p) != __atomic_load_n(&p->level, __ATOMIC_RELAXED))
        set_level(p, false);
}

void mk_profile_hold(struct mk_profile *p, int n)
{
    if (profile_off(p))
        return;
    __atomic_fetch_add(&p->holds, n, __ATOMIC_RELAXED);
    set_level(p, true);
}

void mk_profile_limit(struct mk_profile *p, enum mk_profile_level level)
{
    if (profile_off(p))
        return;
    pthread_mutex_lock(&p->lock);
    if ((int)level > p->limit) {
        __atomic_store_n(&p->limit, (int)level, __ATOMIC_RELAXED);
        p->told = p->limit; /* asked for: nothing to say */
    }
    pthread_mutex_unlock(&p->lock);
    set_level(p, true);
}

/* ---- what it costs ---- */

/* At the start of an event: a time if it is one of the measured, else 0. */
static uint64_t measure(struct mk_profile *p)
{
    return __atomic_fetch_add(&p->events, 1, __ATOMIC_RELAXED) % PROFILE_MEASURED ? 0 : p->clock();
}

static void judge(struct mk_profile *p, uint64_t now)
{
    bool stepped = false;
    if (pthread_mutex_trylock(&p->lock))
        return;
    const uint64_t passed = now - p->window;
    if (now > p->window && passed >= WINDOW) {
        const uint64_t spent = __atomic_exchange_n(&p->spent, 0, __ATOMIC_RELAXED);
        const bool over = (double)spent * PROFILE_MEASURED > COST_MAX * (double)passed;
        p->spent_before += spent;
        __atomic_store_n(&p->window, now, __ATOMIC_RELAXED);
        stepped = over && p->over && p->limit < MK_PROFILE_OFF;
        if (stepped)
            __atomic_store_n(&p->limit, p->limit + 1, __ATOMIC_RELAXED);
        p->over = over && !stepped;
    }
    pthread_mutex_unlock(&p->lock);
    if (stepped)
        set_level(p, false);
}

/* Not from an event: those come from callbacks of CUDA too, where NCCL's logger must not be called. */
static void tell(struct mk_profile *p)
{
    pthread_mutex_lock(&p->lock);
    const int told = p->told, now = p->limit;
    p->told = now;
    pthread_mutex_unlock(&p->lock);
    if (now > told)
        MK_INFO("TUNER", "the profile took more than 0.5 %% of the time: %s",
                now == MK_PROFILE_LIGHT ? "the GPU's times are not asked for any more" : "it has ended");
}

static void measured(struct mk_profile *p, uint64_t begin)
{
    if (!begin)
        return;
    const uint64_t now = p->clock(), took = now > begin ? now - begin : 0;
    __atomic_fetch_add(&p->spent, took < ONE_MAX ? took : ONE_MAX, __ATOMIC_RELAXED);
    if (now - __atomic_load_n(&p->window, __ATOMIC_RELAXED) >= WINDOW)
        judge(p, now);
}

/* ---- communicators ---- */

/* A place for a new one: a fresh one, or that of the one that left first. Under the lock. */
static struct mk_profile_comm *place(struct mk_profile *p)
{
    struct mk_profile_comm *oldest = NULL;
    for (int i = 0; i < PROFILE_COMMS; i++) {
        struct mk_profile_comm *c = p->comm[i];
        if (!c) {
            c = calloc(1, sizeof(*c));
            if (!c)
                break;
            pthread_mutex_init(&c->lock, NULL);
            c->index = i;
            __atomic_store_n(&p->comm[i], c, __ATOMIC_RELEASE);
            return c;
        }
        if (!c->live && (!oldest || c->left < oldest->left))
            oldest = c;
    }
    p->forgotten++;
    return oldest;
}

struct mk_profile_comm *mk_profile_join(struct mk_profile *p, const struct mk_profile_who *who, int *mask)
{
    if (profile_off(p))
        return NULL;
    tell(p);
    pthread_mutex_lock(&p->lock);
    struct mk_profile_comm *c = place(p);
    if (c) {
        profile_forget(p, c);
        pthread_mutex_lock(&c->lock);
        const uint32_t gen = c->gen;
        const size_t from = offsetof(struct mk_profile_comm, who);
        memset((char *)c + from, 0, sizeof(*c) - from);
        c->gen = gen;
        c->who = *who;
        snprintf(c->name, sizeof(c->name), "%s", who->name ? who->name : "");
        c->who.name = c->name;
        pthread_mutex_unlock(&c->lock);
        c->live = c->used = true;
        c->mask = mask;
        write_mask(p, c);
    }
    pthread_mutex_unlock(&p->lock);
    return c;
}

void mk_profile_leave(struct mk_profile *p, struct mk_profile_comm *c)
{
    if (profile_off(p) || !c)
        return;
    pthread_mutex_lock(&p->lock);
    pthread_mutex_lock(&c->lock);
    for (int i = 0; i < PROFILE_OPS; i++) {
        profile_fold(p, c, &c->op[i]);
        c->op[i].gen = 0;
    }
    pthread_mutex_unlock(&c->lock);
    c->live = false;
    c->mask = NULL;
    c->left = ++p->lefts;
    pthread_mutex_unlock(&p->lock);
    tell(p);
    mk_profile_write(p);
}

int mk_profile_end(struct mk_profile *p)
{
    if (profile_off(p))
        return 0;
    for (int i = 0; i < PROFILE_COMMS; i++) {
        struct mk_profile_comm *c = __atomic_load_n(&p->comm[i], __ATOMIC_ACQUIRE);
        if (!c)
            break;
        pthread_mutex_lock(&c->lock);
        for (int k = 0; k < PROFILE_OPS; k++)
            if (c->op[k].starts && c->op[k].starts == c->op[k].stops)
                profile_fold_run(p, c, &c->op[k]);
        pthread_mutex_unlock(&c->lock);
    }
    return mk_profile_write(p);
}

/* ---- events ---- */

static uint64_t handle_of(const struct mk_profile *p, const struct mk_profile_comm *c, int slot, uint32_t gen,
                          int what)
{
    return (uint64_t)p->tag << 48 | (uint64_t)(gen & 0xfffffff) << 20 | (uint64_t)c->index << 12 |
           (uint64_t)slot << 2 | (uint64_t)what;
}

/* What the handle names, its communicator locked; NULL: nothing that is known here. */
static struct profile_op *take(struct mk_profile *p, uint64_t handle, struct mk_profile_comm **out)
{
    const int index = handle >> 12 & 0xff;
    if (handle >> 48 != p->tag || index >= PROFILE_COMMS)
        return NULL;
    struct mk_profile_comm *c = __atomic_load_n(&p->comm[index], __ATOMIC_ACQUIRE);
    if (!c)
        return NULL;
    pthread_mutex_lock(&c->lock);
    struct profile_op *op = &c->op[handle >> 2 & (PROFILE_OPS - 1)];
    if (op->gen && (op->gen & 0xfffffff) == (handle >> 20 & 0xfffffff)) {
        *out = c;
        return op;
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

void mk_profile_api(struct mk_profile_comm *c, bool p2p)
{
    if (c && !__atomic_load_n(&forked, __ATOMIC_RELAXED))
        __atomic_fetch_add(p2p ? &c->api_p2p : &c->api, 1, __ATOMIC_RELAXED);
}

/* Versions 1 to 3 name the communicator in its events alone. */
static void learn(struct mk_profile_comm *c, const struct mk_profile_event *e)
{
    if (e->comm_id && !c->who.id)
        __atomic_store_n(&c->who.id, e->comm_id, __ATOMIC_RELAXED);
    if (c->who.rank < 0 && e->rank >= 0)
        __atomic_store_n(&c->who.rank, e->rank, __ATOMIC_RELAXED);
}

uint64_t mk_profile_begin(struct mk_profile *p, struct mk_profile_comm *c, const struct mk_profile_event *e)
{
    /* off: graphs that were captured before go on asking */
    if (profile_off(p) || !c || __atomic_load_n(&p->level, __ATOMIC_RELAXED) == MK_PROFILE_OFF)
        return 0;
    const uint64_t begin = measure(p), now = p->clock();
    const uint64_t bytes = mk_coll_bytes(e->coll, e->count, mk_dtype_bytes(e->dtype), c->who.nranks);
    pthread_mutex_lock(&c->lock);
    learn(c, e);
    if (!++c->gen || !(c->gen & 0xfffffff))
        c->gen++;
    const int slot = (int)(c->gen % PROFILE_OPS);
    struct profile_op *op = &c->op[slot];
    if (op->gen)
        profile_fold(p, c, op);
    memset(op, 0, sizeof(*op));
    op->gen = c->gen;
    op->kind = (uint16_t)profile_kind_of(c, e, bytes);
    op->expected = e->channels;
    op->exact = e->exact && e->channels;
    op->enqueuing = true;
    op->host_begin = now;
    const uint64_t handle = handle_of(p, c, slot, c->gen, COLL);
    __atomic_fetch_add(e->coll == MK_COLL_SEND || e->coll == MK_COLL_RECV ? &c->p2p : &c->colls, 1,
                       __ATOMIC_RELAXED);
    pthread_mutex_unlock(&c->lock);
    __atomic_fetch_add(&p->colls, 1, __ATOMIC_RELAXED);
    if (wanted(p) != __atomic_load_n(&p->level, __ATOMIC_RELAXED))
        set_level(p, false);
    measured(p, begin);
    return handle;
}

uint64_t mk_profile_run(struct mk_profile *p, uint64_t parent, int channel, uint64_t timer)
{
    struct mk_profile_comm *c;
    if (profile_off(p) || (parent & 3) != COLL)
        return 0;
    const uint64_t begin = measure(p);
    struct profile_op *op = take(p, parent, &c);
    if (!op)
        return 0;
    const uint64_t at = c->who.table >= 4 ? timer : p->clock();
    const uint64_t bit = channel < 0 ? 0 : 1ull << channel % 64;
    /* a captured collective that runs again */
    if (channel < 0 ? op->starts && op->starts == op->stops && at > op->stop : (op->seen & bit) != 0)
        profile_fold_run(p, c, op);
    op->seen |= bit;
    if (!op->starts || at < op->start)
        op->start = at;
    op->starts++;
    pthread_mutex_unlock(&c->lock);
    measured(p, begin);
    return (parent & ~3ull) | CHANNEL;
}

void mk_profile_timer(struct mk_profile *p, uint64_t handle, uint64_t timer)
{
    struct mk_profile_comm *c;
    if (profile_off(p) || (handle & 3) != CHANNEL)
        return;
    const uint64_t begin = measure(p);
    struct profile_op *op = take(p, handle, &c);
    if (!op)
        return;
    if (op->timers < op->starts && c->who.table >= 4) {
        op->timers++;
        op->stop = timer > op->stop ? timer : op->stop;
    }
    pthread_mutex_unlock(&c->lock);
    measured(p, begin);
}

static void stop_channel(struct mk_profile *p, struct mk_profile_comm *c, struct profile_op *op)
{
    if (op->stops == op->starts)
        return; /* more ends than beginnings */
    if (c->who.table < 4)
        op->stop = p->clock();
    if (++op->stops == op->expected && op->exact)
        profile_fold_run(p, c, op);
}

void mk_profile_stop(struct mk_profile *p, uint64_t handle)
{
    struct mk_profile_comm *c;
    if (profile_off(p) || !handle)
        return;
    const uint64_t begin = measure(p);
    struct profile_op *op = take(p, handle, &c);
    if (!op)
        return;
    if ((handle & 3) == CHANNEL) {
        stop_channel(p, c, op);
    } else if (op->enqueuing) {
        const uint64_t now = p->clock(), ns = now > op->host_begin ? now - op->host_begin : 0;
        op->enqueuing = false;
        if (op->kind < PROFILE_KINDS) {
            c->kind[op->kind].host_ns += ns;
            c->kind[op->kind].host_hist[mk_hist_bucket(ns)]++;
        }
    }
    pthread_mutex_unlock(&c->lock);
    measured(p, begin);
}

/* ---- asking ---- */

/* Under the lock. */
static struct mk_profile_comm *find(struct mk_profile *p, uint64_t id, int rank)
{
    for (int i = 0; i < PROFILE_COMMS && p->comm[i]; i++) {
        struct mk_profile_comm *c = p->comm[i];
        if (c->live && __atomic_load_n(&c->who.id, __ATOMIC_RELAXED) == id &&
            (rank < 0 || __atomic_load_n(&c->who.rank, __ATOMIC_RELAXED) == rank))
            return c;
    }
    return NULL;
}

struct mk_profile_comm *mk_profile_find(struct mk_profile *p, uint64_t id, int rank)
{
    if (profile_off(p))
        return NULL;
    pthread_mutex_lock(&p->lock);
    struct mk_profile_comm *c = find(p, id, rank);
    pthread_mutex_unlock(&p->lock);
    return c;
}

bool mk_profile_counted(struct mk_profile *p, uint64_t id, int rank, struct mk_profile_count *out)
{
    if (profile_off(p))
        return false;
    pthread_mutex_lock(&p->lock);
    const struct mk_profile_comm *c = find(p, id, rank);
    if (c) {
        out->api = __atomic_load_n(&c->api, __ATOMIC_RELAXED);
        out->api_p2p = __atomic_load_n(&c->api_p2p, __ATOMIC_RELAXED);
        out->colls = __atomic_load_n(&c->colls, __ATOMIC_RELAXED);
        out->p2p = __atomic_load_n(&c->p2p, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&p->lock);
    return c;
}

bool mk_profile_kind(struct mk_profile *p, struct mk_profile_comm *c, int i, struct mk_kind *out)
{
    if (profile_off(p) || !c || i < 0)
        return false;
    pthread_mutex_lock(&c->lock);
    const bool there = i < c->nkinds;
    if (there)
        profile_copy_kind(p, c, i, out);
    pthread_mutex_unlock(&c->lock);
    return there;
}
