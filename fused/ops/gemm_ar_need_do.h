/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* GEMM+AllReduce: does a launch still need a peer? Asked while it waits. Include after ops/gemm_ar_do.h. */
#pragma once
#include "ops/gemm_ar_do.h"

/* A local rank, or a node. False: all that the peer owes has come and all that it must take has been granted, so the
 * peer may have finished and left. */
MK_DEV bool mk_ar_needs(const struct mk_ar *ar, int node_level, int32_t peer)
{
    const struct mk_rings *r = &ar->rings;
    const int first = node_level ? MK_CLASS_SUM : MK_CLASS_PARTIAL;
    MK_ROLLED
    for (int cls = first; cls < first + 3; cls++) {
        const uint32_t in = mk_ar_count_in(ar, cls, peer), out = mk_ar_count_out(ar, cls, peer);
        MK_ROLLED
        for (uint32_t i = in > r->slots[cls] ? in - r->slots[cls] : 0; i < in; i++) {
            /* or later: a peer that has finished this launch sends for the next one into slots that were given back.
             * By their difference: flags begin a lap before the first one, which is below zero (mk_flag_initial). */
            const uint64_t p = mk_ar_pos_in(ar, cls, peer, i);
            const uint32_t flag = mk_flag_note(r, cls, mk_class_self(&r->topo, cls), peer, p);
            if ((int64_t)(mk_poll_sys(mk_ar_note(mk_ar_words(ar, cls), r, flag)) - (p + 1)) < 0)
                return true;
        }
        const uint32_t credit = mk_credit_note(r, cls, mk_class_self(&r->topo, cls), peer);
        if (out &&
            mk_poll_sys(mk_ar_note(mk_ar_words(ar, cls), r, credit)) <= mk_ar_pos_out(ar, cls, peer, out - 1))
            return true;
    }
    return false;
}
