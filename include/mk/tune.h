/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What NCCL's collectives are run with: algorithm, protocol, channels (an SM each). Pure code; plugin/nccl/tuner.c is NCCL's side.
 *
 * All ranks must choose alike, and NCCL does not check: ranks that differ hang. What a rank knows by itself never decides
 * alone: its timings, what it reads, not even its setting MK_TUNER or that it has this plugin at all. So a choice is
 * changed only by a table that all ranks have agreed on, from an operation number on (mk_tune_turn); without one NCCL's
 * choice stands. That is also what is known to be good: NCCL's costs come from the machine's topology, which a tuner does
 * not see; a model that contradicts them is more often wrong than right. The model here says what is worth a trial, which
 * is agreed on too, and measured. */
#pragma once
#include "mk/profile.h"

/* ---- SM budget: one place for NCCL's channels and fused kernels ---- */

/* At most a quarter of the SMs communicate; fused kernels have `fused` of them (the sum of R of the communicators that are
 * agreed as fused, whether they run or not), NCCL the rest, at least 2 and at most what it has (0: unknown). No fused
 * communicator: 0, no limit. */
uint32_t mk_budget_channels(uint32_t sms, uint32_t fused, uint32_t nccl);
/* What fused kernels may take together, when NCCL has `nccl` channels: the SMs less those (design 5.6). */
uint32_t mk_budget_fused(uint32_t sms, uint32_t nccl);
/* Of this process: a communicator is agreed as fused with R = blocks (0: not any more). INVALID: too many communicators. */
int mk_budget_set(uint64_t comm_id, uint32_t blocks);
uint32_t mk_budget_get(void); /* the sum */

/* ---- model ---- */

/* Equal on all ranks: from NCCL's init. */
struct mk_tune_facts {
    uint64_t comm_id; /* 0: the version does not say (before NCCL 2.28) */
    int nranks, nnodes;
    bool has_constants; /* NCCL's, us and GB/s; indices are NCCL's */
    double base_us[MK_ALGO_COUNT][MK_PROTO_COUNT];
    double hop_us[3][MK_ALGO_COUNT][MK_PROTO_COUNT]; /* NVLink, PCI, network */
    double ring_ll128, tree_ll128, tree_simple; /* GB/s of a channel, the largest; of this machine's kind */
};
/* Latency of a collective without its bytes, us. Negative: not modelled (no constants, or neither ring nor tree). */
double mk_model_latency(const struct mk_tune_facts *f, int coll, int algo, int proto);
/* Its time with `channels`, us, where with `known_channels` (0: so many that the link is full) it takes known_us. A channel
 * carries so much and no more; the link, whatever NCCL assumed or was measured. Negative: not modelled. */
double mk_model_time(const struct mk_tune_facts *f, int coll, int algo, int proto, uint64_t bytes,
                     int channels, double known_us, int known_channels);

/* ---- agreed tables ---- */

#define MK_TUNE_ENTRIES 64
struct mk_tune_entry { /* for collectives of [from, to] size classes: floor(log2(bytes)) */
    uint8_t coll, from, to;
    uint8_t algo, proto; /* MK_NAME_UNKNOWN: NCCL's */
    uint8_t channels;    /* at most; 0: NCCL's */
    uint16_t uses;       /* so many calls from the table's first on, then NCCL's choice again; 0: always */
};
struct mk_tune_table {
    uint32_t count;
    uint32_t cap; /* channels of every collective of a communicator that is fused; 0: no limit */
    struct mk_tune_entry entry[MK_TUNE_ENTRIES];
};
/* The same for the same content, on all machines; never 0. */
uint64_t mk_tune_id(const struct mk_tune_table *t);
bool mk_tune_valid(const struct mk_tune_table *t);

/* What was measured of one way to run a collective: from profiles. */
struct mk_tune_sample {
    uint8_t coll, size_class, algo, proto, channels;
    uint32_t n;
    double low, median, high; /* us; the 95 % interval of the median */
};
/* From a kind of a profile; false: fewer than 30 times, or nothing that can be chosen. */
bool mk_tune_sample_of(const struct mk_kind *k, struct mk_tune_sample *out);
/* Of a communicator's profile, at most `most`. Returns how many. */
int mk_tune_samples(struct mk_profile *p, struct mk_profile_comm *c, struct mk_tune_sample *out, int most);
/* The next table, from what was measured (with `now` in force; NULL: none). A way that is not NCCL's enters if it is faster
 * than NCCL's outside both intervals, below 64 KiB too; it leaves when it is slower outside them; else all stays. From 64 KiB
 * on one with fewer channels may be 2 % slower. NCCL's way
 * is the one measured most often that no entry of `now` asks for. trial: at most one entry more, which the model takes for
 * the best candidate from 64 KiB on, for 40 calls: a number of channels, never an algorithm. Returns whether it differs from
 * `now`. */
bool mk_tune_build(const struct mk_tune_facts *f, const struct mk_tune_table *now,
                   const struct mk_tune_sample *s, int n, uint32_t cap, bool trial,
                   struct mk_tune_table *out);

/* ---- a communicator ---- */

struct mk_tune;
/* OBSERVE logs what it would do (INFO): every 512 operations what it would propose from this process's profile, if there is
 * one; and what an agreed table would change. */
enum mk_tune_mode { MK_TUNE_OBSERVE, MK_TUNE_ON };
int mk_tune_open(const struct mk_tune_facts *f, enum mk_tune_mode mode, struct mk_tune **out);
void mk_tune_close(struct mk_tune *t);
const struct mk_tune_facts *mk_tune_facts_of(const struct mk_tune *t);

/* The seam to the agreement (mk/tuner.h's mk_agree, whatever carries its messages). begin: the next operation begins; *id is
 * what is in force for it: an id of mk_tune_offer, or 0. It may wait for a fence. Not 0: the outcome is unknown here (rank 0
 * is dead): what was in force stays. */
struct mk_tune_turn {
    int (*begin)(void *ctx, uint64_t *id);
    void *ctx;
};
void mk_tune_set_turn(struct mk_tune *t, const struct mk_tune_turn *turn); /* before the first operation */
const struct mk_tune_turn *mk_tune_turn_of(const struct mk_tune *t);       /* begin NULL: none */
/* A table that may come into force. Returns the value to agree on; 0, which is also the value for "no table", if it is not
 * valid or there is no room. The value is another one for another mode and another version of the rules here: such ranks never
 * agree. A rank refuses a proposal whose value it has not (mk_tune_has), so tables travel before proposals. Each offer is
 * kept until it was in force and another one is, or until it is dropped: which is due when its proposal was refused, aborted or
 * not made. So there is always room: one is in force, one decided and not reached, one open. */
uint64_t mk_tune_offer(struct mk_tune *t, const struct mk_tune_table *table);
void mk_tune_drop(struct mk_tune *t, uint64_t id);
bool mk_tune_has(struct mk_tune *t, uint64_t id);
/* The table that rank 0 would propose now: mk_tune_build from what this process measured of the communicator (as that rank;
 * -1: as any), and the table in force, which the result replaces. false: nothing is profiled, or nothing new came out. Takes
 * some ten microseconds. */
bool mk_tune_consider(struct mk_tune *t, int rank, uint32_t cap, bool trial, struct mk_tune_table *out);
/* Called in every mk_tune_open from now on, before the first operation, for whoever carries agreements in another way than
 * NCCL's face does (plugin/nccl/carry.c). NULL: nobody. */
void mk_tune_on_open(void (*opened)(void *ctx, struct mk_tune *t), void *ctx);

struct mk_tune_ask {
    int coll;
    uint64_t bytes;
    float *cost; /* [algos][protos], dense; us; negative: impossible. NULL: the version has none */
    int algos, protos;
};
struct mk_tune_answer {
    int algo, proto; /* -1: NCCL's */
    int channels;    /* 0: NCCL's */
    uint64_t id;     /* of the table that said so; 0: none */
    bool applies;    /* mode ON; else it is what would be chosen */
};
/* One operation. What is not allowed (a cell of -1, a table that is all -1, not a number, or ambiguous) is left to NCCL. In
 * mode ON changes cost: the chosen cell becomes 0; no other cell is touched. */
void mk_tune_next(struct mk_tune *t, const struct mk_tune_ask *ask, struct mk_tune_answer *answer);
