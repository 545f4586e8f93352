/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#include "boot_help.h"
#include "mk/err.h"
#include "mk/log.h"
#include "mk/shm.h"
#include "tests/net/free_port.h"
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

static pthread_mutex_t board_lock = PTHREAD_MUTEX_INITIALIZER, log_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t board_cond = PTHREAD_COND_INITIALIZER;
static char log_text[1 << 18];
static size_t log_len;

void help_sleep_ms(int ms)
{
    const struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    nanosleep(&t, NULL);
}

static void loopback(struct sockaddr_in *a, int port)
{
    memset(a, 0, sizeof(*a));
    a->sin_family = AF_INET;
    a->sin_port = htons((uint16_t)port);
    a->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
}

int help_port(void)
{
    return free_port();
}

bool help_has_ipv6(void)
{
    struct sockaddr_in6 a;
    memset(&a, 0, sizeof(a));
    a.sin6_family = AF_INET6;
    a.sin6_addr = in6addr_loopback;
    const int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool has = fd >= 0 && !bind(fd, (struct sockaddr *)&a, sizeof(a));
    if (fd >= 0)
        close(fd);
    return has;
}

void help_settings(struct mk_settings *s, int port, double timeout)
{
    if (mk_settings_load(s, false))
        memset(s, 0, sizeof(*s));
    s->timeout = timeout;
    snprintf(s->ifname, sizeof(s->ifname), "lo");
    s->root[0] = 0;
    if (port)
        snprintf(s->root, sizeof(s->root), "127.0.0.1:%d", port);
}

void help_job_init(struct help_job *j, enum help_way way, int n, double timeout)
{
    const int port = way == BY_ROOT ? help_port() : 0;
    memset(j, 0, sizeof(*j));
    j->way = way;
    j->n = n;
    for (int r = 0; r < n; r++) {
        j->rank[r].job = j;
        j->rank[r].rank = r;
        j->rank[r].nranks = n;
        help_settings(&j->rank[r].s, port, timeout);
    }
    j->rank[0].ret = way == BY_ID ? mk_boot_unique_id(&j->rank[0].s, &j->id) : 0;
}

/* The caller's all-gather: a board in memory. */
static int board(void *ctx, const void *send, void *recv, size_t bytes)
{
    struct help_rank *r = ctx;
    struct help_job *j = r->job;
    pthread_mutex_lock(&board_lock);
    if (!j->board)
        j->board = calloc((size_t)j->n, bytes);
    memcpy((char *)j->board + (size_t)r->rank * bytes, send, bytes);
    const uint64_t round = j->round;
    if (++j->waiting == (uint64_t)j->n) {
        j->waiting = 0;
        j->round++;
        pthread_cond_broadcast(&board_cond);
    }
    while (j->round == round)
        pthread_cond_wait(&board_cond, &board_lock);
    memcpy(recv, j->board, (size_t)j->n * bytes);
    pthread_mutex_unlock(&board_lock);
    return 0;
}

int help_init(struct help_rank *r)
{
    switch (r->job->way) {
    case BY_ROOT:
        return mk_boot_init_root(&r->s, r->nranks, r->rank, &r->b);
    case BY_ID:
        return mk_boot_init_id(&r->s, &r->job->id, r->nranks, r->rank, &r->b);
    default:
        return mk_boot_init_allgather(&r->s, r->nranks, r->rank, board, r, &r->b);
    }
}

static void *rank_thread(void *arg)
{
    struct help_rank *r = arg;
    help_sleep_ms(r->delay_ms);
    r->ret = help_init(r);
    if (!r->ret && r->job->body)
        r->ret = r->job->body(r);
    snprintf(r->error, sizeof(r->error), "%s", r->ret ? mk_last_error() : "");
    if (r->b && !r->job->keep) {
        mk_boot_destroy(r->b);
        r->b = NULL;
    }
    return NULL;
}

void help_job_run(struct help_job *j)
{
    pthread_t t[HELP_MAX];
    for (int r = 0; r < j->n; r++)
        if (!j->rank[r].skip && pthread_create(&t[r], NULL, rank_thread, &j->rank[r]))
            j->rank[r].skip = true;
    for (int r = 0; r < j->n; r++)
        if (!j->rank[r].skip)
            pthread_join(t[r], NULL);
    free(j->board);
    j->board = NULL;
}

int help_connect(int port)
{
    struct sockaddr_in a;
    loopback(&a, port);
    for (int i = 0; i < 500; i++) { /* until the root listens */
        const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (!connect(fd, (struct sockaddr *)&a, sizeof(a)))
            return fd;
        close(fd);
        help_sleep_ms(10);
    }
    return -1;
}

int help_stranger(int port, const void *bytes, size_t n)
{
    const int fd = help_connect(port);
    if (fd >= 0 && n && send(fd, bytes, n, MSG_NOSIGNAL) < 0)
        perror("stranger");
    return fd;
}

long help_read_all(int fd, void *buf, size_t size)
{
    size_t have = 0;
    const uint64_t until = mk_time_ns() + 5000000000u;
    while (mk_time_ns() < until) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, 100) <= 0)
            continue;
        char rest[256];
        const ssize_t n =
            have < size ? recv(fd, (char *)buf + have, size - have, 0) : recv(fd, rest, sizeof(rest), 0);
        if (n == 0 || (n < 0 && errno == ECONNRESET))
            return (long)have;
        if (n > 0 && have < size)
            have += (size_t)n;
    }
    return -1;
}

bool help_wait_event(struct mk_boot *b, struct mk_boot_event *out, int ms)
{
    const uint64_t until = mk_time_ns() + (uint64_t)ms * 1000000u;
    while (!mk_boot_event(b, out)) {
        if (mk_time_ns() > until)
            return false;
        help_sleep_ms(1);
    }
    return true;
}

bool help_wait_left(struct mk_boot *b, int rank, int ms)
{
    const uint64_t until = mk_time_ns() + (uint64_t)ms * 1000000u;
    while (!mk_boot_has_left(b, rank)) {
        if (mk_time_ns() > until)
            return false;
        help_sleep_ms(1);
    }
    return true;
}

static void sink(enum mk_log_level level, const char *subsys, const char *text)
{
    (void)level;
    (void)subsys;
    pthread_mutex_lock(&log_lock);
    const size_t n = strlen(text);
    if (log_len + n + 2 < sizeof(log_text)) {
        memcpy(log_text + log_len, text, n);
        log_text[log_len + n] = '\n';
        log_len += n + 1;
        log_text[log_len] = 0;
    }
    pthread_mutex_unlock(&log_lock);
}

void help_log_catch(void)
{
    pthread_mutex_lock(&log_lock);
    log_len = 0;
    log_text[0] = 0;
    pthread_mutex_unlock(&log_lock);
    mk_log_set_sink(sink);
}

int help_log_count(const char *part)
{
    int n = 0;
    pthread_mutex_lock(&log_lock);
    for (const char *line = log_text, *end; (end = strchr(line, '\n')); line = end + 1) {
        const char *at = strstr(line, part);
        n += at && at < end;
    }
    pthread_mutex_unlock(&log_lock);
    return n;
}

void help_all_return(const struct help_job *j, int ret, const char *text)
{
    for (int r = 0; r < j->n; r++) {
        if (j->rank[r].skip)
            continue;
        if (j->rank[r].ret != ret || !strstr(j->rank[r].error, text))
            fail_msg("rank %d of %d: %d (%s), wanted %d (%s)", r, j->n, j->rank[r].ret, j->rank[r].error, ret,
                     text);
    }
}
