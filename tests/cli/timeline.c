/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The picture and the trace of made-up events. With an argument it leaves both files there, to be looked at. */
#include "plugin/cli/rng.h"
#include "plugin/cli/timeline.h"
#include "mk/err.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

enum { RANKS = 4, BLOCKS = 2, EVENTS = 120 };
static struct mk_trace_event events[RANKS][BLOCKS * EVENTS];
static struct mk_timeline_rank ranks[RANKS];
static struct mk_timeline timeline = {
    .nranks = RANKS,
    .ranks = ranks,
    .title = "GEMM + AllReduce, M x N x K = 512 x 4096 x 28672, fp32 <TN> & more",
    .subtitle = "2 nodes x 2 ranks, ofi / net",
    .t_compute = 0.030,
    .t_comm = 0.020,
    .t_fused = 0.035};

static uint32_t one_block(struct mk_trace_event *e, int rank, int block)
{
    uint64_t t = 5000000000u + (uint64_t)rank * 100000;
    for (uint32_t i = 0; i < EVENTS; i++) {
        const double u = mk_rng_uniform(3, (uint64_t)(rank * BLOCKS + block), i) + 1;
        const int role = i < 30 ? MK_ROLE_COMPUTE : (int)(i * 7 + (uint32_t)block) % MK_ROLES;
        e[i].begin_ns = t;
        t += (uint64_t)((role == MK_ROLE_COMPUTE ? 300000 : 60000) * u) + 1;
        e[i].end_ns = t;
        e[i].block = (uint16_t)block;
        e[i].role = (uint8_t)role;
        e[i].task = 0;
        e[i].index = i;
    }
    return EVENTS;
}

static int make(void **state)
{
    (void)state;
    for (int r = 0; r < RANKS; r++) {
        ranks[r] = (struct mk_timeline_rank){
            .node = r / 2, .local_rank = r % 2, .blocks = BLOCKS, .events = events[r]};
        for (int b = 0; b < BLOCKS; b++)
            ranks[r].n += one_block(&events[r][b * EVENTS], r, b);
    }
    return 0;
}

static char *content(const char *path)
{
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    char *text = calloc(1, 1 << 20);
    assert_non_null(text);
    assert_in_range(fread(text, 1, (1 << 20) - 1, f), 1, (1 << 20) - 2);
    fclose(f);
    return text;
}

static int count(const char *text, const char *what)
{
    int n = 0;
    for (const char *p = strstr(text, what); p; p = strstr(p + 1, what))
        n++;
    return n;
}

static void picture(void **state)
{
    (void)state;
    assert_int_equal(mk_timeline_write(&timeline, "timeline-test.svg"), 0);
    char *text = content("timeline-test.svg");
    unlink("timeline-test.svg");
    assert_int_equal(strncmp(text, "<svg ", 5), 0);
    assert_non_null(strstr(text, "</svg>\n"));
    assert_non_null(strstr(text, "28672, fp32 &lt;TN&gt; &amp; more"));
    assert_non_null(strstr(text, "75 % of the communication time is hidden behind compute"));
    assert_non_null(strstr(text, "time in ms"));
    for (int r = 0; r < RANKS; r++) {
        char label[32];
        snprintf(label, sizeof(label), ">rank %d<", r);
        assert_int_equal(count(text, label), 1);
    }
    static const char *const names[] = {">compute <", ">intra <", ">send <", ">recv <", ">idle <"};
    for (int i = 0; i < MK_ROLES; i++)
        assert_int_equal(count(text, names[i]), 1);
    assert_int_equal(count(text, "<rect"),
                     count(text, "/>\n") - count(text, "<path") + count(text, "</rect>"));
    assert_in_range(count(text, "<title>"), RANKS * BLOCKS * 20, RANKS * BLOCKS * EVENTS);
    assert_null(strstr(text, "nan"));
    assert_null(strstr(text, "-0.0"));
    assert_null(strstr(text, "disturbed"));
    free(text);
}

static void trace(void **state)
{
    (void)state;
    assert_int_equal(mk_timeline_write(&timeline, "timeline-test.json"), 0);
    char *text = content("timeline-test.json");
    unlink("timeline-test.json");
    assert_int_equal(count(text, "\"ph\": \"X\""), RANKS * BLOCKS * EVENTS);
    assert_int_equal(count(text, "\"process_name\""), RANKS);
    assert_int_equal(count(text, "\"thread_name\""), RANKS * BLOCKS);
    assert_int_equal(count(text, "{"), count(text, "}"));
    assert_non_null(strstr(text, "\"ts\": 0, \"dur\": "));
    free(text);
}

/* Nothing recorded, a single instant, foreign values: still a file. */
static void odd_events(void **state)
{
    (void)state;
    struct mk_trace_event e[2] = {{.begin_ns = 7, .end_ns = 7},
                                  {.begin_ns = 9, .end_ns = 8, .role = 77, .block = 900}};
    struct mk_timeline_rank one = {.blocks = 1, .events = e};
    struct mk_timeline t = {.nranks = 1,
                            .ranks = &one,
                            .title = "t",
                            .subtitle = NULL,
                            .t_compute = NAN,
                            .t_comm = NAN,
                            .t_fused = NAN};
    for (uint32_t n = 0; n < 3; n++) {
        one.n = n;
        one.dropped = n;
        assert_int_equal(mk_timeline_write(&t, "odd.svg"), 0);
        char *text = content("odd.svg");
        assert_null(strstr(text, "nan"));
        assert_null(strstr(text, "inf"));
        assert_int_equal(count(text, "further events"), n > 0);
        free(text);
        assert_int_equal(mk_timeline_write(&t, "odd.json"), 0);
    }
    unlink("odd.svg");
    unlink("odd.json");
    assert_int_equal(mk_timeline_write(&t, "/dev/full"), MK_ERR_SYSTEM);
    assert_int_equal(mk_timeline_write(&t, "no/dir/x.json"), MK_ERR_SYSTEM);
}

static void hidden(void **state)
{
    (void)state;
    assert_true(fabs(mk_hidden_share(3, 2, 3.5) - 0.75) < 1e-12);
    assert_true(mk_hidden_share(3, 2, 3) == 1);
    assert_true(mk_hidden_share(3, 2, 2.5) == 1);
    assert_true(mk_hidden_share(3, 2, 7) == 0);
    assert_true(isnan(mk_hidden_share(3, 0, 3)));
    assert_true(isnan(mk_hidden_share(NAN, 1, 3)));
    assert_true(mk_is_disturbed(3, 2.8));
    assert_false(mk_is_disturbed(3, 2.9));
    assert_false(mk_is_disturbed(3e-5, 1e-5));
    assert_false(mk_is_disturbed(NAN, 1));
    assert_false(mk_is_disturbed(1, NAN));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(picture), cmocka_unit_test(trace),
                                       cmocka_unit_test(odd_events), cmocka_unit_test(hidden)};
    if (argc > 1 && !chdir(argv[1]) && !make(NULL))
        return mk_timeline_write(&timeline, "timeline.svg") || mk_timeline_write(&timeline, "timeline.json");
    return cmocka_run_group_tests(tests, make, NULL);
}
