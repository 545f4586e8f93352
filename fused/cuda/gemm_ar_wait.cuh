/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* A block of GEMM+AllReduce with nothing to do: it forwards the host's abort, keeps the deadline, and tells the host
 * what it waits for. Included by gemm_ar_block.cuh. */
#pragma once

#define MK_FORWARD_EVERY 64     /* idle rounds between two looks at the host's abort word */
#define MK_TELL_NS 100000000ull /* between two notes of what is waited for */
#define MK_TELL_AFTER 1000000000ull
#define MK_SECONDHAND_NS 1000000000ull

/* The first queue that the last look found not ready -> what[]. */
MK_DEV void mk_describe(const struct mk_block_words *w, uint64_t since, uint64_t (&what)[MK_WHATS])
{
    if (w->sent) {
        what[MK_WHAT_KIND] = MK_WHAT_SENT;
        what[MK_WHAT_PEER] = (uint64_t)w->sent - 1;
    }
    MK_ROLLED
    for (int i = 0; i < MK_LOOK_MAX && !w->sent; i++) {
        const struct mk_task *t = &w->looks.task[i];
        if (w->looks.got[i] != 0)
            continue;
        what[MK_WHAT_KIND] = (uint64_t)t->kind;
        what[MK_WHAT_PEER] = (uint64_t)t->peer;
        what[MK_WHAT_ITEM] = t->item;
        what[MK_WHAT_CHUNK] = t->chunk;
        break;
    }
    what[MK_WHAT_EPOCH] = w->blk.epoch;
    what[MK_WHAT_SINCE] = since;
    what[MK_WHAT_BLOCK] = w->blk.ticket;
}

/* Bit p of word p / 64: asked of every other local rank or node. */
template <typename Ask> MK_DEV void mk_tell_peers(uint64_t *words, int32_t self, int32_t n, Ask ask)
{
    MK_ROLLED
    for (int32_t first = 0; first < n; first += 64) {
        uint64_t bits = 0;
        MK_ROLLED
        for (int32_t p = first; p < n && p < first + 64; p++)
            bits |= (uint64_t)(p != self && ask(p)) << (p - first);
        mk_st_rlx_sys_u64(&words[first / 64], bits);
    }
}
static_assert(MK_WHAT_SENT == MK_AR_KINDS && MK_PEER_WORDS * 64 == MK_MAX_PEERS, "words.h");

/* What the host decides by when a neighbour goes: whom this launch still needs. */
MK_DEV void mk_tell(const struct mk_ar *ar, const struct mk_block_words *w, const uint64_t (&what)[MK_WHATS])
{
    struct mk_gpu_words *host = mk_gpu_of(ar)->words;
    const struct mk_topo *t = &ar->rings.topo;
    mk_tell_peers(host->need_local, t->local, t->nlocal, [ar](int32_t p) { return mk_ar_needs(ar, 0, p); });
    mk_tell_peers(host->need_node, t->node, t->nnodes, [ar](int32_t p) { return mk_ar_needs(ar, 1, p); });
    mk_tell_peers(host->undrained, t->node, t->nnodes, [ar](int32_t p) { return !mk_ar_drained(ar, p); });
    MK_ROLLED
    for (int i = 0; i < MK_WHATS; i++)
        mk_st_rlx_sys_u64(&host->wait[i], what[i]);
    mk_st_rlx_sys_u64(&host->waiting, w->blk.epoch);
    mk_st_rel_sys_u64(&host->told, mk_ld_rlx_sys_u64(&host->told) + 1); /* by several blocks: it changes */
}

#if MK_PAIRED
/* Does G still owe tiles? Then nobody else is late. */
MK_DEV bool mk_is_computing(const struct mk_ar *ar, const struct mk_block_words *w)
{
    const uint32_t tiles = mk_ar_has_tiles(ar) ? mk_tiles(&ar->grid) : 0;
    MK_ROLLED
    for (uint32_t i = 0; i < tiles; i++)
        if (!mk_ar_tile_ready(ar, &w->blk, i))
            return true;
    return false;
}
#endif

/* Leader of a block with nothing to do, also of the last block that waits for the NIC. */
MK_DEV void mk_idle(const struct mk_ar *ar, struct mk_block_words *w)
{
    const struct mk_gpu_device *d = mk_gpu_of(ar);
    __nanosleep(100);
    if (++w->idle % MK_FORWARD_EVERY)
        return;
    mk_forward_abort(ar);
    const uint64_t now = mk_now_ns(), last = mk_ld_rlx_gpu_u64(&ar->state->progress_ns);
    const uint64_t from = last > w->entered_ns ? last : w->entered_ns, since = now > from ? now - from : 0;
    const uint64_t limit = d->peer_timeout_ns;
    const bool expired = limit && since > limit;
    if ((!expired && since < MK_TELL_AFTER) || now - w->told_ns < MK_TELL_NS)
        return;
#if MK_PAIRED
    if (mk_is_computing(ar, w)) {
        w->entered_ns = now;
        return;
    }
#endif
    uint64_t what[MK_WHATS] = {};
    mk_describe(w, since, what);
    w->told_ns = now;
    mk_tell(ar, w, what);
    /* Who waits for the absent rank itself speaks first; the others wait for those, and would name them. */
    const bool itself = what[MK_WHAT_KIND] == MK_AR_HDR_IN_LOCAL || what[MK_WHAT_KIND] == MK_AR_HDR_IN_NODE;
    if (expired && (itself || since > limit + MK_SECONDHAND_NS))
        mk_gpu_fail(ar, 8 /* -MK_ERR_TIMEOUT */, what);
}

/* Has node e's rank left? It had all it needed then: nothing that was sent to it matters any more. */
MK_DEV bool mk_node_left(const struct mk_ar *ar, int32_t e)
{
    return mk_ld_rlx_sys_u64(&mk_gpu_of(ar)->words->left[e / 64]) >> (e % 64) & 1;
}
