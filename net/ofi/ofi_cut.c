/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Cutting a peer off. A software provider reads a message from its socket straight into the target, however long that
 * takes; no call of libfabric ends that for one peer. What does is the socket itself: shut down, it takes nothing more,
 * and the provider finds its end behind what has arrived already. The sockets are known by the two endpoints'
 * addresses, which are TCP listeners: ours is the near end of what a peer opened, the peer's the far end of what we
 * opened. In the first case the peer's port says nothing, so all processes at its address lose their connections, those
 * that we opened to them too. */
#include "ofi.h"
#include <dirent.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static bool same_host(const struct sockaddr *a, const struct sockaddr *b)
{
    if (a->sa_family != b->sa_family)
        return false;
    if (a->sa_family == AF_INET)
        return ((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr ==
               ((const struct sockaddr_in *)(const void *)b)->sin_addr.s_addr;
    return a->sa_family == AF_INET6 &&
           !memcmp(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr,
                   &((const struct sockaddr_in6 *)(const void *)b)->sin6_addr, 16);
}

/* The port stands at one place in both families. */
static bool same(const struct sockaddr *a, const struct sockaddr *b)
{
    return same_host(a, b) && ((const struct sockaddr_in *)(const void *)a)->sin_port ==
                                  ((const struct sockaddr_in *)(const void *)b)->sin_port;
}

static bool address_of(const struct mk_ofi_conn *c, struct sockaddr_storage *out)
{
    memset(out, 0, sizeof(*out));
    for (const struct mk_ofi_peer *p = c->dev->peers; c->connected && p; p = p->next)
        if (p->addr == c->addr && p->len <= sizeof(*out)) {
            memcpy(out, p->name, p->len);
            return out->ss_family == AF_INET || out->ss_family == AF_INET6;
        }
    return false;
}

/* Does it lead from this endpoint to one at the address of `peer`? */
static bool leads_to(const struct mk_ofi_dev *d, const struct sockaddr *near, const struct sockaddr *far,
                     const struct sockaddr *mine, const struct sockaddr *peer)
{
    struct sockaddr_storage name;
    if (!same_host(far, peer))
        return false;
    if (same(near, mine))
        return true;
    for (const struct mk_ofi_peer *p = d->peers; p; p = p->next) {
        memset(&name, 0, sizeof(name));
        memcpy(&name, p->name, p->len < sizeof(name) ? p->len : sizeof(name));
        if (same(far, (struct sockaddr *)&name))
            return true;
    }
    return false;
}

static bool shut(const struct mk_ofi_dev *d, int fd, const struct sockaddr *mine, const struct sockaddr *peer)
{
    struct sockaddr_storage near, far;
    socklen_t near_len = sizeof(near), far_len = sizeof(far);
    if (getsockname(fd, (struct sockaddr *)&near, &near_len) ||
        getpeername(fd, (struct sockaddr *)&far, &far_len) ||
        !leads_to(d, (struct sockaddr *)&near, (struct sockaddr *)&far, mine, peer))
        return false;
    shutdown(fd, SHUT_RDWR);
    return true;
}

int mk_ofi_cut(struct mk_conn *conn)
{
    struct mk_ofi_conn *c = (struct mk_ofi_conn *)conn;
    struct sockaddr_storage mine, peer;
    size_t len = sizeof(mine);
    int found = 0;
    memset(&mine, 0, sizeof(mine));
    if (!address_of(c, &peer) || fi_getname(&c->dev->ep->fid, &mine, &len))
        return -1;
    DIR *d = opendir("/proc/self/fd");
    if (!d)
        return -1; /* whatever there is stays open */
    for (struct dirent *e; (e = readdir(d));)
        found += e->d_name[0] != '.' &&
                 shut(c->dev, atoi(e->d_name), (struct sockaddr *)&mine, (struct sockaddr *)&peer);
    closedir(d);
    return found;
}

bool mk_ofi_cut_breaks(const struct mk_conn *conn, const struct mk_conn *other)
{
    struct sockaddr_storage a, b;
    return address_of((const struct mk_ofi_conn *)conn, &a) &&
           address_of((const struct mk_ofi_conn *)other, &b) &&
           same_host((struct sockaddr *)&a, (struct sockaddr *)&b);
}
