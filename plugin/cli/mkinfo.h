/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What mkinfo finds: a list of items, in sections. The probes (mkinfo_machine.c, mkinfo_parts.c) fill it and print
 * nothing; mkinfo.c prints it as a table or as JSON, one object a section. */
#pragma once
#include "mk/param.h"
#include <stdbool.h>
#include <stddef.h>

enum { MKINFO_KEY = 48, MKINFO_TEXT = 240 };

struct mkinfo_item {
    const char *section; /* a literal */
    char key[MKINFO_KEY];
    char text[MKINFO_TEXT]; /* for people; for JSON too, unless is_number */
    bool is_number;
    double number; /* in the unit that the key's end names: _bytes, _gflops, ... */
};

struct mkinfo {
    struct mk_settings settings;
    struct mkinfo_item *items;
    int n, room;
    bool failed; /* out of memory */
};

void mkinfo_text(struct mkinfo *f, const char *section, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void mkinfo_number(struct mkinfo *f, const char *section, const char *key, double number, const char *fmt,
                   ...) __attribute__((format(printf, 5, 6)));

/* Processor, memory, GPUs, network interfaces and devices. */
void mkinfo_machine(struct mkinfo *f);
/* Libraries, providers, the speed of the matrix multiply, what a job would use. */
void mkinfo_parts(struct mkinfo *f);

/* mkinfo --profile: n files, as a table or as JSON. Returns the exit code: USAGE if a file is none of ours or damaged (the
 * others are shown). */
int mkinfo_profile(char *const *path, int n, const char *json);
/* mkinfo --explain: n logs, likewise. USAGE if one cannot be read, or none has a line of interception. */
int mkinfo_explain(char *const *path, int n, const char *json);
