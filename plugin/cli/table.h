/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The one table writer: columns as wide as their widest cell, numbers right-aligned, no trailing blanks.
 *
 *   struct mk_table *t = mk_table_new("what|>median|>min|>max");    '>': align right
 *   mk_table_row(t, "fused|%.3f|%.3f|%.3f", a, b, c);               '|' in a value ends a cell
 *   ret = mk_table_print(t, stdout);
 *   mk_table_free(t);
 *
 * Running out of memory is remembered and reported by print. */
#pragma once
#include <stdio.h>

struct mk_table;
struct mk_table *mk_table_new(const char *columns);
void mk_table_row(struct mk_table *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* NOMEM, or SYSTEM when the stream has failed. */
int mk_table_print(const struct mk_table *t, FILE *out);
void mk_table_free(struct mk_table *t);

/* A time in the unit that suits it: "12.3 us", "4.56 ms", "1.23 s". Returns text. */
char *mk_table_time(double seconds, char text[24]);
