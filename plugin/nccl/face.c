/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The set-up that NCCL's faces share: settings, log, the network device. */
#include "face.h"
#include "mk/err.h"
#include "mk/log.h"
#include "mk/p2p.h"
#include "mk/param.h"
#include <pthread.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct mk_p2p *device; /* written under lock, read by anybody who holds something of it */
static struct mk_p2p_info info;
static int users, held;
static mk_nccl_logger_fn logger;

int mk_nccl_result(int ret)
{
    switch (ret) {
    case 0:
        return MK_NCCL_SUCCESS;
    case MK_ERR_INVALID:
        return MK_NCCL_INVALID_USAGE;
    case MK_ERR_SYSTEM:
    case MK_ERR_NOMEM:
    case MK_ERR_NET:
        return MK_NCCL_SYSTEM_ERROR;
    case MK_ERR_PEER:
    case MK_ERR_TIMEOUT:
    case MK_ERR_ABORTED:
        return MK_NCCL_REMOTE_ERROR;
    default:
        return MK_NCCL_INTERNAL_ERROR;
    }
}

/* NCCL filters by its own level and subsystems; a WARN must pass any filter, since its text is what the user gets as
 * the last error. */
static void sink(enum mk_log_level level, const char *subsys, const char *text)
{
    const mk_nccl_logger_fn log = __atomic_load_n(&logger, __ATOMIC_ACQUIRE);
    if (level == MK_LOG_WARN)
        log(MK_NCCL_LOG_WARN, MK_NCCL_ALL, subsys, 0, "mKernel: %s", text);
    else if (level == MK_LOG_INFO)
        log(MK_NCCL_LOG_INFO, MK_NCCL_INIT | MK_NCCL_NET, subsys, 0, "mKernel: %s", text);
    else
        log(MK_NCCL_LOG_TRACE, MK_NCCL_NET, subsys, 0, "mKernel: %s", text);
}

void mk_nccl_log(mk_nccl_logger_fn log)
{
    if (!log)
        return;
    if (__atomic_exchange_n(&logger, log, __ATOMIC_ACQ_REL) == NULL)
        mk_log_set_sink(sink);
}

static void open_device(void)
{
    struct mk_settings s;
    if (mk_settings_load(&s, false)) {
        MK_WARN("NET", "%s: no network is offered to NCCL", mk_last_error());
        return;
    }
    if (mk_p2p_open(&s, &device)) {
        device = NULL;
        MK_WARN("NET", "no network is offered to NCCL: %s", mk_last_error());
        return;
    }
    mk_p2p_get_info(device, &info);
    MK_INFO("NET", "device %s: %s, provider %s, interface %s, %d Mb/s; %s%s", info.name, info.caps->transport,
            info.caps->provider, info.interface, info.mbps,
            info.caps->gpu_memory
                ? "GPU memory too (it is on no PCI bus: NCCL uses that with NCCL_NET_GDR_LEVEL=SYS)"
                : "host memory only: GPU memory is not reached here by ",
            info.caps->gpu_memory ? "" : info.caps->provider);
}

void mk_nccl_open(mk_nccl_logger_fn log)
{
    mk_nccl_log(log);
    pthread_mutex_lock(&lock);
    users++;
    if (!device)
        open_device();
    pthread_mutex_unlock(&lock);
}

static void close_unused(void)
{
    if (users || held || !device)
        return;
    mk_p2p_close(device);
    device = NULL;
}

void mk_nccl_close(void)
{
    pthread_mutex_lock(&lock);
    if (users > 0)
        users--;
    close_unused();
    pthread_mutex_unlock(&lock);
}

void mk_nccl_hold(int n)
{
    pthread_mutex_lock(&lock);
    held += n;
    close_unused();
    pthread_mutex_unlock(&lock);
}

struct mk_p2p *mk_nccl_device(const struct mk_p2p_info **out)
{
    pthread_mutex_lock(&lock);
    struct mk_p2p *p = device;
    if (out)
        *out = &info;
    pthread_mutex_unlock(&lock);
    return p;
}
