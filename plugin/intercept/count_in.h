/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Between count.c (stubs, counters) and count_driver.c (where the driver's functions are found). */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define MK_COUNT_STUBS 2048
#define MK_COUNT_SOME 128 /* of a kind that is listed apart */
#define MK_COUNT_STUB_BYTES 16
#define MK_COUNT_SEATS 256
#define MK_COUNT_SEAT_SHIFT 12 /* thread pointers are a stack or more apart */
#define MK_COUNT_TEXT_(x) #x
#define MK_COUNT_TEXT(x) MK_COUNT_TEXT_(x)

/* The stub of p, made if there is none; p itself where there are too many (that ends the proof). */
void *mk_count_take(void *p, const char *name, bool unknown);
/* No child is made while a table is changed. Before the lock of stubs. */
void mk_count_fork_tables(bool before);
/* What a stub jumps to; anything else as it is. */
void *mk_count_behind(void *p);
/* The driver's symbols lead to stubs. */
void mk_count_hooked(void);
bool mk_count_is_hooked(void);
