/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* One program over the transport table: test_net_transport loop|ofi|verbs [ordered] [hostile=SEED] [provider=NAME], where
 * a + in NAME stands for ;. Cases in transport_cases.c. A transport that this machine lacks: skip. */
#include "transport.h"
#include "mk/err.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

int tell(struct side *t, const void *p, size_t n)
{
    for (size_t at = 0; at < n;) {
        const ssize_t k = send(t->fd, (const char *)p + at, n - at, MSG_NOSIGNAL);
        if (k <= 0)
            return 1;
        at += (size_t)k;
    }
    return 0;
}

/* Progresses the device while it waits: no host provider progresses by itself. */
int hear(struct side *t, void *p, size_t n)
{
    const uint64_t end = mk_time_ns() + DEADLINE_NS;
    for (size_t at = 0; at < n;) {
        const ssize_t k = recv(t->fd, (char *)p + at, n - at, MSG_DONTWAIT);
        if (k == 0 || mk_time_ns() > end) {
            printf("side %d: the other side is %s\n", t->who, k == 0 ? "gone" : "late");
            return 1;
        }
        if (k > 0) {
            at += (size_t)k;
            continue;
        }
        const int room = (int)(sizeof(t->kept) / sizeof(t->kept[0])) - t->nkept;
        if (t->dev && room > 0)
            t->nkept += t->ops->poll(t->dev, t->kept + t->nkept, room);
        usleep(50);
    }
    return 0;
}

int in_step(struct side *t)
{
    char c = 'x';
    return tell(t, &c, 1) || hear(t, &c, 1);
}

int end_open(struct side *t, struct end *e)
{
    struct mk_net_addr mine, theirs;
    struct mk_net_key key;
    memset(e, 0, sizeof(*e));
    CHECK(!t->ops->conn_open(t->dev, &mine, &e->conn), "%s", mk_last_error());
    t->ops->key(t->mr, &key);
    CHECK(!tell(t, &mine, sizeof(mine)) && !tell(t, &key, sizeof(key)), "exchange");
    CHECK(!hear(t, &theirs, sizeof(theirs)) && !hear(t, &key, sizeof(key)), "exchange");
    const uint64_t end = mk_time_ns() + DEADLINE_NS;
    int ret;
    while ((ret = t->ops->conn_connect(e->conn, &theirs)) == MK_ERR_AGAIN && mk_time_ns() < end)
        t->nkept += t->ops->poll(t->dev, t->kept + t->nkept, 8);
    CHECK(ret == 0, "%s", mk_last_error());
    CHECK(!t->ops->import(e->conn, &key, &e->rmem), "%s", mk_last_error());
    return in_step(t);
}

void end_close(struct side *t, struct end *e)
{
    t->ops->unimport(e->rmem);
    t->ops->conn_close(e->conn);
    memset(e, 0, sizeof(*e));
}

int put(struct side *t, struct end *e, const struct mk_wr *wr)
{
    const uint64_t end = mk_time_ns() + DEADLINE_NS;
    for (;;) {
        const int ret = t->ops->post(e->conn, wr, 1);
        CHECK(ret >= 0, "post: %s", mk_last_error());
        if (ret == 1)
            return 0;
        const int room = (int)(sizeof(t->kept) / sizeof(t->kept[0])) - t->nkept;
        CHECK(room > 0, "completions nobody asked for");
        t->nkept += t->ops->poll(t->dev, t->kept + t->nkept, room);
        CHECK(mk_time_ns() < end, "post %llu of %u bytes was not taken", (unsigned long long)wr->id, wr->len);
    }
}

int next(struct side *t, enum mk_wc_kind kind, struct mk_wc *out)
{
    const uint64_t end = mk_time_ns() + DEADLINE_NS;
    for (;;) {
        for (int i = 0; i < t->nkept; i++)
            if (t->kept[i].kind == kind) {
                *out = t->kept[i];
                memmove(t->kept + i, t->kept + i + 1, (size_t)(--t->nkept - i) * sizeof(*out));
                return 0;
            }
        const int room = (int)(sizeof(t->kept) / sizeof(t->kept[0])) - t->nkept;
        const int n = t->ops->poll(t->dev, t->kept + t->nkept, room);
        CHECK(n >= 0, "poll: %s", mk_last_error());
        t->nkept += n;
        if (!n)
            t->ops->wait(t->dev, 1000000);
        CHECK(mk_time_ns() < end, "no %s completion", kind == MK_WC_LOCAL ? "local" : "remote");
    }
}

static uint8_t pattern(uint64_t seed, size_t i)
{
    return (uint8_t)((seed * 0x9e3779b97f4a7c15ull >> 32) + i * 37 + (i >> 8));
}

void fill(uint8_t *p, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        p[i] = pattern(seed, i);
}

long wrong(const uint8_t *p, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != pattern(seed, i))
            return (long)i;
    return -1;
}

/* The other process is killed under our writes. Nothing blocks or crashes; networks that have connections say so with
 * MK_ERR_PEER, the others take writes until they are full, and closing works all the same. */
static int outlive(struct side *t)
{
    const bool connected = !strcmp(t->ops->name, "ofi") && strcmp(t->dev->caps.provider, "shm");
    const uint64_t end = mk_time_ns() + (connected ? DEADLINE_NS : 200000000u);
    const struct mk_wr wr = {.mr = t->mr,
                             .rmem = t->e.rmem,
                             .len = 65536,
                             .imm = 1,
                             .flags = MK_WR_SIGNALED | MK_WR_IMM | MK_WR_DELIVERY};
    struct mk_wc wc[16];
    char why[96] = "";
    int error = 0;
    if (t->who == 1) {
        if (in_step(t))
            return 1;
        raise(SIGKILL);
    }
    if (in_step(t))
        return 1;
    while (!error && mk_time_ns() < end) {
        const int ret = t->ops->post(t->e.conn, &wr, 1);
        error = ret < 0 ? ret : 0;
        const int n = t->ops->poll(t->dev, wc, 16);
        CHECK(n >= 0, "poll: %s", mk_last_error());
        for (int i = 0; i < n; i++)
            if (wc[i].status) {
                error = wc[i].status;
                memcpy(why, wc[i].text, sizeof(why));
            }
        if (!n)
            t->ops->wait(t->dev, 100000);
    }
    CHECK(error == 0 || error == MK_ERR_PEER, "error %d: %s", error, why);
    CHECK(error || !connected, "writes to a dead process, and no error");
    return 0;
}

static int run(struct side *t)
{
    int failed = 0;
    int ret = t->ops->open(&t->s, &t->dev);
    int theirs = 0;
    if (tell(t, &ret, sizeof(ret)) || hear(t, &theirs, sizeof(theirs)))
        return 1;
    if (ret == MK_ERR_UNSUPPORTED && theirs == ret) {
        if (t->who == 0)
            printf("skip: net.transport: %s\n", mk_last_error());
        return 77;
    }
    CHECK(ret == 0, "open: %s", mk_last_error());
    CHECK(!mk_shm_create("test", MEM_BYTES, &t->mem), "%s", mk_last_error());
    CHECK(!t->ops->reg(t->dev, t->mem.addr, t->mem.size, &t->mem, &t->mr), "%s", mk_last_error());
    if (end_open(t, &t->e))
        return 1;
    for (const struct test_case *c = cases; c->name; c++) {
        const uint64_t begin = mk_time_ns();
        failed = c->run(t);
        if (!failed)
            failed = in_step(t);
        if (t->who == 0)
            printf("%-24s %s  %.1f ms\n", c->name, failed ? "FAILED" : "ok",
                   (double)(mk_time_ns() - begin) * 1e-6);
        if (failed)
            return 1;
    }
    if (outlive(t))
        return 1;
    if (t->who == 0)
        printf("%-24s ok\n", "outlive");
    end_close(t, &t->e);
    t->ops->dereg(t->mr);
    t->ops->close(t->dev);
    mk_shm_release(&t->mem);
    return 0;
}

static int parse(struct side *t, int argc, char **argv)
{
    if (argc < 2 || mk_settings_load(&t->s, true))
        return 2;
    t->ops = !strcmp(argv[1], "ofi") ? &mk_ofi_ops : !strcmp(argv[1], "verbs") ? &mk_verbs_ops : &mk_loop_ops;
    for (int i = 2; i < argc; i++) {
        if (!strcmp(argv[i], "ordered"))
            t->s.ordered = true;
        else if (!strncmp(argv[i], "hostile=", 8))
            t->s.loop_hostile = atoll(argv[i] + 8);
        else if (!strncmp(argv[i], "us=", 3))
            t->s.loop_us = atof(argv[i] + 3);
        else if (!strncmp(argv[i], "provider=", 9))
            snprintf(t->s.ofi_provider, sizeof(t->s.ofi_provider), "%s", argv[i] + 9);
        else
            return 2;
    }
    for (char *c = t->s.ofi_provider; *c; c++)
        if (*c == '+')
            *c = ';'; /* CMake's lists have their own use of it */
    if (!t->s.ifname[0])
        snprintf(t->s.ifname, sizeof(t->s.ifname), "lo");
    return 0;
}

int main(int argc, char **argv)
{
    static struct side t;
    int fds[2], status = 0;
    if (parse(&t, argc, argv) || socketpair(AF_UNIX, SOCK_STREAM, 0, fds)) {
        fprintf(stderr, "usage: %s loop|ofi|verbs [ordered] [hostile=SEED] [us=LATENCY] [provider=NAME]\n",
                argv[0]);
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    const pid_t child = fork();
    if (child < 0)
        return 1;
    t.who = child == 0;
    t.fd = fds[t.who];
    close(fds[!t.who]);
    alarm(100); /* nothing may hang, not even this */
    const int ret = run(&t);
    if (child == 0) {
        exit(ret);
    }
    if (ret && ret != 77)
        kill(child, SIGTERM);
    char left[64]; /* what provider shm leaves of a killed process */
    snprintf(left, sizeof(left), "/dev/shm/%d:0:0", (int)child);
    if (waitpid(child, &status, 0) != child)
        return 1;
    unlink(left);
    return ret || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) ? ret : 1;
}
