/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* .npy: headers as NumPy writes them and as nobody should, blocks in both orders, rounding, what the disk
 * says. */
#include "plugin/cli/npy.h"
#include "mk/err.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static char dir[] = "/tmp/mk-npy-XXXXXX";

static int make_dir(void **state)
{
    (void)state;
    return mkdtemp(dir) && !chdir(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    (void)state;
    return chdir("/") || rmdir(dir);
}

/* magic, version, length, text; then the file is said to have `elements` bytes more. */
static int parse(int version, const char *text, uint64_t elements, struct mk_npy_head *h, char *why)
{
    uint8_t bytes[1024] = "\x93NUMPY";
    const size_t n = strlen(text), start = version == 1 ? 10 : 12;
    bytes[6] = (uint8_t)version;
    bytes[8] = (uint8_t)n;
    bytes[9] = (uint8_t)(n >> 8);
    memcpy(bytes + start, text, n);
    return mk_npy_parse(bytes, start + n, start + n + elements, h, why);
}

static void good_headers(void **state)
{
    (void)state;
    static const struct {
        int version;
        const char *text;
        uint64_t bytes;
        enum mk_npy_type type;
        bool fortran;
        int64_t rows, cols;
    } good[] = {
        {1, "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }   \n", 48, MK_NPY_F4, false, 3, 4},
        {2, "{'descr': '<f2', 'fortran_order': True, 'shape': (5, 2), }\n", 20, MK_NPY_F2, true, 5, 2},
        {3, "{'descr': '<V2', 'fortran_order': False, 'shape': (1, 1), }\n", 2, MK_NPY_BF16, false, 1, 1},
        {1, "{'descr': '|V2', 'fortran_order': False, 'shape': (0, 7), }\n", 0, MK_NPY_BF16, false, 0, 7},
        /* other order, double quotes, no blanks, no last comma, Python 2's long */
        {1, "{\"shape\":(2L,3),\"fortran_order\":False,\"descr\":\"<f4\"}", 24, MK_NPY_F4, false, 2, 3},
        {1, " { 'shape' : ( 2 , 3 , ) , 'descr' : '<f4' , 'fortran_order' : True , } \n", 24, MK_NPY_F4, true,
         2, 3},
    };
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        struct mk_npy_head h;
        char why[MK_NPY_WHY] = "";
        const int ret = parse(good[i].version, good[i].text, good[i].bytes, &h, why);
        assert_string_equal(why, "");
        assert_int_equal(ret, 0);
        assert_int_equal(h.type, good[i].type);
        assert_int_equal(h.fortran, good[i].fortran);
        assert_int_equal(h.rows, good[i].rows);
        assert_int_equal(h.cols, good[i].cols);
    }
}

static void bad_headers(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
        const char *why; /* part of the sentence */
    } bad[] = {
#define DICT(descr, order, shape) "{'descr': " descr ", 'fortran_order': " order ", 'shape': " shape ", }\n"
        {DICT("'>f4'", "False", "(1, 1)"), 4, "elements of type '>f4'"},
        {DICT("'<f8'", "False", "(1, 1)"), 8, "elements of type '<f8'"},
        {DICT("'bfloat16'", "False", "(1, 1)"), 2, "elements of type 'bfloat16'"},
        {DICT("[('a', '<f4')]", "False", "(1, 1)"), 4, "records"},
        {DICT("'<f4'", "False", "()"), 4, "0 dimensions; a matrix has 2"},
        {DICT("'<f4'", "False", "(4,)"), 16, "1 dimension;"},
        {DICT("'<f4'", "False", "(1, 2, 3)"), 24, "3 dimensions"},
        {DICT("'<f4'", "False", "(4)"), 16, "not a tuple"},
        {DICT("'<f4'", "False", "4"), 16, "not a tuple"},
        {DICT("'<f4'", "False", "(-1, 4)"), 16, "byte 61: a negative dimension"},
        {DICT("'<f4'", "False", "(1.5, 4)"), 16, "whole numbers"},
        {DICT("'<f4'", "False", "(1, 4"), 16, "whole number"},
        {DICT("'<f4'", "False", "(99999999999999999999999, 1)"), 4, "above 2^40"},
        {DICT("'<f4'", "False", "(1099511627776, 1099511627776)"), 4, "more than a file can hold"},
        {DICT("'<f4'", "False", "(1099511627776, 16777216)"), 0, "more than a file can hold"},
        {DICT("'<f4'", "False", "(3, 4)"), 47, "48 bytes, but 47 follow (truncated?)"},
        {DICT("'<f4'", "False", "(3, 4)"), 49, "48 bytes, but 49 follow"},
        {DICT("'<f4'", "false", "(3, 4)"), 48, "neither True nor False"},
        {DICT("'<f4", "False", "(3, 4)"), 48, "',' or '}' is expected"},
        {DICT("f4", "False", "(3, 4)"), 48, "descr is expected in quotes"},
        {DICT("'<\\x66'", "False", "(3, 4)"), 48, "plain text"},
        {DICT("'<f4<f4<f4<f4<f4<f4<f4<f4<f4'", "False", "(3, 4)"), 48, "short plain text"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4)", 48, "no closing '}'"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4", 48, "whole numbers"},
        {"{'descr': '<f4', 'fortran_order': False, 'sha", 48, "no closing quote"},
        {"{'descr': '<f4', 'shape': (3, 4)}", 48, "no 'fortran_order'"},
        {"{'descr': '<f4', 'fortran_order': False}", 48, "no 'shape'"},
        {"{}", 48, "no 'descr'"},
        {"{'descr': '<f4', 'descr': '<f4'}", 48, "a second key 'descr'"},
        {"{'descr': '<f4', 'color': 'red'}", 48, "an unknown key 'color'"},
        {"{'descr': '<f4' 'shape': (3, 4)}", 48, "',' or '}'"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4)} x", 48, "after the closing"},
        {"('descr', '<f4')", 48, "does not begin with '{'"},
        {"", 48, "does not begin with '{'"},
#undef DICT
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct mk_npy_head h;
        char why[MK_NPY_WHY] = "";
        assert_int_equal(parse(1, bad[i].text, bad[i].bytes, &h, why), MK_ERR_INVALID);
        if (!strstr(why, bad[i].why))
            fail_msg("'%s' gave '%s', expected '%s'", bad[i].text, why, bad[i].why);
    }
}

static void bad_beginnings(void **state)
{
    (void)state;
    struct mk_npy_head h;
    char why[MK_NPY_WHY];
    uint8_t b[MK_NPY_FORMAT + 16];
    const size_t n = mk_npy_format(MK_NPY_F4, 2, 2, b);
    assert_int_equal(n % 64, 0);
    assert_int_equal(mk_npy_parse(b, n, n + 16, &h, why), 0);
    for (size_t cut = 0; cut < n; cut++) /* every truncation */
        assert_int_equal(mk_npy_parse(b, cut, cut, &h, why), MK_ERR_INVALID);
    b[6] = 4;
    assert_int_equal(mk_npy_parse(b, n, n + 16, &h, why), MK_ERR_INVALID);
    assert_non_null(strstr(why, "version 4.0"));
    b[6] = 2; /* now a length of 4 bytes, far more than the file has */
    assert_int_equal(mk_npy_parse(b, n, n + 16, &h, why), MK_ERR_INVALID);
    assert_non_null(strstr(why, "truncated"));
    assert_int_equal(mk_npy_parse(b, n, UINT64_C(1) << 40, &h, why), MK_ERR_INVALID);
    assert_non_null(strstr(why, "too long for a matrix"));
    b[0] = 'P';
    assert_int_equal(mk_npy_parse(b, n, n + 16, &h, why), MK_ERR_INVALID);
    assert_non_null(strstr(why, "not a .npy file"));
}

/* The element at (r, c) of the test files. */
static float value(int64_t r, int64_t c)
{
    return (float)(r * 8 - c * 3) / 16; /* exact in all three types for small r and c */
}

static uint16_t half_of(float x) /* for exact values only */
{
    for (uint32_t h = 0; h < 0x10000; h++)
        if (mk_fp16_to_float((uint16_t)h) == x)
            return (uint16_t)h;
    return 0x7e00;
}

static void write_test_file(const char *path, enum mk_npy_type type, bool fortran, int64_t rows, int64_t cols)
{
    uint8_t head[MK_NPY_FORMAT];
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    const size_t n = mk_npy_format(type, rows, cols, head);
    if (fortran) { /* the same length: "True " for "False" */
        char *p = memmem(head, n, "False", 5);
        assert_non_null(p);
        memcpy(p, "True ", 5);
    }
    fwrite(head, 1, n, f);
    for (int64_t i = 0; i < rows * cols; i++) {
        const float x = fortran ? value(i % rows, i / rows) : value(i / cols, i % cols);
        const uint16_t h = type == MK_NPY_BF16 ? mk_bf16_from_float(x) : type == MK_NPY_F2 ? half_of(x) : 0;
        fwrite(type == MK_NPY_F4 ? (const void *)&x : &h, mk_npy_type_size(type), 1, f);
    }
    assert_int_equal(fclose(f), 0);
}

static void expect_block(const struct mk_npy *f, int64_t r0, int64_t nr, int64_t c0, int64_t nc)
{
    float *out = malloc(((size_t)(nr * nc) + 1) * sizeof(*out));
    assert_non_null(out);
    out[nr * nc] = 1234;
    assert_int_equal(mk_npy_read(f, r0, nr, c0, nc, out), 0);
    for (int64_t i = 0; i < nr * nc; i++)
        assert_true(out[i] == value(r0 + i / nc, c0 + i % nc));
    assert_true(out[nr * nc] == 1234);
    free(out);
}

static void blocks(void **state)
{
    (void)state;
    for (int type = 0; type < 3; type++)
        for (int fortran = 0; fortran < 2; fortran++) {
            struct mk_npy f;
            write_test_file("t.npy", type, fortran, 13, 11);
            assert_int_equal(mk_npy_open(&f, "t.npy"), 0);
            assert_int_equal(f.head.rows, 13);
            assert_int_equal(f.head.cols, 11);
            expect_block(&f, 0, 13, 0, 11);
            expect_block(&f, 0, 13, 4, 3);
            expect_block(&f, 5, 2, 0, 11);
            expect_block(&f, 12, 1, 10, 1);
            expect_block(&f, 3, 0, 2, 5);
            expect_block(&f, 13, 0, 11, 0);
            assert_int_equal(mk_npy_read(&f, 0, 14, 0, 1, NULL), MK_ERR_INTERNAL);
            assert_int_equal(mk_npy_read(&f, 0, 1, -1, 1, NULL), MK_ERR_INTERNAL);
            mk_npy_close(&f);
        }
    unlink("t.npy");
}

/* Lines longer than the reader's buffer, and narrow blocks of long lines. */
static void long_lines(void **state)
{
    (void)state;
    for (int fortran = 0; fortran < 2; fortran++) {
        struct mk_npy f;
        const int64_t rows = fortran ? 400000 : 3, cols = fortran ? 3 : 400000;
        write_test_file("t.npy", MK_NPY_F4, fortran, rows, cols);
        assert_int_equal(mk_npy_open(&f, "t.npy"), 0);
        expect_block(&f, 0, rows, 0, cols);
        expect_block(&f, fortran ? 1000 : 1, fortran ? 300001 : 2, fortran ? 1 : 1000, fortran ? 2 : 300001);
        expect_block(&f, fortran ? 399999 : 0, fortran ? 1 : 3, fortran ? 0 : 399999, fortran ? 3 : 1);
        mk_npy_close(&f);
    }
    unlink("t.npy");
}

static void files_that_are_none(void **state)
{
    (void)state;
    struct mk_npy f;
    assert_int_equal(mk_npy_open(&f, "absent.npy"), MK_ERR_SYSTEM);
    assert_string_equal(mk_last_error(), "absent.npy: No such file or directory");
    assert_int_equal(mk_npy_open(&f, "."), MK_ERR_INVALID);
    assert_int_equal(mk_npy_open(&f, "/dev/zero"), MK_ERR_INVALID);
    write_test_file("t.npy", MK_NPY_F4, false, 4, 4);
    assert_int_equal(truncate("t.npy", MK_NPY_FORMAT + 63), 0);
    assert_int_equal(mk_npy_open(&f, "t.npy"), MK_ERR_INVALID);
    assert_string_equal(mk_last_error(),
                        "t.npy: byte 128: 4 x 4 elements of fp32 are 64 bytes, but 63 follow (truncated?)");
    /* it shrinks between open and read */
    write_test_file("t.npy", MK_NPY_F4, false, 4, 4);
    assert_int_equal(mk_npy_open(&f, "t.npy"), 0);
    assert_int_equal(truncate("t.npy", MK_NPY_FORMAT + 60), 0);
    float out[16];
    assert_int_equal(mk_npy_read(&f, 0, 4, 0, 4, out), MK_ERR_INVALID);
    assert_non_null(strstr(mk_last_error(), "shorter"));
    mk_npy_close(&f);
    unlink("t.npy");
}

static void written_and_read(void **state)
{
    (void)state;
    struct mk_out o;
    struct mk_npy f;
    float data[12];
    uint16_t half[12];
    for (int i = 0; i < 12; i++) {
        data[i] = value(i / 4, i % 4);
        half[i] = mk_bf16_from_float(data[i]);
    }
    for (int type = 0; type < 3; type += 2) {
        assert_int_equal(mk_npy_create(&o, "w.npy", type, 3, 4), 0);
        mk_npy_append(&o, type, type ? (const void *)half : data, 5);
        mk_npy_append(&o, type, type ? (const void *)(half + 5) : data + 5, 7);
        assert_int_equal(mk_out_commit(&o), 0);
        assert_int_equal(mk_npy_open(&f, "w.npy"), 0);
        assert_int_equal(f.head.type, type);
        expect_block(&f, 0, 3, 0, 4);
        mk_npy_close(&f);
    }
    unlink("w.npy");
    assert_int_equal(mk_npy_create(&o, "/dev/full", MK_NPY_F4, 3, 4), 0);
    mk_npy_append(&o, MK_NPY_F4, data, 12);
    assert_int_equal(mk_out_commit(&o), MK_ERR_SYSTEM);
    assert_non_null(strstr(mk_last_error(), "No space left"));
}

static void conversions(void **state)
{
    (void)state;
    assert_int_equal(mk_bf16_from_float(1.0f), 0x3f80);
    assert_int_equal(mk_bf16_from_float(0x1.01p0f), 0x3f80); /* tie to even: down */
    assert_int_equal(mk_bf16_from_float(0x1.03p0f), 0x3f82); /* tie to even: up */
    assert_int_equal(mk_bf16_from_float(0x1.010002p0f), 0x3f81);
    assert_int_equal(mk_bf16_from_float(-0.0f), 0x8000);
    assert_int_equal(mk_bf16_from_float(INFINITY), 0x7f80);
    assert_int_equal(mk_bf16_from_float(0x1.fffffep127f), 0x7f80); /* rounds up to infinity */
    assert_true(isnan(mk_bf16_to_float(mk_bf16_from_float(NAN))));
    const uint32_t low_nan = 0x7f800001u; /* its payload is in the lower half only */
    float x;
    memcpy(&x, &low_nan, 4);
    assert_true(isnan(mk_bf16_to_float(mk_bf16_from_float(x))));
    assert_true(mk_fp16_to_float(0x3c00) == 1.0f);
    assert_true(mk_fp16_to_float(0xfbff) == -65504.0f);
    assert_true(mk_fp16_to_float(0x0001) == 0x1p-24f);
    assert_true(mk_fp16_to_float(0x0400) == 0x1p-14f);
    assert_true(mk_fp16_to_float(0x83ff) == -0x3ffp-24f);
    assert_true(signbit(mk_fp16_to_float(0x8000)));
    assert_true(mk_fp16_to_float(0xfc00) == -INFINITY);
    assert_true(isnan(mk_fp16_to_float(0x7c01)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_headers),   cmocka_unit_test(bad_headers),
        cmocka_unit_test(bad_beginnings), cmocka_unit_test(blocks),
        cmocka_unit_test(long_lines),     cmocka_unit_test(files_that_are_none),
        cmocka_unit_test(conversions),    cmocka_unit_test(written_and_read),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
