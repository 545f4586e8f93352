/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What the tests of mk_fuse_ops share. */
#pragma once
#include "gpu_record.h"
#include "mk/fuse.h"
#include "tests/net/fake_cuda.h"
#include "ops/gemm_ar.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

/* Tiles for every block at any width, and for no more blocks than there are. */
enum { ROWS = 512, COLUMNS = 9216, DEPTH = 64, COUNT = ROWS * COLUMNS };

extern const struct mk_fuse_ops *ops;
extern const struct fake_cuda_counts *counts;
extern struct fake_cuda_counts base; /* after each test it is like this again */
extern void *stream[2];
extern uint8_t *operand_a, *operand_b, *output, *elsewhere, *bias;
extern int nccl[2], graphs[3]; /* handles: their addresses */
extern bool verify;            /* launch_g asks for C to be added up */

void nap_ms(int ms);
/* prepare until it says something else than AGAIN: that. */
int prepared(void *comm, uint64_t id, int nranks);
void destroyed(void *comm); /* as NCCL's destroy does */

struct mk_pair_gemm product(void); /* that there is a G for */
int launch_g(void *on, int32_t descriptor, uint64_t generation, bool room);
struct mk_fuse_k reduction(int32_t descriptor, uint64_t generation,
                           bool overlap); /* its output, on stream 0 */
uint64_t *words_of_g(void);               /* of the last launch */
struct mk_ar of_k(void);
void expect_step(int i, enum gpu_what what, const void *on, const void *event, unsigned flags);

/* A test begins with a communicator nccl[0], and with nothing recorded. */
int begin_ready(void **state);
int end_all(void **state);

void prepare_is_asked_again(void **state);
void no_context_no_kernels(void **state);
void every_call_fails_once(void **state);
void not_for_portable_kernels(void **state);
void a_failed_communicator_says_so(void **state);
void the_end_leaves_the_callers_context(void **state);
void the_end_frees_nothing_until_nccl_has_gone(void **state);
void the_end_waits_for_no_k(void **state);
void a_k_ends_before_the_destroy(void **state);
void threads_end_at_once(void **state);
void the_end_waits_for_no_other_rank(void **state);
void blocks_go_back_at_once(void **state);
void blocks_of_the_failed_and_the_ended_go_back(void **state);
void off_while_it_is_made(void **state);

void words_belong_to_their_graph(void **state);
void captured_pairs_are_told_apart(void **state);
void a_pair_that_cannot_be_captured_keeps_nothing(void **state);
void no_memory_for_words(void **state);
void k_comes_after_g_alone(void **state);

void c_is_compared_before_k(void **state);
void captured_pairs_are_compared_at_every_replay(void **state);
void what_cannot_be_compared_runs(void **state);
