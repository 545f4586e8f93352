/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What boot_core.c (connections) and boot_job.c (members) share. Private to the two. */
#pragma once
#include "boot_core.h"

struct mk_boot_member {
    struct mk_boot_peer *peer; /* NULL: not here (yet, or any more) */
    uint64_t token;
    bool left;  /* said good-bye */
    bool given; /* its part of the running all-gather is here */
};

struct mk_boot_core {
    struct mk_boot_core_config cfg;
    struct mk_boot_peer *peers, **tail;
    uint32_t lines; /* about strangers */

    uint32_t nranks; /* 0: not known yet */
    struct mk_boot_member *members;
    uint32_t connected; /* members with a peer */
    uint32_t hellos;    /* of this job, those refused included */
    bool met;           /* all have been here */
    bool gone;          /* at least one has left or died since */
    int root_rank;      /* lowest rank in the service's process, -1: none */
    uint64_t meet_deadline;
    uint64_t linger_until; /* 0: did not fail to meet */
    struct mk_boot_verdict event;

    uint64_t gather_seq; /* number of the running all-gather, from 1 */
    uint32_t gather_bytes, gather_given;
    struct mk_boot_blob *gather; /* GATHERED frame under construction, or NULL */
};

/* ---- boot_job.c ---- */
struct mk_boot_blob *mk_boot_blob_new(size_t len); /* with one reference, the caller's */
void mk_boot_blob_put(struct mk_boot_blob *b);
void mk_boot_peer_queue(struct mk_boot_peer *p, struct mk_boot_blob *b); /* takes a reference of its own */

int mk_boot_job_size(struct mk_boot_core *c, uint32_t nranks);
void mk_boot_job_free(struct mk_boot_core *c);
void mk_boot_job_join(struct mk_boot_core *c, struct mk_boot_peer *p, const struct mk_boot_hello *h,
                      uint64_t now);
void mk_boot_job_frame(struct mk_boot_core *c, struct mk_boot_peer *p, uint64_t now);
void mk_boot_job_lost(struct mk_boot_core *c, struct mk_boot_peer *p, const char *why, uint64_t now);
void mk_boot_job_event(struct mk_boot_core *c, int code, int rank, const char *text, uint64_t now);
void mk_boot_job_timeout(struct mk_boot_core *c, uint64_t now);
