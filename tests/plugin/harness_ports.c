/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#include "tests/plugin/harness_ports.h"
#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int is_mine(unsigned long inode)
{
    char path[300], to[64], want[64];
    int found = 0;
    DIR *d = opendir("/proc/self/fd");
    snprintf(want, sizeof(want), "socket:[%lu]", inode);
    for (struct dirent *e; d && !found && (e = readdir(d));) {
        snprintf(path, sizeof(path), "/proc/self/fd/%s", e->d_name);
        const ssize_t n = readlink(path, to, sizeof(to) - 1);
        to[n > 0 ? n : 0] = 0;
        found = !strcmp(to, want);
    }
    if (d)
        closedir(d);
    return found;
}

static void read_table(struct ports *p, const char *path, int v6)
{
    char line[512], addr[40];
    unsigned port, state;
    unsigned long inode;
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof(line), f)) {
        if (sscanf(line, " %*d: %39[0-9A-F]:%x %*[0-9A-F]:%*x %x %*x:%*x %*x:%*x %*x %*d %*d %lu", addr,
                   &port, &state, &inode) != 4 ||
            state != 0x0a || p->n == PORTS_MAX || !is_mine(inode))
            continue;
        for (int i = 0; i < (v6 ? 4 : 1); i++) {
            char word[9] = {0};
            memcpy(word, addr + 8 * i, 8);
            p->at[p->n].addr[i] = (uint32_t)strtoul(word, NULL, 16);
        }
        p->at[p->n].v6 = v6;
        p->at[p->n++].port = (uint16_t)port;
    }
    if (f)
        fclose(f);
}

void ports_find(struct ports *p)
{
    memset(p, 0, sizeof(*p));
    read_table(p, "/proc/self/net/tcp", 0);
    read_table(p, "/proc/self/net/tcp6", 1);
}

static int dial(const struct ports *p, int i)
{
    struct sockaddr_in a4 = {.sin_family = AF_INET, .sin_port = htons(p->at[i].port)};
    struct sockaddr_in6 a6 = {.sin6_family = AF_INET6, .sin6_port = htons(p->at[i].port)};
    memcpy(&a4.sin_addr, p->at[i].addr, 4);
    memcpy(&a6.sin6_addr, p->at[i].addr, 16);
    const int fd = socket(p->at[i].v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, p->at[i].v6 ? (struct sockaddr *)&a6 : (struct sockaddr *)&a4,
                           p->at[i].v6 ? sizeof(a6) : sizeof(a4))) {
        close(fd);
        return -1;
    }
    return fd;
}

void ports_call(struct ports *p, int how)
{
    static const char http[] = "GET / HTTP/1.0\r\nHost: a\r\n\r\n", zeros[4096];
    const struct linger reset = {1, 0};
    for (int i = 0; i < p->n; i++) {
        const int fd = dial(p, i);
        if (fd < 0)
            continue;
        if (how == 1)
            (void)!send(fd, http, sizeof(http) - 1, MSG_NOSIGNAL);
        else if (how == 2)
            (void)!send(fd, zeros, sizeof(zeros), MSG_NOSIGNAL);
        else if (how == 3)
            (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
        if (how <= 1 && p->nfd < CALLS_MAX)
            p->fd[p->nfd++] = fd;
        else
            close(fd);
    }
}

void ports_hang_up(struct ports *p)
{
    while (p->nfd)
        close(p->fd[--p->nfd]);
}
