/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* G and K on the GPU (mk/pair_run.h), one process a rank (mkrun): random shapes with the programmatic launch and without, in
 * turn and by each rank's own choice, eager and by graph replay, with delays, G without K, G after G, and a third kernel
 * that reads what K leaves; MK_VERIFY's look at C: the bits of the operator's exchange alone on the same products. Then times.
 * Usage: pair [SHAPES] [CALLS] [SEED]; pair one LAYOUT DTYPE M N K BIAS CALLS; pair times M N K [ROUNDS]. */
#include "cuda/gpu.h"
#include "fused/comm.h" /* mk_comm_start */
#include "mk/fused.h"
#include "mk/pair_run.h"
#include "mkernel.h"
#include "tests/bench/gpu.h"
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static mk_comm_t comm;
static struct mk_comm_info info;
static int failures;
static uint64_t rng, own; /* the same on all ranks; this rank's */

#define P(x) ((void *)(uintptr_t)(x))

static int next(uint64_t *x, int n)
{
    *x = *x * 6364136223846793005ull + 1442695040888963407ull;
    return (int)((*x >> 33) % (uint64_t)n);
}
static void fail(const char *what, const char *why)
{
    failures++;
    printf("FAIL rank %d: %s: %s\n", info.rank, what, why);
    fflush(stdout);
}

/* ---- a pair ---- */

struct pair {
    struct mk_gemm_problem p;
    gpu_ptr a, b, c, bias, words, product, third, read; /* read = third^T C */
    size_t bytes;
    uint64_t want, want_read;
    uint16_t *wanted;    /* C */
    bool follow, after;  /* K follows the tiles; a kernel that may start early reads C */
    int spare, overlaps; /* K's that did */
    char text[160];
};

static void make_pair(struct pair *x, mk_layout_t layout, mk_dtype_t dtype, int64_t m, int64_t n, int64_t k,
                      bool bias)
{
    memset(x, 0, sizeof(*x));
    x->bytes = (size_t)(m * n) * 2;
    x->a = gpu_alloc((size_t)(m * k) * 2);
    x->b = gpu_alloc((size_t)(n * k) * 2);
    x->bias = gpu_alloc((size_t)n * 2 + 16);
    x->c = gpu_alloc(x->bytes);
    x->product = gpu_alloc(x->bytes);
    x->read = gpu_alloc((size_t)n * 128 * 2);
    x->third = gpu_alloc((size_t)m * 128 * 2);
    x->words = gpu_alloc(mk_pair_words_bytes(m));
    gpu_set(x->words, 0, mk_pair_words_bytes(m));
    gpu_random(x->a, (size_t)(m * k), dtype, rng + 7u * (uint64_t)info.rank + 1);
    gpu_random(x->b, (size_t)(n * k), dtype, rng + 5u * (uint64_t)info.rank + 2);
    gpu_random(x->third, (size_t)m * 128, dtype, 11);
    gpu_random(x->bias, (size_t)n, dtype, rng + 3u * (uint64_t)info.rank + 3);
    x->p = (struct mk_gemm_problem){
        .layout = layout, .dtype = dtype, .m = m, .n = n, .k = k, .a = P(x->a), .b = P(x->b), .c = P(x->c)};
    x->p.lda = layout == MK_NT ? m : k;
    x->p.ldb = layout == MK_TN ? k : n;
    x->p.ldc = n;
    x->p.bias = bias ? P(x->bias) : NULL;
    x->spare = mk_pair_blocks(comm);
    snprintf(x->text, sizeof(x->text), "layout %d dtype %d M=%ld N=%ld K=%ld bias %d", (int)layout,
             (int)dtype, (long)m, (long)n, (long)k, bias);
}
static void drop_pair(struct pair *x)
{
    gpu_free(x->a);
    gpu_free(x->b);
    gpu_free(x->bias);
    gpu_free(x->c);
    gpu_free(x->product);
    gpu_free(x->read);
    gpu_free(x->third);
    gpu_free(x->words);
    free(x->wanted);
}

static int gemm(void *arg, int i)
{
    struct pair *x = arg;
    struct mk_pair_tiles tiles;
    (void)i;
    return mk_pair_gemm(&x->p, x->spare, (uint64_t *)P(x->words), gpu_stream(), &tiles);
}
static int read_c(const struct pair *x)
{
    const struct mk_gemm_problem *p = &x->p;
    return mk_gemm(MK_NT, 128, p->n, p->m, p->dtype, P(x->third), 128, P(x->c), p->n, P(x->read), p->n, NULL,
                   gpu_stream());
}
static int pair(void *arg, int i)
{
    struct pair *x = arg;
    const struct mk_gemm_problem *p = &x->p;
    struct mk_pair_tiles tiles;
    bool over = false;
    (void)i;
    int ret = mk_pair_gemm(p, x->spare, (uint64_t *)P(x->words), gpu_stream(), &tiles);
    if (!ret)
        ret = mk_pair_allreduce(comm, P(x->c), (uint64_t)(p->m * p->n), p->dtype, x->follow ? &tiles : NULL,
                                gpu_stream(), &over);
    x->overlaps += over;
    if (!ret && x->after) /* mk_gemm's kernels have the attribute */
        ret = read_c(x);
    return ret;
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
static uint64_t hash_of(gpu_ptr p, size_t bytes)
{
    uint8_t *h = malloc(bytes);
    uint64_t v = 1;
    gpu_get(h, p, bytes);
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        uint64_t w;
        memcpy(&w, h + i, 8);
        v = (v ^ w) * 0x100000001b3ull;
        v ^= v >> 29;
    }
    free(h);
    return v;
}

static double distance(gpu_ptr x, gpu_ptr y, size_t n, mk_dtype_t dtype)
{
    uint16_t *a = malloc(n * 2), *b = malloc(n * 2);
    double diff = 0, norm = 0;
    gpu_get(a, x, n * 2);
    gpu_get(b, y, n * 2);
    for (size_t i = 0; i < n; i++) {
        const double v = gpu_value(a[i], dtype), w = gpu_value(b[i], dtype);
        diff += (v - w) * (v - w);
        norm += w * w;
    }
    free(a);
    free(b);
    return norm > 0 ? sqrt(diff / norm) : sqrt(diff);
}

/* What must come out: G's product by the exchange of GEMM+AllReduce, which is held against the contract elsewhere; and G's
 * product against mk_gemm's. Also the same on all ranks. */
static void reference(struct pair *x)
{
    const struct mk_gemm_problem *p = &x->p;
    const mk_epilogue_t bias = {p->bias, MK_ACT_NONE};
    uint64_t all[256];
    gpu_set(x->c, 0xff, x->bytes);
    if (gemm(x, 0) || mk_gemm(p->layout, p->m, p->n, p->k, p->dtype, p->a, p->lda, p->b, p->ldb,
                              P(x->product), p->n, &bias, gpu_stream()))
        fail(x->text, mk_last_error());
    finish(x->text);
    if (distance(x->c, x->product, x->bytes / 2, p->dtype) > (p->dtype == MK_BFLOAT16 ? 4e-3 : 5e-4))
        fail(x->text, "G's product is not that of mk_gemm");
    if (mk_gemm_allreduce_part(comm, MK_PART_COMM, MK_TN, p->m, p->n, 0, p->dtype, NULL, 1, NULL, 1, P(x->c),
                               p->n, NULL, gpu_stream()))
        fail(x->text, mk_last_error());
    finish(x->text);
    x->want = hash_of(x->c, x->bytes);
    x->wanted = malloc(x->bytes);
    gpu_get(x->wanted, x->c, x->bytes);
    if (read_c(x))
        fail(x->text, mk_last_error());
    finish(x->text);
    x->want_read = hash_of(x->read, (size_t)p->n * 128 * 2);
    if (mk_comm_allgather(comm, &x->want, all, 8))
        fail(x->text, mk_last_error());
    for (int r = 0; r < info.nranks && !failures; r++)
        if (all[r] != all[0])
            fail(x->text, "ranks have different bits");
}

/* Where C is not what it must be; elements of G's product (up to the order of its sums), or that nobody wrote, are told. */
static void tell(const struct pair *x)
{
    const size_t n = x->bytes / 2;
    uint16_t *c = malloc(x->bytes), *product = malloc(x->bytes);
    size_t wrong = 0, products = 0, unwritten = 0, first = 0, last = 0;
    gpu_get(c, x->c, x->bytes);
    gpu_get(product, x->product, x->bytes);
    for (size_t i = 0; i < n; i++)
        if (c[i] != x->wanted[i]) {
            const double v = gpu_value(c[i], x->p.dtype), w = gpu_value(product[i], x->p.dtype);
            first = wrong++ ? first : i;
            last = i;
            unwritten += c[i] == 0xffff;
            products += fabs(v - w) <= 0.02 * fabs(w);
        }
    printf("rank %d: %zu of %zu elements, from %zu (row %zu) to %zu (row %zu): %zu as in G's product, %zu "
           "never written\n",
           info.rank, wrong, n, first, first / (size_t)x->p.n, last, last / (size_t)x->p.n, products,
           unwritten);
    free(c);
    free(product);
}
static void check(struct pair *x, const char *how)
{
    char text[240];
    if (finish(x->text))
        return;
    const bool c = hash_of(x->c, x->bytes) == x->want;
    if (c && (!x->after || hash_of(x->read, (size_t)x->p.n * 128 * 2) == x->want_read))
        return;
    snprintf(text, sizeof(text), "%s: other bits%s", how, c ? " in what a kernel behind K read" : "");
    fail(x->text, text);
    if (!c)
        tell(x);
}

static void one_shape(mk_layout_t layout, mk_dtype_t dtype, int64_t m, int64_t n, int64_t k, bool bias,
                      int calls)
{
    struct pair x;
    make_pair(&x, layout, dtype, m, n, k, bias);
    if (!mk_pair_gemm_can(&x.p)) {
        fail(x.text, "G cannot");
        return;
    }
    reference(&x);
    for (int i = 0; i < calls && !failures; i++) {
        char how[80];
        gpu_set(x.c, 0xff, x.bytes);
        gpu_sync();
        x.follow = next(&own, 3) != 0;
        x.after = next(&own, 2);
        for (volatile int spin = next(&own, 4) ? 0 : next(&own, 300000); spin > 0; spin = spin - 1)
            ;
        const bool twice = next(&own, 4) == 0, eager = next(&own, 2);
        if (twice && gemm(&x, 0)) /* one whose collective does not come */
            fail(x.text, mk_last_error());
        if (eager) {
            if (pair(&x, 0))
                fail(x.text, mk_last_error());
        } else {
            struct gpu_graph *g = gpu_capture(pair, &x, 1);
            gpu_replay_us(g);
            gpu_graph_free(g);
        }
        snprintf(how, sizeof(how), "call %d, K %s G%s%s%s", i, x.follow ? "beside" : "after",
                 twice ? ", G twice" : "", eager ? "" : ", as a graph", x.after ? ", a kernel reads C" : "");
        check(&x, how);
    }
    drop_pair(&x);
}
static void random_shape(int calls)
{
    const mk_layout_t layout = (mk_layout_t)next(&rng, 3);
    const mk_dtype_t dtype = next(&rng, 2) ? MK_BFLOAT16 : MK_FLOAT16;
    const bool bias = next(&rng, 2);
    const int64_t rows = 1 + next(&rng, next(&rng, 3) ? 3000 : 200);
    const int64_t n = 8 * (1 + next(&rng, next(&rng, 3) ? 400 : 40)), k = 8 * (1 + next(&rng, 200));
    one_shape(layout, dtype, layout == MK_NT ? (rows + 7) / 8 * 8 : rows, n, k, bias, calls);
}

/* A graph of several pairs, replayed without a pause; its descriptors are its own. */
static int several(void *arg, int i)
{
    return pair((struct pair *)arg + i, i);
}
static void replays(int calls)
{
    enum { PAIRS = 3 };
    static const int64_t shapes[PAIRS][3] = {{1000, 2048, 512}, {4096, 1024, 256}, {300, 4096, 1024}};
    struct pair x[PAIRS];
    for (int i = 0; i < PAIRS; i++) {
        make_pair(&x[i], MK_TN, MK_BFLOAT16, shapes[i][0], shapes[i][1], shapes[i][2], false);
        reference(&x[i]);
        x[i].follow = true;
    }
    struct gpu_graph *g = gpu_capture(several, x, PAIRS);
    for (int c = 0; c < calls && !failures; c += 2) { /* the second one behind the first without a pause */
        for (int i = 0; i < PAIRS; i++)
            gpu_set(x[i].c, 0xff, x[i].bytes);
        gpu_sync();
        gpu_replay(g);
        gpu_replay(g);
        for (int i = 0; i < PAIRS; i++)
            check(&x[i], "replayed");
    }
    finish("replayed");
    int overlaps = 0;
    for (int i = 0; i < PAIRS; i++) {
        overlaps += x[i].overlaps;
        drop_pair(&x[i]);
    }
    gpu_graph_free(g);
    if (!failures && overlaps != PAIRS)
        fail("replayed", "not every K follows its tiles");
}

/* MK_VERIFY: sums of C behind G and before K, with somebody between who writes one element, or nobody. */
struct looked {
    struct pair x;
    bool intruder;
};
static int looked_at(void *arg, int i)
{
    struct looked *l = arg;
    const struct mk_gemm_problem *p = &l->x.p;
    uint64_t *words = (uint64_t *)P(l->x.words);
    struct mk_pair_tiles tiles;
    bool over = false;
    (void)i;
    int ret = mk_pair_gemm(p, 0, words, gpu_stream(), &tiles);
    if (!ret)
        ret = mk_pair_check_c(P(l->x.c), l->x.bytes, words, 0, gpu_stream());
    if (!ret && l->intruder) /* its last rows, from elsewhere: a GEMM of zeros */
        ret = mk_gemm(MK_TN, 1, 8, 64, p->dtype, P(l->x.third), 64, P(l->x.read), 64,
                      P(l->x.c + l->x.bytes - 16), 8, NULL, gpu_stream());
    if (!ret)
        ret = mk_pair_check_c(P(l->x.c), l->x.bytes, words, 3, gpu_stream());
    return ret ? ret
               : mk_pair_allreduce(comm, P(l->x.c), (uint64_t)(p->m * p->n), p->dtype, NULL, gpu_stream(),
                                   &over);
}
static void checks(int rounds)
{
    static const int64_t sizes[][2] = {{128, 64}, {1000, 2048}, {4096, 4096}};
    struct looked l;
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]) && !failures; s++) {
        make_pair(&l.x, MK_TN, MK_BFLOAT16, sizes[s][0], sizes[s][1], 256, false);
        gpu_set(l.x.read, 0, (size_t)l.x.p.n * 128 * 2);
        gpu_sync();
        for (int i = 0; i < rounds && !failures; i++) {
            l.intruder = i & 1;
            const uint64_t looked = mk_pair_checked(3, false), differed = mk_pair_checked(3, true);
            const int times = i & 2 ? 3 : 1;
            if (times == 1 && looked_at(&l, 0))
                fail(l.x.text, mk_last_error());
            if (times > 1) {
                struct gpu_graph *g = gpu_capture(looked_at, &l, 1);
                for (int r = 0; r < times; r++)
                    gpu_replay(g);
                gpu_sync();
                gpu_graph_free(g);
            }
            if (finish(l.x.text))
                return;
            if (mk_pair_checked(3, false) != looked + (uint64_t)times)
                fail(l.x.text, "C was not looked at");
            if (mk_pair_checked(3, true) != differed + (l.intruder ? (uint64_t)times : 0))
                fail(l.x.text, l.intruder ? "a change of C was not seen" : "C differs, it is said");
        }
        drop_pair(&l.x);
    }
}

/* That K was launched to start early does not say that it did: its first block is there while bands of G are missing. */
static void together(void)
{
    struct pair x;
    make_pair(&x, MK_TN, MK_BFLOAT16, 8192, 8192, 8192, false);
    const size_t bytes = mk_pair_words_bytes(8192);
    uint64_t *words = malloc(bytes);
    int missing = 0;
    reference(&x);
    x.follow = true;
    if (pair(&x, 0)) /* its kernels are on the device from now on */
        fail(x.text, mk_last_error());
    gpu_set(x.c, 0xff, x.bytes);
    gpu_sync();
    const uint64_t *begun = &comm->gpu->words->begun, before = __atomic_load_n(begun, __ATOMIC_RELAXED);
    const time_t from = time(NULL);
    if (pair(&x, 0))
        fail(x.text, mk_last_error());
    while (!failures && __atomic_load_n(begun, __ATOMIC_RELAXED) == before)
        if (time(NULL) - from > 20) {
            fail(x.text, "K does not start");
            break;
        }
    gpu_get(words, x.words, bytes); /* its stream does not wait for theirs */
    for (size_t b = MK_PAIR_HEAD; b < bytes / 8; b++)
        missing += words[b] != (words[0] << 32 | 2 * (8192 / 256));
    check(&x, "together");
    if (!failures && !missing)
        fail(x.text, "K did not start before G had ended");
    printf("rank %d: K began with %d of %zu bands of G missing\n", info.rank, missing,
           bytes / 8 - MK_PAIR_HEAD);
    free(words);
    drop_pair(&x);
}

/* ---- times ---- */

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static void times(int64_t m, int64_t n, int64_t k, int rounds)
{
    enum { WAYS = 4 };
    static const char *const names[WAYS] = {"G on all blocks", "G less K's", "G then K", "G and K"};
    double us[WAYS][101];
    struct pair x;
    struct gpu_graph *g[WAYS];
    make_pair(&x, MK_TN, MK_BFLOAT16, m, n, k, false);
    reference(&x);
    const int spare = x.spare, kept = comm->gpu->sms - mk_gpu_blocks(comm);
    for (int w = 0; w < WAYS; w++) {
        x.spare = kept + (w == 0 || w == 2 ? 0 : spare);
        x.follow = w == 3;
        g[w] = gpu_capture(w < 2 ? gemm : pair, &x, 1);
    }
    for (int r = 0; r < rounds + 2; r++)
        for (int w = 0; w < WAYS; w++) {
            mk_comm_barrier(comm);
            const double t = gpu_replay_us(g[w]);
            if (r >= 2)
                us[w][r - 2] = t;
            if (w == 3)
                check(&x, "timed");
        }
    for (int w = 0; w < WAYS; w++) {
        qsort(us[w], (size_t)rounds, sizeof(double), compare);
        if (info.rank == 0)
            printf("%ld x %ld x %ld, K on %d of %d blocks, %s: %.1f us (%.1f to %.1f, %d rounds)\n", (long)m,
                   (long)n, (long)k, spare, info.threads, names[w], us[w][rounds / 2], us[w][rounds / 10],
                   us[w][rounds * 9 / 10], rounds);
        gpu_graph_free(g[w]);
    }
    drop_pair(&x);
}

int main(int argc, char **argv)
{
    const char *why = "";
    const bool timed = argc > 4 && !strcmp(argv[1], "times"), one = argc > 8 && !strcmp(argv[1], "one");
    const bool all = !timed && !one;
    const int shapes = argc > 1 ? atoi(argv[1]) : 20, calls = argc > 2 ? atoi(argv[2]) : 200;
    rng = all && argc > 3 ? strtoull(argv[3], NULL, 0) : 1;
    if (!gpu_open(&why)) {
        printf("skip: gpu.pair: %s\n", why);
        return 77;
    }
    mk_comm_start = timed || getenv("HUNT0") ? 0 : 0xffffffffull - 60;
    if (mk_comm_init_env(&comm, NULL) || mk_comm_info(comm, &info)) {
        printf("FAIL: init: %s\n", mk_last_error());
        return 1;
    }
    own = rng * 131 + (uint64_t)info.rank;
    if (!mk_pair_blocks(comm) || !mk_gpu_hopper(comm)) {
        printf("skip: gpu.pair: no Hopper GPU for the communicator\n");
        mk_comm_destroy(comm);
        return 77;
    }
    const int rounds = timed && argc > 5 ? atoi(argv[5]) : 31;
    if (timed)
        times(atoll(argv[2]), atoll(argv[3]), atoll(argv[4]), rounds < 1 ? 1 : rounds > 101 ? 101 : rounds);
    if (one)
        one_shape((mk_layout_t)atoi(argv[2]), (mk_dtype_t)atoi(argv[3]), atoll(argv[4]), atoll(argv[5]),
                  atoll(argv[6]), atoi(argv[7]) != 0, atoi(argv[8]));
    for (int i = 0; all && i < shapes && !failures; i++)
        random_shape(12);
    if (all && !failures)
        together();
    if (all && !failures)
        replays(calls);
    if (all && !failures)
        checks(12);
    printf("rank %d of %d (%d nodes): %d failures\n", info.rank, info.nranks, info.nnodes, failures);
    mk_comm_destroy(comm);
    return failures ? 1 : 0;
}
