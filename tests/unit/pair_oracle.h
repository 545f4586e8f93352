/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What the rules say of each call, worked out anew from the whole history of a rank every time: slow, and without any of the
 * machine's tables. */
#pragma once
#include "mk/pair.h"

enum oracle_kind {
    ORACLE_GEMM,
    ORACLE_OP, /* a collective, where it is launched: the end of its group */
    ORACLE_P2P,
    ORACLE_WORK,    /* anything foreign on a stream */
    ORACLE_EDGE,    /* an event recorded or waited for, eager or captured */
    ORACLE_CAPTURE, /* a capture begins on the stream */
    ORACLE_REPLAY,
    ORACLE_UNPROVED,
    ORACLE_NEW,
    ORACLE_AGREED,
    ORACLE_SWITCH,
    ORACLE_ERROR,
    ORACLE_END,
    ORACLE_UNTOLD /* work by a call that was passed on without an event */
};
struct oracle_entry {
    enum oracle_kind kind;
    int stream, comm;
    struct mk_pair_at at;
    struct mk_pair_gemm gemm;
    struct mk_pair_coll coll;
    uint64_t number, word; /* of a collective; of a switch */
    uint64_t node;         /* that it made in its capture */
    int took;              /* OP: 1 + the GEMM whose C it sends */
    bool larger;           /* in a group with others */
    bool failed;           /* GEMM: G could not be launched */
    bool unknown;          /* GEMM: no sighting fits it */
    uint32_t act;
};
struct oracle {
    struct oracle_entry *at;
    int n, most;
    bool deterministic, plain;
};

/* What must be decided for e, which comes next. Sets e->unknown, e->took. */
uint32_t oracle_gemm(const struct oracle *o, struct oracle_entry *e);
uint32_t oracle_op(const struct oracle *o, struct oracle_entry *e);
/* K by what all ranks share? */
bool oracle_shared(const struct oracle *o, const struct oracle_entry *e);
/* Is the communicator's operation before e over when e starts, without any wait of e's own? `g`: the GEMM that e follows
 * overlapped, or -1. */
bool oracle_in_order(const struct oracle *o, const struct oracle_entry *e, int g);
void oracle_add(struct oracle *o, const struct oracle_entry *e);
