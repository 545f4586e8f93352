/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Layout of the fixed and the staging memory, and their values before the first use. */
#include "comm.h"
#include "sched/ll.h"
#include "mk/err.h"
#include <string.h>

static uint64_t round_up(uint64_t v, uint64_t to)
{
    return (v + to - 1) / to * to;
}

static bool carries_payload(int cls)
{
    return cls != MK_CLASS_HEADER_LOCAL && cls != MK_CLASS_HEADER_NODE;
}

static bool exists(const struct mk_topo *t, int cls)
{
    return mk_class_peers(t, cls) > 0 && (cls != MK_CLASS_RESULT || t->nnodes > 2);
}

/* Shares of the staging memory: one per ring end that holds payload here. */
static uint32_t shares(const struct mk_topo *t)
{
    uint32_t n = 0;
    for (int cls = 0; cls < MK_CLASSES; cls++)
        if (exists(t, cls) && carries_payload(cls))
            n += (uint32_t)mk_class_peers(t, cls) * (mk_class_is_local(cls) ? 1 : 2);
    return n;
}

static void layout_staging(struct mk_rings *r)
{
    uint64_t at = 0;
    for (int cls = 0; cls < MK_CLASSES; cls++) {
        if (!r->slots[cls] || !carries_payload(cls))
            continue;
        const uint64_t bytes = (uint64_t)mk_class_peers(&r->topo, cls) * r->slots[cls] * r->slot_bytes;
        r->in_off[cls] = at;
        at += bytes;
        if (!mk_class_is_local(cls)) {
            r->out_off[cls] = at;
            at += bytes;
        }
    }
    r->staging_bytes = round_up(at ? at : 1, 4096);
}

static void layout_fixed(struct mk_rings *r)
{
    for (int cls = 0; cls < MK_CLASSES; cls++) {
        const uint32_t peers = r->slots[cls] ? (uint32_t)mk_class_peers(&r->topo, cls) : 0;
        r->flag_note[cls] = r->notes;
        r->notes += peers * r->slots[cls];
        r->credit_note[cls] = r->notes;
        r->notes += peers;
        r->done_index[cls] = r->dones;
        if (!mk_class_is_local(cls))
            r->dones += peers * r->slots[cls];
    }
    uint64_t at =
        4096; /* first page: the bell, the word of who has gone, the count of who has closed GPU memory */
    r->bell_off = 0;
    r->gone_off = 64;
    r->notes_off = at;
    at = round_up(at + 8ull * r->notes, 4096);
    r->shadow_off = at;
    at = round_up(at + 8ull * r->notes, 4096);
    r->done_off = at;
    at = round_up(at + 8ull * r->dones, 4096);
    for (int level = 0; level < 2; level++) {
        const int cls = level ? MK_CLASS_HEADER_NODE : MK_CLASS_HEADER_LOCAL;
        r->header_in_off[level] = at;
        at += (uint64_t)mk_class_peers(&r->topo, cls) * MK_HEADER_SLOTS * MK_HEADER_BYTES;
    }
    r->header_out_off = at;
    at += (uint64_t)mk_class_peers(&r->topo, MK_CLASS_HEADER_NODE) * MK_HEADER_SLOTS * MK_HEADER_BYTES;
    r->fixed_bytes = round_up(at, 4096);
}

int mk_rings_build(const struct mk_topo *topo, size_t workspace, size_t chunk, struct mk_rings *out)
{
    struct mk_rings r;
    memset(&r, 0, sizeof(r));
    r.topo = *topo;
    if (topo->nnodes > MK_MAX_PEERS || topo->nlocal > MK_MAX_PEERS)
        return mk_fail(MK_ERR_UNSUPPORTED, "FUSED",
                       "%d nodes of %d ranks: more than %d of either is not supported", topo->nnodes,
                       topo->nlocal, MK_MAX_PEERS);
    const uint32_t n = shares(topo);
    const uint64_t share = n ? workspace / n : workspace;
    r.slot_bytes = (chunk < share / 2 ? chunk : share / 2) / 256 * 256;
    if (r.slot_bytes > MK_MAX_SLOT_BYTES)
        r.slot_bytes = MK_MAX_SLOT_BYTES;
    if (r.slot_bytes < MK_MIN_SLOT_BYTES)
        return mk_fail(MK_ERR_UNSUPPORTED, "FUSED",
                       "a workspace of %zu bytes and chunks of %zu give slots of %llu bytes in %u rings; %d "
                       "is the least",
                       workspace, chunk, (unsigned long long)r.slot_bytes, n, MK_MIN_SLOT_BYTES);
    for (int cls = 0; cls < MK_CLASSES; cls++) {
        if (!exists(topo, cls))
            continue;
        const uint64_t fit = share / r.slot_bytes;
        uint32_t s = MK_RING_MAX_SLOTS;
        while (s > fit)
            s /= 2;
        r.slots[cls] = carries_payload(cls) ? s : MK_HEADER_SLOTS;
    }
    layout_staging(&r);
    layout_fixed(&r);
    *out = r;
    return 0;
}

/* What the rings leave of the workspace, in two halves of a slot a local rank. */
void mk_rings_add_ll(struct mk_rings *r, size_t workspace)
{
    const uint64_t most = 2ull << 20, slots = 2ull * (uint64_t)r->topo.nlocal;
    const uint64_t used = r->staging_bytes + MK_LL_HEADS_BYTES;
    const uint64_t left = workspace > used ? (workspace - used) / slots : 0;
    _Static_assert(2 * MK_LL_MAX_RANKS * MK_LL_HEAD_BYTES <= MK_LL_HEADS_BYTES, "both halves of all heads");
    if (r->topo.nnodes > 1 || r->topo.nlocal < 2 || r->topo.nlocal > MK_LL_MAX_RANKS)
        return;
    r->ll_slot = (left < most ? left : most) / 4096 * 4096;
    r->ll_off = r->staging_bytes;
    if (r->ll_slot)
        r->staging_bytes += r->ll_slot * slots + MK_LL_HEADS_BYTES;
}

uint64_t mk_rings_start(const struct mk_rings *r, int cls, uint64_t start)
{
    /* A multiple of 16 laps: use counts, which travel as 4 bits, then start at 0. */
    const uint64_t unit = 16ull * (r->slots[cls] ? r->slots[cls] : 1);
    return start / unit * unit;
}

void mk_rings_init(const struct mk_rings *r, uint8_t *fixed, struct mk_ar_state *state, uint64_t start)
{
    memset(state, 0, sizeof(*state));
    state->epoch = start ? start : 1;
    state->ll_pos = start;
    for (int cls = 0; cls < MK_CLASSES; cls++) {
        const uint32_t s = r->slots[cls];
        const uint64_t first = mk_rings_start(r, cls, start);
        uint64_t *notes = mk_ar_note(fixed, r, 0);
        for (int p = 0; p < MK_MAX_PEERS; p++) {
            state->pos_in[cls][p] = first;
            state->pos_out[cls][p] = first;
            state->release[cls][p] = (uint32_t)first;
        }
        for (int i = 0; s && i < mk_class_peers(&r->topo, cls); i++) {
            for (uint32_t slot = 0; slot < s; slot++) {
                notes[r->flag_note[cls] + (uint32_t)i * s + slot] = mk_flag_initial(s, slot, first);
                if (!mk_class_is_local(cls))
                    ((uint64_t *)(fixed + r->done_off))[r->done_index[cls] + (uint32_t)i * s + slot] = first;
            }
            notes[r->credit_note[cls] + (uint32_t)i] = first + s;
        }
    }
    for (int i = 0; i < MK_RING_MAX_SLOTS; i++)
        state->sum_used[i] = mk_rings_start(r, MK_CLASS_SUM, start);
}

void mk_rings_note_steps(const struct mk_rings *r, uint32_t *step)
{
    for (int cls = 0; cls < MK_CLASSES; cls++) {
        const uint32_t peers = r->slots[cls] ? (uint32_t)mk_class_peers(&r->topo, cls) : 0;
        for (uint32_t i = 0; i < peers * r->slots[cls]; i++)
            step[r->flag_note[cls] + i] = r->slots[cls];
        for (uint32_t i = 0; i < peers; i++)
            step[r->credit_note[cls] + i] = 1;
    }
}
