/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Cases about limits of the process: whatever RLIMIT_NOFILE is, it works, or there is an error with a text; nothing
 * hangs, nobody is left waiting. */
#include "tests/plugin/harness.h"
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

enum { WORKS = 10, TOLD, NOTHING /* no device, told */, ROWS = 2, MOST = 64, BYTES = 200000 };

static void limit_files(struct rank *r, rlim_t n)
{
    struct rlimit l;
    need(r, !getrlimit(RLIMIT_NOFILE, &l), "getrlimit fails");
    l.rlim_cur = n;
    need(r, !setrlimit(RLIMIT_NOFILE, &l), "setrlimit fails");
}

/* The lowest number that is free: a limit of as much leaves nothing. */
static int lowest(struct rank *r)
{
    const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    need(r, fd >= 0, "no descriptor to begin with");
    close(fd);
    return fd;
}

/* An error for lack of files: its code, and its text with the limit's name. */
static void check_told(struct rank *r, int ret, const char *what)
{
    need(r, ret == MK_NCCL_SYSTEM_ERROR, "%s, with few files: %d, not ncclSystemError", what, ret);
    need(r, warned("RLIMIT_NOFILE") && warned("ulimit -n"), "%s, with few files: the limit is not named",
         what);
}

static _Noreturn void told(struct rank *r, int ret, const char *what)
{
    check_told(r, ret, what);
    _exit(TOLD);
}

static void self_meet(struct rank *r, struct link *l)
{
    uint8_t handle[256] = {0};
    const uint64_t end = now_ns() + (uint64_t)(r->o->patience * 1e9);
    int ret = caller_listen(&r->c, 0, handle, &l->listen);
    if (ret)
        told(r, ret, "listen");
    while (!l->send || !l->recv) {
        if (!l->send && (ret = caller_connect(&r->c, 0, handle, &l->send)))
            told(r, ret, "connect");
        if (!l->recv && (ret = caller_accept(&r->c, l->listen, &l->recv)))
            told(r, ret, "accept");
        need(r, now_ns() < end, "with few files, connecting to itself never ends");
        breathe(r);
    }
}

static void self_message(struct rank *r, struct link *l)
{
    struct buf a, b;
    void *tx = NULL, *rx = NULL, *data[1], *mh[1];
    const size_t n = BYTES;
    int ret, tag = 0, done[2] = {0, 0}, size[CALLER_GROUP_MAX];
    const uint64_t end = now_ns() + (uint64_t)(r->o->patience * 1e9);
    buf_new(r, &a, n, 0);
    buf_new(r, &b, n, 0);
    if ((ret = caller_reg(&r->c, l->send, a.data, n, MK_NCCL_PTR_HOST, &a.mh)) ||
        (ret = caller_reg(&r->c, l->recv, b.data, n, MK_NCCL_PTR_HOST, &b.mh)))
        told(r, ret, "regMr");
    buf_fill(&a, 1, n);
    data[0] = b.data;
    mh[0] = b.mh;
    while (!done[0] || !done[1]) {
        if (!tx && (ret = caller_isend(&r->c, l->send, a.data, n, tag, a.mh, &tx)))
            told(r, ret, "isend");
        if (!rx && (ret = caller_irecv(&r->c, l->recv, 1, data, &n, &tag, mh, &rx)))
            told(r, ret, "irecv");
        if (tx && !done[0] && (ret = caller_test(&r->c, tx, &done[0], size)))
            told(r, ret, "a send");
        if (rx && !done[1] && (ret = caller_test(&r->c, rx, &done[1], size)))
            told(r, ret, "a receive");
        need(r, now_ns() < end, "with few files, a message never ends");
        breathe(r);
    }
    need(r, size[0] == BYTES && buf_wrong(&b, 1, n) < 0, "with few files, a message is wrong");
    buf_canaries(r, &b, "with few files");
}

/* Everything from the load on with so many descriptors; or only the message, with none left. */
static _Noreturn void with_files(struct rank *r, int files, bool late)
{
    const char *why = "";
    struct link l = {NULL, NULL, NULL};
    int ndev = 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    void *lib = caller_load(r->o->path, &why); /* NCCL has it before the program has many files */
    need(r, lib && caller_table(lib, r->c.version, &r->c), "dlopen: %s", why);
    if (!late)
        limit_files(r, (rlim_t)files);
    need(r, !caller_init(&r->c, logger), "init fails with %d files", files);
    const int ret = caller_devices(&r->c, &ndev);
    need(r, !ret, "devices: %d with %d files", ret, files);
    if (ndev < 1) {
        check_told(r, MK_NCCL_SYSTEM_ERROR, "no devices");
        _exit(NOTHING);
    }
    self_meet(r, &l);
    if (late)
        limit_files(r, (rlim_t)lowest(r));
    self_message(r, &l);
    link_down(r, &l);
    need(r, !caller_finalize(&r->c), "finalize fails with %d files", files);
    _exit(WORKS);
}

static int in_child(struct rank *r, int files, bool late)
{
    int status = 0;
    const pid_t pid = fork();
    if (pid == 0)
        with_files(r, files, late);
    need(r, pid > 0 && waitpid(pid, &status, 0) == pid, "no child");
    need(r, WIFEXITED(status), "with %d files: signal %d", files, WTERMSIG(status));
    need(r, WEXITSTATUS(status) >= WORKS && WEXITSTATUS(status) <= NOTHING, "with %d files: a fault", files);
    return WEXITSTATUS(status);
}

static void files(struct rank *r)
{
    if (!r->o->own)
        skip(r, "only what our own plugin promises");
    setenv("MK_TIMEOUT", "1", 1);
    const int first = lowest(r);
    int works = 0, refused = 0, n = first;
    for (int is = 0; works < ROWS && n < first + MOST; n += is == NOTHING ? 3 : 1) {
        is = in_child(r, n, false);
        refused += is != WORKS;
        works = is == WORKS ? works + 1 : 0;
    }
    need(r, works == ROWS, "with %d files it still does not work", n);
    need(r, refused > 0, "it works without any descriptor");
    (void)in_child(r, n, true);
    note(r, "%d descriptors more than at the start are enough", n - ROWS - first);
}

/* One of two has few files: both end, with an error or a connection; what rank 1 has, is in its word: 1 + more. */
static void files_meet(struct rank *r)
{
    if (!r->o->own)
        skip(r, "only what our own plugin promises");
    setenv("MK_TIMEOUT", "1", 1);
    rank_open(r);
    for (int more = 0; more < 6; more++) {
        struct link l;
        int ret = 0;
        const uint64_t end = now_ns() + (uint64_t)(r->o->patience * 1e9);
        listen_on(r, &l, more);
        step(r);
        struct rlimit before;
        need(r, !getrlimit(RLIMIT_NOFILE, &before), "getrlimit fails");
        if (r->me)
            limit_files(r, (rlim_t)(lowest(r) + more));
        uint8_t copy[256] = {0};
        memcpy(copy, r->sh->handle[!r->me][more], MK_NCCL_HANDLE_BYTES);
        while (!ret && (!l.send || !l.recv)) {
            if (!l.send)
                ret = caller_connect(&r->c, r->dev, copy, &l.send);
            if (!ret && !l.recv)
                ret = caller_accept(&r->c, l.listen, &l.recv);
            need(r, now_ns() < end, "with %d files more at rank 1, rank %d waits for ever", more, r->me);
            breathe(r);
        }
        if (r->me)
            limit_files(r, before.rlim_cur);
        need(r, !ret || ret == MK_NCCL_SYSTEM_ERROR || ret == MK_NCCL_REMOTE_ERROR, "rank %d: %d", r->me,
             ret);
        need(r, !ret || !r->me || warned("RLIMIT_NOFILE"), "rank 1 is not told which limit it has reached");
        link_down(r, &l); /* as an aborted communicator: the other one sees it */
        step(r);
    }
    struct link l;
    link_up(r, &l, !r->me, 10); /* with files enough again */
    link_down(r, &l);
    need(r, !caller_finalize(&r->c), "finalize fails");
}

const struct test_case cases_limits[] = {
    {.name = "files", .ranks = 1, .run = files, .loads = true},
    {.name = "files_meet", .ranks = 2, .run = files_meet, .loads = true},
    {.name = NULL},
};
