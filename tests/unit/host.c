/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Which host is this? A process without a descriptor to spare says so, and does not take it for another one. */
#include "mk/err.h"
#include "mk/shm.h"
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

/* No further descriptor, what is open stays; returns the limit that was. */
static struct rlimit shut(void)
{
    struct rlimit was;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
    const struct rlimit none = {0, was.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    assert_int_equal(open("/dev/null", O_RDONLY), -1);
    assert_int_equal(errno, EMFILE);
    return was;
}

static void no_descriptor(void **state)
{
    (void)state;
    const struct rlimit was = shut();
    assert_true(mk_host_id() == 0);
    assert_non_null(strstr(mk_last_error(), "boot_id"));
    assert_non_null(strstr(mk_last_error(), strerror(EMFILE)));
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
    const uint64_t id = mk_host_id();
    assert_true(id != 0);
    shut();
    assert_true(mk_host_id() == id);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
    assert_true(mk_host_id() == id);
}

static void same_in_a_child(void **state)
{
    (void)state;
    const uint64_t id = mk_host_id();
    int status;
    const pid_t child = fork();
    if (child == 0)
        _exit(mk_host_id() == id ? 0 : 1);
    assert_true(child > 0);
    assert_true(waitpid(child, &status, 0) == child);
    assert_int_equal(status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_descriptor), cmocka_unit_test(same_in_a_child)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
