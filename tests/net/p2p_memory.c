/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The message layer when memory runs out: two comms and some messages within one process, once for each allocation on the
 * way, which fails (the linker hands us those of our own objects). What must come: an error with a text, or all as it
 * should be; nothing hangs; every descriptor that was open is still open, and no other one. Transport: argument 1. */
#include "mk/err.h"
#include "net/p2p.h"
#include "tests/net/p2p_help.h"
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
/* after the above */
#include <cmocka.h>

#define BYTES (1u << 20)

static const char *transport;
static struct half h;
static long calls, fails_at; /* of the allocations; 0: none fails */

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t size);

static bool none_left(void)
{
    return ++calls == fails_at;
}
void *__wrap_malloc(size_t size)
{
    return none_left() ? NULL : __real_malloc(size);
}
void *__wrap_calloc(size_t n, size_t size)
{
    return none_left() ? NULL : __real_calloc(n, size);
}
void *__wrap_realloc(void *p, size_t size)
{
    return none_left() ? NULL : __real_realloc(p, size);
}

static uint64_t open_files(void)
{
    uint64_t set = 0;
    DIR *d = opendir("/proc/self/fd");
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        if (e->d_name[0] != '.' && atoi(e->d_name) != dirfd(d) && atoi(e->d_name) < 64)
            set |= 1ull << atoi(e->d_name);
    closedir(d);
    return set;
}

static int meet(struct mk_p2p_comm **tx, struct mk_p2p_comm **rx)
{
    uint8_t handle[MK_P2P_HANDLE];
    struct mk_p2p_listener *l;
    const uint64_t end = mk_time_ns() + 10000000000ull;
    int ret = mk_p2p_listen(h.p, handle, &l), one = MK_ERR_AGAIN, two = MK_ERR_AGAIN;
    while (!ret && (one == MK_ERR_AGAIN || two == MK_ERR_AGAIN)) {
        one = one == MK_ERR_AGAIN ? mk_p2p_connect(h.p, handle, tx) : one;
        two = two == MK_ERR_AGAIN ? mk_p2p_accept(l, rx) : two;
        if ((one && one != MK_ERR_AGAIN) || (two && two != MK_ERR_AGAIN))
            ret = one && one != MK_ERR_AGAIN ? one : two;
        assert_true(mk_time_ns() < end);
    }
    return ret;
}

/* Each size once; 0: all was as it should be. */
static int messages(struct mk_p2p_comm *tx, struct mk_p2p_comm *rx, uint8_t *mem)
{
    static const size_t size[] = {10, 20000, 300000};
    struct mk_p2p_mr *from, *to;
    struct mk_p2p_req *s, *r;
    int ret = mk_p2p_reg(tx, mem, BYTES, &from);
    ret = ret ? ret : mk_p2p_reg(rx, mem + BYTES, BYTES, &to);
    for (int i = 0; i < 3 && !ret; i++) {
        paint(mem, size[i], (unsigned)i);
        ret = post_send(tx, mem, size[i], i, from, &s);
        ret = ret ? ret : post_recv(rx, mem + BYTES, size[i], i, to, &r);
        ret = ret ? ret : finish_two(s, r, NULL);
        assert_true(ret || painted(mem + BYTES, size[i], (unsigned)i));
    }
    if (!ret)
        mk_p2p_dereg(tx, from);
    return ret;
}

static int everything(uint8_t *mem)
{
    struct mk_p2p_comm *tx = NULL, *rx = NULL;
    int ret = half_open(&h);
    ret = ret ? ret : meet(&tx, &rx);
    ret = ret ? ret : messages(tx, rx, mem);
    mk_p2p_comm_close(tx);
    mk_p2p_comm_close(rx);
    mk_p2p_close(h.p);
    h.p = NULL;
    return ret;
}

static void no_memory(void **state)
{
    (void)state;
    uint8_t *mem = calloc(2, BYTES);
    assert_non_null(mem);
    assert_int_equal(everything(mem), 0); /* opens what stays open */
    const uint64_t before = open_files();
    calls = 0;
    assert_int_equal(everything(mem), 0);
    const long all = calls;
    long refused = 0;
    assert_true(all > 20);
    for (long n = 1; n <= all; n++) {
        fails_at = n;
        calls = 0;
        const uint64_t begin = mk_time_ns();
        const int ret = everything(mem);
        fails_at = 0;
        const bool said = ret == MK_ERR_NOMEM || (ret == MK_ERR_SYSTEM && strstr(mk_last_error(), "memory"));
        if (ret && !said && ret != MK_ERR_PEER) /* of the other half: it was refused */
            fail_msg("allocation %ld of %ld: %d, %s", n, all, ret, mk_last_error());
        if (open_files() != before || mk_time_ns() - begin > 8000000000ull)
            fail_msg("allocation %ld of %ld: descriptors %#llx, before %#llx; %.1f s", n, all,
                     (unsigned long long)open_files(), (unsigned long long)before,
                     (double)(mk_time_ns() - begin) * 1e-9);
        assert_true(!ret || strlen(mk_last_error()) > 5);
        refused += said;
    }
    assert_true(refused > all / 2);
    assert_int_equal(everything(mem), 0);
    free(mem);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_memory)};
    transport = argc > 1 ? argv[1] : "loop";
    if (half_settings(&h, transport))
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
