/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The count behind the eager proof: whoever finds a function of the driver that enqueues, in whatever way, finds one that counts
 * before it works; and what cannot be counted ends the proof.
 *
 * hook_count CASE HOOKS.so FOLDER, under LD_PRELOAD but for the case `slots` */
#include "hook_driver.h"
#include "hook_face.h"
#include "hook_runtime.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static const struct hook_face *face;
static const char *folder;
static int failures;
static uint64_t at_work; /* the count when the driver's function ran */

#define CHECK(x)                                                                                             \
    do {                                                                                                     \
        if (!(x)) {                                                                                          \
            fprintf(stderr, "line %d: %s\n", __LINE__, #x);                                                  \
            failures++;                                                                                      \
        }                                                                                                    \
    } while (0)

/* The runtime's functions, and the stand-in's record. */
static void *(*symbol)(const char *), *(*version)(const char *, const char *),
    *(*proc)(const char *, uint64_t);
static struct stand_driver *driver;
typedef int (*memset_fn)(uint64_t, unsigned char, size_t, void *);

static void *open_in(const char *file, int how)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s", folder, file);
    void *so = dlopen(path, how);
    CHECK(so != NULL);
    return so;
}

static void work(void)
{
    at_work = face->total();
}

static void *runtime_with(const char *file, const char *driver_file)
{
    char path[4096];
    void *(*open)(const char *), *so = open_in(file, RTLD_NOW | RTLD_LOCAL);
    *(void **)&open = dlsym(so, "runtime_open");
    *(void **)&symbol = dlsym(so, "runtime_symbol");
    *(void **)&version = dlsym(so, "runtime_version");
    *(void **)&proc = dlsym(so, "runtime_proc");
    snprintf(path, sizeof(path), "%s/%s", folder, driver_file);
    void *cuda = open(path);
    driver = dlsym(cuda, "stand_driver");
    CHECK(cuda && driver);
    driver->inside = work;
    return cuda;
}
static void *runtime(const char *file)
{
    return runtime_with(file, "libcuda.so.1");
}

/* Does it count, before it works, once? */
static bool counts(void *p)
{
    memset_fn fn;
    const uint64_t before = face->total();
    const int works = driver->works;
    memcpy(&fn, &p, sizeof(p));
    return p && fn(1, 2, 3, NULL) == works + 1 && at_work == before + 1 && face->total() == before + 1;
}

static bool says(const char *want)
{
    char text[160] = "";
    const bool off = face->why(text, sizeof(text)) && !face->counting();
    if (!off || !strstr(text, want))
        fprintf(stderr, "it says: %s\n", text);
    return off && strstr(text, want);
}

static void lookups(void *cuda)
{
    CHECK(says("have not both been seen"));
    CHECK(counts(symbol("cuMemsetD8Async")) && !strcmp(face->last(), "cuMemsetD8Async"));
    CHECK(counts(proc("cuMemsetD8Async", 0)));
    CHECK(proc("cuMemsetD8Async", 0) == symbol("cuMemsetD8Async"));
    /* one that has no symbol of its own */
    CHECK(counts(proc("cuMemsetD8Async", 2)) && proc("cuMemsetD8Async", 2) != symbol("cuMemsetD8Async"));
    CHECK(counts(dlsym(cuda, "cuMemsetD8Async")));
    CHECK(!version("cuMemsetD8Async", "NO_SUCH_VERSION"));
    /* in the global scope, and from the next object on */
    open_in("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
    CHECK(counts(dlsym(RTLD_DEFAULT, "cuMemsetD8Async")) && counts(dlsym(RTLD_NEXT, "cuMemsetD8Async")));
    /* by the slots of an object that comes now, and looks into its own scope first */
    int (*linked)(void);
    void *late = open_in("libhook_runtime_linked.so", RTLD_LAZY | RTLD_LOCAL | RTLD_DEEPBIND);
    *(void **)&linked = dlsym(late, "runtime_memset");
    const uint64_t before = face->total();
    CHECK(linked && linked() > 0 && face->total() == before + 1);
    /* what asks only is the driver's own; so is what we take for ourselves */
    CHECK(proc("cuEventQuery", 0) == face->original(symbol("cuEventQuery")));
    CHECK(face->original(symbol("cuEventQuery")) == symbol("cuEventQuery"));
    memset_fn own;
    *(void **)&own = face->original(symbol("cuMemsetD8Async"));
    const uint64_t quiet = face->total();
    CHECK(own(1, 2, 3, NULL) == driver->works && face->total() == quiet);
    /* arguments go through as they are */
    double (*many)(int, double, int, int, int, int, int, int, double, long);
    *(void **)&many = symbol("cuMemcpy3DAsync_v2");
    CHECK(many(1, 2, 3, 4, 5, 6, 7, 8, 9, 10) == 385 && face->total() == quiet + 1);
    CHECK(says("have not both been seen"));
}

static memset_fn launch;
static void in_call(int id, const void *call)
{
    (void)id, (void)call;
    launch(0, 0, 0, NULL);
}
static void in_nothing(int id, const void *call)
{
    (void)id, (void)call;
}

static struct stand_record *record_of(void *so, const char *name, int id)
{
    struct stand_record *(*record)(int);
    *(void **)&record = dlsym(so, name);
    return record ? record(id) : NULL;
}

/* cuBLAS and NCCL, whose launches the stand-ins make by what their runtime has found. */
static void proof(void)
{
    void *blas = open_in("libcublas.so.13", RTLD_NOW | RTLD_LOCAL), *nccl = open_in("libnccl.so.2", RTLD_NOW);
    int (*gemm)(MK_ARGS_cublasGemmEx(STAND_PARAM, STAND_COMMA));
    int (*reduce)(MK_ARGS_ncclAllReduce(STAND_PARAM, STAND_COMMA));
    static char comm;
    *(void **)&launch = proc("cuMemsetD8Async", 2);
    *(void **)&gemm = dlsym(blas, "cublasGemmEx");
    *(void **)&reduce = dlsym(nccl, "ncclAllReduce");
    struct stand_record *in_gemm = record_of(blas, "stand_record_cublas", MK_HOOK_cublasGemmEx);
    in_gemm->inside = in_nothing; /* launches that are not counted */
    record_of(nccl, "stand_record_nccl", MK_HOOK_ncclAllReduce)->inside = in_call;
#define GEMM() gemm(NULL, 0, 0, 1, 1, 1, NULL, NULL, 0, 1, NULL, 0, 1, NULL, NULL, 0, 1, 0, 0)
    reduce(NULL, NULL, 1, 0, 0, &comm, NULL);
    GEMM();
    CHECK(says("have not both been seen"));
    in_gemm->inside = in_call;
    GEMM();
    CHECK(face->counting());
}

static void one_that_is_unknown(bool asked)
{
    proof();
    int (*thing)(void);
    *(void **)&thing = asked ? proc("cuInternalThing", 0) : symbol("cuNewThing");
    CHECK(thing && face->counting() == !asked);
    if (!asked)
        thing();
    CHECK(says(asked ? "is on no list was asked for: cuInternalThing" : "is on no list: cuNewThing"));
}

static void tables(unsigned char which)
{
    static const unsigned char storage[16] = {0xc6, 0x93, 0x33, 0x6e, 0x11, 0x21, 0xdf, 0x11,
                                              0xa8, 0xc3, 0x68, 0xf3, 0x55, 0xd8, 0x95, 0x93};
    unsigned char id[16] = {1};
    int (*get)(const void **, const void *);
    int (*fn)(int);
    void *const *table = NULL;
    proof();
    *(void **)&get = proc("cuGetExportTable", 0);
    CHECK(get && proc("cuGetExportTable", 0) == symbol("cuGetExportTable"));
    /* one of bookkeeping is as it was */
    CHECK(!get((const void **)&table, storage) && table);
    memcpy(&fn, &table[0], sizeof(fn));
    const uint64_t before = face->total();
    CHECK(fn(5) == driver->works + 5 && face->total() == before && face->counting());
    void *const was = table[0];
    id[0] = which;
    void *const *again = NULL;
    CHECK(!get((const void **)&table, id) && !get((const void **)&again, id) && again == table);
    if (which != 1) {
        CHECK(which != 2 || table[0] == was);
        CHECK(says(which == 2 ? "is not what was expected: 02000000" : "is not what was expected: 03000000"));
        return;
    }
    CHECK(table[0] == (void *)(4 * sizeof(void *)) && !table[2]);
    memcpy(&fn, &table[3], sizeof(fn));
    CHECK(fn(7) == driver->works + 7 && face->total() == before + 1 && at_work == before + 1);
    CHECK(!strncmp(face->last(), "table ", 6) && face->counting());
    id[0] = 9;
    CHECK(get((const void **)&table, id) == 500 && face->counting()); /* the driver has none */
}

static int (*get_table)(const void **, const void *);
static pthread_barrier_t both;
static int slow; /* atomic */

/* In front of the C library's: who may write keeps that for a while, and loses it to whoever closes the page meanwhile. */
int mprotect(void *at, size_t bytes, int how)
{
    const int ret = (int)syscall(SYS_mprotect, at, bytes, how);
    if (how & PROT_WRITE && __atomic_load_n(&slow, __ATOMIC_ACQUIRE))
        usleep(500);
    return ret;
}

static void *asks_for_tables(void *from)
{
    pthread_barrier_wait(&both);
    for (int i = from ? 1 : 0; i < STAND_TABLES; i += 2) {
        const unsigned char id[16] = {4, (unsigned char)i};
        void *const *table = NULL;
        CHECK(!get_table((const void **)&table, id) && table);
    }
    return NULL;
}

/* Two runtimes begin at the same time; what they ask for lies in the same protected pages. */
static void tables_at_once(void)
{
    pthread_t other;
    *(void **)&get_table = proc("cuGetExportTable", 0);
    CHECK(!pthread_barrier_init(&both, NULL, 2) && !pthread_create(&other, NULL, asks_for_tables, &both));
    __atomic_store_n(&slow, 1, __ATOMIC_RELEASE);
    asks_for_tables(NULL);
    pthread_join(other, NULL);
    __atomic_store_n(&slow, 0, __ATOMIC_RELEASE);
    char text[160] = "";
    CHECK(face->why(text, sizeof(text)) && strstr(text, "have not both been seen"));
}

/* The driver goes, and another one comes elsewhere: nothing leads to where the first one was. */
static void comes_again(void)
{
    static const unsigned char id[16] = {1};
    void *const *table = NULL;
    Dl_info was;
    void *so = open_in("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    void *volatile p = dlsym(so, "cuInit");
    CHECK(p && says("have not both been seen") && dladdr(dlsym(so, "stand_driver"), &was));
    CHECK(!dlclose(so) && !dlopen(was.dli_fname, RTLD_NOW | RTLD_NOLOAD));
    /* nobody else gets its place */
    CHECK(mmap(was.dli_fbase, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) ==
          was.dli_fbase);
    runtime_with("libhook_runtime.so", "driver/libcuda.so.1");
    *(void **)&get_table = proc("cuGetExportTable", 0);
    CHECK(says("the driver was loaded again"));
    CHECK(get_table && !get_table((const void **)&table, id) && table);
    CHECK(proc("cuMemsetD8Async", 2) && !proc("cuNoSuchThing", 0));
}

/* dlopen searches where its caller says, and what a name leads to is somebody's file; the driver is there before a file that may
 * open it in a constructor. */
static void opens(void)
{
    void *(*find)(const char *), *so = open_in("libhook_runtime.so", RTLD_NOW | RTLD_LOCAL);
    *(void **)&find = dlsym(so, "runtime_find");
    CHECK(!dlopen("libhook_found.so", RTLD_NOW)); /* not by this program's path */
    CHECK(strstr(dlerror(), "libhook_found.so"));
    CHECK(find("libhook_found.so"));
    CHECK(says("the driver has not been loaded"));
    CHECK(!find("no-such-torch.so") && strstr(dlerror(), "no-such-torch.so"));
    CHECK(says("have not both been seen"));
    CHECK(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD));
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    const char *what = argv[1];
    face = hook_open(argv[2]);
    folder = argv[3];
    if (!strcmp(what, "slots") || !strcmp(what, "early")) {
        runtime("libcudart_stand.so");
        if (!strcmp(what, "slots"))
            CHECK(says("not loaded by LD_PRELOAD") &&
                  symbol("cuMemsetD8Async") == face->original(symbol("cuMemsetD8Async")));
        else
            CHECK(says("it came together with the driver"));
        return failures != 0;
    }
    CHECK(says("the driver has not been loaded"));
    if (!strcmp(what, "opens")) {
        opens();
        return failures != 0;
    }
    if (!strcmp(what, "again")) {
        comes_again();
        return failures != 0;
    }
    if (!strcmp(what, "hidden")) {
        open_in("libhook_hidden.so", RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
        runtime("libcudart_stand.so");
        CHECK(says("its lookups cannot be seen"));
        return failures != 0;
    }
    if (!strcmp(what, "together") || !strcmp(what, "behind")) {
        open_in(!strcmp(what, "behind") ? "libhook_behind.so" : "libhook_runtime_linked.so",
                RTLD_NOW | RTLD_LOCAL);
        runtime("libcudart_stand.so");
        CHECK(says("it came together with the driver"));
        return failures != 0;
    }
    void *cuda = runtime(!strcmp(what, "nvidia") ? "libcudart_stand.so" : "libhook_runtime.so");
    if (!strcmp(what, "nvidia") || !strcmp(what, "other")) {
        lookups(cuda);
        proof();
    } else if (!strcmp(what, "unknown") || !strcmp(what, "unlisted")) {
        one_that_is_unknown(!strcmp(what, "unknown"));
    } else if (!strcmp(what, "threads")) {
        tables_at_once();
    } else if (!strcmp(what, "second")) {
        proof();
        open_in("driver/libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
        dlsym(RTLD_DEFAULT, "main");
        CHECK(says("there is another driver"));
    } else {
        tables(!strcmp(what, "table") ? 1 : !strcmp(what, "odd") ? 2 : 3);
    }
    return failures != 0;
}
