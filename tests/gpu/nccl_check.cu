// SPDX-License-Identifier: Apache-2.0
// Copyright mKernel authors
// Contents that every element's place tells, and the check of every element and of the guards on both sides of it.
// Whole numbers of 32 bits: a sum over ranks is exact in any order.
#include <stdint.h>

struct nccl_check_args { // as in nccl_check.c
    uint32_t *at;        // the payload; guard words before and behind it
    uint64_t *wrong;     // how many words; {1 + place, have, want} of one of them
    uint64_t count, guard, call, off, block;
    int32_t kind, rank, ranks, pad;
};

static __device__ uint32_t value(uint64_t call, int rank, uint64_t i)
{
    uint64_t x = (call * 1000003 + (uint64_t)rank * 7919 + 1) * 0x9e3779b97f4a7c15ull + i;
    x = (x ^ (x >> 31)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 29)) * 0x94d049bb133111ebull;
    return (uint32_t)(x >> 32);
}
static __device__ uint32_t canary(uint64_t call, uint64_t i)
{
    return 0xa5000000u ^ (uint32_t)(call * 77777 + i);
}

// kind 0: what this rank sends; 1: nothing but canaries
extern "C" __global__ void mk_nccl_fill(struct nccl_check_args p)
{
    const uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    const uint64_t all = p.count + 2 * p.guard;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += step) {
        const bool mine = !p.kind && i >= p.guard && i < p.guard + p.count;
        p.at[(int64_t)(i - p.guard)] = mine ? value(p.call, p.rank, i - p.guard) : canary(p.call, i);
    }
}

// kind 0: the sum over all ranks of their elements off + i; 1: block b comes from rank `rank` + b, its elements from
// `off` on; 2: nothing was written
static __device__ uint32_t wanted(const struct nccl_check_args &p, uint64_t i)
{
    uint32_t sum = 0;
    if (p.kind == 1)
        return value(p.call, p.rank + (int)(i / p.block), p.off + i % p.block);
    for (int r = 0; r < p.ranks; r++)
        sum += value(p.call, r, p.off + i);
    return sum;
}
extern "C" __global__ void mk_nccl_check(struct nccl_check_args p)
{
    const uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    const uint64_t all = p.count + 2 * p.guard;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += step) {
        const bool payload = p.kind != 2 && i >= p.guard && i < p.guard + p.count;
        const uint32_t want = payload ? wanted(p, i - p.guard) : canary(p.call, i);
        const uint32_t have = p.at[(int64_t)(i - p.guard)];
        if (have == want)
            continue;
        atomicAdd((unsigned long long *)p.wrong, 1ull);
        if (!atomicCAS((unsigned long long *)p.wrong + 1, 0ull, (unsigned long long)i + 1)) {
            p.wrong[2] = have;
            p.wrong[3] = want;
        }
    }
}
