/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The root service's thread: a poll loop that moves bytes between sockets and boot_core.c. */
#include "boot_root.h"
#include "boot_sock.h"
#include "mk/err.h"
#include "mk/log.h"
#include "mk/shm.h"
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

enum { READ_SIZE = 65536, READS_A_ROUND = 8, ACCEPTS_A_ROUND = 64 };

struct mk_boot_root {
    struct mk_boot_root *next; /* list, stop, evict, farewell: under the live lock */
    bool stop, evict, farewell;
    uint32_t heard; /* hellos so far; under the live lock */
    pid_t pid;
    uint64_t key;
    uint16_t port;
    int wake_fd;

    /* the thread's own */
    int listen_fd;
    uint64_t accept_after; /* no descriptors left: not before this time */
    struct mk_boot_core *core;
    struct pollfd *polls;
    struct mk_boot_peer **polled;
    size_t polls_size;
    uint8_t buf[READ_SIZE];
};
static struct mk_boot_root *roots;

/* ---- the thread ---- */

static void receive(struct mk_boot_root *r, struct mk_boot_peer *p)
{
    for (int i = 0; i < READS_A_ROUND && p->state != MK_BOOT_PEER_CLOSED; i++) {
        const ssize_t n = recv(p->fd, r->buf, sizeof(r->buf), MSG_DONTWAIT);
        if (n > 0) {
            mk_boot_core_feed(r->core, p, r->buf, (size_t)n, mk_time_ns());
            continue;
        }
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        mk_boot_core_lost(r->core, p, n ? strerror(errno) : "its connection ended", mk_time_ns());
    }
}

static void flush(struct mk_boot_root *r, struct mk_boot_peer *p)
{
    const uint8_t *buf = NULL;
    size_t len;
    while ((len = mk_boot_peer_out(p, &buf)) > 0) {
        const ssize_t n = send(p->fd, buf, len, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n > 0) {
            mk_boot_peer_sent(p, (size_t)n);
            continue;
        }
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        /* What it had to say before it ended (a good-bye) may still lie in the socket. */
        const int err = errno;
        receive(r, p);
        mk_boot_core_lost(r->core, p, strerror(err), mk_time_ns());
        return;
    }
    if (p->state == MK_BOOT_PEER_DRAIN && !p->shut) {
        shutdown(p->fd, SHUT_WR);
        p->shut = true;
    }
}

/* An event found while flushing queues more, for peers that may have been passed already: hence the repetition. */
static void flush_all(struct mk_boot_root *r)
{
    int code;
    do {
        code = mk_boot_core_event(r->core)->code;
        for (struct mk_boot_peer *p = mk_boot_core_peers(r->core); p; p = p->next)
            flush(r, p);
    } while (code != mk_boot_core_event(r->core)->code);
}

static int accept_one(struct mk_boot_root *r)
{
    struct sockaddr_storage from;
    socklen_t len = sizeof(from);
    char name[MK_BOOT_NAME];
    mk_boot_live_lock();
    const int fd =
        mk_boot_fd_add(accept4(r->listen_fd, (struct sockaddr *)&from, &len, SOCK_CLOEXEC | SOCK_NONBLOCK));
    mk_boot_live_unlock();
    if (fd < 0)
        return errno;
    mk_boot_tune(fd);
    mk_boot_addr_name((struct sockaddr *)&from, len, name);
    struct mk_boot_peer *p = mk_boot_core_accept(r->core, name, mk_time_ns());
    if (p)
        p->fd = fd;
    else
        mk_boot_fd_close(fd);
    return 0;
}

static void accept_some(struct mk_boot_root *r)
{
    for (int i = 0; i < ACCEPTS_A_ROUND; i++) {
        const int err = accept_one(r);
        if (err == EMFILE || err == ENFILE || err == ENOBUFS || err == ENOMEM) {
            /* Strangers must not keep members out: the oldest goes. Nobody to go: look again in a moment. */
            if (!mk_boot_core_drop_oldest(r->core, "no file descriptors left"))
                r->accept_after = mk_time_ns() + 50000000u;
            return;
        }
        if (err && err != EINTR && err != ECONNABORTED)
            return; /* EAGAIN, or the failed connection's own error */
    }
}

static int reserve(struct mk_boot_root *r, size_t n)
{
    if (n <= r->polls_size)
        return 0;
    struct pollfd *polls = realloc(r->polls, 2 * n * sizeof(*polls));
    if (polls)
        r->polls = polls;
    struct mk_boot_peer **polled = realloc(r->polled, 2 * n * sizeof(struct mk_boot_peer *));
    if (polled)
        r->polled = polled;
    if (!polls || !polled)
        return MK_ERR_NOMEM;
    r->polls_size = 2 * n;
    return 0;
}

static int timeout_ms(const struct mk_boot_root *r, uint64_t now)
{
    uint64_t until = mk_boot_core_deadline(r->core);
    if (r->accept_after > now && r->accept_after < until)
        until = r->accept_after;
    if (until == UINT64_MAX)
        return -1;
    const uint64_t ms = until <= now ? 0 : (until - now) / 1000000u + 1;
    return ms > 60000 ? 60000 : (int)ms;
}

/* Sleeps until something happens, then takes what there is: members before newcomers, so that a good-bye counts
 * before the hello that the same rank sends after it. */
static int round_once(struct mk_boot_root *r)
{
    const uint8_t *unused;
    const uint64_t now = mk_time_ns();
    size_t n = 2;
    for (struct mk_boot_peer *p = mk_boot_core_peers(r->core); p; p = p->next)
        n++;
    if (reserve(r, n))
        return MK_ERR_NOMEM;
    r->polls[0] = (struct pollfd){.fd = r->wake_fd, .events = POLLIN};
    r->polls[1] = (struct pollfd){.fd = now < r->accept_after ? -1 : r->listen_fd, .events = POLLIN};
    n = 2;
    for (struct mk_boot_peer *p = mk_boot_core_peers(r->core); p; p = p->next) {
        const short out = mk_boot_peer_out(p, &unused) ? POLLOUT : 0;
        r->polls[n] = (struct pollfd){.fd = p->fd, .events = (short)(POLLIN | out)};
        r->polled[n++] = p;
    }
    if (poll(r->polls, (nfds_t)n, timeout_ms(r, now)) <= 0)
        return 0;
    eventfd_t count;
    if (r->polls[0].revents && eventfd_read(r->wake_fd, &count))
        return 0;
    for (size_t i = 2; i < n; i++)
        if (r->polls[i].revents & ~POLLOUT)
            receive(r, r->polled[i]);
    if (r->polls[1].revents)
        accept_some(r);
    return 0;
}

static void say_farewell(struct mk_boot_root *r)
{
    for (struct mk_boot_peer *p = mk_boot_core_peers(r->core); p; p = p->next)
        receive(r, p);
    mk_boot_core_farewell(r->core);
    flush_all(r);
}

static void unlink_root(struct mk_boot_root *r)
{
    mk_boot_live_lock();
    for (struct mk_boot_root **at = &roots; *at; at = &(*at)->next) {
        if (*at == r) {
            *at = r->next;
            break;
        }
    }
    mk_boot_live_unlock();
}

static void root_close(struct mk_boot_root *r)
{
    for (struct mk_boot_peer *p = r->core ? mk_boot_core_peers(r->core) : NULL; p; p = p->next) {
        shutdown(p->fd, SHUT_RDWR);
        mk_boot_fd_close(p->fd);
    }
    mk_boot_core_free(r->core);
    r->core = NULL;
    shutdown(r->listen_fd, SHUT_RDWR); /* also where a child forked without our handlers holds a copy */
    mk_boot_fd_close(r->listen_fd);
    free(r->polls);
    free(r->polled);
}

/* The wake descriptor goes last: as long as r is on the list somebody may write to it. */
static void root_free(struct mk_boot_root *r)
{
    mk_boot_fd_close(r->wake_fd);
    free(r);
}

static void *serve(void *arg)
{
    struct mk_boot_root *r = arg;
    for (;;) {
        const uint64_t now = mk_time_ns();
        mk_boot_core_tick(r->core, now);
        flush_all(r);
        mk_boot_core_sweep(r->core, mk_boot_fd_close);
        mk_boot_live_lock();
        r->heard = mk_boot_core_hellos(r->core);
        const bool stop = r->stop, evict = r->evict, farewell = r->farewell;
        mk_boot_live_unlock();
        if (farewell)
            say_farewell(r);
        if (stop || farewell || mk_boot_core_done(r->core, now) || (evict && mk_boot_core_idle(r->core)))
            break;
        if (round_once(r)) {
            mk_fail(MK_ERR_NOMEM, "NET", "the bootstrap root has no memory for its connections");
            break;
        }
    }
    root_close(r);
    unlink_root(r); /* last: whoever waits for the end looks at the list */
    root_free(r);
    return NULL;
}

/* ---- the rest of the process ---- */

int mk_boot_root_start(const struct mk_boot_core_config *c, int listen_fd, uint16_t port)
{
    struct mk_boot_root *r = calloc(1, sizeof(*r));
    pthread_t thread;
    if (!r) {
        mk_boot_fd_close(listen_fd);
        return mk_fail(MK_ERR_NOMEM, "NET", "no memory for the bootstrap root");
    }
    r->listen_fd = listen_fd;
    r->key = c->key;
    r->pid = getpid();
    r->port = port;
    r->wake_fd = mk_boot_fd_event();
    int ret = mk_boot_core_new(c, mk_time_ns(), &r->core);
    if (r->wake_fd < 0 || ret) {
        ret = mk_fail(ret ? ret : MK_ERR_SYSTEM, "NET", "set-up of the bootstrap root: %s",
                      ret ? "no memory" : strerror(errno));
        root_close(r);
        root_free(r);
        return ret;
    }
    mk_boot_live_lock();
    r->next = roots;
    roots = r;
    mk_boot_live_unlock();
    ret = mk_boot_thread(&thread, serve, r, true);
    if (ret) {
        unlink_root(r);
        root_close(r);
        root_free(r);
    }
    return ret;
}

void mk_boot_root_evict(uint16_t port)
{
    mk_boot_live_lock();
    for (struct mk_boot_root *r = roots; r; r = r->next) {
        if (r->pid == getpid() && r->port == port) {
            r->evict = true;
            eventfd_write(r->wake_fd, 1);
        }
    }
    mk_boot_live_unlock();
}

void mk_boot_root_stop(uint64_t key)
{
    mk_boot_live_lock();
    for (struct mk_boot_root *r = roots; r; r = r->next) {
        if (r->key == key && r->pid == getpid()) {
            r->stop = true;
            eventfd_write(r->wake_fd, 1);
        }
    }
    mk_boot_live_unlock();
}

static bool still_silent(uint64_t key, uint32_t n)
{
    bool silent = false;
    mk_boot_live_lock();
    for (const struct mk_boot_root *r = roots; r; r = r->next)
        silent = silent || (r->key == key && r->pid == getpid() && r->heard < n);
    mk_boot_live_unlock();
    return silent;
}

void mk_boot_root_hear(uint64_t key, uint32_t n, uint64_t deadline)
{
    const struct timespec pause = {.tv_nsec = 2000000};
    while (still_silent(key, n) && mk_time_ns() < deadline)
        nanosleep(&pause, NULL);
    nanosleep(&pause, NULL); /* the last answer goes out in the round that counted its hello */
}

static bool farewell_pending(bool ask)
{
    bool pending = false;
    if (!mk_boot_live_trylock())
        return false;
    for (struct mk_boot_root *r = roots; r; r = r->next) {
        if (r->pid != getpid())
            continue;
        if (ask) {
            r->farewell = true;
            eventfd_write(r->wake_fd, 1);
        }
        pending = true;
    }
    mk_boot_live_unlock();
    return pending;
}

void mk_boot_root_farewell(void)
{
    const struct timespec ms = {.tv_nsec = 1000000};
    bool pending = farewell_pending(true);
    for (int i = 0; pending && i < 5000; i++) { /* for a thread of ours to have its turn */
        nanosleep(&ms, NULL);
        pending = farewell_pending(false);
    }
}
