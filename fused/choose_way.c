/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Two ways timed against each other: which calls try which, and when a switch is worth it. Pure; choose.c and rival.c ask. */
#include "choose.h"
#include <stdlib.h>

#define FIRST_ROUND 4    /* the calls before it warm up */
#define LONGEST_GAP 1024 /* rounds begin at calls 4, 16, 64, 256, 1024, 2048, 3072 ... of a class */
#define ENOUGH                                                                                               \
    4 /* points, from rounds in a row in each of which the other way takes less: 2 for a sixteenth, 1 for a 64th */

void mk_choose_way(uint64_t call, int now, struct mk_choice *out)
{
    uint64_t begin = FIRST_ROUND;
    while (begin < LONGEST_GAP && call >= 4 * begin)
        begin *= 4;
    if (call >= LONGEST_GAP)
        begin = call / LONGEST_GAP * LONGEST_GAP;
    out->in_round = call >= begin && call - begin < MK_CHOOSE_ROUND;
    out->last = out->in_round && call - begin == MK_CHOOSE_ROUND - 1;
    out->now = now;
    out->round = begin;
    /* The Thue-Morse sequence: layers call in turns of two or four, and each of them tries both ways equally often. */
    out->way = out->in_round ? __builtin_popcountll(call - begin) & 1 : now;
}

static int by_value(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}
uint64_t mk_choose_median(uint64_t *v, int n)
{
    qsort(v, (size_t)n, sizeof(*v), by_value);
    return v[n / 2];
}

int mk_choose_points(uint64_t have, uint64_t other)
{
    return other < have - have / 16 ? 2 : other < have - have / 64 ? 1 : 0;
}

bool mk_choose_won(int *score, int points)
{
    *score = points ? *score + points : 0;
    if (*score < ENOUGH)
        return false;
    *score = 0;
    return true;
}

bool mk_choose_note(struct mk_choose_times *t, const struct mk_choice *choice, uint64_t ns)
{
    const int way = choice->way, half = MK_CHOOSE_ROUND / 2;
    if (!choice->in_round)
        return false;
    if (t->round != choice->round) { /* the end of the one before was not seen */
        t->n[0] = t->n[1] = 0;
        t->round = choice->round;
    }
    if (t->n[way] < half)
        t->ns[way][t->n[way]++] = ns;
    if (!choice->last)
        return false;
    int points = 0;
    if (t->n[0] == half && t->n[1] == half) { /* else a call of it failed */
        t->median[0] = mk_choose_median(t->ns[0], half);
        t->median[1] = mk_choose_median(t->ns[1], half);
        const uint64_t have = t->median[choice->now], other = t->median[!choice->now];
        points = mk_choose_points(have, other);
        t->rounds++;
    }
    t->n[0] = t->n[1] = 0;
    return mk_choose_won(&t->score, points);
}
