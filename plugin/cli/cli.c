/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#include "cli.h"
#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *program = "mkernel";
static bool muted;

void mk_cli_init(const char *name)
{
    program = name;
}

void mk_cli_mute(bool on)
{
    muted = on;
}

static void say(const char *tail, const char *fmt, va_list ap)
{
    char text[1024], line[1280];
    if (muted)
        return;
    vsnprintf(text, sizeof(text), fmt, ap);
    int n = snprintf(line, sizeof(line), "%s: %s%s\n", program, text, tail);
    if (n >= (int)sizeof(line))
        n = (int)sizeof(line) - 1;
    fflush(stdout); /* what was printed before stands before */
    if (write(STDERR_FILENO, line, (size_t)n) < 0)
        return; /* nowhere left to complain */
}

void mk_cli_say(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    say("", fmt, ap);
    va_end(ap);
}

int mk_cli_usage(const char *fmt, ...)
{
    char tail[64];
    snprintf(tail, sizeof(tail), " (%s --help explains)", program);
    va_list ap;
    va_start(ap, fmt);
    say(tail, fmt, ap);
    va_end(ap);
    return MK_EXIT_USAGE;
}

int mk_cli_bad_option(int c, char *const *argv)
{
    const char *arg = argv[optind - 1];
    if (c == ':')
        return mk_cli_usage("%s needs a value", arg);
    if (optopt && strncmp(arg, "--", 2))
        return mk_cli_usage("-%c is not an option", optopt);
    return mk_cli_usage("%s is not an option%s", arg, strchr(arg, '=') ? ", or takes no value" : "");
}

int mk_cli_flush(void)
{
    errno = 0;
    if (!fflush(stdout) && !ferror(stdout))
        return MK_EXIT_OK;
    mk_cli_say("standard output: %s", errno ? strerror(errno) : "write failed");
    return MK_EXIT_FAILED;
}

int mk_cli_print(const char *text)
{
    fputs(text, stdout);
    return mk_cli_flush();
}

int mk_cli_version(void)
{
    printf("%s %d.%d.%d\n", program, MK_VERSION_MAJOR, MK_VERSION_MINOR, MK_VERSION_PATCH);
    return mk_cli_flush();
}

bool mk_cli_number(const char *text, long long min, long long max, long long *out)
{
    char *end;
    if (!*text || strspn(text, "0123456789") != strlen(text))
        return false;
    errno = 0;
    const long long n = strtoll(text, &end, 10);
    if (errno || *end || n < min || n > max)
        return false;
    *out = n;
    return true;
}
