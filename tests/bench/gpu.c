/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#include "gpu.h"
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CU(X)                                                                                                \
    X(cuInit, (unsigned))                                                                                    \
    X(cuDeviceGetCount, (int *))                                                                             \
    X(cuDeviceGet, (int *, int))                                                                             \
    X(cuDeviceGetName, (char *, int, int))                                                                   \
    X(cuDeviceGetAttribute, (int *, int, int))                                                               \
    X(cuDevicePrimaryCtxRetain, (void **, int))                                                              \
    X(cuCtxSetCurrent, (void *))                                                                             \
    X(cuCtxSynchronize, (void))                                                                              \
    X(cuMemAlloc_v2, (gpu_ptr *, size_t))                                                                    \
    X(cuMemFree_v2, (gpu_ptr))                                                                               \
    X(cuMemsetD8_v2, (gpu_ptr, unsigned char, size_t))                                                       \
    X(cuMemcpyHtoD_v2, (gpu_ptr, const void *, size_t))                                                      \
    X(cuMemcpyDtoH_v2, (void *, gpu_ptr, size_t))                                                            \
    X(cuMemcpyDtoD_v2, (gpu_ptr, gpu_ptr, size_t))                                                           \
    X(cuStreamCreate, (void **, unsigned))                                                                   \
    X(cuStreamSynchronize, (void *))                                                                         \
    X(cuStreamBeginCapture_v2, (void *, int))                                                                \
    X(cuStreamEndCapture, (void *, void **))                                                                 \
    X(cuGraphInstantiateWithFlags, (void **, void *, unsigned long long))                                    \
    X(cuGraphLaunch, (void *, void *))                                                                       \
    X(cuGraphExecDestroy, (void *))                                                                          \
    X(cuGraphDestroy, (void *))                                                                              \
    X(cuEventCreate, (void **, unsigned))                                                                    \
    X(cuEventRecord, (void *, void *))                                                                       \
    X(cuEventSynchronize, (void *))                                                                          \
    X(cuEventElapsedTime, (float *, void *, void *))

static struct {
#define FIELD(name, args) int(*name) args;
    CU(FIELD)
#undef FIELD
} cu;
static void *stream, *event[2];
static char name[96];
static int sms;

static void check(int err, const char *what)
{
    if (!err)
        return;
    fprintf(stderr, "%s: CUDA error %d\n", what, err);
    exit(1);
}
#define DO(fn, args) check(cu.fn args, #fn)

bool gpu_open(const char **why)
{
    void *so = dlopen("libcuda.so.1", RTLD_NOW), *ctx;
    int n = 0, dev;
    if (!so) {
        *why = "no CUDA driver";
        return false;
    }
#define LOAD(fn, args)                                                                                       \
    *(void **)&cu.fn = dlsym(so, #fn);                                                                       \
    if (!cu.fn) {                                                                                            \
        *why = "the CUDA driver lacks " #fn;                                                                 \
        return false;                                                                                        \
    }
    CU(LOAD)
    if (cu.cuInit(0) || cu.cuDeviceGetCount(&n) || !n) {
        *why = "no GPU";
        return false;
    }
    const char *local = getenv("MK_LOCAL_RANK"); /* one GPU a rank where there are several */
    DO(cuDeviceGet, (&dev, local ? atoi(local) % n : 0));
    DO(cuDeviceGetName, (name, sizeof(name), dev));
    DO(cuDeviceGetAttribute, (&sms, 16, dev));
    DO(cuDevicePrimaryCtxRetain, (&ctx, dev));
    DO(cuCtxSetCurrent, (ctx));
    DO(cuStreamCreate, (&stream, 1));
    DO(cuEventCreate, (&event[0], 0));
    DO(cuEventCreate, (&event[1], 0));
    return true;
}
const char *gpu_name(void)
{
    return name;
}
int gpu_sms(void)
{
    return sms;
}
gpu_ptr gpu_alloc(size_t bytes)
{
    gpu_ptr p;
    DO(cuMemAlloc_v2, (&p, bytes ? bytes : 1));
    return p;
}
void gpu_free(gpu_ptr p)
{
    DO(cuMemFree_v2, (p));
}
void gpu_set(gpu_ptr p, int byte, size_t bytes)
{
    DO(cuMemsetD8_v2, (p, (unsigned char)byte, bytes));
    gpu_sync(); /* gpu_stream() does not wait for the default stream */
}
void gpu_put(gpu_ptr dst, const void *src, size_t bytes)
{
    DO(cuMemcpyHtoD_v2, (dst, src, bytes));
}
void gpu_get(void *dst, gpu_ptr src, size_t bytes)
{
    DO(cuMemcpyDtoH_v2, (dst, src, bytes));
}
void gpu_sync(void)
{
    DO(cuCtxSynchronize, ());
}
void *gpu_stream(void)
{
    return stream;
}

static uint16_t random_half(uint64_t *s, mk_dtype_t dtype)
{
    *s = *s * 6364136223846793005ull + 1442695040888963407ull;
    const float f = (float)((double)(int64_t)*s / 9223372036854775808.0);
    uint32_t u;
    memcpy(&u, &f, 4);
    if (dtype == MK_BFLOAT16)
        return (uint16_t)(u >> 16);
    const int32_t e = (int32_t)(u >> 23 & 255) - 127 + 15; /* below 1; what is tiny becomes 0 */
    return (uint16_t)((u >> 16 & 0x8000) | (e <= 0 ? 0 : (uint32_t)e << 10 | (u >> 13 & 0x3ff)));
}

double gpu_value(uint16_t h, mk_dtype_t dtype)
{
    if (dtype == MK_BFLOAT16) {
        const uint32_t u = (uint32_t)h << 16;
        float f;
        memcpy(&f, &u, 4);
        return (double)f;
    }
    const int e = h >> 10 & 31;
    const double sign = h & 0x8000 ? -1 : 1, frac = (double)(h & 0x3ff);
    if (e == 31)
        return frac > 0 ? (double)NAN : sign * (double)INFINITY;
    return sign * (e ? ldexp(1024 + frac, e - 25) : ldexp(frac, -24));
}

void gpu_random(gpu_ptr p, size_t count, mk_dtype_t dtype, uint64_t seed)
{
    /* a prime number of values, repeated: no row repeats at a power of two */
    const size_t period = count < 1048573 ? count : 1048573;
    uint16_t *h = calloc(period + 1, 2);
    for (size_t i = 0; i < period; i++)
        h[i] = random_half(&seed, dtype);
    gpu_put(p, h, period * 2);
    for (size_t done = period; done < count; done *= 2) {
        const size_t n = count - done < done ? count - done : done;
        DO(cuMemcpyDtoD_v2, (p + done * 2, p, n * 2));
    }
    gpu_sync();
    free(h);
}

struct gpu_graph {
    void *graph, *exec;
};

struct gpu_graph *gpu_capture(int (*fn)(void *arg, int i), void *arg, int n)
{
    struct gpu_graph *g = calloc(1, sizeof(*g));
    DO(cuStreamBeginCapture_v2, (stream, 0));
    for (int i = 0; i < n; i++)
        if (fn(arg, i)) {
            fprintf(stderr, "capture: %s\n", mk_last_error());
            exit(1);
        }
    DO(cuStreamEndCapture, (stream, &g->graph));
    DO(cuGraphInstantiateWithFlags, (&g->exec, g->graph, 0));
    return g;
}
double gpu_replay_us(struct gpu_graph *g)
{
    float ms;
    DO(cuEventRecord, (event[0], stream));
    DO(cuGraphLaunch, (g->exec, stream));
    DO(cuEventRecord, (event[1], stream));
    DO(cuEventSynchronize, (event[1]));
    DO(cuEventElapsedTime, (&ms, event[0], event[1]));
    return (double)ms * 1e3;
}
void gpu_replay(struct gpu_graph *g)
{
    DO(cuGraphLaunch, (g->exec, stream));
}
double gpu_time_us(int (*fn)(void *arg, int i), void *arg, int n)
{
    float ms;
    DO(cuEventRecord, (event[0], stream));
    for (int i = 0; i < n; i++)
        if (fn(arg, i)) {
            fprintf(stderr, "%s\n", mk_last_error());
            exit(1);
        }
    DO(cuEventRecord, (event[1], stream));
    DO(cuEventSynchronize, (event[1]));
    DO(cuEventElapsedTime, (&ms, event[0], event[1]));
    return (double)ms * 1e3;
}
void gpu_graph_free(struct gpu_graph *g)
{
    DO(cuGraphExecDestroy, (g->exec));
    DO(cuGraphDestroy, (g->graph));
    free(g);
}

/* ---- cuBLAS: column-major, so C^T = op(B)^T op(A)^T ---- */

static void *handle;
static int (*gemm_ex)(void *, int, int, int, int, int, const void *, const void *, int, int, const void *,
                      int, int, const void *, void *, int, int, int, int);
static int (*dgemm)(void *, int, int, int, int, int, const double *, const void *, int, const void *, int,
                    const double *, void *, int);
static int (*set_stream)(void *, void *);
static int (*set_workspace)(void *, void *, size_t);
static int (*set_sms)(void *, int);

bool blas_open(const char **why)
{
    static const char *const names[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so"};
    int (*create)(void **) = NULL;
    void *so = NULL;
    for (int i = 0; i < 3 && !so; i++)
        so = dlopen(names[i], RTLD_NOW);
    if (!so) {
        *why = "no libcublas";
        return false;
    }
    *(void **)&create = dlsym(so, "cublasCreate_v2");
    *(void **)&gemm_ex = dlsym(so, "cublasGemmEx");
    *(void **)&dgemm = dlsym(so, "cublasDgemm_v2");
    *(void **)&set_stream = dlsym(so, "cublasSetStream_v2");
    *(void **)&set_workspace = dlsym(so, "cublasSetWorkspace_v2");
    *(void **)&set_sms = dlsym(so, "cublasSetSmCountTarget");
    if (!create || !gemm_ex || !dgemm || !set_stream || !set_workspace || !set_sms || create(&handle)) {
        *why = "libcublas lacks a function or has no handle";
        return false;
    }
    set_stream(handle, stream);
    set_workspace(handle, (void *)(uintptr_t)gpu_alloc(64 << 20),
                  64 << 20); /* what PyTorch gives it on Hopper is less */
    return true;
}
void blas_sm_target(int target)
{
    check(set_sms(handle, target), "cublasSetSmCountTarget");
}
int blas_gemm(mk_layout_t layout, mk_dtype_t dtype, int64_t m, int64_t n, int64_t k, gpu_ptr a, int64_t lda,
              gpu_ptr b, int64_t ldb, gpu_ptr c, int64_t ldc, void *s)
{
    const float one = 1, zero = 0;
    const int type = dtype == MK_BFLOAT16 ? 14 : 2; /* CUDA_R_16BF, CUDA_R_16F */
    set_stream(handle, s);
    return gemm_ex(handle, layout == MK_TN ? 1 : 0, layout == MK_NT ? 1 : 0, (int)n, (int)m, (int)k, &one,
                   (void *)(uintptr_t)b, type, (int)ldb, (void *)(uintptr_t)a, type, (int)lda, &zero,
                   (void *)(uintptr_t)c, type, (int)ldc, 68 /* 32F */, -1);
}
void blas_gemm_f64(int64_t m, int64_t n, int64_t k, gpu_ptr a, gpu_ptr b, gpu_ptr c)
{
    const double one = 1, zero = 0;
    check(dgemm(handle, 1, 0, (int)n, (int)m, (int)k, &one, (void *)(uintptr_t)b, (int)k,
                (void *)(uintptr_t)a, (int)k, &zero, (void *)(uintptr_t)c, (int)n),
          "cublasDgemm");
}
