/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The functions of the CUDA driver by what they may do to a stream: what is counted so that "nothing lies between" can be
 * proved (mk/pair.h). Pure: names only. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

enum mk_driver_call {
    MK_DRIVER_UNKNOWN = 0,  /* on no list: where the driver hands one out, the proof ends for the process */
    MK_DRIVER_QUIET = 1,    /* puts nothing on a stream */
    MK_DRIVER_ENQUEUES = 2, /* may: counted before the real call */
    MK_DRIVER_LOOKUP = 3,   /* cuGetProcAddress: what it hands out has to be the counting functions */
    MK_DRIVER_ENDS =
        4 /* cuGetExportTable: what it hands out has no names; it is counted, or left as known, or the proof ends */
};

/* By the symbol's full name ("cuMemcpyAsync_ptsz") or by the plain one that cuGetProcAddress takes. */
enum mk_driver_call mk_driver_call(const char *name);
/* The i-th listed name, with its closing zero; false: there is no i-th, or it is longer than `bytes`. */
bool mk_driver_call_name(size_t i, char *name, size_t bytes);
