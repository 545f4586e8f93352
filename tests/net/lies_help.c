/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#include "mk/err.h"
#include "net/boot_wire.h"
#include "net/p2p_wire.h"
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>
/* after the above */
#include "tests/net/lies.h"

#define LIMIT_NS 20000000000ull
#define CANARY 0xc7
#define FRESH 0x11

/* ---- the victim ---- */

static char warnings[1 << 15];

static void logger(int level, unsigned long flags, const char *file, int line, const char *fmt, ...)
{
    const size_t n = strlen(warnings);
    va_list ap;
    (void)flags, (void)file, (void)line;
    if (level != MK_NCCL_LOG_WARN)
        return;
    va_start(ap, fmt);
    vsnprintf(warnings + n, sizeof(warnings) - n, fmt, ap);
    va_end(ap);
    strncat(warnings, "\n", sizeof(warnings) - strlen(warnings) - 1);
}

const char *victim_warnings(void)
{
    return warnings;
}

void victim_forget(void)
{
    warnings[0] = 0;
}

int victim_open(struct half *h, struct victim *v)
{
    const char *why = "";
    int ndev = 0;
    (void)h;
    memset(v, 0, sizeof(*v));
    setenv("MK_NET", lies_transport, 1);
    setenv("MK_LOG", "warn", 1);
    setenv("MK_TIMEOUT", "3", 1);
    void *lib = caller_load(lies_plugin, &why);
    if (!lib)
        fprintf(stderr, "%s\n", why);
    CHECK(lib && caller_table(lib, CALLER_NEWEST, &v->c));
    CHECK(!caller_init(&v->c, logger) && !caller_devices(&v->c, &ndev) && ndev == 1);
    v->all = mmap(NULL, VICTIM_MEMORY + 2 * VICTIM_CANARY, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(v->all != MAP_FAILED);
    memset(v->all, CANARY, VICTIM_MEMORY + 2 * VICTIM_CANARY);
    memset(v->all + VICTIM_CANARY, FRESH, VICTIM_MEMORY);
    return 0;
}

int victim_listen(struct victim *v, uint8_t handle[MK_P2P_HANDLE])
{
    CHECK(!caller_listen(&v->c, 0, handle, &v->listen) && v->listen);
    return 0;
}

int victim_connect(struct victim *v, const uint8_t handle[MK_P2P_HANDLE])
{
    uint8_t copy[MK_P2P_HANDLE];
    const uint64_t end = mk_time_ns() + LIMIT_NS;
    int ret = 0;
    memcpy(copy, handle, sizeof(copy));
    while (!ret && !v->send && mk_time_ns() < end)
        ret = caller_connect(&v->c, 0, copy, &v->send);
    return ret || v->send ? ret : -1;
}

int victim_accept(struct victim *v)
{
    const uint64_t end = mk_time_ns() + LIMIT_NS;
    int ret = 0;
    while (!ret && !v->recv && mk_time_ns() < end)
        ret = caller_accept(&v->c, v->listen, &v->recv);
    return ret || v->recv ? ret : -1;
}

static int reg(struct victim *v)
{
    uint8_t *memory = v->all + VICTIM_CANARY;
    CHECK(!caller_reg(&v->c, v->send, memory, VICTIM_MEMORY, MK_NCCL_PTR_HOST, &v->send_mr));
    CHECK(!caller_reg(&v->c, v->recv, memory, VICTIM_MEMORY, MK_NCCL_PTR_HOST, &v->recv_mr));
    return 0;
}

int victim_join(struct half *h, struct victim *v)
{
    uint8_t mine[MK_P2P_HANDLE], theirs[MK_P2P_HANDLE], copy[MK_P2P_HANDLE];
    const uint64_t end = mk_time_ns() + LIMIT_NS;
    CHECK_OK(victim_listen(v, mine));
    CHECK_OK(half_swap(h, mine, theirs, sizeof(mine)));
    memcpy(copy, theirs, sizeof(copy));
    while ((!v->send || !v->recv) && mk_time_ns() < end) {
        CHECK(v->send || !caller_connect(&v->c, 0, copy, &v->send));
        CHECK(v->recv || !caller_accept(&v->c, v->listen, &v->recv));
    }
    CHECK(v->send && v->recv);
    CHECK(!caller_close_listen(&v->c, v->listen));
    v->listen = NULL;
    return reg(v);
}

static int outcome(struct victim *v, void *request, uint64_t end, int *got)
{
    int ret = 0, done = 0, sizes[MK_P2P_RECVS] = {0};
    while (!ret && !done && mk_time_ns() < end)
        ret = caller_test(&v->c, request, &done, sizes);
    if (got)
        *got = sizes[0];
    return ret || done ? ret : -1;
}

int victim_sends(struct victim *v, size_t size, int tag)
{
    const uint64_t end = mk_time_ns() + LIMIT_NS;
    void *request = NULL;
    int ret = 0;
    while (!ret && !request && mk_time_ns() < end)
        ret = caller_isend(&v->c, v->send, v->all + VICTIM_CANARY, size, tag, v->send_mr, &request);
    return ret || !request ? (ret ? ret : -1) : outcome(v, request, end, NULL);
}

int victim_receives(struct victim *v, size_t at, size_t size, int tag, int *got)
{
    const uint64_t end = mk_time_ns() + LIMIT_NS;
    void *request = NULL, *data[1] = {v->all + VICTIM_CANARY + at}, *mr[1] = {v->recv_mr};
    int ret = 0;
    while (!ret && !request && mk_time_ns() < end)
        ret = caller_irecv(&v->c, v->recv, 1, data, &size, &tag, mr, &request);
    return ret || !request ? (ret ? ret : -1) : outcome(v, request, end, got);
}

int victim_whole(const struct victim *v, size_t at, size_t size)
{
    for (size_t i = 0; i < VICTIM_MEMORY; i++)
        if ((i < at || i >= at + size) && v->all[VICTIM_CANARY + i] != FRESH) {
            fprintf(stderr, "byte %zu was written, outside of %zu to %zu\n", i, at, at + size);
            return 1;
        }
    return 0;
}

int victim_close(struct victim *v)
{
    if (v->send_mr)
        CHECK(!caller_dereg(&v->c, v->send, v->send_mr));
    if (v->recv_mr)
        CHECK(!caller_dereg(&v->c, v->recv, v->recv_mr));
    CHECK(!v->send || !caller_close_send(&v->c, v->send));
    CHECK(!v->recv || !caller_close_recv(&v->c, v->recv));
    CHECK(!v->listen || !caller_close_listen(&v->c, v->listen));
    for (size_t i = 0; i < VICTIM_CANARY; i++)
        CHECK(v->all[i] == CANARY && v->all[VICTIM_CANARY + VICTIM_MEMORY + i] == CANARY);
    CHECK(!caller_finalize(&v->c));
    munmap(v->all, VICTIM_MEMORY + 2 * VICTIM_CANARY);
    return 0;
}

/* ---- the go-between ---- */

struct wire {
    struct between *b;
    int a, c; /* of who connects, to the listener */
    size_t seen[2];
};

static int loopback(uint16_t port, bool listens)
{
    struct sockaddr_in a;
    memset(&a, 0, sizeof(a));
    a.sin_family = AF_INET;
    a.sin_port = htons(port);
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && (listens ? bind(fd, (struct sockaddr *)&a, sizeof(a)) || listen(fd, 4)
                            : connect(fd, (struct sockaddr *)&a, sizeof(a)))) {
        close(fd);
        return -1;
    }
    return fd;
}

/* One way; 0: goes on. */
static int pass(struct wire *w, bool to)
{
    const struct between *b = w->b;
    uint8_t bytes[512];
    const ssize_t got = recv(to ? w->a : w->c, bytes, sizeof(bytes), 0);
    size_t n = got > 0 ? (size_t)got : 0;
    const size_t from = w->seen[to];
    for (size_t i = 0; to == b->to && !b->cut && i < n; i++)
        if (from + i >= b->at && from + i < b->at + b->n)
            bytes[i] = (uint8_t)b->value;
    const bool cut = to == b->to && b->cut && from + n > b->at;
    if (cut)
        n = b->at - from;
    w->seen[to] += n;
    if (n && send(to ? w->c : w->a, bytes, n, MSG_NOSIGNAL) != (ssize_t)n)
        return 1;
    return !n || cut;
}

static void serve(struct wire *w)
{
    struct pollfd f[3] = {{w->a, POLLIN, 0}, {w->c, POLLIN, 0}, {w->b->end, POLLIN, 0}};
    while (poll(f, 3, -1) > 0 && !f[2].revents)
        if ((f[0].revents && pass(w, true)) || (f[1].revents && pass(w, false)))
            return;
}

static void *between_run(void *arg)
{
    struct between *b = arg;
    struct pollfd f[2] = {{b->listener, POLLIN, 0}, {b->end, POLLIN, 0}};
    while (poll(f, 2, -1) > 0 && !f[1].revents) {
        struct wire w = {.b = b, .a = accept(b->listener, NULL, NULL)};
        w.c = loopback(b->port, false);
        if (w.a >= 0 && w.c >= 0)
            serve(&w);
        if (w.a >= 0)
            close(w.a);
        if (w.c >= 0)
            close(w.c);
    }
    return NULL;
}

int between_start(struct between *b, uint8_t handle[MK_P2P_HANDLE])
{
    struct mk_p2p_handle h;
    struct sockaddr_in a;
    socklen_t len = sizeof(a);
    memcpy(&h, handle, sizeof(h));
    b->port = h.port;
    b->end = eventfd(0, EFD_CLOEXEC);
    b->listener = loopback(0, true);
    CHECK(b->end >= 0 && b->listener >= 0 && !getsockname(b->listener, (struct sockaddr *)&a, &len));
    h.port = ntohs(a.sin_port);
    h.check = mk_boot_hash(&h, offsetof(struct mk_p2p_handle, check));
    memcpy(handle, &h, sizeof(h));
    CHECK(!pthread_create(&b->thread, NULL, between_run, b));
    return 0;
}

void between_stop(struct between *b)
{
    const uint64_t one = 1;
    if (write(b->end, &one, sizeof(one)) != sizeof(one))
        fprintf(stderr, "the go-between does not stop\n");
    pthread_join(b->thread, NULL); /* it works on b */
    close(b->listener);
    close(b->end);
}
