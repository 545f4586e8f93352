/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Lowering what a test may use; both return 0 or -1. */
#pragma once
#include <linux/capability.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* before: NULL allowed. */
static inline int soft_limit(int which, rlim_t soft, struct rlimit *before)
{
    struct rlimit l;
    if (getrlimit(which, &l))
        return -1;
    if (before)
        *before = l;
    l.rlim_cur = soft;
    return setrlimit(which, &l);
}

/* CAP_IPC_LOCK put aside, or taken again where the process may. */
static inline int may_lock(int may)
{
    struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2];
    memset(data, 0, sizeof(data));
    if (syscall(SYS_capget, &head, data))
        return -1;
    data[0].effective &= ~(1u << CAP_IPC_LOCK);
    if (may)
        data[0].effective |= data[0].permitted & 1u << CAP_IPC_LOCK;
    return (int)syscall(SYS_capset, &head, data);
}
