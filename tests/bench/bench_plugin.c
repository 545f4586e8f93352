/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* mkbench plugin: command line, the two processes, the rounds. Patterns: plugin.h; output: plugin_report.c. */
#include "mk/err.h"
#include "plugin/cli/cli.h"
#include "tests/bench/bench.h"
#include "tests/bench/options.h"
#include "tests/bench/plugin_report.h"
#include <getopt.h> /* optind */
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define STREAM_BYTES (32u << 20)
#define STREAM_MAX 2000u
#define PINGPONG_BYTES (8u << 20)
#define PINGPONG_MAX 400u

static const char help[] =
    "usage: mkbench plugin A.so [B.so ..] [options]\n"
    "Two processes on this host, one connection, host memory, one thread each: up to four NCCL net plugins, "
    "given by\n"
    "path, and the raw libfabric provider as the bound, all of them in turn in every round. Plugins take "
    "their own\n"
    "settings from the environment (MK_NET, FI_PROVIDER, ...); the interface is lo unless MK_IFNAME or\n"
    "NCCL_SOCKET_IFNAME say otherwise. Raw is the better, by median, of remote writes and of tagged sends, "
    "with the\n"
    "same number in flight.\n"
    "  --sizes A,B,..    bytes, with K and M, up to 16M (default 8,64,512,4K,64K,256K,1M,4M,16M)\n"
    "  --only A,B        depth8, depth1, latency (default: all)\n"
    "  --pairs N         rounds of each row, odd, up to 101 (default 11)\n"
    "  --retries N       a run disturbed by other programs is repeated so many times (default 6)\n"
    "  --net N           version of the net table (default: the newest that each plugin has)\n"
    "  --provider NAME   libfabric provider of raw, and MK_OFI_PROVIDER for the plugins (default: as set, "
    "auto)\n"
    "  --no-raw          without the bound, for a network that libfabric does not reach\n"
    "  --json FILE       every figure as JSON\n"
    "PATH:N takes the plugin's first N devices merged into one, as NCCL merges NICs (makeVDevice), PATH "
    "alone the first.\n"
    "Ratios are medians of the rounds' own ratios, with their 95 % interval. Bandwidth: more is better. "
    "Latency (one\n"
    "way, half of there and back): less is better.\n"
    "Example: NCCL_SOCKET_IFNAME=lo FI_PROVIDER=net mkbench plugin ./libnccl-net-mkernel.so ./other.so\n";

struct options {
    const char *only, *provider;
    bool no_raw;
    int version, retries;
};

struct run {
    const struct options *o;
    struct net_peer p;
    struct report report;
    const struct plug_impl *impl[REPORT_IMPLS];
    void *with[REPORT_IMPLS];
};

/* ---- measuring ---- */

static unsigned count_of(const struct report_row *row)
{
    const bool latency = row->what == REPORT_LATENCY;
    const size_t n = (latency ? PINGPONG_BYTES : STREAM_BYTES) / row->size;
    const size_t most = latency ? PINGPONG_MAX : STREAM_MAX, least = latency ? 8 : 2 * PLUG_DEPTH;
    return (unsigned)(n > most ? most : n < least ? least : n);
}

static long put_off(void)
{
    struct rusage u;
    return getrusage(RUSAGE_SELF, &u) ? 0 : u.ru_nivcsw;
}

struct outcome {
    double seconds;
    long disturbed;
};

static int run_once(struct run *r, int which, const struct report_row *row, struct outcome *out)
{
    struct outcome mine, theirs;
    const unsigned n = count_of(row);
    if (net_step(&r->p))
        return 1;
    mine.disturbed = -put_off();
    mine.seconds = row->what == REPORT_LATENCY
                       ? r->impl[which]->pingpong(r->with[which], row->size, n)
                       : r->impl[which]->stream(r->with[which], row->size, n,
                                                row->what == REPORT_DEPTH8 ? PLUG_DEPTH : 1);
    mine.disturbed += put_off();
    if (mine.seconds < 0)
        mk_cli_say("%s: %s of %zu bytes failed: %s", r->report.name[which], report_whats[row->what].name,
                   row->size, mk_last_error());
    if (net_swap(&r->p, &mine, &theirs, sizeof(mine)) || mine.seconds < 0 || theirs.seconds < 0)
        return 1;
    out->seconds = r->p.who == 0 ? mine.seconds : theirs.seconds;
    out->disturbed = mine.disturbed + theirs.disturbed;
    return 0;
}

/* The least disturbed of a few runs; negative: failed. */
static double figure(struct run *r, int which, const struct report_row *row)
{
    struct outcome best = {0, LONG_MAX}, o;
    const unsigned n = count_of(row);
    for (int t = 0; t < r->o->retries && best.disturbed; t++) {
        if (run_once(r, which, row, &o))
            return -1;
        if (o.disturbed < best.disturbed)
            best = o;
    }
    r->report.runs++;
    r->report.disturbed += best.disturbed != 0;
    if (row->what == REPORT_LATENCY)
        return best.seconds / n / 2 * 1e6;
    return (double)row->size * n / best.seconds * 1e-6;
}

/* Rounds of all implementations, each round begun by another one; a round before them does not count. */
static int measure(struct run *r, struct report_row *row)
{
    const int n = r->report.nimpls;
    for (int round = -1; round < r->report.pairs; round++)
        for (int k = 0; k < n; k++) {
            const int which = (round + 1 + k) % n;
            const double v = figure(r, which, row);
            if (v < 0)
                return 1;
            if (round >= 0 && r->p.who == 0)
                bench_add(&row->v[which], v);
        }
    return 0;
}

static int open_all(struct run *r, char **path)
{
    for (int i = 0; i < r->report.nimpls; i++) {
        const bool raw = i < r->report.nraw;
        int ret, theirs;
        r->impl[i] = raw ? i == 0 ? &plug_writes : &plug_tagged : &plug_so;
        ret = r->impl[i]->open(&r->p, raw ? NULL : path[i - r->report.nraw], r->o->version, &r->with[i]);
        if (ret)
            mk_cli_say("%s%s", mk_last_error(), raw ? " (--no-raw goes on without)" : "");
        if (net_swap(&r->p, &ret, &theirs, sizeof(ret)) || ret || theirs)
            return 1;
        snprintf(r->report.name[i], sizeof(r->report.name[i]), "%.120s",
                 raw ? i == 0 ? "remote writes" : "tagged sends" : plug_so_name(r->with[i]));
    }
    return 0;
}

static int both(struct run *r, char **path)
{
    /* slots, the answer */
    int bad = mk_shm_create("mkbench", (size_t)PLUG_DEPTH * PLUG_MAX + 4096, &r->p.mem);
    if (bad)
        return 1;
    memset(r->p.mem.addr, 0x5a, r->p.mem.size);
    bad = open_all(r, path);
    for (int i = 0; !bad && i < r->report.nrows; i++)
        bad = measure(r, &r->report.row[i]);
    if (!bad)
        bad = net_step(&r->p);
    for (int i = 0; i < r->report.nimpls; i++)
        if (r->with[i])
            r->impl[i]->close(r->with[i]);
    mk_shm_release(&r->p.mem);
    return bad;
}

/* ---- the command ---- */

static bool wanted(const struct options *o, const char *name)
{
    return !o->only || strstr(o->only, name);
}

/* 0, or the exit code + 1. */
static int parse(struct options *o, struct report *p, int argc, char **argv)
{
    static struct bench_sizes sizes = {
        {8, 64, 512, 4u << 10, 64u << 10, 256u << 10, 1u << 20, 4u << 20, 16u << 20}, PLUG_MAX, 9};
    const struct bench_option table[] = {
        {"provider", BENCH_TEXT, &o->provider, 0, 0, NULL},
        {"json", BENCH_TEXT, &p->json, 0, 0, NULL},
        {"sizes", BENCH_CALL, &sizes, 0, 0, bench_sizes},
        {"pairs", BENCH_INT, &p->pairs, 1, BENCH_SAMPLES, NULL},
        {"only", BENCH_TEXT, &o->only, 0, 0, NULL},
        {"retries", BENCH_INT, &o->retries, 1, 100, NULL},
        {"net", BENCH_INT, &o->version, 6, 12, NULL},
        {"no-raw", BENCH_FLAG, &o->no_raw, 0, 0, NULL},
        {NULL, BENCH_FLAG, NULL, 0, 0, NULL},
    };
    const int stop = bench_options(argc, argv, table, true, help);
    if (stop)
        return stop;
    if (!(p->pairs & 1))
        return mk_cli_usage("--pairs: an odd number up to %d", BENCH_SAMPLES) + 1;
    for (int what = 0; what < REPORT_WHATS; what++)
        for (int i = 0; i < sizes.n && wanted(o, report_whats[what].option); i++)
            p->row[p->nrows++] = (struct report_row){.what = what, .size = sizes.v[i]};
    p->nraw = o->no_raw ? 0 : 2;
    p->nimpls = p->nraw + argc - optind;
    if (!p->nrows)
        return mk_cli_usage("--only: depth8, depth1, latency") + 1;
    if (optind == argc || argc - optind > REPORT_IMPLS - 2)
        return mk_cli_usage("mkbench plugin takes the paths of one to four plugins") + 1;
    return 0;
}

static int settle(struct run *r)
{
    if (r->o->provider)
        setenv("MK_OFI_PROVIDER", r->o->provider, 1);
    setenv("MK_IFNAME", "lo", 0);
    setenv("NCCL_SOCKET_IFNAME", "lo", 0);
    if (mk_settings_load(&r->p.s, true)) {
        mk_cli_say("%s", mk_last_error());
        return MK_EXIT_USAGE;
    }
    return 0;
}

int bench_plugin(int argc, char **argv)
{
    static struct options o = {.retries = 6};
    static struct run r = {.o = &o, .report = {.pairs = 11}};
    int fds[2], status = 0;
    const int stop = parse(&o, &r.report, argc, argv);
    int ret = stop ? stop - 1 : settle(&r);
    if (stop || ret)
        return ret;
    if (r.report.json && mk_out_check(r.report.json)) {
        mk_cli_say("%s", mk_last_error());
        return MK_EXIT_USAGE;
    }
    const pid_t child = socketpair(AF_UNIX, SOCK_STREAM, 0, fds) ? -1 : fork();
    if (child < 0) {
        mk_cli_say("no second process");
        return MK_EXIT_FAILED;
    }
    if (child == 0)
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* no half of a benchmark stays behind */
    r.p.who = child == 0;
    r.p.fd = fds[r.p.who];
    close(fds[!r.p.who]);
    ret = both(&r, argv + optind);
    if (child == 0)
        exit(ret);
    if (ret)
        kill(child, SIGTERM);
    if (waitpid(child, &status, 0) != child || status)
        ret = 1;
    if (ret || report_print(&r.report) || (r.report.json && report_json(&r.report))) {
        mk_cli_say("failed: %s", mk_last_error());
        return MK_EXIT_FAILED;
    }
    return mk_cli_flush();
}
