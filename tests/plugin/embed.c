/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The bytes that mk_kernels embeds are a fat binary, whole and aligned. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

extern const unsigned char mk_kernels_embed_probe[], mk_kernels_embed_probe_end[];

int main(void)
{
    const unsigned char *p = mk_kernels_embed_probe;
    const size_t n = (size_t)(mk_kernels_embed_probe_end - p);
    struct {
        uint32_t magic;
        uint16_t version, header;
        uint64_t payload;
    } head;
    if (n < sizeof(head) || (uintptr_t)p % 8) {
        fprintf(stderr, "%zu bytes at %p\n", n, (const void *)p);
        return 1;
    }
    memcpy(&head, p, sizeof(head));
    if (head.magic != 0xba55ed50u || head.header + head.payload != n) {
        fprintf(stderr, "magic %#x, header %u + payload %llu of %zu bytes\n", head.magic, head.header,
                (unsigned long long)head.payload, n);
        return 1;
    }
    printf("%zu bytes\n", n);
    return 0;
}
