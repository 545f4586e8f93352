/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Event lists of communicators, each with what must be decided: identity, witness, errors, the log.
 * What is expected is written down from the rules, by hand. */
#include "tests/unit/pair_help.h"
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

/* ---- identity ---- */

static void tied_inside_a_hooked_call(void **state)
{
    struct sim s;
    struct mk_pair_comm_facts f;
    (void)state;
    sim_start(&s, NULL);
    const struct mk_pair_gemm g = W1;
    const struct mk_pair_coll c = sim_coll_of(0, &g);
    sim_new(&s, 0);
    assert_true(mk_pair_comm(s.p, sim_handle(0), &f) && f.id == 0 && !f.ready);
    sim_profile(&s, 0, 5); /* two that no hook saw, before the first hooked one */
    sim_profile(&s, 0, 1);
    assert_true(mk_pair_comm(s.p, sim_handle(0), &f) && f.id == 0);
    EXPECT(&s, sim_coll(&s, 0, &c), NCCL, NOT_READY);
    assert_true(mk_pair_comm(s.p, sim_handle(0), &f) && f.id == 70 && !f.ready);
    assert_int_equal(f.number, 3); /* as on a rank where all were hooked */
    EXPECT(&s, sim_coll(&s, 0, &c), NCCL, NOT_READY);
    assert_int_equal(s.out.number, 3);
    assert_true(mk_pair_comm(s.p, sim_handle(0), &f) && f.ready);
    sim_end(&s);
}

/* What NCCL says of rank and size must be what the profiler was told. */
static void tied_only_if_rank_and_size_agree(void **state)
{
    for (int what = 0; what < 2; what++) {
        struct sim s;
        struct mk_pair_comm_facts f;
        (void)state;
        sim_start(&s, NULL);
        struct mk_pair_event id = sim_comm_event(MK_PAIR_EV_COMM_ID, 0),
                             e = sim_comm_event(MK_PAIR_EV_COMM_NEW, 0);
        const struct mk_pair_gemm g = W1;
        const struct mk_pair_coll c = sim_coll_of(0, &g);
        if (what)
            e.u.comm.nranks = 4;
        else
            e.u.comm.rank = 1;
        sim_step(&s, &id);
        sim_step(&s, &e);
        EXPECT(&s, sim_coll(&s, 0, &c), NCCL, NOT_READY);
        assert_true(s.out.asks & MK_PAIR_ASK_OFF);
        assert_true(mk_pair_comm(s.p, sim_handle(0), &f) && f.off && f.id == 0);
        EXPECT(&s, sim_coll(&s, 0, &c), NCCL, UNTIED);
        sim_end(&s);
    }
}

/* Neither a grouped call nor another thread's tells which communicator the profiler speaks of. */
static void tied_neither_by_groups_nor_by_other_threads(void **state)
{
    struct sim s;
    struct mk_pair_comm_facts f;
    (void)state;
    sim_start(&s, NULL);
    const struct mk_pair_gemm g = W1;
    const struct mk_pair_coll c = sim_coll_of(0, &g);
    sim_new(&s, 0);
    sim_group(&s);
    EXPECT(&s, sim_coll(&s, 0, &c), NCCL, NOT_READY);
    sim_group_end(&s);
    assert_true(mk_pair_comm(s.p, sim_handle(0), &f) && f.id == 0);
    struct mk_pair_event e = {.kind = MK_PAIR_EV_COLL, .at = sim_at(&s, 0)};
    e.u.coll = c;
    sim_step(&s, &e); /* under way on thread 1 */
    sim_profile(&s, 0, 2);
    assert_true(mk_pair_comm(s.p, sim_handle(0), &f) && f.id == 0);
    sim_profile(&s, 0, 1);
    assert_true(mk_pair_comm(s.p, sim_handle(0), &f) && f.id == 70);
    assert_int_equal(f.number, 3); /* the grouped one, the other thread's, this one */
    sim_end(&s);
}

/* Identities of ended communicators make room for new ones, and those that live keep theirs. */
static void tied_again_and_again(void **state)
{
    WITH_RANK;
    const struct mk_pair_gemm g = W1;
    const struct mk_pair_coll c = sim_coll_of(0, &g), d = sim_coll_of(1, &g);
    for (uint64_t i = 0; i < 50; i++) {
        struct mk_pair_event id = sim_comm_event(MK_PAIR_EV_COMM_ID, 1),
                             e = sim_comm_event(MK_PAIR_EV_COMM_NEW, 1),
                             seen = sim_comm_event(MK_PAIR_EV_PROFILED, 1),
                             end = sim_comm_event(MK_PAIR_EV_COMM_END, 1);
        struct mk_pair_comm_facts f;
        id.u.comm.id = seen.u.comm.id = 1000 + i;
        sim_step(&s, &id);
        sim_step(&s, &e);
        s.profiled = false;
        e = (struct mk_pair_event){.kind = MK_PAIR_EV_COLL, .at = sim_at(&s, 0)};
        e.u.coll = d;
        sim_step(&s, &e);
        sim_step(&s, &seen);
        assert_true(mk_pair_comm(s.p, sim_handle(1), &f) && f.id == 1000 + i);
        sim_step(&s, &end);
        EXPECT(&s, sim_coll(&s, 2, &c), PLAIN, NO_GEMM);
    }
    sim_profile(&s, 0, 7); /* the other one's identity is still its own */
    assert_int_equal(s.out.reason, MK_PAIR_UNHOOKED);
    sim_end(&s);
}

static void agreed_without_a_tie_or_a_witness_is_an_error(void **state)
{
    for (int what = 0; what < 3; what++) {
        struct sim s;
        (void)state;
        sim_start(&s, NULL);
        struct mk_pair_event e = sim_comm_event(MK_PAIR_EV_COMM_AGREED, 0);
        const struct mk_pair_gemm g = W1;
        const struct mk_pair_coll c = sim_coll_of(0, &g);
        e.u.comm.config = sim_config();
        if (what == 2) {
            sim_tied(&s, 0);
            e.u.comm.config.nranks = 3;
        } else {
            sim_new(&s, 0);
            if (what == 1)
                EXPECT(&s, sim_coll(&s, 0, &c), NCCL, NOT_READY); /* tied, seen once of W = 2 */
        }
        sim_step(&s, &e);
        assert_true(s.out.asks & MK_PAIR_ASK_TELL);
        sim_coll(&s, 0, &c);
        sim_expect(&s, MK_PAIR_DO_FAIL, what ? MK_PAIR_UNSEEN : MK_PAIR_UNTIED, __FILE__, __LINE__);
        sim_end(&s);
    }
}

/* The profiler may have been idle on this rank alone: what it counted then is not what the others count. */
static void calls_before_the_tie_that_nobody_saw(void **state)
{
    struct sim s;
    (void)state;
    sim_start(&s, NULL);
    const struct mk_pair_gemm g = W1;
    const struct mk_pair_coll c = sim_coll_of(0, &g);
    sim_new(&s, 0);
    s.profiled = false;
    EXPECT(&s, sim_coll(&s, 0, &c), NCCL, NOT_READY);
    s.profiled = true;
    EXPECT(&s, sim_coll(&s, 0, &c), NCCL, NOT_READY);
    EXPECT(&s, sim_coll(&s, 0, &c), NCCL, UNSEEN);
    sim_end(&s);
}

/* Between this rank's word that it is ready and the others' answer: no error, all go back to NCCL together. */
static void a_witness_lost_before_the_agreement(void **state)
{
    struct sim s;
    (void)state;
    sim_start(&s, NULL);
    const struct mk_pair_gemm g = W1;
    const struct mk_pair_coll c = sim_coll_of(0, &g);
    struct mk_pair_event e = sim_comm_event(MK_PAIR_EV_COMM_AGREED, 0);
    e.u.comm.config = sim_config();
    sim_tied(&s, 0);
    s.profiled = false;
    EXPECT(&s, sim_coll(&s, 0, &c), NCCL, NOT_READY);
    s.profiled = true;
    EXPECT(&s, sim_coll(&s, 0, &c), NCCL, NOT_READY);
    sim_step(&s, &e);
    assert_int_equal(s.out.asks, MK_PAIR_ASK_OFF);
    sim_switch(&s, 0, sim_number(&s, 0), MK_PAIR_FUSED);
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, NO_GEMM);
    sim_switch(&s, 0, sim_number(&s, 0), 0);
    EXPECT(&s, sim_coll(&s, 0, &c), NCCL, SWITCHED_OFF);
    assert_int_equal(sim_error(&s, 0), 0);
    sim_end(&s);
}

static void unknown_and_nonblocking_communicators_are_nccls(void **state)
{
    WITH_RANK;
    const struct mk_pair_gemm g = W1;
    struct mk_pair_event e = sim_comm_event(MK_PAIR_EV_COMM_NEW, 2),
                         id = sim_comm_event(MK_PAIR_EV_COMM_ID, 2);
    struct mk_pair_coll c = sim_coll_of(1, &g);
    PAIR(&s, &g, 1, ORIGINAL, UNKNOWN_SITE, NCCL, NO_COMM);
    e.u.comm.nonblocking = 1;
    sim_step(&s, &id);
    sim_step(&s, &e);
    assert_true(s.out.asks & MK_PAIR_ASK_OFF);
    c = sim_coll_of(2, &g);
    EXPECT(&s, sim_coll(&s, 0, &c), NCCL, NONBLOCKING);
    sim_end(&s);
}

static void setup_off_is_said(void **state)
{
    const uint8_t reasons[] = {MK_PAIR_TIMEOUT, MK_PAIR_MEMBER, MK_PAIR_NO_WITNESS, MK_PAIR_SHARED_GPU,
                               MK_PAIR_KILLED};
    for (size_t i = 0; i < sizeof(reasons); i++) {
        struct sim s;
        (void)state;
        sim_start(&s, NULL);
        struct mk_pair_event off = sim_comm_event(MK_PAIR_EV_COMM_OFF, 0);
        const struct mk_pair_gemm g = W1;
        const struct mk_pair_coll c = sim_coll_of(0, &g);
        sim_tied(&s, 0);
        off.u.comm.reason = reasons[i];
        sim_step(&s, &off);
        assert_int_equal(s.out.asks, 0);
        sim_coll(&s, 0, &c);
        sim_expect(&s, MK_PAIR_DO_NCCL, reasons[i], __FILE__, __LINE__);
        sim_end(&s);
    }
}

/* ---- witness ---- */

static void witness_has_to_see_w_in_a_row(void **state)
{
    struct sim s;
    struct mk_pair_comm_facts f;
    const struct mk_pair_options options = {.witness = 3};
    (void)state;
    sim_start(&s, &options);
    const struct mk_pair_gemm g = W1;
    const struct mk_pair_coll c = sim_coll_of(0, &g);
    sim_new(&s, 0);
    for (int i = 1; i <= 4; i++) {
        EXPECT(&s, sim_coll(&s, 0, &c), NCCL, NOT_READY);
        assert_true(mk_pair_comm(s.p, sim_handle(0), &f) && f.ready == (i >= 3));
    }
    sim_profile(&s, 0, 9); /* one that no hook saw: not fused yet, so it only counts anew */
    assert_true(mk_pair_comm(s.p, sim_handle(0), &f) && !f.ready && !f.error);
    assert_int_equal(f.number, 5);
    for (int i = 1; i <= 3; i++) {
        EXPECT(&s, sim_coll(&s, 0, &c), NCCL, NOT_READY);
        assert_true(mk_pair_comm(s.p, sim_handle(0), &f) && f.ready == (i >= 3));
    }
    s.profiled = false; /* the profiler is gone: never again */
    for (int i = 0; i < 5; i++)
        EXPECT(&s, sim_coll(&s, 0, &c), NCCL, NOT_READY);
    s.profiled = true;
    for (int i = 0; i < 5; i++)
        EXPECT(&s, sim_coll(&s, 0, &c), NCCL, NOT_READY);
    assert_true(mk_pair_comm(s.p, sim_handle(0), &f) && !f.ready);
    sim_end(&s);
}

/* One rank calls through a pointer that it took before us. */
static void witness_of_an_unhooked_call_aborts(void **state)
{
    WITH_RANK;
    const struct mk_pair_gemm g = W1;
    const struct mk_pair_coll c = sim_coll_of(0, &g);
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, NO_GEMM);
    sim_profile(&s, 0, 7);
    assert_int_equal(s.out.asks, MK_PAIR_ASK_ABORT | MK_PAIR_ASK_TELL);
    assert_int_equal(s.out.reason, MK_PAIR_UNHOOKED);
    EXPECT(&s, sim_coll(&s, 0, &c), FAIL, UNHOOKED);
    assert_int_equal(s.out.error, MK_ERR_ABORTED);
    sim_end(&s);
}

static void witness_that_falls_silent_asks_for_off(void **state)
{
    WITH_RANK;
    const struct mk_pair_gemm g = W1;
    struct mk_pair_coll c = sim_coll_of(0, &g), max = c;
    max.sum = 0;
    s.profiled = false;
    EXPECT(&s, sim_coll(&s, 0, &max), NCCL, OPERATOR);
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, NO_GEMM); /* not by this rank alone */
    assert_true(s.out.asks & MK_PAIR_ASK_OFF);
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, NO_GEMM);
    assert_false(s.out.asks & MK_PAIR_ASK_OFF); /* once */
    sim_end(&s);
}

/* A call that NCCL refused was not profiled, and that is in order. */
static void witness_does_not_miss_refused_calls(void **state)
{
    struct sim s;
    struct mk_pair_comm_facts f;
    (void)state;
    sim_start(&s, NULL);
    const struct mk_pair_gemm g = W1;
    struct mk_pair_event e = {.kind = MK_PAIR_EV_COLL, .at = sim_at(&s, 0)},
                         done = {.kind = MK_PAIR_EV_COLL_DONE, .at = sim_at(&s, 0)};
    sim_tied(&s, 0);
    e.u.coll = sim_coll_of(0, &g);
    sim_step(&s, &e);
    done.u.done.comm = sim_handle(0);
    done.u.done.act = MK_PAIR_DO_NCCL;
    done.u.done.error = 4;
    sim_step(&s, &done);
    EXPECT(&s, sim_coll(&s, 0, &e.u.coll), NCCL, NOT_READY);
    assert_true(mk_pair_comm(s.p, sim_handle(0), &f) && f.ready);
    sim_end(&s);
}

/* ---- errors ---- */

static void errors_stick_to_the_communicator(void **state)
{
    WITH_RANK;
    sim_fused(&s, 1);
    struct mk_pair_event error = sim_comm_event(MK_PAIR_EV_COMM_ERROR, 0), fresh;
    const struct mk_pair_gemm g = W1;
    const struct mk_pair_coll c = sim_coll_of(0, &g), d = sim_coll_of(1, &g);
    sim_group(&s);
    sim_coll(&s, 0, &c);
    error.u.comm.error = MK_ERR_PEER;
    sim_step(&s, &error);
    assert_int_equal(s.out.asks, MK_PAIR_ASK_ABORT | MK_PAIR_ASK_TELL);
    EXPECT(&s, sim_group_end(&s), FAIL, ERROR); /* what was held too */
    error.u.comm.error = MK_ERR_NET;
    sim_step(&s, &error);
    assert_int_equal(s.out.asks, 0); /* the first one stays */
    for (int i = 0; i < 3; i++) {
        EXPECT(&s, sim_coll(&s, i, &c), FAIL, ERROR);
        assert_int_equal(s.out.error, MK_ERR_PEER);
        EXPECT(&s, sim_p2p(&s, i, 0), FAIL, ERROR);
    }
    EXPECT(&s, sim_coll(&s, 0, &d), PLAIN, NO_GEMM); /* the other one lives */
    fresh =
        sim_comm_event(MK_PAIR_EV_COMM_NEW, 0); /* NCCL again, by a new communicator at the same address */
    sim_step(&s, &fresh);
    EXPECT(&s, sim_coll(&s, 0, &c), NCCL, NOT_READY);
    sim_end(&s);
}

static void a_k_that_cannot_be_launched_is_an_error(void **state)
{
    WITH_RANK;
    const struct mk_pair_gemm g = W1;
    const struct mk_pair_coll c = sim_coll_of(0, &g);
    s.fail_k = true;
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, NO_GEMM);
    assert_int_equal(s.out.asks & (MK_PAIR_ASK_ABORT | MK_PAIR_ASK_TELL),
                     MK_PAIR_ASK_ABORT | MK_PAIR_ASK_TELL);
    EXPECT(&s, sim_coll(&s, 0, &c), FAIL, ERROR); /* never a silent second try by NCCL */
    assert_int_equal(s.out.error, MK_ERR_CUDA);
    sim_end(&s);
}

static void abort_of_the_user(void **state)
{
    WITH_RANK;
    struct mk_pair_event abort = sim_comm_event(MK_PAIR_EV_COMM_ABORT, 0),
                         end = sim_comm_event(MK_PAIR_EV_COMM_END, 0);
    const struct mk_pair_gemm g = W1;
    const struct mk_pair_coll c = sim_coll_of(0, &g);
    sim_step(&s, &abort);
    assert_true(s.out.asks & MK_PAIR_ASK_ABORT);
    EXPECT(&s, sim_coll(&s, 0, &c), FAIL, ERROR);
    sim_step(&s, &end);
    EXPECT(&s, sim_coll(&s, 0, &c), NCCL, NO_COMM);
    sim_refuses(&s, &end);
    sim_end(&s);
}

/* ---- log and counters ---- */

static void log_once_a_site_and_reason(void **state)
{
    WITH_RANK;
    struct mk_pair_gemm g = W1;
    struct mk_pair_coll c = sim_coll_of(0, &g);
    struct mk_pair_counts counts;
    int lines = 0;
    for (int i = 0; i < 10; i++) {
        g.m = 256 + 16 * i; /* not a new site */
        c.count = (uint64_t)(g.m * g.n);
        sim_gemm(&s, 0, &g);
        lines += (s.out.asks & MK_PAIR_ASK_LOG) != 0;
        sim_coll(&s, 0, &c);
        lines += (s.out.asks & MK_PAIR_ASK_LOG) != 0;
    }
    assert_int_equal(lines, 4); /* unknown site, learning; G, overlap */
    c.caller++;
    EXPECT(&s, sim_coll(&s, 0, &c), PLAIN, NOT_LAST);
    assert_true(s.out.asks & MK_PAIR_ASK_LOG);
    mk_pair_count(s.p, &counts);
    assert_int_equal(counts.act[MK_PAIR_DO_OVERLAP], 9);
    assert_int_equal(counts.act[MK_PAIR_DO_G], 9);
    assert_int_equal(counts.act[MK_PAIR_DO_ORIGINAL], 1);
    assert_int_equal(counts.act[MK_PAIR_DO_PLAIN], 2);
    assert_int_equal(counts.act[MK_PAIR_DO_NCCL], SIM_W);
    assert_int_equal(counts.reason[MK_PAIR_LEARNING], 1);
    assert_int_equal(counts.reason[MK_PAIR_NOT_READY], SIM_W);
    sim_end(&s);
}

static void log_lines_have_words_for_all(void **state)
{
    WITH_RANK;
    struct mk_pair_event e = {.kind = MK_PAIR_EV_COLL};
    char text[256];
    const struct mk_pair_gemm g = W1;
    for (uint32_t i = 0; i < MK_PAIR_REASONS; i++) {
        assert_true(strlen(mk_pair_reason_name(i)) > 1 && !strchr(mk_pair_reason_name(i), ' '));
        assert_true(strlen(mk_pair_reason_advice(i)) > 4);
        for (uint32_t j = 0; j < i; j++)
            assert_string_not_equal(mk_pair_reason_name(i), mk_pair_reason_name(j));
    }
    assert_string_equal(mk_pair_reason_name(MK_PAIR_REASONS), "?");
    e.u.coll = sim_coll_of(0, &g);
    sim_coll(&s, 0, &e.u.coll);
    mk_pair_line(&e, &s.out, NULL, text, sizeof(text));
    assert_string_equal(text,
                        "fuse comm=0x1000 op=AllReduce n=131072 bf16 site=0xca11: PLAIN reason=no-gemm");
    LEARN(&s, &g, 0);
    PAIR(&s, &g, 0, G, OK, OVERLAP, OK);
    mk_pair_line(&e, &s.out, NULL, text, sizeof(text));
    assert_string_equal(text,
                        "fuse comm=0x1000 op=AllReduce n=131072 bf16 site=0xca11: OVERLAP proof=driver");
    sim_end(&s);
}

/* Events that cannot be change nothing. */
static void nonsense_is_refused(void **state)
{
    WITH_RANK;
    struct mk_pair_event e = {.kind = MK_PAIR_EV_NONE};
    const struct mk_pair_gemm g = W1;
    sim_refuses(&s, &e);
    e.kind = 1000;
    sim_refuses(&s, &e);
    e = sim_comm_event(MK_PAIR_EV_COMM_NEW, 3);
    e.u.comm.rank = 2;
    sim_refuses(&s, &e);
    e = sim_comm_event(MK_PAIR_EV_COMM_SWITCH, 3);
    sim_refuses(&s, &e); /* unknown */
    e = sim_comm_event(MK_PAIR_EV_COMM_OFF, 0);
    e.u.comm.reason = MK_PAIR_TIMEOUT;
    sim_refuses(&s, &e); /* it is agreed */
    e = sim_comm_event(MK_PAIR_EV_COMM_AGREED, 0);
    sim_refuses(&s, &e);
    e = sim_comm_event(MK_PAIR_EV_COMM_ERROR, 0);
    sim_refuses(&s, &e); /* 0 is no error */
    e = (struct mk_pair_event){.kind = MK_PAIR_EV_GEMM};
    e.u.gemm = g;
    e.u.gemm.layout = 3;
    sim_refuses(&s, &e);
    e = (struct mk_pair_event){.kind = MK_PAIR_EV_COLL};
    e.u.coll = sim_coll_of(0, &g);
    e.u.coll.function = MK_PAIR_FUNCTIONS;
    sim_refuses(&s, &e);
    const uint64_t number = sim_number(&s, 0);
    LEARN(&s, &g, 0);
    assert_int_equal(sim_number(&s, 0), number + 1);
    sim_end(&s);
}

int pair_rules_life(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tied_inside_a_hooked_call),
        cmocka_unit_test(tied_only_if_rank_and_size_agree),
        cmocka_unit_test(tied_neither_by_groups_nor_by_other_threads),
        cmocka_unit_test(tied_again_and_again),
        cmocka_unit_test(agreed_without_a_tie_or_a_witness_is_an_error),
        cmocka_unit_test(calls_before_the_tie_that_nobody_saw),
        cmocka_unit_test(a_witness_lost_before_the_agreement),
        cmocka_unit_test(unknown_and_nonblocking_communicators_are_nccls),
        cmocka_unit_test(setup_off_is_said),
        cmocka_unit_test(witness_has_to_see_w_in_a_row),
        cmocka_unit_test(witness_of_an_unhooked_call_aborts),
        cmocka_unit_test(witness_that_falls_silent_asks_for_off),
        cmocka_unit_test(witness_does_not_miss_refused_calls),
        cmocka_unit_test(errors_stick_to_the_communicator),
        cmocka_unit_test(a_k_that_cannot_be_launched_is_an_error),
        cmocka_unit_test(abort_of_the_user),
        cmocka_unit_test(log_once_a_site_and_reason),
        cmocka_unit_test(log_lines_have_words_for_all),
        cmocka_unit_test(nonsense_is_refused),
    };
    return cmocka_run_group_tests_name("pair rules of communicators", tests, NULL, NULL);
}
