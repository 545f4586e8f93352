/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Private state of the engine: what engine.c (devices, memory, progress), link.c, put.c (puts, credits), adapter.c (how a
 * notification travels) and pace.c share. One thread at a time touches any of it (mk/net.h).
 *
 * A link keeps its puts in a ring of positions: [head, posted) are with the transport, [posted, tail) wait. A put
 * that completed out of order is marked, and the head follows. Credits stand beside the ring, one state per
 * notification index: at most one in flight, at most one waiting, which a later value replaces. */
#pragma once
#include "mk/net.h"
#include "net/pace.h"
#include "net/transport.h"

#define MK_LINK_RING 1024u /* puts taken and not done on a link; a power of two */
#define MK_POST_MAX 16     /* work requests in one post: 8 puts of two each */
#define MK_POLL_MAX 16     /* completions taken in one poll */
#define MK_TICKS 8         /* a put is late when it has seen more than this many ticks of MK_TIMEOUT / 8 */
#define MK_NOTE_BITS 28
#define MK_NO_INDEX UINT32_MAX

/* Work request ids: position, or notification index of a credit. */
#define MK_ID_CREDIT (1ull << 63)
#define MK_ID_MORE (1ull << 62) /* not the last work request of its put */
#define MK_ID_MASK (MK_ID_MORE - 1)

struct mk_adapter;

struct mk_op {
    struct mk_put put;
    uint64_t due_ns; /* paced: not posted before; else 0 */
    uint32_t tick;   /* engine's tick when taken, then when posted */
    bool done;
    bool landed; /* the transport has completed it */
    bool joined; /* did not ask for delivery itself: done when a later one that did is (put.c) */
};

struct mk_credit {
    uint64_t value;   /* the highest so far */
    uint64_t id;      /* of the waiting one */
    uint64_t sent_id; /* of the one in flight */
    uint32_t tick;
    uint32_t next; /* in the link's list of credits to post */
    bool waiting, in_flight;
};

struct mk_link {
    struct mk_engine *e;
    struct mk_conn *conn;
    struct mk_link *next;
    struct mk_op *op; /* MK_LINK_RING */
    uint64_t head, posted, tail;
    uint64_t delivered; /* positions below it are visible at the peer */
    bool part;          /* the payload of `posted` is with the transport, its flag write is not yet */
    bool flushing, closing;
    bool quiet; /* nobody cares any more: its end is not logged */
    uint32_t pending;
    struct mk_peer_notes notes;
    struct mk_credit *credit; /* notes.n */
    uint32_t credit_head, credit_tail;
    uint32_t credits_pending;
    struct mk_rmem **rmem;
    uint32_t nrmem;
    mk_put_done_fn done;
    void *ctx;
    int error;
    char name[64];
    char text[200];
};

struct mk_notes {
    struct mk_engine *e;
    struct mk_notes *next;
    struct mk_notes_desc d;
    uint32_t base;
    bool dirty;     /* a flag changed in this progress: the bell is due */
    uint8_t *low4;  /* immediate: low 4 bits of each index's use count */
    uint64_t *seen; /* flag: values at the last look, to ring the bell */
};

struct mk_counters {
    uint64_t puts, batches, fill[9], bytes, credits, credits_merged, strays, errors;
};

struct mk_engine {
    struct mk_dev *dev;
    const struct mk_net_ops *ops;
    const struct mk_adapter *adapter;
    struct mk_caps caps;
    struct mk_pace pace;
    struct mk_link *links;
    struct mk_notes *notes;
    struct mk_notes *last_notes; /* the table that was hit last */
    uint32_t next_base;
    struct mk_mr **mr;
    uint32_t nmr;
    int batch;
    int error;
    uint32_t busy;  /* depth of progress and put: links closed inside are freed later */
    uint32_t polls; /* since the clock was read */
    uint32_t tick;
    uint64_t tick_ns; /* length of a tick */
    uint64_t next_tick;
    double timeout;
    bool stray_said, zombies;
    bool woke_early;    /* the last wait ended well before its time */
    uint32_t futile;    /* such waits in a row after which nothing was found */
    struct mk_bell nap; /* rung by mk_engine_wake, from any thread */
    uint32_t nap_seq;
    struct mk_counters n;
};

/* Opens over a given transport; adapter: NULL (chosen), "flag" or "immediate". Tests choose what the rules would
 * not. */
int mk_engine_open_with(const struct mk_settings *s, const struct mk_net_ops *ops, const char *adapter,
                        struct mk_engine **out);

/* ---- put.c ---- */
/* Posts what may go now; returns how many puts went. */
int mk_link_flush(struct mk_link *l);
void mk_link_complete(struct mk_link *l, const struct mk_wc *wc);

/* ---- link.c ---- */
/* Ends the link: `code` and the sentence stay, all puts are done with it. */
void mk_link_fail(struct mk_link *l, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Ends the link if its oldest put or a credit is late. */
void mk_link_check_late(struct mk_link *l, uint64_t now);
/* Nanoseconds until something can be posted; UINT64_MAX: nothing waits. */
uint64_t mk_link_due(const struct mk_link *l, uint64_t now);
void mk_link_free(struct mk_link *l);

static inline bool mk_link_waits(const struct mk_link *l)
{
    return l->posted != l->tail || l->credit_head != MK_NO_INDEX;
}
static inline struct mk_op *mk_op_at(const struct mk_link *l, uint64_t pos)
{
    return &l->op[pos & (MK_LINK_RING - 1)];
}
/* One put less: tells whoever asked for it. */
static inline void mk_link_report(struct mk_link *l, uint64_t id, int status)
{
    l->pending--;
    if (l->done)
        l->done(l->ctx, l, id, status);
}
