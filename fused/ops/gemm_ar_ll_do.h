/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* GEMM+AllReduce, latency path (few rows, one node): what a launch decides. Every block computes its tiles, rounds them
 * to the type of C and stores them as LL words into its slot of every local rank, its own too; then it has nothing more
 * to wait for. Some stay: they take the groups of C in turns, wait for all ranks' words of them, sum in rank order, apply
 * the epilogue and store C. The unit is the cluster (of one block or more, which run together): a cluster has one ticket,
 * stays or leaves as a whole, and here `blocks` and R count clusters. At most R stay, the last to arrive: when one of
 * them waits, every other cluster of the launch has at least begun, so none of them waits for a multiprocessor that it
 * holds, and a launch keeps at most R clusters waiting for others. All blocks that stay and the first block count
 * themselves out: sums need this rank's own words too, so all other blocks have sent everything before the last of them
 * leaves. The first block is the first cluster's block 0, the last one the last cluster's.
 *
 * Headers as in every launch: the first block sends them, the last one takes them, and says so if one is of another call.
 * They are not what anybody waits for, though: the first block says the same, epoch and signature, in LL words (a head),
 * and who sums uses no word of a peer before that peer's head has matched. A peer whose call takes another path sends no
 * head; its header tells. Include after the tile side. */
#pragma once
#include "ops/gemm_ar_do.h"

/* Does a cluster stay for the sums? */
MK_DEV bool mk_ll_stays(const struct mk_ar *ar, uint32_t ticket)
{
    return (int32_t)ticket >= ar->blocks - ar->max_helpers;
}
/* How many do. */
MK_DEV uint32_t mk_ll_staying(const struct mk_ar *ar)
{
    return (uint32_t)(ar->max_helpers < ar->blocks ? ar->max_helpers : ar->blocks);
}
/* How many blocks count themselves out: those of these clusters (`size` blocks each), and the first block, which uses the
 * positions of the headers that it sends. */
MK_DEV uint32_t mk_ll_counted(const struct mk_ar *ar, uint32_t size)
{
    return mk_ll_staying(ar) * size + (mk_ll_stays(ar, 0) ? 0 : 1);
}

MK_DEV uint64_t mk_ll_every_header(const struct mk_ar *ar)
{
    return ar->rings.topo.nlocal == 32 ? ~0ull : (1ull << (2 * ar->rings.topo.nlocal)) - 1;
}
/* Headers that block `rank` of a cluster has nothing to do with, as bits: 2p out, 2p + 1 in, of local rank p. */
MK_DEV uint64_t mk_ll_no_headers(const struct mk_ar *ar, const struct mk_ar_block *blk, uint32_t rank)
{
    const uint64_t out = blk->ticket == 0 && !rank ? 0 : 0x5555555555555555ull;
    const uint64_t in = (int32_t)blk->ticket == ar->blocks - 1 && !rank ? 0 : 0xaaaaaaaaaaaaaaaaull;
    return (out | in | 3ull << (2 * ar->rings.topo.local)) & mk_ll_every_header(ar);
}
/* One lane of the first or last block: headers that can go or have come. done: their bits; returns them with new ones. */
MK_DEV uint64_t mk_ll_headers(const struct mk_ar *ar, const struct mk_ar_block *blk, uint64_t done)
{
    const struct mk_topo *t = &ar->rings.topo;
    MK_ROLLED
    for (int32_t p = 0; p < t->nlocal; p++) {
        const uint64_t out = 1ull << (2 * p), in = out << 1;
        if (!(done & out) && mk_ar_granted(ar, MK_CLASS_HEADER_LOCAL, p, 0)) {
            mk_peeked();
            mk_ar_header_out(ar, blk, MK_CLASS_HEADER_LOCAL, p);
            done |= out;
        }
        if (!(done & in) && mk_ar_arrived(ar, MK_CLASS_HEADER_LOCAL, p, 0)) {
            mk_peeked();
            mk_ar_header_in(ar, blk, MK_CLASS_HEADER_LOCAL, p);
            done |= in;
        }
    }
    return done;
}
/* The first block, one lane: heads to all other local ranks. */
MK_DEV void mk_ll_heads_out(const struct mk_ar *ar, const struct mk_ar_block *blk, uint64_t position)
{
    const struct mk_topo *t = &ar->rings.topo;
    const uint32_t mark = mk_ll_mark(position);
    MK_ROLLED
    for (int32_t p = 0; p < t->nlocal; p++) {
        uint64_t *head = (uint64_t *)(ar->peer_staging[p] + mk_ll_head(&ar->rings, t->local, position));
        if (p == t->local)
            continue;
        mk_ll_store(&head[0], (uint32_t)blk->epoch, mark);
        mk_ll_store(&head[1], (uint32_t)(blk->epoch >> 32), mark);
        mk_ll_store(&head[2], (uint32_t)ar->signature, mark);
        mk_ll_store(&head[3], (uint32_t)(ar->signature >> 32), mark);
    }
}
/* Is local rank p's head here, and that of this call? True for this rank and beyond the last one. */
MK_DEV bool mk_ll_head_matches(const struct mk_ar *ar, const struct mk_ar_block *blk, uint64_t position,
                               int32_t p)
{
    if (p == ar->rings.topo.local || p >= ar->rings.topo.nlocal)
        return true;
    const uint64_t *head = (const uint64_t *)(ar->staging + mk_ll_head(&ar->rings, p, position));
    uint32_t v[4];
    bool here = true;
    for (int i = 0; i < 4; i++)
        here &= mk_ll_load(&head[i], mk_ll_mark(position), &v[i]);
    return here && (v[0] | (uint64_t)v[1] << 32) == blk->epoch &&
           (v[2] | (uint64_t)v[3] << 32) == ar->signature;
}
/* The same of all local ranks. */
MK_DEV bool mk_ll_heads_match(const struct mk_ar *ar, const struct mk_ar_block *blk, uint64_t position)
{
    bool all = true;
    MK_ROLLED
    for (int32_t p = (int32_t)mk_warp_lane(); p < ar->rings.topo.nlocal; p += (int32_t)mk_warp_lanes())
        all &= mk_ll_head_matches(ar, blk, position, p);
    return all;
}
/* The first local rank whose header has not come, for messages. */
MK_DEV int32_t mk_ll_absent(const struct mk_ar *ar)
{
    const struct mk_topo *t = &ar->rings.topo;
    MK_ROLLED
    for (int32_t p = 0; p < t->nlocal; p++)
        if (p != t->local && !mk_ar_arrived(ar, MK_CLASS_HEADER_LOCAL, p, 0))
            return p;
    return -1;
}
MK_DEV uint64_t *mk_ll_at(const struct mk_ar *ar, int32_t to, uint64_t position)
{
    uint8_t *staging = to == ar->rings.topo.local ? ar->staging : ar->peer_staging[to];
    return (uint64_t *)(staging + mk_ll_slot(&ar->rings, ar->rings.topo.local, position));
}
/* The last block to leave: positions, by the lanes of a warp, and the epoch. */
MK_DEV void mk_ll_advance(const struct mk_ar *ar, const struct mk_ar_block *blk, uint64_t position)
{
    const int cls = MK_CLASS_HEADER_LOCAL;
    for (int32_t p = (int32_t)mk_warp_lane(); p < ar->rings.topo.nlocal; p += (int32_t)mk_warp_lanes())
        if (p != ar->rings.topo.local) {
            mk_st_rlx_gpu_u64(&ar->state->pos_in[cls][p], mk_ar_pos_in(ar, cls, p, 1));
            mk_st_rlx_gpu_u64(&ar->state->pos_out[cls][p], mk_ar_pos_out(ar, cls, p, 1));
        }
    if (mk_warp_lane() == 0) {
        mk_st_rlx_gpu_u64(&ar->state->ll_pos, position + 1);
        mk_st_rlx_gpu_u64(&ar->state->epoch, blk->epoch + 1); /* the end of the kernel publishes them */
    }
}
