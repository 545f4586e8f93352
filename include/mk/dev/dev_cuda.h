/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* dev.h on the GPU (sm_80 and later): scopes are PTX scopes; acquire and release as in the PTX memory model. */
#pragma once
#include <stdint.h>

#define MK_DEV static __device__ __forceinline__
#define MK_LOOKS_ON 1
#ifndef MK_CONTROL
#define MK_CONTROL 0 /* 1: kernels whose blocks may change roles */
#endif
#ifndef MK_PAIRED
#define MK_PAIRED 0 /* 1: kernels whose tiles another kernel may bring (ops/pair_tiles.h) */
#endif
#define MK_ROLLED _Pragma("unroll 1")

MK_DEV uint32_t mk_lane(void)
{
    return threadIdx.x;
}
/* MK_DEV_LANES: only so many threads of the block, the first ones, run the shared text; others have work of their own
 * and never come to its barrier. */
#ifdef MK_DEV_LANES
MK_DEV uint32_t mk_lanes(void)
{
    return MK_DEV_LANES;
}
MK_DEV void mk_block_sync(void)
{
    asm volatile("bar.sync 0, %0;" ::"n"(MK_DEV_LANES) : "memory");
}
#else
MK_DEV uint32_t mk_lanes(void)
{
    return blockDim.x;
}
MK_DEV void mk_block_sync(void)
{
    __syncthreads();
}
#endif
MK_DEV void mk_fence_async(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async;" ::: "memory");
#endif
}

#define MK_DEV_CUDA_ACCESS(scope)                                                                            \
    MK_DEV uint64_t mk_ld_rlx_##scope##_u64(const uint64_t *p)                                               \
    {                                                                                                        \
        uint64_t v;                                                                                          \
        asm volatile("ld.relaxed." #scope ".b64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");                   \
        return v;                                                                                            \
    }                                                                                                        \
    MK_DEV uint64_t mk_ld_acq_##scope##_u64(const uint64_t *p)                                               \
    {                                                                                                        \
        uint64_t v;                                                                                          \
        asm volatile("ld.acquire." #scope ".b64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");                   \
        return v;                                                                                            \
    }                                                                                                        \
    MK_DEV void mk_st_rlx_##scope##_u64(uint64_t *p, uint64_t v)                                             \
    {                                                                                                        \
        asm volatile("st.relaxed." #scope ".b64 [%0], %1;" ::"l"(p), "l"(v) : "memory");                     \
    }                                                                                                        \
    MK_DEV void mk_st_rel_##scope##_u64(uint64_t *p, uint64_t v)                                             \
    {                                                                                                        \
        asm volatile("st.release." #scope ".b64 [%0], %1;" ::"l"(p), "l"(v) : "memory");                     \
    }
MK_DEV_CUDA_ACCESS(gpu)
MK_DEV_CUDA_ACCESS(sys)
#undef MK_DEV_CUDA_ACCESS

MK_DEV uint64_t mk_ld_launch_u64(const uint64_t *p)
{
    return *p; /* through L1, which is empty when a kernel starts */
}
MK_DEV uint32_t mk_warp_lane(void)
{
    return threadIdx.x % 32;
}
MK_DEV uint32_t mk_warp_lanes(void)
{
    return 32;
}
MK_DEV bool mk_warp_all(bool b)
{
    return __all_sync(0xffffffffu, b);
}
MK_DEV uint32_t mk_warp_prefix(bool b, uint32_t n)
{
    const uint32_t bad = __ballot_sync(0xffffffffu, !b);
    return bad ? ((uint32_t)__ffs((int)bad) - 1) / n : 32 / n;
}
MK_DEV uint64_t mk_warp_first(uint64_t v)
{
    return __shfl_sync(0xffffffffu, v, 0);
}
MK_DEV uint64_t mk_peek_gpu_u64(const uint64_t *p)
{
    return mk_ld_rlx_gpu_u64(p);
}
MK_DEV uint64_t mk_peek_sys_u64(const uint64_t *p)
{
    return mk_ld_rlx_sys_u64(p);
}
MK_DEV void mk_peeked(void)
{
#if MK_MUTATE != 2
    asm volatile("fence.acq_rel.sys;" ::: "memory");
#endif
}

MK_DEV uint64_t mk_add_gpu_u64(uint64_t *p, uint64_t v)
{
    uint64_t old;
    asm volatile("atom.acq_rel.gpu.add.u64 %0, [%1], %2;" : "=l"(old) : "l"(p), "l"(v) : "memory");
    return old;
}
MK_DEV uint64_t mk_post_add_gpu_u64(uint64_t *p, uint64_t v)
{
    uint64_t old;
    asm volatile("atom.relaxed.gpu.add.u64 %0, [%1], %2;" : "=l"(old) : "l"(p), "l"(v) : "memory");
    return old;
}
MK_DEV void mk_tally_gpu_u64(uint64_t *p, uint64_t v)
{
    asm volatile("red.relaxed.gpu.add.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
MK_DEV bool mk_cas_gpu_u64(uint64_t *p, uint64_t have, uint64_t want)
{
    uint64_t old;
    asm volatile("atom.acq_rel.gpu.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(old)
                 : "l"(p), "l"(have), "l"(want)
                 : "memory");
    return old == have;
}
MK_DEV void mk_max_sys_u64(uint64_t *p, uint64_t v)
{
    asm volatile("red.release.sys.max.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
MK_DEV void mk_posting(void)
{
#if MK_MUTATE != 1
    asm volatile("fence.acq_rel.sys;" ::: "memory");
#endif
}
MK_DEV void mk_post_sys_u64(uint64_t *p, uint64_t v)
{
    mk_st_rlx_sys_u64(p, v);
}
MK_DEV void mk_post_gpu_u64(uint64_t *p, uint64_t v)
{
    mk_st_rlx_gpu_u64(p, v);
}
MK_DEV void mk_post_max_sys_u64(uint64_t *p, uint64_t v)
{
    asm volatile("red.relaxed.sys.max.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
MK_DEV bool mk_post_cas_gpu_u64(uint64_t *p, uint64_t have, uint64_t want)
{
    uint64_t old;
    asm volatile("atom.relaxed.gpu.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(old)
                 : "l"(p), "l"(have), "l"(want)
                 : "memory");
    return old == have;
}
MK_DEV uint64_t mk_now_ns(void)
{
    uint64_t t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}
