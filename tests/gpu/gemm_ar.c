/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* GEMM+AllReduce on the GPU, one process a rank (mkrun): random shapes, layouts and types against the numerics contract
 * computed on the host from every rank's partial (the operator's COMPUTE alone, which is held against mk_gemm, and
 * that by tests/gpu/gemm.c against float64): the same bits, nothing written outside; the same bits on all ranks, run after run, by graph replay, at other budgets, and
 * with M = 0 or K = 0. MK_COMM_BLOCKS=-1: all under the controller, but for those budgets.
 * Usage: gemm_ar [SHAPES] [CALLS] [SEED]. */
#include "fused/comm.h" /* mk_comm_start */
#include "fused/cuda/gpu.h"
#include "mk/fused.h"
#include "mkernel.h"
#include "tests/bench/gpu.h"
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static mk_comm_t comm;
static struct mk_comm_info info;
static int failures;
static uint64_t rng;

static int rnd(int n) /* the same on all ranks */
{
    rng = rng * 6364136223846793005ull + 1442695040888963407ull;
    return (int)((rng >> 33) % (uint64_t)n);
}

static void fail(const char *what, const char *why)
{
    failures++;
    printf("FAIL rank %d: %s: %s\n", info.rank, what, why);
    fflush(stdout);
}

struct shape {
    mk_layout_t layout;
    mk_dtype_t dtype;
    int64_t m, n, k, lda, ldb, ldc;
    mk_epilogue_t epilogue;
    char text[160];
};

struct job {
    struct shape s;
    gpu_ptr a, b, c, bias;
    size_t na, nb, nc;
};

static void make_job(struct job *j, const struct shape *s)
{
    const int64_t ra = s->layout == MK_NT ? s->k : s->m, rb = s->layout == MK_TN ? s->n : s->k;
    j->s = *s;
    j->na = (size_t)(ra * s->lda) + 8;
    j->nb = (size_t)(rb * s->ldb) + 8;
    j->nc = (size_t)(s->m * s->ldc) + 8;
    j->a = gpu_alloc(j->na * 2);
    j->b = gpu_alloc(j->nb * 2);
    j->c = gpu_alloc(j->nc * 2);
    j->bias = gpu_alloc((size_t)s->n * 2 + 16);
    gpu_random(j->a, j->na, s->dtype, rng + 7u * (uint64_t)info.rank + 1);
    gpu_random(j->b, j->nb, s->dtype, rng + 5u * (uint64_t)info.rank + 2);
    gpu_random(j->bias, (size_t)s->n + 8, s->dtype, rng + 3);
    if (s->epilogue.bias)
        j->s.epilogue.bias = (void *)(uintptr_t)j->bias;
    gpu_set(j->c, 0xff, j->nc * 2);
}
static void drop_job(struct job *j)
{
    gpu_free(j->a);
    gpu_free(j->b);
    gpu_free(j->c);
    gpu_free(j->bias);
}

#define P(x) ((void *)(uintptr_t)(x))
static int call(void *arg, int i)
{
    struct job *j = arg;
    (void)i;
    return mk_gemm_allreduce(comm, j->s.layout, j->s.m, j->s.n, j->s.k, j->s.dtype, P(j->a), j->s.lda,
                             P(j->b), j->s.ldb, P(j->c), j->s.ldc, &j->s.epilogue, gpu_stream());
}

static int finish(const char *what)
{
    int err = 0;
    gpu_sync();
    mk_comm_get_async_error(comm, &err);
    if (err)
        fail(what, mk_last_error());
    return err;
}

__extension__ typedef _Float16 half_t;
static uint16_t round_to(float f, mk_dtype_t dtype)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    if (dtype == MK_BFLOAT16) {
        if (f != f)
            return 0x7fff;
        return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
    }
    half_t h = (half_t)f;
    uint16_t r;
    memcpy(&r, &h, 2);
    return r;
}

static float activate(float x, int act)
{
    if (act == MK_ACT_RELU)
        return x < 0 ? 0 : x;
    return x;
}

/* The contract (design 10) from the partials p[rank][m * n]. */
static void contract(const struct shape *s, const uint16_t *p, const uint16_t *bias, uint16_t *out)
{
    const size_t mn = (size_t)(s->m * s->n);
    for (size_t i = 0; i < mn; i++) {
        float total = 0;
        for (int d = 0; d < info.nnodes; d++) {
            float sum = 0;
            for (int g = 0; g < info.local_nranks; g++) {
                const float v = (float)gpu_value(p[(size_t)(d * info.local_nranks + g) * mn + i], s->dtype);
                sum = g ? sum + v : v;
            }
            if (info.nnodes > 1)
                sum = (float)gpu_value(round_to(sum, s->dtype), s->dtype);
            total = d ? total + sum : sum;
        }
        if (bias)
            total += (float)gpu_value(bias[i % (size_t)s->n], s->dtype);
        out[i] = round_to(activate(total, (int)s->epilogue.act), s->dtype);
    }
}

static uint64_t hash_c(const struct job *j)
{
    uint16_t *h = malloc(j->nc * 2);
    uint64_t v = 1;
    gpu_get(h, j->c, j->nc * 2);
    for (int64_t r = 0; r < j->s.m; r++)
        for (int64_t q = 0; q < j->s.n; q++)
            v = (v ^ h[r * j->s.ldc + q]) * 0x100000001b3ull;
    free(h);
    return v;
}
static void same_everywhere(const struct job *j, uint64_t mine)
{
    uint64_t all[256];
    if (mk_comm_allgather(comm, &mine, all, 8)) {
        fail(j->s.text, mk_last_error());
        return;
    }
    for (int r = 0; r < info.nranks; r++)
        if (all[r] != all[0]) {
            fail(j->s.text, "ranks have different bits");
            return;
        }
}

/* all[rank][n] from every rank's mine[n], in pieces that the bootstrap takes. */
static void gather(const uint16_t *mine, uint16_t *all, size_t n)
{
    enum { PIECE = 32768 };
    static uint16_t part[PIECE], parts[256][PIECE];
    for (size_t at = 0; at < n; at += PIECE) {
        const size_t now = n - at < PIECE ? n - at : PIECE;
        memcpy(part, mine + at, now * 2);
        if (mk_comm_allgather(comm, part, parts, sizeof(part)))
            fail("gather", mk_last_error());
        for (int r = 0; r < info.nranks; r++)
            memcpy(all + (size_t)r * n + at, parts[r], now * 2);
    }
}

static void get_rows(uint16_t *dst, gpu_ptr src, const struct shape *s)
{
    for (int64_t r = 0; r < s->m; r++)
        gpu_get(dst + r * s->n, src + (gpu_ptr)(r * s->ldc) * 2, (size_t)s->n * 2);
}
static double distance(const uint16_t *x, const uint16_t *y, size_t n, mk_dtype_t dtype)
{
    double diff = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        const double a = gpu_value(x[i], dtype), b = gpu_value(y[i], dtype);
        diff += (a - b) * (a - b);
        norm += b * b;
    }
    return norm > 0 ? sqrt(diff / norm) : sqrt(diff);
}

static void against_contract(struct job *j)
{
    const struct shape *s = &j->s;
    const size_t mn = (size_t)(s->m * s->n);
    uint16_t *mine = calloc(mn + 1, 2), *all = calloc((size_t)info.nranks * mn + 1, 2),
             *want = calloc(mn + 1, 2);
    uint16_t *have = malloc(j->nc * 2), *bias = malloc((size_t)s->n * 2 + 16);
    uint16_t *other = calloc(mn + 1, 2);
    gpu_ptr p = gpu_alloc(j->nc * 2), plain = gpu_alloc(j->nc * 2);
    gpu_get(bias, j->bias, (size_t)s->n * 2);
    if (mk_gemm_allreduce_part(comm, MK_PART_COMPUTE, s->layout, s->m, s->n, s->k, s->dtype, P(j->a), s->lda,
                               P(j->b), s->ldb, P(p), s->ldc, NULL, gpu_stream()))
        fail(s->text, mk_last_error());
    if (mk_gemm(s->layout, s->m, s->n, s->k, s->dtype, P(j->a), s->lda, P(j->b), s->ldb, P(plain), s->ldc,
                NULL, gpu_stream()))
        fail(s->text, mk_last_error());
    gpu_sync();
    get_rows(mine, p, s);
    get_rows(other, plain, s);
    if (distance(mine, other, mn, s->dtype) > (s->dtype == MK_BFLOAT16 ? 4e-3 : 5e-4))
        fail(s->text, "the partial is not that of mk_gemm");
    gather(mine, all, mn);
    contract(s, all, s->epilogue.bias ? bias : NULL, want);
    gpu_get(have, j->c, j->nc * 2);
    size_t wrong = 0, first = 0;
    for (int64_t r = 0; r < s->m; r++)
        for (int64_t q = 0; q < s->ldc; q++)
            if (have[r * s->ldc + q] != (q < s->n ? want[r * s->n + q] : 0xffff)) {
                first = wrong ? first : (size_t)(r * s->ldc + q);
                wrong++;
            }
    for (size_t i = (size_t)(s->m * s->ldc); i < j->nc; i++)
        wrong += have[i] != 0xffff;
    if (wrong) {
        char text[200];
        const size_t r = first / (size_t)s->ldc, q = first % (size_t)s->ldc;
        snprintf(text, sizeof(text),
                 "%zu of %zu elements differ from the contract; [%zu,%zu] is %04x, not %04x", wrong, mn, r, q,
                 have[first], q < (size_t)s->n && r < (size_t)s->m ? want[r * (size_t)s->n + q] : 0xffff);
        fail(s->text, text);
    }
    gpu_free(p);
    gpu_free(plain);
    free(other);
    free(mine);
    free(all);
    free(want);
    free(have);
    free(bias);
}

static int some(int max)
{
    switch (rnd(6)) {
    case 0:
        return 1 + rnd(4);
    case 1:
        return max / 8 * 8;
    case 2:
        return 1 + rnd(max);
    default:
        return (1 + rnd((max + 7) / 8)) * 8;
    }
}

static void random_shape(struct shape *s)
{
    memset(s, 0, sizeof(*s));
    s->layout = (mk_layout_t)rnd(3);
    s->dtype = rnd(2) ? MK_BFLOAT16 : MK_FLOAT16;
    s->m = rnd(3) ? some(700) : 1 + rnd(64); /* the latency path where there is one node */
    s->n = some(900);
    s->k = rnd(12) ? some(600) : 0;
    const int pad = rnd(3) ? 0 : rnd(2) ? 8 : 3;
    s->lda = (s->layout == MK_NT ? s->m : s->k) + pad;
    s->ldb = (s->layout == MK_TN ? s->k : s->n) + pad;
    s->ldc = s->n + pad;
    s->epilogue.act = rnd(2) ? MK_ACT_NONE : MK_ACT_RELU; /* the others have no bit-exact twin on the host */
    s->epilogue.bias = rnd(2) ? s : NULL;
    if (!s->lda)
        s->lda = 1;
    if (!s->ldb)
        s->ldb = 1;
    snprintf(s->text, sizeof(s->text), "layout %d dtype %d M=%ld N=%ld K=%ld ld %ld %ld %ld act %d bias %d",
             (int)s->layout, (int)s->dtype, (long)s->m, (long)s->n, (long)s->k, (long)s->lda, (long)s->ldb,
             (long)s->ldc, (int)s->epilogue.act, s->epilogue.bias != NULL);
}

/* Three shapes in turn, one of them on the latency path, eager and by replay, with new inputs now and then: the bits of the first call. */
static void many_calls(int calls)
{
    struct job j[3];
    struct shape s = {.layout = MK_TN,
                      .dtype = MK_BFLOAT16,
                      .m = 1000,
                      .n = 2048,
                      .k = 512,
                      .lda = 512,
                      .ldb = 512,
                      .ldc = 2048};
    uint64_t want[3];
    struct gpu_graph *g[3];
    for (int i = 0; i < 3; i++) {
        snprintf(s.text, sizeof(s.text), "repeated M=%ld N=%ld K=%ld", (long)s.m, (long)s.n, (long)s.k);
        make_job(&j[i], &s);
        if (call(&j[i], 0) || finish(s.text))
            return;
        want[i] = hash_c(&j[i]);
        same_everywhere(&j[i], want[i]);
        s.m = i ? 16 : 300;
        s.n = 4096;
    }
    for (int i = 0; i < 3; i++)
        g[i] = gpu_capture(call, &j[i], 1);
    for (int c = 0; c < calls && !failures; c++) {
        const int i = rnd(3);
        if (rnd(4) == 0) /* this rank's own delay */
            for (volatile int spin = 0; spin < (c * 7919 + info.rank * 104729) % 200000; spin++)
                ;
        if (rnd(2)) {
            if (call(&j[i], 0))
                fail("repeated", mk_last_error());
        } else {
            gpu_replay_us(g[i]);
        }
        if (c % 64 == 0) {
            finish("repeated");
            if (hash_c(&j[i]) != want[i])
                fail(j[i].s.text, "other bits than in the first call");
            gpu_set(j[i].c, 0xff, j[i].nc * 2);
        }
    }
    finish("repeated");
    for (int i = 0; i < 3; i++) {
        gpu_graph_free(g[i]);
        drop_job(&j[i]);
    }
}

/* Tiles of the last launch, of at most `most`, that went into their slots too as they left. */
static uint32_t placed(size_t most)
{
    struct mk_ar ar;
    uint64_t *flag = calloc(most, sizeof(*flag)), epoch;
    uint32_t n = 0;
    mk_gpu_bind(comm, &ar);
    gpu_get(&epoch, (gpu_ptr)(uintptr_t)&ar.state->epoch, sizeof(epoch));
    gpu_get(flag, (gpu_ptr)(uintptr_t)ar.tile_flag, most * sizeof(*flag));
    for (size_t i = 0; i < most; i++)
        n += flag[i] >> 32 == (uint32_t)(epoch - 1) && (uint32_t)flag[i] >= MK_TILE_PLACED;
    free(flag);
    return n;
}
static void some_placed(const struct shape *s)
{
    const bool can =
        mk_gpu_hopper(comm) && (info.local_nranks > 1 || (info.nnodes > 1 && comm->gpu->net_reaches));
    const uint32_t n = placed((size_t)((s->m + 127) / 128 * ((s->n + 127) / 128)));
    if (can ? !n && s->m % 128 == 0 : n != 0) /* tiles at an edge never are */
        fail(s->text, can ? "no tile was placed in its slot" : "tiles were placed where that cannot be");
    if (!info.rank)
        printf("%s: %u tiles went into their slots as they left\n", s->text, n);
}

static void large(int64_t m, int64_t n, int64_t k, mk_layout_t layout)
{
    struct job j;
    struct shape s = {.layout = layout, .dtype = MK_BFLOAT16, .m = m, .n = n, .k = k, .ldc = n};
    s.lda = layout == MK_NT ? m : k;
    s.ldb = layout == MK_TN ? k : n;
    snprintf(s.text, sizeof(s.text), "large M=%ld N=%ld K=%ld layout %d", (long)m, (long)n, (long)k,
             (int)layout);
    make_job(&j, &s);
    uint64_t first = 0;
    for (int i = 0; i < 6 && !failures; i++) {
        static const int budget[6] = {0, 0, 0, 1, 5, 0};
        if (mk_comm_set_comm_blocks(comm, budget[i]))
            fail(s.text, mk_last_error());
        gpu_set(j.c, 0xff, j.nc * 2);
        if (call(&j, 0) || finish(s.text))
            break;
        const uint64_t h = hash_c(&j);
        if (!i)
            some_placed(&s);
        if (i && h != first)
            fail(s.text, budget[i] ? "other bits at another budget" : "other bits in another run");
        first = h;
    }
    same_everywhere(&j, first);
    if (!failures && m * n <= 4 << 20)
        against_contract(&j);
    drop_job(&j);
}

/* Under the controller the launches are to have said what they learned. */
static void taught(void)
{
    const char *blocks = getenv("MK_COMM_BLOCKS");
    if (!blocks || strcmp(blocks, "-1") || info.nranks == 1 || failures)
        return;
    if (!comm->learn)
        fail("MK_COMM_BLOCKS=-1", "no controller");
    else if (!mk_starts_count(comm->learn->starts))
        fail("MK_COMM_BLOCKS=-1", "no launch taught anything");
}

int main(int argc, char **argv)
{
    const char *why = "";
    const int shapes = argc > 1 ? atoi(argv[1]) : 40, calls = argc > 2 ? atoi(argv[2]) : 500;
    rng = argc > 3 ? strtoull(argv[3], NULL, 0) : 1;
    if (!gpu_open(&why) || !blas_open(&why)) {
        printf("skip: gpu.gemm_ar: %s\n", why);
        return 77;
    }
    mk_comm_start = 0xffffffffull - 60; /* epochs and marks of the latency path wrap during the run */
    if (mk_comm_init_env(&comm, NULL) || mk_comm_info(comm, &info)) {
        printf("FAIL: init: %s\n", mk_last_error());
        return 1;
    }
    for (int i = 0; i < shapes && failures < 5; i++) {
        struct shape s;
        struct job j;
        random_shape(&s);
        make_job(&j, &s);
        if (call(&j, 0))
            fail(s.text, mk_last_error());
        if (finish(s.text))
            break;
        against_contract(&j);
        drop_job(&j);
    }
    if (!failures)
        large(2048, 1024, 320, MK_TN);
    if (!failures)
        large(4096, 4096, 1024, MK_NN);
    if (!failures)
        large(1234, 5000, 712, MK_NT);
    if (!failures)
        many_calls(calls);
    taught();
    printf("rank %d of %d (%d nodes): %d shapes, %d calls, %d failures\n", info.rank, info.nranks,
           info.nnodes, shapes, calls, failures);
    const int ret = failures ? 1 : 0;
    mk_comm_destroy(comm);
    return ret;
}
