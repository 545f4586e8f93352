/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* State of the loop transport inside one process. Everything belongs to the thread that drives the device. */
#pragma once
#include "loop.h"
#include "loop_wire.h"
#include <stdbool.h>

#define MK_LOOP_DEPTH 256u /* pending items of a connection */
#define MK_LOOP_PIECES 8
#define MK_LOOP_NEVER UINT64_MAX

struct mk_loop_dev;
struct mk_loop_nic;

/* Memory of a peer, mapped once however many keys and connections lie in it. Pending items hold references too, so
 * that unimport with writes in flight is safe. */
struct mk_loop_map {
    struct mk_loop_map *next;
    struct mk_shm_ref ref;
    struct mk_shm shm;
    uint32_t grant; /* mknic's number for it, 0: none */
    unsigned refs;
};

struct mk_loop_mr {
    struct mk_mr base;
    struct mk_loop_key key;
    uint32_t grant; /* mknic's number for it; 0: none */
    int gpu;        /* mknic's number of its device; -1: host memory */
};

struct mk_loop_rmem {
    struct mk_rmem base;
    struct mk_loop_dev *dev; /* base.conn may be closed before unimport */
    uint8_t *addr;           /* GPU memory: NULL */
    struct mk_loop_map *map; /* GPU memory: NULL */
    uint32_t grant, window;
    int gpu; /* -1: host memory */
};

/* A posted write that is not complete. */
struct mk_loop_item {
    uint64_t id;
    uint8_t *dst;
    const uint8_t *src; /* NULL: inline_data */
    uint64_t inline_data;
    uint64_t due; /* not before this time (ns); 0: at once */
    struct mk_loop_map *map;
    const struct mk_mr *mr;
    uint32_t len;
    uint32_t imm;
    uint32_t flags;
    /* with a GPU at one end (device >= 0) it is copied by mknic: */
    int device;
    uint32_t src_grant, dst_grant;
    uint64_t src_off, dst_off;
    uint64_t pos;        /* of the item in its connection */
    uint32_t out;        /* jobs that mknic has not finished */
    uint32_t part, sent; /* of the piece that begins at `part`, bytes handed over up to `sent` */
    int status;          /* what the completion will say */
    bool copied, dropped, silent, done;
    char text[80];
};

/* How the hostile mode cuts one item: piece i lands at due[i]; the immediate and the completion at times of their
 * own, after all pieces; a repeated piece lands again at again_due, before the completion is reported. */
struct mk_loop_plan {
    uint64_t due[MK_LOOP_PIECES];
    uint64_t imm_due, again_due, done_due;
    uint32_t cut[MK_LOOP_PIECES + 1];
    uint32_t landed;   /* bit a piece */
    int pieces, again; /* again: index of the piece, -1: none */
    bool imm_sent;
};

struct mk_loop_conn {
    struct mk_conn base;
    struct mk_loop_dev *dev;
    unsigned slot; /* in dev->conn */
    uint32_t ring;
    uint64_t generation;
    struct mk_loop_ring *in;
    struct mk_loop_ring *out; /* NULL until connected; in the peer's segment */
    struct mk_bell *peer_bell;
    struct mk_loop_map *peer;
    uint64_t peer_generation;
    /* Items [first, next) of a circular buffer; in hostile unordered mode some of them are done already. */
    uint64_t first, next;
    uint64_t handed;           /* items below it with GPU memory are with mknic (not in hostile mode) */
    bool broken;               /* the end of mknic was reported */
    uint64_t next_due;         /* earliest time at which poll can do something here */
    struct mk_loop_item *item; /* MK_LOOP_DEPTH */
    struct mk_loop_plan *plan; /* MK_LOOP_DEPTH, or NULL: not hostile */
};

struct mk_loop_dev {
    struct mk_dev base;
    struct mk_loop_nic *nic; /* NULL: no GPU memory (loop_gpu.h) */
    struct mk_shm shm;
    struct mk_loop_segment *segment;
    struct mk_loop_map *maps;
    struct mk_loop_conn **conn; /* MK_LOOP_CONNS */
    unsigned nconn;
    unsigned turn;      /* where the next poll starts */
    uint32_t ring_hint; /* where the next free ring is looked for */
    uint32_t bell_seen; /* the bell's count when the last wait returned */
    uint64_t host;
    uint64_t latency_ns;
    uint64_t random; /* 0: not hostile */
    uint64_t writes; /* counted for the faults */
    struct mk_loop_faults faults;
};

static inline struct mk_loop_item *mk_loop_item_at(struct mk_loop_conn *c, uint64_t pos)
{
    return &c->item[pos % MK_LOOP_DEPTH];
}

/* loop_map.c */
int mk_loop_map_get(struct mk_loop_dev *d, const struct mk_shm_ref *ref, struct mk_loop_map **out);
void mk_loop_map_put(struct mk_loop_dev *d, struct mk_loop_map *m); /* NULL allowed */
int mk_loop_reg(struct mk_dev *dev, void *addr, size_t len, const struct mk_shm *shm, struct mk_mr **out);
int mk_loop_export(struct mk_dev *dev, void *addr, size_t len, struct mk_export **out);
int mk_loop_reg_export(struct mk_export *x, struct mk_mr **out);
void mk_loop_dereg(struct mk_mr *mr);
void mk_loop_key(const struct mk_mr *mr, struct mk_net_key *out);
int mk_loop_import(struct mk_conn *conn, const struct mk_net_key *key, struct mk_rmem **out);
void mk_loop_unimport(struct mk_rmem *rmem);

/* loop_nic.c: the emulated NIC */
int mk_loop_post(struct mk_conn *conn, const struct mk_wr *wrs, int n);
int mk_loop_poll(struct mk_dev *dev, struct mk_wc *wcs, int max);
/* false: mknic has no room now; once more later */
bool mk_loop_item_copy(struct mk_loop_conn *c, struct mk_loop_item *it, uint32_t from, uint32_t to);
bool mk_loop_item_imm(struct mk_loop_conn *c, struct mk_loop_item *it); /* false: the peer's inbox is full */
int mk_loop_item_finish(struct mk_loop_conn *c, struct mk_loop_item *it,
                        struct mk_wc *wc); /* completions written */
void mk_loop_drop_items(struct mk_loop_conn *c);
void mk_loop_cancel_mr(struct mk_loop_dev *d, const struct mk_mr *mr);

/* loop_hostile.c */
void mk_loop_plan_item(struct mk_loop_conn *c, struct mk_loop_item *it, uint64_t now);
int mk_loop_hostile_progress(struct mk_loop_conn *c, uint64_t now, struct mk_wc *wcs, int max, bool *landed);
