/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What a hooked call says, in the recogniser's words. Nothing of a descriptor is read but by the library's own functions,
 * so a call that the library will refuse harms nothing here either. */
#include "adapt_in.h"
#include "mk/pair_blas.h"

enum { TYPE_32F = 0, TYPE_16F = 2, TYPE_16BF = 14, TYPE_NONE = -1 };
enum { COMPUTE_16F = 64, COMPUTE_16F_PEDANTIC = 65, COMPUTE_32F = 68, COMPUTE_NONE = -1 };
#define TESTED_LT 130199 /* the newest cublasLt whose attributes are all known here: 13.1 */

static bool is_short(int64_t type)
{
    return type == TYPE_16F || type == TYPE_16BF;
}

static uint64_t address(const void *p)
{
    return (uintptr_t)p;
}

/* ---- cuBLAS ---- */

static void read_scalars(const void *alpha, const void *beta, struct mk_pair_cublas *out)
{
    const bool half = out->compute == COMPUTE_16F || out->compute == COMPUTE_16F_PEDANTIC;
    out->alpha = 1; /* halves: such a call is not ours, whatever they are */
    if (half || !alpha || !beta) {
        out->flags |= half ? 0 : MK_PAIR_CANNOT;
        return;
    }
    memcpy(&out->alpha, alpha, sizeof(float));
    memcpy(&out->beta, beta, sizeof(float));
}

/* What the handle adds; beta 0 means that C is not read. */
static void finish_cublas(void *handle, const void *alpha, const void *beta, struct mk_pair_cublas *out)
{
    int mode = 0;
    MK_ASK(cublasGetPointerMode_v2, get_mode);
    MK_ASK(cublasGetMathMode, get_math);
    if (!get_mode || !get_math || get_mode(handle, &mode) || get_math(handle, &out->math))
        out->flags |= MK_PAIR_CANNOT;
    else if (mode)
        out->flags |= MK_PAIR_DEVICE_SCALARS;
    else
        read_scalars(alpha, beta, out);
}

#define SIZES(c)                                                                                             \
    .transa = (c)->transa, .transb = (c)->transb, .m = (c)->m, .n = (c)->n, .k = (c)->k, .lda = (c)->lda,    \
    .ldb = (c)->ldb, .ldc = (c)->ldc, .ldd = (c)->ldc, .a = address((c)->a), .b = address((c)->b),           \
    .c = address((c)->c), .d = address((c)->c), .batch = 1, .bias_type = TYPE_NONE
#define READ_EX(name)                                                                                        \
    static void read_##name(const void *args, bool whole, struct mk_pair_cublas *out)                        \
    {                                                                                                        \
        const struct mk_call_##name *c = args;                                                               \
        *out = (struct mk_pair_cublas){SIZES(c), .a_type = c->a_type, .b_type = c->b_type,                   \
                                       .c_type = c->c_type, .compute = c->compute};                          \
        if (whole)                                                                                           \
            finish_cublas(c->handle, c->alpha, c->beta, out);                                                \
    }
READ_EX(cublasGemmEx)
READ_EX(cublasGemmEx_64)
/* Single precision is never ours: it is only known that it was there. */
#define READ_S(name)                                                                                         \
    static void read_##name(const void *args, bool whole, struct mk_pair_cublas *out)                        \
    {                                                                                                        \
        const struct mk_call_##name *c = args;                                                               \
        (void)whole;                                                                                         \
        *out = (struct mk_pair_cublas){SIZES(c), .compute = COMPUTE_32F, .alpha = 1};                        \
    }
READ_S(cublasSgemm_v2)
READ_S(cublasSgemm_v2_64)
READ_S(cublasSgemm)

/* ---- cublasLt ---- */

static bool get_desc(void *desc, int attribute, void *value, size_t bytes)
{
    size_t written = 0;
    MK_ASK(cublasLtMatmulDescGetAttribute, get);
    return get && !get(desc, attribute, value, bytes, &written) && written == bytes;
}

struct layout {
    uint32_t type;
    int32_t order, batch;
    uint64_t rows, cols;
    int64_t ld;
};

static bool get_layout(void *layout, struct layout *out)
{
    size_t w[6] = {0};
    MK_ASK(cublasLtMatrixLayoutGetAttribute, get);
    return get && layout && !get(layout, 0, &out->type, 4, &w[0]) && !get(layout, 1, &out->order, 4, &w[1]) &&
           !get(layout, 2, &out->rows, 8, &w[2]) && !get(layout, 3, &out->cols, 8, &w[3]) &&
           !get(layout, 4, &out->ld, 8, &w[4]) && !get(layout, 5, &out->batch, 4, &w[5]) &&
           out->rows <= INT64_MAX && out->cols <= INT64_MAX;
}

/* Attributes that leave the result as it is only at this value. What this version of the library does not know was never
 * set. */
static const struct {
    uint8_t attribute, bytes;
    uint32_t value;
    uint32_t flag;
} neutral[] = {
    {5, 4, 0, MK_PAIR_UNKNOWN_ATTRIBUTE},  /* TRANSC */
    {6, 4, 2, MK_PAIR_UNKNOWN_ATTRIBUTE},  /* FILL_MODE: full */
    {10, 8, 0, MK_PAIR_UNKNOWN_ATTRIBUTE}, /* BIAS_BATCH_STRIDE */
    {11, 8, 0, MK_PAIR_UNKNOWN_ATTRIBUTE}, /* EPILOGUE_AUX_POINTER */
    {17, 8, 0, MK_PAIR_SCALED},            /* A_SCALE_POINTER */
    {18, 8, 0, MK_PAIR_SCALED},            /* B */
    {19, 8, 0, MK_PAIR_SCALED},            /* C */
    {20, 8, 0, MK_PAIR_SCALED},            /* D */
    {21, 8, 0, MK_PAIR_SCALED},            /* AMAX_D_POINTER */
    {36, 8, 0, MK_PAIR_SCALED},            /* D_OUT_SCALE_POINTER */
    {38, 8, 0, MK_PAIR_EMULATED},          /* EMULATION_DESCRIPTOR */
};

static uint32_t odd_attributes(void *desc)
{
    uint32_t flags = 0;
    for (size_t i = 0; i < sizeof(neutral) / sizeof(neutral[0]); i++) {
        uint64_t wide = 0;
        uint32_t narrow = 0;
        if (!get_desc(desc, neutral[i].attribute, neutral[i].bytes == 8 ? (void *)&wide : (void *)&narrow,
                      neutral[i].bytes))
            continue;
        if ((neutral[i].bytes == 8 ? wide : narrow) != neutral[i].value)
            flags |= neutral[i].flag;
    }
    return flags;
}

static bool new_lt(void)
{
    size_t (*version)(void);
    *(void **)&version = mk_hook_ask(MK_ASK_cublasLtGetVersion);
    return !version || version() > TESTED_LT;
}

static void read_desc(const struct mk_call_cublasLtMatmul *c, struct mk_pair_cublas *out)
{
    int32_t scale = TYPE_NONE, mode = 0, bias_type = TYPE_NONE;
    uint32_t epilogue = 0;
    if (!get_desc(c->desc, 0, &out->compute, 4) || !get_desc(c->desc, 1, &scale, 4) ||
        !get_desc(c->desc, 2, &mode, 4) || !get_desc(c->desc, 7, &epilogue, 4) ||
        !get_desc(c->desc, 8, &out->bias, 8)) {
        out->flags |= MK_PAIR_CANNOT;
        return;
    }
    if (get_desc(c->desc, 26, &bias_type, 4) && bias_type != TYPE_NONE)
        out->bias_type = bias_type;
    out->epilogue = (int32_t)epilogue;
    out->flags |= odd_attributes(c->desc) | (new_lt() ? MK_PAIR_NEW_LT : 0);
    if (scale != TYPE_32F && scale != TYPE_16F)
        out->flags |= MK_PAIR_UNKNOWN_ATTRIBUTE;
    if (mode)
        out->flags |= MK_PAIR_DEVICE_SCALARS;
    else
        read_scalars(c->alpha, c->beta, out);
    if (!mode && out->beta == 0) { /* C is not read */
        out->c = out->d;
        out->ldc = out->ldd;
    }
}

/* false: the library will refuse it. */
static bool read_lt(const void *args, bool whole, struct mk_pair_cublas *out)
{
    const struct mk_call_cublasLtMatmul *call = args;
    struct layout a, b, c, d;
    memset(out, 0, sizeof(*out));
    if (!call->desc || !get_layout(call->a_layout, &a) || !get_layout(call->b_layout, &b) ||
        !get_layout(call->c_layout, &c) || !get_layout(call->d_layout, &d) ||
        !get_desc(call->desc, 3, &out->transa, 4) || !get_desc(call->desc, 4, &out->transb, 4))
        return false;
    out->m = (int64_t)d.rows;
    out->n = (int64_t)d.cols;
    out->k = (int64_t)(out->transa ? a.rows : a.cols);
    out->lda = a.ld, out->ldb = b.ld, out->ldc = c.ld, out->ldd = d.ld;
    out->a_type = (int32_t)a.type, out->b_type = (int32_t)b.type, out->c_type = (int32_t)d.type;
    out->bias_type = out->c_type;
    out->a = address(call->a), out->b = address(call->b);
    out->c = address(call->c), out->d = address(call->d);
    out->workspace = address(call->workspace);
    out->workspace_bytes = call->workspace_bytes;
    out->batch = d.batch > 1 ? (uint32_t)d.batch : 1;
    out->compute = COMPUTE_NONE;
    out->alpha = 1;
    if (a.order || b.order || c.order || d.order || c.type != d.type)
        out->flags |= MK_PAIR_CANNOT;
    /* Of a type that is not ours the rest does not matter. */
    if (whole && is_short(d.type))
        read_desc(call, out);
    return true;
}

/* Calls whose arguments are sizes and pointers themselves. */
#define GEMM_EX_CALLS(X) X(cublasGemmEx) X(cublasGemmEx_64)
#define GEMM_S_CALLS(X) X(cublasSgemm_v2) X(cublasSgemm_v2_64) X(cublasSgemm)
#define GEMM_CALLS(X) GEMM_EX_CALLS(X) GEMM_S_CALLS(X)

bool mk_adapt_read_gemm(const struct mk_hook_event *h, bool whole, struct mk_pair_gemm *out)
{
    struct mk_pair_cublas call;
    bool any = true;
    switch (h->id) {
#define CASE(name)                                                                                           \
    case MK_HOOK_##name:                                                                                     \
        read_##name(h->call, whole, &call);                                                                  \
        break;
        GEMM_CALLS(CASE)
#undef CASE
    case MK_HOOK_cublasLtMatmul:
        any = read_lt(h->call, whole, &call);
        break;
    default:
        return false;
    }
    if (any)
        mk_pair_from_cublas(&call, out);
    return any;
}

bool mk_adapt_read_size(const struct mk_hook_event *h, uint64_t size[3])
{
    switch (h->id) {
#define CASE(name, type)                                                                                     \
    case MK_HOOK_##name: {                                                                                   \
        const struct mk_call_##name *c = h->call;                                                            \
        size[0] = (uint64_t)c->m;                                                                            \
        size[1] = (uint64_t)c->k;                                                                            \
        size[2] = is_short(type);                                                                            \
        return true;                                                                                         \
    }
#define CASE_EX(name) CASE(name, c->c_type)
#define CASE_S(name) CASE(name, TYPE_32F)
        GEMM_EX_CALLS(CASE_EX)
        GEMM_S_CALLS(CASE_S)
#undef CASE_S
#undef CASE_EX
#undef CASE
    case MK_HOOK_cublasLtMatmul: {
        const struct mk_call_cublasLtMatmul *c = h->call;
        int32_t transa = 0;
        uint32_t type = 0;
        size_t w;
        MK_ASK(cublasLtMatrixLayoutGetAttribute, get);
        if (!get || !c->desc || !c->a_layout || !c->d_layout || !get_desc(c->desc, 3, &transa, 4) ||
            get(c->d_layout, 2, &size[0], 8, &w) || get(c->a_layout, transa ? 2 : 3, &size[1], 8, &w) ||
            get(c->d_layout, 0, &type, 4, &w))
            return false;
        size[2] = is_short(type);
        return true;
    }
    default:
        return false;
    }
}

/* ---- NCCL ---- */

enum { NCCL_SUM = 0 };

#define BUFFERS(c)                                                                                           \
    .comm = address((c)->comm), .count = (c)->count, .send = address((c)->send), .recv = address((c)->recv), \
    .dtype = mk_pair_dtype_of_nccl((c)->dtype)
#define COLL(name, kind, is_sum)                                                                             \
    case MK_HOOK_##name: {                                                                                   \
        const struct mk_call_##name *c = h->call;                                                            \
        *out = (struct mk_pair_coll){BUFFERS(c), .function = kind, .sum = is_sum};                           \
        break;                                                                                               \
    }
#define COLL_BOTH(name, kind, is_sum) COLL(name, kind, is_sum) COLL(name##Config, kind, is_sum)
#define POINT(name, field)                                                                                   \
    case MK_HOOK_##name: {                                                                                   \
        const struct mk_call_##name *c = h->call;                                                            \
        *out = (struct mk_pair_coll){.comm = address(c->comm),                                               \
                                     .count = c->count,                                                      \
                                     .field = address(c->field),                                             \
                                     .dtype = mk_pair_dtype_of_nccl(c->dtype)};                              \
        *p2p = true;                                                                                         \
        break;                                                                                               \
    }

/* All-to-all, gather and scatter are sends and receives to NCCL, and to its profiler: they have no operation number. */
bool mk_adapt_read_coll(const struct mk_hook_event *h, struct mk_pair_coll *out, bool *p2p)
{
    *p2p = false;
    switch (h->id) {
        COLL_BOTH(ncclAllReduce, MK_PAIR_ALLREDUCE, c->op == NCCL_SUM)
        COLL_BOTH(ncclReduceScatter, MK_PAIR_REDUCESCATTER, c->op == NCCL_SUM)
        COLL_BOTH(ncclAllGather, MK_PAIR_ALLGATHER, 1)
        COLL_BOTH(ncclReduce, MK_PAIR_OTHER_FUNCTION, c->op == NCCL_SUM)
        COLL_BOTH(ncclBroadcast, MK_PAIR_OTHER_FUNCTION, 1)
    case MK_HOOK_ncclBcast: {
        const struct mk_call_ncclBcast *c = h->call;
        *out = (struct mk_pair_coll){.comm = address(c->comm),
                                     .count = c->count,
                                     .send = address(c->buffer),
                                     .recv = address(c->buffer),
                                     .function = MK_PAIR_OTHER_FUNCTION,
                                     .dtype = mk_pair_dtype_of_nccl(c->dtype),
                                     .sum = 1};
        break;
    }
        POINT(ncclAlltoAll, send)
        POINT(ncclAlltoAllConfig, send)
        POINT(ncclGather, send)
        POINT(ncclGatherConfig, send)
        POINT(ncclScatter, send)
        POINT(ncclScatterConfig, send)
        POINT(ncclSend, send)
        POINT(ncclRecv, recv)
    default:
        return false;
    }
    out->caller = address(h->caller);
    return true;
}

/* ncclConfig_t: size, magic, version, blocking; -2147483648 where it is not set. */
static bool blocks(const void *config)
{
    int32_t blocking = 1;
    if (config)
        memcpy(&blocking, (const char *)config + 16, sizeof(blocking));
    return blocking != 0;
}

#define MADE(name, has_config)                                                                               \
    case MK_HOOK_##name: {                                                                                   \
        const struct mk_call_##name *c = h->call;                                                            \
        *comms = c->out;                                                                                     \
        *nonblocking = !blocks(has_config);                                                                  \
        return 1;                                                                                            \
    }

int mk_adapt_made(const struct mk_hook_event *h, void ***comms, bool *nonblocking)
{
    *nonblocking = false;
    switch (h->id) {
        MADE(ncclCommInitRank, NULL)
        MADE(ncclCommInitRankConfig, c->config)
        MADE(ncclCommInitRankScalable, c->config)
        MADE(ncclCommSplit, c->config)
        MADE(ncclCommShrink, c->config)
        MADE(ncclCommGrow, c->config)
    case MK_HOOK_ncclCommInitAll: {
        const struct mk_call_ncclCommInitAll *c = h->call;
        *comms = c->out;
        return c->ndev;
    }
    default:
        return -1;
    }
}
