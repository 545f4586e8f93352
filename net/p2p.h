/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Private state of the message layer. All of it is guarded by the device's lock, but for what is said to be constant.
 *
 *   p2p.c         comms, memory, test, close
 *   p2p_dev.c     the device: opening, properties, limits
 *   p2p_send.c    the sending half: matching, eager and direct writes
 *   p2p_recv.c    the receiving half: announcing, matching, completion
 *   p2p_rail.c    rails: further links of a comm, over other ports or beside the first
 *   p2p_stop.c    memory that is taken back while messages use it
 *   p2p_meet.c    listen, connect, accept: the state machines
 *   p2p_sock.c    their sockets
 *   p2p_life.c    witnesses: one TCP connection a peer process, whose end says that it is gone */
#pragma once
#include "mk/p2p.h"
#include "mk/param.h"
#include "p2p_wire.h"
#include <pthread.h>

#define MK_P2P_PATIENCE_NS 1000000u /* so long a receive waits for company at most, where looks are rare */
#define MK_P2P_SENDS (MK_P2P_REQUESTS * MK_P2P_RECVS)
#define MK_P2P_MR_MAX 65536u /* memories of one comm that a peer may name */
/* How long data may still be on its way when the peer is seen to be gone. */
#define MK_P2P_GRACE_NS 1000000000ull
/* After what time a small receive is announced too. */
#define MK_P2P_SMALL_NS 100000000ull
/* For how many sends after one that had company a sender counts as one of several messages at a time. */
#define MK_P2P_CROWD 32u

/* Per tag: the number of the next message. */
struct mk_p2p_tag {
    int tag;
    uint32_t next;
};
struct mk_p2p_tags {
    struct mk_p2p_tag *list;
    unsigned n, size;
};

/* A connection to another process that nothing is sent over; shared by the comms between the two devices. */
struct mk_p2p_witness {
    struct mk_p2p_witness *next;
    uint64_t id, token;
    uint64_t looked_ns, gone_ns; /* gone: 0 while it is there */
    int fd;
    unsigned refs;
};

/* The same memory on another port. */
struct mk_p2p_mr_port {
    struct mk_mr *mr, *shadow_mr;
    struct mk_net_key key;
};
struct mk_p2p_mr {
    struct mk_p2p_comm *c;
    struct mk_p2p_mr *next;
    uint8_t *addr;
    size_t len;
    struct mk_mr *mr;
    uint32_t number; /* on this comm */
    bool gpu;        /* is read and written by the network alone */
    struct mk_shm
        shadow; /* where the peer writes, if it cannot write the memory itself (addr NULL: not made) */
    struct mk_mr *shadow_mr;
    struct mk_net_key key;
    struct mk_p2p_mr_port port[MK_P2P_RAILS - 1]; /* of the second, ... */
};

struct mk_p2p_req {
    struct mk_p2p_comm *c;
    struct mk_p2p_req *next; /* free; or, in order: not sent yet, not received yet */
    int n;                   /* messages */
    int left;                /* puts under way; or messages not received */
    int status;
};

struct mk_p2p_send {
    struct mk_p2p_req base;
    const uint8_t *data;
    size_t size;
    struct mk_p2p_mr *mr;
    int tag;
    uint32_t number;
    bool waiting; /* not handed to the engine */
};

enum mk_p2p_sub_state { MK_P2P_POSTED = 0, MK_P2P_ANNOUNCED, MK_P2P_RECEIVED };
struct mk_p2p_sub {
    uint8_t *data;
    size_t size, got;
    struct mk_p2p_mr *mr;
    int tag;
    uint32_t number;
    uint32_t mail; /* position, if announced */
    enum mk_p2p_sub_state state;
};
struct mk_p2p_recv {
    struct mk_p2p_req base;
    struct mk_p2p_sub sub[MK_P2P_RECVS];
};

/* A receive that the peer announced and nothing was sent for. */
struct mk_p2p_offer {
    bool open;
    bool direct; /* into GPU memory: worth no detour, however small */
    uint32_t number;
    int tag;
    uint32_t mr; /* number of the memory */
    uint64_t offset, size;
    struct mk_rmem *mem;
};

/* Memory of the peer, under the number that it has given it for now. */
struct mk_p2p_far {
    struct mk_rmem *mem;
    struct mk_net_key key;
    struct mk_p2p_far *rail; /* of the second, ...; NULL: there are none */
};

struct mk_p2p_tx {
    struct mk_p2p_send req[MK_P2P_SENDS];
    struct mk_p2p_req *free;
    struct mk_p2p_req *wait_first, **wait_last; /* not sent yet */
    unsigned used;                              /* requests that are not free */
    unsigned crowd; /* sends until it counts as one of single messages; 0: it does */
    struct mk_p2p_offer offer[MK_P2P_MAIL];
    uint32_t mail_first, mail_next;  /* positions: oldest open, next to look at */
    uint64_t mail_seen[MK_P2P_MAIL]; /* uses of each note */
    uint64_t full[MK_P2P_MAIL], part[MK_P2P_MAIL], rec[MK_P2P_MAIL]; /* uses of the peer's notes */
    uint64_t eager, credit;                          /* messages sent at once, and known to be consumed */
    uint64_t ring[MK_P2P_RINGS], tail[MK_P2P_RINGS]; /* positions: of the next, of the oldest not consumed */
    uint64_t uses[MK_P2P_RINGS][MK_P2P_EAGER_SLOTS]; /* of the peer's notes */
    uint64_t ends[MK_P2P_EAGER_SLOTS];
    uint8_t kind[MK_P2P_EAGER_SLOTS]; /* MK_P2P_SMALL or MK_P2P_LARGE */
    struct mk_p2p_far *mem;           /* by number */
    uint32_t nmem;
};

enum mk_p2p_mail_state {
    MK_P2P_MAIL_OPEN = 0,
    MK_P2P_MAIL_EAGER /* came small; not answered yet */,
    MK_P2P_MAIL_DONE
};
struct mk_p2p_box {
    enum mk_p2p_mail_state state;
    struct mk_p2p_sub *sub;
};
struct mk_p2p_slot {
    uint64_t start, end; /* in its ring */
    uint8_t kind;        /* of the ring */
    bool held;           /* nothing is posted for it yet */
};

struct mk_p2p_rx {
    struct mk_p2p_recv req[MK_P2P_REQUESTS];
    struct mk_p2p_req *free;
    struct mk_p2p_req *open_first, **open_last; /* not complete */
    struct mk_p2p_box box[MK_P2P_MAIL];
    uint32_t mail_first, mail_next; /* positions: oldest not done, next to announce */
    uint64_t mail_used[MK_P2P_MAIL];
    uint64_t full[MK_P2P_MAIL], part[MK_P2P_MAIL], rec[MK_P2P_MAIL]; /* uses seen */
    uint64_t eager, consumed, credited;              /* messages sent at once: seen, consumed, told so */
    uint64_t ring[MK_P2P_RINGS];                     /* positions: of the next one */
    uint64_t tail[MK_P2P_RINGS], told[MK_P2P_RINGS]; /* behind what is consumed, and what was told */
    uint64_t uses[MK_P2P_RINGS][MK_P2P_EAGER_SLOTS]; /* seen */
    struct mk_p2p_slot slot[MK_P2P_EAGER_SLOTS];
    unsigned held;        /* messages in the rings that nothing is posted for */
    unsigned unannounced; /* posted messages */
    unsigned large;       /* of these: to be announced, if they are not alone */
    unsigned huge;        /* of these: in any case */
    unsigned open;        /* announced, not received */
    unsigned waits;       /* looks since an announcement could have been made */
    uint64_t waits_ns;    /* when the first of them was */
    /* the oldest receive that is not announced, since when it is that, and whether to announce it, small as it is */
    const struct mk_p2p_req *old;
    uint32_t old_number;
    uint64_t old_ns;
    bool small_too;
};

/* A further link of a comm. */
struct mk_p2p_rail {
    struct mk_engine *e;
    unsigned port; /* of e */
    struct mk_link *l;
    struct mk_notes *notes;
    struct mk_rmem *peer; /* its control memory */
    uint64_t *flags;
    uint64_t used[MK_P2P_MAIL]; /* uses of each note: of the peer's (sender), seen (receiver) */
};

struct mk_p2p_comm {
    struct mk_p2p *p;
    struct mk_p2p_comm *next;
    struct mk_p2p_tx *tx; /* one of the two; constant */
    struct mk_p2p_rx *rx;
    struct mk_link *l;
    struct mk_notes *notes;
    struct mk_shm ctrl; /* fd -1: private memory */
    struct mk_mr *ctrl_mr;
    struct mk_rmem *peer; /* its control memory */
    uint64_t *flags;
    uint32_t *steps, nnotes, life;
    struct mk_p2p_rail *rail; /* the second, ...: nrails - 1 of them; NULL: there are none */
    unsigned nrails;
    struct mk_mr *ctrl_port[MK_P2P_RAILS - 1];
    uint64_t stripe;            /* a message above it goes over all rails */
    uint64_t mail_at, mail_own; /* the mailbox at the sender, its staging at the receiver */
    uint32_t ports, mail_bytes; /* of the receiver, as far as rails go over them; of one entry */
    struct mk_p2p_tags tags;
    struct mk_p2p_mr *mrs;
    uint32_t next_mr;
    uint32_t *spare_mr; /* numbers below next_mr that are free again */
    uint32_t nspare, spare_size;
    struct mk_p2p_witness *witness;
    char name[64]; /* of the peer */
    int error;     /* sticky */
    uint64_t gone_ns;
    unsigned looks;
    unsigned missed; /* tests in a row that did not get the lock; __atomic */
    unsigned rounds; /* of the device's progress, at the last test that did */
    bool closed, fin_sent, fin_done, greeted;
    bool told_lost;   /* that a rail is */
    bool stopped;     /* the peer writes nothing more here (receiver); it was told so (sender) */
    bool asked;       /* sender: the receiver knows that small ones need announcements too */
    unsigned control; /* puts of our own under way */
    unsigned lingers; /* looks at the closed comm since its link broke */
    /* of a meeting that was given up (p2p_meet.c): its TCP connection, -1: met; whether the other side was told */
    int left_fd;
    bool left_told;
};

struct mk_p2p_meet;

struct mk_p2p {
    pthread_mutex_t lock;
    unsigned waiting; /* threads that sleep until they have it; __atomic. Who tests lets them go first */
    struct mk_settings s;
    struct mk_engine *e;                      /* the first port's; constant, like the others */
    struct mk_engine *port[MK_P2P_RAILS - 1]; /* of the second, ... */
    unsigned nports, nrails;                  /* rails: that a comm may have */
    struct mk_p2p_info info;                  /* constant */
    struct mk_p2p_ring ring[MK_P2P_RINGS];    /* constant */
    char host[40];
    uint64_t token;
    uint64_t timeout_ns;
    struct mk_p2p_comm *comms, *closing;
    struct mk_p2p_meet *meets; /* of connecting sides */
    struct mk_p2p_listener *listeners;
    struct mk_p2p_witness *witnesses;
    uint64_t hurry_ns; /* until then nobody waits for good-byes */
    uint64_t rush_ns;  /* nor for peers to stop writing */
    unsigned rounds;   /* of progress */
    unsigned refused;  /* log lines about strangers */
};

/* ids of puts: what completed */
#define MK_P2P_ID_CONTROL 0ull
#define MK_P2P_ID_FIN 1ull
#define MK_P2P_ID_SEND 16ull /* + index of the send */

/* p2p_dev.c */
/* Hands `ret` on; if it was for lack of file descriptors, says so with the limit: MK_ERR_SYSTEM. err: the errno of the
 * failure, 0 if it is not known; what cannot be opened now counts too. */
int mk_p2p_no_files(int ret, int err);

/* p2p.c */
/* Takes the device's lock, for what cannot be put off. */
void mk_p2p_lock(struct mk_p2p *p);
int mk_p2p_progress(struct mk_p2p *p);
/* offer: of the connecting side, which is asked for links that match; NULL: it is this one. */
int mk_p2p_comm_new(struct mk_p2p *p, bool sends, const char *peer_name, const struct mk_p2p_side *offer,
                    struct mk_p2p_side *mine, struct mk_p2p_comm **out);
int mk_p2p_comm_join(struct mk_p2p_comm *c, const struct mk_p2p_side *peer); /* once the link is connected */
void mk_p2p_comm_free(struct mk_p2p_comm *c);
void mk_p2p_comm_add(struct mk_p2p_comm *c); /* to the device's list: complete */
/* Its meeting is given up, the peer may have begun to write: stays until the peer has ended the TCP connection `fd`. Both
 * are taken over. */
void mk_p2p_comm_leave(struct mk_p2p_comm *c, int fd);
/* Ends the comm's requests with `code`; the sentence is logged. Returns its error. */
int mk_p2p_comm_fail(struct mk_p2p_comm *c, int code, const char *fmt, ...)
    __attribute__((cold, format(printf, 3, 4)));
/* Puts one or more of ours; none may fail for room (the engine's ring is larger than all we have in flight). */
int mk_p2p_put(struct mk_p2p_comm *c, const struct mk_put *puts, int n);
/* Number of the next message with this tag, counted; negative: MK_ERR_NOMEM. */
int mk_p2p_tag_next(struct mk_p2p_tags *t, int tag, uint32_t **next);

/* p2p_send.c, p2p_recv.c: what can be done now; an error is the comm's */
int mk_p2p_tx_progress(struct mk_p2p_comm *c);
void mk_p2p_tx_done(struct mk_p2p_comm *c, uint64_t index, int status);
int mk_p2p_rx_progress(struct mk_p2p_comm *c, struct mk_p2p_recv *r);
/* Announces small receives whose senders need that, also where nobody tests them. */
void mk_p2p_answer_asks(struct mk_p2p *p);

/* p2p_stop.c */
/* Does something under way use m? NULL: any memory. */
bool mk_p2p_uses(const struct mk_p2p_comm *c, const struct mk_p2p_mr *m);
/* Ends what uses m (NULL: any), with the comm: afterwards nobody reads or writes that memory. */
void mk_p2p_stop(struct mk_p2p_comm *c, const struct mk_p2p_mr *m);
/* Senders answer receivers that want their memory back. */
void mk_p2p_stops(struct mk_p2p *p);
/* The network's connection is no more. An end for lack of time is only ours: over that one the peer may go on. */
bool mk_p2p_broken(const struct mk_p2p_comm *c);

/* p2p_rail.c */
/* The ports of a device but the first; list[0] is the first's. */
int mk_p2p_ports_open(struct mk_p2p *p, const struct mk_settings *list, int n);
void mk_p2p_ports_close(struct mk_p2p *p);
int mk_p2p_ports_progress(struct mk_p2p *p); /* all of them: events, or an error */
/* Memory on all ports, in two parts (mk/net.h); the second is handed the first's outcome, and leaves nothing where either
 * failed. shadow: the same for m's twin; dereg: both. */
int mk_p2p_ports_export(struct mk_p2p *p, void *addr, size_t len, struct mk_export *x[MK_P2P_RAILS]);
int mk_p2p_ports_reg(struct mk_p2p *p, struct mk_p2p_mr *m, struct mk_export *x[MK_P2P_RAILS], int ret);
int mk_p2p_ports_dmabuf(struct mk_p2p *p, struct mk_p2p_mr *m, int fd, uint64_t offset);
int mk_p2p_ports_shadow(struct mk_p2p *p, struct mk_p2p_mr *m);
void mk_p2p_ports_dereg(struct mk_p2p *p, struct mk_p2p_mr *m);
/* The further links of a comm, in the order of its life. */
void mk_p2p_rails_count(const struct mk_p2p *p, const struct mk_p2p_side *offer, struct mk_p2p_side *mine);
int mk_p2p_rails_new(struct mk_p2p_comm *c, mk_put_done_fn done, struct mk_p2p_side *mine);
int mk_p2p_rails_agree(struct mk_p2p_comm *c, const struct mk_p2p_side *mine, const struct mk_p2p_side *peer);
int mk_p2p_rails_connect(struct mk_p2p_comm *c, const struct mk_p2p_side *peer); /* AGAIN */
int mk_p2p_rails_join(struct mk_p2p_comm *c, const struct mk_p2p_side *peer);
int mk_p2p_rails_warm(struct mk_p2p_comm *c);
void mk_p2p_rails_quiet(struct mk_p2p_comm *c, bool quiet);
void mk_p2p_rails_shut(struct mk_p2p_comm *c); /* the links alone */
void mk_p2p_rails_free(struct mk_p2p_comm *c);
/* Of all links, the first included: puts under way; the first error, and its link; does each have one? */
uint32_t mk_p2p_pending(const struct mk_p2p_comm *c);
int mk_p2p_link_error(const struct mk_p2p_comm *c, char text[200]);
bool mk_p2p_mute(const struct mk_p2p_comm *c);
uint64_t mk_p2p_life(const struct mk_p2p_comm *c); /* what the peer says of its own */
bool mk_p2p_warm(const struct mk_p2p_comm *c);     /* the peer's first put has come over every link */
int mk_p2p_say_life(struct mk_p2p_comm *c, uint64_t value, uint64_t id); /* over the first link that lives */
/* A rail broke: the peer may not see that by itself. */
void mk_p2p_tell_lost(struct mk_p2p_comm *c);
/* The memory that `far` names, on the other rails; keys: for the peer's first port, and for its others. */
int mk_p2p_rails_import(struct mk_p2p_comm *c, struct mk_p2p_far *far, const struct mk_net_key *first,
                        const struct mk_net_key *more);
bool mk_p2p_rails_differ(const struct mk_p2p_comm *c, const struct mk_p2p_far *far,
                         const struct mk_net_key *more);
void mk_p2p_rails_forget(struct mk_p2p_comm *c, struct mk_p2p_far *far);
/* Puts the pieces of a message but the first, and counts them in s->base.left. */
int mk_p2p_rails_send(struct mk_p2p_comm *c, struct mk_p2p_send *s, const struct mk_p2p_offer *o);
/* Have they all come? Then they are taken. */
bool mk_p2p_rails_take(struct mk_p2p_comm *c, uint32_t slot, uint64_t size);

/* p2p_life.c */
struct mk_p2p_witness *mk_p2p_witness_find(struct mk_p2p *p, uint64_t token,
                                           uint64_t id); /* id 0: any that lives */
struct mk_p2p_witness *mk_p2p_witness_new(struct mk_p2p *p, uint64_t token, uint64_t id, int fd);
void mk_p2p_witness_put(struct mk_p2p *p, struct mk_p2p_witness *w); /* NULL allowed */
/* 0, or when it was first seen that the process is gone. */
uint64_t mk_p2p_witness_gone(struct mk_p2p_witness *w, uint64_t now);

/* p2p_meet.c */
void mk_p2p_meets_close(struct mk_p2p *p);
void mk_p2p_listeners_close(struct mk_p2p *p);

/* Does a message of this size go over all rails? */
static inline bool mk_p2p_striped(const struct mk_p2p_comm *c, uint64_t size)
{
    return c->nrails > 1 && size > c->stripe;
}

static inline uint64_t mk_p2p_flag(const struct mk_p2p_comm *c, uint32_t note)
{
    return __atomic_load_n(&c->flags[note], __ATOMIC_ACQUIRE);
}
