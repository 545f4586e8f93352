/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Completion adapters: how an arrival flag comes to name a payload that is complete, never a request that was
 * merely submitted.
 *
 *   flag       two writes on one connection: the payload, then 8 inline bytes into the peer's flag word. Right only
 *              where writes become visible in the order posted.
 *   immediate  one write with 32 bits of immediate: notification index (28) and the low 4 bits of its use count.
 *              The receiver's progress adds step * (difference of use counts mod 16) to the flag. Order does not
 *              matter: the completion of a write with immediate means its own payload is there. A credit is 8 bytes
 *              into a shadow word, and the immediate makes the receiver take the larger of the two.
 *   store      a plain release store by the sender: mk/dev/flag.h
 *
 * Who writes a flag word: flag: the NIC; immediate: the thread that drives progress, alone. Readers acquire. */
#pragma once
#include "net/engine.h"

struct mk_adapter {
    const char *name;
    int max_wr; /* work requests of one put, at most */
    /* Fills the work requests of one put, returns how many; of one credit: one. id: see engine.h. */
    int (*build)(const struct mk_link *l, const struct mk_put *p, uint64_t id, struct mk_wr *wr);
    void (*build_credit)(const struct mk_link *l, const struct mk_credit *c, uint32_t note, struct mk_wr *wr);
    /* An immediate arrived. */
    void (*remote)(struct mk_engine *e, uint32_t imm);
    /* Nothing arrived through the completion queue: look whether flags changed, for the bells. */
    void (*look)(struct mk_engine *e);
};

extern const struct mk_adapter mk_adapter_flag;
extern const struct mk_adapter mk_adapter_immediate;

/* Rings the bells of tables whose flags changed. */
void mk_notes_ring(struct mk_engine *e);
