/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Never slower, for intercepted collectives: what rank 0 of a communicator learns from the times of K and of NCCL, and the
 * state word (mk/pair.h) that it would have in force. Pure; the adapter measures, set-up proposes. fused/rival.c. */
#pragma once
#include "mk/pair.h"

/* Of the GPU: what of it K and G have. */
struct mk_rival_share {
    int sms;    /* that cuBLAS has; 0: nothing is known */
    int blocks; /* G's and K's together */
    int room;   /* that G leaves to a K that may start early ... */
    int narrow; /* ... and how much longer K takes there than by itself */
    bool near;  /* one node */
};
/* The state word to begin with, before anything was timed. */
uint64_t mk_rival_first(const struct mk_rival_share *share);

struct mk_rival_sample {
    uint64_t nth, ns; /* mk_pair_out.nth; of the collective alone */
    uint64_t gemm_ns; /* of the GEMM whose output it sends, right before it; 0: none, or not known */
    uint32_t tiles;   /* of that GEMM's output, as G cuts it: 128 x 256 */
    uint32_t class;
    bool nccl, now; /* whose turn it was; mk_pair_out.now */
    bool together;  /* K overlapped its GEMM: ns is what the two took less gemm_ns, the original's */
};
/* What a round of a class came to, for the log. */
struct mk_rival_round {
    uint64_t k_ns, nccl_ns, gemm_ns; /* medians; gemm 0: none */
    uint64_t pair_ns;                /* G and K together, as estimated, or as most were timed */
    bool eager, captured;            /* NCCL is wished for, outside and within captures */
    bool changed;
};

struct mk_rival;
struct mk_rival *mk_rival_create(const struct mk_rival_share *share); /* NULL: no memory */
void mk_rival_destroy(struct mk_rival *r);
/* In the order of the calls. True: a round is over, *out is filled. */
bool mk_rival_note(struct mk_rival *r, const struct mk_rival_sample *s, struct mk_rival_round *out);
/* K was captured: together with its GEMM, or by itself. Where most are by themselves, later captures are judged so. */
void mk_rival_captured(struct mk_rival *r, uint32_t class, bool overlapped);
/* Its log line, which mkinfo --explain reads; returns its length as snprintf does. */
int mk_rival_line(uint32_t class, const struct mk_rival_round *r, const void *comm, char *text, size_t bytes);
/* MK_PAIR_FUSED, and the classes that are NCCL's. */
uint64_t mk_rival_word(const struct mk_rival *r);
