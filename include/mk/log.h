/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Log lines "mkernel: [rank R] LEVEL SUBSYS text" to stderr, or to a sink (NCCL's logger, once given).
 * Level by MK_LOG (none, warn, info, trace; default warn, with a sink info). Wording: lower case, one line an event,
 * nothing per command. Subsystems: BASE NET PROXY FUSED TUNER HOOK CLI. */
#pragma once
#include <stdbool.h>

enum mk_log_level { MK_LOG_NONE = 0, MK_LOG_WARN = 1, MK_LOG_INFO = 2, MK_LOG_TRACE = 3 };

void mk_log(enum mk_log_level level, const char *subsys, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
bool mk_log_on(enum mk_log_level level);
/* Rank shown in the lines of this process from now on (-1: none). */
void mk_log_set_rank(int rank);
/* Sends the lines to `sink` instead of stderr; NULL: back to stderr. Called at set-up, before threads start. */
void mk_log_set_sink(void (*sink)(enum mk_log_level level, const char *subsys, const char *text));

#define MK_WARN(subsys, ...) mk_log(MK_LOG_WARN, subsys, __VA_ARGS__)
#define MK_INFO(subsys, ...)                                                                                 \
    do {                                                                                                     \
        if (mk_log_on(MK_LOG_INFO))                                                                          \
            mk_log(MK_LOG_INFO, subsys, __VA_ARGS__);                                                        \
    } while (0)
#ifdef MK_BUILD_TRACE
#define MK_TRACE(subsys, ...) mk_log(MK_LOG_TRACE, subsys, __VA_ARGS__)
#else
#define MK_TRACE(subsys, ...) ((void)0)
#endif
