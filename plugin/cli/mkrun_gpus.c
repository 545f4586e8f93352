/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* mkrun --gpus-shared: the MPS daemon and mknic, started before the ranks, ended after them.
 *
 * Both belong to a keeper, a process that is no descendant of mkrun (so mkrun's clean-up of what ranks leave does not
 * touch them) and reads from a pipe until mkrun closes it, or dies in whatever way; then it ends the two and removes
 * their directory. A second pipe, which ends with the keeper, tells mkrun that all is gone. */
#include "cli.h"
#include "mk/param.h"
#include "mk/shm.h"
#include "mkrun.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define MPS "nvidia-cuda-mps-control"
#define START_MS 60000 /* contexts on eight GPUs take their time */
#define MPS_MS 20000
#define END_MS 10000

struct keeper {
    char dir[80], nic[100], mps[100];
    pid_t mknic;
    bool mps_runs;
};

/* ---- in the keeper ---- */

static void nap_ms(int ms)
{
    poll(NULL, 0, ms);
}

/* Waits for a child, at most `ms`; then it is killed. Its exit status, or -1. */
static int await(pid_t pid, int ms)
{
    int status;
    for (int i = 0; pid > 0; i++) {
        const pid_t got = waitpid(pid, &status, WNOHANG);
        if (got == pid)
            return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
        if (got < 0)
            return -1;
        if (i == ms / 10)
            kill(pid, SIGKILL);
        nap_ms(10);
    }
    return -1;
}

/* A child with `in` as its input (-1: none); bound: it does not outlive the keeper. The signals that the keeper holds back are given back. */
static pid_t start(const char *program, char *const *argv, int in, bool bound)
{
    const pid_t me = getpid(), pid = fork();
    sigset_t none;
    if (pid)
        return pid;
    if (bound)
        prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (bound && getppid() != me)
        _exit(1);
    if (in >= 0)
        dup2(in, STDIN_FILENO);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execvp(program, argv);
    mk_cli_say("%s: %s", program, errno == ENOENT ? "program not found" : strerror(errno));
    _exit(127);
}

static int start_mps(struct keeper *k)
{
    char *argv[] = {(char *)(uintptr_t)MPS, (char *)(uintptr_t) "-d", NULL};
    snprintf(k->mps, sizeof(k->mps), "%s/mps", k->dir);
    if (mkdir(k->mps, 0700))
        return -1;
    setenv("CUDA_MPS_PIPE_DIRECTORY", k->mps, 1);
    setenv("CUDA_MPS_LOG_DIRECTORY", k->mps, 1);
    const int status = await(start(MPS, argv, -1, false), MPS_MS);
    k->mps_runs = status == 0;
    if (status != 127 && status)
        mk_cli_say("%s -d failed (status %d)", MPS, status);
    return status;
}

static void stop_mps(struct keeper *k)
{
    char *argv[] = {(char *)(uintptr_t)MPS, NULL};
    static const char quit[] = "quit -t 5\n";
    int p[2];
    if (!k->mps_runs || pipe2(p, O_CLOEXEC))
        return;
    if (write(p[1], quit, sizeof(quit) - 1) < 0)
        mk_cli_say("%s: %s", MPS, strerror(errno));
    close(p[1]);
    await(start(MPS, argv, p[0], false), END_MS);
    close(p[0]);
    /* the daemon is our child by now (subreaper): what does not go, is made to */
    for (int i = 0; i < END_MS / 20 && waitpid(-1, NULL, WNOHANG) >= 0; i++)
        nap_ms(20);
    mkrun_descendants(SIGKILL);
    while (waitpid(-1, NULL, 0) > 0)
        ;
}

static bool answers(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    const bool ok = fd >= 0 && !connect(fd, (struct sockaddr *)&a, sizeof(a));
    if (fd >= 0)
        close(fd);
    return ok;
}

/* Beside mkrun, else in the PATH. */
static void find_mknic(char out[512])
{
    char self[400];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    snprintf(out, 512, "mknic");
    if (n <= 0)
        return;
    self[n] = 0;
    char *slash = strrchr(self, '/');
    if (!slash)
        return;
    *slash = 0;
    snprintf(out, 512, "%s/mknic", self);
    if (access(out, X_OK))
        snprintf(out, 512, "mknic");
}

static int start_mknic(struct keeper *k)
{
    char program[512];
    find_mknic(program);
    char *argv[] = {program, (char *)(uintptr_t) "--socket", k->nic, NULL};
    unsetenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"); /* it is no rank */
    k->mknic = start(program, argv, -1, true);
    for (int i = 0; i < START_MS / 10 && k->mknic > 0; i++) {
        int status;
        if (answers(k->nic))
            return 0;
        if (waitpid(k->mknic, &status, WNOHANG) == k->mknic) {
            k->mknic = 0;
            break;
        }
        nap_ms(10);
    }
    mk_cli_say("mknic did not come up");
    return -1;
}

static void end_all(struct keeper *k)
{
    if (k->mknic > 0) {
        kill(k->mknic, SIGTERM);
        await(k->mknic, END_MS / 2);
    }
    stop_mps(k);
    mkrun_remove_tree(k->dir);
}

/* Until mkrun closes its end; says so when mknic goes before. */
static void keep(struct keeper *k, int alive)
{
    char byte;
    for (;;) {
        struct pollfd p = {.fd = alive, .events = POLLIN};
        int status;
        if (poll(&p, 1, 200) > 0 && read(alive, &byte, 1) <= 0)
            return;
        if (k->mknic > 0 && waitpid(k->mknic, &status, WNOHANG) == k->mknic) {
            k->mknic = 0;
            if (WIFSIGNALED(status))
                mk_cli_say("mknic was ended by signal %d (%s)", WTERMSIG(status),
                           strsignal(WTERMSIG(status)));
            else
                mk_cli_say("mknic ended with status %d", WEXITSTATUS(status));
        }
    }
}

static void be_keeper(struct keeper *k, int alive, int report)
{
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    setsid();
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null >= 0)
        dup2(null, STDIN_FILENO);
    const bool ok = !start_mps(k) && !start_mknic(k);
    if (write(report, ok ? "y" : "n", 1) == 1 && ok)
        keep(k, alive);
    end_all(k);
    _exit(0);
}

/* ---- in mkrun ---- */

int mkrun_gpus_start(struct mkrun *r)
{
    struct keeper k;
    int alive[2] = {-1, -1}, report[2] = {-1, -1};
    char yes = 0;
    const char *tmp = mk_env("TMPDIR");
    memset(&k, 0, sizeof(k));
    snprintf(k.dir, sizeof(k.dir), "%s/mkernel-XXXXXX", tmp && *tmp && strlen(tmp) < 40 ? tmp : "/tmp");
    if (!mkdtemp(k.dir) || pipe2(alive, O_CLOEXEC) || pipe2(report, O_CLOEXEC)) {
        mk_cli_say("--gpus-shared: %s: %s", k.dir, strerror(errno));
        return MK_EXIT_FAILED;
    }
    snprintf(k.nic, sizeof(k.nic), "%s/nic", k.dir);
    snprintf(r->gpus_dir, sizeof(r->gpus_dir), "%s", k.dir);
    const pid_t first = fork(); /* twice, so that the keeper is a child of somebody else */
    if (!first) {
        if (fork())
            _exit(0);
        close(alive[1]);
        close(report[0]);
        be_keeper(&k, alive[0], report[1]);
    }
    close(alive[0]);
    close(report[1]);
    r->keeper_alive = alive[1];
    r->keeper_report = report[0];
    if (first < 0 || waitpid(first, NULL, 0) != first || read(report[0], &yes, 1) != 1 || yes != 'y') {
        mkrun_gpus_stop(r);
        mk_cli_say("--gpus-shared: the GPUs cannot be shared here");
        return MK_EXIT_FAILED;
    }
    return 0;
}

void mkrun_gpus_stop(struct mkrun *r)
{
    char byte;
    if (r->keeper_report < 0)
        return;
    close(r->keeper_alive);
    struct pollfd p = {.fd = r->keeper_report, .events = POLLIN};
    while (poll(&p, 1, 3 * END_MS) > 0 && read(r->keeper_report, &byte, 1) > 0)
        ;
    close(r->keeper_report);
    r->keeper_report = -1;
}

/* Ranks take them in turns. By what the driver shows, since this process opens none. */
static int gpus_here(void)
{
    const char *visible = mk_env("CUDA_VISIBLE_DEVICES");
    char name[32];
    int n = 0;
    if (visible && *visible) {
        for (n = 1; *visible; visible++)
            n += *visible == ',';
        return n;
    }
    do
        snprintf(name, sizeof(name), "/dev/nvidia%d", n++);
    while (!access(name, F_OK));
    return n > 1 ? n - 1 : 1;
}

void mkrun_gpus_environment(const struct mkrun *r)
{
    char text[100];
    snprintf(text, sizeof(text), "%s/nic", r->gpus_dir);
    setenv("MK_NIC", text, 1);
    setenv("MK_SHARED_GPU", "1", 1);
    snprintf(text, sizeof(text), "%s/mps", r->gpus_dir);
    setenv("CUDA_MPS_PIPE_DIRECTORY", text, 1);
    setenv("CUDA_MPS_LOG_DIRECTORY", text, 1);
    const int gpus = gpus_here(), sharers = (r->nranks + gpus - 1) / gpus;
    const int share = 100000 / sharers; /* rounded down: the shares must fit */
    snprintf(text, sizeof(text), "%d.%03d", share / 1000, share % 1000);
    setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", text, 0);
}
