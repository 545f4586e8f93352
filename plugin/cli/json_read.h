/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The one JSON reader: a whole text becomes a tree. UTF-8 is taken as it is; escapes are resolved, \u becomes UTF-8. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum mk_json_kind { MK_JSON_NULL, MK_JSON_BOOL, MK_JSON_NUMBER, MK_JSON_TEXT, MK_JSON_ARRAY, MK_JSON_OBJECT };

struct mk_json_value {
    enum mk_json_kind kind;
    const char *name; /* of a member of an object */
    const char *text; /* TEXT: the text; NUMBER: its digits */
    double number;    /* NUMBER; BOOL: 0 or 1 */
    int count;        /* ARRAY, OBJECT: members */
    struct mk_json_value *first, *next;
};

struct mk_json_doc;
/* text is copied. INVALID: no JSON; the sentence says at which line and column, and why. NOMEM. */
int mk_json_parse(const char *text, size_t bytes, struct mk_json_doc **out);
const struct mk_json_value *mk_json_root(const struct mk_json_doc *d);
void mk_json_free(struct mk_json_doc *d); /* NULL is allowed */

/* NULL: no object, or no member of that name. */
const struct mk_json_value *mk_json_get(const struct mk_json_value *object, const char *name);
/* A whole number that fits; false for anything else, NULL too. */
bool mk_json_u64(const struct mk_json_value *v, uint64_t *out);
bool mk_json_i32(const struct mk_json_value *v, int *out);
/* NULL: no text. */
const char *mk_json_string(const struct mk_json_value *v);
