/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* TCP sockets of the message layer: none of these calls waits. */
#pragma once
#include "p2p_wire.h"
#include <stdbool.h>
#include <sys/socket.h>

struct mk_settings;

/* A listener on the interface in force; fills family, port, addr and scope of h. */
int mk_p2p_sock_listen(const struct mk_settings *s, struct mk_p2p_handle *h, int *fd);
/* Starts to connect to what h names. */
int mk_p2p_sock_dial(const struct mk_p2p_handle *h, int *fd, char name[80]);
/* AGAIN: still connecting; SYSTEM with errno set (quiet): failed. */
int mk_p2p_sock_dialled(int fd);
/* A connection that came, or -1. */
int mk_p2p_sock_accept(int listener, char name[80]);
/* Move what is left of `size` bytes; AGAIN: more to do; PEER (quiet): the other side ended. */
int mk_p2p_sock_send(int fd, const void *buf, size_t size, size_t *done);
int mk_p2p_sock_recv(int fd, void *buf, size_t size, size_t *done);
