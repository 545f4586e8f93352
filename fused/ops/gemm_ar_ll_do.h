/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* GEMM+AllReduce, latency path (few rows, one node): what a launch decides. Every block computes its tiles, rounds them
 * to the type of C and stores them as LL words into its slot of every local rank, its own too; then it has nothing more
 * to wait for. At most R blocks, by arrival ticket, stay: they take the groups of C in turns, wait for all ranks' words
 * of them, sum in rank order, apply the epilogue and store C. The blocks that stay are the last to arrive: when one of
 * them waits, every other block of the launch has at least begun, so none of them waits for a multiprocessor that it
 * holds, and a launch keeps at most R blocks waiting for others. Only they count themselves out: sums need this rank's own
 * words too, so all other blocks have sent everything before the last of them leaves.
 *
 * Headers as in every launch: the first block sends them, the last one takes them. No word of a peer is used before its
 * header has matched; who sums looks at the header itself, which is one trip less than waiting for the count. Include
 * after the tile side. */
#pragma once
#include "ops/gemm_ar_do.h"

/* Does a block stay for the sums? */
MK_DEV bool mk_ll_stays(const struct mk_ar *ar, uint32_t ticket)
{
    return (int32_t)ticket >= ar->blocks - ar->max_helpers;
}
/* Its number among those that stay. */
MK_DEV uint32_t mk_ll_staying(const struct mk_ar *ar)
{
    return (uint32_t)(ar->max_helpers < ar->blocks ? ar->max_helpers : ar->blocks);
}

/* One lane of the first or last block: headers that can go or have come; done: bit 2p out, bit 2p + 1 in, of local rank
 * p. Returns done, with those bits set that are nobody's business. */
MK_DEV uint64_t mk_ll_headers(const struct mk_ar *ar, const struct mk_ar_block *blk, uint64_t done)
{
    const struct mk_topo *t = &ar->rings.topo;
    const bool first = blk->ticket == 0, last = (int32_t)blk->ticket == ar->blocks - 1;
    MK_ROLLED
    for (int32_t p = 0; p < t->nlocal; p++) {
        const uint64_t out = 1ull << (2 * p), in = out << 1;
        if (p == t->local || !first)
            done |= out;
        if (p == t->local || !last)
            done |= in;
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
MK_DEV bool mk_ll_headers_done(const struct mk_ar *ar, uint64_t done)
{
    return done == (ar->rings.topo.nlocal == 32 ? ~0ull : (1ull << (2 * ar->rings.topo.nlocal)) - 1);
}
/* Is local rank p's header here, and that of this call? (Another call's is the last block's to report.) */
MK_DEV bool mk_ll_header_matches(const struct mk_ar *ar, const struct mk_ar_block *blk, int32_t p)
{
    const struct mk_rings *r = &ar->rings;
    const uint64_t at = mk_ar_pos_in(ar, MK_CLASS_HEADER_LOCAL, p, 0);
    const uint64_t *h =
        (const uint64_t *)(ar->fixed + mk_in_slot(r, MK_CLASS_HEADER_LOCAL, r->topo.local, p, at));
    if (!mk_ar_arrived(ar, MK_CLASS_HEADER_LOCAL, p, 0))
        return false;
    mk_peeked();
    return mk_ld_rlx_sys_u64(&h[0]) == blk->epoch && mk_ld_rlx_sys_u64(&h[1]) == ar->signature;
}
/* Have all of the headers come, and are they of this call? One lane. */
MK_DEV bool mk_ll_all_match(const struct mk_ar *ar, const struct mk_ar_block *blk)
{
    bool all = true;
    MK_ROLLED
    for (int32_t p = 0; p < ar->rings.topo.nlocal; p++)
        all &= p == ar->rings.topo.local || mk_ll_header_matches(ar, blk, p);
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
