/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Set-up and end of a communicator on GPUs, over the stand-in for the driver: two processes, each with a GPU. Every call
 * of the driver fails once, on one rank: all ranks get the error and nothing is left. Memory that a peer still has
 * mapped outlives its communicator, not longer. Nothing is launched: tests/gpu does that. */
#include "comm.h"
#include "cuda/gpu.h"
#include "job.h"
#include "mk/cuda.h"
#include "mk/fused.h"
#include "tests/net/fake_cuda.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

enum { ALONE = 1, TOGETHER = 2, DESTROYED = 3, CHECKED = 4 };

struct plan {
    int fail;    /* which call of the driver fails on rank 1; 0: none */
    int without; /* this rank has no current context; -1: all have one */
    bool one_gpu;
};

static void use_gpu(int device)
{
    const struct mk_cuda *cu = mk_cuda_open(NULL);
    void *ctx;
    if (!cu || cu->ctx_retain(&ctx, device) || cu->ctx_set(ctx))
        abort();
}

static void wait_stage(struct job *j, int rank, int stage)
{
    for (int i = 0; i < 40000 && __atomic_load_n(&j->r[rank].stage, __ATOMIC_ACQUIRE) < stage; i++)
        usleep(500);
}

/* What is allocated, mapped, pinned; a communicator of one rank sweeps what others left. */
static int rest(struct job *j, int rank)
{
    const struct fake_cuda_counts *n = fake_cuda_found();
    mk_unique_id_t none;
    mk_comm_t alone;
    unsetenv("FAKE_CUDA_FAIL");
    memset(&none, 0, sizeof(none));
    if (mk_comm_init_rank(&alone, 1, none, 0, NULL))
        return 20;
    mk_comm_destroy(alone);
    if (!n->memory && !n->opened && !n->registered && !n->events)
        return 0;
    snprintf(j->r[rank].text, sizeof(j->r[rank].text), "left: %ld memory, %ld opened, %ld pinned, %ld events",
             n->memory, n->opened, n->registered, n->events);
    return 21;
}

static int set_up(struct job *j, int rank)
{
    const struct plan *p = j->arg;
    char text[16];
    struct mk_comm_info info;
    mk_comm_t comm;
    if (rank != p->without)
        use_gpu(p->one_gpu ? 0 : rank);
    snprintf(text, sizeof(text), "%d", p->fail);
    if (p->fail && rank == 1)
        setenv("FAKE_CUDA_FAIL", text, 1);
    int ret = mk_comm_init_env(&comm, NULL);
    if (ret) {
        job_failed(j, rank, ret);
    } else {
        mk_comm_info(comm, &info);
        ret = strcmp(info.gemm, "GPU") ? 22 : 0;
        if (!ret && info.chunk != (j->nodes > 1 ? 2u << 20 : 256u << 10)) /* the network takes large ones */
            ret = 23;
        mk_comm_destroy(comm);
    }
    job_stage(j, rank, DESTROYED);
    wait_stage(j, 1 - rank, DESTROYED);
    if (rank == p->without || ret > 0) {
        job_stage(j, rank, CHECKED);
        return ret > 0 ? ret : 0;
    }
    if (rank == 1 && !p->fail)
        j->r[rank].hash[0] = (unsigned long)fake_cuda_found()->calls;
    const int left = rest(j, rank);
    job_stage(j, rank, CHECKED);
    wait_stage(j, 1 - rank, CHECKED);
    return left;
}

static void expect(struct job *j, int code, const char *what)
{
    for (int r = 0; r < 2; r++)
        if (j->r[r].status || j->r[r].code != code)
            fail_msg("%s, %d x %d: rank %d status %d code %d, not %d: %s", what, j->nodes, j->local, r,
                     j->r[r].status, j->r[r].code, code, j->r[r].text);
}

static void every_call_fails_once(void **state)
{
    (void)state;
    for (int nodes = 1; nodes <= 2; nodes++) {
        struct plan p = {0, -1, false};
        struct job *j = job_create(nodes, 2 / nodes, 30);
        job_run(j, set_up, &p);
        expect(j, 0, "no failure");
        const int calls = (int)j->r[1].hash[0];
        assert_in_range(calls, 8, 40);
        for (p.fail = 1; p.fail <= calls; p.fail++) {
            char text[40];
            job_run(j, set_up, &p);
            snprintf(text, sizeof(text), "call %d of %d fails", p.fail, calls);
            expect(j, MK_ERR_CUDA, text);
        }
        job_destroy(j);
    }
}

static void all_on_gpus_or_none(void **state)
{
    (void)state;
    struct plan p = {0, 1, false};
    struct job *j = job_create(1, 2, 30);
    job_run(j, set_up, &p);
    expect(j, MK_ERR_MISMATCH, "one rank without a context");
    job_destroy(j);
}

static void a_gpu_is_shared_by_permission(void **state)
{
    (void)state;
    for (int nodes = 1; nodes <= 2; nodes++) {
        struct plan p = {0, -1, true};
        struct job *j = job_create(nodes, 2 / nodes, 30);
        job_run(j, set_up, &p);
        expect(j, MK_ERR_UNSUPPORTED, "two ranks on a GPU");
        setenv("MK_SHARED_GPU", "1", 1);
        job_run(j, set_up, &p);
        unsetenv("MK_SHARED_GPU");
        expect(j, 0, "two ranks on a GPU, MK_SHARED_GPU=1");
        job_destroy(j);
    }
}

/* Rank 0 destroys while rank 1 has its memory mapped. */
static int leave_first(struct job *j, int rank)
{
    mk_comm_t comm;
    use_gpu(rank);
    const int ret = mk_comm_init_env(&comm, NULL);
    if (ret)
        return job_failed(j, rank, ret);
    job_stage(j, rank, TOGETHER);
    wait_stage(j, 1 - rank, TOGETHER);
    if (rank) {
        wait_stage(j, 0, DESTROYED);
        mk_comm_destroy(comm);
        job_stage(j, rank, DESTROYED);
        return rest(j, rank);
    }
    mk_comm_destroy(comm);
    const long kept = fake_cuda_found()->memory;
    job_stage(j, rank, DESTROYED);
    wait_stage(j, 1, DESTROYED);
    return kept == 1 ? rest(j, rank) : 23;
}

static void mapped_memory_outlives_its_communicator(void **state)
{
    (void)state;
    struct job *j = job_create(1, 2, 30);
    job_run(j, leave_first, NULL);
    expect(j, 0, "rank 0 leaves first");
    job_destroy(j);
}

/* A K that only one rank has: the other learns of it. */
static int large_k(struct job *j, int rank)
{
    mk_comm_t comm;
    int error = 0;
    use_gpu(rank);
    int ret = mk_comm_init_env(&comm, NULL);
    if (ret)
        return job_failed(j, rank, ret);
    if (rank)
        error = mk_gemm_allreduce(comm, MK_NT, 1, 1, 1ll << 31, MK_BFLOAT16, &ret, 1, &ret, 1, &ret, 1, NULL,
                                  NULL);
    for (int i = 0; i < 10000 && !error; i++) {
        usleep(500);
        mk_comm_get_async_error(comm, &error);
    }
    job_failed(j, rank, error);
    mk_comm_destroy(comm);
    return strstr(j->r[rank].text, "K=2147483648") ? 0 : 24;
}

static void a_k_too_large_on_one_rank_is_told_to_all(void **state)
{
    (void)state;
    struct job *j = job_create(1, 2, 30);
    job_run(j, large_k, NULL);
    expect(j, MK_ERR_UNSUPPORTED, "K of 2^31 on rank 1");
    job_destroy(j);
}

/* What a block reported before its kernel ended is there for the next question: nothing else need have run. */
static int reported(struct job *j, int rank)
{
    mk_comm_t comm;
    int error = 0;
    use_gpu(rank);
    int ret = mk_comm_init_env(&comm, NULL);
    if (ret)
        return job_failed(j, rank, ret);
    if (rank == 0) {
        mk_gpu_unwatch(comm->gpu);
        mk_comm_get_async_error(comm, &ret);
        comm->gpu->words->what[MK_WHAT_KIND] = MK_AR_REDUCE;
        __atomic_store_n(&comm->gpu->words->failed, (uint64_t)-MK_ERR_TIMEOUT, __ATOMIC_RELEASE);
        mk_comm_get_async_error(comm, &error);
    }
    for (int i = 0; i < 10000 && !error && rank; i++) {
        usleep(500);
        mk_comm_get_async_error(comm, &error);
    }
    job_failed(j, rank, error);
    mk_comm_destroy(comm);
    return ret ? 25 : 0;
}

static void a_report_is_seen_at_once(void **state)
{
    (void)state;
    struct job *j = job_create(1, 2, 30);
    job_run(j, reported, NULL);
    expect(j, MK_ERR_TIMEOUT, "a block's report");
    job_destroy(j);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_fails_once),
        cmocka_unit_test(all_on_gpus_or_none),
        cmocka_unit_test(a_gpu_is_shared_by_permission),
        cmocka_unit_test(mapped_memory_outlives_its_communicator),
        cmocka_unit_test(a_k_too_large_on_one_rank_is_told_to_all),
        cmocka_unit_test(a_report_is_seen_at_once),
    };
    setenv("MK_NET", "loop", 1);
    setenv("MK_TIMEOUT", "10", 1);
    setenv("MK_LOG", "none", 0);
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
