/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The header of a .npy file: a pure function over bytes that nobody vouches for. tests/fuzz/npy.c feeds it.
 */
#include "npy.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Kept apart from mkernel.h so that the fuzz target needs this file alone. */
enum { INVALID = -2 };

static const uint8_t magic[6] = {0x93, 'N', 'U', 'M', 'P', 'Y'};

struct cursor {
    const uint8_t *base; /* the file */
    size_t pos, end;     /* of the header text, from the beginning of the file */
    char *why;
};

struct dict {
    char descr[24];
    bool fortran;
    int64_t shape[2];
    int dims;
    bool has_descr, has_order, has_shape;
};

static int bad(struct cursor *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static int bad(struct cursor *c, const char *fmt, ...)
{
    char text[MK_NPY_WHY - 40];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    snprintf(c->why, MK_NPY_WHY, "byte %zu: %s", c->pos, text);
    return INVALID;
}

static void skip_blanks(struct cursor *c)
{
    while (c->pos < c->end && memchr(" \t\r\n", c->base[c->pos], 4))
        c->pos++;
}

static bool take(struct cursor *c, char what)
{
    skip_blanks(c);
    if (c->pos == c->end || c->base[c->pos] != what)
        return false;
    c->pos++;
    return true;
}

static bool take_word(struct cursor *c, const char *word)
{
    const size_t len = strlen(word);
    skip_blanks(c);
    if (c->end - c->pos < len || memcmp(c->base + c->pos, word, len))
        return false;
    c->pos += len;
    return true;
}

/* A short text in single or double quotes. */
static int take_string(struct cursor *c, const char *what, char *out, size_t room)
{
    skip_blanks(c);
    if (c->pos == c->end)
        return bad(c, "the header ends where %s is expected", what);
    const uint8_t quote = c->base[c->pos];
    if (quote != '\'' && quote != '"')
        return bad(c, "%s is expected in quotes", what);
    const size_t start = c->pos + 1;
    for (size_t i = start; i < c->end; i++) {
        if (c->base[i] == quote) {
            memcpy(out, c->base + start, i - start);
            out[i - start] = 0;
            c->pos = i + 1;
            return 0;
        }
        if (c->base[i] < 0x20 || c->base[i] > 0x7e || c->base[i] == '\\' || i - start + 1 == room)
            return bad(c, "%s is not a short plain text", what);
    }
    return bad(c, "%s has no closing quote", what);
}

static int take_dim(struct cursor *c, int64_t *out)
{
    int64_t n = 0;
    skip_blanks(c);
    if (c->pos < c->end && c->base[c->pos] == '-')
        return bad(c, "a negative dimension");
    const size_t start = c->pos;
    while (c->pos < c->end && c->base[c->pos] >= '0' && c->base[c->pos] <= '9') {
        n = n * 10 + (c->base[c->pos++] - '0');
        if (n > MK_NPY_DIM_MAX)
            return bad(c, "a dimension above 2^40");
    }
    if (c->pos == start)
        return bad(c, "a dimension is expected, a whole number");
    if (c->pos < c->end && c->base[c->pos] == 'L') /* written by Python 2 */
        c->pos++;
    *out = n;
    return 0;
}

static int take_shape(struct cursor *c, struct dict *d)
{
    if (!take(c, '('))
        return bad(c, "shape is not a tuple");
    d->dims = 0;
    while (!take(c, ')')) {
        int64_t n = 0;
        const int ret = take_dim(c, &n);
        if (ret)
            return ret;
        if (d->dims < 2)
            d->shape[d->dims] = n;
        d->dims++;
        if (take(c, ','))
            continue;
        if (d->dims == 1 || !take(c, ')'))
            return bad(c, "shape is not a tuple of whole numbers");
        break;
    }
    return 0;
}

static int take_pair(struct cursor *c, struct dict *d)
{
    char key[24];
    const size_t at = c->pos;
    int ret = take_string(c, "a key", key, sizeof(key));
    if (ret)
        return ret;
    bool *seen = !strcmp(key, "descr")           ? &d->has_descr
                 : !strcmp(key, "fortran_order") ? &d->has_order
                 : !strcmp(key, "shape")         ? &d->has_shape
                                                 : NULL;
    if (!seen || *seen) {
        c->pos = at;
        return bad(c, "%s key '%s'", seen ? "a second" : "an unknown", key);
    }
    *seen = true;
    if (!take(c, ':'))
        return bad(c, "':' is expected after '%s'", key);
    if (seen == &d->has_shape)
        return take_shape(c, d);
    if (seen == &d->has_order) {
        d->fortran = take_word(c, "True");
        return d->fortran || take_word(c, "False") ? 0 : bad(c, "fortran_order is neither True nor False");
    }
    skip_blanks(c);
    if (c->pos < c->end && c->base[c->pos] == '[')
        return bad(c, "elements are records; '<f4', '<f2', '<V2' or '|V2' (bf16) are read");
    return take_string(c, "descr", d->descr, sizeof(d->descr));
}

static int take_dict(struct cursor *c, struct dict *d)
{
    if (!take(c, '{'))
        return bad(c, "the header does not begin with '{'");
    while (!take(c, '}')) {
        const int ret = take_pair(c, d);
        if (ret)
            return ret;
        if (take(c, ','))
            continue;
        if (!take(c, '}'))
            return bad(c, c->pos == c->end ? "the header has no closing '}'" : "',' or '}' is expected");
        break;
    }
    skip_blanks(c);
    if (c->pos != c->end)
        return bad(c, "something stands after the closing '}'");
    const char *missing = !d->has_descr   ? "descr"
                          : !d->has_order ? "fortran_order"
                          : !d->has_shape ? "shape"
                                          : NULL;
    return missing ? bad(c, "the header has no '%s'", missing) : 0;
}

static int check(struct cursor *c, const struct dict *d, uint64_t file_size, struct mk_npy_head *out)
{
    struct mk_npy_head h;
    uint64_t count, bytes;
    if (!strcmp(d->descr, "<f4"))
        h.type = MK_NPY_F4;
    else if (!strcmp(d->descr, "<f2"))
        h.type = MK_NPY_F2;
    else if (!strcmp(d->descr, "<V2") || !strcmp(d->descr, "|V2"))
        h.type = MK_NPY_BF16;
    else
        return bad(c, "elements of type '%s'; '<f4', '<f2', '<V2' or '|V2' (bf16) are read", d->descr);
    if (d->dims != 2)
        return bad(c, "an array of %d dimension%s; a matrix has 2", d->dims, d->dims == 1 ? "" : "s");
    h.fortran = d->fortran;
    h.rows = d->shape[0];
    h.cols = d->shape[1];
    h.data = c->end;
    const uint64_t size = mk_npy_type_size(h.type);
    if (__builtin_mul_overflow((uint64_t)h.rows, (uint64_t)h.cols, &count) ||
        __builtin_mul_overflow(count, size, &bytes) || bytes > INT64_MAX)
        return bad(c, "%lld x %lld elements are more than a file can hold", (long long)h.rows,
                   (long long)h.cols);
    const uint64_t rest = file_size - h.data;
    if (bytes != rest)
        return bad(c, "%lld x %lld elements of %s are %llu bytes, but %llu follow%s", (long long)h.rows,
                   (long long)h.cols, mk_npy_type_name(h.type), (unsigned long long)bytes,
                   (unsigned long long)rest, bytes > rest ? " (truncated?)" : "");
    *out = h;
    return 0;
}

int mk_npy_parse(const uint8_t *bytes, size_t len, uint64_t file_size, struct mk_npy_head *out,
                 char why[MK_NPY_WHY])
{
    struct cursor c = {.base = bytes, .why = why};
    struct dict d;
    memset(&d, 0, sizeof(d));
    if (len < 10 || memcmp(bytes, magic, sizeof(magic)))
        return bad(&c, len < 10 ? "too short for a .npy file" : "not a .npy file");
    c.pos = 6;
    if (bytes[6] < 1 || bytes[6] > 3)
        return bad(&c, "format version %d.%d; 1 to 3 are read", bytes[6], bytes[7]);
    c.pos = 8;
    const size_t start = bytes[6] == 1 ? 10 : 12;
    if (len < start)
        return bad(&c, "too short for a .npy file");
    size_t n = bytes[8] | (size_t)bytes[9] << 8;
    if (start == 12)
        n |= (size_t)bytes[10] << 16 | (size_t)bytes[11] << 24;
    if (n > file_size - start)
        return bad(&c, "a header of %zu bytes, but %llu follow (truncated?)", n,
                   (unsigned long long)(file_size - start));
    if (n > len - start)
        return bad(&c, "a header of %zu bytes is too long for a matrix", n);
    c.pos = start;
    c.end = start + n;
    const int ret = take_dict(&c, &d);
    return ret ? ret : check(&c, &d, file_size, out);
}

size_t mk_npy_format(enum mk_npy_type type, int64_t rows, int64_t cols, uint8_t out[MK_NPY_FORMAT])
{
    char text[MK_NPY_FORMAT];
    static const char *const descr[] = {"<f4", "<f2", "<V2"};
    const int n =
        snprintf(text, sizeof(text), "{'descr': '%s', 'fortran_order': False, 'shape': (%lld, %lld), }",
                 descr[type], (long long)rows, (long long)cols);
    memset(out, ' ', MK_NPY_FORMAT);
    memcpy(out, magic, sizeof(magic));
    out[6] = 1;
    out[7] = 0;
    out[8] = MK_NPY_FORMAT - 10;
    out[9] = 0;
    memcpy(out + 10, text, (size_t)n); /* at most 99 characters */
    out[MK_NPY_FORMAT - 1] = '\n';
    return MK_NPY_FORMAT;
}

const char *mk_npy_type_name(enum mk_npy_type type)
{
    static const char *const names[] = {"fp32", "fp16", "bf16"};
    return names[type];
}

size_t mk_npy_type_size(enum mk_npy_type type)
{
    return type == MK_NPY_F4 ? 4 : 2;
}
