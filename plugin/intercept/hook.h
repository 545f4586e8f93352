/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Interception: calls of cuBLAS, NCCL and a few driver functions by other objects of the process come to us first.
 *
 * A consumer (adapt.h) hears of every call before and after it, and may answer it; else it is passed on as it came: same
 * arguments, same return code. Nothing is patched unless MK_FUSE is set to graph or on in the environment (unset and off:
 * not one byte of another object is written).
 *
 * How: the import slots (JUMP_SLOT, GLOB_DAT, 64-bit data) of the loaded objects are made to point at the hooks. Left
 * alone are this object, NVIDIA's own (by name: libraries in sweep.c), and every slot that does not hold the library's
 * own function, such as that of another interposer. Objects that come later are patched at the next hooked call, or
 * call of NCCL into our tuner. By LD_PRELOAD of this file `dlsym` and `dlvsym` are hooked, too, so that functions which
 * others look up by name are ours, cuGetProcAddress among them. They are patched into slots as well: no foreign name is
 * exported, so a program that links this library, or NCCL that opens it, keeps its own `dlsym`. There the driver's functions
 * are counted, too, for all callers (count.h): for that the symbols of libcuda are changed, and NVIDIA's libraries' slots of
 * `dlsym` and `dlvsym`.
 *
 * Not reached, and counted where it can be seen (struct mk_hook_stats): pointers that were looked up before, calls
 * within an object that defines the function or is linked with -Bsymbolic, `dlsym(RTLD_NEXT, ..)`, other namespaces
 * (dlmopen), what a late object does before it is patched, all lookups by name without LD_PRELOAD. x86-64 with glibc
 * only. NOTES.md has the reasons. */
#pragma once
#include "table.h"
#include <stdbool.h>

enum mk_hook_mode { MK_HOOK_OFF, MK_HOOK_GRAPH, MK_HOOK_ON };

struct mk_hook_event {
    enum mk_hook_id id;
    bool after; /* false: the call is to come; true: it has returned `result` */
    int result; /* of a call that returns nothing: 0. After: what is returned, which the consumer may change */
    const void *call; /* struct mk_call_NAME */
    void *comm;       /* ncclComm_t, or NULL; what is made by the call stands in its arguments, afterwards */
    void *stream;     /* of the arguments; for the others mk_hook_stream() */
    const void *caller; /* where the call returns to */
    uint64_t keep;      /* the consumer's, from before to after */
    bool counts;        /* what the original puts on the GPU is counted apart (mk_count_sit): */
    uint64_t counted;
};

/* Sees every call twice, before and after, on the calling thread; it may be called by many threads at once. Before:
 * true answers the call with event->result, the library is not called and no `after` comes. */
typedef bool (*mk_hook_fn)(struct mk_hook_event *event);

/* Starts once; later calls change nothing. lookups: dlsym, dlvsym too. 0, or UNSUPPORTED (not x86-64 with glibc). */
int mk_hook_start(enum mk_hook_mode mode, bool lookups);
enum mk_hook_mode mk_hook_mode(void);
/* NULL: nobody; calls are only counted. */
void mk_hook_set(mk_hook_fn fn);

/* Patches what came since the last hooked call; cheap, does nothing before the start. For our functions that NCCL calls:
 * with them the second collective of a late object comes to its hook, at the latest. */
void mk_hook_poll(void);

/* The stream of a cuBLAS call (asked of the library where it is not an argument), else event->stream. */
void *mk_hook_stream(const struct mk_hook_event *event);

const char *mk_hook_name(enum mk_hook_id id);
uint64_t mk_hook_calls(enum mk_hook_id id);

struct mk_hook_stats {
    unsigned sweeps, objects; /* rounds over the loaded objects; objects read in them */
    unsigned patched;         /* slots */
    unsigned left;            /* slots of hooked names that hold something else, or could not be written */
    unsigned missed;          /* lookups by name whose result we could not replace */
    unsigned lost;            /* patched slots that the dynamic linker had set back; patched again */
    unsigned copies;        /* further definitions of hooked names: interposers, second copies of a library */
    bool lib[MK_HOOK_LIBS]; /* seen loaded */
    unsigned of[MK_HOOK_LIBS]; /* slots patched, of each */
};
void mk_hook_get_stats(struct mk_hook_stats *out);
