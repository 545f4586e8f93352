/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What the ranks leave: processes of theirs, and files in /dev/shm. mkrun is the subreaper of its
 * descendants, so whatever a rank started and forgot becomes a child of mkrun, also when it made a session of
 * its own. */
#include "mkrun.h"
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

void mkrun_signal_ranks(struct mkrun *r, int sig)
{
    for (int i = 0; i < r->nranks; i++)
        if (r->ranks[i].pid > 0)
            kill(-r->ranks[i].pid, sig);
}

static bool is_alive(pid_t pid)
{
    char path[64], text[512];
    snprintf(path, sizeof(path), "/proc/%ld/stat", (long)pid);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    const ssize_t n = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (n <= 0)
        return false;
    text[n] = 0;
    const char *state = strrchr(text, ')'); /* the name before it may hold anything */
    return state && state[1] && state[2] != 'Z' && state[2] != 'X';
}

/* Children of one thread of a process, then theirs. */
static int visit(pid_t pid, pid_t thread, int sig, int depth)
{
    char path[96];
    long child;
    int n = 0;
    snprintf(path, sizeof(path), "/proc/%ld/task/%ld/children", (long)pid, (long)thread);
    FILE *f = depth < 64 ? fopen(path, "re") : NULL;
    while (f && fscanf(f, "%ld", &child) == 1) {
        char tasks[64];
        snprintf(tasks, sizeof(tasks), "/proc/%ld/task", child);
        DIR *dir = opendir(tasks);
        for (struct dirent *d = dir ? readdir(dir) : NULL; d; d = readdir(dir))
            if (isdigit((unsigned char)d->d_name[0]))
                n += visit((pid_t)child, (pid_t)atol(d->d_name), sig, depth + 1);
        if (dir)
            closedir(dir);
        if (!is_alive((pid_t)child))
            continue;
        n++;
        if (sig)
            kill((pid_t)child, sig);
    }
    if (f)
        fclose(f);
    return n;
}

int mkrun_descendants(int sig)
{
    return visit(getpid(), getpid(), sig, 0);
}

struct pids {
    pid_t *pid;
    size_t n, room;
};

static void remember(struct pids *p, pid_t pid)
{
    if (p->n == p->room) {
        const size_t room = p->room ? 2 * p->room : 64;
        pid_t *q = realloc(p->pid, room * sizeof(*q));
        if (!q)
            return;
        p->pid = q;
        p->room = room;
    }
    p->pid[p->n++] = pid;
}

/* libfabric's shm provider names its files PID:..., and leaves them when it is killed. The number must be of
 * a process of this job that is dead now, the file of this user and not older than the job. */
static bool of_dead_child(const char *name, const struct pids *dead)
{
    char *end;
    const long pid = strtol(name, &end, 10);
    if (end == name || *end != ':' || pid <= 0)
        return false;
    for (size_t i = 0; i < dead->n; i++)
        if (dead->pid[i] == pid)
            return kill((pid_t)pid, 0) && errno == ESRCH;
    return false;
}

static bool of_job(const char *name, const char *job)
{
    static const char head[] = "mkernel-";
    const size_t len = strlen(job);
    if (strncmp(name, head, sizeof(head) - 1))
        return false;
    name += sizeof(head) - 1;
    return !strncmp(name, job, len) && (!name[len] || name[len] == '-' || name[len] == '.');
}

static void clean_shm(const struct mkrun *r, const struct pids *dead)
{
    struct stat st;
    DIR *dir = opendir("/dev/shm");
    for (struct dirent *d = dir ? readdir(dir) : NULL; d; d = readdir(dir)) {
        if (!of_dead_child(d->d_name, dead) && !of_job(d->d_name, r->job))
            continue;
        if (fstatat(dirfd(dir), d->d_name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISREG(st.st_mode))
            continue;
        if (st.st_uid == geteuid() && (int64_t)st.st_ctime >= r->begin_s)
            unlinkat(dirfd(dir), d->d_name, 0);
    }
    if (dir)
        closedir(dir);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    remove(path);
    return 0;
}

void mkrun_remove_tree(const char *path)
{
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

void mkrun_clean(struct mkrun *r)
{
    struct pids dead = {NULL, 0, 0};
    pid_t pid;
    while ((pid = waitpid(-1, NULL, WNOHANG)) > 0)
        remember(&dead, pid);
    for (int i = 0; i < r->nranks; i++)
        r->ranks[i].pid = 0;
    clean_shm(r, &dead);
    free(dead.pid);
}
