// SPDX-License-Identifier: Apache-2.0
// Copyright mKernel authors
// One block an SM (the launch asks for all shared memory) spins on a flag in GPU memory until it has the value
// `target`, or until the host raises `abort`. The first `pollers` blocks read host memory in every turn; without, the
// first block does so now and then and tells the others.
struct mk_nic_spin_args {
    const unsigned long long *flag;
    unsigned long long target;
    const unsigned *abort;    // host memory
    unsigned *started;        // host memory: set when all blocks run
    unsigned *arrived, *seen; // device memory: blocks that run; that saw the flag
    unsigned *stop;           // device memory
    unsigned pollers;
};

extern "C" __global__ void mk_nic_spin(struct mk_nic_spin_args a)
{
    if (threadIdx.x)
        return;
    if (atomicAdd(a.arrived, 1u) + 1 == gridDim.x) {
        *(volatile unsigned *)a.started = 1;
        __threadfence_system();
    }
    for (unsigned turn = 0;; turn++) {
        unsigned long long v;
        asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(a.flag) : "memory");
        if (v == a.target)
            break;
        const bool look = blockIdx.x < a.pollers || (!blockIdx.x && turn % 4096 == 0);
        if (look && *(const volatile unsigned *)a.abort)
            *(volatile unsigned *)a.stop = 1;
        if (*(const volatile unsigned *)a.stop)
            return;
    }
    atomicAdd(a.seen, 1u);
}
