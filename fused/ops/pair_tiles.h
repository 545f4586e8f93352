/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* A GEMM and the AllReduce of its output as two kernels, G and K, that may run at the same time (design 13.1): what G tells
 * K, and how K's AllReduce sees the buffer. The same text on CPU and GPU.
 *
 * G's descriptor, one a stream (a captured pair has its own), zero at first, MK_PAIR_HEAD + bands words:
 *   [0]  generation  of the last G of the stream. Written (release, gpu) by the last of G's blocks to begin, before it says
 *                    launch_dependents, so that a K that starts early reads that of the G before it; read (acquire) by
 *                    every block of K as it begins.
 *   [1]  begun       {low half of the generation, blocks of G that have begun}
 *   [4..6]       MK_VERIFY's (pair_check.h)
 *   [MK_PAIR_HEAD + b]  {low half of the generation, parts of row band b that are in C}: added to by G's writers, after
 *                    their stores are complete (mk_pair_done), read by the blocks of K (peeks).
 * A G starts after everything before it in its stream, the K of the G before it included: nobody reads the words of a
 * generation when the next one begins, and nothing is cleared. G waits for nobody.
 *
 * K takes the buffer as a matrix without gaps (mk_pair_view), chunked as any C of that shape: a function of the count and
 * the rings, which all ranks share. Whether it polls G's words is each rank's own affair: it changes when a chunk is ready,
 * and nothing else. */
#pragma once
#include "mk/dev/flag.h"
#include "sched/chunk.h"
#include "sched/ll.h"

#define MK_PAIR_HEAD 16 /* the words of bands do not share a cache line with the first two */

/* mk_ar.skip_compute: this launch computes no tile; its C is there, or G brings it, band by band. */
enum { MK_TILES_HERE = 1, MK_TILES_COME = 2 };

/* G, one lane of each of `blocks` blocks, before anything else. Returns the tag of mk_pair_done. All read the generation
 * before they are counted, and it moves when all are. */
MK_DEV uint32_t mk_pair_begin(uint64_t *words, uint32_t blocks)
{
    const uint64_t next = mk_ld_acq_gpu_u64(&words[0]) + 1;
    if (mk_count_add(&words[1], (uint32_t)next, 1) + 1 == blocks)
        mk_st_rel_gpu_u64(&words[0], next);
    return (uint32_t)next;
}
/* G, one lane: `parts` of a band are in C, stored by this lane, or by its block before a barrier; bulk stores are complete
 * and ordered by mk_fence_async. */
MK_DEV void mk_pair_done(uint64_t *words, uint32_t tag, uint32_t band, uint32_t parts)
{
    mk_count_add(&words[MK_PAIR_HEAD + band], tag, parts);
}
/* K, as a block begins. tile_flag: mk_ar's, of the first band. */
MK_DEV uint32_t mk_pair_tag(const uint64_t *tile_flag)
{
    return (uint32_t)mk_ld_acq_gpu_u64(tile_flag - MK_PAIR_HEAD);
}

/* K's view of the buffer: count elements as m rows of n. Rows of a power of two up to 256, which the copy engine takes in
 * boxes; few and long ones where the latency path can take them (latency: there is one). */
MK_DEV void mk_pair_view(const struct mk_rings *r, bool latency, uint64_t count, int64_t *m, int64_t *n)
{
    uint64_t w = 1, rows = 1;
    while (w < 256 && count % (2 * w) == 0)
        w *= 2;
    while (rows < MK_LL_MAX_ROWS && count % (16 * rows) == 0)
        rows *= 2;
    if (latency && count && count <= (uint64_t)0x7fffffff &&
        mk_ll_fits(r, (int64_t)rows, (int64_t)(count / rows)))
        w = count / rows;
    *n = (int64_t)w;
    *m = (int64_t)(count / w);
}
/* K's grid for tiles that G brings: its rows of `n` elements, band_rows of them a band, as rows of the view. false: a band
 * is no whole number of rows, or too many; then K comes after G. */
MK_DEV bool mk_pair_grid(struct mk_grid *g, int64_t n, int32_t band_rows)
{
    const int64_t band = n * band_rows;
    if (n < 1 || band_rows < 1 || g->n < 1 || band % g->n || band / g->n > 0x3fffffff)
        return false;
    g->tile_m = (int32_t)(band / g->n);
    g->tile_n = (int32_t)g->n;
    mk_grid_count(g);
    return true;
}
