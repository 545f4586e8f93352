/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The pair recogniser (fused/pair*.c): which GEMM calls run our kernel G, which collective calls our kernel K, and when K
 * may start while G still runs. A pure state machine over events: no CUDA, no NCCL, no clock, no input or output, and no
 * allocation an event once its tables have grown. The hooks turn calls into events and carry out what comes back.
 *
 * What the hooks owe it:
 *   - one lock around a step, the launch of G or K that it decides and the step that reports it (*_DONE), and the same
 *     lock around counting an enqueue (mk/driver_calls.h): then nothing slips in between a proof and the launch it is
 *     for. Original calls are made without it: they enqueue, and the profiler speaks up inside them
 *   - an enqueue is counted before the real call; our own launches are not counted (the machine knows them)
 *   - streams and contexts by ids that are never used twice, never by handles
 *   - COMM_NEW for every communicator at its creation or when it is first seen, before its first call is decided
 *
 * Whether a collective runs K or NCCL is a function of what all ranks share: the agreed configuration, the operation
 * number, the state word in force there, function, count, dtype, operator, capture or not (fused/pair_comm.c,
 * mk_pair_shared, which sees nothing else). Everything else only chooses how K starts. */
#pragma once
#include "mkernel.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mk_pair;

/* Why. One of these stands in the log line of a call site, and each has a counter. */
enum mk_pair_reason {
    MK_PAIR_OK = 0,
    /* a collective goes to NCCL: what all ranks share */
    MK_PAIR_NO_COMM,      /* never announced */
    MK_PAIR_NOT_READY,    /* set-up is not done, or this operation is before the agreed first one */
    MK_PAIR_OFF,          /* set-up ended 'off' */
    MK_PAIR_SWITCHED_OFF, /* the state word says so */
    MK_PAIR_SLOWER,       /* the state word says NCCL is faster for this size */
    MK_PAIR_TIMED,        /* its turn to be timed against K */
    MK_PAIR_GRAPH_ONLY,   /* MK_FUSE=graph and this is no capture */
    MK_PAIR_FUNCTION,     /* its operator is not built yet */
    MK_PAIR_OPERATOR,     /* not a sum */
    MK_PAIR_DTYPE,
    MK_PAIR_COUNT, /* outside of what set-up prepared */
    MK_PAIR_P2P,   /* send or receive */
    /* why set-up ended 'off' */
    MK_PAIR_TIMEOUT,     /* a member did not come */
    MK_PAIR_MEMBER,      /* a member has no plugin, or other settings */
    MK_PAIR_NO_WITNESS,  /* no profiler, or another one */
    MK_PAIR_UNTIED,      /* identity and handle could not be brought together */
    MK_PAIR_NONBLOCKING, /* a non-blocking communicator */
    MK_PAIR_SHARED_GPU,  /* MPS or two ranks on a GPU */
    MK_PAIR_KILLED,      /* MK_FUSE=off somewhere */
    MK_PAIR_NO_KERNELS,  /* G and K are not in this build, or there is no GPU for them; of a GEMM, too */
    MK_PAIR_ALONE,       /* one rank: nothing to communicate */
    /* K runs plainly */
    MK_PAIR_GROUPED,      /* a member of a larger group */
    MK_PAIR_NO_GEMM,      /* no GEMM before it on its stream */
    MK_PAIR_LEARNING,     /* the original GEMM ran; from now on this site is known */
    MK_PAIR_ORIGINAL,     /* the original GEMM ran, for the reason of its own line */
    MK_PAIR_CROSS_STREAM, /* C is of another stream's GEMM */
    MK_PAIR_NOT_LAST,     /* C is not that of the last GEMM, or another operation came first */
    MK_PAIR_COPY_BETWEEN, /* it sends a copy of C */
    MK_PAIR_SLICE,        /* it sends a part of C, or more than C */
    MK_PAIR_RETYPED,      /* as another dtype */
    MK_PAIR_LD,           /* rows of C have gaps */
    MK_PAIR_RANGE,        /* recvbuff lies in what G may still read or write */
    MK_PAIR_ORDER,        /* an earlier operation of the communicator must end first */
    MK_PAIR_EVENT_BETWEEN,
    MK_PAIR_INTRUDER, /* something was enqueued between */
    MK_PAIR_NO_PROOF, /* nobody counts enqueues here, and this is no capture */
    MK_PAIR_WINDOW,   /* registered as a window */
    MK_PAIR_UNALIGNED,
    MK_PAIR_FORCED,   /* plain by request */
    MK_PAIR_LATE,     /* something of this rank is not ready yet */
    MK_PAIR_MEMORY,   /* no memory for the tables */
    MK_PAIR_UNHOOKED, /* the profiler saw a collective that no hook saw */
    MK_PAIR_UNSEEN,   /* the hook saw some that the profiler did not */
    /* a GEMM stays the original */
    MK_PAIR_UNKNOWN_SITE, /* no collective was seen after it yet */
    MK_PAIR_IDLE,       /* like others before it, which have their reasons, while it is idle (mk_pair_idle) */
    MK_PAIR_NEVER,      /* deterministic, and its first call was too early */
    MK_PAIR_NOT_FUSED,  /* the collective that will follow goes to NCCL */
    MK_PAIR_UNFOLLOWED, /* outside of captures nothing overlapped it, some times in a row */
    MK_PAIR_GEMM_DTYPE,
    MK_PAIR_SCALARS, /* alpha is not 1, beta not 0, C is not D, or they are on the device */
    MK_PAIR_COMPUTE, /* pedantic, 16F, TF32, emulated, scaled */
    MK_PAIR_EPILOGUE,
    MK_PAIR_ATTRIBUTE, /* one that we do not know, or a cublasLt newer than tested */
    MK_PAIR_BATCH,
    MK_PAIR_SHAPE,   /* G cannot do it */
    MK_PAIR_STREAMS, /* too many streams */
    MK_PAIR_FAILED,  /* G could not be launched: the original ran */
    MK_PAIR_ERROR,   /* the communicator has an error */
    MK_PAIR_REFUTED, /* K is plain: MK_VERIFY has seen C change between the two, in spite of a proof */
    MK_PAIR_REASONS
};

/* Where a call puts its work, and what is known there at that moment, under the lock. */
#define MK_PAIR_DEPS 4
struct mk_pair_at {
    uint64_t ctx, stream; /* ids */
    uint64_t enqueues;    /* counted so far in the context, of all its streams */
    uint64_t untold;      /* calls without an event so far, of all threads (mk_pair_out.again) */
    uint64_t capture;     /* id; 0: the stream is not capturing */
    /* Capturing: what the stream's next node would depend on, without those that another of them depends on itself (the
     * hook walks back a little in the graph): these order nothing. */
    uint64_t deps[MK_PAIR_DEPS];
    uint32_t ndeps;   /* more than MK_PAIR_DEPS: not known */
    uint8_t reduced;  /* some were left out */
    uint8_t counted;  /* `enqueues` is complete */
    uint8_t blocking; /* not created as non-blocking; the default streams too */
};

enum mk_pair_event_kind {
    MK_PAIR_EV_NONE = 0,
    /* calls: each is decided */
    MK_PAIR_EV_GEMM,
    MK_PAIR_EV_COLL,
    MK_PAIR_EV_P2P, /* send or receive (coll.comm): no operation number, but order, and a member of its group */
    MK_PAIR_EV_TAKE, /* the next held collective of this thread's group that has ended; `at` anew */
    /* what came of them; `at` once more, after the launch */
    MK_PAIR_EV_GEMM_DONE,
    MK_PAIR_EV_COLL_DONE,
    /* of this thread */
    MK_PAIR_EV_GROUP_START,
    MK_PAIR_EV_GROUP_END, /* before the real one; out.held: so many to TAKE */
    MK_PAIR_EV_GROUP_GAP, /* members of its group were not told */
    /* of streams */
    MK_PAIR_EV_EDGE, /* an event was recorded or waited for on `at` */
    MK_PAIR_EV_COPY,
    MK_PAIR_EV_CAPTURE_BEGIN, /* at.stream, at.capture */
    MK_PAIR_EV_CAPTURE_END,   /* at.capture */
    MK_PAIR_EV_STREAM_GONE,   /* at.ctx, at.stream: destroyed, and what was on it has ended */
    MK_PAIR_EV_PROOF_ENDS, /* somebody has driver functions that are not counted: no counters from now on */
    MK_PAIR_EV_REFUTED,    /* u.comm.number: what mk_pair_out.check was; C had changed before K */
    /* of communicators */
    MK_PAIR_EV_COMM_NEW,
    MK_PAIR_EV_COMM_ID,     /* the profiler's init */
    MK_PAIR_EV_PROFILED,    /* the profiler was told of a call of a collective (not send or receive) */
    MK_PAIR_EV_COMM_OFF,    /* set-up ended 'off' on all ranks */
    MK_PAIR_EV_COMM_AGREED, /* set-up ended well on all ranks; nothing is fused before the first SWITCH */
    MK_PAIR_EV_COMM_SWITCH, /* from operation `number` on the state word is `word` */
    MK_PAIR_EV_COMM_ERROR,  /* device, network, a dead peer, a peer that tells its own */
    MK_PAIR_EV_COMM_ABORT,  /* the user's abort or revoke, before the real one */
    MK_PAIR_EV_COMM_END,    /* destroyed */
    MK_PAIR_EV_REPLAY       /* a graph is launched on `at`; all of them, where enqueues are counted */
};

enum mk_pair_function { /* of collectives; those that are not ALLREDUCE run NCCL until their operator is built */
                        MK_PAIR_ALLREDUCE = 0,
                        MK_PAIR_REDUCESCATTER,
                        MK_PAIR_ALLGATHER,
                        MK_PAIR_ALLTOALL,
                        MK_PAIR_OTHER_FUNCTION,
                        MK_PAIR_FUNCTIONS
};
enum { MK_PAIR_OTHER_DTYPE = 3 }; /* any that is no mk_dtype_t */
enum mk_pair_epilogue {
    MK_PAIR_PLAIN_EPILOGUE = 0,
    MK_PAIR_BIAS,
    MK_PAIR_RELU_BIAS,
    MK_PAIR_GELU_BIAS,
    MK_PAIR_OTHER_EPILOGUE
};
enum mk_pair_gemm_flag {
    MK_PAIR_DEVICE_SCALARS = 1, /* pointer mode */
    MK_PAIR_PEDANTIC = 2,
    MK_PAIR_COMPUTE_16F = 4,
    MK_PAIR_TF32 = 8,
    MK_PAIR_EMULATED = 16,
    MK_PAIR_SCALED = 32, /* fp8 and its like */
    MK_PAIR_UNKNOWN_ATTRIBUTE = 64,
    MK_PAIR_NEW_LT = 128,
    MK_PAIR_C_NOT_D = 256,
    MK_PAIR_CANNOT = 512, /* our planner says no */
    MK_PAIR_NO_G = 1024   /* there is no G at all */
};

struct mk_pair_gemm { /* row-major, as in mkernel.h: B is the weight */
    int64_t m, n, k, lda, ldb, ldc;
    uint64_t a, b, c, bias;      /* addresses; bias 0: none */
    uint64_t extra, extra_bytes; /* anything else that G would touch */
    float alpha, beta;
    uint32_t flags, batch;
    uint8_t layout, a_type, b_type, c_type, epilogue; /* mk_layout_t, mk_dtype_t or MK_PAIR_OTHER_DTYPE */
};
struct mk_pair_coll {
    uint64_t comm;  /* handle */
    uint64_t count; /* elements */
    uint64_t send, recv;
    uint64_t caller;              /* return address: names the site in the log */
    uint8_t function, dtype, sum; /* sum: the operator is ncclSum */
    uint8_t window;               /* a buffer is registered as a window */
    uint8_t late;                 /* something that K needs on this rank is not there yet */
};
struct mk_pair_config {            /* agreed, the same on all ranks */
    uint64_t min_bytes, max_bytes; /* of the buffer */
    uint32_t functions, dtypes;    /* masks */
    uint32_t nranks;
    uint32_t granule; /* the count is a multiple of it, a power of two; 0: of 1 */
    uint8_t graph_only;
    /* Now and then calls outside of captures go to NCCL in turns, to be timed against K; which ones depends on the number of
     * the call within its size class alone. */
    uint8_t timed;
};
/* State word: bit 0 fused; from bit 8 on, classes of sizes that NCCL does faster outside of captures, and then those that it
 * does faster within. Class c: [2^(c+6), 2^(c+7)) bytes; the first has all below too, the last all above. */
#define MK_PAIR_FUSED UINT64_C(1)
#define MK_PAIR_CLASSES 28
#define MK_PAIR_SLOW_CLASS(captured, c) (UINT64_C(1) << (8 + ((captured) ? MK_PAIR_CLASSES : 0) + (c)))
uint32_t mk_pair_class(uint64_t bytes);

struct mk_pair_event {
    uint32_t kind;
    uint64_t thread; /* any number that tells threads apart */
    struct mk_pair_at at;
    union {
        struct mk_pair_gemm gemm;
        struct mk_pair_coll coll;
        struct {
            uint64_t comm; /* of COLL_DONE */
            uint64_t node; /* capturing: the kernel's node; 0: none or unknown */
            int32_t error; /* 0, or what the launch or NCCL returned */
            uint8_t act;   /* of COLL_DONE: what had been decided */
        } done;
        struct {
            uint64_t from, to, bytes;
        } copy;
        struct {
            uint64_t handle; /* NEW, OFF, AGREED, SWITCH, ERROR, ABORT, END */
            uint64_t id;     /* COMM_ID, PROFILED: commId */
            uint64_t number, word;
            struct mk_pair_config config; /* AGREED */
            uint32_t rank, nranks; /* NEW: as NCCL answers; COMM_ID, PROFILED: as the profiler was told */
            uint32_t reason;       /* OFF */
            int32_t error;         /* ERROR: MK_ERR_* */
            uint8_t nonblocking;   /* NEW */
        } comm;
    } u;
};

enum mk_pair_act {
    MK_PAIR_NOTHING = 0,
    MK_PAIR_DO_ORIGINAL, /* GEMM: the original call */
    MK_PAIR_DO_G,
    MK_PAIR_DO_NCCL,    /* the original call */
    MK_PAIR_DO_PLAIN,   /* K, launched plainly */
    MK_PAIR_DO_OVERLAP, /* K, with programmatic serialization, polling G's tile flags */
    MK_PAIR_DO_HOLD,    /* K, decided at the group's end */
    MK_PAIR_DO_FAIL,    /* return the error */
    MK_PAIR_ACTS
};
enum mk_pair_proof {
    MK_PAIR_UNPROVED = 0,
    MK_PAIR_BY_CAPTURE,
    MK_PAIR_BY_COUNTERS,
    MK_PAIR_ASSUMED /* there is none: MK_VERIFY=2 */
};
enum mk_pair_order { /* to wait for before the launch: the communicator's operation before this one */
                     MK_PAIR_IN_ORDER = 0,
                     MK_PAIR_WAIT_EVENT,   /* an event edge */
                     MK_PAIR_WAIT_NODE,    /* a dependency edge to its node */
                     MK_PAIR_WAIT_EXTERNAL /* an external event's wait node */
};
enum mk_pair_record { MK_PAIR_NO_RECORD = 0, MK_PAIR_RECORD_EVENT, MK_PAIR_RECORD_EXTERNAL };
enum mk_pair_ask {                        /* what else to do */
                   MK_PAIR_ASK_ABORT = 1, /* raise the communicator's abort word now */
                   MK_PAIR_ASK_TELL = 2,  /* tell its peers the error */
                   MK_PAIR_ASK_OFF = 4,   /* let set-up end 'off', or propose a switch to off */
                   MK_PAIR_ASK_LOG = 8    /* the first time for this call site and reason */
};
enum { MK_PAIR_OWN_DESCRIPTOR = -1 }; /* a captured pair's, owned by the graph */
struct mk_pair_out {
    uint8_t act, reason, proof, order, record;
    uint8_t room; /* G: leave blocks to K, which may start early */
    uint8_t fork; /* K runs beside NCCL's rest: fork before the real group end, join after */
    /* ORIGINAL, NCCL: a call like it will be decided alike, whatever comes before it, and need not be told: a GEMM whose C is neither
     * bf16 nor fp16; any operation of the communicator, until something is told of that (COMM_*, but PROFILED) or asked (ABORT,
     * OFF). */
    uint8_t again;
    uint8_t reduce; /* K: set the capture dependencies to G's node alone first, the others come before G */
    uint32_t asks;
    int32_t error;      /* FAIL: MK_ERR_* */
    int32_t descriptor; /* G and OVERLAP: the stream's, or MK_PAIR_OWN_DESCRIPTOR */
    uint32_t held;
    uint32_t check;      /* OVERLAP with options.verify: its site's number, from 1 on; 0: too many sites */
    uint64_t generation; /* of G in that descriptor, from 1 on; a captured pair: its serial number */
    uint64_t number;     /* operation number of a collective */
    /* Of a collective whose time counts, in K's turn or NCCL's: its class, its number among those, and whether NCCL is what
     * is decided for the class. Of a GEMM: whether that of the collective behind it will. */
    uint64_t nth;
    uint8_t timed, class, now;
    uint64_t
        comm; /* handle: TAKE; G when an order is to be kept before it; a GEMM whose time counts (timed) */
    uint64_t
        node; /* WAIT_NODE: what the edge comes from; 0: all that the communicator's last operations made */
};

#define MK_PAIR_CHECKS 1023 /* sites that can be checked */

struct mk_pair_options {
    uint32_t streams, sites; /* at most; 0: 256, 65536 */
    uint32_t witness;        /* W; 0: 4 */
    uint32_t epilogues;      /* mask of those that G can do */
    uint8_t deterministic;   /* MK_DETERMINISTIC: a site runs G from its first call or never */
    uint8_t plain;           /* never overlap */
    /* 1: what OVERLAP says is carried out plainly, and C looked at in between; 2: also where there is no proof */
    uint8_t verify;
    uint8_t
        proved_only; /* a GEMM that K could not be proved to follow stays the original (not if deterministic) */
};

int mk_pair_create(const struct mk_pair_options *options, struct mk_pair **out);
void mk_pair_destroy(struct mk_pair *p); /* NULL is allowed */
/* Not thread safe: the caller locks. INVALID: an event that cannot be, NOMEM: one that could not be taken in (COMM_NEW,
 * COMM_ID, GROUP_START); nothing has changed. Otherwise 0, also where what is decided is to fail. */
int mk_pair_step(struct mk_pair *p, const struct mk_pair_event *e, struct mk_pair_out *out);

/* No communicator is known that can fuse, nor one that may be about to: every GEMM is the original, and none need be told. Never
 * if deterministic, where a site's first call counts. */
bool mk_pair_idle(const struct mk_pair *p);

struct mk_pair_comm_facts {
    uint64_t id, number; /* commId (0: not tied), operations begun */
    uint32_t rank, nranks, streak;
    int32_t error;
    uint8_t ready; /* this rank may agree to set-up: tied, and the last W collectives were witnessed */
    uint8_t agreed, off;
};
/* false: no such communicator. */
bool mk_pair_comm(const struct mk_pair *p, uint64_t handle, struct mk_pair_comm_facts *out);

struct mk_pair_counts {
    uint64_t act[MK_PAIR_ACTS], reason[MK_PAIR_REASONS];
    uint64_t sites, forgotten; /* known; sightings for which there was no room */
};
void mk_pair_count(const struct mk_pair *p, struct mk_pair_counts *out);

const char *mk_pair_reason_name(uint32_t reason);   /* a word for the log line: "intruder" */
const char *mk_pair_reason_advice(uint32_t reason); /* a sentence for mkinfo --explain */
const char *mk_pair_act_name(uint32_t act);
/* The log line of a decision; returns its length as snprintf does. site: where the collective was called from, for
 * people; NULL: its address. */
int mk_pair_line(const struct mk_pair_event *e, const struct mk_pair_out *out, const char *site, char *text,
                 size_t bytes);
/* Of a collective that was to overlap, and whose C had changed before it. between: names of calls, with commas. */
int mk_pair_check_line(const struct mk_pair_event *e, const struct mk_pair_out *out, const char *site,
                       const char *between, char *text, size_t bytes);
