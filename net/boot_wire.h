/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* The bytes of the bootstrap: hello, answer, frames, unique id. Little endian, no padding.
 *
 *   client                         root
 *   hello (48 bytes)          ->
 *                             <-   answer (24 bytes, then `length` bytes of text)
 *   after WELCOME, frames in both directions: header (16 bytes), then `length` bytes
 *   GATHER, ABORT, BYE, SAY   ->
 *                             <-   MET, GATHERED, GATHER_BAD, EVENT, LEFT, SAID
 *
 * The first 16 bytes of the hello and of the answer keep their meaning in every later version, so that versions
 * can refuse each other in words. The parse functions are pure: bytes in, struct in host order out. */
#pragma once
#include "mk/boot.h"
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#define MK_BOOT_VERSION 2u
#define MK_BOOT_MAX_RANKS 32768u
#define MK_BOOT_MAX_BYTES (1u << 20) /* of one rank in an all-gather */
#define MK_BOOT_MAX_TOTAL (1u << 31) /* of all ranks */
#define MK_BOOT_MAX_TEXT 511u
/* As bytes on the wire: 89 'm' 'K' 'h' 'e' 'l' 0d 0a, and 'a' 'n' 's' for the answer: no text protocol starts so. */
#define MK_BOOT_HELLO_MAGIC 0x0a0d6c65684b6d89ull
#define MK_BOOT_ANSWER_MAGIC 0x0a0d736e614b6d89ull
#define MK_BOOT_ID_MAGIC 0x0a0d2064694b6d89ull

struct mk_boot_hello {
    uint64_t magic;
    uint32_t version;
    uint32_t size;  /* of this struct in the sender's version */
    uint64_t key;   /* the job's */
    uint64_t token; /* random, one a process: the root finds its own process's ranks by it */
    uint32_t nranks;
    uint32_t rank;
    uint32_t wait_ms; /* how long this rank is ready to wait for the others, from now */
    uint32_t reserved;
};
static_assert(sizeof(struct mk_boot_hello) == 48, "hello");
static_assert(offsetof(struct mk_boot_hello, key) == 16, "hello head");
static_assert(offsetof(struct mk_boot_hello, wait_ms) == 40, "hello");

enum mk_boot_kind {
    MK_BOOT_WELCOME = 1,
    MK_BOOT_REFUSE = 2, /* code and text say why; final */
    MK_BOOT_BUSY = 3    /* an earlier job at this address is still ending: try again */
};
struct mk_boot_answer {
    uint64_t magic;
    uint32_t version;
    uint32_t kind;
    int32_t code;
    uint32_t length; /* of the text that follows */
};
static_assert(sizeof(struct mk_boot_answer) == 24, "answer");

enum mk_boot_type {
    MK_BOOT_GATHER = 1, /* to root: one rank's part of all-gather number seq */
    MK_BOOT_ABORT = 2,  /* to root: mk_boot_verdict of the sender (its rank is not read) */
    MK_BOOT_BYE = 3,    /* to root: the end that follows is no death; empty */
    MK_BOOT_SAY = 4,    /* to root: to be handed to rank number seq; seq = number of ranks: to all others */
    MK_BOOT_MET = 16,   /* from root: all ranks are here; mk_boot_met */
    MK_BOOT_GATHERED = 17,   /* from root: all parts of number seq in rank order */
    MK_BOOT_GATHER_BAD = 18, /* from root: number seq has failed; mk_boot_verdict */
    MK_BOOT_EVENT = 19,      /* from root: first event of the job; mk_boot_verdict */
    MK_BOOT_LEFT = 20,       /* from root: a rank said good-bye; its number in seq; empty */
    MK_BOOT_SAID = 21        /* from root: what rank number seq said */
};
struct mk_boot_frame {
    uint32_t type;
    uint32_t length;
    uint64_t seq;
};
static_assert(sizeof(struct mk_boot_frame) == 16, "frame header");

struct mk_boot_met {
    int32_t root_rank; /* lowest rank in the root's process, -1: none */
    uint32_t nranks;
    uint64_t token; /* of the root's process */
};
static_assert(sizeof(struct mk_boot_met) == 16, "met");

/* On the wire: code and rank (4 bytes each), then the text without a terminator, to the end of the frame. */
struct mk_boot_verdict {
    int32_t code;
    int32_t rank;
    char text[MK_BOOT_MAX_TEXT + 1];
};
#define MK_BOOT_VERDICT_HEAD 8u

/* The inside of mk_unique_id_t. */
struct mk_boot_id {
    uint64_t magic;
    uint32_t version;
    uint16_t family; /* 4 or 6 */
    uint16_t port;
    uint8_t addr[16];
    uint32_t scope;
    uint32_t reserved0;
    uint64_t key;
    uint64_t check; /* hash of the bytes before it */
    uint8_t reserved[72];
};
static_assert(sizeof(struct mk_boot_id) == sizeof(mk_unique_id_t), "unique id");
static_assert(offsetof(struct mk_boot_id, check) == 48, "unique id");

enum mk_boot_parse {
    MK_BOOT_PARSED = 0,
    MK_BOOT_MORE = 1,  /* right so far, but not complete */
    MK_BOOT_ALIEN = 2, /* not our protocol, or nonsense in it */
    MK_BOOT_OTHER = 3  /* our protocol in another version; out->version is set */
};
/* ALIEN is found at the first wrong byte of the magic. */
enum mk_boot_parse mk_boot_parse_hello(const void *buf, size_t n, struct mk_boot_hello *out);
enum mk_boot_parse mk_boot_parse_answer(const void *buf, size_t n, struct mk_boot_answer *out);
/* Header of a frame that a client (to_root 1) or the root (0) may send; nranks bounds the lengths. ALIEN: unknown
 * type, or a length that the type cannot have. */
enum mk_boot_parse mk_boot_parse_frame(const void *buf, size_t n, int to_root, uint32_t nranks,
                                       struct mk_boot_frame *out);
enum mk_boot_parse mk_boot_parse_met(const void *buf, size_t n, struct mk_boot_met *out);
enum mk_boot_parse mk_boot_parse_verdict(const void *buf, size_t n, struct mk_boot_verdict *out);
enum mk_boot_parse mk_boot_parse_id(const mk_unique_id_t *id, struct mk_boot_id *out);

/* Wire order of what is in host order. put_verdict returns the bytes written. */
void mk_boot_put_hello(const struct mk_boot_hello *h, uint8_t buf[sizeof(struct mk_boot_hello)]);
void mk_boot_put_answer(const struct mk_boot_answer *a, uint8_t buf[sizeof(struct mk_boot_answer)]);
void mk_boot_put_frame(const struct mk_boot_frame *f, uint8_t buf[sizeof(struct mk_boot_frame)]);
void mk_boot_put_met(const struct mk_boot_met *m, uint8_t buf[sizeof(struct mk_boot_met)]);
size_t mk_boot_put_verdict(int code, int rank, const char *text,
                           uint8_t buf[MK_BOOT_VERDICT_HEAD + MK_BOOT_MAX_TEXT]);
void mk_boot_put_id(const struct mk_boot_id *in, mk_unique_id_t *id);

/* Address of an id. INVALID for a family that is neither 4 nor 6. */
int mk_boot_id_addr(const struct mk_boot_id *id, struct sockaddr_storage *out, socklen_t *len);
int mk_boot_addr_id(const struct sockaddr *sa, struct mk_boot_id *id);

uint64_t mk_boot_hash(const void *p, size_t n);
