/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* GPU memory in the loop transport: the client of mknic (MK_NIC; nic_wire.h, net/nic/).
 *
 * Registration asks the driver for a handle of the memory and hands it to mknic. A write whose source or destination
 * is on a GPU becomes jobs of mknic instead of a memcpy; immediate, flag and completion follow when mknic says that
 * it is done. No call of CUDA is made after registration, and in it before its second part (mk_net_ops.export). When mknic ends, so do all links of a device that uses
 * GPU memory, with MK_ERR_NET. So it is when mknic does not answer a request within MK_TIMEOUT. */
#pragma once
#include "loop_state.h"
#include "nic_wire.h"

/* What mknic needs to reach memory. */
struct mk_loop_export {
    struct mk_export base;
    bool gpu; /* else there is nothing more */
    struct mk_nic_request q;
    int fds[MK_NIC_SEGMENTS], nfds;
};

struct mk_loop_nic_job {
    struct mk_loop_conn *conn; /* NULL: nobody waits for it any more */
    uint64_t pos;
    int bounce; /* its slot, or -1 */
};

struct mk_loop_nic {
    int fd, pid;
    uint64_t id;
    const struct mk_cuda *cu; /* NULL: no driver in this process, so no GPU memory of its own */
    struct mk_shm shm, door;
    struct mk_nic_segment *seg;
    struct mk_bell *doorbell;
    uint64_t timeout_ns, next_look;
    uint64_t tail, done;
    struct mk_loop_nic_job job[MK_NIC_RING];
    uint16_t free_job[MK_NIC_RING];
    uint32_t nfree, free_bounces, seq;
    uint32_t fill;   /* 1 + the job that mk_loop_gpu_fill waits for */
    int fill_status; /* how it ended */
    bool rang;       /* jobs were added that mknic does not know of */
    bool used;       /* there is, or was, GPU memory of ours or of a peer */
    bool dead;
    char text[80];
};

/* Finds mknic at `path`. On failure one WARN, and *out stays NULL: the transport works without GPU memory. */
void mk_loop_nic_open(struct mk_loop_dev *d, const char *path, double timeout);
void mk_loop_nic_close(struct mk_loop_dev *d);
/* It is of no use any more, `what` says why: everything of it fails from now on, at once. Quiet. */
void mk_loop_nic_lost(struct mk_loop_dev *d, const char *what);

/* Asks the driver whether x is on a GPU (never where there is no mknic), and for a handle; any thread, at any time. */
int mk_loop_gpu_export(struct mk_loop_dev *d, struct mk_loop_export *x);
void mk_loop_gpu_export_free(struct mk_loop_export *x);
int mk_loop_gpu_reg(struct mk_loop_dev *d, struct mk_loop_mr *mr, const struct mk_loop_export *x);
/* Host memory into GPU memory of ours; waits for mknic, some microseconds. */
int mk_loop_gpu_fill(struct mk_mr *mr, uint64_t off, const void *from, uint32_t len);
/* Host memory in a memfd; on failure the grant is 0 and what needs it fails. */
void mk_loop_gpu_host(struct mk_loop_dev *d, const struct mk_shm_ref *ref, uint64_t off, uint64_t len,
                      uint32_t *grant);
int mk_loop_gpu_import(struct mk_loop_dev *d, const struct mk_loop_key *k, struct mk_loop_rmem *r);
/* Gives a grant back. An owner's call returns when no copy touches its memory any more. 0: nothing. */
void mk_loop_gpu_drop(struct mk_loop_dev *d, uint32_t grant);

/* Hands bytes [from, to) of the item to mknic. false: not all, no room now; call again with the same range. */
bool mk_loop_gpu_copy(struct mk_loop_conn *c, struct mk_loop_item *it, uint32_t from, uint32_t to);
/* Tells mknic of new jobs, takes its completions, looks whether it lives. */
void mk_loop_gpu_ring(struct mk_loop_dev *d);
void mk_loop_gpu_poll(struct mk_loop_dev *d);
/* The connection's jobs go on, but nobody hears of them. */
void mk_loop_gpu_forget(struct mk_loop_conn *c);
/* Limits a sleep of `ns`; 0: there is something to do. */
uint64_t mk_loop_gpu_nap(const struct mk_loop_dev *d, uint64_t ns);
