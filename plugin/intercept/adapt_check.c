/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* MK_VERIFY: what the kernels that look at C report (mk_fuse_ops.checked) becomes a line a site, with what came through the
 * hooks between its GEMM and its collective. */
#include "adapt_in.h"
#include "mk/log.h"
#include <stdio.h>

#define WORDS ((MK_HOOK_EVENTS + 63) / 64)

/* Under the lock, but for `seen`. */
static struct site {
    bool any, told;
    struct mk_pair_event event; /* of its first collective, with out */
    struct mk_pair_out out;
    uint64_t between[WORDS]; /* hooked calls, of every pair since */
} sites[MK_PAIR_CHECKS + 1];
static uint32_t nsites;      /* the highest number */
static uint64_t differed;    /* all sites, as last looked at */
static uint64_t seen[WORDS]; /* atomic: hooked calls since the last G, of all threads */

void mk_adapt_check_forget(void)
{
    memset(sites, 0, sizeof(sites));
    memset(seen, 0, sizeof(seen));
    nsites = 0;
    differed = mk_adapt.ops && mk_adapt.ops->checked ? mk_adapt.ops->checked(0, true) : 0;
}

void mk_adapt_check_saw(enum mk_hook_id id)
{
    if (mk_adapt.verify)
        __atomic_fetch_or(&seen[id / 64], 1ull << id % 64, __ATOMIC_RELAXED);
}

void mk_adapt_check_gemm(void)
{
    for (size_t i = 0; i < WORDS; i++)
        __atomic_store_n(&seen[i], 0, __ATOMIC_RELAXED);
}

void mk_adapt_check_coll(const struct mk_pair_event *e, const struct mk_pair_out *out, enum mk_hook_id id)
{
    struct site *s = &sites[out->check <= MK_PAIR_CHECKS ? out->check : 0];
    if (!out->check || s == sites)
        return;
    nsites = nsites > out->check ? nsites : out->check;
    if (!s->any) {
        s->any = true;
        s->event = *e;
        s->out = *out;
    }
    for (size_t i = 0; i < WORDS; i++)
        s->between[i] |= __atomic_load_n(&seen[i], __ATOMIC_RELAXED);
    if (id < MK_HOOK_EVENTS) /* the call itself is not between */
        s->between[id / 64] &= ~(1ull << id % 64);
}

static void names(const struct site *s, char *text, size_t bytes)
{
    size_t n = 0;
    snprintf(text, bytes, "none");
    for (int id = 0; id < MK_HOOK_EVENTS && n < bytes; id++)
        if (s->between[id / 64] >> id % 64 & 1)
            n += (size_t)snprintf(text + n, bytes - n, "%s%s", n ? "," : "",
                                  mk_hook_name((enum mk_hook_id)id));
}

/* Under the lock. The site's pairs are plain from now on, MK_VERIFY or not. */
static void refute(uint32_t i, struct mk_adapt_refuted *out)
{
    struct mk_pair_event e = {.kind = MK_PAIR_EV_REFUTED};
    struct mk_pair_out ignored;
    struct site *s = &sites[i];
    s->told = true;
    e.u.comm.number = i;
    mk_adapt_step(&e, &ignored);
    out->event = s->event;
    out->out = s->out;
    names(s, out->between, sizeof(out->between));
}

bool mk_adapt_check_look(struct mk_adapt_refuted *out)
{
    const struct mk_fuse_ops *ops = mk_adapt.ops;
    if (!mk_adapt.verify || !ops || !ops->checked)
        return false;
    const uint64_t now = ops->checked(0, true);
    if (now == differed)
        return false;
    for (uint32_t i = 1; i <= nsites; i++)
        if (sites[i].any && !sites[i].told && ops->checked(i, true)) {
            refute(i, out);
            return true; /* the next call finds the next one */
        }
    differed = now;
    return false;
}

void mk_adapt_check_say(const struct mk_adapt_refuted *r)
{
    char site[96], text[640];
    mk_adapt_where((const void *)(uintptr_t)r->event.u.coll.caller, site, sizeof(site));
    mk_pair_check_line(&r->event, &r->out, site, r->between, text, sizeof(text));
    MK_WARN("HOOK", "%s", text);
}

void mk_adapt_check_report(void)
{
    struct mk_adapt_refuted r;
    if (!mk_adapt_lock_soon())
        return;
    const struct mk_fuse_ops *ops = mk_adapt.verify ? mk_adapt.ops : NULL;
    bool any = ops && ops->checked;
    differed = UINT64_MAX; /* all sites once more: of two that report at once the sum may count one */
    mk_adapt_unlock();
    if (!any)
        return;
    while (any && mk_adapt_lock_soon()) {
        any = mk_adapt.pair && mk_adapt_check_look(&r);
        mk_adapt_unlock();
        if (any)
            mk_adapt_check_say(&r);
    }
    MK_INFO("HOOK", "fuse total checked: %llu", (unsigned long long)ops->checked(0, false));
    MK_INFO("HOOK", "fuse total differed: %llu", (unsigned long long)ops->checked(0, true));
}
