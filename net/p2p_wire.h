/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* What two devices of the message layer exchange. Native byte order: the magic shows a foreign one.
 *
 *   handle     from the listener to the connecting side, by the user's own way (NCCL's bootstrap)
 *   hello      connecting side -> listener, over TCP; answered by one reply; then everything goes over the engine
 *   control    one registered memory on each side, written by the peer's puts:
 *
 *   sender's                                      receiver's
 *   flags, shadow   SEND_NOTES words each         flags, shadow   RECV_NOTES words each
 *   mail            MAIL entries (from receiver)  records         MAIL words (true sizes)
 *                                                 eager           two rings of bytes (from sender)
 *   rails           flags, shadow   RAIL_NOTES words each, for each rail but the first
 *
 * Every slot has a notification of its own, and is used again only after its user was answered: no two uses of one
 * notification are under way, so no order between writes is needed.
 *
 * Rails: the same two devices may be joined by several links (several ports, several queue pairs). All words go over the
 * first; equal ports are joined with each other, as many as both have; of a message above `stripe` bytes each rail carries the piece that mk_p2p_piece says, with a notification of its
 * own, so that both sides know from the size alone what has to come. Pieces of the others than the first are complete for
 * the sender when they stand in the peer's memory: then a word over the first rail that is sent afterwards (closed,
 * stopped) is behind all of them. */
#pragma once
#include "mk/p2p.h"
#include <assert.h>

/* As bytes: 89 'm' 'K' 'n' 'e' 't' 0d 0a. */
#define MK_P2P_MAGIC 0x0a0d74656e4b6d89ull
#define MK_P2P_VERSION 6u
#define MK_P2P_PLUGIN "mKernel"

#define MK_P2P_MAIL 64u /* receives announced at a time */
enum { MK_P2P_SMALL = 0, MK_P2P_LARGE, MK_P2P_RINGS };
#define MK_P2P_EAGER_SLOTS 128u /* messages in the receiver's rings */

struct mk_p2p_handle {
    uint64_t magic;
    uint32_t version;
    uint16_t family; /* 4 or 6 */
    uint16_t port;
    char plugin[24];
    uint8_t addr[16];
    uint32_t scope;
    int32_t pid;
    uint64_t key;   /* random: a stranger does not know it */
    uint64_t token; /* of the listener's process */
    uint64_t check; /* hash of the bytes before it */
    uint64_t meet;  /* of the connecting side: number of the meeting under way, 0: none */
    uint8_t zero[32];
};
static_assert(sizeof(struct mk_p2p_handle) == MK_P2P_HANDLE, "handle");
static_assert(offsetof(struct mk_p2p_handle, meet) == 88, "handle");

#define MK_P2P_RAILS 8u
struct mk_p2p_rail_side {
    struct mk_net_addr addr;
    struct mk_net_key key; /* of the control memory, for this rail */
    uint32_t base;
    uint32_t zero;
};

/* One side of a comm: how to reach it. */
struct mk_p2p_side {
    struct mk_net_addr addr;
    struct mk_net_key key; /* of the control memory */
    uint32_t base;         /* of its notes */
    uint32_t most;         /* bytes of a message that goes into the ring: the same on both sides */
    uint64_t stripe;       /* the larger of both counts */
    uint32_t rails;        /* of who connects: offered; of who accepts: the same or fewer */
    uint32_t ports;        /* rail r is on port r % ports */
    char name[64];         /* in messages */
    struct mk_p2p_rail_side rail[MK_P2P_RAILS - 1]; /* of the second, third, ... */
};

/* The first 24 bytes of hello and reply keep their meaning in every later version. */
struct mk_p2p_hello {
    uint64_t magic;
    uint32_t version;
    uint32_t size;
    uint64_t key; /* of the handle */
    char plugin[24];
    char transport[16], provider[64], adapter[16];
    uint64_t token;   /* of the process */
    uint64_t witness; /* a connection between the two processes that the sender has already; 0: none */
    struct mk_p2p_side side;
};
struct mk_p2p_reply {
    uint64_t magic;
    uint32_t version;
    uint32_t size;
    uint64_t key;
    char plugin[24];
    int32_t code;     /* MK_ERR_*: refused, text says why */
    uint32_t keep;    /* 1: this connection stays, as witness of the end of the other process */
    uint64_t witness; /* its number */
    char text[200];
    struct mk_p2p_side side;
};

/* Values of LIFE. LOST: a rail broke, and the comm with it. */
enum { MK_P2P_LIFE_MET = 1, MK_P2P_LIFE_LOST, MK_P2P_LIFE_CLOSED };
enum { /* notes of each further rail, on both sides: the piece for this mail slot; LIFE comes over any rail */
       MK_P2P_RAIL_LIFE = MK_P2P_MAIL,
       MK_P2P_RAIL_NOTES
};
enum { /* notes of the sender's side; STOP: the receiver wants its memory back */
       MK_P2P_SEND_CREDIT = MK_P2P_MAIL,
       MK_P2P_SEND_LIFE,
       MK_P2P_SEND_STOP,
       MK_P2P_SEND_NOTES
};
enum { /* of the receiver's: two an eager slot (by ring), then three a mail slot, then LIFE; STOPPED: nothing is written any
        * more */
       MK_P2P_RECV_FULL = MK_P2P_RINGS * MK_P2P_EAGER_SLOTS,
       MK_P2P_RECV_PART = MK_P2P_RECV_FULL + MK_P2P_MAIL,
       MK_P2P_RECV_SIZE = MK_P2P_RECV_PART + MK_P2P_MAIL,
       MK_P2P_RECV_LIFE = MK_P2P_RECV_SIZE + MK_P2P_MAIL,
       MK_P2P_RECV_STOPPED,
       MK_P2P_RECV_ASKED, /* small receives are to be announced too: messages come from GPU memory */
       MK_P2P_RECV_NOTES
};

/* One announced receive. A put carries `count` entries that lie one after another; the note is that of the first. Behind
 * each stand the keys for the receiver's other ports, where the comm has rails over them: then the entries are longer, and
 * the mailbox is another one (MK_P2P_RAIL_MAIL_AT). */
struct mk_p2p_mail {
    uint32_t count;
    uint32_t number; /* of this receive among those of its tag */
    int32_t tag;
    uint32_t mr;     /* number of the memory on this comm */
    uint64_t offset; /* in it */
    uint64_t size;
    uint64_t credit; /* eager slots consumed so far */
    struct mk_net_key key;
    uint32_t direct; /* 1: GPU memory; a small message should come straight too */
    uint8_t zero[20];
};
static_assert(sizeof(struct mk_p2p_mail) == 128, "mail entry");

/* In front of a small message. */
struct mk_p2p_eager {
    uint32_t size;
    int32_t tag;
    uint32_t number; /* of this message among those of its tag */
    uint32_t mail;   /* 1 + mail slot that it answers; 0: none known */
};
#define MK_P2P_TOO_LARGE                                                                                     \
    (1ull << 63) /* in a size: the message has the rest of it, did not fit and was not written */
#define MK_P2P_EAGER_HEAD 16u
static_assert(sizeof(struct mk_p2p_eager) == MK_P2P_EAGER_HEAD, "eager head");

/* The rings of messages that travel at once: small ones, which the sender copies, and large ones. Positions only grow. A
 * message lies in one piece: where the largest one would not fit before the ring's end, every message goes to its
 * beginning, so that both sides know the place without the size.
 *
 * Large ones are for networks whose receiver copies anyway (software providers): the round trip of an announcement costs
 * more there than one more copy by the receiver, who has time while the sender, the slower side, makes packets. */
struct mk_p2p_ring {
    uint32_t most;   /* bytes of the largest message */
    uint32_t stride; /* what that takes in the ring; at most half of it */
    uint32_t bytes;  /* of the ring; 0: there is none */
    uint32_t at;     /* where it begins behind MK_P2P_SEND_EAGER_AT and MK_P2P_RECV_EAGER_AT */
};
_Static_assert(2 * (MK_P2P_EAGER_IDLE + 64) <= 2048u << 10 && 2 * (MK_P2P_EAGER + 64) <= 128u << 10,
               "a stride skipped at the end and a message fit");
static inline void mk_p2p_rings_of(const struct mk_caps *caps, struct mk_p2p_ring r[MK_P2P_RINGS])
{
    const bool large = caps->head && caps->late_writes;
    r[MK_P2P_SMALL].most = MK_P2P_EAGER;
    r[MK_P2P_SMALL].stride = MK_P2P_EAGER + 64;
    r[MK_P2P_SMALL].bytes = 128u << 10;
    r[MK_P2P_SMALL].at = 0;
    r[MK_P2P_LARGE].most = large ? MK_P2P_EAGER_IDLE : 0;
    r[MK_P2P_LARGE].stride = large ? MK_P2P_EAGER_IDLE + 64 : 0;
    r[MK_P2P_LARGE].bytes = large ? 2048u << 10 : 0;
    r[MK_P2P_LARGE].at = r[MK_P2P_SMALL].bytes;
}
static inline uint32_t mk_p2p_rings_bytes(const struct mk_p2p_ring r[MK_P2P_RINGS])
{
    return r[MK_P2P_SMALL].bytes + r[MK_P2P_LARGE].bytes;
}
/* The largest message that needs no announcement. */
static inline uint32_t mk_p2p_rings_most(const struct mk_p2p_ring r[MK_P2P_RINGS])
{
    return r[r[MK_P2P_LARGE].bytes ? MK_P2P_LARGE : MK_P2P_SMALL].most;
}
static inline uint64_t mk_p2p_ring_start(const struct mk_p2p_ring *r, uint64_t position)
{
    const uint64_t at = position % r->bytes;
    return at + r->stride > r->bytes ? position + r->bytes - at : position;
}
static inline uint64_t mk_p2p_ring_end(uint64_t start, uint32_t size)
{
    return start + ((MK_P2P_EAGER_HEAD + size + 63u) & ~63u);
}
/* Is there room for a message of `size`, if all before `tail` is consumed? */
static inline bool mk_p2p_ring_room(const struct mk_p2p_ring *r, uint64_t position, uint64_t tail,
                                    uint32_t size)
{
    return mk_p2p_ring_end(mk_p2p_ring_start(r, position), size) - tail <= r->bytes;
}

/* Places in the control memories; the ring comes last. `staging` is where the owner composes what it sends: a sender's
 * messages at the places that they have in the ring. */
#define MK_P2P_ALIGN(x) (((x) + 63u) & ~63u)
#define MK_P2P_SEND_MAIL_AT MK_P2P_ALIGN(16u * MK_P2P_SEND_NOTES)
#define MK_P2P_SEND_SIZE_AT (MK_P2P_SEND_MAIL_AT + MK_P2P_MAIL * 128u)           /* staging */
#define MK_P2P_SEND_HEAD_AT MK_P2P_ALIGN(MK_P2P_SEND_SIZE_AT + 8u * MK_P2P_MAIL) /* staging */
#define MK_P2P_SEND_EAGER_AT                                                                                 \
    MK_P2P_ALIGN(MK_P2P_SEND_HEAD_AT + MK_P2P_EAGER_HEAD * MK_P2P_EAGER_SLOTS) /* staging */
#define MK_P2P_RECV_SIZE_AT MK_P2P_ALIGN(16u * MK_P2P_RECV_NOTES)
#define MK_P2P_RECV_MAIL_AT MK_P2P_ALIGN(MK_P2P_RECV_SIZE_AT + 8u * MK_P2P_MAIL) /* staging */
#define MK_P2P_RECV_EAGER_AT (MK_P2P_RECV_MAIL_AT + MK_P2P_MAIL * 128u)

/* Behind the ring, where rails are offered: their flags and shadows, then a mailbox of long entries (on the receiver's side
 * its staging). Places count from the ring's end. */
#define MK_P2P_RAIL_BYTES MK_P2P_ALIGN(16u * MK_P2P_RAIL_NOTES)
#define MK_P2P_RAIL_MAIL_AT ((MK_P2P_RAILS - 1) * MK_P2P_RAIL_BYTES)
#define MK_P2P_RAIL_MAIL_BYTES(ports) (128u + 64u * ((ports)-1))
#define MK_P2P_RAILS_BYTES (MK_P2P_RAIL_MAIL_AT + MK_P2P_MAIL * MK_P2P_RAIL_MAIL_BYTES(MK_P2P_RAILS))
static_assert(sizeof(struct mk_net_key) == 64, "a key behind a mail entry");

/* What rail `r` of `rails` carries of a message of `size` bytes: nearly equal parts of whole pages, none for the last ones
 * if there are few. */
struct mk_p2p_piece {
    uint64_t off, len;
};
static inline struct mk_p2p_piece mk_p2p_piece(uint64_t size, unsigned rails, unsigned r)
{
    const uint64_t part = (size / rails + (size % rails != 0) + 4095u) & ~4095ull, off = part * r;
    struct mk_p2p_piece p;
    p.off = off < size ? off : size;
    p.len = size - p.off < part ? size - p.off : part;
    return p;
}
