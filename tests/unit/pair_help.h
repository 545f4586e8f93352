/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* A rank as the pair recogniser sees it: streams, captures, events, foreign work and an NCCL with its profiler, in miniature.
 * Feeds the machine as the hooks would, and carries out what it decides. */
#pragma once
#include "mk/pair.h"

enum {
    SIM_STREAMS = 6,
    SIM_EVENTS = 4,
    SIM_DEPS = 8,
    SIM_COMMS = 8,
    SIM_GROUP = 16,
    SIM_W = 2,
    SIM_NODES = 512
};
enum sim_kind { SIM_FOREIGN, SIM_ORIGINAL, SIM_G, SIM_NCCL, SIM_K, SIM_EXTERNAL };

struct sim_deps {
    uint64_t capture;
    uint64_t node[SIM_DEPS];
    uint32_t n;
};
struct sim {
    struct mk_pair *p;
    struct mk_pair_out out; /* of the last call */
    struct mk_pair_out taken[SIM_GROUP];
    uint32_t ntaken;
    uint64_t thread, enqueues, untold, captures, stamp;
    bool counted, profiled; /* there are counters; the profiler works */
    bool lazy;              /* the hook does not walk back in the graph */
    bool fail_g, fail_k;    /* the next launch fails */
    struct {
        bool blocking;
        struct sim_deps tail; /* capture 0: eager */
    } stream[SIM_STREAMS];
    struct sim_deps event[SIM_EVENTS];
    struct { /* of captures; number i + 1 */
        enum sim_kind kind;
        struct sim_deps deps;
    } node[SIM_NODES];
    uint32_t nnodes;
    uint32_t depth;
    struct mk_pair_coll held[SIM_GROUP], passed[SIM_GROUP]; /* of the group */
    int held_stream[SIM_GROUP], passed_stream[SIM_GROUP];
    uint32_t nheld, npassed;
};

void sim_start(struct sim *s, const struct mk_pair_options *options); /* NULL: W = SIM_W, bias epilogue */
void sim_end(struct sim *s);
/* Steps the machine; it must take the event. */
void sim_step(struct sim *s, struct mk_pair_event *e);
void sim_refuses(struct sim *s, struct mk_pair_event *e);

/* Communicator i: rank 0 of 2. */
uint64_t sim_handle(int i);
struct mk_pair_event sim_comm_event(uint32_t kind, int i);
void sim_new(struct sim *s, int i);     /* announced, and the profiler's init */
void sim_tied(struct sim *s, int i);    /* and W collectives witnessed */
struct mk_pair_config sim_config(void); /* all-reduce, bf16 and fp16, 64 B to 64 MiB */
void sim_agreed(struct sim *s, int i);  /* sim_config */
void sim_switch(struct sim *s, int i, uint64_t number, uint64_t word);
void sim_fused(struct sim *s, int i);      /* all of it: fused from the next operation on */
uint64_t sim_number(struct sim *s, int i); /* operations begun */
int sim_error(struct sim *s, int i);
void sim_profile(struct sim *s, int i, uint64_t thread); /* the profiler speaks up */

struct mk_pair_gemm sim_gemm_of(uint64_t weight); /* bf16 TN 256 x 512 x 128, C at SIM_C */
struct mk_pair_coll sim_coll_of(int comm, const struct mk_pair_gemm *g); /* its C, in place */
#define SIM_A UINT64_C(0x10000000)
#define SIM_C UINT64_C(0x30000000)

void sim_gemm(struct sim *s, int stream, const struct mk_pair_gemm *g);
void sim_coll(struct sim *s, int stream, const struct mk_pair_coll *e);
void sim_p2p(struct sim *s, int stream, int comm);
void sim_foreign(struct sim *s, int stream);
void sim_record(struct sim *s, int stream, int event);
void sim_wait(struct sim *s, int stream, int event);
void sim_copy(struct sim *s, int stream, uint64_t from, uint64_t to, uint64_t bytes);
void sim_capture(struct sim *s, int stream);  /* begins */
void sim_captured(struct sim *s, int stream); /* ends */
void sim_replay(struct sim *s, int stream);
void sim_group(struct sim *s);
void sim_group_end(struct sim *s);
struct mk_pair_at sim_at(const struct sim *s, int stream);
bool sim_reaches(const struct sim *s, uint64_t from,
                 uint64_t to); /* does a captured node depend on another? */

void sim_expect(const struct sim *s, uint32_t act, uint32_t reason, const char *file, int line);
#define EXPECT(s, call, a, r)                                                                                \
    do {                                                                                                     \
        call;                                                                                                \
        sim_expect(s, MK_PAIR_DO_##a, MK_PAIR_##r, __FILE__, __LINE__);                                      \
    } while (0)
/* A pair on stream 0: GEMM, then the collective on its C. */
#define PAIR(s, g, comm, ga, gr, ca, cr)                                                                     \
    do {                                                                                                     \
        const struct mk_pair_coll pair_coll = sim_coll_of(comm, g);                                          \
        EXPECT(s, sim_gemm(s, 0, g), ga, gr);                                                                \
        EXPECT(s, sim_coll(s, 0, &pair_coll), ca, cr);                                                       \
    } while (0)
/* Makes the site known: PAIR once with the original. */
#define LEARN(s, g, comm) PAIR(s, g, comm, ORIGINAL, UNKNOWN_SITE, PLAIN, LEARNING)

/* Most tests begin so: communicator 0 fused from the next operation on. */
#define WITH_RANK                                                                                            \
    struct sim s;                                                                                            \
    (void)state;                                                                                             \
    sim_start(&s, NULL);                                                                                     \
    sim_fused(&s, 0)
#define W1 sim_gemm_of(1)

/* Tests by file. Each returns how many failed. */
int pair_rules(void);
int pair_rules_start(void);
int pair_rules_comm(void);
int pair_rules_life(void);
int pair_hostile(void);
int pair_model(unsigned runs);
int pair_memory(void);
