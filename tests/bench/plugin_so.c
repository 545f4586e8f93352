/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* mkbench plugin: the patterns over a net plugin, called as NCCL's progress thread calls it. */
#include "mk/err.h"
#include "plugin/cli/cli.h"
#include "tests/bench/plugin.h"
#include "tests/plugin/caller.h"
#include <limits.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct so {
    struct net_peer *p;
    struct caller c;
    int merge, dev; /* how many devices are made one; the one that is used */
    char name[128];
    void *send, *recv;       /* comms */
    void *send_mr, *recv_mr; /* the whole memory */
};

static char warning[400];

static void logger(int level, unsigned long flags, const char *file, int line, const char *fmt, ...)
{
    va_list ap;
    (void)flags, (void)file, (void)line;
    if (level != MK_NCCL_LOG_WARN)
        return;
    va_start(ap, fmt);
    vsnprintf(warning, sizeof(warning), fmt, ap);
    va_end(ap);
}

const char *plug_so_name(void *impl)
{
    return ((struct so *)impl)->name;
}

static int bad(const struct so *s, const char *call, int code)
{
    return mk_fail(MK_ERR_NET, "CLI", "%s: %s gave %d%s%s", s->name, call, code, warning[0] ? ": " : "",
                   warning);
}

static int meet(struct so *s)
{
    uint8_t mine[256], theirs[256];
    void *listen = NULL;
    unsigned spins = 0;
    const uint64_t begin = mk_time_ns();
    memset(mine, 0, sizeof(mine));
    int ret = caller_listen(&s->c, s->dev, mine, &listen);
    if (ret)
        return bad(s, "listen", ret);
    if (net_swap(s->p, mine, theirs, sizeof(mine)))
        return mk_fail(MK_ERR_PEER, "CLI", "the other process is gone");
    while (!s->send || !s->recv) {
        if (!s->send && (ret = caller_connect(&s->c, s->dev, theirs, &s->send)))
            return bad(s, "connect", ret);
        if (!s->recv && (ret = caller_accept(&s->c, listen, &s->recv)))
            return bad(s, "accept", ret);
        if (plug_late(&spins, begin))
            return bad(s, "connect and accept", MK_NCCL_IN_PROGRESS);
    }
    ret = caller_close_listen(&s->c, listen);
    return ret ? bad(s, "closeListen", ret) : 0;
}

static void so_close(void *impl)
{
    struct so *s = impl;
    if (s->send_mr)
        caller_dereg(&s->c, s->send, s->send_mr);
    if (s->recv_mr)
        caller_dereg(&s->c, s->recv, s->recv_mr);
    if (s->send)
        caller_close_send(&s->c, s->send);
    if (s->recv)
        caller_close_recv(&s->c, s->recv);
    caller_finalize(&s->c);
    free(s);
}

static int set_up(struct so *s)
{
    struct caller_props props;
    int ndev = 0, ret = caller_init(&s->c, logger);
    if (ret)
        return bad(s, "init", ret);
    ret = caller_devices(&s->c, &ndev);
    if (ret || ndev < 1)
        return bad(s, "devices", ret);
    static const int devs[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    if (s->merge > 1 && (ret = caller_merge(&s->c, s->merge, devs, &s->dev)))
        return bad(s, "makeVDevice", ret);
    ret = caller_properties(&s->c, s->dev, 0, &props);
    if (ret)
        return bad(s, "getProperties", ret);
    snprintf(s->name, sizeof(s->name), "%s v%d, device %s", *(const char *const *)s->c.t.any, s->c.version,
             props.name);
    ret = meet(s);
    if (ret)
        return ret;
    ret = caller_reg(&s->c, s->send, s->p->mem.addr, s->p->mem.size, MK_NCCL_PTR_HOST, &s->send_mr);
    if (!ret)
        ret = caller_reg(&s->c, s->recv, s->p->mem.addr, s->p->mem.size, MK_NCCL_PTR_HOST, &s->recv_mr);
    return ret ? bad(s, "regMr", ret) : 0;
}

static int so_open(struct net_peer *p, const char *path, int version, void **out)
{
    const char *why = "", *colon = strrchr(path, ':');
    const int merge = colon ? atoi(colon + 1) : 0;
    char file[PATH_MAX];
    snprintf(file, sizeof(file), "%.*s", (int)(merge ? colon - path : (ptrdiff_t)strlen(path)), path);
    void *lib = caller_load(file, &why);
    struct so *s = calloc(1, sizeof(*s));
    if (!lib || !s) {
        free(s);
        return mk_fail(MK_ERR_INVALID, "CLI", "%s: %s", path, lib ? "no memory" : why);
    }
    s->p = p;
    s->merge = merge;
    snprintf(s->name, sizeof(s->name), "%.100s", path);
    for (int v = version ? version : CALLER_NEWEST; !s->c.t.any && v >= CALLER_OLDEST; v--)
        if (!caller_table(lib, v, &s->c) && version)
            break;
    if (!s->c.t.any) {
        free(s);
        return mk_fail(MK_ERR_INVALID, "CLI", "%s has no net table%s", path,
                       version ? " of that version" : "");
    }
    const int ret = set_up(s);
    if (ret)
        so_close(s);
    else
        *out = s;
    return ret;
}

/* ---- the patterns ---- */

static int post_recv(struct so *s, size_t off, size_t size, void **request)
{
    void *data[1] = {(uint8_t *)s->p->mem.addr + off}, *mh[1] = {s->recv_mr};
    int tag = 0;
    *request = NULL;
    return caller_irecv(&s->c, s->recv, 1, data, &size, &tag, mh, request);
}

static int post_send(struct so *s, size_t off, size_t size, void **request)
{
    return caller_isend(&s->c, s->send, (uint8_t *)s->p->mem.addr + off, size, 0, s->send_mr, request);
}

/* The requests of a stream in slots of a ring; done in any order, but each slot waits its turn, as in NCCL. */
static int flow(struct so *s, bool sends, size_t size, unsigned count, unsigned depth, unsigned posted,
                void **slot)
{
    unsigned done = 0, spins = 0;
    const uint64_t begin = mk_time_ns();
    while (done < count) {
        while (posted < count && posted - done < depth) {
            const unsigned i = posted % depth;
            const int ret =
                sends ? post_send(s, i * size, size, &slot[i]) : post_recv(s, i * size, size, &slot[i]);
            if (ret)
                return bad(s, sends ? "isend" : "irecv", ret);
            if (!slot[i])
                break;
            posted++;
        }
        int ok = 0, bytes = 0;
        if (done < posted) {
            const int ret = caller_test(&s->c, slot[done % depth], &ok, &bytes);
            if (ret || (ok && !sends && (size_t)bytes != size))
                return bad(s, "test", ret ? ret : MK_NCCL_INTERNAL_ERROR);
        }
        done += ok != 0;
        if (plug_late(&spins, begin))
            return bad(s, "test, for a minute,", MK_NCCL_IN_PROGRESS);
    }
    return 0;
}

static double so_stream(void *impl, size_t size, unsigned count, unsigned depth)
{
    struct so *s = impl;
    void *slot[PLUG_DEPTH] = {NULL}, *last = NULL;
    const size_t after = (size_t)PLUG_DEPTH * PLUG_MAX; /* for the answer */
    unsigned posted = 0;
    if (s->p->who == 1) {
        for (; posted < depth && posted < count; posted++)
            if (post_recv(s, posted * size, size, &slot[posted]) || !slot[posted])
                break;
        if (net_step(s->p) || flow(s, false, size, count, depth, posted, slot))
            return -1;
        return flow(s, true, 8, 1, 1, 0, &last) ? -1 : 0;
    }
    int ret = post_recv(s, after, 8, &last);
    if (ret || net_step(s->p))
        return ret ? bad(s, "irecv", ret) : -1;
    const uint64_t begin = mk_time_ns();
    if (flow(s, true, size, count, depth, 0, slot) || flow(s, false, 8, 1, 1, last != NULL, &last))
        return -1;
    return (double)(mk_time_ns() - begin) * 1e-9;
}

/* Tests both until the receive is done, and the send too. */
static int both(struct so *s, void *rx, void *tx, uint64_t begin)
{
    unsigned spins = 0;
    int ok, size, ret;
    while (rx || tx) {
        void **which = rx ? &rx : &tx;
        if ((ret = caller_test(&s->c, *which, &ok, &size)))
            return bad(s, "test", ret);
        if (ok)
            *which = NULL;
        else if (rx && tx && !(ret = caller_test(&s->c, tx, &ok, &size)) && ok)
            tx = NULL;
        if (plug_late(&spins, begin))
            return bad(s, "test, for a minute,", MK_NCCL_IN_PROGRESS);
    }
    return 0;
}

static int until(struct so *s, bool sends, size_t off, size_t size, void **request, uint64_t begin)
{
    unsigned spins = 0;
    *request = NULL;
    while (!*request) {
        const int ret = sends ? post_send(s, off, size, request) : post_recv(s, off, size, request);
        if (ret)
            return bad(s, sends ? "isend" : "irecv", ret);
        if (plug_late(&spins, begin))
            return bad(s, "isend or irecv, for a minute,", MK_NCCL_IN_PROGRESS);
    }
    return 0;
}

static double so_pingpong(void *impl, size_t size, unsigned count)
{
    struct so *s = impl;
    void *rx = NULL, *tx = NULL;
    const size_t in = (size_t)PLUG_MAX * 4;
    uint64_t begin = mk_time_ns();
    if (until(s, false, in, size, &rx, begin) || net_step(s->p))
        return -1;
    begin = mk_time_ns();
    for (unsigned i = 0; i < count; i++) {
        const bool more = i + 1 < count;
        if (s->p->who == 0 && until(s, true, 0, size, &tx, begin))
            return -1;
        if (both(s, rx, s->p->who == 0 ? tx : NULL, begin))
            return -1;
        /* the next receive is there before what makes the peer send */
        if (more && until(s, false, in, size, &rx, begin))
            return -1;
        if (s->p->who == 1 && (until(s, true, 0, size, &tx, begin) || both(s, NULL, tx, begin)))
            return -1;
    }
    return (double)(mk_time_ns() - begin) * 1e-9;
}

const struct plug_impl plug_so = {
    .open = so_open,
    .close = so_close,
    .stream = so_stream,
    .pingpong = so_pingpong,
};
