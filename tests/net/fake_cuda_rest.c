/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Every function of the table that fake_cuda.c does not have: says NOT_SUPPORTED. Weak, so that the others win. */
#include "mk/cuda.h"

#define STUB(field, symbol, args)                                                                            \
    int stub_##field(void) __asm__(symbol) __attribute__((weak, visibility("default")));                     \
    int stub_##field(void)                                                                                   \
    {                                                                                                        \
        return 801;                                                                                          \
    }
MK_CU_FUNCTIONS(STUB)
