/* SPDX-License-Identifier: Apache-2.0
 * Copyright mKernel authors */
/* Bootstrap: the front door (include/mk/boot.h).
 *
 *   boot.c       the API after the meeting: all-gather, events, end
 *   boot_meet.c  the three ways to meet
 *   boot_dial.c  a rank finds the root and says hello
 *   boot_link.c  a rank's connection and the thread that reads it
 *   boot_root.c  the root's thread: sockets           boot_core.c  the root without sockets: who may come in
 *   boot_sock.c  addresses, sockets, fork             boot_job.c   the root without sockets: what members do
 *   boot_wire.c  the bytes of all messages
 *
 * Fork: a child drops its copies of the sockets, so a parent's death is seen although children live on; an object
 * that a child inherited can only be destroyed. Programs that end by returning from main or by exit() without
 * destroy say good-bye in a destructor; _exit, signals and kill are deaths.
 * Once the root's rank has left and its process has ended, the others go on, but nobody sees their deaths. */
#include "boot_link.h"
#include "boot_root.h"
#include "mk/err.h"
#include "mk/shm.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static struct mk_boot *boots;  /* under the live lock */
static struct mk_boot *ending; /* what the end of the process has taken from it */

void mk_boot_list_add(struct mk_boot *b)
{
    mk_boot_live_lock();
    b->next = boots;
    boots = b;
    mk_boot_live_unlock();
}

/* false: the end of this process has it, which says good-bye for it, ends its thread and walks its list unlocked. */
static bool list_remove(struct mk_boot *b)
{
    mk_boot_live_lock();
    for (struct mk_boot **at = &ending; *at; at = &(*at)->next) {
        if (*at != b)
            continue;
        const bool ours = b->pid == getpid();
        if (!ours)
            *at = b->next;
        mk_boot_live_unlock();
        return !ours;
    }
    for (struct mk_boot **at = &boots; *at; at = &(*at)->next) {
        if (*at == b) {
            *at = b->next;
            break;
        }
    }
    mk_boot_live_unlock();
    return true;
}

/* ---- all-gather ---- */

/* With b->lock: the answer to number seq is here. */
static int take_result(struct mk_boot *b, void *recv, size_t bytes)
{
    if (b->done_code)
        return mk_fail_quiet(b->done_code, "%s", b->done_text);
    if (b->done_bytes != bytes)
        return mk_fail(MK_ERR_INTERNAL, "NET", "all-gather of %zu bytes brought %u", bytes, b->done_bytes);
    if (bytes)
        memcpy(recv, b->result, bytes * (size_t)b->nranks);
    free(b->result);
    b->result = NULL;
    return 0;
}

/* With b->lock. 0: go on waiting. */
static int hopeless(struct mk_boot *b)
{
    if (b->event_set)
        return mk_fail_quiet(b->event.code, "%s", b->event.text);
    if (b->first_left >= 0)
        return mk_fail_quiet(MK_ERR_PEER, "rank %d has left", b->first_left);
    if (b->ended)
        return mk_fail_quiet(MK_ERR_PEER, "%s", b->ended_text);
    return 0;
}

static int gather(struct mk_boot *b, const void *send, void *recv, size_t bytes)
{
    const uint64_t deadline = mk_time_ns() + b->timeout_ns;
    if (b->failed)
        return mk_fail_quiet(b->failed, "%s", b->failed_text);
    const uint64_t seq = b->seq + 1;
    int ret = 0;
    if (b->done_seq < seq) /* else it has failed already, before this rank came */
        ret = hopeless(b);
    if (!ret && b->done_seq < seq)
        ret = mk_boot_link_send(b, MK_BOOT_GATHER, seq, send, (uint32_t)bytes);
    if (ret == MK_ERR_NOMEM)
        mk_fail(ret, "NET", "no memory to send %zu bytes", bytes);
    bool more = true;
    while (!ret && b->done_seq < seq) {
        ret = hopeless(b);
        if (!ret && !more)
            ret = mk_fail(MK_ERR_TIMEOUT, "NET",
                          "not all ranks came to all-gather %llu of the bootstrap in %.3g s",
                          (unsigned long long)seq, (double)b->timeout_ns / 1e9);
        if (!ret)
            more = mk_boot_wait(b, deadline);
    }
    if (ret) {
        b->failed = ret;
        snprintf(b->failed_text, sizeof(b->failed_text), "%s", mk_last_error());
        return ret;
    }
    b->seq = seq;
    return take_result(b, recv, bytes);
}

int mk_boot_allgather(struct mk_boot *b, const void *send, void *recv, size_t bytes)
{
    if (!b || b->pid != getpid() || (bytes && (!send || !recv)))
        return mk_fail_quiet(MK_ERR_INVALID,
                             "bootstrap all-gather: a pointer is NULL, or this is a forked child");
    if (bytes > MK_BOOT_MAX_BYTES || bytes * (size_t)b->nranks > MK_BOOT_MAX_TOTAL)
        return mk_fail_quiet(MK_ERR_INVALID,
                             "bootstrap all-gather of %zu bytes from each of %d ranks is too large", bytes,
                             b->nranks);
    if (b->solo) {
        if (bytes)
            memmove(recv, send, bytes);
        return 0;
    }
    pthread_mutex_lock(&b->lock);
    const int ret = gather(b, send, recv, bytes);
    pthread_mutex_unlock(&b->lock);
    return ret;
}

int mk_boot_barrier(struct mk_boot *b)
{
    return mk_boot_allgather(b, NULL, NULL, 0);
}

/* ---- events ---- */

void mk_boot_on_event(struct mk_boot *b, mk_boot_event_fn fn, void *ctx)
{
    pthread_mutex_lock(&b->lock);
    b->fn = fn;
    b->fn_ctx = ctx;
    const bool now = fn && b->event_set && !b->fn_called;
    b->fn_called = b->fn_called || now;
    pthread_mutex_unlock(&b->lock);
    if (now)
        fn(ctx, &b->event);
}

int mk_boot_root_rank(struct mk_boot *b)
{
    pthread_mutex_lock(&b->lock);
    const int rank = b->solo ? b->rank : b->root_rank;
    pthread_mutex_unlock(&b->lock);
    return rank;
}

void mk_boot_on_said(struct mk_boot *b, mk_boot_said_fn fn, void *ctx)
{
    pthread_mutex_lock(&b->lock);
    b->said = fn;
    b->said_ctx = ctx;
    while (b->saying && !pthread_equal(pthread_self(), b->thread))
        mk_boot_wait(b, UINT64_MAX);
    pthread_mutex_unlock(&b->lock);
}

void mk_boot_on_left(struct mk_boot *b, mk_boot_left_fn fn, void *ctx)
{
    pthread_mutex_lock(&b->lock);
    b->left_fn = fn;
    b->left_ctx = ctx;
    pthread_mutex_unlock(&b->lock);
}

int mk_boot_say(struct mk_boot *b, int to, const void *bytes, size_t n)
{
    if (!b || b->pid != getpid() || to < -1 || to >= b->nranks || to == b->rank || n > MK_BOOT_MAX_SAY ||
        (n && !bytes))
        return mk_fail_quiet(MK_ERR_INVALID, "bootstrap message of %zu bytes to rank %d", n, to);
    if (b->solo)
        return 0;
    pthread_mutex_lock(&b->lock);
    int ret = MK_ERR_PEER;
    if (b->ended || b->bye)
        mk_fail_quiet(ret, "%s", b->ended ? b->ended_text : "this rank has said good-bye");
    else
        ret = mk_boot_link_send(b, MK_BOOT_SAY, (uint64_t)(to < 0 ? b->nranks : to), bytes, (uint32_t)n);
    pthread_mutex_unlock(&b->lock);
    return ret == MK_ERR_NOMEM ? mk_fail(ret, "NET", "no memory to send %zu bytes", n) : ret;
}

int mk_boot_event(struct mk_boot *b, struct mk_boot_event *out)
{
    if (!__atomic_load_n(&b->event_set, __ATOMIC_ACQUIRE))
        return 0;
    if (out)
        *out = b->event;
    return 1;
}

int mk_boot_has_left(struct mk_boot *b, int rank)
{
    if (rank < 0 || rank >= b->nranks)
        return 0;
    return __atomic_load_n(&b->left[rank], __ATOMIC_ACQUIRE);
}

/* The root decides which event was the first, this rank's own too; without a root this rank does. */
void mk_boot_abort(struct mk_boot *b, int code, const char *text)
{
    uint8_t body[MK_BOOT_VERDICT_HEAD + MK_BOOT_MAX_TEXT];
    if (!b || b->pid != getpid())
        return;
    if (code >= 0)
        code = MK_ERR_INTERNAL;
    bool alone = b->solo;
    if (!alone) {
        const size_t n = mk_boot_put_verdict(code, b->rank, text ? text : mk_strerror(code), body);
        pthread_mutex_lock(&b->lock);
        alone = b->ended || mk_boot_link_send(b, MK_BOOT_ABORT, 0, body, (uint32_t)n);
        pthread_mutex_unlock(&b->lock);
    }
    if (alone)
        mk_boot_record(b, code, b->rank, text ? text : mk_strerror(code));
}

/* ---- end ---- */

/* With b->lock. */
static void say_bye(struct mk_boot *b)
{
    if (b->bye || b->ended)
        return;
    b->bye = true;
    mk_boot_link_send(b, MK_BOOT_BYE, 0, NULL, 0);
}

void mk_boot_destroy(struct mk_boot *b)
{
    if (!b)
        return;
    if (!list_remove(b))
        return;
    if (b->solo || b->pid != getpid()) {
        if (b->pid != getpid())
            b->wake_fd = -1; /* fork has closed it here */
        mk_boot_free(b);
        return;
    }
    const uint64_t deadline = mk_time_ns() + 10000000000u;
    pthread_mutex_lock(&b->lock);
    say_bye(b);
    /* The own process's service closes once it has told the others: not before may this process end. It waits for
     * none of them, only for its turn on a processor, which can take a second and more. */
    for (bool more = b->hosts && b->threaded; more && !b->ended;)
        more = mk_boot_wait(b, deadline);
    pthread_mutex_unlock(&b->lock);
    mk_boot_link_stop(b);
    mk_boot_free(b);
}

/* Takes one object of this process from the list into `ending`; NULL: there is none left. */
static struct mk_boot *next_ending(void)
{
    struct mk_boot *b = NULL;
    if (!mk_boot_live_trylock())
        return NULL;
    for (struct mk_boot **at = &boots; *at && !b;) {
        if ((*at)->pid == getpid()) {
            b = *at;
            *at = b->next;
            b->next = ending;
            ending = b;
        } else {
            at = &(*at)->next; /* of the parent, in a forked child: not ours to speak for */
        }
    }
    mk_boot_live_unlock();
    return b;
}

/* The process ends in good order, or the library is unloaded: what lives says good-bye without waiting for any
 * peer, and our threads end: at once, or as soon as they get a processor. The objects stay as they are: somebody may
 * hold them yet. */
__attribute__((destructor)) static void end_of_process(void)
{
    const struct timespec ms = {.tv_nsec = 1000000};
    for (struct mk_boot *b; (b = next_ending());) {
        int tries = 0;
        while (pthread_mutex_trylock(&b->lock) && tries++ < 100)
            nanosleep(&ms, NULL);
        if (tries > 100)
            continue;
        say_bye(b);
        pthread_mutex_unlock(&b->lock);
    }
    mk_boot_root_farewell();
    for (struct mk_boot *b = ending; b; b = b->next)
        mk_boot_link_halt(b);
}
