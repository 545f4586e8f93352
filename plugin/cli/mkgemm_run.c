/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What all ranks do together, in the same order: agree, multiply, measure, record. */
#include "cli.h"
#include "mk/shm.h"
#include "mkgemm.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct verdict {
    int32_t status;
    int32_t unused;
    uint64_t facts; /* what the ranks must have in common */
    char text[400];
};

static uint64_t hash_bytes(uint64_t h, const void *p, size_t bytes)
{
    const unsigned char *b = p;
    for (; bytes >= 8; bytes -= 8, b += 8) {
        uint64_t w;
        memcpy(&w, b, 8);
        h = (h ^ w) * 0x9fb21c651e98df25ull;
        h ^= h >> 32;
    }
    for (; bytes; bytes--, b++)
        h = (h ^ *b) * 0x100000001b3ull;
    return h ^ h >> 29;
}

static uint64_t hash_matrix(const struct mkgemm *g, const void *p)
{
    return hash_bytes(0x6d6b65726e656cull, p, (size_t)(g->m * g->n) * mkgemm_size(g->dtype));
}

static uint64_t facts_of(const struct mkgemm *g)
{
    const int64_t f[] = {g->m, g->n, g->k, g->dtype, g->o.layout, g->o.repeat, g->o.timeline != NULL};
    return hash_bytes(1, f, sizeof(f));
}

/* A call of the library failed on this rank: its own sentence, whoever else has one too. */
static int call_failed(void)
{
    mk_cli_say("%s", mk_last_error());
    return MK_EXIT_FAILED;
}

static int judge(const struct mkgemm *g, const struct verdict *all)
{
    for (int r = 0; r < g->nranks; r++)
        if (all[r].status) {
            if (r == g->rank)
                mk_cli_say("%s", all[r].text);
            return all[r].status;
        }
    for (int r = 1; r < g->nranks; r++)
        if (all[r].facts != all[0].facts) {
            if (r == g->rank)
                mk_cli_say("rank %d was given other matrices or options than rank 0 (its product is %lld x "
                           "%lld x %lld)",
                           r, (long long)g->m, (long long)g->n, (long long)g->k);
            return MK_EXIT_USAGE;
        }
    return 0;
}

int mkgemm_agree(struct mkgemm *g, int status, const char *text)
{
    struct verdict mine = {.status = status, .facts = facts_of(g)};
    snprintf(mine.text, sizeof(mine.text), "%s", text);
    struct verdict *all = calloc((size_t)g->nranks, sizeof(*all));
    if (!all) {
        mk_cli_say("out of memory");
        return MK_EXIT_FAILED;
    }
    const int ret = mk_comm_allgather(g->comm, &mine, all, sizeof(mine)) ? call_failed() : judge(g, all);
    free(all);
    return ret;
}

static int call(const struct mkgemm *g, enum mk_part part, void *c)
{
    const bool at = mkgemm_a_k_is_row(g), bt = mkgemm_b_k_is_row(g);
    const int64_t lda = at ? g->m : g->kn, ldb = bt ? g->n : g->kn;
    if (g->gpu) {
        const int ret =
            mk_gemm_allreduce_part(g->comm, part, g->o.layout, g->m, g->n, g->kn, g->dtype, mkgemm_gpu_a(g),
                                   lda > 0 ? lda : 1, mkgemm_gpu_b(g), ldb > 0 ? ldb : 1, mkgemm_gpu_c(g, c),
                                   g->n > 0 ? g->n : 1, NULL, mkgemm_gpu_stream(g));
        return ret ? ret : mkgemm_gpu_wait(g);
    }
    return mk_gemm_allreduce_part(g->comm, part, g->o.layout, g->m, g->n, g->kn, g->dtype, g->slice_a,
                                  lda > 0 ? lda : 1, g->slice_b, ldb > 0 ? ldb : 1, c, g->n > 0 ? g->n : 1,
                                  NULL, NULL);
}

int mkgemm_product(struct mkgemm *g)
{
    mkgemm_progress(g, "multiplying %lld x %lld x %lld", (long long)g->m, (long long)g->n, (long long)g->k);
    if (mk_comm_barrier(g->comm) || call(g, MK_PART_FUSED, g->c) || mkgemm_gpu_fetch(g, g->c))
        return call_failed();
    g->hash = hash_matrix(g, g->c);
    g->same_bits = true;
    return 0;
}

static double seconds_since(uint64_t t0)
{
    return (double)(mk_time_ns() - t0) / 1e9;
}

/* One repetition. The sequential baseline is computing and then communicating, with nothing between. */
static int repeat_once(struct mkgemm *g, double t[T_COUNT])
{
    if (mk_comm_barrier(g->comm))
        return -1;
    uint64_t t0 = mk_time_ns();
    if (call(g, MK_PART_COMPUTE, g->scratch))
        return -1;
    t[T_COMPUTE] = seconds_since(t0);
    if (call(g, MK_PART_COMM, g->scratch))
        return -1;
    t[T_SEQUENTIAL] = seconds_since(t0);
    if (mk_comm_barrier(g->comm))
        return -1;
    t0 = mk_time_ns();
    if (call(g, MK_PART_COMM, g->scratch))
        return -1;
    t[T_COMM] = seconds_since(t0);
    if (mk_comm_barrier(g->comm))
        return -1;
    t0 = mk_time_ns();
    if (call(g, MK_PART_FUSED, g->scratch))
        return -1;
    t[T_FUSED] = seconds_since(t0);
    if (mkgemm_gpu_fetch(g, g->scratch))
        return -1;
    g->same_bits &= hash_matrix(g, g->scratch) == g->hash;
    return 0;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* all: [rank][repetition][what]. */
static void evaluate(struct mkgemm *g, const double *all, double *column)
{
    const int64_t n = g->o.repeat;
    for (int what = 0; what < T_COUNT; what++) {
        for (int64_t i = 0; i < n; i++) {
            column[i] = 0;
            for (int64_t r = 0; r < g->nranks; r++)
                column[i] = fmax(column[i], all[(r * n + i) * T_COUNT + what]);
        }
        qsort(column, (size_t)n, sizeof(*column), by_size);
        g->t[what].min = column[0];
        g->t[what].max = column[n - 1];
        g->t[what].median = n % 2 ? column[n / 2] : (column[n / 2 - 1] + column[n / 2]) / 2;
    }
    g->bound = fmax(g->t[T_COMPUTE].median, g->t[T_COMM].median);
}

static int gather_bits(struct mkgemm *g)
{
    struct bits {
        uint64_t hash, same;
    } mine = {g->hash, g->same_bits}, *all = calloc((size_t)g->nranks, sizeof(*all));
    if (!all || mk_comm_allgather(g->comm, &mine, all, sizeof(mine))) {
        free(all);
        return all ? -1 : MK_ERR_NOMEM;
    }
    g->bitwise_equal = true;
    for (int r = 0; r < g->nranks; r++)
        g->bitwise_equal &= all[r].hash == all[0].hash && all[r].same;
    free(all);
    return 0;
}

static int repeat_all(struct mkgemm *g, double *mine)
{
    const uint64_t begin = mk_time_ns();
    for (int64_t i = 0; i < g->o.repeat; i++) {
        if (repeat_once(g, mine + i * T_COUNT))
            return -1;
        const double done = seconds_since(begin),
                     left = done / (double)(i + 1) * (double)(g->o.repeat - i - 1);
        mkgemm_progress(g, "measuring: %lld of %lld repetitions, %.0f s left", (long long)i + 1, g->o.repeat,
                        left);
    }
    return 0;
}

int mkgemm_measure(struct mkgemm *g)
{
    const size_t n = (size_t)g->o.repeat, bytes = n * T_COUNT * sizeof(double);
    for (int what = 0; what < T_COUNT; what++)
        g->t[what] = (struct mkgemm_figure){NAN, NAN, NAN};
    g->bound = NAN;
    double *mine = malloc(bytes + 1), *all = malloc(bytes * (size_t)g->nranks + 1),
           *column = malloc(bytes + 1);
    int ret = 0;
    if (!mine || !all || !column) {
        mk_cli_say("out of memory");
        ret = MK_EXIT_FAILED;
    } else if (n && (repeat_all(g, mine) || mk_comm_allgather(g->comm, mine, all, bytes))) {
        ret = call_failed();
    } else if (n) {
        evaluate(g, all, column);
    }
    free(mine);
    free(all);
    free(column);
    if (!ret && gather_bits(g))
        ret = call_failed();
    return ret;
}

/* ---- the timeline ---- */

struct line_facts {
    uint64_t host, start_ns, dropped;
    uint32_t n;
    int32_t node, local_rank, blocks;
};

/* The events of all ranks on rank 0, in rounds of `round` events. recv: room for a round of all ranks. */
static int gather_events(struct mkgemm *g, const struct line_facts *all, const struct mk_trace_event *mine,
                         uint32_t round, struct mk_trace_event *send, struct mk_trace_event *recv)
{
    uint32_t most = 0;
    for (int r = 0; r < g->nranks; r++)
        most = all[r].n > most ? all[r].n : most;
    for (uint32_t at = 0; at < most; at += round) {
        const uint32_t left = all[g->rank].n > at ? all[g->rank].n - at : 0;
        memset(send, 0, round * sizeof(*send));
        memcpy(send, mine + (left ? at : 0), (left < round ? left : round) * sizeof(*send));
        if (mk_comm_allgather(g->comm, send, recv, round * sizeof(*send)))
            return -1;
        for (int r = 0; r < g->nranks && !g->rank; r++) {
            const uint32_t have = all[r].n > at ? all[r].n - at : 0;
            memcpy((struct mk_trace_event *)g->lines[r].events + (have ? at : 0), recv + (size_t)r * round,
                   (have < round ? have : round) * sizeof(*send));
        }
    }
    return 0;
}

/* Clocks of another host: its ranks left the barrier when rank 0 did. */
static void align(struct mkgemm *g, const struct line_facts *all)
{
    for (int r = 1; r < g->nranks; r++) {
        struct mk_trace_event *e = (struct mk_trace_event *)g->lines[r].events;
        for (uint32_t i = 0; all[r].host != all[0].host && i < all[r].n; i++) {
            e[i].begin_ns += all[0].start_ns - all[r].start_ns;
            e[i].end_ns += all[0].start_ns - all[r].start_ns;
        }
    }
}

static int make_lines(struct mkgemm *g, const struct line_facts *all)
{
    g->lines = calloc((size_t)g->nranks, sizeof(*g->lines));
    for (int r = 0; g->lines && r < g->nranks; r++) {
        g->lines[r] = (struct mk_timeline_rank){all[r].node, all[r].local_rank, all[r].blocks,
                                                NULL,        all[r].n,          all[r].dropped};
        g->lines[r].events = calloc(all[r].n + 1u, sizeof(struct mk_trace_event));
        if (!g->lines[r].events)
            return -1;
    }
    return g->lines ? 0 : -1;
}

static int gather_timeline(struct mkgemm *g, const struct line_facts *mine,
                           const struct mk_trace_event *events)
{
    const uint32_t round = g->nranks > 64 ? 512 : 8192;
    struct line_facts *all = calloc((size_t)g->nranks, sizeof(*all));
    struct mk_trace_event *send = calloc(round, sizeof(*send));
    struct mk_trace_event *recv = calloc((size_t)g->nranks * round, sizeof(*recv));
    int ret = 0;
    if (!all || !send || !recv) {
        mk_cli_say("out of memory for the timeline");
        ret = MK_EXIT_FAILED;
    } else if (mk_comm_allgather(g->comm, mine, all, sizeof(*mine))) {
        ret = call_failed();
    } else if (!g->rank && make_lines(g, all)) {
        mk_cli_say("out of memory for the timeline");
        ret = MK_EXIT_FAILED;
    } else if (gather_events(g, all, events, round, send, recv)) {
        ret = call_failed();
    } else if (!g->rank) {
        align(g, all);
    }
    free(all);
    free(send);
    free(recv);
    return ret;
}

#define TRACED_CALLS 3

int mkgemm_trace(struct mkgemm *g)
{
    struct line_facts mine = {.host = mk_host_id(),
                              .node = g->info.node,
                              .local_rank = g->info.local_rank,
                              .blocks = g->info.threads};
    const struct mk_trace_event *events = NULL;
    mkgemm_progress(g, "recording the timeline");
    if (mk_comm_trace(g->comm, 1u << 16) || mk_comm_barrier(g->comm))
        return call_failed();
    /* The last of a few in a row: the first after a pause finds others asleep. */
    for (int i = 0; i < TRACED_CALLS; i++) {
        mine.start_ns = mk_time_ns();
        if (call(g, MK_PART_FUSED, g->scratch))
            return call_failed();
    }
    mine.n = mk_comm_trace_events(g->comm, &events, &mine.dropped);
    const int ret = gather_timeline(g, &mine, events);
    return ret ? ret : mk_comm_trace(g->comm, 0) ? call_failed() : 0;
}
