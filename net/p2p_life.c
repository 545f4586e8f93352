/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Witnesses: who only receives would never hear from the network that the sender's process is gone. */
#include "boot_sock.h"
#include "p2p.h"
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>

#define LOOK_NS 20000000u

struct mk_p2p_witness *mk_p2p_witness_find(struct mk_p2p *p, uint64_t token, uint64_t id)
{
    for (struct mk_p2p_witness *w = p->witnesses; w; w = w->next)
        if (w->token == token && (!id || w->id == id) && !mk_p2p_witness_gone(w, 0)) {
            w->refs++;
            return w;
        }
    return NULL;
}

struct mk_p2p_witness *mk_p2p_witness_new(struct mk_p2p *p, uint64_t token, uint64_t id, int fd)
{
    struct mk_p2p_witness *w = calloc(1, sizeof(*w));
    if (!w)
        return NULL;
    w->id = id;
    w->token = token;
    w->fd = fd;
    w->refs = 1;
    w->next = p->witnesses;
    p->witnesses = w;
    return w;
}

void mk_p2p_witness_put(struct mk_p2p *p, struct mk_p2p_witness *w)
{
    if (!w || --w->refs)
        return;
    struct mk_p2p_witness **at = &p->witnesses;
    while (*at != w)
        at = &(*at)->next;
    *at = w->next;
    mk_boot_fd_close(w->fd);
    free(w);
}

uint64_t mk_p2p_witness_gone(struct mk_p2p_witness *w, uint64_t now)
{
    char byte;
    if (w->gone_ns || (now && now - w->looked_ns < LOOK_NS))
        return w->gone_ns;
    w->looked_ns = now ? now : mk_time_ns();
    const ssize_t n = recv(w->fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
        w->gone_ns = w->looked_ns;
    return w->gone_ns;
}
