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

/* The devices that were found, then those that NCCL had made of several. The latter stay in the list when all is closed,
 * since NCCL remembers their numbers, and are opened again by who asks for one. */
#define DEVICES MK_NCCL_DEVICES
static struct device {
    struct mk_p2p *p;
    struct mk_p2p_info info;
    struct mk_settings s; /* of one that was found */
    struct mk_nccl_vdevice_v12 of;
} table[2 * DEVICES];
static int nfound, ndevices;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all here */
static int users, held;
static mk_nccl_logger_fn logger;

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

/* ---- devices ---- */

static void say_device(const struct mk_p2p_info *i)
{
    MK_INFO("NET", "device %s: %s, provider %s, interface %s, %d Mb/s; %s%s", i->name, i->caps->transport,
            i->caps->provider, i->interface, i->mbps,
            i->caps->dmabuf ? "GPU memory too, as dma-buf"
            : i->caps->gpu_memory
                ? "GPU memory too (it is on no PCI bus: NCCL uses that with NCCL_NET_GDR_LEVEL=SYS)"
                : "host memory only: GPU memory is not reached here by ",
            i->caps->gpu_memory || i->caps->dmabuf ? "" : i->caps->provider);
}

/* Device `at` was opened: what NCCL is told of it. Names are unique; they stay as they were. */
static void describe(int at)
{
    struct device *d = &table[at];
    mk_p2p_get_info(d->p, &d->info);
    for (int i = 0; i < at; i++)
        if (!strcmp(table[i].info.name, d->info.name)) {
            const size_t n = strlen(d->info.name);
            snprintf(d->info.name + n, sizeof(d->info.name) - n, "_%d", at);
            d->info.guid += (uint64_t)at;
            break;
        }
    d->of.ndevs = 1;
    d->of.devs[0] = at;
    say_device(&d->info);
}

/* All that there are, or as many as asked for. One that does not open, other than the first, is left out. */
static void open_devices(void)
{
    struct mk_settings s;
    if (mk_settings_load(&s, false)) {
        MK_WARN("NET", "%s: no network is offered to NCCL", mk_last_error());
        return;
    }
    if (mk_p2p_open(&s, &table[0].p)) {
        table[0].p = NULL;
        MK_WARN("NET", "no network is offered to NCCL: %s", mk_last_error());
        return;
    }
    describe(0);
    const bool cards = !strcmp(table[0].info.caps->transport, "verbs");
    const int most = nfound ? nfound : s.devices ? (int)s.devices : cards ? DEVICES : 1;
    int n = 1;
    if (mk_p2p_nth(table[0].p, &s, 0, &table[0].s))
        table[0].s = s;
    for (int nth = 1; n < most; nth++) {
        struct device *d = &table[n];
        if (mk_p2p_nth(table[0].p, &s, nth, &d->s))
            break;
        if (mk_p2p_open(&d->s, &d->p)) {
            d->p = NULL;
            MK_WARN("NET", "a device is not offered to NCCL: %s", mk_last_error());
            continue;
        }
        describe(n++);
    }
    nfound = nfound ? nfound : n;
    ndevices = ndevices ? ndevices : n;
}

/* Opens one that is made of several. */
static int open_merged(struct device *d)
{
    struct mk_settings s[MK_NCCL_NET_MAX_DEVS];
    for (int i = 0; i < d->of.ndevs; i++)
        s[i] = table[d->of.devs[i]].s;
    const int ret = mk_p2p_open_ports(s, d->of.ndevs, &d->p);
    if (ret)
        d->p = NULL;
    return ret;
}

static void describe_merged(struct device *d)
{
    char name[sizeof(d->info.name)] = "";
    size_t at = 0;
    mk_p2p_get_info(d->p, &d->info);
    d->info.mbps = 0;
    for (int i = 0; i < d->of.ndevs; i++) {
        const struct mk_p2p_info *part = &table[d->of.devs[i]].info;
        d->info.mbps += part->mbps;
        d->info.guid = i ? d->info.guid * 31 + part->guid : part->guid;
        if (at < sizeof(name))
            at += (size_t)snprintf(name + at, sizeof(name) - at, "%s%s", i ? "+" : "", part->name);
    }
    if (at >= sizeof(name)) /* cut off: the number makes it unique */
        snprintf(name, sizeof(name), "mk_merged_%d", (int)(d - table));
    memcpy(d->info.name, name, sizeof(name));
    say_device(&d->info);
}

static bool same(const struct mk_nccl_vdevice_v12 *a, int n, const int *devs)
{
    return a->ndevs == n && !memcmp(a->devs, devs, (size_t)n * sizeof(*devs));
}

static int merge(int n, const int *devs, int *out)
{
    if (n < 1 || n > MK_NCCL_NET_MAX_DEVS)
        return mk_fail(MK_ERR_INVALID, "NET", "a device made of %d, 1 to %d are possible", n,
                       MK_NCCL_NET_MAX_DEVS);
    for (int i = 0; i < n; i++)
        for (int k = 0; k <= i; k++)
            if (devs[i] < 0 || devs[i] >= nfound || (k < i && devs[k] == devs[i]))
                return mk_fail(MK_ERR_INVALID, "NET", "a device made of number %d: not there, or twice",
                               devs[i]);
    for (int i = 0; i < ndevices; i++)
        if (same(&table[i].of, n, devs)) {
            *out = i;
            return 0;
        }
    if (ndevices == 2 * DEVICES)
        return mk_fail(MK_ERR_INVALID, "NET", "%d network devices are too many", ndevices + 1);
    struct device *d = &table[ndevices];
    memset(d, 0, sizeof(*d));
    d->of.ndevs = n;
    memcpy(d->of.devs, devs, (size_t)n * sizeof(*devs));
    const int ret = open_merged(d);
    if (ret)
        return ret;
    describe_merged(d);
    *out = ndevices++;
    return 0;
}

/* What does not go together is a misuse: NCCL then goes on with the parts. */
int mk_nccl_merge(int n, const int *devs, int *out)
{
    pthread_mutex_lock(&lock);
    const int ret = merge(n, devs, out);
    pthread_mutex_unlock(&lock);
    return ret ? MK_NCCL_INVALID_USAGE : MK_NCCL_SUCCESS;
}

int mk_nccl_count(void)
{
    pthread_mutex_lock(&lock);
    const int n = table[0].p ? ndevices : 0;
    pthread_mutex_unlock(&lock);
    return n;
}

void mk_nccl_open(mk_nccl_logger_fn log)
{
    mk_nccl_log(log);
    pthread_mutex_lock(&lock);
    users++;
    if (!table[0].p)
        open_devices();
    pthread_mutex_unlock(&lock);
}

static void close_unused(void)
{
    if (users || held)
        return;
    for (int i = 2 * DEVICES - 1; i >= 0; i--) {
        mk_p2p_close(table[i].p);
        table[i].p = NULL;
    }
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

struct mk_p2p *mk_nccl_device(int dev, const struct mk_p2p_info **info, const struct mk_nccl_vdevice_v12 **of)
{
    struct mk_p2p *p = NULL;
    pthread_mutex_lock(&lock);
    if (dev >= 0 && dev < ndevices && table[0].p) {
        struct device *d = &table[dev];
        if (!d->p && dev >= nfound) {
            if (open_merged(d))
                MK_WARN("NET", "device %s: %s", d->info.name, mk_last_error());
            else
                describe_merged(d); /* anew: it names the caps of what is open */
        }
        p = d->p;
        if (info)
            *info = &d->info;
        if (of)
            *of = &d->of;
    }
    pthread_mutex_unlock(&lock);
    return p;
}
