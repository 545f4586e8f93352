/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Limits of the process: what is read is what was set, and the texts name limit, value and remedy. */
#include "net/rlimits.h"
#include "tests/net/limit_help.h"
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static void files(void **state)
{
    enum { MOST = 40 };
    int fd[MOST], n = 0;
    char text[MK_LIMITS_TEXT];
    (void)state;
    struct rlimit before;
    assert_int_equal(soft_limit(RLIMIT_NOFILE, MOST, &before), 0);
    assert_int_equal(mk_limits_files(), MOST);
    const uint64_t left = mk_limits_files_left();
    assert_in_range(left, 1, MOST);
    while (n < MOST && !mk_limits_no_files() && (fd[n] = open("/dev/null", O_RDONLY)) >= 0)
        n++;
    errno = 1234;
    assert_true(mk_limits_no_files());
    assert_int_equal(errno, 1234);
    assert_int_equal(n, left);
    assert_int_equal(mk_limits_files_left(), 0);
    mk_limits_files_text(text);
    assert_non_null(strstr(text, " 40 (RLIMIT_NOFILE)"));
    assert_non_null(strstr(text, "ulimit -n"));
    assert_non_null(strstr(text, "container")); /* whole */
    close(fd[--n]);
    assert_false(mk_limits_no_files());
    assert_int_equal(mk_limits_files_left(), 1);
    while (n)
        close(fd[--n]);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

static void locked_memory(void **state)
{
    char text[MK_LIMITS_TEXT];
    (void)state;
    struct rlimit before;
    assert_int_equal(soft_limit(RLIMIT_MEMLOCK, 48 << 10, &before), 0);
    assert_int_equal(may_lock(0), 0);
    assert_int_equal(mk_limits_memlock(), 48 << 10);
    mk_limits_memlock_text(text);
    assert_non_null(strstr(text, " 48 KiB (RLIMIT_MEMLOCK)"));
    assert_non_null(strstr(text, "ulimit -l unlimited"));
    assert_non_null(strstr(text, "container"));
    assert_int_equal(may_lock(1), 0);
    const uint64_t with = mk_limits_memlock(); /* a privileged process is not limited */
    assert_true(with == UINT64_MAX || with == 48 << 10);
    mk_limits_memlock_text(text);
    assert_non_null(strstr(text, with == UINT64_MAX ? "not limited" : "48 KiB"));
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &before), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(files), cmocka_unit_test(locked_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
