/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* TCP sockets of the message layer. All are in the bootstrap's table, so that a forked child closes its copies. */
#include "p2p_sock.h"
#include "boot_sock.h"
#include "ifname.h"
#include "mk/err.h"
#include "p2p.h"
#include "ports.h"
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>

static int socket_new(int family)
{
    mk_boot_live_lock();
    const int fd = mk_boot_fd_add(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    mk_boot_live_unlock();
    return fd;
}

static int to_addr(const struct mk_p2p_handle *h, struct sockaddr_storage *a, socklen_t *len)
{
    struct sockaddr_in *in = (struct sockaddr_in *)a;
    struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)a;
    memset(a, 0, sizeof(*a));
    if (h->family == 4) {
        in->sin_family = AF_INET;
        in->sin_port = htons(h->port);
        memcpy(&in->sin_addr, h->addr, 4);
        *len = sizeof(*in);
        return 0;
    }
    if (h->family != 6)
        return MK_ERR_INVALID;
    in6->sin6_family = AF_INET6;
    in6->sin6_port = htons(h->port);
    in6->sin6_scope_id = h->scope;
    memcpy(&in6->sin6_addr, h->addr, 16);
    *len = sizeof(*in6);
    return 0;
}

int mk_p2p_sock_listen(const struct mk_settings *s, struct mk_p2p_handle *h, int *out)
{
    struct mk_ifaddr ifa;
    struct mk_ports ports;
    struct sockaddr_storage a;
    socklen_t len = sizeof(a);
    int ret = mk_ports_of(s, &ports);
    if (ret)
        return ret;
    errno = 0;
    ret = mk_ifname_choose(s, &ifa);
    if (ret)
        return mk_p2p_no_files(ret, errno);
    const int fd = socket_new(ifa.addr.ss_family);
    if (fd < 0 || mk_ports_bind(fd, (struct sockaddr *)&ifa.addr, ifa.len, &ports) || listen(fd, SOMAXCONN) ||
        getsockname(fd, (struct sockaddr *)&a, &len)) {
        const int err = errno;
        ret = mk_fail(MK_ERR_SYSTEM, "NET", "listening on interface %s%s%s: %s", ifa.name,
                      ports.low ? ", MK_PORTS=" : "", s->ports, strerror(err));
        ret = mk_p2p_no_files(ret, err);
        mk_boot_fd_close(fd);
        return ret;
    }
    h->port = mk_boot_addr_port(&a);
    if (a.ss_family == AF_INET) {
        h->family = 4;
        memcpy(h->addr, &((struct sockaddr_in *)&a)->sin_addr, 4);
    } else {
        h->family = 6;
        h->scope = ((struct sockaddr_in6 *)&a)->sin6_scope_id;
        memcpy(h->addr, &((struct sockaddr_in6 *)&a)->sin6_addr, 16);
    }
    *out = fd;
    return 0;
}

int mk_p2p_sock_dial(const struct mk_p2p_handle *h, int *out, char name[80])
{
    struct sockaddr_storage a;
    socklen_t len;
    if (to_addr(h, &a, &len))
        return mk_fail(MK_ERR_INVALID, "NET", "the handle names an address of family %u", h->family);
    mk_boot_addr_name((struct sockaddr *)&a, len, name);
    const int fd = socket_new(a.ss_family);
    if (fd < 0) {
        const int err = errno;
        return mk_p2p_no_files(mk_fail(MK_ERR_SYSTEM, "NET", "a socket to %s: %s", name, strerror(err)), err);
    }
    mk_boot_tune(fd);
    if (connect(fd, (struct sockaddr *)&a, len) && errno != EINPROGRESS) {
        const int err = errno;
        mk_boot_fd_close(fd);
        errno = err;
        return MK_ERR_SYSTEM;
    }
    *out = fd;
    return 0;
}

int mk_p2p_sock_dialled(int fd)
{
    struct pollfd p = {fd, POLLOUT, 0};
    int err = 0;
    socklen_t n = sizeof(err);
    if (poll(&p, 1, 0) <= 0)
        return MK_ERR_AGAIN;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &n))
        err = errno;
    errno = err;
    return err ? MK_ERR_SYSTEM : 0;
}

int mk_p2p_sock_accept(int listener, char name[80])
{
    struct sockaddr_storage a;
    socklen_t len = sizeof(a);
    mk_boot_live_lock();
    const int fd =
        mk_boot_fd_add(accept4(listener, (struct sockaddr *)&a, &len, SOCK_CLOEXEC | SOCK_NONBLOCK));
    mk_boot_live_unlock();
    if (fd < 0)
        return -1;
    mk_boot_tune(fd);
    mk_boot_addr_name((struct sockaddr *)&a, len, name);
    return fd;
}

int mk_p2p_sock_send(int fd, const void *buf, size_t size, size_t *done)
{
    while (*done < size) {
        const ssize_t n = send(fd, (const char *)buf + *done, size - *done, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
            return MK_ERR_AGAIN;
        if (n <= 0)
            return MK_ERR_PEER;
        *done += (size_t)n;
    }
    return 0;
}

int mk_p2p_sock_recv(int fd, void *buf, size_t size, size_t *done)
{
    while (*done < size) {
        const ssize_t n = recv(fd, (char *)buf + *done, size - *done, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
            return MK_ERR_AGAIN;
        if (n <= 0)
            return MK_ERR_PEER;
        *done += (size_t)n;
    }
    return 0;
}
