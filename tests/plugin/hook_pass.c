/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Every hooked function: its arguments come to the library bit for bit, its return code comes back, the consumer sees
 * both and the caller; what a consumer answers does not reach the library.
 *
 * hook_pass HOOKS.so */
#include "hook_face.h"
#include "hook_stand.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of each function, from the table: a call with packed arguments; a copy whose padding is 0; its two sides. */
#define FROM(type, name) args->name
#define COPY(type, name) out->name = args->name;
#define LOCAL(type, name)                                                                                    \
    type const name = args->name;                                                                            \
    (void)name;
#define SIDES(lib, name, comm__, stream__)                                                                   \
    static void sides_##name(const void *from, void **comm_, void **stream_)                                 \
    {                                                                                                        \
        const struct mk_call_##name *args = from;                                                            \
        (void)args;                                                                                          \
        MK_ARGS_##name(LOCAL, MK_HOOK_NOTHING) *comm_ = comm__;                                              \
        *stream_ = stream__;                                                                                 \
    }
#define CLEAN(name)                                                                                          \
    static void clean_##name(void *to, const void *from)                                                     \
    {                                                                                                        \
        const struct mk_call_##name *args = from;                                                            \
        struct mk_call_##name *out = to;                                                                     \
        memset(out, 0, sizeof(*out));                                                                        \
        MK_ARGS_##name(COPY, MK_HOOK_NOTHING)(void) args;                                                    \
    }
#define CALL_INT(lib, name, comm, stream)                                                                    \
    CLEAN(name)                                                                                              \
    SIDES(lib, name, comm, stream)                                                                           \
    static int call_##name(const void *from)                                                                 \
    {                                                                                                        \
        const struct mk_call_##name *args = from;                                                            \
        (void)args;                                                                                          \
        return name(MK_ARGS_##name(FROM, STAND_COMMA));                                                      \
    }
#define CALL_VOID(lib, name, comm, stream)                                                                   \
    CLEAN(name)                                                                                              \
    SIDES(lib, name, comm, stream)                                                                           \
    static int call_##name(const void *from)                                                                 \
    {                                                                                                        \
        const struct mk_call_##name *args = from;                                                            \
        name(MK_ARGS_##name(FROM, STAND_COMMA));                                                             \
        return -1;                                                                                           \
    }
MK_HOOK_ROWS(CALL_INT)
MK_HOOK_VOID(CALL_VOID)

#define RECORD_CUBLAS stand_record_cublas
#define RECORD_CUBLASLT stand_record_cublaslt
#define RECORD_NCCL stand_record_nccl
#define RECORD_CUDA stand_record_cuda
static const struct function {
    const char *name;
    stand_record_fn record;
    int (*call)(const void *args); /* -1: it returns nothing */
    void (*clean)(void *to, const void *from);
    void (*sides)(const void *args, void **comm, void **stream);
    size_t bytes;
} functions[] = {
#define ROW(lib, name, comm, stream)                                                                         \
    [MK_HOOK_##name] = {#name,        RECORD_##lib, call_##name,                                             \
                        clean_##name, sides_##name, sizeof(struct mk_call_##name)},
    MK_HOOK_ROWS(ROW) MK_HOOK_VOID(ROW)};

static const struct hook_face *face;
static int failures;
static struct {
    int before, after, result, id;
    void *comm, *stream;
    const void *caller;
    unsigned char call[256];
    bool answer;
} seen;

static void wrong(const char *name, const char *what)
{
    fprintf(stderr, "%s: %s\n", name, what);
    failures++;
}

static bool consume(struct mk_hook_event *e)
{
    seen.id = (int)e->id;
    seen.comm = e->comm;
    seen.stream = face->stream(e);
    seen.caller = e->caller;
    if (e->after) {
        seen.after++;
        seen.result = e->result;
        return false;
    }
    seen.before++;
    functions[e->id].clean(seen.call, e->call);
    e->result = 41;
    return seen.answer;
}

/* The stand-in says that a handle's stream is the handle and one. */
static void expected_sides(int id, const void *args, void **comm, void **stream)
{
    functions[id].sides(args, comm, stream);
    if (id == MK_HOOK_cublasGemmEx || id == MK_HOOK_cublasGemmEx_64 || id == MK_HOOK_cublasSgemm_v2 ||
        id == MK_HOOK_cublasSgemm_v2_64) {
        void *handle;
        memcpy(&handle, args, sizeof(handle));
        *stream = (void *)((uintptr_t)handle + 1);
    }
}

static void check_seen(int id, const void *args, int result)
{
    extern const char __executable_start, etext;
    const struct function *f = &functions[id];
    void *comm, *stream;
    expected_sides(id, args, &comm, &stream);
    if (seen.before != 1 || seen.after != !seen.answer || seen.id != id)
        wrong(f->name, "not one event before and one after");
    if (memcmp(seen.call, args, f->bytes))
        wrong(f->name, "other arguments in the event");
    if (seen.comm != comm || seen.stream != stream)
        wrong(f->name, "another communicator or stream in the event");
    if (!seen.answer && seen.result != result)
        wrong(f->name, "another return code in the event");
    if ((uintptr_t)seen.caller < (uintptr_t)&__executable_start ||
        (uintptr_t)seen.caller >= (uintptr_t)&etext)
        wrong(f->name, "the caller is not this program");
}

static void check(int id, unsigned seed, bool consumed, bool answered)
{
    const struct function *f = &functions[id];
    union {
        unsigned char b[256];
        max_align_t align;
    } raw, args;
    for (size_t i = 0; i < f->bytes; i++)
        raw.b[i] = (unsigned char)(seed * 31 + i * 7 + 1);
    f->clean(&args, &raw);
    struct stand_record *r = f->record(id);
    const int calls = r->calls;
    const uint64_t hooked = face->calls((enum mk_hook_id)id);
    r->keep = 1;
    r->result = (int)seed + 3;
    memset(&seen, 0, sizeof(seen));
    seen.answer = answered;
    face->set(consumed ? consume : NULL);
    const int got = f->call(&args);
    face->set(NULL);
    if (face->calls((enum mk_hook_id)id) != hooked + 1)
        wrong(f->name, "not counted once");
    if (r->calls != calls + !answered)
        wrong(f->name, answered ? "answered, yet the library was called" : "not one call at the library");
    if (!answered && memcmp(r->last, &args, f->bytes))
        wrong(f->name, "other arguments at the library");
    const bool nothing = id == MK_HOOK_cublasSgemm;
    if (!nothing && got != (answered ? 41 : r->result))
        wrong(f->name, "another return code");
    if (consumed)
        check_seen(id, &args, nothing ? 0 : r->result);
}

int main(int argc, char **argv)
{
    if (argc != 2 || setenv("MK_FUSE", "on", 1))
        return 2;
    face = hook_open(argv[1]);
    if (sizeof(functions) / sizeof(functions[0]) != MK_HOOK_EVENTS)
        wrong("table", "rows are missing");
    for (int id = 0; id < MK_HOOK_EVENTS; id++) {
        if (strcmp(functions[id].name, face->name((enum mk_hook_id)id)))
            wrong(functions[id].name, "another name behind its id");
        for (unsigned seed = 0; seed < 8; seed++) {
            check(id, seed, false, false);
            check(id, seed, true, false);
            check(id, seed, true, true);
        }
    }
    fprintf(stderr, "%d functions, %d failures\n", MK_HOOK_EVENTS, failures);
    return failures != 0;
}
