/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The transport seam: what a network must offer to the engine. One table per transport, chosen once at open
 * (net/engine.c). To add a transport: fill struct mk_net_ops, add one row to the list in engine.c, and run
 * tests/net/conformance over it.
 *
 * Threads: all functions of one device are called by one thread at a time. None blocks. */
#pragma once
#include "mk/net.h"

struct mk_settings;

/* Private state embeds these first (container_of is a plain cast). */
struct mk_dev {
    const struct mk_net_ops *ops;
    struct mk_caps caps;
    void *user; /* the engine */
};
struct mk_conn {
    struct mk_dev *dev;
    void *user; /* the engine's link */
};
struct mk_mr {
    struct mk_dev *dev;
    void *addr;
    size_t len;
    bool gpu; /* the processor cannot touch it */
};
struct mk_export { /* memory, looked up with the CUDA driver, that is about to be registered */
    struct mk_dev *dev;
    void *addr;
    size_t len;
};
struct mk_rmem {
    struct mk_conn *conn;
    size_t len;
    bool stale; /* the engine's: to be freed */
};

enum mk_wr_flags {
    MK_WR_IMM = 1, /* the peer's poll returns MK_WC_REMOTE with `imm`, after the payload is complete there */
    MK_WR_INLINE = 2,   /* source is inline_data (8 bytes), copied at post */
    MK_WR_DELIVERY = 4, /* local completion only when the payload is visible at the peer */
    MK_WR_SIGNALED = 8  /* produces a local completion; without it success is silent, failure is not */
};
/* One write. len 0 with MK_WR_IMM: the immediate alone. */
struct mk_wr {
    uint64_t id;
    struct mk_mr *mr;
    uint64_t local_off;
    uint64_t inline_data;
    struct mk_rmem *rmem;
    uint64_t remote_off;
    uint32_t len; /* of the payload; with head_len of `head` in front of it */
    uint32_t imm;
    uint32_t flags;
    uint32_t head_len; /* 0 unless caps.head */
    uint64_t head_off;
    struct mk_mr *head;
};

enum mk_wc_kind { MK_WC_LOCAL = 0, MK_WC_REMOTE = 1 };
struct mk_wc {
    enum mk_wc_kind kind;
    int status;           /* LOCAL: 0 or MK_ERR_NET / MK_ERR_PEER */
    uint64_t id;          /* LOCAL; UINT64_MAX with a status: the connection broke with nothing in flight */
    uint32_t imm;         /* REMOTE */
    struct mk_conn *conn; /* LOCAL: the connection; REMOTE: may be NULL (shared endpoints do not know it) */
    char text[96];        /* cause, where status != 0 */
};

struct mk_net_ops {
    const char *name;
    int (*open)(const struct mk_settings *s, struct mk_dev **out); /* UNSUPPORTED: not on this machine */
    void (*close)(struct mk_dev *dev);
    /* Settings that open the n-th device of those that s asks for: UNSUPPORTED: there are fewer. NULL: one only. */
    int (*nth)(const struct mk_settings *s, int nth, struct mk_settings *out);
    int (*conn_open)(struct mk_dev *dev, struct mk_net_addr *mine, struct mk_conn **out);
    int (*conn_connect)(struct mk_conn *c, const struct mk_net_addr *peer); /* AGAIN until connected */
    void (*conn_close)(struct mk_conn *c);                                  /* never waits for the peer */
    /* Where caps.late_writes; NULL: not possible. Ends what the peer is writing, though it is alive and says nothing:
     * called, with polls between, until nothing is left (0). Every connection of which cut_breaks(c, other) says so ends.
     * Negative: not possible here. */
    int (*cut)(struct mk_conn *c);
    bool (*cut_breaks)(const struct mk_conn *c, const struct mk_conn *other);
    int (*reg)(struct mk_dev *dev, void *addr, size_t len, const struct mk_shm *shm, struct mk_mr **out);
    void (*dereg)(struct mk_mr *mr);
    /* caps.gpu_memory only, else NULL. reg of private memory or a GPU's in two parts: the first, by any thread at any
     * time, calls the CUDA driver, which may wait for a kernel that itself waits for this device's progress; the second
     * does not, and consumes the first's. fill: writes into registered GPU memory of our own, and returns when it is
     * there. */
    int (*export)(struct mk_dev *dev, void *addr, size_t len, struct mk_export **out);
    int (*reg_export)(struct mk_export *x, struct mk_mr **out);
    int (*fill)(struct mk_mr *mr, uint64_t off, const void *from, uint32_t len);
    /* caps.dmabuf only, else NULL: a GPU's memory, handed over as a descriptor that stays the caller's; addr: what it is
     * called here. fill is there too. */
    int (*reg_dmabuf)(struct mk_dev *dev, int fd, uint64_t offset, void *addr, size_t len,
                      struct mk_mr **out);
    /* What peers have written into mr, as far as their writes are complete here, is visible to the GPU when it returns, in
     * some microseconds. NULL: it is without. */
    int (*flush)(struct mk_mr *mr);
    void (*key)(const struct mk_mr *mr, struct mk_net_key *out);
    int (*import)(struct mk_conn *c, const struct mk_net_key *key, struct mk_rmem **out);
    void (*unimport)(struct mk_rmem *r);
    /* Posts wrs[0 .. n) in order, one doorbell where the network has one. Returns how many were taken (0: full),
     * or an error of the whole connection. */
    int (*post)(struct mk_conn *c, const struct mk_wr *wrs, int n);
    /* Progresses, and returns up to max completions. */
    int (*poll)(struct mk_dev *dev, struct mk_wc *wcs, int max);
    /* Sleeps at most ns; wake, from any thread, ends it. */
    void (*wait)(struct mk_dev *dev, uint64_t ns);
    void (*wake)(struct mk_dev *dev);
};

extern const struct mk_net_ops mk_verbs_ops;
extern const struct mk_net_ops mk_ofi_ops;
extern const struct mk_net_ops mk_loop_ops;
