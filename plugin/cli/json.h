/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The one JSON writer. Values go out in the order of the calls; the writer puts commas, indentation and
 * escapes.
 *
 *   struct mk_json j;
 *   ret = mk_json_open(&j, path);          creates the file (out.h)
 *   mk_json_object(&j, NULL);              name NULL: inside an array, and the outermost value
 *   mk_json_text(&j, "dtype", "bf16");
 *   mk_json_end(&j);
 *   ret = mk_json_close(&j);               the file is there now, or nothing is
 *
 * Wrong nesting (a name inside an array, an end too many) is remembered and makes close fail with INTERNAL.
 */
#pragma once
#include "out.h"
#include <stdbool.h>
#include <stdint.h>

enum { MK_JSON_DEPTH = 16 };

struct mk_json {
    struct mk_out out;
    FILE *file;
    int depth;
    bool array[MK_JSON_DEPTH]; /* kind of the open value at each depth */
    bool flat[MK_JSON_DEPTH];  /* on one line */
    bool first[MK_JSON_DEPTH];
    bool wrong;
};

int mk_json_open(struct mk_json *j, const char *path);
/* Into a stream of the caller; close then only checks. */
void mk_json_begin(struct mk_json *j, FILE *file);
int mk_json_close(struct mk_json *j);
void mk_json_cancel(struct mk_json *j);

void mk_json_object(struct mk_json *j, const char *name);
void mk_json_array(struct mk_json *j, const char *name);
/* On one line: for the many small objects of a trace. */
void mk_json_object_flat(struct mk_json *j, const char *name);
void mk_json_end(struct mk_json *j);
void mk_json_text(struct mk_json *j, const char *name,
                  const char *value); /* NULL: null; bad UTF-8 becomes U+FFFD */
void mk_json_int(struct mk_json *j, const char *name, int64_t value);
void mk_json_bool(struct mk_json *j, const char *name, bool value);
/* The shortest text that reads back as the same double; NaN and infinities, which JSON lacks, as null. */
void mk_json_real(struct mk_json *j, const char *name, double value);
