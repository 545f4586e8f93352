/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What two processes of the loop transport share: the address, the key, and the inbox segment.
 *
 * Each device owns one memfd segment: a bell, and one inbox ring for each of its connections. The ring of a
 * connection has one writer (the peer's device) and one reader (the owner); immediates go through it. Payload does
 * not: the writer maps the registered memory itself.
 *
 *   word    written by                read by
 *   bell    peers, own wake           owner, asleep in wait
 *   state   owner: FREE -> OPEN; peer: OPEN -> TAKEN; then each side marks its own leaving, the last one FREE
 *   tail    peer (release: the entries below it, and the payloads they name, are there)    owner (acquire)
 *   head    owner (release: the entries below it are read and may be overwritten)          peer (acquire)
 *
 * state carries a generation, so that an address that was kept too long never takes a later connection's ring. A
 * ring whose peer died is not used again. */
#pragma once
#include "mk/shm.h"
#include <assert.h>
#include <stdint.h>

#define MK_LOOP_MAGIC 0x6d6b4c31u /* "mkL1" */
#define MK_LOOP_CONNS 2048u
#define MK_LOOP_RING 512u /* immediates */

enum mk_loop_ring_state {
    MK_LOOP_FREE = 0,
    MK_LOOP_OPEN = 1,    /* the owner opened the connection, nobody connected */
    MK_LOOP_TAKEN = 2,   /* both sides use it */
    MK_LOOP_RX_LEFT = 3, /* the owner closed; what the peer still writes is thrown away */
    MK_LOOP_TX_LEFT = 4  /* the peer closed; the owner reads what is left */
};

struct mk_loop_ring {
    uint64_t tail;
    uint64_t pad0[7];
    uint64_t head;
    uint64_t pad1[7];
    uint64_t state; /* generation << 8 | enum mk_loop_ring_state */
    uint64_t pad2[7];
    uint32_t imm[MK_LOOP_RING];
};
static_assert(sizeof(struct mk_loop_ring) == 192 + 4 * MK_LOOP_RING, "three lines, then the entries");

struct mk_loop_segment {
    uint32_t magic;
    uint32_t pad0[15];
    struct mk_bell bell;
    uint32_t pad1[14];
    struct mk_loop_ring ring[MK_LOOP_CONNS];
};
static_assert(sizeof(struct mk_bell) == 8, "the bell has a line of its own");

/* In struct mk_net_addr. */
struct mk_loop_addr {
    uint32_t magic;
    uint32_t ring;
    uint64_t generation;
    uint64_t host; /* mk_host_id */
    struct mk_shm_ref segment;
};

/* In struct mk_net_key. */
enum mk_loop_kind {
    MK_LOOP_PRIVATE = 0, /* no memfd: it can be a source only */
    MK_LOOP_SHARED = 1,  /* in a memfd */
    MK_LOOP_GPU = 2      /* a window of mknic */
};
struct mk_loop_key {
    uint32_t magic;
    uint32_t kind;
    uint64_t offset; /* of the registered range in the memfd */
    uint64_t len;
    union {
        struct mk_shm_ref memory;
        struct {
            uint64_t nic, token;
            uint32_t window, pad;
        } gpu;
    } u;
};

/* Writer: false, nothing written: the ring is full, or its words make no sense. */
static inline int mk_loop_ring_push(struct mk_loop_ring *r, uint32_t imm)
{
    const uint64_t tail = __atomic_load_n(&r->tail, __ATOMIC_RELAXED);
    const uint64_t head = __atomic_load_n(&r->head, __ATOMIC_ACQUIRE);
    if (tail - head >= MK_LOOP_RING)
        return 0;
    __atomic_store_n(&r->imm[tail % MK_LOOP_RING], imm, __ATOMIC_RELAXED);
    __atomic_store_n(&r->tail, tail + 1, __ATOMIC_RELEASE);
    return 1;
}

/* Reader: false: nothing there. */
static inline int mk_loop_ring_pop(struct mk_loop_ring *r, uint32_t *imm)
{
    const uint64_t head = __atomic_load_n(&r->head, __ATOMIC_RELAXED);
    const uint64_t tail = __atomic_load_n(&r->tail, __ATOMIC_ACQUIRE);
    if (tail == head || tail - head > MK_LOOP_RING)
        return 0;
    *imm = __atomic_load_n(&r->imm[head % MK_LOOP_RING], __ATOMIC_RELAXED);
    __atomic_store_n(&r->head, head + 1, __ATOMIC_RELEASE);
    return 1;
}
