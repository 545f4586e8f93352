/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* A transport inside one process, for tests of the engine: every write can be held, released in any order, failed,
 * lost or counted by the test. Threads: one lock around everything. */
#pragma once
#include "net/transport.h"

extern const struct mk_net_ops fake_ops;

/* What the next fake_ops.open gives, and how all its connections behave. Reset by fake_reset. */
struct fake_world {
    bool ordered;       /* caps.ordered */
    unsigned imm_bits;  /* 32 */
    unsigned max_batch; /* 16 */
    unsigned depth;     /* 256 */
    bool delivery;      /* caps.delivery_complete */
    bool hold;          /* writes stay until fake_release */
    int room;           /* work requests taken by one post; -1: all */
    bool lose;          /* writes are done, their local completion never comes */
    int fail;           /* status of local completions, 0 */
    bool sleepless;     /* wait returns at once */
    int post_error;     /* returned by post, 0 */
    int poll_error;     /* returned by poll, 0 */
    /* seen */
    int posts;     /* calls of post that took something */
    int sizes[64]; /* work requests taken by the first of them */
    int inlines, imms, wides, deliveries, closes, waits, wakes;
    uint64_t last_wait_ns;
};
extern struct fake_world fake;
void fake_reset(void);

/* Writes held on the connection of l, oldest first. */
int fake_held(struct mk_conn *c);
/* Does the i-th of them: payload, remote completion, local completion. */
void fake_release(struct mk_conn *c, int i);
void fake_release_all(struct mk_conn *c);
