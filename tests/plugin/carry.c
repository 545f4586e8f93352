/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Ranks never disagree: the shared object in processes of its own, a rank each, as NCCL has it: profiler and tuner by their
 * tables, over loopback. Each rank measures other times, the contrary of rank 0's; hosts run up to 50 operations ahead of each
 * other. Every operation must get the same answer from every rank's tuner, while tables come and go; also where a rank is killed,
 * where one cannot take part, and where two ranks are in one process. */
#include "check.h"
#include "mk/profile.h"
#include "plugin/nccl/abi_tuner.h"
#include "tests/plugin/caller.h"
#include "tests/net/free_port.h"
#include "tests/plugin/prof_events.h"
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    RANKS = 3,
    OPS = 60000,
    AHEAD = 50,
    CLASSES = 4,
    FIRST_CLASS = 20,
    A = MK_ALGO_COUNT,
    P = MK_PROTO_COUNT
};
enum { THEIRS = MK_ALGO_RING * P + MK_PROTO_LL128, CHANNELS = 16 };

/* What the processes share. */
static struct board {
    uint32_t at[RANKS]; /* operations done; UINT32_MAX: no more */
    uint32_t cut;  /* on this machine profiling costs too much: it has ended before all was chosen, perhaps */
    uint32_t stop; /* all end at this one */
    uint8_t answer[RANKS][OPS]; /* 1 + channels; 255: something else was changed; 0: not run */
} * board;

struct rank {
    int me, tuner_version, die_at; /* 0: never */
    uint32_t least;                /* operations, at least */
    const char *setting;           /* of MK_TUNER */
    bool until_settled;            /* rank 0 ends it, when it has chosen for all classes */
    bool stops;                    /* once, before rank 0 proposes, when something has been chosen */
    uint64_t id;
    void *lib;
    struct prof prof;
    int *mask;
    void *tuner;
    uint32_t random;
};

static uint32_t get(const uint32_t *p)
{
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
static void set(uint32_t *p, uint32_t v)
{
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
}
static void pause_us(long us)
{
    const struct timespec t = {.tv_nsec = us * 1000};
    nanosleep(&t, NULL);
}
static void logger(int level, unsigned long flags, const char *file, int line, const char *fmt, ...)
{
    char text[600];
    va_list ap;
    (void)level, (void)flags, (void)file, (void)line;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (strstr(text, "the profile took"))
        set(&board->cut, 1);
}

/* ---- a rank's NCCL ---- */

static void make(struct rank *r)
{
    struct mk_nccl_tuner_constants k;
    struct mk_nccl_nvl_info nvl = {1, RANKS, RANKS};
    memset(&k, 0, sizeof(k));
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 3; j++)
            k.perChMaxRingLL128Bws[i][j] = 20;
    CHECK(prof_open(&r->prof, r->lib, 6, r->id, r->me, RANKS, r->mask) && !r->prof.failed, "no profiler");
    const struct mk_nccl_tuner_v6 *v6 = dlsym(r->lib, "ncclTunerPlugin_v6");
    const struct mk_nccl_tuner_v4 *v4 = dlsym(r->lib, "ncclTunerPlugin_v4");
    const int ret = r->tuner_version == 4 ? v4->init(RANKS, 2, logger, &r->tuner)
                                          : v6->init(&r->tuner, r->id, RANKS, 2, logger, &nvl, &k);
    CHECK(!ret && r->tuner, "no tuner");
}

static void finalise(struct rank *r)
{
    const struct mk_nccl_tuner_v6 *v6 = dlsym(r->lib, "ncclTunerPlugin_v6"); /* end is the same in both */
    const struct mk_nccl_tuner_v4 *v4 = dlsym(r->lib, "ncclTunerPlugin_v4");
    const int ret = r->tuner_version == 4 ? v4->destroy(r->tuner) : v6->finalize(r->tuner);
    prof_close(&r->prof);
    CHECK(!ret && !r->prof.failed, "rank %d: an error", r->me);
}

/* Asks the tuner, as NCCL does: its own way is RING LL128 on 16 channels, and all others cost more. */
static uint8_t ask(struct rank *r, int size_class)
{
    const struct mk_nccl_tuner_v6 *v6 = dlsym(r->lib, "ncclTunerPlugin_v6");
    const struct mk_nccl_tuner_v4 *v4 = dlsym(r->lib, "ncclTunerPlugin_v4");
    float cost[A * P];
    int channels = 0;
    for (int i = 0; i < A * P; i++)
        cost[i] = i < 2 * P ? 100 + (float)i : -1;
    cost[THEIRS] = 50;
    float **table = (float **)(void *)cost;
    const size_t bytes = (size_t)1 << size_class;
    const int ret = r->tuner_version == 4
                        ? v4->getCollInfo(r->tuner, MK_COLL_ALLREDUCE, bytes, 1, table, A, P, 0, &channels)
                        : v6->getCollInfo(r->tuner, MK_COLL_ALLREDUCE, bytes, 1, table, A, P, 0, &channels);
    bool other = ret || channels < 0 || channels > CHANNELS;
    for (int i = 0; i < A * P; i++) {
        const float was = i == THEIRS ? 50 : i < 2 * P ? 100 + (float)i : -1, chosen = 0;
        other = other || (memcmp(&was, &cost[i], sizeof(was)) != 0 &&
                          (i != THEIRS || !channels || memcmp(&chosen, &cost[i], sizeof(was)) != 0));
    }
    return other ? 255 : (uint8_t)(1 + channels);
}

/* Fewer channels are faster on even classes for rank 0, and on odd ones for the others. */
static void runs(struct rank *r, int size_class, int channels)
{
    const struct prof_coll c = {"AllReduce", "ncclFloat32", "RING", "LL128", ((size_t)1 << size_class) / 4,
                                channels,    false};
    static __thread uint64_t now = 1000000;
    const bool better = (size_class % 2 == 0) == (r->me == 0);
    const uint64_t ns = channels == CHANNELS ? 400000 : better ? 300000 : 600000;
    now += 1000000;
    prof_run(&r->prof, prof_enqueue(&r->prof, &c), channels, now, now + ns, getpid());
}

/* Not more than so many operations ahead of the slowest. */
static void not_too_far(struct rank *r, uint32_t at)
{
    const uint32_t ahead = r->random >> 16 & 1 ? AHEAD : r->random >> 17 & 31;
    for (;;) {
        uint32_t slowest = UINT32_MAX;
        for (int i = 0; i < RANKS; i++)
            slowest = i != r->me && get(&board->at[i]) < slowest ? get(&board->at[i]) : slowest;
        if (at <= slowest || at - slowest < (ahead ? ahead : 1))
            return;
        pause_us(20);
    }
}

/* Rank 0: has it been chosen for good? Half of the channels for all even classes, NCCL's way for the odd ones. */
static bool settled(uint32_t at)
{
    const uint8_t *a = board->answer[0];
    if (at < 256 * CLASSES)
        return false;
    for (uint32_t i = at - 64 * CLASSES; i < at; i++)
        if (a[i] != ((i % CLASSES) % 2 == 0 ? 1 + CHANNELS / 2 : 1))
            return false;
    for (int c = 1; c < CLASSES; c += 2) { /* and that was tried */
        bool tried = false;
        for (uint32_t i = (uint32_t)c; i < at && !tried; i += CLASSES)
            tried = a[i] == 1 + CHANNELS / 2;
        if (!tried)
            return false;
    }
    return true;
}

static void *work(void *arg)
{
    struct rank *r = arg;
    uint32_t at = 0;
    bool chosen = false;
    r->random = 77u * (uint32_t)r->me + 1;
    make(r);
    for (; at < get(&board->stop); at++) {
        if (at % 64 == 0)
            r->random = r->random * 1664525u + 1013904223u;
        not_too_far(r, at);
        if (r->die_at && (int)at == r->die_at) {
            set(&board->at[r->me], UINT32_MAX); /* nobody waits for it in this test */
            raise(SIGKILL);
        }
        const int size_class = FIRST_CLASS + (int)(at % CLASSES);
        const uint8_t a = ask(r, size_class);
        board->answer[r->me][at] = a;
        set(&board->at[r->me], at + 1);
        runs(r, size_class, a > 1 && a < 255 ? a - 1 : CHANNELS);
        if (at % 8 == 0)
            pause_us(200); /* they meet meanwhile */
        chosen = chosen || (a > 1 && a < 255);
        if (r->stops && chosen && at % 512 == 480 && get(&board->stop) == OPS) {
            set(&board->stop, at + 3000);
            set(&board->at[r->me], UINT32_MAX);
            raise(SIGSTOP);
        }
        if (r->me == 0 && r->until_settled && at % 64 == 0 && settled(at) && get(&board->stop) == OPS)
            set(&board->stop, at + 4 * AHEAD);
    }
    set(&board->at[r->me], UINT32_MAX);
    finalise(r);
    return NULL;
}

/* ---- processes ---- */

static const char *object;
static int mask;

/* A process: ranks first to last, a thread each. */
static int process(struct rank *r, int first, int last)
{
    const char *why = "";
    pthread_t t[RANKS];
    bad = 0;
    setenv("MK_TUNER", r[first].setting, 1);
    void *lib = caller_load(object, &why);
    CHECK(lib, "%s: %s", object, why);
    for (int i = first; i <= last && lib; i++) {
        r[i].lib = lib;
        r[i].mask = &mask;
        CHECK(!pthread_create(&t[i], NULL, work, &r[i]), "no thread");
    }
    for (int i = first; i <= last && lib; i++)
        pthread_join(t[i], NULL);
    fflush(stdout);
    return bad;
}

/* Rank 2 has stopped: the others come to where they wait for the word on rank 0's next proposal, though they do not wait for rank
 * 2 itself. Then it goes on, and so do they. */
static void stopped(pid_t pid)
{
    const uint32_t end = get(&board->stop);
    uint32_t at[2] = {0}, still = 0;
    for (int ms = 0; ms < 60000 && still < 1000 && get(&board->at[0]) < end; ms += 10) {
        const bool moved = at[0] != get(&board->at[0]) || at[1] != get(&board->at[1]);
        still = moved ? 0 : still + 10;
        at[0] = get(&board->at[0]);
        at[1] = get(&board->at[1]);
        pause_us(10000);
    }
    for (int i = 0; i < 2; i++)
        CHECK(get(&board->cut) || get(&board->at[i]) < end, "stopped: rank %d does not wait", i);
    kill(pid, SIGCONT);
}

/* Runs the ranks; in `pairs` 0 and 1 are one process. Then compares: up to which operation is for who was killed. */
static void run(const char *name, struct rank *r, uint32_t stop, bool pairs)
{
    char root[32];
    pid_t pid[RANKS] = {0};
    uint32_t compared = 0, chosen = 0, end = OPS;
    snprintf(root, sizeof(root), "127.0.0.1:%d", free_port());
    setenv("MK_ROOT", root, 1);
    memset(board, 0, sizeof(*board));
    board->stop = stop;
    fflush(stdout);
    for (int i = 0; i < RANKS; i++) {
        r[i].me = i;
        r[i].id = 0xfeed;
    }
    for (int i = 0; i < RANKS; i++) {
        const int last = pairs && !i ? 1 : i;
        pid[i] = fork();
        if (!pid[i])
            _exit(process(r, i, last));
        i = last;
    }
    for (int i = 0; i < RANKS; i++) {
        int status = 0;
        if (r[i].stops && waitpid(pid[i], &status, WUNTRACED) == pid[i] && WIFSTOPPED(status))
            stopped(pid[i]);
        else if (r[i].stops)
            pid[i] = 0; /* it never did */
        CHECK(pid[i] || !r[i].stops, "%s: nothing was chosen", name);
    }
    for (int i = 0; i < RANKS; i++) {
        int status = 0;
        if (!pid[i])
            continue;
        waitpid(pid[i], &status, 0);
        CHECK(r[i].die_at ? WIFSIGNALED(status) : WIFEXITED(status) && !WEXITSTATUS(status),
              "%s: process of rank %d: status %#x", name, i, (unsigned)status);
        if (r[i].die_at && !i)
            end = (uint32_t)r[i].die_at; /* what comes then has no part of rank 0, and cannot end */
    }
    for (uint32_t i = 0; i < end; i++)
        for (int k = 1; k < RANKS; k++)
            for (int l = 0; l < k; l++)
                if (board->answer[k][i] && board->answer[l][i]) {
                    compared++;
                    chosen += board->answer[k][i] > 1;
                    CHECK(board->answer[k][i] == board->answer[l][i] && board->answer[k][i] != 255,
                          "%s: operation %u: %d on rank %d, %d on rank %d", name, i, board->answer[k][i], k,
                          board->answer[l][i], l);
                }
    printf("%s: %u answers compared, %u not NCCL's\n", name, compared, chosen);
    CHECK(compared > 1000, "%s: nothing was compared", name);
    if (r[0].until_settled)
        CHECK(chosen && (get(&board->stop) < OPS || get(&board->cut)), "%s: %s", name,
              chosen ? "not all was chosen" : "nothing was chosen");
    if (r[0].tuner_version == 4 || r[1].tuner_version == 4)
        CHECK(!chosen, "%s: something was chosen", name);
}

int main(int argc, char **argv)
{
    static const struct rank sound = {.setting = "on", .tuner_version = 6};
    if (argc != 2)
        return 2;
    object = argv[1];
    board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED)
        return 2;
    char file[64];
    snprintf(file, sizeof(file), "/tmp/mk_carry.%d.%%p", (int)getpid());
    setenv("MK_PROFILE", file, 1);
    setenv("MK_IFNAME", "lo", 1);
    unsetenv("MASTER_ADDR");
    for (int i = 0; i < 11; i++) { /* four of them: rank 0 dies soon after it has proposed */
        struct rank r[RANKS] = {sound, sound, sound};
        static const char *const names[] = {
            "agree",           "two in one process", "rank 2 is killed", "rank 0 is killed",
            "one is not tied", "one is off"};
        r[0].until_settled = i < 2;
        r[2].die_at = i == 2 ? 1500 : 0;
        r[0].die_at = i == 3 ? 1500 : i > 5 && i < 10 ? 1536 + (i - 6) * 50 : 0;
        r[2].stops = i == 10;
        r[1].tuner_version = i == 4 ? 4 : 6;
        if (i == 5) {
            r[2].setting = "off";
            setenv("MK_TIMEOUT", "3", 1);
        } else {
            setenv("MK_TIMEOUT", "60", 1);
        }
        run(i == 10 ? "rank 2 stops" : names[i < 6 ? i : 3], r, i < 2 || i == 10 ? OPS : 4000, i == 1);
    }
    snprintf(file, sizeof(file), "rm -f /tmp/mk_carry.%d.*", (int)getpid());
    CHECK(!system(file), "files stay");
    return bad;
}
