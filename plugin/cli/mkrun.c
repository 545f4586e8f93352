/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#include "mkrun.h"
#include "cli.h"
#include "mk/shm.h"
#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char help[] =
    "usage: mkrun [--nodes D] [--ranks-per-node G] [--gpus-shared] [--quiet] [--] PROGRAM [ARGS]\n"
    "\n"
    "Runs D x G copies of PROGRAM on this machine as the ranks of one job: D nodes of G ranks.\n"
    "\n"
    "  --nodes D           number of nodes, 1 if not given\n"
    "  --ranks-per-node G  ranks on each node, 1 if not given\n"
    "  --gpus-shared       ranks share the GPUs of this machine: starts and stops the MPS daemon and mknic "
    "(see below)\n"
    "  --quiet             no messages of mkrun itself\n"
    "  --help, --version\n"
    "\n"
    "Each rank gets MK_RANK, MK_NRANKS, MK_NODE, MK_LOCAL_RANK, MK_LOCAL_NRANKS, and unless they are set "
    "already\n"
    "MK_ROOT (a free port of 127.0.0.1), MK_JOB (random), MK_IFNAME (lo) and MK_THREADS (cores / ranks, at "
    "least 1).\n"
    "With more than one rank each line of output gets the rank in front: \"[2] text\". Rank 0 reads the "
    "standard\n"
    "input unless that is a terminal; the others read nothing.\n"
    "\n"
    "--gpus-shared: each rank also gets MK_NIC (mknic moves GPU memory for MK_NET=loop), MK_SHARED_GPU=1, "
    "the\n"
    "directories of the MPS daemon, and unless it is set already CUDA_MPS_ACTIVE_THREAD_PERCENTAGE (100 / "
    "ranks). Both\n"
    "are ended with mkrun, whatever ends it. Before the ranks start, a census looks whether the kernels of "
    "all, with\n"
    "MK_BLOCKS blocks each (unless set: SMs / ranks, or each rank's part of those that were there), are on "
    "the GPU\n"
    "together; it refuses where a rank has not half.\n"
    "\n"
    "Signals are forwarded to the ranks and all that they started. When a rank fails, the others have "
    "MK_TIMEOUT + 5\n"
    "seconds to report; then they are ended (SIGTERM, 2 seconds later SIGKILL). What ranks leave behind is "
    "removed:\n"
    "processes, and their files in /dev/shm.\n"
    "\n"
    "exit status: of the first rank that failed (128 + n if signal n ended it); 0 if none did; 2 wrong usage "
    "or a\n"
    "wrong MK_* setting; 126 PROGRAM cannot be run; 127 PROGRAM not found.\n"
    "\n"
    "examples:\n"
    "  mkrun --nodes 2 --ranks-per-node 2 -- mkgemm --a A.npy --b B.npy --out C.npy --verify\n"
    "  MK_NET=loop MK_LOOP_GBPS=10 mkrun --nodes 2 -- ./my_program\n";

/* How far the end has come. Each phase has a deadline, after which the next begins. */
enum phase {
    RUNNING,   /* all is well; no deadline */
    REPORTING, /* a rank failed or a signal came: the others have MK_TIMEOUT + 5 s */
    ENDING,    /* SIGTERM was sent: 2 s */
    KILLED     /* SIGKILL was sent */
};
static const double ending_s = 2.0;
/* A wrapper (timeout, make) may send the same signal to mkrun and to its group: that is one request. */
static const uint64_t one_request_ns = 300000000;

static const int forwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT};

static int parse(struct mkrun *r, int argc, char **argv)
{
    static const struct option options[] = {{"nodes", 1, NULL, 'n'}, {"ranks-per-node", 1, NULL, 'g'},
                                            {"quiet", 0, NULL, 'q'}, {"gpus-shared", 0, NULL, 's'},
                                            {"help", 0, NULL, 'h'},  {"version", 0, NULL, 'v'},
                                            {NULL, 0, NULL, 0}};
    long long nodes = 1, per_node = 1;
    int c;
    opterr = 0;
    while ((c = getopt_long(argc, argv, "+:", options, NULL)) != -1) {
        switch (c) {
        case 'n':
            if (!mk_cli_number(optarg, 1, MKRUN_MAX_RANKS, &nodes))
                return mk_cli_usage("--nodes %s is not a number from 1 to %d", optarg, MKRUN_MAX_RANKS);
            break;
        case 'g':
            if (!mk_cli_number(optarg, 1, MKRUN_MAX_RANKS, &per_node))
                return mk_cli_usage("--ranks-per-node %s is not a number from 1 to %d", optarg,
                                    MKRUN_MAX_RANKS);
            break;
        case 's':
            r->gpus_shared = true;
            break;
        case 'q':
            r->quiet = true;
            break;
        case 'h':
            exit(mk_cli_print(help));
        case 'v':
            exit(mk_cli_version());
        default:
            return mk_cli_bad_option(c, argv);
        }
    }
    if (optind == argc)
        return mk_cli_usage("no program given");
    if (nodes * per_node > MKRUN_MAX_RANKS)
        return mk_cli_usage("%lld x %lld ranks are more than %d", nodes, per_node, MKRUN_MAX_RANKS);
    r->nodes = (int)nodes;
    r->per_node = (int)per_node;
    r->nranks = r->nodes * r->per_node;
    r->argv = argv + optind;
    return 0;
}

/* Blocks the signals and opens the descriptor that they come through. Those that our parent ignores (nohup)
 * stay ignored. */
static int open_signals(struct mkrun *r)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    for (size_t i = 0; i < sizeof(forwarded) / sizeof(forwarded[0]); i++) {
        struct sigaction old;
        if (!sigaction(forwarded[i], NULL, &old) && old.sa_handler != SIG_IGN)
            sigaddset(&set, forwarded[i]);
    }
    signal(SIGCHLD, SIG_DFL); /* ignored by a parent: the kernel would throw the statuses away */
    signal(SIGPIPE, SIG_IGN);
    sigprocmask(SIG_BLOCK, &set, &r->old_mask);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    r->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (r->signal_fd >= 0)
        return 0;
    mk_cli_say("signalfd: %s", strerror(errno));
    return MK_EXIT_FAILED;
}

static void note(const struct mkrun *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void note(const struct mkrun *r, const char *fmt, ...)
{
    char text[400] = "mkrun: ";
    va_list ap;
    if (r->quiet)
        return;
    va_start(ap, fmt);
    vsnprintf(text + 7, sizeof(text) - 7, fmt, ap);
    va_end(ap);
    mk_lines_say(r->lines, text);
}

static void enter(struct mkrun *r, enum phase phase)
{
    double seconds = 0;
    r->phase = phase;
    if (phase == REPORTING) {
        seconds = r->settings.timeout + 5;
    } else if (phase == ENDING) {
        seconds = ending_s;
        mkrun_signal_ranks(r, SIGTERM);
        mkrun_signal_ranks(r, SIGCONT); /* a stopped process does not hear SIGTERM */
    } else if (phase == KILLED) {
        mkrun_signal_ranks(r, SIGKILL);
    }
    r->deadline_ns = seconds > 0 ? mk_time_ns() + (uint64_t)(seconds * 1e9) : 0;
}

static void rank_ended(struct mkrun *r, int rank, const siginfo_t *info)
{
    const bool exited = info->si_code == CLD_EXITED;
    const int status = exited ? info->si_status : 128 + info->si_status;
    r->ranks[rank].running = false;
    r->running--;
    if (!status || r->status)
        return;
    r->status = status;
    const bool deaf = mk_lines_error(r->lines, 1) || mk_lines_error(r->lines, 2);
    char others[80] = "";
    if (r->running && r->phase == RUNNING)
        snprintf(others, sizeof(others), "; the others have %g s to report", r->settings.timeout + 5);
    if (exited)
        note(r, "rank %d ended with status %d%s", rank, status, others);
    else if (info->si_status != SIGPIPE || !deaf) /* else it is the consequence of what check_streams tells */
        note(r, "rank %d was ended by signal %d (%s)%s", rank, info->si_status, strsignal(info->si_status),
             others);
    if (r->running && r->phase == RUNNING)
        enter(r, REPORTING);
}

/* Looks at each rank, leaves the dead as zombies (mkrun_clean takes them): their process groups stay ours. */
static void look_at_ranks(struct mkrun *r)
{
    for (int i = 0; i < r->nranks; i++) {
        siginfo_t info;
        memset(&info, 0, sizeof(info));
        if (r->ranks[i].running &&
            !waitid(P_PID, (id_t)r->ranks[i].pid, &info, WEXITED | WNOHANG | WNOWAIT) && info.si_pid)
            rank_ended(r, i, &info);
    }
}

static void forward(struct mkrun *r, int sig)
{
    const bool ends = sig == SIGINT || sig == SIGTERM || sig == SIGHUP || sig == SIGQUIT;
    const uint64_t now = mk_time_ns();
    const bool same_request = ends && r->asked_sig && now - r->asked_ns < one_request_ns;
    if (same_request && r->asked_sig == sig)
        return; /* a rank that has begun to report would be interrupted in it */
    mkrun_signal_ranks(r, sig);
    if (sig == SIGTSTP)
        raise(SIGSTOP);
    if (!ends || same_request)
        return;
    r->asked_ns = now;
    r->asked_sig = sig;
    if (r->phase == RUNNING)
        enter(r, REPORTING);
    else if (r->phase < KILLED)
        enter(r, r->phase + 1); /* asked again: hurry */
}

static void read_signals(struct mkrun *r)
{
    struct signalfd_siginfo s;
    while (read(r->signal_fd, &s, sizeof(s)) == sizeof(s)) {
        if (s.ssi_signo == SIGCHLD)
            look_at_ranks(r);
        else
            forward(r, (int)s.ssi_signo);
    }
}

/* Waits for output and signals, at most until the phase's deadline and `ms` milliseconds. Returns poll's
 * value. */
static int wait_once(struct mkrun *r, struct pollfd *p, int ms)
{
    const uint64_t now = mk_time_ns();
    if (r->deadline_ns) {
        const uint64_t left = r->deadline_ns > now ? (r->deadline_ns - now + 999999) / 1000000 : 0;
        if (ms < 0 || left < (uint64_t)ms)
            ms = (int)(left < 1000000 ? left : 1000000);
    }
    p[0] = (struct pollfd){.fd = r->signal_fd, .events = POLLIN};
    const int n = mk_lines_poll(r->lines, p + 1);
    const int ready = poll(p, (nfds_t)(n + 1), ms);
    if (ready > 0) {
        mk_lines_run(r->lines, p + 1, n);
        if (p[0].revents)
            read_signals(r);
    }
    return ready;
}

static void check_deadline(struct mkrun *r)
{
    if (!r->deadline_ns || mk_time_ns() < r->deadline_ns)
        return;
    if (r->running)
        note(r, "%d rank%s did not end, sending %s", r->running, r->running > 1 ? "s" : "",
             r->phase == REPORTING ? "SIGTERM" : "SIGKILL");
    enter(r, r->phase + 1);
}

/* All ranks have ended: the same for what they started, then the rest of the output. */
static void end_leftovers(struct mkrun *r, struct pollfd *p)
{
    const int left = mkrun_descendants(0);
    r->deadline_ns = 0;
    if (left) {
        note(r, "the ranks left %d process%s behind; ending %s", left, left > 1 ? "es" : "",
             left > 1 ? "them" : "it");
        mkrun_descendants(SIGTERM);
        const uint64_t until = mk_time_ns() + (uint64_t)(ending_s * 1e9);
        while (mkrun_descendants(0) && mk_time_ns() < until && r->phase < KILLED)
            wait_once(r, p, 20);
    }
    mkrun_signal_ranks(r, SIGKILL); /* also where /proc does not list children */
    for (int i = 0; i < 200 && mkrun_descendants(SIGKILL); i++)
        wait_once(r, p, 10);
}

static void drain(struct mkrun *r, struct pollfd *p)
{
    r->deadline_ns = 0;
    r->phase = ENDING; /* a signal makes it KILLED: no more waiting for a slow reader */
    while (mk_lines_busy(r->lines) && r->phase < KILLED)
        if (!wait_once(r, p, 1000) && !mk_lines_queued(r->lines))
            mk_lines_give_up(r->lines);
    if (mk_lines_busy(r->lines) && !r->status)
        r->status = MK_EXIT_FAILED;
}

static int watch(struct mkrun *r)
{
    struct pollfd *p = calloc((size_t)mk_lines_poll_max(r->lines) + 1, sizeof(*p));
    if (!p) {
        mk_cli_say("out of memory");
        return MK_EXIT_FAILED;
    }
    const int failed = mkrun_start(r);
    if (failed) {
        r->status = failed;
        enter(r, KILLED);
    }
    while (r->running) {
        wait_once(r, p, -1);
        check_deadline(r);
    }
    end_leftovers(r, p);
    drain(r, p);
    mkrun_clean(r);
    free(p);
    return r->status;
}

static int check_streams(struct mkrun *r, int status)
{
    for (int stream = 1; stream <= 2; stream++) {
        const int err = mk_lines_error(r->lines, stream);
        if (!err || err == EPIPE)
            continue;
        mk_cli_say("standard %s: %s", stream == 1 ? "output" : "error", strerror(err));
        status = !status || status == 128 + SIGPIPE ? MK_EXIT_FAILED : status;
    }
    return status;
}

int main(int argc, char **argv)
{
    struct mkrun r;
    struct timespec now;
    memset(&r, 0, sizeof(r));
    mk_cli_init("mkrun");
    int ret = parse(&r, argc, argv);
    if (ret)
        return ret;
    if (mk_settings_load(&r.settings, true))
        return mk_cli_say("%s", mk_last_error()), MK_EXIT_USAGE;
    clock_gettime(CLOCK_REALTIME, &now);
    r.begin_s = now.tv_sec;
    r.ranks = calloc((size_t)r.nranks, sizeof(*r.ranks));
    if (!r.ranks || mk_lines_open(r.nranks, r.nranks > 1, &r.lines)) {
        mk_cli_say("out of memory for %d ranks", r.nranks);
        free(r.ranks);
        return MK_EXIT_FAILED;
    }
    r.keeper_alive = r.keeper_report = -1;
    ret = r.gpus_shared ? mkrun_gpus_start(&r) : 0;
    if (!ret && r.gpus_shared)
        ret = mkrun_census(&r);
    if (!ret)
        ret = open_signals(&r);
    if (!ret)
        ret = check_streams(&r, watch(&r));
    mkrun_gpus_stop(&r);
    mk_lines_close(r.lines);
    free(r.ranks);
    return ret;
}
