/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What a GPU job of real processes does when something goes wrong: a rank that never comes, comes late, is stopped,
 * aborts, exits or is killed in mid-kernel, disagrees, or leaves in order while others still wait for their NIC. Each
 * case ends within its time, or the rank that hangs is killed and counted.
 *
 * Usage: faults NODES LOCAL [CASE [SECONDS late]]; without a case: all but kill. The last rank is the victim. Inputs are
 * ones: C is K times the sum of (rank + 1) everywhere, exactly. kill stands alone because under MPS the death of one
 * client may take the others' contexts with it. */
#include "mk/cuda.h"
#include "mk/err.h"
#include "mk/fused.h"
#include "tests/bench/gpu.h"
#include "tests/e2e/job.h"
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define M 1024
#define N 2048
#define K 64 /* with up to 8 ranks sums are below 2^12 and multiples of 64: exact in bf16 */
#define ROWS (M + 8)

enum { STEADY = 1, GONE = 2 };
enum { WRONG = 10, LEFT_BEHIND = 11 };

struct plan {
    const char *name;
    int (*rank)(struct job *j, int rank);
    const char *peer_timeout; /* NULL: none */
    double limit;
    int code;              /* that every rank but the victim must see */
    double within;         /* seconds after the victim's `seen`; 0: not looked at */
    const char *says;      /* in the others' text; NULL: the victim's rank number */
    double stop;           /* SIGSTOP for so long once the victim is STEADY */
    bool kills, any_code;  /* SIGKILL then; what the others see may be CUDA's */
    bool victim_sees_code; /* the same code */
};
static const struct plan *plan;
static double late = 20;

static struct buffers {
    gpu_ptr a, b, c;
    uint16_t *host;
} x;
static mk_comm_t comm;

static uint16_t bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return (uint16_t)(u >> 16);
}

static int open_all(struct job *j, int rank)
{
    const char *why = "";
    static uint16_t ones[ROWS * K], mine[N * K];
    if (!gpu_open(&why))
        return 77;
    x.a = gpu_alloc(sizeof(ones));
    x.b = gpu_alloc(sizeof(mine));
    x.c = gpu_alloc((size_t)ROWS * N * 2);
    x.host = malloc((size_t)ROWS * N * 2);
    for (int i = 0; i < ROWS * K; i++)
        ones[i] = bf16(1);
    for (int i = 0; i < N * K; i++)
        mine[i] = bf16((float)(rank + 1));
    gpu_put(x.a, ones, sizeof(ones));
    gpu_put(x.b, mine, sizeof(mine));
    gpu_set(x.c, 0xff, (size_t)ROWS * N * 2);
    const int ret = mk_comm_init_env(&comm, NULL);
    return ret ? job_failed(j, rank, ret) : 0;
}

static int one_call(int m)
{
    return mk_gemm_allreduce(comm, MK_TN, m, N, K, MK_BFLOAT16, (void *)(uintptr_t)x.a, K,
                             (void *)(uintptr_t)x.b, K, (void *)(uintptr_t)x.c, N, NULL, gpu_stream());
}

/* Until the stream is empty, or the communicator has failed: its error, or CUDA's. */
static int settle(void)
{
    const struct mk_cuda *cu = mk_cuda_open(NULL);
    int error = 0, busy;
    do {
        busy = cu->stream_query(gpu_stream());
        if (busy == MK_CU_NOT_READY)
            usleep(200);
        mk_comm_get_async_error(comm, &error);
    } while (busy == MK_CU_NOT_READY && !error);
    return error ? error : busy ? mk_cuda_fail(busy, "the stream") : 0;
}

/* Every value of C is `want`, or (mixed) NaN, poison or this rank's own partial. */
static int check(const struct job *j, int rank, bool mixed)
{
    const float sum = (float)(K * j->n * (j->n + 1) / 2), own = (float)(K * (rank + 1));
    gpu_get(x.host, x.c, (size_t)M * N * 2);
    for (int i = 0; i < M * N; i++) {
        const uint16_t v = x.host[i];
        const bool nan = (v & 0x7fff) > 0x7f80;
        if (mixed ? !nan && v != bf16(own) : v != bf16(sum)) {
            printf("rank %d: C[%d] is %04x\n", rank, i, v);
            return WRONG;
        }
    }
    return 0;
}

/* Ends the rank: the error sticks, the kernels have left, destroy does not hang. */
static int done(struct job *j, int rank, int code)
{
    const struct mk_cuda *cu = mk_cuda_open(NULL);
    int sticks = 0;
    if (code)
        job_failed(j, rank, code);
    if (code && code != MK_ERR_CUDA)
        sticks = one_call(M) == code ? 0 : WRONG;
    for (int i = 0; i < 10000 && cu->stream_query(gpu_stream()) == MK_CU_NOT_READY; i++)
        usleep(1000);
    if (cu->stream_query(gpu_stream()) == MK_CU_NOT_READY)
        sticks = LEFT_BEHIND;
    mk_comm_destroy(comm);
    return sticks;
}

static int calls(int n, int m)
{
    int ret = 0;
    for (int i = 0; i < n && !ret; i++)
        ret = one_call(m);
    return ret ? ret : settle();
}

static bool victim(const struct job *j, int rank)
{
    return rank == j->n - 1;
}

/* ---- the cases ---- */

static int comes_late(struct job *j, int rank)
{
    int ret = open_all(j, rank);
    if (ret)
        return ret;
    ret = calls(3, M);
    if (!ret && victim(j, rank)) {
        j->r[rank].seen = job_now();
        usleep((useconds_t)((plan->peer_timeout ? 8 : late) * 1e6));
    }
    if (!ret)
        ret = calls(3, M);
    const int wrong = ret ? 0 : check(j, rank, false);
    ret = done(j, rank, ret);
    return wrong ? wrong : ret;
}

/* Many calls, several of them in the stream; the parent stops or kills the victim meanwhile. */
static int works(struct job *j, int rank)
{
    int ret = open_all(j, rank), wrong = 0;
    if (ret)
        return ret;
    ret = calls(3, M);
    const double end = job_now() + (plan->kills ? 30 : plan->stop + 3);
    for (int i = 0; !ret && !wrong; i++) {
        ret = calls(8, M);
        if (!ret && i % 16 == 0)
            wrong = check(j, rank, false);
        job_stage(j, rank, STEADY);
        double now = job_now(), all[JOB_MAX];
        if (ret || i % 256)
            continue;
        ret = mk_comm_allgather(comm, &now, all, sizeof(now)); /* they end together */
        if (!ret && all[0] > end)
            break;
    }
    ret = done(j, rank, ret);
    return wrong ? wrong : ret;
}

static int aborts(struct job *j, int rank)
{
    int ret = open_all(j, rank);
    if (ret)
        return ret;
    ret = calls(3, M);
    if (!ret)
        ret = one_call(M);
    if (!ret && victim(j, rank)) {
        usleep(300000); /* the others wait in their next call */
        mk_comm_abort(comm);
        job_failed(j, rank, settle());
        mk_comm_destroy(comm);
        exit(0);
    }
    if (!ret)
        ret = calls(2, M);
    return done(j, rank, ret);
}

static int exits(struct job *j, int rank)
{
    int ret = open_all(j, rank);
    if (ret)
        return ret;
    ret = calls(3, M);
    if (!ret)
        ret = one_call(M);
    if (!ret && victim(j, rank)) {
        usleep(300000);
        j->r[rank].seen = job_now();
        _exit(0);
    }
    if (!ret)
        ret = calls(2, M);
    return done(j, rank, ret);
}

static int disagrees(struct job *j, int rank)
{
    int ret = open_all(j, rank);
    if (ret)
        return ret;
    ret = calls(2, M);
    gpu_set(x.c, 0xff, (size_t)ROWS * N * 2);
    if (!ret)
        ret = calls(1, victim(j, rank) ? M + 8 : M);
    const struct mk_cuda *cu = mk_cuda_open(NULL);
    for (int i = 0; i < 10000 && cu->stream_query(gpu_stream()) == MK_CU_NOT_READY; i++)
        usleep(1000);
    const int wrong = check(j, rank, true);
    ret = done(j, rank, ret);
    return wrong ? wrong : ret;
}

/* In turns: one rank has no more to do and goes, the other still waits for its NIC; then a call too many. */
static int leaves(struct job *j, int rank)
{
    int ret = open_all(j, rank);
    for (int round = 0; round < 8 && !ret; round++) {
        ret = calls(1 + round % 3, M);
        if (!ret)
            ret = check(j, rank, false);
        if ((round + rank) % 2)
            usleep((useconds_t)(round * 150000));
        if (ret)
            break;
        mk_comm_destroy(comm);
        ret = mk_comm_init_env(&comm, NULL);
    }
    if (ret < 0)
        job_failed(j, rank, ret);
    if (ret)
        return ret < 0 ? 1 : ret;
    if (victim(j, rank)) {
        j->r[rank].seen = job_now();
        mk_comm_destroy(comm);
        return 0;
    }
    return done(j, rank, calls(1, M));
}

static const struct plan plans[] = {
    {"absent", comes_late, "2", 40, MK_ERR_TIMEOUT, 2 + 2, NULL, 0, false, false, true},
    {"late", comes_late, NULL, 160, 0, 0, NULL, 0, false, false, true},
    {"stop", works, "4", 60, 0, 0, NULL, 1.5, false, false, true},
    {"stop_long", works, "2", 60, MK_ERR_TIMEOUT, 0, NULL, 6, false, false, false},
    {"abort", aborts, NULL, 40, MK_ERR_ABORTED, 2, NULL, 0, false, false, true},
    {"exit", exits, NULL, 40, MK_ERR_PEER, 2, NULL, 0, false, false, false},
    {"disagree", disagrees, NULL, 40, MK_ERR_MISMATCH, 0, "different calls", 0, false, false, true},
    {"leave", leaves, NULL, 90, MK_ERR_PEER, 4, NULL, 0, false, false, false},
    {"kill", works, NULL, 60, MK_ERR_PEER, 4, NULL, 0, true, true, false},
};

/* ---- the parent ---- */

static int entries(const char *dir)
{
    int n = 0;
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));)
        n += e->d_name[0] != '.';
    if (d)
        closedir(d);
    return n;
}

static void disturb(struct job *j, const struct plan *p)
{
    struct job_rank *v = &j->r[j->n - 1];
    for (int i = 0; i < 60000 && __atomic_load_n(&v->stage, __ATOMIC_ACQUIRE) < STEADY; i++)
        usleep(500);
    usleep(123457);
    v->seen = job_now();
    if (p->kills) {
        kill(v->pid, SIGKILL);
    } else {
        kill(v->pid, SIGSTOP);
        usleep((useconds_t)(p->stop * 1e6));
        kill(v->pid, SIGCONT);
    }
}

static int judge(const struct job *j, const struct plan *p, double victim_at)
{
    int bad = 0;
    char who[32];
    snprintf(who, sizeof(who), "rank %d", j->n - 1);
    for (int r = 0; r < j->n; r++) {
        const struct job_rank *k = &j->r[r];
        const bool v = r == j->n - 1;
        const bool skip = v && (p->kills || !p->victim_sees_code);
        const bool code = k->code == p->code || (p->any_code && k->code == MK_ERR_CUDA);
        const bool text = v || !p->code || (p->any_code && k->code == MK_ERR_CUDA) ||
                          strstr(k->text, p->says ? p->says : who);
        const bool in_time = v || !p->within || k->seen - victim_at <= p->within;
        const bool ok = (v && p->kills) || (k->status == 0 && (skip || (code && text && in_time)));
        if (!ok)
            bad++;
        if (!ok || k->code)
            printf("  %s rank %d: status %d code %d after %.2f s: %s\n", ok ? "  " : "FAIL", r, k->status,
                   k->code, k->code ? k->seen - victim_at : 0, k->text);
    }
    return bad;
}

static int run(const struct plan *p, int nodes, int local)
{
    const int before = entries("/dev/shm");
    struct job *j = job_create(nodes, local, p->limit);
    plan = p;
    unsetenv("MK_PEER_TIMEOUT");
    if (p->peer_timeout)
        setenv("MK_PEER_TIMEOUT", p->peer_timeout, 1);
    const double begin = job_now();
    job_start(j, p->rank, NULL);
    double at = 0;
    if (p->stop > 0 || p->kills) {
        disturb(j, p);
        at = j->r[j->n - 1].seen;
    }
    job_wait(j);
    if (j->r[0].status == 77) {
        printf("skip: gpu.faults: no GPU\n");
        return 77;
    }
    int bad = judge(j, p, at > 0 ? at : j->r[j->n - 1].seen);
    if (entries("/dev/shm") > before) {
        printf("  FAIL: %d files more in /dev/shm\n", entries("/dev/shm") - before);
        bad++;
    }
    printf("%s: %s, %d x %d, %.1f s\n", bad ? "FAILED" : "ok", p->name, nodes, local, job_now() - begin);
    fflush(stdout);
    job_destroy(j);
    return bad ? 1 : 0;
}

int main(int argc, char **argv)
{
    const size_t n = sizeof(plans) / sizeof(plans[0]);
    const int nodes = argc > 2 ? atoi(argv[1]) : 1, local = argc > 2 ? atoi(argv[2]) : 2;
    int ret = 0, ran = 0;
    setenv("MK_TIMEOUT", "10", 0);
    setenv("MK_NET", "loop", 0);
    setenv("MK_LOG", "none", 0);
    if (argc > 4)
        late = atof(argv[4]);
    if (nodes < 1 || local < 1 || nodes * local < 2 || nodes * local > 8) {
        fprintf(stderr, "usage: faults NODES LOCAL [CASE [SECONDS]]\n");
        return 2;
    }
    for (size_t i = 0; i < n && ret != 77; i++)
        if (argc > 3 ? !strcmp(argv[3], plans[i].name) : !plans[i].kills) {
            const int got = run(&plans[i], nodes, local);
            ret = got == 77 ? 77 : ret | got;
            ran++;
        }
    return ran ? ret : 2;
}
