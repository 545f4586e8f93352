/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Memory of the pair recogniser: none is allocated an event once its tables have grown, and where there is none, what all
 * ranks share still chooses between K and NCCL. Only where calloc and realloc lead here (the linker's --wrap). */
#include "tests/unit/pair_help.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *p, size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *p, size_t bytes);

static int allocations, failing = -1;

void *__wrap_calloc(size_t n, size_t bytes)
{
    return allocations++ == failing ? NULL : __real_calloc(n, bytes);
}
void *__wrap_realloc(void *p, size_t bytes)
{
    return allocations++ == failing ? NULL : __real_realloc(p, bytes);
}

enum { STREAMS = 4, SITES = 24, ROUNDS = 3 };

/* Steps and forgives: where there is no memory a step may fail. */
static uint32_t forgiving(struct sim *s, struct mk_pair_event *e)
{
    e->thread = s->thread;
    const int ret = mk_pair_step(s->p, e, &s->out);
    assert_true(!ret || ret == MK_ERR_NOMEM || ret == MK_ERR_INVALID);
    return ret ? MK_PAIR_ACTS : s->out.act;
}

/* A program of its own: pairs on several streams, groups, a new communicator in between. acts: what became of the
 * collectives. */
static int program(struct sim *s, uint8_t *acts)
{
    int n = 0;
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < SITES; i++) {
            const struct mk_pair_gemm g = sim_gemm_of((uint64_t)i);
            struct mk_pair_event e = {.kind = MK_PAIR_EV_GEMM, .at = sim_at(s, i % STREAMS)},
                                 group = {.kind = MK_PAIR_EV_GROUP_START};
            s->thread = 1 + (uint64_t)i;
            e.u.gemm = g;
            forgiving(s, &e);
            e.kind = MK_PAIR_EV_GEMM_DONE;
            memset(&e.u, 0, sizeof(e.u));
            forgiving(s, &e);
            const bool grouped = i % 3 == 0 && forgiving(s, &group) != MK_PAIR_ACTS;
            e.kind = MK_PAIR_EV_COLL;
            e.u.coll = sim_coll_of(0, &g);
            e.u.coll.sum = i % 5 != 0;
            uint32_t act = forgiving(s, &e);
            if (grouped) {
                group.kind = MK_PAIR_EV_GROUP_END;
                forgiving(s, &group);
                e.kind = MK_PAIR_EV_TAKE;
                act = act == MK_PAIR_DO_HOLD ? forgiving(s, &e) : act;
            }
            acts[n++] = act == MK_PAIR_DO_OVERLAP ? MK_PAIR_DO_PLAIN : (uint8_t)act;
            e.kind = MK_PAIR_EV_COLL_DONE;
            memset(&e.u, 0, sizeof(e.u));
            e.u.done.comm = sim_handle(0);
            e.u.done.act = act == MK_PAIR_DO_NCCL ? MK_PAIR_DO_NCCL : MK_PAIR_DO_PLAIN;
            forgiving(s, &e);
        }
    return n;
}

static void each_allocation_fails_once(void **state)
{
    uint8_t want[ROUNDS * SITES], acts[ROUNDS * SITES];
    int missed = 0, failed = 0;
    (void)state;
    for (int fail = -1;; fail++) {
        struct sim s;
        bool dead = false;
        sim_start(&s, NULL);
        sim_fused(&s, 0);
        allocations = 0;
        failing = fail;
        const int n = program(&s, fail < 0 ? want : acts);
        failing = -1;
        sim_end(&s);
        if (fail < 0)
            continue;
        if (fail >= allocations)
            break; /* all had their turn */
        missed++;
        for (int i = 0; i < n; i++) {
            dead |= acts[i] == MK_PAIR_DO_FAIL;
            failed += acts[i] == MK_PAIR_DO_FAIL;
            assert_true(dead ? acts[i] == MK_PAIR_DO_FAIL : acts[i] == want[i]);
        }
    }
    assert_true(missed > 8 && failed > 0); /* a held call that cannot be kept is an error */
}

static void nothing_is_allocated_in_the_long_run(void **state)
{
    uint8_t acts[ROUNDS * SITES];
    WITH_RANK;
    program(&s, acts);
    allocations = 0;
    for (int i = 0; i < 200; i++)
        program(&s, acts);
    assert_int_equal(allocations, 0);
    sim_end(&s);
}

int pair_memory(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_allocation_fails_once),
                                       cmocka_unit_test(nothing_is_allocated_in_the_long_run)};
    return cmocka_run_group_tests_name("pair memory", tests, NULL, NULL);
}
