/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Error codes, and the sentence of each thread's last failure. */
#include "mk/err.h"
#include "mk/log.h"
#include <stdarg.h>
#include <stdio.h>

static _Thread_local char last_error[512];

static const char *const names[] = {
    /* clang-format off */
    "success",
    "try again",
    "invalid argument",
    "not supported",
    "out of memory",
    "system error",
    "network error",
    "peer lost",
    "timed out",
    "aborted",
    "ranks disagree",
    "CUDA error",
    "internal error",
    /* clang-format on */
};

const char *mk_strerror(int error)
{
    const int n = (int)(sizeof(names) / sizeof(names[0]));
    return error <= 0 && error > -n ? names[-error] : "unknown error";
}

const char *mk_last_error(void)
{
    return last_error;
}

void mk_last_error_set(const char *text)
{
    snprintf(last_error, sizeof(last_error), "%s", text);
}

int mk_fail(int code, const char *subsys, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(last_error, sizeof(last_error), fmt, ap);
    va_end(ap);
    MK_WARN(subsys, "%s", last_error);
    return code;
}

int mk_fail_quiet(int code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(last_error, sizeof(last_error), fmt, ap);
    va_end(ap);
    return code;
}
