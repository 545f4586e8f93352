/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* A check that says where and what, and lets the program go on; main returns `bad`. */
#pragma once
#include <stdio.h>

static int bad;

#define CHECK(ok, ...)                                                                                       \
    do {                                                                                                     \
        if (!(ok)) {                                                                                         \
            printf("%s:%d: ", __FILE__, __LINE__);                                                           \
            printf(__VA_ARGS__);                                                                             \
            printf("\n");                                                                                    \
            bad = 1;                                                                                         \
        }                                                                                                    \
    } while (0)
