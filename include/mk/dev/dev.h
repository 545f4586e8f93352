/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The machine below the shared text: schedules, ring, flags and controller are written once and compiled as C11
 * (CPU executor, one thread is one block) and as CUDA (one block, or cluster leader). This file holds the only
 * machine switch of the tree; dev_cpu.h and dev_cuda.h define the same names:
 *
 *   MK_DEV                      marks every shared function
 *   mk_lane() mk_lanes()        this thread in its block; loops are for (i = mk_lane(); i < n; i += mk_lanes())
 *   mk_block_sync()             block barrier; orders the block's memory accesses
 *   mk_fence_async()            orders bulk-copy (TMA) accesses and ordinary ones; nothing on the CPU
 *   mk_ld_{rlx,acq}_{gpu,sys}_u64, mk_st_{rlx,rel}_{gpu,sys}_u64
 *                               gpu: between blocks of one device; sys: also host and peer devices
 *   mk_ld_launch_u64            a word that nobody writes while blocks of this launch read it
 *   mk_add_gpu_u64, mk_cas_gpu_u64, mk_max_sys_u64
 *                               read-modify-write, acquire and release
 *   mk_tally_gpu_u64            adds, where the reader can bear sums that lag: nobody waits for it (on the GPU relaxed)
 *   mk_posting(), mk_post_sys_u64, mk_post_gpu_u64, mk_post_max_sys_u64, mk_post_cas_gpu_u64, mk_post_add_gpu_u64
 *                               by one lane: orders what this block has read and written (a block barrier before) before
 *                               the posts that follow, as if each were a release (on the GPU one fence, then relaxed)
 *   mk_warp_lane() mk_warp_lanes() mk_warp_all(b) mk_warp_first(v)
 *                               this thread in its warp; whether b holds on all its lanes; the first lane's v
 *   mk_warp_prefix(b, n)        lanes in groups of n: how many groups from the first on, in a row, have b on all lanes
 *   mk_peek_{gpu,sys}_u64, mk_peeked()
 *                               loads that may overlap, and what orders all of them before what follows: as if each had
 *                               been an acquire load (on the GPU relaxed loads, then one fence)
 *   MK_LOOKS_ON                 a block that found nothing looks again soon by itself: no need to look twice
 *   MK_CONTROL                  1: blocks may take their roles from the controller; 0: that is compiled out
 *   MK_ROLLED                   before a loop that is not worth more than its own code: all roles share the
 *                               instruction cache
 *   mk_now_ns()                 a clock that all blocks of this device share
 *
 * Shared text is the common part of C11, C++17 and CUDA: no `= {0}`, compound literals, designators or implicit
 * void* casts. */
#pragma once
#include <stdint.h>

/* Mutation builds: MK_MUTATE=n drops one ordering or one message, and a stress test must notice.
 *   1 release of an arrival flag · 2 acquire of an arrival flag · 3 a credit (every 97th) · 4 local completion
 *   before reuse · 5 arrival flag before the payload · 6 fence and barrier before a tile's ready flag · 7 every credit
 *   from the 1000th on (3 heals: credits are cumulative) · 8 a tile is placed in a slot that was not granted */
#ifndef MK_MUTATE
#define MK_MUTATE 0
#endif

#ifdef __CUDACC__
#include "mk/dev/dev_cuda.h"
#else
#include "mk/dev/dev_cpu.h"
#endif
