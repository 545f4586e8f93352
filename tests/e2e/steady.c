/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Many calls on one communicator: shapes alternate on every call, ranks come late by random times, counters cross
 * 2^32, every result is checked. Usage: steady loop|ofi CALLS. */
#include "fused/comm.h"
#include "job.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static int calls = 2000;

/* Integers, so that every sum is exact: C[i,j] = sum over ranks of (rank + 1) * K_r * (i + call) * 1. */
static int many_calls(struct job *j, int rank)
{
    static const int shapes[][3] = {{3, 5, 2}, {130, 40, 1}, {1, 1, 1}, {64, 300, 2}, {0, 9, 1}, {16, 16, 0}};
    mk_comm_t comm;
    mk_comm_start = 0xffffffffull - 300;
    int ret = mk_comm_init_env(&comm, NULL);
    unsigned long rng = (unsigned long)rank * 77 + 1;
    float *a = malloc(sizeof(float) * 130 * 2), *b = malloc(sizeof(float) * 300 * 2),
          *c = malloc(sizeof(float) * 64 * 300);
    for (int call = 0; call < calls && !ret; call++) {
        const int *s = shapes[call % 6], m = s[0], n = s[1], k = s[2];
        for (int i = 0; i < m * k; i++)
            a[i] = (float)((rank + 1) * (i / (k ? k : 1) + call % 64));
        for (int i = 0; i < n * k; i++)
            b[i] = 1;
        rng = rng * 6364136223846793005ul + 1442695040888963407ul;
        if (rng >> 60 == 0)
            usleep((useconds_t)(rng >> 40) % 3000);
        ret =
            mk_gemm_allreduce(comm, MK_TN, m, n, k, MK_FLOAT32, a, k ? k : 1, b, k ? k : 1, c, n, NULL, NULL);
        for (int i = 0; i < m * n && !ret; i++) {
            const float want = (float)(j->n * (j->n + 1) / 2 * k * (i / n + call % 64));
            if (c[i] != want) {
                snprintf(j->r[rank].text, sizeof(j->r[rank].text), "call %d element %d: %g, want %g", call, i,
                         (double)c[i], (double)want);
                return 3;
            }
        }
        job_stage(j, rank, call);
    }
    free(a);
    free(b);
    free(c);
    return ret ? job_failed(j, rank, ret) : mk_comm_destroy(comm) ? 2 : 0;
}

static void run(int nodes, int local)
{
    struct job *j = job_create(nodes, local, 200);
    job_run(j, many_calls, NULL);
    for (int r = 0; r < j->n; r++)
        if (j->r[r].status)
            fail_msg("%dx%d rank %d: status %d after call %d, code %d: %s", nodes, local, r, j->r[r].status,
                     j->r[r].stage, j->r[r].code, j->r[r].text);
    job_destroy(j);
}

static void two_nodes_of_two(void **state)
{
    (void)state;
    run(2, 2);
}
static void three_nodes(void **state)
{
    (void)state;
    calls /= 4;
    run(3, 1);
    calls *= 4;
}
static void one_node_of_three(void **state)
{
    (void)state;
    calls /= 4;
    run(1, 3);
    calls *= 4;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(two_nodes_of_two), cmocka_unit_test(three_nodes),
                                       cmocka_unit_test(one_node_of_three)};
    setenv("MK_NET", argc > 1 ? argv[1] : "loop", 1);
    job_seconds("MK_TIMEOUT", 20);
    setenv("MK_GEMM", "builtin", 1); /* tiny products: nothing to open */
    if (argc > 2)
        calls = atoi(argv[2]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
