/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#include "table.h"
#include "mk/err.h"
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_COLUMNS = 24 };

struct mk_table {
    int columns;
    bool right[MAX_COLUMNS];
    char **rows; /* text with '|' between the cells; row 0 is the heading */
    size_t nrows, room;
    bool failed;
};

static void add(struct mk_table *t, char *row)
{
    if (row && t->nrows == t->room) {
        const size_t room = t->room ? 2 * t->room : 16;
        char **rows = realloc(t->rows, room * sizeof(*rows));
        if (rows) {
            t->rows = rows;
            t->room = room;
        }
    }
    if (!row || t->nrows == t->room) {
        free(row);
        t->failed = true;
        return;
    }
    t->rows[t->nrows++] = row;
}

struct mk_table *mk_table_new(const char *columns)
{
    struct mk_table *t = calloc(1, sizeof(*t));
    char *head = t ? malloc(strlen(columns) + 1) : NULL;
    if (!head) {
        free(t);
        return NULL;
    }
    char *to = head;
    t->columns = 1;
    for (const char *p = columns; *p; p++) {
        const bool start = p == columns || p[-1] == '|';
        if (*p == '|' && t->columns < MAX_COLUMNS)
            t->columns++;
        if (start && *p == '>')
            t->right[t->columns - 1] = true;
        else
            *to++ = *p;
    }
    *to = 0;
    add(t, head);
    return t;
}

void mk_table_row(struct mk_table *t, const char *fmt, ...)
{
    char *row = NULL;
    if (!t)
        return;
    va_list ap;
    va_start(ap, fmt);
    if (vasprintf(&row, fmt, ap) < 0)
        row = NULL;
    va_end(ap);
    add(t, row);
}

/* Columns on the screen: UTF-8 continuation bytes take none. */
static int width(const char *s, size_t len)
{
    int n = 0;
    for (size_t i = 0; i < len; i++)
        n += ((unsigned char)s[i] & 0xc0) != 0x80;
    return n;
}

static size_t cell_len(const char *s, bool last)
{
    return last ? strlen(s) : strcspn(s, "|");
}

static void print_row(const struct mk_table *t, const char *s, const int *wide, FILE *out)
{
    int owed = 0; /* blanks written only before a further cell */
    for (int c = 0; c < t->columns; c++) {
        const size_t len = cell_len(s, c + 1 == t->columns);
        const int pad = wide[c] - width(s, len);
        if (len) {
            fprintf(out, "%*s%.*s", owed + (t->right[c] ? pad : 0), "", (int)len, s);
            owed = t->right[c] ? 0 : pad;
        } else {
            owed += pad;
        }
        owed += 2;
        s += len;
        s += *s == '|';
    }
    fputc('\n', out);
}

int mk_table_print(const struct mk_table *t, FILE *out)
{
    int wide[MAX_COLUMNS] = {0};
    if (!t || t->failed)
        return mk_fail_quiet(MK_ERR_NOMEM, "out of memory for a table");
    for (size_t r = 0; r < t->nrows; r++) {
        const char *s = t->rows[r];
        for (int c = 0; c < t->columns; c++) {
            const size_t len = cell_len(s, c + 1 == t->columns);
            const int w = width(s, len);
            wide[c] = w > wide[c] ? w : wide[c];
            s += len;
            s += *s == '|';
        }
    }
    for (size_t r = 0; r < t->nrows; r++)
        print_row(t, t->rows[r], wide, out);
    return ferror(out) ? mk_fail_quiet(MK_ERR_SYSTEM, "a table could not be written") : 0;
}

void mk_table_free(struct mk_table *t)
{
    if (!t)
        return;
    for (size_t r = 0; r < t->nrows; r++)
        free(t->rows[r]);
    free(t->rows);
    free(t);
}

char *mk_table_time(double seconds, char text[24])
{
    if (!isfinite(seconds))
        snprintf(text, 24, "-");
    else if (seconds < 0.9995e-3)
        snprintf(text, 24, "%.1f us", seconds * 1e6);
    else if (seconds < 0.9995)
        snprintf(text, 24, "%.3g ms", seconds * 1e3);
    else
        snprintf(text, 24, "%.3g s", seconds);
    return text;
}
