/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The cases: each runs on both sides in step. Side 0 writes, side 1 checks, unless said. */
#include "transport.h"
#include "mk/err.h"
#include "net/loop/loop.h"
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SLOT (5u << 20)
#define SLOTS 4u

static int expect_local(struct side *t, uint64_t id, int status)
{
    struct mk_wc wc;
    if (next(t, MK_WC_LOCAL, &wc))
        return 1;
    CHECK(wc.status == status, "write %llu ended with %d: %s", (unsigned long long)wc.id, wc.status, wc.text);
    CHECK(wc.id == id || id == UINT64_MAX, "completion of %llu, not %llu", (unsigned long long)wc.id,
          (unsigned long long)id);
    CHECK(wc.conn == t->e.conn || id == UINT64_MAX, "completion of another connection");
    CHECK(status == 0 || wc.text[0], "an error without a cause");
    return 0;
}

/* The immediate alone, back to the writer: a credit. */
static int credit(struct side *t, uint32_t imm)
{
    struct mk_wr wr = {.imm = imm, .flags = MK_WR_IMM};
    return put(t, &t->e, &wr);
}

/* Every size, several in flight, payload checked at the moment the immediate is seen. */
static int sizes(struct side *t)
{
    static const uint32_t len[] = {0, 1, 7, 8, 9, 64, 4095, 4096, 65536, 262144, (1u << 20) + 3, 4u << 20};
    const uint32_t kinds = sizeof(len) / sizeof(len[0]), total = 5 * kinds;
    uint32_t credits = 0, landed = 0, done = 0;
    struct mk_wc wc;
    uint8_t seen[5 * sizeof(len) / sizeof(len[0])] = {0};
    if (t->who == 1) {
        for (; landed < total; landed++) {
            if (next(t, MK_WC_REMOTE, &wc))
                return 1;
            const uint32_t i = wc.imm & 0xffff;
            CHECK(wc.imm == (0xab000000u | i) && i < total && !seen[i]++, "immediate %x", wc.imm);
            const long at = wrong((uint8_t *)t->mem.addr + i % SLOTS * SLOT, len[i % kinds], i);
            CHECK(at < 0, "write %u of %u bytes: byte %ld is wrong", i, len[i % kinds], at);
            if (credit(t, i % SLOTS))
                return 1;
        }
        return 0;
    }
    uint32_t slot_free[SLOTS] = {1, 1, 1, 1};
    for (uint32_t i = 0; i < total; i++) {
        while (!slot_free[i % SLOTS]) {
            if (next(t, MK_WC_REMOTE, &wc))
                return 1;
            CHECK(wc.imm < SLOTS, "credit %u", wc.imm);
            slot_free[wc.imm] = 1;
            credits++;
        }
        for (; i >= SLOTS && done <= i - SLOTS; done++)
            if (expect_local(t, UINT64_MAX, 0)) /* the source may be reused */
                return 1;
        slot_free[i % SLOTS] = 0;
        fill((uint8_t *)t->mem.addr + i % SLOTS * SLOT, len[i % kinds], i);
        const struct mk_wr wr = {.id = i,
                                 .mr = t->mr,
                                 .local_off = i % SLOTS * SLOT,
                                 .rmem = t->e.rmem,
                                 .remote_off = i % SLOTS * SLOT,
                                 .len = len[i % kinds],
                                 .imm = 0xab000000u | i,
                                 .flags = MK_WR_IMM | MK_WR_SIGNALED | (i % 3 ? 0u : MK_WR_DELIVERY)};
        if (put(t, &t->e, &wr))
            return 1;
    }
    for (; done < total; done++)
        if (expect_local(t, UINT64_MAX, 0))
            return 1;
    for (; credits < total; credits++)
        if (next(t, MK_WC_REMOTE, &wc))
            return 1;
    return 0;
}

/* Payload, then an inline flag word, by two plain writes: where order is declared, whoever sees the flag sees the
 * payload. Where it is not, the flag must at least be 8 whole bytes; and the hostile mode must show the difference,
 * else it could not catch a wrong adapter. */
static int payload_then_flag(struct side *t)
{
    const uint32_t chunk = 3000, rounds = 1000;
    const uint64_t flag_off = 23u << 20;
    /* soft RoCE of the kernel copies bytes, upwards: no word of a counter is ever too large, but it comes in parts */
    const bool in_parts = !strncmp(t->dev->caps.provider, "rxe", 3);
    uint32_t early = 0;
    struct mk_wc wc;
    memset((uint8_t *)t->mem.addr + flag_off, 0, 8);
    if (in_step(t))
        return 1;
    for (uint64_t i = 1; i <= rounds; i++) {
        if (t->who == 1) {
            const uint64_t *flag = (const uint64_t *)(const void *)((uint8_t *)t->mem.addr + flag_off);
            const uint64_t end = mk_time_ns() + DEADLINE_NS;
            uint64_t v;
            while ((v = __atomic_load_n(flag, __ATOMIC_ACQUIRE)) != i * 0x100000001ull) {
                CHECK(in_parts || v == (i - 1) * 0x100000001ull, "flag %llx in round %llu",
                      (unsigned long long)v, (unsigned long long)i);
                t->nkept += t->ops->poll(t->dev, t->kept + t->nkept, 8);
                CHECK(mk_time_ns() < end, "flag %llu did not come", (unsigned long long)i);
                usleep(0);
            }
            const long at = wrong((uint8_t *)t->mem.addr + i % 8 * chunk, chunk, i);
            CHECK(at < 0 || !t->dev->caps.ordered, "round %llu: flag before byte %ld", (unsigned long long)i,
                  at);
            early += at >= 0;
            if (credit(t, (uint32_t)i))
                return 1;
            continue;
        }
        fill((uint8_t *)t->mem.addr + i % 8 * chunk, chunk, i);
        const struct mk_wr data = {.mr = t->mr,
                                   .local_off = i % 8 * chunk,
                                   .rmem = t->e.rmem,
                                   .remote_off = i % 8 * chunk,
                                   .len = chunk,
                                   .id = 2 * i,
                                   .flags = MK_WR_SIGNALED};
        const struct mk_wr flag = {.inline_data = i * 0x100000001ull,
                                   .rmem = t->e.rmem,
                                   .remote_off = flag_off,
                                   .len = 8,
                                   .id = 2 * i + 1,
                                   .flags = MK_WR_INLINE};
        if (put(t, &t->e, &data) || put(t, &t->e, &flag) || next(t, MK_WC_REMOTE, &wc))
            return 1;
        CHECK(wc.imm == i, "credit %u in round %llu", wc.imm, (unsigned long long)i);
        if (expect_local(t, 2 * i, 0))
            return 1;
    }
    CHECK(early || t->who == 0 || t->dev->caps.ordered || !t->s.loop_hostile,
          "hostile, and no flag came early");
    return 0;
}

/* The other side does not poll: post says "full" instead of blocking; later everything completes exactly once. */
static int back_pressure(struct side *t)
{
    uint32_t posted = 0, got = 0;
    char c;
    struct mk_wc wc;
    if (t->who == 1) {
        if (read(t->fd, &c, 1) != 1 || hear(t, &posted, sizeof(posted)))
            return 1;
        /* hear() polled: what came lies in kept or is still to come */
        for (; got < posted; got++) {
            if (next(t, MK_WC_REMOTE, &wc))
                return 1;
            CHECK(wc.imm < posted, "immediate %u of %u", wc.imm, posted);
        }
        return 0;
    }
    struct mk_wr wr = {.mr = t->mr, .rmem = t->e.rmem, .len = 64, .flags = MK_WR_IMM | MK_WR_SIGNALED};
    for (;;) {
        wr.id = wr.imm = posted;
        const int ret = t->ops->post(t->e.conn, &wr, 1);
        CHECK(ret == 0 || ret == 1, "post: %s", mk_last_error());
        if (!ret)
            break;
        posted++;
        CHECK(posted < 1000000, "a million posts and no back-pressure");
    }
    CHECK(posted >= 8 && posted <= t->dev->caps.depth, "full after %u, depth %u", posted, t->dev->caps.depth);
    if (tell(t, "x", 1) || tell(t, &posted, sizeof(posted)))
        return 1;
    for (; got < posted; got++)
        if (expect_local(t, UINT64_MAX, 0))
            return 1;
    return 0;
}

/* Ranges outside of what was imported or registered end in an error completion and touch nothing. */
static int bad_ranges(struct side *t)
{
    struct mk_net_key junk;
    struct mk_rmem *r;
    memset(&junk, 0x5a, sizeof(junk));
    CHECK(t->ops->import(t->e.conn, &junk, &r) < 0, "a key of noise was imported");
    if (t->who == 1)
        return 0;
    struct mk_wr wr = {.mr = t->mr, .rmem = t->e.rmem, .len = 16, .id = 7, .flags = MK_WR_IMM};
    wr.remote_off = MEM_BYTES - 15;
    if (put(t, &t->e, &wr) || expect_local(t, 7, MK_ERR_NET))
        return 1;
    wr.remote_off = UINT64_MAX - 3;
    if (put(t, &t->e, &wr) || expect_local(t, 7, MK_ERR_NET))
        return 1;
    wr.remote_off = 0;
    wr.local_off = MEM_BYTES - 8;
    if (put(t, &t->e, &wr) || expect_local(t, 7, MK_ERR_NET))
        return 1;
    return 0;
}

static int ping(struct side *t, struct end *e, uint32_t imm)
{
    struct mk_wc wc;
    const struct mk_wr wr = {.imm = imm, .flags = MK_WR_IMM};
    if (put(t, e, &wr) || next(t, MK_WC_REMOTE, &wc))
        return 1;
    CHECK(wc.imm == imm, "immediate %u, not %u", wc.imm, imm);
    return 0;
}

/* A connection is closed under its writes, both ways; its successor works. */
static int close_in_flight(struct side *t)
{
    for (int round = 0; round < 3; round++) {
        struct end e;
        if (end_open(t, &e))
            return 1;
        for (uint32_t i = 0; i < 16; i++) {
            const struct mk_wr wr = {.mr = t->mr,
                                     .rmem = e.rmem,
                                     .local_off = i << 18,
                                     .remote_off = i << 18,
                                     .len = 1u << 18,
                                     .id = 900 + i,
                                     .imm = 0xdead,
                                     .flags = MK_WR_SIGNALED | (i & 1 ? MK_WR_IMM : 0u)};
            CHECK(t->ops->post(e.conn, &wr, 1) >= 0, "%s", mk_last_error());
        }
        end_close(t, &e);
        if (in_step(t))
            return 1;
    }
    /* leftovers of the closed connections may arrive, completions of theirs may not */
    struct mk_wc wc;
    if (credit(t, 77))
        return 1;
    do {
        if (next(t, MK_WC_REMOTE, &wc))
            return 1;
    } while (wc.imm == 0xdead);
    CHECK(wc.imm == 77, "immediate %x", wc.imm);
    if (in_step(t))
        return 1;
    for (int i = 0; i < t->nkept; i++)
        CHECK(t->kept[i].kind == MK_WC_REMOTE, "a closed connection's completion %llu",
              (unsigned long long)t->kept[i].id);
    t->nkept = 0;
    return 0;
}

static int many_connections(struct side *t)
{
    enum { N = 48 };
    static struct end e[N];
    uint8_t seen[N] = {0};
    struct mk_wc wc;
    for (int i = 0; i < N; i++)
        if (end_open(t, &e[i]))
            return 1;
    for (int i = 0; i < N; i++) {
        const struct mk_wr wr = {.mr = t->mr,
                                 .rmem = e[i].rmem,
                                 .local_off = (uint64_t)i * 4096,
                                 .remote_off = (uint64_t)(N + i) * 4096,
                                 .len = 4096,
                                 .imm = (uint32_t)i,
                                 .flags = MK_WR_IMM};
        fill((uint8_t *)t->mem.addr + i * 4096, 4096, (uint64_t)i);
        if (put(t, &e[i], &wr))
            return 1;
    }
    for (int i = 0; i < N; i++) {
        if (next(t, MK_WC_REMOTE, &wc))
            return 1;
        CHECK(wc.imm < N && !seen[wc.imm]++, "immediate %u", wc.imm);
        CHECK(wrong((uint8_t *)t->mem.addr + (N + wc.imm) * 4096, 4096, wc.imm) < 0, "payload of %u", wc.imm);
    }
    if (in_step(t))
        return 1;
    for (int i = 0; i < N; i++)
        end_close(t, &e[i]);
    return 0;
}

static void *wake_later(void *arg)
{
    struct side *t = arg;
    usleep(20000);
    t->ops->wake(t->dev);
    return NULL;
}

/* wait ends by wake (also one that came before it) and by an arrival; a lost one would sleep for an hour. */
static int wait_and_wake(struct side *t)
{
    const uint64_t hour = 3600ull * 1000000000u;
    struct mk_wc wc;
    pthread_t thread;
    t->ops->wake(t->dev);
    t->ops->wait(t->dev, hour);
    CHECK(!pthread_create(&thread, NULL, wake_later, t), "thread");
    t->ops->wait(t->dev, hour);
    pthread_join(thread, NULL);
    if (in_step(t))
        return 1;
    if (t->who == 0) {
        usleep(20000);
        return ping(t, &t->e, 5);
    }
    int n = 0;
    for (int i = 0; i < t->nkept; i++)
        n += t->kept[i].kind == MK_WC_REMOTE;
    while (n == 0) {
        n = t->ops->poll(t->dev, &wc, 1);
        if (!n)
            t->ops->wait(t->dev, hour);
        else
            t->kept[t->nkept++] = wc;
    }
    return ping(t, &t->e, 5);
}

/* Nothing to do: wait sleeps. However slow the machine, 100 ms cannot hold thousands of sleeps of 10 ms; a wait that
 * returns at once makes tens of thousands of rounds. */
static int idle(struct side *t)
{
    struct mk_wc wc;
    uint32_t rounds = 0;
    for (uint32_t i = 0; i < 4; i++)
        if (ping(t, &t->e, i) || in_step(t))
            return 1;
    for (const uint64_t end = mk_time_ns() + 100000000u; mk_time_ns() < end; rounds++) {
        CHECK(t->ops->poll(t->dev, &wc, 1) == 0, "a completion of %llu", (unsigned long long)wc.id);
        t->ops->wait(t->dev, 10000000);
    }
    CHECK(rounds < 3000, "%u rounds in 100 ms", rounds);
    return 0;
}

/* A forked child that ends (system() of the user's program) leaves the parent's transport alone. */
static int forked_child(struct side *t)
{
    const pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0)
        _exit(0);
    CHECK(waitpid(child, NULL, 0) == child, "waitpid");
    for (uint32_t i = 0; i < 10; i++)
        if (ping(t, &t->e, i) || in_step(t))
            return 1;
    return 0;
}

/* Loop only: what the fault injection promises to those who test error paths with it. */
static int faults(struct side *t)
{
    struct mk_wc wc;
    struct mk_loop_faults f = {.fail_write = 2, .drop_write = 3, .drop_completion = 4};
    if (strcmp(t->ops->name, "loop"))
        return 0;
    if (t->who == 1) {
        for (int i = 0; i < 2; i++) { /* writes 1 and 4 arrive */
            if (next(t, MK_WC_REMOTE, &wc))
                return 1;
            CHECK(wc.imm == 1 || wc.imm == 4, "immediate %u", wc.imm);
        }
        return in_step(t) || in_step(t);
    }
    CHECK(!mk_loop_set_faults(t->dev, &f), "set");
    for (uint32_t i = 1; i <= 4; i++) {
        const struct mk_wr wr = {.id = i, .imm = i, .flags = MK_WR_IMM | MK_WR_SIGNALED};
        if (put(t, &t->e, &wr))
            return 1;
    }
    for (int i = 0; i < 3; i++) { /* in any order: 1 and 3 well, 2 failed, 4 silent */
        if (next(t, MK_WC_LOCAL, &wc))
            return 1;
        CHECK(wc.id < 4 && (wc.status == 0) == (wc.id != 2), "write %llu: %d", (unsigned long long)wc.id,
              wc.status);
    }
    if (in_step(t)) /* write 4 is silent, and may land last: what follows would end it */
        return 1;
    memset(&f, 0, sizeof(f));
    f.stalled = 1;
    CHECK(!mk_loop_set_faults(t->dev, &f), "set");
    const struct mk_wr wr = {.id = 9, .flags = MK_WR_SIGNALED | MK_WR_IMM};
    if (put(t, &t->e, &wr))
        return 1;
    CHECK(t->ops->poll(t->dev, &wc, 1) == 0, "a stalled connection moved");
    f.stalled = 0;
    f.dead = 1;
    CHECK(!mk_loop_set_faults(t->dev, &f), "set");
    CHECK(t->ops->post(t->e.conn, &wr, 1) == MK_ERR_PEER, "post towards a dead peer");
    if (expect_local(t, 9, MK_ERR_PEER))
        return 1;
    CHECK(!mk_loop_set_faults(t->dev, NULL), "set");
    return in_step(t);
}

const struct test_case cases[] = {
    {"sizes", sizes},
    {"payload_then_flag", payload_then_flag},
    {"back_pressure", back_pressure},
    {"bad_ranges", bad_ranges},
    {"close_in_flight", close_in_flight},
    {"many_connections", many_connections},
    {"wait_and_wake", wait_and_wake},
    {"idle", idle},
    {"forked_child", forked_child},
    {"faults", faults},
    {NULL, NULL},
};
