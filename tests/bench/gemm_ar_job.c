/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Ranks of the job, communicators over links of different rates, operands. */
#include "mk/err.h"
#include "mk/log.h"
#include "mk/param.h"
#include "plugin/cli/cli.h"
#include "tests/bench/gemm_ar.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROTATION 200e6 /* bytes: beyond any L2 */

int ar_start(struct ar_bench *b)
{
    struct mk_settings s;
    if (mk_settings_load(&s, true))
        return mk_cli_say("%s", mk_last_error()), 2;
    if (s.rank < 0)
        mk_settings_launcher(&s);
    b->rank = s.rank < 0 ? 0 : (int)s.rank;
    b->nranks = s.rank < 0 ? 1 : (int)s.nranks;
    b->wire_fp32 = !strcmp(s.wire, "fp32");
    mk_log_set_rank(b->rank);
    if (b->nranks > 1 && mk_boot_init_root(&s, b->nranks, b->rank, &b->boot))
        return mk_cli_say("%s", mk_last_error()), 1;
    return 0;
}

void ar_end(struct ar_bench *b)
{
    mk_boot_destroy(b->boot);
    b->boot = NULL;
}

int ar_gather(void *bench, const void *send, void *recv, size_t bytes)
{
    struct ar_bench *b = bench;
    if (b->boot)
        return mk_boot_allgather(b->boot, send, recv, bytes);
    memcpy(recv, send, bytes);
    return 0;
}

double ar_slowest(struct ar_bench *b, double v)
{
    double all[1024], worst = 0;
    if (ar_gather(b, &v, all, sizeof(v)))
        return -1;
    for (int r = 0; r < b->nranks; r++) {
        if (all[r] < 0)
            return -1;
        worst = all[r] > worst ? all[r] : worst;
    }
    return worst;
}

/* The settings are read anew by the next communicator, ours or NCCL's. */
int ar_link_set(const struct ar_link *link)
{
    char gbps[40], us[40];
    snprintf(gbps, sizeof(gbps), "%.9f", link->gbps);
    snprintf(us, sizeof(us), "%.3f", link->us);
    return setenv("MK_LOOP_GBPS", gbps, 1) || setenv("MK_LOOP_US", us, 1);
}

int ar_connect(struct ar_bench *b)
{
    int places[1024][2], mine[2];
    if (mk_comm_init_allgather(&b->comm, b->nranks, b->rank, ar_gather, b, NULL) ||
        mk_comm_info(b->comm, &b->info))
        return mk_cli_say("%s", mk_last_error()), 1;
    mine[0] = b->info.node;
    mine[1] = b->info.local_rank;
    if (ar_gather(b, mine, places, sizeof(mine)))
        return mk_cli_say("%s", mk_last_error()), 1;
    for (int r = 0; r < b->nranks; r++)
        b->rank_at[places[r][0] * b->info.local_nranks + places[r][1]] = r;
    return 0;
}

void ar_disconnect(struct ar_bench *b)
{
    if (b->comm)
        mk_comm_destroy(b->comm);
    b->comm = NULL;
}

void ar_make(struct ar_bench *b, const int64_t shape[3])
{
    b->m = shape[0];
    b->n = shape[1];
    b->k = shape[2];
    const size_t na = (size_t)(b->m * b->k), nb = (size_t)(b->n * b->k), nc = (size_t)(b->m * b->n);
    const double each = (double)(na + nb + nc) * 2;
    b->sets = b->o->cpu ? 2 : (int)(ROTATION / each) + 2;
    b->sets = b->sets > AR_SETS ? AR_SETS : b->sets;
    b->calls = b->o->calls ? b->o->calls : b->sets > 4 ? b->sets : 4;
    for (int s = 0; s < b->sets; s++) {
        const uint64_t seed = (uint64_t)((b->rank * AR_SETS + s) * 2);
        b->a[s] = gpu_alloc(na * 2);
        b->b[s] = gpu_alloc(nb * 2);
        b->c[s] = gpu_alloc(nc * 2);
        gpu_random(b->a[s], na, MK_BFLOAT16, seed + 1);
        gpu_random(b->b[s], nb, MK_BFLOAT16, seed + 2);
        gpu_set(b->c[s], 0xff, nc * 2);
    }
}

void ar_drop(struct ar_bench *b)
{
    for (int s = 0; s < b->sets; s++) {
        gpu_free(b->a[s]);
        gpu_free(b->b[s]);
        gpu_free(b->c[s]);
    }
    b->sets = 0;
}

/* Node sums of this rank's share: to the one other node, or to be reduced and back (design 10). */
double ar_bytes(const struct ar_bench *b)
{
    const int d = b->info.nnodes;
    const double share = (double)(b->m * b->n) / b->info.local_nranks * (b->wire_fp32 ? 4 : 2);
    return d == 1 ? 0 : d == 2 ? share : 2.0 * (d - 1) / d * share;
}

double ar_nccl_bytes(const struct ar_bench *b)
{
    return 2.0 * (b->nranks - 1) / b->nranks * (double)(b->m * b->n) * 2;
}
