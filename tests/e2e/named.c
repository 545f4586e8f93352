/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Communicators that ranks make by a name they share, as interception does: their chunks between nodes and within one, what they
 * must agree on, and that a making may be given up. */
#include "comm.h"
#include "job.h"
#include "mk/err.h"
#include "mk/fused.h"
#include "mk/pair_run.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

enum { ELEMENTS = 5 << 20 }; /* of 4 bytes: ten chunks of 2 MiB */

static const char *net;
static int goes; /* how often go_on still says yes; -1: always */

static bool go_on(void *ctx)
{
    (void)ctx;
    return goes < 0 || goes-- > 0;
}

static int make(struct job *j, int rank, uint64_t name, mk_comm_t *comm)
{
    setenv("MK_NET", net, 1);
    goes = -1;
    return mk_comm_init_name(comm, name, j->n, rank, go_on, NULL);
}

/* Makes one, sums with it, and tells its chunk and workspace (error[]). */
static int sums(struct job *j, int rank)
{
    struct mk_comm_info info;
    mk_comm_t comm = NULL;
    float *x = malloc(ELEMENTS * sizeof(*x));
    int ret = x ? make(j, rank, 7, &comm) : MK_ERR_NOMEM;
    for (int i = 0; i < ELEMENTS && !ret; i++)
        x[i] = (float)((rank + 1) * (i % 97));
    if (!ret)
        ret = mk_pair_allreduce(comm, x, ELEMENTS, MK_FLOAT32, NULL, NULL, NULL);
    if (!ret)
        ret = mk_comm_info(comm, &info);
    if (ret)
        return job_failed(j, rank, ret);
    int wrong = 0;
    for (int i = 0; i < ELEMENTS; i++)
        wrong += x[i] != (float)(j->n * (j->n + 1) / 2 * (i % 97));
    j->r[rank].error[0] = (double)info.chunk;
    j->r[rank].error[1] = (double)info.workspace;
    free(x);
    mk_comm_destroy(comm);
    return wrong ? 1 : 0;
}

static void chunks(int nodes, int local, double chunk, double workspace)
{
    struct job *j = job_create(nodes, local, 60);
    assert_non_null(j);
    assert_int_equal(job_run(j, sums, NULL), 0);
    for (int r = 0; r < j->n; r++) {
        assert_true(j->r[r].error[0] == chunk);
        assert_true(j->r[r].error[1] == workspace);
    }
    job_destroy(j);
}

static void large_between_nodes(void **state)
{
    (void)state;
    chunks(2, 1, 2 << 20, 64 << 20);
    chunks(2, 2, 2 << 20, 64 << 20);
}

static void as_ever_within_one(void **state)
{
    (void)state;
    chunks(1, 2, 256 << 10, 32 << 20);
}

static void as_they_are_set(void **state)
{
    (void)state;
    setenv("MK_CHUNK", "128K", 1);
    chunks(2, 1, 128 << 10, 32 << 20);
    unsetenv("MK_CHUNK");
    setenv("MK_WORKSPACE", "16M", 1);
    chunks(2, 1, 256 << 10, 16 << 20);
    unsetenv("MK_WORKSPACE");
}

/* The value that it has without is given on one rank alone: their chunks would differ all the same. */
static int one_sets_it(struct job *j, int rank)
{
    mk_comm_t comm = NULL;
    if (rank)
        setenv("MK_CHUNK", "256K", 1);
    job_failed(j, rank, make(j, rank, 8, &comm));
    return 0;
}

static void set_on_one_rank(void **state)
{
    (void)state;
    struct job *j = job_create(2, 1, 60);
    assert_non_null(j);
    assert_int_equal(job_run(j, one_sets_it, NULL), 0);
    for (int r = 0; r < j->n; r++)
        assert_int_equal(j->r[r].code, MK_ERR_MISMATCH);
    job_destroy(j);
}

/* One of two, and it is told to stop. */
static int alone(struct job *j, int rank)
{
    mk_comm_t comm = NULL;
    setenv("MK_NET", net, 1);
    setenv("MK_TIMEOUT", "3600", 1);
    goes = 3;
    job_failed(j, rank, mk_comm_init_name(&comm, 9, 2, rank, go_on, NULL));
    return comm ? 1 : 0;
}

static void given_up(void **state)
{
    (void)state;
    struct job *j = job_create(1, 1, 60);
    assert_non_null(j);
    assert_int_equal(job_run(j, alone, NULL), 0);
    assert_int_equal(j->r[0].code, MK_ERR_ABORTED);
    job_destroy(j);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(large_between_nodes), cmocka_unit_test(as_ever_within_one),
        cmocka_unit_test(as_they_are_set), cmocka_unit_test(set_on_one_rank), cmocka_unit_test(given_up)};
    net = argc > 1 ? argv[1] : "loop";
    return cmocka_run_group_tests(tests, NULL, NULL);
}
