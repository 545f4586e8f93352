/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#include "lines.h"
#include "mk/err.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    READ_SIZE = 64 << 10,
    QUEUE_FULL = 1 << 20, /* beyond this many bytes the pipes are not read */
    PIECE = 8 << 10,      /* short lines of one stream share a piece of this size */
};

static const char erase[] = "\r\033[K";

struct pipe_end {
    int fd; /* -1: closed */
    int rank, stream;
    char *text; /* the line so far */
    size_t len, room;
    bool was_cut; /* the beginning of this line went out already */
    bool terminal;
    bool progress; /* terminal: text is what followed a carriage return */
};

/* A piece of the queue: a line, or several of one stream. */
struct piece {
    struct piece *next;
    int stream;
    size_t len, done, room;
    char text[];
};

struct mk_lines {
    bool prefix;
    int npipes, room;
    struct pipe_end *pipes;
    struct piece *first, *last;
    size_t queued;
    bool progress_shown; /* the cursor stands behind text that the next line must erase */
    int error[3];
    int polled_out; /* stream whose readiness was asked for, 0: none */
};

int mk_lines_open(int ranks, bool prefix, struct mk_lines **out)
{
    struct mk_lines *l = calloc(1, sizeof(*l));
    struct pipe_end *pipes = calloc(2 * (size_t)ranks, sizeof(*pipes));
    if (!l || !pipes) {
        free(l);
        free(pipes);
        return mk_fail_quiet(MK_ERR_NOMEM, "out of memory for %d ranks", ranks);
    }
    l->prefix = prefix;
    l->room = 2 * ranks;
    l->pipes = pipes;
    *out = l;
    return 0;
}

void mk_lines_add(struct mk_lines *l, int rank, int stream, int fd, bool terminal)
{
    if (l->npipes == l->room) {
        close(fd);
        return;
    }
    fcntl(fd, F_SETFL, O_NONBLOCK); /* the reading end; the rank's writing end is another file description */
    l->pipes[l->npipes++] = (struct pipe_end){.fd = fd, .rank = rank, .stream = stream, .terminal = terminal};
}

int mk_lines_poll_max(const struct mk_lines *l)
{
    return l->room + 1;
}

int mk_lines_poll(struct mk_lines *l, struct pollfd *p)
{
    int n = 0;
    l->polled_out = l->first ? l->first->stream : 0;
    if (l->polled_out)
        p[n++] = (struct pollfd){.fd = l->polled_out, .events = POLLOUT};
    for (int i = 0; i < l->npipes && l->queued < QUEUE_FULL; i++)
        if (l->pipes[i].fd >= 0)
            p[n++] = (struct pollfd){.fd = l->pipes[i].fd, .events = POLLIN};
    return n;
}

/* The place for `len` more bytes of a stream at the end of the queue, or NULL. */
static char *queue_room(struct mk_lines *l, int stream, size_t len)
{
    struct piece *q = l->last;
    if (!q || q->stream != stream || q->room - q->len < len) {
        const size_t room = len < PIECE ? PIECE : len;
        q = malloc(sizeof(*q) + room);
        if (!q)
            return NULL;
        *q = (struct piece){.stream = stream, .room = room};
        if (l->last)
            l->last->next = q;
        else
            l->first = q;
        l->last = q;
    }
    q->len += len;
    l->queued += len;
    return q->text + q->len - len;
}

static void queue_bytes(struct mk_lines *l, int stream, const char *text, size_t len)
{
    char *to = l->error[stream] ? NULL : queue_room(l, stream, len);
    if (to)
        memcpy(to, text, len);
}

static void erase_progress(struct mk_lines *l)
{
    if (l->progress_shown)
        queue_bytes(l, 2, erase, sizeof(erase) - 1);
    l->progress_shown = false;
}

static void queue_line(struct mk_lines *l, const struct pipe_end *e, const char *text, size_t len)
{
    char head[24] = "";
    if (l->error[e->stream])
        return;
    erase_progress(l);
    if (l->prefix)
        snprintf(head, sizeof(head), "[%d] ", e->rank);
    const size_t nhead = strlen(head);
    char *to = queue_room(l, e->stream, nhead + len + 1);
    if (!to) {
        l->error[e->stream] = ENOMEM;
        return;
    }
    memcpy(to, head, nhead);
    memcpy(to + nhead, text, len);
    to[nhead + len] = '\n';
}

void mk_lines_say(struct mk_lines *l, const char *text)
{
    erase_progress(l);
    queue_bytes(l, 2, text, strlen(text));
    queue_bytes(l, 2, "\n", 1);
}

static void close_pipe(struct mk_lines *l, struct pipe_end *e)
{
    if (e->len && !e->progress)
        queue_line(l, e, e->text, e->len);
    if (e->progress)
        erase_progress(l);
    close(e->fd);
    free(e->text);
    e->fd = -1;
    e->text = NULL;
    e->len = e->room = 0;
}

/* Keeps the beginning of a line until the rest comes. */
static void keep(struct mk_lines *l, struct pipe_end *e, const char *text, size_t len)
{
    if (e->len + len > e->room) {
        const size_t room = 2 * (e->len + len);
        char *p = realloc(e->text, room);
        if (!p) {
            l->error[e->stream] = ENOMEM;
            return;
        }
        e->text = p;
        e->room = room;
    }
    memcpy(e->text + e->len, text, len);
    e->len += len;
    if (e->len >= MK_LINE_MAX) {
        queue_line(l, e, e->text, e->len);
        e->len = 0;
        e->was_cut = true;
    }
}

static void cut(struct mk_lines *l, struct pipe_end *e, const char *text, size_t len)
{
    while (len) {
        const char *nl = memchr(text, '\n', len);
        const size_t part = nl ? (size_t)(nl - text) : len;
        if (nl && !e->len && !e->was_cut) {
            queue_line(l, e, text, part);
        } else {
            keep(l, e, text, part);
            if (nl && (e->len || !e->was_cut))
                queue_line(l, e, e->text, e->len);
            if (nl) {
                e->len = 0;
                e->was_cut = false;
            }
        }
        text += part + (nl != NULL);
        len -= part + (nl != NULL);
    }
}

/* The text after a carriage return, without the erasing with which it may begin. */
static size_t erasing(const struct pipe_end *e)
{
    return e->len >= 3 && !memcmp(e->text, erase + 1, 3) ? 3 : 0;
}

static void show_progress(struct mk_lines *l, const struct pipe_end *e)
{
    const size_t skip = erasing(e);
    char head[24];
    erase_progress(l);
    if (e->len == skip)
        return;
    snprintf(head, sizeof(head), "[%d] ", e->rank);
    queue_bytes(l, 2, head, l->prefix ? strlen(head) : 0);
    queue_bytes(l, 2, e->text + skip, e->len - skip);
    l->progress_shown = true;
}

/* The same as cut for a rank that writes to a terminal: a carriage return begins the line anew, a newline makes a
 * line of what was progress. */
static void cut_terminal(struct mk_lines *l, struct pipe_end *e, const char *text, size_t len)
{
    while (len) {
        if (e->progress && !e->len && len >= 3 && !memcmp(text, erase + 1, 3)) {
            text += 3;
            len -= 3;
        }
        const char *cr = memchr(text, '\r', len);
        const size_t part = cr ? (size_t)(cr - text) : len;
        if (e->progress && memchr(text, '\n', part)) {
            const size_t skip = erasing(e);
            memmove(e->text, e->text + skip, e->len - skip);
            e->len -= skip;
            e->progress = false;
        }
        if (e->progress)
            keep(l, e, text, part);
        else
            cut(l, e, text, part);
        if (cr) {
            e->len = 0;
            e->progress = true;
        }
        text += part + (cr != NULL);
        len -= part + (cr != NULL);
    }
    if (e->progress)
        show_progress(l, e);
}

static void read_pipe(struct mk_lines *l, struct pipe_end *e)
{
    char text[READ_SIZE];
    const ssize_t n = read(e->fd, text, sizeof(text));
    if (n > 0 && e->terminal)
        cut_terminal(l, e, text, (size_t)n);
    else if (n > 0)
        cut(l, e, text, (size_t)n);
    else if (n == 0 || (errno != EAGAIN && errno != EINTR))
        close_pipe(l, e);
}

static void drop_first(struct mk_lines *l)
{
    struct piece *q = l->first;
    l->first = q->next;
    if (!l->first)
        l->last = NULL;
    l->queued -= q->len;
    free(q);
}

/* mkrun's own stream is gone: the ranks learn it as they would without mkrun, by their pipe. */
static void stream_failed(struct mk_lines *l, int stream, int err)
{
    l->error[stream] = err;
    for (int i = 0; i < l->npipes; i++)
        if (l->pipes[i].fd >= 0 && l->pipes[i].stream == stream)
            close_pipe(l, &l->pipes[i]);
}

/* poll said that PIPE_BUF bytes have room, so a write of no more does not block; a blocked mkrun would be
 * deaf to signals. */
static void write_some(struct mk_lines *l)
{
    struct piece *q = l->first;
    const size_t left = q->len - q->done;
    const ssize_t n = write(q->stream, q->text + q->done, left < PIPE_BUF ? left : PIPE_BUF);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n < 0)
        stream_failed(l, q->stream, errno);
    else
        q->done += (size_t)n;
    if (n < 0 || q->done == q->len)
        drop_first(l);
    while (l->first && l->error[l->first->stream])
        drop_first(l);
}

void mk_lines_run(struct mk_lines *l, const struct pollfd *p, int n)
{
    int at = 0;
    if (l->polled_out && n) {
        if (p[at].revents && l->first)
            write_some(l);
        at++;
    }
    for (int i = 0; i < l->npipes && at < n; i++) {
        if (l->pipes[i].fd != p[at].fd)
            continue;
        if (p[at].revents)
            read_pipe(l, &l->pipes[i]);
        at++;
    }
}

bool mk_lines_busy(const struct mk_lines *l)
{
    for (int i = 0; i < l->npipes; i++)
        if (l->pipes[i].fd >= 0)
            return true;
    return l->first;
}

bool mk_lines_queued(const struct mk_lines *l)
{
    return l->first;
}

void mk_lines_give_up(struct mk_lines *l)
{
    for (int i = 0; i < l->npipes; i++)
        if (l->pipes[i].fd >= 0)
            close_pipe(l, &l->pipes[i]);
}

int mk_lines_error(const struct mk_lines *l, int stream)
{
    return l->error[stream];
}

void mk_lines_close(struct mk_lines *l)
{
    if (!l)
        return;
    for (int i = 0; i < l->npipes; i++)
        if (l->pipes[i].fd >= 0)
            close_pipe(l, &l->pipes[i]);
    while (l->first)
        drop_first(l);
    free(l->pipes);
    free(l);
}
