/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#include "tests/bench/plugin_report.h"
#include "plugin/cli/table.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct report_what_text report_whats[REPORT_WHATS] = {
    [REPORT_DEPTH8] = {"depth8", "bandwidth, depth 8", "MB/s"},
    [REPORT_DEPTH1] = {"depth1", "bandwidth, depth 1", "MB/s"},
    [REPORT_LATENCY] = {"latency", "latency", "us"},
};

/* A median and its 95 % interval. */
struct ratio {
    double median, low, high;
};

/* Of the rounds' own ratios a / b. */
static struct ratio ratio_of(const struct bench_samples *a, const struct bench_samples *b)
{
    struct bench_samples v;
    struct ratio r;
    v.n = 0;
    for (int i = 0; i < a->n && i < b->n; i++)
        bench_add(&v, a->v[i] / b->v[i]);
    r.median = bench_stat_of(&v).median;
    bench_interval(&v, &r.low, &r.high);
    return r;
}

/* Which of the raw ones is the bound of this row. */
static int bound(const struct report *p, const struct report_row *row)
{
    const double a = bench_stat_of(&row->v[0]).median, b = bench_stat_of(&row->v[1]).median;
    return (row->what == REPORT_LATENCY ? b < a : b > a) ? p->nraw - 1 : 0;
}

/* What this project promises of its own plugin; "": nothing. The exit code does not depend on it. */
static const char *target(const struct report_row *row, double ratio, bool *met)
{
    if (row->what == REPORT_LATENCY && row->size == 8) {
        *met = ratio <= 1.12;
        return "<= 1.12";
    }
    if (row->what != REPORT_LATENCY && row->size >= 64u << 10 && row->size <= 1u << 20) {
        *met = ratio >= 0.97;
        return ">= 0.97";
    }
    return "";
}

static void size_text(size_t n, char text[24])
{
    snprintf(text, 24,
             n < 1024       ? "%zu B"
             : n < 1u << 20 ? "%zu KiB"
                            : "%zu MiB",
             n < 1024       ? n
             : n < 1u << 20 ? n >> 10
                            : n >> 20);
}

static void print_row(const struct report *p, const struct report_row *row, struct mk_table *t)
{
    char text[600], size[24];
    const int raw = bound(p, row);
    size_t at = 0;
    size_text(row->size, size);
#define ADD(...) at += (size_t)snprintf(text + at, sizeof(text) - at, __VA_ARGS__)
    ADD("%s|%s|%s", report_whats[row->what].name, size, report_whats[row->what].unit);
    if (p->nraw)
        ADD("|%.2f|%s", bench_stat_of(&row->v[raw]).median, raw ? "tagged" : "writes");
    for (int i = p->nraw; i < p->nimpls; i++) {
        ADD("|%.2f", bench_stat_of(&row->v[i]).median);
        if (p->nraw) {
            const struct ratio q = ratio_of(&row->v[i], &row->v[raw]);
            ADD("|%.3f|%.3f..%.3f", q.median, q.low, q.high);
        }
    }
    for (int i = p->nraw + 1; i < p->nimpls; i++) {
        const struct ratio q = ratio_of(&row->v[p->nraw], &row->v[i]);
        ADD("|%.3f|%.3f..%.3f", q.median, q.low, q.high);
    }
    if (p->nraw) {
        bool met = false;
        const char *want = target(row, ratio_of(&row->v[p->nraw], &row->v[raw]).median, &met);
        ADD("|%s|%s", want, !*want ? "" : met ? "yes" : "no");
    }
#undef ADD
    mk_table_row(t, "%s", text);
}

int report_print(const struct report *p)
{
    char head[400] = "what|>size|unit";
    size_t at = strlen(head);
#define ADD(...) at += (size_t)snprintf(head + at, sizeof(head) - at, __VA_ARGS__)
    if (p->nraw)
        ADD("|>raw|by");
    for (int i = p->nraw; i < p->nimpls; i++) {
        const char name = (char)('A' + i - p->nraw);
        printf("%c: %s\n", name, p->name[i]);
        ADD("|>%c", name);
        if (p->nraw)
            ADD("|>%c/raw|>95 %%", name);
    }
    for (int i = p->nraw + 1; i < p->nimpls; i++)
        ADD("|>A/%c|>95 %%", (char)('A' + i - p->nraw));
    if (p->nraw)
        ADD("|A/raw wanted|met");
#undef ADD
    if (p->nraw)
        printf("raw: libfabric provider %s\n", plug_raw_provider());
    struct mk_table *t = mk_table_new(head);
    for (int i = 0; i < p->nrows; i++)
        print_row(p, &p->row[i], t);
    const int ret = mk_table_print(t, stdout);
    mk_table_free(t);
    printf("medians of %d rounds; %u runs, %u of them disturbed by other programs each time they were "
           "repeated\n",
           p->pairs, p->runs, p->disturbed);
    return ret;
}

static void json_ratio(struct mk_json *j, const char *name, struct ratio q)
{
    mk_json_object_flat(j, name);
    mk_json_real(j, "median", q.median);
    mk_json_real(j, "low", q.low);
    mk_json_real(j, "high", q.high);
    mk_json_end(j);
}

static void json_row(const struct report *p, const struct report_row *row, struct mk_json *j)
{
    const int raw = bound(p, row);
    bool met = false;
    mk_json_object(j, NULL);
    mk_json_text(j, "what", report_whats[row->what].option);
    mk_json_int(j, "bytes", (int64_t)row->size);
    mk_json_text(j, "unit", report_whats[row->what].unit);
    if (p->nraw)
        mk_json_text(j, "raw", p->name[raw]);
    mk_json_array(j, "figures");
    for (int i = 0; i < p->nimpls; i++) {
        const struct bench_stat s = bench_stat_of(&row->v[i]);
        mk_json_object(j, NULL);
        mk_json_text(j, "name", p->name[i]);
        bench_json_stat(j, "value", &s);
        if (p->nraw)
            json_ratio(j, "to_raw", ratio_of(&row->v[i], &row->v[raw]));
        if (i > p->nraw)
            json_ratio(j, "first_to_this", ratio_of(&row->v[p->nraw], &row->v[i]));
        mk_json_end(j);
    }
    mk_json_end(j);
    if (p->nraw) {
        const char *want = target(row, ratio_of(&row->v[p->nraw], &row->v[raw]).median, &met);
        if (*want) {
            mk_json_text(j, "target", want);
            mk_json_bool(j, "met", met);
        }
    }
    mk_json_end(j);
}

int report_json(const struct report *p)
{
    struct mk_json j;
    const int ret = mk_json_open(&j, p->json);
    if (ret)
        return ret;
    mk_json_object(&j, NULL);
    mk_json_text(&j, "bench", "plugin");
    mk_json_text(&j, "provider", p->nraw ? plug_raw_provider() : NULL);
    mk_json_int(&j, "pairs", p->pairs);
    mk_json_int(&j, "runs", p->runs);
    mk_json_int(&j, "disturbed", p->disturbed);
    bench_json_machine(&j);
    mk_json_array(&j, "rows");
    for (int i = 0; i < p->nrows; i++)
        json_row(p, &p->row[i], &j);
    mk_json_end(&j);
    mk_json_end(&j);
    return mk_json_close(&j);
}
