/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* A net plugin for the harness to be tested with: right and small, over unix sockets, or wrong in the one way that
 * FAKE_FAULT names. fake_net.c: the network; fake_plugin.c: the tables. */
#pragma once
#include "plugin/nccl/abi_net.h"
#include <stdbool.h>

enum { FAKE_GROUP = 8, FAKE_IN_FLIGHT = 256 };

bool fake_fault(const char *name);
void fake_warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

int fake_listen(int dev, void *handle, void **comm);
int fake_connect(int dev, void *handle, void **comm);
int fake_accept(void *listen, void **comm);
int fake_isend(void *comm, void *data, size_t size, int tag, void **request);
int fake_irecv(void *comm, int n, void **data, const size_t *sizes, const int *tags, void **request);
int fake_test(void *request, int *done, int *sizes);
int fake_close(void *comm);
int fake_close_listen(void *listen);
