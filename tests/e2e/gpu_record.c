/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#include "gpu_record.h"
#include "mk/pair_run.h"
#include "ops/gemm_ar.h"
#include "ops/pair_check.h"
#include <stdlib.h>
#include <string.h>

struct gpu_record gpu;
static struct mk_cuda driver; /* what it does itself */

static struct gpu_step *step(enum gpu_what what, void *stream)
{
    if (gpu.steps == (int)(sizeof(gpu.step) / sizeof(gpu.step[0])))
        abort();
    struct gpu_step *s = &gpu.step[gpu.steps++];
    memset(s, 0, sizeof(*s));
    s->what = what;
    s->stream = stream;
    return s;
}

void gpu_forget(void)
{
    gpu.steps = gpu.launches = gpu.nchecks = 0;
    memset(&gpu.last, 0, sizeof(gpu.last));
}

/* ---- kernels ---- */

static int load(void **library, const void *code, void *jit, void *jit_values, unsigned njit, void *options,
                void *values, unsigned n)
{
    (void)jit, (void)jit_values, (void)njit, (void)options, (void)values, (void)n;
    *library = (void *)(uintptr_t)code;
    return 0;
}
static int kernel_of(void **kernel, void *library, const char *name)
{
    (void)library;
    *kernel = strdup(name); /* for the life of the process, as the library is */
    return 0;
}
static int function_of(void **function, void *kernel)
{
    *function = kernel;
    return 0;
}
static int set_attribute(int attribute, int value, void *kernel, int device)
{
    (void)attribute, (void)value, (void)kernel, (void)device;
    return 0;
}
static size_t parameter_bytes(const char *name)
{
    return !strncmp(name, "pair_allreduce", 14)     ? 256 + sizeof(struct mk_ar)
           : !strncmp(name, "pair_gemm", 9)         ? 520
           : !strcmp(name, "pair_check")            ? sizeof(struct mk_check)
           : !strncmp(name, "gemm_ar_ll", 10)       ? 0
           : !strncmp(name, "gemm_ar_portable", 16) ? sizeof(struct mk_ar)
           : !strncmp(name, "gemm_ar", 7)           ? 1792 + sizeof(struct mk_ar)
                                                    : 0;
}
void gpu_check(const struct gpu_launch *l)
{
    struct mk_check k;
    memcpy(&k, l->args, sizeof(k));
    for (uint32_t block = 0; block < l->grid; block++) {
        uint64_t sum = 0;
        for (uint64_t i = block; i < k.n; i += l->grid)
            sum += mk_check_mix(k.c[2 * i], k.c[2 * i + 1], i);
        mk_check_end(&k, sum, l->grid);
    }
}
static int launch(const struct mk_cu_launch *c, void *kernel, void **params, void **extra)
{
    struct gpu_launch *l = &gpu.last;
    (void)extra;
    if (gpu.fail_launch)
        return 1;
    memset(l, 0, sizeof(*l));
    l->name = kernel;
    l->grid = c->grid[0];
    l->threads = c->block[0];
    l->smem = c->smem;
    l->stream = c->stream;
    l->cluster = 1;
    for (uint32_t i = 0; i < c->nattrs; i++) {
        if (c->attrs[i].id == MK_CU_LAUNCH_PROGRAMMATIC)
            l->early = c->attrs[i].value.programmatic != 0;
        if (c->attrs[i].id == MK_CU_LAUNCH_CLUSTER)
            l->cluster = c->attrs[i].value.cluster[0];
    }
    memcpy(l->args, params[0], parameter_bytes(kernel));
    gpu.launches++;
    step(GPU_LAUNCH, c->stream)->name = kernel;
    gpu.node += c->stream == gpu.capturing;
    if (!strcmp(l->name, "pair_check")) {
        if (c->stream != gpu.capturing)
            gpu_check(l);
        else if (gpu.nchecks < (int)(sizeof(gpu.checks) / sizeof(gpu.checks[0])))
            gpu.checks[gpu.nchecks++] = *l;
    }
    return 0;
}
static int map(struct mk_cu_map *out, int type, uint32_t rank, void *address, const uint64_t *dims,
               const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
               int swizzle, int l2, int oob)
{
    (void)type, (void)address, (void)strides, (void)steps, (void)interleave, (void)swizzle, (void)l2,
        (void)oob;
    if ((uintptr_t)out % 64) /* what the driver refuses, or may */
        return 1;
    memset(out, 0, sizeof(*out));
    for (uint32_t i = 0; i < rank; i++)
        if (!dims[i] || !box[i] || box[i] > 256)
            return 1;
    return 0;
}

/* ---- streams, events, memory ---- */

static int context_of(void *stream, void **ctx)
{
    (void)stream;
    return driver.ctx_current(ctx);
}
static int event_record_flags(void *event, void *stream, unsigned flags)
{
    if (gpu.fail_order)
        return 1;
    struct gpu_step *s = step(GPU_EVENT, stream);
    s->event = event;
    s->flags = flags;
    return 0;
}
static int event_record(void *event, void *stream)
{
    return event_record_flags(event, stream, 0);
}
static int wait_event(void *stream, void *event, unsigned flags)
{
    if (gpu.fail_order)
        return 1;
    struct gpu_step *s = step(GPU_WAIT, stream);
    s->event = event;
    s->flags = flags;
    return 0;
}
static int over(void *event)
{
    (void)event;
    return __atomic_load_n(&gpu.busy, __ATOMIC_ACQUIRE) ? MK_CU_NOT_READY : 0;
}
/* A millisecond for each thing that was recorded between them. */
static int elapsed(float *ms, void *from, void *to)
{
    int begin = -1, end = -1;
    for (int i = 0; i < gpu.steps; i++) {
        const bool event = gpu.step[i].what == GPU_EVENT;
        begin = event && gpu.step[i].event == from ? i : begin;
        end = event && gpu.step[i].event == to ? i : end;
    }
    if (begin < 0 || end < 0)
        return 400; /* never recorded */
    *ms = (float)(end - begin);
    return over(to);
}
static void *copying; /* a stream that nobody has waited for since its last copy */
static int copy(mk_cu_ptr to, mk_cu_ptr from, size_t bytes, void *stream)
{
    if (gpu.fail_copy)
        return 1;
    struct gpu_step *s = step(GPU_COPY, stream);
    s->to = to;
    s->from = from;
    s->n = bytes;
    copying = stream;
    return driver.copy(to, from, bytes, stream);
}
static int stream_sync(void *stream)
{
    copying = stream == copying ? NULL : copying;
    return driver.stream_sync(stream);
}
static int stream_destroy(void *stream)
{
    gpu.hasty += stream == copying; /* the driver would not wait */
    return driver.stream_destroy(stream);
}
static int mem_alloc(mk_cu_ptr *p, size_t bytes)
{
    const int ret = driver.mem_alloc(p, bytes);
    if (!ret && bytes <= 1 << 20)
        memset((void *)(uintptr_t)*p, 0xa5, bytes);
    return ret;
}

/* ---- captures and graphs ---- */

static int capturing(void *stream, int *status)
{
    *status = stream == gpu.capturing && stream;
    return 0;
}
static int capture_info(void *stream, int *status, uint64_t *id, void **graph, void *const **deps, size_t *n)
{
    static void *node;
    capturing(stream, status);
    if (*status) {
        node = (void *)gpu.node;
        *id = gpu.capture;
        *graph = gpu.graph;
        *deps = &node;
        *n = gpu.node != 0;
    }
    return 0;
}
static int capture_depend(void *stream, void **deps, size_t n, unsigned flags)
{
    if (stream != gpu.capturing)
        return 1;
    struct gpu_step *s = step(GPU_DEPEND, stream);
    s->node = n ? deps[0] : NULL;
    s->n = n;
    s->flags = flags;
    gpu.node = (uintptr_t)s->node;
    return 0;
}

static struct object {
    struct object *next;
    void *p, *graph;
    void (*destroy)(void *);
    unsigned count, kept; /* references of the maker, of the graph */
} * objects;

static void sweep(void)
{
    struct object **at = &objects;
    while (*at) {
        struct object *o = *at;
        if (o->count + o->kept) {
            at = &o->next;
            continue;
        }
        *at = o->next;
        o->destroy(o->p);
        free(o);
        gpu.objects--;
    }
}
static int user_object(void **object, void *p, void (*destroy)(void *), unsigned count, unsigned flags)
{
    if (gpu.fail_object || !count || flags != MK_CU_NO_DESTRUCTOR_SYNC)
        return 1;
    struct object *o = calloc(1, sizeof(*o));
    if (!o)
        abort();
    *o = (struct object){objects, p, NULL, destroy, count, 0};
    *object = objects = o;
    gpu.objects++;
    return 0;
}
static int user_object_release(void *object, unsigned count)
{
    struct object *o = object;
    if (count > o->count)
        return 1;
    o->count -= count;
    sweep();
    return 0;
}
static int graph_retain(void *graph, void *object, unsigned count, unsigned flags)
{
    struct object *o = object;
    if (gpu.fail_retain || (flags == MK_CU_GRAPH_MOVE && count > o->count))
        return 1;
    o->graph = graph;
    o->kept += count;
    o->count -= flags == MK_CU_GRAPH_MOVE ? count : 0;
    return 0;
}
void gpu_graph_destroy(void *graph)
{
    for (struct object *o = objects; o; o = o->next)
        if (o->graph == graph)
            o->kept = 0;
    sweep();
}

struct mk_cuda *gpu_record(void)
{
    struct mk_cuda *cu = (struct mk_cuda *)(uintptr_t)mk_cuda_open(NULL);
    if (!cu || cu->ctx_set((void *)(uintptr_t)1))
        return NULL;
    driver = *cu;
    cu->library_load = load;
    cu->library_kernel = kernel_of;
    cu->kernel_function = function_of;
    cu->kernel_set_attribute = set_attribute;
    cu->launch = launch;
    cu->tensor_map = map;
    cu->stream_capturing = capturing;
    cu->stream_wait_event = wait_event;
    cu->stream_ctx = context_of;
    cu->event_record = event_record;
    cu->event_record_flags = event_record_flags;
    cu->event_query = over;
    cu->event_elapsed = elapsed;
    cu->copy = copy;
    cu->stream_sync = stream_sync;
    cu->stream_destroy = stream_destroy;
    cu->mem_alloc = mem_alloc;
    cu->capture_info = capture_info;
    cu->capture_depend = capture_depend;
    cu->user_object = user_object;
    cu->user_object_release = user_object_release;
    cu->graph_retain = graph_retain;
    return cu;
}
