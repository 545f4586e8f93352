/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The command ring: many producers (blocks), one consumer (the proxy thread). Both halves stand here.
 *
 * Publish rule: a producer claims an index, stores words 0 to 4 relaxed, then word 5 with ONE release store (system
 * scope). Word 5 holds the lap, so a consumer that acquires word 5 and sees the lap it expects also sees words 0
 * to 4. Nothing is cleared; the lap of a slot's next use differs from its last.
 *
 *   word      written by            read by
 *   claim     producers (cas, gpu)  producers
 *   slot[]    producers (sys)       consumer
 *   tail      consumer (sys)        producers, through tail_seen
 *   tail_seen producers (gpu)       producers: a cached tail, so that the host is read only when it looks full
 *
 * The consumer frees a slot (advances tail) once it has copied the command out. */
#pragma once
#include "mk/dev/cmd.h"

struct mk_ring {
    struct mk_cmd *slot;
    uint64_t *claim;
    uint64_t *tail;
    uint64_t *tail_seen;
    uint32_t log2_slots;
};

MK_DEV uint64_t mk_ring_lap(const struct mk_ring *r, uint64_t index)
{
    return ((index >> r->log2_slots) + 1) & 0xffff;
}

/* Producer: claims the next index; false: the ring is full (back-pressure, nothing claimed). One lane calls it. */
MK_DEV bool mk_ring_claim(const struct mk_ring *r, uint64_t *index)
{
    const uint64_t slots = 1ull << r->log2_slots;
    for (;;) {
        const uint64_t at = mk_ld_acq_gpu_u64(r->claim);
        if (at - mk_ld_acq_gpu_u64(r->tail_seen) >= slots) {
            const uint64_t tail = mk_ld_acq_sys_u64(r->tail);
            mk_st_rel_gpu_u64(r->tail_seen, tail);
            if (at - tail >= slots && mk_ld_acq_gpu_u64(r->claim) == at)
                return false;
            if (at - tail >= slots)
                continue;
        }
        if (mk_cas_gpu_u64(r->claim, at, at + 1)) {
            *index = at;
            return true;
        }
    }
}

/* Producer: publishes the command at a claimed index. Everything this lane stored, or acquired from its block,
 * before is visible to who consumes it. One lane calls it. */
MK_DEV void mk_ring_publish(const struct mk_ring *r, uint64_t index, struct mk_cmd *c)
{
    struct mk_cmd *s = &r->slot[index & ((1ull << r->log2_slots) - 1)];
    mk_cmd_set_lap(c, mk_ring_lap(r, index));
    for (int i = 0; i < 5; i++)
        mk_st_rlx_sys_u64(&s->w[i], c->w[i]);
    mk_st_rel_sys_u64(&s->w[5], c->w[5]);
}

/* Consumer: copies out the command at `index` if it has been published. */
MK_DEV bool mk_ring_peek(const struct mk_ring *r, uint64_t index, struct mk_cmd *c)
{
    const struct mk_cmd *s = &r->slot[index & ((1ull << r->log2_slots) - 1)];
    c->w[5] = mk_ld_acq_sys_u64(&s->w[5]);
    if (mk_cmd_lap(c) != mk_ring_lap(r, index))
        return false;
    for (int i = 0; i < 5; i++)
        c->w[i] = mk_ld_rlx_sys_u64(&s->w[i]);
    return true;
}

/* Consumer: everything below `tail` may be overwritten. */
MK_DEV void mk_ring_free(const struct mk_ring *r, uint64_t tail)
{
    mk_st_rel_sys_u64(r->tail, tail);
}
