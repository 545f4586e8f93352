/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* libFuzzer target for logs of interception: lines of any bytes end, and leave rows that can be. */
#include "plugin/cli/explain.h"
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
    struct mk_explain e;
    memset(&e, 0, sizeof(e));
    while (size) {
        const uint8_t *end = memchr(data, '\n', size);
        const size_t n = end ? (size_t)(end - data) : size;
        char *exact = malloc(n ? n : 1); /* a copy whose end AddressSanitizer knows */
        must(exact != NULL);
        memcpy(exact, data, n);
        must(!mk_explain_line(&e, exact, n, end != NULL));
        free(exact);
        data += n + (end != NULL);
        size -= n + (end != NULL);
    }
    mk_explain_sort(&e);
    must(e.ours + e.damaged <= e.lines && e.nrows <= e.ours);
    for (uint64_t i = 0; i < e.nrows; i++) {
        const struct mk_explain_row *r = &e.row[i];
        must(r->act && r->act < MK_PAIR_ACTS && r->reason < MK_PAIR_REASONS && r->processes && r->lines);
        must(r->act != MK_PAIR_DO_OVERLAP || r->proof);
        must(!i || r[-1].order <= r->order);
    }
    mk_explain_free(&e);
    return 0;
}
