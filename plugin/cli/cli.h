/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What mkrun, mkgemm and mkinfo share. The floor of the folder:
 *
 *   out.h    an output file that appears whole or not at all
 *   json.h   the one JSON writer        table.h  the one table writer
 *   json_read.h  the one JSON reader    profile.h  files of NCCL's profiles    explain.h  logs of interception
 *   npy.h    NumPy's .npy, read and written
 *   rng.h    random matrices, the same on every machine
 *   ref.h    float64 product, relative error
 *   timeline.h  who did what when: a picture (svg.c) and a trace for Perfetto (trace.c)
 *
 * Exit codes: 0 done; 1 it was tried and failed; 2 the command line, a setting or an input file is wrong;
 * 127 (mkrun) the program was not found; 128 + n (mkrun) a rank ended by signal n.
 * All of these functions return 0 or MK_ERR_* and leave the sentence in mk_last_error(). */
#pragma once
#include "mkernel.h"
#include <stdbool.h>

enum { MK_EXIT_OK = 0, MK_EXIT_FAILED = 1, MK_EXIT_USAGE = 2 };

/* Name in front of every message. Called first, with a literal. */
void mk_cli_init(const char *program);
/* No messages while on: a rank that leaves the talking to another one. */
void mk_cli_mute(bool on);

/* "program: TEXT" to stderr, one write. */
void mk_cli_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* The same, returns MK_EXIT_USAGE and names --help. */
int mk_cli_usage(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* What getopt_long (opterr = 0, ":" first) complained about; returns MK_EXIT_USAGE. */
int mk_cli_bad_option(int c, char *const *argv);
/* Prints a help text or the version; returns the exit code (1 if stdout is full). */
int mk_cli_print(const char *text);
int mk_cli_version(void);
/* Flushes stdout. 0, or 1 and a message: a table that did not reach its reader is a failure. */
int mk_cli_flush(void);

/* Whole decimal numbers in [min, max]; false for anything else. */
bool mk_cli_number(const char *text, long long min, long long max, long long *out);
