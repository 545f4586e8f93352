/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The meeting place: where ranks that know a communicator's name and no address of each other find its root. Any process
 * of the host whose address it is serves it, the first that can listen there; rank 0 of a communicator leaves the unique
 * id of its root, the others take it away. One message each way, then the connection ends. Little endian, 168 bytes:
 *
 *   0 magic 8 · 8 version 4 · 12 what 4 · 16 job's key 8 · 24 name 8 · 32 number of ranks 4 · 36 rank 4 · 40 unique id 128
 *
 * PUT leaves an id (a second one replaces the first), TAKE waits for one, DROP takes that id away again, GIVEN and REFUSED
 * answer. Nothing is counted, so whoever lost an answer asks again; rank 0 leaves its word again and again until all have
 * met, since the process that serves may end, and takes it away then. */
#pragma once
#include "mkernel.h"
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#define MK_PLACE_MAGIC 0x0a0d63616c704b89ull
#define MK_PLACE_VERSION 2u
#define MK_PLACE_BYTES 168u
enum mk_place_what {
    MK_PLACE_PUT = 1,
    MK_PLACE_TAKE = 2,
    MK_PLACE_GIVEN = 3,
    MK_PLACE_REFUSED = 4,
    MK_PLACE_DROP = 5
};

struct mk_place_msg {
    uint32_t version, what;
    uint64_t key, name;
    uint32_t nranks, rank;
    mk_unique_id_t id;
};
void mk_place_put_msg(const struct mk_place_msg *m, uint8_t buf[MK_PLACE_BYTES]);
/* False: not our protocol. Another version is parsed too, as far as it says which. */
bool mk_place_parse_msg(const uint8_t buf[MK_PLACE_BYTES], struct mk_place_msg *out);

/* ---- what is left there, without sockets; belongs to one thread ---- */

#define MK_PLACE_ENTRIES 4096
#define MK_PLACE_KEEP_NS 600000000000ull
struct mk_place_entry {
    uint64_t key, name, since; /* since 0: free */
    uint32_t nranks;
    mk_unique_id_t id;
};
struct mk_place_store {
    struct mk_place_entry entry[MK_PLACE_ENTRIES];
};
/* A message of a client. GIVEN: *answer has the id (TAKE), or says that it is kept (PUT) or gone (DROP); REFUSED: it makes no sense; 0:
 * the id is not there yet, ask again after the next PUT. */
int mk_place_ask(struct mk_place_store *s, const struct mk_place_msg *m, uint64_t now,
                 struct mk_place_msg *answer);

/* Where the place of a job is, whose address has port `given`: another one, in the range (MK_PORTS) if there is one. Pure. */
struct mk_ports;
uint16_t mk_place_port(const char *given, const struct mk_ports *range);

/* ---- the service ---- */

/* Serves there, if this process does not yet and the address is free and its own. 0: it is served by this process;
 * MK_ERR_AGAIN: by another one, or not here; else it failed. */
int mk_place_serve(const struct sockaddr *at, socklen_t len);
/* For tests: what this process serves ends, as with the process. */
void mk_place_stop(void);
