/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* A GEMM and the AllReduce of its output as two kernels that run at the same time: G, which tells which row bands of its
 * output are there, and K, which sends them meanwhile (fused/ops/pair_tiles.h; design 13). For whoever has two calls of
 * somebody else to replace and may not join them in one. */
#pragma once
#include "mkernel.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* C[m,n] = act(op(A) op(B) + bias), row-major: mk_gemm. */
struct mk_gemm_problem {
    mk_layout_t layout;
    mk_dtype_t dtype;
    int64_t m, n, k;
    const void *a, *b;
    void *c;
    int64_t lda, ldb, ldc;
    const void *bias;
    int act;
};

/* G's output, for K. */
struct mk_pair_tiles {
    uint64_t *words;   /* G's descriptor */
    int64_t m, n;      /* of C, which has no gaps between its rows */
    int32_t band_rows; /* rows of a band; the last one may have fewer */
    uint32_t parts;    /* that make a band complete */
};

/* Bytes of a descriptor for an output of m rows. Zeroed before the first use; one for each stream, and for each captured
 * pair its own. On the GPU in its memory, 8-byte aligned. */
size_t mk_pair_words_bytes(int64_t m);

/* K: the sum over all ranks of buffer[count], in place, the same bits whether `tiles` is given or not. Collective: count
 * and dtype are the same on all ranks, `tiles` is each rank's own affair. With `tiles` it may run while the G launched
 * before it on `stream` does, and K ends after G; nothing else may lie between the two, and nothing of G's operands in
 * `buffer` but C, which is the whole buffer. NULL, or tiles of another count or that cannot be followed (*overlapped is
 * false then): after G. On the GPU asynchronous and capturable; on the CPU (stream NULL) it returns when the sum is
 * there, `tiles` being written by other threads. INVALID, UNSUPPORTED: arguments, as of mk_gemm_allreduce; later
 * failures as there. */
int mk_pair_allreduce(mk_comm_t comm, void *buffer, uint64_t count, mk_dtype_t dtype,
                      const struct mk_pair_tiles *tiles, void *stream, bool *overlapped);

/* May G compute this, with an output that K can follow? On Hopper: bf16 or fp16, any layout, ldc == n, and what the copy
 * engine takes: addresses at multiples of 16 bytes; lda, ldb and n at multiples of 8; k > 0. */
bool mk_pair_gemm_can(const struct mk_gemm_problem *p);
/* G, on the current context: C, with bias and activation, by `blocks` less `spare` blocks (one at least), the rest of the
 * multiprocessors being K's. words: mk_pair_words_bytes(m), on the device. Fills *out for K. Asynchronous, capturable. Not
 * with the programmatic attribute: what is before it in the stream is over when it starts. */
int mk_pair_gemm(const struct mk_gemm_problem *p, int spare, uint64_t *words, void *stream,
                 struct mk_pair_tiles *out);
/* What G should spare for the communicator's K, whose further blocks start when G's end. */
int mk_pair_blocks(mk_comm_t comm);
/* Loads K for the current device: its first launch then waits for nothing. From now on the communicator has some blocks of those that
 * the Ks of this process share, until it is destroyed. UNSUPPORTED: none are left. */
int mk_pair_load(mk_comm_t comm);

/* MK_VERIFY: adds up C, which G has written, behind it (site 0), and again before K; there the two are compared and the
 * outcome is counted for `site`, up to MK_PAIR_CHECKS (mk/pair.h). words: G's descriptor. Launched plainly on `stream`,
 * asynchronous, capturable. INVALID: no output of G. */
int mk_pair_check_c(const void *c, uint64_t bytes, uint64_t *words, uint32_t site, void *stream);
/* For the current device, before the first of them. */
int mk_pair_check_load(void);
/* Pairs that were looked at so far, or of these those whose C differed; site 0: of all. Any thread. */
uint64_t mk_pair_checked(uint32_t site, bool differed);
