/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* A GEMM and the AllReduce of its output as two kernels that run at the same time (ops/pair_tiles.h), on the CPU executor: G
 * is threads that bring the tiles of a product in any order and at any time, K the real one. The sum has the bits of
 * mk_gemm_allreduce whether a rank's K follows its tiles or comes after them, which is another choice on every rank.
 * Usage: pair loop|ofi. */
#include "fused/pair_run.h"
#include "job.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#define THREADS 2
#define TILE_N 48

static const char *transport = "loop";

/* M, N, K, rows of a band. Bands share rows of K's view, or are less than one, or many; large and small follow each other,
 * since words of an earlier G are still there. */
static const struct shape {
    int m, n, k, band;
    bool follows; /* a band is whole rows of K's view */
} shapes[] = {{256, 320, 16, 32, true}, {64, 64, 8, 16, true},  {520, 96, 8, 8, true},
              {1, 256, 8, 1, true},     {256, 3, 8, 5, false},  {33, 35, 4, 7, true},
              {1000, 64, 4, 64, true},  {31, 1024, 8, 4, true}, {300, 7, 4, 30, false}};
#define NSHAPES ((int)(sizeof(shapes) / sizeof(shapes[0])))

enum way { PLAIN, UNTOLD, FOLLOW, WAYS }; /* after G, without its tiles; after it, with them; beside it */

/* G: copies the product's tiles into C, each thread its own in an order of its own. */
struct g {
    const struct shape *s;
    size_t elem;
    const uint8_t *product;
    uint8_t *c;
    uint64_t *words, seed;
    uint32_t columns;
    pthread_barrier_t begun;
    int thread;          /* taken by the threads; atomic */
    const int *withhold; /* not NULL: the last band stays away while it is 0; atomic */
};

static uint64_t next(uint64_t *x)
{
    *x ^= *x << 13;
    *x ^= *x >> 7;
    *x ^= *x << 17;
    return *x;
}
static void nap(uint64_t us)
{
    const struct timespec t = {0, (long)us * 1000};
    nanosleep(&t, NULL);
}

static void bring(const struct g *g, uint32_t tag, uint32_t band, uint32_t column)
{
    const struct shape *s = g->s;
    const int from = (int)column * TILE_N, to = from + TILE_N < s->n ? from + TILE_N : s->n;
    for (int i = (int)band * s->band; i < ((int)band + 1) * s->band && i < s->m; i++) {
        const size_t at = ((size_t)i * (size_t)s->n + (size_t)from) * g->elem;
        memcpy(g->c + at, g->product + at, (size_t)(to - from) * g->elem);
    }
    mk_pair_done(g->words, tag, band, 1);
}

static void *g_thread(void *arg)
{
    struct g *g = arg;
    const uint32_t me = (uint32_t)__atomic_fetch_add(&g->thread, 1, __ATOMIC_RELAXED);
    const uint32_t bands = (uint32_t)((g->s->m + g->s->band - 1) / g->s->band), tiles = bands * g->columns;
    uint64_t rng = g->seed * 2 + me + 1;
    const uint32_t tag = mk_pair_begin(g->words, THREADS);
    pthread_barrier_wait(&g->begun); /* as launch_dependents: K starts when all have begun */
    const uint32_t mine = tiles > me ? (tiles - me - 1) / THREADS + 1 : 0,
                   shift = mine ? (uint32_t)(next(&rng) % mine) : 0;
    for (uint32_t i = 0; i < mine; i++) {
        const uint32_t tile = me + THREADS * ((i + shift) % mine), band = tile / g->columns;
        while (g->withhold && band == bands - 1 && !__atomic_load_n(g->withhold, __ATOMIC_ACQUIRE))
            nap(1000);
        if (next(&rng) % 8 == 0)
            nap(next(&rng) % 300);
        bring(g, tag, band, tile % g->columns);
    }
    return NULL;
}

struct buffers {
    void *a, *b;
    uint8_t *product, *fused, *c;
};

/* Inputs of this rank, its product alone, and what the fused operator makes of them: what K must leave. */
static int prepare(mk_comm_t comm, int rank, const struct shape *s, int dtype, unsigned long seed,
                   struct buffers *x)
{
    const size_t elem = dtype ? 2 : 4, bytes = (size_t)s->m * (size_t)s->n * elem;
    x->a = malloc((size_t)s->m * (size_t)s->k * elem);
    x->b = malloc((size_t)s->n * (size_t)s->k * elem);
    x->product = malloc(bytes);
    x->fused = malloc(bytes);
    x->c = malloc(bytes);
    job_fill(x->a, dtype, (long)s->m * s->k, seed * 100 + (unsigned long)rank);
    job_fill(x->b, dtype, (long)s->n * s->k, seed * 100 + (unsigned long)rank + 50);
    int ret = mk_gemm(MK_TN, s->m, s->n, s->k, (mk_dtype_t)dtype, x->a, s->k, x->b, s->k, x->product, s->n,
                      NULL, NULL);
    if (!ret)
        ret = mk_gemm_allreduce(comm, MK_TN, s->m, s->n, s->k, (mk_dtype_t)dtype, x->a, s->k, x->b, s->k,
                                x->fused, s->n, NULL, NULL);
    memset(x->c, 0xff, bytes); /* NaN: who does not wait for a tile shows it */
    return ret;
}
static void release(struct buffers *x)
{
    free(x->a);
    free(x->b);
    free(x->product);
    free(x->fused);
    free(x->c);
}

static void start(struct g *g, pthread_t *threads)
{
    pthread_barrier_init(&g->begun, NULL, THREADS + 1);
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, g_thread, g))
            abort();
    pthread_barrier_wait(&g->begun);
}
static void join(struct g *g, const pthread_t *threads)
{
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&g->begun);
}

static int wrong(struct job *j, int rank, const struct shape *s, int way, const char *what)
{
    snprintf(j->r[rank].text, sizeof(j->r[rank].text), "%d x %d x %d, bands of %d, way %d: %s", s->m, s->n,
             s->k, s->band, way, what);
    return 3;
}

static int one_pair(struct job *j, int rank, mk_comm_t comm, const struct shape *s, int dtype,
                    unsigned long seed, uint64_t *words)
{
    struct buffers x;
    pthread_t threads[THREADS];
    uint64_t rng = seed * 31 + (uint64_t)rank + 1;
    const int way = (int)(next(&rng) >> 20) % WAYS;
    bool overlapped = false;
    int ret = prepare(comm, rank, s, dtype, seed, &x);
    struct g g = {.s = s,
                  .elem = dtype ? 2 : 4,
                  .product = x.product,
                  .c = x.c,
                  .words = words,
                  .seed = next(&rng),
                  .columns = (uint32_t)((s->n + TILE_N - 1) / TILE_N)};
    const struct mk_pair_tiles tiles = {words, s->m, s->n, s->band, g.columns};
    const bool beside = way == FOLLOW && s->follows;
    if (ret) {
        release(&x);
        return job_failed(j, rank, ret);
    }
    if (next(&rng) % 4 == 0) { /* a GEMM whose collective does not come */
        start(&g, threads);
        join(&g, threads);
        memset(x.c, 0xff, (size_t)s->m * (size_t)s->n * g.elem);
        g.thread = 0;
    }
    start(&g, threads);
    if (!beside)
        join(&g, threads);
    ret = mk_pair_allreduce(comm, x.c, (uint64_t)s->m * (uint64_t)s->n, (mk_dtype_t)dtype,
                            way == PLAIN ? NULL : &tiles, NULL, &overlapped);
    if (beside)
        join(&g, threads);
    if (ret)
        ret = job_failed(j, rank, ret);
    else if (overlapped != (way != PLAIN && s->follows))
        ret = wrong(j, rank, s, way, overlapped ? "followed tiles" : "did not follow");
    else if (memcmp(x.c, x.fused, (size_t)s->m * (size_t)s->n * g.elem))
        ret = wrong(j, rank, s, way, "other bits than mk_gemm_allreduce");
    j->r[rank].hash[way]++;
    release(&x);
    return ret;
}

static int pairs(struct job *j, int rank)
{
    const int rounds = *(const int *)j->arg;
    uint64_t *words = calloc(MK_PAIR_HEAD + 1024, sizeof(*words));
    mk_comm_t comm;
    int ret = mk_comm_init_env(&comm, NULL);
    if (ret)
        return job_failed(j, rank, ret);
    words[0] = UINT32_MAX - 5; /* the tag wraps in the run */
    for (int i = 0; i < rounds * NSHAPES && !ret; i++) {
        ret = one_pair(j, rank, comm, &shapes[i % NSHAPES], i / NSHAPES % 2, (unsigned long)i + 1, words);
        job_beat(j, rank);
    }
    free(words);
    return ret ? ret : mk_comm_destroy(comm) ? 2 : 0;
}

static void same_bits(void **state)
{
    (void)state;
    static const int topo[][2] = {{1, 2}, {2, 1}, {2, 2}, {3, 1}, {1, 1}};
    int rounds = JOB_SLOWER > 1 ? 2 : 4;
    for (size_t t = 0; t < sizeof(topo) / sizeof(topo[0]); t++) {
        struct job *j = job_create(topo[t][0], topo[t][1], 60);
        unsigned long ways[WAYS] = {0};
        const int bad = job_run(j, pairs, &rounds);
        for (int r = 0; r < j->n; r++) {
            if (j->r[r].status)
                fail_msg("%s %dx%d: rank %d status %d code %d: %s", transport, j->nodes, j->local, r,
                         j->r[r].status, j->r[r].code, j->r[r].text);
            for (int w = 0; w < WAYS; w++)
                ways[w] += j->r[r].hash[w];
        }
        assert_int_equal(bad, 0);
        for (int w = 0; w < WAYS; w++)
            assert_true(ways[w] > 0);
        job_destroy(j);
    }
}

/* Rank 1 is killed while rank 0's K waits for tiles of its own, which come only when K has given up. */
static int forsaken(struct job *j, int rank)
{
    static const struct shape s = {256, 320, 16, 32, true};
    uint64_t *words = calloc(MK_PAIR_HEAD + 1024, sizeof(*words));
    int given_up = 0;
    pthread_t threads[THREADS];
    struct buffers x;
    mk_comm_t comm;
    int ret = mk_comm_init_env(&comm, NULL);
    if (!ret)
        ret = prepare(comm, rank, &s, 0, 7, &x);
    if (ret)
        return job_failed(j, rank, ret);
    job_stage(j, rank, 1); /* rank 1 may die from here on */
    for (; rank == 1;)
        pause();
    struct g g = {.s = &s,
                  .elem = 4,
                  .product = x.product,
                  .c = x.c,
                  .words = words,
                  .columns = (320 + TILE_N - 1) / TILE_N};
    g.withhold = &given_up;
    const struct mk_pair_tiles tiles = {words, s.m, s.n, s.band, g.columns};
    start(&g, threads);
    ret = mk_pair_allreduce(comm, x.c, (uint64_t)s.m * (uint64_t)s.n, MK_FLOAT32, &tiles, NULL, NULL);
    __atomic_store_n(&given_up, 1, __ATOMIC_RELEASE);
    join(&g, threads);
    job_failed(j, rank, ret);
    release(&x);
    free(words);
    mk_comm_destroy(comm);
    return ret == MK_ERR_PEER ? 0 : 4;
}

static void a_dead_peer_ends_it(void **state)
{
    (void)state;
    struct job *j = job_create(1, 2, 60);
    job_start(j, forsaken, NULL);
    for (int r = 0; r < 2; r++) {
        for (int i = 0; i < 3000 && !__atomic_load_n(&j->r[r].stage, __ATOMIC_ACQUIRE); i++)
            nap(10000);
        assert_int_equal(j->r[r].stage, 1);
    }
    kill(j->r[1].pid, SIGKILL);
    job_wait(j);
    if (j->r[0].status)
        fail_msg("rank 0: status %d code %d: %s", j->r[0].status, j->r[0].code, j->r[0].text);
    assert_int_equal(j->r[1].status, JOB_DEAD);
    job_destroy(j);
}

static void arguments(void **state)
{
    (void)state;
    float c[64] = {0};
    mk_comm_t comm;
    unsetenv("MK_ROOT");
    assert_int_equal(mk_comm_init_alone(&comm), 0);
    assert_int_equal(mk_pair_allreduce(comm, c, 0, MK_FLOAT32, NULL, NULL, NULL), 0);
    assert_int_equal(mk_pair_allreduce(comm, NULL, 64, MK_FLOAT32, NULL, NULL, NULL), MK_ERR_INVALID);
    assert_int_equal(mk_pair_allreduce(comm, (char *)c + 1, 8, MK_FLOAT32, NULL, NULL, NULL), MK_ERR_INVALID);
    assert_int_equal(mk_pair_allreduce(comm, c, UINT64_MAX, MK_FLOAT32, NULL, NULL, NULL), MK_ERR_INVALID);
    assert_int_equal(mk_pair_allreduce(comm, c, (uint64_t)1 << 62, MK_FLOAT32, NULL, NULL, NULL),
                     MK_ERR_UNSUPPORTED);
    assert_int_equal(mk_pair_allreduce(comm, c, 64, MK_FLOAT16, NULL, NULL, NULL), MK_ERR_UNSUPPORTED);
    assert_int_equal(mk_pair_allreduce(NULL, c, 64, MK_FLOAT32, NULL, NULL, NULL), MK_ERR_INVALID);
    assert_int_equal(mk_comm_destroy(comm), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_bits), cmocka_unit_test(a_dead_peer_ends_it),
                                       cmocka_unit_test(arguments)};
    if (argc > 1)
        transport = argv[1];
    setenv("MK_NET", transport, 1);
    job_seconds("MK_TIMEOUT", 20);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
