/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Two engines in one process, joined by one link, each with a memory of payload, flags and shadow words. */
#pragma once
#include "mk/shm.h"
#include "net/engine.h"

#define PAIR_NOTES 16
#define PAIR_BYTES 65536

struct side {
    struct mk_engine *e;
    struct mk_link *l;
    struct mk_shm mem; /* payload, then flags, then shadow */
    struct mk_mr *mr;
    struct mk_rmem *rmem;
    struct mk_notes *notes;
    struct mk_bell bell;
    uint64_t *flags, *shadow;
    uint32_t step[PAIR_NOTES];
    uint32_t base;
    struct mk_net_addr addr;
    struct mk_net_key key;
    /* what done said */
    int ndone, nbad, last_status;
    uint64_t ids[4096];
};
struct pair {
    struct side s[2];
};

/* Opens both sides over ops; steps and first flags as set by the caller in p->s[i].step and `first`. */
int pair_open(struct pair *p, const struct mk_settings *set, const struct mk_net_ops *ops,
              const char *adapter, const uint32_t step[PAIR_NOTES], const uint64_t first[PAIR_NOTES]);
void pair_close(struct pair *p);
/* Progress on both until nothing happens for a few rounds. */
void pair_run(struct pair *p);
struct mk_put pair_put(struct side *s, uint32_t note, uint64_t off, uint32_t len, uint32_t use,
                       uint64_t value);
struct mk_put pair_credit(uint32_t note, uint64_t value);
