/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* libFuzzer target for profiles, and so for the JSON reader: what is no profile is refused with a sentence and leaves nothing,
 * and what is taken is possible. */
#include "plugin/cli/profile.h"
#include "mkernel.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int condition)
{
    if (!condition)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mk_profile_sum s;
    memset(&s, 0, sizeof(s));
    char *exact = malloc(size ? size : 1); /* a copy whose end AddressSanitizer knows */
    must(exact != NULL);
    memcpy(exact, data, size);
    for (int i = 0; i < 2; i++) {
        const int ret = mk_profile_add_text(&s, "FILE", exact, size);
        must(ret == 0 || (ret == -2 && !strncmp(mk_last_error(), "FILE: ", 6)));
        must(!i || ret); /* the same a second time is refused */
        must(s.files <= 1 && (s.files || !s.n));
    }
    mk_profile_sort(&s);
    for (int i = 0; i < s.n; i++) {
        const struct mk_kind *k = &s.row[i].k;
        must(k->calls && k->run_min <= k->run_max && k->bytes_min <= k->bytes_max);
        must(mk_hist_quantile(k->run_hist, 0.5) <= mk_hist_quantile(k->run_hist, 0.95));
        must(mk_name_of(MK_NAMES_COLL, k->coll) && mk_name_of(MK_NAMES_ALGO, k->algo));
    }
    free(exact);
    mk_profile_free(&s);
    return 0;
}
