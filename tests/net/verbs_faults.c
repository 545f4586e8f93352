/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The verbs transport when things break: test_net_verbs_faults [INTERFACE]. Each fault ends the link with an error that
 * names its cause, in bounded time. INTERFACE: the one under the RDMA device, which may be taken down (a virtual
 * machine's); without, that case is left out. No RDMA device: skip. */
#include "mk/err.h"
#include "mk/param.h"
#include "net/verbs/verbs.h"
#include "tests/net/limit_help.h"
#include "tests/net/pair.h"
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#define A (&p.s[0])
#define B (&p.s[1])
#define BOUND_NS 60000000000ull

static struct mk_settings set;
static struct pair p;
static const char *interface;

static void lay_out(uint32_t steps[PAIR_NOTES], uint64_t firsts[PAIR_NOTES])
{
    for (uint32_t k = 0; k < PAIR_NOTES; k++) {
        steps[k] = k < 8 ? 8 : 1;
        firsts[k] = k < 8 ? k + 1 - 8ull : 8;
    }
}

static int setup(void **state)
{
    uint32_t steps[PAIR_NOTES];
    uint64_t firsts[PAIR_NOTES];
    (void)state;
    lay_out(steps, firsts);
    return pair_open(&p, &set, &mk_verbs_ops, "immediate", steps, firsts);
}

static int teardown(void **state)
{
    (void)state;
    pair_close(&p);
    return 0;
}

static struct mk_verbs_conn *conn_of(const struct side *s)
{
    return (struct mk_verbs_conn *)s->l->conn;
}

/* Drives one side until its link has ended; the seconds that took. */
static double until_error(struct side *s, struct side *other)
{
    const uint64_t begin = mk_time_ns();
    while (!mk_link_error(s->l, NULL)) {
        assert_true(mk_time_ns() - begin < BOUND_NS);
        if (other)
            mk_engine_progress(other->e);
        if (mk_engine_progress(s->e) == 0)
            mk_engine_wait(s->e, 5000000);
    }
    return (double)(mk_time_ns() - begin) * 1e-9;
}

static void expect(struct side *s, int code, const char *cause, double seconds)
{
    char text[200];
    assert_int_equal(mk_link_error(s->l, text), code);
    print_message("    after %.2f s: %s\n", seconds, text);
    assert_non_null(strstr(text, cause));
    assert_non_null(strstr(text, "the peer"));
    assert_int_equal(mk_link_pending(s->l), 0);
    const struct mk_put put = pair_put(s, 0, 0, 8, 1, 1);
    assert_int_equal(mk_link_put(s->l, &put, 1), code);
}

static void put_some(struct side *s, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const struct mk_put put = pair_put(s, i % 8, i % 8 * 64, 64, i / 8 + 1, i + 1);
        assert_int_equal(mk_link_put(s->l, &put, 1), 1);
    }
}

/* The queue pair of the side that has writes in flight. */
static void queue_pair_error(void **state)
{
    struct ibv_qp_attr attr;
    struct mk_verbs_conn *c = conn_of(A);
    (void)state;
    memset(&attr, 0, sizeof(attr));
    attr.qp_state = IBV_QPS_ERR;
    assert_int_equal(c->dev->lib->modify_qp(c->qp, &attr, IBV_QP_STATE), 0);
    put_some(A, 8);
    expect(A, MK_ERR_NET, "queue pair is in error", until_error(A, B));
    assert_int_equal(A->ndone, 8);
    assert_int_equal(A->nbad, 8);
}

/* The queue pair of a side that only receives: its receives come back, so it hears of it, and the writer finds nobody. */
static void queue_pair_error_of_the_receiver(void **state)
{
    struct ibv_qp_attr attr;
    struct mk_verbs_conn *c = conn_of(B);
    (void)state;
    memset(&attr, 0, sizeof(attr));
    attr.qp_state = IBV_QPS_ERR;
    assert_int_equal(c->dev->lib->modify_qp(c->qp, &attr, IBV_QP_STATE), 0);
    expect(B, MK_ERR_NET, "queue pair is in error", until_error(B, NULL));
    put_some(A, 1);
    expect(A, MK_ERR_PEER, "does not answer", until_error(A, NULL));
}

/* A writer that goes on while the receiver never polls. */
static void no_receives(void **state)
{
    const uint64_t begin = mk_time_ns();
    uint32_t i = 0;
    (void)state;
    for (; !mk_link_error(A->l, NULL); mk_engine_progress(A->e)) {
        assert_true(mk_time_ns() - begin < BOUND_NS);
        if (i - (uint32_t)A->ndone >= 64)
            continue;
        const struct mk_put put = pair_put(A, i % 8, i % 8 * 64, 64, i / 8 + 1, i + 1);
        if (mk_link_put(A->l, &put, 1) == 1)
            i++;
    }
    assert_in_range(A->ndone, MK_VERBS_RECVS, MK_VERBS_RECVS + 64);
    expect(A, MK_ERR_PEER, "RNR retry counter exceeded", (double)(mk_time_ns() - begin) * 1e-9);
}

/* A wrong key: the target's device refuses, and its process hears of it too. */
static void wrong_key(void **state)
{
    struct mk_verbs_rmem *r = (struct mk_verbs_rmem *)A->rmem;
    (void)state;
    r->rkey ^= 0x5a00;
    put_some(A, 1);
    expect(A, MK_ERR_NET, "remote access error", until_error(A, B));
    assert_int_equal(B->flags[0], 1 - 8ull);
    expect(B, MK_ERR_NET, ":", until_error(B, NULL));
}

/* Registers more than RLIMIT_MEMLOCK allows, in a process without the privilege: refused, with the limit, its value and
 * the remedy; less than that is taken. */
static int register_much(void)
{
    enum { BYTES = 8 << 20 };
    struct mk_engine *e;
    struct mk_mr *mr = NULL;
    void *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || may_lock(0) || mk_engine_open_with(&set, &mk_verbs_ops, "immediate", &e) ||
        soft_limit(RLIMIT_MEMLOCK, 1 << 20, NULL))
        return 1;
    const int ret = mk_engine_reg(e, memory, BYTES, NULL, &mr);
    print_message("    %s\n", mk_last_error());
    if (ret != MK_ERR_NET || !strstr(mk_last_error(), " 1024 KiB (RLIMIT_MEMLOCK)") ||
        !strstr(mk_last_error(), "ulimit -l unlimited"))
        return 2;
    if (mk_engine_reg(e, memory, 64 << 10, NULL, &mr))
        return 3;
    mk_mr_dereg(mr);
    mk_engine_close(e);
    return 0;
}

static void locked_memory(void **state)
{
    int status = -1;
    (void)state;
    const pid_t child =
        fork(); /* the device is opened without the privilege: a change later is an error of its own */
    assert_true(child >= 0);
    if (child == 0)
        _exit(register_much());
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static int run(const char *what, const char *state)
{
    char line[128];
    snprintf(line, sizeof(line), "ip link set %s %s", what, state);
    return system(line);
}

/* Both with writes under way and without. */
static void link_down(void **state)
{
    (void)state;
    if (!interface) {
        print_message("    left out: no interface given\n");
        return;
    }
    assert_int_equal(run(interface, "down"), 0);
    const double b = until_error(B, NULL);
    put_some(A, 8);
    const double a = until_error(A, NULL);
    assert_int_equal(run(interface, "up"), 0);
    expect(A, MK_ERR_NET, "down", a);
    expect(B, MK_ERR_NET, "down", b);
}

/* A flap that is shorter than the device's patience, with nothing under way, is no error. */
static void link_flap(void **state)
{
    const uint64_t begin = mk_time_ns();
    (void)state;
    if (!interface) {
        print_message("    left out: no interface given\n");
        return;
    }
    assert_int_equal(run(interface, "down"), 0);
    mk_engine_wait(A->e, 100000000);
    pair_run(&p);
    assert_int_equal(run(interface, "up"), 0);
    mk_engine_wait(A->e, 100000000);
    put_some(A, 8);
    while (A->ndone < 8 && mk_time_ns() - begin < BOUND_NS) {
        mk_engine_progress(B->e);
        if (mk_engine_progress(A->e) == 0)
            mk_engine_wait(A->e, 1000000);
    }
    pair_run(&p);
    assert_int_equal(A->ndone, 8);
    assert_int_equal(A->nbad, 0);
    for (uint32_t i = 0; i < 8; i++)
        assert_int_equal(B->flags[i], i + 1);
}

/* ---- a peer in another process, killed ---- */

struct hello {
    struct mk_net_addr addr;
    struct mk_net_key key;
    uint32_t base;
};

static int swap(int fd, const struct hello *mine, struct hello *theirs)
{
    return send(fd, mine, sizeof(*mine), MSG_NOSIGNAL) != sizeof(*mine) ||
           recv(fd, theirs, sizeof(*theirs), MSG_WAITALL) != sizeof(*theirs);
}

static int meet(int fd, struct side *s)
{
    struct hello mine, theirs;
    struct mk_peer_notes n;
    uint64_t first[PAIR_NOTES];
    int ret = mk_engine_open_with(&set, &mk_verbs_ops, "immediate", &s->e);
    if (!ret)
        ret = mk_shm_create("faults", PAIR_BYTES + 16 * PAIR_NOTES, &s->mem);
    if (!ret)
        ret = mk_engine_reg(s->e, s->mem.addr, s->mem.size, &s->mem, &s->mr);
    if (ret)
        return ret;
    s->flags = (uint64_t *)((char *)s->mem.addr + PAIR_BYTES);
    s->shadow = s->flags + PAIR_NOTES;
    lay_out(s->step, first);
    memcpy(s->flags, first, sizeof(first));
    const struct mk_notes_desc d = {s->flags, s->shadow, s->step, PAIR_NOTES, &s->bell};
    memset(&mine, 0, sizeof(mine));
    ret = mk_notes_open(s->e, &d, &mine.base, &s->notes);
    if (!ret)
        ret = mk_link_open(s->e, "the peer", &mine.addr, &s->l);
    mk_mr_key(s->mr, &mine.key);
    if (ret || swap(fd, &mine, &theirs))
        return ret ? ret : MK_ERR_PEER;
    ret = mk_link_connect(s->l, &theirs.addr);
    if (!ret)
        ret = mk_link_import(s->l, &theirs.key, &s->rmem);
    n.base = theirs.base;
    n.n = PAIR_NOTES;
    n.mem = s->rmem;
    n.flags_off = PAIR_BYTES;
    n.shadow_off = PAIR_BYTES + 8 * PAIR_NOTES;
    if (!ret)
        ret = mk_link_set_notes(s->l, &n);
    return ret || swap(fd, &mine, &theirs) ? MK_ERR_PEER : 0; /* both are connected */
}

static void count_done(void *ctx, struct mk_link *l, uint64_t id, int status)
{
    struct side *s = ctx;
    (void)l;
    (void)id;
    s->ndone++;
    s->nbad += status != 0;
}

static void killed_peer(void **state)
{
    int fds[2], status;
    uint32_t i = 0;
    uint64_t killed = 0;
    const uint64_t begin = mk_time_ns();
    (void)state;
    memset(&p, 0, sizeof(p));
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        close(fds[0]);
        alarm(60);
        if (meet(fds[1], B))
            _exit(1);
        for (;;)
            if (mk_engine_progress(B->e) == 0)
                mk_engine_wait(B->e, 1000000);
    }
    close(fds[1]);
    assert_int_equal(meet(fds[0], A), 0);
    mk_link_on_done(A->l, count_done, A);
    while (!mk_link_error(A->l, NULL)) { /* a steady stream; the kill comes into the middle of it */
        assert_true(mk_time_ns() - begin < BOUND_NS);
        const struct mk_put put = pair_put(A, i % 8, 0, 4096, i / 8 + 1, i + 1);
        if (i - (uint32_t)A->ndone < 32 && mk_link_put(A->l, &put, 1) == 1)
            i++;
        if (mk_engine_progress(A->e) == 0)
            mk_engine_wait(A->e, 1000000);
        if (A->ndone >= 200 && !killed) {
            kill(child, SIGKILL);
            killed = mk_time_ns();
        }
    }
    assert_true(killed);
    expect(A, MK_ERR_PEER, "does not answer", (double)(mk_time_ns() - killed) * 1e-9);
    assert_true(A->nbad > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    mk_engine_close(A->e);
    mk_shm_release(&A->mem);
    close(fds[0]);
    memset(&p, 0, sizeof(p));
}

int main(int argc, char **argv)
{
    struct mk_engine *e;
    if (mk_settings_load(&set, false))
        return 2;
    interface = argc > 1 ? argv[1] : NULL;
    set.timeout = 10;
    const int ret = mk_engine_open_with(&set, &mk_verbs_ops, "immediate", &e);
    if (ret == MK_ERR_UNSUPPORTED) {
        printf("skip: net.verbs_faults: %s\n", mk_last_error());
        return 77;
    }
    if (ret)
        return 1;
    mk_engine_close(e);
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(queue_pair_error),
        T(queue_pair_error_of_the_receiver),
        T(no_receives),
        T(wrong_key),
        T(link_flap),
        T(link_down),
        cmocka_unit_test(locked_memory),
        cmocka_unit_test(killed_peer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
