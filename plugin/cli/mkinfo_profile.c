/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* mkinfo --profile: what the profiles of the ranks say together. */
#include "cli.h"
#include "json.h"
#include "mkinfo.h"
#include "profile.h"
#include "table.h"
#include <stdio.h>
#include <string.h>

struct figures {
    double bytes;             /* mean of a call */
    double median, p95, host; /* s */
    double algbw, busbw;      /* bytes/s; negative: not known */
    double overlapped;        /* share; negative: not known */
};

static struct figures figures_of(const struct mk_profile_row *r)
{
    const struct mk_kind *k = &r->k;
    struct figures f;
    f.bytes = (double)k->bytes_sum / (double)k->calls;
    f.median = 1e-9 * mk_hist_quantile(k->run_hist, 0.5);
    f.p95 = 1e-9 * mk_hist_quantile(k->run_hist, 0.95);
    f.host = 1e-9 * mk_hist_quantile(k->host_hist, 0.5);
    /* where the size is that of all ranks' parts and their number is not known, the size is of one part */
    const bool part = !r->nranks && mk_coll_bytes(k->coll, 1, 1, 2) == 2;
    f.algbw = k->timed && f.median > 0 && !part ? f.bytes / f.median : -1;
    /* algorithm bandwidth is size / time, bus bandwidth that times a factor, as in nccl-tests (doc/PERFORMANCE.md) */
    const double factor = mk_coll_bus_factor(k->coll, r->nranks);
    f.busbw = f.algbw >= 0 && factor > 0 ? f.algbw * factor : -1;
    f.overlapped = k->timed && k->gpu_clock && k->run_ns ? (double)k->overlap_ns / (double)k->run_ns : -1;
    return f;
}

static const char *size_text(double bytes, bool exact, char text[32])
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    int u = 0;
    while (bytes >= 1024 && u < 6) {
        bytes /= 1024;
        u++;
    }
    snprintf(text, 32, "%s%.4g %s", exact ? "" : "~", bytes, unit[u]);
    return text;
}

static const char *rate_text(double rate, char text[24])
{
    snprintf(text, 24, rate < 0 ? "-" : "%.2f", rate * 1e-9);
    return text;
}

/* What the program called its communicator, in a table's cell. */
static const char *name_text(const char *name, char text[32])
{
    snprintf(text, 32, "%.31s", *name ? name : "-");
    for (char *c = text; *c; c++)
        if (*c == '|' || (unsigned char)*c < 32 || *c == 127)
            *c = '?';
    return text;
}

static void row(struct mk_table *t, const struct mk_profile_row *r)
{
    const struct mk_kind *k = &r->k;
    const struct figures f = figures_of(r);
    char size[32], name[32], median[24] = "-", p95[24] = "-", alg[24], bus[24], over[24] = "-",
                             ctas[12] = "-", of[12] = "?";
    if (k->timed) {
        mk_table_time(f.median, median);
        mk_table_time(f.p95, p95);
    }
    if (f.overlapped >= 0)
        snprintf(over, sizeof(over), "%.0f %%", 100 * f.overlapped);
    if (k->channels)
        snprintf(ctas, sizeof(ctas), "%d", k->channels);
    if (r->nranks)
        snprintf(of, sizeof(of), "%d", r->nranks);
    mk_table_row(t, "%s|%s|%s|%s|%d of %s|%s|%s|%s|%llu|%llu|%s|%s|%s|%s|%s%s",
                 mk_name_of(MK_NAMES_COLL, k->coll), size_text(f.bytes, k->bytes_min == k->bytes_max, size),
                 mk_name_of(MK_NAMES_DTYPE, k->dtype), name_text(r->name, name), r->ranks, of,
                 mk_name_of(MK_NAMES_ALGO, k->algo), mk_name_of(MK_NAMES_PROTO, k->proto), ctas,
                 (unsigned long long)k->calls, (unsigned long long)k->timed, median, p95,
                 rate_text(f.algbw, alg), rate_text(f.busbw, bus), over,
                 k->gpu_clock || !k->timed ? "" : " *");
}

static void notes(const struct mk_profile_sum *s)
{
    bool host = false;
    uint64_t unfinished = 0;
    for (int i = 0; i < s->n; i++) {
        host |= !s->row[i].k.gpu_clock && s->row[i].k.timed;
        unfinished += s->row[i].k.unfinished;
    }
    printf("\n%d file%s, %d communicator%s, %llu collectives, %llu sends and receives; the profile took at "
           "most %.2g %% of a process's "
           "time.\n",
           s->files, s->files == 1 ? "" : "s", s->communicators, s->communicators == 1 ? "" : "s",
           (unsigned long long)s->collectives, (unsigned long long)s->p2p, 100 * s->cost_max);
    printf("Calls and times are of all ranks together; timed: a sample. Bandwidth in GB/s. Overlapped: share "
           "of the "
           "time in\nwhich another timed collective of the same process ran; GEMMs are not seen here.\n");
    if (host)
        printf("* by the host's clock: this NCCL does not show the GPU's (2.27 and later do).\n");
    if (unfinished)
        printf("%llu were never seen to end.\n", (unsigned long long)unfinished);
    if (s->without_gpu + s->off)
        printf(
            "%d of the processes gave up times of the GPU, %d everything, since it took more than 0.5 %%.\n",
            s->without_gpu, s->off);
    if (s->no_room || s->forgotten)
        printf("For want of room: %llu calls are in no row, %llu communicators are missing.\n",
               (unsigned long long)s->no_room, (unsigned long long)s->forgotten);
}

static int print(const struct mk_profile_sum *s)
{
    struct mk_table *t = mk_table_new(
        "collective|>size|type|communicator|ranks|algorithm|protocol|>CTAs|>calls|>timed|>median|"
        ">p95|>algbw|>busbw|>overlapped");
    for (int i = 0; i < s->n; i++)
        row(t, &s->row[i]);
    const int ret = mk_table_print(t, stdout);
    mk_table_free(t);
    if (ret) {
        mk_cli_say("%s", mk_last_error());
        return MK_EXIT_FAILED;
    }
    notes(s);
    return mk_cli_flush();
}

static void known_real(struct mk_json *j, const char *name, double v)
{
    if (v < 0)
        mk_json_text(j, name, NULL);
    else
        mk_json_real(j, name, v);
}

static void json_row(struct mk_json *j, const struct mk_profile_row *r)
{
    const struct mk_kind *k = &r->k;
    const struct figures f = figures_of(r);
    mk_json_object(j, NULL);
    mk_json_text(j, "collective", mk_name_of(MK_NAMES_COLL, k->coll));
    mk_json_text(j, "dtype", mk_name_of(MK_NAMES_DTYPE, k->dtype));
    mk_json_real(j, "bytes", f.bytes);
    mk_json_real(j, "bytes_min", (double)k->bytes_min);
    mk_json_real(j, "bytes_max", (double)k->bytes_max);
    mk_json_text(j, "communicator", r->name);
    mk_json_int(j, "nranks", r->nranks);
    mk_json_int(j, "nnodes", r->nnodes);
    mk_json_int(j, "ranks", r->ranks);
    mk_json_text(j, "algorithm", mk_name_of(MK_NAMES_ALGO, k->algo));
    mk_json_text(j, "protocol", mk_name_of(MK_NAMES_PROTO, k->proto));
    mk_json_int(j, "ctas", k->channels);
    mk_json_int(j, "calls", (int64_t)k->calls);
    mk_json_int(j, "timed", (int64_t)k->timed);
    mk_json_int(j, "unfinished", (int64_t)k->unfinished);
    mk_json_text(j, "clock", k->gpu_clock ? "gpu" : "host");
    known_real(j, "median_us", k->timed ? 1e6 * f.median : -1);
    known_real(j, "p95_us", k->timed ? 1e6 * f.p95 : -1);
    known_real(j, "min_us", k->timed ? 1e-3 * (double)k->run_min : -1);
    known_real(j, "max_us", k->timed ? 1e-3 * (double)k->run_max : -1);
    mk_json_real(j, "enqueue_median_us", 1e6 * f.host);
    known_real(j, "algbw_gbytes", f.algbw < 0 ? -1 : 1e-9 * f.algbw);
    known_real(j, "busbw_gbytes", f.busbw < 0 ? -1 : 1e-9 * f.busbw);
    known_real(j, "overlapped", f.overlapped);
    mk_json_end(j);
}

static int write_json(const struct mk_profile_sum *s, const char *path)
{
    struct mk_json j;
    int ret = mk_json_open(&j, path);
    if (!ret) {
        mk_json_object(&j, NULL);
        mk_json_int(&j, "files", s->files);
        mk_json_int(&j, "communicators", s->communicators);
        mk_json_int(&j, "collectives", (int64_t)s->collectives);
        mk_json_int(&j, "p2p", (int64_t)s->p2p);
        mk_json_real(&j, "cost_share_max", s->cost_max);
        mk_json_int(&j, "processes_without_gpu_times", s->without_gpu);
        mk_json_int(&j, "processes_off", s->off);
        mk_json_int(&j, "calls_without_room", (int64_t)s->no_room);
        mk_json_int(&j, "communicators_forgotten", (int64_t)s->forgotten);
        mk_json_array(&j, "rows");
        for (int i = 0; i < s->n; i++)
            json_row(&j, &s->row[i]);
        mk_json_end(&j);
        mk_json_end(&j);
        ret = mk_json_close(&j);
    }
    if (ret)
        mk_cli_say("%s", mk_last_error());
    return ret ? MK_EXIT_FAILED : MK_EXIT_OK;
}

int mkinfo_profile(char *const *path, int n, const char *json)
{
    struct mk_profile_sum s;
    int bad = 0, ret = MK_EXIT_OK;
    memset(&s, 0, sizeof(s));
    for (int i = 0; i < n; i++)
        if (mk_profile_add(&s, path[i])) {
            mk_cli_say("%s", mk_last_error());
            bad++;
        }
    mk_profile_sort(&s);
    if (s.files)
        ret = json ? write_json(&s, json) : print(&s);
    mk_profile_free(&s);
    return ret ? ret : bad ? MK_EXIT_USAGE : MK_EXIT_OK;
}
