/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The root service without its sockets: who is a member, what is answered, what is told to all. Bytes go in by
 * feed, bytes come out by out/sent, time is an argument: so it can be fuzzed and tested without a network.
 * net/boot_root.c is the driver with the sockets. Everything here belongs to one thread. */
#pragma once
#include "boot_wire.h"
#include <stdbool.h>

struct mk_boot_core;

struct mk_boot_core_config {
    uint64_t key;
    uint64_t token;     /* of the process that runs the service */
    uint32_t nranks;    /* 0: the first good hello says */
    uint64_t hello_ns;  /* a connection must have said hello within this time */
    uint64_t wait_ns;   /* with nranks: all must have come within this time, from now; 0: as the hellos say */
    uint64_t linger_ns; /* how long a job that failed to meet tells latecomers why */
};

/* One message for several peers. */
struct mk_boot_blob {
    uint32_t refs;
    size_t len;
    uint8_t data[];
};
struct mk_boot_out {
    struct mk_boot_out *next;
    struct mk_boot_blob *blob;
    size_t off;
};

enum mk_boot_peer_state {
    MK_BOOT_PEER_HELLO, /* has not said (all of) its hello */
    MK_BOOT_PEER_MEMBER,
    MK_BOOT_PEER_DRAIN, /* refused: the answer goes out, what comes in is dropped, then its end is awaited */
    MK_BOOT_PEER_CLOSED /* the driver closes the socket and frees the peer */
};
struct mk_boot_peer {
    struct mk_boot_peer *next; /* of core's list, in order of arrival */
    int fd;                    /* the driver's */
    bool shut;                 /* the driver's: DRAIN, and its sending side is shut */
    bool broken;               /* no memory for what it had to be told: the next tick ends it */
    enum mk_boot_peer_state state;
    char name[80];
    uint64_t deadline; /* HELLO and DRAIN */
    int rank;          /* MEMBER */
    uint8_t head[sizeof(struct mk_boot_hello)];
    uint32_t head_have;
    struct mk_boot_frame frame;
    uint8_t *body; /* of frame, while it comes in */
    uint32_t body_have;
    struct mk_boot_out *out_first, *out_last;
};

int mk_boot_core_new(const struct mk_boot_core_config *c, uint64_t now, struct mk_boot_core **out);
void mk_boot_core_free(struct mk_boot_core *c); /* frees the peers too; NULL allowed */

/* A connection has come. NULL: no memory. May close the oldest connection that has not said hello. */
struct mk_boot_peer *mk_boot_core_accept(struct mk_boot_core *c, const char *name, uint64_t now);
struct mk_boot_peer *mk_boot_core_peers(struct mk_boot_core *c);
/* Too many connections for this process: closes the oldest that is not a member. False: there is none. */
bool mk_boot_core_drop_oldest(struct mk_boot_core *c, const char *why);
/* Bytes have come. */
void mk_boot_core_feed(struct mk_boot_core *c, struct mk_boot_peer *p, const uint8_t *buf, size_t n,
                       uint64_t now);
/* The connection has ended. */
void mk_boot_core_lost(struct mk_boot_core *c, struct mk_boot_peer *p, const char *why, uint64_t now);
/* Bytes to send: returns how many lie at *buf (0: none). */
size_t mk_boot_peer_out(const struct mk_boot_peer *p, const uint8_t **buf);
void mk_boot_peer_sent(struct mk_boot_peer *p, size_t n);
/* Unlinks and frees the CLOSED ones; close_fd is called for each with fd >= 0. */
void mk_boot_core_sweep(struct mk_boot_core *c, void (*close_fd)(int fd));

void mk_boot_core_tick(struct mk_boot_core *c, uint64_t now);
/* When tick must be called next; UINT64_MAX: not by time. */
uint64_t mk_boot_core_deadline(const struct mk_boot_core *c);
/* Nothing left to do: all have left, or the failure to meet has been told long enough. */
bool mk_boot_core_done(const struct mk_boot_core *c, uint64_t now);
/* No member is connected any more, and the job has met or failed: another service may have the address. */
bool mk_boot_core_idle(const struct mk_boot_core *c);
/* The process of the service ends in good order: its ranks that have said nothing yet have left. */
void mk_boot_core_farewell(struct mk_boot_core *c);
/* 1: all ranks have met. */
bool mk_boot_core_met(const struct mk_boot_core *c);
/* How many processes have said hello to this job, those that were refused included. */
uint32_t mk_boot_core_hellos(const struct mk_boot_core *c);
/* The event of the job; code 0: none. */
const struct mk_boot_verdict *mk_boot_core_event(const struct mk_boot_core *c);
