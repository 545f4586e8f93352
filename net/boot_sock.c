/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Sockets of the bootstrap. */
#include "boot_sock.h"
#include "boot_wire.h"
#include "mk/err.h"
#include "mk/log.h"
#include "mk/shm.h"
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

/* ---- what is alive in this process ---- */

pthread_mutex_t mk_boot_live_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int *fds;
static int nfds, fds_size;

static void fork_prepare(void)
{
    pthread_mutex_lock(&mk_boot_live_mutex);
}

static void fork_parent(void)
{
    pthread_mutex_unlock(&mk_boot_live_mutex);
}

/* Only close, never shutdown: the connections are the parent's. */
static void fork_child(void)
{
    for (int i = 0; i < nfds; i++)
        close(fds[i]);
    nfds = 0;
    pthread_mutex_unlock(&mk_boot_live_mutex);
}

static void init_once(void)
{
    pthread_atfork(fork_prepare, fork_parent, fork_child);
}

void mk_boot_live_lock(void)
{
    pthread_once(&once, init_once);
    pthread_mutex_lock(&mk_boot_live_mutex);
}

bool mk_boot_live_trylock(void)
{
    const struct timespec ms = {.tv_nsec = 1000000};
    for (int i = 0; i < 500; i++) {
        if (!pthread_mutex_trylock(&mk_boot_live_mutex))
            return true;
        nanosleep(&ms, NULL);
    }
    return false;
}

void mk_boot_live_unlock(void)
{
    pthread_mutex_unlock(&mk_boot_live_mutex);
}

int mk_boot_fd_add(int fd)
{
    if (fd < 0)
        return -1;
    if (nfds == fds_size) {
        const int size = fds_size ? 2 * fds_size : 64;
        int *more = realloc(fds, (size_t)size * sizeof(*fds));
        if (!more) {
            close(fd);
            errno = ENOMEM;
            return -1;
        }
        fds = more;
        fds_size = size;
    }
    fds[nfds++] = fd;
    return fd;
}

int mk_boot_fd_event(void)
{
    mk_boot_live_lock();
    const int fd = mk_boot_fd_add(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    mk_boot_live_unlock();
    return fd;
}

void mk_boot_fd_close(int fd)
{
    if (fd < 0)
        return;
    mk_boot_live_lock();
    for (int i = 0; i < nfds; i++) {
        if (fds[i] == fd) {
            fds[i] = fds[--nfds];
            break;
        }
    }
    close(fd);
    if (!nfds) { /* the last one gives the table back */
        free(fds);
        fds = NULL;
        fds_size = 0;
    }
    mk_boot_live_unlock();
}

uint64_t mk_boot_random(void)
{
    uint64_t v = 0;
    if (getrandom(&v, sizeof(v), 0) != (ssize_t)sizeof(v))
        v = mk_time_ns() * 0x9e3779b97f4a7c15ull ^ (uint64_t)getpid() << 32;
    return v ? v : 1;
}

uint64_t mk_boot_token(void)
{
    static uint64_t token;
    static pid_t pid;
    mk_boot_live_lock();
    if (pid != getpid()) {
        pid = getpid();
        token = mk_boot_random();
    }
    const uint64_t t = token;
    mk_boot_live_unlock();
    return t;
}

int mk_boot_thread(pthread_t *out, void *(*fn)(void *), void *arg, bool detached)
{
    sigset_t all, old;
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 1 << 20); /* room for the static TLS of large programs too */
    if (detached)
        pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    const int err = pthread_create(out, &attr, fn, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    return err ? mk_fail(MK_ERR_SYSTEM, "NET", "thread of the bootstrap: %s", strerror(err)) : 0;
}

/* ---- addresses ---- */

int mk_boot_split(const char *text, char host[256], char port[8])
{
    const char *colon = strrchr(text, ':');
    const char *begin = text, *end = colon;
    if (!colon || strlen(text) > 255)
        return mk_fail_quiet(MK_ERR_INVALID, "MK_ROOT=%.255s is not host:port", text);
    if (*text == '[') {
        begin = text + 1;
        end = colon - 1;
        if (end <= begin || *end != ']')
            return mk_fail_quiet(MK_ERR_INVALID, "MK_ROOT=%s is not [address]:port", text);
    } else if (memchr(text, ':', (size_t)(colon - text))) {
        return mk_fail_quiet(MK_ERR_INVALID, "MK_ROOT=%s: an IPv6 address needs brackets, [address]:port",
                             text);
    }
    char *rest;
    const long number = strtol(colon + 1, &rest, 10);
    if (colon[1] < '0' || colon[1] > '9' || *rest || number < 1 || number > 65535)
        return mk_fail_quiet(MK_ERR_INVALID, "MK_ROOT=%s: the port is not 1 to 65535", text);
    if (end == begin)
        return mk_fail_quiet(MK_ERR_INVALID, "MK_ROOT=%s has no host", text);
    snprintf(host, 256, "%.*s", (int)(end - begin), begin);
    snprintf(port, 8, "%ld", number);
    return 0;
}

void mk_boot_addr_name(const struct sockaddr *sa, socklen_t len, char out[MK_BOOT_NAME])
{
    char host[64], port[8];
    if (getnameinfo(sa, len, host, sizeof(host), port, sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV))
        snprintf(out, MK_BOOT_NAME, "an unknown address");
    else
        snprintf(out, MK_BOOT_NAME, sa->sa_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

void mk_boot_reachable(struct sockaddr_storage *a)
{
    struct sockaddr_in *in = (struct sockaddr_in *)a;
    struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)a;
    if (a->ss_family == AF_INET && in->sin_addr.s_addr == htonl(INADDR_ANY))
        in->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    else if (a->ss_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&in6->sin6_addr))
        in6->sin6_addr = in6addr_loopback;
}

uint16_t mk_boot_addr_port(const struct sockaddr_storage *a)
{
    return ntohs(a->ss_family == AF_INET ? ((const struct sockaddr_in *)a)->sin_port
                                         : ((const struct sockaddr_in6 *)a)->sin6_port);
}

int mk_boot_resolve(const char *host, const char *port, struct mk_boot_where *out)
{
    struct addrinfo hint, *list = NULL;
    memset(&hint, 0, sizeof(hint));
    memset(out, 0, sizeof(*out));
    hint.ai_socktype = SOCK_STREAM;
    hint.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
    if (getaddrinfo(host, port, &hint, &list)) {
        hint.ai_flags = AI_NUMERICSERV;
        out->named = true;
        const int err = getaddrinfo(host, port, &hint, &list);
        if (err)
            return mk_fail_quiet(MK_ERR_AGAIN, "host name %s: %s", host, gai_strerror(err));
    }
    for (const struct addrinfo *a = list; a && out->n < 8; a = a->ai_next) {
        if ((a->ai_family != AF_INET && a->ai_family != AF_INET6) || a->ai_addrlen > sizeof(out->addr[0]))
            continue;
        memcpy(&out->addr[out->n], a->ai_addr, a->ai_addrlen);
        out->len[out->n++] = a->ai_addrlen;
    }
    freeaddrinfo(list);
    return out->n ? 0 : mk_fail_quiet(MK_ERR_AGAIN, "host name %s has no IPv4 or IPv6 address", host);
}

/* ---- sockets ---- */

static int socket_new(int family)
{
    mk_boot_live_lock();
    const int fd = mk_boot_fd_add(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    mk_boot_live_unlock();
    return fd;
}

static int listen_at(const struct sockaddr_storage *at, socklen_t len, const struct mk_ports *ports)
{
    const struct sockaddr *sa = (const struct sockaddr *)at;
    const bool any = !mk_boot_addr_port(at);
    const int one = 1;
    const int fd = socket_new(sa->sa_family);
    if (fd < 0)
        return -1;
    if (!any)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (sa->sa_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one));
    if (!(any ? mk_ports_bind(fd, sa, len, ports) : bind(fd, sa, len)) && !listen(fd, SOMAXCONN))
        return fd;
    const int err = errno;
    mk_boot_fd_close(fd);
    errno = err;
    return -1;
}

static bool loopback(const struct sockaddr_storage *a)
{
    if (a->ss_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) >> 24 == 127;
    return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)a)->sin6_addr);
}

/* A host's own name often stands for a loopback address in its own /etc/hosts, and for the real one elsewhere:
 * then all addresses are listened on. */
static void widen(struct sockaddr_storage *a)
{
    if (a->ss_family == AF_INET)
        ((struct sockaddr_in *)a)->sin_addr.s_addr = htonl(INADDR_ANY);
    else
        ((struct sockaddr_in6 *)a)->sin6_addr = in6addr_any;
}

void mk_boot_listens_at(const struct mk_boot_where *w, int i, struct sockaddr_storage *out)
{
    *out = w->addr[i];
    if (w->named && w->n == 1 && loopback(out) && w->len[i] == sizeof(struct sockaddr_in) &&
        ((struct sockaddr_in *)out)->sin_addr.s_addr != htonl(INADDR_LOOPBACK))
        widen(out);
}

int mk_boot_listen(const struct mk_boot_where *w, uint64_t deadline, struct sockaddr_storage *bound,
                   socklen_t *len, int *out)
{
    const struct timespec pause = {.tv_nsec = 5000000};
    char name[MK_BOOT_NAME];
    const uint64_t start = mk_time_ns();
    bool said = false;
    for (;;) {
        int err = EADDRNOTAVAIL;
        for (int i = 0; i < w->n; i++) {
            struct sockaddr_storage a;
            mk_boot_listens_at(w, i, &a);
            const int fd = listen_at(&a, w->len[i], &w->ports);
            if (fd >= 0) {
                *len = sizeof(*bound);
                getsockname(fd, (struct sockaddr *)bound, len);
                *out = fd;
                return 0;
            }
            if (err != EADDRINUSE)
                err = errno;
        }
        mk_boot_addr_name((const struct sockaddr *)&w->addr[0], w->len[0], name);
        if (err == EADDRNOTAVAIL)
            return mk_fail(MK_ERR_INVALID, "NET",
                           "%s is not an address of this machine; rank 0 must listen there", name);
        const uint64_t now = mk_time_ns();
        if (err != EADDRINUSE || now >= deadline)
            return mk_fail(MK_ERR_SYSTEM, "NET", "listening at %s: %s", name, strerror(err));
        if (!said && now - start > 1000000000u) {
            MK_WARN("NET", "address %s is in use; trying again until MK_TIMEOUT", name);
            said = true;
        }
        nanosleep(&pause, NULL);
    }
}

void mk_boot_tune(int fd)
{
    const int one = 1, idle = 5, interval = 2, count = 5;
    const unsigned user_timeout_ms = 15000;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_timeout_ms, sizeof(user_timeout_ms));
}

short mk_boot_poll(int fd, short events, uint64_t deadline)
{
    for (;;) {
        struct pollfd p = {.fd = fd, .events = events};
        const uint64_t now = mk_time_ns();
        const uint64_t ms = now >= deadline ? 0 : (deadline - now) / 1000000u + 1;
        const int n = poll(&p, 1, ms > 10000 ? 10000 : (int)ms);
        if (n > 0)
            return p.revents;
        if (now >= deadline || (n < 0 && errno != EINTR))
            return 0;
    }
}

/* While nobody listens, a connect to a local port may pick that very port as its own and meet itself. */
static bool met_itself(int fd)
{
    struct sockaddr_storage a, b;
    socklen_t an = sizeof(a), bn = sizeof(b);
    memset(&a, 0, sizeof(a));
    memset(&b, 0, sizeof(b));
    return !getsockname(fd, (struct sockaddr *)&a, &an) && !getpeername(fd, (struct sockaddr *)&b, &bn) &&
           an == bn && !memcmp(&a, &b, an);
}

int mk_boot_connect(const struct sockaddr *sa, socklen_t len, uint64_t deadline)
{
    const int fd = socket_new(sa->sa_family);
    int err = 0;
    socklen_t n = sizeof(err);
    if (fd < 0)
        return -1;
    mk_boot_tune(fd);
    if (!connect(fd, sa, len))
        goto connected;
    err = errno;
    if (err != EINPROGRESS)
        goto close_fd;
    err = ETIMEDOUT;
    if (mk_boot_poll(fd, POLLOUT, deadline) && getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &n))
        err = errno;
    if (err)
        goto close_fd;
connected:
    if (!met_itself(fd))
        return fd;
    err = ECONNREFUSED;
close_fd:
    mk_boot_fd_close(fd);
    errno = err;
    return -1;
}
