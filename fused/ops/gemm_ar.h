/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* GEMM+AllReduce: what one launch is made of. The tasks, their inputs and outputs; claim and finish are in
 * gemm_ar_run.h. Runs on blocks (CPU: threads), all of which poll all roles and never wait inside a task.
 *
 * A chunk's way, seen from its local owner g (o is another local rank, e another node):
 *   TILE     COMPUTE  tile of the own partial product into C; into the slot too that PUSH, or SUM of one rank a node, would
 *                     copy it to, if that is granted by then: a piece all of whose tiles are there is not copied
 *   PUSH     INTRA    o's chunk: C -> partial-in at o                                    (G > 1)
 *   SUM      SEND     node sum of the partials -> sum-out, command to the NIC -> sum-in at e  (D > 1)
 *   REDUCE   RECV     D = 1: sum of the partials; D = 2: own node sum + sum-in; D > 2, chunks of this node: own node
 *                     sum + sum-ins; -> C, broadcast-in at every o, and (D > 2) result-out -> result-in at every e
 *   RESULT   RECV     D > 2, chunks of node e: result-in -> C, broadcast-in at every o
 *   BCAST    INTRA    o's chunk: broadcast-in -> C
 *   HDR_OUT, HDR_IN   launch headers {epoch, signature} to and from each direct peer; nothing that a peer has sent is
 *                     read before its header matched. PUSH, and SUM of one rank a node, read nothing of a peer and
 *                     begin before: into slots that it has given back in launches before this one, which it does not
 *                     look at before this rank's header matched there
 *
 * A task on a chunk (PUSH to BCAST) is one for each of its pieces (sched/chunk.h); the block that ends the last one of
 * them tells what is to be told of the chunk.
 *
 * Order and deadlock. Every queue (task kind, peer) hands out its chunks in chunk order, a task is claimed only when
 * its inputs are here and all its output slots are granted, nothing is held while waiting. So the first chunk in
 * the order that is unfinished anywhere always has its slots granted: everything before it in each of its rings is
 * consumed, and what is behind it cannot take its slots, since slots go by position. tests/sched/model.c runs this
 * under random schedules.
 *
 * Counters: state words {tag, count} (flag.h) start anew with each epoch; positions advance when the last block
 * leaves. */
#pragma once
#include "mk/dev/flag.h"
#include "mk/dev/ring.h"
#include "ops/gemm_ar_ctl.h"
#include "ops/pair_tiles.h"
#include "sched/chunk.h"
#include "sched/ll.h"

enum mk_ar_kind {
    MK_AR_TILE = 0,
    MK_AR_PUSH = 1,
    MK_AR_SUM = 2,
    MK_AR_REDUCE = 3,
    MK_AR_RESULT = 4,
    MK_AR_BCAST = 5,
    MK_AR_HDR_OUT_LOCAL = 6,
    MK_AR_HDR_OUT_NODE = 7,
    MK_AR_HDR_IN_LOCAL = 8,
    MK_AR_HDR_IN_NODE = 9,
    MK_AR_LATENCY = 10, /* the latency path's sum: no queue, ops/gemm_ar_ll_do.h */
    MK_AR_KINDS = 11
};
#define MK_AR_CHUNK_KINDS 5 /* PUSH to BCAST */

/* State of a communicator on its device: read and written by the blocks of this rank only (gpu scope). */
struct mk_ar_state {
    uint64_t epoch;                            /* of the next launch; the last block to leave advances it */
    uint64_t pos_in[MK_CLASSES][MK_MAX_PEERS]; /* by peer number (not index): base positions of this launch */
    uint64_t pos_out[MK_CLASSES][MK_MAX_PEERS];
    uint64_t release[MK_CLASSES]
                    [MK_MAX_PEERS]; /* in-rings: {done bits 32, low half of the consumed position 32} */
    uint64_t queue[MK_AR_KINDS][MK_MAX_PEERS]; /* {tag, next item} */
    uint64_t headers;                          /* {tag, how many peers' headers matched} */
    uint64_t sum_ready[MK_RING_MAX_SLOTS];     /* D = 2: position + 1 of the node sum in this out slot */
    uint64_t sum_used[MK_RING_MAX_SLOTS];      /* D = 2: position + 1 that REDUCE has read from it */
    uint64_t pieces[MK_AR_CHUNK_KINDS][MK_MAX_PEERS]
                   [MK_RING_MAX_SLOTS]; /* {low half of a chunk's position, its pieces that are done} */
    uint64_t tickets, helpers, left;    /* {tag, count} */
    uint64_t ll_pos;                    /* of the next launch on the latency path, as pos_in */
    uint64_t progress_ns;               /* when a task last finished (relaxed) */
    uint64_t forward;                   /* GPU: {ns of the last pass 63, a pass is under way 1} */
    struct mk_ar_ctl control[MK_AR_CTL_CLASSES]; /* by shape class, as the host numbers them */
};

/* A queue of communication (gemm_ar_run.h numbers them). */
#define MK_AR_QUEUES 48
struct mk_ar_queue {
    uint32_t items; /* mk_ar_items */
    int16_t kind, peer;
};

/* One launch: the same on all blocks, read only. */
struct mk_ar {
    struct mk_rings rings;
    struct mk_grid grid;
    uint64_t signature; /* of what all ranks must agree on */
    int64_t k;
    const void *a, *b;
    void *c;
    int64_t lda, ldb, ldc;
    const void *bias;
    int32_t layout, dtype, act;
    int32_t wire_fp32;                   /* node sums travel as fp32 */
    int32_t skip_compute;                /* MK_TILES_HERE: they are there already (T_comm); MK_TILES_COME */
    int32_t skip_comm;                   /* tiles alone (T_compute) */
    int32_t latency;                     /* this launch takes the latency path */
    int32_t blocks, budget, max_helpers; /* B; blocks that prefer communication; R */
    uint64_t
        patience_ns;  /* a block that prefers communication takes a tile when nothing was ready for so long */
    uint32_t comm_id; /* in commands */
    uint32_t control; /* 1 + number of the controller's state; 0: the budget stands */
    struct mk_ar_state *state;
    const uint64_t *
        pos; /* the launch's positions in the block's own memory (mk_ar_pos_at), or NULL: those of the state */
    uint64_t *tile_flag; /* [tiles]: {tag, parts written}; who writes: COMPUTE (gpu) */
    uint32_t tile_parts; /* of a tile: writers that publish on their own (warpgroups); CPU: 1 */
    uint32_t
        place_rows; /* a slot as rows of a panel's width: so many; 0: tiles go to C alone (mk_ar_place_rows) */
    /* Of the controller: mk_ctl_conf.start; what is known of a state's costs when it gets another number; so many
     * communicate whatever its target (0: as it says). */
    uint32_t control_start, control_number, control_cost[2], control_pin;
    uint64_t *taught;         /* [MK_AR_TAUGHT] for the host (ops/gemm_ar_ctl.h), or NULL */
    uint64_t *abort_word;     /* not 0: all blocks leave */
    uint8_t *fixed, *staging; /* this rank's memories, as its local peers see them */
    /* As the NIC sees them: the same on the CPU, and where the NIC reaches GPU memory; else pinned host memory. */
    uint8_t *net_fixed, *net_staging;
    uint8_t
        *net_words; /* where blocks read flags, credits and completions of node rings: net_fixed, or where an
                                 * idle block brings them (cuda/gemm_ar_block.cuh) */
    uint8_t *const *peer_fixed; /* of the local ranks, [local]; own entry unused */
    uint8_t *const *peer_staging;
    struct mk_ring ring; /* to the proxy */
    /* GPU: worked out by the host (mk_ar_list_queues), since it takes a block thousands of cycles; those behind the table
     * are worked out when they are looked at. */
    uint32_t queues, header_queues; /* of communication; headers are the first of them */
    struct mk_ar_queue queue[MK_AR_QUEUES];
    void *host; /* machine side: bells, scratch */
};

/* In tile_flag, with each part: the part is in its slot too. Readers of one tile's parts compare the rest. */
#define MK_TILE_PLACED (1u << 24)
#define MK_AR_PLACES 8 /* rings that tiles are placed in, at most */
/* Where a tile is in its slot, in a ring seen as one matrix whose rows are those of a panel. */
struct mk_ar_place {
    int32_t kind, peer; /* of the queue that would copy it: PUSH or SUM */
    int32_t ring;       /* number of its ring: mk_peer_index */
    uint32_t row, col;
};

struct mk_task {
    int32_t kind;
    int32_t peer;           /* local rank or node of the queue; 0 where there is one queue */
    uint32_t number;        /* within the queue */
    uint32_t items;         /* of the queue (mk_ar_items) */
    uint32_t item;          /* the number, tasks of a chunk being one */
    uint16_t piece, pieces; /* of the chunk, the first of so many */
    uint32_t chunk;         /* or tile */
    uint32_t owned;         /* number among the chunks of the chunk's local owner */
    uint64_t seen;          /* the queue's word when the task was looked at */
};

/* The payload part of a task on a chunk; the tile side does it in one function (mk_tile_op), so that the machine code
 * of sums and copies exists once. Reads either one slot (from), or C (from NULL, sum 0), or sums. */
enum mk_op_sum { MK_OP_COPY = 0, MK_OP_NODE_SUM = 1, MK_OP_TOTAL = 2 };
struct mk_op {
    struct mk_rect r;    /* the piece */
    uint32_t skip;       /* elements of the chunk before it: so far into every slot, which are the chunk's */
    int32_t sum;         /* enum mk_op_sum; TOTAL applies the epilogue */
    int32_t wire;        /* `to` takes the wire type */
    int32_t to_c;        /* the result goes to C too */
    int32_t to_peers;    /* and to the broadcast slots of all local peers */
    int32_t to_result;   /* and to the result-out slots of all other nodes */
    const uint8_t *from; /* contiguous slot, dtype of C */
    uint8_t *to;         /* contiguous slot, or NULL */
};

/* What a block carries through one launch. */
struct mk_ar_block {
    uint64_t epoch;
    uint32_t tag;
    uint32_t ticket;
    int32_t prefers_comm;
    int32_t helping;
    int32_t headed;         /* it has seen all headers match */
    uint32_t tiles;         /* tiles that this block has claimed */
    uint64_t idle_since_ns; /* 0: its last look found something to do */
#if MK_PAIRED
    uint32_t tile_tag; /* of the words at tile_flag */
#endif
#if MK_CONTROL
    uint64_t mark_ns; /* up to when its time is accounted for */
#endif
    struct mk_task task;
};

MK_DEV uint32_t mk_elem_bytes(int32_t dtype)
{
    return dtype == 0 ? 4 : 2; /* MK_FLOAT32; bfloat16, float16 */
}
MK_DEV bool mk_ar_alone(const struct mk_ar *ar)
{
    return ar->rings.topo.nnodes == 1 && ar->rings.topo.nlocal == 1;
}

MK_DEV bool mk_ar_on_chunks(int kind)
{
    return kind >= MK_AR_PUSH && kind <= MK_AR_BCAST;
}

/* How many tiles, chunks or headers the queue (kind, peer) has in this launch. Positions of rings advance by these numbers
 * too. */
MK_DEV uint32_t mk_ar_things(const struct mk_ar *ar, int kind, int32_t peer)
{
    const struct mk_topo *t = &ar->rings.topo;
    const uint32_t chunks = mk_chunks(&ar->grid);
    const uint32_t mine = mk_owned(t, chunks, t->local);
    if (kind == MK_AR_TILE)
        return ar->skip_compute ? 0 : mk_tiles(&ar->grid);
    if (ar->skip_comm)
        return 0;
    switch (kind) {
    case MK_AR_PUSH:
    case MK_AR_BCAST:
        return mk_owned(t, chunks, peer);
    case MK_AR_SUM:
        return t->nnodes == 2 ? mine : mk_owned_by_node(t, mine, peer);
    case MK_AR_REDUCE:
        if (mk_ar_alone(ar))
            return ar->bias || ar->act ? mine : 0;
        return t->nnodes > 2 ? mk_owned_by_node(t, mine, t->node) : mine;
    case MK_AR_RESULT:
        return t->nnodes > 2 ? mk_owned_by_node(t, mine, peer) : 0;
    case MK_AR_LATENCY:
        return 0;
    default:
        return 1; /* headers */
    }
}
/* How many tasks it hands out. */
MK_DEV uint32_t mk_ar_items(const struct mk_ar *ar, int kind, int32_t peer)
{
    const struct mk_grid *g = &ar->grid;
    const uint32_t n = mk_ar_things(ar, kind, peer);
    if (!mk_ar_on_chunks(kind))
        return n;
    const uint32_t edges = (uint32_t)(g->edge_first + g->edge_last), fine = n < edges ? n : edges;
    return (fine << g->pieces_log2) + ((n - fine) << (g->pieces_log2 - g->span_log2));
}
/* Which peers the queues of a kind have: 'l' the other local ranks, 'n' the other nodes, '1' a single queue. */
MK_DEV char mk_ar_fan(int kind)
{
    switch (kind) {
    case MK_AR_PUSH:
    case MK_AR_BCAST:
    case MK_AR_HDR_OUT_LOCAL:
    case MK_AR_HDR_IN_LOCAL:
        return 'l';
    case MK_AR_SUM:
    case MK_AR_RESULT:
    case MK_AR_HDR_OUT_NODE:
    case MK_AR_HDR_IN_NODE:
        return 'n';
    default:
        return '1';
    }
}

/* Task `number` of a queue of `items`. Node owner matters for D > 2 only: item j of node owner e is owned chunk e + D*j. */
MK_DEV void mk_ar_locate(const struct mk_ar *ar, int kind, int32_t peer, uint32_t number, uint32_t items,
                         struct mk_task *task)
{
    const struct mk_topo *t = &ar->rings.topo;
    const struct mk_grid *g = &ar->grid;
    uint32_t log2 = 0, span = 0, before = 0,
             from = 0; /* tasks of a chunk; chunks and tasks before this stretch */
    if (mk_ar_on_chunks(kind)) {
        const uint32_t fine = (uint32_t)g->pieces_log2, coarse = fine - (uint32_t)g->span_log2;
        const uint32_t first = (uint32_t)g->edge_first << fine, last = (uint32_t)g->edge_last << fine;
        log2 = fine;
        if (items > first + last && number >= first) {
            before = (uint32_t)g->edge_first;
            from = first;
            if (number < items - last) {
                span = (uint32_t)g->span_log2;
                log2 = coarse;
            } else {
                before += (items - last - first) >> coarse;
                from = items - last;
            }
        }
    }
    const uint32_t item = before + ((number - from) >> log2);
    task->kind = kind;
    task->peer = peer;
    task->number = number;
    task->items = items;
    task->item = item;
    task->piece = (uint16_t)((number - from - ((item - before) << log2)) << span);
    task->pieces = (uint16_t)(1u << span);
    task->owned = item;
    task->chunk = item;
    if (kind == MK_AR_TILE)
        task->chunk = mk_tile_in_order(&ar->grid, item);
    if (kind == MK_AR_TILE || kind >= MK_AR_HDR_OUT_LOCAL)
        return;
    if (t->nnodes > 2 && (kind == MK_AR_SUM || kind == MK_AR_RESULT))
        task->owned = (uint32_t)peer + (uint32_t)t->nnodes * item;
    else if (t->nnodes > 2 && kind == MK_AR_REDUCE)
        task->owned = (uint32_t)t->node + (uint32_t)t->nnodes * item;
    task->chunk = mk_owned_chunk(t, kind == MK_AR_PUSH || kind == MK_AR_BCAST ? peer : t->local, task->owned);
}

/* ---- positions: base of the launch + number within the launch ---- */

MK_DEV uint32_t mk_ar_pos_count(const struct mk_topo *t)
{
    return 6 * (uint32_t)(t->nlocal + t->nnodes - 2);
}
MK_DEV uint32_t mk_ar_pos_at(const struct mk_topo *t, int cls, int32_t peer, int out)
{
    const uint32_t l = (uint32_t)t->nlocal - 1, n = (uint32_t)t->nnodes - 1;
    const uint32_t first = mk_class_is_local(cls) ? (uint32_t)cls * l : 3 * l + (uint32_t)(cls - 3) * n;
    return 2 * (first + (uint32_t)mk_peer_index(mk_class_self(t, cls), peer)) + (uint32_t)out;
}
/* The other way round: whose position is at `at`. */
MK_DEV void mk_ar_pos_whose(const struct mk_topo *t, uint32_t at, int *cls, int32_t *peer, int *out)
{
    const uint32_t l = (uint32_t)t->nlocal - 1, n = (uint32_t)t->nnodes - 1;
    const bool local = at / 2 < 3 * l;
    const uint32_t i = local ? at / 2 : at / 2 - 3 * l, per = local ? l : n;
    *cls = (int)(i / per) + (local ? 0 : 3);
    *peer = mk_peer_of_index(mk_class_self(t, *cls), (int32_t)(i % per));
    *out = (int)(at & 1);
}
MK_DEV uint64_t mk_ar_pos_in(const struct mk_ar *ar, int cls, int32_t peer, uint32_t n)
{
    return (ar->pos ? ar->pos[mk_ar_pos_at(&ar->rings.topo, cls, peer, 0)]
                    : mk_ld_launch_u64(&ar->state->pos_in[cls][peer])) +
           n;
}
MK_DEV uint64_t mk_ar_pos_out(const struct mk_ar *ar, int cls, int32_t peer, uint32_t n)
{
    return (ar->pos ? ar->pos[mk_ar_pos_at(&ar->rings.topo, cls, peer, 1)]
                    : mk_ld_launch_u64(&ar->state->pos_out[cls][peer])) +
           n;
}
MK_DEV uint64_t *mk_ar_note(uint8_t *fixed, const struct mk_rings *r, uint32_t note)
{
    return (uint64_t *)(fixed + r->notes_off) + note;
}
/* This rank's memory with the headers, and that with the flags, credits and completions of a class. */
MK_DEV uint8_t *mk_ar_fixed(const struct mk_ar *ar, int cls)
{
    return mk_class_is_local(cls) ? ar->fixed : ar->net_fixed;
}
MK_DEV uint8_t *mk_ar_words(const struct mk_ar *ar, int cls)
{
    return mk_class_is_local(cls) ? ar->fixed : ar->net_words;
}

/* ---- what a task waits for: words of a value, or at least of a value ---- */

enum mk_need_what {
    MK_NEED_NONE = 0,
    MK_NEED_ARRIVED = 1, /* position p of in-ring (cls, peer) is here */
    MK_NEED_CREDIT = 2,  /* position p of out-ring (cls, peer) is granted by the peer */
    MK_NEED_DONE = 3,    /* and the NIC is done with the slot's use before */
    MK_NEED_SUM = 4,     /* D = 2: the node sum is in its out slot */
    MK_NEED_SUM_USED = 5 /* D = 2: REDUCE has read that slot's use before */
};
struct mk_need {
    int32_t what, cls, peer;
    uint32_t n; /* position within the launch */
};

MK_DEV bool mk_ar_holds(const struct mk_ar *ar, const struct mk_need *need)
{
    const struct mk_rings *r = &ar->rings;
    const int cls = need->cls;
    const int32_t self = mk_class_self(&r->topo, cls);
    const uint32_t s = r->slots[cls];
    const bool arrived = need->what == MK_NEED_ARRIVED;
    const uint64_t p =
        arrived ? mk_ar_pos_in(ar, cls, need->peer, need->n) : mk_ar_pos_out(ar, cls, need->peer, need->n);
    const uint64_t *word;
    uint64_t more = 0;
    switch (need->what) {
    case MK_NEED_ARRIVED:
    case MK_NEED_CREDIT:
        word = mk_ar_note(mk_ar_words(ar, cls), r,
                          arrived ? mk_flag_note(r, cls, self, need->peer, p)
                                  : mk_credit_note(r, cls, self, need->peer));
        break;
    case MK_NEED_DONE:
        word = (const uint64_t *)(ar->net_words + r->done_off) + mk_done_index(r, cls, need->peer, p);
#if MK_MUTATE == 4
        more = p + 1;
#else
        more = s;
#endif
        break;
    case MK_NEED_SUM:
        word = &ar->state->sum_ready[mk_slot_of(s, p)];
        break;
    default:
        word = &ar->state->sum_used[mk_slot_of(s, p)];
        more = s;
        break;
    }
    const uint64_t have = mk_peek_sys_u64(word) + more;
    return arrived || need->what == MK_NEED_SUM ? have == p + 1 : have >= p + 1;
}
/* Has position p of in-ring (cls, peer) arrived here? May p of the out-ring be written? p: base of the launch + n. */
MK_DEV bool mk_ar_arrived(const struct mk_ar *ar, int cls, int32_t peer, uint32_t n)
{
    const struct mk_need need = {MK_NEED_ARRIVED, cls, peer, n};
    return mk_ar_holds(ar, &need);
}
MK_DEV bool mk_ar_granted(const struct mk_ar *ar, int cls, int32_t peer, uint32_t n)
{
    const struct mk_need credit = {MK_NEED_CREDIT, cls, peer, n}, done = {MK_NEED_DONE, cls, peer, n};
    return mk_ar_holds(ar, &credit) && (mk_class_is_local(cls) || mk_ar_holds(ar, &done));
}

/* ---- where the bytes of a task are ---- */

/* This rank's in slot of (cls, peer) at position p. */
MK_DEV uint8_t *mk_ar_in(const struct mk_ar *ar, int cls, int32_t peer, uint64_t p)
{
    uint8_t *staging = mk_class_is_local(cls) ? ar->staging : ar->net_staging;
    return staging + mk_in_slot(&ar->rings, cls, mk_class_self(&ar->rings.topo, cls), peer, p);
}
MK_DEV uint8_t *mk_ar_out(const struct mk_ar *ar, int cls, int32_t peer, uint64_t p)
{
    return ar->net_staging + mk_out_slot(&ar->rings, cls, peer, p);
}
/* Local peer's in slot that this rank fills. */
MK_DEV uint8_t *mk_ar_at_local(const struct mk_ar *ar, int cls, int32_t peer, uint64_t p)
{
    return ar->peer_staging[peer] + mk_in_slot(&ar->rings, cls, peer, ar->rings.topo.local, p);
}
/* Partial of local rank r for owned chunk number i; NULL: this rank's own, which is in C. */
MK_DEV const uint8_t *mk_ar_partial(const struct mk_ar *ar, int32_t r, uint32_t i)
{
    return r == ar->rings.topo.local
               ? (const uint8_t *)0
               : mk_ar_in(ar, MK_CLASS_PARTIAL, r, mk_ar_pos_in(ar, MK_CLASS_PARTIAL, r, i));
}
/* Node sum of node e for a REDUCE item, type W; NULL: this node's own, not stored (D > 2). */
MK_DEV const uint8_t *mk_ar_node_sum(const struct mk_ar *ar, int32_t e, uint32_t item)
{
    const struct mk_topo *t = &ar->rings.topo;
    if (e != t->node)
        return mk_ar_in(ar, MK_CLASS_SUM, e, mk_ar_pos_in(ar, MK_CLASS_SUM, e, item));
    if (t->nnodes == 2)
        return mk_ar_out(ar, MK_CLASS_SUM, 1 - e, mk_ar_pos_out(ar, MK_CLASS_SUM, 1 - e, item));
    return (const uint8_t *)0;
}
