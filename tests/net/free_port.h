/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* A port of the loopback address that nobody listens on now: for a root that is told where to listen. Ends the program
 * where there is none. */
#pragma once
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static inline int free_port(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(at);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof(at)) ||
        getsockname(fd, (struct sockaddr *)&at, &len))
        abort();
    close(fd);
    return ntohs(at.sin_port);
}
