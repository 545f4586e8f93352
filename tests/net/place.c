/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Ranks that know a name: what is left at the meeting place, strangers there, many communicators at once, ranks as
 * threads and as processes, a place whose process ends. */
#include "net/place.h"
#include "net/boot_wire.h"
#include "net/ports.h"
#include "boot_help.h"
#include "mk/err.h"
#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

/* ---- pure ---- */

static struct mk_place_msg message(uint32_t what, uint64_t name, uint32_t nranks, uint32_t rank)
{
    struct mk_place_msg m;
    memset(&m, 0, sizeof(m));
    m.version = MK_PLACE_VERSION;
    m.what = what;
    m.key = 5;
    m.name = name;
    m.nranks = nranks;
    m.rank = rank;
    memset(&m.id, (int)name, sizeof(m.id));
    return m;
}
static int ask(struct mk_place_store *s, const struct mk_place_msg *m, uint64_t now, struct mk_place_msg *a)
{
    const int what = mk_place_ask(s, m, now, a);
    assert_true(!what || (uint32_t)what == a->what);
    return what;
}

static void left_and_taken(void **state)
{
    struct mk_place_store *s = calloc(1, sizeof(*s));
    struct mk_place_msg a, m = message(MK_PLACE_TAKE, 7, 3, 1);
    (void)state;
    assert_int_equal(ask(s, &m, 10, &a), 0);
    m = message(MK_PLACE_PUT, 7, 3, 0);
    assert_int_equal(ask(s, &m, 11, &a), MK_PLACE_GIVEN);
    m = message(MK_PLACE_TAKE, 7, 3, 1);
    memset(&m.id, 0, sizeof(m.id));
    assert_int_equal(ask(s, &m, 12, &a), MK_PLACE_GIVEN);
    assert_true(((uint8_t *)&a.id)[0] == 7 && ((uint8_t *)&a.id)[127] == 7);
    m.key = 6; /* another job's */
    assert_int_equal(ask(s, &m, 12, &a), 0);
    m.key = 5;
    m.nranks = 4; /* they differ */
    assert_int_equal(ask(s, &m, 12, &a), MK_PLACE_REFUSED);
    m.nranks = 3;
    m.rank = 2;
    for (int i = 0; i < 5;
         i++) { /* an answer can be lost: whoever asks again gets it again, and takes it from nobody */
        assert_int_equal(ask(s, &m, 12, &a), MK_PLACE_GIVEN);
        assert_true(((uint8_t *)&a.id)[0] == 7 && ((uint8_t *)&a.id)[127] == 7);
    }
    m = message(MK_PLACE_DROP, 7, 3, 0);
    memset(&m.id, 9, sizeof(m.id)); /* the word of a rank 0 that is no more */
    assert_int_equal(ask(s, &m, 13, &a), MK_PLACE_GIVEN);
    m = message(MK_PLACE_TAKE, 7, 3, 1);
    assert_int_equal(ask(s, &m, 13, &a), MK_PLACE_GIVEN);
    for (int i = 0; i < 2; i++) {
        m = message(MK_PLACE_DROP, 7, 3, 0);
        assert_int_equal(ask(s, &m, 14, &a), MK_PLACE_GIVEN);
        m = message(MK_PLACE_TAKE, 7, 3, 1);
        assert_int_equal(ask(s, &m, 14, &a), 0);
    }
    free(s);
}

static void nonsense(void **state)
{
    struct mk_place_store *s = calloc(1, sizeof(*s));
    struct mk_place_msg a, m;
    static const uint32_t wrong[][3] = {{MK_PLACE_PUT, 1, 0},
                                        {MK_PLACE_PUT, 3, 1},
                                        {MK_PLACE_TAKE, 3, 0},
                                        {MK_PLACE_TAKE, 3, 3},
                                        {MK_PLACE_GIVEN, 3, 1},
                                        {MK_PLACE_DROP, 3, 1},
                                        {0, 3, 1},
                                        {99, 3, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        m = message(wrong[i][0], 1, wrong[i][1], wrong[i][2]);
        assert_int_equal(ask(s, &m, 1, &a), MK_PLACE_REFUSED);
    }
    m = message(MK_PLACE_PUT, 1, 2, 0);
    m.version = 9;
    assert_int_equal(ask(s, &m, 1, &a), MK_PLACE_REFUSED);
    assert_int_equal(a.version, MK_PLACE_VERSION);
    free(s);
}

/* What nobody takes goes after ten minutes, and sooner where there is no room. */
static void forgotten(void **state)
{
    struct mk_place_store *s = calloc(1, sizeof(*s));
    struct mk_place_msg a, m;
    (void)state;
    for (uint64_t i = 0; i < MK_PLACE_ENTRIES + 10; i++) {
        m = message(MK_PLACE_PUT, 1000 + i, 2, 0);
        assert_int_equal(ask(s, &m, 100 + i, &a), MK_PLACE_GIVEN);
    }
    for (uint64_t i = 0; i < MK_PLACE_ENTRIES + 10; i++) {
        m = message(MK_PLACE_TAKE, 1000 + i, 2, 1);
        assert_int_equal(ask(s, &m, 100000, &a), i < 10 ? 0 : MK_PLACE_GIVEN);
    }
    m = message(MK_PLACE_PUT, 3, 2, 0);
    ask(s, &m, 1000, &a);
    m = message(MK_PLACE_TAKE, 3, 2, 1);
    assert_int_equal(ask(s, &m, 1000 + MK_PLACE_KEEP_NS, &a), 0);
    free(s);
}

static void bytes(void **state)
{
    struct mk_place_msg m = message(MK_PLACE_TAKE, 0x1122334455667788ull, 300, 2), back;
    uint8_t buf[MK_PLACE_BYTES];
    (void)state;
    mk_place_put_msg(&m, buf);
    assert_memory_equal(
        buf,
        "\x89Kplac\r\n\x02\0\0\0\x02\0\0\0\x05\0\0\0\0\0\0\0\x88\x77\x66\x55\x44\x33\x22\x11\x2c\x01\0\0\x02",
        37);
    assert_true(mk_place_parse_msg(buf, &back));
    assert_memory_equal(&back, &m, sizeof(m));
    buf[3] ^= 1;
    assert_false(mk_place_parse_msg(buf, &back));
}

/* Never the port that was given, always the same, within the range; the range of one port has no other. */
static void ports(void **state)
{
    (void)state;
    const struct mk_ports any = {0, 0}, few = {50000, 50002};
    for (int given = 1; given < 65536; given += 7) {
        char text[8];
        snprintf(text, sizeof(text), "%d", given);
        const int port = mk_place_port(text, &any);
        assert_true(port >= 20000 && port < 32000 && port != given && port == mk_place_port(text, &any));
    }
    for (int given = 50000; given <= 50002; given++) {
        char text[8];
        snprintf(text, sizeof(text), "%d", given);
        const int port = mk_place_port(text, &few);
        assert_true(port >= 50000 && port <= 50002 && port != given);
    }
}

/* ---- over sockets ---- */

struct member {
    struct mk_settings s;
    uint64_t name;
    int nranks, rank, delay_ms, ret;
    const bool *go_on; /* NULL: always */
    char error[256];
};
static bool may_go_on(void *ctx)
{
    const struct member *m = ctx;
    return !m->go_on || __atomic_load_n(m->go_on, __ATOMIC_ACQUIRE);
}

static void *join(void *arg)
{
    struct member *m = arg;
    struct mk_boot *b = NULL;
    int all[HELP_MAX];
    help_sleep_ms(m->delay_ms);
    m->ret = m->go_on ? mk_boot_init_name_while(&m->s, m->name, m->nranks, m->rank, may_go_on, m, &b)
                      : mk_boot_init_name(&m->s, m->name, m->nranks, m->rank, &b);
    if (!m->ret)
        m->ret = mk_boot_allgather(b, &m->rank, all, sizeof(m->rank));
    for (int r = 0; r < m->nranks && !m->ret; r++)
        m->ret = all[r] == r ? 0 : mk_fail_quiet(MK_ERR_INTERNAL, "strangers met");
    snprintf(m->error, sizeof(m->error), "%s", m->ret ? mk_last_error() : "");
    mk_boot_destroy(b);
    return NULL;
}

static int place_port(const struct mk_settings *s)
{
    struct mk_ports any;
    assert_int_equal(mk_ports_of(s, &any), 0);
    return mk_place_port(strchr(s->root, ':') + 1, &any);
}
/* n communicators of nranks, all at once, one process. */
static void many(struct member *m, int n, int nranks)
{
    pthread_t *t = calloc((size_t)(n * nranks), sizeof(*t));
    for (int i = 0; i < n * nranks; i++)
        assert_int_equal(pthread_create(&t[i], NULL, join, &m[i]), 0);
    for (int i = 0; i < n * nranks; i++)
        pthread_join(t[i], NULL);
    free(t);
}
static struct member *members(int n, int nranks, double timeout)
{
    struct member *m = calloc((size_t)(n * nranks), sizeof(*m));
    const int port = help_port();
    for (int i = 0; i < n * nranks; i++) {
        help_settings(&m[i].s, port, timeout);
        m[i].name = 0xabc0 + (uint64_t)(i / nranks);
        m[i].nranks = nranks;
        m[i].rank = i % nranks;
    }
    return m;
}

static void many_at_once(void **state)
{
    (void)state;
    struct member *m = members(10, 3, 30);
    for (int i = 0; i < 30; i++)
        m[i].delay_ms = i * 7 % 60;
    many(m, 10, 3);
    for (int i = 0; i < 30; i++)
        if (m[i].ret)
            fail_msg("communicator %d rank %d: %d %s", i / 3, i % 3, m[i].ret, m[i].error);
    free(m);
    mk_place_stop();
}

static void who_differ_or_miss(void **state)
{
    (void)state;
    struct member *m = members(1, 2, 20);
    m[1].nranks = 3;
    m[1].delay_ms = 300; /* rank 0 has left its word, for two */
    m[0].s.timeout = 2;
    many(m, 1, 2);
    assert_int_equal(m[1].ret, MK_ERR_MISMATCH);
    assert_true(m[0].ret == MK_ERR_TIMEOUT || m[0].ret == MK_ERR_MISMATCH);
    free(m);
    mk_place_stop();
    m = members(1, 2, 1);
    many(&m[1], 1, 1); /* nobody leaves word */
    assert_int_equal(m[1].ret, MK_ERR_TIMEOUT);
    assert_non_null(strstr(m[1].error, "find its root"));
    m[0].s.root[0] = 0;
    unsetenv("MASTER_ADDR");
    many(m, 1, 1);
    assert_int_equal(m[0].ret, MK_ERR_UNSUPPORTED);
    free(m);
    mk_place_stop();
}

/* What lies there for this name, asked as rank 1: 0 nothing (within half a second), else a kind of answer. */
static int lies_there(int port, uint64_t name, uint32_t nranks, int wait_ms)
{
    struct mk_place_msg m = message(MK_PLACE_TAKE, name, nranks, 1), a;
    uint8_t buf[MK_PLACE_BYTES];
    m.key = mk_boot_hash("", 0); /* MK_JOB is not set */
    mk_place_put_msg(&m, buf);
    const int fd = help_stranger(port, buf, sizeof(buf));
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (fd < 0)
        return -1;
    int what = 0;
    if (poll(&p, 1, wait_ms) == 1 && help_read_all(fd, buf, sizeof(buf)) == MK_PLACE_BYTES &&
        mk_place_parse_msg(buf, &a))
        what = (int)a.what;
    close(fd);
    return what;
}

/* Who gives up does so soon, whatever it waits for; a rank 0 takes its word away. Also after all have met. */
static void given_up(void **state)
{
    (void)state;
    struct member *m = members(1, 3, 3000);
    const int port = place_port(&m[0].s);
    pthread_t t[2];
    bool go_on = true;
    for (int i = 0; i < 2; i++) { /* rank 0 waits for rank 2, at its root; rank 1 too */
        m[i].go_on = &go_on;
        assert_int_equal(pthread_create(&t[i], NULL, join, &m[i]), 0);
    }
    for (int i = 0; i < 1000 && lies_there(port, m[0].name, 3, 100) != MK_PLACE_GIVEN; i++)
        help_sleep_ms(20);
    assert_int_equal(lies_there(port, m[0].name, 3, 30000), MK_PLACE_GIVEN);
    __atomic_store_n(&go_on, false, __ATOMIC_RELEASE);
    for (int i = 0; i < 2; i++) {
        pthread_join(t[i], NULL);
        if (m[i].ret != MK_ERR_ABORTED && m[i].ret != MK_ERR_PEER) /* the other one was the first */
            fail_msg("rank %d: %d %s", i, m[i].ret, m[i].error);
    }
    assert_int_equal(lies_there(port, m[0].name, 3, 500), 0);
    m[1].name++; /* rank 1 waits for rank 0's word */
    go_on = true;
    assert_int_equal(pthread_create(&t[1], NULL, join, &m[1]), 0);
    help_sleep_ms(200);
    __atomic_store_n(&go_on, false, __ATOMIC_RELEASE);
    pthread_join(t[1], NULL);
    assert_int_equal(m[1].ret, MK_ERR_ABORTED);
    for (int i = 0; i < 2; i++) {
        m[i].go_on = NULL;
        m[i].name = 0xdef;
        m[i].nranks = 2;
    }
    many(m, 1, 2);
    if (m[0].ret || m[1].ret)
        fail_msg("%d %s, %d %s", m[0].ret, m[0].error, m[1].ret, m[1].error);
    assert_int_equal(lies_there(port, 0xdef, 2, 500), 0);
    free(m);
    mk_place_stop();
}

/* The process that serves ends when rank 0 has left its word and another rank has taken it: the third finds it too. */
static void the_word_moves(void **state)
{
    (void)state;
    struct member *m = members(1, 3, 60);
    const int port = place_port(&m[0].s);
    const struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    pid_t pid[4];
    for (int i = 0; i < 4; i++) { /* the place, then rank 0, 1, 2 */
        pid[i] = fork();
        if (!pid[i] && !i) {
            if (!mk_place_serve((const struct sockaddr *)&at, sizeof(at)))
                help_sleep_ms(100000);
            _exit(1);
        }
        if (!pid[i]) {
            join(&m[i - 1]);
            _exit(m[i - 1].ret ? 1 : 0);
        }
        for (int k = 0; !i && k < 10000 && lies_there(port, 1, 3, 1) < 0;
             k++) /* it serves: nobody else may */
            help_sleep_ms(1);
        if (i == 1)
            for (int k = 0; k < 1000 && lies_there(port, m[0].name, 3, 100) != MK_PLACE_GIVEN; k++)
                help_sleep_ms(20);
        if (i == 2)
            assert_int_equal(kill(pid[0], SIGKILL), 0);
    }
    for (int i = 0; i < 4; i++) {
        int status;
        assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
        assert_true(i ? WIFEXITED(status) && WEXITSTATUS(status) == 0 : WIFSIGNALED(status));
    }
    free(m);
}

static void strangers(void **state)
{
    (void)state;
    struct member *m = members(1, 2, 30);
    const int port = place_port(&m[0].s);
    pthread_t first;
    uint8_t buf[400];
    assert_int_equal(pthread_create(&first, NULL, join, &m[1]), 0); /* serves, and waits for rank 0 */
    int fd = -1;
    for (int i = 0; i < 2000 && (fd = help_connect(port)) < 0; i++)
        help_sleep_ms(5);
    assert_true(fd >= 0);
    close(fd); /* a port scan */
    fd = help_stranger(port, "GET / HTTP/1.1\r\nHost: x\r\n\r\n", 27);
    memset(buf, 'x', sizeof(buf));
    const int other = help_stranger(port, buf, sizeof(buf));
    assert_int_equal(help_read_all(other, buf, sizeof(buf)) > 0, 0); /* no answer for those */
    struct mk_place_msg talk = message(MK_PLACE_TAKE, 1, 2, 1), a;
    talk.version = 77;
    mk_place_put_msg(&talk, buf);
    const int version = help_stranger(port, buf, MK_PLACE_BYTES);
    assert_int_equal(help_read_all(version, buf, sizeof(buf)), MK_PLACE_BYTES);
    assert_true(mk_place_parse_msg(buf, &a) && a.what == MK_PLACE_REFUSED && a.version == MK_PLACE_VERSION);
    m[0].ret = 1;
    join(&m[0]);
    pthread_join(first, NULL);
    assert_int_equal(m[0].ret, 0);
    assert_int_equal(m[1].ret, 0);
    close(fd);
    close(other);
    close(version);
    free(m);
    mk_place_stop();
}

/* A place whose process has few descriptors, all taken by those who wait for what never comes: others still meet. */
static void few_descriptors(void **state)
{
    (void)state;
    struct member *m = members(1, 2, 30);
    const int port = place_port(&m[0].s), lowest = dup(0);
    const struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd[40];
    close(lowest);
    const pid_t pid = fork();
    if (!pid) {
        struct rlimit l;
        getrlimit(RLIMIT_NOFILE, &l);
        l.rlim_cur = (rlim_t)lowest + 6;
        setrlimit(RLIMIT_NOFILE, &l);
        if (!mk_place_serve((const struct sockaddr *)&at, sizeof(at)))
            help_sleep_ms(100000);
        _exit(1);
    }
    struct mk_place_msg talk = message(MK_PLACE_TAKE, 1, 2, 1);
    uint8_t buf[MK_PLACE_BYTES];
    mk_place_put_msg(&talk, buf);
    for (int i = 0; i < 40; i++) {
        fd[i] = help_stranger(port, buf, sizeof(buf));
        for (int tries = 0; fd[i] < 0 && tries < 10; tries++) /* each takes 5 s */
            fd[i] = help_stranger(port, buf, sizeof(buf));
        assert_true(fd[i] >= 0);
    }
    many(m, 1, 2);
    assert_int_equal(waitpid(pid, NULL, WNOHANG), 0); /* it did serve */
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    for (int i = 0; i < 40; i++)
        close(fd[i]);
    if (m[0].ret || m[1].ret)
        fail_msg("%d %s, %d %s", m[0].ret, m[0].error, m[1].ret, m[1].error);
    free(m);
    mk_place_stop();
}

/* Processes; the address comes from MASTER_ADDR and MASTER_PORT. The one that came first serves, and is killed before
 * rank 0 comes: the others serve in its place. */
static void the_place_moves(void **state)
{
    (void)state;
    char port[16];
    pid_t pid[4];
    struct member *m = members(1, 3, 30);
    snprintf(port, sizeof(port), "%d", help_port());
    struct addrinfo *found = NULL; /* a bare machine may have no /etc/hosts */
    const bool named = !getaddrinfo("localhost", NULL, NULL, &found);
    if (named)
        freeaddrinfo(found);
    setenv("MASTER_ADDR", named ? "localhost" : "127.0.0.1", 1);
    setenv("MASTER_PORT", port, 1);
    for (int i = 0; i < 4; i++) {
        pid[i] = fork();
        if (!pid[i]) {
            struct member *me = &m[i == 3 ? 2 : 2 - i % 3]; /* 2, 1, 0, and again 2 */
            me->s.root[0] = 0;
            me->delay_ms = 200 * i;
            join(me);
            _exit(me->ret ? 1 : 0);
        }
        if (i == 1) {
            help_sleep_ms(400);
            assert_int_equal(kill(pid[0], SIGKILL), 0);
        }
    }
    for (int i = 0; i < 4; i++) {
        int status;
        assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
        if (i)
            assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        else
            assert_true(WIFSIGNALED(status));
    }
    free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_place_moves), /* these fork: first, while there are no threads */
        cmocka_unit_test(the_word_moves),
        cmocka_unit_test(few_descriptors),
        cmocka_unit_test(left_and_taken),
        cmocka_unit_test(nonsense),
        cmocka_unit_test(forgotten),
        cmocka_unit_test(bytes),
        cmocka_unit_test(ports),
        cmocka_unit_test(many_at_once),
        cmocka_unit_test(who_differ_or_miss),
        cmocka_unit_test(strangers),
        cmocka_unit_test(given_up),
    };
    help_log_catch();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
