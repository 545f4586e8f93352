/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What mknic, the emulated NIC (net/nic/), shares with its clients, the loop devices of the ranks (loop_gpu.c).
 *
 * Set-up goes over a unix socket (SOCK_SEQPACKET, one request at a time, one reply each; its end is the witness of
 * a dead client or a dead mknic). Work goes through a memory segment that the client makes: a ring of jobs towards
 * mknic, a ring of completions back, bounce slots for host memory that mknic cannot map. Both sides sleep on bells.
 *
 *   word        written by                                 read by
 *   job_tail    client (release: the jobs below are there) mknic (acquire)
 *   job_head    mknic (release: they are read)             client (acquire)
 *   done_tail   mknic (release: completions, and the       client (acquire)
 *               payloads they name, are there)
 *   done_head   client (release: they are read)            mknic (acquire)
 *
 * A client has at most MK_NIC_RING jobs out, so completions always fit. A grant is a client's number for a window:
 * memory that its owner registered, given to others by number and token. mknic checks every job against it. */
#pragma once
#include "mk/cuda.h"
#include "mk/shm.h"
#include <assert.h>
#include <stdint.h>

#define MK_NIC_MAGIC 0x6d6b4e31u /* "mkN1" */
#define MK_NIC_VERSION 3u
#define MK_NIC_RING 1024u
#define MK_NIC_GRANTS 4096u /* a client */
#define MK_NIC_SEGMENTS 16  /* pieces of one address range, each an allocation of its own */
#define MK_NIC_BOUNCES 16u
#define MK_NIC_BOUNCE_BYTES (256u << 10)
#define MK_NIC_JOB_MAX (1u << 30)

enum mk_nic_special_grant {
    MK_NIC_INLINE = 0, /* source: the job's own 8 bytes */
    MK_NIC_BOUNCE = 1  /* source: the bounce slots of the segment */
};

enum mk_nic_job_flags {
    MK_NIC_ORDERED = 1 /* after the earlier ordered jobs of this client, lane and device; else in any order */
};

struct mk_nic_job {
    uint64_t cookie;
    uint64_t src_off, dst_off;
    uint64_t inline_data;
    uint32_t src, dst; /* grants */
    uint32_t len;
    uint16_t lane, flags;
    uint8_t pad[16];
};
static_assert(sizeof(struct mk_nic_job) == 64, "a line");

struct mk_nic_done {
    uint64_t cookie;
    int32_t status; /* 0 or MK_ERR_* */
    int32_t why;    /* enum mk_nic_why */
};

enum mk_nic_why {
    MK_NIC_WHY_NONE,
    MK_NIC_WHY_GRANT,  /* no such grant */
    MK_NIC_WHY_GONE,   /* the owner took the window back */
    MK_NIC_WHY_RANGE,  /* beyond the window */
    MK_NIC_WHY_NO_GPU, /* host to host */
    MK_NIC_WHY_CUDA    /* the driver refused the copy */
};

struct mk_nic_segment {
    uint32_t magic, pad0[15];
    uint64_t job_tail, pad1[7];
    uint64_t job_head, pad2[7];
    uint64_t done_tail, pad3[7];
    uint64_t done_head, pad4[7];
    struct mk_nic_job job[MK_NIC_RING];
    struct mk_nic_done done[MK_NIC_RING];
    _Alignas(4096) uint8_t bounce[MK_NIC_BOUNCES][MK_NIC_BOUNCE_BYTES];
};

/* ---- requests and replies ---- */

enum mk_nic_op {
    MK_NIC_HELLO = 1,
    MK_NIC_REG_IPC,  /* memory of cuMemAlloc */
    MK_NIC_REG_FD,   /* memory of cuMemCreate: one descriptor a segment, in the message */
    MK_NIC_REG_HOST, /* a memfd */
    MK_NIC_IMPORT,   /* somebody's window */
    MK_NIC_DROP      /* a grant; the owner's: the reply comes when no copy touches the window any more */
};

struct mk_nic_hello {
    uint32_t version;
    int32_t pid;
    uint64_t host; /* mk_host_id */
    struct mk_shm_ref segment;
    struct mk_shm_ref bell; /* rung after a completion */
    uint64_t bell_off;
};
struct mk_nic_reg {
    struct mk_cu_uuid gpu;
    uint64_t off, len; /* the window within what the handle, the segments or the memfd name */
    union {
        struct {
            struct mk_cu_ipc handle;
            uint64_t size; /* of the allocation */
        } ipc;
        struct {
            uint32_t n, pad;
            uint64_t size[MK_NIC_SEGMENTS];
        } fd;
        struct mk_shm_ref host;
    } u;
};
struct mk_nic_request {
    uint32_t magic, op;
    uint32_t seq, grant; /* DROP */
    uint64_t token;      /* IMPORT, with grant: the window's number */
    union {
        struct mk_nic_hello hello;
        struct mk_nic_reg reg;
    } u;
};
struct mk_nic_reply {
    uint32_t magic, seq;
    int32_t status;
    uint32_t grant;
    uint32_t window; /* its number, for the peers */
    int32_t gpu;     /* number of its device; -1: host memory */
    uint64_t token;
    uint64_t len;
    int32_t pid; /* HELLO: of mknic */
    uint32_t pad;
    uint64_t nic;               /* HELLO: a random number of this mknic */
    struct mk_shm_ref doorbell; /* HELLO: a page of bells; this client's is at doorbell_off */
    uint64_t doorbell_off;
    char text[160];
};
