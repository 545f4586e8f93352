/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The proxy: one thread between a command ring and an engine.
 *
 *   take     copy commands out of the ring, free their slots at once, sort them into the stages of their links
 *   gather   while some stage is not full and commands come quickly, look again for at most 2 us
 *   put      hand each stage to its link in one batch
 *   progress completions become done words, flags, bells
 *   idle     some polls and yields, then sleeps that grow to 1 ms; a kick, an arrival or a lock ends one early. Where kernels
 *            post, which cannot kick: more polls, then short sleeps, and longer ones once nobody has posted or launched
 *            (mk_gpu_launched kicks) for some thousand of them
 *
 * Threads: everything but the ring, `asleep`, `kicked`, `unrung`, `lockers` and `stop` is touched under `mutex`, which the thread gives back once a
 * round and keeps while it sleeps (mk_proxy_lock wakes it). done words: written here with release, only upwards;
 * read by blocks with acquire. */
#include "net/proxy.h"
#include "mk/err.h"
#include "mk/log.h"
#include "mk/param.h"
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#define IDLE_POLLS 40u  /* some microseconds, then */
#define IDLE_YIELDS 40u /* as many yields, if they are cheap, then sleep */
#define YIELD_DEAR_NS 100000u
#define YIELD_PAUSE 256u /* idle times without yields after a dear one */
#define SLEEP_MAX_NS                                                                                         \
    1000000u /* an arrival, a kick or a due post ends it; ofi naps less where it cannot wake us */
#define IDLE_POLLS_UNRUNG 4000u /* kernels cannot kick: about a launch's pauses */
#define SLEEP_UNRUNG_NS 20000u
/* So many of those in a row, some 200 ms. After them a graph's launch, which kicks nobody, finds us up to so much later. A
 * process may have many communicators, each with a proxy: 20 us of sleep at a time take a fifth of a processor. */
#define NAPS_UNRUNG 5000u
#define SLEEP_UNUSED_NS 200000u
#define SLEEP_NOLINK_NS 50000000u /* nothing can arrive: a kick or a lock wakes us */
#define COMMS 65536u

/* ---- the thread ---- */

static void ring_bells(struct mk_proxy *p)
{
    for (struct mk_pcomm *c = p->comms; c; c = c->next) {
        if (!c->ring_bell)
            continue;
        c->ring_bell = false;
        if (c->d.bell)
            mk_bell_ring(c->d.bell);
    }
}

static void engine_failed(struct mk_proxy *p, int code)
{
    if (p->engine_failed)
        return;
    p->engine_failed = true;
    for (struct mk_pcomm *c = p->comms; c; c = c->next)
        for (int node = 0; node < c->d.nnodes; node++)
            if (c->stage[node].link)
                mk_proxy_link_failed(&c->stage[node], code);
}

/* Lets the others run, and notes what it cost: where they compute, it is their whole time slice, and a thread that
 * sleeps gets the processor back sooner than one that yields. */
static void yield(struct mk_proxy *p)
{
    const uint64_t begin = mk_time_ns();
    sched_yield();
    if (mk_time_ns() - begin > YIELD_DEAR_NS)
        p->no_yields = YIELD_PAUSE;
}

/* Kernels post, and never kick. */
static bool is_unrung(const struct mk_proxy *p)
{
    return __atomic_load_n(&p->unrung, __ATOMIC_RELAXED);
}

static bool is_kicked(const struct mk_proxy *p)
{
    return is_unrung(p) && __atomic_load_n(&p->kicked, __ATOMIC_RELAXED);
}

static uint64_t sleep_ns(struct mk_proxy *p)
{
    if (!p->e->links)
        return SLEEP_NOLINK_NS;
    if (!is_unrung(p))
        return SLEEP_MAX_NS;
    if (p->naps < NAPS_UNRUNG) {
        p->naps++;
        return SLEEP_UNRUNG_NS;
    }
    p->stats.long_sleeps++;
    return SLEEP_UNUSED_NS;
}

static void go_idle(struct mk_proxy *p)
{
    struct mk_cmd peek;
    if (is_kicked(p)) { /* a launch: its first commands are near */
        __atomic_store_n(&p->kicked, 0, __ATOMIC_RELAXED);
        p->idle = p->naps = 0;
    }
    const bool unrung = is_unrung(p);
    if (++p->idle < (unrung ? IDLE_POLLS_UNRUNG : IDLE_POLLS))
        return;
    if (!unrung && p->idle < IDLE_POLLS + IDLE_YIELDS && !p->no_yields) {
        yield(p);
        return;
    }
    p->no_yields -= p->no_yields > 0 && p->idle == IDLE_POLLS;
    /* The exchange orders the look at the ring after it: a producer that kicks before it has published for us to
     * see, one that kicks after it finds `asleep` and wakes us. */
    __atomic_exchange_n(&p->asleep, 1, __ATOMIC_ACQ_REL);
    if ((p->has_held || !mk_ring_peek(&p->ring, p->next, &peek)) && !is_kicked(p) &&
        !__atomic_load_n(&p->stop, __ATOMIC_ACQUIRE) && !__atomic_load_n(&p->lockers, __ATOMIC_ACQUIRE)) {
        p->stats.sleeps++;
        mk_engine_wait(p->e, sleep_ns(p));
    }
    __atomic_store_n(&p->asleep, 0, __ATOMIC_RELEASE);
}

static void one_round(struct mk_proxy *p)
{
    unsigned work = mk_proxy_take(p);
    work += mk_proxy_gather(p, work);
    mk_proxy_flush(p);
    const int events = mk_engine_progress(p->e);
    if (events < 0)
        engine_failed(p, events);
    ring_bells(p);
    if (work || events > 0) {
        p->idle = p->naps = 0;
    } else {
        go_idle(p);
    }
}

static void *thread_main(void *arg)
{
    struct mk_proxy *p = arg;
    prctl(PR_SET_NAME, "mk-proxy");
    prctl(PR_SET_TIMERSLACK, 1000ul); /* default 50 us: longer than small chunks take on a paced link */
    while (!__atomic_load_n(&p->stop, __ATOMIC_ACQUIRE)) {
        while (__atomic_load_n(&p->lockers, __ATOMIC_ACQUIRE))
            sched_yield(); /* a mutex is not fair: let them have it */
        pthread_mutex_lock(&p->mutex);
        one_round(p);
        pthread_mutex_unlock(&p->mutex);
    }
    return NULL;
}

void mk_proxy_kick(struct mk_proxy *p)
{
    __atomic_store_n(&p->kicked, 1, __ATOMIC_RELAXED);
    /* a read-modify-write, so that it cannot move before the publish of the command, or `kicked` (see go_idle) */
    if (__atomic_fetch_or(&p->asleep, 0, __ATOMIC_ACQ_REL))
        mk_engine_wake(p->e);
}

void mk_proxy_lock(struct mk_proxy *p)
{
    __atomic_fetch_add(&p->lockers, 1, __ATOMIC_ACQ_REL);
    if (__atomic_fetch_or(&p->asleep, 0, __ATOMIC_ACQ_REL))
        mk_engine_wake(p->e);
    pthread_mutex_lock(&p->mutex);
    __atomic_fetch_sub(&p->lockers, 1, __ATOMIC_ACQ_REL);
}

void mk_proxy_unlock(struct mk_proxy *p)
{
    pthread_mutex_unlock(&p->mutex);
}

/* ---- communicators ---- */

int mk_proxy_attach(struct mk_proxy *p, const struct mk_proxy_comm *d, uint16_t *id)
{
    if (d->nnodes < 1 || d->nwindows < 0 || !d->links || (d->nwindows && (!d->windows || !d->rwindows)) ||
        (d->ndone && !d->done))
        return mk_fail_quiet(MK_ERR_INVALID, "proxy: a communicator of %d nodes, %d windows", d->nnodes,
                             d->nwindows);
    struct mk_pcomm *c = calloc(1, sizeof(*c));
    struct mk_stage *stage = calloc((size_t)d->nnodes, sizeof(*stage));
    if (!c || !stage) {
        free(c);
        free(stage);
        return mk_fail(MK_ERR_NOMEM, "PROXY", "a communicator of %d nodes", d->nnodes);
    }
    c->p = p;
    c->d = *d;
    c->stage = stage;
    c->free_rec = MK_NO_RECORD;
    mk_proxy_lock(p);
    uint32_t tries = 0;
    while (tries < COMMS && p->comm[p->next_id % COMMS]) {
        p->next_id++;
        tries++;
    }
    if (tries == COMMS) {
        mk_proxy_unlock(p);
        free(c);
        free(stage);
        return mk_fail(MK_ERR_UNSUPPORTED, "PROXY", "%u communicators in one process", COMMS);
    }
    /* numbers go round: a command of a detached communicator does not reach a new one */
    c->id = (uint16_t)(p->next_id++ % COMMS);
    p->ids = p->ids > c->id ? p->ids : c->id + 1u;
    for (int node = 0; node < d->nnodes; node++) {
        stage[node].comm = c;
        stage[node].node = node;
        stage[node].link = d->links[node];
        if (d->links[node])
            mk_link_on_done(d->links[node], mk_proxy_on_done, &stage[node]);
    }
    c->next = p->comms;
    p->comms = c;
    p->comm[c->id] = c;
    *id = c->id;
    mk_proxy_unlock(p);
    return 0;
}

void mk_proxy_detach(struct mk_proxy *p, uint16_t id)
{
    mk_proxy_lock(p);
    struct mk_pcomm *c = p->comm[id];
    if (!c) {
        mk_proxy_unlock(p);
        return;
    }
    p->comm[id] = NULL;
    struct mk_pcomm **at = &p->comms;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    struct mk_stage **s = &p->full_list;
    while (*s) {
        if ((*s)->comm == c)
            *s = (*s)->next;
        else
            s = &(*s)->next;
    }
    for (int node = 0; node < c->d.nnodes; node++)
        if (c->stage[node].link)
            mk_link_on_done(c->stage[node].link, NULL, NULL);
    mk_proxy_unlock(p);
    free(c->stage);
    free(c->rec);
    free(c);
}

/* ---- life ---- */

/* Whole pages: kernels reach them, so they are pinned. */
#define PAGE 4096u
static size_t ring_slot_bytes(uint32_t log2_slots)
{
    return ((sizeof(struct mk_cmd) << log2_slots) + PAGE - 1) / PAGE * PAGE;
}

int mk_proxy_start(const struct mk_settings *s, struct mk_engine *e, uint32_t log2_slots,
                   struct mk_proxy **out)
{
    pthread_mutexattr_t attr;
    struct mk_proxy *p;
    if (log2_slots < 3 || log2_slots > 20)
        return mk_fail_quiet(MK_ERR_INVALID, "proxy: a ring of 2^%u slots", log2_slots);
    const size_t bytes = ring_slot_bytes(log2_slots);
    p = aligned_alloc(64, (sizeof(*p) + 63) / 64 * 64);
    if (!p)
        return mk_fail(MK_ERR_NOMEM, "PROXY", "the proxy");
    memset(p, 0, sizeof(*p));
    p->comm = calloc(COMMS, sizeof(struct mk_pcomm *));
    p->ring.slot = aligned_alloc(PAGE, bytes + PAGE);
    if (!p->comm || !p->ring.slot) {
        free(p->ring.slot);
        free(p->comm);
        free(p);
        return mk_fail(MK_ERR_NOMEM, "PROXY", "a ring of 2^%u slots", log2_slots);
    }
    memset(p->ring.slot, 0, bytes + PAGE);
    p->words = (struct mk_ring_words *)((uint8_t *)p->ring.slot + bytes);
    p->ring.claim = &p->words->claim;
    p->ring.tail = &p->words->tail;
    p->ring.tail_seen = &p->words->tail_seen;
    p->ring.log2_slots = log2_slots;
    p->e = e;
    p->batch = (int)(s->batch < e->batch ? s->batch : e->batch);
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE); /* attach and detach may stand inside lock */
    pthread_mutex_init(&p->mutex, &attr);
    pthread_mutexattr_destroy(&attr);
    const int err = pthread_create(&p->thread, NULL, thread_main, p);
    if (err) {
        pthread_mutex_destroy(&p->mutex);
        free(p->ring.slot);
        free(p->comm);
        free(p);
        return mk_fail(MK_ERR_SYSTEM, "PROXY", "starting the proxy thread: %s", strerror(err));
    }
    *out = p;
    return 0;
}

static void say_stats(const struct mk_proxy_stats *t)
{
    MK_INFO(
        "PROXY",
        "closed: %llu commands, %llu bytes in %llu batches (1: %llu, 2-7: %llu, 8: %llu), %llu window waits, "
        "%llu credits merged, %llu errors, %llu sleeps, %llu of them long",
        (unsigned long long)t->commands, (unsigned long long)t->bytes, (unsigned long long)t->batches,
        (unsigned long long)t->fill[1],
        (unsigned long long)(t->fill[2] + t->fill[3] + t->fill[4] + t->fill[5] + t->fill[6] + t->fill[7]),
        (unsigned long long)t->fill[8], (unsigned long long)t->window_waits,
        (unsigned long long)t->credits_merged, (unsigned long long)t->errors, (unsigned long long)t->sleeps,
        (unsigned long long)t->long_sleeps);
}

void mk_proxy_stop(struct mk_proxy *p)
{
    struct mk_proxy_stats t;
    if (!p)
        return;
    __atomic_store_n(&p->stop, 1, __ATOMIC_SEQ_CST);
    mk_engine_wake(p->e);
    pthread_join(p->thread, NULL);
    mk_proxy_get_stats(p, &t);
    say_stats(&t);
    while (p->comms)
        mk_proxy_detach(p, p->comms->id);
    mk_engine_close(p->e);
    pthread_mutex_destroy(&p->mutex);
    free(p->ring.slot);
    free(p->comm);
    free(p);
}

struct mk_engine *mk_proxy_engine(struct mk_proxy *p)
{
    return p->e;
}

const struct mk_ring *mk_proxy_ring(struct mk_proxy *p)
{
    return &p->ring;
}

void *mk_proxy_ring_memory(struct mk_proxy *p, size_t *bytes)
{
    *bytes = ring_slot_bytes(p->ring.log2_slots) + PAGE;
    return p->ring.slot;
}

void mk_proxy_unrung(struct mk_proxy *p)
{
    __atomic_store_n(&p->unrung, 1, __ATOMIC_RELEASE);
    mk_proxy_kick(p);
}

void mk_proxy_get_stats(struct mk_proxy *p, struct mk_proxy_stats *out)
{
    mk_proxy_lock(p);
    struct mk_proxy_stats t = p->stats;
    const struct mk_counters *n = &p->e->n;
    t.batches = n->batches;
    for (int i = 0; i < 9; i++)
        t.fill[i] = n->fill[i];
    t.bytes = n->bytes;
    t.credits_merged = n->credits_merged;
    t.errors += n->errors;
    mk_proxy_unlock(p);
    *out = t;
}
