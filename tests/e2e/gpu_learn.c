/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What a communicator on a GPU tells its launches of the controller, and takes from what they write for it, over the stand-in
 * for the driver: two processes on one GPU, launches recorded (gpu_record.h), the kernel's words written by the test. */
#include "comm.h"
#include "cuda/gpu.h"
#include "gpu_record.h"
#include "job.h"
#include "mk/fused.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static char folder[] = "/tmp/mk-gpu-learn-XXXXXX", file[64];

struct rank {
    struct job *j;
    int rank;
    mk_comm_t comm;
    uint8_t *a, *b, *c;
};

/* The launch of C[m,n], K = 256, in which the large kernels are used, or the portable one if n is odd. */
static int launched(struct rank *r, int64_t m, int64_t n, struct mk_ar *ar)
{
    gpu_forget();
    const int ret =
        mk_gemm_allreduce(r->comm, MK_TN, m, n, 256, MK_BFLOAT16, r->a, 256, r->b, 256, r->c, n, NULL, NULL);
    if (ret || gpu.launches != 1)
        return ret ? ret : -100;
    memcpy(ar, gpu.last.args + (strstr(gpu.last.name, "portable") ? 0 : 1792), sizeof(*ar));
    return 0;
}
/* As the kernel does in the first step of a launch after some that taught it this. */
static void teach(struct rank *r, int class, uint32_t number, uint32_t compute, uint32_t comm,
                  uint32_t target)
{
    uint64_t *told = r->comm->gpu->words->taught[class];
    __atomic_store_n(&told[MK_TAUGHT_COSTS], (uint64_t)comm << 32 | compute, __ATOMIC_RELAXED);
    __atomic_store_n(&told[MK_TAUGHT_TARGET], (uint64_t)number << 32 | target, __ATOMIC_RELEASE);
}

#define OR_FAIL(x)                                                                                           \
    if (!(x))                                                                                                \
    return snprintf(r.j->r[r.rank].text, sizeof(r.j->r[r.rank].text), "line %d: %s (%s)", __LINE__, #x,      \
                    mk_last_error()),                                                                        \
           3

static int make(struct rank *r)
{
    struct mk_cuda *cu = gpu_record();
    mk_cu_ptr p[3];
    for (int i = 0; cu && i < 3; i++)
        if (cu->mem_alloc(&p[i], 4096 * 1024 * 2))
            return 1;
    if (!cu || mk_comm_init_env(&r->comm, NULL))
        return 1;
    r->a = (uint8_t *)(uintptr_t)p[0];
    r->b = (uint8_t *)(uintptr_t)p[1];
    r->c = (uint8_t *)(uintptr_t)p[2];
    return 0;
}

static int first_job(struct job *j, int rank)
{
    struct rank r = {.j = j, .rank = rank};
    struct mk_plan_info info;
    struct mk_ar ar;
    OR_FAIL(!make(&r));
    OR_FAIL(!mk_plan_info(r.comm, 512, 1024, MK_BFLOAT16, &info) && info.controlled);
    struct mk_starts *s = r.comm->learn->starts;
    const uint8_t *words = (uint8_t *)(uintptr_t)r.comm->gpu->words_device;

    OR_FAIL(!launched(&r, 512, 1024, &ar));
    OR_FAIL(ar.control == 1 && ar.control_number == 1 && !ar.control_pin);
    OR_FAIL(!ar.control_cost[0] && !ar.control_cost[1] && ar.control_start == (uint32_t)ar.budget);
    OR_FAIL((uint8_t *)ar.taught == words + offsetof(struct mk_gpu_words, taught) && ar.budget > 1);
    OR_FAIL(mk_starts_count(s) == 0);
    OR_FAIL(!launched(&r, 1023, 1021, &ar) &&
            strstr(gpu.last.name, "portable")); /* another class and kernel */
    OR_FAIL(ar.control == 2 && ar.control_number == 2 && ar.state);
    OR_FAIL((uint8_t *)ar.taught == words + offsetof(struct mk_gpu_words, taught[1]));

    teach(&r, 0, 77, 1600, 800, 5); /* of another number: a launch of a class that this state was before */
    OR_FAIL(!launched(&r, 512, 1024, &ar) && ar.control == 1 && mk_starts_count(s) == 0);
    teach(&r, 0, 1, 1600, 0, 5); /* one kind of task: nothing learned */
    OR_FAIL(!launched(&r, 512, 1024, &ar) && mk_starts_count(s) == 0);
    teach(&r, 0, 1, 1600, 800, 5);
    OR_FAIL(!launched(&r, 512, 1024, &ar) && mk_starts_count(s) == 1);
    OR_FAIL(ar.control_number == 1); /* the state goes on */

    OR_FAIL(!mk_comm_pin_comm_blocks(r.comm, 3) && !launched(&r, 512, 1024, &ar));
    OR_FAIL(ar.control == 1 && ar.control_pin == 3 && !mk_comm_pin_comm_blocks(r.comm, 0));
    OR_FAIL(!mk_comm_set_comm_blocks(r.comm, 4) && !launched(&r, 512, 1024, &ar));
    OR_FAIL(!ar.control && ar.budget == 4);
    OR_FAIL(!mk_comm_set_comm_blocks(r.comm, 0) && !launched(&r, 512, 1024, &ar) && ar.control == 1);
    OR_FAIL(!launched(&r, 16, 1024, &ar) && strstr(gpu.last.name, "_ll_")); /* no roles on the latency path */
    OR_FAIL(r.comm->learn->numbers == 2);
    teach(&r, 1, 2, 3200, 1600, 9); /* taken over at the end */
    OR_FAIL(!mk_comm_destroy(r.comm));
    return 0;
}

/* More classes than states: what the oldest one was taught is kept, and it comes back as a new one that knows it. */
static int second_job(struct job *j, int rank)
{
    struct rank r = {.j = j, .rank = rank};
    struct mk_ar ar;
    OR_FAIL(!make(&r));
    struct mk_starts *s = r.comm->learn->starts;
    OR_FAIL(mk_starts_count(s) == 2);
    OR_FAIL(!launched(&r, 512, 1024, &ar) && ar.control_start == 5);
    OR_FAIL(ar.control_cost[0] == 1600 && ar.control_cost[1] == 800);
    teach(&r, 0, 1, 6400, 800, 7);
    for (int i = 0; i < MK_AR_CTL_CLASSES; i++)
        OR_FAIL(!launched(&r, 128 << i % 4, 16 << i / 4, &ar) && ar.control);
    OR_FAIL(ar.control == 1 && ar.control_number == MK_AR_CTL_CLASSES + 1);
    teach(&r, 0, 1, 12800, 800, 7); /* too late: a launch of the class before it */
    OR_FAIL(!launched(&r, 512, 1024, &ar) && ar.control == 2);
    OR_FAIL(ar.control_cost[0] == 6400 && ar.control_start == 7);
    OR_FAIL(!mk_comm_destroy(r.comm));
    return 0;
}

static int fixed_job(struct job *j, int rank)
{
    struct rank r = {.j = j, .rank = rank};
    struct mk_plan_info info;
    struct mk_ar ar;
    OR_FAIL(!make(&r) && !r.comm->learn);
    OR_FAIL(!mk_plan_info(r.comm, 512, 1024, MK_BFLOAT16, &info) && !info.controlled);
    OR_FAIL(!launched(&r, 512, 1024, &ar) && !ar.control && !ar.taught);
    OR_FAIL(!mk_comm_destroy(r.comm));
    return 0;
}

static void run(int (*fn)(struct job *j, int rank))
{
    struct job *j = job_create(1, 2, 60);
    job_run(j, fn, NULL);
    for (int r = 0; r < j->n; r++)
        if (j->r[r].status)
            fail_msg("rank %d: status %d: %s", r, j->r[r].status, j->r[r].text);
    job_destroy(j);
}

static void told_and_taught(void **state)
{
    (void)state;
    setenv("MK_COMM_BLOCKS", "-1", 1);
    run(first_job);
    run(second_job);
}

static void fixed_budgets(void **state)
{
    (void)state;
    setenv("MK_COMM_BLOCKS", "-1", 1);
    setenv("MK_TUNER", "off", 1);
    run(fixed_job);
    unsetenv("MK_TUNER");
    setenv("MK_COMM_BLOCKS", "2", 1);
    run(fixed_job);
    unsetenv("MK_COMM_BLOCKS"); /* as long as a GPU does not choose it */
    run(fixed_job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(told_and_taught),
        cmocka_unit_test(fixed_budgets),
    };
    if (!mkdtemp(folder))
        return 2;
    snprintf(file, sizeof(file), "%s/starts", folder);
    setenv("MK_TUNER_FILE", file, 1);
    setenv("MK_SHARED_GPU", "1", 1);
    const int ret = cmocka_run_group_tests(tests, NULL, NULL);
    char lock[80];
    snprintf(lock, sizeof(lock), "%s.lock", file);
    unlink(file);
    unlink(lock);
    rmdir(folder);
    return ret;
}
