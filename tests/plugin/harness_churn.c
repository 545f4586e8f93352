/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Cases about a process that lives long: communicators come and go in it. */
#include "tests/plugin/harness.h"
#include <dirent.h>

int open_files(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n;
}

void communicator(struct rank *r, int number)
{
    static const size_t sizes[2] = {30000, 200};
    struct link l;
    link_up(r, &l, !r->me, number % SLOTS_MAX);
    for (int k = 0; k < 2; k++) {
        struct buf a, b;
        int size = -1;
        const uint64_t seed = (uint64_t)(2 * number + k);
        buf_new(r, &a, sizes[k], 0);
        buf_new(r, &b, sizes[k], 0);
        buf_reg(r, &a, l.send);
        buf_reg(r, &b, l.recv);
        buf_fill(&a, seed, sizes[k]);
        void *rx = post_recv(r, l.recv, &b, sizes[k], 0);
        finish_both(r, post_send(r, l.send, &a, sizes[k], 0), rx, &size);
        need(r, size == (int)sizes[k] && buf_wrong(&b, seed, sizes[k]) < 0, "communicator %d: wrong data",
             number);
        step(r);
        buf_free(r, &a);
        buf_free(r, &b);
    }
    link_down(r, &l);
}

/* 200 in a row, each with a context of its own. Nine of ten have the next one beside them before they end; the tenth ends
 * first, so that the library has no user between. Nothing of them stays open. */
static void churn(struct rank *r)
{
    enum { N = 200, WARM = 20 };
    struct caller other = r->c;
    int files = 0;
    for (int i = 0; i < N; i++) {
        const bool overlaps = i % 10 != 9;
        communicator(r, i);
        if (overlaps)
            need(r, !caller_init(&other, logger), "init %d beside another fails", i);
        need(r, !caller_finalize(&r->c), "finalize %d fails", i);
        if (overlaps)
            r->c = other;
        else
            need(r, !caller_init(&r->c, logger), "init %d fails", i);
        if (i == WARM)
            files = open_files();
    }
    const int more = open_files() - files;
    need(r, more <= 8, "%d files more are open after %d more communicators", more, N - WARM);
}

const struct test_case cases_churn[] = {
    {.name = "churn", .ranks = 2, .run = churn},
    {.name = NULL},
};
