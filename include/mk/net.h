/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The network below kernels and plugin.
 *
 *   engine   one opened transport (net/transport.h) with its links; passive: everything happens inside
 *            mk_engine_progress, called by one thread at a time: the proxy thread for kernels, NCCL's progress
 *            thread for the net plugin, the caller in mkbench
 *   link     one connection to one peer, both directions
 *   put      a one-sided write of a payload followed by a notification: the peer's flag word becomes `value`, and
 *            not before the payload is complete there (net/adapter.c: flag, immediate, store)
 *   notes    the table of flag words that peers may set on this side
 *   proxy    a thread that takes commands from a ring (mk/dev/ring.h) and makes puts of them in batches
 *
 * Nothing here blocks, but for close functions that free local resources. MK_ERR_AGAIN is back-pressure.
 * Threads: an engine, its links and puts belong to the thread that drives progress; set-up functions (open, reg,
 * connect, import) may run on another thread only before the proxy started or under mk_proxy_lock. */
#pragma once
#include "mk/dev/ring.h"
#include "mk/shm.h"
#include "mkernel.h"
#include <stdbool.h>

struct mk_settings;
struct mk_engine;
struct mk_link;
struct mk_mr;
struct mk_rmem;
struct mk_notes;
struct mk_proxy;

/* What a transport can do; filled at open, never changes. */
struct mk_caps {
    char transport[16];     /* "ofi", "loop", "verbs" */
    char provider[64];      /* libfabric provider or device, as found */
    char adapter[16];       /* "flag", "immediate": chosen by the engine from `ordered` and the settings */
    bool ordered;           /* writes on one link become visible in the order posted, flag writes included */
    bool target_progress;   /* the target's memory changes although the target never calls us */
    bool delivery_complete; /* local completion can mean: visible at the target */
    bool
        shm_only; /* peers can write only memory that lies in a memfd (mk_engine_reg with shm), or on a GPU */
    /* what is under way goes on after a deregistration: memory must be quiet before it */
    bool late_writes;
    bool gpu_memory;         /* mk_engine_reg takes pointers to GPU memory (without shm) */
    bool dmabuf;             /* mk_engine_reg_dmabuf is there */
    bool head;               /* a write may take its first bytes from other memory than the rest */
    unsigned immediate_bits; /* 0 or >= 32 */
    unsigned max_batch;      /* work requests the transport takes in one post */
    unsigned depth;          /* work requests in flight on a link */
    size_t inline_size;      /* bytes copied at post */
    size_t max_message;
};

/* Exchanged by value through the bootstrap. */
struct mk_net_addr {
    uint8_t bytes[256]; /* one end of one link */
};
struct mk_net_key {
    uint8_t bytes[64]; /* one registered memory */
};

int mk_engine_open(const struct mk_settings *s, struct mk_engine **out);
/* Settings that open the n-th device (from 0: what s itself opens) of the transport that s names, in place of the first.
 * UNSUPPORTED: there are fewer. */
int mk_engine_nth(const struct mk_settings *s, int nth, struct mk_settings *out);
void mk_engine_close(struct mk_engine *e); /* closes what is left: links, memory */
const struct mk_caps *mk_engine_caps(const struct mk_engine *e);

/* Runs the transport once: posts what waits (pacing allows it), handles completions, sets flags, calls `done`
 * functions. Returns the number of events, or the error that ended the whole engine. */
int mk_engine_progress(struct mk_engine *e);
/* Sleeps until something may have happened, at most `ns` nanoseconds (less if a paced or delayed post comes due
 * earlier). mk_engine_wake, from any thread, ends it. */
void mk_engine_wait(struct mk_engine *e, uint64_t ns);
void mk_engine_wake(struct mk_engine *e);

/* Registers memory for both directions. shm: the memfd the range lies in (the loop transport needs it: peers map
 * it), else NULL. GPU memory, where caps say so: shm is NULL, the pointer says it. Deregister before it is freed. */
int mk_engine_reg(struct mk_engine *e, void *addr, size_t len, const struct mk_shm *shm, struct mk_mr **out);
void mk_mr_key(const struct mk_mr *mr, struct mk_net_key *out);
void mk_mr_dereg(struct mk_mr *mr); /* NULL allowed */
/* The same in two parts, for an engine that others drive meanwhile under a lock: export, without the lock, asks the CUDA
 * driver, which may wait for kernels, and they for this engine; *out NULL: there is nothing to ask. reg_export, with the
 * lock, consumes it. */
struct mk_export;
int mk_engine_export(struct mk_engine *e, void *addr, size_t len, struct mk_export **out);
int mk_engine_reg_export(struct mk_engine *e, struct mk_export *x, struct mk_mr **out);
/* Memory of a GPU that another part of the process has exported as a dma-buf; the descriptor stays the caller's. */
int mk_engine_reg_dmabuf(struct mk_engine *e, int fd, uint64_t offset, void *addr, size_t len,
                         struct mk_mr **out);
bool mk_mr_on_gpu(const struct mk_mr *mr);
/* What peers have written there, as far as we know of it, is visible to the GPU afterwards. */
int mk_mr_flush(struct mk_mr *mr);
/* Writes host memory into registered GPU memory of our own; returns when it is there, in some microseconds. */
int mk_mr_fill(struct mk_mr *mr, uint64_t off, const void *from, uint32_t len);

/* A link: open on both sides, exchange the addresses, connect on both sides until it no longer says AGAIN (the
 * caller drives mk_engine_progress between). peer_name appears in messages ("rank 3"). close never waits. */
int mk_link_open(struct mk_engine *e, const char *peer_name, struct mk_net_addr *mine, struct mk_link **out);
int mk_link_connect(struct mk_link *l, const struct mk_net_addr *peer);
void mk_link_close(struct mk_link *l);
/* The last means against a peer that does not end its writes (mk_caps.late_writes): all links end that go to its address
 * (where there is a connection at all), and afterwards nothing is written any more. False: this network has no such means,
 * and nothing was done. */
bool mk_link_cut(struct mk_link *l);
int mk_link_import(struct mk_link *l, const struct mk_net_key *key,
                   struct mk_rmem **out); /* freed with the link */
/* The peer has taken this memory back: nothing is put there any more. Freed once no put is under way. */
void mk_link_forget(struct mk_link *l, struct mk_rmem *rmem);

/* The flag words that peers set here: `n` words at flags[], and n shadow words (credits travel through them). Both lie in
 * memory that is registered and exported to the peers. step[i]: by how much flags[i] grows per use (ring slots:
 * the ring's size; credits: 1). Flags start at the value before the first use: slot k of a ring of S at k + 1 - S
 * (mod 2^64), its first use count is 1; where step is 1 the use count is the value itself. The words are written
 * by this engine's progress (adapter immediate) or by the NIC (adapter flag; then bells are rung by a progress
 * that finds nothing else to do and sees a changed word). bell, if not NULL, is rung after a change.
 * *base: number of this table's first index in the engine's space, for the peers' mk_link_set_notes. */
struct mk_notes_desc {
    uint64_t *flags;
    uint64_t *shadow;
    const uint32_t *step;
    uint32_t n;
    struct mk_bell *bell;
};
int mk_notes_open(struct mk_engine *e, const struct mk_notes_desc *desc, uint32_t *base,
                  struct mk_notes **out);
void mk_notes_close(struct mk_notes *n);

/* Tells the link where the peer's notes are: its base, its memory, and the offsets of flags and shadow in it. */
struct mk_peer_notes {
    uint32_t base;
    uint32_t n;
    struct mk_rmem *mem;
    uint64_t flags_off;
    uint64_t shadow_off;
};
int mk_link_set_notes(struct mk_link *l, const struct mk_peer_notes *notes);

enum mk_put_flags {
    MK_PUT_CREDIT = 1,  /* notification only; may be replaced by a higher value of the same index */
    MK_PUT_NO_NOTE = 2, /* payload only */
    MK_PUT_DELIVERY = 4 /* done means: the payload is visible at the peer (else: the source may be reused) */
};
struct mk_put {
    struct mk_mr *mr; /* source; NULL with len 0 */
    uint64_t local_off;
    uint32_t len;
    uint32_t head_len;  /* caps.head: so many bytes of `head` go before the payload, in the same write */
    struct mk_mr *head; /* NULL with head_len 0 */
    uint64_t head_off;
    struct mk_rmem *rmem; /* destination */
    uint64_t remote_off;
    uint32_t note;  /* index within the peer's notes */
    uint32_t use4;  /* low 4 bits of the use count after this use (flags step once a use; credits: value) */
    uint64_t value; /* what flags[note] is then */
    uint32_t flags;
    uint64_t id; /* given to done */
};
/* Called inside mk_engine_progress, mk_link_put or mk_link_close; may put, may close its link.
 * status 0 or MK_ERR_*: NET (the NIC said so), TIMEOUT (nothing heard for MK_TIMEOUT), ABORTED (link closed). */
typedef void (*mk_put_done_fn)(void *ctx, struct mk_link *l, uint64_t id, int status);
void mk_link_on_done(struct mk_link *l, mk_put_done_fn fn, void *ctx);

/* Queues n puts, in order, and posts what fits: at most MK_BATCH at a time go to the transport in one post.
 * Returns how many were taken (0 .. n; done is called for each of these and no other), or, if none, the link's
 * error or INVALID for the first put. */
int mk_link_put(struct mk_link *l, const struct mk_put *puts, int n);
/* Puts taken and not done. */
uint32_t mk_link_pending(const struct mk_link *l);
/* 0, or the error that ended the link; text, if not NULL, gets one sentence. */
int mk_link_error(const struct mk_link *l, char text[200]);

/* ---- proxy ---- */

/* One communicator as the proxy sees it. Arrays stay valid until detach. Index [node]: NULL where there is no
 * link (own node). rwindows: [node * nwindows + window]. */
struct mk_proxy_comm {
    int nnodes;
    int nwindows;
    struct mk_link *const *links;
    struct mk_mr *const *windows;
    struct mk_rmem *const *rwindows;
    uint64_t *done; /* completion table: done[cmd.done] = cmd.value (release, only upwards) */
    uint32_t ndone;
    struct mk_bell *bell; /* rung after a completion */
    /* a put failed; node says towards whom. Called on the proxy thread, at most once a node;
     * must not attach or detach. */
    void (*on_error)(void *ctx, int node, int code, const char *text);
    void *ctx;
};
struct mk_proxy_stats {
    uint64_t commands, batches, fill[9] /* batches of n commands */, window_waits, bytes, credits_merged,
        errors, sleeps, long_sleeps; /* long: of those, while nobody had posted or launched for long */
};

/* Starts the thread that drives e and a ring of 2^log2_slots commands. The proxy owns e from now on. */
int mk_proxy_start(const struct mk_settings *s, struct mk_engine *e, uint32_t log2_slots,
                   struct mk_proxy **out);
void mk_proxy_stop(struct mk_proxy *p); /* ends the thread, closes the engine; NULL allowed */
struct mk_engine *mk_proxy_engine(struct mk_proxy *p);
const struct mk_ring *mk_proxy_ring(struct mk_proxy *p);
/* Slots and words of the ring: whole pages, for pinning. */
void *mk_proxy_ring_memory(struct mk_proxy *p, size_t *bytes);
/* From now on producers may be kernels, which cannot kick: the thread looks by itself, at the price of some CPU time. */
void mk_proxy_unrung(struct mk_proxy *p);
/* After a publish, so that a sleeping proxy looks (CPU producers). */
void mk_proxy_kick(struct mk_proxy *p);
/* Between lock and unlock the thread does not touch the engine: set-up of further links and memory. */
void mk_proxy_lock(struct mk_proxy *p);
void mk_proxy_unlock(struct mk_proxy *p);
int mk_proxy_attach(struct mk_proxy *p, const struct mk_proxy_comm *c, uint16_t *id);
/* Commands of `id` still in the ring are dropped from now on; its on_error is not called any more. */
void mk_proxy_detach(struct mk_proxy *p, uint16_t id);
void mk_proxy_get_stats(struct mk_proxy *p, struct mk_proxy_stats *out);
