/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Sums and copies of chunks on the CPU. All sums are fp32, in the order of the numerics contract: local ranks 0, 1,
 * .. within a node (then rounded to the wire type), nodes 0, 1, .. (then bias, activation, rounding to T). */
#include "tile/tile_cpu.h"
#include "ops/gemm_ar_run.h"
#include "tile/convert.h"
#include <math.h>
#include <string.h>

/* Columns summed at a time: accumulators stay in the first-level cache. */
#define SPAN 1024

static int min_int(int a, int b)
{
    return a < b ? a : b;
}

static uint8_t *c_at(const struct mk_ar *ar, int64_t row, int64_t col)
{
    return (uint8_t *)ar->c + (size_t)(row * ar->ldc + col) * mk_elem_bytes(ar->dtype);
}

void mk_tile_gemm(const struct mk_ar *ar, const struct mk_ar_block *blk)
{
    const struct mk_rect r = mk_tile_rect(&ar->grid, blk->task.chunk);
    const struct mk_cpu_host *h = ar->host;
    const size_t elem = mk_elem_bytes(ar->dtype);
    const int64_t a_at = ar->layout == MK_NT ? r.row : r.row * ar->lda;
    const int64_t b_at = ar->layout == MK_TN ? r.col * ar->ldb : r.col;
    mk_gemm_cpu_tile(ar->layout, ar->dtype, r.rows, r.cols, ar->k,
                     (const uint8_t *)ar->a + (size_t)a_at * elem, ar->lda,
                     (const uint8_t *)ar->b + (size_t)b_at * elem, ar->ldb, c_at(ar, r.row, r.col), ar->ldc,
                     h->scratch[blk->ticket]);
}

bool mk_tile_place(const struct mk_ar *ar, uint32_t tile)
{
    const struct mk_rect r = mk_tile_rect(&ar->grid, tile);
    const size_t elem = mk_elem_bytes(ar->dtype), pitch = (size_t)mk_panel_cols(&ar->grid) * elem;
    struct mk_ar_place at;
    if (!mk_ar_place_tile(ar, tile, &at))
        return false;
    uint8_t *to = (at.kind == MK_AR_PUSH ? ar->peer_staging[at.peer] : ar->net_staging) +
                  mk_ar_place_base(ar, at.ring) + at.row * pitch + at.col * elem;
    for (int i = 0; i < r.rows; i++)
        memcpy(to + (size_t)i * pitch, c_at(ar, r.row + i, r.col), (size_t)r.cols * elem);
    return true;
}

/* Where column c of row i of the piece is in every slot, in bytes. */
static size_t in_slot(const struct mk_op *op, int i, int c, size_t elem)
{
    return (op->skip + (size_t)i * (size_t)op->r.cols + (size_t)c) * elem;
}

static void pack(const struct mk_ar *ar, const struct mk_op *op)
{
    const struct mk_rect *r = &op->r;
    const size_t elem = mk_elem_bytes(ar->dtype), bytes = (size_t)r->cols * elem;
    for (int i = 0; i < r->rows; i++)
        memcpy(op->to + in_slot(op, i, 0, elem), c_at(ar, r->row + i, r->col), bytes);
}

/* Copies one finished run of a row to the broadcast slots of the local peers; `at` bytes into the slot. */
static void to_local_peers(const struct mk_ar *ar, uint32_t owned, size_t at, const void *src, size_t bytes)
{
    const struct mk_topo *t = &ar->rings.topo;
    for (int32_t p = 0; p < t->nlocal; p++)
        if (p != t->local)
            memcpy(mk_ar_at_local(ar, MK_CLASS_BCAST, p, mk_ar_pos_out(ar, MK_CLASS_BCAST, p, owned)) + at,
                   src, bytes);
}

static void unpack(const struct mk_ar *ar, const struct mk_op *op, uint32_t owned)
{
    const struct mk_rect *r = &op->r;
    const size_t elem = mk_elem_bytes(ar->dtype), bytes = (size_t)r->cols * elem;
    for (int i = 0; i < r->rows; i++) {
        const size_t at = in_slot(op, i, 0, elem);
        memcpy(c_at(ar, r->row + i, r->col), op->from + at, bytes);
        if (op->to_peers)
            to_local_peers(ar, owned, at, op->from + at, bytes);
    }
}

/* acc = sum over local ranks of row i, columns [c, c + n) of the piece, left to right. */
static void node_sum_run(const struct mk_ar *ar, uint32_t owned, const struct mk_op *op, int i, int c, int n,
                         float *acc)
{
    const struct mk_topo *t = &ar->rings.topo;
    const size_t elem = mk_elem_bytes(ar->dtype);
    for (int32_t l = 0; l < t->nlocal; l++) {
        const uint8_t *slot = mk_ar_partial(ar, l, owned);
        const void *src = slot ? slot + in_slot(op, i, c, elem) : c_at(ar, op->r.row + i, op->r.col + c);
        if (l == 0)
            mk_load_f32(acc, src, ar->dtype, n);
        else
            mk_add_f32(acc, src, ar->dtype, n);
    }
}

static int wire_dtype(const struct mk_ar *ar)
{
    return ar->wire_fp32 ? MK_FLOAT32 : ar->dtype;
}

static void sum(const struct mk_ar *ar, const struct mk_ar_block *blk, const struct mk_op *op)
{
    float acc[SPAN];
    const int w = wire_dtype(ar);
    for (int i = 0; i < op->r.rows; i++)
        for (int c = 0; c < op->r.cols; c += SPAN) {
            const int n = min_int(SPAN, op->r.cols - c);
            node_sum_run(ar, blk->task.owned, op, i, c, n, acc);
            mk_store_f32(op->to + in_slot(op, i, c, mk_elem_bytes(w)), acc, w, n);
        }
}

/* acc = sum over nodes of the node sums of a run. */
static void total_run(const struct mk_ar *ar, const struct mk_task *t, const struct mk_op *op, int i, int c,
                      int n, float *acc)
{
    const struct mk_topo *tp = &ar->rings.topo;
    const int w = wire_dtype(ar);
    const size_t at = in_slot(op, i, c, mk_elem_bytes(w));
    if (tp->nnodes == 1) {
        node_sum_run(ar, t->owned, op, i, c, n, acc);
        return;
    }
    float own[SPAN];
    for (int32_t e = 0; e < tp->nnodes; e++) {
        const uint8_t *sum = mk_ar_node_sum(ar, e, t->item);
        if (!sum) { /* rounded to the wire type like the sums that travel */
            node_sum_run(ar, t->owned, op, i, c, n, own);
            mk_round_f32(own, w, n);
        }
        const void *src = sum ? (const void *)(sum + at) : own;
        if (e == 0)
            mk_load_f32(acc, src, sum ? w : MK_FLOAT32, n);
        else
            mk_add_f32(acc, src, sum ? w : MK_FLOAT32, n);
    }
}

static void epilogue_run(const struct mk_ar *ar, int64_t col, int n, float *acc)
{
    if (ar->bias)
        mk_add_f32(acc, (const uint8_t *)ar->bias + (size_t)col * mk_elem_bytes(ar->dtype), ar->dtype, n);
    for (int j = 0; j < n && ar->act != MK_ACT_NONE; j++) {
        const float x = acc[j];
        if (ar->act == MK_ACT_RELU)
            acc[j] = x < 0 ? 0 : x; /* NaN stays */
        else if (ar->act == MK_ACT_GELU)
            acc[j] = 0.5f * x * (1 + erff(x * 0.70710678118654752f));
        else
            acc[j] = x / (1 + expf(-x));
    }
}

static void reduce(const struct mk_ar *ar, const struct mk_ar_block *blk, const struct mk_op *op)
{
    const struct mk_topo *tp = &ar->rings.topo;
    const struct mk_rect *r = &op->r;
    const struct mk_task *t = &blk->task;
    const size_t elem = mk_elem_bytes(ar->dtype);
    float acc[SPAN];
    for (int i = 0; i < r->rows; i++)
        for (int c = 0; c < r->cols; c += SPAN) {
            const int n = min_int(SPAN, r->cols - c);
            const size_t at = in_slot(op, i, c, elem);
            uint8_t *out = c_at(ar, r->row + i, r->col + c);
            total_run(ar, t, op, i, c, n, acc);
            epilogue_run(ar, r->col + c, n, acc);
            mk_store_f32(out, acc, ar->dtype, n);
            to_local_peers(ar, t->owned, at, out, (size_t)n * elem);
            for (int32_t e = 0; e < tp->nnodes && tp->nnodes > 2; e++)
                if (e != tp->node)
                    memcpy(mk_ar_out(ar, MK_CLASS_RESULT, e, mk_ar_pos_out(ar, MK_CLASS_RESULT, e, t->item)) +
                               at,
                           out, (size_t)n * elem);
        }
}

void mk_tile_op(const struct mk_ar *ar, const struct mk_ar_block *blk, const struct mk_op *op)
{
    if (op->sum == MK_OP_TOTAL)
        reduce(ar, blk, op);
    else if (op->sum == MK_OP_NODE_SUM)
        sum(ar, blk, op);
    else if (op->from)
        unpack(ar, op, blk->task.owned);
    else
        pack(ar, op);
}
