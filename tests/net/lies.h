/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* A plugin, opened and called as NCCL does, and a peer that lies: process 0 is the victim and knows nothing but the ABI;
 * process 1 speaks the wire format of net/p2p_wire.h by the message layer's own parts, and changes what it likes.
 *
 *   lies.c         lies over a connection: mailbox, keys, sizes, notes
 *   lies_meet.c    lies while meeting: handles, hello, reply
 *   lies_help.c    the victim, and a go-between that changes bytes of a TCP connection */
#pragma once
#include "tests/net/p2p_help.h"
#include "tests/plugin/caller.h"

enum { VICTIM_MEMORY = 1 << 20, VICTIM_CANARY = 1 << 16, VICTIM_SEND = 400000 };

struct victim {
    struct caller c;
    void *listen, *send, *recv;
    uint8_t *all; /* canaries, what is registered, canaries */
    void *send_mr, *recv_mr;
};

extern const char *lies_plugin, *lies_transport;

/* Warnings of the plugin in this process since the last look, all of them. */
const char *victim_warnings(void);
void victim_forget(void);

int victim_open(struct half *h, struct victim *v);
/* A handle of its own, without a swap. */
int victim_listen(struct victim *v, uint8_t handle[MK_P2P_HANDLE]);
/* Swaps handles with the liar's half_join, connects, registers. */
int victim_join(struct half *h, struct victim *v);
/* Until it is there or fails; TIMEOUT (-1) after 20 s. */
int victim_connect(struct victim *v, const uint8_t handle[MK_P2P_HANDLE]);
int victim_accept(struct victim *v);
/* Posts and tests until it is done or fails: NCCL's code, -1 after 20 s. The receive lies `at` bytes into the memory. */
int victim_sends(struct victim *v, size_t size, int tag);
int victim_receives(struct victim *v, size_t at, size_t size, int tag, int *got);
/* Nothing outside [at, at + size) of the memory was written. */
int victim_whole(const struct victim *v, size_t at, size_t size);
/* Nothing outside of the memory was written; closes all. */
int victim_close(struct victim *v);

/* Between who connects to `handle`, which is changed to lead here, and its listener: `n` bytes at `at` of what the
 * connecting (to: true) or the accepting side says become `value`, the rest goes through; cut: what is said ends there. */
struct between {
    bool to, cut;
    size_t at, n;
    int value;
    int listener, end; /* own */
    pthread_t thread;
    uint16_t port;
};
int between_start(struct between *b, uint8_t handle[MK_P2P_HANDLE]);
void between_stop(struct between *b);

/* A connection and a message each way without lies, on the same devices: the victim's still works. v: NULL in the liar. */
int lies_honest(struct half *h, struct victim *v);

/* lies_meet.c: cases */
void lies_hello(void **state);
void lies_reply(void **state);
void lies_handles(void **state);
