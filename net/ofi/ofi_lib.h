/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* libfabric, opened at run time. Only what has no inline form is looked up here; all else goes through the tables of
 * the objects that fi_fabric returns. */
#pragma once
#include <rdma/fabric.h>
#include <stdint.h>

struct mk_ofi_lib {
    int (*getinfo)(uint32_t version, const char *node, const char *service, uint64_t flags,
                   const struct fi_info *hints, struct fi_info **info);
    void (*freeinfo)(struct fi_info *info);
    struct fi_info *(*dupinfo)(const struct fi_info *info); /* NULL: an empty one */
    int (*fabric)(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context);
    const char *(*strerror)(int errnum);
    uint32_t version;
};

/* Opened once and never closed: providers leave threads and handlers behind. UNSUPPORTED: not on this machine. Any
 * thread. */
int mk_ofi_lib_get(const struct mk_ofi_lib **out);
