/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The profiler of the shared object, driven as NCCL drives it, every version of its table, each case in a process of its own;
 * then the file that the process left is read and its values are checked. */
#include "check.h"
#include "plugin/cli/profile.h"
#include "tests/plugin/caller.h"
#include "tests/plugin/prof_events.h"
#include "mk/err.h"
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *object;

static const struct prof_coll all_reduce = {"AllReduce", "ncclBfloat16", "RING", "SIMPLE", 1u << 20,
                                            4,           false};
static const struct prof_coll all_gather = {"AllGather", "ncclFloat32", "RING", "LL128", 1u << 10, 2, false};
static const struct prof_coll empty = {"Broadcast", "ncclInt8", "TREE", "LL", 0, 1, false};
static const struct prof_coll huge = {"Reduce", "ncclFloat64", "RING", "SIMPLE", (size_t)1 << 60, 8, false};

/* ---- children ---- */

static void *load(void)
{
    const char *why = "";
    void *lib = caller_load(object, &why);
    if (!lib) {
        printf("dlopen: %s\n", why);
        exit(1);
    }
    return lib;
}

static int result(const struct prof *p)
{
    if (p->failed)
        printf("version %d: %d calls were no success\n", p->version, p->failed);
    return p->failed != 0;
}

/* One communicator, one thread: 20 all-reduces of 30 us, the tenth replayed twice more; one of each of the others. */
static int plain_run(int version)
{
    struct prof p;
    int mask = -1;
    uint64_t t = 1000000;
    if (!prof_open(&p, load(), version, 0x1234567890abcdef, 1, 4, &mask) || mask == -1 || !mask)
        return 1;
    for (int i = 0; i < 20; i++, t += 100000) {
        void *h = prof_enqueue(&p, &all_reduce);
        prof_run(&p, h, 4, t, t + 30000, getpid());
        for (int again = 0; i == 9 && again < 2; again++) {
            t += 100000;
            prof_run(&p, h, 4, t, t + 30000, getpid());
        }
    }
    const struct prof_coll *const rest[] = {&all_gather, &empty, &huge};
    for (int i = 0; i < 3; i++, t += 100000)
        prof_run(&p, prof_enqueue(&p, rest[i]), rest[i]->channels, t, t + 8000, getpid());
    prof_run(&p, prof_send(&p, 256, 3), 2, t, t + 5000, getpid());
    prof_close(&p);
    return result(&p);
}

/* What goes wrong: parents that are NULL, foreign or old; a process that is not ours (PXN); arguments that are NULL; events
 * open at finalize; stops that come afterwards. */
static int strange_run(int version)
{
    struct prof p, q;
    int mask = -1;
    void *lib = load();
    if (!prof_open(&p, lib, version, 5, 0, 2, &mask))
        return 1;
    void *h = prof_enqueue(&p, &all_reduce);
    prof_run(&p, NULL, 4, 100, 200, getpid());
    prof_run(&p, (void *)(uintptr_t)0x7f0000001000, 4, 100, 200, getpid());
    prof_run(&p, &p, 4, 100, 200, getpid());
    if (version < 3)
        prof_run(&p, h, 4, 100, 200, getpid() + 1);
    prof_run(&p, h, 4, 1000, 31000, getpid());
    void *half = prof_enqueue(&p, &all_reduce);
    void *open = prof_channel(&p, half, 0, 50000);
    prof_close(&p); /* `half` has begun on one of four channels */
    const int during = mask;
    prof_channel_end(&p, open, 60000);
    prof_run(&p, half, 4, 70000, 80000, getpid());
    if (mask != during || !prof_open(&q, lib, version, 6, 0, 2, &mask))
        return 1;
    prof_run(&q, half, 4, 90000, 95000, getpid()); /* the old one's place may be the new one's */
    p.failed += q.t.v1->startEvent(q.ctx, NULL, NULL) != 0;
    p.failed += q.t.v1->startEvent(NULL, &open, NULL) != 0 || open;
    p.failed += q.t.v1->stopEvent(NULL) != 0 || q.t.v1->recordEventState(NULL, 22, NULL) != 0;
    p.failed += q.t.v1->finalize(NULL) != 0;
    prof_close(&q);
    return result(&p) | result(&q);
}

/* Threads: users' and progress threads, which run behind by some. */
enum { COMMS = 3, EACH = 1500, BEHIND = 64 };
struct lane {
    struct prof p;
    pthread_t user, progress;
    struct prof
        side; /* p for the progress thread, with the mask as it was when the collective was enqueued */
    int side_mask;
    void *ring[BEHIND];
    int mask[BEHIND];
    unsigned made, used;
};

static void *user(void *arg)
{
    struct lane *l = arg;
    for (unsigned i = 0; i < EACH; i++) {
        while (i - __atomic_load_n(&l->used, __ATOMIC_ACQUIRE) >= BEHIND)
            usleep(50);
        l->mask[i % BEHIND] = __atomic_load_n(l->p.mask, __ATOMIC_RELAXED);
        l->ring[i % BEHIND] = prof_enqueue(&l->p, &all_gather);
        __atomic_store_n(&l->made, i + 1, __ATOMIC_RELEASE);
    }
    return NULL;
}
static void *progress(void *arg)
{
    struct lane *l = arg;
    for (unsigned i = 0; i < EACH; i++) {
        while (__atomic_load_n(&l->made, __ATOMIC_ACQUIRE) <= i)
            usleep(50);
        l->side_mask = l->mask[i % BEHIND];
        prof_run(&l->side, l->ring[i % BEHIND], 2, 1000000ull * (i + 1), 1000000ull * (i + 1) + 7000,
                 getpid());
        __atomic_store_n(&l->used, i + 1, __ATOMIC_RELEASE);
    }
    return NULL;
}

static int threads_run(int version)
{
    static struct lane lane[COMMS];
    static int mask = -1; /* NCCL's: one for all */
    void *lib = load();
    for (int i = 0; i < COMMS; i++) {
        if (!prof_open(&lane[i].p, lib, version, 100 + (uint64_t)i, 0, 4, &mask))
            return 1;
        lane[i].side = lane[i].p;
        lane[i].side.mask = &lane[i].side_mask;
    }
    for (int i = 0; i < COMMS; i++)
        if (pthread_create(&lane[i].user, NULL, user, &lane[i]) ||
            pthread_create(&lane[i].progress, NULL, progress, &lane[i]))
            return 1;
    int ret = 0;
    for (int i = 0; i < COMMS; i++) {
        pthread_join(lane[i].user, NULL);
        pthread_join(lane[i].progress, NULL);
        if (i)
            prof_close(&lane[i].p); /* the first is open when the process ends */
        ret |= result(&lane[i].p) | result(&lane[i].side);
    }
    return ret;
}

/* A child of the profiled process uses and ends everything, after its parent has written: nothing of it is to be seen. */
static int fork_run(int version)
{
    struct prof p;
    int mask = -1, status = 0, go[2];
    char c;
    if (pipe(go) || !prof_open(&p, load(), version, 9, 0, 4, &mask))
        return 1;
    prof_run(&p, prof_enqueue(&p, &all_gather), 2, 100, 200, getpid());
    const pid_t child = fork();
    if (!child) {
        close(go[1]);
        if (read(go[0], &c, 1) != 0) /* the end of the pipe */
            exit(1);
        for (int i = 0; i < 50; i++)
            prof_run(&p, prof_enqueue(&p, &all_gather), 2, 100, 200, getpid());
        prof_close(&p);
        exit(result(&p));
    }
    prof_close(&p);
    close(go[1]);
    if (child < 0 || waitpid(child, &status, 0) != child)
        status = -1;
    fflush(stdout);
    _exit(result(&p) | (status != 0)); /* without writing once more */
}

/* Without the setting, and with a wrong one: idle, no file. */
static int idle_run(int version)
{
    struct prof p;
    int mask = -1;
    if (!prof_open(&p, load(), version, 9, 0, 4, &mask) || mask || !p.ctx)
        return 1;
    mask = 0x7fff; /* events although nobody asked */
    if (prof_enqueue(&p, &all_gather) || prof_send(&p, 10, 1))
        return 1;
    prof_close(&p);
    return result(&p);
}

/* ---- the parent ---- */

/* Runs it in a process with MK_PROFILE=name.%p; the files that are there then, added to s. Returns how many. */
static int run(const char *name, const char *pattern, int (*child)(int version), int version,
               struct mk_profile_sum *s)
{
    char file[128];
    int status = -1, n = 0;
    fflush(stdout);
    memset(s, 0, sizeof(*s));
    const pid_t pid = fork();
    if (!pid) {
        setenv("MK_PROFILE", pattern, 1);
        exit(child(version));
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        status = -1;
    CHECK(!status, "%s: version %d ends with status %d", name, version, status);
    DIR *d = opendir(".");
    for (struct dirent *e; d && (e = readdir(d));) {
        if (strncmp(e->d_name, "prof.", 5))
            continue;
        snprintf(file, sizeof(file), "%.100s", e->d_name);
        CHECK(!mk_profile_add(s, file), "%s: version %d: %s", name, version, mk_last_error());
        unlink(file);
        n++;
    }
    if (d)
        closedir(d);
    mk_profile_sort(s);
    return n;
}

static const struct mk_profile_row *find(const struct mk_profile_sum *s, int coll)
{
    for (int i = 0; i < s->n; i++)
        if (s->row[i].k.coll == coll)
            return &s->row[i];
    return NULL;
}

static void check_run(const struct mk_kind *k, int version, uint64_t runs, uint64_t ns)
{
    CHECK(k->gpu_clock == (version >= 4), "version %d: the wrong clock", version);
    CHECK(k->timed == runs && !k->unfinished, "version %d: %llu timed, %llu unfinished, for %llu", version,
          (unsigned long long)k->timed, (unsigned long long)k->unfinished, (unsigned long long)runs);
    if (version >= 4)
        CHECK(k->run_min == ns && k->run_max == ns && k->run_ns == ns * runs,
              "version %d: %llu to %llu ns for %llu", version, (unsigned long long)k->run_min,
              (unsigned long long)k->run_max, (unsigned long long)ns);
}

static void test_plain(int version)
{
    struct mk_profile_sum s;
    const int files = run("plain", "prof.%h.%p", plain_run, version, &s);
    const struct mk_profile_row *ar = find(&s, MK_COLL_ALLREDUCE), *ag = find(&s, MK_COLL_ALLGATHER);
    const struct mk_profile_row *none = find(&s, MK_COLL_BROADCAST), *much = find(&s, MK_COLL_REDUCE);
    const struct mk_profile_row *send = find(&s, MK_COLL_SEND);
    CHECK(files == 1 && s.communicators == 1 && s.n == 5 && s.collectives == 23 && s.p2p == 1,
          "version %d: %d files, %d communicators, %d rows, %llu collectives", version, files,
          s.communicators, s.n, (unsigned long long)s.collectives);
    CHECK(ar && ag && none && much && send, "version %d: a collective is missing", version);
    if (!ar || !ag || !none || !much || !send)
        return;
    const int nranks = version >= 4 ? 4 : 0; /* known from init alone */
    CHECK(ar->nranks == nranks && ar->nnodes == nranks / 2, "version %d: %d ranks", version, ar->nranks);
    CHECK(ar->k.calls == 20 && ar->k.channels == 4 && ar->k.algo == MK_ALGO_RING &&
              ar->k.proto == MK_PROTO_SIMPLE && ar->k.dtype == 9 && ar->k.bytes_min == 2u << 20 &&
              ar->k.bytes_max == 2u << 20,
          "version %d: the all-reduce is another", version);
    /* before version 3 a run that is repeated at once cannot be told from more channels of it: host's clock */
    CHECK(version >= 3 || ar->k.timed >= 20, "version %d: %llu timed", version,
          (unsigned long long)ar->k.timed);
    if (version >= 3)
        check_run(&ar->k, version, 22, 30000);
    CHECK(ag->k.bytes_max == 4096u * (version >= 4 ? 4 : 1) && ag->k.proto == MK_PROTO_LL128,
          "version %d: an all-gather of %llu bytes", version, (unsigned long long)ag->k.bytes_max);
    check_run(&ag->k, version, 1, 8000);
    check_run(&none->k, version, 1, 8000);
    check_run(&send->k, version, 1, 5000);
    CHECK(none->k.bytes_max == 0 && !none->k.size_class, "version %d: nothing has bytes", version);
    CHECK(much->k.bytes_max == 1ull << 63, "version %d: %llx bytes", version,
          (unsigned long long)much->k.bytes_max);
    CHECK(send->k.bytes_max == 1024, "version %d: a send of %llu", version,
          (unsigned long long)send->k.bytes_max);
    mk_profile_free(&s);
}

static void test_strange(int version)
{
    struct mk_profile_sum s;
    CHECK(run("strange", "prof.%p", strange_run, version, &s) == 1, "version %d: no file", version);
    CHECK(s.communicators == 2 && s.n == 1, "version %d: %d communicators, %d rows", version, s.communicators,
          s.n);
    if (s.n == 1) {
        const struct mk_kind *k = &s.row[0].k;
        CHECK(k->calls == 2 && k->timed == 1 && k->unfinished == 1,
              "version %d: %llu calls, %llu timed, %llu not", version, (unsigned long long)k->calls,
              (unsigned long long)k->timed, (unsigned long long)k->unfinished);
        CHECK(version < 4 || k->run_ns == 30000, "version %d: %llu ns", version,
              (unsigned long long)k->run_ns);
    }
    mk_profile_free(&s);
}

static void test_threads(int version)
{
    struct mk_profile_sum s;
    CHECK(run("threads", "prof.%p", threads_run, version, &s) == 1, "version %d: no file", version);
    CHECK(s.communicators == COMMS && s.collectives == COMMS * EACH, "version %d: %d communicators", version,
          s.communicators);
    CHECK(s.n == 1, "version %d: %d rows", version, s.n);
    if (s.n == 1) {
        const struct mk_kind *k = &s.row[0].k;
        CHECK(k->calls == COMMS * EACH, "version %d: %llu calls", version, (unsigned long long)k->calls);
        CHECK(k->timed >= 32 && k->timed < COMMS * EACH / 2 && !k->unfinished,
              "version %d: %llu timed, %llu not", version, (unsigned long long)k->timed,
              (unsigned long long)k->unfinished);
        CHECK(version < 4 || (k->run_min == 7000 && k->run_max == 7000), "version %d: %llu to %llu ns",
              version, (unsigned long long)k->run_min, (unsigned long long)k->run_max);
        CHECK(k->overlap_ns <= k->run_ns, "version %d: more overlap than time", version);
    }
    mk_profile_free(&s);
}

static void test_fork(int version)
{
    struct mk_profile_sum s;
    CHECK(run("fork", "prof.%p", fork_run, version, &s) == 1, "version %d: not one file", version);
    CHECK(s.n == 1 && s.row[0].k.calls == 1, "version %d: the child's calls are in the file", version);
    mk_profile_free(&s);
}

static void test_idle(int version)
{
    struct mk_profile_sum s;
    CHECK(!run("idle", "", idle_run, version, &s), "version %d: a file without MK_PROFILE", version);
    CHECK(!run("idle", "prof.%x", idle_run, version, &s), "version %d: a file by a wrong pattern", version);
    mk_profile_free(&s);
}

int main(int argc, char **argv)
{
    char dir[] = "/tmp/mkprofXXXXXX", real[4096];
    if (argc != 2 || !realpath(argv[1], real) || !mkdtemp(dir) || chdir(dir))
        return 1;
    object = real;
    for (int version = 1; version <= 6; version++) {
        test_plain(version);
        test_strange(version);
        test_threads(version);
        test_fork(version);
        test_idle(version);
    }
    if (chdir("/") || rmdir(dir)) {
        printf("something is left in %s\n", dir);
        bad = 1;
    }
    return bad;
}
