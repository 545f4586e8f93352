/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The proxy: one thread between a command ring and an engine.
 *
 *   take     copy commands out of the ring, free their slots at once, sort them into the stages of their links
 *   gather   while some stage is not full and commands come quickly, look again for at most 2 us
 *   put      hand each stage to its link in one batch
 *   progress completions become done words, flags, bells
 *   idle     some yields, then sleeps that grow to 1 ms; a kick, an arrival or a lock ends one early
 *
 * Threads: everything but the ring, `asleep` and `stop` is touched under `mutex`, which the thread gives back once a
 * round and keeps while it sleeps (mk_proxy_lock wakes it). done words: written here with release, only upwards;
 * read by blocks with acquire. */
#include "net/engine.h"
#include "mk/err.h"
#include "mk/log.h"
#include "mk/param.h"
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#define WINDOW_MAX_NS 2000u
#define WINDOW_MIN_NS 125u
#define IDLE_YIELDS 50u /* a thread that sleeps gets the processor back sooner than one that yields */
#define SLEEP_MIN_NS 20000u
#define SLEEP_MAX_NS 1000000u     /* some networks cannot wake us when something arrives */
#define SLEEP_NOLINK_NS 50000000u /* nothing can arrive: a kick or a lock wakes us */
#define NO_RECORD UINT32_MAX
#define COMMS 65536u

struct proxy_comm;

/* Commands taken from the ring for one link and not yet put. */
struct stage {
    struct proxy_comm *comm;
    struct mk_link *link;
    struct stage *next; /* in the list of stages that hold something */
    int node, n;
    bool listed, reported;
    struct mk_put put[8];
};

/* What a completion sets. */
struct record {
    uint64_t value;
    uint32_t done;
    uint32_t next; /* free list */
};

struct proxy_comm {
    struct mk_proxy *p;
    struct mk_proxy_comm d;
    uint16_t id;
    bool ring_bell, nonsense;
    struct proxy_comm *next;
    struct stage *stage; /* d.nnodes */
    struct record *rec;
    uint32_t nrec, free_rec;
};

struct mk_proxy {
    struct mk_engine *e;
    struct mk_ring ring;
    struct {
        _Alignas(64) uint64_t claim;
        _Alignas(64) uint64_t tail;
        _Alignas(64) uint64_t tail_seen;
    } words;
    _Alignas(64) uint32_t asleep; /* exchanged by the thread and by mk_proxy_kick */
    uint32_t stop;
    uint32_t lockers; /* threads that want the mutex: the loop stays out of their way */
    pthread_mutex_t mutex;
    pthread_t thread;
    uint64_t next; /* index of the next command */
    struct mk_cmd held;
    bool has_held; /* `held` waits for room in its stage */
    int batch;
    uint64_t window_ns;
    struct stage *full_list; /* stages that hold something */
    struct proxy_comm **comm;
    struct proxy_comm *comms;
    uint32_t next_id, ids;
    bool stranger_said, engine_failed;
    uint64_t sleep_ns;
    uint32_t idle;
    struct mk_proxy_stats stats;
};

/* ---- errors ---- */

static void report(struct stage *s, int code, const char *text)
{
    if (s->reported)
        return;
    s->reported = true;
    s->comm->p->stats.errors++;
    if (s->comm->d.on_error)
        s->comm->d.on_error(s->comm->d.ctx, s->node, code, text);
}

/* A command that no kernel of ours writes. node < 0: it does not even name a node. */
static void nonsense(struct proxy_comm *c, const struct mk_cmd *cmd, const char *what)
{
    char text[200];
    const uint64_t node = mk_cmd_node(cmd);
    snprintf(
        text, sizeof(text),
        "proxy: a command of communicator %u is wrong: %s (kind %llu, node %llu, chunk %llu, %llu bytes, "
        "notification %llu)",
        c->id, what, (unsigned long long)mk_cmd_kind(cmd), (unsigned long long)node,
        (unsigned long long)mk_cmd_chunk(cmd), (unsigned long long)mk_cmd_len(cmd),
        (unsigned long long)mk_cmd_note(cmd));
    if (node < (uint64_t)c->d.nnodes) {
        if (!c->stage[node].reported)
            mk_fail(MK_ERR_INTERNAL, "PROXY", "%s", text);
        report(&c->stage[node], MK_ERR_INTERNAL, text);
    } else if (!c->nonsense) {
        c->nonsense = true;
        c->p->stats.errors++;
        mk_fail(MK_ERR_INTERNAL, "PROXY", "%s", text);
        if (c->d.on_error)
            c->d.on_error(c->d.ctx, -1, MK_ERR_INTERNAL, text);
    }
}

static void link_failed(struct stage *s, int code)
{
    char text[200];
    mk_link_error(s->link, text);
    report(s, code, text);
}

/* ---- completions ---- */

static uint32_t record_take(struct proxy_comm *c, uint32_t done, uint64_t value)
{
    if (c->free_rec == NO_RECORD) {
        const uint32_t n = c->nrec ? 2 * c->nrec : 256;
        struct record *rec = realloc(c->rec, n * sizeof(*rec));
        if (!rec)
            return NO_RECORD;
        for (uint32_t i = c->nrec; i < n; i++)
            rec[i].next = i + 1 < n ? i + 1 : NO_RECORD;
        c->free_rec = c->nrec;
        c->rec = rec;
        c->nrec = n;
    }
    const uint32_t at = c->free_rec;
    c->free_rec = c->rec[at].next;
    c->rec[at].done = done;
    c->rec[at].value = value;
    return at;
}

/* id: the communicator's number in the high half (a put of a detached one may still be under way on a link that
 * was attached again), the record in the low half. */
static void on_done(void *ctx, struct mk_link *l, uint64_t id, int status)
{
    struct stage *s = ctx;
    struct proxy_comm *c = s->comm;
    const uint32_t at = (uint32_t)id;
    (void)l;
    if (id >> 32 != c->id)
        return;
    if (status)
        link_failed(s, status);
    if (at == NO_RECORD)
        return;
    struct record *r = &c->rec[at];
    uint64_t *word = &c->d.done[r->done];
    if (!status && r->value > mk_ld_rlx_sys_u64(word)) {
        mk_st_rel_sys_u64(word, r->value); /* release: the payload has been read, and is at the peer */
        c->ring_bell = true;
    }
    r->next = c->free_rec;
    c->free_rec = at;
}

static void ring_bells(struct mk_proxy *p)
{
    for (struct proxy_comm *c = p->comms; c; c = c->next) {
        if (!c->ring_bell)
            continue;
        c->ring_bell = false;
        if (c->d.bell)
            mk_bell_ring(c->d.bell);
    }
}

/* ---- commands ---- */

/* Fills a put from a WRITE; NULL, or what is wrong with it. */
static const char *fill_write(struct stage *s, const struct mk_cmd *cmd, struct mk_put *put)
{
    const struct mk_proxy_comm *d = &s->comm->d;
    const uint64_t swin = mk_cmd_swin(cmd), dwin = mk_cmd_dwin(cmd);
    put->len = (uint32_t)mk_cmd_len(cmd);
    put->flags = s->comm->p->e->caps.delivery_complete ? MK_PUT_DELIVERY : 0;
    put->mr = NULL;
    put->rmem = NULL;
    put->local_off = mk_cmd_loff(cmd);
    put->remote_off = mk_cmd_roff(cmd);
    if (!put->len)
        return NULL;
    if (swin >= (uint64_t)d->nwindows || dwin >= (uint64_t)d->nwindows)
        return "a window that does not exist";
    put->mr = d->windows[swin];
    put->rmem = d->rwindows[(uint64_t)s->node * (uint64_t)d->nwindows + dwin];
    if (!put->mr || !put->rmem)
        return "a window that does not exist";
    if (put->local_off > put->mr->len || put->len > put->mr->len - put->local_off)
        return "it leaves its source window";
    if (put->remote_off > put->rmem->len || put->len > put->rmem->len - put->remote_off)
        return "it leaves its destination window";
    if (put->len > s->comm->p->e->caps.max_message)
        return "longer than a message of this network";
    return NULL;
}

static const char *fill_put(struct stage *s, const struct mk_cmd *cmd, struct mk_put *put)
{
    const char *wrong = NULL;
    memset(put, 0, sizeof(*put));
    put->note = (uint32_t)mk_cmd_note(cmd);
    put->use4 = (uint32_t)mk_cmd_use4(cmd);
    put->value = mk_cmd_value(cmd);
    if (put->note >= s->link->notes.n)
        return "a notification that the peer does not have";
    if (mk_cmd_kind(cmd) == MK_CMD_WRITE)
        wrong = fill_write(s, cmd, put);
    else if (mk_cmd_kind(cmd) == MK_CMD_CREDIT)
        put->flags = MK_PUT_CREDIT;
    else
        return "of no known kind";
    if (wrong)
        return wrong;
    uint32_t rec = NO_RECORD;
    if (mk_cmd_done(cmd) != MK_CMD_NO_DONE) {
        if (mk_cmd_done(cmd) >= s->comm->d.ndone)
            return "a completion word that does not exist";
        rec = record_take(s->comm, (uint32_t)mk_cmd_done(cmd), put->value);
        if (rec == NO_RECORD)
            return "no memory for its completion";
    }
    put->id = (uint64_t)s->comm->id << 32 | rec;
    return NULL;
}

/* The stage of a command; NULL: dropped. */
static struct stage *stage_of(struct mk_proxy *p, const struct mk_cmd *cmd)
{
    const uint32_t id = (uint32_t)mk_cmd_comm(cmd);
    struct proxy_comm *c = p->comm[id];
    if (mk_cmd_kind(cmd) == MK_CMD_NOP)
        return NULL;
    if (!c) {
        if (id < p->ids)
            return NULL; /* detached: what is left of its commands */
        p->stats.errors++;
        if (!p->stranger_said)
            MK_WARN(
                "PROXY",
                "a command of communicator %u, which does not exist; dropped, further ones are only counted",
                id);
        p->stranger_said = true;
        return NULL;
    }
    if (mk_cmd_node(cmd) >= (uint64_t)c->d.nnodes || !c->stage[mk_cmd_node(cmd)].link) {
        nonsense(c, cmd, "there is no link to that node");
        return NULL;
    }
    return &c->stage[mk_cmd_node(cmd)];
}

static void flush_stage(struct stage *s)
{
    if (!s->n)
        return;
    const int took = mk_link_put(s->link, s->put, s->n);
    if (took < 0) {
        for (int i = 0; i < s->n; i++)
            on_done(s, s->link, s->put[i].id, took);
        s->n = 0;
        return;
    }
    s->n -= took;
    memmove(s->put, s->put + took, (size_t)s->n * sizeof(s->put[0]));
}

/* false: its stage is full, even after a flush. */
static bool stage_command(struct mk_proxy *p, const struct mk_cmd *cmd)
{
    struct stage *s = stage_of(p, cmd);
    if (!s)
        return true;
    if (s->n == p->batch) {
        flush_stage(s);
        if (s->n == p->batch)
            return false;
    }
    const char *wrong = fill_put(s, cmd, &s->put[s->n]);
    if (wrong) {
        nonsense(s->comm, cmd, wrong);
        return true;
    }
    s->n++;
    if (!s->listed) {
        s->listed = true;
        s->next = p->full_list;
        p->full_list = s;
    }
    return true;
}

/* Takes what is in the ring; returns how many commands. Bounded: one ring's worth, and the stages. */
static unsigned take(struct mk_proxy *p)
{
    const uint64_t slots = 1ull << p->ring.log2_slots;
    unsigned n = 0;
    if (p->has_held) {
        if (!stage_command(p, &p->held))
            return 0;
        p->has_held = false;
    }
    while (n < slots && mk_ring_peek(&p->ring, p->next, &p->held)) {
        mk_ring_free(&p->ring, ++p->next);
        n++;
        if (!stage_command(p, &p->held)) {
            p->has_held = true;
            break;
        }
    }
    p->stats.commands += n;
    return n;
}

static bool some_stage_has_room(const struct mk_proxy *p)
{
    for (const struct stage *s = p->full_list; s; s = s->next)
        if (s->n < p->batch)
            return true;
    return false;
}

/* Waits a little for more commands, if it paid lately: the window doubles when more came, halves when not, and
 * starts again when several commands stood in the ring at once. */
static unsigned gather(struct mk_proxy *p, unsigned taken)
{
    unsigned more = 0;
    if (!taken || p->batch == 1 || p->has_held)
        return 0;
    if (taken > 1 && !p->window_ns)
        p->window_ns = WINDOW_MIN_NS;
    if (!p->window_ns || !some_stage_has_room(p))
        return 0;
    p->stats.window_waits++;
    const uint64_t end = mk_time_ns() + p->window_ns;
    do {
        more += take(p);
    } while (!p->has_held && some_stage_has_room(p) && mk_time_ns() < end);
    p->window_ns = more ? 2 * p->window_ns : p->window_ns / 2;
    if (p->window_ns > WINDOW_MAX_NS)
        p->window_ns = WINDOW_MAX_NS;
    if (p->window_ns < WINDOW_MIN_NS)
        p->window_ns = 0;
    return more;
}

static void flush_stages(struct mk_proxy *p)
{
    struct stage **at = &p->full_list;
    while (*at) {
        struct stage *s = *at;
        flush_stage(s);
        if (s->n) {
            at = &s->next;
            continue;
        }
        s->listed = false;
        *at = s->next;
    }
}

/* ---- the thread ---- */

static void engine_failed(struct mk_proxy *p, int code)
{
    if (p->engine_failed)
        return;
    p->engine_failed = true;
    for (struct proxy_comm *c = p->comms; c; c = c->next)
        for (int node = 0; node < c->d.nnodes; node++)
            if (c->stage[node].link)
                link_failed(&c->stage[node], code);
}

static void go_idle(struct mk_proxy *p)
{
    struct mk_cmd peek;
    if (++p->idle < IDLE_YIELDS) {
        sched_yield();
        return;
    }
    /* The exchange orders the look at the ring after it: a producer that kicks before it has published for us to
     * see, one that kicks after it finds `asleep` and wakes us. */
    __atomic_exchange_n(&p->asleep, 1, __ATOMIC_ACQ_REL);
    if ((p->has_held || !mk_ring_peek(&p->ring, p->next, &peek)) &&
        !__atomic_load_n(&p->stop, __ATOMIC_ACQUIRE) && !__atomic_load_n(&p->lockers, __ATOMIC_ACQUIRE)) {
        p->stats.sleeps++;
        mk_engine_wait(p->e, p->sleep_ns);
        const uint64_t max = p->e->links ? SLEEP_MAX_NS : SLEEP_NOLINK_NS;
        p->sleep_ns = 2 * p->sleep_ns < max ? 2 * p->sleep_ns : max;
    }
    __atomic_store_n(&p->asleep, 0, __ATOMIC_RELEASE);
}

static void one_round(struct mk_proxy *p)
{
    unsigned work = take(p);
    work += gather(p, work);
    flush_stages(p);
    const int events = mk_engine_progress(p->e);
    if (events < 0)
        engine_failed(p, events);
    ring_bells(p);
    if (work || events > 0) {
        p->idle = 0;
        p->sleep_ns = SLEEP_MIN_NS;
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
    /* a read-modify-write, so that it cannot move before the publish of the command (see go_idle) */
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
    struct proxy_comm *c = calloc(1, sizeof(*c));
    struct stage *stage = calloc((size_t)d->nnodes, sizeof(*stage));
    if (!c || !stage) {
        free(c);
        free(stage);
        return mk_fail(MK_ERR_NOMEM, "PROXY", "a communicator of %d nodes", d->nnodes);
    }
    c->p = p;
    c->d = *d;
    c->stage = stage;
    c->free_rec = NO_RECORD;
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
            mk_link_on_done(d->links[node], on_done, &stage[node]);
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
    struct proxy_comm *c = p->comm[id];
    if (!c) {
        mk_proxy_unlock(p);
        return;
    }
    p->comm[id] = NULL;
    struct proxy_comm **at = &p->comms;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    struct stage **s = &p->full_list;
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

int mk_proxy_start(const struct mk_settings *s, struct mk_engine *e, uint32_t log2_slots,
                   struct mk_proxy **out)
{
    pthread_mutexattr_t attr;
    struct mk_proxy *p;
    if (log2_slots < 3 || log2_slots > 20)
        return mk_fail_quiet(MK_ERR_INVALID, "proxy: a ring of 2^%u slots", log2_slots);
    const size_t bytes = sizeof(struct mk_cmd) << log2_slots;
    p = aligned_alloc(64, (sizeof(*p) + 63) / 64 * 64);
    if (!p)
        return mk_fail(MK_ERR_NOMEM, "PROXY", "the proxy");
    memset(p, 0, sizeof(*p));
    p->comm = calloc(COMMS, sizeof(struct proxy_comm *));
    p->ring.slot = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!p->comm || !p->ring.slot) {
        free(p->ring.slot);
        free(p->comm);
        free(p);
        return mk_fail(MK_ERR_NOMEM, "PROXY", "a ring of 2^%u slots", log2_slots);
    }
    memset(p->ring.slot, 0, bytes);
    p->ring.claim = &p->words.claim;
    p->ring.tail = &p->words.tail;
    p->ring.tail_seen = &p->words.tail_seen;
    p->ring.log2_slots = log2_slots;
    p->e = e;
    p->batch = (int)(s->batch < e->batch ? s->batch : e->batch);
    p->sleep_ns = SLEEP_MIN_NS;
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
        "%llu credits merged, %llu errors, %llu sleeps",
        (unsigned long long)t->commands, (unsigned long long)t->bytes, (unsigned long long)t->batches,
        (unsigned long long)t->fill[1],
        (unsigned long long)(t->fill[2] + t->fill[3] + t->fill[4] + t->fill[5] + t->fill[6] + t->fill[7]),
        (unsigned long long)t->fill[8], (unsigned long long)t->window_waits,
        (unsigned long long)t->credits_merged, (unsigned long long)t->errors, (unsigned long long)t->sleeps);
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
