/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Event lists of GEMMs, each with what must be decided: sites, generations, what G does not do, determinism, full tables.
 * What is expected is written down from the rules, by hand. */
#include "tests/unit/pair_help.h"
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

/* ---- the site: original, then known ---- */

static void site_is_learned_by_one_sighting(void **state)
{
    WITH_RANK;
    const struct mk_pair_gemm g = W1, other = sim_gemm_of(2);
    LEARN(&s, &g, 0);
    PAIR(&s, &g, 0, G, OK, OVERLAP, OK);
    assert_int_equal(s.out.proof, MK_PAIR_BY_COUNTERS);
    PAIR(&s, &other, 0, ORIGINAL, UNKNOWN_SITE, PLAIN, LEARNING);
    sim_end(&s);
}

static void site_key_leaves_m_out(void **state)
{
    WITH_RANK;
    struct mk_pair_gemm g = W1;
    LEARN(&s, &g, 0);
    g.m = 64;
    PAIR(&s, &g, 0, G, OK, OVERLAP, OK);
    g.a += 0x4000;
    g.c += 0x4000;
    PAIR(&s, &g, 0, G, OK, OVERLAP, OK); /* nor do A and C belong to it */
    sim_end(&s);
}

static void site_key_has_each_of_its_parts(void **state)
{
    for (int part = 0; part < 6; part++) {
        WITH_RANK;
        struct mk_pair_gemm g = W1;
        LEARN(&s, &g, 0);
        switch (part) {
        case 0:
            g.b += 0x1000;
            break;
        case 1:
            g.n = 256, g.ldc = 256;
            break;
        case 2:
            g.k = 64;
            break;
        case 3:
            g.layout = MK_NN, g.ldb = 512;
            break;
        case 4:
            g.epilogue = MK_PAIR_BIAS, g.bias = UINT64_C(0x50000000);
            break;
        default:
            g.a_type = g.b_type = g.c_type = MK_FLOAT16;
        }
        PAIR(&s, &g, 0, ORIGINAL, UNKNOWN_SITE, PLAIN, LEARNING);
        PAIR(&s, &g, 0, G, OK, OVERLAP, OK);
        sim_end(&s);
    }
}

/* The communicator is a part of the key: what only a dead one followed is not known. */
static void site_key_has_the_communicator(void **state)
{
    WITH_RANK;
    struct mk_pair_event end = sim_comm_event(MK_PAIR_EV_COMM_END, 0);
    const struct mk_pair_gemm g = W1;
    LEARN(&s, &g, 0);
    sim_step(&s, &end);
    sim_fused(&s, 1);
    LEARN(&s, &g, 1);
    PAIR(&s, &g, 1, G, OK, OVERLAP, OK);
    sim_end(&s);
}

static void site_is_not_learned_from_what_cannot_be_fused(void **state)
{
    WITH_RANK;
    const struct mk_pair_gemm g = W1;
    struct mk_pair_coll c = sim_coll_of(0, &g);
    c.sum = 0;
    for (int i = 0; i < 3; i++) {
        EXPECT(&s, sim_gemm(&s, 0, &g), ORIGINAL, UNKNOWN_SITE);
        EXPECT(&s, sim_coll(&s, 0, &c), NCCL, OPERATOR);
    }
    c.sum = 1;
    for (int i = 0; i < 3; i++) { /* an intruder every time: not next */
        EXPECT(&s, sim_gemm(&s, 0, &g), ORIGINAL, UNKNOWN_SITE);
        sim_foreign(&s, 0);
        EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, INTRUDER);
    }
    sim_end(&s);
}

static void site_of_a_capture_by_its_n_and_k(void **state)
{
    WITH_RANK;
    struct mk_pair_gemm g = W1, layer2 = sim_gemm_of(2), other = sim_gemm_of(3);
    other.k = 64;
    LEARN(&s, &g, 0);
    EXPECT(&s, sim_gemm(&s, 0, &layer2), ORIGINAL, UNKNOWN_SITE); /* eager: its weight is not known */
    sim_capture(&s, 0);
    PAIR(&s, &layer2, 0, G, OK, OVERLAP, OK);
    assert_int_equal(s.out.proof, MK_PAIR_BY_CAPTURE);
    PAIR(&s, &other, 0, ORIGINAL, UNKNOWN_SITE, PLAIN, LEARNING);
    PAIR(&s, &other, 0, G, OK, OVERLAP, OK);
    sim_end(&s);
}

/* Captures after no, one and three calls to warm up, of three layers with the same N and K. */
static void capture_after_warm_up(void **state)
{
    const int warm[] = {0, 1, 3}, overlaps[] = {2, 3, 3};
    for (size_t i = 0; i < 3; i++) {
        WITH_RANK;
        int n = 0;
        for (int call = 0; call < warm[i]; call++)
            for (uint64_t layer = 1; layer <= 3; layer++) {
                const struct mk_pair_gemm g = sim_gemm_of(layer);
                const struct mk_pair_coll c = sim_coll_of(0, &g);
                sim_gemm(&s, 0, &g);
                sim_coll(&s, 0, &c);
            }
        sim_capture(&s, 0);
        for (uint64_t layer = 1; layer <= 3; layer++) {
            const struct mk_pair_gemm g = sim_gemm_of(layer);
            const struct mk_pair_coll c = sim_coll_of(0, &g);
            sim_gemm(&s, 0, &g);
            sim_coll(&s, 0, &c);
            n += s.out.act == MK_PAIR_DO_OVERLAP;
        }
        assert_int_equal(n, overlaps[i]);
        sim_end(&s);
    }
}

/* ---- generations ---- */

static void generation_grows_by_one_a_g_of_its_stream(void **state)
{
    WITH_RANK;
    const struct mk_pair_gemm g = W1;
    LEARN(&s, &g, 0);
    for (uint64_t i = 1; i <= 3; i++) {
        EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
        assert_int_equal(s.out.generation, i);
        const int32_t descriptor = s.out.descriptor;
        EXPECT(&s, sim_gemm(&s, 1, &g), G, OK);
        assert_int_equal(s.out.generation, i);
        assert_int_not_equal(s.out.descriptor, descriptor);
    }
    sim_capture(&s, 0);
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
    assert_int_equal(s.out.descriptor, MK_PAIR_OWN_DESCRIPTOR);
    const uint64_t pair = s.out.generation;
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
    assert_int_equal(s.out.descriptor, MK_PAIR_OWN_DESCRIPTOR);
    assert_int_not_equal(s.out.generation, pair);
    sim_captured(&s, 0);
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
    assert_int_equal(s.out.generation, 4);
    sim_end(&s);
}

/* A GEMM without a collective (an evaluation step) leaves nothing behind: the next K reads the next generation. */
static void generation_of_the_gemm_that_k_follows(void **state)
{
    WITH_RANK;
    const struct mk_pair_gemm g = W1;
    const struct mk_pair_coll c = sim_coll_of(0, &g);
    LEARN(&s, &g, 0);
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
    sim_foreign(&s, 0);
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
    EXPECT(&s, sim_coll(&s, 0, &c), OVERLAP, OK);
    assert_int_equal(s.out.generation, 2);
    sim_end(&s);
}

static void generation_of_a_g_that_could_not_be_launched(void **state)
{
    WITH_RANK;
    const struct mk_pair_gemm g = W1, h = sim_gemm_of(2);
    const struct mk_pair_coll c = sim_coll_of(0, &g);
    LEARN(&s, &g, 0);
    LEARN(&s, &h, 0);
    s.fail_g = true;
    EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, ORIGINAL);   /* the original ran instead */
    PAIR(&s, &g, 0, ORIGINAL, FAILED, PLAIN, ORIGINAL); /* and does from now on */
    EXPECT(&s, sim_gemm(&s, 0, &h), G, OK);
    assert_int_equal(s.out.generation, 1); /* the one that failed counted nothing */
    sim_end(&s);
}

/* ---- what G does not do ---- */

static void gemm_that_stays_the_original(void **state)
{
    const struct {
        uint32_t flags, reason;
    } flags[] = {{MK_PAIR_DEVICE_SCALARS, MK_PAIR_SCALARS}, {MK_PAIR_C_NOT_D, MK_PAIR_SCALARS},
                 {MK_PAIR_PEDANTIC, MK_PAIR_COMPUTE},       {MK_PAIR_COMPUTE_16F, MK_PAIR_COMPUTE},
                 {MK_PAIR_TF32, MK_PAIR_COMPUTE},           {MK_PAIR_EMULATED, MK_PAIR_COMPUTE},
                 {MK_PAIR_SCALED, MK_PAIR_COMPUTE},         {MK_PAIR_UNKNOWN_ATTRIBUTE, MK_PAIR_ATTRIBUTE},
                 {MK_PAIR_NEW_LT, MK_PAIR_ATTRIBUTE},       {MK_PAIR_CANNOT, MK_PAIR_SHAPE}};
    WITH_RANK;
    struct mk_pair_gemm g = W1;
    const struct mk_pair_coll c = sim_coll_of(0, &g);
    LEARN(&s, &g, 0);
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
        g = W1;
        g.flags = flags[i].flags;
        sim_gemm(&s, 0, &g);
        sim_expect(&s, MK_PAIR_DO_ORIGINAL, flags[i].reason, __FILE__, __LINE__);
        EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, ORIGINAL); /* K all the same */
    }
    const float scalars[][2] = {
        {1, 1}, {2, 0}, {0, 0}, {1, -1}, {__builtin_nanf(""), 0}, {1, __builtin_nanf("")}};
    for (size_t i = 0; i < sizeof(scalars) / sizeof(scalars[0]); i++) {
        g = W1;
        g.alpha = scalars[i][0];
        g.beta = scalars[i][1];
        EXPECT(&s, sim_gemm(&s, 0, &g), ORIGINAL, SCALARS);
    }
    g = W1, g.batch = 2;
    EXPECT(&s, sim_gemm(&s, 0, &g), ORIGINAL, BATCH);
    g = W1, g.epilogue = MK_PAIR_GELU_BIAS, g.bias = 0x50000000;
    EXPECT(&s, sim_gemm(&s, 0, &g), ORIGINAL, EPILOGUE);
    g.epilogue = MK_PAIR_OTHER_EPILOGUE;
    EXPECT(&s, sim_gemm(&s, 0, &g), ORIGINAL, EPILOGUE);
    g = W1, g.c_type = MK_FLOAT32;
    EXPECT(&s, sim_gemm(&s, 0, &g), ORIGINAL, GEMM_DTYPE);
    g.a_type = g.b_type = MK_FLOAT32; /* cublasSgemm */
    EXPECT(&s, sim_gemm(&s, 0, &g), ORIGINAL, GEMM_DTYPE);
    g = W1, g.a_type = g.b_type = g.c_type = MK_PAIR_OTHER_DTYPE;
    EXPECT(&s, sim_gemm(&s, 0, &g), ORIGINAL, GEMM_DTYPE);
    g = W1, g.c = g.a + 64;
    EXPECT(&s, sim_gemm(&s, 0, &g), ORIGINAL, SHAPE); /* C overlaps A */
    g = W1, g.m = 0;
    EXPECT(&s, sim_gemm(&s, 0, &g), ORIGINAL, SHAPE);
    g = W1, g.k = -1;
    EXPECT(&s, sim_gemm(&s, 0, &g), ORIGINAL, SHAPE);
    g = W1, g.m = INT64_MAX;
    EXPECT(&s, sim_gemm(&s, 0, &g), ORIGINAL, SHAPE);
    g = W1, g.lda = 64;
    EXPECT(&s, sim_gemm(&s, 0, &g), ORIGINAL, SHAPE);
    g = W1;
    PAIR(&s, &g, 0, G, OK, OVERLAP, OK);
    sim_end(&s);
}

/* ---- deterministic ---- */

static void deterministic_from_the_first_call_or_never(void **state)
{
    const struct mk_pair_options options = {.witness = SIM_W, .deterministic = 1};
    struct sim s;
    (void)state;
    sim_start(&s, &options);
    const struct mk_pair_gemm early = W1, late = sim_gemm_of(2), alone = sim_gemm_of(3);
    const struct mk_pair_coll c = sim_coll_of(0, &early);
    EXPECT(&s, sim_gemm(&s, 0, &early), ORIGINAL, NEVER); /* nothing is fused yet */
    sim_tied(&s, 0);
    sim_agreed(&s, 0);
    sim_switch(&s, 0, 16, MK_PAIR_FUSED);
    while (sim_number(&s, 0) < 16)
        EXPECT(&s, sim_coll(&s, 0, &c), NCCL, NOT_READY);
    for (int i = 0; i < 3; i++) {
        PAIR(&s, &early, 0, ORIGINAL, NEVER, PLAIN, ORIGINAL);
        PAIR(&s, &late, 0, G, OK, OVERLAP, OK);
        EXPECT(&s, sim_gemm(&s, 0, &alone), G, OK);
    }
    sim_switch(&s, 0, sim_number(&s, 0), 0);
    PAIR(&s, &late, 0, G, OK, NCCL, SWITCHED_OFF); /* still G: its bits stay */
    sim_end(&s);
}

/* Never overlapping, by request: the same GEMMs run G. */
static void plain_by_request_runs_the_same_gemms(void **state)
{
    for (uint8_t plain = 0; plain < 2; plain++) {
        const struct mk_pair_options options = {.witness = SIM_W, .deterministic = 1, .plain = plain};
        struct sim s;
        (void)state;
        sim_start(&s, &options);
        sim_fused(&s, 0);
        const struct mk_pair_gemm g = W1;
        const struct mk_pair_coll c = sim_coll_of(0, &g);
        for (int i = 0; i < 3; i++) {
            EXPECT(&s, sim_gemm(&s, 0, &g), G, OK);
            sim_coll(&s, 0, &c);
            assert_int_equal(s.out.act, plain ? MK_PAIR_DO_PLAIN : MK_PAIR_DO_OVERLAP);
            assert_int_equal(s.out.reason, plain ? MK_PAIR_FORCED : MK_PAIR_OK);
        }
        sim_end(&s);
    }
}

/* ---- tables that are full ---- */

static void tables_have_an_end(void **state)
{
    const struct mk_pair_options options = {.witness = SIM_W, .streams = 2, .sites = 4};
    struct mk_pair_counts counts;
    struct sim s;
    (void)state;
    sim_start(&s, &options);
    sim_fused(&s, 0);
    struct mk_pair_gemm g[4];
    for (uint64_t i = 0; i < 4; i++)
        g[i] = sim_gemm_of(i);
    for (int i = 0; i < 3; i++) /* three sites and their record */
        LEARN(&s, &g[i], 0);
    PAIR(&s, &g[2], 0, G, OK, OVERLAP, OK);
    LEARN(&s, &g[3], 0); /* no room, and so the next time */
    LEARN(&s, &g[3], 0);
    mk_pair_count(s.p, &counts);
    assert_int_equal(counts.sites, 4);
    assert_int_equal(counts.forgotten, 2);
    EXPECT(&s, sim_gemm(&s, 1, &g[0]), G, OK);
    EXPECT(&s, sim_gemm(&s, 2, &g[0]), ORIGINAL, STREAMS);
    struct mk_pair_event gone = {.kind = MK_PAIR_EV_STREAM_GONE, .at = sim_at(&s, 1)};
    sim_step(&s, &gone);
    EXPECT(&s, sim_gemm(&s, 2, &g[0]), G, OK);
    assert_int_equal(s.out.generation, 2); /* its descriptor counts on */
    /* The sites of a communicator that ended make room. */
    struct mk_pair_event end = sim_comm_event(MK_PAIR_EV_COMM_END, 0);
    sim_step(&s, &end);
    sim_fused(&s, 1);
    LEARN(&s, &g[3], 1);
    PAIR(&s, &g[3], 1, G, OK, OVERLAP, OK);
    sim_end(&s);
}

int pair_rules(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(site_is_learned_by_one_sighting),
        cmocka_unit_test(site_key_leaves_m_out),
        cmocka_unit_test(site_key_has_each_of_its_parts),
        cmocka_unit_test(site_key_has_the_communicator),
        cmocka_unit_test(site_is_not_learned_from_what_cannot_be_fused),
        cmocka_unit_test(site_of_a_capture_by_its_n_and_k),
        cmocka_unit_test(capture_after_warm_up),
        cmocka_unit_test(generation_grows_by_one_a_g_of_its_stream),
        cmocka_unit_test(generation_of_the_gemm_that_k_follows),
        cmocka_unit_test(generation_of_a_g_that_could_not_be_launched),
        cmocka_unit_test(gemm_that_stays_the_original),
        cmocka_unit_test(deterministic_from_the_first_call_or_never),
        cmocka_unit_test(plain_by_request_runs_the_same_gemms),
        cmocka_unit_test(tables_have_an_end),
    };
    return cmocka_run_group_tests_name("pair rules of GEMMs", tests, NULL, NULL);
}
