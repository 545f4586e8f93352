/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The JSON reader, and files of profiles: what a profile writes is read back with its values, ranks are merged, and a file
 * that is cut or changed anywhere is refused, or reads as something that is possible. */
#include "json_read.h"
#include "mk/err.h"
#include "profile.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

/* ---- JSON ---- */

static int parse(const char *text, struct mk_json_doc **d)
{
    return mk_json_parse(text, strlen(text), d);
}

static void json_right(void **state)
{
    struct mk_json_doc *d;
    uint64_t u;
    int i;
    (void)state;
    assert_int_equal(parse(" {\"a\": [1, -2, 3.5e2, true, false, null], \"b\\u00e9\\n\": "
                           "\"\\ud83d\\ude00\\ud800x\", \"c\": {}, "
                           "\"big\": 18446744073709551615}\n",
                           &d),
                     0);
    const struct mk_json_value *root = mk_json_root(d), *a = mk_json_get(root, "a");
    assert_int_equal(root->count, 4);
    assert_int_equal(a->count, 6);
    assert_true(mk_json_u64(a->first, &u) && u == 1);
    assert_true(mk_json_i32(a->first->next, &i) && i == -2);
    assert_false(mk_json_u64(a->first->next, &u));
    assert_true(a->first->next->next->number == 350);
    assert_false(mk_json_i32(a->first->next->next, &i));
    assert_string_equal(mk_json_string(mk_json_get(root, "b\xc3\xa9\n")), "\xf0\x9f\x98\x80\xef\xbf\xbdx");
    assert_true(mk_json_u64(mk_json_get(root, "big"), &u) && u == UINT64_MAX);
    assert_false(mk_json_i32(mk_json_get(root, "big"), &i));
    assert_null(mk_json_get(root, "none"));
    assert_null(mk_json_get(a, "a"));
    assert_null(mk_json_string(a));
    mk_json_free(d);
}

static void json_wrong(void **state)
{
    static const char *const wrong[] = {
        "",           "{",   "[1,]", "[1 2]", "{\"a\"}", "{\"a\":}", "{a:1}",       "01",     "1.",
        "-",          "1e",  "tru",  "\"a",   "\"\\x\"", "\"\\u12",  "\"\\u0000\"", "\"\n\"", "[1] 2",
        "{\"a\":1,}", "nul", "[",    "+1",    "\"\\",    "'a'",      "[\"a\":1]",   "}"};
    char deep[300];
    struct mk_json_doc *d;
    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        if (parse(wrong[i], &d) != MK_ERR_INVALID)
            fail_msg("taken: %s", wrong[i]);
    memset(deep, '[', sizeof(deep));
    assert_int_equal(mk_json_parse(deep, sizeof(deep), &d), MK_ERR_INVALID);
    assert_non_null(strstr(mk_last_error(), "deep"));
    assert_int_equal(parse("[1,\n 2,\n x]", &d), MK_ERR_INVALID);
    assert_non_null(strstr(mk_last_error(), "line 3, column 2"));
    assert_int_equal(mk_json_parse("[1]\0", 4, &d), MK_ERR_INVALID);
}

/* ---- profiles ---- */

static uint64_t now;
static uint64_t look(void)
{
    return now += 100;
}

/* Runs n all-reduces of `ns` and one all-gather, and returns the file's text. */
static char *written(int rank, int n, uint64_t ns, size_t *bytes)
{
    static const char name[] = "cli_profile_%p";
    struct mk_profile_event e = {
        .coll = MK_COLL_ALLREDUCE, .dtype = 7, .algo = MK_ALGO_RING, .proto = MK_PROTO_SIMPLE};
    const struct mk_profile_who who = {17, rank, 4, 2, "\"odd\\ \x01name", 5, 1, 1};
    struct mk_profile *p;
    char path[64];
    int mask;
    now += 1000000000;
    assert_int_equal(mk_profile_open(name, look, &p), 0);
    struct mk_profile_comm *c = mk_profile_join(p, &who, &mask);
    e.channels = 1, e.exact = true, e.count = 1u << 18;
    for (int i = 0; i < n; i++) {
        const uint64_t start = 1000000u * ((uint64_t)i + 1), h = mk_profile_begin(p, c, &e);
        mk_profile_stop(p, h);
        const uint64_t r = mk_profile_run(p, h, 0, start);
        mk_profile_timer(p, r, start + ns);
        mk_profile_stop(p, r);
    }
    e.coll = MK_COLL_ALLGATHER;
    mk_profile_begin(p, c, &e);
    mk_profile_leave(p, c);
    mk_profile_close(p);
    snprintf(path, sizeof(path), "cli_profile_%d", (int)getpid());
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    char *text = malloc(100000);
    *bytes = fread(text, 1, 100000, f);
    fclose(f);
    unlink(path);
    return text;
}

static void merged(void **state)
{
    struct mk_profile_sum s;
    size_t n[2];
    char *text[2] = {written(0, 30, 100000, &n[0]), written(1, 10, 200000, &n[1])};
    (void)state;
    memset(&s, 0, sizeof(s));
    for (int i = 0; i < 2; i++)
        assert_int_equal(mk_profile_add_text(&s, "rank", text[i], n[i]), 0);
    assert_int_equal(mk_profile_add_text(&s, "again", text[0], n[0]), MK_ERR_INVALID);
    assert_non_null(strstr(mk_last_error(), "second time"));
    mk_profile_sort(&s);
    assert_int_equal(s.files, 2);
    assert_int_equal(s.communicators, 2);
    assert_int_equal(s.collectives, 42);
    assert_int_equal(s.n, 2);
    assert_int_equal(s.row[0].k.coll, MK_COLL_ALLGATHER);
    assert_int_equal(s.row[0].k.unfinished, 2);
    assert_int_equal(s.row[0].k.bytes_max, 4u << 20);
    const struct mk_kind *k = &s.row[1].k;
    assert_int_equal(k->calls, 40);
    assert_int_equal(k->timed, 40);
    assert_int_equal(k->run_min, 100000);
    assert_int_equal(k->run_max, 200000);
    assert_int_equal(k->run_ns, 30 * 100000 + 10 * 200000);
    assert_int_equal(s.row[1].ranks, 2);
    assert_int_equal(s.row[1].nranks, 4);
    const double median = mk_hist_quantile(k->run_hist, 0.5), p95 = mk_hist_quantile(k->run_hist, 0.95);
    assert_true(median > 97000 && median < 103000 && p95 > 194000 && p95 < 206000);
    assert_true(mk_hist_quantile(s.row[0].k.run_hist, 0.5) == 0);
    for (int i = 0; i < 2; i++)
        free(text[i]);
    mk_profile_free(&s);
}

/* Cut anywhere: refused, with the path. */
static void cut(void **state)
{
    struct mk_profile_sum s;
    size_t n;
    char *text = written(0, 3, 1000, &n);
    (void)state;
    memset(&s, 0, sizeof(s));
    for (size_t i = 0; i + 1 < n; i++) { /* the last is a newline */
        assert_int_equal(mk_profile_add_text(&s, "some/file", text, i), MK_ERR_INVALID);
        assert_non_null(strstr(mk_last_error(), "some/file: "));
    }
    assert_int_equal(s.files + s.n + s.communicators, 0);
    assert_int_equal(mk_profile_add_text(&s, "whole", text, n), 0);
    mk_profile_free(&s);
    free(text);
}

/* One sign changed: refused, or what is read keeps to what is possible. */
static void changed(void **state)
{
    static const char with[] = "0917{}[]\",:x-\\";
    struct mk_profile_sum s;
    size_t n, refused = 0, taken = 0;
    char *text = written(0, 3, 1000, &n);
    (void)state;
    for (size_t i = 0; i < n; i++)
        for (const char *w = with; *w; w++) {
            const char was = text[i];
            if (was == *w)
                continue;
            text[i] = *w;
            memset(&s, 0, sizeof(s));
            if (mk_profile_add_text(&s, "f", text, n)) {
                assert_int_equal(s.files + s.n, 0);
                refused++;
            } else {
                taken++;
                for (int k = 0; k < s.n; k++)
                    assert_true(s.row[k].k.run_ns >= s.row[k].k.run_max && s.row[k].k.calls);
            }
            mk_profile_free(&s);
            text[i] = was;
        }
    assert_true(refused > 3 * taken && taken);
    free(text);
}

static void other_files(void **state)
{
    struct mk_profile_sum s;
    static const char *const text[] = {"{}", "[]", "{\"format\": \"other\"}",
                                       "{\"format\": \"mkernel profile\", \"version\": 2}",
                                       "{\"format\": \"mkernel profile\", \"version\": 1}"};
    static const char *const why[] = {"no profile", "no profile", "no profile", "another version", "no host"};
    (void)state;
    memset(&s, 0, sizeof(s));
    for (int i = 0; i < 5; i++) {
        assert_int_equal(mk_profile_add_text(&s, "f", text[i], strlen(text[i])), MK_ERR_INVALID);
        assert_non_null(strstr(mk_last_error(), why[i]));
    }
    assert_int_equal(mk_profile_add(&s, "no/such/file"), MK_ERR_SYSTEM);
    assert_int_equal(mk_profile_add(&s, "."), MK_ERR_SYSTEM);
    mk_profile_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_right), cmocka_unit_test(json_wrong), cmocka_unit_test(merged),
        cmocka_unit_test(cut),        cmocka_unit_test(changed),    cmocka_unit_test(other_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
