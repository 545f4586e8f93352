/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What a program may do around its calls, and what must not harm the job: fork, signals, a stopped rank, ranks that
 * have finished while others have not, no memory or no descriptors on one rank. Usage: attack loop|ofi. */
#include "job.h"
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

/* ThreadSanitizer allows no new threads in a child of a process with threads; both want more memory than the case
 * leaves: these cases end at once there. */
#ifdef __SANITIZE_THREAD__
#define FORKS 0
#else
#define FORKS 1
#endif
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define LIMITS 0
#define MANY 100 /* calls, enough that a stop finds ranks in them: each takes ten times as long */
#else
#define LIMITS 1
#define MANY 400
#endif

enum { M = 300, N = 500, K = 64, LD = 520 };
enum { STAGE_READY = 1 };

struct plan {
    int who, what;
    double seconds;
};

struct buffers {
    float *a, *b, *c;
};
static struct buffers buffers(void)
{
    static struct buffers x; /* reachable to the end: processes end in many ways here */
    x.a = malloc(M * K * sizeof(float));
    x.b = malloc(N * K * sizeof(float));
    x.c = malloc(M * LD * sizeof(float));
    for (int i = 0; i < M * K; i++)
        x.a[i] = 1;
    for (int i = 0; i < N * K; i++)
        x.b[i] = 1;
    for (int i = 0; i < M * LD; i++)
        x.c[i] = -77;
    return x;
}
static int call(mk_comm_t comm, const struct buffers *x, int m)
{
    return mk_gemm_allreduce(comm, MK_TN, m, N, K, MK_FLOAT32, x->a, K, x->b, K, x->c, LD, NULL, NULL);
}
static int right(const struct buffers *x, int n)
{
    for (int i = 0; i < M; i++)
        for (int j = 0; j < LD; j++)
            if (x->c[i * LD + j] != (j < N ? (float)(K * n) : -77.0f))
                return 0;
    return 1;
}

/* Waits for a child; -1: it hung and was killed, 1000: it died, else its exit status. */
static int child_ends(pid_t pid, double limit)
{
    const double end = job_now() + limit;
    int st = 0;
    while (waitpid(pid, &st, WNOHANG) == 0) {
        if (job_now() > end) {
            kill(pid, SIGKILL);
            waitpid(pid, &st, 0);
            return -1;
        }
        usleep(1000);
    }
    return WIFEXITED(st) ? WEXITSTATUS(st) : 1000;
}

static void all_well(struct job *j, const char *what)
{
    for (int r = 0; r < j->n; r++)
        if (j->r[r].status)
            fail_msg("%s: rank %d status %d code %d: %s", what, r, j->r[r].status, j->r[r].code,
                     j->r[r].text);
}

/* ---- fork ---- */

static int gemm_after_fork(struct job *j, int rank)
{
    struct buffers x = buffers();
    setenv("MK_THREADS", "3", 1);
    int ret = mk_gemm(MK_TN, M, N, K, MK_FLOAT32, x.a, K, x.b, K, x.c, LD, NULL, NULL);
    if (ret)
        return job_failed(j, rank, ret);
    const pid_t pid = fork();
    if (!pid) {
        for (int i = 0; i < M * LD; i++)
            x.c[i] = -77;
        ret = mk_gemm(MK_TN, M, N, K, MK_FLOAT32, x.a, K, x.b, K, x.c, LD, NULL, NULL);
        exit(ret ? 2 : right(&x, 1) ? 0 : 3);
    }
    const int child = child_ends(pid, 10 * JOB_LIMIT_TIMES);
    ret = mk_gemm(MK_TN, M, N, K, MK_FLOAT32, x.a, K, x.b, K, x.c, LD, NULL, NULL);
    return child ? 10 + (child & 15) : ret || !right(&x, 1);
}

static void a_forked_child_may_multiply(void **state)
{
    (void)state;
    if (!FORKS)
        return;
    struct job *j = job_create(1, 1, 40);
    job_run(j, gemm_after_fork, NULL);
    all_well(j, "mk_gemm in a child");
    job_destroy(j);
}

/* what: 0 exit, 1 destroy, 2 call, 3 abort and destroy. */
static int fork_in_a_job(struct job *j, int rank)
{
    const struct plan *p = j->arg;
    struct buffers x = buffers();
    mk_comm_t comm = NULL;
    setenv("MK_THREADS", "3", 1);
    int child = 0, ret = mk_comm_init_env(&comm, NULL);
    if (!ret)
        ret = call(comm, &x, M);
    if (!ret && rank == p->who) {
        const pid_t pid = fork();
        if (!pid) {
            int code = 0;
            if (p->what == 2)
                code = call(comm, &x, M) == MK_ERR_INVALID ? 0 : 5;
            if (p->what == 3)
                mk_comm_abort(comm);
            if (p->what == 1 || p->what == 3)
                mk_comm_destroy(comm);
            exit(code);
        }
        child = child_ends(pid, 10 * JOB_LIMIT_TIMES);
    }
    for (int i = 0; i < 3 && !ret; i++)
        ret = call(comm, &x, M);
    if (ret)
        return job_failed(j, rank, ret);
    mk_comm_destroy(comm);
    return child ? 10 + (child & 15) : !right(&x, j->n);
}

static void a_forked_child_harms_nobody(void **state)
{
    (void)state;
    if (!FORKS)
        return;
    for (int what = 0; what < 4; what++) {
        struct plan p = {what & 1 ? 0 : 3, what, 0};
        struct job *j = job_create(2, 2, 40);
        char text[32];
        snprintf(text, sizeof(text), "case %d", what);
        job_run(j, fork_in_a_job, &p);
        all_well(j, text);
        job_destroy(j);
    }
}

/* ---- some have finished and left, others have not ---- */

/* The last call moves nothing, so ranks that are not neighbours of the late one finish long before it comes. */
static int leave_while_one_is_late(struct job *j, int rank)
{
    const struct plan *p = j->arg;
    struct buffers x = buffers();
    mk_comm_t comm = NULL;
    int ret = mk_comm_init_env(&comm, NULL);
    if (!ret)
        ret = call(comm, &x, M);
    if (!ret && rank == p->who) {
        job_stage(j, rank, STAGE_READY);
        usleep((useconds_t)(p->seconds * 1e6));
    }
    if (!ret)
        ret = call(comm, &x, 0);
    if (ret)
        job_failed(j, rank, ret);
    mk_comm_destroy(comm);
    return ret != 0;
}

static void ranks_may_leave_before_others_finish(void **state)
{
    (void)state;
    for (int who = 0; who < 4; who += 3) {
        struct plan p = {who, 0, 4};
        struct job *j = job_create(2, 2, 40);
        job_run(j, leave_while_one_is_late, &p);
        all_well(j, "a late rank in the last call");
        job_destroy(j);
    }
}

/* ---- SIGSTOP ---- */

static int many_calls(struct job *j, int rank)
{
    struct buffers x = buffers();
    mk_comm_t comm = NULL;
    int ret = mk_comm_init_env(&comm, NULL);
    job_stage(j, rank, STAGE_READY);
    for (int i = 0; i < MANY && !ret; i++) {
        ret = call(comm, &x, M);
        job_beat(j, rank);
    }
    if (ret)
        job_failed(j, rank, ret);
    mk_comm_destroy(comm);
    return ret ? 1 : right(&x, j->n) ? 0 : 5;
}

/* who: -1: all. The job has been started. */
static void stop(struct job *j, int who, int when_ready, double seconds)
{
    while (__atomic_load_n(&j->r[when_ready].stage, __ATOMIC_ACQUIRE) < STAGE_READY)
        usleep(500);
    usleep(50000);
    for (int r = 0; r < j->n; r++)
        if (who < 0 || r == who)
            kill(j->r[r].pid, SIGSTOP);
    usleep((useconds_t)(seconds * 1e6));
    for (int r = 0; r < j->n; r++)
        kill(j->r[r].pid, SIGCONT);
    job_wait(j);
}

static void a_stopped_rank_goes_on(void **state)
{
    (void)state;
    job_seconds("MK_TIMEOUT", 8); /* what was handed to the NIC must end within it */
    struct job *j = job_create(2, 2, 60);
    job_start(j, many_calls, NULL);
    stop(j, 3, 3, 3);
    job_seconds("MK_TIMEOUT", 5);
    all_well(j, "rank 3 stopped for 3 s");
    job_destroy(j);
}

static void a_stopped_rank_ends_the_call_of_all(void **state)
{
    (void)state;
    struct job *j = job_create(2, 2, 60);
    setenv("MK_PEER_TIMEOUT", "1.5", 1);
    job_start(j, many_calls, NULL);
    stop(j, 2, 2, 4 * JOB_SLOWER);
    unsetenv("MK_PEER_TIMEOUT");
    for (int r = 0; r < 4; r++)
        if (j->r[r].status != 1 || j->r[r].code != MK_ERR_TIMEOUT)
            fail_msg("rank %d status %d code %d: %s", r, j->r[r].status, j->r[r].code, j->r[r].text);
    job_destroy(j);
}

static void a_suspended_job_goes_on(void **state)
{
    (void)state;
    struct plan p = {3, 0, 0.5};
    struct job *j = job_create(2, 2, 60);
    job_seconds("MK_PEER_TIMEOUT", 2);
    job_seconds("MK_TIMEOUT", 2);
    job_start(j, leave_while_one_is_late, &p);
    stop(j, -1, 3, 4 * JOB_SLOWER);
    job_seconds("MK_TIMEOUT", 5);
    unsetenv("MK_PEER_TIMEOUT");
    all_well(j, "all ranks stopped for 4 s");
    job_destroy(j);
}

/* ---- a long tile is not an absent peer ---- */

static int long_tile(struct job *j, int rank)
{
    const long k = LIMITS ? 120000 : 12000; /* sanitizers make it slow enough */
    static float *a, *b, *c;
    a = calloc(256 * (size_t)k, sizeof(*a));
    b = calloc(512 * (size_t)k, sizeof(*b));
    c = calloc(256 * 512, sizeof(*c));
    mk_comm_t comm = NULL;
    setenv("MK_THREADS", "3", 1);
    if (!rank)
        setenv("MK_PEER_TIMEOUT", "0.5", 1);
    int ret = mk_comm_init_env(&comm, NULL);
    if (!ret)
        ret = mk_gemm_allreduce(comm, MK_TN, 256, 512, rank ? 0 : k, MK_FLOAT32, a, k, b, k, c, 512, NULL,
                                NULL);
    if (ret)
        job_failed(j, rank, ret);
    mk_comm_destroy(comm);
    return ret != 0;
}

static void own_work_is_not_an_absent_peer(void **state)
{
    (void)state;
    struct job *j = job_create(1, 2, 60);
    job_run(j, long_tile, NULL);
    all_well(j, "a tile longer than MK_PEER_TIMEOUT");
    job_destroy(j);
}

/* ---- one rank has no memory ---- */

static int no_memory_for_flags(struct job *j, int rank)
{
    const int64_t m = 1 << 20, n = 1 << 19; /* 1 TiB of address space, 4 million tiles; K = 0 */
    void *c =
        mmap(NULL, (size_t)m * (size_t)n * 2, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    struct buffers x = buffers();
    mk_comm_t comm = NULL;
    int ret = mk_comm_init_env(&comm, NULL);
    if (c == MAP_FAILED)
        return 77;
    if (!ret)
        ret = call(comm, &x, M);
    if (ret)
        return job_failed(j, rank, ret);
    if (rank == 1) {
        const struct rlimit none = {1 << 20, 1 << 20};
        if (setrlimit(RLIMIT_AS, &none))
            return 8;
        ret = mk_gemm_allreduce(comm, MK_TN, m, n, 0, MK_BFLOAT16, NULL, 0, NULL, 0, c, n, NULL, NULL);
        job_failed(j, rank, ret);
        usleep(2000000); /* alive, but it will not come */
        return 0;
    }
    ret = call(comm, &x, M);
    job_failed(j, rank, ret);
    mk_comm_destroy(comm);
    return 0;
}

static void no_memory_on_one_rank_ends_the_call_of_all(void **state)
{
    (void)state;
    if (!LIMITS)
        return;
    struct job *j = job_create(1, 2, 15);
    job_run(j, no_memory_for_flags, NULL);
    for (int r = 0; r < 2; r++)
        if (j->r[r].status > 1 || j->r[r].code != MK_ERR_NOMEM)
            fail_msg("rank %d status %d code %d: %s", r, j->r[r].status, j->r[r].code, j->r[r].text);
    job_destroy(j);
}

/* ---- descriptors ---- */

static int few_descriptors(struct job *j, int rank)
{
    const struct plan *p = j->arg;
    struct buffers x = buffers();
    mk_comm_t comm = NULL;
    if (rank == p->who || p->who < 0) {
        const struct rlimit few = {(rlim_t)p->what, (rlim_t)p->what};
        setrlimit(RLIMIT_NOFILE, &few);
    }
    int ret = mk_comm_init_env(&comm, NULL);
    if (!ret)
        ret = call(comm, &x, M);
    if (ret)
        job_failed(j, rank, ret);
    mk_comm_destroy(comm);
    return ret ? !mk_last_error()[0] : !right(&x, j->n);
}

static void running_out_of_descriptors_is_an_error(void **state)
{
    (void)state;
    job_seconds("MK_TIMEOUT", 10);
    for (int limit = 3, well = 0; limit < 60 && well < 2; limit += 2) {
        struct plan p = {limit % 4, limit, 0};
        struct job *j = job_create(2, 2, 20);
        job_run(j, few_descriptors, &p);
        int good = 0;
        for (int r = 0; r < 4; r++) {
            good += !j->r[r].code;
            if (j->r[r].status > 1 || j->r[r].status < 0 || (j->r[r].code && !j->r[r].text[0]))
                fail_msg("%d descriptors: rank %d status %d code %d: %s", limit, r, j->r[r].status,
                         j->r[r].code, j->r[r].text);
            if (strstr(j->r[r].text, "hosts differ") || strstr(j->r[r].text, "another host"))
                fail_msg("%d descriptors: rank %d takes this host for another one: %s", limit, r,
                         j->r[r].text);
        }
        /* libfabric says EIO where it runs out of them */
        if (j->r[p.who].code && !strstr(j->r[p.who].text, strerror(EMFILE)) &&
            strncmp(j->r[p.who].text, "ofi: ", 5) != 0)
            fail_msg("%d descriptors: rank %d does not name the cause: %s", limit, p.who, j->r[p.who].text);
        well += good == 4;
        if (good && good < 4)
            fail_msg("%d descriptors: %d of 4 ranks succeeded", limit, good);
        if (getenv("SHOW"))
            printf("  %d: good %d  %s\n", limit, good, j->r[(limit % 4)].text);
        job_destroy(j);
    }
    job_seconds("MK_TIMEOUT", 5);
}

/* ---- signals ---- */

static void nothing(int sig)
{
    (void)sig;
}

static int under_signals(struct job *j, int rank)
{
    struct buffers x = buffers();
    struct sigaction sa;
    const int us = 700 * JOB_SLOWER * JOB_SLOWER;
    const struct itimerval every = {{0, us}, {0, us}}, off = {{0, 0}, {0, 0}};
    mk_comm_t comm = NULL;
    memset(&sa, 0, sizeof(sa));
    sa.sa_handler = nothing; /* no SA_RESTART */
    sigaction(SIGALRM, &sa, NULL);
    setitimer(ITIMER_REAL, &every, NULL);
    int ret = 0;
    for (int i = 0; i < 3 && !ret; i++) {
        ret = mk_comm_init_env(&comm, NULL);
        for (int c = 0; c < 20 && !ret; c++) {
            ret = call(comm, &x, M);
            job_beat(j, rank);
        }
        if (ret) {
            setitimer(ITIMER_REAL, &off, NULL);
            return job_failed(j, rank, ret);
        }
        mk_comm_destroy(comm);
    }
    setitimer(ITIMER_REAL, &off, NULL);
    return !right(&x, j->n);
}

static void signals_disturb_nothing(void **state)
{
    (void)state;
    struct job *j = job_create(2, 2, 60);
    job_run(j, under_signals, NULL);
    all_well(j, "a signal every 0.7 ms");
    job_destroy(j);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_forked_child_may_multiply),
        cmocka_unit_test(a_forked_child_harms_nobody),
        cmocka_unit_test(ranks_may_leave_before_others_finish),
        cmocka_unit_test(a_stopped_rank_goes_on),
        cmocka_unit_test(a_stopped_rank_ends_the_call_of_all),
        cmocka_unit_test(a_suspended_job_goes_on),
        cmocka_unit_test(own_work_is_not_an_absent_peer),
        cmocka_unit_test(no_memory_on_one_rank_ends_the_call_of_all),
        cmocka_unit_test(running_out_of_descriptors_is_an_error),
        cmocka_unit_test(signals_disturb_nothing),
    };
    setenv("MK_NET", argc > 1 ? argv[1] : "loop", 1);
    job_seconds("MK_TIMEOUT", 5);
    setenv("MK_GEMM", "builtin", 1);
    setenv("MK_LOG", "none", 0);
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
