/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Interception through a process's life: children, objects that go and come again, threads that load while others call,
 * a caller inside the dynamic linker's own lock.
 *
 * hook_life alone FOLDER: without the interception's inner interface (for LD_PRELOAD of the product's object); prints
 * what does not depend on it.  hook_life FOLDER HOOKS.so: opened as a plugin, everything counted. */
#include "hook_face.h"
#include "hook_stand.h"
#include "hook_user.h"
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CALLERS 3

static const struct hook_face *face;
static const char *folder;
static int failures, stop, calling; /* atomic */

#define CHECK(x)                                                                                             \
    do {                                                                                                     \
        if (!(x)) {                                                                                          \
            fprintf(stderr, "line %d: %s\n", __LINE__, #x);                                                  \
            __atomic_fetch_add(&failures, 1, __ATOMIC_RELAXED);                                              \
        }                                                                                                    \
    } while (0)

/* Alone, another test runs this several times over: it is short then. */
static int times(int n)
{
    return face ? n : n / 10;
}

static uint64_t hooked(void)
{
    return face ? face->calls(MK_HOOK_ncclAllReduce) : 0;
}

static void *open_late(const char *how, int (**call)(void))
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/libhook_late_%s.so", folder, how);
    void *so = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
    if (so)
        *(void **)call = dlsym(so, "late_direct");
    CHECK(so && *call);
    return so;
}

/* A patched object goes; the same one, or another in its place, comes. */
static void come_and_go(void)
{
    static const char *const hows[] = {"lazy", "now", "partial", "noplt"};
    for (int i = 0; i < times(60); i++) {
        int (*call)(void) = NULL;
        void *so = open_late(hows[i * 7 / 3 % 4], &call);
        if (!so || !call)
            return;
        CHECK(user_direct() == 0); /* whoever came is patched now */
        const uint64_t before = hooked();
        CHECK(call() == 0);
        if (face)
            CHECK(hooked() == before + 1);
        CHECK(dlclose(so) == 0);
        CHECK(user_direct() == 0);
    }
}

static void *caller(void *arg)
{
    (void)arg;
    __atomic_fetch_add(&calling, 1, __ATOMIC_RELAXED);
    while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE))
        if (user_direct() || user_address())
            CHECK(!"a call failed");
    return NULL;
}

/* Returns when they call. */
static void start_callers(pthread_t *id, int n)
{
    __atomic_store_n(&stop, 0, __ATOMIC_RELEASE);
    __atomic_store_n(&calling, 0, __ATOMIC_RELAXED);
    for (int i = 0; i < n; i++)
        CHECK(!pthread_create(&id[i], NULL, caller, NULL));
    while (__atomic_load_n(&calling, __ATOMIC_RELAXED) < n)
        sched_yield();
}

static void stop_callers(const pthread_t *id, int n)
{
    __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
    for (int i = 0; i < n; i++)
        pthread_join(id[i], NULL);
}

static void *loader(void *arg)
{
    const char *how = arg;
    for (int i = 0; i < times(60); i++) {
        int (*call)(void) = NULL;
        void *so = open_late(how, &call);
        if (so && call)
            CHECK(call() == 0);
        if (so)
            dlclose(so);
    }
    return NULL;
}

/* A child of a process whose other threads are in the midst of calls, and so may walk the dynamic linker's list: it loads
 * an object and calls, which takes the locks that those threads may have held. The alarm ends a child that waits for
 * ever. */
static void child(void)
{
    const pid_t pid = fork();
    if (pid == 0) {
        int (*call)(void) = NULL;
        alarm(60);
        void *so = open_late("partial", &call);
        const bool good = so && call && call() == 0 && user_direct() == 0 && user_data() == 0;
        _exit(good ? 42 : 1);
    }
    int status = 0;
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 42);
}

static void together(void)
{
    static char lazy[] = "lazy", now[] = "now";
    pthread_t callers[CALLERS], loaders[2];
    start_callers(callers, CALLERS);
    CHECK(!pthread_create(&loaders[0], NULL, loader, lazy));
    CHECK(!pthread_create(&loaders[1], NULL, loader, now));
    pthread_join(loaders[0], NULL);
    pthread_join(loaders[1], NULL);
    /* Not beside the loaders: in glibc a fork in the midst of a dlopen leaves the child a lock that nobody releases. */
    for (int i = 0; i < times(100); i++)
        child();
    stop_callers(callers, CALLERS);
}

/* Here the dynamic linker's lock is held, and a round over its list needs the lock. */
static int inside(struct dl_phdr_info *info, size_t size, void *ctx)
{
    (void)info, (void)size;
    if ((*(int *)ctx)++ < 3)
        CHECK(user_direct() == 0);
    return 0;
}

static void *walker(void *arg)
{
    (void)arg;
    for (int i = 0; i < times(200); i++) {
        int n = 0;
        dl_iterate_phdr(inside, &n);
    }
    return NULL;
}

static void within_the_lock(void)
{
    pthread_t callers[2], walkers[2];
    start_callers(callers, 2);
    for (int i = 0; i < 2; i++)
        CHECK(!pthread_create(&walkers[i], NULL, walker, NULL));
    for (int i = 0; i < 2; i++)
        pthread_join(walkers[i], NULL);
    stop_callers(callers, 2);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    if (!strcmp(argv[1], "alone")) {
        folder = argv[2];
    } else {
        folder = argv[1];
        setenv("MK_FUSE", "on", 1);
        face = hook_open(argv[2]);
    }
    const int before = stand_record_nccl(MK_HOOK_ncclAllReduce)->calls;
    const uint64_t counted = hooked();
    come_and_go();
    if (face)
        CHECK((int)(hooked() - counted) == stand_record_nccl(MK_HOOK_ncclAllReduce)->calls - before);
    child();
    together();
    within_the_lock();
    puts(failures ? "failed" : "as it should be");
    return failures ? 1 : face ? 0 : 9;
}
