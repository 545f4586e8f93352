/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Neighbours that a launch has lost: those that have left, have failed, or whose link is broken. Asked while a launch
 * waits; both executors.
 *
 * A neighbour's going is a failure only for a launch that still needs it. Others who left do not matter: a rank that
 * has finished the launch may go while the rest still works, and takes its connections with it. Who misses one that is
 * not his neighbour hears of it from those whose neighbour it is: from all by the bootstrap, from local ones, once the
 * bootstrap's root has left, by their word. */
#include "comm.h"
#include "mk/err.h"
#include <time.h>

static int rank_of(const struct mk_comm *comm, int node_level, int peer)
{
    const struct mk_topo *t = &comm->topo;
    return comm->rank_at[node_level ? peer * t->nlocal + t->local : t->node * t->nlocal + peer];
}

/* What a local peer has written of itself: 0 alive, MK_GONE_LEFT, or the code of its failure, negated. */
static int gone_word(const struct mk_comm *comm, int node_level, int peer)
{
    if (node_level || !comm->peer_fixed)
        return 0;
    return (int)__atomic_load_n((const uint64_t *)(comm->peer_fixed[peer] + comm->rings.gone_off),
                                __ATOMIC_ACQUIRE);
}

static int link_code(const struct mk_comm *comm, int node_level, int peer)
{
    return node_level && comm->link_error ? __atomic_load_n(&comm->link_error[peer].code, __ATOMIC_ACQUIRE)
                                          : 0;
}

bool mk_gone_left(const struct mk_comm *comm, int node_level, int peer)
{
    return mk_boot_has_left(comm->boot, rank_of(comm, node_level, peer)) ||
           gone_word(comm, node_level, peer) == MK_GONE_LEFT;
}

bool mk_gone_any(const struct mk_comm *comm)
{
    const struct mk_topo *t = &comm->topo;
    for (int level = 0; comm->boot && level < 2; level++)
        for (int p = 0; p < (level ? t->nnodes : t->nlocal); p++)
            if (p != (level ? t->node : t->local) &&
                (mk_gone_left(comm, level, p) || gone_word(comm, level, p) || link_code(comm, level, p)))
                return true;
    return false;
}

static void check_peer(struct mk_comm *comm, const struct mk_gone_ask *ask, int node_level, int peer,
                       uint64_t *seen)
{
    const int rank = rank_of(comm, node_level, peer);
    const int gone = gone_word(comm, node_level, peer);
    const bool left = mk_gone_left(comm, node_level, peer);
    const int code = link_code(comm, node_level, peer);
    char what[200];
    if (gone && gone != MK_GONE_LEFT) {
        /* The bootstrap's message says more, and is on its way unless its root has left: it gets a second. */
        const uint64_t now = mk_time_ns();
        if (!*seen)
            *seen = now;
        if (now - *seen >= MK_GONE_VERDICT_NS)
            mk_comm_fail(comm, -gone, true, "rank %d has failed: %s", rank, mk_strerror(-gone));
        return;
    }
    if (!left && !code)
        return;
    const bool needed = ask->needs(ask->ctx, node_level, peer);
    if (left && needed) {
        ask->describe(ask->ctx, what, sizeof(what));
        mk_comm_fail(comm, MK_ERR_PEER, true, "rank %d has left, but a call needs it: %s", rank, what);
    } else if (!left && (needed || !ask->drained(ask->ctx, peer))) {
        mk_comm_fail(comm, code, true, "link from rank %d to rank %d failed: %s", comm->rank, rank,
                     comm->link_error[peer].text);
    }
}

void mk_gone_check(struct mk_comm *comm, const struct mk_gone_ask *ask, uint64_t *seen)
{
    const struct mk_topo *t = &comm->topo;
    for (int level = 0; comm->boot && level < 2; level++)
        for (int p = 0; p < (level ? t->nnodes : t->nlocal); p++)
            if (p != (level ? t->node : t->local))
                check_peer(comm, ask, level, p, seen);
}

/* A neighbour that has left; -1: none has. */
static int first_left(const struct mk_comm *comm)
{
    const struct mk_topo *t = &comm->topo;
    for (int level = 0; comm->boot && level < 2; level++)
        for (int p = 0; p < (level ? t->nnodes : t->nlocal); p++)
            if (p != (level ? t->node : t->local) && mk_gone_left(comm, level, p))
                return rank_of(comm, level, p);
    return -1;
}

int mk_gone_before(struct mk_comm *comm)
{
    const int rank = first_left(comm);
    const struct timespec nap = {0, 10000000};
    int failed = 0;
    if (rank < 0)
        return 0;
    /* The call before this one may still be under way here and elsewhere. */
    for (const uint64_t end = mk_time_ns() + MK_GONE_VERDICT_NS; !failed && mk_time_ns() < end;) {
        nanosleep(&nap, NULL);
        failed = mk_comm_check(comm);
    }
    return failed ? failed
                  : mk_comm_fail(comm, MK_ERR_PEER, true, "rank %d has left, rank %d makes another call",
                                 rank, comm->rank);
}
