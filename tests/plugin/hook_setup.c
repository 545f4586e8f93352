/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Set-up of fused communicators by real processes over loopback: each calls all-reduces of a stand-in NCCL through the hooks,
 * whose profiler events come by the object's own tables. All fuse from the same operation on, or none does, and then every
 * call is NCCL's.
 *
 * hook_setup HOOKS.so */
#include "hook_adapt.h"
#include "mk/err.h"
#include "tests/net/free_port.h"
#include "tests/plugin/prof_events.h"
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { RANKS = 3, MORE = 12, SECONDS = 120, CALLS = 4096 };
enum habit {
    USUAL,
    ABSENT,      /* no plugin */
    FUSE_OFF,    /* MK_FUSE=off */
    DIES_EARLY,  /* by a signal, before the ranks can agree */
    DIES_FUSED,  /* after some fused operations */
    AHEAD,       /* 50 calls before the others begin */
    UNLIKE,      /* its kernels can do nothing that the others' can */
    UNWITNESSED, /* after some fused operations the profiler misses one */
    LATE_READY,  /* what K needs is there late */
    NEVER_READY,
    OLD, /* an NCCL whose profiler does not tell of the calls */
    GOES /* it is never ready, and its communicator is finalised early */
};
struct scenario {
    const char *name;
    enum habit habit; /* of `who` */
    int who;
    bool deterministic;
    int64_t first;      /* fused operation; 0: the same on all, whichever; -1: none */
    const char *reason; /* of NCCL, at the end: one of these words */
    bool slower;        /* K takes twice as long as NCCL, by rank 0's time stamps */
};
#define EARLY "member setup-timeout" /* after the others were met, or before */
static const struct scenario scenarios[] = {
    {"all", USUAL, 0, false, 0, NULL, false},
    {"one is ahead", AHEAD, 1, false, 0, NULL, false},
    {"rank 0 is ahead", AHEAD, 0, false, 0, NULL, false},
    {"late", LATE_READY, 2, false, 0, NULL, false},
    {"deterministic", USUAL, 0, true, 16, NULL, false},
    {"deterministic, late ready", LATE_READY, 2, true, 16, NULL, false},
    {"deterministic, one is ahead", AHEAD, 2, true, 16, NULL, false},
    {"no plugin", ABSENT, 2, false, -1, "setup-timeout", false},
    {"no plugin at rank 0", ABSENT, 0, false, -1, "setup-timeout", false},
    {"MK_FUSE=off", FUSE_OFF, 1, false, -1, "setup-timeout", false},
    {"dies early", DIES_EARLY, 1, false, -1, EARLY, false},
    {"rank 0 dies early", DIES_EARLY, 0, false, -1, EARLY, false},
    {"finalised early", GOES, 2, false, -1, EARLY, false},
    {"unlike", UNLIKE, 2, false, -1, "member", false},
    {"rank 0 is unlike", UNLIKE, 0, false, -1, "member", false},
    {"never ready", NEVER_READY, 1, false, -1, "memory", false},
    {"old NCCL", OLD, 1, false, -1, "member setup-timeout no-witness", false},
    {"old NCCL at rank 0", OLD, 0, false, -1, "member setup-timeout no-witness", false},
    {"unwitnessed", UNWITNESSED, 2, false, 0, "switched-off", false},
    {"rank 0 is unwitnessed", UNWITNESSED, 0, false, 0, "switched-off", false},
    {"dies fused", DIES_FUSED, 1, false, 0, NULL, false},
    {"slower", USUAL, 0, false, 0, "slower", true},
    {"slower, one is ahead", AHEAD, 1, false, 0, "slower", true},
    {"slower, rank 0 is ahead", AHEAD, 0, false, 0, "slower", true},
    {"slower, deterministic", USUAL, 0, true, 16, NULL, true},
};

static struct shared {
    int ahead; /* atomic: the one that is ahead has done its calls */
    struct result {
        int done;
        int64_t first_k, after_k;          /* operations; -1: none */
        int64_t calls, nccl, fused, turns; /* turns: of NCCL, to be timed */
        int failed;                        /* return code of the first call that failed */
        char reason[32];
        char way[CALLS]; /* of each call: k, n */
    } of[RANKS];
} * shared;

static struct prof prof;
static int mask;
static bool misses;
static const struct scenario *now;
static struct result *mine;
static int me;

/* ---- one rank ---- */

static bool is(enum habit habit)
{
    return now->habit == habit && now->who == me;
}

static const struct prof_coll coll = {
    .func = "AllReduce", .dtype = "ncclBfloat16", .algo = "RING", .proto = "LL", .count = 8, .channels = 1};

static void in_nccl(int id, const void *call)
{
    (void)id, (void)call;
    mine->nccl++;
    if (prof.t.any && !misses)
        prof_enqueue(&prof, &coll);
}

static bool prepared; /* this rank's last answer */
static int begun;     /* atomic: it was asked since the last `off` */

static int prepare(void *comm, void *stream, uint64_t id, int rank, int nranks)
{
    static int asked;
    (void)comm;
    CHECK(stream == &r.s && id && rank == me && nranks == RANKS);
    const int ret = is(NEVER_READY)                                 ? MK_ERR_NOMEM
                    : is(GOES) || (is(LATE_READY) && asked++ < 100) ? MK_ERR_AGAIN
                                                                    : 0;
    prepared = !ret;
    __atomic_store_n(&begun, 1, __ATOMIC_RELEASE);
    return ret;
}

/* From any thread, without the lock: asking for facts would wait for ever. */
static void off(void *comm, uint64_t id)
{
    struct mk_pair_comm_facts facts;
    CHECK(comm == &r.comm && r.face->comm((uintptr_t)comm, &facts) && facts.off && !facts.agreed);
    CHECK(id == facts.id);
    __atomic_store_n(&begun, 0, __ATOMIC_RELEASE);
}

static int tidied;

static void tidy(void)
{
    tidied++;
}

/* Time stamps, which rank 0 alone asks for: a call of K takes 2 ms, NCCL's 1 ms. */
static bool of_nccl[MK_FUSE_STAMPS];
static int64_t nccl_before;

static int stamp(void *comm, void *stream, uint32_t which)
{
    CHECK(comm == &r.comm && stream == &r.s && which < MK_FUSE_STAMPS && !me && which % 3);
    if (which % 3 == 1)
        nccl_before = mine->nccl;
    of_nccl[which] = mine->nccl != nccl_before;
    return 0;
}

static int between(void *comm, uint32_t from, uint32_t to, uint64_t *ns)
{
    CHECK(comm == &r.comm && to == from + 1 && from % 3 == 1);
    *ns = of_nccl[to] ? 1000000 : 2000000;
    return 0;
}

static uint64_t count_of(uint32_t reason)
{
    struct mk_pair_counts c;
    return r.face->count(&c) ? c.reason[reason] : 0;
}

/* One all-reduce; why it was NCCL's stands in mine->reason then. */
static void one_call(int dtype)
{
    uint64_t before[MK_PAIR_REASONS];
    struct mk_pair_counts c;
    for (uint32_t i = 0; i < MK_PAIR_REASONS; i++)
        before[i] = count_of(i);
    r.last_k.number = UINT64_MAX;
    const int64_t number = mine->calls++, nccl = mine->nccl;
    const int ret = ncclAllReduce(c_mem, c_mem, 8, dtype, 0, &r.comm, &r.s);
    if (ret && !mine->failed)
        mine->failed = ret;
    const bool k = r.last_k.number != UINT64_MAX;
    mine->fused += k;
    CHECK(!k || (prepared && r.last_k.number == (uint64_t)number));
    CHECK(k + (mine->nccl - nccl) == !ret);
    if (k && mine->first_k < 0)
        __atomic_store_n(&mine->first_k, number, __ATOMIC_RELEASE);
    if (number < CALLS && !ret)
        mine->way[number] = k ? 'k' : 'n';
    if (k || !r.face->count(&c))
        return;
    for (uint32_t i = 1; i < MK_PAIR_REASONS; i++)
        if (c.reason[i] > before[i])
            snprintf(mine->reason, sizeof(mine->reason), "%s", r.face->reason(i));
    const bool turn = c.reason[MK_PAIR_TIMED] > before[MK_PAIR_TIMED];
    mine->turns += turn;
    if (dtype == NCCL_BF16 && mine->first_k >= 0 && mine->after_k < 0 && !turn)
        mine->after_k = number;
}

static void pause_us(long us)
{
    const struct timespec t = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};
    nanosleep(&t, NULL);
}

static bool enough(void)
{
    const bool ends_in_nccl = now->reason != NULL;
    struct mk_pair_comm_facts facts;
    if (mine->failed)
        return true;
    if (now->habit == DIES_FUSED)
        return false; /* until a call fails */
    if (!ends_in_nccl)
        return mine->fused >= MORE;
    if (now->first >= 0)
        return mine->after_k >= 0;
    return r.face->comm((uintptr_t)&r.comm, &facts) ? facts.off && mine->calls >= 2 * MORE
                                                    : mine->calls >= 400; /* no recogniser: it just calls */
}

static void wait_ahead(void)
{
    if (now->habit == AHEAD && now->who != me)
        while (!__atomic_load_n(&shared->ahead, __ATOMIC_ACQUIRE))
            pause_us(1000);
}

static bool all_fused(void)
{
    for (int i = 0; i < RANKS; i++)
        if (__atomic_load_n(&shared->of[i].first_k, __ATOMIC_ACQUIRE) < 0)
            return false;
    return true;
}

static void loop(void)
{
    const time_t end = time(NULL) + SECONDS;
    wait_ahead();
    while (!enough() && time(NULL) < end) {
        const int64_t lead = now->deterministic ? 10 : 50;
        if (is(DIES_EARLY) && mine->calls == 2)
            raise(SIGKILL);
        if (is(DIES_FUSED) && mine->fused >= MORE && all_fused())
            raise(SIGKILL);
        if (is(GOES) && mine->calls == 300) {
            prof_close(&prof);
            prof.t.any = NULL;
            return;
        }
        misses = is(UNWITNESSED) && mine->fused >= MORE;
        if (now->habit == UNWITNESSED && mine->fused >= MORE)
            one_call(NCCL_FP32); /* NCCL's; unseen by one rank's profiler */
        one_call(NCCL_BF16);
        if (prof.t.any && (mine->calls + me) % 3 == 0)
            prof_replay(&prof, &coll);
        if (prof.t.any && (mine->calls + me) % 5 == 0)
            prof_copied(&prof, "AlltoAll");
        if (is(AHEAD) && mine->calls == lead)
            __atomic_store_n(&shared->ahead, 1, __ATOMIC_RELEASE);
        if (!is(AHEAD) || mine->calls > lead)
            pause_us(300);
    }
    CHECK(enough());
    if (now->first < 0)
        one_call(NCCL_BF16); /* set-up had ended before this one */
}

/* Set-up ended 'off': what was begun for K was given up. */
static void nothing_begun(void)
{
    struct mk_pair_comm_facts facts;
    if (is(FUSE_OFF) || !r.face->comm((uintptr_t)&r.comm, &facts) || !facts.off)
        return;
    for (int i = 0; i < 5000 && __atomic_load_n(&begun, __ATOMIC_ACQUIRE); i++)
        pause_us(1000);
    CHECK(!__atomic_load_n(&begun, __ATOMIC_ACQUIRE));
}

/* Who has ended takes its meeting with it: it waits for the others. */
static void wait_others(void)
{
    const time_t end = time(NULL) + SECONDS;
    __atomic_store_n(&mine->done, 1, __ATOMIC_RELEASE);
    for (int i = 0; i < RANKS; i++)
        while (!(now->who == i && (now->habit == DIES_EARLY || now->habit == DIES_FUSED)) &&
               time(NULL) < end && !__atomic_load_n(&shared->of[i].done, __ATOMIC_ACQUIRE))
            pause_us(2000);
}

static int rank(const char *path)
{
    struct mk_fuse_ops ops = *rank_ops();
    struct mk_adapt_options options = {.ops = &ops, .deterministic = now->deterministic};
    failures = 0;
    setenv("MK_FUSE", is(FUSE_OFF) ? "off" : "on", 1);
    const bool never_met = now->habit == ABSENT || now->habit == FUSE_OFF || now->habit == DIES_EARLY ||
                           now->habit == GOES || now->habit == OLD;
    setenv("MK_TIMEOUT", never_met ? "3" : "100", 1);
    setenv("MK_TUNER", now->slower ? "on" : "off", 1);
    ops.prepare = prepare;
    ops.off = off;
    ops.tidy = tidy;
    if (now->slower)
        ops.stamp = stamp, ops.between = between;
    if (is(UNLIKE))
        ops.config.dtypes = 0;
    r.face = is(ABSENT) ? NULL : hook_open(path);
    if (is(ABSENT)) {
        __atomic_store_n(&mine->done, 1, __ATOMIC_RELEASE);
        return 0;
    }
    if (is(FUSE_OFF))
        stand_record_nccl(MK_HOOK_ncclAllReduce)->inside = in_nccl;
    else
        rank_start(&options);
    r.comm = (struct stand_comm){.rank = me, .nranks = RANKS};
    stand_record_nccl(MK_HOOK_ncclAllReduce)->inside = in_nccl;
    void *so = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    CHECK(so && prof_open(&prof, so, is(OLD) ? 4 : 5 + me % 2, 0x5e70, me, RANKS, &mask));
    loop();
    nothing_begun();
    wait_others();
    const int before = tidied;
    if (prof.t.any) { /* in a group NCCL does it at the end */
        const bool group = me & 1;
        CHECK(!group || !ncclGroupStart());
        CHECK(!ncclCommDestroy(&r.comm));
        CHECK(is(FUSE_OFF) || tidied == before + !group);
        CHECK(!group || (!ncclGroupStart() && !ncclGroupEnd()));
        CHECK(is(FUSE_OFF) || tidied == before + !group);
        CHECK(!group || !ncclGroupEnd());
        CHECK(is(FUSE_OFF) || tidied == before + 1);
    }
    if (prof.t.any)
        prof_close(&prof);
    CHECK(!prof.failed);
    return failures != 0;
}

/* ---- all of them ---- */

static bool gone_early(int i)
{
    return now->who == i &&
           (now->habit == ABSENT || now->habit == FUSE_OFF || now->habit == DIES_EARLY || now->habit == GOES);
}

static void wrong(int i, const char *what)
{
    const struct result *a = &shared->of[i];
    fprintf(
        stderr,
        "%s: rank %d: %s (fused from %lld, after that %lld, %lld calls: %lld NCCL's, %lld ours; %s, %d)\n",
        now->name, i, what, (long long)a->first_k, (long long)a->after_k, (long long)a->calls,
        (long long)a->nccl, (long long)a->fused, a->reason, a->failed);
    failures++;
}

static void compare(void)
{
    const struct result *first = NULL;
    for (int i = 0; i < RANKS; i++) {
        const struct result *a = &shared->of[i];
        if (gone_early(i)) {
            if (a->fused || a->failed || a->calls != a->nccl)
                wrong(i, "not all of its calls were NCCL's");
            continue;
        }
        if (now->first < 0 && (a->fused || a->failed || a->calls != a->nccl))
            wrong(i, "not all of its calls were NCCL's");
        if (now->first < 0 && !strstr(now->reason, a->reason))
            wrong(i, "another reason");
        if (now->first > 0 && a->first_k != now->first)
            wrong(i, "another first operation");
        if (now->first >= 0 && a->first_k < 0)
            wrong(i, "nothing was fused");
        if (now->first >= 0 && first && a->first_k != first->first_k)
            wrong(i, "not the first operation of the others");
        if (now->first >= 0 && now->reason && (first ? a->after_k != first->after_k : a->after_k < 0))
            wrong(i, "not back at NCCL with the others");
        if (now->first >= 0 && now->reason && strcmp(a->reason, now->reason))
            wrong(i, "another reason");
        for (int at = 0; first && at < CALLS && a->way[at] && first->way[at]; at++)
            if (a->way[at] != first->way[at]) {
                wrong(i, "another way than the others'");
                break;
            }
        if (now->slower && !now->deterministic ? a->turns < 8 : a->turns != 0)
            wrong(i, "turns of NCCL");
        if (now->habit == DIES_FUSED ? now->who != i && a->failed != 6 : a->failed)
            wrong(i, "return code");
        first = a;
    }
}

static void run(const char *path)
{
    char root[32];
    pid_t pid[RANKS];
    snprintf(root, sizeof(root), "127.0.0.1:%d", free_port());
    setenv("MK_ROOT", root, 1);
    memset(shared, 0, sizeof(*shared));
    for (me = 0; me < RANKS; me++) {
        mine = &shared->of[me];
        mine->first_k = mine->after_k = -1;
        pid[me] = fork();
        if (!pid[me])
            _exit(rank(path));
    }
    for (int i = 0; i < RANKS; i++) {
        const bool killed = now->who == i && (now->habit == DIES_EARLY || now->habit == DIES_FUSED);
        int status;
        waitpid(pid[i], &status, 0);
        if (killed ? !WIFSIGNALED(status) : !WIFEXITED(status) || WEXITSTATUS(status))
            wrong(i, "how it ended");
    }
    compare();
}

int main(int argc, char **argv)
{
    if (argc != 2 && argc != 3)
        return 2;
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 1;
    unsetenv("MK_PROFILE");
    unsetenv("MASTER_ADDR");
    setenv("MK_IFNAME", "lo", 1);
    for (size_t i = 0; i < sizeof(scenarios) / sizeof(scenarios[0]); i++) {
        now = &scenarios[i];
        if (argc == 2 || !strcmp(argv[2], now->name))
            run(argv[1]);
    }
    fprintf(stderr, "%d failures\n", failures);
    return failures != 0;
}
