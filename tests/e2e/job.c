/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#include "job.h"
#include "tests/net/free_port.h"
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <execinfo.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define JOB_RUNS 12345 /* as a status */

double job_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void job_seconds(const char *name, double seconds)
{
    char text[32];
    snprintf(text, sizeof(text), "%g", seconds * JOB_SLOWER);
    setenv(name, text, 1);
}

struct job *job_create(int nodes, int local, double limit)
{
    struct job *j = mmap(NULL, sizeof(*j), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (j == MAP_FAILED)
        abort();
    j->nodes = nodes;
    j->local = local;
    j->n = nodes * local;
    j->limit = limit * JOB_LIMIT_TIMES;
    return j;
}

void job_destroy(struct job *j)
{
    munmap(j, sizeof(*j));
}

static void set(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof(text), "%d", value);
    setenv(name, text, 1);
}

/* ---- where does it stand? ---- */

/* In any thread of a rank: addresses for addr2line, on the standard error. */
static void on_where(int sig)
{
    void *at[48];
    const int saved = errno, n = backtrace(at, 48);
    char text[48];
    (void)sig;
    const int len = snprintf(text, sizeof(text), "thread %ld:\n", (long)syscall(SYS_gettid));
    if (write(STDERR_FILENO, text, (size_t)len) == len)
        backtrace_symbols_fd(at, n, STDERR_FILENO);
    errno = saved;
}

static void ready_to_tell(void)
{
    struct sigaction sa;
    void *at[1];
    memset(&sa, 0, sizeof(sa));
    sa.sa_handler = on_where;
    sa.sa_flags = SA_RESTART;
    backtrace(at, 1); /* loads what it needs, which a handler must not do */
    sigaction(SIGUSR2, &sa, NULL);
}

static void print_file(pid_t pid, const char *task, const char *name)
{
    char path[320], text[200];
    snprintf(path, sizeof(path), "/proc/%d/task/%s/%s", (int)pid, task, name);
    FILE *f = fopen(path, "r");
    if (f && fgets(text, sizeof(text), f)) {
        text[strcspn(text, "\n")] = 0;
        fprintf(stderr, " %s %s;", name, text);
    }
    if (f)
        fclose(f);
}

/* Each thread by what the kernel says of it, then by its own word, where it takes signals. */
static void say_where(const struct job *j, int rank)
{
    const struct job_rank *r = &j->r[rank];
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/task", (int)r->pid);
    fprintf(stderr, "rank %d (process %d) has not ended: stage %d, %d beats, code %d%s\n", rank, (int)r->pid,
            r->stage, r->beats, r->code, r->over ? ", in exit" : "");
    DIR *d = opendir(path);
    for (const struct dirent *e; d && (e = readdir(d));) {
        if (e->d_name[0] == '.')
            continue;
        fprintf(stderr, "  thread %s:", e->d_name);
        print_file(r->pid, e->d_name, "comm");
        print_file(r->pid, e->d_name, "wchan");
        print_file(r->pid, e->d_name, "syscall");
        fprintf(stderr, "\n");
        syscall(SYS_tgkill, r->pid, atoi(e->d_name), SIGUSR2);
        usleep(50000);
    }
    if (d)
        closedir(d);
}

/* ---- life ---- */

void job_start(struct job *j, int (*fn)(struct job *j, int rank), void *arg)
{
    const pid_t parent = getpid();
    snprintf(j->root, sizeof(j->root), "127.0.0.1:%d", free_port());
    memset(j->r, 0, sizeof(j->r));
    j->arg = arg;
    fflush(NULL);
    for (int i = 0; i < j->n; i++) {
        const pid_t pid = fork();
        if (pid < 0)
            abort();
        if (pid) {
            j->r[i].pid = pid;
            continue;
        }
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(99);
        setenv("MK_ROOT", j->root, 1);
        setenv("MK_JOB", "e2e", 1);
        setenv("MK_IFNAME", "lo", 0);
        set("MK_RANK", i);
        set("MK_NRANKS", j->n);
        set("MK_NODE", i / j->local);
        set("MK_LOCAL_RANK", i % j->local);
        set("MK_LOCAL_NRANKS", j->local);
        ready_to_tell();
        const int status = fn(j, i);
        __atomic_store_n(&j->r[i].over, 1, __ATOMIC_RELAXED);
        exit(status);
    }
}

/* Changes whenever something happens. */
static int beats(const struct job *j, int left)
{
    int n = -left;
    for (int i = 0; i < j->n; i++)
        n += __atomic_load_n(&j->r[i].beats, __ATOMIC_RELAXED) +
             __atomic_load_n(&j->r[i].over, __ATOMIC_RELAXED);
    return n;
}

static void end_all(struct job *j)
{
    for (int i = 0; i < j->n; i++)
        if (j->r[i].status == JOB_RUNS)
            say_where(j, i);
    for (int i = 0; i < j->n; i++) {
        if (j->r[i].status != JOB_RUNS)
            continue;
        kill(j->r[i].pid, SIGKILL);
        waitpid(j->r[i].pid, NULL, 0);
        j->r[i].status = JOB_HUNG;
    }
}

int job_wait(struct job *j)
{
    double end = job_now() + j->limit;
    int left = j->n, bad = 0, last = beats(j, left);
    for (int i = 0; i < j->n; i++)
        j->r[i].status = JOB_RUNS;
    while (left) {
        for (int i = 0; i < j->n; i++) {
            int st;
            if (j->r[i].status != JOB_RUNS || waitpid(j->r[i].pid, &st, WNOHANG) != j->r[i].pid)
                continue;
            j->r[i].status = WIFEXITED(st) ? WEXITSTATUS(st) : JOB_DEAD;
            left--;
        }
        const int now = beats(j, left);
        if (now != last)
            end = job_now() + j->limit;
        last = now;
        if (left && job_now() > end) {
            end_all(j);
            left = 0;
        }
        if (left)
            usleep(1000);
    }
    for (int i = 0; i < j->n; i++)
        bad += j->r[i].status != 0;
    return bad;
}

int job_run(struct job *j, int (*fn)(struct job *j, int rank), void *arg)
{
    job_start(j, fn, arg);
    return job_wait(j);
}

void job_stage(struct job *j, int rank, int stage)
{
    __atomic_store_n(&j->r[rank].stage, stage, __ATOMIC_RELEASE);
    job_beat(j, rank);
}

void job_beat(struct job *j, int rank)
{
    __atomic_fetch_add(&j->r[rank].beats, 1, __ATOMIC_RELAXED);
}

int job_failed(struct job *j, int rank, int code)
{
    j->r[rank].seen = job_now();
    j->r[rank].code = code;
    snprintf(j->r[rank].text, sizeof(j->r[rank].text), "%s", mk_last_error());
    job_beat(j, rank);
    return 1;
}

float job_value(unsigned long seed, long i)
{
    uint64_t z = seed * 0x9e3779b97f4a7c15ull + (uint64_t)i * 0xd1342543de82ef95ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return (float)((double)(int64_t)(z ^ (z >> 31)) / 9223372036854775808.0);
}

void job_fill(void *p, int dtype, long count, unsigned long seed)
{
    for (long i = 0; i < count; i++) {
        const float f = job_value(seed, i);
        uint32_t u;
        memcpy(&u, &f, 4);
        if (dtype == MK_FLOAT32)
            ((float *)p)[i] = f;
        else
            ((uint16_t *)p)[i] = (uint16_t)(u >> 16); /* cut, not rounded: any bf16 value will do */
    }
}

unsigned long job_hash(const void *p, size_t bytes, unsigned long h)
{
    for (size_t i = 0; i < bytes; i++)
        h = (h ^ ((const uint8_t *)p)[i]) * 0x100000001b3ul;
    return h;
}
