/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* NCCL's communicators meet: processes over loopback that make and finalise communicators by the profiler's tables, with a user
 * that greets. Nobody who wants it: no thread, no descriptor. Then: ranks that never come, that die after the meeting, that
 * are finalised before it, many in a row, two ranks in one process, a forked child. Links the objects, which hide the seam. */
#include "check.h"
#include "mk/err.h"
#include "mk/meet.h"
#include "mk/profile.h"
#include "tests/net/free_port.h"
#include "tests/plugin/prof_events.h"
#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { RANKS = 4, WAIT_MS = 120000 };
#ifdef __SANITIZE_THREAD__
enum { MAY_STAY = 3 }; /* the sanitizer has threads of its own */
#else
enum { MAY_STAY = 1 }; /* the meeting place's */
#endif

/* ---- a user ---- */

struct party {
    struct mk_meet *m;
    struct mk_meet_who who;
    int met, heard[RANKS], died[RANKS], left[RANKS], failed, code, wrong, ended; /* atomic */
};
static bool declines;
static struct party *last; /* of this thread's init; a process makes its communicators in one thread */
static uint8_t greeting[MK_MEET_MAX_SAY];

static void add(int *of)
{
    __atomic_add_fetch(of, 1, __ATOMIC_ACQ_REL);
}
static int get(const int *of)
{
    return __atomic_load_n(of, __ATOMIC_ACQUIRE);
}

static void *begin(struct mk_meet *m, const struct mk_meet_who *who)
{
    if (declines)
        return NULL;
    last = calloc(1, sizeof(*last));
    last->m = m;
    last->who = *who;
    return last;
}
static void met(void *of)
{
    struct party *p = of;
    if (get(&p->ended) || mk_meet_say(p->m, MK_MEET_FUSE, -1, greeting, sizeof(greeting)))
        add(&p->wrong);
    add(&p->met);
}
static void said(void *of, int from, const void *bytes, size_t n)
{
    struct party *p = of;
    if (!get(&p->met) || get(&p->ended) || n != sizeof(greeting) || memcmp(bytes, greeting, n))
        add(&p->wrong);
    add(&p->heard[from]);
}
static void gone(void *of, int rank, int code)
{
    struct party *p = of;
    if (get(&p->ended) || rank >= p->who.nranks || (rank >= 0 && !get(&p->met)))
        add(&p->wrong);
    __atomic_store_n(&p->code, code, __ATOMIC_RELEASE);
    add(rank < 0 ? &p->failed : code ? &p->died[rank] : &p->left[rank]);
}
static void end(void *of)
{
    struct party *p = of;
    if (mk_meet_say(p->m, MK_MEET_FUSE, -1, greeting, 1) != MK_ERR_PEER)
        add(&p->wrong);
    add(&p->ended);
}
static const struct mk_meet_user user = {begin, met, said, gone, end};

/* ---- NCCL ---- */

static void *self;
static int mask;

static struct party *make(struct prof *p, int version, uint64_t id, int rank, int nranks)
{
    last = NULL;
    CHECK(prof_open(p, self, version, id, rank, nranks, &mask) && !p->failed, "rank %d: no communicator",
          rank);
    return last;
}
static void finalise(struct prof *p, struct party *party)
{
    prof_close(p);
    CHECK(!p->failed && (!party || get(&party->ended) == 1), "finalize fails, or the user is not told");
}

static void pause_ms(int ms)
{
    const struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}
static bool wait_for(const int *of, int n)
{
    for (int ms = 0; ms < WAIT_MS && get(of) < n; ms += 5)
        pause_ms(5);
    return get(of) >= n;
}
/* All have met, and this one has heard each other one. */
static void together(struct party *p, const char *what)
{
    CHECK(wait_for(&p->met, 1), "%s: rank %d did not meet (%d)", what, p->who.rank, get(&p->code));
    for (int r = 0; r < p->who.nranks; r++)
        CHECK(r == p->who.rank || wait_for(&p->heard[r], 1), "%s: rank %d did not hear rank %d", what,
              p->who.rank, r);
}
static void no_fault(struct party *p, const char *what)
{
    CHECK(!get(&p->wrong), "%s: rank %d: %d calls out of order", what, p->who.rank, get(&p->wrong));
    free(p);
}

static int count_in(const char *dir)
{
    int n = 0;
    DIR *d = opendir(dir);
    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n;
}

/* ---- cases: what rank `me` of `n` processes does ---- */

static void greets(int me, int n)
{
    struct prof p;
    struct party *a = make(&p, 4 + me % 3, 0x100, me, n); /* v4 names it by its hash */
    together(a, "greets");
    for (int r = n - 1; r > me; r--) /* the last rank first; who leaves is told to the others */
        CHECK(wait_for(&a->left[r], 1), "greets: rank %d: rank %d has not left", me, r);
    for (int r = 0; r < n; r++)
        CHECK(get(&a->heard[r]) == (r != me), "greets: rank %d heard rank %d %d times", me, r,
              get(&a->heard[r]));
    CHECK(!get(&a->failed), "greets: rank %d hears nothing any more", me);
    finalise(&p, a);
    no_fault(a, "greets");
}

static void one_never_comes(int me, int n)
{
    struct prof p;
    setenv("MK_TIMEOUT", "2", 1);
    if (me == n - 1)
        return;
    struct party *a = make(&p, 5, 0x200, me, n);
    CHECK(wait_for(&a->failed, 1) && !get(&a->met), "never comes: rank %d is not told", me);
    CHECK(get(&a->code) == MK_ERR_TIMEOUT || get(&a->code) == MK_ERR_PEER, "never comes: %d", get(&a->code));
    finalise(&p, a);
    no_fault(a, "never comes");
}

static void dies(int me, int who, uint64_t id)
{
    struct prof p;
    struct party *a = make(&p, 6, id, me, 3);
    together(a, "dies");
    if (me != who)
        CHECK(!mk_meet_say(a->m, MK_MEET_FUSE, who, greeting, sizeof(greeting)), "dies: rank %d is dumb", me);
    for (int r = 0; r < 3 && me == who; r++)
        wait_for(&a->heard[r], r == me ? 0 : 2); /* the others have met too */
    if (me == who)
        raise(SIGKILL);
    CHECK(wait_for(&a->died[who], 1), "dies: rank %d does not see the death of rank %d", me, who);
    CHECK(who || wait_for(&a->failed, 1), "dies: rank %d thinks that it hears the others", me);
    finalise(&p, a);
    no_fault(a, "dies");
}
static void last_dies(int me, int n)
{
    dies(me, n - 1, 0x300);
}
static void first_dies(int me, int n)
{
    (void)n;
    dies(me, 0, 0x301);
}

/* Rank n - 1 never comes, and the time is long: finalize does not wait for it, nor do threads stay. (That of a root which
 * lost a rank before its own finalize stays so long, for whoever comes late: rank 0's time is shorter.) */
static void finalised_before(int me, int n)
{
    struct prof p[20];
    struct party *a[20];
    const int before = count_in("/proc/self/task");
    setenv("MK_TIMEOUT", me ? "3000" : "20", 1);
    if (me == n - 1)
        return;
    for (int i = 0; i < 20; i++) {
        a[i] = make(&p[i], 5, 0x400 + (uint64_t)i, me, n);
        pause_ms(i * 7 % 20);
        if (i % 2)
            finalise(&p[i], a[i]);
    }
    for (int i = 0; i < 20; i += 2)
        finalise(&p[i], a[i]);
    for (int ms = 0; ms < WAIT_MS && count_in("/proc/self/task") > before + MAY_STAY; ms += 20)
        pause_ms(20);
    const int stay = count_in("/proc/self/task") - before;
    CHECK(stay <= MAY_STAY, "finalised before: rank %d: %d threads stay", me, stay);
    for (int i = 0; i < 20; i++) {
        CHECK(!get(&a[i]->met), "finalised before: they met without the last rank");
        no_fault(a[i], "finalised before");
    }
}

static void fifty(int me, int n)
{
    for (int i = 0; i < 50; i++) {
        struct prof p;
        struct party *a = make(&p, 5, 0x500 + (uint64_t)i, me, n);
        if (i % 5)
            CHECK(wait_for(&a->met, 1) || get(&a->failed), "fifty: communicator %d does not meet", i);
        if (i % 5 == 4)
            together(a, "fifty");
        if (i % 5 == 4 &&
            !me) /* rank 0, which hosts it, is the last: else who comes late finds others gone */
            for (int r = 1; r < n; r++)
                CHECK(wait_for(&a->left[r], 1), "fifty: rank %d stays", r);
        finalise(&p, a);
        no_fault(a, "fifty");
    }
}

/* Process 0 has ranks 0 and 1 of four, process 1 rank 2 and process 2 rank 3; and one more communicator beside it. */
static void two_in_one(int me, int n)
{
    struct prof p[3];
    struct party *a[3];
    (void)n;
    a[0] = make(&p[0], 5, 0x600, me ? me + 1 : 0, 4);
    a[1] = me ? NULL : make(&p[1], 5, 0x600, 1, 4);
    a[2] = make(&p[2], 5, 0x601, me, 3);
    for (int i = 0; i < 3; i++)
        if (a[i])
            together(a[i], "two in one");
    for (int i = 0; i < 3; i++)
        if (a[i]) {
            finalise(&p[i], a[i]);
            no_fault(a[i], "two in one");
        }
}

static void forks(int me, int n)
{
    struct prof p, q;
    int status = 0;
    struct party *a = make(&p, 5, 0x700, me, n);
    together(a, "forks");
    const pid_t pid = fork();
    if (!pid) {
        bad = 0;
        CHECK(!make(&q, 5, 0x701, me, n), "forks: a child of a process that has met meets");
        prof_close(&q);
        prof_close(&p);
        CHECK(!get(&a->ended) && mk_meet_say(a->m, MK_MEET_FUSE, -1, greeting, 1) == MK_ERR_INVALID,
              "forks: the child speaks for its parent");
        _exit(bad);
    }
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && !WEXITSTATUS(status),
          "forks: the child fails");
    CHECK(!mk_meet_say(a->m, MK_MEET_FUSE, -1, greeting, sizeof(greeting)), "forks: the parent is dumb");
    for (int r = 0; r < n; r++)
        CHECK(r == me || wait_for(&a->heard[r], 2), "forks: rank %d does not hear rank %d", me, r);
    for (int r = n - 1; r > me; r--)
        CHECK(wait_for(&a->left[r], 1), "forks: rank %d: rank %d has not left", me, r);
    CHECK(!get(&a->died[0]) && !get(&a->died[n - 1]), "forks: a death is seen");
    finalise(&p, a);
    no_fault(a, "forks");
}

static void nobody_wants(int me, int n)
{
    struct prof p[3];
    const int threads = count_in("/proc/self/task"), files = count_in("/proc/self/fd");
    for (int i = 0; i < 3; i++) { /* no user, one that declines, no address */
        mk_meet_use(MK_MEET_FUSE, i ? &user : NULL);
        declines = i == 1;
        if (i == 2)
            unsetenv("MK_ROOT");
        CHECK(!make(&p[i], 5, 0x800 + (uint64_t)i, me, n), "nobody wants: it meets");
        CHECK(count_in("/proc/self/task") == threads && count_in("/proc/self/fd") == files,
              "nobody wants (%d): there is a thread or a descriptor", i);
    }
    for (int i = 0; i < 3; i++)
        finalise(&p[i], NULL);
    declines = false;
    struct party *a = make(&p[0], 5, 0x900, 0, 1); /* it has nobody to meet */
    CHECK(!a, "nobody wants: a communicator of one rank meets");
    finalise(&p[0], NULL);
}

/* ---- processes ---- */

/* `killed`: the rank that ends by a signal; -1: none. */
static void run(const char *name, void (*body)(int me, int n), int n, int killed)
{
    char root[32];
    pid_t pid[RANKS];
    snprintf(root, sizeof(root), "127.0.0.1:%d", free_port());
    setenv("MK_ROOT", root, 1);
    fflush(stdout);
    for (int i = 0; i < n; i++) {
        pid[i] = fork();
        if (!pid[i]) {
            bad = 0;
            self = dlopen(NULL, RTLD_NOW);
            mk_profile_request(MK_PROFILE_LIGHT); /* without a profile nobody meets */
            mk_meet_use(MK_MEET_FUSE, &user);
            body(i, n);
            fflush(stdout);
            _exit(bad);
        }
    }
    for (int i = 0; i < n; i++) {
        int status;
        waitpid(pid[i], &status, 0);
        if (i == killed)
            CHECK(WIFSIGNALED(status), "%s: process %d was to be killed", name, i);
        else
            CHECK(WIFEXITED(status) && !WEXITSTATUS(status), "%s: process %d failed", name, i);
    }
}

int main(void)
{
    for (size_t i = 0; i < sizeof(greeting); i++)
        greeting[i] = (uint8_t)(i * 7);
    unsetenv("MK_PROFILE");
    unsetenv("MASTER_ADDR");
    setenv("MK_IFNAME", "lo", 1);
    setenv("MK_TIMEOUT", "100", 1);
    setenv("MK_TUNER", "off", 1); /* the other user */
    run("nobody wants", nobody_wants, 1, -1);
    run("greets", greets, 3, -1);
    run("never comes", one_never_comes, 3, -1);
    run("last dies", last_dies, 3, 2);
    run("first dies", first_dies, 3, 0);
    run("finalised before", finalised_before, 3, -1);
    run("fifty", fifty, 2, -1);
    run("two in one", two_in_one, 3, -1);
    run("forks", forks, 3, -1);
    return bad;
}
