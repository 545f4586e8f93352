/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What a job of real processes does when something goes wrong: kill -9 at every stage, ranks that disagree, a rank
 * that comes late, one that is stopped, abort. Usage: failure loop|ofi. */
#include "job.h"
#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#define TIMEOUT_SET 5.0
#define TIMEOUT (TIMEOUT_SET * JOB_SLOWER)
#define LATE (TIMEOUT < 20 ? 20 : TIMEOUT + 5)
enum {
    STAGE_START = 1,
    STAGE_INIT = 2,
    STAGE_FIRST = 3,
    STAGE_STEADY = 4,
    STAGE_LATE = 5,
    STAGE_TEARDOWN = 6
};

struct plan {
    int victim, moment; /* of a kill */
    int odd, what;      /* of a disagreement */
    double late, stop;  /* seconds */
    int calls;          /* before the victim leaves */
};

static int one_call(mk_comm_t comm, float *a, float *b, float *c, int m, int n, int k, mk_dtype_t dtype)
{
    return mk_gemm_allreduce(comm, MK_TN, m, n, k, dtype, a, k, b, k, c, n, NULL, NULL);
}

struct buffers {
    float *a, *b, *c;
};
/* One set a process, never freed: a rank of these tests may end anywhere. */
static struct buffers buffers(void)
{
    static struct buffers x;
    x.a = calloc(512 * 64, sizeof(float));
    x.b = calloc(600 * 64, sizeof(float));
    x.c = calloc(512 * 600, sizeof(float));
    return x;
}

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

/* ---- kill -9 ---- */

static int until_it_fails(struct job *j, int rank)
{
    const struct plan *p = j->arg;
    struct buffers x = buffers();
    mk_comm_t comm;
    job_stage(j, rank, STAGE_START);
    if (p->moment == STAGE_INIT && rank == p->victim)
        usleep((useconds_t)(p->victim * 700));
    int ret = mk_comm_init_env(&comm, NULL);
    if (ret)
        return job_failed(j, rank, ret);
    job_stage(j, rank, STAGE_INIT);
    for (int i = 0; i < 100000 && !ret; i++) {
        ret = one_call(comm, x.a, x.b, x.c, 300, 500, 64, MK_FLOAT32);
        job_stage(j, rank, i == 0 ? STAGE_FIRST : i < 20 ? STAGE_STEADY : STAGE_LATE);
        if (p->moment == STAGE_TEARDOWN && i == 30) {
            job_stage(j, rank, STAGE_TEARDOWN);
            mk_comm_destroy(comm);
            return 0;
        }
    }
    if (ret)
        job_failed(j, rank, ret);
    int again = one_call(comm, x.a, x.b, x.c, 300, 500, 64, MK_FLOAT32);
    mk_comm_destroy(comm);
    return again == ret ? 1 : 4; /* the error sticks */
}

static void wait_stage(struct job *j, int rank, int stage)
{
    for (int i = 0; i < 20000 && __atomic_load_n(&j->r[rank].stage, __ATOMIC_ACQUIRE) < stage; i++)
        usleep(500);
}

static void kill_at_every_stage(void **state)
{
    (void)state;
    static const int moments[] = {STAGE_START, STAGE_INIT, STAGE_FIRST, STAGE_LATE, STAGE_TEARDOWN};
    const int before = entries("/dev/shm");
    double slowest = 0;
    for (int i = 0; i < 20; i++) {
        struct plan p = {i % 4, moments[i % 5], 0, 0, 0, 0, 0};
        struct job *j = job_create(2, 2, 40);
        char name[32];
        job_start(j, until_it_fails, &p);
        wait_stage(j, p.victim, p.moment);
        usleep((useconds_t)(i * 137 % 1900));
        const double when = job_now();
        kill(j->r[p.victim].pid, SIGKILL);
        job_wait(j);
        snprintf(name, sizeof(name), "rank %d", p.victim);
        for (int r = 0; r < 4; r++) {
            struct job_rank *k = &j->r[r];
            if (r == p.victim || (p.moment == STAGE_TEARDOWN && k->status == 0))
                continue;
            if (k->status != 1 || (k->code != MK_ERR_PEER && k->code != MK_ERR_TIMEOUT) ||
                !strstr(k->text, name) || k->seen - when > (TIMEOUT_SET + 2) * JOB_LIMIT_TIMES)
                fail_msg("kill %d: victim %d at stage %d: rank %d status %d code %d after %.2f s: %s", i,
                         p.victim, p.moment, r, k->status, k->code, k->seen - when, k->text);
            if (k->code == MK_ERR_PEER && k->seen - when > slowest)
                slowest = k->seen - when;
        }
        job_destroy(j);
    }
    printf("  a death was seen by every survivor within %.3f s\n", slowest);
    assert_true(entries("/dev/shm") <= before);
}

/* ---- ranks that disagree ---- */

static int disagree(struct job *j, int rank)
{
    const struct plan *p = j->arg;
    const int odd = rank == p->odd;
    struct buffers x = buffers();
    mk_comm_t comm;
    if (p->what == 3 && odd)
        setenv("MK_NRANKS", "5", 1);
    if (p->what == 4 && odd)
        setenv("MK_CHUNK", "64K", 1);
    int ret = mk_comm_init_env(&comm, NULL);
    if (ret)
        return job_failed(j, rank, ret);
    for (int i = 0; i < 512 * 64; i++)
        x.a[i] = (float)(rank + 1);
    for (int i = 0; i < 600 * 64; i++)
        x.b[i] = 1;
    for (int i = 0; i < 512 * 600; i++)
        x.c[i] = -77;
    ret = one_call(comm, x.a, x.b, x.c, p->what == 0 && odd ? 299 : 300, p->what == 1 && odd ? 501 : 500, 64,
                   p->what == 2 && odd ? MK_BFLOAT16 : MK_FLOAT32);
    int stranger = 0;
    for (int i = 0; i < 300 * 500 && !(p->what == 2 && odd); i++)
        stranger += !(x.c[i] == -77 || x.c[i] == (float)(64 * (rank + 1)) || x.c[i] != x.c[i]);
    job_failed(j, rank, ret);
    mk_comm_destroy(comm);
    return stranger ? 5 : 0;
}

static void disagreement_is_told_to_all(void **state)
{
    (void)state;
    for (int what = 0; what < 5; what++)
        for (int odd = 1; odd < 4; odd += 2) {
            struct plan p = {0, 0, odd, what, 0, 0, 0};
            struct job *j = job_create(2, 2, 40);
            job_run(j, disagree, &p);
            for (int r = 0; r < 4; r++)
                if (j->r[r].code != MK_ERR_MISMATCH || j->r[r].status > 1)
                    fail_msg("case %d odd rank %d: rank %d status %d code %d: %s", what, odd, r,
                             j->r[r].status, j->r[r].code, j->r[r].text);
            job_destroy(j);
        }
}

/* ---- late, stopped, aborted ---- */

static int late(struct job *j, int rank)
{
    const struct plan *p = j->arg;
    struct buffers x = buffers();
    mk_comm_t comm;
    int ret = mk_comm_init_env(&comm, NULL);
    for (int i = 0; i < 6 && !ret; i++) {
        if (i == 3 && rank == p->victim) {
            job_stage(j, rank, STAGE_STEADY);
            usleep((useconds_t)(p->late * 1e6));
        }
        ret = one_call(comm, x.a, x.b, x.c, 300, 500, 64, MK_FLOAT32);
    }
    if (ret)
        job_failed(j, rank, ret);
    mk_comm_destroy(comm);
    return ret != 0;
}

static void a_late_rank_is_waited_for(void **state)
{
    (void)state;
    struct plan p = {3, 0, 0, 0, LATE, 0, 0};
    struct job *j = job_create(2, 2, 60);
    job_run(j, late, &p);
    for (int r = 0; r < 4; r++)
        if (j->r[r].status)
            fail_msg("rank %d code %d: %s", r, j->r[r].code, j->r[r].text);
    job_destroy(j);
}

static void peer_timeout_names_who_is_missing(void **state)
{
    (void)state;
    struct plan p = {3, 0, 0, 0, 12 * JOB_SLOWER, 0, 0};
    struct job *j = job_create(2, 2, 60);
    job_seconds("MK_PEER_TIMEOUT", 2);
    job_run(j, late, &p);
    unsetenv("MK_PEER_TIMEOUT");
    int named = 0;
    for (int r = 0; r < 4; r++) {
        if (j->r[r].code != MK_ERR_TIMEOUT || !strstr(j->r[r].text, "rank 3 has not come"))
            fail_msg("rank %d status %d code %d: %s", r, j->r[r].status, j->r[r].code, j->r[r].text);
        named += strstr(j->r[r].text, "rank 3") != NULL;
    }
    assert_int_equal(named, 4); /* its direct peers speak first, and all hear of it */
    job_destroy(j);
}

static int abort_in_a_call(struct job *j, int rank)
{
    struct buffers x = buffers();
    mk_comm_t comm;
    int ret = mk_comm_init_env(&comm, NULL);
    if (ret)
        return job_failed(j, rank, ret);
    ret = one_call(comm, x.a, x.b, x.c, 300, 500, 64, MK_FLOAT32);
    if (rank == 2) {
        int async = 0;
        usleep(300000);
        mk_comm_abort(comm);
        mk_comm_get_async_error(comm, &async);
        job_failed(j, rank, async);
    } else {
        job_failed(j, rank, one_call(comm, x.a, x.b, x.c, 300, 500, 64, MK_FLOAT32));
    }
    mk_comm_destroy(comm);
    return ret != 0;
}

static void abort_ends_the_calls_of_all(void **state)
{
    (void)state;
    struct job *j = job_create(2, 2, 40);
    job_run(j, abort_in_a_call, NULL);
    for (int r = 0; r < 4; r++)
        if (j->r[r].code != MK_ERR_ABORTED || j->r[r].status)
            fail_msg("rank %d status %d code %d: %s", r, j->r[r].status, j->r[r].code, j->r[r].text);
    job_destroy(j);
}

/* A rank that leaves in order, or just returns from main, while others still work. */
static int leave_early(struct job *j, int rank)
{
    const struct plan *p = j->arg;
    struct buffers x = buffers();
    mk_comm_t comm;
    int ret = mk_comm_init_env(&comm, NULL);
    for (int i = 0; i < p->calls && !ret; i++) {
        ret = one_call(comm, x.a, x.b, x.c, 300, 500, 64, MK_FLOAT32);
        job_stage(j, rank, i + 1);
    }
    if (ret)
        return job_failed(j, rank, ret);
    if (rank == p->victim && p->what)
        return 0; /* no destroy */
    if (rank != p->victim && p->odd) {
        ret = one_call(comm, x.a, x.b, x.c, 300, 500, 64, MK_FLOAT32); /* one call too many */
        job_failed(j, rank, ret);
        mk_comm_destroy(comm);
        job_stage(j, rank, STAGE_TEARDOWN);
        return ret == MK_ERR_PEER ? 0 : 6;
    }
    mk_comm_destroy(comm);
    return 0;
}

static void leaving_is_not_dying(void **state)
{
    (void)state;
    for (int i = 0; i < 16; i++) {
        const int what = i & 1, victim = i & 2 ? 3 : 0, more = i >> 2 & 1, calls = i & 8 ? 0 : 5;
        struct plan p = {victim, 0, more, what, 0, 0, calls};
        struct job *j = job_create(2, 2, 40);
        job_run(j, leave_early, &p);
        for (int r = 0; r < 4; r++)
            if (j->r[r].status)
                fail_msg("victim %d, %d calls%s%s: rank %d status %d code %d: %s", victim, calls,
                         what ? " without destroy" : "", more ? ", one call more" : "", r, j->r[r].status,
                         j->r[r].code, j->r[r].text);
        job_destroy(j);
    }
}

/* ---- the harness itself ---- */

static int hang_or_be_slow(struct job *j, int rank)
{
    for (int i = 0; i < 8; i++) {
        if (rank == 0)
            job_beat(j, rank);
        usleep((useconds_t)(j->limit * 0.5e6));
    }
    while (rank == 1)
        pause();
    return 0;
}

static void a_hang_is_told_from_a_slow_rank(void **state)
{
    (void)state;
    struct job *j = job_create(1, 2, 0.2);
    printf("  on purpose, what is said of a rank that hangs:\n");
    assert_int_equal(job_run(j, hang_or_be_slow, NULL), 1);
    assert_int_equal(j->r[0].status, 0);
    assert_int_equal(j->r[1].status, JOB_HUNG);
    job_destroy(j);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kill_at_every_stage),
        cmocka_unit_test(disagreement_is_told_to_all),
        cmocka_unit_test(a_late_rank_is_waited_for),
        cmocka_unit_test(peer_timeout_names_who_is_missing),
        cmocka_unit_test(abort_ends_the_calls_of_all),
        cmocka_unit_test(leaving_is_not_dying),
        cmocka_unit_test(a_hang_is_told_from_a_slow_rank),
    };
    setenv("MK_NET", argc > 1 ? argv[1] : "loop", 1);
    job_seconds("MK_TIMEOUT", TIMEOUT_SET);
    setenv("MK_GEMM", "builtin", 1);
    setenv("MK_LOG", "none", 0);
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
