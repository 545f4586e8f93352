/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* harness PLUGIN.so [options]: see harness.h. Exit code 0: no fault; 1: faults, each said; 2: command line. */
#include "tests/plugin/harness.h"
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char warning[512], warnings[16384]; /* the last one; as many as there is room for */
static bool loud;

uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void say(const struct rank *r, const char *kind, const char *fmt, va_list ap)
{
    char text[600];
    vsnprintf(text, sizeof(text), fmt, ap);
    printf("    rank %d: %s%s\n", r->me, kind, text);
    fflush(stdout);
}

void broken(const struct rank *r, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    say(r, "", fmt, ap);
    va_end(ap);
    if (warning[0])
        printf("    rank %d: the plugin's last warning: %s\n", r->me, warning);
    fflush(stdout);
    __atomic_store_n(&r->sh->broken, 1, __ATOMIC_RELEASE);
    _exit(1);
}

void skip(const struct rank *r, const char *why)
{
    if (r->me == 0)
        printf("    skip: %s\n", why);
    fflush(stdout);
    _exit(77);
}

void note(const struct rank *r, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    say(r, "note: ", fmt, ap);
    va_end(ap);
}

void logger(int level, unsigned long flags, const char *file, int line, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    (void)flags;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (level == MK_NCCL_LOG_WARN) {
        snprintf(warning, sizeof(warning), "%.500s", text);
        const size_t n = strlen(warnings);
        snprintf(warnings + n, sizeof(warnings) - n, "%s\n", text);
    }
    if (loud)
        printf("    log %d %s:%d %s\n", level, file ? file : "", line, text);
}

const char *last_warning(void)
{
    return warning;
}

bool warned(const char *text)
{
    return strstr(warnings, text) != NULL;
}

void rank_open(struct rank *r)
{
    const char *why = "";
    int ndev = 0;
    const int version = r->c.version;
    void *lib = caller_load(r->o->path, &why);
    need(r, lib, "dlopen: %s", why);
    need(r, caller_table(lib, version, &r->c), "no table of net v%d", version);
    need(r, !caller_init(&r->c, logger), "init failed");
    need(r, !caller_devices(&r->c, &ndev) && ndev > 0, "no devices");
    need(r, !caller_properties(&r->c, 0, 0xa5, &r->props), "getProperties failed");
}

/* ---- one case ---- */

static _Noreturn void run_rank(struct rank *r, const struct test_case *t)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    r->random = 0x9e3779b97f4a7c15ull * (uint64_t)(r->me + 1) + (uint64_t)r->c.version;
    r->end = now_ns() + (uint64_t)(r->o->limit * 1e9);
    const bool opens = !t->raw && !t->loads;
    if (opens)
        rank_open(r);
    t->run(r);
    if (opens)
        need(r, !caller_finalize(&r->c), "finalize failed");
    fflush(stdout);
    exit(0); /* not _exit: destructors of the plugin, and the sanitizers, have their say */
}

/* The worst status of the ranks: 0 good, 77 skipped, 1 bad. */
static int collect(const struct test_case *t, const pid_t *pid, const struct options *o)
{
    const uint64_t end = now_ns() + (uint64_t)((o->limit + 5) * 1e9);
    int left = t->ranks, worst = 0, status;
    bool gone[RANKS_MAX] = {false};
    uint64_t grace = 0; /* after the first fault the others get 2 s to say theirs */
    while (left) {
        for (int i = 0; i < t->ranks; i++) {
            if (gone[i] || waitpid(pid[i], &status, WNOHANG) != pid[i])
                continue;
            gone[i] = true;
            left--;
            if (t->killed && i == 1 && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
                continue;
            const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
            if (WIFSIGNALED(status))
                printf("    rank %d: ended by signal %d\n", i, WTERMSIG(status));
            else if (code && code != 1 && code != 77)
                printf("    rank %d: exit code %d\n", i, code);
            worst = code == 0 ? worst : code == 77 && worst != 1 ? 77 : 1;
            grace = worst == 1 && !grace ? now_ns() + 2000000000u : grace;
        }
        const bool late = now_ns() > end || (grace && now_ns() > grace);
        for (int i = 0; late && i < t->ranks; i++) {
            if (gone[i])
                continue;
            if (!grace)
                printf("    rank %d: hangs\n", i);
            kill(pid[i], SIGKILL);
            waitpid(pid[i], &status, 0);
            gone[i] = true;
            left--;
            worst = 1;
        }
        if (left)
            sleep_ms(2);
    }
    return worst;
}

static int run_case(const struct options *o, const struct test_case *t, int version)
{
    pid_t pid[RANKS_MAX];
    struct shared *sh = mmap(NULL, sizeof(*sh), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (sh == MAP_FAILED)
        return 1;
    const uint64_t begin = now_ns();
    fflush(stdout);
    for (int i = 0; i < t->ranks; i++) {
        pid[i] = fork();
        if (pid[i] == 0) {
            struct rank r = {.o = o, .me = i, .n = t->ranks, .sh = sh};
            r.c.version = version;
            run_rank(&r, t);
        }
        if (pid[i] < 0) {
            perror("fork");
            exit(1);
        }
    }
    const int ret = collect(t, pid, o);
    printf("%s%.*d %s: %s (%.2f s)\n", t->raw ? "plugin" : "net v", t->raw ? 0 : 1, t->raw ? 0 : version,
           t->name,
           ret == 0    ? "ok"
           : ret == 77 ? "skipped"
                       : "FAILED",
           (double)(now_ns() - begin) * 1e-9);
    fflush(stdout);
    munmap(sh, sizeof(*sh));
    return ret;
}

/* ---- all of them ---- */

static bool listed(const char *list, const char *name)
{
    const size_t n = strlen(name);
    for (const char *p = list; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL)
        if (!strncmp(p, name, n) && (p[n] == 0 || p[n] == ','))
            return true;
    return false;
}

static bool wanted(const struct options *o, const char *name)
{
    return (!o->only || listed(o->only, name)) && !listed(o->but, name);
}

/* Which versions are there? Asked in a child, so that this process stays without the plugin. */
static unsigned versions_of(const struct options *o)
{
    int fd[2], status = 0;
    unsigned mask = 0;
    if (pipe(fd))
        return 0;
    const pid_t pid = fork();
    if (pid == 0) {
        const char *why = "";
        struct caller c;
        void *lib = caller_load(o->path, &why);
        if (!lib)
            printf("%s\n", why);
        for (int v = CALLER_OLDEST; lib && v <= CALLER_NEWEST; v++)
            mask |= caller_table(lib, v, &c) ? 1u << v : 0;
        fflush(stdout);
        _exit(write(fd[1], &mask, sizeof(mask)) != (ssize_t)sizeof(mask));
    }
    close(fd[1]);
    if (pid < 0 || read(fd[0], &mask, sizeof(mask)) != (ssize_t)sizeof(mask))
        mask = 0;
    close(fd[0]);
    if (pid > 0)
        waitpid(pid, &status, 0);
    return mask;
}

static int run_all(const struct options *o)
{
    static const struct test_case *const lists[] = {cases_table, cases_side, cases_data,  cases_life,
                                                    cases_churn, cases_list, cases_limits};
    const unsigned mask = versions_of(o);
    int ran = 0, failed = 0, skipped = 0;
    if (!mask) {
        printf("%s: no net table\n", o->path);
        return 1;
    }
    for (int v = 0; v <= CALLER_NEWEST; v++) { /* 0: what is not about one version of net */
        if (v && (!(mask >> v & 1) || (o->version && o->version != v)))
            continue;
        for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
            for (const struct test_case *t = lists[i]; t->name; t++) {
                if (t->raw != (v == 0) || !wanted(o, t->name))
                    continue;
                const int ret = run_case(o, t, v);
                ran++;
                failed += ret == 1;
                skipped += ret == 77;
            }
    }
    printf("%d cases, %d failed, %d skipped\n", ran, failed, skipped);
    return failed || !ran;
}

static const char help[] = "usage: harness PLUGIN.so [options]\n"
                           "  --only A,B       cases by name\n"
                           "  --but A,B        all but these\n"
                           "  --version N      one version of the net table (default: each one exported)\n"
                           "  --max BYTES      longest message (default 64 MiB)\n"
                           "  --rounds N       repetitions of the random cases (default 1)\n"
                           "  --limit S        seconds a case may take (default 30)\n"
                           "  --patience S     seconds until a lost peer must be an error (default 15)\n"
                           "  --with OTHER.so  a second plugin: the cases about lists of plugins too\n"
                           "  --set NAME=TEXT  an environment variable; + stands for ;\n"
                           "  --own            also what only this project's plugin promises\n"
                           "  --verbose        the plugin's log lines\n";

static int set(char *text)
{
    char *value = strchr(text, '=');
    if (!value)
        return 1;
    *value++ = 0;
    for (char *p = value; *p; p++)
        *p = *p == '+' ? ';' : *p;
    return setenv(text, value, 1);
}

int main(int argc, char **argv)
{
    static const struct option longs[] = {
        {"only", required_argument, NULL, 'o'},
        {"version", required_argument, NULL, 'v'},
        {"max", required_argument, NULL, 'm'},
        {"rounds", required_argument, NULL, 'r'},
        {"limit", required_argument, NULL, 'l'},
        {"patience", required_argument, NULL, 'p'},
        {"own", no_argument, NULL, 'w'},
        {"verbose", no_argument, NULL, 'b'},
        {"set", required_argument, NULL, 's'},
        {"but", required_argument, NULL, 'n'},
        {"with", required_argument, NULL, 'W'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    struct options o = {.max = 64u << 20, .rounds = 1, .limit = 30, .patience = 15};
    int c;
    while ((c = getopt_long(argc, argv, "h", longs, NULL)) != -1) {
        if (c == 'o')
            o.only = optarg;
        else if (c == 'n')
            o.but = optarg;
        else if (c == 'W')
            o.with = optarg;
        else if (c == 'v')
            o.version = atoi(optarg);
        else if (c == 'm')
            o.max = strtoul(optarg, NULL, 0);
        else if (c == 'r')
            o.rounds = atoi(optarg);
        else if (c == 'l')
            o.limit = atof(optarg);
        else if (c == 'p')
            o.patience = atof(optarg);
        else if (c == 'w')
            o.own = true;
        else if (c == 's') {
            if (set(optarg))
                return 2;
        } else if (c == 'b')
            loud = o.verbose = true;
        else
            return fputs(help, c == 'h' ? stdout : stderr) < 0 || c != 'h' ? 2 : 0;
    }
    if (optind + 1 != argc) {
        fputs(help, stderr);
        return 2;
    }
    o.path = argv[optind];
    return run_all(&o);
}
