/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Random matrices that are the same on every machine: element i of stream s under a seed is a pure function of
 * (seed, s, i), uniform in [-1, 1) with 24 bits, so exact in fp32. */
#pragma once
#include <stdint.h>

static inline uint64_t mk_rng_mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

static inline float mk_rng_uniform(uint64_t seed, uint64_t stream, uint64_t i)
{
    const uint64_t key = mk_rng_mix(seed + 0x9e3779b97f4a7c15ull) + stream * 0xd1342543de82ef95ull;
    const uint64_t bits = mk_rng_mix(mk_rng_mix(key) + (i + 1) * 0x9e3779b97f4a7c15ull);
    return (float)(int32_t)(bits >> 40) * 0x1p-23f - 1.0f;
}
