/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* NumPy's .npy files holding one matrix.
 *
 * Read: '<f4', '<f2' (widened to fp32), bf16 as '<V2' or '|V2', C or Fortran order, format versions 1 to 3.
 * Written: version 1, C order, '<f4' or '<V2'. Everything else is refused with one sentence that names the
 * file, the place in it and what was expected.
 *
 *   bytes  0-5 "\x93NUMPY" · 6 major · 7 minor · 8-9 (version 1) or 8-11 (2, 3) length of the header, little
 *   endian · header: a Python dict with the keys descr, fortran_order, shape, padded with blanks, "\n" ·
 * elements */
#pragma once
#include "out.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum mk_npy_type { MK_NPY_F4 = 0, MK_NPY_F2 = 1, MK_NPY_BF16 = 2 };
const char *mk_npy_type_name(enum mk_npy_type type); /* "fp32", "fp16", "bf16" */
size_t mk_npy_type_size(enum mk_npy_type type);

struct mk_npy_head {
    enum mk_npy_type type;
    bool fortran;
    int64_t rows, cols; /* 0 to MK_NPY_DIM_MAX each */
    uint64_t data;      /* place of the first element in the file */
};
#define MK_NPY_DIM_MAX ((int64_t)1 << 40)
enum { MK_NPY_HEAD_MAX = 1 << 16, MK_NPY_WHY = 200, MK_NPY_FORMAT = 128 };

/* Pure. bytes: the first `len` bytes of a file of `file_size` bytes, len = min(file_size, MK_NPY_HEAD_MAX).
 * 0, or INVALID and a sentence in why. A success promises data + rows * cols * size == file_size. */
int mk_npy_parse(const uint8_t *bytes, size_t len, uint64_t file_size, struct mk_npy_head *out,
                 char why[MK_NPY_WHY]);
/* Pure. The bytes that stand before the elements; returns their number, a multiple of 64. */
size_t mk_npy_format(enum mk_npy_type type, int64_t rows, int64_t cols, uint8_t out[MK_NPY_FORMAT]);

struct mk_npy {
    int fd;
    const char *path; /* of the caller */
    struct mk_npy_head head;
};
/* INVALID: not such a file (the user's mistake); SYSTEM: cannot be opened or read. */
int mk_npy_open(struct mk_npy *f, const char *path);
/* The block of nr x nc elements from row r0, column c0, as fp32, row after row. */
int mk_npy_read(const struct mk_npy *f, int64_t r0, int64_t nr, int64_t c0, int64_t nc, float *out);
void mk_npy_close(struct mk_npy *f);

/* Writing: create, append rows * cols elements in one or more calls, mk_out_commit (or mk_out_cancel).
 * data: float for MK_NPY_F4, uint16_t for MK_NPY_BF16. Errors of the disk show at commit. */
int mk_npy_create(struct mk_out *o, const char *path, enum mk_npy_type type, int64_t rows, int64_t cols);
void mk_npy_append(struct mk_out *o, enum mk_npy_type type, const void *data, size_t elements);

/* bf16: the upper half of fp32. Rounded to nearest, ties to even; NaN stays NaN. */
static inline uint16_t mk_bf16_from_float(float x)
{
    union {
        float f;
        uint32_t u;
    } v = {x};
    if ((v.u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(v.u >> 16 | 0x40);
    return (uint16_t)((v.u + 0x7fffu + (v.u >> 16 & 1)) >> 16);
}
static inline float mk_bf16_to_float(uint16_t h)
{
    union {
        uint32_t u;
        float f;
    } v = {(uint32_t)h << 16};
    return v.f;
}
float mk_fp16_to_float(uint16_t h);
