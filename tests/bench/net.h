/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* mkbench net: two processes run the same program in step, one as sender (who 0), one as receiver (who 1). Each
 * implementation of struct net_impl runs two patterns over the same memory:
 *
 *   stream    `count` writes with notification, at most NET_WINDOW in flight, submitted in batches; ends when the
 *             receiver has seen all and said so
 *   pingpong  one write there, one back
 *
 * Both are driven by the calling thread, but for the proxy's. They return seconds, measured at the sender; a
 * negative value: failed, said so. */
#pragma once
#include "mk/net.h"
#include "mk/param.h"

#define NET_WINDOW 16u
#define NET_MAX (4u << 20)
#define NET_FLAGS 1024u /* bytes of flags of one engine */

struct net_peer {
    int who;
    int fd; /* stream socket to the other process */
    struct mk_settings s;
    struct mk_shm mem; /* NET_WINDOW * NET_MAX of payload, then NET_FLAGS for each engine, up to 4 */
    unsigned engines;  /* opened so far */
};

struct net_impl {
    const char *name;
    int (*open)(struct net_peer *p, void **out);
    void (*close)(void *impl);
    double (*stream)(void *impl, uint32_t size, uint32_t count);
    double (*pingpong)(void *impl, uint32_t size, uint32_t count);
};

extern const struct net_impl net_raw, net_engine, net_proxy;

/* Sends n bytes, receives the other's n bytes; 0 or 1. */
int net_swap(const struct net_peer *p, const void *mine, void *theirs, size_t n);
int net_step(const struct net_peer *p);
/* The libfabric provider that the raw loop found; "" before. */
const char *net_raw_provider(void);
void net_proxy_stats(void *impl, struct mk_proxy_stats *out);

/* Has this pattern run too long? A peer that died must not hang the other. */
#define NET_LIMIT_NS 60000000000ull
