/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Inside of the adapter: adapt.c (the lock, the hooks' consumer, communicators), adapt_call.c (GEMMs, collectives, groups),
 * adapt_read.c (what a call says), adapt_at.c (where it goes), adapt_time.c (what it takes), adapt_check.c (MK_VERIFY). */
#pragma once
#include "adapt.h"
#include "intern.h"

struct mk_adapt {
    struct mk_pair *pair;
    const struct mk_fuse_ops *ops;
    bool counted;
    uint64_t enqueues; /* counted so far, of all contexts; those of stubs (count.h) come on top */
    uint64_t graphs;   /* launches of graphs that the recogniser was told of */
    int verify;        /* MK_VERIFY */
    bool idle;         /* atomic: mk_pair_idle */
    /* Atomic: calls so far that were passed on without the lock and the recogniser. On a cache line of its own: the rest is read by
     * every call. */
    _Alignas(64) uint64_t untold;
};
/* Under the lock. */
extern struct mk_adapt mk_adapt;
void mk_adapt_lock(void);
void mk_adapt_unlock(void);
/* For who is at the end of the process: a call that never returns may have it. false: not in time. */
bool mk_adapt_lock_soon(void);

/* Before a GEMM or a collective is decided: graphs that nobody but the stubs have seen. */
void mk_adapt_replays(void);
/* What was decided of a call. Where it is passed on and those like it will be, they are, without the lock. */
void mk_adapt_passes(const struct mk_hook_event *h, const struct mk_pair_out *out);
/* One was passed on: in a group of this thread that is remembered. */
void mk_adapt_group_passed(void);
/* One step, and what it asks for but the log line. Under the lock. */
int mk_adapt_step(struct mk_pair_event *e, struct mk_pair_out *out);
/* A decision whose line is asked for; mk_adapt_say prints it, without the lock. */
struct mk_adapt_line {
    bool any;
    struct mk_pair_event event;
    struct mk_pair_out out;
    const char *by; /* an intruder's name, if it is known */
};
void mk_adapt_line(const struct mk_pair_event *e, const struct mk_pair_out *out, struct mk_adapt_line *line);
void mk_adapt_say(const struct mk_adapt_line *line);
/* Announces the communicator if it is not known. Under the lock, and without it while NCCL is asked. */
void mk_adapt_meet(void *comm);
/* Has a launch of the communicator failed since? Then the recogniser knows from now on. Under the lock. */
void mk_adapt_failed(void *comm);
/* It was never brought together with what the profiler is told. Under the lock. */
void mk_adapt_untied(void *comm, bool witness);
/* Names this thread. */
uint64_t mk_adapt_thread(void);

/* adapt_call.c: before a call (true: answered) and after it. */
bool mk_adapt_gemm(struct mk_hook_event *h, const struct mk_pair_gemm *gemm);
void mk_adapt_gemm_after(struct mk_hook_event *h);
bool mk_adapt_coll(struct mk_hook_event *h, const struct mk_pair_coll *coll, bool p2p);
void mk_adapt_coll_after(struct mk_hook_event *h);
/* After NCCL's destroy or abort of a communicator, which in a group has only been promised. */
void mk_adapt_gone(void);
bool mk_adapt_group_start(struct mk_hook_event *h);
void mk_adapt_group_end(bool simulated);
void mk_adapt_group_ended(struct mk_hook_event *h);

/* adapt_time.c, under the lock, where there are kernels. A GEMM comes on `stream`, ours or the original. */
void mk_adapt_time_gemm(const struct mk_pair_out *out, const struct mk_pair_gemm *gemm, void *stream);
/* A collective has been decided, outside of a group. Not 0: _end follows, with that. */
uint32_t mk_adapt_time_begin(const struct mk_pair_event *e, const struct mk_pair_out *out, void *stream);
void mk_adapt_time_end(void *comm, void *stream, uint32_t slot, bool well);
void mk_adapt_time_grouped(const void *comm);
void mk_adapt_time_captured(const struct mk_pair_event *e, const struct mk_pair_out *out);
/* Before this rank is ready to be agreed with, without the lock: the state word to begin with. */
void mk_adapt_time_first(void *comm, const struct mk_pair_comm_facts *facts);
/* Takes in what is over. The news are for the log, without the lock; none: an empty text. */
struct mk_adapt_news {
    char text[256];
};
void mk_adapt_time_read(const void *comm, struct mk_adapt_news *news);
void mk_adapt_time_forget(const void *comm); /* NULL: all */

/* adapt_check.c. A hooked call of any thread, without the lock. */
void mk_adapt_check_saw(enum mk_hook_id id);
/* Under the lock: G was launched; a collective by function `id` was decided. */
void mk_adapt_check_gemm(void);
void mk_adapt_check_coll(const struct mk_pair_event *e, const struct mk_pair_out *out, enum mk_hook_id id);
/* A site whose C changed between the two: true, once each, and it is told without the lock. */
struct mk_adapt_refuted {
    struct mk_pair_event event;
    struct mk_pair_out out;
    char between[256];
};
bool mk_adapt_check_look(struct mk_adapt_refuted *out); /* under the lock */
void mk_adapt_check_say(const struct mk_adapt_refuted *r);
void mk_adapt_check_report(void); /* without the lock */
void mk_adapt_check_forget(void);

/* adapt_read.c. false: none of that kind. `whole` false: what a log line says is enough. */
bool mk_adapt_read_gemm(const struct mk_hook_event *h, bool whole, struct mk_pair_gemm *out);
/* What tells a GEMM's line from another's: n and k, and 1 where C is of a type that can be fused, else 0. Cheap. false: the library
 * will refuse it. */
bool mk_adapt_read_size(const struct mk_hook_event *h, uint64_t size[3]);
bool mk_adapt_read_coll(const struct mk_hook_event *h, struct mk_pair_coll *out, bool *p2p);
/* Communicators that a call has made; how many (-1: it made none). */
int mk_adapt_made(const struct mk_hook_event *h, void ***comms, bool *nonblocking);

/* adapt_at.c, under the lock. false: the driver does not tell; *at then is of no known stream. */
bool mk_adapt_at(void *stream, struct mk_pair_at *at);
void mk_adapt_at_forget(void);
/* "libtorch_cuda.so+0x1234", or the address. */
void mk_adapt_where(const void *caller, char *text, size_t bytes);
