/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* State of the controller (mk/dev/control.h) for one shape class of a communicator: in its device memory, behind the
 * rest of its state, so that it lives from launch to launch.
 *
 *   word                     written by                              read by
 *   busy, off, done          every block, at its task boundaries     who holds the lock
 *   lock                     {tag, 1}: held; anything else: free     every block, one try
 *   due                      who holds the lock: {tag, what done     every block, before it tries
 *                            must have grown to for another step}
 *   target                   who holds the lock: {tag, target}       every block, between two tasks
 *   base, last, last_epoch   the last block to leave                 who holds the lock
 *   rest                     who holds the lock                      who holds the lock
 * A launch that was aborted may leave the lock held: its tag is not the next one's, so it is free again. Counts grow for
 * ever, a launch's own are what they exceed `base` by. A sample may lag behind by tasks that end while it is taken.
 *
 * What a launch counted at last teaches when the next one begins (or when the host asks, where it can): its end waits for
 * nothing. */
#pragma once
#include "mk/dev/control.h"

#define MK_AR_CTL_CLASSES 16

#define MK_AR_COUNTS 5
struct mk_ar_counts {
    uint64_t busy[2], off, done[2]; /* struct mk_ctl_sample; off and busy in ns */
};
struct mk_ar_ctl {
    uint64_t lock, target, due;
    struct mk_ar_counts count, base, last; /* last: of the launch last_epoch, whole */
    uint64_t epoch, last_epoch;            /* epoch: of the launch that it was begun for */
    uint32_t total[2];                     /* tasks of that launch */
    uint32_t settled;                      /* the last target with tasks of both kinds left */
    uint32_t number;                       /* mk_ar.control_number: with another one it begins anew */
    struct mk_ctl_conf conf;
    struct mk_ctl ctl;
};

/* What the launches before taught, told at the beginning of each one: words for a host that cannot read the state. COSTS
 * (relaxed, sys), then TARGET (release): if its number is that of the class, so are the costs. */
enum mk_ar_taught {
    MK_TAUGHT_COSTS = 0,  /* mk_ctl.cost: COMPUTE, COMM << 32 */
    MK_TAUGHT_TARGET = 1, /* settled, number << 32 */
    MK_AR_TAUGHT = 2
};
