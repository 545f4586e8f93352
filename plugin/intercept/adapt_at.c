/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Where a call puts its work: stream and context by ids that the driver never gives twice, capture and what the next
 * node would depend on; and where it comes from. */
#include "adapt_in.h"
#include "count.h"
#include <link.h>
#include <stdio.h>

/* Streams are destroyed and their handles used again, but not their ids: what belongs to an id never changes. */
#define CACHE 256
static struct cached {
    uint64_t stream, ctx;
    bool any, blocking;
} cache[CACHE];

void mk_adapt_at_forget(void)
{
    memset(cache, 0, sizeof(cache));
}

/* The default streams' handles stand for a stream of each context, or of each thread. */
static bool is_default(const void *stream)
{
    return (uintptr_t)stream <= 2;
}

/* A capturing stream that is asked for its id or its flags makes the capture invalid (seen with driver 580). Its handle serves
 * instead: what is remembered of captures is told apart by theirs; and nothing runs now that blocking could matter for. */
static bool ask_capturing(void *stream, struct cached *out)
{
    unsigned long long ctx_id = 0;
    void *ctx = NULL;
    MK_ASK(cuStreamGetCtx, get_ctx);
    MK_ASK(cuCtxGetId, get_ctx_id);
    if (!get_ctx || !get_ctx_id || get_ctx(stream, &ctx) || get_ctx_id(ctx, &ctx_id))
        return false;
    *out = (struct cached){.stream = UINT64_C(1) << 63 | (uintptr_t)stream, .ctx = ctx_id};
    return true;
}

static bool ask_stream(void *stream, struct cached *out)
{
    unsigned long long id = 0, ctx_id = 0;
    unsigned flags = 0;
    void *ctx = NULL;
    MK_ASK(cuStreamGetId, get_id);
    MK_ASK(cuStreamGetCtx, get_ctx);
    MK_ASK(cuCtxGetId, get_ctx_id);
    MK_ASK(cuStreamGetFlags, get_flags);
    if (!get_id || !get_ctx || !get_ctx_id || !get_flags || get_id(stream, &id))
        return false;
    struct cached *c = &cache[id % CACHE];
    if (c->any && c->stream == id && !is_default(stream)) {
        *out = *c;
        return true;
    }
    if (get_ctx(stream, &ctx) || get_ctx_id(ctx, &ctx_id) || get_flags(stream, &flags))
        return false;
    *out = (struct cached){.stream = id, .ctx = ctx_id, .any = true, .blocking = !(flags & 1)};
    if (!is_default(stream))
        *c = *out;
    return true;
}

/* Is `node` among the direct dependencies of `of`? */
static bool depends(void *of, const void *node)
{
    void *deps[16];
    size_t n = sizeof(deps) / sizeof(deps[0]);
    MK_ASK(cuGraphNodeGetDependencies, get);
    if (!get || get(of, deps, &n))
        return false;
    for (size_t i = 0; i < n && i < sizeof(deps) / sizeof(deps[0]); i++)
        if (deps[i] == node)
            return true;
    return false;
}

/* A dependency on which another one depends orders nothing. */
static void keep_last(void *const *deps, size_t n, struct mk_pair_at *at)
{
    at->ndeps = 0;
    for (size_t i = 0; i < n; i++) {
        bool needless = false;
        for (size_t j = 0; n <= 2 * MK_PAIR_DEPS && j < n && !needless; j++)
            needless = i != j && depends(deps[j], deps[i]);
        at->reduced |= needless;
        if (needless)
            continue;
        if (at->ndeps < MK_PAIR_DEPS)
            at->deps[at->ndeps] = (uintptr_t)deps[i];
        at->ndeps++;
    }
}

bool mk_adapt_at(void *stream, struct mk_pair_at *at)
{
    struct cached s;
    int status = 0;
    void *graph = NULL, *const *deps = NULL;
    size_t ndeps = 0;
    uint64_t capture = 0;
    memset(at, 0, sizeof(*at));
    MK_ASK(cuStreamGetCaptureInfo_v2, get_capture);
    if (!get_capture || get_capture(stream, &status, &capture, &graph, &deps, &ndeps))
        return false;
    /* One that is invalid is a capture all the same: whether K or NCCL runs must not depend on this rank's mishap, which the launch
     * will tell. */
    at->capture = status == 2 ? UINT64_MAX : 0;
    if (status == 2 || !(status == 1 ? ask_capturing(stream, &s) : ask_stream(stream, &s)))
        return false;
    at->ctx = s.ctx;
    at->stream = s.stream;
    at->blocking = s.blocking;
    at->counted = mk_adapt.counted || mk_count_on();
    at->enqueues = mk_adapt.enqueues + mk_count_total();
    at->untold = __atomic_load_n(&mk_adapt.untold, __ATOMIC_RELAXED);
    if (status == 1) {
        at->capture = capture;
        keep_last(deps, ndeps, at);
    }
    return true;
}

struct look {
    uintptr_t at;
    char *text;
    size_t bytes;
};

static int look_at(struct dl_phdr_info *info, size_t size, void *ctx)
{
    const struct look *l = ctx;
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        const uintptr_t from = info->dlpi_addr + p->p_vaddr;
        if (p->p_type != PT_LOAD || l->at < from || l->at - from >= p->p_memsz)
            continue;
        const char *slash = strrchr(info->dlpi_name, '/'), *name = slash ? slash + 1 : info->dlpi_name;
        snprintf(l->text, l->bytes, "%s+0x%llx", *name ? name : "program",
                 (unsigned long long)(l->at - info->dlpi_addr));
        for (char *c = l->text; *c; c++) /* one word of a log line */
            if (*c <= ' ' || *c == ':' || *c == 127)
                *c = '_';
        return 1;
    }
    return 0;
}

/* Not by dladdr: its lock may be held by a thread that waits for this one. */
void mk_adapt_where(const void *caller, char *text, size_t bytes)
{
    struct look l = {(uintptr_t)caller, text, bytes};
    snprintf(text, bytes, "0x%llx", (unsigned long long)(uintptr_t)caller);
    mk_sweep_walk(look_at, &l);
}
