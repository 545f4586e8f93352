/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* dev.h on the CPU: one thread is one block; `gpu` and `sys` scope are the same thing. Acquire and release on
 * plain 64-bit words, no stand-alone fences. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#define MK_DEV static inline __attribute__((unused))
#define MK_ROLLED
#define MK_LOOKS_ON 0
#define MK_CONTROL 1
#define MK_PAIRED 1

MK_DEV uint32_t mk_lane(void)
{
    return 0;
}
MK_DEV uint32_t mk_lanes(void)
{
    return 1;
}
MK_DEV void mk_block_sync(void)
{
}
#define MK_DEV_CPU_ACCESS(scope)                                                                             \
    MK_DEV uint64_t mk_ld_rlx_##scope##_u64(const uint64_t *p)                                               \
    {                                                                                                        \
        return __atomic_load_n(p, __ATOMIC_RELAXED);                                                         \
    }                                                                                                        \
    MK_DEV uint64_t mk_ld_acq_##scope##_u64(const uint64_t *p)                                               \
    {                                                                                                        \
        return __atomic_load_n(p, __ATOMIC_ACQUIRE);                                                         \
    }                                                                                                        \
    MK_DEV void mk_st_rlx_##scope##_u64(uint64_t *p, uint64_t v)                                             \
    {                                                                                                        \
        __atomic_store_n(p, v, __ATOMIC_RELAXED);                                                            \
    }                                                                                                        \
    MK_DEV void mk_st_rel_##scope##_u64(uint64_t *p, uint64_t v)                                             \
    {                                                                                                        \
        __atomic_store_n(p, v, __ATOMIC_RELEASE);                                                            \
    }
MK_DEV_CPU_ACCESS(gpu)
MK_DEV_CPU_ACCESS(sys)
#undef MK_DEV_CPU_ACCESS

MK_DEV uint64_t mk_ld_launch_u64(const uint64_t *p)
{
    return mk_ld_rlx_gpu_u64(p);
}
MK_DEV uint32_t mk_warp_lane(void)
{
    return 0;
}
MK_DEV uint32_t mk_warp_lanes(void)
{
    return 1;
}
MK_DEV bool mk_warp_all(bool b)
{
    return b;
}
MK_DEV uint32_t mk_warp_prefix(bool b, uint32_t n)
{
    (void)n;
    return b;
}
MK_DEV uint64_t mk_warp_first(uint64_t v)
{
    return v;
}
MK_DEV uint64_t mk_peek_gpu_u64(const uint64_t *p)
{
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
MK_DEV uint64_t mk_peek_sys_u64(const uint64_t *p)
{
#if MK_MUTATE == 2
    return __atomic_load_n(p, __ATOMIC_RELAXED);
#else
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
#endif
}
MK_DEV void mk_peeked(void)
{
}

/* Returns the value before. */
MK_DEV uint64_t mk_add_gpu_u64(uint64_t *p, uint64_t v)
{
    return __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL);
}
/* Stores `want` if *p is `have`; returns whether it did. */
MK_DEV bool mk_cas_gpu_u64(uint64_t *p, uint64_t have, uint64_t want)
{
    return __atomic_compare_exchange_n(p, &have, want, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}
/* *p = max(*p, v), also between processes. */
MK_DEV void mk_max_sys_u64(uint64_t *p, uint64_t v)
{
    uint64_t have = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (have < v && !__atomic_compare_exchange_n(p, &have, v, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
        ;
}
/* ThreadSanitizer sees one process. That a rank's reads of a chunk come before another of its threads writes there may be
 * so only by way of a peer's process: posted to it, and answered. For the executor of a process each post then stands
 * before each later consume. */
#if defined(__SANITIZE_THREAD__) && defined(MK_PEERS_ELSEWHERE)
static uint64_t mk_tsan_order;
MK_DEV void mk_posting(void)
{
    __atomic_fetch_add(&mk_tsan_order, 1, __ATOMIC_RELEASE);
}
MK_DEV void mk_fence_async(void)
{
    (void)__atomic_load_n(&mk_tsan_order, __ATOMIC_ACQUIRE);
}
#else
MK_DEV void mk_posting(void)
{
}
MK_DEV void mk_fence_async(void)
{
}
#endif
MK_DEV void mk_post_sys_u64(uint64_t *p, uint64_t v)
{
#if MK_MUTATE == 1
    mk_st_rlx_sys_u64(p, v);
#else
    mk_st_rel_sys_u64(p, v);
#endif
}
MK_DEV void mk_post_gpu_u64(uint64_t *p, uint64_t v)
{
    mk_st_rel_gpu_u64(p, v);
}
MK_DEV void mk_post_max_sys_u64(uint64_t *p, uint64_t v)
{
    mk_max_sys_u64(p, v);
}
MK_DEV bool mk_post_cas_gpu_u64(uint64_t *p, uint64_t have, uint64_t want)
{
    return mk_cas_gpu_u64(p, have, want);
}
MK_DEV uint64_t mk_post_add_gpu_u64(uint64_t *p, uint64_t v)
{
    return mk_add_gpu_u64(p, v);
}
MK_DEV void mk_tally_gpu_u64(uint64_t *p, uint64_t v)
{
    mk_add_gpu_u64(p, v);
}
MK_DEV uint64_t mk_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
