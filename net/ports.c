/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Ports that listeners may take. */
#include "ports.h"
#include "boot_sock.h"
#include "mk/err.h"
#include "mk/param.h"
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

static bool number(const char *text, char **end, uint16_t *out)
{
    if (*text < '0' || *text > '9')
        return false;
    const unsigned long v = strtoul(text, end, 10);
    *out = (uint16_t)v;
    return v >= 1 && v <= 65535;
}

int mk_ports_of(const struct mk_settings *s, struct mk_ports *out)
{
    struct mk_ports p = {0, 0};
    char *end = NULL;
    if (*s->ports) {
        bool ok = number(s->ports, &end, &p.low);
        p.high = p.low;
        if (ok && *end == '-')
            ok = number(end + 1, &end, &p.high);
        if (!ok || *end || p.high < p.low)
            return mk_fail(MK_ERR_INVALID, "NET", "MK_PORTS=%s is not a range of ports, such as 50000-50999",
                           s->ports);
    }
    *out = p;
    return 0;
}

uint32_t mk_ports_count(const struct mk_ports *p)
{
    return p->low ? (uint32_t)(p->high - p->low) + 1 : 1;
}

uint16_t mk_ports_nth(const struct mk_ports *p, uint32_t start, uint32_t n)
{
    return p->low ? (uint16_t)(p->low + (start % mk_ports_count(p) + n) % mk_ports_count(p)) : 0;
}

void mk_ports_set(struct sockaddr *a, uint16_t port)
{
    if (a->sa_family == AF_INET)
        ((struct sockaddr_in *)(void *)a)->sin_port = htons(port);
    else if (a->sa_family == AF_INET6)
        ((struct sockaddr_in6 *)(void *)a)->sin6_port = htons(port);
}

int mk_ports_bind(int fd, const struct sockaddr *a, socklen_t len, const struct mk_ports *p)
{
    struct sockaddr_storage at;
    const uint32_t start = (uint32_t)mk_boot_random();
    memset(&at, 0, sizeof(at));
    memcpy(&at, a, len);
    for (uint32_t n = 0; n < mk_ports_count(p); n++) {
        mk_ports_set((struct sockaddr *)&at, mk_ports_nth(p, start, n));
        if (!bind(fd, (struct sockaddr *)&at, len))
            return 0;
        if (errno != EADDRINUSE)
            return -1;
    }
    return -1;
}
