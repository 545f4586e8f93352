/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Which network interface: MK_IFNAME, in the syntax of NCCL_SOCKET_IFNAME. Used by the bootstrap for the address
 * in a unique id, and by the ofi transport. */
#pragma once
#include <net/if.h>
#include <stdbool.h>
#include <sys/socket.h>

struct mk_settings;

struct mk_ifaddr {
    char name[IF_NAMESIZE];
    struct sockaddr_storage addr; /* port 0 */
    socklen_t len;
};

/* spec: names separated by commas, each the beginning of an interface's name; "=" before the list: whole names;
 * "^" before the list: all but these ("^=" both). NULL or "": true for every name. Pure. */
bool mk_ifname_match(const char *spec, const char *name);

/* The same for an RDMA device and its port: a name in the list may end in ":port". port 0: is any of the device's ports
 * in it? Pure. */
bool mk_hca_match(const char *spec, const char *device, unsigned port);

/* The list in force: MK_IFNAME, else NCCL_SOCKET_IFNAME, else NULL. */
const char *mk_ifname_spec(const struct mk_settings *s);

/* The first interface that is up and matches the list in force, IPv4 before IPv6, global addresses before
 * link-local ones. Without a list: the first that is neither a loopback nor a docker bridge, then any but
 * loopback, then loopback. INVALID if a list is given and nothing matches, SYSTEM if there is no interface. */
int mk_ifname_choose(const struct mk_settings *s, struct mk_ifaddr *out);

/* The n-th best interface; 0 is the one above. Without a list: of those alone that are neither a loopback nor a docker
 * bridge, beyond the first. UNSUPPORTED: there are fewer. */
int mk_ifname_nth(const struct mk_settings *s, int nth, char name[IF_NAMESIZE]);
