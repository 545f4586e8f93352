/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* mkbench hook: what interception costs a call that is passed on, and a process that has nothing to intercept. */
#include "plugin/cli/cli.h"
#include "plugin/cli/table.h"
#include "tests/bench/bench.h"
#include "tests/bench/options.h"
#include <dlfcn.h>
#include <errno.h>
#include <getopt.h> /* optind */
#include <pthread.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#define THREADS 8

static const char help[] = "usage: mkbench hook OBJECT.so FOLDER [options]\n"
                           "Calls of functions that do next to nothing, in libraries with the names of "
                           "NVIDIA's (FOLDER: the tests' stand-ins),\n"
                           "by the same code in two objects, in turns: one whose import slots lead to the "
                           "hooks of OBJECT.so, and one that is\n"
                           "left alone because of its name. Then: processes that run `true`, without and "
                           "with OBJECT.so in LD_PRELOAD.\n"
                           "  --pairs N     rounds, odd, up to 101 (default 31)\n"
                           "  --calls N     calls of a round (default 200000)\n"
                           "  --json FILE   every figure as JSON\n"
                           "Example: mkbench hook build/lib/libnccl-net-mkernel.so build/tests/hooks\n";

struct job {
    int (*call)(void);
    int calls;
    pthread_barrier_t *start;
    double ns;
};

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static double ns_a_call(int (*call)(void), int calls)
{
    const double begin = now_ns();
    for (int i = 0; i < calls; i++)
        call();
    return (now_ns() - begin) / calls;
}

static void *run_job(void *arg)
{
    struct job *j = arg;
    pthread_barrier_wait(j->start);
    j->ns = ns_a_call(j->call, j->calls);
    return NULL;
}

/* The slowest of `threads` at once; negative: no threads. */
static double figure(int (*call)(void), int calls, int threads)
{
    pthread_t id[THREADS];
    struct job job[THREADS];
    pthread_barrier_t start;
    double most = 0;
    if (threads == 1)
        return ns_a_call(call, calls);
    pthread_barrier_init(&start, NULL, (unsigned)threads);
    for (int i = 0; i < threads; i++) {
        job[i] = (struct job){call, calls, &start, 0};
        if (pthread_create(&id[i], NULL, run_job, &job[i])) {
            mk_cli_say("no thread: %s", strerror(errno));
            exit(1); /* those that wait at the barrier go with the process */
        }
    }
    for (int i = 0; i < threads; i++) {
        pthread_join(id[i], NULL);
        most = job[i].ns > most ? job[i].ns : most;
    }
    pthread_barrier_destroy(&start);
    return most;
}

/* Microseconds of a process that ends at once; negative: it could not be run. */
static double process(const char *preload, const char *fuse)
{
    char lib[4200], mode[32], *env[3] = {lib, mode, NULL}, *argv[] = {(char *)"true", NULL};
    pid_t pid;
    int status;
    snprintf(lib, sizeof(lib), preload ? "LD_PRELOAD=%s" : "NO=%s", preload ? preload : "");
    snprintf(mode, sizeof(mode), "MK_FUSE=%s", fuse);
    const double begin = now_ns();
    if (posix_spawnp(&pid, "true", NULL, NULL, argv, env) || waitpid(pid, &status, 0) != pid || status)
        return -1;
    return (now_ns() - begin) / 1e3;
}

/* First no communicator of the process can fuse; then there is one that may, and a call that is not its own goes by it. */
static const struct {
    const char *name, *call;
    int threads;
    bool open;
} rows[] = {
    {"ncclAllReduce, 7 arguments", "loop", 1, false},
    {"cublasGemmEx, 19 arguments", "gemm", 1, false},
    {"cublasLtMatmul, 16 arguments", "chosen", 1, false},
    {"ncclAllReduce, 2 threads at once", "loop", 2, false},
    {"ncclAllReduce, 8 threads at once", "loop", 8, false},
    {"beside one that may fuse: ncclAllReduce", "loop", 1, true},
    {"beside one that may fuse: ncclSend", "send", 1, true},
    {"beside one that may fuse: cublasGemmEx, fp32", "gemm", 1, true},
};
#define ROWS (sizeof(rows) / sizeof(rows[0]))
#define SETTLES 2048 /* calls until a communicator is given up that set-up cannot name */

struct measured {
    struct bench_samples left, hooked, cost;
};

static bool find(void *so, const char *prefix, const char *name, int (**fn)(void))
{
    char symbol[64];
    snprintf(symbol, sizeof(symbol), "%s_%s", prefix, name);
    *(void **)fn = dlsym(so, symbol);
    return *fn != NULL;
}

/* Does a slot of that object lead into `file`? Else nothing would be measured. */
static bool leads(void *so, const char *prefix, const char *file)
{
    char symbol[64];
    void *(*slot)(void);
    Dl_info info;
    snprintf(symbol, sizeof(symbol), "%s_slot", prefix);
    *(void **)&slot = dlsym(so, symbol);
    return slot && dladdr(slot(), &info) && info.dli_fname && strstr(info.dli_fname, file);
}

static int measure_rows(void *user, void *left, bool open, int pairs, int calls, struct measured *m)
{
    for (int p = 0; p < pairs; p++)
        for (size_t r = 0; r < ROWS; r++) {
            int (*a)(void), (*b)(void);
            if (rows[r].open != open)
                continue;
            if (!find(left, "left", rows[r].call, &a) || !find(user, "late", rows[r].call, &b)) {
                mk_cli_say("not the tests' objects: %s", dlerror());
                return 1;
            }
            const double x = figure(a, calls, rows[r].threads), y = figure(b, calls, rows[r].threads);
            bench_add(&m[r].left, x);
            bench_add(&m[r].hooked, y);
            bench_add(&m[r].cost, y - x);
        }
    return 0;
}

static int measure_calls(const char *object, const char *folder, int pairs, int calls, struct measured *m)
{
    char path[4200];
    snprintf(path, sizeof(path), "%s/libhook_late_now.so", folder);
    void *user = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    snprintf(path, sizeof(path), "%s/libcudnn_left.so", folder);
    void *left = user ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    setenv("MK_FUSE", "on", 1);
    if (!left || !dlopen(object, RTLD_NOW | RTLD_LOCAL)) {
        mk_cli_say("%s", dlerror());
        return 1;
    }
    const char *slash = strrchr(object, '/');
    if (!leads(user, "late", slash ? slash + 1 : object) || !leads(left, "left", "libnccl")) {
        mk_cli_say("%s does not intercept here, or not where it should", object);
        return 1;
    }
    int (*settle)(void), (*open)(void);
    if (!find(user, "late", "loop", &settle) || !find(user, "late", "open", &open)) {
        mk_cli_say("%s: not the tests' objects: %s", folder, dlerror());
        return 1;
    }
    for (int i = 0; i < SETTLES; i++)
        settle();
    if (measure_rows(user, left, false, pairs, calls, m))
        return 1;
    open();
    return measure_rows(user, left, true, pairs, calls, m);
}

static int measure_processes(const char *object, int pairs, struct measured m[2])
{
    for (int p = 0; p < pairs; p++)
        for (int on = 0; on < 2; on++) {
            const double x = process(NULL, "off"), y = process(object, on ? "on" : "off");
            if (x < 0 || y < 0) {
                mk_cli_say("`true` could not be run");
                return 1;
            }
            bench_add(&m[on].left, x);
            bench_add(&m[on].hooked, y);
            bench_add(&m[on].cost, y - x);
        }
    return 0;
}

static void add(struct mk_table *t, struct mk_json *j, const char *what, const char *unit, struct measured *m)
{
    const struct bench_stat left = bench_stat_of(&m->left), hooked = bench_stat_of(&m->hooked);
    const struct bench_stat cost = bench_stat_of(&m->cost);
    mk_table_row(t, "%s|%.1f %s|%.1f %s|%.1f|%.1f to %.1f", what, left.median, unit, hooked.median, unit,
                 cost.median, cost.min, cost.max);
    if (!j)
        return;
    mk_json_object(j, NULL);
    mk_json_text(j, "what", what);
    mk_json_text(j, "unit", unit);
    bench_json_stat(j, "without", &left);
    bench_json_stat(j, "with", &hooked);
    bench_json_stat(j, "cost", &cost);
    mk_json_end(j);
}

static void report(struct mk_table *t, struct mk_json *j, struct measured *calls, struct measured *processes)
{
    if (j) {
        mk_json_object(j, NULL);
        mk_json_text(j, "benchmark", "hook");
        bench_json_machine(j);
        mk_json_array(j, "rows");
    }
    for (size_t r = 0; r < ROWS; r++)
        add(t, j, rows[r].name, "ns", &calls[r]);
    add(t, j, "process, preloaded, MK_FUSE=off", "us", &processes[0]);
    add(t, j, "process, preloaded, MK_FUSE=on", "us", &processes[1]);
    if (j) {
        mk_json_end(j);
        mk_json_end(j);
    }
}

int bench_hook(int argc, char **argv)
{
    static struct measured calls_of[ROWS], processes[2];
    int pairs = 31, calls = 200000;
    const char *file = NULL;
    const struct bench_option table[] = {{"pairs", BENCH_INT, &pairs, 1, BENCH_SAMPLES, NULL},
                                         {"calls", BENCH_INT, &calls, 1, 100000000, NULL},
                                         {"json", BENCH_TEXT, &file, 0, 0, NULL},
                                         {NULL, BENCH_FLAG, NULL, 0, 0, NULL}};
    const int code = bench_options(argc, argv, table, true, help);
    if (code)
        return code - 1;
    if (argc - optind != 2)
        return mk_cli_usage("an object and the folder of the stand-ins");
    struct mk_json j;
    if (file && mk_json_open(&j, file)) {
        mk_cli_say("%s", mk_last_error());
        return MK_EXIT_FAILED;
    }
    if (measure_calls(argv[optind], argv[optind + 1], pairs, calls, calls_of) ||
        measure_processes(argv[optind], pairs, processes)) {
        if (file)
            mk_json_cancel(&j);
        return MK_EXIT_FAILED;
    }
    struct mk_table *t = mk_table_new("what|>without|>with|>cost|>min to max");
    report(t, file ? &j : NULL, calls_of, processes);
    int ret = mk_table_print(t, stdout);
    mk_table_free(t);
    if (file && mk_json_close(&j))
        ret = 1;
    if (ret)
        mk_cli_say("%s", mk_last_error());
    return ret || mk_cli_flush() ? MK_EXIT_FAILED : MK_EXIT_OK;
}
