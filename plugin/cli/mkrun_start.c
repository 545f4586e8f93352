/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#include "cli.h"
#include "mk/shm.h"
#include "mkrun.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <termios.h>
#include <unistd.h>

static uint64_t random_word(void)
{
    uint64_t w = 0;
    if (getrandom(&w, sizeof(w), 0) != sizeof(w))
        w = ((uint64_t)getpid() << 32) ^ mk_time_ns();
    return w;
}

/* A port of the loopback interface that is free now. First from below the range that the kernel deals out to
 * outgoing connections, so that it is still free when rank 0 listens. */
static int free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    int port = 0;
    for (int attempt = 0; attempt < 64 && !port; attempt++) {
        const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
            return 0;
        a.sin_port = htons(attempt < 60 ? (uint16_t)(20000 + random_word() % 12000) : 0);
        if (!bind(fd, (struct sockaddr *)&a, sizeof(a)) && !getsockname(fd, (struct sockaddr *)&a, &len))
            port = ntohs(a.sin_port);
        close(fd);
    }
    return port;
}

static int choose_root(struct mkrun *r)
{
    snprintf(r->job, sizeof(r->job), "%016llx", (unsigned long long)random_word());
    if (*r->settings.job)
        snprintf(r->job, sizeof(r->job), "%s", r->settings.job);
    if (*r->settings.root)
        return 0;
    const int port = free_port();
    if (!port) {
        mk_cli_say("no free port on 127.0.0.1: %s", strerror(errno));
        return MK_EXIT_FAILED;
    }
    snprintf(r->root, sizeof(r->root), "127.0.0.1:%d", port);
    return 0;
}

static void set_number(const char *name, long value)
{
    char text[24];
    snprintf(text, sizeof(text), "%ld", value);
    setenv(name, text, 1);
}

static void set_default(const char *name, const char *value)
{
    const char *now = mk_env(name);
    if (!now || !*now)
        setenv(name, value, 1);
}

/* In the child. */
static void set_environment(const struct mkrun *r, int rank)
{
    cpu_set_t cpus;
    char threads[24];
    const int cores = sched_getaffinity(0, sizeof(cpus), &cpus) ? 1 : CPU_COUNT(&cpus);
    snprintf(threads, sizeof(threads), "%d", cores / r->nranks > 1 ? cores / r->nranks : 1);
    set_number("MK_RANK", rank);
    set_number("MK_NRANKS", r->nranks);
    set_number("MK_NODE", rank / r->per_node);
    set_number("MK_LOCAL_RANK", rank % r->per_node);
    set_number("MK_LOCAL_NRANKS", r->per_node);
    set_default("MK_ROOT", r->root);
    set_default("MK_JOB", r->job);
    set_default("MK_IFNAME", "lo");
    set_default("MK_THREADS", threads);
    if (r->gpus_shared)
        mkrun_gpus_environment(r);
    if (r->ranks[rank].blocks)
        set_number("MK_BLOCKS", r->ranks[rank].blocks);
}

struct child_ends {
    int out, err; /* -1: mkrun's own */
    int failure;  /* errno of a failed exec is written here; closed by a successful one */
};

/* In the child: becomes the program or reports why not. */
static void become(const struct mkrun *r, int rank, const struct child_ends *ends, pid_t parent)
{
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(128 + SIGKILL); /* mkrun died before the line above */
    if (rank || isatty(STDIN_FILENO)) {
        const int null = open("/dev/null", O_RDONLY);
        if (null >= 0)
            dup2(null, STDIN_FILENO);
        if (null > STDERR_FILENO)
            close(null);
    }
    if (ends->out >= 0)
        dup2(ends->out, STDOUT_FILENO);
    if (ends->err >= 0)
        dup2(ends->err, STDERR_FILENO);
    set_environment(r, rank);
    signal(SIGPIPE, SIG_DFL);
    sigprocmask(SIG_SETMASK, &r->old_mask, NULL);
    execvp(r->argv[0], r->argv);
    const int err = errno;
    if (write(ends->failure, &err, sizeof(err)) < 0)
        _exit(126);
    _exit(127);
}

/* 0, or the errno of the failed exec. */
static int wait_for_exec(int fd)
{
    int err = 0;
    ssize_t n;
    do {
        n = read(fd, &err, sizeof(err));
    } while (n < 0 && errno == EINTR);
    close(fd);
    return n == sizeof(err) ? err : 0;
}

static int make_pipe(int p[2])
{
    if (!pipe2(p, O_CLOEXEC))
        return 0;
    p[0] = p[1] = -1;
    return errno;
}

/* A pair of terminal ends in place of a pipe: the rank may show its progress, as it would without mkrun. */
static int make_terminal(int p[2])
{
    struct termios t;
    p[0] = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (p[0] < 0)
        return make_pipe(p);
    const char *name = grantpt(p[0]) || unlockpt(p[0]) ? NULL : ptsname(p[0]);
    p[1] = name ? open(name, O_RDWR | O_NOCTTY | O_CLOEXEC) : -1;
    if (p[1] < 0 || tcgetattr(p[1], &t)) {
        close(p[0]);
        if (p[1] >= 0)
            close(p[1]);
        return make_pipe(p);
    }
    cfmakeraw(&t); /* bytes pass unchanged */
    tcsetattr(p[1], TCSANOW, &t);
    return 0;
}

static void close_fd(int fd)
{
    if (fd >= 0)
        close(fd);
}

static int start_rank(struct mkrun *r, int rank)
{
    int out[2] = {-1, -1}, err[2] = {-1, -1}, failure[2];
    int e = make_pipe(failure);
    if (!e && r->nranks > 1)
        e = make_pipe(out);
    const bool terminal = !rank && isatty(STDERR_FILENO);
    if (!e && r->nranks > 1)
        e = terminal ? make_terminal(err) : make_pipe(err);
    const pid_t parent = getpid();
    const pid_t pid = e ? -1 : fork();
    if (!pid) {
        const struct child_ends ends = {out[1], err[1], failure[1]};
        become(r, rank, &ends, parent);
    }
    if (pid < 0 && !e)
        e = errno;
    close_fd(out[1]);
    close_fd(err[1]);
    close_fd(failure[1]);
    if (e) {
        close_fd(out[0]);
        close_fd(err[0]);
        close_fd(failure[0]);
        mk_cli_say("rank %d cannot be started: %s", rank, strerror(e));
        return MK_EXIT_FAILED;
    }
    setpgid(pid, pid); /* whoever is first, it or we */
    r->ranks[rank].pid = pid;
    r->ranks[rank].running = true;
    r->running++;
    if (out[0] >= 0)
        mk_lines_add(r->lines, rank, 1, out[0], false);
    if (err[0] >= 0)
        mk_lines_add(r->lines, rank, 2, err[0], terminal);
    e = wait_for_exec(failure[0]);
    if (!e)
        return 0;
    mk_cli_say("%s: %s", r->argv[0], e == ENOENT ? "program not found" : strerror(e));
    return e == ENOENT ? 127 : 126;
}

int mkrun_start(struct mkrun *r)
{
    int ret = choose_root(r);
    for (int rank = 0; rank < r->nranks && !ret; rank++)
        ret = start_rank(r, rank);
    return ret;
}
