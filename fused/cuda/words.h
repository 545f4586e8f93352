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
 *   begun, ended    first block to enter, last to leave:    host
 *                   the epoch (relaxed, sys) */
#pragma once
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

struct mk_gpu_words {
    uint64_t abort;
    uint64_t pad0[15];
    uint64_t failed; /* a code, negated: MISMATCH or TIMEOUT */
    uint64_t what[MK_WHATS];
    uint64_t waiting; /* 0: nobody has waited for long in this launch; else its epoch */
    uint64_t wait[MK_WHATS];
    uint64_t begun, ended;
};

/* In device memory: what the tile side needs beyond struct mk_ar (mk_ar.host). */
struct mk_gpu_device {
    struct mk_gpu_words *words;
    uint64_t peer_timeout_ns; /* 0: none */
    uint64_t report_claim;    /* 0, 1: a block reports its failure */
    uint64_t abort;           /* mk_ar.abort_word: not 0: all blocks leave (release, acquire, sys) */
};
