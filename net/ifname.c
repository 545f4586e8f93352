/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Choice of a network interface. */
#include "ifname.h"
#include "mk/err.h"
#include "mk/param.h"
#include <errno.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool mk_ifname_match(const char *spec, const char *name)
{
    if (!spec || !*spec)
        return true;
    const bool exclude = *spec == '^';
    spec += exclude;
    const bool exact = *spec == '=';
    spec += exact;
    bool listed = false;
    while (*spec && !listed) {
        const size_t n = strcspn(spec, ",");
        listed = n && (exact ? strlen(name) == n && !strncmp(name, spec, n) : !strncmp(name, spec, n));
        spec += n + (spec[n] == ',');
    }
    return listed != exclude;
}

bool mk_hca_match(const char *spec, const char *device, unsigned port)
{
    if (!spec || !*spec)
        return true;
    const bool exclude = *spec == '^';
    spec += exclude;
    const bool exact = *spec == '=';
    spec += exact;
    bool listed = false;
    while (*spec && !listed) {
        const size_t all = strcspn(spec, ","), n = strcspn(spec, ",:");
        const unsigned long want = n < all ? strtoul(spec + n + 1, NULL, 10) : 0;
        listed = n && (exact ? strlen(device) == n && !strncmp(device, spec, n) : !strncmp(device, spec, n));
        /* of a device that one port is named of, others remain when it is left out */
        if (want && (port ? want != port : exclude))
            listed = false;
        spec += all + (spec[all] == ',');
    }
    return listed != exclude;
}

const char *mk_ifname_spec(const struct mk_settings *s)
{
    if (*s->ifname)
        return s->ifname;
    const char *v = mk_env("NCCL_SOCKET_IFNAME");
    return v && *v ? v : NULL;
}

/* How good is this address? 0: not usable. With a list only the kind of address counts. */
#define REAL 20 /* neither loopback nor bridge, and running */
static int score(const struct ifaddrs *a, const char *spec)
{
    if (!a->ifa_addr || !(a->ifa_flags & IFF_UP) || !mk_ifname_match(spec, a->ifa_name))
        return 0;
    int s = 0;
    if (a->ifa_addr->sa_family == AF_INET)
        s = 3;
    else if (a->ifa_addr->sa_family == AF_INET6)
        s = IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)a->ifa_addr)->sin6_addr) ? 1 : 2;
    if (!s || spec)
        return s;
    if (a->ifa_flags & IFF_LOOPBACK)
        return s;
    return s + (!strncmp(a->ifa_name, "docker", 6) || !(a->ifa_flags & IFF_RUNNING) ? 10 : REAL);
}

int mk_ifname_choose(const struct mk_settings *s, struct mk_ifaddr *out)
{
    const char *spec = mk_ifname_spec(s);
    struct ifaddrs *list, *best = NULL;
    int best_score = 0;
    if (getifaddrs(&list))
        return mk_fail(MK_ERR_SYSTEM, "NET", "list of network interfaces: %s", strerror(errno));
    for (struct ifaddrs *a = list; a; a = a->ifa_next) {
        const int now = score(a, spec);
        if (now > best_score) {
            best = a;
            best_score = now;
        }
    }
    int ret = 0;
    if (best) {
        memset(out, 0, sizeof(*out));
        snprintf(out->name, sizeof(out->name), "%s", best->ifa_name);
        out->len =
            best->ifa_addr->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
        memcpy(&out->addr, best->ifa_addr, out->len);
    } else if (spec) {
        ret = mk_fail(MK_ERR_INVALID, "NET", "no network interface that is up matches %s=%s",
                      *s->ifname ? "MK_IFNAME" : "NCCL_SOCKET_IFNAME", spec);
    } else {
        ret = mk_fail(MK_ERR_SYSTEM, "NET", "no network interface is up");
    }
    freeifaddrs(list);
    return ret;
}

#define NAMES_MAX 32
int mk_ifname_nth(const struct mk_settings *s, int nth, char name[IF_NAMESIZE])
{
    const char *spec = mk_ifname_spec(s);
    const char *taken[NAMES_MAX];
    struct ifaddrs *list;
    int ret = 0;
    if (getifaddrs(&list))
        return mk_fail(MK_ERR_SYSTEM, "NET", "list of network interfaces: %s", strerror(errno));
    for (int n = 0; n <= nth && !ret; n++) {
        const struct ifaddrs *best = NULL;
        int best_score = n && !spec ? REAL : 0;
        for (const struct ifaddrs *a = list; a; a = a->ifa_next) {
            int i = 0;
            while (i < n && strcmp(taken[i], a->ifa_name))
                i++;
            const int now = i == n ? score(a, spec) : 0;
            if (now > best_score) {
                best = a;
                best_score = now;
            }
        }
        if (!best || n == NAMES_MAX)
            ret = mk_fail_quiet(MK_ERR_UNSUPPORTED, "there are %d network interfaces to use", n);
        else
            taken[n] = best->ifa_name;
    }
    if (!ret)
        snprintf(name, IF_NAMESIZE, "%s", taken[nth]);
    freeifaddrs(list);
    return ret;
}
