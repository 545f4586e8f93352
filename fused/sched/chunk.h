/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Chunks and tiles of C[M,N]: pure index math, the same on all ranks and for host and device.
 *
 * Tiles (tile_m x tile_n, tails smaller) are the unit of compute; chunks (chunk_m x chunk_n) that of transfer.
 * Both are numbered row band by row band; COMPUTE takes tiles in groups of `bands` row bands, within a group column
 * by column (blocks that run together then share operands in the cache), and a plan whose chunks are that high makes
 * it finish them in the order in which the wire visits them. Chunk c belongs to local rank c mod G, and there to node (c / G) mod D. The i-th chunk of local owner o
 * is o + G*i; of these, the j-th of node owner e is i = e + D*j.
 *
 * A chunk is sent as one message. In it stands panel after panel: panel_n columns of its rows, row by row (one panel: the
 * chunk is a matrix of its own). It is worked on in pieces, each some rows of a panel, by as many blocks: a message as
 * large as the NIC likes would take one block so long that the first arrives late, and out of turn; and no box of the copy
 * engine is wider than a panel. Where a queue begins and ends many blocks share a chunk, so that its message leaves and its
 * result comes sooner; in between a task is larger, since it costs something besides its bytes. Panels are the same on all
 * ranks, the rows of a piece and how many are a task are each rank's own affair. */
#pragma once
#include "sched/rings.h"

struct mk_grid {
    int64_t m, n;
    int32_t tile_m, tile_n;
    int32_t chunk_m, chunk_n;
    int32_t bands;       /* row bands of tiles that COMPUTE has open at a time; 0 is 1 */
    int32_t panels_log2; /* of a chunk; its last ones may have no columns */
    int32_t panel_n;     /* columns of a panel where there are several; chunk_n is a multiple */
    int32_t pieces_log2; /* a chunk has so many pieces, no fewer than panels */
    /* A task is so many pieces of a panel, but a single one in the first and last chunks of a queue. */
    int32_t span_log2, edge_first, edge_last;
    /* counts, from the above by mk_grid_count: divisions are dear for one lane of a GPU */
    uint32_t tile_rows, tile_cols, chunk_rows, chunk_cols;
    int32_t tile_m_log2, tile_n_log2; /* -1: no power of two */
};

struct mk_rect {
    int64_t row, col;
    int32_t rows, cols;
};

MK_DEV uint32_t mk_div_up(int64_t a, int64_t b)
{
    return (uint32_t)((a + b - 1) / b);
}
MK_DEV int32_t mk_log2_exact(int32_t v)
{
    for (int32_t i = 0; i < 31; i++)
        if (v == (int32_t)(1u << i))
            return i;
    return -1;
}
/* v / d, by a shift where that can be. */
MK_DEV uint32_t mk_div_by(uint32_t v, int32_t d, int32_t log2)
{
    return log2 >= 0 ? v >> log2 : v / (uint32_t)d;
}
/* After any change of the other members. */
MK_DEV void mk_grid_count(struct mk_grid *g)
{
    const bool any = g->m && g->n;
    g->tile_rows = any ? mk_div_up(g->m, g->tile_m) : 0;
    g->tile_cols = any ? mk_div_up(g->n, g->tile_n) : 0;
    g->chunk_rows = any ? mk_div_up(g->m, g->chunk_m) : 0;
    g->chunk_cols = any ? mk_div_up(g->n, g->chunk_n) : 0;
    g->tile_m_log2 = mk_log2_exact(g->tile_m);
    g->tile_n_log2 = mk_log2_exact(g->tile_n);
}
MK_DEV struct mk_rect mk_grid_rect(const struct mk_grid *g, int32_t h, int32_t w, uint32_t cols,
                                   uint32_t index)
{
    struct mk_rect r;
    r.row = (int64_t)(index / cols) * h;
    r.col = (int64_t)(index % cols) * w;
    r.rows = (int32_t)(g->m - r.row < h ? g->m - r.row : h);
    r.cols = (int32_t)(g->n - r.col < w ? g->n - r.col : w);
    return r;
}
MK_DEV uint32_t mk_tiles(const struct mk_grid *g)
{
    return g->tile_rows * g->tile_cols;
}
MK_DEV struct mk_rect mk_tile_rect(const struct mk_grid *g, uint32_t tile)
{
    return mk_grid_rect(g, g->tile_m, g->tile_n, g->tile_cols, tile);
}
/* The tile that COMPUTE takes as its i-th. */
MK_DEV uint32_t mk_tile_in_order(const struct mk_grid *g, uint32_t i)
{
    const uint32_t group = g->bands > 1 ? (uint32_t)g->bands : 1, per = group * g->tile_cols;
    const uint32_t first = i / per * group, in = i % per;
    const uint32_t height = g->tile_rows - first < group ? g->tile_rows - first : group;
    return (first + in % height) * g->tile_cols + in / height;
}
MK_DEV uint32_t mk_chunks(const struct mk_grid *g)
{
    return g->chunk_rows * g->chunk_cols;
}
MK_DEV struct mk_rect mk_chunk_rect(const struct mk_grid *g, uint32_t chunk)
{
    return mk_grid_rect(g, g->chunk_m, g->chunk_n, g->chunk_cols, chunk);
}
MK_DEV int32_t mk_panel_cols(const struct mk_grid *g)
{
    return g->panels_log2 ? g->panel_n : g->chunk_n;
}
/* Rows of a full piece. */
MK_DEV int32_t mk_piece_rows(const struct mk_grid *g)
{
    const int32_t log2 = g->pieces_log2 - g->panels_log2;
    return (g->chunk_m + (1 << log2) - 1) >> log2;
}
/* Where a piece begins in its chunk, if the chunk has so many rows and columns. */
MK_DEV int32_t mk_piece_row(const struct mk_grid *g, uint32_t piece)
{
    return (int32_t)(piece & ((1u << (g->pieces_log2 - g->panels_log2)) - 1)) * mk_piece_rows(g);
}
MK_DEV int32_t mk_piece_col(const struct mk_grid *g, uint32_t piece)
{
    return (int32_t)(piece >> (g->pieces_log2 - g->panels_log2)) * g->panel_n;
}
/* Makes of a chunk's rectangle that of `n` of its pieces, of one panel, from number `piece` on; it has no rows where the
 * matrix ended before. Returns how many elements of the chunk come before it. */
MK_DEV uint32_t mk_piece_rect(const struct mk_grid *g, uint32_t piece, uint32_t n, struct mk_rect *r)
{
    const int32_t most = (int32_t)n * mk_piece_rows(g), above = mk_piece_row(g, piece),
                  aside = mk_piece_col(g, piece);
    const int32_t all_rows = r->rows,
                  cols = r->cols - aside < mk_panel_cols(g) ? r->cols - aside : mk_panel_cols(g);
    const int32_t rows = all_rows - above < most ? all_rows - above : most;
    r->row += above;
    r->col += aside;
    r->rows = rows < 0 || cols <= 0 ? 0 : rows;
    r->cols = cols < 0 ? 0 : cols;
    return (uint32_t)(all_rows * aside + above * r->cols);
}

/* How many chunks local owner o has. */
MK_DEV uint32_t mk_owned(const struct mk_topo *t, uint32_t chunks, int32_t o)
{
    return chunks > (uint32_t)o ? (chunks - (uint32_t)o - 1) / (uint32_t)t->nlocal + 1 : 0;
}
/* How many of `owned` chunks node owner e has. */
MK_DEV uint32_t mk_owned_by_node(const struct mk_topo *t, uint32_t owned, int32_t e)
{
    return owned > (uint32_t)e ? (owned - (uint32_t)e - 1) / (uint32_t)t->nnodes + 1 : 0;
}
MK_DEV uint32_t mk_owned_chunk(const struct mk_topo *t, int32_t o, uint32_t i)
{
    return (uint32_t)o + (uint32_t)t->nlocal * i;
}
