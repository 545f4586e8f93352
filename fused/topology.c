/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Which ranks share a node. Given by MK_NODE and MK_LOCAL_RANK on all ranks, or on none: then by host, nodes in the
 * order of their lowest rank, local ranks in rank order. Every node must have the same number of ranks. */
#include "comm.h"
#include "mk/err.h"
#include "mk/log.h"
#include <stdlib.h>
#include <string.h>

static int by_host(const struct mk_place *in, int nranks, struct mk_place *out)
{
    int nodes = 0;
    for (int r = 0; r < nranks; r++) {
        out[r] = in[r];
        out[r].node = -1;
        out[r].local = 0;
        for (int q = 0; q < r; q++)
            if (in[q].host == in[r].host) {
                out[r].node = out[q].node;
                out[r].local++;
            }
        if (out[r].node < 0)
            out[r].node = nodes++;
    }
    return nodes;
}

int mk_topology_build(const struct mk_place *places, int nranks, int rank, struct mk_topo *topo, int *rank_at)
{
    int given = 0, nodes = 0, ret = 0;
    struct mk_place *p = calloc((size_t)nranks, sizeof(*p));
    if (!p)
        return mk_fail(MK_ERR_NOMEM, "FUSED", "no memory for %d ranks", nranks);
    for (int r = 0; r < nranks; r++) {
        p[r] = places[r];
        given += places[r].node >= 0 && places[r].local >= 0;
        if (places[r].node >= nodes)
            nodes = places[r].node + 1;
    }
    if (given != nranks) {
        if (given)
            MK_WARN("FUSED", "MK_NODE and MK_LOCAL_RANK are set on %d of %d ranks only: hosts decide", given,
                    nranks);
        nodes = by_host(places, nranks, p);
    }
    const int nlocal = nodes ? nranks / nodes : 0;
    if (!nodes || nlocal * nodes != nranks) {
        ret = mk_fail(MK_ERR_UNSUPPORTED, "FUSED",
                      "%d ranks on %d nodes: every node must have the same number", nranks, nodes);
        goto out;
    }
    for (int i = 0; i < nranks; i++)
        rank_at[i] = -1;
    for (int r = 0; r < nranks && !ret; r++) {
        const int at = p[r].local < nlocal ? p[r].node * nlocal + p[r].local : -1;
        if (at < 0 || rank_at[at] >= 0)
            ret = mk_fail(
                MK_ERR_UNSUPPORTED, "FUSED",
                "rank %d is local rank %d of node %d, but %d ranks on %d nodes make %d a node, each once", r,
                p[r].local, p[r].node, nranks, nodes, nlocal);
        else
            rank_at[at] = r;
    }
    for (int i = 0; i < nranks && !ret; i++)
        if (p[rank_at[i]].host != p[rank_at[i / nlocal * nlocal]].host)
            ret = mk_fail(MK_ERR_INVALID, "FUSED",
                          "ranks %d and %d say they are on node %d, but their hosts differ", rank_at[i],
                          rank_at[i / nlocal * nlocal], i / nlocal);
    if (!ret) {
        topo->nnodes = nodes;
        topo->nlocal = nlocal;
        topo->node = p[rank].node;
        topo->local = p[rank].local;
    }
out:
    free(p);
    return ret;
}
