/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Publish and consume: the ways to hand a payload from one block to another reader; the latency path's is ll.h.
 *
 * Guarantee: a reader that consumed a flag with value v sees every byte written before the publish of v. Example:
 *   writer block:  all lanes store the payload; mk_publish_sys(flag, position + 1)
 *   reader block:  leader: if (mk_poll_sys(flag) == position + 1) ...; all lanes: mk_consume(); read the payload
 * publish = order bulk stores, block barrier, release store by one lane; consume = acquire load by one lane (the
 * poll), block barrier, order later bulk loads. The schedules use their halves where one fence serves several flags:
 * peeks and mk_peeked for consume, mk_posting and posts for publish (dev.h). No non-coherent loads of flagged data.
 *
 * Who writes, who reads, with which scope:
 *   flag                          written by                    read by              scope
 *   tile ready                    COMPUTE block                 INTRA, SEND blocks   gpu
 *   arrival, from a local peer    the peer's block              INTRA, RECV blocks   sys
 *   arrival, from another node    NIC, or own receiving proxy   RECV blocks          sys
 *   credit, of a local peer       the peer's block (max)        INTRA blocks         sys
 *   credit, of another node       NIC, or own receiving proxy   SEND blocks          sys
 *   local completion              own proxy                     SEND blocks          sys
 *   abort word                    host, any block               every block          sys */
#pragma once
#include "mk/dev/dev.h"

/* All lanes call it; one stores. */
MK_DEV void mk_publish_gpu(uint64_t *flag, uint64_t value)
{
    mk_fence_async();
    mk_block_sync();
    if (mk_lane() == 0)
        mk_st_rel_gpu_u64(flag, value);
}
MK_DEV void mk_publish_sys(uint64_t *flag, uint64_t value)
{
    mk_fence_async();
    mk_block_sync();
    if (mk_lane() == 0) {
#if MK_MUTATE == 1
        mk_st_rlx_sys_u64(flag, value);
#else
        mk_st_rel_sys_u64(flag, value);
#endif
    }
}
/* One lane polls; after success all lanes call mk_consume before they touch the payload. */
MK_DEV uint64_t mk_poll_gpu(const uint64_t *flag)
{
    return mk_ld_acq_gpu_u64(flag);
}
MK_DEV uint64_t mk_poll_sys(const uint64_t *flag)
{
#if MK_MUTATE == 2
    return mk_ld_rlx_sys_u64(flag);
#else
    return mk_ld_acq_sys_u64(flag);
#endif
}
MK_DEV void mk_consume(void)
{
    mk_block_sync();
    mk_fence_async();
}

/* Counters that start anew with each launch without being cleared: a word is {tag 32, count 32}; a word with
 * another tag counts as 0. The tag is the low half of the epoch. Order: acquire and release, gpu scope. */
MK_DEV uint32_t mk_count_read(const uint64_t *word, uint32_t tag)
{
    const uint64_t w = mk_ld_acq_gpu_u64(word);
    return (uint32_t)(w >> 32) == tag ? (uint32_t)w : 0;
}
/* Adds n; returns the count before. The first adder of a launch takes the word over; those after it add, so that many
 * who add at once do not wait for each other's turns. seen: a value that the word had at any time of this launch. */
MK_DEV uint32_t mk_count_add_seen(uint64_t *word, uint32_t tag, uint32_t n, uint64_t seen)
{
    for (;;) {
        if ((uint32_t)(seen >> 32) == tag)
            return (uint32_t)mk_add_gpu_u64(word, n);
        if (mk_cas_gpu_u64(word, seen, ((uint64_t)tag << 32) | n))
            return 0;
        seen = mk_ld_rlx_gpu_u64(word); /* whoever adds in the end has the order */
    }
}
MK_DEV uint32_t mk_count_add(uint64_t *word, uint32_t tag, uint32_t n)
{
    return mk_count_add_seen(word, tag, n, mk_ld_rlx_gpu_u64(word));
}
/* mk_count_read as a peek: mk_peeked orders it. */
MK_DEV uint32_t mk_count_of(uint64_t word, uint32_t tag)
{
    return (uint32_t)(word >> 32) == tag ? (uint32_t)word : 0;
}
MK_DEV uint32_t mk_count_peek(const uint64_t *word, uint32_t tag)
{
    return mk_count_of(mk_peek_gpu_u64(word), tag);
}
/* The next item: as mk_count_add_seen of 1. It hands over nothing but the item, so it orders nothing. */
MK_DEV uint32_t mk_count_take(uint64_t *word, uint32_t tag, uint64_t seen)
{
    for (;;) {
        if ((uint32_t)(seen >> 32) == tag)
            return (uint32_t)mk_post_add_gpu_u64(word, 1);
        if (mk_post_cas_gpu_u64(word, seen, ((uint64_t)tag << 32) | 1))
            return 0;
        seen = mk_peek_gpu_u64(word);
    }
}
/* Raises the count from `have` to have + 1 if the word is still `seen`, which held it: the claim of item `have`. It
 * hands over nothing but the item, so it orders nothing. */
MK_DEV bool mk_count_claim(uint64_t *word, uint32_t tag, uint32_t have, uint64_t seen)
{
    return mk_post_cas_gpu_u64(word, seen, ((uint64_t)tag << 32) | (uint32_t)(have + 1));
}
