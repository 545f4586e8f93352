/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What collectives would take, and what is worth a trial or a place in the table.
 *
 * Model: time = latency + bytes / rate. Latency is that of the steps: a ring of n ranks takes 2 (n-1) for an all-reduce,
 * n-1 for all-gather and reduce-scatter, n for broadcast and reduce, of which 2 or 1 a node go over the network; a tree goes
 * up and down, log2 of the nodes over the network, and along the ranks of a node. The rate is min(link, channels * rate of a
 * channel). The link's is not guessed: it is what the known time leaves for the bytes. */
#include "mk/tune.h"
#include <math.h>
#include <string.h>

enum { NVLINK = 0, NET = 2 };
#define SMALL_CLASS 16 /* 64 KiB */
#define SAMPLES_LEAST 30
#define TRIAL_CALLS 40

static bool good(double v)
{
    return isfinite(v) && v >= 0 && v < 1e9;
}

/* ---- latency and rate ---- */

static double ring_latency(const struct mk_tune_facts *f, int coll, int proto)
{
    const double intra = f->hop_us[NVLINK][MK_ALGO_RING][proto], inter = f->hop_us[NET][MK_ALGO_RING][proto];
    const int n = f->nranks;
    const int steps = coll == MK_COLL_ALLREDUCE                                    ? 2 * (n - 1)
                      : coll == MK_COLL_ALLGATHER || coll == MK_COLL_REDUCESCATTER ? n - 1
                                                                                   : n;
    int net = f->nnodes > 1 ? (coll == MK_COLL_ALLREDUCE ? 2 : 1) * f->nnodes : 0;
    if (net > steps)
        net = steps;
    return (steps - net) * intra + net * inter;
}

static double tree_latency(const struct mk_tune_facts *f, int proto)
{
    const double intra = f->hop_us[NVLINK][MK_ALGO_TREE][proto], inter = f->hop_us[NET][MK_ALGO_TREE][proto];
    const int local = f->nranks / f->nnodes;
    return 2 * ((local > 1 ? local - 1 : 0) * intra + ceil(log2((double)f->nnodes)) * inter);
}

double mk_model_latency(const struct mk_tune_facts *f, int coll, int algo, int proto)
{
    if (!f->has_constants || coll < 0 || coll > MK_COLL_ALLREDUCE || proto < 0 || proto >= MK_PROTO_COUNT ||
        f->nranks < 1 || f->nnodes < 1 || f->nnodes > f->nranks ||
        (algo != MK_ALGO_RING && (algo != MK_ALGO_TREE || coll != MK_COLL_ALLREDUCE)))
        return -1;
    const double us = f->base_us[algo][proto] +
                      (algo == MK_ALGO_RING ? ring_latency(f, coll, proto) : tree_latency(f, proto));
    return good(us) ? us : -1;
}

/* Bytes a us that one channel carries of the collective's bytes; 0: not known. */
static double channel_rate(const struct mk_tune_facts *f, int coll, int algo, int proto)
{
    double gbs = 0;
    if (algo == MK_ALGO_RING && proto == MK_PROTO_LL128)
        gbs = f->ring_ll128;
    else if (algo == MK_ALGO_TREE && proto == MK_PROTO_LL128)
        gbs = f->tree_ll128;
    else if (algo == MK_ALGO_TREE && proto == MK_PROTO_SIMPLE)
        gbs = f->tree_simple;
    if (!good(gbs) || gbs <= 0)
        return 0;
    /* those are rates of the bus; a ring sends bytes / n in each step, a tree everything up and down */
    const double factor = algo == MK_ALGO_TREE ? 2 : mk_coll_bus_factor(coll, f->nranks);
    return factor > 0 ? 1e3 * gbs / factor : 0;
}

double mk_model_time(const struct mk_tune_facts *f, int coll, int algo, int proto, uint64_t bytes,
                     int channels, double known_us, int known_channels)
{
    const double latency = mk_model_latency(f, coll, algo, proto);
    if (latency < 0 || !good(known_us) || channels < 1)
        return -1;
    const double one = channel_rate(f, coll, algo, proto);
    const double moving = known_us > latency ? known_us - latency : 0; /* of the known time */
    if (!bytes || moving <= 0)
        return known_us;
    double rate = (double)bytes / moving;
    if (one > 0 && channels * one < rate)
        rate = channels * one;
    /* where a channel's limit is not known, fewer than were measured are taken to carry in proportion, more no more */
    if (known_channels > 0 && channels < known_channels &&
        (double)bytes / moving * channels / known_channels < rate)
        rate = (double)bytes / moving * channels / known_channels;
    const double us = latency + (double)bytes / rate;
    return us > known_us ? us : known_us;
}

/* ---- from profiles ---- */

/* Bounds of the 95 % interval of the median: order statistics n/2 -+ 0.98 sqrt(n). */
static double at(const struct mk_kind *k, double place)
{
    uint64_t sum = 0;
    for (int i = 0; i < MK_HIST_BUCKETS; i++) {
        sum += k->run_hist[i];
        if ((double)sum > place)
            return 1e-3 * mk_hist_value(i);
    }
    return 1e-3 * (double)k->run_max;
}

bool mk_tune_sample_of(const struct mk_kind *k, struct mk_tune_sample *out)
{
    const double n = (double)k->timed, half = 0.98 * sqrt(n);
    if (k->timed < SAMPLES_LEAST || k->coll > MK_COLL_ALLREDUCE || k->algo >= MK_ALGO_COUNT ||
        k->proto >= MK_PROTO_COUNT || !k->channels || k->channels > 64 || !k->gpu_clock)
        return false;
    memset(out, 0, sizeof(*out));
    out->coll = k->coll, out->size_class = k->size_class, out->algo = k->algo, out->proto = k->proto;
    out->channels = k->channels;
    out->n = k->timed > UINT32_MAX ? UINT32_MAX : (uint32_t)k->timed;
    out->median = at(k, n / 2);
    out->low = at(k, n / 2 - half);
    out->high = at(k, n / 2 + half);
    return true;
}

int mk_tune_samples(struct mk_profile *p, struct mk_profile_comm *c, struct mk_tune_sample *out, int most)
{
    struct mk_kind k;
    int n = 0;
    for (int i = 0; n < most && mk_profile_kind(p, c, i, &k); i++)
        n += mk_tune_sample_of(&k, &out[n]);
    return n;
}

static const struct mk_tune_entry *entry_of(const struct mk_tune_table *t, int coll, int size_class)
{
    for (uint32_t i = 0; t && i < t->count; i++)
        if (t->entry[i].coll == coll && t->entry[i].from <= size_class && size_class <= t->entry[i].to)
            return &t->entry[i];
    return NULL;
}

static bool asked_by(const struct mk_tune_entry *e, const struct mk_tune_sample *s)
{
    return e && (e->algo == MK_NAME_UNKNOWN || (e->algo == s->algo && e->proto == s->proto)) &&
           (!e->channels || e->channels == s->channels);
}

static bool usable(const struct mk_tune_sample *s)
{
    return s->n >= SAMPLES_LEAST && good(s->low) && s->low <= s->median && s->median <= s->high &&
           good(s->high) && s->coll <= MK_COLL_ALLREDUCE && s->size_class < 64 && s->algo < MK_ALGO_COUNT &&
           s->proto < MK_PROTO_COUNT && s->channels && s->channels <= 64;
}

/* Neighbouring sizes with one choice are one entry. Without room NCCL's choice stands. */
static void put(struct mk_tune_table *t, const struct mk_tune_entry *e)
{
    struct mk_tune_entry *last = t->count ? &t->entry[t->count - 1] : NULL;
    if (last && last->coll == e->coll && last->to + 1 == e->from && last->algo == e->algo &&
        last->proto == e->proto && last->channels == e->channels && !last->uses && !e->uses) {
        last->to = e->to;
        return;
    }
    if (t->count < MK_TUNE_ENTRIES)
        t->entry[t->count++] = *e;
}

/* How much slower it may be: SMs that it leaves to others are worth 2 %, from 64 KiB on. */
static double grace(const struct mk_tune_sample *s, const struct mk_tune_sample *theirs)
{
    return s->size_class >= SMALL_CLASS && s->channels < theirs->channels ? 1.02 : 1;
}

/* For one collective and size: the entry that it is to have, if any. */
static bool judge(const struct mk_tune_table *now, const struct mk_tune_sample *s, int n, int coll,
                  int size_class, struct mk_tune_entry *out)
{
    const struct mk_tune_entry *old = entry_of(now, coll, size_class);
    const struct mk_tune_sample *theirs = NULL, *best = NULL, *kept = NULL;
    for (int i = 0; i < n; i++) {
        if (!usable(&s[i]) || s[i].coll != coll || s[i].size_class != size_class)
            continue;
        if (asked_by(old, &s[i]))
            kept = &s[i];
        else if (!theirs || s[i].n > theirs->n)
            theirs = &s[i];
    }
    for (int i = 0; i < n && theirs; i++)
        if (usable(&s[i]) && s[i].coll == coll && s[i].size_class == size_class && &s[i] != theirs &&
            s[i].high < theirs->low * grace(&s[i], theirs) && (!best || s[i].median < best->median))
            best = &s[i];
    const bool lasting = old && !old->uses;
    if (lasting && (!best || best == kept || !kept || best->high >= kept->low)) {
        *out = *old;
        return !(kept && theirs && kept->low > theirs->high * grace(kept, theirs));
    }
    if (!best)
        return false;
    const struct mk_tune_entry e = {
        (uint8_t)coll, (uint8_t)size_class, (uint8_t)size_class, best->algo, best->proto, best->channels, 0};
    *out = e;
    return true;
}

/* Fewer channels, for a way that was measured: where the model says that half of them cost nothing. */
static void add_trial(const struct mk_tune_facts *f, const struct mk_tune_sample *s, int n,
                      struct mk_tune_table *t)
{
    const struct mk_tune_sample *which = NULL;
    for (int i = 0; i < n; i++) {
        bool tried = false;
        if (!usable(&s[i]) || s[i].size_class < SMALL_CLASS || s[i].channels < 4 ||
            entry_of(t, s[i].coll, s[i].size_class))
            continue;
        for (int k = 0; k < n; k++) /* half of them, and the same otherwise, is known already */
            tried |= s[k].coll == s[i].coll && s[k].size_class == s[i].size_class && s[k].algo == s[i].algo &&
                     s[k].proto == s[i].proto && s[k].channels == s[i].channels / 2;
        const double us = mk_model_time(f, s[i].coll, s[i].algo, s[i].proto, 1ull << s[i].size_class,
                                        s[i].channels / 2, s[i].median, 0);
        if (!tried && us > 0 && us <= s[i].median && channel_rate(f, s[i].coll, s[i].algo, s[i].proto) > 0 &&
            (!which || s[i].n > which->n))
            which = &s[i];
    }
    if (!which)
        return;
    const struct mk_tune_entry e = {which->coll,     which->size_class, which->size_class,
                                    MK_NAME_UNKNOWN, MK_NAME_UNKNOWN,   (uint8_t)(which->channels / 2),
                                    TRIAL_CALLS};
    put(t, &e);
}

bool mk_tune_build(const struct mk_tune_facts *f, const struct mk_tune_table *now,
                   const struct mk_tune_sample *s, int n, uint32_t cap, bool trial, struct mk_tune_table *out)
{
    memset(out, 0, sizeof(*out));
    out->cap = cap > 64 ? 64 : cap;
    for (int coll = 0; coll <= MK_COLL_ALLREDUCE; coll++)
        for (int size_class = 0; size_class < 64; size_class++) {
            struct mk_tune_entry e;
            if (judge(now, s, n, coll, size_class, &e)) {
                e.from = e.to = (uint8_t)size_class;
                put(out, &e);
            }
        }
    if (trial)
        add_trial(f, s, n, out);
    return mk_tune_id(out) != (now ? mk_tune_id(now) : 0) && !(!now && !out->count && !out->cap);
}
