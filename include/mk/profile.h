/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What collectives took: tables per communicator and kind of collective, and the file of them that mkinfo --profile reads.
 * NCCL's profiler face (plugin/nccl/profiler.c) feeds it with events; pure code otherwise: no CUDA, no NCCL.
 *
 * Any thread may call anything. An event costs a lock of its communicator (two threads at most want it: the user's and the
 * one that moves the network) and a few stores; nothing is allocated after a communicator joined. Handles are numbers that are
 * checked, never pointers: one that is late, foreign (another process's), or twice used does nothing.
 *
 * Sampling: each collective is counted; the GPU's own times, which cost the most, are asked for by the first 256
 * collectives of the process and then by 8 of each 64. What the calls here take is measured at one event in 31. Where that is
 * more than 0.5 % of the time that passes, in two windows of a second or more in a row, the GPU's times end, and if
 * that is not enough, everything (not while somebody holds it: mk_profile_hold).
 * A forked child profiles nothing and writes nothing. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- names: numbers are NCCL's ---- */
enum mk_coll {
    MK_COLL_BROADCAST = 0,
    MK_COLL_REDUCE = 1,
    MK_COLL_ALLGATHER = 2,
    MK_COLL_REDUCESCATTER = 3,
    MK_COLL_ALLREDUCE = 4,
    MK_COLL_SENDRECV = 5,
    MK_COLL_SEND = 6,
    MK_COLL_RECV = 7,
    MK_COLL_ALLTOALL = 8,
    MK_COLL_SCATTER = 9,
    MK_COLL_GATHER = 10
};
enum mk_algo {
    MK_ALGO_TREE = 0,
    MK_ALGO_RING = 1,
    MK_ALGO_COLLNET_DIRECT = 2,
    MK_ALGO_COLLNET_CHAIN = 3,
    MK_ALGO_NVLS = 4,
    MK_ALGO_NVLS_TREE = 5,
    MK_ALGO_PAT = 6,
    MK_ALGO_COUNT = 7
};
enum mk_proto { MK_PROTO_LL = 0, MK_PROTO_LL128 = 1, MK_PROTO_SIMPLE = 2, MK_PROTO_COUNT = 3 };
enum { MK_NAME_UNKNOWN = 255 };
enum mk_names { MK_NAMES_COLL, MK_NAMES_DTYPE, MK_NAMES_ALGO, MK_NAMES_PROTO };

/* "?" for a number that has no name. */
const char *mk_name_of(enum mk_names what, int number);
/* Without case; MK_NAME_UNKNOWN for NULL and for what is no name. A dtype's may begin with "nccl". */
uint8_t mk_name_find(enum mk_names what, const char *name);
size_t mk_dtype_bytes(int dtype); /* 0: unknown */

/* What nccl-tests call the size of a collective, from the count that the API takes: of all ranks' parts together for
 * AllGather, ReduceScatter, AlltoAll, Scatter and Gather. Stops at UINT64_MAX. */
uint64_t mk_coll_bytes(int coll, uint64_t count, size_t element, int nranks);
/* Bus bandwidth by algorithm bandwidth: 2(n-1)/n for AllReduce, (n-1)/n for those above, 1 for the rest
 * (nccl-tests, doc/PERFORMANCE.md). 0: nranks is not known. */
double mk_coll_bus_factor(int coll, int nranks);

/* ---- distribution of times: 16 buckets an octave of ns, so that a median is off by 3 % at most ---- */
#define MK_HIST_BUCKETS 592
static inline int mk_hist_bucket(uint64_t ns)
{
    if (ns < 16)
        return (int)ns;
    const int log2 = 63 - __builtin_clzll(ns);
    const int b = (log2 - 3) * 16 + (int)(ns >> (log2 - 4) & 15);
    return b < MK_HIST_BUCKETS ? b : MK_HIST_BUCKETS - 1;
}
static inline double mk_hist_value(int bucket) /* the middle of the bucket */
{
    if (bucket < 16)
        return bucket;
    const int log2 = bucket / 16 + 3;
    return ((double)(16 + bucket % 16) + 0.5) * (double)(1ull << (log2 - 4));
}

/* ---- one kind of collective ---- */
struct mk_kind {
    uint8_t coll, dtype, algo, proto; /* or MK_NAME_UNKNOWN */
    uint8_t channels;                 /* CTAs; before NCCL 2.27: at most so many */
    uint8_t size_class;               /* floor(log2(bytes)); 0 for less than 2 */
    bool gpu_clock; /* times are the GPU's own; else of the host's thread that moves the network */
    uint64_t calls; /* that were enqueued */
    uint64_t bytes_min, bytes_max, bytes_sum;
    uint64_t host_ns;    /* in the calls that enqueue, all together */
    uint64_t timed;      /* runs whose time is known; a captured one may run often */
    uint64_t unfinished; /* begun and never seen to end, or with times that make no sense */
    uint64_t run_ns, run_min, run_max;
    uint64_t overlap_ns; /* of run_ns: another timed collective of this process ran at the same time */
    uint32_t host_hist[MK_HIST_BUCKETS];
    uint32_t run_hist[MK_HIST_BUCKETS];
};

/* ---- a process and its communicators ---- */
struct mk_profile;
struct mk_profile_comm;
typedef uint64_t (*mk_clock_fn)(void); /* ns */

/* pattern: name of the file ("": none, write does nothing); %h becomes the host's name, %p the process's number, %% a percent sign; without %p, ".%h.%p" is
 * added, since several processes would write one file. INVALID: longer than a path, or another letter behind %. */
int mk_profile_open(const char *pattern, mk_clock_fn clock, struct mk_profile **out);
/* For tests: nobody may use it any more. Writes nothing. */
void mk_profile_close(struct mk_profile *p);

struct mk_profile_who {
    uint64_t id;               /* equal on all ranks; 0: learned from the first event that names one */
    int rank, nranks, nnodes;  /* -1, 0, 0: not known */
    const char *name;          /* NULL: none */
    int table;                 /* version of the profiler's table */
    int mask_full, mask_light; /* what *mask is to be with the GPU's times and without */
};
/* A communicator is made. *mask is written now and until it leaves. NULL: no place (then *mask stays as it is). */
struct mk_profile_comm *mk_profile_join(struct mk_profile *p, const struct mk_profile_who *who, int *mask);
/* It is finalised: what is open is counted as unfinished, the file is written. */
void mk_profile_leave(struct mk_profile *p, struct mk_profile_comm *c);
/* The file, whole or not at all (rename). A failure is logged once. */
int mk_profile_write(struct mk_profile *p);
/* The same at the end of the process: what has ended is not waited for any more. */
int mk_profile_end(struct mk_profile *p);

struct mk_profile_event {
    uint8_t coll, dtype, algo, proto, channels;
    bool exact;       /* exactly `channels` runs of channels belong to it */
    uint64_t count;   /* as in the API */
    uint64_t comm_id; /* 0: not said */
    int rank;
};
/* The call of the API (where the version shows it), counted alone. */
void mk_profile_api(struct mk_profile_comm *c, bool p2p);
/* A collective is being enqueued, until stop. Returns a handle; 0: none. */
uint64_t mk_profile_begin(struct mk_profile *p, struct mk_profile_comm *c, const struct mk_profile_event *e);
/* A channel of it begins to run: at `timer` of the GPU, or, before version 4 of the table, now. A channel that comes once more
 * belongs to the next run of a captured collective; -1: part of the run that has no channel of its own. Returns a handle. */
uint64_t mk_profile_run(struct mk_profile *p, uint64_t parent, int channel, uint64_t timer);
/* That channel's end by the GPU's timer; stop follows. */
void mk_profile_timer(struct mk_profile *p, uint64_t handle, uint64_t timer);
void mk_profile_stop(struct mk_profile *p, uint64_t handle);

/* Witness: what the communicator with this id and rank (-1: any) was given so far. false: there is none. */
struct mk_profile_count {
    uint64_t api, api_p2p; /* calls of the API; 0 throughout: the version does not show them */
    uint64_t colls, p2p;   /* collectives enqueued; sends and receives */
};
bool mk_profile_counted(struct mk_profile *p, uint64_t id, int rank, struct mk_profile_count *out);
/* While the sum of n over the calls is not 0, collectives go on being counted whatever they cost. */
void mk_profile_hold(struct mk_profile *p, int n);
/* The GPU's times of the next n collectives (1024 at most) are taken too, unless they cost too much. NULL: nothing. */
void mk_profile_more(struct mk_profile *p, uint32_t n);
enum mk_profile_level { MK_PROFILE_FULL = 0, MK_PROFILE_LIGHT = 1, MK_PROFILE_OFF = 2 };
enum mk_profile_level mk_profile_level(struct mk_profile *p);
/* Kinds of a communicator, in the order of their first call, copied under its lock. false: there is no i-th. */
bool mk_profile_kind(struct mk_profile *p, struct mk_profile_comm *c, int i, struct mk_kind *out);
/* The live communicator with this id and rank (-1: any), or NULL. It is good until it leaves. */
struct mk_profile_comm *mk_profile_find(struct mk_profile *p, uint64_t id, int rank);
/* The profile of this process, or NULL: NCCL's face makes it with the first communicator, if MK_PROFILE names a file or
 * somebody in here asked for it before: level LIGHT: to count collectives; FULL: their times too. */
struct mk_profile *mk_profile_of_process(void);
void mk_profile_request(enum mk_profile_level level);
enum mk_profile_level mk_profile_requested(void); /* OFF: by nobody */
/* No more than this from now on. */
void mk_profile_limit(struct mk_profile *p, enum mk_profile_level level);
void mk_profile_set_process(struct mk_profile *p);
