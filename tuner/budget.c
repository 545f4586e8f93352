/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The SM budget of mk/tune.h. */
#include "mk/err.h"
#include "mk/tune.h"
#include <pthread.h>

#define COMMS 64

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    uint64_t id;
    uint32_t blocks; /* 0: free */
} fused[COMMS];

uint32_t mk_budget_channels(uint32_t sms, uint32_t in_fused, uint32_t nccl)
{
    if (!in_fused)
        return 0;
    const uint32_t quarter = sms / 4;
    uint32_t left = quarter > in_fused ? quarter - in_fused : 0;
    if (left < 2)
        left = 2;
    if (nccl && left > nccl)
        left = nccl;
    return left < 64 ? left : 64;
}

uint32_t mk_budget_fused(uint32_t sms, uint32_t nccl)
{
    return sms > nccl ? sms - nccl : 0;
}

int mk_budget_set(uint64_t comm_id, uint32_t blocks)
{
    int at = -1, ret = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < COMMS; i++) {
        if (fused[i].blocks && fused[i].id == comm_id) {
            at = i;
            break;
        }
        if (!fused[i].blocks && at < 0)
            at = i;
    }
    if (at < 0) {
        ret = blocks ? MK_ERR_INVALID : 0;
    } else {
        fused[at].id = comm_id;
        fused[at].blocks = blocks;
    }
    pthread_mutex_unlock(&lock);
    return ret ? mk_fail_quiet(ret, "more than %d fused communicators", COMMS) : 0;
}

uint32_t mk_budget_get(void)
{
    uint32_t sum = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < COMMS; i++)
        sum += fused[i].blocks;
    pthread_mutex_unlock(&lock);
    return sum;
}
