/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#include "out.h"
#include "mk/err.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* The unfinished file, for the signal handler: the path is complete before `armed` is set. One file at a
 * time. */
static char armed_path[PATH_MAX];
static volatile sig_atomic_t armed;

static void on_signal(int sig)
{
    if (armed)
        unlink(armed_path);
    signal(sig, SIG_DFL);
    raise(sig);
}

static void arm(const char *path)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    snprintf(armed_path, sizeof(armed_path), "%s", path);
    armed = 1;
    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++) {
        struct sigaction old, sa = {.sa_handler = on_signal};
        if (!sigaction(signals[i], NULL, &old) && old.sa_handler == SIG_DFL)
            sigaction(signals[i], &sa, NULL);
    }
}

/* Follows a link to where the file is (or will be), so that the link survives. */
static int resolve(const char *path, char out[PATH_MAX])
{
    char *real = realpath(path, NULL);
    if (!real && errno != ENOENT)
        return mk_fail_quiet(MK_ERR_SYSTEM, "%s: %s", path, strerror(errno));
    const char *name = real ? real : path;
    const size_t len = strlen(name);
    if (!len || len + 32 >= PATH_MAX) {
        free(real);
        return mk_fail_quiet(MK_ERR_SYSTEM, "%s: %s", path, strerror(len ? ENAMETOOLONG : ENOENT));
    }
    memcpy(out, name, len + 1);
    free(real);
    return 0;
}

static int open_fd(struct mk_out *o, const char *path)
{
    struct stat st;
    const int ret = resolve(path, o->path);
    if (ret)
        return ret;
    const int known = !stat(o->path, &st);
    if (known && S_ISDIR(st.st_mode))
        return mk_fail_quiet(MK_ERR_SYSTEM, "%s: %s", path, strerror(EISDIR));
    if (known && !S_ISREG(st.st_mode)) {
        const int fd = open(o->path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
        return fd >= 0 ? fd : mk_fail_quiet(MK_ERR_SYSTEM, "%s: %s", path, strerror(errno));
    }
    if (known && access(o->path, W_OK)) /* rename would get around a write protection */
        return mk_fail_quiet(MK_ERR_SYSTEM, "%s: %s", path, strerror(errno));
    const size_t len = strlen(o->path);
    memcpy(o->temporary, o->path, len);
    snprintf(o->temporary + len, PATH_MAX - len, ".tmp-%ld", (long)getpid());
    unlink(o->temporary); /* left by a killed process that had this number */
    const int fd = open(o->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) {
        o->temporary[0] = 0;
        return mk_fail_quiet(MK_ERR_SYSTEM, "%s: %s", path, strerror(errno));
    }
    arm(o->temporary);
    if (known && fchmod(fd, st.st_mode & 07777)) {
        const int err = errno;
        close(fd);
        return mk_fail_quiet(MK_ERR_SYSTEM, "%s: %s", path, strerror(err));
    }
    return fd;
}

int mk_out_open(struct mk_out *o, const char *path)
{
    memset(o, 0, sizeof(*o));
    const int fd = open_fd(o, path);
    if (fd < 0) {
        mk_out_cancel(o);
        return fd;
    }
    o->file = fdopen(fd, "wb");
    if (!o->file) {
        close(fd);
        mk_out_cancel(o);
        return mk_fail_quiet(MK_ERR_NOMEM, "%s: %s", path, strerror(ENOMEM));
    }
    return 0;
}

int mk_out_check(const char *path)
{
    struct mk_out o;
    const int ret = mk_out_open(&o, path);
    if (!ret)
        mk_out_cancel(&o);
    return ret;
}

/* The file system that a file at `path` would be on, and its free bytes: UINT64_MAX for what is no regular file, and
 * where the file system does not say. */
static int room_at(const char *path, dev_t *dev, uint64_t *bytes)
{
    char dir[PATH_MAX];
    struct stat st;
    struct statvfs fs;
    const int ret = resolve(path, dir);
    if (ret)
        return ret;
    *bytes = UINT64_MAX;
    *dev = 0;
    if (!stat(dir, &st) && !S_ISREG(st.st_mode))
        return 0;
    char *slash = strrchr(dir, '/');
    if (!slash)
        snprintf(dir, sizeof(dir), ".");
    else
        slash[slash == dir] = 0;
    if (stat(dir, &st) || statvfs(dir, &fs))
        return mk_fail_quiet(MK_ERR_SYSTEM, "%s: %s", path, strerror(errno));
    *dev = st.st_dev;
    if (fs.f_blocks)
        *bytes = (uint64_t)(geteuid() ? fs.f_bavail : fs.f_bfree) * fs.f_frsize;
    return 0;
}

int mk_out_room(const char *const *path, const uint64_t *bytes, int n)
{
    enum { FILES = 4 };
    dev_t dev[FILES];
    if (n > FILES)
        return mk_fail_quiet(MK_ERR_INTERNAL, "%d files at a time", n);
    for (int i = 0; i < n; i++) {
        uint64_t room, need = bytes[i];
        const int ret = room_at(path[i], &dev[i], &room);
        if (ret)
            return ret;
        for (int k = 0; k < i; k++)
            need += dev[k] == dev[i] ? bytes[k] : 0;
        if (need > room)
            return mk_fail_quiet(MK_ERR_SYSTEM, "%s: disk full: %.1f MB needed, %.1f MB free", path[i],
                                 (double)need * 1e-6, (double)room * 1e-6);
    }
    return 0;
}

/* 0 or errno. Pipes and devices have nothing to sync. */
static int finish(FILE *f)
{
    int err = 0;
    errno = 0;
    if (fflush(f) || ferror(f))
        err = errno ? errno : EIO;
    if (!err && fsync(fileno(f)) && errno != EINVAL && errno != EROFS && errno != ENOTSUP)
        err = errno;
    if (fclose(f) && !err)
        err = errno;
    return err;
}

int mk_out_commit(struct mk_out *o)
{
    int err = finish(o->file);
    o->file = NULL;
    if (!err && o->temporary[0] && rename(o->temporary, o->path))
        err = errno;
    if (err) {
        mk_out_cancel(o);
        return mk_fail_quiet(MK_ERR_SYSTEM, "%s: %s", o->path, strerror(err));
    }
    armed = 0;
    o->temporary[0] = 0;
    return 0;
}

void mk_out_cancel(struct mk_out *o)
{
    if (o->file)
        fclose(o->file);
    o->file = NULL;
    if (o->temporary[0]) {
        unlink(o->temporary);
        armed = 0;
    }
    o->temporary[0] = 0;
}
