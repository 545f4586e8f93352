/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The meeting place: what is left there, and the thread that serves it. */
#include "place.h"
#include "boot_sock.h"
#include "mk/err.h"
#include "mk/log.h"
#include "mk/shm.h"
#include <endian.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

/* ---- messages ---- */

static void put32(uint8_t *p, uint32_t v)
{
    v = htole32(v);
    memcpy(p, &v, 4);
}
static void put64(uint8_t *p, uint64_t v)
{
    v = htole64(v);
    memcpy(p, &v, 8);
}
static uint32_t get32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return le32toh(v);
}
static uint64_t get64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, 8);
    return le64toh(v);
}

void mk_place_put_msg(const struct mk_place_msg *m, uint8_t buf[MK_PLACE_BYTES])
{
    put64(buf, MK_PLACE_MAGIC);
    put32(buf + 8, m->version);
    put32(buf + 12, m->what);
    put64(buf + 16, m->key);
    put64(buf + 24, m->name);
    put32(buf + 32, m->nranks);
    put32(buf + 36, m->rank);
    memcpy(buf + 40, &m->id, sizeof(m->id));
}

bool mk_place_parse_msg(const uint8_t buf[MK_PLACE_BYTES], struct mk_place_msg *out)
{
    out->version = get32(buf + 8);
    out->what = get32(buf + 12);
    out->key = get64(buf + 16);
    out->name = get64(buf + 24);
    out->nranks = get32(buf + 32);
    out->rank = get32(buf + 36);
    memcpy(&out->id, buf + 40, sizeof(out->id));
    return get64(buf) == MK_PLACE_MAGIC;
}

/* ---- what is left ---- */

static struct mk_place_entry *find(struct mk_place_store *s, const struct mk_place_msg *m, uint64_t now)
{
    for (int i = 0; i < MK_PLACE_ENTRIES; i++) {
        struct mk_place_entry *e = &s->entry[i];
        if (e->since && now - e->since >= MK_PLACE_KEEP_NS)
            e->since = 0;
        if (e->since && e->key == m->key && e->name == m->name)
            return e;
    }
    return NULL;
}

/* Free, or that of which nobody has heard for longest. */
static struct mk_place_entry *room(struct mk_place_store *s)
{
    struct mk_place_entry *oldest = &s->entry[0];
    for (int i = 0; i < MK_PLACE_ENTRIES && oldest->since; i++)
        if (s->entry[i].since < oldest->since)
            oldest = &s->entry[i];
    return oldest;
}

int mk_place_ask(struct mk_place_store *s, const struct mk_place_msg *m, uint64_t now,
                 struct mk_place_msg *answer)
{
    *answer = *m;
    answer->version = MK_PLACE_VERSION;
    answer->what = MK_PLACE_REFUSED;
    if (m->version != MK_PLACE_VERSION || m->nranks < 2 || m->rank >= m->nranks ||
        (m->rank ? m->what != MK_PLACE_TAKE : m->what != MK_PLACE_PUT && m->what != MK_PLACE_DROP))
        return MK_PLACE_REFUSED;
    struct mk_place_entry *e = find(s, m, now);
    if (m->what == MK_PLACE_PUT) {
        e = e ? e : room(s);
        e->key = m->key;
        e->name = m->name;
        e->since = now ? now : 1;
        e->nranks = m->nranks;
        e->id = m->id;
        return (int)(answer->what = MK_PLACE_GIVEN);
    }
    if (m->what == MK_PLACE_DROP) {
        if (e && !memcmp(&e->id, &m->id, sizeof(e->id)))
            e->since = 0;
        return (int)(answer->what = MK_PLACE_GIVEN);
    }
    if (!e)
        return 0;
    if (e->nranks != m->nranks)
        return MK_PLACE_REFUSED;
    answer->id = e->id;
    return (int)(answer->what = MK_PLACE_GIVEN);
}

/* ---- the thread ---- */

enum { GUESTS = 4096, SPEAK_NS = 2000000000, LOG_LINES = 20 };

struct guest {
    int fd; /* -1: nobody */
    uint32_t have;
    bool waits; /* has asked, and there is nothing yet */
    uint64_t since;
    uint8_t buf[MK_PLACE_BYTES];
};
struct service {
    pid_t pid;
    int listen_fd, wake_fd;
    bool stop; /* under the live lock */
    int lines, top;
    struct mk_place_store store;
    struct guest guest[GUESTS];
    struct pollfd poll[GUESTS + 2];
    int whose[GUESTS + 2];
};
static struct service *serving; /* under the live lock */

static void leave(struct guest *g)
{
    mk_boot_fd_close(g->fd);
    g->fd = -1;
}
static void complain(struct service *s, const char *what)
{
    if (s->lines++ < LOG_LINES)
        MK_WARN("NET", "meeting place: %s%s", what,
                s->lines == LOG_LINES ? " (further ones are not logged)" : "");
}

static void answer(struct guest *g, const struct mk_place_msg *m)
{
    uint8_t buf[MK_PLACE_BYTES];
    mk_place_put_msg(m, buf);
    (void)!send(g->fd, buf, sizeof(buf), MSG_DONTWAIT | MSG_NOSIGNAL); /* fits any socket's buffer */
    leave(g);
}

/* True: something was left, for which others may wait. */
static bool asked(struct service *s, struct guest *g, uint64_t now)
{
    struct mk_place_msg m, a;
    if (!mk_place_parse_msg(g->buf, &m)) {
        complain(s, "somebody came who does not speak our protocol");
        leave(g);
        return false;
    }
    const int what = mk_place_ask(&s->store, &m, now, &a);
    g->waits = !what;
    if (what == MK_PLACE_REFUSED)
        complain(s, m.version == MK_PLACE_VERSION ? "somebody asked for nonsense"
                                                  : "somebody speaks another version of the protocol");
    if (what)
        answer(g, &a);
    return what == MK_PLACE_GIVEN && m.what == MK_PLACE_PUT;
}

static bool hear(struct service *s, struct guest *g, uint64_t now)
{
    uint8_t more[16];
    const size_t want = sizeof(g->buf) - g->have;
    const ssize_t n = want ? recv(g->fd, g->buf + g->have, want, MSG_DONTWAIT)
                           : recv(g->fd, more, sizeof(more), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (n <= 0 || !want) { /* gone; or it goes on talking */
        leave(g);
        return false;
    }
    g->have += (uint32_t)n;
    return g->have == sizeof(g->buf) && asked(s, g, now);
}

static int oldest_of(const struct service *s)
{
    int oldest = -1;
    for (int i = 0; i < s->top; i++)
        if (s->guest[i].fd >= 0 && (oldest < 0 || s->guest[i].since < s->guest[oldest].since))
            oldest = i;
    return oldest;
}
/* Those who wait must not keep out the one they wait for: the oldest goes; if it is a rank, it comes again. */
static void make_room(struct service *s, const char *why)
{
    const struct timespec pause = {.tv_nsec = 50000000};
    const int oldest = oldest_of(s);
    complain(s, why);
    if (oldest >= 0)
        leave(&s->guest[oldest]);
    else
        nanosleep(&pause, NULL);
}

static void come_in(struct service *s, uint64_t now)
{
    int at = 0;
    mk_boot_live_lock();
    const int fd = mk_boot_fd_add(accept4(s->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
    mk_boot_live_unlock();
    if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM))
        make_room(s, "no file descriptors left");
    if (fd < 0)
        return;
    while (at < GUESTS && s->guest[at].fd >= 0)
        at++;
    if (at == GUESTS) {
        at = oldest_of(s);
        make_room(s, "too many wait");
    }
    s->guest[at] = (struct guest){.fd = fd, .since = now};
    s->top = at >= s->top ? at + 1 : s->top;
}

static bool wanted(struct service *s)
{
    mk_boot_live_lock();
    const bool go_on = !s->stop;
    mk_boot_live_unlock();
    return go_on;
}

static void one_round(struct service *s)
{
    int n = 2;
    bool left = false;
    s->poll[0] = (struct pollfd){.fd = s->wake_fd, .events = POLLIN};
    s->poll[1] = (struct pollfd){.fd = s->listen_fd, .events = POLLIN};
    for (int i = 0; i < s->top; i++)
        if (s->guest[i].fd >= 0) {
            s->whose[n] = i;
            s->poll[n++] = (struct pollfd){.fd = s->guest[i].fd, .events = POLLIN};
        }
    if (poll(s->poll, (nfds_t)n, n > 2 ? 500 : 60000) < 0)
        return;
    const uint64_t now = mk_time_ns();
    for (int i = 2; i < n; i++) {
        struct guest *g = &s->guest[s->whose[i]];
        if (s->poll[i].revents)
            left = hear(s, g, now) || left;
        if (g->fd >= 0 && now - g->since > (g->waits ? MK_PLACE_KEEP_NS : SPEAK_NS))
            leave(g);
    }
    for (int i = 0; left && i < s->top; i++)
        if (s->guest[i].fd >= 0 && s->guest[i].waits)
            asked(s, &s->guest[i], now);
    if (s->poll[1].revents)
        come_in(s, now);
}

static void *serve(void *arg)
{
    struct service *s = arg;
    while (wanted(s))
        one_round(s);
    for (int i = 0; i < s->top; i++)
        if (s->guest[i].fd >= 0)
            leave(&s->guest[i]);
    mk_boot_fd_close(s->listen_fd);
    mk_boot_fd_close(s->wake_fd);
    free(s);
    return NULL;
}

/* Under the live lock. */
static int listen_at(const struct sockaddr *at, socklen_t len)
{
    const int one = 1,
              fd = mk_boot_fd_add(socket(at->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (!bind(fd, at, len) && !listen(fd, 1024))
        return fd;
    const int err = errno;
    mk_boot_live_unlock();
    mk_boot_fd_close(fd);
    mk_boot_live_lock();
    errno = err;
    return -1;
}

static bool serves(void)
{
    mk_boot_live_lock();
    const bool does = serving && serving->pid == getpid();
    mk_boot_live_unlock();
    return does;
}

/* Not before it is whole does anybody see it. */
static int start(struct service *s)
{
    pthread_t thread;
    mk_boot_live_lock();
    const bool first = !serving || serving->pid != getpid();
    if (first)
        serving = s;
    mk_boot_live_unlock();
    if (!first)
        return MK_ERR_AGAIN;
    const int ret = mk_boot_thread(&thread, serve, s, true);
    if (ret) {
        mk_boot_live_lock();
        serving = NULL;
        mk_boot_live_unlock();
    }
    return ret;
}

int mk_place_serve(const struct sockaddr *at, socklen_t len)
{
    if (serves())
        return 0;
    mk_boot_live_lock();
    const int fd = listen_at(at, len);
    const int err = errno;
    mk_boot_live_unlock();
    if (fd < 0 && (err == EADDRINUSE || err == EADDRNOTAVAIL))
        return MK_ERR_AGAIN;
    if (fd < 0)
        return mk_fail_quiet(MK_ERR_SYSTEM, "serving the meeting place: %s", strerror(err));
    const int wake = mk_boot_fd_event();
    struct service *s = calloc(1, sizeof(*s));
    int ret = wake < 0 ? MK_ERR_SYSTEM : s ? 0 : MK_ERR_NOMEM;
    if (!ret) {
        s->pid = getpid();
        s->listen_fd = fd;
        s->wake_fd = wake;
        for (int i = 0; i < GUESTS; i++)
            s->guest[i].fd = -1;
        ret = start(s);
    }
    if (!ret)
        return 0;
    mk_boot_fd_close(fd);
    if (wake >= 0)
        mk_boot_fd_close(wake);
    free(s);
    return ret == MK_ERR_AGAIN ? 0 : mk_fail_quiet(ret, "the meeting place cannot be served");
}

void mk_place_stop(void)
{
    mk_boot_live_lock();
    struct service *s = serving;
    if (s && s->pid == getpid()) {
        s->stop = true;
        eventfd_write(s->wake_fd, 1);
        serving = NULL;
    }
    mk_boot_live_unlock();
}
