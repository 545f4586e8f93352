/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The hooks themselves, made from table.h, and who hears of their calls. */
#include "intern.h"
#include "count.h"
#include "mk/err.h"

static uint64_t calls[MK_HOOKS];
static mk_hook_fn consumer;
static enum mk_hook_mode mode_set;

static bool launches(enum mk_hook_id id)
{
    return id <= MK_HOOK_cublasLtMatmul || (id >= MK_HOOK_ncclAllReduce && id <= MK_HOOK_ncclScatterConfig);
}

/* Counted, objects that came are patched, the consumer asked. true: event->result is the answer. */
static bool before(struct mk_hook_event *event)
{
    __atomic_fetch_add(&calls[event->id], 1, __ATOMIC_RELAXED);
    mk_sweep_check(false);
    const mk_hook_fn fn = __atomic_load_n(&consumer, __ATOMIC_ACQUIRE);
    const bool answered = fn && fn(event);
    event->counts = !answered && launches(event->id) && mk_count_watching() && mk_count_sit(&event->counted);
    return answered;
}

/* The original has returned: was what it enqueued counted? */
static void look(const struct mk_hook_event *event, int result)
{
    if (!event->counts)
        return;
    const bool counted = mk_count_rise() != event->counted;
    if (result)
        return;
    if (counted || event->id <= MK_HOOK_cublasLtMatmul)
        mk_count_called(mk_hooks[event->id].lib, counted);
    mk_count_say();
}

/* What the call returns: the consumer may change it. */
static int after(struct mk_hook_event *event, int result)
{
    look(event, result);
    const mk_hook_fn fn = __atomic_load_n(&consumer, __ATOMIC_ACQUIRE);
    if (!fn)
        return result;
    event->after = true;
    event->result = result;
    fn(event);
    return event->result;
}

#define COMMA() ,
#define PARAM(type, name) type name
#define VALUE(type, name) name,
#define NAME(type, name) name
#define TYPE(type, name) type
#define EVENT(name_, comm_, stream_)                                                                         \
    const struct mk_call_##name_ call = {MK_ARGS_##name_(VALUE, MK_HOOK_NOTHING) 0};                         \
    struct mk_hook_event event = {.id = MK_HOOK_##name_,                                                     \
                                  .call = &call,                                                             \
                                  .comm = comm_,                                                             \
                                  .stream = stream_,                                                         \
                                  .caller = __builtin_return_address(0)};                                    \
    fn_##name_ fn;                                                                                           \
    if (before(&event))
#define ORIGINAL(name) *(void **)&fn = mk_hook_through(MK_HOOK_##name)

/* A function without arguments is declared (void). */
#define LIST(name, what) MK_ARGS_##name(what, COMMA)
#define HOOK(lib, name, comm_, stream_)                                                                      \
    typedef int (*fn_##name)(LIST(name, TYPE));                                                              \
    static int hook_##name(LIST(name, PARAM))                                                                \
    {                                                                                                        \
        EVENT(name, comm_, stream_) return event.result;                                                     \
        ORIGINAL(name);                                                                                      \
        return after(&event, fn(LIST(name, NAME)));                                                          \
    }
#define HOOK_VOID(lib, name, comm_, stream_)                                                                 \
    typedef void (*fn_##name)(LIST(name, TYPE));                                                             \
    static void hook_##name(LIST(name, PARAM))                                                               \
    {                                                                                                        \
        EVENT(name, comm_, stream_) return;                                                                  \
        ORIGINAL(name);                                                                                      \
        fn(LIST(name, NAME));                                                                                \
        after(&event, 0);                                                                                    \
    }

/* An empty list of parameters means (void) where the arguments are none; C11 has no macro for that. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
MK_HOOK_ROWS(HOOK)
MK_HOOK_VOID(HOOK_VOID)
#pragma GCC diagnostic pop

struct mk_hook mk_hooks[MK_HOOKS] = {
#define ROW(lib, name, comm, stream)                                                                         \
    [MK_HOOK_##name] = {#name, MK_HOOK_##lib, (void (*)(void))hook_##name, NULL, NULL},
    MK_HOOK_ROWS(ROW) MK_HOOK_VOID(ROW)
#undef ROW
        [MK_HOOK_cuGetProcAddress] = {"cuGetProcAddress", MK_HOOK_CUDA, (void (*)(void))mk_lookup_proc, NULL,
                                      NULL},
    [MK_HOOK_cuGetProcAddress_v2] = {"cuGetProcAddress_v2", MK_HOOK_CUDA, (void (*)(void))mk_lookup_proc_v2,
                                     NULL, NULL},
    [MK_HOOK_dlsym] = {"dlsym", MK_HOOK_LOADER, mk_lookup_dlsym, NULL, NULL},
    [MK_HOOK_dlvsym] = {"dlvsym", MK_HOOK_LOADER, mk_lookup_dlvsym, NULL, NULL},
    [MK_HOOK_dlopen] = {"dlopen", MK_HOOK_LOADER, mk_lookup_dlopen, NULL, NULL},
};

int mk_hook_find(const char *name)
{
    if (!(name[0] == 'c' && name[1] == 'u') && !(name[0] == 'n' && name[1] == 'c') &&
        !(name[0] == 'd' && name[1] == 'l'))
        return -1;
    for (int id = 0; id < MK_HOOKS; id++)
        if (!strcmp(mk_hooks[id].name, name))
            return id;
    return -1;
}

int mk_hook_start(enum mk_hook_mode mode, bool lookups)
{
    if (mode == MK_HOOK_OFF)
        return 0;
    if (!MK_HOOK_HERE)
        return mk_fail_quiet(MK_ERR_UNSUPPORTED, "interception is for x86-64 with glibc");
    __atomic_store_n(&mode_set, mode, __ATOMIC_RELEASE);
    return mk_sweep_start(lookups);
}

enum mk_hook_mode mk_hook_mode(void)
{
    return __atomic_load_n(&mode_set, __ATOMIC_ACQUIRE);
}

void mk_hook_set(mk_hook_fn fn)
{
    __atomic_store_n(&consumer, fn, __ATOMIC_RELEASE);
}

void *mk_hook_stream(const struct mk_hook_event *event)
{
    void *stream = NULL, *handle;
    switch (event->id) {
    case MK_HOOK_cublasGemmEx:
    case MK_HOOK_cublasGemmEx_64:
    case MK_HOOK_cublasSgemm_v2:
    case MK_HOOK_cublasSgemm_v2_64:
        memcpy(&handle, event->call, sizeof(handle)); /* the first argument of each */
        MK_ASK(cublasGetStream_v2, get);
        return get && !get(handle, &stream) ? stream : NULL;
    default:
        return event->stream;
    }
}

void mk_hook_poll(void)
{
    mk_sweep_check(false);
}

const char *mk_hook_name(enum mk_hook_id id)
{
    return mk_hooks[id].name;
}

uint64_t mk_hook_calls(enum mk_hook_id id)
{
    return __atomic_load_n(&calls[id], __ATOMIC_RELAXED);
}

void mk_hook_get_stats(struct mk_hook_stats *out)
{
    mk_sweep_stats(out);
}
