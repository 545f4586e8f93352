/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Bootstrap: how the ranks of a communicator meet, exchange set-up data, and witness each other's death.
 *
 * One process runs the root service (rank 0 for MK_ROOT and the all-gather callback, the maker for a unique id):
 * a thread that accepts one TCP connection per rank, checks the hello (magic, version, job key, rank, number of
 * ranks) and refuses strangers with one logged reason. Every rank is a client, the root's own process included,
 * with one thread that reads its connection. The connections stay open until destroy: the end of one without a
 * good-bye is a death, which the root tells all others within a second; the end of the root's process is seen by
 * all as the end of their own connection. Once the root's rank has said good-bye and its process has ended, the
 * others go on, but see no further deaths, good-byes or aborts, and set-up collectives return PEER.
 * A program that returns from main or calls exit without destroy has said good-bye. In a forked child an inherited
 * object can only be destroyed. Wire format: net/boot_wire.h. */
#pragma once
#include "mkernel.h"
#include <stdbool.h>
#include <stdint.h>

struct mk_boot;
struct mk_settings;

/* What happened to the job, written by the boot thread, read by anybody with acquire; first event stays.
 * code: 0, or MK_ERR_PEER (rank died or left without good-bye), MK_ERR_ABORTED / another code (rank told it). */
struct mk_boot_event {
    int code;
    int rank;       /* who caused it */
    char text[200]; /* one sentence */
};

/* Called by the boot thread once, when the first event is recorded (for instance to raise an abort word). */
typedef void (*mk_boot_event_fn)(void *ctx, const struct mk_boot_event *event);

/* Called by the boot thread: what rank `from` said, at most MK_BOOT_MAX_SAY bytes. It may say something itself. */
#define MK_BOOT_MAX_SAY 256u
typedef void (*mk_boot_said_fn)(void *ctx, int from, const void *bytes, size_t n);

/* Root service at a free port of the interface chosen by s->ifname; fills the id (address, port, random key). */
int mk_boot_unique_id(const struct mk_settings *s, mk_unique_id_t *id);

/* The three ways to meet; each returns when all ranks have said hello. s supplies timeout, job, ifname, root. */
int mk_boot_init_id(const struct mk_settings *s, const mk_unique_id_t *id, int nranks, int rank,
                    struct mk_boot **out);
int mk_boot_init_root(const struct mk_settings *s, int nranks, int rank, struct mk_boot **out);
int mk_boot_init_allgather(const struct mk_settings *s, int nranks, int rank,
                           int (*allgather)(void *ctx, const void *send, void *recv, size_t bytes), void *ctx,
                           struct mk_boot **out);

/* A fourth way, for ranks that share a name (an NCCL communicator's id) and the address of their job: the host of MK_ROOT, else
 * MASTER_ADDR, at a port that follows from the one given with it (in MK_PORTS, if set). Some process there serves as the meeting place (net/place.h). Any
 * number of communicators at once, in any order. UNSUPPORTED: no such address is known; TIMEOUT: not all came;
 * MISMATCH: they differ in the number of ranks, or in the library's version. A name is of one communicator, never of a second. */
int mk_boot_init_name(const struct mk_settings *s, uint64_t name, int nranks, int rank, struct mk_boot **out);
/* The same, given up (ABORTED) soon after go_on, which is asked about ten times a second, says no. */
int mk_boot_init_name_while(const struct mk_settings *s, uint64_t name, int nranks, int rank,
                            bool (*go_on)(void *ctx), void *ctx, struct mk_boot **out);

/* Collective over all ranks, in the same order on each; bounded by MK_TIMEOUT. recv: nranks * bytes, rank order.
 * bytes up to 1 MiB, equal on all ranks (else MISMATCH). Only for set-up. */
int mk_boot_allgather(struct mk_boot *b, const void *send, void *recv, size_t bytes);
int mk_boot_barrier(struct mk_boot *b);

/* From now on the event calls fn (at once if it has happened already). */
void mk_boot_on_event(struct mk_boot *b, mk_boot_event_fn fn, void *ctx);
/* Who leaves in good order is no event. The boot thread calls fn for each such rank, and with -1 once this rank's own
 * connection has ended, after which nothing is heard of anybody. To be set once, before a collective. */
typedef void (*mk_boot_left_fn)(void *ctx, int rank);
void mk_boot_on_left(struct mk_boot *b, mk_boot_left_fn fn, void *ctx);
/* The rank in whose process the root service runs (the lowest one); -1: it is a process without a rank, which may end in
 * good order while the ranks go on. The same on all ranks. */
int mk_boot_root_rank(struct mk_boot *b);
/* Short messages besides the collectives, for agreements; bounded by nothing, so few of them. In order between two ranks.
 * What comes while there is no function is dropped: set it before a collective, say something after it. on_said(NULL)
 * returns when no call is under way (not from the function itself). */
void mk_boot_on_said(struct mk_boot *b, mk_boot_said_fn fn, void *ctx);
/* to: another rank, or -1 for all others. Does not wait; what it says is lost if the other one is gone, or goes. INVALID:
 * arguments, or a forked child; PEER: the bootstrap has ended; NOMEM. */
int mk_boot_say(struct mk_boot *b, int to, const void *bytes, size_t n);
/* 0: no event; else 1 and *out. */
int mk_boot_event(struct mk_boot *b, struct mk_boot_event *out);
/* 1: that rank said good-bye (orderly destroy). Not an event: only who still needs it treats it as an error. */
int mk_boot_has_left(struct mk_boot *b, int rank);

/* Tells all ranks that this rank failed with `code` (their event: {code, this rank, text}). Does not wait. */
void mk_boot_abort(struct mk_boot *b, int code, const char *text);

/* Says good-bye, ends the thread; never waits for a peer. NULL allowed. */
void mk_boot_destroy(struct mk_boot *b);
