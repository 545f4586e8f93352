/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
#pragma once
#include <stdint.h>

void *runtime_open(const char *path); /* the driver, by its path; its handle */
void *runtime_symbol(const char *name);
void *runtime_version(const char *name, const char *version);
void *runtime_proc(const char *name, uint64_t flags);
void *runtime_find(const char *file);
int runtime_memset(void);
