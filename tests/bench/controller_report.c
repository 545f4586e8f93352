/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What the sweep says: a table a case, one sum, JSON, and a picture of time against communicating blocks with the
 * controller's point on it. */
#include "plugin/cli/cli.h"
#include "plugin/cli/out.h"
#include "plugin/cli/table.h"
#include "tests/bench/controller.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

double ctl_median(const double *v, int rounds, int parity)
{
    struct bench_samples s;
    s.n = 0;
    for (int r = 0; r < rounds; r++)
        if (parity < 0 || (r & 1) == parity)
            bench_add(&s, v[r]);
    return bench_stat_of(&s).median;
}

void ctl_judge(struct ctl_case *c, int rounds)
{
    c->best = 1;
    for (int v = 2; v <= c->most; v++)
        if (ctl_median(c->us[v], rounds, 0) < ctl_median(c->us[c->best], rounds, 0))
            c->best = v;
    c->ratio.n = 0;
    for (int r = !c->pinned; r < rounds; r += c->pinned ? 1 : 2)
        bench_add(&c->ratio, c->us[c->best][r] / c->us[0][r]);
    c->best_us = ctl_median(c->us[c->best], rounds, 1);
    c->own_us = ctl_median(c->us[0], rounds, 1);
}

static void mean_of(const double *v, int n, double *mean, double *worst)
{
    double sum = 0;
    *worst = INFINITY;
    for (int i = 0; i < n; i++) {
        sum += log(v[i]);
        *worst = v[i] < *worst ? v[i] : *worst;
    }
    *mean = exp(sum / n);
}

struct ctl_sum ctl_sum_of(const struct ctl_case *cases, int n, int rounds)
{
    struct ctl_sum s;
    double ratio[CTL_CASES] = {0}, mean, worst;
    int most = CTL_BUDGETS;
    memset(&s, 0, sizeof(s));
    for (int i = 0; i < n; i++) {
        ratio[i] = bench_stat_of(&cases[i].ratio).median;
        most = cases[i].most < most ? cases[i].most : most;
    }
    mean_of(ratio, n, &s.mean, &s.worst);
    for (int i = 0; i < n; i++)
        ratio[i] = cases[i].best_us / cases[i].first_us;
    mean_of(ratio, n, &s.first_mean, &s.first_worst);
    for (int v = 1; v <= most; v++) { /* chosen on one half, compared on the other */
        for (int i = 0; i < n; i++)
            ratio[i] = ctl_median(cases[i].us[0], rounds, 0) / ctl_median(cases[i].us[v], rounds, 0);
        mean_of(ratio, n, &mean, &worst);
        if (!s.split || mean > s.split_mean) {
            s.split = v;
            s.split_mean = mean;
        }
    }
    for (int i = 0; i < n; i++)
        ratio[i] = ctl_median(cases[i].us[s.split], rounds, 1) / ctl_median(cases[i].us[0], rounds, 1);
    mean_of(ratio, n, &s.split_mean, &s.split_worst);
    return s;
}

void ctl_print(const struct ctl_case *c, int rounds)
{
    double low, high;
    struct mk_table *t = mk_table_new(">communicating blocks|>us|>min|>max|>/ controller");
    printf("\n%lld x %lld x %lld", (long long)c->shape[0], (long long)c->shape[1], (long long)c->shape[2]);
    if (c->link.ratio > 0)
        printf(", bytes/rate = %.2f x T_compute (%.4g Gbit/s)", c->link.ratio, c->link.gbps);
    printf(", %d blocks\n", c->blocks);
    for (int v = 0; t && v <= c->most; v++) {
        struct bench_samples s;
        char name[24];
        s.n = 0;
        for (int r = 0; r < rounds; r++)
            bench_add(&s, c->us[v][r]);
        const struct bench_stat us = bench_stat_of(&s);
        snprintf(name, sizeof(name), v || !c->pinned ? "%d" : "%d, controlled", c->pinned ? c->pinned : v);
        mk_table_row(t, "%s|%.1f|%.1f|%.1f|%.3f",
                     v || c->pinned  ? name
                     : c->controlled ? "controller"
                                     : "default",
                     us.median, us.min, us.max, us.median / ctl_median(c->us[0], rounds, -1));
    }
    if (t)
        mk_table_print(t, stdout);
    mk_table_free(t);
    const bool interval = bench_interval(&c->ratio, &low, &high);
    if (c->pinned) {
        printf("without / with the controller's work: %.4f (%.4f to %.4f)\n", bench_stat_of(&c->ratio).median,
               low, high);
        return;
    }
    printf("best fixed number: %d (even rounds); in odd rounds its time is %.3f of the %s's", c->best,
           bench_stat_of(&c->ratio).median, c->controlled ? "controller" : "default budget");
    printf(interval ? " (95 %%: %.3f to %.3f)" : " (%.3f to %.3f)", low, high);
    printf("; first call %.1f us\n", c->first_us);
}

void ctl_print_sum(const struct ctl_sum *s, int n, bool cost)
{
    if (cost) {
        printf("\n%d cases: without / with the controller's work: geometric mean %.4f, lowest %.4f\n", n,
               s->mean, s->worst);
        return;
    }
    printf("\n%d cases: best fixed number of each / controller: geometric mean %.3f, lowest %.3f; / first "
           "call: %.3f, "
           "lowest %.3f\n"
           "one fixed number for all, %d: its time / controller: geometric mean %.3f, lowest %.3f\n",
           n, s->mean, s->worst, s->first_mean, s->first_worst, s->split, s->split_mean, s->split_worst);
}

static void json_case(struct mk_json *j, const struct ctl_case *c, int rounds)
{
    double low, high;
    mk_json_object(j, NULL);
    mk_json_int(j, "M", c->shape[0]);
    mk_json_int(j, "N", c->shape[1]);
    mk_json_int(j, "K", c->shape[2]);
    mk_json_real(j, "ratio_asked", c->link.ratio);
    mk_json_real(j, "link_gbps", c->link.gbps);
    mk_json_int(j, "blocks", c->blocks);
    mk_json_bool(j, "controlled", c->controlled);
    mk_json_int(j, "pinned", c->pinned);
    mk_json_real(j, "first_call_us", c->first_us);
    mk_json_array(j, "sweep");
    for (int v = 0; v <= c->most; v++) {
        mk_json_object_flat(j, NULL);
        mk_json_int(j, "comm_blocks", v); /* 0: the controller */
        mk_json_real(j, "us", ctl_median(c->us[v], rounds, -1));
        mk_json_end(j);
    }
    mk_json_end(j);
    const bool interval = bench_interval(&c->ratio, &low, &high);
    mk_json_int(j, "best_fixed", c->best);
    mk_json_real(j, "best_fixed_us", c->best_us);
    mk_json_real(j, "controller_us", c->own_us);
    mk_json_real(j, "best_to_controller", bench_stat_of(&c->ratio).median);
    mk_json_real(j, "low", low);
    mk_json_real(j, "high", high);
    mk_json_bool(j, "interval", interval);
    mk_json_end(j);
}

int ctl_json(const char *path, const struct ar_bench *b, const struct ctl_case *cases, int n, int rounds)
{
    const struct ctl_sum s = ctl_sum_of(cases, n, rounds);
    struct mk_json j;
    if (mk_json_open(&j, path))
        return mk_cli_say("%s", mk_last_error()), 1;
    mk_json_object(&j, NULL);
    bench_json_machine(&j);
    mk_json_int(&j, "nodes", b->info.nnodes);
    mk_json_int(&j, "ranks_per_node", b->info.local_nranks);
    mk_json_int(&j, "rounds", rounds);
    mk_json_array(&j, "cases");
    for (int i = 0; i < n; i++)
        json_case(&j, &cases[i], rounds);
    mk_json_end(&j);
    mk_json_real(&j, "best_to_controller_mean", s.mean);
    mk_json_real(&j, "best_to_controller_lowest", s.worst);
    mk_json_real(&j, "best_to_first_call_mean", s.first_mean);
    mk_json_real(&j, "best_to_first_call_lowest", s.first_worst);
    mk_json_int(&j, "one_for_all", s.split);
    mk_json_real(&j, "one_for_all_to_controller_mean", s.split_mean);
    mk_json_real(&j, "one_for_all_to_controller_lowest", s.split_worst);
    mk_json_end(&j);
    return mk_json_close(&j) ? (mk_cli_say("%s", mk_last_error()), 1) : 0;
}

/* ---- picture ---- */

enum { WIDTH = 360, HEIGHT = 240, COLUMNS = 3, MARGIN = 44 };

/* One case at (x0, y0): a line over the fixed numbers, the controller as a level line with its point at the left. */
static void panel(FILE *f, const struct ctl_case *c, int rounds, int x0, int y0)
{
    const double w = WIDTH - 2 * MARGIN, h = HEIGHT - 2 * MARGIN;
    double top = 0, us[CTL_BUDGETS];
    for (int v = 0; v <= c->most; v++) {
        us[v] = ctl_median(c->us[v], rounds, -1);
        top = us[v] > top ? us[v] : top;
    }
#define X(v) (x0 + MARGIN + w * (v) / (c->most ? c->most : 1))
#define Y(t) (y0 + MARGIN + h * (1 - (t) / top))
    fprintf(f, "<text x=\"%d\" y=\"%d\">%lld x %lld x %lld", x0 + MARGIN, y0 + 20, (long long)c->shape[0],
            (long long)c->shape[1], (long long)c->shape[2]);
    if (c->link.ratio > 0)
        fprintf(f, ", ratio %g", c->link.ratio);
    fprintf(f, "</text>\n<path class=\"axis\" d=\"M%d %d V%.0f H%.0f\"/>\n", x0 + MARGIN, y0 + MARGIN, Y(0),
            X(c->most));
    fprintf(f, "<text x=\"%d\" y=\"%.0f\" class=\"end\">%.0f us</text>\n", x0 + MARGIN - 4, Y(top) + 4, top);
    fprintf(f, "<text x=\"%.0f\" y=\"%.0f\" class=\"mid\">%d</text>\n", X(c->most), Y(0) + 16, c->most);
    fprintf(f, "<text x=\"%.0f\" y=\"%.0f\" class=\"mid\">communicating blocks</text>\n", X(c->most / 2.0),
            Y(0) + 30);
    fputs("<polyline class=\"fixed\" points=\"", f);
    for (int v = 1; v <= c->most; v++)
        fprintf(f, "%.1f,%.1f ", X(v), Y(us[v]));
    fputs("\"/>\n", f);
    for (int v = 1; v <= c->most; v++)
        fprintf(f,
                "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"><title>%d: %.1f us</title></circle>\n",
                v == c->best ? "best" : "dot", X(v), Y(us[v]), v, us[v]);
    fprintf(f, "<path class=\"own\" d=\"M%d %.1f H%.0f\"/>\n", x0 + MARGIN, Y(us[0]), X(c->most));
    fprintf(f, "<circle class=\"point\" cx=\"%d\" cy=\"%.1f\" r=\"4\"><title>%s: %.1f us</title></circle>\n",
            x0 + MARGIN, Y(us[0]), c->controlled ? "controller" : "default", us[0]);
#undef X
#undef Y
}

int ctl_svg(const char *path, const struct ctl_case *cases, int n, int rounds)
{
    struct mk_out out;
    const int columns = n < COLUMNS ? n : COLUMNS, rows = (n + COLUMNS - 1) / COLUMNS;
    if (mk_out_open(&out, path))
        return mk_cli_say("%s", mk_last_error()), 1;
    fprintf(out.file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\">\n<style>text{font:12px "
            "sans-serif}"
            ".end{text-anchor:end}.mid{text-anchor:middle}.axis{fill:none;stroke:#888}.fixed{fill:none;"
            "stroke:#369}"
            ".dot{fill:#369}.best{fill:#393}.own{stroke:#c40;stroke-dasharray:4}.point{fill:#c40}</style>\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
            columns * WIDTH, rows * HEIGHT);
    for (int i = 0; i < n; i++)
        panel(out.file, &cases[i], rounds, i % COLUMNS * WIDTH, i / COLUMNS * HEIGHT);
    fputs("</svg>\n", out.file);
    return mk_out_commit(&out) ? (mk_cli_say("%s", mk_last_error()), 1) : 0;
}
