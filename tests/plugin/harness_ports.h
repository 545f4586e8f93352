/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The TCP ports on which this process listens, and strangers that call there. */
#pragma once
#include <stdint.h>

enum { PORTS_MAX = 16, CALLS_MAX = 64 };
struct ports {
    struct {
        uint16_t port;
        int v6;
        uint32_t addr[4]; /* as /proc/net/tcp has it: network order */
    } at[PORTS_MAX];
    int n;
    int fd[CALLS_MAX];
    int nfd;
};

void ports_find(struct ports *p);
/* how: 0 says nothing and stays, 1 speaks HTTP, 2 sends zeros and leaves, 3 leaves at once with a reset */
void ports_call(struct ports *p, int how);
void ports_hang_up(struct ports *p);
