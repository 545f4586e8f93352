/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Settings: defaults, units, malformed and unknown names. */
#include "mk/err.h"
#include "mk/param.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static void defaults(void **state)
{
    (void)state;
    struct mk_settings s;
    assert_int_equal(mk_settings_load(&s, true), 0);
    assert_int_equal(s.chunk, 256 * 1024);
    assert_int_equal(s.workspace, 32 << 20);
    assert_int_equal(s.rank, -1);
    assert_true(s.timeout == 30.0);
    assert_string_equal(s.net, "auto");
}

static void expect(const char *name, const char *value, int ret)
{
    struct mk_settings s;
    setenv(name, value, 1);
    assert_int_equal(mk_settings_load(&s, true), ret);
    if (ret)
        assert_non_null(strstr(mk_last_error(), name));
    unsetenv(name);
}

static void malformed(void **state)
{
    (void)state;
    expect("MK_CHUNK", "1M", 0);
    expect("MK_CHUNK", "1MB", MK_ERR_INVALID);
    expect("MK_CHUNK", "-1", MK_ERR_INVALID);
    expect("MK_CHUNK", "99999999999G", MK_ERR_INVALID);
    expect("MK_TIMEOUT", "2.5", 0);
    expect("MK_TIMEOUT", "nan", MK_ERR_INVALID);
    expect("MK_TIMEOUT", "0", MK_ERR_INVALID);
    expect("MK_ORDERED", "yes", MK_ERR_INVALID);
    expect("MK_NET", "loop", 0);
    expect("MK_NET", "lo", MK_ERR_INVALID);
    expect("MK_NET", "auto|ofi", MK_ERR_INVALID);
    expect("MK_WIRE", "fp32", 0);
    expect("MK_THREADS", "2x", MK_ERR_INVALID);
    expect("MK_BATCH", "9", MK_ERR_INVALID);
    expect("MK_DEVICES", "17", MK_ERR_INVALID);
    expect("MK_BLOCKS", "0", 0);
    expect("MK_BLOCKS", "-1", MK_ERR_INVALID);
    expect("MK_BLOCKS", "4294967297", MK_ERR_INVALID);
    expect("MK_COMM_BLOCKS", "-1", 0);
    expect("MK_COMM_BLOCKS", "-2", MK_ERR_INVALID);
    expect("MK_COMM_BLOCKS", "4294967297", MK_ERR_INVALID);
    expect("MK_QPS", "0", MK_ERR_INVALID);
    expect("MK_QPS", "9", MK_ERR_INVALID);
    expect("MK_NO_SUCH", "1", MK_ERR_INVALID);
}

static void unknown_is_no_error_for_the_library(void **state)
{
    (void)state;
    struct mk_settings s;
    setenv("MK_NO_SUCH", "1", 1);
    assert_int_equal(mk_settings_load(&s, false), 0);
    unsetenv("MK_NO_SUCH");
}

static void launchers(void **state)
{
    (void)state;
    struct mk_settings s;
    setenv("RANK", "3", 1);
    setenv("WORLD_SIZE", "8", 1);
    setenv("LOCAL_RANK", "1", 1);
    assert_int_equal(mk_settings_load(&s, true), 0);
    assert_string_equal(mk_settings_launcher(&s), "torchrun");
    assert_int_equal(s.rank, 3);
    assert_int_equal(s.nranks, 8);
    assert_int_equal(s.local_rank, 1);
    assert_int_equal(s.local_nranks, -1);
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
    unsetenv("LOCAL_RANK");
}

static void error_names(void **state)
{
    (void)state;
    assert_string_equal(mk_strerror(0), "success");
    assert_string_equal(mk_strerror(MK_ERR_INTERNAL), "internal error");
    assert_string_equal(mk_strerror(-99), "unknown error");
    assert_string_equal(mk_strerror(1), "unknown error");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),
        cmocka_unit_test(malformed),
        cmocka_unit_test(unknown_is_no_error_for_the_library),
        cmocka_unit_test(launchers),
        cmocka_unit_test(error_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
