/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The watching thread of a communicator on a GPU: it makes the failure that a block has reported the communicator's,
 * looks at whom a waiting launch has lost, reminds, and tells the blocks which nodes have left. */
#include "comm.h"
#include "cuda/gpu.h"
#include "mk/err.h"
#include "mk/log.h"
#include <stdio.h>
#include <string.h>

#define WATCH_NS 1000000
#define REMIND_NS 30000000000ull
_Static_assert(sizeof(struct mk_gpu_words) <= 4096, "one page");
_Static_assert(MK_WHAT_SENT == MK_AR_KINDS, "a kind of its own");

static int rank_of(const struct mk_comm *comm, uint64_t kind, uint64_t peer)
{
    const struct mk_topo *t = &comm->topo;
    const char fan = kind == MK_WHAT_SENT ? 'n' : kind < MK_AR_KINDS ? mk_ar_fan((int)kind) : '1';
    if (fan == '1' || peer >= (uint64_t)(fan == 'l' ? t->nlocal : t->nnodes))
        return -1;
    return fan == 'l' ? comm->rank_at[t->node * t->nlocal + (int)peer]
                      : comm->rank_at[(int)peer * t->nlocal + t->local];
}

static bool bit_of(const uint64_t *words, int p)
{
    return __atomic_load_n(&words[p / 64], __ATOMIC_RELAXED) >> (p % 64) & 1;
}

/* "; needed: rank 3, rank 5": the neighbours that still owe something, or must still take something. */
static void add_needed(const struct mk_comm *comm, char *text, size_t size)
{
    const struct mk_topo *t = &comm->topo;
    const char *before = "; needed: ";
    size_t n = strlen(text);
    for (int level = 0; level < 2; level++)
        for (int p = 0; p < (level ? t->nnodes : t->nlocal); p++) {
            const struct mk_gpu_words *w = comm->gpu->words;
            if (p == (level ? t->node : t->local) || !bit_of(level ? w->need_node : w->need_local, p) ||
                n + 24 >= size)
                continue;
            n += (size_t)snprintf(text + n, size - n, "%srank %d", before,
                                  comm->rank_at[level ? p * t->nlocal + t->local : t->node * t->nlocal + p]);
            before = ", ";
        }
}

/* One sentence on what a block waits for. */
static void describe(const struct mk_comm *comm, const uint64_t *what, char *text, size_t size)
{
    static const char *const names[] = {"a tile",
                                        "room for a partial chunk",
                                        "partial chunks, or room for a node sum",
                                        "node sums",
                                        "a result",
                                        "a broadcast chunk",
                                        "room for a launch header",
                                        "room for a launch header",
                                        "",
                                        "",
                                        "partial sums of the local ranks",
                                        "completion of what was sent"};
    const uint64_t kind = what[MK_WHAT_KIND] <= MK_WHAT_SENT ? what[MK_WHAT_KIND] : 0;
    const int rank = rank_of(comm, kind, what[MK_WHAT_PEER]);
    const int n = snprintf(text, size, "gemm_allreduce, operation %llu, block %llu waits for: ",
                           (unsigned long long)what[MK_WHAT_EPOCH], (unsigned long long)what[MK_WHAT_BLOCK]);
    if (n < 0 || (size_t)n >= size)
        return;
    if (kind == MK_AR_HDR_IN_LOCAL || kind == MK_AR_HDR_IN_NODE) {
        snprintf(text + n, size - (size_t)n, "rank %d has not come to this call", rank);
    } else if (kind == MK_WHAT_SENT) {
        snprintf(text + n, size - (size_t)n, "%s to rank %d", names[kind], rank);
    } else {
        snprintf(text + n, size - (size_t)n, "%s (chunk %llu)", names[kind],
                 (unsigned long long)what[MK_WHAT_CHUNK]);
        add_needed(comm, text, size);
    }
}

void mk_gpu_report(struct mk_comm *comm)
{
    const struct mk_gpu_words *w = comm->gpu->words;
    const int code = -(int)__atomic_load_n(&w->failed, __ATOMIC_ACQUIRE);
    char text[220];
    if (!code || __atomic_load_n(&comm->abort_word, __ATOMIC_ACQUIRE))
        return;
    if (code == MK_ERR_MISMATCH) {
        mk_comm_fail(
            comm, code, true,
            "rank %d and rank %d make different calls (M, N, dtype, epilogue, or the number of calls so far)",
            comm->rank, rank_of(comm, w->what[MK_WHAT_KIND], w->what[MK_WHAT_PEER]));
        return;
    }
    describe(comm, w->what, text, sizeof(text));
    mk_comm_fail(comm, code, true, "%s%s", code == MK_ERR_TIMEOUT ? "MK_PEER_TIMEOUT: " : "", text);
}

/* ---- a launch that waits ---- */

struct watch {
    struct mk_comm *comm;
    uint64_t reminded;
    uint64_t gone_ns;   /* when a neighbour was first seen gone; 0: none is */
    uint64_t gone_seen; /* of mk_gone_check */
    uint64_t told;
};

static bool ask_needs(void *ctx, int node_level, int peer)
{
    const struct mk_gpu_words *w = ((struct watch *)ctx)->comm->gpu->words;
    return bit_of(node_level ? w->need_node : w->need_local, peer);
}
static bool ask_drained(void *ctx, int node)
{
    return !bit_of(((struct watch *)ctx)->comm->gpu->words->undrained, node);
}
static void read_wait(const struct mk_comm *comm, uint64_t *what)
{
    for (int i = 0; i < MK_WHATS; i++)
        what[i] = __atomic_load_n(&comm->gpu->words->wait[i], __ATOMIC_RELAXED);
}
static void ask_describe(void *ctx, char *text, size_t size)
{
    const struct mk_comm *comm = ((struct watch *)ctx)->comm;
    uint64_t what[MK_WHATS];
    read_wait(comm, what);
    describe(comm, what, text, size);
}

/* A neighbour that has gone matters if the launch needs it, by what the blocks told after it was seen gone and after
 * what it sent before had the time to come. */
static void look_at_gone(struct watch *s)
{
    const struct mk_gone_ask ask = {ask_needs, ask_drained, ask_describe, s};
    const uint64_t told = __atomic_load_n(&s->comm->gpu->words->told, __ATOMIC_ACQUIRE), now = mk_time_ns();
    if (!mk_gone_any(s->comm)) {
        s->gone_ns = 0;
    } else if (!s->gone_ns) {
        s->gone_ns = now;
        s->told = told;
    } else if (now - s->gone_ns < MK_GONE_VERDICT_NS) {
        s->told = told;
    } else if (told != s->told) {
        s->told = told;
        mk_gone_check(s->comm, &ask, &s->gone_seen);
    }
}

static void look_at_wait(struct watch *s)
{
    struct mk_comm *comm = s->comm;
    const struct mk_gpu_words *w = comm->gpu->words;
    const uint64_t epoch = __atomic_load_n(&w->waiting, __ATOMIC_ACQUIRE), now = mk_time_ns();
    uint64_t what[MK_WHATS];
    char text[220];
    if (!epoch || __atomic_load_n(&w->ended, __ATOMIC_RELAXED) >= epoch)
        return;
    look_at_gone(s);
    read_wait(comm, what);
    if (what[MK_WHAT_SINCE] > REMIND_NS && now - s->reminded > REMIND_NS) {
        describe(comm, what, text, sizeof(text));
        MK_WARN("FUSED", "waiting for %llu s: %s", (unsigned long long)(what[MK_WHAT_SINCE] / 1000000000u),
                text);
        s->reminded = now;
    }
}

/* For the last block of a launch, which waits until what it sent has arrived. */
static void tell_left(struct mk_comm *comm)
{
    const struct mk_topo *t = &comm->topo;
    for (int e = 0; comm->boot && e < t->nnodes; e++) {
        uint64_t *word = &comm->gpu->words->left[e / 64];
        if (e != t->node && !(*word >> (e % 64) & 1) && mk_gone_left(comm, 1, e))
            __atomic_fetch_or(word, 1ull << (e % 64), __ATOMIC_RELAXED);
    }
}

static void *watch_main(void *arg)
{
    struct watch s = {.comm = arg};
    struct mk_comm *comm = arg;
    const struct timespec nap = {0, WATCH_NS};
    while (!__atomic_load_n(&comm->gpu->stop, __ATOMIC_ACQUIRE)) {
        mk_gpu_report(comm);
        tell_left(comm);
        if (!__atomic_load_n(&comm->abort_word, __ATOMIC_ACQUIRE))
            look_at_wait(&s);
        nanosleep(&nap, NULL);
    }
    mk_gpu_report(comm);
    return NULL;
}

int mk_gpu_watch(struct mk_comm *comm)
{
    struct mk_gpu *g = comm->gpu;
    const int err = pthread_create(&g->watch, NULL, watch_main, comm);
    if (err)
        return mk_fail(MK_ERR_SYSTEM, "FUSED", "starting the watching thread: %s", strerror(err));
    g->watching = true;
    return 0;
}

void mk_gpu_unwatch(struct mk_gpu *g)
{
    if (!g->watching)
        return;
    __atomic_store_n(&g->stop, 1, __ATOMIC_RELEASE);
    pthread_join(g->watch, NULL);
    g->watching = false;
}
