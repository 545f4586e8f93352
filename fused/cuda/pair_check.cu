/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* pair_check: MK_VERIFY's look at C (ops/pair_check.h), on any GPU. Launched plainly, so all that is before it in the stream
 * has ended when it reads. */
#include "ops/pair_check.h"

extern "C" __global__ void __launch_bounds__(MK_CHECK_THREADS) pair_check(const __grid_constant__ mk_check p)
{
    __shared__ uint64_t sums[MK_CHECK_THREADS / 32];
    const ulonglong2 *c = (const ulonglong2 *)p.c;
    uint64_t sum = 0;
    for (uint64_t i = (uint64_t)blockIdx.x * MK_CHECK_THREADS + threadIdx.x; i < p.n;
         i += (uint64_t)gridDim.x * MK_CHECK_THREADS) {
        const ulonglong2 v = __ldcg(&c[i]);
        sum += mk_check_mix(v.x, v.y, i);
    }
    for (int far = 16; far; far /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, far);
    if (threadIdx.x % 32 == 0)
        sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x)
        return;
    for (int w = 1; w < MK_CHECK_THREADS / 32; w++)
        sum += sums[w];
    mk_check_end(&p, sum, gridDim.x);
}
