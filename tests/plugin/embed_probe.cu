/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* A small kernel for the test of embedding. */
#include "mkernel_device.h"

extern "C" __global__ void embed_probe(uint64_t *flag, uint64_t value)
{
    mk_publish_gpu(flag, value);
}
