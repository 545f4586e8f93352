/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* mkbench faces: what the profiler and the tuner cost NCCL's threads, a call. The object is opened as NCCL opens it; all rows in
 * turn in every round. */
#include "mk/err.h"
#include "mk/shm.h"
#include "mk/tune.h"
#include "plugin/cli/cli.h"
#include "plugin/cli/table.h"
#include "plugin/nccl/abi_profiler.h"
#include "plugin/nccl/abi_tuner.h"
#include "tests/bench/bench.h"
#include "tests/bench/options.h"
#include "tests/plugin/caller.h"
#include <dlfcn.h>
#include <getopt.h> /* optind */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char help[] = "usage: mkbench faces OBJECT.so [options]\n"
                           "What NCCL's threads spend in the profiler (version 6 of its table) and the "
                           "tuner, ns a call or collective: rows "
                           "in turn\n"
                           "in every round, median, least and most. The baseline is a look at the clock.\n"
                           "  --rounds N   odd, up to 101 (default 21)\n"
                           "  --calls N    of each row in a round (default 20000)\n"
                           "  --json FILE  every figure as JSON\n";

enum { A = MK_ALGO_COUNT, P = MK_PROTO_COUNT, CHANNELS = 8 };
enum { COLL = 2, KERNEL_CH = 64, CH_STOP = 22 };

struct faces {
    const struct mk_nccl_profiler_v6 *prof;
    const struct mk_nccl_tuner_v6 *tuner;
    void *idle, *profiled;              /* communicators of the profiler */
    void *meets;                        /* the same, whose ranks are to meet */
    void *off, *observe, *on, *carried; /* of the tuner */
    struct mk_tune *agreed;
    uint64_t id, timer;
    int mask;
    int failed;
};

static void logger(int level, unsigned long flags, const char *file, int line, const char *fmt, ...)
{
    (void)level, (void)flags, (void)file, (void)line, (void)fmt;
}

/* ---- rows ---- */

static void look(struct faces *f)
{
    f->timer += mk_time_ns() & 1;
}

static void *coll(struct faces *f, void *ctx)
{
    struct mk_nccl_profiler_descr_v6 d;
    void *handle = NULL;
    memset(&d, 0, sizeof(d));
    d.type = COLL;
    d.coll.func = "AllReduce", d.coll.datatype = "ncclBfloat16", d.coll.algo = "RING",
    d.coll.proto = "SIMPLE";
    d.coll.count = 1 << 20, d.coll.nChannels = CHANNELS;
    f->failed += f->prof->startEvent(ctx, &handle, &d) != 0;
    if (handle)
        f->failed += f->prof->stopEvent(handle) != 0;
    return handle;
}
static void declined(struct faces *f)
{
    f->failed += coll(f, f->idle) != NULL;
}
static void counted(struct faces *f)
{
    f->failed += coll(f, f->profiled) == NULL;
}

/* With its channels, as in a sample. */
static void timed(struct faces *f)
{
    void *parent = coll(f, f->profiled), *handle[CHANNELS];
    struct mk_nccl_profiler_descr_v6 d;
    memset(&d, 0, sizeof(d));
    d.type = KERNEL_CH;
    d.parentObj = parent;
    f->timer += 100000;
    for (int i = 0; i < CHANNELS; i++) {
        d.kernelCh.channelId = (uint8_t)i, d.kernelCh.pTimer = f->timer;
        f->failed += f->prof->startEvent(f->profiled, &handle[i], &d) != 0 || !handle[i];
    }
    for (int i = 0; i < CHANNELS; i++) {
        union mk_nccl_profiler_args_v4 a;
        a.kernelCh.pTimer = f->timer + 30000;
        f->failed +=
            f->prof->recordEventState(handle[i], CH_STOP, &a) != 0 || f->prof->stopEvent(handle[i]) != 0;
    }
}

static void costs(float c[A * P])
{
    for (int i = 0; i < A * P; i++)
        c[i] = i < 2 * P ? 100 + (float)i : -1;
}
static void info(struct faces *f, void *ctx)
{
    float c[A * P];
    int channels = 0;
    costs(c);
    f->failed += f->tuner->getCollInfo(ctx, MK_COLL_ALLREDUCE, 1 << 20, 1, (float **)(void *)c, A, P, 0,
                                       &channels) != 0 ||
                 channels;
}
static void info_off(struct faces *f)
{
    info(f, f->off);
}
static void info_observe(struct faces *f)
{
    info(f, f->observe);
}
static void info_on(struct faces *f)
{
    info(f, f->on);
}
static void info_carried(struct faces *f)
{
    info(f, f->carried);
}
static void info_agreed(struct faces *f)
{
    float c[A * P];
    struct mk_tune_answer a;
    costs(c);
    const struct mk_tune_ask q = {MK_COLL_ALLREDUCE, 1 << 20, c, A, P};
    mk_tune_next(f->agreed, &q, &a);
    f->failed += a.channels != 6;
}

static const struct {
    const char *name, *text;
    void (*run)(struct faces *f);
} rows[] = {
    {"clock", "a look at the clock", look},
    {"profiler_idle", "profiler, idle: an event that NCCL would not send", declined},
    {"profiler_counted", "profiler: a collective that is counted", counted},
    {"profiler_timed", "profiler: a collective timed on 8 channels", timed},
    {"tuner_off", "tuner off: a question", info_off},
    {"tuner_observe", "tuner observing, nothing agreed: a question", info_observe},
    {"tuner_on", "tuner on, nothing agreed: a question", info_on},
    {"tuner_carried", "tuner on, to be agreed with others, nothing yet: a question", info_carried},
    {"tuner_agreed", "tuner on, a table agreed: a question", info_agreed},
};
enum { ROWS = sizeof(rows) / sizeof(rows[0]) };

/* ---- set-up ---- */

static int begin(void *ctx, uint64_t *id)
{
    *id = *(uint64_t *)ctx;
    return 0;
}

static void *tuner_of(struct faces *f, const char *setting, uint64_t id)
{
    struct mk_nccl_tuner_constants k;
    struct mk_nccl_nvl_info nvl = {1, 8, 8};
    void *ctx = NULL;
    memset(&k, 0, sizeof(k));
    setenv("MK_TUNER", setting, 1);
    f->failed += f->tuner->init(&ctx, id, 16, 2, logger, &nvl, &k) != 0;
    return ctx;
}

static int set_up(struct faces *f, const char *path, char file[64])
{
    const char *why = "";
    void *lib = caller_load(path, &why);
    if (!lib)
        return mk_fail(MK_ERR_INVALID, "CLI", "%s: %s", path, why);
    f->prof = dlsym(lib, "ncclProfiler_v6");
    f->tuner = dlsym(lib, "ncclTunerPlugin_v6");
    if (!f->prof || !f->tuner)
        return mk_fail(MK_ERR_INVALID, "CLI", "%s has no profiler or tuner of version 6", path);
    unsetenv("MK_PROFILE");
    f->failed += f->prof->init(&f->idle, 1, &f->mask, "idle", 2, 16, 0, logger) != 0;
    snprintf(file, 64, "/tmp/mkbench_faces.%d", (int)getpid());
    setenv("MK_PROFILE", "/tmp/mkbench_faces.%p", 1);
    f->failed += f->prof->init(&f->profiled, 2, &f->mask, "profiled", 2, 16, 0, logger) != 0;
    f->off = tuner_of(f, "off", 9), f->observe = tuner_of(f, "observe", 9), f->on = tuner_of(f, "on", 9);
    setenv("MK_ROOT", "127.0.0.1:1", 1); /* others never come; looking for them is another thread's */
    f->failed += f->prof->init(&f->meets, 3, &f->mask, "meets", 2, 16, 1, logger) != 0;
    f->carried = tuner_of(f, "on", 3);
    unsetenv("MK_ROOT");
    struct mk_tune_facts facts;
    struct mk_tune_table t;
    memset(&facts, 0, sizeof(facts));
    memset(&t, 0, sizeof(t));
    facts.comm_id = 9, facts.nranks = 16, facts.nnodes = 2;
    t.count = 1;
    const struct mk_tune_entry e = {MK_COLL_ALLREDUCE, 16, 30, MK_ALGO_RING, MK_PROTO_SIMPLE, 6, 0};
    t.entry[0] = e;
    const struct mk_tune_turn turn = {begin, &f->id};
    if (mk_tune_open(&facts, MK_TUNE_ON, &f->agreed))
        return MK_ERR_NOMEM;
    f->id = mk_tune_offer(f->agreed, &t);
    mk_tune_set_turn(f->agreed, &turn);
    return 0;
}

static double finish(struct faces *f, const char *file)
{
    const uint64_t t0 = mk_time_ns();
    f->failed += f->prof->finalize(f->profiled) != 0;
    const double us = (double)(mk_time_ns() - t0) * 1e-3;
    f->failed += f->prof->finalize(f->meets) != 0;
    f->failed += f->prof->finalize(f->idle) != 0 || access(file, R_OK) != 0;
    void *const tuners[] = {f->off, f->observe, f->on, f->carried};
    for (int i = 0; i < 4; i++)
        f->failed += f->tuner->finalize(tuners[i]) != 0;
    mk_tune_close(f->agreed);
    return us;
}

static int report(const struct bench_samples *s, double write_us, int calls, const char *json)
{
    struct mk_table *t = mk_table_new("what|>ns, median|>least|>most");
    for (int i = 0; i < ROWS; i++) {
        const struct bench_stat st = bench_stat_of(&s[i]);
        mk_table_row(t, "%s|%.1f|%.1f|%.1f", rows[i].text, st.median, st.min, st.max);
    }
    int ret = mk_table_print(t, stdout);
    mk_table_free(t);
    printf("finalize with its file, once: %.0f us\n", write_us);
    struct mk_json j;
    if (!ret && json && !(ret = mk_json_open(&j, json))) {
        mk_json_object(&j, NULL);
        bench_json_machine(&j);
        mk_json_int(&j, "calls", calls);
        for (int i = 0; i < ROWS; i++) {
            const struct bench_stat st = bench_stat_of(&s[i]);
            bench_json_stat(&j, rows[i].name, &st);
        }
        mk_json_real(&j, "finalize_us", write_us);
        mk_json_end(&j);
        ret = mk_json_close(&j);
    }
    if (ret)
        mk_cli_say("%s", mk_last_error());
    return ret ? MK_EXIT_FAILED : mk_cli_flush();
}

int bench_faces(int argc, char **argv)
{
    static struct bench_samples s[ROWS];
    int rounds = 21, calls = 20000;
    const char *json = NULL;
    char file[64];
    struct faces f;
    const struct bench_option options[] = {{"rounds", BENCH_INT, &rounds, 1, BENCH_SAMPLES, NULL},
                                           {"calls", BENCH_INT, &calls, 1, 100000000, NULL},
                                           {"json", BENCH_TEXT, &json, 0, 0, NULL},
                                           {NULL, BENCH_FLAG, NULL, 0, 0, NULL}};
    const int done = bench_options(argc, argv, options, true, help);
    if (done)
        return done - 1;
    if (argc - optind != 1)
        return mk_cli_usage("one object");
    memset(&f, 0, sizeof(f));
    if (set_up(&f, argv[optind], file)) {
        mk_cli_say("%s", mk_last_error());
        return MK_EXIT_FAILED;
    }
    for (int r = -1; r < rounds; r++) /* the first is for caches */
        for (int i = 0; i < ROWS; i++) {
            const uint64_t t0 = mk_time_ns();
            for (int k = 0; k < calls; k++)
                rows[i].run(&f);
            if (r >= 0)
                bench_add(&s[i], (double)(mk_time_ns() - t0) / calls);
        }
    const double write_us = finish(&f, file);
    const int ret = report(s, write_us, calls, json);
    unlink(file);
    unsetenv("MK_PROFILE");
    if (f.failed)
        mk_cli_say("%d calls gave something else than they must", f.failed);
    return f.failed ? MK_EXIT_FAILED : ret;
}
