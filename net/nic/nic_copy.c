/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Copy threads. A thread takes a few jobs of a client at a time, hands them to one stream as a group, and lets the
 * stream write the group's number behind them into a word of host memory: that is polled, and costs no driver call.
 *
 *   unordered jobs   groups take turns over the client's lanes (streams) of a device
 *   ordered jobs     stay on the lane that the client named; a stream keeps their order */
#include "nic.h"
#include "mk/err.h"
#include <stdlib.h>
#include <string.h>
#include <sched.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#define GROUP_BYTES (2u << 20) /* a group ends beyond: its jobs complete together */
#define SPIN_NS 2000000u       /* after the last job; then sleep on the bell */
#define YIELD_NS 20000u
#define STUCK_NS 2000000u /* nothing completes for so long: look less often */
#define SLEEP_NS 100000000u
#define NO_WINDOW UINT32_MAX
#define PITCH_MAX 0x7fffffffu

struct job {
    uint64_t cookie;
    mk_cu_ptr src, dst;
    size_t len;
    uint32_t src_win, dst_win;
    int gpu;
    int lane; /* -1: any */
    uint64_t inline_data;
};

/* ---- lanes ---- */

static size_t lane_bytes(void)
{
    return 64 + sizeof(uint64_t) * NIC_GROUPS * NIC_GROUP_JOBS;
}

int nic_lanes_open(int client, int gpu)
{
    struct nic_client *c = &nic.client[client];
    mk_cu_ptr gpu_mem = 0;
    if (c->lanes[gpu])
        return 0;
    struct nic_lane *l = calloc((size_t)nic.nlanes, sizeof(*l));
    const size_t bytes = (lane_bytes() * (size_t)nic.nlanes + 4095) / 4096 * 4096;
    char *mem = aligned_alloc(4096, bytes);
    int err = 0;
    if (!l || !mem) {
        free(l);
        free(mem);
        return mk_fail(MK_ERR_NOMEM, "NET", "mknic is out of memory");
    }
    memset(mem, 0, bytes);
    nic_use(gpu);
    err = nic.cu->host_register(mem, bytes, MK_CU_HOST_PORTABLE | MK_CU_HOST_MAPPED);
    if (err) {
        free(l);
        free(mem);
        return mk_cuda_fail(err, "cuMemHostRegister");
    }
    err = nic.cu->host_device_ptr(&gpu_mem, mem, 0);
    for (int i = 0; i < nic.nlanes; i++) {
        const size_t off = lane_bytes() * (size_t)i;
        if (!err)
            err = nic.cu->stream_create(&l[i].stream, MK_CU_STREAM_NON_BLOCKING);
        l[i].word = (uint64_t *)(void *)(mem + off);
        l[i].word_gpu = gpu_mem + off;
        l[i].table = l[i].word + 8;
        for (uint32_t k = 0; k < NIC_GROUPS && !err && !nic.write64; k++)
            err = nic.cu->event_create(&l[i].group[k].event, MK_CU_EVENT_NO_TIMING);
    }
    __atomic_store_n(&c->lanes[gpu], l, __ATOMIC_RELEASE);
    return err ? mk_cuda_fail(err, "streams of a client") : 0;
}

void nic_lanes_close(struct nic_client *c)
{
    for (int g = 0; g < nic.ngpus; g++) {
        struct nic_lane *l = c->lanes[g];
        if (!l)
            continue;
        nic_use(g);
        for (int i = 0; i < nic.nlanes; i++) {
            if (l[i].stream)
                nic.cu->stream_destroy(l[i].stream);
            for (uint32_t k = 0; k < NIC_GROUPS; k++)
                if (l[i].group[k].event)
                    nic.cu->event_destroy(l[i].group[k].event);
        }
        nic.cu->host_unregister(l[0].word);
        free(l[0].word);
        free(l);
        c->lanes[g] = NULL;
    }
}

/* ---- completions ---- */

/* Written to the ring at once, shown to the client by show(). */
static void complete(struct nic_client *c, uint64_t cookie, int status, enum mk_nic_why why)
{
    struct mk_nic_done *d = &c->seg->done[c->done++ % MK_NIC_RING];
    d->cookie = cookie;
    d->status = status;
    d->why = (int32_t)why;
}

static void show(struct nic_client *c)
{
    __atomic_store_n(&c->seg->done_tail, c->done, __ATOMIC_RELEASE);
    mk_bell_ring(c->bell);
}

static void let_go(uint32_t window)
{
    if (window != NO_WINDOW)
        __atomic_fetch_sub(&nic.window[window].jobs, 1, __ATOMIC_SEQ_CST);
}

static void group_done(struct nic_client *c, struct nic_group *g, int status, enum mk_nic_why why)
{
    for (uint32_t i = 0; i < g->n; i++) {
        let_go(g->src[i]);
        let_go(g->dst[i]);
        complete(c, g->cookie[i], status, why);
    }
    c->out -= g->n;
}

/* The driver is broken (a sticky error of the context): no copy can be trusted. The clients see our end. */
static void die(int err, const char *what)
{
    mk_cuda_fail(err, what);
    __atomic_store_n(&nic.failed, 1, __ATOMIC_RELEASE);
    kill(getpid(), SIGTERM); /* the control thread ends the process */
    pthread_exit(NULL);
}

static uint64_t lane_reached(struct nic_lane *l)
{
    if (nic.write64)
        return __atomic_load_n(l->word, __ATOMIC_ACQUIRE);
    uint64_t at = l->seen;
    while (at != l->issued) {
        const int err = nic.cu->event_query(l->group[(at + 1) % NIC_GROUPS].event);
        if (err == MK_CU_NOT_READY)
            break;
        if (err)
            die(err, "mknic: a copy");
        at++;
    }
    return at;
}

/* Groups that the devices have finished. */
static bool collect(struct nic_client *c)
{
    bool any = false;
    for (int g = 0; c->out && g < nic.ngpus; g++) {
        struct nic_lane *lanes = __atomic_load_n(&c->lanes[g], __ATOMIC_ACQUIRE);
        for (int i = 0; lanes && i < nic.nlanes; i++) {
            struct nic_lane *l = &lanes[i];
            if (l->seen == l->issued)
                continue;
            for (const uint64_t at = lane_reached(l); l->seen != at; any = true)
                group_done(c, &l->group[++l->seen % NIC_GROUPS], 0, MK_NIC_WHY_NONE);
        }
    }
    if (any)
        show(c);
    return any;
}

/* ---- jobs ---- */

/* On success the window counts one job more. */
static enum mk_nic_why resolve(struct nic_client *c, uint32_t grant, uint64_t off, uint32_t len,
                               uint32_t *window, mk_cu_ptr *addr, int *gpu)
{
    const uint64_t g = grant < MK_NIC_GRANTS ? __atomic_load_n(&c->grant[grant], __ATOMIC_SEQ_CST) : 0;
    if (!g)
        return MK_NIC_WHY_GRANT;
    struct nic_window *w = &nic.window[g & 0xffff];
    enum mk_nic_why why = MK_NIC_WHY_NONE;
    __atomic_fetch_add(&w->jobs, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&w->live, __ATOMIC_SEQ_CST) != g >> 16)
        why = MK_NIC_WHY_GONE;
    else if (off > w->len || len > w->len - off)
        why = MK_NIC_WHY_RANGE;
    if (why) {
        let_go((uint32_t)(g & 0xffff));
        return why;
    }
    *window = (uint32_t)(g & 0xffff);
    *addr = w->addr + off;
    *gpu = w->gpu;
    return MK_NIC_WHY_NONE;
}

static enum mk_nic_why take(struct nic_client *c, const struct mk_nic_job *q, struct job *j)
{
    int src_gpu = -1, dst_gpu = -1;
    enum mk_nic_why why;
    j->cookie = q->cookie;
    j->len = q->len;
    j->src_win = j->dst_win = NO_WINDOW;
    j->lane = q->flags & MK_NIC_ORDERED ? q->lane % nic.nlanes : -1;
    j->inline_data = q->inline_data;
    j->src = 0;
    if (q->len > MK_NIC_JOB_MAX || !q->len)
        return MK_NIC_WHY_RANGE;
    if (q->src == MK_NIC_INLINE) {
        if (q->len > 8)
            return MK_NIC_WHY_RANGE;
    } else if (q->src == MK_NIC_BOUNCE) {
        if (q->src_off > sizeof(c->seg->bounce) || q->len > sizeof(c->seg->bounce) - q->src_off)
            return MK_NIC_WHY_RANGE;
        j->src = (mk_cu_ptr)(uintptr_t)c->seg->bounce + q->src_off;
    } else {
        why = resolve(c, q->src, q->src_off, q->len, &j->src_win, &j->src, &src_gpu);
        if (why)
            return why;
    }
    why = resolve(c, q->dst, q->dst_off, q->len, &j->dst_win, &j->dst, &dst_gpu);
    j->gpu = dst_gpu >= 0 ? dst_gpu : src_gpu;
    if (!why && j->gpu < 0)
        why = MK_NIC_WHY_NO_GPU;
    if (!why && !__atomic_load_n(&c->lanes[j->gpu], __ATOMIC_ACQUIRE))
        why = MK_NIC_WHY_GRANT; /* its lanes come with the grant */
    if (why) {
        let_go(j->src_win);
        let_go(j->dst_win);
    }
    return why;
}

/* A call of the driver costs 3 to 4 us on the machines seen, whatever it copies, so unordered jobs that lie in equal
 * steps on both sides (slots of rings do) become one copy of several rows. Returns how many jobs the first one takes
 * with it. */
static int row_of(const struct job *j, int n)
{
    int k = 1;
    if (n < 2 || j[0].lane >= 0 || !nic.join)
        return 1;
    const uint64_t from = j[1].src - j[0].src, to = j[1].dst - j[0].dst;
    if (from > PITCH_MAX || to > PITCH_MAX || from < j[0].len || to < j[0].len)
        return 1;
    while (k < n && j[k].src_win == j[0].src_win && j[k].src_win != NO_WINDOW &&
           j[k].dst_win == j[0].dst_win && j[k].len == j[0].len && j[k].src - j[k - 1].src == from &&
           j[k].dst - j[k - 1].dst == to)
        k++;
    return k;
}

static void plane(struct mk_cu_plane *p, uint32_t window, mk_cu_ptr at, size_t pitch)
{
    memset(p, 0, sizeof(*p));
    p->type = nic.window[window].gpu < 0 ? MK_CU_COPY_HOST : MK_CU_COPY_DEVICE;
    p->host = p->type == MK_CU_COPY_HOST ? (const void *)(uintptr_t)at : NULL;
    p->device = p->type == MK_CU_COPY_HOST ? 0 : at;
    p->pitch = pitch;
}

static int issue_copies(struct nic_lane *l, const struct job *j, int n)
{
    int err = 0, rows;
    for (int i = 0; i < n && !err; i += rows) {
        rows = row_of(&j[i], n - i);
        if (rows == 1) {
            err = nic.cu->copy(j[i].dst, j[i].src, j[i].len, l->stream);
            continue;
        }
        struct mk_cu_copy_2d c;
        plane(&c.from, j[i].src_win, j[i].src, j[i + 1].src - j[i].src);
        plane(&c.to, j[i].dst_win, j[i].dst, j[i + 1].dst - j[i].dst);
        c.width = j[i].len;
        c.height = (size_t)rows;
        err = nic.cu->copy_2d(&c, l->stream);
    }
    return err;
}

static struct nic_lane *lane_for(struct nic_client *c, const struct job *j)
{
    struct nic_lane *lanes = c->lanes[j->gpu];
    return &lanes[j->lane >= 0 ? (uint32_t)j->lane : c->turn[j->gpu]++ % (uint32_t)nic.nlanes];
}

static void issue(struct nic_client *c, struct nic_lane *l, struct job *j, int n)
{
    struct nic_group *g = &l->group[(l->issued + 1) % NIC_GROUPS];
    uint64_t *table = l->table + (l->issued + 1) % NIC_GROUPS * NIC_GROUP_JOBS;
    g->seq = ++l->issued;
    g->n = (uint32_t)n;
    for (int i = 0; i < n; i++) {
        g->cookie[i] = j[i].cookie;
        g->src[i] = j[i].src_win;
        g->dst[i] = j[i].dst_win;
        if (!j[i].src) {
            table[i] = j[i].inline_data;
            j[i].src = (mk_cu_ptr)(uintptr_t)&table[i];
        }
    }
    c->out += (uint32_t)n;
    int err = nic_use(j->gpu);
    if (err)
        die(err, "mknic: cuCtxSetCurrent");
    const int refused = issue_copies(l, j, n);
    if (refused > 1) /* 1: these copies are wrong; else everything is */
        die(refused, "mknic: a copy");
    err = nic.write64 ? nic.cu->stream_write64(l->stream, l->word_gpu, g->seq, 0)
                      : nic.cu->event_record(g->event, l->stream);
    if (err)
        die(err, "mknic: the end of a group");
    if (refused) { /* the copies before the refused one are under way: wait for them, then tell */
        mk_cuda_fail(refused, "mknic: a copy");
        nic.cu->stream_sync(l->stream);
        while (l->seen != g->seq - 1)
            group_done(c, &l->group[++l->seen % NIC_GROUPS], 0, MK_NIC_WHY_NONE);
        group_done(c, g, MK_ERR_CUDA, MK_NIC_WHY_CUDA);
        l->seen = g->seq;
        show(c);
    }
}

/* One group of jobs that were waiting; false: nothing to do, or no room in the lane. */
static bool take_group(struct nic_client *c)
{
    struct job j[NIC_GROUP_JOBS];
    struct nic_lane *l = NULL;
    size_t bytes = 0;
    int n = 0;
    const uint64_t tail = __atomic_load_n(&c->seg->job_tail, __ATOMIC_ACQUIRE);
    const uint64_t seen = __atomic_load_n(&c->seg->done_head, __ATOMIC_ACQUIRE);
    if (tail == c->head)
        return false;
    if (tail - c->head > MK_NIC_RING || tail - seen > MK_NIC_RING) {
        __atomic_store_n(&c->bad, 1, __ATOMIC_RELEASE);
        return false;
    }
    const uint64_t begin = c->head;
    while (c->head != tail && n < nic.group_jobs && bytes < GROUP_BYTES) {
        const struct mk_nic_job q = c->seg->job[c->head % MK_NIC_RING];
        const enum mk_nic_why why = take(c, &q, &j[n]);
        if (why) {
            complete(c, q.cookie, MK_ERR_NET, why);
            show(c);
            c->head++;
            continue;
        }
        if (n && (j[n].gpu != j[0].gpu || j[n].lane != j[0].lane)) {
            let_go(j[n].src_win);
            let_go(j[n].dst_win);
            break;
        }
        if (!n) {
            l = lane_for(c, &j[0]);
            if (l->issued - l->seen >=
                NIC_GROUPS - 1) { /* this one is full; an unordered job tries the next */
                let_go(j[0].src_win);
                let_go(j[0].dst_win);
                break;
            }
        }
        bytes += j[n++].len;
        c->head++;
    }
    __atomic_store_n(&c->seg->job_head, c->head, __ATOMIC_RELEASE);
    if (n)
        issue(c, l, j, n);
    return c->head != begin;
}

static bool visit(struct nic_client *c)
{
    bool any = collect(c);
    const uint32_t state = nic_state(c);
    if (state == NIC_SERVED && !__atomic_load_n(&c->bad, __ATOMIC_ACQUIRE))
        any = take_group(c) || any;
    if (state == NIC_LEAVING && !c->out)
        nic_state_set(c, NIC_LEFT);
    return any;
}

/* ---- the thread ---- */

static bool is_mine(const struct nic_client *c)
{
    const uint32_t state = nic_state(c);
    return state == NIC_SERVED || state == NIC_LEAVING;
}

void *nic_copy_thread(void *thread_number)
{
    const int me = (int)(intptr_t)thread_number;
    uint64_t last = mk_time_ns();
    while (!__atomic_load_n(&nic.stop, __ATOMIC_ACQUIRE)) {
        const uint32_t seq = mk_bell_seq(nic_bell(me));
        const int top = (int)__atomic_load_n(&nic.client_top, __ATOMIC_ACQUIRE);
        bool any = false, out = false;
        for (int i = me; i < top; i += nic.nthreads) {
            struct nic_client *c = &nic.client[i];
            if (!is_mine(c))
                continue;
            any = visit(c) || any;
            out = out || (is_mine(c) && c->out); /* it may have been let go, and be another's by now */
        }
        const uint64_t now = mk_time_ns();
        if (any)
            last = now;
        const uint64_t idle = now - last;
        if (out && idle > STUCK_NS) {
            const struct timespec nap = {0, 20000};
            nanosleep(&nap, NULL);
        } else if (!out && idle > SPIN_NS) {
            mk_bell_wait(nic_bell(me), seq, SLEEP_NS);
        } else if (idle > YIELD_NS) {
            sched_yield();
        }
    }
    return NULL;
}
