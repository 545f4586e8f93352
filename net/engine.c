/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The engine: which transport and which completion adapter, memory, and the one function that drives it all.
 * From a put to the wire: mk_link_put (put.c), build (adapter.c), post (the transport). */
#include "net/adapter.h"
#include "mk/err.h"
#include "mk/log.h"
#include "mk/param.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define POLLS_PER_CLOCK 64u
#define FUTILE_MAX 8u
#define NAP_MAX_NS 200000u

/* In the order of choice; verbs is there only with an RDMA device whose port is up. `loop` is for ranks on one host and
 * for tests: only on request. */
static const struct {
    const char *name;
    const struct mk_net_ops *ops;
    bool automatic;
} transports[] = {
    {"verbs", &mk_verbs_ops, true},
    {"ofi", &mk_ofi_ops, true},
    {"loop", &mk_loop_ops, false},
};
#define NTRANSPORTS (sizeof(transports) / sizeof(transports[0]))

/* ---- opening ---- */

static int choose_adapter(const struct mk_settings *s, const char *want, struct mk_engine *e)
{
    /* libfabric's promises of order were never seen broken, nor are they declarations of a fabric: on request */
    const bool ordered = s->ordered || (e->caps.ordered && strcmp(e->caps.transport, "ofi"));
    const bool flag = want ? !strcmp(want, "flag") : ordered;
    if (!flag && e->caps.immediate_bits < 32)
        return mk_fail(
            MK_ERR_UNSUPPORTED, "NET",
            "%s (%s) carries %u bits of immediate data, 32 are needed; if it keeps the order of writes, "
            "MK_ORDERED=1 does without",
            e->caps.transport, e->caps.provider, e->caps.immediate_bits);
    e->adapter = flag ? &mk_adapter_flag : &mk_adapter_immediate;
    snprintf(e->caps.adapter, sizeof(e->caps.adapter), "%s", e->adapter->name);
    return 0;
}

int mk_engine_open_with(const struct mk_settings *s, const struct mk_net_ops *ops, const char *adapter,
                        struct mk_engine **out)
{
    struct mk_engine *e = calloc(1, sizeof(*e));
    if (!e)
        return mk_fail(MK_ERR_NOMEM, "NET", "an engine");
    int ret = ops->open(s, &e->dev);
    if (ret)
        goto free_engine;
    e->ops = ops;
    e->caps = e->dev->caps;
    if (e->caps.max_batch < 2 || !e->caps.depth) {
        ret = mk_fail(MK_ERR_UNSUPPORTED, "NET", "%s: %u work requests a post, %u in flight are too few",
                      e->caps.transport, e->caps.max_batch, e->caps.depth);
        goto close_dev;
    }
    ret = choose_adapter(s, adapter, e);
    if (ret)
        goto close_dev;
    const uint64_t now = mk_time_ns();
    e->dev->user = e;
    e->batch = (int)(s->batch < (int64_t)e->caps.max_batch ? s->batch : (int64_t)e->caps.max_batch);
    e->timeout = s->timeout;
    e->tick_ns = (uint64_t)(s->timeout * 1e9 / MK_TICKS);
    e->next_tick = now + e->tick_ns;
    mk_pace_init(&e->pace, s->loop_gbps, now);
    MK_INFO("NET", "transport %s, provider %s, completion by %s, batches of %d", e->caps.transport,
            e->caps.provider, e->caps.adapter, e->batch);
    *out = e;
    return 0;
close_dev:
    ops->close(e->dev);
free_engine:
    free(e);
    return ret;
}

int mk_engine_open(const struct mk_settings *s, struct mk_engine **out)
{
    const bool automatic = !strcmp(s->net, "auto");
    char why[300] = "none is built in";
    for (size_t i = 0; i < NTRANSPORTS; i++) {
        if (automatic ? !transports[i].automatic : strcmp(transports[i].name, s->net))
            continue;
        const int ret = mk_engine_open_with(s, transports[i].ops, NULL, out);
        if (ret != MK_ERR_UNSUPPORTED || !automatic)
            return ret;
        snprintf(why, sizeof(why), "%.290s", mk_last_error());
        MK_INFO("NET", "transport %s does not work here: %s", transports[i].name, why);
    }
    if (!automatic)
        return mk_fail(MK_ERR_UNSUPPORTED, "NET", "transport MK_NET=%s is not in this build", s->net);
    return mk_fail(
        MK_ERR_UNSUPPORTED, "NET",
        "no transport works here (%s); install libfabric (Debian, Ubuntu: apt install libfabric1), or set "
        "MK_NET=loop if all ranks are on this host",
        why);
}

int mk_engine_nth(const struct mk_settings *s, int nth, struct mk_settings *out)
{
    *out = *s;
    for (size_t i = 0; i < NTRANSPORTS; i++)
        if (!strcmp(transports[i].name, s->net) && transports[i].ops->nth)
            return transports[i].ops->nth(s, nth, out);
    return nth ? mk_fail_quiet(MK_ERR_UNSUPPORTED, "%s has one device", s->net) : 0;
}

void mk_engine_close(struct mk_engine *e)
{
    if (!e)
        return;
    while (e->links) {
        struct mk_link *l = e->links;
        mk_link_close(l);
        if (e->links == l)
            mk_link_free(l); /* was closed before, inside a progress that never ended */
    }
    while (e->notes)
        mk_notes_close(e->notes);
    while (e->nmr)
        mk_mr_dereg(e->mr[e->nmr - 1]);
    MK_INFO("NET",
            "%s closed: %llu puts, %llu bytes, %llu batches, %llu credits (%llu merged), %llu strays, "
            "%llu errors",
            e->caps.transport, (unsigned long long)e->n.puts, (unsigned long long)e->n.bytes,
            (unsigned long long)e->n.batches, (unsigned long long)e->n.credits,
            (unsigned long long)e->n.credits_merged, (unsigned long long)e->n.strays,
            (unsigned long long)e->n.errors);
    e->ops->close(e->dev);
    free(e->mr);
    free(e);
}

const struct mk_caps *mk_engine_caps(const struct mk_engine *e)
{
    return &e->caps;
}

/* ---- memory ---- */

static int keep_mr(struct mk_engine *e, struct mk_mr *mr, struct mk_mr **out)
{
    struct mk_mr **list = realloc(e->mr, (e->nmr + 1) * sizeof(struct mk_mr *));
    if (!list) {
        const size_t len = mr->len;
        e->ops->dereg(mr);
        return mk_fail(MK_ERR_NOMEM, "NET", "registering %zu bytes", len);
    }
    e->mr = list;
    e->mr[e->nmr++] = mr;
    *out = mr;
    return 0;
}

int mk_engine_reg(struct mk_engine *e, void *addr, size_t len, const struct mk_shm *shm, struct mk_mr **out)
{
    struct mk_mr *mr;
    const int ret = e->ops->reg(e->dev, addr, len, shm, &mr);
    return ret ? ret : keep_mr(e, mr, out);
}

int mk_engine_export(struct mk_engine *e, void *addr, size_t len, struct mk_export **out)
{
    *out = NULL;
    return e->caps.gpu_memory && e->ops->export ? e->ops->export(e->dev, addr, len, out) : 0;
}

int mk_engine_reg_export(struct mk_engine *e, struct mk_export *x, struct mk_mr **out)
{
    struct mk_mr *mr;
    const int ret = e->ops->reg_export(x, &mr);
    return ret ? ret : keep_mr(e, mr, out);
}

int mk_engine_reg_dmabuf(struct mk_engine *e, int fd, uint64_t offset, void *addr, size_t len,
                         struct mk_mr **out)
{
    struct mk_mr *mr;
    if (!e->caps.dmabuf || !e->ops->reg_dmabuf)
        return mk_fail(MK_ERR_UNSUPPORTED, "NET", "%s %s takes no dma-buf", e->caps.transport,
                       e->caps.provider);
    const int ret = e->ops->reg_dmabuf(e->dev, fd, offset, addr, len, &mr);
    return ret ? ret : keep_mr(e, mr, out);
}

int mk_mr_flush(struct mk_mr *mr)
{
    return mr->gpu && mr->dev->ops->flush ? mr->dev->ops->flush(mr) : 0;
}

bool mk_mr_on_gpu(const struct mk_mr *mr)
{
    return mr->gpu;
}

int mk_mr_fill(struct mk_mr *mr, uint64_t off, const void *from, uint32_t len)
{
    return mr->dev->ops->fill(mr, off, from, len);
}

void mk_mr_key(const struct mk_mr *mr, struct mk_net_key *out)
{
    memset(out, 0, sizeof(*out));
    mr->dev->ops->key(mr, out);
}

void mk_mr_dereg(struct mk_mr *mr)
{
    if (!mr)
        return;
    struct mk_engine *e = mr->dev->user;
    for (uint32_t i = 0; i < e->nmr; i++)
        if (e->mr[i] == mr) {
            e->mr[i] = e->mr[--e->nmr];
            break;
        }
    e->ops->dereg(mr);
}

/* ---- progress ---- */

static void free_zombies(struct mk_engine *e)
{
    struct mk_link *next;
    e->zombies = false;
    for (struct mk_link *l = e->links; l; l = next) {
        next = l->next;
        if (l->closing)
            mk_link_free(l);
    }
}

static void fail_all(struct mk_engine *e, int code)
{
    char why[160];
    snprintf(why, sizeof(why), "%s", mk_last_error());
    e->error = code;
    for (struct mk_link *l = e->links; l; l = l->next)
        mk_link_fail(l, code, "%s failed, %s is out of reach: %.100s", e->caps.transport, l->name, why);
}

/* Reads the clock now and then. Ticks count looks, not time: a caller that stayed away for long does not make
 * puts late whose completions it has not fetched. */
static void watch(struct mk_engine *e)
{
    e->polls = 0;
    const uint64_t now = mk_time_ns();
    if (now < e->next_tick)
        return;
    e->next_tick = now + e->tick_ns;
    e->tick++;
    for (struct mk_link *l = e->links; l; l = l->next)
        mk_link_check_late(l, now);
}

static void dispatch(struct mk_engine *e, const struct mk_wc *wc)
{
    if (wc->kind == MK_WC_REMOTE)
        e->adapter->remote(e, wc->imm);
    else if (wc->conn && wc->conn->user)
        mk_link_complete(wc->conn->user, wc);
    else
        e->n.strays++;
}

int mk_engine_progress(struct mk_engine *e)
{
    struct mk_wc wc[MK_POLL_MAX];
    if (e->error)
        return e->error;
    e->busy++;
    int events = e->ops->poll(e->dev, wc, MK_POLL_MAX);
    if (events < 0) {
        fail_all(e, events);
    } else {
        e->futile = events ? 0 : e->futile + e->woke_early;
        e->woke_early = false;
        for (int i = 0; i < events; i++)
            dispatch(e, &wc[i]);
        if (!events)
            e->adapter->look(e);
        mk_notes_ring(e);
        for (struct mk_link *l = e->links; l; l = l->next)
            if (mk_link_waits(l))
                events += mk_link_flush(l);
        if (++e->polls >= POLLS_PER_CLOCK)
            watch(e);
    }
    e->busy--;
    if (e->zombies && !e->busy)
        free_zombies(e);
    return events;
}

/* A network whose wait keeps returning early with nothing to show (libfabric 1.17's net leaves its descriptor
 * readable) would spin: then we nap on a bell of our own, in short pieces, since an arrival does not ring it. */
static void doze(struct mk_engine *e, uint64_t ns)
{
    if (e->futile >= FUTILE_MAX) {
        mk_bell_wait(&e->nap, e->nap_seq, ns < NAP_MAX_NS ? ns : NAP_MAX_NS);
    } else {
        const uint64_t begin = mk_time_ns();
        e->ops->wait(e->dev, ns);
        e->woke_early = mk_time_ns() - begin < ns / 2;
    }
    e->nap_seq = mk_bell_seq(&e->nap);
}

void mk_engine_wait(struct mk_engine *e, uint64_t ns)
{
    uint64_t now = 0;
    if (e->error) { /* the device may not be able to sleep any more */
        const struct timespec t = {0, ns < 1000000 ? (long)ns : 1000000};
        nanosleep(&t, NULL);
        return;
    }
    for (const struct mk_link *l = e->links; l && ns; l = l->next) {
        if (!mk_link_waits(l))
            continue;
        if (!now)
            now = mk_time_ns();
        const uint64_t due = mk_link_due(l, now);
        ns = due < ns ? due : ns;
    }
    if (ns)
        doze(e, ns);
    e->polls = POLLS_PER_CLOCK; /* the next progress reads the clock */
}

void mk_engine_wake(struct mk_engine *e)
{
    mk_bell_ring(&e->nap);
    e->ops->wake(e->dev);
}
