// SPDX-License-Identifier: Apache-2.0
// Copyright mKernel authors
// One block of mkrun's census: it says on which SM it is and stays until the host has counted all, or some time has
// passed. The launch asks for all shared memory of an SM, so no two blocks are on one.
#include <stdint.h>

struct mk_census_args { // as in mkrun_census.c
    uint32_t *sm;       // host memory: [block] 1 + SM
    const uint32_t *go; // host memory
    uint64_t limit_ns;
};

static __device__ uint64_t now(void)
{
    uint64_t t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

extern "C" __global__ void mk_census(struct mk_census_args p)
{
    if (threadIdx.x)
        return;
    uint32_t sm;
    asm volatile("mov.u32 %0, %smid;" : "=r"(sm));
    ((volatile uint32_t *)p.sm)[blockIdx.x] = sm + 1;
    __threadfence_system();
    for (const uint64_t begin = now(); !*(const volatile uint32_t *)p.go && now() - begin < p.limit_ns;)
        __nanosleep(2000);
}
