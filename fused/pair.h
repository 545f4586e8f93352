/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Inside of the pair recogniser: pair.c (collectives, groups, log, dispatch), pair_start.c (plain or overlapped),
 * pair_gemm.c (GEMMs, sites, streams), pair_comm.c (communicators: what is shared, identity, witness, order),
 * pair_check.c (MK_VERIFY), pair_map.c, pair_text.c. */
#pragma once
#include "mk/pair.h"

/* Mutations leave one rule out, and the tests must notice. A build with MK_PAIR_MUTABLE chooses by a variable, so that
 * one program can try them all. */
#ifdef MK_PAIR_MUTABLE
extern int mk_pair_mutant;
#define MUTANT(n) (mk_pair_mutant == (n))
#else
#define MUTANT(n) 0
#endif

/* From 64-bit keys to indices; open addressing. */
struct mk_pair_map {
    struct mk_pair_slot {
        uint64_t key;
        uint32_t value, used;
    } * slot;
    uint32_t size, n; /* size: 0 or a power of two */
};
bool mk_pair_map_get(const struct mk_pair_map *m, uint64_t key, uint32_t *value);
bool mk_pair_map_put(struct mk_pair_map *m, uint64_t key, uint32_t value); /* false: no memory */
void mk_pair_map_drop(struct mk_pair_map *m, uint64_t key);
uint64_t mk_pair_hash(uint64_t a, uint64_t b);
/* Makes room for one more of `n` things of `bytes` each; false: no memory. */
bool mk_pair_grow(void **array, uint32_t *cap, uint32_t n, size_t bytes);

/* The last GEMM of a stream, and what has been seen there since. */
struct mk_pair_last {
    bool any, done, ran_g, used, edge, copied, counted, blocking;
    uint8_t reason; /* why it is the original */
    uint8_t c_type, layout, a_type, b_type, epilogue;
    int32_t descriptor;
    uint64_t generation, capture, node;
    uint64_t enqueues, own; /* counters after its launch */
    uint64_t untold;        /* before it */
    uint64_t deps[MK_PAIR_DEPS];
    uint32_t ndeps;
    uint64_t b;
    int64_t n, k, ldc;
    uint64_t c, c_bytes, count;
    struct mk_pair_span {
        uint64_t at, bytes;
    } reads[4];            /* A, B, bias, the rest */
    uint32_t ordered, seq; /* it has waited for the seq-th operation of the communicator with this serial */
    uint32_t site;         /* + 1 */
};
struct mk_pair_stream {
    bool used;
    uint64_t ctx, stream, generation;
    struct mk_pair_last last;
    uint64_t copy_from, copy_to;
};

struct mk_pair_ctx {
    uint64_t id, own; /* own launches on streams that wait for each other through the default stream */
};

struct mk_pair_ref { /* a communicator; serials are never used twice */
    uint32_t index, serial;
};
struct mk_pair_site {
    uint64_t weight;
    int64_t n, k;
    uint8_t a_type, b_type, c_type, layout, epilogue;
    bool never, always, failed;
    uint8_t misses,
        rests; /* eager Gs in a row that nothing overlapped; calls since it is left to the original */
    struct mk_pair_ref comm[4]; /* those whose collective followed, the latest first */
};

/* What all ranks of a communicator share: mk_pair_shared sees nothing else. */
enum mk_pair_state { MK_PAIR_NEW, MK_PAIR_TIED, MK_PAIR_AGREED, MK_PAIR_ENDED_OFF };
struct mk_pair_agreed {
    enum mk_pair_state state;
    uint8_t reason; /* ENDED_OFF */
    uint64_t first; /* operation of the first switch; UINT64_MAX: none yet */
    struct mk_pair_config config;
    /* `next` from operation `number` on, `later` from `later_at` on; UINT64_MAX: no switch. A second one may come while the host is in the last call
     * before the first. */
    uint64_t word, next, number, later, later_at;
    uint64_t calls[MK_PAIR_CLASSES]; /* eager ones that could run K, by size class */
};
struct mk_pair_call {
    uint64_t count;
    uint8_t function, dtype, sum, captured;
};
/* OK: K, else NCCL and why. TIMED and SLOWER: it could be K, and counts in its class (mk_pair_timed). */
enum mk_pair_reason mk_pair_shared(const struct mk_pair_agreed *a, uint64_t number,
                                   const struct mk_pair_call *call);
uint64_t mk_pair_word(const struct mk_pair_agreed *a, uint64_t number);
/* mk_pair_shared said `reason` of a call: would its time count? */
bool mk_pair_in_round(const struct mk_pair_agreed *a, const struct mk_pair_call *call,
                      enum mk_pair_reason reason);
/* After mk_pair_shared said `reason` of a call that is made: counts it, and tells whether its time counts. */
void mk_pair_timed(struct mk_pair_agreed *a, uint64_t number, const struct mk_pair_call *call,
                   enum mk_pair_reason reason, struct mk_pair_out *out);

struct mk_pair_comm {
    bool used, graphs, asked_off;
    bool witnessed; /* W in a row, once */
    struct mk_pair_agreed shared;
    uint64_t handle, id;
    uint32_t rank, nranks, serial, streak, seq;
    int32_t error;
    uint8_t why;               /* of the error */
    uint64_t number;           /* operations begun */
    uint64_t hooked, profiled; /* of those that went to NCCL */
    struct {
        bool any, many;        /* many: of a group, on more than one stream */
        bool counted, strayed; /* strayed: a graph was launched since, on another stream */
        uint64_t ctx, stream, capture, node;
    } last;
};
struct mk_pair_id { /* what the profiler was told of */
    uint64_t id, profiled;
    uint32_t rank, nranks;
    struct mk_pair_ref comm;
    bool tied;
};

struct mk_pair_thread {
    bool used;
    uint64_t thread;
    uint32_t depth, ops, nheld, cap, taken, sole_seq;
    bool sole; /* the group's only member so far is of `sole_comm`, at `sole_at` */
    struct mk_pair_ref sole_comm, calling;
    bool in_call; /* in an ungrouped call of `calling`, which is not tied yet */
    struct mk_pair_at sole_at;
    struct mk_pair_held {
        struct mk_pair_coll coll;
        uint64_t number;
    } * held;
};

struct mk_pair {
    struct mk_pair_options options;
    bool uncounted; /* PROOF_ENDS */
    struct mk_pair_stream *streams;
    uint32_t nstreams;
    struct mk_pair_map stream_map;
    struct mk_pair_ctx *ctxs;
    uint32_t nctxs, ctx_cap;
    struct mk_pair_site *sites;
    uint32_t nsites, site_cap;
    bool comm_ended; /* since the sites were last cleaned */
    struct mk_pair_map site_map;
    struct mk_pair_comm *comms;
    uint32_t ncomms, comm_cap, serial;
    uint32_t open; /* communicators that are not off */
    struct mk_pair_map comm_map;
    struct mk_pair_id *ids;
    uint32_t nids, id_cap;
    struct mk_pair_map id_map;
    struct mk_pair_thread *threads;
    uint32_t nthreads, thread_cap;
    struct mk_pair_map log_map;
    bool refuted[MK_PAIR_CHECKS]; /* check_map's values */
    struct mk_pair_map check_map;
    uint64_t pairs; /* captured */
    struct mk_pair_counts counts;
};

/* pair_gemm.c */
struct mk_pair_stream *mk_pair_stream_find(struct mk_pair *p, const struct mk_pair_at *at);
int mk_pair_gemm_step(struct mk_pair *p, const struct mk_pair_event *e, struct mk_pair_out *out);
int mk_pair_gemm_done(struct mk_pair *p, const struct mk_pair_event *e);
int mk_pair_stream_event(struct mk_pair *p, const struct mk_pair_event *e);
/* A pair was seen whose GEMM was the original. */
void mk_pair_learn(struct mk_pair *p, struct mk_pair_comm *c, const struct mk_pair_last *g, bool whole);
/* Own launches so far that could stand in the way of one on `blocking` streams; counts one more if `launch`. */
uint64_t mk_pair_own(struct mk_pair *p, uint64_t ctx, bool blocking, bool launch);
/* An eager G of the stream is over: K overlapped it, or not. */
void mk_pair_followed(struct mk_pair *p, const struct mk_pair_last *g, bool overlapped);
bool mk_pair_meet(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes);

/* pair_comm.c */
struct mk_pair_comm *mk_pair_comm_find(const struct mk_pair *p, uint64_t handle);
struct mk_pair_comm *mk_pair_comm_of(const struct mk_pair *p, struct mk_pair_ref ref);
struct mk_pair_ref mk_pair_ref_of(const struct mk_pair *p, const struct mk_pair_comm *c);
int mk_pair_comm_event(struct mk_pair *p, const struct mk_pair_event *e, struct mk_pair_out *out);
void mk_pair_fail(struct mk_pair_comm *c, int error, enum mk_pair_reason why, struct mk_pair_out *out);
/* What an operation at `at` has to wait for, as things stand. */
uint8_t mk_pair_order_of(const struct mk_pair *p, const struct mk_pair_comm *c, const struct mk_pair_at *at,
                         uint64_t *node);
/* A graph is launched there, and may hold operations of whatever communicator was captured. */
void mk_pair_replayed(struct mk_pair *p, const struct mk_pair_at *at);
/* It is issued there; `many`: with others, on several streams perhaps. */
void mk_pair_issued(struct mk_pair_comm *c, const struct mk_pair_at *at, bool many, struct mk_pair_out *out);
/* A hooked collective is about to begin, ungrouped. */
void mk_pair_witness(struct mk_pair_comm *c, struct mk_pair_out *out);

/* pair_start.c. OK: overlapped; out's proof, order, reduce and descriptor are set. Otherwise why K is plain. `out->order`
 * is what it would have to wait for. */
enum mk_pair_reason mk_pair_how(struct mk_pair *p, struct mk_pair_comm *c, const struct mk_pair_coll *e,
                                const struct mk_pair_at *at, struct mk_pair_out *out);

/* pair_check.c. Gives the site of a pair that would overlap its number in out->check; false: it was refuted. */
bool mk_pair_check(struct mk_pair *p, const struct mk_pair_coll *e, const struct mk_pair_last *g,
                   struct mk_pair_out *out);
int mk_pair_refuted(struct mk_pair *p, uint64_t check);

/* pair.c */
struct mk_pair_thread *mk_pair_thread_find(struct mk_pair *p, uint64_t thread);
