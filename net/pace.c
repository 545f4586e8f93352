/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Link rate. */
#include "net/pace.h"

#define LATE_MAX_NS 4000000u /* a time slice of somebody else; beyond that we were not running at all */
#define RIGHT_AFTER_NS 300000u

void mk_pace_init(struct mk_pace *p, double gbps, uint64_t now)
{
    p->on = gbps > 0;
    p->ns_per_byte = gbps > 0 ? 8.0 / gbps : 0;
    p->origin_ns = now;
    p->free = 0;
    p->late_ns = 0;
    p->left_ns = 0;
}

uint64_t mk_pace_take(struct mk_pace *p, uint64_t bytes, uint64_t now)
{
    double start = (double)(now - p->origin_ns);
    if (p->late_ns && now - p->left_ns < RIGHT_AFTER_NS)
        start -= (double)p->late_ns;
    if (start < p->free)
        start = p->free;
    p->free = start + (double)bytes * p->ns_per_byte;
    return p->origin_ns + (uint64_t)p->free + 1;
}

void mk_pace_left(struct mk_pace *p, uint64_t due, uint64_t now)
{
    const uint64_t late = now - due;
    p->late_ns = late < LATE_MAX_NS ? late : 0;
    p->left_ns = now;
}
