/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Logs of interception: every line that the recogniser writes is read back as what it said; what is cut is not believed. */
#include "explain.h"
#include "mk/rival.h"
#include "tests/plugin/check.h"
#include <stdlib.h>
#include <string.h>

static char text[600];

static size_t line_of(bool gemm, uint8_t act, uint8_t reason, uint8_t proof)
{
    static const char prefix[] = "host:12:34 [0] NCCL INFO mKernel: ";
    struct mk_pair_event e;
    struct mk_pair_out out;
    memset(&e, 0, sizeof(e));
    memset(&out, 0, sizeof(out));
    out.act = act;
    out.reason = reason;
    out.proof = proof;
    if (gemm) {
        e.kind = MK_PAIR_EV_GEMM;
        e.u.gemm.n = 4096;
        e.u.gemm.k = 14336;
        e.u.gemm.c_type = MK_BFLOAT16;
    } else {
        e.kind = MK_PAIR_EV_COLL;
        e.u.coll.comm = 0x7f00deadbeef;
        e.u.coll.count = UINT64_MAX;
        e.u.coll.dtype = MK_FLOAT16;
        e.u.coll.function = MK_PAIR_REDUCESCATTER;
    }
    strcpy(text, prefix);
    const size_t at = strlen(text);
    return at + (size_t)mk_pair_line(&e, &out, "libtorch_cuda.so+0xabc", text + at, sizeof(text) - at);
}

static void check_line(bool gemm, uint8_t act, uint8_t reason, uint8_t proof)
{
    struct mk_explain e;
    memset(&e, 0, sizeof(e));
    const size_t bytes = line_of(gemm, act, reason, proof);
    CHECK(!mk_explain_line(&e, text, bytes, true) && e.nrows == 1 && e.ours == 1 && !e.damaged, "%s", text);
    if (e.nrows == 1) {
        const struct mk_explain_row *r = e.row;
        CHECK(r->gemm == gemm && r->act == act && r->proof == proof, "%s", text);
        CHECK(r->reason == (act == MK_PAIR_DO_OVERLAP ? 0 : reason), "%s", text);
        CHECK(gemm ? r->n == 4096 && r->k == 14336 : r->n == UINT64_MAX && !r->k, "%s", text);
        CHECK(!strcmp(r->dtype, gemm ? "bf16" : "fp16"), "%s", text);
        CHECK(gemm || (!strcmp(r->site, "libtorch_cuda.so+0xabc") && !strcmp(r->op, "ReduceScatter")), "%s",
              text);
    }
    /* cut anywhere, at the end of the log */
    for (size_t n = 0; n < bytes; n++) {
        const uint64_t ours = e.ours;
        CHECK(!mk_explain_line(&e, text, n, false) && e.ours == ours, "%.*s was believed", (int)n, text);
    }
    CHECK(!mk_explain_line(&e, text, bytes, false) && e.ours == 1, "an unfinished line was believed");
    /* another program's line runs into it */
    strcpy(text + bytes, "host:12:35 [1] NCCL INFO x");
    CHECK(!mk_explain_line(&e, text, strlen(text), true) && e.ours == 1, "%s was believed", text);
    mk_explain_free(&e);
}

static void check_all(void)
{
    for (uint8_t reason = 0; reason < MK_PAIR_REASONS; reason++)
        for (uint8_t act = 1; act < MK_PAIR_ACTS; act++)
            for (int gemm = 0; gemm < 2; gemm++)
                if (act != MK_PAIR_DO_OVERLAP)
                    check_line(gemm, act, reason, 0);
    check_line(false, MK_PAIR_DO_OVERLAP, 0, MK_PAIR_BY_CAPTURE);
    check_line(false, MK_PAIR_DO_OVERLAP, 0, MK_PAIR_BY_COUNTERS);
    check_line(false, MK_PAIR_DO_OVERLAP, 0, MK_PAIR_ASSUMED);
}

static void give(struct mk_explain *e, const char *line)
{
    CHECK(!mk_explain_line(e, line, strlen(line), true), "%s", line);
}

static void check_others(void)
{
    struct mk_explain e;
    static const char *const wrong[] = {
        "fuse gemm n=1 k=2 bf16: G reason=nonsense",
        "fuse gemm n=-1 k=2 bf16: G reason=ok",
        "fuse gemm n=18446744073709551616 k=2 bf16: G reason=ok",
        "fuse gemm n= k=2 bf16: G reason=ok",
        "fuse gemm n=1 k=2 bf17: G reason=ok",
        "fuse gemm n=1 k=2 bf16: OVERLAP reason=ok",
        "fuse gemm n=1 k=2 bf16: OVERLAP proof=none",
        "fuse comm=0xg op=AllReduce n=1 bf16 site=0x1: PLAIN reason=ok",
        "fuse comm=0x1 op=AllReduce n=1 bf16 site=: PLAIN reason=ok",
        "fuse comm=0x1 op=AVeryLongNameOfACollectiveFunction n=1 bf16 site=x: PLAIN reason=ok",
        "fuse total reason=ok: x",
        "fuse total NONE: 1",
        "fuse setup id=0x1 rank=2 of 2: ON from=1",
        "fuse setup id=0x1 rank=1 of 2: OFF reason=",
        "fuse setup id=0x1 rank=1 of 2: MAYBE",
        "fuse timed comm=0x1 from=65 ours=1.0 nccl=2.0 gemm=0.0 together=1.0 us: eager=ours captured=ours",
        "fuse timed comm=0x1 from=64 ours=x nccl=2.0 gemm=0.0 together=1.0 us: eager=ours captured=ours",
        "fuse timed comm=0x1 from=64 ours=1.0 nccl=-2.0 gemm=0.0 together=1.0 us: eager=ours captured=ours",
        "fuse timed comm=0x1 from=64 ours=1.0 nccl=2.0 gemm=0.0 together=1.0 us: eager=mine captured=ours",
    };
    static const char *const foreign[] = {"",          "fuse",    "refuse gemm n=1", "a fuse is blown",
                                          "fuse gemm", "\xff\xfe"};
    memset(&e, 0, sizeof(e));
    for (size_t i = 0; i < sizeof(foreign) / sizeof(foreign[0]); i++)
        give(&e, foreign[i]);
    CHECK(!e.damaged && !e.ours && e.lines == 6, "another's line was taken for ours");
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        give(&e, wrong[i]);
        CHECK(e.damaged == i + 1 && !e.ours && !e.nrows, "%s was believed", wrong[i]);
    }
    give(&e, "[0] fuse total reason=no-proof: 18446744073709551615");
    give(&e, "[1] fuse total reason=no-proof: 5");
    give(&e, "fuse total PLAIN: 7\r");
    CHECK(e.reason[MK_PAIR_NO_PROOF] == UINT64_MAX && e.act[MK_PAIR_DO_PLAIN] == 7 && e.totals == 3,
          "totals");
    give(&e, "fuse setup id=0x1f rank=1 of 2: ON from=17");
    give(&e, "fuse setup id=0x1f rank=1 of 2: OFF reason=setup-timeout");
    CHECK(e.setup.on == 1 && e.setup.off[MK_PAIR_TIMEOUT] == 1, "set-up");
    mk_explain_free(&e);
}

static void check_timed(void)
{
    struct mk_explain e;
    const struct mk_rival_round round = {
        .k_ns = 649812, .nccl_ns = 589850, .gemm_ns = 325200, .pair_ns = 691799, .eager = true};
    memset(&e, 0, sizeof(e));
    const size_t bytes = (size_t)mk_rival_line(19, &round, (void *)0x7f00deadbeef, text, sizeof(text));
    for (size_t n = 0; n < bytes; n++)
        CHECK(!mk_explain_line(&e, text, n, false) && !e.ours, "%.*s was believed", (int)n, text);
    CHECK(!mk_explain_line(&e, text, bytes, true) && e.ours == 1 && !e.nrows, "%s", text);
    const struct mk_explain_timed *t = &e.timed[19];
    CHECK(t->lines == 1 && t->eager_nccl && !t->captured_nccl, "%s", text);
    CHECK(t->ours == 649.8 && t->nccl == 589.8 && t->gemm == 325.2 && t->together == 691.7, "%s", text);
    mk_rival_line(0, &(struct mk_rival_round){.captured = true}, NULL, text, sizeof(text));
    give(&e, text);
    CHECK(e.timed[0].lines == 1 && e.timed[0].captured_nccl && e.timed[0].ours == 0, "%s", text);
    mk_explain_free(&e);
}

/* MK_VERIFY: what was seen to change, and the counters at exit. */
static void check_verified(void)
{
    struct mk_explain e;
    struct mk_pair_event v;
    struct mk_pair_out out;
    memset(&e, 0, sizeof(e));
    memset(&v, 0, sizeof(v));
    memset(&out, 0, sizeof(out));
    v.kind = MK_PAIR_EV_COLL;
    v.u.coll.count = 4096;
    v.u.coll.dtype = MK_BFLOAT16;
    out.proof = MK_PAIR_BY_CAPTURE;
    const size_t bytes = (size_t)mk_pair_check_line(&v, &out, "libtorch_cuda.so+0xabc",
                                                    "cuMemcpyAsync,ncclSend", text, sizeof(text));
    CHECK(bytes < sizeof(text), "%s", text);
    for (size_t n = 0; n < bytes; n++)
        CHECK(!mk_explain_line(&e, text, n, n & 1) && !e.ours, "%.*s was believed", (int)n, text);
    CHECK(!mk_explain_line(&e, text, bytes, true) && e.ours == 1 && e.nrows == 1, "%s", text);
    CHECK(e.row[0].act == MK_PAIR_DO_PLAIN && e.row[0].reason == MK_PAIR_REFUTED && e.row[0].n == 4096, "%s",
          text);
    CHECK(!e.verified, "no counter came");
    give(&e, "[0] fuse total checked: 12");
    give(&e, "[1] fuse total checked: 30");
    give(&e, "[1] fuse total differed: 2");
    CHECK(e.verified && e.checked == 42 && e.differed == 2 && !e.totals, "counters");
    mk_explain_free(&e);
}

/* Ranks tell themselves apart by what stands before; a site's rows stand together. */
static void check_rows(void)
{
    struct mk_explain e;
    memset(&e, 0, sizeof(e));
    give(&e, "[0] mkernel: INFO HOOK fuse comm=0x1 op=AllReduce n=8 bf16 site=a+0x1: PLAIN reason=learning");
    give(&e, "[0] mkernel: INFO HOOK fuse comm=0x1 op=AllReduce n=9 bf16 site=a+0x1: PLAIN reason=learning");
    give(&e, "[1] mkernel: INFO HOOK fuse comm=0x2 op=AllReduce n=8 bf16 site=a+0x1: PLAIN reason=learning");
    give(&e, "[1] mkernel: INFO HOOK fuse comm=0x3 op=AllReduce n=8 bf16 site=a+0x1: PLAIN reason=learning");
    give(&e, "[0] mkernel: INFO HOOK fuse comm=0x1 op=AllReduce n=8 bf16 site=a+0x1: OVERLAP proof=capture");
    give(
        &e,
        "h:1:2 [0] NCCL INFO mKernel: fuse comm=0x1 op=AllReduce n=9 bf16 site=a+0x1: PLAIN reason=learning");
    give(
        &e,
        "h:1:3 [0] NCCL INFO mKernel: fuse comm=0x1 op=AllReduce n=9 bf16 site=a+0x1: PLAIN reason=learning");
    mk_explain_sort(&e);
    CHECK(e.nrows == 3 && e.ours == 7, "rows");
    if (e.nrows != 3)
        return;
    CHECK(e.row[0].n == 8 && e.row[0].processes == 2 && e.row[0].lines == 3, "first row");
    CHECK(e.row[1].n == 8 && e.row[1].act == MK_PAIR_DO_OVERLAP && e.row[1].processes == 1, "second row");
    CHECK(e.row[2].n == 9 && e.row[2].processes == 2 && e.row[2].lines == 3, "third row");
    char line[160];
    for (int i = 0; i < 5000; i++) {
        snprintf(line, sizeof(line), "[%d] fuse gemm n=%d k=1 bf16: G reason=ok", i, i);
        give(&e, line);
    }
    CHECK(e.nrows == 4096 && e.omitted == 5000 - 4093, "no end of rows");
    for (int i = 0; i < 5000; i++) {
        snprintf(line, sizeof(line), "[%d] fuse gemm n=1 k=1 bf16: G reason=ok", i);
        give(&e, line);
    }
    for (uint64_t i = 0; i < e.nrows; i++)
        CHECK(e.row[i].processes <= MK_EXPLAIN_PROCESSES, "no end of processes");
    mk_explain_free(&e);
}

/* Any byte instead of any other: it ends, and what it says is in range. */
static void check_noise(void)
{
    struct mk_explain e;
    memset(&e, 0, sizeof(e));
    srand(7);
    for (int i = 0; i < 200000; i++) {
        const size_t bytes = line_of(i & 1, 1 + (uint8_t)(i % 4), (uint8_t)(i % MK_PAIR_REASONS), 0);
        for (int n = rand() % 4; n >= 0; n--)
            text[(size_t)rand() % bytes] = (char)rand();
        CHECK(!mk_explain_line(&e, text, bytes, rand() & 1), "out of memory");
    }
    CHECK(e.nrows <= 4096 && e.ours + e.damaged <= e.lines && e.damaged > 1000, "counts");
    for (uint64_t i = 0; i < e.nrows; i++)
        CHECK(e.row[i].act < MK_PAIR_ACTS && e.row[i].reason < MK_PAIR_REASONS && strlen(e.row[i].site) < 96,
              "a row that cannot be");
    mk_explain_free(&e);
}

int main(void)
{
    check_all();
    check_others();
    check_timed();
    check_verified();
    check_rows();
    check_noise();
    return bad;
}
