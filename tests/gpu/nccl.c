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
 *
 * Exit 0, 1, 2 (usage), or 77 where there is no GPU, no NCCL, or no kernels were built. */
#include "tests/gpu/nccl.h"
#include "mk/err.h"
#include "mk/param.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] = "usage: test_gpu_nccl LIBNCCL coll [MOST] | self | lives [N] | abort\n";

struct choice {
    const char *part;
    size_t most;
    int lives;
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

static int parse(int argc, char **argv, struct choice *c)
{
    c->most = 256u << 20;
    c->lives = 200;
    if (argc < 3 || argc > 4)
        return 2;
    c->part = argv[2];
    if (!strcmp(c->part, "coll") && argc == 4) {
        const long long n = number(argv[3], 8, 256 << 20);
        c->most = (size_t)n;
        return n < 0 ? 2 : 0;
    }
    if (!strcmp(c->part, "lives") && argc == 4) {
        c->lives = (int)number(argv[3], 1, 100000);
        return c->lives < 0 ? 2 : 0;
    }
    return argc == 3 && (!strcmp(c->part, "coll") || !strcmp(c->part, "self") || !strcmp(c->part, "abort") ||
                         !strcmp(c->part, "lives"))
               ? 0
               : 2;
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

static int show(struct job *j, const struct choice *c)
{
    if (!strcmp(c->part, "coll"))
        return show_collectives(j, c->most);
    if (!strcmp(c->part, "self"))
        return show_self_test(j);
    return !strcmp(c->part, "abort") ? show_abort(j) : show_lives(j, c->lives);
}

int main(int argc, char **argv)
{
    static struct job j;
    struct choice c;
    const char *why = "";
    int version = 0;
    if (parse(argc, argv, &c)) {
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
        printf("NCCL %d, %d ranks on %s: %s\n", version, j.nranks, gpu_name(), c.part);
    const int status = show(&j, &c);
    fflush(stdout);
    mk_boot_destroy(j.boot);
    return status ? 1 : 0;
}
