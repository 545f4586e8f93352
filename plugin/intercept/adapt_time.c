/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Times of K and of NCCL's collective in their turns (mk_pair_out.timed), on rank 0 of a communicator: time stamps before and
 * after the call on its stream, and before the GEMM in front of it. Nothing may lie between a G and the K that overlaps it, so these two
 * are timed together, and what the original took by itself at those sizes is taken off. Read when later calls come. What they say becomes the
 * state word that set-up proposes (mk/rival.h). All under the adapter's lock. */
#include "adapt_in.h"
#include "setup.h"
#include "mk/err.h"
#include "mk/log.h"
#include "mk/rival.h"
#include <stdio.h>
#include <stdlib.h>

/* Calls whose times have not been read. A stream that is further behind loses the round. */
#define PENDING (MK_FUSE_STAMPS / 3)
#define ORIGINALS 32
enum { OF_GEMM, BEFORE, AFTER };

struct timed {
    struct timed *next;
    void *comm;
    struct mk_rival *rival;
    struct {
        struct mk_rival_sample sample;
        bool gemm, ours, ended; /* ours: that GEMM was G */
        uint64_t key;
    } at[PENDING];
    uint32_t head, n;
    bool gemm; /* the stamp of the slot that comes next is on this stream (NULL is one), for this output */
    const void *gemm_stream;
    uint64_t gemm_c, gemm_key;
    uint32_t gemm_tiles;
    bool gemm_ours;
    struct { /* what the original took when it was timed last, by its sizes */
        uint64_t key, ns;
    } original[ORIGINALS];
};
static struct timed *list;

static struct timed *find(const void *comm)
{
    struct timed *t = list;
    while (t && t->comm != comm)
        t = t->next;
    return t;
}

/* NULL: not ours to time, or no memory. */
static struct timed *get(void *comm)
{
    struct mk_pair_comm_facts facts;
    struct timed *t = find(comm);
    if (t || !mk_adapt.ops->stamp || !mk_pair_comm(mk_adapt.pair, (uintptr_t)comm, &facts) || facts.rank)
        return t;
    struct mk_rival_share share = {.sms = 0};
    if (mk_adapt.ops->share)
        mk_adapt.ops->share(comm, &share);
    t = calloc(1, sizeof(*t));
    if (!t || !(t->rival = mk_rival_create(&share))) {
        free(t);
        return NULL;
    }
    t->comm = comm;
    t->next = list;
    return list = t;
}

void mk_adapt_time_forget(const void *comm)
{
    struct timed **at = &list, *t;
    while (*at && comm && (*at)->comm != comm)
        at = &(*at)->next;
    while ((t = *at)) {
        *at = t->next;
        mk_rival_destroy(t->rival);
        free(t);
        if (comm)
            return;
    }
}

static uint32_t stamp_of(uint32_t slot, uint32_t which)
{
    return slot * 3 + which;
}

static uint64_t key_of(const struct mk_pair_gemm *g)
{
    const uint64_t part[] = {(uint64_t)g->m, (uint64_t)g->n, (uint64_t)g->k, g->layout};
    uint64_t key = 0;
    for (int i = 0; i < 4; i++) {
        key = (key ^ part[i]) * UINT64_C(0x9e3779b97f4a7c15);
        key ^= key >> 29;
    }
    return key | 1;
}

void mk_adapt_time_gemm(const struct mk_pair_out *out, const struct mk_pair_gemm *gemm, void *stream)
{
    struct timed *t = out->timed ? get((void *)(uintptr_t)out->comm) : NULL;
    if (!t || t->n == PENDING)
        return;
    t->gemm = !mk_adapt.ops->stamp(t->comm, stream, stamp_of((t->head + t->n) % PENDING, OF_GEMM));
    t->gemm_stream = stream;
    t->gemm_c = gemm->c;
    t->gemm_ours = out->act == MK_PAIR_DO_G;
    t->gemm_key = key_of(gemm);
    t->gemm_tiles = (uint32_t)((gemm->m + 127) / 128 * ((gemm->n + 255) / 256));
}

void mk_adapt_time_first(void *comm, const struct mk_pair_comm_facts *facts)
{
    struct mk_rival_share share;
    if (facts->rank || !mk_adapt.ops->stamp || !mk_adapt.ops->share)
        return;
    mk_adapt.ops->share(comm, &share);
    mk_setup_wish(facts->id, facts->rank, mk_rival_first(&share));
}

uint32_t mk_adapt_time_begin(const struct mk_pair_event *e, const struct mk_pair_out *out, void *stream)
{
    void *comm = (void *)(uintptr_t)e->u.coll.comm;
    const bool k = out->act == MK_PAIR_DO_PLAIN || out->act == MK_PAIR_DO_OVERLAP;
    const bool timed = out->timed && (k || out->act == MK_PAIR_DO_NCCL);
    struct timed *t = timed ? get(comm) : find(comm);
    if (!t)
        return 0;
    const bool gemm = t->gemm && t->gemm_stream == stream && t->gemm_c == e->u.coll.send;
    t->gemm = false;
    const uint32_t slot = (t->head + t->n) % PENDING;
    const bool together = out->act == MK_PAIR_DO_OVERLAP;
    if (!timed || t->n == PENDING || (together && !gemm) ||
        (!together && mk_adapt.ops->stamp(comm, stream, stamp_of(slot, BEFORE))))
        return 0;
    t->at[slot].sample = (struct mk_rival_sample){
        .nth = out->nth, .class = out->class, .nccl = !k, .now = out->now, .together = together};
    t->at[slot].ours = t->gemm_ours;
    t->at[slot].key = t->gemm_key;
    t->at[slot].sample.tiles = gemm ? t->gemm_tiles : 0;
    t->at[slot].gemm = gemm;
    t->at[slot].ended = false;
    t->n++;
    return slot + 1;
}

void mk_adapt_time_end(void *comm, void *stream, uint32_t slot, bool well)
{
    struct timed *t = find(comm);
    if (!t || !slot || slot > PENDING)
        return;
    if (!well || mk_adapt.ops->stamp(comm, stream, stamp_of(slot - 1, AFTER)))
        t->at[slot - 1].sample.class = MK_PAIR_CLASSES; /* no time */
    t->at[slot - 1].ended = true;
}

void mk_adapt_time_grouped(const void *comm)
{
    struct timed *t = find(comm);
    if (t)
        t->gemm = false;
}

void mk_adapt_time_captured(const struct mk_pair_event *e, const struct mk_pair_out *out)
{
    const bool overlap = out->act == MK_PAIR_DO_OVERLAP;
    struct timed *t =
        overlap || out->act == MK_PAIR_DO_PLAIN ? find((void *)(uintptr_t)e->u.coll.comm) : NULL;
    if (t) /* bf16 and fp16 */
        mk_rival_captured(t->rival, mk_pair_class(e->u.coll.count * 2), overlap);
}

static void propose(struct timed *t, const struct mk_rival_sample *s, const struct mk_rival_round *r,
                    struct mk_adapt_news *news)
{
    struct mk_pair_comm_facts facts;
    if (!mk_pair_comm(mk_adapt.pair, (uintptr_t)t->comm, &facts))
        return;
    mk_setup_wish(facts.id, facts.rank, mk_rival_word(t->rival));
    mk_rival_line(s->class, r, t->comm, news->text, sizeof(news->text));
}

/* Reads slot i. 0, AGAIN, or another error: it has no time. */
static int read_slot(struct timed *t, uint32_t i)
{
    struct mk_rival_sample *s = &t->at[i].sample;
    const uint32_t at = (uint32_t)(t->at[i].key % ORIGINALS);
    const bool original = t->at[i].gemm && !t->at[i].ours;
    uint64_t gemm_ns = 0;
    int ret = mk_adapt.ops->between(t->comm, stamp_of(i, s->together ? OF_GEMM : BEFORE), stamp_of(i, AFTER),
                                    &s->ns);
    if (!ret && original)
        ret = mk_adapt.ops->between(t->comm, stamp_of(i, OF_GEMM), stamp_of(i, BEFORE), &gemm_ns);
    if (ret)
        return ret;
    if (original) {
        t->original[at].key = t->at[i].key;
        t->original[at].ns = gemm_ns;
    } else if (t->at[i].gemm && t->original[at].key == t->at[i].key) {
        gemm_ns = t->original[at].ns;
    }
    s->gemm_ns = gemm_ns;
    if (!s->together)
        return 0;
    s->ns = s->ns > gemm_ns ? s->ns - gemm_ns : 1;
    return gemm_ns ? 0 : MK_ERR_INVALID;
}

void mk_adapt_time_read(const void *comm, struct mk_adapt_news *news)
{
    struct timed *t = list ? find(comm) : NULL;
    struct mk_rival_round round;
    news->text[0] = 0;
    while (t && t->n && t->at[t->head].ended) {
        struct mk_rival_sample *s = &t->at[t->head].sample;
        const int ret = s->class < MK_PAIR_CLASSES ? read_slot(t, t->head) : MK_ERR_INVALID;
        if (ret == MK_ERR_AGAIN)
            return;
        t->head = (t->head + 1) % PENDING;
        t->n--;
        if (!ret && mk_rival_note(t->rival, s, &round) && round.changed)
            propose(t, s, &round, news);
    }
}
