/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#include "job.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* As for the time of a whole test (ci/cmake/mk.cmake): six ranks with the instrumented product take minutes on two
 * cores that do other work beside. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define LIMITS_TIMES 5
#else
#define LIMITS_TIMES 1
#endif

double job_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int free_port(void)
{
    struct sockaddr_in a;
    socklen_t len = sizeof(a);
    const int s = socket(AF_INET, SOCK_STREAM, 0);
    memset(&a, 0, sizeof(a));
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (s < 0 || bind(s, (struct sockaddr *)&a, sizeof(a)) || getsockname(s, (struct sockaddr *)&a, &len))
        abort();
    close(s);
    return ntohs(a.sin_port);
}

struct job *job_create(int nodes, int local, double limit)
{
    struct job *j = mmap(NULL, sizeof(*j), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (j == MAP_FAILED)
        abort();
    j->nodes = nodes;
    j->local = local;
    j->n = nodes * local;
    j->limit = limit * LIMITS_TIMES;
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
        exit(fn(j, i));
    }
}

int job_wait(struct job *j)
{
    const double end = job_now() + j->limit;
    int left = j->n, bad = 0;
    for (int i = 0; i < j->n; i++)
        j->r[i].status = 12345;
    while (left) {
        for (int i = 0; i < j->n; i++) {
            int st;
            if (j->r[i].status != 12345)
                continue;
            const pid_t got = waitpid(j->r[i].pid, &st, WNOHANG);
            if (got == j->r[i].pid) {
                j->r[i].status = WIFEXITED(st) ? WEXITSTATUS(st) : JOB_DEAD;
                left--;
            } else if (job_now() > end) {
                kill(j->r[i].pid, SIGKILL);
                waitpid(j->r[i].pid, &st, 0);
                j->r[i].status = JOB_HUNG;
                left--;
            }
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
}

int job_failed(struct job *j, int rank, int code)
{
    j->r[rank].seen = job_now();
    j->r[rank].code = code;
    snprintf(j->r[rank].text, sizeof(j->r[rank].text), "%s", mk_last_error());
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
