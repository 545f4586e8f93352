/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Link rate: a put leaves when its last byte would have left a link of MK_LOOP_GBPS. Per engine: the NIC's egress.
 *
 *   start = max(now, free)     due = start + bytes / rate     free = due
 *
 * Times are set when the put is taken, so late wake-ups do not lower the rate while puts are queued. When a put
 * left late by d (sleep overshoot) and the next one is asked for right after it, that one starts d earlier, but
 * never before `free`: an asker that waits for completions is not slowed by our sleep, and the sum never runs
 * faster than the rate. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct mk_pace {
    bool on;
    double ns_per_byte;
    uint64_t origin_ns;
    double free;      /* ns after origin, kept as real so that fractions of a nanosecond add up */
    uint64_t late_ns; /* by how much the last put left too late */
    uint64_t left_ns; /* when it left */
};

void mk_pace_init(struct mk_pace *p, double gbps, uint64_t now);
/* Books `bytes`; returns when they will have left. */
uint64_t mk_pace_take(struct mk_pace *p, uint64_t bytes, uint64_t now);
/* A put that was due at `due` has been posted. */
void mk_pace_left(struct mk_pace *p, uint64_t due, uint64_t now);
