/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The file of starting points. 32 bytes, then the entries as they are in memory:
 *   0 magic 8 · 8 byte order 4 · 12 version 4 · 16 entries 4 · 20 bytes of an entry 4 · 24 sum 8, of all other bytes */
#include "start.h"
#include "mk/err.h"
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define ORDER 0x01020304u
#define VERSION 1u
static const char magic[8] = {'m', 'k', 's', 't', 'a', 'r', 't', '\n'};
static_assert(sizeof(struct mk_start_entry) == 128, "the version changes with the entry");

static uint64_t sum_of(uint64_t sum, const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        sum = (sum ^ bytes[i]) * 0x100000001b3ull;
        sum ^= sum >> 31;
    }
    return sum;
}
static uint64_t file_sum(const uint8_t *bytes, size_t n)
{
    return sum_of(sum_of(0xcbf29ce484222325ull, bytes, 24), bytes + MK_START_HEADER, n - MK_START_HEADER);
}
static uint32_t word_at(const uint8_t *bytes, size_t at)
{
    uint32_t w;
    memcpy(&w, bytes + at, sizeof(w));
    return w;
}
static void word_to(uint8_t *bytes, size_t at, uint32_t w)
{
    memcpy(bytes + at, &w, sizeof(w));
}

enum mk_start_found mk_start_parse(const uint8_t *bytes, size_t n, struct mk_start_table *out)
{
    uint64_t sum;
    if (!n)
        return MK_START_ABSENT;
    if (memcmp(bytes, magic, n < sizeof(magic) ? n : sizeof(magic)))
        return MK_START_FOREIGN;
    if (n < MK_START_HEADER)
        return MK_START_DAMAGED;
    if (word_at(bytes, 8) != ORDER || word_at(bytes, 12) != VERSION)
        return MK_START_OTHER;
    const uint32_t count = word_at(bytes, 16);
    memcpy(&sum, bytes + 24, sizeof(sum));
    if (count > MK_STARTS_MAX || word_at(bytes, 20) != sizeof(struct mk_start_entry) ||
        n != MK_START_HEADER + count * sizeof(struct mk_start_entry) || sum != file_sum(bytes, n))
        return MK_START_DAMAGED;
    memset(out, 0, sizeof(*out));
    for (uint32_t i = 0; i < count; i++) {
        struct mk_start_entry e;
        memcpy(&e, bytes + MK_START_HEADER + i * sizeof(e), sizeof(e));
        if (!mk_start_valid(&e)) {
            out->count = 0;
            return MK_START_DAMAGED;
        }
        mk_start_merge(out, &e);
    }
    return MK_START_READ;
}

size_t mk_start_format(const struct mk_start_table *t, uint8_t *bytes)
{
    const size_t body = t->count * sizeof(t->entry[0]), n = MK_START_HEADER + body;
    memcpy(bytes, magic, sizeof(magic));
    word_to(bytes, 8, ORDER);
    word_to(bytes, 12, VERSION);
    word_to(bytes, 16, t->count);
    word_to(bytes, 20, sizeof(t->entry[0]));
    memcpy(bytes + MK_START_HEADER, t->entry, body);
    const uint64_t sum = file_sum(bytes, n);
    memcpy(bytes + 24, &sum, sizeof(sum));
    return n;
}

static enum mk_start_found failed(char *why, const char *text)
{
    snprintf(why, 160, "%s", text);
    return MK_START_FAILED;
}

/* All of it, at most one byte more than a file of ours can have. Returns the bytes, or -1. */
static ssize_t read_all(int fd, uint8_t *to, size_t size)
{
    size_t have = 0;
    while (have < size) {
        const ssize_t got = read(fd, to + have, size - have);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -1;
        if (!got)
            break;
        have += (size_t)got;
    }
    return (ssize_t)have;
}

enum mk_start_found mk_start_read_file(const char *path, struct mk_start_table *out, char *why)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); /* a FIFO is not waited for */
    struct stat st;
    if (fd < 0)
        return errno == ENOENT ? MK_START_ABSENT : failed(why, strerror(errno));
    enum mk_start_found found;
    uint8_t *bytes = malloc(MK_START_BYTES_MAX + 1);
    if (!bytes) {
        found = failed(why, "no memory");
    } else if (fstat(fd, &st)) {
        found = failed(why, strerror(errno));
    } else if (!S_ISREG(st.st_mode)) {
        found = MK_START_FOREIGN;
    } else {
        const ssize_t n = read_all(fd, bytes, MK_START_BYTES_MAX + 1);
        found = n < 0 ? failed(why, strerror(errno)) : mk_start_parse(bytes, (size_t)n, out);
    }
    free(bytes);
    close(fd);
    return found;
}

static int beside(const char *path, const char *suffix, char *out, size_t size)
{
    return snprintf(out, size, "%s%s", path, suffix) < (int)size ? 0 : -1;
}

/* Links are followed by name, so that one to a file that does not exist yet is kept too. */
int mk_start_resolve(const char *path, char out[MK_START_PATH])
{
    char to[MK_START_PATH], from[MK_START_PATH];
    if (beside(path, "", out, MK_START_PATH))
        return mk_fail_quiet(MK_ERR_SYSTEM, "%s: %s", path, strerror(ENAMETOOLONG));
    for (int links = 0; links < 40; links++) {
        const ssize_t n = readlink(out, to, sizeof(to) - 1);
        if (n < 0)
            return 0;
        to[n] = 0;
        const char *slash = strrchr(out, '/');
        const int folder = *to == '/' || !slash ? 0 : (int)(slash + 1 - out);
        if (snprintf(from, sizeof(from), "%.*s%s", folder, out, to) >= (int)sizeof(from))
            return mk_fail_quiet(MK_ERR_SYSTEM, "%s: %s", path, strerror(ENAMETOOLONG));
        memcpy(out, from, strlen(from) + 1);
    }
    return mk_fail_quiet(MK_ERR_SYSTEM, "%s: %s", path, strerror(ELOOP));
}

/* Another user's need not be writable to be locked. */
static int open_lock(const char *name)
{
    const int how = O_CLOEXEC | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW;
    const int fd = open(name, O_RDWR | O_CREAT | how, 0666);
    return fd < 0 && (errno == EACCES || errno == EROFS) ? open(name, O_RDONLY | how) : fd;
}

int mk_start_lock(const char *path, int *lock)
{
    char name[MK_START_PATH + 8];
    if (beside(path, ".lock", name, sizeof(name)))
        return mk_fail_quiet(MK_ERR_SYSTEM, "%s: %s", path, strerror(ENAMETOOLONG));
    const int fd = open_lock(name);
    if (fd < 0)
        return mk_fail_quiet(MK_ERR_SYSTEM, "%s: %s", name, strerror(errno));
    for (int tries = 0; flock(fd, LOCK_EX | LOCK_NB); tries++) {
        const int err = errno;
        if (err != EWOULDBLOCK && err != EINTR) {
            close(fd);
            return mk_fail_quiet(MK_ERR_SYSTEM, "%s: %s", name, strerror(err));
        }
        if (tries == 400) {
            close(fd);
            return MK_ERR_AGAIN;
        }
        nanosleep(&(struct timespec){0, 5000000}, NULL);
    }
    *lock = fd;
    return 0;
}

void mk_start_unlock(int lock)
{
    flock(lock, LOCK_UN); /* a child that was forked meanwhile has it open too */
    close(lock);          /* the file stays: who waits has it open */
}

static bool write_all(int fd, const uint8_t *bytes, size_t n)
{
    while (n) {
        const ssize_t put = write(fd, bytes, n);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return false;
        bytes += put;
        n -= (size_t)put;
    }
    return fsync(fd) == 0;
}

/* A new file with the mode of the one that it replaces, and its owner and group as far as we may. The caller has the
 * lock: whatever else has this name was left behind, or put there. */
static int create_new(const char *name, const char *path)
{
    struct stat st;
    const bool old = !stat(path, &st);
    unlink(name);
    const int fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0 || !old)
        return fd;
    bool ok = !fchown(fd, st.st_uid, st.st_gid) || !fchown(fd, (uid_t)-1, st.st_gid) || errno == EPERM;
    ok = ok && !fchmod(fd, st.st_mode & 0777);
    if (ok)
        return fd;
    const int err = errno;
    close(fd);
    unlink(name);
    errno = err;
    return -1;
}

int mk_start_write_file(const char *path, const struct mk_start_table *t)
{
    char name[MK_START_PATH + 8];
    if (beside(path, ".new", name, sizeof(name)))
        return mk_fail_quiet(MK_ERR_SYSTEM, "%s: %s", path, strerror(ENAMETOOLONG));
    uint8_t *bytes = malloc(MK_START_BYTES_MAX);
    if (!bytes)
        return mk_fail_quiet(MK_ERR_NOMEM, "no memory to write %s", path);
    const size_t n = mk_start_format(t, bytes);
    const int fd = create_new(name, path);
    bool ok = fd >= 0 && write_all(fd, bytes, n);
    int err = errno;
    if (fd >= 0 && close(fd) && ok) {
        ok = false;
        err = errno;
    }
    if (ok && rename(name, path)) {
        ok = false;
        err = errno;
    }
    free(bytes);
    if (ok)
        return 0;
    if (fd >= 0)
        unlink(name);
    return mk_fail_quiet(MK_ERR_SYSTEM, "%s: %s", name, strerror(err));
}
