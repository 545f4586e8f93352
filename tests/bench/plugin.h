/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* mkbench plugin: two processes (struct net_peer, net.h) in step, one sender (who 0), one receiver (who 1). Each
 * implementation runs two patterns over the same host memory, on one thread a process:
 *
 *   stream    `count` messages, `depth` in flight on either side, each slot its own memory; from the first post to
 *             the receiver's answer that all have come
 *   pingpong  one message there, one back
 *
 * Both return seconds, measured at the sender; negative: failed, said so. */
#pragma once
#include "tests/bench/net.h"

#define PLUG_DEPTH 8u
#define PLUG_MAX (16u << 20)

struct plug_impl {
    int (*open)(struct net_peer *p, const char *path, int version, void **out);
    void (*close)(void *impl);
    double (*stream)(void *impl, size_t size, unsigned count, unsigned depth);
    double (*pingpong)(void *impl, size_t size, unsigned count);
};
/* A net plugin; the least that a program must do with remote writes, and with tagged messages (path: unused). */
extern const struct plug_impl plug_so, plug_writes, plug_tagged;

const char *plug_so_name(void *impl); /* "mKernel v12, device net-lo" */
const char *plug_raw_provider(void);

/* Every so many rounds of a polling loop: is the time over? */
static inline bool plug_late(unsigned *spins, uint64_t begin)
{
    return !(++*spins & 0xffff) && mk_time_ns() - begin > NET_LIMIT_NS;
}
