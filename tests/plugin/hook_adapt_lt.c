/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Calls of cublasLt: what its descriptors say decides whether G can take the call's place. */
#include "hook_adapt.h"
#include <stdio.h>
#include <string.h>

enum { COMPUTE, SCALE, MODE, TRANSA, TRANSB, TRANSC, FILL, EPILOGUE, BIAS };
enum { TYPE, ORDER, ROWS, COLS, LD, BATCH };
static struct stand_attributes desc, w, x, y;
static unsigned short bias[8];

static void set(struct stand_attributes *a, int attribute, uint8_t bytes, uint64_t value)
{
    a->bytes[attribute] = bytes;
    a->value[attribute] = value;
}

static void layout(struct stand_attributes *a, uint64_t rows, uint64_t cols)
{
    memset(a, 0, sizeof(*a));
    set(a, TYPE, 4, BF16);
    set(a, ORDER, 4, 0);
    set(a, ROWS, 8, rows);
    set(a, COLS, 8, cols);
    set(a, LD, 8, rows);
    set(a, BATCH, 4, 1);
}

/* As torch makes it for a linear layer with a bias, on cublasLt 13.1. */
static void usual(void)
{
    memset(&desc, 0, sizeof(desc));
    set(&desc, COMPUTE, 4, 68);
    set(&desc, SCALE, 4, FP32);
    set(&desc, MODE, 4, 0);
    set(&desc, TRANSA, 4, 1);
    set(&desc, TRANSB, 4, 0);
    set(&desc, TRANSC, 4, 0);
    set(&desc, FILL, 4, 2);
    set(&desc, EPILOGUE, 4, 4);
    set(&desc, BIAS, 8, (uintptr_t)bias);
    set(&desc, 26, 4, UINT32_MAX); /* BIAS_DATA_TYPE: that of D */
    for (int i = 10; i <= 38; i++)
        if (i != 26 && i != 25 && i != 15)
            set(&desc, i, i == 22 || i > 30 ? 4 : 8, 0);
    set(&desc, 36, 8, 0);
    set(&desc, 38, 8, 0);
    layout(&w, 16, 8);
    layout(&x, 16, 4);
    layout(&y, 8, 4);
    stand_lt_version = 130100;
}

static int call(const void *c)
{
    const float one = 1, zero = 0;
    return cublasLtMatmul((void *)1, &desc, &one, w_mem, &w, a_mem, &x, &zero, c, &y, c_mem, &y, NULL, d_mem,
                          64, &r.s);
}

static void reason(int line, const char *want)
{
    char text[64];
    snprintf(text, sizeof(text), "gemm ORIGINAL:%s", want);
    call(c_mem);
    rank_did(line, text);
    usual();
}
#define REASON(want) reason(__LINE__, want)

void lt_cases(void)
{
    rank_agree();
    usual();
    CHECK(!call(c_mem));
    rank_reduce(&r.comm, &r.s, c_mem, c_mem, 32);
    DID("gemm K rec ORIGINAL PLAIN:learning:unknown-site");
    CHECK(!call(c_mem));
    rank_reduce(&r.comm, &r.s, c_mem, c_mem, 32);
    DID("G+room K|| rec G OVERLAP");
    CHECK(r.gemm.m == 4 && r.gemm.n == 8 && r.gemm.k == 16 && r.gemm.bias == (uintptr_t)bias);
    CHECK(r.gemm.epilogue == MK_PAIR_BIAS && r.gemm.layout == MK_TN && r.gemm.ldc == 8);
    CHECK(r.gemm.extra == (uintptr_t)d_mem && r.gemm.extra_bytes == 64);
    CHECK(!call(NULL)); /* with beta 0 nobody reads C */
    DID("G+room G");
    set(&desc, EPILOGUE, 4, 6); /* the stand-in has no ReLU */
    REASON("epilogue");
    set(&desc, BIAS, 8, 0);
    REASON("epilogue");
    set(&desc, 26, 4, FP32);
    REASON("epilogue");
    set(&desc, COMPUTE, 4, 77);
    REASON("compute-type");
    set(&desc, MODE, 4, 1);
    REASON("scalars");
    set(&desc, FILL, 4, 0);
    REASON("lt-attr");
    set(&desc, 11, 8, 64); /* an auxiliary output */
    REASON("lt-attr");
    for (int i = 17; i <= 21; i++) {
        set(&desc, i, 8, 64);
        REASON("compute-type");
    }
    set(&desc, 38, 8, 64);
    REASON("compute-type");
    stand_lt_version = 130200;
    REASON("lt-attr");
    set(&y, BATCH, 4, 3);
    REASON("batch");
    set(&w, ORDER, 4, 1);
    REASON("shape");
    set(&w, TYPE, 4, FP32);
    REASON("gemm-dtype");
    memset(desc.bytes + 36, 0, 4); /* an older library does not know these */
    call(c_mem);
    DID("G+room G");
    /* what is refused is not read */
    CHECK(!cublasLtMatmul(NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
                          0, NULL));
    DID("gemm");
}
