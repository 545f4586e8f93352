/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Shared memory by memfd and the futex bell. */
#include "mk/shm.h"
#include "mk/err.h"
#include "mk/log.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int mk_shm_create(const char *what, size_t size, struct mk_shm *out)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size = (size + page - 1) / page * page;
    const int fd = memfd_create(what, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return mk_fail(MK_ERR_SYSTEM, "BASE", "memfd for %s: %s", what, strerror(errno));
    if (ftruncate(fd, (off_t)size)) {
        const int ret = mk_fail(MK_ERR_NOMEM, "BASE", "%zu bytes for %s: %s", size, what, strerror(errno));
        close(fd);
        return ret;
    }
    void *addr = fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) /* who maps it is never left without its pages */
                     ? MAP_FAILED
                     : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (addr == MAP_FAILED) {
        const int ret =
            mk_fail(MK_ERR_NOMEM, "BASE", "mapping %zu bytes for %s: %s", size, what, strerror(errno));
        close(fd);
        return ret;
    }
    out->addr = addr;
    out->size = size;
    out->fd = fd;
    return 0;
}

void mk_shm_ref(const struct mk_shm *shm, struct mk_shm_ref *out)
{
    struct stat st;
    memset(out, 0, sizeof(*out));
    out->pid = (int32_t)getpid();
    out->fd = shm->fd;
    out->size = shm->size;
    if (!fstat(shm->fd, &st))
        out->inode = (uint64_t)st.st_ino;
}

int mk_shm_import(const struct mk_shm_ref *ref, struct mk_shm *out)
{
    char path[64];
    struct stat st;
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)ref->pid, (int)ref->fd);
    const int fd = open(path, O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return mk_fail(errno == EMFILE || errno == ENFILE ? MK_ERR_SYSTEM : MK_ERR_PEER, "BASE",
                       "shared memory of process %d (%s): %s", (int)ref->pid, path, strerror(errno));
    const int seals = fcntl(fd, F_GET_SEALS); /* -1: no memfd */
    if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &st) || (uint64_t)st.st_ino != ref->inode ||
        (uint64_t)st.st_size != ref->size) {
        close(fd);
        return mk_fail(MK_ERR_PEER, "BASE", "shared memory of process %d is not what it announced",
                       (int)ref->pid);
    }
    void *addr = mmap(NULL, ref->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    const int err = errno;
    close(fd);
    if (addr == MAP_FAILED)
        return mk_fail(MK_ERR_NOMEM, "BASE", "mapping %llu bytes of process %d: %s",
                       (unsigned long long)ref->size, (int)ref->pid, strerror(err));
    out->addr = addr;
    out->size = ref->size;
    out->fd = -1;
    return 0;
}

void mk_shm_release(struct mk_shm *shm)
{
    if (!shm->addr)
        return;
    munmap(shm->addr, shm->size);
    if (shm->fd >= 0)
        close(shm->fd);
    memset(shm, 0, sizeof(*shm));
    shm->fd = -1;
}

static uint64_t hash_bytes(uint64_t h, const void *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        h = (h ^ ((const uint8_t *)p)[i]) * 0x100000001b3ull;
    return h;
}

/* The hash of the boot id, kept: whoever asks later needs no descriptor. 0: it cannot be read. */
static uint64_t boot_hash(void)
{
    static const char path[] = "/proc/sys/kernel/random/boot_id";
    static uint64_t kept;
    uint64_t h = __atomic_load_n(&kept, __ATOMIC_ACQUIRE);
    char text[64];
    if (h)
        return h;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text));
    if (n <= 0)
        mk_fail(MK_ERR_SYSTEM, "BASE", "which host this is cannot be told: %s: %s", path,
                n ? strerror(errno) : "empty");
    else
        h = hash_bytes(0xcbf29ce484222325ull, text, (size_t)n);
    if (fd >= 0)
        close(fd);
    __atomic_store_n(&kept, h, __ATOMIC_RELEASE);
    return h;
}

uint64_t mk_host_id(void)
{
    uint64_t h = boot_hash();
    char text[256];
    if (!h)
        return 0;
    const ssize_t n = readlink("/proc/self/ns/pid", text, sizeof(text));
    if (n > 0)
        h = hash_bytes(h, text, (size_t)n);
    if (!gethostname(text, sizeof(text)))
        h = hash_bytes(h, text, strnlen(text, sizeof(text)));
    return h ? h : 1;
}

void mk_bell_ring(struct mk_bell *b)
{
    __atomic_fetch_add(&b->seq, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&b->sleepers, __ATOMIC_SEQ_CST))
        syscall(SYS_futex, &b->seq, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

void mk_bell_wait(struct mk_bell *b, uint32_t seq, uint64_t ns)
{
    struct timespec t;
    t.tv_sec = (time_t)(ns / 1000000000u);
    t.tv_nsec = (long)(ns % 1000000000u);
    __atomic_fetch_add(&b->sleepers, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &b->seq, FUTEX_WAIT, seq, &t, NULL, 0);
    __atomic_fetch_sub(&b->sleepers, 1, __ATOMIC_SEQ_CST);
}

uint64_t mk_time_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
