/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Compile test: the block loop of the CPU executor (cpu/exec.c), as a kernel over the same schedule headers. */
#include "tile/tile_stub.cuh"
#include "ops/gemm_ar_do.h"

extern "C" __global__ void mk_gemm_ar_stub(const struct mk_ar *ar)
{
    __shared__ struct mk_ar_block blk;
    __shared__ int next;
    if (mk_lane() == 0)
        mk_ar_enter(ar, &blk);
    for (;;) {
        mk_block_sync();
        if (mk_lane() == 0)
            next = mk_ar_next(ar, &blk);
        mk_block_sync();
        if (next == MK_NEXT_LEAVE)
            break;
        if (next == MK_NEXT_TASK)
            mk_ar_do(ar, &blk);
    }
    if (mk_lane() != 0 || !mk_ar_leave(ar, &blk))
        return;
    for (int32_t e = 0; e < ar->rings.topo.nnodes; e++)
        while (e != ar->rings.topo.node && !mk_ar_drained(ar, e))
            if (mk_ar_aborted(ar))
                return;
    mk_ar_advance(ar, &blk);
}
