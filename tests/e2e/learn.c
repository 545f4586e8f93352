/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What a communicator learns, and what the next one takes from it through MK_TUNER_FILE. Results are checked in every
 * call: a role never changes one. Usage: learn loop|ofi. */
#include "fused/comm.h"
#include "job.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static char folder[] = "/tmp/mk-learn-XXXXXX", file[64];

struct plan {
    int shapes, calls;
    bool fixed; /* no controller is to be there */
    int budget; /* blocks that prefer communication, with fixed */
    bool known; /* what `entry` says is to be the start */
    struct mk_start entry;
};

/* Shape number i is of a class of its own. Integers, so that every sum is exact. */
static int one_call(mk_comm_t comm, struct job *j, int rank, int shape)
{
    const int m = 32 << shape % 5, n = 32 << shape / 5, k = 4;
    float *a = malloc(sizeof(float) * (size_t)(m * k)), *b = malloc(sizeof(float) * (size_t)(n * k)),
          *c = malloc(sizeof(float) * (size_t)(m * n));
    for (int i = 0; i < m * k; i++)
        a[i] = (float)((rank + 1) * (i / k + shape));
    for (int i = 0; i < n * k; i++)
        b[i] = 1;
    int ret = mk_gemm_allreduce(comm, MK_TN, m, n, k, MK_FLOAT32, a, k, b, k, c, n, NULL, NULL);
    for (int i = 0; i < m * n && !ret; i++)
        if (c[i] != (float)(j->n * (j->n + 1) / 2 * k * (i / n + shape)))
            ret = -100;
    free(a);
    free(b);
    free(c);
    return ret;
}

static int wrong(struct job *j, int rank, const char *what)
{
    snprintf(j->r[rank].text, sizeof(j->r[rank].text), "%s", what);
    return 3;
}

static int look(struct job *j, int rank, mk_comm_t comm, const struct plan *p, int call)
{
    const struct mk_learn *l = comm->learn;
    if (p->fixed)
        return l ? wrong(j, rank, "the budget is not fixed") : 0;
    if (!l)
        return wrong(j, rank, "no controller");
    const int taken = call + 1 < p->shapes ? call + 1 : p->shapes;
    int used = 0;
    for (int i = 0; i < MK_AR_CTL_CLASSES; i++)
        used += l->class[i].used != 0;
    if (used != (taken < MK_AR_CTL_CLASSES ? taken : MK_AR_CTL_CLASSES))
        return wrong(j, rank, "another number of classes in use");
    if (mk_starts_count(l->starts) != (size_t)taken)
        return wrong(j, rank, "another number of starting points");
    if (p->known && l->class[0].start != p->entry.target)
        return wrong(j, rank, "it does not start from what the file says");
    return 0;
}

/* A launch under the controller has tasks of one size, whatever the plan says of a queue's first and last chunks. */
static bool alike(mk_comm_t comm)
{
    const struct mk_gemm_call call = {.m = 256, .n = 256, .k = 4, .dtype = MK_FLOAT32, .part = MK_PART_FUSED};
    struct mk_ar ar;
    if (mk_plan_build(&comm->rings, false, false, &call, &ar))
        return false;
    ar.blocks = 1;
    ar.grid.edge_first = ar.grid.edge_last = 1;
    mk_learn_begin(comm, &call, &ar);
    return !ar.control == (ar.grid.edge_first && ar.grid.edge_last);
}

static int calls(struct job *j, int rank)
{
    const struct plan *p = j->arg;
    mk_comm_t comm;
    struct mk_plan_info info;
    int ret = mk_comm_init_env(&comm, NULL);
    if (ret)
        return job_failed(j, rank, ret);
    if (!mk_plan_info(comm, 256, 256, MK_FLOAT32, &info) && p->fixed && info.comm_blocks != p->budget)
        return wrong(j, rank, "another budget");
    for (int call = 0; call < p->calls; call++) {
        ret = one_call(comm, j, rank, p->shapes == 1 ? 23 : call % p->shapes);
        if (ret)
            return ret == -100 ? wrong(j, rank, "a wrong sum") : job_failed(j, rank, ret);
        ret = look(j, rank, comm, p, call);
        if (ret)
            return ret;
        job_stage(j, rank, call);
    }
    if (!alike(comm))
        return wrong(j, rank, "tasks of two sizes");
    return mk_comm_destroy(comm) ? 2 : 0;
}

static void run(int nodes, int local, const struct plan *p)
{
    struct job *j = job_create(nodes, local, 60);
    job_run(j, calls, (void *)(uintptr_t)p);
    for (int r = 0; r < j->n; r++)
        if (j->r[r].status)
            fail_msg("%dx%d rank %d: status %d after call %d, code %d: %s", nodes, local, r, j->r[r].status,
                     j->r[r].stage, j->r[r].code, j->r[r].text);
    job_destroy(j);
}

/* The one entry of the file. */
static void entry_of(struct mk_start *out)
{
    struct mk_starts *s;
    struct mk_start_key key;
    const int64_t mnk[3] = {32 << 3, 32 << 4, 4};
    assert_int_equal(mk_starts_open(file, &s), 0);
    assert_int_equal(mk_starts_count(s), 1);
    mk_start_key(&key, MK_START_GEMM_ALLREDUCE, MK_FLOAT32, mnk, 1, 2, "cpu", "memory");
    assert_true(mk_starts_get(s, &key, out));
    mk_starts_close(s);
}

static void taught_and_remembered(void **state)
{
    (void)state;
    struct plan p = {.shapes = 1, .calls = 12};
    run(1, 2, &p);
    entry_of(&p.entry);
    assert_int_equal(p.entry.units, 3);
    assert_true(p.entry.target <= 3 && p.entry.cost[0] > 0 && p.entry.cost[1] > 0);
    assert_int_equal(p.entry.launches, 8); /* the four that were made in parts taught it nothing */
    /* a second job begins where the first one ended; whatever the first one saw, also at a target other than 0 */
    p.known = true;
    run(1, 2, &p);
    struct mk_starts *s;
    struct mk_start_key key;
    const int64_t mnk[3] = {32 << 3, 32 << 4, 4};
    struct mk_start two = p.entry;
    unlink(file);
    assert_int_equal(mk_starts_open(file, &s), 0);
    mk_start_key(&key, MK_START_GEMM_ALLREDUCE, MK_FLOAT32, mnk, 1, 2, "cpu", "memory");
    two.target = 2;
    assert_int_equal(mk_starts_put(s, &key, &two), 0);
    assert_int_equal(mk_starts_save(s), 0);
    mk_starts_close(s);
    p.entry.target = 2;
    run(1, 2, &p);
}

static void more_shapes_than_states(void **state)
{
    (void)state;
    const struct plan p = {.shapes = MK_AR_CTL_CLASSES + 6, .calls = 3 * (MK_AR_CTL_CLASSES + 6)};
    struct mk_starts *s;
    unlink(file);
    run(2, 1, &p);
    assert_int_equal(mk_starts_open(file, &s), 0);
    assert_int_equal(mk_starts_count(s), MK_AR_CTL_CLASSES + 6);
    mk_starts_close(s);
}

static void a_damaged_file_is_replaced(void **state)
{
    (void)state;
    struct plan p = {.shapes = 1, .calls = 3};
    unlink(file);
    run(1, 2, &p);
    FILE *f = fopen(file, "r+");
    assert_non_null(f);
    assert_int_equal(fseek(f, 60, SEEK_SET), 0);
    assert_true(fputc(0x77, f) == 0x77 && !fclose(f));
    run(1, 2, &p);
    entry_of(&p.entry);
    assert_int_equal(p.entry.launches, 3);
}

static void fixed_budgets(void **state)
{
    (void)state;
    struct plan p = {.shapes = 2, .calls = 6, .fixed = true, .budget = 1};
    unlink(file);
    setenv("MK_TUNER", "off", 1);
    run(2, 1, &p);
    setenv("MK_TUNER", "observe", 1);
    run(2, 1, &p);
    unsetenv("MK_TUNER");
    setenv("MK_COMM_BLOCKS", "2", 1);
    setenv("MK_THREADS", "5", 1);
    p.budget = 2;
    run(2, 1, &p);
    unsetenv("MK_COMM_BLOCKS");
    setenv("MK_THREADS", "1", 1);
    p.budget = 1;
    run(2, 1, &p);
    setenv("MK_THREADS", "3", 1);
    assert_int_equal(access(file, F_OK), -1);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(taught_and_remembered),
        cmocka_unit_test(more_shapes_than_states),
        cmocka_unit_test(a_damaged_file_is_replaced),
        cmocka_unit_test(fixed_budgets),
    };
    if (argc < 2 || !mkdtemp(folder))
        return 2;
    snprintf(file, sizeof(file), "%s/starts", folder);
    setenv("MK_NET", argv[1], 1);
    setenv("MK_TUNER_FILE", file, 1);
    setenv("MK_THREADS", "3", 1);
    const int ret = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(file);
    char lock[80];
    snprintf(lock, sizeof(lock), "%s.lock", file);
    unlink(lock);
    rmdir(folder);
    return ret;
}
