/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Cases about what NCCL's loader does with plugins in one process, done here in its order:
 *
 *   NCCL_NET_PLUGIN=a,b   opened in turn, by need; with NCCL_NET set only the one of that name is initialised; the first
 *                         that has devices is taken, and the others are never looked at again
 *   one communicator      profiler, net, connections, tuner; then tuner, connections, profiler, net the other way, and
 *                         the library is closed as often as it was opened
 *
 * Tuner and profiler come from the net library, by opens of their own. */
#include "tests/plugin/harness_side.h"
#include <dirent.h>
#include <dlfcn.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum state { READY, OPEN, ON, OFF };
struct lib {
    const char *path;
    enum state state;
    void *dl;
    struct caller c;
};
struct loader {
    struct lib lib[2];
    const char *want; /* NCCL_NET; NULL: not set */
};

static void open_lib(struct rank *r, struct lib *l, int newest)
{
    const char *why = "";
    l->dl = caller_load(l->path, &why);
    need(r, l->dl, "dlopen: %s", why);
    int v = newest;
    while (v >= CALLER_OLDEST && !caller_table(l->dl, v, &l->c))
        v--;
    need(r, v >= CALLER_OLDEST, "%s has no table of net v%d or older", l->path, newest);
    l->state = OPEN;
}

static void close_lib(struct rank *r, struct lib *l)
{
    need(r, !dlclose(l->dl), "dlclose: %s", dlerror());
    l->dl = NULL;
    l->state = READY;
}

/* The first use asks for devices; without any, the plugin is off for good. */
static void init_lib(struct rank *r, struct lib *l)
{
    struct caller_props p;
    int ndev = 0;
    need(r, !caller_init(&l->c, logger), "init of %s failed", l->path);
    if (l->state == OPEN && (caller_devices(&l->c, &ndev) || ndev <= 0)) {
        need(r, !caller_finalize(&l->c), "finalize of %s without devices failed", l->path);
        l->state = OFF;
        return;
    }
    l->state = ON;
    need(r, !caller_properties(&l->c, 0, 0xa5, &p), "getProperties of %s failed", l->path);
}

/* Which of the list the communicator gets: -1, none. */
static int assign(struct rank *r, struct loader *d)
{
    for (int i = 0; i < 2; i++) {
        struct lib *l = &d->lib[i];
        if (l->state == READY)
            open_lib(r, l, r->c.version);
        if (l->state == OFF || (d->want && strcasecmp(d->want, *(const char *const *)l->c.t.any)))
            continue;
        init_lib(r, l);
        if (l->state != ON)
            continue;
        d->lib[!i].state = OFF;
        return i;
    }
    return -1;
}

/* From now on the rank uses this one. */
static void take(struct rank *r, const struct lib *l)
{
    const int version = r->c.version;
    r->c = l->c;
    need(r, !caller_properties(&r->c, 0, 0xa5, &r->props), "getProperties failed");
    need(r, r->c.version <= version, "a table newer than v%d", version);
}

static struct loader list_of(struct rank *r, bool ours_first)
{
    if (!r->o->with)
        skip(r, "no second plugin (--with)");
    struct loader d = {.want = NULL};
    d.lib[!ours_first].path = r->o->path;
    d.lib[ours_first].path = r->o->with;
    return d;
}

static const char *name_of(struct rank *r, const char *path)
{
    struct lib l = {.path = path};
    open_lib(r, &l, r->c.version);
    return *(const char *const *)l.c.t.any; /* stays open */
}

/* ---- lists ---- */

static void list_first(struct rank *r)
{
    struct loader d = list_of(r, true);
    need(r, assign(r, &d) == 0, "the first of the list is not taken");
    need(r, !d.lib[1].dl, "the second was opened");
    take(r, &d.lib[0]);
    communicator(r, 0);
    need(r, !caller_finalize(&r->c), "finalize fails");
}

/* Both are opened, ours is wanted by its name, written in another way. */
static void list_named(struct rank *r)
{
    struct loader d = list_of(r, false);
    char want[64];
    snprintf(want, sizeof(want), "%s", name_of(r, r->o->path));
    for (char *p = want; *p; p++)
        *p = *p >= 'A' && *p <= 'Z' ? (char)(*p + 32) : *p >= 'a' && *p <= 'z' ? (char)(*p - 32) : *p;
    d.want = want;
    need(r, assign(r, &d) == 1 && d.lib[0].dl, "the one that NCCL_NET names is not taken");
    take(r, &d.lib[1]);
    communicator(r, 0);
    need(r, !caller_finalize(&r->c), "finalize fails");
}

static int open_threads(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/task");
    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n;
}

static void dispositions(struct sigaction all[32])
{
    memset(all, 0, 32 * sizeof(*all));
    for (int i = 1; i < 32; i++)
        sigaction(i, NULL, &all[i]);
}

/* Opened, looked at by its name, and not taken: it leaves no trace in the process, and the other one works. */
static void list_idle(struct rank *r)
{
    struct loader d = list_of(r, true);
    struct sigaction before[32], after[32];
    char want[64];
    snprintf(want, sizeof(want), "%s", name_of(r, r->o->with));
    d.want = want;
    dispositions(before);
    const int files = open_files(), threads = open_threads();
    open_lib(r, &d.lib[0], r->c.version);
    dispositions(after);
    need(r, open_files() == files, "opening the library opens %d files", open_files() - files);
    need(r, open_threads() == threads, "opening the library starts %d threads", open_threads() - threads);
    for (int i = 1; i < 32; i++)
        need(r,
             before[i].sa_handler == after[i].sa_handler && before[i].sa_flags == after[i].sa_flags &&
                 before[i].sa_sigaction == after[i].sa_sigaction,
             "opening the library changes what signal %d does", i);
    need(r, assign(r, &d) == 1, "the one that NCCL_NET names is not taken");
    take(r, &d.lib[1]);
    communicator(r, 0);
    need(r, !caller_finalize(&r->c), "finalize fails");
}

/* Ours has no device: said, and the next of the list is taken. */
static void list_none(struct rank *r)
{
    struct loader d = list_of(r, true);
    if (!r->o->own)
        skip(r, "how to take its devices from another plugin is not known");
    setenv("MK_CHUNK", "nonsense", 1);
    need(r, assign(r, &d) == 1, "a plugin without devices is taken");
    need(r, d.lib[0].state == OFF, "a malformed setting, and there are devices");
    need(r, strstr(last_warning(), "MK_CHUNK"), "no device, and the warning is: %s", last_warning());
    take(r, &d.lib[1]);
    communicator(r, 0);
    need(r, !caller_finalize(&r->c), "finalize fails");
}

/* The two ranks have their lists in another order, and so different plugins: who connects is told so. */
static void list_mixed(struct rank *r)
{
    struct loader d = list_of(r, r->me == 0);
    struct link l;
    int ret = 0;
    need(r, assign(r, &d) == 0, "the first of the list is not taken");
    take(r, &d.lib[0]);
    listen_on(r, &l, 0);
    step(r);
    uint8_t copy[256] = {0};
    memcpy(copy, r->sh->handle[!r->me][0], MK_NCCL_HANDLE_BYTES);
    const uint64_t end = now_ns() + (uint64_t)(r->o->patience * 1e9);
    while (!ret && !l.send && now_ns() < end) {
        ret = caller_connect(&r->c, r->dev, copy, &l.send);
        breathe(r);
    }
    need(r, ret && !l.send, "connecting to another plugin's listener is %s", l.send ? "done" : "never told");
    need(r, last_warning()[0], "connecting to another plugin's listener fails without a warning");
    need(r, !r->o->own || r->me || strstr(last_warning(), "another network plugin"), "the warning is: %s",
         last_warning());
    step(r);
    link_down(r, &l);
    need(r, !caller_finalize(&r->c), "finalize fails");
}

/* ---- one communicator after another ---- */

struct whole { /* what one communicator has of the library */
    struct lib net;
    void *profiler_dl, *tuner_dl;
    struct profiler profiler;
    struct tuner tuner;
};

static void whole_open(struct rank *r, struct whole *w, const char *path)
{
    const char *why = "";
    bool there = false;
    memset(w, 0, sizeof(*w));
    w->net.path = path;
    open_lib(r, &w->net, r->c.version);
    init_lib(r, &w->net);
    need(r, w->net.state == ON, "no devices");
    take(r, &w->net);
    need(r, (w->profiler_dl = caller_load(path, &why)), "dlopen: %s", why);
    for (int v = 6; v >= 1 && !there; v--)
        there = profiler_open(r, w->profiler_dl, v, &w->profiler);
    need(r, there, "no profiler");
    need(r, (w->tuner_dl = caller_load(path, &why)), "dlopen: %s", why);
    there = false;
    for (int v = 6; v >= 2 && !there; v--)
        there = tuner_open(r, w->tuner_dl, v, &w->tuner);
    need(r, there, "no tuner");
}

static void whole_close(struct rank *r, struct whole *w)
{
    tuner_close(r, &w->tuner);
    need(r, !dlclose(w->tuner_dl), "dlclose: %s", dlerror());
    profiler_close(r, &w->profiler);
    need(r, !dlclose(w->profiler_dl), "dlclose: %s", dlerror());
    need(r, !caller_finalize(&r->c), "finalize fails");
    close_lib(r, &w->net);
}

/* An abort: what was posted is not tested any more, memory and connections go. */
static void aborted(struct rank *r, int number)
{
    const size_t n = number & 1 ? 1u << 20 : 500;
    struct link l;
    struct buf a, b;
    link_up(r, &l, !r->me, number);
    buf_new(r, &a, n, 0);
    buf_new(r, &b, n, 0);
    buf_reg(r, &a, l.send);
    buf_reg(r, &b, l.recv);
    (void)try_recv(r, l.recv, &b, n, 1, false);
    (void)try_send(r, l.send, &a, n, 2); /* for which there is no receive */
    step(r);
    buf_free(r, &a);
    buf_free(r, &b);
    link_down(r, &l);
}

/* The first communicator of the process is destroyed, with all that was loaded for it, before the second one is made;
 * every second time under another name of the file, as NCCL 2.27 to 2.29 do. The file's static data lives on, or not. */
static void again(struct rank *r)
{
    enum { ROUNDS = 5 };
    const int version = r->c.version;
    char dir[] = "/tmp/harnessXXXXXX", real[PATH_MAX], other[64];
    int files = 0, threads = 0;
    need(r, realpath(r->o->path, real) && mkdtemp(dir), "no second name for the library");
    snprintf(other, sizeof(other), "%s/libnccl-net.so", dir);
    need(r, !symlink(real, other), "no second name for the library");
    for (int i = 0; i < ROUNDS; i++) {
        struct whole w;
        r->c.version = version;
        whole_open(r, &w, i & 1 ? other : r->o->path);
        tuner_ask(r, &w.tuner);
        profiler_events(r, &w.profiler);
        if (i % 2 == 0)
            communicator(r, i);
        if (i >= 1)
            aborted(r, ROUNDS + i);
        whole_close(r, &w);
        if (i == 0) {
            files = open_files();
            threads = open_threads();
        }
        step(r);
    }
    unlink(other);
    rmdir(dir);
    need(r, open_files() <= files, "%d files more are open after %d more communicators", open_files() - files,
         ROUNDS - 1);
    need(r, open_threads() <= threads, "%d threads more run after %d more communicators",
         open_threads() - threads, ROUNDS - 1);
}

const struct test_case cases_list[] = {
    {.name = "list_first", .ranks = 2, .run = list_first, .loads = true},
    {.name = "list_named", .ranks = 2, .run = list_named, .loads = true},
    {.name = "list_idle", .ranks = 2, .run = list_idle, .loads = true},
    {.name = "list_none", .ranks = 2, .run = list_none, .loads = true},
    {.name = "list_mixed", .ranks = 2, .run = list_mixed, .loads = true},
    {.name = "again", .ranks = 2, .run = again, .loads = true},
    {.name = NULL},
};
