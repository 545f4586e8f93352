/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What the stand-in for libcuda.so.1 claims, and what it was asked to do. "Device memory" is host memory that it calls
 * so: who touches it leaves traces. */
#pragma once
#include <stddef.h>

struct fake_driver {
    int major, minor, sms; /* of every device */
    int device;            /* of the current context */
    void *ctx;             /* current; NULL: none */
    void *stream_ctx;      /* context of every stream */
    struct {
        char *base;
        size_t bytes;
        int device;
    } memory[4];
    int launch_error;
    int launches;
    char kernel[64]; /* the last one launched */
};
