/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Ports that listeners may take (MK_PORTS): firewalls let few through. */
#pragma once
#include <stdint.h>
#include <sys/socket.h>

struct mk_settings;

struct mk_ports {
    uint16_t low, high; /* both included; low 0: any */
};

/* "": any; "LOW-HIGH" or one port, 1 to 65535. INVALID otherwise, naming the setting. */
int mk_ports_of(const struct mk_settings *s, struct mk_ports *out);
/* The n-th to try of an attempt that begins anywhere in the range; n is below their number. Pure. */
uint16_t mk_ports_nth(const struct mk_ports *p, uint32_t start, uint32_t n);
uint32_t mk_ports_count(const struct mk_ports *p); /* 1 where any will do */
void mk_ports_set(struct sockaddr *a, uint16_t port);
/* bind at the address, which has port 0, and the first port of the range that is free. -1 with errno; EADDRINUSE: none is
 * free. */
int mk_ports_bind(int fd, const struct sockaddr *a, socklen_t len, const struct mk_ports *p);
