/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Two ways timed against each other (choose_way.c): fused, or one part after the other (choose.c); our AllReduce, or NCCL's
 * (rival.c). Private to fused/ and its tests. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MK_CHOOSE_CLASSES 64 /* bits of the agreed value */
#define MK_CHOOSE_ROUND 8    /* tries of a round, the two ways in turns */

struct mk_comm;
struct mk_gemm_call;

/* How a call is to be made. */
struct mk_choice {
    int class;      /* -1: fused, and nothing is learned */
    int now, way;   /* 0 fused, 1 one part after the other: what is decided, what this call does */
    bool in_round;  /* its time counts */
    bool last;      /* of a round */
    uint64_t round; /* the call that it began with */
    uint64_t value;
};

/* Samples of rank 0, for one class. */
struct mk_choose_times {
    uint64_t ns[2][MK_CHOOSE_ROUND / 2], median[2]; /* of this round; of the last whole one */
    int n[2], score;
    uint64_t round, rounds; /* of these samples; whole ones so far */
};

/* Pure. Call number `call` of its class, where `now` is decided: fills all but class and value. */
void mk_choose_way(uint64_t call, int now, struct mk_choice *out);
/* Pure. A call of a round took ns. True: a switch is worth proposing. */
bool mk_choose_note(struct mk_choose_times *t, const struct mk_choice *choice, uint64_t ns);
/* Its parts: how much speaks for the other way; is it enough, over the rounds so far? */
int mk_choose_points(uint64_t have, uint64_t other);
bool mk_choose_won(int *score, int points);
uint64_t mk_choose_median(uint64_t *v, int n); /* sorts them; n > 0 */

/* Needs the bootstrap, and comm->may_choose; makes nothing otherwise. */
int mk_choose_open(struct mk_comm *comm);
/* After the bootstrap's end, with which its thread, and so mk_choose_said, has ended. mine: not in a forked child. */
void mk_choose_close(struct mk_comm *comm, bool mine);
/* Under call_lock, once for each call, the same on all ranks. Waits where a switch is being decided. */
int mk_choose_begin(struct mk_comm *comm, const struct mk_gemm_call *call, struct mk_choice *out);
/* On the boot thread: a message of the agreement. */
void mk_choose_said(void *comm, int from, const void *bytes, size_t n);
/* After a call that succeeded. */
void mk_choose_end(struct mk_comm *comm, const struct mk_choice *choice, uint64_t ns);

/* For tests: what rank 0 takes for the time of a call. NULL: the time. */
extern uint64_t (*mk_choose_test_ns)(const struct mk_choice *choice, uint64_t ns);
