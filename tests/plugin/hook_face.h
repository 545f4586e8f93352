/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The inner interface of interception, handed out by a shared object that is made of the same object files as the
 * product's. A test takes it by dlsym, once that object was opened, or preloaded. */
#pragma once
#include "plugin/intercept/adapt.h"
#include "plugin/intercept/count.h"

struct hook_face {
    uint64_t (*calls)(enum mk_hook_id id);
    const char *(*name)(enum mk_hook_id id);
    void (*stats)(struct mk_hook_stats *out);
    void (*set)(mk_hook_fn fn);
    void *(*stream)(const struct mk_hook_event *event);
    enum mk_hook_mode (*mode)(void);
    int (*adapt)(const struct mk_adapt_options *options);
    int (*event)(struct mk_pair_event *e);
    bool (*comm)(uint64_t handle, struct mk_pair_comm_facts *out);
    bool (*count)(struct mk_pair_counts *out);
    const char *(*reason)(uint32_t reason);
    bool (*counting)(void); /* count.h */
    const char *(*why)(char *text, size_t bytes);
    uint64_t (*total)(void);
    const char *(*last)(void);
    void *(*original)(void *p);
};
const struct hook_face *hook_face(void);

/* Opens it (or finds it where it was preloaded); it starts as MK_FUSE says. Ends the program where it cannot. */
const struct hook_face *hook_open(const char *path);
