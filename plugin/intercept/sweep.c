/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The rounds over the loaded objects: find the libraries, patch the slots of the others.
 *
 * Everything here happens inside callbacks of dl_iterate_phdr, which hold the dynamic linker's lock of its list, so no
 * object goes away meanwhile; dlopen, dlsym, malloc and the log are not called there. `gate` is around all of it:
 * nobody waits for it for good, so a caller that already holds the dynamic linker's lock (its own callback of
 * dl_iterate_phdr) cannot be in a circle with us. Only fork waits, so that no child is made while one of us holds the
 * dynamic linker's lock, which nobody would release in the child. */
#include "slots.h"
#include "count.h"
#include "intern.h"
#include "mk/err.h"
#include "mk/log.h"
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>

/* Whose calls are nobody's business but their own. A file's name matches when it begins so and
 * no letter follows (libcublas.so.13, libcublas-1a2b.so.12). */
static const struct {
    const char *prefix;
    int lib; /* -1: none of whose functions are hooked */
} libraries[] = {
    {"libcublas", MK_HOOK_CUBLAS},
    {"libcublasLt", MK_HOOK_CUBLASLT},
    {"libnccl", MK_HOOK_NCCL},
    {"libcuda", MK_HOOK_CUDA},
    {"libcudart", -1},
    {"libcudadebugger", -1},
    {"libcudla", -1},
    {"libcudnn", -1},
    {"libcufft", -1},
    {"libcufftw", -1},
    {"libcufile", -1},
    {"libcupti", -1},
    {"libcurand", -1},
    {"libcusolver", -1},
    {"libcusolverMg", -1},
    {"libcusparse", -1},
    {"libcusparseLt", -1},
    {"libcutensor", -1},
    {"libcutensorMg", -1},
    {"libcublasmp", -1},
    {"libcublasMp", -1},
    {"libcusolverMp", -1},
    {"libnvJitLink", -1},
    {"libnvToolsExt", -1},
    {"libnvblas", -1},
    {"libnvfatbin", -1},
    {"libnvidia", -1},
    {"libnvjpeg", -1},
    {"libnvjitlink", -1},
    {"libnvperf_host", -1},
    {"libnvperf_target", -1},
    {"libnvptxcompiler", -1},
    {"libnvrtc", -1},
    {"libnvshmem", -1},
    {"libnvshmem_host", -1},
    {"libnvtx", -1},
    {"libnvvm", -1},
};

#define KNOWN 4096
#define LAZY 256
#define WAITS 2000 /* turns of sched_yield */

struct known {
    const void *phdr;
    uintptr_t base;
};

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static bool started;      /* atomic */
static bool driver_known; /* atomic; the driver's symbols have been dealt with */
/* All below: under the gate. */
static bool with_lookups;
static unsigned long long seen_adds, seen_subs;
static struct known known[KNOWN]; /* objects whose slots are done, in the order of the list */
static int nknown;
static struct {
    void **slot;
    int id;
} lazy
    [LAZY]; /* slots that were patched before they were first used: the linker may have been about to fill one */
static int nlazy;
static unsigned lazy_calls;
static bool pending;           /* an object was still being relocated */
static unsigned pending_turns; /* rounds in which it was */
#define PENDING_TURNS 100000
static struct {
    const void *phdr; /* of the object that is it; NULL: none */
    bool foreign;     /* others define its names, too */
} lib[MK_HOOK_LIBS];
static struct mk_hook_stats stats;
static char self;
static const struct {
    const char *name;
    int lib;
} asks[MK_HOOK_ASKED] = {
#define ROW(lib, name, args) [MK_ASK_##name] = {#name, MK_HOOK_##lib},
    MK_HOOK_ASKS(ROW)
#undef ROW
};
static void *asked[MK_HOOK_ASKED]; /* atomic */

void *mk_hook_ask(enum mk_hook_ask which)
{
    return __atomic_load_n(&asked[which], __ATOMIC_ACQUIRE);
}

static bool ours(const struct mk_elf *e)
{
    return mk_elf_holds(e, (uintptr_t)&self);
}

/* MK_HOOK_LIBS: not NVIDIA's. */
static int library_of(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    if (strncmp(name, "libc", 4) && strncmp(name, "libn", 4))
        return MK_HOOK_LIBS;
    for (size_t i = 0; i < sizeof(libraries) / sizeof(libraries[0]); i++) {
        const size_t n = strlen(libraries[i].prefix);
        if (strncmp(name, libraries[i].prefix, n))
            continue;
        const char c = name[n];
        if (!(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z'))
            return libraries[i].lib;
    }
    return MK_HOOK_LIBS;
}

/* Takes an object as the library of its name, or as the C library: of the latter's functions each is where it is defined first,
 * since others define some of them (a sanitizer's library dlopen). false: it has none of the functions. */
static bool take(const struct mk_elf *e, int which)
{
    bool any = false;
    for (int id = 0; id < MK_HOOKS; id++) {
        if ((int)mk_hooks[id].lib != which ||
            (which == MK_HOOK_LOADER && lib[which].phdr && mk_hook_original(id)))
            continue;
        void *p = (void *)mk_elf_find(e, mk_hooks[id].name);
        if (!p)
            continue;
        any = true;
        __atomic_store_n(&mk_hooks[id].original, p, __ATOMIC_RELEASE);
    }
    for (int i = 0; i < MK_HOOK_ASKED; i++)
        if (asks[i].lib == which)
            __atomic_store_n(&asked[i], (void *)mk_elf_find(e, asks[i].name), __ATOMIC_RELEASE);
    return any;
}

/* Is a function of the library `which` defined in an object that is not it? */
static bool defines(const struct mk_elf *e, int which)
{
    for (int id = 0; id < MK_HOOKS; id++)
        if ((int)mk_hooks[id].lib == which && mk_elf_find(e, mk_hooks[id].name))
            return true;
    return false;
}

static bool is_known(const void *phdr, uintptr_t base, int hint)
{
    if (hint < nknown && known[hint].phdr == phdr && known[hint].base == base)
        return true;
    for (int i = 0; i < nknown; i++)
        if (known[i].phdr == phdr && known[i].base == base)
            return true;
    return false;
}

struct round {
    unsigned long long adds, subs;
    int index;
    bool
        first; /* a turn's first pass: what is not known has come since the last round, or could not be patched in it */
    bool driver; /* which the driver had not before this one */
    bool fresh;  /* a library came or went: every object anew */
    bool gone[MK_HOOK_LIBS];
    unsigned patched;
    char news[64]; /* an object that came now and that could have looked something up */
};

/* The driver has come: its functions are handed out as stubs from now on. */
static void counted(const struct mk_elf *e)
{
    mk_count_driver(e);
    __atomic_store_n(&driver_known, true, __ATOMIC_RELEASE);
    for (int id = 0; id < MK_HOOK_EVENTS; id++)
        if (mk_hooks[id].lib == MK_HOOK_CUDA && mk_hook_original(id))
            __atomic_store_n(&mk_hooks[id].through, mk_count_stub(mk_hook_original(id)), __ATOMIC_RELEASE);
}

/* Libraries of the driver: what they look up is the driver's own business. */
static bool of_driver(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    return library_of(path) == MK_HOOK_CUDA || !strncmp(name, "libnvidia-", 10) ||
           !strncmp(name, "libcudadebugger", 15);
}

static void asks_linker(void *ctx, const struct mk_elf *e, void **slot, const char *name, bool jump)
{
    (void)e, (void)slot, (void)jump;
    *(bool *)ctx |= !strcmp(name, "dlsym") || !strcmp(name, "dlvsym") ||
                    (name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z');
}

/* An object came in the same round as the driver: it was not patched while it could already look the driver's functions up. */
static void came_with(const struct mk_elf *e, struct round *r)
{
    bool could = false;
    if (r->news[0] || of_driver(e->name))
        return;
    mk_elf_imports(e, asks_linker, &could);
    for (size_t i = 0; could && e->name[i] && i + 1 < sizeof(r->news); i++)
        r->news[i] = e->name[i];
    if (could && !r->news[0])
        r->news[0] = '?';
}

static bool has_all(int which)
{
    for (int id = 0; id < MK_HOOKS; id++)
        if ((int)mk_hooks[id].lib == which && !mk_hook_original(id))
            return false;
    return true;
}

static void find_libraries(const struct mk_elf *e)
{
    const int which = library_of(e->name);
    for (int l = 0; l < MK_HOOK_LIBS; l++) {
        if (l == MK_HOOK_LOADER && lib[l].phdr && lib[l].phdr != e->phdr && with_lookups && !has_all(l))
            take(e, l);
        if (lib[l].phdr == e->phdr || (l == MK_HOOK_LOADER ? lib[l].phdr != NULL || !with_lookups
                                                           : which != l && which != MK_HOOK_LIBS))
            continue;
        if (which == MK_HOOK_CUDA && l == which && lib[l].phdr)
            mk_count_end("there is another driver", e->name);
        if ((l == MK_HOOK_LOADER || which == l) && !lib[l].phdr) {
            if (take(e, l)) {
                lib[l].phdr = e->phdr;
                stats.lib[l] = true;
                if (l == MK_HOOK_CUDA)
                    counted(e);
            }
        } else if (l != MK_HOOK_LOADER && defines(e, l)) {
            lib[l].foreign = true;
            stats.copies++;
        }
    }
}

static int first_pass(struct dl_phdr_info *info, size_t size, void *ctx)
{
    struct round *r = ctx;
    struct mk_elf e;
    (void)size;
    r->adds = info->dlpi_adds;
    r->subs = info->dlpi_subs;
    for (int l = 0; l < MK_HOOK_LIBS; l++)
        if (lib[l].phdr && lib[l].phdr == info->dlpi_phdr)
            r->gone[l] = false;
    const bool seen = is_known(info->dlpi_phdr, info->dlpi_addr, r->index++);
    /* Where something has gone, what lies in an object's place may be another one. Before the driver in the list or behind it: that
     * is no order of their constructors. */
    const bool news = r->first && !r->driver && mk_count_watching() && (!seen || r->subs != seen_subs);
    if ((seen && !news) || !mk_elf_read(info, &e) || ours(&e))
        return 0;
    if (news)
        came_with(&e, r);
    if (seen)
        return 0;
    bool had[MK_HOOK_LIBS];
    for (int l = 0; l < MK_HOOK_LIBS; l++)
        had[l] = lib[l].phdr != NULL;
    find_libraries(&e);
    for (int l = 0; l < MK_HOOK_LIBS; l++)
        if (!had[l] && lib[l].phdr) {
            r->fresh = true;
            r->gone[l] = false; /* taken once: what its symbols lead to changes with it */
        }
    return 0;
}

/* A slot that is left alone: once the driver's symbols lead to stubs that is all the same; before, it could look up the
 * driver's own. */
static void unseen(const struct mk_elf *e, int id)
{
    if ((id == MK_HOOK_dlsym || id == MK_HOOK_dlvsym) && !__atomic_load_n(&driver_known, __ATOMIC_RELAXED) &&
        mk_count_watching())
        mk_count_end("its lookups cannot be seen", e->name);
}

/* One slot. A slot that holds the library's function is ours to take; so is one that was never used and would get it,
 * as long as nobody else in the process defines that name. */
static void slot_of(void *ctx, const struct mk_elf *e, void **slot, const char *name, bool jump)
{
    struct round *r = ctx;
    const int id = mk_hook_find(name);
    void *original = id < 0 ? NULL : mk_hook_original(id);
    if (!original || (mk_hooks[id].lib == MK_HOOK_LOADER && !with_lookups))
        return;
    void *now = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
    if (now == mk_hook_ours(id))
        return;
    const bool unused = jump && mk_elf_in(e, (uintptr_t)now, PF_X);
    if (mk_count_original(now) != original && !(unused && !lib[mk_hooks[id].lib].foreign)) {
        stats.left++;
        unseen(e, id);
        return;
    }
    const int ret = mk_elf_store(e, slot, now, mk_hook_ours(id));
    if (ret == MK_ERR_AGAIN) {
        pending = true;
    } else if (ret) {
        stats.left++;
        unseen(e, id);
    } else {
        stats.patched++;
        stats.of[mk_hooks[id].lib]++;
        r->patched++;
        if (unused && nlazy < LAZY) {
            lazy[nlazy].slot = slot;
            lazy[nlazy++].id = id;
        }
    }
}

/* NVIDIA's lookups are not answered: that what came is looked at before them is all. */
static void pass_slot(void *ctx, const struct mk_elf *e, void **slot, const char *name, bool jump)
{
    const int id = name[0] == 'd' ? mk_hook_find(name) : -1;
    void *now = __atomic_load_n(slot, __ATOMIC_ACQUIRE), *to;
    if (id != MK_HOOK_dlsym && id != MK_HOOK_dlvsym)
        return;
    void (*pass)(void) = id == MK_HOOK_dlsym ? mk_lookup_pass : mk_lookup_vpass;
    (void)ctx;
    memcpy(&to, &pass, sizeof(to));
    if (now == to)
        return;
    const int ret = now == mk_hook_original(id) || (jump && mk_elf_in(e, (uintptr_t)now, PF_X))
                        ? mk_elf_store(e, slot, now, to)
                        : MK_ERR_UNSUPPORTED;
    if (ret == MK_ERR_AGAIN)
        pending = true;
    else if (ret)
        mk_count_end("its lookups cannot be seen", e->name);
}

static int second_pass(struct dl_phdr_info *info, size_t size, void *ctx)
{
    struct round *r = ctx;
    struct mk_elf e;
    (void)size;
    if (info->dlpi_adds != r->adds || info->dlpi_subs != r->subs)
        return 1; /* another round follows */
    if (is_known(info->dlpi_phdr, info->dlpi_addr, r->index++))
        return 0;
    const bool before = pending;
    pending = false;
    if (mk_elf_read(info, &e) && !ours(&e) && library_of(e.name) == MK_HOOK_LIBS) {
        stats.objects++;
        mk_elf_imports(&e, slot_of, r);
    } else if (with_lookups && mk_count_watching() && mk_elf_read(info, &e) && !ours(&e) &&
               !of_driver(e.name)) {
        mk_elf_imports(&e, pass_slot, r);
    }
    if (pending && pending_turns > PENDING_TURNS) {
        pending = false; /* its pages are never protected: left alone */
        stats.left++;
    }
    if (!pending && nknown < KNOWN) {
        known[nknown].phdr = info->dlpi_phdr;
        known[nknown++].base = info->dlpi_addr;
    }
    pending |= before;
    return 0;
}

static void forget(void)
{
    nknown = nlazy = 0;
    stats.copies = stats.left = 0;
    for (int l = 0; l < MK_HOOK_LIBS; l++)
        lib[l].foreign = false;
}

static unsigned rounds(void)
{
    unsigned patched = 0;
    struct round r;
    for (int turn = 0; turn < 16; turn++) {
        memset(&r, 0, sizeof(r));
        for (int l = 0; l < MK_HOOK_LIBS; l++)
            r.gone[l] = true;
        r.driver = lib[MK_HOOK_CUDA].phdr != NULL;
        r.first = true;
        dl_iterate_phdr(first_pass, &r);
        r.first = false;
        if (!r.driver && lib[MK_HOOK_CUDA].phdr && r.news[0])
            mk_count_end("it came together with the driver", r.news);
        const bool left = r.subs != seen_subs;
        for (int l = 0; l < MK_HOOK_LIBS; l++)
            if (lib[l].phdr && r.gone[l]) {
                lib[l].phdr = NULL;
                r.fresh = true;
            }
        seen_adds = r.adds;
        seen_subs = r.subs;
        if (left || r.fresh) {
            /* Somebody went: what lies where is open again. A library came: who imports it may be known. */
            forget();
            r.index = 0;
            dl_iterate_phdr(first_pass, &r);
            seen_adds = r.adds;
            seen_subs = r.subs;
        }
        pending = false;
        r.index = 0;
        const int changed = dl_iterate_phdr(second_pass, &r);
        stats.sweeps++;
        patched += r.patched;
        if (!changed)
            break;
        seen_adds--; /* no round may count this one as seen */
    }
    pending_turns = pending ? pending_turns + 1 : 0;
    return patched;
}

static int has_changed(struct dl_phdr_info *info, size_t size, void *ctx)
{
    (void)size;
    bool *changed = ctx;
    *changed = info->dlpi_adds != seen_adds || info->dlpi_subs != seen_subs;
    /* A thread that was in the midst of a first call may have filled its slot after us. Look twice: soon, and later. */
    if (nlazy && !*changed && (++lazy_calls == 64 || lazy_calls == 4096))
        for (int i = 0; i < nlazy; i++) {
            void *now = mk_hook_original(lazy[i].id);
            if (__atomic_compare_exchange_n(lazy[i].slot, &now, mk_hook_ours(lazy[i].id), false,
                                            __ATOMIC_RELEASE, __ATOMIC_RELAXED))
                stats.lost++;
        }
    return 1;
}

static void report(unsigned patched)
{
    struct mk_hook_stats s;
    mk_hook_get_stats(&s);
    MK_INFO("HOOK",
            "%u slots patched now, %u in all, %u left alone, %u more definitions; cuBLAS %s, cuBLASLt %s, "
            "NCCL %s",
            patched, s.patched, s.left, s.copies, s.lib[MK_HOOK_CUBLAS] ? "loaded" : "not loaded",
            s.lib[MK_HOOK_CUBLASLT] ? "loaded" : "not loaded", s.lib[MK_HOOK_NCCL] ? "loaded" : "not loaded");
}

void mk_sweep_check(bool wait)
{
    const int saved = errno;
    bool changed = false;
    unsigned patched = 0;
    if (!__atomic_load_n(&started, __ATOMIC_ACQUIRE))
        return;
    for (int i = 0; pthread_mutex_trylock(&gate); i++) {
        if (wait && i >= WAITS && !__atomic_load_n(&driver_known, __ATOMIC_ACQUIRE))
            mk_count_end("a lookup could not wait for a round", "");
        if (!wait || i >= WAITS)
            return;
        sched_yield();
    }
    dl_iterate_phdr(has_changed, &changed);
    if (changed || pending) {
        patched = rounds();
        lazy_calls = 0;
    }
    pthread_mutex_unlock(&gate);
    if (patched)
        report(patched);
    mk_count_say();
    errno = saved;
}

void mk_sweep_stats(struct mk_hook_stats *out)
{
    pthread_mutex_lock(&gate);
    *out = stats;
    pthread_mutex_unlock(&gate);
    out->missed = mk_lookup_missed();
}

void mk_sweep_walk(int (*visit)(struct dl_phdr_info *, size_t, void *), void *ctx)
{
    for (int i = 0; pthread_mutex_trylock(&gate); i++) {
        if (i >= WAITS)
            return;
        sched_yield();
    }
    dl_iterate_phdr(visit, ctx);
    pthread_mutex_unlock(&gate);
}

static void before_fork(void)
{
    pthread_mutex_lock(&gate);
    mk_count_fork(true);
}

static void after_fork(void)
{
    mk_count_fork(false);
    pthread_mutex_unlock(&gate);
}

int mk_sweep_start(bool lookups)
{
    pthread_mutex_lock(&gate);
    const bool again = started;
    if (!again) {
        with_lookups = lookups;
        mk_count_start(lookups && mk_hook_mode() == MK_HOOK_ON);
    }
    __atomic_store_n(&started, true, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&gate);
    if (again)
        return 0;
    if (pthread_atfork(before_fork, after_fork, after_fork))
        return MK_ERR_NOMEM;
    mk_sweep_check(true);
    return 0;
}
