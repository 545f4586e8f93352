/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What mkgemm tells about a wrong product, which no working operator would give it: the error is found, C is not
 * written, the JSON says so. */
#include "plugin/cli/cli.h"
#include "plugin/cli/mkgemm.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static char dir[] = "/tmp/mk-report-XXXXXX";

void mkgemm_progress(const struct mkgemm *g, const char *fmt, ...) /* instead of mkgemm.c's */
{
    (void)g;
    (void)fmt;
}

static int make_inputs(void **state)
{
    (void)state;
    struct mkgemm_options o = {
        .a = "A.npy", .b = "B.npy", .dtype = -1, .layout = MK_TN, .make_m = 9, .make_n = 7, .make_k = 600};
    return mkdtemp(dir) && !chdir(dir) ? mkgemm_make(&o) : -1;
}

static int remove_all(void **state)
{
    (void)state;
    unlink("A.npy");
    unlink("B.npy");
    unlink("r.json");
    return chdir("/") || rmdir(dir);
}

/* A job of one rank with the right product in c, as mkgemm_run.c would leave it. */
static void right_job(struct mkgemm *g, mk_dtype_t dtype)
{
    memset(g, 0, sizeof(*g));
    g->nranks = 1;
    g->info.nnodes = g->info.local_nranks = g->info.threads = 1;
    g->bitwise_equal = g->same_bits = true;
    g->rel_error = NAN;
    g->o = (struct mkgemm_options){.a = "A.npy",
                                   .b = "B.npy",
                                   .out = "C.npy",
                                   .json = "r.json",
                                   .layout_name = "tn",
                                   .dtype = (int)dtype,
                                   .verify = true};
    assert_int_equal(mkgemm_open(g), 0);
    assert_int_equal(mkgemm_load_slices(g), 0);
    float *a = malloc(9 * 600 * sizeof(*a)), *b = malloc(7 * 600 * sizeof(*b));
    assert_true(a && b);
    assert_int_equal(mkgemm_load(g, &g->a, 0, 600, a) | mkgemm_load(g, &g->b, 0, 600, b), 0);
    for (int i = 0; i < 9 * 7; i++) {
        double sum = 0;
        for (int p = 0; p < 600; p++)
            sum += (double)a[i / 7 * 600 + p] * (double)b[i % 7 * 600 + p];
        ((float *)g->c)[dtype == MK_FLOAT32 ? i : 0] = (float)sum;
        if (dtype == MK_BFLOAT16)
            ((uint16_t *)g->scratch)[i] = mk_bf16_from_float((float)sum);
    }
    if (dtype == MK_BFLOAT16)
        memcpy(g->c, g->scratch, 9 * 7 * 2);
    free(a);
    free(b);
}

static bool json_says(const char *what)
{
    char text[4096];
    FILE *f = fopen("r.json", "r");
    assert_non_null(f);
    text[fread(text, 1, sizeof(text) - 1, f)] = 0;
    fclose(f);
    return strstr(text, what);
}

static void expect(struct mkgemm *g, int status)
{
    assert_int_equal(mkgemm_report(g), status);
    assert_int_equal(access("C.npy", F_OK), status ? -1 : 0);
    assert_true(json_says(status ? "\"ok\": false" : "\"ok\": true"));
    unlink("C.npy");
    mkgemm_close(g);
}

static void right(void **state)
{
    (void)state;
    struct mkgemm g;
    for (int dtype = 0; dtype < 2; dtype++) {
        right_job(&g, (mk_dtype_t)dtype);
        expect(&g, MK_EXIT_OK);
        assert_true(g.rel_error < mkgemm_allowed(&g));
    }
}

/* One element off by little, one NaN, one that was never written. */
static void wrong(void **state)
{
    (void)state;
    struct mkgemm g;
    right_job(&g, MK_FLOAT32);
    float *c = g.c;
    c[40] += 1e-3f * fabsf(c[40]) + 0.01f;
    expect(&g, MK_EXIT_FAILED);
    assert_true(g.rel_error > 2e-6 && g.rel_error < 1);
    right_job(&g, MK_FLOAT32);
    ((float *)g.c)[62] = NAN;
    expect(&g, MK_EXIT_FAILED);
    assert_true(isinf(g.rel_error));
    right_job(&g, MK_BFLOAT16);
    ((uint16_t *)g.c)[0] = 0xffff;
    expect(&g, MK_EXIT_FAILED);
}

static void other_bits(void **state)
{
    (void)state;
    struct mkgemm g;
    right_job(&g, MK_FLOAT32);
    g.bitwise_equal = false;
    expect(&g, MK_EXIT_FAILED);
    assert_true(json_says("\"bitwise_equal\": false"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(right), cmocka_unit_test(wrong),
                                       cmocka_unit_test(other_bits)};
    mk_cli_init("test");
    return cmocka_run_group_tests(tests, make_inputs, remove_all);
}
