/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Out of band between the ranks of an NCCL communicator: one bootstrap (mk/boot.h) for each (commId, rank) of this process,
 * which all who want one share. It is begun by the init of NCCL's profiler face, which is the first to know a communicator's
 * id, rank and size, if somebody wants it; by default nobody does, and there is no thread, no socket and no cost.
 *
 * It meets in a thread of its own (mk_boot_init_name: MK_ROOT or MASTER_ADDR must be set, else one INFO line and nothing), so
 * NCCL's init and finalize never wait for a peer. Communicators of one rank have nobody to meet.
 * A forked child does nothing: neither with what it inherited nor, where its parent has met, with what is its own. */
#pragma once
#include "mk/boot.h"
#include <stddef.h>
#include <stdint.h>

struct mk_meet;
struct mk_meet_who {
    uint64_t id; /* commId, the same on all ranks */
    int rank, nranks, nnodes;
};

/* Each user has a channel, which is the first byte of its messages. */
enum mk_meet_channel { MK_MEET_TUNE = 1, MK_MEET_FUSE = 2, MK_MEET_CHANNELS = 3 };
#define MK_MEET_MAX_SAY (MK_BOOT_MAX_SAY - 1)

/* What a user is told, for one communicator one call after the other; `of` is what its begin returned. None of these may
 * wait for another rank, nor for a thread that is in mk_meet_leave. NULL: not told. */
struct mk_meet_user {
    /* A communicator is made (NCCL's thread). NULL: not wanted. Else it meets, and `m` is good until end returns. */
    void *(*begin)(struct mk_meet *m, const struct mk_meet_who *who);
    /* All ranks are there, each with at least one user: perhaps not this one, so users greet each other. Only from now on
     * is something said or heard. */
    void (*met)(void *of);
    void (*said)(void *of, int from, const void *bytes, size_t n);
    /* rank, code: PEER: it died, 0: it left in good order, another code: it failed (mk_boot_abort). rank -1: nothing more
     * will be heard from anybody: they did not meet (TIMEOUT, MISMATCH ...), or this rank's connection ended (PEER). Deaths
     * after the first one are not told. */
    void (*gone)(void *of, int rank, int code);
    /* NCCL finalises the communicator (NCCL's thread): no other call is under way, and none follows. */
    void (*end)(void *of);
};
/* For all communicators from now on; user stays as it is. NULL: nobody any more. */
void mk_meet_use(enum mk_meet_channel channel, const struct mk_meet_user *user);

/* to: another rank, or -1 for all others. Any thread, between met and end; does not wait. mk_boot_say's errors; PEER also
 * before the meeting and after its end. */
int mk_meet_say(struct mk_meet *m, enum mk_meet_channel channel, int to, const void *bytes, size_t n);

/* For NCCL's profiler face: the communicator that `owner` stands for is made, is finalised. */
void mk_meet_join(const void *owner, const struct mk_meet_who *who);
void mk_meet_leave(const void *owner);
