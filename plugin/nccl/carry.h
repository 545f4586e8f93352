/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Carries the tuner's agreements between the ranks of a communicator: tables and mk_agree's messages, on the meeting of mk/meet.h.
 * It does so where MK_TUNER is on and times are taken (MK_PROFILE); a communicator has nothing agreed on unless all its ranks
 * take part, and each of them could tie NCCL's tuner, which knows the commId but not the rank, to the profiler, which knows
 * both: by the thread that makes the communicator, which calls the profiler's init and then the tuner's. */
#pragma once
struct mk_tune;

/* NCCL's tuner init, after mk_tune_open in mode ON: sets the turn if it can be tied. */
void mk_carry_open(struct mk_tune *t);
/* Before mk_tune_close. Who waits for a switch in another thread goes on. */
void mk_carry_close(struct mk_tune *t);
