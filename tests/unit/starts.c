/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Starting points that were learned: the table, its file in every state that a file can be in, and many processes on one
 * file, some of which are killed. */
#include "starts.h"
#include "mk/err.h"
#include "mk/log.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

static char dir[] = "/tmp/mk_starts_XXXXXX", path[64];
static int warnings;
static char last_warning[400];

static void count_warnings(enum mk_log_level level, const char *subsys, const char *text)
{
    if (level != MK_LOG_WARN)
        return;
    assert_string_equal(subsys, "TUNER");
    snprintf(last_warning, sizeof(last_warning), "%s", text);
    warnings++;
}

static int set_up(void **state)
{
    (void)state;
    warnings = 0;
    unlink(path);
    return 0;
}

/* ---- bytes ---- */

static size_t slurp(uint8_t *bytes, size_t size)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    const size_t n = fread(bytes, 1, size, f);
    fclose(f);
    return n;
}
static void spill(const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}
static size_t entries_in_file(void)
{
    char why[160];
    static struct mk_start_table t;
    assert_int_equal(mk_start_read_file(path, &t, why), MK_START_READ);
    return t.count;
}

/* ---- the table ---- */

static void keys(void **state)
{
    (void)state;
    const struct mk_start_key a = key_of(8192, 0);
    struct mk_start_key b;
    static const int64_t m[] = {0, 1, 2, 3, 4, 5, 6, 2896, 2897, 8191, 8192, 11585, 11586, INT64_MAX};
    static const int want[] = {0, 1, 3, 4, 5, 5, 6, 23, 24, 26, 27, 27, 28, 62};
    for (size_t i = 0; i < sizeof(m) / sizeof(m[0]); i++)
        assert_int_equal(key_of(m[i], 0).m, want[i]);
    b = key_of(9000, 0); /* of one class */
    assert_memory_equal(&a, &b, sizeof(a));
    const int64_t mnk[3] = {8192, 8192, 3584};
    mk_start_key(&b, MK_START_GEMM_ALLREDUCE, 1, mnk, 2, 4,
                 "a GPU whose name is so long that it has no room in the field for names", "link 0");
    assert_int_equal(strlen(b.gpu), sizeof(b.gpu) - 1);
    const struct mk_start_entry e = {b, point(1)};
    assert_true(mk_start_valid(&e));
}

static void in_memory(void **state)
{
    (void)state;
    struct mk_starts *s;
    struct mk_start v = point(16), got;
    struct mk_start_key k = key_of(8192, 0);
    assert_int_equal(mk_starts_open("", &s), 0);
    assert_false(mk_starts_get(s, &k, &got));
    assert_int_equal(mk_starts_put(s, &k, &v), 0);
    v.target = 20;
    assert_int_equal(mk_starts_put(s, &k, &v), 0);
    assert_true(mk_starts_get(s, &k, &got));
    assert_int_equal(got.target, 20);
    assert_int_equal(got.launches, 2);
    k.dtype = 2;
    assert_false(mk_starts_get(s, &k, &got));
    v.target = 133;
    assert_int_equal(mk_starts_put(s, &k, &v), MK_ERR_INVALID);
    assert_int_equal(mk_starts_count(s), 1);
    assert_int_equal(mk_starts_save(s), 0);
    assert_int_equal(access(path, F_OK), -1);
    for (int i = 0; i < MK_STARTS_MAX + 50; i++) { /* the least known make room */
        k = key_of(1, i);
        v = point(7);
        assert_int_equal(mk_starts_put(s, &k, &v), 0);
    }
    assert_int_equal(mk_starts_count(s), MK_STARTS_MAX);
    k = key_of(8192, 0);
    assert_true(mk_starts_get(s, &k, &got));
    mk_starts_close(s);
    mk_starts_close(NULL);
    char longer[300];
    memset(longer, 'x', sizeof(longer));
    longer[299] = 0;
    assert_int_equal(mk_starts_open(longer, &s), MK_ERR_INVALID);
}

static void two_share_a_file(void **state)
{
    (void)state;
    struct mk_starts *a, *b, *c;
    struct mk_start v = point(3), got;
    const struct mk_start_key one = key_of(1, 1), two = key_of(1, 2), both = key_of(1, 3);
    assert_int_equal(mk_starts_open(path, &a), 0);
    assert_int_equal(mk_starts_open(path, &b), 0);
    assert_int_equal(mk_starts_put(a, &one, &v), 0);
    assert_int_equal(mk_starts_put(b, &two, &v), 0);
    v.target = 30;
    for (int i = 0; i < 3; i++)
        assert_int_equal(mk_starts_put(a, &both, &v), 0);
    v.target = 40;
    assert_int_equal(mk_starts_put(b, &both, &v), 0);
    assert_int_equal(mk_starts_save(a), 0);
    assert_int_equal(mk_starts_save(b), 0); /* does not undo what a saved */
    assert_int_equal(mk_starts_open(path, &c), 0);
    assert_int_equal(mk_starts_count(c), 3);
    assert_true(mk_starts_get(c, &both, &got));
    assert_int_equal(got.target, 30);
    assert_int_equal(got.launches, 3);
    assert_true(mk_starts_get(b, &one, &got)); /* and learns from it */
    mk_starts_close(c);
    for (int i = 0; i < 2; i++)
        assert_int_equal(mk_starts_put(b, &both, &v), 0);
    assert_int_equal(mk_starts_save(b), 0);
    assert_int_equal(mk_starts_open(path, &c), 0);
    assert_true(mk_starts_get(c, &both, &got));
    assert_int_equal(got.target, 40);
    assert_int_equal(got.launches, 5);
    mk_starts_close(a);
    mk_starts_close(b);
    mk_starts_close(c);
    assert_int_equal(warnings, 0);
}

static void settings(void **state)
{
    (void)state;
    struct mk_settings set;
    struct mk_starts *s;
    struct mk_start v = point(3);
    const struct mk_start_key k = key_of(1, 1);
    setenv("MK_TUNER_FILE", path, 1);
    for (int off = 0; off < 2; off++) {
        setenv("MK_TUNER", off ? "off" : "on", 1);
        unlink(path);
        assert_int_equal(mk_settings_load(&set, true), 0);
        assert_int_equal(mk_starts_open_settings(&set, &s), 0);
        assert_int_equal(mk_starts_put(s, &k, &v), 0);
        assert_int_equal(mk_starts_save(s), 0);
        assert_int_equal(access(path, F_OK), off ? -1 : 0);
        mk_starts_close(s);
    }
    unsetenv("MK_TUNER_FILE");
    unsetenv("MK_TUNER");
}

/* ---- bad files ---- */

static uint8_t good[MK_START_BYTES_MAX], bytes[MK_START_BYTES_MAX + 200], after[MK_START_BYTES_MAX + 200];
static size_t good_bytes;
static struct mk_start_table table;

static void make_good(void)
{
    memset(&table, 0, sizeof(table));
    for (uint32_t i = 0; i < 3; i++) {
        struct mk_start_entry e = {key_of(100, (int)i), point(i)};
        e.value.launches = 1;
        mk_start_merge(&table, &e);
    }
    good_bytes = mk_start_format(&table, good);
    assert_int_equal(good_bytes, 32 + 3 * 128);
}

/* Opens what is in `bytes`, learns something, saves twice. */
static void use(size_t n, int want_warnings, bool left_alone)
{
    struct mk_starts *s;
    struct mk_start v = point(9);
    const struct mk_start_key k = key_of(1, 77);
    warnings = 0;
    spill(bytes, n);
    assert_int_equal(mk_starts_open(path, &s), 0);
    assert_int_equal(mk_starts_count(s), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(mk_starts_put(s, &k, &v), 0);
        assert_int_equal(mk_starts_save(s), 0);
    }
    mk_starts_close(s);
    assert_int_equal(warnings, want_warnings);
    if (want_warnings)
        assert_non_null(strstr(last_warning, path));
    const size_t now = slurp(after, sizeof(after));
    if (left_alone) {
        assert_int_equal(now, n);
        assert_memory_equal(bytes, after, n);
    } else {
        assert_int_equal(entries_in_file(), 1);
    }
}

static void truncated(void **state)
{
    (void)state;
    make_good();
    memcpy(bytes, good, good_bytes);
    for (size_t n = 0; n < good_bytes; n += n < 40 ? 1 : 37)
        use(n, n > 0, false);
    use(good_bytes + 1, 1, false); /* longer than it says */
    use(good_bytes + 150, 1, false);
    spill(good, good_bytes);
    assert_int_equal(entries_in_file(), 3);
}

static void corrupted(void **state)
{
    (void)state;
    make_good();
    for (size_t at = 0; at < good_bytes; at++)
        for (int bit = 0; bit < 8; bit += 7) {
            memcpy(bytes, good, good_bytes);
            bytes[at] = (uint8_t)(bytes[at] ^ 1 << bit);
            const enum mk_start_found want = at < 8    ? MK_START_FOREIGN
                                             : at < 16 ? MK_START_OTHER
                                                       : MK_START_DAMAGED;
            assert_int_equal(mk_start_parse(bytes, good_bytes, &table), want);
        }
    memcpy(bytes, good, good_bytes);
    bytes[200]++;
    use(good_bytes, 1, false);
}

static void foreign(void **state)
{
    (void)state;
    make_good();
    snprintf((char *)bytes, sizeof(bytes), "{\"a file\": \"of somebody else\"}\n");
    use(strlen((char *)bytes), 1, true);
    bytes[0] = 'm'; /* like ours for one byte */
    bytes[1] = 'x';
    use(2, 1, true);
    memcpy(bytes, good, good_bytes);
    bytes[12]++; /* of a later version, that we do not know how to keep */
    use(good_bytes, 1, true);
    assert_non_null(strstr(last_warning, "version"));
    memcpy(bytes, good, good_bytes);
    memcpy(bytes + 8, "\x01\x02\x03\x04", 4); /* of a machine with the other byte order */
    use(good_bytes, 1, true);
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)(i * 7);
    use(sizeof(bytes), 1, true); /* longer than any of ours */
}

/* Whatever is inside, with a right sum or a wrong one: no crash, and what comes out makes sense. */
static void random_bytes(void **state)
{
    (void)state;
    uint64_t x = 88172645463325252ull;
    int read = 0, refused = 0;
    make_good();
    for (int i = 0; i < 20000; i++) {
        struct mk_start_table in;
        memset(&in, 0, sizeof(in.count) + 8 * sizeof(in.entry[0]));
        in.count = i % 5;
        for (uint32_t k = 0; k < in.count; k++) {
            in.entry[k] = (struct mk_start_entry){key_of(i, (int)k), point(k)};
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            if (i % 3)
                ((uint8_t *)&in.entry[k])[x % 128] = (uint8_t)(x >> 32);
        }
        size_t n = mk_start_format(&in, bytes);
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        if (i % 7 == 6)
            bytes[x % n] = (uint8_t)(x >> 40);
        if (i % 11 == 10)
            n = x % (n + 1);
        const enum mk_start_found found = mk_start_parse(bytes, n, &table);
        read += found == MK_START_READ;
        refused += found != MK_START_READ;
        for (uint32_t k = 0; found == MK_START_READ && k < table.count; k++)
            assert_true(mk_start_valid(&table.entry[k]));
        if (i % 3 == 0 && i % 7 != 6 && i % 11 != 10)
            assert_int_equal(found, MK_START_READ);
    }
    assert_true(read > 1000 && refused > 1000);
}

static void no_file_at_all(void **state)
{
    (void)state;
    struct mk_starts *s;
    struct mk_start v = point(9);
    const struct mk_start_key k = key_of(1, 1);
    char away[80];
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(mk_starts_open(path, &s), 0); /* does not wait for a writer */
    assert_int_equal(warnings, 1);
    assert_int_equal(mk_starts_put(s, &k, &v), 0);
    assert_int_equal(mk_starts_save(s), 0);
    assert_int_equal(warnings, 1);
    mk_starts_close(s);
    assert_int_equal(mk_starts_open(dir, &s), 0);
    assert_int_equal(warnings, 2);
    mk_starts_close(s);
    snprintf(away, sizeof(away), "%s/nowhere/file", dir);
    assert_int_equal(mk_starts_open(away, &s), 0);
    assert_int_equal(warnings, 2);
    assert_int_equal(mk_starts_put(s, &k, &v), 0);
    assert_int_equal(mk_starts_save(s), MK_ERR_SYSTEM);
    assert_int_equal(mk_starts_save(s), MK_ERR_SYSTEM); /* said once */
    assert_int_equal(warnings, 3);
    mk_starts_close(s);
}

static void lock_is_held(void **state)
{
    (void)state;
    struct mk_starts *s;
    struct mk_start v = point(9);
    const struct mk_start_key k = key_of(1, 1);
    int lock;
    assert_int_equal(mk_starts_open(path, &s), 0);
    assert_int_equal(mk_starts_put(s, &k, &v), 0);
    assert_int_equal(mk_start_lock(path, &lock), 0);
    assert_int_equal(mk_starts_save(s), MK_ERR_AGAIN);
    assert_int_equal(access(path, F_OK), -1);
    mk_start_unlock(lock);
    assert_int_equal(mk_starts_save(s), 0);
    assert_int_equal(entries_in_file(), 1);
    assert_int_equal(warnings, 0);
    mk_starts_close(s);
}

/* ---- many ---- */

static int patiently(struct mk_starts *s)
{
    int ret;
    do
        ret = mk_starts_save(s);
    while (ret == MK_ERR_AGAIN);
    return ret;
}

/* Learns in `rounds` rounds; exits with 0 if all went well. */
static void learn(int who, int rounds)
{
    for (int i = 0; i < rounds; i++) {
        struct mk_starts *s;
        struct mk_start v = point((uint32_t)who);
        const struct mk_start_key own = key_of(1 << (i % 20), 100 + who), shared = key_of(1, 1);
        if (mk_starts_open(path, &s) || mk_starts_put(s, &own, &v) || mk_starts_put(s, &shared, &v) ||
            patiently(s))
            _exit(1);
        mk_starts_close(s);
    }
    _exit(warnings ? 2 : 0);
}
static pid_t spawn(int who, int rounds)
{
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid)
        learn(who, rounds);
    return pid;
}

#define PROCESSES 6
static void many_processes(void **state)
{
    (void)state;
    pid_t pid[PROCESSES];
    int status, looks = 0, running = PROCESSES;
    struct mk_starts *s;
    struct mk_start got;
    for (int i = 0; i < PROCESSES; i++)
        pid[i] = spawn(i, 20);
    while (running) { /* whoever looks sees a whole file */
        char why[160];
        const enum mk_start_found found = mk_start_read_file(path, &table, why);
        assert_true(found == MK_START_READ || (found == MK_START_ABSENT && !looks));
        looks += found == MK_START_READ;
        for (int i = 0; i < PROCESSES; i++)
            if (pid[i] > 0 && waitpid(pid[i], &status, WNOHANG) == pid[i]) {
                assert_true(WIFEXITED(status));
                assert_int_equal(WEXITSTATUS(status), 0);
                pid[i] = 0;
                running--;
            }
    }
    assert_true(looks > 0);
    assert_int_equal(mk_starts_open(path, &s), 0);
    assert_int_equal(mk_starts_count(s), PROCESSES * 20 + 1); /* nobody's is lost */
    const struct mk_start_key shared = key_of(1, 1);
    assert_true(mk_starts_get(s, &shared, &got));
    assert_in_range(got.launches, 20, PROCESSES * 20);
    mk_starts_close(s);
    assert_int_equal(warnings, 0);
}

static void some_are_killed(void **state)
{
    (void)state;
    int seen = 0;
    for (int i = 0; i < 40 || (!seen && i < 400); i++) {
        char why[160];
        int status;
        const pid_t pid = spawn(i % 100, 100000);
        usleep((useconds_t)((200 + i * 1237 % 6000) * (1 + i / 40)));
        kill(pid, SIGKILL);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status));
        const enum mk_start_found found = mk_start_read_file(path, &table, why);
        assert_true(found == MK_START_READ || (found == MK_START_ABSENT && !seen));
        seen += found == MK_START_READ;
    }
    assert_true(seen > 0);           /* some had written before they died */
    const pid_t last = spawn(99, 1); /* no lock was left behind, and what was half written does not matter */
    int status;
    assert_int_equal(waitpid(last, &status, 0), last);
    assert_true(WIFEXITED(status) && !WEXITSTATUS(status));
    assert_true(entries_in_file() > 2); /* its own, all's, and a dead one's */
}

static void *thread_of(void *arg)
{
    struct mk_starts *s = arg;
    struct mk_start v = point(5), got;
    const struct mk_start_key k = key_of(1, 1);
    for (int i = 0; i < 500; i++) {
        mk_starts_put(s, &k, &v);
        if (!mk_starts_get(s, &k, &got) || (i % 100 == 0 && patiently(s)))
            return arg;
    }
    return NULL;
}
static void many_threads(void **state)
{
    (void)state;
    struct mk_starts *s;
    struct mk_start got;
    pthread_t t[4];
    assert_int_equal(mk_starts_open(path, &s), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&t[i], NULL, thread_of, s), 0);
    for (int i = 0; i < 4; i++) {
        void *bad;
        pthread_join(t[i], &bad);
        assert_null(bad);
    }
    const struct mk_start_key k = key_of(1, 1);
    assert_true(mk_starts_get(s, &k, &got));
    assert_int_equal(got.launches, 2000);
    mk_starts_close(s);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup(f, set_up)
    const struct CMUnitTest tests[] = {
        T(keys),           T(in_memory),       T(two_share_a_file), T(settings),       T(truncated),
        T(corrupted),      T(foreign),         T(random_bytes),     T(no_file_at_all), T(lock_is_held),
        T(many_processes), T(some_are_killed), T(many_threads),
    };
    if (!mkdtemp(dir)) {
        perror(dir);
        return 1;
    }
    snprintf(path, sizeof(path), "%s/starts", dir);
    mk_log_set_sink(count_warnings);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    static const char *const left[] = {"", ".lock", ".new"};
    for (int i = 0; i < 3; i++) {
        char name[80];
        snprintf(name, sizeof(name), "%s%s", path, left[i]);
        unlink(name);
    }
    return rmdir(dir) || failed;
}
