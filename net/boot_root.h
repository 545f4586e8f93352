/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The root service: one thread a communicator, with the sockets of boot_core.h. It owns itself: it ends when all
 * ranks have left, when nobody is left to tell why they did not meet, or with the process. */
#pragma once
#include "boot_core.h"

/* Takes over listen_fd (which listens at `port`), also on failure. */
int mk_boot_root_start(const struct mk_boot_core_config *c, int listen_fd, uint16_t port);
/* Services of this process at this port whose job is over give the address back at once. */
void mk_boot_root_evict(uint16_t port);
/* Ends the services with this key: their maker could not go on. */
void mk_boot_root_stop(uint64_t key);
/* A job that failed to meet: waits until n processes have come and been told, at most until the deadline. Its root
 * would end with this process, and the latecomers would not learn why. */
void mk_boot_root_hear(uint64_t key, uint32_t n, uint64_t deadline);
/* At exit: the services tell the others that their process ends in good order, and end. Waits half a second at
 * most. */
void mk_boot_root_farewell(void);
