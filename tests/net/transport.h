/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Two processes, one transport: what the cases of tests/net/transport share. Both processes run each case, as side
 * 0 and side 1, in step. */
#pragma once
#include "mk/param.h"
#include "net/transport.h"
#include <stdio.h>

#define MEM_BYTES (24u << 20)
#define DEADLINE_NS 20000000000ull

struct end { /* one connection, set up in both directions */
    struct mk_conn *conn;
    struct mk_rmem *rmem;
};

struct side {
    int who; /* 0 or 1 */
    int fd;  /* stream socket to the other side */
    struct mk_settings s;
    const struct mk_net_ops *ops;
    struct mk_dev *dev;
    struct mk_shm mem;
    struct mk_mr *mr;
    struct end e;
    struct mk_wc kept[256]; /* polled, not asked for yet */
    int nkept;
};

#define CHECK(cond, ...)                                                                                     \
    do {                                                                                                     \
        if (!(cond)) {                                                                                       \
            printf("%s:%d: side %d: ", __FILE__, __LINE__, t->who);                                          \
            printf(__VA_ARGS__);                                                                             \
            printf(" (%s)\n", #cond);                                                                        \
            return 1;                                                                                        \
        }                                                                                                    \
    } while (0)

/* Bytes over the socket, bounded; 0 or 1 (the other side is gone). */
int tell(struct side *t, const void *p, size_t n);
int hear(struct side *t, void *p, size_t n);
int in_step(struct side *t); /* both sides got here; polls meanwhile are not needed */

int end_open(struct side *t, struct end *e);
void end_close(struct side *t, struct end *e);
/* Posts one write; polls while it is not taken. */
int put(struct side *t, struct end *e, const struct mk_wr *wr);
/* The next completion of that kind; others are kept. */
int next(struct side *t, enum mk_wc_kind kind, struct mk_wc *out);

/* pattern of `seed` at p; index of the first wrong byte, or -1 */
void fill(uint8_t *p, size_t n, uint64_t seed);
long wrong(const uint8_t *p, size_t n, uint64_t seed);

struct test_case {
    const char *name;
    int (*run)(struct side *t);
};
extern const struct test_case cases[];
