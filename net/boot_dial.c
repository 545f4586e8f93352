/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* A rank's way in: connect, hello, answer; patient while the root is not there yet. */
#include "boot_link.h"
#include "mk/err.h"
#include "mk/log.h"
#include "mk/shm.h"
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum outcome { IN, LATER, NEVER };

struct attempt {
    char why[MK_BOOT_MAX_TEXT + 1]; /* LATER: what the last try met; NEVER: the reason */
    int code;                       /* NEVER */
    bool busy;                      /* LATER: the root itself said so, with `code` */
};

static enum outcome later(struct attempt *a, const char *why)
{
    a->busy = false;
    snprintf(a->why, sizeof(a->why), "%s", why);
    return LATER;
}

static enum outcome never(struct attempt *a, int code, const char *why)
{
    a->code = code;
    snprintf(a->why, sizeof(a->why), "%s", why);
    return NEVER;
}

static int send_hello(struct mk_boot *b, int fd, uint64_t deadline)
{
    const uint64_t now = mk_time_ns();
    struct mk_boot_hello h;
    uint8_t buf[sizeof(h)];
    memset(&h, 0, sizeof(h));
    h.version = MK_BOOT_VERSION;
    h.key = b->key;
    h.token = mk_boot_token();
    h.nranks = (uint32_t)b->nranks;
    h.rank = (uint32_t)b->rank;
    const uint64_t wait_ms = now < deadline ? (deadline - now) / 1000000u + 1 : 1;
    h.wait_ms = wait_ms > UINT32_MAX ? UINT32_MAX : (uint32_t)wait_ms;
    mk_boot_put_hello(&h, buf);
    /* A new connection's buffer holds 48 bytes: anything else is a broken connection. */
    return send(fd, buf, sizeof(buf), MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof(buf) ? 0 : MK_ERR_AGAIN;
}

/* Reads exactly `want` bytes in all. 0, or LATER's errno: ECONNRESET for the end, ETIMEDOUT. */
static int read_all(int fd, uint8_t *buf, size_t *have, size_t want, uint64_t deadline)
{
    while (*have < want) {
        const ssize_t n = recv(fd, buf + *have, want - *have, MSG_DONTWAIT);
        if (n > 0) {
            *have += (size_t)n;
            continue;
        }
        if (!n)
            return ECONNRESET;
        if (errno == EINTR)
            continue;
        if (errno != EAGAIN && errno != EWOULDBLOCK)
            return errno;
        if (!mk_boot_poll(fd, POLLIN, deadline))
            return ETIMEDOUT;
    }
    return 0;
}

static enum outcome read_answer(int fd, struct attempt *a, uint64_t deadline)
{
    char text[160];
    struct mk_boot_answer ans;
    uint8_t buf[sizeof(ans)];
    size_t have = 0;
    memset(&ans, 0, sizeof(ans));
    enum mk_boot_parse state = MK_BOOT_MORE;
    while (state == MK_BOOT_MORE) { /* first 16 bytes, which all versions share, then the rest */
        const int err = read_all(fd, buf, &have, have < 16 ? 16 : sizeof(buf), deadline);
        state = mk_boot_parse_answer(buf, have, &ans);
        if (err && state != MK_BOOT_ALIEN)
            return later(a, err == ECONNRESET ? "the connection ended before an answer" : strerror(err));
    }
    if (state == MK_BOOT_ALIEN)
        return never(a, MK_ERR_NET,
                     "what answers there is not the root of a job (it does not speak our protocol)");
    if (state == MK_BOOT_OTHER) {
        snprintf(text, sizeof(text), "the root speaks version %u of the protocol, this is version %u",
                 ans.version, MK_BOOT_VERSION);
        return never(a, MK_ERR_MISMATCH, text);
    }
    have = 0;
    const int err = read_all(fd, (uint8_t *)a->why, &have, ans.length, deadline);
    a->why[have] = 0;
    if (err)
        return later(a, strerror(err));
    if (ans.kind == MK_BOOT_WELCOME)
        return IN;
    a->code = ans.code ? ans.code : MK_ERR_NET;
    a->busy = ans.kind == MK_BOOT_BUSY;
    return a->busy ? LATER : NEVER;
}

static enum outcome try_address(struct mk_boot *b, const struct sockaddr *sa, socklen_t len,
                                struct attempt *a, uint64_t deadline)
{
    const uint64_t soon = mk_time_ns() + 3000000000u; /* a lost SYN must not eat the whole time */
    const int fd = mk_boot_connect(sa, len, soon < deadline ? soon : deadline);
    if (fd < 0)
        return later(a, strerror(errno));
    const enum outcome o =
        send_hello(b, fd, deadline) ? later(a, "the connection broke") : read_answer(fd, a, deadline);
    if (o == IN)
        b->fd = fd;
    else
        mk_boot_fd_close(fd);
    return o;
}

static enum outcome try_all(struct mk_boot *b, const struct mk_boot_where *w, struct attempt *a,
                            uint64_t deadline)
{
    enum outcome o = LATER;
    for (int i = 0; i < w->n && o == LATER; i++)
        o = try_address(b, (const struct sockaddr *)&w->addr[i], w->len[i], a, deadline);
    return o;
}

int mk_boot_dial(struct mk_boot *b, const char *host, const char *port, const struct mk_boot_where *at,
                 uint64_t deadline)
{
    struct attempt a;
    struct mk_boot_where w;
    const uint64_t start = mk_time_ns();
    uint64_t pause = 2000000;
    bool said = false;
    memset(&a, 0, sizeof(a));
    for (;;) {
        enum outcome o;
        if (!host)
            o = try_all(b, at, &a, deadline);
        else if (mk_boot_resolve(host, port, &w))
            o = later(&a, mk_last_error());
        else
            o = try_all(b, &w, &a, deadline);
        if (o == IN)
            return 0;
        if (o == NEVER)
            return mk_fail_quiet(a.code, "rank %d cannot join the job at %s: %s", b->rank, b->root_name,
                                 a.why);
        const int given_up = b->watch ? b->watch->look(b->watch->ctx) : 0;
        if (given_up)
            return given_up;
        const uint64_t now = mk_time_ns();
        if (now >= deadline && a.busy)
            return mk_fail_quiet(a.code, "rank %d cannot join the job at %s: %s", b->rank, b->root_name,
                                 a.why);
        if (now >= deadline)
            return mk_fail_quiet(MK_ERR_TIMEOUT, "rank %d found no root (%s) at %s within %.3g s: %s",
                                 b->rank, host ? "rank 0" : "the maker of the id", b->root_name,
                                 (double)b->timeout_ns / 1e9, a.why);
        if (!said && !b->optional && now - start > 3000000000u) {
            MK_WARN("NET", "the root at %s is not there yet (%s); trying again until MK_TIMEOUT",
                    b->root_name, a.why);
            said = true;
        }
        const struct timespec t = {.tv_nsec = (long)(now + pause > deadline ? deadline - now : pause)};
        nanosleep(&t, NULL);
        pause = pause * 3 / 2 > 200000000u ? 200000000u : pause * 3 / 2;
    }
}
