/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Hopper instructions, one a function: mbarriers, bulk tensor copies, clusters, warpgroup MMA bookkeeping. */
#pragma once
#include <cuda.h>
#include <stdint.h>

#define MK_PTX static __device__ __forceinline__

MK_PTX uint32_t mk_smem(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---- mbarriers. A wait is for a phase parity; arrivals release, waits acquire (CTA scope). ---- */

MK_PTX void mk_mbar_init(uint32_t bar, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
/* Makes inits visible to the copy engine and to the cluster. */
MK_PTX void mk_mbar_init_fence(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
MK_PTX void mk_mbar_expect(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
MK_PTX void mk_mbar_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
/* Arrives at the barrier at the same place in CTA `cta` of the cluster. It orders no ordinary writes of this thread
 * (a release at cluster scope costs a memory barrier per arrival): what it says is that the matrix unit has read the
 * stage, which wgmma.wait_group has established. */
MK_PTX void mk_mbar_arrive_at(uint32_t bar, uint32_t cta)
{
    asm volatile("{\n.reg .b32 remote;\n"
                 "mapa.shared::cluster.u32 remote, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}\n" ::"r"(bar),
                 "r"(cta)
                 : "memory");
}
MK_PTX bool mk_mbar_try(uint32_t bar, uint32_t parity)
{
    uint32_t done;
    asm volatile("{\n.reg .pred p;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.b32 %0, 1, 0, p;\n}\n"
                 : "=r"(done)
                 : "r"(bar), "r"(parity)
                 : "memory");
    return done != 0;
}
/* The same, but it never sleeps. */
MK_PTX bool mk_mbar_test(uint32_t bar, uint32_t parity)
{
    uint32_t done;
    asm volatile("{\n.reg .pred p;\n"
                 "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.b32 %0, 1, 0, p;\n}\n"
                 : "=r"(done)
                 : "r"(bar), "r"(parity)
                 : "memory");
    return done != 0;
}
MK_PTX void mk_mbar_wait(uint32_t bar, uint32_t parity)
{
    while (!mk_mbar_try(bar, parity))
        ;
}

/* ---- bulk tensor copies ---- */

MK_PTX void mk_tma_load(uint32_t dst, const CUtensorMap *map, uint32_t bar, int32_t x, int32_t y)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, "
                 "{%3, %4}], [%2];" ::"r"(dst),
                 "l"(map), "r"(bar), "r"(x), "r"(y)
                 : "memory");
}
/* The same with a cache policy (mk_policy_stream). */
MK_PTX void mk_tma_load_policy(uint32_t dst, const CUtensorMap *map, uint32_t bar, int32_t x, int32_t y,
                               uint64_t policy)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(dst),
                 "l"(map), "r"(bar), "r"(x), "r"(y), "l"(policy)
                 : "memory");
}
/* For what is read once: the first to leave L2. */
MK_PTX uint64_t mk_policy_stream(void)
{
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
/* Asks a box into L2. It reads nothing into this kernel: also before mk_grid_wait, whatever the kernels before still
 * write there, since they write through the same L2. */
MK_PTX void mk_tma_prefetch_box(const CUtensorMap *map, int32_t x, int32_t y)
{
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(map), "r"(x), "r"(y)
                 : "memory");
}
/* To the same place in every CTA of `mask`; each one's barrier at the same place counts the bytes. */
MK_PTX void mk_tma_load_multicast(uint32_t dst, const CUtensorMap *map, uint32_t bar, int32_t x, int32_t y,
                                  uint16_t mask)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::"
                 "cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(dst),
                 "l"(map), "r"(bar), "r"(x), "r"(y), "h"(mask)
                 : "memory");
}
/* A word of shared memory from one thread of the block to another, with what was written before it. */
MK_PTX void mk_smem_release(uint32_t at, uint64_t v)
{
    asm volatile("st.release.cta.shared.u64 [%0], %1;" ::"r"(at), "l"(v) : "memory");
}
MK_PTX uint64_t mk_smem_acquire(uint32_t at)
{
    uint64_t v;
    asm volatile("ld.acquire.cta.shared.u64 %0, [%1];" : "=l"(v) : "r"(at) : "memory");
    return v;
}
MK_PTX void mk_tma_store(const CUtensorMap *map, uint32_t src, int32_t x, int32_t y)
{
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
                 "r"(src), "r"(x), "r"(y)
                 : "memory");
}
/* Adds the box to what is there, element by element, each sum rounded once; done when a store would be. */
MK_PTX void mk_tma_add(const void *map, uint32_t smem, int32_t x, int32_t y)
{
    asm volatile(
        "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(
            map),
        "r"(smem), "r"(x), "r"(y)
        : "memory");
}
MK_PTX void mk_tma_commit(void)
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/* At most N of this thread's groups may still read shared memory. */
template <int N> MK_PTX void mk_tma_wait_read(void)
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}
/* At most N of this thread's groups are not yet written to global memory. */
template <int N> MK_PTX void mk_tma_wait(void)
{
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory");
}
MK_PTX void mk_tma_prefetch(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
/* Orders ordinary accesses to shared memory before later ones of the copy engine. */
MK_PTX void mk_fence_smem_async(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- clusters ---- */

MK_PTX uint32_t mk_cluster_rank(void)
{
    uint32_t r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}
MK_PTX uint32_t mk_cluster_id(void)
{
    uint32_t r;
    asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(r));
    return r;
}
MK_PTX uint32_t mk_clusters(void)
{
    uint32_t r;
    asm volatile("mov.u32 %0, %%nclusterid.x;" : "=r"(r));
    return r;
}
MK_PTX void mk_cluster_sync(void)
{
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}
/* Address of the same place in the shared memory of CTA `cta`. */
MK_PTX uint32_t mk_cluster_map(uint32_t addr, uint32_t cta)
{
    uint32_t r;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(addr), "r"(cta));
    return r;
}

/* The two halves of mk_cluster_sync. */
MK_PTX void mk_cluster_arrive(void)
{
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
MK_PTX void mk_cluster_wait(void)
{
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
/* Into the shared memory of another CTA; the barrier there (addresses by mk_cluster_map) counts the 16 bytes. */
MK_PTX void mk_cluster_send4(uint32_t addr, float a, float b, float c, float d, uint32_t bar)
{
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::
            "r"(addr),
        "f"(a), "f"(b), "f"(c), "f"(d), "r"(bar)
        : "memory");
}
MK_PTX void mk_cluster_send2(uint32_t addr, uint64_t a, uint64_t b, uint32_t bar)
{
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b64 [%0], {%1, %2}, [%3];" ::"r"(addr),
        "l"(a), "l"(b), "r"(bar)
        : "memory");
}
MK_PTX void mk_smem_load2(uint32_t (&v)[2], uint32_t addr)
{
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v[0]), "=r"(v[1]) : "r"(addr) : "memory");
}
MK_PTX void mk_smem_load4(float (&v)[4], uint32_t addr)
{
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
                 : "r"(addr)
                 : "memory");
}
MK_PTX void mk_smem_load4(uint32_t (&v)[4], uint32_t addr)
{
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(addr)
                 : "memory");
}
/* Two 8 x 8 matrices of 16 bits, transposed: lane i < 8 gives the address of column i of the first, 8 <= i < 16 of the
 * second. */
MK_PTX void mk_stmatrix2_trans(uint32_t addr, uint32_t a, uint32_t b)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(addr), "r"(a), "r"(b)
                 : "memory");
}

/* Waits until the grids before this one in its stream are complete and their writes visible (programmatic launch:
 * this grid may have started early). Without that attribute it returns at once. */
MK_PTX void mk_grid_wait(void)
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}
/* The next grid may be launched as soon as all blocks have said this; it waits by mk_grid_wait. */
MK_PTX void mk_grid_launch_next(void)
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/* ---- warpgroups ---- */

MK_PTX void mk_wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
MK_PTX void mk_wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N> MK_PTX void mk_wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
template <int N> MK_PTX void mk_regs_up(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> MK_PTX void mk_regs_down(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
/* Barrier of `threads` threads, numbered 1 to 15 (0 is __syncthreads). */
MK_PTX void mk_bar_sync(uint32_t id, uint32_t threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
/* Arrives there without waiting for the others. */
MK_PTX void mk_bar_arrive(uint32_t id, uint32_t threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
MK_PTX void mk_stmatrix4(uint32_t addr, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(addr), "r"(a),
                 "r"(b), "r"(c), "r"(d)
                 : "memory");
}

/* Shared memory descriptor of a wgmma operand with 128-byte swizzle. Strides in bytes (Hopper's canonical layouts,
 * in units of 8 rows x 128 bytes): K contiguous: sbo = 1024 between groups of 8 rows; M or N contiguous: lbo between
 * panels of 64 elements, sbo = 1024 between groups of 8 k. */
MK_PTX uint64_t mk_wgmma_desc(uint32_t addr, uint32_t lbo, uint32_t sbo)
{
    return (uint64_t)((addr & 0x3ffff) >> 4) | (uint64_t)((lbo & 0x3ffff) >> 4) << 16 |
           (uint64_t)((sbo & 0x3ffff) >> 4) << 32 | 1ull << 62;
}

/* ---- arithmetic ---- */

/* Two sums of 16 bits. */
template <bool F16> static __device__ __forceinline__ uint32_t mk_add2_of(uint32_t a, uint32_t b)
{
    uint32_t v;
    if (F16)
        asm("add.rn.f16x2 %0, %1, %2;" : "=r"(v) : "r"(a), "r"(b));
    else
        asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(v) : "r"(a), "r"(b));
    return v;
}
