/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* MK_VERIFY in the adapter: every pair is plain and looked at; one whose C changed is told once, with what came between. */
#include "hook_adapt.h"
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define REDUCE(send, recv) rank_reduce(&r.comm, &r.s, send, recv, 32)

static uint64_t reports[MK_PAIR_CHECKS + 1][2]; /* as kernels would count them */

static uint64_t checked(uint32_t site, bool differed)
{
    return reports[site][differed];
}

static void begin(int verify, bool counted)
{
    static struct mk_fuse_ops ops;
    ops = *rank_ops();
    ops.checked = checked;
    const struct mk_adapt_options options = {
        .ops = &ops, .counted = counted, .proved_only = true, .witness = 1, .verify = verify};
    rank_start(&options);
    rank_agree_comm(&r.comm, 99, &r.s);
    DID("nccl rec NCCL:not-ready");
    rank_gemm(&r.s, c_mem);
    REDUCE(c_mem, c_mem);
    DID("gemm K rec ORIGINAL PLAIN:learning:unknown-site");
}

static void sees(uint32_t site, bool differs)
{
    for (uint32_t i = 0; i < 2; i++) {
        reports[i * site][0]++;
        reports[i * site][1] += differs;
    }
}

/* What one collective writes to stderr. */
static const char *said_by_reduce(void)
{
    static char text[2000];
    FILE *f = tmpfile();
    fflush(stderr);
    const int old = dup(2);
    if (!f || old < 0 || dup2(fileno(f), 2) < 0)
        abort();
    REDUCE(c_mem, c_mem);
    fflush(stderr);
    dup2(old, 2);
    close(old);
    rewind(f);
    text[fread(text, 1, sizeof(text) - 1, f)] = '\0';
    fclose(f);
    return text;
}

static void pairs_are_plain_and_looked_at(void)
{
    begin(1, true);
    for (int i = 0; i < 2; i++) {
        rank_gemm(&r.s, c_mem);
        CHECK(r.last_g.check && !r.last_g.room);
        CHECK(!*said_by_reduce());
        CHECK(r.last_k.check == 1 && !r.last_k.overlap && !r.last_k.reduce);
        CHECK(r.last_k.generation == r.last_g.generation && r.last_k.descriptor == r.last_g.descriptor);
        sees(1, false);
        DID("G K rec G OVERLAP");
    }
    /* what is no proof is not looked at */
    rank_gemm(&r.s, c_mem);
    cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, &r.s, NULL, NULL);
    CHECK(!*said_by_reduce() && !r.last_k.check);
    DID("G cuLaunchKernel K rec G PLAIN:intruder");
}

static void a_missed_one_is_named(void)
{
    begin(1, true);
    rank_gemm(&r.s, c_mem);
    ncclCommFinalize(NULL); /* hooked, and counts for no enqueue */
    CHECK(!*said_by_reduce());
    DID("G ncclCommFinalize K rec G OVERLAP");
    sees(1, true);
    rank_gemm(&r.s, c_mem);
    const char *said = said_by_reduce();
    CHECK(strstr(said, "fuse check comm=") && strstr(said, "op=AllReduce n=32 bf16 site=program+0x"));
    CHECK(strstr(said, ": DIFFERS proof=driver between=ncclCommFinalize ("));
    CHECK(!r.last_k.check && !r.last_k.overlap);
    DID("G K rec G PLAIN:refuted");
    sees(1, true); /* graphs from before go on */
    rank_gemm(&r.s, c_mem);
    CHECK(!*said_by_reduce()); /* once */
    DID("G K rec G PLAIN:refuted");
    /* another site */
    rank_gemm(&r.s, c_mem);
    ncclAllReduce(c_mem, c_mem, 32, NCCL_BF16, 0, &r.comm, &r.s);
    DID("G K rec G OVERLAP");
    CHECK(r.last_k.check == 2);
    sees(2, true);
    rank_gemm(&r.s, c_mem);
    said = said_by_reduce();
    CHECK(strstr(said, "between=none ("));
    DID("G K rec G PLAIN:refuted");
}

static void captures_keep_their_dependencies(void)
{
    begin(1, true);
    rank_begin_capture(&r.s, 5);
    rank_gemm(&r.s, c_mem);
    struct stand_node *g = r.s.deps[0];
    struct stand_node before = {0};
    g->deps[0] = &before, g->ndeps = 1;
    r.s.deps[r.s.ndeps++] = &before;
    REDUCE(c_mem, c_mem);
    DID("wait-external G wait-external K rec G OVERLAP");
    CHECK(r.last_k.captured && r.last_k.check && !r.last_k.reduce && !r.last_k.overlap);
}

/* For tests on a GPU, that must see it fire. */
static void assumed(void)
{
    begin(2, false);
    rank_gemm(&r.s, c_mem);
    cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, &r.s, NULL, NULL);
    CHECK(!*said_by_reduce());
    DID("G cuLaunchKernel K rec G OVERLAP");
    sees(r.last_k.check, true);
    rank_gemm(&r.s, c_mem);
    CHECK(strstr(said_by_reduce(), "DIFFERS proof=assumed between=cuLaunchKernel ("));
    DID("G K rec G PLAIN:refuted");
}

static void by_default_nothing(void)
{
    begin(0, true);
    rank_gemm(&r.s, c_mem);
    CHECK(!r.last_g.check);
    sees(1, true);
    CHECK(!*said_by_reduce() && !r.last_k.check && r.last_k.overlap);
    DID("G+room K|| rec G OVERLAP");
}

static int stuck; /* atomic */
static int stuck_k(const struct mk_fuse_k *k)
{
    (void)k;
    __atomic_store_n(&stuck, 1, __ATOMIC_RELEASE);
    while (__atomic_load_n(&stuck, __ATOMIC_ACQUIRE))
        pause();
    return 0;
}
static void *reduces(void *arg)
{
    (void)arg;
    REDUCE(c_mem, c_mem);
    return NULL;
}

/* The driver may keep a launch for good; the process ends all the same. */
static void the_end_waits_for_no_call(void)
{
    static struct mk_fuse_ops ops;
    pthread_t thread;
    int status = 0;
    fflush(NULL);
    const pid_t pid = fork();
    if (!pid) {
        alarm(60);
        ops = *rank_ops();
        ops.launch_k = stuck_k;
        const struct mk_adapt_options options = {.ops = &ops, .witness = 1};
        rank_start(&options);
        rank_agree_comm(&r.comm, 99, &r.s);
        if (pthread_create(&thread, NULL, reduces, NULL))
            _exit(2);
        while (!__atomic_load_n(&stuck, __ATOMIC_ACQUIRE))
            sched_yield();
        exit(failures != 0);
    }
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && !status);
}

void check_cases(void)
{
    void (*const cases[])(void) = {pairs_are_plain_and_looked_at,
                                   a_missed_one_is_named,
                                   captures_keep_their_dependencies,
                                   assumed,
                                   by_default_nothing,
                                   the_end_waits_for_no_call};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        memset(reports, 0, sizeof(reports));
        cases[i]();
    }
}
