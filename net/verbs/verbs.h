/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* State of the verbs transport: one port of one device, one completion queue for all connections, a reliable queue pair
 * a connection. Everything belongs to the thread that drives the device. */
#pragma once
#include "net/transport.h"
#include "verbs_lib.h"

#define MK_VERBS_MAGIC 0x6d6b7631u /* "mkv1" */
#define MK_VERBS_DEPTH 128u        /* writes in flight on a connection; a power of two */
#define MK_VERBS_DEPTH_SMALL 32u   /* on one beyond half of the device's completion queue */
#define MK_VERBS_RECVS_SMALL 96u
#define MK_VERBS_RECVS 512u /* receives posted on a connection: writes with immediate that may lie unpolled */
#define MK_VERBS_REFILL 64u /* receives posted in one go, at most */
#define MK_VERBS_LIST 16    /* work requests of one doorbell: 8 commands, each payload and flag */
#define MK_VERBS_SIGNAL 8u  /* at least every 8th write is signalled, so that its queue empties */
#define MK_VERBS_ENDED 8u
#define MK_VERBS_STASH 16
#define MK_VERBS_RETRIES                                                                                     \
    6u /* so often a write is repeated that is not acknowledged; 7 is for ever on soft RoCE */
#define MK_VERBS_RNR_RETRIES 6u /* ... that finds no receive at the peer; 7 would be: for ever */

/* In struct mk_net_addr. */
struct mk_verbs_addr {
    uint32_t magic;
    uint32_t qpn;
    uint32_t psn;
    uint16_t lid;
    uint8_t mtu; /* enum ibv_mtu */
    uint8_t link_layer;
    uint8_t gid[16];
    char device[64];
};

/* In struct mk_net_key. */
struct mk_verbs_key {
    uint32_t magic;
    uint32_t rkey;
    uint64_t addr;
    uint64_t len;
};

/* A write in the send queue. */
struct mk_verbs_sent {
    uint64_t id;
    bool silent;
};

/* A write that ended here, before the network: wrong ranges. */
struct mk_verbs_ended {
    uint64_t id;
    const char *cause;
};

struct mk_verbs_mr {
    struct mk_mr base;
    struct ibv_mr *mr;
};

struct mk_verbs_rmem {
    struct mk_rmem base;
    uint64_t addr;
    uint32_t rkey;
};

struct mk_verbs_conn {
    struct mk_conn base;
    struct mk_verbs_dev *dev;
    struct ibv_qp *qp;
    uint64_t tag; /* in wr_id: which connection; never the same again on this device */
    uint32_t psn;
    bool connected;
    bool tell;     /* it broke, and no completion has said so yet */
    int error;     /* MK_ERR_*, once broken */
    char text[96]; /* the first cause */
    uint32_t depth, recvs;
    uint64_t head, tail;  /* sent[head .. tail) is in the queue */
    uint32_t unsignalled; /* writes since the last signalled one */
    uint32_t used;        /* receives to be posted again */
    uint32_t nended;
    /* The last import: where a write of no bytes goes that names no memory. */
    uint64_t any_addr;
    uint32_t any_key;
    struct mk_verbs_ended ended[MK_VERBS_ENDED];
    struct mk_verbs_sent sent[MK_VERBS_DEPTH];
};

/* A queue pair of the device with itself. */
struct mk_verbs_self {
    struct ibv_qp *qp;
    struct ibv_cq *cq;
    struct ibv_mr *mr;
    void *bounce;
};

struct mk_verbs_dev {
    struct mk_dev base;
    struct mk_verbs_self self; /* made with the first memory of a GPU */
    const struct mk_verbs_lib *lib;
    struct ibv_context *ctx;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    int cqe, max_cqe;
    int wake_fd; /* eventfd */
    char name[64];
    uint8_t port, mtu, link_layer;
    uint16_t lid;
    int gid_index;
    union ibv_gid gid;
    uint32_t depth, recvs;          /* of a connection, at most */
    uint32_t segment;               /* bytes of one work request, at most */
    uint8_t ack_timeout, rnr_timer; /* as queue pairs want them */
    uint64_t down_ns, grace_ns;     /* since when the port is down, 0: it is not; how long it may */
    struct mk_verbs_conn **conns;   /* by slot; NULL: free */
    uint32_t nslots, nconns;
    uint32_t live,
        ghosts; /* completions that its connections can make; that closed ones may have left there */
    uint32_t serial;
    uint32_t
        news; /* ends and broken connections that the next poll reports from the connections' own lists */
    uint32_t polls;
    bool armed; /* the queue will make the channel readable */
    bool naps;  /* arrivals need not make completions here (flags by plain writes): short sleeps */
    uint64_t nap_ns;
    bool found; /* by poll, since the last sleep */
    int nstash; /* completions that a wait found */
    struct ibv_wc stash[MK_VERBS_STASH];
    int error; /* of the whole device */
    char text[160];
};

/* wr_id: bit 63 a receive; then the tag (serial 31 bits, slot 16); below the low 16 bits of the position. */
#define MK_VERBS_RECV (1ull << 63)
#define MK_VERBS_TAG(serial, slot) ((uint64_t)((serial)&0x7fffffffu) << 32 | (uint64_t)(slot) << 16)

/* verbs.c: MK_ERR_NET, with what an errno of the device says */
int mk_verbs_fail(const struct mk_verbs_dev *d, const char *what, int err);

/* verbs_conn.c */
int mk_verbs_conn_open(struct mk_dev *dev, struct mk_net_addr *mine, struct mk_conn **out);
int mk_verbs_conn_connect(struct mk_conn *conn, const struct mk_net_addr *peer);
void mk_verbs_conn_close(struct mk_conn *conn);

/* From INIT to ready; the peer's part is only its address. */
int mk_verbs_ready(const struct mk_verbs_dev *d, struct ibv_qp *qp, uint32_t psn,
                   const struct mk_verbs_addr *a);

/* verbs_gpu.c: memory of GPUs. Does the device take it? Then how. */
bool mk_verbs_takes_dmabuf(const struct mk_verbs_dev *d);
int mk_verbs_reg_dmabuf(struct mk_dev *dev, int fd, uint64_t offset, void *addr, size_t len,
                        struct mk_mr **out);
int mk_verbs_fill(struct mk_mr *mr, uint64_t off, const void *from, uint32_t len);
int mk_verbs_flush(struct mk_mr *mr);
void mk_verbs_self_close(struct mk_verbs_dev *d);

/* verbs_port.c: the device, port and GID to use; leaves ctx open */
int mk_verbs_choose(const struct mk_settings *s, struct mk_verbs_dev *d);
int mk_verbs_nth(const struct mk_settings *s, int nth, struct mk_settings *out);

/* verbs_event.c: what the device says by itself. Bounded, without blocking. */
void mk_verbs_events(struct mk_verbs_dev *d);
/* The connection is of no use any more; the first cause stays. */
void mk_verbs_break(struct mk_verbs_conn *c, int code, const char *cause);

/* verbs_post.c */
int mk_verbs_post(struct mk_conn *conn, const struct mk_wr *wrs, int n);
int mk_verbs_poll(struct mk_dev *dev, struct mk_wc *wcs, int max);
int mk_verbs_refill(struct mk_verbs_conn *c, uint32_t n);
