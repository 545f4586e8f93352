/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* An output file that appears whole or not at all: written beside its place under another name, flushed to
 * the disk, renamed. A place that is no regular file (/dev/stdout, a pipe) is written directly; a symbolic
 * link is followed. SIGINT, SIGTERM and SIGHUP remove the unfinished file. */
#pragma once
#include <limits.h>
#include <stdint.h>
#include <stdio.h>

struct mk_out {
    FILE *file; /* write here; errors are collected and reported by commit */
    char path[PATH_MAX];
    char temporary[PATH_MAX]; /* "" when written directly */
};

/* SYSTEM: cannot be created; the sentence names the path and the cause. */
int mk_out_open(struct mk_out *o, const char *path);
/* Can a file be made there? Leaves nothing behind. */
int mk_out_check(const char *path);
/* Is there room for n files of these sizes beside each other? SYSTEM: no (or it cannot be asked); the sentence
 * names the path, what is needed and what is free. Places that are no regular files need none. */
int mk_out_room(const char *const *path, const uint64_t *bytes, int n);
/* Ends the file. On any error (disk full, ...) nothing is left of it. */
int mk_out_commit(struct mk_out *o);
/* Gives it up; also after a failed open or a commit. */
void mk_out_cancel(struct mk_out *o);
