/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The public API as a program would use it: every way to make a communicator, several of them at once, ranks that are
 * threads, errors that leave everything usable. Usage: api loop|ofi. */
#include "job.h"
#include "mk/err.h"
#include "mk/fused.h"
#include "tests/ref/gemm_ar_ref.h"
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

struct shared {
    mk_unique_id_t id;
    int id_ready;
    uint32_t round[JOB_MAX];
    uint8_t slot[JOB_MAX][65536];
    int fail_at;
};

/* C = sum over ranks of (rank + 1) * K, exact. */
static int call_and_check(mk_comm_t comm, int n, int rank)
{
    float a[6 * 3], b[5 * 3], c[6 * 5];
    for (int i = 0; i < 18; i++)
        a[i] = (float)(rank + 1);
    for (int i = 0; i < 15; i++)
        b[i] = 1;
    const int ret = mk_gemm_allreduce(comm, MK_TN, 6, 5, 3, MK_FLOAT32, a, 3, b, 3, c, 5, NULL, NULL);
    for (int i = 0; i < 30 && !ret; i++)
        if (c[i] != (float)(3 * n * (n + 1) / 2))
            return 77;
    return ret;
}

static int by_unique_id(struct job *j, int rank)
{
    struct shared *s = j->arg;
    mk_comm_t comm;
    int size, me;
    if (rank == 1) { /* not rank 0: whoever makes the id serves it */
        if (mk_get_unique_id(&s->id))
            return job_failed(j, rank, -1);
        __atomic_store_n(&s->id_ready, 1, __ATOMIC_RELEASE);
    }
    while (!__atomic_load_n(&s->id_ready, __ATOMIC_ACQUIRE))
        usleep(1000);
    mk_config_t config = MK_CONFIG_INIT;
    config.threads = 2;
    config.chunk = 65536;
    int ret = mk_comm_init_rank(&comm, j->n, s->id, rank, &config);
    if (ret)
        return job_failed(j, rank, ret);
    if (mk_comm_size(comm, &size) || mk_comm_rank(comm, &me) || size != j->n || me != rank)
        return 9;
    for (int i = 0; i < 3 && !ret; i++)
        ret = call_and_check(comm, j->n, rank);
    mk_comm_destroy(comm);
    return ret ? job_failed(j, rank, ret) : 0;
}

/* A user's all-gather over shared memory. */
struct gather {
    struct job *j;
    int rank;
};
static int gather_fn(void *ctx, const void *send, void *recv, size_t bytes)
{
    struct gather *g = ctx;
    struct shared *s = g->j->arg;
    if (s->fail_at)
        return -1;
    memcpy(s->slot[g->rank], send, bytes);
    const uint32_t round = __atomic_add_fetch(&s->round[g->rank], 1, __ATOMIC_ACQ_REL);
    for (int r = 0; r < g->j->n; r++) {
        while (__atomic_load_n(&s->round[r], __ATOMIC_ACQUIRE) < round)
            usleep(100);
        memcpy((char *)recv + (size_t)r * bytes, s->slot[r], bytes);
    }
    /* nobody overwrites a slot before all have read it */
    __atomic_add_fetch(&s->round[g->rank], 1, __ATOMIC_ACQ_REL);
    for (int r = 0; r < g->j->n; r++)
        while (__atomic_load_n(&s->round[r], __ATOMIC_ACQUIRE) < round + 1)
            usleep(100);
    return 0;
}

static int by_callback(struct job *j, int rank)
{
    struct gather g = {j, rank};
    mk_comm_t comm;
    int ret = mk_comm_init_allgather(&comm, j->n, rank, gather_fn, &g, NULL);
    if (ret)
        return job_failed(j, rank, ret);
    ret = call_and_check(comm, j->n, rank);
    mk_comm_destroy(comm);
    return ret ? job_failed(j, rank, ret) : 0;
}

static struct shared *shared_create(void)
{
    return mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

static void run(int nodes, int local, int (*fn)(struct job *, int))
{
    struct shared *s = shared_create();
    struct job *j = job_create(nodes, local, 60);
    job_run(j, fn, s);
    for (int r = 0; r < j->n; r++)
        if (j->r[r].status)
            fail_msg("rank %d status %d code %d: %s", r, j->r[r].status, j->r[r].code, j->r[r].text);
    job_destroy(j);
    munmap(s, sizeof(*s));
}

static void unique_id(void **state)
{
    (void)state;
    run(2, 2, by_unique_id);
}

static void callback(void **state)
{
    (void)state;
    run(2, 2, by_callback);
    run(1, 3, by_callback);
}

static int failing_callback(struct job *j, int rank)
{
    struct gather g = {j, rank};
    mk_comm_t comm = NULL;
    ((struct shared *)j->arg)->fail_at = 1;
    const int ret = mk_comm_init_allgather(&comm, j->n, rank, gather_fn, &g, NULL);
    return ret < 0 && !comm ? 0 : 3;
}
static void callback_that_fails(void **state)
{
    (void)state;
    run(2, 1, failing_callback);
}

/* Several communicators in one process, used in turn, made and destroyed again and again. */
static int many_comms(struct job *j, int rank)
{
    struct gather g = {j, rank};
    mk_comm_t comm[4];
    int ret = 0;
    for (int round = 0; round < 5 && !ret; round++) {
        for (int i = 0; i < 4 && !ret; i++)
            ret = mk_comm_init_allgather(&comm[i], j->n, rank, gather_fn, &g, NULL);
        for (int i = 0; i < 12 && !ret; i++)
            ret = call_and_check(comm[i * 7 % 4], j->n, rank);
        for (int i = 0; i < 4 && !ret; i++)
            ret = mk_comm_destroy(comm[i]);
    }
    return ret ? job_failed(j, rank, ret) : 0;
}
static void several_communicators(void **state)
{
    (void)state;
    run(2, 1, many_comms);
}

/* MK_WORKSPACE_TOTAL: the one too many is refused on all ranks alike, the others go on. */
static int too_many(struct job *j, int rank)
{
    struct gather g = {j, rank};
    mk_comm_t comm[3];
    int ret = 0;
    if (rank == 1)
        setenv("MK_WORKSPACE_TOTAL", "3M", 1); /* one rank's limit binds all */
    setenv("MK_WORKSPACE", "1M", 1);
    for (int i = 0; i < 3 && !ret; i++)
        ret = mk_comm_init_allgather(&comm[i], j->n, rank, gather_fn, &g, NULL);
    mk_comm_t more = NULL;
    const int refused = ret ? 0 : mk_comm_init_allgather(&more, j->n, rank, gather_fn, &g, NULL);
    if (refused != MK_ERR_UNSUPPORTED || more || !strstr(mk_last_error(), "MK_WORKSPACE_TOTAL"))
        return job_failed(j, rank, refused);
    for (int i = 0; i < 3 && !ret; i++)
        ret = call_and_check(comm[i], j->n, rank);
    mk_comm_destroy(comm[0]);
    if (!ret)
        ret = mk_comm_init_allgather(&comm[0], j->n, rank, gather_fn, &g, NULL);
    if (!ret)
        ret = call_and_check(comm[0], j->n, rank);
    for (int i = 0; i < 3; i++)
        mk_comm_destroy(comm[i]);
    return ret ? job_failed(j, rank, ret) : 0;
}
static void workspace_total(void **state)
{
    (void)state;
    run(2, 1, too_many);
}

/* An error of arguments leaves the communicator usable; nothing is touched. */
static int errors_then_work(struct job *j, int rank)
{
    mk_comm_t comm;
    float x[64];
    int ret = mk_comm_init_env(&comm, NULL), bad = 0;
    if (ret)
        return job_failed(j, rank, ret);
    for (int i = 0; i < 64; i++)
        x[i] = -5;
    bad += mk_gemm_allreduce(comm, MK_TN, 2, 2, 2, MK_FLOAT32, x, 2, x + 8, 2, x + 2, 2, NULL, NULL) !=
           MK_ERR_INVALID;
    bad += mk_gemm_allreduce(comm, MK_TN, -2, 2, 2, MK_FLOAT32, x, 2, x + 8, 2, x + 16, 2, NULL, NULL) !=
           MK_ERR_INVALID;
    bad += mk_gemm_allreduce(comm, MK_TN, 2, 2, 2, MK_FLOAT16, x, 2, x + 8, 2, x + 16, 2, NULL, NULL) !=
           MK_ERR_UNSUPPORTED;
    bad += mk_gemm_allreduce(comm, MK_TN, 2, 2, 2, MK_FLOAT32, x, 2, x + 8, 2, x + 16, 2, NULL, x) !=
           MK_ERR_INVALID;
    bad += mk_gemm_allreduce(NULL, MK_TN, 2, 2, 2, MK_FLOAT32, x, 2, x + 8, 2, x + 16, 2, NULL, NULL) !=
           MK_ERR_INVALID;
    for (int i = 0; i < 64; i++)
        bad += x[i] != -5;
    ret = call_and_check(comm, j->n, rank);
    int async = 1;
    bad += mk_comm_get_async_error(comm, &async) || async;
    mk_comm_destroy(comm);
    return ret ? job_failed(j, rank, ret) : bad;
}
static void errors_leave_it_usable(void **state)
{
    (void)state;
    run(2, 2, errors_then_work);
}

/* Ranks as threads of one process. */
struct thread_rank {
    mk_unique_id_t id;
    int rank, ret;
};
static void *thread_rank(void *p)
{
    struct thread_rank *t = p;
    mk_comm_t comm;
    t->ret = mk_comm_init_rank(&comm, 3, t->id, t->rank, NULL);
    for (int i = 0; i < 20 && !t->ret; i++)
        t->ret = call_and_check(comm, 3, t->rank);
    if (!t->ret)
        t->ret = mk_comm_destroy(comm);
    return NULL;
}
static void ranks_as_threads(void **state)
{
    (void)state;
    pthread_t id[3];
    struct thread_rank t[3];
    assert_int_equal(mk_get_unique_id(&t[0].id), 0);
    for (int i = 0; i < 3; i++) {
        t[i].id = t[0].id;
        t[i].rank = i;
        pthread_create(&id[i], NULL, thread_rank, &t[i]);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(id[i], NULL);
        assert_int_equal(t[i].ret, 0);
    }
}

/* What commands ask: the same checks as of a call. */
static void questions(mk_comm_t comm)
{
    struct mk_comm_info info;
    struct mk_plan_info plan, before;
    char bytes[8] = "same", got[8];
    memset(&plan, 0x5a, sizeof(plan));
    before = plan;
    assert_int_equal(mk_comm_info(NULL, &info), MK_ERR_INVALID);
    assert_int_equal(mk_comm_info(comm, NULL), MK_ERR_INVALID);
    assert_int_equal(mk_plan_info(NULL, 8, 8, MK_FLOAT32, &plan), MK_ERR_INVALID);
    assert_int_equal(mk_plan_info(comm, 8, 8, MK_FLOAT32, NULL), MK_ERR_INVALID);
    assert_int_equal(mk_plan_info(comm, -1, 8, MK_FLOAT32, &plan), MK_ERR_INVALID);
    assert_non_null(strstr(mk_last_error(), "M=-1"));
    assert_int_equal(mk_plan_info(comm, 8, INT64_MIN, MK_FLOAT32, &plan), MK_ERR_INVALID);
    assert_int_equal(mk_plan_info(comm, 8, 8, (mk_dtype_t)9, &plan), MK_ERR_INVALID);
    assert_non_null(strstr(mk_last_error(), "dtype 9"));
    assert_int_equal(mk_plan_info(comm, 8, 8, MK_FLOAT16, &plan), MK_ERR_UNSUPPORTED);
    assert_int_equal(mk_plan_info(comm, INT64_MAX, 8, MK_FLOAT32, &plan), MK_ERR_UNSUPPORTED);
    assert_int_equal(mk_plan_info(comm, 1 << 30, 1 << 30, MK_FLOAT32, &plan), MK_ERR_UNSUPPORTED);
    assert_memory_equal(&plan, &before, sizeof(plan)); /* set last */
    assert_int_equal(mk_plan_info(comm, 0, 8, MK_FLOAT32, &plan), 0);
    assert_int_equal(plan.tiles, 0);
    assert_int_equal(mk_plan_info(comm, 8, 8, MK_FLOAT32, &plan), 0);
    assert_int_equal(plan.tiles, 1);
    assert_int_equal(mk_comm_barrier(NULL), MK_ERR_INVALID);
    assert_int_equal(mk_comm_allgather(NULL, bytes, got, 8), MK_ERR_INVALID);
    assert_int_equal(mk_comm_allgather(comm, NULL, got, 8), MK_ERR_INVALID);
    assert_int_equal(mk_comm_allgather(comm, bytes, NULL, 8), MK_ERR_INVALID);
    assert_int_equal(mk_comm_allgather(comm, bytes, got, 8), 0);
    assert_string_equal(got, "same");
}

static void arguments(void **state)
{
    (void)state;
    mk_comm_t comm = NULL;
    mk_unique_id_t id;
    mk_config_t config = MK_CONFIG_INIT;
    int x;
    memset(&id, 0, sizeof(id));
    assert_int_equal(mk_get_unique_id(NULL), MK_ERR_INVALID);
    assert_int_equal(mk_comm_init_rank(NULL, 1, id, 0, NULL), MK_ERR_INVALID);
    assert_int_equal(mk_comm_init_rank(&comm, 0, id, 0, NULL), MK_ERR_INVALID);
    assert_int_equal(mk_comm_init_rank(&comm, 2, id, 2, NULL), MK_ERR_INVALID);
    assert_int_equal(mk_comm_init_rank(&comm, 2, id, -1, NULL), MK_ERR_INVALID);
    assert_int_equal(mk_comm_init_rank(&comm, 2, id, 0, NULL), MK_ERR_INVALID); /* an id of zeros */
    assert_int_equal(mk_comm_init_allgather(&comm, 2, 0, NULL, NULL, NULL), MK_ERR_INVALID);
    config.size = 3;
    assert_int_equal(mk_comm_init_rank(&comm, 1, id, 0, &config), MK_ERR_INVALID);
    config.size = sizeof(config);
    config.threads = -1;
    assert_int_equal(mk_comm_init_rank(&comm, 1, id, 0, &config), MK_ERR_INVALID);
    assert_null(comm);
    assert_int_equal(mk_comm_rank(NULL, &x), MK_ERR_INVALID);
    assert_int_equal(mk_comm_size(NULL, &x), MK_ERR_INVALID);
    assert_int_equal(mk_comm_get_async_error(NULL, &x), MK_ERR_INVALID);
    assert_int_equal(mk_comm_abort(NULL), MK_ERR_INVALID);
    assert_int_equal(mk_comm_destroy(NULL), 0);
    setenv("MK_THREADS", "many", 1);
    assert_int_equal(mk_comm_init_env(&comm, NULL), MK_ERR_INVALID);
    assert_non_null(strstr(mk_last_error(), "MK_THREADS"));
    unsetenv("MK_THREADS");
    assert_int_equal(mk_comm_init_env(&comm, NULL), 0); /* one rank: no network, no MK_ROOT */
    assert_int_equal(call_and_check(comm, 1, 0), 0);
    questions(comm);
    mk_comm_abort(comm);
    assert_int_equal(call_and_check(comm, 1, 0), MK_ERR_ABORTED);
    assert_int_equal(mk_comm_destroy(comm), 0);
}

/* mk_gemm alone, every layout, both dtypes, with an epilogue. */
static void gemm(void **state)
{
    (void)state;
    enum { M = 70, N = 530, K = 41 };
    for (int layout = 0; layout < 3; layout++)
        for (int dtype = 0; dtype < 2; dtype++) {
            const size_t e = dtype ? 2 : 4;
            void *a = malloc(M * K * e), *b = malloc(N * K * e), *c = malloc(M * N * e),
                 *bias = malloc(N * e);
            double *ref = calloc(M * N, sizeof(*ref));
            job_fill(a, dtype, M * K, 1);
            job_fill(b, dtype, N * K, 2);
            job_fill(bias, dtype, N, 3);
            const int lda = layout == MK_NT ? M : K, ldb = layout == MK_TN ? K : N;
            mk_ref_gemm_f64(layout, dtype, M, N, K, a, lda, b, ldb, ref);
            assert_int_equal(
                mk_gemm((mk_layout_t)layout, M, N, K, (mk_dtype_t)dtype, a, lda, b, ldb, c, N, NULL, NULL),
                0);
            assert_true(mk_ref_rel_error(c, dtype, M, N, N, ref) < (dtype ? 4e-3 : 2e-6));
            const mk_epilogue_t ep = {bias, MK_ACT_RELU};
            for (int i = 0; i < M * N; i++) {
                ref[i] += mk_ref_get(bias, dtype, i % N);
                ref[i] = ref[i] < 0 ? 0 : ref[i];
            }
            assert_int_equal(
                mk_gemm((mk_layout_t)layout, M, N, K, (mk_dtype_t)dtype, a, lda, b, ldb, c, N, &ep, NULL), 0);
            assert_true(mk_ref_rel_error(c, dtype, M, N, N, ref) < (dtype ? 6e-3 : 2e-6));
            free(a);
            free(b);
            free(c);
            free(bias);
            free(ref);
        }
    assert_int_equal(mk_gemm(MK_TN, 2, 2, 2, MK_FLOAT32, NULL, 2, NULL, 2, NULL, 2, NULL, NULL),
                     MK_ERR_INVALID);
}

int main(int argc, char **argv)
{
    /* those that start threads in this process last: the others fork */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unique_id),           cmocka_unit_test(callback),
        cmocka_unit_test(callback_that_fails), cmocka_unit_test(several_communicators),
        cmocka_unit_test(workspace_total),     cmocka_unit_test(errors_leave_it_usable),
        cmocka_unit_test(arguments),           cmocka_unit_test(gemm),
        cmocka_unit_test(ranks_as_threads),
    };
    setenv("MK_NET", argc > 1 ? argv[1] : "loop", 1);
    job_seconds("MK_TIMEOUT", 20);
    setenv("MK_LOG", "none", 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
