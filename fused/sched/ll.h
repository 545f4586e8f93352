/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Latency path of GEMM+AllReduce inside a node: every rank stores its partial C[M,N] into a slot of every local rank, LL
 * words, and each sums all of them in rank order. Index math: a row is ceil(N / 4) groups of 4 columns; a group is 2
 * words (16 bytes: what a lane stores or loads at once, so that a warp's are one run of memory, which NVLink wants), two
 * elements of 16 bits a word, the lower column in the lower half; columns beyond N are zeros.
 * Behind the slots, where no payload goes, every rank has a head for every local rank: 4 words, epoch and signature of
 * its launch at that position. */
#pragma once
#include "mk/dev/ll.h"
#include "sched/rings.h"

#define MK_LL_MAX_ROWS 64
#define MK_LL_MAX_RANKS 32
#define MK_LL_GROUP_BYTES 16
#define MK_LL_HEAD_BYTES 32
#define MK_LL_HEADS_BYTES 4096 /* of all heads */

MK_DEV uint32_t mk_ll_row_groups(int64_t n)
{
    return (uint32_t)((n + 3) / 4);
}
/* Chosen from what all ranks share: bytes and topology. */
MK_DEV bool mk_ll_fits(const struct mk_rings *r, int64_t m, int64_t n)
{
    return r->topo.nnodes == 1 && r->topo.nlocal > 1 && m > 0 && n > 0 && m <= MK_LL_MAX_ROWS &&
           (uint64_t)m * (uint64_t)((n + 3) / 4) * MK_LL_GROUP_BYTES <= r->ll_slot;
}
/* Staging offset of the slot of local rank `from` at the position. */
MK_DEV uint64_t mk_ll_slot(const struct mk_rings *r, int32_t from, uint64_t position)
{
    return r->ll_off + ((position & 1) * (uint64_t)r->topo.nlocal + (uint64_t)from) * r->ll_slot;
}
/* Staging offset of the head of local rank `from` at the position. */
MK_DEV uint64_t mk_ll_head(const struct mk_rings *r, int32_t from, uint64_t position)
{
    return r->ll_off + 2 * (uint64_t)r->topo.nlocal * r->ll_slot +
           ((position & 1) * (uint64_t)r->topo.nlocal + (uint64_t)from) * MK_LL_HEAD_BYTES;
}
