/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#include "rlimits.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

static uint64_t limit_of(int which, uint64_t *hard)
{
    struct rlimit l;
    if (getrlimit(which, &l))
        l.rlim_cur = l.rlim_max = RLIM_INFINITY;
    if (hard)
        *hard = l.rlim_max == RLIM_INFINITY ? UINT64_MAX : l.rlim_max;
    return l.rlim_cur == RLIM_INFINITY ? UINT64_MAX : l.rlim_cur;
}

/* ---- files ---- */

bool mk_limits_no_files(void)
{
    const int before = errno, fd = eventfd(0, EFD_CLOEXEC);
    const bool none = fd < 0 && (errno == EMFILE || errno == ENFILE);
    if (fd >= 0)
        close(fd);
    errno = before;
    return none;
}

uint64_t mk_limits_files(void)
{
    return limit_of(RLIMIT_NOFILE, NULL);
}

/* Asked one by one: the list in /proc needs a descriptor itself. */
uint64_t mk_limits_files_left(void)
{
    const uint64_t most = mk_limits_files();
    uint64_t left = 0;
    if (most > 1u << 16)
        return most;
    for (uint64_t fd = 0; fd < most; fd++)
        left += fcntl((int)fd, F_GETFD) < 0;
    return left;
}

void mk_limits_files_text(char text[MK_LIMITS_TEXT])
{
    char most[32] = "";
    uint64_t hard;
    const uint64_t soft = limit_of(RLIMIT_NOFILE, &hard);
    if (hard == UINT64_MAX)
        snprintf(most, sizeof(most), "without limit");
    else
        snprintf(most, sizeof(most), "at most %llu", (unsigned long long)hard);
    snprintf(
        text, MK_LIMITS_TEXT,
        "process %d may have %llu (RLIMIT_NOFILE); it needs its own and about %u for each process that it "
        "is connected to; more before the start by ulimit -n (here %s), LimitNOFILE= of a service, "
        "--ulimit nofile= of a container",
        (int)getpid(), (unsigned long long)soft, MK_LIMITS_PER_PEER, most);
}

/* ---- locked memory ---- */

/* May this thread lock whatever it wants? */
static bool may_lock_all(void)
{
    struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2];
    memset(data, 0, sizeof(data));
    return !syscall(SYS_capget, &head, data) && data[0].effective >> CAP_IPC_LOCK & 1;
}

uint64_t mk_limits_memlock(void)
{
    return may_lock_all() ? UINT64_MAX : limit_of(RLIMIT_MEMLOCK, NULL);
}

void mk_limits_memlock_text(char text[MK_LIMITS_TEXT])
{
    const uint64_t bytes = mk_limits_memlock();
    if (bytes == UINT64_MAX)
        snprintf(text, MK_LIMITS_TEXT, "locked memory is not limited here (RLIMIT_MEMLOCK, CAP_IPC_LOCK)");
    else
        snprintf(
            text, MK_LIMITS_TEXT,
            "process %d may lock %llu KiB (RLIMIT_MEMLOCK); it needs the size of all buffers at once; more "
            "before the start by ulimit -l unlimited, LimitMEMLOCK=infinity of a service, "
            "--ulimit memlock=-1 of a container",
            (int)getpid(), (unsigned long long)bytes >> 10);
}
