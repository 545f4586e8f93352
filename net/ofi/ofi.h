/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* State of the ofi transport. One endpoint a device, shared by its connections; everything belongs to the thread
 * that drives the device. */
#pragma once
#include "net/transport.h"
#include "ofi_lib.h"
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#define MK_OFI_MAGIC 0x6d6b6f31u /* "mko1" */
#define MK_OFI_DEPTH 128u        /* work requests in flight on a connection */
#define MK_OFI_ADDR_MAX 160
#define MK_OFI_API FI_VERSION(1, 14)

/* In struct mk_net_addr. */
struct mk_ofi_addr {
    uint32_t magic;
    uint32_t len;
    uint64_t host;
    char provider[64];
    uint8_t name[MK_OFI_ADDR_MAX]; /* as fi_getname gives it */
};

/* In struct mk_net_key. */
struct mk_ofi_key {
    uint32_t magic;
    uint32_t pad;
    uint64_t key;
    uint64_t base; /* what the peer adds to its offsets: the address, or 0 */
    uint64_t len;
};

struct mk_ofi_conn;

/* One operation in flight. fi must come first: providers hand its address back, and may use it as scratch. */
struct mk_ofi_ctx {
    struct fi_context2 fi;
    struct mk_ofi_ctx *next;  /* free, or waiting to be reported */
    struct mk_ofi_conn *conn; /* NULL: closed meanwhile, nobody is told */
    uint64_t id;
    uint64_t word; /* an inline source, where the provider cannot copy at post */
    int status;    /* set where we know the end without the network */
    bool silent;
    const char *cause;
};

/* Contexts come in blocks, one more for each connection beyond those that are there. */
struct mk_ofi_block {
    struct mk_ofi_block *next;
    struct fid_mr *mr; /* over the words, where they need a registration */
    struct mk_ofi_ctx ctx[MK_OFI_DEPTH];
};

/* A peer's endpoint: inserted once, however many connections lead there; stays until the device is closed. */
struct mk_ofi_peer {
    struct mk_ofi_peer *next;
    fi_addr_t addr;
    uint32_t len;
    uint8_t name[MK_OFI_ADDR_MAX];
};

struct mk_ofi_mr {
    struct mk_mr base;
    struct fid_mr *mr;
    void *desc;
    struct mk_ofi_key key;
};

struct mk_ofi_rmem {
    struct mk_rmem base;
    uint64_t key;
    uint64_t addr;
};

struct mk_ofi_conn {
    struct mk_conn base;
    struct mk_ofi_dev *dev;
    bool connected;
    fi_addr_t addr;
    uint32_t in_flight;
    /* The last import: where a write of no bytes goes that names no memory; networks check the key all the same. */
    uint64_t any_key, any_addr;
};

struct mk_ofi_dev {
    struct mk_dev base;
    const struct mk_ofi_lib *lib;
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *tx, *rx;
    struct fid_ep *ep;
    /* To sleep: nsleep descriptors and the queues they belong to; 0: this provider has none. */
    struct fid_cq *bare; /* a queue that is bound to nothing, NULL: not needed (open_queues) */
    struct fid *sleep_fid[2];
    int sleep_fd[2];
    int nsleep;
    int wake_fd;      /* eventfd */
    uint64_t mr_mode; /* FI_MR_* bits in force */
    uint64_t next_key;
    uint64_t host;
    struct mk_ofi_peer *peers;
    struct mk_ofi_block *blocks;
    unsigned nblocks, nconns;
    struct mk_ofi_ctx *free_ctx;
    struct mk_ofi_ctx *ended_first, *ended_last; /* ends that no queue will report */
    uint32_t in_flight;
    uint32_t polls;
    uint32_t tx_row; /* polls in a row that found completions of ours */
    uint32_t naps;   /* without a find, where there is nothing to sleep on */
    bool found;      /* by poll, since the last sleep */
    bool inject;     /* the provider copies 8 bytes at post */
    /* ofi_shm.c, under its lock */
    struct mk_ofi_dev *next_shm;
    uint32_t name_len;
    uint8_t name[MK_OFI_ADDR_MAX];
    bool shm, closed;
    bool broken_said;
};

/* ofi_provider.c: the n-th device; finds the provider that the settings ask for */
int mk_ofi_nth(const struct mk_settings *s, int nth, struct mk_settings *out);
int mk_ofi_choose(const struct mk_ofi_lib *lib, const struct mk_settings *s, struct fi_info **out,
                  bool *delivery);

/* ofi_post.c */
int mk_ofi_post(struct mk_conn *conn, const struct mk_wr *wrs, int n);
int mk_ofi_poll(struct mk_dev *dev, struct mk_wc *wcs, int max);
int mk_ofi_block_add(struct mk_ofi_dev *d);
void mk_ofi_forget(struct mk_ofi_conn *c); /* its operations end in silence */

/* ofi_cut.c */
int mk_ofi_cut(struct mk_conn *conn);
bool mk_ofi_cut_breaks(const struct mk_conn *conn, const struct mk_conn *other);

/* ofi.c */
void mk_ofi_destroy(struct mk_ofi_dev *d);

/* ofi_shm.c: devices of provider shm in this process */
int mk_ofi_shm_add(struct mk_ofi_dev *d);
/* Destroys d, or keeps it until those in this process that reach into it are gone. */
void mk_ofi_shm_close(struct mk_ofi_dev *d);
void mk_ofi_shm_lock(
    const struct mk_ofi_dev *d); /* around a change of d->peers; nothing for other providers */
void mk_ofi_shm_unlock(const struct mk_ofi_dev *d);
