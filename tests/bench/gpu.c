/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#include "gpu.h"
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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
    X(cuStreamWaitEvent, (void *, void *, unsigned))                                                         \
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
static void *stream, *side, *event[2], *edge[2];
static char name[96];
static int sms;
static bool host; /* no GPU is used: memory is the processor's, everything is over at once */

static void check(int err, const char *what)
{
    if (!err)
        return;
    fprintf(stderr, "%s: CUDA error %d\n", what, err);
    exit(1);
}
#define DO(fn, args) check(cu.fn args, #fn)
#define P(x) ((void *)(uintptr_t)(x))

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
    const char *rank =
        getenv("MK_RANK"); /* one GPU a rank where there are several, as mkrun shares them out */
    DO(cuDeviceGet, (&dev, rank ? atoi(rank) % n : 0));
    DO(cuDeviceGetName, (name, sizeof(name), dev));
    DO(cuDeviceGetAttribute, (&sms, 16, dev));
    DO(cuDevicePrimaryCtxRetain, (&ctx, dev));
    DO(cuCtxSetCurrent, (ctx));
    DO(cuStreamCreate, (&stream, 1));
    DO(cuStreamCreate, (&side, 1));
    for (int i = 0; i < 2; i++) {
        DO(cuEventCreate, (&event[i], 0));
        DO(cuEventCreate, (&edge[i], 2 /* no timing */));
    }
    return true;
}
void gpu_open_host(void)
{
    host = true;
    snprintf(name, sizeof(name), "no GPU, on the processor");
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
    if (host) {
        p = (gpu_ptr)(uintptr_t)aligned_alloc(256, (bytes + 256) & ~(size_t)255);
        check(!p, "memory");
    } else {
        DO(cuMemAlloc_v2, (&p, bytes ? bytes : 1));
    }
    return p;
}
void gpu_free(gpu_ptr p)
{
    if (host)
        free(P(p));
    else
        DO(cuMemFree_v2, (p));
}
void gpu_set(gpu_ptr p, int byte, size_t bytes)
{
    if (host)
        memset(P(p), byte, bytes);
    else
        DO(cuMemsetD8_v2, (p, (unsigned char)byte, bytes));
    gpu_sync(); /* gpu_stream() does not wait for the default stream */
}
void gpu_put(gpu_ptr dst, const void *src, size_t bytes)
{
    if (host)
        memcpy(P(dst), src, bytes);
    else
        DO(cuMemcpyHtoD_v2, (dst, src, bytes));
}
void gpu_get(void *dst, gpu_ptr src, size_t bytes)
{
    if (host)
        memcpy(dst, P(src), bytes);
    else
        DO(cuMemcpyDtoH_v2, (dst, src, bytes));
}
void gpu_sync(void)
{
    if (!host)
        DO(cuCtxSynchronize, ());
}
void *gpu_stream(void)
{
    return stream;
}
void *gpu_side_stream(void)
{
    return side;
}
void gpu_after(void *later, void *earlier)
{
    /* a wait is for the last record before it, so one event an edge will do */
    void *e = edge[earlier == side];
    if (host)
        return;
    DO(cuEventRecord, (e, earlier));
    DO(cuStreamWaitEvent, (later, e, 0));
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
        if (host)
            memcpy(P(p + done * 2), P(p), n * 2);
        else
            DO(cuMemcpyDtoD_v2, (p + done * 2, p, n * 2));
    }
    gpu_sync();
    free(h);
}

struct gpu_graph {
    void *graph, *exec;
    int (*fn)(void *arg, int i); /* on the processor: called again */
    void *arg;
    int n;
};

static void issue(int (*fn)(void *arg, int i), void *arg, int n)
{
    for (int i = 0; i < n; i++)
        if (fn(arg, i)) {
            fprintf(stderr, "%s\n", mk_last_error());
            exit(1);
        }
}

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* g: replayed; NULL: fn. */
static double timed(struct gpu_graph *g, int (*fn)(void *arg, int i), void *arg, int n)
{
    float ms;
    const double begin = now_us();
    if (!host)
        DO(cuEventRecord, (event[0], stream));
    if (g)
        gpu_replay(g);
    else
        issue(fn, arg, n);
    if (host)
        return now_us() - begin;
    DO(cuEventRecord, (event[1], stream));
    DO(cuEventSynchronize, (event[1]));
    DO(cuEventElapsedTime, (&ms, event[0], event[1]));
    return (double)ms * 1e3;
}

struct gpu_graph *gpu_capture(int (*fn)(void *arg, int i), void *arg, int n)
{
    struct gpu_graph *g = calloc(1, sizeof(*g));
    g->fn = fn;
    g->arg = arg;
    g->n = n;
    if (host)
        return g;
    DO(cuStreamBeginCapture_v2, (stream, 0));
    issue(fn, arg, n);
    DO(cuStreamEndCapture, (stream, &g->graph));
    DO(cuGraphInstantiateWithFlags, (&g->exec, g->graph, 0));
    return g;
}
double gpu_replay_us(struct gpu_graph *g)
{
    return timed(g, NULL, NULL, 0);
}
void gpu_replay(struct gpu_graph *g)
{
    if (host)
        issue(g->fn, g->arg, g->n);
    else
        DO(cuGraphLaunch, (g->exec, stream));
}
double gpu_time_us(int (*fn)(void *arg, int i), void *arg, int n)
{
    return timed(NULL, fn, arg, n);
}
void gpu_graph_free(struct gpu_graph *g)
{
    if (!host) {
        DO(cuGraphExecDestroy, (g->exec));
        DO(cuGraphDestroy, (g->graph));
    }
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

#define WORKSPACE (64u << 20) /* what PyTorch gives it on Hopper is less */
static gpu_ptr workspace;
static void *blas_stream;

/* Setting the stream takes cuBLAS back to a workspace of its own. */
static void use_stream(void *s)
{
    if (s == blas_stream)
        return;
    check(set_stream(handle, s), "cublasSetStream");
    check(set_workspace(handle, P(workspace), WORKSPACE), "cublasSetWorkspace");
    blas_stream = s;
}

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
    workspace = gpu_alloc(WORKSPACE);
    use_stream(stream);
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
    use_stream(s);
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
