/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What rank 0 does at the end, alone: verify, write, tell. */
#include "cli.h"
#include "json.h"
#include "mk/err.h"
#include "mkgemm.h"
#include "ref.h"
#include "table.h"
#include <float.h>
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

static int cores(void)
{
    cpu_set_t cpus;
    return sched_getaffinity(0, sizeof(cpus), &cpus) ? 1 : CPU_COUNT(&cpus);
}

/* A matrix of which k0 .. k0 + kn of K were loaded: element (other index, k) by strides. */
static struct mk_ref_view view_of(bool k_is_row, int64_t other, int64_t kn, const float *p)
{
    return (struct mk_ref_view){p, k_is_row ? 1 : kn, k_is_row ? other : 1};
}

/* The float64 product, panel after panel of K, so that not all of A and B must fit. */
static int reference(const struct mkgemm *g, double *ref, float *pa, float *pb, int64_t panel)
{
    for (int64_t k = 0; k < g->k; k += panel) {
        const int64_t kn = g->k - k < panel ? g->k - k : panel;
        mkgemm_progress(g, "verifying: %.0f %%", 100.0 * (double)k / (double)g->k);
        int ret = mkgemm_load(g, &g->a, k, kn, pa);
        if (!ret)
            ret = mkgemm_load(g, &g->b, k, kn, pb);
        const struct mk_ref_view a = view_of(mkgemm_a_k_is_row(g), g->m, kn, pa);
        const struct mk_ref_view bt = view_of(mkgemm_b_k_is_row(g), g->n, kn, pb);
        const struct mk_ref_view b = {bt.p, bt.col, bt.row};
        if (!ret)
            ret = mk_ref_gemm(g->m, g->n, kn, a, b, ref, cores());
        if (ret)
            return ret;
    }
    return 0;
}

static double compare(const struct mkgemm *g, const double *ref)
{
    enum { PIECE = 4096 };
    float piece[PIECE];
    struct mk_ref_error e = {0};
    const double largest = g->dtype == MK_FLOAT32 ? FLT_MAX : 0x1.fep127;
    for (int64_t i = 0; i < g->m * g->n; i += PIECE) {
        const int64_t n = g->m * g->n - i < PIECE ? g->m * g->n - i : PIECE;
        for (int64_t j = 0; j < n; j++)
            piece[j] = mkgemm_element(g, g->c, i + j);
        mk_ref_compare(&e, piece, ref + i, n, largest);
    }
    return mk_ref_relative(&e);
}

static int verify(struct mkgemm *g)
{
    const int64_t panel = g->k < 512 ? g->k : 512;
    double *ref = g->m * g->n < INT64_MAX / 8 ? calloc((size_t)(g->m * g->n) + 1, sizeof(*ref)) : NULL;
    float *pa = malloc((size_t)(g->m * panel + 1) * sizeof(*pa)),
          *pb = malloc((size_t)(g->n * panel + 1) * sizeof(*pb));
    int ret = ref && pa && pb ? reference(g, ref, pa, pb, panel)
                              : mk_fail_quiet(MK_ERR_NOMEM, "out of memory for the reference");
    if (!ret)
        g->rel_error = compare(g, ref);
    free(ref);
    free(pa);
    free(pb);
    return ret;
}

static bool is_right(const struct mkgemm *g)
{
    return g->bitwise_equal && !(g->o.verify && !(g->rel_error <= mkgemm_allowed(g)));
}

static void title_of(const struct mkgemm *g, char text[160])
{
    snprintf(text, 160, "GEMM + AllReduce  C[%lld,%lld] = sum over K = %lld, %s, layout %s", (long long)g->m,
             (long long)g->n, (long long)g->k, mkgemm_dtype_name(g->dtype), g->o.layout_name);
}

static void subtitle_of(const struct mkgemm *g, char text[320])
{
    const struct mk_comm_info *i = &g->info;
    char net[120] = "";
    if (i->nnodes > 1)
        snprintf(net, sizeof(net), ", %s%s%s between nodes (%s)", i->transport, *i->provider ? " / " : "",
                 i->provider, i->adapter);
    snprintf(text, 320, "%d node%s x %d rank%s, %d %s%s each, K %lld a rank%s, multiply by %s", i->nnodes,
             i->nnodes > 1 ? "s" : "", i->local_nranks, i->local_nranks > 1 ? "s" : "", i->threads,
             strcmp(i->gemm, "GPU") ? "thread" : "block", i->threads > 1 ? "s" : "",
             (long long)(g->k / g->nranks), net, i->gemm);
}

static int write_timeline(const struct mkgemm *g)
{
    char title[160], subtitle[320];
    title_of(g, title);
    subtitle_of(g, subtitle);
    const struct mk_timeline t = {.nranks = g->nranks,
                                  .ranks = g->lines,
                                  .title = title,
                                  .subtitle = subtitle,
                                  .t_compute = g->t[T_COMPUTE].median,
                                  .t_comm = g->t[T_COMM].median,
                                  .t_fused = g->t[T_FUSED].median,
                                  .task_name = mk_trace_task_name};
    return mk_timeline_write(&t, g->o.timeline);
}

static void put_figure(struct mk_json *j, const char *name, const struct mkgemm_figure *f)
{
    char text[48];
    mk_json_real(j, name, f->median);
    snprintf(text, sizeof(text), "%s_min", name);
    mk_json_real(j, text, f->min);
    snprintf(text, sizeof(text), "%s_max", name);
    mk_json_real(j, text, f->max);
}

static double hidden_share(const struct mkgemm *g)
{
    return g->nranks > 1 ? mk_hidden_share(g->t[T_COMPUTE].median, g->t[T_COMM].median, g->t[T_FUSED].median)
                         : NAN;
}

static int write_json(const struct mkgemm *g)
{
    struct mk_json j;
    const int ret = mk_json_open(&j, g->o.json);
    if (ret)
        return ret;
    mk_json_object(&j, NULL);
    mk_json_bool(&j, "ok", is_right(g));
    mk_json_int(&j, "nodes", g->info.nnodes);
    mk_json_int(&j, "ranks", g->nranks);
    mk_json_text(&j, "transport", g->info.transport);
    mk_json_text(&j, "provider", g->info.provider);
    mk_json_text(&j, "adapter", g->info.adapter);
    mk_json_text(&j, "dtype", mkgemm_dtype_name(g->dtype));
    mk_json_text(&j, "layout", g->o.layout_name);
    mk_json_text(&j, "gemm", g->info.gemm);
    mk_json_int(&j, "threads", g->info.threads);
    mk_json_int(&j, "chunk", (int64_t)g->info.chunk);
    mk_json_int(&j, "workspace", (int64_t)g->info.workspace);
    mk_json_int(&j, "repetitions", g->o.repeat);
    mk_json_bool(&j, "bitwise_equal", g->bitwise_equal);
    mk_json_array(&j, "shapes");
    mk_json_object(&j, NULL);
    mk_json_int(&j, "M", g->m);
    mk_json_int(&j, "N", g->n);
    mk_json_int(&j, "K", g->k);
    mk_json_real(&j, "rel_error", g->rel_error);
    put_figure(&j, "t_compute", &g->t[T_COMPUTE]);
    put_figure(&j, "t_comm", &g->t[T_COMM]);
    put_figure(&j, "t_sequential", &g->t[T_SEQUENTIAL]);
    put_figure(&j, "t_fused", &g->t[T_FUSED]);
    mk_json_real(&j, "bound", g->bound);
    mk_json_real(&j, "hidden", hidden_share(g));
    mk_json_end(&j);
    mk_json_end(&j);
    mk_json_end(&j);
    return mk_json_close(&j);
}

static int print_figures(const struct mkgemm *g)
{
    static const char *const names[T_COUNT] = {"T_compute", "T_comm", "sequential", "fused"};
    static const char *const notes[T_COUNT] = {"all local tiles, no communication", "its tiles already there",
                                               "one, then the other", "the operator"};
    char a[24], b[24], c[24];
    printf("\nslowest rank, %lld repetition%s, interleaved%s\n", g->o.repeat, g->o.repeat > 1 ? "s" : "",
           g->o.repeat < 9 ? " (fewer than 9: a hint, no result)" : "");
    struct mk_table *t = mk_table_new("|>median|>min|>max|");
    for (int i = 0; i < T_COUNT; i++)
        mk_table_row(t, "%s|%s|%s|%s|%s", names[i], mk_table_time(g->t[i].median, a),
                     mk_table_time(g->t[i].min, b), mk_table_time(g->t[i].max, c), notes[i]);
    mk_table_row(t, "bound|%s|||max(T_compute, T_comm)", mk_table_time(g->bound, a));
    const int ret = mk_table_print(t, stdout);
    mk_table_free(t);
    printf("\nfused is %.2f times as fast as sequential and takes %.2f times the bound",
           g->t[T_SEQUENTIAL].median / g->t[T_FUSED].median, g->t[T_FUSED].median / g->bound);
    const double share = hidden_share(g);
    if (!isnan(share))
        printf("; %.0f %% of T_comm is hidden behind compute", 100 * share);
    printf("\n");
    if (mk_is_disturbed(g->t[T_COMPUTE].median, g->t[T_FUSED].median))
        printf("disturbed: fused cannot be faster than computing alone; something else used the machine, "
               "measure again\n");
    return ret;
}

static int print_all(const struct mkgemm *g)
{
    char text[320];
    title_of(g, text);
    printf("%s\n", text);
    subtitle_of(g, text);
    printf("%s\n", text);
    if (g->o.repeat && print_figures(g))
        return mk_cli_say("%s", mk_last_error()), MK_EXIT_FAILED;
    if (g->o.verify)
        printf("relative error %.2g against float64, at most %.0e allowed\n", g->rel_error,
               mkgemm_allowed(g));
    if (g->nranks > 1)
        printf("all %d ranks hold the same bits\n", g->nranks);
    if (g->o.out)
        printf("%s: %lld x %lld, %s\n", g->o.out, (long long)g->m, (long long)g->n,
               mkgemm_dtype_name(g->dtype));
    if (g->o.timeline)
        printf("%s: timeline\n", g->o.timeline);
    return mk_cli_flush();
}

static void say_wrong(const struct mkgemm *g)
{
    const char *kept = g->o.out ? "; the output is not written" : "";
    if (!g->bitwise_equal)
        mk_cli_say("the ranks, or two runs of the same product, do not hold the same bits%s", kept);
    else
        mk_cli_say("the product is wrong: relative error %.3g against float64, at most %.0e allowed%s",
                   g->rel_error, mkgemm_allowed(g), kept);
}

int mkgemm_report(struct mkgemm *g)
{
    int ret = g->o.verify ? verify(g) : 0;
    mkgemm_progress(g, NULL);
    const bool right = !ret && is_right(g);
    if (!ret && right && g->o.out)
        ret = mkgemm_write_c(g);
    if (!ret && g->o.timeline)
        ret = write_timeline(g);
    if (!ret && g->o.json)
        ret = write_json(g);
    if (ret) {
        mk_cli_say("%s", mk_last_error());
        return MK_EXIT_FAILED;
    }
    if (!right) {
        say_wrong(g);
        return MK_EXIT_FAILED;
    }
    return print_all(g);
}
