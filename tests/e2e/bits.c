/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* GEMM+AllReduce between real processes: right against float64 on every topology, and the same bits on every rank,
 * in every run, over every transport, whatever chunk size, number of blocks and link rate. Usage: bits loop|ofi. */
#include "job.h"
#include "tests/ref/gemm_ar_ref.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const char *transport = "loop";

static const long shapes[][3] = {{1, 1, 1},      {7, 1, 3},       {1, 997, 13},
                                 {97, 101, 103}, {96, 160, 192},  {257, 70, 5},
                                 {256, 512, 32}, {300, 1100, 40}, {5, 3, 0}};
#define NSHAPES ((int)(sizeof(shapes) / sizeof(shapes[0])))

struct variant {
    const char *name, *value;
};

/* All shapes in both dtypes; hash[i] of C. Rank 0 also compares with float64. */
static int all_shapes(struct job *j, int rank)
{
    mk_comm_t comm;
    int ret = mk_comm_init_env(&comm, NULL), bad = 0;
    if (ret)
        return job_failed(j, rank, ret);
    for (int s = 0; s < NSHAPES && !ret; s++)
        for (int dtype = 0; dtype < 2 && !ret; dtype++) {
            const long m = shapes[s][0], n = shapes[s][1], k = shapes[s][2];
            const int layout = (s + dtype) % 3;
            const size_t elem = dtype ? 2 : 4;
            void *a = malloc((size_t)(m * k) * elem + 1), *b = malloc((size_t)(n * k) * elem + 1),
                 *c = malloc((size_t)(m * n) * elem);
            double *ref = calloc((size_t)(m * n), sizeof(*ref));
            const long lda = layout == MK_NT ? m : k, ldb = layout == MK_TN ? k : n;
            job_fill(a, dtype, m * k, (unsigned long)(s * 100 + rank));
            job_fill(b, dtype, n * k, (unsigned long)(s * 100 + rank + 50));
            memset(c, 0x5a, (size_t)(m * n) * elem);
            ret = mk_gemm_allreduce(comm, (mk_layout_t)layout, m, n, k, (mk_dtype_t)dtype, a, lda ? lda : 1,
                                    b, ldb ? ldb : 1, c, n, NULL, NULL);
            j->r[rank].hash[s * 2 + dtype] = job_hash(c, (size_t)(m * n) * elem, 1);
            for (int r = 0; r < j->n && !ret && rank == 0; r++) {
                job_fill(a, dtype, m * k, (unsigned long)(s * 100 + r));
                job_fill(b, dtype, n * k, (unsigned long)(s * 100 + r + 50));
                mk_ref_gemm_f64(layout, dtype, m, n, k, a, lda, b, ldb, ref);
            }
            if (!ret && rank == 0) {
                const double e = mk_ref_rel_error(c, dtype, m, n, n, ref);
                if (!(e <= (dtype ? 4e-3 : 2e-6)) && m * n > 64) {
                    snprintf(j->r[0].text, sizeof(j->r[0].text), "M=%ld N=%ld K=%ld dtype %d: error %g", m, n,
                             k, dtype, e);
                    bad = 1;
                }
                j->r[0].error[dtype] = fmax(j->r[0].error[dtype], m * n > 64 ? e : 0);
            }
            job_beat(j, rank);
            free(ref);
            free(a);
            free(b);
            free(c);
        }
    if (ret)
        return job_failed(j, rank, ret);
    return mk_comm_destroy(comm) || bad ? 2 : 0;
}

static void check_run(struct job *j, const char *what)
{
    const int bad = job_run(j, all_shapes, NULL);
    for (int r = 0; r < j->n; r++)
        if (j->r[r].status)
            fail_msg("%s %dx%d %s: rank %d status %d code %d: %s", transport, j->nodes, j->local, what, r,
                     j->r[r].status, j->r[r].code, j->r[r].text);
    assert_int_equal(bad, 0);
    for (int r = 1; r < j->n; r++)
        assert_memory_equal(j->r[0].hash, j->r[r].hash, sizeof(j->r[0].hash));
}

static void every_topology(void **state)
{
    (void)state;
    static const int topo[][2] = {{1, 4}, {2, 1}, {2, 3}, {3, 2}, {4, 1}, {5, 1}, {1, 1}, {2, 2}};
    for (size_t t = 0; t < sizeof(topo) / sizeof(topo[0]); t++) {
        struct job *j = job_create(topo[t][0], topo[t][1], 60);
        check_run(j, "");
        printf("  %s %dx%d: largest error fp32 %.2g bf16 %.2g\n", transport, j->nodes, j->local,
               j->r[0].error[0], j->r[0].error[1]);
        job_destroy(j);
    }
}

static void same_bits_whatever_the_settings(void **state)
{
    (void)state;
    static const struct variant variants[][3] = {
        {{NULL, NULL}},
        {{"MK_CHUNK", "16K"}, {NULL, NULL}},
        {{"MK_CHUNK", "1M"}, {"MK_THREADS", "3"}, {NULL, NULL}},
        {{"MK_THREADS", "2"}, {"MK_WORKSPACE", "512K"}, {NULL, NULL}},
        {{"MK_LOOP_GBPS", "0.5"}, {NULL, NULL}},
        {{"MK_BATCH", "1"}, {"MK_R", "1"}, {NULL, NULL}},
        {{"MK_NET", "loop"}, {"MK_LOOP_HOSTILE", "5"}, {NULL, NULL}},
        {{"MK_NET", "loop"}, {"MK_ORDERED", "1"}, {NULL, NULL}},
        {{"MK_LOOP_US", "300"}, {NULL, NULL}},
    };
    static const int topo[][2] = {{2, 2}, {3, 1}};
    const int runs = JOB_SLOWER > 1 ? (int)(sizeof(variants) / sizeof(variants[0])) : 20;
    for (int t = 0; t < 2; t++) {
        struct job *j = job_create(topo[t][0], topo[t][1], 60);
        unsigned long first[64];
        for (int run = 0; run < runs; run++) {
            const struct variant *v = variants[run % (int)(sizeof(variants) / sizeof(variants[0]))];
            char what[80] = "";
            for (int i = 0; i < 3 && v[i].name; i++) {
                setenv(v[i].name, v[i].value, 1);
                snprintf(what + strlen(what), sizeof(what) - strlen(what), "%s=%s ", v[i].name, v[i].value);
            }
            check_run(j, what);
            for (int i = 0; i < 3 && v[i].name; i++)
                unsetenv(v[i].name);
            setenv("MK_NET", transport, 1);
            if (!run)
                memcpy(first, j->r[0].hash, sizeof(first));
            assert_memory_equal(first, j->r[0].hash, sizeof(first));
        }
        job_destroy(j);
    }
}

static void without_openblas(void **state)
{
    (void)state;
    struct job *j = job_create(2, 2, 60);
    const char *before = getenv("MK_GEMM");
    setenv("MK_GEMM", "builtin", 1);
    check_run(j, "builtin");
    if (before) /* sanitizers run without OpenBLAS */
        setenv("MK_GEMM", before, 1);
    else
        unsetenv("MK_GEMM");
    printf("  built-in multiply: largest error fp32 %.2g bf16 %.2g\n", j->r[0].error[0], j->r[0].error[1]);
    job_destroy(j);
}

static void fp32_wire(void **state)
{
    (void)state;
    struct job *j = job_create(2, 2, 60);
    setenv("MK_WIRE", "fp32", 1);
    check_run(j, "fp32 wire");
    unsetenv("MK_WIRE");
    job_destroy(j);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_topology),
                                       cmocka_unit_test(same_bits_whatever_the_settings),
                                       cmocka_unit_test(without_openblas), cmocka_unit_test(fp32_wire)};
    if (argc > 1)
        transport = argv[1];
    setenv("MK_NET", transport, 1);
    job_seconds("MK_TIMEOUT", 20);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
