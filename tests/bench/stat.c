/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What the benchmarks say of samples, and how they read their command lines. */
#include "tests/bench/bench.h"
#include "tests/bench/options.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

/* The samples 1 .. n in an order that is none. */
static struct bench_samples scrambled(int n)
{
    struct bench_samples s;
    s.n = 0;
    for (int i = 0; i < n; i++)
        bench_add(&s, (double)(i * 37 % n + 1));
    return s;
}

static void medians(void **state)
{
    (void)state;
    const struct bench_samples odd = scrambled(9), even = scrambled(30);
    assert_true(bench_stat_of(&odd).median == 5);
    assert_true(bench_stat_of(&even).median == 15.5);
    assert_true(bench_stat_of(&even).min == 1 && bench_stat_of(&even).max == 30);
}

/* Ranks of the tables of the sign test: chance at both ends at most 2.5 %. */
static void intervals(void **state)
{
    static const int known[][3] = {{6, 1, 6}, {9, 2, 8}, {11, 2, 10}, {30, 10, 21}, {100, 40, 61}};
    double low, high;
    (void)state;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        const struct bench_samples s = scrambled(known[i][0]);
        assert_true(bench_interval(&s, &low, &high));
        assert_true(low == known[i][1] && high == known[i][2]);
    }
    for (int n = 1; n <= 5; n++) {
        const struct bench_samples s = scrambled(n);
        assert_false(bench_interval(&s, &low, &high));
        assert_true(low == 1 && high == n);
    }
}

static void numbers(void **state)
{
    double v = -1;
    (void)state;
    assert_true(bench_real("0.5", 0, 1, &v) && v == 0.5);
    assert_true(bench_real("1e-1", 0, 1, &v) && v == 0.1);
    static const char *const wrong[] = {"", "x", "1x", "2", "-1", "nan", "1e999"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        assert_false(bench_real(wrong[i], 0, 1, &v));
    assert_true(v == 0.1);
}

static void sizes(void **state)
{
    struct bench_sizes s = {{7}, 4u << 20, 1};
    (void)state;
    assert_true(bench_sizes(&s, "1,64K,4M") && s.n == 3);
    assert_true(s.v[0] == 1 && s.v[1] == 65536 && s.v[2] == 4u << 20);
    static const char *const wrong[] = {"", "x", "5M", "4194305", "0", "1,,x", "K"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        assert_false(bench_sizes(&s, wrong[i]));
    assert_false(bench_sizes(&s, "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17"));
}

static void shapes(void **state)
{
    static struct bench_shapes s;
    char path[] = "/tmp/mkbench-shapes-XXXXXX";
    static const char text[] = "# who,M,N,K\nllama,tp2,128,4096,2048\n\n7,8,9\nx,1,2\n";
    (void)state;
    assert_true(bench_shape(&s, "1,2,3") && s.n == 1 && s.at[0][0] == 1 && s.at[0][2] == 3);
    static const char *const wrong[] = {"", "1,2", "1,2,0", "1,2,3,4", "1,2,3 "};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        assert_false(bench_shape(&s, wrong[i]));
    assert_true(s.n == 1);
    assert_true(bench_shape_set(&s, "decode") && s.n == 1 + 12);
    assert_true(s.at[1][0] == 1 && s.at[1][1] == 4096 && s.at[12][0] == 64 && s.at[12][2] == 14336);
    assert_true(bench_shape_set(&s, "issue") && s.n == 1 + 12 + 4);
    assert_false(bench_shape_set(&s, "nothing"));
    s.n = 0;
    const int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
    assert_true(bench_shape_file(&s, path) && s.n == 2);
    assert_true(s.at[0][0] == 128 && s.at[0][2] == 2048 && s.at[1][1] == 8);
    unlink(path);
    assert_false(bench_shape_file(&s, path));
    while (bench_shape(&s, "1,1,1"))
        ;
    assert_int_equal(s.n, BENCH_SHAPES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(medians), cmocka_unit_test(intervals), cmocka_unit_test(numbers),
        cmocka_unit_test(sizes),   cmocka_unit_test(shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
