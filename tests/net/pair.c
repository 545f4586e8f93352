/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#include "tests/net/pair.h"
#include <string.h>

static void on_done(void *ctx, struct mk_link *l, uint64_t id, int status)
{
    struct side *s = ctx;
    (void)l;
    if (s->ndone < 4096)
        s->ids[s->ndone] = id;
    s->ndone++;
    s->nbad += status != 0;
    s->last_status = status;
}

static int open_side(struct side *s, const struct mk_settings *set, const struct mk_net_ops *ops,
                     const char *adapter)
{
    int ret = mk_engine_open_with(set, ops, adapter, &s->e);
    if (ret)
        return ret;
    ret = mk_shm_create("pair", PAIR_BYTES + 16 * PAIR_NOTES, &s->mem);
    if (ret)
        return ret;
    s->flags = (uint64_t *)((char *)s->mem.addr + PAIR_BYTES);
    s->shadow = s->flags + PAIR_NOTES;
    ret = mk_engine_reg(s->e, s->mem.addr, s->mem.size, &s->mem, &s->mr);
    if (ret)
        return ret;
    mk_mr_key(s->mr, &s->key);
    return mk_link_open(s->e, "the peer", &s->addr, &s->l);
}

static int join(struct side *me, struct side *peer)
{
    const int ret = mk_link_import(me->l, &peer->key, &me->rmem);
    if (ret)
        return ret;
    struct mk_peer_notes n;
    n.base = peer->base;
    n.n = PAIR_NOTES;
    n.mem = me->rmem;
    n.flags_off = PAIR_BYTES;
    n.shadow_off = PAIR_BYTES + 8 * PAIR_NOTES;
    mk_link_on_done(me->l, on_done, me);
    return mk_link_set_notes(me->l, &n);
}

static int connect_both(struct pair *p)
{
    int ret[2] = {MK_ERR_AGAIN, MK_ERR_AGAIN};
    const uint64_t end = mk_time_ns() + 10000000000ull;
    while (ret[0] || ret[1]) {
        for (int i = 0; i < 2; i++) {
            if (ret[i])
                ret[i] = mk_link_connect(p->s[i].l, &p->s[!i].addr);
            if (ret[i] && ret[i] != MK_ERR_AGAIN)
                return ret[i];
            mk_engine_progress(p->s[i].e);
        }
        if (mk_time_ns() > end)
            return MK_ERR_TIMEOUT;
    }
    return 0;
}

int pair_open(struct pair *p, const struct mk_settings *set, const struct mk_net_ops *ops,
              const char *adapter, const uint32_t step[PAIR_NOTES], const uint64_t first[PAIR_NOTES])
{
    int ret;
    memset(p, 0, sizeof(*p));
    for (int i = 0; i < 2; i++) {
        struct side *s = &p->s[i];
        ret = open_side(s, set, ops, adapter);
        if (ret)
            return ret;
        for (int k = 0; k < PAIR_NOTES; k++) {
            s->step[k] = step ? step[k] : 1;
            s->flags[k] = first ? first[k] : 0;
        }
        const struct mk_notes_desc d = {s->flags, s->shadow, s->step, PAIR_NOTES, &s->bell};
        ret = mk_notes_open(s->e, &d, &s->base, &s->notes);
        if (ret)
            return ret;
    }
    ret = connect_both(p);
    if (!ret)
        ret = join(&p->s[0], &p->s[1]);
    if (!ret)
        ret = join(&p->s[1], &p->s[0]);
    return ret;
}

void pair_close(struct pair *p)
{
    for (int i = 0; i < 2; i++) {
        mk_engine_close(p->s[i].e);
        mk_shm_release(&p->s[i].mem);
    }
    memset(p, 0, sizeof(*p));
}

void pair_run(struct pair *p)
{
    for (int quiet = 0; quiet < 3; quiet++)
        for (int i = 0; i < 2; i++)
            if (p->s[i].e && mk_engine_progress(p->s[i].e) > 0)
                quiet = -1;
}

struct mk_put pair_put(struct side *s, uint32_t note, uint64_t off, uint32_t len, uint32_t use,
                       uint64_t value)
{
    struct mk_put p;
    memset(&p, 0, sizeof(p));
    p.mr = s->mr;
    p.local_off = off;
    p.len = len;
    p.rmem = s->rmem;
    p.remote_off = off;
    p.note = note;
    p.use4 = use & 15;
    p.value = value;
    p.id = value;
    return p;
}

struct mk_put pair_credit(uint32_t note, uint64_t value)
{
    struct mk_put p;
    memset(&p, 0, sizeof(p));
    p.note = note;
    p.use4 = (uint32_t)(value & 15);
    p.value = value;
    p.flags = MK_PUT_CREDIT;
    p.id = 1000000 + value;
    return p;
}
