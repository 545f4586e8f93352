/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Fuzz target of the bootstrap: the parsers of hello, answer, frames, verdicts and ids, and the root without its
 * sockets, fed by several connections. Input: a program of steps for the root, one byte of operation each, with the
 * bytes that the operation takes. */
#include "mk/log.h"
#include "net/boot_core.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { PEERS = 8, NRANKS = 4, KEY = 42, TOKEN = 7 };

struct input {
    const uint8_t *p;
    size_t n;
};

static uint8_t take(struct input *in)
{
    if (!in->n)
        return 0;
    in->n--;
    return *in->p++;
}

static void silent(enum mk_log_level level, const char *subsys, const char *text)
{
    (void)level;
    (void)subsys;
    (void)text;
}

/* What the parsers accept has to be within the limits that the rest relies on. */
static void parsers(const uint8_t *data, size_t size)
{
    struct mk_boot_hello h;
    struct mk_boot_answer a;
    struct mk_boot_frame f;
    struct mk_boot_met m;
    static struct mk_boot_verdict v;
    mk_unique_id_t id;
    struct mk_boot_id w;
    memset(&a, 0, sizeof(a));
    mk_boot_parse_hello(data, size, &h);
    if (mk_boot_parse_answer(data, size, &a) == MK_BOOT_PARSED && a.length > MK_BOOT_MAX_TEXT)
        abort();
    for (int to_root = 0; to_root < 2; to_root++)
        if (mk_boot_parse_frame(data, size, to_root, NRANKS, &f) == MK_BOOT_PARSED &&
            f.length > NRANKS * MK_BOOT_MAX_BYTES)
            abort();
    if (mk_boot_parse_met(data, size, &m) == MK_BOOT_PARSED && m.root_rank >= (int32_t)m.nranks)
        abort();
    if (mk_boot_parse_verdict(data, size, &v) == MK_BOOT_PARSED &&
        (v.code >= 0 || strlen(v.text) >= sizeof(v.text)))
        abort();
    memset(&id, 0, sizeof(id));
    memcpy(&id, data, size < sizeof(id) ? size : sizeof(id));
    mk_boot_parse_id(&id, &w);
}

struct world {
    struct mk_boot_core *core;
    struct mk_boot_peer *peer[PEERS];
    uint64_t now;
};

/* The driver closes: nobody may hold a peer that is swept. */
static void sweep(struct world *w)
{
    for (int i = 0; i < PEERS; i++)
        if (w->peer[i] && w->peer[i]->state == MK_BOOT_PEER_CLOSED)
            w->peer[i] = NULL;
    mk_boot_core_sweep(w->core, NULL); /* fd is -1 everywhere */
}

/* What goes out has to be what a client's parsers take. */
static void drain(struct mk_boot_peer *p, size_t most)
{
    const uint8_t *buf;
    size_t n;
    while (most && (n = mk_boot_peer_out(p, &buf)) > 0) {
        n = n < most ? n : most;
        most -= n;
        mk_boot_peer_sent(p, n);
    }
}

static void good_hello(struct world *w, struct mk_boot_peer *p, uint8_t rank)
{
    struct mk_boot_hello h;
    uint8_t buf[sizeof(h)];
    memset(&h, 0, sizeof(h));
    h.version = MK_BOOT_VERSION;
    h.key = KEY;
    h.token = rank & 16 ? TOKEN : 100 + (rank & 3);
    h.nranks = NRANKS;
    h.rank = rank % NRANKS;
    h.wait_ms = rank & 32 ? 1 : 100000;
    mk_boot_put_hello(&h, buf);
    mk_boot_core_feed(w->core, p, buf, sizeof(buf), w->now);
}

static void good_frame(struct world *w, struct mk_boot_peer *p, struct input *in)
{
    const struct mk_boot_frame f = {.type = take(in), .length = take(in), .seq = take(in)};
    uint8_t buf[sizeof(f)];
    mk_boot_put_frame(&f, buf);
    mk_boot_core_feed(w->core, p, buf, sizeof(buf), w->now);
}

static void step(struct world *w, struct input *in)
{
    const uint8_t op = take(in);
    struct mk_boot_peer **p = &w->peer[op >> 4 & (PEERS - 1)];
    if (!*p)
        *p = mk_boot_core_accept(w->core, "fuzz", w->now);
    if (!*p)
        return;
    switch (op & 7) {
    case 0:
        good_hello(w, *p, take(in));
        break;
    case 1:
        good_frame(w, *p, in);
        break;
    case 2: {
        size_t n = take(in);
        n = n < in->n ? n : in->n;
        mk_boot_core_feed(w->core, *p, in->p, n, w->now);
        in->p += n;
        in->n -= n;
        break;
    }
    case 3:
        mk_boot_core_lost(w->core, *p, "fuzz", w->now);
        break;
    case 4:
        w->now += (uint64_t)take(in) * 50000000u;
        mk_boot_core_tick(w->core, w->now);
        break;
    case 5:
        drain(*p, take(in));
        break;
    case 6:
        mk_boot_core_farewell(w->core);
        break;
    default:
        mk_boot_core_drop_oldest(w->core, "fuzz");
        mk_boot_core_deadline(w->core);
        mk_boot_core_done(w->core, w->now);
    }
    sweep(w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mk_boot_core_config c;
    struct world w;
    struct input in = {data, size};
    mk_log_set_sink(silent);
    parsers(data, size);
    memset(&w, 0, sizeof(w));
    memset(&c, 0, sizeof(c));
    w.now = 1000000000u;
    c.key = KEY;
    c.token = TOKEN;
    c.nranks = take(&in) & 1 ? NRANKS : 0;
    c.hello_ns = c.wait_ns = c.linger_ns = 5000000000u;
    if (mk_boot_core_new(&c, w.now, &w.core))
        return 0;
    while (in.n)
        step(&w, &in);
    mk_boot_core_free(w.core);
    return 0;
}
