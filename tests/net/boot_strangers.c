/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Strangers at the root's door, while a job meets and after: each is refused with one line that gives the reason,
 * those that speak the protocol are told, and the job is none the worse. */
#include "boot_help.h"
#include "mk/err.h"
#include "net/boot_wire.h"
#include <arpa/inet.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

static int port_of(const struct help_job *j)
{
    return atoi(strchr(j->rank[0].s.root, ':') + 1);
}

static uint64_t key_of_no_job_name(void)
{
    return mk_boot_hash("", 0) ^ MK_BOOT_HELLO_MAGIC; /* as in boot_meet.c */
}

static struct mk_boot_hello good_hello(uint32_t nranks, uint32_t rank)
{
    struct mk_boot_hello h;
    memset(&h, 0, sizeof(h));
    h.version = MK_BOOT_VERSION;
    h.key = key_of_no_job_name();
    h.token = 4711;
    h.nranks = nranks;
    h.rank = rank;
    h.wait_ms = 60000;
    return h;
}

/* Says hello, wants a refusal with this code and text, and the end of the connection after it. */
static void refused(int port, const struct mk_boot_hello *h, int code, const char *text)
{
    uint8_t hello[sizeof(*h)], got[1024];
    struct mk_boot_answer a;
    mk_boot_put_hello(h, hello);
    const int fd = help_stranger(port, hello, sizeof(hello));
    assert_true(fd >= 0);
    const long n = help_read_all(fd, got, sizeof(got) - 1);
    close(fd);
    assert_true(n >= (long)sizeof(a));
    memset(&a, 0, sizeof(a));
    assert_int_equal(mk_boot_parse_answer(got, (size_t)n, &a), MK_BOOT_PARSED);
    assert_int_equal(a.kind, MK_BOOT_REFUSE);
    assert_int_equal(a.code, code);
    assert_int_equal(n, sizeof(a) + a.length);
    got[n] = 0;
    if (!strstr((char *)got + sizeof(a), text))
        fail_msg("refused with \"%s\", wanted \"%s\"", got + sizeof(a), text);
}

/* Sends bytes, wants the end without an answer. */
static void dropped(int port, const void *bytes, size_t n)
{
    uint8_t got[64];
    const int fd = help_stranger(port, bytes, n);
    assert_true(fd >= 0);
    assert_int_equal(help_read_all(fd, got, sizeof(got)), 0);
    close(fd);
}

static void one_line(const char *text, int lines)
{
    for (int i = 0; i < 500 && help_log_count(text) < lines; i++)
        help_sleep_ms(10);
    if (help_log_count(text) != lines)
        fail_msg("%d lines with \"%s\", wanted %d", help_log_count(text), text, lines);
}

/* All kinds, one after the other. */
static void all_kinds(int port, uint32_t nranks)
{
    static const char http[] = "GET / HTTP/1.1\r\nHost: here\r\n\r\n";
    struct mk_boot_hello h = good_hello(nranks, 1);
    uint8_t hello[sizeof(h)];
    help_log_catch();
    close(help_connect(port)); /* a port scan */
    one_line("without a hello", 1);
    dropped(port, http, sizeof(http) - 1);
    one_line("does not speak our protocol", 1);
    mk_boot_put_hello(&h, hello);
    close(help_stranger(port, hello, 20));
    one_line("in the middle of its hello", 1);
    hello[12] ^= 1; /* its size */
    dropped(port, hello, sizeof(hello));
    one_line("does not speak our protocol", 2);
    h.version = 77;
    refused(port, &h, MK_ERR_MISMATCH, "version 77");
    one_line("version 77", 1);
    h = good_hello(nranks, 1);
    h.key++;
    refused(port, &h, MK_ERR_MISMATCH, "another job");
    one_line("another job", 1);
    h = good_hello(nranks, nranks + 3);
    refused(port, &h, MK_ERR_INVALID, "out of range");
    one_line("out of range", 1);
    h = good_hello(0, 0);
    refused(port, &h, MK_ERR_INVALID, "out of range");
    h = good_hello(nranks, 1);
    refused(port, &h, MK_ERR_INVALID, "rank 1 is in the job already");
    one_line("rank 1 is in the job already", 1);
    assert_int_equal(help_log_count("refused a connection from 127.0.0.1:"), 9);
}

static int barriers(struct help_rank *r)
{
    int ret = mk_boot_barrier(r->b);
    if (!ret && mk_boot_event(r->b, NULL))
        ret = mk_fail_quiet(MK_ERR_INTERNAL, "an event");
    return ret;
}

static void *run(void *arg)
{
    help_job_run(arg);
    return NULL;
}

static void good(const struct help_job *j)
{
    for (int r = 0; r < j->n; r++)
        if (j->rank[r].ret)
            fail_msg("rank %d: %d (%s)", r, j->rank[r].ret, j->rank[r].error);
}

static void while_meeting(void **state)
{
    static struct help_job j;
    pthread_t t;
    (void)state;
    help_job_init(&j, BY_ROOT, 4, 20);
    j.rank[3].delay_ms = 1500;
    j.body = barriers;
    assert_int_equal(pthread_create(&t, NULL, run, &j), 0);
    help_sleep_ms(300); /* ranks 0 to 2 are there */
    all_kinds(port_of(&j), 4);
    pthread_join(t, NULL);
    good(&j);
}

static void after_meeting(void **state)
{
    static struct help_job j;
    uint8_t got[8];
    (void)state;
    help_job_init(&j, BY_ROOT, 3, 2);
    j.keep = true;
    j.body = barriers;
    help_job_run(&j);
    good(&j);
    const int port = port_of(&j);
    const int silent = help_connect(port);
    all_kinds(port, 3);
    const struct mk_boot_hello h = good_hello(5, 4); /* disagrees, but the job has met: only it is refused */
    refused(port, &h, MK_ERR_MISMATCH, "number of ranks");
    assert_int_equal(help_read_all(silent, got, sizeof(got)), 0);
    one_line("hello in time", 1);
    close(silent);
    for (int r = 0; r < 3; r++)
        assert_int_equal(mk_boot_event(j.rank[r].b, NULL), 0);
    for (int r = 0; r < 3; r++)
        mk_boot_destroy(j.rank[r].b);
}

static void flood(void **state)
{
    static struct help_job j;
    static int fds[400];
    pthread_t t;
    (void)state;
    help_log_catch();
    help_job_init(&j, BY_ROOT, 3, 20);
    j.rank[2].delay_ms = 1000;
    j.body = barriers;
    assert_int_equal(pthread_create(&t, NULL, run, &j), 0);
    for (int i = 0; i < 400; i++) {
        fds[i] = help_stranger(port_of(&j), "\x89mK", i % 2 ? 3 : 0);
        assert_true(fds[i] >= 0);
    }
    pthread_join(t, NULL);
    good(&j);
    assert_true(help_log_count("too many connections") > 100);
    assert_true(help_log_count("refused a connection") <= 200); /* then it falls silent */
    for (int i = 0; i < 400; i++)
        close(fds[i]);
}

/* A hello that dribbles in is as good as any. */
static void dribble(void **state)
{
    static struct help_job j;
    pthread_t t;
    uint8_t hello[sizeof(struct mk_boot_hello)], got[64];
    (void)state;
    help_job_init(&j, BY_ROOT, 2, 10);
    j.rank[1].skip = true;
    assert_int_equal(pthread_create(&t, NULL, run, &j), 0);
    const struct mk_boot_hello h = good_hello(2, 1);
    mk_boot_put_hello(&h, hello);
    const int fd = help_connect(port_of(&j));
    for (size_t i = 0; i < sizeof(hello); i++) {
        assert_int_equal(send(fd, hello + i, 1, MSG_NOSIGNAL), 1);
        help_sleep_ms(2);
    }
    assert_int_equal(recv(fd, got, 40, MSG_WAITALL), 40); /* welcome, and the head of MET */
    pthread_join(t, NULL);
    assert_int_equal(j.rank[0].ret, 0);
    close(fd);
}

/* A member that talks nonsense after its hello is a dead member. */
static void nonsense(void **state)
{
    static struct help_job j;
    struct mk_boot_event ev;
    pthread_t t;
    uint8_t hello[sizeof(struct mk_boot_hello)];
    (void)state;
    help_job_init(&j, BY_ROOT, 2, 10);
    j.rank[1].skip = true;
    j.keep = true;
    assert_int_equal(pthread_create(&t, NULL, run, &j), 0);
    const struct mk_boot_hello h = good_hello(2, 1);
    mk_boot_put_hello(&h, hello);
    const int fd = help_stranger(port_of(&j), hello, sizeof(hello));
    pthread_join(t, NULL);
    assert_int_equal(j.rank[0].ret, 0);
    assert_int_equal(send(fd, "nonsense nonsense", 17, MSG_NOSIGNAL), 17);
    assert_true(help_wait_event(j.rank[0].b, &ev, 5000));
    assert_int_equal(ev.code, MK_ERR_PEER);
    assert_int_equal(ev.rank, 1);
    assert_non_null(strstr(ev.text, "not in the protocol"));
    close(fd);
    mk_boot_destroy(j.rank[0].b);
}

static void other_job(void **state)
{
    static struct help_job j;
    (void)state;
    help_job_init(&j, BY_ROOT, 3, 2);
    snprintf(j.rank[1].s.job, sizeof(j.rank[1].s.job), "other");
    help_job_run(&j);
    assert_int_equal(j.rank[1].ret, MK_ERR_MISMATCH);
    assert_non_null(strstr(j.rank[1].error, "another job"));
    assert_int_equal(j.rank[0].ret, MK_ERR_TIMEOUT); /* rank 1 of this job never came */
    assert_non_null(strstr(j.rank[0].error, "missing: rank 1"));
    assert_int_equal(j.rank[2].ret, MK_ERR_TIMEOUT);
}

/* Something else listens where the root should be. */
static void *other_server(void *arg)
{
    const int fd = accept(*(int *)arg, NULL, NULL);
    if (fd >= 0 && send(fd, "SSH-2.0-other\r\n", 15, MSG_NOSIGNAL) == 15)
        help_sleep_ms(100);
    close(fd);
    return NULL;
}

static void not_a_root(void **state)
{
    struct mk_settings s;
    struct sockaddr_in a;
    socklen_t len = sizeof(a);
    struct mk_boot *b = NULL;
    pthread_t t;
    (void)state;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    memset(&a, 0, sizeof(a));
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(listen(fd, 4), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &len), 0);
    assert_int_equal(pthread_create(&t, NULL, other_server, &fd), 0);
    help_settings(&s, ntohs(a.sin_port), 5);
    assert_int_equal(mk_boot_init_root(&s, 2, 1, &b), MK_ERR_NET);
    assert_non_null(strstr(mk_last_error(), "does not speak our protocol"));
    pthread_join(t, NULL);
    /* and rank 0 cannot have the address */
    help_settings(&s, ntohs(a.sin_port), 0.3);
    assert_int_equal(mk_boot_init_root(&s, 2, 0, &b), MK_ERR_SYSTEM);
    assert_non_null(strstr(mk_last_error(), "in use"));
    close(fd);
    assert_null(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(while_meeting), cmocka_unit_test(after_meeting), cmocka_unit_test(flood),
        cmocka_unit_test(dribble),       cmocka_unit_test(nonsense),      cmocka_unit_test(other_job),
        cmocka_unit_test(not_a_root),
    };
    help_log_catch();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
