/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#include "json.h"
#include "mk/err.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of the valid UTF-8 sequence at s, or 0: no overlong forms, no surrogates, nothing above U+10FFFF. */
static int utf8_len(const unsigned char *s)
{
    if (s[0] < 0x80)
        return 1;
    const int len = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4)
        return 0;
    for (int i = 1; i < len; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) || (s[0] == 0xf0 && s[1] < 0x90) ||
        (s[0] == 0xf4 && s[1] > 0x8f))
        return 0;
    return len;
}

static void put_string(FILE *f, const char *text)
{
    fputc('"', f);
    for (const unsigned char *s = (const unsigned char *)text; *s;) {
        const int len = utf8_len(s);
        if (!len) {
            fputs("\xef\xbf\xbd", f);
            s++;
            continue;
        }
        if (*s == '"' || *s == '\\')
            fprintf(f, "\\%c", *s);
        else if (*s == '\n')
            fputs("\\n", f);
        else if (*s == '\t')
            fputs("\\t", f);
        else if (*s < 0x20)
            fprintf(f, "\\u%04x", *s);
        else
            fwrite(s, 1, (size_t)len, f);
        s += len;
    }
    fputc('"', f);
}

static void indent(struct mk_json *j)
{
    fputc('\n', j->file);
    for (int i = 0; i < j->depth; i++)
        fputs("  ", j->file);
}

/* Comma, line and name before a value. */
static void lead(struct mk_json *j, const char *name)
{
    if (!j->depth) {
        j->wrong |= name || !j->first[0];
        j->first[0] = false;
        return;
    }
    const int d = j->depth;
    j->wrong |= j->array[d] == (name != NULL);
    if (!j->first[d])
        fputc(',', j->file);
    if (!j->flat[d])
        indent(j);
    else if (!j->first[d])
        fputc(' ', j->file);
    j->first[d] = false;
    if (name) {
        put_string(j->file, name);
        fputs(": ", j->file);
    }
}

static void open_value(struct mk_json *j, const char *name, bool array, bool flat)
{
    lead(j, name);
    if (j->depth + 1 == MK_JSON_DEPTH) {
        j->wrong = true;
        return;
    }
    fputc(array ? '[' : '{', j->file);
    const int d = ++j->depth;
    j->array[d] = array;
    j->flat[d] = flat || j->flat[d - 1];
    j->first[d] = true;
}

void mk_json_begin(struct mk_json *j, FILE *file)
{
    memset(j, 0, sizeof(*j));
    j->file = file;
    j->first[0] = true;
}

int mk_json_open(struct mk_json *j, const char *path)
{
    struct mk_out out;
    const int ret = mk_out_open(&out, path);
    if (ret) {
        memset(j, 0, sizeof(*j));
        return ret;
    }
    mk_json_begin(j, out.file);
    j->out = out;
    return 0;
}

int mk_json_close(struct mk_json *j)
{
    fputc('\n', j->file);
    if (j->wrong || j->depth) {
        mk_json_cancel(j);
        return mk_fail_quiet(MK_ERR_INTERNAL, "JSON values are not nested correctly");
    }
    if (j->out.file)
        return mk_out_commit(&j->out);
    errno = 0;
    if (fflush(j->file) || ferror(j->file))
        return mk_fail_quiet(MK_ERR_SYSTEM, "JSON: %s", strerror(errno ? errno : EIO));
    return 0;
}

void mk_json_cancel(struct mk_json *j)
{
    mk_out_cancel(&j->out);
    j->file = NULL;
}

void mk_json_object(struct mk_json *j, const char *name)
{
    open_value(j, name, false, false);
}

void mk_json_array(struct mk_json *j, const char *name)
{
    open_value(j, name, true, false);
}

void mk_json_object_flat(struct mk_json *j, const char *name)
{
    open_value(j, name, false, true);
}

void mk_json_end(struct mk_json *j)
{
    if (!j->depth) {
        j->wrong = true;
        return;
    }
    const int d = j->depth--;
    if (!j->first[d] && !j->flat[d])
        indent(j);
    fputc(j->array[d] ? ']' : '}', j->file);
}

void mk_json_text(struct mk_json *j, const char *name, const char *value)
{
    lead(j, name);
    if (value)
        put_string(j->file, value);
    else
        fputs("null", j->file);
}

void mk_json_int(struct mk_json *j, const char *name, int64_t value)
{
    lead(j, name);
    fprintf(j->file, "%" PRId64, value);
}

void mk_json_bool(struct mk_json *j, const char *name, bool value)
{
    lead(j, name);
    fputs(value ? "true" : "false", j->file);
}

void mk_json_real(struct mk_json *j, const char *name, double value)
{
    char text[40];
    lead(j, name);
    if (!isfinite(value)) {
        fputs("null", j->file);
        return;
    }
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    fputs(text, j->file);
}
