/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Set-up of fused communicators: the ranks of an NCCL communicator agree, out of band (mk/meet.h), that it is fused, with
 * which limits, and from which operation number on. Any rank that is missing, unlike the others, or late: off on all ranks,
 * and NCCL goes on as without us.
 *
 *   HELLO   each rank to rank 0, when all have met: its mode, and what its kernels can do
 *   READY   each rank to rank 0: its communicator is tied and witnessed, what K needs is there
 *   LIMITS  rank 0 to all, once all are ready: what all can do
 *   AGREE   messages of mk_agree (mk/tuner.h): the state word FUSED from operation N on, later another one (off, or other
 *           size classes left to NCCL: mk/rival.h)
 *   OFF     a rank to rank 0: it cannot, or not any more; rank 0 to all: off, and why
 *   ERROR   any rank to all: its communicator failed
 *
 * Who has answered a proposal waits for its outcome; everybody else may end up off by itself, since without its answer
 * nothing is committed. Under MK_DETERMINISTIC the first fused operation is MK_FUSE_START, and a host waits before the one
 * before it for the others, for MK_TIMEOUT at most. */
#pragma once
#include "mk/fuse.h"

/* ops: whose limits are offered; NULL: nobody meets. graph_only: MK_FUSE=graph. */
void mk_setup_start(const struct mk_fuse_ops *ops, bool deterministic, bool graph_only);
/* For NCCL's profiler face: a communicator is made (before mk_meet_join), met or not (after it), gone (after
 * mk_meet_leave); it was given a collective. */
void mk_setup_join(const void *owner, uint64_t id, int rank, int nranks);
void mk_setup_joined(const void *owner);
void mk_setup_leave(const void *owner);
void mk_setup_profiled(const void *owner);

/* For the adapter, without its lock. Is this the operation at which all ranks come together (MK_DETERMINISTIC)? Then what K
 * needs must be there before mk_setup_begin, or is waited for while this is in time. */
bool mk_setup_waits(const struct mk_pair_comm_facts *facts);
bool mk_setup_in_time(uint64_t since_ns);
/* Before a collective of the communicator: may wait for an outcome. PEER: rank 0 died and
 * it is not known. */
int mk_setup_begin(uint64_t handle, const struct mk_pair_comm_facts *facts);
/* After one that NCCL ran. */
void mk_setup_after(uint64_t handle, const struct mk_pair_comm_facts *facts);
/* Has the profiler been told of any communicator by its id? */
bool mk_setup_seen(void);
/* With its lock: this rank cannot be fused; the peers are to know of an error; the handle is no more. */
void mk_setup_off(uint64_t id, uint32_t rank, enum mk_pair_reason why);
void mk_setup_tell(uint64_t handle, int error);
void mk_setup_forget(uint64_t handle);
/* Rank 0 would rather have this state word in force: it is proposed when the next collectives come. */
void mk_setup_wish(uint64_t id, uint32_t rank, uint64_t word);
