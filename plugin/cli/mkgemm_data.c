/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Inputs and output of mkgemm. */
#include "mk/err.h"
#include "mkgemm.h"
#include "rng.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

const char *mkgemm_dtype_name(mk_dtype_t t)
{
    return t == MK_FLOAT32 ? "fp32" : t == MK_BFLOAT16 ? "bf16" : "fp16";
}

/* Bytes of the file of a matrix. */
static int file_size(const char *path, enum mk_npy_type type, int64_t rows, int64_t cols, uint64_t *bytes)
{
    int64_t b;
    if (__builtin_mul_overflow(rows, cols, &b) ||
        __builtin_mul_overflow(b, (int64_t)mk_npy_type_size(type), &b) || b > INT64_MAX / 2)
        return mk_fail_quiet(MK_ERR_INVALID, "%s: %lld x %lld elements are more than a file can hold", path,
                             (long long)rows, (long long)cols);
    *bytes = (uint64_t)b + MK_NPY_FORMAT;
    return 0;
}

/* One random matrix, written in pieces. */
static int make_one(const char *path, enum mk_npy_type type, int64_t rows, int64_t cols, uint64_t seed,
                    uint64_t stream)
{
    enum { PIECE = 1 << 16 };
    static float piece[PIECE];
    static uint16_t half[PIECE];
    struct mk_out o;
    const int64_t count = rows * cols;
    const int ret = mk_npy_create(&o, path, type, rows, cols);
    if (ret)
        return ret;
    for (int64_t i = 0; i < count && !ferror(o.file); i += PIECE) {
        const int64_t n = count - i < PIECE ? count - i : PIECE;
        for (int64_t j = 0; j < n; j++) {
            piece[j] = mk_rng_uniform(seed, stream, (uint64_t)(i + j));
            half[j] = mk_bf16_from_float(piece[j]);
        }
        mk_npy_append(&o, type, type == MK_NPY_F4 ? (const void *)piece : half, (size_t)n);
    }
    return mk_out_commit(&o);
}

int mkgemm_make(const struct mkgemm_options *o)
{
    const enum mk_npy_type type = o->dtype == MK_BFLOAT16 ? MK_NPY_BF16 : MK_NPY_F4;
    const bool at = o->layout == MK_NT, bt = o->layout != MK_TN;
    const char *const path[] = {o->a, o->b};
    const int64_t rows[] = {at ? o->make_k : o->make_m, bt ? o->make_k : o->make_n};
    const int64_t cols[] = {at ? o->make_m : o->make_k, bt ? o->make_n : o->make_k};
    uint64_t bytes[2];
    int ret = 0;
    for (int i = 0; i < 2 && !ret; i++)
        ret = file_size(path[i], type, rows[i], cols[i], &bytes[i]);
    if (!ret)
        ret = mk_out_room(path, bytes, 2);
    for (int i = 0; i < 2 && !ret; i++)
        ret = make_one(path[i], type, rows[i], cols[i], (uint64_t)o->seed, (uint64_t)i);
    return ret;
}

static int check_shapes(struct mkgemm *g)
{
    const struct mk_npy_head *a = &g->a.head, *b = &g->b.head;
    const bool at = mkgemm_a_k_is_row(g), bt = mkgemm_b_k_is_row(g);
    const int64_t ka = at ? a->rows : a->cols, kb = bt ? b->rows : b->cols;
    if (ka != kb)
        return mk_fail_quiet(
            MK_ERR_INVALID,
            "%s is %lld x %lld and %s is %lld x %lld: with --layout %s the %s of A and the %s of B are K, "
            "but %lld and %lld differ",
            g->o.a, (long long)a->rows, (long long)a->cols, g->o.b, (long long)b->rows, (long long)b->cols,
            g->o.layout_name, at ? "rows" : "columns", bt ? "rows" : "columns", (long long)ka, (long long)kb);
    g->m = at ? a->cols : a->rows;
    g->n = bt ? b->cols : b->rows;
    g->k = ka;
    return 0;
}

int mkgemm_open(struct mkgemm *g)
{
    int ret = mk_npy_open(&g->a, g->o.a);
    if (!ret)
        ret = mk_npy_open(&g->b, g->o.b);
    if (!ret)
        ret = check_shapes(g);
    if (ret)
        return ret;
    const bool both = g->a.head.type == MK_NPY_BF16 && g->b.head.type == MK_NPY_BF16;
    g->dtype = g->o.dtype >= 0 ? (mk_dtype_t)g->o.dtype : both ? MK_BFLOAT16 : MK_FLOAT32;
    return 0;
}

void mkgemm_close(struct mkgemm *g)
{
    mk_npy_close(&g->a);
    mk_npy_close(&g->b);
    free(g->slice_a);
    free(g->slice_b);
    free(g->c);
    free(g->scratch);
    for (int r = 0; g->lines && r < g->nranks; r++)
        free((void *)g->lines[r].events);
    free(g->lines);
}

int mkgemm_load(const struct mkgemm *g, const struct mk_npy *f, int64_t k0, int64_t kn, float *out)
{
    const bool k_is_row = f == &g->a ? mkgemm_a_k_is_row(g) : mkgemm_b_k_is_row(g);
    const int64_t other = f == &g->a ? g->m : g->n;
    const int ret = k_is_row ? mk_npy_read(f, k0, kn, 0, other, out) : mk_npy_read(f, 0, other, k0, kn, out);
    if (!ret && g->dtype == MK_BFLOAT16 && f->head.type != MK_NPY_BF16)
        for (int64_t i = 0; i < other * kn; i++)
            out[i] = mk_bf16_to_float(mk_bf16_from_float(out[i]));
    return ret;
}

static void *allocate(int64_t rows, int64_t cols, size_t size)
{
    int64_t count, bytes;
    if (__builtin_mul_overflow(rows, cols, &count) || __builtin_mul_overflow(count, (int64_t)size, &bytes))
        return NULL;
    void *p;
    return posix_memalign(&p, 64, bytes ? (size_t)bytes : 64) ? NULL : p;
}

/* fp32 to bf16 in its own place: element i is read before anything is written beyond byte 2 * i + 1. */
static void narrow(float *p, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const uint16_t h = mk_bf16_from_float(p[i]);
        memcpy((char *)p + 2 * i, &h, sizeof(h));
    }
}

static int load_slice(const struct mkgemm *g, const struct mk_npy *f, void **out)
{
    const int64_t other = f == &g->a ? g->m : g->n;
    float *p = allocate(other, g->kn, sizeof(*p));
    if (!p)
        return mk_fail_quiet(MK_ERR_NOMEM, "out of memory for %lld x %lld elements of %s", (long long)other,
                             (long long)g->kn, f->path);
    const int ret = mkgemm_load(g, f, g->k0, g->kn, p);
    if (ret) {
        free(p);
        return ret;
    }
    if (g->dtype == MK_BFLOAT16)
        narrow(p, other * g->kn);
    *out = p;
    return 0;
}

int mkgemm_load_slices(struct mkgemm *g)
{
    /* As even as possible: the lengths differ by at most one; none are left out when K < ranks. */
    g->k0 = g->k * g->rank / g->nranks;
    g->kn = g->k * (g->rank + 1) / g->nranks - g->k0;
    int ret = load_slice(g, &g->a, &g->slice_a);
    if (!ret)
        ret = load_slice(g, &g->b, &g->slice_b);
    if (ret)
        return ret;
    g->c = allocate(g->m, g->n, mkgemm_size(g->dtype));
    g->scratch = allocate(g->m, g->n, mkgemm_size(g->dtype));
    if (!g->c || !g->scratch)
        return mk_fail_quiet(MK_ERR_NOMEM, "out of memory for %lld x %lld elements of C, twice",
                             (long long)g->m, (long long)g->n);
    const size_t bytes = (size_t)(g->m * g->n) * mkgemm_size(g->dtype);
    memset(g->c, 0xff, bytes); /* NaN: what is not written shows */
    memset(g->scratch, 0xff, bytes);
    return 0;
}

int mkgemm_room(const struct mkgemm *g)
{
    uint64_t bytes;
    const enum mk_npy_type type = g->dtype == MK_BFLOAT16 ? MK_NPY_BF16 : MK_NPY_F4;
    const int ret = file_size(g->o.out, type, g->m, g->n, &bytes);
    return ret ? ret : mk_out_room(&g->o.out, &bytes, 1);
}

int mkgemm_write_c(const struct mkgemm *g)
{
    struct mk_out o;
    const enum mk_npy_type type = g->dtype == MK_BFLOAT16 ? MK_NPY_BF16 : MK_NPY_F4;
    const int ret = mk_npy_create(&o, g->o.out, type, g->m, g->n);
    if (ret)
        return ret;
    mk_npy_append(&o, type, g->c, (size_t)(g->m * g->n));
    return mk_out_commit(&o);
}

float mkgemm_element(const struct mkgemm *g, const void *p, int64_t i)
{
    return g->dtype == MK_BFLOAT16 ? mk_bf16_to_float(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}
