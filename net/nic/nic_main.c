/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#include "nic.h"
#include "mk/err.h"
#include "mk/log.h"
#include "mk/param.h"
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

struct nic nic;

static const char help[] =
    "usage: mknic --socket PATH [options]\n"
    "\n"
    "The emulated network card of the loop transport for GPU memory: a process of its own that copies "
    "between the\n"
    "memory of the ranks of this machine, with the copy engines of the GPUs. mkrun --gpus-shared starts and "
    "stops it;\n"
    "ranks find it by MK_NIC=PATH. It listens on PATH as soon as it is ready, and ends on SIGTERM or "
    "SIGINT.\n"
    "\n"
    "  --socket PATH    unix socket to listen on; made new, removed at the end\n"
    "  --threads N      copy threads, each for a part of the ranks (1 to 8; default: a quarter of the cores, "
    "1 to 4)\n"
    "  --lanes N        streams a rank and GPU (1 to 8, default 4)\n"
    "  --group N        copies handed to a stream together (1 to 16, default 16)\n"
    "  --no-join        one driver call a copy, also where one could do for several\n"
    "  --events         completions by events, also where streams can write words\n"
    "  --help, --version\n";

static bool number(const char *text, int max, int *out)
{
    char *end;
    const long v = strtol(text, &end, 10);
    if (end == text || *end || v < 1 || v > max)
        return false;
    *out = (int)v;
    return true;
}

/* 0: go on; else exit with that status - 1. */
static int parse(int argc, char **argv)
{
    static const struct option options[] = {
        {"socket", 1, NULL, 's'}, {"threads", 1, NULL, 't'}, {"lanes", 1, NULL, 'l'},
        {"group", 1, NULL, 'g'},  {"no-join", 0, NULL, 'b'}, {"events", 0, NULL, 'e'},
        {"help", 0, NULL, 'h'},   {"version", 0, NULL, 'v'}, {NULL, 0, NULL, 0}};
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int c, bad = 0;
    nic.nthreads = cores >= 16 ? 4 : cores >= 8 ? (int)cores / 4 : 1;
    nic.nlanes = 4;
    nic.group_jobs = 16;
    nic.join = true;
    while (!bad && (c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (c) {
        case 's':
            nic.path = optarg;
            break;
        case 't':
            bad = !number(optarg, NIC_THREADS_MAX, &nic.nthreads);
            break;
        case 'l':
            bad = !number(optarg, NIC_LANES_MAX, &nic.nlanes);
            break;
        case 'g':
            bad = !number(optarg, NIC_GROUP_JOBS, &nic.group_jobs);
            break;
        case 'b':
            nic.join = false;
            break;
        case 'e':
            nic.want_events = true;
            break;
        case 'h':
            return fputs(help, stdout) < 0 || fflush(stdout) ? 2 : 1;
        case 'v':
            return printf("mknic %d.%d.%d\n", MK_VERSION_MAJOR, MK_VERSION_MINOR, MK_VERSION_PATCH) < 0 ||
                           fflush(stdout)
                       ? 2
                       : 1;
        default:
            bad = 1;
        }
    }
    if (!bad && nic.path && optind == argc)
        return 0;
    fprintf(stderr, "mknic: %s; see mknic --help\n",
            bad        ? "wrong option or number"
            : nic.path ? "no arguments are taken"
                       : "--socket PATH is needed");
    return 3;
}

static int open_gpus(void)
{
    const char *why;
    int n = 0, err, on = 1;
    nic.cu = mk_cuda_open(&why);
    if (!nic.cu)
        return mk_fail(MK_ERR_CUDA, "NET", "mknic: %s", why);
    err = nic.cu->init(0);
    if (!err)
        err = nic.cu->device_count(&n);
    if (err)
        return mk_cuda_fail(err, "mknic: cuInit");
    if (n < 1)
        return mk_fail(MK_ERR_CUDA, "NET", "mknic: no GPU");
    nic.write64 = !nic.want_events;
    for (int i = 0; i < n && i < NIC_GPUS; i++) {
        struct nic_gpu *g = &nic.gpu[i];
        err = nic.cu->device_get(&g->device, i);
        if (!err)
            err = nic.cu->device_uuid(&g->uuid, g->device);
        if (!err)
            err = nic.cu->ctx_retain(&g->ctx, g->device);
        if (err)
            return mk_cuda_fail(err, "mknic: a context");
        if (nic.cu->device_attribute(&on, MK_CU_ATTR_WRITE64, g->device) || !on)
            nic.write64 = false;
        nic.ngpus++;
    }
    return 0;
}

static int open_socket(void)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (strlen(nic.path) >= sizeof(a.sun_path))
        return mk_fail(MK_ERR_INVALID, "NET", "mknic: the path of the socket is too long: %s", nic.path);
    snprintf(a.sun_path, sizeof(a.sun_path), "%s", nic.path);
    nic.listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (nic.listen_fd < 0 || bind(nic.listen_fd, (struct sockaddr *)&a, sizeof(a)) ||
        listen(nic.listen_fd, 64))
        return mk_fail(MK_ERR_SYSTEM, "NET", "mknic: %s: %s", nic.path, strerror(errno));
    return 0;
}

static int open_all(void)
{
    struct rlimit files;
    if (!getrlimit(RLIMIT_NOFILE, &files)) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    nic.client = calloc(NIC_CLIENTS, sizeof(*nic.client));
    nic.window = calloc(NIC_WINDOWS, sizeof(*nic.window));
    if (!nic.client || !nic.window)
        return mk_fail(MK_ERR_NOMEM, "NET", "mknic is out of memory");
    nic.host = mk_host_id();
    if (getrandom(&nic.id, sizeof(nic.id), 0) != sizeof(nic.id))
        nic.id = mk_time_ns();
    int ret = open_gpus();
    if (!ret)
        ret = mk_shm_create("mknic bells", 64 * NIC_THREADS_MAX, &nic.doorbell);
    return ret ? ret : open_socket();
}

static int open_signals(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    signal(SIGPIPE, SIG_IGN);
    sigprocmask(SIG_BLOCK, &set, NULL);
    nic.signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return nic.signal_fd < 0 ? mk_fail(MK_ERR_SYSTEM, "NET", "mknic: signalfd: %s", strerror(errno)) : 0;
}

static void stop(int started)
{
    __atomic_store_n(&nic.stop, 1, __ATOMIC_RELEASE);
    for (int i = 0; i < started; i++)
        mk_bell_ring(nic_bell(i));
    for (int i = 0; i < started; i++)
        pthread_join(nic.thread[i], NULL);
}

int main(int argc, char **argv)
{
    struct mk_settings s;
    const int wanted = parse(argc, argv);
    if (wanted)
        return wanted - 1;
    if (mk_settings_load(&s, true)) {
        fprintf(stderr, "mknic: %s\n", mk_last_error());
        return 2;
    }
    int ret = open_signals(), started = 0;
    if (!ret)
        ret = open_all();
    while (!ret && started < nic.nthreads) {
        if (pthread_create(&nic.thread[started], NULL, nic_copy_thread, (void *)(intptr_t)started))
            ret = mk_fail(MK_ERR_SYSTEM, "NET", "mknic: no thread");
        else
            started++;
    }
    if (!ret) {
        MK_INFO("NET", "mknic: %d GPU(s), %d threads, %d lanes, groups of %d%s, completions by %s", nic.ngpus,
                nic.nthreads, nic.nlanes, nic.group_jobs, nic.join ? ", joined" : "",
                nic.write64 ? "words" : "events");
        ret = nic_ctl_run();
        unlink(nic.path);
    }
    stop(started);
    return ret || __atomic_load_n(&nic.failed, __ATOMIC_ACQUIRE)
               ? 1
               : 0; /* the process's end frees the rest, contexts included */
}
