/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Built with nvcc: the kernels are embedded. */
#include "cuda/gemm.h"

const bool mk_kernels_built = true;
