/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Log lines: one write each, so that the lines of several processes do not mix. */
#include "mk/log.h"
#include "mk/param.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int level_set = -1; /* -1: not read yet; written and read relaxed, the value is always the same */
static int rank_shown = -1;
static void (*sink_fn)(enum mk_log_level, const char *, const char *);

static int level_now(void)
{
    int level = __atomic_load_n(&level_set, __ATOMIC_RELAXED);
    if (level >= 0)
        return level;
    static const char *const words[] = {"none", "warn", "info", "trace"};
    const char *v = mk_env("MK_LOG");
    level = sink_fn ? MK_LOG_INFO : MK_LOG_WARN; /* a sink has a filter of its own */
    for (int i = 0; v && i < 4; i++)
        if (!strcmp(v, words[i]))
            level = i;
    __atomic_store_n(&level_set, level, __ATOMIC_RELAXED);
    return level;
}

bool mk_log_on(enum mk_log_level level)
{
    return (int)level <= level_now();
}

void mk_log_set_rank(int rank)
{
    __atomic_store_n(&rank_shown, rank, __ATOMIC_RELAXED);
}

void mk_log_set_sink(void (*sink)(enum mk_log_level level, const char *subsys, const char *text))
{
    sink_fn = sink;
    __atomic_store_n(&level_set, -1, __ATOMIC_RELAXED);
}

void mk_log(enum mk_log_level level, const char *subsys, const char *fmt, ...)
{
    static const char *const names[] = {"", "WARN", "INFO", "TRACE"};
    char text[768], line[900];
    if (!mk_log_on(level) || level == MK_LOG_NONE)
        return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (sink_fn) {
        sink_fn(level, subsys, text);
        return;
    }
    const int rank = __atomic_load_n(&rank_shown, __ATOMIC_RELAXED);
    char who[24] = "";
    if (rank >= 0)
        snprintf(who, sizeof(who), "rank %d ", rank);
    const int n = snprintf(line, sizeof(line), "mkernel: %s%s %s %s\n", who, names[level], subsys, text);
    const size_t len = n < (int)sizeof(line) ? (size_t)n : sizeof(line) - 1;
    if (write(STDERR_FILENO, line, len) < 0)
        return; /* nowhere left to complain */
}
