/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Messages of set-up: a byte that says what it is, then little endian numbers. */
#pragma once
#include "mk/pair.h"
#include "mk/tuner.h"
#include <endian.h>
#include <string.h>

enum {
    MK_SETUP_HELLO = 1,
    MK_SETUP_READY = 2,
    MK_SETUP_LIMITS_SET = 3,
    MK_SETUP_AGREES = 4,
    MK_SETUP_OFF = 5,
    MK_SETUP_ERROR = 6
};
enum { MK_SETUP_VERSION = 3 };
/* bytes: of AGREES; of HELLO and LIMITS_SET */
enum { MK_SETUP_AGREE = 25, MK_SETUP_LIMITS = 35 };

static inline void mk_setup_put(uint8_t *out, uint64_t v)
{
    v = htole64(v);
    memcpy(out, &v, sizeof(v));
}
static inline uint64_t mk_setup_get(const uint8_t *in)
{
    uint64_t v;
    memcpy(&v, in, sizeof(v));
    return le64toh(v);
}

static inline void mk_setup_put_agree(const struct mk_agree_msg *m, uint8_t out[MK_SETUP_AGREE])
{
    out[0] = MK_SETUP_AGREES;
    mk_setup_put(out + 1, (uint64_t)m->kind << 32 | m->id);
    mk_setup_put(out + 9, m->value);
    mk_setup_put(out + 17, m->number);
}
static inline void mk_setup_get_agree(const uint8_t in[MK_SETUP_AGREE], struct mk_agree_msg *m)
{
    const uint64_t head = mk_setup_get(in + 1);
    m->kind = (uint32_t)(head >> 32);
    m->id = (uint32_t)head;
    m->value = mk_setup_get(in + 9);
    m->number = mk_setup_get(in + 17);
}

static inline void mk_setup_put_limits(const struct mk_pair_config *c, uint8_t out[MK_SETUP_LIMITS])
{
    out[0] = MK_SETUP_LIMITS_SET;
    out[1] = MK_SETUP_VERSION;
    out[2] = (uint8_t)(c->graph_only | c->timed << 1);
    mk_setup_put(out + 3, c->min_bytes);
    mk_setup_put(out + 11, c->max_bytes);
    mk_setup_put(out + 19, (uint64_t)c->functions << 32 | c->dtypes);
    mk_setup_put(out + 27, (uint64_t)c->granule << 32 | c->nranks);
}
static inline bool mk_setup_get_limits(const uint8_t *in, size_t bytes, struct mk_pair_config *c)
{
    if (bytes != MK_SETUP_LIMITS || in[1] != MK_SETUP_VERSION || in[2] > 3)
        return false;
    memset(c, 0, sizeof(*c));
    c->graph_only = in[2] & 1;
    c->timed = in[2] >> 1;
    c->min_bytes = mk_setup_get(in + 3);
    c->max_bytes = mk_setup_get(in + 11);
    c->functions = (uint32_t)(mk_setup_get(in + 19) >> 32);
    c->dtypes = (uint32_t)mk_setup_get(in + 19);
    c->granule = (uint32_t)(mk_setup_get(in + 27) >> 32);
    c->nranks = (uint32_t)mk_setup_get(in + 27);
    return !(c->granule & (c->granule - 1));
}
/* What both can do. */
static inline void mk_setup_meet_limits(struct mk_pair_config *c, const struct mk_pair_config *other)
{
    c->min_bytes = c->min_bytes > other->min_bytes ? c->min_bytes : other->min_bytes;
    c->max_bytes = c->max_bytes < other->max_bytes ? c->max_bytes : other->max_bytes;
    c->granule = c->granule > other->granule ? c->granule : other->granule;
    c->functions &= other->functions;
    c->dtypes &= other->dtypes;
    c->graph_only |= other->graph_only;
    c->timed &= other->timed;
}
