/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Files of profiles (tuner/profile_file.c), read and merged: one row a kind of collective, over all ranks. */
#pragma once
#include "mk/profile.h"

struct mk_profile_row {
    struct mk_kind k;   /* sums over the ranks */
    int nranks, nnodes; /* of its communicators; 0: not known */
    char name[64];      /* of the communicators, as the program called them */
    int ranks;          /* that have it; a rank counts once a communicator */
};
struct mk_profile_sum {
    struct mk_profile_row *row; /* sorted: collective, type, size, ranks, name, then the rest */
    int n, room;
    int files, communicators;
    uint64_t no_room, forgotten; /* calls and communicators for which a table had no place */
    uint64_t collectives, p2p;
    int without_gpu, off; /* processes whose profile cost too much */
    double cost_max;      /* largest share of a process's time that the profile took */
    struct mk_profile_seen {
        char host[64];
        int pid;
        double seconds;
    } * seen; /* of each file */
};

/* Adds a file. INVALID: it is damaged, no profile, of another version, or one that was added already; nothing of it is taken
 * then. SYSTEM: it cannot be read. NOMEM. The sentence begins with the path. */
int mk_profile_add(struct mk_profile_sum *s, const char *path);
/* The same from memory; path is for the sentence. */
int mk_profile_add_text(struct mk_profile_sum *s, const char *path, const char *text, size_t bytes);
void mk_profile_sort(struct mk_profile_sum *s);
void mk_profile_free(struct mk_profile_sum *s);

/* ns below which `share` of the counts are; 0 for none. */
double mk_hist_quantile(const uint32_t h[MK_HIST_BUCKETS], double share);
