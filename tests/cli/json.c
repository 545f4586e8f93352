/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The JSON writer and the output file: text, escapes, numbers that read back, nothing left after an error. */
#include "plugin/cli/json.h"
#include "mk/err.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <cmocka.h>

static char dir[] = "/tmp/mk-json-XXXXXX";

static int make_dir(void **state)
{
    (void)state;
    return mkdtemp(dir) && !chdir(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    (void)state;
    return chdir("/") || rmdir(dir); /* fails if a test left something */
}

static void expect_file(const char *path, const char *text)
{
    char got[4096];
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    got[fread(got, 1, sizeof(got) - 1, f)] = 0;
    fclose(f);
    assert_string_equal(got, text);
}

static void nesting(void **state)
{
    (void)state;
    struct mk_json j;
    assert_int_equal(mk_json_open(&j, "a.json"), 0);
    mk_json_object(&j, NULL);
    mk_json_bool(&j, "ok", true);
    mk_json_int(&j, "n", INT64_MIN);
    mk_json_text(&j, "none", NULL);
    mk_json_array(&j, "list");
    mk_json_object_flat(&j, NULL);
    mk_json_int(&j, "M", 1);
    mk_json_real(&j, "t", 0.25);
    mk_json_end(&j);
    mk_json_array(&j, NULL);
    mk_json_end(&j);
    mk_json_end(&j);
    mk_json_end(&j);
    assert_int_equal(access("a.json", F_OK), -1); /* not before it is complete */
    assert_int_equal(mk_json_close(&j), 0);
    expect_file("a.json",
                "{\n  \"ok\": true,\n  \"n\": -9223372036854775808,\n  \"none\": null,\n  \"list\": [\n"
                "    {\"M\": 1, \"t\": 0.25},\n    []\n  ]\n}\n");
    assert_int_equal(unlink("a.json"), 0);
}

static char *one_value(char *text, size_t room, const char *string, double real)
{
    FILE *f = fmemopen(text, room, "w");
    struct mk_json j;
    assert_non_null(f);
    mk_json_begin(&j, f);
    if (string)
        mk_json_text(&j, NULL, string);
    else
        mk_json_real(&j, NULL, real);
    assert_int_equal(mk_json_close(&j), 0);
    fclose(f);
    text[strcspn(text, "\n")] = 0;
    return text;
}

static void escapes(void **state)
{
    (void)state;
    char text[256];
#define SAME(in, out) assert_string_equal(one_value(text, sizeof(text), in, 0), out)
    SAME("", "\"\"");
    SAME("a\"b\\c/d", "\"a\\\"b\\\\c/d\"");
    SAME("tab\tline\nbell\a", "\"tab\\tline\\nbell\\u0007\"");
    SAME("gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80",
         "\"gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80\"");
    SAME("x\xffy", "\"x\xef\xbf\xbdy\"");                             /* no UTF-8 */
    SAME("\xc0\xaf", "\"\xef\xbf\xbd\xef\xbf\xbd\"");                 /* overlong */
    SAME("\xed\xa0\x80", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""); /* surrogate */
    SAME("\xe2\x82", "\"\xef\xbf\xbd\xef\xbf\xbd\"");                 /* cut */
#undef SAME
}

static void numbers(void **state)
{
    (void)state;
    char text[64];
#define IS(value, out) assert_string_equal(one_value(text, sizeof(text), NULL, value), out)
    IS(0, "0");
    IS(0.1, "0.1");
    IS(1e-300, "1e-300");
    IS(1.0 / 3, "0.3333333333333333");
    IS(NAN, "null");
    IS(INFINITY, "null");
    IS(-INFINITY, "null");
#undef IS
    uint64_t bits = 0x9e3779b97f4a7c15ull;
    for (int i = 0; i < 20000; i++) {
        double x;
        bits = bits * 6364136223846793005ull + 1442695040888963407ull;
        memcpy(&x, &bits, sizeof(x));
        if (isfinite(x))
            assert_true(strtod(one_value(text, sizeof(text), NULL, x), NULL) == x);
    }
}

static void wrong_nesting(void **state)
{
    (void)state;
    struct mk_json j;
    for (int kind = 0; kind < 5; kind++) {
        assert_int_equal(mk_json_open(&j, "w.json"), 0);
        mk_json_array(&j, NULL);
        if (kind == 0)
            mk_json_int(&j, "name", 1); /* a name in an array */
        if (kind != 1)
            mk_json_end(&j);
        if (kind == 2)
            mk_json_end(&j); /* an end too many */
        if (kind == 3)
            mk_json_int(&j, NULL, 1); /* a second value */
        for (int i = 0; kind == 4 && i < 100; i++)
            mk_json_array(&j, NULL);
        assert_int_equal(mk_json_close(&j), MK_ERR_INTERNAL);
        assert_int_equal(access("w.json", F_OK), -1);
    }
}

static void disk_full(void **state)
{
    (void)state;
    struct mk_json j;
    assert_int_equal(mk_json_open(&j, "/dev/full"), 0);
    mk_json_text(&j, NULL, "text");
    assert_int_equal(mk_json_close(&j), MK_ERR_SYSTEM);
    assert_non_null(strstr(mk_last_error(), "/dev/full: No space left on device"));
    struct stat st;
    assert_int_equal(stat("/dev/full", &st), 0);
    assert_true(S_ISCHR(st.st_mode)); /* it was written, not replaced */
}

static void unwritable(void **state)
{
    (void)state;
    struct mk_out o;
    assert_int_equal(mk_out_open(&o, "no/such/dir/x"), MK_ERR_SYSTEM);
    assert_string_equal(mk_last_error(), "no/such/dir/x: No such file or directory");
    assert_int_equal(mk_out_open(&o, "."), MK_ERR_SYSTEM);
    assert_string_equal(mk_last_error(), ".: Is a directory");
    assert_int_equal(mk_out_open(&o, ""), MK_ERR_SYSTEM);
    assert_int_equal(mk_out_check("/proc/nothing"), MK_ERR_SYSTEM);
    mk_out_cancel(&o); /* after a failed open: allowed */
}

/* An existing file keeps its mode, a link stays a link, a cancelled write changes nothing. */
static void replace(void **state)
{
    (void)state;
    struct mk_out o;
    struct stat st;
    FILE *f = fopen("real", "w");
    assert_non_null(f);
    fputs("old", f);
    fclose(f);
    assert_int_equal(chmod("real", 0640), 0);
    assert_int_equal(symlink("real", "link"), 0);
    assert_int_equal(mk_out_open(&o, "link"), 0);
    fputs("never seen", o.file);
    mk_out_cancel(&o);
    expect_file("real", "old");
    assert_int_equal(mk_out_check("link"), 0);
    expect_file("real", "old");
    assert_int_equal(mk_out_open(&o, "link"), 0);
    fputs("new", o.file);
    assert_int_equal(mk_out_commit(&o), 0);
    expect_file("real", "new");
    assert_int_equal(lstat("link", &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_int_equal(stat("real", &st), 0);
    assert_int_equal(st.st_mode & 07777, 0640);
    assert_int_equal(unlink("link") | unlink("real"), 0);
}

/* Of files beside each other the room of all counts; what is no file, or on another file system, needs none here. */
static void room(void **state)
{
    (void)state;
    struct statvfs fs;
    assert_int_equal(statvfs(".", &fs), 0);
    const uint64_t avail = (uint64_t)fs.f_bfree * fs.f_frsize; /* others may write: far from the edge */
    const char *const two[] = {"one", "two"}, *const none[] = {"one", "/dev/null"};
    const char *const lost[] = {"no/such/dir/x"};
    const uint64_t half[] = {avail / 10 * 4, avail / 10 * 4}, most[] = {avail / 10 * 8, avail / 10 * 8};
    const uint64_t much[] = {1, avail / 10 * 16};
    if (fs.f_bavail < fs.f_bfree / 10 * 9)
        skip(); /* an eighth of it and more is reserved */
    assert_int_equal(mk_out_room(two, half, 2), 0);
    assert_int_equal(mk_out_room(two, most, 1), 0);
    assert_int_equal(mk_out_room(none, most, 2), 0);
    assert_int_equal(mk_out_room(two, most, 2), MK_ERR_SYSTEM);
    assert_ptr_equal(strstr(mk_last_error(), "two: disk full: "), mk_last_error());
    assert_int_equal(mk_out_room(two, much, 2), MK_ERR_SYSTEM);
    assert_int_equal(mk_out_room(lost, half, 1), MK_ERR_SYSTEM);
    assert_string_equal(mk_last_error(), "no/such/dir/x: No such file or directory");
    assert_int_not_equal(access("one", F_OK), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nesting),       cmocka_unit_test(escapes),   cmocka_unit_test(numbers),
        cmocka_unit_test(wrong_nesting), cmocka_unit_test(disk_full), cmocka_unit_test(unwritable),
        cmocka_unit_test(replace),       cmocka_unit_test(room),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
