/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Rate of 8-byte inline writes over verbs, eight a doorbell against one a doorbell, in turn in the same run; one
 * signalled write a doorbell, one poll after each, as the proxy does it. Fails only when a write does; the figures are
 * for people. Two devices of one process: the target's processor has no part in plain writes. No RDMA device: skip. */
#include "mk/err.h"
#include "mk/param.h"
#include "mk/shm.h"
#include "net/transport.h"
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS 31
#define WRITES 2048u
#define BOUND_NS 60000000000ull

struct end {
    struct mk_dev *dev;
    struct mk_conn *conn;
    struct mk_mr *mr;
    struct mk_rmem *rmem;
    struct mk_net_addr addr;
    struct mk_net_key key;
    uint64_t words[512];
};

static const struct mk_net_ops *const ops = &mk_verbs_ops;

static int failed(const char *what)
{
    printf("verbs_rate: %s: %s\n", what, mk_last_error());
    return 1;
}

/* Seconds for WRITES writes in lists of n; negative: failed. */
static double stream(struct end *a, int n)
{
    struct mk_wr wr[8];
    struct mk_wc wc[16];
    uint32_t posted = 0, ended = 0; /* ended: lists */
    const uint64_t begin = mk_time_ns();
    while (ended < WRITES / (uint32_t)n) {
        int k = 0;
        for (; k < n && posted + (uint32_t)k < WRITES; k++) {
            memset(&wr[k], 0, sizeof(wr[k]));
            wr[k].rmem = a->rmem;
            wr[k].remote_off = (posted + (uint32_t)k) % 512 * 8;
            wr[k].inline_data = posted + (uint32_t)k;
            wr[k].len = 8;
            wr[k].flags = MK_WR_INLINE | (((posted + (uint32_t)k) + 1) % (uint32_t)n ? 0u : MK_WR_SIGNALED);
        }
        const int took = k ? ops->post(a->conn, wr, k) : 0;
        if (took < 0)
            return failed("post"), -1;
        posted += (uint32_t)took;
        const int got = ops->poll(a->dev, wc, 16);
        if (got < 0)
            return failed("poll"), -1;
        for (int i = 0; i < got; i++) {
            ended += wc[i].kind == MK_WC_LOCAL;
            if (wc[i].status) {
                printf("verbs_rate: a write failed: %s\n", wc[i].text);
                return -1;
            }
        }
        if (!got && !took)
            sched_yield(); /* emulated processors, few: the other end needs one too */
        if (mk_time_ns() - begin > BOUND_NS) {
            printf("verbs_rate: %u of %u writes ended in time\n", ended * (uint32_t)n, WRITES);
            return -1;
        }
    }
    return (double)(mk_time_ns() - begin) * 1e-9;
}

static int join(struct end *a, struct end *b)
{
    if (ops->conn_connect(a->conn, &b->addr) || ops->import(a->conn, &b->key, &a->rmem))
        return failed("connecting");
    return 0;
}

static int by_rate(const void *x, const void *y)
{
    const double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

int main(void)
{
    static struct end e[2];
    struct mk_settings s;
    double eight[ROUNDS], one[ROUNDS], ratio[ROUNDS];
    if (mk_settings_load(&s, false))
        return 2;
    for (int i = 0; i < 2; i++) {
        const int ret = ops->open(&s, &e[i].dev);
        if (ret == MK_ERR_UNSUPPORTED) {
            printf("skip: net.verbs_rate: %s\n", mk_last_error());
            return 77;
        }
        if (ret || ops->conn_open(e[i].dev, &e[i].addr, &e[i].conn) ||
            ops->reg(e[i].dev, e[i].words, sizeof(e[i].words), NULL, &e[i].mr))
            return failed("opening");
        ops->key(e[i].mr, &e[i].key);
    }
    if (join(&e[0], &e[1]) || join(&e[1], &e[0]))
        return 1;
    for (int r = 0; r < ROUNDS; r++) {
        const double t8 = stream(&e[0], 8), t1 = stream(&e[0], 1);
        if (t8 < 0 || t1 < 0)
            return 1;
        eight[r] = WRITES / t8 * 1e-3;
        one[r] = WRITES / t1 * 1e-3;
        ratio[r] = t1 / t8;
    }
    for (uint32_t i = 0; i < 512; i++) /* they arrived */
        if (e[1].words[i] % 512 != i || e[1].words[i] < WRITES - 512) {
            printf("verbs_rate: word %u is %llu\n", i, (unsigned long long)e[1].words[i]);
            return 1;
        }
    qsort(eight, ROUNDS, sizeof(double), by_rate);
    qsort(one, ROUNDS, sizeof(double), by_rate);
    qsort(ratio, ROUNDS, sizeof(double), by_rate);
    printf("verbs_rate: %s, 8-byte inline writes, median of %d rounds of %u: eight a doorbell %.1f k/s, one "
           "by one %.1f "
           "k/s, ratio %.2f (%.2f to %.2f)\n",
           e[0].dev->caps.provider, ROUNDS, WRITES, eight[ROUNDS / 2], one[ROUNDS / 2], ratio[ROUNDS / 2],
           ratio[0], ratio[ROUNDS - 1]);
    for (int i = 0; i < 2; i++) {
        ops->unimport(e[i].rmem);
        ops->conn_close(e[i].conn);
        ops->dereg(e[i].mr);
        ops->close(e[i].dev);
    }
    return 0;
}
