// SPDX-License-Identifier: Apache-2.0
// Copyright mKernel authors
// Inputs that are new in every call and whose product every block can work out: each row of A has one value that is not
// 0, so C[i,j] is the sum over ranks of s(i) B[j, p(i)], small whole numbers and exact in bf16. The number of the call
// is in device memory: a graph that is replayed makes new inputs too.
#include <stdint.h>

struct mk_steady_args { // as in steady.c
    uint16_t *a, *b, *c;
    uint64_t *call;  // its number
    uint64_t *wrong; // elements that were, and the first one: {call 32, index 32} + 1
    int32_t m, n, k, rank, ranks;
};

static __device__ uint32_t mix(uint64_t x)
{
    x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9ull;
    return (uint32_t)(x >> 32);
}
static __device__ uint32_t row_of_a(uint64_t call, int rank, uint32_t i)
{
    return mix(call * 1000003 + (uint64_t)rank * 7919 + ((uint64_t)i << 40) + 1);
}
static __device__ int value_of_b(uint64_t call, int rank, uint32_t j, uint32_t k)
{
    return (int)(mix(call * 999983 + (uint64_t)rank * 104729 + ((uint64_t)j << 40) + ((uint64_t)k << 20)) %
                 7) -
           3;
}
static __device__ uint16_t bf16(int v)
{
    return (uint16_t)(__float_as_uint((float)v) >> 16);
}

extern "C" __global__ void mk_steady_fill(struct mk_steady_args p)
{
    const uint64_t call = *p.call, step = (uint64_t)gridDim.x * blockDim.x;
    const uint64_t first = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (uint64_t e = first; e < (uint64_t)p.m * p.k; e += step) {
        const uint32_t h = row_of_a(call, p.rank, (uint32_t)(e / p.k));
        p.a[e] = e % p.k == h % (uint32_t)p.k ? bf16(1 + (int)(h >> 24) % 3) : 0;
    }
    for (uint64_t e = first; e < (uint64_t)p.n * p.k; e += step)
        p.b[e] = bf16(value_of_b(call, p.rank, (uint32_t)(e / p.k), (uint32_t)(e % p.k)));
    for (uint64_t e = first; e < (uint64_t)p.m * p.n; e += step)
        p.c[e] = 0xffff;
}

extern "C" __global__ void mk_steady_check(struct mk_steady_args p)
{
    const uint64_t call = *p.call, step = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t e = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; e < (uint64_t)p.m * p.n; e += step) {
        int sum = 0;
        for (int r = 0; r < p.ranks; r++) {
            const uint32_t h = row_of_a(call, r, (uint32_t)(e / p.n));
            sum += (1 + (int)(h >> 24) % 3) * value_of_b(call, r, (uint32_t)(e % p.n), h % (uint32_t)p.k);
        }
        const uint16_t have = p.c[e];
        if (have == bf16(sum) || (!sum && have == 0x8000))
            continue;
        atomicAdd((unsigned long long *)p.wrong, 1ull);
        atomicCAS((unsigned long long *)p.wrong + 1, 0ull, (call << 32 | (e & 0xffffffff)) + 1);
    }
}

extern "C" __global__ void mk_steady_next(struct mk_steady_args p)
{
    ++*p.call;
}
