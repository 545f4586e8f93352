/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The count of everything that anybody but us may put on a stream: what the eager proof (design 13.4) rests on.
 *
 * Every function of the driver that may enqueue (fused/driver_calls.c), in all its variants, is handed out as a
 * stub that adds one to a process-wide counter and then jumps to the function; so the counter has moved before the work is
 * there, and no signature matters. Stubs are found wherever the driver's functions are: in the symbol table of libcuda
 * itself, whose entries are set to the stubs when it is loaded (dlsym by anybody, RTLD_NEXT, late objects' relocations),
 * in what cuGetProcAddress gives, and in the tables of cuGetExportTable. Our own launches call the originals.
 *
 * Why a count that no lock protects will do: work that must lie between G and K was issued by a call that began after the
 * GEMM's returned and ended before the collective's began, so its stub has run between our two readings. A call that
 * another thread makes at the same time as one of these two has no place in that order: either is right.
 *
 * The proof is given while all of this holds, and never again once it does not (mk_count_why): we were loaded by LD_PRELOAD
 * before libcuda was; nothing came together with libcuda that could have looked something up before us; nobody got a
 * function that we know nothing of; and launches of cuBLAS and of NCCL were seen to be counted within their calls. */
#pragma once
#include "hook.h"
#include "slots.h"

/* Before the first round over the loaded objects. preloaded: by LD_PRELOAD, and eager calls are anybody's business. */
void mk_count_start(bool preloaded);
/* Is it to be looked at at all? */
bool mk_count_watching(void);

/* Within dl_iterate_phdr: the driver's library has come (once: for good; another one ends the proof). */
void mk_count_driver(const struct mk_elf *e);
/* The proof is over; `name` is copied. Calls nothing that takes a lock. Only the first is kept. */
void mk_count_end(const char *why, const char *name);

/* The driver's function that `p`, which a lookup gave, stands for; anything else as it is. */
void *mk_count_original(void *p);
/* The stub of the driver's function p; p where it has none. */
void *mk_count_stub(void *p);
/* What cuGetProcAddress of any kind has found under a name: what to give instead. */
void *mk_count_found(const char *symbol, int version, void *p);

/* Counted so far, of all threads. Of them, launches of graphs. */
uint64_t mk_count_total(void);
uint64_t mk_count_graphs(void);
/* From here to mk_count_rise the calls of this thread are counted apart, from *n on. false: its place is another thread's now, or
 * its own already; then no mk_count_rise. */
bool mk_count_sit(uint64_t *n);
uint64_t mk_count_rise(void); /* what *n has become */
/* Who was counted last: for people, since another thread may have been next. */
const char *mk_count_last(void);

/* A hooked call of this library has returned well: did it count? */
void mk_count_called(enum mk_hook_lib lib, bool counted);
/* The proof is given now. */
bool mk_count_on(void);
/* Why not, in words; NULL: it is. */
const char *mk_count_why(char *text, size_t bytes);
/* No child is made while a stub is. */
void mk_count_fork(bool before);
/* One line when it begins and when it ends. Not within dl_iterate_phdr. */
void mk_count_say(void);
/* At the end (MK_LOG=debug): who was counted, and how often. */
void mk_count_report(void);
