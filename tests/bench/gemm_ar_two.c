/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Baselines with NCCL at their best: a communicator for each number of CTAs; all-reduce alone picks the one for "cuBLAS,
 * then NCCL"; the version on two streams picks its chunks of M, multiprocessors for cuBLAS, and CTAs. */
#include "mk/param.h"
#include "plugin/cli/cli.h"
#include "tests/bench/gemm_ar.h"
#include "tests/bench/nccl.h"
#include <string.h>

#define ROWS 128 /* chunks of M begin at multiples of it */
#define TRIES 3

int ar_nccl_open(struct ar_bench *b)
{
    const struct ar_list none = {{0}, 1}, *ctas = b->o->ctas.n ? &b->o->ctas : &none;
    b->nccls = b->nccl_best = 0;
    memset(&b->two, 0, sizeof(b->two));
    for (int i = 0; b->o->nccl && i < ctas->n; i++) {
        const char *why = "";
        const bool good =
            nccl_open(b->o->nccl, b->comm, b->rank, b->nranks, (int)ctas->v[i], &b->nccl[i], &why);
        if (!good)
            mk_cli_say("rank %d: no NCCL baseline with %d CTAs: %s", b->rank, (int)ctas->v[i], why);
        b->nccls = i + 1;
        if (ar_slowest(b, good ? 0 : 1) != 0) {
            ar_nccl_close(b);
            return 1;
        }
    }
    return 0;
}

void ar_nccl_close(struct ar_bench *b)
{
    gpu_sync();
    for (int i = 0; i < b->nccls; i++)
        nccl_close(b->nccl[i]);
    b->nccls = 0;
}

static int64_t begin_of(const struct ar_bench *b, int chunk)
{
    const int64_t row = b->m * chunk / b->two.chunks;
    return chunk == b->two.chunks ? b->m : b->m >= ROWS * b->two.chunks ? row / ROWS * ROWS : row;
}

/* The second stream sums a chunk while the first one computes the next; both join at the end. */
int ar_two_call(struct ar_bench *b, int s)
{
    void *main = gpu_stream(), *side = gpu_side_stream();
    int ret = 0;
    blas_sm_target(b->two.sms ? b->two.sms : b->base_sms);
    for (int c = 0; c < b->two.chunks && !ret; c++) {
        const int64_t from = begin_of(b, c), rows = begin_of(b, c + 1) - from;
        if (rows < 1)
            continue;
        const gpu_ptr at = b->c[s] + (gpu_ptr)(from * b->n) * 2;
        ret = blas_gemm(MK_TN, MK_BFLOAT16, rows, b->n, b->k, b->a[s] + (gpu_ptr)(from * b->k) * 2, b->k,
                        b->b[s], b->k, at, b->n, main);
        gpu_after(side, main);
        if (!ret &&
            (ret = nccl_all_reduce(b->nccl[b->two.nccl], at, (size_t)(rows * b->n), MK_BFLOAT16, side)))
            mk_cli_say("rank %d: NCCL: %s", b->rank, nccl_error(ret));
    }
    gpu_after(main, side);
    blas_sm_target(b->base_sms);
    return ret;
}

/* The least of a few samples of b->variant; < 0: failed. */
static double least(struct ar_bench *b)
{
    struct gpu_graph *g = ar_capture(b);
    double best = -1;
    for (int i = 0; i < TRIES; i++) {
        const double us = ar_sample(b, g);
        if (us < 0) {
            best = -1;
            break;
        }
        best = i == 0 || us < best ? us : best;
    }
    if (g)
        gpu_graph_free(g);
    return best;
}

static int tune_two(struct ar_bench *b, struct ar_result *r)
{
    const int visible = b->base_sms ? b->base_sms : gpu_sms();
    double best = 0;
    struct ar_two found = {2, 0, 0};
    b->variant = AR_TWO;
    for (int i = 0; i < b->nccls; i++)
        for (int chunks = 2; chunks <= 8; chunks *= 2)
            for (int less = 0; less < 2; less++) {
                const int ctas = b->o->ctas.n ? (int)b->o->ctas.v[i] : 0;
                const struct ar_two now = {chunks, less ? visible - (ctas ? ctas : visible / 8) : 0, i};
                if (less && now.sms < 1)
                    continue;
                b->two = now;
                const double us = least(b);
                if (us < 0)
                    return 1;
                r->tried++;
                if (best <= 0 || us < best) {
                    best = us;
                    found = now;
                }
            }
    b->two = r->two = found;
    return 0;
}

int ar_nccl_tune(struct ar_bench *b, struct ar_result *r)
{
    double best = 0;
    int found = 0;
    if (!b->nccls)
        return 0;
    b->variant = AR_NCCL;
    for (int i = 0; i < b->nccls; i++) {
        b->nccl_best = i;
        const double us = least(b);
        if (us < 0)
            return 1;
        if (best <= 0 || us < best) {
            best = us;
            found = i;
        }
    }
    b->nccl_best = found;
    return b->o->no_two ? 0 : tune_two(b, r);
}
