/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* mknic: an emulated NIC for GPU memory, one process a host. Copies between memory of the ranks by the copy engine,
 * from its own CUDA contexts, so that nothing that a rank's process does (a kernel on all SMs, a thread in cudaFree)
 * holds them up.
 *
 *   nic_main.c   options, devices, signals
 *   nic_ctl.c    control thread: clients come and go, requests
 *   nic_win.c    windows: their memory mapped here, who may use them, when they are free
 *   nic_copy.c   copy threads: jobs in, copies, completions out
 *
 * Threads: the control thread owns clients, windows and every set-up call to the driver. A client's rings belong to
 * one copy thread. The two meet at three places: a client's `state`, its grants, and each window's `jobs`. */
#pragma once
#include "net/loop/nic_wire.h"
#include <pthread.h>
#include <stdbool.h>

#define NIC_GPUS 16
#define NIC_CLIENTS 256
#define NIC_WINDOWS 16384u
#define NIC_LANES_MAX 8
#define NIC_THREADS_MAX 8
#define NIC_GROUPS 64u /* handed to one stream and not seen complete */
#define NIC_GROUP_JOBS 16

struct nic_gpu {
    int device;
    void *ctx;
    struct mk_cu_uuid uuid;
};

/* What a window's memory is here. Several windows of one cuMemAlloc share one mapping. */
struct nic_mapping {
    struct nic_mapping *next;
    unsigned refs;
    int client; /* of the owner */
    int gpu;    /* -1: host */
    uint64_t size;
    struct mk_cu_ipc ipc; /* of cuMemAlloc: what names it */
    mk_cu_ptr addr;
    struct mk_shm shm;
    bool vmm;
    uint32_t nseg;
    uint64_t seg_size[MK_NIC_SEGMENTS];
};

enum nic_window_state { NIC_FREE, NIC_LIVE, NIC_REVOKED };

/* jobs: copies that touch it. A copy thread first adds itself, then looks at `live` (both seq_cst); the control
 * thread clears `live`, then waits for 0. Slots are never freed, generations tell their uses apart. */
struct nic_window {
    uint64_t live; /* generation, or 0 */
    uint64_t jobs;
    mk_cu_ptr addr;
    uint64_t len;
    int gpu;
    /* control thread */
    enum nic_window_state state;
    uint64_t generation, token;
    int owner;
    struct nic_mapping *mapping;
    uint32_t waiter_seq; /* of the owner's DROP, to be answered when jobs is 0 */
    bool waiter;
};

struct nic_group {
    uint64_t seq;
    uint32_t n;
    void *event;
    uint64_t cookie[NIC_GROUP_JOBS];
    uint32_t src[NIC_GROUP_JOBS], dst[NIC_GROUP_JOBS]; /* windows, UINT32_MAX: none */
};

struct nic_lane {
    void *stream;
    uint64_t *word; /* the last group that the device finished */
    mk_cu_ptr word_gpu;
    uint64_t *table; /* inline data on the way, NIC_GROUPS x NIC_GROUP_JOBS */
    uint64_t issued, seen;
    struct nic_group group[NIC_GROUPS];
};

enum nic_client_state { NIC_NOBODY, NIC_JOINING, NIC_SERVED, NIC_LEAVING, NIC_LEFT };

struct nic_client {
    uint32_t
        state; /* SERVED and LEAVING: by control; LEFT: by its copy thread, which touches nothing from then on */
    uint32_t bad; /* the copy thread found its rings broken */
    struct mk_shm shm, bell_shm;
    struct mk_nic_segment *seg;
    struct mk_bell *bell;
    uint64_t grant[MK_NIC_GRANTS];    /* generation << 16 | window, 0: none */
    struct nic_lane *lanes[NIC_GPUS]; /* nic.nlanes of them, or NULL */
    /* copy thread */
    uint64_t head, done;
    uint32_t turn[NIC_GPUS];
    uint32_t out; /* jobs with the device */
    /* control thread */
    int fd, pid;
    uint32_t hint;
};

struct nic {
    const struct mk_cuda *cu;
    struct nic_gpu gpu[NIC_GPUS];
    int ngpus, nthreads, nlanes, group_jobs;
    bool write64; /* streams can write words */
    bool join;    /* copies in equal steps, in one call */
    bool want_events;
    uint64_t id, host;
    int listen_fd;
    const char *path;
    struct mk_shm doorbell;    /* one mk_bell a copy thread, 64 bytes apart */
    struct nic_client *client; /* NIC_CLIENTS */
    struct nic_window *window; /* NIC_WINDOWS */
    struct nic_mapping *mappings;
    uint32_t window_hint, window_top; /* none from window_top on was ever used */
    uint32_t revoked;
    uint32_t client_top; /* none from client_top on was ever used */
    uint64_t generations;
    pthread_t thread[NIC_THREADS_MAX];
    uint32_t stop, failed;
    int signal_fd;
};

extern struct nic nic;

static inline struct mk_bell *nic_bell(int thread)
{
    return (struct mk_bell *)((char *)nic.doorbell.addr + 64 * thread);
}
static inline uint32_t nic_state(const struct nic_client *c)
{
    return __atomic_load_n(&c->state, __ATOMIC_ACQUIRE);
}
static inline void nic_state_set(struct nic_client *c, enum nic_client_state state)
{
    __atomic_store_n(&c->state, (uint32_t)state, __ATOMIC_RELEASE);
}
static inline int nic_thread_of(int client)
{
    return client % nic.nthreads;
}

/* nic_win.c, control thread. Replies are filled; *fds are taken over. */
int nic_win_reg(int client, const struct mk_nic_request *q, int *fds, int nfds, struct mk_nic_reply *r);
int nic_win_import(int client, const struct mk_nic_request *q, struct mk_nic_reply *r);
/* true: answered now; false: when the last copy is done, by nic_win_sweep */
bool nic_win_drop(int client, const struct mk_nic_request *q, struct mk_nic_reply *r);
void nic_win_drop_client(int client);
/* Unmaps what nothing touches any more; calls back for each DROP that can be answered. Returns how many wait. */
int nic_win_sweep(void (*answer)(int client, uint32_t seq));
uint64_t nic_grant_add(int client, uint32_t window, uint32_t *grant);
int nic_say(struct mk_nic_reply *r, int status, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
int nic_use(int gpu); /* makes its context current on this thread */

/* nic_copy.c */
int nic_lanes_open(int client, int gpu); /* control thread */
void nic_lanes_close(struct nic_client *c);
void *nic_copy_thread(void *thread_number);

/* nic_ctl.c */
int nic_ctl_run(void);
