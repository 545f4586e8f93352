/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Fused, or one part after the other, decided by the ranks together: every rank makes every call the same way, whatever
 * each of them measures, with the right result; a rank that dies or leaves meanwhile ends the others' wait.
 * Usage: choose loop|ofi. */
#include "fused/choose.h"
#include "fused/comm.h"
#include "job.h"
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

enum { CALLS = 400, SHAPES = 3 };

struct book { /* shared with the ranks */
    uint8_t way[JOB_MAX][CALLS];
};
static struct book *book;
static int calls_made; /* of this rank, for the times that are made up */

/* Class 0: parts are faster, until call 200, then fused; class 1: fused is; class 2: by a hair, in turns. */
static uint64_t made_up(const struct mk_choice *c, uint64_t ns)
{
    const int faster = c->class == 0 ? calls_made < 200 : c->class == 1 ? 0 : calls_made / 40 % 2;
    (void)ns;
    return c->class == 2 ? 1000u - (c->way == faster ? 10u : 0u) : c->way == faster ? 500u : 1000u;
}

/* Integers, so that every sum is exact. */
static int one_call(mk_comm_t comm, struct job *j, int rank, int call)
{
    static float a[130 * 2], b[300 * 2], c[130 * 300];
    static const int shapes[SHAPES][2] = {{3, 5}, {130, 40}, {64, 300}};
    const int m = shapes[call % SHAPES][0], n = shapes[call % SHAPES][1], k = 2;
    for (int i = 0; i < m * k; i++)
        a[i] = (float)((rank + 1) * (i / k + call % 64));
    for (int i = 0; i < n * k; i++)
        b[i] = 1;
    const int ret = mk_gemm_allreduce(comm, MK_TN, m, n, k, MK_FLOAT32, a, k, b, k, c, n, NULL, NULL);
    for (int i = 0; i < m * n && !ret; i++)
        if (c[i] != (float)(j->n * (j->n + 1) / 2 * k * (i / n + call % 64)))
            return -100;
    return ret;
}

static int many_calls(struct job *j, int rank)
{
    mk_comm_t comm;
    struct mk_comm_info info;
    uint64_t parts = 0;
    unsigned long rng = (unsigned long)rank * 77 + 1;
    int ret = mk_comm_init_env(&comm, NULL);
    mk_choose_test_ns = made_up;
    for (int call = 0; call < CALLS && !ret; call++) {
        rng = rng * 6364136223846793005ul + 1442695040888963407ul;
        if (rng >> 61 == 0)
            usleep((useconds_t)(rng >> 40) % 3000);
        calls_made = call;
        ret = one_call(comm, j, rank, call);
        if (ret == -100)
            return 3;
        if (!ret)
            ret = mk_comm_info(comm, &info);
        book->way[rank][call] = (uint8_t)(info.calls_in_parts - parts);
        parts = info.calls_in_parts;
        job_stage(j, rank, call);
    }
    return ret ? job_failed(j, rank, ret) : mk_comm_destroy(comm) ? 2 : 0;
}

static void run(int nodes, int local, int (*fn)(struct job *, int))
{
    struct job *j = job_create(nodes, local, 60);
    memset(book, 9, sizeof(*book));
    job_run(j, fn, NULL);
    for (int r = 0; r < j->n; r++) {
        if (j->r[r].status)
            fail_msg("%dx%d rank %d: status %d after call %d, code %d: %s", nodes, local, r, j->r[r].status,
                     j->r[r].stage, j->r[r].code, j->r[r].text);
        assert_memory_equal(book->way[r], book->way[0], CALLS);
    }
    job_destroy(j);
}

/* Calls of a class that were made in parts, from one call on, and how many there were; rounds included. */
static int in_parts(int class, int from, int to, int *all)
{
    int n = 0;
    *all = 0;
    for (int call = from; call < to; call++)
        if (call % SHAPES == class) {
            n += book->way[0][call] == 1;
            (*all)++;
        }
    return n;
}

/* Rounds of class 0 begin at its calls 4, 16, 64, so a switch is proposed after call 24 at the earliest: 72 of all. */
static void check_ways(void)
{
    int all, n;
    n = in_parts(0, 0, 72, &all);
    assert_int_equal(n, 8); /* the tries of two rounds */
    n = in_parts(0, 100, 190, &all);
    assert_int_equal(n, all); /* it has switched, and is not in a round */
    n = in_parts(1, 0, CALLS, &all);
    assert_int_equal(n, 12); /* three rounds, and never else */
    n = in_parts(2, 0, CALLS, &all);
    assert_int_equal(n, 12);
}

static void all_ranks_do_the_same(void **state)
{
    (void)state;
    static const int topo[][2] = {{2, 1}, {1, 3}, {2, 2}};
    for (int t = 0; t < 3; t++) {
        run(topo[t][0], topo[t][1], many_calls);
        check_ways();
    }
}

static void settings_that_forbid_it(void **state)
{
    (void)state;
    static const char *const name[] = {"MK_TUNER", "MK_TUNER", "MK_DETERMINISTIC"},
                             *value[] = {"off", "observe", "1"};
    for (int i = 0; i < 3; i++) {
        int all;
        setenv(name[i], value[i], 1);
        run(2, 1, many_calls);
        for (int class = 0; class < SHAPES; class ++)
            assert_int_equal(in_parts(class, 0, CALLS, &all), 0);
        unsetenv(name[i]);
    }
}

/* One rank alone has it off: nobody does it. */
static int one_has_it_off(struct job *j, int rank)
{
    if (rank == 1)
        setenv("MK_TUNER", "off", 1);
    return many_calls(j, rank);
}
static void one_rank_forbids_it(void **state)
{
    int all;
    (void)state;
    run(1, 2, one_has_it_off);
    for (int class = 0; class < SHAPES; class ++)
        assert_int_equal(in_parts(class, 0, CALLS, &all), 0);
}

/* ---- ends in the middle of an agreement ---- */

/* It lives, and stays away until the others have given up. */
static int stays_away(mk_comm_t comm)
{
    int error = 0;
    for (int ms = 0; ms < 60000 && !error; ms++) {
        usleep(1000);
        mk_comm_get_async_error(comm, &error);
    }
    return mk_comm_destroy(comm);
}

/* The others have a proposal of rank 0, hence a fence, and wait there for a word that never comes. */
static int nobody_decides(struct job *j, int rank)
{
    mk_comm_t comm;
    const int how = *(const int *)j->arg;
    int ret = mk_comm_init_env(&comm, NULL);
    const double begin = job_now();
    if (ret)
        return job_failed(j, rank, ret);
    if (!rank)
        mk_boot_on_said(comm->boot, NULL, NULL); /* it knows of no proposal, and hears no answer */
    ret = mk_comm_barrier(comm);
    if (rank) {
        struct mk_agree_msg m;
        memset(&m, 0, sizeof(m));
        m.kind = MK_AGREE_PROPOSE;
        m.id = m.value = 1;
        mk_choose_said(comm, 0, &m, sizeof(m));
    }
    for (int call = 0; call < 30 && !ret; call++) {
        if (call == 4 && !rank && how == 0)
            kill(getpid(), SIGKILL);
        if (call == 8 && !rank && how == 3)
            return stays_away(comm);
        if (call == 8 && !rank) /* whoever comes to the ninth call waits for rank 0's decision */
            return how == 1 ? (mk_comm_destroy(comm), 0) : (mk_comm_abort(comm), mk_comm_destroy(comm), 0);
        ret = one_call(comm, j, rank, call);
        job_stage(j, rank, call);
    }
    j->r[rank].seen = job_now() - begin;
    job_failed(j, rank, ret);
    mk_comm_destroy(comm);
    return 0;
}

static void a_rank_ends_meanwhile(void **state)
{
    (void)state;
    static const int code[] = {MK_ERR_PEER, MK_ERR_PEER, MK_ERR_ABORTED, MK_ERR_TIMEOUT};
    for (int how = 0; how < 4; how++) {
        struct job *j = job_create(1, 3, how == 3 ? 70 : 20);
        if (how == 3)
            setenv("MK_PEER_TIMEOUT", "1", 1);
        job_run(j, nobody_decides, &how);
        for (int r = 1; r < 3; r++)
            if (j->r[r].status || j->r[r].code != code[how])
                fail_msg("way %d, rank %d: status %d code %d (%s) after call %d", how, r, j->r[r].status,
                         j->r[r].code, j->r[r].text, j->r[r].stage);
        job_destroy(j);
    }
    unsetenv("MK_PEER_TIMEOUT");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_ranks_do_the_same),
        cmocka_unit_test(settings_that_forbid_it),
        cmocka_unit_test(one_rank_forbids_it),
        cmocka_unit_test(a_rank_ends_meanwhile),
    };
    if (argc < 2)
        return 2;
    book = mmap(NULL, sizeof(*book), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (book == MAP_FAILED)
        return 2;
    setenv("MK_NET", argv[1], 1);
    setenv("MK_THREADS", "2", 1);
    job_seconds("MK_TIMEOUT", 20);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
