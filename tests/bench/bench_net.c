/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* mkbench net: command line, the two processes, the pairs, table and JSON. Patterns: net.h. */
#include "mk/err.h"
#include "plugin/cli/cli.h"
#include "plugin/cli/table.h"
#include "tests/bench/bench.h"
#include "tests/bench/net.h"
#include "tests/bench/options.h"
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define STREAM_BYTES (16u << 20)
#define STREAM_MAX 4000u
#define TRIES 3u /* rounds begun for each undisturbed one that is wanted */
#define PINGPONGS 400u
#define ROWS_MAX (BENCH_SIZES + 2)

enum what { BANDWIDTH, RATE, LATENCY };
static const struct {
    const char *name, *unit;
} whats[] = {{"bandwidth", "MB/s"}, {"rate", "1000/s"}, {"latency", "us"}};

struct options {
    const char *provider, *json;
    struct bench_sizes sizes;
    int pairs, rounds;
    const char *only; /* NULL: everything */
    bool null;        /* the raw loop against itself */
};

/* One line of the table: A against B. Ratio B / A of each pair; latency also as a difference. */
struct row {
    enum what what;
    uint32_t size;
    struct bench_samples a, b, ratio, diff;
};

struct counts {
    unsigned rounds, disturbed; /* all of them; those left out */
    unsigned lone;              /* pairs that stand on one disturbed round, since there was no other */
};

struct run {
    const struct options *o;
    struct net_peer p;
    struct row row[ROWS_MAX];
    int nrows;
    struct row proxy[3]; /* A: MK_BATCH=1, B: 8 */
    struct mk_proxy_stats stats[2];
    struct counts n;
};

static const char help[] =
    "usage: mkbench net [options]\n"
    "Two processes on this host: the network engine, driven by the calling thread, against a raw libfabric "
    "loop of\n"
    "the same provider, window (16) and batches (MK_BATCH), interleaved; then through ring and proxy "
    "thread.\n"
    "  --provider NAME   libfabric provider (default: as MK_OFI_PROVIDER, auto)\n"
    "  --sizes A,B,..    bytes of the bandwidth rows, with K and M, up to 4M (default 64K,256K,1M,4M)\n"
    "  --pairs N         pairs of each row, odd, up to 101 (default 11)\n"
    "  --rounds N        runs of each side that make a pair, 1 to 64 (default 8)\n"
    "  --only WHAT       bandwidth, latency, rate or proxy (default: all)\n"
    "  --null            the raw loop against a second one: what these pairs cannot tell apart\n"
    "  --json FILE       every figure as JSON\n";

int net_swap(const struct net_peer *p, const void *mine, void *theirs, size_t n)
{
    if (send(p->fd, mine, n, MSG_NOSIGNAL) != (ssize_t)n)
        return 1;
    for (size_t at = 0; at < n;) {
        struct pollfd f = {p->fd, POLLIN, 0};
        if (poll(&f, 1, (int)(NET_LIMIT_NS / 1000000)) != 1)
            return 1;
        const ssize_t k = recv(p->fd, (char *)theirs + at, n - at, 0);
        if (k <= 0)
            return 1;
        at += (size_t)k;
    }
    return 0;
}

int net_step(const struct net_peer *p)
{
    char c = 's', d;
    return net_swap(p, &c, &d, 1);
}

/* ---- measuring ---- */

static uint32_t count_of(enum what what, uint32_t size)
{
    if (what == LATENCY)
        return PINGPONGS;
    const uint32_t n = STREAM_BYTES / size;
    return n > STREAM_MAX ? STREAM_MAX : n < 2 * NET_WINDOW ? 2 * NET_WINDOW : n;
}

/* Times this process was put off its processor for another one. */
static long put_off(void)
{
    struct rusage u;
    return getrusage(RUSAGE_SELF, &u) ? 0 : u.ru_nivcsw;
}

struct outcome {
    double seconds;
    long disturbed;
};

/* One run on both sides. */
static int run_once(struct run *r, const struct net_impl *i, void *impl, enum what what, uint32_t size,
                    struct outcome *out)
{
    const uint32_t n = count_of(what, size);
    struct outcome mine, theirs;
    if (net_step(&r->p))
        return 1;
    mine.disturbed = -put_off();
    mine.seconds = what == LATENCY ? i->pingpong(impl, size, n) : i->stream(impl, size, n);
    mine.disturbed += put_off();
    if (mine.seconds < 0)
        mk_cli_say("%s: %s at %u bytes failed: %s", i->name, whats[what].name, size, mk_last_error());
    if (net_swap(&r->p, &mine, &theirs, sizeof(mine)) || mine.seconds < 0 || theirs.seconds < 0)
        return 1;
    out->seconds = r->p.who == 0 ? mine.seconds : theirs.seconds;
    out->disturbed = mine.disturbed + theirs.disturbed;
    return 0;
}

static double figure(enum what what, uint32_t size, double seconds)
{
    const uint32_t n = count_of(what, size);
    if (what == LATENCY)
        return seconds / n / 2 * 1e6;
    return what == RATE ? n / seconds * 1e-3 : (double)size * n / seconds * 1e-6;
}

/* One pair: the mean time of each side over `want` rounds. A round is one run of A and one of B close together, and
 * rounds take turns in who begins: one run alone differs by a tenth from the next one where the network is TCP. A
 * round during which other programs took a processor from either side is left out, as far as there are others; runs
 * are short for that reason. */
static int measure_pair(struct run *r, const struct row *row, const struct net_impl *const impl[2],
                        void *const with[2], uint32_t first, uint32_t want, double seconds[2])
{
    uint32_t clean = 0;
    long least = LONG_MAX;
    double sum[2] = {0, 0};
    for (uint32_t t = 0; t < TRIES * want && clean < want; t++) {
        struct outcome o[2];
        for (uint32_t k = 0; k < 2; k++) {
            const uint32_t which = (first + t + k) & 1;
            if (run_once(r, impl[which], with[which], row->what, row->size, &o[which]))
                return 1;
        }
        const long disturbed = o[0].disturbed + o[1].disturbed;
        r->n.rounds++;
        r->n.disturbed += disturbed != 0;
        clean += !disturbed;
        for (int k = 0; k < 2; k++) {
            if (!disturbed)
                sum[k] += o[k].seconds;
            else if (disturbed < least)
                seconds[k] = o[k].seconds;
        }
        least = disturbed && disturbed < least ? disturbed : least;
    }
    for (int k = 0; clean && k < 2; k++)
        seconds[k] = sum[k] / clean;
    r->n.lone += !clean;
    r->n.disturbed -= !clean;
    return 0;
}

/* Pairs of A and B; one round before them does not count. */
static int measure(struct run *r, struct row *row, const struct net_impl *const impl[2], void *const with[2])
{
    const struct counts before = r->n;
    double s[2] = {0, 0};
    if (measure_pair(r, row, impl, with, 1, 1, s))
        return 1;
    r->n = before;
    for (int pair = 0; pair < r->o->pairs; pair++) {
        if (measure_pair(r, row, impl, with, (uint32_t)pair, (uint32_t)r->o->rounds, s))
            return 1;
        if (r->p.who == 1)
            continue;
        const double a = figure(row->what, row->size, s[0]), b = figure(row->what, row->size, s[1]);
        bench_add(&row->a, a);
        bench_add(&row->b, b);
        bench_add(&row->ratio, b / a);
        bench_add(&row->diff, b - a);
    }
    return 0;
}

static bool wanted(const struct run *r, const char *what)
{
    return r->o->only ? !strcmp(r->o->only, what) : !r->o->null || strcmp(what, "proxy") != 0;
}

static int against_raw(struct run *r)
{
    const struct net_impl *const impl[2] = {&net_raw, r->o->null ? &net_raw : &net_engine};
    void *with[2] = {NULL, NULL};
    int bad = impl[0]->open(&r->p, &with[0]) || impl[1]->open(&r->p, &with[1]);
    for (int i = 0; wanted(r, "bandwidth") && i < r->o->sizes.n; i++)
        r->row[r->nrows++] = (struct row){.what = BANDWIDTH, .size = (uint32_t)r->o->sizes.v[i]};
    if (wanted(r, "latency"))
        r->row[r->nrows++] = (struct row){.what = LATENCY, .size = 8};
    if (wanted(r, "rate"))
        r->row[r->nrows++] = (struct row){.what = RATE, .size = 8};
    for (int i = 0; !bad && i < r->nrows; i++)
        bad = measure(r, &r->row[i], impl, with);
    if (!bad)
        bad = net_step(&r->p);
    for (int i = 0; i < 2; i++)
        if (with[i])
            impl[i]->close(with[i]);
    return bad;
}

static int through_proxy(struct run *r)
{
    static const struct net_impl *const impl[2] = {&net_proxy, &net_proxy};
    static const struct row rows[3] = {
        {.what = RATE, .size = 8}, {.what = BANDWIDTH, .size = 65536}, {.what = LATENCY, .size = 8}};
    void *with[2] = {NULL, NULL};
    const int64_t batch = r->p.s.batch;
    r->p.s.batch = 1;
    int bad = net_proxy.open(&r->p, &with[0]);
    r->p.s.batch = 8;
    bad = bad || net_proxy.open(&r->p, &with[1]);
    r->p.s.batch = batch;
    for (int i = 0; i < 3; i++) {
        r->proxy[i] = rows[i];
        bad = bad || measure(r, &r->proxy[i], impl, with);
        if (i == 0) /* the fill of the rate row alone says something about batches */
            for (int k = 0; !bad && k < 2; k++)
                net_proxy_stats(with[k], &r->stats[k]);
    }
    if (!bad)
        bad = net_step(&r->p);
    for (int i = 0; i < 2; i++)
        if (with[i])
            net_proxy.close(with[i]);
    return bad;
}

/* ---- output ---- */

/* "yes", "no", or "" where there is none. The figures are a benchmark's, not a test's: the exit code is 0. */
static const char *target(const struct row *row, const char **said)
{
    const double ratio = bench_stat_of(&row->ratio).median, diff = bench_stat_of(&row->diff).median;
    *said = "";
    if (row->what == BANDWIDTH && row->size >= 256u << 10)
        *said = ">= 0.95";
    else if (row->what == RATE)
        *said = ">= 0.85";
    else if (row->what == LATENCY)
        *said = "<= +0.6 us";
    else
        return "";
    return (row->what == LATENCY ? diff <= 0.6 : ratio >= (row->what == RATE ? 0.85 : 0.95)) ? "yes" : "no";
}

static void table_row(struct mk_table *t, const struct row *row, bool with_target)
{
    const struct bench_stat a = bench_stat_of(&row->a), b = bench_stat_of(&row->b);
    const struct bench_stat ratio = bench_stat_of(&row->ratio), diff = bench_stat_of(&row->diff);
    const char *said, *met = target(row, &said);
    char size[24];
    snprintf(size, sizeof(size), row->size < 1024 ? "%u B" : "%u KiB",
             row->size < 1024 ? row->size : row->size >> 10);
    mk_table_row(t, "%s|%s|%s|%.2f|%.2f..%.2f|%.2f|%.2f..%.2f|%.3f|%.3f..%.3f|%+.2f|%s|%s",
                 whats[row->what].name, size, whats[row->what].unit, a.median, a.min, a.max, b.median, b.min,
                 b.max, ratio.median, ratio.min, ratio.max, diff.median, with_target ? said : "",
                 with_target ? met : "");
}

static int print_tables(const struct run *r)
{
    const bool null = r->o->null;
    struct mk_table *t = mk_table_new(
        null ? "what|>size|unit|>raw|>min..max|>raw again|>min..max|>ratio|>min..max|>difference||"
             : "what|>size|unit|>raw|>min..max|>engine|>min..max|>ratio|>min..max|>difference|target|met");
    printf("%s against raw libfabric, provider %s, %d pairs of %d rounds, medians\n",
           null ? "raw libfabric" : "engine", net_raw_provider(), r->o->pairs, r->o->rounds);
    for (int i = 0; i < r->nrows; i++)
        table_row(t, &r->row[i], !null);
    int ret = mk_table_print(t, stdout);
    mk_table_free(t);
    printf("%u rounds; %u were disturbed by other programs and left out; %u pairs had no undisturbed one and "
           "stand on "
           "the least disturbed\n",
           r->n.rounds, r->n.disturbed, r->n.lone);
    if (!wanted(r, "proxy"))
        return ret;
    t = mk_table_new("what|>size|unit|>batch 1|>min..max|>batch 8|>min..max|>ratio|>min..max|>difference||");
    printf("\nthrough ring and proxy thread, batches of 8 against 1\n");
    for (int i = 0; i < 3; i++)
        table_row(t, &r->proxy[i], false);
    ret = ret ? ret : mk_table_print(t, stdout);
    mk_table_free(t);
    for (int k = 0; k < 2; k++) {
        const struct mk_proxy_stats *s = &r->stats[k];
        printf("batch %d: %llu commands in %llu batches (%.2f each; full ones %llu), %llu window waits, %llu "
               "sleeps\n",
               k ? 8 : 1, (unsigned long long)s->commands, (unsigned long long)s->batches,
               (double)s->commands / (double)(s->batches ? s->batches : 1),
               (unsigned long long)s->fill[k ? 8 : 1], (unsigned long long)s->window_waits,
               (unsigned long long)s->sleeps);
    }
    return ret;
}

static void json_row(struct mk_json *j, const struct row *row, const char *a, const char *b, bool with_target)
{
    const struct bench_stat stat[4] = {bench_stat_of(&row->a), bench_stat_of(&row->b),
                                       bench_stat_of(&row->ratio), bench_stat_of(&row->diff)};
    const char *const name[4] = {a, b, "ratio", "difference"};
    const char *said, *met = target(row, &said);
    mk_json_object(j, NULL);
    mk_json_text(j, "what", whats[row->what].name);
    mk_json_int(j, "bytes", row->size);
    mk_json_text(j, "unit", whats[row->what].unit);
    for (int i = 0; i < 4; i++)
        bench_json_stat(j, name[i], &stat[i]);
    if (with_target && *said) {
        mk_json_text(j, "target", said);
        mk_json_bool(j, "met", !strcmp(met, "yes"));
    }
    mk_json_end(j);
}

static void json_stats(struct mk_json *j, int batch, const struct mk_proxy_stats *s)
{
    mk_json_object_flat(j, NULL);
    mk_json_int(j, "batch", batch);
    mk_json_int(j, "commands", (int64_t)s->commands);
    mk_json_int(j, "batches", (int64_t)s->batches);
    mk_json_array(j, "fill");
    for (int i = 0; i < 9; i++)
        mk_json_int(j, NULL, (int64_t)s->fill[i]);
    mk_json_end(j);
    mk_json_int(j, "window_waits", (int64_t)s->window_waits);
    mk_json_int(j, "sleeps", (int64_t)s->sleeps);
    mk_json_end(j);
}

static int write_json(const struct run *r)
{
    struct mk_json j;
    int ret = mk_json_open(&j, r->o->json);
    if (ret)
        return ret;
    mk_json_object(&j, NULL);
    mk_json_text(&j, "bench", "net");
    mk_json_text(&j, "provider", net_raw_provider());
    mk_json_int(&j, "pairs", r->o->pairs);
    mk_json_int(&j, "rounds_of_a_pair", r->o->rounds);
    mk_json_int(&j, "window", NET_WINDOW);
    mk_json_int(&j, "batch", r->p.s.batch);
    mk_json_bool(&j, "null", r->o->null);
    mk_json_int(&j, "rounds", r->n.rounds);
    mk_json_int(&j, "disturbed", r->n.disturbed);
    mk_json_int(&j, "pairs_disturbed", r->n.lone);
    bench_json_machine(&j);
    mk_json_array(&j, "rows");
    for (int i = 0; i < r->nrows; i++)
        json_row(&j, &r->row[i], "raw", r->o->null ? "raw_again" : "engine", !r->o->null);
    mk_json_end(&j);
    const int nproxy = wanted(r, "proxy") ? 3 : 0;
    mk_json_array(&j, "proxy");
    for (int i = 0; i < nproxy; i++)
        json_row(&j, &r->proxy[i], "batch1", "batch8", false);
    mk_json_end(&j);
    mk_json_array(&j, "proxy_stats");
    for (int k = 0; nproxy && k < 2; k++)
        json_stats(&j, k ? 8 : 1, &r->stats[k]);
    mk_json_end(&j);
    mk_json_end(&j);
    return mk_json_close(&j);
}

/* ---- the command ---- */

static bool only(void *to, const char *text)
{
    *(const char **)to = text;
    return !strcmp(text, "bandwidth") || !strcmp(text, "latency") || !strcmp(text, "rate") ||
           !strcmp(text, "proxy");
}

/* 0, or the exit code + 1. */
static int parse(struct options *o, int argc, char **argv)
{
    const struct bench_option table[] = {
        {"provider", BENCH_TEXT, &o->provider, 0, 0, NULL},
        {"json", BENCH_TEXT, &o->json, 0, 0, NULL},
        {"sizes", BENCH_CALL, &o->sizes, 0, 0, bench_sizes},
        {"pairs", BENCH_INT, &o->pairs, 1, BENCH_SAMPLES, NULL},
        {"rounds", BENCH_INT, &o->rounds, 1, 64, NULL},
        {"only", BENCH_CALL, &o->only, 0, 0, only},
        {"null", BENCH_FLAG, &o->null, 0, 0, NULL},
        {NULL, BENCH_FLAG, NULL, 0, 0, NULL},
    };
    const int stop = bench_options(argc, argv, table, false, help);
    if (stop)
        return stop;
    if (!(o->pairs & 1))
        return mk_cli_usage("--pairs: an odd number up to %d", BENCH_SAMPLES) + 1;
    if (o->null && o->only && !strcmp(o->only, "proxy"))
        return mk_cli_usage("--null is about the rows against raw, not about --only proxy") + 1;
    return 0;
}

static int both(struct run *r)
{
    int bad = mk_shm_create("mkbench", (size_t)NET_WINDOW * NET_MAX + 4096, &r->p.mem);
    if (bad)
        return 1;
    memset(r->p.mem.addr, 0x5a, r->p.mem.size);
    if (!bad)
        bad = against_raw(r) || (wanted(r, "proxy") && through_proxy(r));
    mk_shm_release(&r->p.mem);
    return bad;
}

static int settle(struct run *r, const struct options *o)
{
    if (mk_settings_load(&r->p.s, true)) {
        mk_cli_say("%s", mk_last_error());
        return MK_EXIT_USAGE;
    }
    snprintf(r->p.s.net, sizeof(r->p.s.net), "ofi");
    if (o->provider && o->provider[0])
        snprintf(r->p.s.ofi_provider, sizeof(r->p.s.ofi_provider), "%s", o->provider);
    if (!r->p.s.ifname[0])
        snprintf(r->p.s.ifname, sizeof(r->p.s.ifname), "lo");
    return 0;
}

int bench_net(int argc, char **argv)
{
    static struct options o = {
        .pairs = 11, .rounds = 8, .sizes = {{64u << 10, 256u << 10, 1u << 20, 4u << 20}, NET_MAX, 4}};
    static struct run r;
    int fds[2], status = 0;
    const int stop = parse(&o, argc, argv);
    int ret = stop ? stop - 1 : settle(&r, &o);
    if (stop || ret)
        return ret;
    if (o.json && mk_out_check(o.json)) {
        mk_cli_say("%s", mk_last_error());
        return MK_EXIT_USAGE;
    }
    r.o = &o;
    const pid_t child = socketpair(AF_UNIX, SOCK_STREAM, 0, fds) ? -1 : fork();
    if (child < 0) {
        mk_cli_say("no second process");
        return MK_EXIT_FAILED;
    }
    r.p.who = child == 0;
    r.p.fd = fds[r.p.who];
    close(fds[!r.p.who]);
    ret = both(&r);
    if (child == 0)
        exit(ret);
    if (ret)
        kill(child, SIGTERM);
    if (waitpid(child, &status, 0) != child || status)
        ret = 1;
    if (ret) {
        mk_cli_say("failed: %s", mk_last_error());
        return MK_EXIT_FAILED;
    }
    if (print_tables(&r) || (o.json && write_json(&r))) {
        mk_cli_say("%s", mk_last_error());
        return MK_EXIT_FAILED;
    }
    return mk_cli_flush();
}
