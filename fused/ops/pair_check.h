/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* MK_VERIFY: is C, right before K, what it was right behind G? A sum over C is made by one small kernel behind G and by one
 * before K, both launched plainly, and so is K then: each begins when what is before it in the stream has ended. The same
 * text on CPU and GPU.
 *
 * Words of G's descriptor (pair_tiles.h), which G itself does not use; zero at first. No two kernels of a descriptor run at
 * the same time, so only blocks of one launch meet in them:
 *   [SUM]     of the blocks that have ended. Added to by one lane of each; read and set to 0 by that of the last one.
 *   [ENDED]   blocks that have. Added to after SUM (acquire, release: the last one sees all sums); set to 0 by the last one.
 *   [BEHIND]  the sum behind G. Written by the last block of the kernel there, read by that of the kernel before K.
 *
 * Reports, in pinned host memory, two words a site {pairs looked at, pairs whose C differed}, site 0 being all of them: only
 * grow; written by the last block (relaxed, system), read by the host at any time. Two streams at once may lose a count,
 * but never the first one. */
#pragma once
#include "mk/dev/dev.h"

enum { MK_CHECK_SUM = 4, MK_CHECK_ENDED = 5, MK_CHECK_BEHIND = 6 };
#define MK_CHECK_THREADS 256

struct mk_check {
    const uint64_t *c; /* 16-byte aligned */
    uint64_t n;        /* of 16 bytes */
    uint64_t *words;
    uint64_t *reports; /* NULL: behind G */
    uint64_t site;
};

/* Of 16 bytes and where they stand: for a given place and one half, no two values of the other half give the same. */
MK_DEV uint64_t mk_check_mix(uint64_t low, uint64_t high, uint64_t at)
{
    uint64_t h = low + (2 * at + 1) * 0x9e3779b97f4a7c15ull;
    h = (h ^ (h >> 32)) * 0xbf58476d1ce4e5b9ull;
    h = (h ^ (h >> 29) ^ high) * 0x94d049bb133111ebull;
    return h ^ (h >> 32);
}

MK_DEV void mk_check_count(uint64_t *report)
{
    mk_st_rlx_sys_u64(report, mk_ld_rlx_sys_u64(report) + 1);
}

/* One lane of each of `blocks` blocks, as it ends. */
MK_DEV void mk_check_end(const struct mk_check *k, uint64_t sum, uint32_t blocks)
{
    uint64_t *w = k->words;
    mk_add_gpu_u64(&w[MK_CHECK_SUM], sum);
    if (mk_add_gpu_u64(&w[MK_CHECK_ENDED], 1) + 1 != blocks)
        return;
    const uint64_t all = mk_ld_rlx_gpu_u64(&w[MK_CHECK_SUM]);
    mk_st_rlx_gpu_u64(&w[MK_CHECK_SUM], 0);
    mk_st_rlx_gpu_u64(&w[MK_CHECK_ENDED], 0);
    if (!k->reports) {
        mk_st_rlx_gpu_u64(&w[MK_CHECK_BEHIND], all);
        return;
    }
    const uint64_t differs = all != mk_ld_rlx_gpu_u64(&w[MK_CHECK_BEHIND]);
    for (uint64_t site = k->site;; site = 0) {
        mk_check_count(&k->reports[2 * site]);
        if (differs)
            mk_check_count(&k->reports[2 * site + 1]);
        if (!site)
            return;
    }
}
