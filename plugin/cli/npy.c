/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Reading and writing .npy files. Files are read, never mapped: one that shrinks meanwhile gives an error,
 * not a signal. */
#include "npy.h"
#include "mk/err.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BUFFER = 1 << 20 };

/* 0, or errno; -1 when the file ends too early. */
static int read_at(int fd, void *buf, size_t len, uint64_t at)
{
    while (len) {
        const ssize_t n = pread(fd, buf, len, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n ? errno : -1;
        buf = (char *)buf + n;
        at += (uint64_t)n;
        len -= (size_t)n;
    }
    return 0;
}

static int read_failed(const char *path, int err)
{
    if (err < 0)
        return mk_fail_quiet(MK_ERR_INVALID, "%s: became shorter while it was read", path);
    return mk_fail_quiet(MK_ERR_SYSTEM, "%s: %s", path, strerror(err));
}

static int read_head(struct mk_npy *f, uint64_t file_size)
{
    char why[MK_NPY_WHY];
    const size_t len = file_size < MK_NPY_HEAD_MAX ? (size_t)file_size : MK_NPY_HEAD_MAX;
    uint8_t *bytes = malloc(len + 1);
    if (!bytes)
        return mk_fail_quiet(MK_ERR_NOMEM, "%s: out of memory", f->path);
    const int err = read_at(f->fd, bytes, len, 0);
    int ret = err ? read_failed(f->path, err) : 0;
    if (!ret && mk_npy_parse(bytes, len, file_size, &f->head, why))
        ret = mk_fail_quiet(MK_ERR_INVALID, "%s: %s", f->path, why);
    free(bytes);
    return ret;
}

int mk_npy_open(struct mk_npy *f, const char *path)
{
    struct stat st;
    memset(f, 0, sizeof(*f));
    f->path = path;
    f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* does not wait for the writer of a pipe */
    if (f->fd < 0)
        return mk_fail_quiet(MK_ERR_SYSTEM, "%s: %s", path, strerror(errno));
    int ret;
    if (fstat(f->fd, &st))
        ret = mk_fail_quiet(MK_ERR_SYSTEM, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        ret = mk_fail_quiet(MK_ERR_INVALID, "%s: is not a regular file", path);
    else
        ret = read_head(f, (uint64_t)st.st_size);
    if (ret)
        mk_npy_close(f);
    return ret;
}

void mk_npy_close(struct mk_npy *f)
{
    if (f->fd >= 0)
        close(f->fd);
    f->fd = -1;
}

float mk_fp16_to_float(uint16_t h)
{
    union {
        uint32_t u;
        float f;
    } v;
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = h >> 10 & 31, man = h & 0x3ff;
    if (exp == 0) { /* zero and subnormal: man * 2^-24 is exact */
        v.f = (float)man * 0x1p-24f;
        v.u |= sign;
    } else if (exp == 31) {
        v.u = sign | 0x7f800000u | man << 13;
    } else {
        v.u = sign | (exp + 112) << 23 | man << 13;
    }
    return v.f;
}

/* n elements to fp32, `stride` floats apart. */
static void widen(enum mk_npy_type type, const void *from, int64_t n, float *to, int64_t stride)
{
    const uint16_t *half = from;
    if (type == MK_NPY_F4 && stride == 1)
        memcpy(to, from, (size_t)n * 4);
    else if (type == MK_NPY_F4)
        for (int64_t i = 0; i < n; i++)
            to[i * stride] = ((const float *)from)[i];
    else if (type == MK_NPY_BF16)
        for (int64_t i = 0; i < n; i++)
            to[i * stride] = mk_bf16_to_float(half[i]);
    else
        for (int64_t i = 0; i < n; i++)
            to[i * stride] = mk_fp16_to_float(half[i]);
}

/* A block in terms of the file: lines of `len` elements stand one after the other. */
struct block {
    int64_t len;            /* of a line of the file */
    int64_t l0, nl;         /* lines wanted */
    int64_t p0, np;         /* positions wanted in each */
    int64_t step_l, step_p; /* in the output */
};

/* Reads `lines` lines from l0 + l on, gaps included, or a piece of one line; buffer: BUFFER bytes. */
static int read_lines(const struct mk_npy *f, const struct block *b, int64_t l, int64_t lines, int64_t p,
                      int64_t np, uint8_t *buffer, float *out)
{
    const int64_t size = (int64_t)mk_npy_type_size(f->head.type);
    const int64_t first = (b->l0 + l) * b->len + b->p0 + p;
    const int64_t span = (lines - 1) * b->len + np;
    const int err = read_at(f->fd, buffer, (size_t)(span * size), f->head.data + (uint64_t)(first * size));
    if (err)
        return read_failed(f->path, err);
    for (int64_t i = 0; i < lines; i++)
        widen(f->head.type, buffer + i * b->len * size, np, out + (l + i) * b->step_l + p * b->step_p,
              b->step_p);
    return 0;
}

static int read_block(const struct mk_npy *f, const struct block *b, uint8_t *buffer, float *out)
{
    const int64_t room = BUFFER / (int64_t)mk_npy_type_size(f->head.type);
    int ret = 0;
    /* Many lines in one go as long as not more than three quarters of it are gaps. */
    const int64_t together = b->len <= 4 * b->np && b->len <= room ? room / b->len : 1;
    for (int64_t l = 0; l < b->nl && !ret; l += together) {
        const int64_t lines = b->nl - l < together ? b->nl - l : together;
        if (lines > 1 || b->np <= room)
            ret = read_lines(f, b, l, lines, 0, b->np, buffer, out);
        else
            for (int64_t p = 0; p < b->np && !ret; p += room)
                ret = read_lines(f, b, l, 1, p, b->np - p < room ? b->np - p : room, buffer, out);
    }
    return ret;
}

int mk_npy_read(const struct mk_npy *f, int64_t r0, int64_t nr, int64_t c0, int64_t nc, float *out)
{
    const struct mk_npy_head *h = &f->head;
    if (r0 < 0 || nr < 0 || c0 < 0 || nc < 0 || r0 > h->rows - nr || c0 > h->cols - nc)
        return mk_fail_quiet(MK_ERR_INTERNAL, "%s: a block outside the matrix is asked for", f->path);
    if (!nr || !nc)
        return 0;
    const struct block by_row = {h->cols, r0, nr, c0, nc, nc, 1};
    const struct block by_column = {h->rows, c0, nc, r0, nr, 1, nc};
    uint8_t *buffer = malloc(BUFFER);
    if (!buffer)
        return mk_fail_quiet(MK_ERR_NOMEM, "%s: out of memory", f->path);
    const int ret = read_block(f, h->fortran ? &by_column : &by_row, buffer, out);
    free(buffer);
    return ret;
}

int mk_npy_create(struct mk_out *o, const char *path, enum mk_npy_type type, int64_t rows, int64_t cols)
{
    uint8_t head[MK_NPY_FORMAT];
    const int ret = mk_out_open(o, path);
    if (ret)
        return ret;
    fwrite(head, 1, mk_npy_format(type, rows, cols, head), o->file);
    return 0;
}

void mk_npy_append(struct mk_out *o, enum mk_npy_type type, const void *data, size_t elements)
{
    fwrite(data, mk_npy_type_size(type), elements, o->file);
}
