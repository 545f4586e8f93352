/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* All collectives over all sizes, every element and the bytes on both sides of what is received checked; each
 * combination of NCCL_PROTO and NCCL_ALGO in a communicator of its own. And that these checks can fail. */
#include "tests/gpu/nccl.h"
#include <stdio.h>
#include <stdlib.h>

#define P(x) ((void *)(uintptr_t)(x))
#define LIMIT_S 40.0

enum what {
    ALL_REDUCE,
    ALL_REDUCE_IN_PLACE,
    ALL_GATHER,
    REDUCE_SCATTER,
    BROADCAST,
    REDUCE,
    SEND_RECV,
    ALL_TO_ALL,
    WHATS
};
static const char *const names[WHATS] = {
    "all_reduce", "all_reduce in place", "all_gather", "reduce_scatter", "broadcast",
    "reduce",     "send/recv",           "all_to_all",
};

/* How many elements a rank sends and receives: the larger is `bytes`, but at least 8 bytes a rank. */
static void shape(const struct job *j, enum what what, size_t bytes, uint64_t *sends, uint64_t *receives)
{
    const uint64_t all = bytes / 4 < 2 ? 2 : bytes / 4, n = (uint64_t)j->nranks;
    const uint64_t part = all / n < 2 ? 2 : all / n;
    *sends = *receives = all;
    if (what == ALL_GATHER) {
        *sends = part;
        *receives = part * n;
    } else if (what == REDUCE_SCATTER) {
        *sends = part * n;
        *receives = part;
    } else if (what == ALL_TO_ALL) {
        *sends = *receives = part * n;
    }
}

/* What must have come. block: elements of one rank's part. */
static struct want wanted(const struct job *j, enum what what, uint64_t receives, int root)
{
    const uint64_t n = (uint64_t)j->nranks, me = (uint64_t)j->rank;
    switch (what) {
    case ALL_GATHER:
        return (struct want){.kind = WANT_BLOCKS, .block = receives / n};
    case REDUCE_SCATTER:
        return (struct want){.kind = WANT_SUM, .off = me * receives};
    case BROADCAST:
        return (struct want){.kind = WANT_BLOCKS, .first = root, .block = receives};
    case REDUCE:
        return (struct want){.kind = j->rank == root ? WANT_SUM : WANT_NOTHING};
    case SEND_RECV:
        return (struct want){
            .kind = WANT_BLOCKS, .first = (j->rank + j->nranks - 1) % j->nranks, .block = receives};
    case ALL_TO_ALL:
        return (struct want){.kind = WANT_BLOCKS, .off = me * (receives / n), .block = receives / n};
    default:
        return (struct want){.kind = WANT_SUM};
    }
}

static int grouped(struct job *j, enum what what, uint64_t count, void *comm)
{
    const struct nccl *n = &j->nccl;
    void *s = gpu_stream();
    int error = n->group_start();
    if (what == SEND_RECV) {
        error = error ? error : n->send(P(j->send), count, NCCL_UINT32, (j->rank + 1) % j->nranks, comm, s);
        error = error
                    ? error
                    : n->recv(P(j->recv), count, NCCL_UINT32, (j->rank + j->nranks - 1) % j->nranks, comm, s);
    }
    const uint64_t part = count / (uint64_t)j->nranks;
    for (int r = 0; what == ALL_TO_ALL && r < j->nranks && !error; r++) {
        error = n->send(P(j->send + (uint64_t)r * part * 4), part, NCCL_UINT32, r, comm, s);
        error = error ? error : n->recv(P(j->recv + (uint64_t)r * part * 4), part, NCCL_UINT32, r, comm, s);
    }
    const int end = n->group_end();
    return error ? error : end;
}

static int issue(struct job *j, enum what what, uint64_t sends, uint64_t receives, int root, void *comm)
{
    const struct nccl *n = &j->nccl;
    void *from = P(j->send), *to = P(j->recv), *s = gpu_stream();
    switch (what) {
    case ALL_REDUCE:
        return n->all_reduce(from, to, sends, NCCL_UINT32, NCCL_SUM, comm, s);
    case ALL_REDUCE_IN_PLACE:
        return n->all_reduce(from, from, sends, NCCL_UINT32, NCCL_SUM, comm, s);
    case ALL_GATHER:
        return n->all_gather(from, to, sends, NCCL_UINT32, comm, s);
    case REDUCE_SCATTER:
        return n->reduce_scatter(from, to, receives, NCCL_UINT32, NCCL_SUM, comm, s);
    case BROADCAST: /* bytes: another type, the same contents */
        return n->broadcast(from, to, sends * 4, NCCL_UINT8, root, comm, s);
    case REDUCE:
        return n->reduce(from, to, sends, NCCL_UINT32, NCCL_SUM, root, comm, s);
    default:
        return grouped(j, what, sends, comm);
    }
}

/* One collective with contents of its own. `bad`: this rank's first element is not what the others expect. Non-zero: the
 * communicator is gone. */
static int run(struct job *j, void *comm, enum what what, size_t bytes, bool bad)
{
    uint64_t sends, receives;
    char text[100];
    const int root = (int)(j->call % (uint64_t)j->nranks);
    shape(j, what, bytes, &sends, &receives);
    snprintf(text, sizeof(text), "%s of %zu bytes, call %llu", names[what], bytes,
             (unsigned long long)j->call);
    contents(j, sends, receives);
    if (bad) {
        j->cu->stream_sync(gpu_stream());
        corrupt(j->send, 0);
    }
    const int error = issue(j, what, sends, receives, root, comm);
    if (error) {
        fail(j, "%s: %s; %s", text, j->nccl.error_string(error), j->nccl.last_error(comm));
        j->nccl.abort(comm);
        return 1;
    }
    return await(j, comm, LIMIT_S, text);
}

static void judge(struct job *j, enum what what, size_t bytes)
{
    uint64_t sends, receives;
    char text[100];
    shape(j, what, bytes, &sends, &receives);
    const struct want w = wanted(j, what, receives, (int)(j->call % (uint64_t)j->nranks));
    const struct want own = {.kind = WANT_BLOCKS, .first = j->rank, .block = sends},
                      none = {.kind = WANT_NOTHING};
    const bool in_place = what == ALL_REDUCE_IN_PLACE;
    snprintf(text, sizeof(text), "%s of %zu bytes, call %llu", names[what], bytes,
             (unsigned long long)j->call);
    check(j, in_place ? j->send : j->recv, receives, &w, text, false);
    snprintf(text, sizeof(text), "the other buffer of %s", names[what]);
    check(j, in_place ? j->recv : j->send, in_place ? receives : sends, in_place ? &none : &own, text, false);
}

static int one_communicator(struct job *j, const char *algo, const char *proto, size_t most, int *calls)
{
    static const size_t sizes[] = {8,         1000,      4096,      65536 + 12, 1u << 20, (4u << 20) + 20,
                                   16u << 20, 64u << 20, 256u << 20};
    char text[100];
    /* other collectives than all-reduce have no tree */
    snprintf(text, sizeof(text), "ring;allreduce:%s", algo);
    setenv("NCCL_ALGO", text, 1);
    setenv("NCCL_PROTO", proto, 1);
    snprintf(text, sizeof(text), "%s, %s", algo, proto);
    const double begin = now_s();
    void *comm = comm_new(j, text);
    if (!comm)
        return 1;
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]) && sizes[s] <= most; s++) {
        for (int what = 0; what < WHATS; what++) {
            if (run(j, comm, what, sizes[s], false))
                return 1;
            judge(j, what, sizes[s]);
            j->call++;
            ++*calls;
        }
        if (meet(j, text))
            return 1;
    }
    comm_end(j, comm, text);
    if (j->rank == 0)
        printf("  %s: %.1f s\n", text, now_s() - begin);
    fflush(stdout);
    return meet(j, text);
}

int show_collectives(struct job *j, size_t most)
{
    static const char *const algos[] = {"ring", "tree"}, *const protos[] = {"LL", "LL128", "Simple"};
    int calls = 0, bad = 0;
    for (int a = 0; a < 2 && !bad; a++)
        for (int p = 0; p < 3 && !bad; p++)
            bad = one_communicator(j, algos[a], protos[p], most, &calls);
    printf(
        "rank %d of %d: %d collectives up to %zu bytes, ring and tree, LL, LL128 and Simple: %d failures\n",
        j->rank, j->nranks, calls, most, j->failures);
    return bad || j->failures;
}

/* ---- can the checks fail? ---- */

static void must_find(struct job *j, uint64_t found, uint64_t want, const char *what)
{
    if (found != want)
        fail(j, "self test: %s: %llu words found wrong, %llu are", what, (unsigned long long)found,
             (unsigned long long)want);
}

/* Wrong words made in what was received, one at a time, and then in what one rank sends. */
int show_self_test(struct job *j)
{
    static const size_t sizes[] = {8, 65536 + 12, 4u << 20};
    void *comm = comm_new(j, "self test");
    const struct want sum = {.kind = WANT_SUM};
    if (!comm)
        return 1;
    for (int s = 0; s < 3; s++) {
        const uint64_t n = sizes[s] / 4;
        const int64_t places[] = {0,  (int64_t)n - 1, (int64_t)n / 2,
                                  -1, (int64_t)n,     -(int64_t)GUARD_BYTES / 4};
        if (run(j, comm, ALL_REDUCE, sizes[s], false))
            return 1;
        must_find(j, check(j, j->recv, n, &sum, "", true), 0, "nothing changed");
        for (int i = 0; i < 6; i++) {
            corrupt(j->recv, places[i]);
            must_find(j, check(j, j->recv, n, &sum, "", true), 1, "one word changed");
            corrupt(j->recv, places[i]);
        }
        j->call++;
        if (run(j, comm, ALL_REDUCE, sizes[s], j->rank == 0))
            return 1;
        must_find(j, check(j, j->recv, n, &sum, "", true), 1, "one element of one sender changed");
        j->call++;
        if (meet(j, "self test"))
            return 1;
    }
    comm_end(j, comm, "self test");
    printf("rank %d of %d: self test: 21 wrong words made: %d failures\n", j->rank, j->nranks, j->failures);
    return j->failures != 0;
}
