/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Bootstrap over real sockets, ranks as threads: meeting, all-gathers, disagreement, aborts, ends. */
#include "boot_help.h"
#include "mk/err.h"
#include <netdb.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static int gather_ranks(struct help_rank *r)
{
    uint32_t mine[3] = {(uint32_t)r->rank, 77, (uint32_t)r->nranks}, all[3 * HELP_MAX];
    for (int round = 0; round < 3; round++) {
        mine[1] = (uint32_t)(100 * r->rank + round);
        int ret = mk_boot_allgather(r->b, mine, all, sizeof(mine));
        if (!ret)
            ret = mk_boot_barrier(r->b);
        if (ret)
            return ret;
        for (int i = 0; i < r->nranks; i++)
            if (all[3 * i] != (uint32_t)i || all[3 * i + 1] != (uint32_t)(100 * i + round))
                return mk_fail_quiet(MK_ERR_INTERNAL, "wrong data of rank %d", i);
    }
    return mk_boot_event(r->b, NULL) ? mk_fail_quiet(MK_ERR_INTERNAL, "an event") : 0;
}

static void three_ways(void **state)
{
    static const int sizes[] = {1, 2, 5, 16};
    static struct help_job j;
    (void)state;
    for (int way = 0; way < WAYS; way++) {
        for (int i = 0; i < 4; i++) {
            help_job_init(&j, (enum help_way)way, sizes[i], 20);
            j.body = gather_ranks;
            help_job_run(&j);
            help_all_return(&j, 0, "");
        }
    }
}

static void cycles(void **state)
{
    static struct help_job j;
    (void)state;
    help_job_init(&j, BY_ROOT, 2, 20);
    j.body = gather_ranks;
    for (int i = 0; i < 200; i++) {
        help_job_run(&j); /* the same address each time */
        help_all_return(&j, 0, "");
    }
    for (int i = 0; i < 50; i++) {
        help_job_init(&j, BY_ID, 3, 20);
        j.body = gather_ranks;
        help_job_run(&j);
        help_all_return(&j, 0, "");
    }
}

/* Ranks that make one communicator after the other at one address, each at its own pace. */
static int three_in_a_row(struct help_rank *r)
{
    int ret = gather_ranks(r);
    for (int i = 0; i < 10 && !ret; i++) {
        mk_boot_destroy(r->b);
        r->b = NULL;
        help_sleep_ms(r->rank * 3 * (i % 2));
        ret = help_init(r);
        if (!ret)
            ret = gather_ranks(r);
    }
    return ret;
}

static void own_pace(void **state)
{
    static struct help_job j;
    (void)state;
    help_job_init(&j, BY_ROOT, 4, 20);
    j.body = three_in_a_row;
    help_job_run(&j);
    help_all_return(&j, 0, "");
}

/* MK_ROOT as a name and as an IPv6 address; no MK_IFNAME. */
static void spellings(void **state)
{
    static const char *const hosts[] = {"localhost", "[::1]"};
    static struct help_job j;
    (void)state;
    for (int i = 0; i < 2; i++) {
        if (i && !help_has_ipv6()) {
            print_message("no IPv6 here: [::1] is left out\n");
            continue;
        }
        struct addrinfo *known = NULL;
        if (!i && getaddrinfo(hosts[i], NULL, NULL, &known)) { /* a bare system without /etc/hosts */
            print_message("the name localhost is not known here: it is left out\n");
            continue;
        }
        if (known)
            freeaddrinfo(known);
        help_job_init(&j, BY_ROOT, 3, 20);
        const int port = help_port();
        for (int r = 0; r < 3; r++)
            snprintf(j.rank[r].s.root, sizeof(j.rank[r].s.root), "%s:%d", hosts[i], port);
        j.body = gather_ranks;
        help_job_run(&j);
        help_all_return(&j, 0, "");
    }
    help_job_init(&j, BY_ROOT, 2, 1);
    snprintf(j.rank[1].s.root, sizeof(j.rank[1].s.root), "no.such.host.invalid:4711");
    help_job_run(&j);
    assert_int_equal(j.rank[1].ret, MK_ERR_TIMEOUT);
    assert_non_null(strstr(j.rank[1].error, "no.such.host.invalid"));
}

static int gather_large(struct help_rank *r)
{
    const size_t bytes = 1 << 20;
    uint8_t *mine = malloc(bytes), *all = malloc(bytes * (size_t)r->nranks);
    int ret = mine && all ? 0 : MK_ERR_NOMEM;
    for (size_t i = 0; i < bytes && !ret; i++)
        mine[i] = (uint8_t)(i * 7 + i / 4096 + (size_t)r->rank * 13);
    for (int round = 0; round < 3 && !ret; round++) {
        memset(all, 0xee, bytes * (size_t)r->nranks);
        ret = mk_boot_allgather(r->b, mine, all, bytes);
        for (size_t k = 0; k < bytes * (size_t)r->nranks && !ret; k++) {
            const size_t from = k / bytes, i = k % bytes;
            if (all[k] != (uint8_t)(i * 7 + i / 4096 + from * 13))
                ret = mk_fail_quiet(MK_ERR_INTERNAL, "wrong byte %zu of rank %zu", i, from);
        }
    }
    free(mine);
    free(all);
    return ret;
}

static void large(void **state)
{
    static struct help_job j;
    (void)state;
    help_job_init(&j, BY_ID, 5, 30);
    j.body = gather_large;
    help_job_run(&j);
    help_all_return(&j, 0, "");
}

static int gather_unequal(struct help_rank *r)
{
    char mine[64] = {0}, all[64 * HELP_MAX];
    const int ret = mk_boot_allgather(r->b, mine, all, r->rank == 2 ? 24 : 16);
    if (ret != MK_ERR_MISMATCH || !strstr(mk_last_error(), "disagree"))
        return mk_fail_quiet(MK_ERR_INTERNAL, "unequal bytes: %d %s", ret, mk_last_error());
    help_sleep_ms(r->rank == 0 ? 200 : 0);
    if (mk_boot_allgather(r->b, mine, all, (1 << 20) + 1) != MK_ERR_INVALID)
        return mk_fail_quiet(MK_ERR_INTERNAL, "too many bytes pass");
    return gather_ranks(r); /* the job is as good as before */
}

static void unequal(void **state)
{
    static struct help_job j;
    (void)state;
    help_job_init(&j, BY_ROOT, 4, 10);
    j.rank[3].delay_ms = 0;
    j.body = gather_unequal;
    help_job_run(&j);
    help_all_return(&j, 0, "");
}

static void late(void **state)
{
    static struct help_job j;
    (void)state;
    for (int way = 0; way < 2; way++) {
        help_job_init(&j, (enum help_way)way, 3, 20);
        j.rank[way].delay_ms = 2000; /* rank 0 is the root the first time */
        j.body = gather_ranks;
        help_job_run(&j);
        help_all_return(&j, 0, "");
    }
}

static void never_comes(void **state)
{
    static struct help_job j;
    (void)state;
    for (int way = 0; way < 2; way++) {
        help_job_init(&j, (enum help_way)way, 6, 1);
        j.rank[2].skip = j.rank[4].skip = true;
        help_job_run(&j);
        help_all_return(&j, MK_ERR_TIMEOUT, "missing: rank 2, rank 4");
    }
    /* somebody who comes then hears why; at an address that this process can have again */
    help_job_init(&j, BY_ROOT, 3, 1);
    j.rank[2].skip = true;
    help_job_run(&j);
    help_all_return(&j, MK_ERR_TIMEOUT, "missing: rank 2");
    assert_int_equal(mk_boot_init_root(&j.rank[2].s, 3, 2, &j.rank[2].b), MK_ERR_TIMEOUT);
    assert_non_null(strstr(mk_last_error(), "missing: rank 2"));
    j.rank[2].skip = false;
    for (int r = 0; r < 3; r++)
        j.rank[r].s.timeout = 10;
    j.rank[1].delay_ms = j.rank[2].delay_ms = 300;
    j.body = gather_ranks;
    help_job_run(&j);
    help_all_return(&j, 0, "");
    /* no root at all */
    help_job_init(&j, BY_ROOT, 3, 0.5);
    j.rank[0].skip = true;
    help_job_run(&j);
    help_all_return(&j, MK_ERR_TIMEOUT, "found no root");
}

static void world_size(void **state)
{
    static struct help_job j;
    (void)state;
    for (int way = 0; way < WAYS; way++) {
        help_job_init(&j, (enum help_way)way, 4, 20);
        j.rank[3].nranks = 5;
        j.rank[2].delay_ms = way == BY_GATHER ? 0 : 700; /* comes when all is over */
        help_job_run(&j);
        help_all_return(&j, MK_ERR_MISMATCH, "number of ranks");
    }
}

static int abort_told(struct help_rank *r)
{
    struct mk_boot_event ev;
    char byte = 0, all[HELP_MAX];
    int ret = mk_boot_barrier(r->b);
    if (ret)
        return ret;
    if (r->rank == 1) {
        help_sleep_ms(50);
        mk_boot_abort(r->b, MK_ERR_NET, "the cable is cut");
        mk_boot_abort(r->b, MK_ERR_CUDA, "second word");
    } else {
        ret = mk_boot_allgather(r->b, &byte, all, 1);
        if (ret != MK_ERR_NET || !strstr(mk_last_error(), "the cable is cut"))
            return mk_fail_quiet(MK_ERR_INTERNAL, "all-gather gave %d %s", ret, mk_last_error());
    }
    if (!help_wait_event(r->b, &ev, 5000))
        return mk_fail_quiet(MK_ERR_INTERNAL, "no event");
    if (ev.code != MK_ERR_NET || ev.rank != 1 || strcmp(ev.text, "the cable is cut"))
        return mk_fail_quiet(MK_ERR_INTERNAL, "event %d of rank %d: %s", ev.code, ev.rank, ev.text);
    return mk_boot_barrier(r->b) == MK_ERR_NET ? 0
                                               : mk_fail_quiet(MK_ERR_INTERNAL, "barrier after the event");
}

static void aborts(void **state)
{
    static struct help_job j;
    (void)state;
    help_job_init(&j, BY_ID, 4, 10);
    j.body = abort_told;
    help_job_run(&j);
    help_all_return(&j, 0, "");
}

static int calls;
static void count(void *ctx, const struct mk_boot_event *ev)
{
    (void)ctx;
    if (ev->code == MK_ERR_ABORTED)
        __atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED);
}

static int callback_once(struct help_rank *r)
{
    if (r->rank != 2)
        mk_boot_on_event(r->b, count, NULL);
    int ret = mk_boot_barrier(r->b);
    if (ret)
        return ret;
    if (r->rank == 0)
        mk_boot_abort(r->b, MK_ERR_ABORTED, "enough");
    if (r->rank == 3)
        mk_boot_abort(r->b, MK_ERR_ABORTED, "enough of this");
    if (!help_wait_event(r->b, NULL, 5000))
        return mk_fail_quiet(MK_ERR_INTERNAL, "no event");
    mk_boot_on_event(r->b, count, NULL); /* rank 2: at once; the others: not a second time */
    return 0;
}

static void callbacks(void **state)
{
    static struct help_job j;
    (void)state;
    help_job_init(&j, BY_ROOT, 4, 10);
    j.body = callback_once;
    help_job_run(&j); /* destroy joins the threads: no call comes later */
    help_all_return(&j, 0, "");
    assert_int_equal(__atomic_load_n(&calls, __ATOMIC_RELAXED), 4);
}

static void good_byes(void **state)
{
    static struct help_job j;
    struct mk_boot_event ev;
    char text[64];
    (void)state;
    for (int first = 0; first < 3; first++) {
        help_job_init(&j, BY_ROOT, 3, 5);
        j.keep = true;
        help_job_run(&j);
        help_all_return(&j, 0, "");
        const int second = (first + 1) % 3, third = (first + 2) % 3;
        assert_int_equal(mk_boot_has_left(j.rank[second].b, first), 0);
        mk_boot_destroy(j.rank[first].b);
        assert_true(help_wait_left(j.rank[second].b, first, 5000));
        assert_true(help_wait_left(j.rank[third].b, first, 5000));
        assert_int_equal(mk_boot_barrier(j.rank[third].b), MK_ERR_PEER);
        snprintf(text, sizeof(text), "rank %d has left", first);
        assert_non_null(strstr(mk_last_error(), text));
        mk_boot_destroy(j.rank[second].b);
        assert_true(help_wait_left(j.rank[third].b, second, 5000));
        assert_int_equal(mk_boot_event(j.rank[third].b, &ev), 0);
        assert_int_equal(mk_boot_has_left(j.rank[third].b, third), 0);
        assert_int_equal(mk_boot_has_left(j.rank[third].b, 3), 0);
        mk_boot_destroy(j.rank[third].b);
    }
}

static int last_comes_late(struct help_rank *r)
{
    if (r->rank == 1)
        return mk_boot_barrier(r->b) == MK_ERR_TIMEOUT ? 0 : MK_ERR_INTERNAL;
    help_sleep_ms(1500);
    return mk_boot_barrier(r->b) == MK_ERR_PEER ? 0 : MK_ERR_INTERNAL; /* rank 1 gave up and left */
}

static void gather_times_out(void **state)
{
    static struct help_job j;
    (void)state;
    help_job_init(&j, BY_ID, 2, 10);
    j.rank[1].s.timeout = 1;
    j.body = last_comes_late;
    help_job_run(&j);
    help_all_return(&j, 0, "");
}

static void arguments(void **state)
{
    struct mk_settings s;
    struct mk_boot *b = NULL;
    mk_unique_id_t id;
    struct mk_boot_event ev;
    int in = 5, out = 0;
    (void)state;
    help_settings(&s, 0, 1);
    memset(&id, 7, sizeof(id));
    assert_int_equal(mk_boot_init_id(&s, &id, 2, 0, &b), MK_ERR_INVALID);
    assert_int_equal(mk_boot_init_id(&s, NULL, 2, 0, &b), MK_ERR_INVALID);
    assert_int_equal(mk_boot_init_root(&s, 2, 0, &b), MK_ERR_INVALID);
    assert_non_null(strstr(mk_last_error(), "MK_ROOT"));
    assert_int_equal(mk_boot_init_root(&s, 2, 2, &b), MK_ERR_INVALID);
    assert_int_equal(mk_boot_init_root(&s, 0, 0, &b), MK_ERR_INVALID);
    assert_int_equal(mk_boot_init_root(&s, 2, -1, &b), MK_ERR_INVALID);
    snprintf(s.root, sizeof(s.root), "192.0.2.77:4711");
    assert_int_equal(mk_boot_init_root(&s, 2, 0, &b), MK_ERR_INVALID);
    assert_non_null(strstr(mk_last_error(), "not an address of this machine"));
    snprintf(s.ifname, sizeof(s.ifname), "=nosuch0");
    assert_int_equal(mk_boot_unique_id(&s, &id), MK_ERR_INVALID);
    assert_null(b);
    mk_boot_destroy(NULL);
    /* one rank needs no network */
    s.root[0] = 0;
    assert_int_equal(mk_boot_init_root(&s, 1, 0, &b), 0);
    assert_int_equal(mk_boot_allgather(b, &in, &out, sizeof(in)), 0);
    assert_int_equal(out, 5);
    mk_boot_abort(b, MK_ERR_ABORTED, "by hand");
    assert_int_equal(mk_boot_event(b, &ev), 1);
    assert_int_equal(ev.code, MK_ERR_ABORTED);
    mk_boot_destroy(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(three_ways),
        cmocka_unit_test(cycles),
        cmocka_unit_test(own_pace),
        cmocka_unit_test(spellings),
        cmocka_unit_test(large),
        cmocka_unit_test(unequal),
        cmocka_unit_test(late),
        cmocka_unit_test(never_comes),
        cmocka_unit_test(world_size),
        cmocka_unit_test(aborts),
        cmocka_unit_test(callbacks),
        cmocka_unit_test(good_byes),
        cmocka_unit_test(gather_times_out),
        cmocka_unit_test(arguments),
    };
    help_log_catch();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
