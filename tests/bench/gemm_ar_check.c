/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* A wrong result is never timed. Of each band of --check rows one row is compared, bit by bit, with the numerics contract
 * computed on the host from all ranks' partials (every tile and chunk is looked at while a band is not above 128); all of C must be written
 * and have the same bits on all ranks. Every element of many shapes: tests/gpu/gemm_ar.c. */
#include "plugin/cli/cli.h"
#include "tests/bench/gemm_ar.h"
#include "tests/ref/gemm_ar_ref.h"
#include <stdlib.h>
#include <string.h>

#define PIECE (1u << 18) /* bytes of a rank in one gather */
#define POISON 0xffff

static int bad(const struct ar_bench *b, const char *what)
{
    mk_cli_say("rank %d: %lld x %lld x %lld: %s", b->rank, (long long)b->m, (long long)b->n, (long long)b->k,
               what);
    return 1;
}

static uint64_t hash(const uint16_t *p, size_t n)
{
    uint64_t v = 0xcbf29ce484222325ull, word;
    for (size_t i = 0; i < n / 4; i++) {
        memcpy(&word, p + i * 4, 8);
        v = (v ^ word) * 0x100000001b3ull;
        v ^= v >> 29;
    }
    for (size_t i = n / 4 * 4; i < n; i++)
        v = (v ^ p[i]) * 0x100000001b3ull;
    return v;
}

static int same_on_all(struct ar_bench *b, uint64_t mine)
{
    uint64_t all[1024];
    if (ar_gather(b, &mine, all, sizeof(mine)))
        return bad(b, mk_last_error());
    for (int r = 0; r < b->nranks; r++)
        if (all[r] != all[0])
            return bad(b, "the ranks have different bits");
    return 0;
}

/* all[rank][n] of every rank's mine[n]. */
static int gather(struct ar_bench *b, const uint16_t *mine, uint16_t *all, size_t n)
{
    uint8_t *parts = malloc((size_t)b->nranks * PIECE);
    int ret = !parts;
    for (size_t at = 0; at < n * 2 && !ret; at += PIECE) {
        const size_t now = n * 2 - at < PIECE ? n * 2 - at : PIECE;
        ret = ar_gather(b, (const uint8_t *)mine + at, parts, now);
        for (int r = 0; r < b->nranks && !ret; r++)
            memcpy((uint8_t *)(all + (size_t)r * n) + at, parts + (size_t)r * now, now);
    }
    free(parts);
    return ret ? bad(b, mk_last_error()) : 0;
}

static int64_t row_of(const struct ar_bench *b, int64_t band)
{
    const int64_t row = band * b->o->check + band * 13 % b->o->check;
    return row < b->m ? row : b->m - 1;
}

/* Rows of C as the contract has them, from partials that are in C of set 0 now. */
static int contract(struct ar_bench *b, int64_t bands, uint16_t *want)
{
    const size_t n = (size_t)(bands * b->n);
    uint16_t *mine = malloc(n * 2), *all = malloc((size_t)b->nranks * n * 2);
    const void *partial[1024];
    int ret = !mine || !all ? bad(b, "no memory to check the result") : 0;
    for (int64_t i = 0; i < bands && !ret; i++)
        gpu_get(mine + i * b->n, b->c[0] + (gpu_ptr)(row_of(b, i) * b->n) * 2, (size_t)b->n * 2);
    if (!ret)
        ret = gather(b, mine, all, n);
    for (int i = 0; i < b->nranks && !ret; i++)
        partial[i] = all + (size_t)b->rank_at[i] * n;
    if (!ret)
        mk_ref_allreduce(b->info.nnodes, b->info.local_nranks, bands, b->n, MK_BFLOAT16, b->wire_fp32,
                         partial, NULL, MK_ACT_NONE, want);
    free(mine);
    free(all);
    return ret;
}

static int compare(struct ar_bench *b, const uint16_t *have, int64_t bands)
{
    uint16_t *want = malloc((size_t)(bands * b->n) * 2);
    int ret = want ? ar_part(b, 0, MK_PART_COMPUTE) : bad(b, "no memory to check the result");
    gpu_sync();
    if (!ret)
        ret = ar_failed(b) || contract(b, bands, want);
    for (int64_t i = 0; i < bands && !ret; i++)
        if (memcmp(have + row_of(b, i) * b->n, want + i * b->n, (size_t)b->n * 2))
            ret = bad(b, "WRONG RESULT: the bits differ from the contract");
    free(want);
    return ret;
}

/* Hash of C of a set, held against the other ranks. */
static int take(struct ar_bench *b, int set, uint16_t *c, uint64_t *out)
{
    const size_t n = (size_t)(b->m * b->n);
    gpu_get(c, b->c[set], n * 2);
    for (size_t i = 0; i < n; i++)
        if (c[i] == POISON)
            return bad(b, "WRONG RESULT: not all of C was written");
    *out = hash(c, n);
    return same_on_all(b, *out);
}

int ar_check(struct ar_bench *b, int *rows, uint64_t *out)
{
    const int64_t bands = (b->m + b->o->check - 1) / b->o->check;
    uint16_t *c = malloc((size_t)(b->m * b->n) * 2);
    int ret = c ? 0 : bad(b, "no memory to check the result");
    gpu_set(b->c[0], 0xff, (size_t)(b->m * b->n) * 2);
    if (!ret)
        ret = ar_part(b, 0, MK_PART_FUSED);
    gpu_sync();
    if (!ret)
        ret = ar_failed(b) || take(b, 0, c, out) || compare(b, c, bands);
    free(c);
    *rows = ret ? 0 : (int)bands;
    return ar_slowest(b, ret ? 1 : 0) != 0;
}

int ar_check_again(struct ar_bench *b, uint64_t first)
{
    uint16_t *c = malloc((size_t)(b->m * b->n) * 2);
    uint64_t now = 0;
    int ret = c ? 0 : bad(b, "no memory to check the result");
    gpu_sync();
    for (int s = 0; s < b->sets && s < b->calls && !ret; s++) {
        ret = take(b, s, c, &now);
        if (!ret && s == 0 && now != first)
            ret = bad(b, "WRONG RESULT: other bits than in the first call");
    }
    free(c);
    return ar_slowest(b, ret ? 1 : 0) != 0;
}
