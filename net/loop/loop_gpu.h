/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* GPU memory in the loop transport: the client of mknic (MK_NIC; nic_wire.h, net/nic/).
 *
 * Registration asks the driver for a handle of the memory and hands it to mknic. A write whose source or destination
 * is on a GPU becomes jobs of mknic instead of a memcpy; immediate, flag and completion follow when mknic says that
 * it is done. No call of CUDA is made after registration. When mknic ends, so do all links of a device that uses
 * GPU memory, with MK_ERR_NET. */
#pragma once
#include "loop_state.h"
#include "nic_wire.h"

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
    bool rang; /* jobs were added that mknic does not know of */
    bool used; /* there is, or was, GPU memory of ours or of a peer */
    bool dead;
    char text[80];
};

/* Finds mknic at `path`. On failure one WARN, and *out stays NULL: the transport works without GPU memory. */
void mk_loop_nic_open(struct mk_loop_dev *d, const char *path, double timeout);
void mk_loop_nic_close(struct mk_loop_dev *d);

/* Is this GPU memory of our process? false too where there is no mknic. */
bool mk_loop_gpu_is(const struct mk_loop_dev *d, const void *addr);
int mk_loop_gpu_reg(struct mk_loop_dev *d, struct mk_loop_mr *mr);
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
