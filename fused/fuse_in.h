/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* G's descriptors for interception: memory on the device, and what the last G told of its tiles. Private to fuse*.c. Under the
 * recogniser's lock. */
#pragma once
#include "mk/cuda.h"
#include "mk/pair_run.h"

#define MK_FUSE_MAX_M (1 << 17) /* rows of C that a descriptor has words for */

struct mk_fuse_last {
    struct mk_pair_tiles tiles;
    void *node; /* captured: G's */
};

/* Words of the stream's descriptor (0 to 255) on the current context; NULL: no memory. */
uint64_t *mk_fuse_words(const struct mk_cuda *cu, int32_t descriptor);
/* Words for the graph that `stream` is being captured into; it owns them from here on. NULL: no memory. */
uint64_t *mk_fuse_graph_words(const struct mk_cuda *cu, void *stream);
/* Remembers and finds what a G told; captured: by its serial number, of the last ones. */
void mk_fuse_told(int32_t descriptor, uint64_t generation, const struct mk_fuse_last *last);
const struct mk_fuse_last *mk_fuse_last(int32_t descriptor, uint64_t generation);
