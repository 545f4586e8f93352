/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#include "hook_face.h"

__attribute__((visibility("default"))) const struct hook_face *hook_face(void)
{
    static const struct hook_face face = {
        mk_hook_calls,  mk_hook_name,   mk_hook_get_stats,   mk_hook_set,
        mk_hook_stream, mk_hook_mode,   mk_adapt_start,      mk_adapt_event,
        mk_adapt_comm,  mk_adapt_count, mk_pair_reason_name, mk_count_on,
        mk_count_why,   mk_count_total, mk_count_last,       mk_count_original};
    return &face;
}
