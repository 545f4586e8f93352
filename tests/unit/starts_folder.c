/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The file of starting points among other files, users and threads: what is planted beside it, links, modes, locks that
 * outlive a fork, and faults that pass. */
#include "starts.h"
#include "mk/err.h"
#include "mk/log.h"
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

static char dir[] = "/tmp/mk_starts_XXXXXX";
static char path[64], fresh[64], lock_name[64], other[64], away[64];
static int warnings;
static struct mk_start_table table;

static void count_warnings(enum mk_log_level level, const char *subsys, const char *text)
{
    (void)subsys, (void)text;
    warnings += level == MK_LOG_WARN;
}

static int clean(void **state)
{
    (void)state;
    char beside_other[80];
    snprintf(beside_other, sizeof(beside_other), "%s.lock", other);
    const char *const names[] = {path, fresh, lock_name, other, beside_other};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        unlink(names[i]);
    rmdir(away);
    warnings = 0;
    return 0;
}

static struct mk_starts *opened(const char *name)
{
    struct mk_starts *s;
    assert_int_equal(mk_starts_open(name, &s), 0);
    return s;
}
static void put(struct mk_starts *s, int who)
{
    const struct mk_start_key k = key_of(1, who);
    const struct mk_start v = point(9);
    assert_int_equal(mk_starts_put(s, &k, &v), 0);
}
/* Learns one thing more. */
static int learn(const char *name, int who)
{
    struct mk_starts *s = opened(name);
    put(s, who);
    const int ret = mk_starts_save(s);
    mk_starts_close(s);
    return ret;
}
static size_t entries(const char *name)
{
    char why[160];
    assert_int_equal(mk_start_read_file(name, &table, why), MK_START_READ);
    return table.count;
}
static void spill(const char *name, const char *text)
{
    const int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
}
static off_t size_of(const char *name)
{
    struct stat st;
    assert_int_equal(stat(name, &st), 0);
    return st.st_size;
}

/* ---- names beside it ---- */

static void planted(void **state)
{
    (void)state;
    spill(other, "precious");
    assert_int_equal(symlink(other, fresh), 0);
    assert_int_equal(learn(path, 1), 0);
    assert_int_equal(size_of(other), strlen("precious"));
    assert_int_equal(mkfifo(fresh, 0600), 0);
    assert_int_equal(learn(path, 2), 0);
    spill(fresh, "left behind");
    assert_int_equal(chmod(fresh, 0), 0);
    assert_int_equal(learn(path, 3), 0);
    assert_int_equal(entries(path), 3);
    assert_int_equal(access(fresh, F_OK), -1);
    unlink(lock_name);
    assert_int_equal(symlink(away, lock_name), 0); /* nothing is made where it points */
    assert_int_equal(learn(path, 4), MK_ERR_SYSTEM);
    assert_int_equal(access(away, F_OK), -1);
    assert_int_equal(warnings, 1);
}

/* Learns as somebody who is not root, for root may read and write any file; returns what saving returned. */
static int learn_as_nobody(void)
{
    int status;
    assert_int_equal(chmod(dir, 0777), 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid)
        _exit(!geteuid() && setuid(65534) ? 100 : -learn(path, 1));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(chmod(dir, 0700), 0);
    assert_true(WIFEXITED(status));
    return -WEXITSTATUS(status);
}

/* A lock that is not ours to write, in a folder that is. */
static void lock_of_another_user(void **state)
{
    (void)state;
    spill(lock_name, "");
    assert_int_equal(chmod(lock_name, 0444), 0);
    assert_int_equal(learn_as_nobody(), 0);
    assert_int_equal(entries(path), 1);
}

/* A file that is not ours to read is not replaced by what we know. */
static void unreadable(void **state)
{
    (void)state;
    assert_int_equal(learn(path, 1), 0);
    assert_int_equal(learn(path, 2), 0);
    unlink(lock_name);
    assert_int_equal(chmod(path, 0), 0);
    assert_int_equal(learn_as_nobody(), MK_ERR_SYSTEM);
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(entries(path), 2);
}

static void mode_stays(void **state)
{
    (void)state;
    struct stat st;
    assert_int_equal(learn(path, 1), 0);
    static const mode_t modes[] = {0640, 0600, 0664, 0666};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(chmod(path, modes[i]), 0);
        assert_int_equal(learn(path, 2 + i), 0);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 07777, modes[i]);
    }
    if (!geteuid()) { /* root saves into a user's */
        assert_int_equal(chown(path, 65534, 65534), 0);
        assert_int_equal(learn(path, 6), 0);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_uid, 65534);
        assert_int_equal(st.st_gid, 65534);
    }
    assert_int_equal(entries(path), geteuid() ? 5 : 6);
}

static void links(void **state)
{
    (void)state;
    struct stat st;
    char to[MK_START_PATH];
    assert_int_equal(symlink(other, path), 0); /* to nothing, so far */
    assert_int_equal(learn(path, 1), 0);
    assert_int_equal(learn(other, 2), 0);
    assert_int_equal(learn(path, 3), 0);
    assert_int_equal(entries(other), 3);
    assert_int_equal(access(lock_name, F_OK), -1); /* both names share one lock */
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink(strrchr(other, '/') + 1, path), 0); /* relative */
    assert_int_equal(learn(path, 4), 0);
    assert_int_equal(entries(other), 4);
    assert_int_equal(lstat(path, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_int_equal(mk_start_resolve(path, to), 0);
    assert_string_equal(to, other);
    assert_int_equal(warnings, 0);
    /* in a circle; when that is mended it goes on */
    assert_int_equal(unlink(other), 0);
    assert_int_equal(symlink(path, other), 0);
    struct mk_starts *s = opened(path);
    put(s, 5);
    assert_int_equal(mk_starts_save(s), MK_ERR_SYSTEM);
    assert_int_equal(warnings, 1);
    assert_int_equal(unlink(other), 0);
    assert_int_equal(mk_starts_save(s), 0);
    assert_int_equal(entries(other), 1);
    mk_starts_close(s);
}

/* ---- faults that pass ---- */

static void no_room(void **state)
{
    (void)state;
    struct rlimit was, small;
    assert_int_equal(learn(path, 1), 0);
    struct mk_starts *s = opened(path);
    put(s, 2);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    small = was;
    small.rlim_cur = 100;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    const int first = mk_starts_save(s), second = mk_starts_save(s);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    assert_int_equal(first, MK_ERR_SYSTEM);
    assert_int_equal(second, MK_ERR_SYSTEM);
    assert_int_equal(warnings, 1); /* said once */
    assert_int_equal(entries(path), 1);
    assert_int_equal(access(fresh, F_OK), -1);
    assert_int_equal(mk_starts_save(s), 0);
    assert_int_equal(entries(path), 2);
    assert_int_equal(warnings, 1);
    mk_starts_close(s);
}

static void no_folder(void **state)
{
    (void)state;
    char in[80];
    snprintf(in, sizeof(in), "%s/file", away);
    struct mk_starts *s = opened(in);
    put(s, 1);
    assert_int_equal(mk_starts_save(s), MK_ERR_SYSTEM);
    assert_int_equal(mkdir(away, 0700), 0);
    assert_int_equal(mk_starts_save(s), 0);
    mk_starts_close(s);
    assert_int_equal(entries(in), 1);
    unlink(in);
    strcat(in, ".lock");
    unlink(in);
    /* what is no regular file is not replaced by one */
    assert_int_equal(learn(path, 1), 0);
    s = opened(path);
    put(s, 2);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(mk_starts_save(s), 0);
    struct stat st;
    assert_int_equal(lstat(path, &st), 0);
    assert_true(S_ISFIFO(st.st_mode));
    mk_starts_close(s);
}

/* ---- locks ---- */

static void lock_ends_in_spite_of_a_child(void **state)
{
    (void)state;
    int lock;
    assert_int_equal(mk_start_lock(path, &lock), 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        pause();
        _exit(0);
    }
    mk_start_unlock(lock);
    const int again = mk_start_lock(path, &lock);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    assert_int_equal(again, 0);
    mk_start_unlock(lock);
}

static atomic_int saved;
static void *saver(void *arg)
{
    const int ret = mk_starts_save(arg);
    atomic_store(&saved, 1);
    return ret ? arg : NULL;
}
/* While one thread waits for the file, others get and put. */
static void others_go_on(void **state)
{
    (void)state;
    pthread_t thread;
    void *bad;
    int lock;
    struct mk_start v;
    const struct mk_start_key k = key_of(1, 1);
    struct mk_starts *s = opened(path);
    put(s, 1);
    assert_int_equal(mk_start_lock(path, &lock), 0);
    assert_int_equal(pthread_create(&thread, NULL, saver, s), 0);
    usleep(100000);
    put(s, 2);
    const bool got = mk_starts_get(s, &k, &v);
    const int over = atomic_load(&saved);
    mk_start_unlock(lock);
    pthread_join(thread, &bad);
    assert_true(got);
    assert_false(over);
    assert_null(bad);
    assert_int_equal(mk_starts_save(s), 0);
    assert_int_equal(entries(path), 2);
    mk_starts_close(s);
}

/* ---- a full table ---- */

static void full(void **state)
{
    (void)state;
    struct mk_start_entry e = {.value = point(9)};
    memset(&table, 0, sizeof(table));
    e.value.launches = 2;
    for (int i = 0; i < MK_STARTS_MAX; i++) {
        e.key = key_of(1, i);
        mk_start_merge(&table, &e);
    }
    const struct mk_start_table before = table;
    e.key = key_of(2, 0);
    e.value.launches = 1; /* less than any */
    mk_start_merge(&table, &e);
    assert_memory_equal(&before, &table, sizeof(table));
    e.value.launches = 3;
    mk_start_merge(&table, &e);
    int found = 0;
    for (uint32_t i = 0; i < table.count; i++)
        found += !memcmp(&table.entry[i], &e, sizeof(e));
    assert_int_equal(found, 1);
    assert_int_equal(table.count, MK_STARTS_MAX);
    /* what is put here is known here, whatever the file held */
    assert_int_equal(mk_start_write_file(path, &table), 0);
    struct mk_starts *s = opened(path);
    struct mk_start got;
    put(s, MK_STARTS_MAX + 1);
    const struct mk_start_key k = key_of(1, MK_STARTS_MAX + 1);
    assert_true(mk_starts_get(s, &k, &got));
    assert_int_equal(mk_starts_save(s), 0);
    mk_starts_close(s);
    assert_int_equal(entries(path), MK_STARTS_MAX);
    for (uint32_t i = 0; i < table.count; i++)
        assert_true(table.entry[i].value.launches >= 2);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup(f, clean)
    const struct CMUnitTest tests[] = {
        T(planted),   T(lock_of_another_user),          T(unreadable),   T(mode_stays), T(links), T(no_room),
        T(no_folder), T(lock_ends_in_spite_of_a_child), T(others_go_on), T(full),
    };
    if (!mkdtemp(dir)) {
        perror(dir);
        return 1;
    }
    snprintf(path, sizeof(path), "%s/starts", dir);
    snprintf(fresh, sizeof(fresh), "%s/starts.new", dir);
    snprintf(lock_name, sizeof(lock_name), "%s/starts.lock", dir);
    snprintf(other, sizeof(other), "%s/other", dir);
    snprintf(away, sizeof(away), "%s/away", dir);
    mk_log_set_sink(count_warnings);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    clean(NULL);
    return rmdir(dir) || failed;
}
