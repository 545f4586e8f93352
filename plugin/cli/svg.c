/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The picture of a call. One row a block, grouped by rank; colour is the role; time runs to the right. A task that
 * is at least MIN_BAR wide is a bar of its own with a tooltip; narrower ones are mixed into cells of CELL, each with
 * the colour of the role that took most of it, so that a million events still make a small file. */
#include "mk/err.h"
#include "out.h"
#include "table.h"
#include "timeline.h"
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 1200, LEFT = 150, RIGHT = 24, TOP = 122, BOTTOM = 74, PLOT = WIDTH - LEFT - RIGHT };
static const double min_bar = 2.0, cell = 0.5;
enum { CELLS = 2 * PLOT };

static const struct {
    const char *name, *meaning, *color;
} roles[MK_ROLES] = {
    [MK_ROLE_COMPUTE] = {"compute", "multiplies a tile", "#3a6fb5"},
    [MK_ROLE_INTRA] = {"intra", "reduces inside the node", "#f2a33a"},
    [MK_ROLE_SEND] = {"send", "to other nodes", "#2a9d6f"},
    [MK_ROLE_RECV] = {"recv", "from other nodes", "#b5479b"},
    [MK_ROLE_IDLE] = {"idle", "waits", "#e3e6eb"},
};

struct view {
    const struct mk_timeline *t;
    FILE *f;
    uint64_t begin, end;
    double row;            /* height of a row */
    double gap;            /* between ranks */
    double busy[MK_ROLES]; /* ns */
};

static void put_text(FILE *f, const char *s)
{
    for (; s && *s; s++) {
        if (*s == '&')
            fputs("&amp;", f);
        else if (*s == '<')
            fputs("&lt;", f);
        else if (*s == '>')
            fputs("&gt;", f);
        else if ((unsigned char)*s >= 0x20)
            fputc(*s, f);
    }
}

static double x_of(const struct view *v, uint64_t ns)
{
    const double span = v->end > v->begin ? (double)(v->end - v->begin) : 1;
    return LEFT + (double)(ns - v->begin) / span * PLOT;
}

static void bar(const struct view *v, int role, double x, double y, double w)
{
    fprintf(v->f, "<rect class=\"r%d\" x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\"", role, x, y, w,
            v->row - 1);
}

static const char *task_of(const struct view *v, const struct mk_trace_event *e)
{
    const char *name = v->t->task_name && e->role != MK_ROLE_IDLE ? v->t->task_name(e->task) : NULL;
    return name ? name : roles[e->role].name;
}

/* Rows of cells as bars: neighbours of one role together. */
static void put_cells(const struct view *v, const double (*cells)[MK_ROLES], double y)
{
    int start = 0, role = -1;
    for (int c = 0; c <= CELLS; c++) {
        int now = -1;
        for (int r = 0; c < CELLS && r < MK_ROLES; r++)
            if (cells[c][r] > 0 && (now < 0 || cells[c][r] > cells[c][now]))
                now = r;
        if (now == role)
            continue;
        if (role >= 0) {
            bar(v, role, LEFT + start * cell, y, (c - start) * cell);
            fputs("/>\n", v->f);
        }
        start = c;
        role = now;
    }
}

static void add_to_cells(double (*cells)[MK_ROLES], int role, double x0, double x1)
{
    int c0 = (int)((x0 - LEFT) / cell), c1 = (int)((x1 - LEFT) / cell);
    c1 = c1 < CELLS - 1 ? c1 : CELLS - 1;
    for (int c = c0 < 0 ? 0 : c0; c <= c1; c++) {
        const double from = LEFT + c * cell, to = from + cell;
        const double share = (x1 < to ? x1 : to) - (x0 > from ? x0 : from);
        cells[c][role] += share > 0 ? share : 0;
    }
}

static void put_bar(const struct view *v, const struct mk_trace_event *e, double x0, double x1, double y)
{
    bar(v, e->role, x0, y, x1 - x0);
    fputs(x1 - x0 >= 2 * min_bar ? " stroke=\"#fff\" stroke-width=\"0.6\"><title>" : "><title>", v->f);
    put_text(v->f, task_of(v, e));
    fprintf(v->f, " %u: %.3f ms, from %.3f ms</title></rect>\n", e->index,
            (double)(e->end_ns - e->begin_ns) / 1e6, (double)(e->begin_ns - v->begin) / 1e6);
}

/* One block: the small tasks first, so that the bars lie over them. Idle is the ground that shows between. */
static void put_row(const struct view *v, const struct mk_timeline_rank *r, int block, double y,
                    double (*cells)[MK_ROLES])
{
    memset(cells, 0, CELLS * sizeof(*cells));
    for (int big = 0; big < 2; big++) {
        for (uint32_t i = 0; i < r->n; i++) {
            const struct mk_trace_event *e = &r->events[i];
            if (e->block != block || e->role >= MK_ROLE_IDLE || e->end_ns < e->begin_ns)
                continue;
            const double x0 = x_of(v, e->begin_ns), x1 = x_of(v, e->end_ns);
            if (big && x1 - x0 >= min_bar)
                put_bar(v, e, x0, x1, y);
            else if (!big && x1 - x0 < min_bar)
                add_to_cells(cells, e->role, x0, x1);
        }
        if (!big)
            put_cells(v, (const double(*)[MK_ROLES])cells, y);
    }
}

static double height_of(const struct view *v)
{
    double h = 0;
    for (int r = 0; r < v->t->nranks; r++)
        h += v->t->ranks[r].blocks * v->row + v->gap;
    return h;
}

static void put_rank(const struct view *v, int rank, double y, double (*cells)[MK_ROLES])
{
    const struct mk_timeline_rank *r = &v->t->ranks[rank];
    const double h = r->blocks * v->row;
    fprintf(v->f, "<rect x=\"%d\" y=\"%.1f\" width=\"%d\" height=\"%.1f\" class=\"r4\"/>\n", LEFT, y, PLOT,
            h - 1);
    fprintf(v->f, "<text class=\"rank\" x=\"%d\" y=\"%.1f\">rank %d</text>\n", 16, y + h / 2 + 1, rank);
    fprintf(v->f, "<text class=\"small\" x=\"%d\" y=\"%.1f\">node %d</text>\n", 16, y + h / 2 + 14, r->node);
    for (int b = 0; b < r->blocks; b++) {
        if (v->row >= 11)
            fprintf(v->f, "<text class=\"small\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">block %d</text>\n",
                    LEFT - 8, y + (b + 0.5) * v->row + 3.5, b);
        put_row(v, r, b, y + b * v->row, cells);
    }
}

/* 1, 2 or 5 times a power of ten, so that 5 to 12 steps make the whole. */
static double tick(double whole)
{
    double step = pow(10, floor(log10(whole / 5)));
    if (whole / step > 25)
        step *= 5;
    else if (whole / step > 12)
        step *= 2;
    return step;
}

static void put_axis(const struct view *v, double y)
{
    const double ms = (double)(v->end - v->begin) / 1e6;
    const double step = ms > 0 ? tick(ms) : 1;
    const int digits = step < 1 ? (int)ceil(-log10(step) - 1e-9) : 0;
    for (int i = 0; i * step <= ms * (1 + 1e-9); i++) {
        const double x = ms > 0 ? LEFT + i * step / ms * PLOT : LEFT;
        fprintf(v->f, "<path class=\"grid\" d=\"M%.2f %d V%.1f\"/>\n", x, TOP - 6, y + 4);
        fprintf(v->f, "<text class=\"small\" x=\"%.2f\" y=\"%.1f\" text-anchor=\"middle\">%.*f</text>\n", x,
                y + 18, digits, i * step);
    }
    fprintf(v->f, "<text class=\"small\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">time in ms</text>\n",
            WIDTH - RIGHT, y + 34);
}

static void put_legend(const struct view *v)
{
    double all = 0;
    for (int r = 0; r < MK_ROLES; r++)
        all += v->busy[r];
    double x = LEFT;
    for (int r = 0; r < MK_ROLES; r++) {
        fprintf(v->f, "<rect class=\"r%d\" x=\"%.0f\" y=\"76\" width=\"14\" height=\"14\" rx=\"2\"/>\n", r,
                x);
        fprintf(v->f, "<text x=\"%.0f\" y=\"88\">%s <tspan class=\"small\">%.0f %%</tspan></text>\n", x + 20,
                roles[r].name, all > 0 ? 100 * v->busy[r] / all : 0);
        fprintf(v->f, "<text class=\"small\" x=\"%.0f\" y=\"103\">%s</text>\n", x + 20, roles[r].meaning);
        x += 205;
    }
}

static void put_head(const struct view *v)
{
    fputs("<text class=\"title\" x=\"16\" y=\"30\">", v->f);
    put_text(v->f, v->t->title);
    fputs("</text>\n<text class=\"small\" x=\"16\" y=\"52\">", v->f);
    put_text(v->f, v->t->subtitle);
    fputs("</text>\n", v->f);
}

/* The sentence that the picture is looked at for. */
static void put_foot(const struct view *v, double y)
{
    const struct mk_timeline *t = v->t;
    const double share = mk_hidden_share(t->t_compute, t->t_comm, t->t_fused);
    uint64_t dropped = 0;
    char a[24], b[24], c[24];
    fprintf(v->f, "<text class=\"foot\" x=\"16\" y=\"%.1f\">", y);
    if (isnan(share))
        fprintf(v->f, "This call took %s.", mk_table_time((double)(v->end - v->begin) / 1e9, a));
    else
        fprintf(v->f,
                "%.0f %% of the communication time is hidden behind compute: compute alone %s, communication "
                "alone %s, fused %s.",
                100 * share, mk_table_time(t->t_compute, a), mk_table_time(t->t_comm, b),
                mk_table_time(t->t_fused, c));
    if (mk_is_disturbed(t->t_compute, t->t_fused))
        fputs(" (disturbed: fused cannot be faster than compute alone)", v->f);
    for (int r = 0; r < t->nranks; r++)
        dropped += t->ranks[r].dropped;
    if (dropped)
        fprintf(v->f, " %llu further events were not recorded.", (unsigned long long)dropped);
    fputs("</text>\n", v->f);
}

static void put_style(const struct view *v, double height)
{
    fprintf(v->f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%.0f\" viewBox=\"0 0 %d "
            "%.0f\">\n<style>\n"
            "text { font: 13px 'DejaVu Sans', Verdana, sans-serif; fill: #20242c }\n"
            ".title { font-size: 18px; font-weight: bold }\n.rank { font-weight: bold }\n"
            ".small { font-size: 11px; fill: #59606e }\n.foot { font-size: 14px; font-weight: bold }\n"
            ".grid { stroke: #20242c; stroke-opacity: 0.18; stroke-width: 1; fill: none }\n",
            WIDTH, height, WIDTH, height);
    for (int r = 0; r < MK_ROLES; r++)
        fprintf(v->f, ".r%d { fill: %s }\n", r, roles[r].color);
    fprintf(v->f, "</style>\n<rect width=\"%d\" height=\"%.0f\" fill=\"#ffffff\"/>\n", WIDTH, height);
}

static void put_all(struct view *v, double (*cells)[MK_ROLES])
{
    const double plot = height_of(v);
    put_style(v, TOP + plot + BOTTOM);
    put_head(v);
    put_legend(v);
    double y = TOP;
    for (int r = 0; r < v->t->nranks; r++) {
        put_rank(v, r, y, cells);
        y += v->t->ranks[r].blocks * v->row + v->gap;
    }
    put_axis(v, TOP + plot - v->gap);
    put_foot(v, TOP + plot + BOTTOM - 18);
    fputs("</svg>\n", v->f);
}

int mk_timeline_svg(const struct mk_timeline *t, const char *path)
{
    struct mk_out out;
    struct view v = {.t = t, .gap = 10};
    int rows = 0;
    for (int r = 0; r < t->nranks; r++) {
        rows += t->ranks[r].blocks;
        for (uint32_t i = 0; i < t->ranks[r].n; i++) {
            const struct mk_trace_event *e = &t->ranks[r].events[i];
            if (e->role < MK_ROLES && e->end_ns > e->begin_ns)
                v.busy[e->role] += (double)(e->end_ns - e->begin_ns);
        }
    }
    v.row = rows ? 560.0 / rows : 30;
    v.row = v.row > 34 ? 34 : v.row < 5 ? 5 : v.row;
    mk_timeline_span(t, &v.begin, &v.end);
    /* Idle is whatever is not work, also before a row's first event and after its last. */
    v.busy[MK_ROLE_IDLE] = (double)(v.end - v.begin) * rows;
    for (int role = 0; role < MK_ROLE_IDLE; role++)
        v.busy[MK_ROLE_IDLE] -= v.busy[role];
    v.busy[MK_ROLE_IDLE] = v.busy[MK_ROLE_IDLE] > 0 ? v.busy[MK_ROLE_IDLE] : 0;
    double(*cells)[MK_ROLES] = malloc(CELLS * sizeof(*cells));
    if (!cells)
        return mk_fail_quiet(MK_ERR_NOMEM, "%s: out of memory", path);
    int ret = mk_out_open(&out, path);
    if (!ret) {
        v.f = out.file;
        put_all(&v, cells);
        ret = mk_out_commit(&out);
    }
    free(cells);
    return ret;
}
