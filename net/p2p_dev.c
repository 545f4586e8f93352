/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* A network device of the message layer: opening, what it is, the limits of the process. */
#include "boot_sock.h"
#include "boot_wire.h"
#include "ifname.h"
#include "rlimits.h"
#include "mk/err.h"
#include "mk/log.h"
#include "p2p.h"
#include "ports.h"
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILES_WANTED 4096u
#define FILES_LEAST 64u
#define MEMLOCK_WANTED (64u << 20)
#define MBPS_UNKNOWN 10000

int mk_p2p_no_files(int ret, int err)
{
    char text[MK_LIMITS_TEXT];
    if (!ret || !(err == EMFILE || err == ENFILE || mk_limits_no_files()))
        return ret;
    mk_limits_files_text(text);
    return mk_fail(MK_ERR_SYSTEM, "NET", "too many open files: %s", text);
}

static void say_limits(const struct mk_caps *caps)
{
    const bool pins = !strcmp(caps->transport, "verbs") || !strncmp(caps->provider, "verbs", 5) ||
                      !strcmp(caps->provider, "efa");
    const uint64_t files = mk_limits_files();
    char text[MK_LIMITS_TEXT];
    if (files < FILES_WANTED) {
        const uint64_t left = mk_limits_files_left();
        mk_limits_files_text(text);
        if (left < FILES_LEAST)
            MK_WARN("NET", "only %llu more files can be opened: %s", (unsigned long long)left, text);
        else
            MK_INFO("NET", "files enough for a job of some %llu processes: %s",
                    (unsigned long long)left / MK_LIMITS_PER_PEER, text);
    }
    if (pins && mk_limits_memlock() < MEMLOCK_WANTED) {
        mk_limits_memlock_text(text);
        MK_WARN("NET", "registering buffers with the network card will fail: %s", text);
    }
}

/* One number from a file of an interface in sysfs. */
static long sysfs_number(const char *interface, const char *file)
{
    char path[128], text[32] = "";
    snprintf(path, sizeof(path), "/sys/class/net/%s/%s", interface, file);
    FILE *f = fopen(path, "re");
    if (!f)
        return -1;
    char *end = NULL;
    const long v = fgets(text, sizeof(text), f) ? strtol(text, &end, 10) : -1;
    fclose(f);
    return end && end != text ? v : -1;
}

/* The PCI function of an interface or card, checked: NCCL fails on paths that are none. */
static void find_pci(const char *class, const char *name, char out[256])
{
    char path[128], real[PATH_MAX], class_file[PATH_MAX + 8];
    out[0] = 0;
    snprintf(path, sizeof(path), "/sys/class/%s/%s/device", class, name);
    if (!realpath(path, real) || strlen(real) > 255)
        return;
    const char *last = strrchr(real, '/');
    unsigned domain, bus, dev, fn;
    snprintf(class_file, sizeof(class_file), "%s/class", real);
    if (last && sscanf(last + 1, "%x:%x:%x.%x", &domain, &bus, &dev, &fn) == 4 && !access(class_file, R_OK))
        snprintf(out, 256, "%s", real);
}

static bool sysfs_text(const char *path, char *text, int size)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    const bool got = fgets(text, size, f) != NULL;
    fclose(f);
    return got;
}

/* Of an RDMA card, by its name "device:port", the kernel knows more than of the interface that the peers meet over. */
static void describe_card(struct mk_p2p_info *i)
{
    char card[64], path[160], text[64];
    unsigned g[4];
    double gbps;
    snprintf(card, sizeof(card), "%.*s", (int)strcspn(i->caps->provider, ":"), i->caps->provider);
    const char *colon = strchr(i->caps->provider, ':');
    i->port = colon ? atoi(colon + 1) : 1;
    find_pci("infiniband", card, i->pci_path);
    snprintf(path, sizeof(path), "/sys/class/infiniband/%s/node_guid", card);
    if (sysfs_text(path, text, sizeof(text)) && sscanf(text, "%x:%x:%x:%x", &g[0], &g[1], &g[2], &g[3]) == 4)
        i->guid = (uint64_t)g[0] << 48 | (uint64_t)g[1] << 32 | (uint64_t)g[2] << 16 | g[3];
    snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/%d/rate", card, i->port);
    if (sysfs_text(path, text, sizeof(text)) && sscanf(text, "%lf", &gbps) == 1 && gbps > 0.1)
        i->mbps = (int)(gbps * 1000);
}

static int fill_info(struct mk_p2p *p)
{
    struct mk_p2p_info *i = &p->info;
    const struct mk_caps *caps = mk_engine_caps(p->e);
    struct mk_ifaddr ifa;
    errno = 0;
    const int ret = mk_ifname_choose(&p->s, &ifa);
    if (ret)
        return mk_p2p_no_files(ret, errno);
    const bool loop = !strcmp(caps->transport, "loop");
    i->caps = caps;
    snprintf(i->interface, sizeof(i->interface), "%s", ifa.name);
    if (loop)
        snprintf(i->name, sizeof(i->name), "mk_loop");
    else
        snprintf(i->name, sizeof(i->name), "mk_%.30s_%s", caps->provider, ifa.name);
    if (!loop)
        find_pci("net", ifa.name, i->pci_path);
    const long speed = loop ? -1 : sysfs_number(ifa.name, "speed");
    i->mbps = p->s.loop_gbps > 0 ? (int)(p->s.loop_gbps * 1000) : speed > 0 ? (int)speed : MBPS_UNKNOWN;
    i->guid = mk_boot_hash(i->name, strlen(i->name)) ^ mk_host_id();
    i->port = 1;
    if (!strcmp(caps->transport, "verbs"))
        describe_card(i);
    mk_p2p_rings_of(caps, p->ring);
    const size_t most = (size_t)1 << 30;
    i->max_message = caps->max_message < most ? caps->max_message : most;
    return 0;
}

int mk_p2p_open(const struct mk_settings *s, struct mk_p2p **out)
{
    return mk_p2p_open_ports(s, 1, out);
}

int mk_p2p_open_ports(const struct mk_settings *s, int n, struct mk_p2p **out)
{
    if (n < 1 || n > (int)MK_P2P_RAILS)
        return mk_fail(MK_ERR_INVALID, "NET", "a device of %d ports, 1 to %u are possible", n, MK_P2P_RAILS);
    pthread_mutexattr_t attr;
    struct mk_p2p *p = calloc(1, sizeof(*p));
    if (!p)
        return mk_fail(MK_ERR_NOMEM, "NET", "a network device");
    p->s = *s;
    p->timeout_ns = (uint64_t)(s->timeout * 1e9);
    p->token = mk_boot_token();
    if (gethostname(p->host, sizeof(p->host) - 1))
        snprintf(p->host, sizeof(p->host), "an unnamed host");
    struct mk_ports ports;
    errno = 0;
    int ret = mk_ports_of(s, &ports); /* a wrong one is said now, not by the first listener */
    if (!ret)
        ret = mk_engine_open(s, &p->e);
    if (ret) {
        ret = mk_p2p_no_files(ret, errno);
        goto free_device;
    }
    ret = mk_p2p_ports_open(p, s, n);
    if (!ret)
        ret = fill_info(p);
    if (ret)
        goto close_engines;
    say_limits(p->info.caps);
    /* held for moments: a short spin is cheaper than a sleep */
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ADAPTIVE_NP);
    pthread_mutex_init(&p->lock, &attr);
    pthread_mutexattr_destroy(&attr);
    *out = p;
    return 0;
close_engines:
    mk_p2p_ports_close(p);
    mk_engine_close(p->e);
free_device:
    free(p);
    return ret;
}

int mk_p2p_nth(const struct mk_p2p *p, const struct mk_settings *s, int nth, struct mk_settings *out)
{
    struct mk_settings exact = *s;
    snprintf(exact.net, sizeof(exact.net), "%s", p->info.caps->transport);
    if (!strcmp(exact.net, "ofi"))
        snprintf(exact.ofi_provider, sizeof(exact.ofi_provider), "%s", p->info.caps->provider);
    return mk_engine_nth(&exact, nth, out);
}

const struct mk_caps *mk_p2p_comm_caps(const struct mk_p2p_comm *c)
{
    return c->p->info.caps;
}

void mk_p2p_get_info(const struct mk_p2p *p, struct mk_p2p_info *out)
{
    *out = p->info;
}
