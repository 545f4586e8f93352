/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What interception (plugin/intercept/adapt*.c) runs in place of somebody's GEMM and collective: our kernels G and K
 * behind a table of functions. The pair recogniser (mk/pair.h) decides, the adapter asks the table to carry it out.
 *
 * All functions but prepare, abort, off, tidy and end are called with the recogniser's lock held, so nothing comes between a proof and the launch it is for:
 * they enqueue and return, wait for nobody, and call no function that is hooked. `comm` is NCCL's handle; streams are
 * handles as the caller had them. An int is 0 or MK_ERR_*. */
#pragma once
#include "mk/pair.h"
#include "mk/rival.h"

struct mk_fuse_g {
    const struct mk_pair_gemm *gemm;
    void *stream;
    int32_t descriptor; /* whose generation G bumps; MK_PAIR_OWN_DESCRIPTOR: one of the graph's own */
    uint64_t generation;
    bool room; /* leave blocks to K, which may start early */
    bool captured;
    bool check; /* MK_VERIFY: C is added up behind it */
};
struct mk_fuse_k {
    void *comm, *stream;
    const void *send;
    void *recv;
    uint64_t count;
    uint64_t number; /* operation number */
    uint8_t dtype;   /* mk_dtype_t */
    bool overlap;    /* programmatic serialization; polls the tile flags of `descriptor` at `generation` */
    bool
        beside; /* beside the rest of its group: on a stream of its own, forked from `stream`; join follows */
    bool reduce; /* set the capture's dependencies to G's node alone first */
    bool captured;
    int32_t descriptor;
    uint64_t generation;
    /* MK_VERIFY, without overlap and reduce: C of the G of `descriptor` at `generation` is compared before K, for this
     * site (mk_pair_out.check). 0: it is not. */
    uint32_t check;
};

#define MK_FUSE_STAMPS 192

struct mk_fuse_ops {
    uint32_t epilogues;           /* mask of enum mk_pair_epilogue */
    struct mk_pair_config config; /* what K can do; ranks and mode are filled in by set-up */
    /* Everything that K needs on this rank for a call within these limits, before the communicator may be agreed on. Called
     * without the lock by the thread of a collective on `stream`, again and again until 0; waits for no peer. id: NCCL's commId,
     * the same on all ranks. AGAIN: not yet; another error: never, and set-up ends 'off' on all ranks (UNSUPPORTED: no kernels
     * for this machine). NULL: nothing is needed. */
    int (*prepare)(void *comm, void *stream, uint64_t id, int rank, int nranks);
    bool (*can)(const struct mk_pair_gemm *gemm); /* is there a G for these sizes? */
    int (*launch_g)(const struct mk_fuse_g *g);
    int (*launch_k)(const struct mk_fuse_k *k);
    /* Is something of this rank, that K needs, not there yet? NULL: never. */
    bool (*late)(void *comm);
    /* Before a launch on `stream`: let it wait for the communicator's operation before this one. */
    int (*wait)(void *comm, void *stream, enum mk_pair_order how, uint64_t node);
    /* After an operation of the communicator on `stream`, ours or NCCL's: what a later one waits for. */
    int (*record)(void *comm, void *stream, enum mk_pair_record how);
    /* After the group has ended: `stream` waits for what ran beside it. */
    int (*join)(void *comm, void *stream);
    /* Puts time stamp `which` of the communicator (below MK_FUSE_STAMPS) on a stream that is not capturing. NULL: nothing is timed. */
    int (*stamp)(void *comm, void *stream, uint32_t which);
    /* Between two of them. AGAIN: not over yet. NULL with stamp. */
    int (*between)(void *comm, uint32_t from, uint32_t to, uint64_t *ns);
    /* What of the GPU the communicator's kernels have; after prepare. NULL: not known. */
    void (*share)(void *comm, struct mk_rival_share *out);
    /* Pairs of a site (0: of all) that were compared so far, or of these those whose C differed. Also without the lock. NULL:
     * MK_VERIFY does nothing. */
    uint64_t (*checked)(uint32_t site, bool differed);
    /* 0, or why the communicator cannot go on: a launch of it failed since. Also without the lock. NULL: never. */
    int (*error)(void *comm);
    /* Raise the communicator's abort word; tell: its peers are told the error, too. */
    void (*fail)(void *comm, int error, bool tell);
    /* The user aborts it: what is under way leaves. Without the lock, which a launch may hold that waits for room; peers are told
     * nothing, since they may need no more of this rank. NULL: nothing. */
    void (*abort)(void *comm);
    /* Set-up ended 'off': it will never have a K, and had none; what K would have had is there for others. Without the lock, from
     * any thread, waits for nobody and frees nothing that the device is waited for. id: as in prepare; by now the handle may be
     * another communicator's, which is not meant. NULL: nothing. */
    void (*off)(void *comm, uint64_t id);
    /* NCCL has destroyed or aborted a communicator, for which it waited for the device: what those had that are off or ended is
     * freed, which does, too. Without the lock. NULL with off. */
    void (*tidy)(void);
    /* The communicator is about to be destroyed or aborted: it has no K any more, one under way ends by MK_TIMEOUT, and tidy
     * will free what it had. Not before: a kernel of NCCL's may wait for peers that never come until NCCL itself has aborted
     * it, and what frees memory waits for that kernel. (A tidy for another thread's destroy may come before; it frees in a
     * thread of its own, and its caller waits a moment.) Without the lock, and waits for nobody. */
    void (*end)(void *comm);
};

/* The kernels of this build (on which machine is asked by prepare). NULL: there are none, and *why (if not NULL) is a clause that says why. */
const struct mk_fuse_ops *mk_fuse_ops(const char **why);
