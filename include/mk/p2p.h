/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Point-to-point messages over the engine: what NCCL's net plugin needs, without NCCL's types.
 *
 *   device    an engine, its links and its peers; one lock, so that every function here may be called by any thread
 *   comm      one direction between two devices: the one that connected sends, the one that accepted receives
 *   request   a send, or a receive of up to MK_P2P_RECVS messages
 *
 * Matching: the k-th message sent with a tag meets the k-th receive posted with that tag.
 * Ways of a message: at most MK_P2P_EAGER bytes travel at once, into a ring at the receiver, with size and tag in front
 * (one write); over software networks, whose receivers have time for a copy, up to MK_P2P_EAGER_LARGE,
 * and up to MK_P2P_EAGER_IDLE from a sender of one message at a time (net/NOTES.md says what was tried). More waits until the receiver has written {place,
 * key, size, tag} into a mailbox at the sender, and is then written straight into the posted buffer (one write; two if it
 * is shorter than what was posted). GPU memory is sent from and received into by the network alone: always so.
 *
 * Between devices of several ports, or with MK_QPS, a message above MK_STRIPE is cut into pieces that go over all of them.
 *
 * Nothing blocks. MK_ERR_AGAIN from connect, accept, send, recv: not now, call again. Close functions always work,
 * with requests pending and without the peer. A request is dead after test said done. */
#pragma once
#include "mk/net.h"

#define MK_P2P_HANDLE 128  /* bytes of a listener's handle */
#define MK_P2P_RECVS 8     /* messages in one receive */
#define MK_P2P_REQUESTS 32 /* receives in flight on a comm; sends: MK_P2P_RECVS times that */
#define MK_P2P_EAGER 8192u
#define MK_P2P_EAGER_LARGE (64u << 10)
#define MK_P2P_EAGER_IDLE (256u << 10)

struct mk_p2p;
struct mk_p2p_listener;
struct mk_p2p_comm;
struct mk_p2p_mr;
struct mk_p2p_req;

struct mk_p2p_info {
    char name[64];      /* unique among the devices of a process */
    char interface[32]; /* where the listeners are */
    char pci_path[256]; /* of that interface in sysfs; empty: none */
    uint64_t guid;
    int port;           /* of the card that the guid names */
    int mbps;           /* of the network, as far as it is known */
    size_t max_message; /* of one send */
    const struct mk_caps *caps;
};

/* Opens the network device that the settings ask for. */
int mk_p2p_open(const struct mk_settings *s, struct mk_p2p **out);
/* Settings that open another device of p's network: the n-th of those that s asks for (p: the first one). UNSUPPORTED:
 * there are fewer. */
int mk_p2p_nth(const struct mk_p2p *p, const struct mk_settings *s, int nth, struct mk_settings *out);
/* The same of several ports, which its comms use together (rails): s[0] asks for the first, which answers for the device,
 * and so on. */
int mk_p2p_open_ports(const struct mk_settings *s, int n, struct mk_p2p **out);
void mk_p2p_close(struct mk_p2p *p); /* closes all that is left; NULL allowed */
void mk_p2p_get_info(const struct mk_p2p *p, struct mk_p2p_info *out);
const struct mk_caps *mk_p2p_comm_caps(const struct mk_p2p_comm *c);

int mk_p2p_listen(struct mk_p2p *p, uint8_t handle[MK_P2P_HANDLE], struct mk_p2p_listener **out);
void mk_p2p_listen_close(struct mk_p2p_listener *l);
/* handle: what listen gave; the first call writes a mark into it, later ones must bring the same bytes. */
int mk_p2p_connect(struct mk_p2p *p, uint8_t handle[MK_P2P_HANDLE], struct mk_p2p_comm **out);
int mk_p2p_accept(struct mk_p2p_listener *l, struct mk_p2p_comm **out);
void mk_p2p_comm_close(struct mk_p2p_comm *c);

/* Memory of messages on this comm, GPU memory too where the network's caps say so; may run while others send and receive
 * on it. */
int mk_p2p_reg(struct mk_p2p_comm *c, void *addr, size_t len, struct mk_p2p_mr **out);
/* GPU memory as a dma-buf, where the network's caps say so; fd stays the caller's. */
int mk_p2p_reg_dmabuf(struct mk_p2p_comm *c, void *addr, size_t len, uint64_t offset, int fd,
                      struct mk_p2p_mr **out);
bool mk_p2p_on_gpu(const struct mk_p2p_mr *mr);
/* What was received there is visible to kernels that start afterwards, whatever the way of writes into this GPU. */
int mk_p2p_flush(struct mk_p2p_comm *c, struct mk_p2p_mr *mr);
void mk_p2p_dereg(struct mk_p2p_comm *c, struct mk_p2p_mr *mr);

/* mr may be NULL where the size is at most MK_P2P_EAGER, in host memory. The buffer must stay until test says done. */
int mk_p2p_send(struct mk_p2p_comm *c, const void *data, size_t size, int tag, struct mk_p2p_mr *mr,
                struct mk_p2p_req **out);
int mk_p2p_recv(struct mk_p2p_comm *c, int n, void *const *data, const size_t *sizes, const int *tags,
                struct mk_p2p_mr *const *mr, struct mk_p2p_req **out);
/* sizes (NULL allowed): of the messages, in the order posted, once done. Errors: INVALID: a message is larger than what
 * was posted for it; PEER, TIMEOUT, NET: the connection is lost, all its requests end so. */
int mk_p2p_test(struct mk_p2p_req *r, bool *done, size_t *sizes);
