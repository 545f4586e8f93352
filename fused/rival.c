/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* K against NCCL, by size class (mk/rival.h).
 *
 * Outside of captures: the medians of the turns of a round (choose_way.c), and some rounds in a row decide.
 * Within captures nothing is timed, since a graph keeps what it was captured with; so they are judged by the same rounds.
 * By itself K takes there what it takes outside. With its GEMM:
 *
 *   G takes what the original does, for the same tiles in rounds over fewer blocks:  g = gemm * ceil(tiles / (blocks - room)) / (tiles / sms)
 *   K can begin when the first of these rounds is over, and until G ends it has only the room, where it takes `narrow` times as
 *   long:                                              done = (g - g / rounds) / (narrow * k), at most 1
 *   together:                                          g + (1 - done) * k
 *
 * against GEMM and NCCL one after the other. Where outside of captures most of a round's Ks overlapped their GEMMs (proof=driver), what
 * the two took together stands in place of the estimate. Seen on two H200, over NVLink (narrow 4) and an emulated network (1): 1251 us and
 * 1256 estimated, 710 and 705, 384 and 380 (1629 and 1704, G being better than its tiles say). */
#include "mk/rival.h"
#include "choose.h"
#include <stdlib.h>

#define SMALL                                                                                                \
    14 /* below this class (1 MiB) no GEMM with rows enough for G has its output: no overlap to be had */

struct mk_rival {
    struct mk_rival_share share;
    uint64_t word;
    struct rival_class {
        struct mk_choose_times times;
        uint64_t gemm[MK_CHOOSE_ROUND], g[MK_CHOOSE_ROUND], window[MK_CHOOSE_ROUND];
        int gemms, togethers, score; /* of this round but for the score */
        uint32_t overlapped, plain;  /* captured */
    } class[MK_PAIR_CLASSES];
};

/* Small ones have nothing to win: K has to show that it is faster. Within a node GEMM and K share the multiprocessors, so captures
 * wait for times too. */
uint64_t mk_rival_first(const struct mk_rival_share *share)
{
    uint64_t word = MK_PAIR_FUSED;
    for (int c = 0; share->sms > 0 && c < MK_PAIR_CLASSES; c++) {
        word |= c < SMALL ? MK_PAIR_SLOW_CLASS(false, c) : 0;
        word |= c < SMALL || share->near ? MK_PAIR_SLOW_CLASS(true, c) : 0;
    }
    return word;
}

struct mk_rival *mk_rival_create(const struct mk_rival_share *share)
{
    struct mk_rival *r = calloc(1, sizeof(*r));
    if (r) {
        r->share = *share;
        r->word = mk_rival_first(share);
    }
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

/* G for a GEMM of gemm_ns, and how long of it K can be there too. */
static void with_room(const struct mk_rival_share *a, uint64_t gemm_ns, uint32_t tiles, uint64_t *g,
                      uint64_t *window)
{
    const double blocks = a->blocks > a->room ? a->blocks - a->room : 1;
    const double rounds = tiles ? (double)(uint64_t)((tiles + blocks - 1) / blocks) : 1;
    const double longer = tiles && a->sms > 0 ? rounds * a->sms / tiles : 1;
    *g = (uint64_t)((double)gemm_ns * (longer > 1 ? longer : 1));
    *window = (uint64_t)((double)*g * (1 - 1 / rounds));
}

static uint64_t together(const struct mk_rival_share *a, uint64_t g, uint64_t window, uint64_t k)
{
    const double narrow = (double)k * (a->narrow > 1 ? a->narrow : 1);
    const double done = (double)window < narrow ? (double)window / narrow : 1;
    return g + (uint64_t)((double)k * (1 - done));
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
    if (c->times.round != choice.round)
        c->gemms = c->togethers = 0;
    c->togethers += s->together;
    if (s->gemm_ns && c->gemms < MK_CHOOSE_ROUND) {
        c->gemm[c->gemms] = s->gemm_ns;
        with_room(&r->share, s->gemm_ns, s->tiles, &c->g[c->gemms], &c->window[c->gemms]);
        c->gemms++;
    }
    const uint64_t rounds = c->times.rounds, before = r->word;
    const uint64_t eager = MK_PAIR_SLOW_CLASS(false, s->class), captured = MK_PAIR_SLOW_CLASS(true, s->class);
    const bool other = mk_choose_note(&c->times, &choice, s->ns);
    if (c->times.rounds == rounds)
        return false;
    const uint64_t k = c->times.median[0], nccl = c->times.median[1];
    const bool pair = c->gemms > MK_CHOOSE_ROUND / 2, timed = c->togethers > MK_CHOOSE_ROUND / 4;
    const uint64_t gemm = pair ? mk_choose_median(c->gemm, c->gemms) : 0;
    const uint64_t pair_ns = pair && timed ? gemm + k
                             : pair        ? together(&r->share, mk_choose_median(c->g, c->gemms),
                                                      mk_choose_median(c->window, c->gemms), k)
                                           : k;
    if (other)
        set(&r->word, eager, !s->now);
    const bool now = r->word & captured, overlaps = pair && c->plain <= c->overlapped;
    const uint64_t ours = overlaps ? pair_ns : k, theirs = overlaps ? gemm + nccl : nccl;
    /* What K takes by itself is not known where it was timed with its GEMM. */
    if ((!timed || overlaps) &&
        mk_choose_won(&c->score, mk_choose_points(now ? theirs : ours, now ? ours : theirs)))
        set(&r->word, captured, !now);
    *out = (struct mk_rival_round){.k_ns = k,
                                   .nccl_ns = nccl,
                                   .gemm_ns = gemm,
                                   .pair_ns = pair_ns,
                                   .eager = r->word & eager,
                                   .captured = r->word & captured,
                                   .changed = r->word != before};
    return true;
}
