/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* State of the controller (mk/dev/control.h) for one shape class of a communicator: in its device memory, behind the
 * rest of its state, so that it lives from launch to launch.
 *
 *   word                     written by                              read by
 *   busy, off, bytes, done   every block, at its task boundaries     who holds the lock
 *   lock                     {tag, 1}: held; anything else: free     every block, one try
 *   target                   who holds the lock: {tag, target}       every block, between two tasks
 *   rest                     who holds the lock; base: the last block to leave
 * A launch that was aborted may leave the lock held: its tag is not the next one's, so it is free again. Counts grow for
 * ever, a launch's own are what they exceed `base` by. A sample may lag behind by tasks that end while it is taken; done
 * is read before busy and written after it. */
#pragma once
#include "mk/dev/control.h"

#define MK_AR_CTL_CLASSES 16

struct mk_ar_counts {
    uint64_t busy[2], off, bytes, done[2]; /* struct mk_ctl_sample; off and busy in ns */
};
struct mk_ar_ctl {
    uint64_t lock, target;
    struct mk_ar_counts count, base;
    uint64_t epoch;          /* of the launch that it was begun for */
    uint32_t total[2];       /* tasks of that launch */
    uint32_t settled, spare; /* the last target with tasks of both kinds left */
    struct mk_ctl_conf conf;
    struct mk_ctl ctl;
};
