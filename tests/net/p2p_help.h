/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Tests of the message layer: every case runs in two fresh processes, which are joined by a socket to agree on things,
 * and by a comm in each direction. */
#pragma once
#include "mk/p2p.h"
#include "mk/param.h"
#include <stdio.h>

#define CHECK(x)                                                                                             \
    do {                                                                                                     \
        if (!(x)) {                                                                                          \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #x, mk_last_error());                    \
            return 1;                                                                                        \
        }                                                                                                    \
    } while (0)
#define CHECK_OK(x)                                                                                          \
    do {                                                                                                     \
        const int check_ret = (x);                                                                           \
        if (check_ret) {                                                                                     \
            fprintf(stderr, "%s:%d: %s: %d (%s)\n", __FILE__, __LINE__, #x, check_ret, mk_last_error());     \
            return 1;                                                                                        \
        }                                                                                                    \
    } while (0)

/* Where the memory of messages lies. On a GPU (the stand-in driver's, through mknic): the processor may not touch it where
 * the product sees it; `mem` and half_in are another view of the same bytes. */
enum { HALF_HOST = 0, HALF_GPU_SENDS = 1, HALF_GPU_RECEIVES = 2 };

struct half {
    int who, fd;
    int ports; /* of its device */
    struct mk_settings s;
    struct mk_p2p *p;
    struct mk_p2p_comm *tx, *rx;
    uint8_t *mem; /* HALF_BYTES: first half to send from, second half to receive into */
    struct mk_p2p_mr *tx_mr, *rx_mr;
};
#define HALF_BYTES (64u << 20)

/* Before run_pair: "gpu", "gpu-send", "gpu-receive" (the other end on the host), with the path of mknic. 0, 77 or 1. */
int half_gpu(const char *which, const char *mknic);
void half_gpu_end(void);
bool half_is_gpu(void); /* then everything takes longer, on processors that have other work */
/* The address of these bytes for the product. */
void *half_there(const void *p);

/* fn returns 0 or 1; 0 if both did. `both` false: only process 0 has to. A transport's name may end in ":ports". */
int run_pair(const char *transport, int (*fn)(struct half *), int both);
/* 0, or 77 after a line that says why: this transport is not here. */
int transport_missing(const char *transport, const char *test);

int half_settings(struct half *h, const char *transport); /* run_pair has done it */
int half_open(struct half *h);                            /* the device */
int half_join(struct half *h);                            /* the comms and memory */
/* The comms alone, from and to device p; NULL: not that one. Both sides call it at once. */
int half_meet(struct half *h, struct mk_p2p *p, struct mk_p2p_comm **tx, struct mk_p2p_comm **rx);
void half_drive(struct mk_p2p *p, int times);
void half_close(struct half *h); /* all */
int half_swap(struct half *h, const void *mine, void *theirs, size_t n);
int half_step(struct half *h); /* both are here */
/* The same; this side drives its device until the other one is here too, 45 s at most. */
int half_serve(struct half *h);
void half_part(struct half *h);  /* closes the comms */
void half_unmap(struct half *h); /* takes the memory away */

uint8_t *half_in(struct half *h); /* where to receive into */
void paint(uint8_t *p, size_t n, unsigned seed);
int painted(const uint8_t *p, size_t n, unsigned seed);

/* Post, and wait at most 20 s. 0, or the error. */
int post_send(struct mk_p2p_comm *c, const void *data, size_t size, int tag, struct mk_p2p_mr *mr,
              struct mk_p2p_req **out);
int post_recv(struct mk_p2p_comm *c, void *data, size_t size, int tag, struct mk_p2p_mr *mr,
              struct mk_p2p_req **out);
int finish(struct mk_p2p_req *r, size_t *sizes);
/* Waits for both, testing both all the time. */
int finish_two(struct mk_p2p_req *a, struct mk_p2p_req *b, size_t *size_b);
