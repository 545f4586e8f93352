/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Conformance: memory, engines, link and proxies of both sides. */
#include "conformance.h"
#include "mk/err.h"
#include "net/engine.h"
#include <stdio.h>
#include <stdlib.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

static void on_error(void *ctx, int node, int code, const char *text)
{
    (void)node;
    cf_fail(ctx, "network: %s (%s)", text, mk_strerror(code));
}

static int open_memory(struct cf *t, struct cf_side *s)
{
    const int ret = mk_shm_create("conformance", t->size, &s->mem);
    if (ret)
        return ret;
    s->flags = (uint64_t *)((char *)s->mem.addr + t->flags_off);
    s->credits = s->flags;
    return 0;
}

int cf_open_gpu(struct cf *t)
{
    const char *options[] = {t->nic_options, NULL};
    if (!t->gpu)
        return 0;
    const int ret = nic_start(t->nic_program, *t->nic_options ? options : NULL, &t->nic, &t->set);
    if (ret)
        return ret;
    t->cu = nic_cuda(0);
    if (!t->cu || t->cu->mem_alloc(&t->a.gpu, t->size) || t->cu->mem_alloc(&t->b.gpu, t->size)) {
        nic_stop(&t->nic, SIGTERM);
        return 1;
    }
    return 0;
}

static int open_side(struct cf *t, struct cf_side *s, bool credits)
{
    const struct mk_net_ops *ops = !strcmp(t->set.net, "ofi")     ? &mk_ofi_ops
                                   : !strcmp(t->set.net, "verbs") ? &mk_verbs_ops
                                                                  : &mk_loop_ops;
    int ret = mk_engine_open_with(&t->set, ops, t->adapter, &s->e);
    if (ret)
        return ret;
    ret = mk_engine_reg(s->e, s->mem.addr, s->mem.size, &s->mem, &s->mr);
    if (ret)
        return ret;
    mk_mr_key(s->mr, &s->key);
    s->windows[0] = s->mr;
    if (s->gpu) {
        if (!mk_engine_caps(s->e)->gpu_memory)
            return mk_fail(MK_ERR_INTERNAL, "NET", "no GPU memory, although there is a mknic");
        ret = mk_engine_reg(s->e, (void *)(uintptr_t)s->gpu, t->size, NULL, &s->windows[1]);
        if (ret)
            return ret;
        mk_mr_key(s->windows[1], &s->gpu_key);
    }
    s->step = calloc(t->nflags, sizeof(*s->step));
    if (!s->step)
        return mk_fail(MK_ERR_NOMEM, "NET", "conformance");
    for (uint32_t i = 0; i < CF_RINGS; i++)
        for (uint32_t k = 0; k < t->ring[i].slots; k++)
            s->step[t->ring[i].flag0 + k] = t->ring[i].slots;
    for (uint32_t i = 0; credits && i < t->nflags; i++)
        s->step[i] = 1;
    const struct mk_notes_desc d = {s->flags, s->flags + t->nflags, s->step, t->nflags, &s->bell};
    ret = mk_notes_open(s->e, &d, &s->base, &s->notes);
    return ret ? ret : mk_link_open(s->e, credits ? "the checker" : "the sender", &s->addr, &s->l);
}

static int connect_both(struct cf *t)
{
    int ra = MK_ERR_AGAIN, rb = MK_ERR_AGAIN;
    const uint64_t end = mk_time_ns() + 20000000000ull;
    while (ra || rb) {
        if (ra)
            ra = mk_link_connect(t->a.l, &t->b.addr);
        if (rb)
            rb = mk_link_connect(t->b.l, &t->a.addr);
        if (ra && ra != MK_ERR_AGAIN)
            return ra;
        if (rb && rb != MK_ERR_AGAIN)
            return rb;
        mk_engine_progress(t->a.e);
        mk_engine_progress(t->b.e);
        if (mk_time_ns() > end)
            return mk_fail(MK_ERR_TIMEOUT, "NET", "conformance: no connection");
    }
    return 0;
}

static int join(struct cf *t, struct cf_side *me, const struct cf_side *peer)
{
    struct mk_peer_notes n;
    int ret = mk_link_import(me->l, &peer->key, &me->rmem);
    me->rwindows[0] = me->rmem;
    if (!ret && peer->gpu)
        ret = mk_link_import(me->l, &peer->gpu_key, &me->rwindows[1]);
    if (ret)
        return ret;
    n.base = peer->base;
    n.n = t->nflags;
    n.mem = me->rmem;
    n.flags_off = t->flags_off;
    n.shadow_off = t->flags_off + 8ull * t->nflags;
    return mk_link_set_notes(me->l, &n);
}

static int start_proxy(struct cf *t, struct cf_side *s)
{
    int ret = mk_proxy_start(&t->set, s->e, 7, &s->proxy);
    if (ret)
        return ret;
    struct mk_proxy_comm c;
    memset(&c, 0, sizeof(c));
    c.nnodes = 1;
    c.nwindows = s->gpu ? 2 : 1;
    c.links = &s->l;
    c.windows = s->windows;
    c.rwindows = s->rwindows;
    c.done = t->done;
    c.ndone = s == &t->a ? CF_RINGS * CF_SOURCES : 0;
    c.bell = &s->bell;
    c.on_error = on_error;
    c.ctx = t;
    return mk_proxy_attach(s->proxy, &c, &s->id);
}

/* Under TSan the sender writes through the address that the checker reads, so that TSan sees both. */
static int open_alias(struct cf *t)
{
#ifdef __SANITIZE_THREAD__
    t->b_alias = t->b.mem.addr;
    return 0;
#else
    struct mk_shm_ref ref;
    mk_shm_ref(&t->b.mem, &ref);
    const int ret = mk_shm_import(&ref, &t->alias);
    t->b_alias = t->alias.addr;
    return ret;
#endif
}

int cf_open(struct cf *t)
{
    int ret = open_memory(t, &t->a);
    if (!ret)
        ret = open_memory(t, &t->b);
    if (ret)
        return ret;
    for (uint32_t i = 0; i < CF_RINGS; i++) {
        t->a.credits[i] = t->ring[i].slots;
        for (uint32_t k = 0; k < t->ring[i].slots; k++)
            t->b.flags[t->ring[i].flag0 + k] = k + 1ull - t->ring[i].slots;
    }
    if (t->store)
        return open_alias(t);
    ret = open_side(t, &t->a, true);
    if (!ret)
        ret = open_side(t, &t->b, false);
    if (!ret)
        ret = connect_both(t);
    if (!ret)
        ret = join(t, &t->a, &t->b);
    if (!ret)
        ret = join(t, &t->b, &t->a);
    if (ret)
        return ret;
    const struct mk_caps *c = mk_engine_caps(t->a.e);
    snprintf(t->where, sizeof(t->where), "%s (%s%s%s%s)", c->transport, c->provider,
             !t->gpu       ? ""
             : t->gpu == 3 ? ", GPU to GPU"
             : t->gpu == 1 ? ", GPU to host"
                           : ", host to GPU",
             c->ordered ? ", ordered" : "", t->set.loop_hostile ? ", hostile" : "");
    ret = start_proxy(t, &t->a);
    return ret ? ret : start_proxy(t, &t->b);
}

void cf_print_stats(const struct cf *t)
{
    struct mk_proxy_stats a, b;
    mk_proxy_get_stats(t->a.proxy, &a);
    mk_proxy_get_stats(t->b.proxy, &b);
    printf(
        "conformance: sender %llu batches (8: %llu), %llu window waits, %llu sleeps; credits: %llu commands, "
        "%llu merged\n",
        (unsigned long long)a.batches, (unsigned long long)a.fill[8], (unsigned long long)a.window_waits,
        (unsigned long long)a.sleeps, (unsigned long long)b.commands, (unsigned long long)b.credits_merged);
}

static void close_side(struct cf_side *s)
{
    if (s->proxy)
        mk_proxy_stop(s->proxy);
    else
        mk_engine_close(s->e);
    free(s->step);
    mk_shm_release(&s->mem);
}

void cf_close(struct cf *t)
{
    close_side(&t->a);
    close_side(&t->b);
    mk_shm_release(&t->alias);
    const int status = t->gpu ? nic_stop(&t->nic, SIGTERM) : 0;
    if (status) {
        printf("conformance: mknic ended with status %d\n", status);
        t->errors++;
    }
}
