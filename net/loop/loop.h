/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Fault injection of the loop transport, for tests. */
#pragma once
#include "net/transport.h"

/* Writes are counted per device from 1, in the order posted, since the last mk_loop_set_faults. 0: never. */
struct mk_loop_faults {
    uint64_t drop_write;      /* this write is reported complete but neither payload nor immediate arrives */
    uint64_t drop_completion; /* this write arrives, its local completion does not */
    uint64_t fail_write;      /* this write ends in error (MK_ERR_NET), nothing arrives */
    uint64_t delay_write;     /* this write arrives `delay_ns` late */
    uint64_t delay_ns;
    int stalled;                /* 1: nothing moves: posts are taken until full, and stay */
    int dead;                   /* 1: posts return MK_ERR_PEER, what is pending ends with it */
    const struct mk_conn *only; /* NULL: every connection of the device */
};

/* From the thread that drives the device. NULL: none any more. MK_ERR_INVALID: not a device of loop. */
int mk_loop_set_faults(struct mk_dev *dev, const struct mk_loop_faults *faults);
