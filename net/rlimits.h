/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Limits of the process that a network runs into, and what to say then: the limit, its value, what is needed, how to
 * raise it. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define MK_LIMITS_TEXT 256
#define MK_LIMITS_PER_PEER 3u /* files for each process that is connected, about */

/* Can no file be opened now? errno stays as it is. */
bool mk_limits_no_files(void);
/* RLIMIT_NOFILE, soft; UINT64_MAX: none. */
uint64_t mk_limits_files(void);
/* How many of them can still be opened. */
uint64_t mk_limits_files_left(void);
/* For whom it is reached. */
void mk_limits_files_text(char text[MK_LIMITS_TEXT]);

/* Bytes that may be locked; UINT64_MAX: any number, by RLIMIT_MEMLOCK or by CAP_IPC_LOCK. */
uint64_t mk_limits_memlock(void);
void mk_limits_memlock_text(char text[MK_LIMITS_TEXT]);
