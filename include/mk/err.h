/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Errors inside the library: the codes of mkernel.h, and the one way to report the first detection.
 *
 * Rule: who detects a fault first calls mk_fail (or mk_fail_quiet) once, with the object and the exact cause;
 * callers pass the code up in silence. MK_ERR_AGAIN is back-pressure: never logged, never public. */
#pragma once
#include "mkernel.h"

/* Stores the sentence for mk_last_error() of this thread, logs it as WARN of `subsys`, returns `code`. */
int mk_fail(int code, const char *subsys, const char *fmt, ...) __attribute__((cold, format(printf, 3, 4)));

/* The same without a log line: for faults of arguments, which only the caller needs to hear about. */
int mk_fail_quiet(int code, const char *fmt, ...) __attribute__((cold, format(printf, 2, 3)));

/* Sets this thread's sentence to `text` without formatting (to hand on what another thread detected). */
void mk_last_error_set(const char *text);
