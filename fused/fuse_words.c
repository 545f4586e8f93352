/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Descriptors come from slabs, which stay: a graph that is destroyed gives its own back without a call of CUDA (its destructor
 * may make none), and what a stream had counts on for the next one (ops/pair_tiles.h). */
#include "fuse_in.h"
#include "mk/pair.h"
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { STREAMS = 256, PER_SLAB = 64, REMEMBERED = 64 };

struct slab {
    struct slab *next;
    void *ctx;
    mk_cu_ptr memory;
    uint64_t taken; /* a bit each; under `lock` */
};
struct own { /* of a graph */
    struct slab *slab;
    uint32_t at;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* destructors of graphs come from any thread */
static struct slab *slabs;
static struct {
    void *ctx;
    uint64_t *words;
} of_stream[STREAMS];
static struct mk_fuse_last last_of[STREAMS];
static struct {
    uint64_t generation;
    struct mk_fuse_last last;
} captured[REMEMBERED];

static size_t bytes_each(void)
{
    return (mk_pair_words_bytes(MK_FUSE_MAX_M) + 255) / 256 * 256;
}

/* Zeroed, before anything can be launched on it. Also beside a capture: nothing here is on a stream that could be in one. */
static struct slab *new_slab(const struct mk_cuda *cu, void *ctx)
{
    const size_t bytes = PER_SLAB * bytes_each();
    struct slab *s = calloc(1, sizeof(*s));
    void *zero = calloc(1, bytes), *stream = NULL;
    int relaxed = MK_CU_CAPTURE_RELAXED, err = !s || !zero;
    cu->capture_mode(&relaxed);
    if (!err)
        err = cu->stream_create(&stream, MK_CU_STREAM_NON_BLOCKING);
    if (!err)
        err = cu->mem_alloc(&s->memory, bytes);
    if (!err)
        err = cu->copy(s->memory, (mk_cu_ptr)(uintptr_t)zero, bytes, stream);
    if (!err)
        err = cu->stream_sync(stream);
    if (stream)
        cu->stream_destroy(stream);
    if (err && s && s->memory)
        cu->mem_free(s->memory);
    cu->capture_mode(&relaxed);
    free(zero);
    if (err) {
        free(s);
        return NULL;
    }
    s->ctx = ctx;
    s->next = slabs;
    return slabs = s;
}

static uint64_t *take(const struct mk_cuda *cu, void *ctx, struct own *out)
{
    pthread_mutex_lock(&lock);
    struct slab *s = slabs;
    while (s && (s->ctx != ctx || s->taken == UINT64_MAX))
        s = s->next;
    if (!s)
        s = new_slab(cu, ctx);
    if (s) {
        out->slab = s;
        out->at = (uint32_t)__builtin_ctzll(~s->taken);
        s->taken |= 1ull << out->at;
    }
    pthread_mutex_unlock(&lock);
    return s ? (uint64_t *)(uintptr_t)(s->memory + out->at * bytes_each()) : NULL;
}

static void give_back(void *p)
{
    struct own *o = p;
    pthread_mutex_lock(&lock);
    o->slab->taken &= ~(1ull << o->at);
    pthread_mutex_unlock(&lock);
    free(o);
}

uint64_t *mk_fuse_words(const struct mk_cuda *cu, int32_t descriptor)
{
    void *ctx = NULL;
    struct own own;
    if (descriptor < 0 || descriptor >= STREAMS || cu->ctx_current(&ctx) || !ctx)
        return NULL;
    if (of_stream[descriptor].ctx != ctx) { /* those of another context are lost: few, once each */
        of_stream[descriptor].words = take(cu, ctx, &own);
        of_stream[descriptor].ctx = of_stream[descriptor].words ? ctx : NULL;
    }
    return of_stream[descriptor].words;
}

uint64_t *mk_fuse_graph_words(const struct mk_cuda *cu, void *stream)
{
    int status = 0;
    uint64_t id;
    size_t n;
    void *ctx = NULL, *graph = NULL, *object = NULL, *const * deps;
    struct own *own = malloc(sizeof(*own));
    uint64_t *words = NULL;
    if (own && !cu->ctx_current(&ctx) && ctx && !cu->capture_info(stream, &status, &id, &graph, &deps, &n) &&
        status == 1)
        words = take(cu, ctx, own);
    if (!words) {
        free(own);
        return NULL;
    }
    if (cu->user_object(&object, own, give_back, 1, MK_CU_NO_DESTRUCTOR_SYNC)) {
        give_back(own);
        return NULL;
    }
    if (cu->graph_retain(graph, object, 1, MK_CU_GRAPH_MOVE)) {
        cu->user_object_release(object, 1); /* its destructor gives them back */
        return NULL;
    }
    return words;
}

void mk_fuse_told(int32_t descriptor, uint64_t generation, const struct mk_fuse_last *last)
{
    if (descriptor >= 0 && descriptor < STREAMS) {
        last_of[descriptor] = *last;
        return;
    }
    captured[generation % REMEMBERED].generation = generation;
    captured[generation % REMEMBERED].last = *last;
}

const struct mk_fuse_last *mk_fuse_last(int32_t descriptor, uint64_t generation)
{
    if (descriptor >= 0)
        return descriptor < STREAMS && last_of[descriptor].tiles.words ? &last_of[descriptor] : NULL;
    return captured[generation % REMEMBERED].generation == generation
               ? &captured[generation % REMEMBERED].last
               : NULL;
}
