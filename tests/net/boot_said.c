/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Messages of the bootstrap over real sockets, ranks as threads: all of them, in order, from everybody to everybody. */
#include "boot_help.h"
#include "mk/err.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

static int barriers(struct help_rank *r)
{
    const int ret = mk_boot_barrier(r->b);
    return ret ? ret : mk_boot_barrier(r->b);
}

enum { SAYINGS = 200 };
struct ear {
    struct mk_boot *b;
    int heard[HELP_MAX], wrong, answered;
};

/* {number, sender, all, answer} and a tail of its length: in order from each sender; every tenth is answered. */
static void hear(void *ctx, int from, const void *bytes, size_t n)
{
    struct ear *e = ctx;
    uint32_t m[MK_BOOT_MAX_SAY / 4];
    memcpy(m, bytes, n);
    if (m[3]) {
        __atomic_add_fetch(&e->answered, 1, __ATOMIC_RELEASE);
        return;
    }
    const uint32_t expected = (uint32_t)e->heard[from];
    if (n != 16 + m[0] % 61 * 4 || m[0] != expected || m[1] != (uint32_t)from ||
        (n > 16 && m[n / 4 - 1] != m[0]))
        __atomic_store_n(&e->wrong, 1, __ATOMIC_RELEASE);
    m[3] = 1;
    if (m[0] % 10 == 0 && mk_boot_say(e->b, from, m, 16))
        __atomic_store_n(&e->wrong, 2, __ATOMIC_RELEASE);
    __atomic_store_n(&e->heard[from], e->heard[from] + 1, __ATOMIC_RELEASE);
}

static bool all_heard(const struct help_rank *r, struct ear *e)
{
    bool all = __atomic_load_n(&e->answered, __ATOMIC_ACQUIRE) == SAYINGS / 10 * (r->nranks - 1);
    for (int i = 0; i < r->nranks; i++)
        all = all && (i == r->rank || __atomic_load_n(&e->heard[i], __ATOMIC_ACQUIRE) == SAYINGS);
    return all;
}

static int say_things(struct help_rank *r)
{
    struct ear e;
    memset(&e, 0, sizeof(e));
    e.b = r->b;
    mk_boot_on_said(r->b, hear, &e);
    int ret = mk_boot_barrier(r->b);
    for (uint32_t i = 0; i < SAYINGS && !ret; i++) {
        uint32_t m[MK_BOOT_MAX_SAY / 4];
        for (size_t k = 0; k < sizeof(m) / 4; k++)
            m[k] = i;
        m[1] = (uint32_t)r->rank;
        m[2] = i % 2;
        m[3] = 0;
        const size_t n = 16 + i % 61 * 4;
        if (m[2])
            ret = mk_boot_say(r->b, -1, m, n);
        for (int to = 0; to < r->nranks && !ret && !m[2]; to++)
            ret = to == r->rank ? 0 : mk_boot_say(r->b, to, m, n);
    }
    for (int ms = 0; ms < 20000 && !ret && !all_heard(r, &e); ms++)
        help_sleep_ms(1);
    if (!ret && (e.wrong || !all_heard(r, &e)))
        ret = mk_fail_quiet(MK_ERR_INTERNAL, "messages are %s (%d answers)", e.wrong ? "wrong" : "missing",
                            e.answered);
    mk_boot_on_said(r->b, NULL, NULL);
    return ret ? ret : mk_boot_barrier(r->b); /* nobody leaves before all have their answers */
}

static void messages(void **state)
{
    static const int sizes[] = {1, 2, 3, 9};
    static struct help_job j;
    (void)state;
    for (int i = 0; i < 4; i++) {
        help_job_init(&j, (enum help_way)(i % WAYS), sizes[i], 30);
        j.body = sizes[i] == 1 ? barriers : say_things;
        help_job_run(&j);
        help_all_return(&j, 0, "");
    }
}

static int say_wrong_things(struct help_rank *r)
{
    uint8_t m[MK_BOOT_MAX_SAY + 1] = {0};
    const int wrong = !mk_boot_say(r->b, -2, m, 1) + !mk_boot_say(r->b, r->nranks, m, 1) +
                      !mk_boot_say(r->b, r->rank, m, 1) + !mk_boot_say(r->b, -1, m, sizeof(m)) +
                      !mk_boot_say(r->b, -1, NULL, 1) + !mk_boot_say(NULL, -1, m, 1);
    if (wrong)
        return mk_fail_quiet(MK_ERR_INTERNAL, "%d wrong messages are taken", wrong);
    /* nobody listens: they are dropped, and harm nothing */
    const int ret = mk_boot_say(r->b, -1, m, MK_BOOT_MAX_SAY) + mk_boot_say(r->b, -1, NULL, 0);
    return ret ? ret : barriers(r);
}

static void messages_that_are_wrong(void **state)
{
    static struct help_job j;
    (void)state;
    help_job_init(&j, BY_ROOT, 3, 20);
    j.body = say_wrong_things;
    help_job_run(&j);
    help_all_return(&j, 0, "");
}

struct leavers {
    int left[HELP_MAX], ended;
};
static void note_left(void *ctx, int rank)
{
    struct leavers *l = ctx;
    __atomic_add_fetch(rank < 0 ? &l->ended : &l->left[rank], 1, __ATOMIC_RELEASE);
}

/* The last rank leaves first; each other one as soon as it was told that the one behind it has left: the lower ranks are told
 * of all that are above them, once. Rank 0, which hosts the root, is the last. */
static int leave_in_turn(struct help_rank *r)
{
    struct leavers l;
    memset(&l, 0, sizeof(l));
    mk_boot_on_left(r->b, note_left, &l);
    const int ret = mk_boot_barrier(r->b);
    int wrong = 0;
    for (int i = r->nranks - 1; i > r->rank && !ret; i--) {
        for (int ms = 0; ms < 30000 && !__atomic_load_n(&l.left[i], __ATOMIC_ACQUIRE); ms++)
            help_sleep_ms(1);
        wrong += l.left[i] != 1;
    }
    for (int i = 0; i <= r->rank; i++)
        wrong += __atomic_load_n(&l.left[i], __ATOMIC_ACQUIRE) != 0;
    wrong += __atomic_load_n(&l.ended, __ATOMIC_ACQUIRE) != 0;
    mk_boot_on_left(r->b, NULL, NULL);
    return ret || !wrong ? ret
                         : mk_fail_quiet(MK_ERR_INTERNAL, "%d ranks are told wrongly of leaving", wrong);
}

static void who_leaves_is_told(void **state)
{
    static struct help_job j;
    (void)state;
    for (int n = 2; n <= 5; n++) {
        help_job_init(&j, (enum help_way)(n % WAYS), n, 40);
        j.body = leave_in_turn;
        help_job_run(&j);
        help_all_return(&j, 0, "");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages),
        cmocka_unit_test(messages_that_are_wrong),
        cmocka_unit_test(who_leaves_is_told),
    };
    help_log_catch();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
