/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Words in pinned host memory between a communicator's blocks on the GPU and its host. C11 and CUDA.
 *
 *   word            written by                              read by
 *   abort           host (release): a code, negated         an idle block, now and then (acquire, sys)
 *   failed          a block (release, sys), after what[]    host, watching thread (acquire)
 *   what[]          the block that won state->report_claim  host, after `failed`
 *   waiting, wait[] an idle block, about once in 100 ms     host: text of the reminder (relaxed; a torn record costs
 *                                                           a wrong word in a log line, nothing else)
 *   need_*[],       an idle block, with wait[]: bit p: the  host: is a neighbour that is gone still needed?
 *   undrained[]     launch needs local rank or node p; not  (relaxed; told (release, then acquire) says that all
 *                   all that was sent to node p is there    of them were written after a certain moment)
 *   left[]          host: bit p: node p's rank has left     the last block, which waits for what was sent (relaxed)
 *   taught[]        who makes the controller's first step   host, before a later launch of that class
 *                   of a launch (ops/gemm_ar_ctl.h)
 *   begun, ended    first block to enter, last to leave:    host
 *                   the epoch (relaxed, sys) */
#pragma once
#include "ops/gemm_ar_ctl.h"
#include <stdint.h>

enum mk_gpu_what {
    MK_WHAT_KIND = 0,  /* enum mk_ar_kind of the queue whose head is not ready */
    MK_WHAT_PEER = 1,  /* local rank or node of that queue */
    MK_WHAT_ITEM = 2,  /* its number in the queue */
    MK_WHAT_CHUNK = 3, /* chunk or tile */
    MK_WHAT_EPOCH = 4,
    MK_WHAT_SINCE = 5, /* ns without progress */
    MK_WHAT_BLOCK = 6,
    MK_WHATS = 8
};
#define MK_WHAT_SENT 11 /* a kind: what was sent is not all at node MK_WHAT_PEER yet */
#define MK_PEER_WORDS 4 /* a bit for each of MK_MAX_PEERS */

struct mk_gpu_words {
    uint64_t abort;
    uint64_t pad0[15];
    uint64_t failed; /* a code, negated: MISMATCH or TIMEOUT */
    uint64_t what[MK_WHATS];
    uint64_t waiting; /* 0: nobody has waited for long in this launch; else its epoch */
    uint64_t wait[MK_WHATS];
    uint64_t told; /* how often they were written */
    uint64_t need_local[MK_PEER_WORDS], need_node[MK_PEER_WORDS], undrained[MK_PEER_WORDS];
    uint64_t begun, ended;
    uint64_t pad1[16];
    uint64_t left[MK_PEER_WORDS];
    uint64_t pad2[12];
    uint64_t taught[MK_AR_CTL_CLASSES][MK_AR_TAUGHT];
};

/* Timeline: what a block did. Times of the GPU's clock. */
struct mk_gpu_event {
    uint64_t begin_ns, end_ns;
    uint32_t kind; /* enum mk_ar_kind; MK_AR_KINDS: nothing */
    uint32_t index;
};

/* In device memory: what the tile side needs beyond struct mk_ar (mk_ar.host). */
struct mk_gpu_device {
    struct mk_gpu_words *words;
    uint64_t peer_timeout_ns;   /* 0: none */
    uint64_t report_claim;      /* 0, 1: a block reports its failure */
    uint64_t abort;             /* mk_ar.abort_word: not 0: all blocks leave (release, acquire, sys) */
    struct mk_gpu_event *trace; /* [block][trace_room]; NULL: no timeline */
    uint32_t *traced;           /* [block]: events of the last launch, also those without room */
    uint32_t trace_room, pad;
};
