/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The row of the verbs transport in a build without libibverbs' headers: it says so, nothing else. */
#include "mk/err.h"
#include "net/transport.h"

static int none_open(const struct mk_settings *s, struct mk_dev **out)
{
    (void)s;
    (void)out;
    return mk_fail_quiet(MK_ERR_UNSUPPORTED, "verbs: built without libibverbs headers");
}

/* Nothing but open is ever called: there is no device. */
const struct mk_net_ops mk_verbs_ops = {
    .name = "verbs",
    .open = none_open,
};
