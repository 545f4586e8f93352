/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Jobs for mknic, and its end. */
#include "loop_gpu.h"
#include "mk/err.h"
#include "mk/log.h"
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define LOOK_NS 1000000u /* how often the socket is looked at while polling */
#define NAP_NS 50000000u /* longest sleep of a device with GPU memory: mknic's end rings no bell */
#define BUSY_NAP_NS 5000000u

static const char *const why_text[] = {
    [MK_NIC_WHY_NONE] = "mknic failed",
    [MK_NIC_WHY_GRANT] = "mknic does not know the memory",
    [MK_NIC_WHY_GONE] = "the memory was deregistered",
    [MK_NIC_WHY_RANGE] = "the range ends beyond the registered memory",
    [MK_NIC_WHY_NO_GPU] = "mknic was asked to copy from host to host",
    [MK_NIC_WHY_CUDA] = "the CUDA driver refused the copy",
};

static void item_failed(struct mk_loop_item *it, int status, const char *text)
{
    if (it->status)
        return;
    it->status = status;
    snprintf(it->text, sizeof(it->text), "%s", text);
}

/* The job is over; its item, if somebody waits for it, has one less to wait for. */
static void job_over(struct mk_loop_nic *n, uint32_t at, int status, const char *text)
{
    struct mk_loop_nic_job *j = &n->job[at];
    if (j->bounce >= 0)
        n->free_bounces |= 1u << j->bounce;
    if (n->fill == at + 1) {
        n->fill = 0;
        n->fill_status = status;
        if (status && !n->dead)
            mk_fail(status, "NET", "loop: %s", text);
    }
    if (j->conn) {
        struct mk_loop_item *it = mk_loop_item_at(j->conn, j->pos);
        it->out--;
        if (status)
            item_failed(it, status, text);
        j->conn->next_due = 0;
    }
    j->conn = NULL;
    j->pos = UINT64_MAX;
    n->free_job[n->nfree++] = (uint16_t)at;
}

/* A mknic that is only slow finds the end of the socket, and nothing more to do. */
void mk_loop_nic_lost(struct mk_loop_dev *d, const char *what)
{
    struct mk_loop_nic *n = d->nic;
    if (n->dead)
        return;
    n->dead = true;
    snprintf(n->text, sizeof(n->text), "mknic (process %d), which moves GPU memory, %s", n->pid, what);
    for (uint32_t i = 0; i < MK_NIC_RING; i++)
        __atomic_store_n(&n->seg->job[i].dst, MK_NIC_INLINE, __ATOMIC_RELEASE); /* no target */
    shutdown(n->fd, SHUT_RDWR);
    for (uint32_t i = 0; i < MK_NIC_RING; i++)
        if (n->job[i].pos != UINT64_MAX)
            job_over(n, i, MK_ERR_NET, n->text);
    for (unsigned i = 0; i < d->nconn; i++)
        d->conn[i]->next_due = 0;
}

static void lost(struct mk_loop_dev *d)
{
    mk_loop_nic_lost(d, "has ended");
    if (d->nic->used)
        mk_fail(MK_ERR_NET, "NET", "loop: %s", d->nic->text);
}

/* ---- jobs ---- */

/* A slot with a part of the source in it; -1: none is free. */
static int bounce_fill(struct mk_loop_nic *n, const uint8_t *src, uint32_t len)
{
    if (!n->free_bounces)
        return -1;
    const int slot = __builtin_ctz(n->free_bounces);
    n->free_bounces &= ~(1u << slot);
    memcpy(n->seg->bounce[slot], src, len);
    return slot;
}

/* c NULL: nobody's item. Returns the job's number. */
static uint32_t job_push(struct mk_loop_nic *n, struct mk_loop_conn *c, uint64_t pos,
                         const struct mk_nic_job *job, int bounce)
{
    const uint16_t at = n->free_job[--n->nfree];
    n->job[at].conn = c;
    n->job[at].pos = pos;
    n->job[at].bounce = bounce;
    struct mk_nic_job *slot = &n->seg->job[n->tail % MK_NIC_RING];
    *slot = *job;
    slot->cookie = at;
    __atomic_store_n(&n->seg->job_tail, ++n->tail, __ATOMIC_RELEASE);
    n->rang = true;
    return at;
}

bool mk_loop_gpu_copy(struct mk_loop_conn *c, struct mk_loop_item *it, uint32_t from, uint32_t to)
{
    struct mk_loop_nic *n = c->dev->nic;
    if (it->part != from) {
        it->part = from;
        it->sent = from;
    }
    while (it->sent < to) {
        struct mk_nic_job job;
        uint32_t len = to - it->sent;
        int bounce = -1;
        if (n->dead) {
            item_failed(it, MK_ERR_NET, n->text);
            return true;
        }
        if (!n->nfree)
            return false;
        memset(&job, 0, sizeof(job));
        job.src = it->src_grant;
        job.src_off = it->src_off + it->sent;
        if (!it->mr) {
            job.src = MK_NIC_INLINE;
            job.inline_data = it->inline_data >> (8 * it->sent);
        } else if (!it->src_grant) {
            len = len < MK_NIC_BOUNCE_BYTES ? len : MK_NIC_BOUNCE_BYTES;
            bounce = bounce_fill(n, it->src + it->sent, len);
            if (bounce < 0)
                return false;
            job.src = MK_NIC_BOUNCE;
            job.src_off = (uint64_t)bounce * MK_NIC_BOUNCE_BYTES;
        }
        job.dst = it->dst_grant;
        job.dst_off = it->dst_off + it->sent;
        job.len = len;
        job.lane = (uint16_t)c->ring;
        job.flags = c->dev->base.caps.ordered ? MK_NIC_ORDERED : 0;
        job_push(n, c, it->pos, &job, bounce);
        it->out++;
        it->sent += len;
    }
    it->part = UINT32_MAX;
    return true;
}

void mk_loop_gpu_ring(struct mk_loop_dev *d)
{
    if (!d->nic || !d->nic->rang)
        return;
    d->nic->rang = false;
    mk_bell_ring(d->nic->doorbell);
}

/* The end of the socket: of mknic. */
static bool ended(struct mk_loop_nic *n)
{
    char byte;
    const ssize_t got = recv(n->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
}

void mk_loop_gpu_poll(struct mk_loop_dev *d)
{
    struct mk_loop_nic *n = d->nic;
    if (n->dead)
        return;
    const uint64_t tail = __atomic_load_n(&n->seg->done_tail, __ATOMIC_ACQUIRE);
    if (tail - n->done > MK_NIC_RING - n->nfree) {
        lost(d); /* more completions than jobs: not our mknic any more */
        return;
    }
    if (tail != n->done) {
        for (; n->done != tail; n->done++) {
            const struct mk_nic_done done = n->seg->done[n->done % MK_NIC_RING];
            const bool known = done.why >= 0 && done.why < (int)(sizeof(why_text) / sizeof(why_text[0]));
            if (done.cookie < MK_NIC_RING && n->job[done.cookie].pos != UINT64_MAX)
                job_over(n, (uint32_t)done.cookie, done.status, why_text[known ? done.why : 0]);
        }
        __atomic_store_n(&n->seg->done_head, n->done, __ATOMIC_RELEASE);
        return;
    }
    if (!n->used)
        return;
    const uint64_t now = mk_time_ns();
    if (now < n->next_look)
        return;
    n->next_look = now + LOOK_NS;
    if (ended(n))
        lost(d);
}

/* At most one bounce slot; false: no room now. */
static bool fill_part(struct mk_loop_nic *n, const struct mk_loop_mr *mr, uint64_t off, const uint8_t *from,
                      uint32_t len)
{
    struct mk_nic_job job;
    const int bounce = n->nfree ? bounce_fill(n, from, len) : -1;
    if (bounce < 0)
        return false;
    memset(&job, 0, sizeof(job));
    job.src = MK_NIC_BOUNCE;
    job.src_off = (uint64_t)bounce * MK_NIC_BOUNCE_BYTES;
    job.dst = mr->grant;
    job.dst_off = off;
    job.len = len;
    n->fill = job_push(n, NULL, 0, &job, bounce) + 1;
    return true;
}

int mk_loop_gpu_fill(struct mk_mr *base, uint64_t off, const void *from, uint32_t len)
{
    struct mk_loop_mr *mr = (struct mk_loop_mr *)base;
    struct mk_loop_dev *d = (struct mk_loop_dev *)base->dev;
    struct mk_loop_nic *n = d->nic;
    const uint64_t end = mk_time_ns() + n->timeout_ns;
    for (uint32_t at = 0; at < len;) {
        const uint32_t part = len - at < MK_NIC_BOUNCE_BYTES ? len - at : MK_NIC_BOUNCE_BYTES;
        bool given = false;
        n->fill_status = 0;
        while (!n->dead && (!given || n->fill)) {
            given = given || fill_part(n, mr, off + at, (const uint8_t *)from + at, part);
            mk_loop_gpu_ring(d);
            mk_loop_gpu_poll(d);
            if (given && n->fill)
                sched_yield(); /* mknic may want this processor */
            if (mk_time_ns() > end) {
                mk_loop_nic_lost(d, "does not copy");
                return mk_fail(MK_ERR_TIMEOUT, "NET", "loop: mknic (process %d) does not copy", n->pid);
            }
        }
        if (n->dead || n->fill_status)
            return n->dead ? mk_fail(MK_ERR_NET, "NET", "loop: %s", n->text) : n->fill_status;
        at += part;
    }
    return 0;
}

void mk_loop_gpu_forget(struct mk_loop_conn *c)
{
    struct mk_loop_nic *n = c->dev->nic;
    for (uint32_t i = 0; n && i < MK_NIC_RING; i++)
        if (n->job[i].conn == c)
            n->job[i].conn = NULL;
}

uint64_t mk_loop_gpu_nap(const struct mk_loop_dev *d, uint64_t ns)
{
    const struct mk_loop_nic *n = d->nic;
    if (!n || n->dead || !n->used)
        return ns;
    if (__atomic_load_n(&n->seg->done_tail, __ATOMIC_ACQUIRE) != n->done)
        return 0;
    const uint64_t most = n->nfree == MK_NIC_RING ? NAP_NS : BUSY_NAP_NS;
    return ns < most ? ns : most;
}
