/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* A libcuda.so.1 for machines without a GPU: two devices whose memory lies in memfds, so that handles work between
 * processes as the real ones do. What streams are given, a thread does later: streams among each other in random order,
 * the rows of one copy backwards, so that a completion that is reported too early is found out.
 *
 * Like the driver: an IPC handle can be open once a process; reserved addresses cannot be touched before
 * cuMemSetAccess; memory made without a handle type cannot be exported. No kernels.
 *
 * FAKE_CUDA_EARLY: streams write their words before the copies in front of them; what is unmapped then may have copies
 * under way that nobody knows of, so unmapping waits for them: the fault is to be found by its wrong data alone.
 * FAKE_CUDA_FAIL=n: the n-th call, of those that a communicator's set-up makes and that may fail, does.
 * fake_cuda_counts: what there is now (fake_cuda.h). */
#include "fake_cuda.h"
#include "mk/cuda.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, ALREADY_MAPPED = 208, NOT_SUPPORTED = 801 };
#define DEVICES 2
#define TABLE 1024

struct memory { /* something mapped, or a handle */
    char *at;
    size_t size;
    int fd, device, refs;
    uint64_t handle; /* 1 + index of its handle */
    bool legacy, opened, exportable;
    ino_t inode;
};
struct op {
    struct op *next;
    char *to;
    const char *from;
    size_t bytes;
    uint64_t value;
};
struct stream {
    struct stream *next;
    struct op *first, **last;
    uint64_t given, done;
};
struct event {
    struct stream *s;
    uint64_t at;
};
struct ipc {
    int pid, fd;
    uint64_t size, inode;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work = PTHREAD_COND_INITIALIZER;
static struct memory map[TABLE], handle[TABLE];
static struct stream *streams;
static bool started;
static _Thread_local int current; /* 1 + device */

struct fake_cuda_counts fake_cuda_counts __attribute__((visibility("default")));

static void count(long *what, long n)
{
    __atomic_add_fetch(what, n, __ATOMIC_RELAXED);
}
static bool fails(void)
{
    const char *nth = getenv("FAKE_CUDA_FAIL");
    return __atomic_add_fetch(&fake_cuda_counts.calls, 1, __ATOMIC_RELAXED) == (nth ? atol(nth) : -1);
}

static struct memory *find(mk_cu_ptr p)
{
    for (int i = 0; i < TABLE; i++)
        if (map[i].at && p >= (mk_cu_ptr)(uintptr_t)map[i].at &&
            p < (mk_cu_ptr)(uintptr_t)map[i].at + map[i].size)
            return &map[i];
    return NULL;
}

static struct memory *empty(struct memory *table)
{
    for (int i = 0; i < TABLE; i++)
        if (!table[i].at && !table[i].refs)
            return &table[i];
    return NULL;
}

/* ---- streams ---- */

static void perform(const struct op *o)
{
    if (!o->from) {
        __atomic_store_n((uint64_t *)(void *)o->to, o->value, __ATOMIC_RELEASE);
        return;
    }
    if (o->bytes == 8 && !((uintptr_t)o->to & 7)) {
        uint64_t word;
        memcpy(&word, o->from, 8);
        __atomic_store_n((uint64_t *)(void *)o->to, word, __ATOMIC_RELEASE);
        return;
    }
    memcpy(o->to, o->from, o->bytes);
}

static struct stream *pick(uint64_t *random)
{
    struct stream *s, *chosen = NULL;
    uint64_t n = 0;
    for (s = streams; s; s = s->next) {
        *random = *random * 6364136223846793005ull + 1442695040888963407ull;
        if (s->first && (*random >> 33) % ++n == 0)
            chosen = s;
    }
    return chosen;
}

static void *worker(void *seed)
{
    uint64_t random = (uintptr_t)seed;
    pthread_mutex_lock(&lock);
    for (;;) {
        struct stream *s = pick(&random);
        if (!s) {
            pthread_cond_wait(&work, &lock);
            continue;
        }
        struct op *o = s->first;
        pthread_mutex_unlock(&lock);
        if ((random >> 40) % 16 == 0) {
            const struct timespec nap = {0, (long)((random >> 33) % 50000)};
            nanosleep(&nap, NULL);
        }
        perform(o);
        pthread_mutex_lock(&lock);
        s->first = o->next;
        if (!s->first)
            s->last = &s->first;
        s->done++;
        free(o);
        pthread_cond_broadcast(&work);
    }
    return NULL;
}

static void give(struct stream *s, mk_cu_ptr to, mk_cu_ptr from, size_t bytes, uint64_t value)
{
    struct op *o = calloc(1, sizeof(*o));
    if (!o)
        abort();
    o->to = (char *)(uintptr_t)to;
    o->from = (const char *)(uintptr_t)from;
    o->bytes = bytes;
    o->value = value;
    *s->last = o;
    s->last = &o->next;
    s->given++;
    pthread_cond_broadcast(&work);
}

/* The list may change whenever the lock is given up: begin again then. */
static void finish(void)
{
    struct stream *s = streams;
    while (s) {
        if (!s->first) {
            s = s->next;
            continue;
        }
        pthread_cond_wait(&work, &lock);
        s = streams;
    }
}

static bool early(void)
{
    return getenv("FAKE_CUDA_EARLY") != NULL;
}

/* ---- the functions of the table; anything else says NOT_SUPPORTED ---- */

#define DECLARE(field, symbol, args) int field args __asm__(symbol) __attribute__((visibility("default")));
MK_CU_FUNCTIONS(DECLARE)

int init(unsigned flags)
{
    pthread_t t;
    pthread_mutex_lock(&lock);
    if (!started)
        started = !pthread_create(&t, NULL, worker, (void *)(uintptr_t)(getpid() * 77 + 5));
    pthread_mutex_unlock(&lock);
    return (int)flags;
}
int driver_version(int *version)
{
    *version = 13000;
    return OK;
}
int error_name(int error, const char **name)
{
    static _Thread_local char text[40];
    snprintf(text, sizeof(text), "FAKE_CUDA_ERROR_%d", error);
    *name = text;
    return OK;
}
int device_count(int *n)
{
    *n = DEVICES;
    return OK;
}
int device_get(int *device, int ordinal)
{
    *device = ordinal;
    return ordinal >= 0 && ordinal < DEVICES ? OK : INVALID_VALUE;
}
int device_name(char *name, int len, int device)
{
    snprintf(name, (size_t)len, "Stand-in %d", device);
    return OK;
}
int device_attribute(int *value, int attribute, int device)
{
    (void)device;
    const char *no = getenv("FAKE_CUDA_NO_WRITE64");
    *value = attribute == MK_CU_ATTR_WRITE64 ? !no
             : attribute == MK_CU_ATTR_MAJOR ? 9
             : attribute == MK_CU_ATTR_SMS   ? 132
                                             : 0;
    return OK;
}
int device_uuid(struct mk_cu_uuid *uuid, int device)
{
    memset(uuid, 0x40 + device, sizeof(*uuid));
    return fails() ? INVALID_VALUE : OK;
}
int ctx_retain(void **ctx, int device)
{
    *ctx = (void *)(uintptr_t)(device + 1);
    return OK;
}
int ctx_release(int device)
{
    (void)device;
    return OK;
}
int ctx_set(void *ctx)
{
    current = (int)(uintptr_t)ctx;
    return OK;
}
int ctx_current(void **ctx)
{
    *ctx = (void *)(uintptr_t)current;
    return OK;
}
int ctx_device(int *device)
{
    *device = current - 1;
    return current ? OK : INVALID_VALUE;
}
int ctx_sync(void)
{
    pthread_mutex_lock(&lock);
    finish();
    pthread_mutex_unlock(&lock);
    return OK;
}

int pointer_attribute(void *value, int attribute, mk_cu_ptr p)
{
    pthread_mutex_lock(&lock);
    const struct memory *m = find(p);
    int ret = m ? OK : INVALID_VALUE;
    const int device = m ? m->device : 0;
    if (m && attribute == MK_CU_POINTER_MEMORY_TYPE)
        *(unsigned *)value = MK_CU_MEMORY_DEVICE;
    else if (m && attribute == MK_CU_POINTER_DEVICE)
        *(int *)value = device;
    else if (m && attribute == MK_CU_POINTER_CONTEXT)
        *(void **)value = m->legacy ? (void *)(uintptr_t)(device + 1) : NULL;
    else if (m && attribute == MK_CU_POINTER_IPC_CAPABLE)
        *(bool *)value = m->legacy;
    else if (m && attribute == MK_CU_POINTER_MANAGED)
        *(unsigned *)value = 0;
    else
        ret = INVALID_VALUE;
    pthread_mutex_unlock(&lock);
    return ret;
}

static int add_map(char *at, size_t size, int fd, bool legacy, bool opened, uint64_t h, mk_cu_ptr *out)
{
    struct stat st;
    struct memory *m = empty(map);
    if (!m || fstat(fd, &st))
        return OUT_OF_MEMORY;
    *m = (struct memory){at, size, fd, current - 1, 0, h, legacy, opened, false, st.st_ino};
    count(opened ? &fake_cuda_counts.opened : &fake_cuda_counts.memory, legacy);
    if (out)
        *out = (mk_cu_ptr)(uintptr_t)at;
    return OK;
}

int mem_alloc(mk_cu_ptr *p, size_t bytes)
{
    if (!current || !bytes || fails())
        return INVALID_VALUE;
    const int fd = memfd_create("fake gpu", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes))
        return OUT_OF_MEMORY;
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        return OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    const int ret = add_map(at, bytes, fd, true, false, 0, p);
    pthread_mutex_unlock(&lock);
    return ret;
}

static int forget(mk_cu_ptr p, bool opened)
{
    pthread_mutex_lock(&lock);
    if (early())
        finish();
    struct memory *m = find(p);
    const int ret =
        m && m->legacy && m->opened == opened && (mk_cu_ptr)(uintptr_t)m->at == p ? OK : INVALID_VALUE;
    if (!ret) {
        munmap(m->at, m->size);
        close(m->fd);
        memset(m, 0, sizeof(*m));
        count(opened ? &fake_cuda_counts.opened : &fake_cuda_counts.memory, -1);
    }
    pthread_mutex_unlock(&lock);
    return ret;
}
int mem_free(mk_cu_ptr p)
{
    return forget(p, false);
}
int ipc_close(mk_cu_ptr p)
{
    return forget(p, true);
}

int mem_range(mk_cu_ptr *base, size_t *bytes, mk_cu_ptr p)
{
    pthread_mutex_lock(&lock);
    const struct memory *m = find(p);
    if (m) {
        *base = (mk_cu_ptr)(uintptr_t)m->at;
        *bytes = m->size;
    }
    pthread_mutex_unlock(&lock);
    return m ? OK : INVALID_VALUE;
}

int ipc_get(struct mk_cu_ipc *out, mk_cu_ptr p)
{
    struct ipc h = {getpid(), -1, 0, 0};
    pthread_mutex_lock(&lock);
    const struct memory *m = fails() ? NULL : find(p);
    if (m && m->legacy)
        h = (struct ipc){getpid(), m->fd, m->size, m->inode};
    pthread_mutex_unlock(&lock);
    memset(out, 0, sizeof(*out));
    memcpy(out, &h, sizeof(h));
    return h.fd < 0 ? INVALID_VALUE : OK;
}

int ipc_open(mk_cu_ptr *p, struct mk_cu_ipc handle_bytes, unsigned flags)
{
    struct ipc h;
    struct stat st;
    char path[64];
    int ret = INVALID_VALUE;
    (void)flags;
    if (fails())
        return OUT_OF_MEMORY;
    memcpy(&h, &handle_bytes, sizeof(h));
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", h.pid, h.fd);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (!current || h.pid == getpid() || fd < 0 || fstat(fd, &st) || st.st_ino != h.inode)
        return INVALID_VALUE;
    char *at = mmap(NULL, h.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < TABLE; i++)
        if (map[i].at && map[i].opened && map[i].inode == st.st_ino)
            ret = ALREADY_MAPPED;
    if (ret != ALREADY_MAPPED && at != MAP_FAILED)
        ret = add_map(at, h.size, fd, true, true, 0, p);
    pthread_mutex_unlock(&lock);
    return ret;
}

/* ---- virtual memory ---- */

int vmm_granularity(size_t *bytes, const struct mk_cu_alloc *what, int option)
{
    (void)what;
    (void)option;
    *bytes = 65536;
    return OK;
}

static int add_handle(int fd, size_t size, int device, bool exportable, uint64_t *out)
{
    struct memory *m = empty(handle);
    if (!m)
        return OUT_OF_MEMORY;
    memset(m, 0, sizeof(*m));
    m->fd = fd;
    m->size = size;
    m->device = device;
    m->exportable = exportable;
    m->refs = 1;
    *out = (uint64_t)(m - handle) + 1;
    return OK;
}

int vmm_create(uint64_t *out, size_t bytes, const struct mk_cu_alloc *what, unsigned long long flags)
{
    (void)flags;
    const int fd = memfd_create("fake gpu, virtual", MFD_CLOEXEC);
    if (bytes % 65536 || fd < 0 || ftruncate(fd, (off_t)bytes))
        return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    const int ret = add_handle(fd, bytes, what->location.id, what->handle_types & MK_CU_HANDLE_FD, out);
    pthread_mutex_unlock(&lock);
    return ret;
}

static void unref(uint64_t h)
{
    struct memory *m = &handle[h - 1];
    if (--m->refs)
        return;
    close(m->fd);
    memset(m, 0, sizeof(*m));
}
int vmm_release(uint64_t h)
{
    pthread_mutex_lock(&lock);
    unref(h);
    pthread_mutex_unlock(&lock);
    return OK;
}
int vmm_retain(uint64_t *out, void *p)
{
    pthread_mutex_lock(&lock);
    const struct memory *m = find((mk_cu_ptr)(uintptr_t)p);
    const bool ok = m && m->handle;
    if (ok) {
        *out = m->handle;
        handle[m->handle - 1].refs++;
    }
    pthread_mutex_unlock(&lock);
    return ok ? OK : INVALID_VALUE;
}
int vmm_what(struct mk_cu_alloc *what, uint64_t h)
{
    memset(what, 0, sizeof(*what));
    what->handle_types = handle[h - 1].exportable ? MK_CU_HANDLE_FD : 0;
    what->location.id = handle[h - 1].device;
    return OK;
}
int vmm_export(void *fd, uint64_t h, int type, unsigned long long flags)
{
    (void)flags;
    pthread_mutex_lock(&lock);
    const struct memory *m = &handle[h - 1];
    const int got = type == MK_CU_HANDLE_FD && m->exportable ? fcntl(m->fd, F_DUPFD_CLOEXEC, 3) : -1;
    pthread_mutex_unlock(&lock);
    *(int *)fd = got;
    return got < 0 ? INVALID_VALUE : OK;
}
int vmm_import(uint64_t *out, void *os, int type)
{
    struct stat st;
    const int fd = fcntl((int)(intptr_t)os, F_DUPFD_CLOEXEC, 3);
    if (type != MK_CU_HANDLE_FD || fd < 0 || fstat(fd, &st))
        return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    const int ret = add_handle(fd, (size_t)st.st_size, current - 1, true, out);
    pthread_mutex_unlock(&lock);
    return ret;
}
int vmm_reserve(mk_cu_ptr *p, size_t bytes, size_t alignment, mk_cu_ptr wish, unsigned long long flags)
{
    (void)alignment;
    (void)wish;
    (void)flags;
    void *at = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    *p = (mk_cu_ptr)(uintptr_t)at;
    return at == MAP_FAILED ? OUT_OF_MEMORY : OK;
}
int vmm_free(mk_cu_ptr p, size_t bytes)
{
    return munmap((void *)(uintptr_t)p, bytes) ? INVALID_VALUE : OK;
}
int vmm_map(mk_cu_ptr p, size_t bytes, size_t offset, uint64_t h, unsigned long long flags)
{
    (void)flags;
    pthread_mutex_lock(&lock);
    struct memory *m = &handle[h - 1];
    int ret = INVALID_VALUE;
    void *at = (void *)(uintptr_t)p;
    if (!offset && bytes <= m->size &&
        mmap(at, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, m->fd, 0) != MAP_FAILED) {
        ret = add_map(at, bytes, m->fd, false, false, h, NULL);
        find(p)->device = m->device;
        m->refs++;
    }
    pthread_mutex_unlock(&lock);
    return ret;
}
int vmm_unmap(mk_cu_ptr p, size_t bytes)
{
    pthread_mutex_lock(&lock);
    if (early())
        finish();
    struct memory *m = find(p);
    const bool ok = m && m->handle && m->size == bytes;
    if (ok) {
        if (mmap(m->at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
            abort();
        unref(m->handle);
        memset(m, 0, sizeof(*m));
    }
    pthread_mutex_unlock(&lock);
    return ok ? OK : INVALID_VALUE;
}
int vmm_access(mk_cu_ptr p, size_t bytes, const struct mk_cu_access *who, size_t n)
{
    (void)who;
    (void)n;
    return mprotect((void *)(uintptr_t)p, bytes, PROT_READ | PROT_WRITE) ? INVALID_VALUE : OK;
}

/* ---- host memory, streams, events, copies ---- */

int host_register(void *p, size_t bytes, unsigned flags)
{
    (void)flags;
    if (!p || !bytes || fails())
        return INVALID_VALUE;
    count(&fake_cuda_counts.registered, 1);
    return OK;
}
int host_unregister(void *p)
{
    if (early())
        ctx_sync();
    count(&fake_cuda_counts.registered, -1);
    return p ? OK : INVALID_VALUE;
}
int host_device_ptr(mk_cu_ptr *device, void *host, unsigned flags)
{
    *device = (mk_cu_ptr)(uintptr_t)host;
    return flags || fails() ? INVALID_VALUE : OK;
}
int stream_create(void **out, unsigned flags)
{
    struct stream *s = current && !fails() ? calloc(1, sizeof(*s)) : NULL;
    (void)flags;
    if (!s)
        return INVALID_VALUE;
    init(0); /* who only makes communicators never says so */
    s->last = &s->first;
    pthread_mutex_lock(&lock);
    s->next = streams;
    streams = s;
    pthread_mutex_unlock(&lock);
    *out = s;
    return OK;
}
int stream_sync(void *stream)
{
    struct stream *s = stream;
    pthread_mutex_lock(&lock);
    while (s->first)
        pthread_cond_wait(&work, &lock);
    pthread_mutex_unlock(&lock);
    return OK;
}
int stream_destroy(void *stream)
{
    stream_sync(stream);
    pthread_mutex_lock(&lock);
    struct stream **at = &streams;
    while (*at != stream)
        at = &(*at)->next;
    *at = (*at)->next;
    pthread_mutex_unlock(&lock);
    free(stream);
    return OK;
}
int stream_query(void *stream)
{
    pthread_mutex_lock(&lock);
    const bool busy = ((struct stream *)stream)->first != NULL;
    pthread_mutex_unlock(&lock);
    return busy ? MK_CU_NOT_READY : OK;
}
int stream_write64(void *stream, mk_cu_ptr p, uint64_t value, unsigned flags)
{
    pthread_mutex_lock(&lock);
    if (early()) /* a driver that breaks the order of its streams: tests must find it out */
        __atomic_store_n((uint64_t *)(uintptr_t)p, value, __ATOMIC_RELEASE);
    else
        give(stream, p, 0, 8, value);
    pthread_mutex_unlock(&lock);
    return (int)flags;
}
int event_create(void **event, unsigned flags)
{
    (void)flags;
    *event = fails() ? NULL : calloc(1, sizeof(struct event));
    count(&fake_cuda_counts.events, *event != NULL);
    return *event ? OK : OUT_OF_MEMORY;
}
int event_record(void *event, void *stream)
{
    struct event *e = event;
    pthread_mutex_lock(&lock);
    e->s = stream;
    e->at = e->s->given;
    pthread_mutex_unlock(&lock);
    return OK;
}
int event_query(void *event)
{
    const struct event *e = event;
    pthread_mutex_lock(&lock);
    const bool done = !e->s || e->s->done >= e->at;
    pthread_mutex_unlock(&lock);
    return done ? OK : MK_CU_NOT_READY;
}
/* No clock: an operation takes a microsecond. */
int event_elapsed(float *ms, void *from, void *to)
{
    const struct event *a = from, *b = to;
    if (!a->s || a->s != b->s)
        return INVALID_VALUE;
    if (event_query(to))
        return MK_CU_NOT_READY;
    *ms = (float)(b->at - a->at) / 1e3f;
    return OK;
}
int event_destroy(void *event)
{
    free(event);
    count(&fake_cuda_counts.events, -1);
    return OK;
}
int copy(mk_cu_ptr to, mk_cu_ptr from, size_t bytes, void *stream)
{
    if (!to || !from || !current)
        return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    give(stream, to, from, bytes, 0);
    pthread_mutex_unlock(&lock);
    return OK;
}
static mk_cu_ptr row(const struct mk_cu_plane *p, size_t i)
{
    const mk_cu_ptr base = p->type == MK_CU_COPY_DEVICE ? p->device : (mk_cu_ptr)(uintptr_t)p->host;
    return base + (p->y + i) * p->pitch + p->x;
}
/* In which order the rows go is not defined: the last first here. */
int copy_2d(const struct mk_cu_copy_2d *c, void *stream)
{
    if (c->from.pitch < c->width || c->to.pitch < c->width || !current || !c->width || !c->height)
        return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    for (size_t i = c->height; i-- > 0;)
        give(stream, row(&c->to, i), row(&c->from, i), c->width, 0);
    pthread_mutex_unlock(&lock);
    return OK;
}
int copy_to_device(mk_cu_ptr to, const void *from, size_t bytes)
{
    memcpy((void *)(uintptr_t)to, from, bytes);
    return fails() ? INVALID_VALUE : OK;
}
int copy_to_host(void *to, mk_cu_ptr from, size_t bytes)
{
    memcpy(to, (const void *)(uintptr_t)from, bytes);
    return OK;
}
