/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Tables of the pair recogniser. */
#include "pair.h"
#include <stdlib.h>
#include <string.h>

static uint64_t mix(uint64_t x)
{
    x ^= x >> 30;
    x *= UINT64_C(0xbf58476d1ce4e5b9);
    x ^= x >> 27;
    x *= UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

uint64_t mk_pair_hash(uint64_t a, uint64_t b)
{
    return mix(mix(a + UINT64_C(0x9e3779b97f4a7c15)) ^ (b + UINT64_C(0x2545f4914f6cdd1d)));
}

/* Where the key stands, or would stand: the table is never full. */
static uint32_t place(const struct mk_pair_map *m, uint64_t key)
{
    uint32_t i = (uint32_t)mix(key) & (m->size - 1);
    while (m->slot[i].used && m->slot[i].key != key)
        i = (i + 1) & (m->size - 1);
    return i;
}

bool mk_pair_map_get(const struct mk_pair_map *m, uint64_t key, uint32_t *value)
{
    if (!m->size)
        return false;
    const struct mk_pair_slot *s = &m->slot[place(m, key)];
    if (!s->used)
        return false;
    *value = s->value;
    return true;
}

static bool widen(struct mk_pair_map *m)
{
    struct mk_pair_map wide = {.size = m->size ? 2 * m->size : 16, .n = m->n};
    wide.slot = calloc(wide.size, sizeof(*wide.slot));
    if (!wide.slot)
        return false;
    for (uint32_t i = 0; i < m->size; i++)
        if (m->slot[i].used)
            wide.slot[place(&wide, m->slot[i].key)] = m->slot[i];
    free(m->slot);
    *m = wide;
    return true;
}

bool mk_pair_map_put(struct mk_pair_map *m, uint64_t key, uint32_t value)
{
    if ((m->n + 1) * 2 > m->size && !widen(m))
        return false;
    struct mk_pair_slot *s = &m->slot[place(m, key)];
    m->n += !s->used;
    s->key = key;
    s->value = value;
    s->used = 1;
    return true;
}

void mk_pair_map_drop(struct mk_pair_map *m, uint64_t key)
{
    if (!m->size)
        return;
    uint32_t hole = place(m, key), i = hole;
    if (!m->slot[hole].used)
        return;
    m->n--;
    for (;;) { /* what stands behind moves up, unless it is where it belongs */
        i = (i + 1) & (m->size - 1);
        if (!m->slot[i].used)
            break;
        const uint32_t home = (uint32_t)mix(m->slot[i].key) & (m->size - 1);
        if (((i - home) & (m->size - 1)) < ((i - hole) & (m->size - 1)))
            continue;
        m->slot[hole] = m->slot[i];
        hole = i;
    }
    m->slot[hole].used = 0;
}

bool mk_pair_grow(void **array, uint32_t *cap, uint32_t n, size_t bytes)
{
    if (n < *cap)
        return true;
    const uint32_t wide = *cap ? 2 * *cap : 8;
    if (wide <= *cap)
        return false;
    void *more = realloc(*array, wide * bytes);
    if (!more)
        return false;
    memset((char *)more + *cap * bytes, 0, (wide - *cap) * bytes);
    *array = more;
    *cap = wide;
    return true;
}
