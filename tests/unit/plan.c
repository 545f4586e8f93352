/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What is decided before anything is touched: argument checks, chunk geometry, ring layout, topology. */
#include "fused/comm.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static float mem[4096];

static struct mk_gemm_call good(void)
{
    struct mk_gemm_call c = {8,         16,         4,    4,     4,          16,           mem,
                             mem + 512, mem + 1024, NULL, MK_TN, MK_FLOAT32, MK_PART_FUSED};
    return c;
}

static void expect(struct mk_gemm_call c, int ret, const char *word)
{
    assert_int_equal(mk_plan_check(&c, NULL, false), ret);
    if (ret && !strstr(mk_last_error(), word))
        fail_msg("\"%s\" does not name %s", mk_last_error(), word);
}

static void bad_arguments(void **state)
{
    (void)state;
    struct mk_gemm_call c = good();
    expect(c, 0, "");
#define WITH(field, value, ret, word)                                                                        \
    do {                                                                                                     \
        c = good();                                                                                          \
        c.field = value;                                                                                     \
        expect(c, ret, word);                                                                                \
    } while (0)
    WITH(m, -1, MK_ERR_INVALID, "M=-1");
    WITH(n, INT64_MIN, MK_ERR_INVALID, "N=");
    WITH(k, -5, MK_ERR_INVALID, "K=-5");
    WITH(a, NULL, MK_ERR_INVALID, "A is NULL");
    WITH(b, NULL, MK_ERR_INVALID, "B is NULL");
    WITH(c, NULL, MK_ERR_INVALID, "C is NULL");
    WITH(lda, 3, MK_ERR_INVALID, "leading dimension 3");
    WITH(ldb, 0, MK_ERR_INVALID, "leading dimension 0");
    WITH(ldc, 15, MK_ERR_INVALID, "leading dimension 15");
    WITH(ldc, (int64_t)INT32_MAX + 1, MK_ERR_INVALID, "2^31");
    WITH(a, (const char *)mem + 2, MK_ERR_INVALID, "A at");
    WITH(c, (char *)mem + 4098, MK_ERR_INVALID, "C at");
    WITH(a, mem + 1030, MK_ERR_INVALID, "A overlaps C");
    WITH(b, mem + 1024 + 127, MK_ERR_INVALID, "B overlaps C");
    WITH(b, mem + 1024 + 128, 0, "");
    WITH(layout, (mk_layout_t)7, MK_ERR_INVALID, "layout 7");
    WITH(dtype, (mk_dtype_t)9, MK_ERR_INVALID, "dtype 9");
    WITH(dtype, MK_FLOAT16, MK_ERR_UNSUPPORTED, "fp16");
    WITH(m, INT64_MAX, MK_ERR_UNSUPPORTED, "too large");
    WITH(n, INT64_MAX, MK_ERR_UNSUPPORTED, "too large");
    WITH(k, INT64_MAX / 2, MK_ERR_INVALID, "leading dimension");
    WITH(m, 0, 0, "");
    WITH(n, 0, 0, "");
    c = good();
    c.k = 0;
    c.a = c.b = NULL; /* nothing to read */
    expect(c, 0, "");
    c = good();
    c.m = 0;
    c.c = NULL;
    expect(c, 0, "");
    mk_epilogue_t e = {mem + 1030, MK_ACT_NONE};
    WITH(epilogue, &e, MK_ERR_INVALID, "bias overlaps C");
    e.bias = (char *)mem + 8193;
    WITH(epilogue, &e, MK_ERR_INVALID, "bias is not aligned");
    e.bias = NULL;
    e.act = (mk_activation_t)4;
    WITH(epilogue, &e, MK_ERR_INVALID, "activation 4");
#undef WITH
    c = good();
    assert_int_equal(mk_plan_check(&c, mem, true), MK_ERR_UNSUPPORTED); /* fp32 on the GPU */
    assert_int_equal(mk_plan_check(&c, mem, false), MK_ERR_INVALID);
    assert_non_null(strstr(mk_last_error(), "stream"));
}

/* A chunk's pieces are its rows and columns, and stand in its message one behind the other. */
static void pieces_fill(const struct mk_grid *g, const struct mk_rect *chunk)
{
    uint32_t at = 0;
    int32_t last_col = chunk->col, last_row = chunk->row;
    for (uint32_t i = 0; i < 1u << g->pieces_log2; i++) {
        struct mk_rect r = *chunk;
        const uint32_t skip = mk_piece_rect(g, i, 1, &r);
        if (!r.rows)
            continue;
        assert_int_equal(skip, at);
        at += (uint32_t)r.rows * (uint32_t)r.cols;
        if (r.col != last_col) { /* the panel before was whole */
            assert_int_equal(last_row, chunk->row + chunk->rows);
            assert_true(r.col == last_col + g->panel_n && r.row == chunk->row);
        } else {
            assert_int_equal(r.row, last_row);
        }
        last_col = (int32_t)r.col;
        last_row = (int32_t)r.row + r.rows;
        assert_true(r.cols > 0 && r.row + r.rows <= chunk->row + chunk->rows &&
                    r.col + r.cols <= chunk->col + chunk->cols);
    }
    assert_int_equal(at, (uint32_t)chunk->rows * (uint32_t)chunk->cols);
}

/* Every element belongs to exactly one chunk; chunks fit their slots; K and layout change nothing. */
static void chunks_cover_the_matrix(void **state)
{
    (void)state;
    static const int64_t dims[] = {1, 2, 31, 97, 255, 256, 257, 1000, 4096, 70000};
    const struct mk_topo topo = {2, 2, 0, 0};
    struct mk_rings r;
    for (size_t chunk = 16384; chunk <= 1 << 20; chunk *= 4) {
        assert_int_equal(mk_rings_build(&topo, 32 << 20, chunk, &r), 0);
        for (int i = 0; i < 100; i++)
            for (int mode = 0; mode < 4; mode++) {
                const bool wire = mode & 1, gpu = mode & 2;
                struct mk_gemm_call c = good();
                struct mk_ar ar, other;
                c.m = dims[i / 10];
                c.n = dims[i % 10];
                c.dtype = i % 3 ? MK_FLOAT32 : MK_BFLOAT16;
                assert_int_equal(mk_plan_build(&r, wire, gpu, &c, &ar), 0);
                c.k = 99;
                c.layout = MK_NT;
                c.lda = 77777;
                assert_int_equal(mk_plan_build(&r, wire, gpu, &c, &other), 0);
                assert_true(ar.signature == other.signature);
                assert_memory_equal(&ar.grid, &other.grid, sizeof(ar.grid));
                int64_t covered = 0;
                for (uint32_t n = 0; n < mk_chunks(&ar.grid); n++) {
                    const struct mk_rect q = mk_chunk_rect(&ar.grid, n);
                    assert_true(q.rows > 0 && q.cols > 0 && q.row + q.rows <= c.m && q.col + q.cols <= c.n);
                    covered += (int64_t)q.rows * q.cols;
                    pieces_fill(&ar.grid, &q);
                }
                assert_true(covered == c.m * c.n);
                const size_t elem = wire || c.dtype == MK_FLOAT32 ? 4 : 2;
                assert_true((size_t)ar.grid.chunk_m * (size_t)ar.grid.chunk_n * elem <= r.slot_bytes);
                c.n++;
                assert_int_equal(mk_plan_build(&r, wire, gpu, &c, &other), 0);
                assert_true(ar.signature != other.signature);
            }
    }
}

/* On GPUs between nodes: few rows make messages of 1 MiB, or four to a ring, and the slots hold them all. */
static void few_rows_make_large_messages(void **state)
{
    static const struct {
        int d, g;
        int64_t m, n;
        uint32_t chunks;
        int32_t rows, cols, panels;
    } is[] = {
        {2, 1, 128, 8192, 4, 128, 2048, 8},   {2, 1, 512, 8192, 8, 512, 1024, 4},
        {2, 1, 2048, 8192, 16, 2048, 512, 2}, {2, 1, 4096, 8192, 32, 4096, 256, 1},
        {2, 1, 16384, 256, 8, 2048, 256, 1}, /* K's view of 8 MiB */
        {2, 1, 4096, 256, 4, 1024, 256, 1},   {2, 1, 128, 512, 2, 128, 256, 1},
        {1, 2, 128, 8192, 32, 128, 256, 1}, /* within a node nobody pays for messages */
        {1, 2, 2048, 8192, 32, 2048, 256, 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(is) / sizeof(is[0]); i++) {
        const struct mk_topo topo = {is[i].d, is[i].g, 0, 0};
        struct mk_gemm_call c = good();
        struct mk_rings r;
        struct mk_ar ar;
        c.m = is[i].m;
        c.n = is[i].n;
        c.dtype = MK_BFLOAT16;
        assert_int_equal(mk_rings_build(&topo, 64 << 20, 2 << 20, &r), 0);
        assert_int_equal(mk_plan_build(&r, false, true, &c, &ar), 0);
        assert_int_equal(mk_chunks(&ar.grid), is[i].chunks);
        assert_int_equal(ar.grid.chunk_m, is[i].rows);
        assert_int_equal(ar.grid.chunk_n, is[i].cols);
        assert_int_equal(1 << ar.grid.panels_log2, is[i].panels);
        assert_int_equal(mk_panel_cols(&ar.grid) << ar.grid.panels_log2, ar.grid.chunk_n);
    }
}

/* The tasks of a queue take every piece of every chunk once, in order, and none of two panels. */
static void tasks_take_all_pieces(void **state)
{
    (void)state;
    struct mk_ar ar;
    memset(&ar, 0, sizeof(ar));
    ar.rings.topo = (struct mk_topo){2, 1, 0, 0};
    ar.grid.m = 4;
    ar.grid.chunk_m = ar.grid.tile_m = 4;
    ar.grid.chunk_n = ar.grid.tile_n = 8;
    for (int panels = 0; panels < 3; panels++)
        for (int rows = 0; rows < 4; rows++)
            for (int span = 0; span <= rows; span++)
                for (int edges = 0; edges < 9; edges++)
                    for (int chunks = 0; chunks < 8; chunks++) {
                        struct mk_task t;
                        uint32_t next = 0;
                        ar.grid.panels_log2 = panels;
                        ar.grid.pieces_log2 = panels + rows;
                        ar.grid.span_log2 = span;
                        ar.grid.edge_first = edges % 3;
                        ar.grid.edge_last = edges / 3;
                        ar.grid.n = 8 * chunks;
                        mk_grid_count(&ar.grid);
                        const uint32_t items = mk_ar_items(&ar, MK_AR_SUM, 1), fine = 1u << (panels + rows);
                        for (uint32_t i = 0; i < items; i++) {
                            mk_ar_locate(&ar, MK_AR_SUM, 1, i, items, &t);
                            assert_int_equal(t.item * fine + t.piece, next);
                            assert_int_equal(t.piece >> rows, (t.piece + t.pieces - 1) >> rows);
                            const bool edge =
                                (int)t.item < ar.grid.edge_first || (int)t.item >= chunks - ar.grid.edge_last;
                            assert_int_equal(t.pieces, edge ? 1 : 1 << span);
                            next += t.pieces;
                        }
                        assert_int_equal(next, (uint32_t)chunks * fine);
                    }
}

static void owners_share_all_chunks(void **state)
{
    (void)state;
    for (int d = 1; d <= 5; d++)
        for (int g = 1; g <= 4; g++)
            for (uint32_t chunks = 0; chunks < 60; chunks++) {
                const struct mk_topo t = {d, g, 0, 0};
                uint32_t all = 0;
                for (int o = 0; o < g; o++) {
                    const uint32_t owned = mk_owned(&t, chunks, o);
                    uint32_t by_node = 0;
                    for (int e = 0; e < d; e++)
                        by_node += mk_owned_by_node(&t, owned, e);
                    assert_int_equal(by_node, owned);
                    for (uint32_t i = 0; i < owned; i++)
                        assert_true(mk_owned_chunk(&t, o, i) < chunks &&
                                    (int)(mk_owned_chunk(&t, o, i) % (unsigned)g) == o);
                    all += owned;
                }
                assert_int_equal(all, chunks);
            }
}

/* No two rings share a byte, a flag or a completion word, and both ends compute the same place. */
static void rings_do_not_overlap(void **state)
{
    (void)state;
    static const int topo[][2] = {{1, 2}, {2, 1}, {2, 4}, {3, 2}, {5, 3}};
    for (int i = 0; i < 5; i++) {
        const struct mk_topo t = {topo[i][0], topo[i][1], topo[i][0] - 1, topo[i][1] - 1};
        struct mk_rings r;
        assert_int_equal(mk_rings_build(&t, 4 << 20, 64 << 10, &r), 0);
        uint8_t *used = calloc(r.staging_bytes / 256, 1), *note = calloc(r.notes, 1),
                *done = calloc(r.dones + 1, 1);
        for (int cls = 0; cls < MK_CLASSES; cls++) {
            const int self = mk_class_self(&t, cls);
            for (int p = 0; r.slots[cls] && p < mk_class_peers(&t, cls) + 1; p++) {
                if (p == self)
                    continue;
                assert_int_equal(note[mk_credit_note(&r, cls, self, p)]++, 0);
                for (uint64_t q = 0; q < r.slots[cls]; q++) {
                    assert_int_equal(note[mk_flag_note(&r, cls, self, p, q)]++, 0);
                    if (!mk_class_is_local(cls))
                        assert_int_equal(done[mk_done_index(&r, cls, p, q)]++, 0);
                    if (cls == MK_CLASS_HEADER_LOCAL || cls == MK_CLASS_HEADER_NODE)
                        continue;
                    for (uint64_t b = 0; b < r.slot_bytes; b += 256) {
                        assert_int_equal(used[(mk_in_slot(&r, cls, self, p, q) + b) / 256]++, 0);
                        if (!mk_class_is_local(cls))
                            assert_int_equal(used[(mk_out_slot(&r, cls, p, q) + b) / 256]++, 0);
                    }
                }
            }
        }
        for (uint32_t n = 0; n < r.notes; n++)
            assert_int_equal(note[n], 1);
        for (uint32_t n = 0; n < r.dones; n++)
            assert_int_equal(done[n], 1);
        free(used);
        free(note);
        free(done);
    }
}

static void a_workspace_can_be_too_small(void **state)
{
    (void)state;
    const struct mk_topo t = {2, 2, 0, 0};
    struct mk_rings r;
    /* four rings of two slots of 16 KiB: two local (partial, broadcast), sum in and out */
    assert_int_equal(mk_rings_build(&t, 4 * 2 * 16384, 1 << 20, &r), 0);
    assert_int_equal(r.slots[MK_CLASS_SUM], 2);
    assert_int_equal(mk_rings_build(&t, 4 * 2 * 16384 - 4, 1 << 20, &r), MK_ERR_UNSUPPORTED);
    assert_int_equal(mk_rings_build(&t, 1 << 20, 16383, &r), MK_ERR_UNSUPPORTED);
    assert_int_equal(mk_rings_build(&t, 1ull << 40, 16384, &r), 0);
    assert_int_equal(mk_rings_build(&t, 1ull << 44, 1ull << 40, &r), 0);
    assert_true(r.slot_bytes <= 1u << 30); /* what a command can carry */
    assert_int_equal(r.slots[MK_CLASS_SUM], MK_RING_MAX_SLOTS);
}

static void topology(void **state)
{
    (void)state;
    struct mk_topo t;
    int at[6];
    /* by host, ranks interleaved */
    const struct mk_place hosts[6] = {{7, -1, -1}, {9, -1, -1}, {7, -1, -1},
                                      {9, -1, -1}, {7, -1, -1}, {9, -1, -1}};
    assert_int_equal(mk_topology_build(hosts, 6, 3, &t, at), 0);
    assert_true(t.nnodes == 2 && t.nlocal == 3 && t.node == 1 && t.local == 1);
    const int want[6] = {0, 2, 4, 1, 3, 5};
    assert_memory_equal(at, want, sizeof(want));
    /* given, several nodes on one host */
    const struct mk_place given[4] = {{7, 1, 0}, {7, 0, 0}, {7, 1, 1}, {7, 0, 1}};
    assert_int_equal(mk_topology_build(given, 4, 0, &t, at), 0);
    assert_true(t.nnodes == 2 && t.nlocal == 2 && t.node == 1 && t.local == 0);
    /* uneven, twice the same place, one node on two hosts */
    const struct mk_place uneven[3] = {{7, -1, -1}, {9, -1, -1}, {7, -1, -1}};
    assert_int_equal(mk_topology_build(uneven, 3, 0, &t, at), MK_ERR_UNSUPPORTED);
    const struct mk_place twice[4] = {{7, 0, 0}, {7, 0, 0}, {7, 1, 0}, {7, 1, 1}};
    assert_int_equal(mk_topology_build(twice, 4, 0, &t, at), MK_ERR_UNSUPPORTED);
    const struct mk_place split[2] = {{7, 0, 0}, {9, 0, 1}};
    assert_int_equal(mk_topology_build(split, 2, 0, &t, at), MK_ERR_INVALID);
    /* given on some ranks only: hosts decide */
    const struct mk_place some[2] = {{7, 0, 0}, {9, -1, -1}};
    assert_int_equal(mk_topology_build(some, 2, 1, &t, at), 0);
    assert_true(t.nnodes == 2 && t.node == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_arguments),
        cmocka_unit_test(chunks_cover_the_matrix),
        cmocka_unit_test(few_rows_make_large_messages),
        cmocka_unit_test(tasks_take_all_pieces),
        cmocka_unit_test(owners_share_all_chunks),
        cmocka_unit_test(rings_do_not_overlap),
        cmocka_unit_test(a_workspace_can_be_too_small),
        cmocka_unit_test(topology),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
