/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The row of the ofi transport in a build without libfabric's headers: it says so, nothing else. */
#include "mk/err.h"
#include "net/transport.h"

static int none_open(const struct mk_settings *s, struct mk_dev **out)
{
    (void)s;
    (void)out;
    return mk_fail_quiet(MK_ERR_UNSUPPORTED, "ofi: built without libfabric headers");
}

/* Nothing but open is ever called: there is no device. */
const struct mk_net_ops mk_ofi_ops = {
    .name = "ofi",
    .open = none_open,
};
