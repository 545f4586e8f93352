/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#include "json_read.h"
#include "mk/err.h"
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH = 64, BLOCK = 512 };

struct block {
    struct block *next;
    int used;
    struct mk_json_value v[BLOCK];
};
struct mk_json_doc {
    char *text;
    struct block *blocks;
    struct mk_json_value *root;
};

struct reader {
    struct mk_json_doc *d;
    char *at, *end;
    const char *why;
    int depth;
    bool nomem;
};

static struct mk_json_value *new_value(struct reader *r, enum mk_json_kind kind)
{
    struct block *b = r->d->blocks;
    if (!b || b->used == BLOCK) {
        b = malloc(sizeof(*b));
        if (!b) {
            r->nomem = true;
            return NULL;
        }
        b->next = r->d->blocks;
        b->used = 0;
        r->d->blocks = b;
    }
    struct mk_json_value *v = &b->v[b->used++];
    memset(v, 0, sizeof(*v));
    v->kind = kind;
    return v;
}

static void *bad(struct reader *r, const char *why)
{
    if (!r->why)
        r->why = why;
    return NULL;
}

static void blanks(struct reader *r)
{
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\n' || *r->at == '\t' || *r->at == '\r'))
        r->at++;
}

/* Four hexadecimal digits behind \u; -1. */
static long hex4(struct reader *r)
{
    long n = 0;
    if (r->end - r->at < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        const char c = *r->at++;
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;
        if (digit < 0)
            return -1;
        n = n * 16 + digit;
    }
    return n;
}

/* A code point as UTF-8; a lone surrogate becomes U+FFFD. Never longer than its escape. */
static char *utf8(char *to, long c)
{
    if (c < 0x80) {
        *to++ = (char)c;
    } else if (c < 0x800) {
        *to++ = (char)(0xc0 | c >> 6);
        *to++ = (char)(0x80 | (c & 0x3f));
    } else if (c < 0x10000) {
        *to++ = (char)(0xe0 | c >> 12);
        *to++ = (char)(0x80 | (c >> 6 & 0x3f));
        *to++ = (char)(0x80 | (c & 0x3f));
    } else {
        *to++ = (char)(0xf0 | c >> 18);
        *to++ = (char)(0x80 | (c >> 12 & 0x3f));
        *to++ = (char)(0x80 | (c >> 6 & 0x3f));
        *to++ = (char)(0x80 | (c & 0x3f));
    }
    return to;
}

static char *escaped_code(struct reader *r, char *to)
{
    long c = hex4(r);
    if (c <= 0) /* a NUL would end the text */
        return bad(r, "a wrong \\u");
    if (c >= 0xd800 && c < 0xdc00 && r->end - r->at >= 6 && r->at[0] == '\\' && r->at[1] == 'u') {
        char *const back = r->at;
        r->at += 2;
        const long low = hex4(r);
        if (low >= 0xdc00 && low < 0xe000)
            return utf8(to, 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00));
        r->at = back;
    }
    return utf8(to, c >= 0xd800 && c < 0xe000 ? 0xfffd : c);
}

/* Behind the opening quote; resolved in place. */
static char *text(struct reader *r)
{
    static const char from[] = "\"\\/bfnrt", as[] = "\"\\/\b\f\n\r\t";
    char *const begin = r->at, *to = begin;
    while (r->at < r->end && *r->at != '"') {
        const char c = *r->at++;
        if ((unsigned char)c < 32)
            return bad(r, "a control character in a text");
        if (c != '\\') {
            *to++ = c;
            continue;
        }
        if (r->at == r->end)
            break;
        const char *p = strchr(from, *r->at);
        if (*r->at == 'u') {
            r->at++;
            if (!(to = escaped_code(r, to)))
                return NULL;
        } else if (p && *r->at) {
            *to++ = as[p - from];
            r->at++;
        } else {
            return bad(r, "a wrong escape");
        }
    }
    if (r->at == r->end)
        return bad(r, "it ends within a text");
    r->at++;
    *to = 0;
    return begin;
}

static bool digits(struct reader *r)
{
    const char *begin = r->at;
    while (r->at < r->end && *r->at >= '0' && *r->at <= '9')
        r->at++;
    return r->at > begin;
}

static struct mk_json_value *number(struct reader *r)
{
    char *const begin = r->at;
    if (*r->at == '-')
        r->at++;
    const char *first = r->at;
    bool ok = digits(r) && (*first != '0' || r->at == first + 1);
    if (ok && r->at < r->end && *r->at == '.') {
        r->at++;
        ok = digits(r);
    }
    if (ok && r->at < r->end && (*r->at == 'e' || *r->at == 'E')) {
        r->at++;
        if (r->at < r->end && (*r->at == '+' || *r->at == '-'))
            r->at++;
        ok = digits(r);
    }
    if (!ok)
        return bad(r, "a wrong number");
    struct mk_json_value *v = new_value(r, MK_JSON_NUMBER);
    if (v) {
        v->text = begin; /* what follows is no digit, and strtod stops there as u64 and i32 do */
        v->number = strtod(begin, NULL);
    }
    return v;
}

static struct mk_json_value *word(struct reader *r, const char *w, enum mk_json_kind kind, double n)
{
    const size_t len = strlen(w);
    if ((size_t)(r->end - r->at) < len || memcmp(r->at, w, len))
        return bad(r, "no value");
    r->at += len;
    struct mk_json_value *v = new_value(r, kind);
    if (v)
        v->number = n;
    return v;
}

static struct mk_json_value *value(struct reader *r);

static struct mk_json_value *member(struct reader *r, bool object)
{
    char *name = NULL;
    blanks(r);
    if (object) {
        if (r->at == r->end || *r->at != '"')
            return bad(r, r->at == r->end ? "it ends within an object" : "no name of a member");
        r->at++;
        name = text(r);
        if (!name)
            return NULL;
        blanks(r);
        if (r->at == r->end || *r->at != ':')
            return bad(r, "no colon behind a name");
        r->at++;
    }
    struct mk_json_value *v = value(r);
    if (v)
        v->name = name;
    return v;
}

/* Behind the opening bracket. */
static struct mk_json_value *members(struct reader *r, bool object)
{
    const char close = object ? '}' : ']';
    struct mk_json_value *v = new_value(r, object ? MK_JSON_OBJECT : MK_JSON_ARRAY), **link;
    if (!v)
        return NULL;
    link = &v->first;
    blanks(r);
    if (r->at < r->end && *r->at == close) {
        r->at++;
        return v;
    }
    for (;;) {
        struct mk_json_value *m = member(r, object);
        if (!m)
            return NULL;
        *link = m;
        link = &m->next;
        v->count++;
        blanks(r);
        if (r->at == r->end)
            return bad(r, object ? "it ends within an object" : "it ends within an array");
        if (*r->at != ',' && *r->at != close)
            return bad(r, "neither a comma nor an end");
        if (*r->at++ == close)
            return v;
    }
}

static struct mk_json_value *value(struct reader *r)
{
    blanks(r);
    if (r->at == r->end)
        return bad(r, "it ends before a value");
    const char c = *r->at;
    if (c == '{' || c == '[') {
        if (++r->depth > DEPTH)
            return bad(r, "too deep");
        r->at++;
        struct mk_json_value *v = members(r, c == '{');
        r->depth--;
        return v;
    }
    if (c == '"') {
        r->at++;
        char *s = text(r);
        struct mk_json_value *v = s ? new_value(r, MK_JSON_TEXT) : NULL;
        if (v)
            v->text = s;
        return v;
    }
    if (c == 't')
        return word(r, "true", MK_JSON_BOOL, 1);
    if (c == 'f')
        return word(r, "false", MK_JSON_BOOL, 0);
    if (c == 'n')
        return word(r, "null", MK_JSON_NULL, 0);
    return number(r);
}

/* The text was changed in place before `at`: lines are counted in the caller's. */
static int failed(const struct reader *r, const char *original, size_t at)
{
    int line = 1;
    size_t column = 1;
    if (r->nomem)
        return mk_fail_quiet(MK_ERR_NOMEM, "no memory to read JSON");
    for (size_t i = 0; i < at; i++, column++)
        if (original[i] == '\n') {
            line++;
            column = 0;
        }
    return mk_fail_quiet(MK_ERR_INVALID, "no JSON at line %d, column %zu: %s", line, column, r->why);
}

int mk_json_parse(const char *original, size_t bytes, struct mk_json_doc **out)
{
    struct reader r;
    memset(&r, 0, sizeof(r));
    r.d = calloc(1, sizeof(*r.d));
    char *copy = r.d ? malloc(bytes + 1) : NULL;
    if (!copy) {
        free(r.d);
        return mk_fail_quiet(MK_ERR_NOMEM, "no memory to read JSON");
    }
    memcpy(copy, original, bytes);
    copy[bytes] = 0;
    r.d->text = r.at = copy;
    r.end = copy + bytes;
    r.d->root = value(&r);
    if (r.d->root) {
        blanks(&r);
        if (r.at < r.end)
            r.d->root = bad(&r, "something behind the end");
    }
    if (!r.d->root) {
        const int ret = failed(&r, original, (size_t)(r.at - copy));
        mk_json_free(r.d);
        return ret;
    }
    *out = r.d;
    return 0;
}

const struct mk_json_value *mk_json_root(const struct mk_json_doc *d)
{
    return d->root;
}

void mk_json_free(struct mk_json_doc *d)
{
    if (!d)
        return;
    while (d->blocks) {
        struct block *next = d->blocks->next;
        free(d->blocks);
        d->blocks = next;
    }
    free(d->text);
    free(d);
}

const struct mk_json_value *mk_json_get(const struct mk_json_value *object, const char *name)
{
    if (!object || object->kind != MK_JSON_OBJECT)
        return NULL;
    for (const struct mk_json_value *v = object->first; v; v = v->next)
        if (!strcmp(v->name, name))
            return v;
    return NULL;
}

bool mk_json_u64(const struct mk_json_value *v, uint64_t *out)
{
    char *end;
    if (!v || v->kind != MK_JSON_NUMBER || *v->text == '-')
        return false;
    errno = 0;
    const unsigned long long n = strtoull(v->text, &end, 10);
    if (errno || *end == '.' || *end == 'e' || *end == 'E')
        return false;
    *out = n;
    return true;
}

bool mk_json_i32(const struct mk_json_value *v, int *out)
{
    char *end;
    if (!v || v->kind != MK_JSON_NUMBER)
        return false;
    errno = 0;
    const long n = strtol(v->text, &end, 10);
    if (errno || *end == '.' || *end == 'e' || *end == 'E' || n < INT_MIN || n > INT_MAX)
        return false;
    *out = (int)n;
    return true;
}

const char *mk_json_string(const struct mk_json_value *v)
{
    return v && v->kind == MK_JSON_TEXT ? v->text : NULL;
}
