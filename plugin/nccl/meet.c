/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Where NCCL's communicators meet: a thread each that ends when all ranks are there, or will not be. Two own a meeting, that
 * thread and NCCL's communicator; the last one frees it. */
#include "mk/meet.h"
#include "mk/err.h"
#include "mk/log.h"
#include "mk/param.h"
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* MEETING: the thread is on its way, and hears of nobody; TELLING: it calls users; OPEN: the boot thread does; OVER: nobody */
enum state { MEETING, TELLING, OPEN, OVER };

struct mk_meet {
    struct mk_meet *next; /* under list_lock */
    const void *owner;
    struct mk_meet_who who;
    struct mk_settings settings;
    const struct mk_meet_user *user[MK_MEET_CHANNELS];
    void *of[MK_MEET_CHANNELS]; /* NULL: does not want it */
    pthread_mutex_t lock;
    pthread_cond_t cond;
    enum state state;
    bool leaves; /* NCCL has finalised it */
    int refs;
    struct mk_boot *boot; /* from TELLING on */
    pthread_t thread;     /* that meets */
};

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct mk_meet *list;
static const struct mk_meet_user *users[MK_MEET_CHANNELS];
static pid_t self; /* of the first meeting; in a child of that process nothing is done */
static bool over;  /* the process ends */

void mk_meet_use(enum mk_meet_channel channel, const struct mk_meet_user *user)
{
    __atomic_store_n(&users[channel], user, __ATOMIC_RELEASE);
}

static bool mine(void)
{
    const pid_t first = __atomic_load_n(&self, __ATOMIC_ACQUIRE);
    return !first || first == getpid();
}

static void drop(struct mk_meet *m)
{
    pthread_mutex_lock(&m->lock);
    const bool last = !--m->refs;
    pthread_mutex_unlock(&m->lock);
    if (!last)
        return;
    pthread_cond_destroy(&m->cond);
    pthread_mutex_destroy(&m->lock);
    free(m);
}

/* ---- what is heard ---- */

/* The boot thread: what comes before the users were told that all have met waits for that. False: nobody listens. */
static bool open_for(struct mk_meet *m)
{
    pthread_mutex_lock(&m->lock);
    while (m->state < OPEN)
        pthread_cond_wait(&m->cond, &m->lock);
    const bool open = m->state == OPEN;
    pthread_mutex_unlock(&m->lock);
    return open;
}

static void said(void *ctx, int from, const void *bytes, size_t n)
{
    struct mk_meet *m = ctx;
    const uint8_t *p = bytes;
    if (!n || *p >= MK_MEET_CHANNELS || !m->of[*p] || !open_for(m))
        return;
    if (m->user[*p]->said)
        m->user[*p]->said(m->of[*p], from, p + 1, n - 1);
}

static void tell_gone(struct mk_meet *m, int rank, int code)
{
    for (int c = 0; c < MK_MEET_CHANNELS; c++)
        if (m->of[c] && m->user[c]->gone)
            m->user[c]->gone(m->of[c], rank, code);
}

static void left(void *ctx, int rank)
{
    struct mk_meet *m = ctx;
    if (open_for(m))
        tell_gone(m, rank, rank < 0 ? MK_ERR_PEER : 0);
}

static void happened(void *ctx, const struct mk_boot_event *e)
{
    struct mk_meet *m = ctx;
    if (pthread_equal(pthread_self(), m->thread))
        return; /* somebody died before mk_boot_on_event: the barrier after it fails, and that is told */
    if (open_for(m))
        tell_gone(m, e->rank, e->code);
}

/* ---- the meeting ---- */

static bool goes_on(void *ctx)
{
    struct mk_meet *m = ctx;
    pthread_mutex_lock(&m->lock);
    const bool leaves = m->leaves;
    pthread_mutex_unlock(&m->lock);
    return !leaves && !__atomic_load_n(&over, __ATOMIC_ACQUIRE);
}

/* Not if NCCL's thread was faster: it has seen to it that nobody is called. */
static bool set_state(struct mk_meet *m, enum state s)
{
    pthread_mutex_lock(&m->lock);
    const bool may = !m->leaves || m->state == TELLING;
    if (may)
        m->state = s;
    else
        m->state = OVER;
    pthread_cond_broadcast(&m->cond);
    pthread_mutex_unlock(&m->lock);
    return may;
}

/* All ranks are there and none has left before it could hear. */
static int come_together(struct mk_meet *m, struct mk_boot **out)
{
    struct mk_boot *b;
    int ret = mk_boot_init_name_while(&m->settings, m->who.id, m->who.nranks, m->who.rank, goes_on, m, &b);
    if (ret)
        return ret;
    mk_boot_on_said(b, said, m);
    mk_boot_on_left(b, left, m);
    mk_boot_on_event(b, happened, m);
    ret = mk_boot_barrier(b);
    *out = b;
    return ret;
}

static void *meet(void *arg)
{
    struct mk_meet *m = arg;
    struct mk_boot *b = NULL;
    m->thread = pthread_self();
    const int ret = come_together(m, &b);
    if (ret && goes_on(m))
        MK_INFO("TUNER", "communicator %016llx: rank %d did not meet the others: %s",
                (unsigned long long)m->who.id, m->who.rank, mk_last_error());
    pthread_mutex_lock(&m->lock);
    m->boot = ret ? NULL : b;
    pthread_mutex_unlock(&m->lock);
    const bool tells = set_state(m, TELLING);
    for (int c = 0; c < MK_MEET_CHANNELS && tells && !ret; c++)
        if (m->of[c] && m->user[c]->met)
            m->user[c]->met(m->of[c]);
    if (tells && ret)
        tell_gone(m, -1, ret);
    if (tells)
        set_state(m, ret ? OVER : OPEN);
    if (ret || !tells)
        mk_boot_destroy(b);
    drop(m);
    return NULL;
}

static int start(struct mk_meet *m)
{
    pthread_t thread;
    sigset_t all, old;
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 1 << 20);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    const int err = pthread_create(&thread, &attr, meet, m);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    return err;
}

/* ---- NCCL's side ---- */

static bool wanted_by_anybody(void)
{
    for (int c = 0; c < MK_MEET_CHANNELS; c++)
        if (__atomic_load_n(&users[c], __ATOMIC_ACQUIRE))
            return true;
    return false;
}

static bool has_place(const struct mk_settings *s)
{
    static bool told;
    char host[256], port[16];
    if (*s->root || mk_settings_master(host, port))
        return true;
    if (!__atomic_exchange_n(&told, true, __ATOMIC_ACQ_REL))
        MK_INFO(
            "TUNER",
            "neither MK_ROOT nor MASTER_ADDR and MASTER_PORT are set: the ranks of NCCL's communicators do "
            "not meet, and nothing is agreed");
    return false;
}

static struct mk_meet *meet_new(const void *owner, const struct mk_meet_who *who)
{
    struct mk_meet *m = calloc(1, sizeof(*m));
    if (!m || mk_settings_load(&m->settings, false) || !has_place(&m->settings)) {
        free(m);
        return NULL;
    }
    m->owner = owner;
    m->who = *who;
    m->refs = 2;
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->cond, NULL);
    return m;
}

static void end_all(struct mk_meet *m)
{
    for (int c = 0; c < MK_MEET_CHANNELS; c++)
        if (m->of[c] && m->user[c]->end)
            m->user[c]->end(m->of[c]);
}

void mk_meet_join(const void *owner, const struct mk_meet_who *who)
{
    int wanted = 0;
    if (!wanted_by_anybody() || who->nranks < 2 || who->rank < 0 || who->rank >= who->nranks || !mine())
        return;
    struct mk_meet *m = meet_new(owner, who);
    if (!m)
        return;
    for (int c = 0; c < MK_MEET_CHANNELS; c++) {
        const struct mk_meet_user *u = __atomic_load_n(&users[c], __ATOMIC_ACQUIRE);
        m->user[c] = u;
        m->of[c] = u ? u->begin(m, who) : NULL;
        wanted += m->of[c] != NULL;
    }
    if (wanted) {
        __atomic_store_n(&self, getpid(), __ATOMIC_RELEASE);
        pthread_mutex_lock(&list_lock);
        m->next = list;
        list = m;
        pthread_mutex_unlock(&list_lock);
    }
    if (!wanted || start(m)) {
        m->refs = 1; /* there is no thread */
        m->state = OVER;
        if (!wanted)
            drop(m);
        else
            tell_gone(m, -1, MK_ERR_SYSTEM);
    }
}

static struct mk_meet *take(const void *owner)
{
    struct mk_meet *m = NULL;
    pthread_mutex_lock(&list_lock);
    for (struct mk_meet **at = &list; *at && !m;) {
        if ((*at)->owner == owner) {
            m = *at;
            *at = m->next;
        } else {
            at = &(*at)->next;
        }
    }
    pthread_mutex_unlock(&list_lock);
    return m;
}

void mk_meet_leave(const void *owner)
{
    if (!__atomic_load_n(&self, __ATOMIC_ACQUIRE) || !mine())
        return;
    struct mk_meet *m = take(owner);
    if (!m)
        return;
    pthread_mutex_lock(&m->lock);
    m->leaves = true;
    while (m->state == TELLING)
        pthread_cond_wait(&m->cond, &m->lock);
    struct mk_boot *b = m->state == OPEN ? m->boot : NULL;
    if (m->state == OPEN)
        m->state = OVER; /* MEETING: the thread gives up soon, and calls nobody */
    pthread_mutex_unlock(&m->lock);
    mk_boot_destroy(b); /* no call of the boot thread is under way after this */
    end_all(m);
    drop(m);
}

int mk_meet_say(struct mk_meet *m, enum mk_meet_channel channel, int to, const void *bytes, size_t n)
{
    uint8_t buf[MK_BOOT_MAX_SAY];
    if (n > MK_MEET_MAX_SAY || (n && !bytes) || !mine())
        return mk_fail_quiet(MK_ERR_INVALID, "message of %zu bytes between the ranks of a communicator", n);
    buf[0] = (uint8_t)channel;
    if (n)
        memcpy(buf + 1, bytes, n);
    int ret = MK_ERR_PEER;
    pthread_mutex_lock(&m->lock);
    if (m->boot && (m->state == TELLING || m->state == OPEN))
        ret = mk_boot_say(m->boot, to, buf, n + 1);
    else
        mk_fail_quiet(ret, "the ranks of the communicator have not met, or have parted");
    pthread_mutex_unlock(&m->lock);
    return ret;
}

__attribute__((destructor)) static void end_of_process(void)
{
    __atomic_store_n(&over, true, __ATOMIC_RELEASE);
}
