/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* MK_VERIFY in the pair recogniser: which sites are checked, and which were refuted. A site is what the log names: where the
 * collective was called from, on which communicator, and the kind of GEMM before it; not the weight, of which a model has
 * many. */
#include "mk/err.h"
#include "pair.h"

static uint64_t site_of(const struct mk_pair_coll *e, const struct mk_pair_last *g)
{
    const uint64_t kind = (uint64_t)g->c_type | (uint64_t)g->layout << 8 | (uint64_t)g->epilogue << 16;
    return mk_pair_hash(mk_pair_hash(e->comm, e->caller),
                        mk_pair_hash(mk_pair_hash((uint64_t)g->n, (uint64_t)g->k), kind));
}

bool mk_pair_check(struct mk_pair *p, const struct mk_pair_coll *e, const struct mk_pair_last *g,
                   struct mk_pair_out *out)
{
    const uint64_t site = site_of(e, g);
    uint32_t i = 0;
    if (!mk_pair_map_get(&p->check_map, site, &i)) {
        i = p->check_map.n;
        if (i == MK_PAIR_CHECKS || !mk_pair_map_put(&p->check_map, site, i))
            return true; /* not checked, and plain all the same */
    }
    if (p->refuted[i])
        return false;
    out->check = i + 1;
    return true;
}

int mk_pair_refuted(struct mk_pair *p, uint64_t check)
{
    if (!check || check > p->check_map.n)
        return MK_ERR_INVALID;
    p->refuted[check - 1] = true;
    return 0;
}
