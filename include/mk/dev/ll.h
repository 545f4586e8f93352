/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* LL: the latency path's way to hand over data, beside publish and consume (flag.h). A word of 8 bytes carries 4 bytes of
 * data and 4 that say which use of its place it belongs to; it is written and read whole, so who sees the mark sees the
 * data, with no fence and no second trip. It costs twice the bytes.
 *
 *   word    written by              read by                          scope
 *   LL      the sender's block      the receiver's blocks            sys, relaxed
 *
 * Marks. Position p of the latency path (a count of its launches, forever growing) lies in half p & 1 of its region and is
 * marked (2 p + 1) mod 2^32: never 0, which is what cleared memory holds. A half is written again two launches later;
 * that a peer has come so far means that it has had this rank's words of the launch between, hence that this rank has
 * read everything before. A place that was not used for 2^31 launches would hold an old mark that counts again: both
 * halves are cleared once in 2^30 launches (mk_ll_clears). */
#pragma once
#include "mk/dev/dev.h"

MK_DEV uint32_t mk_ll_mark(uint64_t position)
{
    return (uint32_t)position << 1 | 1;
}
MK_DEV uint64_t mk_ll_word(uint32_t data, uint32_t mark)
{
    return (uint64_t)mark << 32 | data;
}
MK_DEV void mk_ll_store(uint64_t *at, uint32_t data, uint32_t mark)
{
    mk_st_rlx_sys_u64(at, mk_ll_word(data, mark));
}
/* Is the word here? Then *data. */
MK_DEV bool mk_ll_load(const uint64_t *at, uint32_t mark, uint32_t *data)
{
    const uint64_t w = mk_ld_rlx_sys_u64(at);
    *data = (uint32_t)w;
    return (uint32_t)(w >> 32) == mark;
}
/* Does the launch at this position clear the half that the next one uses, before it sends anything? */
MK_DEV bool mk_ll_clears(uint64_t position)
{
    return (position & 0x3fffffff) < 2;
}
