/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* GEMM on the GPU: choice of kernel, tensor maps, launch. Kernels: gemm.cu. */
#include "cuda/block.h"
#include "cuda/gemm.h"
#include "mk/err.h"
#include "mk/log.h"
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define BOX_BYTES 2048 /* tile/bulk_sm90.cuh */
#define BOX_MOST 256

/* Kernel parameters: the same words as the structs of tile/gemm_sm90.cuh, gemm_skinny_sm90.cuh, gemm_portable.cuh. */
struct portable_params {
    const void *a, *b, *bias;
    void *c;
    int64_t lda, ldb, ldc;
    int32_t m, n, k, act, layout, group;
};

/* ---- choice ---- */

static bool map_fits(const void *p, int64_t ld)
{
    return (uintptr_t)p % 16 == 0 && ld % 8 == 0;
}

bool mk_gemm_cuda_bulk(const struct mk_gemm_problem *p)
{
    return p->m > 0 && p->n > 0 && p->k > 0 && map_fits(p->a, p->lda) && map_fits(p->b, p->ldb) &&
           map_fits(p->c, p->ldc) && p->n % 8 == 0;
}

static int64_t up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Expected time of a tile configuration in units of one 16-deep matrix step of 128 x 256: waves x (steps + what a
 * tile costs besides). Smaller tiles feed the matrix unit less well. Constants from measurements: tile/NOTES.md. */
static double big_cost(const struct mk_gemm_problem *p, int bn, int cm, int blocks)
{
    const double rate = bn == 256 ? 1.0 : bn == 192 ? 0.98 : bn == 128 ? 0.88 : 0.69;
    const int64_t tiles = up(p->m, 128 * cm) * up(p->n, bn), units = blocks / cm;
    if (!units)
        return 1e30;
    return (double)up(tiles, units) * ((double)up(p->k, 64) * 4 * bn / 256 / rate + (cm == 2 ? 8 : 6));
}

static void choose_big(const struct mk_gemm_problem *p, int blocks, struct mk_gemm_choice *out)
{
    static const int shapes[][2] = {{256, 1}, {256, 2}, {192, 1}, {128, 1}, {64, 1}};
    double best = 1e31;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        const double cost = big_cost(p, shapes[i][0], shapes[i][1], blocks);
        if (cost < best) {
            best = cost;
            out->bn = shapes[i][0];
            out->cm = shapes[i][1];
        }
    }
}

/* One block a multiprocessor of the 132: K in two parts where that still fits. From the shape alone, since the factor
 * belongs to the numerics key. */
static void choose_skinny(const struct mk_gemm_problem *p, struct mk_gemm_choice *out)
{
    out->bn = p->m <= 8 ? 8 : p->m <= 16 ? 16 : p->m <= 32 ? 32 : 64;
    out->splits = up(p->n, 64) * 2 <= 132 && up(p->k, 64) >= 8 ? 2 : 1;
    out->group = 4;
}

void mk_gemm_choose(const struct mk_gemm_problem *p, bool hopper, int blocks, int bands,
                    struct mk_gemm_choice *out)
{
    struct mk_gemm_choice c;
    memset(&c, 0, sizeof(c));
    c.blocks = blocks;
    c.kind = MK_GEMM_PORTABLE;
    c.cm = c.splits = 1;
    const bool in = p->k > 0 && map_fits(p->a, p->lda) && map_fits(p->b, p->ldb);
    if (hopper && in && p->m <= 64 && p->layout != MK_NT && !bands) {
        c.kind = MK_GEMM_SKINNY;
        choose_skinny(p, &c);
    } else if (hopper && in && map_fits(p->c, p->ldc) && p->n % 8 == 0) {
        /* n: the copy engine stores whole 16 bytes, also where the row ends within them (measured) */
        c.kind = MK_GEMM_BIG;
        choose_big(p, blocks, &c);
        c.group = bands ? bands : 16 / c.cm;
    }
    *out = c;
}

/* ---- kernels ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *library[MK_IMAGES];
static struct kernel {
    char name[32];
    void *kernel;
    uint64_t prepared; /* one bit a device */
} kernels[128];
static int nkernels;

/* The kernel by name, loaded for the current device with its shared memory. Outside of any capture's rules: loading
 * is no work of a stream. */
static const uint8_t *image_of(enum mk_image image)
{
    static const uint8_t *const images[MK_IMAGES] = {mk_kernels_gemm_bf16,
                                                     mk_kernels_gemm_fp16,
                                                     mk_kernels_gemm_ar_bf16,
                                                     mk_kernels_gemm_ar_fp16,
                                                     mk_kernels_gemm_ar_portable_bf16,
                                                     mk_kernels_gemm_ar_portable_fp16,
                                                     mk_kernels_gemm_ar_ll_bf16,
                                                     mk_kernels_gemm_ar_ll_fp16,
                                                     mk_kernels_pair_bf16,
                                                     mk_kernels_pair_fp16,
                                                     mk_kernels_pair_check};
    return images[image];
}

static int find_kernel(const struct mk_cuda *cu, const char *name, enum mk_image image, int smem, void **out)
{
    int err = 0, device, relaxed = MK_CU_CAPTURE_RELAXED;
    struct kernel *k = NULL;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < nkernels; i++)
        if (!strcmp(kernels[i].name, name))
            k = &kernels[i];
    err = cu->ctx_device(&device);
    if (!err && k && device < 64 && k->prepared >> device & 1)
        goto out;
    cu->capture_mode(&relaxed);
    if (!err && !library[image])
        err = cu->library_load(&library[image], image_of(image), NULL, NULL, 0, NULL, NULL, 0);
    if (!err && !k && nkernels < (int)(sizeof(kernels) / sizeof(kernels[0]))) {
        k = &kernels[nkernels];
        err = cu->library_kernel(&k->kernel, library[image], name);
        if (!err) {
            snprintf(k->name, sizeof(k->name), "%s", name);
            k->prepared = 0;
            nkernels++;
        }
    }
    void *function;
    if (!err && smem > 48 * 1024)
        err = cu->kernel_set_attribute(MK_CU_FUNC_DYNAMIC_SMEM, smem, k->kernel, device);
    if (!err)
        err = cu->kernel_function(&function, k->kernel); /* loads it now */
    if (!err && device < 64)
        k->prepared |= 1ull << device;
    cu->capture_mode(&relaxed);
out:
    pthread_mutex_unlock(&lock);
    if (err)
        return mk_cuda_fail(err, name);
    *out = k->kernel;
    return 0;
}

int mk_cuda_load(const struct mk_cuda *cu, enum mk_image image, const char *name, int smem)
{
    void *kernel;
    return find_kernel(cu, name, image, smem, &kernel);
}

/* A map over x [rows, cols] (cols contiguous, row stride ld), in boxes of box_rows x box_cols. */
static int make_map_as(const struct mk_cuda *cu, struct mk_cu_map *map, const struct mk_gemm_problem *p,
                       const void *x, int64_t rows, int64_t cols, int64_t ld, uint32_t box_rows,
                       uint32_t box_cols, int swizzle)
{
    const uint64_t dims[2] = {(uint64_t)cols, (uint64_t)rows}, strides[1] = {(uint64_t)ld * 2};
    const uint32_t box[2] = {box_cols, box_rows}, steps[2] = {1, 1};
    const int err =
        cu->tensor_map(map, p->dtype == MK_FLOAT16 ? MK_CU_MAP_FLOAT16 : MK_CU_MAP_BFLOAT16, 2,
                       (void *)(uintptr_t)x, dims, strides, box, steps, 0, swizzle, MK_CU_MAP_L2_256B, 0);
    return err ? mk_cuda_fail(err, "tensor map") : 0;
}

static int make_map(const struct mk_cuda *cu, struct mk_cu_map *map, const struct mk_gemm_problem *p,
                    const void *x, int64_t rows, int64_t cols, int64_t ld, uint32_t box_rows,
                    uint32_t box_cols)
{
    return make_map_as(cu, map, p, x, rows, cols, ld, box_rows, box_cols, MK_CU_MAP_SWIZZLE_128B);
}

int mk_gemm_cuda_boxes(const struct mk_cuda *cu, const struct mk_gemm_problem *p, int rows, int cols,
                       struct mk_cu_map *out)
{
    return make_map_as(cu, out, p, p->c, p->m, p->n, p->ldc, (uint32_t)rows, (uint32_t)cols, 0);
}

int mk_gemm_cuda_ring(const struct mk_cuda *cu, const struct mk_gemm_problem *p, mk_cu_ptr base, int64_t rows,
                      int cols, struct mk_cu_map *out)
{
    return make_map(cu, out, p, (const void *)(uintptr_t)base, rows, cols, cols, 64, 64);
}

static int launch(const struct mk_cuda *cu, const struct mk_gemm_problem *p, const char *name, int smem,
                  int grid, int threads, int cluster, bool early, void *params, void *stream)
{
    return mk_cuda_start(cu, p->dtype == MK_FLOAT16 ? MK_IMAGE_GEMM_FP16 : MK_IMAGE_GEMM_BF16, name, smem,
                         grid, threads, cluster, early, params, stream);
}

int mk_cuda_start(const struct mk_cuda *cu, enum mk_image image, const char *name, int smem, int grid,
                  int threads, int cluster, bool early, void *params, void *stream)
{
    struct mk_cu_attr attr[2];
    struct mk_cu_launch config;
    void *kernel = NULL, *args[1] = {params};
    int ret = find_kernel(cu, name, image, smem, &kernel);
    if (ret)
        return ret;
    memset(&config, 0, sizeof(config));
    memset(attr, 0, sizeof(attr));
    config.grid[0] = (uint32_t)grid;
    config.grid[1] = config.grid[2] = config.block[1] = config.block[2] = 1;
    config.block[0] = (uint32_t)threads;
    config.smem = (uint32_t)smem;
    config.stream = stream;
    /* The kernels wait for what is before them in the stream before they touch memory, so they may start early. */
    attr[0].id = MK_CU_LAUNCH_PROGRAMMATIC;
    attr[0].value.programmatic = 1;
    attr[1].id = MK_CU_LAUNCH_CLUSTER;
    attr[1].value.cluster[0] = (uint32_t)cluster;
    attr[1].value.cluster[1] = attr[1].value.cluster[2] = 1;
    config.attrs = early ? attr : attr + 1;
    config.nattrs = (early ? 1u : 0u) + (cluster > 1 ? 1 : 0);
    const int err = cu->launch(&config, kernel, args, NULL);
    return err ? mk_cuda_fail(err, name) : 0;
}

/* ---- launches ---- */

static const char *const layouts[] = {"tn", "nn", "nt"};

static const char *type_name(const struct mk_gemm_problem *p)
{
    return p->dtype == MK_FLOAT16 ? "fp16" : "bf16";
}

bool mk_gemm_cuda_chunk_boxes(int cols, int *rows)
{
    const int fit = BOX_BYTES / 2 / cols;
    *rows = fit < BOX_MOST ? fit : BOX_MOST;
    return *rows * cols * 2 % 128 == 0;
}

int mk_gemm_cuda_smem(int bn)
{
    const int stage = (128 + bn) * 128, out = bn >= 128 ? 32768 : 16384;
    const int fit = (MK_SMEM_MAX - 2048 - out) / stage;
    return 2048 + (fit > 8 ? 8 : fit) * stage + out;
}

int mk_gemm_cuda_maps(const struct mk_cuda *cu, const struct mk_gemm_problem *p, int bn, int cm,
                      struct mk_big_params *out)
{
    struct mk_big_params q;
    memset(&q, 0, sizeof(q));
    int ret = p->layout == MK_NT ? make_map(cu, &q.a, p, p->a, p->k, p->m, p->lda, 64, 64)
                                 : make_map(cu, &q.a, p, p->a, p->m, p->k, p->lda, 128, 64);
    if (!ret)
        ret = p->layout == MK_TN ? make_map(cu, &q.b, p, p->b, p->n, p->k, p->ldb, (uint32_t)(bn / cm), 64)
                                 : make_map(cu, &q.b, p, p->b, p->k, p->n, p->ldb, 64, 64);
    if (!ret)
        ret = make_map(cu, &q.c, p, p->c, p->m, p->n, p->ldc, 64, 64);
    if (ret)
        return ret;
    q.m = (int32_t)p->m;
    q.n = (int32_t)p->n;
    q.k = (int32_t)p->k;
    *out = q;
    return 0;
}

static int launch_big(const struct mk_cuda *cu, const struct mk_gemm_problem *p,
                      const struct mk_gemm_choice *c, void *stream)
{
    struct mk_big_params q;
    char name[48];
    const int ret = mk_gemm_cuda_maps(cu, p, c->bn, c->cm, &q);
    if (ret)
        return ret;
    q.group = c->group;
    q.bias = p->bias;
    q.act = p->act;
    const int64_t tiles = up(p->m, 128 * c->cm) * up(p->n, c->bn) * c->cm;
    const int64_t grid = tiles < c->blocks / c->cm * c->cm ? tiles : c->blocks / c->cm * c->cm;
    snprintf(name, sizeof(name), "gemm_%s_%s_%dx%d", layouts[p->layout], type_name(p), c->bn, c->cm);
    return launch(cu, p, name, mk_gemm_cuda_smem(c->bn), (int)grid, MK_BIG_THREADS, c->cm, true, &q, stream);
}

/* Stages of the pipeline: the memory of one block a multiprocessor, with what 4.3 TB/s need in flight. */
static int skinny_smem(const struct mk_gemm_choice *c, int *stages)
{
    const int stage = 8192 + c->bn * 128, received = c->splits > 1 ? (c->bn / 8 + 1) / 2 * 2048 : 0;
    const int fit = (150 * 1024 - 1536 - received) / stage;
    *stages = fit > 16 ? 16 : fit;
    return 1536 + received + *stages * stage;
}

int mk_gemm_cuda_skinny(const struct mk_cuda *cu, const struct mk_gemm_problem *p,
                        const struct mk_gemm_choice *c, struct mk_skinny_params *out, int *smem)
{
    memset(out, 0, sizeof(*out));
    int ret = p->layout == MK_TN ? make_map(cu, &out->w, p, p->b, p->n, p->k, p->ldb, 64, 64)
                                 : make_map(cu, &out->w, p, p->b, p->k, p->n, p->ldb, 64, 64);
    if (!ret)
        ret = make_map(cu, &out->x, p, p->a, p->m, p->k, p->lda, (uint32_t)c->bn, 64);
    if (ret)
        return ret;
    *smem = skinny_smem(c, &out->stages);
    out->c = p->c;
    out->ldc = p->ldc;
    out->bias = p->bias;
    out->m = (int32_t)p->m;
    out->n = (int32_t)p->n;
    out->k = (int32_t)p->k;
    out->act = p->act;
    out->wide = map_fits(p->c, p->ldc);
    out->ahead = c->group;
    return 0;
}

int mk_gemm_cuda_skinny_grid(const struct mk_gemm_problem *p, const struct mk_gemm_choice *c)
{
    return (int)up(p->n, 64) * c->splits;
}

static int launch_skinny(const struct mk_cuda *cu, const struct mk_gemm_problem *p,
                         const struct mk_gemm_choice *c, void *stream)
{
    struct mk_skinny_params q;
    char name[48];
    int smem;
    const int ret = mk_gemm_cuda_skinny(cu, p, c, &q, &smem);
    if (ret)
        return ret;
    snprintf(name, sizeof(name), "skinny_%s_%s_%dx%d", layouts[p->layout], type_name(p), c->bn, c->splits);
    return launch(cu, p, name, smem, mk_gemm_cuda_skinny_grid(p, c), MK_SKINNY_THREADS, c->splits, true, &q,
                  stream);
}

static int launch_portable(const struct mk_cuda *cu, const struct mk_gemm_problem *p,
                           const struct mk_gemm_choice *c, void *stream)
{
    struct portable_params q;
    char name[48];
    memset(&q, 0, sizeof(q));
    q.a = p->a;
    q.b = p->b;
    q.c = p->c;
    q.bias = p->bias;
    q.lda = p->lda;
    q.ldb = p->ldb;
    q.ldc = p->ldc;
    q.m = (int32_t)p->m;
    q.n = (int32_t)p->n;
    q.k = (int32_t)p->k;
    q.act = p->act;
    q.layout = (int32_t)p->layout;
    const int64_t tiles = up(p->m, 128) * up(p->n, 128);
    snprintf(name, sizeof(name), "portable_%s", type_name(p));
    return launch(cu, p, name, 0, (int)(tiles < c->blocks ? tiles : c->blocks), MK_PORTABLE_THREADS, 1, false,
                  &q, stream);
}

int mk_gemm_cuda_launch(const struct mk_gemm_problem *p, const struct mk_gemm_choice *c, void *stream)
{
    const struct mk_cuda *cu = mk_cuda_open(NULL);
    if (!cu)
        return mk_fail(MK_ERR_CUDA, "FUSED", "no CUDA driver");
    if (c->kind == MK_GEMM_BIG)
        return launch_big(cu, p, c, stream);
    return c->kind == MK_GEMM_SKINNY ? launch_skinny(cu, p, c, stream) : launch_portable(cu, p, c, stream);
}
