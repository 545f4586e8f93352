/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#include "tests/plugin/fake.h"
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define MAGIC 0x66616b656e657431ull

struct handle {
    uint64_t magic, sum;
    uint8_t name[24];
    uint32_t len;
};
struct head {
    uint64_t size;
    int64_t tag;
};
struct request {
    struct comm *comm;
    struct request *next; /* of the comm's queue; NULL when it has left it */
    bool sends, done, queued;
    int n, left;
    uint8_t *data[FAKE_GROUP];
    size_t room[FAKE_GROUP], size[FAKE_GROUP];
    int tag[FAKE_GROUP];
    bool filled[FAKE_GROUP];
    struct head head; /* of a send */
    size_t moved;     /* of a send, head included */
};
struct early { /* a message that no receive is there for yet */
    struct early *next;
    struct head head;
    uint8_t data[];
};
struct comm {
    int fd;
    int error;
    struct request *first;
    int held; /* requests not tested to their end */
    struct request *all[FAKE_IN_FLIGHT];
    struct head head; /* what is being received */
    size_t head_moved, moved;
    struct request *into;
    int slot;
    struct early *early, *coming; /* kept, and the one being received */
    unsigned received;
};
struct listener {
    int fd, waiting;
};

static uint64_t sum_of(const struct handle *h)
{
    uint64_t s = h->len;
    for (size_t i = 0; i < sizeof(h->name); i++)
        s = (s ^ h->name[i]) * 0x100000001b3ull;
    return s;
}

/* ---- connections ---- */

int fake_listen(int dev, void *handle, void **comm)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    socklen_t len = sizeof(a);
    struct handle h = {.magic = MAGIC};
    struct listener *l = calloc(1, sizeof(*l));
    (void)dev;
    if (!l)
        return MK_NCCL_SYSTEM_ERROR;
    l->waiting = -1;
    l->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (l->fd < 0 || bind(l->fd, (struct sockaddr *)&a, sizeof(sa_family_t)) || listen(l->fd, 64) ||
        getsockname(l->fd, (struct sockaddr *)&a, &len) || len - sizeof(sa_family_t) > sizeof(h.name)) {
        free(l);
        return MK_NCCL_SYSTEM_ERROR;
    }
    h.len = (uint32_t)(len - sizeof(sa_family_t));
    memcpy(h.name, a.sun_path, h.len);
    h.sum = sum_of(&h);
    memcpy(handle, &h, sizeof(h));
    *comm = l;
    return 0;
}

static struct comm *comm_new(int fd)
{
    struct comm *c = calloc(1, sizeof(*c));
    if (c)
        c->fd = fd;
    return c;
}

int fake_connect(int dev, void *handle, void **comm)
{
    struct handle h;
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    const uint64_t magic = MAGIC;
    (void)dev;
    memcpy(&h, handle, sizeof(h));
    if (fake_fault("trusting") && h.len > sizeof(h.name))
        memset((void *)(uintptr_t)h.len, 0, 1); /* believes every handle */
    if (h.magic != MAGIC || h.len > sizeof(h.name) || h.sum != sum_of(&h)) {
        fake_warn("this handle is not ours");
        return MK_NCCL_INVALID_ARGUMENT;
    }
    memcpy(a.sun_path, h.name, h.len);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | (fake_fault("block") ? 0 : SOCK_NONBLOCK), 0);
    if (fd < 0)
        return MK_NCCL_SYSTEM_ERROR;
    if (connect(fd, (struct sockaddr *)&a, (socklen_t)(sizeof(sa_family_t) + h.len)) ||
        send(fd, &magic, sizeof(magic), MSG_NOSIGNAL) != sizeof(magic)) {
        const int again = errno == EAGAIN;
        close(fd);
        if (!again)
            fake_warn("the listener is gone");
        return again ? 0 : MK_NCCL_REMOTE_ERROR;
    }
    char c;
    if (fake_fault("block") && recv(fd, &c, 1, 0) != 1) /* waits for the accept */
        return MK_NCCL_REMOTE_ERROR;
    *comm = comm_new(fd);
    return *comm ? 0 : MK_NCCL_SYSTEM_ERROR;
}

int fake_accept(void *listen_comm, void **comm)
{
    struct listener *l = listen_comm;
    uint64_t magic;
    if (l->waiting < 0)
        l->waiting = accept4(l->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (l->waiting < 0)
        return errno == EAGAIN ? 0 : MK_NCCL_SYSTEM_ERROR;
    const ssize_t n = recv(l->waiting, &magic, sizeof(magic), 0);
    if (n < 0 && errno == EAGAIN)
        return 0;
    if (n != sizeof(magic) || magic != MAGIC) {
        close(l->waiting);
        l->waiting = -1;
        return 0;
    }
    if (fake_fault("block"))
        (void)!send(l->waiting, "a", 1, MSG_NOSIGNAL);
    *comm = comm_new(l->waiting);
    l->waiting = -1;
    return *comm ? 0 : MK_NCCL_SYSTEM_ERROR;
}

int fake_close_listen(void *listen_comm)
{
    struct listener *l = listen_comm;
    if (l->waiting >= 0)
        close(l->waiting);
    close(l->fd);
    free(l);
    return 0;
}

static void *writes_late(void *data)
{
    usleep(5000);
    memset(data, 0, 1);
    return NULL;
}

int fake_close(void *comm)
{
    struct comm *c = comm;
    pthread_t id;
    const int ret = fake_fault("close") && c->held ? MK_NCCL_INTERNAL_ERROR : 0;
    if (fake_fault("late") && c->first && !c->first->sends &&
        !pthread_create(&id, NULL, writes_late, c->first->data[0]))
        pthread_detach(id);
    for (int i = 0; i < FAKE_IN_FLIGHT; i++)
        free(c->all[i]);
    if (!fake_fault("leak"))
        close(c->fd);
    for (struct early *e; (e = c->early);) {
        c->early = e->next;
        free(e);
    }
    free(c->coming);
    free(c);
    return ret;
}

/* ---- messages ---- */

static struct request *request_new(struct comm *c, bool sends)
{
    const int most = fake_fault("few") ? 31 : FAKE_IN_FLIGHT;
    for (int i = 0; c->held < most && i < FAKE_IN_FLIGHT; i++) {
        if (c->all[i])
            continue;
        struct request *q = c->all[i] = calloc(1, sizeof(*q));
        if (!q)
            return NULL;
        q->comm = c;
        q->sends = sends;
        c->held++;
        struct request **at = &c->first;
        while (*at)
            at = &(*at)->next;
        *at = q;
        return q;
    }
    return NULL;
}

static void leave(struct comm *c, struct request *q)
{
    struct request **at = &c->first;
    while (*at && *at != q)
        at = &(*at)->next;
    if (*at)
        *at = q->next;
    q->done = true;
}

static void fail(struct comm *c, int error, const char *why)
{
    if (!c->error)
        fake_warn("%s", why);
    c->error = error;
}

static void push(struct comm *c)
{
    while (c->first && !c->error) {
        struct request *q = c->first;
        const size_t whole = sizeof(q->head) + q->head.size;
        while (q->moved < whole) {
            const bool in_head = q->moved < sizeof(q->head);
            const uint8_t *from =
                in_head ? (uint8_t *)&q->head + q->moved : q->data[0] + (q->moved - sizeof(q->head));
            const size_t n = in_head ? sizeof(q->head) - q->moved : whole - q->moved;
            const ssize_t sent = send(c->fd, from, n, MSG_NOSIGNAL | MSG_DONTWAIT);
            if (sent < 0 && errno == EAGAIN)
                return;
            if (sent < 0) {
                if (!fake_fault("silent"))
                    fail(c, MK_NCCL_REMOTE_ERROR, "the receiver is gone");
                return;
            }
            q->moved += (size_t)sent;
        }
        leave(c, q);
    }
}

/* The first receive that has a free place with this tag. */
static bool match(struct comm *c, const struct head *h)
{
    for (struct request *q = c->first; q; q = q->next) {
        if (fake_fault("swap") && q->next && c->received % 40 == 39)
            q = q->next;
        for (int i = 0; i < q->n; i++) {
            if (q->filled[i] || (q->tag[i] != (int)h->tag && !fake_fault("tags")))
                continue;
            c->into = q;
            c->slot = i;
            return true;
        }
    }
    return false;
}

/* From the socket; 0: nothing there now. */
static size_t take(struct comm *c, void *to, size_t n)
{
    const ssize_t got = recv(c->fd, to, n, MSG_DONTWAIT);
    if (got > 0)
        return (size_t)got;
    if (!(got < 0 && errno == EAGAIN) && !fake_fault("silent"))
        fail(c, MK_NCCL_REMOTE_ERROR, "the sender is gone");
    return 0;
}

static void arrived(struct comm *c, size_t size)
{
    struct request *q = c->into;
    const int i = c->slot;
    q->filled[i] = true;
    q->size[i] = fake_fault("size") ? q->room[i] : size;
    c->received++;
    if (fake_fault("data") && size > 1000)
        q->data[i][size - 1] ^= 1;
    if (fake_fault("outside"))
        q->data[i][q->room[i]] = 0;
    c->into = NULL;
    if (--q->left == 0 && !(fake_fault("lost") && c->received % 60 == 59))
        leave(c, q);
}

static bool fits(struct comm *c, struct head *h)
{
    if (h->size > c->into->room[c->slot] && fake_fault("truncate"))
        h->size = c->into->room[c->slot];
    if (h->size <= c->into->room[c->slot])
        return true;
    fail(c, MK_NCCL_INVALID_USAGE, "more is sent than the receive has room for");
    shutdown(c->fd, SHUT_RDWR);
    return false;
}

/* Early messages whose receive has come. */
static void settle(struct comm *c)
{
    for (struct early **at = &c->early; *at;) {
        struct early *e = *at;
        if (!match(c, &e->head)) {
            at = &e->next;
            continue;
        }
        if (!fits(c, &e->head))
            return;
        memcpy(c->into->data[c->slot], e->data, e->head.size);
        arrived(c, e->head.size);
        *at = e->next;
        free(e);
    }
}

static void finish(struct comm *c)
{
    struct early **at = &c->early;
    if (c->into) {
        arrived(c, c->head.size);
    } else {
        while (*at)
            at = &(*at)->next;
        *at = c->coming;
        c->coming = NULL;
    }
    c->head_moved = c->moved = 0;
}

static void pull(struct comm *c)
{
    size_t n;
    while (!c->error && c->first) {
        if (c->head_moved < sizeof(c->head)) {
            if (!(n = take(c, (uint8_t *)&c->head + c->head_moved, sizeof(c->head) - c->head_moved)))
                return;
            c->head_moved += n;
            continue;
        }
        if (!c->into && !c->coming && match(c, &c->head) && !fits(c, &c->head))
            return;
        if (!c->into && !c->coming) {
            if (!(c->coming = calloc(1, sizeof(*c->coming) + c->head.size)))
                return;
            c->coming->head = c->head;
        }
        if (c->moved < c->head.size) {
            uint8_t *to = c->into ? c->into->data[c->slot] : c->coming->data;
            if (!(n = take(c, to + c->moved, c->head.size - c->moved)))
                return;
            c->moved += n;
        }
        if (c->moved == c->head.size)
            finish(c);
        settle(c);
    }
}

int fake_isend(void *comm, void *data, size_t size, int tag, void **request)
{
    static unsigned calls;
    struct comm *c = comm;
    if (c->error)
        return c->error;
    struct request *q = ++calls % 7 ? request_new(c, true) : NULL; /* "not now" happens */
    *request = q;
    if (!q)
        return 0;
    q->data[0] = data;
    q->head.size = size;
    q->head.tag = tag;
    if (fake_fault("lazy")) { /* done at once; what is left goes out if somebody calls again */
        q->data[0] = memcpy(malloc(size + 1), data, size);
        q->done = true;
        return 0;
    }
    push(c);
    return c->error;
}

int fake_irecv(void *comm, int n, void **data, const size_t *sizes, const int *tags, void **request)
{
    struct comm *c = comm;
    static unsigned calls;
    if (c->error)
        return c->error;
    if (*request == MK_NCCL_OPTIONAL_RECV && fake_fault("hint") && ++calls % 5 == 0)
        return 0;
    struct request *q = n <= FAKE_GROUP ? request_new(c, false) : NULL;
    *request = q;
    for (int i = 0; q && i < n; i++) {
        q->data[i] = data[i];
        q->room[i] = sizes[i];
        q->tag[i] = tags[i];
    }
    if (q)
        q->n = q->left = n;
    if (q && !c->into)
        settle(c);
    return c->error;
}

int fake_test(void *request, int *done, int *sizes)
{
    struct request *q = request;
    struct comm *c = q->comm;
    *done = 0;
    if (!q->done && q->sends)
        push(c);
    else if (!q->done)
        pull(c);
    if (!q->done)
        return c->error;
    *done = 1;
    if (sizes && q->sends)
        sizes[0] = (int)q->head.size;
    for (int i = 0; sizes && !q->sends && i < q->n + (fake_fault("extra") ? 1 : 0); i++)
        sizes[i] = i < q->n ? (int)q->size[i] : 0;
    if (fake_fault("lazy") && q->sends && c->first)
        return 0;
    for (int i = 0; i < FAKE_IN_FLIGHT; i++)
        if (c->all[i] == q)
            c->all[i] = NULL;
    c->held--;
    free(q);
    return 0;
}
