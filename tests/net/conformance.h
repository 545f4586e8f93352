/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* State of the conformance test: one direction of data, the other of credits. */
#pragma once
#include "mk/dev/flag.h"
#include "mk/net.h"
#include "nic_help.h"
#include "mk/param.h"
#include <pthread.h>
#include <stdarg.h>

#define CF_RINGS 5
#define CF_BYTES_MAX 65536
#define CF_SOURCES 2 /* source slots of a ring */

enum { CF_GPU_SOURCE = 1, CF_GPU_DESTINATION = 2 };

struct cf_ring {
    uint32_t slots, lump, flag0;
    uint32_t now; /* so many are consumed before the next credit: 1 to lump */
    size_t src_off, dst_off;
    uint64_t quota;         /* chunks to send */
    uint64_t sent;          /* sender's */
    uint64_t got, credited; /* checker's */
};
struct cf_side {
    struct mk_engine *e;
    struct mk_proxy *proxy;
    struct mk_link *l;
    struct mk_shm mem;
    struct mk_mr *mr;
    struct mk_rmem *rmem;
    mk_cu_ptr gpu; /* payload, where it is on a GPU; then window 1 */
    struct mk_mr *windows[2];
    struct mk_rmem *rwindows[2];
    struct mk_net_key gpu_key;
    struct mk_notes *notes;
    struct mk_bell bell;
    struct mk_net_addr addr;
    struct mk_net_key key;
    uint64_t *flags;   /* side b: arrival flags */
    uint64_t *credits; /* side a: the same words, used for credits */
    uint32_t *step;
    uint32_t base;
    uint16_t id;
};
struct cf {
    struct mk_settings set;
    const char *adapter;
    bool store, expect_caught;
    uint64_t chunks, stall_ns;
    uint32_t bytes;
    struct cf_ring ring[CF_RINGS];
    uint32_t nflags;
    size_t flags_off, size;
    struct cf_side a, b;
    struct mk_shm alias; /* store: b's memory, mapped once more */
    char *b_alias;
    uint64_t done[CF_RINGS * CF_SOURCES];
    int gpu; /* CF_GPU_* */
    char nic_program[256], nic_options[128];
    struct nic_proc nic;
    const struct mk_cuda *cu;
    uint64_t checked, errors;
    uint32_t stop, failed;
    char text[300], where[128];
};

int cf_open_gpu(struct cf *t); /* mknic and device memory, if asked for; 0, or an exit code */
int cf_open(struct cf *t);
void cf_close(struct cf *t);
void cf_send_all(struct cf *t);
void cf_fail(struct cf *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void cf_print_stats(const struct cf *t);
