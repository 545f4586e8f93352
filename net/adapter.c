/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Completion adapters `flag` and `immediate`, and the tables of flag words (notes). */
#include "net/adapter.h"
#include "mk/dev/flag.h"
#include "mk/err.h"
#include "mk/log.h"
#include <stdlib.h>
#include <string.h>

/* ---- sending ---- */

static void wr_payload(const struct mk_put *p, uint64_t id, struct mk_wr *wr)
{
    wr->id = id;
    wr->mr = p->mr;
    wr->local_off = p->local_off;
    wr->inline_data = 0;
    wr->rmem = p->rmem;
    wr->remote_off = p->remote_off;
    wr->len = p->len;
    wr->head = p->head;
    wr->head_off = p->head_off;
    wr->head_len = p->head_len;
    wr->imm = 0;
    wr->flags = MK_WR_SIGNALED | (p->flags & MK_PUT_DELIVERY ? MK_WR_DELIVERY : 0);
}

/* 8 bytes into the peer's notes. */
static void wr_word(const struct mk_link *l, uint64_t off, uint64_t value, uint64_t id, struct mk_wr *wr)
{
    wr->id = id;
    wr->mr = NULL;
    wr->local_off = 0;
    wr->inline_data = value;
    wr->rmem = l->notes.mem;
    wr->remote_off = off;
    wr->len = 8;
    wr->head_len = 0;
    wr->imm = 0;
    wr->flags = MK_WR_INLINE;
}

static int flag_build(const struct mk_link *l, const struct mk_put *p, uint64_t id, struct mk_wr *wr)
{
    const uint64_t off = l->notes.flags_off + 8ull * p->note;
    if (p->flags & MK_PUT_NO_NOTE) {
        wr_payload(p, id, wr);
        return 1;
    }
    if (!p->len) {
        wr_word(l, off, p->value, id, wr);
        wr->flags |= MK_WR_SIGNALED | (p->flags & MK_PUT_DELIVERY ? MK_WR_DELIVERY : 0);
        return 1;
    }
#if MK_MUTATE == 5
    wr_word(l, off, p->value, id | MK_ID_MORE, &wr[0]);
    wr_payload(p, id, &wr[1]);
#else
    wr_payload(p, id | MK_ID_MORE, &wr[0]);
    wr_word(l, off, p->value, id, &wr[1]); /* silent: its failure is reported, its success is not needed */
#endif
    return 2;
}

static void flag_build_credit(const struct mk_link *l, const struct mk_credit *c, uint32_t note,
                              struct mk_wr *wr)
{
    wr_word(l, l->notes.flags_off + 8ull * note, c->value, MK_ID_CREDIT | note, wr);
    wr->flags |= MK_WR_SIGNALED;
}

static uint32_t imm_of(uint32_t index, uint64_t use)
{
    return (index << 4) | (uint32_t)(use & 15);
}

static int immediate_build(const struct mk_link *l, const struct mk_put *p, uint64_t id, struct mk_wr *wr)
{
    wr_payload(p, id, wr);
    if (p->flags & MK_PUT_NO_NOTE)
        return 1;
#if MK_MUTATE == 5
    if (p->len) {
        wr_payload(p, id, &wr[1]);
        wr->id |= MK_ID_MORE;
        wr->len = 0;
        wr->flags = MK_WR_IMM;
        wr->imm = imm_of(l->notes.base + p->note, p->use4);
        return 2;
    }
#endif
    wr->flags |= MK_WR_IMM;
    wr->imm = imm_of(l->notes.base + p->note, p->use4);
    if (!p->len) { /* the immediate alone; an address that exists, for networks that check it */
        wr->rmem = l->notes.mem;
        wr->remote_off = l->notes.flags_off;
    }
    return 1;
}

/* The value into the peer's shadow word, then the immediate, which makes the peer look there. The four bits of the use
 * count do not do: a credit may jump by 16 and more, and once the shadow word was needed, it may be newer than the
 * immediate that the peer is at, so that a difference would be counted from a value that came later.
 * An older value must not land on a newer one: on unordered networks the next one leaves when this one has arrived. */
static void immediate_build_credit(const struct mk_link *l, const struct mk_credit *c, uint32_t note,
                                   struct mk_wr *wr)
{
    const struct mk_caps *caps = &l->e->caps;
    wr_word(l, l->notes.shadow_off + 8ull * note, c->value, MK_ID_CREDIT | note, wr);
    wr->imm = imm_of(l->notes.base + l->notes.n + note, c->value);
    wr->flags |= MK_WR_IMM | MK_WR_SIGNALED;
    if (!caps->ordered && caps->delivery_complete)
        wr->flags |= MK_WR_DELIVERY;
}

/* ---- receiving ---- */

static struct mk_notes *find_notes(struct mk_engine *e, uint32_t index)
{
    struct mk_notes *t = e->last_notes;
    if (t && index - t->base < 2 * t->d.n)
        return t;
    for (t = e->notes; t; t = t->next)
        if (index - t->base < 2 * t->d.n)
            return e->last_notes = t;
    return NULL;
}

static void stray(struct mk_engine *e, uint32_t imm)
{
    e->n.strays++;
    if (!e->stray_said)
        MK_WARN("NET",
                "%s: notification 0x%08x belongs to nothing here; ignored, further ones are only counted",
                e->caps.transport, imm);
    e->stray_said = true;
}

static void immediate_remote(struct mk_engine *e, uint32_t imm)
{
    const uint32_t index = imm >> 4;
    struct mk_notes *t = find_notes(e, index);
    if (!t) {
        stray(e, imm);
        return;
    }
    uint32_t i = index - t->base;
    if (i >= t->d.n) { /* a credit: the shadow word was written before this immediate, perhaps again since */
        i -= t->d.n;
        const uint64_t v = mk_ld_acq_sys_u64(&t->d.shadow[i]);
        if (v <= mk_ld_rlx_sys_u64(&t->d.flags[i]))
            return;
        mk_st_rel_sys_u64(&t->d.flags[i], v);
    } else {
        const uint32_t uses = (imm - t->low4[i]) & 15;
        if (!uses)
            return;
        t->low4[i] = (uint8_t)(imm & 15);
        /* release: whoever acquires this value sees the payload, whose completion this thread has polled */
        mk_st_rel_sys_u64(&t->d.flags[i], mk_ld_rlx_sys_u64(&t->d.flags[i]) + (uint64_t)uses * t->d.step[i]);
    }
    t->dirty = true;
}

static void immediate_look(struct mk_engine *e)
{
    (void)e;
}

static void flag_look(struct mk_engine *e)
{
    for (struct mk_notes *t = e->notes; t; t = t->next) {
        if (!t->d.bell)
            continue;
        for (uint32_t i = 0; i < t->d.n; i++) {
            const uint64_t v = mk_ld_acq_sys_u64(&t->d.flags[i]);
            t->dirty = t->dirty || v != t->seen[i];
            t->seen[i] = v;
        }
    }
}

void mk_notes_ring(struct mk_engine *e)
{
    for (struct mk_notes *t = e->notes; t; t = t->next) {
        if (!t->dirty)
            continue;
        t->dirty = false;
        if (t->d.bell)
            mk_bell_ring(t->d.bell);
    }
}

/* ---- tables ---- */

/* Indexes go round so that a late notification of a closed table does not hit a new one soon. */
static int take_base(struct mk_engine *e, uint32_t want, uint32_t *base)
{
    uint32_t at = e->next_base;
    bool wrapped = false;
    for (;;) {
        if (at + want > 1u << MK_NOTE_BITS) {
            if (wrapped)
                return mk_fail(MK_ERR_NOMEM, "NET", "no room for %u notification indexes", want);
            wrapped = true;
            at = 0;
        }
        const struct mk_notes *t = e->notes;
        while (t && (at + want <= t->base || at >= t->base + 2 * t->d.n))
            t = t->next;
        if (!t)
            break;
        at = t->base + 2 * t->d.n;
    }
    e->next_base = at + want;
    *base = at;
    return 0;
}

int mk_notes_open(struct mk_engine *e, const struct mk_notes_desc *desc, uint32_t *base,
                  struct mk_notes **out)
{
    uint32_t at = 0;
    if (!desc->n || desc->n > 1u << (MK_NOTE_BITS - 2) || !desc->flags || !desc->shadow || !desc->step)
        return mk_fail_quiet(MK_ERR_INVALID, "notes: %u words, flags, shadow and step are needed", desc->n);
    struct mk_notes *t = calloc(1, sizeof(*t));
    if (!t)
        return mk_fail(MK_ERR_NOMEM, "NET", "notes of %u words", desc->n);
    t->e = e;
    t->d = *desc;
    t->low4 = calloc(desc->n, 1);
    t->seen = calloc(desc->n, sizeof(uint64_t));
    int ret = t->low4 && t->seen ? 0 : mk_fail(MK_ERR_NOMEM, "NET", "notes of %u words", desc->n);
    if (!ret)
        ret = take_base(e, 2 * desc->n, &at);
    if (ret) {
        free(t->low4);
        free(t->seen);
        free(t);
        return ret;
    }
    t->base = at;
    for (uint32_t i = 0; i < desc->n; i++) {
        t->seen[i] = mk_ld_rlx_sys_u64(&desc->flags[i]);
        /* step 1: the use count is the value itself (credits); else it starts at 0 */
        t->low4[i] = desc->step[i] == 1 ? (uint8_t)(t->seen[i] & 15) : 0;
    }
    t->next = e->notes;
    e->notes = t;
    *base = at;
    *out = t;
    return 0;
}

void mk_notes_close(struct mk_notes *n)
{
    if (!n)
        return;
    struct mk_notes **p = &n->e->notes;
    while (*p && *p != n)
        p = &(*p)->next;
    if (*p)
        *p = n->next;
    if (n->e->last_notes == n)
        n->e->last_notes = NULL;
    free(n->low4);
    free(n->seen);
    free(n);
}

const struct mk_adapter mk_adapter_flag = {
    .name = "flag",
    .max_wr = 2,
    .build = flag_build,
    .build_credit = flag_build_credit,
    .remote = stray,
    .look = flag_look,
};

const struct mk_adapter mk_adapter_immediate = {
    .name = "immediate",
    .max_wr = MK_MUTATE == 5 ? 2 : 1,
    .build = immediate_build,
    .build_credit = immediate_build_credit,
    .remote = immediate_remote,
    .look = immediate_look,
};
