/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What mKernel itself can do here: the libraries that it opens at run time, the providers that its engine can use,
 * the speed of its matrix multiply, and what a job would get with the settings in force. */
#include "mk/fused.h"
#include "mk/net.h"
#include "mkinfo.h"
#include "rng.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- libraries ---- */

static const struct {
    const char *name, *files[3], *use, *install;
} libraries[] = {
    {"libfabric", {"libfabric.so.1"}, "network between nodes", "apt install libfabric1"},
    {"libibverbs", {"libibverbs.so.1"}, "RDMA devices", "apt install libibverbs1 ibverbs-providers"},
    {"cuda driver", {"libcuda.so.1"}, "GPUs", "NVIDIA's driver"},
    {"nccl", {"libnccl.so.2"}, "calls this library as its plugin; benchmarks", "NVIDIA's libnccl2"},
    {"cublas", {"libcublas.so.13", "libcublas.so.12"}, "benchmarks", "NVIDIA's CUDA toolkit"},
};

static void version_of(void *so, char text[64])
{
    unsigned (*fi)(void) = NULL;
    int (*nccl)(int *) = NULL;
    int v = 0;
    *(void **)&fi = dlsym(so, "fi_version");
    *(void **)&nccl = dlsym(so, "ncclGetVersion");
    text[0] = 0;
    if (fi)
        snprintf(text, 64, " %u.%u", fi() >> 16, fi() & 0xffff);
    else if (nccl && !nccl(&v))
        snprintf(text, 64, " %d.%d.%d", v / 10000, v / 100 % 100, v % 100);
}

static void find_libraries(struct mkinfo *f)
{
    for (size_t i = 0; i < sizeof(libraries) / sizeof(libraries[0]); i++) {
        char version[64];
        void *so = NULL;
        int j = 0;
        while (j < 3 && libraries[i].files[j] &&
               !(so = dlopen(libraries[i].files[j], RTLD_LAZY | RTLD_LOCAL)))
            j++;
        if (!so) {
            mkinfo_text(f, "libraries", libraries[i].name, "missing (%s); %s%s", libraries[i].use,
                        strncmp(libraries[i].install, "apt", 3) ? "comes with " : "Debian, Ubuntu: ",
                        libraries[i].install);
            continue;
        }
        version_of(so, version);
        mkinfo_text(f, "libraries", libraries[i].name, "%s%s", libraries[i].files[j], version);
        /* not closed: several of these leave threads behind */
    }
}

/* ---- network ---- */

/* Opens an engine with these settings; text becomes what it is or why not. */
static bool try_engine(const struct mk_settings *s, char text[MKINFO_TEXT])
{
    struct mk_engine *e;
    if (mk_engine_open(s, &e)) {
        snprintf(text, MKINFO_TEXT, "%s", mk_last_error());
        return false;
    }
    const struct mk_caps *c = mk_engine_caps(e);
    snprintf(text, MKINFO_TEXT, "%s, provider %s, completion by %s, %s, batches of %u, %u in flight",
             c->transport, c->provider, c->adapter, c->ordered ? "ordered" : "not ordered", c->max_batch,
             c->depth);
    mk_engine_close(e);
    return true;
}

static void find_transports(struct mkinfo *f)
{
    static const char *const providers[] = {"efa", "net", "tcp", "tcp;ofi_rxm", "shm", "verbs;ofi_rxm"};
    char text[MKINFO_TEXT], key[MKINFO_KEY];
    struct mk_settings s = f->settings;
    snprintf(s.net, sizeof(s.net), "verbs");
    const bool rdma = try_engine(&s, text);
    mkinfo_text(f, "transports", "verbs", "%s%s",
                rdma ? "works: " : "no: ", rdma || !strstr(text, ": ") ? text : strstr(text, ": ") + 2);
    snprintf(s.net, sizeof(s.net), "ofi");
    for (size_t i = 0; i < sizeof(providers) / sizeof(providers[0]); i++) {
        snprintf(s.ofi_provider, sizeof(s.ofi_provider), "%s", providers[i]);
        snprintf(key, sizeof(key), "ofi %s", providers[i]);
        const bool ok = try_engine(&s, text);
        const char *why =
            strstr(text, ": ") ? strrchr(text, ':') + 2 : text; /* without what the key says already */
        mkinfo_text(f, "transports", key, "%s%s", ok ? "works: " : "no: ", ok ? text : why);
    }
    s = f->settings;
    snprintf(s.net, sizeof(s.net), "loop");
    const bool ok = try_engine(&s, text);
    mkinfo_text(f, "transports", "loop", "%s%s (ranks on this host only)", ok ? "works: " : "no: ", text);
}

/* ---- matrix multiply ---- */

/* Billions of operations a second: the best of the runs that fit into about 0.3 s, at least three. */
static double gflops(int64_t n, float *a, float *b, float *c)
{
    double best = 0;
    const uint64_t begin = mk_time_ns();
    for (int i = 0; i < 3 || mk_time_ns() - begin < 300000000u; i++) {
        const uint64_t t0 = mk_time_ns();
        if (mk_gemm(MK_TN, n, n, n, MK_FLOAT32, a, n, b, n, c, n, NULL, NULL))
            return -1;
        const double rate = 2.0 * (double)n * (double)n * (double)n / (double)(mk_time_ns() - t0);
        best = rate > best ? rate : best;
    }
    return best;
}

static void multiply(struct mkinfo *f)
{
    enum { LARGEST = 1024 };
    const char *backend = mk_gemm_backend(strcmp(f->settings.gemm, "builtin") != 0);
    const bool blas = !strncmp(backend, "openblas", 8);
    mkinfo_text(f, "multiply", "by", "%s%s", backend,
                blas || !strcmp(f->settings.gemm, "builtin")
                    ? ""
                    : ", several times slower than OpenBLAS (missing; Debian, Ubuntu: apt install "
                      "libopenblas0-pthread)");
    const size_t count = (size_t)LARGEST * LARGEST;
    float *p = malloc(3 * count * sizeof(*p));
    if (!p) {
        mkinfo_text(f, "multiply", "speed", "out of memory");
        return;
    }
    for (size_t i = 0; i < 3 * count; i++)
        p[i] = mk_rng_uniform(1, 0, i);
    for (int64_t n = 512; n <= LARGEST; n *= 2) {
        char key[MKINFO_KEY];
        snprintf(key, sizeof(key), "fp32_%lld_gflops", (long long)n);
        const double rate = gflops(n, p, p + count, p + 2 * count);
        if (rate < 0)
            mkinfo_text(f, "multiply", key, "%s", mk_last_error());
        else
            mkinfo_number(f, "multiply", key, rate, "%.0f GFLOP/s, %lld x %lld x %lld, all threads of a rank",
                          rate, (long long)n, (long long)n, (long long)n);
    }
    free(p);
}

/* ---- what a job would get ---- */

static void in_use(struct mkinfo *f)
{
    char text[MKINFO_TEXT];
    const bool ok = try_engine(&f->settings, text);
    mkinfo_text(f, "in_use", "executor", "CPU threads");
    mkinfo_text(f, "in_use", "between nodes", "%s%s", ok ? "" : "nothing works: ", text);
#ifdef MK_HAVE_NVCC
    mkinfo_text(f, "in_use", "kernels", "nvcc was there at build time; this version has no GPU executor yet");
#else
    mkinfo_text(f, "in_use", "kernels", "left out (no nvcc at build time); the CPU executor is complete");
#endif
}

void mkinfo_parts(struct mkinfo *f)
{
    find_libraries(f);
    find_transports(f);
    in_use(f);
    multiply(f);
}
