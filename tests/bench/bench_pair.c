/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* mkbench pair: what the pair recogniser costs an event, with small tables and with large ones. */
#include "mk/err.h"
#include "mk/pair.h"
#include "plugin/cli/cli.h"
#include "plugin/cli/table.h"
#include "tests/bench/bench.h"
#include "tests/bench/options.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char help[] =
    "usage: mkbench pair [options]\n"
    "Steps of the pair recogniser, one thread, no lock: nanoseconds an event, with one site, stream and\n"
    "communicator, and with many. What is decided is checked. The first row is an event that changes "
    "nothing.\n"
    "  --rounds N    rounds, odd, up to 101 (default 31)\n"
    "  --calls N     repetitions of a row in a round (default 20000)\n"
    "  --json FILE   every figure as JSON\n";

enum { LARGE_SITES = 10000, LARGE_STREAMS = 200, LARGE_COMMS = 100, SIZES = 2 };

struct machine {
    struct mk_pair *p;
    struct mk_pair_at at;
    uint64_t node;
    int bad; /* decisions other than those that are measured */
    int steps;
};

static void step(struct machine *m, struct mk_pair_event *e, struct mk_pair_out *out)
{
    e->thread = 1;
    m->bad += mk_pair_step(m->p, e, out) != 0;
    m->steps++;
}

static void want(struct machine *m, const struct mk_pair_out *out, uint32_t act)
{
    m->bad += out->act != act;
}

static uint64_t weight(int site)
{
    return UINT64_C(0x100000000) + (uint64_t)site * 0x100000;
}

static void gemm(struct machine *m, int site, uint32_t act)
{
    struct mk_pair_event e;
    struct mk_pair_out out;
    memset(&e, 0, sizeof(e));
    e.kind = MK_PAIR_EV_GEMM;
    e.at = m->at;
    e.u.gemm = (struct mk_pair_gemm){.m = 256, .n = 512, .k = 128, .lda = 128, .ldb = 128, .ldc = 512};
    e.u.gemm.a = 0x10000000, e.u.gemm.b = weight(site), e.u.gemm.c = 0x30000000;
    e.u.gemm.alpha = 1, e.u.gemm.batch = 1;
    e.u.gemm.a_type = e.u.gemm.b_type = e.u.gemm.c_type = MK_BFLOAT16;
    step(m, &e, &out);
    want(m, &out, act);
    e.kind = MK_PAIR_EV_GEMM_DONE;
    memset(&e.u, 0, sizeof(e.u));
    if (m->at.capture) {
        m->at.ndeps = 1;
        m->at.deps[0] = e.u.done.node = ++m->node;
        e.at = m->at;
    }
    step(m, &e, &out);
}

static void coll_event(const struct machine *m, uint64_t comm, struct mk_pair_event *e)
{
    memset(e, 0, sizeof(*e));
    e->kind = MK_PAIR_EV_COLL;
    e->at = m->at;
    e->u.coll =
        (struct mk_pair_coll){.comm = comm, .count = 256 * 512, .send = 0x30000000, .recv = 0x30000000};
    e->u.coll.dtype = MK_BFLOAT16;
    e->u.coll.sum = 1;
}

static void done(struct machine *m, uint64_t comm, uint8_t act)
{
    struct mk_pair_event e;
    struct mk_pair_out out;
    memset(&e, 0, sizeof(e));
    e.kind = MK_PAIR_EV_COLL_DONE;
    if (m->at.capture)
        m->at.deps[0] = ++m->node;
    e.at = m->at;
    e.u.done.comm = comm;
    e.u.done.act = act;
    e.u.done.node = m->node;
    step(m, &e, &out);
}

static void coll(struct machine *m, uint64_t comm, uint32_t act)
{
    struct mk_pair_event e;
    struct mk_pair_out out;
    coll_event(m, comm, &e);
    step(m, &e, &out);
    want(m, &out, act);
    done(m, comm, out.act);
}

static void comm_step(struct machine *m, uint32_t kind, uint64_t comm)
{
    struct mk_pair_event e;
    struct mk_pair_out out;
    memset(&e, 0, sizeof(e));
    e.kind = kind;
    e.u.comm.handle = e.u.comm.id = comm;
    e.u.comm.nranks = 2;
    e.u.comm.number = 1;
    e.u.comm.word = MK_PAIR_FUSED;
    e.u.comm.reason = MK_PAIR_MEMBER;
    e.u.comm.config = (struct mk_pair_config){
        .max_bytes = 1 << 30, .functions = 1 << MK_PAIR_ALLREDUCE, .dtypes = 1 << MK_BFLOAT16, .nranks = 2};
    step(m, &e, &out);
}

/* NCCL, seen by the profiler. */
static void nccl(struct machine *m, uint64_t comm)
{
    struct mk_pair_event e;
    struct mk_pair_out out;
    coll_event(m, comm, &e);
    e.u.coll.sum = 0;
    step(m, &e, &out);
    want(m, &out, MK_PAIR_DO_NCCL);
    comm_step(m, MK_PAIR_EV_PROFILED, comm);
    done(m, comm, MK_PAIR_DO_NCCL);
}

static void fuse(struct machine *m, uint64_t comm)
{
    comm_step(m, MK_PAIR_EV_COMM_ID, comm);
    comm_step(m, MK_PAIR_EV_COMM_NEW, comm);
    nccl(m, comm);
    comm_step(m, MK_PAIR_EV_COMM_AGREED, comm);
    comm_step(m, MK_PAIR_EV_COMM_SWITCH, comm);
}

static void thread_step(struct machine *m, uint32_t kind, struct mk_pair_out *out)
{
    struct mk_pair_event e;
    memset(&e, 0, sizeof(e));
    e.kind = kind;
    e.at = m->at;
    step(m, &e, out);
}

/* ---- rows: one repetition each ---- */

enum { COMM = 1, UNKNOWN = 999999 };

static void nothing(struct machine *m, int sites)
{
    struct mk_pair_out out;
    (void)sites;
    m->at.stream += 1000000; /* a stream that is not known */
    thread_step(m, MK_PAIR_EV_EDGE, &out);
    m->at.stream -= 1000000;
}
static void unknown_gemm(struct machine *m, int sites)
{
    (void)sites;
    gemm(m, UNKNOWN, MK_PAIR_DO_ORIGINAL);
}
static void pair(struct machine *m, int sites)
{
    gemm(m, m->steps % sites, MK_PAIR_DO_G);
    coll(m, COMM, MK_PAIR_DO_OVERLAP);
}
static void to_nccl(struct machine *m, int sites)
{
    (void)sites;
    nccl(m, COMM);
}
static void group(struct machine *m, int sites)
{
    struct mk_pair_event e;
    struct mk_pair_out out;
    gemm(m, m->steps % sites, MK_PAIR_DO_G);
    thread_step(m, MK_PAIR_EV_GROUP_START, &out);
    coll_event(m, COMM, &e);
    step(m, &e, &out);
    want(m, &out, MK_PAIR_DO_HOLD);
    thread_step(m, MK_PAIR_EV_GROUP_END, &out);
    thread_step(m, MK_PAIR_EV_TAKE, &out);
    want(m, &out, MK_PAIR_DO_OVERLAP);
    done(m, COMM, out.act);
}

static const struct {
    const char *name;
    void (*run)(struct machine *m, int sites);
    bool captured;
} rows[] = {{"changes nothing", nothing, false},    {"GEMM that is not known", unknown_gemm, false},
            {"pair, overlapped", pair, false},      {"pair, captured", pair, true},
            {"pair, a group of one", group, false}, {"collective to NCCL", to_nccl, false}};
#define ROWS (sizeof(rows) / sizeof(rows[0]))

/* With many of everything, or with one of each. */
static int set_up(struct machine *m, bool large)
{
    const struct mk_pair_options options = {.streams = LARGE_STREAMS + 2, .witness = 1};
    memset(m, 0, sizeof(*m));
    const int ret = mk_pair_create(&options, &m->p);
    if (ret)
        return ret;
    m->at = (struct mk_pair_at){.ctx = 1, .stream = 1, .counted = 1};
    fuse(m, COMM);
    for (int i = 0; i < (large ? LARGE_SITES : 1); i++) {
        gemm(m, i, MK_PAIR_DO_ORIGINAL);
        coll(m, COMM, MK_PAIR_DO_PLAIN);
    }
    for (int i = 2; large && i <= LARGE_STREAMS; i++) {
        m->at.stream = (uint64_t)i;
        gemm(m, UNKNOWN, MK_PAIR_DO_ORIGINAL);
    }
    for (uint64_t i = 2; large && i <= LARGE_COMMS; i++) {
        comm_step(m, MK_PAIR_EV_COMM_NEW, i);
        comm_step(m, MK_PAIR_EV_COMM_OFF, i);
    }
    m->at.stream = 1;
    return 0;
}

static double ns_an_event(struct machine *m, size_t row, int calls, int sites)
{
    struct mk_pair_out out;
    struct timespec a, b;
    if (rows[row].captured) {
        m->at.capture = 7 + (uint64_t)m->steps;
        thread_step(m, MK_PAIR_EV_CAPTURE_BEGIN, &out);
    }
    rows[row].run(m, sites);
    const int before = m->steps;
    clock_gettime(CLOCK_MONOTONIC, &a);
    for (int i = 0; i < calls; i++)
        rows[row].run(m, sites);
    clock_gettime(CLOCK_MONOTONIC, &b);
    const int events = m->steps - before;
    if (rows[row].captured) {
        thread_step(m, MK_PAIR_EV_CAPTURE_END, &out);
        m->at.capture = m->at.ndeps = 0;
        gemm(m, 0, MK_PAIR_DO_G);
        coll(m, COMM, MK_PAIR_DO_OVERLAP);
    }
    return ((double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec)) / events;
}

static int measure(int rounds, int calls, struct bench_samples s[ROWS][SIZES])
{
    struct machine m[SIZES];
    int bad = 0;
    for (int i = 0; i < SIZES; i++)
        if (set_up(&m[i], i))
            return MK_ERR_NOMEM;
    for (int n = 0; n < rounds; n++)
        for (size_t row = 0; row < ROWS; row++)
            for (int i = 0; i < SIZES; i++)
                bench_add(&s[row][i], ns_an_event(&m[i], row, calls, i ? LARGE_SITES : 1));
    for (int i = 0; i < SIZES; i++) {
        bad += m[i].bad;
        mk_pair_destroy(m[i].p);
    }
    return bad ? mk_fail_quiet(MK_ERR_INTERNAL, "%d decisions were not those that are measured", bad) : 0;
}

static void report(struct mk_table *t, struct mk_json *j, struct bench_samples s[ROWS][SIZES])
{
    if (j) {
        mk_json_object(j, NULL);
        mk_json_text(j, "benchmark", "pair");
        bench_json_machine(j);
        mk_json_array(j, "rows");
    }
    for (size_t row = 0; row < ROWS; row++) {
        const struct bench_stat one = bench_stat_of(&s[row][0]), many = bench_stat_of(&s[row][1]);
        mk_table_row(t, "%s|%.1f|%.1f to %.1f|%.1f|%.1f to %.1f", rows[row].name, one.median, one.min,
                     one.max, many.median, many.min, many.max);
        if (!j)
            continue;
        mk_json_object(j, NULL);
        mk_json_text(j, "what", rows[row].name);
        bench_json_stat(j, "one", &one);
        bench_json_stat(j, "many", &many);
        mk_json_end(j);
    }
    if (j) {
        mk_json_end(j);
        mk_json_end(j);
    }
}

int bench_pair(int argc, char **argv)
{
    static struct bench_samples s[ROWS][SIZES];
    int rounds = 31, calls = 20000;
    const char *file = NULL;
    const struct bench_option table[] = {{"rounds", BENCH_INT, &rounds, 1, BENCH_SAMPLES, NULL},
                                         {"calls", BENCH_INT, &calls, 1, 1000000, NULL},
                                         {"json", BENCH_TEXT, &file, 0, 0, NULL},
                                         {NULL, BENCH_FLAG, NULL, 0, 0, NULL}};
    const int code = bench_options(argc, argv, table, false, help);
    struct mk_json j;
    if (code)
        return code - 1;
    if (file && mk_json_open(&j, file)) {
        mk_cli_say("%s", mk_last_error());
        return MK_EXIT_FAILED;
    }
    if (measure(rounds, calls, s)) {
        mk_cli_say("%s", mk_last_error());
        if (file)
            mk_json_cancel(&j);
        return MK_EXIT_FAILED;
    }
    struct mk_table *t = mk_table_new("ns an event|>one of each|>min to max|>many|>min to max");
    report(t, file ? &j : NULL, s);
    int ret = mk_table_print(t, stdout);
    mk_table_free(t);
    if (file && mk_json_close(&j))
        ret = 1;
    if (ret)
        mk_cli_say("%s", mk_last_error());
    return ret || mk_cli_flush() ? MK_EXIT_FAILED : MK_EXIT_OK;
}
