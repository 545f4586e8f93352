/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The tile side of the schedules for a compile test of the shared text on the GPU: fp32 only, one element a lane,
 * no tensor cores. It shows that schedules, flags and ring compile as CUDA; it is not an executor. */
#pragma once
#include "ops/gemm_ar.h"

MK_DEV void mk_wake_self(const struct mk_ar *)
{
}
MK_DEV void mk_wake_local(const struct mk_ar *, int32_t)
{
}
MK_DEV void mk_wake_proxy(const struct mk_ar *)
{
}
MK_DEV void mk_pause(const struct mk_ar *)
{
}
MK_DEV void mk_raise_mismatch(const struct mk_ar *ar, int, int32_t)
{
    mk_st_rel_sys_u64(ar->abort_word, 10); /* MK_ERR_MISMATCH */
}

MK_DEV float *mk_stub_c(const struct mk_ar *ar, const struct mk_rect *r, uint32_t i)
{
    const uint32_t row = i / (uint32_t)r->cols, col = i % (uint32_t)r->cols;
    return (float *)ar->c + (r->row + row) * ar->ldc + r->col + col;
}
MK_DEV uint32_t mk_stub_size(const struct mk_rect *r)
{
    return (uint32_t)r->rows * (uint32_t)r->cols;
}

MK_DEV void mk_tile_gemm(const struct mk_ar *ar, const struct mk_ar_block *blk)
{
    const struct mk_rect r = mk_tile_rect(&ar->grid, blk->task.chunk);
    for (uint32_t i = mk_lane(); i < mk_stub_size(&r); i += mk_lanes()) {
        const int64_t row = r.row + i / (uint32_t)r.cols, col = r.col + i % (uint32_t)r.cols;
        float sum = 0;
        for (int64_t k = 0; k < ar->k; k++)
            sum += ((const float *)ar->a)[row * ar->lda + k] * ((const float *)ar->b)[col * ar->ldb + k];
        *mk_stub_c(ar, &r, i) = sum;
    }
}
MK_DEV bool mk_tile_place(const struct mk_ar *, uint32_t)
{
    return false;
}
MK_DEV void mk_stub_to_peers(const struct mk_ar *ar, uint32_t owned, uint32_t i, float v)
{
    const struct mk_topo *t = &ar->rings.topo;
    for (int32_t p = 0; p < t->nlocal; p++)
        if (p != t->local)
            ((float *)mk_ar_at_local(ar, MK_CLASS_BCAST, p, mk_ar_pos_out(ar, MK_CLASS_BCAST, p, owned)))[i] =
                v;
}
/* Element i of the piece. */
MK_DEV float mk_stub_node_sum(const struct mk_ar *ar, uint32_t owned, const struct mk_op *op, uint32_t i)
{
    float sum = 0;
    for (int32_t l = 0; l < ar->rings.topo.nlocal; l++) {
        const uint8_t *slot = mk_ar_partial(ar, l, owned);
        const float v = slot ? ((const float *)slot)[op->skip + i] : *mk_stub_c(ar, &op->r, i);
        sum = l ? sum + v : v;
    }
    return sum;
}
MK_DEV float mk_stub_total(const struct mk_ar *ar, const struct mk_task *t, const struct mk_op *op,
                           uint32_t i)
{
    const struct mk_topo *tp = &ar->rings.topo;
    float v = 0;
    for (int32_t e = 0; e < tp->nnodes; e++) {
        const uint8_t *slot = tp->nnodes > 1 ? mk_ar_node_sum(ar, e, t->item) : (const uint8_t *)0;
        const float s = slot ? ((const float *)slot)[op->skip + i] : mk_stub_node_sum(ar, t->owned, op, i);
        v = e ? v + s : s;
    }
    return v;
}
MK_DEV void mk_tile_op(const struct mk_ar *ar, const struct mk_ar_block *blk, const struct mk_op *op)
{
    const struct mk_topo *t = &ar->rings.topo;
    for (uint32_t i = mk_lane(); i < mk_stub_size(&op->r); i += mk_lanes()) {
        const uint32_t at = op->skip + i;
        const float v = op->sum == MK_OP_TOTAL      ? mk_stub_total(ar, &blk->task, op, i)
                        : op->sum == MK_OP_NODE_SUM ? mk_stub_node_sum(ar, blk->task.owned, op, i)
                        : op->from                  ? ((const float *)op->from)[at]
                                                    : *mk_stub_c(ar, &op->r, i);
        if (op->to)
            ((float *)op->to)[at] = v;
        if (op->to_c)
            *mk_stub_c(ar, &op->r, i) = v;
        if (op->to_peers)
            mk_stub_to_peers(ar, blk->task.owned, at, v);
        for (int32_t e = 0; e < t->nnodes && op->to_result; e++)
            if (e != t->node)
                ((float *)mk_ar_out(ar, MK_CLASS_RESULT, e,
                                    mk_ar_pos_out(ar, MK_CLASS_RESULT, e, blk->task.item)))[at] = v;
    }
}
