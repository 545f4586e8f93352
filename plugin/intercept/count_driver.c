/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Where others find the driver's functions: its symbol table, cuGetProcAddress, cuGetExportTable. */
#include "count.h"
#include "count_in.h"
#include "intern.h"
#include "mk/driver_calls.h"
#include <pthread.h>
#include <stdio.h>

/* The driver's own; atomic, set once. */
static void *proc, *proc_v2, *table_of;
/* What of it is mapped, to know its code and its data by. Written before the symbols are set. */
static struct mk_elf driver;
/* Atomic; that one may be gone, and nothing of ours that leads to it may be handed out. */
static bool again;
/* Around changes of tables: two that change the same page would take each other's right to write. */
static pthread_mutex_t tables = PTHREAD_MUTEX_INITIALIZER;

/* ---- names ---- */

/* By its full name, or by the plain one of which there are variants only (cuGetProcAddress takes it). */
static enum mk_driver_call kind_of(const char *name)
{
    static const char *const variants[] = {"_v2", "_v3", "_v4", "_ptsz", "_ptds", "_v2_ptsz", "_v2_ptds"};
    enum mk_driver_call kind = mk_driver_call(name);
    char longer[96];
    for (size_t i = 0; kind == MK_DRIVER_UNKNOWN && i < sizeof(variants) / sizeof(variants[0]); i++)
        if (snprintf(longer, sizeof(longer), "%s%s", name, variants[i]) < (int)sizeof(longer))
            kind = mk_driver_call(longer);
    return kind;
}

static void *address_of(void (*fn)(void))
{
    void *p;
    memcpy(&p, &fn, sizeof(p));
    return p;
}
#define ADDRESS(fn) address_of((void (*)(void))(fn))

/* As the driver's of these names. */
static int get_proc(const char *symbol, void **fn, int version, uint64_t flags);
static int get_proc_v2(const char *symbol, void **fn, int version, uint64_t flags, int *status);
static int get_table(const void **table, const void *id);

void *mk_count_original(void *p)
{
    return p == ADDRESS(get_proc)      ? proc
           : p == ADDRESS(get_proc_v2) ? proc_v2
           : p == ADDRESS(get_table)   ? table_of
                                       : mk_count_behind(p);
}

/* ---- the symbol table ---- */

/* One defined symbol: what it is to lead to. NULL: what it leads to. */
static void *instead(void *p, const char *name)
{
    if (name[0] != 'c' || name[1] != 'u' || name[2] < 'A' || name[2] > 'Z')
        return NULL;
    switch (mk_driver_call(name)) {
    case MK_DRIVER_QUIET:
        return NULL;
    case MK_DRIVER_LOOKUP:
        if (!strcmp(name, "cuGetProcAddress")) {
            proc = p;
            return ADDRESS(get_proc);
        }
        proc_v2 = p;
        return ADDRESS(get_proc_v2);
    case MK_DRIVER_ENDS:
        table_of = p;
        return ADDRESS(get_table);
    case MK_DRIVER_ENQUEUES:
        return mk_count_take(p, name, false);
    default:
        return mk_count_take(p, name, true);
    }
}

void mk_count_driver(const struct mk_elf *e)
{
    if (!mk_count_watching())
        return;
    if (mk_count_is_hooked() || driver.low) {
        mk_count_end("the driver was loaded again", e->name);
        __atomic_store_n(&again, true, __ATOMIC_RELEASE);
        return;
    }
    driver = *e;
    driver.name = "";
    if (mk_elf_lead(e, instead))
        mk_count_end("the driver's symbols cannot be set", e->name);
    else
        mk_count_hooked();
}

/* ---- cuGetProcAddress ---- */

/* `ours` in place of p, if there is what it leads to: a driver need not export all that it hands out. */
static void *leading(void *ours, const void *to, void *p, const char *name)
{
    if (!to)
        mk_count_end("the driver has no such symbol", name);
    return to ? ours : p;
}

void mk_count_fork_tables(bool before)
{
    if (before)
        pthread_mutex_lock(&tables);
    else
        pthread_mutex_unlock(&tables);
}

void *mk_count_found(const char *symbol, int version, void *p)
{
    if (!mk_count_is_hooked() || !p || __atomic_load_n(&again, __ATOMIC_ACQUIRE))
        return p;
    switch (kind_of(symbol)) {
    case MK_DRIVER_QUIET:
        return p;
    case MK_DRIVER_LOOKUP:
        return p != proc && (version >= 12000 || !strcmp(symbol, "cuGetProcAddress_v2"))
                   ? leading(ADDRESS(get_proc_v2), proc_v2, p, symbol)
                   : leading(ADDRESS(get_proc), proc, p, symbol);
    case MK_DRIVER_ENDS:
        return leading(ADDRESS(get_table), table_of, p, symbol);
    case MK_DRIVER_ENQUEUES:
        return mk_count_take(p, symbol, false);
    default:
        mk_count_end("a function that is on no list was asked for", symbol);
        return mk_count_take(p, symbol, true);
    }
}

static int get_proc(const char *symbol, void **fn, int version, uint64_t flags)
{
    int (*real)(const char *, void **, int, uint64_t);
    *(void **)&real = proc;
    const int ret = real(symbol, fn, version, flags);
    if (!ret && symbol && fn)
        *fn = mk_count_found(symbol, version, *fn);
    return ret;
}

static int get_proc_v2(const char *symbol, void **fn, int version, uint64_t flags, int *status)
{
    int (*real)(const char *, void **, int, uint64_t, int *);
    *(void **)&real = proc_v2;
    const int ret = real(symbol, fn, version, flags, status);
    if (!ret && symbol && fn)
        *fn = mk_count_found(symbol, version, *fn);
    return ret;
}

/* ---- cuGetExportTable ---- */

/* Tables of functions that have no names, by id. The runtime compares the addresses of two of them, and of a function in one,
 * with what the driver says, so no copy can be handed out: entries are changed where they are, or not at all. */
static const struct known {
    unsigned char id[16];
    const char *name;
    /* What it has is bookkeeping (context-local storage, which every call of the runtime reads; questions about contexts and the
     * driver; buffers of tools; checks; host memory): left as it is. Otherwise it is counted. */
    bool quiet;
} known[] = {
    {{0xc6, 0x93, 0x33, 0x6e, 0x11, 0x21, 0xdf, 0x11, 0xa8, 0xc3, 0x68, 0xf3, 0x55, 0xd8, 0x95, 0x93},
     "context storage",
     true},
    {{0xd4, 0x08, 0x20, 0x55, 0xbd, 0xe6, 0x70, 0x4b, 0x8d, 0x34, 0xba, 0x12, 0x3c, 0x66, 0xe1, 0xf2},
     "checks",
     true},
    {{0x26, 0x3e, 0x88, 0x60, 0x7c, 0xd2, 0x61, 0x43, 0x92, 0xf6, 0xbb, 0xd5, 0x00, 0x6d, 0xfa, 0x7e},
     "contexts",
     true},
    {{0xf8, 0xcf, 0xf9, 0x51, 0x21, 0x46, 0x8b, 0x4e, 0xb9, 0xe2, 0xfb, 0x46, 0x9e, 0x7c, 0x0d, 0xd9},
     "requirements",
     true},
    {{0xa0, 0x94, 0x79, 0x8c, 0x2e, 0x74, 0x2e, 0x74, 0x93, 0xf2, 0x08, 0x00, 0x20, 0x0c, 0x0a, 0x66},
     "tools",
     true},
    {{0x42, 0xd8, 0x5a, 0x81, 0x23, 0xf6, 0xcb, 0x47, 0x82, 0x98, 0xf6, 0xe7, 0x8a, 0x3a, 0xec, 0xdc},
     "tools of threads",
     true},
    {{0x19, 0x5b, 0xcb, 0xf4, 0xd6, 0x7d, 0x02, 0x4a, 0xac, 0xc5, 0x1d, 0x29, 0xce, 0xa6, 0x31, 0xae},
     "host memory",
     true},
    {{0xb1, 0x05, 0x41, 0xe1, 0xf7, 0xc7, 0xc7, 0x4a, 0x9f, 0x64, 0xf2, 0x23, 0xbe, 0x99, 0xf1, 0xe2},
     "attributes",
     false},
    {{0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9},
     "runtime",
     false},
};

static const struct known *find(const unsigned char *id)
{
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (!memcmp(known[i].id, id, sizeof(known[i].id)))
            return &known[i];
    return NULL;
}

#define MOST_BYTES 4096
#define SMALL 65536 /* no address */

/* Its functions lead to stubs. false: it is not what a table looks like, or cannot be written. */
static bool lead(void **table, const struct known *k, const unsigned char *id)
{
    const uintptr_t at = (uintptr_t)table;
    char name[64];
    if (at % sizeof(void *) || !mk_elf_in(&driver, at, PF_R))
        return false;
    const size_t bytes = (size_t)table[0]; /* a table begins with its size */
    if (bytes < 2 * sizeof(void *) || bytes > MOST_BYTES || bytes % sizeof(void *) ||
        !mk_elf_in(&driver, at + bytes - 1, PF_R))
        return false;
    for (size_t i = 1; i < bytes / sizeof(void *); i++) {
        void *now = __atomic_load_n(&table[i], __ATOMIC_ACQUIRE);
        if ((uintptr_t)now < SMALL || mk_count_original(now) != now)
            continue; /* none, or a stub */
        if (!mk_elf_in(&driver, (uintptr_t)now, PF_X))
            return false; /* perhaps another table */
        snprintf(name, sizeof(name), "table %s%02x%02x%02x%02x[%zu]", k ? k->name : "", id[0], id[1], id[2],
                 id[3], i);
        if (mk_elf_write(&driver, &table[i], now, mk_count_take(now, name, false)))
            return false;
    }
    return true;
}

static int get_table(const void **table, const void *id)
{
    int (*real)(const void **, const void *);
    char name[40] = "";
    *(void **)&real = table_of;
    const int ret = real(table, id);
    if (ret || !table || !*table || !id)
        return ret;
    const unsigned char *b = id;
    const struct known *k = find(b);
    if (k && k->quiet)
        return ret;
    pthread_mutex_lock(&tables);
    const bool led = lead((void **)(uintptr_t)*table, k, b);
    pthread_mutex_unlock(&tables);
    if (!led) {
        for (int i = 0; i < 16; i++)
            snprintf(name + 2 * i, sizeof(name) - 2 * (size_t)i, "%02x", b[i]);
        mk_count_end("a table of functions is not what was expected", name);
    }
    return ret;
}
