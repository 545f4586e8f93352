/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Time stamps around calls whose turn it is to be timed: where they are put, and which calls of NCCL are turns. */
#include "hook_adapt.h"
#include "mk/err.h"
#include <stdio.h>
#include <string.h>

static char
    stamps[4096];    /* "B3 A3": before and after in slot 3; G: before the GEMM; ?3: read; =3: GEMM and K */
static bool counted; /* eager pairs are proved */
static int stamp_error, stamps_over; /* so many are over; further ones are not yet */
static const void *stamped_on;

static void add(char what, uint32_t slot)
{
    snprintf(stamps + strlen(stamps), sizeof(stamps) - strlen(stamps), "%s%c%u", *stamps ? " " : "", what,
             slot);
}

static int stamp(void *comm, void *stream, uint32_t which)
{
    CHECK(comm == &r.comm && which < MK_FUSE_STAMPS);
    stamped_on = stream;
    add("GBA"[which % 3], which / 3);
    return stamp_error;
}

static int between(void *comm, uint32_t from, uint32_t to, uint64_t *ns)
{
    CHECK(comm == &r.comm && to > from && from / 3 == to / 3);
    const bool together = to == from + 2;
    if ((from % 3 == 1 || together) && stamps_over-- <= 0)
        return MK_ERR_AGAIN;
    add(together ? '=' : from % 3 ? '?' : '!', from / 3);
    *ns = together ? 5000 : 1000;
    return 0;
}

static void start(int rank)
{
    static struct mk_fuse_ops ops;
    const struct mk_adapt_options options = {
        .ops = &ops, .witness = 1, .proved_only = true, .counted = counted};
    ops = *rank_ops();
    ops.stamp = stamp;
    ops.between = between;
    rank_start(&options);
    r.comm.rank = rank;
    rank_agree_comm_as(&r.comm, 99, &r.s, (struct mk_pair_config){.timed = 1});
    rank_did(__LINE__, "nccl rec NCCL:not-ready");
    stamps[0] = '\0';
    stamp_error = stamps_over = 0;
}

static void stamped(int line, const char *want)
{
    if (strcmp(stamps, want)) {
        fprintf(stderr, "line %d\n  stamps %s\n  want   %s\n", line, stamps, want);
        failures++;
    }
    stamps[0] = '\0';
}
#define STAMPED(want) stamped(__LINE__, want)

static void reduce(void)
{
    CHECK(!rank_reduce(&r.comm, &r.s, c_mem, c_mem, 32));
}

/* Calls 4 to 11 of a class take turns: K, NCCL, NCCL, K, NCCL, K, K, NCCL. */
static void turns(void)
{
    start(0);
    for (int i = 0; i < 4; i++)
        reduce();
    STAMPED("");
    DID("K rec K rec K rec K rec PLAIN PLAIN PLAIN PLAIN:no-gemm:no-gemm:no-gemm:no-gemm");
    reduce();
    DID("K rec PLAIN:no-gemm");
    STAMPED("B0 A0");
    CHECK(stamped_on == &r.s);
    reduce();
    DID("nccl rec NCCL:timed");
    STAMPED("B1 A1");
    stamps_over = 1;
    reduce();
    DID("nccl rec NCCL:timed");
    STAMPED("?0 B2 A2");                           /* in their order, as far as they are over */
    rank_reduce(&r.comm, &r.t, d_mem, d_mem, 128); /* another class: its first call */
    DID("wait-event K rec PLAIN:no-gemm");
    STAMPED("");
    stamps_over = 8;
    for (int i = 0; i < 5; i++)
        reduce();
    DID("wait-event K rec nccl rec K rec K rec nccl rec NCCL NCCL PLAIN PLAIN PLAIN"
        ":timed:timed:no-gemm:no-gemm:no-gemm");
    STAMPED("?1 ?2 B3 A3 ?3 B4 A4 ?4 B5 A5 ?5 B6 A6 ?6 B7 A7");
    reduce();
    DID("K rec PLAIN:no-gemm");
    STAMPED("?7");
}

static void only_rank_0_has_a_watch(void)
{
    start(1);
    for (int i = 0; i < 12; i++)
        reduce();
    STAMPED("");
    DID("K rec K rec K rec K rec K rec nccl rec nccl rec K rec nccl rec K rec K rec nccl rec"
        " NCCL NCCL NCCL NCCL PLAIN PLAIN PLAIN PLAIN PLAIN PLAIN PLAIN PLAIN:timed:timed:timed:timed"
        ":no-gemm:no-gemm:no-gemm:no-gemm:no-gemm:no-gemm:no-gemm:no-gemm");
}

/* The GEMM right before it is timed too, if the site is known and its output is what is sent. */
static void with_its_gemm(void)
{
    start(0);
    rank_gemm(&r.s, c_mem);
    reduce(); /* learned */
    for (int i = 0; i < 3; i++) {
        rank_gemm(&r.s, c_mem);
        reduce();
    }
    STAMPED("");
    rank_gemm(&r.s, c_mem);
    reduce();
    STAMPED("G0 B0 A0");
    stamps_over = 1;
    rank_gemm(&r.s, c_mem);
    reduce(); /* NCCL's turn */
    STAMPED("G1 ?0 !0 B1 A1");
    stamps_over = 1;
    rank_gemm(&r.s, d_mem); /* not what is sent */
    reduce();
    STAMPED("G2 ?1 !1 B2 A2");
    stamps_over = 2;
    rank_gemm(&r.t, c_mem); /* on another stream */
    reduce();
    STAMPED("G3 ?2 B3 A3");
    reduce();
    STAMPED("?3 B4 A4");
    stamps_over = 1;
    stamp_error = MK_ERR_CUDA;
    rank_gemm(&r.s, c_mem);
    stamp_error = 0;
    reduce();
    STAMPED("G5 ?4 B5 A5");
    stamps_over = 1;
    reduce();
    STAMPED("?5 B6 A6");
    rank_begin_capture(&r.s, 5);
    rank_gemm(&r.s, c_mem);
    reduce();
    r.s.capturing = 0;
    STAMPED("");
}

/* Nothing comes between G and the K that overlaps it: the two are timed, and compared with GEMM and NCCL. */
static void with_our_gemm(void)
{
    counted = true;
    start(0);
    stand_record_cublas(MK_HOOK_cublasGemmEx)->result = 0;
    rank_gemm(&r.s, c_mem);
    reduce();
    for (int i = 0; i < 3; i++) {
        rank_gemm(&r.s, c_mem);
        reduce();
    }
    STAMPED("");
    DID("gemm K rec G+room K|| rec G+room K|| rec G+room K|| rec ORIGINAL G G G PLAIN OVERLAP OVERLAP OVERLAP"
        ":learning:unknown-site");
    rank_gemm(&r.s, c_mem);
    reduce();
    STAMPED("G0 A0");
    DID("G+room K|| rec G OVERLAP");
    rank_gemm(&r.s, c_mem);
    reduce(); /* NCCL's turn, with the original */
    STAMPED("G1 B1 A1");
    DID("gemm nccl rec ORIGINAL NCCL:timed:not-fused");
    stamps_over = 100;
    rank_gemm(&r.s, c_mem);
    reduce();
    STAMPED("G2 =0 ?1 !1 B2 A2");
    /* K of a G that is not what it sends: by itself */
    rank_gemm(&r.s, d_mem);
    reduce();
    STAMPED("G3 ?2 !2 B3 A3");
    counted = false;
}

/* Stamps that fail, and calls that do, cost a time, nothing else. */
static void failing(void)
{
    start(0);
    for (int i = 0; i < 4; i++)
        reduce();
    stamp_error = MK_ERR_CUDA;
    reduce();
    STAMPED("B0");
    stamp_error = 0;
    stand_record_nccl(MK_HOOK_ncclAllReduce)->result = 3;
    CHECK(rank_reduce(&r.comm, &r.s, c_mem, c_mem, 32) == 3);
    stand_record_nccl(MK_HOOK_ncclAllReduce)->result = 0;
    STAMPED("B0");
    stamps_over = 1; /* of those that have a time: slot 0 has none, and is passed over */
    reduce();
    STAMPED("B1 A1");
    /* In a group nothing is timed, but the turns go on. */
    ncclGroupStart();
    reduce();
    ncclGroupEnd();
    STAMPED("?1");
    reduce(); /* NCCL's */
    STAMPED("B2 A2");
    CHECK(!ncclCommDestroy(&r.comm)); /* with stamps that were not read */
}

/* A stream that is far behind: no more is put there than can be read. */
static void far_behind(void)
{
    start(0);
    for (int i = 0; i < 12; i++)
        for (int class = 1; class < 10; class ++)
            rank_reduce(&r.comm, &r.s, d_mem, d_mem, (size_t)32 << class);
    int n = 0;
    for (const char *at = stamps; (at = strchr(at, 'B')); at++)
        n++;
    CHECK(n == MK_FUSE_STAMPS / 3);
    stamps[0] = '\0';
    stamps_over = 100;
    reduce();
    CHECK(!strncmp(stamps, "?0 ?1 ?2", 8) && strstr(stamps, "?63"));
}

void time_cases(void)
{
    turns();
    only_rank_0_has_a_watch();
    with_its_gemm();
    with_our_gemm();
    failing();
    far_behind();
}
