/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Communicators that come and go, and one that is aborted in the middle of its traffic. */
#include "tests/gpu/nccl.h"
#include "mk/err.h"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define P(x) ((void *)(uintptr_t)(x))
#define SETTLED 5     /* the first few may still grow what stays */
#define FILES_MORE 16 /* open files that the rest may add */
#define ABORT_S 2.0
#define ABORT_BYTES (256u << 20)
#define ABORT_CALLS 4

static int open_files(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n;
}

/* One all-reduce, checked. */
static int used(struct job *j, void *comm, size_t bytes, const char *what)
{
    const struct want sum = {.kind = WANT_SUM};
    contents(j, bytes / 4, bytes / 4);
    const int error =
        j->nccl.all_reduce(P(j->send), P(j->recv), bytes / 4, NCCL_UINT32, NCCL_SUM, comm, gpu_stream());
    if (error) {
        fail(j, "%s: %s; %s", what, j->nccl.error_string(error), j->nccl.last_error(comm));
        j->nccl.abort(comm);
        return 1;
    }
    if (await(j, comm, 30, what))
        return 1;
    check(j, j->recv, bytes / 4, &sum, what, false);
    j->call++;
    return 0;
}

/* Each is destroyed before the next one is made: the plugin is opened, used and left so many times. */
int show_lives(struct job *j, int lives)
{
    int files = 0, done = 0;
    const double begin = now_s();
    for (; done < lives; done++) {
        char text[40];
        snprintf(text, sizeof(text), "communicator %d", done);
        void *comm = comm_new(j, text);
        if (!comm || used(j, comm, done % 2 ? 8 : 1 << 20, text) || comm_end(j, comm, text) || meet(j, text))
            break;
        if (done + 1 == SETTLED)
            files = open_files();
    }
    const int more = done > SETTLED ? open_files() - files : 0;
    if (done < lives)
        fail(j, "only %d of %d communicators", done, lives);
    else if (more > FILES_MORE)
        fail(j, "%d communicators left %d files open", lives - SETTLED, more);
    printf("rank %d of %d: %d communicators made, used and destroyed, %.0f ms each, %d files more open than "
           "after %d: "
           "%d failures\n",
           j->rank, j->nranks, done, (now_s() - begin) * 1e3 / (done ? done : 1), more, SETTLED, j->failures);
    return j->failures != 0;
}

/* Several all-reduces that take longer than this rank's patience, then ncclCommAbort. The first rank to abort does it in
 * the middle of the traffic; the others either see an error of the network by then, or abort all the same. */
static int abort_once(struct job *j, int round)
{
    char text[60];
    int error = 0;
    snprintf(text, sizeof(text), "round %d", round);
    void *comm = comm_new(j, text);
    if (!comm || used(j, comm, 8, text) || used(j, comm, 4u << 20, text) || meet(j, text))
        return 1;
    for (int i = 0; i < ABORT_CALLS && !error; i++)
        error = j->nccl.all_reduce(P(j->send), P(j->recv), ABORT_BYTES / 4, NCCL_UINT32, NCCL_SUM, comm,
                                   gpu_stream());
    if (error)
        return fail(j, "%s: %s; %s", text, j->nccl.error_string(error), j->nccl.last_error(comm));
    usleep(100000 + (useconds_t)((j->rank + round) % j->nranks) * 400000);
    const int ret = j->cu->stream_query(gpu_stream());
    j->nccl.async_error(comm, &error);
    const double begin = now_s();
    const int result = j->nccl.abort(comm);
    const double took = now_s() - begin;
    const double wait = now_s();
    while (j->cu->stream_query(gpu_stream()) == MK_CU_NOT_READY && now_s() - wait < 10)
        usleep(1000);
    const double idle = now_s() - wait;
    printf("rank %d: %s: aborted after %.3f s%s, %s before: result %d, the stream was idle %.3f s later\n",
           j->rank, text, took, ret == MK_CU_NOT_READY ? " with traffic in flight" : "",
           error ? j->nccl.error_string(error) : "no error", result, idle);
    if ((j->rank + round) % j->nranks == 0 && ret != MK_CU_NOT_READY)
        fail(j, "%s: nothing was in flight any more (%d): the link is too fast, MK_LOOP_GBPS slows it", text,
             ret);
    if (took > ABORT_S)
        fail(j, "%s: ncclCommAbort took %.3f s", text, took);
    if (idle >= 10)
        fail(j, "%s: kernels go on after ncclCommAbort", text);
    return meet(j, text);
}

int show_abort(struct job *j)
{
    int bad = 0;
    for (int round = 0; round < 4 && !bad; round++)
        bad = abort_once(j, round);
    void *comm = bad ? NULL : comm_new(j, "after the aborts");
    if (comm && !used(j, comm, 1 << 20, "after the aborts"))
        comm_end(j, comm, "after the aborts");
    printf("rank %d of %d: aborts: %d failures\n", j->rank, j->nranks, j->failures);
    return bad || j->failures;
}
