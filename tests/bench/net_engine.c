/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The engine in the two patterns: driven by the calling thread, as NCCL's progress thread will drive it, and through
 * ring and proxy thread, as kernels use it. */
#include "mk/dev/flag.h"
#include "mk/err.h"
#include "tests/bench/net.h"
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LAPS                                                                                                 \
    15u /* through the ring, LAPS * NET_WINDOW writes are under way, as with the blocks of a kernel */
#define YIELDS 50u
#define NOTES (NET_WINDOW + 1) /* a flag a slot, and one for "all seen" */

struct eng {
    struct net_peer *p;
    struct mk_engine *e;
    struct mk_proxy *proxy; /* NULL: driven by the calling thread */
    struct mk_link *l;
    struct mk_mr *mr;
    struct mk_rmem *rmem;
    struct mk_notes *notes;
    uint32_t step[NOTES];
    uint64_t flags_off;   /* in the memory: each engine has flags of its own */
    uint64_t *flags;      /* of this side, set by the peer */
    uint64_t used[NOTES]; /* uses of the peer's flags */
    uint64_t seen[NOTES]; /* uses of ours, waited for */
    uint32_t done;        /* puts done since the pattern began */
    int status;
    /* proxy */
    struct mk_bell bell; /* flags or done words changed */
    uint16_t id;
    uint64_t done_words[NOTES];
    struct mk_link *links[2];
    struct mk_mr *windows[1];
    struct mk_rmem *rwindows[2];
    struct mk_proxy_comm comm;
};

struct eng_hello {
    struct mk_net_addr addr;
    struct mk_net_key key;
    uint32_t base;
};

static void on_done(void *ctx, struct mk_link *l, uint64_t id, int status)
{
    struct eng *g = ctx;
    (void)l;
    (void)id;
    g->done++;
    if (status)
        g->status = status;
}

static int wire(struct eng *g)
{
    struct eng_hello mine, theirs;
    struct mk_peer_notes n;
    memset(&mine, 0, sizeof(mine));
    for (uint32_t i = 0; i < NOTES; i++)
        g->step[i] = 1;
    g->flags_off = (uint64_t)NET_WINDOW * NET_MAX + NET_FLAGS * g->p->engines++;
    g->flags = (uint64_t *)(void *)((uint8_t *)g->p->mem.addr + g->flags_off);
    memset(g->flags, 0, 16 * NOTES);
    const struct mk_notes_desc d = {g->flags, g->flags + NOTES, g->step, NOTES, g->proxy ? &g->bell : NULL};
    int ret = mk_engine_reg(g->e, g->p->mem.addr, g->p->mem.size, &g->p->mem, &g->mr);
    if (!ret)
        ret = mk_notes_open(g->e, &d, &mine.base, &g->notes);
    if (!ret)
        ret = mk_link_open(g->e, "the other process", &mine.addr, &g->l);
    if (ret)
        return ret;
    mk_mr_key(g->mr, &mine.key);
    if (net_swap(g->p, &mine, &theirs, sizeof(mine)))
        return MK_ERR_PEER;
    const uint64_t end = mk_time_ns() + NET_LIMIT_NS;
    while ((ret = mk_link_connect(g->l, &theirs.addr)) == MK_ERR_AGAIN && mk_time_ns() < end)
        mk_engine_progress(g->e);
    if (!ret)
        ret = mk_link_import(g->l, &theirs.key, &g->rmem);
    n.base = theirs.base;
    n.n = NOTES;
    n.mem = g->rmem;
    n.flags_off = g->flags_off;
    n.shadow_off = g->flags_off + 8 * NOTES;
    return ret ? ret : mk_link_set_notes(g->l, &n);
}

static void on_error(void *ctx, int node, int code, const char *text)
{
    (void)node;
    (void)text;
    __atomic_store_n(&((struct eng *)ctx)->status, code, __ATOMIC_RELEASE);
}

static int attach(struct eng *g)
{
    const int other = !g->p->who;
    g->links[other] = g->l;
    g->windows[0] = g->mr;
    g->rwindows[other] = g->rmem;
    g->comm.nnodes = 2;
    g->comm.nwindows = 1;
    g->comm.links = g->links;
    g->comm.windows = g->windows;
    g->comm.rwindows = g->rwindows;
    g->comm.done = g->done_words;
    g->comm.ndone = NOTES;
    g->comm.bell = &g->bell;
    g->comm.on_error = on_error;
    g->comm.ctx = g;
    return mk_proxy_attach(g->proxy, &g->comm, &g->id);
}

static void eng_close(void *impl)
{
    struct eng *g = impl;
    if (g->proxy) {
        mk_proxy_detach(g->proxy, g->id);
        mk_proxy_stop(g->proxy);
    } else {
        mk_engine_close(g->e);
    }
    free(g);
}

static int open_any(struct net_peer *p, bool proxy, void **out)
{
    struct eng *g = calloc(1, sizeof(*g));
    if (!g)
        return mk_fail(MK_ERR_NOMEM, "CLI", "an engine");
    g->p = p;
    int ret = mk_engine_open(&p->s, &g->e);
    if (ret) {
        free(g);
        return ret;
    }
    if (proxy && (ret = mk_proxy_start(&p->s, g->e, 10, &g->proxy)))
        goto close_engine;
    if (proxy)
        mk_proxy_lock(g->proxy);
    ret = wire(g);
    if (!ret && !proxy)
        mk_link_on_done(g->l, on_done, g);
    if (!ret && proxy)
        ret = attach(g);
    if (proxy)
        mk_proxy_unlock(g->proxy);
    if (ret) {
        eng_close(g);
        return ret;
    }
    *out = g;
    return 0;
close_engine:
    mk_engine_close(g->e);
    free(g);
    return ret;
}

static int engine_open(struct net_peer *p, void **out)
{
    return open_any(p, false, out);
}

static struct mk_put put_of(struct eng *g, uint32_t note, uint32_t slot, uint32_t size)
{
    struct mk_put put;
    memset(&put, 0, sizeof(put));
    put.mr = g->mr;
    put.rmem = g->rmem;
    put.local_off = put.remote_off = (uint64_t)slot * size;
    put.len = size;
    put.note = note;
    put.value = ++g->used[note];
    put.use4 = put.value & 15;
    return put;
}

/* Progresses until a flag of ours has been set n more times. */
static int await(struct eng *g, uint32_t note, uint32_t n)
{
    const uint64_t end = mk_time_ns() + NET_LIMIT_NS;
    g->seen[note] += n;
    for (uint32_t spins = 1; mk_poll_sys(&g->flags[note]) < g->seen[note]; spins++) {
        if (mk_engine_progress(g->e) < 0 || g->status)
            return 1;
        if (!(spins & 0xffff) && mk_time_ns() > end)
            return 1;
    }
    return 0;
}

static int await_done(struct eng *g, uint32_t n)
{
    const uint64_t end = mk_time_ns() + NET_LIMIT_NS;
    for (uint32_t spins = 1; g->done < n; spins++) {
        if (mk_engine_progress(g->e) < 0 || g->status)
            return 1;
        if (!(spins & 0xffff) && mk_time_ns() > end)
            return 1;
    }
    return 0;
}

static int engine_one(struct eng *g, uint32_t note, uint32_t slot, uint32_t size)
{
    const struct mk_put put = put_of(g, note, slot, size);
    g->done = 0;
    return mk_link_put(g->l, &put, 1) != 1 || await_done(g, 1);
}

static double engine_stream(void *impl, uint32_t size, uint32_t count)
{
    struct eng *g = impl;
    uint32_t posted = 0;
    if (g->p->who == 1) {
        for (uint32_t slot = 0; slot < NET_WINDOW; slot++)
            if (await(g, slot, count / NET_WINDOW + (slot < count % NET_WINDOW)))
                return -1;
        return engine_one(g, NET_WINDOW, 0, 8) ? -1 : 0;
    }
    g->done = 0;
    const uint64_t begin = mk_time_ns();
    for (uint32_t spins = 1; g->done < count; spins++) {
        struct mk_put put[NET_WINDOW];
        uint32_t room = NET_WINDOW - (posted - g->done);
        room = room < count - posted ? room : count - posted;
        for (uint32_t i = 0; i < room; i++)
            put[i] = put_of(g, (posted + i) % NET_WINDOW, (posted + i) % NET_WINDOW, size);
        if (room && mk_link_put(g->l, put, (int)room) != (int)room)
            return -1;
        posted += room;
        if (mk_engine_progress(g->e) < 0 || g->status)
            return -1;
        if (!(spins & 0xffff) && mk_time_ns() - begin > NET_LIMIT_NS)
            return -1;
    }
    if (await(g, NET_WINDOW, 1))
        return -1;
    return (double)(mk_time_ns() - begin) * 1e-9;
}

static double engine_pingpong(void *impl, uint32_t size, uint32_t count)
{
    struct eng *g = impl;
    const uint64_t begin = mk_time_ns();
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t slot = i % NET_WINDOW;
        if (g->p->who == 1 && await(g, slot, 1))
            return -1;
        if (engine_one(g, slot, slot, size))
            return -1;
        if (g->p->who == 0 && await(g, slot, 1))
            return -1;
    }
    return (double)(mk_time_ns() - begin) * 1e-9;
}

/* ---- through ring and proxy thread ---- */

static int proxy_open(struct net_peer *p, void **out)
{
    return open_any(p, true, out);
}

/* Claims and publishes one command; yields while the ring is full. */
static int command(struct eng *g, uint32_t note, uint32_t slot, uint32_t size)
{
    const uint64_t end = mk_time_ns() + NET_LIMIT_NS;
    const struct mk_ring *ring = mk_proxy_ring(g->proxy);
    struct mk_cmd c;
    uint64_t at;
    while (!mk_ring_claim(ring, &at)) {
        if (mk_time_ns() > end)
            return 1;
        sched_yield();
    }
    mk_cmd_init(&c);
    mk_cmd_set_kind(&c, MK_CMD_WRITE);
    mk_cmd_set_comm(&c, g->id);
    mk_cmd_set_node(&c, (uint64_t)!g->p->who);
    mk_cmd_set_loff(&c, (uint64_t)slot * size);
    mk_cmd_set_roff(&c, (uint64_t)slot * size);
    mk_cmd_set_len(&c, size);
    mk_cmd_set_note(&c, note);
    mk_cmd_set_value(&c, ++g->used[note]);
    mk_cmd_set_use4(&c, g->used[note] & 15);
    mk_cmd_set_done(&c, note);
    mk_ring_publish(ring, at, &c);
    mk_proxy_kick(g->proxy);
    return 0;
}

/* Waits for a word to grow. stream: naps, so that the processors are left to the proxies; else as the CPU executor:
 * some yields, then asleep until the bell. */
static int wait_word(struct eng *g, const uint64_t *word, uint64_t value, bool stream)
{
    const struct timespec nap = {0, 20000};
    const uint64_t end = mk_time_ns() + NET_LIMIT_NS;
    for (uint32_t i = 0; mk_poll_sys(word) < value; i++) {
        const uint32_t seq = mk_bell_seq(&g->bell);
        if (__atomic_load_n(&g->status, __ATOMIC_ACQUIRE) || mk_time_ns() > end)
            return 1;
        if (stream)
            nanosleep(&nap, NULL);
        else if (i < YIELDS)
            sched_yield();
        else if (mk_poll_sys(word) < value)
            mk_bell_wait(&g->bell, seq, 1000000);
    }
    return 0;
}

/* All of ours are done: a peer that closes then breaks nothing. */
static int settle(struct eng *g)
{
    for (uint32_t note = 0; note < NOTES; note++)
        if (wait_word(g, &g->done_words[note], g->used[note], false))
            return 1;
    return 0;
}

static double proxy_stream(void *impl, uint32_t size, uint32_t count)
{
    struct eng *g = impl;
    if (g->p->who == 1) {
        for (uint32_t slot = 0; slot < NET_WINDOW; slot++) {
            g->seen[slot] += count / NET_WINDOW + (slot < count % NET_WINDOW);
            if (wait_word(g, &g->flags[slot], g->seen[slot], true))
                return -1;
        }
        return command(g, NET_WINDOW, 0, 8) || settle(g) ? -1 : 0;
    }
    const uint64_t begin = mk_time_ns();
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t slot = i % NET_WINDOW;
        if ((g->used[slot] >= LAPS && wait_word(g, &g->done_words[slot], g->used[slot] + 1 - LAPS, true)) ||
            command(g, slot, slot, size))
            return -1;
    }
    if (wait_word(g, &g->flags[NET_WINDOW], ++g->seen[NET_WINDOW], true))
        return -1;
    return (double)(mk_time_ns() - begin) * 1e-9;
}

static double proxy_pingpong(void *impl, uint32_t size, uint32_t count)
{
    struct eng *g = impl;
    const uint64_t begin = mk_time_ns();
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t slot = i % NET_WINDOW;
        const bool first = g->p->who == 0;
        if (first && command(g, slot, slot, size))
            return -1;
        if (wait_word(g, &g->flags[slot], ++g->seen[slot], false))
            return -1;
        if (!first && command(g, slot, slot, size))
            return -1;
    }
    const double s = (double)(mk_time_ns() - begin) * 1e-9;
    return settle(g) ? -1 : s;
}

void net_proxy_stats(void *impl, struct mk_proxy_stats *out)
{
    mk_proxy_get_stats(((struct eng *)impl)->proxy, out);
}

const struct net_impl net_engine = {
    .name = "engine",
    .open = engine_open,
    .close = eng_close,
    .stream = engine_stream,
    .pingpong = engine_pingpong,
};
const struct net_impl net_proxy = {
    .name = "proxy",
    .open = proxy_open,
    .close = eng_close,
    .stream = proxy_stream,
    .pingpong = proxy_pingpong,
};
