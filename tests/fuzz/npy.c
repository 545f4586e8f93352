/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* libFuzzer target for the .npy header: no byte string may make the parser read outside of it
 * (AddressSanitizer watches), and what it accepts must keep its promises. */
#include "plugin/cli/npy.h"
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
    struct mk_npy_head h, again;
    char why[MK_NPY_WHY];
    uint8_t head[MK_NPY_FORMAT];
    if (size < 8)
        return 0;
    /* The last 8 bytes: how much longer than the header's text the file claims to be. */
    uint64_t more;
    memcpy(&more, data + size - 8, 8);
    size -= 8;
    more >>= more & 63;
    uint8_t *exact = malloc(size + 1); /* a copy whose end AddressSanitizer knows */
    must(exact != NULL);
    memcpy(exact, data, size);
    memset(why, 0, sizeof(why));
    const uint64_t file_size = size == MK_NPY_HEAD_MAX ? size + (more & INT64_MAX) : size + (more & 0xffff);
    const int ret = mk_npy_parse(exact, size, file_size, &h, why);
    free(exact);
    must(ret == 0 || (ret == -2 && why[0] && strlen(why) < MK_NPY_WHY));
    if (ret)
        return 0;
    must(h.rows >= 0 && h.rows <= MK_NPY_DIM_MAX && h.cols >= 0 && h.cols <= MK_NPY_DIM_MAX);
    const uint64_t bytes = (uint64_t)h.rows * (uint64_t)h.cols * mk_npy_type_size(h.type);
    must(h.data <= size && h.data + bytes == file_size);
    const size_t n = mk_npy_format(h.type, h.rows, h.cols, head);
    must(!mk_npy_parse(head, n, n + bytes, &again, why));
    must(again.rows == h.rows && again.cols == h.cols && again.type == h.type && !again.fortran);
    return 0;
}
