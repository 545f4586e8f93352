/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What the tuner keeps for those above it: agreement on switches (tuner/agree.c), and starting points that were learned
 * (tuner/start.c, start_file.c). Pure code: no CUDA, no NCCL, no network. */
#pragma once
#include "mk/param.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- agreement ----
 *
 * A decision in force (fused or not, a budget ...) is a 64-bit value, the same on all ranks for each operation number. It
 * changes in three steps:
 *   PROPOSE  rank 0 to all: id, value
 *   ACK      each to rank 0, at once: how many operations its host has begun. From then on this rank begins none from
 *            its fence on, that count + L, before it knows the outcome. REFUSE: an earlier switch is not yet reached
 *   COMMIT   rank 0 to all, once it has every ACK: the switch is at number N = L past the highest count, so no fence lies
 *            behind N and nobody has begun it. Or ABORT: the old value stays, the fences fall
 * A rank whose fence stands waits for rank 0 alone, and rank 0 decides as soon as all have answered or one is dead. Should
 * rank 0 die, whoever has no COMMIT never passes its fence, hence never begins N; who has it may: nobody runs one
 * number with two values. Every message is answered at once and none is held back for a host, so hosts may run
 * ahead, and wait for each other in any order.
 *
 * The machine is pure: the caller carries messages, in order between two ranks, and hands in deaths. Not thread safe: the
 * caller locks. */
enum mk_agree_kind {
    MK_AGREE_NONE = 0,
    MK_AGREE_PROPOSE = 1,
    MK_AGREE_ACK = 2,
    MK_AGREE_REFUSE = 3,
    MK_AGREE_COMMIT = 4,
    MK_AGREE_ABORT = 5
};
struct mk_agree_msg {
    uint32_t kind;   /* enum mk_agree_kind; NONE: nothing to send */
    uint32_t id;     /* of the proposal; grows */
    uint64_t value;  /* PROPOSE */
    uint64_t number; /* ACK: operations begun; COMMIT: the first with the new value */
};
#define MK_AGREE_MAX_RANKS 1024
struct mk_agree {
    int32_t rank, nranks;
    uint64_t lead;   /* L */
    uint64_t value;  /* in force before `number` */
    uint64_t begun;  /* operations that this host has begun: the next one has this number */
    uint64_t number; /* of a switch that is decided and not yet reached; UINT64_MAX: none */
    uint64_t next;   /* its value */
    uint64_t fence;  /* no operation from this number on; UINT64_MAX: none */
    uint64_t offer;  /* value of the open proposal */
    uint32_t id;     /* of the last proposal seen */
    bool open;       /* it is not decided, as far as is known here */
    bool root_died;
    /* rank 0 */
    uint64_t highest;
    int32_t answers;
    uint8_t answered[MK_AGREE_MAX_RANKS / 8], dead[MK_AGREE_MAX_RANKS / 8];
};

/* INVALID: rank, nranks or lead (at least 1) out of range. */
int mk_agree_init(struct mk_agree *a, int32_t rank, int32_t nranks, uint64_t lead, uint64_t value);
/* The host wants to begin its next operation. 0: it may, *value is what holds for it, and it is counted; MK_ERR_AGAIN: the
 * fence stands, ask again after the next message or death; MK_ERR_PEER: rank 0 died and the outcome is unknown here. */
int mk_agree_begin(struct mk_agree *a, uint64_t *value);
/* Rank 0: *to_all is to be sent to all others. MK_ERR_AGAIN: a proposal is open or a switch not yet reached; MK_ERR_PEER:
 * somebody is dead. */
int mk_agree_propose(struct mk_agree *a, uint64_t value, struct mk_agree_msg *to_all);
/* A message from `from`. *reply goes to rank 0, or from rank 0 to all others that live (reply->kind NONE: to nobody).
 * MK_ERR_INVALID: it is none that this rank can get from that one now; nothing has changed. */
int mk_agree_receive(struct mk_agree *a, int32_t from, const struct mk_agree_msg *msg,
                     struct mk_agree_msg *reply);
/* Instead of receive, where rank 0 proposes what this rank cannot do: it is given up, by all. INVALID as there. */
int mk_agree_refuse(struct mk_agree *a, const struct mk_agree_msg *msg, struct mk_agree_msg *reply);
/* Rank `who` is dead. *to_all as the reply of receive. */
int mk_agree_died(struct mk_agree *a, int32_t who, struct mk_agree_msg *to_all);

/* ---- starting points ----
 *
 * What a launch of some kind ended at, for the next one of its kind: in memory, and in a file if MK_TUNER_FILE names one,
 * which any number of processes may share. What the file holds is taken over when it is opened; saving merges: of two
 * entries with one key the one that more launches taught stays. The file is replaced whole (rename), by one process at a
 * time (flock on FILE.lock), so a reader sees an old or a new one and never half of one. A file that is none of ours, or
 * of another version, is reported once, ignored, and left alone; a damaged one of ours is reported once, ignored, and
 * replaced by the next save. One that cannot be read or written now (reported once) is left as it is; later saves try
 * again. Where MK_TUNER_FILE is a link, the file that it names is locked and replaced; its mode stays. */
enum mk_start_op { MK_START_GEMM_ALLREDUCE = 1 };
struct mk_start_key { /* compared byte by byte: made by mk_start_key, which leaves no byte unset */
    uint16_t op, dtype;
    uint16_t m, n, k; /* shape class: half octaves */
    uint16_t nodes, local_ranks;
    uint16_t spare;
    char gpu[48], link[32];
};
struct mk_start {
    uint32_t units, target; /* of so many, so many communicate */
    uint32_t cost[2];       /* struct mk_ctl */
    uint32_t chunk, batch;  /* bytes, commands */
    uint32_t launches;      /* that taught it; put counts */
    uint32_t spare;
};
struct mk_starts;

/* Names longer than the fields are cut. gpu: "cpu" for the CPU executor. */
void mk_start_key(struct mk_start_key *key, enum mk_start_op op, int dtype, const int64_t mnk[3], int nodes,
                  int local_ranks, const char *gpu, const char *link);
/* path: "" for memory alone. Fails only for want of memory or a path that is too long: a bad file is reported (WARN) and
 * ignored. */
int mk_starts_open(const char *path, struct mk_starts **out);
/* What the settings say: no file with MK_TUNER=off. */
int mk_starts_open_settings(const struct mk_settings *settings, struct mk_starts **out);
/* Any thread. Is something known? */
bool mk_starts_get(struct mk_starts *s, const struct mk_start_key *key, struct mk_start *out);
/* Any thread. value->launches is ignored. INVALID: out of range. */
int mk_starts_put(struct mk_starts *s, const struct mk_start_key *key, const struct mk_start *value);
size_t mk_starts_count(struct mk_starts *s);
/* Merges with the file and replaces it, if anything is new. Any thread; others get and put meanwhile. MK_ERR_AGAIN: others
 * held the lock for two seconds; SYSTEM, NOMEM: it failed, and a later one may not. */
int mk_starts_save(struct mk_starts *s);
/* Without saving. NULL is allowed. */
void mk_starts_close(struct mk_starts *s);
