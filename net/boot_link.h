/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* A rank's side of the bootstrap: its connection to the root, the thread that reads it, what that thread writes
 * down. boot.c is the public face. */
#pragma once
#include "boot_sock.h"
#include "boot_wire.h"
#include "mk/boot.h"

/* Who waits for the others to come looks meanwhile, ten times a second: not 0 ends the wait with that error. */
struct mk_boot_watch {
    int (*look)(void *ctx);
    void *ctx;
};

/* lock guards all that is not said to be otherwise; cond (monotonic) tells of any change. */
struct mk_boot {
    struct mk_boot *next; /* list of live ones, under the live lock */
    pid_t pid;            /* the process whose object this is; a forked child may only free it */
    int rank, nranks;
    bool solo;                         /* one rank, no network */
    const struct mk_boot_watch *watch; /* until it has met; NULL: nobody looks */
    bool optional;                     /* that the ranks do not meet is no fault: whoever wanted it says so */
    uint64_t key, timeout_ns;
    char root_name[300]; /* of the root, for messages */
    int fd, wake_fd;
    pthread_t thread;
    bool threaded;

    bool stop; /* the thread shall end; atomic */

    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool bye;        /* good-bye is said: nothing that follows is an event */
    bool met, ended; /* ended: the connection is gone */
    bool hosts;      /* the root's service is in this process */
    int root_rank;   /* -1: the root's process has no rank, or it is not known yet */
    char ended_text[200];

    struct mk_boot_event event; /* written once, before event_set is released */
    uint32_t event_set;         /* read with acquire by anybody */
    mk_boot_event_fn fn;
    void *fn_ctx;
    bool fn_called;
    mk_boot_said_fn said;
    void *said_ctx;
    bool saying; /* the thread is in it */
    mk_boot_left_fn left_fn;
    void *left_ctx;
    uint8_t *left;  /* [nranks], each written once with release, read with acquire by anybody */
    int first_left; /* -1: none */

    /* all-gather: seq is the caller's, done_* the answer that came last */
    uint64_t seq, done_seq;
    int done_code;
    uint32_t done_bytes; /* of one rank */
    uint8_t *result;
    char done_text[MK_BOOT_MAX_TEXT + 1];
    int failed; /* sticky: the number of all-gathers is no longer the same everywhere */
    char failed_text[256];

    uint8_t *out; /* bytes that the socket did not take yet */
    size_t out_off, out_len, out_size;

    /* the thread's own */
    uint8_t head[sizeof(struct mk_boot_frame)];
    uint32_t head_have, body_have;
    struct mk_boot_frame frame;
    uint8_t *body;
};

/* Finds the root and says hello, again and again until deadline. Sets b->fd. host, port: looked up on each try;
 * or at: a fixed address (host NULL). */
int mk_boot_dial(struct mk_boot *b, const char *host, const char *port, const struct mk_boot_where *at,
                 uint64_t deadline);
/* mk_boot_init_id, with somebody who looks (NULL: nobody). */
int mk_boot_init_watched(const struct mk_settings *s, const mk_unique_id_t *id, int nranks, int rank,
                         const struct mk_boot_watch *watch, struct mk_boot **out);
int mk_boot_link_start(struct mk_boot *b);
/* At the end of the process: ends the thread if it does so soon. */
void mk_boot_link_halt(struct mk_boot *b);
/* Ends the thread and the connection. */
void mk_boot_link_stop(struct mk_boot *b);
/* With b->lock: queues one frame, sends what the socket takes, leaves the rest to the thread. */
int mk_boot_link_send(struct mk_boot *b, uint32_t type, uint64_t seq, const void *body, uint32_t length);
/* Frees what is left after link_stop. */
void mk_boot_free(struct mk_boot *b);
/* From now on the end of the process says good-bye for b. */
void mk_boot_list_add(struct mk_boot *b);
/* With b->lock: sleeps until something changes. False: the deadline has passed. */
bool mk_boot_wait(struct mk_boot *b, uint64_t deadline);
/* Records the event if it is the first, calls the event function. Without b->lock. */
void mk_boot_record(struct mk_boot *b, int code, int rank, const char *text);
