/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The tuner and the profiler that stand beside a net plugin in its library. */
#pragma once
#include "plugin/nccl/abi_profiler.h"
#include "plugin/nccl/abi_tuner.h"
#include "tests/plugin/harness.h"

struct tuner {
    void *ctx;
    int version;
    union {
        const void *any;
        const struct mk_nccl_tuner_v2 *v2;
        const struct mk_nccl_tuner_v3 *v3;
        const struct mk_nccl_tuner_v4 *v4;
        const struct mk_nccl_tuner_v5 *v5;
        const struct mk_nccl_tuner_v6 *v6;
    } t;
};
/* Of one communicator; false: the library lacks this version. Faults of the table: broken. */
bool tuner_open(struct rank *r, void *lib, int version, struct tuner *t);
void tuner_ask(struct rank *r, struct tuner *t); /* about a random collective */
void tuner_close(struct rank *r, struct tuner *t);

struct profiler {
    void *ctx;
    int version;
    union {
        const void *any;
        const struct mk_nccl_profiler_v1
            *v1; /* all but init, and the types behind the pointers, is the same */
        const struct mk_nccl_profiler_v4 *v4;
        const struct mk_nccl_profiler_v5 *v5;
    } t;
};
bool profiler_open(struct rank *r, void *lib, int version, struct profiler *p);
void profiler_events(struct rank *r, const struct profiler *p);
void profiler_close(struct rank *r, struct profiler *p);
