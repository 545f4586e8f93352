/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Staging rings of a communicator: which exist, where their slots, flags, credits and completions lie.
 *
 * A ring carries chunks of one class from one rank to one direct peer: a local rank (shared memory, the sender
 * stores into the receiver's memory) or the rail peer on another node (the NIC writes from the sender's out slot
 * to the receiver's in slot). Every rank computes the same layout from the same facts, so addresses in a peer's
 * memory are index math. Peers are numbered without oneself: mk_peer_index.
 *
 * Position p of a ring: count of its uses, forever growing. Slot p mod S holds it; its arrival flag becomes p + 1;
 * the sender may write position p when credit > p, the credit being the receiver's consumed position + S.
 *
 * Two memories per rank: the fixed one (window 0: bell, notes, shadow, headers, completions; payload never goes
 * there) and the staging one (window 1). A note is a word that a peer sets: arrival flags of in-rings, then
 * credits of out-rings.
 *
 *   word                      written by                       read by
 *   note: arrival flag        sender's block, NIC or proxy     own blocks (acquire, sys)
 *   note: credit              receiver's block, NIC or proxy   own blocks (acquire, sys)
 *   completion (node rings)   own proxy                        own blocks (acquire, sys) */
#pragma once
#include "mk/dev/dev.h"

enum mk_class {
    MK_CLASS_PARTIAL = 0,      /* local: partial chunk to the slice owner */
    MK_CLASS_BCAST = 1,        /* local: result from the slice owner */
    MK_CLASS_HEADER_LOCAL = 2, /* local: launch header */
    MK_CLASS_SUM = 3,          /* node: node sum to the reducing rail peer */
    MK_CLASS_RESULT = 4,       /* node: result to the rail peers (more than two nodes) */
    MK_CLASS_HEADER_NODE = 5,  /* node: launch header */
    MK_CLASSES = 6
};

/* Release words hold 32 done bits: no ring has more slots. */
#define MK_RING_MAX_SLOTS 32
#define MK_HEADER_SLOTS 2
#define MK_HEADER_BYTES 16
#define MK_MIN_SLOT_BYTES 16384
#define MK_MAX_SLOT_BYTES (1u << 30) /* lengths in commands have 32 bits, rows and columns of a chunk 31 */
#define MK_MAX_PEERS 256

struct mk_topo {
    int32_t nnodes, nlocal; /* D, G */
    int32_t node, local;    /* this rank: d, g */
};

struct mk_rings {
    struct mk_topo topo;
    uint64_t slot_bytes;
    uint32_t slots[MK_CLASSES];     /* S of the class's rings, a power of two; 0: the class does not exist */
    uint64_t in_off[MK_CLASSES];    /* staging: in slots, by peer index */
    uint64_t out_off[MK_CLASSES];   /* staging: out slots of node classes, by peer index */
    uint32_t flag_note[MK_CLASSES]; /* first note of the arrival flags */
    uint32_t credit_note[MK_CLASSES];
    uint32_t done_index[MK_CLASSES]; /* node classes: first completion word */
    uint32_t notes;
    uint32_t dones;
    uint64_t notes_off, shadow_off, done_off, header_in_off[2], header_out_off, bell_off,
        gone_off; /* fixed memory */
    uint64_t ll_off,
        ll_slot; /* latency path: its region in the staging memory, bytes of a slot; 0: there is none */
    uint64_t fixed_bytes;
    uint64_t staging_bytes;
};

MK_DEV bool mk_class_is_local(int cls)
{
    return cls <= MK_CLASS_HEADER_LOCAL;
}
/* Number of other ranks that a class connects to. */
MK_DEV int32_t mk_class_peers(const struct mk_topo *t, int cls)
{
    return (mk_class_is_local(cls) ? t->nlocal : t->nnodes) - 1;
}
MK_DEV int32_t mk_class_self(const struct mk_topo *t, int cls)
{
    return mk_class_is_local(cls) ? t->local : t->node;
}
/* Peers numbered 0 .. n-2 as seen by `self`. */
MK_DEV int32_t mk_peer_index(int32_t self, int32_t peer)
{
    return peer < self ? peer : peer - 1;
}
MK_DEV int32_t mk_peer_of_index(int32_t self, int32_t index)
{
    return index < self ? index : index + 1;
}

/* Position -> slot, and how often the ring went round: S is a power of two. */
MK_DEV uint32_t mk_slot_of(uint32_t slots, uint64_t position)
{
    return (uint32_t)position & (slots - 1);
}
MK_DEV uint64_t mk_lap_of(uint32_t slots, uint64_t position)
{
    return position >> (slots == 32 ? 5 : slots == 16 ? 4 : slots == 8 ? 3 : slots == 4 ? 2 : 1);
}

/* Notes as numbered at their owner `at` (a local rank or node number of the class), for its peer `from`. */
MK_DEV uint32_t mk_flag_note(const struct mk_rings *r, int cls, int32_t at, int32_t from, uint64_t position)
{
    const uint32_t s = r->slots[cls];
    return r->flag_note[cls] + (uint32_t)mk_peer_index(at, from) * s + mk_slot_of(s, position);
}
MK_DEV uint32_t mk_credit_note(const struct mk_rings *r, int cls, int32_t at, int32_t from)
{
    return r->credit_note[cls] + (uint32_t)mk_peer_index(at, from);
}
MK_DEV uint32_t mk_done_index(const struct mk_rings *r, int cls, int32_t peer, uint64_t position)
{
    const uint32_t s = r->slots[cls];
    return r->done_index[cls] + (uint32_t)mk_peer_index(r->topo.node, peer) * s + mk_slot_of(s, position);
}
/* Staging offset of the in slot at `at` that `from` fills; headers: offset in the fixed memory. */
MK_DEV uint64_t mk_in_slot(const struct mk_rings *r, int cls, int32_t at, int32_t from, uint64_t position)
{
    const uint32_t s = r->slots[cls];
    const uint64_t n = (uint64_t)mk_peer_index(at, from) * s + mk_slot_of(s, position);
    if (cls == MK_CLASS_HEADER_LOCAL)
        return r->header_in_off[0] + n * MK_HEADER_BYTES;
    if (cls == MK_CLASS_HEADER_NODE)
        return r->header_in_off[1] + n * MK_HEADER_BYTES;
    return r->in_off[cls] + n * r->slot_bytes;
}
/* Staging offset of this rank's out slot towards node `peer`; headers: in the fixed memory. */
MK_DEV uint64_t mk_out_slot(const struct mk_rings *r, int cls, int32_t peer, uint64_t position)
{
    const uint32_t s = r->slots[cls];
    const uint64_t n = (uint64_t)mk_peer_index(r->topo.node, peer) * s + mk_slot_of(s, position);
    if (cls == MK_CLASS_HEADER_NODE)
        return r->header_out_off + n * MK_HEADER_BYTES;
    return r->out_off[cls] + n * r->slot_bytes;
}
/* The value of a flag word before its first use, for rings that start at position `start`: one lap less than what
 * its first use will store. */
MK_DEV uint64_t mk_flag_initial(uint32_t slots, uint32_t slot, uint64_t start)
{
    const uint64_t first = start + (slot + slots - start % slots) % slots;
    return first + 1 - slots;
}
