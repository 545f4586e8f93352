/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The thread that reads a rank's connection to the root, and the bytes that go out on it. */
#include "boot_link.h"
#include "mk/err.h"
#include "mk/log.h"
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>

void mk_boot_record(struct mk_boot *b, int code, int rank, const char *text)
{
    mk_boot_event_fn fn = NULL;
    pthread_mutex_lock(&b->lock);
    if (!b->event_set && !b->bye) {
        b->event.code = code;
        b->event.rank = rank;
        snprintf(b->event.text, sizeof(b->event.text), "%s", text);
        __atomic_store_n(&b->event_set, 1, __ATOMIC_RELEASE);
        fn = b->fn;
        b->fn_called = fn != NULL;
        mk_log(b->optional && !b->met ? MK_LOG_INFO : MK_LOG_WARN, "NET", "%s (seen by rank %d)",
               b->event.text, b->rank);
        pthread_cond_broadcast(&b->cond);
    }
    void *ctx = b->fn_ctx;
    pthread_mutex_unlock(&b->lock);
    if (fn)
        fn(ctx, &b->event);
}

/* ---- bytes out ---- */

/* With b->lock. */
static void send_some(struct mk_boot *b)
{
    while (b->out_off < b->out_len && b->fd >= 0 && !b->ended) {
        const ssize_t n =
            send(b->fd, b->out + b->out_off, b->out_len - b->out_off, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0)
            b->out_off += (size_t)n;
        else if (n < 0 && errno == EINTR)
            continue;
        else
            break; /* full, or broken: the reader finds out which */
    }
    if (b->out_off == b->out_len)
        b->out_off = b->out_len = 0;
}

int mk_boot_link_send(struct mk_boot *b, uint32_t type, uint64_t seq, const void *body, uint32_t length)
{
    const struct mk_boot_frame f = {.type = type, .length = length, .seq = seq};
    const size_t need = b->out_len + sizeof(f) + length;
    if (need > b->out_size) {
        uint8_t *more = realloc(b->out, need);
        if (!more)
            return MK_ERR_NOMEM;
        b->out = more;
        b->out_size = need;
    }
    mk_boot_put_frame(&f, b->out + b->out_len);
    if (length)
        memcpy(b->out + b->out_len + sizeof(f), body, length);
    b->out_len = need;
    send_some(b);
    if (b->out_len)
        eventfd_write(b->wake_fd, 1);
    return 0;
}

/* ---- frames in ---- */

static void gathered(struct mk_boot *b, int code, const char *text)
{
    pthread_mutex_lock(&b->lock);
    free(b->result);
    b->result = NULL;
    if (!code) {
        b->result = b->body;
        b->body = NULL;
    }
    b->done_code = code;
    b->done_seq = b->frame.seq;
    b->done_bytes = b->frame.length / (uint32_t)b->nranks;
    snprintf(b->done_text, sizeof(b->done_text), "%s", text);
    pthread_cond_broadcast(&b->cond);
    pthread_mutex_unlock(&b->lock);
}

static int met(struct mk_boot *b)
{
    struct mk_boot_met m;
    if (mk_boot_parse_met(b->body, b->frame.length, &m) != MK_BOOT_PARSED || m.nranks != (uint32_t)b->nranks)
        return MK_ERR_NET;
    const bool hosts = m.token == mk_boot_token();
    pthread_mutex_lock(&b->lock);
    b->hosts = hosts;
    b->root_rank = m.root_rank;
    b->met = true;
    pthread_cond_broadcast(&b->cond);
    pthread_mutex_unlock(&b->lock);
    return 0;
}

static void tell_left(struct mk_boot *b, int rank)
{
    pthread_mutex_lock(&b->lock);
    const mk_boot_left_fn fn = b->left_fn;
    void *const ctx = b->left_ctx;
    pthread_mutex_unlock(&b->lock);
    if (fn)
        fn(ctx, rank);
}

static void left(struct mk_boot *b, int rank)
{
    pthread_mutex_lock(&b->lock);
    __atomic_store_n(&b->left[rank], 1, __ATOMIC_RELEASE);
    if (b->first_left < 0)
        b->first_left = rank;
    pthread_cond_broadcast(&b->cond);
    pthread_mutex_unlock(&b->lock);
    tell_left(b, rank);
}

static void said(struct mk_boot *b)
{
    pthread_mutex_lock(&b->lock);
    const mk_boot_said_fn fn = b->said;
    void *ctx = b->said_ctx;
    b->saying = fn != NULL;
    pthread_mutex_unlock(&b->lock);
    if (!fn)
        return;
    fn(ctx, (int)b->frame.seq, b->body, b->frame.length);
    pthread_mutex_lock(&b->lock);
    b->saying = false;
    pthread_cond_broadcast(&b->cond);
    pthread_mutex_unlock(&b->lock);
}

static int frame_in(struct mk_boot *b)
{
    struct mk_boot_verdict v;
    switch (b->frame.type) {
    case MK_BOOT_MET:
        return met(b);
    case MK_BOOT_GATHERED:
        gathered(b, 0, "");
        return 0;
    case MK_BOOT_LEFT:
        left(b, (int)b->frame.seq);
        return 0;
    case MK_BOOT_SAID:
        said(b);
        return 0;
    default: /* GATHER_BAD, EVENT: parse_frame lets no other pass */
        if (mk_boot_parse_verdict(b->body, b->frame.length, &v) != MK_BOOT_PARSED)
            return MK_ERR_NET;
        if (b->frame.type == MK_BOOT_EVENT)
            mk_boot_record(b, v.code, v.rank, v.text);
        else
            gathered(b, v.code, v.text);
        return 0;
    }
}

/* Receives once. 0: go on; AGAIN: nothing there; else the connection is over, with its cause in *why. */
static int receive(struct mk_boot *b, const char **why)
{
    uint8_t *to = b->body ? b->body + b->body_have : b->head + b->head_have;
    const size_t want = b->body ? b->frame.length - b->body_have : sizeof(b->head) - b->head_have;
    const ssize_t n = recv(b->fd, to, want, MSG_DONTWAIT);
    if (n <= 0) {
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
            return MK_ERR_AGAIN;
        *why = n ? strerror(errno) : "its connection ended";
        return MK_ERR_PEER;
    }
    *why = "it sent something that is not in the protocol";
    if (b->body) {
        b->body_have += (uint32_t)n;
    } else {
        b->head_have += (uint32_t)n;
        if (b->head_have < sizeof(b->head))
            return 0;
        if (mk_boot_parse_frame(b->head, sizeof(b->head), 0, (uint32_t)b->nranks, &b->frame) !=
            MK_BOOT_PARSED)
            return MK_ERR_NET;
        b->body_have = 0;
        b->body = malloc(b->frame.length ? b->frame.length : 1);
        if (!b->body) {
            *why = "no memory for what it sent";
            return MK_ERR_NOMEM;
        }
    }
    if (b->body_have < b->frame.length)
        return 0;
    const int ret = frame_in(b);
    free(b->body);
    b->body = NULL;
    b->head_have = 0;
    return ret;
}

/* The connection to the root is over: is it a death, or did the root's process leave in good order? */
static void end(struct mk_boot *b, const char *why)
{
    char text[200];
    pthread_mutex_lock(&b->lock);
    const bool bye = b->bye, was_met = b->met;
    const int root = b->root_rank;
    const bool orderly = was_met && (root < 0 || b->left[root]);
    if (orderly && root < 0)
        snprintf(text, sizeof(text), "the process that made the unique id has ended");
    else if (orderly)
        snprintf(text, sizeof(text), "rank %d, whose process ran the bootstrap, has left", root);
    else if (root < 0)
        snprintf(text, sizeof(text), "the process that made the unique id (%.60s) died: %s", b->root_name,
                 why);
    else
        snprintf(text, sizeof(text), "rank %d (root at %.60s) died: %s", root, b->root_name, why);
    b->ended = true;
    snprintf(b->ended_text, sizeof(b->ended_text), "%s", text);
    pthread_cond_broadcast(&b->cond);
    pthread_mutex_unlock(&b->lock);
    if (bye)
        return;
    if (orderly)
        MK_INFO("NET", "%s: from now on deaths of other ranks are not seen", text);
    else
        mk_boot_record(b, MK_ERR_PEER, root, text);
    tell_left(b, -1);
}

static void *reader(void *arg)
{
    struct mk_boot *b = arg;
    const char *why = NULL;
    for (;;) {
        if (__atomic_load_n(&b->stop, __ATOMIC_ACQUIRE))
            return NULL;
        pthread_mutex_lock(&b->lock);
        send_some(b);
        const short events = (short)(POLLIN | (b->out_len ? POLLOUT : 0));
        pthread_mutex_unlock(&b->lock);
        struct pollfd p[2] = {{.fd = b->fd, .events = events}, {.fd = b->wake_fd, .events = POLLIN}};
        eventfd_t count;
        if (poll(p, 2, 60000) <= 0)
            continue;
        if (p[1].revents && eventfd_read(b->wake_fd, &count))
            continue;
        int ret = 0;
        while (p[0].revents & ~POLLOUT && !ret)
            ret = receive(b, &why);
        if (ret && ret != MK_ERR_AGAIN)
            break;
    }
    end(b, why);
    return NULL;
}

int mk_boot_link_start(struct mk_boot *b)
{
    const int ret = mk_boot_thread(&b->thread, reader, b, false);
    b->threaded = !ret;
    return ret;
}

void mk_boot_link_halt(struct mk_boot *b)
{
    struct timespec until;
    if (!b->threaded)
        return;
    __atomic_store_n(&b->stop, true, __ATOMIC_RELEASE);
    eventfd_write(b->wake_fd, 1);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 300000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    b->threaded = pthread_timedjoin_np(b->thread, NULL, &until) != 0;
}

void mk_boot_link_stop(struct mk_boot *b)
{
    uint8_t rest[512];
    if (b->threaded) {
        __atomic_store_n(&b->stop, true, __ATOMIC_RELEASE);
        eventfd_write(b->wake_fd, 1);
        pthread_join(b->thread, NULL);
        b->threaded = false;
    }
    if (b->fd < 0)
        return;
    /* The end is told by shutdown, which also holds where a forked child has a copy of the socket. What came
     * meanwhile is read away: closing over unread bytes would reset the connection, and could lose the good-bye. */
    shutdown(b->fd, SHUT_WR);
    for (int i = 0; i < 64 && recv(b->fd, rest, sizeof(rest), MSG_DONTWAIT) > 0; i++)
        continue;
    mk_boot_fd_close(b->fd);
    b->fd = -1;
}
