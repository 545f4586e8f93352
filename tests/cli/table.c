/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The table writer: alignment, text of several bytes, units of time. */
#include "plugin/cli/table.h"
#include "mk/err.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

static void expect(struct mk_table *t, const char *text)
{
    char got[1024] = "";
    FILE *f = fmemopen(got, sizeof(got), "w");
    assert_non_null(f);
    assert_int_equal(mk_table_print(t, f), 0);
    fclose(f);
    assert_string_equal(got, text);
    mk_table_free(t);
}

static void aligned(void **state)
{
    (void)state;
    struct mk_table *t = mk_table_new("what|>median|>max|note");
    mk_table_row(t, "T_compute|%.1f|%d|", 1.5, 20);
    mk_table_row(t, "fused|%.1f|%d|%s", 123.25, 3, "best");
    expect(t, "what       median  max  note\n"
              "T_compute     1.5   20\n"
              "fused       123.2    3  best\n");
}

static void missing_cells_and_wide_letters(void **state)
{
    (void)state;
    struct mk_table *t = mk_table_new("a|>b|c");
    mk_table_row(t, "\xc3\xa4\xc3\xb6\xc3\xbc|1");
    mk_table_row(t, "x||last | with bars");
    mk_table_row(t, "%s", "");
    expect(t, "a    b  c\n"
              "\xc3\xa4\xc3\xb6\xc3\xbc  1\n"
              "x       last | with bars\n"
              "\n");
}

static void failed_stream(void **state)
{
    (void)state;
    struct mk_table *t = mk_table_new("a");
    FILE *f = fopen("/dev/full", "w");
    assert_non_null(f);
    setvbuf(f, NULL, _IONBF, 0);
    assert_int_equal(mk_table_print(t, f), MK_ERR_SYSTEM);
    fclose(f);
    mk_table_free(t);
    assert_int_equal(mk_table_print(NULL, stdout), MK_ERR_NOMEM);
    mk_table_free(NULL);
}

static void times(void **state)
{
    (void)state;
    char text[24];
    assert_string_equal(mk_table_time(0, text), "0.0 us");
    assert_string_equal(mk_table_time(12.34e-6, text), "12.3 us");
    assert_string_equal(mk_table_time(999.4e-6, text), "999.4 us");
    assert_string_equal(mk_table_time(0.9996e-3, text), "1 ms");
    assert_string_equal(mk_table_time(45.67e-3, text), "45.7 ms");
    assert_string_equal(mk_table_time(1.234, text), "1.23 s");
    assert_string_equal(mk_table_time(NAN, text), "-");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(aligned),
        cmocka_unit_test(missing_cells_and_wide_letters),
        cmocka_unit_test(failed_stream),
        cmocka_unit_test(times),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
