/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* One lock for all communicators, taken after the adapter's and before the meeting's. The recogniser is told with none held,
 * in the order of what was heard; a host that is about to begin an operation waits for that. */
#include "setup.h"
#include "adapt.h"
#include "mk/err.h"
#include "mk/log.h"
#include "mk/meet.h"
#include "mk/param.h"
#include "mk/profile.h"
#include "mk/shm.h"
#include "mk/tuner.h"
#include "setup_wire.h"
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NONE UINT64_MAX
#define LEAD 32 /* operations between the highest count and a switch */
#define REMIND_S 30

struct setup {
    struct setup *next;
    const void *owner;
    struct mk_meet *meet; /* NULL: not begun, or ended */
    uint64_t id, handle, met_ns, wish,
        again;                 /* rank 0: the state word to have; not proposed before this operation */
    int rank, nranks, waiting; /* hosts in mk_setup_begin */
    bool met, silent, over;
    bool off, told_off; /* this rank is; the recogniser knows */
    enum mk_pair_reason reason;
    bool ready, limited, agreed, posting, wants_off;
    bool held; /* of the profile: it is given back when the communicator goes */
    struct mk_pair_config config;
    struct mk_agree agree;
    uint32_t hellos, readies; /* rank 0 */
    uint8_t part[MK_AGREE_MAX_RANKS];
};
enum { PART_HELLO = 1, PART_READY = 2 };

/* What the recogniser is to be told, without the lock. */
struct todo {
    struct setup *s;
    uint64_t handle, number, word;
    struct mk_pair_config config;
    bool agreed, switched, off;
    int error;
    enum mk_pair_reason reason;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static struct setup *list;
static struct mk_pair_config mine;
static struct mk_settings settings;
static bool started, deterministic, seen;

static struct setup *find(const void *owner)
{
    struct setup *s = list;
    while (s && s->owner != owner)
        s = s->next;
    return s;
}

static struct setup *find_id(uint64_t id, uint32_t rank)
{
    struct setup *s = list;
    while (s && (s->id != id || (uint32_t)s->rank != rank))
        s = s->next;
    return s;
}

static void say_line(const struct setup *s)
{
    if (s->off)
        MK_INFO("HOOK", "fuse setup id=0x%llx rank=%d of %d: OFF reason=%s", (unsigned long long)s->id,
                s->rank, s->nranks, mk_pair_reason_name(s->reason));
    else
        MK_INFO("HOOK", "fuse setup id=0x%llx rank=%d of %d: ON from=%llu", (unsigned long long)s->id,
                s->rank, s->nranks, (unsigned long long)s->agree.number);
}

/* ---- to others, under the lock ---- */

static int say(struct setup *s, int to, const void *bytes, size_t n)
{
    return s->meet && !s->silent ? mk_meet_say(s->meet, MK_MEET_FUSE, to, bytes, n) : MK_ERR_PEER;
}

static void say_agree(struct setup *s, const struct mk_agree_msg *m)
{
    uint8_t bytes[MK_SETUP_AGREE];
    if (m->kind == MK_AGREE_NONE)
        return;
    mk_setup_put_agree(m, bytes);
    if (say(s, s->rank ? 0 : -1, bytes, sizeof(bytes)))
        s->silent = true;
}

/* This rank is off, whatever the others do. Not while a proposal that it has answered is open, nor after the agreement. */
static void end_off(struct setup *s, enum mk_pair_reason why)
{
    if (s->off || s->agreed)
        return;
    s->off = true;
    s->reason = why;
    say_line(s);
}

/* Off on all ranks, as far as they can be reached; after the agreement a switch to off. */
static void all_off(struct setup *s, enum mk_pair_reason why)
{
    const uint8_t m[2] = {MK_SETUP_OFF, (uint8_t)why};
    struct mk_agree_msg abort;
    if (s->off)
        return;
    if (s->agreed) {
        s->wants_off = true;
        if (s->rank)
            say(s, 0, m, sizeof(m));
        return;
    }
    if (s->rank) {
        say(s, 0, m, sizeof(m));
        if (!s->agree.open)
            end_off(s, why);
        s->wants_off = true; /* the outcome comes first */
        s->reason = why;
        return;
    }
    if (s->agree.open) {
        mk_agree_died(&s->agree, s->nranks > 1, &abort); /* nothing is proposed any more */
        say_agree(s, &abort);
    }
    say(s, -1, m, sizeof(m));
    end_off(s, why);
}

/* Rank 0: all have said what they can and that they are ready. */
static void propose(struct setup *s)
{
    uint8_t limits[MK_SETUP_LIMITS];
    struct mk_agree_msg msg;
    const uint64_t want = s->agreed && s->wants_off ? 0 : s->config.timed ? s->wish : MK_PAIR_FUSED;
    if (s->rank || s->off || s->silent || s->agree.open || s->agree.number != NONE)
        return;
    if (s->agreed ? want == s->agree.value || s->agree.begun < s->again
                  : s->readies != (uint32_t)s->nranks || s->hellos != (uint32_t)s->nranks)
        return;
    if (mk_agree_propose(&s->agree, want, &msg))
        return;
    if (!s->agreed) {
        mk_setup_put_limits(&s->config, limits);
        if (say(s, -1, limits, sizeof(limits)))
            s->silent = true;
    }
    say_agree(s, &msg);
}

/* ---- what was heard, under the lock ---- */

static void heard_hello(struct setup *s, int from, const uint8_t *m, size_t n)
{
    struct mk_pair_config theirs;
    if (s->rank || s->off || s->part[from] & PART_HELLO)
        return;
    if (!mk_setup_get_limits(m, n, &theirs) || theirs.nranks != (uint32_t)s->nranks) {
        all_off(s, MK_PAIR_MEMBER); /* of another version */
        return;
    }
    s->part[from] |= PART_HELLO;
    s->hellos++;
    mk_setup_meet_limits(&s->config, &theirs);
    if (s->hellos == (uint32_t)s->nranks &&
        (!s->config.functions || !s->config.dtypes || s->config.min_bytes > s->config.max_bytes))
        all_off(s, MK_PAIR_MEMBER); /* nothing that all can do */
    propose(s);
}

static void heard_ready(struct setup *s, int from)
{
    if (s->rank || s->part[from] & PART_READY)
        return;
    s->part[from] |= PART_READY;
    s->readies++;
    propose(s);
}

/* What has been decided by now. */
static void outcome(struct setup *s, uint64_t before, struct todo *t)
{
    if (s->agree.number == NONE || s->agree.number == before)
        return;
    t->agreed = !s->agreed;
    t->switched = true;
    t->config = s->config;
    t->number = s->agree.number;
    t->word = s->agree.next;
    if (!s->agreed)
        say_line(s);
    s->agreed = true;
}

static void heard_agree(struct setup *s, int from, const struct mk_agree_msg *m, struct todo *t)
{
    struct mk_agree_msg reply = {.kind = MK_AGREE_NONE};
    const uint64_t before = s->agree.number;
    const bool refuse = s->rank && m->kind == MK_AGREE_PROPOSE && (s->off || !s->ready || !s->limited);
    if (refuse ? mk_agree_refuse(&s->agree, m, &reply) : mk_agree_receive(&s->agree, from, m, &reply)) {
        MK_WARN("HOOK", "set-up of communicator %016llx: %s", (unsigned long long)s->id, mk_last_error());
        all_off(s, MK_PAIR_MEMBER);
        return;
    }
    say_agree(s, &reply);
    if (reply.kind == MK_AGREE_ABORT &&
        s->agreed) /* refused by one that has not come to the last switch yet */
        s->again = s->agree.begun + LEAD;
    else if (reply.kind == MK_AGREE_ABORT)
        all_off(s, MK_PAIR_MEMBER);
    else if (m->kind == MK_AGREE_ABORT && s->wants_off)
        end_off(s, s->reason);
    outcome(s, before, t);
}

static void heard_off(struct setup *s, enum mk_pair_reason why)
{
    why = why && why < MK_PAIR_REASONS ? why : MK_PAIR_OFF;
    if (!s->rank) {
        all_off(s, why);
        propose(s);
    } else if (!s->agree.open) {
        end_off(s, why);
    } else {
        s->wants_off = true; /* the outcome comes first */
        s->reason = why;
    }
}

/* ---- telling the recogniser ---- */

/* Under the lock, which is given up meanwhile. */
static void tell(struct setup *s, struct todo *t)
{
    struct mk_pair_event e = {.kind = MK_PAIR_EV_COMM_AGREED};
    t->handle = s->handle;
    t->off = s->off && !s->told_off && s->handle;
    s->told_off |= t->off;
    if (!t->handle || !(t->off || t->agreed || t->switched || t->error)) {
        pthread_cond_broadcast(&cond);
        return;
    }
    s->posting = true;
    s->held |= t->agreed;
    pthread_mutex_unlock(&lock);
    e.u.comm.handle = t->handle;
    if (t->agreed) {
        e.u.comm.config = t->config;
        mk_adapt_event(&e);
        mk_profile_hold(mk_profile_of_process(), 1); /* the witness stays */
    }
    if (t->switched) {
        e.kind = MK_PAIR_EV_COMM_SWITCH;
        e.u.comm.number = t->number;
        e.u.comm.word = t->word;
        mk_adapt_event(&e);
    }
    if (t->off) {
        e.kind = MK_PAIR_EV_COMM_OFF;
        e.u.comm.reason = t->reason ? t->reason : s->reason;
        mk_adapt_event(&e);
    }
    if (t->error) {
        e.kind = MK_PAIR_EV_COMM_ERROR;
        e.u.comm.error = t->error;
        mk_adapt_event(&e);
    }
    pthread_mutex_lock(&lock);
    s->posting = false;
    pthread_cond_broadcast(&cond);
}

/* ---- the meeting's calls ---- */

static void *begin_meeting(struct mk_meet *m, const struct mk_meet_who *who)
{
    pthread_mutex_lock(&lock);
    struct setup *s = started ? find_id(who->id, (uint32_t)who->rank) : NULL;
    if (s)
        s->meet = m;
    pthread_mutex_unlock(&lock);
    return s;
}

static void met(void *of)
{
    uint8_t m[MK_SETUP_LIMITS];
    struct setup *s = of;
    pthread_mutex_lock(&lock);
    s->met = true;
    s->met_ns = mk_time_ns();
    s->config.nranks = (uint32_t)s->nranks;
    mk_setup_put_limits(&s->config, m);
    m[0] = MK_SETUP_HELLO;
    const uint8_t no[2] = {MK_SETUP_OFF, (uint8_t)s->reason};
    if (s->off) /* it has been for a while, and nobody could be told */
        say(s, s->rank ? 0 : -1, no, sizeof(no));
    else if (!s->rank)
        heard_hello(s, 0, m, sizeof(m));
    else if (say(s, 0, m, sizeof(m)))
        end_off(s, MK_PAIR_MEMBER);
    pthread_mutex_unlock(&lock);
}

static void said(void *of, int from, const void *bytes, size_t n)
{
    const uint8_t *m = bytes;
    struct setup *s = of;
    struct mk_agree_msg agree;
    struct todo t;
    memset(&t, 0, sizeof(t));
    pthread_mutex_lock(&lock);
    if (n && m[0] == MK_SETUP_HELLO) {
        heard_hello(s, from, m, n);
    } else if (n == 1 && m[0] == MK_SETUP_READY) {
        heard_ready(s, from);
    } else if (n && m[0] == MK_SETUP_LIMITS_SET && !from && s->rank && !s->agreed) {
        s->limited = mk_setup_get_limits(m, n, &s->config) && s->config.nranks == (uint32_t)s->nranks;
    } else if (n == MK_SETUP_AGREE && m[0] == MK_SETUP_AGREES) {
        mk_setup_get_agree(m, &agree);
        heard_agree(s, from, &agree, &t);
    } else if (n == 2 && m[0] == MK_SETUP_OFF && (!from || !s->rank)) {
        heard_off(s, (enum mk_pair_reason)m[1]);
    } else if (n == 2 && m[0] == MK_SETUP_ERROR && m[1] && m[1] < 128) {
        t.error = -(int)m[1];
    }
    tell(s, &t);
    pthread_mutex_unlock(&lock);
}

/* Deaths, good-byes, and that nothing is heard any more. */
static void gone(void *of, int rank, int code)
{
    struct setup *s = of;
    struct mk_agree_msg m;
    struct todo t;
    memset(&t, 0, sizeof(t));
    pthread_mutex_lock(&lock);
    s->silent |= rank < 0;
    if (rank != s->rank) {
        mk_agree_died(&s->agree, rank >= 0 ? rank : s->rank ? 0 : s->nranks > 1, &m);
        say_agree(s, &m);
    }
    if (!s->met)
        end_off(s, MK_PAIR_TIMEOUT);
    else if (!s->rank)
        all_off(s, MK_PAIR_MEMBER);
    else if (!s->agree.open)
        end_off(s, MK_PAIR_MEMBER);
    if (s->agreed && code && rank >= 0 && rank != s->rank && !s->over)
        t.error = MK_ERR_PEER;
    tell(s, &t);
    pthread_mutex_unlock(&lock);
}

static void end_meeting(void *of)
{
    struct setup *s = of;
    pthread_mutex_lock(&lock);
    s->meet = NULL;
    s->silent = s->over = true;
    pthread_cond_broadcast(&cond);
    pthread_mutex_unlock(&lock);
}

/* ---- the profiler's calls ---- */

void mk_setup_start(const struct mk_fuse_ops *ops, bool is_deterministic, bool graph_only)
{
    static const struct mk_meet_user user = {begin_meeting, met, said, gone, end_meeting};
    pthread_mutex_lock(&lock);
    started = ops && !mk_settings_load(&settings, false);
    deterministic = is_deterministic;
    if (started)
        mine = ops->config, mine.graph_only = graph_only,
        mine.timed = ops->stamp && !is_deterministic && !graph_only && !strcmp(settings.tuner, "on");
    pthread_mutex_unlock(&lock);
    if (started)
        mk_profile_request(MK_PROFILE_LIGHT);
    mk_meet_use(MK_MEET_FUSE, started ? &user : NULL);
}

void mk_setup_join(const void *owner, uint64_t id, int rank, int nranks)
{
    struct mk_pair_event e = {.kind = MK_PAIR_EV_COMM_ID};
    const uint64_t lead = deterministic ? 1 : LEAD;
    struct setup *s = started && nranks > 1 ? calloc(1, sizeof(*s)) : NULL;
    if (!s || mk_agree_init(&s->agree, rank, nranks, lead, 0)) {
        free(s);
        return;
    }
    s->owner = owner;
    s->id = id;
    s->rank = rank;
    s->nranks = nranks;
    s->config = mine;
    s->wish = MK_PAIR_FUSED;
    e.u.comm.id = id;
    e.u.comm.rank = (uint32_t)rank;
    e.u.comm.nranks = (uint32_t)nranks;
    pthread_mutex_lock(&lock);
    s->next = list;
    list = s;
    seen = true;
    pthread_mutex_unlock(&lock);
    mk_adapt_event(&e);
}

void mk_setup_joined(const void *owner)
{
    pthread_mutex_lock(&lock);
    struct setup *s = find(owner);
    if (s && !s->meet)
        end_off(s, MK_PAIR_TIMEOUT); /* nowhere to meet */
    pthread_mutex_unlock(&lock);
}

void mk_setup_leave(const void *owner)
{
    pthread_mutex_lock(&lock);
    struct setup **at = &list, *s;
    while (*at && (*at)->owner != owner)
        at = &(*at)->next;
    if ((s = *at)) {
        *at = s->next;
        s->over = true;
        pthread_cond_broadcast(&cond);
        while (s->waiting || s->posting)
            pthread_cond_wait(&cond, &lock);
        if (s->held)
            mk_profile_hold(mk_profile_of_process(), -1);
    }
    pthread_mutex_unlock(&lock);
    free(s);
}

void mk_setup_profiled(const void *owner)
{
    struct mk_pair_event e = {.kind = MK_PAIR_EV_PROFILED};
    if (!started)
        return;
    pthread_mutex_lock(&lock);
    const struct setup *s = find(owner);
    if (s) {
        e.u.comm.id = s->id;
        e.u.comm.rank = (uint32_t)s->rank;
        e.u.comm.nranks = (uint32_t)s->nranks;
    }
    pthread_mutex_unlock(&lock);
    if (s)
        mk_adapt_event(&e);
}

/* ---- the adapter's calls ---- */

static void become_ready(struct setup *s)
{
    const uint8_t m[1] = {MK_SETUP_READY};
    if (s->ready || !s->met || s->off || s->silent || s->over)
        return;
    s->ready = true;
    if (!s->rank)
        heard_ready(s, 0);
    else if (say(s, 0, m, sizeof(m)))
        end_off(s, MK_PAIR_MEMBER);
}

/* Waits a while; false: MK_TIMEOUT is over. */
static bool wait_a_while(struct setup *s, uint64_t since)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 1;
    const int error = pthread_cond_timedwait(&cond, &lock, &until);
    if (error == ETIMEDOUT && (mk_time_ns() - since) / 1000000000 % REMIND_S == REMIND_S - 1)
        MK_WARN("HOOK", "set-up of communicator %016llx: rank %d waits for the others",
                (unsigned long long)s->id, s->rank);
    return mk_setup_in_time(since);
}

/* MK_DETERMINISTIC: the last operation that is not fused. */
static uint64_t last_plain(void)
{
    return (uint64_t)(settings.fuse_start > 1 ? settings.fuse_start : 1) - 1;
}

bool mk_setup_in_time(uint64_t since_ns)
{
    return (double)(mk_time_ns() - since_ns) < 1e9 * settings.timeout;
}

bool mk_setup_waits(const struct mk_pair_comm_facts *facts)
{
    pthread_mutex_lock(&lock);
    const struct setup *s =
        started && deterministic && facts->number == last_plain() ? find_id(facts->id, facts->rank) : NULL;
    const bool waits = s && !s->off && !s->over && !s->agreed;
    pthread_mutex_unlock(&lock);
    return waits;
}

/* MK_DETERMINISTIC: before the last operation that is not fused all come together, then the lead of 1 leads to the next. */
static void come_together(struct setup *s, const struct mk_pair_comm_facts *facts)
{
    const uint64_t since = mk_time_ns();
    bool in_time = true;
    if (facts->number != last_plain() || s->agreed)
        return;
    if (!facts->ready) { /* not tied, or not witnessed often enough */
        all_off(s, MK_PAIR_UNSEEN);
        return;
    }
    while (!s->off && !s->over && !s->agreed && !s->agree.open && in_time) {
        become_ready(s);
        if (!s->agree.open && !s->off)
            in_time = wait_a_while(s, since);
    }
    if (!in_time && !s->agree.open && !s->agreed)
        all_off(s, MK_PAIR_TIMEOUT);
}

int mk_setup_begin(uint64_t handle, const struct mk_pair_comm_facts *facts)
{
    uint64_t value;
    int ret = 0;
    struct todo t;
    memset(&t, 0, sizeof(t));
    pthread_mutex_lock(&lock);
    struct setup *s = started ? find_id(facts->id, facts->rank) : NULL;
    if (!s || s->off || s->over) {
        pthread_mutex_unlock(&lock);
        return 0;
    }
    s->waiting++;
    s->handle = handle;
    s->agree.begun = facts->number;
    if (deterministic)
        come_together(s, facts);
    const uint64_t since = mk_time_ns();
    propose(s);
    while (!s->over && (s->posting || (ret = mk_agree_begin(&s->agree, &value)) == MK_ERR_AGAIN))
        wait_a_while(s, since);
    tell(s, &t);
    s->waiting--;
    const bool lost = ret == MK_ERR_PEER && !s->over;
    pthread_cond_broadcast(&cond);
    pthread_mutex_unlock(&lock);
    return lost ? MK_ERR_PEER : 0;
}

void mk_setup_after(uint64_t handle, const struct mk_pair_comm_facts *facts)
{
    struct todo t;
    memset(&t, 0, sizeof(t));
    pthread_mutex_lock(&lock);
    struct setup *s = started ? find_id(facts->id, facts->rank) : NULL;
    if (s && !s->over) {
        s->handle = handle;
        s->waiting++;
        if (s->met && !s->rank && s->hellos < (uint32_t)s->nranks &&
            (double)(mk_time_ns() - s->met_ns) > 1e9 * settings.timeout)
            all_off(s, MK_PAIR_MEMBER); /* some met for another reason */
        if (facts->ready && !deterministic)
            become_ready(s);
        tell(s, &t);
        s->waiting--;
        pthread_cond_broadcast(&cond);
    }
    pthread_mutex_unlock(&lock);
}

bool mk_setup_seen(void)
{
    pthread_mutex_lock(&lock);
    const bool any = seen;
    pthread_mutex_unlock(&lock);
    return any;
}

void mk_setup_off(uint64_t id, uint32_t rank, enum mk_pair_reason why)
{
    pthread_mutex_lock(&lock);
    struct setup *s = started ? find_id(id, rank) : NULL;
    if (s && !s->over)
        all_off(s, why);
    pthread_mutex_unlock(&lock);
}

void mk_setup_wish(uint64_t id, uint32_t rank, uint64_t word)
{
    pthread_mutex_lock(&lock);
    struct setup *s = started ? find_id(id, rank) : NULL;
    if (s)
        s->wish = word;
    pthread_mutex_unlock(&lock);
}

void mk_setup_tell(uint64_t handle, int error)
{
    const uint8_t m[2] = {MK_SETUP_ERROR, (uint8_t)-error};
    pthread_mutex_lock(&lock);
    for (struct setup *s = list; s; s = s->next)
        if (s->handle == handle && handle && s->agreed)
            say(s, -1, m, sizeof(m));
    pthread_mutex_unlock(&lock);
}

void mk_setup_forget(uint64_t handle)
{
    pthread_mutex_lock(&lock);
    for (struct setup *s = list; s; s = s->next)
        if (s->handle == handle && handle) {
            s->handle = 0;
            s->over = true;
        }
    pthread_cond_broadcast(&cond);
    pthread_mutex_unlock(&lock);
}
