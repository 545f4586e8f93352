/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* mk_fuse_ops: communicators, from their making to their end. */
#include "gpu_fuse.h"
#include "cuda/words.h"
#include "mkernel.h"
#include "tests/net/free_port.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- making ---- */

void prepare_is_asked_again(void **state)
{
    (void)state;
    assert_int_equal(ops->prepare(&nccl[0], NULL, 11, 0, 1), MK_ERR_AGAIN);
    assert_int_equal(prepared(&nccl[0], 11, 1), 0);
    const long events = counts->events, memory = counts->memory;
    assert_true(events > base.events && memory > base.memory);
    for (int i = 0; i < 3; i++)
        assert_int_equal(ops->prepare(&nccl[0], NULL, 11, 0, 1), 0);
    assert_int_equal(counts->events, events);
    assert_int_equal(counts->memory, memory);
    /* another one is another one */
    assert_int_equal(ops->prepare(&nccl[1], NULL, 12, 0, 1), MK_ERR_AGAIN);
    assert_int_equal(prepared(&nccl[1], 12, 1), 0);
    assert_int_equal(counts->events - events, events - base.events);
    destroyed(&nccl[1]);
    assert_int_equal(counts->events, events);
    assert_int_equal(ops->prepare(&nccl[0], NULL, 11, 0, 1), 0);
}

static void *ask(void *out)
{
    *(int *)out = ops->prepare(&nccl[1], NULL, 13, 0, 1);
    return NULL;
}

void no_context_no_kernels(void **state)
{
    pthread_t t;
    int said[2] = {0, 0};
    (void)state;
    for (int i = 0; i < 2; i++) { /* a new thread has none */
        assert_int_equal(pthread_create(&t, NULL, ask, &said[i]), 0);
        assert_int_equal(pthread_join(t, NULL), 0);
        assert_int_equal(said[i], MK_ERR_UNSUPPORTED);
    }
    assert_int_equal(counts->events, base.events);
}

static void same_as_before(void)
{
    assert_memory_equal(&counts->memory, &base.memory,
                        sizeof(base) - offsetof(struct fake_cuda_counts, memory));
}

static void no_k(void *comm)
{
    struct mk_fuse_k k = reduction(0, 1, false);
    k.comm = comm;
    gpu_forget();
    assert_true(ops->launch_k(&k) < 0);
    assert_int_equal(gpu.steps, 0);
}

/* Each call of the driver fails once, in the collective's thread or in that of the communicator. */
void every_call_fails_once(void **state)
{
    int n = 0;
    (void)state;
    for (int ret = MK_ERR_AGAIN; ret; n++) {
        char text[32];
        assert_in_range(n, 0, 40);
        snprintf(text, sizeof(text), "%ld", counts->calls + 1 + n);
        setenv("FAKE_CUDA_FAIL", text, 1);
        const bool at_once = (ret = ops->prepare(&nccl[0], NULL, 14, 0, 1)) != MK_ERR_AGAIN;
        if (!at_once)
            ret = prepared(&nccl[0], 14, 1);
        if (!ret)
            break;
        assert_int_equal(ret, MK_ERR_CUDA);
        if (!at_once) /* and stays so */
            assert_int_equal(ops->prepare(&nccl[0], NULL, 14, 0, 1), MK_ERR_CUDA);
        no_k(&nccl[0]);
        destroyed(&nccl[0]);
        same_as_before();
    }
    unsetenv("FAKE_CUDA_FAIL");
    assert_in_range(n, 8, 40);
}

void not_for_portable_kernels(void **state)
{
    (void)state;
    setenv("MK_GEMM", "portable", 1);
    assert_int_equal(prepared(&nccl[0], 15, 1), MK_ERR_UNSUPPORTED);
    unsetenv("MK_GEMM");
    no_k(&nccl[0]);
}

/* ---- errors, end ---- */

void a_failed_communicator_says_so(void **state)
{
    struct mk_fuse_k k = reduction(0, 1, false);
    (void)state;
    assert_int_equal(prepared(&nccl[1], 16, 1), 0);
    assert_int_equal(ops->launch_k(&k), 0);
    assert_int_equal(ops->error(&nccl[0]), 0);
    (ops->fail)(&nccl[0], MK_ERR_NET, true);
    assert_int_equal(ops->error(&nccl[0]), MK_ERR_NET);
    assert_int_equal(ops->error(&nccl[1]), 0);
    gpu_forget();
    assert_int_equal(ops->launch_k(&k), MK_ERR_NET);
    assert_int_equal(gpu.launches, 0);
    (ops->fail)(&nccl[0], MK_ERR_TIMEOUT, false); /* the first one stays */
    assert_int_equal(ops->launch_k(&k), MK_ERR_NET);
    k.comm = &nccl[1];
    assert_int_equal(ops->launch_k(&k), 0);
    assert_int_equal(gpu.launches, 1);
}

void the_end_leaves_the_callers_context(void **state)
{
    const struct mk_cuda *cu = mk_cuda_open(NULL);
    void *ctx = NULL, *const other = (void *)(uintptr_t)2;
    const struct mk_fuse_k k = reduction(0, 1, false);
    (void)state;
    assert_int_equal(ops->launch_k(&k), 0);
    assert_int_equal(cu->ctx_set(other), 0);
    destroyed(&nccl[0]);
    cu->ctx_current(&ctx);
    assert_int_equal(cu->ctx_set((void *)(uintptr_t)1), 0);
    assert_ptr_equal(ctx, other);
    same_as_before();
    no_k(&nccl[0]);
    destroyed(&nccl[0]); /* nobody */
}

/* NCCL's kernels may wait for peers until its abort has run, and what frees memory waits for them. */
void the_end_frees_nothing_until_nccl_has_gone(void **state)
{
    const struct mk_fuse_k k = reduction(0, 1, false);
    (void)state;
    assert_int_equal(ops->launch_k(&k), 0);
    const long memory = counts->memory, events = counts->events, registered = counts->registered;
    assert_true(memory > base.memory && events > base.events && registered > base.registered);
    ops->abort(&nccl[0]);
    ops->end(&nccl[0]);
    no_k(&nccl[0]);
    nap_ms(50); /* nor does a thread */
    assert_int_equal(counts->memory, memory);
    assert_int_equal(counts->events, events);
    assert_int_equal(counts->registered, registered);
    ops->tidy();
    same_as_before();
}

/* Until another thread has given everything back. */
static void all_back(void)
{
    for (int ms = 0; ms < 60000 && __atomic_load_n(&counts->events, __ATOMIC_ACQUIRE) != base.events; ms++)
        nap_ms(1);
    same_as_before();
}

/* A K under way waits for its peers. MK_TIMEOUT is an hour. */
void the_end_waits_for_no_k(void **state)
{
    const struct mk_fuse_k k = reduction(0, 1, false);
    (void)state;
    assert_int_equal(ops->launch_k(&k), 0);
    __atomic_store_n(&gpu.busy, true, __ATOMIC_RELEASE);
    destroyed(&nccl[0]);
    assert_true(__atomic_load_n(&counts->events, __ATOMIC_ACQUIRE) > base.events);
    no_k(&nccl[0]);
    __atomic_store_n(&gpu.busy, false, __ATOMIC_RELEASE);
    all_back();
}

/* It may wait for one that is alive and never comes. NCCL's destroy then waits for K, and what comes after it does not come. */
void a_k_ends_before_the_destroy(void **state)
{
    const struct mk_fuse_k k = reduction(0, 1, false);
    (void)state;
    setenv("MK_TIMEOUT", "0.3", 1);
    assert_int_equal(prepared(&nccl[0], 23, 1), 0);
    setenv("MK_TIMEOUT", "3600", 1);
    gpu_forget();
    assert_int_equal(ops->launch_k(&k), 0);
    const struct mk_gpu_device *device = of_k().host;
    const uint64_t *word = &device->words->abort;
    __atomic_store_n(&gpu.busy, true, __ATOMIC_RELEASE);
    ops->end(&nccl[0]);
    assert_int_equal(__atomic_load_n(word, __ATOMIC_ACQUIRE), 0);
    for (int ms = 0; ms < 20000 && !__atomic_load_n(word, __ATOMIC_ACQUIRE); ms++)
        nap_ms(1);
    assert_int_equal(__atomic_load_n(word, __ATOMIC_ACQUIRE), -MK_ERR_ABORTED);
    __atomic_store_n(&gpu.busy, false, __ATOMIC_RELEASE);
    ops->tidy();
    all_back();
}

/* One of two ranks, and the other never comes. */
void the_end_waits_for_no_other_rank(void **state)
{
    char port[16];
    (void)state;
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    snprintf(port, sizeof(port), "%d", free_port());
    setenv("MASTER_PORT", port, 1);
    for (int i = 0; i < 4; i++) {
        const struct mk_fuse_k k = reduction(0, 1, false);
        assert_int_equal(ops->prepare(&nccl[0], NULL, 17 + (uint64_t)i, i & 1, 2), MK_ERR_AGAIN);
        assert_true(counts->events > base.events);
        if (i & 2)
            nap_ms(300); /* likely it has begun to look for the other one by then; nothing depends on it */
        assert_int_equal(ops->prepare(&nccl[0], NULL, 17 + (uint64_t)i, i & 1, 2), MK_ERR_AGAIN);
        gpu_forget();
        assert_true(ops->launch_k(&k) < 0);
        (ops->fail)(&nccl[0], MK_ERR_NET, true);
        assert_int_equal(gpu.steps, 0);
        ops->end(&nccl[0]);
        all_back();
    }
    unsetenv("MASTER_ADDR");
    unsetenv("MASTER_PORT");
}

/* Threads that make, end, turn off and tidy as they like: everything comes back, once. */
enum { THREADS = 4, ROUNDS = 40 };
static int of_thread[THREADS];
static void *makes_and_ends(void *arg)
{
    int *comm = arg;
    uint64_t at = (uint64_t)(comm - of_thread) * 1000 + 1000;
    unsigned rng = (unsigned)(comm - of_thread) + 7;
    for (int i = 0; i < ROUNDS; i++) {
        const uint64_t id = at++;
        int ret = ops->prepare(comm, NULL, id, 0, 1);
        for (int ms = rand_r(&rng) % 4; ms > 0 && ret == MK_ERR_AGAIN; ms--) {
            nap_ms(1);
            ret = ops->prepare(comm, NULL, id, 0, 1);
        }
        if (rand_r(&rng) % 3 == 0)
            ops->off(comm, id);
        if (rand_r(&rng) % 3 == 0)
            ops->tidy();
        ops->end(comm);
        if (rand_r(&rng) % 2)
            ops->tidy();
    }
    ops->tidy();
    return NULL;
}
void threads_end_at_once(void **state)
{
    pthread_t thread[THREADS];
    (void)state;
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, makes_and_ends, &of_thread[i]), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    for (int ms = 0; ms < 20000 && __atomic_load_n(&counts->events, __ATOMIC_ACQUIRE) != base.events; ms++) {
        nap_ms(1);
        ops->tidy(); /* one that was off while it was made comes last */
    }
    same_as_before();
}

/* ---- what others may have then ---- */

enum { MANY = 12, FEW_CALLS = 12 };
static int many[MANY];

/* Makes communicators until there are no blocks for one more; how many there are. */
static int fill(int from)
{
    for (int i = from; i < MANY; i++) {
        gpu_forget(); /* there is no room for all that is recorded */
        const int ret = prepared(&many[i], 50 + (uint64_t)i, 1);
        if (ret) {
            assert_int_equal(ret, MK_ERR_UNSUPPORTED);
            destroyed(&many[i]);
            return i;
        }
    }
    fail_msg("no end of blocks");
    return 0;
}

void blocks_go_back_at_once(void **state)
{
    (void)state;
    ops->tidy();
    same_as_before();
    const int n = fill(0);
    assert_in_range(n, 3, MANY - 2);
    const long memory = counts->memory, before = counts->calls;
    assert_int_equal(prepared(&many[n], 89, 1), MK_ERR_UNSUPPORTED);
    destroyed(&many[n]);
    assert_in_range(counts->calls - before, 1,
                    FEW_CALLS); /* events; nothing is made that could not be used */
    assert_int_equal(counts->memory, memory);
    ops->off(&many[0], 49); /* one that had the handle before */
    assert_int_equal(ops->prepare(&many[0], NULL, 50, 0, 1), 0);
    ops->off(&many[0], 50);
    ops->off(&many[0], 50);                   /* nobody any more */
    assert_int_equal(counts->memory, memory); /* what waits for the device has to wait */
    no_k(&many[0]);
    assert_int_equal(ops->error(&many[0]), 0);
    assert_int_equal(prepared(&many[n], 90, 1), 0);
    assert_true(counts->memory > memory);
    const long both = counts->memory;
    ops->tidy();
    assert_int_equal(counts->memory - memory, 0);
    assert_true(both > counts->memory);
    ops->end(&many[0]); /* NCCL's goes later */
    for (int i = 1; i <= n; i++)
        i & 1 ? ops->end(&many[i]) : ops->off(&many[i], i == n ? 90 : 50 + (uint64_t)i);
    ops->tidy();
    ops->tidy();
    same_as_before();
    assert_int_equal(fill(0), n);
    for (int i = 0; i < n; i++)
        destroyed(&many[i]);
    same_as_before();
}

void blocks_of_the_failed_and_the_ended_go_back(void **state)
{
    (void)state;
    const int n = fill(0);
    (ops->fail)(&many[0], MK_ERR_PEER, true);
    assert_int_equal(prepared(&many[n], 91, 1), 0);
    destroyed(&many[0]); /* and does not go back twice */
    for (int i = 1; i <= n; i++)
        destroyed(&many[i]);
    same_as_before();
    assert_int_equal(fill(0), n);
    for (int i = 0; i < n; i++)
        destroyed(&many[i]);
    same_as_before();
}

/* One of two ranks, whose peer never comes, is told meanwhile; and another one has failed before. */
void off_while_it_is_made(void **state)
{
    char port[16];
    (void)state;
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    snprintf(port, sizeof(port), "%d", free_port());
    setenv("MASTER_PORT", port, 1);
    assert_int_equal(ops->prepare(&nccl[0], NULL, 95, 1, 2), MK_ERR_AGAIN);
    assert_true(counts->events > base.events);
    ops->off(&nccl[0], 95);
    for (int ms = 0; ms < 60000 && __atomic_load_n(&counts->events, __ATOMIC_ACQUIRE) != base.events; ms++) {
        ops->tidy();
        nap_ms(1);
    }
    same_as_before();
    unsetenv("MASTER_ADDR");
    unsetenv("MASTER_PORT");
    setenv("MK_GEMM", "portable", 1);
    assert_int_equal(prepared(&nccl[0], 96, 1), MK_ERR_UNSUPPORTED);
    unsetenv("MK_GEMM");
    ops->off(&nccl[0], 96);
    ops->tidy();
    same_as_before();
}
