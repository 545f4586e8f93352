/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The stubs, what they count, and whether the count proves anything. */
#include "count.h"
#include "count_in.h"
#include "intern.h"
#include "mk/log.h"
#include <pthread.h>
#include <stdio.h>

/* Read and written by the stubs. Hidden, as all names here are; the compiler does not look into assembler. */
#define SHARED __attribute__((used))
SHARED void *mk_count_target[MK_COUNT_STUBS];  /* set before its stub is handed out, never changed */
SHARED uint64_t mk_count_sum;                  /* atomic */
SHARED uint32_t mk_count_each[MK_COUNT_STUBS]; /* atomic */
SHARED uint32_t mk_count_latest;               /* atomic; whose stub ran last */
/* Whose calls are counted apart, while a hooked call of theirs is under way. By thread pointer and not in thread-local memory:
 * without a call a stub reaches only what the linker has room for in all threads, and where that is used up an object that wants
 * some cannot be opened any more, as a plugin is. */
SHARED struct mk_count_seat {
    uint64_t thread; /* atomic; 0: free. Taken and given back by its owner */
    uint64_t n;      /* its owner's alone */
} mk_count_seats[MK_COUNT_SEATS];

static struct {
    char name[64];
} about[MK_COUNT_STUBS];
static uint32_t nstubs;                  /* atomic; taken so far */
static uint32_t graphs[MK_COUNT_SOME];   /* stubs of graph launches */
static uint32_t unknowns[MK_COUNT_SOME]; /* of functions on no list: once one is called the proof is over */
static uint32_t ngraphs, nunknown;       /* atomic */
/* Of taking a stub; nothing else is called with it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

enum { OFF, WATCHING };
static int mode;                 /* atomic */
static bool hooked;              /* atomic; libcuda's symbols lead to stubs */
static unsigned called, counted; /* atomic; masks of enum mk_hook_lib */
static bool over;                /* atomic; set after the next two */
static char over_why[64], over_name[64];
static int ending, said; /* atomic */

#if MK_HOOK_HERE
/* One stub is 16 bytes: its number in r11, which belongs to nobody at a function's entry, and on to the common part. That
 * changes r10, r11 and the flags: no argument, no vector register, nothing on the stack. The locked additions are over before the
 * jump, so no work is there that is not counted. */
/* clang-format off */
__asm__(".text\n.p2align 4\n"
        ".globl mk_count_stubs\n.hidden mk_count_stubs\n.type mk_count_stubs, @function\n"
        ".globl mk_count_stubs_end\n.hidden mk_count_stubs_end\n"
        "mk_count_stubs:\n"
        ".cfi_startproc\n"
        ".set mk_count_i, 0\n"
        ".rept " MK_COUNT_TEXT(MK_COUNT_STUBS) "\n"
        ".p2align 4\n"
        "endbr64\n"
        "mov $mk_count_i, %r11d\n"
        "jmp mk_count_enter\n"
        ".set mk_count_i, mk_count_i + 1\n"
        ".endr\n"
        ".p2align 4\n"
        "mk_count_stubs_end:\n"
        "mk_count_enter:\n"
        "lea mk_count_each(%rip), %r10\n"
        "lock incl (%r10,%r11,4)\n"
        "lock incq mk_count_sum(%rip)\n"
        "mov %r11d, mk_count_latest(%rip)\n"
        "push %r11\n.cfi_adjust_cfa_offset 8\n"
        "mov %fs:0, %r11\n"
        "shr $" MK_COUNT_TEXT(MK_COUNT_SEAT_SHIFT) ", %r11\n"
        "and $" MK_COUNT_TEXT(MK_COUNT_SEATS) "-1, %r11d\n"
        "shl $4, %r11d\n"
        "lea mk_count_seats(%rip), %r10\n"
        "add %r10, %r11\n"
        "mov %fs:0, %r10\n"
        "cmp %r10, (%r11)\n"
        "jne 1f\n"
        "incq 8(%r11)\n"
        "1: pop %r11\n.cfi_adjust_cfa_offset -8\n"
        "lea mk_count_target(%rip), %r10\n"
        "jmp *(%r10,%r11,8)\n"
        ".cfi_endproc\n.size mk_count_stubs, . - mk_count_stubs\n");
/* clang-format on */
extern const char mk_count_stubs[], mk_count_stubs_end[];

static void *stub_at(uint32_t i)
{
    return (void *)(uintptr_t)(mk_count_stubs + (size_t)i * MK_COUNT_STUB_BYTES);
}
static bool is_stub(const void *p)
{
    return (uintptr_t)p >= (uintptr_t)mk_count_stubs && (uintptr_t)p < (uintptr_t)mk_count_stubs_end;
}
static uint32_t number_of(const void *p)
{
    return (uint32_t)(((uintptr_t)p - (uintptr_t)mk_count_stubs) / MK_COUNT_STUB_BYTES);
}
static uint64_t this_thread(void)
{
    uint64_t p; /* the ABI's: the first word there is its own address */
    __asm__("mov %%fs:0, %0" : "=r"(p));
    return p;
}
#else
static void *stub_at(uint32_t i)
{
    return mk_count_target[i];
}
static bool is_stub(const void *p)
{
    (void)p;
    return false;
}
static uint32_t number_of(const void *p)
{
    (void)p;
    return 0;
}
static uint64_t this_thread(void)
{
    return 1;
}
#endif

/* ---- stubs ---- */

static void copy_text(char *to, const char *from, size_t bytes)
{
    size_t i = 0;
    for (; from && from[i] && i + 1 < bytes; i++)
        to[i] = from[i];
    to[i] = '\0';
}

static bool list(uint32_t *ids, uint32_t *n, uint32_t id)
{
    if (*n == MK_COUNT_SOME)
        return false;
    ids[*n] = id;
    __atomic_store_n(n, *n + 1, __ATOMIC_RELEASE);
    return true;
}

/* Under the lock. */
static void *take(void *p, const char *name, bool unknown)
{
    const uint32_t n = nstubs;
    for (uint32_t i = 0; i < n; i++)
        if (mk_count_target[i] == p)
            return stub_at(i);
    if (n == MK_COUNT_STUBS)
        return NULL;
    mk_count_target[n] = p;
    copy_text(about[n].name, name, sizeof(about[n].name));
    if ((unknown && !list(unknowns, &nunknown, n)) ||
        (!strncmp(name, "cuGraphLaunch", 13) && !list(graphs, &ngraphs, n)))
        return NULL;
    __atomic_store_n(&nstubs, n + 1, __ATOMIC_RELEASE);
    return stub_at(n);
}

void *mk_count_take(void *p, const char *name, bool unknown)
{
    if (!p || is_stub(p))
        return p;
    pthread_mutex_lock(&lock);
    void *stub = take(p, name, unknown);
    pthread_mutex_unlock(&lock);
    if (!stub)
        mk_count_end("too many functions of the driver are in use", name);
    return stub ? stub : p;
}

void *mk_count_behind(void *p)
{
    return is_stub(p) ? mk_count_target[number_of(p)] : p;
}

void *mk_count_stub(void *p)
{
    const uint32_t n = __atomic_load_n(&nstubs, __ATOMIC_ACQUIRE);
    for (uint32_t i = 0; i < n; i++)
        if (mk_count_target[i] == p)
            return stub_at(i);
    return p;
}

void mk_count_fork(bool before)
{
    if (before) {
        mk_count_fork_tables(true);
        pthread_mutex_lock(&lock);
    } else {
        pthread_mutex_unlock(&lock);
        mk_count_fork_tables(false);
    }
}

/* ---- readings ---- */

uint64_t mk_count_total(void)
{
    return __atomic_load_n(&mk_count_sum, __ATOMIC_SEQ_CST);
}

static struct mk_count_seat *seat_of(uint64_t thread)
{
    return &mk_count_seats[(thread >> MK_COUNT_SEAT_SHIFT) % MK_COUNT_SEATS];
}

bool mk_count_sit(uint64_t *n)
{
    const uint64_t thread = this_thread();
    struct mk_count_seat *s = seat_of(thread);
    uint64_t free = 0;
    if (!__atomic_compare_exchange_n(&s->thread, &free, thread, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        return false;
    *n = s->n;
    return true;
}

uint64_t mk_count_rise(void)
{
    struct mk_count_seat *s = seat_of(this_thread());
    const uint64_t n = s->n;
    __atomic_store_n(&s->thread, 0, __ATOMIC_RELEASE);
    return n;
}

uint64_t mk_count_graphs(void)
{
    const uint32_t n = __atomic_load_n(&ngraphs, __ATOMIC_ACQUIRE);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += __atomic_load_n(&mk_count_each[graphs[i]], __ATOMIC_RELAXED);
    return sum;
}

const char *mk_count_last(void)
{
    return about[__atomic_load_n(&mk_count_latest, __ATOMIC_RELAXED) % MK_COUNT_STUBS].name;
}

/* ---- the proof ---- */

void mk_count_start(bool preloaded)
{
    __atomic_store_n(&mode, MK_HOOK_HERE && preloaded ? WATCHING : OFF, __ATOMIC_RELEASE);
}

bool mk_count_watching(void)
{
    return __atomic_load_n(&mode, __ATOMIC_ACQUIRE) == WATCHING;
}

void mk_count_hooked(void)
{
    __atomic_store_n(&hooked, true, __ATOMIC_RELEASE);
}

bool mk_count_is_hooked(void)
{
    return __atomic_load_n(&hooked, __ATOMIC_ACQUIRE);
}

void mk_count_end(const char *why, const char *name)
{
    if (__atomic_exchange_n(&ending, 1, __ATOMIC_ACQ_REL))
        return;
    copy_text(over_why, why, sizeof(over_why));
    copy_text(over_name, name, sizeof(over_name));
    __atomic_store_n(&over, true, __ATOMIC_RELEASE);
}

void mk_count_called(enum mk_hook_lib lib, bool did)
{
    unsigned *mask = did ? &counted : &called;
    const unsigned bit = 1u << lib;
    if (!(__atomic_load_n(mask, __ATOMIC_RELAXED) & bit))
        __atomic_fetch_or(mask, bit, __ATOMIC_RELEASE);
}

/* Somebody has called what is on no list. */
static bool met_unknown(void)
{
    const uint32_t n = __atomic_load_n(&nunknown, __ATOMIC_ACQUIRE);
    for (uint32_t i = 0; i < n; i++)
        if (__atomic_load_n(&mk_count_each[unknowns[i]], __ATOMIC_ACQUIRE)) {
            mk_count_end("a function was called that is on no list", about[unknowns[i]].name);
            return true;
        }
    return false;
}

/* Is every library of these either counted or not yet called? And one of the GEMMs', and NCCL? */
static bool seen(void)
{
    const unsigned gemm = 1u << MK_HOOK_CUBLAS | 1u << MK_HOOK_CUBLASLT, nccl = 1u << MK_HOOK_NCCL;
    const unsigned did = __atomic_load_n(&counted, __ATOMIC_ACQUIRE);
    const unsigned came = __atomic_load_n(&called, __ATOMIC_ACQUIRE);
    return did & nccl && did & gemm && !(came & gemm & ~did);
}

bool mk_count_on(void)
{
    return mk_count_watching() && mk_count_is_hooked() && seen() &&
           !__atomic_load_n(&over, __ATOMIC_ACQUIRE) && !met_unknown();
}

const char *mk_count_why(char *text, size_t bytes)
{
    if (mk_count_on())
        return NULL;
    if (!mk_count_watching())
        snprintf(text, bytes, "not loaded by LD_PRELOAD");
    else if (__atomic_load_n(&over, __ATOMIC_ACQUIRE))
        snprintf(text, bytes, "%s: %s", over_why, over_name);
    else if (!mk_count_is_hooked())
        snprintf(text, bytes, "the driver has not been loaded");
    else
        snprintf(text, bytes, "launches of cuBLAS and NCCL have not both been seen to be counted");
    return text;
}

void mk_count_say(void)
{
    char text[160];
    enum { NOTHING, BEGUN, ENDED };
    if (!mk_count_watching())
        return;
    const int now = __atomic_load_n(&over, __ATOMIC_ACQUIRE) ? ENDED : mk_count_on() ? BEGUN : NOTHING;
    int was = __atomic_load_n(&said, __ATOMIC_RELAXED);
    if (now <= was ||
        !__atomic_compare_exchange_n(&said, &was, now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        return;
    if (now == BEGUN)
        MK_INFO("HOOK", "all that is put on the GPU is counted: eager pairs can overlap");
    else if (mk_count_why(text, sizeof(text)))
        MK_INFO("HOOK", "eager pairs are plain, what is put on the GPU cannot be counted: %s", text);
}

void mk_count_report(void)
{
    char text[160];
    if (!mk_count_watching() || !mk_count_is_hooked())
        return;
    const char *why = mk_count_why(text, sizeof(text));
    MK_INFO("HOOK", "driver calls counted: %llu by %u functions%s%s", (unsigned long long)mk_count_total(),
            __atomic_load_n(&nstubs, __ATOMIC_ACQUIRE), why ? "; no proof: " : "", why ? why : "");
    const uint32_t n = mk_log_on(MK_LOG_TRACE) ? __atomic_load_n(&nstubs, __ATOMIC_ACQUIRE) : 0;
    for (uint32_t i = 0; i < n; i++)
        if (mk_count_each[i])
            mk_log(MK_LOG_TRACE, "HOOK", "counted %s: %u", about[i].name, mk_count_each[i]);
}
