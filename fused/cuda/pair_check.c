/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Launches of MK_VERIFY's look at C (ops/pair_check.h), and what it reports. */
#include "ops/pair_check.h"
#include "cuda/gemm.h"
#include "mk/err.h"
#include "mk/pair.h"
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#define REPORT_BYTES ((MK_PAIR_CHECKS + 1) * 2 * sizeof(uint64_t))
#define MOST_BLOCKS 264 /* two a multiprocessor keep the memory busy */

/* Pinned for all contexts, for good: graphs write to it as long as they are replayed. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t *reports; /* atomic: release when it may be read */
static mk_cu_ptr reports_device;

/* Also beside a capture. */
static int pin(const struct mk_cuda *cu)
{
    int relaxed = MK_CU_CAPTURE_RELAXED;
    mk_cu_ptr device = 0;
    void *p = mmap(NULL, REPORT_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return mk_fail(MK_ERR_NOMEM, "HOOK", "no memory for the reports of MK_VERIFY");
    cu->capture_mode(&relaxed);
    int err = cu->host_register(p, REPORT_BYTES, MK_CU_HOST_PORTABLE | MK_CU_HOST_MAPPED);
    if (!err && (err = cu->host_device_ptr(&device, p, 0)))
        cu->host_unregister(p);
    cu->capture_mode(&relaxed);
    if (err) {
        munmap(p, REPORT_BYTES);
        return mk_cuda_fail(err, "pinned memory for the reports of MK_VERIFY");
    }
    reports_device = device;
    __atomic_store_n(&reports, p, __ATOMIC_RELEASE);
    return 0;
}

int mk_pair_check_load(void)
{
    const struct mk_cuda *cu = mk_cuda_open(NULL);
    pthread_mutex_lock(&lock);
    const int ret = !cu ? MK_ERR_CUDA : reports ? 0 : pin(cu);
    pthread_mutex_unlock(&lock);
    return ret ? ret : mk_cuda_load(cu, MK_IMAGE_PAIR_CHECK, "pair_check", 0);
}

int mk_pair_check_c(const void *c, uint64_t bytes, uint64_t *words, uint32_t site, void *stream)
{
    const struct mk_cuda *cu = mk_cuda_open(NULL);
    const uint64_t blocks = bytes / 16 / MK_CHECK_THREADS + 1;
    struct mk_check k;
    if ((uintptr_t)c % 16 || bytes % 16 || site > MK_PAIR_CHECKS)
        return mk_fail_quiet(MK_ERR_INVALID, "not what G writes");
    if (!__atomic_load_n(&reports, __ATOMIC_ACQUIRE)) {
        const int ret = mk_pair_check_load();
        if (ret)
            return ret;
    }
    memset(&k, 0, sizeof(k));
    k.c = c;
    k.n = bytes / 16;
    k.words = words;
    k.reports = site ? (uint64_t *)(uintptr_t)reports_device : NULL;
    k.site = site;
    return mk_cuda_start(cu, MK_IMAGE_PAIR_CHECK, "pair_check", 0,
                         (int)(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS), MK_CHECK_THREADS, 1, false, &k,
                         stream);
}

uint64_t mk_pair_checked(uint32_t site, bool differed)
{
    const uint64_t *r = __atomic_load_n(&reports, __ATOMIC_ACQUIRE);
    return r && site <= MK_PAIR_CHECKS ? __atomic_load_n(&r[2 * site + differed], __ATOMIC_RELAXED) : 0;
}
