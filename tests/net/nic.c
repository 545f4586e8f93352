/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* GPU memory over the loop transport: registration, and every way in which one of the three processes (two ranks and
 * mknic) can go away. test_net_nic PATH_OF_MKNIC; over the stand-in driver (fake_cuda.c). */
#include "mk/err.h"
#include "mk/shm.h"
#include "nic_help.h"
#include "net/engine.h"
#include "net/loop/loop.h"
#include "tests/net/pair.h"
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#define A (&p.s[0])
#define B (&p.s[1])
#define GPU_BYTES (8u << 20)
#define BOUND_NS 20000000000ull
#define HASTY 1.0 /* MK_TIMEOUT, where it is to pass */

static const char *program;
static struct mk_settings set;
static struct pair p;
static struct nic_proc nic;
static const struct mk_cuda *cu;
static mk_cu_ptr gpu[2];
static struct mk_mr *gpu_mr[2];
static struct mk_rmem *at_b; /* B's GPU memory, as A sees it */

static struct mk_mr *reg(struct side *s, mk_cu_ptr at, size_t len)
{
    struct mk_mr *mr = NULL;
    if (mk_engine_reg(s->e, (void *)(uintptr_t)at, len, NULL, &mr))
        return NULL;
    return mr;
}

static struct mk_rmem *import(struct side *s, const struct mk_mr *mr)
{
    struct mk_net_key key;
    struct mk_rmem *r = NULL;
    mk_mr_key(mr, &key);
    return mk_link_import(s->l, &key, &r) ? NULL : r;
}

static int setup_with(double timeout)
{
    uint32_t steps[PAIR_NOTES];
    uint64_t firsts[PAIR_NOTES];
    if (mk_settings_load(&set, false) || nic_start(program, NULL, &nic, &set))
        return -1;
    set.timeout = timeout;
    for (uint32_t k = 0; k < PAIR_NOTES; k++) {
        steps[k] = k < 8 ? 8 : 1;
        firsts[k] = k < 8 ? k + 1 - 8ull : 8;
    }
    cu = nic_cuda(0);
    if (!cu || pair_open(&p, &set, &mk_loop_ops, "immediate", steps, firsts))
        return -1;
    for (int i = 0; i < 2; i++) {
        if (cu->mem_alloc(&gpu[i], GPU_BYTES))
            return -1;
        gpu_mr[i] = reg(&p.s[i], gpu[i], GPU_BYTES);
    }
    at_b = gpu_mr[1] ? import(A, gpu_mr[1]) : NULL;
    return gpu_mr[0] && at_b ? 0 : -1;
}

static int setup(void **state)
{
    (void)state;
    return setup_with(10);
}

static int setup_hasty(void **state)
{
    (void)state;
    return setup_with(HASTY);
}

static int teardown(void **state)
{
    (void)state;
    pair_close(&p);
    const bool there = nic.pid > 0;
    const int status = nic_stop(&nic, SIGTERM);
    return there && status ? -1 : cu->mem_free(gpu[0]) || cu->mem_free(gpu[1]);
}

static void put(struct mk_mr *from, uint64_t off, struct mk_rmem *to, uint64_t to_off, uint32_t len,
                uint32_t i)
{
    struct mk_put put = pair_put(A, i % 8, off, len, i / 8 + 1, i + 1);
    put.mr = from;
    put.rmem = to;
    put.remote_off = to_off;
    assert_int_equal(mk_link_put(A->l, &put, 1), 1);
}

static void until_done(int n)
{
    const uint64_t end = mk_time_ns() + BOUND_NS;
    while (A->ndone < n) {
        assert_true(mk_time_ns() < end);
        mk_engine_progress(B->e);
        if (mk_engine_progress(A->e) == 0)
            mk_engine_wait(A->e, 1000000);
    }
    pair_run(&p);
}

static void until_error(struct side *s, uint64_t ns, const char *says)
{
    const uint64_t end = mk_time_ns() + ns;
    char text[200];
    while (!mk_link_error(s->l, text)) {
        assert_true(mk_time_ns() < end);
        mk_engine_progress(p.s[s == A].e);
        if (mk_engine_progress(s->e) == 0)
            mk_engine_wait(s->e, 1000000);
    }
    assert_int_equal(mk_link_error(s->l, text), MK_ERR_NET);
    assert_non_null(strstr(text, says));
}

static void pattern(uint8_t *at, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++)
        at[i] = (uint8_t)(i * 7 + (i >> 8) * 13 + seed);
}

/* `n` bytes at `at` have the pattern. */
static void check(mk_cu_ptr at, size_t n, uint32_t seed)
{
    uint8_t *got = malloc(n), *want = malloc(n);
    assert_true(got && want);
    pattern(want, n, seed);
    assert_int_equal(cu->copy_to_host(got, at, n), 0);
    assert_memory_equal(got, want, n);
    free(got);
    free(want);
}

static void fill(mk_cu_ptr at, size_t n, uint32_t seed)
{
    uint8_t *bytes = malloc(n);
    assert_non_null(bytes);
    pattern(bytes, n, seed);
    assert_int_equal(cu->copy_to_device(at, bytes, n), 0);
    free(bytes);
}

/* A source that mknic cannot map goes through bounce slots, more than there are. */
static void private_source(void **state)
{
    const uint32_t len = (5u << 20) + 13;
    uint8_t *bytes = malloc(len);
    struct mk_mr *mr;
    (void)state;
    assert_non_null(bytes);
    pattern(bytes, len, 5);
    assert_int_equal(mk_engine_reg(A->e, bytes, len, NULL, &mr), 0);
    put(mr, 3, at_b, 11, len - 3, 0);
    until_done(1);
    assert_int_equal(A->nbad, 0);
    uint8_t *got = malloc(len);
    assert_non_null(got);
    assert_int_equal(cu->copy_to_host(got, gpu[1] + 11, len - 3), 0);
    assert_memory_equal(got, bytes + 3, len - 3);
    mk_mr_dereg(mr);
    free(bytes);
    free(got);
}

static mk_cu_ptr make_virtual(size_t piece, int n, int types, uint64_t *handles)
{
    struct mk_cu_alloc what;
    const struct mk_cu_access access = {{MK_CU_LOCATION_DEVICE, 0}, MK_CU_ACCESS_READ_WRITE};
    mk_cu_ptr at;
    memset(&what, 0, sizeof(what));
    what.type = MK_CU_ALLOC_PINNED;
    what.handle_types = types;
    what.location.type = MK_CU_LOCATION_DEVICE;
    assert_int_equal(cu->vmm_reserve(&at, piece * (size_t)n, 0, 0, 0), 0);
    for (int i = 0; i < n; i++) {
        assert_int_equal(cu->vmm_create(&handles[i], piece, &what, 0), 0);
        assert_int_equal(cu->vmm_map(at + piece * (size_t)i, piece, 0, handles[i], 0), 0);
    }
    assert_int_equal(cu->vmm_access(at, piece * (size_t)n, &access, 1), 0);
    return at;
}

static void free_virtual(mk_cu_ptr at, size_t piece, int n, const uint64_t *handles)
{
    for (int i = 0; i < n; i++) {
        assert_int_equal(cu->vmm_unmap(at + piece * (size_t)i, piece), 0);
        cu->vmm_release(handles[i]);
    }
    cu->vmm_free(at, piece * (size_t)n);
}

/* Memory of cuMemCreate, as NCCL's: a window over the seam of two allocations, begun inside the first. */
static void virtual_memory(void **state)
{
    const size_t piece = 2u << 20;
    uint64_t handles[3];
    (void)state;
    const mk_cu_ptr at = make_virtual(piece, 3, MK_CU_HANDLE_FD, handles);
    struct mk_mr *mr = reg(A, at + 1000, 2 * piece);
    assert_non_null(mr);
    fill(at, 3 * piece, 9);
    put(mr, 0, at_b, 0, (uint32_t)(2 * piece), 0);
    until_done(1);
    assert_int_equal(A->nbad, 0);
    uint8_t *got = malloc(2 * piece), *want = malloc(3 * piece);
    assert_true(got && want);
    pattern(want, 3 * piece, 9);
    assert_int_equal(cu->copy_to_host(got, gpu[1], 2 * piece), 0);
    assert_memory_equal(got, want + 1000, 2 * piece);
    free(got);
    free(want);
    mk_mr_dereg(mr);
    free_virtual(at, piece, 3, handles);
}

static void not_exportable(void **state)
{
    uint64_t handles[1];
    struct mk_mr *mr;
    (void)state;
    const mk_cu_ptr at = make_virtual(1u << 20, 1, 0, handles);
    assert_int_equal(mk_engine_reg(A->e, (void *)(uintptr_t)at, 4096, NULL, &mr), MK_ERR_UNSUPPORTED);
    assert_non_null(strstr(mk_last_error(), "POSIX_FILE_DESCRIPTOR"));
    free_virtual(at, 1u << 20, 1, handles);
    put(gpu_mr[0], 0, at_b, 0, 4096, 0); /* nothing else is hurt */
    until_done(1);
    assert_int_equal(A->nbad, 0);
}

/* Two windows of one allocation, and one on the other device. */
static void shared_and_other(void **state)
{
    mk_cu_ptr other;
    (void)state;
    struct mk_mr *half = reg(A, gpu[0] + 4096, 65536);
    assert_non_null(half);
    assert_non_null(nic_cuda(1));
    assert_int_equal(cu->mem_alloc(&other, 1u << 20), 0);
    struct mk_mr *far = reg(B, other, 1u << 20);
    assert_non_null(far);
    struct mk_rmem *at_far = import(A, far);
    assert_non_null(at_far);
    fill(gpu[0] + 4096, 65536, 3);
    put(half, 0, at_far, 100, 65536, 0);
    until_done(1);
    assert_int_equal(A->nbad, 0);
    check(other + 100, 65536, 3);
    mk_mr_dereg(half); /* the other window of the allocation lives on */
    put(gpu_mr[0], 4096, at_b, 0, 65536, 1);
    until_done(2);
    check(gpu[1], 65536, 3);
    mk_mr_dereg(far);
    assert_int_equal(cu->mem_free(other), 0);
    assert_non_null(nic_cuda(0));
}

static void dropped(void **state)
{
    const struct mk_loop_faults f = {.drop_write = 1};
    (void)state;
    fill(gpu[0], 4096, 1);
    fill(gpu[1], 4096, 2);
    assert_int_equal(mk_loop_set_faults(A->e->dev, &f), 0);
    put(gpu_mr[0], 0, at_b, 0, 4096, 0);
    until_done(1);
    check(gpu[1], 4096, 2);
    assert_true(B->flags[0] == (uint64_t)1 - 8);
}

static void failed(void **state)
{
    const struct mk_loop_faults f = {.fail_write = 1};
    (void)state;
    fill(gpu[1], 4096, 2);
    assert_int_equal(mk_loop_set_faults(A->e->dev, &f), 0);
    put(gpu_mr[0], 0, at_b, 0, 4096, 0);
    until_error(A, BOUND_NS, "injected error");
    check(gpu[1], 4096, 2);
}

static void delayed(void **state)
{
    const struct mk_loop_faults f = {.delay_write = 1, .delay_ns = 50000000};
    (void)state;
    fill(gpu[0], 4096, 6);
    assert_int_equal(mk_loop_set_faults(A->e->dev, &f), 0);
    const uint64_t begin = mk_time_ns();
    put(gpu_mr[0], 0, at_b, 0, 4096, 0);
    until_done(1);
    assert_true(mk_time_ns() - begin >= 50000000);
    check(gpu[1], 4096, 6);
}

/* Both ends hear of it, also the one that only waits; nothing hangs afterwards. */
static void mknic_killed(void **state)
{
    struct mk_mr *mr;
    (void)state;
    for (uint32_t i = 0; i < 8; i++)
        put(gpu_mr[0], i * 65536, at_b, i * 65536, 65536, i);
    assert_int_equal(nic_stop(&nic, SIGKILL), SIGKILL);
    until_error(A, 2000000000ull, "mknic");
    until_error(B, 2000000000ull, "mknic");
    assert_int_equal(A->ndone, 8);
    assert_int_equal(mk_engine_reg(A->e, (void *)(uintptr_t)gpu[0], 4096, NULL, &mr), MK_ERR_NET);
}

/* Requests to one that is stopped: the first waits for MK_TIMEOUT, the others fail at once, since all of it happens under
 * the lock of the device. What it has not begun it never begins. */
static void mknic_stopped(void **state)
{
    const uint64_t hasty = (uint64_t)(HASTY * 1e9);
    struct mk_net_key key;
    struct mk_rmem *r;
    struct mk_mr *mr;
    struct mk_shm shm;
    int status;
    (void)state;
    fill(gpu[1], 65536, 2);
    mk_mr_key(gpu_mr[1], &key);
    assert_int_equal(kill(nic.pid, SIGSTOP), 0);
    assert_int_equal(waitpid(nic.pid, &status, WUNTRACED), nic.pid);
    for (uint32_t i = 0; i < 8; i++)
        put(gpu_mr[0], i * 4096, at_b, i * 4096, 4096, i);
    mk_engine_progress(A->e);
    const uint64_t begin = mk_time_ns();
    assert_int_equal(mk_engine_reg(A->e, (void *)(uintptr_t)gpu[0], 4096, NULL, &mr), MK_ERR_TIMEOUT);
    assert_non_null(strstr(mk_last_error(), "does not answer"));
    const uint64_t then = mk_time_ns();
    assert_true(then - begin >= hasty);
    for (int i = 0; i < 8; i++)
        assert_int_equal(mk_engine_reg(A->e, (void *)(uintptr_t)gpu[0], 4096, NULL, &mr), MK_ERR_NET);
    assert_int_equal(mk_link_import(A->l, &key, &r), MK_ERR_NET);
    assert_non_null(strstr(mk_last_error(), "does not answer"));
    assert_int_equal(mk_shm_create("a test's", 4096, &shm), 0);
    assert_int_equal(mk_engine_reg(A->e, shm.addr, shm.size, &shm, &mr), 0); /* host memory needs none */
    mk_mr_dereg(mr);
    mk_shm_release(&shm);
    mk_mr_dereg(gpu_mr[0]);
    assert_true(mk_time_ns() - then < 5 * hasty); /* of twelve that would wait */
    until_error(A, 2000000000ull, "does not answer");
    assert_int_equal(A->ndone, 8);
    assert_int_equal(kill(nic.pid, SIGCONT), 0);
    mr = reg(B, gpu[1] + 4096, 4096); /* it is at work again, for others */
    assert_non_null(mr);
    mk_mr_dereg(mr);
    check(gpu[1], 65536, 2);
}

/* Nor does anybody wait for ever to be let in. */
static void mknic_deaf(void **state)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct mk_settings s = set;
    struct mk_engine *e;
    int fd[8], n = 0;
    (void)state;
    snprintf(a.sun_path, sizeof(a.sun_path), "%s/deaf", nic.dir);
    snprintf(s.nic, sizeof(s.nic), "%s", a.sun_path);
    s.timeout = HASTY;
    const int l = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_true(l >= 0 && !bind(l, (struct sockaddr *)&a, sizeof(a)) && !listen(l, 0));
    do
        fd[n] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    while (!connect(fd[n++], (struct sockaddr *)&a, sizeof(a)) && n < 8);
    assert_in_range(n, 2, 7); /* the last one found it full */
    assert_int_equal(mk_engine_open_with(&s, &mk_loop_ops, "immediate", &e), 0);
    assert_false(mk_engine_caps(e)->gpu_memory);
    mk_engine_close(e);
    while (n)
        close(fd[--n]);
    close(l);
    unlink(a.sun_path);
}

/* Memory is freed, and other memory comes to its address, while the window of the first is still there. */
static void same_address(void **state)
{
    mk_cu_ptr first, second;
    (void)state;
    assert_int_equal(cu->mem_alloc(&first, 1u << 20), 0);
    struct mk_mr *old = reg(B, first, 1u << 20);
    assert_non_null(old);
    assert_int_equal(cu->mem_free(first), 0);
    assert_int_equal(cu->mem_alloc(&second, 1u << 20), 0);
    assert_true(second == first);
    struct mk_mr *now = reg(B, second, 1u << 20);
    struct mk_rmem *at = now ? import(A, now) : NULL;
    assert_non_null(at);
    fill(gpu[0], 65536, 8);
    fill(second, 65536, 9);
    put(gpu_mr[0], 0, at, 0, 65536, 0);
    until_done(1);
    assert_int_equal(A->nbad, 0);
    check(second, 65536, 8);
    mk_mr_dereg(old);
    mk_mr_dereg(now);
    assert_int_equal(cu->mem_free(second), 0);
}

/* The owner takes its memory back while writes are on their way: when dereg has returned none comes any more. */
static void taken_back(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 64; i++) {
        struct mk_put put = pair_put(A, 0, i % 8 << 20, 1u << 20, 0, 0);
        put.mr = gpu_mr[0];
        put.rmem = at_b;
        put.flags = MK_PUT_NO_NOTE;
        assert_int_equal(mk_link_put(A->l, &put, 1), 1);
    }
    mk_engine_progress(A->e);
    usleep(2000); /* mknic has taken some of them */
    mk_mr_dereg(gpu_mr[1]);
    fill(gpu[1], GPU_BYTES, 77);
    struct mk_put late = pair_put(A, 0, 0, 4096, 1, 1);
    late.mr = gpu_mr[0];
    late.rmem = at_b;
    mk_link_put(A->l, &late, 1); /* refused where a write before it has failed already */
    until_error(A, BOUND_NS, "deregistered");
    usleep(100000);
    check(gpu[1], GPU_BYTES, 77);
}

/* The owner dies: who writes to it hears of it, and mknic serves the others. */
static void owner_killed(void **state)
{
    struct mk_net_key key;
    struct mk_rmem *dead = NULL;
    int fds[2], status;
    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    const pid_t child = fork();
    if (!child) {
        mk_cu_ptr mem;
        struct mk_mr *mr;
        struct mk_engine *e; /* a rank of its own: nothing of the parent's is touched */
        if (!mk_engine_open_with(&set, &mk_loop_ops, "immediate", &e) && !cu->mem_alloc(&mem, 1u << 20) &&
            !mk_engine_reg(e, (void *)(uintptr_t)mem, 1u << 20, NULL, &mr)) {
            mk_mr_key(mr, &key);
            if (write(fds[1], &key, sizeof(key)) == sizeof(key))
                pause();
        }
        _exit(1);
    }
    close(fds[1]);
    assert_int_equal(read(fds[0], &key, sizeof(key)), sizeof(key));
    assert_int_equal(mk_link_import(A->l, &key, &dead), 0);
    put(gpu_mr[0], 0, dead, 0, 65536, 0);
    until_done(1);
    assert_int_equal(A->nbad, 0);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
    usleep(100000); /* mknic sees the end of its socket */
    mk_cu_ptr more;
    assert_int_equal(cu->mem_alloc(&more, 1u << 20), 0);
    struct mk_mr *mr = reg(B, more, 1u << 20);
    assert_non_null(mr);
    put(gpu_mr[0], 0, dead, 0, 65536, 1);
    until_error(A, BOUND_NS, "deregistered");
    mk_mr_dereg(mr);
    cu->mem_free(more);
    close(fds[0]);
}

/* Noise on the socket, and a silent visitor. */
static void strangers(void **state)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    char byte;
    int fd[3];
    (void)state;
    memcpy(a.sun_path, nic.path, sizeof(nic.path));
    for (int i = 0; i < 3; i++) {
        fd[i] = socket(AF_UNIX, SOCK_SEQPACKET, 0);
        assert_int_equal(connect(fd[i], (struct sockaddr *)&a, sizeof(a)), 0);
    }
    assert_int_equal(send(fd[0], "GET / HTTP/1.1\r\n", 16, 0), 16);
    char big[4096];
    memset(big, 0xa5, sizeof(big));
    assert_int_equal(send(fd[1], big, sizeof(big), 0), sizeof(big));
    put(gpu_mr[0], 0, at_b, 0, 4096, 0);
    until_done(1);
    assert_int_equal(A->nbad, 0);
    assert_int_equal(recv(fd[0], &byte, 1, 0), 0); /* cut off */
    assert_int_equal(recv(fd[1], &byte, 1, 0), 0);
    for (int i = 0; i < 3; i++)
        close(fd[i]);
}

static void no_mknic(void **state)
{
    struct mk_settings s = set;
    struct mk_engine *e;
    (void)state;
    snprintf(s.nic, sizeof(s.nic), "%s/nobody", nic.dir);
    assert_int_equal(mk_engine_open_with(&s, &mk_loop_ops, "immediate", &e), 0);
    assert_false(mk_engine_caps(e)->gpu_memory);
    mk_engine_close(e);
    assert_true(mk_engine_caps(A->e)->gpu_memory);
}

int main(int argc, char **argv)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(private_source),
        CASE(virtual_memory),
        CASE(not_exportable),
        CASE(shared_and_other),
        CASE(dropped),
        CASE(failed),
        CASE(delayed),
        CASE(mknic_killed),
        CASE(taken_back),
        CASE(owner_killed),
        CASE(strangers),
        CASE(no_mknic),
        CASE(mknic_deaf),
        CASE(same_address),
        cmocka_unit_test_setup_teardown(mknic_stopped, setup_hasty, teardown),
    };
    if (argc != 2)
        return 2;
    program = argv[1];
    alarm(100);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
