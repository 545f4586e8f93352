/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* K against NCCL, by size class (mk/rival.h).
 *
 * Outside of captures: the medians of the turns of a round (choose_way.c), and some rounds in a row decide.
 * Within captures nothing is timed, since a graph keeps what it was captured with; so they are judged by the same rounds.
 * By itself K takes there what it takes outside. With its GEMM it hides behind it, or the GEMM behind it: the larger of the
 * two, and a sixteenth for what sticks out (seen: 3 to 6 %), against GEMM and NCCL one after the other. */
#include "mk/rival.h"
#include "choose.h"
#include <stdlib.h>

struct mk_rival {
    uint64_t word;
    struct rival_class {
        struct mk_choose_times times;
        uint64_t gemm[MK_CHOOSE_ROUND];
        int gemms, score;
        uint64_t round;
        uint32_t overlapped, plain; /* captured */
    } class[MK_PAIR_CLASSES];
};

struct mk_rival *mk_rival_create(void)
{
    struct mk_rival *r = calloc(1, sizeof(*r));
    if (r)
        r->word = MK_PAIR_FUSED;
    return r;
}

void mk_rival_destroy(struct mk_rival *r)
{
    free(r);
}

uint64_t mk_rival_word(const struct mk_rival *r)
{
    return r->word;
}

void mk_rival_captured(struct mk_rival *r, uint32_t class, bool overlapped)
{
    if (class < MK_PAIR_CLASSES) {
        r->class[class].overlapped += overlapped;
        r->class[class].plain += !overlapped;
    }
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* What speaks for the other way, within captures. */
static int captured_points(const struct rival_class *c, bool now, uint64_t gemm)
{
    const bool together = gemm && c->plain <= c->overlapped;
    const uint64_t k = c->times.median[0], nccl = c->times.median[1];
    const uint64_t ours = together ? larger(gemm, k) + larger(gemm, k) / 16 : k;
    const uint64_t theirs = nccl + (together ? gemm : 0);
    return mk_choose_points(now ? theirs : ours, now ? ours : theirs);
}

static void set(uint64_t *word, uint64_t bit, bool on)
{
    *word = on ? *word | bit : *word & ~bit;
}

bool mk_rival_note(struct mk_rival *r, const struct mk_rival_sample *s, struct mk_rival_round *out)
{
    struct mk_choice choice;
    if (s->class >= MK_PAIR_CLASSES)
        return false;
    struct rival_class *c = &r->class[s->class];
    mk_choose_way(s->nth, s->now, &choice);
    if (!choice.in_round || choice.way != s->nccl)
        return false; /* no turn of a round */
    if (c->round != choice.round) {
        c->round = choice.round;
        c->gemms = 0;
    }
    if (s->gemm_ns && c->gemms < MK_CHOOSE_ROUND)
        c->gemm[c->gemms++] = s->gemm_ns;
    const uint64_t rounds = c->times.rounds, before = r->word;
    const uint64_t eager = MK_PAIR_SLOW_CLASS(false, s->class), captured = MK_PAIR_SLOW_CLASS(true, s->class);
    const bool other = mk_choose_note(&c->times, &choice, s->ns);
    if (c->times.rounds == rounds)
        return false;
    const uint64_t gemm = c->gemms > MK_CHOOSE_ROUND / 2 ? mk_choose_median(c->gemm, c->gemms) : 0;
    if (other)
        set(&r->word, eager, !s->now);
    const bool is_captured = r->word & captured;
    if (mk_choose_won(&c->score, captured_points(c, is_captured, gemm)))
        set(&r->word, captured, !is_captured);
    *out = (struct mk_rival_round){.k_ns = c->times.median[0],
                                   .nccl_ns = c->times.median[1],
                                   .gemm_ns = gemm,
                                   .eager = r->word & eager,
                                   .captured = r->word & captured,
                                   .changed = r->word != before};
    return true;
}
