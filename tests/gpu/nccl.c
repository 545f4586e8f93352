/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Real NCCL over the plugin, one process a rank under mkrun; which network, NCCL's environment says (NCCL_NET,
 * NCCL_NET_PLUGIN; NCCL_HOSTID is set here, another one on every rank, so that each is a node of its own). nccl.sh runs
 * the matrix.
 *
 *   test_gpu_nccl LIBNCCL coll [MOST]    all collectives, 8 bytes to MOST (256M) bytes, ring and tree, three protocols
 *   test_gpu_nccl LIBNCCL self           the checks themselves: wrong words are found
 *   test_gpu_nccl LIBNCCL lives [N]      N (200) communicators, each destroyed before the next one is made
 *   test_gpu_nccl LIBNCCL abort          ncclCommAbort with traffic in flight
 *   test_gpu_nccl LIBNCCL plugin         the plugin of NCCL_NET_PLUGIN without NCCL: messages, one too large among them
 *   test_gpu_nccl LIBNCCL rate [NS]      times of all-reduce; NS: what 8 bytes take the plugin one way, nanoseconds
 *   test_gpu_nccl LIBNCCL pairs [N]      the plugin and NCCL's sockets in turn, N (31) pairs
 *
 * Exit 0, 1, 2 (usage), or 77 where there is no GPU, no NCCL, or no kernels were built. */
#include "tests/gpu/nccl.h"
#include "mk/err.h"
#include "mk/param.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: test_gpu_nccl LIBNCCL coll [MOST] | self | lives [N] | abort | plugin | rate [NS] | pairs [N]\n";

static int coll(struct job *j, long long most)
{
    return show_collectives(j, (size_t)most);
}
static int self(struct job *j, long long unused)
{
    (void)unused;
    return show_self_test(j);
}
static int lives(struct job *j, long long n)
{
    return show_lives(j, (int)n);
}
static int aborts(struct job *j, long long unused)
{
    (void)unused;
    return show_abort(j);
}
static int plugin(struct job *j, long long unused)
{
    (void)unused;
    return show_plugin(j);
}
static int rate(struct job *j, long long ns)
{
    return show_rate(j, (double)ns * 1e-3);
}
static int pairs(struct job *j, long long n)
{
    return show_pairs(j, (int)n);
}
static const struct part {
    const char *name;
    int (*show)(struct job *j, long long number);
    long long least, most, unsaid; /* of the number; most 0: it takes none */
} parts[] = {
    {"coll", coll, 8, 256 << 20, 256 << 20},
    {"self", self, 0, 0, 0},
    {"lives", lives, 1, 100000, 200},
    {"abort", aborts, 0, 0, 0},
    {"plugin", plugin, 0, 0, 0},
    {"rate", rate, 1, 1000000000, 0},
    {"pairs", pairs, 1, 101, 31},
};

/* A number from min to max, with M for 2^20; -1: it is none. */
static long long number(const char *text, long long min, long long max)
{
    char *end;
    long long n = strtoll(text, &end, 10);
    if (n > 0 && n < 1 << 20 && *end == 'M' && end++)
        n <<= 20;
    return end == text || *end || n < min || n > max ? -1 : n;
}

static const struct part *parse(int argc, char **argv, long long *n)
{
    for (size_t i = 0; argc > 2 && argc < 5 && i < sizeof(parts) / sizeof(parts[0]); i++) {
        const struct part *p = &parts[i];
        if (strcmp(p->name, argv[2]))
            continue;
        *n = argc == 3 ? p->unsaid : p->most ? number(argv[3], p->least, p->most) : -1;
        return *n < 0 ? NULL : p;
    }
    return NULL;
}

static int skip(const char *why)
{
    printf("skip: gpu.nccl: %s\n", why);
    return 77;
}

static int open_job(struct job *j, size_t room)
{
    struct mk_settings s;
    char host[32];
    if (mk_settings_load(&s, true) || s.rank < 0 || s.nranks < 1 || s.nranks > 64) {
        fprintf(stderr, "the ranks are started by mkrun %s\n", mk_last_error());
        return 2;
    }
    j->rank = (int)s.rank;
    j->nranks = (int)s.nranks;
    snprintf(host, sizeof(host), "host-%d", j->rank);
    setenv("NCCL_HOSTID", host, 1);
    const int ret = check_open(j, room);
    if (ret)
        return skip("built without nvcc");
    if (mk_boot_init_root(&s, j->nranks, j->rank, &j->boot)) {
        fprintf(stderr, "FAIL rank %d: the ranks do not meet: %s\n", j->rank, mk_last_error());
        return 1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    static struct job j;
    long long n;
    const char *why = "";
    int version = 0;
    const struct part *part = parse(argc, argv, &n);
    if (!part) {
        fprintf(stderr, "%s", usage);
        return 2;
    }
    j.cu = mk_cuda_open(&why);
    if (!j.cu || !gpu_open(&why))
        return skip(why);
    why = nccl_load(&j.nccl, argv[1]);
    if (why)
        return skip(why);
    const int ret = open_job(&j, 256u << 20);
    if (ret)
        return ret;
    j.nccl.version(&version);
    if (j.rank == 0)
        printf("NCCL %d, %d ranks on %s: %s\n", version, j.nranks, gpu_name(), part->name);
    const int status = part->show(&j, n);
    fflush(stdout);
    mk_boot_destroy(j.boot);
    return status ? 1 : 0;
}
