/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Bootstrap between processes: kill -9 of any rank is seen by all others with the right rank, ends in good order
 * are no deaths in whatever order, a second process with the same rank is refused.
 * The parent has no threads; each rank is a forked process that reports through shared memory. */
#include "boot_help.h"
#include "mk/err.h"
#include "mk/log.h"
#include "mk/shm.h"
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

enum { MAXP = 16, PATIENCE_MS = 8000 };

enum stage { NOTHING, MET, SEEN, DONE };
struct report { /* written by the rank (release on stage), read by the parent (acquire) */
    uint32_t stage;
    int ret;   /* of init, or of the rank's test */
    int event; /* 1: there was one */
    struct mk_boot_event ev;
    uint64_t seen_ns;
    char error[256];
};
struct board {
    struct report r[MAXP];
    mk_unique_id_t id;
    uint32_t go; /* parent to ranks: how many may go on (good-bye order) */
};
static struct board *board;
static pid_t pids[MAXP];
static int port;
static bool by_id;

static void set_stage(int rank, enum stage s)
{
    __atomic_store_n(&board->r[rank].stage, s, __ATOMIC_RELEASE);
}

static bool await(const uint32_t *word, uint32_t at_least)
{
    const uint64_t until = mk_time_ns() + PATIENCE_MS * 1000000ull;
    while (__atomic_load_n(word, __ATOMIC_ACQUIRE) < at_least) {
        if (mk_time_ns() > until)
            return false;
        help_sleep_ms(1);
    }
    return true;
}

/* ---- in a rank's process ---- */

static int meet(int rank, int n, struct mk_boot **b)
{
    struct mk_settings s;
    help_settings(&s, port, 10);
    int ret;
    if (by_id && !rank) { /* rank 0 makes the id, the others wait for it on the board */
        mk_unique_id_t id;
        ret = mk_boot_unique_id(&s, &id);
        board->id = id;
        __atomic_store_n(&board->go, 1, __ATOMIC_RELEASE);
    }
    if (by_id && !await(&board->go, 1))
        ret = MK_ERR_TIMEOUT;
    else if (by_id)
        ret = mk_boot_init_id(&s, &board->id, n, rank, b);
    else
        ret = mk_boot_init_root(&s, n, rank, b);
    board->r[rank].ret = ret;
    snprintf(board->r[rank].error, sizeof(board->r[rank].error), "%s", ret ? mk_last_error() : "");
    return ret;
}

static void watch(int rank, struct mk_boot *b)
{
    struct report *r = &board->r[rank];
    r->event = help_wait_event(b, &r->ev, PATIENCE_MS);
    r->seen_ns = mk_time_ns();
    char byte = 0, all[MAXP];
    r->ret = mk_boot_allgather(b, &byte, all, 1);
    snprintf(r->error, sizeof(r->error), "%s", mk_last_error());
    set_stage(rank, SEEN);
}

static void watcher(int rank, int n)
{
    struct mk_boot *b = NULL;
    if (!meet(rank, n, &b) && !mk_boot_barrier(b)) {
        set_stage(rank, MET);
        watch(rank, b);
    }
    mk_boot_destroy(b);
    set_stage(rank, DONE);
    _exit(0);
}

/* ---- in the parent ---- */

static void spawn(int rank, int n, void (*fn)(int rank, int n))
{
    pids[rank] = fork();
    assert_true(pids[rank] >= 0);
    if (!pids[rank]) {
        alarm(40); /* whatever happens, it ends */
        mk_log_set_sink(NULL);
        fn(rank, n);
        _exit(99);
    }
}

static void start(bool id, int n, void (*fn)(int rank, int n))
{
    by_id = id;
    port = id ? 0 : help_port();
    memset(board, 0, sizeof(*board));
    for (int r = 0; r < n; r++)
        spawn(r, n, fn);
}

static void all_reach(int n, int but, enum stage s)
{
    for (int r = 0; r < n; r++)
        if (r != but && !await(&board->r[r].stage, s))
            fail_msg("rank %d has not come to stage %d (%d %s)", r, s, board->r[r].ret, board->r[r].error);
}

static int reap(int rank)
{
    int status = 0;
    if (waitpid(pids[rank], &status, 0) != pids[rank])
        return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void reap_all(int n, int but, int status)
{
    for (int r = 0; r < n; r++)
        if (r != but)
            assert_int_equal(reap(r), status);
}

static void killed(bool id, int n, int victim, void (*fn)(int rank, int n))
{
    char text[32];
    uint64_t slowest = 0;
    start(id, n, fn);
    all_reach(n, -1, MET);
    const uint64_t t = mk_time_ns();
    kill(pids[victim], SIGKILL);
    all_reach(n, victim, SEEN);
    __atomic_store_n(&board->go, 1, __ATOMIC_RELEASE); /* children may end */
    snprintf(text, sizeof(text), "rank %d", victim);
    for (int r = 0; r < n; r++) {
        const struct report *p = &board->r[r];
        if (r == victim)
            continue;
        if (!p->event || p->ev.code != MK_ERR_PEER || p->ev.rank != victim || !strstr(p->ev.text, text) ||
            p->ret != MK_ERR_PEER || !strstr(p->error, text))
            fail_msg("rank %d: event %d (%d, rank %d, %s), all-gather %d (%s)", r, p->event, p->ev.code,
                     p->ev.rank, p->ev.text, p->ret, p->error);
        if (p->seen_ns - t > slowest)
            slowest = p->seen_ns - t;
    }
    assert_int_equal(reap(victim), -SIGKILL);
    reap_all(n, victim, 0);
    print_message("kill of rank %d of %d%s: seen by the last after %.1f ms\n", victim, n, id ? " (id)" : "",
                  (double)slowest / 1e6);
}

static void kill_each(void **state)
{
    (void)state;
    for (int victim = 0; victim < 5; victim++)
        killed(false, 5, victim, watcher);
    killed(true, 5, 0, watcher);
    killed(true, 5, 3, watcher);
    killed(false, 2, 0, watcher);
    killed(false, 2, 1, watcher);
    killed(false, 16, 7, watcher);
}

/* Each rank has a child of its own that lives on when the rank is killed (until the others have seen the death), and
 * ends by exit. */
static void with_child(int rank, int n)
{
    struct mk_boot *b = NULL;
    if (!meet(rank, n, &b) && !mk_boot_barrier(b)) {
        const pid_t child = fork();
        if (!child) {
            mk_boot_abort(b, MK_ERR_ABORTED, "from a child"); /* not its object: nothing happens */
            if (rank % 2)
                mk_boot_destroy(b);
            if (rank != 1 && !await(&board->go, 1))
                await(&board->go, 1);
            exit(0); /* runs the destructors: they must not say good-bye for the parent */
        }
        help_sleep_ms(rank == 1 ? 100 : 0);
        set_stage(rank, MET);
        watch(rank, b);
        waitpid(child, NULL, 0);
    }
    mk_boot_destroy(b);
    _exit(0);
}

static void forked_children(void **state)
{
    (void)state;
    killed(false, 3, 0, with_child);
    killed(false, 3, 2, with_child);
}

static void early(int rank, int n)
{
    struct mk_boot *b = NULL;
    set_stage(rank, MET);
    meet(rank, n, &b);
    set_stage(rank, SEEN);
    mk_boot_destroy(b);
    _exit(0);
}

/* Killed before all have come. */
static void kill_while_meeting(void **state)
{
    (void)state;
    for (int victim = 0; victim < 2; victim++) {
        by_id = false;
        port = help_port();
        memset(board, 0, sizeof(*board));
        for (int r = 0; r < 3; r++) /* of 4 */
            spawn(r, 4, early);
        help_sleep_ms(400);
        kill(pids[victim], SIGKILL);
        char text[32];
        snprintf(text, sizeof(text), victim ? "rank %d" : "rank %d (root", victim);
        for (int r = 0; r < 3; r++) {
            if (r == victim)
                continue;
            assert_true(await(&board->r[r].stage, SEEN));
            if (board->r[r].ret != MK_ERR_PEER || !strstr(board->r[r].error, text))
                fail_msg("rank %d: %d (%s)", r, board->r[r].ret, board->r[r].error);
        }
        reap(victim);
        reap_all(3, victim, 0);
    }
}

/* Good-bye in the order of board->go, by destroy and _exit, or by exit alone; each looks for events until then. */
static int turn_of[MAXP];
static bool without_destroy;
static void leaver(int rank, int n)
{
    struct mk_boot *b = NULL;
    struct report *r = &board->r[rank];
    if (!meet(rank, n, &b) && !mk_boot_barrier(b)) {
        set_stage(rank, MET);
        if (!await(&board->go, (uint32_t)turn_of[rank] + 1))
            r->ret = MK_ERR_TIMEOUT;
        for (int i = 0; i < n;
             i++) /* who left before me, and not after the root's process, has left for me */
            if (turn_of[i] < turn_of[rank] && turn_of[i] <= turn_of[0] && !help_wait_left(b, i, 5000))
                r->ret = MK_ERR_INTERNAL;
        r->event = mk_boot_event(b, &r->ev);
        set_stage(rank, SEEN);
    }
    if (without_destroy)
        exit(0);
    mk_boot_destroy(b);
    _exit(0);
}

static void orders(bool exits, int n, bool id)
{
    int perm[3];
    for (int p = 0; p < 6; p++) {
        perm[0] = p / 2;
        perm[1] = (perm[0] + 1 + p % 2) % 3;
        perm[2] = 3 - perm[0] - perm[1];
        for (int i = 0; i < n; i++)
            turn_of[perm[i]] = i;
        without_destroy = exits;
        start(id, n, leaver);
        all_reach(n, -1, MET);
        for (int i = 0; i < n; i++) {
            __atomic_store_n(&board->go, (uint32_t)i + 1, __ATOMIC_RELEASE);
            assert_true(await(&board->r[perm[i]].stage, SEEN));
            assert_int_equal(reap(perm[i]), 0);
            help_sleep_ms(30); /* the others hear of it before they look */
        }
        for (int r = 0; r < n; r++)
            if (board->r[r].ret || board->r[r].event)
                fail_msg("order %d %d %d: rank %d: %d, event %s", perm[0], perm[1], perm[2], r,
                         board->r[r].ret, board->r[r].ev.text);
    }
}

static void good_bye_orders(void **state)
{
    (void)state;
    orders(false, 3, false);
}

static void exits_without_destroy(void **state)
{
    (void)state;
    orders(true, 3, false);
}

/* All leave at once, the root's process among them: no death is seen. */
static void rush(int rank, int n)
{
    struct mk_boot *b = NULL;
    struct report *r = &board->r[rank];
    if (!meet(rank, n, &b))
        r->ret = mk_boot_barrier(b);
    if (!r->ret) {
        if (rank == n - 1) {
            help_sleep_ms(150);
            if (!help_wait_left(b, 0, 5000))
                r->ret = MK_ERR_INTERNAL;
            r->event = mk_boot_event(b, &r->ev);
        }
        set_stage(rank, SEEN);
    }
    if (rank % 2)
        exit(0);
    mk_boot_destroy(b);
    _exit(0);
}

static void all_at_once(void **state)
{
    (void)state;
    for (int i = 0; i < 10; i++) {
        start(false, 6, rush);
        reap_all(6, -1, 0);
        for (int r = 0; r < 6; r++)
            if (board->r[r].ret || board->r[r].event || board->r[r].stage != SEEN)
                fail_msg("round %d rank %d: %d, stage %d, event %s", i, r, board->r[r].ret,
                         (int)board->r[r].stage, board->r[r].ev.text);
    }
}

/* The second process with rank 1 */
static void twice(void **state)
{
    (void)state;
    start(false, 3, watcher);
    all_reach(3, -1, MET);
    const pid_t first = pids[1];
    struct report before = board->r[1];
    spawn(1, 3, watcher);
    assert_int_equal(reap(1), 0);
    assert_int_equal(board->r[1].ret, MK_ERR_INVALID);
    assert_non_null(strstr(board->r[1].error, "rank 1 is in the job already"));
    board->r[1] = before;
    pids[1] = first;
    assert_int_equal(board->r[0].stage, MET); /* and nobody has seen an event */
    assert_int_equal(board->r[2].stage, MET);
    kill(pids[2], SIGKILL); /* the job is what it was */
    assert_true(await(&board->r[0].stage, SEEN) && await(&board->r[1].stage, SEEN));
    assert_int_equal(board->r[1].ev.rank, 2);
    reap(2);
    reap_all(2, -1, 0);
}

/* The next job of other processes at the same address, while the last rank of the old one is still leaving. */
static void next_job(void **state)
{
    (void)state;
    turn_of[0] = 0, turn_of[1] = 1, turn_of[2] = 2;
    without_destroy = false;
    start(false, 3, leaver);
    all_reach(3, -1, MET);
    __atomic_store_n(&board->go, 2, __ATOMIC_RELEASE);
    assert_true(await(&board->r[1].stage, SEEN));
    assert_int_equal(reap(0), 0);
    assert_int_equal(reap(1), 0);
    const pid_t old = pids[2];
    spawn(0, 2, rush);
    spawn(1, 2, rush);
    help_sleep_ms(200);
    __atomic_store_n(&board->go, 3, __ATOMIC_RELEASE);
    assert_int_equal(reap(0), 0);
    assert_int_equal(reap(1), 0);
    assert_int_equal(board->r[0].ret, 0);
    assert_int_equal(board->r[1].ret, 0);
    pids[2] = old;
    assert_int_equal(reap(2), 0);
    assert_int_equal(board->r[2].event, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kill_each),
        cmocka_unit_test(forked_children),
        cmocka_unit_test(kill_while_meeting),
        cmocka_unit_test(good_bye_orders),
        cmocka_unit_test(exits_without_destroy),
        cmocka_unit_test(all_at_once),
        cmocka_unit_test(twice),
        cmocka_unit_test(next_job),
    };
    setvbuf(stdout, NULL, _IONBF, 0); /* children end by exit: nothing may be printed twice */
    setenv("MK_LOG", "none", 1);
    board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
