/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The plan of one call: argument checks, chunk geometry, signature. Pure: no memory is touched, no rank is asked.
 * Geometry and signature come only from what all ranks share (never K, layout, leading dimensions, blocks). */
#include "comm.h"
#include "mk/err.h"
#include <string.h>

#define PIECE_BYTES 1048576 /* a task on half of it costs a GPU 20 us, 9 of them whatever its size */
#define EDGE_BYTES                                                                                           \
    524288 /* between nodes, where a queue begins (so many chunks) and ends: T_comm 1494 -> 1470 us */
#define EDGE_FIRST 1
#define EDGE_LAST 2
#define MESSAGE_BYTES                                                                                        \
    1048576 /* between nodes: 8 MiB take 306, 272, 285 us in messages of 512 KiB, 1 MiB, 2 MiB */
#define PIECE_ROWS 8
#define PIECES_LOG2_MAX 3 /* of a panel */
#define PANELS_LOG2_MAX 3

/* Bytes from the first to one past the last element of rows x cols with row stride ld; false: overflows. */
static bool extent(int64_t rows, int64_t cols, int64_t ld, size_t elem, size_t *bytes)
{
    int64_t n = 0;
    if (rows && cols && (__builtin_mul_overflow(rows - 1, ld, &n) || __builtin_add_overflow(n, cols, &n)))
        return false;
    if (__builtin_mul_overflow(n, (int64_t)elem, &n))
        return false;
    *bytes = (size_t)n;
    return true;
}

static bool overlap(const void *a, size_t na, const void *b, size_t nb)
{
    const uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return na && nb && x < y + nb && y < x + na;
}

struct operand {
    const char *name;
    const void *p;
    int64_t rows, cols, ld;
    size_t bytes;
};

static int check_operand(struct operand *o, size_t elem)
{
    if (o->ld < o->cols)
        return mk_fail_quiet(MK_ERR_INVALID, "%s has %lld columns but leading dimension %lld", o->name,
                             (long long)o->cols, (long long)o->ld);
    if (o->ld > INT32_MAX)
        return mk_fail_quiet(MK_ERR_INVALID, "leading dimension %lld of %s is beyond 2^31-1",
                             (long long)o->ld, o->name);
    if (!extent(o->rows, o->cols, o->ld, elem, &o->bytes))
        return mk_fail_quiet(MK_ERR_INVALID, "%s[%lld,%lld] overflows the address space", o->name,
                             (long long)o->rows, (long long)o->cols);
    if (o->bytes && !o->p)
        return mk_fail_quiet(MK_ERR_INVALID, "%s is NULL", o->name);
    if ((uintptr_t)o->p % elem)
        return mk_fail_quiet(MK_ERR_INVALID, "%s at %p is not aligned to its %zu-byte elements", o->name,
                             o->p, elem);
    return 0;
}

int mk_plan_check_facts(const struct mk_gemm_call *c, bool gpu)
{
    if (c->layout != MK_TN && c->layout != MK_NN && c->layout != MK_NT)
        return mk_fail_quiet(MK_ERR_INVALID, "layout %d is none of MK_TN, MK_NN, MK_NT", (int)c->layout);
    if (c->dtype != MK_FLOAT32 && c->dtype != MK_BFLOAT16 && c->dtype != MK_FLOAT16)
        return mk_fail_quiet(MK_ERR_INVALID, "dtype %d is unknown", (int)c->dtype);
    if (c->m < 0 || c->n < 0 || c->k < 0)
        return mk_fail_quiet(MK_ERR_INVALID, "M=%lld N=%lld K=%lld: none may be negative", (long long)c->m,
                             (long long)c->n, (long long)c->k);
    if (c->epilogue && (c->epilogue->act < MK_ACT_NONE || c->epilogue->act > MK_ACT_SILU))
        return mk_fail_quiet(MK_ERR_INVALID, "activation %d is unknown", (int)c->epilogue->act);
    if (c->dtype == MK_FLOAT16 && !gpu)
        return mk_fail_quiet(MK_ERR_UNSUPPORTED, "the CPU executor has fp32 and bf16, not fp16");
    if (c->dtype == MK_FLOAT32 && gpu)
        return mk_fail_quiet(MK_ERR_UNSUPPORTED, "on the GPU there is bf16 and fp16, not fp32");
    if (c->m > INT32_MAX || c->n > INT32_MAX ||
        mk_div_up(c->m, MK_CPU_TILE_M) > (1u << 30) / mk_div_up(c->n + 1, 32))
        return mk_fail_quiet(MK_ERR_UNSUPPORTED, "C[%lld,%lld] is too large for one call", (long long)c->m,
                             (long long)c->n);
    return 0;
}

int mk_plan_check(const struct mk_gemm_call *c, const void *stream, bool gpu)
{
    int ret = mk_plan_check_facts(c, gpu);
    if (ret)
        return ret;
    if (stream && !gpu)
        return mk_fail_quiet(MK_ERR_INVALID, "stream must be NULL: the operands are in host memory");
    const size_t elem = mk_elem_bytes(c->dtype);
    struct operand o[3] = {
        {"A", c->a, c->layout == MK_NT ? c->k : c->m, c->layout == MK_NT ? c->m : c->k, c->lda, 0},
        {"B", c->b, c->layout == MK_TN ? c->n : c->k, c->layout == MK_TN ? c->k : c->n, c->ldb, 0},
        {"C", c->c, c->m, c->n, c->ldc, 0},
    };
    if (!c->m || !c->n)
        return 0;
    for (int i = 0; i < 3; i++)
        if ((c->k || i == 2) && (ret = check_operand(&o[i], elem)))
            return ret;
    for (int i = 0; i < 2; i++)
        if (overlap(o[i].p, o[i].bytes, o[2].p, o[2].bytes))
            return mk_fail_quiet(MK_ERR_INVALID, "%s overlaps C", o[i].name);
    if (c->epilogue && c->epilogue->bias) {
        if ((uintptr_t)c->epilogue->bias % elem)
            return mk_fail_quiet(MK_ERR_INVALID, "bias is not aligned to its %zu-byte elements", elem);
        if (overlap(c->epilogue->bias, (size_t)c->n * elem, o[2].p, o[2].bytes))
            return mk_fail_quiet(MK_ERR_INVALID, "bias overlaps C");
    }
    return 0;
}

static int64_t chunks_of(const struct mk_grid *g)
{
    return (int64_t)mk_div_up(g->m, g->chunk_m) * mk_div_up(g->n, g->chunk_n);
}

/* Chunk: as many columns of one tile band as fit a slot; narrow matrices take several bands. Then halved while
 * there are fewer than 4 per rank and halves are worth a message (32 KiB). */
static void choose_chunk(const struct mk_rings *r, size_t elem, struct mk_grid *g)
{
    const int64_t fit = (int64_t)(r->slot_bytes / elem);
    const int64_t band = g->m < g->tile_m ? g->m : g->tile_m;
    const int64_t nranks = (int64_t)r->topo.nnodes * r->topo.nlocal;
    int64_t cols = fit / band, rows = band;
    if (cols >= g->n) {
        cols = g->n;
        rows = fit / cols / g->tile_m * g->tile_m;
        if (rows < band)
            rows = band;
        if (rows > g->m)
            rows = g->m > g->tile_m ? (g->m + g->tile_m - 1) / g->tile_m * g->tile_m : g->m;
    } else if (cols > 32) {
        cols = cols / 32 * 32;
    }
    g->chunk_m = (int32_t)rows;
    g->chunk_n = (int32_t)cols;
    while (chunks_of(g) < 4 * nranks && (int64_t)g->chunk_m * g->chunk_n * (int64_t)elem >= 65536) {
        if (g->chunk_m > g->tile_m)
            g->chunk_m = g->chunk_m / 2 / g->tile_m * g->tile_m > 0 ? g->chunk_m / 2 / g->tile_m * g->tile_m
                                                                    : g->tile_m;
        else if (g->chunk_n >= 64)
            g->chunk_n = (g->chunk_n / 2 + 31) / 32 * 32;
        else
            break;
    }
}

/* Narrower, by halves, a multiple of 64; false: it is not worth it. */
static bool narrow(struct mk_grid *g)
{
    if (g->chunk_m > MK_GPU_TILE_M)
        g->chunk_m /= 2;
    else if (g->chunk_n >= 128)
        g->chunk_n = (g->chunk_n / 2 + 63) / 64 * 64;
    else
        return false;
    return true;
}

/* On the GPU tiles are 128 x 256 (or narrower, which changes nothing here). A chunk is as many row bands as COMPUTE has
 * open at a time (a power of two, as many as fit the slot and M has) and one tile column: no box of the copy engine is
 * wider. Then of fewer bands, and narrowed, while there are few chunks.
 *
 * Between nodes a NIC takes its time for every message, and a ring stands still for as long as a message and its credit
 * need when its slots hold less than all it carries. So, where few rows make small chunks, these take several tile columns
 * side by side, a panel each, until they are messages of a size that is worth it, or four to a ring; and slots hold
 * them all. */
static void choose_chunk_gpu(const struct mk_rings *r, size_t elem, struct mk_grid *g)
{
    const int64_t fit = (int64_t)(r->slot_bytes / elem);
    const int64_t all_bands = (g->m + MK_GPU_TILE_M - 1) / MK_GPU_TILE_M;
    const bool far = r->topo.nnodes > 1;
    const int64_t rings = (int64_t)r->topo.nlocal * (r->topo.nnodes > 2 ? r->topo.nnodes : 1);
    const int64_t least = far ? 4 * rings : 4 * (int64_t)r->topo.nlocal; /* chunks */
    int64_t bands = 1;
    while (bands < all_bands && 2 * bands * MK_GPU_TILE_M * MK_GPU_TILE_N <= fit)
        bands *= 2;
    int64_t cols = fit / (bands * MK_GPU_TILE_M);
    cols = cols >= MK_GPU_TILE_N ? MK_GPU_TILE_N : cols / 8 * 8;
    g->chunk_m = (int32_t)(bands * MK_GPU_TILE_M);
    g->chunk_n = (int32_t)(cols < g->n ? cols : g->n);
    const bool whole = g->chunk_n == MK_GPU_TILE_N;
    for (;;) {
        const int64_t bytes = (int64_t)g->chunk_m * g->chunk_n * (int64_t)elem, chunks = chunks_of(g);
        const bool few = chunks < least && bytes >= (far ? 131072 : 65536);
        const bool large = far && chunks < 2 * least && bytes >= 2 * MESSAGE_BYTES;
        if ((!few && !large) || !narrow(g))
            break;
    }
    g->bands = g->chunk_m / MK_GPU_TILE_M;
    g->panel_n = g->chunk_n;
    while (far && whole && g->panels_log2 < PANELS_LOG2_MAX && g->chunk_n < g->n &&
           chunks_of(g) >= 2 * least && 2ll * g->chunk_m * g->chunk_n <= fit &&
           (chunks_of(g) > rings * r->slots[MK_CLASS_SUM] ||
            (int64_t)g->chunk_m * g->chunk_n * (int64_t)elem < MESSAGE_BYTES)) {
        g->chunk_n *= 2;
        g->panels_log2++;
    }
}

/* How often a panel can be halved into pieces of `worth` bytes or more. */
static int32_t halves(const struct mk_grid *g, int64_t elem, int64_t worth)
{
    const int64_t bytes = (int64_t)g->chunk_m * mk_panel_cols(g) * elem;
    int32_t log2 = 0;
    while (log2 < PIECES_LOG2_MAX && bytes >> (log2 + 1) >= worth && g->chunk_m >> (log2 + 1) >= PIECE_ROWS)
        log2++;
    return log2;
}

void mk_plan_pieces(struct mk_ar *ar, int64_t worth)
{
    struct mk_grid *g = &ar->grid;
    const int64_t elem = ar->wire_fp32 ? 4 : (int64_t)mk_elem_bytes(ar->dtype);
    const int64_t edge = ar->rings.topo.nnodes > 1 && worth > EDGE_BYTES ? EDGE_BYTES : worth;
    const int32_t fine = halves(g, elem, edge);
    g->pieces_log2 = g->panels_log2 + fine;
    g->span_log2 = fine - halves(g, elem, worth);
    g->edge_first = g->span_log2 ? EDGE_FIRST : 0;
    g->edge_last = g->span_log2 ? EDGE_LAST : 0;
}

static uint64_t mix(uint64_t h, uint64_t v)
{
    h ^= v;
    h *= 0x9e3779b97f4a7c15ull;
    return h ^ (h >> 29);
}

static uint64_t signature(const struct mk_ar *ar, const struct mk_gemm_call *c)
{
    uint64_t h = mix(0x6d6b2d67656d6d31ull, (uint64_t)c->part);
    h = mix(h, (uint64_t)c->m);
    h = mix(h, (uint64_t)c->n);
    h = mix(h, (uint64_t)ar->dtype);
    h = mix(h, (uint64_t)ar->wire_fp32);
    h = mix(h, (uint64_t)ar->act);
    h = mix(h, (uint64_t)ar->latency);
    h = mix(h, ar->bias != NULL);
    h = mix(h, (uint64_t)ar->grid.chunk_m);
    h = mix(h, (uint64_t)ar->grid.chunk_n);
    return mix(h, (uint64_t)mk_panel_cols(&ar->grid));
}

int mk_plan_build(const struct mk_rings *rings, bool wire_fp32, bool gpu, const struct mk_gemm_call *c,
                  struct mk_ar *ar)
{
    memset(ar, 0, sizeof(*ar));
    ar->rings = *rings;
    ar->k = c->k;
    ar->a = c->a;
    ar->b = c->b;
    ar->c = c->c;
    ar->lda = c->lda;
    ar->ldb = c->ldb;
    ar->ldc = c->ldc;
    ar->layout = (int32_t)c->layout;
    ar->dtype = (int32_t)c->dtype;
    ar->bias = c->epilogue ? c->epilogue->bias : NULL;
    ar->act = c->epilogue ? (int32_t)c->epilogue->act : MK_ACT_NONE;
    ar->wire_fp32 = wire_fp32;
    ar->skip_compute = c->part == MK_PART_COMM;
    ar->skip_comm = c->part == MK_PART_COMPUTE;
    ar->latency = gpu && mk_ll_fits(rings, c->m, c->n);
    ar->grid.m = c->m;
    ar->grid.n = c->n;
    ar->grid.tile_m = gpu ? MK_GPU_TILE_M : MK_CPU_TILE_M;
    ar->grid.tile_n = gpu ? MK_GPU_TILE_N : MK_CPU_TILE_N;
    ar->grid.chunk_m = 1;
    ar->grid.chunk_n = 1;
    const size_t elem = wire_fp32 ? 4 : mk_elem_bytes(ar->dtype);
    if (c->m && c->n && gpu)
        choose_chunk_gpu(rings, elem, &ar->grid);
    else if (c->m && c->n)
        choose_chunk(rings, elem, &ar->grid);
    mk_plan_pieces(ar, PIECE_BYTES);
    mk_grid_count(&ar->grid);
    ar->signature = signature(ar, c);
    return 0;
}
