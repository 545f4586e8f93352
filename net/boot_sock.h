/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Sockets of the bootstrap: addresses, listening, connecting, and the table of all its file descriptors, by which
 * a forked child drops its copies (else a dead parent's connections would live on in the child). */
#pragma once
#include "ports.h"
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#define MK_BOOT_NAME 80

/* "host:port", "[v6]:port". INVALID names what is wrong. Pure. */
int mk_boot_split(const char *text, char host[256], char port[8]);
/* "1.2.3.4:5", "[::1]:5" */
void mk_boot_addr_name(const struct sockaddr *sa, socklen_t len, char out[MK_BOOT_NAME]);
/* "Every address" becomes loopback: where a listener of this process is reached from itself. */
void mk_boot_reachable(struct sockaddr_storage *a);
uint16_t mk_boot_addr_port(const struct sockaddr_storage *a);

struct mk_boot_where {
    int n;
    bool named;            /* host is a name, not a number */
    struct mk_ports ports; /* where the address has port 0 */
    struct sockaddr_storage addr[8];
    socklen_t len[8];
};
/* Numbers at once, names by the resolver. AGAIN: the name is not known (now). */
int mk_boot_resolve(const char *host, const char *port, struct mk_boot_where *out);

/* Where the i-th address is listened at: a name of this machine that hosts(5) gives to loopback alone (127.0.1.1) is also
 * that of its other addresses. */
void mk_boot_listens_at(const struct mk_boot_where *w, int i, struct sockaddr_storage *out);
/* Listening socket, non-blocking; waits for an address in use until `deadline` (mk_time_ns). *bound: where it
 * is, with its port. */
int mk_boot_listen(const struct mk_boot_where *w, uint64_t deadline, struct sockaddr_storage *bound,
                   socklen_t *len, int *fd);
/* Keep-alive, no delay, non-blocking: a host that crashed is noticed within 15 s, a dead process at once. */
void mk_boot_tune(int fd);
/* One attempt: connected non-blocking socket, or -1 with errno. */
int mk_boot_connect(const struct sockaddr *sa, socklen_t len, uint64_t deadline);
/* poll for one descriptor until deadline: revents, 0 at the deadline. */
short mk_boot_poll(int fd, short events, uint64_t deadline);

/* All descriptors are made and closed under this lock; fork takes it, and closes them in the child. It also guards
 * the lists of what is alive in this process (services, clients). Held for moments only. */
void mk_boot_live_lock(void);
/* False: not to be had within half a second (used at exit, where nothing may hang). */
bool mk_boot_live_trylock(void);
void mk_boot_live_unlock(void);
extern pthread_mutex_t mk_boot_live_mutex;
int mk_boot_fd_add(int fd); /* under the lock; returns fd, or -1 with errno (and closes fd) */
int mk_boot_fd_event(void); /* an eventfd for waking a poll; takes the lock */
void mk_boot_fd_close(int fd);

uint64_t mk_boot_random(void);
uint64_t mk_boot_token(void); /* of this process; another one in a forked child */
/* Starts a thread that takes no signals. */
int mk_boot_thread(pthread_t *out, void *(*fn)(void *), void *arg, bool detached);
