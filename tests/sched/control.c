/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The controller (mk/dev/control.h) in simulated time: it always ends, starves nobody, settles, and loses little against
 * the split that a clairvoyant would have fixed for that very trace. Broken ones are caught.
 *
 *   test_sched_control [TRACES]      1000; the slow form has 10,000 */
#include "control_sim.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
static uint32_t ntraces = 200;
#else
static uint32_t ntraces = 1000;
#endif
#define MUTANT_TRACES 200
#define FOLLOWED 30
static uint64_t *best; /* [trace]: the shortest time of all fixed targets */

struct judged {
    uint32_t stuck, starved;
    double median, mean; /* of the regret, second launch */
    double first_median, first_mean;
};

static const struct sim_policy real = {mk_ctl_step, 0, 0, mk_ctl_act};

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double mean(const double *v, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += v[i];
    return sum / n;
}

/* The shortest time of all fixed targets. */
static uint64_t best_of(const struct sim_trace *t)
{
    static struct sim_result r;
    uint64_t time = UINT64_MAX;
    for (uint32_t n = 0; n < t->units && n <= t->ceiling; n++) {
        const struct sim_policy fixed = {NULL, n, 0, mk_ctl_act};
        struct mk_ctl c;
        memset(&c, 0, sizeof(c));
        sim_run(t, &fixed, &c, &r);
        assert_true(r.ended); /* whatever the target is */
        time = r.time < time ? r.time : time;
    }
    return time;
}

static void find_best(void)
{
    struct sim_trace t;
    best = calloc(ntraces, sizeof(*best));
    for (uint32_t i = 0; i < ntraces; i++) {
        sim_make(&t, i + 1, false);
        best[i] = best_of(&t);
        sim_free(&t);
    }
}

/* Two launches of each trace, the second with the state of the first. */
static void judge(const struct sim_policy *p, uint32_t n, struct judged *out)
{
    static struct sim_result r;
    double *regret[2] = {calloc(n, sizeof(double)), calloc(n, sizeof(double))};
    struct sim_trace t;
    memset(out, 0, sizeof(*out));
    for (uint32_t i = 0; i < n; i++) {
        struct mk_ctl c;
        memset(&c, 0, sizeof(c));
        sim_make(&t, i + 1, false);
        for (int launch = 0; launch < 2; launch++) {
            sim_run(&t, p, &c, &r);
            out->stuck += !r.ended;
            out->starved += r.starved > 2 * (r.longest + t.patience);
            regret[launch][i] = (double)r.time / (double)best[i] - 1;
        }
        sim_free(&t);
    }
    qsort(regret[0], n, sizeof(double), by_size);
    qsort(regret[1], n, sizeof(double), by_size);
    out->first_median = regret[0][n / 2];
    out->first_mean = mean(regret[0], n);
    out->median = regret[1][n / 2];
    out->mean = mean(regret[1], n);
    printf("  regret of the first launch: median %.4f mean %.4f, nine of ten below %.4f; of the second: %.4f "
           "%.4f "
           "%.4f; stuck %u, starved %u\n",
           out->first_median, out->first_mean, regret[0][n * 9 / 10], out->median, out->mean,
           regret[1][n * 9 / 10], out->stuck, out->starved);
    free(regret[0]);
    free(regret[1]);
}

/* The mean tells a good controller from a fixed target: many traces end at the same time whatever the target is. */
static bool good(const struct judged *j)
{
    return !j->stuck && !j->starved && j->first_median <= 0.02 && j->median <= 0.02 &&
           j->first_mean <= 0.04 && j->mean <= 0.04;
}

static void random_traces(void **state)
{
    (void)state;
    struct judged j;
    find_best();
    judge(&real, ntraces, &j);
    assert_true(good(&j));
}

/* Fewer units than the launch has ever get to run: one resident is enough. */
static void residency(void **state)
{
    (void)state;
    static struct sim_result r;
    struct sim_trace t;
    for (uint32_t i = 0; i < 300; i++) {
        struct mk_ctl c;
        memset(&c, 0, sizeof(c));
        sim_make(&t, i + 1, false);
        t.resident = 1 + i / 2 % 3;
        t.resident = t.resident < t.units ? t.resident : t.units;
        sim_run(&t, &real, &c, &r);
        if (!r.ended)
            fail_msg("trace %u with %u of %u units does not end", i + 1, t.resident, t.units);
        sim_free(&t);
    }
}

/* After 20 boundaries a unit, until little is left: few moves, and hardly any back and forth. Returns how many traces
 * do not keep to it, of *judged. */
static uint32_t restless(const struct sim_policy *p, uint32_t traces, uint32_t *judged)
{
    static struct sim_result r;
    struct sim_trace t;
    uint32_t bad = 0;
    *judged = 0;
    for (uint32_t i = 0; i < traces; i++) {
        struct mk_ctl c;
        memset(&c, 0, sizeof(c));
        sim_make(&t, i + 1, true);
        sim_run(&t, p, &c, &r);
        assert_true(r.npoints < SIM_POINTS);
        uint32_t steps = 0, moves = 0, turns = 0, was = 0;
        int way = 0;
        for (uint32_t k = 0; k < r.npoints; k++) {
            const uint32_t now = r.point[k].target;
            if (r.point[k].boundary < 20 * t.units || r.point[k].left < 4 * t.units)
                continue;
            if (steps++ && now != was) {
                const int to = now > was ? 1 : -1;
                moves++;
                turns += way && to != way;
                way = to;
            }
            was = now;
        }
        *judged += steps > 0;
        bad += moves > 2 + steps / 6 || turns > 1 + steps / 12;
        sim_free(&t);
    }
    return bad;
}

static void settles(void **state)
{
    (void)state;
    uint32_t judged;
    const uint32_t bad = restless(&real, 400, &judged);
    printf("  %u of %u steady traces do not settle\n", bad, judged);
    assert_true(judged >= 300);
    assert_true(bad <= judged / 50);
}

/* What changes between two launches of a job: a slower link, a peer that comes late, a rival that takes a quarter of the
 * units, tiles that take twice as long. */
static void change(struct sim_trace *t, int what)
{
    for (uint32_t i = 0; i < t->chunks && what == 0; i++)
        t->link[i] *= 2;
    if (what == 1)
        t->peer_late = 5000000;
    if (what == 2)
        t->resident = t->units - t->units / 4;
    for (uint32_t i = 0; i < t->chunks * t->per && what == 3; i++)
        t->tile[i] *= 2;
}

/* Three launches after a change the target is right again, and over many launches time does not swing. */
static void follows(void **state)
{
    (void)state;
    static struct sim_result r;
    static double regret[4][FOLLOWED];
    uint32_t swings = 0;
    for (uint32_t i = 0; i < FOLLOWED; i++)
        for (int what = 0; what < 4; what++) {
            struct sim_trace t;
            struct mk_ctl c;
            memset(&c, 0, sizeof(c));
            sim_make(&t, i + 1000, true);
            for (int launch = 0; launch < 5; launch++)
                sim_run(&t, &real, &c, &r);
            change(&t, what);
            for (int launch = 0; launch < 3; launch++)
                sim_run(&t, &real, &c, &r);
            regret[what][i] = (double)r.time / (double)best_of(&t) - 1;
            uint64_t least = UINT64_MAX, most = 0;
            for (int launch = 0; launch < 20; launch++) {
                sim_run(&t, &real, &c, &r);
                least = r.time < least ? r.time : least;
                most = r.time > most ? r.time : most;
            }
            swings += (double)most > 1.1 * (double)least;
            sim_free(&t);
        }
    for (int what = 0; what < 4; what++) {
        qsort(regret[what], FOLLOWED, sizeof(double), by_size);
        printf("  change %d: regret median %.4f, nine of ten below %.4f\n", what, regret[what][FOLLOWED / 2],
               regret[what][FOLLOWED * 9 / 10]);
    }
    printf("  %u of %d swing by more than a tenth\n", swings, 4 * FOLLOWED);
    for (int what = 0; what < 4; what++) {
        assert_true(regret[what][FOLLOWED / 2] <= 0.05);
        assert_true(regret[what][FOLLOWED * 9 / 10] <= 0.10);
    }
    assert_true(swings <= FOLLOWED / 5);
}

/* ---- the function alone ---- */

/* A rank whose link takes what `enough` units bring, and whose units wait for it inside their tasks. `windows` of them;
 * returns how many of the last `last` had a target of `low` to `high`. */
static int feed(struct mk_ctl *c, uint32_t enough, int windows, int last, uint32_t low, uint32_t high)
{
    const struct mk_ctl_conf f = {64, 32, 4, 0};
    struct mk_ctl_sample s;
    int within = 0;
    memset(&s, 0, sizeof(s));
    s.left[0] = s.left[1] = 100000;
    mk_ctl_begin(&f, c, 0);
    for (int i = 0; i < windows; i++) {
        const uint32_t n = c->target, working = n < enough ? n : enough;
        int longer = 0;
        do {
            s.now += 100000;
            s.busy[0] += (64 - n) * 100000ull;
            s.busy[1] += n * 100000ull;
            s.done[0] += (64 - n) * 5;
            s.done[1] += working * 10;
            s.bytes += working * 10 * 262144ull;
            assert_true(longer++ < 4);
        } while (!mk_ctl_due(&f, c, &s));
        mk_ctl_step(&f, c, &s);
        within += i >= windows - last && c->target >= low && c->target <= high;
    }
    return within;
}

/* The smallest number of units at which completed bytes stop rising is the cap; a link that changes is followed. */
static void link_is_full(void **state)
{
    (void)state;
    struct mk_ctl c;
    memset(&c, 0, sizeof(c));
    /* most of the time: in the rest others are tried */
    assert_in_range(feed(&c, 8, 200, 100, 6, 10), 75, 100);
    assert_in_range(feed(&c, 16, 200, 100, 13, 20), 75, 100);
    assert_in_range(feed(&c, 5, 300, 100, 5, 5), 75, 100);
    /* never full: the formula, 64 x 1 of 3; more are tried after twice 256 windows at the latest */
    assert_in_range(feed(&c, 64, 700, 100, 20, 23), 75, 100);
}

/* From one unit up, where a try is one unit and that is less than hysteresis: within a launch the number is found, left
 * for a try and found again, from nothing known and after a launch over a link that took twice or half as much. */
static void link_of_any_width(void **state)
{
    (void)state;
    for (uint32_t enough = 1; enough <= 16; enough++)
        for (int before = 0; before < 3; before++) {
            struct mk_ctl c;
            memset(&c, 0, sizeof(c));
            if (before)
                feed(&c, before == 1 ? 2 * enough : (enough + 1) / 2, 200, 0, 0, 0);
            const int there = feed(&c, enough, 900, 200, enough, enough + enough / 4);
            if (there < 180)
                fail_msg("where %u are enough: %d of 200 windows there (before: %d)", enough, there, before);
        }
}

static void any_conf(struct mk_ctl_conf *f, uint64_t *seed)
{
    f->units = 1 + sim_random(seed, sim_random(seed, 2) ? 4096 : 3);
    f->ceiling = 1 + sim_random(seed, 300);
    f->start = sim_random(seed, 500);
    f->band = sim_random(seed, 8);
}
static void any_sample(struct mk_ctl_sample *s, uint64_t *seed)
{
    uint32_t word[sizeof(*s) / 4];
    for (size_t w = 0; w < sizeof(*s) / 4; w++) /* of all sizes */
        word[w] = sim_random(seed, UINT32_MAX) >> sim_random(seed, 32);
    memcpy(s, word, sizeof(*s));
    s->left[0] >>= 2, s->left[1] >>= 2;
}
/* Any samples, launches of any size with one state: the target stays within its bounds, and moves by a stride at most
 * while both kinds of work are left. */
static void any_samples(void **state)
{
    (void)state;
    uint64_t seed = 1;
    for (int i = 0; i < 5000; i++) {
        struct mk_ctl_conf f;
        struct mk_ctl c;
        struct mk_ctl_sample s;
        memset(&c, 0, sizeof(c));
        for (int k = 0; k < 60; k++) {
            if (k % 15 == 0) {
                any_conf(&f, &seed);
                mk_ctl_begin(&f, &c, seed);
            }
            any_sample(&s, &seed);
            if (k % 30 > 15) /* busy throughout, so that rates are compared */
                s.off = 0, s.left[0] |= 1, s.left[1] |= 1;
            if (i % 4)
                s.units = f.units;
            const uint32_t was = c.target, most = mk_ctl_min(f.ceiling, f.units);
            const int32_t begun = c.begun;
            const uint32_t now = mk_ctl_step(&f, &c, &s);
            assert_true(now <= most && now == c.target);
            assert_true(now < f.units || !s.left[0]);
            if (i % 4 && begun && s.left[0] && s.left[1] && was < most && was)
                assert_true((now > was ? now - was : was - now) <= mk_ctl_max(f.units / 8, 1));
            assert_true(s.left[1] || !now);
        }
    }
}

/* Nothing before the first band; then the tuner's start, or, once costs are known, the formula. */
static void starts(void **state)
{
    (void)state;
    const struct mk_ctl_conf f = {100, 50, 17, 6};
    struct mk_ctl c;
    struct mk_ctl_sample s;
    memset(&c, 0, sizeof(c));
    memset(&s, 0, sizeof(s));
    mk_ctl_begin(&f, &c, 0);
    assert_int_equal(c.target, 0);
    s.left[0] = 994, s.left[1] = 1000, s.done[0] = 5, s.busy[0] = 5 * 3000, s.now = 3000;
    assert_false(mk_ctl_due(&f, &c, &s));
    assert_int_equal(mk_ctl_step(&f, &c, &s), 0);
    s.done[0] = 6, s.busy[0] = 6 * 3000;
    assert_true(mk_ctl_due(&f, &c, &s));
    assert_int_equal(mk_ctl_step(&f, &c, &s), 17);
    s.left[0] = 0, s.done[0] = 1000, s.busy[0] = 1000 * 3000;
    s.left[1] = 500, s.done[1] = 500, s.busy[1] = 500 * 1000;
    assert_true(mk_ctl_due(&f, &c, &s));
    assert_int_equal(mk_ctl_step(&f, &c, &s), 50); /* the ceiling: no tile is left */
    s.left[1] = 0, s.done[1] = 1000, s.busy[1] = 1000 * 1000;
    assert_true(mk_ctl_due(&f, &c, &s));
    assert_int_equal(mk_ctl_step(&f, &c, &s), 0);
    memset(&s, 0, sizeof(s));
    mk_ctl_begin(&f, &c, 0);
    s.left[0] = 994, s.left[1] = 1000, s.done[0] = 6, s.busy[0] = 6 * 3000, s.now = 3000;
    assert_int_equal(mk_ctl_step(&f, &c, &s), 25); /* 1000 x 1000 of 1000 x 1000 + 994 x 3000 */
    const uint32_t none[2] = {0, 0}, left[2] = {300, 100}, cost[2] = {10, 10};
    assert_int_equal(mk_ctl_balance(100, none, cost), 0);
    assert_int_equal(mk_ctl_balance(100, left, cost), 25 * 256);
    assert_int_equal(mk_ctl_balance(100, left, none), 25 * 256);
}

/* A sample from before the last step is never due, whichever count is behind and whatever is left. */
static void stale_samples(void **state)
{
    (void)state;
    const struct mk_ctl_conf f = {4, 2, 1, 0};
    const struct mk_ctl_sample last = {1000000, {12000, 6000}, 0, 0, {8, 8}, {100, 100}, 4};
    struct mk_ctl c;
    memset(&c, 0, sizeof(c));
    mk_ctl_begin(&f, &c, 0);
    mk_ctl_step(&f, &c, &last);
    for (int kind = 0; kind < 3; kind++) {
        struct mk_ctl_sample s = last;
        s.now += 1000000;
        s.done[0] += 4;
        assert_true(mk_ctl_due(&f, &c, &s));
        s.done[0] -= kind == 0 ? 6 : 0;
        s.done[1] -= kind == 1 ? 6 : 0;
        s.now -= kind == 2 ? 1000001 : 0;
        assert_false(mk_ctl_due(&f, &c, &s));
        s.left[0] = 0; /* all units would communicate */
        assert_false(mk_ctl_due(&f, &c, &s));
        s.left[0] = 100, s.left[1] = 0;
        assert_false(mk_ctl_due(&f, &c, &s));
    }
}

/* What a unit does is a table. */
static void acts(void **state)
{
    (void)state;
    static const int8_t want[2][3][3][2] = {
        /* tile: none left, not ready, ready; comm: the same; impatient, patient */
        {{{4, 4}, {3, 3}, {1, 1}}, {{2, 2}, {2, 2}, {1, 1}}, {{0, 0}, {0, 0}, {0, 0}}},
        {{{4, 4}, {3, 3}, {1, 1}}, {{2, 2}, {2, 2}, {1, 1}}, {{0, 0}, {2, 0}, {1, 1}}},
    };
    for (int role = 0; role < 2; role++)
        for (int i = 0; i < 18; i++)
            assert_int_equal(mk_ctl_act(role, i / 6 - 1, i / 2 % 3 - 1, i % 2),
                             want[role][i / 6][i / 2 % 3][i % 2]);
    assert_int_equal(mk_ctl_role(3, 2), MK_CTL_COMM);
    assert_int_equal(mk_ctl_role(3, 3), MK_CTL_COMPUTE);
}

/* ---- broken on purpose ---- */

static uint32_t takes_costs_for_each_other(const struct mk_ctl_conf *f, struct mk_ctl *c,
                                           const struct mk_ctl_sample *s)
{
    struct mk_ctl_sample x = *s;
    x.busy[0] = s->busy[1], x.busy[1] = s->busy[0];
    return mk_ctl_step(f, c, &x);
}
static uint32_t never_moves(const struct mk_ctl_conf *f, struct mk_ctl *c, const struct mk_ctl_sample *s)
{
    const uint32_t was = c->target;
    mk_ctl_step(f, c, s);
    return c->target = was ? was : mk_ctl_min(1, mk_ctl_most(f, f->units));
}
static uint32_t starves_communication(const struct mk_ctl_conf *f, struct mk_ctl *c,
                                      const struct mk_ctl_sample *s)
{
    mk_ctl_step(f, c, s);
    return c->target = s->left[0] ? 0 : c->target;
}
static uint32_t swings(const struct mk_ctl_conf *f, struct mk_ctl *c, const struct mk_ctl_sample *s)
{
    const uint32_t was = c->target;
    mk_ctl_step(f, c, s);
    return c->target = was > 1 ? 1 : mk_ctl_most(f, f->units);
}
static uint32_t counts_waits(const struct mk_ctl_conf *f, struct mk_ctl *c, const struct mk_ctl_sample *s)
{
    struct mk_ctl_sample x = *s;
    x.busy[1] += 20 * s->off, x.off = 0;
    return mk_ctl_step(f, c, &x);
}
/* Units that keep to their role whatever is ready. */
static int never_helps(int role, int tile, int comm, bool patient)
{
    (void)patient;
    const int own = role == MK_CTL_COMPUTE ? tile : comm;
    return own > 0 ? role : own < 0 && tile < 0 && comm < 0 ? MK_CTL_LEAVE : MK_CTL_WAIT;
}
/* The last ones leave although communication is to come. */
static int leaves_early(int role, int tile, int comm, bool patient)
{
    const int what = mk_ctl_act(role, tile, comm, patient);
    return what == MK_CTL_STAY ? MK_CTL_LEAVE : what;
}

static void broken_ones_are_caught(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        struct sim_policy p;
    } mutants[] = {
        {"takes costs for each other", {takes_costs_for_each_other, 0, 0, mk_ctl_act}},
        {"never moves", {never_moves, 0, 0, mk_ctl_act}},
        {"starves communication", {starves_communication, 0, 0, mk_ctl_act}},
        {"swings", {swings, 0, 0, mk_ctl_act}},
        {"counts waits", {counts_waits, 0, 0, mk_ctl_act}},
        {"never helps", {mk_ctl_step, 0, 0, never_helps}},
        {"leaves early", {mk_ctl_step, 0, 0, leaves_early}},
    };
    const uint32_t n = ntraces < MUTANT_TRACES ? ntraces : MUTANT_TRACES;
    struct judged j;
    judge(&real, n, &j);
    assert_true(good(&j)); /* so few traces are enough for a fair judgement */
    for (size_t i = 0; i < sizeof(mutants) / sizeof(mutants[0]); i++) {
        uint32_t judged;
        printf("  %s:\n", mutants[i].name);
        judge(&mutants[i].p, n, &j);
        const uint32_t bad = restless(&mutants[i].p, 60, &judged);
        printf("  %u of %u do not settle\n", bad, judged);
        if (good(&j) && bad <= judged / 50)
            fail_msg("%s: not caught", mutants[i].name);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_traces),
        cmocka_unit_test(residency),
        cmocka_unit_test(settles),
        cmocka_unit_test(follows),
        cmocka_unit_test(link_is_full),
        cmocka_unit_test(link_of_any_width),
        cmocka_unit_test(any_samples),
        cmocka_unit_test(starts),
        cmocka_unit_test(stale_samples),
        cmocka_unit_test(acts),
        cmocka_unit_test(broken_ones_are_caught),
    };
    if (argc > 1)
        ntraces = (uint32_t)strtoul(argv[1], NULL, 10);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(best);
    return failed;
}
