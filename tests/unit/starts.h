/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Starting points to learn in tests. */
#pragma once
#include "tuner/start.h"
#include <stdio.h>

static inline struct mk_start_key key_of(int64_t m, int who)
{
    struct mk_start_key key;
    char link[32];
    const int64_t mnk[3] = {m, 8192, 3584};
    snprintf(link, sizeof(link), "link %d", who);
    mk_start_key(&key, MK_START_GEMM_ALLREDUCE, 1, mnk, 2, 4, "a GPU", link);
    return key;
}
static inline struct mk_start point(uint32_t target)
{
    return (struct mk_start){132, target, {16000, 2000}, 262144, 8, 0, 0};
}
