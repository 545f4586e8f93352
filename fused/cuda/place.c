/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Where do the operands of a call live, and can this machine's GPU do it? Decided before anything is touched. */
#include "cuda/gemm.h"
#include "mk/err.h"
#include "mk/log.h"

struct operand {
    const char *name;
    const void *p;
    bool used;
};

/* A machine without a (new enough) driver, said once: host operands go to the CPU executor. */
static int without_driver(const struct operand o[4], const char *why)
{
    static bool said;
    for (int i = 0; i < 4; i++)
        if (o[i].used && mk_cuda_owns(o[i].p))
            return mk_fail_quiet(MK_ERR_UNSUPPORTED, "%s is in GPU memory, but %s", o[i].name, why);
    if (!__atomic_exchange_n(&said, true, __ATOMIC_RELAXED))
        MK_INFO("FUSED", "%s: GEMMs run on the CPU executor", why);
    return 0;
}

/* 1: memory of `device`; 0: not device memory; -1: of another device. */
static int on_device(const struct mk_cuda *cu, const void *p, int device)
{
    int at = -1;
    if (!mk_cuda_owns(p) || cu->pointer_attribute(&at, MK_CU_POINTER_DEVICE, (mk_cu_ptr)(uintptr_t)p))
        return 0;
    return at == device ? 1 : -1;
}

/* 1: all operands are in memory of `device`; 0: none is in GPU memory. */
static int all_on_device(const struct mk_cuda *cu, const struct operand o[4], int device)
{
    const char *other = NULL;
    int n = 0;
    for (int i = 0; i < 4; i++) {
        const int where = o[i].used ? on_device(cu, o[i].p, device) : 0;
        if (where < 0 && device < 0)
            return mk_fail_quiet(MK_ERR_INVALID,
                                 "%s is in GPU memory, but this thread has no current CUDA context",
                                 o[i].name);
        if (where < 0)
            return mk_fail_quiet(MK_ERR_INVALID,
                                 "%s is in the memory of another GPU than the current one (%d)", o[i].name,
                                 device);
        if (o[i].used && !where)
            other = o[i].name;
        n += where;
    }
    if (n && other)
        return mk_fail_quiet(MK_ERR_INVALID, "%s is not in GPU memory, other operands are", other);
    return n > 0;
}

static int check_gpu(const struct mk_cuda *cu, int device, int *blocks, bool *hopper)
{
    int major = 0, minor = 0, sms = 0, err = cu->device_attribute(&major, MK_CU_ATTR_MAJOR, device);
    if (!err)
        err = cu->device_attribute(&minor, MK_CU_ATTR_MINOR, device);
    if (!err)
        err = cu->device_attribute(&sms, MK_CU_ATTR_SMS, device);
    if (err)
        return mk_cuda_fail(err, "cuDeviceGetAttribute");
    if (major < 8)
        return mk_fail_quiet(
            MK_ERR_UNSUPPORTED,
            "the operands are in the memory of GPU %d, whose compute capability is %d.%d; 8.0 is "
            "the least (operands in host memory run on the CPU executor)",
            device, major, minor);
    if (!mk_kernels_built)
        return mk_fail_quiet(
            MK_ERR_UNSUPPORTED,
            "the operands are in GPU memory, but this library was built without kernels (no nvcc)");
    *blocks = sms;
    *hopper = major == 9 && minor == 0;
    return 1;
}

int mk_gemm_cuda_place(const struct mk_gemm_problem *p, void *stream, int *blocks, bool *hopper)
{
    const struct operand o[4] = {
        {"A", p->a, p->k > 0}, {"B", p->b, p->k > 0}, {"C", p->c, true}, {"bias", p->bias, p->bias != NULL}};
    const char *why;
    const struct mk_cuda *cu = mk_cuda_open(&why);
    void *ctx = NULL, *stream_ctx = NULL;
    int device = -1;
    if (!cu)
        return without_driver(o, why);
    if (cu->ctx_current(&ctx) || !ctx || cu->ctx_device(&device))
        device = -1;
    const int gpu = all_on_device(cu, o, device);
    if (gpu <= 0)
        return gpu;
    if (stream && (cu->stream_ctx(stream, &stream_ctx) || stream_ctx != ctx))
        return mk_fail_quiet(MK_ERR_INVALID, "stream belongs to another context than the current one");
    if (p->k > INT32_MAX) /* rows of B in NN and NT: no leading dimension bounds them */
        return mk_fail_quiet(MK_ERR_UNSUPPORTED, "K=%lld is beyond the 2^31-1 of the GPU kernels",
                             (long long)p->k);
    return check_gpu(cu, device, blocks, hopper);
}
