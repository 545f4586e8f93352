/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Never slower, for intercepted collectives: what rank 0 of a communicator learns from the times of K and of NCCL, and the
 * state word (mk/pair.h) that it would have in force. Pure; the adapter measures, set-up proposes. fused/rival.c. */
#pragma once
#include "mk/pair.h"

struct mk_rival_sample {
    uint64_t nth, ns; /* mk_pair_out.nth; of the collective alone */
    uint64_t gemm_ns; /* of the GEMM whose output it sends, right before it; 0: none, or not known */
    uint32_t class;
    bool nccl, now; /* whose turn it was; mk_pair_out.now */
};
/* What a round of a class came to, for the log. */
struct mk_rival_round {
    uint64_t k_ns, nccl_ns, gemm_ns; /* medians; gemm 0: none */
    bool eager, captured;            /* NCCL is wished for, outside and within captures */
    bool changed;
};

struct mk_rival;
struct mk_rival *mk_rival_create(void); /* NULL: no memory */
void mk_rival_destroy(struct mk_rival *r);
/* In the order of the calls. True: a round is over, *out is filled. */
bool mk_rival_note(struct mk_rival *r, const struct mk_rival_sample *s, struct mk_rival_round *out);
/* K was captured: together with its GEMM, or by itself. Where most are by themselves, later captures are judged so. */
void mk_rival_captured(struct mk_rival *r, uint32_t class, bool overlapped);
/* MK_PAIR_FUSED, and the classes that are NCCL's. */
uint64_t mk_rival_word(const struct mk_rival *r);
